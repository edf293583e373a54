"""vLLM's CPU build and `transformers serve` for real: installed, started, verified, loaded, failed and stopped.

`make test-engines`. The environments are made once, outside the project (`dyno engines install`).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import tiny
from dyno.engines import environment
from dyno.errors import EngineError
from dyno.facts.engine import EngineFacts, EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.probe import rig
from dyno.store.explained import explained
from dyno.store.run import Run, create
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import Fleet, running
from dyno.trial.online import finish, measure, serve
from dyno.trial.prepare import prepare
from dyno.trial.session import Session
from dyno.workload.spec import WorkloadSpec

pytestmark = pytest.mark.engines

OFFLINE = {"HF_HUB_OFFLINE": "1"}
CPU = {
    **OFFLINE, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("model") / "tiny")


def installed(kind: str) -> str:
    """By the command, as a user would; a second time costs a second."""
    if environment.find(kind) is None:
        command = [
            sys.executable,
            "-m",
            "dyno",
            "engines",
            "install",
            kind,
            "--variant",
            "cpu",
        ]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stderr
    found = environment.find(kind)
    assert found is not None
    return found.name


def vllm_spec(model: Path, **fields: Any) -> EngineSpec:
    values: dict[str, Any] = {
        "model": str(model), "served_name": "tiny", "dtype": "fp32", "max_model_len": 512, "max_num_seqs": 8,
        "args": ["--enforce-eager", "--enable-prompt-tokens-details"], "env": CPU, "ready_timeout_s": 900.0,
        "environment": installed("vllm"),
    }  # fmt: skip
    return EngineSpec("vllm", **{**values, **fields})


def trial(**fields: Any) -> TrialSpec:
    values: dict[str, Any] = {
        "target": TargetSpec("", "openai", "/v1/completions"),
        "workload": WorkloadSpec("random", num_prompts=16, input_len=64, output_len=16),
        "load": LoadSpec(max_concurrency=4),
        "ignore_eos": True,
        "sampling": {"temperature": 0.0},
    }
    return TrialSpec(**{"reset_cache": True, **values, **fields})


def alive(word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if (
                word in " ".join(process.cmdline())
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def in_group(group: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if (
                os.getpgid(process.pid) == group
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process.pid)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


# ---- vLLM ----


@pytest.fixture(scope="module")
def vllm(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fleet, list[EngineFacts]]]:
    reported: list[EngineFacts] = []
    folder = tmp_path_factory.mktemp("vllm")
    with running(
        EnginePlan(vllm_spec(model), rig.read_machine()),
        folder,
        {},
        lambda _: None,
        reported.append,
    ) as fleet:
        yield fleet, reported
    # After the tests that use it: all of it is gone, workers included, and the facts say how long that took.
    assert in_group(fleet.engines[0].process.pid) == []
    assert reported[-1].stop_s is not None
    assert reported[-1].died is None


def measured(fleet: Fleet, folder: Path, one: TrialSpec) -> Run:
    run = create(folder, "trial")
    run.write_engine(fleet.facts)
    session = Session(fleet.target, {}, fleet=fleet)
    prepared = prepare(one, session)
    measure(run, session, prepared)
    finish(run, prepared.prompts.counter)
    return run


def test_vllm_is_what_the_setting_says(
    vllm: tuple[Fleet, list[EngineFacts]], model: Path
) -> None:
    fleet, reported = vllm
    facts = fleet.target
    assert (facts.kind, facts.version) == ("vllm", fleet.plan.program.version)
    assert (facts.max_model_len, facts.slots, facts.tensor_parallel) == (512, 8, 1)
    assert facts.model_path == str(model)
    assert facts.dtype in ("fp32", "float32")
    assert facts.quantization == ""
    assert facts.prefix_caching is True
    assert facts.kv_cache_tokens is not None
    assert facts.kv_cache_tokens > 8 * 512
    assert facts.full_length_requests == pytest.approx(
        facts.kv_cache_tokens / 512, rel=0.01
    )
    assert (reported[1].ready_s or 0) > 1
    assert {"weights", "init"} <= set(reported[1].startup_s)
    assert {"torch", "transformers", "python"} <= set(reported[1].software)


def test_vllm_is_measured(vllm: tuple[Fleet, list[EngineFacts]], tmp_path: Path) -> None:
    run = measured(vllm[0], tmp_path, trial())
    result = run.result()
    assert (result.served.completed, result.served.failed) == (16, 0)
    assert result.served.total_output_tokens == 16 * 16
    assert result.served.total_input_tokens == 16 * 64
    assert "engine.not_as_said" not in {f.code for f in result.findings}
    check = run.correctness()
    assert check and check.before and check.after
    assert not any(answer.error for answer in check.answers) and all(
        answer.text for answer in check.answers
    )


def test_the_same_prompts_find_an_empty_cache_the_second_time(
    vllm: tuple[Fleet, list[EngineFacts]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trial(
        workload=WorkloadSpec("random", num_prompts=8, input_len=400, output_len=4, seed=3)
    )
    for _ in range(2):
        run = measured(vllm[0], tmp_path, one)
        assert run.manifest().cache_emptied is True
        assert run.result().served.cached_input_tokens == 0
    # And without emptying it, they don't: what was tested is the emptying.
    monkeypatch.setattr(Session, "empty_cache", lambda self, spec: False)
    run = measured(vllm[0], tmp_path, one)
    # in whole blocks, of 128 on a CPU
    assert (run.result().served.cached_input_tokens or 0) >= 8 * 256
    assert "cache.hits" in {f.code for f in run.result().findings}


def test_more_streams_than_vllm_works_on_at_once_is_a_finding(
    vllm: tuple[Fleet, list[EngineFacts]], tmp_path: Path
) -> None:
    run = measured(vllm[0], tmp_path, trial(load=LoadSpec(max_concurrency=16)))
    assert "load.slots" in {f.code for f in run.result().findings}


def test_vllms_times_of_each_answer_and_its_histograms_explain_the_same(
    vllm: tuple[Fleet, list[EngineFacts]], tmp_path: Path
) -> None:
    """24 requests at a time on 8 slots: most of the latency is the queue, by each answer and by all together."""
    one = trial(
        workload=WorkloadSpec("random", num_prompts=96, input_len=64, output_len=16),
        load=LoadSpec(max_concurrency=24),
    )
    run = measured(vllm[0], tmp_path, one)
    result, records = run.result(), list(run.records())
    assert all(r.server_queue_ns is not None for r in records)
    sampled = result.telemetry
    assert sampled is not None and sampled.total("timed_requests") == 96
    for name in ("queue", "prefill", "decode"):
        said = sum(getattr(r, f"server_{name}_ns") for r in records) / 1e9
        assert said == pytest.approx(sampled.total(f"{name}_s"), rel=0.02, abs=0.01)
    by_answer = explained(run).explanation
    silent = [
        msgspec.structs.replace(
            r, server_queue_ns=None, server_prefill_ns=None, server_decode_ns=None
        )
        for r in records
    ]
    by_histogram = explained(run, records=silent).explanation
    for e in (by_answer, by_histogram):
        assert sum(p.total_ns for p in e.parts) == e.latency_ns
        assert abs(e.rest.share) < 0.05
    own, all_together = by_answer.part("queue"), by_histogram.part("queue")
    assert own is not None and all_together is not None
    assert own.share > 0.3
    assert all_together.total_ns == pytest.approx(own.total_ns, rel=0.05)
    assert by_histogram.request_parts != by_histogram.parts, "no single request is split"
    assert result.served.server_queue_ms == pytest.approx(own.mean_ms, rel=0.001)


def test_a_flag_that_vllm_does_not_know_is_reported_with_advice(
    model: Path, tmp_path: Path
) -> None:
    plan = EnginePlan(vllm_spec(model, args=["--frobnicate"]), rig.read_machine())
    with (
        pytest.raises(EngineError) as reported,
        running(plan, tmp_path, {}, lambda _: None, lambda _: None),
    ):
        pass
    for word in ("exited with code 2", "--frobnicate", "args"):
        assert word in str(reported.value)


@pytest.mark.nightly  # a minute of imports
def test_a_model_that_vllm_cannot_load_is_reported(model: Path, tmp_path: Path) -> None:
    """Dies in the worker, two processes below the one that dyno knows."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        (broken / file.name).write_bytes(
            file.read_bytes()[: 4000 if file.suffix == ".safetensors" else None]
        )
    plan = EnginePlan(vllm_spec(broken), rig.read_machine())
    with (
        pytest.raises(EngineError, match="exited with code") as reported,
        running(plan, tmp_path, {}, lambda _: None, lambda _: None),
    ):
        pass
    assert "afetensor" in str(reported.value)
    assert not alive(str(broken))


