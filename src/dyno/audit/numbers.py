"""Numbers in a report's words and tables: are sums, percentages and bold marks right?"""

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from typing import NamedTuple

from dyno.facts.finding import Finding, doubt
from dyno.facts.imported import Document, DocumentTable, Figure, Passage, Row
from dyno.facts.metric import THROUGHPUTS, better, words
from dyno.numbers import count

# ---- sums in words and listings ----

TEXT_MAX = 20_000  # characters of a passage that are examined
_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,12})?"
# An equals sign of its own with a number behind that isn't the start of more: a version, a range, a unit's multiple.
_EQUALS = re.compile(
    rf"(?<![<>!:=+*/~^-])=(?!=)\s{{0,3}}(?P<about>[~≈]?)\s?\$?(?P<value>{_NUMBER})(?P<percent>\s?%)?"
    r"(?![\w.,]?\d)(?!\s{0,2}(?:[*×/÷+=^x-]|\.\.))(?!\s?(?:[kKMGBTxX]\b|[kKMGT]i?B|thousand|million|billion|r(?:emainder)?\b))"
    r"(?![A-Za-z_])"
)
_EXPRESSION = re.compile(r"[\d.,$()\s+*×/÷x-]{3,120}$")
_PROMPT = re.compile(
    r"^(?:>>>|In \[\d{1,4}\]:)\s?(?P<sum>[\d.()\s+*/-]{3,120}?)(?:\s{2,}|\n|$)"
)
_ANSWER = re.compile(r"^(?:Out\[\d{1,4}\]:\s?)?(?P<value>-?\d{1,15}(?:\.\d{1,17})?)$")
# The two sides of a sum may have different units: seconds and hours, bytes and bits, thousands, shares.
_CONVERSIONS = (
    8.0,
    10.0,
    12.0,
    24.0,
    60.0,
    100.0,
    1000.0,
    1024.0,
    3600.0,
    1e6,
    1024.0**2,
    1e9,
    1024.0**3,
)

