"""Checks of answers whose form the request prescribes."""

from collections.abc import Iterator

from dyno.checks.evidence import Evidence
from dyno.facts.finding import Finding
from dyno.numbers import change, number, percent

_MANY = 0.01  # share of answers
_SLOWER = 0.1
_SLOWER_FIRST = 0.5  # prompts and queues vary more
_FEW = 8  # answers on each side
_SURE = 3.0  # standard errors: latencies of few answers differ by chance


def forms(e: Evidence) -> Iterator[Finding]:
    """Answers don't have the form that their requests prescribe."""
    s = e.summary.structured
    if s is None or s.valid == s.checked:
        return
    share = 1 - s.valid / s.checked
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in s.problems.items())
    first = next(iter(s.problems))
    text = (
        f"{s.checked - s.valid:,} of {s.checked:,} answers ({percent(share)}) don't have the form that was asked for: "
        f"{kinds}. The first, {first}: {s.examples[first].rstrip('.')}."
    )
    yield Finding("answers.form", "doubt" if share > _MANY else "note", text)


def constrained(e: Evidence) -> Iterator[Finding]:
    """Answers of a prescribed form are slower than the others of the same load."""
    s = e.summary.structured
    if s is None or min(s.checked, s.free) < _FEW:
        return
    for name, own, free, errors, slower in (
        ("TPOT", s.tpot_ms, s.free_tpot_ms, s.tpot_slower, _SLOWER),
        ("TTFT", s.ttft_ms, s.free_ttft_ms, s.ttft_slower, _SLOWER_FIRST),
    ):
        if errors is None or errors < _SURE:
            continue
        if own and free and own / free - 1 > slower:
            text = (
                f"Answers of a prescribed form have a median {name} of {number(own)} ms, the others of the same load "
                f"{number(free)} ms ({change(own / free - 1)})."
            )
            yield Finding("answers.constrained", "note", text)
