"""Answers held to the form that their requests prescribe: valid by JSON schema, and calls of tools that exist, with
arguments of the right types."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dyno.facts.record import Record, ToolCall
from dyno.facts.structured import Expected, Forms, StructuredSummary
from dyno.measure import timing
from dyno.units import NS_PER_MS

_LONGEST = 1 << 20  # characters of an answer; a longer one is not looked into
_EXAMPLE = 200
_KNOWN_SCHEMAS = 10_000
# what more tokens would not have mended
_NOT_BY_LENGTH = ("no call", "unknown tool")


class FormProblem(NamedTuple):
    kind: str
    detail: str


class FormChecker:
    """Holds answers to forms. A schema is compiled once."""

    def __init__(self) -> None:
        self._validators: dict[bytes, Any] = {}

    def problem(self, expected: Expected, record: Record) -> FormProblem | None:
        """Return what is wrong with an answer; None: it has the form."""
        if len(record.text) > _LONGEST:
            return FormProblem("too long", f"{len(record.text):,} characters")
        problem = self._wrong(expected, record)
        cut = record.finish_reason == "length"
        if problem is not None and cut and problem.kind not in _NOT_BY_LENGTH:
            return FormProblem("cut", f"it reached its limit of tokens; {problem.detail}")
        return problem

    def _wrong(self, expected: Expected, record: Record) -> FormProblem | None:
        if expected.kind == "tools":
            return self._wrong_calls(expected, record.calls)
        text = answer_of(record)
        if expected.kind == "choice":
            known = text.strip() in map(str, expected.value)
            return (
                None if known else FormProblem("choice", f"{_short(text)} is none of them")
            )
        if expected.kind == "regex":
            return _against_pattern(text, expected.value)
        value, problem = parsed(text)
        if problem is not None:
            return problem
        if expected.kind == "object":
            whole = isinstance(value, dict)
            return (
                None if whole else FormProblem("schema", f"{_short(text)} is not an object")
            )
        return self._against(expected.value, value, "schema")

    def _wrong_calls(self, expected: Expected, calls: list[ToolCall]) -> FormProblem | None:
        if not calls:
            return (
                FormProblem("no call", "the answer calls no tool")
                if expected.required
                else None
            )
        for call in calls:
            if call.name not in expected.tools or expected.named not in ("", call.name):
                return FormProblem("unknown tool", f"it calls {_short(call.name)}")
            value, problem = parsed(call.arguments or "{}")
            if problem is not None:
                return FormProblem("arguments not JSON", f"{call.name}: {problem.detail}")
            schema = expected.tools[call.name]
            if problem := self._against(schema, value, "arguments"):
                return FormProblem("arguments", f"{call.name}: {problem.detail}")
        return None

    def _against(self, schema: Any, value: Any, kind: str) -> FormProblem | None:
        """Return the first thing in which a value breaks a schema."""
        try:
            error = next(self._validator(schema).iter_errors(value), None)
        except (
            Exception
        ) as e:  # the schema itself is wrong, or names another that isn't in it
            return FormProblem("schema not usable", _short(f"{type(e).__name__}: {e}"))
        if error is None:
            return None
        place = "/".join(map(str, error.absolute_path)) or "the whole"
        return FormProblem(kind, f"{place}: {_short(error.message)}")

    def _validator(self, schema: Any) -> Any:
        import jsonschema
        import referencing

        key = msgspec.json.encode(schema)
        if key not in self._validators:
            if len(self._validators) >= _KNOWN_SCHEMAS:
                self._validators.clear()
            chosen = jsonschema.validators.validator_for(
                schema, default=jsonschema.Draft202012Validator
            )
            # without a registry, a reference to elsewhere would be fetched
            self._validators[key] = chosen(schema, registry=referencing.Registry())
        return self._validators[key]


def answer_of(record: Record) -> str:
    """Return the text of an answer, without the reasoning that came before it as marks of the model."""
    text = record.text
    if text.lstrip().startswith("<think>"):
        return text.partition("</think>")[2]
    return text


def parsed(text: str) -> tuple[Any, FormProblem | None]:
    """Return a text as JSON, or why it is none."""
    try:
        return msgspec.json.decode(text), None
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as e:
        return None, FormProblem("not JSON", f"{_short(text)}: {e}")


def _against_pattern(text: str, pattern: str) -> FormProblem | None:
    try:
        fits = re.fullmatch(pattern, text.strip())
    except re.error as e:
        return FormProblem("schema not usable", f"the pattern: {e}")
    return None if fits else FormProblem("regex", f"{_short(text)} doesn't fit")


def _short(text: str) -> str:
    return repr(text if len(text) <= _EXAMPLE else f"{text[:_EXAMPLE]}…")


class FormTally:
    """Adds up answers."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self._checker = FormChecker()
        self._n: Counter[str] = Counter()
        self._problems: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._times: dict[tuple[str, bool], list[float]] = {}

    def add_all(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.error is None:
                self.add(record)

    def add(self, r: Record) -> None:
        expected = self._forms[r.index]
        for name, latency in (("ttft", timing.ttft_ns), ("tpot", timing.own_tpot_ns)):
            if (span := latency(r)) is not None:
                times = self._times.setdefault((name, expected is not None), [])
                times.append(span.middle / NS_PER_MS)
        if expected is None:
            self._n["free"] += 1
            return
        self._n["checked"] += 1
        self._n["calls"] += len(r.calls)
        problem = self._checker.problem(expected, r)
        if problem is None:
            self._n["valid"] += 1
            self._n["without_call"] += expected.kind == "tools" and not r.calls
        else:
            self._problems[problem.kind] += 1
            self._examples.setdefault(problem.kind, problem.detail)

    def summary(self) -> StructuredSummary | None:
        n = self._n
        if not n["checked"]:
            return None
        both = n["free"] > 0
        return StructuredSummary(
            checked=n["checked"],
            valid=n["valid"],
            valid_share=n["valid"] / n["checked"],
            problems=dict(sorted(self._problems.items(), key=lambda e: (-e[1], e[0]))),
            examples=self._examples,
            calls=n["calls"],
            without_call=n["without_call"],
            tpot_ms=self._median("tpot", True) if both else None,
            free_tpot_ms=self._median("tpot", False),
            ttft_ms=self._median("ttft", True) if both else None,
            free_ttft_ms=self._median("ttft", False),
            free=n["free"],
            tpot_slower=self._slower("tpot"),
            ttft_slower=self._slower("ttft"),
        )

    def _slower(self, name: str) -> float | None:
        """Return by how many standard errors answers of a prescribed form take longer (Mann and Whitney)."""
        own, free = (np.array(self._times.get((name, each), [])) for each in (True, False))
        if not len(own) or not len(free):
            return None
        ordered = np.sort(free)
        below, upto = (np.searchsorted(ordered, own, side) for side in ("left", "right"))
        wins = float((below + upto).sum()) / 2
        pairs = len(own) * len(free)
        error = (pairs * (len(own) + len(free) + 1) / 12) ** 0.5
        return float((wins - pairs / 2) / error)

    def _median(self, name: str, prescribed: bool) -> float | None:
        times = self._times.get((name, prescribed))
        return float(np.median(times)) if times else None
