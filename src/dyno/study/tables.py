"""The tables of a study's file, checked key by key: what is said where, before any of it is multiplied."""

from typing import Any, NamedTuple, TypeVar

import msgspec

from dyno.facts.price import Price
from dyno.facts.study import RigWanted
from dyno.study.cells import CELLS, converted, hints
from dyno.study.document import Document, Path
from dyno.study.grid import Section

T = TypeVar("T", bound=msgspec.Struct)

_LIKE = 20  # engines that one is like, each like the next
_OF_ENGINE = ["like", "rigs", "workloads", "loads", "workload", "load", "trial", "zip"]


class Parts(NamedTuple):
    """The tables of the file, checked key by key."""

    engines: dict[str, dict[str, Section]]  # name → its sections: engine, and what it says of workload, load, trial
    workloads: dict[str, Section]
    loads: dict[str, Section]
    trial: Section
    rules: dict[str, dict[str, list[str]]]  # engine or workload → rigs, workloads, loads that it is for


class Tables:
    def __init__(self, document: Document) -> None:
        self.doc = document

    def named(self, name: str) -> dict[str, Any]:
        table = self.doc.tree.get(name, {})
        if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
            self.doc.mistake((name,), f"is a table of tables: write [{name}.NAME].")
            return {}
        return table

    def rig(self, path: Path, table: Any) -> RigWanted:
        price = None
        if isinstance(table.get("price"), dict):
            price = self.struct((*path, "price"), Price, table["price"])
            table = {k: v for k, v in table.items() if k != "price"}
        return msgspec.structs.replace(self.struct(path, RigWanted, table), price=price)

    def struct(self, path: Path, struct: type[T], table: Any) -> T:
        if not isinstance(table, dict):
            self.doc.mistake(path, "is a table.")
            return struct()
        known, values = hints(struct), {}
        for key, value in table.items():
            if key not in known:
                self.doc.unknown((*path, key), list(known))
            elif (own := converted(self.doc, (*path, key), known[key], value)) is not None:
                values[key] = own
        return struct(**values)

    def parts(self, rigs: list[str]) -> Parts:
        engines, workloads, loads = (self.named(name) for name in ("engines", "workloads", "loads"))
        rules: dict[str, dict[str, list[str]]] = {}
        known_names = {"rigs": rigs, "workloads": list(workloads), "loads": list(loads)}
        sections: dict[str, dict[str, Section]] = {}
        for name in engines:
            table, paths = self._inherited(name, engines)
            own = {k: v for k, v in table.items() if k not in _OF_ENGINE or k == "zip"}
            sections[name] = {"engine": self._section("engine", ("engines", name), own, paths, _OF_ENGINE)}
            for part in ("workload", "load", "trial"):
                sections[name][part] = self._section(part, ("engines", name, part), table.get(part, {}))
            rules[f"engine {name}"] = self._rules(table, ("engines", name), known_names)
        work = {}
        for name, table in workloads.items():
            rules[f"workload {name}"] = self._rules(table, ("workloads", name), {"loads": list(loads)})
            cells = {k: v for k, v in table.items() if k != "loads"}
            work[name] = self._section("workload", ("workloads", name), cells, also=["loads"])
        how = {name: self._section("load", ("loads", name), table) for name, table in loads.items()}
        trial = self._section("trial", ("trial",), self.doc.tree.get("trial", {}))
        return Parts(sections, work, how, trial, rules)

    def _inherited(self, name: str, engines: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
        """With what it takes from the engine that it is `like`, each key with the place where it is said."""
        chain = [name]
        while like := engines[chain[-1]].get("like"):
            if not isinstance(like, str) or like not in engines:
                self.doc.unknown(("engines", chain[-1], "like", str(like)), list(engines), "engine")
                break
            if like in chain:
                self.doc.mistake(("engines", name, "like"), f"goes round in a circle: {' → '.join([*chain, like])}.")
                break
            if len(chain) == _LIKE:
                self.doc.mistake(("engines", name, "like"), f"leads through more than {_LIKE} engines.")
                break
            chain.append(like)
        table: dict[str, Any] = {}
        paths: dict[str, Path] = {}
        for ancestor in reversed(chain):
            for key, value in engines[ancestor].items():
                inner = isinstance(value, dict) and isinstance(table.get(key), dict)
                table[key] = {**table[key], **value} if inner else value
                paths[key] = ("engines", ancestor, key)
        return table, paths

    def _section(
        self, part: str, path: Path, table: Any, paths: dict[str, Path] | None = None, also: list[str] | None = None
    ) -> Section:
        if not isinstance(table, dict):
            self.doc.mistake(path, "is a table.")
            return Section(part, {}, {}, [])
        cells = {}
        for key, value in table.items():
            if key in CELLS[part]:
                cells[key] = value
            elif key != "zip":
                self.doc.unknown((*path, key), list(dict.fromkeys([*CELLS[part], *(also or []), "zip"])))
        where = {key: (paths or {}).get(key, (*path, key)) for key in cells}
        return Section(part, cells, where, self._zipped(path, table.get("zip", []), cells))

    def _zipped(self, path: Path, value: Any, cells: dict[str, Any]) -> list[list[str]]:
        nested = isinstance(value, list) and value and all(isinstance(g, list) for g in value)
        groups = value if nested else [value] if value else []
        if not all(isinstance(g, list) and all(isinstance(k, str) for k in g) for g in groups):
            self.doc.mistake((*path, "zip"), "is a list of this table's keys, or a list of such lists.")
            return []
        for group in groups:
            for key in group:
                if key not in cells:
                    self.doc.mistake((*path, "zip"), f"{key!r} is no key of this table.")
        return groups

    def _rules(self, table: dict[str, Any], path: Path, known: dict[str, list[str]]) -> dict[str, list[str]]:
        found = {}
        for key, names in known.items():
            if key in table:
                asked = converted(self.doc, (*path, key), list[str], table[key]) or []
                for name in asked:
                    if name not in names:
                        self.doc.unknown((*path, key, name), names, key.removesuffix("s"))
                found[key] = [name for name in asked if name in names]
        return found
