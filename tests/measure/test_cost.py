"""The arithmetic of cost, and which price holds for a result."""

from typing import Any

import pytest

from dyno.audit.printed import normal
from dyno.facts.price import Price, PriceRule
from dyno.measure.cost import WorkRates, choose, cost, fits, hour, rates, stated
from rows import micro, row

RATES = WorkRates(
    input_per_s=3000.0, output_per_s=1000.0, total_per_s=4000.0, requests_per_s=10.0
)


@pytest.mark.parametrize(
    ("price", "used", "machine", "expected"),
    [
        (Price(accelerator_hour=2.99), 8, 8, (23.92, "accelerators")),
        (Price(accelerator_hour=2.99), 2, 8, (5.98, "accelerators")),
        (Price(accelerator_hour=2.99), None, 8, None),  # nobody tells how many were used
        (Price(accelerator_hour=2.99, machine_hour=20.0), 4, 8, (11.96, "accelerators")),
        (Price(accelerator_hour=2.99, machine_hour=20.0), None, None, (20.0, "machine")),
        (Price(machine_hour=20.0), 8, 8, (20.0, "machine")),
        # the rest of it stands idle, and is paid for
        (Price(machine_hour=20.0), 2, 8, (20.0, "machine")),
        (Price(machine_hour=20.0), 2, None, (20.0, "machine")),
        (Price(machine_hour=20.0, machine_accelerators=8), 16, None, (40.0, "machine")),
        (Price(machine_hour=20.0), 9, 8, (40.0, "machine")),
        # no accelerators: a processor's machine
        (Price(machine_hour=0.5), 0, 0, (0.5, "machine")),
        (Price(accelerator_hour=2.99), 0, 0, None),
        (Price(energy_kwh=0.1), 8, 8, None),
    ],
)
def test_an_hour_costs_what_was_used_or_the_whole_machine(
    price: Price,
    used: float | None,
    machine: float | None,
    expected: tuple[float, str] | None,
) -> None:
    found = hour(price, used, machine)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found == (pytest.approx(expected[0]), expected[1])


def test_each_figure_has_the_whole_price() -> None:
    found = cost(Price(accelerator_hour=4.5, source="a list"), RATES, accelerators=8)
    assert found is not None and (found.hour, found.basis, found.source) == (
        36.0,
        "accelerators",
        "a list",
    )
    assert found.per_million_output == pytest.approx(10.0)  # 36 / 3.6 million tokens
    assert found.per_million_input == pytest.approx(10 / 3)
    assert found.per_million_total == pytest.approx(2.5)
    assert found.per_thousand_requests == pytest.approx(1.0)
    assert found.energy_per_million_output is None


def test_energy_is_of_output_tokens_by_joules_or_by_power() -> None:
    price = Price(energy_kwh=0.36)
    found = cost(price, RATES, joules_per_token=10.0)  # 10 MJ, 2.78 kWh
    assert found is not None and found.energy_per_million_output == pytest.approx(1.0)
    assert (found.hour, found.per_million_output) == (0.0, None), (
        "the price of an hour isn't reported"
    )
    assert cost(price, RATES, power_w=10_000.0) == found
    assert cost(price, WorkRates(), power_w=10_000.0) is None


def test_what_is_not_reported_has_no_cost() -> None:
    found = cost(Price(machine_hour=1.0), WorkRates(total_per_s=100.0))
    assert (
        found is not None and found.per_million_total and found.per_million_output is None
    )
    assert found.per_thousand_requests is None
    assert cost(None, RATES) is None and cost(Price(), RATES, 8) is None


def test_rates_are_reported_or_follow_from_counts_and_duration() -> None:
    assert rates(row().get) == WorkRates(2000.0, 1000.0, 3000.0, 10.0)
    bare = row(
        {
            "output_throughput": None,
            "total_token_throughput": None,
            "request_throughput": None,
        }
    )
    assert rates(bare.get) == WorkRates(2000.0, 1000.0, 3000.0, 10.0)
    speeds = {
        "output_throughput": 1.0,
        "total_token_throughput": 4.0,
        "request_throughput": 0.5,
    }
    assert rates(row({}, base=speeds).get) == WorkRates(3.0, 1.0, 4.0, 0.5)


@pytest.mark.parametrize(
    ("test", "read", "made"),
    [("pp512", 50.0, None), ("tg128", None, 50.0), ("pp8+tg8", None, None)],
)
def test_a_micro_test_is_of_prompts_or_of_outputs(
    test: str, read: float | None, made: float | None
) -> None:
    assert rates(micro(test, 50.0).get, test) == WorkRates(read, made, 50.0)


