"""A run explained: its parts, and those of its slowest requests."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dyno.explain.bounds import HardwareBound
from dyno.explain.columns import Columns, columns
from dyno.explain.events import Happenings
from dyno.explain.split import Split, split
from dyno.explain.totals import totals, with_histograms
from dyno.facts.explanation import Explanation
from dyno.facts.record import ClientFacts, Record
from dyno.facts.telemetry import Sample, TelemetrySummary


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
    columns: Columns
    split: Split
    happenings: Happenings


def explain(records: Iterable[Record], facts: RunContext) -> Explained:
    c = columns(records)
    telemetry, client = facts.telemetry, facts.client
    preempted = telemetry.total("preemptions") if telemetry is not None else None
    trips = client.round_trips_ns if client is not None else []
    parts = split(c, facts.bound, trips, None if preempted is None else round(preempted))
    happenings = Happenings(c, parts, client, facts.samples)
    notes = list(parts.notes)
    each = totals(parts.parts, parts.latency)
    engines = telemetry.engines if telemetry is not None else []
    ended = int(c.completed.sum())
    explanation = Explanation(
        run=facts.run,
        title=facts.title,
        requests=ended,
        failed=int(c.failed.sum()),
        left_out=int((~c.completed & ~c.failed).sum()),
        output_tokens=int(c.output[parts.rows].sum()),
        latency_ns=int(parts.latency.sum()),
        parts=with_histograms(each, engines, ended, notes),
        request_parts=each,
        tail=happenings.slowest(),
        notes=notes,
    )
    return Explained(explanation, c, parts, happenings)
