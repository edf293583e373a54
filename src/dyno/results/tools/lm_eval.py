"""lm-eval's scores, one row per task and metric: results_*.json, samples_*.jsonl, and its Markdown table."""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from msgspec.structs import replace

from dyno.facts.imported import DocumentCell, DocumentTable, Figure, Row, Scalar, Setting
from dyno.results.draft import Draft, scored
from dyno.results.json_text import Value
from dyno.results.printed import printed
from dyno.secrets import shown

# model_args, as dyno calls them.
_ARGS: Final = {
    "pretrained": "model", "model": "model", "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel", "data_parallel_size": "replicas",
    "gpu_memory_utilization": "memory_fraction", "base_url": "base_url", "num_concurrent": "concurrency",
}  # fmt: skip
_CONFIG: Final = {
    "config.limit": "limit",
    "config.batch_size": "batch_size",
    "config.model": "backend",
    "config.gen_kwargs": "gen_kwargs",
}
_SETTINGS: Final = {
    "model_name": "model",
    "config.model_sha": "revision",
    "lm_eval_version": "tool_version",
    "date": "date",
    "chat_template_sha": "chat_template_sha",
}
_SAMPLES: Final = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
_SAMPLE: Final = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "doc_hash",
                  "prompt_hash", "target_hash"}  # fmt: skip
_PAIR: Final = re.compile(r",(?=\s*\w[\w.-]*=)")


def is_results(value: Value) -> bool:
    results = value.get("results")
    if results is None or not results.is_object:
        return False
    if any(
        key in value.fields for key in ("n-shot", "versions", "configs", "lm_eval_version")
    ):
        return True
    first = next(iter(results.fields.values()), None)  # stripped of all but the scores
    return first is not None and any(
        "," in key and field.digits for key, field in first.fields.items()
    )


def is_sample(value: Value) -> bool:
    return value.has("doc_id", "resps", "target")


def results(value: Value, file: str) -> Iterator[Draft]:
    groups, tasks = value.get("groups"), value.get("results")
    names = groups.fields if groups else {}
    drafts = [
        draft
        for task, scores in (tasks.fields if tasks else {}).items()
        for draft in _scores(value, task, scores, file, task in names)
    ]
    yield from drafts or [Draft("quality", "lm-eval", file, value)]


def _scores(
    value: Value, task: str, scores: Value, file: str, group: bool
) -> Iterator[Draft]:
    for key, field in scores.fields.items():
        metric, _, chosen = key.partition(",")
        if (
            field.number is None
            or metric.endswith("_stderr")
            or metric in ("alias", "sample_len", "sample_count")
        ):
            continue
        draft = Draft("quality", "lm-eval", file, field)
        draft.figure("score", field)
        stderr = scores.get(f"{metric}_stderr,{chosen}" if chosen else f"{metric}_stderr")
        if stderr is not None and stderr.digits:  # 'N/A' where there is none
            draft.figure("stderr", stderr)
        draft.label = (scores.text_of("alias") or task).strip(" -")
        for name, word in (("task", task), ("metric", metric), ("filter", chosen)):
            draft.set(name, word, field.line)
        draft.setting("task_version", value.get("versions", task))
        draft.setting("n_shot", value.get("n-shot", task))
        draft.setting("samples", value.get("n-samples", task, "effective"))
        draft.setting("samples_of", value.get("n-samples", task, "original"))
        if group:
            draft.set("group", True, field.line)
        draft.read_settings(value, _CONFIG)
        if (args := value.find("config.model_args")) is not None:
            _args(draft, args)
        draft.read_settings(value, _SETTINGS)
        yield draft


def _args(draft: Draft, args: Value) -> None:
    """Read 'pretrained=…,dtype=float16', or an object in newer versions."""
    for key, field in args.fields.items():
        draft.setting(_ARGS.get(key, key), field, "namespace")
    for pair in _PAIR.split(args.text or ""):
        key, equals, text = pair.strip().partition("=")
        if equals and text:
            draft.set(_ARGS.get(key, key), _scalar(text), args.line, "namespace")


def _scalar(text: str) -> Scalar:
    """Return the value of an argument."""
    if re.fullmatch(r"\d{1,12}", text):
        return int(text)
    if re.fullmatch(r"\d{1,6}\.\d{1,6}", text):
        return float(text)
    return text == "True" if text in ("True", "False") else text


# ---- single items, which --log_samples writes beside the results ----


