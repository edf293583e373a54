"""Is the difference real? Two groups of rows in; differences with their intervals, and words, out. Pure."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dyno.checks import objections
from dyno.checks.comparability import Objection, Two
from dyno.compare.gate import Gate, judge
from dyno.compare.scores import score_difference
from dyno.facts.comparison import (
    CONFIDENCE,
    Comparison,
    Difference,
    Estimate,
    GateResult,
    LeftOut,
    Pairing,
    Side,
    Summary,
    Word,
)
from dyno.facts.finding import Finding, verdict, worst_first
from dyno.facts.imported import Row, RowKind, Scalar
from dyno.facts.load import PACING
from dyno.facts.metric import STEMS, THROUGHPUTS, better, latency
from dyno.measure.estimate import ALLOWED, NARROW, estimates, value_of
from dyno.measure.greedy import agreement
from dyno.measure.paired import POWER
from dyno.measure.pairs import Group, groups, pair
from dyno.measure.points import load_of
from dyno.measure.statistics import quantile, two_sided, welch_df
from dyno.numbers import setting

Pair = tuple[Group, Group]  # of A and of B, under one load
MARGIN = 0.05  # an interval within ± this says that there is no difference to speak of
_MOST_REPEATS = 100  # that anybody is advised to make
_MOST_TIMES = 100  # … as many requests as there were

_DEFAULTS: dict[RowKind, tuple[str, ...]] = {
    "throughput": THROUGHPUTS,
    "latency": ("mean_latency_ms", "median_latency_ms", "output_throughput"),
    "micro": ("speed",),
    "quality": ("score",),
}
_PERHAPS: dict[Word, Word] = {
    "higher": "perhaps higher",
    "lower": "perhaps lower",
    "better": "perhaps better",
    "worse": "perhaps worse",
}


def compare(
    a: Sequence[Row],
    b: Sequence[Row],
    names: tuple[str, str],
    metrics: Sequence[str] = (),
    gates: Sequence[Gate] = (),
    anyway: bool = False,
) -> Comparison:
    """Compare two sides. `metrics`: those wanted; none: the usual ones, and those of the gates."""
    groups_a, groups_b = groups(a), groups(b)
    matched = pair(groups_a, groups_b)
    pairs = matched.pairs
    left = (matched.left_a, matched.left_b)
    if (
        not pairs
        and anyway
        and len(groups_a) == len(groups_b) == 1
        and a[0].kind == b[0].kind
    ):
        pairs = [(groups_a[0], groups_b[0])]
        left = ([], [])
    pairs = _with_any(metrics, pairs)
    compared = pairings(pairs, metrics, [g.metric for g in gates], anyway)
    findings = (
        list(_about_the_whole(groups_a, groups_b, matched.several)) if not pairs else []
    )
    return Comparison(
        a=names[0],
        b=names[1],
        verdict=verdict([*findings, *(f for p in compared for f in p.findings)]),
        pairings=compared,
        unpaired_a=[_describe_unpaired(g, matched.several) for g in left[0]],
        unpaired_b=[_describe_unpaired(g, matched.several) for g in left[1]],
        findings=findings,
        anyway=anyway,
        gates=[result for gate in gates for result in _judged(gate, pairs, compared)],
    )


def _with_any(metrics: Sequence[str], pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that have one of these figures: beside speeds, a study may have scores. All of them where no
    figure is named, or where none has one."""
    having = [p for p in pairs if any(exists(m, p) for m in metrics)]
    return having or list(pairs)


def exists(metric: str, pair: Pair) -> bool:
    """Return whether a side reports the figure, or another statistic of the same latency: a p99 that isn't known at one
    load is missing there, but a score has none."""
    rows = [row for group in pair for row in group]
    if any(value_of(row, metric) is not None for row in rows):
        return True
    parts = latency(metric)
    if parts is None:
        return False
    return any(name.endswith(f"_{parts[1]}_ms") for row in rows for name in row.figures)


def _judged(
    gate: Gate, pairs: Sequence[Pair], compared: Sequence[Pairing]
) -> list[GateResult]:
    """Judge a gate at each pairing that it is about."""
    about = _gated(gate, pairs, compared)
    if compared and not about:
        return [GateResult(gate.text, "undecided", "no result reports this figure", None)]
    return [judge(gate, compared[i], i) for i in about]


