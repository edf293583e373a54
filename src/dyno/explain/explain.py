"""A run explained: its parts, and those of its slowest requests."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dyno.explain.bounds import HardwareBound
from dyno.explain.claims import SLACK
from dyno.explain.columns import CLAIMS, NONE, Columns, columns
from dyno.explain.events import Happenings, groups
from dyno.explain.split import PartColumn, Split, split, title_of
from dyno.facts.explanation import Explanation, Part, PartSource
from dyno.facts.record import ClientFacts, Record
from dyno.facts.telemetry import EngineTelemetry, Sample, TelemetrySummary
from dyno.numbers import number
from dyno.units import NS_PER_MS, NS_PER_S

_COUNTS_DIFFER = 0.01  # of a histogram's requests and those of the load


class RunContext(NamedTuple):
    """What is known of a run besides its records."""

    run: str
    title: str = ""
    client: ClientFacts | None = None
    bound: HardwareBound | None = None
    telemetry: TelemetrySummary | None = None
    samples: Sequence[Sample] = ()


class Explained(NamedTuple):
    """A run's parts, with the columns that they are made of."""

    explanation: Explanation
    columns: Columns  # with all that the server says
    split: Split
    happenings: Happenings
    context: RunContext

    @property
    def has_claims(self) -> bool:
        """Return whether a part is what the server reports."""
        return any("claimed" in p.sources for p in self.explanation.parts)


def explain(records: Iterable[Record], context: RunContext) -> Explained:
    return _explained(columns(records), context)


def without_claims(each: Explained) -> Explained:
    """Return the same without what the server reports of its times."""
    c, telemetry = each.columns, each.context.telemetry
    silent = np.full_like(c.queue, NONE)
    if telemetry is not None:
        engines = [
            msgspec.structs.replace(e, timed_requests=None) for e in telemetry.engines
        ]
        telemetry = msgspec.structs.replace(telemetry, engines=engines)
    c = c._replace(**dict.fromkeys(CLAIMS, silent))
    return _explained(c, each.context._replace(telemetry=telemetry))


def _explained(c: Columns, context: RunContext) -> Explained:
    telemetry, client = context.telemetry, context.client
    preempted = telemetry.total("preemptions") if telemetry is not None else None
    trips = client.round_trips_ns if client is not None else []
    parts = split(c, context.bound, trips, None if preempted is None else round(preempted))
    happenings = Happenings(parts, client, context.samples)
    notes = list(parts.notes)
    each = totals(parts.parts, parts.latency)
    engines = telemetry.engines if telemetry is not None else []
    ended = int(c.completed.sum())
    notes += _counted_steps(telemetry)
    tail = happenings.slowest()
    explanation = Explanation(
        run=context.run,
        title=context.title,
        requests=ended,
        failed=int(c.failed.sum()),
        left_out=int((~c.completed & ~c.failed).sum()),
        output_tokens=int(c.output[parts.rows].sum()),
        latency_ns=int(parts.latency.sum()),
        parts=with_histograms(each, engines, ended, notes),
        request_parts=each,
        tail=tail,
        tail_groups=[[r.index for r in group] for group in groups(tail)],
        notes=notes,
    )
    return Explained(explanation, c, parts, happenings, context)


def _counted_steps(telemetry: TelemetrySummary | None) -> list[str]:
    """Return the engine's own count of its steps, beside which the time between tokens can be read."""
    steps = telemetry.total("steps") if telemetry is not None else None
    each = telemetry.ratio("step_tokens", "steps") if telemetry is not None else None
    if steps is None or each is None:
        return []
    return [
        f"The engine counts {round(steps):,} steps with {number(each, digits=3)} tokens each, of prompts and answers."
    ]


# ---- all requests together, and what the server reports of all of them ----


def totals(parts: Sequence[PartColumn], latency: np.ndarray) -> list[Part]:
    whole = int(latency.sum())
    count = max(len(latency), 1)
    out = []
    for p in parts:
        total = int(p.value.sum())
        low, high = p.sums
        share = total / whole if whole else 0.0
        mean_ms = total / count / NS_PER_MS
        out.append(
            Part(
                p.name,
                p.title,
                [*p.covers],
                [*p.sources],
                p.about,
                total,
                min(low, total),
                max(high, total),
                mean_ms,
                share,
            )
        )
    return out


