"""Answers held to the forms that their requests prescribe, and whether such answers are slower."""

import numpy as np
import pytest

from dyno.checks import answers as checks
from dyno.facts.record import Record
from dyno.facts.structured import Expected, Forms, StructuredSummary
from dyno.measure.structured import FormChecker, FormTally
from dyno.units import NS_PER_MS

NUMBER = Expected("schema", {"type": "integer"})
FORMS = Forms([NUMBER], [0, -1])


def answer(index: int, tpot_ms: float, text: str = "7") -> Record:
    """An answer of 21 tokens, the first of them after 50 ms."""
    first, last = 50 * NS_PER_MS, int((50 + 20 * tpot_ms) * NS_PER_MS)
    times = [first, last]
    return Record(
        index, 0, 0, last, 5, 21, text=text, chunk_ns=times, output_tokens=21, status=200
    )


def tally(slower: float, count: int, noise: float, seed: int) -> StructuredSummary:
    """Of so many answers, every second one of a prescribed form, which takes so many times as long."""
    rng = np.random.default_rng(seed)
    each = FormTally(FORMS)
    for index in range(count):
        usual = 20.0 * np.exp(noise * rng.standard_normal())
        each.add(answer(index, usual * (1.0 if index % 2 else slower)))
    summary = each.summary()
    assert summary is not None
    return summary


def constrained(summary: StructuredSummary) -> list[str]:
    class Of:
        structured = summary

    class Load:
        summary = Of

    return [finding.text for finding in checks.constrained(Load)]  # type: ignore[arg-type]


def test_forms_belong_to_requests_by_their_number_however_often_these_are_sent() -> None:
    assert FORMS[0] == NUMBER and FORMS[1] is None
    assert FORMS[2] == NUMBER and FORMS[3] is None
    assert Forms()[5] is None


def test_slower_answers_of_a_form_are_found_beyond_chance() -> None:
    [text] = constrained(tally(1.3, 80, 0.2, seed=1))
    assert "have a median TPOT of" in text
    assert constrained(tally(1.05, 400, 0.02, seed=1)) == [], "5 % are not worth a line"


def test_a_difference_of_few_answers_by_chance_is_not_found() -> None:
    found = [constrained(tally(1.0, 16, 0.3, seed)) for seed in range(300)]
    by_medians = [
        s
        for seed in range(300)
        if (s := tally(1.0, 16, 0.3, seed)).tpot_ms
        and s.free_tpot_ms
        and s.tpot_ms / s.free_tpot_ms > 1.1
    ]
    assert len(by_medians) > 50, "medians alone would often say so"
    assert sum(map(bool, found)) <= 3


@pytest.mark.parametrize("text", ["7", " 7 "])
def test_a_valid_answer_has_no_problem(text: str) -> None:
    assert FormChecker().problem(NUMBER, answer(0, 20.0, text)) is None


def test_a_wrong_answer_is_named_by_what_is_wrong_with_it() -> None:
    def kind(text: str, finish: str = "stop") -> str:
        record = answer(0, 20.0, text)
        record.finish_reason = finish
        problem = FormChecker().problem(NUMBER, record)
        return problem.kind if problem else ""

    assert kind("7.5") == kind('"7"') == "schema"
    assert kind("seven") == kind("") == "not JSON"
    assert kind("[7", "length") == "cut"
    assert kind("<think>7 or 8?</think>8") == ""
