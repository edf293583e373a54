"""NVIDIA's accelerators, by NVML; by nvidia-smi where its Python package is missing or too old for the driver."""

import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dyno.facts.rig import Accelerator
from dyno.probe import sysfs
from dyno.probe.accelerators import nvidia_smi
from dyno.probe.accelerators.base import Found, Meter, Process, Reading, missing, numa_node, pcie, process_name

# Any of these, or there is no driver to ask: importing pynvml takes a tenth of a second. The last two: WSL, Jetson.
DRIVER = ("dev/nvidiactl", "proc/driver/nvidia", "usr/lib/wsl/lib/libnvidia-ml.so.1", "etc/nv_tegra_release")
NO_DRIVER = "an NVIDIA device is on the PCI bus, and no NVIDIA driver is loaded"


class Nvidia:
    def __init__(self, nvml: Any = None, smi: str = "nvidia-smi") -> None:
        self._nvml = nvml
        self._smi = smi

    def look(self, root: Path) -> Found:
        if not _driver(root):
            return Found(unknown=[NO_DRIVER] if _on_the_bus(root) else [])
        with self._open() as nvml:
            if nvml is None:
                return nvidia_smi.look(self._smi, root)
            handles = _handles(nvml)
            driver = _text(_ask(nvml, "nvmlSystemGetDriverVersion"))
            found = [_accelerator(nvml, i, h, driver, root) for i, h in enumerate(handles)]
            return Found(found, _topology(nvml, handles) if len(handles) > 1 else [])

    def memory_used(self, root: Path) -> list[int | None]:
        if not _driver(root):
            return []
        with self._open() as nvml:
            if nvml is None:
                return [a.memory_used_bytes for a in nvidia_smi.look(self._smi, root, topology=False).accelerators]
            return [getattr(_memory(nvml, h), "used", None) for h in _handles(nvml)]

    def processes(self, root: Path) -> list[list[Process]]:
        if not _driver(root):
            return []
        with self._open() as nvml:
            if nvml is None:
                return nvidia_smi.processes(self._smi, root)
            return [_processes(nvml, h, root) for h in _handles(nvml)]

    def meter(self, root: Path) -> Meter | None:
        if not _driver(root):
            return None
        nvml = self._nvml or _package()
        try:
            nvml.nvmlInit()
        except Exception:  # as below
            return nvidia_smi.SmiMeter(self._smi)
        return NvmlMeter(nvml)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """NVML, started; None where it can't be."""
        nvml = self._nvml or _package()
        try:
            nvml.nvmlInit()
        except Exception:  # of many kinds over its versions: no library, no driver, no permission, not installed
            yield None
            return
        try:
            yield nvml
        finally:
            _ask(nvml, "nvmlShutdown")


class NvmlMeter:
    """NVML kept open. A call that fails the first time isn't made again."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = _handles(nvml)
        self._unsupported: set[tuple[Any, ...]] = set()
        self._first = True
        first = self.read(full=True)
        self._first = False
        self.absent = missing(first, nvidia_smi.TOLD)
        self.notes = [self._power_note()] if any("power_w" in r.values for r in first) else []

    def _power_note(self) -> str:
        """nvmlDeviceGetPowerUsage is what nvidia-smi shows as power.draw. What that is changed with the chip."""
        instant = [
            str(i)
            for i, h in enumerate(self._handles)
            if (_ask(self._nvml, "nvmlDeviceGetCudaComputeCapability", h) or (9, 0)) <= (8, 0)
        ]
        if not instant:
            return "power is NVML's average over a second, as nvidia-smi's power.draw"
        return f"power is NVML's, of the moment on {', '.join(instant)}, else averaged over a second"

    def read(self, full: bool) -> list[Reading]:
        return [self._one(i, handle, full) for i, handle in enumerate(self._handles)]

    def _one(self, index: int, handle: Any, full: bool) -> Reading:
        nvml = self._nvml

        def ask(name: str, *args: Any) -> Any:
            if (index, name, *args) in self._unsupported:
                return None
            answer = _ask(nvml, name, handle, *args)
            if answer is None and self._first:
                self._unsupported.add((index, name, *args))
            return answer

        found = {
            "use_percent": getattr(ask("nvmlDeviceGetUtilizationRates"), "gpu", None),
            "memory_used_bytes": getattr(_memory(nvml, handle), "used", None),
            "power_w": _thousandth(ask("nvmlDeviceGetPowerUsage")),
            "energy_j": _thousandth(ask("nvmlDeviceGetTotalEnergyConsumption")) if full else None,
            "clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": ask("nvmlDeviceGetTemperature", 0),  # of the chip
        }
        # Named anew with driver 535; the bits are the same.
        bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return Reading({k: float(v) for k, v in found.items() if v is not None}, nvidia_smi.reasons(bits))

    def close(self) -> None:
        _ask(self._nvml, "nvmlShutdown")


def _thousandth(value: Any) -> float | None:
    return None if value is None else value / 1000


def _package() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _driver(root: Path) -> bool:
    return any(sysfs.there(root / path) for path in DRIVER)


def _on_the_bus(root: Path) -> bool:
    """A display or compute device of NVIDIA's."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    return any(
        sysfs.text(d / "vendor") == "0x10de" and (sysfs.text(d / "class") or "").startswith("0x03") for d in devices
    )


