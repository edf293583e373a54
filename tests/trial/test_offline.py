"""Offline trials for real: what comes with dyno, in its own process, and a stand-in for what must go wrong."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from dyno.cli.main import main
from dyno.engines.model import build
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.probe import host
from dyno.store.run import Run
from dyno.store.study import StudyFolder
from dyno.trial import offline
from dyno.trial.offline import conduct, reopened
from dyno.trial.online import Outcome
from dyno.trial.session import Watcher
from dyno.workload.spec import WorkloadSpec

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

TINY = EngineSpec("llamacpp")


def trial(
    kind: Any,
    input_len: int = 16,
    output_len: int = 4,
    count: int = 2,
    engine: EngineSpec = TINY,
    **how: Any,
) -> TrialSpec:
    workload = WorkloadSpec(
        "random", input_len=input_len, output_len=output_len, num_prompts=count
    )
    spec = OfflineSpec(kind, **how)
    return TrialSpec(
        TargetSpec("", "openai", ""),
        workload,
        LoadSpec(),
        kind=kind,
        offline=spec,
        engine=engine,
        ignore_eos=True,
    )


def measured(tmp_path: Path, *trials: TrialSpec) -> list[Outcome]:
    return list(conduct(trials, runs=tmp_path / "runs"))


def workers(folder: Path) -> list[psutil.Process]:
    """Those that write a log below that folder: other tests run at the same time."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mine = any(
                Path(file.path).is_relative_to(folder) for file in process.open_files()
            )
            if mine and any(word.endswith("engines/worker") for word in process.cmdline()):
                found.append(process)
    return found


# ---- what is measured ----


def test_a_latency_trial_keeps_every_iteration_and_every_request(tmp_path: Path) -> None:
    (outcome,) = measured(
        tmp_path, trial("latency", 16, 6, 3, iterations=4, warmup_iterations=2)
    )
    assert [it.warmup for it in outcome.iterations] == [True] * 2 + [False] * 4
    for it in outcome.iterations:
        assert [
            (a.prompt_tokens, a.output_tokens, a.cached_tokens) for a in it.answers
        ] == [(16, 6, 0)] * 3
        for a in it.answers:
            assert (
                a.start_ns is not None and a.first_ns is not None and a.end_ns is not None
            )
            assert 0 <= a.start_ns <= a.first_ns <= a.end_ns <= it.end_ns - it.start_ns
    o = outcome.result.offline
    assert o is not None
    assert (o.iterations, o.requests, o.completed, o.failed) == (4, 3, 12, 0)
    assert (o.input_tokens, o.output_tokens, o.wanted_output_tokens) == (192, 72, 72)
    assert o.output_throughput.mean == pytest.approx(6 * o.request_throughput.mean)
    assert o.total_token_throughput.mean == pytest.approx(22 * o.request_throughput.mean)
    assert o.latency.count == o.output_throughput.count == 4
    assert outcome.result.telemetry is not None and outcome.run.engine() is not None
    assert reopened(outcome.run).result == outcome.result


def test_trials_that_need_the_same_of_an_engine_share_it(tmp_path: Path) -> None:
    one, other, wider = measured(
        tmp_path,
        trial("latency", 16, 4, 1, iterations=1, warmup_iterations=0),
        trial("latency", 24, 4, 1, iterations=1, warmup_iterations=0),
        trial("latency", 16, 4, 2, iterations=1, warmup_iterations=0),
    )
    ports = [r.run.engine().launches[0].port for r in (one, other, wider)]  # type: ignore[union-attr]
    assert ports[0] == ports[1] != ports[2]
    slots = [r.manifest.target.slots for r in (one, other, wider)]
    assert slots == [1, 1, 2]
    assert workers(tmp_path) == []


def test_all_prompts_of_a_throughput_trial_are_handed_over_at_once_and_worked_on_as_slots_come_free(
    tmp_path: Path,
) -> None:
    engine = EngineSpec("llamacpp", max_num_seqs=2)
    (outcome,) = measured(tmp_path, trial("throughput", 16, 4, 6, engine))
    (it,) = outcome.iterations
    starts = sorted(a.start_ns for a in it.answers if a.start_ns is not None)
    ends = sorted(a.end_ns for a in it.answers if a.end_ns is not None)
    assert starts[2] >= ends[0] * 0.9, "two slots: the third waits for the first"
    assert {f.code for f in outcome.result.findings} >= {"statistics.few_iterations"}


