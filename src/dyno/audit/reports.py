"""Checks over what stands around figures: a report's words, tables, commands and versions."""

from collections.abc import Callable, Iterator

from dyno.audit import arithmetic, bold, claims, commands, percent, sections
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
    commands.command_differs,
    commands.fewer_than_commanded,
    commands.versions_differ,
    commands.flags_differ,
    commands.models_named,
    commands.size_named,
    commands.quality_elsewhere,
)
