"""Files that programs write for programs: JSON, JSON lines, CSV and SQL, detected by their content."""

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import PurePath
from typing import Final, Literal, NamedTuple

import msgspec

from dyno.facts.imported import Document, DocumentCell, DocumentTable, Row, Unread
from dyno.results import columns, json_text, tables
from dyno.results.draft import Draft, rows_of
from dyno.results.json_text import Value
from dyno.results.lines import holds_numbers
from dyno.results.printed import printed
from dyno.results.tools import (
    aiperf,
    guidellm,
    inference_benchmarker,
    inference_perf,
    llama_bench,
    llmperf,
    lm_eval,
    mmlu_pro,
    sglang,
    vllm,
)
from dyno.secrets import HIDDEN, is_secret, shown

_PREAMBLE: Final = 64 << 10
_JSON_LINE: Final = re.compile(rb'^(?:\[\s*(?=\{)|\{\s*(?="))', re.M)
_BEHIND: Final = (
    "llama-bench json",
    "llama-batched-bench jsonl",
    "vllm serve json",
    "sglang jsonl",
)
_STRANGE: Final = "JSON from an unknown tool"
_MOST: Final = 100  # remarks on one file that are kept
_MOST_CELLS: Final = 100_000  # of a larger file, the first of them: some seconds
_LOOKED_AT: Final = 20  # lines that show what it is
_COMMENTS: Final = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*")


class Kind(NamedTuple):
    format: str
    is_one: Callable[[Value], bool]
    drafts: Callable[..., Iterator[Draft]]  # from an object and the file's name
    whole: bool = False  # from the list of all objects in the file


# The first that fits. dyno's and SGLang's files have vLLM's keys too.
FORMATS: Final = (
    Kind("dyno json", vllm.is_dyno, vllm.dyno),
    Kind("sglang jsonl", sglang.is_serve, sglang.serve),
    Kind("vllm serve json", vllm.is_serve, vllm.serve),
    Kind("vllm throughput json", vllm.is_throughput, vllm.throughput),
    Kind("vllm latency json", vllm.is_latency, vllm.latency),
    Kind("llama-bench json", llama_bench.is_test, llama_bench.tests),
    Kind("llama-batched-bench jsonl", llama_bench.is_batched, llama_bench.batched),
    Kind("aiperf json", aiperf.is_profile, aiperf.profile),
    Kind("aiperf records", aiperf.is_record, aiperf.records, whole=True),
    Kind("guidellm json", guidellm.is_report, guidellm.reports),
    Kind("lm-eval json", lm_eval.is_results, lm_eval.results),
    Kind("lm-eval samples", lm_eval.is_sample, lm_eval.samples, whole=True),
    Kind("mmlu-pro json", mmlu_pro.is_answer, mmlu_pro.answers, whole=True),
    Kind(
        "inference-benchmarker json",
        inference_benchmarker.is_report,
        inference_benchmarker.reports,
    ),
    Kind("inferencex json", vllm.is_inferencex, vllm.inferencex),
    Kind("llmperf json", llmperf.is_summary, llmperf.summary),
    Kind("inference-perf json", inference_perf.is_stage, inference_perf.stages),
    Kind("inference-perf json", inference_perf.is_stages, inference_perf.stages),
)


def read(file: str, data: bytes) -> Document | None:
    """Return None for any other file: plain text, Markdown, something binary."""
    data = _utf8(data)
    if b"\0" in data[:4096]:
        return None
    head = data[:4096].lstrip()[:1]
    if head in (b"{", b"["):
        return _json(file, data)
    if llama_bench.is_sql(data[:4096].decode("utf-8", "replace")):
        rows, unread = llama_bench.sql(data.decode("utf-8", "replace"), file)
        return Document(file, "llama-bench sql", rows, unread=_capped(unread))
    document = _csv(file, data)
    return document if document is not None else _behind(file, data)


def _behind(file: str, data: bytes) -> Document | None:
    """Read JSON of a known kind behind other output of the program, up to the end of the file."""
    match = _JSON_LINE.search(data[:_PREAMBLE])
    if (
        match is None
        or b"\n```" in data[: match.start()]
        or b"Benchmark Result" in data[: match.start()]
    ):
        return None
    blank = b"\n" * data.count(b"\n", 0, match.start())  # its lines keep their numbers
    document = _json(file, blank + data[match.start() :])
    if (
        document is None
        or not document.rows
        or document.format not in _BEHIND
        or len(document.unread) > 2
    ):
        return None
    return document


