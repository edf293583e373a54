"""The pages of the published reports: their tables and charts again, to the digit.

Against the figures in published/ always; against the reports' own lines where they are at hand (DYNO_REPORTS, or
../shared/reports beside the project).
"""

import html
import math
import re
from pathlib import Path

import pytest

from dyno.conduct.read import ReportRequest, distinct, make_report, read_words
from dyno.facts.imported import Document, Figure
from dyno.facts.limits import parse as limits
from dyno.facts.report import Report
from dyno.numbers import decimals
from dyno.report.charts import charts
from dyno.report.page import page
from dyno.study.prices import price_rules
from test_published import NAMES, REPORTS, ROOT, published


@pytest.fixture(scope="module", params=NAMES)
def gallery(request: pytest.FixtureRequest) -> tuple[str, Report]:
    words = [str(ROOT / "published" / request.param)]
    rules = price_rules([], None, ROOT / "published" / "prices.toml")
    reading = distinct(read_words(words, Path("runs")))
    return request.param, make_report(reading, ReportRequest(words, rules))[0]


def test_every_figure_is_in_an_entry_as_it_was_read(gallery: tuple[str, Report]) -> None:
    """But for results that are reported again: those stand once."""
    name, report = gallery
    entries = {
        (at, figure): number
        for e in report.entries
        for at in e.locations
        for figure, number in e.figures.items()
    }
    reported = 0
    for document in published(name):
        for row in document.rows:
            for figure, value in row.figures.items():
                number = entries.get((row.location, figure))
                if number is not None:
                    reported += 1
                    # Of a result that two files tell, the first one's digits stand.
                    assert math.isclose(number.value, value.value, rel_tol=0.005), (
                        row.location,
                        figure,
                    )
    assert reported >= sum(len(e.figures) for e in report.entries)


def test_what_is_printed_are_the_digits_of_the_reports(gallery: tuple[str, Report]) -> None:
    name, _ = gallery
    seen = 0
    for document in published(name):
        lines = source(document)
        for row in document.rows:
            for figure, reported in row.figures.items():
                if reported.half > 0 and not in_other_units(figure, reported, lines):
                    text = f"{reported.value:.{decimals(reported.half)}f}"
                    assert (
                        text in lines[reported.line - 1].replace(",", "")
                        or text in lines[reported.line - 1]
                    ), row.location
                    seen += 1
    assert seen > 0 or not any(d.rows for d in published(name))


def source(document: Document) -> list[str]:
    path = next(
        (
            p
            for p in (REPORTS / document.file, REPORTS / "data" / document.file)
            if p.exists()
        ),
        None,
    )
    if path is None:
        pytest.skip(f"{document.file} is not in {REPORTS}")
    return path.read_text(errors="replace").splitlines()


def in_other_units(name: str, reported: Figure, lines: list[str]) -> bool:
    """Seconds of a file are milliseconds here: the same digits, with the point elsewhere."""
    shifted = f"{reported.value / 1000:.{decimals(reported.half / 1000)}f}"
    return name.endswith("_latency_ms") and shifted in lines[reported.line - 1]


def test_the_authors_tables_are_in_the_page_to_the_letter(
    gallery: tuple[str, Report],
) -> None:
    name, report = gallery
    shown = html.unescape(re.sub(r"<script.*?</script>", "", page(report, []), flags=re.S))
    text = " ".join(shown.split())
    for document in published(name):
        for table in document.tables:
            for row in table.rows:
                for cell in row:
                    assert " ".join(cell.text.split()) in text, (
                        document.file,
                        table.line,
                        cell.text,
                    )


# What the reports drew, and what they left out.
DRAWN = {
    "h100-mi300x-llama-405b": {
        "throughput-rate", "tpot-rate", "ttft-rate", "throughput-batch-size", "tradeoff-batch-size", "cost-batch-size",
        "served-rate", "requests-rate",
    },
    "mi300x-llama-405b-tgi-vllm": {
        "throughput-requests", "ttft-requests", "throughput-context", "ttft-context", "throughput-rate", "ttft-rate",
        "cost-requests",
    },
    "mi300x-llama-70b-vllm": {"throughput-concurrency", "ttft-concurrency", "tradeoff-concurrency", "cost-concurrency"},
    "strix-halo-vllm-llamacpp": {"throughput-concurrency", "micro", "requests-concurrency", "cost-concurrency"},
    "mi300x-vllm-fp8-procedure": {"quality"},
}  # fmt: skip


def test_their_charts_are_drawn_again_with_costs(gallery: tuple[str, Report]) -> None:
    name, report = gallery
    assert {chart.name for chart in charts(report)} >= DRAWN[name]
    assert all("assumption" in price for price in report.prices) and report.prices
    assert report.findings and report.sources[0].split(":")[0] in (
        "dstack",
        "Hot Aisle",
        "lhl",
        "AMD ROCm",
    )


def test_reading_returns_warnings_and_prints_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A report can be made from Python as the command line makes it."""
    word = str(ROOT / "published" / "mi300x-llama-70b-vllm")
    sources = distinct(read_words([word, word, "no-such-run"], Path("no-such-folder")))
    assert len(sources.failed) == 1 and "no-such-run" in sources.failed[0]
    request = ReportRequest(
        [word],
        price_rules(["A100=1"], None, None),
        limits(["ttft:500"]),
        "Mine",
        "dyno report …",
    )
    report, warnings = make_report(sources, request)
    assert warnings == ["--price A100: no result has this name, so the price is unused."]
    assert (report.title, report.again, list(report.target)) == (
        "Mine",
        "dyno report …",
        ["p99_ttft_ms"],
    )
    assert all(e.rows for e in report.entries)
    assert capsys.readouterr() == ("", "")
