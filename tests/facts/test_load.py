"""A load: how it reads, and when two are the same."""

from typing import Any

import pytest

from dyno.facts.load import Load, LoadSpec, span
from dyno.measure.points import load_of
from rows import micro, row


@pytest.mark.parametrize(
    ("settings", "words", "level"),
    [
        ({"output_len": 128, "input_len": 512, "concurrency": 8, "num_prompts": 80, "dataset": "random"},
         "concurrency 8, 512 in, 128 out", "concurrency 8"),
        ({"rate": 1, "dataset": "sharegpt"}, "1 request/s, sharegpt", "1 request/s"),
        ({"num_prompts": 64, "input_len": 80, "dataset": "sonnet"}, "64 requests, sonnet, 80 in", "64 requests"),
        ({"batch_size": 4, "--dataset-path": "/data/chat.jsonl"}, "batch size 4, dataset path chat.jsonl",
         "batch size 4"),
        ({"test": "pp512", "depth": 4096}, "pp512 @ d4096", ""),
        ({"task": "mmlu", "n_shot": 5}, "mmlu, 5-shot", ""),
        ({}, "", ""),
    ],
)  # fmt: skip
def test_a_load_reads_the_same_everywhere(
    settings: dict[str, Any], words: str, level: str
) -> None:
    assert (Load(settings).words, Load(settings).level_words) == (words, level)


def test_several_levels_and_a_setting_read_alike() -> None:
    assert span("concurrency", [64, 1, 8]) == "concurrency 1 to 64"
    assert (
        LoadSpec(max_concurrency=8, request_rate_rps=60).words
        == "concurrency 8, 60 requests/s"
    )
    assert (LoadSpec().words, LoadSpec(max_concurrency=8, request_rate_rps=60).slug) == (
        "all at once",
        "r60c8",
    )


def test_two_loads_with_the_same_settings_are_one_in_any_order() -> None:
    one, other = (
        Load({"concurrency": 8, "input_len": 512}),
        Load({"input_len": 512.0, "concurrency": 8}, tool="vllm"),
    )
    assert (one == other, one != other) == (True, False) and len(
        {one, other, one.without("input_len")}
    ) == 2


@pytest.mark.parametrize(
    ("a", "b", "conflicts"),
    [
        ({"concurrency": 8}, {"concurrency": "8.0"}, []),
        ({"concurrency": 8}, {"concurrency": 16}, ["concurrency"]),
        ({"concurrency": 8}, {"concurrency": None}, []),  # unknown
        (
            {"concurrency": None, "rate": 4.0},
            {"concurrency": None, "rate": "inf"},
            ["rate"],
        ),
        ({"concurrency": None, "rate": "inf"}, {"concurrency": None, "rate": 99999}, []),
        ({"num_prompts": 10}, {"num_prompts": 20}, []),  # only how long it took
        (
            {"num_prompts": 10, "concurrency": None},
            {"num_prompts": 20, "concurrency": None},
            ["num_prompts"],
        ),
        ({"burstiness": 1.0}, {}, []),
        ({"burstiness": 2.0}, {"burstiness": "inf"}, ["burstiness"]),  # constant gaps
    ],
)
def test_two_loads_conflict_in_what_both_have(
    a: dict[str, Any], b: dict[str, Any], conflicts: list[str]
) -> None:
    one, other = load_of(row({}, a)), load_of(row({}, b))
    assert [name for name, _, _ in one.conflicts(other)] == conflicts
    assert one.same(other) is (not conflicts)


def test_prompts_of_other_lengths_are_another_load_where_no_length_was_asked_for() -> None:
    short, long = row(), row({"total_input_tokens": 400_000})
    assert [name for name, _, _ in load_of(short).conflicts(load_of(long))] == [
        "tokens of a prompt"
    ]
    assert load_of(row({}, {"input_len": 200})).same(
        load_of(row({"total_input_tokens": 400_000}, {"input_len": 200}))
    )


def test_the_axes_of_a_load() -> None:
    assert load_of(row({}, {"input_len": 512})).axes == {"concurrency": 32, "context": 512}
    assert load_of(row({"failed": 5}, {"concurrency": None, "num_prompts": None})).axes == {
        "requests": 1005
    }
    assert load_of(micro("pp512", 10.0)).axes == {"context": 0}
