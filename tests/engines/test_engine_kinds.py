"""Settings become command lines: by engine and version, and what one can't do is said."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dyno import secrets
from dyno.engines import embedded
from dyno.engines.kinds import KINDS, kind_of
from dyno.engines.kinds.base import SERVER_METRICS, Program
from dyno.engines.launch import allowed, launches, public, public_spec, shown
from dyno.errors import UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec, Launch
from dyno.facts.rig import Rig
from dyno.facts.target import TargetFacts
from dyno.measure.agreement import contradicted, differences, same_quantization
from dyno.option import fields, opposite
from dyno.probe.telemetry import metrics

COMMANDS = {
    "vllm": "vllm",
    "llamacpp": "llama-server",
    "tgi": "text-generation-launcher",
    "sglang": "sglang",
    "transformers": "transformers",
}
SAME = {
    "-tp": "--tensor-parallel-size",
    "-m": "--model",
    "-np": "--parallel",
    "--num-scheduler-step": "--num-scheduler-steps",
}


def launch(
    kind: str,
    version: str | None = None,
    devices: Sequence[int] = (),
    vendor: str | None = None,
    **fields: Any,
) -> list[Launch]:
    spec = EngineSpec(kind, **fields)
    program = Program([COMMANDS[kind]], version)
    return launches(
        KINDS[kind], spec, program, list(range(8000, 8000 + spec.replicas)), devices, vendor
    )


def command(kind: str, version: str | None = None, **fields: Any) -> list[str]:
    return launch(kind, version, **fields)[0].argv


def parts(line: Sequence[str]) -> dict[str, str]:
    """Flag → value, in one spelling, without the address; a word that belongs to no flag is the model."""
    out: dict[str, str] = {}
    words = [w for w in line if w not in ("vllm", "serve")]
    i = 0
    while i < len(words):
        name, equals, value = words[i].partition("=")
        i += 1
        if not name.startswith("-"):
            out["model"] = name
            continue
        name = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        if not equals and i < len(words) and not words[i].startswith("-"):
            value = words[i]
            i += 1
        out[SAME.get(name, name)] = value
    return {
        k: v
        for k, v in out.items()
        if k not in ("--host", "--port", "--metrics", "--alias")
    }


# As in the public reports, with the setting that gives the same. Versions: by their dates and environment dumps.
REPORTED: list[tuple[str, str, str | None, dict[str, Any]]] = [
    (
        "vllm serve -tp 4 meta-llama/Llama-3.1-70B-Instruct --gpu_memory_utilization=0.98 --num-scheduler-steps 20",
        "vllm", "0.6.5",
        {"model": "meta-llama/Llama-3.1-70B-Instruct", "tensor_parallel": 4, "memory_fraction": 0.98,
         "args": ["--num-scheduler-steps", "20"]},
    ),
    (
        "vllm serve -tp 4 meta-llama/Llama-3.1-70B-Instruct --gpu_memory_utilization=0.98 --num-scheduler-steps 20 "
        "--max-num-seqs 4096",
        "vllm", "0.6.5",
        {"model": "meta-llama/Llama-3.1-70B-Instruct", "tensor_parallel": 4, "memory_fraction": 0.98,
         "max_num_seqs": 4096, "args": ["--num-scheduler-steps", "20"]},
    ),
    (
        "vllm serve -tp 1 meta-llama/Llama-3.1-70B-Instruct --gpu_memory_utilization=0.98 --num-scheduler-steps 20 "
        '--max-num-seqs 4096 --quantization="fp8" --max-model-len 32768',
        "vllm", "0.6.5",
        {"model": "meta-llama/Llama-3.1-70B-Instruct", "memory_fraction": 0.98, "max_num_seqs": 4096,
         "quantization": "fp8", "max_model_len": 32768, "args": ["--num-scheduler-steps", "20", "-tp", "1"]},
    ),
    (
        "vllm serve amd/Llama-3.1-70B-Instruct-FP8-KV --swap-space 16 --disable-log-requests --quantization fp8 "
        "--kv-cache-dtype fp8 --dtype float16 --max-model-len 8192 --tensor-parallel-size 8 "
        "--max-num-batched-tokens 65536 --gpu-memory-utilization 0.99 --num_scheduler-steps 10",
        "vllm", "0.6.6",
        {"model": "amd/Llama-3.1-70B-Instruct-FP8-KV", "quantization": "fp8", "kv_cache_dtype": "fp8", "dtype": "fp16",
         "max_model_len": 8192, "tensor_parallel": 8, "max_batched_tokens": 65536, "memory_fraction": 0.99,
         "args": ["--swap-space", "16", "--disable-log-requests", "--num-scheduler-steps", "10"]},
    ),
    (
        "vllm serve meta-llama/Llama-3.1-405B-FP8 --host 0.0.0.0 --port 8000 -tp 8 --max-seq-len-to-capture 16384 "
        "--served-model-name meta-llama/Llama-3.1-405B-FP8 --enable-chunked-prefill=False --num-scheduler-step 15 "
        "--max-num-seqs 1024",
        "vllm", "0.6.3",
        {"model": "meta-llama/Llama-3.1-405B-FP8", "served_name": "meta-llama/Llama-3.1-405B-FP8", "tensor_parallel": 8,
         "chunked_prefill": False, "max_num_seqs": 1024,
         "args": ["--max-seq-len-to-capture", "16384", "--num-scheduler-steps", "15"]},
    ),
    (
        "vllm serve meta-llama/Llama-3.1-405B-FP8 --tensor-parallel-size 8 --max-model-len 91680",
        "vllm", "0.6.3",
        {"model": "meta-llama/Llama-3.1-405B-FP8", "tensor_parallel": 8, "max_model_len": 91680},
    ),
    (
        "vllm serve meta-llama/Llama-2-7b-chat-hf --gpu-memory-utilization 0.75",
        "vllm", "0.10.2",
        {"model": "meta-llama/Llama-2-7b-chat-hf", "memory_fraction": 0.75},
    ),
    (
        "llama-server -fa on -ngl 99 -np 16 -cb --kv-unified --cache-reuse 256 --port 8000 "
        "-m /models/gguf/Llama-2-7b-chat-hf.f16.gguf",
        "llamacpp", "6500",
        {"model": "/models/gguf/Llama-2-7b-chat-hf.f16.gguf", "quantization": "F16", "max_num_seqs": 16,
         "args": ["-fa", "on", "-ngl", "99", "-cb", "--kv-unified", "--cache-reuse", "256"]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "kind", "version", "fields"), REPORTED, ids=[r[0][:60] for r in REPORTED]
)
def test_each_server_command_of_the_reports_can_be_written(
    line: str, kind: str, version: str, fields: dict[str, Any]
) -> None:
    wanted = parts(shlex.split(line))
    wanted.pop("llama-server", None)
    if kind == "llamacpp":
        wanted.pop("model", None)
    got = parts(command(kind, version, **fields))
    if kind == "llamacpp":
        got.pop("model", None)
    assert got == wanted


def test_the_environment_of_a_report_is_passed_on_untouched() -> None:
    env = {
        "VLLM_USE_TRITON_FLASH_ATTN": "0",
        "NCCL_MIN_NCHANNELS": "112",
        "VLLM_RPC_TIMEOUT": "30000",
    }
    one = launch("vllm", "0.6.3", model="m", env=env)[0]
    assert {k: v for k, v in one.env.items() if k in env} == env
    assert launch("llamacpp", model="m.gguf", env={"ROCBLAS_USE_HIPBLASLT": "1"})[
        0
    ].env == {"ROCBLAS_USE_HIPBLASLT": "1"}


SPECULATION = {"model": "m", "draft_model": "d", "draft_tokens": 5}


def test_speculation_is_two_flags_for_old_vllm_and_one_object_for_new() -> None:
    old = command("vllm", "0.6.3", **SPECULATION)
    assert old[-4:] == ["--speculative-model", "d", "--num-speculative-tokens", "5"]
    # it didn't go without
    assert command("vllm", "0.6.1", **SPECULATION)[-1] == "--use-v2-block-manager"
    new = command("vllm", "0.9.2", **SPECULATION)
    assert new[-2] == "--speculative-config"
    assert json.loads(new[-1]) == {"model": "d", "num_speculative_tokens": 5}
    newest = command("vllm", None, **SPECULATION)
    assert json.loads(newest[-1]) == {
        "model": "d",
        "num_speculative_tokens": 5,
        "method": "draft_model",
    }
    with pytest.raises(UsageError, match=r"vLLM 0\.11\.0 has no draft models"):
        command("vllm", "0.11.0", **SPECULATION)


def test_llama_cpp_s_speculation_changed_its_flags() -> None:
    assert command("llamacpp", "6500", **SPECULATION)[-4:] == [
        "--model-draft",
        "d",
        "--draft-max",
        "5",
    ]
    newest = command("llamacpp", "11434", **SPECULATION)
    assert newest[-6:] == [
        "--spec-draft-model",
        "d",
        "--spec-type",
        "draft-simple",
        "--spec-draft-n-max",
        "5",
    ]


@pytest.mark.parametrize(
    ("version", "on", "off"),
    [
        ("0.6.3", "--enable-chunked-prefill=True", "--enable-chunked-prefill=False"),
        ("0.12.0", "--enable-chunked-prefill", "--no-enable-chunked-prefill"),
        (None, "--enable-chunked-prefill", "--no-enable-chunked-prefill"),
    ],
)
def test_chunked_prefill_is_written_as_the_version_wants_it(
    version: str | None, on: str, off: str
) -> None:
    assert command("vllm", version, model="m", chunked_prefill=True)[-1] == on
    assert command("vllm", version, model="m", chunked_prefill=False)[-1] == off


@pytest.mark.parametrize(
    ("kind", "version", "fields", "named"),
    [
        ("vllm", "0.11.0", {"args": ["--num-scheduler-steps", "20"]}, ["0.11.0", "--num-scheduler-steps", "0.10.1"]),
        ("vllm", "0.11.0", {"args": ["--num_scheduler_steps=20"]}, ["vLLM 0.11.0", "--num-scheduler-steps"]),
        ("vllm", "0.32.0", {"args": ["--max-seq-len-to-capture", "1"]}, ["vLLM 0.32.0", "--max-seq-len-to-capture"]),
        ("vllm", "0.32.0", {"args": ["--speculative-model", "x"]}, ["vLLM 0.32.0", "--draft-model"]),
        ("vllm", "0.6.3", {"args": ["--async-scheduling"]}, ["vLLM 0.6.3", "--async-scheduling", "0.10.0"]),
        ("vllm", "0.9.2", {"chunked_prefill": False}, ["vLLM 0.9.2", "--no-enable-chunked-prefill", "from 0.11.1"]),
        ("vllm", "0.24.0", {"quantization": "Q4_K_M"}, ["vLLM 0.24.0", "Q4_K_M", "before 0.24.0"]),
        ("llamacpp", "6500", {"prefix_caching": False}, ["llama.cpp 6500", "--no-enable-prefix-caching", "from 7716"]),
        ("llamacpp", "11434", {"args": ["--draft-max", "4"]}, ["llama.cpp 11434", "--draft-tokens"]),
        ("vllm", "0.6.3", {"kv_cache_dtype": "bf16"}, ["vLLM 0.6.3", "--kv-cache-dtype 'bf16'"]),
        ("vllm", "0.6.3", {"quantization": "nonsense"}, ["vLLM 0.6.3", "--quantization 'nonsense'"]),
        ("tgi", "3.3.6", {"pipeline_parallel": 2}, ["TGI 3.3.6", "--pipeline-parallel-size 2"]),
        ("tgi", "3.3.6", {"load_format": "dummy"}, ["TGI 3.3.6", "--load-format 'dummy'"]),
        ("tgi", "3.3.6", {"draft_model": "d", "draft_tokens": 2}, ["TGI 3.3.6", "--draft-model"]),
        ("llamacpp", "6500", {"memory_fraction": 0.9}, ["llama.cpp", "--gpu-memory-utilization 0.9"]),
        ("llamacpp", "6500", {"chunked_prefill": False}, ["llama.cpp", "--no-enable-chunked-prefill"]),
        ("transformers", "5.22.2", {"tensor_parallel": 2}, ["transformers serve 5.22.2", "--tensor-parallel-size"]),
        ("transformers", "5.22.2", {"max_model_len": 512}, ["transformers serve 5.22.2", "--max-model-len"]),
    ],
)  # fmt: skip
def test_what_a_version_cannot_do_is_an_error_that_names_it(
    kind: str, version: str, fields: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(UsageError) as reported:
        command(kind, version, model="m", **fields)
    for word in named:
        assert word in str(reported.value)


@pytest.mark.parametrize("kind", [k for k, v in KINDS.items() if v.starts and k != "fake"])
def test_every_portable_setting_is_either_passed_on_or_refused(kind: str) -> None:
    """Nothing is dropped in silence: with the setting the command or its environment differs, or it is an error."""
    values: dict[str, Any] = {
        "served_name": "n", "load_format": "dummy", "dtype": "bf16", "quantization": "fp8",
        "kv_cache_dtype": "fp8_e5m2",
        "tensor_parallel": 2, "pipeline_parallel": 2, "max_model_len": 777, "max_num_seqs": 7,
        "max_batched_tokens": 77, "memory_fraction": 0.7, "prefix_caching": False, "chunked_prefill": False,
        "draft_tokens": 3,
    }  # fmt: skip
    # Found in the files or always so, and verified there instead of said.
    silent = {
        ("llamacpp", "quantization"), ("transformers", "quantization"), ("transformers", "prefix_caching"),
        ("tgi", "served_name"),
    }  # fmt: skip
    plain = launch(kind, model="m")[0]
    for name, value in values.items():
        try:
            said = launch(kind, model="m", **{name: value})[0]
        except UsageError as e:
            flag = fields(EngineSpec)[name].option.flag
            assert flag in str(e) or opposite(flag) in str(e) or "draft" in str(e)
            continue
        assert (said.argv != plain.argv or said.env != plain.env) or (
            kind,
            name,
        ) in silent, name


def test_a_dtype_and_a_quantization_that_contradict_each_other_are_refused() -> None:
    assert "--dtype" in command("vllm", model="m", quantization="FP16")
    with pytest.raises(UsageError, match="contradict"):
        command("vllm", model="m", quantization="bf16", dtype="fp16")


def test_what_is_in_the_checkpoint_is_not_passed_to_vllm() -> None:
    for found in ("gptq", "awq", "int8", "W8A8-INT8"):
        assert "--quantization" not in command("vllm", model="m", quantization=found)


def test_llamacpp_asks_for_the_context_of_a_request_times_its_slots() -> None:
    line = parts(command("llamacpp", model="m.gguf", max_model_len=2048, max_num_seqs=16))
    assert (line["--ctx-size"], line["--parallel"]) == ("32768", "16")


@pytest.mark.parametrize(
    ("fields", "context", "slots"),
    [
        ({"max_model_len": 2048, "max_num_seqs": 16}, 2048, 16),
        ({"max_num_seqs": 16, "args": ["-c", "4096"]}, 256, 16),
        ({"args": ["--ctx-size=4096", "--parallel", "8"]}, 512, 8),
        ({"args": ["-c", "4096"]}, 4096, None),
        ({"args": ["-c", "4096", "-np", "16", "--kv-unified"]}, 256, 16),
    ],
)
def test_llamacpp_slots_share_the_context(
    fields: dict[str, Any], context: int, slots: int | None
) -> None:
    limits = KINDS["llamacpp"].limits(
        EngineSpec("llamacpp", model="m.gguf", **fields), None, "6500"
    )
    assert (limits.context, limits.slots) == (context, slots)


def test_a_unified_cache_is_each_slot_s_own_in_newer_builds() -> None:
    spec = EngineSpec(
        "llamacpp", model="m.gguf", args=["-c", "4096", "-np", "16", "--kv-unified"]
    )
    assert KINDS["llamacpp"].limits(spec, None, "11434").context == 4096


def test_replicas_get_disjoint_devices_and_ports() -> None:
    two = launch(
        "vllm", model="m", replicas=2, tensor_parallel=4, devices=range(8), vendor="nvidia"
    )
    assert [x.env["CUDA_VISIBLE_DEVICES"] for x in two] == ["0,1,2,3", "4,5,6,7"]
    assert {x.env["CUDA_DEVICE_ORDER"] for x in two} == {"PCI_BUS_ID"}
    assert [x.port for x in two] == [8000, 8001]
    eight = launch("vllm", model="m", replicas=8, devices=range(8), vendor="amd")
    assert [x.env["HIP_VISIBLE_DEVICES"] for x in eight] == list("01234567")


def test_too_few_devices_are_an_error_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"2 × 4 accelerators are needed.*4 are available"):
        launch(
            "vllm",
            model="m",
            replicas=2,
            tensor_parallel=4,
            devices=range(4),
            vendor="nvidia",
        )


def test_one_engine_on_all_devices_hears_nothing_of_them() -> None:
    assert (
        "CUDA_VISIBLE_DEVICES"
        not in launch("vllm", model="m", devices=range(8), vendor="nvidia")[0].env
    )


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"vllm, tgi, llamacpp"):
        kind_of("vlllm")


SECRET = "hf_abcdefghijklmnop"


def test_secrets_of_a_setting_are_shown_nowhere() -> None:
    env = {"HF_TOKEN": SECRET, "TOKENIZERS_PARALLELISM": "false"}
    one = launch("vllm", model="m", env=env, args=["--api-key", SECRET])[0]
    for text in (
        shown(one),
        str(public(one)),
        str(public_spec(EngineSpec("vllm", env={"HF_TOKEN": SECRET}))),
    ):
        assert SECRET not in text
        assert "[redacted]" in text
    assert "TOKENIZERS_PARALLELISM=false" in shown(one)
    assert SECRET in secrets.values({"HF_TOKEN": SECRET})
    assert secrets.values({}, ["--api-key=" + SECRET]) == [SECRET]


CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.mark.parametrize(
    (
        "file",
        "weights_gib",
        "tokens",
        "full",
        "quantization",
        "compile_s",
        "graphs_s",
        "init_s",
    ),
    [
        ("vllm-0.24-serve_bf16.log", 15.0, 919_824, 112.28, None, 27.97, 5, 56.52),
        ("vllm-0.24-serve_fp8.log", 8.54, 972_496, 118.71, "fp8", 42.49, 7, 72.10),
    ],
)
def test_vllm_s_own_log_reports_what_it_loaded(
    file: str, weights_gib: float, tokens: int, full: float, quantization: str | None,
    compile_s: float, graphs_s: float, init_s: float,
) -> None:  # fmt: skip
    reported = KINDS["vllm"].read_log((CAPTURES / file).read_text())
    assert reported.target["weights_bytes"] == int(weights_gib * 2**30)
    assert reported.target["kv_cache_tokens"] == tokens
    assert reported.target["full_length_requests"] == full
    assert reported.target.get("quantization") == quantization
    assert reported.target["max_model_len"] == 8192
    assert reported.target["dtype"] == "bf16"
    assert (reported.target["prefix_caching"], reported.target["chunked_prefill"]) == (
        False,
        True,
    )
    assert reported.target["version"] == "0.24.0"
    assert reported.startup_s["compile"] == compile_s
    assert reported.startup_s["graphs"] == graphs_s
    assert reported.startup_s["init"] == init_s


def test_chunked_prefill_is_what_the_engine_came_to_not_what_it_was_asked() -> None:
    """vLLM 0.8 to 0.11.0 takes the flag that turns it off, and leaves it on."""
    args = "INFO [utils.py:1] non-default args: {'model': 'm', 'enable_chunked_prefill': False}\n"
    line = "INFO Initializing a V1 LLM engine (v0.10.0) with config: model='m', chunked_prefill_enabled=True, x=1\n"
    target = KINDS["vllm"].read_log(args + line).target
    assert target["chunked_prefill"] is True
    spec, facts = (
        EngineSpec("vllm", chunked_prefill=False),
        TargetFacts("m", chunked_prefill=True),
    )
    assert list(differences(spec, facts)) == [
        "the setting asks for chunked_prefill = False, but it has True"
    ]


def test_the_log_of_an_old_vllm_is_read_too() -> None:
    reported = KINDS["vllm"].read_log(
        "INFO 12-25 14:00:09 model_runner.py:1094] Loading model weights took 67.6979 GB\n"
        "INFO 12-25 14:00:28 gpu_executor.py:76] # GPU blocks: 19513, # CPU blocks: 819\n"
        "INFO 12-25 14:00:28 gpu_executor.py:80] Maximum concurrency for 32768 tokens per request: 9.53x\n"
    )
    assert reported.target["kv_cache_tokens"] == 19513 * 16
    assert reported.target["full_length_requests"] == 9.53
    assert round(reported.target["weights_bytes"] / 2**30, 4) == 67.6979


# ---- what is the same ----


@pytest.mark.parametrize(
    ("asked", "served", "same"),
    [
        ("Q4_K_M", "Q4_K - Medium", True), ("q4_k_m", "Q4_K - Small", False), ("Q2_K", "Q2_K - Medium", True),
        ("IQ4_XS", "IQ4_XS - 4.25 bpw", True), ("IQ3_M", "IQ3_S mix - 3.66 bpw", True), ("F32", "all F32", True),
        ("Q4_K_XL", "Q4_K - Medium", True), ("Q6_K_L", "Q6_K", True), ("Q4_K_XL", "Q5_K - Medium", False),
        ("MXFP4", "MXFP4 MoE", True), ("Q8_0", "Q8_0", True), ("Q4_0", "Q8_0", False), ("F16", "F16", True),
        ("fp8", "fp8", True), ("fp8", "compressed-tensors", None), ("compressed-tensors", "fp8", None),
        ("INT8-W8A8", "w8a8_int8", True), ("gptq", "gptq_marlin", True), ("awq", "gptq", False),
        ("gptq", "", False), ("fp8", "", False), ("gptq", None, None), ("modelopt", "modelopt_fp4", True),
        ("Q8", "Q8_0", True), ("q4", "Q4_K - Medium", True), ("q4", "Q8_0", False), ("int8", "gptq", False),
    ],
)  # fmt: skip
def test_quantizations_are_the_same_in_every_spelling_that_servers_have(
    asked: str, served: str | None, same: bool | None
) -> None:
    assert same_quantization(asked, served, "bf16") is same


_SERVED = {  # as servers spell them: llama.cpp, vLLM, SGLang
    8: ("Q8_0", "q8_0", "mostly Q8_0", "Q8_1", "Q8_K"),
    6: ("Q6_K", "Q6_K_L"),
    5: ("Q5_0", "Q5_1", "Q5_K - Small", "Q5_K - Medium"),
    4: ("Q4_0", "Q4_1", "Q4_K - Small", "Q4_K - Medium", "Q4_K_XL", "IQ4_XS - 4.25 bpw", "IQ4_NL", "Q4_0_4_4"),
    3: ("Q3_K - Medium", "IQ3_S mix - 3.66 bpw"),
    2: ("Q2_K - Medium", "IQ2_XXS - 2.0625 bpw"),
}  # fmt: skip


@pytest.mark.parametrize("served_bits", _SERVED)
@pytest.mark.parametrize("bits", _SERVED)
def test_a_name_that_claims_a_family_is_met_by_each_of_its_members_and_by_no_other(
    bits: int, served_bits: int
) -> None:
    names = (f"q{bits}", f"Q{bits}", f"{bits}bit", f"{bits}-bit", f"llama-3-8b-q{bits}", f"llama.Q{bits}.gguf",
             f"org/model-7B_q{bits}_server", f"mlx/Llama-{bits}bit", f"q{bits}-tuned")  # fmt: skip
    for name in names:
        for served in _SERVED[served_bits]:
            assert contradicted(name, served, None) is (bits != served_bits), (name, served)


@pytest.mark.parametrize(
    ("name", "met", "unmet"),
    [
        ("int8", ["int8", "w8a8", "w8a8_int8", "Q8_0"], ["fp8", "Q4_0", "mxfp8", "int4"]),
        ("Model-FP8-dynamic", ["fp8", "ptpc_fp8", "fbgemm_fp8", "mxfp8", "w8a8_fp8"], ["int8", "Q8_0", "mxfp4", "awq"]),
        ("model-int4", ["Q4_0", "IQ4_NL", "gptq_marlin", "awq", "bitsandbytes"], ["Q8_0", "fp8", "mxfp4", "F16"]),
        ("model-w4a16", ["gptq", "Q4_K - Medium", "int4"], ["fp8", "int8", "BF16"]),
        ("x-bnb-4bit", ["bitsandbytes", "Q4_1", "mxfp4"], ["Q8_0", "fp8", "F16", "BF16"]),
        ("Q4_K", ["Q4_K - Small", "Q4_K - Medium", "Q4_K_XL"], ["Q4_0", "Q5_K - Medium", "Q8_0"]),
        ("iq4", ["IQ4_XS - 4.25 bpw", "IQ4_NL"], ["Q4_0", "IQ3_M"]),
        ("TQ2_0", ["TQ2_0 - 2.06 bpw ternary"], ["Q2_K - Medium", "TQ1_0"]),
        # A whole type is met by itself alone, whatever stands behind it.
        ("llama.Q4_K_M.gguf", ["Q4_K - Medium"], ["Q4_K - Small", "Q4_0", "Q8_0"]),
        ("llama-Q4_0_fixed", ["Q4_0"], ["Q4_1", "Q8_0"]),
        ("Q4_K_M-from-f16", ["Q4_K - Medium", "F16"], ["Q8_0"]),
        # These hold others, and names that claim nothing.
        ("model-q8", ["compressed-tensors", "quark"], ["Q4_0"]),
        ("Qwen2.5-7B-Instruct", ["Q8_0", "fp8", "awq"], []),
        ("llama-3.2-1b", ["Q8_0"], []),
    ],
)  # fmt: skip
def test_what_a_name_claims_is_met_or_contradicted(
    name: str, met: list[str], unmet: list[str]
) -> None:
    assert [served for served in met if contradicted(name, served, None)] == []
    assert [served for served in unmet if not contradicted(name, served, None)] == []


def test_unquantized_is_reported_by_the_dtype() -> None:
    assert same_quantization("bf16", "", "bfloat16") is True
    assert same_quantization("fp16", "", "bfloat16") is False
    assert same_quantization("fp16", None, None) is None


def differing(spec: EngineSpec, **reported: Any) -> list[str]:
    return list(differences(spec, TargetFacts("m", models_listed=["m"], **reported)))


def test_only_what_was_asked_for_is_compared_with_a_server() -> None:
    assert (
        differing(
            EngineSpec("openai", quantization="fp8"), tensor_parallel=8, quantization="fp8"
        )
        == []
    )
    assert (
        differing(EngineSpec("openai", kv_cache_dtype="fp8"), kv_cache_dtype="fp8_e4m3")
        == []
    )
    assert differing(EngineSpec("openai", version="0.6"), version="0.6.3.post1") == []
    for spec, reported in (
        (EngineSpec("openai", tensor_parallel=4), {"tensor_parallel": 8}),
        (EngineSpec("openai", version="0.6"), {"version": "0.10.6"}),
        (EngineSpec("openai", version="1.0"), {"version": "0.11.0"}),
        (EngineSpec("openai", dtype="fp16"), {"dtype": "bfloat16"}),
        (
            EngineSpec("openai", quantization="gptq"),
            {"quantization": "", "dtype": "bfloat16"},
        ),
        (EngineSpec("openai", max_model_len=8192), {"max_model_len": 4096}),
        (EngineSpec("openai", max_num_seqs=16), {"slots": 4}),
    ):
        assert len(differing(spec, **reported)) == 1


def test_a_short_version_is_its_first_release() -> None:
    assert "draft_model" in command("vllm", "0.15", **SPECULATION)[-1]
    assert (
        command("vllm", "0.8", model="m", chunked_prefill=True)[-1]
        == "--enable-chunked-prefill"
    )
    with pytest.raises(UsageError):
        command("vllm", "0.10", **SPECULATION)


def test_devices_none_hide_them_all_and_the_users_own_choice_is_kept() -> None:
    assert (
        launch("vllm", model="m", devices=[], vendor="nvidia")[0].env.get(
            "CUDA_VISIBLE_DEVICES"
        )
        is None
    )
    spec = EngineSpec("vllm", model="m", devices=[])
    (one,) = launches(KINDS["vllm"], spec, Program(["vllm"], None), [8000], [], "nvidia")
    assert one.env["CUDA_VISIBLE_DEVICES"] == ""
    assert allowed(range(8), "nvidia", {"CUDA_VISIBLE_DEVICES": "4,5"}) == [4, 5]
    assert allowed(range(8), "nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-uuid"}) == list(
        range(8)
    )
    assert allowed(range(8), "nvidia", {}) == list(range(8))
    with pytest.raises(
        UsageError, match="CUDA_VISIBLE_DEVICES in --engine-env contradicts"
    ):
        launch(
            "vllm",
            model="m",
            replicas=2,
            env={"CUDA_VISIBLE_DEVICES": "0,1"},
            devices=range(2),
            vendor="nvidia",
        )


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("VLLM_API_KEY", True), ("AWS_SECRET_ACCESS_KEY", True), ("WANDB_API_KEY", True),
        ("NCCL_AUTH", True), ("DB_PASSWORD", True), ("HUGGING_FACE_HUB_TOKEN", True),
        ("DB_PWD", True), ("PWD", False), ("OLDPWD", False),
        ("TOKENIZERS_PARALLELISM", False), ("GIT_AUTHOR_NAME", False), ("MAX_BATCH_PREFILL_TOKENS", False),
        ("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", False), ("MONKEY", False),
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_variables_name(name: str, secret: bool) -> None:
    assert secrets.is_secret(name) is secret


def test_a_container_s_options_and_build_arguments_hide_their_secrets() -> None:
    box = ContainerSpec(
        "image", options=["-e", f"HF_TOKEN={SECRET}"], build_args={"HF_TOKEN": SECRET}
    )
    assert SECRET not in str(public_spec(EngineSpec("vllm", model="m", container=box)))
    assert secrets.values(
        {}, ["--api-key", SECRET, "sk-another-one", "--port", "8000"]
    ) == [SECRET, "sk-another-one"]


def test_every_metric_of_an_engine_is_one_that_dyno_reads() -> None:
    assert {name for kind in KINDS.values() for name in kind.metrics} <= set(SERVER_METRICS)
    assert set(metrics.SHARES) < set(SERVER_METRICS)


def test_an_engine_that_runs_offline_has_a_worker_of_its_name() -> None:
    workers = Path(embedded.__file__).parent / "worker"
    for name in [*(kind.name for kind in KINDS.values() if kind.offline), "llama_bench"]:
        assert re.search(
            r"^ENGINE = (\w+Worker|engine)$",
            (workers / f"{name}.py").read_text(),
            re.MULTILINE,
        )


def test_each_engine_is_found_under_the_name_that_it_has() -> None:
    assert [kind.name for kind in KINDS.values()] == list(KINDS)


def test_sglang_drafts_as_many_tokens_as_the_setting_says() -> None:
    """With one choice a step, its server sets draft tokens to steps + 1: the token they begin with is one of them."""
    spec = EngineSpec("sglang", model="m", draft_model="d", draft_tokens=4)
    words = KINDS["sglang"].argv(
        spec, Program(["python", "-m", "sglang.launch_server"], "0.5.11"), 8000
    )
    assert words[words.index("--speculative-num-steps") + 1] == "4"
    assert words[words.index("--speculative-num-draft-tokens") + 1] == "5"


@pytest.mark.parametrize(
    "name",
    ["quark", "compressed-tensors", "compressed_tensors", "modelopt_fp8", "modelopt-fp8"],
)
def test_sglang_knows_the_quantizations_of_its_files(name: str) -> None:
    words = KINDS["sglang"].argv(
        EngineSpec("sglang", model="m", quantization=name), Program(["x"], "0.5.11"), 8000
    )
    assert words[words.index("--quantization") + 1].replace("-", "_") == name.replace(
        "-", "_"
    )


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free_gib", "settings", "said"),
    [
        (23, {}, None),
        (
            18,
            {},
            "92 % of this machine's 24 GiB of memory (--gpu-memory-utilization), but 18 GiB are free",
        ),
        (18, {}, "Set --gpu-memory-utilization 0.7, or free some."),
        (18, {"memory_fraction": 0.5}, None),
        (18, {"memory_fraction": 0.5, "replicas": 2}, "2 × 50 %"),
        (18, {"args": ["--gpu-memory-utilization=0.9"]}, "90 %"),
        (18, {"args": ["--kv-cache-memory-bytes", "1000000"]}, None),
        (18, {"env": {"VLLM_CPU_KVCACHE_SPACE": "4"}}, None),
    ],
)
def test_vllm_on_a_cpu_says_before_it_starts_that_it_takes_more_memory_than_is_free(
    free_gib: int, settings: dict[str, Any], said: str | None
) -> None:
    rig = Rig(
        "h", "0", "any", "cpu", 2, memory_bytes=24 * GIB, memory_free_bytes=free_gib * GIB
    )
    spec = EngineSpec("vllm", model="m", **settings)
    text = KINDS["vllm"].unable(spec, rig, "0.32.0")
    assert (said is None and text is None) or (said is not None and said in (text or ""))
    assert KINDS["vllm"].unable(spec, rig, "0.14.1") is None, (
        "its worker then had no such check"
    )