def test_every_iteration_has_prompts_of_its_own_and_the_same_seed_has_the_same(
    tmp_path: Path,
) -> None:
    def jobs(seed: int) -> list[Any]:
        t = trial("latency", 16, 4, 2)
        t = msgspec.structs.replace(
            t, workload=msgspec.structs.replace(t.workload, seed=seed)
        )
        worker = type("W", (), {"ready": type("R", (), {"vocab": 500, "special": [0, 1]})})
        batches = offline.Batches(t, worker, Watcher())  # type: ignore[arg-type]
        return [batches.job(i, False)["prompts"] for i in range(2)]

    first, second = jobs(7)
    assert first != second and first[0] != first[1]
    assert jobs(7) == [first, second] != jobs(8)
    assert all(1 < i < 500 for prompts in (first, second) for p in prompts for i in p)


def test_a_micro_test_at_a_depth_counts_its_own_tokens_alone(tmp_path: Path) -> None:
    deep, generated, mixed = measured(
        tmp_path,
        trial("micro", 32, 0, 1, iterations=2, depth=64),
        trial("micro", 0, 8, 1, iterations=2, depth=64),
        trial("micro", 16, 8, 1, iterations=2),
    )
    measured_ones = [it for it in deep.iterations if not it.warmup]
    assert [
        (it.answers[0].prompt_tokens, it.answers[0].cached_tokens) for it in measured_ones
    ] == [(96, 64)] * 2
    assert deep.result.offline and deep.result.offline.decode_speed is None
    assert deep.result.offline.speed == pytest.approx(
        deep.result.offline.prefill_speed.mean
    )  # type: ignore[union-attr]
    assert generated.result.offline and generated.result.offline.prefill_speed is None
    assert [it.answers[0].decoded_tokens for it in generated.iterations] == [8] * 3
    assert (
        mixed.result.offline
        and mixed.result.offline.prefill_speed
        and mixed.result.offline.decode_speed
    )


def test_what_a_draft_model_proposes_is_counted(tmp_path: Path) -> None:
    drafted = EngineSpec("llamacpp", draft_model=str(build("Q8_0")), draft_tokens=3)
    greedy = {"temperature": 0.0}
    plain, spoken = measured(
        tmp_path,
        *(
            msgspec.structs.replace(
                trial("latency", 16, 24, 1, engine, iterations=2, warmup_iterations=1),
                sampling=greedy,
            )
            for engine in (TINY, drafted)
        ),
    )
    assert plain.result.offline and plain.result.offline.speculation is None
    printed = spoken.result.offline and spoken.result.offline.speculation
    assert (
        printed
        and 0 < printed.accepted_tokens <= printed.drafted_tokens <= 3 * printed.drafts
    )
    assert 1 < printed.tokens_per_step <= 4 and 0 < printed.acceptance <= 1
    assert spoken.result.offline and spoken.result.offline.output_tokens == 48


