"""Prices per hour and kilowatt-hour: stated assumptions, each with its source."""

from sys import float_info
from typing import Annotated

import msgspec

from dyno.option import Option


def _price(help: str, above: float | None = 0, least: float | None = None) -> Option:
    return Option(
        "",
        None,
        help,
        above=above,
        least=least,
        most=float_info.max,
        words="must be a price above 0",
    )


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accelerator_hour: Annotated[float | None, _price("price per accelerator and hour")] = (
        None
    )
    machine_hour: Annotated[float | None, _price("price per machine and hour")] = None
    energy_kwh: Annotated[
        float | None, _price("price per kilowatt-hour", above=None, least=0)
    ] = None
    currency: Annotated[str, Option(help="currency of the prices")] = "USD"
    source: Annotated[
        str | None, Option(help="where the price comes from: a page, an invoice, a date")
    ] = None
    machine_accelerators: Annotated[
        int | None,
        Option("", None, "accelerators per machine (default: those dyno detects)", least=1),
    ] = None


class PriceRule(msgspec.Struct, frozen=True):
    """A price and the results that it is for. Patterns ignore case; '': any."""

    price: Price
    accelerator: str = ""  # a part of its name: MI300X
    series: str = ""  # a part of what the series is called
    origin: str = ""  # who says so: prices.toml:3, --price

    @property
    def general(self) -> bool:
        return not self.accelerator and not self.series
