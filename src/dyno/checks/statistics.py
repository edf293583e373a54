"""Are there enough samples for what is claimed, and is a difference more than noise?"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median, stdev

from dyno.checks.evidence import Circumstances, Evidence, OfflineEvidence
from dyno.facts.finding import Finding, doubt, note
from dyno.facts.imported import Row
from dyno.facts.metric import TOKEN_THROUGHPUTS
from dyno.measure.points import ASIDE, finite_rate, in_flight, key, load_of, locations, subject
from dyno.measure.statistics import samples_needed

SHORT_S, ENOUGH_S = 5.0, 30.0
FULL = 0.8  # of the streams
EACH, DRIFT = 30, 1.5  # requests of a third; medians apart
FIRST = 1.2  # repetition, over the others
SPREAD, WILD = 0.05, 0.2  # deviation over mean, of repeated tests
FEW_ITERATIONS = 3  # iterations: fewer have no deviation worth the name
DEVIATIONS, SLOWER, MUCH_SLOWER = 3.0, 0.02, 0.05
OTHERS = 4  # iterations after the first: of fewer the deviation is a matter of luck
UNSTEADY = 0.1
UNLIKE = 0.1  # deviation over mean: more than engines vary by themselves on a machine that is left to them


def few_samples(e: Evidence) -> Iterator[Finding]:
    count = e.summary.ttft.count
    short = [(p, samples_needed(p)) for p in e.trial.percentiles if 0 < count < samples_needed(p)]
    if short:
        p, needed = max(short, key=lambda s: s[1])
        names = ", ".join(f"p{p:g}" for p, _ in short)
        yield note(
            "statistics.few_samples",
            f"{names} of {count} requests {'is an estimate' if len(short) == 1 else 'are estimates'}: p{p:g} needs "
            f"{needed} samples at 99 % confidence.",
            f"Send at least {needed} requests (--num-prompts {needed}).",
        )


def few_samples_row(row: Row) -> Iterator[Finding]:
    count = row.get("completed")
    given = sorted({
        float(name[1:].partition("_")[0]) for name in row.figures
        if name.endswith("_ms") and name[0] == "p" and name[1:2].isdigit() and "_itl_" not in name
    })  # fmt: skip
    short = [p for p in given if p > 50 and count and count < samples_needed(p)]
    if row.kind == "serve" and short:
        p = max(short)
        text = f"P{p:g} of {count:,.0f} requests is an estimate: it needs {samples_needed(p):,} at 99 % confidence."
        advice = f"Send at least {samples_needed(p):,} requests, or report a lower percentile."
        yield note("statistics.few_samples", text, advice, locations([row], f"p{p:g}_ttft_ms", "completed"))


def short(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.completed and s.duration_s < SHORT_S:
        enough = math.ceil(s.sent * ENOUGH_S / max(s.duration_s, 0.01) / 10) * 10
        yield note(
            "statistics.short",
            f"The load lasted {s.duration_s:.1f} s ({s.sent} requests): too short to average out what a machine does "
            "from one second to the next.",
            f"Send more (--num-prompts {enough}), or for longer (--duration {ENOUGH_S:.0f}).",
        )


def ramp(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.completed < 2:
        return
    share = (s.steady.end_s - s.steady.start_s) / s.duration_s if s.steady else 0.0
    if share < 0.5:
        yield note(
            "statistics.ramp_and_drain",
            f"Only {share:.0%} of the run was at steady load; the rest was start and drain, which lower the throughput "
            "over the whole run.",
            "Send several times as many requests as are in flight.",
        )


def ramp_row(row: Row) -> Iterator[Finding]:
    """A short run is start and drain: fewer streams were open than asked for."""
    asked, done, streams = row.number("concurrency"), row.get("completed"), in_flight(row, "mean_itl_ms")
    if row.kind != "serve" or not asked or asked < 2 or not done:
        return
    if streams is not None and streams < FULL * asked:
        yield note(
            "statistics.ramp_and_drain",
            f"{streams:,.1f} requests were in flight on average, where {asked:g} were asked for "
            f"({done:,.0f} requests, {done / asked:.1f} for each stream).",
            "Start and drain lower the throughput over the whole run. Send many times as many as are in flight.",
            locations([row], "request_throughput", "completed"),
        )


def single_run(e: Circumstances) -> Iterator[Finding]:
    if e.completed and e.repeats < 2:
        text = "This is a single run: what differs by chance from run to run is not known."
        advice = "Repeat it before you call a small difference real."
        yield note("statistics.single_run", text, advice)


def single_run_rows(rows: Sequence[Row]) -> Iterator[Finding]:
    """One note for each file."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind in ("serve", "throughput") and row.form != "run":  # of its own dyno knows the repeats
            by_file.setdefault(row.file, []).append(row)
    for file, results in by_file.items():
        if len({(*key(r), load_of(r)) for r in results}) == len(results):
            yield note(
                "statistics.single_run",
                f"{f'Each of {len(results)} results' if len(results) > 1 else 'The result'} in {file} is a single run: "
                "what differs by chance is not known.",
                "Repeat it before a small difference is called real.",
            )


