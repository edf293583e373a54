"""Versions as engines write them: 0.6.3.post2.dev308, v0.11.0, b6123."""

import re


def numbers(version: str) -> tuple[int, ...]:
    """0.6.3.post2.dev308 → (0, 6, 3); b6123 → (6123,). What can't be read sorts first."""
    match = re.match(r"\D*(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()


def before(version: str, other: str) -> bool:
    """0.8 is 0.8.0."""
    a, b = numbers(version), numbers(other)
    width = max(len(a), len(b))
    return a + (0,) * (width - len(a)) < b + (0,) * (width - len(b))


def is_of(version: str, asked: str) -> bool:
    """0.6.3 was asked for and 0.6.3.post1 is there, or 0.6 and 0.6.3: the same; 0.6 and 0.10.6 aren't."""
    a = numbers(asked)
    return numbers(version)[: len(a)] == a
