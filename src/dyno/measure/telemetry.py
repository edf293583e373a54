"""Calculate figures over the load from samples. Samples of the warm-up, before the load, are excluded.

Gauges are averaged over time. Counters are differences: of the machine's between the window's two ends, of the
engine's between the last sample before the load and the first after it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, Self

import msgspec
import numpy as np

from dyno.facts.engine import EngineFacts
from dyno.facts.record import ClientFacts
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.summary import CancelSummary, Steady, Summary
from dyno.facts.telemetry import (
    AcceleratorTelemetry,
    EngineTelemetry,
    HostTelemetry,
    Sample,
    SamplerFacts,
    TelemetrySummary,
)
from dyno.units import NS_PER_S, ns, seconds

# an accelerator whose memory grew by that when the engine started is the engine's
GROWN_BYTES = 256 << 20
AT_WORK_PERCENT = 5.0

FEW = 3  # samples
# a shorter load has no CPU use: the kernel counts in hundredths of a second on each core
CPU_FROM_S = 0.2
EDGE_NS = 1_500_000_000  # older runs were sampled by nvidia-smi, once a second


class Window(NamedTuple):
    """The load's time, on the clock of the samples."""

    start_ns: int
    end_ns: int
    steady: tuple[int, int] | None = None

    @classmethod
    def of_load(cls, client: ClientFacts, steady: Steady | None) -> Self:
        zero = client.start_ns
        inner = (
            None if steady is None else (zero + ns(steady.start_s), zero + ns(steady.end_s))
        )
        return cls(zero, client.end_ns, inner)

    @property
    def duration_s(self) -> float:
        return seconds(self.end_ns - self.start_ns)

    def count(self, samples: Iterable[Sample]) -> int:
        return sum(self.start_ns <= s.at_ns <= self.end_ns for s in samples)


class Series:
    """One value of one source, over time. Statistics are None where there are too few samples."""

    def __init__(self, samples: Iterable[Sample], name: str) -> None:
        pairs = [(s.at_ns, s.values[name]) for s in samples if name in s.values]
        self.times = np.array([time for time, _ in pairs], dtype=np.int64)
        self.values = np.array([value for _, value in pairs])

    def inside(self, start: int, end: int) -> np.ndarray:
        """Return which samples are in this time."""
        which: np.ndarray = (self.times >= start) & (self.times <= end)
        return which

    def mean(self, start: int, end: int) -> float | None:
        """Return the mean over time, by the samples inside: those around a load are of a machine at rest."""
        inside = self.inside(start, end)
        if not inside.any() or end <= start:
            return None
        return _integral(self.times[inside], self.values[inside], start, end) / seconds(
            end - start
        )

    def peak(
        self, start: int, end: int, extreme: Callable[[np.ndarray], float] = np.max
    ) -> float | None:
        inside = self.values[self.inside(start, end)]
        return float(extreme(inside)) if len(inside) else None

    def integral(self, start: int, end: int) -> float | None:
        """Return value × seconds, with the samples around the window for its edges. Sources with rare samples may begin
        a little late and end early: the nearest sample counts for these."""
        if (
            len(self.times) < 2
            or self.times[0] > start + EDGE_NS
            or self.times[-1] < end - EDGE_NS
        ):
            return None
        return _integral(self.times, self.values, start, end)

    def difference(self, start: int, end: int) -> float | None:
        """Return a counter's increase, interpolated between samples. None where it dropped, or an end is unknown."""
        if len(self.times) < 2 or self.times[0] > start or self.times[-1] < end:
            return None
        if (np.diff(self.values) < 0).any():
            return None
        first, last = np.interp([start, end], self.times, self.values)
        return float(last - first)


def _integral(times: np.ndarray, values: np.ndarray, start: int, end: int) -> float:
    marks = np.concatenate([[start], times[(times > start) & (times < end)], [end]])
    heights = np.interp(marks, times, values)
    return float((np.diff(marks) * (heights[1:] + heights[:-1]) / 2).sum()) / NS_PER_S


