"""What the conductor needs of any running engine, whichever it is."""

from typing import Protocol


class Engine(Protocol):
    base_url: str
    version: str

    def stop(self) -> None: ...
