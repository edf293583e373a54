"""lm-evaluation-harness: its tasks, asked by a program in its own environment."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dyno import files, secrets
from dyno.engines import environment
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, StoreError, TargetError, UsageError
from dyno.facts.quality import ItemAnswer, QualitySpec, Sitting, TaskScore
from dyno.facts.trial import TrialSpec
from dyno.load.protocols import PROTOCOLS
from dyno.quality import ask as builtin
from dyno.quality.ask import ITEMS, VERSION, own_tasks
from dyno.store.run import Run, pretty, read, read_optional, write
from dyno.trial.session import Session
from dyno.workload.tasks import LETTERS, MAX_TOKENS, items

KIND = "lm-eval"
_HARNESS = Path(builtin.__file__).with_name("harness.py")
_BACKENDS = {"chat": "openai-chat", "completions": "openai"}
_CODE = ("!function", "!!python", "trust_remote_code", "unsafe_code")  # in a task file
_SEED = 1234  # lm-eval's own default
_GONE = "The server stopped answering"


class _HarnessResult(msgspec.Struct):
    """What the program writes."""

    problem: str = ""
    answers: list[ItemAnswer] = []
    scores: list[TaskScore] = []
    truncated: int = 0
    version: str = ""
    duration_s: float = 0.0


def ask(run: Run, session: Session, trial: TrialSpec, concurrency: int) -> None:
    """Ask the tasks that aren't dyno's own. Requests that were answered before are not sent again."""
    spec = trial.quality
    assert spec is not None
    out = _out(run, concurrency)
    if out.exists() or session.stop.requested:
        return
    tasks = builtin.other_tasks(spec)
    session.watcher.phase(
        f"Asking {', '.join(tasks)} by lm-eval at concurrency {concurrency}"
    )
    process = session.fleet.facts.start if session.fleet else None
    sittings = run.sittings()
    run.write_sittings([*sittings, Sitting(concurrency, process)])
    result = _work(run, session, trial, concurrency, tasks)
    if result is None:
        return
    if result.problem:
        raise (TargetError if result.problem.startswith(_GONE) else UsageError)(
            result.problem
        )
    own = [
        answer
        for answer in run.answers(concurrency)
        if answer.task in builtin.own_tasks(spec)
    ]
    run.write_answers(concurrency, [*own, *result.answers])
    run.write_sittings([*sittings, Sitting(concurrency, process, result.duration_s)])
    write(out, pretty(msgspec.structs.replace(result, answers=[])))
    _cache(run, concurrency).unlink(missing_ok=True)


def interpreter() -> str:
    env = environment.find(KIND)
    if env is None:
        raise UsageError(
            "lm-evaluation-harness is not installed. Install it with `dyno engines install lm-eval`."
        )
    return env.python


def _work(
    run: Run, session: Session, trial: TrialSpec, concurrency: int, tasks: list[str]
) -> _HarnessResult | None:
    """Run the program; None where the user stops it. Its log stays where it fails."""
    job, out = run.path / "lm-eval-job.json", run.path / "lm-eval-result.json"
    out.unlink(missing_ok=True)
    order = {
        **_job(trial, session, tasks),
        "concurrency": concurrency,
        "out": str(out.absolute()),
        "cache": str(_cache(run, concurrency).absolute()),
    }
    write(job, pretty(order))
    env = {**os.environ, "DYNO_HEADERS": msgspec.json.encode(session.headers).decode()}
    log = run.path / "lm-eval.log"
    with EngineProcess([interpreter(), "-I", str(_HARNESS), str(job)], env, log) as process:
        while process.alive() and not session.stop.requested:
            time.sleep(0.05)
            _report(session, process.last_line())
        code, last = process.exit_code, process.last_lines()
    session.watcher.over()
    job.unlink()
    if session.stop.requested:
        return None
    if not out.exists():
        write(log, secrets.clean(log.read_text(errors="replace")).encode())
        raise EngineError(
            f'lm-eval failed with code {code}: "{" | ".join(last)}". Read {log}.'
        )
    result = read(out, _HarnessResult)
    for path in (out, log):
        path.unlink()
    return result


def task_code(folder: Path) -> str | None:
    """Return the first task file that runs Python code, and how. lm-eval imports it with the user's rights."""
    for path in sorted(
        p for p in folder.rglob("*") if p.suffix in (".yaml", ".yml") and p.is_file()
    ):
        text = files.read(path, files.TEXT).decode(errors="replace")
        if sign := next((word for word in _CODE if word in text), None):
            return f"{path} ({sign})"
    return None


