"""A trial's answers: what they can't have is refused before anything starts, and their prescribed forms are checked
afterwards."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dyno.errors import UsageError
from dyno.facts import template
from dyno.facts.structured import Expected, Forms, StructuredSummary, expected
from dyno.facts.trial import TrialSpec
from dyno.load.protocols import PROTOCOLS, protocol_of
from dyno.measure.structured import FormTally
from dyno.option import setting_name
from dyno.store.run import Run

_OF_STREAMS = ("ttft", "ttfo", "tpot", "itl")
NO_FORMS = (
    "The target limits invalid answers, but no request prescribes the form of its answer, as a JSON schema or tools "
    "do. Use the data set structured-output, or response_format or tools in {flag}."
)


def check(trial: TrialSpec, targets: Collection[str] = ()) -> None:
    """Raise UsageError for a form of answers that the backend doesn't have, and for limits on figures that such
    answers don't have. `targets`: the figures that a search is about."""
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
    if "invalid" in targets and not _may_prescribe(trial):
        raise UsageError(no_forms())
    if protocol.streams:
        return
    for flag, stems in (("--goodput", trial.goodput_ms), ("--target", targets)):
        for stem in stems:
            if stem in _OF_STREAMS:
                raise UsageError(
                    f"{setting_name(flag)} has {stem}, but answers in one piece have no first token and no gaps. "
                    "Use e2el."
                )


# ---- the forms that requests prescribe ----


def no_forms() -> str:
    return NO_FORMS.format(flag=setting_name("--extra-body"))


def _may_prescribe(trial: TrialSpec) -> bool:
    """Return whether requests may prescribe a form. Synthetic text doesn't; of a file only its requests show."""
    return not trial.workload.traits.endless or expected(trial.extra_body) is not None


def prescribed(trial: TrialSpec, requests: Sequence[object]) -> bool:
    """Return whether some of the requests prescribe a form."""
    if expected(trial.extra_body) is not None:
        return True
    bodies = (getattr(request, "body", None) for request in requests)
    return any(body and expected(body) is not None for body in bodies)


def check_forms(run: Run, trial: TrialSpec) -> StructuredSummary | None:
    """Hold the answers of a run to the forms of their requests."""
    tally = FormTally(forms(trial, run.requests()))
    tally.add_all(run.records())
    return tally.summary()


def forms(trial: TrialSpec, requests: Iterable[object]) -> Forms:
    """Return the forms of these requests. Those that are equal are kept once."""
    shared = expected(trial.extra_body)
    places: dict[bytes, int] = {}
    each: list[Expected] = []
    of_request = []
    for request in requests:
        form = _form(trial.extra_body, getattr(request, "body", {}), shared)
        if form is None:
            of_request.append(-1)
            continue
        place = places.setdefault(msgspec.json.encode(form), len(each))
        if place == len(each):
            each.append(form)
        of_request.append(place)
    return Forms(each, of_request)


def _form(
    extra: Mapping[str, Any], body: Mapping[str, Any], shared: Expected | None
) -> Expected | None:
    return expected({**extra, **body}) if body else shared
