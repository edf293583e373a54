"""A comparison as people read it: one row a load, or each load with its figures, words and findings."""

from collections.abc import Callable, Iterator, Sequence

from dyno.facts.comparison import (
    ANSWERS_CHECK,
    CONFIDENCE,
    LEAST_VARIATION,
    ONE_RUN,
    QUALITY_TEST,
    Agreement,
    Comparison,
    Difference,
    GateResult,
    Pairing,
    Side,
)
from dyno.facts.finding import Finding
from dyno.facts.load import Load
from dyno.facts.metric import latency, words
from dyno.numbers import UNKNOWN, count, many, number, percent, points, rounded_up
from dyno.report.block import finding_lines
from dyno.report.table import Table, markdown, terminal, text_table
from dyno.screen import styled, verdict_style, wrapped

_HEAD = ["", "A", "B", "change", "95 % interval", "detectable", "B is"]
_BY = {
    "repeats": "over repeats",
    "shared": "over one side's repeats",
    "requests": "over requests",
    "iterations": "over iterations",
    "slices": "over slices of time",
    "deviation": "by the printed deviation",
    "stderr": "by the printed standard error",
    "items": "paired by item",
}
# Of each the first that there is: the columns of the overview.
_MAIN = (
    ("output_throughput", "total_token_throughput", "request_throughput", "speed", "score"),
    (
        "median_ttft_ms",
        "mean_ttft_ms",
        "median_latency_ms",
        "mean_latency_ms",
        "median_e2el_ms",
        "mean_e2el_ms",
    ),
    ("median_tpot_ms", "mean_tpot_ms", "median_itl_ms", "mean_itl_ms"),
)
_STATES = {"held": "holds", "broken": "BROKEN", "undecided": "undecided"}


def text(c: Comparison, details: bool = False) -> str:
    return "\n".join(_lines(c, details, as_markdown=False))


def as_markdown(c: Comparison, details: bool = False) -> str:
    return "\n".join(_lines(c, details, as_markdown=True))


def _lines(c: Comparison, details: bool, as_markdown: bool) -> Iterator[str]:
    """Yield the whole text. `details`: with all figures, of many loads, too."""
    item = "- " if as_markdown else ""
    yield f"{item}A  {c.a}"
    yield f"{item}B  {c.b}"
    several = len(c.pairings) > 1
    everywhere = _everywhere(c) if several else []
    if several:
        yield ""
        yield from _overview(c, details, as_markdown)
    if not several or details:
        for p in c.pairings:
            yield ""
            yield from _pairing(p, as_markdown, everywhere, _figures(c))
    yield from _gates(c, as_markdown)
    yield from _unpaired(c)
    if everywhere:
        yield ""
        yield f"For {_all_of(c.pairings)}:"
        yield from _findings(everywhere, as_markdown)
    if several and not details:
        yield from _gathered(c, everywhere, as_markdown)
    if c.findings:
        yield ""
        yield from _findings(c.findings, as_markdown)
    yield ""
    yield f"Verdict: {_verdict(c, as_markdown)}"


def _everywhere(c: Comparison) -> list[Finding]:
    """Return the findings that all loads have."""
    return [f for f in c.pairings[0].findings if all(f in p.findings for p in c.pairings)]


def _unpaired(c: Comparison) -> Iterator[str]:
    for name, left in (("A", c.unpaired_a), ("B", c.unpaired_b)):
        if left and c.pairings:
            yield ""
            yield from wrapped(f"Only in {name}, not compared: {'; '.join(left)}.")


def _verdict(c: Comparison, as_markdown: bool) -> str:
    verdict = c.verdict if as_markdown else styled(c.verdict, verdict_style(c.verdict))
    if c.anyway and c.verdict == "void":
        return f"{verdict} (compared because of --anyway)"
    return verdict


# ---- one row a load ----


def _overview(c: Comparison, details: bool, as_markdown: bool) -> Iterator[str]:
    loads, common = _loads(c)
    if common:
        yield f"All {_noun(c)}s: {common}"
        yield ""
    for table in _overview_tables(c, loads):
        yield from _table(table, as_markdown)
        yield ""
    about = _about([d for p in c.pairings for d in p.differences])
    if not details:
        about += " --details shows every figure."
    yield from _item(about, as_markdown)
    yield from _lowest_agreement(c, as_markdown)


