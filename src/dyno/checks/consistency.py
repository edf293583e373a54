"""Can the figures of one result all be true, and are two results really one?"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from operator import itemgetter

from dyno.facts.finding import Finding, Level, doubt, note, void
from dyno.facts.imported import Figure, Row, Scalar
from dyno.facts.load import LOAD
from dyno.facts.metric import SAMPLED, THROUGHPUTS, TOKEN_THROUGHPUTS, latency, words
from dyno.measure import points
from dyno.measure.cost import per_million
from dyno.measure.points import (
    bounds,
    duration,
    finite_rate,
    load_of,
    locations,
    output_each,
    requests_per_s,
    sent,
    settings,
    speed_tests,
    subject,
)
from dyno.numbers import change, money, number

SLACK = 0.001  # of a quotient, beyond the rounding of what was printed
WRONG = 0.01  # from here on a sum is not a slip of rounding or of a row's neighbour
OVER, FAR_OVER = 1.05, 1.2  # streams that can't be
# Tools whose throughput is the sum over the whole run; others use a window of their own.
WHOLE_RUN = ("vllm", "sglang", "dyno", "llama-bench", "")
CLIENTS = ("vllm", "sglang", "dyno")  # tools whose definitions of latencies are alike
NEAR, NEARLY = 0.001, 0.0025
_COMPARED_FIGURES = (
    "duration_s", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "mean_itl_ms",
    "p99_itl_ms", "mean_e2el_ms", "total_token_throughput", "output_throughput", "mean_latency_ms",
)  # fmt: skip
_KIND = re.compile(r"(?:iq|q)\d_[a-z0-9]+(?:_[sml])?|bf16|fp16|f16")
_SUBJECT = (
    "model",
    "quantization",
    "engine",
    "series",
    "accelerator",
    "tensor_parallel",
    "kv_cache_dtype",
)
SAME = 6  # least number of figures in a copy
MOST, NEIGHBOURS = 1_000, 20  # rows that are compared with each other


def sums(row: Row) -> Iterator[Finding]:
    """Counts divided by the duration are not the reported throughput."""
    took = duration(row)
    if took is None or row.tool not in WHOLE_RUN:
        return
    wrong: list[tuple[float, str]] = []
    names = ["duration_s"]
    for what, unit, name, count, count_name in _counts(row):
        reported = row.figures.get(name)
        if (
            count is None
            or reported is None
            or not count.value
            or _is_quotient(reported, count, took, row.form)
        ):
            continue
        rate = count.value / took.value
        off = reported.value / rate - 1
        shown = f"{number(reported.value, reported.half)} ({change(off)})"
        text = (
            f"{count.value:,.0f} {what} in {number(took.value)} s is {number(rate)} {unit}"
        )
        wrong.append((abs(off), f"{text}, but the file reports {shown}"))
        names += [name, count_name]
    if wrong:
        level: Level = "void" if max(wrong)[0] > WRONG else "doubt"
        text = "; ".join(text for _, text in wrong)
        yield Finding(
            "consistency.sums", level, f"{text}.", locations=locations([row], *names)
        )


def _counts(row: Row) -> Iterable[tuple[str, str, str, Figure | None, str]]:
    """Return what is counted, the unit and name of its throughput, the count, and the name of a figure in it."""
    f = row.figures
    total = f.get("total_tokens")
    if total is None and "total_input_tokens" in f and "total_output_tokens" in f:
        total = Figure(
            f["total_input_tokens"].value + f["total_output_tokens"].value,
            f["total_output_tokens"].line,
        )
    return (
        ("requests", "req/s", "request_throughput", f.get("completed"), "completed"),
        (
            "output tokens",
            "tok/s",
            "output_throughput",
            f.get("total_output_tokens"),
            "total_output_tokens",
        ),
        ("tokens", "tok/s", "total_token_throughput", total, "total_output_tokens"),
    )


def _is_quotient(reported: Figure, count: Figure, took: Figure, form: str) -> bool:
    """Return whether a throughput is a count divided by a duration, within the rounding of what was printed."""
    shortest, longest = bounds(took)
    low, high = count.value / longest, count.value / max(shortest, 1e-9)
    least, most = bounds(reported)
    # A table may be cut to few digits in any of its columns.
    share = SLACK if form in ("json", "block", "csv") else 0.02
    slack = share * reported.value
    return least <= high + slack and most >= low - slack


def percentiles(row: Row) -> Iterator[Finding]:
    """Percentiles are in order, and no higher than the mean allows."""
    for stem in SAMPLED:
        ladder = _ladder(row, stem)
        names = [f"{name}_{stem}_ms" for _, name, _ in ladder]
        below = [
            f"{name} {number(figure.value)} ms"
            for _, name, figure in ladder
            if figure.value < -figure.half
        ]
        if below:
            text = f"{stem.upper()} is negative: {', '.join(below)}."
            yield void(
                "consistency.percentiles",
                text,
                "Check the raw results.",
                locations([row], *names),
            )
            continue
        wrong = [
            f"{a} ({number(x.value)} ms) is above {b} ({number(y.value)} ms)"
            for (_, a, x), (_, b, y) in pairwise(ladder)
            if bounds(x)[0] > bounds(y)[1] + SLACK * y.value
        ]
        wrong += _against_mean(row, stem, ladder)
        if wrong:
            lines = locations([row], f"mean_{stem}_ms", *names)
            yield void(
                "consistency.percentiles",
                f"{stem.upper()}: {'; '.join(wrong)}.",
                locations=lines,
            )


def _against_mean(
    row: Row, stem: str, ladder: Sequence[tuple[float, str, Figure]]
) -> Iterator[str]:
    """Yield in words which of a latency's figures its mean rules out."""
    mean, least, highest = (
        row.figures.get(f"{name}_{stem}_ms") for name in ("mean", "min", "max")
    )
    if not mean:
        return
    count = row.get("total_output_tokens" if stem == "itl" else "completed")
    for place, name, figure in ladder:
        if name in ("min", "max") or place < 50 or not count:
            continue
        # Samples above a percentile are part of the mean; above the highest, itself.
        most = bounds(mean)[1] * count / max((1 - place / 100) * (count - 1), 1.0)
        if most and bounds(figure)[0] > most * 1.01:
            bound = f"a mean of {number(mean.value)} ms allows at most {number(most)}"
            yield f"{name} is {number(figure.value)} ms, but {bound}"
    if least and bounds(mean)[1] < bounds(least)[0]:
        yield f"the mean ({number(mean.value)} ms) is below the minimum ({number(least.value)} ms)"
    if highest and bounds(mean)[0] > bounds(highest)[1]:
        yield f"the mean ({number(mean.value)} ms) is above the maximum ({number(highest.value)} ms)"


