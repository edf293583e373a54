"""Sums written out in words and listings: do they come out, and were their results ever measured?"""

import ast
import math
import re
from collections.abc import Iterator

from dyno.facts.finding import Finding
from dyno.facts.imported import Document, Passage
from dyno.facts.metric import THROUGHPUTS

TEXT_MAX = 20_000  # characters of a passage that are looked at
_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,12})?"
# An equals sign of its own with a number behind that isn't the start of more: a version, a range, a unit's multiple.
_EQUALS = re.compile(
    rf"(?<![<>!:=+*/~^-])=(?!=)\s{{0,3}}(?P<about>[~≈]?)\s?\$?(?P<value>{_NUMBER})(?P<percent>\s?%)?"
    r"(?![\w.,]?\d)(?!\s{0,2}(?:[*×/÷+=^x-]|\.\.))(?!\s?(?:[kKMGBTxX]\b|[kKMGT]i?B|thousand|million|billion|r(?:emainder)?\b))"
    r"(?![A-Za-z_])"
)
_EXPRESSION = re.compile(r"[\d.,$()\s+*×/÷x-]{3,120}$")
_PROMPT = re.compile(r"^(?:>>>|In \[\d{1,4}\]:)\s?(?P<sum>[\d.()\s+*/-]{3,120}?)(?:\s{2,}|\n|$)")
_ANSWER = re.compile(r"^(?:Out\[\d{1,4}\]:\s?)?(?P<value>-?\d{1,15}(?:\.\d{1,17})?)$")
# A sum may be of other units on its two sides: seconds and hours, bytes and bits, thousands, shares.
_CONVERSIONS = (8.0, 10.0, 12.0, 24.0, 60.0, 100.0, 1000.0, 1024.0, 3600.0, 1e6, 1024.0**2, 1e9, 1024.0**3)

_COMPARED = "higher|faster|more|better|greater|larger|longer|lower|slower|less|fewer|cheaper|shorter|smaller|worse"
_UNIT = r"(?:\s?(?P<u{0}>[a-zA-Z$%][a-zA-Z/$%]{{0,14}}))?"
_BOTH = rf"\$?(?P<a>{_NUMBER}){_UNIT.format(1)}\s{{0,2}}{{0}}\s{{0,2}}\$?(?P<b>{_NUMBER}){_UNIT.format(2)}"
_AMOUNT = r"(?P<amount>\d{1,4}(?:\.\d{1,4})?)\s?(?P<sort>%|percent|[x×](?![\w])|times\b)"
_CLAIMS = (
    re.compile(
        rf"{_AMOUNT}\s{{1,2}}(?:{_COMPARED})\b[^.()%;]{{0,90}}\(\s?"
        + _BOTH.replace("{0}", r"(?:vs\.?|versus|against|compared (?:to|with))")
        + r"\s?\)"
    ),
    re.compile(
        "from "
        + _BOTH.replace("{0}", "to")
        + rf"\s?[,(:]\s?(?:an?\s|by\s)?{_AMOUNT}\s(?:increase|improvement|reduction|decrease|drop|gain|speedup)"
    ),
)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _half(text: str) -> float:
    """Half a unit of the last printed digit."""
    return 0.5 * 10.0 ** -len(text.split(".")[1]) if "." in text else 0.5


def _half_rounded(text: str) -> float:
    """The same of a result, where zeros at an integer's end may be rounding too."""
    digits = text.replace(",", "")
    zeros = len(digits) - len(digits.rstrip("0")) if "." not in digits and digits.strip("0") else 0
    return max(_half(text), 0.5 * 10.0**zeros)


