"""Synthetic prose: seeded, sentence-like English, so that a tokenizer sees words and not noise."""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Words of grammar, an empty line, words of content; in each block the most frequent first.
_WORDS_FILE = Path(__file__).with_name("words.txt")


class Block:
    """Words drawn by Zipf's law: the n-th most frequent one in proportion to 1 / (n + 2.7)."""

    def __init__(self, text: str) -> None:
        self.words: NDArray[np.object_] = np.array(text.split(), dtype=object)
        weights = 1 / (np.arange(1, len(self.words) + 1) + 2.7)
        self._cumulative: NDArray[np.float64] = np.cumsum(weights) / weights.sum()

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.object_]:
        chosen = np.searchsorted(self._cumulative, rng.random(count))
        return self.words[np.minimum(chosen, len(self.words) - 1)]


@cache
def _blocks() -> tuple[Block, Block]:
    grammar, content = _WORDS_FILE.read_text(encoding="ascii").split("\n\n")
    return Block(grammar), Block(content)


def prose(rng: np.random.Generator, word_count: int) -> str:
    """`word_count` words in sentences and paragraphs. ASCII: a cut between tokens splits no character."""
    grammar, content = _blocks()
    is_grammar = rng.random(word_count) < 0.6
    is_grammar[1:] &= ~is_grammar[:-1]  # seldom 'the of the'
    words: list[str] = np.where(is_grammar, grammar.draw(rng, word_count), content.draw(rng, word_count)).tolist()

    for i in np.flatnonzero(rng.random(word_count) < 0.02):
        words[i] = str(int(10 ** rng.uniform(0, 4)))
    for i in np.flatnonzero(rng.random(word_count) < 0.07):
        words[i] += ","
    ends = np.cumsum(rng.integers(4, 25, size=word_count // 4 + 1))
    marks = rng.choice([".", "?", "!", ".\n\n"], p=[0.8, 0.06, 0.03, 0.11], size=len(ends))
    start = 0
    for end, mark in zip(ends.tolist(), marks.tolist(), strict=True):
        if start >= word_count:
            break
        words[start] = words[start].capitalize()
        if end <= word_count:
            words[end - 1] = words[end - 1].rstrip(",") + mark
        start = end
    return " ".join(words).replace("\n ", "\n")


@cache
def _opening_order(seed: int) -> list[str]:
    words = _blocks()[1].words
    order: list[str] = words[np.random.default_rng([seed, 0]).permutation(len(words))].tolist()
    return order


def opening(seed: int, index: int) -> str:
    """The two words that prompt `index` begins with. No two indices share them, so that no prompt finds
    the start of another in the server's prefix cache; the first thousand differ in the first word."""
    order = _opening_order(seed)
    round_, place = divmod(index, len(order))
    return f"{order[place].capitalize()} {order[(place + 1 + round_) % len(order)]}"
