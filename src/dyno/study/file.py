"""Read a study's text into trials. All mistakes are reported together, before anything runs."""

import functools
import hashlib
import itertools
import math
import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, NamedTuple, TypeVar

import msgspec

from dyno import files, secrets
from dyno.errors import UsageError
from dyno.facts.client import ClientSpec
from dyno.facts.elsewhere import DstackSpec, SshSpec, ssh_problem
from dyno.facts.engine import READY_STALL_S
from dyno.facts.find import FindSpec, span_s, spec_of
from dyno.facts.limits import EXAMPLE
from dyno.facts.load import LoadSpec
from dyno.facts.price import Price
from dyno.facts.quality import QualitySpec
from dyno.facts.rig import HostWanted
from dyno.facts.study import PARTS, Place, PlannedTrial, RigWanted, StopRule, Study
from dyno.facts.trial import TrialSpec
from dyno.option import fields
from dyno.study import tune as tune_table
from dyno.study.cells import CELLS, FIND, choices, converted, hints
from dyno.study.document import Path, TomlDocument
from dyno.study.grid import GridCell, Room, Section, expand, used
from dyno.study.models import StudyModels
from dyno.study.order import setting_key
from dyno.study.trials import Known, Trials

T = TypeVar("T", bound=msgspec.Struct)

Trio = tuple[str, str, str]  # the names of engine, workload and load
Rule = dict[str, dict[str, Any]]  # part → key → value; the key 'name': names of its tables

_TOP = hints(Study, "trials", "stop", "rigs", "tune")
_TABLES = [
    *(
        "variables",
        "rigs",
        "models",
        "engines",
        "workloads",
        "loads",
        "trial",
        "find",
        "quality",
        "stop",
        "tune",
    ),
    *("include", "exclude"),
]
_LIKE = 20  # engines that one is like, each like the next
_ENGINE_RULES = ["like", "rigs", "workloads", "loads", "workload", "load", "trial", "zip"]
_RIG_TABLES: dict[str, type[msgspec.Struct]] = {
    "price": Price, "host": HostWanted, "ssh": SshSpec, "dstack": DstackSpec,
}  # fmt: skip
_DEEPEST = 20  # variables that name one another
_FIND = "find"  # the table, and the name of a search's load
_SPANS = ("budget", "confirm")
# of a load, in a search, too
_BESIDE_LEVEL = ("burstiness", "request_timeout_s", "cancel_rate", "cancel_after_s")


def read(
    text: str, path: FilePath, known: Known, given: Mapping[str, str] | None = None
) -> Study:
    """Read a study. `given`: variables set from outside, as text."""
    document = TomlDocument(text, str(path))
    return _Reader(document, known, path.absolute().parent).study(path.stem, given or {})


class Parts(NamedTuple):
    """The tables of the file, checked key by key."""

    # name → its sections: engine, and its workload, load and trial settings
    engines: dict[str, dict[str, Section]]
    workloads: dict[str, Section]
    loads: dict[str, Section]
    trial: Section
    # engine or workload → rigs, workloads, loads that it is for
    rules: dict[str, dict[str, list[str]]]

    @property
    def tables(self) -> dict[str, Mapping[str, Any]]:
        """Return sections by part of a trial, in the order of `PARTS`."""
        return {"engine": self.engines, "workload": self.workloads, "load": self.loads}


