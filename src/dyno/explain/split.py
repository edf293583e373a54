"""The parts of each request. Whole nanoseconds throughout: they add up to the latency exactly.

What is measured comes first, then what the server says, then what is calculated. A part that none of them tells from
another one is named with it. What is left over, or is missing where a server says more than was measured, is the rest.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dyno.explain.bounds import HardwareBound
from dyno.explain.columns import NONE, Columns
from dyno.explain.gaps import Disturbance, disturbance
from dyno.facts.explanation import ATOMS, REST, Part, PartSource
from dyno.facts.telemetry import EngineTelemetry
from dyno.numbers import percent
from dyno.units import NS_PER_MS, NS_PER_S

WIDEST = 0.15  # of the latency: a part whose bounds are farther apart is joined with its neighbour
# Of the latency: pauses that are none, and that are preemptions only where the server counts some.
_NO_PAUSES = 0.005
_FEW_PAUSES = 0.02
# A server's times that exceed what was measured by more are not used.
_CLAIM_SLACK = 0.02
_CLAIM_SLACK_NS = 2 * NS_PER_MS
_CLAIMS_HOLD = 0.95  # of the requests
_COUNTS_DIFFER = 0.01  # of a histogram's requests and those of the load

# Words of a part that covers several atoms, in this order. The way there and back includes the first delivery.
_WORDS = (
    (("queue",), "queue"),
    (("prefill_bound", "prefill_above"), "prefill"),
    (("prefill_above",), "prefill above the bound"),
    (("decode_bound", "decode_above"), "decode"),
    (("decode_above",), "decode above the bound"),
    (("stall",), "stalls"),
    (("preemption",), "pauses"),
    (("network", "first_delivery"), "network"),
    (("network",), "network"),
    (("later_delivery",), "delivery"),
)


class Column(NamedTuple):
    """One part of each request, ns, with its bounds."""

    covers: tuple[str, ...]
    sources: tuple[PartSource, ...]
    about: str
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    total: tuple[int, int] | None = None  # bounds of the sum; None: the sums of the bounds

    @property
    def name(self) -> str:
        return "+".join(self.covers) or REST

    @property
    def title(self) -> str:
        return title_of(self.covers)


def title_of(covers: Sequence[str]) -> str:
    if not covers:
        return REST
    if len(covers) == 1:
        return ATOMS[covers[0]]
    left, words = {*covers}, []
    for atoms, word in _WORDS:
        if left >= {*atoms}:
            words.append(word)
            left -= {*atoms}
    words += [ATOMS[atom] for atom in covers if atom in left]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class Split(NamedTuple):
    rows: np.ndarray  # of the requests, in the columns
    latency: np.ndarray
    parts: list[Column]  # the rest is the last one
    disturbance: Disturbance
    notes: list[str]


class _Claims(NamedTuple):
    """What the server says of each request. None: nothing, or nothing that can be used."""

    queue: np.ndarray | None
    prefill: np.ndarray | None
    decode: np.ndarray | None


def split(
    c: Columns,
    bound: HardwareBound | None = None,
    round_trips_ns: Sequence[int] = (),
    preemptions: int | None = None,
) -> Split:
    """`preemptions`: that the server counted during the load; None: it doesn't say."""
    notes: list[str] = []
    rows = c.chosen
    before = (c.first - c.sent)[rows]
    after = (c.last - c.first)[rows]
    claims = _claims(c, rows, before, after, notes)
    if claims.queue is None and claims.prefill is None:
        c = c._replace(
            queue=np.full_like(c.queue, NONE), prefill=np.full_like(c.prefill, NONE)
        )
    d = disturbance(c)
    parts = [
        _exact(c, "client_wait", (c.sent - c.due - c.connecting)[rows], "from due to sent"),
        _exact(c, "connection", c.connecting[rows], "opening a connection"),
        *_before_first(c, rows, before, claims, bound, round_trips_ns, notes),
        *_after_first(c, rows, after, claims, bound, d, preemptions, notes),
    ]
    parts = _one_delivery(parts)
    places = list(ATOMS)
    parts.sort(key=lambda p: min(map(places.index, p.covers)))
    latency = (c.last - c.due)[rows]
    rest = latency - sum((p.value for p in parts), np.zeros_like(latency))
    about = "what the parts leave, or where a server says more than was measured"
    slack = (c.first_slack + c.last_slack)[rows]
    parts.append(Column((), ("calculated",), about, rest, rest - slack, rest + slack))
    parts = [
        p for p in parts if not p.covers or p.value.any() or p.covers == ("client_wait",)
    ]
    return Split(rows, latency, parts, d, notes)


