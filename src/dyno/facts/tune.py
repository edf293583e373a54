"""A search for an engine's best settings: what may change and within what, what was tried, and the answer."""

from typing import Annotated, Any, Literal

import msgspec

from dyno.facts.limits import Limit, parse, with_statistic
from dyno.facts.metric import OUTPUTS, metric
from dyno.facts.recipe import ModelRecipe
from dyno.numbers import number
from dyno.option import Option

# key of the engine's table, or an argument of its own → value; {}: as the study has it
Setting = dict[str, Any]
OBJECTIVES = {
    "throughput": "output tokens/s",
    "load": "highest load within the target",
    "cost": "cost per million output tokens",
    "energy": "energy per output token (J)",
}
# Why a search ended. settings: every one was tried. discarded: nearly all that were proposed can't work.
TuneEnd = Literal["trials", "settings", "discarded", "budget", "interrupted"]
TuneLoad = Literal["short", "longer", "repeat"]
# discarded: known beforehand not to work
TuneState = Literal["measured", "failed", "discarded"]


class TuneAxis(msgspec.Struct, frozen=True):
    """The values that a setting may have: a list, or a range."""

    values: list[Any] = []
    least: float | None = None
    most: float | None = None
    log: bool = False
    whole: bool = False

    @property
    def ordered(self) -> bool:
        """Return whether neighbours in the list are alike."""
        plain = all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in self.values
        )
        return plain and self.values == sorted(self.values)


class TuneSpec(msgspec.Struct, frozen=True):
    settings: Annotated[
        dict[str, TuneAxis],
        Option(
            help="KEY = [values] or { from = 1, to = 64, log = true }: keys of the engine's table, and its own "
            'arguments, as "--threads" or "slots="'
        ),
    ]
    engine: Annotated[
        str | None, Option(help="engine to tune (default: the study's only one)")
    ] = None
    objective: Annotated[
        str,
        Option(
            help="throughput, load, cost, energy, or a latency such as ttft_p99 or tpot_mean"
        ),
    ] = "throughput"
    target: Annotated[
        list[str],
        Option(
            help='limits that the best setting must keep: ["ttft_p99:500ms", "failed:1%"]'
        ),
    ] = []
    trials: Annotated[
        int,
        Option(
            "--trials", "N", "settings to start, besides the default", least=1, most=10_000
        ),
    ] = 20
    seconds: Annotated[
        float,
        Option(
            help="length of a short load; the best third gets three times as long",
            above=0,
            most=1e6,
        ),
    ] = 20.0
    confirm_repeats: Annotated[
        int,
        Option(
            help="interleaved repeats of the default and the best setting, at the end",
            least=0,
            most=100,
        ),
    ] = 3
    weights: dict[str, ModelRecipe] = {}  # of the study's models that a setting names

    @property
    def limits(self) -> list[Limit]:
        return with_statistic(parse(self.target, "target"))

    @property
    def latency(self) -> Limit | None:
        """Return the latency that is the objective."""
        if self.objective in OBJECTIVES:
            return None
        [limit] = parse([f"{self.objective}:1"], "objective")
        return msgspec.structs.replace(limit, statistic=limit.statistic or "p99")

    @property
    def lower(self) -> bool:
        """Return whether less is better."""
        return self.objective not in ("throughput", "load")

    @property
    def words(self) -> str:
        """Describe the objective: 'output tokens/s', 'p99 TTFT (ms)'."""
        return (
            f"{self.latency.words.partition(' ≤')[0]} (ms)"
            if self.latency
            else OBJECTIVES[self.objective]
        )


class TuneRepeat(msgspec.Struct, frozen=True):
    """A repeat of a setting, after the loads that chose it."""

    run: str  # its folder
    value: float | None  # the objective
    verdict: str
    objection: str = ""  # void, wrong answers, a missed target

    @property
    def counts(self) -> bool:
        return self.value is not None and self.verdict != "void"


