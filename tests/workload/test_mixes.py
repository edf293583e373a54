"""Several classes of traffic in one run, many clients, LoRA adapters; sent by the real wire to the fake engine."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import StartFake, drive
from dyno.cli.main import main
from dyno.cli.settings import classes
from dyno.errors import UsageError, WorkloadError
from dyno.facts.load import LoadSpec
from dyno.load import plan
from dyno.load.sessions import Graph
from dyno.workload.dataset import Dataset
from dyno.workload.datasets import DATASETS
from dyno.workload.prompts import make
from dyno.workload.request import Request, Turn
from dyno.workload.spec import TrafficClass, WorkloadSpec
from dyno.workload.tokenizer import ApproximateTokenizer
from studies import study

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

WORDS = ApproximateTokenizer()


def small(**fields: Any) -> TrafficClass:
    return TrafficClass(**{"input_len": 16, "output_len": 4, **fields})


def turns(spec: WorkloadSpec) -> list[Turn]:
    out = [r for r in make(spec, WORDS).requests if isinstance(r, Turn)]
    assert out
    return out


def chat(spec: WorkloadSpec, tokenizer: object) -> Iterator[Request]:
    """Three conversations of two turns."""
    for session in range(3):
        yield Turn(f"first {session}", 2, 4, session=session)
        yield Turn("then", 8, 4, session=session, after=[2 * session], history=2 * session)


def test_each_class_has_its_own_rate_whatever_the_seed() -> None:
    for seed in range(3):
        parts = {
            "a": small(request_rate_rps=8),
            "b": small(request_rate_rps=2, burstiness=0.5),
        }
        work = make(WorkloadSpec("mix", num_prompts=100, seed=seed, classes=parts), WORDS)
        each = [r for r in work.requests if isinstance(r, Turn)]
        assert Counter(t.group for t in each) == {"a": 80, "b": 20}
        assert work.starts_s is not None and work.starts_s == sorted(work.starts_s)
        assert work.starts_s[-1] == pytest.approx(10, abs=0.7)
        assert Graph.from_requests(each) is None  # sessions of one request need no order
        assert len({t.prompt for t in each}) == 100


def test_shares_leave_the_times_to_the_load() -> None:
    parts = {"a": small(share=3), "b": small(share=1)}
    work = make(WorkloadSpec("mix", num_prompts=80, classes=parts), WORDS)
    names = [r.group for r in work.requests if isinstance(r, Turn)]
    assert Counter(names) == {"a": 60, "b": 20} and work.starts_s is None
    assert 8 <= names[:40].count("a") <= 38  # mixed, not one after the other


def test_a_class_of_conversations_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS.own, "chats", Dataset(name="chats", about="", make=chat))
    parts = {
        "chat": small(dataset="chats", request_rate_rps=5),
        "single": small(request_rate_rps=5),
    }
    each = turns(WorkloadSpec("mix", num_sessions=20, classes=parts))
    assert Counter(t.group for t in each) == {"chat": 20, "single": 10}
    assert [t.session for t in each] == sorted(t.session for t in each)
    for i, turn in enumerate(each):
        if turn.prompt == "then":
            assert turn.after == [i - 1] and turn.history == i - 1 and turn.start_s is None
            assert each[i - 1].group == "chat" and each[i - 1].session == turn.session
        else:
            assert turn.start_s is not None and not turn.after


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({}, "needs classes of traffic"),
        (
            {"a": small(request_rate_rps=1), "b": small(share=1)},
            "its request_rate_rps, or each its share",
        ),
        ({"a": small(dataset="mix")}, "is a mix"),
        ({"a": small(dataset="custom", share=1)}, "custom needs its file"),
        ({"a": small(dataset="rndom", share=1)}, "Did you mean random"),
    ],
)
def test_a_mix_that_cannot_be_says_why(parts: dict[str, TrafficClass], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        make(WorkloadSpec("mix", num_prompts=4, classes=parts), WORDS)


def test_the_wire_sends_each_class_at_its_times_with_its_model_and_priority(
    fake: StartFake,
) -> None:
    engine = fake(bodies=True)
    parts = {
        "chat": small(request_rate_rps=60, priority=0),
        "batch": small(request_rate_rps=20, priority=7, adapter="lora-1", output_len=8),
    }
    spec = WorkloadSpec("mix", num_prompts=80, classes=parts)
    work = make(spec, WORDS)
    made = plan.make(
        LoadSpec(arrivals="recorded"), 80, Graph.from_requests(work.requests), work.starts_s
    )
    driven = drive(engine.base_url, work.requests, plan_=made)
    bodies = engine.log()["bodies"]
    assert Counter(body["priority"] for body in bodies) == {0: 60, 7: 20}
    assert all((body["model"] == "lora-1") == (body["priority"] == 7) for body in bodies)
    assert all(body["max_tokens"] == (8 if body["priority"] else 4) for body in bodies)
    due = [r.due_ns - driven.records[0].due_ns for r in driven.records]
    assert due == pytest.approx(
        [(s - (work.starts_s or [0])[0]) * 1e9 for s in work.starts_s or []], abs=10
    )


@pytest.mark.parametrize(
    ("assignment", "counts"), [("round-robin", {"a": 5, "b": 5}), ("random", None)]
)
def test_requests_are_spread_over_lora_adapters(
    assignment: Any, counts: dict[str, int] | None
) -> None:
    spec = WorkloadSpec(
        "random",
        num_prompts=10,
        input_len=16,
        lora_modules=["a", "b"],
        lora_assignment=assignment,
    )
    models = [t.body["model"] for t in turns(spec)]
    assert Counter(models) == counts if counts else {*models} == {"a", "b"}
    assert models == [t.body["model"] for t in turns(spec)]


# ---- many clients ----


def test_clients_have_their_own_rates_and_lengths() -> None:
    spec = WorkloadSpec(
        "clients",
        num_prompts=400,
        input_len=40,
        output_len=None,
        num_clients=20,
        client_rate_rps=2,
    )
    work = make(spec, WORDS)
    assert work.starts_s is not None and 100 < work.starts_s[-1] < 400  # 200 s on average
    inputs = [r.prompt_tokens for r in work.requests]
    assert 25 < sum(inputs) / 400 < 60 and len({*inputs}) > 30
    assert make(spec, WORDS).sha256 == work.sha256


@pytest.fixture
def servegen(tmp_path: Path) -> Path:
    """Two clients in the form of ServeGen's files; the second sends three times as much, from 600 s on."""
    (tmp_path / "chunk-0-trace.csv").write_text(
        "0,0.1,1.0,Gamma,1.0,2.0\n600,0.1,2.0,Gamma,0.25,9\n"
    )
    (tmp_path / "chunk-1-trace.csv").write_text("0,0,0,,0,0\n600,0.3,1.0,Weibull,1.1,3\n")
    lengths = {
        "0": {
            "input_tokens": "{8: 0.5, 12: 0.5}",
            "output_tokens": "{3: 1.0}",
            "reason_ratio": "{0.5: 1.0}",
        }
    }
    (tmp_path / "chunk-0-dataset.json").write_text(
        json.dumps(lengths | {"600": dict.fromkeys(lengths["0"], "{}")})
    )
    lengths["0"] |= {"input_tokens": "{30: 1.0}", "output_tokens": "{9: 1.0}"}
    (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(lengths))
    return tmp_path


