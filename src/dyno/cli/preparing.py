"""Before an engine starts: what trials need and isn't here is listed, or fetched, made and installed."""

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dyno.cli import flags
from dyno.errors import Interrupted
from dyno.facts.engine import EngineSpec
from dyno.facts.quality import QualitySpec
from dyno.facts.trial import TrialSpec

if TYPE_CHECKING:
    from dyno.conduct.provide import Need


def listing(trials: Iterable[TrialSpec]) -> Iterator[str]:
    """Yield the lines of a dry run."""
    from dyno.conduct import dry_run, provide
    from dyno.report.dry_run import disk_line, missing_lines

    trials = list(trials)
    works = [trial.workload for trial in trials]
    if missing := provide.needs(_engines(trials), works, dry=True, tests=_tests(trials)):
        yield "Missing on this machine; provided before the first trial:"
        missing = provide.with_sizes(missing)
        yield from (f"  {line}" for line in missing_lines([*map(dry_run.needed, missing)]))
        yield from (f"  Disk: {disk_line(disk)}" for disk in dry_run.disks_here(missing))


def for_study(trials: list[TrialSpec], options: argparse.Namespace) -> list[str]:
    """Provide models, data sets, tools, engines and images, and return a line for each."""
    from dyno.api.measuring import study_needs

    return _provided(study_needs(trials), options)


def for_engines(
    trials: Iterable[TrialSpec | EngineSpec], options: argparse.Namespace
) -> None:
    """Provide models and images. An engine that is not installed is an error."""
    from dyno.api.measuring import needs

    _provided(needs(trials), options)


def _tests(trials: Iterable[TrialSpec]) -> list[QualitySpec]:
    return [trial.quality for trial in trials if trial.quality]


def _engines(trials: Iterable[TrialSpec | EngineSpec]) -> list[EngineSpec]:
    specs = (trial.engine if isinstance(trial, TrialSpec) else trial for trial in trials)
    return [spec for spec in specs if spec]


def _provided(missing: "list[Need]", options: argparse.Namespace) -> list[str]:
    from dyno.cli.progress import ProgressLine
    from dyno.conduct import provide

    if not missing:
        return []
    try:
        with ProgressLine() as line:
            return provide.run(provide.with_sizes(missing), line.say, line.below)
    except KeyboardInterrupt:
        again = flags.command(options)
        raise Interrupted(
            f"interrupted while preparing. Completed files and steps are kept. Continue with:\n{again}"
        ) from None
