"""What an hour and a kilowatt-hour cost. Stated assumptions: where one comes from belongs to it."""

from sys import float_info
from typing import Annotated

import msgspec

from dyno.option import Option

_WORDS = "is a price, a number above 0"
_HOURLY = Option(above=0, most=float_info.max, words=_WORDS)


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accelerator_hour: Annotated[float | None, _HOURLY] = None
    machine_hour: Annotated[float | None, _HOURLY] = None
    energy_kwh: Annotated[float | None, Option(least=0, most=float_info.max, words=_WORDS)] = None
    currency: str = "USD"
    source: str | None = None  # a page, an invoice, a date
    # That a machine has, for its hour; None: as many as are seen in it.
    machine_accelerators: Annotated[int | None, Option(least=1)] = None


class PriceRule(msgspec.Struct, frozen=True):
    """A price and the results that it is for. Patterns ignore case; '': any."""

    price: Price
    accelerator: str = ""  # a part of its name: MI300X
    series: str = ""  # a part of what the series is called
    origin: str = ""  # who says so: prices.toml:3, --price

    @property
    def general(self) -> bool:
        return not self.accelerator and not self.series