def _utf8(data: bytes) -> bytes:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # PowerShell's >
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def _json(file: str, data: bytes) -> Document | None:
    """Read a file of JSON. None: it is a log that has objects in it."""
    content = json_text.values(data)
    if content is None:
        return None
    known, strange = _by_kind(content.values)
    if not known and content.broken > max(2, len(content.values)):
        return None
    unread = list(content.unread)
    rows: list[Row] = []
    for kind, values in known.values():
        parts = [values] if kind.whole else values
        more, wrong = rows_of(draft for part in parts for draft in kind.drafts(part, file))
        rows += more
        unread += wrong
    if known:
        unread += [
            Unread(value.line, _STRANGE, "lines") for value in strange if value.size > 2
        ]
    else:
        line = content.values[0].line if content.values else 1
        unread.append(Unread(line, _STRANGE, "file" if holds_numbers(data) else ""))
    rows.sort(key=lambda row: row.line)
    return Document(file, next(iter(known), "json"), rows, unread=_capped(unread))


def _by_kind(
    values: Iterable[Value],
) -> tuple[dict[str, tuple[Kind, list[Value]]], list[Value]]:
    """Return the objects of each kind by its format, and those of no known kind."""
    known: dict[str, tuple[Kind, list[Value]]] = {}
    strange: list[Value] = []
    for value in _objects(values):
        kind = next((kind for kind in FORMATS if kind.is_one(value)), None)
        if kind is None:
            strange.append(value)
        else:
            known.setdefault(kind.format, (kind, []))[1].append(value)
    return known, strange


def _objects(values: Iterable[Value]) -> Iterable[Value]:
    """Yield objects, also those of a list such as a sweep's summary.json."""
    for value in values:
        if not value.is_list:
            yield from llama_bench.inner_tests(value)
            continue
        for item in value.items():
            if not item.is_object:
                break  # of numbers or of texts: no result
            yield item


def _capped(unread: list[Unread]) -> list[Unread]:
    unread = sorted(unread, key=lambda u: u.line)
    if len(unread) <= _MOST:
        return unread
    return [
        *unread[:_MOST],
        Unread(unread[_MOST].line, f"and {len(unread) - _MOST} more", "lines"),
    ]


# ---- CSV and TSV ----


def _csv(file: str, data: bytes) -> Document | None:
    """Read CSV or TSV: a header, and lines of as many cells. None: a text whose lines happen to have commas."""
    text = data.decode("utf-8", "replace")
    start = _table_start(text)
    separator = _separator(text[start : start + 200_000], text[:start].strip() != "")
    if separator is None:
        return None
    first = 1 + text.count("\n", 0, start)
    rows, lines, unread = _cells(text[start:], separator, first)
    if len(rows) < 2:
        return None
    header = [title.strip() for title in rows[0]]
    titles = [title for title in header if title]
    if not titles or any(printed(title) for title in titles):
        return Document(
            file,
            "csv",
            unread=[*unread, Unread(lines[0], "CSV without a header line", "table")],
        )
    if llama_bench.is_header(header):
        results, wrong = llama_bench.texts(header, rows[1:], lines[1:], file, "csv")
        return Document(file, "llama-bench csv", results, unread=unread + wrong)
    table = DocumentTable(lines[0], header, _without_secrets(header, rows[1:]), lines[1:])
    return _of_table(file, table, unread)


def _of_table(file: str, table: DocumentTable, unread: list[Unread]) -> Document:
    """Return the results of a table. `unread`: lines that were left out of it."""
    if tables.of_requests(table):
        return Document(
            file,
            "csv",
            unread=[
                *unread,
                Unread(table.line, "one line per request, no summary", "table"),
            ],
        )
    results = tables.rows_of(table, 0, file, "csv")
    unread += tables.unread(table, results)
    if not results:
        return Document(
            file, "csv", unread=unread or [Unread(table.line, "no known columns")]
        )
    stem = PurePath(file).stem
    results = [
        row if row.label else msgspec.structs.replace(row, label=stem) for row in results
    ]
    return Document(file, "csv", results, tables=[table], unread=unread)


