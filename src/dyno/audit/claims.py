"""Sentences that compare two sides by name: do the rows say the same?

'A beats B in throughput at all batch sizes', 'A is 28 % faster than B', 'A has 2 times higher TTFT than B'. A claim is
judged only if both names, the metric and the load are found among rows; other claims are skipped. If its words have
several readings, it is contradicted only if it fails in all of them.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dyno.engines.kinds import names as engine_names
from dyno.facts.finding import Finding, Level
from dyno.facts.imported import Document, Passage, Row
from dyno.facts.metric import STEMS, better, leads, words
from dyno.measure.points import input_each, load_of, output_each
from dyno.numbers import change, trimmed

MARGIN = 0.01  # single runs differ by that much
SAMPLES = 100  # fewer requests have no useful p99
SIDES = 200  # more names than that are not a comparison


# ---- words and names ----

_END = re.compile(
    r"(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)(?<!\bapprox)(?<!\betc)[.!?;](?:\s{1,4}|(?=[A-Z][a-z]))"
)
_TOKEN = re.compile(r"\d{1,3}x(?=[a-z])|[a-z0-9]+")  # '8xMi300x' is 8x and mi300x
# Words of names that don't distinguish anything.
_EMPTY = frozenset({
    "the", "and", "with", "model", "models", "version", "gpu", "gpus", "result", "results", "csv", "json", "throughput",
    "latency", "token", "tokens", "request", "requests", "batch", "size", "test", "tests", "run", "runs", "benchmark",
    "benchmarks", "online", "offline", "serving", "performance", "mean", "median",
})  # fmt: skip
_LOADS = re.compile(
    r"\b(?:c|bs|qps|rps|tp|n|batch[\s-]?size|concurrency|rate)\s?=?\s?\d{1,6}\b", re.I
)
_JOIN = re.compile(r"(?:both|and|the|either|or|,|&)$", re.I)
_STOP = re.compile(r"[,:;()]$")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a passage; longer ones are lists and listings."""
    text, start = text[:20_000], 0
    for end in (*(m.end() for m in _END.finditer(text)), len(text)):
        sentence = text[start:end].strip().rstrip(".;")
        if 10 <= len(sentence) <= 600:
            yield sentence
        start = end


def tokens(text: str) -> list[str]:
    """Return the parts of a name: '8xMi300x 1FP8-amd model' is 8x, mi300x, 1fp8, amd. An engine is one, however
    spelled."""
    spellings = engine_names.spellings()
    text = (
        engine_names.pattern()
        .sub(lambda m: re.sub(r"\W", "", spellings[m[0].lower()]), text)
        .lower()
    )
    return [t for t in _TOKEN.findall(text) if t not in _EMPTY]


def _within(token: str, name: frozenset[str]) -> bool:
    """Return whether a name has a token. A letter or two may be missing at the end of a longer one: mi300, mi300x."""

    def same(other: str) -> bool:
        short, long = sorted((token, other), key=len)
        return token == other or (
            len(short) >= 4 and long.startswith(short) and len(long) - len(short) <= 2
        )

    return any(map(same, name))


class Names:
    """The rows of a document by name: as their author calls them, or by what ran."""

    def __init__(self, rows: Iterable[Row], by_author: bool) -> None:
        self.rows: dict[frozenset[str], list[Row]] = defaultdict(list)
        for row in rows:
            if row.kind == "quality":
                continue
            if by_author:
                name = tokens(_LOADS.sub(" ", row.series or row.label))
            else:
                values = [
                    row.setting(n)
                    for n in ("engine", "model", "accelerator", "quantization")
                ]
                name = [
                    t for value in values if isinstance(value, str) for t in tokens(value)
                ]
            if name:
                self.rows[frozenset(name)].append(row)
        self._known: dict[str, bool] = {}

    def _distinguishes(self, token: str) -> bool:
        """Return whether a token separates some rows from the others."""
        if token not in self._known:
            self._known[token] = (
                0 < sum(_within(token, name) for name in self.rows) < len(self.rows)
            )
        return self._known[token]

    def is_name(self, word: str) -> bool:
        return any(
            not t[0].isdigit() and len(t) > 2 and self._distinguishes(t)
            for t in tokens(word)
        )

    def find(self, phrase: str) -> list[frozenset[str]]:
        words = [t for t in tokens(phrase) if self._distinguishes(t)]
        return [name for name in self.rows if all(_within(t, name) for t in words)]

    def before(self, words: list[str]) -> str:
        """Return the name that a clause ends with."""
        out: list[str] = []
        for word in reversed(words[-8:]):
            bare = word.strip("`'\"*(),:")
            if (out and _STOP.search(word)) or not self.is_name(bare):
                break
            out.insert(0, bare)
        return " ".join(out)

    def after(self, words: list[str]) -> list[str]:
        """Return the names that a clause begins with, joined by commas and 'and'."""
        out: list[str] = []
        fresh = True
        for word in words[:14]:
            bare = word.strip("`'\"*(),:.")
            if self.is_name(bare):
                out = [*out, bare] if fresh else [*out[:-1], f"{out[-1]} {bare}"]
                fresh = bool(_STOP.search(word))
            elif _JOIN.match(word):
                fresh = True
            else:
                break
        return out


