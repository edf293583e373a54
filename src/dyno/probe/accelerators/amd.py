"""AMD's accelerators by the kernel's own files, which can't crash and are there without ROCm.

The display driver (/sys/class/drm) knows each device on the PCI bus. The compute driver (/sys/class/kfd) knows each
partition of one, in the order in which HIP counts them: an MI300X in CPX mode is one of the former and eight of the
latter. AMD's own tools fill what these leave open.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dyno.facts.rig import Accelerator
from dyno.probe import sysfs
from dyno.probe.accelerators import amd_metrics, amd_smi, rocm_smi
from dyno.probe.accelerators.base import Found, Meter, Process, Reading, missing, pcie, process_name

VENDOR = "0x1002"
LINKS = {"2": "PCIE", "11": "XGMI"}  # the kernel's CRAT_IOLINK_TYPE
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s


class Node(msgspec.Struct):
    """What HIP calls a device: a card, or a partition of one."""

    card: Path | None  # its folder on the PCI bus
    bus: str | None
    folder: Path | None = None  # in KFD's topology
    gpu_id: str = ""
    properties: dict[str, str] = {}
    parts: int = 1  # of the card


class Amd:
    def __init__(self, tools: Sequence[amd_smi.Tool] = (amd_smi.look, rocm_smi.look)) -> None:
        self._tools = tools  # the first that answers counts

    def look(self, root: Path) -> Found:
        nodes = _nodes(root)
        if not nodes:
            return Found()
        used = self.memory_used(root)
        found = Found([_accelerator(root, i, n, used[i]) for i, n in enumerate(nodes)], _topology(nodes))
        for tool in self._tools:
            told, failed = tool()
            if failed:
                found.unknown.append(failed)
            if told:
                return _filled(found, told)
        return found

    def memory_used(self, root: Path) -> list[int | None]:
        nodes = _nodes(root)
        processes = self.processes(root) if any(n.parts > 1 for n in nodes) else []
        return [
            # The card's figure is that of all its parts.
            sum(p.memory_bytes or 0 for p in processes[i]) if n.parts > 1 else _memory(n, "used")
            for i, n in enumerate(nodes)
        ]

    def processes(self, root: Path) -> list[list[Process]]:
        folders = sysfs.numbered(root / "sys/class/kfd/kfd/proc")
        queues = {f: {sysfs.text(q / "gpuid") for q in sysfs.numbered(f / "queues")} for f in folders}

        def on(node: Node, folder: Path) -> Iterator[Process]:
            held = sysfs.number(folder / f"vram_{node.gpu_id}") or 0
            # An integrated one works in the machine's memory, which isn't counted there.
            if held or node.gpu_id in queues[folder]:
                yield Process(int(folder.name), process_name(root, int(folder.name)), held or None)

        return [[p for f in folders for p in on(n, f)] for n in _nodes(root)]

    def meter(self, root: Path) -> Meter | None:
        nodes = _nodes(root)
        return AmdMeter(root, nodes) if nodes else None


TOLD = {
    "use_percent": "use",
    "memory_used_bytes": "memory",
    "power_w": "power",
    "clock_mhz": "clocks",
    "temperature_c": "temperature",
}


class AmdMeter:
    """The kernel's files, kept open. Energy and throttling come from the driver's table of metrics, as in AMD's tools.

    Power, energy and use are a card's. Of a card in parts they are told at its first part, so that a sum is right.
    """

    def __init__(self, root: Path, nodes: list[Node]) -> None:
        self._root = root
        self._nodes = nodes
        self._integrated = [n.card is not None and _integrated(n.card) for n in nodes]
        self._tables: dict[int, amd_metrics.Table] = {}
        self._throttle: dict[int, list[str]] = {}  # as last told
        self._files: list[dict[str, tuple[sysfs.Kept, float]]] = []  # name → file, and what its number counts in
        for i, node in enumerate(nodes):
            first = all(node.bus != n.bus for n in nodes[:i])
            self._files.append(_files(node) if first else {})
            table = sysfs.Kept.open(node.card / "gpu_metrics") if node.card and first else None
            if table:
                self._tables[i] = amd_metrics.Table(table)
        readings = self.read(full=True)
        whole = [r for r, n in zip(readings, nodes, strict=True) if n.parts == 1]
        self.absent = missing(whole, TOLD)
        silent = [str(i) for i, r in enumerate(readings) if nodes[i].parts == 1 and "energy_j" not in r.values]
        if silent:
            self.absent.append(f"accelerator {', '.join(silent)}: no energy counter that is known here")
        deaf = [str(i) for i in range(len(nodes)) if i not in self._tables or not self._tables[i].tells_throttling]
        if deaf:
            self.absent.append(f"accelerator {', '.join(deaf)}: reasons of throttling not told in a form known here")
        self.notes = []
        if any("power_w" in r.values for r in readings):
            self.notes.append("power is the amdgpu driver's, averaged by the firmware")
        if any(self._integrated):
            self.notes.append("power of an integrated GPU is the package's, with the processor's cores")
        if any(n.parts > 1 for n in nodes):
            self.notes.append("power, energy and use of a card in parts stand at its first part")

    def read(self, full: bool) -> list[Reading]:
        parts: list[int | None] = []
        if full and any(n.parts > 1 for n in self._nodes):
            parts = Amd(tools=()).memory_used(self._root)
        return [self._one(i, node, parts[i] if parts else None, full) for i, node in enumerate(self._nodes)]

    def _one(self, index: int, node: Node, held: int | None, full: bool) -> Reading:
        read = {name: file.number() for name, (file, _) in self._files[index].items()}
        values = {k: v * self._files[index][k][1] for k, v in read.items() if v is not None}
        if node.parts > 1:
            values.pop("memory_used_bytes", None)  # the card's is that of all parts
            if held is not None:
                values["memory_used_bytes"] = float(held)
        elif self._integrated[index] and "gtt_used_bytes" in values:
            values["memory_used_bytes"] = values.get("memory_used_bytes", 0.0) + values["gtt_used_bytes"]
        if full and index in self._tables:
            energy_j, self._throttle[index] = self._tables[index].read()
            if energy_j is not None:
                values["energy_j"] = energy_j
        return Reading(values, self._throttle.get(index, []))

    def close(self) -> None:
        """The kernel takes the files back when the sampler ends."""


def _files(node: Node) -> dict[str, tuple[sysfs.Kept, float]]:
    card = node.card
    if card is None:
        return {}
    hwmon = next(iter(sysfs.numbered(card / "hwmon", "hwmon")), card)
    labels = {sysfs.text(hwmon / f"temp{n}_label"): hwmon / f"temp{n}_input" for n in (3, 2, 1)}
    wanted: dict[str, tuple[list[Path], float]] = {
        "use_percent": ([card / "gpu_busy_percent"], 1.0),
        "memory_used_bytes": ([card / "mem_info_vram_used"], 1.0),
        "gtt_used_bytes": ([card / "mem_info_gtt_used"], 1.0),
        "power_w": ([hwmon / "power1_average", hwmon / "power1_input"], 1e-6),
        "clock_mhz": ([hwmon / "freq1_input"], 1e-6),
        "memory_clock_mhz": ([hwmon / "freq2_input"], 1e-6),
        # The hottest place where it is told, else the edge.
        "temperature_c": ([p for p in (labels.get("junction"), hwmon / "temp1_input") if p], 1e-3),
    }
    found = {}
    for name, (paths, unit) in wanted.items():
        kept = next((k for p in paths if (k := sysfs.Kept.open(p)) is not None), None)
        if kept is not None:
            found[name] = (kept, unit)
    return found


def _nodes(root: Path) -> list[Node]:
    cards = _cards(root)
    nodes = []
    for folder in sysfs.numbered(root / "sys/class/kfd/kfd/topology/nodes"):
        gpu_id = sysfs.text(folder / "gpu_id")  # 0: a CPU; not readable: not for this container
        if gpu_id and gpu_id != "0":
            properties = sysfs.fields(folder / "properties")
            domain, place = (sysfs.whole(properties.get(name)) or 0 for name in ("domain", "location_id"))
            # The lowest three bits, or the highest four, are the partition's number: on the bus it is function 0.
            bus = f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}"
            card = next((c for c in cards if c.startswith(bus)), None)
            nodes.append(Node(cards.get(card or ""), card or f"{bus}.0", folder, gpu_id, properties))
    for node in nodes:
        node.parts = sum(n.bus == node.bus for n in nodes)
    return nodes or [Node(path, bus) for bus, path in cards.items()]


def _cards(root: Path) -> dict[str, Path]:
    """By PCI address, in its order."""
    found = {}
    for card in sysfs.numbered(root / "sys/class/drm", "card"):
        device = card / "device"
        if sysfs.text(device / "vendor") == VENDOR:
            found[sysfs.fields(device / "uevent", "=").get("PCI_SLOT_NAME") or device.resolve().name] = device
    return dict(sorted(found.items()))


def _accelerator(root: Path, index: int, node: Node, used: int | None) -> Accelerator:
    card = node.card or root / "nowhere"
    hwmon = next(iter(sysfs.numbered(card / "hwmon", "hwmon")), card)
    cap, default = (sysfs.number(hwmon / name) for name in ("power1_cap", "power1_cap_default"))  # microwatts
    modes = [sysfs.text(card / f"current_{kind}_partition") for kind in ("compute", "memory")]
    numa = sysfs.number(card / "numa_node")
    version = sysfs.whole(node.properties.get("gfx_target_version"))
    module = root / "sys/module/amdgpu"
    return Accelerator(
        index=index,
        name=_name(root, card) or f"AMD {sysfs.text(card / 'device') or 'device'}",
        vendor="amd",
        memory_bytes=_local_memory(node) if node.parts > 1 else _memory(node, "total"),
        memory_used_bytes=used,
        driver=sysfs.text(module / "version") or ("amdgpu of the kernel" if sysfs.there(module) else None),
        uuid=sysfs.text(card / "unique_id"),
        bus=node.bus,
        power_cap_w=cap / 1e6 if cap else None,
        power_cap_default_w=default / 1e6 if default else None,
        clock_max_mhz=_highest(card / "pp_dpm_sclk"),
        memory_clock_max_mhz=_highest(card / "pp_dpm_mclk"),
        partition="/".join(m for m in modes if m) or None,
        link=_link(card),
        numa_node=None if numa is None or numa < 0 else numa,
        integrated=_integrated(card),
        architecture=_architecture(version) if version else None,
        gtt_bytes=sysfs.number(card / "mem_info_gtt_total"),
    )


@functools.cache  # the list of PCI numbers is long, and a card may have eight parts
def _name(root: Path, card: Path) -> str | None:
    """As the board says, or as libdrm's or the PCI list knows its number."""
    told = sysfs.text(card / "product_name")
    if told:
        return told
    device = (sysfs.text(card / "device") or "0x").removeprefix("0x").upper()
    revision = (sysfs.text(card / "revision") or "0x").removeprefix("0x").upper()
    for path in ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids"):
        for line in (sysfs.text(root / path) or "").splitlines():
            cells = [c.strip() for c in line.split(",", 2)]
            if len(cells) == 3 and cells[0].upper() == device and cells[1].upper() == revision:
                return cells[2]
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
    # The size alone doesn't tell: a card may take half of the machine's memory besides its own.
    vram, gtt = (sysfs.number(card / f"mem_info_{kind}_total") for kind in ("vram", "gtt"))
    return vram is not None and gtt is not None and vram <= 4 << 30 and gtt >= 4 * vram


