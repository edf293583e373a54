"""What a report says at its top: what was compared, on what, the answer, how sure it is, and what is doubtful."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from dyno.facts.comparison import Difference, Pairing
from dyno.facts.entry import Entry
from dyno.facts.finding import Finding
from dyno.facts.measured import Measured
from dyno.facts.report import Best, Words
from dyno.measure import direction
from dyno.measure.compare import compare
from dyno.measure.entries import Made
from dyno.measure.model_name import named
from dyno.measure.pairs import Group
from dyno.measure.points import whole
from dyno.measure.target import can_be_best, latency, level, shown
from dyno.units import digits

_KINDS = {
    "serve": "served", "throughput": "offline throughput", "latency": "offline latency", "micro": "micro tests",
    "quality": "accuracy",
}  # fmt: skip
_MOST = 4  # of the same kind of sentence
_ALIKE = 0.02  # of a throughput: as good as the same
_WAITS = ("p99_ttft_ms", "median_ttft_ms", "mean_ttft_ms", "p99_e2el_ms", "mean_e2el_ms")
_SPEEDS = ("output_throughput", "total_token_throughput", "speed", "score")
_UNITS = {"output_throughput": "output tokens/s", "total_token_throughput": "total tokens/s",
          "speed": "tokens/s", "score": ""}  # fmt: skip


def conclude(
    made: Sequence[Made], best: Sequence[Best], found: Sequence[Finding], limits: dict[str, float],
    samples: Callable[[Measured], Measured], unfinished: int = 0,
) -> Words:  # fmt: skip
    """`samples`: a result with its single requests, which say how sure a difference is. `unfinished`: trials of a study
    that were not begun or not ended."""
    entries = [m.entry for m in made]
    contests = [*_contests(made, limits), *_small_contests(made)]
    unanswered = list(_unanswered(made, contests, limits))[:_MOST]
    return Words(
        compared=_compared(entries, unfinished),
        on=_on(made),
        answer=[
            *_answers(contests, limits),
            *unanswered,
            *([] if contests or unanswered else [_alone(entries)]),
            *_costs(contests, entries, best, limits),
        ],
        sure=_sure(contests, made, samples),
        doubtful=_doubtful(entries, found, unfinished),
    )


# ---- what ----


def _compared(entries: Sequence[Entry], unfinished: int) -> str:
    series = list(dict.fromkeys(e.series for e in entries))
    loads = list(dict.fromkeys(filter(None, (_axis_words(entries, axis) for axis in _LEVELS))))
    workloads = list(dict.fromkeys(words for e in entries if (words := workload(e))))
    parts = [_listed(series) if len(series) > 1 else series[0] if series else "nothing"]
    kinds = list(dict.fromkeys(_KINDS[e.kind] for e in entries))
    parts.append(f"({', '.join(kinds)})")
    if loads:
        parts.append(f"at {' and '.join(loads)}")
    if workloads:
        parts.append(f"with {_listed(workloads)}" if len(workloads) <= _MOST else f"with {len(workloads)} workloads")
    runs = sum(e.repeats for e in entries if not e.failure)
    repeats = sorted({e.repeats for e in entries if not e.failure})
    told = f"{_many(runs, 'result')}"
    if repeats and repeats[-1] > 1:
        of = str(repeats[0]) if len(repeats) == 1 else f"{repeats[0]} to {repeats[-1]}"
        told += f", {of} repeats of each"
    if failed := sum(bool(e.failure) for e in entries):
        told += f"; {_many(failed, 'trial')} failed and {'has' if failed == 1 else 'have'} none"
    if unfinished:
        told += f"; {_many(unfinished, 'trial')} of the plan {'is' if unfinished == 1 else 'are'} not done"
    return f"{' '.join(parts)}: {told}."


_LEVELS = {
    "concurrency": "concurrency",
    "rate": "requests/s offered",
    "batch_size": "batch size",
    "requests": "requests",
}


def _axis_words(entries: Sequence[Entry], axis: str) -> str:
    values = sorted({e.axes[axis] for e in entries if axis in e.axes})
    if not values:
        return ""
    span = f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"
    return f"{span} {_LEVELS[axis]}" if axis in ("rate", "requests") else f"{_LEVELS[axis]} {span}"


def workload(entry: Entry) -> str:
    """In words; '' where nothing is told."""
    axis = next((a for a in _LEVELS if a in entry.axes), "")
    rest = {k: v for k, v in entry.beside(axis).items() if k not in _LEVELS and k not in ("num_prompts", "completed")}
    return whole(rest)


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
    return ", ".join(parts) + "."


def _machine(m: Made) -> str:
    e, rig = m.entry, m.group[0].rig
    if e.accelerator:
        return f"{e.accelerators:g} × {e.accelerator}" if e.accelerators else e.accelerator
    if rig is not None:
        return f"{rig.cpu}, {_many(rig.cores, 'core')}"
    return ""


# ---- who leads ----


class Contest:
    """Series under one workload, the best first, each at the best of the loads that all of them were measured under."""

    def __init__(self, metric: str, about: str, made: Sequence[Made]) -> None:
        self.metric = metric
        self.about = about
        self.lower = direction.better(metric, str(made[0].entry.load.get("metric", ""))) == "lower"
        self.ranked = sorted(made, key=self.value, reverse=not self.lower)

    def value(self, m: Made) -> float:
        return m.entry.value(self.metric) or 0.0

    @property
    def leader(self) -> Made:
        return self.ranked[0]

    @property
    def second(self) -> Made:
        return self.ranked[1]

    def lead(self) -> float:
        """As a share of the second."""
        other = self.value(self.second)
        return abs(self.value(self.leader) - other) / other if other else 0.0


def _contests(made: Sequence[Made], limits: dict[str, float]) -> Iterator[Contest]:
    """One that was measured under more loads than another has no right to its best of these."""
    for (_, words, axis), there in _families(made, limits).items():
        shared = set.intersection(*({m.entry.axes[axis] for m in of} for of in there.values()))
        held = {name: [m for m in of if m.entry.axes[axis] in shared] for name, of in there.items()}
        if len(held) < 2 or not shared:
            continue
        metric = next(
            (n for n in _SPEEDS if all(m.entry.value(n) is not None for of in held.values() for m in of)), None
        )
        if metric is None:
            continue
        tops = [max(of, key=lambda m: m.entry.value(metric) or 0.0) for of in held.values()]
        contest = Contest(metric, words, tops)
        yield _by_latency(contest, held, axis) if axis == "rate" and contest.lead() < _ALIKE else contest


def _families(made: Sequence[Made], limits: dict[str, float]) -> dict[tuple[str, str, str], dict[str, list[Made]]]:
    """Results that may be held together, by workload and by what their load is told in; then by series."""
    out: dict[tuple[str, str, str], dict[str, list[Made]]] = {}
    for m in made:
        e = m.entry
        axis = next((a for a in _LEVELS if a in e.axes), None)
        if axis is not None and e.kind not in ("micro", "quality") and can_be_best(e, limits):
            out.setdefault((e.kind, workload(e), axis), {}).setdefault(e.series, []).append(m)
    return out


def _by_latency(contest: Contest, held: dict[str, list[Made]], axis: str) -> Contest:
    """Where all serve what is offered, throughput says nothing of them: then who answers sooner does."""
    top = max(m.entry.axes[axis] for of in held.values() for m in of)
    there = [m for of in held.values() for m in of if m.entry.axes[axis] == top]
    metric = next((n for n in _WAITS if all(m.entry.value(n) is not None for m in there)), None)
    return Contest(metric, contest.about, there) if metric is not None else contest


def _small_contests(made: Sequence[Made]) -> Iterator[Contest]:
    """Micro tests and scores: at the same test or task."""
    groups: dict[tuple[object, ...], list[Made]] = {}
    for m in made:
        e = m.entry
        if e.kind in ("micro", "quality") and e.figures and e.verdict != "void":
            groups.setdefault((e.kind, *sorted((k, str(v)) for k, v in e.load.items())), []).append(m)
    for there in groups.values():
        metric = next((n for n in ("speed", "score") if all(m.entry.value(n) is not None for m in there)), None)
        if metric is not None and len({m.entry.series for m in there}) > 1:
            ranked = Contest(metric, whole(there[0].entry.load), there).ranked
            best = {m.entry.series: m for m in reversed(ranked)}  # of a series, its best
            yield Contest(metric, whole(there[0].entry.load), list(best.values()))


def _answers(contests: Sequence[Contest], limits: dict[str, float]) -> Iterator[str]:
    for contest in contests[:_MOST]:
        first, second = contest.leader.entry, contest.second.entry
        alone = first.kind in ("micro", "quality")  # no load
        at = f"{contest.about}: " if contest.about else ""
        kept = f" that keeps {_kept(limits)}" if limits and not alone else ""
        loads = [""] * 2 if alone else [f" at {level(e)}" for e in (first, second)]
        elsewhere = loads[1] if loads[1] != loads[0] else ""
        value, other = (f"{digits(contest.value(m))} {_unit(contest.metric)}".strip() for m in contest.ranked[:2])
        lead = (
            f", {contest.lead():.0%} {'less' if contest.lower else 'more'} than"
            if contest.lead() >= 0.005
            else ", as much as"
        )
        against = ", against" if contest.metric == "score" else lead
        behind = f"{second.series} ({other}{elsewhere}){_rest(contest)}"
        yield f"{at}{first.series} {_does(contest)}: {value}{loads[0]}{kept}{against} {behind}."
        yield from _for_each_accelerator(contest, at)
    if len(contests) > _MOST:
        yield f"{len(contests) - _MOST} more are in the tables."


def _unanswered(made: Sequence[Made], contests: Sequence[Contest], limits: dict[str, float]) -> Iterator[str]:
    """Workloads under which several were measured, and too little of it counts."""
    answered = {c.about for c in contests}
    measured: dict[str, dict[str, list[Entry]]] = {}
    for m in made:
        e = m.entry
        if e.kind not in ("micro", "quality") and any(axis in e.axes for axis in _LEVELS):
            measured.setdefault(workload(e), {}).setdefault(e.series, []).append(e)
    for words, there in measured.items():
        if len(there) < 2 or words in answered:
            continue
        useless = sum(not any(can_be_best(e, limits) for e in of) for of in there.values())
        why = (
            "no load is shared by results that count"
            if len(there) - useless > 1
            else (
                f"{useless} of {len(there)} series have no result that counts: void, over 1 % of the requests failed"
                + (", or over the target" if limits else "")
            )
        )
        yield f"{f'{words}: ' if words else ''}no answer, since {why}."


def _rest(contest: Contest) -> str:
    """Those behind the second, the last one too where not all are named."""
    rest = contest.ranked[2:]
    named = rest if len(rest) <= 3 else [*rest[:2], rest[-1]]
    told = [f"{m.entry.series} {digits(contest.value(m))}" for m in named]
    if len(rest) > 3:
        told[-1] = f"{_many(len(rest) - 3, 'other')}, and last {told[-1]}"
    return f"; then {', '.join(told)}" if told else ""


def _for_each_accelerator(contest: Contest, at: str) -> Iterator[str]:
    """Where they used different numbers of them, the whole says nothing of what one is worth."""
    used = [m.entry.accelerators for m in contest.ranked]
    if contest.lower or contest.metric == "score" or not all(used) or len(set(used)) < 2:
        return
    shares = [(contest.value(m) / (m.entry.accelerators or 1), m.entry.series) for m in contest.ranked]
    told = [f"{name} {digits(share)}" for share, name in sorted(shares, reverse=True)[:4]]
    yield f"{at}For each accelerator: {', '.join(told)} {_unit(contest.metric)}."


def _does(contest: Contest) -> str:
    if contest.metric == "score":
        return "scores best" if contest.lower else "scores highest"
    return f"has the shortest {shown(contest.metric)}" if contest.lower else "gives the most"


def _unit(metric: str) -> str:
    return _UNITS.get(metric, "ms")


def _kept(limits: dict[str, float]) -> str:
    return " and ".join(f"{shown(name)} ≤ {limit:g} ms" for name, limit in limits.items())


def _costs(
    contests: Sequence[Contest], entries: Sequence[Entry], best: Sequence[Best], limits: dict[str, float]
) -> Iterator[str]:
    """Where series are held together, at the loads of that; of one alone, at its best."""
    groups = [(c.about, [m.entry for m in c.ranked]) for c in contests if not c.lower and c.metric in _SPEEDS[:2]]
    if not contests:
        by_id = {e.id: e for e in entries}
        groups = [(b.workload, [by_id[b.entry]]) for b in best if b.entry is not None]
    kept = f" with {_kept(limits)}" if limits else ""
    for words, there in groups[:_MOST]:
        priced = sorted(((p, e) for e in there if (p := _price(e)) is not None), key=lambda pair: pair[0][0])
        if priced:
            (price, what, currency), e = priced[0]
            told = [f"{digits(o[0], 3)} with {other.series} at {level(other)}" for o, other in priced[1:3]]
            at = f"{words}: " if words and len(groups) > 1 else ""
            against = f", {' and '.join(told)}" if told else ""
            who = f"{e.series} at {level(e)}{kept}"
            yield f"{at}A million {what} cost {digits(price, 3)} {currency} with {who}{against} (prices below)."


def _price(e: Entry) -> tuple[float, str, str] | None:
    """Of a million tokens, of which, in what money."""
    if e.cost is None or not e.cost.hour:
        return None
    out, total = e.cost.per_million_output, e.cost.per_million_total
    if out is not None:
        return out, "output tokens", e.cost.currency
    return (total, "tokens", e.cost.currency) if total is not None else None


def _alone(entries: Sequence[Entry]) -> str:
    """Nothing to compare: what the one thing does at most."""
    of = [(v, n, e) for e in entries if e.verdict != "void" for n in _SPEEDS[:3] if (v := e.value(n)) is not None]
    if not of:
        return "No result could be used."
    value, name, e = max(of, key=lambda t: (-_SPEEDS.index(t[1]), t[0]))
    tail = next((n for n in ("p99_ttft_ms", "median_ttft_ms", "mean_ttft_ms") if latency(e, n) is not None), None)
    waits = f", with {shown(tail)} {digits(latency(e, tail) or 0.0)} ms" if tail is not None else ""
    at = f" at {level(e)}" if e.kind != "micro" else f" in {whole(e.load)}"
    return f"{e.series} gives {digits(value)} {_UNITS[name]} at most{at}{waits}."


# ---- how sure ----


def _sure(contests: Sequence[Contest], made: Sequence[Made], samples: Callable[[Measured], Measured]) -> list[str]:
    if not contests:
        return ["Nothing is compared here; intervals in the tables tell how far each figure may be off by chance."]
    return [_held_together(contest, made, samples) for contest in contests[:_MOST]]


def _held_together(contest: Contest, made: Sequence[Made], samples: Callable[[Measured], Measured]) -> str:
    about = f"{contest.about}: " if contest.about else ""
    names = f"{contest.leader.entry.series} against {contest.second.entry.series}"
    found = _under_one_load(contest, made)
    if found is None:
        return f"{about}{names}: they were never measured under the same load."
    a, b = found
    where = "" if b.entry.kind in ("micro", "quality") else f" at {level(b.entry)}"
    sides = [_sampled(m.group, samples) for m in (a, b)]
    result = compare(sides[0], sides[1], (a.entry.series, b.entry.series), [contest.metric])
    if not result.pairings:
        return f"{about}{names}{where}: not held together. {next((f.text for f in result.findings), '')}".rstrip()
    pairing = result.pairings[0]
    if pairing.refused or not pairing.differences:
        letters = f"(A: {a.entry.series}, B: {b.entry.series})"
        return f"{about}{names}{where}: not comparable. {_objection(pairing)} {letters}"
    doubts = [f.text for f in pairing.findings if f.level != "note"][:1]
    letters = f" (A: {a.entry.series}, B: {b.entry.series})" if doubts else ""
    return " ".join([f"{about}{names}{where}: {_how_sure(pairing.differences[0])}.", *doubts]) + letters


def _under_one_load(contest: Contest, made: Sequence[Made]) -> tuple[Made, Made] | None:
    """The second and the leader at the leader's best load, else at the highest that both were measured under."""
    first, second = contest.leader, contest.second
    if _key(first.entry) == _key(second.entry):
        return second, first
    sides = [
        {_key(m.entry): m for m in made if m.entry.series == s.entry.series and m.entry.figures}
        for s in (second, first)
    ]
    best = sides[0].get(_key(first.entry))
    if best is not None:
        return best, first
    shared = [k for k in sides[0] if k in sides[1] and workload(sides[1][k].entry) == workload(first.entry)]
    if not shared:
        return None
    top = max(shared, key=lambda k: sides[1][k].entry.value(contest.metric) or 0.0)
    return sides[0][top], sides[1][top]


