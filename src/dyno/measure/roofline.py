"""The roofline: which share of memory bandwidth and of arithmetic a figure amounts to. METHOD.md has the formulas."""

import math
from typing import NamedTuple

import msgspec

from dyno.engines.kinds import KINDS
from dyno.facts.engine import EngineSpec, valued
from dyno.facts.model import ModelShape
from dyno.facts.offline import OfflineSummary
from dyno.facts.rig import Peaks, Roofline, Share
from dyno.facts.summary import Summary
from dyno.facts.target import TargetFacts
from dyno.facts.telemetry import TelemetrySummary
from dyno.measure.agreement import plain
from dyno.numbers import number

ALONE = 1.05  # streams: up to this, a first token's latency is that of one prompt
_SPECULATES = ("--spec", "--draft", "-md", "--model-draft", "--lookup")


class _Step(NamedTuple):
    """A step of decoding."""

    token_s: float  # for each token of a request
    tokens: float  # of a request in a step, by speculation
    batch: float  # requests in it, of one copy
    context: float  # tokens of a request, mean


class _Work(NamedTuple):
    """The work of a load. Tokens are those of all completed requests."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int  # of the input
    completed: int
    duration_s: float
    step: _Step | None
    prefill_speed: float | None  # prompt tokens/s

    @property
    def prompt(self) -> float:
        """Tokens that were processed for a request."""
        return max(self.input_tokens - self.cached_tokens, 0) / self.completed

    @property
    def cached(self) -> float:
        return self.cached_tokens / self.completed


def of_served(
    summary: Summary,
    shape: ModelShape,
    spec: EngineSpec | None,
    target: TargetFacts,
    peaks: Peaks,
    telemetry: TelemetrySummary | None = None,
    shared_prefix: int = 0,
) -> Roofline | None:
    """Return None where the shape says too little. `shared_prefix`: tokens with which all prompts begin."""
    loaded, copies = as_loaded(shape, spec, target), spec.replicas if spec else 1
    if loaded is None or not summary.completed:
        return None
    cached = summary.cached_input_tokens
    if cached is None and telemetry is not None:
        cached = round(telemetry.total("prefix_hit_tokens") or 0)
    work = _Work(
        input_tokens=summary.total_input_tokens,
        output_tokens=summary.total_output_tokens,
        cached_tokens=cached or 0,
        completed=summary.completed,
        duration_s=summary.duration_s,
        step=_served_step(summary, tokens_per_step(spec, telemetry), copies, target.slots),
        prefill_speed=None,
    )
    if summary.ttft.mean and _streams(summary) <= ALONE:
        work = work._replace(prefill_speed=work.prompt / (summary.ttft.mean / 1000))
    return _roofline(loaded, peaks, work, copies, shared_prefix)


def _streams(s: Summary) -> float:
    return s.steady.streams_mean if s.steady else s.client.streams_mean


def _served_step(
    s: Summary, per_step: float | None, copies: int, slots: int | None
) -> _Step | None:
    """Return the mean step of decoding. None: the time per token or the tokens of a step are unknown."""
    if not s.true_tpot.mean or per_step is None:
        return None
    tpot_s = s.true_tpot.mean / 1000
    throughput = s.output_throughput
    if s.steady and s.steady.output_throughput:
        throughput = s.steady.output_throughput
    # Those that wait or have their prompt processed are in flight too, and read no cache yet.
    decoding = min(_streams(s), max(throughput * tpot_s, float(copies))) / copies
    batch = max(min(decoding, slots or decoding), 1.0)
    context = (s.total_input_tokens + s.total_output_tokens / 2) / s.completed
    return _Step(tpot_s, per_step, batch, context)


def of_offline(
    summary: OfflineSummary,
    shape: ModelShape,
    spec: EngineSpec | None,
    target: TargetFacts | None,
    peaks: Peaks,
    shared_prefix: int = 0,
) -> Roofline | None:
    """Return None where the shape says too little. `shared_prefix`: tokens with which all prompts begin."""
    loaded, copies = as_loaded(shape, spec, target), spec.replicas if spec else 1
    if loaded is None or not summary.completed:
        return None
    work = _Work(
        input_tokens=summary.input_tokens,
        output_tokens=summary.output_tokens,
        cached_tokens=summary.cached_input_tokens or 0,
        completed=summary.completed,
        duration_s=summary.duration_s,
        step=_offline_step(summary, tokens_per_step(spec, None), copies),
        prefill_speed=_prefill_speed(summary),
    )
    return _roofline(loaded, peaks, work, copies, shared_prefix)


def _offline_step(s: OfflineSummary, per_step: float | None, copies: int) -> _Step | None:
    """Return the mean step of decoding. None: its pace or the tokens of a step are unknown."""
    if s.speculation and s.decoded_tokens > s.speculation.accepted_tokens:
        # Of all steps: n-grams aren't found in each, and those without a draft give one token. The first token is none
        # of them: the prompt gave it.
        per_step = s.decoded_tokens / (s.decoded_tokens - s.speculation.accepted_tokens)
    pace = _decode_pace(s)
    if pace is None or per_step is None:
        return None
    token_s, in_flight = pace
    return _Step(token_s, per_step, max(in_flight / copies, 1.0), s.context_mean)


def _prefill_speed(s: OfflineSummary) -> float | None:
    if s.prefill_speed:
        return s.prefill_speed.mean
    if s.kind == "micro" and not s.output_tokens:
        return s.total_token_throughput.mean
    return None


def _decode_speed(s: OfflineSummary) -> float | None:
    if s.decode_speed:
        return s.decode_speed.mean
    if s.kind == "micro" and s.output_tokens and not s.input_tokens:
        return s.output_throughput.mean
    return None


def _decode_pace(s: OfflineSummary) -> tuple[float, float] | None:
    """Return the seconds for each token of a request, and how many requests were decoding at once."""
    speed = _decode_speed(s)
    tpot_s = s.tpot_ms.mean / 1000 if s.tpot_ms else None
    if tpot_s and speed:
        return tpot_s, min(speed * tpot_s, float(s.requests))
    if tpot_s:
        return tpot_s, s.in_flight_mean or 1.0
    in_flight = 1.0 if s.kind == "micro" else s.in_flight_mean
    if not speed or in_flight is None:
        return None
    return in_flight / speed, in_flight


def tokens_per_step(
    spec: EngineSpec | None, telemetry: TelemetrySummary | None
) -> float | None:
    """Return the tokens of a step. None: some are drafted, and it isn't known how many are accepted."""
    drafted = telemetry.total("drafted_tokens") if telemetry else None
    if not drafted and not (spec and _speculates(spec)):
        return 1.0
    length = telemetry.accepted_length if telemetry else None
    return None if length is None else max(length, 1.0)


