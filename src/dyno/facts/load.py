"""A load: when the requests of a workload are sent."""

from typing import Literal

import msgspec


class LoadSpec(msgspec.Struct, frozen=True):
    request_rate_rps: float | None = None  # None: no rate; each is sent as soon as a slot is free
    burstiness: float | None = 1.0  # 1: Poisson; other: gamma; None: constant gaps
    max_concurrency: int | None = None
    ramp: Literal["linear", "exponential"] | None = None
    ramp_start_rps: float | None = None
    ramp_end_rps: float | None = None
    duration_s: float | None = None  # nothing is sent after this; what is in flight is finished
    request_timeout_s: float = 6 * 3600
    response_bytes_max: int | None = None  # None: 1 MiB, and 8 KiB for each output token asked for
    seed: int = 0

    @property
    def closed_loop(self) -> bool:
        return self.request_rate_rps is None and self.ramp is None
