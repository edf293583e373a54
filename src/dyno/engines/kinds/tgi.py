"""Hugging Face's Text Generation Inference. Flags by version were read from its launcher's sources, 0.9 to 3.3.7, and
the rest from its documentation and API description. It was not run: docs/limits.md."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.engines.kinds.base import (
    TORCH_CACHES,
    EngineFlag,
    EngineKind,
    KnownCommand,
    Program,
    Remarks,
    count,
    flag,
    one_of,
    with_dtype,
    within,
)
from dyno.engines.kinds.routes import Cards, json_object
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, Limits, valued
from dyno.facts.model import ModelShape
from dyno.facts.rig import Rig
from dyno.option import setting_name

if TYPE_CHECKING:
    from dyno.http import Client

_QUANTIZATIONS = {
    "fp8": "fp8", "gptq": "gptq", "awq": "awq", "int8": None, "bitsandbytes": "bitsandbytes", "marlin": "marlin",
    "bitsandbytes_nf4": "bitsandbytes-nf4", "bitsandbytes_fp4": "bitsandbytes-fp4", "eetq": "eetq", "exl2": "exl2",
    "compressed_tensors": "compressed-tensors",
}  # fmt: skip

# requests at once, above which it answers 429, unless --max-concurrent-requests says otherwise
_REFUSES = 128
_PREFILL = 4096  # tokens of a prefill, where nothing says more
# Every flag of its launcher: since, until, what to use instead.
_FLAGS = {
    **dict.fromkeys(
        ("--cors-allow-origin", "--disable-custom-kernels", "--dtype", "--huggingface-hub-cache", "--json-output",
         "--master-addr", "--master-port", "--max-batch-prefill-tokens", "--max-batch-total-tokens", "--max-best-of",
         "--max-concurrent-requests", "--max-input-length", "--max-stop-sequences", "--max-total-tokens",
         "--max-waiting-tokens", "--model-id", "--ngrok", "--ngrok-authtoken", "--num-shard", "--otlp-endpoint",
         "--port", "--quantize", "--revision", "--shard-uds-path", "--sharded", "--trust-remote-code",
         "--waiting-served-ratio", "--watermark-delta", "--watermark-gamma", "--weights-cache-override", "--hostname",
         "--validation-workers", "--env", "--help", "--version"), ("", "", "")),
    "--ngrok-domain": ("", "0.9.4", ""),
    "--ngrok-username": ("", "0.9.4", ""),
    "--ngrok-password": ("", "0.9.4", ""),
    "--ngrok-edge": ("0.9.4", "", ""),
    "--cuda-memory-fraction": ("0.9.4", "", ""),
    "--rope-scaling": ("1.0.1", "", ""),
    "--rope-factor": ("1.0.1", "", ""),
    "--max-top-n-tokens": ("1.0.3", "", ""),
    "--speculate": ("1.3.0", "", ""),
    "--tokenizer-config-path": ("1.4.0", "", ""),
    "--disable-grammar-support": ("1.4.1", "", ""),
    "--max-batch-size": ("1.4.1", "", ""),
    "--enable-cuda-graphs": ("1.4.1", "2.0.0", "Later versions have --cuda-graphs, and use them by themselves."),
    "--cuda-graphs": ("2.0.0", "", "Versions 1.4.1 to 1.4.5 have --enable-cuda-graphs."),
    "--max-input-tokens": ("2.0.0", "", "Older versions call it --max-input-length."),
    "--max-client-batch-size": ("2.0.1", "", ""),
    "--otlp-service-name": ("2.1.0", "", ""),
    "--lora-adapters": ("2.1.0", "", ""),
    "--disable-crash-reports": ("2.2.0", "2.3.0", "Later versions have --usage-stats no-stack."),
    "--disable-usage-stats": ("2.2.0", "2.3.0", "Later versions have --usage-stats off."),
    "--usage-stats": ("2.3.0", "", ""),
    "--api-key": ("2.3.0", "", ""),
    "--kv-cache-dtype": ("2.4.0", "", ""),
    "--payload-limit": ("2.4.1", "", ""),
    "--enable-prefill-logprobs": ("3.0.0", "", ""),
    "--graceful-termination-timeout": ("3.2.2", "", ""),
    "--prometheus-port": ("3.3.0", "", ""),
}  # fmt: skip

_KV = {"auto": None, "fp8_e4m3": "fp8_e4m3fn", "fp8": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}


_LEFT: Sequence[str] = ("served_name", "max_model_len")  # settings that aren't one flag


# In the sources of 3.3.
_REMARKS: Remarks = {
    "eager": r"cuda graphs, deactivating them",
    "fallback": r"Could not import Flash Attention|Forcing attention to '",
    "changed": r"Disabling prefix caching",
}


class Tgi(EngineKind):
    name = "tgi"
    title = "TGI"
    about = "Text Generation Inference"
    backend = "tgi"

    companions = ("text-generation-server",)
    programs = ("text-generation-launcher",)
    # the image's own entrypoint, which prepares more than the launcher
    in_container = ("",)
    recipes = {}  # only images

    options = {
        "dtype": one_of("--dtype", {"fp16": "float16", "bf16": "bfloat16"}),
        "quantization": one_of("--quantize", _QUANTIZATIONS),
        "kv_cache_dtype": one_of("--kv-cache-dtype", _KV, since="2.4"),
        "tensor_parallel": flag("--num-shard"),
        "max_model_len": flag("--max-total-tokens"),
        "max_num_seqs": flag("--max-batch-size", since="1.4.1"),
        "max_batched_tokens": flag("--max-batch-prefill-tokens"),
        "memory_fraction": flag("--cuda-memory-fraction"),
        # an environment variable: see env
        "prefix_caching": EngineFlag(lambda _: (), since="2.3"),
        "chunked_prefill": EngineFlag(lambda _: (), since="2.4"),  # as well
        # by n-grams, or heads that the model has
        "draft_tokens": flag("--speculate", since="1.3"),
    }
    own_flags = _FLAGS
    knows_all_flags = True
    length_flags = ("--max-total-tokens",)
    slots_flags = ("--max-batch-size",)

    model_variable = "MODEL_ID"
    fetches = True

    variables = (
        "MODEL_ID", "MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH", "MAX_TOTAL_TOKENS", "MAX_BATCH_PREFILL_TOKENS",
        "MAX_BATCH_TOTAL_TOKENS", "MAX_CONCURRENT_REQUESTS", "MAX_BATCH_SIZE", "NUM_SHARD", "QUANTIZE",
        "CUDA_MEMORY_FRACTION", "CUDA_GRAPHS", "ATTENTION", "PREFIX_CACHING", "USE_PREFIX_CACHING",
        "PREFILL_CHUNKING", "TRUST_REMOTE_CODE", "ROCM_USE_FLASH_ATTN_V2_TRITON",
    )  # fmt: skip
    variables_have_prefix = False
    recorded_variables = (
        "USE_PREFIX_CACHING", "PREFIX_CACHING", "ATTENTION", "QUANTIZE", "NUM_SHARD", "MAX_BATCH_PREFILL_TOKENS",
        "MAX_BATCH_TOTAL_TOKENS", "CUDA_GRAPHS",
    )  # fmt: skip
    # images before 2.3 set it, and it wins over HF_HOME
    cache_variables = ("HUGGINGFACE_HUB_CACHE",)
    compile_caches = TORCH_CACHES
    on_torch = True

    log = {
        "kv_cache_tokens": (
            r"Setting max batch total tokens to (\d+)",
            r"KV-cache blocks: (\d+), size: (\d+)",
        ),
        "prefix_caching": (r"Using prefix caching = (\w+)|Prefix caching (\w+)",),
    }
    startup_log = {"weights": r"Shard ready in ([\d.]+)s"}
    remarks = _REMARKS
    log_heads = (r".{0,80}?text_generation_\w+(?:::\w+)*: (?:\S+/src/\S+: )?",)

    server_order = 30
    metrics = {
        "queue_s": ("tgi_request_queue_duration_sum",),
        "timed_requests": ("tgi_request_queue_duration_count",),
        "running_requests": ("tgi_batch_current_size",),
        "waiting_requests": ("tgi_queue_size",),
        "output_tokens": ("tgi_request_generated_tokens_sum",),
        "accepted_tokens": ("tgi_request_skipped_tokens_sum",),
    }

    can_ignore_eos = False  # no version has such an option over HTTP

    aliases = ("text-generation-inference",)
    commands = (
        KnownCommand(("generation-launcher",), r"text-generation-launcher\b", "server"),
    )
    version_title = "tgi version"

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        if spec.served_name and spec.served_name != spec.model:
            raise UsageError(
                f"TGI takes no {setting_name('--served-model-name')}: it serves a model under its own name. Remove "
                "it."
            )
        out = [
            *program.argv,
            "--model-id",
            self.model_of(spec),
            "--hostname",
            spec.host,
            "--port",
            str(port),
        ]
        # Two of them on one machine must not meet: not at the second listener, nor at the shards' sockets.
        out += ["--shard-uds-path", f"/tmp/text-generation-server-{port}"]
        out += ["--master-port", str(port + 2000)]
        if within(program.version, "3.3", ""):
            out += ["--prometheus-port", str(port + 4000)]  # dynamic ports end at 60999
        if (
            valued(spec.args, "--num-shard", "--sharded") is None
            and spec.tensor_parallel == 1
        ):
            # else from 3.3.2 on it takes every GPU that it sees
            out += ["--num-shard", "1"]
        return (
            out
            + self._lengths(spec, program.version)
            + self.flags(with_dtype(spec), program.version, _LEFT)
        )

    def _lengths(self, spec: EngineSpec, version: str | None) -> list[str]:
        """Return how long a request may be: with the prompt's part, or versions before 2.4.1 refuse what is shorter
        than their default and cut prompts of what is longer."""
        total = spec.max_model_len
        if not total:
            return []
        out = ["--max-total-tokens", str(total)]
        if valued(spec.args, "--max-input-tokens", "--max-input-length") is None:
            name = (
                "--max-input-tokens"
                if within(version, "2.0.0", "")
                else "--max-input-length"
            )
            out += [name, str(total - 1)]
        return out + self._prefill(spec, version, total - 1)

    def _prefill(self, spec: EngineSpec, version: str | None, prompt: int) -> list[str]:
        """Return the limit of a prefill, where a prompt of full length would exceed the default. From 2.0 to 2.4.0 that
        follows the prompt's length; from 3.0 on a prefill comes in parts."""
        given = spec.max_batched_tokens or valued(spec.args, "--max-batch-prefill-tokens")
        follows = within(version, "2.0.0", "2.4.1") or within(version, "3.0.0", "")
        if given or follows or prompt <= _PREFILL:
            return []
        return ["--max-batch-prefill-tokens", str(prompt)]

    def read_server(self, client: "Client", cards: Cards) -> dict[str, Any] | None:
        info = json_object(client, "/info")
        if not isinstance(info.get("model_id"), str):
            return None
        # not in every version
        quantization = info.get("quantize") or info.get("quantization")
        dtype = info.get("model_dtype")
        return {
            "model_id": info["model_id"],
            "model_path": info["model_id"],
            "version": info.get("version"),
            "max_model_len": info.get("max_total_tokens"),
            "kv_cache_tokens": info.get("max_batch_total_tokens"),
            "quantization": quantization if isinstance(quantization, str) else None,
            "dtype": dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
        }

    def limits(
        self, spec: EngineSpec, model: ModelShape | None, version: str | None = None
    ) -> Limits:
        refuses = count(valued(spec.args, "--max-concurrent-requests")) or _REFUSES
        return msgspec.structs.replace(
            super().limits(spec, model, version), refuses=refuses
        )

    def unable(self, spec: EngineSpec, rig: Rig, version: str | None = None) -> str | None:
        if not spec.prefix_caching or not any(
            each.vendor == "amd" for each in rig.accelerators
        ):
            return None
        return "TGI has no prefix caching on AMD accelerators, and its server ends at the start. Turn it off."

    def env(self, spec: EngineSpec) -> dict[str, str]:
        out = {}
        if spec.prefix_caching is not None:
            # 2.3 reads the first name, later versions the second.
            out = dict.fromkeys(
                ("USE_PREFIX_CACHING", "PREFIX_CACHING"), str(int(spec.prefix_caching))
            )
        if spec.chunked_prefill is not None:
            out["PREFILL_CHUNKING"] = str(int(spec.chunked_prefill))
        return out


KIND = Tgi()
