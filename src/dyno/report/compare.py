"""A comparison as people read it: a table for each pairing, then words, then findings."""

from collections.abc import Iterator, Sequence

from dyno.facts.comparison import Comparison, Difference, GateResult, Pairing, Side
from dyno.facts.finding import Finding
from dyno.facts.load import Load
from dyno.facts.metric import latency, words
from dyno.numbers import change, change_interval, count, number, percent
from dyno.report.block import finding_lines
from dyno.report.table import markdown, terminal, text_table
from dyno.screen import wrapped

_HEAD = ["", "A", "B", "change", "95 % interval", "could show", "B is"]
_BY = {
    "repeats": "over repeats",
    "shared": "over one side's repeats",
    "requests": "over requests",
    "iterations": "over iterations",
    "slices": "over slices of time",
    "deviation": "by the printed deviation",
    "stderr": "by the printed standard error",
}


def text(c: Comparison) -> str:
    return "\n".join(_lines(c, as_markdown=False))


def as_markdown(c: Comparison) -> str:
    return "\n".join(_lines(c, as_markdown=True))


def _lines(c: Comparison, as_markdown: bool) -> Iterator[str]:
    item = "- " if as_markdown else ""
    yield f"{item}A  {c.a}"
    yield f"{item}B  {c.b}"
    several = len(c.pairings) > 1
    everywhere = [f for f in c.pairings[0].findings if all(f in p.findings for p in c.pairings)] if several else []
    for i, p in enumerate(c.pairings):
        yield ""
        yield from _pairing(p, as_markdown, everywhere)
        gates = [g for g in c.gates if g.pairing == i]
        if gates:
            yield ""
            yield from (line for g in gates for line in _gate(g, as_markdown))
    for name, left in (("A", c.unpaired_a), ("B", c.unpaired_b)):
        if left and c.pairings:
            yield ""
            yield from wrapped(f"Only in {name}, not compared: {'; '.join(left)}.")
    if everywhere:
        yield ""
        yield f"Of all {len(c.pairings)} pairings:"
        yield from _findings(everywhere, as_markdown)
    if c.findings:
        yield ""
        yield from _findings(c.findings, as_markdown)
    yield ""
    yield f"Verdict: {c.verdict}" + (" (compared all the same: --anyway)" if c.anyway and c.verdict == "void" else "")


def _pairing(p: Pairing, as_markdown: bool, elsewhere: Sequence[Finding]) -> Iterator[str]:
    """`elsewhere`: findings that are told once for all."""
    title = Load(p.load).words or "unknown load"
    yield f"### {title}" if as_markdown else title
    yield ""
    for name, side in (("A", p.a), ("B", p.b)):
        yield f"- {name}: {_side(side)}" if as_markdown else f"  {name}: {_side(side)}"
    if p.differences:
        table = text_table(_HEAD, map(_row, p.differences), right=range(1, 6))
        yield ""
        yield from markdown(table) if as_markdown else terminal(table, indent="  ")
        yield ""
        for line in sentences(p):
            yield from _item(line, as_markdown)
    if p.refused:
        yield f"{'- ' if as_markdown else '  '}Not compared: see the findings."
    if own := [f for f in p.findings if f not in elsewhere]:
        yield ""
        yield from _findings(own, as_markdown)


def _findings(findings: Sequence[Finding], as_markdown: bool) -> Iterator[str]:
    for f in findings:
        if as_markdown:
            yield f"- {f.level} `{f.code}`: {f.text} {f.advice}"
        else:
            yield from finding_lines(f)


def _gate(g: GateResult, as_markdown: bool) -> list[str]:
    state = {
        "held": "holds",
        "not sure": "not sure (--strict doesn't let it pass)",
        "broken": "BROKEN",
        "refused": "NOT JUDGED",
    }[g.state]
    line = f"gate {g.gate}: {state}. {g.text}."
    return _item(line, as_markdown)


def _item(line: str, as_markdown: bool) -> list[str]:
    if as_markdown:
        return [f"- {line}"]
    return wrapped(line, "  ", "    ")