def _overview_tables(c: Comparison, loads: Sequence[str]) -> Iterator[Table]:
    """Yield the table of speeds and that of scores, where there are any."""
    named = list(zip(loads, c.pairings, strict=True))
    speeds = [(load, p) for load, p in named if p.kind != "quality"]
    if speeds:
        yield _speeds(speeds)
    scores = [(load, p) for load, p in named if p.kind == "quality"]
    if scores:
        yield _scores(scores)


def _lowest_agreement(c: Comparison, as_markdown: bool) -> Iterator[str]:
    """Yield the lowest agreement of each test: a load asks the same prompts as the others."""
    for test in (ANSWERS_CHECK, QUALITY_TEST):
        known = _agreements([p for p in c.pairings if _test(p) == test])
        if not known:
            continue
        lowest = min(known, key=lambda a: a.identical / a.answers)
        worst = ", at the worst load" if len(known) > 1 else ""
        yield from _item(f"{test}{worst}: {lowest.words}.", as_markdown)


def _agreements(pairings: Sequence[Pairing]) -> list[Agreement]:
    """Return the agreement of each load, or of all tasks together where they have one."""
    totals = [p for p in pairings if p.total and p.agreement is not None]
    return [p.agreement for p in totals or pairings if p.agreement is not None]


def _test(p: Pairing) -> str:
    """Name the test whose answers are compared."""
    return QUALITY_TEST if p.kind == "quality" else ANSWERS_CHECK


def _about(differences: Sequence[Difference]) -> str:
    """Say what the overview shows, and how far it is sure."""
    if all(d.low is None for d in differences):
        unknown = "; ".join(dict.fromkeys(d.why for d in differences if d.why))
        return f"Change of B against A. Confidence unknown: {unknown}."
    corrected = (
        f"The last column is corrected for all {len(differences)} figures (Holm's rule)."
    )
    return (
        f"Change of B against A, with its 95 % interval{_assumed(differences)}. {corrected}"
    )


def _assumed(differences: Sequence[Difference]) -> str:
    """Say what the intervals rest on beside the data."""
    known_by = {side.by for d in differences for side in (d.a, d.b)}
    if "repeats" in known_by:
        return f" ({LEAST_VARIATION})"
    return f" ({ONE_RUN})" if known_by & {"requests", "slices"} else ""


def _speeds(named: Sequence[tuple[str, Pairing]]) -> Table:
    metrics = _overview_metrics([p for _, p in named])
    rows = []
    for load, p in named:
        by_name = {d.metric: d for d in p.differences}
        rows.append(
            [load, *(_change(by_name.get(name)) for name in metrics), _in_words(p.word, p)]
        )
    titles = ["load", *map(words, metrics), "B is"]
    return text_table(titles, rows, range(1, len(metrics) + 1), keep=(len(metrics) + 1,))


def _overview_metrics(pairings: Sequence[Pairing]) -> list[str]:
    """Return all metrics where they are few, else the main ones."""
    metrics = list(dict.fromkeys(d.metric for p in pairings for d in p.differences))
    if len(metrics) <= len(_MAIN):
        return metrics
    main = [next((name for name in names if name in metrics), "") for names in _MAIN]
    return list(filter(None, main)) or metrics[: len(_MAIN)]


def _scores(named: Sequence[tuple[str, Pairing]]) -> Table:
    """Make a table of scores with what the items could have shown, and how many would settle such a difference."""
    rows = [[task, *_score_cells(p), _in_words(p.word, p)] for task, p in named]
    titles = ["task", "A", "B", "change", "detectable", "items", "needed", "B is"]
    return text_table(titles, rows, range(1, 7), keep=(3, 7))


def _score_cells(p: Pairing) -> list[str]:
    if not p.differences:
        return [UNKNOWN] * 6
    d = p.differences[0]
    items = needed = None
    if d.paired is not None:
        items = d.paired.items
        needed = rounded_up(d.paired.items_needed) if d.paired.items_needed else None
    return [*_values(d), _change(d), d.smallest_words, count(items), count(needed)]


