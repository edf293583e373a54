"""Tunes an engine's kernels in a start of its own, before those that are measured, and keeps the result."""

import contextlib
import fcntl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from dyno.engines import container, image
from dyno.engines.caches import TUNINGS
from dyno.errors import EngineError
from dyno.facts.engine import Preparation
from dyno.http import Url
from dyno.load.protocols import PROTOCOLS, Asked
from dyno.numbers import duration
from dyno.option import setting_name
from dyno.probe import server
from dyno.saying import Below, Say
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.lifecycle import Life, run_command
from dyno.workload.request import Request

# The load: shapes of matrices follow from requests at once (decode) and the length of prompts (prefill).
_AT_ONCE = (1, 2, 4, 8, 16, 32, 64)
_WORDS = (16, 64, 256, 1024)
_OUTPUT = 16
_ANSWER_S = 86_400.0  # each new shape is tuned within a request

Start = Callable[[EnginePlan, Path], contextlib.AbstractContextManager[Life]]


def provide(
    plan: EnginePlan, headers: dict[str, str], start: Start, say: Say, below: Below
) -> list[Preparation]:
    """Return the setting's preparations. Those that aren't kept yet are made."""
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
                stored = _make(plan, name, headers, start, say, below)
            else:
                stored = msgspec.structs.replace(stored, reused=True)
                say(
                    f"Reusing the {name} tuning of {stored.created} ({duration(stored.took_s)})"
                )
        done.append(stored)
    return done


def _make(
    plan: EnginePlan,
    name: str,
    headers: dict[str, str],
    start: Start,
    say: Say,
    below: Below,
) -> Preparation:
    caches, tuning = plan.caches, TUNINGS[name]
    say(
        f"Preparing {name}: one start with a short load, whose result is kept in {caches.folder}"
    )
    folder, began = caches.empty(name), time.monotonic()
    with start(
        EnginePlan(caches.preparing(name), plan.rig, image=plan.image), folder
    ) as engine:
        _exercise(engine, headers, below)
    if tuning.then:
        command, launch = tuning.then.format(folder=folder), engine.plan.launches[0]
        box = engine.plan.spec.container
        words = (
            container.shell(launch, engine.plan.image or box.image, command)
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
        image=engine.facts.image,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    caches.write(result)
    return result


def _exercise(engine: Life, headers: dict[str, str], below: Below) -> None:
    """Send requests of several lengths, several at once. No two have a prefix in common."""
    plan, url = engine.plan, Url(engine.engines[0].base_url)
    protocol = PROTOCOLS[plan.kind.backend]
    context, slots = (
        engine.target.max_model_len or max(_WORDS) * 4,
        engine.target.slots or max(_AT_ONCE),
    )

    def ask(name: str, words: int) -> server.Attempt:
        request = Request(name + " word" * words, words, _OUTPUT)
        body = protocol.body(request, Asked(plan.served_name, ignore_eos=True))
        return server.attempt(url, headers, protocol.path, body, _ANSWER_S)

    pool = ThreadPoolExecutor(max(_AT_ONCE))
    try:
        for at_once in (n for n in _AT_ONCE if n <= slots):
            # a word has up to two tokens
            for words in (n for n in _WORDS if n * 2 + _OUTPUT < context):
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
