"""The listings of README.md and docs/: commands, programs, queries and files.

A comment before a listing says how it is run:

    <!-- not run: REASON -->      it is not
    <!-- server -->               until the page is done, in the background
    <!-- exit 3 -->               it ends with this exit code; `exit 0 or 4`: with one of them
    <!-- slow -->                 it takes long: its page is begun first
    <!-- needs MODULE -->         only where Python has this module
    <!-- printed -->              of a `text`: the command before prints this, with other numbers; … is anything

A listing with a title is a file. The others are run in the order of the page.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reference import ROOT

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = {"sh", "python", "sql"}
_LISTING = re.compile(
    r"(?:^<!-- (?P<how>(?!end ).*?) -->\n\n?)?^```(?P<language>\w*)(?P<info>.*)\n(?P<text>(?:(?!^```).*\n)*?)^```$",
    re.MULTILINE,
)


_SECTION = re.compile(r"^## ", re.MULTILINE)


class Listing(NamedTuple):
    line: int
    how: str
    language: str
    title: str
    text: str
    section: int  # headings before it


def listings(path: Path) -> Iterator[Listing]:
    page = path.read_text()
    for match in _LISTING.finditer(page):
        title = re.search(r'title="(.+?)"', match["info"])
        yield Listing(
            page.count("\n", 0, match.start("text")), match["how"] or "", match["language"], title[1] if title else "",
            match["text"], len(_SECTION.findall(page, 0, match.start())),
        )  # fmt: skip


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))
