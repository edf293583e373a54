"""The life of an engine that dyno starts, as servers or in its own process: the commands around it, its start, whether
it is what was asked for, its stop, and the memory it gives back."""

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import psutil

from dyno import secrets
from dyno.engines import container, image
from dyno.engines.engine import Engine
from dyno.engines.keeper import GRACE_S
from dyno.engines.kinds.base import LogFacts
from dyno.engines.launch import public
from dyno.engines.log import excerpt, private, scrub
from dyno.engines.process import CpuShare, EngineProcess
from dyno.errors import EngineError, describe_error
from dyno.facts.engine import EngineFacts, Launch, Preparation
from dyno.facts.target import TargetFacts, TargetSpec, known
from dyno.http import Client, Url
from dyno.load import scheduling
from dyno.measure.agreement import differences
from dyno.numbers import count
from dyno.probe import accelerators, host, server, software
from dyno.saying import Below, Say, silent
from dyno.signals import interrupt, lent
from dyno.store.run import UNSCRUBBED
from dyno.trial.engine_plan import EnginePlan

# from TERM to KILL: several workers have shared memory and a device to give back
_GRACE_S = 15.0
_MEMORY_BACK_S = 30.0
_LOG_LATE_S = 1.0  # llama.cpp's log is written by a thread of its own
_HELD_BYTES = 512 * 2**20  # below that, what an accelerator keeps for itself
_COMMAND_LOOK_S = 0.1  # at the output of a command
_SHOWN_BYTES = 1 << 16  # of its output in that time; all of it is in the log
# Of an engine that computes on the CPU, where the client can't come before it by itself. Not elsewhere: beside other
# programs it would get fewer turns than they do, and be measured slower than it is.
ENGINE_NICE = 5
CORES_TO_SHARE = 4  # from this number of cores on, one is kept for the client

Changed = Callable[[EngineFacts], None]


class Life:
    """A started engine: the copies that run, and the facts as they become known."""

    target: TargetFacts  # what it serves, once it is up

    def __init__(self, plan: EnginePlan, changed: Changed) -> None:
        """`changed` gets the facts whenever there are more."""
        self.plan, self._changed = plan, changed
        # the first time it may be measured: before the engine is there
        self.peaks = plan.peaks()
        self.engines: list[Engine] = []
        self.preparations: list[Preparation] = []
        self.up = False  # it came up, and is what was asked for
        self.facts = EngineFacts(
            kind=plan.kind.name,
            version=plan.program.version,
            launches=[public(launch) for launch in plan.launches],
            program=plan.program.where,
            embedded=plan.program.embedded,
            withheld=plan.withheld,
            memory_before_bytes=memory_used(plan),
            nice=room(plan).nice,
            cores=room(plan).engine_cores,
            misspelt=plan.misspelt,
            models=plan.origins,
        )

    def note(self, **fields: object) -> None:
        """Add facts and report them."""
        self.facts = msgspec.structs.replace(self.facts, **fields)
        self._changed(self.facts)

    def came_up(
        self, target: TargetFacts, ready_s: float, version: str | None = None
    ) -> None:
        plan, engines = self.plan, self.engines
        self.target, self.up = target, True
        self.note(
            version=version or target.version or plan.program.version,
            ready_s=ready_s,
            startup_s=log_facts(plan, engines[0]).startup_s,
            software=_software(plan),
            unused_instructions=plan.kind.unused_instructions(
                engines[0].process.text(), host.features()
            ),
            memory_loaded_bytes=memory_used(plan),
            resident_bytes=None
            if plan.spec.container
            else sum(e.process.resident_bytes() for e in engines),
        )

    def capacity(self) -> str:
        """Describe what it serves, in a few words."""
        t = self.target
        facts = [
            t.max_model_len and f"context {t.max_model_len}",
            t.slots and f"{t.slots} at once",
            t.quantization or t.dtype,
            t.kv_cache_tokens and f"KV cache {count(t.kv_cache_tokens)} tokens",
        ]
        return ", ".join(str(fact) for fact in facts if fact)

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of its processes so far. None in a container: they are another's children."""
        return (
            None
            if self.plan.spec.container
            else sum(e.process.cpu_s() for e in self.engines)
        )

    def death(self) -> str | None:
        """Return the last words of a copy that died."""
        when = " under load" if self.plan.batch is None else ""
        for engine in self.engines:
            if not engine.process.alive():
                return str(
                    engine.failed(f"died with code {engine.process.exit_code}{when}")
                )
        return None

    def stop(self) -> None:
        began = time.monotonic()
        stop(self.engines)
        if self.up:
            self.note(stop_s=time.monotonic() - began)
            if held := _memory_not_back(
                _devices(self.plan), self.facts.memory_before_bytes
            ):
                self.note(memory_held_bytes=held)


