"""Opens a file and detects its kind by its content. Adds the settings that a user gives for its lines."""

import mmap
import os
import re
import stat
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno import files
from dyno.audit.commands import scalar, without_secrets
from dyno.audit.text import Walk
from dyno.engines.kinds import names
from dyno.errors import ImportFailed, NotFound, UsageError
from dyno.facts.imported import Document, Row, Scalar, Setting, Unread
from dyno.facts.setting import SETTINGS, of_flag
from dyno.measure.scores import with_total
from dyno.numbers import human_bytes
from dyno.results import structured
from dyno.results.lines import decoded, holds_numbers, lines
from dyno.results.tools import lm_eval
from dyno.secrets import is_secret

# a text up to this size is walked line by line; of a larger one, the parts around its results
WHOLE = 16 << 20
WHOLE_LINES = 300_000
_MOST_WALKED = 900_000  # lines; some ten seconds
_AROUND = 256 << 10  # bytes before a mark: a command may be some way above
_AFTER = 16 << 10
_MARKS = (
    b"Benchmark Result", b"Successful requests:", b"Throughput: ", b"Avg latency:", b"|            test |", b"| t/s |",
    b"|---", b"| ---", b"Namespace(", b"vllm serve ", b"benchmark_serving", b"Version:", b"vllm bench", b"llama-bench",
    b"llama-server ", b"launch_server",
)  # fmt: skip

_Bytes = mmap.mmap | bytes


def read(path: Path) -> Document:
    """Read a file; the document lists what couldn't be read."""
    file = os.fsencode(path.name).decode("utf-8", "replace")  # it goes into files and pages
    try:
        with files.opened(path, pipes=True) as opened:
            status = os.fstat(opened.fileno())
            if stat.S_ISFIFO(status.st_mode):
                return read_bytes(file, files.taken(opened, files.DATA, path))
            if status.st_size > files.DATA:
                raise ImportFailed(
                    f"{path} has {human_bytes(status.st_size)}; up to {human_bytes(files.DATA)} can be read. Split it."
                )
            if status.st_size == 0:
                return Document(file, "empty", unread=[Unread(1, "empty file")])
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                document = _read_by_content(file, data)
            return (
                _with_items(path, document)
                if document.format == "lm-eval json"
                else document
            )
    except IsADirectoryError:
        raise ImportFailed(f"{path} is a folder. Name the files in it.") from None
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file.") from None
    except OSError as e:
        raise ImportFailed(f"{path} can't be read: {e.strerror or e}.") from None


def _with_items(path: Path, document: Document) -> Document:
    items = [row for beside in lm_eval.samples_beside(path) for row in read(beside).rows]
    return msgspec.structs.replace(
        document, rows=with_total(lm_eval.with_samples(document.rows, items))
    )


def read_bytes(file: str, data: bytes) -> Document:
    return (
        _read_by_content(file, data)
        if data
        else Document(file, "empty", unread=[Unread(1, "empty input")])
    )


def _read_by_content(file: str, data: _Bytes) -> Document:
    head = bytes(data[:4096])
    if _binary(head):
        return Document(file, "binary", unread=[Unread(1, "not a text file")])
    if len(data) > WHOLE and head.lstrip()[:1] not in (
        b"{",
        b"[",
        b"\xef",
        b"\xff",
        b"\xfe",
    ):
        return _large(file, data)
    content = decoded(bytes(data))
    document = structured.read(file, content)
    return read_text(file, content) if document is None else document


def read_text(file: str, content: bytes) -> Document:
    if len(content) > WHOLE or content.count(b"\n") > WHOLE_LINES:
        return _large(file, content)
    markdown = _is_markdown(file, content)
    walk = Walk(file, markdown)
    walk.go(lines(content))
    document = walk.document("markdown" if markdown else "text")
    if not document.rows:
        document.unread.extend(_without_results(document, content))
    return document


def _binary(head: bytes) -> bool:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16
        return False
    return b"\0" in head


