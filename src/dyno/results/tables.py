"""A table whose columns or rows are figures: one result per line, or per column."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from dyno.facts.imported import (
    DocumentCell,
    DocumentTable,
    Figure,
    Row,
    RowKind,
    Setting,
    Unread,
)
from dyno.facts.load import LENGTHS, LEVELS
from dyno.facts.metric import SPEEDS
from dyno.results import columns
from dyno.results.columns import Meaning, devices, figure, plain, rate, settings_of, stem_of
from dyno.results.printed import printed
from dyno.results.tools import llama_bench, lm_eval
from dyno.secrets import shown

Form = Literal["table", "csv"]

# Settings that say who was measured; the others say under what load.
_WHO: Final = ("engine", "backend", "model", "accelerator", "quantization", "dtype")
# Titles of figures that have no name here.
_MEASURED: Final = re.compile(
    r"tok/s|/s\b|throughput|tput|latency|util|\btps\b|ttft|tpot|\bitl\b|[(\[](?:ms|s|%|sec|us|µs)[)\]]",
    re.I,
)
# No result where nothing else was measured: they may as well be a machine's or a kernel's.
_BESIDE: Final = ("memory_bytes", "power_w", "duration_s", "cost_per_million_tokens")
_LOADS: Final = (*LEVELS, *LENGTHS)
_ASKED: Final = (*_LOADS, "num_prompts", "seed", "dataset", "date", "price_per_hour")
# A column of words that names configurations.
_CALLED: Final = re.compile(
    r"config(?:uration)?|method|mode|variant|setup|system|approach|strategy|scheduler|optimi[sz]ation|feature",
    re.I,
)
# Words that make another figure of a title, before or after it; they don't name a configuration.
_OTHER: Final = re.compile(
    r"\b(?:output|out|input|in|total|prompts?|gen\w*|decod\w*|prefill\w*|pp|tg|eval|per|users?|req\w*|gpus?|agg\w*|single|"
    r"peak|max\w*|min\w*|mean|avg|average|median|med|std\w*|p\d+|first|token\w*|tok|latency|throughput|time|speed\w*|"
    r"diff\w*|delta|change|ratio|gain|improve\w*|target|slo|limit|theor\w*|ideal|expected|goal|steady|stream\w*|e2e|"
    r"server|client|wall|cost|effective|net|raw|perceived|inter|\d+th)\b|[%$Δ]|/",
    re.I,
)
_LOADLIKE: Final = re.compile(
    r"\b(?:np|n|num\w*|counts?|requests?|reqs?|len|lengths?|sizes?|batch\w*|conc\w*|users?|clients?|rep\w*|runs?|iter\w*|"
    r"trials?|attempts?|rounds?|"
    r"index|idx|id|steps?|context|ctx|tokens?|seq\w*|no|rank|row|time\w*|date|depth|qps|rps|rate|loads?|k|layers?)\b|#",
    re.I,
)
_AT_LOAD: Final = re.compile(
    r"(?:c|conc|concurrency|并发数?)\s*[=:]?\s*(\d{1,5})|"
    r"(\d{1,5})\s*(?:并发|concurrent(?: requests| users)?|users|clients|streams)",
    re.I,
)
_EACH: Final = re.compile(
    r"(?:request|req|prompt|sample|query|conversation|trace)[ _]?(?:id|index|idx|num|no|number|#)|request|req|task_id",
    re.I,
)
_BEHIND: Final = re.compile(r"(.+?)\s*[(\[]\s*([^()\[\]]{1,40}?)\s*[)\]]")
_GUESSED: Final = re.compile(
    r"mtp|eagle|draft|medusa|specul|(?<!no-)(?<!no )\bspec\b|n-?gram|dflash", re.I
)
_LLMPERF: Final = {"mean_input_tokens": "input_len", "mean_output_tokens": "output_len"}
# whose tables have fixed columns
_FORMS: Final = ("llama-bench", "llama-benchy", "llama-batched-bench", "lm-eval")
_WORDS_BEHIND: Final = re.compile(r"\d[\d,]*(?:\.\d+)?\s((?:\S+\s){1,3}\S+/s(?:ec)?)")
_LOOKED_AT: Final = 20  # lines of a table that are searched for unread figures
_PER: Final = re.compile(
    r"(?:per|/)\s?(?:gpu|device|card|accelerator|user|request|stream)\b", re.I
)
_NAMED: Final = 6  # titles that a remark names
_FIGURES: Final = 2  # numbers outside the first column that make a table one of figures
_NUMERIC: Final = re.compile(
    r"[~≈<>≤≥$+−-]{0,2}\s?\d[\d,]*(?:\.\d+)?(?![\d.]|-\d\d-|/\d+/|[xX×]\s?[A-Z]|[A-Za-z]+\d)(?!\s?[bB]\b)"
)
# Titles of what was given, not measured: versions, machines, sizes, prices.
_GIVEN: Final = re.compile(
    r".{0,40}(?:version|driver|default|recommend|licen[cs]e|release|price|版本|显存).{0,40}|"
    r"(?:active |total )?param(?:eter)?s?|build|cuda|rocm|hip|rccl|nccl|vbios|ubuntu|kernel|python|pytorch|os|cpus?|"
    r"(?:cpu )?cores?|ram|memory|ports?|(?:num(?:ber)? )?(?:of )?(?:layers|heads|experts|devices|nodes)|dates?|"
    r"min(?:imum)? .{0,20}gpus?.{0,20}|nvidia-smi.{0,80}|.{0,20}tdp",
    re.I,
)
_WIDEST: Final = 60  # characters of a cell with words behind its number
_LONGEST: Final = 40  # characters of a cell with a number; more is a sentence
AIPERF: Final = ["Metric", "avg"]  # how its CSV file begins
# Its own words for counts, which mean other things elsewhere.
_AIPERF_COUNTS: Final = {
    "request count": "completed",
    "error request count": "failed",
    "total input sequence length": "total_input_tokens",
    "total output sequence length": "total_output_tokens",
    "total output tokens": "total_output_tokens",
}
_UNIT_BEHIND: Final = re.compile(r"\s*[(\[][^()\[\]]*[)\]]\s*$")


def rows_of(table: DocumentTable, index: int, file: str, form: Form) -> list[Row]:
    """Return the results of a table; none of one without figures."""
    for read in (llama_bench.table_rows, lm_eval.table_rows):
        rows = read(table, index, file, form)
        if rows is not None:
            return rows
    blank = Row(
        kind="micro",
        tool="",
        form=form,
        file=file,
        line=table.line,
        end=max(table.lines, default=table.line),
        figures={},
        section=table.section,
        table=index,
    )
    meanings, names = _meanings(table)
    if _figures_in(table, meanings):
        return list(_by_line(table, meanings, names, blank))
    return list(_by_column(table, blank))


def _meanings(table: DocumentTable) -> tuple[list[Meaning | None], list[str]]:
    """Return the meaning of each column, and its configuration, if there are several side by side."""
    meanings: list[Meaning | None] = []
    for i, title in enumerate(table.header):
        column = _column(title, table.header, _down(table, i))
        meanings.append(None if _served(table, i) else column)
    names = [""] * len(meanings)
    for i, (name, column) in _beside(table, meanings).items():
        meanings[i] = column
        names[i] = name
    return meanings, names


def unread(table: DocumentTable, results: Sequence[Row]) -> list[Unread]:
    """Return a table with figures that no result came of, or the columns and cells that were left out of one with
    results."""
    short = _first_lines(table)
    if not results:
        return [_unread_table(short)] if _has_figures(short) else []
    left, _ = columns_left(table, results)
    return [*_unread_columns(short, left), *_unread_cells(table, results)]


def _unread_columns(table: DocumentTable, left: list[str]) -> Iterator[Unread]:
    """Yield one entry for all columns that were not read."""
    if not left:
        return
    meanings = dict(zip(table.header, _meanings(table)[0], strict=True))
    unitless = all(_lacks_unit(meanings.get(title)) for title in left)
    yield Unread(
        table.line, "no unit" if unitless else "meaning unknown", "columns", _titles(left)
    )


def _lacks_unit(column: Meaning | None) -> bool:
    return column is not None and column.scale is None


def _unread_cells(table: DocumentTable, results: Sequence[Row]) -> Iterator[Unread]:
    """Yield numbers in columns that were read, in a form that isn't known: '95 (cached)'."""
    if results[0].tool in _FORMS or results[0].line == table.line:
        return
    meanings, _ = _meanings(table)
    for cells, line in zip(table.rows, table.lines, strict=False):
        for title, column, cell in zip(table.header, meanings, cells, strict=False):
            if column is None or not column.figure or column.scale is None:
                continue
            if _NUMERIC.match(cell.text) and figure(cell, column, line, "") is None:
                words = f"{title}: {cell.text}"
                yield Unread(
                    line, "number in an unknown form", "lines", shown("", words[:_WIDEST])
                )


