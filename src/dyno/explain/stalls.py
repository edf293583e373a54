"""Stalls: by how much gaps are longer while another request waits for its first token; and pauses.

A gap is quiet if no other request waited for its first token during it. Quiet gaps show how long a step takes
(`Steps`). By how much the other gaps are longer is the stall, within bounds of all that may have made them so long.

All gaps of a run share what is wrong with its steps. A step is known where quiet gaps lie among the others in time.
Where they lie at one end alone (an overload ends with some), the shortest of the other gaps must be like the shortest
quiet ones: else the machine may have changed. A halt of the server is like a stall: quiet time says how many there may
be.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from dyno.explain.columns import Columns
from dyno.explain.gaps import LONG, StreamGaps, find_gaps, in_groups, is_little, together

# ---- how long a step takes ----

STEPS = 10  # quiet steps that make a figure of how long one takes
# A step's length is known to that share: contexts grow, clocks change.
_KNOWN_WITHIN = 0.05
_ERRORS = 3  # standard errors: all gaps of a run share one step's error
_OUTLIER = 4  # times the median: longer quiet gaps count as that long
_MISSING = 0.2  # of a step: by so much at most they are corrected
# How long after a wait gaps are quiet, in quiet gaps: so long that up to _FAR times later they are no shorter.
_MARGINS = (1, 4, 16, 64)
_FAR = 4
_WINDOW = 40  # steps of one window, at least
_WINDOWS = 16
_ROUNDS = 5
# Prompts whose tokens vary by that share of their mean explain the excess of a gap if it is that near to a straight
# line, for that share of them.
_VARY, _NEAR, _MOSTLY = 0.5, 0.3, 0.7
_LEAST_RATIO = 0.1
_IN_LONG = 0.7
_UNKNOWN = 0.15  # of a step: by so much it may differ where none was seen
_LEAST_SEEN = (
    0.05  # of the halts of one length: where quiet time shows fewer, it shows none
)
_JUMP = 0.5  # of a step: by more no further waiting requests prolong it
_SHORTEST = 0.05  # quantile of gaps


class Steps(NamedTuple):
    """How long a step takes, by the number of streams; and bounds of that."""

    streams: np.ndarray  # increasing
    mean: np.ndarray
    median: np.ndarray
    error: np.ndarray
    noise: float  # standard deviation of a quiet step, as a share of its length

    def bounds(self, streams: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the length of a step with so many streams: at least, likely and at most."""
        inside = np.clip(streams, self.streams[0], self.streams[-1])
        known = np.interp(inside, self.streams, self.mean)
        error = np.maximum(
            np.interp(inside, self.streams, self.error), _KNOWN_WITHIN * known
        )
        # Beyond the streams that were seen: between a step of the same length and one in proportion.
        far = known * np.maximum(streams, 1) / np.maximum(inside, 1)
        low = np.minimum(known, far) - error
        high = np.maximum(known, far) + error
        likely = known + self._slope() * (streams - inside)
        return np.maximum(low, 0), np.clip(likely, low, high), high

    def usual(self, streams: np.ndarray) -> np.ndarray:
        usual: np.ndarray = np.interp(streams, self.streams, self.median)
        return usual

    def _slope(self) -> float:
        """Return by how much a further stream prolongs a step."""
        if len(self.streams) < 2:
            return 0.0
        return max(float(np.polyfit(self.streams, self.mean, 1)[0]), 0.0)


# ---- quiet steps ----


def settled_steps(gaps: StreamGaps, rate: float) -> tuple[Steps | None, np.ndarray]:
    """Return the steps, and which gaps are quiet: so long after the last wait that its end shows in no gap any more. A
    stream that is delivered late shows it late."""
    quiet = ~gaps.waiting & ~gaps.paused
    unit = float(gaps.length[quiet].mean()) if quiet.any() else 0.0
    for times in _MARGINS:
        mine = quiet & (gaps.since >= times * unit)
        far = quiet & (gaps.since >= _FAR * times * unit)
        steps = quiet_steps(gaps.only(far), rate)
        if steps is None:
            return quiet_steps(gaps.only(mine), rate), mine
        near = gaps.only(mine & ~far)
        likely = float((near.chunks * steps.bounds(near.streams)[1]).sum())
        if float(near.length.sum()) <= (1 + _KNOWN_WITHIN) * max(likely, 1.0):
            return quiet_steps(gaps.only(mine), rate), mine
    return None, quiet


