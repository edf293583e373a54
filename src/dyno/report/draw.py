"""Asks the drawing process for pictures and scripts. It is started once, and again after it has died."""

import atexit
import contextlib
import json
import signal
import subprocess
import sys
import threading
from typing import Any

from dyno.errors import DrawError

PROCESS = [sys.executable, "-P", "-m", "dyno.report.draw_process"]
_END_S = 5.0
_ADVICE = "A limit of memory (`ulimit -v`, a container's) often is the cause: raise it."


class _Drawer:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._last = b""  # line of its errors

    def ask(self, function: str, words: list[Any], options: dict[str, Any]) -> bytes:
        job = (
            json.dumps({"function": function, "words": words, "options": options}).encode()
            + b"\n"
        )
        with self._lock:
            process = self._process or self._start()
            try:
                assert process.stdin and process.stdout
                process.stdin.write(job)
                process.stdin.flush()
                length, failed = map(int, process.stdout.readline().split())
                data = process.stdout.read(length)
            except (OSError, ValueError):
                raise self._death(process) from None
            if len(data) < length:
                raise self._death(process)
        if failed:
            raise DrawError(f"The picture can't be drawn: {data.decode(errors='replace')}.")
        return data

    def close(self) -> None:
        if self._process is not None:
            self._death(self._process)

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            self._process = subprocess.Popen(
                PROCESS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as e:
            raise DrawError(
                f"The drawing process can't be started: {e.strerror}. {_ADVICE}"
            ) from None
        threading.Thread(target=self._drain, args=(self._process,), daemon=True).start()
        return self._process

    def _drain(self, process: "subprocess.Popen[bytes]") -> None:
        """Read what it prints: a full pipe would stop it. The last line says why it died."""
        assert process.stderr
        with process.stderr:
            for line in process.stderr:
                self._last = line.strip() or self._last

    def _death(self, process: "subprocess.Popen[bytes]") -> DrawError:
        assert process.stdin and process.stdout
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._process = None
        last = self._last.decode(errors="replace")[:200]
        how = (
            f"was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with code {code}: {last}"
        )
        return DrawError(
            f"The picture can't be drawn: the drawing process {how}. {_ADVICE}"
        )


_DRAWER = _Drawer()
atexit.register(_DRAWER.close)


def drawn(function: str, *words: Any, **options: Any) -> bytes:
    """Return what a function of vl_convert makes, as bytes."""
    return _DRAWER.ask(function, list(words), options)
