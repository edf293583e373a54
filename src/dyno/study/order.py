"""The order of a study's trials: few starts of engines, and no side of a comparison favoured by drift.

Each repeat goes round all engine settings, in an order that the seed has shuffled and that the next repeat turns
round (A B, B A): what changes slowly, such as heat, then meets both sides alike. Where the same setting ends one
round and begins the next, it goes on running.
"""

import random
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from dyno.facts.study import PlannedTrial, Study


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
