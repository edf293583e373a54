"""Runs explained: words of a command line → runs → where their time went."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from dyno.conduct.read import Source, read
from dyno.errors import UsageError
from dyno.explain.difference import difference
from dyno.explain.explain import Explained
from dyno.facts.explanation import PartDifference
from dyno.facts.imported import Row
from dyno.measure.pairs import Group, groups, pair
from dyno.measure.points import load_of
from dyno.probe.telemetry.sampler import read as read_samples
from dyno.store.explained import explained
from dyno.store.run import Run


def explain_run(run: Run, title: str = "") -> Explained:
    samples = read_samples(run.telemetry_path)[0] if run.telemetry_path.exists() else []
    each = explained(run, title, samples)
    notes = [*_verdict_note(run), *each.explanation.notes]
    return each._replace(explanation=replace(each.explanation, notes=notes))


def _verdict_note(run: Run) -> list[str]:
    """Return what a run's verdict means for its explanation."""
    if not run.summary_path.exists():
        return []
    result = run.result()
    worst = {"void": "void", "doubtful": "doubt"}.get(result.verdict)
    if worst is None:
        return []
    codes = dict.fromkeys(f.code for f in result.findings if f.level == worst)
    advice = "Do not use its times" if worst == "void" else "Its times are in doubt"
    return [f"The run is {result.verdict} ({', '.join(codes)}). {advice}."]


def explain_word(word: str, runs: Path) -> Iterator[Explained]:
    """Yield each run that a word names, explained."""
    for row in _runs(read(word, runs, samples=False)):
        yield explain_row(row)


def explain_row(row: Row) -> Explained:
    return explain_run(Run(Path(row.file)), _title(row))


def _title(row: Row) -> str:
    return ", ".join(filter(None, (row.series or row.label, load_of(row).words)))


def _runs(source: Source) -> list[Row]:
    """Return the serving runs with their records."""
    rows = [
        row for row in source.document.rows if row.form == "run" and row.kind == "serve"
    ]
    whole = [row for row in rows if Run(Path(row.file)).records_path.exists()]
    if whole:
        return whole
    if rows:
        raise UsageError(
            f"{source.word}: the records of its requests are gone, so nothing can be explained."
        )
    raise UsageError(
        f"{source.word} is not a serving run of dyno's: only these have the times of single requests. Measure with "
        "`dyno bench serve` or `dyno run`."
    )


def explain_two(words: tuple[str, str], runs: Path) -> list[PartDifference]:
    """Compare two sides, load by load."""
    a, b = (_runs(read(word, runs, samples=False)) for word in words)
    pairs = pair(groups(a), groups(b))
    if not pairs.pairs:
        raise UsageError(
            f"{words[0]} and {words[1]} have no load in common. `dyno explain` compares runs of the same load."
        )
    names = _names(words)
    out = []
    for (one, other), shown in zip(pairs.pairs, _headings(pairs.pairs, names), strict=True):
        first, second = ([explain_row(row) for row in side] for side in (one, other))
        out.append(difference(first, second, shown))
    return out


def _headings(
    pairs: Sequence[tuple[Group, Group]], names: tuple[str, str]
) -> list[tuple[str, str]]:
    """Return the names of both sides of each comparison: with the load if there are several, and with what is compared
    (a part of a study) if several have one load."""
    if len(pairs) == 1:
        return [names]
    a, b = names
    loads = [load_of(one[0]).words for one, _ in pairs]
    if len({*loads}) == len(loads):
        return [(f"{a} ({load})", b) for load in loads]
    return [
        (_joined(a, _title(one[0])), _joined(b, other[0].series or other[0].label))
        for one, other in pairs
    ]


def _joined(name: str, title: str | None) -> str:
    return f"{name} ({title})" if title else name


def _names(words: Sequence[str]) -> tuple[str, str]:
    a, b = (Path(word).name or word for word in words)
    return (a, b) if a != b else (words[0], words[1])