@contextlib.contextmanager
def around(engine: Life, folder: Path, say: Say, below: Below = silent) -> Iterator[None]:
    """Run the commands before the engine and fetch its image; on leaving, stop its copies, run the commands after it,
    and remove secrets from its logs."""
    log, plan = folder / "engine.log", engine.plan
    # TERM and HUP end this as Ctrl-C does: the engine is stopped, and the commands after it are run.
    with lent((signal.SIGTERM, signal.SIGHUP), interrupt), contextlib.ExitStack() as last:
        (folder / UNSCRUBBED).touch(mode=0o600)
        last.callback(scrub_all, folder)
        last.callback(_commands, plan, "after", log, say, below)
        _commands(plan, "before", log, say, below)
        for variable in plan.misspelt:
            say(variable.describe())
        _provide_image(engine, log, say, below)
        caches = engine.plan.caches
        last.callback(caches.discard)
        if preparations := [*engine.preparations, *caches.create()]:
            engine.note(preparations=preparations)
        try:
            yield
        finally:
            if engine.up and plan.batch is None:
                say(f"Stopping {plan.kind.title}")
            engine.stop()


def _provide_image(engine: Life, log: Path, say: Say, below: Below) -> None:
    """Pull or build a container's image; plan again where that changed it, for the version inside."""
    plan, box = engine.plan, engine.plan.spec.container
    if not box or not plan.tool:
        engine.note()  # what was tried is known also where it fails
        return
    if line := plan.not_passed():
        say(line)
    before = image.digest(plan.tool, plan.image or box.image)
    digest = image.pull_or_build(box, plan.tool, say, log, below, plan.image)
    # docker would do so as root; podman would refuse
    container.hugging_face_cache().mkdir(parents=True, exist_ok=True)
    if digest != before:
        plan = engine.plan = plan.again()
    engine.note(
        image=digest,
        version=plan.program.version,
        launches=[public(launch) for launch in plan.launches],
        program=plan.program.where,
    )


def start(plan: EnginePlan, folder: Path, index: int = 0) -> Engine:
    """Start one copy, with a log in that folder."""
    log = folder / (f"engine-{index + 1}.log" if index else "engine.log")
    launch: Launch = plan.launches[index]
    title = plan.title + (f" (copy {index + 1})" if plan.spec.replicas > 1 else "")
    share = room(plan)
    # Where dyno is killed, the first copy's keeper runs the commands that come after.
    after = (
        ["sh", "-c", "; ".join(plan.spec.after)] if plan.spec.after and not index else None
    )
    try:
        process = EngineProcess(
            launch.argv,
            {**os.environ, **launch.env},
            log,
            cleanup=[*plan.cleanups[index]] or None,
            secrets=secrets.known(),
            after=after,
            talks=plan.batch is not None,
            cpu=CpuShare(share.nice, share.engine_cores),
        )
    except (OSError, ValueError) as e:  # the latter: a word with a zero byte
        raise EngineError(f"{title} can't be started: {describe_error(e)}.") from None
    url = f"http://127.0.0.1:{launch.port}" if plan.batch is None else ""
    return Engine(
        process,
        url,
        plan.program.version or "",
        title,
        contained=plan.spec.container is not None,
    )