def _unread_table(table: DocumentTable) -> Unread:
    """Return why no result came of a table with figures."""
    meanings, _ = _meanings(table)
    lost = [
        i
        for i, title in enumerate(table.header)
        if _is_lost(title, _down(table, i), meanings[i])
    ]
    unitless = [i for i in lost if _lacks_unit(meanings[i])]
    why = "no known columns"
    if unitless:
        why = f"no unit: {_titles(table.header[i] for i in unitless)}"
    elif lost:
        why = f"unknown columns: {_titles(table.header[i] for i in lost)}"
    return Unread(table.line, why, "table", _titles(table.header))


def columns_left(table: DocumentTable, results: Sequence[Row]) -> tuple[list[str], int]:
    """Return the columns with numbers that were not read, and how many have numbers.

    Where lines are metrics and columns are configurations, its lines count instead.
    """
    short = _first_lines(table)
    if results[0].line == table.line and results[0].tool not in _FORMS:
        return _metrics_left(short, table.rows)
    measured = [
        i for i, title in enumerate(short.header) if _measures(title, _down(short, i))
    ]
    if results[0].tool in _FORMS:
        return [], len(measured)
    meanings, _ = _meanings(short)
    words = _word_columns(short, meanings)
    left = []
    for i in measured:
        title, cells = short.header[i], _down(short, i)
        is_setting = i in words and (i == 0 or not _may_be_figures(title, cells))
        if not is_setting and _is_lost(title, cells, meanings[i]):
            left.append(title)
    return left, len(measured)


