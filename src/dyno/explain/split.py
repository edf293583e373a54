"""The parts of each request. Whole nanoseconds throughout: they add up to the latency exactly.

What is measured comes first, then what the server says, then what is calculated. A part that none of them tells from
another one is named with it. What is left over, or is missing where a server says more than was measured, is the rest.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dyno.explain.bounds import MEASURED, HardwareBound
from dyno.explain.claims import HOLD, Claims, judged
from dyno.explain.columns import Columns
from dyno.explain.stalls import Disturbance, disturbance
from dyno.facts.explanation import ATOMS, REST, PartSource
from dyno.numbers import count, many, percent

WIDEST = 0.15  # of the latency: a part whose bounds are farther apart is joined with its neighbour
# Of the latency: pauses that are none, and pauses that leave stalls unknown where they are no preemptions.
_NO_PAUSES = 0.005
_FEW_PAUSES = 0.02
# for each preemption that the server counts, and besides
_MOST_PAUSES, _PAUSES_BESIDE = 2, 3
_UNSURE = 0.005  # of the latency: stalls and pauses may always be wrong by as much
_NO_PART = 0.005  # of the latency: a part of nothing, with bounds under that, is left out
# Answers that don't show their first token: from that share of the latency on, no first token is looked for.
_WITHOUT_FIRST = 0.05

# Words of a part that covers several atoms, in this order. The way there and back includes the first delivery.
_WORDS = (
    (("queue",), ("queue",)),
    (("prefill_bound", "prefill_above"), ("prefill",)),
    (("prefill_above",), ("prefill above the bound",)),
    (("decode_bound", "decode_above"), ("decode",)),
    (("decode_above",), ("decode above the bound",)),
    (("stall",), ("stalls",)),
    (("preemption",), ("pauses",)),
    (("network", "front_end", "first_delivery"), ("network", "front end")),
    (("network", "front_end"), ("network", "front end")),
    (("front_end", "first_delivery"), ("front end",)),
    (("network",), ("network",)),
    (("front_end",), ("front end",)),
    (("later_delivery",), ("delivery",)),
)


class PartColumn(NamedTuple):
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

    @property
    def sums(self) -> tuple[int, int]:
        """Return the bounds of the sum over all requests."""
        return self.total or (int(self.low.sum()), int(self.high.sum()))


def title_of(covers: Sequence[str]) -> str:
    if not covers:
        return REST
    if len(covers) == 1:
        return ATOMS[covers[0]]
    left, words = {*covers}, list[str]()
    for atoms, names in _WORDS:
        if left >= {*atoms}:
            words += names
            left -= {*atoms}
    words += [ATOMS[atom] for atom in covers if atom in left]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class Split(NamedTuple):
    columns: Columns  # without claims that are not used
    rows: np.ndarray  # of the requests, in the columns
    latency: np.ndarray
    parts: list[PartColumn]  # the rest is the last one
    disturbance: Disturbance
    notes: list[str]


_TO_THE_FIRST = (
    "network",
    "front_end",
    "queue",
    "prefill_bound",
    "prefill_above",
    "first_delivery",
)
# What a server's times of an answer in one piece are made of, and all that comes after the first token.
_DECODE = ("decode_bound", "decode_above", "stall", "preemption")
_WORK = ("prefill_bound", "prefill_above", *_DECODE)
_AFTER = (*_DECODE, "later_delivery")
_NO_STALLS = "Stalls by other prompts can't be separated from decoding: {}."
_WHY = {
    "few": "too few gaps without a waiting prompt show how long a step takes",
    "apart": "streams neither wait nor arrive together, so their gaps don't show the engine's steps",
    "groups": "chunks arrive in groups, so gaps don't show the engine's steps",
    "paused": "streams pause while others progress, and the server counts no such preemptions",
    "": "steps vary so much that the bounds would be wider than 15 % of the latency",
}


def split(
    c: Columns,
    bound: HardwareBound | None = None,
    round_trips_ns: Sequence[int] = (),
    preemptions: int | None = None,
) -> Split:
    """`preemptions`: that the server counted during the load; None: it doesn't say."""
    notes: list[str] = []
    rows = c.chosen
    c, claims = judged(c, notes)
    requests = _Requests(c, rows, claims, bound, disturbance(c), notes)
    of_server = _one_delivery(requests.server_parts(round_trips_ns, preemptions))
    waited = (c.sent - c.due - c.connecting)[rows]
    parts = [
        _exact("client_wait", waited, "from due to sent"),
        _exact("connection", c.connecting[rows], "opening a connection"),
        *(_widened(p, claims.guessed, (c.last - c.sent)[rows]) for p in of_server),
    ]
    latency = requests.latency
    places = list(ATOMS)
    parts.sort(key=lambda p: min(map(places.index, p.covers)))
    least = _NO_PART * float(latency.sum())
    parts = [
        p
        for p in parts
        if p.value.any() or p.sums[1] > least or p.covers == ("client_wait",)
    ]
    rest = latency - sum((p.value for p in parts), np.zeros_like(latency))
    slack = (c.first_slack + c.last_slack)[rows]
    about = "what the parts leave, or where a server says more than was measured"
    parts.append(PartColumn((), ("calculated",), about, rest, rest - slack, rest + slack))
    return Split(c, rows, latency, parts, requests.d, notes)


