"""Throughput told for one accelerator, one machine, or a dollar an hour."""

from dyno.facts.chart import PER
from dyno.facts.entry import Entry
from dyno.facts.report import Report

WORDS = {
    "measured": "as measured",
    "accelerator": "one accelerator",
    "machine": "one machine",
    "dollar": "one dollar an hour",
}
SHORT = {"accelerator": "/ accelerator", "machine": "/ machine", "dollar": "/ $ an hour"}


def per(entry: Entry, value: float, mode: str) -> float | None:
    """None: how many there were, or their price, isn't known."""
    used = entry.accelerators
    if mode == "measured":
        return value
    if mode == "accelerator":
        return value / used if used else None
    if mode == "machine":
        return value / used * entry.machine if used and entry.machine else None
    return value / entry.cost.hour if entry.cost is not None and entry.cost.hour > 0 else None


def estimated(entry: Entry, mode: str) -> bool:
    """A machine of which a part was measured: as if nothing were lost."""
    return mode == "machine" and (entry.machine or 0) > (entry.accelerators or 0)


def words(report: Report) -> dict[str, str]:
    """With the money that prices are told in."""
    return {**WORDS, "dollar": f"one {_money(report)} an hour"}


def units(report: Report) -> dict[str, str]:
    money = _money(report)
    return {**SHORT, "dollar": f"/ {'$' if money == 'dollar' else money} an hour"}


def _money(report: Report) -> str:
    names = {e.cost.currency.upper() for e in report.entries if e.cost is not None and e.cost.hour}
    return "dollar" if names <= {"USD", "$"} else names.pop() if len(names) == 1 else "unit of money"


def modes(names: set[str]) -> list[str]:
    return [mode for mode in PER if mode in names]
