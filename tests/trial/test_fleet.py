"""The life of an engine that dyno starts: what goes wrong is said, and nothing is left behind."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from conftest import StartFake
from dyno.cli.main import main
from dyno.engines import model as own_model
from dyno.engines.port import free_port
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, EngineFacts, EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.http import Client, Url
from dyno.load import scheduling
from dyno.probe import rig
from dyno.report.block import block
from dyno.store.run import Run, listed
from dyno.trial import lifecycle
from dyno.trial import online as trial
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import Fleet, running
from dyno.workload.spec import WorkloadSpec

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

RIG = Rig("test", "0", "any", "cpu", 2, memory_free_bytes=8 * 2**30)
FAKE = EngineSpec("fake", args=["first_ms=5", "gap_ms=1"])


def start(spec: EngineSpec, folder: Path, rig: Rig = RIG) -> Any:
    folder.mkdir(exist_ok=True)
    return running(EnginePlan(spec, rig), folder, {}, lambda _: None, lambda _: None)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(text))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def a_trial(spec: EngineSpec | None = None, **fields: Any) -> TrialSpec:
    values: dict[str, Any] = {
        "target": TargetSpec("", "openai", "/v1/completions"),
        "workload": WorkloadSpec("random", num_prompts=20, input_len=8, output_len=8),
        "load": LoadSpec(max_concurrency=4),
        "ignore_eos": True,
        "engine": spec or FAKE,
    }
    return TrialSpec(**{**values, **fields})


def descendants_of(marker: str) -> list[psutil.Process]:
    """Processes whose command holds this word."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                marker in " ".join(process.cmdline())
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("waited in vain")


# ---- up, verified, measured, down ----


def test_an_engine_is_up_when_it_has_completed_a_generation_and_is_gone_afterwards(
    tmp_path: Path,
) -> None:
    reported: list[EngineFacts] = []
    with running(
        EnginePlan(FAKE, RIG), tmp_path, {}, lambda _: None, reported.append
    ) as up:
        assert isinstance(up, Fleet)
        process = up.engines[0].process
        assert process.alive()
        assert reported[0].launches  # what was tried is known before it is up
        assert reported[0].ready_s is None
        assert (reported[1].ready_s or 0) > 0
        assert reported[1].stop_s is None
        assert (tmp_path / "engine.log").exists()
    assert not process.alive()
    assert reported[-1].stop_s is not None
    client = Client(Url(up.urls[0]), {}, timeout_s=2)
    with pytest.raises(Exception, match="Nothing listens"):
        client.call("/health")


def test_a_trial_starts_measures_and_stops_its_engine_and_keeps_the_log(
    tmp_path: Path,
) -> None:
    outcome = trial.serve(a_trial(), runs=tmp_path, headers={})
    assert outcome.result.served.completed == 20
    assert (outcome.run.path / "engine.log").exists()
    facts = outcome.run.engine()
    assert facts is not None
    assert facts.kind == "fake"
    assert facts.stop_s is not None
    assert outcome.manifest.trial.engine is not None
    assert outcome.result.roofline is None  # it has no model
    assert not descendants_of(str(facts.launches[0].port) + " {")


def test_the_small_model_is_served_verified_and_measured_by_the_real_llama_cpp(
    tmp_path: Path,
) -> None:
    spec = EngineSpec("llamacpp", quantization="Q8_0", max_num_seqs=2, max_model_len=256)
    outcome = trial.serve(
        a_trial(spec, load=LoadSpec(max_concurrency=2)), runs=tmp_path, headers={}
    )
    target = outcome.manifest.target
    assert (target.kind, target.slots, target.max_model_len) == ("llamacpp", 2, 256)
    assert target.quantization is not None
    assert "Q8_0" in target.quantization
    assert outcome.result.served.completed == 20
    assert not {f.code for f in outcome.result.findings} & {
        "load.slots",
        "engine.not_as_said",
        "cache.not_emptied",
    }


