"""AMD's accelerators by the kernel's own files, which AMD's tools read too: they can't crash and need no ROCm.

The display driver (/sys/class/drm) knows each device on the PCI bus. The compute driver (/sys/class/kfd) knows each
partition of one, in the order in which HIP counts them: an MI300X in CPX mode is one of the former and eight of the
latter.
"""

import functools
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec

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

VENDOR = "0x1002"
LINKS = {"2": "PCIE", "11": "XGMI"}  # the kernel's CRAT_IOLINK_TYPE
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s


class Node(msgspec.Struct):
    """A device of HIP: a card, or a partition of one."""

    card: Path | None  # its folder on the PCI bus
    bus: str | None
    folder: Path | None = None  # in KFD's topology
    gpu_id: str = ""
    properties: dict[str, str] = {}
    parts: int = 1  # of the card


class Amd:
    def inventory(self, root: Path) -> Inventory:
        nodes = _nodes(root)
        used = self.memory_used(root)
        devices = [_accelerator(root, i, node, used[i]) for i, node in enumerate(nodes)]
        return Inventory(devices, _topology(nodes))

    def memory_used(self, root: Path) -> list[int | None]:
        nodes = _nodes(root)
        processes = self.processes(root) if any(n.parts > 1 for n in nodes) else []
        used: list[int | None] = []
        for i, node in enumerate(nodes):
            if node.parts > 1:  # the card's figure is that of all its parts
                used.append(sum(p.memory_bytes or 0 for p in processes[i]))
            else:
                used.append(_memory(node, "used"))
        return used

    def processes(self, root: Path) -> list[list[Process]]:
        folders = sysfs.numbered(root / "sys/class/kfd/kfd/proc")
        queues = {
            f: {sysfs.text(q / "gpuid") for q in sysfs.numbered(f / "queues")}
            for f in folders
        }
        processes = []
        for node in _nodes(root):
            its = []
            for folder in folders:
                held = sysfs.number(folder / f"vram_{node.gpu_id}") or 0
                # An integrated one works in the machine's memory, which isn't counted there.
                if held or node.gpu_id in queues[folder]:
                    pid = int(folder.name)
                    its.append(Process(pid, process_name(root, pid), held or None))
            processes.append(its)
        return processes

    def meter(self, root: Path) -> "AmdMeter | None":
        nodes = _nodes(root)
        return AmdMeter(root, nodes) if nodes else None


class AmdMeter:
    """The kernel's files, kept open. Energy and throttling come from the driver's table of metrics.

    Power, energy and use are a card's. A card in parts has them at its first part, so that a sum is right.
    """

    def __init__(self, root: Path, nodes: list[Node]) -> None:
        self._root, self._nodes = root, nodes
        self._integrated = [n.card is not None and _integrated(n.card) for n in nodes]
        self._tables: dict[int, GpuMetrics] = {}
        self._throttle: dict[int, list[str]] = {}  # as last read
        # name → file, and the unit of its number
        self._files: list[dict[str, tuple[sysfs.OpenFile, float]]] = []
        buses: set[str | None] = set()
        for i, node in enumerate(nodes):
            first, card = node.bus not in buses, node.card
            buses.add(node.bus)
            self._files.append(_files(card) if card and first else {})
            table = sysfs.OpenFile.open(card / "gpu_metrics") if card and first else None
            if table:
                self._tables[i] = GpuMetrics(table)
        readings = self.read(full=True)
        self.absent = self._absent(readings)
        self.notes = self._notes(readings)

    def _absent(self, readings: list[AcceleratorReading]) -> list[str]:
        """Return what these cards don't show."""
        whole = {str(i): r for i, r in enumerate(readings) if self._nodes[i].parts == 1}
        absent = missing(list(whole.values()), but="energy_j")
        uncounted = [i for i, r in whole.items() if "energy_j" not in r.values]
        if uncounted:
            absent.append(f"accelerator {', '.join(uncounted)}: no known energy counter")
        with_limits = {i for i, table in self._tables.items() if table.has_limits}
        silent = [str(i) for i in range(len(self._nodes)) if i not in with_limits]
        if silent:
            absent.append(
                f"accelerator {', '.join(silent)}: throttling reasons are in an unknown format"
            )
        return absent

    def _notes(self, readings: list[AcceleratorReading]) -> list[str]:
        """Return what the figures of these cards mean."""
        notes = []
        if any("power_w" in r.values for r in readings):
            notes.append("power is the average that the amdgpu driver reports")
        if any(self._integrated):
            notes.append(
                "power of an integrated GPU includes the CPU cores (package power)"
            )
        if any(n.parts > 1 for n in self._nodes):
            notes.append(
                "for a partitioned card, the first partition shows power, energy and utilization of all"
            )
        return notes

    def read(self, full: bool) -> list[AcceleratorReading]:
        parts: list[int | None] = []
        if full and any(n.parts > 1 for n in self._nodes):
            parts = Amd().memory_used(self._root)
        readings = []
        for i, node in enumerate(self._nodes):
            held = parts[i] if parts else None
            readings.append(self._read_device(i, node, held, full))
        return readings

    def _read_device(
        self, index: int, node: Node, held: int | None, full: bool
    ) -> AcceleratorReading:
        numbers = {
            name: (file.number(), unit) for name, (file, unit) in self._files[index].items()
        }
        values = {
            name: number * unit
            for name, (number, unit) in numbers.items()
            if number is not None
        }
        if node.parts > 1:
            values.pop("memory_used_bytes", None)  # the card's is that of all parts
            if held is not None:
                values["memory_used_bytes"] = float(held)
        elif self._integrated[index] and "gtt_used_bytes" in values:
            values["memory_used_bytes"] = (
                values.get("memory_used_bytes", 0.0) + values["gtt_used_bytes"]
            )
        if full and index in self._tables:
            energy_j, self._throttle[index] = self._tables[index].read()
            if energy_j is not None:
                values["energy_j"] = energy_j
        return AcceleratorReading(values, self._throttle.get(index, []))

    def close(self) -> None:
        """The kernel takes the files back when the sampler ends."""


