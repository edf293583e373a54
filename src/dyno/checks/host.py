"""Is the machine set as a study wants it, and which commands would set it so?

The names of the settings are those of HostWanted. Commands: the kernel's administration guide (sysctl, sysfs), tuned,
`nvidia-smi` and `amd-smi`, as the optimization pages of NVIDIA and AMD use them.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dyno.checks.evidence import Circumstances
from dyno.checks.machine import performs, translates
from dyno.facts.finding import Finding, doubt
from dyno.facts.rig import HostWanted, Rig
from dyno.facts.study import short

_GRUB = "# add {} to GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo update-grub && sudo reboot"


class HostSetting(NamedTuple):
    """A setting of the machine beside what a study wants."""

    name: str
    wanted: str
    actual: str | None  # None: unknown here
    met: bool | None
    command: str  # that sets it


class _Rule(NamedTuple):
    actual: Callable[[Rig], str | None]
    command: Callable[[str, Rig], str]
    met: Callable[[str, str], bool] = lambda wanted, actual: wanted == actual


def settings(wanted: HostWanted, rig: Rig) -> Iterator[HostSetting]:
    """Yield those that the study names."""
    for name, rule in _RULES.items():
        if (value := getattr(wanted, name)) is not None:
            words, actual = short(value), rule.actual(rig)
            # Processors or accelerators that differ are listed.
            met = (
                None
                if actual is None
                else all(rule.met(words, part) for part in actual.split(", "))
            )
            yield HostSetting(name, words, actual, met, rule.command(words, rig))


def not_as_wanted(e: Circumstances) -> Iterator[Finding]:
    if text := e.host and e.rig and unmet(e.host, e.rig):
        yield doubt("rig.not_as_wanted", text)


def unmet(wanted: HostWanted, rig: Rig) -> str:
    """Return how the machine differs; '' where it doesn't, as far as is known."""
    others = [
        f"{s.name} is {s.actual} instead of {s.wanted}"
        for s in settings(wanted, rig)
        if s.met is False
    ]
    return (
        f"The machine is not set as the study wants it: {', '.join(others)}."
        if others
        else ""
    )


def _iommu_met(wanted: str, actual: str) -> bool:
    return actual.startswith("off") if wanted == "off" else not translates(actual)


def _state(name: str) -> Callable[[Rig], str | None]:
    return lambda rig: rig.state.get(name)


def _huge_pages(rig: Rig) -> str | None:
    state = rig.state.get("huge_pages")
    return "0" if state == "none" else state and state.split()[0]


def _iommu(rig: Rig) -> str | None:
    state = rig.state.get("iommu")
    return state and state.replace(", ", " and ")  # one value, whatever its groups


def _different(values: list[str]) -> str | None:
    """Return the values of the accelerators, each once. None: one is unknown, or there is none."""
    return ", ".join(dict.fromkeys(values)) if values and all(values) else None


def _partition(index: int) -> Callable[[Rig], str | None]:
    """Return a reader of a partition. `index`: 0 compute, 1 memory."""

    def actual(rig: Rig) -> str | None:
        return _different(
            [
                f"{a.partition or ''}/".split("/")[index]
                for a in rig.accelerators
                if a.vendor == "amd"
            ]
        )

    return actual


def _power(rig: Rig) -> str | None:
    return _different(
        ["" if a.power_cap_w is None else short(a.power_cap_w) for a in rig.accelerators]
    )


def _set_power(wanted: str, rig: Rig) -> str:
    amd = any(a.vendor == "amd" for a in rig.accelerators)
    return (
        f"sudo amd-smi set --power-cap {wanted}" if amd else f"sudo nvidia-smi -pl {wanted}"
    )


def _set_iommu(wanted: str, rig: Rig) -> str:
    vendor = "amd" if re.match("amd", rig.cpu, re.IGNORECASE) else "intel"
    return _GRUB.format("iommu=pt" if wanted == "passthrough" else f"{vendor}_iommu=off")


def _sysctl(key: str) -> Callable[[str, Rig], str]:
    return lambda wanted, _: (
        f"sudo sysctl {key}={ {'on': '1', 'off': '0'}.get(wanted, wanted) }"
    )


def _written(path: str) -> Callable[[str, Rig], str]:
    return lambda wanted, _: f"echo {wanted} | sudo tee {path}"


def _command(start: str) -> Callable[[str, Rig], str]:
    return lambda wanted, _: f"{start} {wanted}"


def _same_word(wanted: str, actual: str) -> bool:
    return wanted.casefold() == actual.casefold()


_RULES = {
    "numa_balancing": _Rule(_state("numa_balancing"), _sysctl("kernel.numa_balancing")),
    "governor": _Rule(
        _state("governor"), _written("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
        lambda wanted, actual: wanted == actual.split()[0] or (wanted == "performance" and performs(actual)),
    ),
    "tuned_profile": _Rule(_state("tuned_profile"), _command("sudo tuned-adm profile")),
    "iommu": _Rule(_iommu, _set_iommu, _iommu_met),
    "transparent_huge_pages": _Rule(
        _state("transparent_huge_pages"), _written("/sys/kernel/mm/transparent_hugepage/enabled")
    ),
    "huge_pages": _Rule(
        _huge_pages, _sysctl("vm.nr_hugepages"), lambda wanted, actual: int(actual) >= int(wanted)
    ),
    "power_limit_w": _Rule(_power, _set_power),
    "compute_partition": _Rule(_partition(0), _command("sudo amd-smi set --compute-partition"), _same_word),
    "memory_partition": _Rule(_partition(1), _command("sudo amd-smi set --memory-partition"), _same_word),
}  # fmt: skip
