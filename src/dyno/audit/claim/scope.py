"""Under which load a claim is made: 'at QPS 16 and 32', 'below batch size 64', 'for all batch sizes, except 2'."""

import math
import re
from typing import NamedTuple

from dyno.facts.imported import Row

_NUMBER = r"\d{1,3}(?:,\d{3}){1,3}|\d{1,7}"
_LIST = rf"(?P<list>(?:{_NUMBER})(?:(?:\s?,\s?(?:and |or )?|\s?/\s?|\s?(?:and|or|&)\s)(?:{_NUMBER})){{0,12}})"
_RANGE = rf"(?P<low>{_NUMBER})\s?(?:to|-|–|and)\s?(?P<high>{_NUMBER})"
_BELOW = r"below|under|less than|smaller than|lower than|fewer than|before"
_ABOVE = r"after|above|over|beyond|exceeding|greater than|larger than|higher than|more than|past"
_UPTO = r"up ?to|until|till|at most|no more than"
_FROM = r"at least|from|starting at|starting from"
VARIABLES: dict[str, str] = {
    "batch_size": r"batch[\s-]?sizes?|\bbs\b",
    "rate": r"\bqps\b|\brps\b|request rates?|requests? per second(?: \(rps\))?",
    "concurrency": r"max[\s-]concurrenc(?:y|ies)|concurrenc(?:y|ies)|concurrent (?:requests|users|streams)|\bc(?==\d)",
    "input_len": r"(?:input|prompt|context|sequence)[\s_-]?(?:len(?:gth)?s?|sizes?)",
    "output_len": r"output[\s_-]?len(?:gth)?s?",
}
_FILLER = r"(?:\s?(?:levels?|of|is|=|:|\(|[a-z]{1,7})){0,2}\s?"
_ALL = re.compile(r"\b(?:all|every|each|any|across|regardless|consistently|always)\b", re.IGNORECASE)


class Range(NamedTuple):
    variable: str
    values: frozenset[float] | None = None  # None: all within the bounds
    low: float = -math.inf
    high: float = math.inf
    strict: bool = False  # bounds themselves are out
    out: frozenset[float] = frozenset()

    def holds(self, value: float) -> bool:
        if any(math.isclose(value, v, rel_tol=0.02) for v in self.out):
            return False
        if self.values is not None:
            tolerance = 0.1 if self.variable == "input_len" else 1e-6
            return any(math.isclose(value, v, rel_tol=tolerance) for v in self.values)
        return self.low < value < self.high if self.strict else self.low <= value <= self.high


def _numbers(text: str) -> frozenset[float]:
    return frozenset(float(n.replace(",", "")) for n in re.findall(_NUMBER, text))


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _bounds(variable: str, words: str, number: float) -> Range:
    if re.fullmatch(_BELOW, words, re.I):
        return Range(variable, high=number, strict=True)
    if re.fullmatch(_ABOVE, words, re.I):
        return Range(variable, low=number, strict=True)
    if re.fullmatch(_UPTO, words, re.I):
        return Range(variable, high=number)
    return Range(variable, low=number)


def ranges(text: str) -> list[Range] | None:
    """Those a clause names. None: it names a load that can't be understood."""
    found: list[Range] = []
    for variable, pattern in VARIABLES.items():
        one = _of(variable, pattern, text)
        if one is None:
            return None
        found += one
    return found


def _of(variable: str, pattern: str, text: str) -> list[Range] | None:
    mentions = list(re.finditer(pattern, text, re.IGNORECASE))
    if not mentions:
        return []
    words = "|".join((_BELOW, _ABOVE, _UPTO, _FROM))
    name = f"(?:{pattern})"
    excepted = re.search(rf"(?:except|other than|apart from)(?: for| at)?\s(?:{name}{_FILLER})?{_LIST}", text, re.I)
    out = _numbers(excepted["list"]) if excepted else frozenset()
    rest = text[: excepted.start()] + text[excepted.end() :] if excepted else text
    before = re.search(rf"\b(?P<words>{words})\s(?:an? |the )?{name}{_FILLER}(?P<n>{_NUMBER})\b", rest, re.I)
    after = re.search(rf"{name}{_FILLER}\b(?P<words>{words})\s(?P<n>{_NUMBER})\b", rest, re.I)
    bound = before or after or re.search(rf"\b(?P<words>{words})\s(?P<n>{_NUMBER})\s?{name}", rest, re.I)
    span = re.search(rf"{name}{_FILLER}(?:between )?{_RANGE}(?![\d,])", rest, re.I) if " to " in rest else None
    span = span or re.search(rf"\bbetween (?:{name}{_FILLER})?{_RANGE}(?:\s?{name})?", rest, re.I)
    if span:
        return [Range(variable, low=_value(span["low"]), high=_value(span["high"]), out=out)]
    if bound:
        return [_bounds(variable, bound["words"], _value(bound["n"]))._replace(out=out)]
    listed = re.search(rf"{name}{_FILLER}{_LIST}", rest, re.I) or re.search(rf"{_LIST}\s?{name}", rest, re.I)
    if listed:
        return [Range(variable, values=_numbers(listed["list"]), out=out)]
    if _ALL.search(rest) or out:
        return [Range(variable, out=out)]
    return None if re.search(rf"(?:larger|higher|smaller|lower|medium|big|small|some|most)\s{name}", rest, re.I) else []


def prompts(text: str) -> Range | None:
    """A section's words on how long its prompts are."""
    found = re.search(
        rf"prompts?\b[^.]{{0,50}}\b(?:length|size)\b[^.\d]{{0,30}}(?P<a>{_NUMBER}) tokens|"
        rf"prompts of (?P<b>{_NUMBER}) tokens",
        text[:5000],
        re.IGNORECASE,
    )
    return Range("input_len", values=frozenset({_value(found["a"] or found["b"])})) if found else None


def load(row: Row, variable: str) -> float | None:
    """What a row's load was; where its author didn't tell a batch size, the number of requests sent at once."""
    told = row.number(variable)
    if told is not None:
        return told
    if variable == "batch_size" and not any(row.setting(n) is not None for n in ("concurrency", "rate")):
        sent = row.number("num_prompts")
        return sent if sent is not None else row.get("completed")
    if variable in ("input_len", "output_len"):
        total, completed = row.get(f"total_{variable.removesuffix('_len')}_tokens"), row.get("completed")
        return total / completed if total is not None and completed else None
    return None


def covers(scope: list[Range], row: Row) -> bool:
    for part in scope:
        value = load(row, part.variable)
        if value is None or not part.holds(value):
            return False
    return True
