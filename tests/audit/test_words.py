"""Checks over words: what speaks, and above all what stays silent."""

import time
from typing import Any

import pytest

from dyno import checks
from dyno.audit import claims, numbers, wording
from dyno.audit.audit import REPORT_CHECKS
from dyno.facts.finding import Finding
from dyno.facts.imported import (
    Document,
    DocumentCell,
    DocumentTable,
    Figure,
    Heading,
    Passage,
    Row,
    Setting,
)
from dyno.facts.metric import better, leads


def doc(
    *texts: str,
    rows: list[Row] | None = None,
    listing: bool = False,
    section: str = "",
    title: str = "Report",
) -> Document:
    passages = [Passage(10 + 2 * i, t, section, listing) for i, t in enumerate(texts)]
    return Document(
        "r.md", "markdown", rows or [], [Heading(1, 1, title)], passages=passages
    )


def row(
    series: str = "",
    line: int = 1,
    table: int | None = 0,
    file: str = "d.csv",
    **values: float,
) -> Row:
    """Names of settings become settings, all others figures; a bold one is given as its negative."""
    reported = (
        "batch_size",
        "concurrency",
        "rate",
        "input_len",
        "output_len",
        "num_prompts",
    )
    figures = {
        n: Figure(abs(v), line, bold=v < 0) for n, v in values.items() if n not in reported
    }
    settings = {n: Setting(v, line, "column") for n, v in values.items() if n in reported}
    return Row(
        "serve", "", "csv", file, line, line, figures, settings, series=series, table=table
    )


def said(check: Any, *documents: Document) -> list[Finding]:
    """Claims and missing figures are looked for in all documents, everything else in one."""
    return list(
        check(documents)
        if check in (claims.claims, wording.no_figures)
        else check(*documents)
    )


# Sums


@pytest.mark.parametrize(
    "text",
    [
        "2011.33*4 = 8011.33",
        "we pay 8 × 2.99 = 24.92 $/h",
        "1,024/60 = 18.07",
        "so (17809-1339)/28 = 508.2 tokens each",
        "a total = 8 x 2.99 = 25.10",
        "100 + 23.5 = 133.5",
        "(8 * 2.99 = 24.92)",
        "36/64 = 66%",
        "it is 12% higher than the other (150 vs 100)",
        "rose from 100 to 120, a 30% increase",
        "2.5x faster (155 tok/s vs 91 tok/s)",
    ],
)
def test_a_sum_that_does_not_come_out_is_reported(text: str) -> None:
    (finding,) = said(numbers.sums, doc(text))
    assert (finding.code, finding.level, finding.locations) == (
        "consistency.arithmetic",
        "doubt",
        ["r.md:10"],
    )


def test_a_wrong_sum_is_reported_with_what_it_is() -> None:
    (finding,) = said(numbers.sums, doc("2011.33*4 = 8011.33", listing=True))
    assert "8045.32" in finding.text


@pytest.mark.parametrize(
    "text",
    [
        "8 × 2.99 = 23.92",
        "1,024/60 = 17.07",
        "1559*8 = 12472",
        "1559*8 = 12473.5",  # of a rounded figure
        "2011 * 4 = 8000",  # rounded
        "8 * 2011 ≈ 16000",
        "8 * 2011 = ~16500",
        "1000/64 = 15",  # cut off
        "36/64 = 56%",
        "36/64 = 56.25 %",
        "19513*16/32768 = 9.53",
        "9.55*(4.14+178.9*0.7288) = 1285",
        "2 x 7.5 = 15",
        # no sums
        "on 2024-12-25 = 1987",
        "10-20 = 15 of them",
        "v2*3 = 7.1",
        "vllm 0.6*3.1.2 = 1.9",
        "1.2*3 = 3.6.1",
        "2048*2048 = image",
        "8x7B = 56B",
        "2 * 512 = 1k",
        "32 * 4096 * 2 = 256 KB",
        "2 * 30 = 1 minute",
        "QPS 16/32/1000 = 3 levels",
        "16/32 = 2",
        "1 + 1 = 3",
        "2**10 = 1000",
        "8*2 = 16*3 = 48",
        "a=b*c",
        "x=3*4",
        "--tp=8 --n 4*2",
        "if 3*31 == 90",
        "3*31 >= 90",
        "f(4*22=87)",
        "dict[2*30] = 90",
        "speed *= 3",
        # shares that are right by one reading
        "12% higher (112 vs 100)",
        "12% lower (100 ms vs 112 ms)",
        "11% lower (100 ms vs 112 ms)",
        "2x faster (2 s vs 900 ms)",
        "1.7x faster (155 vs 91)",
        "from 100 to 120, a 20% increase",
    ],
)
def test_right_sums_and_things_that_are_not_sums_are_not_mentioned(text: str) -> None:
    assert said(numbers.sums, doc(text)) == []
    assert said(numbers.sums, doc(text, listing=True)) == []


