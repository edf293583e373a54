"""AMD's accelerators by its Python library, in a child process: it is known to crash on some parts."""

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dyno.facts.rig import Accelerator
from dyno.probe.accelerators.base import Found
from dyno.probe.child import ask, last_json

Tool = Callable[[], tuple[Found | None, str | None]]  # what it told; why it told nothing, if that is worth a word

SCRIPT = Path(__file__).with_name("amd_smi_child.py")
TIMEOUT_S = 15.0
NO_LIBRARY = 3  # the script's exit code where it can't be imported


def look(script: Path = SCRIPT, pythons: Sequence[str] | None = None) -> tuple[Found | None, str | None]:
    for python in pythons or _pythons():
        out, failed, code = ask([python, str(script)], TIMEOUT_S)
        if code == NO_LIBRARY:
            continue  # another interpreter may have it
        told = last_json(out)
        if failed or not isinstance(told, dict):
            return None, f"AMD's library amdsmi {failed or 'answered nonsense'}"
        try:
            return _found(told), None
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            return None, f"AMD's library amdsmi answered nonsense ({type(e).__name__}: {e})"
    return None, None  # nowhere installed


def _pythons() -> list[str]:
    """dyno's own, which finds it where ROCm puts it, and the system's."""
    system = shutil.which("python3")
    return [sys.executable, *([system] if system and system != sys.executable else [])]


def _found(told: dict[str, Any]) -> Found:
    return Found(
        [_accelerator(i, gpu) for i, gpu in enumerate(told["accelerators"])],
        [[str(cell) for cell in row] for row in told.get("topology") or []],
    )


def _accelerator(index: int, gpu: dict[str, Any]) -> Accelerator:
    def whole(name: str) -> int | None:
        value = gpu.get(name)
        return value if isinstance(value, int) else None

    def word(name: str) -> str | None:
        value = gpu.get(name)
        return value if isinstance(value, str) and value not in ("", "N/A") else None  # where it isn't supported

    modes = (word("compute_partition"), word("memory_partition"))
    return Accelerator(
        index=index,
        name=word("name") or "AMD device",
        vendor="amd",
        memory_bytes=whole("memory_bytes"),
        memory_used_bytes=whole("memory_used_bytes"),
        driver=word("driver"),
        bus=str(gpu["bus"]).lower(),
        power_cap_w=_watts(gpu.get("power_cap")),
        power_cap_default_w=_watts(gpu.get("power_cap_default")),
        clock_max_mhz=whole("clock_max_mhz"),
        memory_clock_max_mhz=whole("memory_clock_max_mhz"),
        partition="/".join(m for m in modes if m) or None,
    )


def _watts(value: Any) -> float | None:
    """Microwatts; the first versions gave watts, of which no accelerator has ten thousand."""
    if not isinstance(value, int) or not value:
        return None
    return value / 1e6 if value > 10_000 else float(value)
