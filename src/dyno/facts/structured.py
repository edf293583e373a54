"""What a request says of the form of its answer: a JSON schema, a choice, a pattern, or tools to call. In the fields of
OpenAI's chat, and those of vLLM and llama.cpp for the same."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

Kind = Literal["schema", "object", "choice", "regex", "tools"]


class Expected(msgspec.Struct, frozen=True):
    """The form that an answer must have."""

    kind: Kind
    value: Any = None  # the schema, the choices or the pattern
    tools: dict[str, Any] = {}  # name → schema of its arguments
    # tools: whether a call must come, and of which tool
    required: bool = False
    named: str = ""


class Forms(msgspec.Struct, frozen=True):
    """The forms that the answers of a load must have."""

    each: list[Expected] = []
    of_request: list[int] = []  # place of its form in `each`; -1: it prescribes none

    def __getitem__(self, index: int) -> Expected | None:
        """Return the form of a request, by its number in the load: a load may send its requests several times."""
        if not self.of_request:
            return None
        place = self.of_request[index % len(self.of_request)]
        return None if place < 0 else self.each[place]


class StructuredSummary(msgspec.Struct, frozen=True):
    """Completed answers whose form the request prescribed."""

    checked: Annotated[int, "completed answers whose form was prescribed"]
    valid: Annotated[int, "of these, those that have it"]
    valid_share: Annotated[float, "share of these answers that have it"]
    problems: Annotated[dict[str, int], "the others, by what is wrong"]
    examples: Annotated[dict[str, str], "an example of each"]
    calls: Annotated[int, "tool calls in these answers"] = 0
    without_call: Annotated[
        int, "answers without a call, where the model was free to make none"
    ] = 0
    # Medians in ms where the load has both kinds of requests.
    tpot_ms: Annotated[float | None, "median TPOT of these answers"] = None
    free_tpot_ms: Annotated[float | None, "median TPOT of the other answers"] = None
    ttft_ms: Annotated[float | None, "median TTFT of these answers"] = None
    free_ttft_ms: Annotated[float | None, "median TTFT of the other answers"] = None
    free: Annotated[int, "completed answers without a prescribed form"] = 0
    # by their ranks: 3 and more is no chance
    tpot_slower: Annotated[
        float | None, "standard errors by which these answers have a higher TPOT"
    ] = None
    ttft_slower: Annotated[
        float | None, "standard errors by which these answers have a higher TTFT"
    ] = None


def expected(body: Mapping[str, Any]) -> Expected | None:
    """Return what a request's fields prescribe; None: nothing, or in a form that can't be checked."""
    if tools := _tools(body.get("tools")):
        choice = body.get("tool_choice", "auto")
        if choice == "none":
            return None
        named = _named(choice)
        required = bool(named) or choice in ("required", "any")
        return Expected("tools", tools=tools, required=required, named=named)
    for read in (_response_format, _structured_outputs, _older):
        if (form := read(body)) is not None:
            return form
    return None


def _tools(tools: Any) -> dict[str, Any]:
    """Return names of tools with the schemas of their arguments."""
    out = {}
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            schema = function.get("parameters", function.get("input_schema"))
            out[function["name"]] = schema if isinstance(schema, dict) else {}
    return out


def _named(choice: Any) -> str:
    if not isinstance(choice, dict):
        return ""
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _response_format(body: Mapping[str, Any]) -> Expected | None:
    form = body.get("response_format")
    if not isinstance(form, dict):
        return None
    if form.get("type") == "json_object":
        # llama.cpp takes a schema beside it
        schema = form.get("schema")
        return (
            Expected("schema", schema) if isinstance(schema, dict) else Expected("object")
        )
    schema = form.get("json_schema")
    schema = schema.get("schema") if isinstance(schema, dict) else None
    return Expected("schema", schema) if isinstance(schema, dict) else None


def _structured_outputs(body: Mapping[str, Any]) -> Expected | None:
    """vLLM's field from 0.11 on."""
    form = body.get("structured_outputs")
    if not isinstance(form, dict):
        return None
    return _of_keys({"json": "json", "choice": "choice", "regex": "regex"}, form)


def _older(body: Mapping[str, Any]) -> Expected | None:
    """vLLM's earlier fields, and llama.cpp's."""
    names = {"guided_json": "json", "guided_choice": "choice", "guided_regex": "regex"}
    return _of_keys({**names, "json_schema": "json"}, body)


def _of_keys(names: Mapping[str, str], form: Mapping[str, Any]) -> Expected | None:
    for name, kind in names.items():
        value = form.get(name)
        if kind == "json" and isinstance(value, dict):
            return Expected("schema", value)
        if kind == "choice" and isinstance(value, list):
            return Expected("choice", value)
        if kind == "regex" and isinstance(value, str):
            return Expected("regex", value)
    return None
