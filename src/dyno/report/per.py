"""Throughput per accelerator, per machine, or per dollar per hour."""

from collections.abc import Collection

from dyno.facts.entry import Entry
from dyno.facts.report import PER, Report


def per(entry: Entry, value: float, mode: str) -> float | None:
    """Return a throughput's share. None: the number of accelerators, or their price, isn't known."""
    used = entry.accelerators
    if mode == "measured":
        return value
    if mode == "accelerator":
        return value / used if used else None
    if mode == "machine":
        return value / used * entry.machine if used and entry.machine else None
    return (
        value / entry.cost.hour if entry.cost is not None and entry.cost.hour > 0 else None
    )


def estimated(entry: Entry, mode: str) -> bool:
    """Return whether only a part of the machine was measured, and is scaled up without losses."""
    return mode == "machine" and (entry.machine or 0) > (entry.accelerators or 0)


def words(report: Report) -> dict[str, str]:
    """Return the modes in words, with the money that prices are in."""
    words = {
        "measured": "as measured",
        "accelerator": "per accelerator",
        "machine": "per machine",
    }
    return words | {"dollar": f"per {_money(report)} per hour"}


def units(report: Report) -> dict[str, str]:
    money = _money(report)
    money = "$" if money == "dollar" else money
    return {
        "accelerator": "/ accelerator",
        "machine": "/ machine",
        "dollar": f"/ {money} per hour",
    }


def _money(report: Report) -> str:
    currencies = {
        e.cost.currency.upper()
        for e in report.entries
        if e.cost is not None and e.cost.hour
    }
    if currencies <= {"USD", "$"}:
        return "dollar"
    return currencies.pop() if len(currencies) == 1 else "unit of money"


def modes(some: Collection[str]) -> list[str]:
    return [mode for mode in PER if mode in some]
