"""An audit as text, Markdown and JSON: verdict, findings with their lines, and the rows brought to one measure."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dyno.audit.audit import Audit
from dyno.audit.normal import LATENCIES, Normal
from dyno.facts.definition import DEFINITIONS
from dyno.facts.finding import Finding
from dyno.facts.metric import words
from dyno.report.table import Table, markdown, terminal, text_table
from dyno.units import many

WIDTH = 100
LINES = 8  # of a finding's evidence, that are shown
ROWS = 200  # of the table
UNREAD = 40  # that are listed
NOTHING = "no results found"


def text(audit: Audit, rows: Sequence[Normal]) -> str:
    parts = [_head(audit, rows)]
    parts += [_finding(f) for f in audit.findings]
    for title, table in _tables(rows):
        parts.append("\n".join([title, *terminal(table)]))
    if len(rows) > ROWS:
        parts.append(f"The first {ROWS} of {len(rows)} results; --json has all.")
    parts += [_legend(rows), _unread(audit)]
    return "\n\n".join(p for p in parts if p)


def as_markdown(audit: Audit, rows: Sequence[Normal]) -> str:
    head, _, files = _head(audit, rows).partition("\n")
    parts = [f"## Audit: {head}", files.strip()]
    for f in audit.findings:
        at = (
            f" ({', '.join(f'`{a}`' for a in f.locations[:LINES])}{' …' if len(f.locations) > LINES else ''})"
            if f.locations
            else ""
        )
        parts.append(f"- **{f.level}** `{f.code}`: {_plain(f.text)}{at} *{_plain(f.advice)}*")
    for title, table in _tables(rows):
        parts.append("\n".join([f"### {title}", "", *markdown(table)]))
    parts += [_legend(rows), _unread(audit).replace(":\n  ", ":\n\n- ").replace("\n  ", "\n- ")]
    return "\n\n".join(p for p in parts if p)


def as_json(audit: Audit, rows: Sequence[Normal], version: str) -> dict[str, Any]:
    return {
        "dyno": version,
        "verdict": audit.verdict if _read(audit) or audit.verdict != "sound" else None,
        "complete": audit.coverage.complete,
        "read": {name: msgspec.to_builtins(getattr(audit.coverage, name)) for name in ("tables", "blocks", "files")},
        "findings": msgspec.to_builtins(audit.each),
        "files": [
            {"file": d.file, "format": d.format, "results": len(d.rows), "unread": msgspec.to_builtins(d.unread)}
            for d in audit.documents
        ],
        "results": msgspec.to_builtins(list(rows)),
        "definitions": {k: DEFINITIONS[k] for k in _definitions(rows)},
    }


def said(audit: Audit) -> str:
    """The verdict, and what it is limited to. Without a result, nothing is sound."""
    if not _read(audit) and audit.verdict == "sound":
        return NOTHING
    return audit.verdict if audit.coverage.complete else f"{audit.verdict} as far as read"


def _read(audit: Audit) -> bool:
    return any(d.rows for d in audit.documents)


def _head(audit: Audit, rows: Sequence[Normal]) -> str:
    read, counts = audit.coverage.describe(), _counts(audit, rows)
    if said(audit) == NOTHING:
        lines = [f"{NOTHING} in {many(len(audit.documents), 'file')}" + (f": {read} read" if read else "")]
    elif audit.coverage.complete:
        lines = [f"{said(audit)}: {counts}" + (f"; {read} read" if read else "")]
    else:
        lines = [f"{said(audit)}: {read}; {counts}"]
    lines += [f"  {d.file}: {d.format}, {many(len(d.rows), 'result')}" for d in audit.documents]
    return "\n".join(lines)


def _counts(audit: Audit, rows: Sequence[Normal]) -> str:
    levels = [f.level for f in audit.findings]
    told = [f"{levels.count(level)} {level}{'s' if levels.count(level) != 1 and level != 'void' else ''}"
            for level in ("void", "doubt", "note") if level in levels]  # fmt: skip
    where = f"{many(len(rows), 'result')} of {many(len(audit.documents), 'file')}"
    return f"{', '.join(told) or 'nothing found'}, in {where}"


def _finding(f: Finding) -> str:
    lines = [f"{f.level:<6}{f.code}"]
    lines += textwrap.wrap(_plain(f.text), WIDTH, initial_indent="      ", subsequent_indent="      ")
    lines += textwrap.wrap(_plain(f.advice), WIDTH, initial_indent="    → ", subsequent_indent="      ")
    if f.locations:
        more = f" and {len(f.locations) - LINES} more" if len(f.locations) > LINES else ""
        shown = ", ".join(map(_plain, f.locations[:LINES])) + more
        lines += textwrap.wrap(
            shown, WIDTH, initial_indent="   at ", subsequent_indent="      ", break_on_hyphens=False
        )
    return "\n".join(lines)


def _plain(words: str) -> str:
    """What a terminal would obey is left out: file names and labels are somebody else's."""
    return "".join(c if c.isprintable() else " " for c in words)


# ---- the table ----


