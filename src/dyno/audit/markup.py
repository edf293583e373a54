"""Marks of Markdown: words without them, lines of a table, titles."""

import re

from dyno.audit.commands import without_secrets
from dyno.audit.html_table import WIDEST
from dyno.facts.imported import Cell

LONGEST_ROW = 4_000  # characters of a table's row
_BEFORE_ROW = re.compile(r"\s{0,12}(?:[#>]\s{0,4}){0,6}(?=\|)")  # a table may be quoted, or a comment
_RULE = re.compile(r"[\s:|+\-]+")
_IMAGE = re.compile(r"!\[[^\[\]]{0,300}\]\([^()]{0,1000}\)(?:\{[^{}]{0,100}\})?")
_LINK = re.compile(r"\[([^\[\]]{0,300})\]\([^()]{0,1000}\)(?:\{[^{}]{0,100}\})?")
_TAG = re.compile(r"</?[A-Za-z!][^<>]{0,1000}>")
_STRONG = re.compile(
    r"\*\*(?=[^\s*])((?:[^*]|\*(?!\*)){1,400}+)(?<=\S)\*\*|__(?=[^\s_])((?:[^_]|_(?!_)){1,400}+)(?<=\S)__"
)
# A printed table's lines, as Markdown has them: bars, and dashes in rules. Its corners are bars too.
_BOX = str.maketrans(
    dict.fromkeys("│┃║┆┊╎┌┬┐├┼┤└┴┘┏┳┓┣╋┫┗┻┛┡╇┩┢╈┪╔╦╗╠╬╣╚╩╝╭╮╰╯╞╪╡╟╫╢┝┿┥┠╂┨╒╤╕╘╧╛╓╥╖╙╨╜", "|")
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
    """A line of a table, from its first bar on."""
    found = _BEFORE_ROW.match(text) if "|" in text and len(text) <= LONGEST_ROW else None
    return text[found.end() :] if found and len(text) > found.end() + 1 else None


def unboxed(text: str) -> str:
    """A line of a table in box-drawing characters or of a grid, with bars instead; any other line as it is."""
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


def cells(text: str) -> list[Cell]:
    inner = text.strip().removeprefix("|")
    inner = inner.removesuffix("|") if not inner.endswith("\\|") else inner
    return [cell(part.strip().replace("\\|", "|")) for part in re.split(r"(?<!\\)\|", inner, maxsplit=WIDEST)[:WIDEST]]


def cell(text: str) -> Cell:
    return Cell(plain(text), bool(re.search(r"(\*\*|__)\S.{0,200}\1|<(?:b|strong)>", text)))