def _ladder(row: Row, stem: str) -> list[tuple[float, str, Figure]]:
    """Return places, names and figures from the minimum to the maximum."""
    places = {"min": 0.0, "median": 50.0, "max": 100.0}
    ladder = []
    for name, figure in row.figures.items():
        parts = latency(name)
        if not parts or parts[1] != stem:
            continue
        statistic = parts[0]
        if statistic[1].isdigit():
            ladder.append((float(statistic[1:]), statistic, figure))
        elif statistic in places:
            ladder.append((places[statistic], statistic, figure))
    return sorted(ladder, key=itemgetter(0))


def tail_below_mean(row: Row) -> Iterator[Finding]:
    """The 99th percentile is below the mean. That is possible only if a few requests are far slower than all others;
    then the mean is useless."""
    for stem in ("ttft", "tpot", "e2el"):
        mean, tail = row.figures.get(f"mean_{stem}_ms"), row.figures.get(f"p99_{stem}_ms")
        if mean and tail and mean.value > 0 and bounds(tail)[1] < bounds(mean)[0]:
            text = f"p99 {stem.upper()} ({number(tail.value)} ms) is below the mean ({number(mean.value)} ms)."
            lines = locations([row], f"mean_{stem}_ms", f"p99_{stem}_ms")
            yield doubt("consistency.tail_below_mean", text, locations=lines)


def end_before_first(row: Row) -> Iterator[Finding]:
    """No request ends before its first token, so no statistic of E2EL is below the same statistic of TTFT."""
    wrong = []
    if row.tool == "dyno":  # it leaves first tokens out whose arrival it doesn't know
        return
    for word in ("mean", "median", "p50", "p90", "p95", "p99"):
        first, end = row.figures.get(f"{word}_ttft_ms"), row.figures.get(f"{word}_e2el_ms")
        if first and end and end.value > 0 and bounds(end)[1] < bounds(first)[0] * 0.99:
            wrong.append(
                f"{word} TTFT {number(first.value)} ms, {word} E2EL {number(end.value)}"
            )
    if wrong:
        text = f"Requests end before their first token: {'; '.join(wrong)}."
        lines = locations([row], "mean_ttft_ms", "mean_e2el_ms")
        yield void("consistency.end_before_first", text, locations=lines)


