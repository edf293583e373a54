"""The forms that a text gives to figures: printed blocks, lines of offline procedures, aligned columns, names with a
number behind them, and rows of tables in Markdown or HTML."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from html import unescape
from typing import NamedTuple

from dyno.audit.commands import scalar, without_secrets
from dyno.facts.imported import DocumentCell, Figure, Row, Setting
from dyno.facts.metric import METRICS, definition, latency, stem_named
from dyno.facts.setting import LABELS
from dyno.results import columns
from dyno.results.lines import TextLine
from dyno.results.printed import half, printed

HEADER = re.compile(
    r"(?<!=)={3,}+\s*+([\w \-/]{0,60}Benchmark Results?)\s*={3,}", re.IGNORECASE
)
_END = re.compile(r"(?<!=)={20,}\s*$")
_RULE = re.compile(r"(?<!-)-{3,40}[\w \-().]{3,60}-{3,40}$")
# A label and its value, at the end of a line: before it a logger may have put its own words.
_ENTRY = re.compile(
    r"(?:^|[\s|>\]])([A-Z][A-Za-z0-9 .,()/%\-]{2,60}?)\s*:\s{0,60}"
    r"(-?[\d.,]+(?:e[+-]?\d+)?|inf|nan|not set|None|[\w.:/-]{1,40})\s*$"
)
# Any other label with a number: a share, or one in small letters.
_OTHER_ENTRY = re.compile(
    r"^\s{0,8}([A-Za-z][A-Za-z0-9 .,()/%_\-]{2,60}?)\s*:\s{1,60}-?[\d.,]+\s?%?\s*$"
)
_TAGS = re.compile(r"(?:</?[a-z]{1,10}\s?/?>\s{0,4}){1,8}$", re.I)  # of a page around it
STARTS = re.compile(r"(?:^|[\s|>\]])Successful requests\s*:\s*\d")
_LATENCY = re.compile(
    r"(mean|median|average|avg|std|min|max|p\d{1,2}(?:\.\d+)?)\s+"
    r"(ttft|tpot|itl|e2el|e2e latency|e2e|end-to-end latency|latency)\s*\((ms|s)\)",
    re.IGNORECASE,
)
_FIGURES = {label: m.name for m in METRICS.values() for label in m.labels} | {
    "concurrency": "concurrency_mean"
}
_SETTINGS = LABELS | {
    "backend": "backend",
    "total prompts": "num_prompts",
    "total requests": "num_prompts",
}
_CHANGES = (
    "peak",
    "max",
    "maximum",
    "min",
    "mean",
    "average",
    "avg",
    "median",
    "total",
    "per",
    "std",
)
_IGNORED = (
    "total ",
    "tip",
    "last generation",
    "accept",
    "draft",
    "position",
    "drafts",
    "rtfx",
)
LONGEST = 120  # lines of a block; a longer one is not a block
_WIDEST = 600  # characters of a line from its end, where the value is


def header(text: str) -> re.Match[str] | None:
    """Match the line above a block. In a program that prints one, a quote or an escape follows."""
    text = text[:_WIDEST]
    match = HEADER.search(text) if "enchmark result" in text.lower() else None
    return (
        match
        if match and text[match.end() : match.end() + 1] not in ('"', "'", "\\", "`")
        else None
    )


class ResultBlock:
    """Collects the lines of a block."""

    def __init__(self, title: str, line: int) -> None:
        self.title = title
        self.line = self.end = line
        self.figures: dict[str, Figure] = {}
        self.settings: dict[str, Setting] = {}
        # lines and labels of numbers that have no meaning here
        self.unknown: list[tuple[int, str]] = []
        self._sglang = False
        self._misses = 0

    def take(self, number: int, text: str) -> bool:
        """Return False if the block ended before this line."""
        if number - self.line > LONGEST:
            return False
        text = text[-_WIDEST:].rstrip()
        if not text.strip():
            self._misses += 1
            # forks print parts of their own between
            return self._misses < (6 if self.title else 3)
        if text.endswith(">"):
            text = _TAGS.sub("", text)
        if _RULE.search(text):
            self._misses = 0
            return True
        match = _ENTRY.search(text)
        if match and self._entry(" ".join(match[1].lower().split()), match[2], number):
            self.end, self._misses = number, 0
            return True
        if other := _OTHER_ENTRY.search(text):
            self.unknown.append((number, " ".join(other[1].split())))
            return True
        if "```" in text or text.lstrip().startswith(("#", "Namespace(")):
            return False
        self._misses += 1
        return self._misses < 6  # a warning may come between

    def ends(self, text: str) -> bool:
        return (
            bool(self.figures)
            and "====" in text
            and bool(_END.search(_TAGS.sub("", text[-_WIDEST:])))
        )

    def _entry(self, label: str, value: str, line: int) -> bool:
        scale = 1.0
        if match := _LATENCY.search(label):
            self._sglang |= "latency" in match[2]
            stem = (
                "e2el" if match[2] == "latency" else stem_named(match[2].replace("-", " "))
            )
            name: str | None = (
                f"{'mean' if match[1] in ('average', 'avg') else match[1]}_{stem}_ms"
            )
            scale = 1000.0 if match[3] == "s" else 1.0
        elif setting := _SETTINGS.get(label):
            self._sglang |= label == "backend"
            if value not in ("not set", "None"):
                self.settings.setdefault(setting, Setting(scalar(value), line, "block"))
            return True
        else:
            name = (
                "peak_concurrency" if label.startswith("peak concurrent") else _name(label)
            )
            scale = 0.01 if label.endswith("(%)") else 1.0
        if name is None:
            return label.startswith(_IGNORED)
        self._sglang |= name == "concurrency_mean"
        if (figure := _figure(value, line, scale)) is not None:
            self.figures.setdefault(name, figure)
        return True

    def row(self, file: str, tool: str | None, section: str) -> Row | None:
        """Return the result, or None where the block holds too little."""
        if (
            not (
                {"completed", "request_throughput", "output_throughput"} & set(self.figures)
            )
            or len(self.figures) < 2
        ):
            return None
        tool = tool or ("sglang" if self._sglang else "vllm")
        figures = {
            name: Figure(f.value, f.line, f.half, definition(tool, parts[1]))
            if (parts := latency(name))
            else f
            for name, f in self.figures.items()
        }
        return Row(
            kind="throughput" if "offline" in self.title.lower() else "serve",
            tool=tool,
            form="block",
            file=file,
            line=self.line,
            end=self.end,
            figures=figures,
            settings=dict(self.settings),
            section=section,
        )


def _name(label: str) -> str | None:
    """Return the figure of a label. A logger may have put its own words before it; a word that changes what it means is
    none of them."""
    if label in _FIGURES:
        return _FIGURES[label]
    for known, name in _FIGURES.items():
        if label.endswith(f" {known}") and label[: -len(known)].split()[-1] not in _CHANGES:
            return name
    return None


def _figure(
    text: str, line: int, scale: float = 1.0, definition: str = ""
) -> Figure | None:
    """Return a number as it was printed, and how far it may be off by its rounding."""
    text = text.strip().replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return Figure(
        value * scale, line, (half(text) if "." in text else 0.0) * scale, definition
    )


# ---- single lines of the offline procedures ----

_OFFLINE_WORDS = ("Throughput:", "throughput:", "atency:", "Total num")
_THROUGHPUT = re.compile(
    r"Throughput:\s*([\d.]+)\s*requests/s(?:,\s*([\d.]+)\s*(?:total )?tokens/s)?(?:,\s*([\d.]+)\s*output tokens/s)?",
    re.I,
)
_AVERAGE = re.compile(r"^\W{0,4}Avg latency:\s*([\d.]+)\s*seconds", re.I)
_PERCENTILE = re.compile(
    r"^\W{0,4}(\d{1,2})(?:\.\d+)?% percentile latency:\s*([\d.]+)\s*seconds", re.I
)
_TOTAL = re.compile(r"Total num (prompt|output) tokens:\s*(\d+)")


def offline_figures(text: str, line: int) -> dict[str, Figure]:
    """Return the figures of a line such as `Throughput: 7.61 requests/s, 3895.53 total tokens/s, 972.30 output
    tokens/s` or `Avg latency: 1.2 seconds`."""
    if not any(word in text for word in _OFFLINE_WORDS):
        return {}
    figures: dict[str, Figure | None] = {}
    if match := _THROUGHPUT.search(text):
        names = ("request_throughput", "total_token_throughput", "output_throughput")
        figures = {
            name: _figure(value, line)
            for name, value in zip(names, match.groups(), strict=True)
            if value
        }
    elif match := _AVERAGE.search(text):
        figures = {"mean_latency_ms": _figure(match[1], line, 1000.0, "offline.latency")}
    elif match := _PERCENTILE.search(text):
        figures = {
            f"p{match[1]}_latency_ms": _figure(match[2], line, 1000.0, "offline.latency")
        }
    elif match := _TOTAL.search(text):
        figures = {
            f"total_{'input' if match[1] == 'prompt' else 'output'}_tokens": Figure(
                float(match[2]), line
            )
        }
    return {name: figure for name, figure in figures.items() if figure is not None}


# ---- aligned columns, and names with a number behind them ----

_WIDEST_LISTED = 400  # characters of a line
_CELL = re.compile(r"\S+(?: \S+)*")  # two spaces or a tab end it
_LISTED_RULE = re.compile(r"[\s=─━═+-]{3,}")
_MEASURED = re.compile(
    r"throughput|latency|ttft|tpot|\bitl\b|tok(?:en)?s?\s?(?:/s|per s)|req(?:uest)?s?/s|\bt/s|\bms\b|\dms\b|"
    r"\bp[59]\d\b|accuracy|\btps\b",
    re.I,
)
# One of these, in small letters, is in every line that has a match of the above: looking for them is much quicker.
_HINTS = (
    "throughput",
    "latency",
    "ttft",
    "tpot",
    "itl",
    "/s",
    "per s",
    "ms",
    "p5",
    "p9",
    "accuracy",
    "tps",
)
_VALUE = re.compile(
    r"[:=]\s{0,60}[~≈]?\$?\d[\d,]*(?:\.\d+)?(?![\d.:])\s?([A-Za-z%µ]{0,12}(?:/\w{1,8})?)"
)
_NAME = re.compile(r"[A-Za-z][\w/().%@-]*(?: [\w/().%@-]+){0,6}\s?$")
_LOGGED = ("INFO", "WARN", "DEBUG", "ERROR", "(", "[")
_CODE = re.compile(
    r"\s*(?:```|~~~)\s*(?:py|ya?ml|json|toml|js|ts|javascript|typescript|c|cpp|cuda|rust|go|java|docker\w*|sql|diff|ini|xml|html)",
    re.I,
)


class _Slot(NamedTuple):
    """A cell of a line in aligned columns."""

    start: int
    end: int
    text: str


class Aligned:
    """A table in aligned columns: titles, perhaps a rule, and lines whose cells are below the titles."""

    def __init__(self, line: int, titles: Sequence[_Slot]) -> None:
        self.line, self._titles = line, titles
        self.body: list[tuple[int, list[str]]] = []

    @property
    def header(self) -> list[str]:
        return [title.text for title in self._titles]

    def take(self, line: TextLine) -> bool:
        """Return False if the table ended before this line."""
        if len(line.text) > _WIDEST_LISTED:
            return False
        if _LISTED_RULE.fullmatch(line.text):
            return True
        row = self._row(_slots(line.text))
        if row is None or not any(printed(text) for text in row):
            return False
        self.body.append((line.number, row))
        return True

    def misses(self, text: str) -> bool:
        """Return whether a line that was not taken has several numbers: it may be a line of the table that is out of
        place."""
        words = text[:_WIDEST_LISTED].split()
        return sum(printed(word) is not None for word in words) > 1 and len(words) >= len(
            self._titles
        )

    def _row(self, slots: Sequence[_Slot]) -> list[str] | None:
        """Return each cell below its own title. None where it is not certain which title that is."""
        row = [""] * len(self._titles)
        complete = len(slots) == len(row)
        for i, slot in enumerate(slots):
            if slot.start >= self._titles[-1].end + 2 and i >= len(row):
                break  # a remark behind the columns
            below = [
                k
                for k, title in enumerate(self._titles)
                if slot.start < title.end and title.start < slot.end
            ]
            if complete and below in ([], [i]):
                row[i] = slot.text
            elif complete or len(below) != 1 or row[below[0]]:
                return None
            else:
                row[below[0]] = slot.text
        return row


def is_measured(text: str) -> bool:
    """Return whether a line mentions a figure at all. A log's own lines do not count."""
    if len(text) > _WIDEST_LISTED or text.lstrip().startswith(_LOGGED):
        return False
    small = text.lower()
    return any(hint in small for hint in _HINTS) and _MEASURED.search(text) is not None


