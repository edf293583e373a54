"""An engine on another machine, for a load from here: `dyno.conduct.far_side` starts and holds it there.

Its ports are reached through SSH, and one beside them that sends back what it gets: the network's round trip is
measured on the way that requests take.
"""

import contextlib
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno import secrets
from dyno.engines.launch import public_spec
from dyno.engines.port import free_port
from dyno.errors import EngineError, RigError
from dyno.facts.engine import ContainerSpec, EngineFacts, EngineSpec, image_problem
from dyno.facts.model import ModelShape
from dyno.facts.rig import Peaks, Rig
from dyno.facts.target import TargetFacts
from dyno.facts.trial import TrialSpec
from dyno.option import names
from dyno.remote.ssh import SshMachine, lines
from dyno.saying import Below, Say
from dyno.store.run import Run, write

_PINGS = 51
_LINE, _PORTS = 4096, 1024  # bytes; of one engine, a replica each
_TEXT = 10_000  # characters of a message
_CONNECT_S = 10.0
_LOOK_S = 0.2


class HoldOrder(msgspec.Struct, frozen=True):
    engine: EngineSpec
    headers: dict[str, str]  # its keys
    environ: dict[str, str]
    names: dict[str, str] = {}  # of settings in messages: flag → key


class HeldEngine(msgspec.Struct, frozen=True):
    """An engine as the machine describes it that runs it."""

    facts: EngineFacts
    target: TargetFacts
    stored: EngineSpec  # without secrets
    served_name: str
    ports: list[int]
    echo: int  # port
    rig: Rig
    model: ModelShape | None
    peaks: Peaks | None


class HeldEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    phase: str = ""
    below: str = ""
    ready: HeldEngine | None = None
    facts: EngineFacts | None = None  # at its end
    log: str = ""  # of the engine so far, without secrets
    error: str = ""


class Published(NamedTuple):
    """A port of that machine with an address of its own: requests go there, and not through SSH."""

    port: int
    url: str
    headers: dict[str, str]  # which the address wants, and the engine doesn't


class FarMachine(NamedTuple):
    machine: SshMachine
    environ: dict[str, str]  # keys that engines need there
    published: Published | None = None

    def order(self, spec: EngineSpec, headers: dict[str, str]) -> HoldOrder:
        if self.published:
            spec = msgspec.structs.replace(spec, port=self.published.port)
            headers = {
                name: value
                for name, value in headers.items()
                if name not in self.published.headers
            }
        return HoldOrder(spec, headers, self.environ, names())


class HeldFleet:
    """A fleet on another machine, as trials use one."""

    def __init__(self, engine: HeldEngine, urls: list[str], echo: int, host: str) -> None:
        self._engine, self.urls, self._echo, self._host = engine, urls, echo, host
        self.facts, self.target, self.peaks = engine.facts, engine.target, engine.peaks
        self.ended, self.over = "", threading.Event()  # why; nothing more comes from there

    client_core: int | None = None  # the engine takes none of this machine's

    def death(self) -> str | None:
        """Say why it is gone. A tunnel that is closed means that the reason is on its way."""
        try:
            socket.create_connection(("127.0.0.1", self._echo), timeout=_CONNECT_S).close()
        except OSError:
            self.over.wait(_CONNECT_S)
        return self.ended or None

    def cpu_s(self) -> float | None:
        return None

    def check_ports(self) -> None:
        """Do nothing: the ports here belong to ssh, which dyno started."""

    def machine(self, urls: list[str]) -> Rig:
        return self._engine.rig

    def shape(self) -> ModelShape | None:
        return self._engine.model

    def aim(self, trial: TrialSpec) -> TrialSpec:
        target = msgspec.structs.replace(
            trial.target,
            base_url=self.urls[0],
            more_urls=self.urls[1:],
            served_model_name=self._engine.served_name,
        )
        return msgspec.structs.replace(trial, target=target, engine=self._engine.stored)

    def round_trip_ns(self) -> int | None:
        """Return the median time that a byte takes there and back. None: no connection."""
        times = []
        try:
            with socket.create_connection(
                ("127.0.0.1", self._echo), timeout=_CONNECT_S
            ) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for _ in range(_PINGS + 1):
                    began = time.perf_counter_ns()
                    connection.sendall(b".")
                    if not connection.recv(1):
                        return None
                    times.append(time.perf_counter_ns() - began)
        except OSError:
            return None
        return int(statistics.median(times[1:]))  # the first opens the way


