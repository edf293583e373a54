"""A study: a grid of trials from one file, resolved. Which trial is which, and what is to be done with them."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import msgspec

from dyno.facts.elsewhere import DstackSpec, LoadFrom, SshSpec
from dyno.facts.load import LIMITS, Load
from dyno.facts.price import Price
from dyno.facts.rig import HostWanted
from dyno.facts.trial import TrialSpec
from dyno.facts.tune import TuneSpec
from dyno.option import Option

PARTS = ("engine", "workload", "load")  # of a trial
OnFailure = Literal["carry_on", "retry", "stop"]
# engines: each repeat goes round all engines. trials: each engine is started once, its repeats follow one another.
Interleave = Literal["engines", "trials"]


class RigWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine that a study is meant for."""

    accelerator: Annotated[
        str | None,
        Option(
            help="part of its name as `dyno doctor` shows it: MI300X, H100 (default: any)"
        ),
    ] = None
    accelerators: Annotated[
        int | None, Option(help="how many of them (default: any number)")
    ] = None
    architecture: Annotated[
        str | None,
        Option(
            help="AMD: the card's, as gfx942 or gfx1151; it decides which images fit (default: by its name)"
        ),
    ] = None
    price: Annotated[Price | None, Option(help="price of this machine")] = None
    about: Annotated[str | None, Option(help="a sentence for the report")] = None
    host: Annotated[
        HostWanted | None,
        Option(help="settings of the machine; `dyno doctor --for` compares them"),
    ] = None
    before: Annotated[
        list[str], Option(help="shell commands to run before the study's first trial")
    ] = []
    after: Annotated[
        list[str], Option(help="shell commands to run after its last, whatever happened")
    ] = []
    ssh: Annotated[
        SshSpec | None, Option(help="user@host, or a table: run it on that machine")
    ] = None
    dstack: Annotated[DstackSpec | None, Option(help="rent the machine through dstack")] = (
        None
    )
    client: Annotated[
        LoadFrom, Option(help="where the load runs: on the rig, or here over the network")
    ] = "rig"

    @property
    def elsewhere(self) -> bool:
        return self.ssh is not None or self.dstack is not None


class StopRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When to stop a series of rising loads: throughput no longer grows, and latency does."""

    throughput_gain: Annotated[
        float,
        Option(
            help="stop if throughput is less than this share above the best lower level …"
        ),
    ] = 0.03
    latency_growth: Annotated[
        float,
        Option(help="… and the median end-to-end latency grew by more than this share"),
    ] = 0.1


class Place(msgspec.Struct, frozen=True):
    """A trial's place in its study: names from the file, and the settings that vary among its trials."""

    study: str
    id: Annotated[
        str, msgspec.Meta(pattern=r"\A[\w-]{1,80}\Z")
    ]  # of the resolved trial: the same id, the same measurement
    engine: str
    workload: str
    load: str
    # 'engine.tensor_parallel' → 4, 'load.max_concurrency' → 128
    settings: dict[str, Any] = {}
    repeat: int = 1  # from 1
    repeats: int = 1
    rig: str | None = None
    price: Price | None = None
    host: HostWanted | None = None
    sessions: bool = False  # a rate of its load is one of sessions
    by_flags: bool = False  # flags made the study: its name and the engine's are made up

    @property
    def key(self) -> tuple[str, ...]:
        """Return a key that all repeats of a trial share. It is empty where flags made the study."""
        if self.by_flags:
            return ()
        settings = msgspec.json.encode(self.settings, order="sorted").decode()
        return self.study, self.rig or "", self.engine, self.workload, self.load, settings

    def varying(self, part: str) -> dict[str, Any]:
        """Return the settings of one part, by their own names."""
        return {
            k.partition(".")[2]: v
            for k, v in self.settings.items()
            if k.startswith(f"{part}.")
        }

    @property
    def label(self) -> str:
        """Return a label without the repeat: 'vllm tensor_parallel=4, short, closed concurrency 128'."""
        return ", ".join(filter(None, map(self.part_label, (*PARTS, "trial"))))

    def part_label(self, part: str) -> str:
        """Describe one part: 'vllm tensor_parallel=4'."""
        words = [getattr(self, part)] if part in PARTS else []
        words += [
            _describe_key(key, value, self.sessions)
            for key, value in self.varying(part).items()
        ]
        return " ".join(words)


class PlannedTrial(msgspec.Struct, frozen=True):
    place: Place
    trial: TrialSpec
    # the variable that holds the key of a running server: its name, never its value
    api_key_env: str | None = None


class Study(msgspec.Struct, frozen=True):
    name: Annotated[
        str, Option(help="name of the study and its folder (default: the file's)")
    ]
    trials: list[PlannedTrial]
    about: Annotated[str | None, Option(help="a sentence for the report")] = None
    seed: Annotated[
        int, Option("", None, "seed for prompts and the order of trials", least=0)
    ] = 0
    repeats: Annotated[int, Option("", None, "measurements of each trial", least=1)] = 1
    interleave: Annotated[
        Interleave,
        Option(
            help="engines: each repeat visits all engines; trials: each engine starts once"
        ),
    ] = "engines"
    on_failure: Annotated[OnFailure, Option(help="what to do when a trial fails")] = "retry"
    stop: StopRule | None = None
    rigs: dict[str, RigWanted] = {}
    tune: TuneSpec | None = None

    def is_elsewhere(self, planned: "PlannedTrial") -> bool:
        """Return whether a trial runs on another machine."""
        return planned.place.rig is not None and self.rigs[planned.place.rig].elsewhere


def label_matches(label: str, pattern: str) -> bool:
    """Return whether a pattern chooses a trial: it is whole words of the label, or fills the label by its * and ?."""
    if set(pattern) & set("*?"):
        return fnmatchcase(label, pattern)
    return re.search(rf"(?<![^\s,=]){re.escape(pattern)}(?![^\s,=])", label) is not None


def unmatched(pattern: str, labels: Iterable[str], shown: int = 5) -> str:
    """Say which names there are, those that contain the pattern first."""
    names = sorted(dict.fromkeys(labels), key=lambda label: pattern not in label)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return (
        f"No trial is named like {pattern!r}: whole words match, or parts with * and ?. "
        f"There are {', '.join(map(repr, names[:shown]))}{more}."
    )


def _describe_key(key: str, value: Any, sessions: bool) -> str:
    if key not in LIMITS:
        return f"{key}={short(value)}"
    return Load(
        {"session_rate" if sessions and LIMITS[key] == "rate" else LIMITS[key]: value}
    ).words


def short(value: Any) -> str:
    """Return a setting's value as a label shows it: a path by its last part."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "+".join(map(short, value)) or "none"
    if isinstance(value, dict):
        return ",".join(f"{k}:{short(v)}" for k, v in value.items()) or "none"
    return str(value).rstrip("/").rpartition("/")[2]
