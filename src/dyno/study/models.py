"""Read a study's [models.NAME]: recipes, each whole, also where one is made from another."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any

import msgspec

from dyno.facts.recipe import ModelRecipe
from dyno.study.cells import MODEL, converted
from dyno.study.document import Path, TomlDocument
from dyno.study.grid import Room, used

_STEPS = ("convert", "quantize")  # in this order


class StudyModels:
    def __init__(
        self,
        document: TomlDocument,
        tables: Mapping[str, Any],
        folder: FilePath,
        problem: Callable[[ModelRecipe], tuple[str, str] | None],
    ) -> None:
        """`problem`: the key that a recipe is wrong in, and why."""
        self._doc, self._tables, self._folder, self._problem = (
            document,
            tables,
            folder,
            problem,
        )

    def read(
        self, variables: Mapping[str, Any], room: Room
    ) -> dict[str, ModelRecipe | None]:
        """Return the recipes by name; None where one is wrong."""
        rows = {
            name: self._values(name, table, variables, room)
            for name, table in self._tables.items()
        }
        return {name: self._recipe(name, rows) for name in rows}

    def _values(
        self, name: str, table: Mapping[str, Any], variables: Mapping[str, Any], room: Room
    ) -> dict[str, Any]:
        path: Path = ("models", name)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            self._doc.mistake(
                path, "can't be a model's name. Use letters, digits, '.', '_' and '-'."
            )
        out: dict[str, Any] = {}
        for key, value in table.items():
            if key not in MODEL:
                self._doc.unknown_key((*path, key), list(MODEL))
                continue
            unknown = [v for v in used(value) if v not in variables]
            lists = [v for v in used(value) if isinstance(variables.get(v), list)]
            for variable in unknown:
                self._doc.unknown((*path, key), variable, list(variables), "variable")
            for variable in lists:
                self._doc.mistake(
                    (*path, key), f"${{{variable}}} is a list, but a model takes one value."
                )
            if not (unknown or lists):
                value = converted(
                    self._doc, (*path, key), MODEL[key], room.filled(value, variables)
                )
                if value is not None:
                    out[key] = self._resolved(key, value)
        if "from" not in table:
            text = "from is missing. Give hub:OWNER/NAME@REVISION, file:PATH, or the name of another model."
            self._doc.missing(path, text, ["from"], [path])
        return out

    def _resolved(self, key: str, value: Any) -> Any:
        """Resolve a path from the study's folder. OWNER/NAME is a model of the Hub."""
        local = key == "from" and value.startswith(("file:", "/", "./", "../", "~"))
        if key == "calibration" or local:
            path = (
                self._folder / FilePath(value.removeprefix("file:")).expanduser()
            ).resolve()
            return f"file:{path}" if local else str(path)
        return (
            f"hub:{value}"
            if key == "from" and "/" in value and not value.startswith("hub:")
            else value
        )

    def _recipe(self, name: str, rows: Mapping[str, dict[str, Any]]) -> ModelRecipe | None:
        """Return it with the recipes of the models that it is made from; None: one of them is wrong."""
        chain = self._chain(name, rows)
        source = str(rows[chain[-1]].get("from", "")) if chain else ""
        if not source:
            return None
        if not source.startswith(("hub:", "file:")):
            where: Path = ("models", chain[-1], "from")
            self._doc.unknown(
                where, source, [other for other in rows if other != chain[-1]], "model"
            )
            return None
        values: dict[str, Any] = {}
        for ancestor in reversed(chain):
            if not self._check_steps(ancestor, rows[ancestor], values):
                return None
            values |= {**rows[ancestor], "from": source}
        recipe = msgspec.convert(values, ModelRecipe)
        if problem := self._problem(recipe):
            key, why = problem
            owner = next((a for a in chain if key in rows[a]), name)
            self._doc.mistake(("models", owner, key), why)
            return None
        return recipe

    def _chain(self, name: str, rows: Mapping[str, dict[str, Any]]) -> list[str]:
        """Return the model, the one that it is made from, and so on; none where the chain is circular."""
        chain = [name]
        while (source := str(rows[chain[-1]].get("from", ""))) in rows:
            if source in chain:
                text = f"is circular: {' → '.join([*chain, source])}."
                self._doc.mistake(("models", name, "from"), text)
                return []
            chain.append(source)
        return chain

    def _check_steps(self, name: str, own: dict[str, Any], before: dict[str, Any]) -> bool:
        """Return whether the model's own steps can follow those of the model that it is made from."""
        for i, step in enumerate(_STEPS):
            if step not in own:
                continue
            done = next((s for s in _STEPS[i:] if s in before), None)
            if done:
                text = f"can't follow {done} = {before[done]!r} of the model {own['from']!r}: each step is done once."
                self._doc.mistake(("models", name, step), text)
                return False
        return True