def _terms(node: ast.expr) -> tuple[float, float]:
    """Value of an expression and how far rounded terms may move it. ValueError: not of plain numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = float(node.value)
        # A small integer counts things; a decimal or a longer one was measured, and may be rounded.
        whole = isinstance(node.value, int)
        return value, (0.5 if value >= 100 else 0.0) if whole else _half(repr(node.value))
    if not isinstance(node, ast.BinOp):
        raise ValueError
    (a, da), (b, db) = _terms(node.left), _terms(node.right)
    match node.op:
        case ast.Add():
            return a + b, da + db
        case ast.Sub():
            return a - b, da + db
        case ast.Mult():
            return a * b, abs(a) * db + abs(b) * da
        case ast.Div() if b != 0:
            return a / b, (da + abs(a / b) * db) / abs(b)
    raise ValueError


def _evaluate(text: str) -> tuple[float, float] | None:
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace("$", "").replace("×", "*").replace("÷", "/")
    plain = re.sub(r"(?<=[\d)\s])x(?=[\d(\s])", "*", plain).strip()
    if not re.search(r"[\d)]\s{0,3}[-+*/]\s{0,3}[\d(]", plain) or re.search(r"\*\s*\*|/\s*/|x|,|\d\s+\d", plain):
        return None
    # a-b without blanks is more often a range or a date than a sum, unless it stands in brackets.
    if (
        re.search(r"\d-\d", re.sub(r"\([\d.]{1,15}-[\d.]{1,15}\)", "0", plain))
        or re.search(r"\d\s{0,2}/\s{0,2}\d+\s{0,2}/", plain)
        or re.search(r"(^|\D)0\d", plain)
    ):
        return None
    try:
        return _terms(ast.parse(plain, mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _expression_before(text: str, end: int) -> str:
    """The sum that ends at an equals sign; '' where it is part of something else (code, a flag, a version)."""
    found = _EXPRESSION.search(text[max(0, end - 120) : end])
    if found is None:
        return ""
    start = max(0, end - 120) + found.start()
    sum_, before = found.group(), text[max(0, start - 3) : start]
    if sum_[0] == "x" or re.search(
        r"[\d)]\s?=$|[\^%_\[\]{'\"]$", before
    ):  # 'total = 8 * 2.99 = 23.92' may be looked at
        return ""
    if sum_[:1] not in (" ", "(", "$") and re.search(r"\w$", before):  # a digit inside a word: v2*3
        return ""
    # Words before may leave their full stop, comma or dash.
    sum_ = re.sub(r"^[\s.,-]{1,6}", "", sum_)
    depth = sum_.count("(") - sum_.count(")")
    if depth > 0:  # a bracket of the sentence: '(8 * 2.99 = 23.92)'
        call = re.search(r"\w$", before) and found.group()[:1] == "("
        sum_ = re.sub(r"^\(\s?", "", sum_) if depth == 1 and not call else ""
    return "" if depth < 0 else sum_


def _off(value: float, slack: float, printed: float, half: float) -> bool:
    """Whether a printed result is wrong, and not a rounded, cut or converted one."""
    if value <= 0 or printed <= 0 or not 0.5 <= printed / value <= 2:
        return False  # so far off, it is another thing than this sum
    if abs(printed - value) <= slack + half + 1e-9 * value:
        return False
    if printed == int(printed) and printed in (math.floor(value), math.ceil(value)):
        return False
    ratio = max(printed / value, value / printed)
    return not any(abs(ratio - c) <= 0.01 * c for c in _CONVERSIONS)


def _sums(passage: Passage) -> Iterator[tuple[str, float, str]]:
    """Sums in a passage that don't come out: as written, what it is, what was printed."""
    text = passage.text[:TEXT_MAX]
    for found in _EQUALS.finditer(text):
        sum_ = _expression_before(text, found.start())
        result = _evaluate(sum_) if sum_ else None
        if result is None:
            continue
        value, slack = result
        printed, half = _number(found["value"]), _half_rounded(found["value"])
        if found["about"]:
            half = max(half, 0.05 * printed)
        numbers = [*re.findall(r"\d+(?:\.\d+)?", sum_), found["value"]]
        if all(len(n) == 1 for n in numbers):  # 1 + 1 = 3 is a figure of speech
            continue
        scales = (1.0, 0.01) if found["percent"] else (1.0,)  # at most one of them is near the sum at all
        if any(_off(value, slack, printed * scale, half * scale) for scale in scales):
            yield sum_.strip(), value, found["value"]


def _sessions(document: Document) -> Iterator[tuple[Passage, str, float, str]]:
    """Sums typed at a Python prompt whose answer, on the next line, was changed."""
    for passage, following in zip(document.passages, document.passages[1:], strict=False):
        asked = _PROMPT.match(passage.text[:200])
        answer = _ANSWER.match(following.text[:60].strip())
        if asked and answer and passage.listing and following.line == passage.line + 1:
            result = _evaluate(asked["sum"])
            if result and abs(result[0] - float(answer["value"])) > 1e-9 * max(1.0, abs(result[0])):
                yield passage, asked["sum"].strip(), result[0], answer["value"]


def _shares(passage: Passage) -> Iterator[tuple[str, str, float]]:
    """'12 % higher (120 vs 100)', where it isn't: as written, the amount, the true one of the lesser."""
    text = passage.text[:TEXT_MAX]
    for pattern in _CLAIMS:
        for found in pattern.finditer(text):
            a, b = sorted((_number(found["a"]), _number(found["b"])))
            units = {u for u in (found["u1"], found["u2"]) if u}
            if a <= 0 or len(units) > 1:
                continue
            amount = float(found["amount"])
            percent = found["sort"] in ("%", "percent")
            # Of the lesser or of the greater; 'two times faster' may mean twice or thrice as fast.
            readings = [100 * (b / a - 1), 100 * (1 - a / b)] if percent else [b / a, b / a - 1]
            rounding = (_half(found["a"]) + _half(found["b"])) / a
            slack = (
                _half(found["amount"]) + (100 if percent else 1) * rounding + 0.05 * amount + (0.5 if percent else 0.05)
            )
            if all(abs(amount - r) > slack for r in readings):
                yield found.group(), f"{found['amount']} {found['sort']}", readings[0]