def _memory(node: Node, what: str) -> int | None:
    if node.card is None:
        return None
    vram = sysfs.number(node.card / f"mem_info_vram_{what}")
    gtt = sysfs.number(node.card / f"mem_info_gtt_{what}") if _integrated(node.card) else 0
    return None if vram is None else vram + (gtt or 0)


def _local_memory(node: Node) -> int | None:
    """Of a partition: the banks of the heap types 1 and 2 (frame buffer, seen by the host or not)."""
    if node.folder is None:
        return None
    banks = [sysfs.fields(bank / "properties") for bank in sysfs.numbered(node.folder / "mem_banks")]
    return sum(sysfs.whole(b.get("size_in_bytes")) or 0 for b in banks if b.get("heap_type") in ("1", "2")) or None


def _architecture(version: int) -> str:
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"  # 90402: gfx942


def _highest(levels: Path) -> int | None:
    """`1: 2100Mhz *`"""
    words = [word for line in (sysfs.text(levels) or "").splitlines() for word in line.split()]
    clocks = [w[:-3] for w in words if w.lower().endswith("mhz")]
    return max((int(c) for c in clocks if c.isdecimal()), default=None)


def _link(card: Path) -> str | None:
    """Of the way to the processor: bridges on the card itself are always as wide as they can be."""
    device = card.resolve()
    while sysfs.text(device.parent / "vendor") == VENDOR:
        device = device.parent
    speed = (sysfs.text(device / "max_link_speed") or "?").split()[0]
    width, width_max = (sysfs.number(device / f"{which}_link_width") for which in ("current", "max"))
    return pcie(GENERATIONS.get(speed), width, width_max)


