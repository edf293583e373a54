"""The printed result of a benchmark: vLLM's block line for line, then what dyno adds."""

from collections.abc import Iterator, Sequence

from dyno.facts.finding import Finding
from dyno.facts.load import LoadSpec
from dyno.facts.metric import KEYS, LATENCIES, METRICS, Metric
from dyno.facts.offline import OfflineSummary, Speculation
from dyno.facts.spread import Distribution, Latency, Spread
from dyno.facts.structured import StructuredSummary
from dyno.facts.summary import (
    ClassSummary,
    ClientSummary,
    MediaSummary,
    ProbeSummary,
    ReplaySummary,
    Result,
    ReuseSummary,
    SessionSummary,
    Steady,
    Summary,
    reported_share,
)
from dyno.facts.trial import TrialSpec
from dyno.numbers import UNKNOWN, count, deviating, number, percent
from dyno.report import short_run
from dyno.report.machine import roofline_pairs, telemetry_pairs
from dyno.report.table import terminal, text_table
from dyno.screen import styled, verdict_style, wrapped
from dyno.workload.request import Histories

# Figures of vLLM's block, in its order, after the load's own lines.
_COPIED = (
    "duration_s", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
    "output_throughput", "peak_output_throughput", "peak_concurrency", "total_token_throughput",
)  # fmt: skip
# of answers in one piece, which have no first token and no gaps between tokens
_WHOLE_LATENCIES = ("e2el",)
_INDENT = " " * 8


def block(
    result: Result, trial: TrialSpec, metrics: list[str], answers: Histories | None = None
) -> str:
    """Return the block of a served run. `answers`: in the history of conversations."""
    s = result.served
    absent = s.absent
    lines = [f"{' Serving Benchmark Result ':=^50}"]
    lines.append(_copied_figure(METRICS["completed"], s))
    lines.append(_failed(s.failed))
    lines += _copied_load(trial)
    for name in _COPIED:
        if name not in absent and (name != "request_goodput" or trial.goodput_ms):
            lines.append(_copied_figure(METRICS[name], s))
    lines += _contents(s)
    for key in metrics if not s.whole else _WHOLE_LATENCIES:
        lines += _distribution(KEYS[key], s)
    if s.reasoning_tokens is not None:
        lines += _reasoning(s)
    if s.sessions is not None:
        lines += _sessions(s.sessions, metrics)
    lines += _classes(s.classes)
    lines.append(f"{'dyno':-^50}")
    if answers is not None:
        words = "server and recorded" if answers == "mixed" else answers
        lines.append(labelled("Answers in the history:", words))
    lines += _own(result, trial.load)
    if result.roofline is not None:
        lines += [labelled(*pair) for pair in roofline_pairs(result.roofline)]
    lines += telemetry_lines(result)
    lines.append("=" * 50)
    lines += verdict_lines(result)
    return "\n".join(lines)


def _contents(s: Summary) -> Iterator[str]:
    """Yield what requests and answers have besides text."""
    if s.results is not None:
        yield _copied("Total input sequences:", s.results)
        yield _copied("Input sequence throughput (seq/s):", s.result_throughput)
    if s.probes is not None:
        yield from _probes(s.probes)
    if s.structured is not None:
        yield from _structured(s.structured)
    if s.media is not None:
        yield from _media(s.media)


def _structured(forms: StructuredSummary) -> Iterator[str]:
    yield f"{'Structured Output':-^50}"
    yield labelled("Answers with a prescribed form:", forms.checked)
    yield labelled("  valid:", f"{count(forms.valid)} ({percent(forms.valid_share)})")
    for kind, answers in forms.problems.items():
        yield styled(labelled(f"  {kind}:", answers), "bad")
    if forms.calls:
        yield labelled("Tool calls:", forms.calls)
    if forms.without_call:
        yield labelled("Answers without a call:", forms.without_call)
    pairs = (
        ("TTFT", forms.ttft_ms, forms.free_ttft_ms),
        ("TPOT", forms.tpot_ms, forms.free_tpot_ms),
    )
    for name, own, free in pairs:
        if own is not None and free is not None:
            yield labelled(
                f"{name} p50, prescribed / free (ms):", f"{number(own)} / {number(free)}"
            )


