"""Cost of tokens and requests: the hourly price divided by the work of an hour. Definitions: METHOD.md, Cost."""

import math
import re
from collections.abc import Callable, Sequence
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
    hour: float | None = None  # of all that was measured, where only the result itself has it


# ---- which price ----


def choose(
    rules: Sequence[PriceRule], accelerator: str = "", series: str = "", study: Price | None = None,
    own_hour: float | None = None,
) -> Chosen | None:  # fmt: skip
    """`rules`: those of the command line before those of a file. `study`: what the study says of its rig.
    `own_hour`: the result's own price_per_hour."""
    fitting = [rule for rule in rules if fits(rule, accelerator, series)]
    offers = [(rule.price, rule.origin) for rule in fitting] + ([(study, "the study")] if study is not None else [])
    index = next((i for i, (price, _) in enumerate(offers) if _has_hour(price)), None)
    energy = next((offer for offer in offers if offer[0].energy_kwh is not None), None)
    own, passed = None, []
    if index is not None:
        price, by = offers[index]
        # A price for everything is the fallback: it does not compete with a more specific one.
        rest = [rule for rule in fitting[index + 1 :] if _has_hour(rule.price)]
        passed = [r.origin for r in rest if r.general == fitting[index].general and r.origin != by]
    elif own_hour is not None and own_hour > 0:
        own, price, by = own_hour, Price(), "the result"
    elif energy is not None:
        price, by = energy
    else:
        return None
    beside = [p for p, _ in offers if p.currency == price.currency]
    price = msgspec.structs.replace(
        price,
        energy_kwh=_first(*(p.energy_kwh for p in beside)),
        machine_accelerators=_first(price.machine_accelerators, *(p.machine_accelerators for p in beside)),
    )
    return Chosen(price, by, passed, own)


def fits(rule: PriceRule, accelerator: str, series: str) -> bool:
    pairs = ((accelerator, rule.accelerator), (series, rule.series))
    return all(not wanted or _holds(name, wanted) for name, wanted in pairs)


def _holds(name: str, part: str) -> bool:
    """Match whole words: H20 doesn't match H200, nor L4 L40S; MI300 matches MI300X, and H100 8xH100."""
    start = r"(?:(?<![a-z])|(?<=\dx))" if part[:1].isalpha() else r"(?<!\d)" if part[:1].isdigit() else ""
    end = r"(?![a-z])" if part[-1:].isalpha() else r"(?!\d)" if part[-1:].isdigit() else ""
    return re.search(start + re.escape(part.lower()) + end, name.lower()) is not None


def _has_hour(price: Price) -> bool:
    return price.accelerator_hour is not None or price.machine_hour is not None


def _first(*values: T | None) -> T | None:
    return next((v for v in values if v is not None), None)


# ---- what it comes to ----


def rates(value: Callable[[str], float | None], test: str = "") -> WorkRates:
    """`value`: a figure by its name, as rows and entries give it. `test`: the name of a micro test: pp512, tg128."""
    speed = value("speed")
    if speed is not None and test:
        reads, writes = "pp" in test, "tg" in test
        return WorkRates(speed if reads and not writes else None, speed if writes and not reads else None, speed)
    took = value("duration_s")

    def each_second(rate: str, count: str) -> float | None:
        total = value(count)
        return _first(value(rate), total / took if total is not None and took else None)

    inputs = each_second("input_throughput", "total_input_tokens")
    outputs = each_second("output_throughput", "total_output_tokens")
    total = each_second("total_token_throughput", "total_tokens")
    if inputs is None and total is not None and outputs is not None and total >= outputs:
        inputs = total - outputs
    if total is None and inputs is not None and outputs is not None:
        total = inputs + outputs
    done = value("completed")
    return WorkRates(inputs, outputs, total, done / took if done is not None and took else value("request_throughput"))


def hour(price: Price, accelerators: float | None, machine: float | None) -> tuple[float, str] | None:
    """The price of an hour of what was measured, and of what it is one: accelerators, or the machine.

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
    chosen: Chosen | Price | None, rates: WorkRates, accelerators: float | None = None, machine: float | None = None,
    power_w: float | None = None, joules_per_token: float | None = None,
) -> Cost | None:  # fmt: skip
    """None where no price holds for what was measured. `power_w`: of the accelerators, mean; `joules_per_token`: the
    same for each output token, which goes before it."""
    if chosen is None:
        return None
    if isinstance(chosen, Price):
        chosen = Chosen(chosen, "")
    price = chosen.price
    paid = (chosen.hour, "accelerators") if chosen.hour is not None else hour(price, accelerators, machine)
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
    return ", ".join(filter(None, [chosen.price.source if chosen.hour is None else "", chosen.by]))


# ---- in words ----


def stated(chosen: Chosen, accelerator: str = "") -> str:
    """An assumption, for a report: 'H100: 2.99 USD per accelerator-hour (list price, prices.toml:3)'."""
    price = chosen.price
    parts = []
    if chosen.hour is not None:
        parts.append(f"{_money(chosen.hour, price)} per hour for everything measured")
    else:
        if price.accelerator_hour is not None:
            parts.append(f"{_money(price.accelerator_hour, price)} per accelerator-hour")
        if price.machine_hour is not None:
            size = (
                f" ({many(price.machine_accelerators, 'accelerator')})"
                if price.machine_accelerators is not None
                else ""
            )
            parts.append(f"{_money(price.machine_hour, price)} per machine-hour{size}")
    if price.energy_kwh is not None:
        parts.append(f"{_money(price.energy_kwh, price)} per kWh")
    source = _source(chosen)
    text = ", ".join(parts) + (f" ({source})" if source else "")
    if chosen.passed:
        text += f"; the first match is used (also: {', '.join(chosen.passed)})"
    return f"{accelerator}: {text}" if accelerator else text


def _money(value: float, price: Price) -> str:
    return f"{given_price(value)} {price.currency}"