def test_a_python_session_is_compared_with_its_answer() -> None:
    def session(answer: str) -> Document:
        return Document(
            "r.md",
            "markdown",
            passages=[
                Passage(5, ">>> 1559*8", listing=True),
                Passage(6, answer, listing=True),
            ],
        )

    assert said(numbers.sums, session("12472")) == []
    assert said(numbers.sums, session("12473"))[0].locations == ["r.md:5"]
    assert said(numbers.sums, session("Traceback")) == []


@pytest.mark.parametrize(
    "text",
    ["2011.33*4 = 8045.32", ">>> 1559*8", "8 × 2011.33 tok/s", "1559.19 tok/s x 8 = 12473"],
)
def test_a_measured_speed_times_a_number_was_not_run(text: str) -> None:
    measured = [
        row(output_throughput=2011.33, line=3),
        row(output_throughput=1559.19, line=4),
    ]
    (finding,) = said(numbers.extrapolated, doc(text, rows=measured, listing=True))
    assert (finding.code, finding.level) == ("comparability.extrapolated", "doubt")
    assert finding.locations[0] == "r.md:10" and finding.locations[1] in (
        "r.md:3",
        "r.md:4",
    )


@pytest.mark.parametrize(
    "text",
    [
        "1560*8",  # no figure here
        "1024*8",  # a size
        "2011.33 * 60 per minute",
        "1559.19 × 24 tokens per day",
        "2011.33*100",
        "8x7B and 1x8",
        "2011.33 and 8 × more",
    ],
)
def test_other_products_are_not_an_extrapolation(text: str) -> None:
    measured = [row(output_throughput=v) for v in (2011.33, 1559.19, 1024.2)]
    assert said(numbers.extrapolated, doc(text, rows=measured)) == []


# Bold


def table(*rows: Row) -> Document:
    return Document("r.md", "markdown", list(rows), [Heading(1, 1, "Report")])


def test_a_bold_value_that_is_not_the_best_is_reported() -> None:
    a = row(
        "a",
        1,
        duration_s=155.97,
        request_throughput=0.41,
        output_throughput=-72.17,
        mean_tpot_ms=162.64,
    )
    b = row(
        "b",
        2,
        duration_s=-79.95,
        request_throughput=-0.45,
        output_throughput=66.85,
        mean_tpot_ms=-175.86,
    )
    (finding,) = said(numbers.bold, table(a, b))
    assert (finding.code, finding.level, finding.locations) == (
        "consistency.bold",
        "doubt",
        ["r.md:2"],
    )
    assert "175.86 in bold, but 162.64 is lower" in finding.text


def test_two_bold_values_of_which_one_is_better_are_reported() -> None:
    rows = [
        row("a", 1, request_throughput=0.05, mean_ttft_ms=-121.23, mean_tpot_ms=115.88),
        row("b", 2, request_throughput=0.09, mean_ttft_ms=200.52, mean_tpot_ms=-76.32),
        row("c", 3, request_throughput=-0.15, mean_ttft_ms=-145.18, mean_tpot_ms=-39.09),
    ]
    (finding,) = said(numbers.bold, table(*rows))
    assert finding.locations == ["r.md:2", "r.md:3"] and "2 of 3 columns" in finding.text


def test_the_best_in_bold_and_ties_in_bold_are_right() -> None:
    a = row("a", 1, request_throughput=-0.15, output_throughput=-24.74, mean_ttft_ms=146.13)
    b = row(
        "b", 2, request_throughput=-0.15, output_throughput=-24.75, mean_ttft_ms=-145.18
    )
    c = row("c", 3, request_throughput=0.05, output_throughput=8.6, mean_ttft_ms=300.0)
    assert said(numbers.bold, table(a, b, c)) == []


