"""From a study's text to its trials. Everything that is wrong with it is told at once, before anything runs."""

import functools
import hashlib
import math
import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import msgspec

from dyno import files, secrets
from dyno.errors import UsageError
from dyno.facts.study import PARTS, Place, PlannedTrial, RigWanted, StopRule, Study
from dyno.facts.trial import TrialSpec
from dyno.study.cells import CELLS, converted, hints
from dyno.study.document import Document
from dyno.study.grid import Cell, Room, Section, expand, used
from dyno.study.tables import Parts, Tables
from dyno.study.trials import Known, Trials

_TOP = hints(Study, "trials", "stop", "rigs")
_TABLES = ["variables", "rigs", "engines", "workloads", "loads", "trial", "stop", "include", "exclude"]
_DEEPEST = 20  # variables that name one another


def read(text: str, path: FilePath, known: Known, given: Mapping[str, str] | None = None) -> Study:
    """`given`: variables set from outside, as text."""
    document = Document(text, str(path))
    return _Reader(document, known, path.absolute().parent).study(path.stem, given or {})


class _Reader:
    def __init__(self, document: Document, known: Known, folder: FilePath) -> None:
        self.doc, self.tables, self.trials = document, Tables(document), Trials(document, known, folder)

    def study(self, stem: str, given: Mapping[str, str]) -> Study:
        tree = self.doc.tree
        for key in tree:
            if key not in _TOP and key not in _TABLES:
                self.doc.unknown((key,), [*_TOP, *_TABLES], "key")
        top = {k: converted(self.doc, (k,), hint, tree[k]) for k, hint in _TOP.items() if k in tree}
        name = str(top.get("name") or stem)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            self.doc.mistake(("name",), f"{name[:120]!r} names a folder: up to 100 letters, digits, '.', '_' and '-'.")
        seed, repeats = top.get("seed") or 0, top.get("repeats") or 1
        self.room = Room(self.doc, repeats)
        variables = self._variables(given)
        rigs = {k: self.tables.rig(("rigs", k), v) for k, v in self.tables.named("rigs").items()}
        stop = self.tables.struct(("stop",), StopRule, tree["stop"]) if "stop" in tree else None
        parts = self.tables.parts(list(rigs))
        trials: dict[str, PlannedTrial] = {}
        for place, trial, api_key in self._grid(parts, variables, rigs):
            for repeat in range(1, repeats + 1):
                planned = _placed(place, trial, api_key, name, seed, repeat, repeats)
                trials.setdefault(planned.place.id, planned)
        if not trials and not self.doc.mistaken:
            missing = [name for name in ("engines", "workloads", "loads") if not tree.get(name)]
            why = (
                f"it has no {', no '.join(missing)}"
                if missing
                else "the rules for engines and workloads, or exclude, leave none"
            )
            self.doc.mistake((), f"There is no trial: {why}.")
        self.doc.check()
        return Study(
            name=name,
            about=top.get("about"),
            trials=list(trials.values()),
            seed=seed,
            repeats=repeats,
            interleave=top.get("interleave", "engines"),
            on_failure=top.get("on_failure", "retry"),
            stop=stop,
            rigs=rigs,
        )

    def _variables(self, given: Mapping[str, str]) -> dict[str, Any]:
        variables = self.doc.tree.get("variables", {})
        if not isinstance(variables, dict):
            self.doc.mistake(("variables",), "is a table: write [variables], and NAME = VALUE below it.")
            return {}
        for name, text in given.items():
            if name not in variables:
                known = ", ".join(variables) or "none"
                raise UsageError(f"--set {name}=…: {self.doc.name} has no such variable. There are: {known}.")
            value = _value(text)
            # What is text in the file stays text: version=0.10 is no number.
            is_text = isinstance(variables[name], str) and not isinstance(value, list)
            variables = {**variables, name: text if is_text else value}
        out = dict(variables)
        for _ in range(_DEEPEST):  # one may name another
            plain = {k: v for k, v in out.items() if isinstance(v, str | int | float)}
            before, out = out, {k: v if k in used(v) else self.room.filled(v, plain) for k, v in out.items()}
            if out == before:
                break
        for name, value in out.items():
            for other in used(value):
                if other not in out:
                    self.doc.unknown(("variables", name, other), list(out), "variable")
        return out

    def _grid(
        self, parts: Parts, variables: dict[str, Any], rigs: dict[str, RigWanted]
    ) -> Iterator[tuple[Place, TrialSpec, str | None]]:
        excluding = self._choosers("exclude", parts)
        matched = set()
        for rig in [*rigs, *([] if rigs else [None])]:
            for names in self._trios(parts, rig):
                for place, cell, trial, key in self._trials(names, parts, variables, rig, rigs):
                    out = {i for i, rule in enumerate(excluding) if _matches(rule, names, cell)}
                    matched |= out
                    if not out:
                        yield place, trial, key
            for i, rule in enumerate(self._choosers("include", parts)):
                yield from self._included(i, rule, parts, variables, rig, rigs)
        for i in sorted({*range(len(excluding))} - matched) if not self.doc.mistaken else []:
            self.doc.mistake(("exclude", i), "excludes nothing: no trial is like this.")

    def _trios(self, parts: Parts, rig: str | None) -> Iterator[tuple[str, str, str]]:
        for engine in parts.engines:
            of_engine = parts.rules[f"engine {engine}"]
            if rig not in of_engine.get("rigs", [rig]):
                continue
            for workload in of_engine.get("workloads", parts.workloads):
                for load in parts.rules[f"workload {workload}"].get("loads", parts.loads):
                    if load in of_engine.get("loads", parts.loads):
                        yield engine, workload, load

    def _trials(
        self,
        names: tuple[str, str, str],
        parts: Parts,
        variables: dict[str, Any],
        rig: str | None,
        rigs: dict[str, RigWanted],
        extra: dict[str, Section] | None = None,
    ) -> Iterator[tuple[Place, Cell, TrialSpec, str | None]]:
        engine, workload, load = names
        own = parts.engines[engine]
        sections = [
            own["engine"],
            _merged(parts.workloads[workload], own["workload"]),
            _merged(parts.loads[load], own["load"]),
            _merged(parts.trial, own["trial"]),
        ]
        sections = [_merged(s, extra[s.part]) if extra and s.part in extra else s for s in sections]
        for cell in expand(self.doc, sections, variables, self.room):
            trial = self.trials.trial({s.part: s for s in sections}, cell)
            if trial is not None:
                price = rigs[rig].price if rig else None
                settings = {k: _shown(v, k) for k, v in cell.varying.items()}
                place = Place("", "", engine, workload, load, settings, rig=rig, price=price)
                yield place, cell, trial, cell.sections["engine"].get("api_key_env")

    def _choosers(self, name: str, parts: Parts) -> list[dict[str, dict[str, Any]]]:
        """Each rule as part → key → values; 'name' is the table's own. `engine = 'vllm'` is short for its name."""
        rules = self.doc.tree.get(name, [])
        if not isinstance(rules, list) or not all(isinstance(r, dict) for r in rules):
            self.doc.mistake((name,), f"is a list of tables: write [[{name}]].")
            return []
        tables = _by_part(parts)
        out = []
        for i, rule in enumerate(rules):
            made: dict[str, dict[str, Any]] = {}
            for part, wanted in rule.items():
                if part not in tables:
                    self.doc.unknown((name, i, part), [*tables], "part of a trial")
                    continue
                made[part] = {}
                for key, value in (wanted if isinstance(wanted, dict) else {"name": wanted}).items():
                    if key != "name":
                        if key in CELLS[part]:
                            made[part][key] = value
                        else:
                            self.doc.unknown((name, i, part, key), ["name", *CELLS[part]])
                        continue
                    names = value if isinstance(value, list) else [value]
                    for one in names:
                        if not isinstance(one, str) or one not in tables[part]:
                            self.doc.unknown((name, i, part, str(one)), list(tables[part]), part)
                    made[part][key] = [one for one in names if isinstance(one, str) and one in tables[part]]
            out.append(made)
        return out

    def _included(
        self,
        index: int,
        rule: dict[str, dict[str, Any]],
        parts: Parts,
        variables: dict[str, Any],
        rig: str | None,
        rigs: dict[str, RigWanted],
    ) -> Iterator[tuple[Place, TrialSpec, str | None]]:
        """Trials beside the grid: the named tables, with the keys that the rule says otherwise."""
        tables = _by_part(parts)
        names = [rule.get(part, {}).get("name", list(tables[part])) for part in PARTS]
        extra = {}
        for part, cells in rule.items():
            own = {k: v for k, v in cells.items() if k != "name"}
            extra[part] = Section(part, own, {k: ("include", index, part, k) for k in own}, [])
        for engine in names[0]:
            if rig not in parts.rules[f"engine {engine}"].get("rigs", [rig]):
                continue
            for workload in names[1]:
                for load in names[2]:
                    trio = (engine, workload, load)
                    for place, _, trial, key in self._trials(trio, parts, variables, rig, rigs, extra):
                        said = {
                            f"{p}.{k}": _shown(v, k)
                            for p, cells in rule.items()
                            for k, v in cells.items()
                            if k != "name"
                        }
                        yield msgspec.structs.replace(place, settings={**said, **place.settings}), trial, key


