"""Does an open loop send more than the server serves? Then requests pile up, and no later figure is worth anything."""

import numpy as np

from dyno.search.timeline import Requests

_PARTS = 24  # of the time: how much the backlog grows in each
_SURE, _MAYBE = 4.5, 2.0  # standard errors
_LEAST = 0.04  # of what is sent, that must pile up
_LONGER = 3.0  # standard errors by which later requests take longer than earlier ones


def in_flight(requests: Requests, times: np.ndarray) -> np.ndarray:
    """Return how many were open at these times."""
    sent = np.searchsorted(requests.sent, times, side="right")
    ended = np.searchsorted(np.sort(requests.end), times, side="right")
    return sent - ended


def grows(requests: Requests, from_s: float, now_s: float) -> bool:
    """Return whether the backlog grows without end: more and more in flight, because requests take longer and longer.

    In a server that only fills, requests take as long as before: lengths that vary never count as growth."""
    return (
        _growth(requests, from_s, now_s) > _SURE
        and longer(requests, from_s, now_s) > _LONGER
    )


def swells(requests: Requests, from_s: float, now_s: float) -> bool:
    """Return whether it may grow: then a rate is not shown to be served."""
    return (
        _growth(requests, from_s, now_s) > _MAYBE and longer(requests, from_s, now_s) > 1.0
    )


def _growth(requests: Requests, from_s: float, now_s: float) -> float:
    """Return by how many standard errors more was sent than served, throughout: in all of the time, and in its second
    half."""
    if now_s <= from_s:
        return 0.0
    open_ = in_flight(requests, np.linspace(from_s, now_s, _PARTS + 1))
    sent = int(
        np.searchsorted(requests.sent, now_s) - np.searchsorted(requests.sent, from_s)
    )
    more = np.diff(open_).astype(float)
    if more.sum() < _LEAST * sent:
        return 0.0
    # By how much neighbouring parts differ: a server that fills at first, then serves more, is no noise.
    # arrivals and ends at random, at least
    each = max(float((np.diff(more) ** 2).mean()) / 2, 2 * sent / _PARTS)
    half = more[_PARTS // 2 :]
    throughout = more.sum() / np.sqrt(_PARTS * each)
    later = np.sqrt(2) * half.sum() / np.sqrt(len(half) * each)
    return float(min(throughout, later))


def longer(requests: Requests, from_s: float, now_s: float) -> float:
    """Return by how many standard errors the requests sent last take longer than the ones sent first."""
    a, d = from_s + (now_s - from_s) / 3, from_s + 2 * (now_s - from_s) / 3
    early = (requests.sent >= from_s) & (requests.sent < a)
    if early.sum() < 8:
        return 0.0
    took = np.minimum(requests.end, now_s) - requests.sent
    usual = float(np.median(took[early]))
    late = (requests.sent >= d) & (requests.sent <= now_s - usual)
    if late.sum() < 8:  # what is open is older than usual
        late = (
            (requests.sent >= d - usual)
            & (requests.sent <= now_s - usual)
            & (requests.sent >= a)
        )
    if late.sum() < 8:
        return 0.0
    x, y = (took[early] > usual).mean(), (took[late] > usual).mean()
    count = min(early.sum(), late.sum()) / 4  # neighbours in a queue take long together
    return float((y - x) / np.sqrt(0.5 / count))
