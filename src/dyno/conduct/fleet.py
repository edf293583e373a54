"""A fleet: the running copies of one engine setting, from the start to the memory given back."""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno import secrets
from dyno.conduct.engine_plan import EnginePlan
from dyno.conduct.signals import interrupt, lent
from dyno.engines import container, port
from dyno.engines.engine import Engine
from dyno.engines.kinds.base import Kind, LogFacts
from dyno.engines.launch import public
from dyno.engines.log import private, scrub
from dyno.engines.process import CpuShare, EngineProcess
from dyno.errors import EngineError, TargetError
from dyno.facts.engine import EngineFacts, Launch
from dyno.facts.request import Request
from dyno.facts.roofline import Peaks
from dyno.facts.target import TargetFacts, TargetSpec, known
from dyno.http import Client, Url
from dyno.load.protocols import PROTOCOLS, Asked
from dyno.measure.agreement import differences
from dyno.probe import accelerators, server, software
from dyno.store.run import UNSCRUBBED
from dyno.transport import DIRECT, Transport

_GRACE_S = 15.0  # from TERM to KILL: several workers have shared memory and a device to give back
_MEMORY_BACK_S = 30.0
_HELD_BYTES = 512 * 2**20  # below that, what an accelerator keeps for itself
_COMMAND_S = 600.0
_LOOK_S = 0.1  # so soon a death is told
_WORD_EVERY_S = 20.0  # while it loads: a sign of life
ENGINE_NICE = 5  # of an engine that computes on the CPU: the client needs its turns, and little of them
CORES_TO_SHARE = 4  # from this number of cores on, one is kept for the client


class Fleet:
    """Running copies that have been verified to serve what was asked for."""

    def __init__(
        self,
        plan: EnginePlan,
        engines: list[Engine],
        target: TargetFacts,
        facts: EngineFacts,
        headers: dict[str, str],
        peaks: Peaks | None = None,
    ) -> None:
        self.headers = headers
        self.plan = plan
        self.engines = engines
        self.target = target
        self.facts = facts
        self.peaks = peaks

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

    def check_ports(self) -> None:
        """Another program may have taken the port of a copy that died, and would be sent the key."""
        for engine in self.engines:
            engine.check_port()

    def empty_cache(self) -> bool:
        return empty_caches(self.plan.kind, self.urls, self.headers)


def empty_caches(kind: Kind, urls: Sequence[str], headers: dict[str, str], via: Transport = DIRECT) -> bool:
    """The prefix caches of all these servers; False where one can't."""
    done = True
    for url in urls:
        client = Client(Url(url), headers, via, timeout_s=60)
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
    plan: EnginePlan, folder: Path, headers: dict[str, str], say: Say, changed: Callable[[EngineFacts], None]
) -> Iterator[Fleet]:
    """Starts the copies, waits for a completed generation from each, verifies them; stops them on leaving.

    `changed` is told the facts when they are known, and again after the stop.
    """
    log = folder / "engine.log"
    peaks = plan.peaks()  # the first time it may be measured: before the engine is there
    engines: list[Engine] = []
    facts: EngineFacts | None = None
    with prepared(plan, folder, say, changed) as planned:
        try:
            say(f"Starting {what(plan)}")
            for launch in plan.launches:
                if by := port.in_use(launch.port):
                    raise EngineError(f"Port {launch.port} is in use by {by}: {port.ADVICE}")
            if plan.spec.container and headers:
                say("dyno can't check that the port belongs to the container: the key goes to whatever listens there")
            for i, launch in enumerate(plan.launches):
                engines.append(start(plan, launch, log if i == 0 else folder / f"engine-{i + 1}.log", i))
            ready = [_wait_ready(e, plan, headers, engines, say) for e in engines]
            target = _verified(plan, engines, headers)
            facts = msgspec.structs.replace(
                planned,
                version=target.version or plan.program.version,
                ready_s=max(ready),
                startup_s=log_facts(plan, engines[0]).startup_s,
                software=software.versions(plan.program.python) if plan.program.python else {},
                unused_instructions=software.unused_instructions(engines[0].process.text())
                if plan.kind.name == "llamacpp"
                else [],
                memory_loaded_bytes=accelerator_memory(plan),
                resident_bytes=None if plan.spec.container else sum(e.process.resident_bytes() for e in engines),
            )
            changed(facts)
            fleet = Fleet(plan, engines, target, facts, headers, peaks)
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
            stop(engines)
            if facts is not None:
                given_back(plan, msgspec.structs.replace(facts, stop_s=time.monotonic() - began), changed)


