"""The printed result of a benchmark: vLLM's block line for line, then what dyno adds."""

from textwrap import wrap

from dyno.facts.finding import Finding
from dyno.facts.offline import OfflineSummary
from dyno.facts.spread import Distribution, Latency, Spread
from dyno.facts.summary import Result
from dyno.facts.trial import TrialSpec
from dyno.report.machine import roofline_pairs, telemetry_pairs

# vLLM's name → the summary's, and how vLLM prints it
METRICS = {
    "ttft": ("ttft", "TTFT", "Time to First Token"),
    "tpot": ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("itl", "ITL", "Inter-token Latency"),
    "e2el": ("e2el", "E2EL", "End-to-end Latency"),
    "client_queue_time": ("queue", "Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": (
        "response_e2el",
        "E2EL incl. Client Queue",
        "Queue-inclusive End-to-end Latency",
    ),
}
_INDENT = " " * 8
_MARKS = {"note": "note ", "doubt": "doubt", "void": "VOID "}


def block(result: Result, trial: TrialSpec, metrics: list[str]) -> str:
    s = result.served
    load = trial.load
    lines = [f"{' Serving Benchmark Result ':=^50}"]

    def line(label: str, value: int | float | str | None, bounds: tuple[float, float] | None = None) -> None:
        lines.append(labelled(label, between(bounds) if value is None else value))

    line("Successful requests:", s.completed)
    line("Failed requests:", s.failed)
    if load.max_concurrency is not None:
        line("Maximum request concurrency:", load.max_concurrency)
    if load.request_rate_rps is not None:
        line("Request rate configured (RPS):", float(load.request_rate_rps))
    line("Benchmark duration (s):", s.duration_s)
    line("Total input tokens:", s.total_input_tokens)
    line("Total generated tokens:", s.total_output_tokens)
    line("Request throughput (req/s):", s.request_throughput)
    if trial.goodput_ms:
        line("Request goodput (req/s):", s.goodput, s.bounds.get("goodput"))
    line("Output token throughput (tok/s):", s.output_throughput)
    line("Peak output token throughput (tok/s):", s.peak_output_tokens_per_s, s.bounds.get("peak_output_tokens_per_s"))
    line("Peak concurrent requests:", float(s.client.streams_peak))
    line("Total token throughput (tok/s):", s.total_token_throughput)
    for metric in metrics:
        name, short, title = METRICS[metric]
        _distribution(lines, short, title, getattr(s, name))
    lines.append(f"{'dyno':-^50}")
    for kind, count in s.failures.items():
        line(f"Failed, {kind}:", count)
    if s.end_at_once:
        line("Ended at once (no text):", s.end_at_once)
    line("Output tokens counted by:", ", ".join(s.tokens_by) or "-")
    if s.steady is not None:
        line("Steady window (s):", f"{s.steady.start_s:.2f} to {s.steady.end_s:.2f}")
        line("  Request throughput (req/s):", s.steady.request_throughput)
        steady = s.bounds.get("steady_output_throughput")
        line("  Output token throughput (tok/s):", s.steady.output_throughput, steady)
        line("  Streams open, mean:", s.steady.streams_mean)
    if s.replicas:
        line("Replicas:", len(s.replicas))
        line("  Completed by each:", " / ".join(str(r.completed) for r in s.replicas))
        tpots = ["-" if r.tpot_mean_ms is None else f"{r.tpot_mean_ms:.2f}" for r in s.replicas]
        line("  Mean TPOT of each (ms):", " / ".join(tpots))
    if s.itl_per_token is not None:
        line("Mean ITL per token (ms):", s.itl_per_token.mean, s.itl_per_token.bounds.get("mean"))
    if not load.closed_loop:
        line("Mean TTFT from due (ms):", s.response_ttft.mean, s.response_ttft.bounds.get("mean"))
        line("Mean E2EL from due (ms):", s.response_e2el.mean, s.response_e2el.bounds.get("mean"))
    late = s.client.send_late
    line("Client: sent late, mean / p99 (ms):", f"{late.mean:.2f} / {late.percentiles['99']:.2f}")
    if s.client.kernel_stamps:
        line(
            "Client: read late, mean / max (ms):", f"{s.client.read_late_mean_ms:.2f} / {s.client.read_late_max_ms:.2f}"
        )
    line("Client: CPU (of one core):", f"{s.client.cpu_share:.0%}")
    if result.roofline is not None:
        for label, value in roofline_pairs(result.roofline):
            line(label, value)
    lines += telemetry_lines(result)
    lines.append("=" * 50)
    lines += verdict_lines(result)
    return "\n".join(lines)


def offline_block(result: Result, trial: TrialSpec, warmups: int) -> str:
    """`warmups`: iterations before the measured ones."""
    s = result.offline
    assert s is not None
    lines = [f"{f' {s.kind.capitalize()} Benchmark Result ':=^50}"]

    def line(label: str, value: int | float | str) -> None:
        lines.append(labelled(label, value))

    def spread(label: str, value: Spread | None) -> None:
        if value is not None and value.count:
            line(label, str(value))

    line("Successful requests:", s.completed)
    line("Failed requests:", s.failed)
    line("Requests of an iteration:", s.requests)
    line("Iterations, warm-up / measured:", f"{warmups} / {s.iterations}")
    if trial.workload.num_warmups and s.kind == "throughput":
        line("Warm-up prompts:", trial.workload.num_warmups)
    line("Benchmark duration (s):", s.duration_s)
    line("Total input tokens:", s.input_tokens)
    if s.cached_input_tokens:
        line("  of these from a cache:", s.cached_input_tokens)
    line("Total generated tokens:", s.output_tokens)
    line("  asked for:", s.wanted_output_tokens)
    spread("Request throughput (req/s):", s.request_throughput)
    spread("Output token throughput (tok/s):", s.output_throughput)
    spread("Total token throughput (tok/s):", s.total_token_throughput)
    lines += _latency(s.latency, s.first_latency_ms)
    if any(v is not None for v in (s.prefill_ms, s.decode_ms, s.tpot_ms)):
        lines.append(f"{'Of a Request':-^50}")
        spread("Prefill, mean (ms):", s.prefill_ms)
        spread("Decode, mean (ms):", s.decode_ms)
        spread("TPOT, mean (ms):", s.tpot_ms)
    if s.prefill_speed is not None or s.decode_speed is not None or s.in_flight_mean is not None:
        lines.append(f"{'Of the Engine':-^50}")
        spread("Prefill speed (tok/s of prompts):", s.prefill_speed)
        spread("Decode speed (tok/s of outputs):", s.decode_speed)
        if s.in_flight_mean is not None:
            line("Requests worked on at once, mean:", s.in_flight_mean)
        if s.context_mean:
            line("Context while decoding, mean (tokens):", s.context_mean)
    if s.speculation is not None:
        lines.append(f"{'Speculative Decoding':-^50}")
        line("Acceptance rate (%):", 100 * s.speculation.acceptance)
        if s.speculation.tokens_per_step is not None:
            line("Acceptance length:", s.speculation.tokens_per_step)
        if s.speculation.drafts is not None:
            line("Drafts:", s.speculation.drafts)
        line("Drafted tokens:", s.speculation.drafted_tokens)
        line("Accepted tokens:", s.speculation.accepted_tokens)
    if result.roofline is not None:
        lines.append(f"{'Of What the Machine Could':-^50}")
        lines += [labelled(*pair) for pair in roofline_pairs(result.roofline)]
    lines += telemetry_lines(result)
    lines.append("=" * 50)
    lines += vllm_lines(s)
    lines += verdict_lines(result)
    return "\n".join(lines)


def _latency(d: Distribution, first_ms: float) -> list[str]:
    lines = [f"{'Latency of an Iteration':-^50}"]
    if d.empty:  # no sample, no number: a 0.00 would be read as one
        return [*lines, labelled("Mean latency (ms):", "-")]
    lines.append(labelled("Mean latency (ms):", f"{d.mean:.2f} ± {d.std:.2f}" if d.count > 1 else d.mean))
    if d.count > 1:
        lines += [labelled(f"P{p} latency (ms):", v) for p, v in d.percentiles.items()]
        lines.append(labelled("First iteration (ms):", first_ms))
    return lines


def vllm_lines(s: OfflineSummary) -> list[str]:
    """As vLLM prints them, for scripts that look for them."""
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
        *(f"{p}% percentile latency: {v / 1e3} seconds" for p, v in s.latency.percentiles.items()),
    ]


