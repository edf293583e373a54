"""Waiting until an engine rests: what an earlier load has left to do would be measured with the next one."""

import time
from collections.abc import Callable, Sequence

from dyno.errors import TargetError
from dyno.http import Client, Url
from dyno.probe.telemetry import metrics
from dyno.transport import DIRECT, Transport

WITHIN_S = 60.0
_LOOK_S = 0.2
_AT_REST_CORES = 0.1


def until_idle(
    urls: Sequence[str],
    headers: dict[str, str],
    via: Transport = DIRECT,
    cpu_s: Callable[[], float | None] = lambda: None,
    within_s: float = WITHIN_S,
) -> None:
    """By the engine's own metrics; by the CPU time of its processes where it has none and they are ours. Where neither
    is known, nothing is waited for. TargetError where it never rests."""
    clients = [Client(Url(url), headers, via, timeout_s=10) for url in urls]
    deadline = time.monotonic() + within_s
    try:
        while busy := _busy(clients, cpu_s):
            if time.monotonic() > deadline:
                raise TargetError(
                    f"{urls[0]} is not idle: {busy}, {within_s:g} s after the last of dyno's requests was answered. "
                    "Does somebody else use it?"
                )
            time.sleep(_LOOK_S)
    finally:
        for client in clients:
            client.close()


def _busy(clients: Sequence[Client], cpu_s: Callable[[], float | None]) -> str:
    """What it does, in words; empty: nothing."""
    told = [found for client in clients if (found := _requests(client)) is not None]
    if told:
        return f"it works on {sum(told):g} requests" if sum(told) else ""
    before = cpu_s()
    if before is None:
        return ""
    time.sleep(_LOOK_S)
    cores = ((cpu_s() or before) - before) / _LOOK_S
    return f"its processes use {cores:.1f} cores" if cores > _AT_REST_CORES else ""


def _requests(client: Client) -> float | None:
    """Running and waiting. None: it doesn't say."""
    try:
        status, answer = client.call("/metrics")
    except TargetError:
        return None
    found = metrics.read(answer) if status == 200 and isinstance(answer, str) else {}
    if "running_requests" not in found:
        return None
    return found["running_requests"] + found.get("waiting_requests", 0.0)
