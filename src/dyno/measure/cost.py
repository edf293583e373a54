"""Cost of tokens and requests: the hourly price divided by the work of an hour. Definitions: METHOD.md, Cost."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from dyno.facts.entry import Cost
from dyno.facts.price import Price, PriceRule
from dyno.numbers import many
from dyno.numbers import price as given_price

T = TypeVar("T")

_S_PER_HOUR = 3600.0
_J_PER_KWH = 3.6e6
_MILLION = 1e6


class WorkRates(msgspec.Struct, frozen=True):
    """Work each second, of completed requests alone: what failed earns nothing. None: unknown."""

    input_per_s: float | None = None  # tokens
    output_per_s: float | None = None
    total_per_s: float | None = None
    requests_per_s: float | None = None


class Chosen(msgspec.Struct, frozen=True):
    """The price that holds for a result. An hour is of the first that has one; energy and a machine's size, which it
    may lack, of the next that do."""

    price: Price
    by: str  # --price, prices.toml:3, the study, the result
    passed: list[str] = []  # rules that fit as well, behind the one that was taken
    # of all that was measured, where only the result itself has it
    hour: float | None = None


# ---- which price ----


def choose(
    rules: Sequence[PriceRule],
    accelerator: str = "",
    series: str = "",
    study: Price | None = None,
    own_hour: float | None = None,
) -> Chosen | None:
    """Return the price that holds for a result. None: none does.

    `rules`: those of the command line before those of a file. `study`: what the study says of its rig. `own_hour`: the
    result's own price_per_hour."""
    fitting = [rule for rule in rules if fits(rule, accelerator, series)]
    offers = [(rule.price, rule.origin) for rule in fitting]
    if study is not None:
        offers.append((study, "the study"))
    for index, (price, by) in enumerate(offers):
        if _has_hour(price):
            return Chosen(_completed(price, offers), by, _passed_over(fitting, index))
    if own_hour is not None and own_hour > 0:
        return Chosen(_completed(Price(), offers), "the result", hour=own_hour)
    for price, by in offers:
        if price.energy_kwh is not None:
            return Chosen(_completed(price, offers), by)
    return None


def _passed_over(fitting: Sequence[PriceRule], index: int) -> list[str]:
    """Return the origins of rules that fit as well as the one at `index`, and come behind it."""
    if index >= len(fitting):  # the study's
        return []
    chosen = fitting[index]
    passed = []
    for rule in fitting[index + 1 :]:
        # A price for everything is the fallback: it does not compete with a more specific one.
        if (
            _has_hour(rule.price)
            and rule.general == chosen.general
            and rule.origin != chosen.origin
        ):
            passed.append(rule.origin)
    return passed


def _completed(price: Price, offers: Sequence[tuple[Price, str]]) -> Price:
    """Add energy and the machine's size, by the first offer in the same currency that has them."""
    beside = [p for p, _ in offers if p.currency == price.currency]
    return msgspec.structs.replace(
        price,
        energy_kwh=_first(*(p.energy_kwh for p in beside)),
        machine_accelerators=_first(
            price.machine_accelerators, *(p.machine_accelerators for p in beside)
        ),
    )


def fits(rule: PriceRule, accelerator: str, series: str) -> bool:
    pairs = ((accelerator, rule.accelerator), (series, rule.series))
    return all(not wanted or _holds(name, wanted) for name, wanted in pairs)


def _holds(name: str, part: str) -> bool:
    """Match whole words: H20 doesn't match H200, nor L4 L40S; MI300 matches MI300X, and H100 8xH100."""
    start = _boundary(part[:1], letter=r"(?:(?<![a-z])|(?<=\dx))", digit=r"(?<!\d)")
    end = _boundary(part[-1:], letter=r"(?![a-z])", digit=r"(?!\d)")
    return re.search(start + re.escape(part.lower()) + end, name.lower()) is not None


def _boundary(character: str, letter: str, digit: str) -> str:
    """Return the pattern for an end of a word, by its kind of character."""
    if character.isalpha():
        return letter
    return digit if character.isdigit() else ""


def _has_hour(price: Price) -> bool:
    return price.accelerator_hour is not None or price.machine_hour is not None


def _first(*values: T | None) -> T | None:
    return next((v for v in values if v is not None), None)


# ---- what it comes to ----


