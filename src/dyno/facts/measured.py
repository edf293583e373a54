"""A row, and what only dyno's own runs have besides: their machine, their prompts, and what was thought of them."""

import msgspec

from dyno.facts.engine import EngineFacts
from dyno.facts.finding import Finding, Verdict
from dyno.facts.imported import Row
from dyno.facts.rig import Rig
from dyno.facts.study import Place
from dyno.facts.summary import Result


class Measured(msgspec.Struct, frozen=True):
    row: Row
    rig: Rig | None = None  # None: not known, or the server is elsewhere
    findings: list[Finding] = []
    verdict: Verdict | None = None  # None: nobody has judged it
    prompts_sha256: str | None = None  # two rows with the same one sent the same prompts
    place: Place | None = None  # in a study
    result: Result | None = None
    engine: EngineFacts | None = None  # of one that dyno started
    also: list[Row] = []  # the same result, told elsewhere
    why_not: str = ""  # the trial has no result, and the row no figures: why
