"""Are there samples enough for what is told, and is a difference more than noise?"""

import math
from collections.abc import Iterator, Sequence
from statistics import median

from dyno.facts.finding import Finding
from dyno.facts.imported import Row
from dyno.facts.metric import TOKEN_THROUGHPUTS
from dyno.measure.points import ASIDE, at, finite_rate, key, level, point, requests_per_s, subject
from dyno.measure.statistics import samples_needed

FULL = 0.8  # of the streams
EACH, DRIFT = 30, 1.5  # requests of a third; medians apart
FIRST = 1.2  # repetition, over the others
UNSTEADY, WILD = 0.05, 0.2  # deviation over mean, of repeated tests


def few_samples(row: Row) -> Iterator[Finding]:
    count = row.get("completed")
    told = sorted({
        float(name[1:].partition("_")[0]) for name in row.figures
        if name.endswith("_ms") and name[0] == "p" and name[1:2].isdigit() and "_itl_" not in name
    })  # fmt: skip
    short = [p for p in told if p > 50 and count and count < samples_needed(p)]
    if row.kind == "serve" and short:
        p = max(short)
        yield Finding(
            "statistics.few_samples",
            "note",
            f"P{p:g} of {count:,.0f} requests is an estimate: it needs {samples_needed(p):,} at 99 % confidence.",
            f"Send at least {samples_needed(p):,} requests, or report a lower percentile.",
            at([row], f"p{p:g}_ttft_ms", "completed"),
        )


def ramp(row: Row) -> Iterator[Finding]:
    """A short run is start and drain: fewer streams were open than asked for."""
    asked, done, rps = row.number("concurrency"), row.get("completed"), requests_per_s(row)
    if row.kind != "serve" or not asked or asked < 2 or not done:
        return
    each = (row.get("total_output_tokens") or 0) / done
    first, gap, e2el = row.get("mean_ttft_ms"), row.get("mean_itl_ms"), row.get("mean_e2el_ms")
    there = None
    if rps and e2el:
        there = rps * e2el / 1000
    elif rps and first is not None and gap and each > 1:
        there = rps * (first + (each - 1) * gap) / 1000
    if there is not None and there < FULL * asked:
        yield Finding(
            "statistics.ramp_and_drain",
            "note",
            f"{there:,.1f} requests were in flight on average, where {asked:g} were asked for "
            f"({done:,.0f} requests, {done / asked:.1f} for each stream).",
            "Start and drain lower the throughput over the whole run. Send many times as many as are in flight.",
            at([row], "request_throughput", "completed"),
        )


def unsteady(row: Row) -> Iterator[Finding]:
    for name in ("speed", *TOKEN_THROUGHPUTS):
        figure = row.figures.get(name)
        if figure is None or not figure.deviation or figure.value <= 0:
            continue
        share = figure.deviation / figure.value
        if share > UNSTEADY:
            yield Finding(
                "statistics.unsteady",
                "doubt" if share > WILD else "note",
                f"{_named(row)}: {figure.value:,.2f} ± {figure.deviation:,.2f} ({share:.0%} of the mean).",
                "The repetitions lie far apart: the first may have been a warm-up. Repeat it more often, after one.",
                at([row], name),
            )


def _named(row: Row) -> str:
    return " ".join(str(v) for v in (row.setting("model") or row.label, row.setting("test")) if v) or row.file


def drift(row: Row) -> Iterator[Finding]:
    """First tokens of the early requests against those of the late ones, in the order of sending."""
    s, asked = row.samples, row.number("concurrency")
    if row.kind != "serve" or s is None or not asked or finite_rate(row):
        return  # under a rate a queue grows: load.rate_not_reached
    begun = [t for t in s.ttfts_ms[int(asked) :] if t > 0]  # the first come all at once
    third = len(begun) // 3
    if third < EACH:
        return
    early, late = median(begun[:third]), median(begun[-third:])
    if max(early, late) > DRIFT * min(early, late):
        yield Finding(
            "statistics.drift",
            "note",
            f"First tokens took {early:,.1f} ms in the first third of the requests, {late:,.1f} in the last (medians).",
            "It warmed up or wore down while it was measured, or requests are sorted. Warm up before, and run longer.",
            at([row], "median_ttft_ms"),
        )


def first_iteration(row: Row) -> Iterator[Finding]:
    """Of repetitions, the first."""
    s = row.samples
    times = s.latencies_ms if s else []
    if row.kind not in ("latency", "micro") or len(times) < 3:
        return
    rest = median(times[1:])
    if rest > 0 and times[0] > FIRST * rest:
        yield Finding(
            "statistics.first_iteration",
            "note",
            f"The first of {len(times)} repetitions took {times[0]:,.1f} ms, the others {rest:,.1f} (median).",
            "It warmed up inside the measurement. Repeat it after a warm-up, or leave the first out.",
            at([row], "mean_latency_ms", "speed"),
        )


