"""Lines of engines' logs, as their sources and real logs have them: what is reported, and what isn't."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno import secrets
from dyno.checks import examine
from dyno.engines.log import last_lines, remarks
from dyno.facts.engine import EngineFacts, EngineSpec, Remark
from dyno.facts.rig import Accelerator, Rig
from dyno.store.run import Run
from dyno.trial.online import log_remarks
from test_offline_figures import evidence

HERE = Path(__file__).parents[1]
HEAD = "(EngineCore pid=1221) WARNING 11-15 00:31:54 [envs.py:2004] "
LINES = [
    ("vllm", "unknown_variable", "Unknown vLLM environment variable detected: VLLM_USE_TRITON_FLASH_ATN"),
    ("vllm", "deprecated", "argument '--disable-log-requests' is deprecated"),
    ("vllm", "deprecated", "The `--calculate-kv-scales` option is deprecated and will be removed in v0.19."),
    ("vllm", "deprecated", "Using VLLM_ATTENTION_BACKEND environment variable is deprecated and will be removed in v1"),
    ("vllm", "ignored", "max_parallel_loading_workers is currently not supported and will be ignored."),
    ("vllm", "ignored", "Ignoring --api-server-count=4 when using rust front-end process"),
    ("vllm", "eager", "CUDA graph is not supported for deepseek_v2 on ROCm yet, fallback to eager mode."),
    ("vllm", "eager", "Enforce eager set, disabling torch.compile and CUDAGraphs."),
    ("vllm", "fallback", "--kv-cache-dtype fp8 is not supported by the V1 Engine. Falling back to V0."),
    ("vllm", "fallback", "Layer 'x' is not supported by AWQMarlin. Falling back to unoptimized AWQ kernels."),
    ("vllm", "fallback", "Cannot use FlashAttention-2 backend for Volta and Turing GPUs."),
    ("vllm", "fallback", "Cannot use FA version 3 with ALiBi, defaulting to FA version 2."),
    ("vllm", "fallback", "Cannot use ROCm custom paged attention kernel, falling back to Triton implementation."),
    ("vllm", "fallback", "Your device 'cpu' doesn't support torch.float16. Falling back to fp32 for compatibility."),
    ("vllm", "fallback", "Your GPU does not have native support for FP8 computation but FP8 quantization is used."),
    ("vllm", "fallback", "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs."),
    ("vllm", "fallback", "Using a slow tokenizer. This might cause a significant slowdown."),
    ("vllm", "unsupported", "This model does not officially support disabling chunked prefill. Disabling"),
    ("vllm", "changed", "Chunked prefill is not supported on CPU, disable it."),
    ("vllm", "changed", "Disabling prefix caching for TRITON_MLA / FLASHINFER with batch invariance."),
    ("vllm", "changed",
     "--enable-prefix-caching is currently not supported for multimodal models and has been disabled."),
    ("vllm", "changed", "Auto-fit max_model_len: reduced from 131072 to 40960 to fit in available GPU memory"),
    ("vllm", "chosen", "Chunked prefill is enabled by default for models with max_model_len > 32K."),
    ("vllm", "kv_scales", "Using KV cache scaling factor 1.0 for fp8_e4m3. This may cause accuracy issues."),
    ("vllm", "kv_scales", "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."),
    ("vllm", "untuned", "Using default MoE config. Performance might be sub-optimal! Config file not found at /x.json"),
    ("vllm", "untuned", "awq quantization is not fully optimized yet. The speed can be slower."),
    ("vllm", "preempted", "Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough "
     "KV cache space. total_num_cumulative_preemption=51"),
    ("vllm", "swap_space", "Possibly too large swap space. 32.00 GiB out of the 62.78 GiB total CPU memory"),
    ("llamacpp", "fallback", "flash_attn requires n_embd_head_k == n_embd_head_v - forcing off"),
    ("llamacpp", "fallback", "Flash Attention not supported, set to disabled"),
    ("llamacpp", "changed", "cache_reuse is not supported by this context, it will be disabled"),
    ("llamacpp", "offloaded", "offloaded 0/33 layers to GPU"),
    ("llamacpp", "offloaded", "offloaded 20/33 layers to GPU"),
    ("llamacpp", "ignored", "no usable GPU found, --gpu-layers option will be ignored"),
    ("llamacpp", "deprecated", "DEPRECATED: --defrag-thold is deprecated and no longer necessary to specify"),
    ("sglang", "eager", "Cuda graph is disabled because of using torch native attention backend"),
    ("sglang", "changed", "Max running requests is reset to 48 for speculative decoding."),
    ("sglang", "preempted", "KV cache pool is full. Retract requests. #retracted_reqs: 1"),
    ("sglang", "kv_scales",
     "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."),
    ("tgi", "changed", "Disabling prefix caching because of lora adapters"),
    ("tgi", "fallback", "Forcing attention to 'flashdecoding' because head dim is not supported by flashinfer, also "
     "disabling prefix caching"),
]  # fmt: skip
HARMLESS = [
    ("vllm", "Chunked prefill is enabled with max_num_batched_tokens=8192."),
    ("vllm", "CUDA graph is not supported on CPU, fallback to the eager mode."),
    ("vllm", "ray is not supported on CPU, fallback to mp distributed executor backend."),
    ("vllm", "Pin memory is not supported on CPU."),
    ("vllm", "Received request cmpl-1: prompt: 'Falling back to V0', params: SamplingParams(n=1)"),
    ("vllm", "Failed to import from vllm._qutlass_C: ModuleNotFoundError(\"No module named 'vllm._qutlass_C'\")"),
    ("vllm", "You are using a deprecated `pynvml` package. Please install `nvidia-ml-py` instead"),
    ("llamacpp", "n_ctx_per_seq (4096) < n_ctx_train (131072) -- the full capacity of the model will not be utilized"),
    ("llamacpp", "offloaded 33/33 layers to GPU"),
    ("llamacpp", "enabling flash_attn since it is required for quantized V cache"),
    ("fake", "Falling back to V0"),
]  # fmt: skip
BEFORE = {
    "vllm": HEAD,
    "llamacpp": "llama_context: ",
    "sglang": "[2026-11-15 00:31:54 TP0] ",
    "tgi": "\x1b[2m2026-11-15T00:31:54\x1b[0m \x1b[33m WARN\x1b[0m text_generation_launcher: launcher/src/main.rs:98: ",
}


@pytest.mark.parametrize(("kind", "about", "line"), LINES)
def test_a_line_that_matters_is_reported_without_its_head(
    kind: str, about: str, line: str
) -> None:
    assert remarks(kind, f"ready\n{BEFORE[kind]}{line}\nready\n") == [
        Remark(about, line[:240])
    ]  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "line"), HARMLESS)
def test_a_harmless_line_is_not(kind: str, line: str) -> None:
    assert remarks(kind, f"{HEAD}{line}\n{line}\n") == []


@pytest.mark.parametrize(
    "log", [*(HERE / "captures").glob("*.log"), *(HERE / "fixtures").rglob("engine*.log")]
)
def test_no_recorded_log_of_a_good_start_has_a_remark(log: Path) -> None:
    assert [r for kind in BEFORE for r in remarks(kind, log.read_text())] == []


def test_each_remark_is_reported_once_whichever_process_made_it() -> None:
    line = "Unknown vLLM environment variable detected: VLLM_X"
    text = f"{HEAD}{line}\n{HEAD.replace('1221', '1222').replace('54', '55')}{line}\n"
    assert remarks("vllm", text) == [Remark("unknown_variable", line, 2)]


def test_a_remark_has_no_secret() -> None:
    secrets.learn(["sesame-open-1234"])
    (remark,) = remarks(
        "vllm", "Unknown vLLM environment variable detected: sesame-open-1234"
    )
    assert "sesame" not in remark.line


def test_a_prompt_in_a_long_line_is_not_the_engines_remark() -> None:
    assert remarks("vllm", "x" * 3000 + " Falling back to V0") == []


def findings(
    *about: Any, args: tuple[str, ...] = (), gpu: bool = False
) -> list[tuple[str, str]]:
    case = evidence(remarks=[Remark(a, f"line about {a}") for a in about])
    engine = EngineSpec("vllm", args=[*args])
    rig = Rig(
        "Debian",
        "6",
        "x86_64",
        "cpu",
        16,
        accelerators=[Accelerator(0, "NVIDIA H200", "nvidia")] * gpu,
    )
    case = msgspec.structs.replace(
        case, trial=msgspec.structs.replace(case.trial, engine=engine), rig=rig
    )
    quoted = [f for f in examine(case) if "by its log" in f.text]
    assert all(
        re.search(r'by its log: "line about \w+"\.$', f.text) and f.advice for f in quoted
    )
    return [(f.code, f.level) for f in quoted]


def test_remarks_become_findings_in_the_engines_words() -> None:
    assert findings("unknown_variable", "untuned") == [
        ("engine.unknown_variable", "doubt"), ("engine.untuned_kernel", "note"),
    ]  # fmt: skip
    assert findings("eager") == [("engine.no_graphs", "doubt")]
    assert findings("eager", args=("--enforce-eager",)) == [("engine.no_graphs", "note")]
    assert findings("offloaded") == []
    assert findings("offloaded", gpu=True) == [("engine.not_offloaded", "doubt")]
    assert findings("offloaded", gpu=True, args=("-ngl", "20")) == []
    assert findings("preempted") == [("engine.preemptions", "note")]


def test_the_logs_of_all_copies_are_read(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert log_remarks(run) == []
    run.write_engine(EngineFacts("vllm", "0.24.0", []))
    (tmp_path / "engine.log").write_text(
        f"{HEAD}Enforce eager set, disabling torch.compile\n"
    )
    (tmp_path / "engine-2.log").write_text(f"{HEAD}Possibly too large swap space. 32 GiB\n")
    assert {r.about for r in log_remarks(run)} == {"eager", "swap_space"}


def test_the_reason_of_a_refused_setting_is_in_the_error(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
        "  Value error, torch.float32 is not supported for quantization method quark. [type=value_error]\n"
        "    For further information visit a page\n"
    )
    [line] = last_lines(log, 0, 5)
    assert line.endswith(
        "for VllmConfig: Value error, torch.float32 is not supported for quantization method quark."
    )
