"""Are there enough samples, and is a difference more than noise?"""

import math
import re
from collections.abc import Iterator, Sequence
from statistics import fmean, median, stdev

from msgspec.structs import replace

from dyno.checks.evidence import Circumstances, Evidence, OfflineEvidence
from dyno.facts.finding import Finding, Level, doubt, note
from dyno.facts.imported import Row
from dyno.facts.metric import TOKEN_THROUGHPUTS, words
from dyno.measure.points import (
    ASIDE,
    counters,
    finite_rate,
    identified,
    in_flight,
    key,
    load_of,
    locations,
    subject,
)
from dyno.measure.scores import items_of
from dyno.measure.statistics import samples_needed
from dyno.numbers import change, deviating, many, number, percent

SHORT_S, ENOUGH_S = 5.0, 30.0
FULL = 0.8  # of the streams
EACH, DRIFT = 30, 1.5  # requests in a third; ratio of medians
FIRST = 1.2  # repetition, over the others
SPREAD, WILD = 0.05, 0.2  # deviation over mean, of repeated tests
FEW_ITERATIONS = 3  # fewer have no useful deviation
DEVIATIONS, SLOWER, MUCH_SLOWER = 3.0, 0.02, 0.05
OTHERS = 4  # iterations after the first: fewer have no reliable deviation
UNSTEADY = 0.1
UNLIKE = 0.1  # deviation over mean: more than an engine varies on an otherwise idle machine
# A setting that says how many runs a result is the mean of.
_RUNS = re.compile(
    r"(?:num(?:ber)?[ _](?:of[ _])?|n[ _])?(?:runs|repeats|repetitions|trials|iterations|iters|reps)",
    re.I,
)
UNKNOWN = "run-to-run variation is unknown."


# Notes that a short run has begin with what was seen, before a colon: one line joins these beginnings.


def few_samples(e: Evidence | Row) -> Iterator[Finding]:
    """A percentile has too few samples above it."""
    lines: list[str] = []
    if isinstance(e, Row):
        count = (e.get("completed") or 0) if e.kind == "serve" else 0
        asked = _high_percentiles(e)
        lines = locations([e], *(f"p{p:g}_ttft_ms" for p in asked[-1:]), "completed")
    else:
        count, asked = e.summary.ttft.count, list(e.trial.percentiles)
    short = [p for p in asked if 0 < count < samples_needed(p)]
    if short:
        highest = max(short, key=samples_needed)
        needed = samples_needed(highest)
        names = ", ".join(f"p{p:g}" for p in short)
        are = "is an estimate" if len(short) == 1 else "are estimates"
        text = f"{names} of {count:,.0f} requests {are}: p{highest:g} needs {needed:,} samples at 99 % confidence."
        advice = f"Send at least {needed:,} requests (--num-prompts {needed}), or report a lower percentile."
        yield note("statistics.few_samples", text, advice, lines)


def _high_percentiles(row: Row) -> list[float]:
    """Return which percentiles above the median a row has, of latencies with one sample per request."""
    percentiles = set()
    for name in row.figures:
        is_percentile = name[0] == "p" and name[1:2].isdigit() and name.endswith("_ms")
        if is_percentile and "_itl_" not in name:
            percentiles.add(float(name[1:].partition("_")[0]))
    return sorted(p for p in percentiles if p > 50)