def _gated(gate: Gate, pairs: Sequence[Pair], compared: Sequence[Pairing]) -> list[int]:
    """Return the pairings with the gate's figure; of scores all tasks together, where they are."""
    totals = (
        [i for i, p in enumerate(compared) if p.total] if gate.metric == "score" else []
    )
    return totals or [i for i, two in enumerate(pairs) if exists(gate.metric, two)]


def _about_the_whole(
    a: Sequence[Group], b: Sequence[Group], several: Sequence[Group]
) -> Iterable[Finding]:
    if several:
        yield Finding(
            "comparability.ambiguous",
            "void",
            f"Nothing was paired: {len(several)} of A's settings fit several of B's equally well.",
            "Name the ones that are meant: single runs, or a part of a study (STUDY:WORDS).",
        )
        return
    yield Finding(
        "comparability.nothing_paired",
        "void",
        f"The two sides share no load. A has {_loads(a)}. B has {_loads(b)}.{_unlike(a, b)}",
        "Measure both under one load. --anyway compares two single settings; the verdict is void.",
    )


def _unlike(a: Sequence[Group], b: Sequence[Group]) -> str:
    """Return in words in what two sides differ: of single ones, or where the nearest ones all differ in the same."""
    loads_a, loads_b = ([load_of(group[0]) for group in side] for side in (a, b))
    nearest = []
    for one in loads_a:
        conflicts = [list(one.conflicts(other)) for other in loads_b]
        nearest.append(min(conflicts, key=len, default=[]))
    if not nearest or any(unlike != nearest[0] for unlike in nearest):
        return ""
    unlike = nearest[0]
    if not unlike or (len(nearest) > 1 and len(unlike) > 1):
        return ""
    complete = all(load.complete for load in (*loads_a, *loads_b))
    absent = "not set" if complete else "unknown"

    def shown(value: Scalar | None) -> str:
        return absent if value is None else setting(value)

    listed = [
        f"{name.strip('-').replace('_', ' ')} {shown(x)} / {shown(y)}"
        for name, x, y in unlike
    ]
    return f" They differ in {', '.join(listed)}."


def _loads(groups: Sequence[Group]) -> str:
    """Return the first loads of a side in words."""
    loads = list(dict.fromkeys(f"{g[0].kind}: {_load_words(g[0])}" for g in groups))
    if not loads:
        return "nothing"
    text = "; ".join(loads[:6])
    if len(loads) > 6:
        text += f" and {len(loads) - 6} more"
    return text


def _load_words(row: Row) -> str:
    return load_of(row).compared.words or "unknown load"


def _describe_unpaired(group: Group, several: Sequence[Group]) -> str:
    """Return a setting that has no partner in words, and why if that is known."""
    row = group[0]
    named = row.series
    if row.label and row.form != "run":
        named = row.label
    text = f"{named}: {_load_words(row)}" if named else _load_words(row)
    if any(group is g for g in several):
        text += " (fits several of the other side equally well)"
    return text


class Among(NamedTuple):
    """A comparison of many loads, of which some are looked at."""

    figures: int  # of all loads together
    loads: int


def pairings(
    pairs: Sequence[Pair],
    metrics: Sequence[str] = (),
    gated: Sequence[str] = (),
    anyway: bool = False,
    among: Among | None = None,
) -> list[Pairing]:
    """Compare the two sides of each pair. A report's page and `dyno compare` both take their words from here. `among`:
    the comparison that these pairs are a part of."""
    # A figure that no pair has is missing everywhere. One that some have is not missing where it can't be.
    nowhere = {m for m in metrics if not any(exists(m, two) for two in pairs)}
    undecided = []
    for two in pairs:
        asked = [m for m in metrics if m in nowhere or exists(m, two)]
        gated_here = [m for m in gated if exists(m, two)]
        undecided.append(_pairing(*two, asked, gated_here, anyway))
    first = [_first_asked(p) for p in undecided]
    each = decide([p.differences for p in undecided], among, first)
    decided = []
    for pairing, differences in zip(undecided, each, strict=True):
        word = _summary(pairing.refused, {d.word for d in differences})
        decided.append(replace(pairing, differences=differences, word=word))
    return decided