def test_what_a_started_engine_does_is_compared_with_what_the_machine_can(
    tmp_path: Path,
) -> None:
    spec = EngineSpec("llamacpp", quantization="Q8_0", max_num_seqs=2, max_model_len=256)
    outcome = trial.serve(
        a_trial(spec, load=LoadSpec(max_concurrency=1)), runs=tmp_path, headers={}
    )
    found = outcome.run.result().roofline
    assert found is not None and found == outcome.result.roofline
    assert outcome.manifest.peaks == found.peaks
    assert (found.precision, found.weights_bytes) == ("int8", 5_570_560 + 13_312)
    shares = {s.what: s for s in found.shares}
    # Beside a busy engine a latency may be known within bounds only; there is no share then.
    known = {
        "decode": outcome.result.served.tpot.mean,
        "prefill": outcome.result.served.ttft.mean,
        "whole": 1.0,
    }
    assert set(shares) == {what for what, ms in known.items() if ms is not None}
    assert 0 < (shares["whole"].arithmetic or 0) < 1
    if "decode" in shares:
        assert 0 < (shares["decode"].bandwidth or 0) < 1
        assert "Memory bandwidth used (decode):" in block(
            outcome.result, outcome.manifest.trial, []
        )
    if "prefill" in shares:
        assert 0 < (shares["prefill"].arithmetic or 0) < 1
    assert "physics.above_roofline" not in {f.code for f in outcome.result.findings}


def test_more_streams_than_slots_is_a_doubt_the_queue_was_measured(tmp_path: Path) -> None:
    spec = EngineSpec("llamacpp", quantization="Q8_0", max_num_seqs=1, max_model_len=256)
    outcome = trial.serve(a_trial(spec), runs=tmp_path, headers={})
    assert "load.slots" in {f.code for f in outcome.result.findings if f.level == "doubt"}


def test_replicas_share_the_load_and_all_of_them_end(tmp_path: Path) -> None:
    outcome = trial.serve(
        a_trial(msgspec.structs.replace(FAKE, replicas=2)), runs=tmp_path, headers={}
    )
    facts = outcome.run.engine()
    assert facts is not None
    ports = [launch.port for launch in facts.launches]
    assert len(set(ports)) == 2
    assert outcome.result.served.completed == 20
    assert not any(descendants_of(f"{port} {{") for port in ports)
    served = [r.replica for r in outcome.run.records()]
    assert abs(served.count(0) - served.count(1)) <= 4


# ---- something else is served than the label says ----


def test_a_server_of_another_quantization_than_asked_for_stops_the_trial(
    tmp_path: Path,
) -> None:
    """A wrapper that loads the Q8 file whatever it is asked for: the setting says Q4."""
    other = own_model.build("Q8_0")
    binary = script(
        tmp_path / "llama-server",
        f"""
        import os, sys
        if "--version" in sys.argv:
            print("version: 7000 (abc)"); raise SystemExit
        args = sys.argv[1:]
        args[args.index("--model") + 1] = {str(other)!r}
        os.execv({sys.executable!r}, [{sys.executable!r}, "-P", "-m", "dyno.engines.embedded", *args])
        """,
    )
    name = f"m-{os.getpid()}"
    spec = EngineSpec(
        "llamacpp",
        quantization="Q4_0",
        served_name=name,
        max_num_seqs=1,
        max_model_len=256,
        binary=binary,
    )
    with pytest.raises(
        EngineError, match=r"not what was asked for.*Q4_0, but it serves.*Q8_0"
    ):
        trial.serve(a_trial(spec), runs=tmp_path / "runs", headers={})
    assert not descendants_of(name)
    assert listed(tmp_path / "runs") == []  # nothing was measured


@pytest.mark.engines
def test_a_q4_label_on_a_q8_server_that_still_runs_is_void(tmp_path: Path) -> None:
    """As in a published report: the server of the test before still ran, and llama.cpp answers to any name."""
    with start(
        EngineSpec("llamacpp", quantization="Q8_0", max_num_seqs=1, max_model_len=256),
        tmp_path / "e",
    ) as up:
        target = TargetSpec(
            up.urls[0], "openai", "/v1/completions", "/models/dyno-tiny.Q4_0.gguf"
        )
        one = trial.serve(a_trial(target=target, engine=None), runs=tmp_path, headers={})
        assert one.result.verdict == "void"
        assert "engine.quantization" in {f.code for f in one.result.findings}
        claim = EngineSpec("openai", quantization="Q4_0")
        target = TargetSpec(up.urls[0], "openai", "/v1/completions")
        other = trial.serve(a_trial(target=target, engine=claim), runs=tmp_path, headers={})
        assert "engine.not_as_said" in {f.code for f in other.result.findings}
        right = trial.serve(
            a_trial(target=target, engine=EngineSpec("openai", quantization="Q8_0")),
            runs=tmp_path,
            headers={},
        )
        assert "engine.not_as_said" not in {f.code for f in right.result.findings}


