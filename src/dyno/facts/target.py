"""The server under test: what was asked for, and what it said of itself."""

import msgspec


class TargetSpec(msgspec.Struct, frozen=True):
    """Where and what to ask. Keys and header values are kept apart from it: they reach no file."""

    base_url: str
    backend: str
    endpoint: str
    model: str | None = None  # None: the first that the server lists
    served_model_name: str | None = None
    header_names: list[str] = []
    insecure: bool = False


class TargetFacts(msgspec.Struct, frozen=True):
    model: str  # as sent in each request
    models_listed: list[str] | None = None  # None: it has no list
    max_model_len: int | None = None
    version: str | None = None