def _media(m: MediaSummary) -> Iterator[str]:
    yield f"{'Images and Sounds':-^50}"
    yield labelled("Images, videos and sounds:", m.items)
    yield labelled("  per second:", m.item_throughput)
    if m.rtfx is not None:
        yield labelled("Sound (s):", m.audio_s)
        yield labelled("RTFx (seconds of sound per second):", m.rtfx)
    if m.media_tokens is not None:
        yield labelled("Their tokens, by the server:", m.media_tokens)
    if m.ruled_tokens is not None:
        yield labelled(f"  by the rule of {m.rule}:", m.ruled_tokens)


def _copied_load(trial: TrialSpec) -> Iterator[str]:
    load = trial.load
    sessions = trial.workload.traits.sessions
    if load.max_concurrency is not None:
        label = (
            "Maximum concurrent sessions:" if sessions else "Maximum request concurrency:"
        )
        yield _copied(label, load.max_concurrency)
    if load.request_rate_rps is not None:
        label = (
            "Session rate configured (sessions/s):"
            if sessions
            else "Request rate configured (RPS):"
        )
        yield _copied(label, float(load.request_rate_rps))


def _own(result: Result, load: LoadSpec) -> Iterator[str]:
    """Yield the lines that dyno adds to vLLM's block."""
    s = result.served
    yield from _incomplete(s)
    if s.results is None:
        yield labelled("Output tokens counted by:", ", ".join(s.tokens_by) or UNKNOWN)
    if s.steady is not None:
        yield from _steady(s.steady, s.bounds.get("steady_output_throughput"))
    if s.reuse is not None and s.reuse.possible_tokens:
        yield from _reuse(s.reuse, reported_share(s, result.telemetry))
    if s.replicas:
        yield labelled("Replicas:", len(s.replicas))
        yield labelled(
            "  Completed by each:", " / ".join(count(r.completed) for r in s.replicas)
        )
        yield labelled(
            "  Mean TPOT of each (ms):",
            " / ".join(number(r.tpot_mean_ms) for r in s.replicas),
        )
    yield from _figures("own_tpot", s)
    if per_token := s.latencies.get("itl_per_token"):
        yield labelled(
            "Mean ITL per token (ms):", _statistic(per_token, "mean", per_token.mean)
        )
    if s.silent_chunks:
        yield labelled(
            "Events without text:", f"{count(s.silent_chunks)} of {count(s.events)}"
        )
    yield from _figures("itl_text", s)
    yield from _schedule(s, load)
    if s.replay is not None:
        yield from _replay(s.replay)
    yield from _client(s.client)


def _incomplete(s: Summary) -> Iterator[str]:
    """Yield the requests that failed, were cancelled or skipped, or ended without text."""
    for kind, failed in s.failures.items():
        yield styled(labelled(f"Failed, {kind}:", failed), "bad")
    if s.cancelling is not None:
        yield labelled("Cancelled requests:", s.cancelled)
        yield labelled("  Output tokens received:", s.cancelling.received_tokens)
        if s.cancelling.undelivered_tokens is not None:
            yield labelled(
                "  Output tokens not delivered:", s.cancelling.undelivered_tokens
            )
    if s.skipped:
        yield labelled("Skipped requests (session failed):", s.skipped)
    if s.end_at_once:
        yield labelled("Ended at once (no text):", s.end_at_once)