# ---- metrics ----


class MetricWords(NamedTuple):
    figures: tuple[str, ...]  # that the words may mean
    words: str
    stem: str = ""  # of a latency
    statistic: str = ""  # '': not named

    @property
    def less_is_better(self) -> bool:
        return better(self.figures[0]) == "lower"


_LATENCY = re.compile(
    r"\b(?:(mean|average|avg|median|p50|p90|p95|p99)\W{1,2})?("
    + "|".join(
        t.replace(" ", r"[\s-]")
        for s in ("ttft", "tpot", "itl", "e2el")
        for t in STEMS[s].titles
    )
    + r")\b",
    re.I,
)
_STATISTICS = {"average": "mean", "avg": "mean", "p50": "median"}
_PER_S = r"(?:tok(?:en)?s?\s?/\s?s(?:ec)?\b|tokens? per second)"
_TOTAL, _OUTPUT, _REQUESTS = (
    "total_token_throughput",
    "output_throughput",
    "request_throughput",
)
_SPEEDS = (  # the more exact ones first
    (
        r"request throughput|throughput\s?\(req(?:uest)?s?/s(?:ec)?\)|requests? per second|req/s",
        (_REQUESTS,),
    ),
    (rf"total[\s-]tokens?[\s-]throughput|total (?:{_PER_S}|throughput)", (_TOTAL,)),
    (
        rf"(?:output|generation|decode)(?:[\s-]tokens?)?[\s-](?:throughput|{_PER_S})",
        (_OUTPUT,),
    ),
    (rf"tokens?[\s-]throughput|throughput\s?\({_PER_S}\)|{_PER_S}", (_TOTAL, _OUTPUT)),
    (r"goodput", ("request_goodput",)),
    (r"\bcosts?\b|cheaper|more expensive|price per", ("cost_per_million_tokens",)),
    (r"throughput", (_TOTAL, _OUTPUT, _REQUESTS)),
)
# 'A outperforms B', without a metric.
_ANY = MetricWords(
    (
        _TOTAL,
        _OUTPUT,
        _REQUESTS,
        "speed",
        "mean_ttft_ms",
        "mean_tpot_ms",
        "mean_e2el_ms",
        "mean_latency_ms",
    ),
    "any figure of speed",
)
_ELSEWHERE = re.compile(
    r"v?ram\b|memory|power|watt|energy|accuracy|quality|score|bandwidth|tflops|utili[sz]ation|start|\blatency\b",
    re.I,
)


def measures(text: str) -> list[MetricWords]:
    """Return the metrics that a text names."""
    out: list[MetricWords] = []
    for match in _LATENCY.finditer(text):
        statistic = (match[1] or "").lower()
        statistic = _STATISTICS.get(statistic, statistic)
        title = re.sub(r"[\s-]", " ", match[2].lower())
        stem = next(s for s in STEMS if title in STEMS[s].titles)
        statistics = [statistic] if statistic else ["mean", "median"]
        figures = tuple(f"{s}_{stem}_ms" for s in statistics)
        out.append(MetricWords(figures, match[0].strip(" (`"), stem, statistic))
    rest = _LATENCY.sub(" ", text)
    for pattern, figures in _SPEEDS:
        out += [MetricWords(figures, m[0]) for m in re.finditer(pattern, rest, re.I)]
        rest = re.sub(pattern, " ", rest, flags=re.I)
    return out


