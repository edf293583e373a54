"""The studies that ship: each does what its report did. The expected numbers are the reports', written by hand."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dyno.engines import model
from dyno.facts.engine import EngineSpec, accepted
from dyno.facts.rig import HostWanted, Rig
from dyno.facts.study import PlannedTrial
from dyno.probe import rig
from dyno.study.order import sessions
from dyno.trial import weights
from dyno.trial.engine_plan import EnginePlan
from studies import REPORTS, SHIPPED, shipped, study, twin

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds


@pytest.fixture(scope="module")
def here() -> Rig:
    return rig.read_machine()


def once(name: str, **given: str) -> Iterator[PlannedTrial]:
    """The first repeat's trials."""
    yield from (p for p in shipped(name, given).trials if p.place.repeat == 1)


def engines(name: str) -> dict[str, list[EngineSpec]]:
    found: dict[str, list[EngineSpec]] = {}
    for p in once(name):
        specs = found.setdefault(p.place.engine, [])
        if p.trial.engine and p.trial.engine not in specs:
            specs.append(p.trial.engine)
    return found


def flags(spec: EngineSpec, here: Rig) -> dict[str, str]:
    """Flag → value of its command, without the address."""
    (*_, line) = [
        words for words in EnginePlan(spec, here, dry=True).lines() if "--port" in words
    ]
    words = shlex.split(line)
    words = words[words.index(spec.container.image) + 1 :] if spec.container else words
    words = words[words.index("serve") + 1 :] if "serve" in words else words
    pairs: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        if word.startswith("-"):
            flag, equals, value = word.partition("=")
            pairs[flag] = (
                value if equals else "" if following.startswith("-") else following
            )
    return {k: v for k, v in pairs.items() if k not in ("--host", "--hostname", "--port")}


# ---- all of them ----


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_study_reads_and_every_command_of_it_can_be_shown(
    path: Path, here: Rig
) -> None:
    made = shipped(path.stem)
    assert made.name == path.stem
    assert made.about
    assert len({p.place.id for p in made.trials}) == len(made.trials)
    for session in sessions(made):
        spec = session.trials[0].trial.engine
        assert spec
        plan = EnginePlan(spec, here, dry=True)
        assert list(plan.lines())
        # a machine and files that aren't here
        elsewhere = re.compile(r"accelerators? (is|are) needed|does not exist")
        assert [p for p in plan.problems() if not elsewhere.search(p)] == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_study_names_no_machine_and_no_secret(path: Path) -> None:
    text = path.read_text()
    assert not re.search(
        r"(?<![\w:/.}])/(?!/)[a-z]+/|~/|[A-Z]:\\", re.sub(r"https?://\S+", "", text)
    )
    assert not re.search(
        r"hf_[A-Za-z0-9]{8}|sk-|(?i:token|secret|password|api_key)\s*=", text
    )
    assert text.startswith("# ")
    assert all(len(line) <= 125 for line in text.splitlines())


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_no_served_trial_waits_for_a_slot_or_has_too_few_requests(path: Path) -> None:
    for p in once(path.stem):
        load, spec = p.trial.load, p.trial.engine
        if p.trial.kind == "serve" and load.max_concurrency and spec and spec.max_num_seqs:
            assert spec.max_num_seqs >= load.max_concurrency
        if p.trial.kind == "serve":
            assert p.trial.workload.num_prompts >= 4 * (load.max_concurrency or 1)
            assert p.trial.ignore_eos


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_every_flag_is_one_of_the_version_that_the_study_names(
    path: Path, here: Rig
) -> None:
    """engine-flags.json: read from the sources that it names, each at one commit."""
    known = json.loads((Path(__file__).parents[1] / "engine-flags.json").read_text())
    for spec in (spec for specs in engines(path.stem).values() for spec in specs):
        names = [(name, *name.split()[:2]) for name in known]
        own = [
            name
            for name, kind, version in names
            if kind == spec.kind and _will_do(spec, version)
        ]
        assert any(spec.version in name for name in own)
        for name in own:
            assert set(flags(spec, here)) <= set(known[name]["flags"].split()), name


