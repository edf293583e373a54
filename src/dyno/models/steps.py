"""The steps of a model: pulled, converted, quantized, each once. A step that is there and whole is not run again."""

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dyno.errors import UsageError
from dyno.facts.recipe import ModelOrigin, ModelRecipe
from dyno.models import gguf, hub, library, quantize, schemes
from dyno.models.library import ModelEntry
from dyno.saying import Say

Verb = Literal["pull", "convert", "quantize"]


class Step(NamedTuple):
    verb: Verb
    recipe: ModelRecipe  # up to this step
    entry: ModelEntry | None = None  # None: it isn't there

    def describe(self) -> str:
        asked = {
            "pull": self.recipe.source,
            "convert": self.recipe.convert,
            "quantize": self.recipe.quantize,
        }
        return f"{self.verb} {asked[self.verb]}"


def steps(recipe: ModelRecipe) -> list[Step]:
    """Return the steps in order, with what is there."""
    converted = msgspec.structs.replace(recipe.base, convert=recipe.convert)
    chain: list[tuple[Verb, ModelRecipe]] = [("pull", recipe.base)]
    if recipe.convert:
        chain.append(("convert", converted))
    if recipe.quantize:
        chain.append(("quantize", recipe))
    out: list[Step] = []
    for verb, part in chain:
        entry = library.find(part)
        first = out[0].entry if out else None
        if entry and _outdated(entry, first):
            entry = None
        out.append(Step(verb, part, entry))
    return out


def _outdated(entry: ModelEntry, first: ModelEntry | None) -> bool:
    """Return whether the local files that it was made of have changed since. Those of the Hub have a commit."""
    source = hub.parse(entry.recipe.source)
    local = entry.step != "pull" and isinstance(source, Path) and source.exists()
    # Not which is later: the clock may have been set back in between.
    if local and (first is None or first.created != entry.pulled):
        return True
    text = Path(entry.recipe.calibration or "").expanduser()
    return text.is_file() and library.stamp(text.stat().st_mtime) > entry.created


def missing(recipe: ModelRecipe) -> list[Step]:
    """Return the steps that are to be run: those after the last that is there."""
    chain = steps(recipe)
    last = max((i for i, step in enumerate(chain) if step.entry), default=-1)
    return chain[last + 1 :]


def run(recipe: ModelRecipe, say: Say, below: Say) -> ModelEntry:
    """Return the model; run the steps that are missing."""
    if not any(step.entry for step in steps(recipe)):
        hub.pull(recipe.base, say, below)
    entry = next(step.entry for step in reversed(steps(recipe)) if step.entry)
    for step in missing(recipe):
        if step.entry is None and library.read(step.recipe.name):  # an outdated one
            library.remove(step.recipe.name)
        make = gguf.convert if step.verb == "convert" else quantize.quantize
        entry = make(step.recipe, entry, say, below)
    return entry


def environment_kind(step: Step) -> str | None:
    """Return the environment of the tool that a step runs."""
    if step.verb == "convert" or tool(step.recipe) == "llama.cpp":
        return gguf.KIND
    return tool(step.recipe) if step.verb == "quantize" else None


def tool(recipe: ModelRecipe) -> str | None:
    return recipe.quantize.partition(":")[0] if recipe.quantize else None


def location(recipe: ModelRecipe) -> str:
    """Return the path that an engine gets; of a model that isn't there yet, that of its folder."""
    entry = library.find(recipe)
    return entry.path if entry else str(library.model_folder(recipe.name))


def origin(recipe: ModelRecipe) -> ModelOrigin | None:
    """Return the facts of a model that is there."""
    if (e := library.find(recipe)) is None:
        return None
    return ModelOrigin(
        origin=e.origin,
        size_bytes=e.size_bytes,
        convert=recipe.convert,
        quantize=recipe.quantize,
        kv_cache=recipe.kv_cache,
        calibration=recipe.calibration,
        tool=e.tool,
        tool_version=e.tool_version,
        verified=e.verified,
    )


def problem(recipe: ModelRecipe) -> tuple[str, str] | None:
    """Return the key that is wrong, and why."""
    key = "from"
    try:
        hub.parse(recipe.source)
        key = "convert"
        gguf.check(msgspec.structs.replace(recipe, quantize=None))
        key = "quantize"
        gguf.check(recipe)
        if recipe.quantize and tool(recipe) != "llama.cpp":
            schemes.check(recipe)
    except UsageError as e:
        return key, str(e)
    if recipe.convert and recipe.quantize and tool(recipe) != "llama.cpp":
        return "quantize", f"{recipe.quantize} reads safetensors, not GGUF: remove convert."
    if not recipe.quantize:
        for key in ("kv_cache", "ignore", "calibration", "samples", "length"):
            if getattr(recipe, key):
                return key, "is for a model that is quantized: add quantize."
    return None
