"""Signals, lent to a block of work and given back after it."""

import contextlib
import signal
from collections.abc import Callable, Iterator


def interrupt(number: int, _: object) -> None:
    """Treat TERM and HUP as Ctrl-C: once is enough."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def lent(
    numbers: tuple[signal.Signals, ...],
    handler: Callable[[int, object], None] | signal.Handlers,
) -> Iterator[None]:
    try:
        before = {number: signal.signal(number, handler) for number in numbers}
    except ValueError:  # not the main thread: whoever runs us sees to it
        before = {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
