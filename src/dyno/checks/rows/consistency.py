"""Can the figures of one result all be true? Needs no other knowledge than what they mean."""

from collections.abc import Iterator
from itertools import pairwise

from dyno.facts.finding import Finding
from dyno.facts.imported import Figure, Row
from dyno.facts.metric import SAMPLED, TOKEN_THROUGHPUTS
from dyno.measure.cost import per_million
from dyno.measure.points import at, bounds, duration, finite_rate, output_each, requests_per_s, sent

SLACK = 0.001  # of a quotient, beyond the rounding of what was printed
WRONG = 0.01  # from here on a sum is not a slip of rounding or of a row's neighbour
OVER, FAR_OVER = 1.05, 1.2  # streams that can't be
# Tools whose throughput is the sum over the whole run; others reckon it in a window of their own.
WHOLE_RUN = ("vllm", "sglang", "dyno", "llama-bench", "")


def sums(row: Row) -> Iterator[Finding]:
    """Counts by duration against the throughput that is told."""
    took = duration(row)
    if took is None or row.tool not in WHOLE_RUN:
        return
    f = row.figures
    total = f.get("total_tokens")
    if total is None and "total_input_tokens" in f and "total_output_tokens" in f:
        total = Figure(f["total_input_tokens"].value + f["total_output_tokens"].value, f["total_output_tokens"].line)
    pairs = (
        ("requests", "request_throughput", f.get("completed"), "completed"),
        ("output tokens", "output_throughput", f.get("total_output_tokens"), "total_output_tokens"),
        ("tokens", "total_token_throughput", total, "total_output_tokens"),
    )
    wrong: list[tuple[float, str, str, str]] = []
    for what, name, count, of in pairs:
        told = f.get(name)
        if count is None or told is None or not count.value:
            continue
        low, high = count.value / bounds(took)[1], count.value / max(bounds(took)[0], 1e-9)
        least, most = bounds(told)
        # A table may be cut to few digits in any of its columns.
        slack = (SLACK if row.form in ("json", "block", "csv") else 0.02) * told.value
        if least > high + slack or most < low - slack:
            off = told.value / (count.value / took.value) - 1
            text = f"{count.value:,.0f} {what} in {took.value:,.2f} s are {count.value / took.value:,.2f}/s, and "
            wrong.append((abs(off), f"{text}{told.value:,.2f} is told ({off:+.2%})", name, of))
    if wrong:
        worst = max(wrong)
        yield Finding(
            "consistency.sums",
            "void" if worst[0] > WRONG else "doubt",
            f"{'; '.join(w[1] for w in wrong)}.",
            "One of them is of another run, or wrong. Look into the raw results.",
            at([row], "duration_s", *(n for w in wrong for n in w[2:])),
        )


def percentiles(row: Row) -> Iterator[Finding]:
    """Their order, and what a mean allows."""
    for stem in SAMPLED:
        told = _ladder(row, stem)
        wrong = [
            f"{a} {x.value:,.2f} ms lies above {b} {y.value:,.2f} ms"
            for (a, x), (b, y) in pairwise(told)
            if bounds(x)[0] > bounds(y)[1] + SLACK * y.value
        ]
        mean = row.figures.get(f"mean_{stem}_ms")
        count = _count(row, stem)
        below = [f"{name} {value.value:,.2f} ms" for name, value in told if value.value < -value.half]
        if below:
            yield Finding(
                "consistency.percentiles",
                "void",
                f"{stem.upper()}: a time can't be negative: {', '.join(below)}.",
                "Look into the raw results.",
                at([row], *(f"{n}_{stem}_ms" for n, _ in told)),
            )
            continue
        for name, value in told if mean is not None else []:
            if mean is not None and (most := _most(name, bounds(mean)[1], count)) and bounds(value)[0] > most * 1.01:
                wrong.append(
                    f"{name} {value.value:,.2f} ms can't be: with a mean of {mean.value:,.2f} ms it is at most "
                    f"{most:,.2f} ms"
                )  # fmt: skip
        least, highest = row.figures.get(f"min_{stem}_ms"), row.figures.get(f"max_{stem}_ms")
        if mean and least and bounds(mean)[1] < bounds(least)[0]:
            wrong.append(f"the mean {mean.value:,.2f} ms lies below the minimum {least.value:,.2f} ms")
        if mean and highest and bounds(mean)[0] > bounds(highest)[1]:
            wrong.append(f"the mean {mean.value:,.2f} ms lies above the maximum {highest.value:,.2f} ms")
        if wrong:
            yield Finding(
                "consistency.percentiles",
                "void",
                f"{stem.upper()}: {'; '.join(wrong)}.",
                "Such figures aren't of one set of requests, or a unit is wrong. Look into the raw results.",
                at([row], f"mean_{stem}_ms", *(f"{n}_{stem}_ms" for n, _ in told)),
            )


