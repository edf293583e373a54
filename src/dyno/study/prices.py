"""A file of prices, beside studies: which accelerator or series costs how much an hour."""

import typing
from pathlib import Path as FilePath
from typing import Any

from dyno import files
from dyno.errors import UsageError
from dyno.facts.price import Price, PriceRule
from dyno.study.cells import converted
from dyno.study.document import Document

_PATTERNS = ("accelerator", "series")
_HINTS: dict[str, Any] = {**dict.fromkeys(_PATTERNS, str), **typing.get_type_hints(Price)}
_EXAMPLE = '[[price]] with accelerator = "H100" and accelerator_hour = 2.99 below it'


def read(path: FilePath) -> list[PriceRule]:
    return prices(text_of(path), str(path))


def text_of(path: FilePath) -> str:
    try:
        return files.read(path, files.TEXT, pipes=True).decode("utf-8-sig")
    except OSError as e:
        raise UsageError(f"{path} can't be read: {e.strerror or e}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text.") from None


def prices(text: str, name: str) -> list[PriceRule]:
    """In the file's order, which is that of their precedence."""
    doc = Document(text, name, so="")
    for key in doc.tree:
        if key != "price":
            doc.unknown((key,), ["price"], "key")
    rules = doc.tree.get("price", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        doc.mistake(("price",), f"is a list of tables: write {_EXAMPLE}.")
        rules = []
    made = [_rule(doc, i, rule) for i, rule in enumerate(rules)]
    for i, rule in enumerate(made[:-1]):
        if rule.general:
            doc.mistake(("price", i), "fits everything, and none of those below it would ever hold. Put it last.")
            break
    if not made:
        doc.mistake((), f"There is no price in it. Write {_EXAMPLE}.")
    doc.check()
    return made


def _rule(doc: Document, index: int, table: dict[str, Any]) -> PriceRule:
    values: dict[str, Any] = {}
    for key, value in table.items():
        path = ("price", index, key)
        if key not in _HINTS:
            doc.unknown(path, list(_HINTS))
        elif (made := converted(doc, path, _HINTS[key], value)) is not None:
            values[key] = made
    for key in _PATTERNS:
        if key in values and not values[key].strip():
            doc.mistake(("price", index, key), "is empty. Leave it out where the price is of all.")
    if not {"accelerator_hour", "machine_hour", "energy_kwh"} & table.keys():
        doc.mistake(("price", index), "has no price: give accelerator_hour, machine_hour or energy_kwh.")
    patterns = {key: values.pop(key).strip() for key in _PATTERNS if key in values}
    return PriceRule(Price(**values), at=f"{doc.name}:{doc.line(('price', index))}", **patterns)