@contextlib.contextmanager
def engine_there(
    far: FarMachine, order: HoldOrder, folder: Path, say: Say, below: Below
) -> Iterator[HeldFleet]:
    """Start an engine there, and yield it with ports here that reach it. On leaving, it is stopped."""
    machine, host, fleet = far.machine, far.machine.spec.host, None
    try:
        with (
            machine.started("run", "dyno.conduct.far_side") as process,
            contextlib.ExitStack() as last,
        ):
            assert process.stdin and process.stdout
            process.stdout.readline(_LINE)  # it reads its stdin from here on
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
            engine = _ready(process, folder, say, below)
            engine = msgspec.structs.replace(
                engine, stored=_stored(order.engine, engine.stored, host)
            )
            if not 1 <= len(engine.ports) <= _PORTS:
                raise EngineError(
                    f"{host} reports an engine with {len(engine.ports)} ports."
                )
            ports = [free_port() for _ in (*engine.ports, engine.echo)]
            for local, remote in zip(ports, (*engine.ports, engine.echo), strict=True):
                last.enter_context(machine.forwarded(local, remote))
            urls = [f"http://127.0.0.1:{port}" for port in ports[:-1]]
            if far.published:
                if len(urls) > 1:
                    raise EngineError(
                        f"{host} publishes one port, but the engine has {len(urls)} replicas."
                    )
                urls = [far.published.url]
            fleet = HeldFleet(engine, urls, ports[-1], host)
            Run(folder).write_engine(engine.facts)
            reading = threading.Thread(
                target=_read_rest, args=(process, fleet, folder), daemon=True
            )
            reading.start()
            last.callback(reading.join, 60)
            last.callback(process.stdin.close)  # this ends it there
            yield fleet
            say(f"Stopping the engine on {host}")
    except RigError as e:
        if not fleet:  # else its death was noticed, and is no failure of stopping it
            raise EngineError(str(e)) from e


def _stored(asked: EngineSpec, reported: EngineSpec, host: str) -> EngineSpec:
    """Return the setting for files. What a command of it would run is what was asked for: pages offer it to paste."""
    own, box = public_spec(asked), reported.container
    if box is not None and (why := image_problem(box.image)):
        raise EngineError(f"{host} reports an engine in a container that can't be: {why}")
    return msgspec.structs.replace(
        reported,
        kind=own.kind,
        args=own.args,
        env=own.env,
        before=own.before,
        after=own.after,
        python=own.python,
        binary=own.binary,
        weights=own.weights,
        container=own.container or (ContainerSpec(box.image, box.tool) if box else None),
    )


def _ready(
    process: "subprocess.Popen[bytes]", folder: Path, say: Say, below: Below
) -> HeldEngine:
    for line in lines(process):
        event = _decoded(line)
        if event.error:
            raise EngineError(event.error)
        if event.phase:
            say(event.phase)
        if event.below:
            below(event.below)
        if event.ready:
            write(folder / "engine.log", event.log.encode())
            return event.ready
    raise EngineError("The connection ended while the engine was starting.")


def _read_rest(process: "subprocess.Popen[bytes]", fleet: HeldFleet, folder: Path) -> None:
    with contextlib.suppress(EngineError, ValueError):  # the latter: closed
        for line in lines(process):
            event = _decoded(line)
            fleet.ended = fleet.ended or event.error
            if event.facts:
                Run(folder).write_engine(event.facts)
            if event.log:
                write(folder / "engine.log", event.log.encode())
    fleet.ended = fleet.ended or "The connection to the engine's machine was lost."
    fleet.over.set()


def _decoded(line: bytes) -> HeldEvent:
    try:
        event = msgspec.json.decode(line, type=HeldEvent)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        raise EngineError(
            f"The other machine sent a line that dyno doesn't understand: {str(e)[:200]}."
        ) from None
    texts = {name: _one_line(getattr(event, name)) for name in ("phase", "below", "error")}
    return msgspec.structs.replace(event, **texts)


def _one_line(text: str) -> str:
    """Join lines: one of its own would look like one of dyno's."""
    return secrets.clean(" ".join(text[:_TEXT].splitlines()))
