"""What contradicts what in a load and its workload, said once.

A rule names settings by their fields. The command line prints it with flags, a study with keys: see `Mistake.text`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dyno.facts.identity import describe
from dyno.facts.target import CONTROL
from dyno.facts.trial import ONE_ANSWER, several_answers
from dyno.workload.dataset import Dataset
from dyno.workload.datasets import DATASETS
from dyno.workload.spec import OWN_FIELDS

Place = Literal["flags", "keys"]  # where the user gives settings


class GivenSettings(NamedTuple):
    """The settings that the user gave for one trial."""

    # by field; defaults are not among them. None: it has a mistake of its own
    values: Mapping[str, Any]
    dataset: Dataset
    recorded: bool = False  # requests are sent at the times of the data set
    micro: bool = False  # a micro benchmark, whose prompts may be empty

    def has(self, *names: str) -> bool:
        """Return whether one of them was given."""
        return any(name in self.values for name in names)

    def number(self, name: str) -> float | None:
        """Return a setting's number; None also where that is infinite, which means: no limit."""
        value = self.values.get(name)
        return None if value is None or math.isinf(value) else value


class Rule(NamedTuple):
    setting: str  # the one that is wrong, or missing
    broken: Callable[[GivenSettings], Any]
    # follows its name. {field}: the name of a setting; {value}: of this one; {data set}: its name
    text: str
    # settings that are missing: where one of them is misspelled, that is the mistake
    mends: tuple[str, ...] = ()
    only: Place | None = None  # None: for flags and keys alike
    # of a table: the key that is wrong; None: nothing is
    inside: Callable[[Any], str | None] | None = None


class Mistake(NamedTuple):
    """A broken rule."""

    rule: Rule
    given: GivenSettings

    @property
    def inside(self) -> str | None:
        """Return the key of the setting's table that is wrong."""
        return (
            self.rule.inside(self.given.values[self.rule.setting])
            if self.rule.inside
            else None
        )

    def text(self, name: Callable[[str], str]) -> str:
        """Return what is wrong, in words that follow the setting's name. `name`: of a field, to the user."""
        words = _Words(name)
        words["data set"] = self.given.dataset.name
        value: Any = self.given.values.get(self.rule.setting)
        words["value"] = describe(value[self.inside] if self.inside else value)
        return self.rule.text.format_map(words)


class _Words(dict[str, str]):
    """What stands for each placeholder of a rule's text: a setting's name, where nothing else does."""

    def __init__(self, name: Callable[[str], str]) -> None:
        self._name = name

    def __missing__(self, field: str) -> str:
        return self._name(field)


def _excludes(setting: str, other: str) -> Rule:
    def broken(given: GivenSettings) -> bool:
        return given.has(setting) and given.has(other)

    return Rule(setting, broken, f"can't be combined with {{{other}}}. Give one of them.")


def _needs(setting: str, *others: str) -> Rule:
    """Return the rule that a setting needs all of the others."""

    def broken(given: GivenSettings) -> bool:
        return given.has(setting) and not all(given.has(other) for other in others)

    names = " and ".join(f"{{{other}}}" for other in others)
    return Rule(setting, broken, f"needs {names}.", mends=others)


# ---- of a load ----

SCHEDULES = ("rate_schedule", "concurrency_schedule")
LEVELS = ("max_concurrency", "request_rate_rps", "ramp", *SCHEDULES)
_RATES = ("request_rate_rps", "ramp", "rate_schedule")
_TIMED = ", ".join(name for name, dataset in DATASETS.items() if dataset.traits.times)


def _at_recorded_times(setting: str) -> Rule:
    """Return the rule that a setting of a rate has no place where the data set's times hold."""

    def broken(given: GivenSettings) -> bool:
        return given.values.get("arrivals") is not None and given.has(setting)

    return Rule(setting, broken, "can't be combined with {arrivals}. Remove one.")


def _has_no_times(given: GivenSettings) -> bool:
    return given.has("arrivals") and not given.dataset.traits.times


