"""NVIDIA's accelerators by its command-line tool. Fields as `nvidia-smi --help-query-gpu` names them."""

import re
from pathlib import Path

from dyno.facts.rig import Accelerator
from dyno.probe.accelerators.base import Found, Process, numa_node, pcie, process_name
from dyno.probe.child import ask

FIELDS = (
    "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "memory.used", "power.limit",
    "power.default_limit", "clocks.max.sm", "clocks.max.memory", "mig.mode.current", "pcie.link.gen.max",
    "pcie.link.width.current", "pcie.link.width.max", "compute_cap",
)  # fmt: skip
TIMEOUT_S = 15.0  # without the persistence daemon the driver starts anew each time


def look(tool: str, root: Path, topology: bool = True) -> Found:
    rows, failed = _query(tool, "gpu", FIELDS)
    if failed is not None:
        return Found(unknown=[f"an NVIDIA driver is there, NVML can't be used, and nvidia-smi {failed}"])
    found = [_accelerator(i, dict(zip(FIELDS, row, strict=True)), root) for i, row in enumerate(rows)]
    return Found(found, _topology(tool, len(found)) if topology and len(found) > 1 else [])


def processes(tool: str, root: Path) -> list[list[Process]]:
    uuids, _ = _query(tool, "gpu", ("uuid",))
    rows, _ = _query(tool, "compute-apps", ("gpu_uuid", "pid", "used_memory"))
    on: dict[str, list[Process]] = {uuid: [] for (uuid,) in uuids}
    for uuid, pid, used in rows:
        if uuid in on and pid.isdecimal():
            on[uuid].append(Process(int(pid), process_name(root, int(pid)), _mebibytes(used)))
    return list(on.values())


def _query(tool: str, what: str, fields: tuple[str, ...]) -> tuple[list[list[str]], str | None]:
    out, failed, _ = ask(
        [tool, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"], timeout_s=TIMEOUT_S
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in (out or "").splitlines()]
    return [row for row in rows if len(row) == len(fields)], failed


def _accelerator(index: int, row: dict[str, str], root: Path) -> Accelerator:
    bus = row["pci.bus_id"].lower()[-12:]
    cap, default = _number(row["power.limit"]), _number(row["power.default_limit"])
    return Accelerator(
        index=index,
        name=row["name"],
        vendor="nvidia",
        memory_bytes=_mebibytes(row["memory.total"]),
        memory_used_bytes=_mebibytes(row["memory.used"]),
        driver=row["driver_version"],
        uuid=row["uuid"],
        bus=bus,
        power_cap_w=cap,
        power_cap_default_w=default,
        clock_max_mhz=_integer(row["clocks.max.sm"]),
        memory_clock_max_mhz=_integer(row["clocks.max.memory"]),
        partition="MIG" if row["mig.mode.current"] == "Enabled" else None,
        link=pcie(*(_integer(row[f"pcie.link.{k}"]) for k in ("gen.max", "width.current", "width.max"))),
        numa_node=numa_node(root, bus),
        architecture=f"sm_{row['compute_cap'].replace('.', '')}" if _number(row["compute_cap"]) else None,
    )


def _topology(tool: str, count: int) -> list[list[str]]:
    out, _, _ = ask([tool, "topo", "-m"], timeout_s=TIMEOUT_S)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out or "")
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s+\S", line)]
    matrix = [row[1 : count + 1] for row in rows if len(row) > count and not row[1].startswith("GPU")]
    return matrix if len(matrix) == count else []


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:  # [N/A], [Not Supported], [Insufficient Permissions]
        return None


def _integer(cell: str) -> int | None:
    value = _number(cell)
    return None if value is None else int(value)


def _mebibytes(cell: str) -> int | None:
    value = _number(cell)
    return None if value is None else int(value) << 20