def quiet_steps(gaps: StreamGaps, rate: float) -> Steps | None:
    """Return how long steps take, by these gaps. None: too few. `rate`: at which waits begin."""
    # Streams of one step have one gap: as many of them as there are streams make a step.
    parts = gaps.chunks / gaps.streams
    if not len(parts) or float(parts.sum()) < STEPS:
        return None
    order = np.argsort(gaps.streams, kind="stable")
    gaps, parts = gaps.only(order), parts[order]
    groups = _groups(gaps.streams, np.cumsum(parts))
    each = gaps.length / gaps.chunks
    weight = np.bincount(groups, gaps.chunks)
    median = np.array([np.median(part) for part in _pieces(each, groups)])
    clipped = np.minimum(each, _OUTLIER * median[groups])
    mean = np.bincount(groups, clipped * gaps.chunks) / weight
    square = np.bincount(groups, gaps.chunks * (clipped - mean[groups]) ** 2) / weight
    spread = np.sqrt(square)
    # The longer a gap, the likelier a wait begins in it: of gaps that vary, the quiet ones are too short on average.
    number = np.bincount(groups)
    whole = np.bincount(groups, gaps.length) / number
    variance = np.bincount(groups, (gaps.length - whole[groups]) ** 2) / number
    missing = np.minimum(rate * variance * number / weight, _MISSING * mean)
    mean = mean + missing
    return Steps(
        streams=np.bincount(groups, gaps.streams) / np.bincount(groups),
        mean=mean,
        median=median,
        error=missing
        + _ERRORS * spread / np.sqrt(np.maximum(np.bincount(groups, parts), 1)),
        noise=float((spread / np.maximum(mean, 1)).mean()),
    )