# ---- loads ----

_NUMBER = r"\d{1,3}(?:,\d{3}){1,3}|\d{1,7}"
_LIST = rf"((?:{_NUMBER})(?:(?:\s?,\s?(?:and |or )?|\s?/\s?|\s?(?:and|or|&)\s)(?:{_NUMBER})){{0,12}})"
_FILLER = r"(?:\s?(?:levels?|of|is|=|:|\(|[a-z]{1,7})){0,2}\s?"
_VARIABLES = {
    "batch_size": r"(?:batch[\s-]?sizes?|\bbs\b)",
    "rate": r"(?:\bqps\b|\brps\b|request rates?|requests? per second(?: \(rps\))?)",
    "concurrency": r"(?:(?:max[\s-])?concurrenc(?:y|ies)|concurrent (?:requests|users|streams)|\bc(?==\d))",
    "input_len": r"(?:(?:input|prompt|context|sequence)[\s_-]?(?:len(?:gth)?s?|sizes?))",
    "output_len": r"(?:output[\s_-]?len(?:gth)?s?)",
}
_ALL = re.compile(
    r"\b(?:consistently|always|throughout|across|regardless|(?:all|every|each|any)(?: of)?(?: the)?(?: \w{3,12}){0,2} "
    r"(?:cases?|loads?|levels?|sizes?|settings?|scenarios?|configurations?|tests?|rates?|lengths?|concurrenc(?:y|ies)))\b",
    re.I,
)
# A range of loads, or an exception: not understood.
_RANGE = re.compile(
    r"\b(?:except|excluding|other than|apart from|but not)\b|\d\s?(?:to|[-–])\s?\d"
    r"|\b(?:below|under|before|after|above|beyond|past|exceeding|up ?to|until|till|from|between|at (?:most|least)"
    r"|(?:less|smaller|lower|fewer|greater|larger|higher|more) than|larger|higher|smaller|lower|medium|big|small|most)"
    rf"\s(?:an? |the |at )?(?:{'|'.join(_VARIABLES.values())}|\d)",
    re.I,
)


class Levels(NamedTuple):
    variable: str
    values: frozenset[float] | None = None  # None: all

    def covers(self, row: Row) -> bool:
        """Return whether a row was measured at one of these loads."""
        value = row.number(self.variable)
        if value is None and self.variable == "input_len":
            value = input_each(row)
        elif value is None and self.variable == "output_len":
            value = output_each(row)
        if value is None or self.values is None:
            return value is not None
        tolerance = 0.1 if self.variable == "input_len" else 1e-6
        return any(math.isclose(value, v, rel_tol=tolerance) for v in self.values)


def loads(text: str) -> list[Levels] | None:
    """Return the loads that a clause names: 'batch sizes 16, 32 and 64', '16 QPS'. None: one isn't understood."""
    out = []
    for variable, name in _VARIABLES.items():
        if not re.search(name, text, re.I):
            continue
        if _RANGE.search(text):
            return None
        listed = re.search(rf"{name}{_FILLER}{_LIST}|{_LIST}\s?{name}", text, re.I)
        if listed:
            numbers = re.findall(_NUMBER, listed[1] or listed[2])
            out.append(
                Levels(variable, frozenset(float(n.replace(",", "")) for n in numbers))
            )
        elif _ALL.search(text):
            out.append(Levels(variable))
    return out


# ---- sentences ----