def _metrics_left(
    table: DocumentTable, rows: Sequence[list[DocumentCell]]
) -> tuple[list[str], int]:
    """Return the lines with numbers whose metric is unknown, and how many have numbers."""
    measured = [row for row in filter(None, rows) if _measures(row[0].text, row[1:])]
    left = [row[0].text for row in measured if _metric(table, row, []) is None]
    return left, len(measured)


def _may_be_figures(title: str, cells: list[DocumentCell]) -> bool:
    """Return whether whole numbers are below a title that names no setting dyno knows of: 'ok', 'secs' and 'gen toks',
    not 'num_gpus'."""
    texts = [cell.text.strip() for cell in cells if cell.text.strip()]
    return all(map(_NUMERIC.fullmatch, texts)) and not _LOADLIKE.search(
        title.replace("_", " ")
    )


def _first_lines(table: DocumentTable) -> DocumentTable:
    return msgspec.structs.replace(table, rows=table.rows[:_LOOKED_AT])


def _has_figures(table: DocumentTable) -> bool:
    """Return whether enough numbers outside the first column may be results."""
    count = 0
    for row in table.rows:
        for i in range(1, len(row)):
            count += _counts_as_figure(table, row, i)
            if count == _FIGURES:
                return True
    return False


def _is_lost(title: str, cells: list[DocumentCell], column: Meaning | None) -> bool:
    """Return whether numbers were measured, and none of them was read."""
    if not _measures(title, cells):
        return False
    return column is None or (
        column.figure and not any(figure(cell, column, 1, "") for cell in cells)
    )


def _measures(title: str, cells: list[DocumentCell]) -> bool:
    """Return whether there are numbers that were neither calculated from others nor given."""
    title = title.strip()
    if not title or _calculates(title) or _GIVEN.fullmatch(title):
        return False
    return any(_NUMERIC.match(cell.text) for cell in cells)


def _titles(titles: Iterable[str]) -> str:
    """Return the first titles in words, and how many more there are."""
    named = [title[:_LONGEST] for title in dict.fromkeys(titles) if title]
    words = shown("", ", ".join(named[:_NAMED]))
    if len(named) > _NAMED:
        words += f" and {len(named) - _NAMED} more"
    return words


def _counts_as_figure(table: DocumentTable, row: list[DocumentCell], i: int) -> bool:
    """Return whether a number may be a result: neither a date nor a version, and not a setting by its column or its
    row."""
    if len(row[i].text) > _LONGEST or not _NUMERIC.match(row[i].text):
        return False
    titles = (table.header[i] if i < len(table.header) else "", row[0].text)
    return not any(
        _GIVEN.fullmatch(title.strip()) or _is_setting(title) for title in titles
    )