def _will_do(spec: EngineSpec, version: str) -> bool:
    return version == spec.version or bool(spec.accepts and accepted(version, spec.accepts))


def test_offline_studies_sample_as_the_script_did() -> None:
    for path in REPORTS:
        for p in once(path.stem):
            if p.trial.kind not in ("micro", "quality"):
                assert p.trial.sampling == {"temperature": 1.0 if p.trial.offline else 0.0}


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_a_model_can_be_set_from_outside(path: Path) -> None:
    text = path.read_text()
    names = re.findall(
        r'^(\w+) = "(?:meta-llama|amd|RedHatAI|TheBloke)/', text, re.MULTILINE
    )
    for name in names:
        used = {
            p.trial.engine.model
            for p in once(path.stem, **{name: "/models/mine"})
            if p.trial.engine
        }
        drafts = {
            p.trial.engine.draft_model
            for p in once(path.stem, **{name: "/models/mine"})
            if p.trial.engine
        }
        assert "/models/mine" in used | drafts
    assert names


# ---- Hot Aisle's log ----


def test_tp_fp8_has_every_point_of_the_log_with_its_flags(here: Rig) -> None:
    got = {
        (
            p.trial.engine.tensor_parallel,
            p.trial.engine.quantization,
            p.trial.load.max_concurrency,
        )
        for p in once("mi300x-llama70b-tp-fp8")
        if p.trial.engine
    }
    logged = {
        (4, None, 128),
        (4, None, 256),
        (4, None, 512),
        (4, "fp8", 512),
        (2, "fp8", 512),
        (1, "fp8", 512),
    }
    assert got == logged | {(tp, "fp8", c) for tp in (4, 2, 1) for c in (128, 256)}
    assert len(shipped("mi300x-llama70b-tp-fp8").trials) == 3 * 12
    common = {
        "--gpu-memory-utilization": "0.98",
        "--num-scheduler-steps": "20",
        "--max-num-seqs": "4096",
    }
    specs = engines("mi300x-llama70b-tp-fp8")
    assert flags(specs["bf16"][0], here) == {"--tensor-parallel-size": "4", **common}
    assert [flags(s, here) for s in specs["fp8"]] == [
        {"--quantization": "fp8", "--tensor-parallel-size": tp, **common}
        for tp in ("4", "2")
    ]
    assert flags(specs["fp8-one-gpu"][0], here) == {
        "--quantization": "fp8",
        "--max-model-len": "32768",
        **common,
    }
    for (spec,) in (specs["bf16"], specs["fp8-one-gpu"]):
        assert spec.env == {"VLLM_USE_TRITON_FLASH_ATTN": "0"}
    for p in once("mi300x-llama70b-tp-fp8"):
        assert p.trial.target.endpoint == "/v1/chat/completions"
        assert p.trial.workload.dataset == "sharegpt"
        # 1024 at 128
        assert p.trial.workload.num_prompts == 8 * (p.trial.load.max_concurrency or 0)


def test_the_log_s_capped_run_is_a_variable_away() -> None:
    slots = {
        p.trial.engine.max_num_seqs
        for p in once("mi300x-llama70b-tp-fp8", slots="[256, 4096]")
        if p.trial.engine
    }
    assert slots == {256, 4096}


# ---- AMD's guide ----

AMD_ENV = {"VLLM_USE_TRITON_FLASH_ATTN": "0", "NCCL_MIN_NCHANNELS": "112"}
AMD_405B, AMD_70B = (
    "amd/Llama-3.1-405B-Instruct-FP8-KV",
    "amd/Llama-3.1-70B-Instruct-FP8-KV",
)


