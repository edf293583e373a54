"""Time and cost of a study on one machine, before it runs. Measured times go before assumptions (METHOD.md)."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from dyno.conduct import earlier, provide
from dyno.conduct.study_plan import SettingPlan
from dyno.engines.kinds import kind_of
from dyno.facts.dry_run import Basis, Phase, PhaseName, RigCost
from dyno.facts.engine import EngineSpec
from dyno.facts.price import Price, PriceRule
from dyno.facts.recipe import ModelRecipe
from dyno.facts.rig import Accelerator, Peaks, Rig
from dyno.facts.study import PlannedTrial, RigWanted, Study
from dyno.measure import cost as costs
from dyno.models import sizes, steps
from dyno.numbers import clock, human_bytes, many
from dyno.probe import peaks
from dyno.study import order
from dyno.study.duration import (
    OWN_BYTES_S,
    OWN_START_S,
    OWN_STREAM_BYTES_S,
    TOKEN_S,
    EnginePace,
    trial_s,
)
from dyno.trial import weights
from dyno.trial.engine_plan import EnginePlan, online_share

OWN_MODEL_BYTES = 10_600_000  # dyno-5m in 16 bits
# Tests, prompts and checks of a trial, outside its load: with the engine that comes with dyno, and with others.
OWN_AROUND_S, AROUND_S = 1.0, 4.0
# of a family
_TYPICAL = {
    "gfx90a": "MI250X",
    "gfx942": "MI300X",
    "gfx950": "MI355X",
    "gfx1151": "Radeon 8060S",
}
_GIGABIT_S = 125e6  # bytes a second
_BANDWIDTH_SHARE, _ARITHMETIC_SHARE = 0.5, 0.3  # of the peaks, that engines reach
_DISK_S = 2e9  # bytes of weights a second, that a start reads


def assumed_pace(weights_bytes: float, peaks: Peaks, kind: str) -> EnginePace:
    """Return the pace of an engine by the weights of one copy and the peaks of the accelerators that share it."""
    arithmetic = peaks.flops.get("bf16") or peaks.flops.get("fp16")
    token_s = weights_bytes / (peaks.bandwidth * _BANDWIDTH_SHARE)
    prompt_s = weights_bytes / (arithmetic * _ARITHMETIC_SHARE) if arithmetic else 0.0
    return EnginePace(token_s, token_s * kind_of(kind).stream_share, prompt_s)


def assumed_start_s(weights_bytes: float | None, kind: str) -> float:
    """Return how long an engine takes to be ready. `weights_bytes`: None: unknown, or none are read."""
    return kind_of(kind).start_s + (weights_bytes or 0.0) / _DISK_S


def trials_s(
    study: Study,
    plans: Sequence[SettingPlan],
    machine: Rig,
    loads_s: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Estimate each planned trial on this machine, the first on a start of its engine with that start. Read no run of
    another study: one that begins says at once how long it takes. `loads_s`: of this study's finished trials, by their
    label, which repeats share."""
    expected = RigEstimate(plans, machine, [], [], here=True)
    times = {
        p.place.id: expected.trial_s(p, (loads_s or {}).get(p.place.label))[0]
        for plan in plans
        for p in plan.trials
    }
    for group in order.sessions(study, set(times)):
        first = group.trials[0]
        times[first.place.id] += expected.start_s(first)
    return times


class _Setting(NamedTuple):
    """An engine setting, with what is known of its speed."""

    runs: list[earlier.EarlierRun]  # of the same engine and model, on such a machine
    pace: EnginePace  # assumed
    start_s: float
    start_basis: Basis
    around_s: float  # of each trial, outside its load
    about: str  # the assumption in words


