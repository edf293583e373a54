"""The sentences of a report: subject, answer, confidence and caveats."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from dyno.compare.compare import Among, default_metrics, pairings
from dyno.facts.comparison import ANSWERS_CHECK, QUALITY_TEST, Difference, Pairing
from dyno.facts.entry import Entry
from dyno.facts.finding import Finding, Verdict
from dyno.facts.imported import KINDS, Row
from dyno.facts.load import KEYS, LOADS, span
from dyno.facts.metric import THROUGHPUTS, better, metric
from dyno.facts.report import Best, Contender, Loads, Standing, Words
from dyno.measure.greedy import agreement
from dyno.measure.points import named, same_model
from dyno.numbers import count, many, money, number, percent, setting
from dyno.report.find import sentences as search_sentences
from dyno.report.front import front_sentences, lead_over_reference
from dyno.report.table import too_few
from dyno.report.target import (
    SMALL,
    WAITS,
    Contest,
    Fall,
    Limits,
    contests,
    counts,
    falls,
    latency,
    level,
    limit_words,
    small_contests,
    why_not,
)
from dyno.report.timeline import Detail

_MOST = 4  # sentences of the same kind
_SERIES = 12  # that are compared with the first
_CONTENDERS = 6  # rows of the answer's table: it fits one screen
# Loads of two series whose requests are read to judge a difference. With more, the number of figures alone corrects it,
# which is stricter.
_EXACT = 24
# Objections that two loads make by themselves.
_BY_LOAD = ("comparability.load", "comparability.requests", "comparability.prompts")
_REAL = ("better", "worse", "higher", "lower")
_EQUAL = ("no difference detected", "inconclusive")
_NOTHING_COMPARED = "Nothing is compared here. The tables show the 95 % interval of each figure where it is known."


class Judged(NamedTuple):
    """The leader of a contest against another one."""

    contest: Contest
    leader: Entry
    other: Entry
    difference: Difference | None  # None: not comparable
    doubt: str  # the worst objection to the comparison
    figures: int = 1  # compared together with this one
    too_short: bool = False  # a side has its requests, but too few for an interval

    @property
    def word(self) -> str:
        """Return how sure the lead is; '' where the two are not comparable."""
        if self.difference is None:
            return ""
        word = self.difference.word
        if word in _REAL:
            return "real"
        return "inconclusive" if word.startswith("perhaps") else word

    @property
    def leads(self) -> bool:
        return (
            self.word not in ("", *_EQUAL)
            and not self.too_short
            and self.contest.lead() > 0
        )


def conclude(
    entries: Sequence[Entry],
    best: Sequence[Best],
    findings: Sequence[Finding],
    limits: Limits,
    detail: Callable[[Row], Detail | None],
    unfinished: int = 0,
) -> Words:
    """Return all sentences. `detail`: the single requests of a result, which show how sure a difference is.
    `unfinished`: trials of a study that were not begun or not ended."""
    searched = list(search_sentences(entries))
    # A search ends at the load that its series carries: others aren't measured there.
    given = [e for e in entries if e.search is None]
    all_contests = [*contests(given, limits), *small_contests(given)]
    judge = _Judge(entries, detail)
    # has the scores in words of its own
    if quality := list(front_sentences(entries, judge.differ)):
        all_contests = [c for c in all_contests if c.metric != "score"]
    lead = partial(lead_over_reference, entries, judge.differ)
    judged = [judge(contest, contest.ranked[1]) for contest in all_contests]
    unanswered = list(_unanswered(given, all_contests, limits))
    main = _main(judged)
    answer, standing = _alone(given, limits) if given else ([], None)
    alternative = None
    if main is not None:
        standing = _standing(main, judge)
        other_way = _other_way(main, judge)
        if other_way is not None:
            alternative = _standing(other_way, judge)
        answer = [*_answer(main, judged, limits), *_other_leader(main, other_way)]
    elif unanswered:
        answer = [unanswered[0], *_known_best(answer, standing)]
        standing = _without_common_load(given, limits) or standing
    return Words(
        compared=_compared(entries, unfinished),
        on=_on(entries),
        answer=[*searched, *quality, *_of_speeds(answer, main, quality, lead)],
        confidence=[_confidence(j) for j in judged[:_MOST]] or [_NOTHING_COMPARED],
        caveats=_caveats(entries, findings, unfinished),
        agreement=list(_agreement(entries)),
        workloads=[
            *(" ".join(_workload(j, limits, given)) for j in judged),
            *unanswered,
        ],
        cost=list(_costs(all_contests, entries, best, limits)),
        standing=_with_remark(standing, given),
        alternative=_with_remark(alternative, given),
    )


def _main(judged: Sequence[Judged]) -> Judged | None:
    """Return the contest that the answer shows: of several, that of most series. Serving comes before single tests."""
    return max(
        judged,
        key=lambda j: (j.contest.kind not in SMALL, len(j.contest.entries)),
        default=None,
    )


def _known_best(sentences: list[str], standing: Standing | None) -> list[str]:
    """Return the sentence about the best result, if there is one that can be used."""
    return sentences[:1] if standing is not None else []


def _of_speeds(
    answer: list[str],
    main: Judged | None,
    quality: Sequence[str],
    lead: Callable[[], tuple[Entry, Entry] | None],
) -> list[str]:
    """Return the contest's sentences, unless those about quality say as much: that speeds can't be separated, or how
    far the first is ahead of the second. `lead`: whose speeds they compare."""
    if not quality or main is None or main.difference is None:
        return answer
    if len(main.contest.entries) == 2 and lead() == (main.leader, main.other):
        return []
    return answer if main.leads else []


# ---- what was compared ----


def _compared(entries: Sequence[Entry], unfinished: int) -> str:
    timed = [e for e in entries if e.kind != "quality"] or entries
    kinds = _unique(KINDS[e.kind].measured for e in entries)
    parts = [_listed(_unique(e.series for e in entries)), f"({', '.join(kinds)})"]
    loads = _unique(_levels(entries, axis) for axis in LOADS)
    if loads:
        parts.append(f"at {' and '.join(loads)}")
    workloads = _unique(e.load.workload.words for e in timed)
    if len(workloads) > _MOST:
        parts.append(f"with {len(workloads)} workloads")
    elif workloads:
        parts.append(f"with {'; '.join(workloads)}")
    return f"{' '.join(parts)}: {_counted(entries, timed, unfinished)}."


def counted_results(entries: Sequence[Entry]) -> str:
    """Count what was measured: dyno's own trials by their folders, since one may have many scores; others' results."""
    own = {row.file: row for e in entries for row in e.rows if row.form == "run"}
    trials = sum(row.place is not None for row in own.values())
    others = [e.kind for e in entries if all(row.form != "run" for row in e.rows)]
    scores = others.count("quality")
    counts = [
        (trials, "trial"),
        (len(own) - trials, "run"),
        (len(others) - scores, "result"),
        (scores, "score"),
    ]
    known = [many(n, what) for n, what in counts if n]
    return _listed(known or [many(0, "result")])


def _levels(entries: Sequence[Entry], axis: str) -> str:
    return span(axis, [e.axes[axis] for e in entries if axis in e.axes])


def _counted(entries: Sequence[Entry], timed: Sequence[Entry], unfinished: int) -> str:
    """Count the trials with a result, their repeats, and trials without a result."""
    counted = counted_results([e for e in entries if not e.failure])
    counted += _repeats_each({e.repeats for e in timed if not e.failure})
    failed = sum(e.repeats for e in entries if e.failure)
    if failed:
        counted += f"; {many(failed, 'trial')} failed"
    if unfinished:
        counted += f"; {many(unfinished, 'planned trial')} not run yet"
    return counted


def _repeats_each(counts: set[int]) -> str:
    most = max(counts, default=0)
    if most <= 1:
        return ""
    fewest = min(counts)
    each = str(most) if fewest == most else f"{fewest} to {most}"
    return f", {each} repeats each"


def _on(entries: Sequence[Entry]) -> str:
    """Name the machines, then the engines with their versions."""
    machines = _unique(_machine(e) for e in entries)
    parts = [_listed(machines) if machines else "unknown machine"]
    engines = _unique(_engine(e) for e in entries)
    if engines:
        parts.append(_listed(engines))
    models = _unique(named(str(e.settings.get("model") or "")).name for e in entries)
    if models:
        parts.append(f"serving {_listed(models)}")
    days = sorted(_unique(_day(e) for e in entries))
    if days:
        parts.append(
            f"measured {days[0]}" if len(days) == 1 else f"measured {days[0]} to {days[-1]}"
        )
    return ", ".join(parts) + "."


def _day(e: Entry) -> str:
    """Return the date of dyno's own run."""
    if e.rows[0].form != "run":
        return ""
    return str(e.settings.get("date") or "")[:10]


