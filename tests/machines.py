"""Machines laid out as the kernel shows them, under a folder of the test's own, and stand-ins for what asks a GPU."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dyno.facts.rig import Accelerator
from dyno.probe.accelerators import Inventory, Process
from dyno.probe.accelerators.amd import Amd

GiB = 1 << 30
AMD = Amd()


def lay(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def executable(path: Path, *code: str) -> str:
    path.write_text("\n".join([f"#!{sys.executable}", *code]) + "\n")
    path.chmod(0o755)
    return str(path)


def card(
    root: Path, number: int, bus: str, files: dict[str, str | bytes], bridges: str = ""
) -> None:
    """A device on the PCI bus, with the way to it as the kernel links it."""
    device = root / "sys/devices/pci0000:00" / bridges / bus
    lay(
        device,
        {"vendor": "0x1002\n", "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={bus}\n", **files},
    )
    entry = root / f"sys/class/drm/card{number}"
    entry.mkdir(parents=True)
    (entry / "device").symlink_to(device)
    # a connector is no card
    lay(root, {f"sys/class/drm/card{number}-DP-1/status": "disconnected"})


def mi300x_in_cpx(root: Path) -> Path:
    """Two MI300X, each as eight devices of 24 GiB; a process on the second part of the second."""
    lay(
        root,
        {
            "sys/module/amdgpu/version": "6.8.5\n",
            "sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0\n",
        },
    )
    for i, bus in enumerate(("0000:05:00.0", "0000:26:00.0")):
        files: dict[str, str | bytes] = {
            "device": "0x74a1\n",
            "product_name": "AMD Instinct MI300X OAM\n",
            "unique_id": f"abc{i}\n",
            "mem_info_vram_total": str(192 * GiB),
            "mem_info_vram_used": str(3 * GiB),
            "mem_info_gtt_total": str(1000 * GiB),
            "mem_info_gtt_used": "0",
            "gpu_metrics": bytes([0x40, 0x01, 1, 5]) + bytes(60),
            "current_compute_partition": "CPX\n",
            "current_memory_partition": "NPS1\n",
            "hwmon/hwmon7/power1_cap": "600000000\n",
            "hwmon/hwmon7/power1_cap_default": "750000000\n",
            "pp_dpm_sclk": "0: 132Mhz *\n1: 2100Mhz\n",
            "pp_dpm_mclk": "0: 900Mhz *\n1: 1300Mhz\n",
            "numa_node": f"{i}\n",
            "max_link_speed": "32.0 GT/s PCIe\n",
            "current_link_width": "16\n",
            "max_link_width": "16\n",
        }
        card(root, 1 + 8 * i, bus, files)
        # The other partitions are cards without a place on the bus.
        lay(
            root,
            {f"sys/class/drm/card{2 + 8 * i}/device/uevent": "DRIVER=amdgpu_xcp_drv\n"},
        )
        for part in range(8):
            node = 1 + 8 * i + part
            place = int(bus[5:7], 16) << 8 | part
            lay(
                root / f"sys/class/kfd/kfd/topology/nodes/{node}",
                {
                    "gpu_id": f"{5000 + node}\n",
                    "properties": f"simd_count 152\nlocation_id {place}\ndomain 0\ngfx_target_version 90402\n",
                    "mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {24 * GiB}\nflags 0\n",
                },
            )
    return lay(
        root,
        {
            "sys/class/kfd/kfd/proc/4321/vram_5010": str(2 * GiB),
            "sys/class/kfd/kfd/proc/4321/vram_5001": "0",
            "proc/4321/comm": "VLLM::Worker\n",
        },
    )


def strix_halo(root: Path) -> Path:
    """An integrated GPU with half a GiB of its own, which works in the machine's memory."""
    card(
        root,
        0,
        "0000:c5:00.0",
        {
            "device": "0x1586\n",
            "revision": "0xc1\n",
            "mem_info_vram_total": str(GiB // 2),
            "mem_info_vram_used": str(GiB // 4),
            "mem_info_gtt_total": str(120 * GiB),
            "mem_info_gtt_used": str(60 * GiB),
            "gpu_metrics": bytes([0x08, 0x01, 3, 0]) + bytes(60),
            "pp_dpm_sclk": "0: 600Mhz *\n1: 1100Mhz\n2: 2900Mhz\n",
            "numa_node": "-1\n",
            "current_link_width": "16\n",
            "max_link_width": "16\n",
            "max_link_speed": "16.0 GT/s PCIe\n",
        },
    )
    return lay(
        root,
        {
            "usr/share/libdrm/amdgpu.ids": "1.0.0\n1586,\tC0,\tAnother\n1586,\tC1,\tAMD Radeon 8060S Graphics\n",
            "sys/module/amdgpu/parameters/gttsize": "-1\n",
            "sys/module/ttm/parameters/pages_limit": "31457280\n",
            "sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0\n",
            "sys/class/kfd/kfd/topology/nodes/1/gpu_id": "777\n",
            "sys/class/kfd/kfd/topology/nodes/1/properties": "location_id 50432\ndomain 0\ngfx_target_version 110501\n",
            "sys/class/kfd/kfd/proc/99/vram_777": "0\n",
            "sys/class/kfd/kfd/proc/99/queues/1/gpuid": "777\n",
            "proc/99/comm": "llama-server\n",
            "sys/firmware/acpi/platform_profile": "balanced\n",
        },
    )


def xeon(root: Path) -> Path:
    """Two sockets, as a server comes from the shop."""
    files: dict[str, str | bytes] = {
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
        "proc/sys/kernel/osrelease": "5.15.0-122-generic\n",
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\nflags\t\t: fpu vme avx512f\n\n"
        "processor\t: 1\nmodel name\t: not read\n",
        "proc/meminfo": "MemTotal:       2113466368 kB\nMemAvailable:   2000000000 kB\nSwapTotal:       8388604 kB\n"
        "SwapFree:        6291452 kB\nHugePages_Total:    1024\nHugepagesize:       2048 kB\n",
        "proc/loadavg": "3.50 2.00 1.00 2/2000 12345\n",
        "proc/pressure/memory": "some avg10=1.25 avg60=0.10 avg300=0.00 total=1\nfull avg10=0.00\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on iommu=pt mitigations=off\n",
        "proc/self/cgroup": "0::/user.slice/session-1.scope\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "sys/fs/cgroup/user.slice/cpu.max": "100000 100000\n",
        "sys/fs/cgroup/user.slice/session-1.scope/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/memory.max": str(64 * GiB),
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
        "sys/devices/system/cpu/smt/control": "on\n",
        "etc/tuned/active_profile": "throughput-performance\n",
        "sys/class/iommu/dmar0/uevent": "",
        "sys/kernel/iommu_groups/0/type": "identity\n",
        "sys/kernel/iommu_groups/1/type": "identity\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/class/powercap/intel-rapl:0/name": "package-0\n",
        "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw": "350000000\n",
        "sys/class/powercap/intel-rapl:0:0/name": "dram\n",
        "sys/class/powercap/intel-rapl:0:0/constraint_0_power_limit_uw": "0\n",
        "sys/bus/pci/devices/0000:1b:00.0/numa_node": "0\n",
        "sys/bus/pci/devices/0000:ab:00.0/numa_node": "1\n",
        "dev/nvidiactl": "",
    }
    for cpu in range(4):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = (
            f"{cpu // 2}\n"
        )
        files[f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_governor"] = (
            "powersave\n"
        )
        files[
            f"sys/devices/system/cpu/cpufreq/policy{cpu}/energy_performance_preference"
        ] = "balance_performance\n"
    for node in range(2):
        files[f"sys/devices/system/node/node{node}/cpulist"] = ""
    return lay(root, files)


def arm_cloud(root: Path) -> Path:
    """A small virtual machine on a Graviton: no frequency governor, no hyperthreads, no word of a hypervisor."""
    return lay(
        root,
        {
            "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "proc/sys/kernel/osrelease": "6.1.0-28-cloud-arm64\n",
            "proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd aes atomics asimddp\n"
            "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nprocessor\t: 1\n",
            "proc/meminfo": "MemTotal:       24592384 kB\nMemAvailable:   20000000 kB\nSwapTotal:       0 kB\n"
            "SwapFree:        0 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n",
            "proc/loadavg": "0.50 0.40 0.30 1/200 1234\n",
            "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            "proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz console=ttyS0\n",
            "proc/self/cgroup": "0::/user.slice\n",
            "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
            "sys/devices/system/node/node0/cpulist": "0-1\n",
        },
    )


def in_a_container(root: Path) -> Path:
    """A pod on an AMD server: most of /sys is hidden, memory and cores are limited by version 1 of control groups."""
    return lay(
        root,
        {
            "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
            "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n"
            "flags\t\t: fpu avx512f avx512_bf16 hypervisor\n\n",
            "proc/meminfo": "MemTotal:       1584791552 kB\nMemAvailable:   900000000 kB\n",
            "proc/loadavg": "20.50 12.40 9.30 9/2000 1234\n",
            "proc/self/cgroup": "12:cpu:/kubepods/burstable/pod1\n",
            ".dockerenv": "",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(16 * GiB),
            "sys/class/dmi/id/sys_vendor": "QEMU\n",
        },
    )


def bare_kernel(root: Path) -> Path:
    """A kernel built without most of what dyno asks for: no /sys, no pressure, no control groups."""
    return lay(
        root,
        {
            "proc/sys/kernel/osrelease": "6.12.9\n",
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD Ryzen 9 7950X\nflags\t\t: fpu avx2\n\n",
            "proc/meminfo": "MemTotal:       65000000 kB\n",
        },
    )


class Nvml:
    """A stand-in for the module pynvml, under its own function names: two H100 on a switch, the second in parts."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_NVLINK_MAX_LINKS, nvmlMemory_v2 = (
        1,
        2,
        18,
        0x02000028,
    )

    class NVMLError(Exception):
        pass

    def __init__(self, **absent: bool) -> None:
        self._absent = absent  # functions that this driver doesn't support
        self.opened = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and object.__getattribute__(self, "_absent").get(name):
            raise Nvml.NVMLError("Not Supported")
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.90.12"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: Any) -> str | bytes:
        return (
            "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
            if isinstance(handle, str)
            else b"NVIDIA H100 80GB HBM3"
        )

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=("00000000:1B:00.0", "00000000:AB:00.0")[handle])

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        return SimpleNamespace(total=80 * GiB, used=(5 if version else 6) * GiB)

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return 450_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: int) -> int:
        return 700_000

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1980, 2: 2619}[kind]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=97, memory=60)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 651_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return 123_456_000

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1755, 2: 2619}[kind]

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return (0x4 | 0x2, 0x1)[handle]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [handle, handle]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> str:
        if index > 1:
            raise Nvml.NVMLError("Not Inventory")
        return f"MIG{index}"

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return (16, 8)[handle]

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [
            SimpleNamespace(pid=77, usedGpuMemory=4 * GiB),
            SimpleNamespace(pid=78, usedGpuMemory=None),
        ][handle:]

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        return 50

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        return int(link < 4)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(
            busId="00000000:AB:00.0" if handle == 0 else "00000000:1B:00.0"
        )


class Listed:
    """A source that was given what to say."""

    def __init__(self, *found: Accelerator, pids: tuple[tuple[int, ...], ...] = ()) -> None:
        self.found = list(found)
        self.pids = pids or ((),) * len(found)

    def inventory(self, root: Path) -> Inventory:
        return Inventory(list(self.found))

    def memory_used(self, root: Path) -> list[int | None]:
        return [a.memory_used_bytes for a in self.found]

    def processes(self, root: Path) -> list[list[Process]]:
        return [[Process(pid, "python3", GiB) for pid in pids] for pids in self.pids]

    def meter(self, root: Path) -> None:
        return None


def gpu(**fields: Any) -> Accelerator:
    return Accelerator(**{"index": 0, "name": "NVIDIA H100", "vendor": "nvidia", **fields})
