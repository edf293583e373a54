"""vLLM's CPU build and transformers in a worker, for real: what they tell of each request, counted and held together.

`make test-engines`. An engine is loaded once for all the trials that can share it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tiny
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import Answer, Iteration, OfflineSpec, OfflineSummary
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.trial.offline import conduct
from dyno.trial.online import Outcome
from dyno.workload.spec import WorkloadSpec
from test_real_engines import CPU, OFFLINE, installed

pytestmark = pytest.mark.engines

GREEDY = {"temperature": 0.0}
DEPTH = 256  # two of vLLM's blocks on a CPU: it caches whole ones
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("model") / "tiny")


def vllm(model: Path, **fields: Any) -> EngineSpec:
    values: dict[str, Any] = {
        "model": str(model), "dtype": "fp32", "max_model_len": 512, "max_num_seqs": 4, "args": ["--enforce-eager"],
        "env": CPU, "ready_timeout_s": 900.0, "environment": installed("vllm"),
    }  # fmt: skip
    return EngineSpec("vllm", **{**values, **fields})


def transformers(model: Path, **fields: Any) -> EngineSpec:
    values: dict[str, Any] = {
        "model": str(model), "dtype": "fp32", "env": OFFLINE, "ready_timeout_s": 900.0,
        "environment": installed("transformers"),
    }  # fmt: skip
    return EngineSpec("transformers", **{**values, **fields})


def trial(
    engine: EngineSpec, kind: Any, input_len: int, output_len: int, count: int = 1, ratio: float = 0.0,
    sampling: dict[str, Any] | None = None, **how: Any,
) -> TrialSpec:  # fmt: skip
    workload = WorkloadSpec(
        "random", input_len=input_len, output_len=output_len, num_prompts=count,
        range_ratio_input=ratio, range_ratio_output=ratio,
    )  # fmt: skip
    return TrialSpec(
        TargetSpec("", "openai", ""), workload, LoadSpec(), kind=kind, engine=engine, ignore_eos=True,
        sampling=sampling or {}, offline=OfflineSpec(kind, iterations=2, warmup_iterations=1, **how),
    )  # fmt: skip


def of_each_kind(engine: EngineSpec) -> list[TrialSpec]:
    return [
        trial(engine, "throughput", 32, 8, 6, ratio=0.5),
        trial(engine, "latency", 32, 8, 3),
        trial(engine, "micro", 64, 0),
        trial(engine, "micro", 0, 8),
        trial(engine, "micro", 64, 0, depth=DEPTH),
        trial(engine, "micro", 0, 8, depth=DEPTH),
        trial(engine, "micro", 16, 8, depth=DEPTH),
    ]


def measured(trials: Sequence[TrialSpec], folder: Path) -> list[Outcome]:
    return list(conduct(trials, runs=folder))


def summary(outcome: Outcome) -> OfflineSummary:
    assert outcome.result.offline is not None
    return outcome.result.offline


def in_order(a: Answer, it: Iteration) -> bool:
    assert a.start_ns is not None and a.first_ns is not None and a.end_ns is not None
    return 0 <= a.start_ns <= a.first_ns <= a.end_ns <= it.end_ns - it.start_ns


def check_all_kinds(outcomes: Sequence[Outcome]) -> None:
    """What holds of both engines, trial by trial as in of_each_kind."""
    for outcome in outcomes:
        assert [it.warmup for it in outcome.iterations] == [True, False, False]
        assert all(
            a.error is None and in_order(a, it)
            for it in outcome.iterations
            for a in it.answers
        )
        assert summary(outcome).speculation is None
        assert outcome.manifest.target.dtype == "float32"
        # Who else is on the machine is no matter of the engine's.
        found = [f for f in outcome.result.findings if f.code != "client.others_cpu"]
        assert {f.level for f in found} <= {"note"}, found
    through, latency, pp, tg, deep_pp, deep_tg, deep_both = map(summary, outcomes)

    for it in outcomes[0].iterations:  # lengths differ, and each request has its own
        assert (
            len({a.wanted_tokens for a in it.answers}) > 1
            and len({a.prompt_tokens for a in it.answers}) > 1
        )
        assert [a.output_tokens for a in it.answers] == [
            a.wanted_tokens for a in it.answers
        ]
        assert [a.decoded_tokens for a in it.answers] == [
            a.wanted_tokens - 1 for a in it.answers
        ]
    assert (through.iterations, through.requests, through.completed, through.failed) == (
        2,
        6,
        12,
        0,
    )
    assert through.output_tokens == through.wanted_output_tokens

    for it in outcomes[1].iterations:
        assert [
            (a.prompt_tokens, a.output_tokens, a.decoded_tokens) for a in it.answers
        ] == [(32, 8, 7)] * 3
    assert (latency.completed, latency.input_tokens, latency.output_tokens) == (6, 192, 48)
    for s in (through, latency):
        assert (
            s.prefill_ms
            and s.decode_ms
            and s.tpot_ms
            and s.prefill_speed
            and s.decode_speed
        )
        assert s.in_flight_mean is not None and 1 < s.in_flight_mean <= s.requests

    counted = [
        [(_new(a), a.decoded_tokens) for it in o.iterations for a in it.answers]
        for o in outcomes[2:]
    ]
    assert counted[0] == [(64, 0)] * 3
    assert [decoded for _, decoded in counted[1]] == [8] * 3
    assert counted[2] == [(64, 0)] * 3, "what is in the context before isn't counted"
    assert [decoded for _, decoded in counted[3]] == [8] * 3
    assert counted[4] == [(16, 8)] * 3
    for s in (pp, deep_pp):
        assert (
            s.prefill_speed and s.decode_speed is None and s.speed == s.prefill_speed.mean
        )
    for s in (tg, deep_tg):
        assert s.decode_speed and s.prefill_speed is None and s.speed == s.decode_speed.mean
    assert DEPTH < deep_tg.context_mean < DEPTH + 16 and tg.context_mean < 16
    its = [it for it in outcomes[6].iterations if not it.warmup]
    rates = [24e9 / (a.end_ns - a.start_ns) for it in its for a in it.answers]  # type: ignore[operator]
    assert deep_both.speed == pytest.approx(sum(rates) / 2), "of its own 16 + 8 tokens"


def _new(a: Answer) -> int:
    return a.prompt_tokens - (a.cached_tokens or 0)


def test_vllm_reports_each_request_of_every_kind_of_trial(
    model: Path, tmp_path: Path
) -> None:
    # One load for all: where nothing is said, micro tests alone have a prefix cache.
    outcomes = measured(of_each_kind(vllm(model, prefix_caching=True)), tmp_path)
    check_all_kinds(outcomes)
    for outcome in outcomes[:4]:
        assert all(a.cached_tokens == 0 for it in outcome.iterations for a in it.answers), (
            "emptied each time"
        )
    for outcome in (outcomes[4], outcomes[6]):
        assert [it.answers[0].cached_tokens for it in outcome.iterations] == [DEPTH] * 3
    target = outcomes[0].manifest.target
    assert (target.slots, target.max_model_len, target.prefix_caching) == (4, 512, True)
    assert (summary(outcomes[0]).in_flight_mean or 9) <= 4
    facts = [o.run.engine() for o in outcomes]
    assert len({f.ready_s for f in facts if f}) == 1, "loaded once"
    assert facts[0] and facts[0].version == target.version


@pytest.mark.parametrize(
    "kind", [pytest.param("vllm", marks=pytest.mark.nightly), "transformers"]
)
def test_two_replicas_share_the_prompts_and_vllm_reports_a_variable_that_it_does_not_know(
    kind: str, model: Path, tmp_path: Path
) -> None:
    make, env, slip = {
        "vllm": (vllm, CPU, "VLLM_LOGGING_LEVL"),
        "transformers": (transformers, OFFLINE, "X_Y"),
    }[kind]
    spec = make(model, replicas=2, env={**env, slip: "INFO"})
    (outcome,) = measured([trial(spec, "throughput", 32, 8, 5)], tmp_path)
    for it in outcome.iterations:
        assert [part.requests for part in it.parts] == [3, 2]
        assert it.start_ns == min(part.start_ns for part in it.parts)
        assert it.end_ns == max(part.end_ns for part in it.parts)
        assert all(a.error is None and in_order(a, it) for a in it.answers)
    o = summary(outcome)
    assert (o.completed, o.failed, o.output_tokens) == (10, 0, 80)
    assert [(r.completed, r.output_tokens) for r in o.replicas] == [(6, 48), (4, 32)]
    variables = {
        f.code: f.text for f in outcome.result.findings if f.code.endswith("_variable")
    }
    assert set(variables) == (
        {"engine.unknown_variable", "engine.misspelt_variable"} if kind == "vllm" else set()
    )
    assert slip in variables.get("engine.unknown_variable", slip)


def test_what_vllm_drafts_from_n_grams_is_counted_and_a_variable_that_it_does_not_know_reported(
    tmp_path: Path,
) -> None:
    # Its engine core in the worker's own process here: the other way in which it runs, and sooner there.
    alone = {**CPU, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVL": "INFO"}
    echo = tiny.build(tmp_path / "echo", tiny.SMALL._replace(echoes=True))
    engine = vllm(echo, args=["--enforce-eager", "--speculative-config", NGRAM], env=alone)
    (outcome,) = measured([trial(engine, "latency", 64, 48, 2, sampling=GREEDY)], tmp_path)
    for it in outcome.iterations:
        assert all(in_order(a, it) and a.output_tokens == 48 for a in it.answers)
        assert it.drafts and it.drafted_tokens and it.accepted_tokens is not None
        assert it.accepted_tokens <= it.drafted_tokens <= 3 * it.drafts
        # One draft a step at most. Of the last one of an answer, tokens beyond its length are accepted too.
        steps = sum(a.decoded_tokens + 3 for a in it.answers) - it.accepted_tokens
        assert it.drafts <= steps
    reported = summary(outcome).speculation
    assert reported and reported.drafts == sum(
        it.drafts or 0 for it in outcome.iterations if not it.warmup
    )
    assert 0 < reported.acceptance <= 1 and outcome.manifest.target.prefix_caching is False
    variables = {
        f.code: f.text for f in outcome.result.findings if f.code.endswith("_variable")
    }
    assert set(variables) == {"engine.unknown_variable", "engine.misspelt_variable"}
    assert "VLLM_LOGGING_LEVL" in variables["engine.unknown_variable"]


def test_vllm_generates_several_sequences_searches_by_beams_and_queues_prompts_before(
    model: Path, tmp_path: Path
) -> None:
    """One engine for all. A trace is written by vLLM's own profiler."""
    traces = tmp_path / "traces"
    config = f'{{"profiler": "torch", "torch_profiler_dir": "{traces}"}}'
    engine = vllm(model, args=["--enforce-eager", "--profiler-config", config])
    several, beams, before, plain = measured(
        [
            trial(engine, "throughput", 16, 4, 5, sequences=3),
            trial(engine, "latency", 16, 4, 2, sequences=3, beam_search=True),
            trial(engine, "throughput", 16, 4, 5, prequeue=True),
            replace(trial(engine, "latency", 16, 4, 2), profile=True),
        ],
        tmp_path / "runs",
    )
    for outcome, tokens in ((several, 5 * 3 * 4), (beams, 2 * 3 * 4)):
        assert [sum(a.output_tokens for a in it.answers) for it in outcome.iterations] == [
            tokens
        ] * 3
        found = summary(outcome)
        assert found.output_tokens == found.wanted_output_tokens == 2 * tokens
        # the times of a request are those of all its sequences
        assert found.tpot_ms is None and found.prefill_ms is None
    assert (
        summary(before).output_tokens == 2 * 5 * 4 and summary(before).tpot_ms is not None
    )
    # The profiled iteration is in no figure.
    assert len(plain.iterations) == 3 and summary(plain).iterations == 2
    assert [p for p in traces.rglob("*") if p.is_file() and p.stat().st_size > 1000]