@pytest.mark.parametrize("name", [p.stem for p in REPORTS if p.stem.startswith("rocm-")])
def test_amd_s_guide_runs_in_its_image_and_environment(name: str) -> None:
    for specs in engines(name).values():
        for spec in specs:
            assert spec.container and spec.container.image.endswith("_vllm_0.6.4")
            assert spec.env == AMD_ENV


def test_amd_s_serving_run(here: Rig) -> None:
    (p,) = once("rocm-fp8-serving")
    w = p.trial.workload
    assert (w.dataset, w.input_len, w.output_len, w.num_prompts) == (
        "random",
        4096,
        512,
        500,
    )
    assert (
        p.trial.load.request_rate_rps,
        p.trial.load.max_concurrency,
        p.trial.ignore_eos,
    ) == (1.0, None, True)
    assert p.trial.engine and p.trial.engine.model == AMD_70B
    assert flags(p.trial.engine, here) == {
        "--swap-space": "16", "--disable-log-requests": "", "--quantization": "fp8", "--kv-cache-dtype": "fp8",
        "--dtype": "float16", "--max-model-len": "8192", "--tensor-parallel-size": "8",
        "--max-num-batched-tokens": "65536", "--gpu-memory-utilization": "0.99", "--num-scheduler-steps": "10",
    }  # fmt: skip


def test_amd_s_own_weights_are_made_by_quark_and_asked_mmlu_pro() -> None:
    asked = [p.trial for p in once("rocm-fp8-quality") if p.trial.quality]
    models = [t.engine.model for t in asked if t.engine]
    assert models == ["original", AMD_70B, "quark"]
    recipe = asked[-1].engine and asked[-1].engine.weights["quark"]
    assert recipe and (recipe.quantize, recipe.kv_cache, recipe.samples) == (
        "quark:fp8",
        "fp8",
        128,
    )
    for trial in asked:
        assert (
            trial.quality
            and trial.quality.tasks == ["mmlu_pro_biology"]
            and trial.quality.num_fewshot == 5
        )
        assert trial.engine and trial.engine.container and trial.engine.env == AMD_ENV


def test_amd_s_latency_point_and_the_grid_that_it_leaves_to_the_reader(here: Rig) -> None:
    offline = [
        (p.place.engine, p.trial.workload.input_len, p.trial.workload.output_len)
        for p in once("rocm-fp8-latency", batch="1", prompt="128", answer="2048")
    ]
    assert offline == [("fp16", 128, 2048), ("fp8", 128, 2048), ("fp8-eager", 128, 1)]
    for p in once("rocm-fp8-latency"):
        assert p.trial.kind == "latency" and p.trial.offline
        assert (p.trial.offline.iterations, p.trial.offline.warmup_iterations) == (5, 3)
    specs = engines("rocm-fp8-latency")
    fp16 = {
        "--distributed-executor-backend": "mp", "--dtype": "float16", "--gpu-memory-utilization": "0.9",
        "--trust-remote-code": "", "--tensor-parallel-size": "8",
    }  # fmt: skip
    fp8 = {**fp16, "--quantization": "fp8", "--kv-cache-dtype": "fp8"}
    assert flags(specs["fp16"][0], here) == fp16
    assert flags(specs["fp8"][0], here) == fp8
    assert flags(specs["fp8-eager"][0], here) == {**fp8, "--enforce-eager": ""}
    assert specs["fp8"][0].model == AMD_405B
    # Eight batches, two lengths of prompt, two of answer; the first token's has one answer.
    assert Counter(p.place.engine for p in once("rocm-fp8-latency")) == {
        "fp16": 32,
        "fp8": 32,
        "fp8-eager": 16,
    }


