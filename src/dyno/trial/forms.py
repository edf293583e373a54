"""The forms that a trial's requests prescribe for their answers, and how many answers have them."""

from collections.abc import Mapping, Sequence
from typing import Any

from dyno.facts.structured import Expected, StructuredSummary, expected
from dyno.facts.trial import TrialSpec
from dyno.measure.structured import FormTally
from dyno.store.run import Run


def prescribed(trial: TrialSpec, requests: Sequence[object]) -> bool:
    """Return whether some of the requests prescribe a form."""
    if expected(trial.extra_body) is not None:
        return True
    bodies = (getattr(request, "body", None) for request in requests)
    return any(body and expected(body) is not None for body in bodies)


def held(run: Run, trial: TrialSpec) -> StructuredSummary | None:
    """Hold the answers of a run to the forms of their requests."""
    bodies = [request.body for request in run.requests()]
    shared = expected(trial.extra_body)
    forms = [_form(trial.extra_body, body, shared) for body in bodies]

    def form(index: int) -> Expected | None:
        return forms[index % len(forms)]

    tally = FormTally(form)
    tally.add_all(run.records())
    return tally.summary()


def _form(
    extra: Mapping[str, Any], body: Mapping[str, Any], shared: Expected | None
) -> Expected | None:
    return expected({**extra, **body}) if body else shared