def test_a_port_in_use_is_reported_before_the_start_with_who_has_it(
    tmp_path: Path, fake: StartFake
) -> None:
    other = fake(model="m")
    port = Url(other.base_url).port
    binary = script(
        tmp_path / "vllm",
        f"from pathlib import Path\nPath({str(tmp_path / 'started')!r}).touch()\n",
    )
    plan = EnginePlan(EngineSpec("vllm", model="m", binary=binary), RIG, port=port)
    (tmp_path / "e").mkdir()
    with (
        pytest.raises(
            EngineError,
            match=rf"Port {port} is in use by python.* \(pid {other.process.pid}\): stop it",
        ),
        running(plan, tmp_path / "e", {}, lambda _: None, lambda _: None),
    ):
        pass
    assert other.process.alive()
    assert not (tmp_path / "started").exists()


# ---- it doesn't come up ----


@pytest.mark.parametrize(
    ("says", "code", "reported", "advice"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried …", 1, "out of memory", "Lower --max-model-len"),
        ("ValueError: No available memory for the cache blocks.", 1, "cache blocks", "Raise --gpu-memory-utilization"),
        ("OSError: [Errno 98] Address already in use", 1, "in use", "Run the command again"),
        ("OSError: x/y is not a local folder and is not a valid model", 1, "not a local", "Check its path"),
        ("Cannot access gated repo for url https://hub/x. Access to model x is restricted", 1, "gated", "HF_TOKEN"),
        ("ValueError: Unknown quantization method: fp9", 1, "fp9", "that quantization"),
        ("RuntimeError: Failed to infer device type", 1, "infer", "dyno doctor"),
        ("api_server.py: error: unrecognized arguments: --frobnicate", 2, "frobnicate", "args"),
    ],
)  # fmt: skip
def test_the_last_words_of_an_engine_that_fails_come_with_advice(
    tmp_path: Path, says: str, code: int, reported: str, advice: str
) -> None:
    binary = script(
        tmp_path / "vllm",
        f"import sys\nprint('INFO fine so far')\nprint({says!r})\nsys.exit({code})\n",
    )
    with (
        pytest.raises(EngineError) as error,
        start(EngineSpec("vllm", model="m", binary=binary), tmp_path / "e"),
    ):
        pass
    for word in (f"exited with code {code}", reported, advice, "engine.log"):
        assert word in str(error.value)


def test_what_was_tried_is_kept_where_a_start_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = script(tmp_path / "vllm", "import sys\nsys.exit(3)\n")
    with pytest.raises(EngineError):
        trial.serve(
            a_trial(EngineSpec("vllm", model="m", binary=binary)),
            runs=tmp_path / "runs",
            headers={},
        )
    (folder,) = (tmp_path / "runs").iterdir()
    facts = Run(folder).engine()
    assert facts is not None
    assert facts.launches[0].argv[0] == binary
    assert facts.ready_s is None
    assert main(["runs", "--runs", str(tmp_path / "runs")]) == 0
    assert "no measurement: see its engine.log" in capsys.readouterr().out
    assert main(["runs", "show", str(folder)]) == 1
    assert "engine.json there has the command" in capsys.readouterr().err