def rates(value: Callable[[str], float | None], test: str = "") -> WorkRates:
    """Return the work of each second.

    `value`: a figure by its name, as rows and entries give it. `test`: the name of a micro test: pp512, tg128."""
    speed = value("speed")
    if speed is not None and test:
        return _micro_rates(speed, test)
    took = value("duration_s")

    def per_second(count: str) -> float | None:
        total = value(count)
        return total / took if total is not None and took else None

    inputs = _first(value("input_throughput"), per_second("total_input_tokens"))
    outputs = _first(value("output_throughput"), per_second("total_output_tokens"))
    total = _first(value("total_token_throughput"), per_second("total_tokens"))
    if inputs is None and total is not None and outputs is not None and total >= outputs:
        inputs = total - outputs
    if total is None and inputs is not None and outputs is not None:
        total = inputs + outputs
    requests = _first(per_second("completed"), value("request_throughput"))
    return WorkRates(inputs, outputs, total, requests)


def _micro_rates(speed: float, test: str) -> WorkRates:
    reads, writes = "pp" in test, "tg" in test
    if reads and not writes:
        return WorkRates(input_per_s=speed, total_per_s=speed)
    if writes and not reads:
        return WorkRates(output_per_s=speed, total_per_s=speed)
    return WorkRates(total_per_s=speed)


def hour(
    price: Price, accelerators: float | None, machine: float | None
) -> tuple[float, str] | None:
    """Return the price of an hour of what was measured, and of what it is one: accelerators, or the machine.

    `accelerators`: that were used; 0: there are none, None: not known. `machine`: how many it has."""
    if price.accelerator_hour is not None and accelerators:
        return price.accelerator_hour * accelerators, "accelerators"
    if price.machine_hour is None:
        return None
    size = price.machine_accelerators or machine
    # A part of a machine costs the whole of it; more accelerators than it has are several machines.
    machines = math.ceil(accelerators / size) if accelerators and size else 1
    return price.machine_hour * machines, "machine"


def per_million(hour: float, per_s: float | None) -> float | None:
    return _each(_MILLION, hour, per_s)


def _each(count: float, hour: float, per_s: float | None) -> float | None:
    return hour / (per_s * _S_PER_HOUR) * count if hour and per_s else None


def cost(
    chosen: Chosen | Price | None,
    rates: WorkRates,
    accelerators: float | None = None,
    machine: float | None = None,
    power_w: float | None = None,
    joules_per_token: float | None = None,
) -> Cost | None:
    """Return None where no price holds for what was measured. `power_w`: of the accelerators, mean; `joules_per_token`:
    the same for each output token, which goes before it."""
    if chosen is None:
        return None
    if isinstance(chosen, Price):
        chosen = Chosen(chosen, "")
    price = chosen.price
    paid = (
        (chosen.hour, "accelerators")
        if chosen.hour is not None
        else hour(price, accelerators, machine)
    )
    energy = None
    if joules_per_token is None and power_w is not None and rates.output_per_s:
        joules_per_token = power_w / rates.output_per_s
    if joules_per_token is not None and price.energy_kwh is not None:
        energy = joules_per_token * _MILLION / _J_PER_KWH * price.energy_kwh
    if paid is None and energy is None:
        return None
    an_hour, basis = paid if paid is not None else (0.0, "accelerators")
    return Cost(
        currency=price.currency,
        hour=an_hour,
        per_million_input=per_million(an_hour, rates.input_per_s),
        per_million_output=per_million(an_hour, rates.output_per_s),
        per_million_total=per_million(an_hour, rates.total_per_s),
        per_thousand_requests=_each(1000, an_hour, rates.requests_per_s),
        energy_per_million_output=energy,
        source=_source(chosen),
        basis=basis,
    )


def _source(chosen: Chosen) -> str:
    named = chosen.price.source if chosen.hour is None else ""
    return ", ".join(filter(None, [named, chosen.by]))


# ---- in words ----


def stated(chosen: Chosen, accelerator: str = "") -> str:
    """Return an assumption for a report: 'H100: 2.99 USD per accelerator-hour (list price, prices.toml:3)'."""
    text = ", ".join(_prices(chosen))
    source = _source(chosen)
    if source:
        text += f" ({source})"
    if chosen.passed:
        text += f"; the first match is used (also: {', '.join(chosen.passed)})"
    return f"{accelerator}: {text}" if accelerator else text


def _prices(chosen: Chosen) -> Iterator[str]:
    price = chosen.price
    if chosen.hour is not None:
        yield f"{_money(chosen.hour, price)} per hour for everything measured"
    elif price.accelerator_hour is not None:
        yield f"{_money(price.accelerator_hour, price)} per accelerator-hour"
    if chosen.hour is None and price.machine_hour is not None:
        size = ""
        if price.machine_accelerators is not None:
            size = f" ({many(price.machine_accelerators, 'accelerator')})"
        yield f"{_money(price.machine_hour, price)} per machine-hour{size}"
    if price.energy_kwh is not None:
        yield f"{_money(price.energy_kwh, price)} per kWh"


def _money(value: float, price: Price) -> str:
    return f"{given_price(value)} {price.currency}"