def test_amd_s_throughput_run_has_as_many_prompts_as_slots(here: Rig) -> None:
    trials = list(once("rocm-fp8-throughput"))
    assert {(p.trial.workload.input_len, p.trial.workload.output_len) for p in trials} == {
        (a, b) for a in (128, 2048) for b in (128, 2048)
    }
    assert len(trials) == 16
    for p in trials:
        assert p.trial.kind == "throughput" and p.trial.engine
        assert p.trial.workload.num_prompts == p.trial.engine.max_num_seqs
    fp8 = next(e for e in engines("rocm-fp8-throughput")["fp8"] if e.max_num_seqs == 2000)
    assert flags(fp8, here) == {
        "--distributed-executor-backend": "mp", "--quantization": "fp8", "--kv-cache-dtype": "fp8",
        "--dtype": "float16", "--gpu-memory-utilization": "0.9", "--trust-remote-code": "",
        "--num-scheduler-steps": "10", "--enable-chunked-prefill": "False", "--max-model-len": "8192",
        "--max-num-batched-tokens": "131072", "--max-seq-len-to-capture": "131072", "--tensor-parallel-size": "8",
        "--max-num-seqs": "2000",
    }  # fmt: skip


def test_amd_s_partition_is_made_before_and_undone_after(here: Rig) -> None:
    (p,) = once("rocm-cpx")
    w, spec = p.trial.workload, p.trial.engine
    assert (p.trial.kind, w.input_len, w.output_len, w.num_prompts) == (
        "throughput",
        4096,
        512,
        100,
    )
    assert spec and spec.model == AMD_70B
    machine = shipped("rocm-cpx").rigs["instinct"]
    assert (machine.before, machine.after) == (
        ["rocm-smi --setcomputepartition cpx"], ["rocm-smi --setcomputepartition spx"],
    )  # fmt: skip
    assert p.place.host == HostWanted(
        numa_balancing=False, compute_partition="CPX", memory_partition="NPS1"
    )
    assert "--env=HIP_VISIBLE_DEVICES=0" in " ".join(
        EnginePlan(spec, here, dry=True).lines()
    )
    assert flags(spec, here) == {
        "--max-model-len": "4608", "--num-scheduler-steps": "10", "--dtype": "float16", "--quantization": "fp8",
        "--gpu-memory-utilization": "0.99",
    }  # fmt: skip


def test_amd_s_speculative_decoding(here: Rig) -> None:
    for p in once("rocm-speculative"):
        assert (
            p.trial.offline
            and p.trial.offline.batch_size == 1
            and p.trial.offline.iterations is None
        )
        assert (p.trial.workload.input_len, p.trial.workload.output_len) == (1024, 128)
    specs = engines("rocm-speculative")
    plain = {
        "--max-model-len": "26720",
        "--tensor-parallel-size": "8",
        "--use-v2-block-manager": "",
    }
    assert flags(specs["plain"][0], here) == plain
    draft = {
        "--speculative-model": "amd/Llama-3.1-8B-Instruct-FP8-KV",
        "--num-speculative-tokens": "5",
    }
    assert flags(specs["drafted"][0], here) == {**plain, **draft}


# ---- lhl's notes ----


def test_strix_halo_serves_what_the_notes_served() -> None:
    got = {
        (
            p.place.engine,
            p.trial.engine.quantization,
            p.trial.load.max_concurrency,
            p.trial.workload.num_prompts,
        )
        for p in once("strix-halo-vllm-vs-llamacpp")
        if p.trial.kind == "serve" and p.trial.engine
    }
    assert got == {
        ("vllm", None, 1, 64), ("vllm", None, 8, 128), ("vllm", None, 16, 256),
        ("vllm-quantized", "int8", 16, 256), ("vllm-quantized", "gptq", 16, 256),
        *(("llamacpp", q, c, n) for q in ("f16", "Q8_0", "Q4_K_M") for c, n in ((1, 64), (16, 256))),
    }  # fmt: skip