def test_an_engine_killed_while_it_loads_is_reported_and_its_workers_end(
    tmp_path: Path,
) -> None:
    marker = f"dyno-worker-{os.getpid()}"
    binary = script(
        tmp_path / "vllm",
        f"""
        import os, signal, subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", {marker!r}])
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    with (
        pytest.raises(EngineError, match="exited with code -9"),
        start(EngineSpec("vllm", model="m", binary=binary), tmp_path / "e"),
    ):
        pass
    assert not descendants_of(marker)


def test_a_program_that_is_missing_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such executable"):
        EnginePlan(EngineSpec("vllm", model="m", binary=str(tmp_path / "none")), RIG)
    with pytest.raises(UsageError, match="no such interpreter"):
        EnginePlan(EngineSpec("vllm", model="m", python=str(tmp_path / "none")), RIG)
    with pytest.raises(UsageError, match=r"vLLM \(vllm.* is not installed in"):
        EnginePlan(EngineSpec("vllm", model="m", python=sys.executable), RIG)


def test_an_engine_that_is_nowhere_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DYNO_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="dyno engines install vllm"):
        EnginePlan(EngineSpec("vllm", model="m"), RIG)
    with pytest.raises(UsageError, match="dyno engines install tgi"):
        EnginePlan(EngineSpec("tgi", model="m"), RIG)
    assert (
        EnginePlan(EngineSpec("vllm", model="m", version="0.6.3"), RIG, dry=True)
        .launches[0]
        .argv[0]
        == "vllm"
    )


def test_a_version_other_than_asked_for_is_refused(tmp_path: Path) -> None:
    binary = script(tmp_path / "llama-server", "print('version: 6123 (79c1160b)')\n")
    assert (
        EnginePlan(
            EngineSpec("llamacpp", binary=binary, version="6123"), RIG
        ).program.version
        == "6123"
    )
    with pytest.raises(UsageError, match=r"requires version '7000'.*is 6123"):
        EnginePlan(EngineSpec("llamacpp", binary=binary, version="7000"), RIG)


# ---- before it starts ----


def problems(spec: EngineSpec, rig: Rig = RIG, needed: tuple[int, ...] = ()) -> str:
    return " ".join(EnginePlan(spec, rig, dry=True).problems(needed))


def test_a_request_longer_than_its_slot_is_found_before_the_start() -> None:
    """28 of 64 requests of a published report were lost so: 16 slots shared 4,096 tokens."""
    spec = EngineSpec("llamacpp", max_num_seqs=16, args=["-c", "4096"])
    reported = problems(spec, needed=(200, 751))
    assert "1 of 2 requests need up to 751 tokens" in reported
    assert "256 (--ctx-size 4096 = 4096, shared by 16 slots)" in reported
    assert problems(spec, needed=(200, 256)) == ""


def test_the_command_refuses_such_a_trial_and_starts_nothing(tmp_path: Path) -> None:
    spec = EngineSpec("llamacpp", max_num_seqs=16, args=["-c", "4096"])
    work = WorkloadSpec("random", num_prompts=4, input_len=400, output_len=100)
    with pytest.raises(UsageError, match="256"):
        trial.serve(a_trial(spec, workload=work), runs=tmp_path, headers={})
    assert list(tmp_path.iterdir()) == []


def test_prompts_of_a_dataset_that_are_too_long_are_found_before_the_start(
    tmp_path: Path,
) -> None:
    """As the 28: they were of a dataset, and no flag said how long they would be."""
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "river " * 400}) + "\n")
    spec = EngineSpec("llamacpp", max_num_seqs=16, args=["-c", "4096"])
    work = WorkloadSpec(
        "custom", path=str(tmp_path / "long.jsonl"), num_prompts=1, output_len=16
    )
    with pytest.raises(UsageError, match=r"Requests need up to \d+ tokens.*256"):
        trial.serve(a_trial(spec, workload=work), runs=tmp_path / "runs", headers={})
    assert not (tmp_path / "runs").exists()


def test_a_queue_to_come_is_reported_before_it_is_measured() -> None:
    plan = EnginePlan(EngineSpec("llamacpp", max_num_seqs=4, replicas=2), RIG, dry=True)
    assert not any("queue" in note for note in plan.notes(8))
    assert (
        "9 requests in flight, but only 8 run at once: the queue is part of the latency"
        in plan.notes(9)
    )


def test_devices_where_there_are_none_are_refused_and_assumed_in_a_dry_run() -> None:
    with pytest.raises(UsageError, match="runs on the CPU"):
        EnginePlan(EngineSpec("llamacpp", devices=[0]), RIG)
    two = EnginePlan(
        EngineSpec("vllm", model="x/y", version="0.6.3", devices=[0, 1], replicas=2),
        RIG,
        dry=True,
    )
    assert [launch.env["CUDA_VISIBLE_DEVICES"] for launch in two.launches] == ["0", "1"]
    assert any("nvidia is assumed" in line for line in two.lines())
    with pytest.raises(UsageError, match="named twice"):
        EnginePlan(EngineSpec("vllm", model="x/y", devices=[0, 0]), RIG, dry=True)


def test_a_quantization_without_a_flag_is_remarked_in_the_dry_run() -> None:
    lines = list(
        EnginePlan(
            EngineSpec("vllm", model="x/y", quantization="awq"), RIG, dry=True
        ).lines()
    )
    assert any("awq: no flag sets it" in line for line in lines)


def test_files_of_another_quantization_than_given_are_found_before_the_start() -> None:
    reported = problems(
        EngineSpec("llamacpp", model=str(own_model.build("Q8_0")), quantization="Q4_0")
    )
    assert "'Q4_0'" in reported
    assert "are Q8_0" in reported


def test_a_model_that_is_not_there_or_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        EnginePlan(EngineSpec("llamacpp", model=str(tmp_path / "none.gguf")), RIG)
    with pytest.raises(UsageError, match=r"has no config\.json"):
        EnginePlan(EngineSpec("vllm", model=str(tmp_path)), RIG, dry=True)
    (tmp_path / "cut.gguf").write_bytes(own_model.build("Q4_0").read_bytes()[:1000])
    with pytest.raises(UsageError, match="can't be read as a GGUF"):
        EnginePlan(EngineSpec("llamacpp", model=str(tmp_path / "cut.gguf")), RIG)


def a_folder(path: Path, **changes: Any) -> str:
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    }  # fmt: skip
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    with (path / "model.safetensors").open("wb") as file:
        file.truncate(141 * 10**9)  # a hole: 70 billion parameters of two bytes
    return str(path)


def test_weights_and_cache_that_cannot_fit_are_found_before_the_start(
    tmp_path: Path,
) -> None:
    model = a_folder(tmp_path / "m")
    reported = problems(EngineSpec("vllm", model=model))
    assert "131.3 GiB" in reported
    assert "8 GiB of memory are free" in reported
    h100 = msgspec.structs.replace(
        RIG,
        accelerators=[
            Accelerator(i, "H100", "nvidia", 80 * 2**30, 2**30) for i in range(8)
        ],
    )
    assert "79 GiB of memory are free" in problems(EngineSpec("vllm", model=model), h100)
    assert problems(EngineSpec("vllm", model=model, tensor_parallel=4), h100) == ""
    assert (
        problems(
            EngineSpec("vllm", model=model, tensor_parallel=4, memory_fraction=0.3), h100
        )
        != ""
    )


def test_a_checkpoint_s_own_quantization_is_read_and_compared_with_the_setting(
    tmp_path: Path,
) -> None:
    model = a_folder(
        tmp_path / "m", quantization_config={"quant_method": "gptq", "bits": 4}
    )
    rig = msgspec.structs.replace(RIG, memory_free_bytes=10**12)
    assert problems(EngineSpec("vllm", model=model, quantization="gptq"), rig) == ""
    assert "are gptq" in problems(EngineSpec("vllm", model=model, quantization="awq"), rig)


def test_dummy_weights_need_no_files(tmp_path: Path) -> None:
    folder = Path(a_folder(tmp_path / "m"))
    (folder / "model.safetensors").unlink()
    assert "contains no weights" in problems(EngineSpec("vllm", model=str(folder)))
    assert "contains no weights" not in problems(
        EngineSpec("vllm", model=str(folder), load_format="dummy")
    )


def test_devices_that_do_not_exist_are_named() -> None:
    two = msgspec.structs.replace(
        RIG, accelerators=[Accelerator(i, "H100", "nvidia") for i in range(2)]
    )
    with pytest.raises(UsageError, match="no accelerator 5"):
        EnginePlan(EngineSpec("vllm", model="m", devices=[0, 5]), two, dry=True)
    with pytest.raises(UsageError, match="1 × 4 accelerators are needed"):
        EnginePlan(
            EngineSpec("vllm", model="m", devices=[0, 1], tensor_parallel=4), two, dry=True
        )
    assert "none is detected" in problems(EngineSpec("vllm", model="m", tensor_parallel=8))
    assert problems(EngineSpec("vllm", model="m", tensor_parallel=2, devices=[])) == ""


# ---- under load and afterwards ----


def test_a_crash_under_load_keeps_what_was_measured_and_shows_the_engines_last_words(
    tmp_path: Path,
) -> None:
    spec = msgspec.structs.replace(FAKE, args=["first_ms=5", "gap_ms=1", "fault=die@12"])
    # else the check meets it
    unchecked = msgspec.structs.replace(a_trial(spec), correctness_check=False)
    outcome = trial.serve(unchecked, runs=tmp_path, headers={})
    assert 0 < outcome.result.served.completed < 20
    assert outcome.result.verdict == "void"
    facts = outcome.run.engine()
    assert facts is not None
    assert facts.died is not None
    assert "died" in facts.died
    assert "engine.died" in {f.code for f in outcome.result.findings}


HANGS = """
    import os, signal, subprocess, sys
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    port = sys.argv[sys.argv.index("--port") + 1]
    fake = "from dyno.engines.fake.server import serve; from dyno.engines.fake import FakeSpec; "
    fake += "import sys; serve(FakeSpec(first_ms=5, gap_ms=1, model='m'), int(sys.argv[1]))"
    sys.exit(subprocess.call([sys.executable, "-c", fake, port]))
"""


@pytest.mark.hostile
def test_an_engine_that_hangs_on_stop_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_GRACE_S", 1.0)
    binary = script(tmp_path / "vllm", HANGS)
    with start(EngineSpec("vllm", model="m", binary=binary), tmp_path / "e") as up:
        group = up.engines[0].process.pid
    assert not [
        p
        for p in psutil.process_iter()
        if _group(p) == group and p.status() != psutil.STATUS_ZOMBIE
    ]


def _group(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return -1


def test_a_worker_in_a_group_of_its_own_ends_with_the_engine(tmp_path: Path) -> None:
    """As TGI's shards are."""
    marker = f"dyno-shard-{os.getpid()}"
    binary = script(
        tmp_path / "vllm",
        HANGS.replace(
            "port = sys", f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {marker!r}], "
            "process_group=0)\n    port = sys",
        ).replace("for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):", "for number in ():"),
    )  # fmt: skip
    with start(EngineSpec("vllm", model="m", binary=binary), tmp_path / "e"):
        assert descendants_of(marker)
    assert not descendants_of(marker)


