"""A report as Markdown: words, tables, findings, then all that one needs to run it again."""

import re
from collections.abc import Iterable, Iterator

from dyno.facts.report import CommandText, Report, Sheet
from dyno.report import table as renderers
from dyno.report import tables
from dyno.report.table import Table
from dyno.visible import one_line, plain


def markdown(report: Report) -> str:
    return "\n\n".join(part for part in _parts(report) if part) + "\n"


def _parts(report: Report) -> Iterator[str]:
    words = report.words
    yield f"# {escaped(report.title)}"
    yield f"**{report.basis.describe(report.verdict)}** · {escaped(report.created)} · dyno {escaped(report.dyno)}"
    yield escaped_line(report.about)
    yield _list("Answer", map(escaped_line, words.answer))
    if (answer := tables.answer(report)) is not None:
        yield from _table(answer)
    yield f"**Compared:** {escaped(words.compared)}" if words.compared else ""
    yield f"**On:** {escaped(words.on)}" if words.on else ""
    for title, sentences in (
        ("Workloads", words.workloads),
        ("Confidence", words.confidence),
        ("Greedy agreement", words.agreement),
        ("Caveats", words.caveats),
    ):
        yield _list(title, map(escaped_line, sentences))
    yield from _section("Results", tables.results(report))
    if (best := tables.best(report)) is not None:
        yield from _section(best.title, [best])
    yield _list("Cost", map(escaped_line, words.cost))
    yield from _section("" if words.cost else "Cost", tables.cost(report))
    yield _list("Prices", map(escaped_line, report.prices))
    yield _list("Findings", _findings(report))
    yield from _section("Source tables", tables.authors(report))
    yield from _sheets("Machines", report.rigs)
    yield from _sheets("Engines", report.engines)
    yield from _commands(report.commands)
    yield _list(
        "Definitions", (f"{_code(k)}: {escaped(v)}" for k, v in report.definitions.items())
    )
    yield _list("Sources", map(escaped_line, report.sources))
    yield f"## Reproduce this report\n\n{_fenced(report.again)}" if report.again else ""


def _section(title: str, some: list[Table]) -> Iterator[str]:
    yield f"## {escaped(title)}" if some and title else ""
    for table in some:
        yield f"### {escaped(table.title)}" if table.title != title else ""
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    yield "\n".join(renderers.markdown(table, escaped))
    yield escaped_line(table.about)


def _findings(report: Report) -> Iterator[str]:
    table = tables.findings(report)
    if table is None:
        return
    for row in table.lines:
        level, code, text, advice, where, trials = (cell.text for cell in row.cells)
        do = f" *{escaped(advice)}*" if advice else ""
        places = f" At {escaped(where)}." if where else ""
        tested = f" In {escaped(trials)}." if trials else ""
        yield f"**{level}** {_code(code)}: {escaped(text)}{do}{places}{tested}"


def _sheets(title: str, sheets: list[Sheet]) -> Iterator[str]:
    if sheets:
        yield f"## {title}"
    for sheet in sheets:
        yield f"### {escaped(sheet.name)}"
        yield "\n".join(
            f"- {escaped(name)}: {escaped(value)}" for name, value in sheet.facts
        )


def _commands(commands: list[CommandText]) -> Iterator[str]:
    if commands:
        yield "## Commands"
    for command in commands:
        language = "toml" if command.what.startswith("study ") else "sh"
        yield f"{escaped(command.what)}:\n\n{_fenced(command.text, language)}"


def _list(title: str, items: Iterable[str]) -> str:
    lines = [f"- {item}" for item in items]
    return "\n".join([f"## {title}", "", *lines]) if lines else ""


_MARKS = re.compile(r"[\\`*\[\]~]|(?<!\w)_|_(?!\w)")
_BLOCK = re.compile(r"^(?:[#+=-]|\d+[.)])")


def escaped(words: str) -> str:
    """Escape one line of text. table.py escapes bars."""
    text = one_line(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(lambda m: "\\" + m[0], text)


def escaped_line(words: str) -> str:
    """Escape text that begins a line, where a number or a hyphen would begin a list."""
    return _BLOCK.sub(lambda m: m[0][:-1] + "\\" + m[0][-1], escaped(words))


def _code(words: str) -> str:
    return f"`{one_line(words).replace('`', chr(39))}`"


def _fenced(words: str, language: str = "sh") -> str:
    """Return a block of code, with a fence that is longer than any inside."""
    words = plain(words)
    longest = max(map(len, re.findall("`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{words}\n{fence}"
