"""Run by itself, in an interpreter that may have nothing but amdsmi: prints what the library knows, as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path[:] = [p for p in sys.path if p != str(Path(__file__).parent)]  # dyno's modules lie there
sys.path += ["/opt/rocm/share/amd_smi", "/opt/rocm/libexec/amdsmi_cli"]  # where ROCm puts it

try:
    import amdsmi
except Exception:  # not there, or its shared library isn't
    sys.exit(3)


def ask(name: str, *args: Any) -> Any:
    try:
        return getattr(amdsmi, name)(*args)
    except Exception:  # not supported by this part, driver or version: left out
        return None


def of(values: Any, key: str) -> Any:
    return values.get(key) if isinstance(values, dict) else None


def accelerator(handle: Any) -> Any:
    cap = ask("amdsmi_get_power_cap_info", handle)
    kinds = amdsmi.AmdSmiMemoryType
    return {
        "bus": ask("amdsmi_get_gpu_device_bdf", handle),
        "name": of(ask("amdsmi_get_gpu_asic_info", handle), "market_name"),
        "driver": of(ask("amdsmi_get_gpu_driver_info", handle), "driver_version"),
        "memory_bytes": ask("amdsmi_get_gpu_memory_total", handle, kinds.VRAM),
        "memory_used_bytes": ask("amdsmi_get_gpu_memory_usage", handle, kinds.VRAM),
        "power_cap": of(cap, "power_cap"),
        "power_cap_default": of(cap, "default_power_cap"),
        "clock_max_mhz": of(ask("amdsmi_get_clock_info", handle, amdsmi.AmdSmiClkType.GFX), "max_clk"),
        "memory_clock_max_mhz": of(ask("amdsmi_get_clock_info", handle, amdsmi.AmdSmiClkType.MEM), "max_clk"),
        "compute_partition": ask("amdsmi_get_gpu_compute_partition", handle),
        "memory_partition": ask("amdsmi_get_gpu_memory_partition", handle),
    }


def link(a: Any, b: Any) -> str:
    if a is b:
        return "X"
    # The numbers changed meaning between versions; the names of the library's own enumeration didn't.
    names: Any = getattr(amdsmi, "AmdSmiIoLinkType", None) or getattr(amdsmi, "AmdSmiLinkType", None)
    try:
        name: str = names(of(ask("amdsmi_topo_get_link_type", a, b), "type")).name
    except (TypeError, ValueError):
        return "?"
    return "XGMI" if "XGMI" in name else "PCIE" if "PCI" in name else "?"


amdsmi.amdsmi_init()
handles = amdsmi.amdsmi_get_processor_handles()
linked = 2 <= len(handles) <= 16
print(
    json.dumps(
        {
            "accelerators": [accelerator(h) for h in handles],
            "topology": [[link(a, b) for b in handles] for a in handles] if linked else [],
        }
    )
)