def _engine(e: Entry) -> str:
    engine = e.settings.get("engine")
    if not engine:
        return ""
    version = e.settings.get("engine_version") or ""
    return str(engine) if version == engine else f"{engine} {version}".strip()


def _machine(e: Entry) -> str:
    if e.accelerator:
        return (
            f"{count(e.accelerators)} × {e.accelerator}"
            if e.accelerators
            else e.accelerator
        )
    rig = e.rows[0].rig
    return f"{rig.cpu}, {many(rig.cores, 'core')}" if rig is not None else ""


# ---- how sure ----


class _Judge:
    """Judges differences as `dyno compare` of the two series does: with all figures at all loads that both have, since
    some of many differ by chance alone."""

    def __init__(
        self, entries: Sequence[Entry], detail: Callable[[Row], Detail | None]
    ) -> None:
        self._entries = [e for e in entries if e.figures]
        self._detail = detail
        # by series: at the same load
        self._shared: dict[tuple[str, str], list[tuple[Entry, Entry]]] = {}
        self._compared: dict[tuple[str, str], Pairing] = {}  # by ids

    def __call__(self, contest: Contest, other: Entry) -> Judged:
        leader = contest.ranked[0]
        # Each at its own best load, they are compared all the same: that is what the answer does.
        loads_differ = level(other) != level(leader)
        pair, figures = self._pairing(other, leader, contest.metric, loads_differ)
        serious = [
            f.text
            for f in pair.findings
            if f.level != "note" and not (loads_differ and f.code in _BY_LOAD)
        ]
        difference = _difference(pair, contest.metric)
        if pair.refused and not loads_differ:
            difference = None
        doubt = ""
        if serious:
            doubt = f"{_first_line(serious[0])} (A: {other.series}, B: {leader.series})"
        elif difference is None:
            doubt = "They share no figure."
        return Judged(
            contest,
            leader,
            other,
            difference,
            doubt,
            figures,
            self._too_short(difference, other, leader),
        )

    def _too_short(self, difference: Difference | None, a: Entry, b: Entry) -> bool:
        if difference is None or difference.word != "confidence unknown":
            return False
        sides = (difference.a, a), (difference.b, b)
        return any(
            side.error is None and self._rows(e)[0].samples is not None for side, e in sides
        )

    def differ(self, one: Entry, other: Entry, metric: str) -> Difference | None:
        """Compare a figure of two entries, the first against the second."""
        pair, _ = self._pairing(other, one, metric, level(other) != level(one))
        return _difference(pair, metric)

    def _pairing(
        self, a: Entry, b: Entry, metric: str, loads_differ: bool
    ) -> tuple[Pairing, int]:
        """Return the comparison, and how many figures it was corrected for."""
        rows = self._rows(a), self._rows(b)
        usual = default_metrics(*rows)
        if loads_differ or metric not in usual:
            metrics = usual if metric in usual else [metric]
            return pairings([rows], metrics, anyway=loads_differ)[0], len(metrics)
        shared = self._at_shared_loads(a.series, b.series)
        count = sum(len(default_metrics(x.rows, y.rows)) for x, y in shared)
        if (a.id, b.id) in self._compared:
            return self._compared[a.id, b.id], count
        return pairings([rows], among=Among(count, len(shared)))[0], count

    def _at_shared_loads(self, a: str, b: str) -> list[tuple[Entry, Entry]]:
        """Return the entries of two series at the loads that both have. Where these are few, compare them, once."""
        if (a, b) not in self._shared:
            pairs = self._same_loads(a, b)
            self._shared[a, b] = pairs
            if len(pairs) <= _EXACT:
                results = pairings([(self._rows(x), self._rows(y)) for x, y in pairs])
                for (x, y), pairing in zip(pairs, results, strict=True):
                    self._compared[x.id, y.id] = pairing
        return self._shared[a, b]

    def _same_loads(self, a: str, b: str) -> list[tuple[Entry, Entry]]:
        ones = [e for e in self._entries if e.series == a]
        others = [e for e in self._entries if e.series == b]
        pairs = []
        for x in ones:
            pairs += [(x, y) for y in others if x.kind == y.kind and x.load.same(y.load)]
        return pairs

    def _rows(self, e: Entry) -> list[Row]:
        """Return the rows of an entry; a single run's has its single requests."""
        single = self._detail(e.rows[0]) if len(e.rows) == 1 else None
        return [single.row] if single is not None else list(e.rows)