def _has_no_rate(given: GivenSettings) -> bool:
    return given.has("burstiness") and not given.has(*_RATES)


def _ramp(given: GivenSettings) -> tuple[float, float] | None:
    start, end = given.number("ramp_start_rps"), given.number("ramp_end_rps")
    return (
        (start, end)
        if given.has("ramp") and start is not None and end is not None
        else None
    )


def _falls(given: GivenSettings) -> bool:
    ramp = _ramp(given)
    return ramp is not None and (ramp[0] < 0 or ramp[0] > ramp[1] or ramp[1] <= 0)


def _grows_from_nothing(given: GivenSettings) -> bool:
    ramp = _ramp(given)
    return ramp is not None and given.values["ramp"] == "exponential" and ramp[0] == 0


def _has_no_level(given: GivenSettings) -> bool:
    """Return whether nothing sets how many requests there are at once, or in a second."""
    paced = (
        given.recorded
        or given.number("request_rate_rps")
        or given.has("max_concurrency", "ramp", *SCHEDULES)
    )
    return given.has("duration_s") and not paced


def _has_no_waits(given: GivenSettings) -> bool:
    return given.has("speedup") and not (given.recorded or given.dataset.traits.sessions)


LOAD = [
    _excludes("rate_schedule", "request_rate_rps"),
    _excludes("rate_schedule", "ramp"),
    _excludes("concurrency_schedule", "max_concurrency"),
    _excludes("ramp", "request_rate_rps"),
    _excludes("requests_per_stream", "num_prompts")._replace(only="keys"),
    *(_at_recorded_times(setting) for setting in (*_RATES, "burstiness")),
    Rule("arrivals", _has_no_times, f"is for datasets with times: {_TIMED}."),
    # vLLM's command lines have a burstiness also where they have no rate.
    Rule("burstiness", _has_no_rate, "needs {request_rate_rps}.", only="keys"),
    _needs("concurrency_schedule", "duration_s"),
    _needs("requests_per_stream", "max_concurrency")._replace(only="keys"),
    _needs("ramp", "ramp_start_rps", "ramp_end_rps"),
    _needs("ramp_start_rps", "ramp"),
    _needs("ramp_end_rps", "ramp"),
    Rule(
        "ramp",
        _falls,
        "must rise: 0 ≤ {ramp_start_rps} ≤ {ramp_end_rps}, and {ramp_end_rps} > 0.",
    ),
    Rule(
        "ramp_start_rps",
        _grows_from_nothing,
        "must be above 0: an exponential ramp can't start at 0.",
    ),
    Rule(
        "duration_s",
        _has_no_level,
        "needs {max_concurrency}, {request_rate_rps}, {ramp} or a schedule.",
        mends=LEVELS,
    ),
    # A study's load goes with several workloads, of which only some may have times.
    Rule(
        "speedup",
        _has_no_waits,
        "needs recorded times (a trace, and no rate or schedule), or sessions with waits.",
        only="flags",
    ),
]

# ---- of a workload ----

_FILES = ", ".join(name for name, dataset in DATASETS.items() if dataset.traits.file)
_LENGTHS = tuple(
    dict.fromkeys(name for dataset in DATASETS.values() for name in dataset.needs)
)


def _belongs_to(setting: str, names: Sequence[str]) -> Rule:
    """Return the rule that a setting is of these data sets alone."""

    def broken(given: GivenSettings) -> bool:
        return given.has(setting) and given.dataset.name not in names

    return Rule(
        setting,
        broken,
        f"is for {{dataset}} {' or '.join(names)}, but this is {{data set}}.",
    )


def _has_no_file(given: GivenSettings) -> bool:
    return given.dataset.needs_file and not given.has("path")


def _reads_no_file(given: GivenSettings) -> bool:
    return given.has("path") and not given.dataset.traits.file


