"""A number as it was printed: its value, how far rounding may have moved it, and the unit behind it."""

import math
import re
from typing import Final

import msgspec


class Printed(msgspec.Struct, frozen=True):
    value: float
    half: float  # half a unit of the last digit
    deviation: float | None = None  # behind a ±
    unit: str = ""  # in lower case: ms, s, gib, %


_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,18})(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?|[-+]?\.\d{1,20}"
_CELL: Final = re.compile(
    rf"(?P<sign>\$|USD )?\s*(?P<number>{_NUMBER})\s*(?:(?:±|Â±|\+/-)\s*(?P<deviation>{_NUMBER}))?"
    r"\s*(?P<unit>%|[a-zA-Zµμ]{1,12}(?:/[a-zA-Z]{1,6})?)?\s*(?:\(.{0,60}\))?[*†‡]?"
)
# What authors hang on to a winner's number. '~' and '≤' say that it is none.
_ORNAMENT: Final = re.compile(r"^[^\w.$+\-±~≈<>≤≥]+|[^\w.)%*†‡]+$")


def printed(text: str) -> Printed | None:
    """Return None if a cell is not a single number: 'N/A', 'OOM', '—', '36/64', '1.2k'."""
    text = text.replace("&nbsp;", " ").replace("\u202f", " ")
    match = _CELL.fullmatch(_ORNAMENT.sub("", text.strip())) if len(text) <= 120 else None
    if match is None:
        return None
    unit = (match["unit"] or ("usd" if match["sign"] else "")).lower().replace("μ", "µ")
    if unit in ("k", "m", "x"):
        return None  # thousands, or a factor: ambiguous
    value = float(match["number"].replace(",", ""))
    if not math.isfinite(value):
        return None
    deviation = float(match["deviation"].replace(",", "")) if match["deviation"] else None
    return Printed(value=value, half=half(match["number"]), unit=unit, deviation=deviation)


def half(number: str, many: int = 12) -> float:
    """Return half a unit of the last digit; 0 if all digits are printed."""
    mantissa, _, exponent = number.lower().replace(",", "").lstrip("+-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    if len((whole + fraction).lstrip("0")) >= many:
        return 0.0
    return 0.5 * 10.0 ** (int(exponent or 0) - len(fraction))
