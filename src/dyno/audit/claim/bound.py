"""Claims about one side: 'is limited to 1200 tokens/s', 'reaches up to 3500', 'grows in proportion up to batch 64'."""

import re
from typing import Literal, NamedTuple

from dyno.audit.claim.metric import Metric, metrics
from dyno.audit.claim.scope import VARIABLES, Range, ranges
from dyno.audit.claim.sentence import last_name, sure
from dyno.audit.claim.side import Names

_NUMBER = r"(?P<number>\d{1,3}(?:,\d{3}){1,2}|\d{1,7}(?:\.\d{1,3})?)"
_SPEED = r"(?P<unit>(?:output |total )?tok(?:en)?s?\s?(?:/|per )\s?s(?:ec(?:ond)?)?\b|req(?:uest)?s?/s\b|t/s\b)"
_ABOUT = r"(?P<about>~|≈|about |around |roughly |approximately |some )?\s?"
_AT_MOST = re.compile(
    r"\b(?:(?:is|are|was|were) (?:limited to|capped at)|tops out at|maxes out at|never exceeds|saturates at)\s"
    + f"{_ABOUT}{_NUMBER}\\s?{_SPEED}",
    re.IGNORECASE,
)
_REACHES = re.compile(
    r"\b(?:can )?(?:achieves?|achieved|reach(?:es|ed)?|delivers?|delivered|hits?|peaks? at)\s(?:up ?to\s|as much as\s)?"
    + f"{_ABOUT}{_NUMBER}\\s?{_SPEED}",
    re.IGNORECASE,
)
_BELOW = re.compile(
    r"\b(?:(?:stays?|stayed|remains?|remained) (?:well )?(?:below|under)|never exceeds)\s"
    + f"{_ABOUT}{_NUMBER}\\s?(?P<unit>ms|milliseconds)\\b",
    re.IGNORECASE,
)
_GROWS = re.compile(
    r"\b(?:exhibits?|shows?|sees?|has|had|exhibited|showed|saw)\s(?:an? |only |very )?"
    r"(?P<how>proportion(?:ate|al)|linear|near-linear|slight|minimal|little|marginal)\s"
    r"(?:improvements?|increases?|gains?|scaling)\s(?:in|of)\s(?P<what>[\w()/ -]{3,40}?)\s"
    r"(?:as|with)\s(?:the |increasing )?(?P<load>[\w -]{3,24}?)(?:\s(?:increases|grows|rises))?$",
    re.IGNORECASE,
)


class Bound(NamedTuple):
    """The most of a figure: at most so much, or that much reached."""

    one: str
    metric: Metric
    number: float
    about: bool
    sort: Literal["at most", "reaches"]
    scope: list[Range]
    words: str


class Growth(NamedTuple):
    one: str
    metric: Metric
    variable: str
    proportional: bool  # else: only slight
    scope: list[Range]
    words: str


def bounds(sentence: str, names: Names) -> list[Bound]:
    if not sure(sentence):
        return []
    found: list[Bound] = []
    for pattern, sort in ((_AT_MOST, "at most"), (_REACHES, "reaches"), (_BELOW, "at most")):
        for m in pattern.finditer(sentence):
            before = sentence[: m.start()]
            one = last_name(before.split(), names)
            if not one and pattern is _BELOW:  # 'P99 TTFT of X stays below'
                one = last_name(re.split(r"\b(?:of|for)\b", before)[-1].split(), names)
            said = metrics(before) if pattern is _BELOW else metrics(m["unit"])
            scope = ranges(before + sentence[m.end() :])
            if one and len(said) == 1 and scope is not None:
                number = float(m["number"].replace(",", ""))
                kind: Literal["at most", "reaches"] = "reaches" if sort == "reaches" else "at most"
                found.append(Bound(one, said[0], number, bool(m["about"]), kind, scope, m.group().strip()))
    return found


def growth(sentence: str, names: Names) -> list[Growth]:
    m = _GROWS.search(sentence.strip(" ."))
    if m is None or not sure(sentence):
        return []
    one = last_name(sentence[: m.start()].split(), names)
    said = metrics(m["what"])
    variable = next((v for v, p in VARIABLES.items() if re.search(p, m["load"], re.IGNORECASE)), None)
    scope = ranges(sentence[: m.start()])
    if not one or len(said) != 1 or variable is None or scope is None:
        return []
    proportional = m["how"].lower() not in ("slight", "minimal", "little", "marginal")
    return [Growth(one, said[0], variable, proportional, scope, m.group().strip())]
