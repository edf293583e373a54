"""A fleet: the running copies of one engine setting, as servers."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dyno.engines import port
from dyno.engines.engine import Engine
from dyno.engines.launch import public_spec
from dyno.errors import EngineError, TargetError
from dyno.facts.engine import Preparation
from dyno.facts.model import ModelShape
from dyno.facts.rig import Rig
from dyno.facts.trial import TrialSpec
from dyno.http import Url
from dyno.load.protocols import PROTOCOLS, Asked
from dyno.numbers import duration, number
from dyno.probe import rig, server
from dyno.saying import Below, Say, silent
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.kernels import provide
from dyno.trial.lifecycle import (
    Changed,
    Life,
    around,
    describe,
    look_at,
    room,
    start,
    verify,
)
from dyno.trial.start_watch import StartWatch
from dyno.workload.request import Request

_LOOK_S = 0.1  # so soon a death is reported
_ANSWER_S = 86_400.0  # a first request may compile or tune for hours; the watch ends it


class Fleet(Life):
    """Running copies that have been verified to serve what was asked for."""

    @property
    def urls(self) -> list[str]:
        return [e.base_url for e in self.engines]

    def describe(self) -> str:
        """Say in a line what came up."""
        f, caching = self.facts, self.target.prefix_caching
        parts = ", ".join(f"{name} {number(took)}" for name, took in f.startup_s.items())
        took = duration(f.ready_s or 0) + (f" ({parts})" if parts else "")
        cache = {None: "", True: "prefix cache on", False: "prefix cache off"}[caching]
        capacity = (
            ", ".join(filter(None, (self.capacity(), cache))) or "no details reported"
        )
        version = f" {f.version}" if f.version and f.version != self.plan.kind.name else ""
        return f"Ready after {took}: {self.plan.kind.title}{version}, {capacity}"

    @property
    def client_core(self) -> int | None:
        """The core that the engine leaves to the wire."""
        return room(self.plan).client_core

    def machine(self, urls: list[str]) -> Rig:
        """Look at the machine that it runs on."""
        return self.plan.seen(rig.look(urls, record=True))

    def shape(self) -> ModelShape | None:
        return self.plan.shape()

    def round_trip_ns(self) -> int | None:
        """Return None: there is no network between the engine and dyno."""
        return None

    def check_ports(self) -> None:
        """Another program may have taken the port of a copy that died, and would be sent the key."""
        for engine in self.engines:
            engine.check_port()

    def aim(self, trial: TrialSpec) -> TrialSpec:
        """Return the trial at the copies that run now, as it is stored: without the setting's secrets."""
        plan, urls = self.plan, self.urls
        target = msgspec.structs.replace(
            trial.target,
            base_url=urls[0],
            more_urls=urls[1:],
            served_model_name=plan.served_name,
        )
        return msgspec.structs.replace(
            trial,
            target=target,
            engine=public_spec(plan.stored),
            tokenizer=trial.tokenizer or plan.tokenizer,
        )


@contextlib.contextmanager
def running(
    plan: EnginePlan,
    folder: Path,
    headers: dict[str, str],
    say: Say,
    changed: Changed,
    below: Below = silent,
) -> Iterator[Fleet]:
    """Start the copies, wait for a completed generation from each, verify them; stop them on leaving."""
    fleet = Fleet(plan, changed)
    engines = fleet.engines
    fleet.preparations = prepare(plan, headers, say, below)
    with around(fleet, folder, say, below):
        plan = fleet.plan  # perhaps another, by the version of an image that was pulled
        say(f"Starting {describe(plan)}")
        for launch in plan.launches:
            if by := port.in_use(launch.port):
                raise EngineError(f"Port {launch.port} is in use by {by}: {port.ADVICE}")
        if plan.spec.container and headers:
            say(
                "dyno can't check that the port belongs to the container: the key goes to whatever listens there"
            )
        for i in range(len(plan.launches)):
            engines.append(start(plan, folder, i))
        watch = StartWatch(plan, engines, below)
        ready_s = max(_wait_ready(engine, fleet, headers, watch) for engine in engines)
        fleet.check_ports()
        targets = [
            verify(plan, engine, look_at(plan, engine.base_url, headers))
            for engine in engines
        ]
        fleet.came_up(targets[0], ready_s)
        say(fleet.describe())
        try:
            yield fleet
        except TargetError as e:
            if death := fleet.death():  # that is why no answer came
                fleet.note(died=death)
                raise EngineError(death) from e
            raise
        if death := fleet.death():
            fleet.note(died=death)


def prepare(
    plan: EnginePlan, headers: dict[str, str], say: Say, below: Below
) -> list[Preparation]:
    """Make the setting's preparations by a server, also for an offline run."""
    return provide(
        plan,
        headers,
        lambda p, folder: running(p, folder, headers, say, lambda _: None, below),
        say,
        below,
    )


def _wait_ready(
    engine: Engine, fleet: Fleet, headers: dict[str, str], watch: StartWatch
) -> float:
    """Return the seconds until the first completed generation: an open port or /health says nothing about the model."""
    plan, copies = fleet.plan, fleet.engines
    protocol = PROTOCOLS[plan.kind.backend]
    body = protocol.body(
        Request("Are you ready?", 4, 1), Asked(plan.served_name, ignore_eos=True)
    )
    watch.answer = "it doesn't listen yet"

    def waiting() -> None:
        # a copy that died is reported at once, not when it is its turn
        for other in copies:
            if (code := other.process.exit_code) is not None:
                raise other.failed(
                    f"exited with code {code} after {duration(other.process.age_s)}"
                )
        watch.look(engine)

    while True:
        waiting()
        if engine.listens():
            watch.answer = "it listens and has not answered a first request"
            asked = _Asked(Url(engine.base_url), headers, protocol.path, body, _ANSWER_S)
            while (answer := asked.answer(_LOOK_S)) is None:
                waiting()
            if answer.completed:
                engine.ready = True
                return engine.process.age_s
            if answer.settled:
                raise engine.failed(
                    f"can't answer a first request for one token: {answer.problem}"
                )
            watch.answer = f"a first request failed: {answer.problem.rstrip('.')}"
        time.sleep(_LOOK_S)


class _Asked:
    """A first request, in a thread: its answer may take minutes, and the engine may die meanwhile."""

    def __init__(self, *question: Any) -> None:
        self._result: server.Attempt | BaseException | None = None
        self._thread = threading.Thread(target=self._ask, args=question, daemon=True)
        self._thread.start()

    def _ask(self, *question: Any) -> None:
        try:
            self._result = server.attempt(*question)
        except BaseException as e:  # it is raised where it is waited for
            self._result = e

    def answer(self, timeout_s: float) -> server.Attempt | None:
        self._thread.join(timeout_s)
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result