def labelled(label: str, value: int | float | str) -> str:
    text = f"{value:<10.2f}" if isinstance(value, float) else f"{value:<10}"
    return f"{label:<40} {text}"


def telemetry_lines(result: Result) -> list[str]:
    if result.telemetry is None:
        return []
    return [
        f"{'telemetry':-^50}",
        *(labelled(label, value) for label, value in telemetry_pairs(result.telemetry)),
        *(f"Not sampled: {why}" for why in result.telemetry.absent if not why.startswith("host:")),
    ]


def between(bounds: tuple[float, float] | None) -> str:
    """Of a figure that a busy client doesn't know better."""
    return "-" if bounds is None else f"{bounds[0]:.2f} to {bounds[1]:.2f}"


def _distribution(lines: list[str], short: str, title: str, d: Distribution | Latency) -> None:
    lines.append(f"{title:-^50}")
    # No samples, no number: a 0.00 would be read as one.
    bounds = d.bounds if isinstance(d, Latency) else {}
    values = [("Mean", d.mean, "mean"), ("Median", d.median, "median")]
    for name, value, key in [*values, *((f"P{p}", v, p) for p, v in d.percentiles.items())]:
        shown = "-" if d.empty else between(bounds.get(key)) if value is None else f"{value:.2f}"
        lines.append(f"{f'{name} {short} (ms):':<40} {shown:<10}")


def verdict_lines(result: Result) -> list[str]:
    lines = [f"Verdict: {result.verdict}"]
    for finding in result.findings:
        lines += finding_lines(finding)
    examples = result.summary.failure_examples if result.summary is not None else {}
    if result.offline is not None and result.offline.failure_example:
        examples = {"failure": result.offline.failure_example}
    for kind, detail in examples.items():
        if detail:
            lines.append(f"  first {kind}: {detail[:200]}")
    return lines


def finding_lines(finding: Finding) -> list[str]:
    text = f"  {_MARKS[finding.level]} {finding.code}: {finding.text}"
    return [
        *wrap(text, 100, subsequent_indent=_INDENT),
        *wrap(finding.advice, 100, initial_indent=_INDENT, subsequent_indent=_INDENT),
    ]
