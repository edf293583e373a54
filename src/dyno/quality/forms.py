"""Built-in items whose answer has a prescribed form: as JSON by a schema, or as the call of a tool. Three things are
judged: whether an answer is JSON at all, whether it has the form, and whether it is right."""

import functools
import json
from typing import Any, NamedTuple

from dyno.facts.quality import AnswerForm
from dyno.facts.record import Record
from dyno.facts.structured import Expected, expected
from dyno.measure.structured import FormChecker, answer_of, parsed
from dyno.workload.tasks import Item

MAX_TOKENS = 128  # a call has more around its answer
_TOOL = "give_answer"
_NOTHING = object()
_MOST, _LONGEST, _MOST_ITEMS = 99_999, 120, 10  # above every right answer


class JudgedForm(NamedTuple):
    parsed: bool
    valid: bool
    right: bool
    problem: str  # what is wrong with its form
    extracted: str | None  # the JSON of the answer


def question(form: AnswerForm, one: Item) -> str:
    """Return the question with what it asks of the answer's form."""
    if form == "tool":
        return f"{one.question}\nGive the answer by calling the tool {_TOOL}."
    schema = json.dumps(_schema(one))
    return f"{one.question}\nAnswer as JSON by this schema, without Markdown: {schema}"


def answer(one: Item) -> str:
    """Return the right answer as JSON."""
    return json.dumps({"answer": one.value})


def body(form: AnswerForm, one: Item) -> dict[str, Any]:
    """Return the fields of a request that prescribe the form. In words alone it has none."""
    if form == "json":
        own = {"name": "answer", "schema": _schema(one), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": own}}
    if form == "tool":
        about = "Give the answer to the question."
        function = {"name": _TOOL, "description": about, "parameters": _schema(one)}
        tools = [{"type": "function", "function": function}]
        return {"tools": tools, "tool_choice": "required"}
    return {}


def judge(form: AnswerForm, one: Item, record: Record) -> JudgedForm:
    """Judge an answer. Only a valid one can be right."""
    if record.error is not None:
        return JudgedForm(False, False, False, record.error, None)
    wanted = expected(body(form, one)) or Expected("schema", _schema(one))
    problem = _checker().problem(wanted, record)
    content = _content(form, record)
    # a number that was cut is still one
    is_json = content is not _NOTHING and not (problem and problem.kind == "cut")
    return JudgedForm(
        parsed=is_json,
        valid=problem is None,
        right=problem is None and content == {"answer": one.value},
        problem="" if problem is None else problem.kind,
        extracted=json.dumps(content, ensure_ascii=False) if is_json else None,
    )


def _content(form: AnswerForm, record: Record) -> Any:
    """Return what an answer says, as far as it is JSON: of a call, its arguments."""
    if form != "tool":
        text = answer_of(record)
    elif record.calls:
        text = record.calls[0].arguments or "{}"
    else:
        return _NOTHING
    content, problem = parsed(text)
    return content if problem is None else _NOTHING


def _schema(one: Item) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"answer": _type(one.value)},
        "required": ["answer"],
        "additionalProperties": False,
    }


def _type(value: int | str | list[int | str]) -> dict[str, Any]:
    """Return the schema of an answer. It has an end: a model that only writes what it must would else write on."""
    if isinstance(value, list):
        return {"type": "array", "items": _type(value[0]), "maxItems": _MOST_ITEMS}
    if isinstance(value, int):
        return {"type": "integer", "minimum": 0, "maximum": _MOST}
    return {"type": "string", "maxLength": _LONGEST}


@functools.cache
def _checker() -> FormChecker:
    return FormChecker()
