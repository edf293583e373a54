"""Prompts whose answers have a prescribed form."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dyno import files
from dyno.errors import WorkloadError
from dyno.workload.datasets.structured import StructuredSpec
from dyno.workload.request import ToolRequest
from dyno.workload.tokenizer import Tokenizer

_OUTPUT_LEN = 256
_NAMES = ("Ada", "Bela", "Chen", "Dilek", "Emeka", "Fatou", "Goran", "Hana")
_CITIES = ("Accra", "Bergen", "Cusco", "Dhaka", "Essen", "Fes", "Genoa", "Hanoi")


def _text(**rules: Any) -> dict[str, Any]:
    return {"type": "string", **rules}


def _table(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


_COUNT = {"type": "integer", "minimum": 0, "maximum": 10_000}
SCHEMAS = (
    _table({"name": _text(minLength=1), "age": _COUNT, "email": _text()}),
    _table(
        {
            "title": _text(),
            "status": {"enum": ["open", "closed"]},
            "labels": {"type": "array", "items": _text(), "maxItems": 5},
        }
    ),
    _table(
        {
            "city": _text(),
            "days": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": _table({"day": _text(), "celsius": {"type": "number"}}),
            },
        }
    ),
)
CHOICES = ["positive", "negative", "neutral"]
PATTERN = r"[a-z]{3,12}@example\.(com|org)"
_UNIT = {"type": "string", "enum": ["celsius", "fahrenheit"]}
TOOLS = {
    "get_weather": ("Return the weather of a city.", {"city": _text(), "unit": _UNIT}),
    "add_event": (
        "Add an event to the calendar.",
        {"title": _text(), "day": _text(), "minutes": _COUNT},
    ),
}


def forms(spec: StructuredSpec, tokenizer: Tokenizer) -> Iterator[ToolRequest]:
    """Yield different prompts. The same seed prescribes the form of the same ones."""
    rng = np.random.default_rng([spec.seed, 20])
    schemas = (
        [_read_schema(spec.json_schema_path)] if spec.json_schema_path else list(SCHEMAS)
    )
    for number in count():
        words = (
            _NAMES[int(rng.integers(len(_NAMES)))],
            _CITIES[int(rng.integers(len(_CITIES)))],
        )
        prompt, body = _form(spec.structured_kind, schemas, number, words)
        prescribed = rng.random() < spec.structured_output_ratio
        yield ToolRequest(
            prompt,
            tokenizer.count(prompt),
            spec.output_len or _OUTPUT_LEN,
            messages=[{"role": "user", "content": prompt}],
            body=body if prescribed else {},
        )


def _form(
    kind: str, schemas: list[dict[str, Any]], number: int, words: tuple[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return a prompt and the fields that prescribe the form of its answer."""
    name, city = words
    if kind == "tools":
        tools = [_tool(tool, *TOOLS[tool]) for tool in TOOLS]
        prompt = f"({number}) {name} asks for the weather in {city}. Use a tool."
        return prompt, {"tools": tools, "tool_choice": "required"}
    if kind == "choice":
        prompt = f"({number}) {name} writes: I liked {city}. Is that {', '.join(CHOICES)}?"
        return prompt, {"structured_outputs": {"choice": CHOICES}}
    if kind == "regex":
        prompt = f"({number}) Make up a mail address for {name} at example.com."
        return prompt, {"structured_outputs": {"regex": PATTERN}}
    schema = schemas[number % len(schemas)]
    if kind == "json-unique":
        own = {f"note_{number}": _text()}
        schema = {**schema, "properties": {**schema.get("properties", {}), **own}}
    prompt = f"({number}) Make up an entry about {name} in {city}, as JSON by this schema: "
    form: dict[str, Any] = {"type": "json_object"}
    if kind != "object":
        own_schema = {"name": "entry", "schema": schema, "strict": True}
        form = {"type": "json_schema", "json_schema": own_schema}
    return prompt + json.dumps(schema), {"response_format": form}


def _tool(name: str, about: str, properties: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": about, "parameters": _table(properties)}
    return {"type": "function", "function": function}


def _read_schema(path: str) -> dict[str, Any]:
    try:
        schema = json.loads(files.read(Path(path)))
    except OSError as e:
        raise WorkloadError(f"{path} can't be read: {e.strerror}.") from None
    except files.BROKEN as e:
        raise WorkloadError(f"{path} is not JSON: {e}.") from None
    if not isinstance(schema, dict):
        raise WorkloadError(f"{path} is not a JSON schema: it must be an object.")
    return schema