@contextlib.contextmanager
def prepared(plan: EnginePlan, folder: Path, say: Say, changed: Callable[[EngineFacts], None]) -> Iterator[EngineFacts]:
    """Around an engine's life: the commands before and after it, its image, and no secret left in its logs."""
    log = folder / "engine.log"
    held_before = accelerator_memory(plan)
    # TERM and HUP end this as Ctrl-C does: the engine is stopped, and the commands after it are run.
    with lent((signal.SIGTERM, signal.SIGHUP), interrupt), contextlib.ExitStack() as last:
        (folder / UNSCRUBBED).touch(mode=0o600)
        last.callback(scrub_all, folder)
        last.callback(_commands, plan, plan.spec.after, log, "after", say)
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
            memory_before_bytes=held_before,
            nice=room(plan)[0],
            cores=room(plan)[1],
        )
        changed(planned)  # what was tried is known also where it fails
        yield planned


def given_back(plan: EnginePlan, facts: EngineFacts, changed: Callable[[EngineFacts], None]) -> None:
    """After the stop: the facts, and then, what is still held."""
    changed(facts)
    if held := _held(_used(plan), facts.memory_before_bytes):
        changed(msgspec.structs.replace(facts, memory_held_bytes=held))


def accelerator_memory(plan: EnginePlan) -> dict[int, int]:
    """In use now, on those that it may use."""
    return accelerators.memory_used(_used(plan))


def _used(plan: EnginePlan) -> list[int]:
    """The accelerators."""
    return sorted({d for launch in plan.launches for d in launch.devices or plan.devices})


def scrub_all(folder: Path) -> None:
    """What commands and pulls have written, too."""
    for log in folder.glob("engine*.log"):
        scrub(log, secrets.known())
    (folder / UNSCRUBBED).unlink(missing_ok=True)


def what(plan: EnginePlan) -> str:
    copies = f", {plan.spec.replicas} copies" if plan.spec.replicas > 1 else ""
    version = plan.program.version or ""
    if version == plan.kind.name:  # what is part of dyno has no version of its own
        return plan.title + copies
    return f"{plan.title} {version} with {plan.served_name}{copies}".replace("  ", " ")


def start(plan: EnginePlan, launch: Launch, log: Path, index: int = 0) -> Engine:
    env = {**os.environ, **launch.env}
    cleanup = [*plan.cleanups[index]]
    title = plan.title + (f" (copy {index + 1})" if plan.spec.replicas > 1 else "")
    try:
        nice, cores, _ = room(plan)
        process = EngineProcess(
            launch.argv, env, log, cleanup=cleanup or None, secrets=secrets.known(),
            after=_after(plan, index), talks=plan.batch is not None, cpu=CpuShare(nice, cores),
        )  # fmt: skip
    except (OSError, ValueError) as e:  # the latter: a word with a zero byte
        raise EngineError(f"{title} can't be started: {e}.") from None
    url = f"http://127.0.0.1:{launch.port}" if plan.batch is None else ""
    return Engine(process, url, plan.program.version or "", title, contained=plan.spec.container is not None)


def room(plan: EnginePlan) -> tuple[int, list[int], int | None]:
    """What an engine on the CPU leaves to the client: its nice value, its cores (empty: all), the client's own core."""
    if plan.devices or plan.batch is not None or plan.spec.container or not plan.kind.computes:
        return 0, [], None
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < CORES_TO_SHARE:
        return ENGINE_NICE, [], None
    return ENGINE_NICE, cores[:-1], cores[-1]


def _after(plan: EnginePlan, index: int) -> list[str] | None:
    """Where dyno is killed: the first copy's keeper runs the commands that come after."""
    return ["sh", "-c", "; ".join(plan.spec.after)] if plan.spec.after and not index else None