def _ask(nvml: Any, name: str, *args: Any) -> Any:
    try:
        return getattr(nvml, name)(*args)
    except Exception:  # NVMLError, and others where package and driver don't fit: then this one fact isn't known
        return None


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value  # old packages give bytes


def _handles(nvml: Any) -> list[Any]:
    return [_ask(nvml, "nvmlDeviceGetHandleByIndex", i) for i in range(_ask(nvml, "nvmlDeviceGetCount") or 0)]


def _memory(nvml: Any, handle: Any) -> Any:
    """The second version leaves out what the driver reserves for itself, as nvidia-smi does."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    second = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return second or _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)


def _accelerator(nvml: Any, index: int, handle: Any, driver: str | None, root: Path) -> Accelerator:
    memory = _memory(nvml, handle)
    bus = _bus(_ask(nvml, "nvmlDeviceGetPciInfo", handle))
    cap, default = (
        _ask(nvml, f"nvmlDeviceGetPowerManagement{which}Limit", handle) for which in ("", "Default")
    )  # milliwatts
    capability = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    mig = _mig(nvml, handle)
    return Accelerator(
        index=index,
        name=_text(_ask(nvml, "nvmlDeviceGetName", handle)) or "NVIDIA device",
        vendor="nvidia",
        memory_bytes=getattr(memory, "total", None),
        memory_used_bytes=getattr(memory, "used", None),
        driver=driver,
        uuid=_text(_ask(nvml, "nvmlDeviceGetUUID", handle)),
        bus=bus,
        power_cap_w=None if cap is None else cap / 1000,
        power_cap_default_w=None if default is None else default / 1000,
        clock_max_mhz=_ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        memory_clock_max_mhz=_ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM),
        partition=mig,
        link=pcie(
            _ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
            _ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
            _ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        ),
        numa_node=numa_node(root, bus),
        # A device without memory of its own (GB10, Jetson) has no figure for it; one in parts may refuse to tell.
        integrated=memory is None and mig is None,
        architecture=f"sm_{capability[0]}{capability[1]}" if capability else None,
    )


def _bus(info: Any) -> str | None:
    """NVML writes eight digits of domain and capitals, the kernel four and small letters."""
    bus = _text(getattr(info, "busId", None))
    return bus.lower()[-12:] if bus else None


def _mig(nvml: Any, handle: Any) -> str | None:
    mode = _ask(nvml, "nvmlDeviceGetMigMode", handle)  # now, and after the next reset
    if not mode or not mode[0]:
        return None
    names: Counter[str] = Counter()
    for i in range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
        if part is not None:
            # NVIDIA H100 80GB HBM3 MIG 1g.10gb
            names[(_text(_ask(nvml, "nvmlDeviceGetName", part)) or "?").rpartition("MIG ")[2]] += 1
    return "MIG " + (", ".join(f"{n}×{name}" for name, n in names.items()) or "without instances")


def _processes(nvml: Any, handle: Any, root: Path) -> list[Process]:
    found = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or []
    return [Process(p.pid, process_name(root, p.pid), p.usedGpuMemory) for p in found]


def _topology(nvml: Any, handles: list[Any]) -> list[list[str]]:
    """As `nvidia-smi topo -m` writes it."""
    links = [_nvlinks(nvml, h) for h in handles]
    buses = [_bus(_ask(nvml, "nvmlDeviceGetPciInfo", h)) for h in handles]

    def between(i: int, j: int) -> str:
        if i == j:
            return "X"
        # Links to a switch lead to every other accelerator that has such.
        lanes = links[i][buses[j] or "-"] or min(links[i]["switch"], links[j]["switch"])
        if lanes:
            return f"NV{lanes}"
        level = _ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", handles[i], handles[j])
        return {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}.get(level, "?")

    return [[between(i, j) for j in range(len(handles))] for i in range(len(handles))]


def _nvlinks(nvml: Any, handle: Any) -> Counter[str]:
    """How many lead to which PCI address, or to a switch."""
    found: Counter[str] = Counter()
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = _ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break  # it has no more
        if state:
            switch = _ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == 2
            remote = "switch" if switch else _bus(_ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
            found[remote or "?"] += 1
    return found
