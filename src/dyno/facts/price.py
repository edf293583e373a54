"""What an hour and a kilowatt-hour cost. Stated assumptions: where one comes from belongs to it."""

import msgspec


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accelerator_hour: float | None = None
    machine_hour: float | None = None
    energy_kwh: float | None = None
    currency: str = "USD"
    source: str | None = None  # a page, an invoice, a date
    machine_accelerators: int | None = None  # that a machine has, for its hour; None: as many as are seen in it


class PriceRule(msgspec.Struct, frozen=True):
    """A price, and for which results it holds. Of a pattern, upper and lower case are alike; '': any."""

    price: Price
    accelerator: str = ""  # a part of its name: MI300X
    series: str = ""  # a part of what the series is called
    origin: str = ""  # who says so: prices.toml:3, --price

    @property
    def general(self) -> bool:
        return not self.accelerator and not self.series