def _groups(streams: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return groups of neighbours with STEPS steps or more; all with one number of streams are in one. `steps`: up to
    each gap."""
    groups = np.minimum(steps // STEPS, max(steps[-1] // STEPS - 1, 0))
    begins = np.concatenate([[True], np.diff(streams) > 0])
    groups = groups[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    return np.unique(groups, return_inverse=True)[1]


def _pieces(values: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.flatnonzero(np.diff(groups)) + 1)


# ---- steps at the time of a gap ----


class StepsThen(NamedTuple):
    """How long each gap would have been without the others; and what that leaves open of the sum of stalls, ns."""

    low: np.ndarray
    likely: np.ndarray
    high: np.ndarray
    chance: float  # both ways: of windows, each with its own error
    halts: float  # of the server, that are likely among the gaps
    halts_most: float


def steps_then(
    gaps: StreamGaps, which: tuple[np.ndarray, np.ndarray], steps: Steps, rate: float
) -> StepsThen:
    """`which`: quiet gaps, and those that may have stalls. `rate`: at which waits begin."""
    quiet, hit = which
    window, count = _windows(gaps, hit)
    # Fewer streams at the end of a load, on a machine that slows down: neither is known without the other.
    drift = None
    for _ in range(_ROUNDS):
        if drift is not None:
            steps = _without(drift, gaps, quiet, window, rate) or steps
        low, likely, high = (gaps.chunks * each for each in steps.bounds(gaps.streams))
        drift = _drift(gaps, which, likely, window, count)
    assert drift is not None
    weight = np.bincount(window, np.where(hit, likely, 0), count)
    chance = float(np.sqrt(((drift.error * weight) ** 2).sum()))
    then = likely * drift.ratio[window]
    halts, halts_most = _halts(gaps, which, then, rate)
    return StepsThen(
        low * drift.least[window],
        then,
        high * drift.most[window],
        chance,
        halts,
        halts_most,
    )


def _without(
    drift: "_Drift", gaps: StreamGaps, quiet: np.ndarray, window: np.ndarray, rate: float
) -> Steps | None:
    """Return the steps as if all windows had been like the mean one."""
    length = gaps.length / np.maximum(drift.ratio[window], _LEAST_RATIO)
    even = gaps._replace(begin=gaps.end - length.astype(np.int64))
    return quiet_steps(even.only(quiet), rate)


def _windows(gaps: StreamGaps, hit: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the window of each gap: stretches of time with as many steps that may have stalls."""
    steps = np.where(hit, gaps.chunks / gaps.streams, 0)
    count = int(np.clip(steps.sum() // _WINDOW, 1, _WINDOWS))
    order = np.argsort(gaps.end, kind="stable")
    done = np.cumsum(steps[order]) / max(float(steps.sum()), 1.0)
    window = np.empty(len(order), dtype=np.int64)
    window[order] = np.minimum((done * count).astype(np.int64), count - 1)
    return window, count


class _Drift(NamedTuple):
    """By window: how long steps were, of what all quiet ones say."""

    ratio: np.ndarray
    least: np.ndarray
    most: np.ndarray
    error: np.ndarray


def _drift(
    gaps: StreamGaps,
    which: tuple[np.ndarray, np.ndarray],
    likely: np.ndarray,
    window: np.ndarray,
    count: int,
) -> _Drift:
    quiet, hit = which
    relative = gaps.length / np.maximum(likely, 1)
    known, ratio, squared = _local(gaps, quiet, relative, window, count)
    between = 0.0
    if known.sum() > 1:
        between = max(float(ratio[known].var(ddof=1) - squared[known].mean()), 0.0)
    trust = between / np.maximum(between + squared, 1e-12)
    places = np.flatnonzero(known)
    inside = np.zeros(count, dtype=bool)
    if len(places):
        inside[places[0] : places[-1] + 1] = True
    error = np.where(known, np.sqrt(trust * squared), np.where(inside, np.sqrt(between), 0))
    ratio = np.where(known, 1 + trust * (ratio - 1), 1.0)
    floor = _floor(relative, quiet, hit, window, count)
    few = _have_steps(relative, hit, window, count)
    # Between quiet steps, others may be shorter: the machine may have been cooler, or contexts smaller.
    shorter = np.where(few, np.minimum(floor, ratio), ratio)
    floor = np.where(inside | (np.abs(floor - 1) <= _KNOWN_WITHIN), 1.0, floor)
    # A machine that became slower or faster may have done so before and after, too.
    change = float(np.ptp(ratio[known])) if known.any() else 0.0
    further = np.where(few, change, max(change, _UNKNOWN))
    # Where all gaps are longer, steps may be so much longer, or prompts may hide that they are as much shorter.
    least = np.minimum(floor, 1 / np.maximum(floor, _LEAST_RATIO))
    return _Drift(
        ratio=np.where(inside, ratio, np.minimum(floor, 1)),
        least=np.where(inside, shorter, np.maximum(least - further, 0)),
        most=np.where(inside, ratio, np.maximum(floor, 1) + further),
        error=_ERRORS * error,
    )


def _have_steps(
    relative: np.ndarray, hit: np.ndarray, window: np.ndarray, count: int
) -> np.ndarray:
    """Return which windows have steps without a prompt among their gaps: then most of the excess is in a few long ones.
    Where each step has some, the shortest gaps are no plain steps."""
    excess = np.where(hit, np.maximum(relative - 1, 0), 0)
    every = np.bincount(window, excess, count)
    long = np.bincount(window, np.where(relative > LONG, excess, 0), count)
    few: np.ndarray = long >= _IN_LONG * every
    return few


def _local(
    gaps: StreamGaps,
    quiet: np.ndarray,
    relative: np.ndarray,
    window: np.ndarray,
    count: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which windows have quiet steps, their mean length, and its squared error."""
    mine = np.minimum(relative[quiet], _OUTLIER)
    where, parts = window[quiet], (gaps.chunks / gaps.streams)[quiet]
    steps = np.bincount(where, parts, count)
    known = steps >= STEPS
    whole = np.maximum(steps, 1e-9)
    ratio = np.bincount(where, parts * mine, count) / whole
    spread = np.bincount(where, parts * (mine - ratio[where]) ** 2, count) / whole
    return known, np.where(known, ratio, 1.0), spread / np.maximum(steps, 1)


def _floor(
    relative: np.ndarray, quiet: np.ndarray, hit: np.ndarray, window: np.ndarray, count: int
) -> np.ndarray:
    """Return by window how long the shortest gaps are that may have stalls, of the shortest quiet ones."""
    floor = np.ones(count)
    if not quiet.any():
        return floor
    shortest = max(float(np.quantile(relative[quiet], _SHORTEST)), 1e-9)
    for place in range(count):
        mine = relative[hit & (window == place)]
        if len(mine):
            floor[place] = float(np.quantile(mine, _SHORTEST)) / shortest
    return floor


def _halts(
    gaps: StreamGaps, which: tuple[np.ndarray, np.ndarray], step: np.ndarray, rate: float
) -> tuple[float, float]:
    """Return how much of the excess are halts, which are as likely while a prompt is open as in quiet time: likely, and
    at most."""
    quiet, hit = which
    excess = gaps.length - step
    unexplained = np.maximum(excess - _by_prompts(gaps, hit, excess), 0)
    long = excess > step
    quiet_ns = float((gaps.length / gaps.streams)[quiet].sum())
    if not (hit & long).any() or not quiet_ns:
        return 0.0, 0.0
    # The longer a halt is, the likelier a prompt comes meanwhile: for each that stays quiet there are so many.
    stays = np.exp(-rate * gaps.length)
    stays = np.minimum(stays, _stays_quiet(gaps.length, _stretches(gaps, quiet)))
    unseen = 1 / np.maximum(stays, _LEAST_SEEN)
    seen = quiet & long
    each, share = unseen[seen], (gaps.chunks / gaps.streams)[seen]
    halts = float((share * each).sum())
    times = 1 + float(gaps.length[hit].sum()) / quiet_ns
    error = float(np.sqrt((share * each**2).sum()))
    count = halts + _ERRORS * (error + float(unseen[hit & long].mean()))
    count = count * times - float(share.sum())
    # One halt is always possible, for all streams.
    count = max(count, float(gaps.streams[hit].mean()))
    # Quiet time never shows a halt that is too long for it: nothing says how many of these there are.
    blind = hit & long & (stays < _LEAST_SEEN)
    among = np.sort(unexplained[hit & long & ~blind])[::-1]
    most = float(among[: round(count)].sum()) + float(unexplained[blind].sum())
    # Steps have the shorter ones in their mean.
    beyond = np.maximum(gaps.length - _OUTLIER * step, 0)[seen] / gaps.streams[seen]
    likely = float((beyond * each).sum()) * times - float(beyond.sum())
    return min(max(likely, 0.0), most), most


def _stretches(gaps: StreamGaps, quiet: np.ndarray) -> np.ndarray:
    """Return how long each quiet stretch of time is: quiet gaps of all streams that overlap or follow one another."""
    order = np.argsort(gaps.begin[quiet], kind="stable")
    begin = gaps.begin[quiet][order]
    end = np.maximum.accumulate(gaps.end[quiet][order])
    first = np.append(True, begin[1:] > end[:-1])
    last = np.append(first[1:], True)
    stretches: np.ndarray = (end[last] - begin[first]).astype(float)
    return stretches


def _stays_quiet(length: np.ndarray, stretches: np.ndarray) -> np.ndarray:
    """Return the chance that a halt of this length, which begins at any moment of the quiet stretches, ends within
    one. Requests that come at even intervals leave no stretch for a long one."""
    longest = np.sort(stretches)[::-1]
    sums = np.append(0, np.cumsum(longest))
    longer = np.searchsorted(-longest, -length, "left")
    chance: np.ndarray = (sums[longer] - longer * length) / max(float(sums[-1]), 1.0)
    return chance


def _by_prompts(gaps: StreamGaps, hit: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """Return the excess that the prompts done in a gap explain: where it grows with their tokens for most of them, by a
    straight line."""
    nothing = np.zeros(len(excess))
    mine = hit & (gaps.prompts > 0)
    if mine.sum() < STEPS:
        return nothing
    line = np.zeros(2)
    for _ in range(_ROUNDS):
        x, y = gaps.prompts[mine], excess[mine]
        if np.ptp(x) < _VARY * x.mean():
            return nothing
        line = np.polyfit(x, y, 1)
        off = np.abs(excess - np.polyval(line, gaps.prompts))
        limit = 2 * float(np.median(off[mine]))
        mine = hit & (gaps.prompts > 0) & (off <= limit)
        if mine.sum() < STEPS:
            return nothing
    said = np.where(gaps.prompts > 0, np.polyval(line, gaps.prompts), 0)
    every = hit & (gaps.prompts > 0)
    near = np.abs(excess - said)[every] <= _NEAR * np.maximum(said[every], 0)
    return np.maximum(said, 0) if near.mean() >= _MOSTLY and line[0] > 0 else nothing


# ---- what is beyond a step ----

_UNSEEN = 1.1  # pauses of less than two steps aren't seen
Unknown = Literal["", "few", "groups", "apart"]


_BY_ROW = (
    "stall",
    "stall_low",
    "stall_high",
    "pause",
    "pause_low",
    "pause_high",
    "streams",
)


class Disturbance(NamedTuple):
    """What other requests added to each request's time between tokens, ns, by rows of the columns."""

    stall: np.ndarray
    stall_low: np.ndarray
    stall_high: np.ndarray
    stall_total: tuple[float, float]  # bounds of the sum, narrower than the sums of bounds
    alone: bool  # no two requests were open at the same time
    unknown: Unknown  # why stalls aren't known; '': they are
    pause: np.ndarray
    pause_low: np.ndarray
    pause_high: np.ndarray
    streams: np.ndarray  # mean over the request's gaps
    gaps: StreamGaps
    step: np.ndarray  # likely length of each gap without the others


def disturbance(c: Columns) -> Disturbance:
    """Return the same of all engines. Each address is one: its streams have nothing to do with those of the others."""
    engines = [np.flatnonzero(c.engine == each) for each in np.unique(c.engine)]
    if len(engines) < 2:
        return _of_engine(c)
    return _joined(c, [(rows, _of_engine(c.only(rows))) for rows in engines])


def _joined(c: Columns, parts: Sequence[tuple[np.ndarray, Disturbance]]) -> Disturbance:
    def by_row(name: str) -> np.ndarray:
        column = np.zeros(len(c.number))
        for rows, part in parts:
            column[rows] = getattr(part, name)
        return column

    gaps = [part.gaps._replace(row=rows[part.gaps.row]) for rows, part in parts]
    totals = [part.stall_total for _, part in parts]
    why: list[Unknown] = [part.unknown for _, part in parts if part.unknown]
    return Disturbance(
        **{name: by_row(name) for name in _BY_ROW},
        stall_total=(sum(low for low, _ in totals), sum(high for _, high in totals)),
        alone=all(part.alone for _, part in parts),
        unknown=max(why, key=why.count) if why else "",
        gaps=StreamGaps(*(np.concatenate(column) for column in zip(*gaps, strict=True))),
        step=np.concatenate([part.step for _, part in parts]),
    )


def _of_engine(c: Columns) -> Disturbance:
    gaps, rate = find_gaps(c)
    size = len(c.number)
    length = gaps.length
    alone = _is_alone(c)
    steps, quiet = settled_steps(gaps, rate)
    hit = ~quiet & ~gaps.paused & (not alone)
    step = np.full(len(length), float(np.median(length)) if len(length) else 0.0)
    unknown: Unknown = "few" if hit.any() else ""
    if not alone and in_groups(gaps):
        unknown, steps = "groups", None
    stall, low, high, total = _unknown_stalls(gaps, hit, c)
    if steps is not None:
        then = steps_then(gaps, (quiet, hit), steps, rate)
        step = then.likely
        unknown = "" if alone or together(gaps, hit, length - step) else "apart"
        if not unknown:
            stall, low, high, total = _stalls(gaps, hit, then, steps, c)

    def pauses(level: int, steps_less: int) -> np.ndarray:
        inside = np.where(gaps.pause >= level, length - steps_less * step, 0)
        summed: np.ndarray = np.bincount(gaps.row, np.maximum(inside, 0), size)
        return summed

    return Disturbance(
        stall=stall,
        stall_low=low,
        stall_high=high,
        stall_total=total,
        alone=alone,
        unknown=unknown,
        pause=pauses(2, 1),
        pause_low=np.zeros(size) if unknown else pauses(3, 2),
        pause_high=_UNSEEN * pauses(1, 0),
        streams=_mean_streams(gaps, size),
        gaps=gaps,
        step=step,
    )


def _is_alone(c: Columns) -> bool:
    """Return whether no two requests were ever open at the same time."""
    return not (c.sent[1:] < np.maximum.accumulate(c.end)[:-1]).any()


def _mean_streams(gaps: StreamGaps, size: int) -> np.ndarray:
    counts = np.maximum(np.bincount(gaps.row, minlength=size), 1)
    return np.bincount(gaps.row, gaps.streams, size) / counts


def _around_pauses(gaps: StreamGaps, hit: np.ndarray, excess: np.ndarray) -> float:
    """Return the excess of gaps in which another stream's pause began or ended: the server may have moved its cache."""
    paused = gaps.paused
    moments = np.sort(np.concatenate([gaps.begin[paused], gaps.end[paused]]))
    inside = np.searchsorted(moments, gaps.end, "right") > np.searchsorted(
        moments, gaps.begin, "left"
    )
    return float(np.maximum(excess[hit & inside], 0).sum())


def _by_waiting(gaps: StreamGaps, hit: np.ndarray, step: np.ndarray) -> float:
    """Return the excess that may be longer steps: a scheduler may look at each waiting request in every one."""
    grown = _growth(gaps, hit & (gaps.prompts == 0) & (gaps.queued > 0), step)
    longer = grown * gaps.queued * gaps.chunks
    return float(np.clip(longer, 0, np.maximum(gaps.length - step, 0))[hit].sum())


def _growth(gaps: StreamGaps, plain: np.ndarray, step: np.ndarray) -> float:
    """Return by how much each waiting request prolongs a step. `plain`: gaps in which no prompt ended. The shortest of
    them show it, as long as they grow little by little: where they jump, each has a part of a long prompt."""
    order = np.flatnonzero(plain)
    order = order[np.argsort(gaps.queued[order], kind="stable")]
    mine, excess = gaps.only(order), (gaps.length - step)[order]
    parts = mine.chunks / mine.streams
    if parts.sum() < STEPS:
        return 0.0
    groups = _groups(mine.queued, np.cumsum(parts))
    queued = np.array([piece.mean() for piece in _pieces(mine.queued, groups)])
    shortest = np.array(
        [np.quantile(piece, _SHORTEST) for piece in _pieces(excess / mine.chunks, groups)]
    )
    jumps = np.diff(shortest) > _JUMP * float(np.median(step[order] / mine.chunks))
    until = int(np.argmax(np.append(jumps, True))) + 1
    if until < 2:
        return 0.0
    weight = np.sqrt(np.bincount(groups, parts))[:until]
    return max(float(np.polyfit(queued[:until], shortest[:until], 1, w=weight)[0]), 0.0)


_Stalls = tuple[np.ndarray, np.ndarray, np.ndarray, tuple[float, float]]


def _unknown_stalls(gaps: StreamGaps, hit: np.ndarray, c: Columns) -> _Stalls:
    """Return bounds alone: nothing, or all gaps if some may have stalls: which of them, too few quiet ones say."""
    may_be = gaps.length if hit.any() else np.zeros(len(gaps.row))
    most = np.bincount(gaps.row, may_be, len(c.number))
    none = np.zeros(len(c.number))
    return none, none, most, (0.0, float(most[c.completed].sum()))


def _stalls(
    gaps: StreamGaps, hit: np.ndarray, then: StepsThen, steps: Steps, c: Columns
) -> _Stalls:
    """Return each request's excess over its steps, with bounds, and bounds of the sum."""
    size = len(c.number)
    length = gaps.length
    mine = c.completed

    def by_request(values: np.ndarray) -> np.ndarray:
        summed: np.ndarray = np.bincount(gaps.row, values, size)
        return summed

    most, likely, least = (
        by_request(np.where(hit, length - step, 0))
        for step in (then.low, then.likely, then.high)
    )
    usual = LONG * gaps.chunks * steps.usual(gaps.streams)
    perhaps = by_request(np.where(hit | gaps.paused, 0, np.maximum(length - usual, 0)))
    most = most + perhaps
    low, whole, high = (float(each[mine].sum()) for each in (least, likely, most))
    low -= then.chance + then.halts_most + _around_pauses(gaps, hit, length - then.likely)
    low -= _by_waiting(gaps, hit, then.likely)
    high += then.chance
    if is_little(whole, length):
        low = 0.0
    whole = max(whole - then.halts, 0.0)
    # Chance makes some gaps shorter than their steps: the sum over all requests must not have the longer ones alone.
    positive = np.maximum(likely, 0)
    above = float(positive[mine].sum())
    stall = positive * (whole / above if above > 0 else 0.0)
    noise = 2 * steps.noise * np.sqrt(by_request(np.where(hit, then.likely**2, 0)))
    return (
        stall,
        np.minimum(np.maximum(least - noise, 0), stall),
        np.maximum(np.maximum(most + noise, 0), stall),
        (max(min(low, whole), 0.0), max(high, whole)),
    )
