"""The recipe of dyno's own model: the text that it was trained on is still what the code generates."""

import csv
import hashlib
import importlib.util
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dyno.workload import tasks

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def train() -> Any:
    spec = importlib.util.spec_from_file_location("train", ROOT / "training/train.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def test_the_built_in_items_never_change() -> None:
    items = tasks.items(list(tasks.TASKS), 30)
    assert (
        digest(
            [(i.id, i.question, i.answer, tuple(i.wrong), i.with_choices()) for i in items]
        )
        == "66b748d75d5c29b3"
    )


def test_the_training_text_never_changes(train: Any) -> None:
    rng = Random(train.SEED)
    assert digest([train.document(rng) for _ in range(300)]) == "cd1f972a47e39cf6"
    words = (ROOT / "src/dyno/workload/words.txt").read_text(encoding="utf-8")
    assert digest(words) == "545ce581df3660d9", "the tokenizer was trained on it"


@pytest.mark.parametrize("name", ["model", "draft"])
def test_the_learning_curve_in_the_readme_is_that_of_the_file(name: str) -> None:
    with (ROOT / "training/curve.csv").open(newline="") as file:
        last = [line for line in csv.DictReader(file) if line["model"] == name][-1]
    scores = " | ".join(f"{float(last[task]):.3f}" for task in tasks.TASKS)
    row = f"| {int(last['step']):,} | {int(last['tokens']) / 1e6:,.0f} M | {float(last['loss']):.2f} | {scores} |"
    assert row in (ROOT / "training/README.md").read_text(encoding="utf-8")
