"""The rig: the machine and the accelerators under an engine. None or an absent key: not known here."""

import msgspec


class Accelerator(msgspec.Struct, frozen=True):
    index: int
    name: str
    vendor: str  # nvidia, amd
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None  # when it was looked at
    driver: str | None = None
    uuid: str | None = None
    bus: str | None = None  # PCI address
    power_cap_w: float | None = None
    power_cap_default_w: float | None = None
    clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    partition: str | None = None  # compute and memory partition, such as SPX/NPS1; MIG on NVIDIA
    link: str | None = None  # PCIe generation and width
    numa_node: int | None = None
    integrated: bool = False  # shares the machine's memory
    processes: list[str] = []  # others that use it


class Rig(msgspec.Struct, frozen=True):
    system: str  # distribution
    kernel: str
    machine: str  # x86_64, aarch64
    cpu: str
    cores: int  # that this process may use
    sockets: int | None = None
    numa_nodes: int | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    python: str = ""  # dyno's own
    load_average_1min: float = 0.0
    accelerators: list[Accelerator] = []
    topology: list[list[str]] = []  # between accelerators: NV18, PIX, XGMI, …
    state: dict[str, str] = {}  # of the host, what moves numbers: numa_balancing, governor, …
    environment: dict[str, str] = {}  # variables that matter, secrets removed
    container: str | None = None  # dyno itself runs in one
