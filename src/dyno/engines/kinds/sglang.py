"""SGLang. From its argument parser and documentation; docs/limits.md says what of it was run."""

from typing import TYPE_CHECKING, Any

from dyno.engines.kinds.base import (
    DTYPES,
    PROFILE_ROUTES,
    TORCH_CACHES,
    EngineFlag,
    EngineKind,
    KnownCommand,
    Program,
    Remarks,
    flag,
    one_of,
    switch,
    with_dtype,
)
from dyno.engines.kinds.recipe import Recipe
from dyno.engines.kinds.routes import Cards, json_object
from dyno.facts.engine import EngineSpec, before

if TYPE_CHECKING:
    from dyno.http import Client

_QUANTIZATIONS = {
    "fp8": "fp8", "int8": "w8a8_int8", "gptq": None, "awq": None, "bitsandbytes": "bitsandbytes", "gguf": "gguf",
    "modelopt": "modelopt", "modelopt_fp8": "modelopt_fp8", "modelopt_fp4": "modelopt_fp4", "w8a8_fp8": "w8a8_fp8",
    "mxfp4": "mxfp4", "mxfp8": "mxfp8", "quark": "quark", "compressed_tensors": "compressed-tensors",
}  # fmt: skip

_KV = {"auto": "auto", "fp8_e5m2": "fp8_e5m2", "fp8_e4m3": "fp8_e4m3", "fp8": "fp8_e4m3"}
_STEPS = ("--speculative-eagle-topk", "1", "--speculative-num-steps")
_DRAFT = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path")


# In the sources of 0.5.9.
_REMARKS: Remarks = {
    "eager": r"[Cc]uda graph is disabled because",
    "fallback": r"will fallback to \w+ backend|Falling back to slow implementation|Moe WNA16 kernels",
    "changed": r"Max running requests is reset to|[Cc]hunked prefill (?:is|are) disabled"
    r"|[Oo]verlap schedule\w* is disabled|radix cache (?:is|are) disabled|disabling radix cache"
    r"|ttention backends? (?:is|are) overridden",
    "preempted": r"KV cache pool is full\. Retract requests",
}


_RECIPES = {
    "cuda": Recipe(
        package="sglang[all]",
        module="sglang",
        check=("python", "-Ic", "import sglang"),
        about_bytes=10_000_000_000,
    )
}


class SgLang(EngineKind):
    name = "sglang"
    title = "SGLang"
    about = "SGLang"
    profiler = PROFILE_ROUTES

    packages = ("sglang",)
    companions = ("sgl-kernel",)
    programs = ("sglang",)
    module = ("-m", "sglang.launch_server")
    in_container = ("python3", "-m", "sglang.launch_server")
    recipes = _RECIPES

    options = {
        "served_name": flag("--served-model-name"),
        "load_format": flag("--load-format"),
        "dtype": one_of("--dtype", DTYPES),
        "quantization": one_of("--quantization", _QUANTIZATIONS),
        "kv_cache_dtype": one_of("--kv-cache-dtype", _KV),
        "tensor_parallel": flag("--tp-size"),
        "pipeline_parallel": flag("--pp-size", since="0.4.6"),
        "max_model_len": flag("--context-length"),
        "max_num_seqs": flag("--max-running-requests"),
        "max_batched_tokens": flag("--max-prefill-tokens"),
        "memory_fraction": flag("--mem-fraction-static"),
        "prefix_caching": switch([], ["--disable-radix-cache"]),
        "chunked_prefill": EngineFlag(
            lambda on: {False: ["--chunked-prefill-size", "-1"], True: []}[on]
        ),
        "draft_model": EngineFlag(lambda m: [*_DRAFT, m], since="0.5.2"),
        # N proposals in a row: N steps of one choice each. Its draft tokens also count the one they begin with.
        "draft_tokens": EngineFlag(
            lambda n: [*_STEPS, str(n), "--speculative-num-draft-tokens", str(n + 1)]
        ),
    }
    length_flags = ("--context-length",)
    slots_flags = ("--max-running-requests",)

    fetches = True

    variable_prefixes = ("SGLANG_", "SGL_")
    compile_caches = TORCH_CACHES
    on_torch = True

    log = {"kv_cache_tokens": (r"max_total_num_tokens=(\d+)",)}
    remarks = _REMARKS

    server_order = 40
    metrics = {
        "running_requests": ("sglang:num_running_reqs",),
        "waiting_requests": ("sglang:num_queue_reqs",),
        "kv_used_share": ("sglang:token_usage",),
        "accepted_length_tokens": ("sglang:spec_accept_length",),
        "preemptions": ("sglang:num_retracted_requests_total",),
        # it looks up each token of a prompt
        "prefix_queried_tokens": ("sglang:prompt_tokens_total",),
        "prefix_hit_tokens": ("sglang:cached_tokens_total",),
        "output_tokens": ("sglang:generation_tokens_total",),
        "queue_s": ("sglang:queue_time_seconds_sum",),
        "timed_requests": ("sglang:queue_time_seconds_count",),
    }

    commands = (
        KnownCommand(
            ("launch_server", "sglang serve", "srt.server"),
            r"sglang\.launch_server|sglang\s+serve|python\S*\s+-m\s+sglang\.srt\.server",
            "server",
        ),
        KnownCommand(
            ("bench_serving",), r"sglang\.bench_serving|bench_serving\.py", "client"
        ),
        KnownCommand(
            ("bench_one_batch", "bench_offline_throughput"),
            r"sglang\.bench_(?:one_batch\w*|offline_throughput)|bench_(?:one_batch|offline_throughput)\.py",
            "offline",
        ),
    )
    version_title = "sglang version"
    version_dumps = (r"(?i)^\W{0,8}SGLang(?: Version)?\s*:\s*v?(\d\S+)",)
    version_words = ("SGLang",)

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        out = list(program.argv)
        if program.binary and len(program.argv) == 1:
            out.append("serve")
        out += [
            "--model-path",
            self.model_of(spec),
            "--host",
            spec.host,
            "--port",
            str(port),
        ]
        if program.version is None or not before(program.version, "0.4.1"):
            out.append("--enable-metrics")
        return out + self.flags(with_dtype(spec), program.version)

    def read_server(self, client: "Client", cards: Cards) -> dict[str, Any] | None:
        info = json_object(client, "/get_server_info") or json_object(
            client, "/server_info"
        )
        if "model_path" not in info:
            return None
        states = info.get("internal_states")
        state = (
            states[0]
            if isinstance(states, list) and states and isinstance(states[0], dict)
            else {}
        )
        radix = info.get("disable_radix_cache")
        return {
            "version": info.get("version"),
            "model_path": info.get("model_path"),
            "max_model_len": info.get("context_length") or state.get("max_model_len"),
            "slots": info.get("max_running_requests")
            or state.get("effective_max_running_requests_per_dp"),
            "quantization": info.get("quantization"),
            "dtype": info.get("dtype") if info.get("dtype") != "auto" else None,
            "kv_cache_dtype": info.get("kv_cache_dtype")
            if info.get("kv_cache_dtype") != "auto"
            else None,
            "kv_cache_tokens": info.get("max_total_num_tokens")
            or state.get("max_total_num_tokens"),
            "tensor_parallel": info.get("tp_size"),
            "prefix_caching": not radix if isinstance(radix, bool) else None,
        }

    def reset_cache(self, client: "Client") -> bool:
        return client.call("/flush_cache", {})[0] == 200


KIND = SgLang()
