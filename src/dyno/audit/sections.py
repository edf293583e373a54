"""Headings, titles and sentences that promise figures: are there any?"""

import re
from collections.abc import Iterator

from dyno.facts.finding import Finding
from dyno.facts.imported import Document, Heading, Passage

_PROMISE = re.compile(
    r"\b(?:costs?|pric(?:es?|ing)|performance|results?|throughput|latenc(?:y|ies)|benchmarks?|speeds?|ttft|tpot|itl|"
    r"tokens?/s(?:ec)?|goodput|efficiency|accuracy|numbers|comparisons?|findings)\b",
    re.IGNORECASE,
)
_OF_FIGURES = re.compile(
    r"\b(?:throughput|latenc(?:y|ies)|benchmark(?:s|ing)?|speed tests?|speeds|results)\b",
    re.IGNORECASE,
)
_OF_SPEED = re.compile(r"\b(?:latenc|throughput|speed|performance|inference|serving|tokens?/s)", re.IGNORECASE)
_PLAIN = re.compile(
    r"[\W\d]{0,9}(?:(?:performance|throughput|latency|benchmark)(?: results)?|results)\W{0,3}$", re.IGNORECASE
)
_RESULTS = re.compile(r"\b(?:benchmarks|results|numbers|findings)\b|\bbenchmark (?:of|report)\b", re.IGNORECASE)
_HOW_TO = re.compile(
    r"\bhow[ -]?to\b|\b(?:guides?|tutorial|suite|scripts?|tools?|tooling|toolkit|harness|instructions|methodology|"
    r"documentation|docs|usage|optimi[sz]ation|tuning|framework|setup|settings|running|plan|roadmap|reproducing)\b",
    re.IGNORECASE,
)
_FIGURE_IN_WORDS = re.compile(
    r"\d\s?(?:k\s?)?(?:tok(?:en)?s?\s?(?:/|per )\s?s|t/s\b|tps\b|req(?:uest)?s?\s?(?:/|per )\s?s|ms\b|it/s)"
    r"|\d\s?(?:x|×|times|%)\s(?:faster|slower|higher|lower|more|less|better)",
    re.IGNORECASE,
)
_MEASURED = re.compile(r"\s*[~<>≈]?\s?\$?\d{1,3}(?:,?\d{3}){0,3}(?:\.\d{1,6})?\s?(?:[a-zA-Z/%±$].{0,20})?\s*$")
_DANGLING = re.compile(
    r"\b(?:(?:are|is) (?:listed|given|summari[sz]ed|tabulated) (?:in the (?:table|list) )?below|"
    r"(?:see|in) the (?:table|list) below|(?:in )?the (?:following|below) (?:table|list)\b[^.]{0,60})\s?[.:]?\s?$",
    re.IGNORECASE,
)
_PICTURE = re.compile(r"\b(?:chart|figure|graph|plot|diagram|image|screenshot)s?\b", re.IGNORECASE)
_PERFORMANCE = ("serve", "throughput", "latency", "micro")
PARAGRAPH = 200  # characters: prose from here on, below it may be an item of a list


def empty(documents: list[Document]) -> Iterator[Finding]:
    for document in documents:
        headings = [h for h in document.headings if h.level > 0]
        bare = [h for h in headings if h.empty and _is_title(h.text)]
        if 2 * sum(h.empty for h in headings) > len(headings) > 2:  # comments of a script, an outline
            continue
        # What a heading promises may stand under the next one; and where nothing is measured, nothing is missing.
        measured = bool(document.rows or document.commands or document.environments)
        promised = [h for h in bare if _PROMISE.search(h.text) and measured and not _goes_on(document, h)]
        for level, found in (("doubt", promised), ("note", [h for h in bare if h not in promised])):
            if found:
                names = ", ".join(f"'{h.text}'" for h in found[:6])
                yield Finding(
                    "consistency.empty_section",
                    "doubt" if level == "doubt" else "note",
                    f"Nothing stands under {names}{' and others' if len(found) > 6 else ''}.",
                    "Give the figures that the heading promises; what is concluded from them rests on nothing here."
                    if level == "doubt"
                    else "Fill it or take it out.",
                    [f"{document.file}:{h.line}" for h in found],
                )


