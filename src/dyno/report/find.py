"""The answer of a search for the highest load within a target, in words, with the table of its probes."""

from collections import Counter
from collections.abc import Iterator, Sequence

from dyno.facts.entry import Cost, Entry
from dyno.facts.find import FindAnswer, FindSpec, ProbeFacts, SearchTime
from dyno.facts.metric import words
from dyno.numbers import (
    count,
    duration,
    many,
    money,
    number,
    percent,
    rough_span,
    rough_time,
)
from dyno.report.searches import limit_title, probes
from dyno.report.table import terminal
from dyno.screen import wrapped

_MOST = 5  # further searches in a report's answer
_CONFIRMED = {"meets": "it meets the target", "misses": "it MISSES the target: take less"}
_ENDED = {
    "budget": "The time is used up (--budget): this is the best answer so far.",
    "client": "dyno could not measure this load accurately: the search ended there.",
    "interrupted": "Interrupted: this is the best answer so far.",
    "server gone": "The server stopped answering: this is the best answer so far. Read its log.",
    "void": "A load could not be measured: its probes were void.",
}


def target_words(spec: FindSpec) -> str:
    return ", ".join(limit.words for limit in spec.limits)


def targets(answers: Sequence[FindAnswer]) -> str:
    return "; ".join(dict.fromkeys(target_words(answer.spec) for answer in answers))


# ---- in words ----


def describe_search(spec: FindSpec) -> str:
    """Say what is searched for, before it is known."""
    low, high, _ = spec.range
    unit = "concurrency" if spec.over == "concurrency" else "requests/s"
    return (
        f"highest load with {target_words(spec)}, {unit} {count(low)} to "
        f"{count(high)}, up to {duration(spec.budget_s)}"
    )


def time_words(
    estimate: SearchTime,
    budget_s: float,
    spent_s: float | None = None,
    confirm_s: float | None = None,
) -> str:
    """Say how long it takes; with `spent_s`, how much longer."""
    least, most = (
        max(s - (spent_s or 0.0), 0.0) for s in (estimate.least_s, estimate.most_s)
    )
    if spent_s is not None:
        return f"About {rough_span(least, most)} left"
    probes = f"{estimate.probes_least} to {estimate.probes_most} probes"
    confirm = f", then {rough_time(confirm_s)} (--confirm)" if confirm_s else ""
    return f"about {rough_span(least, most)}: {probes}; at most {rough_time(budget_s)} (--budget){confirm}"


def level_words(answer: FindAnswer, level: float) -> str:
    return (
        f"concurrency {count(level)}"
        if answer.spec.over == "concurrency"
        else f"{count(level)} requests/s"
    )


def lines(answer: FindAnswer, cost: Cost | None = None) -> Iterator[str]:
    """Yield the answer, as printed. `cost`: at the highest load."""
    for line in _sentences(answer, cost):
        yield from wrapped(line.lstrip(), "  " if line.startswith(" ") else "", "    ")
    if not answer.probes:
        return
    yield ""
    yield from terminal(probes(answer))
    sent = sum(probe.sent for probe in answer.probes)
    again = ""
    if answer.repeated:
        again = f", {many(answer.repeated, 'probe')} void or disturbed and not counted"
    yield f"{many(len(answer.probes), 'probe')}, {count(sent)} requests, {duration(answer.duration_s)}{again}"
    if doubts := _doubts(answer):
        yield from wrapped(doubts)


def _doubts(answer: FindAnswer) -> str:
    """Name the findings that make probes doubtful."""
    times = Counter(code for probe in answer.probes for code in probe.doubts)
    if not times:
        return ""
    named = ", ".join(f"{code} ({many(n, 'probe')})" for code, n in times.most_common())
    return f"Doubtful by {named}: `dyno runs show` of a probe explains it."


def _sentences(answer: FindAnswer, cost: Cost | None) -> Iterator[str]:
    yield f"Highest load with {target_words(answer.spec)}:"
    yield f"  {headline(answer)}"
    for which, what, end, probe in (
        ("highest", "meets", answer.low, answer.below),
        ("lowest", "misses", answer.high, answer.above),
    ):
        if probe is not None:
            tried = " tried" if probe.level != end else ""
            with_figures = f"{level_words(answer, probe.level)} with {figures(probe)}"
            yield f"  {which}{tried} that {what} it: {with_figures}"
    if cost is not None and cost.per_million_output is not None:
        each = f"{money(cost.per_million_output)} {cost.currency} per million output tokens"
        yield f"  cost there: {each} ({cost.source})"
    if answer.limited_by:
        yield f"  limited by: {'; '.join(answer.limited_by)}"
    for remark_ in _remarks(answer):
        yield f"  {remark_}"
    if answer.confirmed is not None:
        yield f"  confirmed for {duration(answer.confirmed.duration_s)}: {_confirmed(answer.confirmed)}"
    if answer.ended in _ENDED and (answer.probes or answer.ended != "interrupted"):
        yield f"  {_ENDED[answer.ended]} {answer.void}".rstrip()
    if answer.command:
        todo = "measure it again" if answer.decided else "search again"
        yield f"  {todo}: {answer.command}"


