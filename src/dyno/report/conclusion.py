"""What a report says at its top: what was compared, on what, the answer, how sure it is, and what is doubtful."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from dyno.compare.compare import default_metrics, pairings
from dyno.facts.comparison import Difference
from dyno.facts.entry import Entry
from dyno.facts.finding import Finding, Verdict
from dyno.facts.imported import Row
from dyno.facts.load import LOADS, span
from dyno.facts.metric import THROUGHPUTS, better, metric
from dyno.facts.report import Best, Words
from dyno.measure.points import named
from dyno.report.target import (
    FEW,
    SMALL,
    WAITS,
    Contest,
    Limits,
    contests,
    counts,
    latency,
    level,
    limit_words,
    small_contests,
    why_not,
)  # fmt: skip
from dyno.report.timeline import Detail
from dyno.units import digits, many

_KINDS = {
    "serve": "served", "throughput": "offline throughput", "latency": "offline latency", "micro": "micro tests",
    "quality": "accuracy",
}  # fmt: skip
_MOST = 4  # of the same kind of sentence
# Objections that two loads make by themselves.
_BY_LOAD = ("comparability.load", "comparability.requests", "comparability.prompts")
_EQUAL = ("no difference detected", "inconclusive")


def conclude(
    entries: Sequence[Entry], best: Sequence[Best], findings: Sequence[Finding], limits: Limits,
    detail: Callable[[Row], Detail | None], unfinished: int = 0,
) -> Words:  # fmt: skip
    """`detail`: the single requests of a result, which say how sure a difference is. `unfinished`: trials of a study
    that were not begun or not ended."""
    all_contests = [*contests(entries, limits), *small_contests(entries)]
    sure: list[str] = []
    answer: list[str] = []
    for contest in all_contests[:_MOST]:
        sentence, word = _judged(contest, detail)
        sure.append(sentence)
        answer += _answer(contest, word, limits)
    if len(all_contests) > _MOST:
        answer.append(f"{many(len(all_contests) - _MOST, 'more workload')} in the tables.")
    answer += list(_unanswered(entries, all_contests, limits))[:_MOST]
    return Words(
        compared=_compared(entries, unfinished),
        on=_on(entries),
        answer=[*(answer or [_alone(entries, limits)]), *_costs(all_contests, entries, best, limits)],
        sure=sure
        or ["Nothing is compared here; intervals in the tables tell how far each figure may be off by chance."],
        doubtful=_doubtful(entries, findings, unfinished),
    )


# ---- what ----


def _compared(entries: Sequence[Entry], unfinished: int) -> str:
    levels = (span(axis, [e.axes[axis] for e in entries if axis in e.axes]) for axis in LOADS)
    loads = list(dict.fromkeys(filter(None, levels)))
    workloads = _unique(e.load.workload.words for e in entries)
    parts = [_listed(_unique(e.series for e in entries)), f"({', '.join(_unique(_KINDS[e.kind] for e in entries))})"]
    if loads:
        parts.append(f"at {' and '.join(loads)}")
    if workloads:
        parts.append(f"with {'; '.join(workloads) if len(workloads) <= _MOST else f'{len(workloads)} workloads'}")
    done = [e for e in entries if not e.failure]
    counted = many(len(done), "result")
    repeats = sorted({e.repeats for e in done})
    if repeats and repeats[-1] > 1:
        counted += f", of {repeats[0] if len(repeats) == 1 else f'{repeats[0]} to {repeats[-1]}'} repeats each"
    if failed := sum(e.repeats for e in entries if e.failure):
        counted += f"; {many(failed, 'trial')} failed and {'has' if failed == 1 else 'have'} none"
    if unfinished:
        counted += f"; {many(unfinished, 'trial')} of the plan {'is' if unfinished == 1 else 'are'} not done"
    return f"{' '.join(parts)}: {counted}."


def _on(entries: Sequence[Entry]) -> str:
    """Machines, then engines with their versions."""
    machines = _unique(_machine(e) for e in entries)
    with_engine = [e.settings for e in entries if e.settings.get("engine")]
    engines = _unique(f"{s['engine']} {s.get('engine_version') or ''}".strip() for s in with_engine)
    models = _unique(named(str(model)).name for e in entries if (model := e.settings.get("model")))
    days = sorted({str(day)[:10] for e in entries if e.rows[0].form == "run" and (day := e.settings.get("date"))})
    parts = [_listed(machines) if machines else "a machine that nobody tells of"]
    if engines:
        parts.append(_listed(engines))
    if models:
        parts.append(f"serving {_listed(models)}")
    if days:
        parts.append(f"measured {days[0]}" if len(days) == 1 else f"measured {days[0]} to {days[-1]}")
    return ", ".join(parts) + "."


def _machine(e: Entry) -> str:
    rig = e.rows[0].rig
    if e.accelerator:
        return f"{e.accelerators:g} × {e.accelerator}" if e.accelerators else e.accelerator
    return f"{rig.cpu}, {many(rig.cores, 'core')}" if rig is not None else ""


# ---- how sure ----


def _judged(contest: Contest, detail: Callable[[Row], Detail | None]) -> tuple[str, str]:
    """The leader against the second: in a sentence, and in a word; '': they are not comparable."""
    b, a = contest.ranked[:2]
    sides = [_sampled(e.rows, detail) for e in (a, b)]
    # Each at its own best load, they are compared all the same: that is what the answer does.
    loads_differ = level(a) != level(b)
    # With its usual figures beside, as `dyno compare` does: of many, one differs by chance alone.
    usual = default_metrics(sides[0], sides[1])
    metrics = usual if contest.metric in usual else [contest.metric]
    (pair,) = pairings([(sides[0], sides[1])], metrics, anyway=loads_differ)
    if loads_differ:
        where = f", each at its best load ({level(b)} and {level(a)})"
    else:
        where = "" if contest.kind in SMALL else f" at {level(b)}"
    names = f"{_about(contest)}{b.series} against {a.series}{where}"
    letters = f" (A: {a.series}, B: {b.series})"
    serious = [f.text for f in pair.findings if f.level != "note" and not (loads_differ and f.code in _BY_LOAD)]
    d = next((d for d in pair.differences if d.metric == contest.metric), None)
    if d is None or (pair.refused and not loads_differ):
        why = _first_line(serious[0]) if serious else "No figure is told by both."
        return f"{names}: not comparable. {why}{letters}", ""
    doubt = f" {_first_line(serious[0])}{letters}" if serious else ""
    return f"{names}: {_how_sure(d)}.{doubt}", d.word


def _about(contest: Contest) -> str:
    return f"{contest.about}: " if contest.about else ""


def _sampled(rows: Sequence[Row], detail: Callable[[Row], Detail | None]) -> list[Row]:
    single = detail(rows[0]) if len(rows) == 1 else None
    return [single.row] if single is not None else list(rows)


def _how_sure(d: Difference) -> str:
    if d.change is None or d.low is None or d.high is None:
        return f"{d.word}, since {d.why}" if d.why else d.word
    sides = (d.a.by, d.b.by)
    over = "within single runs, which says little of the next run"
    if "repeats" in sides:
        over = "over repeats" if sides == ("repeats", "repeats") else "by one side's repeats: the other was run once"
    interval = f"{d.change:+.1%} (95 %: {d.low:+.1%} to {d.high:+.1%}, {over})"
    if d.word in _EQUAL or d.word == "confidence unknown":
        return f"{d.word}, {interval}"
    return f"{'perhaps' if d.word.startswith('perhaps') else 'the difference is'} real, {interval}"


# ---- the answer ----


def _answer(contest: Contest, word: str, limits: Limits) -> Iterator[str]:
    """`word`: of the comparison of the first two; where it sees no difference, none is claimed."""
    first, second = contest.ranked[:2]
    alone = contest.kind in SMALL  # no load
    keeps = f" that keeps {limit_words(limits)}" if limits and not alone else ""
    loads = ["", ""] if alone else [_where(e) for e in (first, second)]
    elsewhere = loads[1] if loads[1] != loads[0] else ""
    value, other = (f"{digits(contest.value(e))} {metric(contest.metric).unit}".strip() for e in contest.ranked[:2])
    behind = f"{second.series} ({other}{elsewhere}){_rest(contest)}"
    if word in _EQUAL or contest.lead() == 0:
        why = "no difference is detected" if word != "inconclusive" else "it is inconclusive which is better"
        text = f"{why} between {first.series} ({value}{loads[0]}{keeps}) and {behind}"
    else:
        lead = f"{contest.lead():.0%} {'less' if contest.lower else 'more'} than" if contest.lead() < 10 else "against"
        against = "against" if contest.metric == "score" or contest.lead() < 0.005 else lead
        text = f"{first.series} {_does(contest)}: {value}{loads[0]}{keeps}, {against} {behind}"
        text += "" if word else "; but the two are not comparable"
    text += " (of the loads that all of them were measured under)" if contest.partial else ""
    if contest.crossed is not None:
        ahead, mine = contest.crossed
        values = f"{digits(contest.value(ahead))} against {digits(contest.value(mine))}"
        text += f"; at {level(ahead)} {ahead.series} leads, {values}"
    if (more := contest.beyond) is not None:
        given = f"{digits(contest.value(more))}{_where(more)}"
        text += f"; {more.series} gives {given}, where not all were measured"
    if contest.left_out:
        text += f"; without a result that counts there: {_listed(contest.left_out)}"
    yield f"{_about(contest)}{text}."
    yield from _for_each_accelerator(contest)


def _where(e: Entry) -> str:
    return f" at {level(e)}" if level(e) else ""


def _does(contest: Contest) -> str:
    if contest.metric == "score":
        return "scores best" if contest.lower else "scores highest"
    return f"has the shortest {metric(contest.metric).words}" if contest.lower else "gives the most"


def _rest(contest: Contest) -> str:
    """Those behind the second, the last one too where not all are named."""
    rest = contest.ranked[2:]
    shown = rest if len(rest) <= 3 else [*rest[:2], rest[-1]]
    texts = [f"{e.series} {digits(contest.value(e))}" for e in shown]
    if len(rest) > 3:
        texts[-1] = f"{many(len(rest) - 3, 'other')}, and last {texts[-1]}"
    return f"; then {', '.join(texts)}" if texts else ""


def _for_each_accelerator(contest: Contest) -> Iterator[str]:
    """Where they used different numbers of them, the whole says nothing of what one is worth."""
    used = [e.accelerators for e in contest.ranked]
    if contest.lower or contest.metric == "score" or not all(used) or len(set(used)) < 2:
        return
    shares = [(contest.value(e) / (e.accelerators or 1), e.series) for e in contest.ranked]
    texts = [f"{name} {digits(share)}" for share, name in sorted(shares, reverse=True)[:4]]
    yield f"{_about(contest)}For each accelerator: {', '.join(texts)} {metric(contest.metric).unit}."


_WHY = {
    "slow": "over the target", "void": "void", "requests": f"with over {FEW:.0%} of the requests failed",
    "failed": "failed", "throughput": "without a throughput", "silent": "without the latency of the target",
}  # fmt: skip


def _unanswered(entries: Sequence[Entry], answered: Sequence[Contest], limits: Limits) -> Iterator[str]:
    """Workloads under which several were measured, and too little of it counts."""
    families: dict[tuple[str, str], list[Entry]] = {}
    for e in entries:
        if e.kind not in SMALL and e.axis:
            families.setdefault((e.kind, e.load.workload.words), []).append(e)
    for (kind, words), family in families.items():
        if len({e.series for e in family}) < 2 or any((c.kind, c.about) == (kind, words) for c in answered):
            continue
        why = Counter(w for e in family if (w := why_not(e, limits)))
        about = f"{words}: " if words else ""
        if limits and why["slow"] == len(family):
            yield f"{about}no result keeps {limit_words(limits)}."
            continue
        reasons = ", ".join(f"{count} {_WHY[w]}" for w, count in why.most_common())
        counted = f" (of {many(len(family), 'result')} {reasons})" if reasons else ""
        yield f"{about}no answer, since results that count share no load{counted}."


def _alone(entries: Sequence[Entry], limits: Limits) -> str:
    """Nothing to compare: what the one thing does at most."""
    able = [e for e in entries if counts(e, limits)]
    for name in (*THROUGHPUTS, "speed", "score", *WAITS):
        if values := [(v, e) for e in able if (v := e.value(name)) is not None]:
            lower = better(name, str(values[0][1].load.get("metric") or "")) == "lower"
            value, e = (min if lower else max)(values, key=lambda pair: pair[0])
            return _most(value, name, e, limits)
    return "No result could be used." if not limits else f"No result keeps {limit_words(limits)}."


def _most(value: float, name: str, e: Entry, limits: Limits) -> str:
    where = f" in {e.load.words}" if e.kind in SMALL else _where(e)
    keeps = f" that keeps {limit_words(limits)}" if limits else ""
    if name == "score":
        return f"{e.series} scores {digits(value)}{where}."
    if name in WAITS:
        return f"{e.series} has a {metric(name).words} of {digits(value)} ms at least{where}{keeps}."
    tail = next((n for n in WAITS[:3] if latency(e, n) is not None), None)
    waits = f", with {metric(tail).words} {digits(latency(e, tail) or 0.0)} ms" if tail is not None else ""
    return f"{e.series} gives {digits(value)} {metric(name).unit} at most{where}{keeps}{waits}."


def _costs(
    all_contests: Sequence[Contest], entries: Sequence[Entry], best: Sequence[Best], limits: Limits
) -> Iterator[str]:
    """Where series are compared, at the loads of that; of one alone, at its best."""
    groups = [(c.about, c.ranked) for c in all_contests if c.metric in THROUGHPUTS]
    if not all_contests:
        by_id = {e.id: e for e in entries}
        groups = [(b.workload, [by_id[b.entry]]) for b in best if b.entry is not None]
    keeps = f" with {limit_words(limits)}" if limits else ""
    for words, group in groups[:_MOST]:
        for (what, currency), priced in _priced(group).items():
            (price, e), *others = sorted(priced, key=lambda pair: pair[0])
            rest = [f"{digits(p, 3)} with {o.series}{_where(o)}" for p, o in others[:2]]
            about = f"{words}: " if words and len(groups) > 1 else ""
            against = f", {' and '.join(rest)}" if rest else ""
            who = f"{e.series}{_where(e)}{keeps}"
            yield f"{about}A million {what} cost {digits(price, 3)} {currency} with {who}{against} (prices below)."


def _priced(entries: Sequence[Entry]) -> dict[tuple[str, str], list[tuple[float, Entry]]]:
    """Of a million tokens, by which tokens and in what money: these are never compared with each other."""
    out: dict[tuple[str, str], list[tuple[float, Entry]]] = {}
    for e in entries:
        if e.cost is not None and e.cost.hour:
            for what, price in (("output tokens", e.cost.per_million_output), ("tokens", e.cost.per_million_total)):
                if price is not None:
                    out.setdefault((what, e.cost.currency), []).append((price, e))
                    break
    return out


# ---- what is doubtful ----


def _doubtful(entries: Sequence[Entry], findings: Sequence[Finding], unfinished: int) -> list[str]:
    verdicts = Counter(e.verdict for e in entries if not e.failure)
    total = sum(verdicts.values())
    out = []
    if failed := [e for e in entries if e.failure]:
        trials = sum(e.repeats for e in failed)
        out.append(f"{many(trials, 'trial')} failed: {failed[0].series}, {_first_line(failed[0].failure)}")
    out += _unsound(verdicts, total)
    serious = [f for f in findings if f.level != "note" and f.code != "study.failed_trials"]
    out += [f"{f.text} ({f.code})" for f in serious[:_MOST]]
    if len(serious) > _MOST:
        out.append(f"{many(len(serious) - _MOST, 'more doubt')} are among the findings below.")
    lost = [(e.failed or 0.0) for e in entries]
    if sum(lost):
        out.append(f"{sum(lost):,.0f} requests failed, in {many(sum(f > 0 for f in lost), 'result')}.")
    if unfinished:
        out.append(f"The study is not finished: {many(unfinished, 'trial')} of its plan have no result yet.")
    if total and all(e.repeats == 1 for e in entries if not e.failure):
        out.append("Nothing was repeated: what differs from run to run is not known.")
    return out or ["Nothing doubtful was found by dyno's checks."]


def _unsound(verdicts: Counter[Verdict], total: int) -> list[str]:
    texts = [f"{verdicts[v]} of {many(total, 'result')} {'is' if verdicts[v] == 1 else 'are'} {v}"
             for v in _UNSOUND if verdicts[v]]  # fmt: skip
    void = "; void ones are in no answer above" if verdicts["void"] else ""
    return [f"{' and '.join(texts)}{void}."] if texts else []


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
