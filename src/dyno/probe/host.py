"""The client's machine: hardware and settings. Inside a container, as seen from there."""

import os
import platform
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from dyno.probe import sysfs

ROOT = Path("/")
# Arm's kernel gives numbers; these are the ones met in servers and boards.
ARM = {
    "0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2", "0xd4f": "Neoverse V2",
    "0xd08": "Cortex-A72", "0xd0b": "Cortex-A76",
}  # fmt: skip


def system(root: Path = ROOT) -> str:
    return (
        sysfs.fields(root / "etc/os-release", "=")
        .get("PRETTY_NAME", platform.system())
        .strip("\"'")
    )


def kernel(root: Path = ROOT) -> str:
    return sysfs.text(root / "proc/sys/kernel/osrelease") or platform.release()


def load_average_1min(root: Path = ROOT) -> float:
    match = re.match(r"[0-9.]+", sysfs.text(root / "proc/loadavg") or "")
    return float(match[0]) if match else os.getloadavg()[0]


def busy_s() -> float | None:
    """Return the CPU seconds that this machine has been busy so far. None where only a part of it is visible."""
    import psutil

    # a share of a larger machine: its other cores don't disturb us
    if cores() != os.cpu_count():
        return None
    times = psutil.cpu_times()
    return float(
        sum(
            getattr(times, name, 0.0)
            for name in ("user", "system", "nice", "irq", "softirq")
        )
    )


def busy_cores(seconds: float) -> float | None:
    """Return how many cores other processes use, by a look of so long. None where only a part of them is visible."""
    before, began = busy_s(), time.monotonic()
    own = time.process_time()
    time.sleep(seconds)
    after = busy_s()
    if before is None or after is None:
        return None
    others_s = after - before - (time.process_time() - own)
    return max(others_s, 0.0) / (time.monotonic() - began)


def cores(root: Path = ROOT) -> int:
    """Return the cores that this process may use, which in a container are fewer than the machine has."""
    count = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    quota = _quota_cores(root)
    return count if quota is None else max(1, min(count, round(quota)))


def cpu(root: Path = ROOT) -> str:
    first = _first_cpu(root)
    if "model name" in first:
        return first["model name"]
    if "CPU part" in first:
        part = first["CPU part"].lower()
        return f"Arm {ARM.get(part, 'part ' + part)}"
    if root == ROOT and platform.system() == "Darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip():
            return asked.stdout.strip()  # Apple M2 Max
    return platform.processor() or platform.machine()


def features(root: Path = ROOT) -> frozenset[str]:
    """Return the instruction sets of the processor, by the kernel's names."""
    first = _first_cpu(root)
    return frozenset((first.get("Features") or first.get("flags") or "").split())