# half a minute; tests/trial/test_fleet.py kills a dyno with other engines
@pytest.mark.nightly
def test_vllm_dies_with_a_dyno_that_is_killed_while_it_loads(
    model: Path, tmp_path: Path
) -> None:
    name = f"killed-{os.getpid()}"
    command = [
        sys.executable,
        "-m",
        "dyno",
        "bench",
        "serve",
        "--engine",
        "vllm",
        "--model",
        str(model),
    ]
    command += ["--served-model-name", name, "--dtype", "fp32", "--max-model-len", "512"]
    command += ["--engine-args=--enforce-eager", "--input-len", "16", "--output-len", "16"]
    command += [
        "--engine-env",
        *(f"{k}={v}" for k, v in CPU.items()),
        "--runs",
        str(tmp_path),
    ]
    dyno = subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:  # until it has started processes of its own
        if (engine := _engine(alive(name), dyno.pid)) and len(
            in_group(group := os.getpgid(engine))
        ) > 1:
            break
        time.sleep(0.2)
    else:
        raise AssertionError("vLLM never got so far")
    dyno.send_signal(signal.SIGKILL)
    dyno.wait()
    while (in_group(group) or alive(name)) and time.monotonic() < deadline + 60:
        time.sleep(0.2)
    assert in_group(group) == [] == alive(name)


