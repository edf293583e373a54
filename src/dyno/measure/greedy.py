"""Greedy agreement of two settings: how many answers to the same prompts are identical, and where others diverge."""

from collections.abc import Sequence
from itertools import takewhile
from statistics import median_low

from dyno.facts.comparison import Agreement
from dyno.facts.correctness import GreedyAnswer
from dyno.facts.imported import Row


def agreement(a: Sequence[Row], b: Sequence[Row]) -> Agreement | None:
    """Compare the answers of two settings, each by its first repeat that has some; None: they share no prompt."""
    one, other = _answers(a), _answers(b)
    pairs = [(one[key], other[key]) for key in one if key in other]
    if not pairs:
        return None
    divergent = [(x, y) for x, y in pairs if x.text != y.text]
    in_tokens = all(x.token_ends for x, _ in divergent)
    places = [_divergence(x, y, in_tokens) for x, y in divergent]
    return Agreement(
        len(pairs),
        len(pairs) - len(divergent),
        median_low(places) if places else None,
        "token" if in_tokens else "character",
    )


def _answers(repeats: Sequence[Row]) -> dict[str, GreedyAnswer]:
    """Return the answers of the first repeat that has some."""
    return next((row.answers for row in repeats if row.answers), {})


def _divergence(a: GreedyAnswer, b: GreedyAnswer, in_tokens: bool) -> int:
    """Return the length of what both begin with: in whole tokens of A, or in characters."""
    alike = (x == y for x, y in zip(a.text, b.text, strict=False))
    same = sum(1 for _ in takewhile(bool, alike))
    return sum(end <= same for end in a.token_ends) if in_tokens else same
