"""Slots of engines that have one unless a setting says how many: as many as the load's highest concurrency."""

import math
from collections.abc import Sequence

import msgspec

from dyno.engines.kinds import kind_of
from dyno.facts.engine import EngineSpec
from dyno.facts.quality import QualitySpec
from dyno.facts.trial import TrialSpec
from dyno.trial.prepare import longest

_LEAST_CONTEXT, _BLOCK = 512, 256  # tokens; a cache is a multiple of a block


def for_loads(
    trials: Sequence[TrialSpec],
    quality: QualitySpec | None = None,
    longest_question: int | None = None,
) -> list[TrialSpec]:
    """Return the trials with slots for their load, where the setting leaves the number open.

    Slots share a context. Where the setting has none, each gets what the longest request needs; where that isn't known,
    the setting stays as it is. `longest_question`: of the quality test, in tokens with its answer; None: unknown."""
    settings: dict[bytes, list[TrialSpec]] = {}
    for trial in trials:
        if trial.engine and trial.offline is None:
            settings.setdefault(msgspec.json.encode(trial.engine), []).append(trial)
    asked = [] if quality is None else [longest_question]
    chosen = {key: _with_slots(mine, quality, asked) for key, mine in settings.items()}
    return [_replaced(trial, chosen) for trial in trials]


def _replaced(trial: TrialSpec, chosen: dict[bytes, EngineSpec | None]) -> TrialSpec:
    engine = (
        chosen.get(msgspec.json.encode(trial.engine)) if trial.offline is None else None
    )
    return msgspec.structs.replace(trial, engine=engine) if engine else trial


def _with_slots(
    trials: Sequence[TrialSpec],
    quality: QualitySpec | None,
    asked: Sequence[int | None],
) -> EngineSpec | None:
    """Return the setting that these trials share, with slots. None: it stays. `asked`: lengths beside the loads'."""
    spec = trials[0].engine
    assert spec is not None
    if not kind_of(spec.kind).one_slot(spec) or any(trial.find for trial in trials):
        return None
    slots = math.ceil(_highest(trials, quality) / spec.replicas)
    length = spec.max_model_len or _context([*map(longest, trials), *asked])
    if slots == 1 or length is None:
        return None
    return msgspec.structs.replace(spec, max_num_seqs=slots, max_model_len=length)


def _highest(trials: Sequence[TrialSpec], quality: QualitySpec | None) -> int:
    asked = quality.concurrency if quality else []
    return max([*(trial.load.max_concurrency or 1 for trial in trials), *asked])


def _context(lengths: Sequence[int | None]) -> int | None:
    """Return the context of a slot that holds each of these requests. None: a length is unknown."""
    known = [length for length in lengths if length]
    if len(known) < len(lengths):
        return None
    return max(_LEAST_CONTEXT, math.ceil((max(known) + 8) / _BLOCK) * _BLOCK)