def _first_cpu(root: Path) -> dict[str, str]:
    """Read the first core alone: the kernel looks up every core's clock to write the whole."""
    values = {}
    try:
        with (root / "proc/cpuinfo").open(errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                values[name.strip()] = value.strip()
    except OSError:
        pass
    return values


def sockets(root: Path = ROOT) -> int | None:
    cpus = sysfs.numbered(root / "sys/devices/system/cpu", "cpu")
    packages = {sysfs.number(c / "topology/physical_package_id") for c in cpus} - {None, -1}
    return len(packages) or None


def numa_nodes(root: Path = ROOT) -> int | None:
    return len(sysfs.numbered(root / "sys/devices/system/node", "node")) or None


def memory(root: Path = ROOT) -> dict[str, int | None]:
    """Return the Rig's fields of these names: the machine's, whatever a container may use of it."""
    lines = sysfs.fields(root / "proc/meminfo", ":")
    names = {
        "memory_bytes": "MemTotal",
        "memory_free_bytes": "MemAvailable",
        "swap_bytes": "SwapTotal",
    }
    sizes = {ours: _kibibytes(lines.get(theirs)) for ours, theirs in names.items()}
    free, total = _kibibytes(lines.get("SwapFree")), sizes["swap_bytes"]
    sizes["swap_used_bytes"] = None if free is None or total is None else total - free
    if not lines and root == ROOT:  # no Linux
        import psutil

        sizes["memory_bytes"] = psutil.virtual_memory().total
    return sizes


def _kibibytes(text: str | None) -> int | None:
    count = sysfs.whole((text or "").removesuffix("kB").strip())  # 526848 kB
    return None if count is None else count * 1024


def memory_pressure_percent(root: Path = ROOT) -> float | None:
    match = re.search(
        r"some avg10=([0-9.]+)", sysfs.text(root / "proc/pressure/memory") or ""
    )
    return float(match[1]) if match else None


def container(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the kind of container, by the marks it leaves."""
    cgroup = sysfs.text(root / "proc/self/cgroup") or ""
    if "KUBERNETES_SERVICE_HOST" in environ or "kubepods" in cgroup:
        return "kubernetes"
    if sysfs.exists(root / "run/.containerenv"):
        return "podman"
    if sysfs.exists(root / ".dockerenv"):
        return "docker"
    if environ.get("container"):  # set by systemd-nspawn, LXC and others
        return environ["container"]
    return next(
        (name for name in ("docker", "libpod", "containerd", "lxc") if name in cgroup), None
    )


# ---- how it is set ----


def _numa_balancing(root: Path) -> str | None:
    value = sysfs.number(root / "proc/sys/kernel/numa_balancing")
    if value is None:
        return None
    if value & 1:
        return "on"
    return "tiering" if value else "off"


def _governor(root: Path) -> str | None:
    """Return `performance`; with the preference where the processor chooses by itself: `powersave
    (balance_performance)`."""
    policies = sysfs.numbered(root / "sys/devices/system/cpu/cpufreq", "policy")
    names: Counter[str] = Counter()
    for policy in policies:
        governor = sysfs.text(policy / "scaling_governor")
        preference = sysfs.text(policy / "energy_performance_preference")
        if governor:
            names[
                f"{governor} ({preference})"
                if preference and governor != "performance"
                else governor
            ] += 1
    if len(names) < 2:
        return next(iter(names), None)
    return ", ".join(f"{name} on {n}" for name, n in names.most_common())


def _smt(root: Path) -> str | None:
    control = sysfs.text(root / "sys/devices/system/cpu/smt/control")
    return (
        control
        if control in ("on", "off", "forceoff", "notsupported", "notimplemented")
        else None
    )


def _boost(root: Path) -> str | None:
    cpus = root / "sys/devices/system/cpu"
    no_turbo, boost = (
        sysfs.number(cpus / "intel_pstate/no_turbo"),
        sysfs.number(cpus / "cpufreq/boost"),
    )
    if no_turbo is not None:
        return "off" if no_turbo else "on"
    if boost is None:
        return None
    return "on" if boost else "off"


def _iommu(root: Path) -> str | None:
    """Return the modes of its groups: `identity` passes through, `DMA` and `DMA-FQ` translate."""
    try:
        units = list((root / "sys/class/iommu").iterdir())
    except OSError:
        return None
    asked = [
        w
        for w in _command_line(root)
        if re.match(r"(amd_iommu|intel_iommu|iommu|iommu\.\w+)=", w)
    ]
    state = "off"
    if units:
        types = (
            sysfs.text(group / "type")
            for group in sysfs.numbered(root / "sys/kernel/iommu_groups")
        )
        kinds = sorted({kind for kind in types if kind})
        state = f"on ({', '.join(kinds)})" if kinds else "on"
    return " ".join([state, *asked])


def _command_line(root: Path) -> list[str]:
    return (sysfs.text(root / "proc/cmdline") or "").split()


def _gtt(root: Path) -> str | None:
    """Return how much of the machine's memory AMD's driver may use."""
    # MiB; -1: by the driver
    size = sysfs.number(root / "sys/module/amdgpu/parameters/gttsize")
    if size is None:
        return None
    pages = sysfs.number(root / "sys/module/ttm/parameters/pages_limit")
    limit = "" if pages is None else f", ttm.pages_limit {_size(pages * 4096)}"
    return f"gttsize {'by the driver' if size < 0 else _size(size << 20)}{limit}"


def _transparent_huge_pages(root: Path) -> str | None:
    match = re.search(
        r"\[(\w+)\]", sysfs.text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    )
    return match[1] if match else None


def _huge_pages(root: Path) -> str | None:
    lines = sysfs.fields(root / "proc/meminfo", ":")
    count, size = lines.get("HugePages_Total"), _kibibytes(lines.get("Hugepagesize"))
    if count is None or size is None:
        return None
    return "none" if count == "0" else f"{count} of {_size(size)}"


def _power_limits(root: Path) -> str | None:
    """Return the limits of the processors, by RAPL."""
    zones = sysfs.numbered(root / "sys/class/powercap", "intel-rapl:")
    limits = {zone: sysfs.number(zone / "constraint_0_power_limit_uw") for zone in zones}
    words = [
        f"{sysfs.text(zone / 'name') or zone.name} {uw / 1e6:g} W"
        for zone, uw in limits.items()
        if uw
    ]
    return ", ".join(words) or None


def _cgroups(root: Path) -> list[Path]:
    """Return this process's own group and those above it: each may hold it back."""
    lines = (sysfs.text(root / "proc/self/cgroup") or "").splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    own = Path(path.lstrip("/"))
    return [root / "sys/fs/cgroup" / p for p in (own, *own.parents)]


def _quota_cores(root: Path) -> float | None:
    """Return the share of the processors that this process may use, in cores. None: all."""
    quotas = []
    for group in _cgroups(root):
        line = re.match(r"(\d+) (\d+)", sysfs.text(group / "cpu.max") or "")
        if line:
            quotas.append(int(line[1]) / int(line[2]))
    old = root / "sys/fs/cgroup/cpu"  # version 1
    quota, period = (
        sysfs.number(old / "cpu.cfs_quota_us"),
        sysfs.number(old / "cpu.cfs_period_us"),
    )
    if quota and period and quota > 0:
        quotas.append(quota / period)
    return min(quotas, default=None)


def _cpu_quota(root: Path) -> str | None:
    quota = _quota_cores(root)
    if quota is None:
        return "none" if sysfs.exists(root / "sys/fs/cgroup") else None
    return f"{quota:g} cores"


def _memory_limit(root: Path) -> str | None:
    if not sysfs.exists(root / "sys/fs/cgroup"):
        return None
    limits = [sysfs.number(g / "memory.max") for g in _cgroups(root)]
    # version 1; huge: none
    limits.append(sysfs.number(root / "sys/fs/cgroup/memory/memory.limit_in_bytes"))
    limit = min((n for n in limits if n is not None and n < 1 << 60), default=None)
    return "none" if limit is None else _size(limit)


def _mitigations(root: Path) -> str | None:
    words = _command_line(root)
    if not words:
        return None
    asked = [w.partition("=")[2] for w in words if w.startswith("mitigations=")]
    return asked[-1] if asked else "default"


def _virtual_machine(root: Path) -> str | None:
    flags = _first_cpu(root).get("flags")
    if flags is None:
        return None  # Arm doesn't say
    if "hypervisor" not in flags.split():
        return "no"
    words = [
        sysfs.text(root / f"sys/class/dmi/id/{name}")
        for name in ("sys_vendor", "product_name")
    ]
    return " ".join(w for w in words if w) or "yes"


def _file(path: str) -> Callable[[Path], str | None]:
    return lambda root: sysfs.text(root / path)


STATE: dict[str, Callable[[Path], str | None]] = {
    "numa_balancing": _numa_balancing,
    "governor": _governor,
    "boost": _boost,
    "smt": _smt,
    "tuned_profile": _file("etc/tuned/active_profile"),
    "platform_profile": _file("sys/firmware/acpi/platform_profile"),
    "power_limits": _power_limits,
    "iommu": _iommu,
    "gtt": _gtt,
    "transparent_huge_pages": _transparent_huge_pages,
    "huge_pages": _huge_pages,
    "cpu_quota": _cpu_quota,
    "memory_limit": _memory_limit,
    "mitigations": _mitigations,
    "virtual_machine": _virtual_machine,
    "rocm": _file("opt/rocm/.info/version"),
}


def state(root: Path = ROOT) -> dict[str, str]:
    """Return the state of the machine. Unknown values are left out."""
    return {
        name: value for name, look in STATE.items() if (value := look(root)) is not None
    }


def _size(n_bytes: float) -> str:
    """Return a size as it is stored, in the form of all earlier runs: another one would read as another machine."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n_bytes) < 1024:
            return f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"
