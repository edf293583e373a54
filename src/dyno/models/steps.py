"""The steps of a model: pulled, converted, quantized, each once. A step that is there and whole is not run again."""

import re
from typing import Literal, NamedTuple

import msgspec

from dyno.errors import UsageError
from dyno.facts.recipe import ModelOrigin, ModelRecipe
from dyno.models import gguf, hub, schemes, shelf
from dyno.models.shelf import ModelEntry, Say

Verb = Literal["pull", "convert", "quantize"]
_GGUF = "gguf:auto"  # what llama.cpp's quantizer reads, where the recipe doesn't say
_SOURCE = re.compile(r"hub:[\w.-]+/[\w.-]+(@[\w./-]+)?|file:.+")


class Step(NamedTuple):
    verb: Verb
    recipe: ModelRecipe  # up to this step
    entry: ModelEntry | None = None  # None: it isn't there

    def describe(self) -> str:
        asked = {"pull": self.recipe.source, "convert": self.recipe.convert, "quantize": self.recipe.quantize}
        return f"{self.verb} {asked[self.verb]}"


def steps(recipe: ModelRecipe) -> list[Step]:
    """Return the steps in order, with what is there."""
    base = recipe.base
    pulled = shelf.find(base)
    convert = recipe.convert
    if convert is None and tool(recipe) == "llama.cpp" and not _is_gguf(base, pulled):
        convert = _GGUF
    out = [Step("pull", base, pulled)]
    if convert:
        converted = msgspec.structs.replace(base, convert=convert)
        out.append(Step("convert", converted, shelf.find(converted)))
    if recipe.quantize:
        out.append(Step("quantize", recipe, shelf.find(recipe)))
    return out


def missing(recipe: ModelRecipe) -> list[Step]:
    """Return the steps that are to be run: those after the last that is there."""
    chain = steps(recipe)
    last = max((i for i, step in enumerate(chain) if step.entry), default=-1)
    return chain[last + 1 :]


def run(recipe: ModelRecipe, say: Say, below: Say) -> ModelEntry:
    """Return the model; run the steps that are missing."""
    if not any(step.entry for step in steps(recipe)):
        hub.pull(recipe.base, say, below)
    entry = [step.entry for step in steps(recipe) if step.entry][-1]
    for step in missing(recipe):
        if step.verb == "convert":
            entry = gguf.convert(step.recipe, entry, say, below)
        else:
            from dyno.models import quantize

            entry = quantize.quantize(step.recipe, entry, say, below)
    return entry


def environment_kind(step: Step) -> str | None:
    """Return the environment of the tool that a step runs."""
    if step.verb == "convert" or tool(step.recipe) == "llama.cpp":
        return gguf.KIND
    return tool(step.recipe) if step.verb == "quantize" else None


def tool(recipe: ModelRecipe) -> str | None:
    return recipe.quantize.partition(":")[0] if recipe.quantize else None


def _is_gguf(base: ModelRecipe, pulled: ModelEntry | None) -> bool:
    """Return whether the source is a GGUF file: a name says so before it is there."""
    names = [base.source, *base.include]
    return pulled.path.endswith(".gguf") if pulled else any("gguf" in name.lower() for name in names)


def location(recipe: ModelRecipe) -> str:
    """Return the path that an engine gets; of a model that isn't there yet, that of its folder."""
    entry = shelf.find(recipe)
    return entry.path if entry else str(shelf.models_folder() / recipe.name)


def origin(recipe: ModelRecipe) -> ModelOrigin | None:
    """Return the facts of a model that is there."""
    if (e := shelf.find(recipe)) is None:
        return None
    return ModelOrigin(
        origin=e.origin, size_bytes=e.size_bytes, convert=recipe.convert, quantize=recipe.quantize,
        kv_cache=recipe.kv_cache, calibration=recipe.calibration, tool=e.tool, tool_version=e.tool_version,
        verified=e.verified,
    )  # fmt: skip


def problem(recipe: ModelRecipe) -> tuple[str, str] | None:
    """Return the key that is wrong, and why."""
    if not _SOURCE.fullmatch(recipe.source):
        return "from", f"{recipe.source!r} is not a source. Give hub:OWNER/NAME@REVISION or file:PATH."
    key = "convert"
    try:
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