def _is_markdown(file: str, content: bytes) -> bool:
    """Detect Markdown by name, headings or fences: else a '#' begins a comment, and all is a listing."""
    if file.lower().endswith((".md", ".mdx", ".markdown")):
        return True
    head = content[:1_000_000]
    if b"# HELP " in head[:2000] and b"# TYPE " in head[:2000]:  # a server's counters
        return False
    if b"\n```" in head or head.startswith(b"```"):
        return True
    has_headings = b"\n## " in head or head.startswith(b"# ")
    return has_headings and b"Serving Benchmark Result" not in head[:3000]


def _large(file: str, data: _Bytes) -> Document:
    """Walk only the parts around marks of results: a hundred megabytes hold perhaps ten blocks."""
    spots = sorted({spot for mark in _MARKS for spot in _spots(data, mark)})
    spans: list[list[int]] = []
    for spot in spots:
        first, last = max(0, spot - _AROUND), min(len(data), spot + _AFTER)
        if spans and first <= spans[-1][1]:
            spans[-1][1] = max(last, spans[-1][1])
        else:
            spans.append([first, last])
    walk = Walk(file, markdown=False)
    number, counted, walked = 1, 0, 0
    for first, last in spans:
        if walk.full:
            break
        start = max(data.rfind(b"\n", max(0, first - _AROUND), first) + 1 or first, counted)
        stop = data.find(b"\n", last, last + _AROUND)
        stop = min(len(data), last + _AROUND) if stop < 0 else stop
        number += _newlines(data, counted, start)
        for line in lines(data, number, start, stop):
            walk.take(line)
            walked += 1
            if walked > _MOST_WALKED and not walk.full:
                why = "too many results; the rest was not read"
                walk.unread.append(Unread(line.number, why, "lines"))
                walk.full = True
            if walk.full:
                break
        number += _newlines(data, start, stop)
        counted = stop
    walk.finish()
    document = walk.document("log")
    if not document.rows:
        document.unread.extend(_without_results(document, data[: 1 << 20]))
    return document


def _without_results(document: Document, content: bytes) -> list[Unread]:
    """Return an entry for a file with numbers, unless its tables or blocks are listed, and for one that holds nothing
    at all."""
    if any(u.lost for u in document.unread):
        return []
    if holds_numbers(content):
        return [Unread(1, "no results found", "file")]
    return (
        []
        if document.tables or document.headings or document.commands
        else [Unread(1, "no results found")]
    )


def _spots(data: _Bytes, mark: bytes) -> list[int]:
    """Return positions of a mark, at most one per 1024 bytes: a mark that is everywhere shows nothing."""
    out, spot = [], data.find(mark)
    while spot >= 0:
        out.append(spot)
        spot = data.find(mark, spot + len(mark) + 1024)
    return out


def _newlines(data: _Bytes, start: int, stop: int) -> int:
    return sum(
        data[first : min(first + (8 << 20), stop)].count(b"\n")
        for first in range(start, stop, 8 << 20)
    )


# ---- settings that a file lacks, given with `dyno import --set`: the engine behind a bare table, its accelerators ----
# They are marked as the user's, and never replace the file's own.

_FLAG = "--swap-space=16"
_SERIES = "series"  # not a setting: the row's name beside others
_WORD = re.compile(
    r"(?:(\d{1,9})(?:-(\d{1,9}))?:)?\s*([A-Za-z-][\w-]{0,99})\s*=\s*(.*)", re.DOTALL
)
# Used in calculations: text would be ignored in silence.
_NUMBERS = (
    "concurrency", "rate", "num_prompts", "input_len", "output_len", "batch_size", "depth", "n_shot", "model_bytes",
    "parameters", "tensor_parallel", "pipeline_parallel", "replicas", "accelerators", "price_per_hour",
)  # fmt: skip


class Given(NamedTuple):
    name: str
    value: Scalar
    word: str  # as it was written
    first: int = 0  # lines for which it holds; 0: all
    last: int = 0

    def holds(self, row: Row) -> bool:
        return not self.first or (row.line <= self.last and row.end >= self.first)


def given(words: Iterable[str]) -> list[Given]:
    return [_given(word) for word in words]