def _exact(c: Columns, atom: str, value: np.ndarray, about: str) -> Column:
    return Column((atom,), ("measured",), about, value, value, value)


# ---- what the server says ----


def _claims(
    c: Columns, rows: np.ndarray, before: np.ndarray, after: np.ndarray, notes: list[str]
) -> _Claims:
    """Return the server's times where all answers have them and they fit what was measured."""
    every = {"queue": c.queue[rows], "prefill": c.prefill[rows], "decode": c.decode[rows]}
    named = {name: values for name, values in every.items() if (values != NONE).any()}
    missing = [name for name, values in named.items() if (values == NONE).any()]
    if missing:
        notes.append(
            f"Not all answers have the server's time of {' and '.join(missing)}: it is not used."
        )
    claims = {name: values for name, values in named.items() if name not in missing}
    first = sum((claims.get(n, 0) for n in ("queue", "prefill")), np.zeros_like(before))
    # A first token that is delivered late leaves less than the server's decoding until the last one arrives.
    limits = {"queue": (first, before), "prefill": (first, before)}
    limits["decode"] = first + claims.get("decode", 0), before + after
    for name in [*claims]:
        said, measured = limits[name]
        beyond = said > measured * (1 + _CLAIM_SLACK) + _CLAIM_SLACK_NS
        if beyond.mean() > 1 - _CLAIMS_HOLD:
            del claims[name]
            notes.append(
                f"The server's time of {name} is longer than what was measured in {percent(float(beyond.mean()))} of "
                "the answers: it is not used."
            )
    return _Claims(*(claims.get(name) for name in ("queue", "prefill", "decode")))


# ---- from sending to the first token ----


def _before_first(
    c: Columns,
    rows: np.ndarray,
    before: np.ndarray,
    claims: _Claims,
    bound: HardwareBound | None,
    round_trips_ns: Sequence[int],
    notes: list[str],
) -> list[Column]:
    slack = c.first_slack[rows]
    parts: list[Column] = []
    left = before
    open_atoms = ["network", "queue", "prefill_bound", "prefill_above", "first_delivery"]
    if claims.queue is not None:
        parts.append(_claimed(("queue",), claims.queue, "in each answer"))
        left = left - claims.queue
        open_atoms.remove("queue")
    room = left if claims.prefill is None else claims.prefill
    least = (
        None
        if bound is None
        else _capped(bound.prefill_ns(c)[rows], room, "prefill", notes)
    )
    if least is not None:
        parts.append(_by_bound("prefill_bound", least))
        open_atoms.remove("prefill_bound")
    if claims.prefill is not None:
        above = claims.prefill if least is None else claims.prefill - least
        atoms = [atom for atom in open_atoms if atom.startswith("prefill")]
        parts.append(_claimed(atoms, above, "in each answer"))
        open_atoms = [atom for atom in open_atoms if atom not in atoms]
        left = left - claims.prefill
    elif least is not None:
        left = left - least
    left = np.maximum(left, 0)
    if round_trips_ns and "queue" not in open_atoms:
        trip, left = _network(round_trips_ns, left)
        parts.append(trip)
        open_atoms.remove("network")
    about = "from sent to the first token, without the parts above"
    sources: tuple[PartSource, ...] = ("measured",) if len(parts) == 0 else ("calculated",)
    parts.append(
        Column(
            tuple(open_atoms),
            sources,
            about,
            left,
            np.maximum(left - slack, 0),
            left + slack,
        )
    )
    return parts


def _claimed(atoms: Sequence[str], value: np.ndarray, where: str) -> Column:
    about = f"the server says so {where}"
    return Column(tuple(atoms), ("claimed",), about, value, value, value)


def _by_bound(atom: str, value: np.ndarray) -> Column:
    about = "the least that the hardware's peaks allow (roofline)"
    return Column((atom,), ("calculated",), about, value, value, value)


def _capped(least: np.ndarray, room: np.ndarray, what: str, notes: list[str]) -> np.ndarray:
    """Return the bound, no longer than the time that it is a part of."""
    whole = np.rint(least).astype(np.int64)
    beyond = float((whole > room).mean()) if len(room) else 0.0
    if beyond > 1 - _CLAIMS_HOLD:
        notes.append(
            f"{percent(beyond)} of the requests were faster than the bound of {what}: the peaks or the model's shape "
            "are not those of this engine."
        )
    return np.clip(whole, 0, np.maximum(room, 0))


