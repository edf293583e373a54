"""The host's own counters: processors, memory, network, and the processors' energy where it may be read."""

import os
from pathlib import Path

from dyno.clock import now_ns
from dyno.probe import sysfs
from dyno.units import seconds


class HostMeter:
    def __init__(self, root: Path) -> None:
        self.absent: list[str] = []
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._stat, self._memory, self._network = (
            sysfs.OpenFile.open(root / f"proc/{name}") for name in ("stat", "meminfo", "net/dev")
        )
        for file, what in ((self._stat, "CPU"), (self._memory, "memory"), (self._network, "network")):
            if file is None:
                self.absent.append(f"host: {what} can't be read here")
        self._packages = _packages(root, self.absent)
        self._before: tuple[int, float] | None = None  # when, and CPU seconds then

    def read(self) -> dict[str, float]:
        values: dict[str, float] = {}
        if self._stat:
            now, busy_s = now_ns(), self._busy_s(self._stat.bytes(512))
            values["cpu_busy_s"] = busy_s
            if self._before and now > self._before[0]:
                values["cpu_busy_cores"] = round((busy_s - self._before[1]) / seconds(now - self._before[0]), 3)
            self._before = now, busy_s
        if self._memory:
            values |= _memory_used(self._memory.bytes(512))
        if self._network:
            values |= _traffic(self._network.bytes())
        if self._packages:
            values["package_energy_j"] = sum(p.energy_j() for p in self._packages)
        return values

    def _busy_s(self, stat: bytes) -> float:
        """`cpu  user nice system idle iowait irq softirq …`, in ticks."""
        words = stat.split(b"\n", 1)[0].split()[1:8]
        user, nice, system, _, _, irq, softirq = (int(w) for w in words)
        return round((user + nice + system + irq + softirq) * self._tick_s, 3)


def _memory_used(meminfo: bytes) -> dict[str, float]:
    told = {line.split(b":")[0]: line.split()[1] for line in meminfo.split(b"\n")[:3] if b":" in line}
    total, free = told.get(b"MemTotal"), told.get(b"MemAvailable")
    return {} if total is None or free is None else {"memory_used_bytes": (int(total) - int(free)) * 1024.0}


def _traffic(table: bytes) -> dict[str, float]:
    """`eth0: bytes packets …` received in the first eight columns, sent in the next."""
    received = sent = loopback = 0
    for line in table.split(b"\n")[2:]:
        name, colon, numbers = line.partition(b":")
        if colon:
            words = numbers.split()
            if name.strip() == b"lo":
                loopback += int(words[0])
            else:
                received += int(words[0])
                sent += int(words[8])
    return {
        "network_received_bytes": float(received),
        "network_sent_bytes": float(sent),
        "loopback_bytes": float(loopback),
    }


class _Package:
    """A processor's energy by RAPL, whose counter goes round after minutes to hours."""

    def __init__(self, file: sysfs.OpenFile, range_uj: int) -> None:
        self._file = file
        self._range = range_uj
        self._last = file.number() or 0
        self._total = 0

    def energy_j(self) -> float:
        now = self._file.number()
        if now is not None:
            self._total += now - self._last if now >= self._last else now - self._last + self._range
            self._last = now
        return self._total / 1e6


def _packages(root: Path, absent: list[str]) -> list[_Package]:
    zones = sysfs.numbered(root / "sys/class/powercap", "intel-rapl:")  # AMD's processors too are found there
    zones = [z for z in zones if (sysfs.text(z / "name") or "").startswith("package")]
    found = []
    for zone in zones:
        file = sysfs.OpenFile.open(zone / "energy_uj")
        if file is not None and file.number() is not None:
            found.append(_Package(file, sysfs.number(zone / "max_energy_range_uj") or 0))
    if not zones:
        absent.append("host: energy of the processors is not told (no RAPL)")
    elif len(found) < len(zones):
        absent.append("host: energy of the processors may be read by root only (RAPL)")
    return found if len(found) == len(zones) else []
