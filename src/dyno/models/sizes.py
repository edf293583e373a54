"""Sizes of models and data sets before they are here: as the Hub lists them, or bits per weight by parameters."""

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dyno import secrets
from dyno.engines.process import EngineProcess
from dyno.facts.recipe import ModelRecipe
from dyno.models import gguf, hub, library, schemes, steps
from dyno.models.cache import storage_folder
from dyno.models.messages import Job, RepoFacts, RepoQuestion
from dyno.numbers import duration
from dyno.probe import model as model_files
from dyno.scratch import scratch

TOTAL_S = 10.0  # for the answers of all repositories together
_PROCESS = [sys.executable, "-P", "-m", "dyno.models.ask"]
_WEIGHTS = re.compile(r"\.(safetensors|bin|gguf)$")


class RepoSize(msgspec.Struct, frozen=True):
    """What is to be fetched for a recipe, and what could be made of it."""

    whole_bytes: int | None = None  # None: unknown
    left_bytes: int | None = None  # without what is on this machine already
    parameters: int | None = None
    table_parameters: int = 0  # of them, those that most quantizations leave in 16 bits
    gated: bool = False
    unknown: str = ""  # why the size isn't known, or whether a gated one may be fetched
    refused: str = ""  # why the Hub doesn't send it, whenever one asks


def ask(
    recipes: Sequence[ModelRecipe], shapes: bool = False, timeout_s: float = TOTAL_S
) -> list[RepoSize]:
    """Ask the Hub about all of them at once. One that is silent or refuses says nothing of the others.

    `shapes`: read config.json of models, too, for the sizes of what is made of them."""
    sizes = [_local(recipe) for recipe in recipes]
    jobs = {i: _job(recipes[i]) for i, size in enumerate(sizes) if size is None}
    answers = _answers(RepoQuestion(list(jobs.values()), shapes), timeout_s) if jobs else {}
    silent = RepoFacts(-1, error=f"the Hub didn't answer within {duration(timeout_s)}")
    for number, (i, job) in enumerate(jobs.items()):
        sizes[i] = _known(job, answers.get(number, silent))
    return [size for size in sizes if size is not None]


def _job(recipe: ModelRecipe) -> Job:
    source = hub.parse(recipe.source)
    assert isinstance(source, hub.HubSource)
    return Job(source.repo, source.kind, source.revision, recipe.include, recipe.exclude)


def _local(recipe: ModelRecipe) -> RepoSize | None:
    """Return the size of what is on this machine; None: the Hub is to be asked."""
    source = hub.parse(recipe.source)
    entry = library.find(recipe.base)
    if entry is None and not isinstance(source, Path):
        return None
    shape = model_files.read(Path(entry.path if entry else str(source)))
    if shape is None:
        return RepoSize(entry.size_bytes if entry else 0, 0, None, 0)
    tables = shape.embedding_parameters + shape.head_parameters
    return RepoSize(
        entry.size_bytes if entry else shape.weights_bytes, 0, shape.parameters, tables
    )


def _answers(question: RepoQuestion, timeout_s: float) -> dict[int, RepoFacts]:
    deadline = time.monotonic() + timeout_s
    out: dict[int, RepoFacts] = {}
    with scratch() as folder:
        env = {**os.environ, **hub.ENV}
        with EngineProcess(
            _PROCESS, env, folder / "log", secrets=secrets.known(), talks=True
        ) as process:
            process.send_line(msgspec.json.encode(question))
            while len(out) < len(question.jobs) and time.monotonic() < deadline:
                line = process.hear(min(deadline - time.monotonic(), 0.5))
                if line is None and not process.alive():
                    break
                if line is not None:
                    facts = msgspec.json.decode(line, type=RepoFacts)
                    out[facts.index] = facts
    return out


def _known(job: Job, facts: RepoFacts) -> RepoSize:
    first = re.split(r"\.\s", facts.error)[0].rstrip(".")  # the rest says what to do
    if facts.error and not facts.files:
        return RepoSize(
            unknown=first, refused=facts.error if facts.refused else "", gated=facts.gated
        )
    whole = sum(file.size for file in facts.files.values())
    here = hub.present(storage_folder(job.kind, job.repo), facts.files)
    weights = sum(file.size for name, file in facts.files.items() if _WEIGHTS.search(name))
    return RepoSize(
        whole_bytes=whole,
        left_bytes=whole - here,
        parameters=facts.parameters or weights // 2 or None,  # of files in 16 bits
        table_parameters=facts.table_parameters,
        gated=facts.gated,
        unknown=first,
        refused=facts.error if facts.refused else "",
    )


def made_bytes(recipe: ModelRecipe, base: RepoSize) -> int | None:
    """Return about how large a converted or quantized model gets. None: its parameters aren't known."""
    if base.parameters is None:
        return None
    tool = steps.tool(recipe)
    if tool and tool != "llama.cpp":
        tables = min(base.table_parameters, base.parameters)
        scheme = schemes.find(recipe.quantize or "")
        return round(
            ((base.parameters - tables) * scheme.bits_per_weight + tables * 16) / 8
        )
    return round(base.parameters * gguf.bits_per_weight(recipe) / 8)
