"""A row, and what only dyno's own runs have besides: their machine, their prompts, and what was thought of them."""

import msgspec

from dyno.facts.finding import Finding, Verdict
from dyno.facts.imported import Row
from dyno.facts.rig import Rig


class Measured(msgspec.Struct, frozen=True):
    row: Row
    rig: Rig | None = None  # None: not known, or the server is elsewhere
    findings: list[Finding] = []
    verdict: Verdict | None = None  # None: nobody has judged it
    prompts_sha256: str | None = None  # two rows with the same one sent the same prompts
