"""docs/coming-from.md: flags of other tools are theirs, flags of dyno are its own, and no refusal is forgotten.

peer-flags.json and vllm-bench-flags.json have the other tools' flags, with the source of each list.
"""

import json
import re
from collections.abc import Iterator
from functools import cache

import pytest

from dyno.cli.main import parser
from reference import ROOT, _parsers

PAGE = (ROOT / "docs" / "coming-from.md").read_text()
PEERS = json.loads((ROOT / "tests" / "peer-flags.json").read_text())
PEERS["vllm bench serve"] = {
    "flags": " ".join(
        json.loads((ROOT / "tests" / "vllm-bench-flags.json").read_text())["serve"]
    )
}
SECTIONS = {  # heading → name in peer-flags.json, command of dyno
    "vllm bench": ("vllm bench serve", "dyno bench serve"),
    "GuideLLM": ("guidellm run 0.8.1", "dyno bench serve"),
    "AIPerf": ("aiperf profile 0.13.0", "dyno bench serve"),
    "llama-bench": ("llama-bench", "dyno bench micro"),
}
_FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


@cache
def _flags_of(command: str) -> dict[str, str]:
    """A command's flags, each with what it does: it is refused or ignored, or it does something."""
    [found] = [p for p, _ in _parsers(parser(), "") if p.prog == command]
    return {flag: type(a).__name__ for a in found._actions for flag in a.option_strings}


def _section(heading: str) -> str:
    return re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], flags=re.M)[0]


def _rows(heading: str, *, refused: bool = False) -> Iterator[list[str]]:
    """The rows of a section's tables: of what is refused, or of the others."""
    tables = re.compile(r"(<!-- refused -->\n\n)?((?:^\|.*\n)+)", re.M)
    for match in tables.finditer(_section(heading)):
        if bool(match[1]) == refused:
            for line in match[2].splitlines()[2:]:
                yield [cell.strip() for cell in line.strip("|").split(" | ")]


def _flags(cell: str) -> list[str]:
    return [f for code in re.findall(r"`([^`]+)`", cell) for f in _FLAG.findall(code)]


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_other_tools_flags_are_theirs(heading: str) -> None:
    known = PEERS[SECTIONS[heading][0]]["flags"].split()
    rows = [*_rows(heading), *_rows(heading, refused=True)]
    named = [flag for row in rows for flag in _flags(row[0])]
    assert len(named) >= 10
    assert [flag for flag in named if flag not in known] == []


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_flags_of_dyno_exist_and_are_not_refused(heading: str) -> None:
    own = (
        _flags_of(SECTIONS[heading][1]) | _flags_of("dyno find") | _flags_of("dyno report")
    )
    theirs = {"vllm bench", "llama-bench"}  # the first column is of both
    cells = [
        row[column]
        for row in _rows(heading)
        for column in range(heading not in theirs, min(2, len(row)))
    ]
    named = [flag for cell in cells for flag in _flags(cell)]
    assert [f for f in named if own.get(f, "_Refused") == "_Refused"] == []


def test_what_the_page_calls_refused_is_refused_and_nothing_else_is() -> None:
    """Of llama-bench. docs/reference/vllm-bench.md has vLLM's, from the parser itself."""
    peer, command = SECTIONS["llama-bench"]
    own = _flags_of(command)
    refused = {
        f for f in PEERS[peer]["flags"].split() if own.get(f, "_Refused") == "_Refused"
    }
    said = {flag for row in _rows("llama-bench", refused=True) for flag in _flags(row[0])}
    assert said <= refused, "dyno accepts these now"
    short = {flag for flag in refused if not flag.startswith("--")}
    assert short - said == set(), "the page doesn't name these"


def test_guidellms_kinds_and_their_fields_exist() -> None:
    kinds = {k: v.split() for k, v in PEERS["guidellm run 0.8.1"]["kinds"].items()}
    every = {field for fields in kinds.values() for field in fields}
    for row in _rows("GuideLLM"):
        for code in re.findall(r"`([^`]+)`", row[0]):
            _, _, words = code.rpartition(" ")
            pairs = [pair.partition("=")[::2] for pair in words.split(",") if "=" in pair]
            kind = dict(pairs).get("kind")
            assert kind is None or kind in kinds, code
            fields = {name for name, _ in pairs} - {"kind"}
            assert fields <= set(kinds[kind] if kind else every), code


def test_flags_that_are_said_to_have_no_effect_are_ignored() -> None:
    own = _flags_of("dyno bench serve")
    named = [
        flag
        for row in _rows("vllm bench")
        if row[1].startswith("accepted, without effect")
        for flag in _flags(row[0])
    ]
    assert named and [flag for flag in named if own[flag] != "_Ignored"] == []
