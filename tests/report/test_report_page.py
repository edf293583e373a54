"""The page, Markdown and CSV of a report: nothing is fetched, nothing of a stranger's is obeyed, digits stay."""

import base64
import csv as commas
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise

import msgspec
import pytest

import reports
from dyno.facts.entry import Entry, Number
from dyno.facts.finding import Finding
from dyno.facts.imported import DocumentCell, DocumentTable
from dyno.facts.load import Load
from dyno.facts.report import AuthorsTable, CommandText, Report, Sheet, Words
from dyno.report import page as pages
from dyno.report import per, tables
from dyno.report.page import embedded, page
from dyno.report.table import figure_interval, figure_text, guarded
from dyno.report.text import csv, escaped, escaped_line, markdown
from dyno.visible import plain

HOSTILE = (
    "<script>window.hacked=1</script>", "</script><script>window.hacked=1</script>", "<img src=x onerror=hacked=1>",
    "\"' onmouseover='hacked=1' x=\"", "javascript:hacked=1", "{{ 7*7 }}{% raise %}", "<!--", "]]>", "&lt;b&gt;",
    "\x1b[31mred\x1b[0m \x00\x07\u202eback", "=HYPERLINK(\"http://x\")", "| a | `b` | ![](http://x/y.png)",
    "\udcff\u2028",
)  # fmt: skip


def hostile() -> Report:
    """Every string that a stranger may have written is one of those."""
    bad = " ".join(HOSTILE)
    made = reports.report(engines=HOSTILE[:3], streams=(1, 2))
    entries = [
        msgspec.structs.replace(
            e, label=bad, failure=bad, accelerator=bad, locations=list(HOSTILE), settings={bad: bad}, tool=bad,
            load=Load({**e.load.settings, "dataset": bad}), findings=[Finding("a.b", "void", bad, bad, list(HOSTILE))],
        )
        for e in made.entries
    ]  # fmt: skip
    sheet = Sheet(bad, [(bad, one) for one in HOSTILE], ["t1"])
    return reports.of(
        entries, title=bad, created=bad, dyno=bad, about=bad, sources=list(HOSTILE), prices=list(HOSTILE), again=bad,
        words=Words(bad, bad, [bad], [bad], [bad]), rigs=[sheet], engines=[sheet], commands=[CommandText(bad, bad)],
        definitions={bad: bad}, target={"p99_ttft_ms": 1.0},
        tables=[AuthorsTable(
            bad, DocumentTable(1, [bad, bad], [[DocumentCell(bad, True), DocumentCell(bad)]], [2], bad))],
    )  # fmt: skip


class Parsed(HTMLParser):
    """Elements with their attributes, and the text of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        attrs = self.elements[-1][1] if self.elements else {}
        if self.cdata_elem == "script":
            self.scripts.append((attrs.get("type") or "", data))
        elif self.cdata_elem is None:
            self.words.append(data)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the bundle takes seconds; tests/pages does."""
    monkeypatch.setattr(pages, "bundle", lambda kept=None: "window.vegaEmbed = null;")


@pytest.fixture(scope="module")
def made() -> Report:
    return reports.report()


def html_of(report: Report) -> str:
    return page(report, reports.charts(report))


# ---- nothing is fetched, nothing of a stranger's runs ----


@pytest.mark.parametrize("make", [reports.report, hostile])
def test_nothing_is_fetched(make: Callable[[], Report]) -> None:
    html = html_of(make())
    parsed = Parsed(html)
    assert not [
        e
        for e in parsed.elements
        if e[0] in ("img", "iframe", "object", "embed", "base", "form")
    ]
    for tag, attrs in parsed.elements:
        if tag == "link":
            assert attrs["rel"] == "icon" and (attrs["href"] or "").startswith(
                "data:image/svg+xml,"
            )
            continue
        assert (
            not {"src", "srcset", "background", "data", "action", "poster"} & attrs.keys()
        ), (tag, attrs)
        assert not [name for name in attrs if name.startswith("on")]
        target = attrs.get("href")
        assert target is None or (tag == "a" and re.match(r"#|https?://", target)), target
    style = re.search(r"<style>(.*?)</style>", html, re.S)
    assert style and not re.search(r"@import|url\(", style[1])


@pytest.mark.parametrize("make", [reports.report, hostile])
def test_only_our_scripts_run(make: Callable[[], Report]) -> None:
    html = html_of(make())
    parsed = Parsed(html)
    policy = next(
        a["content"]
        for t, a in parsed.elements
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy and "default-src 'none'" in policy and "unsafe-eval" not in policy
    run = [text for kind, text in parsed.scripts if not kind]
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run
    ]
    assert re.findall(r"sha256-([^']+)", policy) == hashes and len(hashes) == 2


