"""The time between tokens, by what other requests did meanwhile.

Chunks of a stream that came together end one gap. A pause is a gap in which the other streams progressed, and after
which this one did not catch up: the server had put this request aside.
"""

from typing import Literal, NamedTuple

import numpy as np

from dyno.explain.columns import NONE, Columns

# A pause: the gap is so many times as long as usual, …
_PAUSE_TIMES = 1.5
# … the others progressed by so many chunks each, and by that share of these the stream is behind them in the end.
_PERHAPS = (1.0, 0.3)
_LIKELY = (2.0, 0.5)
_SURE = (5.0, 0.8)
_OTHERS = 0.5  # streams, on average: fewer say nothing
# Chunks that follow one another in less than that share of the mean gap came together.
_TOGETHER = 0.1
# Pauses that begin and end together, within that share of the median gap, are of streams that wait for one thing.
_SAME = 0.5
_NEIGHBOURS = 4  # pauses in the order of their begin that are compared with one
_IN_GROUPS = 0.1  # of the chunks, that came together with others of their stream
# Streams of one engine wait together: by that share of the others, weighted by the excess. Where less, chunks arrive
# too late to say what was waiting when they were made. A smaller excess than _LITTLE of the time shows neither.
_TOGETHER_AT_LEAST = 0.6
_LITTLE = 0.02
LONG = 1.5  # times its steps: such a gap waited, or shows late that the server did
# Chunks of one step arrive together, and then there is silence: of the way from chance (0) to one moment (1).
_SILENCE_AT_LEAST = 0.5
_LOOKED_AT = 2000  # gaps


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
    prompts: np.ndarray  # tokens of the prompts whose first token came in it
    queued: np.ndarray  # requests without a first token, in the middle of it

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
    prompts = _prompts(c, begin, end)
    queued = _queued(c, middle)
    gaps = StreamGaps(
        row, begin, end, chunks, streams, waiting, since, pause, prompts, queued
    )
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
    return _alone(pause, gaps)


def _alone(
    pause: np.ndarray, gaps: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return the same without pauses that most others begin and end with: these streams are of one engine of several,
    and wait for its prompt. Requests are preempted one by one."""
    _, begin, end = gaps
    places = np.flatnonzero(pause >= 2)
    places = places[np.argsort(begin[places], kind="stable")]
    near = _SAME * float(np.median(end - begin))
    company = np.zeros(len(places), dtype=bool)
    for offset in range(1, min(_NEIGHBOURS, len(places) - 1) + 1):
        one, other = places[:-offset], places[offset:]
        same = np.abs(begin[one] - begin[other]) <= near
        same &= np.abs(end[one] - end[other]) <= near
        company[:-offset] |= same
        company[offset:] |= same
    lengths = (end - begin)[places]
    if len(places) and lengths[company].sum() > 0.5 * lengths.sum():
        pause[places] = 1
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
    until = c.open_until
    since = np.clip(since, np.minimum(c.sent, until), until)
    had = ~c.refused
    return np.concatenate([since[had], begin]), np.concatenate([until[had], end])


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


def _prompts(c: Columns, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    order = np.flatnonzero(c.answered)
    order = order[np.argsort(c.first[order], kind="stable")]
    first = c.first[order]
    tokens = np.concatenate([[0], np.cumsum((c.prompt - c.cached)[order])])
    until, since = (np.searchsorted(first, moment, "right") for moment in (end, begin))
    done: np.ndarray = (tokens[until] - tokens[since]).astype(float)
    return done


def _queued(c: Columns, moments: np.ndarray) -> np.ndarray:
    """Return how many requests waited for their first token then, whatever the server says that it did with them."""
    had = ~c.refused
    begun = np.searchsorted(np.sort(c.sent[had]), moments, "right")
    ended = np.searchsorted(np.sort(c.open_until[had]), moments, "right")
    queued: np.ndarray = begun - ended
    return queued


def _rate(since: np.ndarray, until: np.ndarray) -> float:
    """Return how often in a ns without waits one begins."""
    begins = np.sort(since)
    # The wait that ends last, of those that have begun.
    over = np.maximum.accumulate(until[np.argsort(since, kind="stable")])
    quiet = np.maximum(begins[1:] - over[:-1], 0)
    return float((quiet > 0).sum()) / max(float(quiet.sum()), 1.0)


# ---- whether gaps show the steps of one engine ----
#
# They don't where something collects chunks and passes them on together, where each stream is delivered at its own
# pace, and where several engines are behind one address. Then nothing calculated from gaps is a part of its own.


def in_groups(gaps: StreamGaps) -> bool:
    """Return whether many chunks came together with others of their stream."""
    grouped = gaps.chunks > 1
    return float(gaps.chunks[grouped].sum()) > _IN_GROUPS * float(gaps.chunks.sum())


def together(gaps: StreamGaps, hit: np.ndarray, excess: np.ndarray) -> bool:
    """Return whether streams get their chunks together and wait together."""
    return arrive_together(gaps) and wait_together(gaps, hit, excess)


def arrive_together(gaps: StreamGaps) -> bool:
    """Return whether most of a gap is silent for all streams."""
    shared = np.flatnonzero((gaps.streams > 1) & ~gaps.paused)
    if not len(shared):
        return True
    moments = np.sort(gaps.end)
    some = shared[:: -(-len(shared) // _LOOKED_AT)]
    since = np.searchsorted(moments, gaps.begin[some], "right")
    # All up to its end, but not its own.
    until = np.searchsorted(moments, gaps.end[some], "right") - 1
    scores = []
    for i, low, high in zip(some.tolist(), since.tolist(), until.tolist(), strict=True):
        if high <= low:
            continue
        inside = moments[low:high]
        edges = np.concatenate([[gaps.begin[i]], inside, [gaps.end[i]]])
        silence = float(np.diff(edges).max()) / max(float(edges[-1] - edges[0]), 1.0)
        by_chance = _longest_by_chance(len(inside))
        scores.append((silence - by_chance) / (1 - by_chance))
    return not scores or float(np.mean(scores)) >= _SILENCE_AT_LEAST


def _longest_by_chance(points: int) -> float:
    """Return the mean longest piece of a stretch that so many random points cut."""
    pieces = points + 1
    return float((1 / np.arange(1, pieces + 1)).sum()) / pieces


def is_little(excess: float, length: np.ndarray) -> bool:
    """Return whether a sum of stalls is so small that nothing confirms it."""
    return excess <= _LITTLE * float(length.sum())


def wait_together(gaps: StreamGaps, hit: np.ndarray, excess: np.ndarray) -> bool:
    """Return whether the streams of a gap that is longer than its steps waited, too."""
    length = gaps.length
    long = excess > (LONG - 1) * (length - excess)
    chosen = hit & long & (gaps.streams > 1)
    whole = float(excess[chosen].sum())
    if is_little(whole, length):
        return True
    middle = ((gaps.begin + gaps.end) // 2)[chosen]
    begun = np.searchsorted(np.sort(gaps.begin[long]), middle, "right")
    ended = np.searchsorted(np.sort(gaps.end[long]), middle, "right")
    share = (begun - ended - 1) / (gaps.streams[chosen] - 1)
    return float((excess[chosen] * share).sum()) >= _TOGETHER_AT_LEAST * whole
