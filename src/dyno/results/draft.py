"""A row in the making: known keys become figures, others settings, and what is wrong is noted with its line."""

import math
from collections.abc import Iterable
from typing import Final, Literal, TypeVar

import msgspec

from dyno.facts.definition import definition
from dyno.facts.finding import Finding
from dyno.facts.imported import By, Figure, Row, RowKind, Samples, Scalar, Setting, Unread
from dyno.results.printed import half
from dyno.results.value import Value
from dyno.secrets import shown

Form = Literal["json", "csv", "sql"]
T = TypeVar("T")
_LONGEST: Final = 300  # characters of a setting or an error that are kept


class Draft:
    def __init__(self, kind: RowKind, tool: str, file: str, value: Value, form: Form = "json") -> None:
        self.kind, self.tool, self.file, self.value, self.form = kind, tool, file, value, form
        self.figures: dict[str, Figure] = {}
        self.settings: dict[str, Setting] = {}
        self.unread: list[Unread] = []
        self.findings: list[Finding] = []
        self.label = ""
        self.series = ""

    def figure(self, name: str, value: Value | None, scale: float = 1.0, means: str = "") -> None:
        """Nothing where it is absent or null; a remark where it is no number."""
        if value is None or value.null or name in self.figures:
            return
        number = value.number
        if number is None:
            self.unread.append(Unread(value.line, f"what stands for {name} is no number", "lines"))
            return
        self.figures[name] = Figure(number * scale, value.line, rounding(value.digits) * abs(scale), means)

    def latency(self, statistic: str, stem: str, value: Value | None, scale: float = 1.0) -> None:
        self.figure(f"{statistic}_{stem}_ms", value, scale, definition(self.tool, stem))

    def setting(self, name: str, value: Value | None, by: By = "block") -> None:
        if value is None:
            return
        scalar = value.scalar
        if scalar is not None:
            self.told(name, scalar, value.line, by)

    def told(self, name: str, scalar: Scalar, line: int, by: By = "block") -> None:
        if isinstance(scalar, str):
            scalar = shown(name, scalar.strip())[:_LONGEST]
            if not scalar:
                return
        self.settings.setdefault(name, Setting(scalar, line, by))

    def others(self, value: Value, known: Iterable[str]) -> None:
        """Keys that no table names, such as vLLM's --metadata: as the author called them."""
        known = set(known)
        for key, field in value.fields.items():
            if key not in known and len(key) <= 80:
                self.setting(key, field)

    def samples(self, kind: type[list[T]], value: Value | None, name: str) -> list[T]:
        if value is None or value.null:
            return []
        found = value.decoded(kind)
        if found is None:
            self.unread.append(Unread(value.line, f"the list {name} holds something else than it should", "lines"))
        return found or []

    def times_ms(self, value: Value | None, name: str) -> list[float]:
        """Of a list of seconds. dyno's own files have null where the time is not known."""
        return [math.nan if s is None else 1e3 * s for s in self.samples(list[float | None], value, name)]

    def gaps_ms(self, value: Value | None, name: str) -> tuple[list[float], list[float]]:
        """Of a list of seconds for each request: all of them, and each one's sum. Each list is let go before the next:
        there may be millions of gaps."""
        if value is None or value.null:
            return [], []
        decoder = msgspec.json.Decoder(list[float | None])
        pooled: list[float] = []
        sums: list[float] = []
        try:
            for raw in self.samples(list[msgspec.Raw], value, name):
                found = decoder.decode(raw)
                gaps = [1e3 * s for s in found if s is not None]
                pooled.extend(gaps)
                sums.append(sum(gaps) if len(gaps) == len(found) else math.nan)
        except msgspec.MsgspecError:
            self.unread.append(Unread(value.line, f"the list {name} holds something else than it should", "lines"))
            return [], []
        return pooled, sums

    def row(self, samples: Samples | None = None) -> Row:
        return Row(
            kind=self.kind, tool=self.tool, form=self.form, file=self.file, line=self.value.line, end=self.value.end,
            figures=self.figures, settings=self.settings, label=shown("", self.label)[:_LONGEST],
            series=shown("", self.series)[:_LONGEST], samples=samples,
            findings=self.findings,
        )  # fmt: skip


def rounding(digits: str) -> float:
    """Of a number in JSON, where whole ones are exact and 12.0 is a whole one."""
    return 0.0 if "." not in digits or digits.endswith(".0") else half(digits)


def errors(texts: Iterable[str | None]) -> list[str]:
    return [shown("", text[:_LONGEST]) if text else "" for text in texts]
