"""A fleet: the copies of one engine setting, from the plan that a dry run prints to the memory given back."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from dyno import secrets
from dyno.engines import container
from dyno.engines.engine import Engine
from dyno.engines.kinds import kind_of
from dyno.engines.kinds.base import Kind
from dyno.engines.launch import allowed, launches, public, shown, spec_secrets
from dyno.engines.locate import locate
from dyno.engines.process import EngineProcess, free_port, scrub
from dyno.engines.program import Program
from dyno.errors import EngineError, TargetError, UsageError
from dyno.experiment.signals import lent
from dyno.facts.engine import EngineFacts, EngineSpec, Launch, Limits
from dyno.facts.model import ModelShape
from dyno.facts.request import Request
from dyno.facts.rig import Rig
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.http import Client, Url
from dyno.load.protocols import PROTOCOLS, Asked
from dyno.measure import preflight
from dyno.measure.agreement import differences
from dyno.probe import accelerators, server, software
from dyno.probe import model as model_files

_GRACE_S = 15.0  # from TERM to KILL: several workers have shared memory and a device to give back
_MEMORY_BACK_S = 30.0
_HELD_BYTES = 512 * 2**20  # below that, what an accelerator keeps for itself
_COMMAND_S = 600.0
_WORD_EVERY_S = 20.0  # while it loads: a sign of life


class Plan:
    """What would be run, and what is known of it before it runs."""

    def __init__(self, spec: EngineSpec, rig: Rig, port: int | None = None, dry: bool = False) -> None:
        self.kind: Kind = kind_of(spec.kind)
        if not self.kind.starts:
            raise UsageError(f"An engine of the kind {spec.kind} is attached to, not started: give its --base-url.")
        if min(spec.replicas, spec.tensor_parallel, spec.pipeline_parallel) < 1:
            raise UsageError("replicas, tensor_parallel and pipeline_parallel are at least 1.")
        self.spec = spec = self.kind.prepare(_absolute(spec))
        self.rig = rig
        self.program: Program = locate(self.kind, spec, dry)
        self.model = _model(spec)
        self.limits: Limits = self.kind.limits(spec, self.model, self.program.version)
        present = allowed([a.index for a in rig.accelerators], vendor_of(rig), os.environ)
        if spec.devices and present and (absent := [d for d in spec.devices if d not in present]):
            raise UsageError(
                f"devices = {spec.devices}: there is no accelerator {', '.join(map(str, absent))}; there are "
                f"{', '.join(map(str, present))} (`dyno doctor`)."
            )
        if spec.devices and not present and (self.program.embedded or not dry):
            why = (
                "what comes with dyno runs on the CPU" if self.program.embedded else "none is seen here (`dyno doctor`)"
            )
            raise UsageError(f"devices = {spec.devices}: {why}. Leave the devices out.")
        if spec.devices and len(set(spec.devices)) < len(spec.devices):
            raise UsageError(f"devices = {spec.devices}: one is named twice.")
        # What comes with dyno runs on the CPU.
        self.devices = [] if self.program.embedded else present if spec.devices is None else spec.devices
        box = spec.container.accelerator if spec.container else None
        # A dry run for another machine: as if it had NVIDIA's, unless the container says otherwise.
        self.assumed = (box or "nvidia") if dry and spec.devices and not present else None
        vendor = vendor_of(rig) or self.assumed
        port = port or spec.port
        ports = [port + i if port else 8000 + i if dry else free_port() for i in range(spec.replicas)]
        inside = launches(self.kind, spec, self.program, ports, self.devices, vendor)
        self.cleanups: list[list[str]] = [[] for _ in inside]
        self.launches: list[Launch] = inside
        self.tool: str | None = None
        if spec.container:
            self._into_containers(spec, inside, vendor, dry)

    def _into_containers(self, spec: EngineSpec, inside: list[Launch], vendor: str | None, dry: bool) -> None:
        assert spec.container
        self.tool = (spec.container.tool or "docker") if dry else container.tool(spec.container.tool)
        names = [f"dyno-{os.getpid()}-{launch.port}" for launch in inside]
        accelerator = spec.container.accelerator or vendor or "none"
        groups = container.device_groups(self.tool)
        handed_on = [name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if name in os.environ]
        model = spec.model if self.model else None
        self.launches = [
            container.wrap(launch, spec.container, name, self.tool, model, accelerator, handed_on, groups=groups)
            for launch, name in zip(inside, names, strict=True)
        ]
        self.cleanups = [container.remove_command(self.tool, name) for name in names]

    @property
    def served_name(self) -> str:
        return self.spec.served_name or self.kind.default_name(self.spec)

    @property
    def tokenizer(self) -> str | None:
        """The model's own, where its files are here."""
        if self.model is None:
            return None
        path = Path(self.model.path)
        file = (path if path.is_dir() else path.parent) / "tokenizer.json"
        return str(file) if file.exists() else None

    @property
    def secrets(self) -> list[str]:
        """Values that must not stay in a log: the setting's own, and what the engine inherits."""
        return sorted({*secrets.values(os.environ), *spec_secrets(self.spec)}, key=len, reverse=True)

    def clean(self, text: str) -> str:
        return secrets.without(self.secrets, [text])[0]

    def problems(self, needed: Sequence[int] = ()) -> list[str]:
        """`needed`: prompt + output of the requests, as far as they are known."""
        unsaid = self.kind.unsaid_quantization(self.spec, self.program.version)
        found = list(preflight.problems(self.spec, self.limits, self.model, self.rig, self.devices, from_files=unsaid))
        too_long = preflight.length_problem(needed, self.limits)
        return [too_long, *found] if too_long else found

    def notes(self, concurrency: int | None) -> list[str]:
        """What is allowed and will be a finding."""
        at_once = self.limits.slots and self.limits.slots * self.spec.replicas
        queue = bool(at_once and concurrency and concurrency > at_once)
        told = [f"{concurrency} requests in flight, {at_once} worked on at once: the queue will be measured"] * queue
        if self.spec.replicas > 1 and not self.devices:
            told.append(f"{self.spec.replicas} copies share the cores of this machine: no accelerator is used")
        made_for, asked = self.model and self.model.context, self.spec.max_model_len
        if made_for and asked and asked > made_for:
            told.append(f"max_model_len = {asked} is more than the model was made for ({made_for})")
        whole = msgspec.structs.replace(self.limits, cache_tokens=self.limits.cache_tokens or self.limits.context or 0)
        if not self.problems() and (
            tight := list(preflight.problems(self.spec, whole, self.model, self.rig, self.devices))
        ):
            told.append(f"One request of full length may not fit: {tight[0]}")
        return told

    def lines(self) -> Iterator[str]:
        """For the dry run."""
        version = self.program.version or "of unknown version, its newest flags assumed"
        yield f"# {self.kind.title} {version}, {self.program.where}"
        context = f"{self.limits.context} tokens ({self.limits.context_from})" if self.limits.context else "unknown"
        yield f"# context of a request: {context}; requests at once: {self.limits.slots or 'the engine decides'}"
        if self.assumed:
            yield f"# no accelerator is seen here: {self.assumed} is assumed"
        if self.kind.unsaid_quantization(self.spec, self.program.version):
            yield f"# quantization {self.spec.quantization}: no flag makes it, the model's files must have it"
        if self.spec.container and self.tool:
            commands = container.prepare_commands(self.spec.container, self.tool, there=False)
            yield from (shown(Launch(command, {}, 0)) for command in commands)
        yield from map(self.clean, self.spec.before)
        yield from (self.clean(shown(launch)) for launch in self.launches)
        yield from (f"{self.clean(command)}    # afterwards" for command in self.spec.after)


