"""A load: when the requests of a workload are sent (LoadSpec). And the load of any result, whoever measured it (Load):
how much it asks for, how it reads, and when two are the same."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from dyno.facts import schedule
from dyno.facts.schedule import Schedule
from dyno.facts.setting import name_of
from dyno.numbers import count, setting
from dyno.option import Option, fields
from dyno.workload.spec import WorkloadSpec

Scalar = str | int | float | bool  # value of a setting


class LoadSpec(msgspec.Struct, frozen=True):
    # None: no rate; each is sent as soon as a slot is free.
    request_rate_rps: Annotated[
        float | None,
        Option(
            "--request-rate",
            "RPS",
            "requests (or sessions) per second; inf: no rate (default: inf)",
            above=0,
            most=1e7,
            unlimited=True,
            note=" (or inf, for no rate)",
            setting="rate",
        ),
    ] = None
    burstiness: Annotated[  # None: constant gaps
        float | None,
        Option(
            "--burstiness",
            "B",
            "how irregular a rate is: 1 Poisson, other values gamma, inf constant gaps",
            above=0,
            note=" (inf: constant gaps)",
            setting="burstiness",
        ),
    ] = 1.0
    max_concurrency: Annotated[
        int | None,
        Option(
            "--max-concurrency",
            "N",
            "most requests in flight at once, or users with a session each (default: no limit)",
            least=1,
            most=10_000_000,
            setting="concurrency",
        ),
    ] = None
    ramp: Annotated[
        Literal["linear", "exponential"] | None,
        Option(
            "--ramp-up-strategy",
            help="raise the rate during the run (default: constant rate)",
        ),
    ] = None
    ramp_start_rps: Annotated[
        float | None, Option("--ramp-up-start-rps", "RPS", "first rate of a ramp", most=1e7)
    ] = None
    ramp_end_rps: Annotated[
        float | None,
        Option("--ramp-up-end-rps", "RPS", "last rate of a ramp", above=0, most=1e7),
    ] = None
    rate_schedule: Annotated[
        str | None,
        Option(
            "--rate-schedule",
            "TEXT",
            f"a rate that changes over time: {schedule.GRAMMAR} (default: none)",
            grammar=schedule.problem,
        ),
    ] = None
    concurrency_schedule: Annotated[
        str | None,
        Option(
            "--concurrency-schedule",
            "TEXT",
            "a concurrency that changes over time, in the same words; needs --duration (default: none)",
            grammar=schedule.slots_problem,
        ),
    ] = None
    arrivals: Annotated[
        Literal["recorded"] | None,
        Option(
            help="recorded: sessions begin at the times of the file, divided by speedup",
            setting="speedup",
            added="--self-timed",
        ),
    ] = None
    speedup: Annotated[
        float,
        Option(
            "--speedup",
            "X",
            "replay recorded times, and waits between requests, X times as fast",
            above=0,
            most=1e6,
            setting="speedup",
        ),
    ] = 1.0
    cancel_rate: Annotated[
        float,
        Option(
            "--cancel-rate",
            "R",
            "share of requests that the client cancels",
            least=0,
            most=1,
        ),
    ] = 0.0
    cancel_after_s: Annotated[
        float,
        Option(
            "--cancel-after",
            "S",
            "time from sending to cancelling, at most; drawn evenly",
            above=0,
            most=1e8,
        ),
    ] = 1.0
    duration_s: Annotated[
        float | None,
        Option(
            "--duration",
            "S",
            "send for S seconds, then let open requests finish (default: until all prompts are sent)",
            above=0,
            most=1e8,
            note=" seconds",
        ),
    ] = None
    probe_rate_rps: Annotated[
        float,
        Option(
            "--probe-request-rate",
            "RPS",
            "also send requests of one token at this rate, beside the load and in none of its figures",
            least=0,
            most=1000,
        ),
    ] = 0.0
    request_timeout_s: Annotated[
        float,
        Option(
            "--request-timeout-sec",
            "S",
            "fail requests that take longer",
            above=0,
            most=1e8,
            identity=False,
        ),
    ] = 6 * 3600
    response_bytes_max: Annotated[
        int | None,
        Option(
            "--max-response-bytes",
            "N",
            "fail longer answers (default: 1 MiB plus 8 KiB per requested output token)",
            least=1,
            identity=False,
        ),
    ] = None
    seed: Annotated[int, Option(identity=False)] = 0

    @property
    def closed_loop(self) -> bool:
        return not (
            self.request_rate_rps or self.ramp or self.rate_schedule or self.arrivals
        )

    @property
    def rates(self) -> Schedule | None:
        return Schedule.parse(self.rate_schedule) if self.rate_schedule else None

    @property
    def slots(self) -> Schedule | None:
        return (
            Schedule.parse(self.concurrency_schedule) if self.concurrency_schedule else None
        )

    @property
    def level(self) -> tuple[float, float]:
        """Return how much load there is: by rate (or speedup), then by concurrency. No limit is the most."""
        rate = self.request_rate_rps or self.ramp_end_rps
        if self.arrivals:
            rate = self.speedup
        elif not rate and self.rates:
            rate = self.rates.peak
        concurrency: float | None = self.max_concurrency
        if not concurrency and self.slots:
            concurrency = self.slots.peak
        return rate or math.inf, concurrency or math.inf

    def without_level(self) -> "LoadSpec":
        """Return what is the same for all loads that differ only in their level."""
        return msgspec.structs.replace(
            self,
            request_rate_rps=None,
            ramp_start_rps=None,
            ramp_end_rps=None,
            max_concurrency=None,
            speedup=1.0,
            seed=0,
        )

    @property
    def words(self) -> str:
        limits = {name: getattr(self, field) for field, name in LIMITS.items()}
        limits["rate"] = limits["rate"] or self.ramp_end_rps
        limits["speedup"] = self.speedup if self.arrivals else None
        parts = [
            Load({name: value for name, value in limits.items() if value}).words
            + (" (ramp)" if self.ramp else "")
        ]
        for axis, changing in (("concurrency", self.slots), ("rate", self.rates)):
            if changing:
                parts.append(
                    f"{_describe_setting(axis, changing.words)} ({changing.shape})"
                )
        return ", ".join(filter(None, parts)) or "all at once"

    @property
    def slug(self) -> str:
        """Return a part of a folder's name: r60c3; x2c3 for recorded times at 2× speed."""
        name = ""
        if self.arrivals:
            name = f"x{self.speedup:g}"
        elif self.request_rate_rps:
            name = f"r{self.request_rate_rps:g}"
        elif self.ramp:
            name = "ramp"
        if self.max_concurrency:
            name += f"c{self.max_concurrency}"
        for letter, changing in (("r", self.rates), ("c", self.slots)):
            if changing:
                name += f"{letter}{changing.low:g}-{changing.peak:g}{changing.shape}"
        return name or "all"