def latencies(row: Row) -> Iterator[Finding]:
    """Decoding takes one gap per chunk, and at most tokens − 1 gaps."""
    first, end, gap = (row.figures.get(f"mean_{s}_ms") for s in ("ttft", "e2el", "itl"))
    each = output_each(row)
    if row.tool not in CLIENTS or not (first and end and gap and each) or each < 2:
        return
    decoding, most = end.value - first.value, gap.value * (each - 1)
    if decoding > 1.1 * most + 2.0 and gap.value > 0:
        text = (
            f"The mean E2EL − TTFT is {number(decoding)} ms, but {number(each)} tokens at {number(gap.value)} ms (ITL) "
            f"take at most {number(most)} ms."
        )
        lines = locations([row], "mean_ttft_ms", "mean_itl_ms", "mean_e2el_ms")
        yield doubt("consistency.latencies", text, locations=lines)


def in_flight(row: Row) -> Iterator[Finding]:
    """Check by Little's law whether more requests were in flight than allowed."""
    if row.kind != "serve" or row.tool not in (*CLIENTS, ""):
        return
    rps, streams = requests_per_s(row), points.in_flight(row, _over_span(row, "mean"))
    asked = row.number("concurrency")
    most = min((limit for limit in (asked, _requests(row)) if limit), default=None)
    if not rps or not streams or not most or streams <= OVER * most + 0.5:
        return
    cap = (
        f"the concurrency is {most:,g}"
        if most == asked
        else f"only {most:,g} requests were sent"
    )
    e2el = row.get("mean_e2el_ms")
    if e2el:
        product = f"{number(rps)} req/s × {number(e2el / 1000)} s (mean E2EL)"
        text = f"{product} is {streams:,.0f} requests in flight, but {cap}."
        yield void(
            "consistency.in_flight",
            text,
            locations=locations([row], "request_throughput", "mean_e2el_ms"),
        )
    elif e2el is None:
        # With no limit at all it is so with every set of chats, and no level was chosen to compare.
        doubtful = streams > FAR_OVER * most and (most == asked or finite_rate(row))
        level: Level = "doubt" if doubtful else "note"
        lines = locations([row], "mean_tpot_ms", "mean_itl_ms")
        yield Finding(
            "consistency.mean_tpot",
            level,
            f"{_implied(row, streams)}, but {cap}.",
            locations=lines,
        )


def _requests(row: Row) -> float:
    """Return how many requests were sent, or else completed."""
    known = sent(row)
    return known[0] if known else row.get("completed") or 0.0


def _implied(row: Row, streams: float) -> str:
    """Return in words how many requests in flight the mean TPOT implies, and the mean ITL."""
    by_itl, tpot = points.in_flight(row, "mean_itl_ms"), row.get(_over_span(row, "mean"))
    text = f"A mean TPOT of {number(tpot)} ms implies {streams:,.0f} requests in flight"
    return f"{text} (by ITL: {by_itl:,.0f})" if by_itl else text


def _over_span(row: Row, statistic: str) -> str:
    """Return the name of the TPOT that, times tokens − 1, is the time from first to last."""
    name = f"{statistic}_vllm_tpot_ms"
    return name if name in row.figures else f"{statistic}_tpot_ms"


def beyond_the_run(row: Row) -> Iterator[Finding]:
    """A median request takes longer than the whole run."""
    middle, each, took = row.get(_over_span(row, "median")), output_each(row), duration(row)
    if (
        row.kind != "serve"
        or row.tool not in CLIENTS
        or not (middle and each and took)
        or each < 2
    ):
        return
    long_s = middle * (each - 1) / 1000
    if long_s > 1.5 * took.value:
        same = each == round(each)  # all answers have that length
        text = (
            f"At a median TPOT of {number(middle)} ms an answer of {each:,.0f} tokens takes {number(long_s)} s, "
            f"but the run took {number(took.value)} s."
        )
        level: Level = "void" if same and long_s > 2 * took.value else "doubt"
        lines = locations([row], "median_tpot_ms", "duration_s")
        yield Finding("consistency.beyond_the_run", level, text, locations=lines)