def test_the_best_of_each_block_of_one_load_may_be_bold() -> None:
    rows = [
        row("a", 1, concurrency=1, output_throughput=-24.0, mean_tpot_ms=-40.0),
        row("b", 2, concurrency=1, output_throughput=12.0, mean_tpot_ms=80.0),
        row("a", 3, concurrency=16, output_throughput=160.0, mean_tpot_ms=90.0),
        row("b", 4, concurrency=16, output_throughput=-170.0, mean_tpot_ms=-85.0),
    ]
    assert said(numbers.bold, table(*rows)) == []


def test_a_row_in_bold_is_a_favourite_and_a_column_in_bold_is_style() -> None:
    mine = row("mine", 1, output_throughput=-90.0, mean_tpot_ms=-10.0, mean_ttft_ms=-10.0)
    other = row("other", 2, output_throughput=100.0, mean_tpot_ms=11.0, mean_ttft_ms=12.0)
    assert said(numbers.bold, table(mine, other)) == []
    all_ = [
        row(s, i, output_throughput=-90.0 - i, mean_tpot_ms=5.0 + i)
        for i, s in enumerate("ab")
    ]
    assert said(numbers.bold, table(*all_)) == []


def test_bold_that_does_not_mark_the_best_elsewhere_means_something_else() -> None:
    a = row("a", 1, output_throughput=-90.0, mean_tpot_ms=10.0)
    b = row("b", 2, output_throughput=100.0, mean_tpot_ms=-11.0)
    assert said(numbers.bold, table(a, b)) == []
    counts = [row("a", 1, completed=-10.0), row("b", 2, completed=12.0)]
    assert said(numbers.bold, table(*counts)) == []


def test_bold_within_the_printed_deviation_is_a_tie() -> None:
    def score(line: int, value: float, speed: float, ttft: float) -> Row:
        figures = {"score": Figure(value, line, deviation=0.013, bold=True)}
        figures |= {
            n: Figure(abs(v), line, bold=v < 0)
            for n, v in (("speed", speed), ("mean_ttft_ms", ttft))
        }
        return Row("quality", "", "table", "r.md", line, line, figures, table=0)

    plain = Row(
        "quality",
        "",
        "table",
        "r.md",
        3,
        3,
        {"score": Figure(0.5, 3, deviation=0.01)},
        table=0,
    )
    assert (
        said(
            numbers.bold,
            table(score(1, 0.848, 2.0, 3.0), score(2, 0.8466, -3.0, -2.0), plain),
        )
        == []
    )


def test_which_way_a_figure_is_better() -> None:
    assert (
        better("output_throughput")
        == better("request_goodput")
        == better("score")
        == "higher"
    )
    assert (
        better("p99_ttft_ms")
        == better("duration_s")
        == better("cost_per_million_tokens")
        == "lower"
    )
    assert better("completed") is better("total_output_tokens") is better("stderr") is None
    assert leads("mean_ttft_ms", 100, 110) == pytest.approx(0.1)
    assert leads("output_throughput", 100, 110) == pytest.approx(-0.1)


# Sections


def test_an_empty_section_is_doubtful_where_its_heading_promises_figures() -> None:
    headings = [
        Heading(1, 1, "Report"),
        Heading(5, 3, "Cost per million token", empty=True),
        Heading(7, 3, "Acknowledgements", empty=True),
        Heading(9, 0, "c=1 results", empty=True),
        Heading(11, 2, "categories:", empty=True),
        Heading(13, 2, "Setting"),
        Heading(15, 2, "Runs"),
    ]
    found = said(
        wording.empty,
        Document(
            "r.md", "markdown", [row("a", 99, output_throughput=1.0)], headings=headings
        ),
    )
    assert [(f.code, f.level, f.locations) for f in found] == [
        ("consistency.empty_section", "doubt", ["r.md:5"]),
        ("consistency.empty_section", "note", ["r.md:7"]),
    ]


def test_an_empty_section_is_a_note_where_nothing_is_measured_or_the_next_one_has_it() -> (
    None
):
    headings = [
        Heading(1, 1, "Report"), Heading(3, 2, "Set-up"), Heading(5, 3, "Platform comparison", empty=True),
        Heading(7, 3, "Tab"), Heading(20, 2, "End"),
    ]  # fmt: skip
    (finding,) = said(wording.empty, Document("r.md", "markdown", headings=headings))
    assert finding.level == "note"
    (finding,) = said(
        wording.empty,
        Document(
            "r.md", "markdown", [row("a", 9, output_throughput=1.0)], headings=headings
        ),
    )
    assert finding.level == "note"