def _files(card: Path) -> dict[str, tuple[sysfs.OpenFile, float]]:
    """Open what the kernel has of these, each with the unit of its number."""
    hwmon = _hwmon(card)
    labels = {
        sysfs.text(hwmon / f"temp{n}_label"): hwmon / f"temp{n}_input" for n in (3, 2, 1)
    }
    wanted: dict[str, tuple[list[Path], float]] = {
        "use_percent": ([card / "gpu_busy_percent"], 1.0),
        "memory_used_bytes": ([card / "mem_info_vram_used"], 1.0),
        "gtt_used_bytes": ([card / "mem_info_gtt_used"], 1.0),
        "power_w": ([hwmon / "power1_average", hwmon / "power1_input"], 1e-6),
        "clock_mhz": ([hwmon / "freq1_input"], 1e-6),
        "memory_clock_mhz": ([hwmon / "freq2_input"], 1e-6),
        # The hottest place where it is known, else the edge.
        "temperature_c": (
            [p for p in (labels.get("junction"), hwmon / "temp1_input") if p],
            1e-3,
        ),
    }
    opened = {}
    for name, (paths, unit) in wanted.items():
        file = _first_opened(paths)
        if file is not None:
            opened[name] = file, unit
    return opened


def _first_opened(paths: list[Path]) -> sysfs.OpenFile | None:
    for path in paths:
        file = sysfs.OpenFile.open(path)
        if file is not None:
            return file
    return None


def _hwmon(card: Path) -> Path:
    return next(iter(sysfs.numbered(card / "hwmon", "hwmon")), card)


class Layout(NamedTuple):
    """Offsets in one revision of the driver's table of metrics."""

    energy: int | None = None
    bits: int | None = None  # limits at work now, 64 bits that mean the same for all chips
    residency: int | None = None  # six counts of cycles: all, and those under each limit


# By format and content revision, where the kernel's kgd_pp_interface.h has the units; others are left out.
LAYOUTS = {
    (1, 3): Layout(bits=112),
    (1, 4): Layout(energy=24),
    (1, 5): Layout(energy=88),
    (1, 6): Layout(energy=16, residency=32),
    (1, 7): Layout(energy=24, residency=40),
    (1, 8): Layout(energy=24, residency=40),
}
ENERGY_J = 2**-16  # 15.259 µJ a count, in the tables for Instinct from 1.4 on
# first, behind the last, in words
BITS = ((0, 16, "power cap"), (16, 32, "current"), (32, 56, "heat"))
LIMITS = (
    "prochot",
    "power cap",
    "heat (socket)",
    "heat (voltage regulator)",
    "heat (memory)",
)
# of those since the reading before: a limit that was at work for less is let pass
CYCLES = 0.1