def _given(word: str) -> Given:
    """Read one NAME=VALUE, perhaps with lines before it."""
    match = _WORD.fullmatch(word.strip())
    if match is None:
        raise UsageError(
            f"--set {without_secrets(word)!r}: write NAME=VALUE, such as engine=vllm. For single lines put them first: "
            "4:rate=3, 2-9:input_len=80."
        )
    first, last = int(match[1] or 0), int(match[2] or match[1] or 0)
    if first > last or (match[1] and not first):
        raise UsageError(f"--set {word!r}: write FIRST-LAST; lines count from 1.")
    name, value = _named(match[3]), scalar(without_secrets(match[4]))
    # a flag that turns something off
    if name.startswith("-") and not name.startswith("--"):
        name, value = name[1:], not value
    if value == "":
        raise UsageError(f"--set {word!r} has no value.")
    return Given(name, _checked(name, value, word), word, first, last)


def _checked(name: str, value: Scalar, word: str) -> Scalar:
    """Return a value as rows have it, or raise an error where a number is needed and it is none."""
    if name == "engine":
        return names.spellings().get(str(value).lower(), value)
    if name == "rate" and str(value).lower() in ("inf", "infinity"):  # all at once
        return "inf"
    if name in _NUMBERS and (isinstance(value, str | bool) or value < 0):
        raise UsageError(f"--set {word!r}: {name} must be a number, 0 or more.")
    return value


def _named(word: str) -> str:
    """Return the name of a setting in rows; an unknown flag stays as written."""
    if is_secret(word.lstrip("-").replace("-", "_")):
        raise UsageError(
            f"--set {word}=… looks like a secret, which would be stored with the figures."
        )
    if word in (*SETTINGS, _SERIES):
        return word
    if name := of_flag(word):
        return name
    if word.startswith("--"):
        return word
    near = get_close_matches(word.replace("-", "_"), [*SETTINGS, _SERIES], n=1, cutoff=0.6)
    hint = (
        f"Did you mean {near[0]}?"
        if near
        else f"Settings: {_SERIES}, {', '.join(SETTINGS)}."
    )
    raise UsageError(f"--set {word}=…: unknown setting. {hint} For a flag: --set={_FLAG}.")


def with_given(document: Document, asked: Sequence[Given]) -> Document:
    if not asked:
        return document
    return msgspec.structs.replace(
        document, rows=[_row(row, asked) for row in document.rows]
    )


def _row(row: Row, asked: Sequence[Given]) -> Row:
    """Return a row with the settings that hold for it."""
    settings, series, own = dict(row.settings), row.series, dict[str, Given]()
    for one in asked:
        if not one.holds(row):
            continue
        other = own.get(one.name)
        if other is not None and not _alike(other.value, one.value):
            raise UsageError(
                f"--set {other.word} and --set {one.word} both apply to {row.location}. Give one."
            )
        own[one.name] = one
        existing = (row.series or None) if one.name == _SERIES else row.setting(one.name)
        if existing is not None:
            _check_same(existing, one, row)
        elif one.name == _SERIES:
            series = str(one.value)
        else:
            settings[one.name] = Setting(one.value, 0, "user")
    return msgspec.structs.replace(row, settings=settings, series=series)


def _check_same(existing: Scalar, one: Given, row: Row) -> None:
    if not _alike(existing, one.value):
        raise UsageError(
            f"--set {one.word}: {row.location} already has {one.name} = {existing}, which --set can't change. Name "
            "other lines, or drop it."
        )


def _alike(a: Scalar, b: Scalar) -> bool:
    return a == b or str(a).strip().lower() == str(b).strip().lower()


def all_used(asked: Iterable[Given], documents: Sequence[Document]) -> None:
    """Raise an error for lines without a result: they are a mistake."""
    rows = [row for d in documents for row in d.rows]
    for one in asked:
        if one.first and not any(one.holds(row) for row in rows):
            raise UsageError(
                f"--set {one.word}: no result on these lines. The first results are at "
                f"{', '.join(r.location for r in rows[:3])}."
            )