@pytest.mark.parametrize(
    ("part", "name", "expected"),
    [
        ("MI300X", "AMD Instinct MI300X", True),
        ("mi300", "AMD Instinct MI300X OAM", True),
        ("H100", "8xH100 1FP8-meta", True),
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("H100", "GH100", False),
        ("H20", "NVIDIA H200", False),
        ("L4", "NVIDIA L40S", False),
        ("A10", "NVIDIA A100", False),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
        ("4090", "RTX4090", True),
        ("H100", "", False),
        ("", "", True),
    ],
)
def test_a_name_holds_a_part_as_a_word(part: str, name: str, expected: bool) -> None:
    assert fits(PriceRule(Price(), accelerator=part), name, "") is expected


def rule(value: float, at: str, **more: Any) -> PriceRule:
    return PriceRule(Price(accelerator_hour=value), origin=at, **more)


def test_the_command_line_goes_before_the_file_before_the_study_before_the_result() -> None:
    line, file = rule(1.0, "--price"), rule(2.0, "p.toml:1")
    study = Price(accelerator_hour=3.0)
    found = choose([line, file], "H100", "", study, 4.0)
    assert found is not None and (found.price.accelerator_hour, found.by) == (
        1.0,
        "--price",
    )
    found = choose([file], "H100", "", study, 4.0)
    assert found is not None and (found.price.accelerator_hour, found.by) == (
        2.0,
        "p.toml:1",
    )
    found = choose([], "H100", "", study, 4.0)
    assert found is not None and (found.price.accelerator_hour, found.by) == (
        3.0,
        "the study",
    )
    found = choose([], "H100", "", None, 4.0)
    assert found is not None and (found.hour, found.by) == (4.0, "the result")
    paid = cost(found, RATES)
    assert paid is not None and (paid.hour, paid.basis, paid.source) == (
        4.0,
        "accelerators",
        "the result",
    )
    assert choose([], "H100") is None


def test_of_two_that_fit_the_first_holds_and_that_is_reported() -> None:
    rules = [
        rule(1.0, "a:1", accelerator="H100"),
        rule(2.0, "a:4", series="vllm"),
        rule(9.0, "a:9"),
    ]
    found = choose(rules, "NVIDIA H100", "vllm tp 8")
    assert found is not None and (found.price.accelerator_hour, found.passed) == (
        1.0,
        ["a:4"],
    )
    assert stated(found, "vllm") == (
        "vllm: 1.00 USD per accelerator-hour (a:1); the first match is used (also: a:4)"
    )
    found = choose(rules, "NVIDIA H100", "tgi")
    assert found is not None and not found.passed, "one for all is meant for the others"
    found = choose(rules, "MI300X", "tgi")
    assert found is not None and found.by == "a:9"


def test_energy_and_a_machines_size_are_taken_from_where_they_are_reported() -> None:
    file = PriceRule(
        Price(machine_hour=30.0, energy_kwh=0.2, machine_accelerators=8), origin="p:1"
    )
    found = choose([rule(1.0, "--price"), file])
    assert found is not None
    assert (found.price.accelerator_hour, found.price.machine_hour) == (1.0, None), (
        "hours are of one who tells them"
    )
    assert (found.price.energy_kwh, found.price.machine_accelerators) == (0.2, 8)
    euros = PriceRule(Price(energy_kwh=0.3, currency="EUR"), origin="p:1")
    found = choose([rule(1.0, "--price"), euros])
    assert found is not None and found.price.energy_kwh is None, (
        "two currencies don't add up"
    )


def test_a_price_is_stated_with_its_source() -> None:
    price = Price(
        machine_hour=0.0761,
        energy_kwh=0.12,
        currency="EUR",
        source="bought",
        machine_accelerators=1,
    )
    found = choose([PriceRule(price, origin="p:1")])
    assert found is not None
    assert (
        stated(found)
        == "0.0761 EUR per machine-hour (1 accelerator), 0.12 EUR per kWh (bought, p:1)"
    )


def test_an_audited_row_costs_by_the_price_that_was_given_before_its_own() -> None:
    reported = row({}, {"accelerators": 8, "accelerator": "H100", "price_per_hour": 36.0})
    assert normal(reported).cost_per_million == pytest.approx(10.0)
    given = normal(reported, [rule(2.0, "--price")])
    assert (given.price_per_hour, given.cost_per_million) == (16.0, pytest.approx(16 / 3.6))
    assert normal(row()).cost_per_million is None