def samples(values: Sequence[Value], file: str) -> Iterator[Draft]:
    """Yield the scores of a task, calculated from its items: the task is in the file's name."""
    match = _SAMPLES.fullmatch(file)
    task = match[1] if match else file.partition(".")[0]
    scores: dict[tuple[str, str, str], dict[str, float]] = {}
    prompts: dict[tuple[str, str, str], list[str]] = {}
    for value in values:
        named = value.get("metrics")
        metrics = (named and named.decoded(list[str])) or [
            n for n in value.fields if n not in _SAMPLE
        ]
        for metric in metrics:
            score = value.get(metric)
            if score is not None and (number := score.number) is not None:
                test = task, metric, value.text_of("filter") or "none"
                scores.setdefault(test, {})[str(value.fields["doc_id"].scalar)] = number
                prompts.setdefault(test, []).append(value.text_of("prompt_hash") or "")
    for test, items in scores.items():
        draft = scored("lm-eval", file, values[0].line, test, list(items.items()))
        draft.prompts_sha256 = sha256("".join(sorted(prompts[test])).encode()).hexdigest()
        yield draft


def results_beside(path: Path) -> Path | None:
    """Return the results file that a samples file belongs to, by its time; None: there is none."""
    match = _SAMPLES.fullmatch(path.name)
    results = path.with_name(f"results_{match[2]}.json") if match else path
    return results if match and results.is_file() else None


def samples_beside(path: Path) -> list[Path]:
    """Return the samples files of a results file."""
    return [
        p for p in sorted(path.parent.glob("samples_*.jsonl")) if results_beside(p) == path
    ]


def with_samples(rows: Sequence[Row], items: Sequence[Row]) -> list[Row]:
    """Add the scores of single items to the rows of the same task, metric and filter."""

    def test(row: Row) -> list[object]:
        return [row.setting(name) for name in ("task", "metric", "filter")]

    def joined(row: Row) -> Row:
        one = next((r for r in items if test(r) == test(row)), None)
        return (
            row
            if one is None
            else replace(row, samples=one.samples, prompts_sha256=one.prompts_sha256)
        )

    return [joined(row) for row in rows]


# ---- its Markdown table: a task's name is on its first line only ----


def table_rows(
    table: DocumentTable, index: int, file: str, form: Literal["table", "csv"]
) -> list[Row] | None:
    """Return the scores of lm-eval's table; None of another."""
    titles = [title.strip().lower() for title in table.header]
    task_column = next(
        (i for i, title in enumerate(titles) if title in ("tasks", "task", "groups")), None
    )
    if task_column is None or "metric" not in titles or "value" not in titles:
        return None
    value_column = titles.index("value")
    group = titles[task_column] == "groups"
    blank = Row(
        "quality",
        "lm-eval",
        form,
        file,
        table.line,
        table.line,
        {},
        section=table.section,
        table=index,
    )
    task, rows = "", []
    carried: dict[str, DocumentCell] = {}
    for cells, line in zip(table.rows, table.lines, strict=False):
        if len(cells) <= max(value_column, task_column):
            continue
        name = cells[task_column].text.strip()
        if name:
            task, carried = re.sub(r"^[\s-]+", "", name), {}
        by_title = _by_title(titles, cells)
        # Version, filter and n-shot are blank too where they stay the same.
        carried |= {
            key: by_title[key] for key in ("version", "filter", "n-shot") if key in by_title
        }
        figures = _figures(cells[value_column], by_title.get("stderr"), line)
        if figures:
            settings = _task_settings(task, by_title, carried, group, line)
            label = shown("task", task)
            rows.append(
                replace(
                    blank,
                    line=line,
                    end=line,
                    figures=figures,
                    settings=settings,
                    label=label,
                )
            )
    return rows


def _by_title(titles: list[str], cells: list[DocumentCell]) -> dict[str, DocumentCell]:
    """Return the cells of a line that aren't blank."""
    return {
        title: cell
        for title, cell in zip(titles, cells, strict=False)
        if title and cell.text.strip()
    }


def _figures(
    value: DocumentCell, error: DocumentCell | None, line: int
) -> dict[str, Figure]:
    """Return the score of a line and its standard error; none where it has no score."""
    score = printed(value.text)
    if score is None:
        return {}
    figures = {"score": Figure(score.value, line, score.half, bold=value.bold)}
    stderr = printed(error.text) if error is not None else None
    if stderr is not None:
        figures["stderr"] = Figure(stderr.value, line, stderr.half)
    return figures


def _task_settings(
    task: str,
    by_title: dict[str, DocumentCell],
    carried: dict[str, DocumentCell],
    group: bool,
    line: int,
) -> dict[str, Setting]:
    out = {"task": Setting(shown("task", task), line, "column")} if task else {}
    if group:
        out["group"] = Setting(True, line, "column")
    if "metric" in by_title:
        out["metric"] = Setting(
            shown("metric", by_title["metric"].text.strip()), line, "column"
        )
    for key, name in (
        ("filter", "filter"),
        ("version", "task_version"),
        ("n-shot", "n_shot"),
    ):
        if key in carried:
            text = carried[key].text.strip()
            number = printed(text)
            whole = (
                number is not None and not number.unit and number.value == int(number.value)
            )
            out[name] = Setting(
                int(number.value) if number and whole else shown(name, text), line, "column"
            )
    return out
