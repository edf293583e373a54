"""Was the machine fit to be measured, and are two machines the same?

The rig is that of the machine on which dyno ran: its checks are silent about a server elsewhere.
"""

from collections.abc import Callable, Iterator

from dyno.checks.evidence import Circumstances
from dyno.facts.finding import Finding, worst_first
from dyno.facts.rig import Accelerator, Rig
from dyno.http import Url
from dyno.units import human_bytes

PRESSURE_PERCENT = 10.0


def _accelerator_shared(rig: Rig) -> Iterator[Finding]:
    shared = [a for a in rig.accelerators if a.engine and a.processes]
    if shared:
        yield Finding(
            "rig.accelerator_shared",
            "doubt",
            f"Other processes use accelerators that the engine uses: {_on(shared)}.",
            "They take compute, bandwidth and memory from the engine. Stop them, or use accelerators that are free.",
        )
    # One process on each may be the engine itself.
    unclear = [a for a in rig.accelerators if a.engine is None and len(a.processes) > 1]
    if unclear:
        yield Finding(
            "rig.accelerator_shared",
            "note",
            f"Several processes use one accelerator, and dyno can't tell which are the engine's: {_on(unclear)}.",
            "Make sure that nothing else ran there.",
        )


def _on(accelerators: list[Accelerator]) -> str:
    return "; ".join(f"on {a.index} {', '.join(a.processes)}" for a in accelerators)


def _power_capped(rig: Rig) -> Iterator[Finding]:
    capped: dict[str, list[str]] = {}
    for a in _in_use(rig):
        if a.power_cap_w and a.power_cap_default_w and a.power_cap_w < 0.99 * a.power_cap_default_w:
            capped.setdefault(f"{a.power_cap_w:g} W of {a.power_cap_default_w:g} W", []).append(str(a.index))
    if capped:
        listed = "; ".join(f"{how} on {', '.join(which)}" for how, which in capped.items())
        yield Finding(
            "rig.power_capped",
            "note",
            f"The power of accelerators is capped below its default: {listed}.",
            "Say so with the figures, or set the default again.",
        )


def _in_use(rig: Rig) -> list[Accelerator]:
    """All where it isn't known."""
    return [a for a in rig.accelerators if a.engine is not False]


def _discrete(rig: Rig) -> list[Accelerator]:
    return [a for a in _in_use(rig) if not a.integrated]


def _numa_balancing(rig: Rig) -> Iterator[Finding]:
    if rig.state.get("numa_balancing") == "on" and _discrete(rig) and rig.numa_nodes != 1:
        yield Finding(
            "rig.numa_balancing",
            "note",
            f"Automatic NUMA balancing is on, with {rig.numa_nodes or 'several'} NUMA nodes and {len(_discrete(rig))} "
            "accelerators: the kernel moves pages while they are in use, which slows and scatters the figures.",
            "AMD and others advise `sysctl kernel.numa_balancing=0` for measurements.",
        )


def _governor(rig: Rig) -> Iterator[Finding]:
    told = rig.state.get("governor")
    if told is not None and not all(
        part.split(" on ")[0] in ("performance", "powersave (performance)") for part in told.split(", ")
    ):
        yield Finding(
            "rig.governor",
            "note",
            f"The processor's frequency governor is {told}: clocks drop between an engine's steps, and its work on the "
            "processor takes longer.",
            "Set `cpupower frequency-set -g performance`, or say so with the figures.",
        )


def _iommu(rig: Rig) -> Iterator[Finding]:
    told = rig.state.get("iommu", "")
    cards = [a for a in _discrete(rig) if a.vendor == "amd"]
    translating = told.startswith("on") and ("DMA" in told or ("identity" not in told and "iommu=pt" not in told))
    if len(cards) > 1 and translating:
        yield Finding(
            "rig.iommu",
            "note",
            f"The IOMMU translates addresses ({told}) with {len(cards)} AMD accelerators, which can slow transfers "
            "between them.",
            "AMD advises iommu=pt on the kernel's command line.",
        )


def _memory_short(rig: Rig) -> Iterator[Finding]:
    pressure = rig.memory_pressure_percent or 0.0
    swapped = rig.swap_used_bytes or 0
    # A little swap is old and idle.
    if pressure < PRESSURE_PERCENT and swapped < max(1 << 30, 0.01 * (rig.memory_bytes or 0)):
        return
    free = "" if rig.memory_free_bytes is None else f", {human_bytes(rig.memory_free_bytes)} of memory are free"
    yield Finding(
        "rig.memory_short",
        "doubt" if pressure >= PRESSURE_PERCENT else "note",
        f"{human_bytes(swapped)} of swap are in use{free}, and processes waited for memory in {pressure:.0f} % of the "
        "ten seconds before the load.",
        "What is swapped out comes back slowly. Stop what isn't needed, or use a smaller model or cache.",
    )


