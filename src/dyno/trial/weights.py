"""The models of a setting: a study's own by their names, and those that an engine would fetch when it starts."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dyno.engines.kinds import kind_of
from dyno.engines.kinds.base import EngineKind
from dyno.facts.engine import EngineSpec, valued
from dyno.facts.recipe import ModelOrigin, ModelRecipe
from dyno.facts.trial import TrialSpec
from dyno.models import library, steps
from dyno.probe.model import looks_local

_KEYS = ("model", "draft_model")
_OWN_CACHE = {
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
}
_CACHE_INSIDE = "/root/.cache/huggingface"
# Beside the weights that these engines read.
_OTHER_FORMATS = [
    "original/*",
    "onnx/*",
    "*.pth",
    "*.gguf",
    "*.onnx",
    "*.msgpack",
    "*.h5",
    "*.ot",
    "*.tflite",
]
_NO_WEIGHTS = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py"]


def located(kind: EngineKind, spec: EngineSpec) -> EngineSpec:
    """Return the setting with the paths of a study's models in place of their names, which the server answers to."""
    paths = {key: steps.location(spec.weights[name]) for key, name in named(spec)}
    if "model" in paths and "served_name" in kind.options:
        paths["served_name"] = spec.served_name or spec.model or ""
    return msgspec.structs.replace(spec, **paths) if paths else spec


def by_name(spec: EngineSpec, asked: EngineSpec) -> EngineSpec:
    """Return the setting as it is stored: with the names of a study's models again."""
    return msgspec.structs.replace(spec, **dict(named(asked)))


def lacking(spec: EngineSpec) -> list[str]:
    """Return the names of the study's models that the trial needs and that aren't here."""
    return [name for name, recipe in spec.weights.items() if library.find(recipe) is None]


def origins(spec: EngineSpec) -> dict[str, ModelOrigin]:
    """Return which models they are, of those that dyno fetched or made."""
    recipes = {**spec.weights, **of_hub(spec)}
    return {
        name: origin for name, recipe in recipes.items() if (origin := steps.origin(recipe))
    }


def named(spec: EngineSpec) -> Iterator[tuple[str, str]]:
    for key in _KEYS:
        if (name := getattr(spec, key)) in spec.weights:
            yield key, name


def of_hub(spec: EngineSpec) -> dict[str, ModelRecipe]:
    """Return the models that the engine would fetch from the Hub when it starts. {}: it doesn't, or not into this
    machine's cache."""
    if not kind_of(spec.kind).fetches or _has_own_cache(spec):
        return {}
    out = {}
    for key in _KEYS:
        name = getattr(spec, key)
        if name in spec.weights or not _is_hub_name(name):
            continue
        revision = valued(spec.args, "--revision") if key == "model" else None
        source = f"hub:{name}@{revision}" if revision else f"hub:{name}"
        include = _NO_WEIGHTS if spec.load_format == "dummy" else []
        out[name] = ModelRecipe(source=source, include=include, exclude=_OTHER_FORMATS)
    return out


def _has_own_cache(spec: EngineSpec) -> bool:
    """Return whether the engine fetches into another cache than this machine's."""
    if _OWN_CACHE & spec.env.keys():
        return True
    box = spec.container
    return box is not None and any(_CACHE_INSIDE in mount for mount in box.mounts)


def _is_hub_name(name: str | None) -> bool:
    """Return whether a model is named as OWNER/NAME, and isn't a folder here."""
    if not name or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return False
    return not looks_local(name)


def tokenizer(trial: TrialSpec) -> str | None:
    """Return the tokenizer that a trial names, as a path where it is that of a study's model."""
    recipe = trial.engine.weights.get(trial.tokenizer or "") if trial.engine else None
    if recipe is None:
        return trial.tokenizer
    path = Path(steps.location(recipe))
    return str(path.parent if path.suffix == ".gguf" else path)
