"""AMD's accelerators by ROCm's older command-line tool: `{"card0": {"Card Series": …}, …, "system": {…}}`."""

from typing import Any

from dyno.facts.rig import Accelerator
from dyno.probe.accelerators.base import Found
from dyno.probe.child import ask, last_json

ASKED = (
    "--showproductname", "--showbus", "--showmeminfo", "vram", "--showmaxpower", "--showcomputepartition",
    "--showmemorypartition", "--showdriverversion", "--json",
)  # fmt: skip
TIMEOUT_S = 15.0


def look(tool: str = "rocm-smi") -> tuple[Found | None, str | None]:
    out, failed, code = ask([tool, *ASKED], TIMEOUT_S)
    told = last_json(out)
    if not isinstance(told, dict):
        return None, None if code is None else f"rocm-smi {failed or 'answered nonsense'}"
    cards = [v for k, v in told.items() if k.startswith("card") and isinstance(v, dict)]
    system = told.get("system")
    driver = system.get("Driver version") if isinstance(system, dict) else None
    return Found([_accelerator(i, card, driver) for i, card in enumerate(cards)]), None


def _accelerator(index: int, card: dict[str, Any], driver: str | None) -> Accelerator:
    values = {k.lower(): str(v).strip() for k, v in card.items()}  # Card series, Card Series

    def number(name: str) -> float | None:
        try:
            return float(values[name])
        except (KeyError, ValueError):
            return None

    total, used = number("vram total memory (b)"), number("vram total used memory (b)")
    parts = [values.get(f"{kind} partition", "") for kind in ("compute", "memory")]
    return Accelerator(
        index=index,
        name=values.get("card series") or "AMD device",
        vendor="amd",
        memory_bytes=None if total is None else int(total),
        memory_used_bytes=None if used is None else int(used),
        driver=driver,
        bus=values.get("pci bus", "").lower() or None,
        power_cap_w=number("max graphics package power (w)"),
        partition="/".join(p for p in parts if p) or None,
    )