def test_servegen_s_files_give_rates_and_lengths_of_each_client(servegen: Path) -> None:
    spec = WorkloadSpec(
        "clients", path=str(servegen), num_prompts=2000, client_rate_rps=0.5
    )
    work = make(spec, WORDS)
    assert len(work.requests) == pytest.approx(600, abs=3)
    late = [
        r.output_tokens
        for r in work.requests
        if isinstance(r, Turn) and (r.start_s or 0) >= 600
    ]
    assert late.count(9) == pytest.approx(225, abs=2) and late.count(3) == pytest.approx(
        75, abs=2
    )
    assert {r.prompt_tokens for r in work.requests if r.output_tokens == 3} == {8, 12}
    later = make(
        WorkloadSpec("clients", path=str(servegen), trace_start_s=600, num_prompts=9999),
        WORDS,
    )
    assert len(later.requests) == pytest.approx(600, abs=3)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("chunk-0-trace.csv", "0,x,1,Gamma,1,2\n", "line 1"),
        ("chunk-0-trace.csv", "0,1,1,Pareto,1,2\n", "Gamma or Weibull"),
        ("chunk-0-dataset.json", "[]", "table of lengths"),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{}"}}', "table of lengths"),
    ],
)
def test_a_broken_file_of_servegen_says_where(
    servegen: Path, name: str, text: str, says: str
) -> None:
    (servegen / name).write_text(text)
    with pytest.raises(WorkloadError, match=says):
        make(WorkloadSpec("clients", path=str(servegen), num_prompts=5), WORDS)


def test_a_folder_without_servegen_s_files_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="chunk-N-trace"):
        make(WorkloadSpec("clients", path=str(tmp_path), num_prompts=5), WORDS)


# ---- on the command line and in a study ----