class SharedCores(NamedTuple):
    """CPU that an engine leaves to the client."""

    nice: int = 0
    engine_cores: list[int] = []  # empty: all
    client_core: int | None = None


def room(plan: EnginePlan) -> SharedCores:
    if (
        plan.devices
        or plan.batch is not None
        or plan.spec.container
        or not plan.kind.computes
    ):
        return SharedCores()
    nice = 0 if scheduling.raises_itself() else ENGINE_NICE
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < CORES_TO_SHARE:
        return SharedCores(nice)
    return SharedCores(nice, cores[:-1], cores[-1])


def describe(plan: EnginePlan) -> str:
    copies = f", {plan.spec.replicas} copies" if plan.spec.replicas > 1 else ""
    version = plan.program.version or ""
    if version == plan.kind.name:  # what is part of dyno has no version of its own
        return plan.title + copies
    return f"{plan.title} {version} with {plan.served_name}{copies}".replace("  ", " ")


def look_at(plan: EnginePlan, base_url: str, headers: dict[str, str]) -> TargetFacts:
    """Ask the server what it serves."""
    client = Client(Url(base_url), headers)
    try:
        facts = server.read_target(
            client,
            TargetSpec(base_url, plan.kind.backend, "", served_model_name=plan.served_name),
        )
    finally:
        client.close()
    # as builds from a wheel may say
    if facts.version is None or "unknown" in facts.version:
        facts = msgspec.structs.replace(facts, version=plan.program.version)
    return facts


def log_facts(plan: EnginePlan, engine: Engine) -> LogFacts:
    """Facts of the start, by its log; none where its numbers can't be read."""
    text, deadline = engine.process.text(), time.monotonic() + _LOG_LATE_S
    begin, end = plan.kind.loading_log or ("", "")
    while begin in text and end not in text and time.monotonic() < deadline:
        time.sleep(0.02)
        text = engine.process.text()
    try:
        facts = plan.kind.read_log(text)
    except (ValueError, OverflowError):
        return LogFacts()
    return LogFacts(
        facts.target, {part: s for part, s in facts.startup_s.items() if math.isfinite(s)}
    )


def verify(plan: EnginePlan, engine: Engine, facts: TargetFacts) -> TargetFacts:
    """Complete the server's facts, and raise EngineError where they differ from the setting."""
    implied = plan.kind.implied(plan.spec, plan.program)
    if plan.batch is not None:
        implied.pop("slots", None)  # the server's; the worker has reported its own
    # What its routes say goes before its log of the start, and that before what the setting implies.
    for more in (known(log_facts(plan, engine).target), implied):
        facts = msgspec.structs.replace(
            facts, **{k: v for k, v in more.items() if getattr(facts, k) is None}
        )
    command = plan.launches[0].argv if plan.kind.reports_settings else []
    if wrong := list(differences(plan.spec, facts, plan.model, command)):
        where = f" at {engine.base_url}" if engine.base_url else ""
        raise EngineError(
            f"{engine.title}{where} is not what was asked for: {'; '.join(wrong)}. Nothing was measured. Read "
            f"{engine.process.log} for the rest."
        )
    return facts


def scrub_all(folder: Path) -> None:
    """Remove secrets from the logs, also from what commands and pulls have written."""
    for log in folder.glob("engine*.log"):
        scrub(log, secrets.known())
    (folder / UNSCRUBBED).unlink(missing_ok=True)


def stop(engines: Sequence[Engine]) -> None:
    with contextlib.ExitStack() as stopping:  # whatever goes wrong with one
        for engine in reversed(engines):
            stopping.callback(_stop, engine)
        for engine in engines:
            engine.process.terminate()  # all at once, then wait for each


