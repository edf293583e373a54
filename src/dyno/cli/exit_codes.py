"""Exit codes: one rule for all commands, and the flags that change it."""

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dyno.facts.finding import Verdict

DONE, FAILED, USAGE, VOID, UNDECIDED, UNREAD, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

MEANINGS = {
    DONE: "done, and nothing is void",
    FAILED: "failed",
    USAGE: "wrong usage",
    VOID: "something is void, a gate is broken, or a confirming run missed the target",
    UNDECIDED: "not decided with this data: a gate, or the answer of a search",
    UNREAD: "nothing is void, but some numbers could not be read",
    INTERRUPTED: "interrupted; measured results are kept",
}


def add(g: argparse._ActionsContainer, of_many: bool = False) -> None:
    """Add the flags of a command whose results have a verdict. `of_many`: it fails only if all of them are void."""
    if of_many:
        g.add_argument(
            "--fail-on",
            choices=("void", "doubtful"),
            help="exit with 3 if one result is void, or doubtful too (default: only if all are void)",
        )
        g.add_argument(
            "--allow-void", action="store_true", help="exit with 0 even if all are void"
        )
        return
    g.add_argument(
        "--fail-on",
        choices=("doubtful",),
        help="exit with 3 also if a result is doubtful (default: only if void)",
    )
    g.add_argument(
        "--allow-void", action="store_true", help="exit with 0 even if a result is void"
    )


def describe(*codes: int) -> str:
    """Describe the codes of a command for its help: those that all share, and `codes`."""
    known = [DONE, FAILED, USAGE, *codes, INTERRUPTED]
    return "\n".join(
        ["exit codes:", *(f"  {code:<4} {MEANINGS[code]}" for code in sorted(known))]
    )


def from_verdicts(
    verdicts: "Iterable[Verdict]", options: argparse.Namespace, noun: str = "result"
) -> int:
    """Return 0, or 3 if one of them fails the command; stderr says why."""
    known = list(verdicts)
    void, doubtful = known.count("void"), known.count("doubtful")
    if void and not options.allow_void:
        _explain(
            void, len(known), noun, f"void: exit code {VOID}. --allow-void exits with 0"
        )
        return VOID
    if doubtful and options.fail_on == "doubtful":
        _explain(
            doubtful,
            len(known),
            noun,
            f"doubtful: exit code {VOID}, because of --fail-on doubtful",
        )
        return VOID
    return DONE


def from_many(
    verdicts: "Iterable[Verdict]", options: argparse.Namespace, noun: str = "result"
) -> int:
    """Return 0, or 3 if all of them are void: the answer of a report rests on the others."""
    known = list(verdicts)
    void = known.count("void")
    if void == len(known) or options.allow_void:
        return from_verdicts(known, options, noun)
    if void:
        rest = "void and excluded from the answer. --fail-on void exits with 3"
        _explain(void, len(known), noun, rest)
    return DONE


def _explain(count: int, total: int, noun: str, rest: str) -> None:
    subject = f"the {noun}" if total == 1 else f"{count} of {total} {noun}s"
    print(f"dyno: {subject} {'is' if count == 1 else 'are'} {rest}.", file=sys.stderr)