def _key(entry: Entry) -> tuple[object, ...]:
    paced = any(a in entry.axes for a in ("concurrency", "rate", "batch_size"))
    load = {k: v for k, v in entry.load.items() if not (paced and k in ("num_prompts", "completed"))}
    return (entry.kind, *sorted((k, str(v)) for k, v in load.items()))


def _sampled(group: Group, samples: Callable[[Measured], Measured]) -> Group:
    return [samples(m) for m in group] if len(group) == 1 else group


def _objection(pairing: Pairing) -> str:
    return next((f.text for f in pairing.findings if f.level != "note"), "No figure is told by both.")


def _how_sure(d: Difference) -> str:
    if d.change is None or d.low is None or d.high is None:
        return f"{d.word}, since {d.why}" if d.why else d.word
    over = "over repeats" if "repeats" in (d.a.by, d.b.by) else "within single runs, which says little of the next run"
    interval = f"{d.change:+.1%} (95 %: {d.low:+.1%} to {d.high:+.1%}, {over})"
    words = {
        "better": "the difference is real", "worse": "the difference is real", "perhaps better": "perhaps real",
        "perhaps worse": "perhaps real", "higher": "the difference is real", "lower": "the difference is real",
    }  # fmt: skip
    return f"{words.get(d.word, d.word)}, {interval}"