def _steady(steady: Steady, output_bounds: tuple[float, float] | None) -> Iterator[str]:
    yield labelled("Steady window (s):", between((steady.start_s, steady.end_s)))
    yield labelled("  Request throughput (req/s):", _value(steady.request_throughput))
    yield labelled(
        "  Output token throughput (tok/s):",
        _value(steady.output_throughput, output_bounds),
    )
    yield labelled("  Concurrency, mean:", steady.streams_mean)


def _reuse(reuse: ReuseSummary, reported: float | None) -> Iterator[str]:
    low, high = percent(reuse.possible_share), percent(reuse.most_share)
    yield labelled("Prefix reuse, possible:", low if low == high else f"{low} to {high}")
    yield labelled("  within sessions:", percent(reuse.own_tokens / reuse.prompt_tokens))
    yield labelled(
        "  reported by the server:", UNKNOWN if reported is None else percent(reported)
    )


def _schedule(s: Summary, load: LoadSpec) -> Iterator[str]:
    """Yield how requests were due, and their latencies since then."""
    for label, schedule in (
        ("Rate", load.rate_schedule),
        ("Concurrency", load.concurrency_schedule),
    ):
        if schedule:
            yield labelled(f"{label} schedule:", schedule)
    if not load.closed_loop:
        for stem in ("response_ttft", "response_e2el"):
            d = s.latencies[stem]
            if d.empty and s.whole:
                continue
            yield labelled(
                f"Mean {LATENCIES[stem].words} (ms):", _value(d.mean, d.bounds.get("mean"))
            )


def _replay(r: ReplaySummary) -> Iterator[str]:
    yield labelled(
        "Request rate, recorded / sent (req/s):",
        f"{number(r.recorded_rps)} / {number(r.sent_rps)}",
    )
    late_ms = (number(r.late_mean_ms), number(r.late_p99_ms), number(r.late_max_ms))
    yield labelled("Replay delay, mean / p99 / max (ms):", " / ".join(late_ms))


def _client(client: ClientSummary) -> Iterator[str]:
    if client.processes:
        yield labelled("Client processes:", len(client.processes))
    late = client.send_late
    yield labelled(
        "Client send delay, mean / p99 (ms):",
        f"{number(late.mean)} / {number(late.percentiles['99'])}",
    )
    if client.kernel_stamps:
        delays = f"{number(client.read_late_mean_ms)} / {number(client.read_late_max_ms)}"
        yield labelled("Client read delay, mean / max (ms):", delays)
    if client.cpu_share is not None:
        busiest = ", busiest process" if client.processes else ""
        yield labelled(f"Client CPU (of one core{busiest}):", percent(client.cpu_share))


def _figures(stem: str, s: Summary) -> list[str]:
    """Return mean, median and percentiles of a latency of dyno's own, where the run has it."""
    if stem not in s.latencies:
        return []
    d, name = s.latencies[stem], LATENCIES[stem].words
    lines = [labelled(f"{name}, mean (ms):", _statistic(d, "mean", d.mean))]
    lines.append(labelled("  p50:", _statistic(d, "median", d.median)))
    for p, value in d.percentiles.items():
        if p != "50":
            lines.append(labelled(f"  p{p}:", _statistic(d, p, value)))
    return lines


def _probes(probes: ProbeSummary) -> list[str]:
    """Return vLLM's lines about the probes."""
    times = probes.e2el
    return [
        f"{'Probe Requests':-^50}",
        _copied("Probe requests completed:", probes.completed),
        _copied("Probe requests failed:", probes.failed),
        _copied("Median probe E2EL (ms):", times.median, times.bounds.get("median")),
        _copied("P99 probe E2EL (ms):", times.percentiles["99"], times.bounds.get("99")),
        _copied("Max probe E2EL (ms):", times.percentiles["100"], times.bounds.get("100")),
    ]