def test_a_figure_multiplied_in_a_table_was_not_run() -> None:
    cells = [
        [
            DocumentCell("Long prompts"),
            DocumentCell("Total TPS: 8424.86"),
            DocumentCell("Total TPS: 7787.17x2 (+84.9%)"),
        ]
    ]
    table = DocumentTable(3, ["Case", "Baseline", "Optimized"], cells, [5])
    (finding,) = said(numbers.extrapolated, Document("r.md", "markdown", tables=[table]))
    assert (
        finding.code == "comparability.extrapolated"
        and finding.locations == ["r.md:5"]
        and "7787.17 in a table is multiplied by 2" in finding.text
    )
    shapes = DocumentTable(
        3,
        ["GPU", "Size"],
        [[DocumentCell("8x7B"), DocumentCell("2 x 80 GB, 1.5x faster, v1.2x")]],
        [5],
    )
    assert said(numbers.extrapolated, Document("r.md", "markdown", tables=[shapes])) == []


def percentages(*rows: tuple[str, str, str]) -> list[str]:
    table = DocumentTable(
        1,
        ["Case", "Before", "After"],
        [[DocumentCell(c) for c in r] for r in rows],
        list(range(3, 3 + len(rows))),
    )
    return [
        f.locations[0]
        for f in said(numbers.percentages, Document("r.md", "markdown", tables=[table]))
    ]


def test_a_percentage_that_its_numbers_contradict_is_found_among_right_ones() -> None:
    right = [
        ("a", "100", "150 (+50%)"),
        ("b", "200", "260 (+30%)"),
        ("c", "80", "120 (+50%)"),
        ("d", "40", "50 (+25%)"),
    ]
    assert percentages(*right) == []
    assert percentages(*right, ("e", "2771.81", "4068.16 (+10.7%)")) == ["r.md:7"]
    # Rounded numbers allow more, another row may be reckoned the other way round, and a share is no difference.
    assert percentages(*right, ("e", "52", "47 (-9%)")) == []
    assert percentages(*right, ("e", "150", "100 (+50%)")) == []
    assert percentages(*right, ("e", "150", "100 (success 51.6%)")) == []


def test_comments_of_a_script_are_not_empty_sections() -> None:
    headings = [Heading(i, 1, "Licensed under results", empty=True) for i in range(9)]
    assert (
        said(wording.empty, Document("CMakeLists.txt", "markdown", headings=headings)) == []
    )


def test_a_title_that_promises_figures_over_a_text_without_one() -> None:
    title = "Latency and throughput benchmarks of an engine"
    (finding,) = said(wording.no_figures, doc("Run the script.", title=title))
    assert (finding.code, finding.level) == ("consistency.no_figures", "doubt")
    (finding,) = said(
        wording.no_figures,
        doc("Run the script.", title="How to run the serving benchmarks"),
    )
    assert finding.level == "note"


def test_a_text_with_figures_or_without_a_promise_keeps_its_title() -> None:
    title = "Throughput benchmarks"
    assert said(wording.no_figures, doc("It does 1200 tokens/s.", title=title)) == []
    assert (
        said(
            wording.no_figures, doc("Fine.", title=title, rows=[row(output_throughput=1.0)])
        )
        == []
    )
    assert (
        said(wording.no_figures, doc("Install it.", title="An engine for everybody")) == []
    )
    assert (
        said(
            wording.no_figures, doc("Judges agree.", title="What makes good LLM benchmarks")
        )
        == []
    )
    cells = [
        [DocumentCell("4090 24GB"), DocumentCell("127.74"), DocumentCell("OOM")],
        [DocumentCell("H100"), DocumentCell("144.49 ± 0.3"), DocumentCell("67.79")],
    ]
    unread = Document(
        "r.md",
        "markdown",
        headings=[Heading(1, 1, title)],
        tables=[DocumentTable(3, ["GPU", "8B", "70B"], cells, [5, 6])],
    )
    assert said(wording.no_figures, unread) == []


LONG = (
    "For models that fit on one device it is usually best to run them there, and to spread requests over copies. "
    * 3
)


def test_values_that_are_listed_below_and_are_not() -> None:
    promise = "Suggested values for various models are listed below."
    (finding,) = said(wording.dangling, doc(promise, LONG))
    assert (finding.code, finding.level, finding.locations) == (
        "consistency.empty_section",
        "note",
        ["r.md:10"],
    )