def aligned(number: int, text: str) -> Aligned | None:
    """Return a table that may begin with a measured line: three titles at least, no number among them, and one of a
    figure."""
    if "  " not in text.strip() and "\t" not in text:
        return None
    titles = _slots(text)
    if len(titles) < 3 or any(
        printed(title.text) or len(title.text) > 40 for title in titles
    ):
        return None
    return (
        Aligned(number, titles) if any(_is_figure(title.text) for title in titles) else None
    )


def _is_figure(title: str) -> bool:
    column = columns.meaning(title)
    return (
        column.figure
        if column is not None
        else _MEASURED.search(title) is not None and len(title.split()) < 5
    )


def _slots(text: str) -> list[_Slot]:
    return [
        _Slot(m.start(), m.end(), m[0])
        for m in _CELL.finditer(text.replace("\t", " \t").expandtabs())
    ]


def measured(text: str) -> list[str]:
    """Return names of figures with a number behind them: 'Avg latency: 12.3 s', 'TTFT=176ms'."""
    if " --" in text:
        return []
    names = []
    for value in _VALUE.finditer(text):
        name = _NAME.search(text[max(0, value.start() - 50) : value.start()])
        if name is not None and _MEASURED.search(f"{name[0]} {value[1]}"):
            names.append(name[0].strip())
    return names


