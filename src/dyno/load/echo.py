"""An echo of this machine's clock for one other machine, over a TCP connection of its own."""

import contextlib
import socket
import struct
import threading

from dyno.clock import now_ns

_TIME = struct.Struct("<q")
WAIT_S = 5.0


class Echo:
    """Answers each byte with the time, to the first who connects with the token; ends when that one leaves."""

    def __init__(self, host: str, token: bytes) -> None:
        self._token = token
        self._listener = socket.create_server((host, 0))
        self._listener.settimeout(WAIT_S)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(WAIT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if connection.recv(len(self._token), socket.MSG_WAITALL) != self._token:
                    return
                while connection.recv(1):
                    connection.sendall(_TIME.pack(now_ns()))


class Asker:
    """The other side: each call returns the other clock's time. Raises OSError where there is no connection."""

    def __init__(self, host: str, port: int, token: bytes) -> None:
        self._socket = socket.create_connection((host, port), timeout=WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(token)

    def __call__(self) -> int:
        self._socket.sendall(b"?")
        data = self._socket.recv(_TIME.size, socket.MSG_WAITALL)
        if len(data) < _TIME.size:
            raise ConnectionResetError("the node closed the connection")
        return int(_TIME.unpack(data)[0])

    def close(self) -> None:
        self._socket.close()
