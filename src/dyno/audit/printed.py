"""An audit as text, Markdown and JSON: verdict, findings with their lines, and the rows in one unit."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dyno.audit.audit import Audit
from dyno.facts.finding import Finding
from dyno.facts.imported import KINDS, Figure, Row, RowKind, Unread
from dyno.facts.metric import DEFINITIONS, words
from dyno.facts.price import PriceRule
from dyno.measure.cost import choose, cost, rates
from dyno.measure.points import (
    input_each,
    load_of,
    output_each,
    requests_per_s,
    sent,
    subject,
)
from dyno.numbers import count, many, money, number, plus_minus, trimmed
from dyno.report.block import finding_lines
from dyno.report.table import Table, markdown, terminal, text_table
from dyno.screen import styled, verdict_style, wrapped

LATENCIES = ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms",
             "mean_latency_ms")  # fmt: skip
NODE = 8  # accelerators of the machines that are rented as one
LINES = 12  # places of a finding that are shown
ROWS = 200  # of the table
UNREAD = 40  # that are listed
NOTHING = "No results found"
_PARTS = ("tables", "columns", "blocks", "files")


class Normal(msgspec.Struct, frozen=True):
    """A row in one unit: per request, per accelerator, per node, per million tokens."""

    location: str = msgspec.field(name="at")  # file:line
    subject: str
    load: str
    kind: RowKind
    tool: str
    completed: float | None
    sent: float | None
    input_each: float | None  # tokens per request
    output_each: float | None
    requests_per_s: float | None
    output_per_s: float | None  # tokens
    total_per_s: float | None
    accelerators: float | None
    # tokens/s: output, or of prompts and outputs where only that is known
    per_accelerator: float | None
    per_accelerator_of: str  # output or total
    per_node: float | None  # tokens/s for eight accelerators
    per_node_estimated: bool  # calculated from fewer or more, as if nothing were lost
    # 'mean_ttft_ms' → milliseconds, and by which definition
    latencies: dict[str, tuple[float, str]]
    speed: str = ""  # of a micro test, or a score, as it is printed
    price_per_hour: float | None = None  # of all accelerators of the row
    cost_per_million: float | None = None  # tokens, as above


def normal(row: Row, prices: Sequence[PriceRule] = ()) -> Normal:
    """Return a row as it is printed. `prices`: they take precedence over the row's own."""
    out, total = row.get("output_throughput"), row.get("total_token_throughput")
    devices = row.number("accelerators") or row.number("tensor_parallel")
    best, tokens = (out, "output") if out is not None else (total, "total")
    if best is None:
        tokens = ""
    per_device = best / devices if best is not None and devices else None
    per_hour, per_million = _price(row, prices, devices, tokens)
    asked = sent(row)
    return Normal(
        location=row.location,
        subject=subject(row),
        load=load_of(row).words,
        kind=row.kind,
        tool=row.tool,
        completed=row.get("completed"),
        sent=asked[0] if asked else None,
        input_each=input_each(row),
        output_each=output_each(row),
        requests_per_s=_requests_per_s(row),
        output_per_s=out,
        total_per_s=total,
        accelerators=devices,
        per_accelerator=per_device,
        per_accelerator_of=tokens,
        per_node=per_device * NODE if per_device is not None else None,
        per_node_estimated=devices != NODE,
        latencies={
            n: (f.value, f.definition)
            for n in LATENCIES
            if (f := row.figures.get(n)) is not None
        },
        speed=_speed(row),
        price_per_hour=per_hour,
        cost_per_million=per_million,
    )


def _price(
    row: Row, prices: Sequence[PriceRule], devices: float | None, tokens: str
) -> tuple[float | None, float | None]:
    """Return the price per hour, and per million tokens. `tokens`: output, total, or '' where their rate is unknown."""
    named = str(row.setting("accelerator") or "")
    chosen = choose(prices, named, subject(row), own_hour=row.number("price_per_hour"))
    # Where the number of accelerators is unknown, the price of one is used.
    paid = cost(chosen, rates(row.get), devices or 1)
    if paid is None:
        return None, None
    per_million = None
    if tokens:
        per_million = (
            paid.per_million_output if tokens == "output" else paid.per_million_total
        )
    return paid.hour or None, per_million


