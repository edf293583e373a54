"""What lm-eval writes as results_*.json: a row for each metric of each task."""

import re
from collections.abc import Iterator
from typing import Final

from dyno.facts.imported import Row, Unread
from dyno.results.draft import Draft
from dyno.results.value import Value

# model_args, as dyno calls them.
_ARGS: Final = {
    "pretrained": "model", "model": "model", "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel", "data_parallel_size": "replicas",
    "gpu_memory_utilization": "memory_fraction", "base_url": "base_url", "num_concurrent": "concurrency",
}  # fmt: skip
_PAIR: Final = re.compile(r",(?=\s*\w[\w.-]*=)")


def is_results(value: Value) -> bool:
    results = value.get("results")
    if results is None or not results.is_object:
        return False
    if any(key in value.fields for key in ("n-shot", "versions", "configs", "lm_eval_version")):
        return True
    first = next(iter(results.fields.values()), None)  # stripped of all but the scores
    return first is not None and any("," in key and field.digits for key, field in first.fields.items())


def is_samples(value: Value) -> bool:
    return value.has("doc_id", "resps", "target")


def results(values: list[Value], file: str) -> tuple[list[Row], list[Unread]]:
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in values:
        before = len(rows)
        groups = value.get("groups")
        names = set(groups.fields) if groups else set()
        tasks = value.get("results")
        for task, scores in (tasks.fields if tasks else {}).items():
            for draft in _scores(value, task, scores, file, task in names):
                unread += draft.unread
                if "score" in draft.figures:
                    rows.append(draft.row())
        if len(rows) == before:
            unread.append(Unread(value.line, "results of lm-eval without a score"))
    return rows, unread


def _scores(value: Value, task: str, scores: Value, file: str, group: bool) -> Iterator[Draft]:
    for key, field in scores.fields.items():
        metric, _, chosen = key.partition(",")
        if field.digits == "" or metric.endswith("_stderr") or metric in ("alias", "sample_len", "sample_count"):
            continue
        draft = Draft("quality", "lm-eval", file, field)
        draft.figure("score", field)
        stderr = scores.get(f"{metric}_stderr,{chosen}" if chosen else f"{metric}_stderr")
        if stderr is not None and stderr.digits:  # 'N/A' where none was reckoned
            draft.figure("stderr", stderr)
        alias = scores.get("alias")
        draft.label = ((alias.text if alias else None) or task).strip(" -")
        draft.told("task", task, field.line)
        draft.told("metric", metric, field.line)
        draft.told("filter", chosen, field.line)
        draft.setting("task_version", value.get("versions", task))
        draft.setting("n_shot", value.get("n-shot", task))
        draft.setting("samples", value.get("n-samples", task, "effective"))
        draft.setting("samples_of", value.get("n-samples", task, "original"))
        if group:
            draft.told("group", True, field.line)
        _config(draft, value)
        yield draft


def _config(draft: Draft, value: Value) -> None:
    for key, name in (
        ("limit", "limit"),
        ("batch_size", "batch_size"),
        ("model", "backend"),
        ("gen_kwargs", "gen_kwargs"),
    ):
        draft.setting(name, value.get("config", key))
    args = value.get("config", "model_args")
    if args is not None:
        _args(draft, args)
    draft.setting("model", value.get("model_name"))
    draft.setting("revision", value.get("config", "model_sha"))
    draft.setting("tool_version", value.get("lm_eval_version"))
    draft.setting("date", value.get("date"))
    draft.setting("chat_template_sha", value.get("chat_template_sha"))


def _args(draft: Draft, args: Value) -> None:
    """'pretrained=…,dtype=float16', or an object of newer ones."""
    for key, field in args.fields.items():
        draft.setting(_ARGS.get(key, key), field, "namespace")
    for pair in _PAIR.split(args.text or ""):
        key, equals, text = pair.strip().partition("=")
        if equals and text:
            whole = re.fullmatch(r"\d{1,12}", text)
            fraction = re.fullmatch(r"\d{1,6}\.\d{1,6}", text)
            scalar = int(text) if whole else float(text) if fraction else text
            if text in ("True", "False"):
                scalar = text == "True"
            draft.told(_ARGS.get(key, key), scalar, args.line, "namespace")
