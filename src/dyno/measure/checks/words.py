"""Checks over what a report says in words and tables, beside what its figures say of themselves."""

from collections.abc import Callable, Iterator

from dyno.facts.finding import Finding
from dyno.facts.imported import Document
from dyno.measure.checks import arithmetic, bold, claims, sections

WORDS: tuple[Callable[[list[Document]], Iterator[Finding]], ...] = (
    arithmetic.sums,
    arithmetic.extrapolated,
    bold.bold,
    claims.claims,
    sections.empty,
    sections.no_figures,
    sections.dangling,
)
