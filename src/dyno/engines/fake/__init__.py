"""The fake engine: known first-token and inter-token times, a log of its own send times, and faults on demand.

Comparisons are made with its log (`GET /fake/log`), never with the nominal times. It speaks OpenAI's completions and
chat routes, TGI's own ones, vLLM's /tokenize and /detokenize.
"""

import sys
import time
from pathlib import Path
from typing import Any, Self

import msgspec

from dyno.engines.engine import Engine
from dyno.engines.fake.spec import FAULTS, FakeSpec
from dyno.engines.port import free_port
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, TargetError
from dyno.http import Client, Url

__all__ = ["FAULTS", "Fake", "FakeSpec"]


class Fake(Engine):
    """A running fake engine."""

    @classmethod
    def start(cls, spec: FakeSpec, log: Path, port: int | None = None) -> Self:
        port = port or free_port()
        command = [sys.executable, "-P", "-m", "dyno.engines.fake", str(port), msgspec.json.encode(spec).decode()]
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
                            f"The fake engine didn't come up: {' | '.join(process.last_lines())}. Read {log}."
                        ) from None
                    time.sleep(0.02)
        except BaseException:
            process.stop()
            raise
        finally:
            client.close()

    def log(self) -> dict[str, Any]:
        """What it sent and when, since the last call: arrival, then each send, for each finished stream."""
        client = Client(Url(self.base_url), {}, timeout_s=120, largest_bytes=1 << 30)
        try:
            answer: dict[str, Any] = client.call("/fake/log")[1]
            return answer
        finally:
            client.close()
