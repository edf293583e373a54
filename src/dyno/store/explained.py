"""A stored run, explained: its records with the facts that say where their time went."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dyno.explain.bounds import hardware_bound
from dyno.explain.explain import Explained, RunContext, explain
from dyno.explain.split import PartColumn
from dyno.facts.record import Record
from dyno.facts.telemetry import Sample
from dyno.store.run import Run
from dyno.units import NS_PER_MS

# The tables of `dyno sql`: column → its type and meaning.
PARTS = {
    "run": ("VARCHAR", "folder of the run; the same in every table"),
    "part": (
        "VARCHAR",
        "what it covers: queue, or queue+prefill_above where these can't be separated",
    ),
    "title": ("VARCHAR", "the same in words"),
    "source": ("VARCHAR", "measured, claimed (by the server), calculated"),
    "share": ("DOUBLE", "share of the latency of all requests"),
    "mean_ms": ("DOUBLE", "mean over the requests"),
    "low_ms": ("DOUBLE", "lower bound of the mean"),
    "high_ms": ("DOUBLE", "upper bound of the mean"),
}
REQUEST_PARTS = {
    "run": PARTS["run"],
    "index": ("BIGINT", "number of the request"),
    "part": PARTS["part"],
    "ms": ("DOUBLE", "time of this part"),
    "low_ms": ("DOUBLE", "lower bound"),
    "high_ms": ("DOUBLE", "upper bound"),
}


def explained(
    run: Run,
    title: str = "",
    samples: Sequence[Sample] = (),
    records: Iterable[Record] | None = None,
) -> Explained:
    """`records`: where they have been read already."""
    manifest, result = run.manifest(), run.result()
    trial = manifest.trial
    bound = hardware_bound(
        manifest.model,
        trial.engine,
        manifest.target,
        manifest.peaks,
        result.telemetry,
        run.forward(),
    )
    facts = RunContext(str(run.path), title, run.client(), bound, result.telemetry, samples)
    return explain(run.records() if records is None else records, facts)


def part_rows(each: Explained) -> Iterator[dict[str, Any]]:
    e = each.explanation
    count = max(e.requests, 1) * NS_PER_MS
    for p in e.parts:
        yield {
            "run": e.run,
            "part": p.name,
            "title": p.title,
            "source": ", ".join(p.sources),
            "share": p.share,
            "mean_ms": p.mean_ms,
            "low_ms": p.low_ns / count,
            "high_ms": p.high_ns / count,
        }


def request_rows(each: Explained) -> Iterator[dict[str, Any]]:
    numbers = each.columns.number[each.split.rows].tolist()
    for part in each.split.parts:
        yield from _of_requests(each.explanation.run, numbers, part)


def _of_requests(
    run: str, numbers: list[int], part: PartColumn
) -> Iterator[dict[str, Any]]:
    columns = (part.value, part.low, part.high)
    values = zip(numbers, *((c / NS_PER_MS).tolist() for c in columns), strict=True)
    for number, ms, low_ms, high_ms in values:
        yield {
            "run": run,
            "index": number,
            "part": part.name,
            "ms": ms,
            "low_ms": low_ms,
            "high_ms": high_ms,
        }
