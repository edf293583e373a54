"""How many types a fact passes through, and how many files, from where it arises to where it is read.

A step is a file in which one type is made of the one before; both must be named there. A new type between two of them
breaks a step. Decision 33 has the counts.
"""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

import dyno
from trees import parsed

pytestmark = pytest.mark.house

SOURCE = Path(dyno.__file__).parent


class Step(NamedTuple):
    file: str
    takes: str
    makes: str


WALKS = {
    "a trial → a page": [
        Step("measure/summary.py", "Record", "Summary"),
        Step("trial/online.py", "Summary", "Result"),
        Step("store/rows.py", "Result", "Row"),
        Step("report/entries.py", "Row", "Entry"),
        Step("report/tables.py", "Entry", "Table"),
        Step("report/page/__init__.py", "tables", "render"),
    ],
    "a quantization in a study → the engine's command": [
        Step("study/file.py", "TomlDocument", "Section"),
        Step("study/grid.py", "Section", "GridCell"),
        Step("study/trials.py", "GridCell", "EngineSpec"),
        Step("study/file.py", "TrialSpec", "PlannedTrial"),
        Step("conduct/study_plan.py", "PlannedTrial", "EnginePlan"),
        Step("trial/engine_plan.py", "EnginePlan", "Launch"),
        Step("engines/launch.py", "EngineSpec", "Launch"),
        Step("engines/kinds/base.py", "EngineSpec", "EngineFlag"),
    ],
    "a target → the answer of a search, in a table": [
        Step("facts/find.py", "Limit", "FindSpec"),
        Step("search/find.py", "FindSpec", "FollowTask"),
        Step("search/follow.py", "FollowTask", "Judge"),
        Step("search/judge.py", "Judge", "ProbeLook"),
        Step("search/find.py", "ProbeLook", "LimitFigure"),
        Step("search/find.py", "LimitFigure", "ProbeFacts"),
        Step("search/find.py", "ProbeFacts", "FindAnswer"),
        Step("report/searches.py", "FindAnswer", "Table"),
    ],
    "an item → a score in a comparison": [
        Step("quality/ask.py", "Item", "Question"),
        Step("quality/ask.py", "Record", "ItemAnswer"),
        Step("store/rows.py", "ItemAnswer", "Row"),
        Step("measure/pairs.py", "Row", "Group"),
        Step("measure/paired.py", "paired", "PairedDifference"),
        Step("compare/scores.py", "Group", "Difference"),
        Step("compare/compare.py", "Difference", "Pairing"),
    ],
}
# The most types and files of each: they may fall.
MOST = {
    "a trial → a page": (6, 6),
    "a quantization in a study → the engine's command": (8, 7),
    "a target → the answer of a search, in a table": (9, 5),
    "an item → a score in a comparison": (9, 6),
}
NOT_TYPES = {"tables", "render", "paired", "EngineFlag"}


def _names(file: str) -> set[str]:
    """Return the names of a file, as types of values, calls and imports."""
    found: set[str] = set()
    for node in ast.walk(parsed(SOURCE / file)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.Constant(value=str(text)) if text.isidentifier():  # an annotation
                found.add(text)
    return found


@pytest.mark.parametrize("walk", WALKS)
def test_each_step_of_a_walk_makes_one_type_of_the_one_before(walk: str) -> None:
    for step in WALKS[walk]:
        assert {step.takes, step.makes} <= _names(step.file), step


@pytest.mark.parametrize("walk", WALKS)
def test_a_fact_passes_through_few_types_and_files(walk: str) -> None:
    types = {name for step in WALKS[walk] for name in step[1:]} - NOT_TYPES
    files = {step.file for step in WALKS[walk]}
    most_types, most_files = MOST[walk]
    assert len(types) <= most_types
    assert len(files) <= most_files
