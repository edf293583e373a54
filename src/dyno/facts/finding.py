"""A finding: a doubt, as a value that travels with the number it is about."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Level = Literal["note", "doubt", "void"]
Verdict = Literal["sound", "doubtful", "void"]

_RANK: dict[Level, int] = {"note": 0, "doubt": 1, "void": 2}
_VERDICT: tuple[Verdict, ...] = ("sound", "doubtful", "void")


class Finding(msgspec.Struct, frozen=True):
    code: str  # stable, dotted: family.name
    level: Level
    text: str  # one sentence with the numbers
    advice: str = ""  # what to do about it; '' until `checks` fills in the usual one
    locations: list[str] = msgspec.field(
        default_factory=list, name="at"
    )  # file:line of what it rests on, in other tools' results


def note(code: str, text: str, advice: str = "", locations: Sequence[str] = ()) -> Finding:
    return Finding(code, "note", text, advice, list(locations))


def doubt(code: str, text: str, advice: str = "", locations: Sequence[str] = ()) -> Finding:
    return Finding(code, "doubt", text, advice, list(locations))


def void(code: str, text: str, advice: str = "", locations: Sequence[str] = ()) -> Finding:
    return Finding(code, "void", text, advice, list(locations))


def verdict(findings: Iterable[Finding]) -> Verdict:
    return _VERDICT[max((_RANK[f.level] for f in findings), default=0)]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: -_RANK[f.level])