def _speculates(spec: EngineSpec) -> bool:
    if spec.draft_model is not None or spec.draft_tokens is not None:
        return True
    return any(arg.startswith(_SPECULATES) for arg in spec.args)


def bandwidth_at(peaks: Peaks, size_bytes: float) -> float | None:
    """Return the bytes/s where this size is read repeatedly. None: they fit a cache whose speed isn't known."""
    if peaks.bandwidth_by_size:
        below = [size for size in peaks.bandwidth_by_size if size <= size_bytes]
        return peaks.bandwidth_by_size[max(below)] if below else None
    if peaks.cache_bytes and size_bytes <= peaks.cache_bytes:
        return None
    return peaks.bandwidth


def precision_of(loaded: "Loaded", peaks: Peaks) -> str:
    """Return the fastest precision in which it may be calculated."""
    known = [p for p in loaded.precisions if p in peaks.flops] or list(peaks.flops)
    return max(known, key=lambda p: peaks.flops[p])


def _roofline(
    loaded: "Loaded", peaks: Peaks, work: _Work, copies: int, shared_prefix: int
) -> Roofline:
    precision = precision_of(loaded, peaks)
    shares: list[Share] = []
    if work.step is not None:
        shares.append(
            _decode(loaded, peaks, work.step, copies, max(work.cached, shared_prefix))
        )
    if work.prefill_speed and work.prompt:
        shares.append(_prefill(loaded, peaks, work, work.prefill_speed))
    if work.duration_s > 0:
        shares.append(_whole(loaded, peaks, work))
    return Roofline(
        peaks=peaks,
        precision=precision,
        weights_bytes=loaded.least_bytes,
        kv_bytes=loaded.shape.kv_bytes_per_token(loaded.kv_width) or 0.0,
        parameters=loaded.body_parameters + loaded.head_parameters,
        shares=shares,
    )