def _is_setting(title: str) -> bool:
    column = columns.meaning(title)
    return column is not None and not column.figure


def of_requests(table: DocumentTable) -> bool:
    """Return whether a table has one line per request: a request is not a result."""
    for i, title in enumerate(table.header):
        cells = [cell.text.strip() for cell in _down(table, i)]
        if _EACH.fullmatch(title.strip()) and len(cells) > 3 and len(set(cells)) > 2:
            return True
    return False


def _down(table: DocumentTable, i: int) -> list[DocumentCell]:
    return [row[i] for row in table.rows if i < len(row)]


def _column(title: str, header: list[str], cells: list[DocumentCell]) -> Meaning | None:
    """Return the meaning of a column by its title, the other titles and its cells."""
    # pp512, tg128: the same figure in several columns, one per test.
    if test := llama_bench.titled(title):
        return Meaning("speed", test=test)
    match = _BEHIND.fullmatch(title.strip())
    if match and (test := llama_bench.titled(match[2])):
        column = columns.meaning(match[1])  # 'Prefill tok/s (pp128)'
        return (
            msgspec.structs.replace(column, test=test)
            if column is not None and column.name == "speed"
            else None
        )
    column = _among(title, header) or _of_cells(title, cells)
    if (
        column is not None
        and column.name == "total_token_throughput"
        and _is_of_all_devices(header)
    ):
        return Meaning("speed")
    return column


def _among(title: str, header: list[str]) -> Meaning | None:
    """Return the meaning of a title that depends on the others."""
    if title == "num_requests" and "total_num_tokens" in header:
        return Meaning("completed")  # of vLLM offline, where none can fail
    if title == "tokens_per_second" and not {"total_num_tokens", "batch_size"} & set(
        header
    ):
        return Meaning("speed")
    if title in _LLMPERF and any(other.startswith("results_ttft_s_") for other in header):
        return Meaning(_LLMPERF[title], figure=False)
    return None


def _is_of_all_devices(header: list[str]) -> bool:
    """Return whether 'tok/s total' is beside 'tok/s per GPU': the sum over devices, not of input and output tokens."""
    titles = [title.lower() for title in header]
    return any(_PER.search(title) for title in titles) and not any(
        "output" in t or "input" in t for t in titles
    )


def _of_cells(title: str, cells: list[DocumentCell]) -> Meaning | None:
    """Return the meaning of a title such as 'Throughput': it has one where all of its cells have one and the same unit,
    as if it were in the title."""
    column = columns.meaning(title)
    if column is not None:
        return column
    units = {number.unit for cell in cells if (number := printed(cell.text)) is not None}
    if not units:
        return _behind(cells)
    if len(units) != 1 or "(" in title:
        return None
    unit = units.pop()
    if not rate(unit) and unit not in columns.TO_MS:
        return None
    column = columns.meaning(f"{title} ({rate(unit) or unit})")
    return column if column is not None and _is_timing(column) else None


def _is_timing(column: Meaning) -> bool:
    """Return whether a column has speeds or latencies."""
    return column.name in SPEEDS or bool(stem_of(column.name))


def _behind(cells: list[DocumentCell]) -> Meaning | None:
    """Return the meaning of a column that is behind each of its numbers: '256.1 output tok/s'."""
    words = {
        match[1]
        for cell in cells
        if (match := _WORDS_BEHIND.fullmatch(cell.text[:_WIDEST].strip()))
    }
    column = columns.meaning(next(iter(words))) if len(words) == 1 else None
    if column is None or not column.figure or column.name not in SPEEDS:
        return None
    return msgspec.structs.replace(column, behind=words.pop())


def _beside(
    table: DocumentTable, meanings: list[Meaning | None]
) -> dict[int, tuple[str, Meaning]]:
    """Return columns that have one figure of several configurations: 'fp16 (tok/s)' beside 'AWQ (tok/s)', 't/s (main)'
    beside 't/s (PR)'."""
    beside: dict[int, tuple[str, Meaning]] = {}
    for i, title in enumerate(table.header):
        if meanings[i] is None:
            read = _named(title) or _by_unit(title, _down(table, i))
            if read is not None:
                beside[i] = read
    figures = Counter(column.name + column.test for _, column in beside.values())
    if len(figures) == len(beside) > 1 and _configurations(beside) == 1:
        return beside  # 'ROCm pp512' beside 'ROCm tg128'
    several = {
        i: (name, column)
        for i, (name, column) in beside.items()
        if figures[column.name + column.test] > 1
    }
    return several if _configurations(several) > 1 else {}