def test_strix_halo_s_commands(here: Rig) -> None:
    specs = engines("strix-halo-vllm-vs-llamacpp")
    assert [s.model for s in specs["vllm"] + specs["vllm-quantized"]] == [
        "meta-llama/Llama-2-7b-chat-hf", "RedHatAI/Llama-2-7b-chat-quantized.w8a8", "TheBloke/Llama-2-7B-Chat-GPTQ",
    ]  # fmt: skip
    for spec in specs["vllm"] + specs["vllm-quantized"]:
        assert flags(spec, here) == {"--gpu-memory-utilization": "0.75"}
    assert [s.model for s in specs["llamacpp"]] == ["f16", "Q8_0", "Q4_K_M"]
    for spec in specs["llamacpp"]:
        assert spec.env == {"ROCBLAS_USE_HIPBLASLT": "1"}
        got = flags(spec, here)
        own = {k: v for k, v in got.items() if k not in ("--model", "--metrics", "--alias")}
        assert own == {
            "-fa": "on", "-ngl": "99", "--parallel": "16", "-cb": "", "--kv-unified": "", "--cache-reuse": "256",
            "--ctx-size": "65536",  # 4096 for each slot, which the notes had not
        }  # fmt: skip


def test_strix_halo_s_llama_bench() -> None:
    tests = Counter(
        (
            p.trial.engine.quantization,
            bool(p.trial.engine.env),
            p.trial.workload.input_len,
            p.trial.workload.output_len,
        )
        for p in once("strix-halo-vllm-vs-llamacpp")
        if p.trial.kind == "micro" and p.trial.engine
    )
    assert tests == {
        (q, hipblaslt, *lengths): 1
        for q in ("f16", "Q8_0", "Q4_K_M", "Q4_0") for hipblaslt in (False, True) for lengths in ((512, 0), (0, 128))
    }  # fmt: skip


# ---- dstack's two ----

META = "meta-llama/Llama-3.1-405B-Instruct-FP8"


def test_h100_and_mi300x_online(here: Rig) -> None:
    got = {
        (
            p.place.rig,
            p.trial.engine.model,
            p.trial.engine.tensor_parallel,
            p.trial.engine.replicas,
        )
        for p in once("h100-vs-mi300x-online")
        if p.trial.engine
    }
    assert got == {
        ("h100", META, 8, 1), ("mi300x", META, 8, 1),
        ("mi300x", AMD_405B, 8, 1), ("mi300x", AMD_405B, 4, 1), ("mi300x", AMD_405B, 4, 2),
    }  # fmt: skip
    assert Counter(
        p.trial.load.request_rate_rps for p in once("h100-vs-mi300x-online")
    ) == {16: 5, 32: 5, 1000: 5}
    assert {p.trial.workload.num_prompts for p in once("h100-vs-mi300x-online")} == {1000}
    specs = engines("h100-vs-mi300x-online")
    assert flags(specs["h100-meta"][0], here) == {
        "--tensor-parallel-size": "8", "--max-model-len": "91680",
        "--max-num-seqs": "1024", "--max-num-batched-tokens": "1024", "--enable-chunked-prefill": "True",
    }  # fmt: skip
    for spec in (specs["mi300x-meta"][0], specs["mi300x-amd"][0]):
        assert flags(spec, here) == {
            "--tensor-parallel-size": "8", "--max-seq-len-to-capture": "16384", "--enable-chunked-prefill": "False",
            "--num-scheduler-steps": "15", "--max-num-seqs": "1024",
        }  # fmt: skip
        assert spec.env == {"VLLM_RPC_TIMEOUT": "30000", "VLLM_USE_TRITON_FLASH_ATTN": "0"}
        assert (
            spec.container
            and spec.container.image == "ghcr.io/embeddedllm/vllm-rocm:cb3b2b9"
        )


@pytest.mark.parametrize("name", ["h100-vs-mi300x-online", "h100-vs-mi300x-offline"])
def test_prices_are_the_report_s(name: str) -> None:
    prices = {p.place.rig: p.place.price for p in once(name)}
    assert {k: round(8 * (v.accelerator_hour or 0), 2) for k, v in prices.items() if v} == {
        "h100": 23.92,
        "mi300x": 36.0,
    }
    assert all(v and v.source for v in prices.values())