_COMPARED = "higher|faster|more|better|greater|larger|longer|lower|slower|less|fewer|cheaper|shorter|smaller|worse"
_UNIT = r"(?:\s?(?P<u{0}>[a-zA-Z$%][a-zA-Z/$%]{{0,14}}))?"
_BOTH = rf"\$?(?P<a>{_NUMBER}){_UNIT.format(1)}\s{{0,2}}{{0}}\s{{0,2}}\$?(?P<b>{_NUMBER}){_UNIT.format(2)}"
_AMOUNT = r"(?P<amount>\d{1,4}(?:\.\d{1,4})?)\s?(?P<sort>%|percent|[x×](?![\w])|times\b)"
_SHARES = (
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


def sums(document: Document) -> Iterator[Finding]:
    wrong = [(p.line, *one) for p in document.passages for one in _sums(p)]
    wrong += _sessions(document)
    for line, expression, value, printed in wrong:
        text = f"'{expression} = {printed}' is wrong: the result is {value:.10g}."
        yield doubt("consistency.arithmetic", text, locations=[f"{document.file}:{line}"])
    for passage in document.passages:
        for written, amount, actual in _shares(passage):
            text = f"'{written[:160]}': the two numbers give {actual:.3g}, not {amount}."
            advice = "Correct the share or the numbers."
            yield doubt(
                "consistency.arithmetic", text, advice, [f"{document.file}:{passage.line}"]
            )


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _half(text: str) -> float:
    """Return half a unit of the last printed digit."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


def _half_rounded(text: str) -> float:
    """Return the same for a result, where zeros at an integer's end may be rounding too."""
    digits = text.replace(",", "")
    zeros = (
        len(digits) - len(digits.rstrip("0"))
        if "." not in digits and digits.strip("0")
        else 0
    )
    return max(_half(text), 0.5 * 10.0**zeros)


def _terms(node: ast.expr) -> tuple[float, float]:
    """Return the value of an expression, and how far rounded terms may move it. ValueError: not of plain numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = float(node.value)
        # A small integer counts things; a decimal or a longer one was measured, and may be rounded.
        if not isinstance(node.value, int):
            return value, _half(repr(node.value))
        return value, 0.5 if value >= 100 else 0.0
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
    plain = (
        re.sub(r"(?<=\d),(?=\d{3})", "", text)
        .replace("$", "")
        .replace("×", "*")
        .replace("÷", "/")
    )
    plain = re.sub(r"(?<=[\d)\s])x(?=[\d(\s])", "*", plain).strip()
    if not re.search(r"[\d)]\s{0,3}[-+*/]\s{0,3}[\d(]", plain) or re.search(
        r"\*\s*\*|/\s*/|x|,|\d\s+\d", plain
    ):
        return None
    # a-b without blanks is more often a range or a date than a sum, unless it is in brackets.
    bare = re.sub(r"\([\d.]{1,15}-[\d.]{1,15}\)", "0", plain)
    if re.search(r"\d-\d", bare) or re.search(
        r"\d\s{0,2}/\s{0,2}\d+\s{0,2}/|(^|\D)0\d", plain
    ):
        return None
    try:
        return _terms(ast.parse(plain, mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _expression_before(text: str, end: int) -> str:
    """Return the sum that ends at an equals sign; '' where it is part of something else (code, a flag, a version)."""
    match = _EXPRESSION.search(text[max(0, end - 120) : end])
    if match is None:
        return ""
    start = max(0, end - 120) + match.start()
    expression, before = match[0], text[max(0, start - 3) : start]
    # 'total = 8 * 2.99 = 23.92' may be examined
    if expression[0] == "x" or re.search(r"[\d)]\s?=$|[\^%_\[\]{'\"]$", before):
        return ""
    # a digit inside a word: v2*3
    if expression[:1] not in (" ", "(", "$") and re.search(r"\w$", before):
        return ""
    # Words before may leave their full stop, comma or dash.
    expression = re.sub(r"^[\s.,-]{1,6}", "", expression)
    depth = expression.count("(") - expression.count(")")
    if depth > 0:  # a bracket of the sentence: '(8 * 2.99 = 23.92)'
        call = re.search(r"\w$", before) and match[0][:1] == "("
        expression = re.sub(r"^\(\s?", "", expression) if depth == 1 and not call else ""
    return "" if depth < 0 else expression


def _is_off(value: float, slack: float, printed: float, half: float) -> bool:
    """Return whether a printed result is wrong, and not a rounded, cut or converted one."""
    if value <= 0 or printed <= 0 or not 0.5 <= printed / value <= 2:
        return False  # so far off, it is another thing than this sum
    if abs(printed - value) <= slack + half + 1e-9 * value:
        return False
    if printed == int(printed) and printed in (math.floor(value), math.ceil(value)):
        return False
    ratio = max(printed / value, value / printed)
    return not any(abs(ratio - c) <= 0.01 * c for c in _CONVERSIONS)


def _sums(passage: Passage) -> Iterator[tuple[str, float, str]]:
    """Yield sums in a passage that don't come out: as written, the right value, the printed one."""
    text = passage.text[:TEXT_MAX]
    for match in _EQUALS.finditer(text):
        expression = _expression_before(text, match.start())
        result = _evaluate(expression) if expression else None
        if result is None:
            continue
        value, slack = result
        printed, half = _number(match["value"]), _half_rounded(match["value"])
        if match["about"]:
            half = max(half, 0.05 * printed)
        numbers = [*re.findall(r"\d+(?:\.\d+)?", expression), match["value"]]
        if all(len(n) == 1 for n in numbers):  # 1 + 1 = 3 is a figure of speech
            continue
        # at most one of them is near the sum at all
        scales = (1.0, 0.01) if match["percent"] else (1.0,)
        if any(_is_off(value, slack, printed * scale, half * scale) for scale in scales):
            yield expression.strip(), value, match["value"]


def _sessions(document: Document) -> Iterator[tuple[int, str, float, str]]:
    """Yield sums typed at a Python prompt whose answer, on the next line, was changed."""
    for passage, following in zip(document.passages, document.passages[1:], strict=False):
        asked = _PROMPT.match(passage.text[:200])
        answer = _ANSWER.match(following.text[:60].strip())
        if asked and answer and passage.listing and following.line == passage.line + 1:
            result = _evaluate(asked["sum"])
            if result and abs(result[0] - float(answer["value"])) > 1e-9 * max(
                1.0, abs(result[0])
            ):
                yield passage.line, asked["sum"].strip(), result[0], answer["value"]


def _shares(passage: Passage) -> Iterator[tuple[str, str, float]]:
    """Yield '12 % higher (120 vs 100)', where it isn't: as written, the amount, the actual one of the lesser."""
    for match in (
        m for pattern in _SHARES for m in pattern.finditer(passage.text[:TEXT_MAX])
    ):
        a, b = sorted((_number(match["a"]), _number(match["b"])))
        one_unit = not match["u1"] or not match["u2"] or match["u1"] == match["u2"]
        if a <= 0 or not one_unit:
            continue
        amount = float(match["amount"])
        rounding = (_half(match["a"]) + _half(match["b"])) / a
        # Of the lesser or of the greater; 'two times faster' may mean twice or thrice as fast.
        if match["sort"] in ("%", "percent"):
            readings = [100 * (b / a - 1), 100 * (1 - a / b)]
            slack = 100 * rounding + 0.5
        else:
            readings = [b / a, b / a - 1]
            slack = rounding + 0.05
        slack += _half(match["amount"]) + 0.05 * amount
        if all(abs(amount - r) > slack for r in readings):
            yield match[0], f"{match['amount']} {match['sort']}", readings[0]


# ---- a measured figure times a number ----

_SPEEDS = (*THROUGHPUTS, "input_throughput", "speed")
_TIMES = re.compile(
    rf"(?<![\w.*/+-])(?P<first>{_NUMBER})(?:\s?(?:tok(?:en)?s?|t|req(?:uest)?s?)/s(?:ec)?)?\s{{0,2}}[*×x]\s{{0,2}}"
    rf"(?P<second>{_NUMBER})(?![\w.]?\d)(?!\s?[A-Za-z]{{1,3}}\d)"
)
_PER = re.compile(
    r"per (?:minute|hour|day|month|year)|/\s?(?:min|h|hr|day)\b", re.IGNORECASE
)
_CELL_TIMES = re.compile(
    r"(?<![\w.])(\d[\d,]{0,12}\.\d{1,6})\s?[x×*]\s?([2-9]|[1-5]\d|6[0-4])(?![\w.])"
)


def extrapolated(document: Document) -> Iterator[Finding]:
    """Yield measured figures that are multiplied by a number."""
    yield from _extrapolated_cells(document)
    for passage in document.passages:
        text = passage.text[:TEXT_MAX]
        for match in _TIMES.finditer(text):
            if _PER.search(text[match.start() : match.end() + 60]):
                continue
            for number, factor in (
                (match["first"], match["second"]),
                (match["second"], match["first"]),
            ):
                measured = (
                    _measured(document, number) if _is_number_of_copies(factor) else None
                )
                if measured is None:
                    continue
                name, line = measured
                text = f"{number} {words(name)} is multiplied by {factor}, but {factor} copies were never run together."
                lines = [f"{document.file}:{passage.line}", f"{document.file}:{line}"]
                yield doubt("comparability.extrapolated", text, locations=lines)
                break


def _is_number_of_copies(factor: str) -> bool:
    """Return whether it is a whole number from 2 to 64, but not the minutes of an hour."""
    return factor.isdigit() and 2 <= int(factor) <= 64 and factor != "60"


def _measured(document: Document, text: str) -> tuple[str, int] | None:
    """Return the figure (its name and line) that a number in the words is, as printed, rounded or cut off."""
    digits = text.replace(",", "")
    # too few digits to distinguish it from any other number
    if len(digits.replace(".", "").strip("0")) < 3:
        return None
    value = _number(text)
    if "." not in digits and (value % 64 == 0 or value % 50 == 0):
        return None
    width = 2 * _half(digits)
    for row in document.rows:
        for name in _SPEEDS:
            figure = row.figures.get(name)
            if figure and (
                abs(figure.value - value) <= width / 2 + figure.half
                or 0 <= figure.value - value < width
            ):
                return name, figure.line
    return None


def _extrapolated_cells(document: Document) -> Iterator[Finding]:
    """Yield one finding for cells such as '7787.17x2' in tables."""
    products = []
    for table in document.tables:
        for cells, line in zip(table.rows, table.lines, strict=False):
            for cell in cells:
                times = _CELL_TIMES.search(cell.text[:300])
                if times:
                    products.append((line, times[1], times[2]))
    if products:
        _, number, factor = products[0]
        more = f" ({len(products)} cells)" if len(products) > 1 else ""
        text = f"{number} in a table is multiplied by {factor}, but {factor} copies were never run together{more}."
        lines = [f"{document.file}:{line}" for line, _, _ in products]
        yield doubt("comparability.extrapolated", text, locations=lines)


# ---- percentages and ratios in a table ----

# A table doesn't say what they are calculated from: the two columns for which most rows come out right are taken, and
# the rows that then don't are wrong.
ROWS, MOST = 3, 0.6  # rows that come out right, at least, and their share
POINTS, SHARE = 0.6, 0.05  # of per cent, and of the percentage, that rounding may take
_CELL_NUMBER = re.compile(
    r"(?<![\w.])([+\-−–]?)\s?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)\s?(%|[x×](?![\w]))?(?!\w*\d)"
)
_WIDEST = 24  # numbers of a row


class CellNumber(NamedTuple):
    value: float
    half: float  # of a unit of its last digit
    mark: str  # %, x or ''; ± before it where it has a sign


def percentages(d: Document) -> Iterator[Finding]:
    """Yield percentages and ratios in tables that follow from no two numbers in their row."""
    for table in d.tables:
        yield from _in_table(d.file, table)


def _in_table(file: str, table: DocumentTable) -> Iterator[Finding]:
    """Yield the findings of a table whose rows have enough numbers."""
    rows = []
    width = 0
    for cells, line in zip(table.rows, table.lines, strict=False):
        # The first column names the row: '2×q4k' is not a figure.
        numbers = _numbers([cell.text for cell in cells[1:]])
        width = max(width, len(numbers))
        rows.append((line, numbers))
    if len(rows) < ROWS + 1 or not 3 <= width <= _WIDEST:
        return
    shape, alike = _most_alike(rows)
    plain = [i for i, mark in enumerate(shape) if not mark]
    if len(alike) < ROWS + 1 or not 2 <= len(plain) <= 10:
        return
    for k, mark in enumerate(shape):
        if mark and mark != "%":  # without a sign it is a share of something
            yield from _in_column(file, alike, plain, k, mark.removeprefix("±"))


_Line = tuple[int, list[CellNumber]]  # its number, and the numbers in it


def _most_alike(rows: list[_Line]) -> tuple[tuple[str, ...], list[_Line]]:
    """Return the commonest shape, and the rows that have it: only rows of one shape can be compared."""
    shapes = [_shape(numbers) for _, numbers in rows]
    shape = max(set(shapes), key=shapes.count)
    return shape, [(line, numbers) for line, numbers in rows if _shape(numbers) == shape]


def _shape(numbers: list[CellNumber]) -> tuple[str, ...]:
    """Return the marks of a row's numbers."""
    return tuple(n.mark for n in numbers)


def _in_column(
    file: str,
    rows: Sequence[tuple[int, list[CellNumber]]],
    plain: list[int],
    k: int,
    mark: str,
) -> Iterator[Finding]:
    ways = [(i, j, less) for i in plain for j in plain if i != j for less in (False, True)]
    right, (i, j, less) = max(
        ((sum(_fits(numbers, *way, k, mark) for _, numbers in rows), way) for way in ways),
        key=lambda item: item[0],
    )
    if right < ROWS or right < MOST * len(rows) or right == len(rows):
        return
    for line, numbers in rows:
        actual = _change(numbers, i, j, less, mark)
        if actual is None or any(_fits(numbers, *way, k, mark) for way in ways):
            continue
        unit = "%" if mark == "%" else "×"
        text = (
            f"From {count(numbers[i].value)} to {count(numbers[j].value)} is {actual:+,.1f}{unit}, but the table "
            f"reports {numbers[k].value:+,g}{unit}; {right} of {len(rows)} rows are right."
        )
        yield doubt("consistency.percent", text, locations=[f"{file}:{line}"])


def _numbers(cells: list[str]) -> list[CellNumber]:
    """Return the numbers of a row, in order. One before a word, as in '7B' or 'FP8', is none."""
    out = []
    for cell in cells:
        if len(cell) > 300:
            continue
        for sign, digits, mark in _CELL_NUMBER.findall(cell):
            value = _number(digits)
            # '+7 %' is a difference, '52 %' may be a share: rows of one kind are compared.
            shown = mark.replace("×", "x")
            signed = -value if sign in ("-", "−", "–") else value
            out.append(
                CellNumber(signed, _half(digits), f"±{shown}" if sign and shown else shown)
            )
    return out


def _change(
    numbers: list[CellNumber], i: int, j: int, less: bool, mark: str
) -> float | None:
    """Return the change from one number of a row to another. `less`: a gain where the number falls, as of a latency."""
    a, b = numbers[i].value, numbers[j].value
    if a <= 0 or b <= 0:
        return None
    if mark == "x":
        return a / b if less else b / a
    return 100 * (a - b) / a if less else 100 * (b / a - 1)


def _fits(numbers: list[CellNumber], i: int, j: int, less: bool, k: int, mark: str) -> bool:
    """Return whether the printed change is that from one number to another, within rounding."""
    actual, printed = _change(numbers, i, j, less, mark), numbers[k]
    if actual is None:
        return True
    a, b = numbers[i], numbers[j]
    # By how much the printed digits of both may move it, and those of the printed change.
    moved = (100 if mark == "%" else 1) * (b.value / a.value) * (
        a.half / a.value + b.half / b.value
    ) + printed.half
    slack = max(POINTS if mark == "%" else 0.06, SHARE * abs(actual), 1.1 * moved)
    return (
        abs(printed.value - actual) <= slack
        or abs(abs(printed.value) - abs(actual)) <= slack
    )


# ---- where bold marks the best of a column: is it the best? ----

TIE = 0.001  # two bold values this close are one to their author
Figures = list[tuple[Row, Figure]]  # of a column


def bold(document: Document) -> Iterator[Finding]:
    """Yield tables in which bold marks the best value of most columns, but not of all."""
    tables: dict[int, list[Row]] = defaultdict(list)
    for row in document.rows:
        if row.table is not None:
            tables[row.table].append(row)
    for rows in tables.values():
        columns = _columns(rows)
        right = sum(_has_best(name, column) for name, column in columns.items())
        # Bold must be seen to mark the best: in more columns than not, and in two at least.
        if right < 2 or 2 * right <= len(columns):
            continue
        wrong = {name: w for name, column in columns.items() if (w := _wrong(name, column))}
        figures = list(chain.from_iterable(wrong.values()))
        if not wrong or _are_favourites(figures, rows) or _grouped(rows, columns):
            continue
        named = "; ".join(
            _wrong_words(name, columns[name], several) for name, several in wrong.items()
        )
        lines = sorted({figure.line for figure in figures})
        text = f"Bold marks the best value, except in {len(wrong)} of {len(columns)} columns: {named}."
        places = [f"{document.file}:{line}" for line in lines]
        yield doubt("consistency.bold", text, locations=places)


def _are_favourites(figures: list[Figure], rows: list[Row]) -> bool:
    """Return whether all these figures belong to rows that are bold as a whole."""
    favourites = {
        id(figure) for row in rows if _highlighted(row) for figure in row.figures.values()
    }
    return all(id(figure) in favourites for figure in figures)


def _columns(rows: list[Row]) -> dict[str, Figures]:
    """Return columns by name: those with bold and plain cells, where higher or lower is better."""
    columns: dict[str, Figures] = defaultdict(list)
    for row in rows:
        for name, figure in row.figures.items():
            if better(name) is not None:
                columns[name].append((row, figure))
    return {n: c for n, c in columns.items() if 0 < sum(f.bold for _, f in c) < len(c)}


def _best(name: str, column: Figures) -> Figure:
    return (max if better(name) == "higher" else min)(
        (f for _, f in column), key=lambda f: f.value
    )


def _as_good(figure: Figure, best: Figure, tie: float) -> bool:
    spread = (figure.deviation or 0.0) + (best.deviation or 0.0)
    return abs(figure.value - best.value) <= max(spread, tie * abs(best.value))


def _has_best(name: str, column: Figures) -> bool:
    best = _best(name, column)
    return any(f.bold and _as_good(f, best, 0.0) for _, f in column)


def _wrong(name: str, column: Figures) -> list[Figure]:
    """Return bold ones that are not the best; a near one beside the best that is bold too passes."""
    tie = TIE if _has_best(name, column) else 0.0
    return [f for _, f in column if f.bold and not _as_good(f, _best(name, column), tie)]


def _grouped(rows: list[Row], columns: dict[str, Figures]) -> bool:
    """Return whether every bold is right once the table is taken in blocks: of one load, one model, …"""
    settings = sorted(
        {name for row in rows for name in row.settings} | {"label", "series", "section"}
    )
    for names in (*((n,) for n in settings), *combinations(settings, 2)):
        groups: dict[tuple[object, ...], set[int]] = defaultdict(set)
        for row in rows:
            groups[tuple(_value(row, name) for name in names)].add(id(row))
        if (
            len(groups) > 1
            and all(len(group) > 1 for group in groups.values())
            and _all_right(groups.values(), columns)
        ):
            return True
    return False


def _value(row: Row, name: str) -> object:
    return (
        getattr(row, name) if name in ("label", "series", "section") else row.setting(name)
    )


def _all_right(groups: Iterable[set[int]], columns: dict[str, Figures]) -> bool:
    """Return whether bold marks the best value in each group of rows, given by their ids."""
    for group in groups:
        for name, column in columns.items():
            block = [(row, figure) for row, figure in column if id(row) in group]
            if block and _wrong(name, block):
                return False
    return True


def _highlighted(row: Row) -> bool:
    """Return whether a whole row is in bold: the author's favourite, not the best of each column."""
    figures = [f for name, f in row.figures.items() if better(name) is not None]
    return len(figures) > 1 and all(f.bold for f in figures)


def _wrong_words(name: str, column: Figures, wrong: list[Figure]) -> str:
    best = _best(name, column)
    bolds = ", ".join(count(f.value) for f in wrong)
    also = ", also bold" if best.bold else ""
    return f"{words(name)} has {bolds} in bold, but {count(best.value)} is {better(name)}{also}"
