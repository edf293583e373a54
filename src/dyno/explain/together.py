"""Whether the gaps between chunks show the steps of one engine.

Where they don't, nothing that is calculated from gaps is a part of its own: chunks that something collects and passes
on together, streams that are delivered each at its own pace, and several engines behind one address.
"""

from typing import Literal

import numpy as np

from dyno.explain.gaps import StreamGaps

Unseen = Literal["", "groups", "apart"]
_IN_GROUPS = 0.1  # of the chunks, that came together with others of their stream
# Streams of one engine wait together: by that share of the others, weighted by the excess. Where less, chunks arrive
# too late to say what was waiting when they were made. A smaller excess than _LITTLE of the time shows neither.
_TOGETHER_AT_LEAST = 0.6
_LITTLE = 0.02
_LONG = 1.5  # times its steps: such a gap waited
# Chunks of one step arrive together, and then there is silence: of the way from chance (0) to one moment (1).
_SILENCE_AT_LEAST = 0.5
_LOOKED_AT = 2000  # gaps


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
    long = excess > (_LONG - 1) * (length - excess)
    chosen = hit & long & (gaps.streams > 1)
    whole = float(excess[chosen].sum())
    if is_little(whole, length):
        return True
    middle = ((gaps.begin + gaps.end) // 2)[chosen]
    begun = np.searchsorted(np.sort(gaps.begin[long]), middle, "right")
    ended = np.searchsorted(np.sort(gaps.end[long]), middle, "right")
    share = (begun - ended - 1) / (gaps.streams[chosen] - 1)
    return float((excess[chosen] * share).sum()) >= _TOGETHER_AT_LEAST * whole
