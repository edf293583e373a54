"""What can be known to go wrong before an engine is started, in words. An empty answer: nothing is known to."""

from collections.abc import Iterator, Sequence

from dyno.facts.engine import EngineSpec, Limits
from dyno.facts.model import ModelShape
from dyno.facts.rig import Rig
from dyno.measure.agreement import same_quantization
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
    spec: EngineSpec, limits: Limits, model: ModelShape | None, rig: Rig, devices: Sequence[int]
) -> Iterator[str]:
    """`devices`: the accelerators that may be used."""
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
    if not devices and spec.devices is None and spec.world > 1:
        yield (
            f"{spec.world} accelerators are needed (tensor_parallel × pipeline_parallel), and none is seen here "
            "(`dyno doctor`). On a CPU, say devices = []."
        )
    yield from _memory(spec, limits, model, rig, devices)


def _memory(
    spec: EngineSpec, limits: Limits, model: ModelShape | None, rig: Rig, devices: Sequence[int]
) -> Iterator[str]:
    weights = _weights(spec, model)
    if weights is None or model is None:
        return
    width = 1.0 if (spec.kv_cache_dtype or "").startswith(("fp8", "q8")) else 2.0
    per_token = model.kv_bytes_per_token(width) or 0.0
    # llama.cpp takes the whole KV cache at once; the others fill what is left, and one request must fit.
    slots = (limits.slots or 1) if spec.kind == "llamacpp" else 1
    cache = per_token * (limits.context or 0) * slots
    need = weights + cache
    what = f"weights {human_bytes(weights)} + KV cache {human_bytes(cache)}"
    used = [a for a in rig.accelerators if a.index in devices][: spec.world * spec.replicas]
    sizes = [a.memory_bytes for a in used if a.memory_bytes]
    if used and len(sizes) == len(used) and not any(a.integrated for a in used):
        free = min((a.memory_bytes or 0) - (a.memory_used_bytes or 0) for a in used)
        free = min(free, int(min(sizes) * (spec.memory_fraction or 1.0)))
        if need / spec.world > free:
            yield (
                f"Each accelerator needs {human_bytes(need / spec.world)} ({what}, over {spec.world}), and "
                f"{human_bytes(free)} are free. Take more devices, a smaller quantization or a shorter context."
            )
    elif rig.memory_free_bytes and need * spec.replicas > rig.memory_free_bytes:
        yield (
            f"{human_bytes(need * spec.replicas)} are needed ({what}, {spec.replicas} ×), and "
            f"{human_bytes(rig.memory_free_bytes)} of memory are free. Take a smaller quantization, a shorter context "
            "or fewer replicas."
        )


def _weights(spec: EngineSpec, model: ModelShape | None) -> float | None:
    if model is None:
        return None
    halved = 0.5 if spec.quantization == "fp8" and model.quantization is None else 1.0  # made smaller as it loads
    if model.weights_bytes:
        return model.weights_bytes * halved
    if model.parameters is None:
        return None
    return model.parameters * _BYTES.get(model.quantization or model.dtype or "bf16", 2.0) * halved