def test_values_that_are_listed_below() -> None:
    promise = "Suggested values for various models are listed below."
    assert said(wording.dangling, doc(promise, "8B: 256", "70B: 512")) == []
    below = DocumentTable(13, ["model", "value"], [], [])
    passages = [Passage(10, promise)]
    headings = [Heading(1, 1, "R"), Heading(30, 1, "S")]
    assert (
        said(
            wording.dangling, Document("r.md", "markdown", [], headings, [below], passages)
        )
        == []
    )
    # lines that nobody read are between
    far = Document("r.md", "markdown", headings=headings, passages=passages)
    assert said(wording.dangling, far) == []
    assert (
        said(wording.dangling, doc("The results are shown in the chart below.", LONG)) == []
    )
    assert said(wording.dangling, doc("Clocks were below.", LONG)) == []


# Claims


def sweep(
    name: str, figure: str, values: dict[int, float], first: int, **more: float
) -> list[Row]:
    return [
        row(name, first + i, batch_size=b, **{figure: v}, **more)
        for i, (b, v) in enumerate(values.items())
    ]


FAST = {4: 128.4, 8: 253.4, 16: 476.5, 32: 853.1, 64: 1401.5}
SLOW = {4: 122.1, 8: 231.9, 16: 459.2, 32: 888.5, 64: 1130.8}


def grid(section: str = "", **more: float) -> Document:
    rows = sweep("8xRed 1FP8", "total_token_throughput", FAST, 2, **more)
    rows += sweep("8xGreen 1FP8", "total_token_throughput", SLOW, 20, **more)
    return Document("d.csv", "csv", rows)


def claim(*texts: str, data: Document | None = None, section: str = "") -> list[Finding]:
    return said(claims.claims, doc(*texts, section=section), data or grid())


@pytest.mark.parametrize(
    "text",
    [
        "Red beats Green in throughput at all batch sizes.",
        "Red consistently outperforms Green in token throughput.",
        "At batch size 32, Red is faster than Green in total token throughput.",
        "Green is slower than Red at batch sizes 16, 32 and 64.",
        "Red has a higher total token throughput than Green at batch size 32.",
        "Green has higher throughput than Red at batch size 64.",
        "Red is 50% faster than Green in throughput at batch size 64.",
    ],
)
def test_a_claim_that_the_rows_contradict_is_reported(text: str) -> None:
    (finding,) = claim(text)
    assert (finding.code, finding.level) == ("consistency.claim", "doubt")
    assert (
        finding.locations[0] == "r.md:10"
        and all(a.startswith("d.csv:") for a in finding.locations[1:])
        and len(finding.locations) > 1
    )


@pytest.mark.parametrize(
    "text",
    [
        # true
        "Red beats Green in throughput at batch sizes 4, 8 and 64.",
        "Red beats Green in throughput at all batch sizes, except for batch size 32.",
        "Red outperforms Green in throughput.",  # in general: most loads
        "After batch size 32 Red is faster than Green.",
        "Green beats Red at batch size 32.",
        "Red is 24% faster than Green in throughput at batch size 64.",
        "Red is up to 24% faster than Green in throughput.",
        # a range of loads or an exception is not understood
        "Red is only slightly better than Green below batch size 64.",
        "Green is better than Red in throughput for batch sizes 4 to 16.",
        "Red beats Green in throughput for all batch sizes, except for batch sizes 4 and 8.",
        # not said, or not of these rows
        "Red should beat Green in throughput at all batch sizes.",
        "We expect that Red is faster than Green at all batch sizes.",
        "Red does not beat Green in throughput at batch size 32.",
        "According to its vendor Red beats Green at all batch sizes.",
        "If tuned, Red beats Green at all batch sizes.",
        "Is Red faster than Green at all batch sizes? Why Red beats Green at batch size 32?",
        "Red beats Green in memory use at all batch sizes.",
        "Red is better than Green in accuracy at batch size 32.",
        "Red beats Green in TTFT at all batch sizes.",  # no such figure here
        "Red beats Green at all request rates.",  # no such load here
        "Red beats Green at batch size 1024.",
        "Red beats Blue at all batch sizes.",  # no such side
        "Red beats it at all batch sizes.",
        "Version 0.6 is faster than version 0.5 at all batch sizes.",
        "Red beats Green at the same latency at all batch sizes.",
        "Red beats Green at larger batch sizes.",
        "Red has higher throughput per dollar than Green at batch size 32.",
        "Red exceeds Green in latency at batch size 32.",
        "It can be set up to 2000 tokens.",
        "--max-num-seqs: up to 512 sequences are better than 256.",
    ],
)
def test_true_claims_and_those_that_cannot_be_resolved_are_not_mentioned(
    text: str,
) -> None:
    assert claim(text) == []