def _ladder(row: Row, stem: str) -> list[tuple[str, Figure]]:
    """From the minimum to the maximum."""
    found: list[tuple[float, str, Figure]] = []
    for name, figure in row.figures.items():
        if not name.endswith(f"_{stem}_ms"):
            continue
        word = name.removesuffix(f"_{stem}_ms")
        place = {"min": 0.0, "median": 50.0, "max": 100.0}.get(word)
        if place is None and word.startswith("p"):
            try:
                place = float(word[1:])
            except ValueError:
                continue
        if place is not None:
            found.append((place, word, figure))
    return [(word, figure) for _, word, figure in sorted(found, key=lambda t: t[0])]


def _count(row: Row, stem: str) -> float | None:
    return row.get("total_output_tokens") if stem == "itl" else row.get("completed")


def _most(word: str, mean: float, count: float | None) -> float | None:
    """What a percentile of times can be at most: those that lie above it are part of the mean."""
    place = 50.0 if word == "median" else float(word[1:]) if word[:1] == "p" and word[1:2].isdigit() else None
    if place is None or place < 50 or not count:
        return None
    above = max((1 - place / 100) * (count - 1), 1.0)  # samples at least as large; of the highest, itself
    return mean * count / above


def tail_below_mean(row: Row) -> Iterator[Finding]:
    """Possible if a few are very much longer than all others, and then the mean says nothing."""
    for stem in ("ttft", "tpot", "e2el"):
        mean, tail = row.figures.get(f"mean_{stem}_ms"), row.figures.get(f"p99_{stem}_ms")
        if mean and tail and mean.value > 0 and bounds(tail)[1] < bounds(mean)[0]:
            yield Finding(
                "consistency.tail_below_mean",
                "doubt",
                f"P99 of {stem.upper()} ({tail.value:,.2f} ms) lies below its mean ({mean.value:,.2f} ms).",
                "Either they are of different requests, or one in a hundred took so long that the mean is theirs.",
                at([row], f"mean_{stem}_ms", f"p99_{stem}_ms"),
            )


def end_before_first(row: Row) -> Iterator[Finding]:
    """No request ends before its first token, so that no statistic of the ends lies below that of the first tokens."""
    wrong = []
    if row.tool == "dyno":  # it leaves first tokens out whose arrival it doesn't know
        return
    for word in ("mean", "median", "p50", "p90", "p95", "p99"):
        first, end = row.figures.get(f"{word}_ttft_ms"), row.figures.get(f"{word}_e2el_ms")
        if first and end and end.value > 0 and bounds(end)[1] < bounds(first)[0] * 0.99:
            wrong.append(f"{word} TTFT {first.value:,.2f} ms, {word} E2EL {end.value:,.2f} ms")
    if wrong:
        yield Finding(
            "consistency.end_before_first",
            "void",
            f"Requests end before their first token: {'; '.join(wrong)}.",
            "The two are of different requests, or a unit is wrong.",
            at([row], "mean_ttft_ms", "mean_e2el_ms"),
        )


