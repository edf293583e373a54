"""The roofline: what the machine could do at most, and the share of it that a figure amounts to."""

import msgspec


class Peaks(msgspec.Struct, frozen=True):
    """What the accelerators that are used, or the processor, can do at most. Of all of them together."""

    name: str  # 'NVIDIA H200', 'Neoverse-N1, 2 cores'
    count: int
    bandwidth: float  # bytes/s of its memory
    flops: dict[str, float]  # dense, by precision: fp32, tf32, bf16, fp16, fp8, int8, fp4 → operations/s
    source: str  # a page, or how it was measured
    measured: bool = False  # here, by a small test; else a maker's figure
    cache_bytes: int | None = None  # last level: what fits in there isn't held by the memory's bandwidth
    # Measured ones: bytes that are read again and again → bytes/s. What fits a cache is read faster.
    bandwidth_by_size: dict[int, float] = {}


class Share(msgspec.Struct, frozen=True):
    """Of the peaks, that one figure amounts to. 0.64: 64 %."""

    what: str  # decode, prefill, whole
    bandwidth: float | None = None
    arithmetic: float | None = None
    # By what can't be otherwise: with experts, as if all requests of a batch took the same ones.
    bandwidth_least: float | None = None
    about: str = ""  # the calculation, with its numbers
    streams: float | None = None  # decode: requests in a step, of one copy


class Roofline(msgspec.Struct, frozen=True):
    peaks: Peaks
    precision: str  # of the arithmetic
    weights_bytes: float  # read for a token, at least
    kv_bytes: float  # for each token of the context
    parameters: float  # active for a token
    shares: list[Share]
