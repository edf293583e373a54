"""The order of a study's trials: few starts of engines, and no side of a comparison favoured by drift. Its length.

Each repeat goes round all engine settings, in an order that the seed has shuffled and that the next repeat turns
round (A B, B A): what changes slowly, such as heat, then meets both sides alike. Where the same setting ends one
round and begins the next, it goes on running.
"""

import math
import random
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from dyno.facts.load import LoadSpec
from dyno.facts.quality import QualitySpec
from dyno.facts.study import PlannedTrial, Study
from dyno.facts.trial import TrialSpec
from dyno.workload.datasets import DATASETS
from dyno.workload.spec import WorkloadSpec

# For a model of some 8 to 70 billion parameters on a current accelerator; smaller ones are faster. What matters is
# the sum over a study, and that is corrected as soon as one trial is done.
TOKEN_S = 0.03  # between two tokens of a stream
TOGETHER = 256  # streams that such an engine works on at once
OWN_START_S = 1.0  # of what comes with dyno
# of its weights: one stream, and each further one; on two cores
OWN_BYTES_S, OWN_STREAM_BYTES_S = 5e9, 8e9
PROMPT_TOKENS = 250  # of a dataset whose lengths aren't known yet
_QUALITY_SHARE = 0.25  # of the limit of an answer, that answers of quality tasks have


class EnginePace(NamedTuple):
    """How fast an engine is, in seconds."""

    token_s: float = TOKEN_S  # from a token of a stream to its next
    stream_s: float = 0.0  # … more for each further stream
    prompt_s: float = 0.0  # for each token of a prompt; the streams share the time

    def answer_s(self, tokens: int, streams: int) -> float:
        return tokens * (self.token_s + (streams - 1) * self.stream_s)

    def scaled(self, factor: float) -> "EnginePace":
        return EnginePace(
            self.token_s * factor, self.stream_s * factor, self.prompt_s * factor
        )


class TrialGroup(NamedTuple):
    """Trials that share one start of an engine, in order."""

    name: str
    trials: list[PlannedTrial]


def sessions(study: Study, wanted: Collection[str] | None = None) -> list[TrialGroup]:
    """Group trials into sessions, in order. `wanted`: ids of the trials to run; None: all."""
    planned_sessions: list[TrialGroup] = []
    last = None
    for key, trials in _rounds(study):
        if key == last:
            planned_sessions[-1].trials.extend(trials)
        else:
            planned_sessions.append(
                TrialGroup(trials[0].place.label.partition(",")[0], list(trials))
            )
        last = key
    if wanted is None:
        return planned_sessions
    chosen = (
        TrialGroup(s.name, [p for p in s.trials if p.place.id in wanted])
        for s in planned_sessions
    )
    return [session for session in chosen if session.trials]


def setting_key(planned: PlannedTrial) -> bytes:
    """Return a key shared by trials that can share an engine."""
    t = planned.trial
    # What isn't served has no server to share, but a loaded engine.
    return msgspec.json.encode(
        [
            planned.place.rig,
            t.engine,
            t.target.urls,
            t.target.backend,
            t.offline is not None,
        ]
    )


def _rounds(study: Study) -> Iterator[tuple[bytes, list[PlannedTrial]]]:
    rng = random.Random(study.seed)
    settings: dict[bytes, list[PlannedTrial]] = {}
    for planned in study.trials:
        settings.setdefault(setting_key(planned), []).append(planned)
    order = list(settings)
    if study.interleave == "trials":
        rng.shuffle(order)
        for key in order:
            trials = []
            for repeat in _repeats(study):
                trials += _shuffled(settings[key], repeat, study, rng)
            yield key, trials
        return
    for repeat in _repeats(study):
        if repeat % 2:
            rng.shuffle(order)
        else:
            order.reverse()
        for key in order:
            if trials := _shuffled(settings[key], repeat, study, rng):
                yield key, trials


def _repeats(study: Study) -> range:
    return range(1, study.repeats + 1)


def _shuffled(
    trials: list[PlannedTrial], repeat: int, study: Study, rng: random.Random
) -> list[PlannedTrial]:
    """Shuffle one repeat's trials; searches come after them, and quality last, where it can't affect what is timed.

    With a stop rule the loads of a series rise instead, to know when to stop."""
    here = [p for p in trials if p.place.repeat == repeat]
    searches = [p for p in here if p.trial.find]
    quality = [p for p in here if p.trial.quality]
    rest = [p for p in here if p.trial.quality is None and p.trial.find is None]
    if study.stop is None:
        rng.shuffle(rest)
    else:
        rest = _rising(rest, rng)
    return rest + searches + quality