_ADVERBS = r"(?:(?:\w{3,14}ly|also|always|still|just|much|far|even|a (?:little|bit|lot|fair bit))\s){0,3}"
_AMOUNT = r"(?:(?:up to|about|around|over|nearly|roughly|some|~|≈)\s?)?\d{1,4}(?:\.\d{1,2})?\s?(?:%|x|×|times)\s"
_VERB = re.compile(
    rf"\b{_ADVERBS}(?:(?P<beats>beats?|outperforms?|outperformed|exceeds?|exceeded|surpass(?:es|ed)?|outpaces?)"
    rf"|(?:is|are|was|were|performs?|performed|runs?|ran)\s{_ADVERBS}(?P<a>{_AMOUNT})?"
    r"(?P<adjective>faster|better|quicker|cheaper|slower|worse|more expensive)\sthan"
    rf"|(?:has|have|had|delivers?|achieves?|provides?|shows?|offers?|gives?)\s{_ADVERBS}(?P<b>{_AMOUNT})?(?:an? )?"
    r"(?P<degree>higher|lower|better|greater|worse)\s(?P<noun>[\w()/ -]{3,50}?)\s(?:than|compared (?:to|with)))\s",
    re.I,
)
# Not a plain statement, or under a condition that rows don't have.
_UNSURE = re.compile(
    r"\b(?:not|never|neither|nor|no longer|cannot|should|may|might|could|would|will|expect(?:ed|s)?|expectation|likely|"
    r"probably|possibly|perhaps|theor\w+|ideally|hypothe\w+|if|claims?|claimed|reported(?:ly)?|according to|seems?|"
    r"appears?|previous(?:ly)?|prior|earlier|official|whether|unless|assum\w+|estimat\w+|projected|goal|target|"
    r"blog|paper|authors?|announce\w*|documentation|et al|why|how|when|while|per (?:gpu|dollar|watt|device|user)|"
    r"same (?:latency|cost|price|power|budget)|with(?:out)? \w+ (?:enabled|disabled|on|off))\b|n[’']t\b|\?\s?$",
    re.I,
)


class Claim(NamedTuple):
    """`one` is better than `other` in a metric at some loads; universal: at each of them."""

    one: str
    other: str
    measure: MetricWords
    loads: list[Levels]
    universal: bool
    amount: str  # '28 %', 'up to 2 x'; '': no amount given


def claimed(sentence: str, section: str, names: Names) -> Iterator[Claim]:
    """Yield the comparisons of two named sides in a sentence."""
    if _UNSURE.search(sentence):
        return
    verbs = list(_VERB.finditer(sentence))
    starts = [0, *(verb.end() for verb in verbs)]
    ends = [*(verb.start() for verb in verbs[1:]), len(sentence)]
    for verb, start, end in zip(verbs, starts, ends, strict=False):
        clause, rest = sentence[start:end], sentence[verb.end() : end]
        one, others = (
            names.before(sentence[start : verb.start()].split()),
            names.after(rest.split()),
        )
        at_loads = loads(clause)
        if not one or not others or at_loads is None:
            continue
        universal = bool(at_loads) or bool(_ALL.search(clause))
        amount = (verb["a"] or verb["b"] or "").strip().lower()
        for measure in dict.fromkeys(_metrics(verb, rest, section)):
            if _is_ambiguous(verb, measure):
                continue
            for other in others:
                a, b = (other, one) if _is_worse(verb, measure) else (one, other)
                yield Claim(
                    a, b, measure, _with_section(at_loads, section), universal, amount
                )


def _with_section(at_loads: list[Levels], section: str) -> list[Levels]:
    """Return the loads of a clause, and those that only its section names."""
    named = {part.variable for part in at_loads}
    return at_loads + [part for part in loads(section) or [] if part.variable not in named]


def _is_ambiguous(verb: re.Match[str], measure: MetricWords) -> bool:
    """Return whether 'exceeds in TTFT' may mean the longer one."""
    return measure.less_is_better and (verb["beats"] or "").lower().startswith(
        ("exceed", "surpass")
    )


def _metrics(verb: re.Match[str], rest: str, section: str) -> list[MetricWords]:
    """Return the metrics of a comparison; none where rows don't have it."""
    if verb["noun"]:
        plain = re.fullmatch(r"(?:overall )?(?:performance|speed)s?", verb["noun"], re.I)
        return [_ANY] if plain else measures(verb["noun"])
    said = measures(verb["adjective"] or "") or measures(
        re.split(r",\s?(?:but|while|whereas|with|however)\b", rest)[0]
    )
    if said or _ELSEWHERE.search(rest):
        return said
    return measures(section) or [_ANY]