def _reasoning(s: Summary) -> list[str]:
    lines = [f"{'Reasoning':-^50}"]
    if s.reasoning:
        lines.append(labelled("Requests with reasoning:", s.reasoning))
    if s.unanswered:
        lines.append(labelled("  without an answer:", s.unanswered))
    lines.append(labelled("Reasoning tokens:", s.reasoning_tokens or 0))
    lines.append(labelled("Answer tokens:", s.answer_tokens or 0))
    return lines + _distribution("ttfo", s)


def _sessions(s: SessionSummary, metrics: list[str]) -> list[str]:
    lines = [f"{'Sessions':-^50}", labelled("Completed sessions:", s.completed)]
    for name in ("failed", "cancelled", "unfinished"):
        if sessions := getattr(s, name):
            text = labelled(f"{name.capitalize()} sessions:", sessions)
            lines.append(styled(text, "bad" if name == "failed" else ""))
    lines.append(labelled("Session throughput (sessions/s):", s.throughput))
    lines.append(labelled("Turn throughput (requests/s):", s.turn_throughput))
    lines.append(labelled("Requests per session, mean:", s.turns_mean))
    for stem, d in s.latencies.items():
        if not stem.endswith("e2el") or "e2el" in metrics:
            lines.append(
                labelled(
                    f"{_upper(LATENCIES[stem].words)}, p50 (ms):",
                    _statistic(d, "median", d.median),
                )
            )
            for p, value in d.percentiles.items():
                lines.append(labelled(f"  p{p}:", _statistic(d, p, value)))
    return lines


def _statistic(d: Latency, name: str, value: float | None) -> str:
    if d.empty:
        return UNKNOWN
    return between(d.bounds.get(name)) if value is None else number(value)


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _classes(classes: Sequence[ClassSummary]) -> list[str]:
    if not classes:
        return []
    tails = list(classes[0].ttft.percentiles)[-1:]
    lost = ["failed", "cancelled"] if any(c.cancelled for c in classes) else ["failed"]
    titles = [
        "class",
        "completed",
        *lost,
        "req/s",
        "goodput",
        "TTFT p50",
        *(f"TTFT p{t}" for t in tails),
        "TPOT p50",
    ]
    rows = []
    for c in classes:
        good = between(c.goodput_bounds) if c.goodput is None else number(c.goodput)
        tail = [_statistic(c.ttft, t, c.ttft.percentiles[t]) for t in tails]
        ttft = _statistic(c.ttft, "median", c.ttft.median)
        tpot = _statistic(c.tpot, "median", c.tpot.median)
        counts = [
            count(c.completed),
            *(count(getattr(c, name)) for name in lost),
            number(c.request_throughput),
        ]
        rows.append([c.name, *counts, good, ttft, *tail, tpot])
    return [f"{'Traffic Classes':-^50}", *terminal(text_table(titles, rows))]


def offline_block(result: Result, trial: TrialSpec, warmups: int) -> str:
    """Return the block of an offline run. `warmups`: iterations before the measured ones."""
    s = result.offline
    assert s is not None
    lines = [f"{f' {s.kind.capitalize()} Benchmark Result ':=^50}"]
    lines.append(labelled("Successful requests:", s.completed))
    lines.append(_failed(s.failed))
    lines.append(labelled("Requests per iteration:", s.requests))
    lines.append(
        labelled(
            "Iterations, warm-up / measured:", f"{count(warmups)} / {count(s.iterations)}"
        )
    )
    if trial.workload.num_warmups and s.kind == "throughput":
        lines.append(labelled("Warm-up prompts:", trial.workload.num_warmups))
    lines += _offline_totals(s)
    lines += _latency(s.latency, s.first_latency_ms)
    lines += _phases(s)
    lines += _engine(s)
    if s.speculation is not None:
        lines += _speculation(s.speculation)
    if result.roofline is not None:
        lines.append(f"{'Hardware Utilization':-^50}")
        lines += [labelled(*pair) for pair in roofline_pairs(result.roofline)]
    lines += telemetry_lines(result)
    lines.append("=" * 50)
    lines += vllm_lines(s)
    lines += verdict_lines(result)
    return "\n".join(lines)