def _by_part(parts: Parts) -> dict[str, Mapping[str, Any]]:
    return {"engine": parts.engines, "workload": parts.workloads, "load": parts.loads}


def _merged(section: Section, over: Section) -> Section:
    """The second goes before the first; what it says replaces an axis, too."""
    cells, paths = {**section.cells, **over.cells}, {**section.paths, **over.paths}
    zipped = [g for g in section.zipped if not {*g} & {*over.cells}] + over.zipped
    return Section(section.part, cells, paths, zipped)


def _matches(rule: dict[str, dict[str, Any]], names: tuple[str, str, str], cell: Cell) -> bool:
    for part, name in zip(PARTS, names, strict=True):
        for key, wanted in rule.get(part, {}).items():
            actual = name if key == "name" else cell.sections[part].get(key)
            if actual != wanted and not (isinstance(wanted, list) and actual in wanted):
                return False
    return True


def _placed(
    place: Place, trial: TrialSpec, key: str | None, study: str, seed: int, repeat: int, repeats: int
) -> PlannedTrial:
    """Each repeat with prompts of its own, the same for every engine: a comparison is then of pairs."""
    w, load = trial.workload, trial.load
    if w.seed == 0:
        plain = _canonical(msgspec.structs.replace(w, num_warmups=0))
        shape = f"{seed} {repeat} {place.workload} {place.load} {plain} {_canonical(load)} {trial.offline}"
        own = zlib.crc32(shape.encode()) & 0x7FFFFFFF
        w, load = msgspec.structs.replace(w, seed=own), msgspec.structs.replace(load, seed=own)
        trial = msgspec.structs.replace(trial, workload=w, load=load)
    # By name: the same setting twice is A against A. Without what moves no number (a renewed key, a port, a timeout);
    # with what a dataset's file holds.
    engine = trial.engine
    if engine is not None:
        plain = {"env": _shown(engine.env), "args": _shown(engine.args), "port": None, "ready_timeout_s": 0.0}
        engine = msgspec.structs.replace(engine, **plain)
    body = secrets.public(trial.extra_body)
    target = msgspec.structs.replace(trial.target, cacert=None, cert=None, cert_key=None)
    same = msgspec.structs.replace(
        trial, target=target, engine=engine, extra_body=body, metadata={}, ready_check_timeout_s=0.0
    )
    identity = [place.engine, _canonical(same), place.rig, repeat, _fingerprint(w.path)]
    number = hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:10]
    place = msgspec.structs.replace(place, study=study, id=number, repeat=repeat, repeats=repeats)
    return PlannedTrial(place, trial, key)