class TuneTrial(msgspec.Struct, frozen=True):
    """A setting that was tried, or discarded before it was started.

    Throughput, p99 TTFT, cost, verdict and run are those of one load: `load` says which.
    """

    setting: Setting
    state: TuneState
    why: str = ""  # it failed or was discarded
    value: float | None = None  # the objective, of a short load
    long_value: float | None = None  # … of a longer one
    repeat_value: float | None = None  # … of the repeat for which it is refused
    objection: str = ""  # why it can't be the best although it was measured
    load: TuneLoad = "short"
    throughput: float | None = None
    throughput_of: str = OUTPUTS[0]  # its metric
    p99_ttft_ms: float | None = None
    cost: float | None = None  # per million output tokens, where the rig has a price
    verdict: str = ""
    run: str = ""  # its folder
    repeats: list[TuneRepeat] = []  # of a setting that was about to be the best

    @property
    def judged(self) -> float | None:
        return self.value if self.long_value is None else self.long_value

    @property
    def shown(self) -> float | None:
        """Return the objective of the load that its other figures are of."""
        return {
            "short": self.value,
            "longer": self.long_value,
            "repeat": self.repeat_value,
        }[self.load]

    @property
    def counted(self) -> list[TuneRepeat]:
        return [repeat for repeat in self.repeats if repeat.counts]

    @property
    def refused_in_repeats(self) -> bool:
        return bool(self.repeats and self.objection)


class TuneGain(msgspec.Struct, frozen=True):
    """The best setting against the default, by interleaved repeats."""

    default: float
    best: float
    repeats: int
    change: float | None  # best ÷ default − 1
    low: float | None = None  # of its 95 % interval
    high: float | None = None
    # the interval is of no use: so many repeats would do; 0: unknown
    enough_repeats: int | None = None


class TuneAnswer(msgspec.Struct, frozen=True):
    study: str
    engine: str
    spec: TuneSpec
    ended: TuneEnd
    default: TuneTrial
    trials: list[TuneTrial]  # without the default
    best: TuneTrial | None  # None: no setting can be it
    duration_s: float
    gain: TuneGain | None = None
    commands: list[str] = []  # the best setting: for dyno, and of the engine itself
    possible: int | None = None  # settings in all; None: a range of numbers with a point
    currency: str = ""
    budget_s: float | None = None  # None: no limit

    @property
    def refused_in_repeats(self) -> list[TuneTrial]:
        return [trial for trial in [self.default, *self.trials] if trial.refused_in_repeats]

    @property
    def unconfirmed(self) -> bool:
        """Return whether the best setting lacks repeats that were asked for: there was no time for them."""
        if self.best is None or self.best.repeats or not self.spec.confirm_repeats:
            return False
        return bool(self.best.setting or self.spec.target or self.refused_in_repeats)

    @property
    def words(self) -> str:
        """Describe the objective: a throughput is one of what the answers are."""
        if self.spec.objective == "throughput":
            return metric(self.default.throughput_of).words
        return self.spec.words

    @property
    def unit(self) -> str:
        return (
            f"{self.words} ({self.currency})"
            if self.spec.objective == "cost"
            else self.words
        )

    def effects(self) -> dict[str, dict[str, tuple[float, int]]]:
        """Return key → value → median objective of the settings with it, and how many those are."""
        out: dict[str, dict[str, list[float]]] = {}
        for trial in self.trials:
            if trial.value is None:
                continue
            for key, value in trial.setting.items():
                out.setdefault(key, {}).setdefault(shown(value), []).append(trial.value)
        effects = {}
        for key, by_value in out.items():
            effects[key] = {
                value: (_median(each), len(each)) for value, each in by_value.items()
            }
        return effects

    def front(self) -> list[TuneTrial]:
        """Return the Pareto front: settings that no other beats in both throughput and p99 TTFT."""
        points: list[tuple[float, float, TuneTrial]] = []
        for trial in [self.default, *self.trials]:
            if trial.throughput and trial.p99_ttft_ms and not trial.objection:
                points.append((trial.throughput, trial.p99_ttft_ms, trial))
        points.sort(key=lambda point: (-point[0], point[1]))
        front: list[tuple[float, float, TuneTrial]] = []
        for point in points:
            if not front or point[1] < front[-1][1]:
                front.append(point)
        return [trial for _, _, trial in front]


def _median(values: list[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return ",".join(f"{name}:{shown(each)}" for name, each in value.items()) or "none"
    return " ".join(map(shown, value)) if isinstance(value, list) else str(value)


def words(setting: Setting) -> str:
    """Describe a setting: 'max_num_seqs=8 --threads=2'."""
    each = (
        f"{key}{'' if key.endswith('=') else '='}{shown(value)}"
        for key, value in setting.items()
    )
    return " ".join(each) or "default"
