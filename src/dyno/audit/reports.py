"""Checks over what stands around figures: a report's words, tables, commands and versions."""

from collections.abc import Callable, Iterator

from dyno.audit import arithmetic, bold, claims, described, percent, sections
from dyno.facts.finding import Finding
from dyno.facts.imported import Document

REPORTS: tuple[Callable[[list[Document]], Iterator[Finding]], ...] = (
    arithmetic.sums,
    arithmetic.extrapolated,
    bold.bold,
    percent.percentages,
    claims.claims,
    sections.empty,
    sections.no_figures,
    sections.dangling,
    described.command_differs,
    described.fewer_than_commanded,
    described.versions_differ,
    described.flags_differ,
    described.models_named,
    described.size_named,
    described.quality_elsewhere,
)
