"""What llama-bench writes as CSV, JSON, JSON lines or SQL; and llama-batched-bench's JSON lines."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from dyno.facts.imported import Figure, Row, Samples, Scalar, Setting, Unread
from dyno.results.draft import Draft
from dyno.results.printed import half
from dyno.results.value import Value
from dyno.secrets import shown

Read = tuple[list[Row], list[Unread]]

# Its columns, as its Markdown table and dyno call them; others keep their names.
_NAMES: Final = {
    "model_type": "model", "model_size": "model_bytes", "model_n_params": "parameters", "backends": "backend",
    "n_threads": "threads", "n_gpu_layers": "ngl", "gpu_info": "accelerator", "test_time": "date", "use_mmap": "mmap",
}  # fmt: skip
_LEFT: Final = ("avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts", "n_prompt", "n_gen",
                "n_depth", "build_commit", "build_number")  # fmt: skip
# SQL and CSV quote everything.
_WORDS: Final = ("build_commit", "cpu_info", "gpu_info", "backends", "model_filename", "model_type", "cpu_mask",
                 "type_k", "type_v", "split_mode", "devices", "tensor_split", "tensor_buft_overrides", "load_mode",
                 "lazy_mode", "test_time")  # fmt: skip
_INSERT: Final = re.compile(r"INSERT INTO (?:llama_bench|test) \(([^()]*)\) VALUES \((.*)\);?\s*")
_QUOTED: Final = re.compile(r"\s*(?:'((?:[^']|'')*)'|([^,'\s]+))\s*(?:,|$)")


def is_test(value: Value) -> bool:
    return _inner(value).has("avg_ts", "n_prompt", "n_gen")


def _inner(value: Value) -> Value:
    """Some keep its object inside one of their own, with what they tried."""
    held = value.get("bench_raw")
    return held if held is not None and held.is_object else value


def held(value: Value) -> list[Value]:
    """Its list of tests, where somebody keeps it whole inside an object of their own; else the value itself."""
    raw = value.get("raw")
    items = list(raw.items()) if raw is not None and raw.is_list else []
    return items if items and all(item.is_object and is_test(item) for item in items) else [value]


def is_batched(value: Value) -> bool:
    return value.has("pp", "tg", "pl", "speed_pp", "speed_tg")


def is_header(titles: list[str]) -> bool:
    return {"avg_ts", "n_prompt", "n_gen"} <= set(titles)


def is_sql(text: str) -> bool:
    return bool(re.match(r"\s*(?:CREATE TABLE (?:IF NOT EXISTS )?|INSERT INTO )(?:llama_bench|test) ?\(", text))


def tests(values: list[Value], file: str) -> Read:
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in map(_inner, values):
        draft = Draft("micro", "llama-bench", file, value)
        told = {key: (field.scalar, field.line) for key, field in value.fields.items() if field.scalar is not None}
        speeds = draft.samples(list[float], value.get("samples_ts"), "samples_ts")
        times = draft.samples(list[float], value.get("samples_ns"), "samples_ns")
        samples = Samples(speeds=speeds, latencies_ms=[ns / 1e6 for ns in times]) if speeds or times else None
        speed = value.get("avg_ts")
        row = _row({k: (v, n) for k, (v, n) in told.items() if v is not None}, speed.digits if speed else "", file,
                   "json", value.line, value.end, samples)  # fmt: skip
        unread += draft.unread
        if row is None:
            unread.append(Unread(value.line, "a test of llama-bench without its speed"))
        else:
            rows.append(row)
    return rows, unread


def texts(titles: list[str], cells: list[list[str]], lines: list[int], file: str, form: Literal["csv", "sql"]) -> Read:
    """Of a CSV file or of SQL, where each value is a text."""
    rows: list[Row] = []
    unread: list[Unread] = []
    for texts, line in zip(cells, lines, strict=True):
        told = dict(zip(titles, texts, strict=False))
        row = None
        if len(texts) == len(titles):
            settings = {k: (_scalar(k, v), line) for k, v in told.items() if v != ""}
            row = _row(settings, told["avg_ts"], file, form, line, line, None)
        if row is None:
            unread.append(Unread(line, "a line that isn't as llama-bench writes them", "lines"))
        else:
            rows.append(row)
    return rows, unread


def sql(text: str, file: str) -> Read:
    rows: list[Row] = []
    unread: list[Unread] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("INSERT"):
            continue
        match = _INSERT.fullmatch(line)
        titles = [title.strip() for title in match[1].split(",")] if match else []
        found = [(a.replace("''", "'") if b == "" else b) for a, b in _QUOTED.findall(match[2])] if match else []
        if not is_header(titles):
            unread.append(Unread(number, "an INSERT that isn't as llama-bench writes them", "lines"))
            continue
        more, wrong = texts(titles, [found], [number], file, "sql")
        rows, unread = rows + more, unread + wrong
    return rows, unread


def batched(values: list[Value], file: str) -> Read:
    """Two tests in each: prompts of all sequences, then their tokens."""
    rows: list[Row] = []
    unread: list[Unread] = []
    for value in values:
        for test in ("pp", "tg"):
            draft = Draft("micro", "llama-batched-bench", file, value)
            draft.figure("speed", value.get(f"speed_{test}"))
            length = value.get(test)
            if length is not None and length.number is not None:
                draft.told("test", f"{test}{length.digits}", length.line)
            draft.setting("batch_size", value.get("pl"))
            known = {"pp", "tg", "pl", "speed_pp", "speed_tg", "speed", "t_pp", "t_tg", "t", "n_kv"}
            draft.others(value, known)
            unread += draft.unread
            if draft.figures:
                rows.append(draft.row())
    return rows, unread


def _scalar(key: str, text: str) -> Scalar:
    if key in _WORDS or not re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text):
        return text
    return float(text) if "." in text else int(text)


def _row(
    told: Mapping[str, tuple[Scalar, int]], speed: str, file: str, form: Literal["json", "csv", "sql"], line: int,
    end: int, samples: Samples | None,
) -> Row | None:  # fmt: skip
    value, where = told.get("avg_ts", ("", line))
    if isinstance(value, str):
        return None
    spread = told.get("stddev_ts", ("", line))[0]
    deviation = None if isinstance(spread, str) else float(spread)
    settings = {"engine": Setting("llama.cpp", line)}
    for key, (scalar, at) in told.items():
        if key not in _LEFT and scalar != "":
            settings[_NAMES.get(key, key)] = Setting(shown(key, scalar) if isinstance(scalar, str) else scalar, at)
    settings |= _test(told, line) | _build(told, line)
    return Row(
        kind="micro", tool="llama-bench", form=form, file=file, line=line, end=end, settings=settings, samples=samples,
        figures={"speed": Figure(float(value), where, half(speed), "llama-bench.speed", deviation)},
        label=str(settings["model"].value) if "model" in settings else "",
        series=str(settings["model"].value) if "model" in settings else "",
    )  # fmt: skip


def _test(told: Mapping[str, tuple[Scalar, int]], line: int) -> dict[str, Setting]:
    prompt, generated, depth = (told.get(key, (0, line)) for key in ("n_prompt", "n_gen", "n_depth"))
    parts = [f"{name}{n}" for name, n in (("pp", prompt[0]), ("tg", generated[0])) if n not in (0, "")]
    out = {"test": Setting("+".join(parts), prompt[1])} if parts else {}
    return out | ({"depth": Setting(depth[0], depth[1])} if depth[0] not in (0, "") else {})


def _build(told: Mapping[str, tuple[Scalar, int]], line: int) -> dict[str, Setting]:
    commit, at = told.get("build_commit", ("", line))
    number = told.get("build_number", ("", line))[0]
    return {"engine_version": Setting(f"{commit} ({number})", at)} if commit != "" else {}