@pytest.mark.nightly  # a minute of imports
def test_vllm_s_asynchronous_engine_gives_the_same_facts_of_each_request(
    model: Path, tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    config = f'{{"profiler": "torch", "torch_profiler_dir": "{traces}"}}'
    args = ["--async-engine", "--enforce-eager", "--profiler-config", config]
    plain, several, batch = measured(
        [
            trial(vllm(model, args=args), "throughput", 16, 4, 9),
            trial(vllm(model, args=args), "throughput", 16, 4, 5, sequences=3),
            replace(trial(vllm(model, args=args), "latency", 16, 4, 2), profile=True),
        ],
        tmp_path / "runs",
    )
    for it in plain.iterations:
        assert [(a.prompt_tokens, a.output_tokens) for a in it.answers] == [(16, 4)] * 9
        assert all(0 <= a.start_ns < a.first_ns < a.end_ns for a in it.answers)  # type: ignore[operator]
    assert (summary(plain).in_flight_mean or 9) <= 4, "as many as it has slots"
    assert plain.manifest.target.slots == 4
    assert summary(several).output_tokens == 2 * 5 * 3 * 4
    assert summary(batch).output_tokens == 2 * 2 * 4
    assert [p for p in traces.rglob("*") if p.is_file() and p.stat().st_size > 1000]


@pytest.mark.nightly  # a minute of imports
def test_a_profiler_without_a_folder_is_refused_before_the_measurement(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="its profiler can't be used"):
        measured([replace(trial(vllm(model), "latency", 16, 4, 2), profile=True)], tmp_path)


def test_a_flag_that_vllm_does_not_know_is_reported_by_its_own_line_alone(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(EngineError) as reported:
        measured([trial(vllm(model, args=["--frobnicate"]), "latency", 8, 4)], tmp_path)
    assert (
        'loading: "vllm: error: unrecognized arguments: --frobnicate". This version doesn\'t know'
        in str(reported.value)
    )


def test_transformers_reports_each_request_of_every_kind_of_trial(
    model: Path, tmp_path: Path
) -> None:
    outcomes = measured(of_each_kind(transformers(model)), tmp_path)
    check_all_kinds(outcomes)
    assert [it.answers[0].prompt_tokens for it in outcomes[4].iterations] == [
        DEPTH + 64
    ] * 3
    target = outcomes[0].manifest.target
    assert target.slots is None and target.prefix_caching is False
    facts = [o.run.engine() for o in outcomes]
    assert len({f.ready_s for f in facts if f}) == 1


@pytest.mark.nightly  # half a minute
def test_transformers_without_continuous_batching_counts_each_requests_own_tokens(
    model: Path, tmp_path: Path
) -> None:
    engine = transformers(
        model, dtype="bf16", max_num_seqs=4, args=["--no-continuous-batching"]
    )
    (outcome,) = measured([trial(engine, "throughput", 32, 16, 6, ratio=0.5)], tmp_path)
    assert (
        outcome.manifest.target.dtype == "bfloat16" and outcome.manifest.target.slots == 4
    )
    for it in outcome.iterations:
        assert len({a.wanted_tokens for a in it.answers}) > 2
        assert [(a.output_tokens, a.decoded_tokens) for a in it.answers] == [
            (a.wanted_tokens, a.wanted_tokens - 1) for a in it.answers
        ]
        assert all(in_order(a, it) for a in it.answers)
        first, second = it.answers[:4], it.answers[4:]
        assert len({a.start_ns for a in first}) == len({a.start_ns for a in second}) == 1
        assert max(a.end_ns or 0 for a in first) <= (second[0].start_ns or 0), (
            "four at once, then the others"
        )
        by_length = sorted(first, key=lambda a: a.wanted_tokens)
        assert [a.end_ns for a in by_length] == sorted(a.end_ns or 0 for a in first), (
            "the shortest is done first"
        )


def test_a_model_that_drafts_for_itself_is_nearly_always_right(
    model: Path, tmp_path: Path
) -> None:
    engine = transformers(model, draft_model=str(model), draft_tokens=3)
    one = trial(engine, "latency", 32, 24, sampling=GREEDY)
    several = trial(engine, "throughput", 32, 24, 3, sampling=GREEDY)
    with pytest.raises(UsageError, match="one request at a time"):
        outcomes = []
        for outcome in conduct(
            [one, several, trial(engine, "latency", 32, 24, 2, sampling=GREEDY)],
            runs=tmp_path,
        ):
            outcomes.append(outcome)
    assert len(outcomes) == 2
    for outcome in outcomes:
        reported = summary(outcome).speculation
        assert (
            reported
            and reported.acceptance > 0.9
            and reported.drafted_tokens <= 3 * reported.drafts
        )
        assert 3 < reported.tokens_per_step <= 4
        for it in outcome.iterations:
            assert all(a.output_tokens == 24 and in_order(a, it) for a in it.answers)
            # The first step has processed the prompt and judged a draft too.
            assert all(20 <= a.decoded_tokens < 24 for a in it.answers)
    ends = [(a.start_ns, a.end_ns) for a in outcomes[1].iterations[-1].answers]
    assert all(ends[i][1] <= ends[i + 1][0] for i in range(2)), "one after the other"  # type: ignore[operator]
    assert outcomes[0].manifest.target.slots == 1