def _configurations(beside: dict[int, tuple[str, Meaning]]) -> int:
    """Return how many configurations the columns name."""
    return len({name for name, _ in beside.values()})


def _named(title: str) -> tuple[str, Meaning] | None:
    """Return the configuration and the figure that a title names, if it names both."""
    words = (title if " " in title.strip() else title.replace("_", " ")).split()
    tries = [
        (" ".join(words[:n]), " ".join(words[n:])) for n in range(1, min(5, len(words)))
    ]
    if match := _BEHIND.fullmatch(title.strip()):
        tries.append((match[2], match[1]))
    for name, rest in tries:
        test = llama_bench.titled(rest)
        column = Meaning("speed", test=test) if test else columns.meaning(rest)
        if column is None or not column.figure or column.scale is None:
            continue
        if _is_timing(column) and not _OTHER.search(name.replace("_", " ")):
            return shown("", name.strip(" :-–—")), column
    return None


def _by_unit(title: str, cells: list[DocumentCell]) -> tuple[str, Meaning] | None:
    """Return the configuration that a title names where every cell is in tokens/s: 'Vulkan' beside 'ROCm'."""
    name = title.strip()
    if (
        not name
        or not any("/" in cell.text for cell in cells[:_LOOKED_AT])
        or _OTHER.search(name)
    ):
        return None
    units = {
        rate(number.unit) for cell in cells if (number := printed(cell.text)) is not None
    }
    return (shown("", name), Meaning("speed")) if units == {"tok/s"} else None


def _served(table: DocumentTable, i: int) -> bool:
    """Return whether a column of requests/s was measured, not requested: a rate of 0.719 is never set."""
    if table.header[i].strip().lower() not in ("qps", "rps"):
        return False
    return any(re.search(r"\.\d\d", row[i].text) for row in table.rows if i < len(row))


def _figures_in(table: DocumentTable, meanings: list[Meaning | None]) -> bool:
    """Return whether some column is a figure's by its title, and some cell of it is a number."""
    for i, column in enumerate(meanings):
        if column is None or not column.figure:
            continue
        if any(figure(cell, column, 1, "") for cell in _down(table, i)):
            return True
    return False


# A configuration beside others, the load that the title names, and the test.
_Group = tuple[str, tuple[tuple[str, int], ...], str]


def _by_line(
    table: DocumentTable, meanings: list[Meaning | None], names: list[str], blank: Row
) -> Iterator[Row]:
    """Yield the results of each line, where columns are figures."""
    tool = _tool(table.header)
    words = _word_columns(table, meanings)
    called = _called(table, words)
    for cells, line in zip(table.rows, table.lines, strict=False):
        settings: dict[str, Setting] = {}
        who: list[str] = []
        for i, (cell, column) in enumerate(zip(cells, meanings, strict=False)):
            if i not in words and (column is None or column.figure):
                continue
            name = column.name if column is not None else table.header[i].strip()
            for key, setting in settings_of(name, cell.text, line).items():
                settings.setdefault(key, setting)
            if name in _WHO or i in called:
                who += _configuration_name(name, cell, numbered=i in called)
        label = ", ".join(who)
        if not label and cells and 0 not in words and _may_name(meanings[0]):
            label = shown(table.header[0], plain(cells[0].text))
        whole = msgspec.structs.replace(
            blank,
            tool=tool,
            line=line,
            end=line,
            settings=settings,
            label=label,
            series=", ".join(who),
        )
        for group, figures in _together(_groups(cells, meanings, names, whole)):
            yield from _result(_of_group(whole, group, figures), group[2], table.header)


def _groups(
    cells: list[DocumentCell], meanings: list[Meaning | None], names: list[str], row: Row
) -> dict[_Group, dict[str, Figure]]:
    """Return the figures of a line by configuration, load and test."""
    groups: dict[_Group, dict[str, Figure]] = {}
    for cell, column, name in zip(cells, meanings, names, strict=False):
        if column is None or not column.figure:
            continue
        value = figure(cell, column, row.line, row.tool)
        if value is not None:
            groups.setdefault((name, column.load, column.test), {}).setdefault(
                column.name, value
            )
    return groups


