"""Prices from a file and from the command line."""

from pathlib import Path

import pytest

from dyno.cli.main import main
from dyno.errors import UsageError
from dyno.facts.price import Price, PriceRule
from dyno.study.prices import About, about, price_rules, prices, prices_from, read

ROOT = Path(__file__).parents[2]
WHOLE = """
[[price]]
accelerator = "MI300X"
accelerator_hour = 4.50
machine_hour = 32
machine_accelerators = 8
energy_kwh = 0.12
source = "a list"

[[price]]
machine_hour = 0.5
currency = "EUR"
"""


def test_a_file_is_rules_in_its_order() -> None:
    first, last = prices(WHOLE, "p.toml")
    assert first == PriceRule(
        Price(4.5, 32.0, 0.12, "USD", "a list", 8), accelerator="MI300X", origin="p.toml:2"
    )
    assert (
        last == PriceRule(Price(machine_hour=0.5, currency="EUR"), origin="p.toml:10")
        and last.general
    )


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (
            ("4.50", "-4.50"),
            "p.toml:4: price.#1.accelerator_hour: must be a price above 0, but is -4.5.",
        ),
        (
            ("4.50", "nan"),
            "p.toml:4: price.#1.accelerator_hour: must be a price above 0, but is nan.",
        ),
        (("4.50", "inf"), "must be a price above 0, but is inf."),
        (("4.50", "0"), "must be a price above 0, but is 0."),
        (("4.50", '"4,50"'), "accelerator_hour: must be a number, but is '4,50'."),
        (
            ("accelerators = 8", "accelerators = 0"),
            "p.toml:6: price.#1.machine_accelerators: must be at least 1",
        ),
        (
            ("energy_kwh", "energy_kw"),
            "p.toml:7: price.#1.energy_kw: unknown key. Did you mean energy_kwh?",
        ),
        (
            ("MI300X", " "),
            "p.toml:3: price.#1.accelerator: is empty. Remove it if the price is for all results.",
        ),
        (
            ("machine_hour = 0.5\n", ""),
            "p.toml:10: price.#2: the price is missing. Give accelerator_hour, machine_hour or",
        ),
        (
            ('accelerator = "MI300X"\n', ""),
            "p.toml:2: price.#1: matches every result, so the rules below",
        ),
        (("[[price]]", "[[prices]]"), "p.toml:2: prices: unknown key. Did you mean price?"),
        ((WHOLE, ""), "p.toml:1: The file has no price. Write [[price]] with"),
        (
            (WHOLE, "[price]\nmachine_hour = 1"),
            "p.toml:1: price: must be a list of tables: write [[price]]",
        ),
        ((WHOLE, "[[price]"), "not valid TOML"),
    ],
)
def test_a_mistake_in_a_price_file_is_reported_with_its_line(
    change: tuple[str, str], reported: str
) -> None:
    assert change[0] in WHOLE
    with pytest.raises(UsageError) as e:
        prices(WHOLE.replace(*change), "p.toml")
    assert reported in str(e.value) and "started" not in str(e.value)


def test_a_price_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.toml can't be read"):
        read(tmp_path / "gone.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not a text file"):
        read(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("words", "energy", "expected"),
    [
        ([], None, []),
        (["2.99"], None, [PriceRule(Price(2.99), origin="--price")]),
        (["machine=12"], None, [PriceRule(Price(machine_hour=12.0), origin="--price")]),
        (["2", "Machine=12"], 0.1, [PriceRule(Price(2.0, 12.0, 0.1), origin="--price")]),
        (
            ["1", "H100=2.99", "RTX 4090=0.5"],
            None,
            [
                PriceRule(Price(2.99), accelerator="H100", origin="--price"),
                PriceRule(Price(0.5), accelerator="RTX 4090", origin="--price"),
                PriceRule(Price(1.0), origin="--price"),
            ],
        ),
        ([], 0.0, [PriceRule(Price(energy_kwh=0.0), origin="--energy-price")]),
        (
            ["H100=2"],
            0.3,
            [
                PriceRule(Price(2.0, energy_kwh=0.3), accelerator="H100", origin="--price"),
                PriceRule(Price(energy_kwh=0.3), origin="--energy-price"),
            ],
        ),
    ],
)
def test_prices_of_the_command_line(
    words: list[str], energy: float | None, expected: list[PriceRule]
) -> None:
    assert prices_from(words, energy) == expected


@pytest.mark.parametrize(
    ("words", "energy", "reported"),
    [
        (["cheap"], None, "'cheap' is not a price"),
        (["2,99"], None, "Write dollars"),
        (["-3"], None, "is not a price"),
        (["H100=nan"], None, "not a price"),
        (["H100=inf"], None, "not a price"),
        (["=2"], None, "not a price"),
        (["2", "3"], None, "two prices for all accelerators: 2, 3"),
        (["H100=2", "h100=3"], None, "two prices for H100: 2, 3"),
        ([], -0.1, "--energy-price -0.1 is not a price"),
        ([], float("nan"), "is not a price"),
    ],
)
def test_a_wrong_price_gets_a_sentence(
    words: list[str], energy: float | None, reported: str
) -> None:
    with pytest.raises(UsageError, match=reported):
        prices_from(words, energy)


def test_the_command_line_comes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(WHOLE)
    assert [r.origin.rpartition("/")[2] for r in price_rules(["1"], None, tmp_path / "p.toml")] == [
        "--price", "p.toml:2", "p.toml:10",
    ]  # fmt: skip


def test_an_audit_takes_a_price_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text(
        '[[price]]\naccelerator = "H100"\nacelerator_hour = 1\n'
    )
    (tmp_path / "r.csv").write_text(
        "gpu,batch_size,tokens_per_second\n8xH100,4,100\n8xH100,8,150\n"
    )
    assert (
        main(["audit", str(tmp_path / "r.csv"), "--prices", str(tmp_path / "p.toml")]) == 2
    )
    assert "Did you mean accelerator_hour?" in capsys.readouterr().err
    (tmp_path / "p.toml").write_text(
        '[[price]]\naccelerator = "H100"\naccelerator_hour = 4.5\n'
    )
    main(["audit", str(tmp_path / "r.csv"), "--prices", str(tmp_path / "p.toml")])
    assert "100.00" in capsys.readouterr().out  # 36 an hour, 0.36 million tokens
    main(["audit", str(tmp_path / "r.csv"), "--price", "MI300X=1", "--price", "H100=9"])
    assert "200.00" in capsys.readouterr().out


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    assert about(tmp_path) == About()
    (tmp_path / "about.toml").write_text('title = "Two engines"\nsource = "somebody"\n')
    assert (
        about(tmp_path)
        == about(tmp_path / "about.toml")
        == About("Two engines", "", "somebody")
    )
    (tmp_path / "about.toml").write_text('titel = "x"\n')
    with pytest.raises(UsageError, match=r":1: titel: unknown key\. Did you mean title"):
        about(tmp_path)