def _noun(c: Comparison) -> str:
    return "task" if all(p.kind == "quality" for p in c.pairings) else "load"


def _loads(c: Comparison) -> tuple[list[str], str]:
    """Return each load by what distinguishes it from the others, and what all have in common."""
    loads = [Load(p.load) for p in c.pairings]
    shared = []
    for name, value in loads[0].settings.items():
        if all(load.get(name) == value for load in loads):
            shared.append(name)
    short = [load.without(*shared).words for load in loads]
    if len(loads) > 1 and all(short):
        return _distinct(short, c.pairings), loads[0].only(shared).words
    return _distinct([load.words or "unknown load" for load in loads], c.pairings), ""


def _distinct(names: list[str], pairings: Sequence[Pairing]) -> list[str]:
    """Name the settings too, where several pairs have one load."""
    if len(set(names)) == len(names):
        return names
    return [
        f"{name}, {p.a.label} / {p.b.label}"
        for name, p in zip(names, pairings, strict=True)
    ]


def _change(d: Difference | None) -> str:
    return UNKNOWN if d is None or d.change is None else d.both_words


def _all_of(pairings: Sequence[Pairing]) -> str:
    """Count all loads and tasks: 'both loads', 'all 3 tasks', 'all 2 loads and 6 tasks'."""
    one_kind = len({p.kind == "quality" for p in pairings}) == 1
    if one_kind and len(pairings) == 2:
        return _counted(pairings).replace("2", "both")
    return f"all {_counted(pairings)}"


def _counted(pairings: Sequence[Pairing]) -> str:
    tasks = sum(p.kind == "quality" for p in pairings)
    counts = ((len(pairings) - tasks, "load"), (tasks, "task"))
    return " and ".join(many(number_, noun) for number_, noun in counts if number_)


def _figures(c: Comparison) -> int:
    return sum(len(p.differences) for p in c.pairings)


def _gathered(
    c: Comparison, elsewhere: Sequence[Finding], as_markdown: bool
) -> Iterator[str]:
    """Yield findings of single loads: of one code the first, with how many loads have it."""
    own: dict[str, dict[str, Finding]] = {}
    for load, p in zip(_loads(c)[0], c.pairings, strict=True):
        for f in p.findings:
            if f not in elsewhere:
                own.setdefault(f.code, {}).setdefault(load, f)
    for by_load in own.values():
        load, first = next(iter(by_load.items()))
        yield ""
        if 1 < len(by_load) == len(c.pairings):
            yield f"For {_all_of(c.pairings)}:"
        elif len(by_load) > 1:
            yield f"At {load}, and at {many(len(by_load) - 1, f'more {_noun(c)}')}:"
        else:
            yield f"At {load}:"
        yield from _findings([first], as_markdown)


# ---- a load with all its figures ----


def _load(p: Pairing) -> str:
    return Load(p.load).words or "unknown load"


def _pairing(
    p: Pairing, as_markdown: bool, elsewhere: Sequence[Finding], figures: int
) -> Iterator[str]:
    """Yield a load with its figures. `elsewhere`: findings that are shown once for all loads. `figures`: of all
    loads."""
    item = "- " if as_markdown else "  "
    yield f"### {_load(p)}" if as_markdown else _load(p)
    yield ""
    yield f"{item}A: {_side(p.a)}"
    yield f"{item}B: {_side(p.b)}"
    if p.differences:
        yield ""
        table = text_table(_HEAD, map(_row, p.differences), range(1, 6), keep=(3, 4, 6))
        yield from _table(table, as_markdown)
        yield ""
        for line in sentences(p, figures):
            yield from _item(line, as_markdown)
    if p.agreement is not None:
        yield from _item(f"{_test(p)}: {p.agreement.words}.", as_markdown)
    if p.refused:
        yield f"{item}Not compared: see the findings."
    own = [f for f in p.findings if f not in elsewhere]
    if own:
        yield ""
        yield from _findings(own, as_markdown)


def _table(table: Table, as_markdown: bool) -> Iterator[str]:
    yield from markdown(table) if as_markdown else terminal(table, indent="  ")