def with_histograms(
    parts: list[Part], engines: Sequence[EngineTelemetry], requests: int, notes: list[str]
) -> list[Part]:
    """Split parts further by what the server reports of all requests together."""
    reports = [e for e in engines if e.timed_requests]
    if not reports or any(p.covers == ["queue"] for p in parts):
        return parts
    counted = sum(e.timed_requests or 0 for e in reports)
    if abs(counted - requests) > max(1, _COUNTS_DIFFER * requests):
        notes.append(
            f"The server's histograms have {counted:,} requests, the load {requests:,}: they are not used."
        )
        return parts
    first = _cut(parts, ("queue", "prefill"), reports, requests, notes)
    return _cut(first, ("decode",), reports, requests, notes)


def _cut(
    parts: list[Part],
    names: Sequence[str],
    reports: Sequence[EngineTelemetry],
    requests: int,
    notes: list[str],
) -> list[Part]:
    """Cut what the histograms of these names report out of the part that covers them."""
    for name in names:
        values = [getattr(e, f"{name}_s") for e in reports]
        if None in values:
            continue
        counted = sum(e.timed_requests or 0 for e in reports)
        said = round(sum(values) / counted * requests * NS_PER_S)
        parts = _cut_one(parts, name, said, requests, notes)
    return parts


# What is known to be a part of a histogram's time already: the bound, pauses and stalls.
_INSIDE = {
    "queue": set[str](),
    "prefill": {"prefill_bound"},
    "decode": {"decode_bound", "stall", "preemption"},
}
_OWN = {
    "queue": ("queue",),
    "prefill": ("prefill_bound", "prefill_above"),
    "decode": ("decode_bound", "decode_above", "stall", "preemption"),
}
_MAIN = {"queue": "queue", "prefill": "prefill_above", "decode": "decode_above"}


def _cut_one(
    parts: list[Part], name: str, said: int, requests: int, notes: list[str]
) -> list[Part]:
    whole = next((p for p in parts if _MAIN[name] in p.covers), None)
    if whole is None or {*whole.covers} <= {*_OWN[name]}:
        return parts
    known = [p for p in parts if p is not whole and {*p.covers} & _INSIDE[name]]
    mine = said - sum(p.total_ns for p in known)
    if not 0 <= mine <= whole.total_ns * (1 + SLACK):
        notes.append(
            f"The server's histogram of {name} doesn't fit what was measured: it is not used."
        )
        return parts
    place = parts.index(whole)
    return [
        *parts[:place],
        *_halves(whole, known, name, said, requests),
        *parts[place + 1 :],
    ]


def _halves(
    whole: Part, known: Sequence[Part], name: str, said: int, requests: int
) -> list[Part]:
    """Return what the server says of a part, without the known parts in it, and what that leaves."""
    mine = min(said - sum(p.total_ns for p in known), whole.total_ns)
    covers = [atom for atom in whole.covers if atom in _OWN[name]]
    left = [atom for atom in whole.covers if atom not in covers]
    about = f"the server reports it of all requests together ({name})"
    # What the server says includes the known parts. They may be larger, and it smaller: what is left stays the same.
    least, most = sum(p.low_ns for p in known), sum(p.high_ns for p in known)
    sources: list[PartSource] = ["claimed", "calculated"] if known else ["claimed"]
    rest = whole.low_ns + most - said, whole.total_ns - mine, whole.high_ns + least - said
    return [
        _piece(whole, covers, sources, about, (said - most, mine, said - least), requests),
        _piece(whole, left, ["calculated"], whole.about, rest, requests),
    ]


def _piece(
    whole: Part,
    covers: list[str],
    sources: list[PartSource],
    about: str,
    bounds: tuple[int, int, int],
    requests: int,
) -> Part:
    """`bounds`: at least, likely and at most, ns."""
    low, total, high = bounds
    return Part(
        "+".join(covers),
        title_of(covers),
        covers,
        sources,
        about,
        total,
        min(max(low, 0), total),
        max(min(high, whole.high_ns), total),
        total / max(requests, 1) / NS_PER_MS,
        whole.share * total / whole.total_ns if whole.total_ns else 0.0,
    )