def _pairing(
    a: Group, b: Group, metrics: Sequence[str], gated: Sequence[str], anyway: bool
) -> Pairing:
    """Compare two groups, without the words of their differences."""
    wanted = list(dict.fromkeys((*(metrics or default_metrics(a, b)), *gated)))
    objected = objections(Two(a, b, wanted))
    refused = not anyway and any(o.against is None for o in objected)
    if refused:
        wanted = []
    excluded = {} if anyway else _excluded(objected)
    shown = [m for m in wanted if m not in excluded]
    known = differences(a, b, shown)
    left = [LeftOut(m, excluded[m]) for m in wanted if m in excluded]
    left += _not_reported(shown, {*metrics, *gated}, known)
    findings = list(_findings(objected, anyway))
    if not known and not refused:
        findings.append(_nothing_left(left))
    findings = worst_first(findings)
    return Pairing(
        kind=a[0].kind,
        load=dict(load_of(a[0]).both(load_of(b[0])).settings),
        a=_side(a),
        b=_side(b),
        verdict=verdict(findings),
        findings=findings,
        refused=refused or not known,
        differences=known,
        left_out=left,
        total=bool(a[0].setting("group") and b[0].setting("group")),
        agreement=agreement(a, b),
    )


def _not_reported(
    shown: Sequence[str], named: set[str], known: Sequence[Difference]
) -> Iterator[LeftOut]:
    """Yield the figures that someone named, and that a side lacks."""
    missing = named - {d.metric for d in known}
    for metric in shown:
        if metric in missing:
            yield LeftOut(metric, "not reported by both sides")


def _excluded(objected: Sequence[Objection]) -> dict[str, str]:
    """Return the figures that findings exclude, and the code of the finding."""
    return {metric: o.finding.code for o in objected if o.against for metric in o.against}


def _findings(objected: Sequence[Objection], anyway: bool) -> Iterator[Finding]:
    for o in objected:
        # shown all the same, the finding is what the figure is: void
        if anyway and o.against:
            yield replace(o.finding, level="void")
        else:
            yield o.finding


def _nothing_left(left: Sequence[LeftOut]) -> Finding:
    listed = ", ".join(f"{x.metric} ({x.why})" for x in left)
    which = f": {listed}." if left else "."
    return Finding(
        "comparability.no_metric",
        "void",
        f"No figure is left that both sides report and define alike{which}",
        "Name others with --metric, or measure both with one tool.",
    )


def _side(group: Group) -> Side:
    def total(name: str) -> int | None:
        values = [v for row in group if (v := row.get(name)) is not None]
        return round(sum(values)) if values else None

    label = group[0].label or group[0].series
    return Side([row.location for row in group], label, total("completed"), total("failed"))


def default_metrics(a: Group, b: Group) -> list[str]:
    """Return the usual figures that both sides have."""
    x, y = a[0], b[0]

    def both(metric: str) -> bool:
        return value_of(x, metric) is not None and value_of(y, metric) is not None

    if x.kind in _DEFAULTS:
        return list(filter(both, _DEFAULTS[x.kind]))
    # One throughput: the others say the same of the same requests, or nothing that could be compared.
    out = list(filter(both, THROUGHPUTS))[:1]
    out += filter(both, ("request_goodput", "session_throughput"))
    for name, stem in STEMS.items():
        if stem.compared in ("middle", "both"):
            out += list(filter(both, (f"median_{name}_ms", f"mean_{name}_ms")))[:1]
        if stem.compared in ("tail", "both"):
            out += list(filter(both, _tails(x, name)))[:1]
    return out


def _tails(row: Row, stem: str) -> list[str]:
    """Return the percentiles of a latency above the median: p99 first where there is one, then from the highest."""
    names = [n for n in row.figures if n.startswith("p") and n.endswith(f"_{stem}_ms")]
    places = {float(n[1:].partition("_")[0]) for n in names}
    order = sorted(places, key=lambda p: (p != 99, -p))
    return [f"p{p:g}_{stem}_ms" for p in order if p > 50]


def differences(a: Group, b: Group, metrics: Sequence[str]) -> list[Difference]:
    """Return the differences, not decided yet: `decide` gives them their words."""
    one, other = estimates(a, metrics), estimates(b, metrics)
    out = []
    for metric in metrics:
        if metric not in one or metric not in other:
            continue
        of_scores = score_difference(a, b) if metric == "score" else None
        out.append(of_scores or difference(metric, one[metric], other[metric]))
    return out


