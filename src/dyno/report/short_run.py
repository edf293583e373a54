"""The notes that every short run has, as one line: they would hide the finding that matters."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dyno.facts.finding import Finding
from dyno.numbers import many

# "(setting 3240)"
_REQUESTS = re.compile(r" (\d+)\)")


class Sorted(NamedTuple):
    """Findings, with those of short runs apart."""

    line: str  # '': there are none of these
    others: list[Finding]


def join(
    findings: Sequence[Finding], times: Mapping[str, int] | None = None, trials: int = 0
) -> Sorted:
    """Join the notes of short runs. `times`: how many of these trials each code is about, of which the finding is one
    example; None: they are about one result, or are merged over all."""
    notes = {f.code: f for f in findings if _is_usual(f)}
    others = [f for f in findings if not _is_usual(f)]
    if not notes:
        return Sorted("", others)
    most = max(notes.values(), key=_requests)
    counted = ""
    if times is not None:
        counted = f"{max(times[code] for code in notes)} of {many(trials, 'trial')}"
    if len(notes) == 1:
        text = f"{counted}: {most.text}" if counted else most.text
        return Sorted(f"{text} {most.advice}", others)
    heading = "Short runs" if trials > 1 else "Short run"
    if counted:
        heading += f" ({counted}), for example"
    seen = "; ".join(_beginning(f) for f in notes.values())
    return Sorted(f"{heading}: {seen}. {most.advice}", others)


def _is_usual(f: Finding) -> bool:
    # here and not above: all checks and numpy would take half of the time of `dyno bench serve --help`
    from dyno.checks import SHORT_RUN

    return f.code in SHORT_RUN and f.level == "note"


def _beginning(f: Finding) -> str:
    """Return what was seen: 'p99 of 12 requests is an estimate'."""
    seen = f.text.partition(": ")[0].removesuffix(".")
    return seen[:1].lower() + seen[1:]


def _requests(f: Finding) -> int:
    """Return how many requests its advice asks for: the advice for most covers the others."""
    asked = _REQUESTS.search(f.advice)
    return int(asked[1]) if asked else 0