def _of_group(row: Row, group: _Group, figures: dict[str, Figure]) -> Row:
    """Return the part of a line that has one configuration and load."""
    name, load, _ = group
    return msgspec.structs.replace(
        row,
        figures=figures,
        settings=row.settings | {k: Setting(v, row.line, "column") for k, v in load},
        label=", ".join(filter(None, (row.label, name))),
        series=", ".join(filter(None, (row.series, name))),
    )


def _configuration_name(title: str, cell: DocumentCell, numbered: bool) -> list[str]:
    """Return the name that a cell gives a configuration, if any. `numbered`: a number needs its title, too."""
    text = plain(cell.text)
    if not text:
        return []
    if numbered and printed(cell.text) is not None:
        text = f"{title} {text}"
    return [shown(title, text)]


def _may_name(first: Meaning | None) -> bool:
    """Return whether the first column may name what was measured: it is neither a figure nor a load."""
    return first is None or not (first.figure or first.name in _ASKED)


def _result(row: Row, test: str, header: list[str]) -> Iterator[Row]:
    """Yield a speed of its test, or a result of the kind that its figures make it; none where nothing was measured."""
    if test:
        yield msgspec.structs.replace(
            row, settings=row.settings | _test(test, row, row.line)
        )
    elif _is_result(row.figures, row.settings):
        kind, figures = _kind(row.figures, row.settings, header)
        tested = row.settings | _tested(figures, row.settings)
        yield msgspec.structs.replace(row, kind=kind, figures=figures, settings=tested)


def _together(
    groups: dict[_Group, dict[str, Figure]],
) -> list[tuple[_Group, dict[str, Figure]]]:
    """Merge groups: where one load alone is named, figures without one beside it have the same."""
    loads = {load for _, load, _ in groups if load}
    if len(loads) != 1 or any(name for name, _, _ in groups):
        return list(groups.items())
    (load,) = loads
    out: dict[_Group, dict[str, Figure]] = {}
    for (name, _, test), figures in groups.items():
        out[(name, load, test)] = {**figures, **out.get((name, load, test), {})}
    return list(out.items())


def _test(test: str, row: Row, line: int) -> dict[str, Setting]:
    """Return the settings of a test. tg is one request's, which makes a token a step: of several at once, or of guessed
    tokens, it is 'decode'."""
    if test not in ("pp", "tg"):
        return llama_bench.test_settings(test, line)
    words = " ".join(
        [
            row.label,
            *(str(s.value) for s in row.settings.values() if isinstance(s.value, str)),
        ]
    )
    if (
        _may_be_several(row, "batch_size")
        or _may_be_several(row, "concurrency")
        or _GUESSED.search(words)
    ):
        test = "prefill" if test == "pp" else "decode"
    return {"test": Setting(test, line, "column")}


def _may_be_several(row: Row, name: str) -> bool:
    """Return whether a number of requests is above one, or only in words."""
    return (row.number(name) or 1) > 1 or isinstance(row.setting(name), str)


def _called(table: DocumentTable, columns_of_words: set[int]) -> set[int]:
    """Return columns of unknown titles whose words name what was measured: the first, and those that distinguish
    lines."""
    out = set()
    for i in columns_of_words:
        title = table.header[i].replace("_", " ")
        texts = [plain(cell.text) for cell in _down(table, i)]
        words = [text for text in texts if text and printed(text) is None]
        if words:
            names = (i == 0 or _CALLED.search(title)) and not _are_sentences_or_paths(words)
        else:  # 'prefill 2': a number of something
            names = i == 0 and len(set(texts)) > 1 and not _LOADLIKE.search(title)
        if names:
            out.add(i)
    return out


def _are_sentences_or_paths(words: list[str]) -> bool:
    if max(map(len, words)) > 60:
        return True
    return any(word.count("/") + word.count("\\") > 1 for word in words)


def _is_result(figures: dict[str, Figure], settings: dict[str, Setting]) -> bool:
    """Return whether a figure was measured. A latency alone needs a load."""
    loaded = any(name in settings for name in _LOADS)
    return any(
        name not in _BESIDE and (loaded or stem_of(name) != "latency") for name in figures
    )


def _tested(figures: dict[str, Figure], settings: dict[str, Setting]) -> dict[str, Setting]:
    """Return the test of a lone speed: 'pp512' in a column of another name."""
    if set(figures) != {"speed"}:
        return {}
    for setting in settings.values():
        if isinstance(setting.value, str) and llama_bench.is_test_name(setting.value):
            return llama_bench.test_settings(setting.value, setting.line)
    return {}


