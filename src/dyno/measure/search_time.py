"""How long a search will take: roughly before its first probe, better after it, when a request's length is known."""

import math

import msgspec

from dyno.facts.find import FindSpec, SearchTime
from dyno.measure.judge import FEWEST, FILL_TIMES, steady_s_of

_STEP = 4.0  # from a load to the next while the answer is bracketed
_COARSE = 0.4  # a bracket as wide as this takes two long probes; half of it, two more


class Pace(msgspec.Struct, frozen=True):
    """How quick server and client are."""

    length_s: float  # of a request
    prompt_s: float = 0.002  # to make one
    start_s: float = 0.5  # of a probe: its processes, connections and files


class ProbeSizes(msgspec.Struct, frozen=True):
    """Requests of a probe."""

    needed: int  # by the percentile
    brief: int  # at most
    long: int


def search_time(spec: FindSpec, pace: Pace, sizes: ProbeSizes) -> SearchTime:
    """Estimate a whole search. The lower bound: the answer is near the start and clear. The upper one: it is far from
    there, and the loads near it are hard to decide."""
    low, high, start = spec.range
    steps = math.log(max(high / start, start / low)) / math.log(_STEP)
    finer = max(math.log2(_COARSE / spec.resolution), 0.0)
    briefs, longs = (2, 3 + math.ceil(min(steps, 3))), (1, 3 + math.ceil(2 * finer))
    if spec.over == "concurrency":
        briefs, longs = ((min(a, int(high - low) + 1), min(b, int(high - low) + 1)) for a, b in (briefs, longs))
    least = briefs[0] * _probe_s(spec, pace, sizes, True, 0.0) + longs[0] * _probe_s(spec, pace, sizes, False, 0.0)
    most = briefs[1] * _probe_s(spec, pace, sizes, True, 1.0) + longs[1] * _probe_s(spec, pace, sizes, False, 1.0)
    more_s = spec.confirm_s or 0.0
    return SearchTime(
        briefs[0] + longs[0], briefs[1] + longs[1], *(min(s, spec.budget_s) + more_s for s in (least, most))
    )


def _probe_s(spec: FindSpec, pace: Pace, sizes: ProbeSizes, brief: bool, hard: float) -> float:
    """`hard`: 0 of a load that is soon decided, 1 of one near the limit."""
    _, _, start = spec.range
    most = sizes.brief if brief else sizes.long
    fewest = min(max(FEWEST, sizes.needed), most)
    # A load near the limit ends at a third, when it is seen that the rest won't decide it.
    requests = fewest + hard * max((most if brief else most / 3) - fewest, 0)
    own_s = pace.start_s + pace.prompt_s * 1.2 * most
    if spec.over == "rate":
        fill_s = (1 + FILL_TIMES) * pace.length_s
        return own_s + fill_s + (requests / start / _STEP if brief else steady_s_of(pace.length_s) * (1 + hard / 4))
    rate = start / pace.length_s * (1 if hard else 2)  # a higher load is quicker, until the server is full
    return own_s + pace.length_s * 2 + requests / rate