def summarize(
    samples: Sequence[Sample],
    facts: SamplerFacts,
    window: Window,
    output_tokens: int,
    rig: Rig | None = None,
    engine: EngineFacts | None = None,
) -> TelemetrySummary:
    absent, notes = list(facts.absent), list(facts.notes)
    by_source: dict[str, dict[int, list[Sample]]] = {
        "accelerator": {},
        "host": {},
        "engine": {},
    }
    for s in samples:
        by_source[s.source].setdefault(s.index, []).append(s)
    cards = [
        _accelerator(i, its, window, engine)
        for i, its in sorted(by_source["accelerator"].items())
    ]
    cards = _attributed(cards, rig, engine, notes)
    energy_j = _energy_of_the_engine(cards, rig, absent, notes)
    machine = by_source["host"].get(0, [])
    if not facts.ended and not any("sampler" in why for why in absent):
        absent.append("the sampler stopped early: it or dyno was killed")
    return TelemetrySummary(
        interval_s=facts.interval_s,
        engine_interval_s=facts.engine_interval_s,
        cost=facts.cost,
        longest_gap_s=_longest_gap_s([s.at_ns for s in machine], window),
        accelerators=cards,
        host=_host(machine, window) if machine else None,
        engines=[_engine(i, its, window) for i, its in sorted(by_source["engine"].items())],
        engine_resident_bytes=None if engine is None else engine.resident_bytes,
        energy_j=energy_j,
        energy_per_output_token_j=energy_j / output_tokens
        if energy_j is not None and output_tokens
        else None,
        power_mean_w=energy_j / window.duration_s
        if energy_j is not None and window.duration_s
        else None,
        absent=absent,
        notes=notes,
    )


_COUNTS_DIFFER = 0.01  # of the requests of a histogram and of the load


def queue_share(s: Summary, sampled: TelemetrySummary | None) -> float | None:
    """Return the share of the latency, from due to the last token, that requests spent in the server's queue: by each
    answer, else by its histogram. None: it says neither."""
    latency = s.latencies.get("response_e2el")
    queue_ms = s.server_queue_ms
    if queue_ms is None and sampled is not None and s.completed:
        queue_s, counted = sampled.total("queue_s"), sampled.total("timed_requests")
        if queue_s is not None and counted:
            near = abs(counted - s.completed) <= max(1, _COUNTS_DIFFER * s.completed)
            queue_ms = 1000 * queue_s / counted if near else None
    if queue_ms is None or latency is None or not latency.mean:
        return None
    return queue_ms / latency.mean


def with_generated(
    cancelling: CancelSummary, sampled: TelemetrySummary | None
) -> CancelSummary:
    """Add how many output tokens the server generated by its own counter, until shortly after the load."""
    generated = sampled.total("output_tokens") if sampled else None
    return msgspec.structs.replace(
        cancelling, generated_tokens=None if generated is None else round(generated)
    )


def _accelerator(
    index: int, samples: list[Sample], window: Window, engine: EngineFacts | None
) -> AcceleratorTelemetry:
    start, end = window.start_ns, window.end_ns
    names = (
        "use_percent",
        "memory_used_bytes",
        "gtt_used_bytes",
        "memory_clock_mhz",
        "temperature_c",
        "energy_j",
    )
    use, memory, gtt, memory_clock, temperature, counter = (
        Series(samples, name) for name in names
    )
    power, clock = Series(samples, "power_w"), Series(samples, "clock_mhz")
    counted, summed = counter.difference(start, end), power.integral(start, end)
    energy = counted if counted is not None else summed
    energy_by: Literal["counter", "power"] | None = None
    if energy is not None:
        energy_by = "counter" if counted is not None else "power"
    inside = [s for s in samples if start <= s.at_ns <= end]
    reasons = [reason for s in inside for reason in s.throttle]
    return AcceleratorTelemetry(
        index=index,
        engine=None,
        samples=len(inside),
        use_mean_percent=use.mean(start, end),
        memory_after_load_bytes=None
        if engine is None
        else engine.memory_loaded_bytes.get(index),
        memory_peak_bytes=_whole(memory.peak(start, end)),
        gtt_peak_bytes=_whole(gtt.peak(start, end)),
        power_mean_w=energy / window.duration_s
        if energy is not None and window.duration_s
        else power.mean(start, end),
        power_peak_w=power.peak(start, end),
        energy_j=energy,
        energy_by=energy_by,
        energy_by_power_j=summed if counted is not None else None,
        clock_mean_mhz=clock.mean(start, end),
        clock_min_mhz=clock.peak(start, end, np.min),
        memory_clock_mean_mhz=memory_clock.mean(start, end),
        temperature_max_c=temperature.peak(start, end),
        throttled={r: reasons.count(r) / len(inside) for r in dict.fromkeys(reasons)},
    )


