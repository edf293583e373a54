"""A template of a JSON endpoint: what a request has, and where its answer has text and counts."""

import json
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from dyno import files
from dyno.errors import UsageError

PLACES = (
    "text",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "finish_reason",
    "error",
    "results",
)


class RequestTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    body: dict[str, Any] = {}
    answer: dict[str, str] = {}  # of PLACES → its path in the answer
    path: str = "/"
    stream: bool = True
    output: Literal["text", "scores"] = "text"


def checked(value: Any, where: str) -> RequestTemplate:
    """Return a template. Raise UsageError where it can't be one."""
    try:
        template = msgspec.convert(value, RequestTemplate)
    except msgspec.ValidationError as e:
        raise UsageError(f"{where}: {e}.") from None
    if not template.body:
        raise UsageError(f"{where}: body is missing. Give the fields of a request.")
    if unknown := sorted({*template.answer} - {*PLACES}):
        raise UsageError(
            f"{where}: an answer has no {unknown[0]}. It has {', '.join(PLACES)}."
        )
    wanted = "results" if template.output == "scores" else "text"
    if wanted not in template.answer:
        raise UsageError(
            f"{where}: answer.{wanted} is missing. Say where an answer has it."
        )
    if template.output == "scores" and template.stream:
        raise UsageError(f"{where}: scores come in one piece. Set stream = false.")
    if not template.path.startswith("/"):
        raise UsageError(f"{where}: path must begin with a slash, but is {template.path}.")
    return template


def read(path: Path) -> dict[str, Any]:
    """Read a template from a TOML or JSON file."""
    try:
        data = files.read(path)
        text = data.decode()
        value = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as e:
        raise UsageError(
            f"--request-template {path} can't be read: {e.strerror}."
        ) from None
    except (tomllib.TOMLDecodeError, *files.BROKEN) as e:
        raise UsageError(
            f"--request-template {path} is neither TOML nor JSON (*.json): {e}."
        ) from None
    checked(value, str(path))
    return value if isinstance(value, dict) else {}
