"""NVIDIA's accelerators, by NVML."""

import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dyno.facts.rig import Accelerator
from dyno.probe import sysfs
from dyno.probe.accelerators.base import (
    AcceleratorReading,
    Inventory,
    Process,
    missing,
    numa_node,
    pcie,
    process_name,
)

# Any of these, or there is no driver to ask: importing pynvml takes a tenth of a second. The last two: WSL, Jetson.
DRIVER = (
    "dev/nvidiactl",
    "proc/driver/nvidia",
    "usr/lib/wsl/lib/libnvidia-ml.so.1",
    "etc/nv_tegra_release",
)
NO_DRIVER = "the PCI bus has an NVIDIA device, but no NVIDIA driver is loaded"
NO_LIBRARY = (
    "install the driver's libnvidia-ml.so.1; in a container, use NVIDIA's runtime with "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)
# By NVML's numbers. Idle, clocks set by an application or for a display, and voltage limits do not count as throttling.
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
# between two, as `nvidia-smi topo -m` says
LEVELS = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class Device:
    """One accelerator. A question that NVML doesn't answer here has the answer None."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml, self.index = nvml, index
        self.handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)

    def ask(self, name: str, *args: Any) -> Any:
        return _ask(self.nvml, f"nvmlDeviceGet{name}", self.handle, *args)

    @property
    def memory(self) -> Any:
        """The second version leaves out what the driver reserves for itself, as nvidia-smi does."""
        version = getattr(self.nvml, "nvmlMemory_v2", None)
        second = self.ask("MemoryInfo", version) if version else None
        return second or self.ask("MemoryInfo")

    @property
    def bus(self) -> str | None:
        return _bus(self.ask("PciInfo"))


class Nvidia:
    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml

    def inventory(self, root: Path) -> Inventory:
        if not _driver(root):
            return Inventory(unknown=[NO_DRIVER] if _on_the_bus(root) else [])
        with self._open() as (devices, failure):
            accelerators = [_accelerator(device, root) for device in devices]
            topology = _topology(devices) if len(devices) > 1 else []
            return Inventory(accelerators, topology, [failure] if failure else [])

    def memory_used(self, root: Path) -> list[int | None]:
        if not _driver(root):
            return []
        with self._open() as (devices, _):
            return [getattr(device.memory, "used", None) for device in devices]

    def processes(self, root: Path) -> list[list[Process]]:
        if not _driver(root):
            return []
        with self._open() as (devices, _):
            running = [device.ask("ComputeRunningProcesses") or [] for device in devices]
            return [
                [Process(p.pid, process_name(root, p.pid), p.usedGpuMemory) for p in on]
                for on in running
            ]

    def meter(self, root: Path) -> "NvmlMeter | None":
        if not _driver(root):
            return None
        return NvmlMeter(self._open())

    @contextmanager
    def _open(self) -> Iterator[tuple[list[Device], str | None]]:
        """Yield the devices, as long as NVML is open; or why it can't be used, and what to do."""
        nvml = self._nvml or importlib.import_module("pynvml")
        try:
            nvml.nvmlInit()
        except Exception as e:  # of many kinds over its versions: no library, no permission, another driver's
            yield (
                [],
                f"an NVIDIA driver is loaded, but NVML doesn't work ({e}): {NO_LIBRARY}",
            )
            return
        try:
            yield (
                [Device(nvml, i) for i in range(_ask(nvml, "nvmlDeviceGetCount") or 0)],
                None,
            )
        finally:
            _ask(nvml, "nvmlShutdown")


