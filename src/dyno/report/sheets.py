"""Machines, engines and commands behind a report's entries: what a reader needs to run it again."""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from dyno.facts.engine import EngineFacts, Launch
from dyno.facts.entry import Entry
from dyno.facts.imported import Document
from dyno.facts.report import Command, Sheet
from dyno.facts.rig import Accelerator, Rig
from dyno.units import human_bytes

_COMMANDS = 60  # of one document
_ROLES = {"server": "server", "client": "client", "offline": "offline benchmark", "micro": "micro test",
          "quality": "accuracy test", "other": "command"}  # fmt: skip


def rigs(entries: Sequence[Entry], documents: Iterable[Document]) -> list[Sheet]:
    found: dict[str, tuple[list[tuple[str, str]], list[str]]] = {}
    for entry in entries:
        for row in entry.rows:
            if row.rig is not None:
                facts = _machine(row.rig)
                held = found.setdefault(repr(facts), (facts, []))[1]
                if entry.id not in held:
                    held.append(entry.id)
    sheets = [Sheet(_name(facts), facts, ids) for facts, ids in found.values()]
    return sheets + list(_told(documents))


def _machine(rig: Rig) -> list[tuple[str, str]]:
    """What stays the same from trial to trial; free memory and the load average are of a moment."""
    facts = [
        ("system", rig.system),
        ("kernel", f"{rig.kernel} ({rig.machine})"),
        ("cpu", rig.cpu),
        ("cores", f"{rig.cores} usable" + (f", {rig.sockets} sockets" if rig.sockets and rig.sockets > 1 else "")),
    ]
    if rig.memory_bytes is not None:
        facts.append(("memory", human_bytes(rig.memory_bytes)))
    alike: dict[str, int] = {}
    for a in rig.accelerators:
        words = _accelerator(a)
        alike[words] = alike.get(words, 0) + 1
    facts += [("accelerators", f"{count} × {words}") for words, count in alike.items()]
    if rig.topology and len(rig.topology) > 1:
        links = sorted({link for row in rig.topology for link in row if link and link != "X"})
        facts.append(("links", ", ".join(links)))
    if rig.container:
        facts.append(("container", rig.container))
    facts += [(name.replace("_", " "), value) for name, value in rig.state.items()]
    facts += [(name, value) for name, value in rig.environment.items()]
    return facts


def _accelerator(a: Accelerator) -> str:
    parts = [a.name]
    if a.memory_bytes is not None:
        parts.append(human_bytes(a.memory_bytes))
    if a.driver:
        parts.append(f"driver {a.driver}")
    if a.power_cap_w is not None:
        parts.append(f"power cap {a.power_cap_w:g} W")
    parts += filter(None, [a.partition, a.link])
    return ", ".join(parts)


def _name(facts: Iterable[tuple[str, str]]) -> str:
    told = dict(facts)
    return (told.get("accelerators") or told["cpu"]).split(",")[0]


def _told(documents: Iterable[Document]) -> Iterator[Sheet]:
    """As somebody's dump of an environment tells it."""
    for d in documents:
        for i, told in enumerate(d.environments):
            facts = [(name.replace("_", " "), f"{s.value}") for name, s in told.items()]
            line = min((s.line for s in told.values()), default=0)
            if facts:
                yield Sheet(f"{d.file}:{line}" if line else f"{d.file} ({i + 1})", facts)


def engines(entries: Sequence[Entry]) -> list[Sheet]:
    found: dict[str, tuple[str, list[tuple[str, str]], list[str]]] = {}
    for entry in entries:
        for row in entry.rows:
            facts = _engine(row.engine) if row.engine is not None else _as_told(entry)
            if facts:
                name = f"{entry.series}"
                held = found.setdefault(repr((name, facts)), (name, facts, []))[2]
                if entry.id not in held:
                    held.append(entry.id)
    return [Sheet(name, facts, ids) for name, facts, ids in found.values()]


def _engine(e: EngineFacts) -> list[tuple[str, str]]:
    facts = [("engine", e.kind), ("version", e.version or "not told")]
    if e.program:
        facts.append(("program", e.program))
    if e.image:
        facts.append(("image", e.image))
    facts += [(name, version) for name, version in e.software.items()]
    return facts


_ENGINE = ("engine", "engine_version", "model", "quantization", "kv_cache_dtype", "dtype", "tensor_parallel",
           "pipeline_parallel", "replicas", "max_num_seqs", "max_model_len", "max_batched_tokens", "chunked_prefill",
           "prefix_caching", "scheduler_steps", "memory_fraction", "speculative")  # fmt: skip


def _as_told(entry: Entry) -> list[tuple[str, str]]:
    """Of a server that was there before, or in somebody's report."""
    return [(name.replace("_", " "), str(entry.settings[name])) for name in _ENGINE if name in entry.settings]


def commands(
    entries: Sequence[Entry], documents: Iterable[Document], studies: Iterable[tuple[str, str]]
) -> list[Command]:
    """`studies`: names and the text of their files."""
    out = [Command(f"study {name}: its file, for `dyno run`", text) for name, text in studies]
    servers: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        for row in entry.rows:
            for launch in row.engine.launches if row.engine is not None else []:
                ids = servers.setdefault((entry.series, _line(launch)), [])
                if entry.id not in ids:
                    ids.append(entry.id)
    out += [Command(f"server of {series}", text, ids) for (series, text), ids in servers.items()]
    for d in documents:
        out += [Command(f"{_ROLES[c.role]}, {d.file}:{c.line}", c.text) for c in d.commands[:_COMMANDS]]
    return out


def _line(launch: Launch) -> str:
    """Ports differ from start to start and say nothing."""
    port = str(launch.port)
    words = ["PORT" if word == port else word.replace(f":{port}", ":PORT") for word in launch.argv]
    env = [f"{k}={shlex.quote(v)}" for k, v in launch.env.items()]
    return " ".join([*env, shlex.join(words)])