def test_prompts_of_a_dataset_go_to_the_engine_as_text(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(
        '{"prompt": "The wind turns."}\n{"prompt": "A longer one about the sea and its ships."}\n'
    )
    t = trial("throughput", count=2)
    w = msgspec.structs.replace(t.workload, dataset="custom", path=str(file), output_len=5)
    (outcome,) = measured(tmp_path, msgspec.structs.replace(t, workload=w))
    lengths = [a.prompt_tokens for a in outcome.iterations[0].answers]
    assert 0 < lengths[0] < lengths[1] and [
        a.output_tokens for a in outcome.iterations[0].answers
    ] == [5, 5]


def test_what_prompts_share_comes_from_the_cache_only_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    def shared(cache: bool | None) -> TrialSpec:
        t = trial(
            "throughput",
            16,
            4,
            4,
            EngineSpec("llamacpp", max_num_seqs=2, prefix_caching=cache),
        )
        return msgspec.structs.replace(
            t, workload=msgspec.structs.replace(t.workload, prefix_len=64)
        )

    off, on = measured(tmp_path, shared(None), shared(True))
    assert [a.cached_tokens for a in off.iterations[0].answers] == [0] * 4
    assert [a.cached_tokens for a in on.iterations[0].answers] == [0, 0, 64, 64], (
        "two slots: the third finds it there"
    )


def test_a_misspelt_variable_is_a_finding_of_the_result(tmp_path: Path) -> None:
    (outcome,) = measured(
        tmp_path,
        trial("throughput", engine=EngineSpec("llamacpp", env={"OMP_NUM_THREAD": "1"})),
    )
    (finding,) = [
        f for f in outcome.result.findings if f.code == "engine.misspelt_variable"
    ]
    assert finding.level == "doubt" and "Did you mean OMP_NUM_THREADS?" in finding.text


# ---- replicas ----

PAIR = EngineSpec("llamacpp", replicas=2)


def test_replicas_share_the_prompts_and_one_iteration_spans_all_of_them(
    tmp_path: Path,
) -> None:
    alone = trial("throughput", 16, 4, 7, iterations=2, warmup_iterations=1)
    pair = trial("throughput", 16, 4, 7, PAIR, iterations=2, warmup_iterations=1)
    one, two = measured(tmp_path, alone, pair)
    assert one.manifest.workload_sha256 == two.manifest.workload_sha256, (
        "the same prompts, shared out"
    )
    for it in two.iterations:
        assert [part.requests for part in it.parts] == [4, 3] and len(it.answers) == 7
        assert it.start_ns == min(part.start_ns for part in it.parts)
        assert it.end_ns == max(part.end_ns for part in it.parts)
        # A request's times are those of its own copy.
        for i, a in enumerate(it.answers):
            part = it.parts[i >= 4]
            assert a.start_ns is not None and a.end_ns is not None
            assert (
                part.start_ns
                <= it.start_ns + a.start_ns
                <= it.start_ns + a.end_ns
                <= part.end_ns
            )
    o = two.result.offline
    assert o is not None and (o.requests, o.completed, o.output_tokens) == (7, 14, 56)
    assert [(r.completed, r.input_tokens, r.output_tokens) for r in o.replicas] == [
        (8, 128, 32),
        (6, 96, 24),
    ]
    assert o.output_throughput.mean <= sum(r.output_throughput.mean for r in o.replicas)
    facts = two.run.engine()
    assert facts is not None and len({launch.port for launch in facts.launches}) == 2
    assert sorted(p.name for p in two.run.path.glob("engine*.log")) == [
        "engine-2.log",
        "engine.log",
    ]
    assert "load.replicas_share_cpu" in {f.code for f in two.result.findings}
    assert reopened(two.run).result == two.result and workers(tmp_path) == []
    assert (
        one.result.offline is not None
        and one.result.offline.replicas == one.iterations[0].parts == []
    )


def test_each_replica_has_a_batch_of_its_own_where_latency_is_measured(
    tmp_path: Path,
) -> None:
    (outcome,) = measured(
        tmp_path, trial("latency", 16, 4, 3, PAIR, iterations=2, warmup_iterations=0)
    )
    assert outcome.manifest.target.slots == 3
    assert [[part.requests for part in it.parts] for it in outcome.iterations] == [
        [3, 3]
    ] * 2
    assert outcome.result.offline is not None and outcome.result.offline.completed == 12
    assert "load.slots" not in {f.code for f in outcome.result.findings}


# ---- what goes wrong ----


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[Any]:
    """A package `vllm` for the worker, as small as can be: what the real one can't be made to do."""
    site = tmp_path / "site"

    def make(body: str, version: str = "0.24.0") -> EngineSpec:
        package = site / "vllm"
        (package / "engine").mkdir(parents=True)
        (site / f"vllm-{version}.dist-info").mkdir()
        (site / f"vllm-{version}.dist-info" / "METADATA").write_text(
            f"Name: vllm\nVersion: {version}\n"
        )
        (package / "engine" / "__init__.py").touch()
        (package / "engine" / "arg_utils.py").write_text(
            textwrap.dedent("""
            import dataclasses
            @dataclasses.dataclass
            class EngineArgs:
                model: str
                @staticmethod
                def add_cli_args(parser):
                    parser.add_argument("--model")
                    parser.add_argument("--no-enable-prefix-caching", action="store_true")
                    return parser
                @classmethod
                def from_cli_args(cls, args):
                    return cls(args.model)
            """)
        )
        (package / "__init__.py").write_text(
            textwrap.dedent(f"""
            import os, sys, time
            from types import SimpleNamespace as S
            __version__ = "{version}"
            def SamplingParams(**fields):
                return S(**fields)
            class LLM:
                def __init__(self, model, disable_log_stats):
                    print("a line on stdout that is no answer", flush=True)
                    config = S(max_model_len=4096, dtype="torch.bfloat16", quantization=None, get_vocab_size=lambda: 99)
                    cache = S(num_gpu_blocks=10, block_size=16, cache_dtype="auto", enable_prefix_caching=False)
                    self.llm_engine = S(model_config=config, cache_config=cache, scheduler_config=S(max_num_seqs=8),
                                        parallel_config=S(tensor_parallel_size=1))
                    self.calls = 0
                    self.loaded()
                def loaded(self): pass
                def get_tokenizer(self): return S(all_special_ids=[3])
                def get_metrics(self): return []
                def reset_prefix_cache(self): pass
                def answer(self, prompt, wanted, metrics=None):
                    return S(outputs=[S(token_ids=[1] * wanted, finish_reason="length")], metrics=metrics,
                             prompt_token_ids=prompt["prompt_token_ids"], num_cached_tokens=0)
                def generate(self, prompts, sampling, use_tqdm):
                    self.calls += 1
                    time.sleep(0.01)
                    return [self.answer(p, s.max_tokens) for p, s in zip(prompts, sampling)]
            """)
            + textwrap.dedent(body)
        )
        return EngineSpec(
            "vllm", model="some/model", python=sys.executable, env={"PYTHONPATH": str(site)}
        )

    # as far as dyno asks the interpreter for the engine's version
    os.environ["PYTHONPATH"] = str(site)
    yield make
    del os.environ["PYTHONPATH"]
    assert workers(tmp_path) == []


def doubts(outcome: Any) -> list[str]:
    """Without those that a busy machine gives rise to."""
    found = [f.code for f in outcome.result.findings if f.level == "doubt"]
    return [code for code in found if not code.startswith(("statistics.", "client."))]


def test_an_engine_that_reports_no_times_gives_the_latency_and_no_split(
    stand_in: Any, tmp_path: Path
) -> None:
    (outcome,) = measured(
        tmp_path, trial("latency", engine=stand_in(""), iterations=5, warmup_iterations=0)
    )
    o = outcome.result.offline
    assert o and o.latency.count == 5 and o.latency.mean >= 10
    assert o.prefill_ms is o.decode_ms is o.tpot_ms is o.in_flight_mean is None
    assert (
        outcome.manifest.target.dtype == "bfloat16"
        and outcome.manifest.target.kv_cache_tokens == 160
    )


def test_a_short_output_shows(stand_in: Any, tmp_path: Path) -> None:
    body = """
    class LLM(LLM):
        def generate(self, prompts, sampling, use_tqdm):
            return [self.answer(p, s.max_tokens // 2) for p, s in zip(prompts, sampling)]
    """
    (outcome,) = measured(tmp_path, trial("throughput", 8, 10, 4, stand_in(body)))
    o = outcome.result.offline
    assert o and (o.output_tokens, o.wanted_output_tokens) == (20, 40)
    assert o.output_throughput.mean == pytest.approx(5 * o.request_throughput.mean), (
        "as produced, not as asked"
    )
    assert doubts(outcome) == ["tokens.output_short"]


def test_an_answer_that_the_engine_aborts_is_failed_offline_too(
    stand_in: Any, tmp_path: Path
) -> None:
    body = """
    class LLM(LLM):
        def answer(self, prompt, wanted, metrics=None):
            answer = super().answer(prompt, wanted, metrics)
            self.given = getattr(self, "given", 0) + 1
            if self.given % 2:
                answer.outputs[0].finish_reason, answer.outputs[0].token_ids = "abort", [1]
            return answer
    """
    (outcome,) = measured(tmp_path, trial("throughput", 8, 10, 4, stand_in(body)))
    o = outcome.result.offline
    assert o and (o.completed, o.failed) == (2, 2)
    assert (o.failure_example or "").startswith("aborted: ")
    (finding,) = (f for f in outcome.result.findings if f.code == "requests.failed")
    assert finding.level == "void" and "finish reason abort" in finding.text


def test_a_first_iteration_that_is_slow_is_reported(stand_in: Any, tmp_path: Path) -> None:
    body = """
    class LLM(LLM):
        def generate(self, prompts, sampling, use_tqdm):
            time.sleep(1.0 if not self.calls else 0.0)
            return super().generate(prompts, sampling, use_tqdm)
    """
    (outcome,) = measured(
        tmp_path, trial("latency", engine=stand_in(body), iterations=6, warmup_iterations=0)
    )
    assert "statistics.first_iteration" in {
        f.code for f in outcome.result.findings if f.level == "doubt"
    }


def test_wall_times_of_older_versions_are_placed_on_the_iterations_own_clock(
    stand_in: Any, tmp_path: Path
) -> None:
    body = """
    class LLM(LLM):
        def generate(self, prompts, sampling, use_tqdm):
            now = time.time()
            time.sleep(0.03)
            stamps = S(first_scheduled_time=now, first_token_time=now + 0.01, last_token_time=now + 0.03)
            return [self.answer(p, s.max_tokens, stamps) for p, s in zip(prompts, sampling)]
    """
    spec = stand_in(body, "0.6.3")
    (outcome,) = measured(
        tmp_path, trial("latency", 8, 11, 2, spec, iterations=2, warmup_iterations=0)
    )
    o = outcome.result.offline
    assert o and o.prefill_ms and o.prefill_ms.mean == pytest.approx(10, abs=0.5)
    assert o.tpot_ms and o.tpot_ms.mean == pytest.approx(2, abs=0.1)


def test_a_crash_while_it_loads_is_reported_with_its_last_lines(
    stand_in: Any, tmp_path: Path
) -> None:
    body = """
    class LLM(LLM):
        def loaded(self):
            raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")
    """
    with pytest.raises(EngineError) as printed:
        measured(tmp_path, trial("latency", engine=stand_in(body)))
    assert "vLLM exited with code 1" in str(printed.value) and "while loading" in str(
        printed.value
    )
    assert "Tried to allocate 20 GiB" in str(
        printed.value
    ) and "Lower --max-model-len" in str(printed.value)
    assert "engine.log" in str(printed.value)


def test_a_crash_in_the_middle_is_reported_and_leaves_no_result(
    stand_in: Any, tmp_path: Path
) -> None:
    body = """
    class LLM(LLM):
        def generate(self, prompts, sampling, use_tqdm):
            if self.calls == 2:
                print("EngineDeadError: the engine core died", file=sys.stderr, flush=True)
                os._exit(3)
            return super().generate(prompts, sampling, use_tqdm)
    """
    with pytest.raises(
        EngineError, match=r"exited with code 3 during a measurement.*the engine core died"
    ):
        measured(
            tmp_path,
            trial("latency", engine=stand_in(body), iterations=5, warmup_iterations=0),
        )
    (folder,) = (tmp_path / "runs").iterdir()
    assert not Run(folder).whole and len(list(Run(folder).iterations())) == 2


@pytest.mark.hostile
def test_a_replica_that_dies_stops_the_others_at_once(
    stand_in: Any, tmp_path: Path
) -> None:
    body = f"""
    try:
        os.close(os.open("{tmp_path}/first", os.O_CREAT | os.O_EXCL))
        first = True
    except FileExistsError:
        first = False
    class LLM(LLM):
        def generate(self, prompts, sampling, use_tqdm):
            if self.calls == 1 and not first:
                print("EngineDeadError: the engine core died", file=sys.stderr, flush=True)
                os._exit(3)
            time.sleep(600 * self.calls)
            return super().generate(prompts, sampling, use_tqdm)
    """
    spec = msgspec.structs.replace(stand_in(body), replicas=2)
    begun = time.monotonic()
    with pytest.raises(
        EngineError,
        match=r"copy \d\) exited with code 3 .*stopped the other copies.*engine core died",
    ):
        measured(tmp_path, trial("latency", engine=spec, iterations=5, warmup_iterations=0))
    assert time.monotonic() < begun + 300
    (folder,) = (tmp_path / "runs").iterdir()
    assert not Run(folder).whole and len(list(Run(folder).iterations())) == 1


def test_no_replica_begins_before_all_are_prepared(stand_in: Any, tmp_path: Path) -> None:
    body = f"""
    class LLM(LLM):
        def reset_prefix_cache(self):
            with open("{tmp_path}/order", "a") as file:
                print("prepared", file=file)
        def generate(self, prompts, sampling, use_tqdm):
            with open("{tmp_path}/order", "a") as file:
                print("begun", file=file)
            return super().generate(prompts, sampling, use_tqdm)
    """
    spec = msgspec.structs.replace(stand_in(body), replicas=3)
    measured(
        tmp_path, trial("throughput", 8, 4, 9, spec, iterations=2, warmup_iterations=0)
    )
    assert (tmp_path / "order").read_text().split() == (
        ["prepared"] * 3 + ["begun"] * 3
    ) * 2


def test_an_iteration_that_doesnt_end_is_given_up(stand_in: Any, tmp_path: Path) -> None:
    body = """
    class LLM(LLM):
        def generate(self, prompts, sampling, use_tqdm):
            time.sleep(600)
    """
    with pytest.raises(EngineError, match=r"didn't finish an iteration within 0\.3 s"):
        measured(tmp_path, trial("latency", engine=stand_in(body), timeout_s=0.3))


def test_a_banner_of_the_interpreters_wrapper_is_not_an_answer(
    stand_in: Any, tmp_path: Path
) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\necho "== somebody\'s banner =="\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    spec = msgspec.structs.replace(stand_in(""), python=str(wrapper))
    (outcome,) = measured(
        tmp_path, trial("latency", engine=spec, iterations=1, warmup_iterations=0)
    )
    assert outcome.run.engine().version == "0.24.0"  # type: ignore[union-attr]
    assert "somebody's banner" in (outcome.run.path / "engine.log").read_text()


def test_speculation_that_drafts_nothing_is_reported(stand_in: Any, tmp_path: Path) -> None:
    body = """
    class LLM(LLM):
        def get_metrics(self):
            names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
            return [S(name="vllm:spec_decode_" + name, value=0) for name in names]
    """
    (outcome,) = measured(
        tmp_path, trial("latency", engine=stand_in(body), iterations=3, warmup_iterations=0)
    )
    assert doubts(outcome) == ["engine.no_drafts"]


def test_what_isnt_what_was_asked_for_is_not_measured(
    stand_in: Any, tmp_path: Path
) -> None:
    spec = msgspec.structs.replace(
        stand_in(""), kv_cache_dtype=None, version="0.24.0", quantization="gptq"
    )
    with pytest.raises(EngineError, match=r"not what was asked for.*Nothing was measured"):
        measured(tmp_path, trial("latency", engine=spec))


@pytest.mark.hostile
def test_a_study_tries_a_crashed_offline_trial_once_more_and_continues(
    stand_in: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = """
    class LLM(LLM):
        def generate(self, prompts, sampling, use_tqdm):
            mark = os.path.join(os.path.dirname(__file__), "crashed")
            if len(prompts) == 2 and not os.path.exists(mark):
                open(mark, "w").close()
                os._exit(9)
            if len(prompts) == 3:
                os._exit(9)
            return super().generate(prompts, sampling, use_tqdm)
    """
    spec = stand_in(body)
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(f"""
        [engines.v]
        kind = "vllm"
        model = "some/model"
        python = {str(spec.python)!r}
        env = {{ PYTHONPATH = {spec.env["PYTHONPATH"]!r} }}
        [workloads.w]
        input_len = 8
        output_len = 4
        [loads.l]
        kind = "latency"
        batch_size = [1, 2, 3]
        iterations = 3
        warmup_iterations = 0
    """)
    assert main(["run", "s.toml", "--plain", "--no-report"]) == 1
    printed = capsys.readouterr()
    folder = StudyFolder(tmp_path / "runs" / "s")
    assert len(folder.done()) == 2
    assert (
        "failed v, w, l batch_size=3" in printed.out
        and "exited with code 9 during a measurement" in printed.out
    )
    assert "engine.second_attempt" in printed.out
    assert main(["run", "s.toml", "--plain", "--no-report"]) == 1, (
        "what failed is tried again, what is done is kept"
    )
    assert len(folder.done()) == 2


def _bench(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "dyno",
        "bench",
        "latency",
        "--input-len",
        "16",
        "--output-len",
        "16",
        *flags,
    ]
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _once_measured(tmp_path: Path, count: int) -> Run:
    """Waits until some iterations of the run that has begun there are on record."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for folder in (tmp_path / "runs").glob("*"):
            run = Run(folder)
            if len([it for it in run.iterations() if not it.warmup]) >= count:
                return run
        time.sleep(0.02)
    raise AssertionError("nothing was measured")


@pytest.mark.hostile
def test_ctrl_c_keeps_the_iterations_that_are_done(tmp_path: Path) -> None:
    dyno = _bench(tmp_path, "--num-iters", "100000", "--num-iters-warmup", "1")
    run = _once_measured(tmp_path, 2)
    assert run.running()
    os.kill(dyno.pid, signal.SIGINT)
    out, _ = dyno.communicate(timeout=120)
    assert dyno.returncode == 130
    assert "requests.cut_short" in out and "of 100000 iterations" in out
    assert run.whole and not run.running() and workers(tmp_path) == []


@pytest.mark.hostile
@pytest.mark.hostile
def test_a_killed_dyno_leaves_no_worker_and_what_it_measured_can_be_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dyno = _bench(tmp_path, "--num-iters", "100000", "--num-iters-warmup", "1")
    run = _once_measured(tmp_path, 2)
    dyno.kill()
    dyno.communicate()
    deadline = time.monotonic() + 120
    while workers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers(tmp_path) == [] and not run.whole
    assert main(["runs", "show", str(run.path)]) == 0
    assert "requests.cut_short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("engine", "printed"),
    [
        (
            EngineSpec("tgi", model="m"),
            "TGI can't be measured offline: vllm, llamacpp and transformers can",
        ),
        (EngineSpec("openai"), "is not started by dyno"),
        (EngineSpec("llamacpp", max_model_len=16), "they would fail"),
        (EngineSpec("llamacpp", tensor_parallel=2), "can't use several devices"),
    ],
)
def test_what_cant_be_done_offline_is_reported_before_anything_starts(
    engine: EngineSpec, printed: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=printed):
        measured(tmp_path, trial("latency", 16, 16, engine=engine))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        "latency --n 2",
        "latency --use-beam-search",
        "latency --profile",
        "throughput --lora-path x",
        "throughput --prequeue-requests",
    ],
)
def test_what_only_vllm_can_do_offline_is_refused_of_others(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words.split()]) == 2
    flag = words.split()[1]
    assert f"llama.cpp can't do what {flag} asks for. Remove it, or use vLLM." in (
        capsys.readouterr().err
    )


def test_a_micro_test_has_one_copy_and_each_copy_needs_a_prompt(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"A micro test measures a single request.*remove replicas"
    ):
        measured(tmp_path, trial("micro", 16, 0, 1, EngineSpec("llamacpp", replicas=2)))
    with pytest.raises(UsageError, match="2 prompts can't be shared by 3 replicas"):
        measured(
            tmp_path,
            trial("throughput", count=2, engine=EngineSpec("llamacpp", replicas=3)),
        )


def test_llama_bench_is_asked_for_only_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No llama-bench"):
        measured(tmp_path, trial("micro", 16, 0, 1, by="llama-bench"))


def test_in_a_container_the_worker_is_mounted_and_its_stdin_is_held_open() -> None:
    box = ContainerSpec("rocm/vllm-dev:main", tool="docker", accelerator="amd")
    spec = EngineSpec(
        "vllm", model="org/model", tensor_parallel=8, container=box, version="0.6.3"
    )
    (command,) = [
        line
        for line in offline.lines(trial("latency", engine=spec))
        if line.startswith("docker run")
    ]
    words = shlex.split(command)
    worker = next(w for w in words if w.endswith("engines/worker"))
    assert "--interactive" in words and f"--volume={worker}:{worker}:ro" in words
    assert words[words.index("--entrypoint") + 1] == "python3"
    assert words[words.index(worker) + 1 :][:3] == ["vllm", "--model", "org/model"]
    assert "--tensor-parallel-size 8" in command and "served-model-name" not in command


LLAMA_BENCH = """#!{python}
import json, sys
args = sys.argv[1:]
of = lambda flag, default=None: args[args.index(flag) + 1] if flag in args else default
open({log!r}, "a").write(" ".join(args) + "\\n")
if of("-m").endswith("bad.gguf"):
    sys.exit("error: failed to load model")
p, n = map(int, of("-pg").split(",")) if "-pg" in args else (int(of("-p")), int(of("-n")))
print("ggml: a line that is no result")
samples = [20_000_000 + i for i in range(int(of("-r")))]
print(json.dumps({{"build_number": 6327, "n_threads": int(of("-t", 16)), "model_type": "llama 7B Q4_0", "n_prompt": p,
                   "n_gen": n, "n_depth": int(of("-d", 0)), "model_filename": of("-m"), "type_k": of("-ctk", "f16"),
                   "type_v": of("-ctv", "f16"), "flash_attn": of("-fa", "0") == "1", "use_mmap": of("-mmp", "1") == "1",
                   "samples_ns": samples, "samples_ts": [], **json.loads({lie!r})}}))
"""


@pytest.fixture
def lie() -> str:
    """What it reports instead of the truth, as JSON."""
    return "{}"


@pytest.fixture
def llama_bench(tmp_path: Path, lie: str) -> Path:
    """Beside a llama-server, as a build has them. Prints what the real one prints, for tests of known length."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {
        "llama-server": '#!/bin/sh\necho "version: 6327 (79c1160b)"\n',
        "llama-bench": LLAMA_BENCH.format(
            python=sys.executable, log=str(folder / "asked"), lie=lie
        ),
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def test_a_llama_bench_beside_the_server_runs_the_micro_tests(
    llama_bench: Path, tmp_path: Path
) -> None:
    spec = EngineSpec(
        "llamacpp",
        binary=str(llama_bench / "llama-server"),
        args=["-fa", "1"],
        kv_cache_dtype="q8_0",
    )
    prompt, generated, mixed = measured(
        tmp_path,
        trial("micro", 512, 0, 1, spec, iterations=3, depth=64),
        trial("micro", 0, 128, 1, spec, iterations=3),
        trial("micro", 512, 128, 1, spec, iterations=3),
    )
    tiny = build("F16")
    first, second, third = (llama_bench / "asked").read_text().splitlines()
    assert first == f"-m {tiny} -ctk q8_0 -ctv q8_0 -fa 1 -p 512 -n 0 -d 64 -r 3 -o jsonl"
    assert "-p 0 -n 128 -r 3" in second and "-pg 512,128 -p 0 -n 0 -r 3" in third
    assert [len(o.iterations) for o in (prompt, generated, mixed)] == [3, 3, 3], (
        "it warms up by itself"
    )
    assert prompt.result.offline and prompt.result.offline.speed == pytest.approx(
        512 / 0.02, rel=1e-3
    )
    assert generated.result.offline and generated.result.offline.speed == pytest.approx(
        128 / 0.02, rel=1e-3
    )
    assert mixed.result.offline and mixed.result.offline.speed == pytest.approx(
        640 / 0.02, rel=1e-3
    )
    assert prompt.iterations[0].reported["n_threads"] == 16
    # of a part of a machine nothing is known of the others
    whole = host.busy_s() is not None
    assert (prompt.iterations[0].others_cpu is not None) == whole
    first, *_, last = prompt.iterations
    assert (first.answers[0].prompt_tokens, first.answers[0].cached_tokens) == (576, 64)
    assert (
        last.end_ns - first.start_ns == 60_000_003
        and 0 <= time.monotonic_ns() - last.end_ns < 60e9
    )
    assert generated.result.roofline is not None, "from its own file to its shares"
    decode = next(s for s in generated.result.roofline.shares if s.what == "decode")
    assert "of 1.000 × 64.00 tokens" in decode.about, (
        "half of what is generated, on average"
    )
    kv = generated.result.roofline.kv_bytes
    assert kv == pytest.approx(2 * 6 * 2 * 64 * 34 / 32), "keys and values of q8_0"


def test_what_llama_bench_reports_is_what_was_asked_for(
    llama_bench: Path, tmp_path: Path
) -> None:
    words = ["--flash-attn", "on", "-t", "4", "--no-mmap"]
    spec = EngineSpec(
        "llamacpp",
        binary=str(llama_bench / "llama-server"),
        args=words,
        kv_cache_dtype="q8_0",
    )
    [outcome] = measured(tmp_path, trial("micro", 16, 0, 1, spec, depth=8))
    assert "-fa 1 -t 4 -mmp 0 " in (llama_bench / "asked").read_text(), (
        "as build 6327 spells it"
    )
    assert outcome.iterations[0].reported["flash_attn"] is True
    assert "engine.not_as_said" not in [f.code for f in outcome.result.findings]
    assert outcome.run.engine().version == "6327"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (
            '{"flash_attn": false}',
            "-fa 1 was asked for, but llama-bench reports flash_attn 0.",
        ),
        (
            '{"type_v": "f16"}',
            "-ctv q8_0 was asked for, but llama-bench reports type_v f16.",
        ),
        ('{"n_depth": 0}', "-d 8 was asked for, but llama-bench reports n_depth 0."),
        ('{"model_filename": "other.gguf"}', "reports model_filename other.gguf."),
        ('{"build_number": 6401}', "the setting asks for version 6327, but this is 6401."),
    ],
)
def test_a_llama_bench_that_did_something_else_makes_a_void_result(
    llama_bench: Path, tmp_path: Path, sentence: str
) -> None:
    spec = EngineSpec(
        "llamacpp",
        binary=str(llama_bench / "llama-server"),
        args=["-fa", "1"],
        kv_cache_dtype="q8_0",
        version="6327",
    )
    [outcome] = measured(tmp_path, trial("micro", 16, 0, 1, spec, depth=8))
    [finding] = [f for f in outcome.result.findings if f.code == "engine.not_as_said"]
    assert (finding.level, outcome.result.verdict) == ("void", "void")
    assert finding.text.endswith(sentence)


@pytest.mark.parametrize("lie", ['{"build_number": 6401}'])
def test_the_build_is_the_one_that_llama_bench_reports(
    llama_bench: Path, tmp_path: Path
) -> None:
    spec = EngineSpec("llamacpp", binary=str(llama_bench / "llama-server"))
    first, second = measured(
        tmp_path, trial("micro", 16, 0, 1, spec), trial("micro", 0, 4, 1, spec)
    )
    assert [o.run.engine().version for o in (first, second)] == ["6401", "6401"]  # type: ignore[union-attr]


def test_a_llama_bench_that_fails_is_reported_with_its_last_lines(
    llama_bench: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(build("F16").read_bytes())
    spec = EngineSpec("llamacpp", model=str(bad), binary=str(llama_bench / "llama-server"))
    with pytest.raises(
        EngineError, match=r"llama-bench exited with code 1.*failed to load model"
    ):
        measured(tmp_path, trial("micro", 16, 0, 1, spec))
    log = next((tmp_path / "runs").glob("*/engine.log")).read_text()
    assert "failed to load model" in log