def _arithmetic_peak(loaded: "Loaded", peaks: Peaks) -> tuple[float, str]:
    """Return the operations/s that the accelerators could do, and the same in words."""
    precision = precision_of(loaded, peaks)
    flops = peaks.flops[precision]
    return flops, f"{number(flops / 1e12)} T/s in {precision}"


def _prefill(loaded: "Loaded", peaks: Peaks, work: _Work, speed: float) -> Share:
    flops, against = _arithmetic_peak(loaded, peaks)
    # The head is needed for the last token of a prompt alone.
    operations = loaded.operations(work.cached + work.prompt / 2, drawn=1 / work.prompt)
    prompts = f"prompts of {number(work.prompt)} tokens"
    if work.cached:
        prompts += f" after {number(work.cached)}"
    about = f"{number(speed)} tokens/s × {_giga(operations)} G operations, {prompts}; against {against}"
    return Share("prefill", arithmetic=speed * operations / flops, about=about)


def _whole(loaded: "Loaded", peaks: Peaks, work: _Work) -> Share:
    """Return the share of all requests over the whole time of the load."""
    flops, against = _arithmetic_peak(loaded, peaks)
    rate, output = work.completed / work.duration_s, work.output_tokens / work.completed
    each = work.prompt * loaded.operations(work.prompt / 2, drawn=0.0)
    each += output * loaded.operations(work.prompt + output / 2, drawn=1.0)
    tokens = f"{number(work.prompt)} tokens in and {number(output)} out"
    about = f"{number(rate)} requests/s × {number(each / 1e12)} T operations, {tokens}; against {against}"
    return Share("whole", arithmetic=rate * each / flops, about=about)


def _decode(
    loaded: "Loaded", peaks: Peaks, step: _Step, copies: int, shared: float
) -> Share:
    """One step of each copy reads the weights once, and the KV cache of each of its requests. Tokens that requests
    share may be read once for all."""
    tokens, step_s = step.batch * step.tokens, step.token_s * step.tokens
    cache = step.batch * loaded.kv_bytes(step.context)
    own = max(step.context - shared, 0.0)
    read = copies * (loaded.weights_bytes(tokens) + cache)
    least = copies * (
        loaded.least_bytes
        + step.batch * loaded.kv_bytes(own)
        + loaded.kv_bytes(step.context - own)
    )
    speed, speed_least = bandwidth_at(peaks, read), bandwidth_at(peaks, least)
    # What a cache holds over from the step before needn't come from memory.
    held = 0 if peaks.bandwidth_by_size else peaks.cache_bytes or 0
    operations = copies * tokens * loaded.operations(step.context, drawn=1.0)
    several = ""
    if step.tokens != 1:
        several += f", {number(step.tokens)} tokens a step"
    if copies > 1:
        several += f", {copies} copies"
    flops, arithmetic_peak = _arithmetic_peak(loaded, peaks)
    peak = "a cache of unknown speed" if speed is None else f"{number(speed / 1e9)} GB/s"
    return Share(
        what="decode",
        bandwidth=read / step_s / speed if speed else None,
        arithmetic=operations / step_s / flops,
        bandwidth_least=(least - held) / step_s / speed_least if speed_least else None,
        about=f"{_giga(read / copies)} GB in {number(step_s * 1000)} ms: weights {_giga(read / copies - cache)}, "
        f"KV cache of {number(step.batch)} × {number(step.context)} tokens {_giga(cache)}{several}; against {peak}, "
        f"{arithmetic_peak}",
        streams=step.batch,
    )