def _findings(findings: Sequence[Finding], as_markdown: bool) -> Iterator[str]:
    for f in findings:
        if as_markdown:
            yield f"- {f.level} `{f.code}`: {f.text} {f.advice}"
        else:
            yield from finding_lines(f)


def _item(line: str, as_markdown: bool) -> list[str]:
    if as_markdown:
        return [f"- {line}"]
    return wrapped(line, "  ", "    ")


def _side(side: Side) -> str:
    parts = [side.label] if side.label else []
    for requests, word in ((side.completed, "completed"), (side.failed, "failed")):
        if requests is not None:
            parts.append(f"{count(requests)} {word}")
    return ", ".join([*parts, many(len(side.rows), "run")])


def _row(d: Difference) -> list[str]:
    unit = " ms" if latency(d.metric) else ""
    sizes = [d.change_words, d.interval_words, d.smallest_words]
    return [words(d.metric) + unit, *_values(d), *sizes, d.word]


def _values(d: Difference) -> list[str]:
    show = percent if d.points else number
    return [show(d.a.value), show(d.b.value)]


def sentences(p: Pairing, figures: int) -> Iterator[str]:
    """Yield which is better where, or what it would take to know. `figures`: how many are compared in all."""
    yield from _sure_sentences(p)
    yield from _perhaps_sentences(p, figures)
    yield from _undetected_sentences([d for d in p.differences if d.smallest is not None])
    unknown = [d for d in p.differences if d.word == "confidence unknown"]
    for why, some in _grouped(lambda d: d.why, unknown).items():
        yield f"Confidence unknown: {_names(some)}: {why}."
    for why in dict.fromkeys(x.why for x in p.left_out):
        yield f"Left out ({why}): {', '.join(words(x.metric) for x in p.left_out if x.why == why)}."


def _sure_sentences(p: Pairing) -> Iterator[str]:
    # Of single runs it is known that they differ, and not yet that their settings do.
    single = len(p.a.rows) == len(p.b.rows) == 1 and p.kind != "quality"
    where = "In these two runs B" if single else "B"
    for word in ("better", "worse", "higher", "lower"):
        sure = [d for d in p.differences if d.word == word]
        if sure:
            which = (
                f"all {len(sure)} figures"
                if len(sure) == len(p.differences) > 1
                else _names(sure)
            )
            yield f"{where} is {_in_words(word, p)} in {which}, {_how(sure)}."


def _perhaps_sentences(p: Pairing, figures: int) -> Iterator[str]:
    perhaps = [d for d in p.differences if d.word.startswith("perhaps ")]
    if perhaps:
        some = ", ".join(f"{words(d.metric)} {d.word[8:]}" for d in perhaps)
        by_chance = f"chance alone gives {format(figures * (1 - CONFIDENCE), '.2g')} such results on average"
        yield f"Perhaps: {some}. Inconclusive after correction for {figures} figures: {by_chance}."


def _undetected_sentences(measured: Sequence[Difference]) -> Iterator[str]:
    same = [d for d in measured if d.word == "no difference detected"]
    if same:
        limits = "; ".join(filter(None, map(_detectable, same)))
        could_show = f" ({limits})" if limits else ""
        yield f"No difference detected: {_names(same)}{could_show}."
    unclear = _grouped(_more, [d for d in measured if d.word == "inconclusive"])
    if unclear:
        listed = [f"{_names(some)} ({way})" for way, some in unclear.items()]
        yield f"Inconclusive: {', '.join(listed)}."


def _grouped(
    key: Callable[[Difference], str], differences: Sequence[Difference]
) -> dict[str, list[Difference]]:
    groups: dict[str, list[Difference]] = {}
    for d in differences:
        groups.setdefault(key(d), []).append(d)
    return groups


def _names(differences: Sequence[Difference]) -> str:
    return ", ".join(words(d.metric) for d in differences)


def _in_words(word: str, p: Pairing) -> str:
    """Return the word for a change: better → faster, where all figures that are it are speeds."""
    names = [d.metric for d in p.differences if d.word == word]
    if all(latency(name) or "throughput" in name or name == "speed" for name in names):
        return {"better": "faster", "worse": "slower"}.get(word, word)
    return word


