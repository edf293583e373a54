"""The server under test: what was asked for, and what it reports of itself."""

import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from dyno.option import Option
from dyno.transport import Transport

_LONGEST = 300  # letters of a name or version; a longer text is none
_COUNT_BELOW = 2**53
# No name or version has such characters: they end lines, move a terminal's cursor, or can't be written at all.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class TargetSpec(Transport, frozen=True):
    """Where and what to ask. Keys and header values are kept apart from it: they reach no file."""

    base_url: Annotated[str, Option(setting="--base-url", identity=False)]
    backend: str
    endpoint: str
    model: str | None = None  # None: the first that the server lists
    served_model_name: Annotated[str | None, Option(identity=False)] = None
    header_names: Annotated[list[str], Option(identity=False)] = []
    # those that may change an answer: no keys
    routing_headers: Annotated[list[str], Option(setting="headers")] = []
    # Further copies of the same server: requests go to the one with the least in flight. Their number is `replicas`.
    more_urls: Annotated[list[str], Option(setting="replicas")] = []

    @property
    def urls(self) -> list[str]:
        return [self.base_url, *self.more_urls]


class TargetFacts(msgspec.Struct, frozen=True):
    """Facts that a server reports by its routes, or by its log where dyno started it. None: unknown."""

    model: str  # as sent in each request
    models_listed: list[str] | None = None  # None: it has no list
    max_model_len: int | None = None  # context of one request
    version: str | None = None
    kind: str | None = None  # vllm, llamacpp, …: recognized by its routes
    model_path: str | None = None  # what was loaded
    slots: int | None = None  # requests worked on at once
    quantization: str | None = None  # '': it says that nothing is quantized
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    kv_cache_tokens: int | None = None  # capacity
    # how many requests of full context the KV cache holds at once
    full_length_requests: float | None = None
    prefix_caching: bool | None = None
    # the prefix cache holds whole blocks of this size
    cache_block_tokens: int | None = None
    chunked_prefill: bool | None = None
    tensor_parallel: int | None = None
    weights_bytes: int | None = None
    # further ones, by llama.cpp's names for them
    settings: dict[str, int | str] | None = None


def known(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Keep of what a server or its log reports, by field, the values of the field's type. The rest is unknown.

    All numbers there are counts or sizes, so none is 0, negative or beyond all bounds.
    """
    out: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(TargetFacts).items():
        value = reported.get(name)
        if isinstance(value, str):
            value = CONTROL.sub(" ", value[:_LONGEST])
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and not 0 < value < _COUNT_BELOW
        ):
            continue
        try:
            out[name] = msgspec.convert(value, hint)
        except msgspec.ValidationError:
            continue
    return {name: value for name, value in out.items() if value is not None}


def is_name(text: object) -> bool:
    """Return whether it can be a model's name: short, without control characters."""
    return isinstance(text, str) and 0 < len(text) <= _LONGEST and not CONTROL.search(text)