def test_a_binary_by_its_path_is_not_the_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, build in (("here", 9999), ("path", 1111)):
        (tmp_path / folder).mkdir()
        script(tmp_path / folder / "llama-server", f"print('version: {build} (abc)')\n")
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")
    monkeypatch.chdir(tmp_path / "here")
    assert (
        EnginePlan(EngineSpec("llamacpp", binary="./llama-server"), RIG).program.version
        == "9999"
    )
    assert (
        EnginePlan(EngineSpec("llamacpp", binary="llama-server"), RIG).program.version
        == "1111"
    )


def test_the_embedded_llama_cpp_is_judged_by_its_build(tmp_path: Path) -> None:
    on = EnginePlan(EngineSpec("llamacpp", prefix_caching=True), RIG)
    assert "--cache-prompt" in on.launches[0].argv
    assert (
        "--no-cache-prompt"
        in EnginePlan(EngineSpec("llamacpp", prefix_caching=False), RIG).launches[0].argv
    )


def test_a_quantization_that_no_flag_makes_must_lie_in_the_files(tmp_path: Path) -> None:
    model = a_folder(tmp_path / "m")
    rig = msgspec.structs.replace(RIG, memory_free_bytes=10**12)
    for quantization in ("gptq", "awq", "int8"):
        assert "needs quantized files" in problems(
            EngineSpec("vllm", model=model, quantization=quantization), rig
        )
    assert problems(EngineSpec("vllm", model=model, quantization="fp8"), rig) == ""


