"""Marks of Markdown and HTML: words without them, rows of tables, titles."""

import re
from collections.abc import Iterable
from html import unescape

from dyno.audit.commands import without_secrets
from dyno.facts.imported import DocumentCell
from dyno.results.lines import TextLine

LONGEST_ROW = 4_000  # characters of a table's row
WIDEST, _MOST = 200, 100_000  # columns; cells
# a table may be quoted, or a comment
_BEFORE_ROW = re.compile(r"\s{0,12}(?:[#>]\s{0,4}){0,6}(?=\|)")
_RULE = re.compile(r"[\s:|+\-]+")
_IMAGE = re.compile(r"!\[[^\[\]]{0,300}\]\([^()]{0,1000}\)(?:\{[^{}]{0,100}\})?")
_LINK = re.compile(r"\[([^\[\]]{0,300})\]\([^()]{0,1000}\)(?:\{[^{}]{0,100}\})?")
_TAG = re.compile(r"</?[A-Za-z!][^<>]{0,1000}>")
_STRONG = re.compile(
    r"\*\*(?=[^\s*])((?:[^*]|\*(?!\*)){1,400}+)(?<=\S)\*\*|__(?=[^\s_])((?:[^_]|_(?!_)){1,400}+)(?<=\S)__"
)
# A printed table's lines, as Markdown has them: bars, and dashes in rules. Its corners are bars too.
_BOX = str.maketrans(
    dict.fromkeys(
        "│┃║┆┊╎┌┬┐├┼┤└┴┘┏┳┓┣╋┫┗┻┛┡╇┩┢╈┪╔╦╗╠╬╣╚╩╝╭╮╰╯╞╪╡╟╫╢┝┿┥┠╂┨╒╤╕╘╧╛╓╥╖╙╨╜", "|"
    )
    | dict.fromkeys("─━═┄┈╌╍", "-")
)
_BARS = re.compile("[│┃║┼╇╪╬]|^\\s*[┌┏╔╭├┡╞╠└┗╚╰]")
_GRID = re.compile(r"\s*[+|]?[-=]{2,}[-=+|]*\s*")  # +-----+-----+
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*\d])([^*\n]{1,300}?)(?<=[^\s*])\*(?![\w*])")


def plain(text: str) -> str:
    """Words without their marks."""
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "[" in text:
        text = _LINK.sub(r"\1", _IMAGE.sub(" ", text))
    if "*" in text or "__" in text:
        text = _EMPHASIS.sub(r"\1", _STRONG.sub(r"\1\2", text))
    return without_secrets(" ".join(text.replace("`", "").split()))


def row(text: str) -> str | None:
    """Return a line of a table, from its first bar on."""
    match = _BEFORE_ROW.match(text) if "|" in text and len(text) <= LONGEST_ROW else None
    return text[match.end() :] if match and len(text) > match.end() + 1 else None


def unboxed(text: str) -> str:
    """Return a line of a table in box-drawing characters or of a grid with bars instead; any other line as it is."""
    if text.isascii():
        grid = ("+-" in text or "+=" in text) and _GRID.fullmatch(text)
        return text.replace("+", "|").replace("=", "-") if grid else text
    return text.translate(_BOX) if _BARS.search(text) else text


def is_rule(text: str) -> bool:
    return "-" in text and len(text) <= LONGEST_ROW and _RULE.fullmatch(text) is not None


def title(text: str) -> str:
    """'Title ##' is 'Title', and 'C#' stays."""
    whole = text.rstrip()
    bare = whole.rstrip("#")
    return bare.rstrip() if bare != whole and bare[-1:].isspace() else whole


def cells(text: str) -> list[DocumentCell]:
    inner = text.strip().removeprefix("|")
    inner = inner.removesuffix("|") if not inner.endswith("\\|") else inner
    return [
        cell(part.strip().replace("\\|", "|"))
        for part in re.split(r"(?<!\\)\|", inner, maxsplit=WIDEST)[:WIDEST]
    ]


def cell(text: str) -> DocumentCell:
    return DocumentCell(
        plain(text), bool(re.search(r"(\*\*|__)\S.{0,200}\1|<(?:b|strong)>", text))
    )


def unwrapped(
    body: list[tuple[int, list[DocumentCell]]],
) -> list[tuple[int, list[DocumentCell]]]:
    """In a printed box, a line without a number continues the cells of the line above it."""
    out: list[tuple[int, list[DocumentCell]]] = []
    for number, cells in body:
        wrapped = any(not c.text for c in cells) and not any(
            re.match(r"\W{0,2}\d", c.text) for c in cells[1:]
        )
        if out and wrapped and len(cells) == len(out[-1][1]):
            line, above = out[-1]
            joined = [
                DocumentCell(f"{a.text} {b.text}".strip(), a.bold)
                for a, b in zip(above, cells, strict=True)
            ]
            out[-1] = (line, joined)
        else:
            out.append((number, cells))
    return out


# ---- tables written as HTML, as reports do where a cell spans several ----

_TABLE_TAG = re.compile(r"<(/?)(table|tr|td|th|b|strong)\b([^<>]{0,400})>", re.I)
_SPAN = re.compile(r"(row|col)span\s{0,4}=\s{0,4}[\"']?(\d{1,2})\b", re.I)
_OTHER_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,400}>")


class _HtmlCell:
    def __init__(self, attributes: str) -> None:
        self.parts: list[str] = []
        spans = {
            kind.lower(): min(max(int(n), 1), 50) for kind, n in _SPAN.findall(attributes)
        }
        self.down, self.across = spans.get("row", 1), spans.get("col", 1)

    @property
    def text(self) -> str:
        return " ".join(unescape(_OTHER_TAG.sub(" ", "".join(self.parts))).split())


def html_rows(lines: Iterable[TextLine]) -> list[tuple[int, list[DocumentCell]]]:
    """Return each row's line and its cells; a cell that spans several is repeated."""
    rows: list[tuple[int, list[_HtmlCell]]] = []
    current: _HtmlCell | None = None
    for number, text in lines:
        end = 0
        for tag in _TABLE_TAG.finditer(text):
            if current is not None:
                current.parts.append(text[end : tag.start()])
            end = tag.end()
            closes, name = bool(tag[1]), tag[2].lower()
            if name in ("b", "strong"):
                if current is not None:
                    current.parts.append("**")
            elif name in ("td", "th") and not closes and rows:
                current = _HtmlCell(tag[3])
                rows[-1][1].append(current)
            else:
                current = None
                if name == "tr" and not closes:
                    rows.append((number, []))
        if current is not None:
            current.parts += (text[end:], " ")
    return [(number, [cell(text) for text in texts]) for number, texts in _spread(rows)]


def _spread(rows: list[tuple[int, list[_HtmlCell]]]) -> list[tuple[int, list[str]]]:
    # column → rows that it still hangs into, its text
    out, count, hanging = [], 0, dict[int, tuple[int, str]]()
    for number, html in rows:
        if not html:
            continue
        texts: list[str] = []
        left = list(reversed(html))
        while (left or len(texts) in hanging) and len(texts) < WIDEST:
            if len(texts) in hanging:
                (down, text), across = hanging.pop(len(texts)), 1
            else:
                one = left.pop()
                text, down, across = one.text, one.down, one.across
            for _ in range(across):
                if down > 1:
                    hanging[len(texts)] = (down - 1, text)
                texts.append(text)
        out.append((number, texts))
        count += len(texts)
        if count > _MOST:
            break
    return out
