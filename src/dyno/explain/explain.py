"""A run explained: its parts, and those of its slowest requests."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dyno.explain.bounds import HardwareBound
from dyno.explain.columns import NONE, Columns, columns
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
    c = c._replace(queue=silent, prefill=silent, decode=silent)
    return _explained(c, each.context._replace(telemetry=telemetry))


def _explained(c: Columns, context: RunContext) -> Explained:
    telemetry, client = context.telemetry, context.client
    preempted = telemetry.total("preemptions") if telemetry is not None else None
    trips = client.round_trips_ns if client is not None else []
    parts = split(c, context.bound, trips, None if preempted is None else round(preempted))
    happenings = Happenings(c, parts, client, context.samples)
    notes = list(parts.notes)
    each = totals(parts.parts, parts.latency)
    engines = telemetry.engines if telemetry is not None else []
    ended = int(c.completed.sum())
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
        tail=happenings.slowest(),
        notes=notes,
    )
    return Explained(explanation, c, parts, happenings, context)