def single_run(rows: Sequence[Row]) -> Iterator[Finding]:
    """Once for each file."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind in ("serve", "throughput") and row.form != "run":  # of its own dyno knows the repeats
            by_file.setdefault(row.file, []).append(row)
    for file, there in by_file.items():
        if len({(*key(r), point(r)) for r in there}) == len(there):
            yield Finding(
                "statistics.single_run",
                "note",
                f"Each of {len(there)} results in {file} is a single run: what differs by chance is not known."
                if len(there) > 1 else f"The result in {file} is a single run: what differs by chance is not known.",
                "Repeat it before a small difference is called real.",
            )  # fmt: skip


def repeats(rows: Sequence[Row]) -> Iterator[Finding]:
    """The same setting under the same load, told twice: how far apart are they?"""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.kind == "serve" and row.form in ("block", "json", "csv") and level(row):
            same_prompts = round(row.get("total_input_tokens") or 0, -2)
            where = row.file if row.form != "json" else ""
            found.setdefault((where, _effective(row), point(row), same_prompts), []).append(row)
    for same in found.values():
        if len(same) < 2 or len({r.get("duration_s") for r in same}) < 2:
            continue
        wide = []
        for name in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_ttft_ms", "p99_tpot_ms"):
            told = [v for r in same if (v := r.get(name))]
            if len(told) == len(same) and max(told) > 1.2 * min(told):
                wide.append(f"{name} {min(told):,.2f} to {max(told):,.2f} ({max(told) / min(told) - 1:+.0%})")
        if wide:
            counted = all("run_number" in r.settings for r in same)  # said to be repeats
            speeds = [v for r in same if (v := r.get("output_throughput"))]
            yield Finding(
                "statistics.repeats_differ",
                "doubt" if counted and speeds and max(speeds) > 1.5 * min(speeds) else "note",
                f"{subject(same[0])} was measured {len(same)} times under the same load, as far as is told: "
                f"{'; '.join(wide)}.",
                "A smaller difference between two settings than that is noise.",
                at(same, "duration_s"),
            )


def _effective(row: Row) -> tuple[object, ...]:
    """Settings that act under this load: a limit above the concurrency does nothing."""
    asked, limit = row.number("concurrency"), row.number("max_num_seqs")
    idle = asked is not None and (limit is None or limit >= asked) and asked <= 256
    skip = ASIDE | {"run_number", *(["max_num_seqs"] if idle else [])}
    told = sorted((k, str(s.value)) for k, s in row.settings.items() if k not in skip)
    return (*told, row.series, row.label)


def within_error(rows: Sequence[Row]) -> Iterator[Finding]:
    """Scores that differ by less than their own standard errors."""
    by_task: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.kind == "quality" and row.get("score") is not None and row.get("stderr"):
            what = (row.setting("task"), row.setting("metric"), row.setting("filter"), row.setting("n_shot"))
            by_task.setdefault(what, []).append(row)
    for (task, *_), there in by_task.items():
        for i, a in enumerate(there):
            for b in there[i + 1 : i + 8]:
                yield from _within(str(task), a, b)


def _within(task: str, a: Row, b: Row) -> Iterator[Finding]:
    x, y = a.figures["score"].value, b.figures["score"].value
    error = math.hypot(a.figures["stderr"].value, b.figures["stderr"].value)
    z = abs(x - y) / error if error else math.inf
    if abs(x - y) > 0 and z < 1.96:
        told = ""
        if n := _questions(a, b):
            right, good = round(x * n), round(y * n)
            told = f": {right} and {good} right answers of {n}, {abs(right - good)} apart"
        yield Finding(
            "statistics.within_error",
            "note",
            f"{task}: {x:g} and {y:g} differ by {z:.2f} of their standard errors{told}.",
            "Neither is shown to be better, nor that nothing was lost.",
            at([a, b], "score"),
        )


def _questions(a: Row, b: Row) -> int | None:
    """How many there were, by the standard errors of two shares: one count fits both as they are printed."""
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
    if told := row.number("samples"):
        return [int(told)]
    # lm-eval prints four digits and drops the zeros at their end.
    half, off = min(p.half or 1e-9, 5e-5), min(error.half or 1e-9, 5e-5)
    n = p.value * (1 - p.value) / error.value**2 + 1
    return [
        m for m in range(max(2, int(n * 0.97)), min(int(n * 1.03) + 2, 1_000_000))
        if abs(round(p.value * m) / m - p.value) <= half * 1.01
        and abs(math.sqrt(p.value * (1 - p.value) / (m - 1)) - error.value) <= off * 1.01
    ]  # fmt: skip