def _is_title(text: str) -> bool:
    """Not the beginning of a list, a mark of an include, a licence, a comment."""
    return not text.endswith((":", ";", ",")) and not re.match(r"\W{2}|SPDX|Copyright|tags?$", text, re.IGNORECASE)


def _goes_on(document: Document, heading: Heading) -> bool:
    """Tables or results stand right below the next heading of the same level."""
    after = [h for h in document.headings if h.line > heading.line]
    if not after or after[0].level != heading.level:
        return False
    stop = after[1].line if len(after) > 1 else 1 << 62
    there = [t.line for t in document.tables] + [r.line for r in document.rows]
    return any(after[0].line < line < stop for line in there)


def _figures_in_words(document: Document) -> bool:
    return any(_FIGURE_IN_WORDS.search(p.text[:20_000]) for p in document.passages)


def no_figures(documents: list[Document]) -> Iterator[Finding]:
    data = any(d.rows and not d.headings for d in documents)  # result files given beside the words
    for document in documents:
        if not document.headings or any(r.kind in _PERFORMANCE for r in document.rows):
            continue
        title = next((h for h in document.headings if h.level > 0), document.headings[0])
        # 'Benchmarks' alone may be of answers' quality.
        promised = [title] if _OF_FIGURES.search(title.text) and _OF_SPEED.search(title.text) else []
        measured = any(c.role in ("client", "offline", "micro") for c in document.commands)
        where = promised + [h for h in document.headings if measured and h.level > 1 and _PLAIN.match(h.text)]
        if not where or _figures_in_words(document) or _cells_with_numbers(document):
            continue
        plain = promised and _RESULTS.search(title.text) and not _HOW_TO.search(title.text)
        yield Finding(
            "consistency.no_figures",
            "doubt" if plain and not data else "note",
            f"'{where[0].text}' promises measurements, and there is not one figure of speed or latency in the text.",
            "Take nothing from it about speed. Figures may be in pictures, which are not read: ask for the numbers.",
            [f"{document.file}:{h.line}" for h in where],
        )


def _cells_with_numbers(document: Document) -> bool:
    """A table that no reader made rows of may hold the figures; one that was read as something else doesn't."""
    elsewhere = {r.table for r in document.rows if r.kind not in _PERFORMANCE}
    tables = [t for i, t in enumerate(document.tables) if i not in elsewhere]
    return any(sum(_MEASURED.match(c.text) is not None for cells in t.rows for c in cells) > 1 for t in tables)


def _stops(document: Document, passage: Passage) -> int | None:
    """The line of the first heading below; None at the end."""
    return min((h.line for h in document.headings if h.line > passage.line and h.level > 0), default=None)


def _is_followed(document: Document, passage: Passage) -> bool:
    """By something listed: a table, a listing, items; or by something that no reader read, as lines are missing."""
    stop = _stops(document, passage)

    def below(line: int) -> bool:
        return passage.line < line and (stop is None or line < stop)

    words = [p for p in document.passages if below(p.line)]
    things = [r.line for r in document.rows if below(r.line)] + [c.line for c in document.commands if below(c.line)]
    if any(below(t.line) for t in document.tables):
        return True
    first = min(things, default=None)
    reach = passage.line + len(passage.text) // 60 + 3  # lines that it may take itself, and blank ones
    if not words or (first is not None and first < words[0].line):
        return first is not None or stop is None or stop > reach
    following = words[0]
    items = len(words) > 1 and words[1].line == following.line + 1
    return following.listing or items or len(following.text) < PARAGRAPH or following.line > reach


def dangling(documents: list[Document]) -> Iterator[Finding]:
    for document in documents:
        for passage in document.passages:
            tail = passage.text[-160:]
            found = _DANGLING.search(tail)
            if passage.listing or found is None or _PICTURE.search(tail) or _is_followed(document, passage):
                continue
            yield Finding(
                "consistency.empty_section",
                "note",
                f"'…{tail[max(0, found.start() - 60) :].strip()}': nothing is listed there.",
                "Give what was meant to stand there.",
                [f"{document.file}:{passage.line}"],
            )