_SHELL = re.compile(
    r"\s*(?:```|~~~)\s*(?:bash|sh|shell|zsh|console|shell-session|powershell|cmd|docker\w*|make\w*)\b",
    re.I,
)
_JSON = re.compile(r"\s*(?:```|~~~)\s*json", re.I)
_FRACTION = re.compile(r"(?<![\d.\w])\d[\d,]*\.\d+(?![\d.])")
# Lines whose numbers were set: flags, addresses, versions, programs; and calculations, which are checked.
_SET = re.compile(
    r"(?:^|\s)--?[A-Za-z]|https?://|[=<>!~]=|version|driver|"
    r"\b(?:cuda|rocm|python|pytorch|torch|ubuntu|pip|apt|curl|export)\b|"
    r"^\s*(?:[$>%]|//|def |class |import |from |return |for |if |print)|^\s*[\d.,]+\s*$|\d\s*[*×/+÷]\s*\d",
    re.I,
)


def numbers_reader(fence: str) -> Callable[[str], int]:
    """Return a function that counts the measured numbers in a line of a listing, up to 2: a named one is enough."""
    if is_code(fence) and not _JSON.match(fence):
        return lambda text: 0
    named_only = bool(_SHELL.match(fence) or _JSON.match(fence))

    def numbers(text: str) -> int:
        if len(text) > _WIDEST_LISTED or _SET.search(text):
            return 0
        if is_measured(text) and re.search(r"(?<![\w.])\d", text):
            return 2
        return 0 if named_only else min(len(_FRACTION.findall(text)), 2)

    return numbers


def is_code(fence: str) -> bool:
    """Return whether a fence begins a program or a configuration: its numbers were set, not measured."""
    return _CODE.match(fence) is not None


# ---- marks of Markdown and HTML: words without them, rows of tables, titles ----

LONGEST_ROW = 4_000  # characters of a table's row
WIDEST, _MOST = 200, 100_000  # columns; cells
# a table may be quoted, or a comment
_BEFORE_ROW = re.compile(r"\s{0,12}(?:[#>]\s{0,4}){0,6}(?=\|)")
_DASHES = re.compile(r"[\s:|+\-]+")
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
    return "-" in text and len(text) <= LONGEST_ROW and _DASHES.fullmatch(text) is not None


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
