"""A table whose columns, or whose rows, mean figures: one result for each line of it, or for each column."""

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from dyno.facts.definition import definition
from dyno.facts.imported import Cell, Figure, Row, RowKind, Scalar, Setting, Table
from dyno.imports import columns, llama_bench_table, lm_eval_table
from dyno.imports.columns import TO_BYTES, TO_MS, Column
from dyno.imports.printed import Printed, printed
from dyno.secrets import shown

Form = Literal["table", "csv"]

# Whole numbers of these are counted, not rounded.
_COUNTED: Final = (
    "completed", "failed", "incomplete", "total_input_tokens", "total_output_tokens", "total_tokens",
    "peak_concurrency", "cached_input_tokens",
)  # fmt: skip
# Settings that say who was measured; the others say under what load.
_WHO: Final = ("engine", "backend", "model", "accelerator", "quantization", "dtype")
_ENGINES: Final = re.compile(
    r"\b(vllm|sglang|llama\.?cpp|tgi|text-generation-inference|tensorrt|trt-?llm|lmdeploy|ollama|exllama|mlc|mlx)", re.I
)
# 8xH100, 4 x MI300X, 2× RTX 4090
_DEVICES: Final = re.compile(
    r"\b(\d{1,3})\s?[x×*]\s?((?:RTX\s?|RX\s?)?(?:[ABHLTV]\d{2,3}|GH200|GB[23]00|MI\d{3}|\d{4}|Gaudi\s?\d|TPU|W\d{4}|R9700)"
    r"(?:\s?(?:X|XL|S|SXM|NVL|Ti|Super|XTX|XT|A)\b)?)",
    re.I,
)
AIPERF: Final = ["Metric", "avg"]  # how its CSV file begins
_WIDEST: Final = 200  # characters of a cell that may still be a setting


def rows_of(table: Table, index: int, file: str, form: Form) -> list[Row]:
    """None of a table that tells no figures."""
    for read in (llama_bench_table.rows, lm_eval_table.rows):
        if (found := read(table, index, file, form)) is not None:
            return found
    meanings = [_column(title) for title in table.header]
    if _figures_in(table, meanings):
        return list(_by_line(table, meanings, index, file, form))
    return list(_by_column(table, index, file, form))


def _column(title: str) -> Column | None:
    # pp512, tg128: one and the same figure in several columns, told apart by the test.
    return Column("speed") if llama_bench_table.titled(title) else columns.meaning(title)


def figure(cell: Cell, column: Column, line: int, tool: str) -> Figure | None:
    number = printed(cell.text)
    scale = None if number is None else _scale(column, number)
    if number is None or scale is None:
        return None
    exact = column.name in _COUNTED and number.value == int(number.value)
    return Figure(
        value=number.value * scale,
        line=line,
        half=0.0 if exact else number.half * scale,
        definition=definition(tool, columns.stem_of(column.name)),
        deviation=None if number.deviation is None else number.deviation * scale,
        bold=cell.bold,
    )


def _scale(column: Column, number: Printed) -> float | None:
    """A unit in the cell stands above none in the title; one that can't be is no figure."""
    if not number.unit:
        return column.scale
    if columns.stem_of(column.name):
        return TO_MS.get(number.unit)
    if column.name == "duration_s" and number.unit in TO_MS:
        return TO_MS[number.unit] / 1e3
    if column.name == "memory_bytes":
        return TO_BYTES.get(number.unit)
    if column.name == "acceptance_rate":
        return 0.01 if number.unit == "%" else None
    plain = {"req/s", "tok/s", "t/s", "rps", "tps", "w", "usd", "tokens", "requests"}
    return column.scale if number.unit in plain else None


def _figures_in(table: Table, meanings: list[Column | None]) -> bool:
    """Some column is a figure's by its title, and some cell of it is a number."""
    return any(
        column is not None
        and column.figure
        and any(figure(row[i], column, 1, "") for row in table.rows if i < len(row))
        for i, column in enumerate(meanings)
    )