def _requests_per_s(row: Row) -> float | None:
    """Return it as reported, unless with so few digits that the count and the duration say more."""
    reported = row.figures.get("request_throughput")
    if reported is not None and reported.half < 0.002 * reported.value:
        return reported.value
    return requests_per_s(row)


def _speed(row: Row) -> str:
    """Return the speed of a micro test or a score, with its error."""
    for name in ("speed", "score"):
        figure = row.figures.get(name)
        if figure is None:
            continue
        error = figure.deviation if figure.deviation is not None else row.get("stderr")
        shown = number(figure.value, figure.half)
        return f"{shown} {plus_minus(error, figure.value)}" if error is not None else shown
    return ""


# ---- the forms ----


def text(audit: Audit, rows: Sequence[Normal]) -> str:
    head, *more = _head(audit, rows)
    first, *others = wrapped(head, rest="  ")
    first = first.replace(
        audit.verdict, styled(audit.verdict, verdict_style(audit.verdict)), 1
    )
    parts = ["\n".join([first, *others, *more]), *map(_finding, audit.findings)]
    for title, table in _tables(audit, rows):
        parts.append("\n".join([title, *terminal(table)]))
    if len(rows) > ROWS:
        parts.append(
            f"The first {count(ROWS)} of {many(len(rows), 'result')}; --json has all."
        )
    parts += [_legend(rows), _unread(audit)]
    return "\n\n".join(p for p in parts if p)


def as_markdown(audit: Audit, rows: Sequence[Normal]) -> str:
    head, *files = _head(audit, rows)
    parts = [f"## {head}", "\n".join(line.replace("  ", "- ", 1) for line in files)]
    for f in audit.findings:
        where = f" ({_located(f.locations, '`')})" if f.locations else ""
        parts.append(
            f"- **{f.level}** `{f.code}`: {_plain(f.text)}{where} *{_plain(f.advice)}*"
        )
    for title, table in _tables(audit, rows):
        parts.append("\n".join([f"### {title}", "", *markdown(table)]))
    parts += [
        _legend(rows),
        _unread(audit).replace(":\n  ", ":\n\n- ").replace("\n  ", "\n- "),
    ]
    return "\n\n".join(p for p in parts if p)


def as_json(audit: Audit, rows: Sequence[Normal], version: str) -> dict[str, Any]:
    judged = _has_results(audit) or audit.verdict != "sound"
    return {
        "dyno": version,
        "verdict": audit.basis.word(audit.verdict) if judged else None,
        "verdict_line": audit.basis.describe(audit.verdict) if judged else None,
        "complete": audit.coverage.complete,
        "read": {
            name: msgspec.to_builtins(getattr(audit.coverage, name)) for name in _PARTS
        },
        "not_checked": [
            {"what": one.words, "results": one.results, "of": one.applicable}
            for one in audit.unchecked
        ],
        "findings": msgspec.to_builtins(audit.each),
        "files": [
            {
                "file": d.file,
                "format": d.format,
                "results": len(d.rows),
                "unread": msgspec.to_builtins(d.unread),
            }
            for d in audit.documents
        ],
        "results": msgspec.to_builtins(list(rows)),
        "definitions": {k: DEFINITIONS[k] for k in _definitions(rows)},
    }


def _has_results(audit: Audit) -> bool:
    return any(d.rows for d in audit.documents)


def _head(audit: Audit, rows: Sequence[Normal]) -> list[str]:
    """Return the verdict, and what it is limited to. Without a result, nothing is sound."""
    files, read = many(len(audit.documents), "file"), audit.coverage.describe()
    listed = [
        f"  {d.file}: {d.format}, {many(len(d.rows), 'result')}" for d in audit.documents
    ]
    if not _has_results(audit) and audit.verdict == "sound":
        limits = f" ({read} read)" if read else ""
        return [f"{NOTHING} in {files}{limits}", *listed]
    shown = f"; {read}" if read and audit.basis.whole else ""
    return [
        f"Verdict: {audit.basis.describe(audit.verdict)} ({_counts(audit.findings)})",
        f"Read: {many(len(rows), 'result')} in {files}{shown}",
        *listed,
    ]


