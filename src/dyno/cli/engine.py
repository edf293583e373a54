"""The flags that describe an engine, in vLLM's words where it has them: the same for every command that starts one."""

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from dyno.cli.values import pairs
from dyno.errors import UsageError

if TYPE_CHECKING:
    from dyno.facts.engine import EngineSpec

KINDS = {  # as engines/kinds has them, which is not loaded for a help text
    "vllm": "vLLM",
    "tgi": "Text Generation Inference",
    "llamacpp": "llama.cpp: a llama-server, or the one that comes with dyno",
    "sglang": "SGLang",
    "transformers": "transformers serve",
    "openai": "any server that runs",
    "fake": "known times, and faults on demand",
}

_FOR_STARTING = (
    "--devices", "--replicas", "--engine-args", "--engine-env", "--engine-before", "--engine-after", "--engine-python",
    "--engine-binary", "--engine-environment", "--engine-image", "--engine-mount", "--engine-container-args",
    "--engine-ready-timeout-sec",
)  # fmt: skip


def add(g: argparse._ArgumentGroup) -> None:
    """A setting. What a kind or its version can't do is an error, never dropped."""
    g.add_argument("--load-format", metavar="F", help="dummy: random weights of the model's shape")
    g.add_argument("--dtype", metavar="T", help="fp16, bf16, fp32")
    g.add_argument(
        "--quantization", "-q", metavar="Q", help="fp16, bf16, fp8, int8 (W8A8), gptq, awq, a GGUF type such as Q4_K_M"
    )
    g.add_argument("--kv-cache-dtype", metavar="T", help="auto, fp8, fp8_e4m3, fp8_e5m2, fp16, bf16, q8_0, …")
    g.add_argument("--tensor-parallel-size", "-tp", type=int, default=1, metavar="N")
    g.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1, metavar="N")
    g.add_argument("--devices", nargs="*", metavar="N", help="accelerators by number (default: all); none: the CPU")
    g.add_argument("--replicas", type=int, default=1, metavar="N", help="copies on disjoint devices, load shared out")
    g.add_argument("--max-model-len", type=int, metavar="N", help="context of one request")
    g.add_argument("--max-num-seqs", type=int, metavar="N", help="requests worked on at once (llama.cpp: slots)")
    g.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens of one step")
    g.add_argument("--gpu-memory-utilization", type=float, metavar="F", help="share of the accelerator's memory")
    g.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, help="default: the engine's")
    g.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, help="default: the engine's")
    g.add_argument("--draft-model", "--speculative-model", metavar="M", help="for speculative decoding")
    g.add_argument("--draft-tokens", "--num-speculative-tokens", type=int, metavar="N")
    g.add_argument("--engine-args", action="append", default=[], metavar="'…'",
                   help="passed on untouched, as --engine-args='--x 1'; repeatable")  # fmt: skip
    g.add_argument("--engine-env", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="untouched, too")
    g.add_argument("--engine-before", action="append", default=[], metavar="CMD", help="run before it starts")
    g.add_argument("--engine-after", action="append", default=[], metavar="CMD", help="… and after it has stopped")
    g.add_argument("--engine-version", metavar="V", help="that it must be")
    g.add_argument("--engine-python", metavar="PATH", help="the interpreter that has it")
    g.add_argument("--engine-binary", metavar="PATH", help="its program")
    g.add_argument("--engine-environment", metavar="NAME", help="one of `dyno engines list`")
    g.add_argument("--engine-image", metavar="IMAGE", help="run it in a container (docker or podman)")
    g.add_argument("--engine-mount", nargs="+", action="extend", default=[], metavar="HOST:INSIDE")
    g.add_argument("--engine-container-args", action="append", default=[], metavar="'…'", help="for docker/podman run")
    g.add_argument("--engine-ready-timeout-sec", type=float, default=1800.0, metavar="S", help="default: 1800")


def given(o: argparse.Namespace) -> list[str]:
    """The setting's flags that were used, for the message where there is no engine to set."""
    parser = argparse.ArgumentParser()
    add(parser.add_argument_group())
    return [a.option_strings[0] for a in parser._actions if a.dest != "help" and getattr(o, a.dest) != a.default]


def spec(kind: str, o: argparse.Namespace) -> "EngineSpec":
    from dyno.facts.engine import ContainerSpec, EngineSpec

    for name in ("tensor_parallel_size", "pipeline_parallel_size", "replicas", "max_model_len", "max_num_seqs",
                 "max_num_batched_tokens", "draft_tokens"):  # fmt: skip
        value = getattr(o, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1.")
    if o.port is not None and not 0 < o.port < 65536:
        raise UsageError(f"--port {o.port}: a port is a number from 1 to 65535.")
    only = [flag for flag in given(o) if flag in _FOR_STARTING]
    if kind == "openai" and only:
        raise UsageError(f"{', '.join(only)}: a running server is attached to, not started. Leave that out.")
    if o.gpu_memory_utilization is not None and not 0 < o.gpu_memory_utilization <= 1:
        raise UsageError("--gpu-memory-utilization is a share, above 0 and at most 1.")
    return EngineSpec(
        kind=kind,
        model=o.model,
        served_name=o.served_model_name,
        load_format=o.load_format,
        dtype=o.dtype,
        quantization=o.quantization,
        kv_cache_dtype=o.kv_cache_dtype,
        tensor_parallel=o.tensor_parallel_size,
        pipeline_parallel=o.pipeline_parallel_size,
        devices=_devices(o.devices),
        replicas=o.replicas,
        max_model_len=o.max_model_len,
        max_num_seqs=o.max_num_seqs,
        max_batched_tokens=o.max_num_batched_tokens,
        memory_fraction=o.gpu_memory_utilization,
        prefix_caching=o.enable_prefix_caching,
        chunked_prefill=o.enable_chunked_prefill,
        draft_model=o.draft_model,
        draft_tokens=o.draft_tokens,
        args=_words(o.engine_args, "--engine-args"),
        env=pairs(o.engine_env, "--engine-env"),
        before=o.engine_before,
        after=o.engine_after,
        version=o.engine_version,
        python=o.engine_python,
        binary=o.engine_binary,
        environment=o.engine_environment,
        container=ContainerSpec(
            o.engine_image,
            mounts=o.engine_mount,
            options=_words(o.engine_container_args, "--engine-container-args"),
        )
        if o.engine_image
        else None,
        port=o.port if kind != "openai" else None,
        ready_timeout_s=o.engine_ready_timeout_sec,
    )


def _words(texts: list[str], name: str) -> list[str]:
    try:
        return [word for text in texts for word in shlex.split(text)]
    except ValueError as e:
        raise UsageError(f"{name}: {e}. Quote it as for a shell.") from None


def _devices(words: list[str] | None) -> list[int] | None:
    """0 1 2, or 0,1,2; given without a number: none."""
    if words is None:
        return None
    numbers: list[Any] = [n for word in words for n in word.split(",") if n]
    if not all(n.isdigit() for n in numbers):
        raise UsageError(f"--devices {' '.join(words)}: accelerators are given by number, as 0 1 2 or 0,1,2.")
    return [int(n) for n in numbers]
