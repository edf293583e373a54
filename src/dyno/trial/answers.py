"""What answers of a trial's API can't have, refused before anything starts."""

from collections.abc import Iterable

from dyno.errors import UsageError
from dyno.facts import template
from dyno.facts.trial import TrialSpec
from dyno.load.protocols import PROTOCOLS, protocol_of
from dyno.option import setting_name

_OF_STREAMS = ("ttft", "ttfo", "tpot", "itl")


def check(trial: TrialSpec, targets: Iterable[str] = ()) -> None:
    """Raise UsageError for a form of answers that the backend doesn't have, and for limits on latencies that such
    answers don't have. `targets`: latencies that a search is about."""
    backend = trial.target.backend
    if trial.template:
        template.checked(trial.template, "template")
    declared, protocol = PROTOCOLS[backend], protocol_of(trial.api)
    if not trial.stream and declared.streams and not declared.whole:
        able = ", ".join(name for name, known in PROTOCOLS.items() if known.whole)
        raise UsageError(
            f"{setting_name('--backend')} {backend} has only streams. Remove {setting_name('--no-streaming')}, or use "
            f"one of {able}."
        )
    if protocol.streams:
        return
    for flag, stems in (("--goodput", trial.goodput_ms), ("--target", targets)):
        for stem in stems:
            if stem in _OF_STREAMS:
                raise UsageError(
                    f"{setting_name(flag)} has {stem}, but answers in one piece have no first token and no gaps. "
                    "Use e2el."
                )