def test_hostile_words_stay_words() -> None:
    """The same elements as with harmless words, no more."""
    report = hostile()
    parsed = Parsed(html_of(report))
    counts = Counter(tag for tag, _ in parsed.elements)
    assert counts["script"] == 2 + len(reports.charts(report)) and not counts["img"]
    text = "".join(parsed.words)
    assert "<script>window.hacked=1</script>" in text and "{{ 7*7 }}" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)
    for kind, data in parsed.scripts:
        if kind:
            assert json.loads(data)["rows"] and "<" not in data and "\u2028" not in data


def test_data_cannot_end_its_script() -> None:
    data = embedded({"</script>": ["<!--", "\u2028", "\udcff", float("nan")]})
    assert not re.search("[<>&\u2028]", data)
    assert json.loads(data) == {"</script>": ["<!--", " ", " ", None]}


def test_only_web_addresses_are_links(made: Report) -> None:
    report = msgspec.structs.replace(
        made, sources=["javascript:alert(1)", "https://a.b/c", "data:text/html,x"]
    )
    links = [
        a["href"]
        for t, a in Parsed(html_of(report)).elements
        if t == "a" and not (a["href"] or "").startswith("#")
    ]
    assert links == ["https://a.b/c"]


def test_escape_sequences_are_left_out() -> None:
    assert plain("\x1b[1;31mred\x1b[0m\x1b]0;title\x07 a\u202eb\udc80\x00") == "red a b  "


def test_every_link_leads_somewhere(made: Report) -> None:
    parsed = Parsed(html_of(made))
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert not [i for i, count in Counter(ids).items() if count > 1]
    assert {
        a["href"][1:]
        for t, a in parsed.elements
        if t == "a" and (a["href"] or "").startswith("#")
    } <= set(ids)  # type: ignore[index]
    assert {e.id for e in made.entries} <= set(ids)


def test_headings_are_in_order(made: Report) -> None:
    levels = [
        int(t[1]) for t, _ in Parsed(html_of(made)).elements if re.fullmatch("h[1-6]", t)
    ]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_a_page_without_charts_or_results() -> None:
    words = Words("nothing", "nowhere", [], [], [])
    html = page(Report("Empty", "2025-01-01", "0", "sound", words, [], []), [])
    assert "There are no results." in html and html.count("<script>") == 1


# ---- digits ----


@pytest.mark.parametrize(
    ("value", "half", "shown", "full"),
    [
        (12.3, 0.005, "12.30", "12.30"), (2310.0, 0.5, "2,310", "2310"), (2310.0, 0.05, "2,310", "2310.0"),
        (0.001, 0.0005, "0.001", "0.001"), (1200.0, 50.0, "1,200", "1200"), (3.14159, 0.000005, "3.142", "3.14159"),
        (1234567.8, 0.05, "1,234,568", "1234567.8"),
    ],
)  # fmt: skip
def test_imported_numbers_get_no_digit_that_was_not_printed(
    value: float, half: float, shown: str, full: str
) -> None:
    row = Entry(
        "t1",
        "a",
        "serve",
        Load({"concurrency": 1}),
        "sound",
        figures={"output_throughput": Number(value, half=half)},
    )
    report = reports.of([row], best=[])
    assert f">{shown}<" in page(report, [])
    assert f"| {shown} |" in markdown(report)
    assert next(commas.DictReader(io.StringIO(csv(report))))["output_throughput"] == full


def test_a_figure_and_its_interval() -> None:
    assert (
        figure_text(Number(900)) == "900" and figure_text(Number(900, 890, 910)) == "900.0"
    )
    assert figure_interval(Number(100, 97, 103)) == "± 3.0"
    assert figure_interval(Number(100, deviation=2.5)) == "± 2.5"
    assert figure_interval(Number(100)) == ""


# ---- tables ----


def titles(table: tables.Table) -> list[str]:
    return [c.title for c in table.columns]


def test_no_speed_without_failures_and_verdict(made: Report) -> None:
    best = tables.best(made)
    assert best is not None
    for table in [*tables.results(made), *tables.cost(made), best]:
        at = titles(table)
        speed = next(i for i, title in enumerate(at) if title.endswith("tok/s"))
        assert at.index("failed") < at.index("verdict") < speed


def test_a_trial_without_result_has_a_row(made: Report) -> None:
    table = tables.results(made)[0]
    assert len(table.lines) == len(made.entries)
    row = next(line for line in table.lines if line.entry == "t24")
    assert "void, no result" in [c.text for c in row.cells]
    assert "CUDA out of memory" in html_of(made)


