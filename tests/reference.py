"""The parts of the documentation that are made from the code: pages of docs/reference/, and parts of other pages.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. `make docs-reference` writes all of them anew.
"""

import argparse
import itertools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

import parity
from dyno.cli.exit_codes import MEANINGS
from dyno.cli.main import Parser, parser
from dyno.engines.kinds.names import version_titles
from dyno.facts.elsewhere import DstackSpec, SshSpec
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.metric import DEFINITIONS, METRICS, READ_IN, STEMS
from dyno.facts.offline import OfflineSpec
from dyno.facts.price import Price
from dyno.facts.quality import QualitySpec
from dyno.facts.recipe import ModelRecipe
from dyno.facts.rig import HostWanted
from dyno.facts.setting import ALIASES
from dyno.facts.study import RigWanted, StopRule, Study
from dyno.facts.trial import TrialSpec
from dyno.facts.tune import TuneSpec
from dyno.measure.statistics import _IN_TAIL, quantile, samples_needed
from dyno.option import declared, fields
from dyno.store.sql import TABLES, RunTables
from dyno.study.cells import CELLS, FIND, MODEL, hints
from dyno.study.trials import OWN_DEFAULTS
from dyno.transport import Transport
from dyno.workload.datasets import DATASETS
from dyno.workload.spec import WorkloadSpec
from findings import reference

ROOT = Path(__file__).parent.parent
PART = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES = ("METHOD.md", "docs/*.md", "docs/reference/*.md")


def pages() -> list[Path]:
    """The pages that have such parts."""
    matching = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    return [path for path in matching if PART.search(path.read_text())]


def renewed(text: str) -> str:
    """The page with its generated parts as the code has them now."""
    return PART.sub(lambda part: f"{part[1]}\n{_part(part[2])}\n\n{part[3]}", text)


def _part(name: str) -> str:
    kind, _, what = name.partition(" ")
    return PARTS[kind](what) if what else PARTS[kind]()


# ---- Markdown ----


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def prose(text: str | None) -> str:
    """A help text: characters that Markdown would take for its own are escaped."""
    return re.sub(
        r"([*_<>\[\]])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)",
        r"\\\1",
        " ".join((text or "").split()),
    )


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


# ---- commands ----


def commands() -> str:
    return "\n\n".join(_command(p, about) for p, about in _parsers(parser(), ""))


def _parsers(p: Parser, about: str) -> Iterator[tuple[Parser, str]]:
    """All commands in their order, with the sentence that the list of commands has."""
    p.fill()
    yield p, about
    for action in p._actions:
        if isinstance(action, argparse._SubParsersAction):
            help_of = {a.dest: a.help or "" for a in action._choices_actions}
            seen = []
            for name, inner in action.choices.items():
                if inner not in seen:  # an alias is the same parser again
                    seen.append(inner)
                    yield from _parsers(inner, help_of.get(name, ""))


def _command(p: Parser, about: str) -> str:
    sentence = prose(about or (p.description or "").partition("\n\n")[0])
    parts = [f"## {p.prog}", sentence[:1].upper() + sentence[1:].rstrip(".") + "."]
    for group in p._action_groups:
        shown = [
            a
            for a in group._group_actions
            if a.help != argparse.SUPPRESS and a.dest != "help"
        ]
        if not shown:
            continue
        title = (group.title or "").capitalize()
        parts += (
            []
            if title in ("Options", "Positional arguments", "Commands", "Verbs")
            else [f"**{title}**"]
        )
        if isinstance(shown[0], argparse._SubParsersAction):
            rows = [
                [code(f"{p.prog} {a.dest}"), prose(a.help)]
                for a in shown[0]._choices_actions
            ]
            parts.append(table(["command", "does"], rows))
        else:
            parts.append(
                table(["flag", "meaning"], [[_flag(a), prose(_help(p, a))] for a in shown])
            )
    return "\n\n".join(parts)


def _flag(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    value = value if isinstance(value, str) else " ".join(value)
    if action.choices is not None:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return code(value)
    *names, last = action.option_strings
    takes = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    more = {"+": " …", "*": " …"}.get(str(action.nargs), "") if takes else ""
    return ", ".join(
        map(code, [*names, f"{last} {value}{more}" if takes and value else last])
    )


def _help(p: Parser, action: argparse.Action) -> str:
    text = p._get_formatter()._expand_help(action) if action.help else ""
    plain = isinstance(action.default, str | int | float) and not isinstance(
        action.default, bool
    )
    if (
        action.option_strings
        and plain
        and action.default not in ("", 0, argparse.SUPPRESS)
        and "default" not in text
    ):
        text += f" (default: {action.default})"
    return text.strip()


def codes() -> str:
    return table(
        ["exit code", "meaning"],
        [[str(number), prose(words)] for number, words in sorted(MEANINGS.items())],
    )


# ---- keys of study files ----

_STRUCTS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "engine": (EngineSpec, Transport),
    "workload": (WorkloadSpec,),
    "load": (LoadSpec, OfflineSpec, WorkloadSpec),
    "trial": (TrialSpec,),
}
_NAMED_DEFAULT = re.compile(r" \(default: (.+)\)$")
_TOP = (Study, "trials", "stop", "rigs", "tune")
_OWN = {
    "rig": (RigWanted, "price", "host"), "price": (Price,), "host": (HostWanted,), "stop": (StopRule,),
    "tune": (TuneSpec, "weights"),
    "ssh": (SshSpec,), "dstack": (DstackSpec,),
    "quality": (QualitySpec,),
    "container": (ContainerSpec,),
}  # fmt: skip


