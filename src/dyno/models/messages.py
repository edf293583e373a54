"""Messages between dyno and its fetching process, a line of JSON each."""

import msgspec

from dyno.models.cache import FetchedFile


class Job(msgspec.Struct, frozen=True):
    repo: str
    kind: str  # model or dataset
    revision: str
    include: list[str] = []
    exclude: list[str] = []


class Listing(msgspec.Struct, frozen=True, tag="listing"):
    commit: str
    files: dict[str, FetchedFile]
    offline: bool = False  # by the cache: the Hub wasn't asked


class Go(msgspec.Struct, frozen=True):
    known: dict[str, str]  # files that were checked before → SHA-256


class Event(msgspec.Struct, frozen=True, omit_defaults=True, tag="event"):
    note: str = ""
    error: str = ""
    file: str = ""
    sha256: str = ""
    end: bool = False
