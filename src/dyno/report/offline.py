"""The printed result of an offline benchmark, throughput or latency: in the look of the serving block."""

from dyno.facts.offline import OfflineSummary
from dyno.facts.spread import Distribution, Spread
from dyno.facts.summary import Result
from dyno.facts.trial import TrialSpec
from dyno.report import roofline
from dyno.report.block import labelled, telemetry_lines, verdict_lines


def block(result: Result, trial: TrialSpec, warmups: int) -> str:
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
        lines += [labelled(*told) for told in roofline.lines(result.roofline)]
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
