"""Shared prefixes, counted as a server's cache would: by whole blocks of a real tokenizer's ids."""

import pytest

from dyno.errors import WorkloadError
from dyno.workload.prompts import make
from dyno.workload.spec import Workload, WorkloadSpec
from dyno.workload.tokenizer import Tokenizer
from matrix import sampled
from test_workload import bpe, folder  # noqa: F401

BLOCK = 16


def reused(work: Workload, tokenizer: Tokenizer) -> float:
    """The share of prompt tokens in blocks that an earlier prompt began with, too."""
    seen: set[tuple[int, ...]] = set()
    hits = total = 0
    for request in work.requests:
        ids = tokenizer.encode(str(request.prompt))
        starts = [tuple(ids[: i + BLOCK]) for i in range(0, len(ids) - BLOCK + 1, BLOCK)]
        hits += BLOCK * sum(start in seen for start in starts)
        total += len(ids)
        seen.update(starts)
    return hits / total


def spec(**fields: object) -> WorkloadSpec:
    return WorkloadSpec(
        **{
            "dataset": "random",
            "num_prompts": 150,
            "input_len": 192,
            "output_len": 4,
            **fields,
        }
    )  # type: ignore[arg-type]


@sampled(rate=[0.0, 0.25, 0.5, 0.75], shape=[(1, 0.0, 0.0), (10, 1.0, 0.0), (12, 1.2, 0.4)])
def test_the_share_of_tokens_that_repeat_is_the_one_asked_for(
    bpe: Tokenizer, rate: float, shape: tuple[int, float, float]  # noqa: F811
) -> None:  # fmt: skip
    prefixes, zipf, ratio = shape
    work = make(
        spec(
            num_prefixes=prefixes,
            prefix_zipf=zipf,
            prefix_hit_rate=rate,
            range_ratio_input=ratio,
        ),
        bpe,
    )
    assert reused(work, bpe) == pytest.approx(rate, abs=0.02)
    assert sum(r.prompt_tokens for r in work.requests) / 150 == pytest.approx(192, rel=0.05)
    assert work.repeated == 0


def test_the_most_popular_prefix_is_drawn_as_zipf_says(bpe: Tokenizer) -> None:  # noqa: F811
    work = make(
        spec(num_prompts=600, num_prefixes=4, prefix_zipf=1.0, prefix_len=32, input_len=16),
        bpe,
    )
    starts = [str(r.prompt)[:40] for r in work.requests]
    counts = sorted((starts.count(start) for start in set(starts)), reverse=True)
    assert len(counts) == 4
    assert counts == pytest.approx([288, 144, 96, 72], rel=0.25)


def test_prefix_repetition_repeats_each_prefix_as_often(bpe: Tokenizer) -> None:  # noqa: F811
    fields = {
        "dataset": "prefix_repetition",
        "num_prompts": 40,
        "num_prefixes": 10,
        "prefix_len": 63,
        "input_len": 65,
    }
    work = make(spec(**fields), bpe)
    starts = [str(r.prompt)[:40] for r in work.requests]
    assert [starts.count(start) for start in dict.fromkeys(starts)] == [4] * 10
    # one of them is the tokenizer's BOS
    assert all(r.prompt_tokens == 128 for r in work.requests)
    assert reused(work, bpe) == pytest.approx(30 * 64 / (40 * 128), abs=0.02)
    in_order = make(spec(**fields, shuffle=False), bpe)
    assert [str(r.prompt)[:40] for r in in_order.requests][:10] != starts[:10]


def test_one_prefix_for_all_is_as_it_was(bpe: Tokenizer) -> None:  # noqa: F811
    work = make(spec(prefix_len=31, input_len=32), bpe)
    assert len({str(r.prompt)[:60] for r in work.requests}) == 1
    assert make(spec(prefix_len=31, input_len=32), bpe).sha256 == work.sha256


def test_a_hit_rate_that_cannot_be_says_what_can(bpe: Tokenizer) -> None:  # noqa: F811
    with pytest.raises(WorkloadError, match=r"not possible.*50 prefixes reach 0\."):
        make(spec(num_prompts=60, num_prefixes=50, prefix_hit_rate=0.9), bpe)
    with pytest.raises(WorkloadError, match="remove --random-prefix-len"):
        make(spec(prefix_hit_rate=0.5, prefix_len=8), bpe)
