"""README.md and docs/: listings say what they are, links lead somewhere, tables are the code's."""

import os
import re
from pathlib import Path

import pytest

from findings import reference
from listings import DOCS, RUN, listings, name
from reference import ROOT, pages, renewed

_OTHERS = ("METHOD.md", "ARCHITECTURE.md", "studies/README.md", "published/README.md")
_FOLDERS = ("docs/reference", "decisions")
EVERY = [
    *DOCS,
    *(ROOT / n for n in _OTHERS),
    *(p for f in _FOLDERS for p in sorted((ROOT / f).glob("*.md"))),
]
_HOW = re.compile(
    r"generated: .+|not run: .+|server|slow|printed|needs \w+|exit \d+( or \d+)?"
)


def make_lines(text: str) -> list[str]:
    return [
        line.partition("#")[0].strip()
        for line in text.splitlines()
        if line.startswith("make ")
    ]


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_every_listing_says_what_it_is_and_how_it_is_run(path: Path) -> None:
    strange = [
        n
        for n in listings(path)
        if n.language not in {*RUN, "toml", "yaml", "json", "text"}
    ]
    assert strange == [], "give the listing a language; `text` for output"
    assert [n for n in listings(path) if n.how and not _HOW.fullmatch(n.how)] == []
    assert path.read_text().count("\n```") == 2 * len(list(listings(path))), (
        "a listing was not recognised"
    )


def test_make_commands_are_run_by_ci() -> None:
    """Other commands are run below; `make` can't be run inside of `make test`."""
    ci = (ROOT / ".ci/run").read_text().splitlines()
    asked = {
        line
        for path in DOCS
        for n in listings(path)
        if not n.how
        for line in make_lines(n.text)
    }
    assert {*asked} - {*ci} == set()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.mark.parametrize("path", pages(), ids=name)
def test_generated_parts_are_what_the_code_has(path: Path) -> None:
    """`make docs-reference` rewrites them."""
    text = path.read_text()
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(renewed(text))
    assert path.read_text() == renewed(text), "run `make docs-reference`"


def anchors(path: Path) -> set[str]:
    """Of its headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {
        re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles
    }


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if link.startswith(("https://", "http://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_findings_that_pages_name_exist(path: Path) -> None:
    codes = {code for code, _, _ in reference()}
    families = {code.partition(".")[0] for code in codes}
    named = re.findall(r"`([a-z]+)\.(?!jsonl?`|log`|toml`)([a-z_]+)`", path.read_text())
    assert [f"{a}.{b}" for a, b in named if a in families and f"{a}.{b}" not in codes] == []


def test_every_page_is_in_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [
        name(p) for p in sorted((ROOT / "docs").rglob("*.md")) if name(p) not in navigation
    ] == []


def test_every_study_key_has_a_meaning() -> None:
    keys = [
        row.split(" | ")
        for row in (ROOT / "docs/reference/study-keys.md").read_text().splitlines()
        if "| `" in row
    ]
    assert len(keys) > 80 and [cells[0] for cells in keys if not cells[3]] == []
