"""A sentence to what it claims: one side over another, a bound, growth with the load."""

import re
from collections.abc import Callable
from typing import NamedTuple

from dyno.audit.claim.metric import PLAIN, Metric, metrics, speaks_of_other
from dyno.audit.claim.scope import Range, ranges
from dyno.audit.claim.side import Names
from dyno.audit.claim.words import tokens

_ADVERBS = (
    r"(?:(?:consistently|slightly|significantly|clearly|also|only|always|easily|still|just|much|far|even|greatly|notably|"
    r"considerably|substantially|generally|marginally|a (?:little|bit|lot|fair bit))\s){0,3}"
)
_AMOUNT = (
    r"(?P<{0}>(?:up to |about |around |over |nearly |roughly |some |~|≈)?"
    r"\d{{1,4}}(?:\.\d{{1,2}})?\s?(?:%|x|×|times)\s)?"
)
_MORE = r"faster|better|quicker|cheaper|more (?:cost[\s-]effective|efficient)"
_LESS = r"slower|worse|more expensive"
_VERB = re.compile(
    rf"\b(?P<adverb>{_ADVERBS})(?:"
    rf"(?P<beats>beats?|outperforms?|outperformed|exceeds?|exceeded|surpass(?:es|ed)?|crush(?:es|ed)|outpaces?|"
    rf"demonstrated an advantage over|ha[sd] an (?:advantage|edge) over)"
    rf"|(?:is|are|was|were|performs?|performed|runs?|ran)\s{_ADVERBS}{_AMOUNT.format('a')}(?P<adjective>{_MORE}|{_LESS})\sthan"
    rf"|(?:has|have|had|delivers?|achieves?|provides?|shows?|offers?|gives?)\s{_ADVERBS}"
    rf"{_AMOUNT.format('b')}(?:an? )?(?P<degree>higher|lower|better|greater|worse)\s"
    rf"(?P<noun>[\w()/ -]{{3,50}}?)\s(?:than|compared (?:to|with)))\s",
    re.IGNORECASE,
)
_CHEAP = re.compile(
    r"\b(?:is|are|was) (?:more |most |the most |the )?(?:cost[\s-](?:effective|efficient)|cheapest)\s"
    r"(?=with|for|at|below|up)",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:not|never|neither|nor|no longer|cannot|should|may|might|could|would|will|expect(?:ed|s)?|expectation|likely|"
    r"probably|possibly|perhaps|theor\w+|ideally|hypothe\w+|if|claims?|claimed|reported(?:ly)?|according to|seems?|"
    r"appears?|previous(?:ly)?|prior|earlier|official|whether|unless|assum\w+|estimat\w+|projected|goal|target|"
    r"blog|paper|authors?|announce\w*|documentation|et al|why|how)\b|n[’']t\b|\?\s?$",
    re.IGNORECASE,
)
# Conditions that rows here don't tell.
_CONDITION = re.compile(
    r"\b(?:same (?:latency|cost|price|power|budget)|per (?:gpu|dollar|watt|device|user)|when|while|with(?:out)? \w+ "
    r"(?:enabled|disabled|on|off)|in (?:theory|terms of (?:memory|power)))\b",
    re.IGNORECASE,
)
_JOIN = re.compile(r"^(?:both|and|the|either|or|,|&)$", re.IGNORECASE)
_STOP = re.compile(r"[,:;()]$")
_UNIVERSAL = re.compile(
    r"\b(?:consistently|always|throughout|(?:all|every|each|any)(?: of)?(?: the)?(?: \w{3,12})?"
    r" (?:cases?|loads?|levels?|sizes?|settings?|scenarios?|configurations?|tests?|rates?|lengths?))\b",
    re.IGNORECASE,
)


class Versus(NamedTuple):
    """`one` is better than `other` in a metric, within the scope; universal: at each load of it."""

    one: str
    other: str
    metric: Metric
    scope: list[Range]
    universal: bool
    amount: str = ""  # '28 %', '2 x'; with 'up to' before it, where it was said
    degree: bool = False  # the sentence is about how much: slightly, only


def sure(sentence: str) -> bool:
    return _UNSURE.search(sentence) is None


def last_name(words: list[str], names: Names) -> str:
    """The name that a clause ends with: words before a verb, back to the first that isn't part of it."""
    taken: list[str] = []
    for word in reversed(words[-8:]):
        if taken and _STOP.search(word):
            break
        bare = word.strip("`'\"*(),:")
        if names.names(bare):
            taken.insert(0, bare)
        elif not taken and re.search(r"\d", bare) and bare[:1].isupper() and len(words) > 1:
            continue  # a part of a name that no row bears: '8xH100 SXM5'
        else:
            break
    return " ".join(taken)