def latencies(row: Row) -> Iterator[Finding]:
    """From the first token to the end it takes as many gaps as there are chunks, and at most tokens − 1."""
    first, end, gap = (row.figures.get(f"mean_{s}_ms") for s in ("ttft", "e2el", "itl"))
    each = output_each(row)
    if row.tool not in ("vllm", "sglang", "dyno") or not (first and end and gap and each) or each < 2:
        return
    told, most = end.value - first.value, gap.value * (each - 1)
    if told > 1.1 * most + 2.0 and gap.value > 0:
        yield Finding(
            "consistency.latencies",
            "doubt",
            f"From first token to end it took {told:,.0f} ms on average, but {each:.1f} tokens at {gap.value:.2f} ms "
            f"each (ITL) take {most:,.0f} ms at most.",
            "TTFT, ITL and E2EL are not of the same requests, or tokens were counted short.",
            at([row], "mean_ttft_ms", "mean_itl_ms", "mean_e2el_ms"),
        )


def in_flight(row: Row) -> Iterator[Finding]:
    """Little's law: requests/s times the seconds that each was there. More than were let in can't be."""
    rps, each, first = requests_per_s(row), output_each(row), row.get("mean_ttft_ms")
    limits = {
        "concurrency": row.number("concurrency"),
        "requests": (sent(row) or (row.get("completed") or 0.0, ""))[0] or None,
    }
    known = {name: value for name, value in limits.items() if value}
    if row.kind != "serve" or rps is None or not known or row.tool not in ("vllm", "sglang", "dyno", ""):
        return
    name, most = min(known.items(), key=lambda kv: kv[1])
    cap = f"a concurrency of {most:g}" if name == "concurrency" else f"{most:g} requests in all"
    e2el, tpot = row.get("mean_e2el_ms"), row.get("mean_tpot_ms")
    if e2el is not None and rps * e2el / 1000 > OVER * most + 0.5:
        yield Finding(
            "consistency.in_flight",
            "void",
            f"{rps:.2f} requests/s that take {e2el / 1000:,.2f} s each are {rps * e2el / 1000:,.0f} in flight, "
            f"with {cap}.",
            "Latency, rate and limit can't all be true. Look into the raw results.",
            at([row], "request_throughput", "mean_e2el_ms"),
        )
    if e2el is None and tpot and first is not None and each and each > 1:
        there = rps * (first + (each - 1) * tpot) / 1000
        if there > OVER * most + 0.5:
            itl = row.get("mean_itl_ms")
            by_gaps = f"; by the gaps (ITL) {rps * (first + (each - 1) * itl) / 1000:,.0f}" if itl else ""
            yield Finding(
                "consistency.mean_tpot",
                # With no limit at all it is so with every set of chats, and nobody chose a level to compare.
                "doubt" if there > FAR_OVER * most and (name == "concurrency" or finite_rate(row)) else "note",
                f"By its mean TPOT of {tpot:,.1f} ms, {there:,.0f} requests would be in flight, with {cap}{by_gaps}.",
                "The mean TPOT is that of short answers, which wait for a batch of steps: use the median, or ITL.",
                at([row], "mean_tpot_ms", "mean_itl_ms"),
            )


def beyond_the_run(row: Row) -> Iterator[Finding]:
    """A median request that takes longer than all requests together."""
    middle, each, took = row.get("median_tpot_ms"), output_each(row), duration(row)
    if row.kind != "serve" or row.tool not in ("vllm", "sglang", "dyno") or not (middle and each and took) or each < 2:
        return
    long_s = middle * (each - 1) / 1000
    if long_s > 1.5 * took.value:
        same = each == round(each)  # all answers have that length
        yield Finding(
            "consistency.beyond_the_run",
            "void" if same and long_s > 2 * took.value else "doubt",
            f"At its median TPOT of {middle:,.1f} ms, an answer of {each:,.0f} tokens takes {long_s:,.0f} s, in a run "
            f"of {took.value:,.1f} s.",
            "That is no time per token. Tokens came all at once, or were counted wrongly.",
            at([row], "median_tpot_ms", "duration_s"),
        )


def batch_counts(row: Row) -> Iterator[Finding]:
    """Offline: requests × (input + output) against the tokens that are told."""
    read, made, count, total = (
        row.number("input_len"), row.number("output_len"), row.get("completed"), row.get("total_tokens"),
    )  # fmt: skip
    if row.kind == "serve" or not (read and made and count and total):
        return
    here = count * (read + made)
    if abs(total / here - 1) > 0.02:
        yield Finding(
            "consistency.tokens",
            "doubt",
            f"{count:,.0f} requests of {read:,.0f} + {made:,.0f} tokens are {here:,.0f}, and {total:,.0f} is told.",
            "Its lengths or its count are not those of this row.",
            at([row], "total_tokens", "completed"),
        )