def _giga(n: float) -> str:
    return number(n / 1e9)


# ---- a model as an engine has it in memory: files may be converted as they are loaded ----

_WIDTHS = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
# Bytes of a value where an engine quantizes as it loads; of others that do, the smallest.
_QUANTIZED = dict.fromkeys(
    ("fp8", "ptpc-fp8", "fbgemm-fp8", "mxfp8", "int8", "eetq", "experts-int8"), 1.0
)
_SMALLEST = 0.5
_UNQUANTIZED = {*_WIDTHS, "auto", ""}
# GGUF's blocks, by bytes for each value.
_KV = {
    "f32": 4.0, "fp32": 4.0, "float32": 4.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32, "int4": 0.5, "f16": 2.0, "bf16": 2.0,
}  # fmt: skip
_ALL = ("fp4", "fp8", "int8", "bf16", "fp16", "tf32", "fp32")
_HALF = ("bf16", "fp16")


class Loaded(msgspec.Struct, frozen=True):
    """Bytes read and operations calculated for a token."""

    shape: ModelShape
    dense_bytes: float  # read at every step
    expert_bytes: float  # all routed experts
    # multiplied for every token, its experts' among them, without the head
    body_parameters: float
    head_parameters: float  # … where a token is drawn
    kv_width: float  # bytes of a value in the KV cache
    # in which it may be calculated: the fastest of them is the bound
    precisions: tuple[str, ...]

    def weights_bytes(self, tokens: float) -> float:
        """Read in a step of `tokens`, each of which takes its experts as if by lot."""
        untouched = math.pow(1 - self._used_share, max(tokens, 1.0))
        return self.dense_bytes + self.expert_bytes * (1 - untouched)

    @property
    def least_bytes(self) -> float:
        """Read where all tokens take the same experts."""
        return self.dense_bytes + self.expert_bytes * self._used_share

    def kv_bytes(self, context: float) -> float:
        return self.shape.kv_bytes_read(context, self.kv_width) or 0.0

    def operations(self, context: float, drawn: float) -> float:
        """Return the operations for a token. `drawn`: the share of tokens after which the next is drawn."""
        weights = self.body_parameters + drawn * self.head_parameters
        return 2 * weights + self.shape.attention_operations(context)

    @property
    def _used_share(self) -> float:
        experts, used = self.shape.experts, self.shape.experts_used
        return min(used / experts, 1.0) if experts and used else 1.0


def as_loaded(
    shape: ModelShape, spec: EngineSpec | None, target: TargetFacts | None = None
) -> Loaded | None:
    """Return None where the shape says too little. `target`: what the engine reports, which goes before the setting."""
    if shape.parameters is None or not _experts_known(shape):
        return None
    tied = shape.head_parameters == 0
    head = shape.embedding_parameters if tied else shape.head_parameters
    body = (
        shape.parameters
        - shape.expert_parameters
        - shape.embedding_parameters
        - shape.head_parameters
    )
    body -= shape.aside_parameters
    used = 0.0
    if shape.experts and shape.experts_used:
        used = shape.expert_parameters * shape.experts_used / shape.experts
    quantization = plain(_reported_or_set("quantization", target, spec))
    dtype = _dtype(
        shape,
        (target.dtype if target else None, spec.dtype if spec else None, quantization),
    )
    in_files = sum(shape.bytes_by_type.values()) - shape.aside_bytes
    if in_files > 0 and (shape.format == "gguf" or shape.quantization):
        expert_bytes = float(shape.expert_bytes)
        dense_bytes = in_files - (0 if tied else shape.embedding_bytes) - expert_bytes
    else:
        width, body_width, expert_width = _widths(shape, dtype, quantization)
        expert_bytes = shape.expert_parameters * expert_width
        dense_bytes = body * body_width + head * width
    return Loaded(
        shape=shape,
        dense_bytes=dense_bytes,
        expert_bytes=expert_bytes,
        body_parameters=body + used,
        head_parameters=head,
        kv_width=_kv_width(
            dtype, spec, _reported_or_set("kv_cache_dtype", target, spec) or "auto"
        ),
        precisions=_precisions(shape, dtype, quantization),
    )


