"""The small files beside results: prices by the hour (also from the command line), and about.toml."""

import math
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec

from dyno import files
from dyno.errors import UsageError
from dyno.facts.price import Price, PriceRule
from dyno.study.cells import converted, hints
from dyno.study.document import TomlDocument

ABOUT = "about.toml"
_PATTERNS = ("accelerator", "series")
_HINTS = {**dict.fromkeys(_PATTERNS, str), **hints(Price)}
_MOST = 1e6
_HOW = "Write dollars per accelerator-hour (2.99 or H100=2.99), or per machine-hour (machine=12)."
_EXAMPLE = '[[price]] with accelerator = "H100" and accelerator_hour = 2.99 below it'


def read(path: FilePath) -> list[PriceRule]:
    return prices(text_of(path), str(path))


def text_of(path: FilePath) -> str:
    try:
        return files.read(path, files.TEXT, pipes=True).decode("utf-8-sig")
    except OSError as e:
        raise UsageError(f"{path} can't be read: {e.strerror or e}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file.") from None


def prices(text: str, name: str) -> list[PriceRule]:
    """Read a file's prices. The first that matches a result is used."""
    doc = TomlDocument(text, name, after="")
    for key in doc.tree:
        if key != "price":
            doc.unknown_key((key,), ["price"])
    rules = doc.tree.get("price", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        doc.mistake(("price",), f"must be a list of tables: write {_EXAMPLE}.")
        rules = []
    read_rules = [_rule(doc, i, rule) for i, rule in enumerate(rules)]
    for i, rule in enumerate(read_rules[:-1]):
        if rule.general:
            doc.mistake(
                ("price", i),
                "matches every result, so the rules below it are never used. Put it last.",
            )
            break
    if not read_rules:
        doc.mistake((), f"The file has no price. Write {_EXAMPLE}.")
    doc.check()
    return read_rules


def _rule(doc: TomlDocument, index: int, table: dict[str, Any]) -> PriceRule:
    values: dict[str, Any] = {}
    for key, value in table.items():
        path = ("price", index, key)
        if key not in _HINTS:
            doc.unknown_key(path, list(_HINTS))
        elif (own := converted(doc, path, _HINTS[key], value)) is not None:
            values[key] = own
    for key in _PATTERNS:
        if key in values and not values[key].strip():
            doc.mistake(
                ("price", index, key),
                "is empty. Remove it if the price is for all results.",
            )
    if not {"accelerator_hour", "machine_hour", "energy_kwh"} & table.keys():
        doc.mistake(
            ("price", index),
            "the price is missing. Give accelerator_hour, machine_hour or energy_kwh.",
        )
    patterns = {key: values.pop(key).strip() for key in _PATTERNS if key in values}
    return PriceRule(
        Price(**values), origin=f"{doc.name}:{doc.line(('price', index))}", **patterns
    )


def price_rules(
    words: Sequence[str], energy: float | None, file: FilePath | None
) -> list[PriceRule]:
    """Return the prices of the command line, which take precedence, then those of the file."""
    return [*prices_from(words, energy), *(read(file) if file is not None else [])]


def prices_from(words: Sequence[str], energy: float | None = None) -> list[PriceRule]:
    """Read prices of an hour: 2.99, H100=2.99, machine=12. `energy`: of a kilowatt-hour, for all."""
    if energy is not None and not 0 <= energy < _MOST:
        raise UsageError(
            f"--energy-price {energy:g} is not a price. Write the price of a kilowatt-hour, such as 0.12."
        )
    named = _by_name(words)
    machine = next((named.pop(k) for k in list(named) if k.lower() == "machine"), None)
    everywhere = Price(
        accelerator_hour=named.pop("", None), machine_hour=machine, energy_kwh=energy
    )
    rules = [
        PriceRule(Price(v, energy_kwh=energy), accelerator=name, origin="--price")
        for name, v in named.items()
    ]
    if everywhere.accelerator_hour is not None or machine is not None:
        rules.append(PriceRule(everywhere, origin="--price"))
    elif energy is not None:
        rules.append(PriceRule(everywhere, origin="--energy-price"))
    return rules


def _by_name(words: Sequence[str]) -> dict[str, float]:
    """Return the price of each accelerator or machine; '': of all accelerators."""
    named: dict[str, float] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        value = _amount(text)
        if value is None or (equals and not name.strip()):
            raise UsageError(f"--price {word!r} is not a price. {_HOW}")
        name = name.strip()
        key = next((k for k in named if k.lower() == name.lower()), name)
        if key in named:
            which = f"for {key}" if key else "for all accelerators"
            raise UsageError(
                f"--price gives two prices {which}: {named[key]:g}, {value:g}. Give one."
            )
        named[key] = value
    return named


def _amount(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < _MOST else None


# ---- about.toml: a title, a sentence, and who published the results ----


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of results, in the words of whoever keeps it."""

    title: str = ""
    about: str = ""  # a sentence or two, plain text
    source: str = ""  # who published it, where


def about(path: FilePath) -> About:
    """Read about.toml. `path`: the file, or its folder, which may have none."""
    file = path / ABOUT if path.is_dir() else path
    if path.is_dir() and not file.exists():
        return About()
    doc = TomlDocument(text_of(file), str(file), after="")
    known = hints(About)
    values = {}
    for key, value in doc.tree.items():
        if key not in known:
            doc.unknown_key((key,), list(known))
        else:
            values[key] = converted(doc, (key,), known[key], value) or ""
    doc.check()
    return About(**values)
