"""Who a claim is about: names in words to rows, and rows of two sides put beside each other."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from dyno.audit.claim.scope import VARIABLES, load
from dyno.audit.claim.words import tokens, within
from dyno.facts.imported import Document, Row

Name = frozenset[str]
_LOADS = re.compile(r"\b(?:c|bs|qps|rps|tp|n|batch[\s-]?size|concurrency|rate)\s?=?\s?\d{1,6}\b", re.IGNORECASE)
_VERSUS = re.compile(r"[a-z0-9]{1,30}[-_]vs[-_][a-z0-9]{1,30}", re.IGNORECASE)
_LEGEND = re.compile(
    r"^(?P<name>\S{2,40}(?:\s\S{1,20})?)\s?(?:refers to|stands for|denotes|means|is short for)\s(?P<meaning>.{3,200})$"
)


class Side(NamedTuple):
    """Rows of one name in one place: a file, a table, files of one sort."""

    name: Name
    place: tuple[object, ...]
    rows: tuple[Row, ...]


class Pair(NamedTuple):
    one: Row
    other: Row


def legend(document: Document) -> dict[Name, list[str]]:
    """Names that a report defines, and the words it defines them by."""
    found = {}
    for passage in document.passages:
        if not passage.listing and (m := _LEGEND.match(passage.text[:400].strip("-* "))):
            found[frozenset(tokens(m["name"]))] = tokens(m["meaning"])
    return found


def _stem(row: Row) -> list[str]:
    return tokens(_VERSUS.sub(" ", PurePath(row.file).stem))


def _identity(row: Row, tier: int) -> Name:
    """How a row is called: by its author; by what ran; by its file. What a client was told is none of them."""
    match tier:
        case 0:
            return frozenset(tokens(_LOADS.sub(" ", row.series or row.label)))
        case 1:
            told = (row.setting(n) for n in ("engine", "model", "accelerator", "quantization"))
            return frozenset(t for value in told if isinstance(value, str) for t in tokens(value))
        case _:
            return frozenset(_stem(row))


class Names:
    """The names of some rows, on one tier."""

    def __init__(self, rows: Iterable[Row], tier: int, defined: dict[Name, list[str]]) -> None:
        self.tier = tier
        self.rows: dict[Name, list[Row]] = defaultdict(list)
        for row in rows:
            identity = _identity(row, tier)
            if identity:
                self.rows[identity].append(row)
        self.defined = defined
        self._tells: dict[str, bool] = {}

    def tells(self, token: str) -> bool:
        """Whether a token tells some rows from the others."""
        if token not in self._tells:
            hits = sum(within(token, name) for name in self.rows)
            self._tells[token] = 0 < hits < len(self.rows)
        return self._tells[token]

    def names(self, word: str) -> bool:
        return any(not t[0].isdigit() and len(t) > 2 and self.tells(t) for t in tokens(word))

    def find(self, phrase: str) -> list[Name]:
        """All that a phrase may mean; none where it names nothing that is told apart here."""
        said = tokens(phrase)
        telling = [t for t in said if self.tells(t)]
        if not any(not t[0].isdigit() and len(t) > 2 for t in telling):
            return []
        found = [name for name in self.rows if all(within(t, name) for t in telling)]
        for token in self.defined.get(frozenset(said), []):  # the report's own legend narrows it
            narrower = [name for name in found if within(token, name)]
            found = narrower or found
        return found

    def sides(self, name: Name) -> list[Side]:
        """Rows of a name by the place in which they may be compared with others."""
        places: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        for row in self.rows[name]:
            # Files of one sort and two engines differ in the engine's word alone: result_a_short, result_b_short.
            place = tuple(t for t in _stem(row)) if self.tier == 2 else (row.file, row.table)
            places[(row.kind, *place)].append(row)
        return [Side(name, place, tuple(rows)) for place, rows in places.items()]


def alike(one: Name, others: list[Name]) -> list[Name]:
    """Of names that differ in numbers alone (1 or 2 replicas, 4 or 8 devices) the nearest to the other side."""
    sorts: dict[Name, list[Name]] = defaultdict(list)
    for other in others:
        sorts[frozenset(t[:5] for t in other if not t[0].isdigit())].append(other)
    nearest = []
    for group in sorts.values():
        most = max(sum(within(t, one) for t in name) for name in group)
        nearest += [name for name in group if sum(within(t, one) for t in name) == most]
    return nearest


def _beside(one: Side, other: Side, tier: int) -> bool:
    if tier < 2:
        return one.place == other.place
    return one.place[0] == other.place[0] and _differs_in_one(one.place[1:], other.place[1:])


def _differs_in_one(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1


def _key(row: Row) -> tuple[float | None, ...]:
    loads = [load(row, v) for v in VARIABLES if v not in ("input_len", "output_len")]
    lengths = [row.number("input_len"), row.number("output_len"), row.number("num_prompts"), row.number("depth")]
    return (*loads, *lengths)


def _by_key(rows: Iterable[Row]) -> dict[tuple[float | None, ...], list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[_key(row)].append(row)
    return found


def _same_prompts(a: Row, b: Row) -> bool:
    one, other = load(a, "input_len"), load(b, "input_len")
    return one is None or other is None or abs(one - other) <= 0.05 * max(one, other)


def pairs(names: Names, one: Name, other: Name) -> Iterator[tuple[Side, list[Pair]]]:
    """Rows of two names under the same load, place by place; loads that a side has twice are left out."""
    for a in names.sides(one):
        for b in names.sides(other):
            if a.name == b.name or not _beside(a, b, names.tier):
                continue
            found = []
            ours, theirs = _by_key(a.rows), _by_key(b.rows)
            for row in a.rows:
                there = [r for r in theirs[_key(row)] if _same_prompts(r, row)]
                here = [r for r in ours[_key(row)] if _same_prompts(r, row)]
                if len(there) == 1 and len(here) == 1:
                    found.append(Pair(row, there[0]))
            if found:
                yield a, found
