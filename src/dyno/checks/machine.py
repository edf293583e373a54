"""Was the machine ready to be measured, how did it run under the load, and are two machines the same?

The rig is that of the machine on which dyno ran: its checks are silent about a server elsewhere.
"""

from collections.abc import Iterator

from dyno.checks.evidence import Circumstances, Evidence
from dyno.facts.finding import Finding, doubt, note
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.telemetry import LIMITS, AcceleratorTelemetry
from dyno.numbers import count, human_bytes, number, percent

FEW = 10  # samples: fewer say nothing about a share
THROTTLED, AT_THE_LIMIT = 0.05, 0.5  # of the samples
GAP_S = 2.0
PRESSURE_PERCENT = 10.0
Difference = tuple[str, object, object]
_SETTINGS = ("power_cap_w", "clock_max_mhz", "memory_clock_max_mhz", "partition", "link")


def accelerator_shared(rig: Rig) -> Iterator[Finding]:
    shared = [a for a in rig.accelerators if a.engine and a.processes]
    if shared:
        yield doubt(
            "rig.accelerator_shared",
            f"Other processes use the engine's accelerators: {_on(shared)}.",
        )
    # One process on each may be the engine itself.
    unclear = [a for a in rig.accelerators if a.engine is None and len(a.processes) > 1]
    if unclear:
        text = f"Several processes use one accelerator; the engine's are unknown: {_on(unclear)}."
        yield note("rig.accelerator_shared", text, "Make sure that nothing else ran on it.")


def _on(accelerators: list[Accelerator]) -> str:
    return "; ".join(f"on {a.index} {', '.join(a.processes)}" for a in accelerators)


def power_capped(rig: Rig) -> Iterator[Finding]:
    capped: dict[str, list[str]] = {}
    for a in _in_use(rig):
        if (
            a.power_cap_w
            and a.power_cap_default_w
            and a.power_cap_w < 0.99 * a.power_cap_default_w
        ):
            capped.setdefault(
                f"{count(a.power_cap_w)} W of {count(a.power_cap_default_w)} W", []
            ).append(str(a.index))
    if capped:
        listed = "; ".join(f"{how} on {', '.join(which)}" for how, which in capped.items())
        yield note(
            "rig.power_capped",
            f"The power cap of accelerators is below its default: {listed}.",
        )


def _in_use(rig: Rig) -> list[Accelerator]:
    """Return those that the engine uses, or may use."""
    return [a for a in rig.accelerators if a.engine is not False]


def _discrete(rig: Rig) -> list[Accelerator]:
    return [a for a in _in_use(rig) if not a.integrated]


def numa_balancing(rig: Rig) -> Iterator[Finding]:
    if rig.state.get("numa_balancing") == "on" and _discrete(rig) and rig.numa_nodes != 1:
        nodes, cards = rig.numa_nodes or "several", len(_discrete(rig))
        text = f"Automatic NUMA balancing is on, with {nodes} NUMA nodes and {cards} accelerators."
        yield note("rig.numa_balancing", text)


def governor(rig: Rig) -> Iterator[Finding]:
    state = rig.state.get("governor")
    if state is not None and not all(map(performs, state.split(", "))):
        yield note("rig.governor", f"The processor's frequency governor is {state}.")


def performs(governor: str) -> bool:
    """Return whether it is `performance`, or the processor's own preference is."""
    return governor.split(" on ")[0] in ("performance", "powersave (performance)")


def iommu(rig: Rig) -> Iterator[Finding]:
    state = rig.state.get("iommu", "")
    cards = [a for a in _discrete(rig) if a.vendor == "amd"]
    if len(cards) > 1 and translates(state):
        yield note(
            "rig.iommu",
            f"The IOMMU translates addresses ({state}) for {len(cards)} AMD accelerators.",
        )


def translates(iommu: str) -> bool:
    return iommu.startswith("on") and (
        "DMA" in iommu or ("identity" not in iommu and "iommu=pt" not in iommu)
    )


def memory_short(rig: Rig) -> Iterator[Finding]:
    pressure = rig.memory_pressure_percent or 0.0
    swapped = rig.swap_used_bytes or 0
    # A little swap is old and idle.
    if pressure < PRESSURE_PERCENT and swapped < max(
        1 << 30, 0.01 * (rig.memory_bytes or 0)
    ):
        return
    free = (
        ""
        if rig.memory_free_bytes is None
        else f" and {human_bytes(rig.memory_free_bytes)} of memory is free"
    )
    text = (
        f"{human_bytes(swapped)} of swap is in use{free}. Processes waited for memory in {percent(pressure / 100)} "
        "of the ten seconds before the load."
    )
    yield Finding(
        "rig.memory_short", "doubt" if pressure >= PRESSURE_PERCENT else "note", text
    )


def _engine_accelerators(e: Circumstances) -> list[AcceleratorTelemetry]:
    """Return those of the engine that were sampled often enough."""
    if not e.telemetry:
        return []
    return [a for a in e.telemetry.accelerators if a.engine and a.samples >= FEW]


