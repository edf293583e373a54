"""What the server says of its times: which of it is used.

A claim is used where nearly all answers have it and it fits what was measured. It is judged by measured times alone.
Claims that are used then narrow the times that a busy client knows within bounds only.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dyno.explain.columns import CLAIMS, NONE, Columns
from dyno.numbers import count, many, percent
from dyno.units import NS_PER_MS

# In most answers claims exceed what was measured by no more than that; over all of them by that share of the latency.
SLACK = 0.02
_SLACK_NS = 2 * NS_PER_MS
HOLD = 0.95  # of the requests
_MOST_BEYOND = 0.05
# Of the answers, and of their latency: so many may lack a claim.
_MOST_MISSING, _MOST_MISSING_TIME = 0.01, 0.05

# Claims that are judged together, and which of them are dropped: a decode that doesn't fit after a queue and a prefill
# that do. Each is judged alone first.
_TOGETHER = (
    (("queue", "prefill"), ("queue", "prefill")),
    (("queue", "prefill", "decode"), ("decode",)),
    (("queue", "work"), ("queue", "work")),
)


class Claims(NamedTuple):
    """What the server says of each request. None: nothing, or nothing that can be used."""

    queue: np.ndarray | None
    prefill: np.ndarray | None
    decode: np.ndarray | None
    work: np.ndarray | None  # prefill and decode together
    guessed: (
        np.ndarray
    )  # answers without one of these: the others' mean share of what was measured


def judged(c: Columns, notes: list[str]) -> tuple[Columns, Claims]:
    """Return the columns without the claims that are not used, and the others, by explained request."""
    rows = c.chosen
    said = {name: getattr(c, name)[rows] for name in CLAIMS}
    said = {name: values for name, values in said.items() if (values != NONE).any()}
    claims = _in_nearly_all(c, said, notes)
    shares_of = _measured(c)
    filled = {name: _filled(each, shares_of[name]) for name, each in claims.items()}
    claims = _that_fit(c, filled, notes)
    lacking = [name for name in claims if (said[name] == NONE).any()]
    guessed = np.zeros(len(rows), dtype=bool)
    for name in lacking:
        guessed |= said[name] == NONE
    if lacking:
        notes.append(
            f"{count(int(guessed.sum()))} of {many(len(rows), 'answer')} without the server's {_names(lacking)}: "
            "estimated from the others, with bounds up to all of their time."
        )
    silent = np.full_like(c.sent, NONE)
    unused = {name: silent for name in CLAIMS if name not in claims}
    used = Claims(**{name: claims.get(name) for name in CLAIMS}, guessed=guessed)
    return c._replace(**unused).within_claims(), used


def _measured(c: Columns) -> dict[str, np.ndarray]:
    """Return the measured time that each claim is a share of."""
    rows = c.chosen
    before, after = (c.first - c.sent)[rows], (c.last - c.first)[rows]
    return {"queue": before, "prefill": before, "decode": after, "work": before + after}


def _limits(c: Columns) -> dict[str, np.ndarray]:
    """Return what each claim may be at most, as measured. A first token that is delivered late leaves less than the
    server's decoding until the last one arrives: decoding may have begun with the request."""
    rows = c.chosen
    before = (c.first + c.first_slack - c.sent)[rows]
    whole = (c.last + c.last_slack - c.sent)[rows]
    return {"queue": before, "prefill": before, "decode": whole, "work": whole}


def _in_nearly_all(
    c: Columns, said: Mapping[str, np.ndarray], notes: list[str]
) -> dict[str, np.ndarray]:
    """Return the claims without those that too many answers lack."""
    latency = (c.last - c.due)[c.chosen].astype(float)
    dropped = []
    for name, values in said.items():
        missing = values == NONE
        time = float(latency[missing].sum())
        if missing.mean() > _MOST_MISSING or time > _MOST_MISSING_TIME * latency.sum():
            dropped.append(name)
    if dropped:
        notes.append(
            f"Not all answers have the server's {_names(dropped)}: {_not_used(dropped)}."
        )
    return {name: values for name, values in said.items() if name not in dropped}


def _filled(values: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return a claim with the mean share of what was measured where an answer lacks it."""
    missing = values == NONE
    share = float(values[~missing].sum()) / max(float(limit[~missing].sum()), 1.0)
    filled: np.ndarray = np.where(missing, np.rint(min(share, 1.0) * limit), values)
    return filled.astype(np.int64)


def _that_fit(
    c: Columns, claims: dict[str, np.ndarray], notes: list[str]
) -> dict[str, np.ndarray]:
    """Return the claims that fit what was measured: each alone, then those that are left together."""
    limits = _limits(c)
    latency = float((c.last - c.due)[c.chosen].sum())
    alone = tuple(((name,), (name,)) for name in CLAIMS)
    left = dict(claims)
    for together, suspects in (*alone, *_TOGETHER):
        mine = [name for name in together if name in left]
        dropped = [name for name in suspects if name in left]
        if not dropped:
            continue
        said = np.sum([left[name] for name in mine], axis=0)
        if why := _beyond(said, limits[mine[-1]], latency):
            notes.append(_not_believed(mine, dropped, why))
            left = {name: values for name, values in left.items() if name not in dropped}
    return left


def _not_believed(together: Sequence[str], dropped: Sequence[str], why: str) -> str:
    others = [name for name in together if name not in dropped]
    beside = f", with {_names(others)}," if others else ""
    verb = "is" if len(dropped) == 1 else "are"
    return f"The server's {_names(dropped)}{beside} {verb} longer than what was measured {why}: {_not_used(dropped)}."


def _beyond(said: np.ndarray, measured: np.ndarray, latency: float) -> str:
    """Return in words by how much claims are longer than what was measured; '': they fit."""
    often = float((said > measured * (1 + SLACK) + _SLACK_NS).mean())
    if often > 1 - HOLD:
        return f"in {percent(often)} of the answers"
    much = float(np.maximum(said - measured, 0).sum())
    if much > _MOST_BEYOND * latency:
        return f"by {percent(much / max(latency, 1.0))} of the latency"
    return ""


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"time of {names[0]}"
    return f"times of {', '.join(names[:-1])} and {names[-1]}"


def _not_used(names: Sequence[str]) -> str:
    return "it is not used" if len(names) == 1 else "they are not used"