class NvmlMeter:
    """NVML, open while a load runs. A question that fails the first time isn't asked again."""

    def __init__(
        self, opening: AbstractContextManager[tuple[list[Device], str | None]]
    ) -> None:
        self._stack = ExitStack()
        self._devices, failure = self._stack.enter_context(opening)
        self._unsupported: set[tuple[Any, ...]] = set()
        self._first = True
        first = self.read(full=True)
        self._first = False
        self.absent = [f"accelerators: {failure}"] if failure else missing(first)
        self.notes = (
            [self._power_note()] if any("power_w" in r.values for r in first) else []
        )

    def _power_note(self) -> str:
        """nvmlDeviceGetPowerUsage is what nvidia-smi shows as power.draw. What that is changed with the chip."""
        instant = []
        for device in self._devices:
            capability = device.ask("CudaComputeCapability") or (9, 0)
            if capability <= (8, 0):
                instant.append(str(device.index))
        if not instant:
            return "power is NVML's one-second average, as in nvidia-smi's power.draw"
        return f"power is NVML's: instantaneous on {', '.join(instant)}, a one-second average elsewhere"

    def read(self, full: bool) -> list[AcceleratorReading]:
        return [self._read_device(device, full) for device in self._devices]

    def _read_device(self, device: Device, full: bool) -> AcceleratorReading:
        def ask(name: str, *args: Any) -> Any:
            if (device.index, name, *args) in self._unsupported:
                return None
            answer = device.ask(name, *args)
            if answer is None and self._first:
                self._unsupported.add((device.index, name, *args))
            return answer

        values = {
            "use_percent": getattr(ask("UtilizationRates"), "gpu", None),
            "memory_used_bytes": getattr(device.memory, "used", None),
            "power_w": _thousandth(ask("PowerUsage")),
            "energy_j": _thousandth(ask("TotalEnergyConsumption")) if full else None,
            "clock_mhz": ask("ClockInfo", device.nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ask("ClockInfo", device.nvml.NVML_CLOCK_MEM),
            "temperature_c": ask("Temperature", 0),  # of the chip
        }
        bits = ask("CurrentClocksEventReasons")
        if bits is None:  # named anew with driver 535; the bits are the same
            bits = ask("CurrentClocksThrottleReasons") or 0
        return AcceleratorReading(
            {name: float(value) for name, value in values.items() if value is not None},
            [word for bit, word in REASONS.items() if bits & bit],
        )

    def close(self) -> None:
        self._stack.close()


def _thousandth(value: Any) -> float | None:
    return None if value is None else value / 1000


def _driver(root: Path) -> bool:
    return any(sysfs.exists(root / path) for path in DRIVER)


def _on_the_bus(root: Path) -> bool:
    """Return whether a display or compute device of NVIDIA's is there."""
    for device in sysfs.entries(root / "sys/bus/pci/devices"):
        kind = sysfs.text(device / "class") or ""
        if kind.startswith("0x03") and sysfs.text(device / "vendor") == "0x10de":
            return True
    return False


def _ask(nvml: Any, name: str, *args: Any) -> Any:
    try:
        return getattr(nvml, name)(*args)
    except Exception:  # NVMLError, and others where package and driver don't fit: then this one fact isn't known
        return None


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value  # old packages give bytes


def _bus(info: Any) -> str | None:
    """Return the kernel's spelling. NVML writes eight digits of domain and capitals, the kernel four and small
    letters."""
    bus = _text(getattr(info, "busId", None))
    return bus.lower()[-12:] if bus else None


def _accelerator(device: Device, root: Path) -> Accelerator:
    ask, clocks = device.ask, (device.nvml.NVML_CLOCK_SM, device.nvml.NVML_CLOCK_MEM)
    memory, bus, mig = device.memory, device.bus, _mig(device)
    capability = ask("CudaComputeCapability")
    return Accelerator(
        index=device.index,
        name=_text(ask("Name")) or "NVIDIA device",
        vendor="nvidia",
        memory_bytes=getattr(memory, "total", None),
        memory_used_bytes=getattr(memory, "used", None),
        driver=_text(_ask(device.nvml, "nvmlSystemGetDriverVersion")),
        uuid=_text(ask("UUID")),
        bus=bus,
        power_cap_w=_thousandth(ask("PowerManagementLimit")),
        power_cap_default_w=_thousandth(ask("PowerManagementDefaultLimit")),
        clock_max_mhz=ask("MaxClockInfo", clocks[0]),
        memory_clock_max_mhz=ask("MaxClockInfo", clocks[1]),
        partition=mig,
        link=pcie(
            *(
                ask(name)
                for name in (
                    "MaxPcieLinkGeneration",
                    "CurrPcieLinkWidth",
                    "MaxPcieLinkWidth",
                )
            )
        ),
        numa_node=numa_node(root / "sys/bus/pci/devices" / bus) if bus else None,
        # A device without memory of its own (GB10, Jetson) has no figure for it; one in parts may refuse it.
        integrated=memory is None and mig is None,
        architecture=f"sm_{capability[0]}{capability[1]}" if capability else None,
    )


def _mig(device: Device) -> str | None:
    mode = device.ask("MigMode")  # now, and after the next reset
    if not mode or not mode[0]:
        return None
    names: Counter[str] = Counter()
    for i in range(device.ask("MaxMigDeviceCount") or 0):
        part = device.ask("MigDeviceHandleByIndex", i)
        if part is not None:
            # NVIDIA H100 80GB HBM3 MIG 1g.10gb
            name = _text(_ask(device.nvml, "nvmlDeviceGetName", part)) or "?"
            names[name.rpartition("MIG ")[2]] += 1
    parts = ", ".join(f"{n}×{name}" for name, n in names.items())
    return f"MIG {parts or 'without instances'}"


def _topology(devices: list[Device]) -> list[list[str]]:
    """Return the links as `nvidia-smi topo -m` writes them."""
    links = [_nvlinks(device) for device in devices]

    def between(i: int, j: int) -> str:
        if i == j:
            return "X"
        lanes = links[i][devices[j].bus or "-"]
        if not lanes:  # links to a switch lead to every other accelerator that has such
            lanes = min(links[i]["switch"], links[j]["switch"])
        if lanes:
            return f"NV{lanes}"
        return LEVELS.get(devices[i].ask("TopologyCommonAncestor", devices[j].handle), "?")

    return [[between(i, j) for j in range(len(devices))] for i in range(len(devices))]


def _nvlinks(device: Device) -> Counter[str]:
    """Return how many lead to which PCI address, or to a switch."""
    links: Counter[str] = Counter()
    for link in range(getattr(device.nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = device.ask("NvLinkState", link)
        if state is None:
            break  # it has no more
        if state:
            switch = device.ask("NvLinkRemoteDeviceType", link) == 2
            remote = "switch" if switch else _bus(device.ask("NvLinkRemotePciInfo", link))
            links[remote or "?"] += 1
    return links
