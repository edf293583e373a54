"""A running engine of any kind. Leaving its `with` stops it."""

import contextlib
import socket
import time
from typing import Self

from dyno.engines import port
from dyno.engines.log import advice
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError
from dyno.http import Url

_CLOSED_WITHIN_S = 10.0


class Engine:
    def __init__(
        self,
        process: EngineProcess,
        base_url: str,
        version: str,
        title: str = "the engine",
        contained: bool = False,
    ) -> None:
        # in a container: its sockets belong to no descendant of dyno
        self._contained = contained
        self.process = process
        self.command = process.command  # what started it
        self.base_url = base_url
        self.version = version
        self.title = title
        self.ready = False  # it has answered

    def stop(self, grace_s: float = 5.0) -> None:
        """Return once its whole group is gone and its port refuses."""
        self.process.stop(grace_s)
        deadline = time.monotonic() + _CLOSED_WITHIN_S
        while self.ready and self._taken() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _taken(self) -> bool:
        """Return whether its port, where it has one, accepts connections."""
        if not self.base_url:
            return False
        url = Url(self.base_url)
        with contextlib.suppress(OSError):
            socket.create_connection((url.host, url.port), timeout=1).close()
            return True
        return False

    def owns_port(self) -> bool | None:
        """Return whether this engine listens there. None: nothing listens, or it is unknown."""
        owned = self._owned()
        if owned is False:  # it may have ended between two looks
            return self._owned()
        return owned

    def _owned(self) -> bool | None:
        if not self.base_url or self._contained:
            return None
        number = Url(self.base_url).port
        if not port.listeners(number):
            return None
        return port.belongs(number, [process.pid for process in self.process.processes()])

    def listens(self) -> bool:
        """Return whether it listens. Raise where another program does."""
        if not self._contained:
            listeners = port.listeners(Url(self.base_url).port)
            if listeners == set() and not self._taken():
                return False
        self.check_port()
        return True

    def check_port(self) -> None:
        """Raise where another program has its port: a request may carry a key."""
        if self.owns_port() is False:
            number = Url(self.base_url).port
            raise self.failed(
                f"lost port {number} to {port.holder(number)}; dyno sent nothing"
            )

    def failed(self, what: str, otherwise: str = "") -> EngineError:
        """Return an error with its last useful lines, and advice for a known failure; `otherwise`: for another one."""
        lines = self.process.last_lines()
        quote = (
            ': "' + " | ".join(line[:300] for line in lines) + '".'
            if lines
            else ", and printed nothing."
        )
        known = advice([what, *lines, *self.process.last_lines(60)])
        if not self.ready and self.owns_port() is False:
            known = f"{port.holder(Url(self.base_url).port)} uses {self.base_url}: {port.ADVICE}"
        if known is None and self.process.exit_code == -9:
            known = "Another process killed it, most often the kernel because memory ran out (see `dmesg`)."
        parts = [
            f"{self.title} {what}{quote}",
            known or otherwise,
            f"Read {self.process.log} for the rest.",
        ]
        return EngineError(" ".join(filter(None, parts)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
