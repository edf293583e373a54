"""Slow requests of one wave have the same parts and the same neighbours: they are one group."""

from collections.abc import Sequence

from dyno.facts.explanation import Incident, RequestParts

_PARTS_WITHIN = 0.1  # of the longer latency: each part
_EVENTS_WITHIN = 0.5  # of the longer event: begin and end


def groups(requests: Sequence[RequestParts]) -> list[list[RequestParts]]:
    """Return the requests in groups, each led by its slowest one, in the order of these."""
    out: list[list[RequestParts]] = []
    for each in sorted(requests, key=lambda r: -r.latency_ms):
        mine = next((group for group in out if are_alike(group[0], each)), None)
        if mine is None:
            out.append([each])
        else:
            mine.append(each)
    return out


def are_alike(a: RequestParts, b: RequestParts) -> bool:
    """Return whether two requests have the same parts, and events at the same time."""
    near = _PARTS_WITHIN * max(a.latency_ms, b.latency_ms)
    names = {*a.parts_ms, *b.parts_ms}
    parts = (abs(a.parts_ms.get(n, 0.0) - b.parts_ms.get(n, 0.0)) for n in names)
    if max(parts, default=0.0) > near or len(a.events) != len(b.events):
        return False
    return all(map(_same_event, a.events, b.events))


def _same_event(a: Incident, b: Incident) -> bool:
    near = _EVENTS_WITHIN * max(a.length_s, b.length_s)
    begin, end = a.at_s - b.at_s, a.at_s + a.length_s - b.at_s - b.length_s
    return a.kind == b.kind and max(abs(begin), abs(end)) <= near