def test_h100_and_mi300x_offline_have_the_rows_of_the_report(here: Rig) -> None:
    rows: dict[tuple[str, int], Counter[int]] = {}
    for p in once("h100-vs-mi300x-offline"):
        assert (p.trial.kind, p.trial.workload.output_len) == ("throughput", 2048)
        key = (p.place.engine, p.trial.engine.tensor_parallel if p.trial.engine else 0)
        rows.setdefault(key, Counter())[p.trial.workload.input_len] += 1
    assert rows == {
        ("h100-meta", 8): {128: 7, 2048: 7, 32784: 3},
        ("mi300x-meta", 8): {128: 7, 2048: 7, 32784: 5},
        ("mi300x-amd", 8): {128: 7, 2048: 7, 32784: 5},
        ("mi300x-amd", 4): {128: 7, 2048: 7, 32784: 5},
    }
    batches = {p.trial.workload.num_prompts for p in once("h100-vs-mi300x-offline")}
    assert batches == {4, 8, 16, 32, 64, 128, 256}
    specs = engines("h100-vs-mi300x-offline")
    common = {"--tensor-parallel-size": "8", "--max-model-len": "91680"}
    assert flags(specs["h100-meta"][0], here) == {**common, "--num-scheduler-steps": "1"}
    mi300x = {**common, "--enforce-eager": "", "--enable-chunked-prefill": "False"}
    assert flags(specs["mi300x-meta"][0], here) == {**mi300x, "--num-scheduler-steps": "15"}
    assert flags(specs["mi300x-amd"][0], here) == {**mi300x, "--num-scheduler-steps": "1"}


def test_tgi_and_vllm_get_the_same_loads() -> None:
    batches = [2**n for n in range(12)]
    for engine in ("tgi", "vllm"):
        mine = [
            p.trial
            for p in once("mi300x-llama405b-tgi-vs-vllm")
            if p.place.engine == engine
        ]
        assert [
            t.load.max_concurrency for t in mine if t.workload.input_len == 80
        ] == batches
        assert [
            t.load.max_concurrency for t in mine if t.workload.input_len == 10000
        ] == batches[:7]
        rates = [
            (t.load.request_rate_rps, t.workload.num_prompts)
            for t in mine
            if t.workload.input_len == 1000
        ]
        assert rates == [(1, 300), (2, 600), (3, 900), (4, 1200), (5, 1500)]
        assert {t.workload.output_len for t in mine} == {150}


def test_tgi_s_and_vllm_s_commands(here: Rig) -> None:
    specs = engines("mi300x-llama405b-tgi-vs-vllm")
    (tgi,), (vllm,) = specs["tgi"], specs["vllm"]
    assert (
        tgi.container
        and tgi.container.image
        == "ghcr.io/huggingface/text-generation-inference:sha-11d7af7-rocm"
    )
    assert tgi.env == {"ROCM_USE_FLASH_ATTN_V2_TRITON": "true", "TRUST_REMOTE_CODE": "true"}
    reported = {
        "--num-shard": "8", "--sharded": "true", "--max-concurrent-requests": "8192", "--max-total-tokens": "130000",
        "--max-input-tokens": "125000", "--model-id": "meta-llama/Llama-3.1-405B-Instruct",
    }  # fmt: skip
    assert reported.items() <= flags(tgi, here).items()
    assert flags(vllm, here) == {
        "--tensor-parallel-size": "8", "--disable-log-requests": "", "--disable-frontend-multiprocessing": "",
        "--max-num-seqs": "2048", "--max-num-batched-tokens": "8192",
    }  # fmt: skip


# ---- the demo ----