def test_llama_cpp_in_a_container_keeps_the_image_s_own_entrypoint() -> None:
    spec = EngineSpec(
        "llamacpp",
        container=ContainerSpec("ghcr.io/ggml-org/llama.cpp:server", accelerator="none"),
    )
    argv = EnginePlan(spec, RIG, dry=True).launches[0].argv
    assert "--entrypoint" not in argv
    assert argv[argv.index("ghcr.io/ggml-org/llama.cpp:server") + 1] == "--model"


@pytest.mark.hostile
def test_an_engine_that_dies_in_the_warm_up_is_reported_by_its_own_words(
    tmp_path: Path,
) -> None:
    spec = msgspec.structs.replace(FAKE, args=["fault=die@2"])
    work = WorkloadSpec("random", num_prompts=8, num_warmups=4, input_len=8, output_len=8)
    with pytest.raises(EngineError, match="died with code"):
        trial.serve(a_trial(spec, workload=work), runs=tmp_path, headers={})


@pytest.mark.engines
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_commands_after_are_run_whatever_signal_ends_the_start(
    tmp_path: Path,
    number: signal.Signals,
    killed: Callable[[list[str], str, signal.Signals], str],
) -> None:
    binary = script(tmp_path / "vllm", "import time\ntime.sleep(600)\n")
    notes = tmp_path / "notes"
    secret = "hf_thisisasecretvalue"
    args = [
        "--engine",
        "vllm",
        "--model",
        "m",
        "--engine-binary",
        binary,
        f"--engine-after=echo {secret} spx >> {notes}",
    ]
    reported = killed(
        [*args, "--engine-env", f"HF_TOKEN={secret}", *ARGS], "Starting", number
    )
    assert notes.read_text() == f"{secret} spx\n"
    assert secret not in reported
    assert not descendants_of(binary)
    for path in (tmp_path / "runs").rglob("*.*"):
        assert secret.encode() not in path.read_bytes()


