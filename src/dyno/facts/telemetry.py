"""Telemetry: what accelerators, host and engine did while the load ran. None or an absent key: not known, never 0."""

from typing import Literal

import msgspec

from dyno.transport import DIRECT, Transport

Source = Literal["accelerator", "host", "engine"]
# reasons of throttling that are a limit at work; any other is trouble
LIMITS = ("power cap", "current")


class Sample(msgspec.Struct, frozen=True, tag="sample", omit_defaults=True):
    """The values of one source at one moment. Names end in their units; counters run on from before the load."""

    at_ns: int  # on the records' clock (client.json's start_ns is their zero)
    source: Source
    index: int  # accelerator as the rig counts, or URL of the target; 0: the host
    values: dict[str, float]
    throttle: list[str] = []  # why clocks are held down at this moment


class SamplerSpec(msgspec.Struct, frozen=True):
    """Instructions for the sampler's process, sent to its standard input."""

    path: str  # of the file that it writes
    urls: list[str] = []
    headers: dict[str, str] = {}  # a key may be needed for /metrics; it reaches no file
    via: Transport = DIRECT
    accelerators: bool = True  # False: the server is elsewhere, and so are its accelerators
    interval_s: float = 0.2
    engine_interval_s: float = 1.0
    root: str = "/"
    # dyno's name of each wanted metric → the engines' names
    metrics: dict[str, list[str]] = {}


class SamplerFacts(msgspec.Struct, frozen=True, tag="sampler"):
    """First and last line of a file of samples; the last one counts."""

    at_ns: int
    interval_s: float  # as it was at the end: longer than asked where sampling is expensive
    engine_interval_s: float
    cost: float = 0.0  # of one core, by the sampler's own process
    ticks: int = 0
    ended: bool = False  # it ended on request; else it was killed, or dyno was
    absent: list[str] = []  # what could not be sampled and why
    notes: list[str] = []  # how a figure is meant, where sources differ


class AcceleratorTelemetry(msgspec.Struct, frozen=True):
    index: int
    engine: bool | None  # counted as the engine's; None: unknown
    samples: int
    use_mean_percent: float | None = None
    memory_after_load_bytes: int | None = None  # when the engine was ready, before any load
    memory_peak_bytes: int | None = None
    gtt_peak_bytes: int | None = None  # AMD: the part of it that is the machine's
    power_mean_w: float | None = None
    power_peak_w: float | None = None
    energy_j: float | None = None
    # the driver's counter, or power over time
    energy_by: Literal["counter", "power"] | None = None
    energy_by_power_j: float | None = None  # for comparison, where there is a counter too
    clock_mean_mhz: float | None = None
    clock_min_mhz: float | None = None
    memory_clock_mean_mhz: float | None = None
    temperature_max_c: float | None = None
    throttled: dict[str, float] = {}  # reason → share of samples


class HostTelemetry(msgspec.Struct, frozen=True):
    """Figures of dyno's whole machine, also from inside a container."""

    samples: int
    cpu_mean_cores: float | None = None  # busy
    memory_peak_bytes: int | None = None
    network_received_bytes: int | None = None  # all interfaces but the loopback one
    network_sent_bytes: int | None = None
    loopback_bytes: int | None = None
    package_energy_j: float | None = None  # processors, by RAPL


class EngineTelemetry(msgspec.Struct, frozen=True):
    """Figures from the engine's metrics. Gauges over the steady window where there is one, counters over the load."""

    index: int  # of its URL in the target's
    samples: int
    running_mean: float | None = None  # requests that it worked on
    running_peak: float | None = None
    waiting_mean: float | None = None
    waiting_peak: float | None = None
    kv_mean_share: float | None = None  # of the KV cache
    kv_peak_share: float | None = None
    preemptions: int | None = None
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    output_tokens: int | None = None
    drafts: int | None = None  # speculative decoding
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    # tokens a step, the one by the model itself among them
    accepted_length_mean: float | None = None
    # of the requests that ended during the load, added up: its queue, from there to the first token, and to the last
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    timed_requests: int | None = None  # how many they are
    steps: int | None = None  # of the model, each for all requests at once
    step_tokens: int | None = None  # in these, of prompts and of answers
    restarted: bool = False  # a counter went back: then none is given


class TelemetrySummary(msgspec.Struct, frozen=True):
    interval_s: float
    engine_interval_s: float
    cost: float  # of a core
    longest_gap_s: float  # between two samples of the machine, under the load
    accelerators: list[AcceleratorTelemetry] = []
    host: HostTelemetry | None = None
    engines: list[EngineTelemetry] = []
    engine_resident_bytes: int | None = None  # its processes, when it was ready
    energy_j: float | None = None  # of the engine's accelerators
    energy_per_output_token_j: float | None = None
    power_mean_w: float | None = None
    absent: list[str] = []
    notes: list[str] = []

    def total(self, name: str) -> float | None:
        """Return the sum over the engine's copies; None where one is unknown."""
        values = [getattr(e, name) for e in self.engines]
        return sum(values) if values and None not in values else None

    def ratio(self, part: str, whole: str) -> float | None:
        share, total = self.total(part), self.total(whole)
        return share / total if total and share is not None else None

    @property
    def acceptance(self) -> float | None:
        """Return the share of drafted tokens that the model accepted."""
        return self.ratio("accepted_tokens", "drafted_tokens")

    @property
    def accepted_length(self) -> float | None:
        """Return the mean tokens per step, the model's own among them."""
        total = self.total("accepted_length_mean")
        return None if total is None else total / len(self.engines)
