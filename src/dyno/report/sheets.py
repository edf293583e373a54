"""Machines, engines and commands behind a report's entries: what a reader needs to run it again."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dyno.facts.engine import EngineFacts, Launch
from dyno.facts.entry import Entry
from dyno.facts.imported import Document
from dyno.facts.report import CommandText, Sheet
from dyno.facts.rig import Accelerator, Rig
from dyno.measure.points import ENGINE
from dyno.numbers import human_bytes, setting

_COMMANDS = 60  # of one document
_ROLES = {"server": "server", "client": "client", "offline": "offline benchmark", "micro": "micro test",
          "quality": "accuracy test", "other": "command"}  # fmt: skip
# Settings that describe an engine, in the order of a sheet.
_NOT_SHOWN = ("revision", "enforce_eager", "accelerator", "accelerators")
_ENGINE = [
    name
    for name in dict.fromkeys(("engine", "engine_version", *ENGINE))
    if name not in _NOT_SHOWN
]


Facts = list[tuple[str, str]]  # lines of name and value


def rigs(entries: Sequence[Entry], documents: Iterable[Document]) -> list[Sheet]:
    each = (
        (e, _machine(row.rig)) for e in entries for row in e.rows if row.rig is not None
    )
    return [
        *_sheets((_name(facts), facts, e) for e, facts in each),
        *_environments(documents),
    ]


def _sheets(each: Iterable[tuple[str, Facts, Entry]]) -> list[Sheet]:
    """Return one sheet for all that have the same name and facts."""
    ids: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, None]] = {}
    for name, facts, entry in each:
        ids.setdefault((name, tuple(facts)), {})[entry.id] = None
    return [Sheet(name, list(facts), list(some)) for (name, facts), some in ids.items()]


def _machine(rig: Rig) -> Facts:
    """Return facts that stay the same between trials: not free memory or load average."""
    sockets = f", {rig.sockets} sockets" if rig.sockets and rig.sockets > 1 else ""
    facts = [
        ("system", rig.system),
        ("kernel", f"{rig.kernel} ({rig.machine})"),
        ("cpu", rig.cpu),
        ("cores", f"{rig.cores} usable{sockets}"),
    ]
    if rig.memory_bytes is not None:
        facts.append(("memory", human_bytes(rig.memory_bytes)))
    alike = Counter(map(_accelerator, rig.accelerators))
    facts += [("accelerators", f"{count} × {words}") for words, count in alike.items()]
    if rig.topology and len(rig.topology) > 1:
        links = sorted(
            {link for row in rig.topology for link in row if link and link != "X"}
        )
        facts.append(("links", ", ".join(links)))
    if rig.container:
        facts.append(("container", rig.container))
    facts += [(name.replace("_", " "), value) for name, value in rig.state.items()]
    return [*facts, *rig.environment.items()]


def _accelerator(a: Accelerator) -> str:
    parts = [a.name]
    if a.memory_bytes is not None:
        parts.append(human_bytes(a.memory_bytes))
    if a.driver:
        parts.append(f"driver {a.driver}")
    if a.power_cap_w is not None:
        parts.append(f"power cap {setting(a.power_cap_w)} W")
    parts += filter(None, [a.partition, a.link])
    return ", ".join(parts)


def _name(facts: Facts) -> str:
    values = dict(facts)
    return (values.get("accelerators") or values["cpu"]).split(",")[0]


def _environments(documents: Iterable[Document]) -> Iterator[Sheet]:
    """Yield machines as a dump of an environment describes them."""
    for d in documents:
        for i, settings in enumerate(d.environments):
            line = min((s.line for s in settings.values()), default=0)
            if settings:
                facts = [
                    (name.replace("_", " "), setting(s.value))
                    for name, s in settings.items()
                ]
                yield Sheet(f"{d.file}:{line}" if line else f"{d.file} ({i + 1})", facts)


def engines(entries: Sequence[Entry]) -> list[Sheet]:
    each = []
    for e in entries:
        for row in e.rows:
            facts = _engine(row.engine) if row.engine else _reported_settings(e)
            if facts:
                each.append((e.series, facts, e))
    return _sheets(each)


def _engine(e: EngineFacts) -> Facts:
    facts = [("engine", e.kind), ("version", e.version or "unknown")]
    if e.program:
        facts.append(("program", e.program))
    if e.image:
        facts.append(("image", e.image))
    facts += [(f"model {name}", model.describe()) for name, model in e.models.items()]
    if e.withheld:
        facts.append(("variables not passed", ", ".join(e.withheld)))
    return [*facts, *e.software.items()]


def _reported_settings(entry: Entry) -> Facts:
    """Return settings of a running server, or of another tool's result."""
    return [
        (name.replace("_", " "), setting(entry.settings[name]))
        for name in _ENGINE
        if name in entry.settings
    ]


def commands(
    entries: Sequence[Entry],
    documents: Iterable[Document],
    studies: Iterable[tuple[str, str]],
) -> list[CommandText]:
    """Return commands to run it again. `studies`: names and the text of their files."""
    out = [
        CommandText(f"study {name}: its file, for `dyno run`", text)
        for name, text in studies
    ]
    servers: dict[tuple[str, str], dict[str, None]] = {}
    for entry in entries:
        for engine in (row.engine for row in entry.rows if row.engine is not None):
            for launch in engine.launches:
                servers.setdefault((entry.series, _line(launch)), {})[entry.id] = None
    out += [
        CommandText(f"server of {series}", text, list(ids))
        for (series, text), ids in servers.items()
    ]
    for d in documents:
        out += [
            CommandText(f"{_ROLES[c.role]}, {d.file}:{c.line}", c.text)
            for c in d.commands[:_COMMANDS]
        ]
    return out


def _line(launch: Launch) -> str:
    """Return a server's command without its ports, which differ from start to start and say nothing."""
    port = str(launch.port)
    words = [
        "PORT" if word == port else word.replace(f":{port}", ":PORT")
        for word in launch.argv
    ]
    env = [f"{k}={shlex.quote(v)}" for k, v in launch.env.items()]
    return " ".join([*env, shlex.join(words)])
