"""The machine as text: the rig, telemetry under a load, and the roofline."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dyno.facts.rig import Accelerator, Peaks, Rig, Roofline
from dyno.facts.telemetry import AcceleratorTelemetry, TelemetrySummary
from dyno.numbers import UNKNOWN, count, human_bytes, number, percent
from dyno.report.table import terminal, text_table
from dyno.screen import HARD, wrapped


def rig_lines(rig: Rig, state_names: list[str]) -> list[str]:
    """Describe a machine: known facts in columns, unknown ones by name. `state_names`: all facts of a host's state."""
    out = _pairs(
        {
            "system": rig.system,
            "kernel": f"{rig.kernel} ({rig.machine})",
            "cpu": rig.cpu,
            "cores": _cores(rig),
            "memory": _share(rig.memory_free_bytes, rig.memory_bytes, "free of"),
            "swap": "none"
            if rig.swap_bytes == 0
            else _share(rig.swap_used_bytes, rig.swap_bytes, "used of"),
            "container": rig.container or "none seen",
            "python": rig.python,
            "load average": f"{rig.load_average_1min:g}",
        }
    )
    out += ["", "Accelerators", *(_accelerators(rig) or ["  none found"])]
    out += [
        line for why in rig.unknown for line in wrapped(f"unknown: {why}", "  ", "    ")
    ]
    if rig.topology:
        names = [str(i) for i in range(len(rig.topology))]
        rows = [[name, *row] for name, row in zip(names, rig.topology, strict=True)]
        out += ["", "Links between them", *_columns([["", *names], *rows])]
    state = {name.replace("_", " "): value for name, value in rig.state.items()}
    out += ["", "State", *_pairs(state, "  ")]
    missing = [name.replace("_", " ") for name in state_names if name not in rig.state]
    if missing:
        out += wrapped(f"unknown or absent: {', '.join(missing)}", "  ", "    ")
    out += _details(rig)
    if rig.environment:
        out += ["", "Environment", *(f"  {k}={v}" for k, v in rig.environment.items())]
    return out


def _details(rig: Rig) -> list[str]:
    pairs = (f"{name.replace('_', ' ')}: {value}" for name, value in rig.details.items())
    lines = [line for pair in pairs for line in wrapped(pair, "  ", "    ")]
    return ["", "Details", *lines] if lines else []


def _cores(rig: Rig) -> str:
    def counted(n: int | None, what: str) -> str:
        if n is None:
            return f"unknown {what}s"
        return f"{n} {what}" if n == 1 else f"{n} {what}s"

    return f"{rig.cores} usable, {counted(rig.sockets, 'socket')}, {counted(rig.numa_nodes, 'NUMA node')}"


def _share(part: int | None, whole: int | None, words: str) -> str:
    if whole is None:
        return "unknown"
    known = "unknown" if part is None else human_bytes(part)
    return f"{known} {words} {human_bytes(whole)}"


def _accelerators(rig: Rig) -> list[str]:
    if not rig.accelerators:
        return []
    titles = [
        "#",
        "name",
        "arch",
        "memory used",
        "driver",
        "power cap",
        "max MHz",
        "partition",
        "link",
        "NUMA",
    ]
    rows: list[list[str]] = []
    for a in rig.accelerators:
        row = _accelerator(a)
        if rows and rows[-1][1:] == row[1:]:  # of eight alike, one line
            rows[-1][0] = f"{rows[-1][0].split('-')[0]}-{a.index}"
        else:
            rows.append(row)
    out = _columns([titles, *rows])
    out += [
        f"  on {a.index}: {', '.join(a.processes)}" for a in rig.accelerators if a.processes
    ]
    nvidia = {a.name for a in rig.accelerators if a.vendor == "nvidia"}
    if len(nvidia) > 1 and rig.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        order = "Numbers follow the PCI bus. CUDA_VISIBLE_DEVICES counts the fastest first, unless "
        out += wrapped(f"{order}CUDA_DEVICE_ORDER=PCI_BUS_ID is set.", "  ")
    return out


def _accelerator(a: Accelerator) -> list[str]:
    clocks = [str(n) if n else "unknown" for n in (a.clock_max_mhz, a.memory_clock_max_mhz)]
    return [
        str(a.index),
        a.name + (" (integrated)" if a.integrated else ""),
        a.architecture or "unknown",
        _share(a.memory_used_bytes, a.memory_bytes, "of"),
        a.driver or "unknown",
        _power(a),
        "unknown" if clocks == ["unknown", "unknown"] else "/".join(clocks),
        a.partition or UNKNOWN,
        a.link or "unknown",
        "unknown" if a.numa_node is None else str(a.numa_node),
    ]


def _power(a: Accelerator) -> str:
    if a.power_cap_w is None:
        return "unknown"
    cap, default = f"{count(a.power_cap_w)} W", a.power_cap_default_w
    if default is None:
        return f"{cap} (default unknown)"
    return cap if default == a.power_cap_w else f"{cap} of {count(default)} W"


def _pairs(values: dict[str, str], indent: str = "") -> list[str]:
    width = max((len(k) for k in values), default=0)
    hanging = " " * (len(indent) + width + 2)
    return [
        line
        for k, v in values.items()
        for line in wrapped(v, f"{indent}{k:<{width}}  ", hanging)
    ]


def _columns(rows: list[list[str]]) -> list[str]:
    return terminal(text_table(rows[0], rows[1:]), indent="  ")


