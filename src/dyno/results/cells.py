"""A cell of a table: a figure where its column is one, else a setting, or two."""

import re
from typing import Final

from dyno.facts.definition import definition
from dyno.facts.imported import Cell, Figure, Scalar, Setting
from dyno.facts.metric import SPEEDS
from dyno.facts.setting import ENGINE, ENGINES
from dyno.results import columns
from dyno.results.columns import TO_BYTES, TO_MS, Column
from dyno.results.printed import Printed, printed
from dyno.secrets import shown

# Whole numbers of these are counted, not rounded.
_COUNTED: Final = (
    "completed", "failed", "incomplete", "total_input_tokens", "total_output_tokens", "total_tokens",
    "peak_concurrency", "cached_input_tokens",
)  # fmt: skip
# 8xH100, 4 x MI300X, 2× RTX 4090
_DEVICES: Final = re.compile(
    r"\b(\d{1,3})\s?[x×*]\s?("
    r"(?:RTX\s?|RX\s?)?(?:[ABHLTV]\d{2,3}|GH200|GB[23]00|MI\d{3}|[345]0[5-9]0|[79][09][07]0|Gaudi\s?\d|TPU|W\d{4}|R9700)"
    r"(?:\s?(?:X|XL|S|SXM|NVL|Ti|Super|XTX|XT|A)\b)?)",
    re.I,
)
_TOKENS_PER_S: Final = re.compile(r"(?:tok|toks|token|tokens|t)/(?:s|sec|second)|tps")
_REQUESTS_PER_S: Final = re.compile(r"(?:req|reqs|request|requests|r)/(?:s|sec|second)|rps|qps")
_MOST_DEVICES: Final = 64
_WIDEST: Final = 200  # characters of a cell that may still be a setting


def figure(cell: Cell, column: Column, line: int, tool: str) -> Figure | None:
    number = printed(cell.text.strip().removesuffix(column.behind))
    scale = None if number is None else _scale(column, number)
    if number is None or scale is None:
        return None
    exact = column.name in _COUNTED and number.value == int(number.value)
    return Figure(
        value=number.value * scale,
        line=line,
        half=0.0 if exact else number.half * scale,
        definition=definition(tool, columns.stem_of(column.name)),
        deviation=None if number.deviation is None else number.deviation * scale,
        bold=cell.bold,
    )


def _scale(column: Column, number: Printed) -> float | None:
    """A unit in the cell stands above none in the title; one that can't be is no figure."""
    if not number.unit:
        return column.scale
    if columns.stem_of(column.name):
        return TO_MS.get(number.unit)
    if column.name == "duration_s" and number.unit in TO_MS:
        return TO_MS[number.unit] / 1e3
    if column.name == "memory_bytes":
        return TO_BYTES.get(number.unit)
    if column.name == "acceptance_rate":
        return 0.01 if number.unit == "%" else None
    if column.name in SPEEDS:
        return (
            column.scale if rate(number.unit) == ("req/s" if column.name.startswith("request") else "tok/s") else None
        )
    return column.scale if number.unit in {"w", "usd", "tokens", "requests"} else None


def rate(unit: str) -> str:
    """tok/s or req/s, however a cell writes them; '' of another unit."""
    if _TOKENS_PER_S.fullmatch(unit):
        return "tok/s"
    return "req/s" if _REQUESTS_PER_S.fullmatch(unit) else ""


def plain(text: str) -> str:
    return " ".join(text.split())[:_WIDEST] if not _blank(text) else ""


def _blank(text: str) -> bool:
    return text.strip().lower() in ("", "-", "—", "–", "n/a", "na", "nan", "none", "null", "tbd", "?")


def settings_of(name: str, text: str, line: int) -> dict[str, Setting]:
    """One cell; a few of them tell two things."""
    text = text.strip()
    if _blank(text) or len(text) > _WIDEST:
        return {}
    if name == "accelerator" and text.isdecimal() and 0 < int(text[:6]) <= _MOST_DEVICES:  # 'GPUs'; '3060' is a name
        return {"accelerators": Setting(int(text), line, "column")}
    if name == "accelerator":
        return {"accelerator": Setting(shown(name, text), line, "column"), **devices(text, line)}
    if name == "backend" and ENGINE.search(text):
        name = "engine"
    if name == "engine" and (known := ENGINES.get(text.lower())):  # one name, however it is written
        return {name: Setting(known, line, "column")}
    if name == "model_bytes":
        number = printed(text)
        size = None if number is None else TO_BYTES.get(number.unit)
        if number is None or size is None:
            return {"size": Setting(shown("size", text), line, "column")}
        return {"model_bytes": Setting(number.value * size, line, "column")}
    return {name: Setting(_scalar(name, text), line, "column")}


def _scalar(name: str, text: str) -> Scalar:
    if name == "concurrency":
        text = re.sub(r"^(?:c|conc|concurrency)\s*[=:]\s*", "", text, flags=re.I)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if name in ("input_len", "output_len"):
        text = re.sub(r"\s*tok(?:en)?s$", "", text)
    number = printed(text)
    if number is None or number.unit or number.deviation is not None or re.search(r"[^\d.,eE+-]", text):
        return shown(name, text)
    return int(number.value) if number.value == int(number.value) and abs(number.value) < 1e15 else number.value


def devices(text: str, line: int) -> dict[str, Setting]:
    match = _DEVICES.search(text)
    if match is None:
        return {}
    return {
        "accelerator": Setting(match[2], line, "column"),
        "accelerators": Setting(int(match[1]), line, "column"),
    }
