"""Headings, titles and sentences that promise figures: are there any?"""

import re
from collections.abc import Iterator

from dyno.facts.finding import Finding
from dyno.facts.imported import Document, Passage

_PROMISE = re.compile(
    r"\b(?:costs?|pric(?:es?|ing)|performance|results?|throughput|latenc(?:y|ies)|benchmarks?|speeds?|ttft|tpot|itl|"
    r"tokens?/s(?:ec)?|goodput|efficiency|accuracy|numbers|comparisons?|findings)\b",
    re.IGNORECASE,
)
_OF_FIGURES = re.compile(
    r"\b(?:performance|throughput|latenc(?:y|ies)|benchmark(?:s|ing)?|speed(?: test)?s?|results)\b", re.IGNORECASE
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
_DANGLING = re.compile(
    r"\b(?:(?:are|is) (?:listed|given|shown|summari[sz]ed|tabulated) (?:in the (?:table|list) )?below|"
    r"(?:see|in) the (?:table|list) below|(?:in )?the (?:following|below) (?:table|list)\b[^.]{0,60})\s?[.:]?\s?$",
    re.IGNORECASE,
)
_PICTURE = re.compile(r"\b(?:chart|figure|graph|plot|diagram|image|screenshot)s?\b", re.IGNORECASE)
_PERFORMANCE = ("serve", "throughput", "latency", "micro")
PARAGRAPH = 200  # characters: prose from here on, below it may be an item of a list


def empty(documents: list[Document]) -> Iterator[Finding]:
    for document in documents:
        bare = [h for h in document.headings if h.empty and h.level > 0]
        promised = [h for h in bare if _PROMISE.search(h.text)]
        for level, headings in (("doubt", promised), ("note", [h for h in bare if h not in promised])):
            if headings:
                names = ", ".join(f"'{h.text}'" for h in headings[:6])
                yield Finding(
                    "consistency.empty_section",
                    "doubt" if level == "doubt" else "note",
                    f"Nothing stands under {names}{' and others' if len(headings) > 6 else ''}.",
                    "Give the figures that the heading promises; what is concluded from them rests on nothing here."
                    if level == "doubt"
                    else "Fill it or take it out.",
                    [f"{document.file}:{h.line}" for h in headings],
                )


def _figures_in_words(document: Document) -> bool:
    return any(not p.listing and _FIGURE_IN_WORDS.search(p.text[:20_000]) for p in document.passages)


def no_figures(documents: list[Document]) -> Iterator[Finding]:
    data = any(d.rows and not d.headings for d in documents)  # result files given beside the words
    for document in documents:
        if not document.headings or any(r.kind in _PERFORMANCE for r in document.rows):
            continue
        title = next((h for h in document.headings if h.level > 0), document.headings[0])
        promises = [h for h in document.headings if h.level > 0 and _OF_FIGURES.search(h.text)]
        bare = [
            h for h in promises if re.fullmatch(r"[\W\d]*(?:performance|results|benchmark results)\W*", h.text, re.I)
        ]
        if not (title in promises or bare) or _figures_in_words(document) or _cells_with_numbers(document):
            continue
        plain = title in promises and _RESULTS.search(title.text) and not _HOW_TO.search(title.text)
        where = [title] if title in promises else []
        where += [h for h in bare if h is not title]
        yield Finding(
            "consistency.no_figures",
            "doubt" if plain and not data else "note",
            f"'{where[0].text}' promises measurements, and there is not one figure of speed or latency in the text.",
            "Take nothing from it about speed. Figures may be in pictures, which are not read: ask for the numbers.",
            [f"{document.file}:{h.line}" for h in where],
        )


def _cells_with_numbers(document: Document) -> bool:
    """A table of a promised thing that no reader made rows of may hold the figures."""
    return any(_OF_FIGURES.search(" ".join([*t.header, t.section])) for t in document.tables)


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