def batch_counts(row: Row) -> Iterator[Finding]:
    """Offline: requests × (input + output) are not the reported tokens."""
    read, length = row.number("input_len"), row.number("output_len")
    count, total = row.get("completed"), row.get("total_tokens")
    if row.kind == "serve" or not (read and length and count and total):
        return
    expected = count * (read + length)
    if abs(total / expected - 1) > 0.02:
        text = (
            f"{count:,.0f} requests × ({read:,.0f} + {length:,.0f}) tokens is {expected:,.0f}, but the file reports "
            f"{total:,.0f}."
        )
        yield doubt(
            "consistency.tokens",
            text,
            locations=locations([row], "total_tokens", "completed"),
        )


def zero_first_token(row: Row) -> Iterator[Finding]:
    """The first token takes no time."""
    if row.samples and row.samples.latencies("ttft"):
        return  # requests.zeros_in_mean knows more
    mean, median = row.get("mean_ttft_ms"), row.get("median_ttft_ms")
    others = row.get("mean_tpot_ms") or row.get("mean_itl_ms")
    if 0 in (mean, median) and others and row.get("completed"):
        text = f"The {'median' if mean else 'mean'} TTFT is reported as 0 ms."
        yield doubt(
            "consistency.zero_ttft",
            text,
            locations=locations([row], "mean_ttft_ms", "median_ttft_ms"),
        )


def peak(row: Row) -> Iterator[Finding]:
    """The highest throughput is below the mean."""
    highest, mean = (
        row.figures.get("peak_output_throughput"),
        row.figures.get("output_throughput"),
    )
    # dyno's is of a whole second, and some runs are shorter.
    if row.tool != "dyno" and highest and mean and bounds(highest)[1] < bounds(mean)[0]:
        peak = number(highest.value)
        text = f"The peak output throughput ({peak} tok/s) is below the mean ({number(mean.value)} tok/s)."
        lines = locations([row], "peak_output_throughput", "output_throughput")
        yield note("consistency.peak_below_mean", text, locations=lines)


def two_runs(row: Row) -> Iterator[Finding]:
    """Offline: the tokens of a batch divided by its latency are not the reported throughput."""
    batch, read, generated = (
        row.number("batch_size"),
        row.number("input_len"),
        row.number("output_len"),
    )
    latency = row.get("mean_latency_ms") or row.get("mean_e2el_ms")
    reported = row.figures.get("total_token_throughput")
    if row.kind == "serve" or not (batch and read and generated and latency and reported):
        return
    expected = batch * (read + generated) / (latency / 1000)
    off = reported.value / expected - 1
    if abs(off) > 0.02:
        text = (
            f"{batch:,g} × ({read:,g} + {generated:,g}) tokens in {number(latency / 1000)} s is {number(expected)} "
            f"tok/s, but the file reports {number(reported.value, reported.half)} ({change(off)})."
        )
        lines = locations(
            [row], "mean_latency_ms", "mean_e2el_ms", "total_token_throughput"
        )
        yield Finding(
            "consistency.two_runs",
            "void" if abs(off) > 0.5 else "doubt",
            text,
            locations=lines,
        )


def price(row: Row) -> Iterator[Finding]:
    """The price per million tokens doesn't follow from the hourly price and any throughput."""
    reported, hour = (
        row.figures.get("cost_per_million_tokens"),
        row.number("price_per_hour"),
    )
    speeds = [s for name in TOKEN_THROUGHPUTS if (s := row.get(name))]
    if reported is None or not hour or not speeds:
        return
    costs = [cost for speed in speeds if (cost := per_million(hour, speed)) is not None]
    if all(abs(reported.value / cost - 1) > WRONG for cost in costs):
        text = (
            f"{hour:,g} per hour at {number(speeds[0])} tok/s is {money(costs[0])} per million tokens, but the file "
            f"reports {money(reported.value)}."
        )
        yield doubt(
            "consistency.price", text, locations=locations([row], "cost_per_million_tokens")
        )


def rate_exceeds(row: Row) -> Iterator[Finding]:
    """More requests per second were served than sent."""
    offered, rps = finite_rate(row), requests_per_s(row)
    done = row.get("completed") or row.number("num_prompts") or 0.0
    if offered and rps and done >= 100 and rps > 1.25 * offered:
        text = f"{number(rps)} requests/s were served, but {offered:,g} were offered."
        yield doubt(
            "consistency.more_than_offered",
            text,
            locations=locations([row], "request_throughput"),
        )


