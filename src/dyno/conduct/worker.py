"""A worker: an engine loaded in its own process, asked for one iteration after the other."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dyno.conduct.engine_plan import EnginePlan
from dyno.conduct.fleet import (
    Say,
    accelerator_memory,
    given_back,
    log_facts,
    looked_at,
    prepared,
    start,
    stop,
    verified,
    what,
)
from dyno.engines.engine import Engine
from dyno.errors import UsageError
from dyno.facts.engine import EngineFacts
from dyno.facts.offline import Iteration
from dyno.facts.roofline import Peaks
from dyno.facts.target import TargetFacts, known
from dyno.probe import software

_WORD_EVERY_S = 20.0  # while it loads: a sign of life
_LOOK_S = 0.5


class Ready(msgspec.Struct):
    """What it says when the model is loaded."""

    vocab: int | None = None  # ids below that
    special: list[int] = []  # … but not these
    target: dict[str, Any] = {}  # fields of TargetFacts
    base_url: str | None = None  # where a server is part of it after all, which can be asked
    version: str | None = None
    repeats: bool = False  # it warms up and repeats by itself, all in one iteration


class _Said(msgspec.Struct):
    ready: Ready | None = None
    iterations: list[dict[str, Any]] | None = None
    refused: str | None = None  # it can't do that
    failed: str | None = None  # it tried
    progress: int | None = None  # requests of the iteration that are done


class Worker:
    def __init__(
        self,
        plan: EnginePlan,
        engine: Engine,
        ready: Ready,
        target: TargetFacts,
        facts: EngineFacts,
        peaks: Peaks | None = None,
    ) -> None:
        self.plan, self.engine, self.ready, self.target, self.facts = plan, engine, ready, target, facts
        self.peaks = peaks

    def ask(
        self, job: dict[str, Any], limit_s: float, progress: Callable[[int], None] = lambda _: None
    ) -> list[dict[str, Any]]:
        """The iterations that the job came to, as it tells them."""
        began = time.monotonic()

        def waiting() -> None:
            if time.monotonic() > began + limit_s:
                raise self.engine.failed(f"didn't end an iteration within {limit_s:g} s")

        self.engine.process.say(msgspec.json.encode(job))
        while (said := _heard(self.engine, waiting)).progress is not None:
            progress(said.progress)
        if said.refused:
            raise UsageError(f"{self.plan.title} refused: {self.plan.clean(said.refused)}")
        if said.failed:
            raise self.engine.failed(f"couldn't do it: {self.plan.clean(said.failed)}")
        for answer in (a for it in said.iterations or [] for a in it.get("answers", []) if a.get("error")):
            answer["error"] = self.plan.clean(answer["error"])
        return said.iterations or []

    def cpu_s(self) -> float | None:
        """That its processes have used so far. None in a container: they are another's children."""
        return None if self.plan.spec.container else self.engine.process.cpu_s()

    def death(self) -> str | None:
        if self.engine.process.alive():
            return None
        return str(self.engine.failed(f"died with code {self.engine.process.exit_code}"))

    def told(self) -> str:
        """What came up, in a line."""
        t = self.target
        facts = [
            t.max_model_len and f"context {t.max_model_len}",
            t.slots and f"{t.slots} at once",
            t.quantization or t.dtype,
            t.kv_cache_tokens and f"KV cache {t.kv_cache_tokens:,} tokens",
        ]
        known = ", ".join(str(fact) for fact in facts if fact)
        took = f"{self.plan.title} {self.facts.version or ''} is loaded after {self.facts.ready_s or 0:.1f} s"
        return f"{took}: {known}" if known else took


@contextlib.contextmanager
def working(plan: EnginePlan, folder: Path, say: Say, changed: Callable[[EngineFacts], None]) -> Iterator[Worker]:
    """Loads the engine and verifies it; ends it on leaving. `changed` is told the facts, and again after the stop."""
    engine: Engine | None = None
    facts: EngineFacts | None = None
    peaks = plan.peaks()  # the first time it may be measured: before the engine is there
    with prepared(plan, folder, say, changed) as planned:
        try:
            say(f"Loading {what(plan)}")
            engine = start(plan, plan.launches[0], folder / "engine.log")
            ready = _loaded(engine, plan, say)
            target = verified(plan, engine, _target(plan, ready))
            facts = msgspec.structs.replace(
                planned,
                version=ready.version or target.version or plan.program.version,
                ready_s=engine.process.age_s,
                startup_s=log_facts(plan, engine).startup_s,
                software=software.versions(plan.program.python) if plan.program.python else {},
                unused_instructions=software.unused_instructions(engine.process.text()),
                memory_loaded_bytes=accelerator_memory(plan),
                resident_bytes=None if plan.spec.container else engine.process.resident_bytes(),
            )
            changed(facts)
            worker = Worker(plan, engine, ready, target, facts, peaks)
            say(worker.told())
            yield worker
        finally:
            began = time.monotonic()
            stop([engine] if engine else [])
            if facts is not None:
                given_back(plan, msgspec.structs.replace(facts, stop_s=time.monotonic() - began), changed)


def _loaded(engine: Engine, plan: EnginePlan, say: Say) -> Ready:
    word_due_s = _WORD_EVERY_S
    limit = plan.spec.ready_timeout_s

    def waiting() -> None:
        nonlocal word_due_s
        age_s = engine.process.age_s
        if age_s > limit:
            raise engine.failed(f"wasn't loaded within {limit:g} s")
        if age_s > word_due_s:
            word_due_s += _WORD_EVERY_S
            say(f"Still loading after {age_s:.0f} s: {plan.clean(engine.process.last_line())[:100]}")

    said = _heard(engine, waiting, loading=True)
    if said.ready is None:
        raise engine.failed("said something else than that it is ready")
    engine.ready = True
    return said.ready


def _heard(engine: Engine, waiting: Callable[[], None], loading: bool = False) -> _Said:
    """Its next word. Raises where it died, with its last lines."""
    while True:
        line = engine.process.hear(_LOOK_S)
        if line is None and not engine.process.alive() and (line := engine.process.hear(0)) is None:
            when = f"after {engine.process.age_s:.1f} s, before it was loaded" if loading else "in the middle"
            raise engine.failed(f"exited with code {engine.process.exit_code} {when}")
        if line is None:
            waiting()
            continue
        try:
            return msgspec.json.decode(line, type=_Said)
        except msgspec.MsgspecError:
            # A banner of the interpreter's wrapper, before the worker itself had a say: for the log.
            with engine.process.log.open("ab") as log:
                log.write(line + b"\n")
            if not loading:
                raise engine.failed("said what isn't understood") from None


def _target(plan: EnginePlan, ready: Ready) -> TargetFacts:
    if ready.base_url is None:
        return TargetFacts(**{"model": plan.served_name, "kind": plan.kind.name, **known(ready.target)})
    return looked_at(plan, ready.base_url, {})


def iteration_of(said: dict[str, Any], index: int, warmup: bool, others_cpu: float | None) -> Iteration:
    return msgspec.convert({**said, "index": index, "warmup": warmup, "others_cpu": others_cpu}, Iteration)