def _rising(trials: list[PlannedTrial], rng: random.Random) -> list[PlannedTrial]:
    """Shuffle the series; in each, loads rise."""
    series: dict[tuple[str, ...], list[PlannedTrial]] = {}
    for planned in trials:
        series.setdefault(series_key(planned), []).append(planned)
    groups = list(series.values())
    rng.shuffle(groups)
    return [p for group in groups for p in sorted(group, key=level)]


def series_key(planned: PlannedTrial) -> tuple[str, ...]:
    """Return a key shared by trials that differ only in the amount of load, and so in number and seed of prompts."""
    t, place = planned.trial, planned.place
    w = msgspec.structs.replace(t.workload, num_prompts=1, num_warmups=0, seed=0)
    rest = msgspec.json.encode(
        msgspec.structs.replace(t, workload=w, load=t.load.without_level())
    ).decode()
    key = rest, str(place.rig), place.engine, place.workload, place.load, str(place.repeat)
    return (*key, place.id) if t.offline else key


def level(planned: PlannedTrial) -> tuple[float, float]:
    return planned.trial.load.level


# ---- how long trials may take, before anything is known of the engine ----


def trial_s(trial: TrialSpec, pace: EnginePace | None = None) -> float:
    """Estimate how long a trial's load takes. `pace`: None: that of a large model on a current accelerator."""
    pace = pace or EnginePace()
    output = output_tokens(trial)
    if trial.offline:
        return _offline_s(trial, pace, output)
    if trial.quality:
        return _quality_s(trial.quality, trial.workload.num_prompts, pace, output)
    if trial.find:
        return trial.find.budget_s + (trial.find.confirm_s or 0.0)
    return _serving_s(trial.workload, trial.load, pace, output)


def _quality_s(quality: QualitySpec, prompts: int, pace: EnginePace, output: int) -> float:
    passes_s = []
    for concurrency in quality.concurrency:
        streams = min(concurrency, TOGETHER)
        passes_s.append(math.ceil(prompts / streams) * pace.answer_s(output, streams))
    return sum(passes_s)


def _serving_s(work: WorkloadSpec, load: LoadSpec, pace: EnginePace, output: int) -> float:
    streams = min(load.max_concurrency or TOGETHER, TOGETHER, max(work.num_prompts, 1))
    request_s = pace.answer_s(output, streams)
    warmup_s = math.ceil(work.num_warmups / streams) * request_s
    if load.duration_s:
        return warmup_s + load.duration_s + request_s
    if load.arrivals == "recorded" and work.trace_end_s:
        served_s = (work.trace_end_s - work.trace_start_s) / load.speedup + request_s
    else:
        served_s = math.ceil(work.num_prompts / streams) * request_s + _prompts_s(
            work, pace
        )
    rate = _rate_rps(work, load)
    sent_s = work.num_prompts / rate + request_s if rate else 0.0
    return warmup_s + max(sent_s, served_s)


def _rate_rps(work: WorkloadSpec, load: LoadSpec) -> float | None:
    """Return the mean rate of an open loop."""
    if load.rates:
        return work.num_prompts / next(load.rates.times([work.num_prompts]))
    if load.request_rate_rps:
        return load.request_rate_rps
    if load.ramp_end_rps:
        return (load.ramp_start_rps or 0) / 2 + load.ramp_end_rps / 2
    return None


def output_tokens(trial: TrialSpec) -> int:
    """Return how long an answer may be, in the mean."""
    w = trial.workload
    if trial.quality and w.output_len:
        return math.ceil(w.output_len * _QUALITY_SHARE)
    if w.output_len is not None:
        return w.output_len
    return DATASETS[w.dataset].answer_tokens


def _prompts_s(work: WorkloadSpec, pace: EnginePace) -> float:
    """Return the time for all prompts, which the streams share."""
    return (
        work.num_prompts
        * (work.input_len if work.traits.exact else PROMPT_TOKENS)
        * pace.prompt_s
    )


def _offline_s(trial: TrialSpec, pace: EnginePace, output: int) -> float:
    w, offline = trial.workload, trial.offline
    assert offline is not None
    streams = min(max(w.num_prompts, 1), TOGETHER)
    answers_s = math.ceil(w.num_prompts / TOGETHER) * pace.answer_s(output, streams)
    once_s = answers_s + _prompts_s(w, pace)
    if offline.kind == "throughput":
        return once_s
    rounds = (offline.iterations or 10) + (offline.warmup_iterations or 1)
    return rounds * max(once_s, 0.05)