class RigEstimate:
    """Estimates one machine's trials."""

    def __init__(
        self,
        plans: Sequence[SettingPlan],
        machine: Rig,
        missing: Sequence[provide.Need],
        runs: Sequence[earlier.EarlierRun],
        here: bool,
    ) -> None:
        """`machine`: assumed, unless `here`. `missing`: with sizes. `runs`: earlier ones."""
        self._machine, self._missing, self._runs, self._here = machine, missing, runs, here
        self._settings = {
            p.place.id: self._setting(plan) for plan in plans for p in plan.trials
        }

    def _setting(self, planned: SettingPlan) -> _Setting:
        spec, plan = planned.trials[0].trial.engine, planned.engine
        if spec is None:
            return _Setting(
                [], EnginePace(), 0.0, "assumed", AROUND_S, f"{TOKEN_S * 1000:g} ms a token"
            )
        runs = earlier.alike(
            self._runs, plan.stored if plan else spec, earlier.machine_names(self._machine)
        )
        pace, about = self._assumed_pace(spec, plan)
        around_s = OWN_AROUND_S if plan and plan.program.embedded else AROUND_S
        measured = earlier.start_s(runs)
        if measured is not None:
            return _Setting(runs, pace, measured, "measured", around_s, about)
        return _Setting(
            runs, pace, self._assumed_start_s(spec, plan), "assumed", around_s, about
        )

    def _assumed_start_s(self, spec: EngineSpec, plan: EnginePlan | None) -> float:
        if plan is None:  # it runs already
            return 0.0
        if plan.program.embedded:
            return OWN_START_S
        return assumed_start_s(
            None if spec.load_format == "dummy" else self._file_bytes(spec, plan), spec.kind
        )

    def _assumed_pace(
        self, spec: EngineSpec, plan: EnginePlan | None
    ) -> tuple[EnginePace, str]:
        size = self._model_bytes(spec, plan)
        if plan and plan.program.embedded:
            if spec.model is None or not plan.kind.computes:
                size = OWN_MODEL_BYTES
            if size is not None:
                # smaller ones are not faster: not their weights take the time
                size = max(size, OWN_MODEL_BYTES)
                own = EnginePace(size / OWN_BYTES_S, size / OWN_STREAM_BYTES_S)
                return (
                    own,
                    f"{own.token_s * 1000:.3g} ms a token on this processor, more with several streams",
                )
        known = self._peaks(spec)
        if size is None or known is None:
            return EnginePace(), f"{TOKEN_S * 1000:g} ms a token"
        weights_words, cards = (
            self._weights_words(spec, plan, size),
            f"{known.count} × {known.name}",
        )
        about = f"{weights_words} at {_BANDWIDTH_SHARE:.0%} of what {cards} can read{self._partition_words()}"
        return assumed_pace(size, known, spec.kind), about

    def _weights_words(self, spec: EngineSpec, plan: EnginePlan | None, size: float) -> str:
        recipe = None if plan and plan.model else self._recipe(spec)
        by_name = recipe is not None and not self._listed_bytes(recipe)
        return (
            f"about {human_bytes(size)} of weights (by its name)"
            if by_name
            else f"{human_bytes(size)} of weights"
        )

    def _partition_words(self) -> str:
        partition = next((card.partition for card in self._machine.accelerators), None)
        whole = partition is None or partition.startswith("SPX")
        return "" if whole else f", each a part of a card ({partition})"

    def _peaks(self, spec: EngineSpec) -> Peaks | None:
        """Return the peaks of the accelerators that share one copy. A family's name counts as its typical card."""
        cards = self._machine.accelerators
        if not cards:
            return None
        whole = peaks.of_name(cards[0].name, spec.world)
        name = cards[0].name if whole else _TYPICAL.get(cards[0].architecture or "", "")
        if not self._partition_words():
            return whole or peaks.of_name(name, spec.world)
        parts = [msgspec.structs.replace(card, name=name) for card in cards[: spec.world]]
        return peaks.of_accelerators(parts).peaks

    def _model_bytes(self, spec: EngineSpec, plan: EnginePlan | None) -> float | None:
        """Return the weights of one copy, loaded. None: unknown."""
        size = self._file_bytes(spec, plan)
        if size is None:
            return None
        if plan and plan.model and plan.model.weights_bytes:
            return size * online_share(spec, plan.model.quantization)
        recipe = self._recipe(spec)
        quantization = recipe.quantize or _quantized(recipe.source) if recipe else None
        return size * online_share(spec, quantization)

    def _file_bytes(self, spec: EngineSpec, plan: EnginePlan | None) -> float | None:
        """Return the weights of one copy, as they are on the disk. None: unknown."""
        if plan and plan.model and plan.model.weights_bytes:
            return plan.model.weights_bytes
        recipe = self._recipe(spec)
        return (self._listed_bytes(recipe) or _bytes_by_name(recipe)) if recipe else None

    def _listed_bytes(self, recipe: ModelRecipe) -> int | None:
        return next(
            (
                need.size_bytes
                for need in self._missing
                if need.recipe and need.recipe.name == recipe.name
            ),
            None,
        )

    def _recipe(self, spec: EngineSpec) -> ModelRecipe | None:
        return {**spec.weights, **weights.of_hub(spec)}.get(spec.model or "")

    def too_large(self, planned: SettingPlan) -> str | None:
        """Say that a model can't fit, by the size that the Hub lists: before it is fetched."""
        spec, plan = planned.trials[0].trial.engine, planned.engine
        if (
            spec is None
            or plan is None
            or plan.model
            or plan.program.embedded
            or plan.limits.spreads
        ):
            return None  # one that is here is compared by its plan
        recipe = self._recipe(spec)
        if recipe is None or not self._listed_bytes(recipe):
            return None
        size = self._model_bytes(spec, plan)
        cards = self._machine.accelerators[: spec.world]
        room = _memory_bytes(cards)
        if size is None or room is None or size <= room:
            return None
        return (
            f"The weights of {spec.model} take {human_bytes(size)}, but {len(cards)} × {cards[0].name} have "
            f"{human_bytes(room)}. Use more accelerators or a smaller quantization."
        )

    # ---- trials ----

    def trial_s(
        self, planned: PlannedTrial, load_s: float | None = None
    ) -> tuple[float, Basis]:
        """Return how long a trial takes, and whether that is measured. `load_s`: of another repeat of it."""
        setting, trial = self._settings[planned.place.id], planned.trial
        same = load_s or earlier.same_trial(setting.runs, trial)
        if same is not None:
            return setting.around_s + same, "measured"
        if trial.find:
            return setting.around_s + trial_s(trial), "assumed"
        measured = earlier.pace(setting.runs, trial, setting.pace)
        seconds = setting.around_s + trial_s(trial, measured or setting.pace)
        return seconds, "measured" if measured else "assumed"

    def start_s(self, planned: PlannedTrial) -> float:
        """Return how long the engine of a trial takes to be ready."""
        return self._settings[planned.place.id].start_s

    # ---- phases ----

    def phases(
        self, groups: Sequence[Sequence[PlannedTrial]], times_s: Mapping[str, float]
    ) -> list[Phase]:
        """`groups`: trials that share a start, those that are left. `times_s`: of each trial."""
        phases = [
            self._fetch_phase(),
            self._install_phase(),
            self._make_phase("convert"),
            self._make_phase("quantize"),
        ]
        phases.append(
            _start_phase([self._settings[trials[0].place.id] for trials in groups])
        )
        kinds: dict[PhaseName, list[PlannedTrial]] = {
            "load": [],
            "search": [],
            "quality": [],
        }
        for planned in (p for trials in groups for p in trials):
            kinds[_kind(planned)].append(planned)
        phases += [
            self._trials(name, mine, times_s) for name, mine in kinds.items() if mine
        ]
        return [phase for phase in phases if phase is not None]

    def _fetch_phase(self) -> Phase | None:
        mine = [need for need in self._missing if need.pulled or need.box]
        if not mine:
            return None
        sizes_bytes = [need.size_bytes for need in mine if need.size_bytes is not None]
        known, unknown = sum(sizes_bytes), len(mine) - len(sizes_bytes)
        rest = f"; {many(unknown, 'thing')} of unknown size" if unknown else ""
        speed = earlier.fetched_bytes_s()
        if not known:
            return Phase("fetch", None, "unknown", "no size is known")
        if speed is None:
            about = f"{human_bytes(known)} at 1 Gbit/s{rest}; dyno has fetched nothing here before"
            return Phase("fetch", known / _GIGABIT_S, "assumed", about)
        about = f"{human_bytes(known)} at {human_bytes(speed)}/s"
        if self._here:
            return Phase(
                "fetch", known / speed, "measured", f"{about}, as fetched before{rest}"
            )
        return Phase(
            "fetch",
            known / speed,
            "assumed",
            f"{about}, as this machine fetched before{rest}",
        )

    def _install_phase(self) -> Phase | None:
        kinds = [need.installed[0] for need in self._missing if need.installed]
        if not kinds:
            return None
        times = [earlier.install_s(kind) for kind in kinds]
        unknown = [kind for kind, took in zip(kinds, times, strict=True) if took is None]
        if unknown:
            return Phase(
                "install",
                None,
                "unknown",
                f"{', '.join(unknown)}: never installed here by this dyno",
            )
        return Phase(
            "install", sum(took or 0.0 for took in times), "measured", "as installed before"
        )

    def _make_phase(self, verb: PhaseName) -> Phase | None:
        mine = [
            need
            for need in self._missing
            if need.recipe and not need.pulled and need.how.startswith(verb)
        ]
        if not mine:
            return None
        total = 0.0
        for need in mine:
            assert need.recipe is not None
            speed = earlier.made_bytes_s(verb, steps.tool(need.recipe))
            if speed is None or need.size_bytes is None:
                why = (
                    f"dyno has never run `{need.how}` here"
                    if speed is None
                    else need.unknown
                )
                return Phase(verb, None, "unknown", why)
            total += need.size_bytes / speed
        return Phase(verb, total, "measured", "as made before, by size")

    def _trials(
        self, name: PhaseName, mine: Sequence[PlannedTrial], times_s: Mapping[str, float]
    ) -> Phase:
        settings = [self._settings[p.place.id] for p in mine]
        measured = sum(self.trial_s(p)[1] == "measured" for p in mine)
        total = sum(times_s[p.place.id] for p in mine)
        if measured == len(mine):
            return Phase(
                name, total, "measured", f"{many(len(mine), 'trial')}, by earlier runs"
            )
        assumptions = list(dict.fromkeys(setting.about for setting in settings))
        about = "; ".join(assumptions[:2])
        if len(assumptions) > 2:
            about += "; …"
        by_runs = f", {measured} of them by earlier runs" if measured else ""
        return Phase(
            name, total, "assumed", f"{many(len(mine), 'trial')}{by_runs}; {about}"
        )


