"""What a person decides by before a study runs: trials, commands, what is missing where, disk, time, cost, problems.

The text of `dyno run --dry-run` and its JSON are printed from this alone.
"""

from typing import Literal

import msgspec

# measured: by earlier runs, fetches or installations on this machine. assumed: by a rule that METHOD.md states.
Basis = Literal["measured", "assumed", "unknown"]
# looked: this machine. asked: over SSH. described: by the study alone, so everything is missing there.
KnownBy = Literal["looked", "asked", "described"]
PhaseName = Literal[
    "fetch", "convert", "quantize", "install", "start", "load", "search", "quality"
]


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """A thing that a machine lacks."""

    what: str  # data set, tool, model, engine, image
    name: str
    how: str  # pull …, quantize …, install
    size_bytes: int | None = None
    about: bool = False  # the size is an estimate
    unknown: str = ""  # why the size isn't known
    gated: bool = False  # its owner grants access
    refused: str = ""  # why it can't be provided


class DiskNeed(msgspec.Struct, frozen=True):
    folder: str
    needed_bytes: int  # of known sizes
    unknown: int  # things of unknown size
    free_bytes: int | None  # None: the machine was not looked at

    @property
    def short(self) -> bool:
        return self.free_bytes is not None and self.needed_bytes > self.free_bytes


class Phase(msgspec.Struct, frozen=True):
    name: PhaseName
    seconds: float | None
    basis: Basis
    about: str  # how it was calculated, or why it isn't known


class RigCost(msgspec.Struct, frozen=True, kw_only=True):
    """The known time by the price of an hour."""

    amount: float | None = None
    currency: str = ""
    hour: float | None = None
    about: str  # the price and its source, or how to give one


class RigNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of the study."""

    rig: str | None  # None: the study names none
    machine: str  # in words
    known_by: KnownBy
    note: str = ""  # why it was not asked
    advice: str = ""  # how to run its trials, where this machine isn't it
    missing: list[Needed] = []
    disks: list[DiskNeed] = []
    phases: list[Phase] = []
    seconds: float = 0.0  # of the phases whose time is known
    cost: RigCost


class TrialLine(msgspec.Struct, frozen=True):
    """Equal trials: they differ in the repeat alone."""

    label: str
    asked: str  # the load in words
    repeats: int
    seconds: float  # of each
    basis: Basis


class SessionLine(msgspec.Struct, frozen=True):
    """Starts of one engine setting, and the trials that they share."""

    rig: str | None
    name: str
    starts: int
    trials: list[TrialLine]


class CommandBlock(msgspec.Struct, frozen=True):
    title: str
    lines: list[str]


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    study: str
    trials: int
    starts: int  # of engines
    done: int  # trials that an earlier run of this study has measured
    folder: str  # where; '': nowhere
    sessions: list[SessionLine]
    commands: list[CommandBlock]
    rigs: list[RigNeeds]
    token: bool  # for gated models: HF_TOKEN, or huggingface_hub's own file
    seconds: float  # of all phases whose time is known, one rig after the other
    unknown_phases: list[str]
    cost: dict[str, float]  # by currency, of the rigs with a price
    problems: list[str]
