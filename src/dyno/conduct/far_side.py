"""`python -m dyno.conduct.far_side`: start an engine for a dyno on another machine, and hold it until stdin ends.

A line of JSON with the order comes in, lines of JSON go out.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dyno import secrets
from dyno.conduct import provide
from dyno.engines.launch import public_spec
from dyno.engines.log import excerpt
from dyno.errors import DynoError, UsageError
from dyno.facts.engine import EngineFacts
from dyno.option import named_by
from dyno.probe import rig
from dyno.remote.engine import HeldEngine, HeldEvent, HoldOrder
from dyno.scratch import scratch
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import running

_LOOK_S = 0.2


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=HoldOrder)
    os.environ.update(order.environ)
    secrets.learn([*secrets.values(os.environ), *secrets.of_headers(order.headers)])
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        with named_by(order.names):
            _keep_engine(order)
    except DynoError as e:
        _emit(HeldEvent(error=str(e)))
    except KeyboardInterrupt:
        pass


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGINT)


def _emit(event: HeldEvent) -> None:
    # the connection is lost: the engine is stopped all the same
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
        sys.stdout.buffer.flush()


def _keep_engine(order: HoldOrder) -> None:
    def say(text: str) -> None:
        _emit(HeldEvent(phase=text))

    def below(text: str, stays: bool = False) -> None:
        _emit(HeldEvent(below=text))

    if missing := provide.needs([order.engine]):
        provide.run(missing, say, below)
    machine = rig.read_machine()
    plan = EnginePlan(order.engine, machine)
    if problems := plan.problems():
        raise UsageError(" ".join(problems))
    with scratch() as folder, _echo() as echo:
        facts: list[EngineFacts] = []
        interruptible = contextlib.suppress(KeyboardInterrupt)
        with (
            interruptible,
            running(plan, folder, order.headers, say, facts.append, below) as fleet,
        ):
            ports = [launch.port for launch in fleet.plan.launches]
            ready = HeldEngine(
                fleet.facts,
                fleet.target,
                public_spec(fleet.plan.stored),
                fleet.plan.served_name,
                ports,
                echo,
                fleet.plan.seen(machine),
                fleet.plan.shape(),
                fleet.peaks,
            )
            _emit(HeldEvent(ready=ready, log=_log(folder)))
            while not (death := fleet.death()):
                time.sleep(_LOOK_S)
            _emit(HeldEvent(error=death))
        _emit(HeldEvent(facts=facts[-1] if facts else None, log=_log(folder)))


def _log(folder: Path) -> str:
    return secrets.public_text(
        "\n".join(excerpt(path) for path in sorted(folder.glob("engine*.log")))
    )


@contextlib.contextmanager
def _echo() -> Iterator[int]:
    """Send back what comes, one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def _answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := connection.recv(16):
                    connection.sendall(data)


if __name__ == "__main__":
    main()