def _software(plan: EnginePlan) -> dict[str, str]:
    """Versions beside the engine, read where it runs."""
    if plan.containers and plan.tool:
        return software.versions(*container.python(plan.tool, plan.containers[0]))
    return software.versions(plan.program.python) if plan.program.python else {}


def _stop(engine: Engine) -> None:
    try:
        engine.stop(_GRACE_S)
    except BaseException:  # Ctrl-C: no patience, no grace
        engine.stop(0.0)
        raise


def _devices(plan: EnginePlan) -> list[int]:
    """Return the accelerators that the engine may use."""
    return sorted({d for launch in plan.launches for d in launch.devices or plan.devices})


def memory_used(plan: EnginePlan) -> dict[int, int]:
    """Memory in use on its accelerators, by their index."""
    return accelerators.memory_used(_devices(plan))


def _memory_not_back(devices: Sequence[int], before: dict[int, int]) -> int:
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


def _commands(
    plan: EnginePlan, when: Literal["before", "after"], log: Path, say: Say, below: Below
) -> None:
    for command in getattr(plan.spec, when):
        shown_as = plan.command(command)
        say(f"Running {shown_as!r}")
        with open(log, "ab", opener=private) as out:
            out.write(f"$ {shown_as}\n".encode())
        if lines := run_command(command, log, plan.clean, below):
            raise EngineError(
                f"The command {shown_as!r} ({when} the engine) {lines} Read {log} for the rest."
            )


def run_command(
    command: str | list[str],
    log: Path,
    clean: Callable[[str], str],
    below: Below,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command without a time limit, show its output and append it to the log. Return how it failed, if it did.

    Its output goes to the file itself: what the command leaves in the background may hold it open. In dyno's own
    session, where sudo may ask for a password.
    """
    with open(log, "ab", opener=private) as out:
        shown = start = out.tell()
        process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
    try:
        while True:
            code = process.poll()
            shown = _show(log, shown, clean, below, ended=code is not None)
            if code is not None:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_COMMAND_LOOK_S)
    except BaseException:  # Ctrl-C
        _end_tree(process)
        raise
    last = [line for line in clean(excerpt(log, start)).splitlines() if line.strip()][-3:]
    quote = (
        f': "{" | ".join(line[:300] for line in last)}".'
        if last
        else ", and printed nothing."
    )
    return f"exited with code {code}{quote}" if code else ""


def _show(
    log: Path, shown: int, clean: Callable[[str], str], below: Below, ended: bool
) -> int:
    """Show the whole lines after `shown`, at the end all of it, and return where the next one begins."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(shown, size - _SHOWN_BYTES))
        omitted = file.tell() - shown
        data = file.read()
    whole = data if ended else data[: data.rfind(b"\n") + 1]
    for line in clean(whole.decode("utf-8", "replace")).splitlines():
        below(line, stays=True)
    if rest := data[len(whole) :]:  # perhaps a progress bar, which draws over itself
        below(clean(rest.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]))
    return shown + omitted + len(whole)


def _end_tree(process: "subprocess.Popen[bytes]") -> None:
    """End a command and its descendants."""
    tree = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        tree = _suspended(psutil.Process(process.pid))
    for end in (psutil.Process.terminate, psutil.Process.resume, psutil.Process.kill):
        for one in tree:
            with contextlib.suppress(psutil.Error):
                end(one)
        _, tree = psutil.wait_procs(tree, GRACE_S if end is psutil.Process.resume else 0)
    process.wait()


def _suspended(process: psutil.Process) -> list[psutil.Process]:
    """Suspend a process, which can't fork any more then, and its descendants, and return them all."""
    with contextlib.suppress(psutil.Error):
        process.suspend()
        return [
            process,
            *(one for child in process.children() for one in _suspended(child)),
        ]
    return [process]
