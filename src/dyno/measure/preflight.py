"""Problems that are known before an engine is started, in words."""

from collections.abc import Iterator, Sequence

from dyno.facts.engine import EngineSpec, Limits
from dyno.facts.model import ModelShape
from dyno.facts.rig import Rig
from dyno.measure.agreement import plain, same_quantization
from dyno.units import human_bytes

_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0}


def length_problem(needed: Sequence[int], limits: Limits) -> str | None:
    """`needed`: prompt + output of each request."""
    over = sum(n > limits.context for n in needed) if limits.context else 0
    if not over:
        return None
    return (
        f"{over} of {len(needed)} requests need up to {max(needed)} tokens (prompt + output), and one may have "
        f"{limits.context} ({limits.context_from}): they would fail. Ask for shorter ones, raise max_model_len, or "
        "lower max_num_seqs where slots share the context."
    )


def problems(
    spec: EngineSpec,
    limits: Limits,
    model: ModelShape | None,
    rig: Rig,
    devices: Sequence[int],
    *,
    from_files: bool = False,
) -> Iterator[str]:
    """`devices`: the accelerators that may be used. `from_files`: no flag makes the quantization, the files must."""
    if model and not model.format and spec.load_format != "dummy":
        yield (
            f"{model.path} holds no weights (no *.safetensors). Give the folder that does, or load_format = 'dummy' "
            "for random ones."
        )
    # An online quantization (fp8) is made from unquantized files; a quantized file is what it is.
    files = model.quantization if model else None
    if model and files and spec.quantization and same_quantization(spec.quantization, files, model.dtype) is False:
        yield (
            f"quantization = {spec.quantization!r}, and the files at {model.path} are {files}. Give the files that "
            "are meant, or leave the quantization out."
        )
    if from_files and model and model.format == "safetensors" and not files:
        yield (
            f"quantization = {spec.quantization!r} would have to lie in the files at {model.path}, and they aren't "
            "quantized. Give the files that are."
        )
    if not devices and spec.devices is None and spec.world > 1:
        yield (
            f"{spec.world} accelerators are needed (tensor_parallel × pipeline_parallel), and none is seen here "
            "(`dyno doctor`). On a CPU, say devices = []."
        )
    yield from _memory(spec, limits, model, rig, devices)


def _memory(
    spec: EngineSpec, limits: Limits, model: ModelShape | None, rig: Rig, devices: Sequence[int]
) -> Iterator[str]:
    """Only what can't work: the weights, and the KV cache where the engine takes it whole at its start. Of a cache that
    fills what is left, only the engine knows how much one request takes (sliding windows, latent attention)."""
    weights = _weights(spec, model)
    if weights is None or model is None:
        return
    width = 1.0 if (spec.kv_cache_dtype or "").startswith(("fp8", "q8")) else 2.0
    cache = (model.kv_bytes_per_token(width) or 0.0) * limits.cache_tokens
    need = weights + cache
    what = f"weights {human_bytes(weights)}" + (f" + KV cache {human_bytes(cache)}" if cache else "")
    free = _free(spec, limits, rig, devices)
    if free is not None and need * spec.replicas > free:
        times = f", {spec.replicas} ×" if spec.replicas > 1 else ""
        yield (
            f"{human_bytes(need * spec.replicas)} are needed ({what}{times}), and {human_bytes(free)} of memory are "
            "free. Take a smaller quantization, more devices, a shorter context or fewer replicas."
        )


def _free(spec: EngineSpec, limits: Limits, rig: Rig, devices: Sequence[int]) -> float | None:
    """Return the free memory of all devices the copies may use; with the host's where weights may lie there too."""
    used = [a for a in rig.accelerators if a.index in devices]
    if not limits.spreads:
        used = used[: spec.world * spec.replicas]
    host = rig.memory_free_bytes
    if not used or any(a.integrated for a in used):
        return host
    if any(a.memory_bytes is None for a in used):
        return None
    sizes = [(a.memory_bytes or 0, (a.memory_bytes or 0) - (a.memory_used_bytes or 0)) for a in used]
    free = sum(min(free, total * (spec.memory_fraction or 1.0)) for total, free in sizes)
    return free + (host or 0) if limits.spreads else free


def _weights(spec: EngineSpec, model: ModelShape | None) -> float | None:
    if model is None:
        return None
    factors = {"fp8": 0.5, "int8": 0.5, "experts-int8": 0.5, "eetq": 0.5, "bitsandbytes": 0.25}  # smaller as it loads
    halved = factors.get(plain(spec.quantization or ""), 1.0) if model.quantization is None else 1.0
    if model.weights_bytes:
        return model.weights_bytes * halved
    if model.parameters is None:
        return None
    return model.parameters * _BYTES.get(model.quantization or model.dtype or "bf16", 2.0) * halved