def study_keys(section: str) -> str:
    keys: Mapping[str, Any]
    structs: tuple[type[msgspec.Struct], ...]
    if section == "model":
        keys, structs = MODEL, (ModelRecipe,)
    elif section == "find":
        keys, structs = FIND, ()
    elif section in CELLS:
        keys, structs = CELLS[section], _STRUCTS[section]
    else:
        struct, *but = _TOP if section == "top" else _OWN[section]
        keys, structs = hints(struct, *but), (struct,)
    rows = []
    for key, hint in keys.items():
        kind, option = declared(hint)
        field = next((fields(s)[key] for s in structs if key in fields(s)), None)
        help_text = option.help or (field.option.help if field else None) or ""
        flag = option.flags.split()[0] if option.flags else ""
        default = "" if field is None else _default(field.default)
        default = OWN_DEFAULTS.get(key, default)
        if named := _NAMED_DEFAULT.search(help_text):
            help_text, default = help_text[: named.start()], default or prose(named[1])
        rows.append([code(key), _type(kind), default, prose(help_text), code(flag)])
    return table(["key", "takes", "default", "meaning", "flag"], rows)


def _default(value: Any) -> str:
    if value is None or value in ([], {}, ""):
        return ""
    return code(
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else value
    )


def _type(hint: Any) -> str:
    if get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return ", ".join(code(word) for word in get_args(hint))
    if get_origin(hint) is list:
        return f"list of {_type(get_args(hint)[0])}".replace("number", "numbers").replace(
            "text", "texts"
        )
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(
        hint, "table"
    )


# ---- findings ----


def findings() -> str:
    parts = []
    for family, rows in itertools.groupby(
        reference(), key=lambda row: row[0].partition(".")[0]
    ):
        cells = [
            [code(name), about.levels, places, about.when, about.advice]
            for name, about, places in rows
        ]
        parts += [
            f"## {family}",
            table(["finding", "level", "in", "when", "advice"], cells),
        ]
    return "\n\n".join(parts)


# ---- metrics and settings ----

_STATISTICS = "mean, median, std, min, max, pNN"


def metrics() -> str:
    rows = [
        [
            code(m.name),
            prose(m.explained),
            m.unit if m.unit != m.words else "",
            m.better or "",
        ]
        for m in METRICS.values()
    ]
    rows += [
        [
            code(f"…_{name}_ms"),
            prose(
                s.about.rstrip(".") or DEFINITIONS.get(f"dyno.{name}") or f"{s.words} time"
            ),
            "ms",
            "lower",
        ]
        for name, s in STEMS.items()
    ]
    return table(["metric", "meaning", "unit", "better"], rows)


def named(stem: str) -> str:
    """'own_tpot' → 'own TPOT'."""
    own = stem.removeprefix("own_")
    if own != stem:
        return f"own {named(own)}"
    return STEMS[stem].words if stem in STEMS else stem


def definitions() -> str:
    tools = dict.fromkeys(key.partition(".")[0] for key in DEFINITIONS)
    rows = [
        [f"{tool} {READ_IN.get(tool, '')}".strip(), named(stem), prose(words)]
        for tool in tools
        for (name, _, stem), words in (
            (k.partition("."), v) for k, v in DEFINITIONS.items()
        )
        if name == tool
    ]
    return table(["tool", "figure", "definition"], rows)


def settings() -> str:
    rows = []
    for alias in ALIASES:
        titles = [
            t for t in f"{alias.both}, {alias.titles}, {alias.labels}".split(", ") if t
        ]
        titles += [title for title, name in version_titles().items() if name == alias.name]
        flags = [
            f"--{t.replace(' ', '-')}"
            for t in f"{alias.both}, {alias.flags}".split(", ")
            if t
        ]
        rows.append(
            [
                code(alias.name),
                ", ".join(dict.fromkeys(titles)),
                ", ".join(map(code, flags)),
            ]
        )
    return table(["setting", "column titles", "flags"], rows)