def copies(rows: Sequence[Row]) -> Iterator[Finding]:
    """One result is repeated in a file, in the same form."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        values = tuple(sorted((n, f.value) for n, f in row.figures.items()))
        if (
            row.kind == "serve"
            and row.form != "table"
            and len(values) >= SAME
            and row.get("duration_s")
        ):
            same_settings = (
                row.file,
                row.form,
                str(sorted(settings(row).items())),
                load_of(row),
            )
            alike.setdefault((*same_settings, values), []).append(row)
    for same in alike.values():
        if len(same) > 1:
            text = f"{len(same)} results are equal in all {len(same[0].figures)} figures: one result, reported again."
            yield note("consistency.copies", text, locations=locations(same))


def reported_twice(pairs: Sequence[tuple[Row, Row]]) -> Iterator[Finding]:
    """Give one note for all results that were merged with a duplicate."""
    if pairs:
        first, copy = pairs[0]
        text = "1 result is reported twice and counts once:"
        if len(pairs) > 1:
            text = f"{len(pairs):,} results are reported more than once and count once. For example,"
        text = f"{text} {copy.location} repeats {first.location}."
        yield note(
            "consistency.reported_twice",
            text,
            locations=locations([row for pair in pairs for row in pair]),
        )


def twins(rows: Sequence[Row]) -> Iterator[Finding]:
    """Results of different subjects agree to the last digit."""
    served = [
        r for r in rows if r.kind == "serve" and r.get("duration_s") and r.form != "table"
    ][:MOST]
    served.sort(key=lambda r: r.figures["duration_s"].value)
    generated = speed_tests(rows, "tg")
    for i, a in enumerate(served):
        for b in served[i + 1 : i + 1 + NEIGHBOURS]:
            if b.figures["duration_s"].value > a.figures["duration_s"].value * (1 + NEAR):
                break
            yield from _twins(a, b, generated[:MOST])


def _twins(a: Row, b: Row, generated: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding if two results of different settings are equal, or nearly."""
    what = _settings_that_differ(a, b)
    both = [n for n in _COMPARED_FIGURES if a.get(n) and b.get(n)]
    if not what or len(both) < 4 or (a.get("completed") or 0) < 10:
        return
    lines = locations([a, b], "duration_s", "mean_itl_ms")
    if all(a.get(n) == b.get(n) for n in both):
        text = f"Two results with {what} are equal in all {len(both)} figures."
        yield void("consistency.twins", text, locations=lines)
        return
    paces = [n for n in ("mean_tpot_ms", "mean_itl_ms") if n in both]
    if not _nearly_equal(a, b, paces):
        return
    alike = ", ".join(
        f"{words(n)} {number(a.get(n))} and {number(b.get(n))} ms" for n in paces
    )
    times = f"{number(a.get('duration_s'), digits=6)} and {number(b.get('duration_s'), digits=6)} s"
    text = f"Two results with {what} are nearly equal: {times}, {alike}."
    witness, speeds = _witness(a, b, generated)
    if witness:
        yield void("consistency.twins", f"{text} {witness}", locations=lines + speeds)
    else:
        yield doubt("consistency.twins", text, locations=lines)


def _settings_that_differ(a: Row, b: Row) -> str:
    """Return in words in what two results differ: their subject or, where that is the same, their load."""
    differs = _unlike(_SUBJECT, settings(a).get, settings(b).get)
    if differs:
        return " and ".join(
            f"{n.replace('_', ' ')} {values}" for n, values in differs.items()
        )
    load = _unlike(LOAD, a.setting, b.setting)
    return ", ".join(f"{n} {values}" for n, values in load.items())


def _nearly_equal(a: Row, b: Row, names: Sequence[str]) -> bool:
    """Return whether two have the same load and, in all of these figures, nearly the same values."""
    if not names or load_of(a) != load_of(b) or _unlike(LOAD, a.setting, b.setting):
        return False
    return all(abs(a.figures[n].value / b.figures[n].value - 1) < NEARLY for n in names)