def _experts_known(shape: ModelShape) -> bool:
    """Experts whose weights aren't found, or whose number in use isn't known, would count as read whole."""
    routed = bool(shape.experts and shape.experts_used)
    return bool(shape.expert_parameters) == routed


def _reported_or_set(name: str, target: TargetFacts | None, spec: EngineSpec | None) -> str:
    """Return what the engine reports by this name, else the setting, else ''."""
    for source in (target, spec):
        value: str | None = getattr(source, name, None)
        if value:
            return value
    return ""


def _widths(shape: ModelShape, dtype: str, quantization: str) -> tuple[float, float, float]:
    """Return the bytes of a parameter as an engine loads it: of the head, the body, and the experts."""
    width = _WIDTHS[dtype]
    # Without the files, their config counts.
    name = plain(shape.quantization or "") if quantization in _UNQUANTIZED else quantization
    quantized = width if name in _UNQUANTIZED else _QUANTIZED.get(name, _SMALLEST)
    return width, width if quantization == "experts-int8" else quantized, quantized


def _dtype(shape: ModelShape, settings: tuple[str | None, ...]) -> str:
    """Return the dtype of unquantized values. 32-bit files count as 16 unless a setting differs: vLLM halves them."""
    for setting in settings:
        name = plain(setting or "")
        if name in _WIDTHS:
            return name
    return shape.dtype if shape.dtype in _HALF else "bf16"


def _kv_width(dtype: str, spec: EngineSpec | None, setting: str) -> float:
    """Return the mean width of keys and values, whose types an engine may set separately."""
    engine = KINDS.get(spec.kind) if spec is not None else None
    types = [setting]
    if spec is not None and engine is not None and engine.kv_type_flags:
        types = [valued(spec.args, *names) or setting for names in engine.kv_type_flags]
    is_half = engine is not None and engine.kv_is_half
    own_width = 4.0 if dtype == "fp32" and not is_half else 2.0
    widths = [_width(name.lower(), own_width) for name in types]
    return sum(widths) / len(widths)


def _width(name: str, own_width: float) -> float:
    """Return the bytes of a value; of an unknown type, the smallest."""
    if name == "auto":
        return own_width
    if name.startswith(("fp8", "int8")):
        return 1.0
    return _KV.get(name, 2.0 if plain(name) in _WIDTHS else _SMALLEST)


def _precisions(shape: ModelShape, dtype: str, quantization: str) -> tuple[str, ...]:
    """Return the precisions of its products. llama.cpp multiplies its blocks as 8-bit integers; vLLM's 4-bit weights
    are widened to 16 bits."""
    name = plain(shape.quantization or "") or quantization
    if shape.format == "gguf":
        if name in ("fp16", "bf16"):
            return ("fp16", "bf16", "fp32")
        if name == "fp32":
            return ("tf32", "fp32")
        return (
            ("int8", "fp16", "bf16", "fp32") if name.startswith(("q", "iq", "tq")) else _ALL
        )
    if name in _UNQUANTIZED:
        return {"fp32": ("tf32", "fp32"), "fp16": ("fp16",)}.get(dtype, ("bf16",))
    if "fp8" in name:
        return ("fp8", *_HALF)
    if name in ("gptq", "awq", "bitsandbytes") or name.endswith("a16"):
        return _HALF
    return ("int8", *_HALF) if name in ("int8", "eetq", "experts-int8") else _ALL