# ---- the load of a result: its settings by their names ----


class Key(msgspec.Struct, frozen=True):
    """How a setting of the load reads."""

    words: str = ""  # in a sentence; '': name and value
    title: str = ""  # of a column; '': the name
    unit: str = ""  # of a column
    axis: str = ""  # title of a chart's axis
    against: str = ""  # in a chart's title: 'Throughput against …'


# In the order of words. Below `test`: of micro tests, and of tasks that measure quality.
KEYS = {
    "concurrency": Key("concurrency {}", axis="Concurrency (requests in flight)", against="concurrency"),
    "rate": Key("{} requests/s", "offered", "req/s", "Offered rate (requests/s)", "offered rate"),
    "session_rate": Key("{} sessions/s", "offered", "sessions/s", "Offered rate (sessions/s)", "offered session rate"),
    "speedup": Key("recorded times at {}× speed", axis="Speed of the recorded times (×)", against="replay speed"),
    "--concurrency-schedule": Key("concurrency {}", title="concurrency over time"),
    "--rate-schedule": Key("requests/s {}", title="rate over time"),
    "batch_size": Key("batch size {}", title="batch size", axis="Batch size (requests)", against="batch size"),
    "num_prompts": Key("{} requests", title="requests"),
    "requests": Key("{} requests", axis="Requests sent", against="number of requests"),
    "dataset": Key("{}"),
    "input_len": Key("{} in", title="input", unit="tokens"),
    "context": Key("about {} in", axis="Context (tokens)", against="context length"),
    "output_len": Key("{} out", title="output", unit="tokens"),
    "test": Key("{}"),
    "depth": Key("@ d{}"),
    "task": Key("{}"),
    "metric": Key("{}"),
    "filter": Key("{}"),
    "n_shot": Key("{}-shot", title="shots"),
    "limit": Key(),
    "--random-range-ratio": Key(),
    "random_range_ratio": Key(),
}  # fmt: skip
_ORDER = {name: i for i, name in enumerate(KEYS)}
# fields of LoadSpec
LIMITS = {"max_concurrency": "concurrency", "request_rate_rps": "rate"}
LEVELS = (
    "concurrency",
    "rate",
    "session_rate",
    "speedup",
    "batch_size",
)  # what a sweep raises, in this order of preference
RATES = ("rate", "session_rate")
# settings by which the load fixes the throughput, whatever the server could do
PACING = (*RATES, "speedup", "--rate-schedule")
# a load that changes has no level
SCHEDULES = ("--concurrency-schedule", "--rate-schedule")
# How much was asked at once. requests: how many were sent, where nothing else is known of the load.
LOADS = (*LEVELS, "requests")
# What a chart may have on its horizontal axis. context: tokens of a prompt, and what is in the context before it.
AXES = (*LEVELS, "context", "requests")
COUNTED = "num_prompts"  # the load where nothing paces requests, else only how long it took
LENGTHS = ("input_len", "output_len")
# As a result's settings name them. A limit of items is not another load: the items of both sides are compared.
LOAD = tuple(name for name in KEYS if name not in ("requests", "context", "limit"))
# A run of dyno's own has these or they were not set. Other tools' files seldom have them: they can conflict, no more.
SELDOM = tuple(
    dict.fromkeys(
        name
        for spec in (WorkloadSpec, LoadSpec)
        for field in fields(spec).values()
        if field.option.identity
        and field.option.subject
        and (name := name_of(field)) not in LOAD
    )
)
# by an axis
_SHOWN_BY = {"context": ("context", "input_len", "depth"), "requests": (COUNTED,)}
# How far mean lengths of prompts may lie apart, as shares:
ONE_WORKLOAD = 0.05  # of rows without a workload, to be taken for one
ONE_TEXT = 0.25  # two tokenizers count the same text by less differently
COMPARABLE = 0.15  # under one load, so that the work is compared


