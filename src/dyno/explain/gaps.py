"""The time between tokens, by what other requests did meanwhile.

A gap between two chunks of a stream is quiet if no other request waited for its first token during it. Quiet gaps show
how long a step takes with as many streams. By how much the other gaps are longer is the stall. A pause is a gap in
which the other streams progressed, and after which this one did not catch up: the server had put this request aside.
"""

from typing import Literal, NamedTuple

import numpy as np

from dyno.explain.columns import NONE, Columns

STEPS = 10  # quiet steps that make a figure of how long one takes
# A step's length is known to that share: contexts grow, clocks change.
_KNOWN_WITHIN = 0.05
_ERRORS = 3  # standard errors: all gaps of a run share one step's error
_OUTLIER = 4  # times the median: longer quiet gaps count as that long
_MISSING = 0.2  # of a step: by so much at most they are corrected
_LONG = 1.5  # times the median: such quiet gaps may be stalls that were seen late
# Chunks that follow one another in less than that share of the mean gap came together.
_TOGETHER = 0.1
# How long after a wait gaps are quiet, in quiet gaps: so long that up to _FAR times later they are no shorter.
_MARGINS = (1, 4, 16, 64)
_FAR = 4
# A pause: the gap is so many times as long as usual, …
_PAUSE_TIMES = 1.5
# … the others progressed by so many chunks each, and by that share of these the stream is behind them in the end.
_PERHAPS = (1.0, 0.3)
_LIKELY = (2.0, 0.5)
_SURE = (5.0, 0.8)
_UNSEEN = 1.1  # pauses of less than two steps aren't seen
_OTHERS = 0.5  # streams, on average: fewer say nothing
# Streams of one engine wait together: by that share of the others, weighted by the excess. Where less, chunks arrive
# too late to say what was waiting when they were made. A smaller excess than _LITTLE of the time shows neither.
_TOGETHER_AT_LEAST = 0.6
_LITTLE = 0.02


class StreamGaps(NamedTuple):
    """All gaps between chunks of one stream, one after the other. Chunks that came together end one gap."""

    row: np.ndarray  # of the request
    begin: np.ndarray
    end: np.ndarray
    chunks: np.ndarray  # that end it
    streams: np.ndarray  # that had begun and not ended, this one among them
    waiting: np.ndarray  # another request waited for its first token
    since: np.ndarray  # from the end of the last such wait to the begin
    pause: np.ndarray  # 0: none, 1: perhaps, 2: likely, 3: surely

    @property
    def paused(self) -> np.ndarray:
        paused: np.ndarray = self.pause >= 2
        return paused

    @property
    def length(self) -> np.ndarray:
        length: np.ndarray = (self.end - self.begin).astype(float)
        return length

    def only(self, chosen: np.ndarray) -> "StreamGaps":
        return StreamGaps(*(column[chosen] for column in self))


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


class Disturbance(NamedTuple):
    """What other requests added to each request's time between tokens, ns, by rows of the columns."""

    stall: np.ndarray
    stall_low: np.ndarray
    stall_high: np.ndarray
    stall_total: tuple[float, float]  # bounds of the sum, narrower than the sums of bounds
    unknown: Literal["", "few", "apart"]  # why stalls aren't known; '': they are
    pause: np.ndarray
    pause_low: np.ndarray
    pause_high: np.ndarray
    streams: np.ndarray  # mean over the request's gaps
    gaps: StreamGaps
    step: np.ndarray  # likely length of each gap without the others


def disturbance(c: Columns) -> Disturbance:
    gaps, rate = find_gaps(c)
    size = len(c.number)
    length = gaps.length
    steps, quiet = settled_steps(gaps, rate)
    hit = ~quiet & ~gaps.paused
    step = np.full(len(length), float(np.median(length)) if len(length) else 0.0)
    unknown: Literal["", "few", "apart"] = "few" if hit.any() else ""
    stall, low, high, total = _unknown_stalls(gaps, hit, c)
    if steps is not None:
        bounds = tuple(gaps.chunks * each for each in steps.bounds(gaps.streams))
        step = bounds[1]
        unknown = "" if wait_together(gaps, hit, length - step) else "apart"
        if not unknown:
            stall, low, high, total = _stalls(gaps, hit, bounds, steps, c)

    def pauses(level: int, steps_less: int) -> np.ndarray:
        inside = np.where(gaps.pause >= level, length - steps_less * step, 0)
        summed: np.ndarray = np.bincount(gaps.row, np.maximum(inside, 0), size)
        return summed

    return Disturbance(
        stall=stall,
        stall_low=low,
        stall_high=high,
        stall_total=total,
        unknown=unknown,
        pause=pauses(2, 1),
        pause_low=np.zeros(size) if unknown else pauses(3, 2),
        pause_high=_UNSEEN * pauses(1, 0),
        streams=_mean_streams(gaps, size),
        gaps=gaps,
        step=step,
    )