def vendor_of(rig: Rig) -> str | None:
    return rig.accelerators[0].vendor if rig.accelerators else None


class Fleet:
    """Running copies that have been verified to serve what was asked for."""

    def __init__(
        self, plan: Plan, engines: list[Engine], target: TargetFacts, facts: EngineFacts, headers: dict[str, str]
    ) -> None:
        self.headers = headers
        self.plan = plan
        self.engines = engines
        self.target = target
        self.facts = facts

    @property
    def urls(self) -> list[str]:
        return [e.base_url for e in self.engines]

    def cpu_s(self) -> float | None:
        """That its processes have used so far. None in a container: they are another's children."""
        return None if self.plan.spec.container else sum(e.process.cpu_s() for e in self.engines)

    def told(self) -> str:
        """What came up, in a line."""
        t, f = self.target, self.facts
        parts = ", ".join(f"{name} {took:.1f}" for name, took in f.startup_s.items())
        facts = [
            t.max_model_len and f"context {t.max_model_len}",
            t.slots and f"{t.slots} at once",
            t.quantization or t.dtype,
            t.kv_cache_tokens and f"KV cache {t.kv_cache_tokens:,} tokens",
            t.prefix_caching is not None and f"prefix cache {'on' if t.prefix_caching else 'off'}",
        ]
        took = f"{f.ready_s or 0:.1f} s" + (f" ({parts})" if parts else "")
        known = ", ".join(str(fact) for fact in facts if fact)
        return f"{self.plan.kind.title} {f.version or ''} is ready after {took}: {known or 'it says nothing of itself'}"

    def death(self) -> str | None:
        """The last words of a copy that is no more."""
        for engine in self.engines:
            if not engine.process.alive():
                return str(engine.failed(f"died with code {engine.process.exit_code} under load"))
        return None

    def empty_cache(self) -> bool:
        return empty_caches(self.plan.kind, self.urls, self.headers)


