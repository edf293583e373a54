"""What a trial leaves."""

import msgspec

from dyno.facts.offline import Iteration
from dyno.facts.summary import Result
from dyno.store.run import Manifest, Run


class Outcome(msgspec.Struct, frozen=True):
    """A trial that was measured, served or offline."""

    run: Run
    manifest: Manifest
    result: Result
    iterations: list[Iteration] = []  # of an offline trial
    interrupted: bool = False  # likewise


def ended_early(run: Run, result: Result) -> str:
    """Say why a load on a server ended before it was complete; '': it is complete, or the user stopped it."""
    served, engine = result.served, run.engine()
    if served.outcome == "interrupted":
        return ""
    if engine is not None and engine.died:
        return engine.died
    if served.outcome == "complete":
        return ""
    if served.outcome == "all failed":
        failures = ", ".join(f"{count} {kind}" for kind, count in served.failures.items())
        return f"every request failed ({failures}), so the load was stopped. Read the server's log."
    if served.outcome == "lost":
        return "every process of the client ended before the load was over. Look for the cause in the system's log."
    return f"the server stopped answering after {served.completed} completed requests. Read its log."