def _memory_bytes(cards: Sequence[Accelerator]) -> int | None:
    """Return the memory of all cards; None where there are none, or that of one is unknown."""
    sizes_bytes = [card.memory_bytes for card in cards if card.memory_bytes is not None]
    if not cards or len(sizes_bytes) < len(cards):
        return None
    return sum(sizes_bytes)


def _kind(planned: PlannedTrial) -> PhaseName:
    if planned.trial.find:
        return "search"
    return "quality" if planned.trial.quality else "load"


def _start_phase(starts: Sequence[_Setting]) -> Phase | None:
    if not any(setting.start_s for setting in starts):
        return None
    measured = sum(setting.start_basis == "measured" for setting in starts)
    total = sum(setting.start_s for setting in starts)
    by_runs = f", {measured} of them by earlier runs" if 0 < measured < len(starts) else ""
    if measured == len(starts):
        return Phase(
            "start", total, "measured", f"{many(len(starts), 'start')}, by earlier runs"
        )
    assumed = [
        setting.start_s
        for setting in starts
        if setting.start_basis == "assumed" and setting.start_s
    ]
    each = " to ".join(dict.fromkeys((clock(min(assumed)), clock(max(assumed)))))
    return Phase(
        "start", total, "assumed", f"{many(len(starts), 'start')}{by_runs}, {each} each"
    )