def empty_caches(kind: Kind, urls: Sequence[str], headers: dict[str, str], insecure: bool = False) -> bool:
    """The prefix caches of all these servers; False where one can't."""
    done = True
    for url in urls:
        client = Client(Url(url), headers, insecure=insecure, timeout_s=60)
        try:
            done = kind.reset_cache(client) and done
        except TargetError:
            done = False
        finally:
            client.close()
    return done


Say = Callable[[str], None]


@contextlib.contextmanager
def running(
    plan: Plan, folder: Path, headers: dict[str, str], say: Say, changed: Callable[[EngineFacts], None]
) -> Iterator[Fleet]:
    """Starts the copies, waits for a completed generation from each, verifies them; stops them on leaving.

    `changed` is told the facts when they are known, and again after the stop.
    """
    log = folder / "engine.log"
    used = sorted({d for launch in plan.launches for d in launch.devices or plan.devices})
    held_before = accelerators.memory_used(used)
    engines: list[Engine] = []
    facts: EngineFacts | None = None
    # TERM and HUP end this as Ctrl-C does: the engine is stopped, and the commands after it are run.
    with lent((signal.SIGTERM, signal.SIGHUP), _interrupt), contextlib.ExitStack() as last:
        last.callback(_scrub_all, folder, plan.secrets)
        last.callback(_commands, plan, plan.spec.after, log, "after", say)
        try:
            _commands(plan, plan.spec.before, log, "before", say)
            image = None
            if plan.spec.container and plan.tool:
                image = container.pull_or_build(plan.spec.container, plan.tool, say, log)
            planned = EngineFacts(
                kind=plan.kind.name,
                version=plan.program.version,
                launches=[public(launch) for launch in plan.launches],
                image=image,
                program=plan.program.where,
            )
            changed(planned)  # what was tried is known also where it fails
            say(f"Starting {_what(plan)}")
            for i, launch in enumerate(plan.launches):
                engines.append(_start(plan, launch, log if i == 0 else folder / f"engine-{i + 1}.log", i))
            ready = [_wait_ready(e, plan, headers, engines, say) for e in engines]
            target = _verified(plan, engines, headers)
            facts = msgspec.structs.replace(
                planned,
                version=target.version or plan.program.version,
                ready_s=max(ready),
                startup_s=plan.kind.read_log(engines[0].process.text()).startup_s,
                software=software.versions(plan.program.python) if plan.program.python else {},
            )
            changed(facts)
            fleet = Fleet(plan, engines, target, facts, headers)
            say(fleet.told())
            try:
                yield fleet
            except TargetError as e:
                if death := fleet.death():  # that is why nobody answered
                    facts = msgspec.structs.replace(facts, died=death)
                    raise EngineError(death) from e
                raise
            if death := fleet.death():
                facts = msgspec.structs.replace(facts, died=death)
        finally:
            if facts is not None:
                say(f"Stopping {plan.kind.title}")
            began = time.monotonic()
            _stop(engines)
            if facts is not None:
                facts = msgspec.structs.replace(facts, stop_s=time.monotonic() - began)
                changed(facts)
                if held := _held(used, held_before):
                    changed(msgspec.structs.replace(facts, memory_held_bytes=held))