class StudyTables:
    def __init__(self, document: TomlDocument) -> None:
        self.doc = document

    def named(self, name: str) -> dict[str, Any]:
        table = self.doc.tree.get(name, {})
        if not isinstance(table, dict) or not all(
            isinstance(v, dict) for v in table.values()
        ):
            self.doc.mistake((name,), f"must be a table of tables: write [{name}.NAME].")
            return {}
        return table

    def rig(self, path: Path, table: Any) -> RigWanted:
        if isinstance(table.get("ssh"), str):
            table = {**table, "ssh": {"host": table["ssh"]}}
        inner = {}
        for key, struct in _RIG_TABLES.items():
            if isinstance(table.get(key), dict):
                inner[key] = self.struct((*path, key), struct, table[key])
        own = {key: value for key, value in table.items() if key not in inner}
        rig = msgspec.structs.replace(self.struct(path, RigWanted, own), **inner)
        self._check_rig(path, rig)
        return rig

    def _check_rig(self, path: Path, rig: RigWanted) -> None:
        if rig.ssh and (why := ssh_problem(rig.ssh.host)):
            self.doc.mistake((*path, "ssh"), why)
        if rig.ssh and rig.dstack:
            self.doc.mistake((*path, "dstack"), "excludes ssh: a rig is in one place.")
        if rig.dstack and rig.dstack.docker and rig.dstack.image:
            self.doc.mistake(
                (*path, "dstack"),
                "has docker and image. Docker inside has an image of dstack's own: remove one.",
            )
        if rig.client == "here" and not rig.elsewhere:
            self.doc.mistake(
                (*path, "client"),
                "needs ssh or dstack: this rig is the machine that runs dyno.",
            )

    def struct(self, path: Path, struct: type[T], table: Any) -> T:
        if not isinstance(table, dict):
            self.doc.mistake(path, "must be a table.")
            return struct()
        known, values = hints(struct), {}
        for key, value in table.items():
            if key not in known:
                self.doc.unknown_key((*path, key), list(known))
            elif (own := converted(self.doc, (*path, key), known[key], value)) is not None:
                values[key] = own
        return struct(**values)

    def parts(self, rigs: list[str]) -> Parts:
        engines, workloads, loads = (
            self.named(name) for name in ("engines", "workloads", "loads")
        )
        rules: dict[str, dict[str, list[str]]] = {}
        known_names = {"rigs": rigs, "workloads": list(workloads), "loads": list(loads)}
        sections: dict[str, dict[str, Section]] = {}
        for name in engines:
            table, paths = self._inherited(name, engines)
            own = {k: v for k, v in table.items() if k not in _ENGINE_RULES or k == "zip"}
            sections[name] = {
                "engine": self._section(
                    "engine", ("engines", name), own, paths, _ENGINE_RULES
                )
            }
            for part in ("workload", "load", "trial"):
                sections[name][part] = self._section(
                    part, ("engines", name, part), table.get(part, {})
                )
            rules[f"engine {name}"] = self._rules(table, ("engines", name), known_names)
        work = {}
        for name, table in workloads.items():
            rules[f"workload {name}"] = self._rules(
                table, ("workloads", name), {"loads": list(loads)}
            )
            cells = {k: v for k, v in table.items() if k != "loads"}
            work[name] = self._section(
                "workload", ("workloads", name), cells, also=["loads"]
            )
        how = {
            name: self._section("load", ("loads", name), table)
            for name, table in loads.items()
        }
        trial = self._section("trial", ("trial",), self.doc.tree.get("trial", {}))
        return Parts(sections, work, how, trial, rules)

    def _inherited(
        self, name: str, engines: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Path]]:
        """Merge an engine with the one that it is `like`; each key keeps its place in the file."""
        chain = [name]
        while like := engines[chain[-1]].get("like"):
            if not isinstance(like, str) or like not in engines:
                self.doc.unknown(
                    ("engines", chain[-1], "like"), like, list(engines), "engine"
                )
                break
            if like in chain:
                self.doc.mistake(
                    ("engines", name, "like"), f"is circular: {' → '.join([*chain, like])}."
                )
                break
            if len(chain) == _LIKE:
                self.doc.mistake(
                    ("engines", name, "like"), f"is a chain of more than {_LIKE} engines."
                )
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
        self,
        part: str,
        path: Path,
        table: Any,
        paths: dict[str, Path] | None = None,
        also: list[str] | None = None,
    ) -> Section:
        if not isinstance(table, dict):
            self.doc.mistake(path, "must be a table.")
            return Section(part, {}, {}, [], path)
        cells, where = {}, {key: (paths or {}).get(key, (*path, key)) for key in table}
        for key, value in table.items():
            if key in CELLS[part]:
                cells[key] = value
                self._check(where[key], CELLS[part][key], value)
            elif key != "zip":
                self.doc.unknown_key(
                    where[key], list(dict.fromkeys([*CELLS[part], *(also or []), "zip"]))
                )
        return Section(
            part, cells, where, self._zipped(path, table.get("zip", []), cells), path
        )

    def _check(self, path: Path, hint: Any, value: Any) -> None:
        """Check values here, since no trial may come of them; those with variables are checked when these are known."""
        several = choices(hint, value)
        if several is None:
            several = [value]
        for one in several:
            if not any(used(one)):
                converted(self.doc, path, hint, one)

    def _zipped(self, path: Path, value: Any, cells: dict[str, Any]) -> list[list[str]]:
        groups = [value] if value else []
        if isinstance(value, list) and all(isinstance(group, list) for group in value):
            groups = value
        if not all(_is_keys(group) for group in groups):
            self.doc.mistake(
                (*path, "zip"),
                "must be a list of this table's keys, or a list of such lists.",
            )
            return []
        for key in itertools.chain(*groups):
            if key not in cells:
                self.doc.mistake((*path, "zip"), f"{key!r} is not a key of this table.")
        return groups

    def _rules(
        self, table: dict[str, Any], path: Path, known: dict[str, list[str]]
    ) -> dict[str, list[str]]:
        rules = {}
        for key, names in known.items():
            if key in table:
                asked = converted(self.doc, (*path, key), list[str], table[key]) or []
                for name in asked:
                    if name not in names:
                        self.doc.unknown((*path, key), name, names, key.removesuffix("s"))
                rules[key] = [name for name in asked if name in names]
        return rules