def _difference(pair: Pairing, metric: str) -> Difference | None:
    return next((d for d in pair.differences if d.metric == metric), None)


def _confidence(j: Judged) -> str:
    names = f"{_about(j.contest)}{j.leader.series} against {j.other.series}{_where_both(j)}"
    if j.difference is None:
        return f"{names}: not comparable. {j.doubt}"
    return " ".join(filter(None, [f"{names}: {_how_sure(j.difference, j.word)}.", j.doubt]))


def _where_both(j: Judged) -> str:
    one, other = level(j.leader), level(j.other)
    if j.contest.kind in SMALL:
        return ""
    if one != other:
        return f", each at its best load ({one} and {other})"
    return f" at {one}" if one else ""


def _about(contest: Contest) -> str:
    return f"{contest.about}: " if contest.about else ""


def _how_sure(d: Difference, word: str) -> str:
    if d.change is None or d.low is None or d.high is None:
        return f"{word}: {d.why}" if d.why else word
    return f"{word}, {d.change_words} ({_interval(d).replace(' interval', ':')})"


def _interval(d: Difference) -> str:
    """Return the interval and what it rests on; where there is none, why."""
    if d.enough_repeats is not None:
        return d.interval_phrase
    return f"{d.interval_phrase}, {_basis(d)}"


