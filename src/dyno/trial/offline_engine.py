"""A worker: an engine loaded in its own process, or several copies of it, asked for one iteration after the other."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno.engines.engine import Engine
from dyno.errors import UsageError
from dyno.facts.target import TargetFacts, known
from dyno.numbers import duration
from dyno.saying import Below, Say, silent
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import prepare
from dyno.trial.lifecycle import Changed, Life, around, describe, look_at, start, verify
from dyno.trial.start_watch import StartWatch

_LOOK_S = 0.5
_LOOK_SEVERAL_S = 0.02  # at each copy in turn


class Ready(msgspec.Struct):
    """Its message when the model is loaded."""

    vocab: int | None = None  # ids below that
    special: list[int] = []  # … but not these
    target: dict[str, Any] = {}  # fields of TargetFacts
    # where a server is part of it after all, which can be asked
    base_url: str | None = None
    version: str | None = None
    repeats: bool = False  # it warms up and repeats by itself, all in one iteration


class _Message(msgspec.Struct):
    """One line of a worker."""

    ready: Ready | None = None
    iterations: list[dict[str, Any]] | None = None
    refused: str | None = None  # it can't do that
    failed: str | None = None  # it tried
    progress: int | None = None  # requests of the iteration that are done
    prepared: bool = False  # for an iteration that all copies begin together


class Worker(Life):
    ready: Ready

    @property
    def logs(self) -> list[Path]:
        return [log for engine in self.engines if (log := engine.process.log).exists()]

    def ask(
        self,
        jobs: Sequence[dict[str, Any]],
        limit_s: float,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[list[dict[str, Any]]]:
        """Do one job with each copy; return the iterations of each. Several copies begin together."""
        began, several = time.monotonic(), len(jobs) > 1

        def waiting(engine: Engine) -> None:
            if time.monotonic() > began + limit_s:
                raise engine.failed(f"didn't finish an iteration within {limit_s:g} s")

        for engine, job in zip(self.engines, jobs, strict=True):
            engine.process.send_line(msgspec.json.encode({**job, "common_start": several}))
        if several:
            self.answers(waiting)  # each has its prompts
            for engine in self.engines:
                engine.process.send_line(b"begin")
        each = [message.iterations or [] for message in self.answers(waiting, progress)]
        for iteration in itertools.chain.from_iterable(each):
            for answer in iteration.get("answers", []):
                if answer.get("error"):
                    answer["error"] = self.plan.clean(answer["error"])
        return each

    def answers(
        self,
        waiting: Callable[[Engine], None],
        progress: Callable[[int], None] = lambda _: None,
        loading: bool = False,
    ) -> list[_Message]:
        """Return the next message of each copy that isn't progress. Raise as soon as one of them died or failed."""
        done = [0 for _ in self.engines]
        answers: dict[int, _Message] = {}
        wait_s = _LOOK_S if len(self.engines) == 1 else _LOOK_SEVERAL_S
        while len(answers) < len(self.engines):
            for i, engine in enumerate(self.engines):
                # All are listened to in turn: one whose pipe is full would wait within its iteration.
                message = self._hear(engine, 0.0 if i in answers else wait_s, loading)
                if message is None:
                    if i not in answers:
                        waiting(engine)
                elif message.progress is None:
                    answers[i] = message
                else:
                    done[i] = message.progress
                    progress(sum(done))
        return [answers[i] for i in range(len(self.engines))]

    def _hear(self, engine: Engine, look_s: float, loading: bool) -> _Message | None:
        """Return the next message of a copy, if there is one. Raise where it died, with its last lines."""
        others = ", and dyno stopped the other copies" if len(self.engines) > 1 else ""
        line = engine.process.hear(look_s)
        if (
            line is None
            and not engine.process.alive()
            and (line := engine.process.hear(0)) is None
        ):
            when = (
                f"after {duration(engine.process.age_s)}, while loading"
                if loading
                else "during a measurement"
            )
            raise engine.failed(
                f"exited with code {engine.process.exit_code} {when}{others}"
            )
        if line is None:
            return None
        try:
            message = msgspec.json.decode(line, type=_Message)
        except msgspec.MsgspecError:
            # A banner of the interpreter's wrapper, before the worker itself had a say: for the log.
            with engine.process.log.open("ab") as log:
                log.write(line + b"\n")
            if loading:
                return None
            raise engine.failed("sent a message that dyno can't read") from None
        if message.refused:
            raise UsageError(
                f"{self.plan.title} refused: {self.plan.clean(message.refused)}"
            )
        if message.failed:
            raise engine.failed(f"failed: {self.plan.clean(message.failed)}{others}")
        return message

    def is_build(self, number: object) -> None:
        """Note the build that a program reports with its result. 0: built without git, unknown."""
        if isinstance(number, int) and number and str(number) != self.facts.version:
            self.note(version=str(number))

    def describe(self) -> str:
        """Say in a line what came up."""
        took = f"{self.plan.title} {self.facts.version or ''} loaded after {duration(self.facts.ready_s or 0)}"
        return ": ".join(filter(None, (took, self.capacity())))


@contextlib.contextmanager
def working(
    plan: EnginePlan, folder: Path, say: Say, changed: Changed, below: Below = silent
) -> Iterator[Worker]:
    """Load the engine and verify it; end it on leaving."""
    worker = Worker(plan, changed)
    worker.preparations = prepare(plan, {}, say, below)
    with around(worker, folder, say, below):
        plan = worker.plan  # perhaps another, by the version of an image that was pulled
        say(f"Loading {describe(plan)}")
        for i in range(len(plan.launches)):
            worker.engines.append(start(plan, folder, i))
        each = _loaded(worker, below)
        worker.ready = each[0]
        targets = [
            verify(plan, e, _target(plan, r))
            for e, r in zip(worker.engines, each, strict=True)
        ]
        worker.came_up(
            targets[0], max(e.process.age_s for e in worker.engines), worker.ready.version
        )
        say(worker.describe())
        yield worker


def _loaded(worker: Worker, below: Below) -> list[Ready]:
    watch = StartWatch(worker.plan, worker.engines, below, "loading")
    each = []
    for engine, message in zip(
        worker.engines, worker.answers(watch.check, loading=True), strict=True
    ):
        if message.ready is None:
            raise engine.failed("sent an unexpected message instead of being ready")
        engine.ready = True
        each.append(message.ready)
    return each


def _target(plan: EnginePlan, ready: Ready) -> TargetFacts:
    if ready.base_url is None:
        return TargetFacts(
            **{"model": plan.served_name, "kind": plan.kind.name, **known(ready.target)}
        )
    return look_at(plan, ready.base_url, {})
