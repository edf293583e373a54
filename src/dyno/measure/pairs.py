"""Which rows of two sides belong together: the same workload and load. What else differs is what is compared."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dyno.facts.imported import Row, Scalar
from dyno.facts.load import COMPARED, LEVELS, ONE_TEXT, ONE_WORKLOAD, compared_words, near, plain
from dyno.facts.measured import Measured
from dyno.measure.points import input_each

# What differs between repeats of one setting, or follows from the figures' own place.
_PASSING = (
    "seed",
    "date",
    "repeat",
    "percentiles",
    "price_per_hour",
    "tool_version",
    "samples",
    "verdict",
    "run_number",
    "run_num",
    "run",
    "repetition",
    "iteration",
    "rep",
    "trial",
    "iter",
    "try",
)
_OF_A_RUN = re.compile(r"(?:^|[_-])(?:time|timestamp|date|uuid|run_?id)(?:$|[_-])", re.I)

Group = list[Measured]  # repeats of one setting


class Pairs(NamedTuple):
    pairs: list[tuple[Group, Group]]
    left_a: list[Group]
    left_b: list[Group]
    several: list[Group]  # of those left, the ones that fit several of the other side equally well


def passes(name: str) -> bool:
    """A setting that is of one run and no other."""
    return name in _PASSING or bool(_OF_A_RUN.search(name))


def key_of(row: Row) -> dict[str, Scalar]:
    key = {name: value for name in COMPARED if (value := plain(row.setting(name))) is not None}
    if key.get("burstiness") == 1:  # what every tool does by itself
        del key["burstiness"]
    paced = set(LEVELS) & key.keys()
    if row.kind in ("serve", "throughput") and not paced and (count := requests_of(row)) is not None:
        key["num_prompts"] = count  # all at once: their number is the load
    return key


def requests_of(row: Row) -> float | None:
    """As many as were asked for; where that isn't told, as there were."""
    if (told := row.number("num_prompts")) is not None:
        return told
    completed = row.get("completed")
    return None if completed is None else completed + (row.get("failed") or 0)


def load_words(row: Row) -> str:
    """'8 streams, random, 512 in, 128 out'."""
    return compared_words(key_of(row))


def groups(rows: Sequence[Measured]) -> list[Group]:
    """Repeats together."""
    found: dict[tuple[object, ...], Group] = {}
    for m in rows:
        found.setdefault(_identity(m.row), []).append(m)
    return list(found.values())


def _identity(row: Row) -> tuple[object, ...]:
    """Of another tool's rows also the words beside them, and how many requests of what length there were: often that is
    all that tells two lines of a table or two blocks of a log apart."""
    each = input_each(row)
    named = [] if row.form == "run" else [row.series, row.label, requests_of(row), each and f"{each:.1e}"]
    settings = sorted((n, str(plain(s.value))) for n, s in row.settings.items() if not passes(n))
    return (row.kind, row.tool, *named, *settings)


def conflicts(a: Row, b: Row) -> Iterator[tuple[str, Scalar | None, Scalar | None]]:
    """In workload and load. What a file doesn't tell conflicts with nothing; a run of dyno's own tells all."""
    one, other = key_of(a), key_of(b)
    sure = a.form == b.form == "run"
    for name in (*COMPARED, "num_prompts"):
        if name == "dataset" and a.tool != b.tool:  # each has its own word for made-up text
            continue
        x, y = one.get(name), other.get(name)
        if name == "rate":  # one that is told to be unlimited is told
            x, y = x or (_unlimited(a) if y else None), y or (_unlimited(b) if x else None)
        if x != y and (sure or (x is not None and y is not None)):
            yield name, x, y
    said = "input_len" in one and "input_len" in other
    read, other_read = input_each(a), input_each(b)
    if sure or said or not read or not other_read:
        return
    if not near(max(read, other_read), min(read, other_read), ONE_TEXT):
        yield "tokens of a prompt", read, other_read


def _unlimited(row: Row) -> str | None:
    told = row.setting("rate")
    return "inf" if told is not None and plain(told) is None else None


def pair(a: Sequence[Group], b: Sequence[Group]) -> Pairs:
    """Each group of A with the one of B that is most like it, unless that one is more like another of A. A group that
    is the only one of its load goes with all that are equally like it."""
    fits = {
        (i, j): like
        for i, x in enumerate(a)
        for j, y in enumerate(b)
        if (like := _likeness(x[0].row, y[0].row)) is not None
    }
    found: list[tuple[int, int]] = []
    torn: list[Group] = []
    for i, group in enumerate(a):
        best = max((like for (k, _), like in fits.items() if k == i), default=-1)
        with_best = [j for (k, j), like in fits.items() if k == i and like == best]
        wanted = [j for j in with_best if all(like <= best for (_, m), like in fits.items() if m == j)]
        if len(wanted) > 1 and any(k != i and j in wanted for k, j in fits):
            torn.append(group)
        else:
            found += [(i, j) for j in wanted]
    used_a, used_b = {i for i, _ in found}, {j for _, j in found}
    return Pairs(
        [(a[i], b[j]) for i, j in found],
        [g for i, g in enumerate(a) if i not in used_a],
        [g for j, g in enumerate(b) if j not in used_b],
        torn,
    )


def _likeness(a: Row, b: Row) -> int | None:
    """How many settings agree. None: not comparable."""
    if a.kind != b.kind or any(conflicts(a, b)):
        return None
    same = sum(plain(s.value) == plain(b.setting(name)) for name, s in a.settings.items() if not passes(name))
    same += requests_of(a) == requests_of(b)
    x, y = input_each(a), input_each(b)
    same += x is not None and y is not None and near(y, x, ONE_WORKLOAD)
    return same + (bool(a.series) and a.series == b.series) + (bool(a.label) and a.label == b.label)