def few_iterations(e: OfflineEvidence) -> Iterator[Finding]:
    if e.offline.iterations < FEW_ITERATIONS:
        count = e.offline.iterations
        yield note(
            "statistics.few_iterations",
            f"{'One iteration was' if count == 1 else f'{count} iterations were'} measured: how much it varies by "
            "chance is not known.",
            f"Measure at least three ({'-r' if e.offline.kind == 'micro' else '--num-iters'}; iterations in a study).",
        )


def first_iteration(e: OfflineEvidence) -> Iterator[Finding]:
    """The first use compiles, captures or pages in; later ones don't."""
    first, *rest = e.latencies_ms
    if len(rest) < OTHERS:
        return
    mean, deviation = fmean(rest), stdev(rest)
    if first > mean + DEVIATIONS * deviation and first > (1 + SLOWER) * mean:
        yield Finding(
            "statistics.first_iteration",
            "doubt" if first > (1 + MUCH_SLOWER) * mean else "note",
            f"The first measured iteration took {first:.1f} ms, the others {mean:.1f} ± {deviation:.1f} ms.",
            "It was still warming up, and the mean holds that. Warm up longer"
            + (" (--num-iters-warmup; warmup_iterations in a study)." if e.offline.kind == "latency" else "."),
        )


def unsteady(e: OfflineEvidence) -> Iterator[Finding]:
    if len(e.latencies_ms) < FEW_ITERATIONS:
        return
    mean, deviation = fmean(e.latencies_ms), stdev(e.latencies_ms)
    if deviation > UNSTEADY * mean:
        text = f"Iterations took {mean:.1f} ± {deviation:.1f} ms, a deviation of {deviation / mean:.0%}."
        advice = "Something else moved: heat, other processes, clocks. Look at the telemetry, and measure again."
        yield doubt("statistics.unsteady", text, advice)


def first_iteration_row(row: Row) -> Iterator[Finding]:
    s = row.samples
    times = s.latencies_ms if s else []
    if row.kind not in ("latency", "micro") or len(times) < 3:
        return
    rest = median(times[1:])
    if rest > 0 and times[0] > FIRST * rest:
        text = f"The first of {len(times)} repetitions took {times[0]:,.1f} ms, the others {rest:,.1f} (median)."
        advice = "It warmed up inside the measurement. Repeat it after a warm-up, or leave the first out."
        yield note("statistics.first_iteration", text, advice, locations([row], "mean_latency_ms", "speed"))


def unsteady_row(row: Row) -> Iterator[Finding]:
    for name in ("speed", *TOKEN_THROUGHPUTS):
        figure = row.figures.get(name)
        if figure is None or not figure.deviation or figure.value <= 0:
            continue
        share = figure.deviation / figure.value
        if share > SPREAD:
            yield Finding(
                "statistics.unsteady",
                "doubt" if share > WILD else "note",
                f"{_named(row)}: {figure.value:,.2f} ± {figure.deviation:,.2f} ({share:.0%} of the mean).",
                "The repetitions lie far apart: the first may have been a warm-up. Repeat it more often, after one.",
                locations([row], name),
            )


def _named(row: Row) -> str:
    return " ".join(str(v) for v in (row.setting("model") or row.label, row.setting("test")) if v) or row.file


def drift(row: Row) -> Iterator[Finding]:
    """First tokens of early and late requests differ, in the order of sending."""
    s, asked = row.samples, row.number("concurrency")
    if row.kind != "serve" or s is None or not asked or finite_rate(row):
        return  # under a rate a queue grows: load.rate_not_reached
    begun = [t for t in s.ttfts_ms[int(asked) :] if t > 0]  # the first come all at once
    third = len(begun) // 3
    if third < EACH:
        return
    early, late = median(begun[:third]), median(begun[-third:])
    if max(early, late) > DRIFT * min(early, late):
        yield note(
            "statistics.drift",
            f"First tokens took {early:,.1f} ms in the first third of the requests, {late:,.1f} in the last (medians).",
            "It warmed up or wore down while it was measured, or requests are sorted. Warm up before, and run longer.",
            locations([row], "median_ttft_ms"),
        )


