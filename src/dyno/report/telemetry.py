"""Telemetry in a few printed lines. What isn't known has no line."""

from collections.abc import Sequence

from dyno.facts.telemetry import TelemetrySummary

GiB = 1 << 30


def lines(t: TelemetrySummary) -> list[tuple[str, str]]:
    """Label and value of each."""
    out: list[tuple[str, str]] = []
    its = [a for a in t.accelerators if a.engine is not False]
    if its:
        out.append(("Accelerators:", ", ".join(str(a.index) for a in its)))

    def add(label: str, values: Sequence[float | None], shape: str = ".1f") -> None:
        if any(v is not None for v in values):
            out.append((label, " / ".join("-" if v is None else format(v, shape) for v in values)))

    add("  Use, mean (%):", [a.use_mean_percent for a in its], ".0f")
    add("  Memory after load (GiB):", [_gib(a.memory_after_load_bytes) for a in its])
    add("  Memory, peak (GiB):", [_gib(a.memory_peak_bytes) for a in its])
    add("  Power, mean (W):", [a.power_mean_w for a in its], ".0f")
    add("  Power, peak (W):", [a.power_peak_w for a in its], ".0f")
    add("  Clock, mean (MHz):", [a.clock_mean_mhz for a in its], ".0f")
    add("  Temperature, highest (°C):", [a.temperature_max_c for a in its], ".0f")
    add("Energy (J):", [t.energy_j], ".0f")
    add("Energy per output token (J):", [t.energy_per_output_token_j], ".4g")
    if t.host is not None:
        add("Host: CPU busy, mean (cores):", [t.host.cpu_mean_cores], ".2f")
        add("Host: memory, peak (GiB):", [_gib(t.host.memory_peak_bytes)])
        add("Host: energy of processors (J):", [t.host.package_energy_j], ".0f")
    add("Engine: memory after load (GiB):", [_gib(t.engine_resident_bytes)], ".2f")
    add("Engine: running, mean:", [e.running_mean for e in t.engines])
    add("Engine: waiting, mean:", [e.waiting_mean for e in t.engines])
    add("Engine: KV cache used, mean (%):", [_percent(e.kv_mean_share) for e in t.engines])
    add("Engine: KV cache used, peak (%):", [_percent(e.kv_peak_share) for e in t.engines])
    add("Engine: preemptions:", [e.preemptions for e in t.engines], "d")
    queried, hits = t.total("prefix_queried_tokens"), t.total("prefix_hit_tokens")
    if queried and hits is not None:
        add("Engine: prefix cache hits (%):", [_percent(hits / queried)])
    drafted, accepted = t.total("drafted_tokens"), t.total("accepted_tokens")
    if drafted and accepted is not None:
        add("Engine: draft tokens accepted (%):", [_percent(accepted / drafted)])
    add("Engine: tokens a step, mean:", [e.accepted_length_mean for e in t.engines], ".2f")
    out.append(("Sampled every (s), cost (of a core):", f"{t.interval_s:g}, {t.cost:.2%}"))
    return out


def _gib(n: int | None) -> float | None:
    return None if n is None else n / GiB


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