def _by_column(table: DocumentTable, blank: Row) -> Iterator[Row]:
    """Yield results where metrics are rows. The columns are configurations, or statistics of one."""
    titles = [row[0].text for row in table.rows if row]
    stripped = [title.strip() for title in titles]
    meanings: list[Meaning | None] = []
    for row in table.rows:
        meanings.append(_metric(table, row, stripped) if row else None)
    known = [column for column in meanings if column is not None and column.figure]
    if len(known) < 2:
        return
    statistics = list(map(columns.statistic, table.header))
    named = len(statistics[1:]) - statistics[1:].count(None)
    if named >= 2:
        yield from _by_statistic(table, meanings, statistics, blank)
    elif 2 * len(known) >= len(table.rows) or _lists_metrics(table, known):
        blank = msgspec.structs.replace(blank, tool=_tool(titles))
        yield from _by_configuration(table, meanings, blank)


def _by_configuration(
    table: DocumentTable, meanings: list[Meaning | None], blank: Row
) -> Iterator[Row]:
    """Yield the results of each column that isn't calculated from others."""
    for i, title in enumerate(table.header):
        if i > 0 and not _compares(title):
            yield from _configuration(table, meanings, i, blank)


def _lists_metrics(table: DocumentTable, known: list[Meaning]) -> bool:
    """Return whether the title of the first column announces metrics, and one is a speed or a latency."""
    if not table.header or table.header[0].strip().lower() not in (
        "metric",
        "metrics",
        "指标",
    ):
        return False
    return any(_is_timing(column) for column in known)


def _metric(
    table: DocumentTable, row: list[DocumentCell], titles: list[str]
) -> Meaning | None:
    """Return the meaning of a line, where metrics are rows."""
    title = row[0].text.strip()
    if table.header[:2] == AIPERF and (
        name := _AIPERF_COUNTS.get(_UNIT_BEHIND.sub("", title).lower())
    ):
        return Meaning(name)
    return _column(title, titles, row[1:])


def _configuration(
    table: DocumentTable, meanings: list[Meaning | None], i: int, blank: Row
) -> Iterator[Row]:
    """Yield the results of one column, where metrics are rows."""
    figures: dict[str, Figure] = {}
    speeds: list[tuple[str, Figure]] = []
    settings: dict[str, Setting] = {}
    for column, cells, line in zip(meanings, table.rows, table.lines, strict=False):
        if column is None or i >= len(cells) or column.load:
            continue
        if not column.figure:
            settings |= settings_of(column.name, cells[i].text, line)
        elif (value := figure(cells[i], column, line, blank.tool)) is not None:
            if column.test:
                speeds.append((column.test, value))
            else:
                figures.setdefault(column.name, value)
    title = table.header[i]
    for name, setting in devices(title, table.line).items():
        settings.setdefault(name, setting)
    label = (
        ""
        if title.strip().lower() in ("value", "values", "result", "results")
        else shown("", plain(title))
    )
    if (load := _AT_LOAD.fullmatch(title.strip())) is not None:
        settings.setdefault(
            "concurrency", Setting(int(load[1] or load[2]), table.line, "column")
        )
        label = ""
    row = msgspec.structs.replace(blank, settings=settings, label=label, series=label)
    if _is_result(figures, settings):
        kind, figures = _kind(figures, settings, [])
        yield msgspec.structs.replace(row, kind=kind, figures=figures)
    for test, value in speeds:
        tested = settings | _test(test, row, value.line)
        yield msgspec.structs.replace(row, figures={"speed": value}, settings=tested)


def _by_statistic(
    table: DocumentTable,
    meanings: list[Meaning | None],
    statistics: list[str | None],
    blank: Row,
) -> Iterator[Row]:
    """Yield the one result of a table with metrics as rows and statistics as columns."""
    figures: dict[str, Figure] = {}
    tool = "aiperf" if table.header[:2] == AIPERF else ""
    for column, cells, line in zip(meanings, table.rows, table.lines, strict=False):
        if column is None or not column.figure or column.test or column.load:
            continue
        for statistic, cell in zip(statistics, cells, strict=False):
            name = _statistic_name(column, statistic)
            if not name:
                continue
            value = figure(cell, column, line, tool)
            if value is not None:
                figures.setdefault(name, value)
    if _is_result(figures, {}):
        kind, figures = _kind(figures, {}, [])
        yield msgspec.structs.replace(blank, kind=kind, tool=tool, figures=figures)


