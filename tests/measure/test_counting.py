"""A server's count of tokens is believed where it fits what was asked and what came."""

from typing import Any

import msgspec
import pytest

from dyno.facts.record import Record
from dyno.measure.counting import CLAIM_MAX, SAMPLED, Counting, differ, prompt_is_odd


def record(
    claim: int | None,
    text: str = " tok" * 8,
    chunks: int = 8,
    wanted: int = 8,
    **fields: Any,
) -> Record:
    times = list(range(1, chunks + 1))
    return Record(
        0, 0, 0, chunks + 1, 10, wanted, chunk_ns=times, text=text, output_tokens=claim,
        tokens_by=None if claim is None else "usage", **fields,
    )  # fmt: skip


def settled(
    r: Record, length_known: bool = True, tokenizer: bool = False, sampling: bool = False
) -> Record:
    Counting(
        (lambda text: len(text.split())) if tokenizer else None, length_known, sampling
    ).settle(r)
    msgspec.json.decode(msgspec.json.encode(r), type=Record)
    return r


@pytest.mark.parametrize("claim", [0, 1, 7, 8, 9])
def test_a_count_that_fits_stays(claim: int) -> None:
    r = settled(record(claim))
    assert (r.output_tokens, r.tokens_by) == (claim, "usage")


@pytest.mark.parametrize("claim", [-1, 12, 320_000, 10**18, -(10**400), 10**400])
@pytest.mark.parametrize(("tokenizer", "by"), [(True, "tokenizer"), (False, "chunks")])
def test_a_count_that_cant_be_gives_way_to_dynos_own_and_stays_beside_it(
    claim: int, tokenizer: bool, by: str
) -> None:
    r = settled(record(claim), tokenizer=tokenizer)
    assert (r.output_tokens, r.tokens_by) == (8, by)
    assert r.tokens_other == max(min(claim, CLAIM_MAX), -CLAIM_MAX)


def test_more_than_asked_is_believed_where_as_many_events_came() -> None:
    assert settled(record(30, chunks=30)).output_tokens == 30
    # some without text, one with the end
    assert settled(record(12, chunks=8, empty_chunks=3)).output_tokens == 12


def test_several_tokens_in_a_chunk_are_believed_up_to_what_was_asked() -> None:
    r = settled(record(8, chunks=2))
    assert (r.output_tokens, r.tokens_other) == (8, None)


def test_where_the_request_says_its_own_length_the_text_is_the_limit() -> None:
    assert settled(record(40), length_known=False).tokens_by == "usage"
    assert settled(record(400), length_known=False).tokens_by == "chunks"


def test_more_tokens_than_the_text_can_hold_are_kept_with_dynos_count_beside() -> None:
    r = settled(record(100, text="ab", chunks=2, wanted=100))
    assert (r.output_tokens, r.tokens_by, r.tokens_other) == (100, "usage", 2)


def test_fewer_tokens_than_half_the_chunks_too() -> None:
    r = settled(record(1, text="x" * 40, chunks=40, wanted=100))
    assert (r.output_tokens, r.tokens_other) == (1, 40)


def test_without_a_count_the_text_is_counted_else_the_chunks() -> None:
    assert (settled(record(None)).output_tokens, settled(record(None)).tokens_by) == (
        8,
        "chunks",
    )
    r = settled(record(None, text="a b c"), tokenizer=True)
    assert (r.output_tokens, r.tokens_by, r.tokens_other) == (3, "tokenizer", None)


def test_some_answers_that_look_right_are_counted_too() -> None:
    counting = Counting(lambda text: 8, True, True)
    records = [record(8) for _ in range(SAMPLED + 10)]
    for r in records:
        counting.settle(r)
    assert [r.tokens_other for r in records] == [8] * SAMPLED + [None] * 10


@pytest.mark.parametrize(
    ("chunk_tokens", "kept"),
    [([1] * 8, True), ([9, *[-1] * 7], False), ([10**9] * 8, False)],
)
def test_tokens_of_each_chunk_are_kept_where_they_can_be(
    chunk_tokens: list[int], kept: bool
) -> None:
    assert (settled(record(8, chunk_tokens=chunk_tokens)).chunk_tokens is not None) is kept


def test_a_count_of_a_failed_request_can_be_written() -> None:
    r = settled(
        record(10**400, error="garbage", prompt_tokens=-(10**400), cached_tokens=10**400)
    )
    assert (r.output_tokens, r.prompt_tokens, r.cached_tokens) == (
        CLAIM_MAX,
        -CLAIM_MAX,
        CLAIM_MAX,
    )


@pytest.mark.parametrize(
    ("prompt", "cached", "odd"),
    [
        (10, None, False), (None, None, False), (100, 64, False), (0, 0, False), (-1, None, True), (10**6, None, True),
        (10, 11, True), (10, -1, True), (None, 10**6, True),
    ],
)  # fmt: skip
def test_which_counts_of_a_prompt_cant_be(
    prompt: int | None, cached: int | None, odd: bool
) -> None:
    assert prompt_is_odd(record(8, prompt_tokens=prompt, cached_tokens=cached)) is odd


@pytest.mark.parametrize(
    ("a", "b", "far"),
    [(100, 140, False), (100, 200, True), (3, 10, False), (200, 100, True)],
)
def test_two_counts_differ_by_more_than_tokenizers_do(a: int, b: int, far: bool) -> None:
    assert differ(a, b) is far


def test_tokens_without_text_are_counted_beside_those_of_the_text() -> None:
    """Every second token of a model with random weights is a special one, which servers leave out of the text."""
    r = settled(
        record(8, text=" tok" * 4, silent=[1, 3, 5, 7]), tokenizer=True, sampling=True
    )
    assert (r.output_tokens, r.tokens_other) == (8, 8)
