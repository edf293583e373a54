"""NVIDIA's accelerators by its command-line tool. Fields as `nvidia-smi --help-query-gpu` names them."""

import os
import re
import select
import subprocess
from contextlib import suppress
from pathlib import Path

from dyno.facts.rig import Accelerator
from dyno.probe.accelerators.base import Found, Process, Reading, missing, numa_node, pcie, process_name
from dyno.probe.child import ask

FIELDS = (
    "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "memory.used", "power.limit",
    "power.default_limit", "clocks.max.sm", "clocks.max.memory", "mig.mode.current", "pcie.link.gen.max",
    "pcie.link.width.current", "pcie.link.width.max", "compute_cap",
)  # fmt: skip
TIMEOUT_S = 15.0  # without the persistence daemon the driver starts anew each time

SAMPLED = (
    "utilization.gpu", "memory.used", "power.draw", "clocks.sm", "clocks.mem", "temperature.gpu",
    "clocks_throttle_reasons.active",
)  # fmt: skip
FIRST_S = 5.0  # it takes a moment to start
EVERY_MS = 1000  # it starts no process for each reading, and still costs more than NVML
TOLD = {
    "use_percent": "use",
    "memory_used_bytes": "memory",
    "power_w": "power",
    "energy_j": "energy counter",
    "clock_mhz": "clocks",
    "temperature_c": "temperature",
}
# By NVML's numbers. Idle, clocks set by an application or for a display, and limits of voltage are no throttling.
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


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


def reasons(bits: int) -> list[str]:
    return [word for bit, word in REASONS.items() if bits & bit]


class SmiMeter:
    """One nvidia-smi that goes on telling. It ends with this process: its next line finds no reader."""

    def __init__(self, tool: str) -> None:
        self.absent: list[str] = []
        self.notes = ["accelerators are sampled by nvidia-smi, once a second, since NVML can't be used"]
        self._readings: dict[int, Reading] = {}
        self._count = 0
        self._rest = b""
        asked = f"--query-gpu=index,{','.join(SAMPLED)}"
        try:
            self._child: subprocess.Popen[bytes] | None = subprocess.Popen(
                [tool, asked, "--format=csv,noheader,nounits", f"-lms={EVERY_MS}"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as e:
            self._child = None
            self.absent.append(f"accelerators: NVML can't be used, and nvidia-smi can't be run ({e.strerror})")
            return
        assert self._child.stdout
        self._out = self._child.stdout.fileno()
        wait_s = FIRST_S
        while select.select([self._out], [], [], wait_s)[0] and (data := os.read(self._out, 65536)):
            self._take(data)
            wait_s = 0.2  # a row for each accelerator, perhaps in pieces
        os.set_blocking(self._out, False)
        self._count = max(self._readings, default=-1) + 1
        self.absent += missing([r for _, r in sorted(self._readings.items())], TOLD)
        if not self._readings:
            self.absent.append("accelerators: NVML can't be used, and nvidia-smi tells nothing")

    def read(self, full: bool) -> list[Reading]:
        """What it has told since; empty where there is nothing new."""
        self._readings.clear()
        if self._child is not None:
            with suppress(BlockingIOError):
                self._take(os.read(self._out, 65536))
        return [self._readings.get(i, Reading({}, [])) for i in range(self._count)]

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            cells = [cell.strip() for cell in line.decode("utf-8", "replace").split(",")]
            if len(cells) == len(SAMPLED) + 1 and cells[0].isdecimal():
                self._readings[int(cells[0])] = _reading(cells[1:])

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            assert self._child.stdout
            self._child.stdout.close()


def _reading(cells: list[str]) -> Reading:
    use, memory, power, clock, memory_clock, temperature = (_number(cell) for cell in cells[:6])
    found = {
        "use_percent": use,
        "memory_used_bytes": None if memory is None else memory * 2**20,
        "power_w": power,
        "clock_mhz": clock,
        "memory_clock_mhz": memory_clock,
        "temperature_c": temperature,
    }
    bits = int(cells[6], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", cells[6]) else 0
    return Reading({k: v for k, v in found.items() if v is not None}, reasons(bits))


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
