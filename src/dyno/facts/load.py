"""A load: when the requests of a workload are sent. And of any result: which of its settings are the load, how they are
put into words, and when two loads are the same."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from dyno.numbers import count, setting
from dyno.option import Option

Scalar = str | int | float | bool  # value of a setting


class LoadSpec(msgspec.Struct, frozen=True):
    # None: no rate; each is sent as soon as a slot is free.
    request_rate_rps: Annotated[
        float | None,
        Option("--request-rate", "RPS", "default: inf, no rate", above=0, most=1e7, unlimited=True,
               note=" (or inf, for no rate)"),
    ] = None  # fmt: skip
    burstiness: Annotated[  # None: constant gaps
        float | None,
        Option("--burstiness", "B", "1: Poisson; other: gamma; inf: constant gaps", above=0,
               note=" (inf: constant gaps)"),
    ] = 1.0  # fmt: skip
    max_concurrency: Annotated[
        int | None, Option("--max-concurrency", "N", "requests in flight at most", least=1, most=10_000_000)
    ] = None
    ramp: Annotated[Literal["linear", "exponential"] | None, Option("--ramp-up-strategy")] = None
    ramp_start_rps: Annotated[float | None, Option("--ramp-up-start-rps", "RPS", most=1e7)] = None
    ramp_end_rps: Annotated[float | None, Option("--ramp-up-end-rps", "RPS", above=0, most=1e7)] = None
    duration_s: Annotated[
        float | None,
        Option("--duration", "S", "send for so long; what is in flight is finished", above=0, most=1e8,
               note=" seconds"),
    ] = None  # fmt: skip
    request_timeout_s: Annotated[
        float, Option("--request-timeout-sec", "S", "default: 6 hours", above=0, most=1e8)
    ] = 6 * 3600  # fmt: skip
    response_bytes_max: Annotated[
        int | None,
        Option("--max-response-bytes", "N",
               "a longer answer fails (default: 1 MiB, and 8 KiB for each output token asked for)", least=1),
    ] = None  # fmt: skip
    seed: int = 0

    @property
    def closed_loop(self) -> bool:
        return self.request_rate_rps is None and self.ramp is None

    @property
    def level(self) -> tuple[float, float]:
        """How much load: by rate, then by concurrency. No limit is the most."""
        return self.request_rate_rps or self.ramp_end_rps or math.inf, self.max_concurrency or math.inf

    def without_level(self) -> "LoadSpec":
        """The same for all loads that differ by how much they ask for alone."""
        return msgspec.structs.replace(
            self, request_rate_rps=None, ramp_start_rps=None, ramp_end_rps=None, max_concurrency=None, seed=0
        )

    def words(self, rate: str, cap: str, neither: str, ramp: str = "ramp") -> str:
        """In words. `rate` and `cap` are templates of its two limits."""
        offered = rate.format(self.request_rate_rps) if self.request_rate_rps else ramp if self.ramp else ""
        return offered + (cap.format(self.max_concurrency) if self.max_concurrency else "") or neither

    @property
    def slug(self) -> str:
        """For the name of a folder: r60c3."""
        return self.words("r{:g}", "c{}", "all")


# ---- the load of a row, whoever measured it: settings by their names ----

Load = Mapping[str, Scalar]


class Key(msgspec.Struct, frozen=True):
    """How a setting of the load is put into words."""

    words: str = ""  # in a sentence; '': whole() alone names it
    compared: str = ""  # above a comparison; '': the name and the value
    levels: str = ""  # of several levels; '': as in a sentence
    title: str = ""  # of a column; '': the name
    unit: str = ""  # of a column
    axis: str = ""  # title of a chart's axis
    against: str = ""  # in a chart's title: 'Throughput against …'


# Below `test`: of micro tests, and of tasks that measure quality.
KEYS = {
    "concurrency": Key("concurrency {}", "{} streams", axis="Concurrency (requests in flight)", against="concurrency"),
    "rate": Key("{} requests/s", "{} requests/s offered", "{} requests/s offered", "offered", "req/s",
                "Offered rate (requests/s)", "offered rate"),
    "batch_size": Key("batch size {}", title="batch size", axis="Batch size (requests)", against="batch size"),
    "num_prompts": Key("{} prompts", "{} requests at once", title="prompts"),
    "completed": Key("{} requests"),
    "requests": Key("{} requests", axis="Requests sent", against="number of requests"),
    "input_len": Key("{} in", "{} in", title="input", unit="tokens"),
    "context": Key("about {} in", axis="Context (tokens)", against="context length"),
    "output_len": Key("{} out", "{} out", title="output", unit="tokens"),
    "dataset": Key(compared="{}"),
    "test": Key("{}", "{}"),
    "depth": Key("@ d{}"),
    "task": Key("{}"),
    "metric": Key("{}"),
    "filter": Key("{}"),
    "n_shot": Key("{}-shot", title="shots"),
}  # fmt: skip
_OTHER = Key()
LEVELS = ("concurrency", "rate", "batch_size")  # what a sweep raises, in this order of preference
# How much was asked at once. requests: how many were sent, where nothing else is known of the load.
LOADS = (*LEVELS, "requests")
# What a chart may have on its horizontal axis. context: tokens of a prompt, and what is in the context before it.
AXES = (*LEVELS, "context", "requests")
COUNTED = ("num_prompts", "completed")  # the load where nothing paces requests, else only how long it took
LENGTHS = ("input_len", "output_len")
_TESTS = ("test", "depth", "task", "metric", "filter", "n_shot", "limit")
_ARRIVALS = ("burstiness", "--ramp-up-strategy", "--ramp-up-start-rps", "--ramp-up-end-rps")
# Load and workload, in the order of words.
LOAD = (*LEVELS, "num_prompts", *LENGTHS, "dataset", *_TESTS, "--random-range-ratio", "random_range_ratio")
# Of a run of dyno's own also these, which other tools' files seldom tell alike.
OWN = ("--random-prefix-len", "--dataset-path", *_ARRIVALS)
# Rows that differ in one of these are not compared, and the order of words above a comparison.
COMPARED = ("concurrency", "rate", "dataset", *LENGTHS, "batch_size", *_TESTS, "--random-prefix-len",
            "--random-range-ratio", "--dataset-path", "--duration", *_ARRIVALS)  # fmt: skip
# How far mean lengths of prompts may lie apart, as shares:
ONE_WORKLOAD = 0.05  # of rows that tell no workload, to be held for one
ONE_TEXT = 0.25  # two tokenizers count the same text by less differently
COMPARABLE = 0.15  # under one load, so that the work is compared


def words(load: Iterable[tuple[str, Scalar]]) -> str:
    """A load in a sentence: 'concurrency 8, 512 in, 128 out'."""
    parts = [KEYS[name].words.format(_value(value)) for name, value in load if name in KEYS]
    parts = [re.sub(r"^1 (prompt|request)s$", r"1 \1", part) for part in parts if part]
    return ", ".join(parts).replace(", @", " @")


def whole(load: Load) -> str:
    """All of a load, its dataset first: two that differ read differently."""
    named = {k: v for k, v in load.items() if k != "dataset"}
    rest = [f"{k.strip('-').replace('_', ' ').replace('-', ' ')} {v}" for k, v in named.items() if not words([(k, v)])]
    return ", ".join(filter(None, [str(load.get("dataset", "")), words(named.items()), *rest]))


def compared_words(load: Load) -> str:
    """Above a comparison: '8 streams, random, 512 in, 128 out'."""
    return ", ".join(_compared(name, _value(value)) for name, value in load.items()) or "no load told"


def _compared(name: str, value: str) -> str:
    if name == "concurrency" and value == "1":
        return "1 stream"
    template = KEYS.get(name, _OTHER).compared or f"{name.removeprefix('--').replace('_', ' ')} {{}}"
    return template.format(value)


def levels_words(axis: str, values: Iterable[float]) -> str:
    """'concurrency 1 to 64'; '' where there are none."""
    each = sorted(set(values))
    if not each:
        return ""
    span = count(each[0]) if len(each) == 1 else f"{count(each[0])} to {count(each[-1])}"
    return (KEYS[axis].levels or KEYS[axis].words).format(span)


def _value(value: Scalar) -> str:
    return setting(value) if isinstance(value, str | bool) else count(value)


def plain(value: Scalar | None) -> Scalar | None:
    """8, 8.0 and '8' are one; no rate is written inf by some."""
    if value is None or isinstance(value, bool):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return None if number == math.inf else number


def near(length: float, other: float, share: float) -> bool:
    """Whether two mean lengths of prompts are of one load. `share`: of the other."""
    return abs(length - other) <= share * other


def identity(load: Load) -> tuple[tuple[str, str], ...]:
    """Equal for two loads with the same settings, in any order."""
    return tuple(sorted((name, str(value)) for name, value in load.items()))


def rank(load: Load, axes: Mapping[str, float]) -> tuple[object, ...]:
    """A sort key: by workload, then by level."""
    rest = [(k, str(v)) for k, v in load.items() if k not in AXES and k not in COUNTED]
    return rest, [axes.get(name, math.inf) for name in AXES]