def first_names(words: list[str], names: Names) -> list[str]:
    """Names that a clause begins with, joined by commas and 'and'."""
    found: list[str] = []
    open_ = False
    for word in words[:14]:
        bare = word.strip("`'\"*(),:.")
        if names.names(bare):
            if open_ and found:
                found[-1] += " " + bare
            else:
                found.append(bare)
            open_ = not _STOP.search(word)
        elif _JOIN.match(word):
            open_ = False
        elif not found and bare[:1].isupper() and not re.search(r"\d", bare):
            continue  # a maker before a product
        else:
            break
    return found


def _metrics(verb: re.Match[str], rest: str, section: str) -> list[Metric] | None:
    """What it is in; None where it is in something else."""
    noun = verb["noun"]
    if noun:
        plain = re.fullmatch(r"(?:overall )?(?:performance|speed)s?", noun, re.IGNORECASE)
        return [Metric(PLAIN, True, "any figure of speed")] if plain else metrics(noun) or None
    if re.search(r"cheaper|cost|expensive", verb.group(), re.IGNORECASE):
        return metrics("cost")
    said = metrics(re.split(r",\s?(?:but|while|whereas|with|however)\b", rest)[0])
    if said:
        return said
    if speaks_of_other(rest) or re.search(r"\blatency\b", rest, re.IGNORECASE):
        return None
    return metrics(section) or [Metric(PLAIN, True, "any figure of speed")]


def versus(sentence: str, section: str, names: Names, it: str = "") -> list[Versus]:
    """Comparisons that a sentence makes between two named sides; `it`: whom a pronoun means."""
    if not sure(sentence):
        return []
    found = []
    verbs = list(_VERB.finditer(sentence))
    for n, verb in enumerate(verbs):
        start = verbs[n - 1].end() if n else 0
        end = verbs[n + 1].start() if n + 1 < len(verbs) else len(sentence)
        before, rest = sentence[start : verb.start()].split(), sentence[verb.end() : end]
        one = last_name(before, names)
        if not one and before and before[-1].lower() == "it":
            one = it
        others = first_names(rest.split(), names)
        said = _metrics(verb, rest, section)
        clause = sentence[start:end]
        if not one or not others or said is None or _CONDITION.search(clause):
            continue
        scope = ranges(clause)
        # 'exceeds in TTFT' may be said of the longer one.
        doubtful = re.match(r"exceed|surpass", verb["beats"] or "", re.IGNORECASE)
        if scope is None or (doubtful and any(m.stem for m in said)):
            continue
        worse = re.fullmatch(_LESS, verb["adjective"] or "", re.I) or (verb["degree"] or "").lower() == "worse"
        lower = (verb["degree"] or "").lower() == "lower"
        if (verb["degree"] or "").lower() in ("higher", "greater") and any(m.stem for m in said):
            worse = True  # a higher latency is a worse one
        if lower and not any(m.stem or m.names[0].startswith("cost") for m in said):
            worse = True
        universal = bool(scope) or bool(_UNIVERSAL.search(clause))
        for other in others:
            a, b = (other, one) if worse else (one, other)
            amount = (verb["a"] or verb["b"] or "").strip().lower()
            degree = bool(re.search(r"\b(?:only|slight\w*|marginal\w*|significant\w*|much|far)\b", clause, re.I))
            found += [Versus(a, b, m, scope, universal, amount, degree) for m in said]
    return found


def alone(sentence: str, names: Names, around: Callable[[], list[str]]) -> list[Versus]:
    """'A is cost-effective for …': against whom is told by the names around it."""
    cheap = _CHEAP.search(sentence)
    if cheap is None or not sure(sentence) or _VERB.search(sentence):
        return []
    one = last_name(sentence[: cheap.start()].split(), names)
    scope = ranges(sentence[cheap.end() :])
    if not one or not scope:
        return []
    mine = set(names.find(one))
    others = [n for n in around() if not mine & set(names.find(n))]
    if not others:
        return []
    other = max(others, key=lambda n: (len(tokens(n)), len(names.find(n))))  # 'Maker 8xThing' before 'Maker'
    return [Versus(one, other, m, scope, True) for m in metrics("cost")]
