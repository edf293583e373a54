"""Hugging Face's Text Generation Inference. From its documentation and API description; not run by dyno's authors."""

from dyno.engines.kinds.base import EngineFlag, EngineKind, Program, flag, one_of, with_dtype, within
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec

_QUANTIZATIONS = {
    "fp8": "fp8", "gptq": "gptq", "awq": "awq", "int8": None, "bitsandbytes": "bitsandbytes", "marlin": "marlin",
    "bitsandbytes_nf4": "bitsandbytes-nf4", "bitsandbytes_fp4": "bitsandbytes-fp4", "eetq": "eetq", "exl2": "exl2",
    "compressed_tensors": "compressed-tensors",
}  # fmt: skip

_KV = {"auto": None, "fp8_e4m3": "fp8_e4m3fn", "fp8": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}


class Tgi(EngineKind):
    name = "tgi"
    title = "TGI"
    programs = ("text-generation-launcher",)
    in_container = ("",)  # the image's own entrypoint, which prepares more than the launcher
    backend = "tgi"
    length_flags = ("--max-total-tokens",)
    slots_flags = ("--max-batch-size", "--max-concurrent-requests")
    options = {
        "dtype": one_of("--dtype", {"fp16": "float16", "bf16": "bfloat16"}),
        "quantization": one_of("--quantize", _QUANTIZATIONS),
        "kv_cache_dtype": one_of("--kv-cache-dtype", _KV, since="2.4"),
        "tensor_parallel": flag("--num-shard"),
        "max_model_len": flag("--max-total-tokens"),
        "max_num_seqs": flag("--max-batch-size", since="1.4.1"),
        "max_batched_tokens": flag("--max-batch-prefill-tokens"),
        "memory_fraction": flag("--cuda-memory-fraction"),
        "prefix_caching": EngineFlag(lambda _: (), since="2.3"),  # an environment variable: see env
        "chunked_prefill": EngineFlag(lambda _: (), since="2.4"),  # as well
        "draft_tokens": flag("--speculate", since="1.3"),  # by n-grams, or heads that the model has
    }  # fmt: skip
    log = {
        "kv_cache_tokens": (r"Setting max batch total tokens to (\d+)", r"KV-cache blocks: (\d+), size: (\d+)"),
        "prefix_caching": (r"Using prefix caching = (\w+)|Prefix caching (\w+)",),
    }
    startup_log = {"weights": r"Shard ready in ([\d.]+)s"}

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        if spec.served_name and spec.served_name != spec.model:
            raise UsageError("TGI has no served_name: it serves a model under its own name. Remove it.")
        out = [*program.argv, "--model-id", self.model_of(spec), "--hostname", spec.host, "--port", str(port)]
        # Two of them on one machine must not meet: not at the second listener, nor at the shards' sockets.
        out += ["--shard-uds-path", f"/tmp/text-generation-server-{port}"]
        out += ["--master-port", str(port + 2000)]
        if within(program.version, "3.3", ""):
            out += ["--prometheus-port", str(port + 4000)]  # dynamic ports end at 60999
        return out + self.flags(with_dtype(spec), program.version, leave=("served_name",))

    def env(self, spec: EngineSpec) -> dict[str, str]:
        out = {}
        if spec.prefix_caching is not None:
            # 2.3 reads the first name, later versions the second.
            out = dict.fromkeys(("USE_PREFIX_CACHING", "PREFIX_CACHING"), str(int(spec.prefix_caching)))
        if spec.chunked_prefill is not None:
            out["PREFILL_CHUNKING"] = str(int(spec.chunked_prefill))
        return out
