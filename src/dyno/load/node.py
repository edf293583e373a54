"""A slice of a load on a node of a Ray cluster: what runs there. It only relays."""

import importlib
import weakref
from typing import Any, BinaryIO

import msgspec

from dyno.clock import now_ns
from dyno.errors import DynoError
from dyno.load.echo import Echo
from dyno.load.process import SliceFailure, SliceProcess, SliceTask
from dyno.load.relay import RELAY_BYTES, Relay, encoded
from dyno.scratch import Scratch


class NodeSlice:
    """Starts a slice's process, hands orders on, and its reports and spool back. No call waits for the load."""

    _process: SliceProcess
    _folder: Scratch
    _spool: BinaryIO | None = None

    def begin(self, data: bytes, masks: list[tuple[bytes, bytes]]) -> str:
        """Return this machine's address. `masks`: stand-ins for secrets in the task, and these secrets."""
        ray: Any = importlib.import_module("ray")
        for mask, secret in masks:
            data = data.replace(mask, secret)
        self._folder = Scratch("dyno-slice-")
        weakref.finalize(self, self._folder.remove)
        task = msgspec.msgpack.decode(data, type=SliceTask)
        self._path = self._folder.path / "spool"
        self._process = SliceProcess("A process on a node")
        self._process.start(msgspec.structs.replace(task, spool=str(self._path)))
        return str(ray.util.get_node_ip_address())

    def clock(self) -> int:
        return now_ns()

    def echo(self, host: str, token: bytes) -> int:
        """Answer this machine's time on the port that is returned."""
        return Echo(host, token).port

    def go(self, at_ns: int) -> None:
        """Begin at this moment of this machine's clock."""
        self._process.go(at_ns)

    def stop(self) -> None:
        self._process.stop()

    def clean_up(self) -> None:
        """Remove its folder, where the process hasn't opened its spool yet."""
        self._folder.remove()

    def relay(self, position: int) -> bytes:
        """Return its state, and its spool from this position on, as a Relay."""
        failure = None
        try:
            self._process.update()
        except DynoError as e:
            failure = SliceFailure(type(e).__name__, str(e))
        if self._process.ready and self._spool is None:
            self._spool = self._path.open("rb")
            # the process writes on, and nothing is left behind, however it ends
            self._folder.remove()
        data = b""
        if self._spool:
            self._spool.seek(position)
            data = self._spool.read(RELAY_BYTES)
        # The facts come when all of the spool has been read.
        facts = None if len(data) == RELAY_BYTES else self._process.facts
        return encoded(
            Relay(self._process.ready, self._process.progress, facts, failure, data)
        )