class GpuMetrics:
    """The driver's binary table (`gpu_metrics`): energy, and what holds clocks down. Little-endian."""

    def __init__(self, file: sysfs.OpenFile) -> None:
        self._file = file
        head = file.bytes(4)
        revision = (head[2], head[3]) if len(head) == 4 else (0, 0)
        self._layout = LAYOUTS.get(revision, Layout())
        self._counts: tuple[int, ...] = ()

    @property
    def has_limits(self) -> bool:
        return self._layout.bits is not None or self._layout.residency is not None

    def read(self) -> tuple[float | None, list[str]]:
        """Return the Joules since the driver was loaded, and what holds clocks down."""
        data, layout = self._file.bytes(), self._layout
        energy = _unpack("<Q", data, layout.energy)
        # not filled in
        joules = (
            energy[0] * ENERGY_J if energy and energy[0] not in (0, 2**64 - 1) else None
        )
        bits = _unpack("<Q", data, layout.bits)
        if bits and bits[0] != 2**64 - 1:
            return joules, [
                word for low, high, word in BITS if bits[0] >> low & (1 << high - low) - 1
            ]
        return joules, self._limits(_unpack("<6I", data, layout.residency))

    def _limits(self, counts: tuple[int, ...]) -> list[str]:
        before, self._counts = self._counts, counts
        if not counts or not before:
            return []
        all_, *under = (
            (now - then) % 2**32 for now, then in zip(counts, before, strict=True)
        )
        return [
            word
            for word, n in zip(LIMITS, under, strict=True)
            if all_ and n > CYCLES * all_
        ]


def _unpack(shape: str, data: bytes, offset: int | None) -> tuple[int, ...]:
    if offset is None or len(data) < offset + struct.calcsize(shape):
        return ()
    return struct.unpack_from(shape, data, offset)


def _nodes(root: Path) -> list[Node]:
    cards = _cards(root)
    nodes = []
    for folder in sysfs.numbered(root / "sys/class/kfd/kfd/topology/nodes"):
        # 0: a CPU; not readable: not for this container
        gpu_id = sysfs.text(folder / "gpu_id")
        if gpu_id and gpu_id != "0":
            nodes.append(_node(folder, gpu_id, cards))
    for node in nodes:
        node.parts = sum(n.bus == node.bus for n in nodes)
    return nodes or [Node(path, bus) for bus, path in cards.items()]


def _node(folder: Path, gpu_id: str, cards: dict[str, Path]) -> Node:
    """Return a device of KFD's topology, with its card where it is known."""
    properties = sysfs.fields(folder / "properties")
    domain, place = (
        sysfs.whole(properties.get(name)) or 0 for name in ("domain", "location_id")
    )
    # The lowest three bits, or the highest four, are the partition's number: on the bus it is function 0.
    bus = f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}"
    for address, card in cards.items():
        if address.startswith(bus):
            return Node(card, address, folder, gpu_id, properties)
    return Node(None, f"{bus}.0", folder, gpu_id, properties)


def _cards(root: Path) -> dict[str, Path]:
    """Return cards by PCI address, in its order."""
    cards = {}
    for card in sysfs.numbered(root / "sys/class/drm", "card"):
        device = card / "device"
        if sysfs.text(device / "vendor") == VENDOR:
            cards[
                sysfs.fields(device / "uevent", "=").get("PCI_SLOT_NAME")
                or device.resolve().name
            ] = device
    return dict(sorted(cards.items()))


def _accelerator(root: Path, index: int, node: Node, used: int | None) -> Accelerator:
    card = node.card or root / "nowhere"
    hwmon = _hwmon(card)
    # microwatts
    cap, default = (
        sysfs.number(hwmon / name) for name in ("power1_cap", "power1_cap_default")
    )
    modes = [
        sysfs.text(card / f"current_{kind}_partition") for kind in ("compute", "memory")
    ]
    version = sysfs.whole(node.properties.get("gfx_target_version"))
    module = root / "sys/module/amdgpu"
    return Accelerator(
        index=index,
        name=_name(root, card) or f"AMD {sysfs.text(card / 'device') or 'device'}",
        vendor="amd",
        memory_bytes=_local_memory(node) if node.parts > 1 else _memory(node, "total"),
        memory_used_bytes=used,
        driver=sysfs.text(module / "version")
        or ("amdgpu of the kernel" if sysfs.exists(module) else None),
        uuid=sysfs.text(card / "unique_id"),
        bus=node.bus,
        power_cap_w=cap / 1e6 if cap else None,
        power_cap_default_w=default / 1e6 if default else None,
        clock_max_mhz=_highest(card / "pp_dpm_sclk"),
        memory_clock_max_mhz=_highest(card / "pp_dpm_mclk"),
        partition="/".join(m for m in modes if m) or None,
        link=_link(card),
        numa_node=numa_node(card),
        integrated=_integrated(card),
        architecture=_architecture(version) if version else None,
        gtt_bytes=sysfs.number(card / "mem_info_gtt_total"),
    )


