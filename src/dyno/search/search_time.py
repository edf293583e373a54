"""How long a search will take: roughly before its first probe, better after it, when a request's length is known."""

import math

import msgspec

from dyno.facts.find import FindSpec, SearchTime
from dyno.measure.statistics import samples_needed
from dyno.search.judge import (
    FEWEST,
    FILL_ENDS,
    LEAST_S,
    LENGTHS,
    OPEN_FILL_LENGTHS,
    OPEN_LEAST_S,
    OPEN_LENGTHS,
    WAVES,
)

_STEP = 4.0  # from a load to the next while the answer is bracketed
_VISITS = 4  # of the two ends, each twice
# Times as long as a probe lasts at least: a visit near the limit, and one that is hard to decide.
_LONG, _HARD = 2.0, 8.0


class Pace(msgspec.Struct, frozen=True):
    """How quick server and client are."""

    length_s: float  # of a request
    prompt_s: float = 0.002  # to make one
    start_s: float = 0.7  # of a probe: its processes, connections and files


def search_time(spec: FindSpec, pace: Pace) -> SearchTime:
    """Estimate a whole search. The lower bound: the answer is near the start and clear. The upper one: it is far from
    there, and the loads near it are hard to decide."""
    low, high, start = spec.range
    steps = math.log(max(high / start, start / low)) / math.log(_STEP)
    briefs_least, briefs_most = 2, 3 + math.ceil(min(steps, 3))
    longs_least, longs_most = 2, _VISITS + 4
    if spec.over == "concurrency":
        width = int(high - low)  # whole loads: of a few, no more than these can be tried
        briefs_least, briefs_most = (
            min(briefs_least, width + 1),
            min(briefs_most, 2 * width + 2),
        )
        longs_least, longs_most = (
            min(longs_least, width + 1),
            min(longs_most, 2 * width + 2),
        )
    probe_s = _probe_s(spec, pace)
    least_s = (briefs_least + longs_least) * probe_s
    most_s = briefs_most * _LONG * probe_s + longs_most * _HARD * probe_s
    more_s = spec.confirm_s or 0.0
    return SearchTime(
        briefs_least + longs_least,
        briefs_most + longs_most,
        min(least_s, spec.budget_s) + more_s,
        min(most_s, spec.budget_s) + more_s,
    )


def _probe_s(spec: FindSpec, pace: Pace) -> float:
    """Return how long the shortest probe takes."""
    start = spec.range[2]
    needed = max(samples_needed(limit.percentile or 50.0) for limit in spec.limits)
    length_s = pace.length_s
    if spec.over == "rate":
        load_s = OPEN_FILL_LENGTHS * length_s + max(
            OPEN_LEAST_S, OPEN_LENGTHS * length_s, needed / start / _STEP
        )
        return pace.start_s + load_s + pace.prompt_s * start * load_s
    rate = start * _STEP / length_s
    requests = max(FEWEST, needed, WAVES * start * _STEP) + FILL_ENDS * start * _STEP
    return (
        pace.start_s
        + max(requests / rate, LEAST_S, LENGTHS * length_s)
        + pace.prompt_s * requests
    )