def _interrupt(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    raise KeyboardInterrupt


def _scrub_all(folder: Path, secrets: Sequence[str]) -> None:
    """What commands and pulls have written, too."""
    for log in folder.glob("engine*.log"):
        scrub(log, secrets)


def _what(plan: Plan) -> str:
    copies = f", {plan.spec.replicas} copies" if plan.spec.replicas > 1 else ""
    version = plan.program.version or ""
    return f"{plan.kind.title} {version} with {plan.served_name}{copies}".replace("  ", " ")


def _absolute(spec: EngineSpec) -> EngineSpec:
    """A model that lies here by its whole path: the engine may stand elsewhere, and doesn't know ~."""
    if spec.model is None or not model_files.looks_local(spec.model):
        return spec
    path = Path(spec.model).expanduser()
    return msgspec.structs.replace(spec, model=str(path.absolute())) if path.exists() else spec


def _model(spec: EngineSpec) -> ModelShape | None:
    if spec.model is None or not model_files.looks_local(spec.model):
        return None
    path = Path(spec.model).expanduser()
    if not path.exists():
        raise UsageError(f"The model {spec.model} isn't there. Check the path.")
    shape = model_files.read(path)
    if shape is None and (path.is_dir() or path.suffix == ".gguf"):
        what = "has no config.json and no *.gguf" if path.is_dir() else "can't be read as a GGUF file (cut off?)"
        raise UsageError(f"The model {spec.model} {what}.")
    return shape


def _start(plan: Plan, launch: Launch, log: Path, index: int) -> Engine:
    env = {**os.environ, **launch.env}
    cleanup = [*plan.cleanups[index]]
    title = plan.kind.title + (f" (copy {index + 1})" if plan.spec.replicas > 1 else "")
    try:
        process = EngineProcess(
            launch.argv, env, log, cleanup=cleanup or None, secrets=plan.secrets, will=_will(plan, cleanup, index)
        )
    except OSError as e:
        raise EngineError(f"{title} can't be started: {e}.") from None
    return Engine(process, f"http://127.0.0.1:{launch.port}", plan.program.version or "", title)


def _will(plan: Plan, cleanup: list[str], index: int) -> list[str] | None:
    """Where dyno is killed: the first copy's watcher also runs the commands that come after."""
    if index or not plan.spec.after:
        return None
    return ["sh", "-c", "; ".join([*([shlex.join(cleanup)] if cleanup else []), *plan.spec.after])]


def _wait_ready(engine: Engine, plan: Plan, headers: dict[str, str], all_of_them: Sequence[Engine], say: Say) -> float:
    """Seconds until the first completed generation: an open port or /health says nothing about the model."""
    protocol = PROTOCOLS[plan.kind.backend]
    body = protocol.body(Request("Are you ready?", 4, 1), Asked(plan.served_name, ignore_eos=True))
    limit = plan.spec.ready_timeout_s
    last = "it didn't listen"
    word_due_s = _WORD_EVERY_S
    while (left := limit - engine.process.age_s) > 0:
        if engine.process.age_s > word_due_s:
            word_due_s += _WORD_EVERY_S
            say(f"Still starting after {engine.process.age_s:.0f} s: {plan.clean(engine.process.last_line())[:100]}")
        for other in all_of_them:  # a copy that died is told at once, not when it is its turn
            if not other.process.alive():
                raise other.failed(f"exited with code {other.process.exit_code} after {other.process.age_s:.1f} s")
        client = Client(Url(engine.base_url), headers, timeout_s=left)
        try:
            status, answer = client.call(protocol.path, body)
            if status == 200 and not _complains(answer):
                engine.ready = True
                took = engine.process.age_s
                if plan.spec.container is None and engine.process.listens(Url(engine.base_url).port) is False:
                    engine.ready = False
                    raise engine.failed(
                        f"doesn't listen at {engine.base_url}, and another program answers there: it took the port"
                    )
                return took
            last = f"it answered {status} {str(answer)[:300]}"
            if status in (400, 401, 403, 404, 405, 422):  # waiting won't change that
                raise engine.failed(f"answered a first request for one token with {status} {str(answer)[:300]}")
        except TargetError:
            pass  # it doesn't listen yet
        finally:
            client.close()
        time.sleep(min(0.1, max(left, 0)))
    raise engine.failed(f"completed no generation within {limit:g} s ({last})")


def _complains(answer: object) -> bool:
    return '"error"' in str(answer)[:2000] or "'error'" in str(answer)[:2000]


def _verified(plan: Plan, engines: list[Engine], headers: dict[str, str]) -> TargetFacts:
    """What each copy says of itself, held against the setting. Raises where it serves something else."""
    found: list[TargetFacts] = []
    for engine in engines:
        client = Client(Url(engine.base_url), headers)
        try:
            spec = TargetSpec(engine.base_url, plan.kind.backend, "", served_model_name=plan.served_name)
            facts = server.look(client, spec)
        finally:
            client.close()
        if facts.version is None or "unknown" in facts.version:  # as builds from a wheel may say
            facts = msgspec.structs.replace(facts, version=plan.program.version)
        # What its routes say now goes before its log of the start, and that before what the setting implies.
        for said in (plan.kind.read_log(engine.process.text()).target, plan.kind.implied(plan.spec, plan.program)):
            facts = msgspec.structs.replace(facts, **{k: v for k, v in said.items() if getattr(facts, k) is None})
        if wrong := list(differences(plan.spec, facts, plan.model)):
            raise EngineError(
                f"{engine.title} at {engine.base_url} is not what was asked for: {'; '.join(wrong)}. Nothing was "
                f"measured. Read {engine.process.log} for the rest."
            )
        found.append(facts)
    return found[0]


def _stop(engines: list[Engine]) -> None:
    for engine in engines:
        engine.process.terminate()  # all at once, then wait for each
    for engine in engines:
        try:
            engine.stop(_GRACE_S)
        except KeyboardInterrupt:  # no patience: no grace
            engine.stop(0.0)
            raise


def _held(devices: Sequence[int], before: dict[int, int]) -> int:
    """Accelerator memory that the engine hasn't given back within a while."""
    if not before:
        return 0
    deadline = time.monotonic() + _MEMORY_BACK_S
    while True:
        now = accelerators.memory_used(devices)
        held = max((now.get(i, 0) - used for i, used in before.items()), default=0)
        if held < _HELD_BYTES:
            return 0
        if time.monotonic() > deadline:
            return held
        time.sleep(0.5)


def _commands(plan: Plan, commands: Sequence[str], log: Path, when: str, say: Say) -> None:
    for command in commands:
        shown_as = plan.clean(command)
        say(f"Running {shown_as!r}")
        with log.open("ab") as out:
            out.write(f"$ {shown_as}\n".encode())
            out.flush()
            try:
                done = subprocess.run(
                    command, shell=True, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                    timeout=_COMMAND_S, check=False,
                )  # fmt: skip
                failed = f"exited with code {done.returncode}" if done.returncode else ""
            except subprocess.TimeoutExpired:
                failed = f"wasn't done after {_COMMAND_S:g} s"
        if failed:
            raise EngineError(f"The command {shown_as!r} ({when} the engine) {failed}. Read {log}.")
