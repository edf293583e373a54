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


class Basis(msgspec.Struct, frozen=True):
    """What a verdict rests on: 'sound' alone says that everything was read and every check had its inputs."""

    read: str = ""  # '12 of 14 tables, 9 of 16 columns'
    complete: bool = True  # everything with numbers was read
    unchecked: list[str] = []  # inputs that checks lacked, in plain words

    @property
    def whole(self) -> bool:
        return self.complete and not self.unchecked

    def word(self, verdict: Verdict) -> str:
        return (
            "sound as far as checked" if verdict == "sound" and not self.whole else verdict
        )

    def limits(self) -> str:
        """Return 'checked: 12 of 14 tables; not checked: token counts'; '' if there is no limit."""
        if self.whole:
            return ""
        checked = [f"checked: {self.read}"] if self.read else []
        missing = [f"not checked: {', '.join(self.unchecked)}"] if self.unchecked else []
        return "; ".join(checked + missing)

    def describe(self, verdict: Verdict) -> str:
        """Return 'sound as far as checked: 12 of 14 tables; not checked: token counts'."""
        limits = self.limits()
        if not limits:
            return verdict
        if verdict == "sound" and self.read:
            return f"sound as far as {limits}"
        return f"{self.word(verdict)}; {limits}"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: -_RANK[f.level])


# A number by itself: not part of a name such as Llama-2-7b or p99, nor of a place in a file.
_NUMBER = re.compile(
    r"(?<![\w.,:/-])([+-]?\d+(?:,\d{3})*(?:\.\d+)?)(?![\w-]*[A-Za-z]|\d|[.,]\d)"
)
_RANGE = re.compile(r"\d (?:to|→) [+-]?\d")
_RANGES = 4  # numbers that may differ: a sentence with more ranges is hard to read


def merged(findings: Iterable[Finding], separate: Collection[str] = ()) -> list[Finding]:
    """Join findings of one code that differ only in their numbers into one with ranges and all places.

    Of those that remain, a code has three at most, and one note. `separate`: codes whose findings are never joined.
    """
    by_code: dict[tuple[str, str], dict[tuple[str, ...], list[Finding]]] = {}
    for f in findings:
        words = [f.text] if f.code in separate else _NUMBER.split(f.text)[::2]
        by_code.setdefault((f.code, f.level), {}).setdefault(tuple(words), []).append(f)
    out: list[Finding] = []
    for (code, level), alike in by_code.items():
        if code in separate or len(alike) <= (1 if level == "note" else 3):
            out += [
                _joined(same, _ranged([f.text for f in same])) for same in alike.values()
            ]
        else:
            every = [f for same in alike.values() for f in same]
            out.append(_joined(every, _similar(every[0].text, len(every))))
    return out


def _ranged(texts: Sequence[str]) -> str:
    """Return 'p99 of 64 to 300 requests is an estimate (9 results).'"""
    parts = list(zip(*(_NUMBER.split(text) for text in texts), strict=True))
    differing = sum(len(set(part)) > 1 for part in parts)
    if not differing:
        return texts[0]
    if differing > _RANGES or _RANGE.search(texts[0]):
        return _similar(texts[0], len(texts))
    text = "".join(part[0] if len(set(part)) == 1 else _range(part) for part in parts)
    return f"{text.removesuffix('.')} ({len(texts):,} results)."


def _similar(text: str, count: int) -> str:
    return f"{text.removesuffix('.')} (and {count - 1:,} similar result{'s' if count > 2 else ''})."


def _range(numbers: Iterable[str]) -> str:
    ranked = sorted(numbers, key=lambda text: float(text.replace(",", "")))
    return f"{ranked[0]} to {ranked[-1]}"


def _joined(some: Sequence[Finding], text: str) -> Finding:
    locations = list(dict.fromkeys(location for f in some for location in f.locations))
    return msgspec.structs.replace(some[0], text=text, locations=locations)
