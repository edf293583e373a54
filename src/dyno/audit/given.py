"""Settings that a file lacks, given with `dyno import --set`: the engine behind a bare table, its accelerators.

They are marked as the user's, and never replace the file's own.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import msgspec

from dyno.audit.commands import scalar, without_secrets
from dyno.engines.kinds import names
from dyno.errors import UsageError
from dyno.facts.imported import Document, Row, Scalar, Setting
from dyno.facts.setting import SETTINGS, of_flag
from dyno.secrets import is_secret

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