class _Measured(NamedTuple):
    """A figure of each accelerator, engine or the host."""

    label: str
    values: Sequence[float | None]
    show: Callable[[float], str]


def telemetry_pairs(t: TelemetrySummary) -> list[tuple[str, str]]:
    """Return label and value of each. An unknown one has no line."""
    its = [a for a in t.accelerators if a.engine is not False]
    out = [("Accelerators:", ", ".join(str(a.index) for a in its))] if its else []
    for label, values, show in (
        *_accelerator_figures(t, its),
        *_host_figures(t),
        *_engine_figures(t),
    ):
        if any(v is not None for v in values):
            out.append(
                (label, " / ".join(UNKNOWN if v is None else show(v) for v in values))
            )
    return [
        *out,
        (
            "Sampling: interval, CPU (of one core):",
            f"{count(t.interval_s)} s, {percent(t.cost)}",
        ),
    ]


def _accelerator_figures(
    t: TelemetrySummary, its: Sequence[AcceleratorTelemetry]
) -> list[_Measured]:
    return [
        _Measured(
            "  Utilization, mean:",
            [a.use_mean_percent for a in its],
            lambda v: percent(v / 100),
        ),
        _Measured(
            "  Memory after loading (GiB):", [a.memory_after_load_bytes for a in its], _gib
        ),
        _Measured("  Memory, peak (GiB):", [a.memory_peak_bytes for a in its], _gib),
        _Measured("  Power, mean (W):", [a.power_mean_w for a in its], number),
        _Measured("  Power, peak (W):", [a.power_peak_w for a in its], number),
        _Measured("  Clock, mean (MHz):", [a.clock_mean_mhz for a in its], number),
        _Measured("  Temperature, peak (°C):", [a.temperature_max_c for a in its], count),
        _Measured("Energy (J):", [t.energy_j], number),
        _Measured("Energy per output token (J):", [t.energy_per_output_token_j], number),
    ]


def _host_figures(t: TelemetrySummary) -> list[_Measured]:
    if t.host is None:
        return []
    return [
        _Measured("Host: CPU busy, mean (cores):", [t.host.cpu_mean_cores], number),
        _Measured("Host: memory, peak (GiB):", [t.host.memory_peak_bytes], _gib),
        _Measured("Host: processor energy (J):", [t.host.package_energy_j], number),
    ]


def _engine_figures(t: TelemetrySummary) -> list[_Measured]:
    prefix_hits = t.ratio("prefix_hit_tokens", "prefix_queried_tokens")
    return [
        _Measured("Engine: memory after loading (GiB):", [t.engine_resident_bytes], _gib),
        _Measured("Engine: running, mean:", [e.running_mean for e in t.engines], number),
        _Measured("Engine: waiting, mean:", [e.waiting_mean for e in t.engines], number),
        _Measured(
            "Engine: KV cache used, mean:", [e.kv_mean_share for e in t.engines], percent
        ),
        _Measured(
            "Engine: KV cache used, peak:", [e.kv_peak_share for e in t.engines], percent
        ),
        _Measured("Engine: preemptions:", [e.preemptions for e in t.engines], count),
        _Measured("Engine: prefix cache hits:", [prefix_hits], percent),
        _Measured("Engine: draft tokens accepted:", [t.acceptance], percent),
        _Measured(
            "Engine: tokens per step, mean:",
            [e.accepted_length_mean for e in t.engines],
            number,
        ),
    ]


def _gib(n_bytes: float) -> str:
    return number(n_bytes / (1 << 30))


def roofline_pairs(r: Roofline) -> list[tuple[str, str]]:
    """Return label and value of each. An unknown one has no line."""
    out = []
    for share in r.shares:
        for what, value in (
            ("Memory bandwidth", share.bandwidth),
            ("Arithmetic", share.arithmetic),
        ):
            if value is not None:
                out.append((f"{what} used ({share.what}):", percent(value)))
    if out:
        out.append(("  Peaks:", _short(r.peaks, r.precision)))
    return out


def _counted(peaks: Peaks) -> str:
    return f"{peaks.count} × {peaks.name}" if peaks.count > 1 else peaks.name


def _short(peaks: Peaks, precision: str) -> str:
    flops = f"{number(peaks.flops[precision] / 1e12)} T/s in {precision}"
    return f"{_counted(peaks)}: {number(peaks.bandwidth / 1e9)} GB/s, {flops}"


def peak_lines(peaks: Peaks, indent: str = "") -> list[str]:
    """Return all that is known of them, for the doctor."""
    if peaks.bandwidth_by_size:
        sizes = [
            f"{human_bytes(n)} {number(rate / 1e9)}"
            for n, rate in peaks.bandwidth_by_size.items()
        ]
        bandwidth = f"bandwidth (GB/s) by working-set size: {', '.join(s.replace(' ', HARD) for s in sizes)}"
    else:
        cache = (
            f", last-level cache {human_bytes(peaks.cache_bytes)}"
            if peaks.cache_bytes
            else ""
        )
        bandwidth = f"bandwidth {number(peaks.bandwidth / 1e9)} GB/s{cache}"
    flops = [
        f"{precision}{HARD}{number(rate / 1e12)}" for precision, rate in peaks.flops.items()
    ]
    facts = (bandwidth, f"arithmetic (T operations/s): {', '.join(flops)}", peaks.source)
    below = indent + "  "
    lines = [indent + _counted(peaks)]
    for fact in facts:
        lines += wrapped(fact, below, below + "  ")
    return lines
