"""The lists of checks: complete, and in plain words."""

import re
from pathlib import Path
from typing import get_args

import dyno
from dyno.audit.audit import REPORT_CHECKS
from dyno.checks import CHECKS, Need, about
from findings import ALL

SOURCE = Path(dyno.__file__).parent


def test_every_code_is_listed_once() -> None:
    listed = [code for check in ALL for code in check.about]
    assert len(listed) == len(set(listed)) > 120
    assert set(about(CHECKS, REPORT_CHECKS)) == set(listed)
    made = r'"([a-z]+\.[a-z_]+)",?\s*(?:"(?:note|doubt|void)"|level|f?"|text|if)'
    rooms = ("checks", "audit", "compare", "conduct", "report", "cli")
    texts = [path.read_text() for room in rooms for path in (SOURCE / room).rglob("*.py")]
    found = {code for text in texts for code in re.findall(rf"\b(?:Finding|note|doubt|void)\(\s*{made}", text)}
    assert found - set(listed) == set()
    assert {need for check in ALL for need in check.judges} == set(get_args(Need))


def test_every_finding_is_described_in_plain_sentences() -> None:
    for code, (levels, when, advice) in about(CHECKS, REPORT_CHECKS).items():
        assert re.match(r"(note|doubt|void)\b", levels) and not levels.endswith("."), code
        for sentence in (when, advice):
            assert sentence.endswith("."), code
            assert not re.search(r"\b(?:told|tells|said|reckon\w*|stands|lies|nobody|somebody)\b", sentence), code