def repeats(rows: Sequence[Row]) -> Iterator[Finding]:
    """Repeats of one setting under one load differ widely."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.kind == "serve" and row.form in ("block", "json", "csv") and load_of(row).level:
            same_prompts = round(row.get("total_input_tokens") or 0, -2)
            where = row.file if row.form != "json" else ""
            groups.setdefault((where, _effective(row), load_of(row), same_prompts), []).append(row)
    for same in groups.values():
        if len(same) < 2 or len({r.get("duration_s") for r in same}) < 2:
            continue
        wide = []
        for name in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_ttft_ms", "p99_tpot_ms"):
            values = [v for r in same if (v := r.get(name))]
            if len(values) == len(same) and max(values) > 1.2 * min(values):
                wide.append(f"{name} {min(values):,.2f} to {max(values):,.2f} ({max(values) / min(values) - 1:+.0%})")
        if wide:
            counted = all("run_number" in r.settings for r in same)  # said to be repeats
            speeds = [v for r in same if (v := r.get("output_throughput"))]
            yield Finding(
                "statistics.repeats_differ",
                "doubt" if counted and speeds and max(speeds) > 1.5 * min(speeds) else "note",
                f"{subject(same[0])} was measured {len(same)} times under the same load, as far as is told: "
                f"{'; '.join(wide)}.",
                "A smaller difference between two settings than that is noise.",
                locations(same, "duration_s"),
            )


def unlike_repeats(name: str, speeds: Sequence[float]) -> Iterator[Finding]:
    """Of the repeats of one trial, by their speeds in tokens/s."""
    if len(speeds) < 2 or stdev(speeds) <= UNLIKE * fmean(speeds):
        return
    each = ", ".join(f"{speed:.1f}" for speed in speeds)
    yield doubt(
        "statistics.repeats_differ",
        f"The {len(speeds)} repeats of {name} lie far apart: {each} tok/s.",
        "Something else moved the figures: look at each repeat's own findings, and repeat it more often.",
    )


def _effective(row: Row) -> tuple[object, ...]:
    """Return the settings that act under this load: a limit above the concurrency does nothing."""
    asked, limit = row.number("concurrency"), row.number("max_num_seqs")
    idle = asked is not None and (limit is None or limit >= asked) and asked <= 256
    skip = ASIDE | {"run_number", *(["max_num_seqs"] if idle else [])}
    acting = sorted((k, str(s.value)) for k, s in row.settings.items() if k not in skip)
    return (*acting, row.series, row.label)


def within_error(rows: Sequence[Row]) -> Iterator[Finding]:
    """Two scores differ by less than their own standard errors."""
    by_task: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.kind == "quality" and row.get("score") is not None and row.get("stderr"):
            what = (row.setting("task"), row.setting("metric"), row.setting("filter"), row.setting("n_shot"))
            by_task.setdefault(what, []).append(row)
    for (task, *_), scores in by_task.items():
        for i, a in enumerate(scores):
            for b in scores[i + 1 : i + 8]:
                yield from _within(str(task), a, b)


def _within(task: str, a: Row, b: Row) -> Iterator[Finding]:
    x, y = a.figures["score"].value, b.figures["score"].value
    error = math.hypot(a.figures["stderr"].value, b.figures["stderr"].value)
    z = abs(x - y) / error if error else math.inf
    if abs(x - y) > 0 and z < 1.96:
        counted = ""
        if n := _questions(a, b):
            right, good = round(x * n), round(y * n)
            counted = f": {right} and {good} right answers of {n}, {abs(right - good)} apart"
        text = f"{task}: {x:g} and {y:g} differ by {z:.2f} of their standard errors{counted}."
        advice = "Neither is shown to be better, nor that nothing was lost."
        yield note("statistics.within_error", text, advice, locations([a, b], "score"))


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
    p, error = row.figures["score"], row.figures["stderr"]
    if not 0 < p.value < 1 or error.value <= 0:
        return []
    if samples := row.number("samples"):
        return [int(samples)]
    # lm-eval prints four digits and drops the zeros at their end.
    half, off = min(p.half or 1e-9, 5e-5), min(error.half or 1e-9, 5e-5)
    n = p.value * (1 - p.value) / error.value**2 + 1
    return [
        m for m in range(max(2, int(n * 0.97)), min(int(n * 1.03) + 2, 1_000_000))
        if abs(round(p.value * m) / m - p.value) <= half * 1.01
        and abs(math.sqrt(p.value * (1 - p.value) / (m - 1)) - error.value) <= off * 1.01
    ]  # fmt: skip