def setting_names() -> str:
    """One name for a setting in flags, study files and SQL."""
    rows = []
    for part, structs in (
        ("engine", (EngineSpec,)),
        ("workload", (WorkloadSpec,)),
        ("load", (LoadSpec,)),
    ):
        for field in (
            f
            for struct in structs
            for f in fields(struct).values()
            if f.name not in ("kind", "container", "weights")
        ):
            flag = field.option.flags.split()[0] if field.option.flags else ""
            rows.append(
                [
                    code(flag),
                    code(f"{part}s.NAME.{field.name}"),
                    code(f"{part}_{field.name}"),
                ]
            )
    return table(["flag", "study key", "SQL column"], rows)


def sql_columns() -> str:
    """The columns that every installation has: those of no run."""
    parts = []
    columns = list(RunTables(ROOT / "tests" / "fixtures" / "no-runs").columns())
    for name, about in TABLES.items():
        rows = [
            [code(column), kind.lower(), prose(meaning)]
            for t, column, kind, meaning in columns
            if t == name
        ]
        parts += [
            f"### {name}",
            prose(about[:1].upper() + about[1:]) + ".",
            table(["column", "type", "meaning"], rows),
        ]
    return "\n\n".join(parts)


def file(path: str) -> str:
    """A file of the project, as a listing."""
    language = {"yml": "yaml", "sh": "sh", "toml": "toml"}[path.rpartition(".")[2]]
    return f'```{language} title="{Path(path).name}"\n{(ROOT / path).read_text().rstrip()}\n```'


def golden(what: str) -> str:
    """The first command of a golden file and the first lines that it prints: `compare/gates.txt 20`."""
    path, _, count = what.partition(" ")
    lines = (ROOT / "tests/golden/cli" / path).read_text().splitlines()
    printed = list(itertools.takewhile(lambda line: not line.startswith("--- "), lines))
    shown = [line.rstrip() for line in printed[: int(count)]]
    return "\n".join(
        ["```text", *shown, *(["…"] if len(printed) > len(shown) else []), "```"]
    )


def datasets() -> str:
    rows = [[code(name), dataset.about] for name, dataset in DATASETS.items()]
    return table(["`--dataset-name`", "prompts"], rows)


def samples() -> str:
    """Requests that percentiles need, in one run."""
    rows = [
        [title, f"{samples_needed(p):,}", f"{round(_IN_TAIL / (1 - p / 100)):,}"]
        for title, p in (("p90", 90.0), ("p95", 95.0), ("p99", 99.0))
    ]
    titles = [
        "figure",
        "requests, so that it is more than a guess",
        "so that one run gives it an interval",
    ]
    return table(titles, rows)


def repeats() -> str:
    """What n repeats can say, by Student's t: of one setting, and of a difference between two."""
    rows = []
    for n in (2, 3, 5, 10):
        both = 2 * (n - 1)
        interval = quantile(0.975, n - 1) / math.sqrt(n)
        difference = (quantile(0.975, both) + quantile(0.8, both)) * math.sqrt(2 / n)
        cells = [
            f"{share * width:.2g} %" for width in (interval, difference) for share in (1, 3)
        ]
        rows.append([str(n), *(f"± {c}" for c in cells[:2]), *cells[2:]])
    titles = ["repeats", "interval at 1 %", "at 3 %", "detectable at 1 %", "at 3 %"]
    return table(titles, rows)


def vllm_bench(command: str) -> str:
    """Each flag of one of vLLM's benchmarks, and what dyno does with it."""
    rows = []
    for p in parity.flags(command):
        own = parity.DEFAULTS.get((command, p.flag), "")
        remark = p.reason or (f"default: {own}" if own else "")
        rows.append([code(p.flag), _vllm_default(p.default), p.state, prose(remark)])
    return f"{parity.counts(command)}\n\n" + table(
        ["flag", "default in vLLM", "in dyno", "remark"], rows
    )


def _vllm_default(value: Any) -> str:
    silent = value is None or value is False or value == []
    return "" if silent else code(json.dumps(value).strip('"'))


def vllm_values(what: str) -> str:
    """The values of a flag of vLLM's that takes one of several: `serve --backend`."""
    command, _, flag = what.partition(" ")
    each = parity.values(command, flag).items()
    rows = [[code(value), "missing" if why else "works", prose(why)] for value, why in each]
    return table([code(flag), "in dyno", "remark"], rows)


PARTS: dict[str, Callable[..., str]] = {
    "vllm-bench": vllm_bench,
    "vllm-values": vllm_values,
    "datasets": datasets,
    "samples": samples,
    "repeats": repeats,
    "commands": commands,
    "exit-codes": codes,
    "study-keys": study_keys,
    "findings": findings,
    "metrics": metrics,
    "definitions": definitions,
    "settings": settings,
    "setting-names": setting_names,
    "sql": sql_columns,
    "file": file,
    "golden": golden,
}