def _basis(d: Difference) -> str:
    if d.points:
        return "paired by item" if d.paired is not None else "by the standard errors"
    sides = (d.a.by, d.b.by)
    if sides == ("repeats", "repeats"):
        return "over repeats"
    return (
        "one side was run once"
        if "repeats" in sides
        else "within single runs; run-to-run variation is unknown"
    )


# ---- the answer: who leads, by how much, how sure ----


def _answer(main: Judged, judged: Sequence[Judged], limits: Limits) -> list[str]:
    who = _who(main, limits)
    if len(judged) > 1:
        example = who
        if main.leads:
            verb = "has" if main.contest.lower else "reaches"
            leader = main.leader
            example = f"{_within(main, limits)}{leader.series} {verb} {_value(main, leader)}, {_margin(main)}."
        return [_leaders(judged), f"{_about(main.contest)}{example}", _sure(judged)]
    if main.difference is None:
        return [who, main.doubt]
    if main.leads:
        return [who, f"That is {_margin(main)}.", _sure(judged)]
    return [who, _sure(judged)]


def _who(j: Judged, limits: Limits) -> str:
    within = _within(j, limits)
    if j.difference is None:
        return f"{within}{j.leader.series} and {j.other.series} are not comparable."
    if j.leads:
        return f"{within}{j.leader.series} {_does(j.contest)}: {_value(j, j.leader)}."
    if j.word == "inconclusive" or j.too_short:
        return f"{within}{j.leader.series} and {j.other.series} can't be separated: {_both(j)}."
    sides = " and ".join(f"{e.series} ({_value(j, e)})" for e in (j.leader, j.other))
    no = "no" if within else "No"
    return f"{within}{no} difference is detected between {sides}."


def _within(j: Judged, limits: Limits) -> str:
    return (
        f"Within {limit_words(limits)}, " if limits and j.contest.kind not in SMALL else ""
    )


def _value(j: Judged, e: Entry) -> str:
    """Return an entry's value in words: '7,699 output tokens/s at concurrency 16'."""
    return f"{number(j.contest.value(e))} {metric(j.contest.metric).unit}".strip() + _where(
        j.contest, e
    )


def _both(j: Judged) -> str:
    """Return both values in words, with what they share once: '3,803 and 2,544 output tokens/s at concurrency 16'."""
    if level(j.leader) == level(j.other):
        return f"{number(j.contest.value(j.leader))} and {_value(j, j.other)}"
    return " and ".join(_value(j, e) for e in (j.leader, j.other))


def _where(contest: Contest, e: Entry) -> str:
    return f" at {level(e)}" if level(e) and contest.kind not in SMALL else ""


def _does(contest: Contest) -> str:
    if contest.metric == "score":
        return "scores best" if contest.lower else "scores highest"
    return (
        f"has the lowest {metric(contest.metric).words}"
        if contest.lower
        else "has the highest throughput"
    )


def _margin(j: Judged) -> str:
    """Return the leader's margin in words: '17 % more than beta (6,556 output tokens/s)'."""
    contest, lead = j.contest, j.contest.lead()
    elsewhere = _where(contest, j.other) if level(j.other) != level(j.leader) else ""
    value = f"{j.other.series} ({number(contest.value(j.other))}{elsewhere})"
    if contest.metric == "score" or lead < 0.005 or lead >= 10:
        return f"against {value}"
    return f"{percent(lead)} {'less' if contest.lower else 'more'} than {value}"


