"""How work says what it does: a line for each phase, and one below it that changes."""

from collections.abc import Callable
from typing import Protocol

Say = Callable[[str], None]


class Below(Protocol):
    def __call__(self, text: str, stays: bool = False) -> None:
        """Show a line below the current phase. `stays`: the next one doesn't replace it."""


def silent(text: str, stays: bool = False) -> None:
    """Say nothing."""
