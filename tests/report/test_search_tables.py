"""One table of searches: a study's terminal, a report's page and Markdown show the same columns and numbers."""

from typing import Any

import msgspec

from dyno.facts.find import FindAnswer, FindSpec, LimitFigure, Outcome, ProbeFacts
from dyno.facts.limits import Limit
from dyno.report import searches
from dyno.report.find import lines
from dyno.report.searches import Searched, table_of
from dyno.report.table import Table, markdown, terminal

LIMIT = Limit("ttft", 60.0, "p90")


def probe(level: float, outcome: Outcome, ms: float, speed: float) -> ProbeFacts:
    figures = [LimitFigure(LIMIT, ms, outcome == "meets")]
    return ProbeFacts(level, outcome, False, 100, 120, 5.0, figures, "x", throughput=speed)


def answer(low: float, high: float, **other: Any) -> FindAnswer:
    probes = [probe(low, "meets", 50.0, 400.0), probe(high, "misses", 70.0, 500.0)]
    return FindAnswer(FindSpec([LIMIT]), "narrow", low, high, probes, 0, 30.0, **other)


def cells(table: Table, title: str) -> list[str]:
    [at] = [i for i, column in enumerate(table.columns) if column.title == title]
    return [line.cells[at].text for line in table.lines]


def test_an_answer_has_both_ends_of_its_interval_with_the_figures_there() -> None:
    table = table_of(searches.answers([Searched([answer(44, 64)], "sound")]))
    titles = [f"{column.title} {column.unit}".strip() for column in table.columns]
    assert titles == [
        "highest load concurrency",
        "misses at",
        "p90 TTFT ms",
        "p90 TTFT above ms",
        "tok/s",
        "requests",
        "search s",
    ]
    assert [cell.text for cell in table.lines[0].cells] == [
        "44",
        "64",
        "50.00",
        "70.00",
        "400.0",
        "240",
        "30.00",
    ]


def test_answers_without_text_have_the_throughput_of_their_endpoint() -> None:
    vectors = [
        msgspec.structs.replace(p, throughput_of="input_sequence_throughput")
        for p in answer(44, 64).probes
    ]
    of_vectors = msgspec.structs.replace(answer(44, 64), probes=vectors)
    assert cells(searches.probes(of_vectors), "inputs/s") == ["400.0", "500.0"]
    assert "50.00 ms, 400.0 inputs/s" in "\n".join(lines(of_vectors))
    rows = [Searched([each], "sound") for each in (answer(44, 64), of_vectors)]
    table = table_of(searches.answers(rows))
    assert cells(table, "tok/s") == ["400.0", "–"]
    assert cells(table, "inputs/s") == ["–", "400.0"]


def test_an_end_between_loads_that_were_tried_has_the_figures_of_the_next_one_tried() -> (
    None
):
    tried = [probe(40, "meets", 50.0, 400.0), probe(64, "misses", 70.0, 500.0)]
    remark = "47 and 55: by a line through 9 probes of 4 loads near the target."
    between = FindAnswer(FindSpec([LIMIT]), "narrow", 47, 55, tried, 0, 30.0, line=remark)
    printed = "\n".join(lines(between))
    assert "concurrency 47 (95 % interval: 47 to 55)" in printed and remark in printed
    assert "highest tried that meets it: concurrency 40 with p90 TTFT 50.00 ms" in printed
    assert "lowest tried that misses it: concurrency 64 with p90 TTFT 70.00 ms" in printed
    table = table_of(searches.answers([Searched([between], "sound")]))
    assert cells(table, "p90 TTFT") == ["50.00"] and cells(table, "p90 TTFT above") == [
        "70.00"
    ]


def test_repeats_of_a_search_are_one_row_of_means() -> None:
    rows = [Searched([answer(40, 60), answer(44, 64)], "sound")]
    table = table_of(searches.answers(rows))
    assert cells(table, "highest load") == ["42"] and cells(table, "misses at") == ["62"]
    assert cells(table, "requests") == ["480"]


def test_the_highest_load_is_bold_and_a_void_one_never() -> None:
    rows = [Searched([answer(8, 9)], "sound"), Searched([answer(44, 64)], "void"),
            Searched([answer(16, 20)], "sound")]  # fmt: skip
    [(_, loads), *_] = searches.answers(rows)
    assert [cell.bold for cell in loads] == [False, False, True]


def test_an_end_that_is_not_known_has_no_figure() -> None:
    only = FindAnswer(
        FindSpec([LIMIT]),
        "every load meets",
        64.0,
        None,
        [probe(64, "meets", 50.0, 400.0)],
        0,
        9.0,
    )
    table = table_of(searches.answers([Searched([only], "sound")]))
    assert cells(table, "misses at") == ["–"] == cells(table, "p90 TTFT above")


def test_terminal_and_markdown_show_the_same_cells_under_title_and_unit() -> None:
    table = searches.probes(answer(44, 64))
    printed = [line.split() for line in terminal(table)]
    assert terminal(table)[0].split() == ["p90", "TTFT"]
    assert printed[2][:2] == ["44", "yes"] and printed[3][:2] == ["64", "no"]
    written = list(markdown(table, str))
    for line in printed[2:]:
        assert all(any(word in row for row in written) for word in line)