def difference(metric: str, a: Estimate, b: Estimate) -> Difference:
    """Return the difference of one metric by itself."""
    if a.value <= 0 or b.value <= 0:
        word: Word = (
            "no difference detected" if a.value == b.value else "confidence unknown"
        )
        return Difference(metric, a, b, word, why="a ratio needs both")
    change = b.value / a.value - 1
    a, b, error, df = _together(a, b)
    if error is None:
        why = next(e.why for e in (a, b) if e.why)
        return Difference(metric, a, b, "confidence unknown", change, why=why)
    log = math.log(b.value / a.value)
    t = quantile((1 + CONFIDENCE) / 2, df)
    p = two_sided(log / error, df) if error > 0 else float(log == 0)
    low, high = _share(log - t * error), _share(log + t * error)
    requests, repeats = _needed(a, b, log, error, df)
    smallest = _share((t + quantile(POWER, df)) * error)
    wide = low <= 0 <= high and high - low > 1 + change
    return Difference(
        metric,
        a,
        b,
        "inconclusive",
        change=change,
        low=low,
        high=high,
        smallest=smallest,
        p=p,
        more_requests=requests,
        more_repeats=repeats,
        enough_repeats=_enough(a, b) if wide else None,
    )


def _enough(a: Estimate, b: Estimate) -> int:
    """Return how many repeats of each side would make the interval ± 10 %; 0: without repeats, that isn't known."""
    single = [
        e.error * math.sqrt(e.count)
        for e in (a, b)
        if e.error is not None and e.by in ("repeats", "shared")
    ]
    if not single:
        return 0
    deviation = math.hypot(*single)
    for count in range(2, _MOST_REPEATS):
        if quantile(0.975, 2 * (count - 1)) * deviation <= NARROW * math.sqrt(count):
            return count
    return math.ceil((2 * deviation / NARROW) ** 2)


def _share(log: float) -> float:
    # beyond that a number says nothing, and soon there is none
    return math.expm1(min(log, 50.0))


def _together(a: Estimate, b: Estimate) -> tuple[Estimate, Estimate, float | None, float]:
    """Return both sides, and the error of the ratio's logarithm with its degrees of freedom. A single run beside
    repeats is assumed to vary from run to run as those do: what its requests show of it would be too little."""
    if (a.by == "repeats") != (b.by == "repeats"):
        many, one = (a, b) if a.by == "repeats" else (b, a)
        assert many.error is not None
        one = replace(
            one,
            error=many.error * math.sqrt(many.count),
            df=many.df,
            by="shared",
            count=1,
            why="",
        )
        a, b = (many, one) if a is many else (one, many)
        return a, b, many.error * math.sqrt(1 + many.count), many.df
    if a.error is None or b.error is None:
        return a, b, None, 0.0
    return a, b, math.hypot(a.error, b.error), welch_df(a.error**2, a.df, b.error**2, b.df)


def _needed(
    a: Estimate, b: Estimate, log: float, error: float, df: float
) -> tuple[int | None, int | None]:
    """Return how many more of each side until a difference as large as this one would be found: requests, or
    repeats."""
    if not log or not error:
        return None, None
    if "repeats" in (a.by, b.by):
        return None, _more_repeats(a, b, log)
    # More requests bring down the error within a run, and not what differs from run to run.
    wanted = (log / (quantile(0.975, df) + quantile(POWER, df))) ** 2
    repeats = math.ceil(error**2 / wanted - 1)
    left = wanted - 2 * ALLOWED**2
    now = max(a.count, b.count)
    requests = None
    if {a.by, b.by} <= {"requests", "deviation"} and left > 0:
        more = math.ceil(now * ((error**2 - 2 * ALLOWED**2) / left - 1))
        requests = more if 0 < more < _MOST_TIMES * now else None
    return requests, max(repeats, 1) if repeats <= _MOST_REPEATS else None