def _leaders(judged: Sequence[Judged]) -> str:
    """Say who leads on how many workloads."""
    total = len(judged)
    wins = Counter(j.leader.series for j in judged if j.leads).most_common()
    if not wins:
        return f"No series clearly leads on any of {total} workloads."
    does = {_does(j.contest) for j in judged}
    lead = does.pop() if len(does) == 1 else "leads"
    (first, won), *rest = wins
    if won == total:
        return f"{first} {lead} on {_all(total)} workloads."
    others = [f"{name} on {n}" for name, n in rest[:2]]
    if len(rest) > 2:
        others.append(f"{many(len(rest) - 2, 'other')} on the rest")
    close = total - sum(n for _, n in wins)
    if close:
        others.append(f"no clear leader on {close}")
    return f"{first} {lead} on {won} of {total} workloads, {', '.join(others)}."


def _all(total: int) -> str:
    return "both" if total == 2 else f"all {total}"


def _sure(judged: Sequence[Judged]) -> str:
    several = len(judged) > 1
    words = Counter(j.word for j in judged)
    if several and len(words) > 1:
        parts = [f"{n} {word or 'not comparable'}" for word, n in words.most_common()]
        return f"Differences between first and second: {', '.join(parts)}."
    j = judged[0]
    d = j.difference
    each = f" on {_all(len(judged))} workloads" if several else ""
    if d is None:
        return f"First and second are not comparable{each}."
    if d.low is None or d.high is None:
        return (
            f"Confidence unknown{each}: {d.why}." if d.why else f"Confidence unknown{each}."
        )
    sure = {"real": "The difference is real", "inconclusive": "Inconclusive"}
    if several:
        return f"{sure.get(j.word, 'No difference detected')}{each}."
    corrected = (
        f" after correction for {j.figures} figures" if d.word.startswith("perhaps") else ""
    )
    return f"{sure.get(j.word, 'Difference')}{corrected}: {_interval(d)}."


def _other_way(main: Judged, judge: _Judge) -> Judged | None:
    """Return the main contest with the other choice of loads; None: there is none."""
    contest = main.contest.other_way()
    return None if contest is None else judge(contest, contest.ranked[1])


def _other_leader(main: Judged, other_way: Judged | None) -> Iterator[str]:
    """Say who leads with the other choice of loads, if it is another."""
    if (
        other_way is None
        or not other_way.leads
        or other_way.leader.series == main.leader.series
    ):
        return
    where = "At one load" if other_way.contest.one_load else "Each at its best load"
    leads, behind = (_value(other_way, e) for e in (other_way.leader, other_way.other))
    yield f"{where}, {other_way.leader.series} leads: {leads}, against {behind} with {other_way.other.series}."


def _without_common_load(entries: Sequence[Entry], limits: Limits) -> Standing | None:
    """Return series that share no load, each at its best, compared with none; None: there aren't two."""
    timed = [e for e in entries if e.axis and e.kind not in SMALL and counts(e, limits)]
    for (_, words), family in _families(timed).items():
        name = _common_throughput(family.values())
        if name is not None and len(family) > 1:
            return _each_at_its_best(family.values(), name, words)
    return None


def _families(
    entries: Sequence[Entry],
) -> dict[tuple[str, str], dict[str, list[Entry]]]:
    """Return the entries by kind and workload, then by series."""
    families: dict[tuple[str, str], dict[str, list[Entry]]] = {}
    for e in entries:
        family = families.setdefault((e.kind, e.load.workload.words), {})
        family.setdefault(e.series, []).append(e)
    return families


def _common_throughput(series: Iterable[list[Entry]]) -> str | None:
    """Return the first throughput that all entries have."""
    able = [e for some in series for e in some]
    return next((n for n in THROUGHPUTS if all(e.value(n) is not None for e in able)), None)


def _each_at_its_best(series: Iterable[list[Entry]], name: str, words: str) -> Standing:
    each = [_best(some, name) for some in series]
    ranked = sorted(each, key=lambda e: e.value(name) or 0.0, reverse=True)
    rows = [Contender(e.id) for e in ranked[:_CONTENDERS]]
    return Standing(name, words, rows, len(ranked) - len(rows), "apart")


def _with_remark(standing: Standing | None, entries: Sequence[Entry]) -> Standing | None:
    """Add what the table's figures don't show: whose throughput falls with the load."""
    if standing is None:
        return None
    by_id = {e.id: e for e in entries}
    shown = {by_id[c.entry].series for c in standing.contenders if c.entry in by_id}
    falling = _falling([e for e in entries if e.series in shown], standing.workload)
    return replace(standing, remark=f"{standing.remark} {falling}".strip())


def _falling(entries: Sequence[Entry], workload: str) -> str:
    """Name those whose throughput is lower at the highest load than at a lower one."""
    fallen = [f for f in falls(entries) if f.best.load.workload.words == workload]
    if not fallen:
        return ""
    load = KEYS[fallen[0].best.axis].against
    each = "; ".join(map(_fall, fallen[:_MOST]))
    more = f"; {len(fallen) - _MOST} more" if len(fallen) > _MOST else ""
    return f"Throughput falls with the {load}: {each}{more}."


