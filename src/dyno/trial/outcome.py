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