def _offline_totals(s: OfflineSummary) -> Iterator[str]:
    yield labelled("Benchmark duration (s):", s.duration_s)
    yield labelled("Total input tokens:", s.input_tokens)
    if s.cached_input_tokens:
        yield labelled("  from cache:", s.cached_input_tokens)
    yield labelled("Total generated tokens:", s.output_tokens)
    yield labelled("  requested:", s.wanted_output_tokens)
    yield from _spread("Request throughput (req/s):", s.request_throughput)
    yield from _spread("Output token throughput (tok/s):", s.output_throughput)
    yield from _spread("Total token throughput (tok/s):", s.total_token_throughput)
    if s.replicas:
        yield labelled("Replicas:", len(s.replicas))
        yield labelled(
            "  Output tok/s of each:",
            " / ".join(number(r.output_throughput.mean) for r in s.replicas),
        )
        yield labelled(
            "  Began after the first, at most (ms):", max(r.late_ms for r in s.replicas)
        )


def _phases(s: OfflineSummary) -> Iterator[str]:
    if s.prefill_ms is not None or s.decode_ms is not None or s.tpot_ms is not None:
        yield f"{'Per Request':-^50}"
        yield from _spread("Prefill, mean (ms):", s.prefill_ms)
        yield from _spread("Decode, mean (ms):", s.decode_ms)
        yield from _spread("TPOT, mean (ms):", s.tpot_ms)


def _engine(s: OfflineSummary) -> Iterator[str]:
    if (
        s.prefill_speed is not None
        or s.decode_speed is not None
        or s.in_flight_mean is not None
    ):
        yield f"{'Engine':-^50}"
        yield from _spread("Prefill speed (tok/s of prompts):", s.prefill_speed)
        yield from _spread("Decode speed (tok/s of outputs):", s.decode_speed)
        if s.in_flight_mean is not None:
            yield labelled("Concurrency, mean:", s.in_flight_mean)
        if s.context_mean:
            yield labelled("Context while decoding, mean (tokens):", s.context_mean)


def _speculation(speculation: Speculation) -> Iterator[str]:
    yield f"{'Speculative Decoding':-^50}"
    yield labelled("Acceptance rate:", percent(speculation.acceptance))
    if speculation.tokens_per_step is not None:
        yield labelled("Acceptance length:", speculation.tokens_per_step)
    if speculation.drafts is not None:
        yield labelled("Drafts:", speculation.drafts)
    yield labelled("Drafted tokens:", speculation.drafted_tokens)
    yield labelled("Accepted tokens:", speculation.accepted_tokens)


def _spread(label: str, value: Spread | None) -> Iterator[str]:
    if value is not None and value.count:
        yield labelled(label, str(value))


def _latency(d: Distribution, first_ms: float) -> list[str]:
    lines = [f"{'Latency per Iteration':-^50}"]
    if d.empty:  # no sample, no number: a 0.00 would be read as one
        return [*lines, labelled("Mean latency (ms):", UNKNOWN)]
    lines.append(
        labelled("Mean latency (ms):", deviating(d.mean, d.std if d.count > 1 else None))
    )
    if d.count > 1:
        lines += [labelled(f"P{p} latency (ms):", v) for p, v in d.percentiles.items()]
        lines.append(labelled("First iteration (ms):", first_ms))
    return lines


def vllm_lines(s: OfflineSummary) -> list[str]:
    """Return figures as vLLM prints them, for scripts."""
    if not s.completed:
        return []
    if s.kind == "throughput":
        rates = (s.request_throughput, s.total_token_throughput, s.output_throughput)
        requests, total, output = (f"{rate.mean:.2f}" for rate in rates)
        return [
            f"Throughput: {requests} requests/s, {total} total tokens/s, {output} output tokens/s",
            f"Total num prompt tokens:  {round(s.input_tokens / s.iterations)}",
            f"Total num output tokens:  {round(s.output_tokens / s.iterations)}",
        ]
    return [
        f"Avg latency: {s.latency.mean / 1e3} seconds",
        *(
            f"{p}% percentile latency: {v / 1e3} seconds"
            for p, v in s.latency.percentiles.items()
        ),
    ]