def _wait_ready(
    engine: Engine, plan: EnginePlan, headers: dict[str, str], all_of_them: Sequence[Engine], say: Say
) -> float:
    """Seconds until the first completed generation: an open port or /health says nothing about the model."""
    protocol = PROTOCOLS[plan.kind.backend]
    body = protocol.body(Request("Are you ready?", 4, 1), Asked(plan.served_name, ignore_eos=True))
    limit = plan.spec.ready_timeout_s
    last = server.Attempt(False, "it didn't listen")
    word_due_s = _WORD_EVERY_S

    def waiting() -> None:
        nonlocal word_due_s
        if engine.process.age_s > word_due_s:
            word_due_s += _WORD_EVERY_S
            say(f"Still starting after {engine.process.age_s:.0f} s: {plan.clean(engine.process.last_line())[:100]}")
        for other in all_of_them:  # a copy that died is told at once, not when it is its turn
            if (code := other.process.exit_code) is not None:
                raise other.failed(f"exited with code {code} after {other.process.age_s:.1f} s")

    while (left := limit - engine.process.age_s) > 0:
        waiting()
        if engine.listens():
            asked = _Asked(Url(engine.base_url), headers, protocol.path, body, left)
            while (answer := asked.answer(_LOOK_S)) is None:
                waiting()
            last = answer
        if last.completed:
            engine.ready = True
            return engine.process.age_s
        if last.settled:
            raise engine.failed(f"can't answer a first request for one token: {last.problem}")
        time.sleep(min(_LOOK_S, max(left, 0)))
    raise engine.failed(f"completed no generation within {limit:g} s ({last.problem})")


class _Asked:
    """A first request, in a thread: its answer may take minutes, and the engine may die meanwhile."""

    def __init__(self, *question: Any) -> None:
        self._found: server.Attempt | BaseException | None = None
        self._thread = threading.Thread(target=self._ask, args=question, daemon=True)
        self._thread.start()

    def _ask(self, *question: Any) -> None:
        try:
            self._found = server.attempt(*question)
        except BaseException as e:  # it is raised where it is waited for
            self._found = e

    def answer(self, timeout_s: float) -> server.Attempt | None:
        self._thread.join(timeout_s)
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found


def _verified(plan: EnginePlan, engines: list[Engine], headers: dict[str, str]) -> TargetFacts:
    """What each copy says of itself, held against the setting. Raises where it serves something else."""
    found: list[TargetFacts] = []
    for engine in engines:
        engine.check_port()
        facts = looked_at(plan, engine.base_url, headers)
        # What its routes say goes before its log of the start, and that before what the setting implies.
        found.append(verified(plan, engine, facts))
    return found[0]


def looked_at(plan: EnginePlan, base_url: str, headers: dict[str, str]) -> TargetFacts:
    client = Client(Url(base_url), headers)
    try:
        facts = server.look(client, TargetSpec(base_url, plan.kind.backend, "", served_model_name=plan.served_name))
    finally:
        client.close()
    if facts.version is None or "unknown" in facts.version:  # as builds from a wheel may say
        facts = msgspec.structs.replace(facts, version=plan.program.version)
    return facts


def log_facts(plan: EnginePlan, engine: Engine) -> LogFacts:
    """Of its start. A log whose numbers are none says nothing."""
    try:
        said = plan.kind.read_log(engine.process.text())
    except (ValueError, OverflowError):
        return LogFacts()
    return LogFacts(said.target, {part: s for part, s in said.startup_s.items() if math.isfinite(s)})


def verified(plan: EnginePlan, engine: Engine, facts: TargetFacts) -> TargetFacts:
    """With what its log and the setting say beyond that."""
    implied = plan.kind.implied(plan.spec, plan.program)
    if plan.batch is not None:
        implied.pop("slots", None)  # its server's: here the worker has said what it does
    for said in (known(log_facts(plan, engine).target), implied):
        facts = msgspec.structs.replace(facts, **{k: v for k, v in said.items() if getattr(facts, k) is None})
    if wrong := list(differences(plan.spec, facts, plan.model)):
        where = f" at {engine.base_url}" if engine.base_url else ""
        raise EngineError(
            f"{engine.title}{where} is not what was asked for: {'; '.join(wrong)}. Nothing was measured. Read "
            f"{engine.process.log} for the rest."
        )
    return facts


def stop(engines: list[Engine]) -> None:
    with contextlib.ExitStack() as all_of_them:  # whatever goes wrong with one
        for engine in reversed(engines):
            all_of_them.callback(_stop, engine)
        for engine in engines:
            engine.process.terminate()  # all at once, then wait for each


def _stop(engine: Engine) -> None:
    try:
        engine.stop(_GRACE_S)
    except BaseException:  # Ctrl-C: no patience, no grace
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


def _commands(plan: EnginePlan, commands: Sequence[str], log: Path, when: str, say: Say) -> None:
    for command in commands:
        shown_as = plan.command(command)
        say(f"Running {shown_as!r}")
        with open(log, "ab", opener=private) as out:
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