def test_commands_before_and_after_are_run_also_where_the_engine_fails(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "notes"
    spec = msgspec.structs.replace(
        FAKE, before=[f"echo cpx >> {notes}"], after=[f"echo spx >> {notes}"]
    )
    with start(spec, tmp_path / "e"):
        assert notes.read_text() == "cpx\n"
    assert notes.read_text() == "cpx\nspx\n"
    binary = script(tmp_path / "vllm", "import sys\nsys.exit(3)\n")
    failing = EngineSpec(
        "vllm", model="m", binary=binary, before=spec.before, after=spec.after
    )
    with pytest.raises(EngineError), start(failing, tmp_path / "e"):
        pass
    assert notes.read_text() == "cpx\nspx\ncpx\nspx\n"


def test_a_secret_that_an_engine_logs_does_not_stay_in_the_log(tmp_path: Path) -> None:
    secret = "hf_thisisasecretvalue"
    spec = msgspec.structs.replace(
        FAKE, env={"HF_TOKEN": secret, "PYTHONSTARTUP": ""}, before=[f"echo token {secret}"]
    )
    outcome = trial.serve(a_trial(spec), runs=tmp_path, headers={})
    for path in outcome.run.path.rglob("*"):
        assert secret.encode() not in path.read_bytes(), path


# ---- dyno itself is killed ----

ARGS = [
    "--num-prompts",
    "2000",
    "--random-input-len",
    "8",
    "--random-output-len",
    "64",
    "--max-concurrency",
    "2",
]


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Callable[[list[str], str, signal.Signals], str]]:
    """Runs `dyno bench serve`, sends it a signal once its stderr shows a word, and returns its stderr."""

    def run(args: list[str], word: str, number: signal.Signals) -> str:
        log = tmp_path / "stderr"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "dyno", "bench", "serve", "--runs", str(tmp_path / "runs"), *args],
                stdout=subprocess.DEVNULL, stderr=out, cwd=tmp_path, start_new_session=True,
            )  # fmt: skip
        try:
            wait_for(lambda: word in log.read_text() or process.poll() is not None)
            time.sleep(0.3)
            process.send_signal(number)
            process.wait(120)
        finally:
            process.kill()
            process.wait()
        return log.read_text()

    yield run