def _network(trips: Sequence[int], left: np.ndarray) -> tuple[Column, np.ndarray]:
    """Return a round trip for each request, as measured beside the load, and what it leaves."""
    likely, least, most = (
        np.minimum(left, round(float(np.quantile(trips, q)))) for q in (0.5, 0.0, 1.0)
    )
    about = "a round trip, measured before and after the load"
    part = Column(("network",), ("measured",), about, likely, least, most)
    return part, left - likely


# ---- from the first token to the last ----


def _after_first(
    c: Columns,
    rows: np.ndarray,
    after: np.ndarray,
    claims: _Claims,
    bound: HardwareBound | None,
    d: Disturbance,
    preemptions: int | None,
    notes: list[str],
) -> list[Column]:
    slack = c.last_slack[rows]
    parts: list[Column] = []
    delivery: tuple[str, ...] = ("later_delivery",)
    left = after
    if claims.decode is not None:
        delivered = after - claims.decode
        parts.append(
            Column(
                delivery,
                ("measured", "claimed"),
                "from the first token to the last as measured, without the time that the server reports",
                delivered,
                delivered - slack,
                delivered + slack,
            )
        )
        left, delivery = claims.decode, ()
    decode: tuple[str, ...] = ("decode_bound", "decode_above")
    whole = None if bound is None else bound.decode_ns(c, d.streams)
    if whole is not None:
        least = _capped(whole[rows], left, "decode", notes)
        parts.append(_by_bound("decode_bound", least))
        left, decode = left - least, ("decode_above",)
    latency = (c.last - c.due)[rows]
    pauses = _pauses(d, rows, left)
    if preemptions == 0 or pauses.high.sum() <= _NO_PAUSES * latency.sum():
        aside: tuple[str, ...] = ()
    elif _are_preemptions(pauses, latency, preemptions):
        parts.append(pauses)
        left, aside = left - pauses.value, ()
    else:
        aside = ("preemption",)
    stall = _stall(d, rows, left)
    sources: tuple[PartSource, ...] = ("calculated",)
    if _narrow(stall, latency):
        parts.append(stall)
        rest = left - stall.value
        low, high = left - stall.high, left - stall.low
        least, most = stall.total or (int(stall.low.sum()), int(stall.high.sum()))
        total = int(left.sum()) - most, int(left.sum()) - least
        covers = (*decode, *aside, *delivery)
        if not stall.high.any():
            sources = ("measured",)
    else:
        notes.append(
            "Stalls by other prefills can't be told from decoding: too few gaps without a waiting prompt show how long "
            "a step takes."
        )
        rest, low, high, total = left, left, left, None
        covers = (*decode, "stall", *aside, *delivery)
    about = "from the first token to the last, without the parts above"
    parts.append(Column(covers, sources, about, rest, low - slack, high + slack, total))
    return parts


def _pauses(d: Disturbance, rows: np.ndarray, left: np.ndarray) -> Column:
    value, low, high = (
        np.minimum(np.rint(column[rows]).astype(np.int64), left)
        for column in (d.pause, d.pause_low, d.pause_high)
    )
    about = "gaps in which the other streams went on, and this one did not catch up"
    return Column(
        ("preemption",), ("measured",), about, value, np.minimum(low, value), high
    )


def _are_preemptions(pauses: Column, latency: np.ndarray, preemptions: int | None) -> bool:
    """Return whether pauses are a part of their own. Few that the server doesn't count may be late deliveries."""
    many = pauses.value.sum() >= _FEW_PAUSES * latency.sum()
    return _narrow(pauses, latency) and (many or preemptions is not None)


def _stall(d: Disturbance, rows: np.ndarray, left: np.ndarray) -> Column:
    value, low, high = (
        np.minimum(np.rint(column[rows]).astype(np.int64), left)
        for column in (d.stall, d.stall_low, d.stall_high)
    )
    total = int(value.sum())
    least, most = (round(bound) for bound in d.stall_total)
    about = "gaps while another prompt was open, as far as they are longer than gaps without one"
    bounds = min(least, total), max(min(most, int(left.sum())), total)
    return Column(("stall",), ("measured", "calculated"), about, value, low, high, bounds)


def _narrow(part: Column, latency: np.ndarray) -> bool:
    """Return whether the bounds of a part are near enough to print it."""
    low, high = part.total or (int(part.low.sum()), int(part.high.sum()))
    return high - low <= WIDEST * int(latency.sum())


