"""Structured answers of the fake engine: JSON that fits a schema, calls of tools, and violations on purpose."""

import json
from collections.abc import Mapping
from typing import Any

from dyno.facts.record import ToolCall
from dyno.facts.structured import Expected, expected

_DEEPEST = 8


def chat_fields(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Responses and Messages about the form of answers as chat has them."""
    text, output = asked.get("text"), asked.get("output_config")
    form = None
    for table in (text, output):
        if isinstance(table, dict) and isinstance(table.get("format"), dict):
            form = table["format"]
    own = {"response_format": {**form, "json_schema": form}} if form else {}
    choice = asked.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("any", "auto", "none"):
        own["tool_choice"] = choice["type"]
    return {**asked, **own}


def answer(
    asked: Mapping[str, Any], fault: str | None
) -> tuple[str, list[ToolCall]] | None:
    """Return the text of an answer, or its calls; None: the request prescribes nothing."""
    wanted = expected(chat_fields(asked))
    if wanted is None:
        return None
    if wanted.kind == "tools":
        if fault == "no_call":
            return None
        return "", [_call(wanted, fault)]
    if wanted.kind == "choice":
        return ("none of these" if fault == "schema" else str(wanted.value[0])), []
    if wanted.kind == "regex":
        return None
    schema = wanted.value if wanted.kind == "schema" else {"type": "object"}
    text = json.dumps(example(schema, wrong=fault == "schema"))
    return (text[: len(text) // 2] if fault == "not_json" else text), []


def _call(wanted: Expected, fault: str | None) -> ToolCall:
    name = wanted.named or next(iter(wanted.tools))
    arguments = json.dumps(example(wanted.tools[name], wrong=fault == "schema"))
    if fault == "not_json":
        arguments = arguments[: len(arguments) // 2]
    return ToolCall("no_such_tool" if fault == "wrong_tool" else name, arguments)


def parsed(arguments: str) -> Any:
    """Return the arguments of a call as an object, also where they are no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {"text": arguments}


def example(schema: Any, wrong: bool = False, depth: int = 0) -> Any:
    """Return a small value that fits a schema. `wrong`: one that breaks it."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return "no such value" if wrong else schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example(schema[key][0], wrong, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return _object(schema, wrong, depth)
    if wrong:
        return 17 if kind in ("string", "array", "null") else "seventeen"
    if kind == "array":
        least = max(schema.get("minItems", 1), 1)
        return [example(schema.get("items", {}), depth=depth + 1) for _ in range(least)]
    return _scalar(kind, schema)


def _scalar(kind: str, schema: dict[str, Any]) -> Any:
    if kind == "string":
        return "word".ljust(schema.get("minLength", 4), "x")[: schema.get("maxLength", 99)]
    return {
        "integer": schema.get("minimum", 7),
        "number": schema.get("minimum", 7.5),
        "boolean": True,
    }.get(kind)


def _object(schema: dict[str, Any], wrong: bool, depth: int) -> dict[str, Any]:
    """Return an object. A wrong one has one wrong value, or lacks a property that is required."""
    properties = schema.get("properties") or {}
    names = list(properties)
    value = {name: example(properties[name], depth=depth + 1) for name in names}
    if wrong and names:
        value[names[-1]] = example(properties[names[-1]], True, depth + 1)
    elif wrong:
        value = dict.fromkeys(schema.get("required", ["x"])[1:])
    return value
