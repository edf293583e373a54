"""A row in the making: tables of paths say which values of a file are figures, latencies and settings."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Final, Literal, TypeVar

import msgspec

from dyno.facts.comparison import Estimate
from dyno.facts.finding import Finding
from dyno.facts.imported import By, Figure, Row, RowKind, Samples, Scalar, Setting, Unread
from dyno.facts.metric import definition, stem_named
from dyno.facts.rig import Rig
from dyno.results.json_text import Value
from dyno.results.printed import half
from dyno.secrets import shown

Read = tuple[list[Row], list[Unread]]
# from a path, 'config.backend.model', to a name; the first that has a value counts
Paths = Mapping[str, str]
Form = Literal["json", "csv", "sql"]
T = TypeVar("T")
_NAMED: Final = 6  # metrics that a remark names
_LONGEST: Final = 300  # characters of a setting or an error that are kept
_STATISTICS: Final = {
    "mean": "mean", "avg": "mean", "median": "median", "std": "std", "std_dev": "std", "stddev": "std", "min": "min",
    "max": "max",
}  # fmt: skip
_PERCENTILE: Final = re.compile(r"p\d+(\.\d+)?")


class Draft:
    def __init__(
        self, kind: RowKind, tool: str, file: str, source: Value | int, form: Form = "json"
    ) -> None:
        """`source`: the object that is read, or its line."""
        self.kind, self.tool, self.file, self.form = kind, tool, file, form
        self.line, self.end = (
            (source, source) if isinstance(source, int) else (source.line, source.end)
        )
        self.figures: dict[str, Figure] = {}
        self.settings: dict[str, Setting] = {}
        self.samples: Samples | None = None
        self.unread: list[Unread] = []
        self.findings: list[Finding] = []
        self.estimates: dict[str, Estimate] = {}
        self.prompts_sha256: str | None = None
        self.rig: Rig | None = None
        self.label = ""
        self.series = ""

    # ---- figures ----

    def figure(
        self, name: str, value: Value | None, scale: float = 1.0, means: str = ""
    ) -> None:
        """Add a figure if the value is a number; else list it as unread."""
        if value is None or value.null or name in self.figures:
            return
        number = value.number
        if number is None:
            self.unread.append(Unread(value.line, f"{name} is not a number", "lines"))
            return
        self.figures[name] = Figure(
            number * scale, value.line, _rounding(value.digits) * abs(scale), means
        )

    def read_figures(self, value: Value, paths: Paths) -> None:
        for path, name in paths.items():
            self.figure(name, value.find(path))

    def latency(
        self, statistic: str, stem: str, value: Value | None, scale: float = 1.0
    ) -> None:
        self.figure(f"{statistic}_{stem}_ms", value, scale, definition(self.tool, stem))

    def read_keys(self, value: Value, pattern: re.Pattern[str], scale: float = 1.0) -> None:
        """Read latencies from flat keys. The pattern's groups are `statistic` and `stem`."""
        for key, field in value.fields.items():
            if match := pattern.fullmatch(key):
                statistic, stem = match["statistic"], match["stem"]
                self.latency(
                    _STATISTICS.get(statistic, statistic),
                    stem_named(stem) or stem,
                    field,
                    scale,
                )

    def read_spreads(self, value: Value, paths: Paths, scale: float = 1.0) -> None:
        """Read latencies that are an object of statistics each. `paths`: to their stems."""
        for path, stem in paths.items():
            block = value.find(path)
            if block is None:
                continue
            for key, field in block.fields.items():
                if key in _STATISTICS or _PERCENTILE.fullmatch(key):
                    self.latency(_STATISTICS.get(key, key), stem, field, scale)
            self.latency("median", stem, block.get("p50"), scale)

    def leave(self, metrics: Iterable[tuple[str, Value]]) -> None:
        """List metrics that are not read."""
        left = list(metrics)
        if left:
            more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            names = ", ".join(key for key, _ in left[:_NAMED]) + more
            self.unread.append(Unread(left[0][1].line, "meaning unknown", "columns", names))

    # ---- settings ----

    def set(self, name: str, scalar: Scalar, line: int, by: By = "block") -> None:
        if isinstance(scalar, str):
            scalar = shown(name, scalar.strip())[:_LONGEST]
            if not scalar:
                return
        self.settings.setdefault(name, Setting(scalar, line, by))

    def setting(self, name: str, value: Value | None, by: By = "block") -> None:
        if value is not None and (scalar := value.scalar) is not None:
            self.set(name, scalar, value.line, by)

    def read_settings(self, value: Value | None, paths: Paths) -> None:
        if value is not None:
            for path, name in paths.items():
                self.setting(name, value.find(path))

    def others(self, value: Value, known: Iterable[str]) -> None:
        """Read keys that no table names, such as vLLM's --metadata, as settings as the author called them."""
        known = set(known)
        for key, field in value.fields.items():
            if key not in known and len(key) <= 80:
                self.setting(key, field)

    # ---- lists of single requests ----

    def decoded(self, kind: type[list[T]], value: Value | None, name: str) -> list[T]:
        if value is None or value.null:
            return []
        items = value.decoded(kind)
        if items is None:
            self.unread.append(
                Unread(value.line, f"the list {name} has unexpected items", "lines")
            )
        return items or []

    def times_ms(self, value: Value | None, name: str) -> list[float]:
        """Convert a list of seconds. dyno's own files have null where a time is unknown."""
        return [
            math.nan if s is None else 1e3 * s
            for s in self.decoded(list[float | None], value, name)
        ]

    def gaps_ms(self, value: Value | None, name: str) -> tuple[list[float], list[float]]:
        """Convert a list of seconds for each request: all of them, and the sum of each. Each list is released before
        the next: there may be millions of gaps."""
        if value is None or value.null:
            return [], []
        decoder = msgspec.json.Decoder(list[float | None])
        pooled: list[float] = []
        sums: list[float] = []
        try:
            for raw in self.decoded(list[msgspec.Raw], value, name):
                seconds = decoder.decode(raw)
                gaps = [1e3 * s for s in seconds if s is not None]
                pooled.extend(gaps)
                sums.append(sum(gaps) if len(gaps) == len(seconds) else math.nan)
        except msgspec.MsgspecError:
            self.unread.append(
                Unread(value.line, f"the list {name} has unexpected items", "lines")
            )
            return [], []
        return pooled, sums

    def row(self) -> Row:
        return Row(
            kind=self.kind,
            tool=self.tool,
            form=self.form,
            file=self.file,
            line=self.line,
            end=self.end,
            figures=self.figures,
            settings=self.settings,
            label=shown("", self.label)[:_LONGEST],
            series=shown("", self.series)[:_LONGEST],
            samples=self.samples,
            findings=self.findings,
            estimates=self.estimates,
            prompts_sha256=self.prompts_sha256,
            rig=self.rig,
        )