def _by_line(table: Table, meanings: list[Column | None], index: int, file: str, form: Form) -> Iterator[Row]:
    tool = _tool(table.header)
    kept = _kept(table, meanings)
    tests = [llama_bench_table.titled(title) for title in table.header]
    for cells, line in zip(table.rows, table.lines, strict=False):
        figures: dict[str, Figure] = {}
        speeds: list[tuple[str, Figure]] = []
        settings: dict[str, Setting] = {}
        who: list[str] = []
        for i, cell in enumerate(cells[: len(meanings)]):
            column, test = meanings[i], tests[i]
            if column is not None and column.figure:
                value = figure(cell, column, line, tool)
                if value is not None and test is not None:
                    speeds.append((test, value))
                elif value is not None and column.name not in figures:
                    figures[column.name] = value
            elif column is not None or i in kept:
                name = column.name if column is not None else table.header[i].strip()
                settings |= {k: v for k, v in _settings(name, cell.text, line).items() if k not in settings}
                if (name in _WHO or (i == 0 and column is None)) and _plain(cell.text):
                    who.append(shown(name, _plain(cell.text)))
        first = shown(table.header[0], _plain(cells[0].text)) if cells and 0 not in _numeric(meanings) else ""
        whole = Row(
            kind="micro", tool=tool, form=form, file=file, line=line, end=line, figures={}, settings=settings,
            label=", ".join(who) or first, series=", ".join(who), section=table.section, table=index,
        )  # fmt: skip
        if figures:
            kind, figures = _kind(figures, settings, table.header)
            yield msgspec.structs.replace(
                whole, kind=kind, figures=figures, settings=settings | _tested(figures, settings)
            )
        for test, value in speeds:
            told = settings | llama_bench_table.test(test, line)
            yield msgspec.structs.replace(whole, figures={"speed": value}, settings=told)


def _tested(figures: dict[str, Figure], settings: dict[str, Setting]) -> dict[str, Setting]:
    """'pp512' in a column of another name: what a lone speed is of."""
    if set(figures) != {"speed"}:
        return {}
    for setting in settings.values():
        if isinstance(setting.value, str) and llama_bench_table.is_test(setting.value):
            return llama_bench_table.test(setting.value, setting.line)
    return {}


def _numeric(meanings: list[Column | None]) -> set[int]:
    return {i for i, column in enumerate(meanings) if column is not None and column.figure}


def _by_column(table: Table, index: int, file: str, form: Form) -> Iterator[Row]:
    """Metrics as rows. Beside them stand configurations, or statistics of one and the same."""
    meanings = [columns.meaning(row[0].text) if row else None for row in table.rows]
    known = [column for column in meanings if column is not None and column.figure]
    statistics = [columns.statistic(title) for title in table.header]
    if len(known) >= 2 and sum(s is not None for s in statistics[1:]) >= 2:
        yield from _by_statistic(table, meanings, statistics, index, file, form)
        return
    if len(known) < 2 or 2 * len(known) < len(table.rows):
        return
    tool = _tool([row[0].text for row in table.rows if row])
    for i, title in enumerate(table.header[1:], 1):
        figures: dict[str, Figure] = {}
        settings: dict[str, Setting] = {}
        for column, cells, line in zip(meanings, table.rows, table.lines, strict=False):
            if column is None or i >= len(cells):
                continue
            if not column.figure:
                settings |= _settings(column.name, cells[i].text, line)
            elif (value := figure(cells[i], column, line, tool)) is not None and column.name not in figures:
                figures[column.name] = value
        if figures and not _compares(title):
            settings |= {k: v for k, v in _devices(title, table.line).items() if k not in settings}
            label = shown("", _plain(title))
            kind, figures = _kind(figures, settings, [])
            yield Row(
                kind=kind, tool=tool, form=form, file=file, line=table.line, end=table.lines[-1], figures=figures,
                settings=settings, label=label, series=label, section=table.section, table=index,
            )  # fmt: skip


def _by_statistic(
    table: Table, meanings: list[Column | None], statistics: list[str | None], index: int, file: str, form: Form
) -> Iterator[Row]:
    figures: dict[str, Figure] = {}
    tool = "aiperf" if table.header[:2] == AIPERF else ""
    for column, cells, line in zip(meanings, table.rows, table.lines, strict=False):
        if column is None or not column.figure:
            continue
        for statistic, cell in zip(statistics, cells, strict=False):
            if statistic is None or not (columns.stem_of(column.name) or statistic == "mean"):
                continue
            name = columns.with_statistic(column.name, statistic) if columns.stem_of(column.name) else column.name
            if (value := figure(cell, column, line, tool)) is not None:
                figures.setdefault(name, value)
    if figures:
        kind, figures = _kind(figures, {}, [])
        yield Row(
            kind=kind, tool=tool, form=form, file=file, line=table.line, end=table.lines[-1], figures=figures,
            section=table.section, table=index,
        )  # fmt: skip


def _compares(title: str) -> bool:
    """A column that is reckoned of others: a difference, a speedup, a unit, a remark."""
    return bool(re.search(r"diff|delta|Δ|change|speedup|ratio|improve|unit|note|winner|better|gain|%", title, re.I))


