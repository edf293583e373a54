"""The sampler as dyno uses it: started before the warm-up, begun and ended around the load. It fails no trial."""

import contextlib
import time
from io import FileIO
from pathlib import Path

import msgspec

from dyno import files
from dyno.child import Child
from dyno.clock import now_ns
from dyno.errors import StoreError
from dyno.facts.telemetry import Sample, SamplerFacts, SamplerSpec

_READY_S = 10.0  # to import, open NVML and ask each server once
_BEGUN_S = 6.0
_ENDED_S = 8.0
_decode = msgspec.json.Decoder(Sample | SamplerFacts).decode


class Sampler:
    def __init__(self, spec: SamplerSpec) -> None:
        self._spec = spec
        self._trouble: str | None = None
        self._tail: FileIO | None = None
        self._rest = b""
        self._over = False
        self._latest: dict[tuple[str, int], Sample] = {}
        self._child: Child | None = None
        try:
            self._child = Child("dyno.probe.telemetry.loop", _ENDED_S)
            self._child.give(spec)
        except OSError as e:
            self._trouble = f"the sampler couldn't start ({e.strerror})"

    def begin(self) -> None:
        """Return when the first full sample is taken, or it is clear that there will be none."""
        if self._child is not None and self._heard("ready", _READY_S):
            self._child.order(b"begin")
            self._heard("begun", _BEGUN_S)

    def end(self) -> None:
        """A last full sample. Never hangs: a sampler that doesn't end is killed."""
        if self._child is not None:
            self._child.order(b"end")
            # one that hung before isn't waited for again
            code = self._child.end(0.5 if self._trouble else None)
            if code is None:
                self._trouble = (
                    self._trouble or f"the sampler didn't stop within {_ENDED_S:g} s"
                )
            elif code:
                self._trouble = self._trouble or f"the sampler died (code {code})"
        self.latest()
        self._over = True
        if self._tail is not None:
            self._tail.close()
        if self._trouble:
            self._record(self._trouble)
        self._child = self._trouble = None

    def latest(self) -> list[Sample]:
        """Return the last sample of each source; none before `begin`. This is cheap, and never raises: it is asked
        under load."""
        if self._over:
            return list(self._latest.values())
        try:
            if self._tail is None:
                self._tail = FileIO(self._spec.path)
            data = self._rest + (self._tail.read(1 << 20) or b"")
            *lines, self._rest = data.split(b"\n")
            for line in lines:
                value = _decode(line)
                if isinstance(value, Sample):
                    self._latest[value.source, value.index] = value
        except (OSError, ValueError, msgspec.MsgspecError):  # not there yet, or closed
            pass
        return list(self._latest.values())

    def _heard(self, word: str, timeout_s: float) -> bool:
        """Wait until the sampler has reported a word."""
        assert self._child is not None
        deadline = time.monotonic() + timeout_s
        while True:
            reports = self._child.hear(max(deadline - time.monotonic(), 0.0))
            if msgspec.json.encode(word) in reports:
                return True
            if self._child.gone:
                return False  # it is dead: `end` says how
            if time.monotonic() >= deadline:
                self._trouble = f"the sampler wasn't {word} within {timeout_s:g} s"
                return False

    def _record(self, trouble: str) -> None:
        """Write it into the file, for the summary."""
        facts = SamplerFacts(
            now_ns(), self._spec.interval_s, self._spec.engine_interval_s, absent=[trouble]
        )
        with contextlib.suppress(OSError), Path(self._spec.path).open("ab") as file:
            file.write(b"\n" + msgspec.json.encode(facts) + b"\n")


def read(path: Path) -> tuple[list[Sample], SamplerFacts | None]:
    """Return a sampler's samples, and its last facts. A line that was cut off by its death is skipped."""
    samples, facts, absent, notes = [], None, [], []
    try:
        for line in files.lines(path):
            try:
                value = _decode(line)
            except files.BROKEN:
                continue
            if isinstance(value, Sample):
                samples.append(value)
            else:
                facts = value
                absent += [a for a in value.absent if a not in absent]
                notes += [n for n in value.notes if n not in notes]
    except OSError as e:
        raise StoreError(f"{path} can't be read: {e.strerror}.") from None
    return samples, facts and msgspec.structs.replace(facts, absent=absent, notes=notes)