def labelled(label: str, value: int | float | str) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, float):
        text = number(value)
    else:
        text = count(value)
    return "\n".join(wrapped(text, f"{label:<40} ", " " * 41))


def _copied(
    label: str, value: int | float | None, bounds: tuple[float, float] | None = None
) -> str:
    """Return a line as vLLM prints it: two decimals, no separators. Of a figure that a busy client doesn't know, its
    bounds."""
    if value is None:
        text = "-" if bounds is None else f"{bounds[0]:.2f} to {bounds[1]:.2f}"
    else:
        text = f"{value:.2f}" if isinstance(value, float) else f"{value}"
    return f"{label:<40} {text:<10}"


def _copied_figure(metric: Metric, s: Summary) -> str:
    value = s.figure(metric)
    # vLLM counts these, too, with decimals
    if metric.kind == "other" and value is not None:
        value = float(value)
    return _copied(f"{metric.label}:", value, s.bounds.get(metric.field))


def _failed(requests: int) -> str:
    return styled(f"{'Failed requests:':<40} {requests:<10}", "bad" if requests else "")


def telemetry_lines(result: Result) -> list[str]:
    if result.telemetry is None:
        return []
    return [
        f"{'telemetry':-^50}",
        *(labelled(label, value) for label, value in telemetry_pairs(result.telemetry)),
        *(
            f"Not sampled: {why}"
            for why in result.telemetry.absent
            if not why.startswith("host:")
        ),
    ]


def between(bounds: tuple[float, float] | None) -> str:
    """Return bounds of a figure that a busy client couldn't measure exactly."""
    return UNKNOWN if bounds is None else f"{number(bounds[0])} to {number(bounds[1])}"


def _value(value: float | None, bounds: tuple[float, float] | None = None) -> float | str:
    return between(bounds) if value is None else value


def _distribution(stem: str, s: Summary) -> list[str]:
    """Return a latency as vLLM prints it; nothing where the run hasn't got it."""
    if stem not in s.latencies:
        return []
    d, declared = s.latencies[stem], LATENCIES[stem]
    lines = [f"{declared.heading:-^50}"]
    values = [("Mean", d.mean, "mean"), ("Median", d.median, "median")]
    values += [(f"P{p}", v, p) for p, v in d.percentiles.items()]
    for name, value, key in values:
        label = f"{name} {declared.printed or declared.words} (ms):"
        # No samples, no number: a 0.00 would be read as one.
        lines.append(
            _copied(label, None) if d.empty else _copied(label, value, d.bounds.get(key))
        )
    return lines


def verdict_lines(result: Result) -> list[str]:
    lines = [f"Verdict: {styled(result.verdict, verdict_style(result.verdict))}"]
    short = short_run.join(result.findings)
    lines += wrapped(short.line)
    for finding in short.others:
        lines += finding_lines(finding)
    examples = result.summary.failure_examples if result.summary is not None else {}
    if result.offline is not None and result.offline.failure_example:
        examples = {"failure": result.offline.failure_example}
    for kind, detail in examples.items():
        if detail:
            lines += wrapped(f"first {kind}: {detail[:200]}", "  ", "    ")
    return lines


def finding_lines(finding: Finding) -> list[str]:
    level = f"{finding.level:<5}"
    first, *others = wrapped(f"{finding.code}: {finding.text}", f"  {level} ", _INDENT)
    return [
        first.replace(level, styled(level, verdict_style(finding.level)), 1),
        *others,
        *wrapped(finding.advice, _INDENT),
    ]