def throttled(e: Circumstances) -> Iterator[Finding]:
    held = []
    for a in _engine_accelerators(e):
        reasons = {
            r: share
            for r, share in a.throttled.items()
            if r not in LIMITS and share >= THROTTLED
        }
        if reasons:
            listed = ", ".join(f"{r} in {percent(share)}" for r, share in reasons.items())
            hot = (
                ""
                if a.temperature_max_c is None
                else f", up to {count(a.temperature_max_c)} °C"
            )
            held.append(f"on {a.index} {listed} of the samples{hot}")
    if held:
        yield doubt(
            "telemetry.throttled",
            f"Accelerators reduced their clocks under the load: {'; '.join(held)}.",
        )


def power_limited(e: Circumstances) -> Iterator[Finding]:
    """The power limit reduced clocks. It is a note: accelerators are built to run at their power limit, and a good
    engine gets them there."""
    capped = {}
    for a in _engine_accelerators(e):
        share = max((share for r, share in a.throttled.items() if r in LIMITS), default=0.0)
        if share >= AT_THE_LIMIT:
            mean = (
                "" if a.power_mean_w is None else f", {number(a.power_mean_w)} W on average"
            )
            capped[a.index] = f"{a.index} in {percent(share)} of the samples{mean}"
    if capped:
        text = f"The power limit reduced the clocks of accelerator {'; '.join(capped.values())}."
        yield note("telemetry.power_limited", text)


def energy(e: Evidence) -> Iterator[Finding]:
    odd = []
    for a in _engine_accelerators(e):
        counted, summed = a.energy_j, a.energy_by_power_j
        # Power is an average over the second before: a short load gets an earlier one.
        if (
            counted
            and summed
            and e.summary.duration_s >= 10
            and abs(summed / counted - 1) > 0.05
        ):
            odd.append(f"{a.index} {number(counted)} and {number(summed)} J")
    if odd:
        text = f"Energy by counter and by power over time differ by over 5 %: accelerator {'; '.join(odd)}."
        yield note("telemetry.energy_differs", text)


def sparse(e: Circumstances) -> Iterator[Finding]:
    t = e.telemetry
    if t is not None and t.longest_gap_s > max(GAP_S, 5 * t.interval_s):
        died = next((f" ({why})" for why in t.absent if "sampler" in why), "")
        yield note(
            "telemetry.sparse",
            f"The machine was not sampled for {number(t.longest_gap_s)} s{died}.",
        )


def differences(a: Rig, b: Rig) -> Iterator[Finding]:
    """Yield differences between machines, which may explain a difference between figures."""
    if hardware := _hardware_differences(a, b):
        yield note("rig.hardware_differs", f"The machines differ: {_listed(hardware)}.")
    software = list(_unlike(a, b, ("system", "kernel", "container")))
    software += _unlike_accelerators(a, b, ("driver",))
    software += _unlike_keys(a.state, b.state, {"rocm"})
    if software:
        yield doubt(
            "rig.software_differs", f"System or driver differ: {_listed(software)}."
        )
    settings = list(_unlike_accelerators(a, b, _SETTINGS))
    settings += _unlike_keys(a.state, b.state, {*a.state, *b.state} - {"rocm"})
    if settings:
        yield doubt(
            "rig.settings_differ",
            f"The machines have different settings: {_listed(settings)}.",
        )
    variables = list(
        _unlike_keys(a.environment, b.environment, {*a.environment, *b.environment})
    )
    if variables:
        yield note(
            "rig.environment_differs",
            f"Environment variables differ: {_listed(variables)}.",
        )


def _hardware_differences(a: Rig, b: Rig) -> list[Difference]:
    hardware = list(_unlike(a, b, ("cpu", "sockets", "cores", "numa_nodes")))
    memory_a, memory_b = a.memory_bytes or 0, b.memory_bytes or 0
    if abs(memory_a - memory_b) > 0.02 * memory_a:
        hardware.append(("memory", human_bytes(memory_a), human_bytes(memory_b)))
    if _names(a) != _names(b):
        hardware.append(("accelerators", _names(a) or "none", _names(b) or "none"))
    return hardware


def _unlike_accelerators(a: Rig, b: Rig, fields: tuple[str, ...]) -> Iterator[Difference]:
    """Yield differences between accelerators in the same place that have the same name."""
    for one, other in zip(a.accelerators, b.accelerators, strict=False):
        if one.name == other.name:
            yield from _unlike(one, other, fields)


def _names(rig: Rig) -> str:
    names = [x.name for x in rig.accelerators]
    return ", ".join(f"{names.count(n)}×{n}" for n in dict.fromkeys(names))


def _unlike(
    a: Rig | Accelerator, b: Rig | Accelerator, fields: tuple[str, ...]
) -> Iterator[Difference]:
    for field in fields:
        one, other = getattr(a, field), getattr(b, field)
        if one != other:
            yield (
                field.removesuffix("_w").removesuffix("_mhz").replace("_", " "),
                one,
                other,
            )


def _unlike_keys(
    a: dict[str, str], b: dict[str, str], names: set[str]
) -> Iterator[Difference]:
    for name in sorted(names):
        if a.get(name) != b.get(name):
            yield name, a.get(name), b.get(name)


def _listed(unlike: list[Difference]) -> str:
    """Return each difference once: eight accelerators with another cap are one difference."""
    listed = []
    for name, *values in unlike:
        one, other = ("unknown" if value is None else value for value in values)
        listed.append(f"{name} {one} / {other}")
    return ", ".join(dict.fromkeys(listed))
