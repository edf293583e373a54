"""A load: when the requests of a workload are sent."""

from typing import Annotated, Literal

import msgspec

from dyno.option import Option


class LoadSpec(msgspec.Struct, frozen=True):
    # None: no rate; each is sent as soon as a slot is free.
    request_rate_rps: Annotated[
        float | None,
        Option("--request-rate", "RPS", "default: inf, no rate", above=0, most=1e7, unlimited=True,
               note=" (or inf, for no rate)"),
    ] = None  # fmt: skip
    burstiness: Annotated[  # None: constant gaps
        float | None,
        Option("--burstiness", "B", "1: Poisson; other: gamma; inf: constant gaps", above=0,
               note=" (inf: constant gaps)"),
    ] = 1.0  # fmt: skip
    max_concurrency: Annotated[
        int | None, Option("--max-concurrency", "N", "requests in flight at most", least=1, most=10_000_000)
    ] = None
    ramp: Annotated[Literal["linear", "exponential"] | None, Option("--ramp-up-strategy")] = None
    ramp_start_rps: Annotated[float | None, Option("--ramp-up-start-rps", "RPS", most=1e7)] = None
    ramp_end_rps: Annotated[float | None, Option("--ramp-up-end-rps", "RPS", above=0, most=1e7)] = None
    duration_s: Annotated[
        float | None,
        Option("--duration", "S", "send for so long; what is in flight is finished", above=0, most=1e8,
               note=" seconds"),
    ] = None  # fmt: skip
    request_timeout_s: Annotated[
        float, Option("--request-timeout-sec", "S", "default: 6 hours", above=0, most=1e8)
    ] = 6 * 3600  # fmt: skip
    response_bytes_max: Annotated[
        int | None,
        Option("--max-response-bytes", "N",
               "a longer answer fails (default: 1 MiB, and 8 KiB for each output token asked for)", least=1),
    ] = None  # fmt: skip
    seed: int = 0

    @property
    def closed_loop(self) -> bool:
        return self.request_rate_rps is None and self.ramp is None