def _exact(atom: str, value: np.ndarray, about: str) -> PartColumn:
    return PartColumn((atom,), ("measured",), about, value, value, value)


# ---- the parts of the server's time ----


class _Requests(NamedTuple):
    """The requests that are split, and all that is known of their time."""

    c: Columns
    rows: np.ndarray
    claims: Claims
    bound: HardwareBound | None
    d: Disturbance
    notes: list[str]

    @property
    def latency(self) -> np.ndarray:
        latency: np.ndarray = (self.c.last - self.c.due)[self.rows]
        return latency

    @property
    def _unsure(self) -> int:
        return 0 if self.d.alone else round(_UNSURE * float(self.latency.sum()))

    @property
    def _steps_unseen(self) -> bool:
        return self.d.unknown in ("apart", "groups")

    def server_parts(
        self, round_trips_ns: Sequence[int], preemptions: int | None
    ) -> list[PartColumn]:
        """Return the parts from sending to the last token."""
        if self._firsts_are_seen():
            return [*self.before_first(round_trips_ns), *self.after_first(preemptions)]
        return self.in_one_piece(round_trips_ns)

    def _firsts_are_seen(self) -> bool:
        """Return whether nearly all answers show when their first token came: they are streams of several chunks."""
        c, rows = self.c, self.rows
        pieces = c.in_one_piece[rows]
        hidden = c.without_first[rows]
        seen = self.latency[hidden].sum() <= _WITHOUT_FIRST * self.latency.sum()
        if not seen and not pieces.all():
            self.notes.append(
                f"{count(int(hidden.sum()))} of {many(len(rows), 'answer')} came in one piece, or with all tokens "
                "at one moment, as through a proxy that collects them: when their first token was there is unknown."
            )
        return bool(seen)

    def in_one_piece(self, round_trips_ns: Sequence[int]) -> list[PartColumn]:
        """Return the parts from sending to an answer that has no first token: what the server says, and what it
        leaves."""
        parts, left = self._queue_and_prefill((self.c.last - self.c.sent)[self.rows])
        for claim, atoms in ((self.claims.decode, _DECODE), (self.claims.work, _WORK)):
            if claim is not None:
                part = _claimed_beside(claim, atoms, parts)
                parts.append(part)
                left = left - part.value
        # embeddings and scores: nothing is decoded
        after = _AFTER if self.c.output[self.rows].any() else _AFTER[-1:]
        about = "from sent to the answer, without the parts above"
        atoms = (*_TO_THE_FIRST, *after)
        slack = self.c.last_slack[self.rows]
        return self._with_rest(parts, left, round_trips_ns, atoms, about, slack)

    def before_first(self, round_trips_ns: Sequence[int]) -> list[PartColumn]:
        """Return the parts from sending to the first token."""
        parts, left = self._queue_and_prefill((self.c.first - self.c.sent)[self.rows])
        about = "from sent to the first token, without the parts above"
        slack = self.c.first_slack[self.rows]
        return self._with_rest(parts, left, round_trips_ns, _TO_THE_FIRST, about, slack)

    def _queue_and_prefill(self, left: np.ndarray) -> tuple[list[PartColumn], np.ndarray]:
        queue = self.claims.queue
        parts = [] if queue is None else [_claimed(("queue",), queue)]
        prefill, left = self._prefill(left if queue is None else left - queue)
        return [*parts, *prefill], left

    def _with_rest(
        self,
        parts: list[PartColumn],
        left: np.ndarray,
        round_trips_ns: Sequence[int],
        atoms: Sequence[str],
        about: str,
        slack: np.ndarray,
    ) -> list[PartColumn]:
        """Return the parts with the way there and back, and one of all atoms that they leave."""
        sources: tuple[PartSource, ...] = ("calculated",) if parts else ("measured",)
        left = np.maximum(left, 0)
        low, high = np.maximum(left - slack, 0), left + slack
        trip = _network(round_trips_ns or [0], left)
        if (
            trip.value.any()
            and self.claims.queue is not None
            and _narrow(trip, self.latency)
        ):
            parts = [*parts, trip]
            left = left - trip.value
            low, high = np.maximum(low - trip.high, 0), high - trip.low
        covered = {atom for part in parts for atom in part.covers}
        covers = tuple(atom for atom in atoms if atom not in covered)
        return [*parts, PartColumn(covers, sources, about, left, low, high)]

    def _prefill(self, left: np.ndarray) -> tuple[list[PartColumn], np.ndarray]:
        """Return prefill as far as the bound and the server separate it, and what is left."""
        claim, parts = self.claims.prefill, []
        atoms = ["prefill_bound", "prefill_above"]
        above = claim
        if self.bound is not None:
            room = left if claim is None else claim
            bound_ns = self.bound.prefill_ns(self.c)[self.rows]
            least = _capped(bound_ns, room, "prefill", self.notes)
            parts.append(_by_bound("prefill_bound", least, self.bound.prefill_about))
            atoms.remove("prefill_bound")
            left = left - least
            above = None if claim is None else claim - least
        if above is not None:
            parts.append(_claimed(atoms, above))
            left = left - above
        return parts, left

    def after_first(self, preemptions: int | None) -> list[PartColumn]:
        """Return the parts from the first token to the last."""
        left = (self.c.last - self.c.first)[self.rows]
        parts: list[PartColumn] = []
        delivery: tuple[str, ...] = ("later_delivery",)
        if self.claims.decode is not None:
            parts.append(self._later_delivery(left - self.claims.decode))
            left, delivery = self.claims.decode, ()
        decode: tuple[str, ...] = ("decode_bound", "decode_above")
        whole = None if self.bound is None else self.bound.decode_ns(self.c, self.d.streams)
        if self.bound is not None and whole is not None:
            least = _capped(whole[self.rows], left, "decode", self.notes)
            parts.append(_by_bound("decode_bound", least, self.bound.decode_about))
            left, decode = left - least, ("decode_above",)
        pauses = _pauses(self.d, self.rows, left, self._unsure)
        if self._are_preemptions(pauses, preemptions):
            parts.append(pauses)
            return [
                *parts,
                *self._stalls_and_decode(
                    left - pauses.value, (decode, delivery), by=pauses
                ),
            ]
        if not _counts(pauses, self.latency):
            return [*parts, *self._stalls_and_decode(left, (decode, delivery))]
        aside = () if preemptions == 0 else ("preemption",)
        names = decode, (*aside, *delivery)
        return [*parts, *self._stalls_and_decode(left, names, pauses.value)]

    def _are_preemptions(self, pauses: PartColumn, preemptions: int | None) -> bool:
        """Return whether pauses are a part of their own: the server counts about as many preemptions. Else streams of
        several engines behind one address may look like that."""
        count = int((self.d.gaps.pause >= 2).sum())
        counted = 0 < count <= _MOST_PAUSES * (preemptions or 0) + _PAUSES_BESIDE
        believed = bool(preemptions) and counted and not self._steps_unseen
        return believed and _counts(pauses, self.latency) and _narrow(pauses, self.latency)

    def _off(self) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much gaps are shorter and longer than the decoding that the server reports: what is delivered
        otherwise than it was made hides stalls, or looks like some."""
        seen: np.ndarray = (self.c.last - self.c.first)[self.rows]
        if self.claims.decode is None or self.d.alone:
            return np.zeros_like(seen), np.zeros_like(seen)
        off = self.claims.decode - seen
        return np.maximum(off, 0), np.maximum(-off, 0)

    def _later_delivery(self, delivered: np.ndarray) -> PartColumn:
        slack = self.c.last_slack[self.rows]
        about = "from the first token to the last as measured, without the time that the server reports"
        sources: tuple[PartSource, ...] = ("measured", "claimed")
        low, high = delivered - slack, delivered + slack
        return PartColumn(("later_delivery",), sources, about, delivered, low, high)

    def _stalls_and_decode(
        self,
        left: np.ndarray,
        names: tuple[tuple[str, ...], tuple[str, ...]],
        pauses: np.ndarray | None = None,
        by: PartColumn | None = None,
    ) -> list[PartColumn]:
        """Return stalls, and decoding with what can't be separated from it; one part where stalls can't be. `pauses`:
        that may be anything. `by`: a part that was taken out, with its bounds."""
        decode, others = names
        slack = self.c.last_slack[self.rows]
        hidden, delivered = self._off()
        hidden = hidden + (0 if pauses is None else pauses)
        stall = _stall(self.d, self.rows, left, (hidden, delivered), self._unsure)
        less, more = (0, 0) if by is None else _about_its_sum(by)
        about = "from the first token to the last, without the parts above"
        paused = pauses is not None and pauses.sum() >= _FEW_PAUSES * self.latency.sum()
        if paused or self._steps_unseen or not _narrow(stall, self.latency):
            why = "paused" if paused else self.d.unknown
            self.notes.append(_NO_STALLS.format(_WHY[why]))
            covers = (*decode, "stall", *others)
            low, high, whole = left - slack, left + slack, int(left.sum())
            total = None if by is None else (whole - more, whole + less)
            return [PartColumn(covers, ("calculated",), about, left, low, high, total)]
        least, most = stall.sums
        whole = int(left.sum())
        sources: tuple[PartSource, ...] = ("calculated",) if most else ("measured",)
        rest = PartColumn(
            (*decode, *others),
            sources,
            about,
            left - stall.value,
            left - stall.high - slack,
            left - stall.low + slack,
            (whole - most - more, whole - least + less),
        )
        return [stall, rest]


def _claimed(atoms: Sequence[str], value: np.ndarray) -> PartColumn:
    about = "the server says so in each answer"
    return PartColumn(tuple(atoms), ("claimed",), about, value, value, value)


def _claimed_beside(
    claim: np.ndarray, atoms: Sequence[str], parts: Sequence[PartColumn]
) -> PartColumn:
    """Return what the server says of these atoms, without those that have a part already."""
    known = {atom for part in parts for atom in part.covers}
    inside = sum(p.value for p in parts if {*p.covers} <= {*atoms})
    return _claimed([a for a in atoms if a not in known], np.maximum(claim - inside, 0))


def _widened(part: PartColumn, guessed: np.ndarray, whole: np.ndarray) -> PartColumn:
    """Return the part with bounds from nothing to the whole time of answers whose claims are estimated."""
    if not guessed.any():
        return part
    low = np.where(guessed, np.minimum(part.low, 0), part.low)
    high = np.where(guessed, np.maximum(part.high, whole), part.high)
    least, most = part.sums
    least -= int((part.low - low).sum())
    most += int((high - part.high).sum())
    return part._replace(low=low, high=high, total=(least, most))


def _by_bound(atom: str, value: np.ndarray, about: str) -> PartColumn:
    sources: tuple[PartSource, ...] = ("calculated",)
    if about == MEASURED:
        sources = ("measured", "calculated")
    return PartColumn((atom,), sources, about, value, value, value)


def _capped(least: np.ndarray, room: np.ndarray, what: str, notes: list[str]) -> np.ndarray:
    """Return the bound, no longer than the time that it is a part of."""
    whole = np.rint(least).astype(np.int64)
    beyond = float((whole > room).mean()) if len(room) else 0.0
    if beyond > 1 - HOLD:
        notes.append(
            f"{percent(beyond)} of the requests were faster than the bound of {what}: the peaks or the model's shape "
            "are not those of this engine."
        )
    least_ns: np.ndarray = np.clip(whole, 0, np.maximum(room, 0))
    return least_ns


def _network(trips: Sequence[int], left: np.ndarray) -> PartColumn:
    """Return a round trip for each request, as measured beside the load."""
    likely, least, most = (
        np.minimum(left, round(float(np.quantile(trips, q)))) for q in (0.5, 0.0, 1.0)
    )
    about = "a round trip, measured before and after the load"
    return PartColumn(("network",), ("measured",), about, likely, least, most)


def _about_its_sum(part: PartColumn) -> tuple[int, int]:
    """Return how much smaller and how much larger a part may be."""
    low, high = part.sums
    whole = int(part.value.sum())
    return whole - low, high - whole


def _pauses(d: Disturbance, rows: np.ndarray, left: np.ndarray, unsure: int) -> PartColumn:
    value, low, high = (
        np.minimum(np.rint(column[rows]).astype(np.int64), left)
        for column in (d.pause, d.pause_low, d.pause_high)
    )
    about = "gaps in which the other streams progressed, and this one did not catch up"
    low = np.minimum(low, value)
    total = max(int(low.sum()) - unsure, 0), int(high.sum()) + unsure
    return PartColumn(("preemption",), ("measured",), about, value, low, high, total)


def _counts(pauses: PartColumn, latency: np.ndarray) -> bool:
    counts: bool = pauses.high.sum() > _NO_PAUSES * latency.sum()
    return counts


def _stall(
    d: Disturbance,
    rows: np.ndarray,
    left: np.ndarray,
    off: tuple[np.ndarray, np.ndarray],
    unsure: int,
) -> PartColumn:
    """`off`: time that may be stalls, too, and time that may be none. `unsure`: by so much the sum may always be
    wrong."""
    hidden, delivered = off
    value, low, high = (
        np.minimum(np.rint(column[rows]).astype(np.int64), left)
        for column in (d.stall, d.stall_low, d.stall_high)
    )
    low, high = np.maximum(low - delivered, 0), np.minimum(high + hidden, left)
    total = int(value.sum())
    least, most = (round(bound) for bound in d.stall_total)
    most += int(hidden.sum())
    least, most = least - int(delivered.sum()) - unsure, most + unsure
    about = "gaps while another prompt was open, as far as they are longer than gaps without one"
    bounds = max(min(least, total), 0), max(min(most, int(left.sum())), total)
    return PartColumn(
        ("stall",), ("measured", "calculated"), about, value, low, high, bounds
    )


def _narrow(part: PartColumn, latency: np.ndarray) -> bool:
    """Return whether the bounds of a part are near enough to print it."""
    low, high = part.sums
    return high - low <= WIDEST * int(latency.sum())


def _one_delivery(parts: list[PartColumn]) -> list[PartColumn]:
    """Join first and later delivery where both are measured: what the last token took is the part of the latency."""
    first = next((p for p in parts if "first_delivery" in p.covers), None)
    later = next((p for p in parts if p.covers == ("later_delivery",)), None)
    if first is None or later is None or "prefill_above" in first.covers:
        return parts
    value = first.value + later.value
    joined = PartColumn(
        (*first.covers, *later.covers),
        ("measured", "claimed"),
        "from sent to the last token as measured, without the time that the server reports",
        np.maximum(value, 0),
        np.maximum(first.low + later.low, 0),
        np.maximum(first.high + later.high, 0),
    )
    others = [p for p in parts if p is not later]
    return [joined if p is first else p for p in others]