def test_the_demo_is_a_study() -> None:
    assert {p.place.repeats for p in shipped("demo").trials if p.trial.kind == "serve"} == {
        5
    }
    timed = [p.trial for p in once("demo") if p.trial.kind == "serve"]
    asked = [p.trial for p in shipped("demo").trials if p.trial.kind == "quality"]
    formats = ["F16", "Q4_0", "TQ2_0"]
    got = [
        (t.engine and t.engine.quantization, t.load.max_concurrency, t.workload.num_prompts)
        for t in timed
    ]
    assert got == [(q, *level) for q in formats for level in ((1, 12), (8, 48))]
    assert [t.engine and t.engine.quantization for t in asked] == formats
    for t in timed:
        assert (
            t.engine
            and t.engine.max_num_seqs
            and t.engine.max_num_seqs >= (t.load.max_concurrency or 0)
        )
        assert (t.engine.kind, t.engine.model) == ("llamacpp", None)
        assert (t.workload.input_len, t.workload.output_len, t.percentiles) == (
            32,
            32,
            [90.0, 99.0],
        )
        assert t.workload.num_warmups == t.load.max_concurrency
        assert t.ignore_eos and t.sampling == {"temperature": 0.0}


def test_the_study_of_speculative_decoding_differs_in_the_draft_alone() -> None:
    asked = {
        p.place.engine: p.trial
        for p in shipped("speculative").trials
        if p.trial.kind == "quality"
    }
    timed = {
        p.place.engine: p.trial for p in once("speculative") if p.trial.kind == "serve"
    }
    for trials in (asked, timed):
        plain, draft = trials["plain"].engine, trials["draft"].engine
        assert (
            plain and draft and (draft.draft_model, draft.draft_tokens) == (model.DRAFT, 3)
        )
        assert msgspec.structs.replace(draft, draft_model=None, draft_tokens=None) == plain
    assert {(t.workload.dataset, t.target.backend) for t in timed.values()} == {
        ("tasks", "openai-chat")
    }


# ---- the twins ----


def shape(trials: list[PlannedTrial]) -> Counter[tuple[str | None, str, str, str, str]]:
    return Counter(
        (p.place.rig, p.place.engine, p.place.workload, p.place.load, p.trial.kind)
        for p in trials
    )


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_a_twin_has_the_grid_of_its_study(path: Path) -> None:
    whole = study(twin(path, keep=99), path)
    assert shape(whole.trials) == shape(list(once(path.stem)))
    small = study(twin(path), path)
    assert shape(small.trials).keys() == shape(whole.trials).keys()


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_a_twin_needs_nothing_but_the_hub_s_files_and_is_small(
    path: Path, here: Rig
) -> None:
    small = study(twin(path), path)
    assert sum(p.trial.kind == "serve" for p in small.trials) <= 16
    for p in small.trials:
        spec, w = p.trial.engine, p.trial.workload
        assert (
            spec
            and spec.kind == "llamacpp"
            and spec.container is None
            and spec.model in spec.weights
        )
        assert all(
            recipe.include and recipe == recipe.base for recipe in spec.weights.values()
        ), "nothing is made"
        assert w.num_prompts <= 20
        assert w.dataset in ("sharegpt", "quality") or (
            w.input_len <= 24 and (w.output_len or 0) <= 8
        )
        assert EnginePlan(spec, here, dry=True).problems() == []


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_a_twin_has_the_models_and_data_of_its_study(path: Path) -> None:
    def sources(trials: list[PlannedTrial]) -> set[str]:
        specs = [p.trial.engine for p in trials if p.trial.engine]
        recipes = [
            r for spec in specs for r in (spec.weights | weights.of_hub(spec)).values()
        ]
        data = [p.trial.workload.path for p in trials if p.trial.workload.path]
        tokenizers = [p.trial.tokenizer for p in trials if p.trial.tokenizer]
        return {*(recipe.source for recipe in recipes), *data, *tokenizers}

    assert sources(study(twin(path, keep=99), path).trials) == sources(
        shipped(path.stem).trials
    )
