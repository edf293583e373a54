"""The roofline: which share of memory bandwidth and of arithmetic a figure amounts to. METHOD.md has the formulas."""

from dyno.facts.engine import EngineSpec
from dyno.facts.model import ModelShape
from dyno.facts.offline import OfflineSummary
from dyno.facts.roofline import Peaks, Roofline, Share
from dyno.facts.summary import Summary
from dyno.facts.target import TargetFacts
from dyno.facts.telemetry import TelemetrySummary
from dyno.measure.loaded import Loaded, as_loaded

ALONE = 1.05  # streams: up to this, a first token's latency is that of one prompt
_SPECULATES = ("--spec", "--draft", "-md", "--model-draft", "--lookup")


def of_served(
    summary: Summary,
    shape: ModelShape,
    spec: EngineSpec | None,
    target: TargetFacts,
    peaks: Peaks,
    telemetry: TelemetrySummary | None = None,
    shared_prefix: int = 0,
) -> Roofline | None:
    """None: the shape says too little. `shared_prefix`: tokens with which all prompts begin."""
    loaded = as_loaded(shape, spec, target)
    if loaded is None or not summary.completed:
        return None
    copies = spec.replicas if spec else 1
    streams = summary.steady.streams_mean if summary.steady else summary.client.streams_mean
    cached = summary.cached_input_tokens
    if cached is None and telemetry is not None:
        cached = round(telemetry.total("prefix_hit_tokens") or 0)
    prompt = max(summary.total_input_tokens - (cached or 0), 0) / summary.completed
    shares: list[Share] = []
    per_step = _tokens_per_step(spec, telemetry)
    if summary.tpot.mean and per_step is not None:
        tpot_s = summary.tpot.mean / 1000
        throughput = (summary.steady and summary.steady.output_throughput) or summary.output_throughput
        # Those that wait or have their prompt processed are in flight too, and read no cache yet.
        at_once = min(streams, max(throughput * tpot_s, float(copies))) / copies
        batch = max(min(at_once, target.slots or at_once), 1.0)
        context = (summary.total_input_tokens + summary.total_output_tokens / 2) / summary.completed
        shared = max((cached or 0) / summary.completed, shared_prefix)
        shares.append(_decode(loaded, peaks, batch, context, tpot_s * per_step, per_step, copies, shared))
    if summary.ttft.mean and streams <= ALONE and prompt:
        before = (cached or 0) / summary.completed
        shares.append(_prefill(loaded, peaks, prompt / (summary.ttft.mean / 1000), prompt, before))
    if summary.duration_s > 0:
        output = summary.total_output_tokens / summary.completed
        requests_per_s = summary.completed / summary.duration_s
        shares.append(_whole(loaded, peaks, prompt, output, requests_per_s))
    return _roofline(loaded, peaks, shares)


def of_offline(
    summary: OfflineSummary,
    shape: ModelShape,
    spec: EngineSpec | None,
    target: TargetFacts | None,
    peaks: Peaks,
    shared_prefix: int = 0,
) -> Roofline | None:
    """None: the shape says too little. `shared_prefix`: tokens with which all prompts begin."""
    loaded = as_loaded(shape, spec, target)
    if loaded is None or not summary.completed:
        return None
    copies = spec.replicas if spec else 1
    prompt = max(summary.input_tokens - (summary.cached_input_tokens or 0), 0) / summary.completed
    output = summary.output_tokens / summary.completed
    shares: list[Share] = []
    drafted, decoded = summary.speculation, summary.decoded_tokens
    if drafted and decoded > drafted.accepted_tokens:
        # Of all steps: n-grams aren't found in each, and those without a draft give one token. The first token is none
        # of them: the prompt gave it.
        per_step: float | None = decoded / (decoded - drafted.accepted_tokens)
    else:
        per_step = _tokens_per_step(spec, None)
    pace = _decode_pace(summary)
    if pace is not None and per_step is not None:
        token_s, at_once = pace
        batch = max(at_once / copies, 1.0)
        shared = max((summary.cached_input_tokens or 0) / summary.completed, shared_prefix)
        step_s = token_s * per_step
        shares.append(_decode(loaded, peaks, batch, summary.context_mean, step_s, per_step, copies, shared))
    speed = summary.prefill_speed.mean if summary.prefill_speed else None
    if speed is None and summary.kind == "micro" and not summary.output_tokens:
        speed = summary.total_token_throughput.mean
    if speed and prompt:
        before = (summary.cached_input_tokens or 0) / summary.completed
        shares.append(_prefill(loaded, peaks, speed, prompt, before))
    if summary.duration_s > 0:
        shares.append(_whole(loaded, peaks, prompt, output, summary.completed / summary.duration_s))
    return _roofline(loaded, peaks, shares)


def _decode_pace(s: OfflineSummary) -> tuple[float, float] | None:
    """Seconds for each token of a request, and how many requests were decoding at once."""
    speed = s.decode_speed.mean if s.decode_speed else None
    if speed is None and s.kind == "micro" and s.output_tokens and not s.input_tokens:
        speed = s.output_throughput.mean
    tpot_s = s.tpot_ms.mean / 1000 if s.tpot_ms else None
    if tpot_s:
        return tpot_s, min(speed * tpot_s, float(s.requests)) if speed else s.in_flight_mean or 1.0
    if not speed:
        return None
    at_once = 1.0 if s.kind == "micro" else s.in_flight_mean
    return None if at_once is None else (at_once / speed, at_once)