def short(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.completed and s.duration_s < SHORT_S:
        enough = math.ceil(s.sent * ENOUGH_S / max(s.duration_s, 0.01) / 10) * 10
        yield note(
            "statistics.short",
            f"The load lasted {number(s.duration_s)} s ({s.sent:,} requests): too short to average out variation.",
            f"Send more requests (--num-prompts {enough}), or for longer (--duration {ENOUGH_S:.0f}).",
        )


def ramp(e: Evidence | Row) -> Iterator[Finding]:
    """A short run is ramp-up and drain: fewer requests were open than requested."""
    if isinstance(e, Row):
        yield from _ramp_of_row(e)
        return
    s = e.summary
    if s.completed <= 1 or e.trial.replays:
        return
    if s.whole:  # when its tokens came isn't known
        return
    share = (s.steady.end_s - s.steady.start_s) / s.duration_s if s.steady else 0.0
    if share < 0.5:
        yield note(
            "statistics.ramp_and_drain",
            f"Only {percent(share)} of the run was at steady load.",
        )


def _ramp_of_row(row: Row) -> Iterator[Finding]:
    asked, done, streams = (
        row.number("concurrency"),
        row.get("completed"),
        in_flight(row, "mean_itl_ms"),
    )
    if row.kind != "serve" or not done or streams is None:
        return
    if asked and asked >= 2 and streams < FULL * asked:
        each = f"{done:,.0f} requests, {number(done / asked, digits=2)} per slot"
        text = f"{number(streams)} requests were in flight on average at concurrency {asked:,g} ({each})."
        lines = locations([row], "request_throughput", "completed")
        yield note("statistics.ramp_and_drain", text, locations=lines)


def single_run(e: Circumstances) -> Iterator[Finding]:
    if e.completed and e.repeats < 2:
        yield note("statistics.single_run", f"Single run: {UNKNOWN}")


def single_runs(rows: Sequence[Row]) -> Iterator[Finding]:
    """No setting of a file was measured more than once."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        # of its own dyno knows the repeats
        if row.kind in ("serve", "throughput") and row.form != "run":
            by_file.setdefault(row.file, []).append(row)
    single = {
        file: rows
        for file, rows in by_file.items()
        if _all_differ(rows) and not any(map(_repeated, rows))
    }
    if single:
        files = ", ".join(list(single)[:3])
        if len(single) > 3:
            files += f" and {len(single) - 3} more"
        count = sum(map(len, single.values()))
        runs = (
            f"All {count:,} results in {files} are single runs"
            if count > 1
            else f"{files} has a single run"
        )
        yield note("statistics.single_run", f"{runs}: {UNKNOWN}")


def _all_differ(rows: Sequence[Row]) -> bool:
    """Return whether no two rows have the same settings and load."""
    return len({(_without_counters(r), load_of(r)) for r in rows}) == len(rows)


def _without_counters(row: Row) -> tuple[object, ...]:
    """Return a row's settings without numbering: a list of runs may number each of them."""
    numbering = counters(row)
    return key(
        replace(row, settings={k: s for k, s in row.settings.items() if k not in numbering})
    )


def _repeated(row: Row) -> bool:
    """Return whether a result is itself the mean of several runs: it has a deviation, or says how many there were."""
    if any(figure.deviation is not None for figure in row.figures.values()):
        return True
    if (
        row.samples is not None
        and max(len(row.samples.speeds), len(row.samples.latencies("latency"))) > 1
    ):
        return True
    runs = (row.number(name) for name in row.settings if _RUNS.fullmatch(name.strip()))
    return any(n is not None and n > 1 for n in runs)


def few_iterations(e: OfflineEvidence) -> Iterator[Finding]:
    if e.offline.iterations < FEW_ITERATIONS:
        flag = "-r" if e.offline.kind == "micro" else "--num-iters"
        text = f"Measured with {many(e.offline.iterations, 'iteration')}: {UNKNOWN}"
        yield note(
            "statistics.few_iterations",
            text,
            f"Measure at least three ({flag}; iterations in a study).",
        )


def first_iteration(e: OfflineEvidence | Row) -> Iterator[Finding]:
    """The first use compiles, captures or pages in; later ones don't."""
    lines: list[str] = []
    level: Level = "note"
    if isinstance(e, Row):
        times = (
            e.samples.latencies("latency")
            if e.samples and e.kind in ("latency", "micro")
            else []
        )
        if len(times) < 3:
            return
        usual, lines = median(times[1:]), locations([e], "mean_latency_ms", "speed")
        limit = FIRST * usual
    else:
        times = e.latencies_ms
        if len(times) <= OTHERS:
            return
        usual = fmean(times[1:])
        limit = max(usual + DEVIATIONS * stdev(times[1:]), (1 + SLOWER) * usual)
        level = "doubt" if times[0] > (1 + MUCH_SLOWER) * usual else "note"
    if usual > 0 and times[0] > limit:
        text = f"The first of {len(times)} iterations took {number(times[0])} ms, the others about {number(usual)}."
        yield Finding("statistics.first_iteration", level, text, locations=lines)


def unsteady(e: OfflineEvidence | Row) -> Iterator[Finding]:
    """Repeated measurements of one figure deviate much from their mean."""
    if isinstance(e, Row):
        yield from _unsteady_row(e)
    elif len(e.latencies_ms) >= FEW_ITERATIONS:
        mean, deviation = fmean(e.latencies_ms), stdev(e.latencies_ms)
        if mean > 0 and deviation > UNSTEADY * mean:
            yield doubt(
                "statistics.unsteady", f"Iterations: {_spread(mean, deviation, 'ms')}."
            )


def _unsteady_row(row: Row) -> Iterator[Finding]:
    known = [str(v) for v in (row.setting("model") or row.label, row.setting("test")) if v]
    name = " ".join(known) or row.file
    for figure_name in ("speed", *TOKEN_THROUGHPUTS):
        figure = row.figures.get(figure_name)
        if figure is None or not figure.deviation or figure.value <= 0:
            continue
        if figure.deviation > SPREAD * figure.value:
            text = f"{name}: {_spread(figure.value, figure.deviation, 'tok/s')}."
            level: Level = "doubt" if figure.deviation > WILD * figure.value else "note"
            yield Finding(
                "statistics.unsteady", level, text, locations=locations([row], figure_name)
            )


def _spread(mean: float, deviation: float, unit: str) -> str:
    return f"{deviating(mean, deviation)} {unit} ({percent(deviation / mean)} of the mean)"


def drift(row: Row) -> Iterator[Finding]:
    """First tokens of early and late requests differ, in the order of sending."""
    s, asked = row.samples, row.number("concurrency")
    if row.kind != "serve" or s is None or not asked or finite_rate(row):
        return  # under a rate a queue grows: load.rate_not_reached
    # the first come all at once
    begun = [t for t in s.latencies("ttft")[int(asked) :] if t > 0]
    third = len(begun) // 3
    if third < EACH:
        return
    early, late = median(begun[:third]), median(begun[-third:])
    if max(early, late) > DRIFT * min(early, late):
        text = f"The median TTFT is {number(early)} ms in the first third of the run and {number(late)} in the last."
        yield note("statistics.drift", text, locations=locations([row], "median_ttft_ms"))


def repeats(rows: Sequence[Row]) -> Iterator[Finding]:
    """Repeats of one setting under one load differ widely."""
    for same in _repeats(rows):
        wide = []
        for name in (
            "output_throughput",
            "mean_ttft_ms",
            "mean_tpot_ms",
            "p99_ttft_ms",
            "p99_tpot_ms",
        ):
            values = _values(same, name)
            if len(values) == len(same) and max(values) > 1.2 * min(values):
                wide.append(_range(words(name), values))
        if wide:
            counted = all(map(counters, same))  # labelled as repeats
            speeds = _values(same, "output_throughput")
            far: Level = (
                "doubt"
                if counted and speeds and max(speeds) > 1.5 * min(speeds)
                else "note"
            )
            text = (
                f"The {len(same)} repeats of {subject(same[0])} differ: {'; '.join(wide)}."
            )
            yield Finding(
                "statistics.repeats_differ",
                far,
                text,
                locations=locations(same, "duration_s"),
            )


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [value for row in rows if (value := row.get(name))]


def _repeats(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the results that repeat one setting under one load. Those with one duration are one result."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        # Without a model or a number, six results may be six models.
        if (
            row.kind == "serve"
            and row.form in ("block", "json", "csv")
            and load_of(row).level
            and identified(row)
        ):
            same_prompts = round(row.get("total_input_tokens") or 0, -2)
            where = row.file if row.form != "json" else ""
            groups.setdefault(
                (where, _effective(row), load_of(row), same_prompts), []
            ).append(row)
    for same in groups.values():
        if len({r.get("duration_s") for r in same}) > 1:
            yield same


def unlike_repeats(trial: tuple[str, Sequence[float]]) -> Iterator[Finding]:
    """Repeats of a trial differ, by its name and the speed of each repeat in tokens/s."""
    name, speeds = trial
    if len(speeds) > 1 and stdev(speeds) > UNLIKE * fmean(speeds):
        text = f"The {len(speeds)} repeats of {name} differ: {_range('tok/s', speeds)}."
        yield doubt("statistics.repeats_differ", text)


def _range(name: str, values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{name} {number(low)} to {number(high)} ({change(high / max(low, 1e-9) - 1)})"


def _effective(row: Row) -> tuple[object, ...]:
    """Return the settings that act under this load: a limit above the concurrency does nothing."""
    asked, limit = row.number("concurrency"), row.number("max_num_seqs")
    skip = ASIDE | counters(row)
    if asked is not None and (limit is None or limit >= asked) and asked <= 256:
        skip = skip | {"max_num_seqs"}
    acting = sorted((k, str(s.value)) for k, s in row.settings.items() if k not in skip)
    # as authors name what they measured
    section = row.section if row.form == "block" else ""
    return (*acting, row.series, row.label, section)


def within_error(rows: Sequence[Row]) -> Iterator[Finding]:
    """Two scores differ by less than their own standard errors."""
    by_task: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.kind == "quality" and row.get("score") is not None and row.get("stderr"):
            what = (
                row.setting("task"),
                row.setting("metric"),
                row.setting("filter"),
                row.setting("n_shot"),
            )
            by_task.setdefault(what, []).append(row)
    for (task, *_), scores in by_task.items():
        for i, a in enumerate(scores):
            for b in scores[i + 1 : i + 8]:
                # else they are compared by item, which shows more
                if not (items_of(a) and items_of(b)):
                    yield from _within(str(task), a, b)


def _within(task: str, a: Row, b: Row) -> Iterator[Finding]:
    x, y = a.figures["score"].value, b.figures["score"].value
    error = math.hypot(a.figures["stderr"].value, b.figures["stderr"].value)
    z = abs(x - y) / error if error else math.inf
    if abs(x - y) > 0 and z < 1.96:
        counted = ""
        if n := _questions(a, b):
            right, good = round(x * n), round(y * n)
            counted = f": {right:,} and {good:,} of {n:,} answers are right"
        text = f"{task}: {x:g} and {y:g} differ by {number(z, digits=2)} standard errors{counted}."
        yield note("statistics.within_error", text, locations=locations([a, b], "score"))


def _questions(a: Row, b: Row) -> int | None:
    """Return how many questions there were: the count that fits the printed standard errors of both shares."""
    counts = [_fitting(r) for r in (a, b)]
    both = set(counts[0]) & set(counts[1])
    if not both:
        return None
    p, error = a.figures["score"].value, a.figures["stderr"].value
    near = p * (1 - p) / error**2 + 1
    return min(both, key=lambda n: abs(n - near))


def _fitting(row: Row) -> list[int]:
    """Return counts of questions that fit a printed share and its standard error."""
    p, error = row.figures["score"], row.figures["stderr"]
    if not 0 < p.value < 1 or error.value <= 0:
        return []
    if samples := row.number("samples"):
        return [int(samples)]
    # lm-eval prints four digits and drops the zeros at their end.
    half, off = min(p.half or 1e-9, 5e-5), min(error.half or 1e-9, 5e-5)

    def fits(count: int) -> bool:
        if abs(round(p.value * count) / count - p.value) > half * 1.01:
            return False
        return (
            abs(math.sqrt(p.value * (1 - p.value) / (count - 1)) - error.value)
            <= off * 1.01
        )

    near = p.value * (1 - p.value) / error.value**2 + 1
    return list(
        filter(fits, range(max(2, int(near * 0.97)), min(int(near * 1.03) + 2, 1_000_000)))
    )
