"""How long a trial may take, before anything is known of the engine. Trials that are done correct it."""

import math
from collections.abc import Mapping, Sequence

from dyno.facts.study import PlannedTrial, Study
from dyno.facts.trial import TrialSpec

# For a model of some 8 to 70 billion parameters on a current accelerator; smaller ones are faster. What matters is
# the sum over a study, and that is corrected as soon as one trial is done.
TOKEN_S = 0.03  # between two tokens of a stream
TOGETHER = 256  # streams that such an engine works on at once
START_S = 90.0
OWN_START_S = 3.0  # of what comes with dyno
OUTPUT_TOKENS = 200  # of a dataset whose answers aren't known yet


def trial_s(trial: TrialSpec) -> float:
    w, load = trial.workload, trial.load
    request_s = (w.output_len or OUTPUT_TOKENS) * TOKEN_S
    if offline := trial.offline:
        if offline.kind == "throughput":
            return math.ceil(w.num_prompts / TOGETHER) * request_s
        rounds = (offline.iterations or 10) + (offline.warmup_iterations or 1)
        return rounds * max(request_s, 1.0)
    streams = min(load.max_concurrency or TOGETHER, TOGETHER)
    warmup_s = math.ceil(w.num_warmups / streams) * request_s
    if load.duration_s:
        return warmup_s + load.duration_s + request_s
    rate = load.request_rate_rps or (load.ramp_end_rps and (load.ramp_start_rps or 0) / 2 + load.ramp_end_rps / 2)
    served_s = math.ceil(w.num_prompts / streams) * request_s
    return warmup_s + max(w.num_prompts / rate + request_s if rate else 0.0, served_s)


def left_s(
    study: Study,
    sessions: Sequence[Sequence[PlannedTrial]],
    start_s: Mapping[str, float],
    took_s: Mapping[str, float],
) -> float:
    """Of what isn't done yet, starts included. `took_s`: of the trials that are done, which tell how far off it is."""
    guessed = sum(trial_s(p.trial) for p in study.trials if p.place.id in took_s)
    scale = sum(took_s.values()) / guessed if guessed else 1.0
    left = [[p for p in trials if p.place.id not in took_s] for trials in sessions]
    return sum(start_s[ts[0].place.id] + scale * sum(trial_s(p.trial) for p in ts) for ts in left if ts)