def _attributed(
    cards: list[AcceleratorTelemetry],
    rig: Rig | None,
    engine: EngineFacts | None,
    notes: list[str],
) -> list[AcceleratorTelemetry]:
    """Add whether each is the engine's: by its processes, else by memory that grew as it started, else by its use."""
    its = {a.index for a in rig.accelerators if a.engine} if rig else set()
    # started here: where no memory grew, it is on the processors
    if not its and engine is not None:
        loaded, before = engine.memory_loaded_bytes, engine.memory_before_bytes
        its = {i for i, n in loaded.items() if n - before.get(i, 0) > GROWN_BYTES}
    elif not its:
        its = _busy(cards)
        if not its:
            return cards
        listed = ", ".join(map(str, sorted(its)))
        notes.append(
            f"the engine's processes are unknown: assumes accelerator {listed}, busy during the load, is the engine's"
        )
    return [msgspec.structs.replace(a, engine=a.index in its) for a in cards]


def _busy(cards: Sequence[AcceleratorTelemetry]) -> set[int]:
    return {a.index for a in cards if (a.use_mean_percent or 0.0) >= AT_WORK_PERCENT}


def _energy_of_the_engine(
    cards: list[AcceleratorTelemetry], rig: Rig | None, absent: list[str], notes: list[str]
) -> float | None:
    its = [a for a in cards if a.engine]
    if not its:
        if cards:
            absent.append("energy per token: the engine's accelerators are unknown")
        return None
    devices = {a.index: a for a in rig.accelerators} if rig else {}
    used = [devices[a.index] for a in its if a.index in devices]
    parts = [card.index for card in used if _in_parts(card, devices.values())]
    if parts:
        listed = ", ".join(map(str, parts))
        notes.append(
            f"accelerator {listed}: a partition of a card; power and energy are the whole card's"
        )
    silent = _silent(its, devices)
    if silent:
        listed = ", ".join(map(str, silent))
        absent.append(f"energy per token: accelerator {listed} reports no energy")
        return None
    return sum(a.energy_j for a in its if a.energy_j is not None)


def _silent(
    cards: Sequence[AcceleratorTelemetry], devices: Mapping[int, Accelerator]
) -> list[int]:
    """Return those whose energy is unknown. A card in parts has its energy at its first one."""

    def bus(card: AcceleratorTelemetry) -> str | None:
        device = devices.get(card.index)
        return device.bus if device is not None else None

    counted = {bus(a) for a in cards if a.energy_j is not None} - {None}
    return [a.index for a in cards if a.energy_j is None and bus(a) not in counted]


def _in_parts(card: Accelerator, cards: Iterable[Accelerator]) -> bool:
    """Return whether a card is partitioned: by MIG on NVIDIA, where the card is counted; on AMD each part is."""
    return (card.partition or "").startswith("MIG") or sum(
        c.bus == card.bus for c in cards if c.bus
    ) > 1