def _counts(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each level: '1 void, 2 doubts'."""
    levels = Counter(f.level for f in findings)
    counts = []
    for level in ("void", "doubt", "note"):
        plural = "s" if levels[level] != 1 and level != "void" else ""
        if levels[level]:
            counts.append(f"{levels[level]} {level}{plural}")
    return ", ".join(counts) or "no findings"


def _finding(f: Finding) -> str:
    lines = finding_lines(
        msgspec.structs.replace(f, text=_plain(f.text), advice=_plain(f.advice))
    )
    if f.locations:
        lines += wrapped(f"at {_plain(_located(f.locations))}", " " * 8)
    return "\n".join(lines)


def _located(locations: Sequence[str], quote: str = "") -> str:
    """Return each file once, with its lines: 'a.csv:3-5, 7; b.csv:2 and 5 more'."""
    files: dict[str, list[int]] = {}
    for location in locations:
        file, _, line = location.rpartition(":")
        if line.isdigit():
            files.setdefault(file, []).append(int(line))
        else:
            files.setdefault(location, [])
    places = [(file, run) for file, lines in files.items() for run in _runs(lines) or [""]]
    shown: dict[str, list[str]] = {}
    for file, run in places[:LINES]:
        shown.setdefault(file, []).append(run)
    parts = []
    for file, runs in shown.items():
        colon = ":" if any(runs) else ""
        parts.append(f"{quote}{file}{colon}{', '.join(runs)}{quote}")
    text = "; ".join(parts)
    if len(places) > LINES:
        text += f" and {len(places) - LINES} more places"
    return text


def _runs(lines: Iterable[int]) -> list[str]:
    """Return runs of lines: [3, 4, 5, 7] → ['3-5', '7']."""
    runs: list[list[int]] = []
    for line in sorted(set(lines)):
        if runs and line == runs[-1][-1] + 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _plain(words: str) -> str:
    """Leave out control characters: file names and labels come from others."""
    return "".join(c if c.isprintable() else " " for c in words)


# ---- the table ----


def _tables(audit: Audit, rows: Sequence[Normal]) -> Iterator[tuple[str, Table]]:
    """Yield one per kind and tool: figures of different definitions don't share a column."""
    read = {row.location: row for d in audit.documents for row in d.rows}
    groups: dict[tuple[RowKind, str], list[Normal]] = {}
    for row in rows[:ROWS]:
        groups.setdefault((row.kind, row.tool), []).append(row)
    for (kind, tool), group in groups.items():
        yield f"{KINDS[kind].title} ({tool or 'tool unknown'})", _table(group, read)


def _table(rows: Sequence[Normal], read: Mapping[str, Row]) -> Table:
    """Return a table with only the columns that aren't empty."""
    nodes = _parts_of_nodes(rows)
    lines = []
    for place, row in zip(_places(rows), rows, strict=True):
        cells = _cells(row, nodes, read[row.location].figures)
        lines.append({"line": place, **cells})
    titles = [title for title in lines[0] if any(line[title] for line in lines)]
    right, keep = [], []
    for i, title in enumerate(titles):
        if title not in ("line", "name", "load"):
            right.append(i)
        if title in ("line", "name", "load", "completed"):
            keep.append(i)
    return text_table(
        titles, ([line[title] for title in titles] for line in lines), right, keep
    )


def _cells(r: Normal, nodes: bool, figures: Mapping[str, Figure]) -> dict[str, str]:
    """Return cells by their columns' titles, which all rows of a kind share. Reported figures get no more digits than
    they have."""

    def reported(name: str, value: float | None) -> str:
        figure = figures.get(name)
        return _number(
            value, figure.half if figure is not None and figure.value == value else 0.0
        )

    estimated = "≈" if r.per_node_estimated and r.per_node is not None else ""
    latencies = [name for name in LATENCIES if name != "median_ttft_ms"]
    return {
        "name": _short(r.subject, 36),
        "load": _short(r.load, 44),
        "completed": _done(r),
        "in": _number(r.input_each),
        "out": _number(r.output_each),
        "req/s": reported("request_throughput", r.requests_per_s),
        "out tok/s": reported("output_throughput", r.output_per_s),
        "total tok/s": reported("total_token_throughput", r.total_per_s),
        "score" if r.kind == "quality" else "tok/s": r.speed,
        "devices": _number(r.accelerators),
        "tok/s/device": _number(r.per_accelerator),
        "tok/s/8 devices": estimated + _number(r.per_node) if nodes else "",
        **{
            words(n).removeprefix("mean "): reported(n, r.latencies.get(n, (None,))[0])
            for n in latencies
        },
        "$/M tok": "" if r.cost_per_million is None else money(r.cost_per_million),
    }


def _parts_of_nodes(rows: Sequence[Normal]) -> bool:
    """Return whether results have different numbers of accelerators."""
    return len({r.accelerators for r in rows if r.accelerators}) > 1


def _places(rows: Sequence[Normal]) -> list[str]:
    """Return lines; with the file's name before where there are several, and of runs their folder's name."""
    if any(r.tool == "dyno" for r in rows):
        return [r.location.rpartition("/")[2] for r in rows]
    one = len({r.location.rpartition(":")[0] for r in rows}) == 1
    return [r.location.rpartition(":")[2] if one else r.location for r in rows]


def _done(r: Normal) -> str:
    """Return the completed requests, and of how many if others were sent."""
    if r.completed is None:
        return ""
    if r.sent is None or r.sent == r.completed:
        return count(r.completed)
    return f"{count(r.completed)}/{count(r.sent)}"


def _number(value: float | None, half: float = 0.0) -> str:
    if value is None:
        return ""
    return number(value, half) if half else trimmed(value)


def _short(words: str, width: int) -> str:
    words = _plain(words)
    return words if len(words) <= width else words[: width - 1] + "…"


def _definitions(rows: Sequence[Normal]) -> list[str]:
    return sorted({d for r in rows for _, d in r.latencies.values() if d in DEFINITIONS})


def _legend(rows: Sequence[Normal]) -> str:
    definitions = _definitions(rows)
    if not definitions:
        return ""
    lines = [
        "Latencies are means in milliseconds, unless a percentile is named. Definitions:"
    ]
    lines += [
        line
        for key in definitions
        for line in wrapped(f"{key}: {DEFINITIONS[key]}", "  ", "    ")
    ]
    if any(r.per_accelerator is not None for r in rows):
        tokens = " or ".join(
            sorted({r.per_accelerator_of for r in rows if r.per_accelerator is not None})
        )
        lines.append(f"  tok/s/device: {tokens} tokens/s per accelerator")
        if any(r.cost_per_million is not None for r in rows):
            lines.append(f"  $/M tok: cost per million {tokens} tokens")
    if _parts_of_nodes(rows):
        lines.append(
            "  tok/s/8 devices: per node; ≈ is scaled from another number of devices, not measured"
        )
    return "\n".join(lines)


def _listed_under(unread: Unread) -> str:
    if unread.part == "columns":
        return "Columns or metrics not read:"
    return "Not read:" if unread.lost else "Remarks:"


def _unread(audit: Audit) -> str:
    """Return the parts that were not read, in words."""
    # Remarks first: the last lines say why the exit code is 5.
    lines: dict[str, list[str]] = {
        "Remarks:": [],
        "Not read:": [],
        "Columns or metrics not read:": [],
    }
    for d in audit.documents:
        for u in d.unread:
            lines[_listed_under(u)].append(f"  {_plain(u.describe(d.file))}")
    out = []
    for title, those in lines.items():
        if those:
            out += [title, *those[:UNREAD]]
        if len(those) > UNREAD:
            out.append(f"  … and {len(those) - UNREAD} more; --json has all")
    return "\n".join(out)