def _is_worse(verb: re.Match[str], measure: MetricWords) -> bool:
    """Return whether the first side is claimed to be worse: slower, a higher latency, a lower throughput."""
    if verb["degree"] and verb["degree"].lower() in ("higher", "greater", "lower"):
        return (verb["degree"].lower() == "lower") != measure.less_is_better
    return (verb["adjective"] or verb["degree"] or "").lower() in (
        "slower",
        "worse",
        "more expensive",
    )


# ---- against rows ----

Judgement = tuple[str, Level, str, list[Row]]  # code, level, text, evidence


class Pair(NamedTuple):
    """Rows of the two sides under the same load."""

    one: Row
    other: Row
    lead: float  # of the first side

    def describe(self, figure: str) -> str:
        a, b = self.one.figures[figure].value, self.other.figures[figure].value
        load = load_of(self.one).words
        where = f" at {load}" if load else ""
        return f"{words(figure)} {trimmed(a)} / {trimmed(b)}{where}"


class ClaimEvidence(NamedTuple):
    """One figure of the two sides in one table or file."""

    figure: str
    pairs: list[Pair]
    universal: bool

    def against(self, margin: float = MARGIN) -> list[Pair]:
        """Return the loads at which the other side leads; none where the claim as a whole holds."""
        out = [pair for pair in self.pairs if pair.lead < -margin]
        return out if self.universal or len(out) == len(self.pairs) else []

    def worst(self, margin: float = MARGIN) -> tuple[Pair, str]:
        """Return the load at which the other side leads most, and its description."""
        against = self.against(margin)
        pair = min(against, key=lambda p: p.lead)
        text = pair.describe(self.figure)
        if len(self.pairs) > 1:
            text += f" ({len(against)} of {len(self.pairs)} loads)"
        return pair, text


def evidence(claim: Claim, names: Names, figures: tuple[str, ...]) -> list[ClaimEvidence]:
    """Return the figures of rows that match a claim's names, one entry per table or file."""
    ones, others = names.find(claim.one), names.find(claim.other)
    if set(ones) & set(others):  # the words don't distinguish the two
        return []
    out = []
    for a in ones:
        for b in others:
            ours, theirs = (
                _by_load(names.rows[a], claim.loads),
                _by_load(names.rows[b], claim.loads),
            )
            for figure in figures:
                places: dict[object, list[Pair]] = defaultdict(list)
                for key, one in ours.items():
                    pair = _pair(one, theirs.get(key), figure)
                    if pair is not None:
                        places[key[0]].append(pair)
                out += [
                    ClaimEvidence(figure, pairs, claim.universal)
                    for pairs in places.values()
                ]
    return out


def _pair(one: Row, other: Row | None, figure: str) -> Pair | None:
    """Return two rows as a pair if both have the figure, for the same prompts."""
    if other is None or not load_of(one).same_prompts(load_of(other)):
        return None
    x, y = one.get(figure), other.get(figure)
    if x is None or y is None or min(x, y) <= 0:
        return None
    return Pair(one, other, leads(figure, x, y))


def _by_load(rows: Iterable[Row], within: list[Levels]) -> dict[tuple[object, ...], Row]:
    """Return rows by table and load; loads that a side has twice are left out."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if all(part.covers(row) for part in within):
            levels = [row.number(n) for n in (*_VARIABLES, "num_prompts", "depth")]
            groups[(row.kind, row.file, row.table), *levels].append(row)
    return {key: group[0] for key, group in groups.items() if len(group) == 1}


def claims(documents: Sequence[Document]) -> Iterator[Finding]:
    """Yield findings about sentences of reports that the results contradict."""
    reports = [d for d in documents if any(h.level for h in d.headings)]
    data = [r for d in documents if d not in reports for r in d.rows]
    for document in reports:
        pools = _pools(document, data)
        if pools:
            yield from _contradicted(document, pools)


def _contradicted(document: Document, pools: list[Names]) -> Iterator[Finding]:
    for passage in document.passages:
        if passage.listing:
            continue
        for sentence in dict.fromkeys(sentences(passage.text)):
            yield from _judged(document, passage, sentence, pools)


def _pools(document: Document, data: list[Row]) -> list[Names]:
    """Return names of rows: the report's own rows first, then those of files given with it."""
    pools = [
        Names(rows, by_author)
        for rows in (document.rows, data)
        for by_author in (True, False)
    ]
    return [names for names in pools if 1 < len(names.rows) <= SIDES]