def _host(samples: list[Sample], window: Window) -> HostTelemetry:
    start, end = window.start_ns, window.end_ns

    def difference(name: str) -> float | None:
        return Series(samples, name).difference(start, end)

    cpu_s = difference("cpu_busy_s")
    return HostTelemetry(
        samples=window.count(samples),
        cpu_mean_cores=None
        if cpu_s is None or window.duration_s < CPU_FROM_S
        else cpu_s / window.duration_s,
        memory_peak_bytes=_whole(Series(samples, "memory_used_bytes").peak(start, end)),
        network_received_bytes=_whole(difference("network_received_bytes")),
        network_sent_bytes=_whole(difference("network_sent_bytes")),
        loopback_bytes=_whole(difference("loopback_bytes")),
        package_energy_j=difference("package_energy_j"),
    )


COUNTED = (
    "preemptions", "prefix_queried_tokens", "prefix_hit_tokens", "output_tokens", "drafted_tokens", "accepted_tokens",
    "drafts", "timed_requests", "steps", "step_tokens",
)  # fmt: skip
TIMED = ("queue_s", "prefill_s", "decode_s")  # counted in seconds


def _engine(index: int, samples: list[Sample], window: Window) -> EngineTelemetry:
    start, end = window.start_ns, window.end_ns
    steady = window.steady or (start, end)
    if sum(steady[0] <= s.at_ns <= steady[1] for s in samples) < FEW:
        steady = (start, end)  # too few for a mean: then all of the load's
    running, waiting, kv, length = (
        Series(samples, name)
        for name in (
            "running_requests",
            "waiting_requests",
            "kv_used_share",
            "accepted_length_tokens",
        )
    )
    counts, restarted = _counted(samples, start, end)
    times = _increases(samples, start, end, TIMED) or {}
    drafts, accepted = counts.get("drafts"), counts.get("accepted_tokens")
    return EngineTelemetry(
        index=index,
        samples=window.count(samples),
        running_mean=running.mean(*steady),
        running_peak=running.peak(start, end),
        waiting_mean=waiting.mean(*steady),
        waiting_peak=waiting.peak(start, end),
        kv_mean_share=kv.mean(*steady),
        kv_peak_share=kv.peak(start, end),
        accepted_length_mean=1 + accepted / drafts
        if drafts and accepted is not None
        else length.mean(*steady),
        restarted=restarted,
        queue_s=times.get("queue_s"),
        prefill_s=times.get("prefill_s"),
        decode_s=times.get("decode_s"),
        **counts,
    )


def _counted(samples: list[Sample], start: int, end: int) -> tuple[dict[str, int], bool]:
    """Return increases from the last sample before the load to the first after it; {} if one is missing or dropped."""
    increases = _increases(samples, start, end, COUNTED)
    if increases is None:
        return {}, True
    return {name: round(value) for name, value in increases.items()}, False


def _increases(
    samples: list[Sample], start: int, end: int, names: Sequence[str]
) -> dict[str, float] | None:
    """Return by how much counters increased; {} without samples around the load. None: one dropped."""
    first = max((i for i, s in enumerate(samples) if s.at_ns <= start), default=None)
    last = min((i for i, s in enumerate(samples) if s.at_ns >= end), default=None)
    if first is None or last is None or last <= first:
        return {}
    around = samples[first : last + 1]
    increases = {}
    for name in names:
        if name not in around[-1].values:
            continue
        values = _readings(around, name)
        if any(b < a for a, b in pairwise(values)):
            return None
        increases[name] = values[-1] - values[0]
    return increases


def _readings(samples: Sequence[Sample], name: str) -> list[float]:
    """Return the values of a counter. One with labels is shown from its first count on: before, it is 0."""
    values = [s.values[name] for s in samples if name in s.values]
    return values if name in samples[0].values else [0.0, *values]


def _longest_gap_s(times: list[int], window: Window) -> float:
    inside = [t for t in times if window.start_ns < t < window.end_ns]
    marks = [window.start_ns, *inside, window.end_ns]
    return seconds(max(b - a for a, b in pairwise(marks)))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