def scored(
    tool: str,
    file: str,
    line: int,
    test: tuple[str, str, str],
    scores: Sequence[tuple[str, float]],
) -> Draft:
    """Return the row of a quality test from its single items. `test`: task, metric and filter. `scores`: by item."""
    draft = Draft("quality", tool, file, line)
    values = [score for _, score in scores]
    figures = {"score": fmean(values), "completed": float(len(values))}
    if len(values) > 1:
        figures["stderr"] = stdev(values) / math.sqrt(len(values))
    draft.figures = {name: Figure(value, line) for name, value in figures.items()}
    draft.samples = Samples(scores=dict(scores))
    draft.label = test[0]
    for name, word in zip(("task", "metric", "filter"), test, strict=True):
        draft.set(name, word, line)
    draft.set("samples", len(values), line)
    return draft


def rows_of(drafts: Iterable[Draft]) -> Read:
    rows: list[Row] = []
    unread: list[Unread] = []
    for draft in drafts:
        unread += draft.unread
        if draft.figures:
            rows.append(draft.row())
        else:
            unread.append(Unread(draft.line, "a result without figures", "lines"))
    return rows, unread


def _rounding(digits: str) -> float:
    """Return half a unit of the last digit. In JSON whole numbers are exact, and 12.0 is a whole number."""
    return 0.0 if "." not in digits or digits.endswith(".0") else half(digits)


def errors(texts: Iterable[str | None]) -> list[str]:
    return [shown("", text[:_LONGEST]) if text else "" for text in texts]


def complete(values: list[T | None]) -> list[T]:
    """Return all values, or none: a list with holes no longer lines up with the others."""
    present = [x for x in values if x is not None]
    return present if len(present) == len(values) else []