def test_only_what_varies_of_a_load_is_a_column(made: Report) -> None:
    table = tables.results(made)[0]
    assert titles(table)[:5] == ["series", "concurrency", "input", "output", "repeats"]
    totals = "Completed, failed and duration are totals over repeats."
    assert table.about == f"All rows: 512 requests, random. {totals}"


def test_every_table_has_the_means_and_the_duration() -> None:
    """The figures that published reports quote."""
    names = (
        "duration_s",
        "output_throughput",
        "mean_ttft_ms",
        "median_ttft_ms",
        "p99_ttft_ms",
        "mean_tpot_ms",
    )
    figures = {name: Number(10.0 + i) for i, name in enumerate(names)}
    entry = Entry(
        "t1", "a", "serve", Load({"max_concurrency": 4}), "sound", figures=figures
    )
    report = reports.of([entry], best=[])
    columns = tables.results(report)[0].columns
    assert [(c.title, c.unit, c.per) for c in columns][2:4] == [
        ("output tok/s", "", True),
        ("p50 TTFT", "ms", False),
    ]
    assert ("duration", "s") in [(c.title, c.unit) for c in columns[4:]]
    header = next(
        line
        for line in markdown(report).splitlines()
        if line.startswith("| series | verdict")
    )
    assert (
        "duration, s" in header and "mean TTFT, ms" in header and "mean TPOT, ms" in header
    )
    (row,) = commas.DictReader(io.StringIO(csv(report)))
    assert [row[name] for name in ("duration_s", "mean_ttft_ms", "mean_tpot_ms")] == [
        "10",
        "12",
        "15",
    ]


def test_kinds_stand_apart() -> None:
    micro = Entry(
        "t1", "a", "micro", Load({"test": "pp512"}), "sound", figures={"speed": Number(1.0)}
    )
    score = Entry(
        "t2",
        "a",
        "quality",
        Load({"task": "gsm8k"}),
        "sound",
        figures={"score": Number(0.9, 0.88, 0.92, "stderr")},
    )
    report = reports.of([micro, score], best=[])
    assert [(t.title, titles(t)) for t in tables.results(report)] == [
        ("Micro tests", ["series", "verdict", "tok/s"]),
        ("Quality", ["series", "verdict", "score"]),
    ]
    assert tables.results(report)[1].lines[0].cells[2].interval == "± 0.020"


def test_two_definitions_are_two_columns() -> None:
    def one(number: int, tool: str) -> Entry:
        reported = {
            "median_itl_ms": Number(5.0, definition=f"{tool}.itl"),
            "median_ttft_ms": Number(5.0, definition=f"{tool}.ttft"),
        }
        return Entry(
            f"t{number}",
            tool,
            "serve",
            Load({"concurrency": number}),
            "sound",
            tool=tool,
            figures=reported,
        )

    report = reports.of([one(1, "vllm"), one(2, "guidellm"), one(3, "dyno")], best=[])
    table = tables.results(report)[0]
    assert titles(table)[3:] == ["p50 TTFT", "p50 ITL (dyno, vllm)", "p50 ITL (guidellm)"]
    assert [[c.text for c in line.cells[4:]] for line in table.lines] == [
        ["5.000", "–"],
        ["–", "5.000"],
        ["5.000", "–"],
    ]


def test_means_where_nothing_else_is_reported() -> None:
    reported = {"mean_ttft_ms": Number(5.0), "p90_ttft_ms": Number(6.0)}
    table = tables.results(
        reports.of([Entry("t1", "a", "serve", Load(), "sound", figures=reported)], best=[])
    )[0]
    assert titles(table)[-2:] == ["mean TTFT", "p90 TTFT"]


def test_throughput_follows_the_switch(made: Report) -> None:
    e = made.entries[0]
    speed = e.figures["output_throughput"].value
    assert [per.per(e, speed, mode) for mode in per.PER] == [
        speed,
        speed / 4,
        speed * 2,
        speed / 20,
    ]
    assert per.estimated(e, "machine") and not per.estimated(e, "accelerator")
    whole = msgspec.structs.replace(e, accelerators=8)
    assert not per.estimated(whole, "machine")
    assert (
        per.per(msgspec.structs.replace(e, cost=None, accelerators=None), speed, "dollar")
        is None
    )
    cell = next(c for c in tables.results(made)[0].lines[0].cells if c.per)
    assert cell.per["machine"].startswith("≈") and not cell.per["accelerator"].startswith(
        "≈"
    )


def test_the_authors_tables_are_to_the_letter(made: Report) -> None:
    table = tables.authors(made)[0]
    assert titles(table) == ["engine", "TTFT (ms)", "tok/s"]
    assert [[c.text for c in line.cells] for line in table.lines] == [
        ["vLLM", "123.40", "2,310.0"],
        ["TGI", "98.05", "1790"],
    ]
    assert "<b>2,310.0</b>" in html_of(made) and "**2,310.0**" in markdown(made)