def _fall(f: Fall) -> str:
    most, least = (number(e.value(f.metric) or 0.0) for e in (f.best, f.highest))
    low, high = (setting(e.axes[e.axis]) for e in (f.best, f.highest))
    return (
        f"{f.best.series} from {most} at {low} to {least} {metric(f.metric).unit} at {high}"
    )


def _standing(main: Judged, judge: _Judge) -> Standing:
    """Return all contenders of a contest, each with the leader's margin over it."""
    contest = main.contest
    first, *others = contest.ranked
    rows = [Contender(first.id)]
    for other in others[: _CONTENDERS - 1]:
        j = main if other is main.other else judge(contest, other)
        d = j.difference
        word = j.word or "not comparable"
        if d is None:
            rows.append(Contender(other.id, None, None, None, word, False))
        else:
            rows.append(Contender(other.id, d.change, d.low, d.high, word, d.points))
    more = len(others) + 1 - len(rows)
    loads: Loads = "one" if contest.one_load else "best"
    remark = _without_result(contest)
    return Standing(contest.metric, contest.about, rows, more, loads, remark)


# ---- greedy answers ----


def _agreement(entries: Sequence[Entry]) -> Iterator[str]:
    """Compare each series with the first: by the check around loads, and by the items of quality tests."""
    for kind in ("serve", "quality"):
        most = _most_answers([e for e in entries if e.kind == kind])
        first, *others = [*most] or [""]
        for other in others[:_SERIES]:
            a, b = most[first], most[other]
            if not same_model(a.row, b.row):
                continue
            known = agreement([a.row], [b.row])
            if known is not None:
                yield f"{a.test}, {other} against {first}: {known.words}."
        if len(others) > _SERIES:
            yield f"{len(others) - _SERIES:,} more series are left out here. `dyno compare` shows any two."


class _Answers(NamedTuple):
    """The answers of a series, with the test that they are to."""

    row: Row
    test: str


def _most_answers(entries: Sequence[Entry]) -> dict[str, _Answers]:
    """Return the row with most answers of each series that has any."""
    most: dict[str, _Answers] = {}
    for e in entries:
        for row in e.rows:
            known = len(most[e.series].row.answers) if e.series in most else 0
            if len(row.answers) > known:
                most[e.series] = _Answers(row, _asked(e))
    return most


def _asked(e: Entry) -> str:
    """Name the test whose answers are compared."""
    if e.kind == "serve":
        return ANSWERS_CHECK
    return f"{QUALITY_TEST} {e.load.only(('task', 'n_shot')).words}".rstrip()


# ---- one paragraph a workload ----


def _workload(j: Judged, limits: Limits, entries: Sequence[Entry]) -> Iterator[str]:
    contest = j.contest
    who = _who(j, limits)
    if j.leads:
        who = f"{who[:-1]}, {_margin(j)}."
    yield _about(contest) + who
    if rest := contest.ranked[2:]:
        shown = rest if len(rest) <= 3 else [*rest[:2], rest[-1]]
        texts = [f"{e.series} {number(contest.value(e))}" for e in shown]
        if len(rest) > 3:
            texts[-1] = f"{many(len(rest) - 3, 'other')}, last {texts[-1]}"
        yield f"Then {', '.join(texts)}."
    if contest.partial:
        yield "Only loads at which all of them were measured count."
    if contest.crossed is not None:
        ahead, mine = contest.crossed
        values = f"{number(contest.value(ahead))} against {mine.series}'s {number(contest.value(mine))}"
        yield f"At {level(ahead)}, {ahead.series} has {values}."
    if (more := contest.beyond) is not None:
        yield f"{more.series} reaches {number(contest.value(more))}{_where(contest, more)}, where others lack a result."
    if without := _without_result(contest):
        yield without
    yield from _per_accelerator(contest)
    if falling := _falling(entries, contest.about):
        yield falling


def _without_result(contest: Contest) -> str:
    """Name the series that were measured, and have no result that counts."""
    if not contest.left_out:
        return ""
    return f"Without a usable result at these loads: {_listed(contest.left_out)}."