def sums(documents: list[Document]) -> Iterator[Finding]:
    for document in documents:
        found = [(p.line, s, v, printed) for p in document.passages for s, v, printed in _sums(p)]
        found += [(p.line, s, v, printed) for p, s, v, printed in _sessions(document)]
        for line, sum_, value, printed in found:
            yield Finding(
                "consistency.arithmetic",
                "doubt",
                f"'{sum_} = {printed}' doesn't come out: it is {value:.10g}.",
                "Correct it, and what was concluded from it.",
                [f"{document.file}:{line}"],
            )
        for passage in document.passages:
            for written, amount, true in _shares(passage):
                yield Finding(
                    "consistency.arithmetic",
                    "doubt",
                    f"'{written[:160]}': by the two numbers it is not {amount} but {true:.3g}.",
                    "Correct the share or the numbers.",
                    [f"{document.file}:{passage.line}"],
                )


_SPEEDS = (*THROUGHPUTS, "input_throughput", "speed")
_TIMES = re.compile(
    rf"(?<![\w.*/+-])(?P<first>{_NUMBER})(?:\s?(?:tok(?:en)?s?|t|req(?:uest)?s?)/s(?:ec)?)?\s{{0,2}}[*×x]\s{{0,2}}"
    rf"(?P<second>{_NUMBER})(?![\w.]?\d)(?!\s?[A-Za-z]{{1,3}}\d)"
)
_PER = re.compile(r"per (?:minute|hour|day|month|year)|/\s?(?:min|h|hr|day)\b", re.IGNORECASE)


def _measured(document: Document, text: str) -> tuple[str, int] | None:
    """The figure (its name and line) that a number in the words is, as printed, rounded or cut off."""
    digits = text.replace(",", "")
    if len(digits.replace(".", "").strip("0")) < 3:  # too few digits to tell it from any other number
        return None
    value = _number(text)
    if "." not in digits and (value % 64 == 0 or value % 50 == 0):
        return None
    width = 10.0 ** -len(digits.split(".")[1]) if "." in digits else 1.0
    for row in document.rows:
        for name in _SPEEDS:
            figure = row.figures.get(name)
            if figure and (abs(figure.value - value) <= width / 2 + figure.half or 0 <= figure.value - value < width):
                return name, figure.line
    return None


_CELL_TIMES = re.compile(r"(?<![\w.])(\d[\d,]{0,12}\.\d{1,6})\s?[x×*]\s?([2-9]|[1-5]\d|6[0-4])(?![\w.])")


def extrapolated(documents: list[Document]) -> Iterator[Finding]:
    for document in documents:
        yield from _in_cells(document)
        for passage in document.passages:
            text = passage.text[:TEXT_MAX]
            for found in _TIMES.finditer(text):
                if _PER.search(text[found.start() : found.end() + 60]):
                    continue
                for number, factor in ((found["first"], found["second"]), (found["second"], found["first"])):
                    measured = _measured(document, number) if factor.isdigit() and 2 <= int(factor) <= 64 else None
                    if measured is None or factor == "60":
                        continue
                    name, line = measured
                    yield Finding(
                        "comparability.extrapolated",
                        "doubt",
                        f"A measured {name.replace('_', ' ')} of {number} is multiplied by {factor}, as if {factor} of "
                        "them lost nothing: that was not run.",
                        "Run them side by side, and give the sum that comes out: they share a host, its memory and "
                        "links, and a load that isn't spread evenly.",
                        [f"{document.file}:{passage.line}", f"{document.file}:{line}"],
                    )
                    break


def _in_cells(document: Document) -> Iterator[Finding]:
    """'7787.17x2' in a table."""
    found = [
        (line, times[1], times[2])
        for table in document.tables
        for cells, line in zip(table.rows, table.lines, strict=False)
        for cell in cells
        if (times := _CELL_TIMES.search(cell.text[:300]))
    ]
    if found:
        _, number, factor = found[0]
        more = f" {len(found) - 1} more cells are like it." if len(found) > 1 else ""
        yield Finding(
            "comparability.extrapolated",
            "doubt",
            f"A figure of {number} is multiplied by {factor} in a table, as if {factor} of them lost nothing: that was "
            f"not run.{more}",
            "Run them side by side, and give the sum that comes out.",
            [f"{document.file}:{line}" for line, _, _ in found],
        )