def _how(differences: Sequence[Difference]) -> str:
    sides = [side.by for d in differences for side in (d.a, d.b)]
    return " and ".join(dict.fromkeys(_BY[by] for by in sides if by in _BY))


def _more(d: Difference) -> str:
    if d.enough_repeats:
        about = f"about {count(rounded_up(d.enough_repeats))} repeats per side would make the interval ± 10 %"
        return f"{d.too_few}: {about}"
    ways = []
    if d.more_requests:
        ways.append(f"about {count(rounded_up(d.more_requests))} more requests")
    if d.more_repeats:
        ways.append(many(d.more_repeats, "more repeat"))
    if not ways:
        return "too small to be worth more repeats"
    return f"a difference this small takes {' or '.join(ways)} per side"


def _detectable(d: Difference) -> str:
    """Return what the items of a score could have shown, and how many would settle it."""
    if not d.points or d.smallest is None:
        return ""
    smallest = f"smallest detectable: {points(d.smallest)}"
    needed = d.paired.items_needed if d.paired is not None else None
    if not needed:
        return smallest
    return f"{smallest}; about {count(rounded_up(needed))} items would settle a difference of this size"


# ---- gates ----


def _gates(c: Comparison, as_markdown: bool) -> Iterator[str]:
    if c.gates:
        yield ""
    for gate in dict.fromkeys(g.gate for g in c.gates):
        yield from _gate(c, [g for g in c.gates if g.gate == gate], as_markdown)


def _gate(c: Comparison, results: Sequence[GateResult], as_markdown: bool) -> Iterator[str]:
    """Yield one line where a gate holds at all loads, else one for each load at which it doesn't."""
    failing = [g for g in results if g.state != "held"]
    if failing or len(results) == 1:
        for g in failing or results:
            yield from _item(
                f"gate {g.gate}: {_STATES[g.state]}{_where(c, g)}: {g.text}.", as_markdown
            )
        return
    if len(results) == len(c.pairings):
        where = _all_of(c.pairings)
    else:
        having = [c.pairings[g.pairing] for g in results if g.pairing is not None]
        where = f"{_counted(having)}; the others don't have this figure"
    yield from _item(
        f"gate {results[0].gate}: holds at {where}{_least_room(c, results)}.", as_markdown
    )


def _where(c: Comparison, g: GateResult) -> str:
    if g.pairing is None or len(c.pairings) < 2:
        return ""
    return f" at {_loads(c)[0][g.pairing]}"


def _least_room(c: Comparison, results: Sequence[GateResult]) -> str:
    """Say how near to the limit it comes at several loads."""
    nearest = _nearest(results)
    if nearest is None:
        return ""
    if len({g.text for g in results}) == 1:
        return f": {nearest.text}"
    return f"; nearest to the limit{_where(c, nearest)}: {nearest.text}"


def _nearest(results: Sequence[GateResult]) -> GateResult | None:
    """Return the result that is nearest to its limit; None: none has a figure."""
    known = [(g.room, i) for i, g in enumerate(results) if g.room is not None]
    return results[min(known)[1]] if known else None


def gate_line(c: Comparison, state: str, code: int) -> str:
    """Return the last line: which gate decides the exit code, or that all of them hold."""
    deciding = [g for g in c.gates if g.state == state]
    if state == "held":
        return f"{_held(c, deciding)}. Exit {code}."
    first = deciding[0]
    more = f", and {len(deciding) - 1} more" if len(deciding) > 1 else ""
    strict = " (--strict)" if state == "undecided" and code == 3 else ""
    return f"Gate {state}: {first.gate}{_where(c, first)}: {first.text}{more}. Exit {code}{strict}."


def _held(c: Comparison, held: Sequence[GateResult]) -> str:
    gates = {g.gate for g in held}
    if len(gates) > 1:
        return "Both gates hold" if len(gates) == 2 else f"All {len(gates)} gates hold"
    nearest = _nearest(held) or held[0]
    return f"Gate holds: {nearest.gate}{_where(c, nearest)}: {nearest.text}"
