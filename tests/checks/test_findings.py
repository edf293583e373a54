"""The lists of checks: complete, and in plain words."""

import re
from pathlib import Path
from typing import get_args

import dyno
from dyno.audit.audit import REPORT_CHECKS
from dyno.checks import CHECKS, Need, about
from dyno.facts.finding import Finding, doubt, merged
from findings import ALL

SOURCE = Path(dyno.__file__).parent


def test_every_code_is_listed_once() -> None:
    listed = [code for check in ALL for code in check.about]
    assert len(listed) == len(set(listed)) > 120
    assert set(about(CHECKS, REPORT_CHECKS)) == set(listed)
    made = r'"([a-z]+\.[a-z_]+)",?\s*(?:"(?:note|doubt|void)"|level|f?"|text|if)'
    rooms = (
        "checks",
        "audit",
        "compare",
        "conduct",
        "trial",
        "search",
        "quality",
        "remote",
        "report",
        "cli",
    )
    texts = [path.read_text() for room in rooms for path in (SOURCE / room).rglob("*.py")]
    found = {
        code
        for text in texts
        for code in re.findall(rf"\b(?:Finding|note|doubt|void)\(\s*{made}", text)
    }
    assert found - set(listed) == set()
    assert {need for check in ALL for need in check.judges} == set(get_args(Need))


def test_every_finding_is_described_in_plain_sentences() -> None:
    for code, (levels, when, advice) in about(CHECKS, REPORT_CHECKS).items():
        assert re.match(r"(note|doubt|void)\b", levels) and not levels.endswith("."), code
        for sentence in (when, advice):
            assert sentence.endswith("."), code
            assert not re.search(
                r"\b(?:told|tells|said|reckon\w*|stands|lies|nobody|somebody)\b", sentence
            ), code


def test_the_levels_of_a_finding_are_described() -> None:
    described = about(CHECKS, REPORT_CHECKS)
    texts = [
        path.read_text()
        for room in ("checks", "audit")
        for path in (SOURCE / room).rglob("*.py")
    ]
    made = {
        m
        for text in texts
        for m in re.findall(r'\b(note|doubt|void)\(\s*"([a-z]+\.[a-z_]+)"', text)
    }
    made |= {
        m[::-1]
        for text in texts
        for m in re.findall(r'\bFinding\(\s*"([a-z]+\.[a-z_]+)", "(\w+)"', text)
    }
    assert [
        (level, code) for level, code in sorted(made) if level not in described[code].levels
    ] == []


def test_findings_that_differ_in_numbers_are_one_with_ranges() -> None:
    def finding(text: str, line: int) -> Finding:
        return doubt("load.slots", text, locations=[f"a.csv:{line}"])

    (one,) = merged(
        [
            finding("8 of 64 requests (+12.5 %).", 1),
            finding("9 of 1,064 requests (+3 %).", 2),
        ]
    )
    assert one.text == "8 to 9 of 64 to 1,064 requests (+3 to +12.5 %) (2 results)."
    assert one.locations == ["a.csv:1", "a.csv:2"]
    # A name is not a number; a sentence that has a range is not given another.
    names = [finding("Llama-2-7b is slow.", 1), finding("Llama-3-8b is slow.", 2)]
    assert [f.text for f in merged(names)] == [f.text for f in names]
    (one,) = merged([finding("Speeds are 1 to 4.", 1), finding("Speeds are 2 to 7.", 2)])
    assert one.text == "Speeds are 1 to 4 (and 1 similar result)."
    assert len(merged(names, ["load.slots"])) == 2