def _fingerprint(path: str | None) -> str | None:
    """Of a dataset's file: enough to see that it is another one."""
    try:
        found = FilePath(path or "").stat()
        return _ends(path or "", found.st_size, found.st_mtime_ns)
    except (OSError, ValueError):  # told by those who read it
        return None


@functools.cache
def _ends(path: str, size: int, _: int) -> str:
    """Its size and both of its ends; once for all the trials that use it."""
    with files.opened(FilePath(path)) as file:
        data = file.read(1 << 20)
        file.seek(max(size - (1 << 20), 0))
        return f"{size} {hashlib.sha256(data + file.read(1 << 20)).hexdigest()[:16]}"


def _canonical(value: Any) -> Any:
    """Without what is at its default: a later dyno that knows more settings finds the same trial."""
    if not isinstance(value, msgspec.Struct):
        return value
    told = ((name, getattr(value, name), default) for name, default in _defaults(type(value)).items())
    return {name: _canonical(own) for name, own, default in told if own != default}


@functools.cache
def _defaults(struct: type[msgspec.Struct]) -> dict[str, Any]:
    fields = msgspec.structs.fields(struct)
    return {f.name: f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory() for f in fields}


def _shown(value: Any, name: str = "") -> Any:
    """A setting in a label and a folder's name: without what may be a secret."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"  # JSON has no word for it
    return secrets.public(value, name)


def _value(text: str) -> Any:
    """As TOML would read it; a plain word is a text."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except files.BROKEN:
        return text