def _is_keys(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(key, str) for key in value)


class _Reader:
    def __init__(self, document: TomlDocument, known: Known, folder: FilePath) -> None:
        self.doc, self.tables, self.trials = (
            document,
            StudyTables(document),
            Trials(document, known, folder),
        )

    def study(self, stem: str, given: Mapping[str, str]) -> Study:
        tree = self.doc.tree
        for key in tree:
            if key not in _TOP and key not in _TABLES:
                self.doc.unknown_key((key,), [*_TOP, *_TABLES])
        top = {
            k: converted(self.doc, (k,), hint, tree[k])
            for k, hint in _TOP.items()
            if k in tree
        }
        name = str(top.get("name") or stem)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            self.doc.mistake(
                ("name",),
                f"{name[:120]!r} can't be a folder's name. Use up to 100 letters, digits, '.', '_' and '-'.",
            )
        seed, repeats = top.get("seed") or 0, top.get("repeats") or 1
        self.room = Room(self.doc, repeats)
        self.variables = self._variables(given)
        self.rigs = {
            k: self.tables.rig(("rigs", k), v) for k, v in self.tables.named("rigs").items()
        }
        stop = (
            self.tables.struct(("stop",), StopRule, tree["stop"])
            if "stop" in tree
            else None
        )
        models = StudyModels(
            self.doc,
            self.tables.named("models"),
            self.trials.folder,
            self.trials.known.recipe_problem,
        )
        self.trials.models = models.read(self.variables, self.room)
        self.parts = self.tables.parts(list(self.rigs))
        self.find = self._find()
        tune = tune_table.read(self.doc, list(self.parts.engines), self.trials.models)
        trials = self._planned(name, seed, repeats)
        if not trials and not self.doc.mistaken:
            self.doc.mistake((), f"The study has no trials: {self._why_empty()}.")
        self.doc.check()
        return Study(
            name=name,
            about=top.get("about"),
            trials=trials,
            seed=seed,
            repeats=repeats,
            interleave=top.get("interleave", "engines"),
            on_failure=top.get("on_failure", "retry"),
            stop=stop,
            rigs=self.rigs,
            tune=tune,
        )

    def _planned(self, study: str, seed: int, repeats: int) -> list[PlannedTrial]:
        """Return the trials of the grid with all their repeats, then those of quality. Equal trials are one."""
        quality = self._quality()
        grid = list(self._grid())
        slotted = self.trials.known.with_slots([trial for _, trial, _ in grid], quality)
        trials: dict[str, PlannedTrial] = {}
        for (place, _, api_key), trial in zip(grid, slotted, strict=True):
            times = 1 if trial.find else repeats
            for repeat in range(1, times + 1):
                planned = placed(place, trial, api_key, study, seed, repeat, times)
                trials.setdefault(planned.place.id, planned)
        if quality:
            for served in _first_served(list(trials.values())):
                planned = self._quality_trial(served, quality, study, seed)
                trials.setdefault(planned.place.id, planned)
        return list(trials.values())

    def _why_empty(self) -> str:
        needed = (
            ("engines", "workloads") if self.find else ("engines", "workloads", "loads")
        )
        missing = [f"[{name}.NAME]" for name in needed if not self.doc.tree.get(name)]
        if missing:
            return f"add {', '.join(missing)}"
        return "rules of engines and workloads, or exclude, leave none"

    def _find(self) -> FindSpec | None:
        """Read [find]: its keys are the flags of `dyno find`."""
        if "find" not in self.doc.tree:
            return None
        table = self.doc.tree["find"]
        if not isinstance(table, dict):
            self.doc.mistake((_FIND,), "must be a table.")
            return None
        values = self._find_values(table)
        if _FIND in self.parts.loads:
            self.doc.mistake(
                ("loads", _FIND), "can't be the name of a load in a study with [find]."
            )
        target = values.pop("target", None)
        if not target:
            text = f"target is missing. Write target = {EXAMPLE.split()}."
            self.doc.missing((_FIND,), text, ["target"], [(_FIND,)])
            return None
        fields_by_key = {f.option.flags[2:]: f.name for f in fields(FindSpec).values()}
        try:
            return spec_of(
                target,
                {fields_by_key[k]: v for k, v in values.items() if v is not None},
                dashes="",
            )
        except UsageError as e:
            self.doc.mistake((_FIND, "target" if "target" in str(e) else "from"), str(e))
            return None

    def _find_values(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return the values of [find] by key; None: not a time."""
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in FIND:
                self.doc.unknown_key((_FIND, key), list(FIND))
            elif (own := converted(self.doc, (_FIND, key), FIND[key], value)) is not None:
                values[key] = own
        for key, value in values.items():
            if key in _SPANS and isinstance(value, str):
                values[key] = span_s(value)
                if values[key] is None:
                    self.doc.mistake(
                        (_FIND, key),
                        f"{value!r} is not a time: write seconds, or '5m', or '2h'.",
                    )
        return values

    def _search_load(self, own: Section) -> Section:
        """Return the load at which a search begins. An engine's own settings hold, but for how much load there is."""
        assert self.find is not None
        start = self.find.range[2]
        level = (
            {"max_concurrency": int(start)}
            if self.find.over == "concurrency"
            else {"request_rate_rps": start}
        )
        cells = {**level, "num_prompts": 1000}  # a probe sends as many as it needs
        paths: dict[str, Path] = {**dict.fromkeys(cells, (_FIND,)), **own.paths}
        rest = {k: v for k, v in own.cells.items() if k in _BESIDE_LEVEL}
        return Section("load", {**cells, **rest}, paths, [], (_FIND,))

    def _quality(self) -> QualitySpec | None:
        if "quality" not in self.doc.tree:
            return None
        spec = self.tables.struct(("quality",), QualitySpec, self.doc.tree["quality"])
        if spec.include_path and spec.include_path.startswith(("./", "../")):
            path = str((self.trials.folder / spec.include_path).resolve())
            spec = msgspec.structs.replace(spec, include_path=path)
        if problem := self.trials.known.quality_problem(spec):
            self.doc.mistake(("quality", problem[0]), problem[1])
        return spec

    def _quality_trial(
        self, served: PlannedTrial, spec: QualitySpec, study: str, seed: int
    ) -> PlannedTrial:
        """Plan the quality trial of the setting that a serving trial measures."""
        place, trial = served.place, served.trial
        settings = {
            key: value for key, value in place.settings.items() if key.startswith("engine.")
        }
        place = msgspec.structs.replace(
            place, workload="quality", load="", settings=settings
        )
        trial = msgspec.structs.replace(
            trial,
            workload=self.trials.known.quality_workload(spec),
            load=LoadSpec(request_timeout_s=trial.load.request_timeout_s),
            sampling={},
            find=None,
            extra_body={},
            goodput_ms={},
            client=ClientSpec(),
            ignore_eos=False,
            kind="quality",
            quality=spec,
        )
        return placed(place, trial, served.api_key_env, study, seed, repeat=1, repeats=1)

    def _variables(self, given: Mapping[str, str]) -> dict[str, Any]:
        variables = self.doc.tree.get("variables", {})
        if not isinstance(variables, dict):
            self.doc.mistake(
                ("variables",),
                "must be a table: write [variables], and NAME = VALUE below it.",
            )
            return {}
        variables = dict(variables)
        for name, text in given.items():
            if name not in variables:
                known = ", ".join(variables) or "none"
                raise UsageError(
                    f"--set {name}=…: {self.doc.name} has no such variable. Known: {known}."
                )
            value = _value(text)
            # What is text in the file stays text: version=0.10 is not a number.
            is_text = isinstance(variables[name], str) and not isinstance(value, list)
            variables[name] = text if is_text else value
        variables = self._filled(variables)
        for name, value in variables.items():
            for other in used(value):
                if other not in variables:
                    self.doc.unknown(
                        ("variables", name), other, list(variables), "variable"
                    )
        return variables

    def _filled(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the variables with the values of those that they name."""
        for _ in range(_DEEPEST):
            plain = {k: v for k, v in variables.items() if isinstance(v, str | int | float)}
            filled = {
                k: v if k in used(v) else self.room.filled(v, plain)
                for k, v in variables.items()
            }
            if filled == variables:
                break
            variables = filled
        return variables

    def _grid(self) -> Iterator[tuple[Place, TrialSpec, str | None]]:
        excluding = self._choosers("exclude")
        matched = set()
        rigs: list[str | None] = [*self.rigs] or [None]
        for rig in rigs:
            for names in self._trios(rig):
                for place, cell, trial, key in self._trials(names, rig):
                    out = {
                        i for i, rule in enumerate(excluding) if _matches(rule, names, cell)
                    }
                    matched |= out
                    if not out:
                        yield place, trial, key
            for i, rule in enumerate(self._choosers("include")):
                yield from self._included(i, rule, rig)
        if self.doc.mistaken:
            return
        for i in range(len(excluding)):
            if i not in matched:
                self.doc.mistake(("exclude", i), "matches no trial.")

    def _trios(self, rig: str | None) -> Iterator[Trio]:
        parts = self.parts
        for engine in parts.engines:
            rules = parts.rules[f"engine {engine}"]
            if rig not in rules.get("rigs", [rig]):
                continue
            for workload in rules.get("workloads", parts.workloads):
                if self.find:
                    yield engine, workload, _FIND
                for load in parts.rules[f"workload {workload}"].get("loads", parts.loads):
                    if load in rules.get("loads", parts.loads):
                        yield engine, workload, load

    def _trials(
        self, names: Trio, rig: str | None, extra: dict[str, Section] | None = None
    ) -> Iterator[tuple[Place, GridCell, TrialSpec, str | None]]:
        engine, workload, load = names
        sections = self._sections(names)
        if extra:
            sections = [
                _merged(s, extra[s.part]) if s.part in extra else s for s in sections
            ]
        machine = self.rigs[rig] if rig else RigWanted()
        for cell in expand(self.doc, sections, self.variables, self.room):
            trial = self.trials.trial({s.part: s for s in sections}, cell)
            if trial is None:
                continue
            if load == _FIND:
                trial = msgspec.structs.replace(trial, find=self.find)
            place = Place(
                "",
                "",
                engine,
                workload,
                load,
                settings={k: _shown(v, k) for k, v in cell.varying.items()},
                rig=rig,
                price=machine.price,
                host=machine.host,
                sessions=trial.workload.traits.sessions,
            )
            yield place, cell, trial, cell.sections["engine"].get("api_key_env")

    def _sections(self, names: Trio) -> list[Section]:
        """Return the sections of a trial. An engine's own settings take precedence."""
        engine, workload, load = names
        parts = self.parts
        own = parts.engines[engine]
        return [
            own["engine"],
            _merged(parts.workloads[workload], own["workload"]),
            self._search_load(own["load"])
            if load == _FIND
            else _merged(parts.loads[load], own["load"]),
            _merged(parts.trial, own["trial"]),
        ]

    def _choosers(self, name: str) -> list[Rule]:
        """Read the rules of [[include]] or [[exclude]]. `engine = 'vllm'` is short for its name."""
        rules = self.doc.tree.get(name, [])
        if not isinstance(rules, list) or not all(isinstance(r, dict) for r in rules):
            self.doc.mistake((name,), f"must be a list of tables: write [[{name}]].")
            return []
        tables = self.parts.tables
        for i, rule in enumerate(rules):
            for part in rule.keys() - tables.keys():
                self.doc.unknown_key((name, i, part), [*tables])
        return [
            {
                part: self._chooser((name, i, part), part, rule[part])
                for part in rule
                if part in tables
            }
            for i, rule in enumerate(rules)
        ]

    def _chooser(self, path: Path, part: str, wanted: Any) -> dict[str, Any]:
        if not isinstance(wanted, dict):
            wanted = {"name": wanted}
        chosen: dict[str, Any] = {}
        for key, value in wanted.items():
            if key == "name":
                chosen[key] = self._chosen_names(path, part, value)
            elif key in CELLS[part]:
                chosen[key] = value
            else:
                self.doc.unknown_key((*path, key), ["name", *CELLS[part]])
        return chosen

    def _chosen_names(self, path: Path, part: str, value: Any) -> list[str]:
        tables = self.parts.tables[part]
        names = []
        wanted = value if isinstance(value, list) else [value]
        for name in wanted:
            if isinstance(name, str) and name in tables:
                names.append(name)
            else:
                self.doc.unknown(path, name, list(tables), part)
        return names

    def _included(
        self, index: int, rule: Rule, rig: str | None
    ) -> Iterator[tuple[Place, TrialSpec, str | None]]:
        """Yield trials beside the grid: those of the named tables, with the keys that the rule changes."""
        names = [
            rule.get(part, {}).get("name", list(table))
            for part, table in self.parts.tables.items()
        ]
        extra = {}
        for part, cells in rule.items():
            own = {k: v for k, v in cells.items() if k != "name"}
            extra[part] = Section(
                part, own, {k: ("include", index, part, k) for k in own}, []
            )
        changed: dict[str, Any] = {}
        for part, section in extra.items():
            changed |= {
                f"{part}.{key}": _shown(value, key) for key, value in section.cells.items()
            }
        for trio in itertools.product(*names):
            rules = self.parts.rules[f"engine {trio[0]}"]
            if rig not in rules.get("rigs", [rig]):
                continue
            for place, _, trial, key in self._trials(trio, rig, extra):
                yield (
                    msgspec.structs.replace(place, settings={**changed, **place.settings}),
                    trial,
                    key,
                )


def _first_served(trials: list[PlannedTrial]) -> list[PlannedTrial]:
    """Return the first serving trial of each engine setting."""
    by_setting = {setting_key(p): p for p in reversed(trials) if p.trial.kind == "serve"}
    return list(reversed(by_setting.values()))


def _merged(section: Section, over: Section) -> Section:
    """Merge two sections. The second takes precedence and replaces an axis, too."""
    cells, paths = {**section.cells, **over.cells}, {**section.paths, **over.paths}
    zipped = [g for g in section.zipped if not {*g} & {*over.cells}] + over.zipped
    return section._replace(cells=cells, paths=paths, zipped=zipped)


def _matches(rule: Rule, names: Trio, cell: GridCell) -> bool:
    for part, name in zip(PARTS, names, strict=True):
        for key, wanted in rule.get(part, {}).items():
            actual = name if key == "name" else cell.sections[part].get(key)
            if actual != wanted and not (isinstance(wanted, list) and actual in wanted):
                return False
    return True


def placed(
    place: Place,
    trial: TrialSpec,
    key: str | None,
    study: str,
    seed: int,
    repeat: int,
    repeats: int,
) -> PlannedTrial:
    """Give each repeat prompts of its own, the same for every engine: comparisons are then of pairs."""
    work, load = trial.workload, trial.load
    if work.seed == 0:
        plain = _canonical(msgspec.structs.replace(work, num_warmups=0))
        shape = f"{seed} {repeat} {place.workload} {place.load} {plain} {_canonical(load)} {trial.offline}"
        own = zlib.crc32(shape.encode()) & 0x7FFFFFFF
        work, load = (
            msgspec.structs.replace(work, seed=own),
            msgspec.structs.replace(load, seed=own),
        )
        trial = msgspec.structs.replace(trial, workload=work, load=load)
    # By the engine's name: the same setting twice is A against A. With what a dataset's file holds.
    identity = [
        place.engine,
        _canonical(_identical(trial)),
        place.rig,
        repeat,
        _fingerprint(work.path),
    ]
    number = hashlib.sha256(
        msgspec.json.encode(identity, order="deterministic")
    ).hexdigest()[:10]
    place = msgspec.structs.replace(
        place, study=study, id=number, repeat=repeat, repeats=repeats
    )
    return PlannedTrial(place, trial, key)


def _identical(trial: TrialSpec) -> TrialSpec:
    """Return the trial without what moves no number (a renewed key, a port, a timeout)."""
    engine = trial.engine
    if engine is not None:
        engine = msgspec.structs.replace(
            engine,
            env=_shown(engine.env),
            args=_shown(engine.args),
            port=None,
            accepts=None,
            ready_timeout_s=0.0,  # as in earlier versions: the trial keeps its id
            ready_stall_s=READY_STALL_S,
        )
    return msgspec.structs.replace(
        trial,
        target=msgspec.structs.replace(trial.target, cacert=None, cert=None, cert_key=None),
        engine=engine,
        extra_body=secrets.public(trial.extra_body),
        chat_template_kwargs=secrets.public(trial.chat_template_kwargs),
        request_id_prefix=None,
        metadata={},
        ready_check_timeout_s=None,
        correctness_check=True,
        client=msgspec.structs.replace(trial.client, ray_address=None),
    )


def _fingerprint(path: str | None) -> str | None:
    """Identify a dataset's file well enough to see that it changed."""
    try:
        stat = FilePath(path or "").stat()
        return _ends(path or "", stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError):  # reported by those who read it
        return None


@functools.cache
def _ends(path: str, size: int, _: int) -> str:
    """Hash its size and both of its ends, once for all the trials that use it."""
    with files.opened(FilePath(path)) as file:
        data = file.read(1 << 20)
        file.seek(max(size - (1 << 20), 0))
        return f"{size} {hashlib.sha256(data + file.read(1 << 20)).hexdigest()[:16]}"


def _canonical(value: Any) -> Any:
    """Leave out defaults: a later dyno that knows more settings gives the trial the same id."""
    if not isinstance(value, msgspec.Struct):
        return value
    own = (
        (name, getattr(value, name), field.default)
        for name, field in fields(type(value)).items()
    )
    return {name: _canonical(v) for name, v, default in own if v != default}


def _shown(value: Any, name: str = "") -> Any:
    """Return a setting's value as labels and folder names have it: without secrets."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"  # JSON has no word for it
    return secrets.public(value, name)


def _value(text: str) -> Any:
    """Read a value as TOML does; a plain word is a text. True and False are written as in Python or TOML."""
    try:
        text = text.lower() if text in ("True", "False") else text
        return tomllib.loads(f"x = {text}")["x"]
    except files.BROKEN:
        return text
