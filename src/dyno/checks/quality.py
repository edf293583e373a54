"""Are the answers of a quality test what the scores say?"""

from collections.abc import Iterator

from dyno.checks.evidence import QualityEvidence
from dyno.facts.finding import Finding, doubt, note, void
from dyno.facts.quality import TaskScore
from dyno.measure.statistics import quantile
from dyno.numbers import many, number, percent

MANY_FAILED, MANY_CUT, MANY_NOT_EXTRACTED = 0.1, 0.01, 0.05  # shares of the items
BEYOND_CHANCE = 0.05


def failed(e: QualityEvidence) -> Iterator[Finding]:
    if worst := _worst(e, "failed"):
        count, items, words = worst
        text = f"No answer to {words} ({e.failures}); they count as wrong."
        yield Finding(
            "quality.failed", "void" if count >= MANY_FAILED * items else "doubt", text
        )


def cut(e: QualityEvidence) -> Iterator[Finding]:
    yield from _counted(
        e, "cut", "quality.cut", "The token limit ended the answer to", MANY_CUT
    )


def not_extracted(e: QualityEvidence) -> Iterator[Finding]:
    words = "Nothing could be extracted from the answer to"
    yield from _counted(
        e, "not_extracted", "quality.not_extracted", words, MANY_NOT_EXTRACTED
    )


def truncated(e: QualityEvidence) -> Iterator[Finding]:
    if worst := _worst(e, "truncated"):
        limit = (
            f" Its context is {e.target.max_model_len:,} tokens."
            if e.target.max_model_len
            else ""
        )
        yield void(
            "quality.truncated",
            f"The server dropped a part of the prompt of {worst[2]}.{limit}",
        )


def at_chance(e: QualityEvidence) -> Iterator[Finding]:
    low = [s for s in e.quality.scores if s.chance is not None and not _above(s, s.chance)]
    if low:
        each = ", ".join(
            f"{s.task} {percent(s.score)} (guessing: {percent(s.chance or 0.0)})"
            for s in low
        )
        yield doubt("quality.at_chance", f"Not above guessing: {each}.")


def _above(score: TaskScore, chance: float) -> bool:
    """Return whether a score of this many items is beyond what guesses reach in 19 of 20 cases."""
    spread = (chance * (1 - chance) / score.items) ** 0.5 if score.items else 0.0
    return score.score > chance + quantile(1 - BEYOND_CHANCE, float("inf")) * spread


def changes_under_load(e: QualityEvidence) -> Iterator[Finding]:
    change = e.quality.load_changes
    if change is not None and change.p < BEYOND_CHANCE:
        first, last = e.quality.passes[0].concurrency, e.quality.passes[-1].concurrency
        text = (
            f"At concurrency {last} the score is {percent(change.score_b)}, at {first} {percent(change.score_a)} "
            f"(p = {number(change.p)}): {change.only_a} of {many(change.items, 'item')} are right only at {first}, "
            f"{change.only_b} only at {last}."
        )
        yield doubt("quality.changes_under_load", text)


def processes(e: QualityEvidence) -> Iterator[Finding]:
    if len(starts := {s.process for s in e.sittings}) > 1:
        yield note(
            "quality.processes",
            f"{len(starts)} starts of the engine answered, because of an interruption.",
        )


def _counted(
    e: QualityEvidence, name: str, code: str, words: str, most: float
) -> Iterator[Finding]:
    if worst := _worst(e, name):
        count, items, which = worst
        yield (doubt if count > most * items else note)(code, f"{words} {which}.")


def _worst(e: QualityEvidence, name: str) -> tuple[int, int, str] | None:
    """Return the count of the pass that has the most, its items, and both in words; None: none has any."""
    each = max(e.quality.passes, key=lambda p: getattr(p, name))
    count: int = getattr(each, name)
    # a task with two metrics counts once
    items = sum({score.task: score.items for score in each.scores}.values())
    where = f" at concurrency {each.concurrency}" if len(e.quality.passes) > 1 else ""
    return (count, items, f"{count:,} of {items:,} items{where}") if count else None
