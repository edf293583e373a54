"""What the fake engine reads of a request's messages: their words, and how many tokens its images have."""

import base64
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from dyno.errors import WorkloadError
from dyno.workload import pictures, vision

_HEAD = 4096  # base64 letters of an image that show its size
_BLIND = 2


def text(messages: Iterable[Any]) -> str:
    """Return the texts of messages, as strings or as parts."""
    texts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            texts.append(content)
        texts += [
            part["text"] for part in parts(content) if isinstance(part.get("text"), str)
        ]
    return " ".join(texts)


def media_tokens(messages: Iterable[Any], rule: str, blind: bool) -> int:
    """Return the tokens of the images in messages. `blind`: a server that loses them."""
    total = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in parts(content):
            if (data := _image(part)) is not None:
                total += _BLIND if blind else _tokens(data[:_HEAD], rule)
    return total


def parts(content: Any) -> Iterator[dict[str, Any]]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            yield part


def _image(part: dict[str, Any]) -> str | None:
    """Return an image's base64, as chat, Responses and Messages have it."""
    source = part.get("source")
    if part.get("type") == "image" and isinstance(source, dict):
        return str(source.get("data"))
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url
    return url.partition(",")[2] if isinstance(url, str) else None


@lru_cache(4096)
def _tokens(head: str, rule: str) -> int:
    counting = vision.rule_of(rule, "")
    try:
        _, width, height = pictures.read_size(
            base64.b64decode(head[: len(head) & ~3]), "it"
        )
    except (WorkloadError, ValueError):
        return 0
    return counting.of_size(width, height) if counting else 0
