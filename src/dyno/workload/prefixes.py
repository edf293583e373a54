"""Shared prefixes: which prompts begin alike, with how many tokens."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.workload.common import CommonSpec

BLOCK = 16  # tokens; vLLM caches whole blocks of this length
# tokens beyond the last shared block: where a prefix is cut inside a word, no block is lost
_MORE = 4
_TRIES = 30


# of so many prompts, the number of each one's prefix
Choose = Callable[[CommonSpec, int], list[int]]


def shares(
    spec: CommonSpec, lengths: Sequence[int], special: int, numbers: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the number of each prompt's prefix and its tokens. `lengths`: of whole prompts, with special tokens."""
    if spec.prefix_hit_rate is None:
        tokens = special + spec.prefix_len if spec.prefix_len else 0
        return [(number, tokens) for number in numbers]
    if spec.prefix_len:
        raise WorkloadError(
            f"{setting_name('--prefix-hit-rate')} sets the length of prefixes: remove "
            f"{setting_name('--random-prefix-len')}."
        )
    cuts = _cuts(spec, lengths, numbers)
    return [
        (number, tokens + _MORE if tokens else 0)
        for number, tokens in zip(numbers, cuts, strict=True)
    ]


def equally_frequent(spec: CommonSpec, count: int) -> list[int]:
    chosen = np.arange(count) % spec.num_prefixes
    if spec.shuffle:
        _rng(spec).shuffle(chosen)
    numbers: list[int] = chosen.tolist()
    return numbers


def by_popularity(spec: CommonSpec, count: int) -> list[int]:
    weights = np.arange(1, spec.num_prefixes + 1) ** -spec.prefix_zipf
    chosen = _rng(spec).choice(spec.num_prefixes, size=count, p=weights / weights.sum())
    numbers: list[int] = chosen.tolist()
    return numbers


def _rng(spec: CommonSpec) -> np.random.Generator:
    return np.random.default_rng([spec.seed, 4])


def _cuts(spec: CommonSpec, lengths: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Return how many tokens of each prompt's prefix count, so that the wanted share of all prompt tokens repeats."""
    assert spec.prefix_hit_rate is not None
    size, total = np.array(lengths), sum(lengths)
    # rounds up some, so that any share is met
    chance = np.random.default_rng([spec.seed, 5]).random(len(lengths))
    most = np.maximum(size // BLOCK - 1, 0)  # the last block is the prompt's own

    def blocks(share: float) -> list[int]:
        whole = np.floor(share * size / BLOCK + chance)
        tokens: list[int] = (BLOCK * np.minimum(whole, most)).astype(int).tolist()
        return tokens

    low, high = 0.0, 1.0
    possible = reusable(blocks(high), numbers) / total
    if spec.prefix_hit_rate > possible:
        raise WorkloadError(
            f"A prefix hit rate of {spec.prefix_hit_rate:g} is not possible: the first prompt with each prefix "
            f"repeats nothing. {len(lengths):,} prompts of {total / len(lengths):,.0f} tokens with "
            f"{spec.num_prefixes} prefixes reach {math.floor(possible * 1000) / 1000:g}. Lower "
            f"{setting_name('--prefix-hit-rate')} or {setting_name('--num-prefixes')}, or raise "
            f"{setting_name('--num-prompts')} or {setting_name('--random-input-len')}."
        )
    for _ in range(_TRIES):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if reusable(blocks(middle), numbers) < spec.prefix_hit_rate * total
            else (low, middle)
        )
    return blocks(high) if spec.prefix_hit_rate else [0] * len(lengths)


def reusable(cuts: Sequence[int], numbers: Sequence[int]) -> int:
    """Return how many of the prefixes' tokens an earlier prompt had, too."""
    longest: dict[int, int] = {}
    total = 0
    for tokens, number in zip(cuts, numbers, strict=True):
        before = longest.get(number, 0)
        total += min(tokens, before)
        longest[number] = max(tokens, before)
    return total