def _topology(nodes: list[Node]) -> list[list[str]]:
    folders = [n.folder for n in nodes if n.folder is not None]
    if not 2 <= len(folders) <= 16:  # 64 partitions make four thousand pairs that all say XGMI
        return []
    kinds: dict[tuple[str, str], str] = {}
    for folder in folders:
        for link in (*sysfs.numbered(folder / "p2p_links"), *sysfs.numbered(folder / "io_links")):
            told = sysfs.fields(link / "properties")
            kinds[told.get("node_from", ""), told.get("node_to", "")] = LINKS.get(told.get("type", ""), "?")
    names = [f.name for f in folders]
    return [["X" if a == b else kinds.get((a, b), "-") for b in names] for a in names]


def _filled(found: Found, told: Found) -> Found:
    """What the kernel left open, from a tool. Partitions of one card come in the same order in both."""
    more: dict[tuple[str, int], Accelerator] = {}
    for a in told.accelerators:
        key = (a.bus or "")[:-2]
        more[key, sum(k == key for k, _ in more)] = a
    filled: list[Accelerator] = []
    for a in found.accelerators:
        key = (a.bus or "")[:-2]
        other = more.get((key, sum((f.bus or "")[:-2] == key for f in filled)))
        filled.append(a if other is None else _joined(a, other))
    topology = found.topology
    same = [f.bus for f in found.accelerators] == [t.bus for t in told.accelerators]
    if not topology and same:
        topology = told.topology
    return Found(filled, topology, found.unknown)


def _joined(a: Accelerator, other: Accelerator) -> Accelerator:
    values = msgspec.structs.asdict(other)
    gaps = {k: v for k, v in values.items() if v is not None and getattr(a, k) is None}
    if a.name.startswith("AMD 0x") or a.name == "AMD device":
        gaps["name"] = other.name
    if a.driver == "amdgpu of the kernel" and other.driver:
        gaps["driver"] = other.driver
    return msgspec.structs.replace(a, **gaps)