# Precisions in the names of models → bytes of a weight.
_BYTES_OF_WEIGHT = {
    "fp8": 1.0,
    "w8a8": 1.0,
    "int8": 1.0,
    "gptq": 0.5,
    "awq": 0.5,
    "int4": 0.5,
    "w4a16": 0.5,
}


def _quantized(name: str | None) -> str | None:
    """Return the precision that a model's name has: Llama-3.1-70B-Instruct-FP8-KV."""
    words = (name or "").lower()
    return next((word for word in _BYTES_OF_WEIGHT if word in words), None)


def _bytes_by_name(recipe: ModelRecipe) -> float | None:
    """Return the weights by a name such as Llama-3.1-405B-Instruct-FP8, where the Hub lists no size. None: unknown."""
    billions = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)B(?![A-Z0-9])", recipe.source.upper())
    if billions is None:
        return None
    parameters = round(float(billions[1]) * 1e9)
    if recipe.convert or recipe.quantize:
        return sizes.made_bytes(recipe, sizes.RepoSize(parameters=parameters))
    return parameters * _BYTES_OF_WEIGHT.get(_quantized(recipe.source) or "", 2.0)


# ---- cost ----


def cost(
    rules: Sequence[PriceRule],
    study: Study,
    trials: Sequence[PlannedTrial],
    machine: Rig,
    seconds: float,
) -> RigCost:
    """Return the known time by the price of the whole rig."""
    name = trials[0].place.rig
    wanted = study.rigs[name] if name else RigWanted()
    cards = machine.accelerators
    accelerator = wanted.accelerator or (cards[0].name if cards else "")
    chosen = costs.choose(rules, accelerator, study=wanted.price or _bound(wanted))
    if chosen is None:
        table = (
            f", or price = {{ accelerator_hour = 2.99 }} in [rigs.{name}]" if name else ""
        )
        return RigCost(
            about=f"no price is known: give --price 2.99 or --price machine=12{table}"
        )
    count = wanted.accelerators or max(
        (p.trial.engine.world for p in trials if p.trial.engine), default=0
    )
    paid = costs.hour(chosen.price, count, len(cards) or None)
    about = costs.stated(chosen, accelerator)
    if paid is None:
        return RigCost(
            about=f"{about}: this machine has no accelerator. Give --price machine=12"
        )
    return RigCost(
        amount=paid[0] * seconds / 3600,
        currency=chosen.price.currency,
        hour=paid[0],
        about=about,
    )


def _bound(wanted: RigWanted) -> Price | None:
    """Return the price that dstack must not exceed, where that is all that is known."""
    most = wanted.dstack.max_price if wanted.dstack else None
    return Price(machine_hour=most, source="dstack's max_price, at most") if most else None
