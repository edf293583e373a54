"""What a slice on another machine reports: bytes, which are read here with bounds.

Ray unpickles what its nodes send before dyno sees it. dyno's own messages need none of that: they are msgpack.
"""

import math
from collections import deque
from typing import Any

import msgspec

from dyno.facts.record import ClientFacts
from dyno.load.process import SliceFailure
from dyno.load.progress import RECENT, Progress
from dyno.numbers import human_bytes
from dyno.visible import one_line

RELAY_BYTES = 1 << 24  # of a spool, in one answer
_MOST_BYTES = RELAY_BYTES + (1 << 26)  # facts have a number for each tenth of a second
_TIME_END_NS = 1 << 62  # 146 years: sums and differences of two such times fit into 64 bits
_LONGEST_WORDS = 300
_OUTCOMES = ("complete", "interrupted", "server gone", "all failed", "lost")


class NotUnderstood(ValueError):
    """An answer that no honest node gives. Its text says why, without a point at its end."""


class Relay(msgspec.Struct, frozen=True):
    """The state of a slice's process, and what was added to its spool."""

    ready: bool
    progress: Progress
    facts: ClientFacts | None
    failure: SliceFailure | None
    spool: bytes


def _recent(_: type, times: Any) -> deque[int]:
    return deque(msgspec.convert(times, list[int]), RECENT)


encoded = msgspec.msgpack.Encoder(enc_hook=list).encode
_decode = msgspec.msgpack.Decoder(Relay, dec_hook=_recent).decode


def decoded(answer: object, requests: int) -> Relay:
    """Read an answer. `requests`: how many the slice has. Raise NotUnderstood."""
    if type(answer) is not bytes:
        raise NotUnderstood("it answered an object, where dyno's nodes answer bytes")
    if len(answer) > _MOST_BYTES:
        raise NotUnderstood(f"it answered {human_bytes(len(answer))} at once")
    try:
        relay = _decode(answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        raise NotUnderstood(
            f"its report can't be read ({one_line(str(e))[:_LONGEST_WORDS]})"
        ) from None
    if len(relay.spool) > RELAY_BYTES:
        raise NotUnderstood(f"it sent {human_bytes(len(relay.spool))} of its spool at once")
    _check_numbers(relay.progress)
    relay.progress.count = requests
    return (
        relay
        if relay.facts is None
        else msgspec.structs.replace(relay, facts=_own(relay.facts, requests))
    )


def is_time(value: object) -> bool:
    """Return whether this can be the time of a monotonic clock."""
    return type(value) is int and 0 <= value < _TIME_END_NS


def _own(facts: ClientFacts, requests: int) -> ClientFacts:
    """Return what a process can know of itself. The rest (its node, its clock, others) is known here."""
    _check_numbers(facts)
    if facts.outcome not in _OUTCOMES:
        raise NotUnderstood(f"its outcome is {one_line(facts.outcome)[:_LONGEST_WORDS]!r}")
    for name in ("planned", "sent", "skipped"):
        if not 0 <= getattr(facts, name) <= requests:
            raise NotUnderstood(
                f"of {requests} requests it counts {getattr(facts, name)} as {name}"
            )
    if (
        not is_time(facts.start_ns)
        or not is_time(facts.end_ns)
        or facts.end_ns < facts.start_ns
    ):
        raise NotUnderstood(
            f"its load began at {facts.start_ns} ns and ended at {facts.end_ns} ns"
        )
    if (
        facts.reads < 0
        or facts.cpu_s < 0
        or any(not 0 <= exchange < requests for exchange in facts.unasked)
    ):
        raise NotUnderstood(
            "its reads, its processor time or its numbers of requests can't be"
        )
    words = one_line(facts.priority)[:_LONGEST_WORDS]
    return msgspec.structs.replace(
        facts,
        priority=words,
        others_cpu=None,
        round_trips_ns=[],
        processes=[],
        node="",
        clock=None,
    )


def _check_numbers(report: msgspec.Struct) -> None:
    """Refuse numbers that can't be stored or calculated with."""
    for name in report.__struct_fields__:
        value = getattr(report, name)
        for number in value if isinstance(value, list | deque) else [value]:
            if isinstance(number, int | float) and not (
                math.isfinite(number) and abs(number) < _TIME_END_NS
            ):
                raise NotUnderstood(f"its {name} has {number}")
