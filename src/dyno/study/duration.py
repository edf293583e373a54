"""How long a study takes: its trials, before anything is known of the engine, and what is left of it while it runs."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from dyno.facts.load import LoadSpec
from dyno.facts.quality import QualitySpec
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
KNOWN_FROM = 0.1  # share of a load from which its own speed counts, and not the estimate
# an estimate that is this much above what was shown is shown; a smaller rise is not news
LONGER = 1.25


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


# ---- what is left, for the live view of a running study ----


class TimeLeft:
    """It falls while a trial runs. It rises only where trials turn out to take longer, or one is run again.

    Each trial has an estimate, made before anything is known of the engine. Finished trials correct the estimates of
    the others; the progress of the current one's load corrects its own. A trial's time is counted from the end of the
    one before: it includes the engine's start.
    """

    def __init__(self, estimates_s: Mapping[str, float], now: float) -> None:
        """`estimates_s`: of the trials to run, by id, in their order."""
        self._left = dict(estimates_s)
        self._took = self._estimated = 0.0  # of finished trials
        # of the current one
        self._since = self._expected_s = self._deadline = self._share = 0.0
        self._shown = math.inf  # last
        self._expect(now)

    @property
    def known(self) -> bool:
        """Return whether a trial has been finished. Before that, it is a guess."""
        return self._estimated > 0

    def progress(self, share: float, elapsed_s: float, now: float) -> None:
        """Note that this share of the current trial's work is done, after so long."""
        if share <= self._share:
            return
        self._share = share
        trust = min(share / KNOWN_FROM, 1.0)
        by_estimate, by_speed = (
            (1 - share) * self._expected_s,
            elapsed_s * (1 - share) / share,
        )
        self._deadline = now + (1 - trust) * by_estimate + trust * by_speed

    def ended(self, id: str, measured: bool, now: float) -> None:
        """Note the end of a trial. One that failed or was skipped says nothing of the others."""
        estimate = self._left.pop(id, 0.0)
        if measured:
            self._took += now - self._since
            self._estimated += estimate
        self._expect(now)

    def again(self, now: float) -> None:
        """Note that the current trial begins anew."""
        self._expect(now)

    def seconds(self, now: float) -> float:
        others = self._scale * sum(list(self._left.values())[1:])
        left = others + max(self._deadline - now, 0.0)
        if left < LONGER * self._shown:
            left = min(left, self._shown)
        self._shown = left
        return left

    @property
    def _scale(self) -> float:
        return self._took / self._estimated if self._estimated else 1.0

    def _expect(self, now: float) -> None:
        """Begin to count for the next trial."""
        self._since, self._share, self._shown = now, 0.0, math.inf
        self._expected_s = self._scale * next(iter(self._left.values()), 0.0)
        self._deadline = now + self._expected_s