def bandwidth_at(peaks: Peaks, size_bytes: float) -> float | None:
    """Bytes/s for so many that are read again and again. None: they fit a cache whose speed isn't known."""
    if peaks.bandwidth_by_size:
        below = [size for size in peaks.bandwidth_by_size if size <= size_bytes]
        return peaks.bandwidth_by_size[max(below)] if below else None
    return None if peaks.cache_bytes and size_bytes <= peaks.cache_bytes else peaks.bandwidth


def precision_of(loaded: Loaded, peaks: Peaks) -> str:
    """Of those in which it may be reckoned, the fastest."""
    known = [p for p in loaded.precisions if p in peaks.flops] or list(peaks.flops)
    return max(known, key=lambda p: peaks.flops[p])


def _decode(
    loaded: Loaded,
    peaks: Peaks,
    batch: float,
    context: float,
    step_s: float,
    per_step: float,
    copies: int,
    shared: float = 0.0,
) -> Share:
    """One step of each copy reads the weights once, and the KV cache of each of its requests. What they share of it
    may be read once for all."""
    tokens = batch * per_step
    cache = batch * loaded.kv_bytes(context)
    own = max(context - shared, 0.0)
    read = copies * (loaded.weights_bytes(tokens) + cache)
    least = copies * (loaded.least_bytes + batch * loaded.kv_bytes(own) + loaded.kv_bytes(context - own))
    speed, speed_least = bandwidth_at(peaks, read), bandwidth_at(peaks, least)
    # What a cache holds over from the step before needn't come from memory.
    held = 0 if peaks.bandwidth_by_size else peaks.cache_bytes or 0
    operations = copies * tokens * _operations(loaded, context, drawn=1.0)
    several = (f", {per_step:.2f} tokens a step" if per_step != 1 else "") + (
        f", {copies} copies" if copies > 1 else ""
    )
    peak = "a cache of unknown speed" if speed is None else f"{speed / 1e9:,.4g} GB/s"
    return Share(
        what="decode",
        bandwidth=read / step_s / speed if speed else None,
        arithmetic=operations / step_s / peaks.flops[precision_of(loaded, peaks)],
        bandwidth_least=(least - held) / step_s / speed_least if speed_least else None,
        about=f"{_giga(read / copies)} GB in {step_s * 1000:.3f} ms: weights {_giga(read / copies - cache)}, KV cache "
        f"of {batch:.1f} × {context:.0f} tokens {_giga(cache)}{several}; against {peak}, {_arithmetic(loaded, peaks)}",
        streams=batch,
    )


def _prefill(loaded: Loaded, peaks: Peaks, speed: float, prompt: float, before: float = 0.0) -> Share:
    """The head is needed for the last token of a prompt alone. `before`: tokens that were in the context already."""
    operations = _operations(loaded, before + prompt / 2, drawn=1 / prompt)
    return Share(
        what="prefill",
        arithmetic=speed * operations / peaks.flops[precision_of(loaded, peaks)],
        about=f"{speed:,.0f} tokens/s × {_giga(operations)} G operations, prompts of {prompt:.0f} tokens"
        f"{f' after {before:.0f}' if before else ''}; against "
        f"{_arithmetic(loaded, peaks)}",
    )


def _whole(loaded: Loaded, peaks: Peaks, prompt: float, output: float, requests_per_s: float) -> Share:
    each = prompt * _operations(loaded, prompt / 2, drawn=0.0)
    each += output * _operations(loaded, prompt + output / 2, drawn=1.0)
    return Share(
        what="whole",
        arithmetic=requests_per_s * each / peaks.flops[precision_of(loaded, peaks)],
        about=f"{requests_per_s:.3g} requests/s × {each / 1e12:.3g} T operations, {prompt:.0f} tokens in and "
        f"{output:.0f} out; against {_arithmetic(loaded, peaks)}",
    )


def _operations(loaded: Loaded, context: float, drawn: float) -> float:
    """For a token; `drawn`: the share of tokens after which the next is drawn."""
    weights = loaded.body_parameters + drawn * loaded.head_parameters
    return 2 * weights + loaded.shape.attention_operations(context)


def _tokens_per_step(spec: EngineSpec | None, telemetry: TelemetrySummary | None) -> float | None:
    """None: some are drafted, and it isn't known how many are accepted."""
    drafted = telemetry.total("drafted_tokens") if telemetry else None
    asked = spec is not None and (
        spec.draft_model is not None
        or spec.draft_tokens is not None
        or any(arg.startswith(_SPECULATES) for arg in spec.args)
    )
    if not asked and not drafted:
        return 1.0
    lengths = [e.accepted_length_mean for e in telemetry.engines] if telemetry else []
    known = [length for length in lengths if length is not None]
    return max(sum(known) / len(known), 1.0) if known and len(known) == len(lengths) else None


def _roofline(loaded: Loaded, peaks: Peaks, shares: list[Share]) -> Roofline:
    return Roofline(
        peaks=peaks,
        precision=precision_of(loaded, peaks),
        weights_bytes=loaded.least_bytes,
        kv_bytes=loaded.shape.kv_bytes_per_token(loaded.kv_width) or 0.0,
        parameters=loaded.body_parameters + loaded.head_parameters,
        shares=shares,
    )


def _arithmetic(loaded: Loaded, peaks: Peaks) -> str:
    precision = precision_of(loaded, peaks)
    return f"{peaks.flops[precision] / 1e12:,.4g} T/s in {precision}"


def _giga(n: float) -> str:
    return f"{n / 1e9:.4g}"