def _more_repeats(a: Estimate, b: Estimate, log: float) -> int | None:
    """Return how many more repeats of each side would find the difference; None: too many."""
    single = math.hypot(
        *(e.error * math.sqrt(e.count) for e in (a, b) if e.error is not None)
    )
    for count in range(2, max(a.count, b.count) + _MOST_REPEATS):
        df = 2 * (count - 1)
        if (quantile(0.975, df) + quantile(POWER, df)) * single / math.sqrt(count) <= abs(
            log
        ):
            return max(count - min(a.count, b.count), 1)
    return None


def decide(
    each: Sequence[Sequence[Difference]],
    among: Among | None = None,
    first: Sequence[str] = (),
) -> list[list[Difference]]:
    """Give each difference its word, by Holm's rule over all of them: of many figures at many loads, some lie outside
    their interval by chance alone. `first`: the figure of each load that is asked for first; '' where none is. These
    share one half of the error, and all others the other half (Holm's rule with weights)."""
    questions = [*first, *("" for _ in each[len(first) :])]
    known: list[tuple[float, bool]] = []
    for differences, question in zip(each, questions, strict=True):
        known += [(d.p, d.metric == question) for d in differences if d.p is not None]
    last = _least_sure(known, among)
    decided = []
    for differences, question in zip(each, questions, strict=True):
        some = []
        for d in differences:
            sure = d.p is not None and d.p <= last[d.metric == question]
            some.append(replace(d, word=_word(d, sure)))
        decided.append(some)
    return decided


def _least_sure(
    known: Sequence[tuple[float, bool]], among: Among | None
) -> dict[bool, float]:
    """Return the highest p that is sure, of the figures asked for first and of all others. `known`: each p, and whether
    it is of those asked for first."""
    weights = _weights(known, among)
    last, left = {True: -1.0, False: -1.0}, 1.0
    for p, is_first in sorted(known, key=lambda each: each[0] / weights[each[1]]):
        if p > (1 - CONFIDENCE) * weights[is_first] / left:
            break
        last[is_first] = max(last[is_first], p)
        left -= weights[is_first]
    return last


def _weights(known: Sequence[tuple[float, bool]], among: Among | None) -> dict[bool, float]:
    """Return the share of the error that a figure asked for first has, and any other. Of a larger comparison, in which
    only a part is known, they are no more than there."""
    count, firsts = len(known), sum(is_first for _, is_first in known)
    if among is not None and among.figures > count:
        return {True: 0.5 / among.loads, False: 0.5 / among.figures}
    if 0 < firsts < count:
        return {True: 0.5 / firsts, False: 0.5 / (count - firsts)}
    return dict.fromkeys((True, False), 1 / count if count else 1.0)


def _first_asked(pairing: Pairing) -> str:
    """Return the figure that a comparison at this load asks for first: the throughput, where the load doesn't fix it.
    '': none comes before the others."""
    if pairing.kind != "serve" or any(name in pairing.load for name in PACING):
        return ""
    return next((d.metric for d in pairing.differences if d.metric in THROUGHPUTS), "")


def _summary(refused: bool, words: set[Word]) -> Summary:
    """Return one word for a load: whether B is better in something and worse in nothing."""
    if refused:
        return "not comparable"
    if {"better", "worse"} <= words:
        return "mixed"
    order: tuple[Summary, ...] = ("better", "worse", "higher", "lower")
    for word in order:
        if word in words:
            return word
    settled: tuple[Summary, ...] = ("confidence unknown", "no difference detected")
    for word in settled:
        if words == {word}:
            return word
    return "inconclusive"


def _word(d: Difference, sure: bool) -> Word:
    """Return the word of a difference. `sure`: it is significant among all of them."""
    if d.p is None or d.low is None or d.high is None or d.change is None:
        return d.word
    if d.p <= 1 - CONFIDENCE:
        word = _direction(d, rises=d.change > 0)
        return word if sure else _PERHAPS[word]
    if d.points:  # what it could have detected is beside it
        return "no difference detected"
    return (
        "no difference detected"
        if d.low >= -MARGIN and d.high <= MARGIN
        else "inconclusive"
    )


def _direction(d: Difference, rises: bool) -> Word:
    """Return whether B is better or worse, or only higher or lower where neither is better."""
    way = "lower" if d.lower else better(d.metric)
    if way is None:
        return "higher" if rises else "lower"
    return "better" if rises == (way == "higher") else "worse"