def _side(side: Side) -> str:
    counted = [
        f"{count(n)} {word}" for n, word in ((side.completed, "completed"), (side.failed, "failed")) if n is not None
    ]
    runs = f"{len(side.rows)} runs" if len(side.rows) > 1 else "1 run"
    return ", ".join([*([side.label] if side.label else []), *counted, runs])


def _row(d: Difference) -> list[str]:
    unit = " ms" if latency(d.metric) else ""
    return [
        words(d.metric) + unit,
        number(d.a.value),
        number(d.b.value),
        change(d.change),
        change_interval(d.low, d.high),
        percent(d.smallest),
        d.word,
    ]


def sentences(p: Pairing) -> Iterator[str]:
    """Which is better where and by how much, or what it would take to tell."""
    for word in ("better", "worse", "higher", "lower"):
        if differences := [d for d in p.differences if d.word == word]:
            # Of single runs it is known that they differ, and not yet that their settings do.
            where = "In these two runs B" if len(p.a.rows) == len(p.b.rows) == 1 and p.kind != "quality" else "B"
            listed = ", ".join(map(_said, differences))
            yield f"{where} is {_in_words(word, differences)}: {listed}, {_how(differences)}."
    if perhaps := [f"{_said(d)} {d.word[8:]}" for d in p.differences if d.word.startswith("perhaps ")]:
        yield f"Perhaps: {', '.join(perhaps)}. Of {len(p.differences)} figures one may lie so by chance alone."
    measured = [d for d in p.differences if d.smallest is not None]
    same = [f"{words(d.metric)} ({percent(d.smallest)} and more would have been seen)"
            for d in measured if d.word == "no difference seen"]  # fmt: skip
    yield from [f"No difference seen: {', '.join(same)}."] if same else []
    unclear = [f"{words(d.metric)} {change(d.change)} (could have shown {percent(d.smallest)} and more; {_more(d)})"
               for d in measured if d.word == "can't tell"]  # fmt: skip
    yield from [f"Can't tell: {', '.join(unclear)}."] if unclear else []
    yield from _unknown(p)


def _in_words(word: str, differences: Sequence[Difference]) -> str:
    """better → faster, where all of them are speeds."""
    speeds = all(latency(d.metric) or "throughput" in d.metric or d.metric == "speed" for d in differences)
    return {"better": "faster", "worse": "slower"}.get(word, word) if speeds else word


def _unknown(p: Pairing) -> Iterator[str]:
    unknown: dict[str, list[Difference]] = {}
    for d in p.differences:
        if d.word == "not known how sure":
            unknown.setdefault(d.why, []).append(d)
    for why, differences in unknown.items():
        listed = ", ".join(f"{words(d.metric)} {change(d.change)}" for d in differences)
        yield f"Not known how sure: {listed}: {why}."
    for why in dict.fromkeys(x.why for x in p.left_out):
        yield f"Left out, {why}: {', '.join(words(x.metric) for x in p.left_out if x.why == why)}."


def _said(d: Difference) -> str:
    interval = "" if d.low is None else f" (95 %: {change_interval(d.low, d.high)})"
    return f"{words(d.metric)} {change(d.change)}{interval}"


def _how(differences: Sequence[Difference]) -> str:
    kinds = dict.fromkeys(_BY[by] for d in differences for by in (d.a.by, d.b.by) if by in _BY)
    return " and ".join(kinds)


def _more(d: Difference) -> str:
    ways = []
    if d.more_requests:
        ways.append(f"about {count(_rounded(d.more_requests))} more requests of each")
    if d.more_repeats:
        ways.append(f"{d.more_repeats} more repeat{'s' * (d.more_repeats > 1)} of each")
    if not ways:
        return "one of this size isn't worth looking for"
    return f"{' or '.join(ways)} would show one of this size"


def _rounded(n: int) -> int:
    """To two digits: more would be pretended."""
    unit = int(10 ** max(len(str(n)) - 2, 0))
    return -(-n // unit) * unit