def _is_needed(setting: str) -> Rule:
    """Return the rule that a data set needs a setting. Flags have vLLM's defaults."""

    def broken(given: GivenSettings) -> bool:
        return setting in given.dataset.needs and not given.has(setting)

    return Rule(
        setting,
        broken,
        "is missing: {data set} prompts need it.",
        mends=(setting,),
        only="keys",
    )


def _is_not_empty(setting: str) -> Rule:
    """Return the rule that a length is at least a token. Flags check that themselves."""

    def broken(given: GivenSettings) -> bool:
        length = given.number(setting)
        return (
            setting in given.dataset.needs
            and not given.micro
            and length is not None
            and length < 1
        )

    text = "must be at least 1, but is {value} (0 is for a micro benchmark only)."
    return Rule(setting, broken, text, only="keys")


def _has_no_end(given: GivenSettings) -> bool:
    count = given.number("num_prompts")
    return count is not None and count < 1 and not given.dataset.traits.ends


def _has_a_depth(given: GivenSettings) -> bool:
    return given.micro and bool(given.values.get("prefix_len"))


WORKLOAD = [
    *(_belongs_to(setting, names) for setting, names in OWN_FIELDS.items()),
    # Where no flag gives it, the data set itself says what its file should have.
    Rule(
        "path",
        _has_no_file,
        "is missing: {data set} is read from a file.",
        mends=("path",),
        only="keys",
    ),
    # A study's workload may have several data sets.
    Rule(
        "path",
        _reads_no_file,
        f"is for a file, but {{data set}} generates its prompts. Use {{dataset}} {_FILES}.",
        only="flags",
    ),
    Rule(
        "num_prompts",
        _has_no_end,
        "must be at least 1, but is {value}: {data set} has no last prompt.",
    ),
    *(_is_needed(setting) for setting in _LENGTHS),
    *(_is_not_empty(setting) for setting in _LENGTHS if setting != "prefix_len"),
    Rule(
        "prefix_len",
        _has_a_depth,
        "is not for a micro test: give the load a depth.",
        only="keys",
    ),
]


# ---- of the other settings of a trial ----


def _not_percent(given: GivenSettings) -> bool:
    return not all(
        0 < percentile < 100 for percentile in given.values.get("percentiles") or ()
    )


def _below_zero(limits: Mapping[str, float]) -> str | None:
    # NaN neither
    return next((name for name, limit in limits.items() if not limit >= 0), None)


def _wrong_inside(setting: str, inside: Callable[[Any], str | None], text: str) -> Rule:
    """Return the rule that a table has no wrong key."""

    def broken(given: GivenSettings) -> bool:
        return inside(given.values.get(setting) or {}) is not None

    return Rule(setting, broken, text, inside=inside)


def _is_one_line(setting: str) -> Rule:
    def broken(given: GivenSettings) -> bool:
        return CONTROL.search(given.values.get(setting) or "") is not None

    return Rule(setting, broken, "contains a control character, such as a line end.")


def _is_relative(given: GivenSettings) -> bool:
    return not (given.values.get("endpoint") or "/").startswith("/")


_SEVERAL = f"asks for several answers to each request ({{value}}), but {ONE_ANSWER}"

TRIAL = [
    Rule("percentiles", _not_percent, "must be between 0 and 100, but are {value}."),
    _wrong_inside("goodput_ms", _below_zero, "must be at least 0 ms, but is {value}."),
    _wrong_inside("sampling", several_answers, _SEVERAL)._replace(only="keys"),
    _wrong_inside("extra_body", several_answers, _SEVERAL),
]

TARGET = [
    _is_one_line("model"),
    _is_one_line("served_name"),
    Rule("endpoint", _is_relative, "must begin with a slash, but is {value}."),
]


def mistakes(
    rules: Sequence[Rule], given: GivenSettings, place: Place
) -> Iterator[Mistake]:
    """Yield the rules that the given settings break."""
    for rule in rules:
        if rule.only in (None, place) and rule.broken(given):
            yield Mistake(rule, given)