def test_a_claim_in_a_listing_or_without_rows_is_passed_over() -> None:
    text = "Red beats Green in throughput at all batch sizes."
    assert said(claims.claims, doc(text, listing=True), grid()) == []
    assert said(claims.claims, doc(text)) == []


def test_rows_of_another_report_are_not_compared_with_this_one() -> None:
    text = "Red beats Green in throughput at all batch sizes."
    other = Document("other.md", "markdown", grid().rows, [Heading(1, 1, "Another")])
    assert said(claims.claims, doc(text), other) == []
    assert said(claims.claims, doc(text, rows=grid().rows)) != []


def test_a_claim_fails_only_if_it_fails_in_every_reading() -> None:
    total, output = {2: 60.8, 4: 143.1}, {2: 26.8, 4: 56.8}
    ours = [
        row(
            "Red",
            i,
            batch_size=b,
            total_token_throughput=total[b],
            output_throughput=output[b],
        )
        for i, b in enumerate(total)
    ]
    theirs = [
        row("Green", 9, batch_size=2, total_token_throughput=61.7, output_throughput=20.0)
    ]
    data = Document("d.csv", "csv", ours + theirs)
    assert claim("Red beats Green in token throughput at all batch sizes.", data=data) == []
    (finding,) = claim(
        "Red beats Green in total token throughput at all batch sizes.", data=data
    )
    assert "60.8 / 61.7" in finding.text


def test_the_section_shows_which_lengths_are_meant() -> None:
    text = "Red beats Green at all batch sizes."
    short, long = grid(input_len=128.0), grid(input_len=2048.0)
    heading = "When input-len=2048 and so on"
    assert claim(text, data=short, section=heading) == []
    assert len(claim(text, data=long, section=heading)) == 1


def test_a_name_of_several_rows_is_contradicted_only_if_all_of_them_are() -> None:
    data = Document(
        "d.csv", "csv", grid().rows + sweep("4xRed", "total_token_throughput", FAST, 40)
    )
    assert len(claim("Red beats Green at batch size 32.", data=data)) == 1
    twice = {b: 2 * v for b, v in FAST.items()}
    data = Document(
        "d.csv", "csv", grid().rows + sweep("4xRed", "total_token_throughput", twice, 40)
    )
    assert claim("Red beats Green at batch size 32.", data=data) == []


MEAN = {"mean_ttft_ms": 990.0, "median_ttft_ms": 715.0, "p99_ttft_ms": 3984.0}
MEDIAN = {"mean_ttft_ms": 1486.0, "median_ttft_ms": 403.0, "p99_ttft_ms": 9912.0}


def rates(**more: float) -> Document:
    a = row("Red", 2, rate=16, completed=1000, **MEAN)
    b = row("Green", 3, rate=16, completed=1000, **MEDIAN)
    return Document("d.csv", "csv", [a, b])


def test_what_holds_for_the_mean_and_not_for_the_median_is_reported() -> None:
    (finding,) = claim("Red beats Green in TTFT at 16 QPS.", data=rates())
    assert (finding.code, finding.level) == ("consistency.mean_only", "doubt")
    (finding,) = claim("Red beats Green in mean TTFT at QPS level 16.", data=rates())
    assert (finding.code, finding.level) == ("consistency.mean_only", "note")
    assert claim("Green beats Red in median TTFT at QPS level 16.", data=rates()) == []
    (finding,) = claim("Red beats Green in median TTFT at QPS level 16.", data=rates())
    assert finding.code == "consistency.claim"


def test_loads_that_a_side_has_twice_are_not_compared() -> None:
    data = grid()
    assert (
        claim(
            "Red beats Green at batch size 32.",
            data=Document("d.csv", "csv", data.rows + data.rows),
        )
        == []
    )


def test_all_checks_end_soon_on_hostile_text() -> None:
    texts = (
        "9*" * 50_000,
        "1,111" * 20_000 + "=",
        "(" * 100_000 + "=1",
        "Red beats " * 10_000,
        "8 vs " * 20_000,
        "a" * 100_000,
    )
    began = time.process_time()
    list(checks.run(REPORT_CHECKS, documents=[doc(*texts, rows=grid().rows), grid()]))
    assert time.process_time() - began < 10
