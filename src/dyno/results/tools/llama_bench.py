"""llama-bench's tests as CSV, JSON, JSON lines, SQL or its Markdown table; and llama-batched-bench's."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from msgspec.structs import replace

from dyno.facts.imported import DocumentTable, Figure, Row, Samples, Scalar, Setting, Unread
from dyno.facts.metric import definition
from dyno.results.columns import TO_BYTES, TO_ONE
from dyno.results.draft import Draft, Read
from dyno.results.json_text import Value
from dyno.results.printed import half, printed
from dyno.secrets import shown

Fields = Mapping[str, tuple[Scalar, int]]  # of a test, with their lines
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
_INSERT: Final = re.compile(
    r"INSERT INTO (?:llama_bench|test) \(([^()]*)\) VALUES \((.*)\);?\s*"
)
_QUOTED: Final = re.compile(r"\s*(?:'((?:[^']|'')*)'|([^,'\s]+))\s*(?:,|$)")
# Short titles of its Markdown table, as the flags are called that set them.
_TITLES: Final = {
    "fa": "flash_attn", "sm": "split_mode", "mg": "main_gpu", "nkvo": "no_kv_offload", "ts": "tensor_split",
    "dev": "devices", "embd": "embeddings",
}  # fmt: skip
_TEST: Final = re.compile(r"((?:pp|tg)\s?\d+(?:\s?\+\s?tg\s?\d+)?)(?:\s*@\s*d\s?(\d+))?")
_AT_ONCE: Final = re.compile(r"(.+?)\s*\(c(\d{1,5})\)")  # llama-benchy's requests at once
_SPEED: Final = re.compile(r"t/s(?:\s*\(([^()]{1,40})\))?", re.I)
_CALCULATED: Final = re.compile(r"speed-?up|ratio|diff|delta|change|gain|improve|%")
_TEST_TITLE: Final = re.compile(
    rf"({_TEST.pattern})(?: ?[(\[]?(?:t/s|tok/s|tokens/s)[)\]]?)?"
)


def is_test(value: Value) -> bool:
    return _inner(value).has("avg_ts", "n_prompt", "n_gen")


def _inner(value: Value) -> Value:
    """Return the test itself: some keep it inside an object of their own."""
    inner = value.get("bench_raw")
    return inner if inner is not None and inner.is_object else value


def inner_tests(value: Value) -> list[Value]:
    """Return the tests of a list that is kept inside another object; else the value itself."""
    items = list(value.each("raw"))
    return (
        items
        if items and all(item.is_object and is_test(item) for item in items)
        else [value]
    )


def is_batched(value: Value) -> bool:
    return value.has("pp", "tg", "pl", "speed_pp", "speed_tg")


def is_header(titles: list[str]) -> bool:
    return {"avg_ts", "n_prompt", "n_gen"} <= set(titles)


def is_sql(text: str) -> bool:
    return bool(
        re.match(
            r"\s*(?:CREATE TABLE (?:IF NOT EXISTS )?|INSERT INTO )(?:llama_bench|test) ?\(",
            text,
        )
    )


def tests(value: Value, file: str) -> Iterator[Draft]:
    value = _inner(value)
    draft = Draft("micro", "llama-bench", file, value)
    speeds = draft.decoded(list[float], value.get("samples_ts"), "samples_ts")
    times = draft.decoded(list[float], value.get("samples_ns"), "samples_ns")
    if speeds or times:
        draft.samples = Samples(
            speeds=speeds, times_ms={"latency": [ns / 1e6 for ns in times]}
        )
    fields = {
        key: (scalar, field.line)
        for key, field in value.fields.items()
        if (scalar := field.scalar) is not None
    }
    speed = value.get("avg_ts")
    _fill(draft, fields, speed.digits if speed else "")
    yield draft


def texts(
    titles: list[str],
    cells: list[list[str]],
    lines: list[int],
    file: str,
    form: Literal["csv", "sql"],
) -> Read:
    """Read the lines of a CSV file or of SQL, where each value is a text."""
    rows: list[Row] = []
    unread: list[Unread] = []
    for values, line in zip(cells, lines, strict=True):
        by_title = dict(zip(titles, values, strict=False))
        draft = Draft("micro", "llama-bench", file, line, form)
        if len(values) == len(titles):
            _fill(
                draft,
                {k: (_scalar(k, v), line) for k, v in by_title.items() if v != ""},
                by_title["avg_ts"],
            )
        if draft.figures:
            rows.append(draft.row())
        else:
            unread.append(Unread(line, "not a llama-bench line", "lines"))
    return rows, unread


def sql(text: str, file: str) -> Read:
    rows: list[Row] = []
    unread: list[Unread] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("INSERT"):
            continue
        titles, values = _inserted(line)
        if not is_header(titles):
            unread.append(Unread(number, "not a llama-bench INSERT", "lines"))
            continue
        more, wrong = texts(titles, [values], [number], file, "sql")
        rows, unread = rows + more, unread + wrong
    return rows, unread


def _inserted(line: str) -> tuple[list[str], list[str]]:
    """Return the columns and values of an INSERT; none where it is another statement."""
    match = _INSERT.fullmatch(line)
    if match is None:
        return [], []
    titles = [title.strip() for title in match[1].split(",")]
    values = [
        bare or quoted.replace("''", "'") for quoted, bare in _QUOTED.findall(match[2])
    ]
    return titles, values


def batched(value: Value, file: str) -> Iterator[Draft]:
    """Yield two tests of each object: prompts of all sequences, then their tokens."""
    for test in ("pp", "tg"):
        draft = Draft("micro", "llama-batched-bench", file, value)
        draft.figure("speed", value.get(f"speed_{test}"))
        length = value.get(test)
        if length is not None and length.number is not None:
            draft.set("test", f"{test}{length.digits}", length.line)
        draft.setting("batch_size", value.get("pl"))
        draft.others(
            value,
            {
                "pp",
                "tg",
                "pl",
                "speed_pp",
                "speed_tg",
                "speed",
                "t_pp",
                "t_tg",
                "t",
                "n_kv",
            },
        )
        yield draft


def _scalar(key: str, text: str) -> Scalar:
    if key in _WORDS or not re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text):
        return text
    return float(text) if "." in text else int(text)


def _fill(draft: Draft, fields: Fields, digits: str) -> None:
    speed, line = fields.get("avg_ts", ("", draft.line))
    if isinstance(speed, str):
        return
    deviation = fields.get("stddev_ts", ("", line))[0]
    draft.figures["speed"] = Figure(
        float(speed),
        line,
        half(digits),
        "llama-bench.speed",
        None if isinstance(deviation, str) else float(deviation),
    )
    draft.set("engine", "llama.cpp", draft.line)
    for key, (scalar, line) in fields.items():
        if key not in _LEFT:
            draft.set(_NAMES.get(key, key), scalar, line)
    prompt, generated, depth = (
        fields.get(key, (0, draft.line)) for key in ("n_prompt", "n_gen", "n_depth")
    )
    parts = [
        f"{name}{n}"
        for name, n in (("pp", prompt[0]), ("tg", generated[0]))
        if n not in (0, "")
    ]
    draft.set("test", "+".join(parts), prompt[1])
    if depth[0] not in (0, ""):
        draft.set("depth", *depth)
    commit, line = fields.get("build_commit", ("", draft.line))
    if commit != "":
        draft.set(
            "engine_version",
            f"{commit} ({fields.get('build_number', ('', line))[0]})",
            line,
        )
    draft.label = draft.series = (
        str(draft.settings["model"].value) if "model" in draft.settings else ""
    )


# ---- its Markdown table: a test on each line, with the settings that differ from their defaults ----


def table_rows(
    table: DocumentTable, index: int, file: str, form: Literal["table", "csv"]
) -> list[Row] | None:
    """Return the results of a table in one of these forms; None of another."""
    titles = [title.strip().lower() for title in table.header]
    blank = Row(
        "micro",
        "",
        form,
        file,
        table.line,
        table.line,
        {},
        section=table.section,
        table=index,
    )
    if "s_pp t/s" in titles and "s_tg t/s" in titles:
        return _batched_rows(table, titles, blank)
    speeds = _speed_columns(table.header)
    if "test" not in titles or not speeds:
        return None
    # llama-benchy measures a server, and lays its table out alike.
    benchy = any(title.startswith(("ttfr", "peak t/s", "est_ppt")) for title in titles)
    tool = "llama-benchy" if benchy else "llama-bench"
    rows = []
    for cells, line in zip(table.rows, table.lines, strict=False):
        by_title = {
            title: cell.text.strip() for title, cell in zip(titles, cells, strict=False)
        }
        bold = {title for title, cell in zip(titles, cells, strict=False) if cell.bold}
        settings = _line_settings(by_title, line)
        model = shown("model", by_title.get("model", ""))
        for title, which in speeds.items():
            speed = printed(by_title.get(title, ""))
            if speed is None:
                continue
            # Of single requests at once it isn't how steady the runs were, but how long each had to wait.
            deviation = None if which.startswith("req") else speed.deviation
            figure = Figure(
                speed.value,
                line,
                speed.half,
                definition(tool, "speed"),
                deviation,
                title in bold,
            )
            label = ", ".join(filter(None, (model, shown("", which))))
            row = replace(
                blank,
                tool=tool,
                line=line,
                end=line,
                figures={"speed": figure},
                settings=settings,
            )
            rows.append(replace(row, label=label, series=label))
    return rows


def _speed_columns(header: list[str]) -> dict[str, str]:
    """Return the titles of speeds, and the words in brackets: 't/s (main)' beside 't/s (PR)', llama-benchy's
    't/s (total)' beside 't/s (req)'."""
    speeds = {}
    for title in header:
        match = _SPEED.fullmatch(title.strip())
        if match:
            speeds[title.strip().lower()] = match[1] or ""
    return speeds


def _batched_rows(table: DocumentTable, titles: list[str], blank: Row) -> list[Row]:
    """Return the results of llama-batched-bench: prompts of B sequences, then their tokens, on one line."""
    blank = replace(blank, tool="llama-batched-bench")
    rows = []
    for cells, line in zip(table.rows, table.lines, strict=False):
        numbers = {
            title: printed(cell.text) for title, cell in zip(titles, cells, strict=False)
        }
        common = {
            name: Setting(int(number.value), line, "column")
            for title, name in (("b", "batch_size"), ("n_kv", "n_kv"))
            if (number := numbers.get(title)) is not None
        }
        for test in ("pp", "tg"):
            speed, length = numbers.get(f"s_{test} t/s"), numbers.get(test)
            if speed is not None and length is not None:
                settings = common | {
                    "test": Setting(f"{test}{int(length.value)}", line, "column")
                }
                figures = {"speed": Figure(speed.value, line, speed.half)}
                rows.append(
                    replace(blank, line=line, end=line, figures=figures, settings=settings)
                )
    return rows


def _line_settings(by_title: dict[str, str], line: int) -> dict[str, Setting]:
    """Return the settings of a line."""
    out: dict[str, Setting] = {}
    for title, text in by_title.items():
        if not text or _SPEED.fullmatch(title) or _CALCULATED.search(title):
            continue
        if title == "test":
            out |= test_settings(text, line)
            continue
        known = _size(title, text)
        if known is not None:
            name, size = known
            out[name] = Setting(size, line, "column")
            continue
        value = _setting(title, text)
        if value is not None:
            out[_TITLES.get(title, title)] = Setting(value, line, "column")
    return out


def _size(title: str, text: str) -> tuple[str, float] | None:
    """Return the size of a model by name: its bytes, or its parameters."""
    number = printed(text)
    if title == "size" and number is not None and number.unit in TO_BYTES:
        return "model_bytes", number.value * TO_BYTES[number.unit]
    count = _parameters(text) if title == "params" else None
    return None if count is None else ("parameters", count)


def _setting(title: str, text: str) -> Scalar | None:
    """Return the value of a cell; None for a measured one, such as llama-benchy's ttfr (ms)."""
    number = printed(text)
    if number is None:
        return shown(title, text)
    if number.unit:
        return None
    if number.value == int(number.value):
        return int(number.value)
    return shown(title, text) if number.deviation is None else None


def test_settings(
    text: str, line: int, by: Literal["column", "block"] = "column"
) -> dict[str, Setting]:
    """Return the settings of a test: 'pp512 @ d4096' → the test and the depth. Older ones write 'pp 512'."""
    if match := _AT_ONCE.fullmatch(text.strip()):
        return test_settings(match[1], line, by) | {
            "concurrency": Setting(int(match[2]), line, by)
        }
    if (match := _TEST.fullmatch(text.strip())) is None:
        return {"test": Setting(shown("test", text), line, by)}
    test = {"test": Setting(match[1].replace(" ", ""), line, by)}
    return test | ({"depth": Setting(int(match[2]), line, by)} if match[2] else {})


def titled(title: str) -> str | None:
    """Return the test of a column such as 'pp512' or 'tg128 (t/s)', from a comparison of models."""
    match = _TEST_TITLE.fullmatch(" ".join(title.lower().split()))
    return match[1] if match else None


def is_test_name(text: str) -> bool:
    return bool(_TEST.fullmatch(text.strip()))


def _parameters(text: str) -> float | None:
    """Return a number of parameters: '6.74 B' → 6.74e9."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([KMBT])", text, re.I)
    return None if match is None else float(match[1]) * TO_ONE[match[2].lower()]