def _judged(
    document: Document, passage: Passage, sentence: str, pools: list[Names]
) -> Iterator[Finding]:
    """Judge a sentence by the first rows that match its names."""
    shown = sentence if len(sentence) <= 140 else sentence[:137].rsplit(" ", 1)[0] + " …"
    for names in pools:
        judged = False
        for claim in claimed(sentence, passage.section, names):
            readings = evidence(claim, names, claim.measure.figures)
            if not readings:
                continue
            judged = True
            for code, level, text, rows in _judge(claim, names, readings):
                lines = [
                    f"{document.file}:{passage.line}",
                    *dict.fromkeys(r.location for r in rows),
                ]
                yield Finding(code, level, f"'{shown}': {text}", "", lines[:9])
        if judged:
            return


def _judge(
    claim: Claim, names: Names, readings: list[ClaimEvidence]
) -> Iterator[Judgement]:
    if all(reading.against() for reading in readings):
        worst = [reading.worst() for reading in readings[:4]]
        shown = "; ".join(dict.fromkeys(described for _, described in worst))
        text = f"the results contradict this. {claim.one} / {claim.other}: {shown}."
        yield (
            "consistency.claim",
            "doubt",
            text,
            [r for pair, _ in worst for r in (pair.one, pair.other)],
        )
        return
    if claim.amount and claim.measure is not _ANY:
        yield from _amount(claim, readings)
    if claim.measure.stem and claim.measure.statistic in ("", "mean"):
        yield from _mean_only(claim, names)


def _amount(claim: Claim, readings: list[ClaimEvidence]) -> Iterator[Judgement]:
    """Judge '28 % higher', where no load of any reading has about that much."""
    number = float(re.findall(r"[\d.]+", claim.amount)[0])
    percent = "%" in claim.amount
    slack = max(0.1 * number, 1.0 if percent else 0.1)

    def amounts(lead: float) -> list[float]:
        """Return the difference as a share of either side; 'two times' may mean twice or thrice as much."""
        return (
            [100 * lead, 100 * (1 - 1 / (1 + abs(lead)))] if percent else [1 + lead, lead]
        )

    def distance(lead: float) -> float:
        return min(abs(amount - number) for amount in amounts(lead))

    pairs = [(pair, reading.figure) for reading in readings for pair in reading.pairs]
    possible = [
        amount for pair, _ in pairs if pair.lead > 0 for amount in amounts(pair.lead)
    ]
    # 'Over' and 'up to' may refer to any load; without them one near it is enough.
    near = any(abs(amount - number) <= slack for amount in possible)
    if not possible or near or ("over" in claim.amount and max(possible) >= number):
        return
    pair, figure = min(pairs, key=lambda item: distance(item[0].lead))
    nearest = f"{pair.describe(figure)} ({change(pair.lead)}; {claim.one}, {claim.other})"
    yield (
        "consistency.claim",
        "doubt",
        f"no load shows that. The nearest is {nearest}.",
        [pair.one, pair.other],
    )


def _mean_only(claim: Claim, names: Names) -> Iterator[Judgement]:
    """Judge a claim that holds for the mean, but not for the median or the 99th percentile in any reading."""
    for statistic, title, margin in (
        ("median", "median", 0.05),
        ("p99", "99th percentile", 0.1),
    ):
        readings = evidence(claim, names, (f"{statistic}_{claim.measure.stem}_ms",))
        if not readings or not all(reading.against(margin) for reading in readings):
            continue
        if statistic == "p99" and _fewest_requests(readings) < SAMPLES:
            continue
        pair, described = readings[0].worst(margin)
        text = f"true for the mean, not for the {title}. {claim.one} / {claim.other}: {described}."
        level: Level = "note" if claim.measure.statistic else "doubt"
        yield "consistency.mean_only", level, text, [pair.one, pair.other]
        return


def _fewest_requests(readings: list[ClaimEvidence]) -> float:
    rows = [
        row
        for reading in readings
        for pair in reading.pairs
        for row in (pair.one, pair.other)
    ]
    return min((row.get("completed") or 0 for row in rows), default=0)