def wait_together(gaps: StreamGaps, hit: np.ndarray, excess: np.ndarray) -> bool:
    """Return whether the streams of a gap that is longer than its steps waited, too."""
    length = gaps.length
    long = excess > (_LONG - 1) * (length - excess)
    chosen = hit & long & (gaps.streams > 1)
    whole = float(excess[chosen].sum())
    if whole <= _LITTLE * float(length.sum()):
        return True
    middle = ((gaps.begin + gaps.end) // 2)[chosen]
    begun = np.searchsorted(np.sort(gaps.begin[long]), middle, "right")
    ended = np.searchsorted(np.sort(gaps.end[long]), middle, "right")
    share = (begun - ended - 1) / (gaps.streams[chosen] - 1)
    return float((excess[chosen] * share).sum()) >= _TOGETHER_AT_LEAST * whole


def _mean_streams(gaps: StreamGaps, size: int) -> np.ndarray:
    counts = np.maximum(np.bincount(gaps.row, minlength=size), 1)
    return np.bincount(gaps.row, gaps.streams, size) / counts


_Stalls = tuple[np.ndarray, np.ndarray, np.ndarray, tuple[float, float]]


def _unknown_stalls(gaps: StreamGaps, hit: np.ndarray, c: Columns) -> _Stalls:
    """Return bounds alone: none of these gaps, or all of them."""
    most = np.bincount(gaps.row, np.where(hit, gaps.length, 0), len(c.number))
    none = np.zeros(len(c.number))
    return none, none, most, (0.0, float(most[c.completed].sum()))


def _stalls(
    gaps: StreamGaps,
    hit: np.ndarray,
    bounds: tuple[np.ndarray, ...],
    steps: Steps,
    c: Columns,
) -> _Stalls:
    """Return each request's excess over its steps, with bounds, and bounds of the sum. `bounds`: of a gap's steps."""
    size = len(c.number)
    length = gaps.length

    def by_request(values: np.ndarray) -> np.ndarray:
        summed: np.ndarray = np.bincount(gaps.row, values, size)
        return summed

    most, likely, least = (by_request(np.where(hit, length - step, 0)) for step in bounds)
    usual = _LONG * gaps.chunks * steps.usual(gaps.streams)
    perhaps = by_request(np.where(hit | gaps.paused, 0, np.maximum(length - usual, 0)))
    most = most + perhaps
    mine = c.completed
    low, whole, high = (max(float(each[mine].sum()), 0.0) for each in (least, likely, most))
    # Chance makes some gaps shorter than their steps: the sum over all requests must not have the longer ones alone.
    positive = np.maximum(likely, 0)
    above = float(positive[mine].sum())
    stall = positive * (whole / above if above > 0 else 0.0)
    noise = 2 * steps.noise * np.sqrt(by_request(np.where(hit, bounds[1] ** 2, 0)))
    return (
        stall,
        np.minimum(np.maximum(least - noise, 0), stall),
        np.maximum(np.maximum(most + noise, 0), stall),
        (min(low, whole), max(high, whole)),
    )


# ---- gaps ----


def find_gaps(c: Columns) -> tuple[StreamGaps, float]:
    """Return the gaps, and how often in a ns of quiet a wait begins."""
    row, begin, end, chunks = _joined(c)
    middle = (begin + end) // 2
    pause = np.zeros(len(row), dtype=np.int8)
    # Where several are paused at once, only a second look knows how many streams progressed.
    for _ in range(2):
        active = _Active(c, begin[pause >= 2], end[pause >= 2])
        pause = _pauses(c, (row, begin, end), pause >= 2, active)
    active = _Active(c, begin[pause >= 2], end[pause >= 2])
    streams = np.maximum(active.count(middle), 1)
    waits = _waits(c, begin[pause >= 2], end[pause >= 2])
    waiting, since = _touched(begin, end, waits)
    gaps = StreamGaps(row, begin, end, chunks, streams, waiting, since, pause)
    return gaps, _rate(*waits)


def _joined(c: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the request, begin and end of each gap, and how many chunks came together at its end."""
    inner = np.ones(len(c.times), dtype=bool)
    inner[(c.starts + c.counts - 1)[c.counts > 0]] = False
    place = np.flatnonzero(inner)
    row = np.repeat(np.arange(len(c.number)), c.counts)[place]
    begin, end = c.times[place], c.times[place + 1]
    length = end - begin
    if not len(length):
        return row, begin, end, length
    alone = length >= _TOGETHER * length.mean()
    alone |= np.diff(row, prepend=-1) > 0  # the first gap of each stream
    heads = np.flatnonzero(alone)
    tails = np.append(heads[1:], len(length)) - 1
    return row[heads], begin[heads], end[tails], tails - heads + 1


class _Active:
    """How many streams had begun, not ended, and were not paused, over time."""

    def __init__(self, c: Columns, paused: np.ndarray, resumed: np.ndarray) -> None:
        begun = c.counts > 0
        firsts = c.times[c.starts[begun]]
        lasts = c.times[(c.starts + c.counts - 1)[begun]]
        self._first = np.sort(np.concatenate([firsts, resumed]))
        self._last = np.sort(np.concatenate([lasts, paused]))
        self._firsts = np.concatenate([[0], np.cumsum(self._first.astype(float))])
        self._lasts = np.concatenate([[0], np.cumsum(self._last.astype(float))])

    def count(self, moments: np.ndarray) -> np.ndarray:
        begun = np.searchsorted(self._first, moments, "right")
        ended = np.searchsorted(self._last, moments, "left")
        count: np.ndarray = begun - ended
        return count

    def mean(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the mean number over time."""
        over = np.maximum(end - begin, 1)
        mean: np.ndarray = (self._until(end) - self._until(begin)) / over
        return mean

    def _until(self, moments: np.ndarray) -> np.ndarray:
        begun = np.searchsorted(self._first, moments, "right")
        ended = np.searchsorted(self._last, moments, "right")
        since = begun * moments - self._firsts[begun]
        until: np.ndarray = since - (ended * moments - self._lasts[ended])
        return until


def _pauses(
    c: Columns,
    gaps: tuple[np.ndarray, np.ndarray, np.ndarray],
    known: np.ndarray,
    active: _Active,
) -> np.ndarray:
    """Return how sure it is that a gap is a pause: other streams progressed, and this one stayed behind. One that is
    only delivered late catches up; a stall that others saw earlier or later, they have had too. `known`: pauses that
    `active` leaves out."""
    row, begin, end = gaps
    pause = np.zeros(len(row), dtype=np.int8)
    if not len(row):
        return pause
    perhaps = np.flatnonzero(end - begin > _PAUSE_TIMES * np.median(end - begin))
    row, begin, end, known = (column[perhaps] for column in (row, begin, end, known))
    # A first chunk shows that a prompt is done, not that streams go on.
    later = np.ones(len(c.times), dtype=bool)
    later[c.starts[c.counts > 0]] = False
    every = np.sort(c.times[later])

    def chunks_of_others(
        since: np.ndarray, until: np.ndarray, own: np.ndarray
    ) -> np.ndarray:
        """Return the chunks that each other stream got in between, on average."""
        after = np.searchsorted(every, since, "right")
        inside = np.searchsorted(every, until, "left") - after
        left_out = np.where(known, (end - begin) / np.maximum(until - since, 1), 0)
        others = active.mean(since, until) - (1 - left_out)
        enough = others > _OTHERS
        mean: np.ndarray = np.where(enough, (inside - own) / np.maximum(others, _OTHERS), 0)
        return mean

    went_on = chunks_of_others(begin, end, np.zeros(len(row)))
    first, last = c.times[c.starts[row]], c.times[(c.starts + c.counts - 1)[row]]
    length = end - begin
    since, until = np.maximum(begin - length, first), np.minimum(end + length, last)
    own = _chunks_between(c, row, since, until)
    behind = chunks_of_others(since, until, own) - own
    for steps, share in (_PERHAPS, _LIKELY, _SURE):
        pause[perhaps] += (went_on >= steps) & (behind >= share * went_on)
    return pause


def _chunks_between(
    c: Columns, row: np.ndarray, since: np.ndarray, until: np.ndarray
) -> np.ndarray:
    """Return the chunks that a request got in between. One search serves all requests, each at a place of its own."""
    zero = int(c.times.min())
    width = (int(c.times.max()) - zero) // 1000 + 2
    rows = np.repeat(np.arange(len(c.number)), c.counts)
    keys = rows * width + (c.times - zero) // 1000

    def place(moments: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        wanted = row * width + (moments - zero) // 1000
        places: np.ndarray = np.searchsorted(keys, wanted, side)
        return places

    between: np.ndarray = np.maximum(place(until, "left") - place(since, "right"), 0)
    return between


def _waits(c: Columns, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return when prompts were open: from sending to the first token, or as far as the server says that it worked on
    them; and the pauses, after which the server works on what the request had so far."""
    since = np.where(c.queue != NONE, c.sent + c.queue, c.sent)
    since = np.where(c.prefill != NONE, c.first - c.prefill, since)
    since = np.clip(since, np.minimum(c.sent, c.first), c.first)
    return np.concatenate([since, begin]), np.concatenate([c.first, end])


def _touched(
    begin: np.ndarray, end: np.ndarray, waits: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gaps during which any of these was open, and how long none had been before. A request's own wait is
    over when its gaps begin."""
    since, until = waits
    until = np.sort(until)
    opened = np.searchsorted(np.sort(since), end, "left")
    closed = np.searchsorted(until, begin, "right")
    before = begin - until[np.maximum(closed - 1, 0)]
    return opened > closed, before


def _rate(since: np.ndarray, until: np.ndarray) -> float:
    """Return how often in a ns without waits one begins."""
    begins = np.sort(since)
    # The wait that ends last, of those that have begun.
    over = np.maximum.accumulate(until[np.argsort(since, kind="stable")])
    quiet = np.maximum(begins[1:] - over[:-1], 0)
    return float((quiet > 0).sum()) / max(float(quiet.sum()), 1.0)


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
