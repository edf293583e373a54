"""The rig: the machine and the accelerators under an engine, their peaks, and the shares of them that a load reached.

None or an absent key: not known here.
"""

from typing import Annotated, Literal

import msgspec

from dyno.option import Option


class Accelerator(msgspec.Struct, frozen=True):
    # As the driver counts: NVIDIA in the order of the PCI bus (CUDA_VISIBLE_DEVICES counts the fastest first, unless
    # CUDA_DEVICE_ORDER=PCI_BUS_ID), AMD as HIP does, with each partition counted. Where both are, NVIDIA's come first.
    index: int
    name: str
    vendor: str  # nvidia, amd
    # of an integrated one: its own and what it may take of the machine's
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None  # when it was looked at
    driver: str | None = None
    uuid: str | None = None
    bus: str | None = None  # PCI address
    power_cap_w: float | None = None
    power_cap_default_w: float | None = None
    clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    # compute and memory partition, such as SPX/NPS1; MIG on NVIDIA
    partition: str | None = None
    link: str | None = None  # PCIe generation and width
    numa_node: int | None = None
    integrated: bool = False  # shares the machine's memory
    processes: list[str] = []  # others that use it
    architecture: str | None = None  # sm_90, gfx942
    gtt_bytes: int | None = None  # AMD: the part of the machine's memory that it may use
    engine: bool | None = None  # the engine's own processes are on it; None: unknown


class Rig(msgspec.Struct, frozen=True):
    """The machine on which dyno ran. It is the engine's too where the address is local."""

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
    # of the host, what moves numbers: numa_balancing, governor, …
    state: dict[str, str] = {}
    environment: dict[str, str] = {}  # variables that matter, secrets removed
    container: str | None = None  # dyno itself runs in one
    swap_bytes: int | None = None
    swap_used_bytes: int | None = None
    # of the last 10 s: some process waited for memory
    memory_pressure_percent: float | None = None
    unknown: list[str] = []  # what could not be looked at, in words
    # for the record, never compared: compilers, libc, kernel command line, BIOS, …
    details: dict[str, str] = {}


class HostWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the machine that a study wants. None: any."""

    numa_balancing: Annotated[bool | None, Option(help="automatic NUMA balancing")] = None
    governor: Annotated[
        str | None, Option(help="the processor's frequency governor: performance")
    ] = None
    tuned_profile: Annotated[
        str | None, Option(help="tuned's profile: accelerator-performance")
    ] = None
    iommu: Annotated[
        Literal["passthrough", "off"] | None, Option(help="address translation for devices")
    ] = None
    transparent_huge_pages: Annotated[
        Literal["always", "madvise", "never"] | None,
        Option(help="the kernel's transparent huge pages"),
    ] = None
    huge_pages: Annotated[
        int | None, Option("", None, "reserved huge pages, at least", least=0)
    ] = None
    power_limit_w: Annotated[
        float | None, Option("", None, "power limit of each accelerator", above=0)
    ] = None
    compute_partition: Annotated[
        str | None, Option(help="AMD: SPX (whole accelerators), CPX, …")
    ] = None
    memory_partition: Annotated[str | None, Option(help="AMD: NPS1, NPS4")] = None


class Peaks(msgspec.Struct, frozen=True):
    """Peaks of the used accelerators together, or of the CPU."""

    name: str  # 'NVIDIA H200', 'Neoverse-N1, 2 cores'
    count: int
    bandwidth: float  # bytes/s of its memory
    # dense, by precision: fp32, tf32, bf16, fp16, fp8, int8, fp4 → operations/s
    flops: dict[str, float]
    source: str  # a page, or how it was measured
    measured: bool = False  # here, by a small test; else a maker's figure
    # last level: what fits in there isn't held by the memory's bandwidth
    cache_bytes: int | None = None
    # Measured ones: bytes that are read again and again → bytes/s. What fits a cache is read faster.
    bandwidth_by_size: dict[int, float] = {}


class Share(msgspec.Struct, frozen=True):
    """Share of the peaks that a figure reaches. 0.64: 64 %."""

    what: str  # decode, prefill, whole
    bandwidth: float | None = None
    arithmetic: float | None = None
    # By what can't be otherwise: with experts, as if all requests of a batch took the same ones.
    bandwidth_least: float | None = None
    about: str = ""  # the calculation, with its numbers
    streams: float | None = None  # decode: requests in a step, of one copy


class Roofline(msgspec.Struct, frozen=True):
    peaks: Peaks
    precision: str  # of the arithmetic
    weights_bytes: float  # read for a token, at least
    kv_bytes: float  # for each token of the context
    parameters: float  # active for a token
    shares: list[Share]