def test_a_class_is_written_with_the_keys_of_a_study() -> None:
    text = "chat: request_rate_rps=2 input_len=512 priority=-1 goodput=ttft:500,tpot:30 lora_modules=a,b"
    assert classes([text, "b: share=1 dataset=custom path='my file.jsonl'"]) == {
        "chat": TrafficClass(
            request_rate_rps=2,
            input_len=512,
            priority=-1,
            goodput_ms={"ttft": 500, "tpot": 30},
            lora_modules=["a", "b"],
        ),
        "b": TrafficClass(share=1, dataset="custom", path="my file.jsonl"),
    }


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["request_rate_rps=2"], "has no name"),
        (["a: share=1", "a: share=2"], "names a twice"),
        (["a: request_rate=2"], "Did you mean request_rate_rps"),
        (["a: share"], "KEY=VALUE"),
        (["a: share=x"], "Expected `float"),
        (["a: request_rate_rps=-2"], "must be above 0"),
        (["a: goodput=tft:3"], "no latency named 'tft'"),
    ],
)
def test_a_wrong_class_says_why(texts: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        classes(texts)


def test_two_classes_from_the_command_line_meet_their_rates(
    fake: StartFake, tmp_path: Path, capsys: Any
) -> None:
    engine = fake(bodies=True)
    words = ["bench", "serve", "--base-url", engine.base_url, "--runs", str(tmp_path), "--duration", "1", "--json",
             "--no-correctness-check",
             "--class", "chat: request_rate_rps=30 input_len=16 output_len=2 priority=1 goodput=ttft:500",
             "--class", "batch: request_rate_rps=15 input_len=16 output_len=3 adapter=x priority=2"]  # fmt: skip
    assert main(words) in (0, 3)
    assert json.loads(capsys.readouterr().out)["completed"] == 45
    measured = [body for body in engine.log()["bodies"] if "priority" in body]
    assert Counter(body["priority"] for body in measured) == {1: 30, 2: 15}
    assert all(body.get("ignore_eos") for body in measured)


STUDY = """
name = "mix"
[engines.fake]
kind = "fake"
[workloads.mix.classes.chat]
request_rate_rps = 4
input_len = 32
output_len = 8
goodput_ms = { ttft = 500 }
[workloads.mix.classes.files]
request_rate_rps = 2
dataset = "custom"
path = "./prompts.jsonl"
adapter = "lora-1"
[loads.own]
duration_s = 10
"""
SCHEDULES = """
name = "waves"
[engines.fake]
kind = "fake"
[workloads.prefixes]
input_len = 64
output_len = 8
num_prefixes = 4
prefix_zipf = 1.0
prefix_hit_rate = 0.5
[loads.wave]
rate_schedule = "sine: 2..8 period=10"
duration_s = 20
[loads.slots]
concurrency_schedule = "step: 0=1 5=4"
duration_s = 10
num_prompts = 50
"""


def test_a_study_has_classes_prefixes_and_schedules(tmp_path: Path) -> None:
    (mix,) = [planned.trial for planned in study(STUDY, tmp_path / "study.toml").trials]
    assert (
        mix.load.arrivals == "recorded"
        and mix.workload.num_sessions == 60
        and not mix.ignore_eos
    )
    assert mix.workload.classes["chat"].goodput_ms == {"ttft": 500}
    assert mix.workload.classes["files"].path == str(tmp_path / "prompts.jsonl")
    made = [planned.trial for planned in study(SCHEDULES, tmp_path / "study.toml").trials]
    wave, slots = (
        next(t for t in made if getattr(t.load, f"{name}_schedule"))
        for name in ("rate", "concurrency")
    )
    assert (
        wave.workload.num_prompts == 100
        and wave.workload.prefix_hit_rate == 0.5
        and wave.ignore_eos
    )
    assert slots.load.concurrency_schedule == "step: 0=1 5=4"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("adapter =", "adaptr ="), "adaptr: unknown key. Did you mean adapter"),
        (
            ("request_rate_rps = 4", "request_rate_rps = -4"),
            "request_rate_rps must be above 0",
        ),
        (('dataset = "custom"', 'dataset = "costum"'), "Did you mean custom"),
        (("{ ttft = 500 }", "{ tft = 500 }"), "Did you mean ttft"),
        (("sine: 2..8 period=10", "sine: 2..8"), "must be like 'sine: 2..8 period=60'"),
        (("prefix_hit_rate = 0.5", "prefix_hit_rate = 1.5"), "must be from 0 to below 1"),
    ],
)
def test_a_mistake_in_a_study_says_where(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        study(
            (STUDY if change[0] in STUDY else SCHEDULES).replace(*change),
            tmp_path / "study.toml",
        )