@functools.cache  # the list of PCI numbers is long, and a card may have eight parts
def _name(root: Path, card: Path) -> str | None:
    """Return the name from the board, or from libdrm's or the PCI list."""
    if board := sysfs.text(card / "product_name"):
        return board
    device = (sysfs.text(card / "device") or "0x").removeprefix("0x").upper()
    revision = (sysfs.text(card / "revision") or "0x").removeprefix("0x").upper()
    return _name_in_libdrm(root, device, revision) or _name_in_pci_list(root, device)


def _name_in_libdrm(root: Path, device: str, revision: str) -> str | None:
    for path in ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids"):
        for line in (sysfs.text(root / path) or "").splitlines():
            cells = [c.strip() for c in line.split(",", 2)]
            if (
                len(cells) == 3
                and cells[0].upper() == device
                and cells[1].upper() == revision
            ):
                return cells[2]
    return None


def _name_in_pci_list(root: Path, device: str) -> str | None:
    for path in ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids"):
        _, _, ours = (sysfs.text(root / path) or "").partition("\n1002 ")
        for line in ours.splitlines()[1:]:
            if not line.startswith("\t"):
                break  # the next vendor
            if line[1:].upper().startswith(f"{device} "):
                return line[1:].split(None, 1)[1]
    return None


def _integrated(card: Path) -> bool:
    try:
        with (card / "gpu_metrics").open("rb") as file:
            revision = file.read(4)[2]
        return revision in (2, 3)  # 1 is that of cards
    except (OSError, IndexError):
        pass
    # The size alone isn't enough: a card may take half of the machine's memory besides its own.
    vram, gtt = (sysfs.number(card / f"mem_info_{kind}_total") for kind in ("vram", "gtt"))
    return vram is not None and gtt is not None and vram <= 4 << 30 and gtt >= 4 * vram


def _memory(node: Node, what: str) -> int | None:
    if node.card is None:
        return None
    vram = sysfs.number(node.card / f"mem_info_vram_{what}")
    gtt = sysfs.number(node.card / f"mem_info_gtt_{what}") if _integrated(node.card) else 0
    return None if vram is None else vram + (gtt or 0)


def _local_memory(node: Node) -> int | None:
    """Return the memory of a partition: the banks of heap types 1 and 2 (frame buffer, visible to the host or not)."""
    if node.folder is None:
        return None
    size = 0
    for folder in sysfs.numbered(node.folder / "mem_banks"):
        bank = sysfs.fields(folder / "properties")
        if bank.get("heap_type") in ("1", "2"):
            size += sysfs.whole(bank.get("size_in_bytes")) or 0
    return size or None


def _architecture(version: int) -> str:
    # 90402: gfx942
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _highest(levels: Path) -> int | None:
    """Return the highest clock of a list with lines as `1: 2100Mhz *`."""
    words = (sysfs.text(levels) or "").split()
    clocks = [w[:-3] for w in words if w.lower().endswith("mhz")]
    return max((int(c) for c in clocks if c.isdecimal()), default=None)


def _link(card: Path) -> str | None:
    """Return the link to the CPU: bridges on the card itself always have full width."""
    device = card.resolve()
    while sysfs.text(device.parent / "vendor") == VENDOR:
        device = device.parent
    speed = (sysfs.text(device / "max_link_speed") or "?").split()[0]
    width, width_max = (
        sysfs.number(device / f"{which}_link_width") for which in ("current", "max")
    )
    return pcie(GENERATIONS.get(speed), width, width_max)


def _topology(nodes: list[Node]) -> list[list[str]]:
    folders = [n.folder for n in nodes if n.folder is not None]
    # 64 partitions make four thousand pairs that all say XGMI
    if not 2 <= len(folders) <= 16:
        return []
    kinds: dict[tuple[str, str], str] = {}
    for folder in folders:
        for link in (
            *sysfs.numbered(folder / "p2p_links"),
            *sysfs.numbered(folder / "io_links"),
        ):
            ends = sysfs.fields(link / "properties")
            pair = ends.get("node_from", ""), ends.get("node_to", "")
            kinds[pair] = LINKS.get(ends.get("type", ""), "?")
    names = [f.name for f in folders]
    return [["X" if a == b else kinds.get((a, b), "-") for b in names] for a in names]