def _one_delivery(parts: list[Column]) -> list[Column]:
    """Join first and later delivery where both are measured: what the last token took is the part of the latency."""
    first = next((p for p in parts if "first_delivery" in p.covers), None)
    later = next((p for p in parts if p.covers == ("later_delivery",)), None)
    if first is None or later is None or "prefill_above" in first.covers:
        return parts
    value = first.value + later.value
    joined = Column(
        (*first.covers, *later.covers),
        ("measured", "claimed"),
        "from sent to the last token as measured, without the time that the server reports",
        np.maximum(value, 0),
        np.maximum(first.low + later.low, 0),
        np.maximum(first.high + later.high, 0),
    )
    others = [p for p in parts if p is not later]
    return [joined if p is first else p for p in others]


# ---- all requests together ----


def totals(parts: Sequence[Column], latency: np.ndarray) -> list[Part]:
    whole = int(latency.sum())
    count = max(len(latency), 1)
    out = []
    for p in parts:
        total = int(p.value.sum())
        low, high = p.total or (int(p.low.sum()), int(p.high.sum()))
        share = total / whole if whole else 0.0
        mean_ms = total / count / NS_PER_MS
        out.append(
            Part(
                p.name,
                p.title,
                [*p.covers],
                [*p.sources],
                p.about,
                total,
                min(low, total),
                max(high, total),
                mean_ms,
                share,
            )
        )
    return out


def with_histograms(
    parts: list[Part], engines: Sequence[EngineTelemetry], requests: int, notes: list[str]
) -> list[Part]:
    """Split parts further by what the server reports of all requests together."""
    reports = [e for e in engines if e.timed_requests]
    if not reports or any(p.covers == ["queue"] for p in parts):
        return parts
    counted = sum(e.timed_requests or 0 for e in reports)
    if abs(counted - requests) > max(1, _COUNTS_DIFFER * requests):
        notes.append(
            f"The server's histograms have {counted:,} requests, the load {requests:,}: they are not used."
        )
        return parts
    first = _cut(parts, ("queue", "prefill"), reports, requests, notes)
    return _cut(first, ("decode",), reports, requests, notes)


def _cut(
    parts: list[Part],
    names: Sequence[str],
    reports: Sequence[EngineTelemetry],
    requests: int,
    notes: list[str],
) -> list[Part]:
    """Cut what the histograms of these names report out of the part that covers them."""
    for name in names:
        values = [getattr(e, f"{name}_s") for e in reports]
        if None in values:
            continue
        counted = sum(e.timed_requests or 0 for e in reports)
        said = round(sum(values) / counted * requests * NS_PER_S)
        parts = _cut_one(parts, name, said, requests, notes)
    return parts


def _cut_one(
    parts: list[Part], name: str, said: int, requests: int, notes: list[str]
) -> list[Part]:
    own = [name] if name in ATOMS else [f"{name}_bound", f"{name}_above"]
    whole = next(
        (p for p in parts if own[-1] in p.covers and len(p.covers) > len(own)), None
    )
    if whole is None:
        return parts
    # What is known to be a part of it already: the bound, pauses and stalls.
    inside = {
        "prefill": ("prefill_bound",),
        "decode": ("decode_bound", "stall", "preemption"),
    }
    known = [p for p in parts if p is not whole and {*p.covers} & {*inside.get(name, ())}]
    mine = said - sum(p.total_ns for p in known)
    if mine < 0 or mine > whole.total_ns * (1 + _CLAIM_SLACK):
        notes.append(
            f"The server's histogram of {name} doesn't fit what was measured: it is not used."
        )
        return parts
    mine = min(mine, whole.total_ns)
    covers = [atom for atom in own if atom in whole.covers]
    if name == "decode" and "stall" in whole.covers:
        covers.append("stall")
    left = [atom for atom in whole.covers if atom not in covers]
    about = f"the server says so of all requests together ({name})"
    cut = _piece(whole, covers, ["claimed"], about, mine, requests)
    rest = _piece(whole, left, ["calculated"], whole.about, whole.total_ns - mine, requests)
    place = parts.index(whole)
    return [*parts[:place], cut, rest, *parts[place + 1 :]]


def _piece(
    whole: Part,
    covers: list[str],
    sources: list[PartSource],
    about: str,
    total: int,
    requests: int,
) -> Part:
    share = whole.share * total / whole.total_ns if whole.total_ns else 0.0
    half = (whole.high_ns - whole.low_ns) // 2 if "claimed" not in sources else 0
    return Part(
        "+".join(covers),
        title_of(covers),
        covers,
        sources,
        about,
        total,
        max(total - half, 0),
        total + half,
        total / max(requests, 1) / NS_PER_MS,
        share,
    )
