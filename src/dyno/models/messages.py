"""Messages between dyno and its fetching process, a line of JSON each."""

import msgspec

from dyno.models.cache import FetchedFile


class Job(msgspec.Struct, frozen=True):
    repo: str
    kind: str  # model or dataset
    revision: str
    include: list[str] = []
    exclude: list[str] = []


class RepoQuestion(msgspec.Struct, frozen=True):
    """Repositories whose sizes are wanted. They are asked for at once."""

    jobs: list[Job]
    shapes: bool = False  # read each model's config.json, too


class RepoFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the Hub says of one repository, as far as the user may know it."""

    index: int  # of the question's jobs
    files: dict[str, FetchedFile] = {}
    gated: bool = False  # its owner grants access
    parameters: int | None = None  # by its list of safetensors
    # tables of tokens, which most quantizations leave as they are
    table_parameters: int = 0
    error: str = ""
    refused: bool = False  # it can't be fetched, whenever one tries


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