RigCheck = Callable[[Rig], Iterator[Finding]]
_OF_A_RIG: tuple[RigCheck, ...] = (
    _accelerator_shared, _power_capped, _numa_balancing, _governor, _iommu, _memory_short,
)  # fmt: skip


def examine(rig: Rig) -> list[Finding]:
    """Of a machine by itself, without a run."""
    return worst_first(finding for check in _OF_A_RIG for finding in check(rig))


def _where_the_engine_is(check: RigCheck) -> Callable[[Circumstances], Iterator[Finding]]:
    def of_a_run(e: Circumstances) -> Iterator[Finding]:
        at = e.trial.target.base_url
        if e.rig is not None and (not at or Url(at).local):  # in its own process it has no address, and is here
            yield from check(e.rig)

    return of_a_run


accelerator_shared, power_capped, numa_balancing, governor, iommu, memory_short = map(_where_the_engine_is, _OF_A_RIG)


# ---- two rigs ----

Difference = tuple[str, object, object]
_SETTINGS = ("power_cap_w", "clock_max_mhz", "memory_clock_max_mhz", "partition", "link")


def differences(a: Rig, b: Rig) -> Iterator[Finding]:
    """What may lie behind a difference of figures besides what is meant to be compared."""
    hardware = list(_unlike(a, b, ("cpu", "sockets", "cores", "numa_nodes")))
    if abs((a.memory_bytes or 0) - (b.memory_bytes or 0)) > 0.02 * (a.memory_bytes or 0):
        hardware.append(("memory", human_bytes(a.memory_bytes or 0), human_bytes(b.memory_bytes or 0)))
    if _names(a) != _names(b):
        hardware.append(("accelerators", _names(a) or "none", _names(b) or "none"))
    if hardware:
        yield Finding(
            "rig.hardware_differs",
            "note",
            f"The machines differ: {_listed(hardware)}.",
            "Then the figures compare machines, whatever else was changed.",
        )
    alike = [(x, y) for x, y in zip(a.accelerators, b.accelerators, strict=False) if x.name == y.name]
    software = list(_unlike(a, b, ("system", "kernel", "container")))
    software += [d for x, y in alike for d in _unlike(x, y, ("driver",))]
    software += _unlike_keys(a.state, b.state, {"rocm"})
    if software:
        yield Finding(
            "rig.software_differs",
            "doubt",
            f"System or driver differ: {_listed(software)}.",
            "Either may move the figures. Measure both on the same one.",
        )
    settings = [d for x, y in alike for d in _unlike(x, y, _SETTINGS)]
    settings += _unlike_keys(a.state, b.state, (set(a.state) | set(b.state)) - {"rocm"})
    if settings:
        yield Finding(
            "rig.settings_differ",
            "doubt",
            f"The machines are set differently: {_listed(settings)}.",
            "Set both alike, or the comparison is of these settings too.",
        )
    names = set(a.environment) | set(b.environment)
    variables = list(_unlike_keys(a.environment, b.environment, names))
    if variables:
        yield Finding(
            "rig.environment_differs",
            "note",
            f"Environment variables differ: {_listed(variables)}.",
            "If that isn't what you compare, set them alike.",
        )


def _names(rig: Rig) -> str:
    names = [x.name for x in rig.accelerators]
    return ", ".join(f"{names.count(n)}×{n}" for n in dict.fromkeys(names))


def _unlike(a: Rig | Accelerator, b: Rig | Accelerator, fields: tuple[str, ...]) -> Iterator[Difference]:
    for field in fields:
        one, other = getattr(a, field), getattr(b, field)
        if one != other:
            yield field.removesuffix("_w").removesuffix("_mhz").replace("_", " "), one, other


def _unlike_keys(a: dict[str, str], b: dict[str, str], names: set[str]) -> Iterator[Difference]:
    for name in sorted(names):
        if a.get(name) != b.get(name):
            yield name, a.get(name), b.get(name)


def _listed(found: list[Difference]) -> str:
    """Each once: eight accelerators with another cap are one difference."""
    return ", ".join(
        dict.fromkeys(
            f"{what} {'unknown' if one is None else one} / {'unknown' if other is None else other}"
            for what, one, other in found
        )
    )
