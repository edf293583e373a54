"""Greedy agreement: how many answers two settings share, where others diverge, and who says so."""

from typing import Any

import msgspec
import pytest

from dyno.compare.compare import compare
from dyno.facts.comparison import Agreement
from dyno.facts.correctness import GreedyAnswer
from dyno.facts.imported import Row
from dyno.facts.quality import ItemAnswer
from dyno.measure.greedy import agreement
from dyno.report.compare import as_markdown, text
from dyno.report.conclusion import conclude
from dyno.report.entries import entries
from dyno.report.text import markdown
from dyno.store.rows import quality_rows
from offlines import manifest
from reports import of
from rows import row
from test_scores import quality_trial, result


def answered(*texts: str, split: bool = True, **settings: Any) -> Row:
    """A result whose answers' tokens are words."""
    answers = {}
    for i, words in enumerate(texts):
        ends = (
            [len(" ".join(words.split()[: n + 1])) for n in range(len(words.split()))]
            if split
            else []
        )
        answers[f"p{i}"] = GreedyAnswer(f"p{i}", words, token_ends=ends)
    return msgspec.structs.replace(row(settings=settings), answers=answers)


@pytest.mark.parametrize(
    ("a", "b", "expected", "words"),
    [
        (
            ["a b c", "d"],
            ["a b c", "d"],
            Agreement(2, 2),
            "2 of 2 greedy answers are identical",
        ),
        (
            ["a b c d", "one two", "x y z", "same"],
            ["a b c e", "one too", "q", "same"],
            Agreement(4, 1, 1),  # 3, 1 and 0 tokens
            "1 of 4 greedy answers are identical; the others agree for 1 token (median)",
        ),
        (
            ["a b"],
            ["a b c"],
            Agreement(1, 0, 2),
            "0 of 1 greedy answer is identical; the other agrees for 2 tokens",
        ),
        (
            ["a b", "only here"],
            ["a b"],
            Agreement(1, 1),
            "1 of 1 greedy answer is identical",
        ),
    ],
)
def test_answers_are_compared_word_by_word(
    a: list[str], b: list[str], expected: Agreement, words: str
) -> None:
    known = agreement([answered(*a)], [answered(*b)])
    assert known == expected and known is not None and known.words == words


def test_without_tokens_positions_are_characters() -> None:
    known = agreement(
        [answered("seven oaks", "same", split=False)], [answered("seven oars", "same")]
    )
    assert known == Agreement(2, 1, 8, "character")
    assert (
        known.words
        == "1 of 2 greedy answers are identical; the other agrees for 8 characters"
    )


def test_the_first_repeat_that_has_answers_counts() -> None:
    assert agreement([row(), answered("a")], [answered("a"), answered("b")]) == Agreement(
        1, 1
    )
    assert agreement([row()], [answered("a")]) is None


def test_a_comparison_shows_it_once_for_a_load_and_the_fewest_of_several() -> None:
    def side(engine: str, *texts: str) -> list[Row]:
        return [
            answered(words, "same", engine=engine, concurrency=n)
            for n, words in enumerate(texts, 1)
        ]

    one = compare(side("vllm", "a b"), side("tgi", "a c"), ("A", "B"))
    line = "1 of 2 greedy answers are identical; the other agrees for 1 token."
    assert " ".join(text(one).split()).count(
        line
    ) == 1 and f"- Check of answers around the load: {line}" in as_markdown(one)
    several = compare(side("vllm", "a b", "a b"), side("tgi", "a b", "a c"), ("A", "B"))
    assert (
        " ".join(text(several).split()).count(
            f"Check of answers around the load, at the worst load: {line}"
        )
        == 1
    )
    assert "greedy" not in text(
        compare([row()], [row(settings={"engine": "tgi"})], ("A", "B"))
    )


def test_items_of_quality_tests_are_answers_too() -> None:
    def rows(*texts: str) -> list[Row]:
        some = [
            ItemAnswer(task, f"{task}-{i}", "exact_match", 1.0, "x", answer=words)
            for task in ("copy", "sort")
            for i, words in enumerate(texts)
        ]
        return quality_rows("runs/x", manifest(quality_trial()), result(some), None, some)

    comparison = compare(rows("lamp", "river"), rows("lamp", "rivet"), ("A", "B"))
    assert [p.agreement for p in comparison.pairings] == [
        Agreement(4, 2, 4, "character"), Agreement(2, 1, 4, "character"), Agreement(2, 1, 4, "character")
    ]  # fmt: skip
    assert (
        text(comparison).count(
            "Quality test: 2 of 4 greedy answers are identical; the others agree for 4 characters"
        )
        == 1
    )


def test_a_report_compares_each_series_with_the_first() -> None:
    some = [
        answered("a b c", engine="F16"),
        answered("a b d", engine="Q4"),
        answered("x", engine="other", model="Qwen"),
    ]
    shown = entries(some, [], [], lambda _: None)
    words = conclude(shown, [], [], {}, lambda _: None)
    [line] = words.agreement
    assert (
        line.endswith(": 0 of 1 greedy answer is identical; the other agrees for 2 tokens.")
        and "against" in line
    )
    assert f"## Greedy agreement\n\n- {line}" in markdown(of(shown, words=words)).replace(
        "\\", ""
    )
    assert not conclude(
        entries([row()], [], [], lambda _: None), [], [], {}, lambda _: None
    ).agreement
