"""A finding: a doubt, as a value that travels with the number it is about."""

import re
from collections.abc import Collection, Iterable, Sequence
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


# A number that stands alone: not part of a name such as Llama-2-7b or p99.
_NUMBER = re.compile(r"(?<![\w.,-])(\d+(?:,\d{3})*(?:\.\d+)?)(?![\w-]*[A-Za-z]|\d|\.\d)")


def merged(findings: Iterable[Finding], apart: Collection[str] = ()) -> list[Finding]:
    """Join findings that differ only in their numbers: each number becomes a range. Of one code, few are left.

    `apart`: codes whose findings are never joined."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for f in findings:
        words = [f.text] if f.code in apart else _NUMBER.split(f.text)[::2]
        alike.setdefault((f.code, f.level, *words), []).append(f)
    by_code: dict[tuple[str, str], list[Finding]] = {}
    for same in alike.values():
        texts = zip(*(_NUMBER.split(f.text) for f in same), strict=True)
        text = "".join(parts[0] if len(set(parts)) == 1 else _range(parts) for parts in texts)
        by_code.setdefault((same[0].code, same[0].level), []).append(_joined(same, text))
    out = []
    for (code, level), some in by_code.items():
        if code in apart or len(some) <= (1 if level == "note" else 3):
            out += some
        else:
            out.append(_joined(some, f"{some[0].text} {len(some) - 1} similar."))
    return out


def _range(numbers: Iterable[str]) -> str:
    ranked = sorted(numbers, key=lambda text: float(text.replace(",", "")))
    return f"{ranked[0]} to {ranked[-1]}"


def _joined(some: Sequence[Finding], text: str) -> Finding:
    locations = list(dict.fromkeys(location for f in some for location in f.locations))
    return msgspec.structs.replace(some[0], text=text, locations=locations)
