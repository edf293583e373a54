"""What tokens and requests cost: the price of an hour over what was done in it. Definitions: METHOD.md, Cost."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from dyno.facts.entry import Cost
from dyno.facts.price import Price, PriceRule

T = TypeVar("T")

_S_PER_HOUR = 3600.0
_J_PER_KWH = 3.6e6
_MILLION = 1e6


class Rates(msgspec.Struct, frozen=True):
    """What was done each second, of completed requests alone: what failed earns nothing. None: not told."""

    input_per_s: float | None = None  # tokens
    output_per_s: float | None = None
    total_per_s: float | None = None
    requests_per_s: float | None = None


class Chosen(msgspec.Struct, frozen=True):
    """The price that holds for a result. An hour is of the first that tells one; energy and a machine's size, which it
    may not tell, of the next that do."""

    price: Price
    by: str  # --price, prices.toml:3, the study, the result
    passed: list[str] = []  # rules that fit as well, behind the one that was taken
    hour: float | None = None  # of all that was measured, where the result itself tells it and nobody else does


# ---- which price ----


def choose(
    rules: Sequence[PriceRule], accelerator: str = "", series: str = "", study: Price | None = None,
    told_hour: float | None = None,
) -> Chosen | None:  # fmt: skip
    """`rules`: those of the command line before those of a file. `study`: what the study says of its rig.
    `told_hour`: the result's own price_per_hour."""
    fitting = [rule for rule in rules if fits(rule, accelerator, series)]
    offers = [(rule.price, rule.origin) for rule in fitting] + ([(study, "the study")] if study is not None else [])
    index = next((i for i, (price, _) in enumerate(offers) if _has_hour(price)), None)
    energy = next((offer for offer in offers if offer[0].energy_kwh is not None), None)
    own, passed = None, []
    if index is not None:
        price, by = offers[index]
        passed = list(_passed(index, fitting))
    elif told_hour is not None and told_hour > 0:
        own, price, by = told_hour, Price(), "the result"
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
    return all(not wanted or _holds(name, wanted) for wanted, name in (
        (rule.accelerator, accelerator), (rule.series, series)))  # fmt: skip


def _holds(name: str, part: str) -> bool:
    """As a word or several: H20 is no part of H200, nor L4 of L40S; MI300 is one of MI300X, and H100 of 8xH100."""
    start = r"(?:(?<![a-z])|(?<=\dx))" if part[:1].isalpha() else r"(?<!\d)" if part[:1].isdigit() else ""
    end = r"(?![a-z])" if part[-1:].isalpha() else r"(?!\d)" if part[-1:].isdigit() else ""
    return re.search(start + re.escape(part.lower()) + end, name.lower()) is not None


def _passed(taken: int, fitting: Sequence[PriceRule]) -> Iterator[str]:
    """One for all is what is left where no other fits: that it stands behind one that is of something is no doubt."""
    for rule in fitting[taken + 1 :]:
        if _has_hour(rule.price) and rule.general == fitting[taken].general and rule.origin != fitting[taken].origin:
            yield rule.origin


def _has_hour(price: Price) -> bool:
    return price.accelerator_hour is not None or price.machine_hour is not None


def _first(*values: T | None) -> T | None:
    return next((v for v in values if v is not None), None)


# ---- what it comes to ----


def rates(value: Callable[[str], float | None], test: str = "") -> Rates:
    """`value`: a figure by its name, as rows and entries give it. `test`: the name of a micro test: pp512, tg128."""
    speed = value("speed")
    if speed is not None and test:
        reads, writes = "pp" in test, "tg" in test
        return Rates(
            input_per_s=speed if reads and not writes else None,
            output_per_s=speed if writes and not reads else None,
            total_per_s=speed,
        )
    took = value("duration_s")

    def each_second(told: str, count: str) -> float | None:
        made = value(count)
        return _first(value(told), made / took if made is not None and took else None)

    read = each_second("input_throughput", "total_input_tokens")
    made = each_second("output_throughput", "total_output_tokens")
    total = each_second("total_token_throughput", "total_tokens")
    if read is None and total is not None and made is not None and total >= made:
        read = total - made
    if total is None and read is not None and made is not None:
        total = read + made
    done = value("completed")
    requests = done / took if done is not None and took else value("request_throughput")
    return Rates(read, made, total, requests)


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
    return hour / (per_s * _S_PER_HOUR) * _MILLION if per_s else None


def cost(
    chosen: Chosen | Price | None, rates: Rates, accelerators: float | None = None, machine: float | None = None,
    power_w: float | None = None, joules_per_token: float | None = None,
) -> Cost | None:  # fmt: skip
    """None where no price holds for what was measured. `power_w`: of the accelerators, mean; `joules_per_token`: the
    same for each output token, which goes before it."""
    if chosen is None:
        return None
    if isinstance(chosen, Price):
        chosen = Chosen(chosen, "")
    price = chosen.price
    if chosen.hour is not None:
        found: tuple[float, str] | None = (chosen.hour, "accelerators")
    else:
        found = hour(price, accelerators, machine)
    energy = None
    if joules_per_token is None and power_w is not None and rates.output_per_s:
        joules_per_token = power_w / rates.output_per_s
    if joules_per_token is not None and price.energy_kwh is not None:
        energy = joules_per_token * _MILLION / _J_PER_KWH * price.energy_kwh
    if found is None and energy is None:
        return None
    paid, of = found if found is not None else (0.0, "accelerators")
    return Cost(
        currency=price.currency,
        hour=paid,
        per_million_input=per_million(paid, rates.input_per_s) if paid else None,
        per_million_output=per_million(paid, rates.output_per_s) if paid else None,
        per_million_total=per_million(paid, rates.total_per_s) if paid else None,
        per_thousand_requests=paid / (rates.requests_per_s * _S_PER_HOUR) * 1000
        if paid and rates.requests_per_s
        else None,
        energy_per_million_output=energy,
        source=_source(chosen),
        basis=of,
    )


def _source(chosen: Chosen) -> str:
    told = [chosen.price.source or "" if chosen.hour is None else "", chosen.by]
    return ", ".join(part for part in told if part)


# ---- in words ----


def stated(chosen: Chosen, of: str = "") -> str:
    """An assumption, for a report: 'H100: 2.99 USD for an accelerator-hour (list price, prices.toml:3)'."""
    price = chosen.price
    parts = []
    if chosen.hour is not None:
        parts.append(f"{_money(chosen.hour, price.currency)} an hour for all that was measured")
    else:
        if price.accelerator_hour is not None:
            parts.append(f"{_money(price.accelerator_hour, price.currency)} for an accelerator-hour")
        if price.machine_hour is not None:
            parts.append(f"{_money(price.machine_hour, price.currency)} for a machine-hour")
        if price.machine_accelerators is not None and price.machine_hour is not None:
            parts[-1] += f" ({price.machine_accelerators} accelerators)"
    if price.energy_kwh is not None:
        parts.append(f"{_money(price.energy_kwh, price.currency)} for a kWh")
    source = _source(chosen)
    text = ", ".join(parts) + (f" ({source})" if source else "")
    if chosen.passed:
        text += f"; {', '.join(chosen.passed)} would fit as well, the first one holds"
    return f"{of}: {text}" if of else text


def _money(value: float, currency: str) -> str:
    shown = f"{value:,.4f}".rstrip("0")
    whole, _, rest = shown.partition(".")
    return f"{whole}.{rest:0<2} {currency}"
