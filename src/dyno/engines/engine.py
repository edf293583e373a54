"""A running engine, whichever it is: what the conductor needs of it. Leaving its `with` stops it."""

from typing import Self

from dyno.engines.process import EngineProcess


class Engine:
    def __init__(self, process: EngineProcess, base_url: str, version: str) -> None:
        self.process = process
        self.command = process.command  # what started it
        self.base_url = base_url
        self.version = version

    def stop(self) -> None:
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