def test_findings_name_their_trials(made: Report) -> None:
    table = tables.findings(made)
    assert table is not None
    assert [line.cells[0].text for line in table.lines] == ["void", "void", "doubt", "note"]
    assert next(
        line.cells[5].trials for line in table.lines if line.cells[1].text == "client.late"
    ) == ["t4", "t16"]


# ---- Markdown and CSV ----


def test_markdown_has_all_that_the_page_has(made: Report) -> None:
    text = markdown(made)
    for heading in (
        "Results",
        "Cost",
        "Findings",
        "Machines",
        "Engines",
        "Commands",
        "Definitions",
        "Sources",
    ):
        assert f"\n## {heading}\n" in text
    assert "**void** `requests.failed`: 38 of 512 requests failed" in text
    rows = [
        r for r in text.splitlines() if r.startswith("| vLLM 0.11.0 | 16 | 512 | 128 | 3 |")
    ]
    assert any("| 1,536 | 0 | sound | " in r and "| 16.00 ± 0.48 |" in r for r in rows)


def test_markdown_is_not_obeyed() -> None:
    text = markdown(hostile())
    outside = re.sub(
        r"`[^`\n]*`", "", re.sub(r"^(`{3,})sh\n.*?^\1$", "", text, flags=re.S | re.M)
    )
    assert "<script" not in outside and "![" not in outside.replace("!\\[", "")
    assert "\x1b" not in text
    text.encode()
    for line in outside.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) >= 3


@pytest.mark.parametrize(
    ("words", "text"),
    [("a|b", "a|b"), ("`x` *y*", "\\`x\\` \\*y\\*"), ("6.2%", "6.2%"),
     ("-1.5", "-1.5"), ("a_b_c", "a_b_c"), ("_a_", "\\_a\\_"), ("a\nb", "a b"), ("1.600 ±0.048", "1.600 ±0.048")],
)  # fmt: skip
def test_marks_are_escaped(words: str, text: str) -> None:
    assert escaped(words) == text


@pytest.mark.parametrize(
    ("words", "text"),
    [("# no", "\\# no"), ("1. no", "1\\. no"), ("- no", "\\- no"), ("a", "a")],
)
def test_what_begins_a_line_begins_no_list_or_heading(words: str, text: str) -> None:
    assert escaped_line(words) == text


def test_csv_has_a_line_for_each_trial(made: Report) -> None:
    lines = list(commas.DictReader(io.StringIO(csv(made))))
    assert [line["id"] for line in lines] == [e.id for e in made.entries]
    first, last = lines[0], lines[-1]
    assert (
        first["load.concurrency"] == "1"
        and first["findings"] == "load.short"
        and first["verdict"] == "sound"
    )
    assert (
        float(first["p99_ttft_ms.low"])
        < float(first["p99_ttft_ms"])
        < float(first["p99_ttft_ms.high"])
    )
    assert (
        float(first["cost_per_million_output"]) == made.entries[0].cost.per_million_output
    )  # type: ignore[union-attr]
    assert last["output_throughput"] == "" and last["failure"].startswith(
        "the engine exited"
    )


def test_a_spreadsheet_calculates_nothing() -> None:
    assert [guarded(w) for w in ("=1+1", "+a", "-b", "@c", "-1.5", "\t=x", "a=b")] == \
        ["'=1+1", "'+a", "'-b", "'@c", "-1.5", "'\t=x", "a=b"]  # fmt: skip
    for line in commas.reader(io.StringIO(csv(hostile()))):
        assert not [c for c in line if re.match(r"[=+@\t\r]|-\D", c)]


def test_a_report_of_two_hundred_is_small() -> None:
    report = reports.report(streams=tuple(range(1, 35)))
    assert len(report.entries) == 204
    assert len(html_of(report)) < 1_400_000  # and the bundle's 0.9


def test_a_latency_that_a_busy_client_lost_has_its_reason_below_the_table() -> None:
    def one(name: str, codes: list[str], **figures: float) -> Entry:
        return Entry(
            name,
            name,
            "serve",
            Load({"concurrency": 4}),
            "doubtful",
            figures={n: Number(value) for n, value in figures.items()},
            findings=[Finding(code, "doubt", "Busy.", "") for code in codes],
        )

    whole = one("t1", [], output_throughput=10.0, median_ttft_ms=5.0)
    busy = one("t2", ["client.unseen_chunks"], output_throughput=9.0)
    about = [
        tables.results(reports.of(some, best=[]))[0].about
        for some in ([whole, busy], [whole])
    ]
    assert "–: in one run at least, a client without a free core" in about[0]
    assert "free core" not in about[1]