@pytest.mark.hostile
@pytest.mark.parametrize("stage", ["Starting", "Generating", "Measuring"])
def test_an_engine_dies_with_a_dyno_that_is_killed(
    stage: str, tmp_path: Path, killed: Callable[[list[str], str, signal.Signals], str]
) -> None:
    port = free_port()  # not used: a word to find the process by
    name = f"m-{port}"
    killed(["--engine", "fake", "--served-model-name", name, *ARGS], stage, signal.SIGKILL)
    wait_for(lambda: not descendants_of(name))


@pytest.mark.hostile
def test_the_commands_after_are_run_by_the_watcher_of_a_dyno_that_is_killed(
    tmp_path: Path, killed: Callable[[list[str], str, signal.Signals], str]
) -> None:
    notes = tmp_path / "notes"
    killed(
        ["--engine", "fake", f"--engine-after=echo spx >> {notes}", *ARGS],
        "Measuring",
        signal.SIGKILL,
    )
    wait_for(lambda: notes.exists() and notes.read_text() == "spx\n")


def test_a_slow_start_is_ended_too_when_dyno_is_killed(
    tmp_path: Path, killed: Callable[[list[str], str, signal.Signals], str]
) -> None:
    marker = f"dyno-slow-{os.getpid()}"
    binary = script(
        tmp_path / "vllm",
        f"""
        import subprocess, sys
        subprocess.call([sys.executable, "-c", "import time; time.sleep(600)", {marker!r}])
        """,
    )
    killed(
        ["--engine", "vllm", "--model", "m", "--engine-binary", binary, *ARGS],
        "Starting",
        signal.SIGKILL,
    )
    wait_for(lambda: not descendants_of(marker))


@pytest.mark.hostile
def test_an_engine_that_hangs_on_stop_dies_with_a_dyno_that_is_killed_meanwhile(
    tmp_path: Path, killed: Callable[[list[str], str, signal.Signals], str]
) -> None:
    name = f"m-{free_port()}"
    binary = script(tmp_path / "vllm", HANGS.replace("model='m'", f"model='{name}'"))
    args = [
        "--engine",
        "vllm",
        "--model",
        name,
        "--engine-binary",
        binary,
        "--num-prompts",
        "4",
        "--input-len",
        "4",
    ]
    killed([*args, "--output-len", "4"], "Stopping", signal.SIGKILL)
    wait_for(lambda: not descendants_of(name))
    (run,) = listed(tmp_path / "runs")
    assert run.client_path.exists()  # all was measured: `dyno runs show` sums it up


@pytest.mark.hostile
def test_ctrl_c_under_load_keeps_the_result_and_stops_the_engine(
    tmp_path: Path, killed: Callable[[list[str], str, signal.Signals], str]
) -> None:
    name = f"m-{free_port()}"
    killed(
        ["--engine", "fake", "--served-model-name", name, *ARGS], "Measuring", signal.SIGINT
    )
    assert not descendants_of(name)
    runs = listed(tmp_path / "runs")
    assert len(runs) == 1
    assert runs[0].whole
    assert runs[0].result().served.outcome == "interrupted"


@pytest.mark.parametrize(("raises", "nice"), [(True, 0), (False, 5)])
def test_an_engine_is_nice_only_where_the_client_cant_come_before_it_by_itself(
    monkeypatch: pytest.MonkeyPatch, raises: bool, nice: int
) -> None:
    plan = EnginePlan(EngineSpec("llamacpp"), rig.read_machine(), dry=True)
    monkeypatch.setattr(scheduling, "raises_itself", lambda: raises)
    assert lifecycle.room(plan).nice == nice


def test_asking_for_priority_leaves_the_thread_as_it_was() -> None:
    policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    with scheduling.Priority() as priority:
        possible = bool(priority.facts())
    assert scheduling.raises_itself() is possible
    assert os.sched_getscheduler(0) == policy
    assert os.getpriority(os.PRIO_PROCESS, 0) == nice
