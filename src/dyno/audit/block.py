"""The block that `vllm bench serve` and SGLang's bench_serving print, old and new, and their offline cousins' lines."""

import math
import re

from dyno.audit.commands import scalar
from dyno.facts.definition import definition
from dyno.facts.imported import Figure, Row, Setting
from dyno.facts.metric import METRICS
from dyno.facts.setting import LABELS
from dyno.results.printed import half

HEADER = re.compile(r"(?<!=)={3,}+\s*+([\w \-/]{0,60}Benchmark Results?)\s*={3,}", re.IGNORECASE)
_END = re.compile(r"(?<!=)={20,}\s*$")
_RULE = re.compile(r"(?<!-)-{3,40}[\w \-().]{3,60}-{3,40}$")
# A label and its value, at the end of a line: before it a logger may have put its own words.
_ENTRY = re.compile(
    r"(?:^|[\s|>\]])([A-Z][A-Za-z0-9 .,()/%\-]{2,60}?)\s*:\s{0,60}"
    r"(-?[\d.,]+(?:e[+-]?\d+)?|inf|nan|not set|None|[\w.:/-]{1,40})\s*$"
)
_TAGS = re.compile(r"(?:</?[a-z]{1,10}\s?/?>\s{0,4}){1,8}$", re.I)  # of a page around it
STARTS = re.compile(r"(?:^|[\s|>\]])Successful requests\s*:\s*\d")
_LATENCY = re.compile(
    r"(mean|median|average|avg|std|min|max|p\d{1,2}(?:\.\d+)?)\s+"
    r"(ttft|tpot|itl|e2el|e2e latency|e2e|end-to-end latency|latency)\s*\((ms|s)\)",
    re.IGNORECASE,
)
_STEMS = {"e2e latency": "e2el", "e2e": "e2el", "end-to-end latency": "e2el", "latency": "e2el"}
_WORDS = {"average": "mean", "avg": "mean"}

_FIGURES = {label: m.name for m in METRICS.values() for label in m.labels} | {"concurrency": "concurrency_mean"}
_SETTINGS = LABELS | {"backend": "backend", "total prompts": "num_prompts", "total requests": "num_prompts"}
_CHANGES = ("peak", "max", "maximum", "min", "mean", "average", "avg", "median", "total", "per", "std")
LONGEST = 120  # lines of a block; what goes on is no block
_WIDEST = 600  # characters of a line from its end, where the value is


def header(text: str) -> re.Match[str] | None:
    """The line above a block. In a program that prints one, a quote or an escape follows."""
    text = text[:_WIDEST]
    found = HEADER.search(text) if "enchmark result" in text.lower() else None
    return found if found and text[found.end() : found.end() + 1] not in ('"', "'", "\\", "`") else None


class Block:
    """Gathers a block's lines."""

    def __init__(self, title: str, line: int) -> None:
        self.title = title
        self.line = self.end = line
        self.figures: dict[str, Figure] = {}
        self.settings: dict[str, Setting] = {}
        self._sglang = False
        self._misses = 0

    def take(self, number: int, text: str) -> bool:
        """False where the block is over, and this line is none of it."""
        if number - self.line > LONGEST:
            return False
        text = text[-_WIDEST:].rstrip()
        if not text.strip():
            self._misses += 1
            return self._misses < 3
        if text.endswith(">"):
            text = _TAGS.sub("", text)
        if _RULE.search(text):
            self._misses = 0
            return True
        found = _ENTRY.search(text)
        if found and self._entry(" ".join(found[1].split()), found[2], number):
            self.end, self._misses = number, 0
            return True
        if "```" in text or text.lstrip().startswith(("#", "Namespace(")):
            return False
        self._misses += 1
        return self._misses < 6  # a warning may come between

    def ends(self, text: str) -> bool:
        return bool(self.figures) and "====" in text and bool(_END.search(_TAGS.sub("", text[-_WIDEST:])))

    def _entry(self, label: str, value: str, line: int) -> bool:
        low = label.lower()
        if latency := _LATENCY.search(low):
            word, stem = _WORDS.get(latency[1], latency[1]), _STEMS.get(latency[2], latency[2])
            self._sglang |= "latency" in latency[2]
            figure = printed(value, line, 1000.0 if latency[3] == "s" else 1.0)
            if figure is not None:
                self.figures.setdefault(f"{word}_{stem}_ms", figure)
            return True
        name = _name(low)
        if low.startswith("peak concurrent"):
            name = "peak_concurrency"
        if setting := _SETTINGS.get(low):
            self._sglang |= low == "backend"
            if value not in ("not set", "None"):
                self.settings.setdefault(setting, Setting(scalar(value), line, "block"))
            return True
        if name is None:
            return low.startswith(("total ", "tip", "last generation", "accept", "draft", "position", "drafts", "rtfx"))
        self._sglang |= name in ("concurrency_mean",)
        figure = printed(value, line, 0.01 if low.endswith("(%)") else 1.0)
        if figure is not None and name not in self.figures:
            self.figures[name] = figure
        return True

    def row(self, file: str, tool: str | None, section: str) -> Row | None:
        """None where it holds nothing to speak of."""
        f = self.figures
        if not ({"completed", "request_throughput", "output_throughput"} & set(f)) or len(f) < 2:
            return None
        tool = tool or ("sglang" if self._sglang else "vllm")
        figures = {name: _defined(name, figure, tool) for name, figure in f.items()}
        kind = "throughput" if "offline" in self.title.lower() else "serve"
        return Row(
            kind="throughput" if kind == "throughput" else "serve",
            tool=tool, form="block", file=file, line=self.line, end=self.end, figures=figures,
            settings=dict(self.settings), section=section,
        )  # fmt: skip