def _per_accelerator(contest: Contest) -> Iterator[str]:
    """Yield the share of one accelerator. Where they used different numbers of them, the whole says nothing of it."""
    used = [e.accelerators for e in contest.ranked]
    if contest.lower or contest.metric == "score" or not all(used) or len(set(used)) < 2:
        return
    shares = [(contest.value(e) / (e.accelerators or 1), e.series) for e in contest.ranked]
    texts = [f"{name} {number(share)}" for share, name in sorted(shares, reverse=True)[:4]]
    yield f"Per accelerator: {', '.join(texts)} {metric(contest.metric).unit}."


_WHY = {
    "slow": "over the target",
    "void": "void",
    "requests": "with too many failed requests",
    "answers": "with too many invalid answers",
    "failed": "failed",
    "throughput": "without a throughput",
    "silent": "without the target's latency",
    "unchecked": "without a check of answers",
}


def _unanswered(
    entries: Sequence[Entry], answered: Sequence[Contest], limits: Limits
) -> Iterator[str]:
    """Yield workloads under which several were measured, and too little of it counts."""
    families: dict[tuple[str, str], list[Entry]] = {}
    for e in entries:
        if e.kind not in SMALL and e.axis:
            families.setdefault((e.kind, e.load.workload.words), []).append(e)
    known = {(contest.kind, contest.about) for contest in answered}
    for (kind, words), family in families.items():
        if (kind, words) not in known and len({e.series for e in family}) > 1:
            about = f"{words}: " if words else ""
            yield about + _no_answer(family, limits)


def _no_answer(family: Sequence[Entry], limits: Limits) -> str:
    """Say why the results of a workload don't give an answer."""
    each = [why_not(e, limits) for e in family]
    why = Counter(filter(None, each))
    if limits and why["slow"] == len(family):
        return f"no result meets {limit_words(limits)}."
    able = {e.series for e, reason in zip(family, each, strict=True) if not reason}
    if limits and len(able) == 1 and set(why) == {"slow"}:
        return f"only {able.pop()} meets {limit_words(limits)}."
    reasons = ", ".join(f"{n} {_WHY[w]}" for w, n in why.most_common())
    counted = f" ({reasons} of {many(len(family), 'result')})" if reasons else ""
    return f"no answer: the usable results share no load{counted}."


def _alone(entries: Sequence[Entry], limits: Limits) -> tuple[list[str], Standing | None]:
    """Return the best of the one series, and its loads, where there is nothing to compare."""
    able = [e for e in entries if counts(e, limits)]
    for name in (*THROUGHPUTS, "speed", "score", *WAITS):
        known = [e for e in able if e.value(name) is not None]
        if known:
            e = _best(known, name)
            sentences = [_most(e.value(name) or 0.0, name, e, limits), _spread(e, name)]
            return list(filter(None, sentences)), _own_loads(e, known, name)
    return [
        f"No result meets {limit_words(limits)}." if limits else "No result could be used."
    ], None


def _best(entries: Sequence[Entry], name: str) -> Entry:
    lower = better(name, str(entries[0].load.get("metric") or "")) == "lower"
    choose = min if lower else max
    return choose(entries, key=lambda e: e.value(name) or 0.0)


