"""A report as text: Markdown, for people, and CSV, for programs."""

import re
from collections.abc import Iterable, Iterator

from dyno.facts.entry import Entry, Number, Quality
from dyno.facts.imported import Scalar
from dyno.facts.report import CommandText, Report, Sheet
from dyno.numbers import decimals
from dyno.report import table as renderers
from dyno.report import tables
from dyno.report.conclusion import counted_results
from dyno.report.table import Table, csv_text
from dyno.visible import one_line, plain

# ---- Markdown: words, tables, findings, then all that one needs to run it again ----


def markdown(report: Report) -> str:
    return "\n\n".join(part for part in _parts(report) if part) + "\n"


def _parts(report: Report) -> Iterator[str]:
    words = report.words
    yield f"# {escaped(report.title)}"
    verdict = f"**{report.basis.describe(report.verdict)}**"
    dated = f"{escaped(report.created)} · dyno {escaped(report.dyno)}"
    yield f"{verdict} · {counted_results(report.entries)} · {dated}"
    yield escaped_line(tables.brief(report))
    yield escaped_line(report.about)
    yield _list("Answer", map(escaped_line, words.answer))
    for answer in tables.answers(report):
        yield f"### {escaped(answer.title)}"
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


# ---- CSV: a line for each entry, with its load, its figures and their intervals ----

_COST = (
    "hour",
    "per_million_input",
    "per_million_output",
    "per_million_total",
    "per_thousand_requests",
    "energy_per_million_output",
)


def csv(report: Report) -> str:
    lines = [_line(entry) for entry in report.entries]
    known = {name for line in lines for name in line}
    names = [name for name in _columns(report) if name in known]
    rows = [[line.get(name, "") for name in names] for line in lines]
    return csv_text([[one_line(name) for name in names], *rows])


def _columns(report: Report) -> list[str]:
    """Return columns in a fixed order: identity, outcome, then figures."""
    loads = dict.fromkeys(
        f"load.{name}" for e in report.entries for name in e.load.settings
    )
    settings = dict.fromkeys(
        f"setting.{name}" for e in report.entries for name in e.settings
    )
    quality = _QUALITY if any(e.quality for e in report.entries) else ()
    return [
        *(
            "id",
            "series",
            "label",
            "kind",
            "tool",
            *loads,
            "repeats",
            "completed",
            "failed",
            "verdict",
            "findings",
        ),
        *("failure", *_figure_columns(report)),
        *(
            "accelerator",
            "accelerators",
            "machine_accelerators",
            "power_w",
            "joules_per_token",
        ),
        *(
            "memory_after_load_bytes",
            "memory_peak_bytes",
            "currency",
            *(f"cost_{name}" for name in _COST),
        ),
        *("price_source", *quality, *settings, "at"),
    ]


def _figure_columns(report: Report) -> list[str]:
    names = dict.fromkeys(
        name for e in report.entries for name in e.figures if name not in _SUMS
    )
    return list(dict.fromkeys(f"{name}{end}" for name in names for end in _ENDS))


_QUALITY = (
    "quality_score",
    "quality_low",
    "quality_high",
    "quality_items",
    "quality_reference",
    "quality_change",
    "quality_change_low",
    "quality_change_high",
    "quality_detectable",
    "quality_word",
)
_SUMS = ("completed", "failed")  # over all repeats, and no figure of one
_ENDS = ("", ".low", ".high", ".definition")


def _line(e: Entry) -> dict[str, str]:
    """Return the known values by column."""
    values: dict[str, Scalar | None] = {
        "id": e.id,
        "series": e.series,
        "label": e.label,
        "kind": e.kind,
        "tool": e.tool,
        "repeats": e.repeats,
        "completed": e.completed,
        "failed": e.failed,
        "verdict": e.verdict,
        "failure": e.failure,
        "findings": " ".join(dict.fromkeys(f.code for f in e.findings)),
        "accelerator": e.accelerator,
        "accelerators": e.accelerators,
        "machine_accelerators": e.machine,
        "power_w": e.power_w,
        "joules_per_token": e.joules_per_token,
        "at": " ".join(e.locations),
    }
    values |= {f"load.{name}": value for name, value in e.load.settings.items()}
    values |= {f"setting.{name}": value for name, value in e.settings.items()}
    if e.memory is not None:
        values |= {
            "memory_after_load_bytes": e.memory.after_load_bytes,
            "memory_peak_bytes": e.memory.peak_bytes,
        }
    if e.cost is not None:
        values |= {"currency": e.cost.currency, "price_source": e.cost.source}
        values |= {f"cost_{name}": getattr(e.cost, name) for name in _COST}
    if e.quality is not None:
        values |= _quality(e.quality)
    figures = {name: number for name, number in e.figures.items() if name not in _SUMS}
    for name, number in figures.items():
        values |= {
            f"{name}.low": number.low,
            f"{name}.high": number.high,
            f"{name}.definition": number.definition,
        }
    out = {
        name: _text(value)
        for name, value in values.items()
        if value is not None and value != ""
    }
    return out | {name: _digits(number) for name, number in figures.items()}


def _quality(q: Quality) -> dict[str, Scalar | None]:
    score, change = q.score, q.change
    changes = (
        (None, None, None) if change is None else (change.value, change.low, change.high)
    )
    values = (
        score.value,
        score.low,
        score.high,
        q.items,
        q.reference,
        *changes,
        q.detectable,
        q.word,
    )
    return dict(zip(_QUALITY, values, strict=True))


def _text(value: Scalar) -> str:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if value == value // 1 and abs(value) < 1e15 else repr(value)


def _digits(number: Number) -> str:
    """Return an imported figure as it was printed; dyno's own in full."""
    return (
        f"{number.value:.{decimals(number.half)}f}"
        if number.half > 0
        else _text(number.value)
    )