def _statistic_name(column: Meaning, statistic: str | None) -> str:
    """Return the name of a figure's statistic; '' if it has none, as a count has no median."""
    stem = stem_of(column.name)
    if statistic is None:
        return ""
    if stem:
        return f"{statistic}_{stem}_ms"
    return column.name if statistic == "mean" else ""


_COMPARED: Final = re.compile(
    r"diff|delta|Δ|change|speedup|ratio|improve|unit|note|winner|better|gain|%|变化|差值|百分比|提升|对比|单位|含义|备注",
    re.I,
)


# A difference between columns. A share alone (GPU utilization, cache hits) was measured.
_CALCULATED: Final = re.compile(
    r"diff|delta|Δ|change|speed-?up|ratio|improve|note|winner|better|gain|faster|slower|\bvs\b|relative|overhead|"
    r"变化|差值|提升|对比|含义|备注",
    re.I,
)


def _calculates(title: str) -> bool:
    return _CALCULATED.search(title) is not None


def _compares(title: str) -> bool:
    """Return whether a column is calculated from others: a difference, a speedup, a unit, a remark."""
    return _COMPARED.search(title) is not None


def _word_columns(table: DocumentTable, meanings: list[Meaning | None]) -> set[int]:
    """Return columns of unknown titles that become settings: words and whole numbers. A fraction was measured."""
    out = set()
    for i, column in enumerate(meanings):
        if (
            column is not None
            or not table.header[i].strip()
            or _MEASURED.search(table.header[i])
        ):
            continue
        texts = [cell.text.strip() for cell in _down(table, i)]
        if any(texts) and not any(_is_measured(text) for text in texts):
            out.add(i)
    return out


def _is_measured(text: str) -> bool:
    number = printed(text)
    return number is not None and bool(
        number.unit or number.deviation is not None or re.search(r"\d\.\d", text)
    )


def _kind(
    figures: dict[str, Figure], settings: dict[str, Setting], header: list[str]
) -> tuple[RowKind, dict[str, Figure]]:
    """Return a result's kind, and its figures by the names of this kind. A batch size without signs of a stream means
    an offline batch; its latency is the batch's."""
    if _tested(figures, settings):
        return "micro", figures
    streams = {stem_of(name) for name in figures} & {"ttft", "tpot", "itl"}
    if (
        streams
        or "concurrency" in settings
        or "rate" in settings
        or "request_goodput" in figures
    ):
        return "serve", figures
    if "batch_size" not in settings and not {
        "tokens_per_second",
        "total_num_tokens",
    } <= set(header):
        return "serve", figures
    out = {}
    for name, value in figures.items():
        statistic, _, stem = name.removesuffix("_ms").partition("_")
        if stem in ("e2el", "latency") and name.endswith("_ms"):
            name, value = (
                f"{statistic}_latency_ms",
                msgspec.structs.replace(value, definition="offline.latency"),
            )
        elif name == "total_token_throughput":
            value = msgspec.structs.replace(value, definition="offline.throughput")
        out[name] = value
    kind: RowKind = "latency" if all(stem_of(name) for name in out) else "throughput"
    return kind, out


def _tool(titles: list[str]) -> str:
    """Return the tool whose keys or printed words the titles are; '' if unknown."""
    keys = set(titles)
    if {"mean_e2e_latency_ms", "total_throughput"} & keys and "mean_ttft_ms" in keys:
        return "sglang"
    if {
        "request_throughput",
        "total_token_throughput",
        "mean_ttft_ms",
        "mean_tpot_ms",
    } <= keys:
        return "vllm"
    if "results_ttft_s_mean" in keys or any(
        key.startswith("results_ttft_s_quantiles_") for key in keys
    ):
        return "llmperf"
    if {"elapsed_time", "num_requests", "total_num_tokens", "tokens_per_second"} <= keys:
        return "vllm"
    words = {title.strip().rstrip(":") for title in titles}
    block = {
        "Successful requests",
        "Request throughput (req/s)",
        "Mean TTFT (ms)",
        "Mean TPOT (ms)",
    }
    return "vllm" if block <= words and "Total Token throughput (tok/s)" in words else ""