def _own_loads(e: Entry, entries: Sequence[Entry], name: str) -> Standing:
    """Return the loads of the same series and workload around an entry."""

    def subject(other: Entry) -> tuple[object, ...]:
        return other.series, other.kind, other.load.workload

    loads = [other for other in entries if subject(other) == subject(e)]
    first = max(0, min(loads.index(e) - _CONTENDERS // 2, len(loads) - _CONTENDERS))
    rows = [Contender(other.id) for other in loads[first : first + _CONTENDERS]]
    return Standing(name, e.load.workload.words, rows, len(loads) - len(rows), "own")


def _most(value: float, name: str, e: Entry, limits: Limits) -> str:
    where = ""
    if e.kind in SMALL:
        where = f" in {e.load.words}"
    elif level(e):
        where = f" at {level(e)}"
    if name == "score":
        return f"{e.series} scores {number(value)}{where}."
    within = f"Within {limit_words(limits)}, " if limits else ""
    if name in WAITS:
        return (
            f"{within}{e.series} has a {metric(name).words} of {number(value)} ms{where}."
        )
    tail = next((n for n in WAITS[:3] if latency(e, n) is not None), None)
    waits = (
        f", with {metric(tail).words} {number(latency(e, tail) or 0.0)} ms"
        if tail is not None
        else ""
    )
    return f"{within}{e.series} reaches {number(value)} {metric(name).unit}{where}{waits}."


def _spread(e: Entry, name: str) -> str:
    figure = e.figures[name]
    out = [] if e.repeats > 1 else ["Single run: run-to-run variation is unknown."]
    if figure.enough is not None:
        out.append(f"No useful interval: {too_few(figure)}.")
    elif figure.low is not None and figure.high is not None:
        over = f"over {e.repeats} repeats" if e.repeats > 1 else "within the run"
        out.append(f"95 % interval {over}: {number(figure.low)} to {number(figure.high)}.")
    return " ".join(out)


# ---- cost ----


def _costs(
    all_contests: Sequence[Contest],
    entries: Sequence[Entry],
    best: Sequence[Best],
    limits: Limits,
) -> Iterator[str]:
    """Yield the cost of tokens: of compared series at the loads of the comparison, of one alone at its best."""
    if all_contests:
        groups = [(c.about, c.ranked) for c in all_contests if c.metric in THROUGHPUTS]
    else:
        groups = list(_best_alone(entries, best))
    within = f" within {limit_words(limits)}" if limits else ""
    for words, group in groups[:_MOST]:
        about = f"{words}: " if words and len(groups) > 1 else ""
        for (what, currency), priced in _priced(group).items():
            yield f"{about}A million {what} cost {_cheapest(priced, currency)}{within}."


def _best_alone(
    entries: Sequence[Entry], best: Sequence[Best]
) -> Iterator[tuple[str, list[Entry]]]:
    """Yield each workload with the entry of its best load."""
    by_id = {e.id: e for e in entries}
    for b in best:
        if b.entry is not None:
            yield b.workload, [by_id[b.entry]]


def _cheapest(priced: Sequence[tuple[float, Entry]], currency: str) -> str:
    cheapest = sorted(priced, key=lambda pair: pair[0])[:3]
    return ", ".join(
        f"{money(price)} {currency} with {e.series} at {level(e)}" for price, e in cheapest
    )


def _priced(entries: Sequence[Entry]) -> dict[tuple[str, str], list[tuple[float, Entry]]]:
    """Return prices of a million tokens, by kind of token and currency: these are never compared with each other."""
    out: dict[tuple[str, str], list[tuple[float, Entry]]] = {}
    for e in entries:
        if e.cost is None or not e.cost.hour:
            continue
        for what, price in (
            ("output tokens", e.cost.per_million_output),
            ("tokens", e.cost.per_million_total),
        ):
            if price is not None:
                out.setdefault((what, e.cost.currency), []).append((price, e))
                break
    return out


# ---- caveats ----


def _caveats(
    entries: Sequence[Entry], findings: Sequence[Finding], unfinished: int
) -> list[str]:
    done = [e for e in entries if not e.failure]
    out = [
        *_failed_trials([e for e in entries if e.failure]),
        *_unsound(Counter(e.verdict for e in done), len(done)),
        *_serious(findings),
        *_lost_requests(entries),
    ]
    if unfinished:
        out.append(
            f"The study is not finished: {many(unfinished, 'planned trial')} not run yet."
        )
    if done and all(e.repeats == 1 for e in done):
        out.append("Nothing was repeated: run-to-run variation is unknown.")
    return out or ["No problems found."]


def _failed_trials(failed: Sequence[Entry]) -> Iterator[str]:
    if failed:
        trials = sum(e.repeats for e in failed)
        yield f"{many(trials, 'trial')} failed: {failed[0].series}, {_first_line(failed[0].failure)}"


def _lost_requests(entries: Sequence[Entry]) -> Iterator[str]:
    lost = [e.failed or 0.0 for e in entries]
    if sum(lost):
        yield f"{many(sum(lost), 'request')} failed, in {many(sum(f > 0 for f in lost), 'result')}."


def _serious(findings: Sequence[Finding]) -> Iterator[str]:
    serious = [f for f in findings if f.level != "note" and f.code != "study.failed_trials"]
    for f in serious[:_MOST]:
        yield f"{f.text} ({f.code})"
    if len(serious) > _MOST:
        yield f"{many(len(serious) - _MOST, 'more doubt')} in the findings below."


def _unsound(verdicts: Counter[Verdict], total: int) -> Iterator[str]:
    texts = []
    for verdict in _UNSOUND:
        n = verdicts[verdict]
        if n:
            texts.append(
                f"{n} of {many(total, 'result')} {'is' if n == 1 else 'are'} {verdict}"
            )
    if texts:
        void = (
            " Void results are excluded from the answer above." if verdicts["void"] else ""
        )
        yield f"{' and '.join(texts)}.{void}"


_UNSOUND: tuple[Verdict, ...] = ("void", "doubtful")


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))


def _first_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 240 else line[:239] + "…"


def _listed(words: Sequence[str]) -> str:
    if not words:
        return "nothing"
    if len(words) > 6:
        return f"{', '.join(words[:5])} and {len(words) - 5} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