def _tables(rows: Sequence[Normal]) -> Iterator[tuple[str, Table]]:
    """One for each kind and tool: figures of different definitions don't share a column."""
    groups: dict[tuple[str, str], list[Normal]] = {}
    for row in rows[:ROWS]:
        groups.setdefault((row.kind, row.tool), []).append(row)
    for (kind, tool), there in groups.items():
        yield f"{_KINDS[kind]}, by {tool or 'somebody who does not tell how'}", _table(there)


_KINDS = {
    "serve": "Served", "throughput": "Offline throughput", "latency": "Offline latency", "micro": "Micro tests",
    "quality": "Accuracy",
}  # fmt: skip


def _table(rows: Sequence[Normal]) -> Table:
    """Only columns in which something stands."""
    columns: list[tuple[str, list[str]]] = [
        ("line", _places(rows)),
        ("what", [_short(r.subject, 36) for r in rows]),
        ("load", [_short(r.load, 44) for r in rows]),
        ("done", [_done(r) for r in rows]),
        ("in", [_number(r.input_each, 0) for r in rows]),
        ("out", [_number(r.output_each, 0) for r in rows]),
        ("req/s", [_number(r.requests_per_s, 2) for r in rows]),
        ("out tok/s", [_number(r.output_per_s, 1) for r in rows]),
        ("total tok/s", [_number(r.total_per_s, 1) for r in rows]),
        ("score" if rows[0].kind == "quality" else "tok/s", [r.speed for r in rows]),
        ("devices", [_number(r.accelerators, 0) for r in rows]),
        ("tok/s/device", [_number(r.per_accelerator, 1) for r in rows]),
    ]
    if len({r.accelerators for r in rows if r.accelerators}) > 1:  # parts of a node beside each other
        columns.append(("tok/s/8 devices", [_node(r) for r in rows]))
    for name in (n for n in LATENCIES if n != "median_ttft_ms"):
        title = words(name).removeprefix("mean ")
        columns.append((title, [_number(r.latencies[name][0], 1) if name in r.latencies else "" for r in rows]))
    columns.append(("$/M tok", [_number(r.cost_per_million, 2) for r in rows]))
    held = [(title, cells) for title, cells in columns if any(cells)]
    titles = [title for title, _ in held]
    right = [i for i, title in enumerate(titles) if title not in ("line", "what", "load")]
    return text_table(titles, ([cells[i] for _, cells in held] for i in range(len(rows))), right)


def _places(rows: Sequence[Normal]) -> list[str]:
    """Lines; with the file's name before where there are several, and of runs their folder's name."""
    if any(r.tool == "dyno" for r in rows):
        return [r.location.rpartition("/")[2] for r in rows]
    one = len({r.location.rpartition(":")[0] for r in rows}) == 1
    return [r.location.rpartition(":")[2] if one else r.location for r in rows]


def _node(r: Normal) -> str:
    return ("≈" if r.per_node_estimated and r.per_node is not None else "") + _number(r.per_node, 0)


def _done(r: Normal) -> str:
    if r.completed is None:
        return ""
    return f"{r.completed:,.0f}" + (f"/{r.sent:,.0f}" if r.sent is not None and r.sent != r.completed else "")


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:,.{digits}f}" if digits == 0 or abs(value) >= 1 or value == 0 else f"{value:.3g}"


def _short(words: str, width: int) -> str:
    words = _plain(words)
    return words if len(words) <= width else words[: width - 1] + "…"


def _definitions(rows: Sequence[Normal]) -> list[str]:
    return sorted({d for r in rows for _, d in r.latencies.values() if d in DEFINITIONS})


def _legend(rows: Sequence[Normal]) -> str:
    told = _definitions(rows)
    if not told:
        return ""
    lines = ["Milliseconds, means unless a percentile is named. As the tools define them:"]
    lines += [f"  {key}: {DEFINITIONS[key]}" for key in told]
    if any(r.per_accelerator is not None for r in rows):
        of = {r.per_accelerator_of for r in rows if r.per_accelerator is not None}
        lines.append(f"  tok/s/device: {' or '.join(sorted(of))} tokens/s of one accelerator")
        if any(r.cost_per_million is not None for r in rows):
            lines.append(f"  $/M tok: for a million {' or '.join(sorted(of))} tokens")
    if len({r.accelerators for r in rows if r.accelerators}) > 1:
        lines.append("  tok/s/8 devices: of a node; ≈ is an estimate from another number, as if nothing were lost")
    return "\n".join(lines)


def _unread(audit: Audit) -> str:
    lines: dict[str, list[str]] = {"Not read:": [], "Read in part, without:": []}
    for d in audit.documents:
        for u in d.unread:
            title = "Read in part, without:" if u.part == "columns" else "Not read:"
            lines[title].append(f"  {_plain(u.describe(d.file))}")
    out = []
    for title, those in lines.items():
        more = [f"  … and {len(those) - UNREAD} more; --json has all"] if len(those) > UNREAD else []
        out += [title, *those[:UNREAD], *more] if those else []
    return "\n".join(out)
