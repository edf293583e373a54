"""What the machine under the client is."""

import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    import psutil

    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def cores() -> int:
    """Those this process may use, which in a container are fewer than the machine has."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = max(1, min(count, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return count


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    if "model name" in fields:
        return fields["model name"]
    if "CPU part" in fields:  # Arm says numbers; these are the ones met in servers and boards
        part = fields["CPU part"].lower()
        names = {"0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2", "0xd4f": "Neoverse V2",
                 "0xd08": "Cortex-A72", "0xd0b": "Cortex-A76"}  # fmt: skip
        return f"Arm {names.get(part, 'part ' + part)}"
    return platform.processor() or platform.machine()
