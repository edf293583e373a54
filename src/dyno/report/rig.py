"""A rig as text: what is known in columns, what isn't by name."""

from dyno.facts.rig import Accelerator, Rig
from dyno.report.table import terminal, text_table
from dyno.units import human_bytes

UNKNOWN = "unknown"


def lines(rig: Rig, state_names: list[str]) -> list[str]:
    """`state_names`: all that might be known of the host's state."""
    out = _pairs(
        {
            "system": rig.system,
            "kernel": f"{rig.kernel} ({rig.machine})",
            "cpu": rig.cpu,
            "cores": _cores(rig),
            "memory": _of(rig.memory_free_bytes, rig.memory_bytes, "free of"),
            "swap": "none" if rig.swap_bytes == 0 else _of(rig.swap_used_bytes, rig.swap_bytes, "used of"),
            "container": rig.container or "none seen",
            "python": rig.python,
            "load average": f"{rig.load_average_1min:g}",
        }
    )
    out += ["", "Accelerators", *(_accelerators(rig) or ["  none found"])]
    out += [f"  not known: {why}" for why in rig.unknown]
    if rig.topology:
        names = [str(i) for i in range(len(rig.topology))]
        rows = [[name, *row] for name, row in zip(names, rig.topology, strict=True)]
        out += ["", "Links between them", *_columns([["", *names], *rows])]
    out += ["", "State", *_pairs({k.replace("_", " "): v for k, v in rig.state.items()}, "  ")]
    missing = [name.replace("_", " ") for name in state_names if name not in rig.state]
    if missing:
        out.append(f"  {UNKNOWN} or absent: {', '.join(missing)}")
    if rig.environment:
        out += ["", "Environment", *(f"  {k}={v}" for k, v in rig.environment.items())]
    return out


def _cores(rig: Rig) -> str:
    def count(n: int | None, what: str) -> str:
        return f"{UNKNOWN} {what}s" if n is None else f"{n} {what}{'' if n == 1 else 's'}"

    return f"{rig.cores} usable, {count(rig.sockets, 'socket')}, {count(rig.numa_nodes, 'NUMA node')}"


def _of(part: int | None, whole: int | None, words: str) -> str:
    if whole is None:
        return UNKNOWN
    return f"{UNKNOWN if part is None else human_bytes(part)} {words} {human_bytes(whole)}"


def _accelerators(rig: Rig) -> list[str]:
    titles = ["#", "name", "arch", "memory used", "driver", "power cap", "max MHz", "partition", "link", "NUMA"]
    rows: list[list[str]] = []
    for a in rig.accelerators:
        row = _accelerator(a)
        if rows and rows[-1][1:] == row[1:]:  # of eight alike, one line
            rows[-1][0] = f"{rows[-1][0].split('-')[0]}-{a.index}"
        else:
            rows.append(row)
    busy = [f"  on {a.index}: {', '.join(a.processes)}" for a in rig.accelerators if a.processes]
    out = _columns([titles, *rows]) + busy if rows else []
    nvidia = {a.name for a in rig.accelerators if a.vendor == "nvidia"}
    if len(nvidia) > 1 and rig.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        out.append("  Numbers are in the order of the PCI bus. CUDA_VISIBLE_DEVICES counts the fastest first, unless")
        out.append("  CUDA_DEVICE_ORDER=PCI_BUS_ID is set.")
    return out


def _accelerator(a: Accelerator) -> list[str]:
    clocks = [str(n) if n else UNKNOWN for n in (a.clock_max_mhz, a.memory_clock_max_mhz)]
    return [
        str(a.index),
        a.name + (" (integrated)" if a.integrated else ""),
        a.architecture or UNKNOWN,
        _of(a.memory_used_bytes, a.memory_bytes, "of"),
        a.driver or UNKNOWN,
        _power(a),
        UNKNOWN if clocks == [UNKNOWN, UNKNOWN] else "/".join(clocks),
        a.partition or "-",
        a.link or UNKNOWN,
        UNKNOWN if a.numa_node is None else str(a.numa_node),
    ]


def _power(a: Accelerator) -> str:
    if a.power_cap_w is None:
        return UNKNOWN
    default = a.power_cap_default_w
    if default is None:
        return f"{a.power_cap_w:g} W (default {UNKNOWN})"
    return f"{a.power_cap_w:g} W" + (f" of {default:g} W" if default != a.power_cap_w else "")


def _pairs(values: dict[str, str], indent: str = "") -> list[str]:
    width = max((len(k) for k in values), default=0)
    return [f"{indent}{k:<{width}}  {v}" for k, v in values.items()]


def _columns(rows: list[list[str]]) -> list[str]:
    return ["  " + line for line in terminal(text_table(rows[0], rows[1:]))]
