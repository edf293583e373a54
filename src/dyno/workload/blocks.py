"""Blocks: text of exactly as many tokens as asked for, made from a key alone. Prompts that begin with the same blocks
begin with the same tokens, in every process, run and machine."""

from collections.abc import Sequence
from hashlib import shake_128

from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.workload.synthetic import words_by_frequency
from dyno.workload.tokenizer import Tokenizer

# before the first block: a word in front has no space before it, and may have other tokens
LEAD = "The"
_WORDS = 256  # one for each value of a byte
# words that are counted together, and how often: a tokenizer may be far away
_GROUP, _TIMES = 8, 4
# tokens: after so many that came out as calculated, prompts are no longer counted
_CHECKED = 100_000


class Blocks:
    """Each word is one token wherever it follows another, so that lengths add up and no block changes its neighbour."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer, self._seed = tokenizer, seed
        self._lead = tokenizer.count(LEAD)  # with the special tokens
        words = self._single_tokens()
        if len(words) < 2:
            raise WorkloadError(
                f"The tokenizer {tokenizer.name} splits every word of dyno's list, so prompts of exact blocks "
                f"can't be made. Name the model's own tokenizer.json with {setting_name('--tokenizer')}."
            )
        self._words = [f" {words[i % len(words)]}" for i in range(_WORDS)]
        self._checked = 0

    def prompt(self, keys: Sequence[str], ends: Sequence[int]) -> tuple[str, int]:
        """Return a prompt of one block for each key, and its tokens. `ends`: tokens up to the end of each block."""
        parts, done = [LEAD], self._lead
        for key, end in zip(keys, ends, strict=True):
            if end > done:
                parts.append(self._block(key, end - done))
                done = end
        text = "".join(parts)
        if self._checked < _CHECKED:
            count = self._tokenizer.count(text)
            self._checked = self._checked + count if count == done else 0
            done = count
        return text, done

    def _block(self, key: str, words: int) -> str:
        # A shorter block is the start of a longer one. SHAKE, and not a generator of random numbers: its stream is a
        # standard, and it starts a hundred times as fast.
        return "".join(
            map(
                self._words.__getitem__,
                shake_128(f"{self._seed}/{key}".encode()).digest(words),
            )
        )

    def _single_tokens(self) -> list[str]:
        candidates, words = words_by_frequency(), []
        for i in range(0, len(candidates), _GROUP):
            group = candidates[i : i + _GROUP]
            words += (
                group
                if self._are_single(group)
                else [word for word in group if self._are_single([word])]
            )
            if len(words) >= _WORDS:
                break
        return words[:_WORDS]

    def _are_single(self, words: list[str]) -> bool:
        text = LEAD + "".join(f" {word}" for word in words) * _TIMES
        return self._tokenizer.count(text) == self._lead + _TIMES * len(words)