def _remarks(answer: FindAnswer) -> Iterator[str]:
    """Yield what else is known, and what makes the answer doubtful."""
    for finding in answer.findings:
        yield f"{'VOID' if finding.level == 'void' else 'doubtful'} ({finding.code}): {finding.text}"
    if answer.cliff:
        yield f"a cliff: {answer.cliff}. Stay well below it."
    if answer.contradiction:
        yield f"{answer.contradiction} Runs differ by more than the bounds: repeat the search."
    if answer.varies:
        yield answer.varies
    if answer.starts:
        yield answer.starts
    if answer.line:
        yield answer.line
    if disturbed := [probe for probe in answer.probes if probe.disturbed]:
        yield f"disturbed: {disturbed[-1].disturbed} ({len(disturbed)} of {many(len(answer.probes), 'probe')})"


def headline(answer: FindAnswer) -> str:
    """Return the highest load, with its interval."""
    low, high = answer.low, answer.high
    if answer.ended == "every load meets" and low is not None:
        return f"every load up to {level_words(answer, low)} meets it. Raise --to."
    if answer.none_meets:
        return _no_load(answer)
    if not answer.probes:
        return "not known: no probe was completed."
    if low is None or high is None:
        return _undecided(answer)
    return f"{level_words(answer, low)} (95 % interval: {count(low)} to {count(high)})"


def _no_load(answer: FindAnswer) -> str:
    lowest = answer.high if answer.high is not None else answer.spec.range[0]
    lower = "" if answer.spec.over == "concurrency" and lowest == 1 else " or lower --from"
    return (
        f"no load meets it, not even {level_words(answer, lowest)}. Raise the limit{lower}."
    )


def _undecided(answer: FindAnswer) -> str:
    """Say what the probes show where they don't show both ends at 95 %."""
    low, high = answer.likely_low or answer.low, answer.likely_high or answer.high
    unit = "concurrency " if answer.spec.over == "concurrency" else ""
    after = "" if unit else " requests/s"
    if low is not None and high is not None:
        known = f"between {unit}{count(low)} and {count(high)}{after}"
        if answer.confidence is not None:
            known += f" ({answer.confidence:.0%} interval)".replace("%", " %")
    elif low is not None:
        known = f"at least {unit}{count(low)}{after}; no probe showed a load that misses it"
    elif high is not None:
        known = f"below {unit}{count(high)}{after}; no load was shown to meet it"
    else:
        levels = [probe.level for probe in answer.probes]
        span = (
            count(min(levels))
            if min(levels) == max(levels)
            else f"{count(min(levels))} to {count(max(levels))}"
        )
        known = f"{unit}{span}{after} was tried, and none is shown to meet or miss it"
    more = (
        f" Repeat it with more time: about {rough_time(answer.needs_s)} (--budget) would do."
        if answer.needs_s
        else ""
    )
    return f"not decided at 95 %: {known}.{more}"


def remark(answer: FindAnswer) -> str:
    """Return the answer in a sentence or two, with what limits it."""
    parts = [f"{headline(answer).rstrip('.')}."]
    if answer.limited_by:
        parts.append(f"Limited by {'; '.join(answer.limited_by)}.")
    parts += [f"{each[0].upper()}{each[1:].rstrip('.')}." for each in _remarks(answer)]
    if answer.confirmed is not None:
        parts.append(
            f"Confirmed for {duration(answer.confirmed.duration_s)}: {_confirmed(answer.confirmed)}."
        )
    if answer.ended in _ENDED:
        parts.append(_ENDED[answer.ended])
    return " ".join(parts)


def sentences(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield which series carries the highest load within the target, for each workload."""
    groups: dict[tuple[str, str], list[tuple[Entry, FindAnswer]]] = {}
    for e in entries:
        if answer := e.search:
            key = e.load.workload.words, target_words(answer.spec)
            groups.setdefault(key, []).append((e, answer))
    several = len({workload for workload, _ in groups}) > 1
    for (workload, target), each in groups.items():
        about = f"{workload}: " if several else ""
        (first, best), *others = sorted(each, key=lambda pair: -(pair[1].low or 0.0))
        if best.low is None:
            yield f"{about}no load with {target} was found."
            continue
        order = _order(best.low, [answer for _, answer in others])
        yield f"{about}Within {target}, {first.series} carries {headline(best).rstrip('.')}.{order}"
        for e, answer in others[:_MOST]:
            yield f"{about}{e.series}: {headline(answer).rstrip('.')}."


def _order(highest: float, others: Sequence[FindAnswer]) -> str:
    """Say how sure it is that the others carry less."""
    if not others:
        return ""
    if all(other.high is not None and other.high <= highest for other in others):
        return " This is the highest."
    return " Intervals overlap: the order is inconclusive."


def figures(probe: ProbeFacts, speed: bool = True) -> str:
    each = []
    for figure in probe.figures:
        if figure.limit.is_share:
            each.append(f"{percent(figure.value)} {figure.limit.stem}")
        else:
            each.append(f"{limit_title(figure.limit)} {number(figure.value)} ms")
    if speed and probe.throughput:
        each.append(f"{number(probe.throughput)} {words(probe.throughput_of)}")
    return ", ".join(each)


def _confirmed(probe: ProbeFacts) -> str:
    word = _CONFIRMED.get(probe.outcome, "too few requests to decide")
    return f"{word} ({figures(probe)})"
