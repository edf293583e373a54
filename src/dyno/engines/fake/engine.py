"""The fake engine in a process of its own. It imports next to nothing: hundreds start in a run of the tests."""

import sys
import time
from pathlib import Path
from typing import Any, Self

from dyno.engines.engine import Engine
from dyno.engines.fake import FakeSpec, as_words
from dyno.engines.port import free_port
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, TargetError
from dyno.http import Client, Url


class Fake(Engine):
    """A running fake engine."""

    @classmethod
    def start(cls, spec: FakeSpec, log: Path, port: int | None = None) -> Self:
        port = port or free_port()
        command = [
            sys.executable,
            "-P",
            "-m",
            "dyno.engines.fake",
            str(port),
            *as_words(spec),
        ]
        process = EngineProcess(command, None, log)
        client = Client(Url(f"http://127.0.0.1:{port}"), {})
        try:
            while True:
                try:
                    client.call("/health")
                    return cls(process, str(client.url), "fake")
                except TargetError:
                    if not process.alive() or process.age_s > 30:
                        raise EngineError(
                            f"The fake engine didn't start: {' | '.join(process.last_lines())}. Read {log}."
                        ) from None
                    time.sleep(0.02)
        except BaseException:
            process.stop()
            raise
        finally:
            client.close()

    def log(self) -> dict[str, Any]:
        """Return its send times since the last call: for each finished stream the arrival, then each send."""
        client = Client(Url(self.base_url), {}, timeout_s=120, largest_bytes=1 << 30)
        try:
            answer: dict[str, Any] = client.call("/fake/log")[1]
            return answer
        finally:
            client.close()