def _engine(processes: list[psutil.Process], dyno: int) -> int | None:
    """The child of its keeper, which has the same words in its command."""
    try:
        keepers = {p.pid for p in processes if p.ppid() == dyno}
        return next((p.pid for p in processes if p.ppid() in keepers), None)
    except psutil.NoSuchProcess:
        return None


# two minutes of two cores; tests/trial/test_kernel_tuning.py has caches of a fake engine
@pytest.mark.nightly
def test_vllm_compiles_once_into_a_cache_that_is_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes on a busy machine, most of them without a new line in the log."""
    spec, engines = (
        vllm_spec(model, args=[], compile_cache="on", ready_timeout_s=None),
        environment.engines_folder(),
    )
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(environment, "engines_folder", lambda: engines)
    logs, reused = [], []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with running(
            EnginePlan(spec, rig.read_machine()),
            tmp_path / name,
            {},
            lambda _: None,
            lambda _: None,
        ) as fleet:
            reused.append(fleet.facts.preparations[0].reused)
        logs.append((tmp_path / name / "engine.log").read_text())
    assert reused == [False, True]
    cache = str(tmp_path / "home" / "cache")
    assert f"saved AOT compiled function to {cache}" in logs[0]
    # 0.32 on a CPU finds it, can't load it, and compiles again.
    assert (
        f"Directly load AOT compilation from path {cache}" in logs[1]
        or f"a load failure from {cache}" in logs[1]
    )


# ---- transformers serve ----


def transformers_spec(model: Path, **fields: Any) -> EngineSpec:
    values: dict[str, Any] = {
        "model": str(model), "dtype": "fp32", "env": OFFLINE, "environment": installed("transformers"),
        "ready_timeout_s": 900.0,
    }  # fmt: skip
    return EngineSpec("transformers", **{**values, **fields})


def test_transformers_serve_is_started_verified_measured_and_stopped(
    model: Path, tmp_path: Path
) -> None:
    target = TargetSpec("", "transformers", "/v1/completions")
    one = trial(
        engine=transformers_spec(model), target=target, load=LoadSpec(max_concurrency=1),
        workload=WorkloadSpec("random", num_prompts=6, input_len=32, output_len=8),
    )  # fmt: skip
    outcome = serve(one, runs=tmp_path, headers={})
    summary = outcome.result.served
    assert (summary.completed, summary.failed) == (6, 0)
    assert summary.total_output_tokens == 6 * 8  # the end token is ignored
    assert summary.total_input_tokens == 6 * 32
    assert summary.models_answered == {str(model): 6}
    assert outcome.manifest.target.kind == "transformers"
    facts = outcome.run.engine()
    assert facts is not None
    assert facts.version == outcome.manifest.target.version
    assert not {f.code for f in outcome.result.findings} & {
        "model.not_listed",
        "model.other_answered",
        "load.slots",
    }
    assert not alive(f"--port {facts.launches[0].port}")


def test_transformers_serve_with_a_broken_model_is_reported(
    model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        (broken / file.name).write_bytes(
            file.read_bytes()[: 4000 if file.suffix == ".safetensors" else None]
        )
    plan = EnginePlan(transformers_spec(broken), rig.read_machine())
    with (
        pytest.raises(EngineError, match="exited with code") as reported,
        running(plan, tmp_path, {}, lambda _: None, lambda _: None),
    ):
        pass
    assert "afetensor" in str(reported.value)