def _without_secrets(header: list[str], rows: list[list[str]]) -> list[list[DocumentCell]]:
    hidden = [is_secret(title) for title in header]
    return [
        [
            DocumentCell(_shown_cell(secret, cell))
            for secret, cell in zip(hidden, row, strict=False)
        ]
        for row in rows
    ]


def _shown_cell(secret: bool, cell: str) -> str:
    """Hide secrets. total_token_throughput sounds like one, so numbers pass."""
    return HIDDEN if secret and printed(cell) is None else shown("", cell)


def _table_start(text: str) -> int:
    """Return where the table starts: after blank lines and comments."""
    match = _COMMENTS.match(text[:20_000])
    return match.end() if match else 0


def _separator(text: str, commented: bool) -> str | None:
    """Return the separator that cuts the first lines into equally many cells. Prose may follow a comment that is a
    title, so there the titles of columns have to be known."""
    for separator in ("\t", ",", ";"):
        try:
            first = [
                row
                for row in islice(
                    csv.reader(io.StringIO(text), delimiter=separator), _LOOKED_AT
                )
                if row
            ]
        except csv.Error:
            continue
        if len(first) >= 2 and _is_csv(first, len(text) >= 200_000, commented):
            return separator
    return None


def _is_csv(rows: list[list[str]], cut: bool, commented: bool) -> bool:
    """Return whether the first lines of a text are a table's."""
    header, body = rows[0], rows[1:]
    if cut and len(rows) > 2:
        body = rows[1:-1]
    if header[:2] == tables.AIPERF:
        return True  # it has short lines in its second part
    if len(header) < 2 or any(len(title) > 100 for title in header) or _is_markdown(rows):
        return False
    known = sum(columns.meaning(title) is not None for title in header)
    same = sum(_fits(row, len(header)) for row in body)
    # Titles that are known prove more than lines that someone may have broken.
    if known >= 2:
        return 10 * same >= 3 * len(body)
    if commented or 10 * same < 7 * len(body):
        return False
    # Two or three words with commas between are a sentence as well.
    all_same = len(header) >= 5 and same == len(body)
    return all_same or _is_mostly_numbers(body)


def _is_markdown(rows: list[list[str]]) -> bool:
    return any(re.match(r"\s*(?:\||#{1,6} |```|[-*+] )", row[0]) for row in rows)


def _is_mostly_numbers(rows: list[list[str]]) -> bool:
    """Return whether a third of the cells are numbers."""
    numbers = sum(printed(cell) is not None for row in rows for cell in row)
    return numbers * 3 >= sum(len(row) for row in rows)


def _fits(row: list[str], width: int) -> bool:
    return len(row) >= width and not any(cell.strip() for cell in row[width:])


def _cells(
    text: str, separator: str, first: int
) -> tuple[list[list[str]], list[int], list[Unread]]:
    """Return rows with as many cells as the header has, their lines, and what was left out."""
    rows: list[list[str]] = []
    lines: list[int] = []
    unread: list[Unread] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    cells = 0
    while cells < _MOST_CELLS:
        line = first + reader.line_num
        try:
            row = next(reader, None)
        except csv.Error:
            if len(unread) < 50:
                unread.append(Unread(line, "a cell is too long", "lines"))
            continue
        if row is None:
            return rows, lines, unread
        if not any(cell.strip() for cell in row):
            continue
        if rows and rows[0][:2] == tables.AIPERF:
            # its metrics of one value, 'Metric,Value', follow as short lines
            row += [""] * (len(rows[0]) - len(row))
        if rows and not _fits(row, len(rows[0])):
            # An unquoted comma has moved the rest: no cell of it can be trusted.
            if len(unread) < 50:
                part: Literal["", "lines"] = (
                    "lines" if any(printed(cell) for cell in row) else ""
                )
                unread.append(
                    Unread(line, f"{len(row)} cells, but {len(rows[0])} titles", part)
                )
            continue
        rows.append(row)
        lines.append(line)
        cells += len(row)
    unread.append(
        Unread(lines[-1], "the file is too large; the rest was not read", "lines")
    )
    return rows, lines, unread
