"""Before an engine starts: what trials need and isn't here is listed, or fetched, made and installed."""

import argparse
from collections.abc import Iterable, Iterator, Sequence

from dyno.cli import flags
from dyno.errors import Interrupted
from dyno.facts.engine import EngineSpec
from dyno.facts.trial import TrialSpec
from dyno.facts.workload import WorkloadSpec


def listing(trials: Iterable[TrialSpec]) -> Iterator[str]:
    """Yield the lines of a dry run."""
    from dyno.conduct import provide

    if missing := provide.needs(*_parts(trials), dry=True):
        yield "Missing on this machine; provided before the first trial:"
        yield from (f"  {line}" for line in provide.lines(provide.with_sizes(missing)))


def _parts(trials: Iterable[TrialSpec]) -> tuple[list[EngineSpec], list[WorkloadSpec]]:
    trials = list(trials)
    return [trial.engine for trial in trials if trial.engine], [trial.workload for trial in trials]


def for_trials(trials: Iterable[TrialSpec], options: argparse.Namespace, installs: bool = False) -> list[str]:
    """Provide what is missing, and return a line for each thing. `installs`: engines too."""
    return for_engines(*_parts(trials), options=options, installs=installs)


def for_engines(
    specs: Sequence[EngineSpec],
    works: Sequence[WorkloadSpec] = (),
    *,
    options: argparse.Namespace,
    installs: bool = False,
) -> list[str]:
    from dyno.cli.progress import ProgressLine
    from dyno.conduct import provide

    missing = provide.needs(specs, works, installs=installs)
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
