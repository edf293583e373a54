"""Prices, as the command line and a price file tell them."""

import math
from collections.abc import Sequence
from pathlib import Path

from dyno.errors import UsageError
from dyno.facts.price import Price, PriceRule

_MOST = 1e6
_HOW = "Write a number (--price 2.99), several by name (--price H100=2.99 MI300X=4.50), or a machine's (machine=12)."


def price_rules(words: Sequence[str], energy: float | None, file: Path | None) -> list[PriceRule]:
    """Those of the command line go before those of the file."""
    from dyno.study.prices import read

    return [*prices_from(words, energy), *(read(file) if file is not None else [])]


def prices_from(words: Sequence[str], energy: float | None = None) -> list[PriceRule]:
    """2.99, H100=2.99, machine=12: of an hour; `energy`: of a kilowatt-hour, for all."""
    if energy is not None and not 0 <= energy < _MOST:
        raise UsageError(f"--energy-price {energy:g} is no price of a kilowatt-hour. Write one such as 0.12.")
    named: dict[str, float] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        value = _number(text)
        if value is None or (equals and not name.strip()):
            raise UsageError(f"--price {word!r} is no price of an accelerator-hour or of a machine-hour. {_HOW}")
        name = name.strip()
        key = next((k for k in named if k.lower() == name.lower()), name)
        if key in named:
            raise UsageError(
                f"--price tells two prices {f'of {key}' if key else 'for all'}: {named[key]:g}, {value:g}."
            )
        named[key] = value
    machine = next((named.pop(k) for k in list(named) if k.lower() == "machine"), None)
    everywhere = Price(accelerator_hour=named.pop("", None), machine_hour=machine, energy_kwh=energy)
    rules = [PriceRule(Price(v, energy_kwh=energy), accelerator=name, at="--price") for name, v in named.items()]
    if everywhere.accelerator_hour is not None or machine is not None:
        rules.append(PriceRule(everywhere, at="--price"))
    elif energy is not None:
        rules.append(PriceRule(everywhere, at="--energy-price"))
    return rules


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < _MOST else None