def zero_first_token(row: Row) -> Iterator[Finding]:
    """A first token that takes no time."""
    mean, median = row.figures.get("mean_ttft_ms"), row.figures.get("median_ttft_ms")
    others = [row.get(f"mean_{s}_ms") for s in ("tpot", "itl")]
    if row.samples and row.samples.ttfts_ms:
        return  # requests.zeros_in_mean knows more
    if any(f is not None and f.value == 0 for f in (mean, median)) and any(others) and row.get("completed"):
        yield Finding(
            "consistency.zero_ttft",
            "doubt",
            "The first token is said to take 0 ms" + (" at the median." if mean and mean.value else "."),
            "Answers without a token, or tokens that the client took for something else, were counted with zero.",
            at([row], "mean_ttft_ms", "median_ttft_ms"),
        )


def peak(row: Row) -> Iterator[Finding]:
    highest, mean = row.figures.get("peak_output_throughput"), row.figures.get("output_throughput")
    # dyno's is of a whole second, and some runs are shorter.
    if row.tool != "dyno" and highest and mean and bounds(highest)[1] < bounds(mean)[0]:
        yield Finding(
            "consistency.peak_below_mean",
            "note",
            f"The peak output throughput ({highest.value:,.0f} tok/s) lies below the mean ({mean.value:,.0f} tok/s).",
            "The tool counts chunks for the peak, and a chunk holds several tokens. Don't use the peak.",
            at([row], "peak_output_throughput", "output_throughput"),
        )


def two_runs(row: Row) -> Iterator[Finding]:
    """Offline: tokens of the batch by its latency against the throughput beside it."""
    batch, read, made = row.number("batch_size"), row.number("input_len"), row.number("output_len")
    latency = row.get("mean_latency_ms") or row.get("mean_e2el_ms")
    told = row.figures.get("total_token_throughput")
    if row.kind == "serve" or not (batch and read and made and latency and told):
        return
    here = batch * (read + made) / (latency / 1000)
    off = told.value / here - 1
    if abs(off) > 0.02:
        yield Finding(
            "consistency.two_runs",
            "void" if abs(off) > 0.5 else "doubt",
            f"{batch:g} × ({read:g} + {made:g}) tokens in {latency / 1000:,.2f} s are {here:,.1f} tok/s, and "
            f"{told.value:,.1f} is told ({off:+.1%}).",
            "Latency and throughput of this row are of different runs, or its batch size is another one.",
            at([row], "mean_latency_ms", "mean_e2el_ms", "total_token_throughput"),
        )


def price(row: Row) -> Iterator[Finding]:
    told, hour = row.figures.get("cost_per_million_tokens"), row.number("price_per_hour")
    speeds = [s for name in TOKEN_THROUGHPUTS if (s := row.get(name))]
    if told is None or not hour or not speeds:
        return
    costs = [cost for speed in speeds if (cost := per_million(hour, speed)) is not None]
    if all(abs(told.value / cost - 1) > WRONG for cost in costs):
        yield Finding(
            "consistency.price",
            "doubt",
            f"{hour:g} an hour at {speeds[0]:,.1f} tok/s are {costs[0]:,.2f} for a million tokens, and "
            f"{told.value:,.2f} is told.",
            "Say which tokens are counted, and for how many machines the price is.",
            at([row], "cost_per_million_tokens"),
        )


def rate_exceeds(row: Row) -> Iterator[Finding]:
    """More requests served each second than were sent."""
    offered, rps = finite_rate(row), requests_per_s(row)
    done = row.get("completed") or row.number("num_prompts") or 0.0
    if offered and rps and done >= 100 and rps > 1.25 * offered:
        yield Finding(
            "consistency.more_than_offered",
            "doubt",
            f"{rps:.2f} requests/s were served, where {offered:g} were offered.",
            "The rate is not the one of this run, or requests were not sent as planned.",
            at([row], "request_throughput"),
        )