# ---- what is doubtful ----


def _doubtful(entries: Sequence[Entry], found: Sequence[Finding], unfinished: int) -> list[str]:
    counts = Counter(e.verdict for e in entries if not e.failure)
    out = []
    total = sum(counts.values())
    if counts["void"] or counts["doubtful"]:
        told = [f"{counts[v]} of {_many(total, 'result')} {'is' if counts[v] == 1 else 'are'} {v}"
                for v in ("void", "doubtful") if counts[v]]  # fmt: skip
        out.append(f"{' and '.join(told)}{'; void ones are in no answer above' if counts['void'] else ''}.")
    serious = [f for f in found if f.level != "note"]
    out += [f"{f.text} ({f.code})" for f in serious[:_MOST]]
    if len(serious) > _MOST:
        out.append(f"{len(serious) - _MOST} more doubts are among the findings below.")
    failed = [(e.failed or 0.0) for e in entries]
    if sum(failed):
        out.append(f"{sum(failed):,.0f} requests failed, in {_many(sum(f > 0 for f in failed), 'result')}.")
    if unfinished:
        out.append(
            f"The study is not finished: {_many(unfinished, 'trial')} {'is' if unfinished == 1 else 'are'} missing."
        )
    if total and all(e.repeats == 1 for e in entries):
        out.append("Nothing was repeated: what differs from run to run is not known.")
    return out or ["Nothing doubtful was found by dyno's checks."]


def _many(count: float, what: str) -> str:
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"


def _listed(words: Sequence[str]) -> str:
    if len(words) > 6:
        return f"{', '.join(words[:5])} and {len(words) - 5} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
