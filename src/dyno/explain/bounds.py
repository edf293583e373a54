"""The least time that the hardware allows for each request: its prompt, and its tokens after the first."""

import numpy as np

from dyno.explain.columns import Columns
from dyno.facts.engine import EngineSpec
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
from dyno.units import NS_PER_S


class HardwareBound:
    """The bound of one copy of the engine on its share of the hardware."""

    def __init__(
        self, loaded: Loaded, peaks: Peaks, copies: int, per_step: float | None
    ) -> None:
        self._loaded = loaded
        self._peaks = peaks
        self._copies = copies
        self._flops = peaks.flops[precision_of(loaded, peaks)] / copies
        self._per_step = per_step

    def prefill_ns(self, c: Columns) -> np.ndarray:
        """Return the least time of each prompt: all its tokens calculated, the weights read once."""
        pairs = zip(c.prompt.tolist(), c.cached.tolist(), strict=True)
        return np.array([self._prefill_s(*pair) * NS_PER_S for pair in pairs])

    def decode_ns(self, c: Columns, streams: np.ndarray) -> np.ndarray | None:
        """Return the least time of the tokens after the first chunk, with as many streams in a step. None: it is
        unknown how many tokens a step has."""
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
        """Weights are read once a step, each request's own context too; a cached prefix may be shared by all."""
        assert self._per_step is not None
        batch = max(streams / self._copies, 1.0)
        context = prompt + later / 2
        read = self._loaded.least_bytes + self._loaded.kv_bytes(cached)
        read += batch * self._loaded.kv_bytes(context - cached)
        tokens = batch * self._per_step
        operations = tokens * self._loaded.operations(context, drawn=1.0)
        step = max(self._read_s(read), operations / self._flops)
        return later / self._per_step * step

    def _read_s(self, size: float) -> float:
        speed = bandwidth_at(self._peaks, size * self._copies)
        if not speed:
            return 0.0
        held = 0 if self._peaks.bandwidth_by_size else self._peaks.cache_bytes or 0
        return max(size * self._copies - held, 0.0) / speed


def hardware_bound(
    shape: ModelShape | None,
    spec: EngineSpec | None,
    target: TargetFacts,
    peaks: Peaks | None,
    telemetry: TelemetrySummary | None,
) -> HardwareBound | None:
    """Return None where the model's shape or the hardware's peaks are unknown."""
    if shape is None or peaks is None or not peaks.flops:
        return None
    loaded = as_loaded(shape, spec, target)
    if loaded is None:
        return None
    copies = spec.replicas if spec else 1
    return HardwareBound(loaded, peaks, copies, tokens_per_step(spec, telemetry))