def _kept(table: Table, meanings: list[Column | None]) -> set[int]:
    """Columns of unknown titles that are kept as settings: words and whole numbers. A fraction was measured."""
    kept = set()
    for i, column in enumerate(meanings):
        if column is not None or not table.header[i].strip():
            continue
        texts = [row[i].text.strip() for row in table.rows if i < len(row)]
        if any(texts) and not any(re.search(r"\d\.\d|±", t) and printed(t) for t in texts):
            kept.add(i)
    return kept


def _plain(text: str) -> str:
    return " ".join(text.split())[:_WIDEST] if not _blank(text) else ""


def _blank(text: str) -> bool:
    return text.strip().lower() in ("", "-", "—", "–", "n/a", "na", "nan", "none", "null", "tbd", "?")


def _settings(name: str, text: str, line: int) -> dict[str, Setting]:
    """One cell; a few of them tell two things."""
    text = text.strip()
    if _blank(text) or len(text) > _WIDEST:
        return {}
    if name == "accelerator" and text.isdigit():  # 'GPUs'
        return {"accelerators": Setting(int(text), line, "column")} if len(text) < 6 else {}
    if name == "accelerator":
        return {"accelerator": Setting(shown(name, text), line, "column"), **_devices(text, line)}
    if name == "backend" and _ENGINES.search(text):
        name = "engine"
    if name == "model_bytes":
        number = printed(text)
        size = None if number is None else TO_BYTES.get(number.unit)
        if number is None or size is None:
            return {"size": Setting(shown("size", text), line, "column")}
        return {"model_bytes": Setting(number.value * size, line, "column")}
    return {name: Setting(_scalar(name, text), line, "column")}


def _scalar(name: str, text: str) -> Scalar:
    if name == "concurrency":
        text = re.sub(r"^(?:c|conc|concurrency)\s*[=:]\s*", "", text, flags=re.I)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    number = printed(text)
    if number is None or number.unit or number.deviation is not None or re.search(r"[^\d.,eE+-]", text):
        return shown(name, text)
    return int(number.value) if number.value == int(number.value) and abs(number.value) < 1e15 else number.value


def _devices(text: str, line: int) -> dict[str, Setting]:
    match = _DEVICES.search(text)
    if match is None:
        return {}
    return {
        "accelerator": Setting(match[2], line, "column"),
        "accelerators": Setting(int(match[1]), line, "column"),
    }


def _kind(
    figures: dict[str, Figure], settings: dict[str, Setting], header: list[str]
) -> tuple[RowKind, dict[str, Figure]]:
    """Offline batches are told by their size, where nothing speaks of a stream; their latency is the batch's."""
    if _tested(figures, settings):
        return "micro", figures
    streams = {columns.stem_of(name) for name in figures} & {"ttft", "tpot", "itl"}
    if streams or "concurrency" in settings or "rate" in settings or "request_goodput" in figures:
        return "serve", figures
    if "batch_size" not in settings and "tokens_per_second" not in header:
        return "serve", figures
    out = {}
    for name, value in figures.items():
        statistic, _, stem = name.removesuffix("_ms").partition("_")
        if stem in ("e2el", "latency") and name.endswith("_ms"):
            name, value = f"{statistic}_latency_ms", _defined(value, "offline.latency")
        elif name == "total_token_throughput":
            value = _defined(value, "offline.throughput")
        out[name] = value
    return ("latency" if all(columns.stem_of(name) for name in out) else "throughput"), out


def _defined(f: Figure, key: str) -> Figure:
    return Figure(f.value, f.line, f.half, key, f.deviation, f.bold)


def _tool(titles: list[str]) -> str:
    """Whose keys, or whose block's words, the titles are; '' where anybody may have written them."""
    keys = set(titles)
    if {"mean_e2e_latency_ms", "total_throughput"} & keys and "mean_ttft_ms" in keys:
        return "sglang"
    if {"request_throughput", "total_token_throughput", "mean_ttft_ms", "mean_tpot_ms"} <= keys:
        return "vllm"
    if {"elapsed_time", "num_requests", "total_num_tokens", "tokens_per_second"} <= keys:
        return "vllm"
    words = {title.strip().rstrip(":") for title in titles}
    block = {"Successful requests", "Request throughput (req/s)", "Mean TTFT (ms)", "Mean TPOT (ms)"}
    return "vllm" if block <= words and "Total Token throughput (tok/s)" in words else ""
