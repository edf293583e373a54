"""Checks over rows: what others told, and dyno's own runs beside them."""

from collections.abc import Callable, Iterator, Sequence

from dyno.checks.rows import answers, cache, comparability, consistency, load, repetition, statistics
from dyno.facts.finding import Finding
from dyno.facts.imported import Row

# Of a row by itself. A run of dyno's own was examined with all its records when it was measured: it needs the first.
POSSIBLE: tuple[Callable[[Row], Iterator[Finding]], ...] = (
    consistency.sums,
    consistency.percentiles,
    consistency.tail_below_mean,
    consistency.end_before_first,
    consistency.latencies,
    consistency.in_flight,
    consistency.zero_first_token,
    consistency.peak,
    consistency.two_runs,
    consistency.price,
    consistency.rate_exceeds,
    consistency.beyond_the_run,
    consistency.batch_counts,
)
ROW: tuple[Callable[[Row], Iterator[Finding]], ...] = (
    answers.failed,
    answers.more_than_asked,
    answers.empty,
    answers.zeros_in_mean,
    answers.errors_among_successes,
    answers.counted_again,
    answers.lengths,
    *POSSIBLE,
    load.rate,
    load.not_sent,
    load.queue,
    load.slots,
    statistics.few_samples,
    statistics.ramp,
    statistics.unsteady,
    statistics.drift,
    statistics.first_iteration,
)
# Of rows beside each other; physics.roofline needs the machines' peaks too.
ROWS: tuple[Callable[[Sequence[Row]], Iterator[Finding]], ...] = (
    comparability.work,
    comparability.success,
    comparability.dropped,
    comparability.loads,
    comparability.models,
    comparability.accelerators,
    comparability.definitions,
    load.overload,
    load.saturated,
    statistics.single_run,
    statistics.repeats,
    statistics.within_error,
    repetition.copies,
    repetition.twins,
    repetition.multiples,
    cache.warm,
    cache.hits,
    cache.later_faster,
)