class Load(msgspec.Struct, frozen=True, eq=False):
    """The workload and load of a result, as far as it is known. Two with the same settings are equal."""

    settings: Mapping[str, Scalar] = {}
    # of another tool's result, settings that its like seldom have
    seldom: Mapping[str, Scalar] = {}
    tool: str = ""  # each has its own word for made-up text
    complete: bool = False  # a setting that isn't here was not set
    unlimited: bool = False  # it says that there was no rate
    input_tokens: float | None = None  # mean of the requests, as measured
    output_tokens: float | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Load) and self.settings == other.settings

    def __ne__(self, other: object) -> bool:
        return not self == other  # msgspec's own would compare all fields

    def __hash__(self) -> int:
        return hash(frozenset(self.settings.items()))

    def __bool__(self) -> bool:
        return bool(self.settings)

    def get(self, name: str) -> Scalar | None:
        return self.settings.get(name)

    def number(self, name: str) -> float | None:
        value = self.get(name)
        return (
            float(value)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else None
        )

    def without(self, *names: str) -> "Load":
        return Load(
            {name: value for name, value in self.settings.items() if name not in names}
        )

    def only(self, names: Iterable[str]) -> "Load":
        wanted = set(names)
        return Load(
            {name: value for name, value in self.settings.items() if name in wanted}
        )

    # ---- how much ----

    @property
    def paced(self) -> bool:
        return any(name in self.settings for name in (*LEVELS, *SCHEDULES))

    @property
    def level(self) -> tuple[str, float] | None:
        """Return how much load there is, by what a sweep raises: ('concurrency', 8)."""
        return next(
            ((axis, value) for axis, value in self.axes.items() if axis in LOADS), None
        )

    @property
    def axes(self) -> dict[str, float]:
        """Return the AXES that it has."""
        axes = {name: self.number(name) for name in LEVELS}
        prompt, prefix = self.number("input_len"), self.number("--random-prefix-len") or 0.0
        if "test" in self.settings:
            axes["context"] = self.number("depth") or 0.0
        else:
            axes["context"] = self.number("context") if prompt is None else prompt + prefix
            axes["requests"] = None if self.paced else self.number(COUNTED)
        return {name: value for name, value in axes.items() if value is not None}

    @property
    def workload(self) -> "Load":
        """Return the load without its level."""
        return self.beside(self.level[0] if self.level else "")

    def beside(self, axis: str) -> "Load":
        """Return the load without what an axis shows: results that agree in this may be joined by a line."""
        return self.without(
            *_SHOWN_BY.get(axis, (axis,)), *([COUNTED] if self.paced else [])
        )

    @property
    def rank(self) -> tuple[object, ...]:
        """Return a sort key: by workload, then by level."""
        rest = [
            (k, str(v)) for k, v in self.settings.items() if k not in AXES and k != COUNTED
        ]
        return rest, [self.axes.get(name, math.inf) for name in AXES]

    # ---- in words ----

    @property
    def words(self) -> str:
        """Describe the load without what goes without saying: 'concurrency 8, 512 in, 128 out'."""
        silent = [COUNTED] if self.paced else []
        if "input_len" in self.settings and self.get("dataset") == "random":
            silent.append("dataset")
        ordered = sorted(self.settings, key=lambda name: _ORDER.get(name, len(_ORDER)))
        return ", ".join(
            _describe_setting(n, self.settings[n]) for n in ordered if n not in silent
        ).replace(", @", " @")

    @property
    def level_words(self) -> str:
        """Describe the level: 'concurrency 8'; '' where there is none."""
        return span(self.level[0], [self.level[1]]) if self.level else ""

    # ---- the same ----

    @property
    def compared(self) -> "Load":
        """Return what two loads must agree in."""
        return Load(
            {**self.without(*([COUNTED] if self.paced else [])).settings, **self.seldom}
        )

    def both(self, other: "Load") -> "Load":
        """Return all that is known of two loads that are compared."""
        return Load({**self.compared.settings, **other.compared.settings})

    def same(self, other: "Load") -> bool:
        return not any(self.conflicts(other))

    def conflicts(
        self, other: "Load"
    ) -> Iterator[tuple[str, Scalar | None, Scalar | None]]:
        """Yield the settings in which they differ. An unknown one conflicts with nothing."""
        sure = self.complete and other.complete
        one, two = self.compared.settings, other.compared.settings
        for name in dict.fromkeys((*one, *two)):
            x, y = self._known(name, one), other._known(name, two)
            unknown = not sure and None in (x, y)
            own_words = name == "dataset" and self.tool != other.tool
            if x != y and not unknown and not own_words:
                yield name, x, y
        if not sure and not ("input_len" in one and "input_len" in two):
            yield from self._prompt_conflict(other)

    def _prompt_conflict(self, other: "Load") -> Iterator[tuple[str, Scalar, Scalar]]:
        """Yield the lengths of prompts as measured, where they are too far apart for one text."""
        read, other_read = self.input_tokens, other.input_tokens
        if (
            read
            and other_read
            and not near(max(read, other_read), min(read, other_read), ONE_TEXT)
        ):
            yield "tokens of a prompt", read, other_read

    def _known(self, name: str, compared: Mapping[str, Scalar]) -> Scalar | None:
        """Return a compared setting; an unlimited rate is a known one."""
        value = compared.get(name)
        if name == "rate" and not value:
            return "inf" if self.unlimited else None
        return value

    @property
    def lengths_unknown(self) -> bool:
        """Return whether prompts of other lengths are another load, and not a mistake."""
        return not self.settings.keys() & {"dataset", "input_len"}

    def same_prompts(self, other: "Load") -> bool:
        """Compare prompts by their lengths. Answers that all have one length, and another one, were asked for so."""
        x, y = self.input_tokens, other.input_tokens
        if x is None or y is None:
            return x is None and y is None
        if not near(min(x, y), max(x, y), COMPARABLE):
            return False
        out_x, out_y = self.output_tokens, other.output_tokens
        if out_x is None or out_y is None or out_x == out_y:
            return True
        return not (out_x.is_integer() and out_y.is_integer())


def span(axis: str, levels: Iterable[float]) -> str:
    """Describe levels: 'concurrency 1 to 64'; '' where there are none."""
    each = [count(level) for level in sorted(set(levels))]
    if not each:
        return ""
    return _describe_setting(
        axis, each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}"
    )


def _describe_setting(name: str, value: Scalar) -> str:
    text = setting(value) if isinstance(value, str | bool) else count(value)
    if name == "depth":  # as llama-bench writes it
        text = text.replace(",", "")
    if name.endswith("-path"):
        text = text.rstrip("/").rpartition("/")[2]
    template = (
        KEYS.get(name, Key()).words
        or f"{name.strip('-').replace('_', ' ').replace('-', ' ')} {{}}"
    )
    return re.sub(r"^1 requests\b", "1 request", template.format(text))


def plain(value: Scalar | None) -> Scalar | None:
    """Normalize a value: 8, 8.0 and '8' are one; no rate is written inf by some."""
    if value is None or isinstance(value, bool):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    if number == math.inf:
        return None
    return int(number) if number.is_integer() else number


def near(length: float, other: float, share: float) -> bool:
    """Return whether two mean lengths of prompts are of one load. `share`: of the other."""
    return abs(length - other) <= share * other
