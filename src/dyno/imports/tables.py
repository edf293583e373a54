"""A table whose columns, or whose rows, mean figures: one result for each line of it, or for each column."""

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from dyno.facts.imported import Figure, Row, RowKind, Setting, Table
from dyno.imports import columns, llama_bench_table, lm_eval_table
from dyno.imports.cells import devices, figure, plain, settings_of
from dyno.imports.columns import Column
from dyno.imports.printed import printed
from dyno.secrets import shown

Form = Literal["table", "csv"]

# Settings that say who was measured; the others say under what load.
_WHO: Final = ("engine", "backend", "model", "accelerator", "quantization", "dtype")
# Titles of figures that have no name here.
_MEASURED: Final = re.compile(
    r"tok/s|/s\b|throughput|tput|latency|util|\btps\b|ttft|tpot|\bitl\b|[(\[](?:ms|s|%|sec|us|µs)[)\]]", re.I
)
# No result where nothing else was measured: they may as well be a machine's or a kernel's.
_BESIDE: Final = ("memory_bytes", "power_w", "duration_s", "cost_per_million_tokens")
_LOADS: Final = ("batch_size", "concurrency", "rate", "input_len", "output_len")
AIPERF: Final = ["Metric", "avg"]  # how its CSV file begins


def rows_of(table: Table, index: int, file: str, form: Form) -> list[Row]:
    """None of a table that tells no figures."""
    for read in (llama_bench_table.rows, lm_eval_table.rows):
        if (found := read(table, index, file, form)) is not None:
            return found
    meanings = [_column(title, table.header) for title in table.header]
    meanings = [None if _served(table, i) else column for i, column in enumerate(meanings)]
    if _figures_in(table, meanings):
        return list(_by_line(table, meanings, index, file, form))
    return list(_by_column(table, index, file, form))


def _column(title: str, header: list[str]) -> Column | None:
    # pp512, tg128: one and the same figure in several columns, told apart by the test.
    if llama_bench_table.titled(title):
        return Column("speed")
    if title == "num_requests" and "total_num_tokens" in header:
        return Column("completed")  # of vLLM offline, where none can fail
    return columns.meaning(title)


def _served(table: Table, i: int) -> bool:
    """A column of requests each second that was measured and not asked for: 0.719 is no rate that anybody sets."""
    if table.header[i].strip().lower() not in ("qps", "rps"):
        return False
    return any(re.search(r"\.\d\d", row[i].text) for row in table.rows if i < len(row))


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
                settings |= {k: v for k, v in settings_of(name, cell.text, line).items() if k not in settings}
                if (name in _WHO or (i == 0 and column is None)) and plain(cell.text):
                    who.append(shown(name, plain(cell.text)))
        first = shown(table.header[0], plain(cells[0].text)) if cells and 0 not in _numeric(meanings) else ""
        whole = Row(
            kind="micro", tool=tool, form=form, file=file, line=line, end=line, figures={}, settings=settings,
            label=", ".join(who) or first, series=", ".join(who), section=table.section, table=index,
        )  # fmt: skip
        if _is_result(figures, settings):
            kind, figures = _kind(figures, settings, table.header)
            yield msgspec.structs.replace(
                whole, kind=kind, figures=figures, settings=settings | _tested(figures, settings)
            )
        for test, value in speeds:
            told = settings | llama_bench_table.test(test, line)
            yield msgspec.structs.replace(whole, figures={"speed": value}, settings=told)


def _is_result(figures: dict[str, Figure], settings: dict[str, Setting]) -> bool:
    loaded = any(name in settings for name in _LOADS)
    return any(name not in _BESIDE and (loaded or columns.stem_of(name) != "latency") for name in figures)


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
                settings |= settings_of(column.name, cells[i].text, line)
            elif (value := figure(cells[i], column, line, tool)) is not None and column.name not in figures:
                figures[column.name] = value
        if _is_result(figures, settings) and not _compares(title):
            settings |= {k: v for k, v in devices(title, table.line).items() if k not in settings}
            label = "" if title.strip().lower() in ("value", "values", "result", "results") else shown("", plain(title))
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
    if _is_result(figures, {}):
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
        if column is not None or not table.header[i].strip() or _MEASURED.search(table.header[i]):
            continue
        texts = [row[i].text.strip() for row in table.rows if i < len(row)]
        if any(texts) and not any(_is_measured(text) for text in texts):
            kept.add(i)
    return kept


def _is_measured(text: str) -> bool:
    number = printed(text)
    return number is not None and bool(number.unit or number.deviation is not None or re.search(r"\d\.\d", text))


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