def _check_code(spec: QualitySpec) -> None:
    if spec.allow_task_code or not spec.include_path:
        return
    try:
        code = task_code(Path(spec.include_path).expanduser())
    except OSError as e:
        raise UsageError(
            f"{e.filename} can't be read: {e.strerror}. Check --include-path."
        ) from None
    if code:
        raise UsageError(
            f"{code} runs Python code with your rights. Read it, and add --allow-task-code (in a study: "
            "allow_task_code = true) if you trust it."
        )


def _report(session: Session, line: str) -> None:
    try:
        progress = msgspec.json.decode(line, type=dict[str, int])
        session.watcher.step(progress["done"], max(progress["count"], 1))
    except (msgspec.DecodeError, KeyError):  # a line of lm-eval's own
        session.watcher.below(line[:200])


def _job(trial: TrialSpec, session: Session, tasks: list[str]) -> dict[str, Any]:
    spec, target = trial.quality, trial.target
    assert spec is not None
    if target.base_url.startswith("unix:"):
        raise UsageError(
            "lm-eval can't reach a server by a Unix socket. Give an http:// address, or built-in tasks."
        )
    _check_code(spec)
    form = builtin.lm_form(spec)
    if spec.chat_template and form == "completions":
        raise UsageError(
            "--apply-chat-template needs the chat form, in which the server applies its template. Remove --form "
            "completions."
        )
    return {
        "tasks": tasks,
        "form": form,
        "model": session.target.model,
        "url": target.base_url.rstrip("/") + PROTOCOLS[_BACKENDS[form]].path,
        "tokenize": target.base_url.rstrip("/") + "/tokenize",
        "include_path": spec.include_path
        and str(Path(spec.include_path).expanduser().absolute()),
        "num_fewshot": spec.num_fewshot,
        "limit": spec.limit,
        "max_tokens": spec.max_tokens,
        "max_length": session.target.max_model_len,
        "system": spec.system,
        "gen_kwargs": spec.gen_kwargs,
        "seed": spec.seed or _SEED,
        "timeout_s": trial.load.request_timeout_s,
        **{
            name: getattr(target, name)
            for name in ("insecure", "cacert", "cert", "cert_key")
        },
    }


def _cache(run: Run, concurrency: int) -> Path:
    return run.path / f"lm-eval-{concurrency}.cache"


def _out(run: Run, concurrency: int) -> Path:
    return run.path / f"lm-eval-{concurrency}.json"


def _result(run: Run, concurrency: int) -> _HarnessResult:
    return read_optional(_out(run, concurrency), _HarnessResult) or _HarnessResult()


def tools(run: Run, spec: QualitySpec) -> dict[str, str]:
    """Name lm-eval and its version, where it asked."""
    version = _result(run, spec.concurrency[0]).version
    return {KIND: version} if version else {}


def scores(run: Run, concurrency: int) -> list[TaskScore]:
    return _result(run, concurrency).scores


def truncated(run: Run, concurrency: int) -> int:
    return _result(run, concurrency).truncated


# ---- the built-in tasks as its task files ----

_GENERATED = """task: dyno_{task}
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: {most}, do_sample: false}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
filter_list:
  - {{name: strip, filter: [{{function: regex, regex_pattern: "^\\\\s*(.*?)\\\\.?\\\\s*$"}}, {{function: take_first}}]}}
"""
_CHOSEN = """task: dyno_{task}_choices
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: [{letters}]
doc_to_target: "{{{{letter}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
_COMMON = """dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
num_fewshot: 0
metadata: {{version: {version}}}
"""


def write_tasks(folder: Path, spec: QualitySpec) -> Iterator[str]:
    """Write each task in two forms, to be generated and to be chosen by log-likelihood. Yield their names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for task in own_tasks(spec):
            for name, form, lines in (
                ("", _GENERATED, _questions(task, spec)),
                ("_choices", _CHOSEN, _choices(task, spec)),
            ):
                data = (folder / f"dyno_{task}{name}.jsonl").resolve()
                data.write_bytes(
                    b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
                )
                text = form.format(
                    task=task,
                    most=spec.max_tokens or MAX_TOKENS,
                    letters=", ".join(LETTERS),
                )
                text += _COMMON.format(
                    data=msgspec.json.encode(str(data)).decode(), version=VERSION
                )
                (folder / f"dyno_{task}{name}.yaml").write_text(text)
                yield f"dyno_{task}{name}"
    except OSError as e:
        raise StoreError(
            f"{folder} can't be written: {e.strerror}. Choose another folder."
        ) from None


def _questions(task: str, spec: QualitySpec) -> Iterator[dict[str, str]]:
    for item in items([task], spec.limit or ITEMS, spec.seed):
        yield {"id": item.id, "question": item.question, "answer": item.answer}


def _choices(task: str, spec: QualitySpec) -> Iterator[dict[str, str]]:
    for item in items([task], spec.limit or ITEMS, spec.seed):
        question, letter = item.with_choices()
        yield {"id": item.id, "question": question, "letter": letter}
