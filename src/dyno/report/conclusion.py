"""What a report says at its top: what was compared, on what, the answer, how sure it is, and what is doubtful."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from dyno.compare.compare import default_metrics, pairing
from dyno.facts.comparison import Difference
from dyno.facts.entry import Entry
from dyno.facts.finding import Finding
from dyno.facts.load import LOADS, levels_words, whole
from dyno.facts.measured import Measured
from dyno.facts.metric import THROUGHPUTS, better, metric
from dyno.facts.report import Best, Words
from dyno.measure.model_name import named
from dyno.measure.pairs import Group
from dyno.report.contest import SMALL, WAITS, Contest, contests, counts, small_contests
from dyno.report.entries import Made
from dyno.report.target import FEW, kept, latency, level, why_not
from dyno.units import digits, many

_KINDS = {
    "serve": "served", "throughput": "offline throughput", "latency": "offline latency", "micro": "micro tests",
    "quality": "accuracy",
}  # fmt: skip
_MOST = 4  # of the same kind of sentence
# Objections that two loads make by themselves.
_BY_LOAD = ("comparability.load", "comparability.requests", "comparability.prompts")
_EQUAL = ("no difference seen", "can't tell")


def conclude(
    made: Sequence[Made], best: Sequence[Best], found: Sequence[Finding], limits: dict[str, float],
    samples: Callable[[Measured], Measured], unfinished: int = 0,
) -> Words:  # fmt: skip
    """`samples`: a result with its single requests, which say how sure a difference is. `unfinished`: trials of a study
    that were not begun or not ended."""
    entries = [m.entry for m in made]
    held = [*contests(made, limits), *small_contests(made)]
    shown_ones = [_judged(c, samples) for c in held[:_MOST]]
    answer = [text for c, _, word in shown_ones for text in _answer(c, word, limits)]
    if len(held) > _MOST:
        answer.append(f"{many(len(held) - _MOST, 'more workload')} in the tables.")
    answer += list(_unanswered(made, held, limits))[:_MOST]
    return Words(
        compared=_compared(entries, unfinished),
        on=_on(made),
        answer=[*(answer or [_alone(entries, limits)]), *_costs(held, entries, best, limits)],
        sure=[sentence for _, sentence, _ in shown_ones]
        or ["Nothing is compared here; intervals in the tables tell how far each figure may be off by chance."],
        doubtful=_doubtful(entries, found, unfinished),
    )


# ---- what ----


def _compared(entries: Sequence[Entry], unfinished: int) -> str:
    series = list(dict.fromkeys(e.series for e in entries))
    levels = (levels_words(axis, [e.axes[axis] for e in entries if axis in e.axes]) for axis in LOADS)
    loads = list(dict.fromkeys(filter(None, levels)))
    workloads = list(dict.fromkeys(words for e in entries if (words := whole(e.workload))))
    kinds = list(dict.fromkeys(_KINDS[e.kind] for e in entries))
    parts = [_listed(series), f"({', '.join(kinds)})"]
    if loads:
        parts.append(f"at {' and '.join(loads)}")
    if workloads:
        told = "; ".join(workloads) if len(workloads) <= _MOST else f"{len(workloads)} workloads"
        parts.append(f"with {told}")
    there = [e for e in entries if not e.failure]
    counted = many(len(there), "result")
    repeats = sorted({e.repeats for e in there})
    if repeats and repeats[-1] > 1:
        counted += f", of {repeats[0] if len(repeats) == 1 else f'{repeats[0]} to {repeats[-1]}'} repeats each"
    if failed := sum(e.repeats for e in entries if e.failure):
        counted += f"; {many(failed, 'trial')} failed and {'has' if failed == 1 else 'have'} none"
    if unfinished:
        counted += f"; {many(unfinished, 'trial')} of the plan {'is' if unfinished == 1 else 'are'} not done"
    return f"{' '.join(parts)}: {counted}."


def _on(made: Sequence[Made]) -> str:
    """Machines, then engines with their versions."""
    machines = list(dict.fromkeys(filter(None, (_machine(m) for m in made))))
    engines = []
    for m in made:
        e = m.entry
        if name := str(e.settings.get("engine") or ""):
            engines.append(" ".join(filter(None, [name, str(e.settings.get("engine_version") or "")])))
    models = list(dict.fromkeys(named(str(told)).name for m in made if (told := m.entry.settings.get("model"))))
    parts = [_listed(machines) if machines else "a machine that nobody tells of"]
    if engines:
        parts.append(_listed(list(dict.fromkeys(engines))))
    if models:
        parts.append(f"serving {_listed(models)}")
    days = sorted(
        {str(day)[:10] for m in made if m.group[0].row.form == "run" and (day := m.entry.settings.get("date"))}
    )
    if days:
        parts.append(f"measured {days[0]}" if len(days) == 1 else f"measured {days[0]} to {days[-1]}")
    return ", ".join(parts) + "."


def _machine(m: Made) -> str:
    e, rig = m.entry, m.group[0].rig
    if e.accelerator:
        return f"{e.accelerators:g} × {e.accelerator}" if e.accelerators else e.accelerator
    if rig is not None:
        return f"{rig.cpu}, {many(rig.cores, 'core')}"
    return ""


# ---- how sure ----


def _judged(contest: Contest, samples: Callable[[Measured], Measured]) -> tuple[Contest, str, str]:
    """The leader against the second: in a sentence, and in a word; '': they are not comparable."""
    b, a = contest.ranked[:2]
    names = f"{_at(contest)}{b.entry.series} against {a.entry.series}"
    where = "" if contest.kind in SMALL or level(a.entry) != level(b.entry) else f" at {level(b.entry)}"
    sides = [_sampled(m.group, samples) for m in (a, b)]
    # Each at its own best load, they are held together all the same: that is what the answer does.
    apart = level(a.entry) != level(b.entry)
    # With its usual figures beside, as `dyno compare` does: of many, one differs by chance alone.
    usual = default_metrics(sides[0], sides[1])
    metrics = usual if contest.metric in usual else [contest.metric]
    found_of = pairing(sides[0], sides[1], metrics, anyway=apart)
    letters = f" (A: {a.entry.series}, B: {b.entry.series})"
    serious = [f.text for f in found_of.findings if f.level != "note" and not (apart and f.code in _BY_LOAD)]
    if apart:
        where = f", each at its best load ({level(b.entry)} and {level(a.entry)})"
    found = [d for d in found_of.differences if d.metric == contest.metric]
    if not found or (found_of.refused and not apart):
        why = _first_line(serious[0]) if serious else "No figure is told by both."
        return contest, f"{names}{where}: not comparable. {why}{letters}", ""
    d = found[0]
    doubt = f" {_first_line(serious[0])}{letters}" if serious else ""
    return contest, f"{names}{where}: {_how_sure(d)}.{doubt}", d.word


def _at(contest: Contest) -> str:
    return f"{contest.about}: " if contest.about else ""


def _sampled(group: Group, samples: Callable[[Measured], Measured]) -> Group:
    return [samples(m) for m in group] if len(group) == 1 else group


def _how_sure(d: Difference) -> str:
    if d.change is None or d.low is None or d.high is None:
        return f"{d.word}, since {d.why}" if d.why else d.word
    sides = (d.a.by, d.b.by)
    over = "within single runs, which says little of the next run"
    if "repeats" in sides:
        over = "over repeats" if sides == ("repeats", "repeats") else "by one side's repeats: the other was run once"
    interval = f"{d.change:+.1%} (95 %: {d.low:+.1%} to {d.high:+.1%}, {over})"
    words = dict.fromkeys(("better", "worse", "higher", "lower"), "the difference is real")
    words |= dict.fromkeys(("perhaps better", "perhaps worse", "perhaps higher", "perhaps lower"), "perhaps real")
    return f"{words.get(d.word, d.word)}, {interval}"


# ---- the answer ----


def _answer(contest: Contest, word: str, limits: dict[str, float]) -> Iterator[str]:
    """`word`: of the comparison of the first two; where it sees no difference, none is claimed."""
    first, second = (m.entry for m in contest.ranked[:2])
    alone = contest.kind in SMALL  # no load
    keeps = f" that keeps {kept(limits)}" if limits and not alone else ""
    loads = ["", ""] if alone else [_where(e) for e in (first, second)]
    elsewhere = loads[1] if loads[1] != loads[0] else ""
    value, other = (f"{digits(contest.value(m))} {metric(contest.metric).unit}".strip() for m in contest.ranked[:2])
    behind = f"{second.series} ({other}{elsewhere}){_rest(contest)}"
    if word in _EQUAL or contest.lead() == 0:
        why = "no difference is seen" if word != "can't tell" else "it can't be told which is better"
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
        text += f"; at {level(ahead.entry)} {ahead.entry.series} leads, {values}"
    if (more := contest.beyond) is not None:
        given = f"{digits(contest.value(more))}{_where(more.entry)}"
        text += f"; {more.entry.series} gives {given}, where not all were measured"
    if contest.left_out:
        text += f"; without a result that counts there: {_listed(contest.left_out)}"
    yield f"{_at(contest)}{text}."
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
    named_ones = rest if len(rest) <= 3 else [*rest[:2], rest[-1]]
    told = [f"{m.entry.series} {digits(contest.value(m))}" for m in named_ones]
    if len(rest) > 3:
        told[-1] = f"{many(len(rest) - 3, 'other')}, and last {told[-1]}"
    return f"; then {', '.join(told)}" if told else ""


def _for_each_accelerator(contest: Contest) -> Iterator[str]:
    """Where they used different numbers of them, the whole says nothing of what one is worth."""
    used = [m.entry.accelerators for m in contest.ranked]
    if contest.lower or contest.metric == "score" or not all(used) or len(set(used)) < 2:
        return
    shares = [(contest.value(m) / (m.entry.accelerators or 1), m.entry.series) for m in contest.ranked]
    told = [f"{name} {digits(share)}" for share, name in sorted(shares, reverse=True)[:4]]
    yield f"{_at(contest)}For each accelerator: {', '.join(told)} {metric(contest.metric).unit}."


_WHY = {
    "slow": "over the target", "void": "void", "requests": f"with over {FEW:.0%} of the requests failed",
    "failed": "failed", "throughput": "without a throughput", "silent": "without the latency of the target",
}  # fmt: skip


def _unanswered(made: Sequence[Made], held: Sequence[Contest], limits: dict[str, float]) -> Iterator[str]:
    """Workloads under which several were measured, and too little of it counts."""
    answered = {(c.kind, c.about) for c in held}
    measured: dict[tuple[str, str], dict[str, list[Entry]]] = {}
    for m in made:
        e = m.entry
        if e.kind not in SMALL and e.axis:
            measured.setdefault((e.kind, whole(e.workload)), {}).setdefault(e.series, []).append(e)
    for (kind, words), there in measured.items():
        if len(there) < 2 or (kind, words) in answered:
            continue
        why = Counter(w for of in there.values() for e in of if (w := why_not(e, limits)))
        total = sum(map(len, there.values()))
        told = f"{words}: " if words else ""
        if limits and why["slow"] == total:
            yield f"{told}no result keeps {kept(limits)}."
            continue
        reasons = ", ".join(f"{count} {_WHY[w]}" for w, count in why.most_common())
        of = f" (of {many(total, 'result')} {reasons})" if reasons else ""
        yield f"{told}no answer, since results that count share no load{of}."


def _alone(entries: Sequence[Entry], limits: dict[str, float]) -> str:
    """Nothing to compare: what the one thing does at most."""
    able = [e for e in entries if counts(e, limits)]
    for name in (*THROUGHPUTS, "speed", "score", *WAITS):
        of = [(v, e) for e in able if (v := e.value(name)) is not None]
        if of:
            lower = better(name, str(of[0][1].load.get("metric", ""))) == "lower"
            value, e = (min if lower else max)(of, key=lambda pair: pair[0])
            return _most(value, name, e, limits)
    return "No result could be used." if not limits else f"No result keeps {kept(limits)}."


def _most(value: float, name: str, e: Entry, limits: dict[str, float]) -> str:
    where = f" in {whole(e.load)}" if e.kind in SMALL else _where(e)
    keeps = f" that keeps {kept(limits)}" if limits else ""
    if name == "score":
        return f"{e.series} scores {digits(value)}{where}."
    if name in WAITS:
        return f"{e.series} has a {metric(name).words} of {digits(value)} ms at least{where}{keeps}."
    tail = next((n for n in WAITS[:3] if latency(e, n) is not None), None)
    waits = f", with {metric(tail).words} {digits(latency(e, tail) or 0.0)} ms" if tail is not None else ""
    return f"{e.series} gives {digits(value)} {metric(name).unit} at most{where}{keeps}{waits}."


def _costs(
    held: Sequence[Contest], entries: Sequence[Entry], best: Sequence[Best], limits: dict[str, float]
) -> Iterator[str]:
    """Where series are held together, at the loads of that; of one alone, at its best."""
    groups = [(c.about, [m.entry for m in c.ranked]) for c in held if c.metric in THROUGHPUTS]
    if not held:
        by_id = {e.id: e for e in entries}
        groups = [(b.workload, [by_id[b.entry]]) for b in best if b.entry is not None]
    keeps = f" with {kept(limits)}" if limits else ""
    for words, there in groups[:_MOST]:
        for (what, currency), priced in _priced(there).items():
            (price, e), *others = sorted(priced, key=lambda pair: pair[0])
            told = [f"{digits(p, 3)} with {o.series}{_where(o)}" for p, o in others[:2]]
            at = f"{words}: " if words and len(groups) > 1 else ""
            against = f", {' and '.join(told)}" if told else ""
            who = f"{e.series}{_where(e)}{keeps}"
            yield f"{at}A million {what} cost {digits(price, 3)} {currency} with {who}{against} (prices below)."


def _priced(entries: Sequence[Entry]) -> dict[tuple[str, str], list[tuple[float, Entry]]]:
    """Of a million tokens, by which tokens and in what money: these are never held against each other."""
    out: dict[tuple[str, str], list[tuple[float, Entry]]] = {}
    for e in entries:
        if e.cost is not None and e.cost.hour:
            for what, price in (("output tokens", e.cost.per_million_output), ("tokens", e.cost.per_million_total)):
                if price is not None:
                    out.setdefault((what, e.cost.currency), []).append((price, e))
                    break
    return out


# ---- what is doubtful ----


def _doubtful(entries: Sequence[Entry], found: Sequence[Finding], unfinished: int) -> list[str]:
    verdicts = Counter(e.verdict for e in entries if not e.failure)
    total = sum(verdicts.values())
    out = []
    if failed := [e for e in entries if e.failure]:
        trials = sum(e.repeats for e in failed)
        out.append(f"{many(trials, 'trial')} failed: {failed[0].series}, {_first_line(failed[0].failure)}")
    if verdicts["void"] or verdicts["doubtful"]:
        told = [f"{verdicts[v]} of {many(total, 'result')} {'is' if verdicts[v] == 1 else 'are'} {v}"
                for v in ("void", "doubtful") if verdicts[v]]  # fmt: skip
        out.append(f"{' and '.join(told)}{'; void ones are in no answer above' if verdicts['void'] else ''}.")
    serious = [f for f in found if f.level != "note" and f.code != "study.failed_trials"]
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


def _first_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 240 else line[:239] + "…"


def _listed(words: Sequence[str]) -> str:
    if not words:
        return "nothing"
    if len(words) > 6:
        return f"{', '.join(words[:5])} and {len(words) - 5} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
