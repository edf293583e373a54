"""A fleet: the running copies of one engine setting, as servers; and the kernels that are tuned before it starts."""

import contextlib
import fcntl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from dyno.engines import container, image, port
from dyno.engines.caches import KERNEL_TUNINGS
from dyno.engines.engine import Engine
from dyno.engines.launch import public_spec
from dyno.errors import EngineError, TargetError
from dyno.facts.engine import Preparation
from dyno.facts.model import ModelShape
from dyno.facts.rig import Rig
from dyno.facts.trial import TrialSpec
from dyno.http import Url
from dyno.load.protocols import Asked
from dyno.numbers import duration, number
from dyno.option import setting_name
from dyno.probe import rig, server
from dyno.saying import Below, Say, silent
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.lifecycle import (
    Changed,
    Life,
    around,
    describe,
    look_at,
    room,
    run_command,
    start,
    verify,
)
from dyno.trial.start_watch import StartWatch
from dyno.workload.request import Request

_LOOK_S = 0.1  # so soon a death is reported
_ANSWER_S = 86_400.0  # a first request may compile or tune for hours; the watch ends it
# The load of a tuning: shapes of matrices follow from requests at once (decode) and the length of prompts (prefill).
_AT_ONCE = (1, 2, 4, 8, 16, 32, 64)
_PROMPT_WORDS = (16, 64, 256, 1024)
_OUTPUT_TOKENS = 16


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
        return self.plan.seen(rig.read_machine(urls, record=True))

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


def _wait_ready(
    engine: Engine, fleet: Fleet, headers: dict[str, str], watch: StartWatch
) -> float:
    """Return the seconds until the first completed generation: an open port or /health says nothing about the model."""
    plan, copies = fleet.plan, fleet.engines
    protocol = plan.protocol
    body = protocol.request(
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
        watch.check(engine)

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


# ---- preparations: kernels tuned before a start that is measured ----


def prepare(
    plan: EnginePlan, headers: dict[str, str], say: Say, below: Below
) -> list[Preparation]:
    """Return the setting's preparations. Those that aren't kept yet are made, by a server, also for an offline run."""
    done = []
    for name in plan.spec.prepare:
        plan.caches.folder.mkdir(parents=True, exist_ok=True)
        with (plan.caches.folder / f".{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another dyno may be making it
            box = plan.spec.container
            digest = (
                image.digest(plan.tool, plan.image or box.image)
                if box and plan.tool
                else None
            )
            if (stored := plan.caches.read(name, digest)) is None:
                stored = _make_preparation(plan, name, headers, say, below)
            else:
                stored = msgspec.structs.replace(stored, reused=True)
                say(
                    f"Reusing the {name} tuning of {stored.created} ({duration(stored.took_s)})"
                )
        done.append(stored)
    return done


def _make_preparation(
    plan: EnginePlan, name: str, headers: dict[str, str], say: Say, below: Below
) -> Preparation:
    """Tune kernels in a start of its own, before those that are measured, and keep the result."""
    caches, tuning = plan.caches, KERNEL_TUNINGS[name]
    say(
        f"Preparing {name}: one start with a short load, whose result is kept in {caches.folder}"
    )
    folder, began = caches.empty(name), time.monotonic()
    preparing = EnginePlan(caches.preparing(name), plan.rig, image=plan.image)
    with running(preparing, folder, headers, say, lambda _: None, below) as fleet:
        _exercise(fleet, headers, below)
    if tuning.then:
        command, launch = tuning.then.format(folder=folder), fleet.plan.launches[0]
        box = fleet.plan.spec.container
        words = (
            container.shell(launch, fleet.plan.image or box.image, command)
            if box
            else ["sh", "-c", command]
        )
        if problem := run_command(
            words, folder / "engine.log", plan.clean, below, launch.env
        ):
            raise EngineError(
                f"Preparing {name} failed: its command {problem} Read {folder / 'engine.log'}."
            )
    files = sorted(path.name for path in folder.glob(tuning.files))
    if not files:
        raise EngineError(
            f"Preparing {name} failed: {plan.title} wrote no {tuning.files} to {folder}. Does this build support "
            f"it? Read {folder / 'engine.log'}, or remove {name!r} from {setting_name('--engine-prepare')}."
        )
    result = Preparation(
        name,
        took_s=time.monotonic() - began,
        files=files,
        image=fleet.facts.image,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    caches.write(result)
    return result


def _exercise(engine: Life, headers: dict[str, str], below: Below) -> None:
    """Send requests of several lengths, several at once. No two have a prefix in common."""
    plan, url = engine.plan, Url(engine.engines[0].base_url)
    protocol = plan.protocol
    context, slots = (
        engine.target.max_model_len or max(_PROMPT_WORDS) * 4,
        engine.target.slots or max(_AT_ONCE),
    )

    def ask(name: str, words: int) -> server.Attempt:
        request = Request(name + " word" * words, words, _OUTPUT_TOKENS)
        body = protocol.request(request, Asked(plan.served_name, ignore_eos=True))
        return server.attempt(url, headers, protocol.path, body, _ANSWER_S)

    pool = ThreadPoolExecutor(max(_AT_ONCE))
    try:
        for at_once in (n for n in _AT_ONCE if n <= slots):
            # a word has up to two tokens
            for words in (n for n in _PROMPT_WORDS if n * 2 + _OUTPUT_TOKENS < context):
                below(f"{at_once} at once, {words} words each")
                asked = [
                    pool.submit(ask, f"{at_once}.{i}.{words}", words)
                    for i in range(at_once)
                ]
                if wrong := next(
                    (
                        a.problem
                        for a in (future.result() for future in asked)
                        if not a.completed
                    ),
                    None,
                ):
                    raise engine.engines[0].failed(
                        f"can't answer a request of {words} words: {wrong}"
                    )
    finally:
        # Ctrl-C: the stop of the engine ends the requests
        pool.shutdown(wait=False, cancel_futures=True)