def _name(label: str) -> str | None:
    """Before the label a logger may have put its own words; a word that changes what it means is none of them."""
    for known, name in _FIGURES.items():
        if label == known:
            return name
    for known, name in _FIGURES.items():
        if label.endswith(f" {known}") and label[: -len(known)].split()[-1] not in _CHANGES:
            return name
    return None


def _defined(name: str, figure: Figure, tool: str) -> Figure:
    stem = name.removesuffix("_ms").rpartition("_")[2]
    if not name.endswith("_ms"):
        return figure
    return Figure(figure.value, figure.line, figure.half, definition(tool, stem), figure.deviation, figure.bold)


def printed(text: str, line: int, scale: float = 1.0) -> Figure | None:
    """A number as it was printed, and how far it may be off by its rounding."""
    text = text.strip().replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return Figure(value * scale, line, (half(text) if "." in text else 0.0) * scale)


# ---- single lines of the offline procedures ----

OFFLINE_WORDS = ("Throughput:", "throughput:", "atency:", "Total num")

_THROUGHPUT = re.compile(
    r"Throughput:\s*([\d.]+)\s*requests/s(?:,\s*([\d.]+)\s*(total )?tokens/s)?(?:,\s*([\d.]+)\s*output tokens/s)?", re.I
)
_AVERAGE = re.compile(r"^\W{0,4}Avg latency:\s*([\d.]+)\s*seconds", re.I)
_PERCENTILE = re.compile(r"^\W{0,4}(\d{1,2})(?:\.\d+)?% percentile latency:\s*([\d.]+)\s*seconds", re.I)
_TOTAL = re.compile(r"Total num (prompt|output) tokens:\s*(\d+)")


def throughput_line(text: str, line: int) -> dict[str, Figure] | None:
    """`Throughput: 7.61 requests/s, 3895.53 total tokens/s, 972.30 output tokens/s`"""
    found = _THROUGHPUT.search(text)
    if found is None:
        return None
    told = {"request_throughput": found[1], "total_token_throughput": found[2], "output_throughput": found[4]}
    figures = {name: figure for name, value in told.items() if value and (figure := printed(value, line))}
    return figures or None


def latency_line(text: str, line: int) -> dict[str, Figure] | None:
    if found := _AVERAGE.search(text):
        figure = printed(found[1], line, 1000.0)
        return {"mean_latency_ms": _defined_latency(figure)} if figure else None
    if found := _PERCENTILE.search(text):
        figure = printed(found[2], line, 1000.0)
        return {f"p{found[1]}_latency_ms": _defined_latency(figure)} if figure else None
    return None


def _defined_latency(figure: Figure) -> Figure:
    return Figure(figure.value, figure.line, figure.half, "offline.latency")


def total_line(text: str, line: int) -> dict[str, Figure] | None:
    if found := _TOTAL.search(text):
        name = "total_input_tokens" if found[1] == "prompt" else "total_output_tokens"
        return {name: Figure(float(found[2]), line)}
    return None