def _unlike(
    names: Sequence[str], *values: Callable[[str], Scalar | None]
) -> dict[str, str]:
    """Return the settings that both have with different values, as '4 / 8'."""
    both = {name: [value(name) for value in values] for name in names}
    unlike = {
        name: pair for name, pair in both.items() if None not in pair and pair[0] != pair[1]
    }
    return {
        name: " / ".join(str(value).rpartition("/")[2] for value in pair)
        for name, pair in unlike.items()
    }


def _witness(a: Row, b: Row, generated: Sequence[Row]) -> tuple[str, list[str]]:
    """Return the generation speeds of both models that another tool measured, and where, if they differ."""
    speeds = []
    for row in (a, b):
        name = str(row.setting("quantization") or row.setting("model") or "").lower()
        matching = [test for test in generated if _alike(name, _test_name(test))]
        if not matching:
            return "", []
        speeds.append(max(matching, key=lambda r: r.figures["speed"].value))
    x, y = (r.figures["speed"].value for r in speeds)
    if min(x, y) > 0.9 * max(x, y):
        return "", []
    text = f"Another tool measured {number(x)} and {number(y)} tok/s ({speeds[0].label} / {speeds[1].label})."
    return text, locations(speeds, "speed")


def _test_name(test: Row) -> str:
    return f"{test.setting('model') or ''} {test.label} {test.setting('quantization') or ''}".lower()


def _alike(name: str, other: str) -> bool:
    """Return whether two names have one quantization. llama-bench writes 'Q4_K - Medium' for a file named Q4_K_M."""
    kinds = _KIND.findall(name.replace("-", "_"))
    if not kinds:
        return False
    wanted = kinds[-1].replace("fp16", "f16")
    spelled = re.sub(r" ?- (small|medium|large)", lambda m: f"_{m[1][0]}", other)
    return wanted in _KIND.findall(spelled)


def multiples(rows: Sequence[Row]) -> Iterator[Finding]:
    """Rows are whole multiples of others with exactly the same time: calculated, not measured."""
    seen: set[tuple[str, str, int]] = set()
    for (low_name, high_name, times, figure), pairs in _multiples(rows).items():
        digits = max(_digits(low.get(figure) or 0) for low, _ in pairs)
        if (low_name, high_name, times) in seen or (len(pairs) < 3 and digits < 6):
            continue
        seen.add((low_name, high_name, times))
        low, names = pairs[0][0], points.distinct(low_name, high_name)
        text = (
            f"{len(pairs)} results of {names[1]} have exactly the same times as {names[0]} (such as "
            f"{low.get(figure):,.8g}) and {times} times its throughput: calculated, not measured."
        )
        lines = locations([high for _, high in pairs[:6]]) + locations([low])
        yield void("comparability.multiplied", text, locations=lines)


def _multiples(
    rows: Sequence[Row],
) -> dict[tuple[str, str, int, str], list[tuple[Row, Row]]]:
    """Return pairs of rows with the same time, by the two subjects, the factor of throughput, and the time's name."""
    by_time: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        for name in ("duration_s", "mean_latency_ms", "mean_e2el_ms"):
            if (time := row.get(name)) and time > 0:
                by_time.setdefault((row.kind, name, time), []).append(row)
    groups: dict[tuple[str, str, int, str], list[tuple[Row, Row]]] = {}
    for (_, name, _), same_time in by_time.items():
        for a, b in combinations(same_time[:50], 2):
            times = _multiple(a, b)
            if times and subject(a) != subject(b):
                low, high = (a, b) if times > 0 else (b, a)
                groups.setdefault(
                    (subject(low), subject(high), abs(times), name), []
                ).append((low, high))
    return groups


def _multiple(a: Row, b: Row) -> int | None:
    """Return how many times a's throughput b has; negative: the other way round."""
    ratios = []
    for name in reversed(THROUGHPUTS):
        x, y = a.get(name), b.get(name)
        if x and y and min(_digits(x), _digits(y)) >= 4:
            ratios.append(y / x)
    if not ratios:
        return None
    for ratio, sign in ((ratios[0], 1), (1 / ratios[0], -1)):
        whole = round(ratio)
        if 2 <= whole <= 64 and all(
            abs((r if sign > 0 else 1 / r) / whole - 1) < 2e-5 for r in ratios
        ):
            return sign * whole
    return None


def _digits(value: float) -> int:
    return len(f"{value:.10g}".replace(".", "").lstrip("0"))
