"""The least time that the hardware allows for each request: its prompt, and its tokens after the first."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dyno.explain.columns import Columns
from dyno.facts.engine import EngineSpec
from dyno.facts.forward import ForwardCase
from dyno.facts.model import ModelShape
from dyno.facts.rig import Peaks
from dyno.facts.target import TargetFacts
from dyno.facts.telemetry import TelemetrySummary
from dyno.measure.roofline import (
    Loaded,
    as_loaded,
    bandwidth_at,
    precision_of,
    tokens_per_step,
)
from dyno.units import NS_PER_S, NS_PER_US

CALCULATED = "the least that the hardware's peaks allow (roofline)"
MEASURED = "the model's forward pass, as vLLM measured it (`vllm bench forward`)"


class _Passes(NamedTuple):
    """How many times as long as calculated passes took, by their size."""

    sizes: np.ndarray  # increasing
    times: np.ndarray

    def ratio(self, size: float) -> float:
        """Return it for this size: between two measured ones by its logarithm, beyond them as at the nearest."""
        if not len(self.sizes):
            return 1.0
        return float(np.interp(np.log(max(size, 1.0)), np.log(self.sizes), self.times))


class HardwareBound:
    """The bound of one copy of the engine on its share of the hardware."""

    def __init__(
        self,
        loaded: Loaded,
        peaks: Peaks,
        copies: int,
        per_step: float | None,
        forward: Sequence[ForwardCase] = (),
    ) -> None:
        """`forward`: passes that were measured with this model on this hardware."""
        self._loaded = loaded
        self._peaks = peaks
        self._copies = copies
        self._flops = peaks.flops[precision_of(loaded, peaks)] / copies
        self._per_step = per_step
        self._prefills = _measured(
            (case.requests[0].query_len, case.median_us, self._prefill_s(*_prompt(case)))
            for case in forward
            if case.prefills
        )
        self._decodes = _measured(
            (
                len(case.requests),
                case.median_us,
                self._step_s(len(case.requests), case.context),
            )
            for case in forward
            if case.decodes
        )

    @property
    def prefill_about(self) -> str:
        return MEASURED if len(self._prefills.sizes) else CALCULATED

    @property
    def decode_about(self) -> str:
        return MEASURED if len(self._decodes.sizes) else CALCULATED

    def prefill_ns(self, c: Columns) -> np.ndarray:
        """Return the least time of each prompt: all its tokens calculated, the weights read once."""
        pairs = zip(c.prompt.tolist(), c.cached.tolist(), strict=True)
        return np.array(
            [
                self._prefill_s(*pair) * self._prefills.ratio(pair[0] - pair[1]) * NS_PER_S
                for pair in pairs
            ]
        )

    def decode_ns(self, c: Columns, streams: np.ndarray) -> np.ndarray | None:
        """Return the least time of the tokens after the first chunk, with as many streams in a step of one copy. None:
        it is unknown how many tokens a step has."""
        if self._per_step is None:
            return None
        facts = (c.prompt, c.cached, c.later, streams)
        each = zip(*(column.tolist() for column in facts), strict=True)
        return np.array([self._decode_s(*one) * NS_PER_S for one in each])

    def _prefill_s(self, prompt: int, cached: int) -> float:
        tokens = prompt - cached
        if tokens <= 0:
            return 0.0
        operations = self._loaded.operations(cached + tokens / 2, drawn=1 / tokens)
        return max(
            tokens * operations / self._flops, self._read_s(self._loaded.least_bytes)
        )

    def _decode_s(self, prompt: int, cached: int, later: int, streams: float) -> float:
        assert self._per_step is not None
        batch = max(streams, 1.0)
        step = self._step_s(batch, prompt + later / 2, cached) * self._decodes.ratio(batch)
        return later / self._per_step * step

    def _step_s(self, batch: float, context: float, cached: int = 0) -> float:
        """Weights are read once a step, each request's own context too; a cached prefix may be shared by all."""
        read = self._loaded.least_bytes + self._loaded.kv_bytes(cached)
        read += batch * self._loaded.kv_bytes(context - cached)
        tokens = batch * (self._per_step or 1.0)
        operations = tokens * self._loaded.operations(context, drawn=1.0)
        return max(self._read_s(read), operations / self._flops)

    def _read_s(self, size: float) -> float:
        speed = bandwidth_at(self._peaks, size * self._copies)
        if not speed:
            return 0.0
        held = 0 if self._peaks.bandwidth_by_size else self._peaks.cache_bytes or 0
        return max(size * self._copies - held, 0.0) / speed


def _prompt(case: ForwardCase) -> tuple[int, int]:
    """Return its tokens, and how many of them were there already."""
    (request,) = case.requests
    return request.kv_len, request.kv_len - request.query_len


def _measured(passes: Iterable[tuple[int, float, float]]) -> _Passes:
    """Return how measured times relate to calculated ones. A pass: its size, µs, calculated s."""
    times = {
        size: us * NS_PER_US / NS_PER_S / seconds
        for size, us, seconds in sorted(passes)
        if seconds
    }
    return _Passes(np.array([*times], dtype=float), np.array([*times.values()]))


def hardware_bound(
    shape: ModelShape | None,
    spec: EngineSpec | None,
    target: TargetFacts,
    peaks: Peaks | None,
    telemetry: TelemetrySummary | None,
    forward: Sequence[ForwardCase] = (),
) -> HardwareBound | None:
    """Return None where the model's shape or the hardware's peaks are unknown."""
    if shape is None or peaks is None or not peaks.flops:
        return None
    loaded = as_loaded(shape, spec, target)
    if loaded is None:
        return None
    copies = spec.replicas if spec else 1
    per_step = tokens_per_step(spec, telemetry)
    return HardwareBound(loaded, peaks, copies, per_step, forward)
