"""The engines that dyno knows. A new one is a file in this folder, and its name here."""

import functools
import importlib
from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from difflib import get_close_matches
from typing import TYPE_CHECKING

from dyno.errors import UsageError
from dyno.plugins import Registry

if TYPE_CHECKING:
    from dyno.engines.kinds.base import EngineKind
    from dyno.facts.engine import EngineSpec

# Each has a file of its name with its KIND. Listings have them in this order.
NAMES: tuple[str, ...] = (
    "vllm",
    "tgi",
    "llamacpp",
    "sglang",
    "transformers",
    "openai",
    "fake",
)
# The engine for a model where none is named: for one GGUF file, and for any other.
FOR_GGUF, FOR_OTHERS = "llamacpp", "vllm"
TOOLS = (
    "llama-tools",
    "llm-compressor",
    "quark",
    "lm-eval",
)  # dyno installs them as it does engines; they serve no model


class Kinds(Mapping[str, "EngineKind"]):
    """All engines by name. Each is loaded when it is asked for: a help text needs the names alone."""

    def __init__(self) -> None:
        self._added: Registry[EngineKind] = Registry("engine", {})

    def __getitem__(self, name: str) -> "EngineKind":
        return _load(name) if name in NAMES else self._added[name]

    def __iter__(self) -> Iterator[str]:
        yield from NAMES
        yield from (name for name in self._added if name not in NAMES)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in NAMES or name in self._added

    def items(self) -> "ItemsView[str, EngineKind]":
        """Return dyno's own, and those of plug-ins that are in use."""
        return {
            **{name: _load(name) for name in NAMES},
            **dict(self._added.items()),
        }.items()

    def values(self) -> "ValuesView[EngineKind]":
        return dict(self.items()).values()


KINDS = Kinds()


@functools.cache
def _load(name: str) -> "EngineKind":
    kind: EngineKind = importlib.import_module(f"dyno.engines.kinds.{name}").KIND
    return kind


def unknown_engine(name: str, known: Collection[str]) -> str:
    if name in TOOLS:
        return f"{name} is a tool of `dyno models`: it makes models, and serves none. Engines: {', '.join(known)}."
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"No engine named {name!r}. {hint}Known: {', '.join(known)}."


def starts(spec: "EngineSpec | None") -> bool:
    """Return whether dyno starts the engine of a setting. Others run already."""
    return spec is not None and kind_of(spec.kind).starts


def kind_of(name: str) -> "EngineKind":
    try:
        return KINDS[name]
    except KeyError:
        raise UsageError(unknown_engine(name, KINDS)) from None


def is_started(name: str) -> bool:
    """Return whether dyno starts it, also of an engine of another version of dyno; else it attaches to one."""
    return name not in KINDS or KINDS[name].starts


def kind_for(model: str | None) -> str:
    """Return the engine for a model where none is named. None: dyno's own small one."""
    return FOR_GGUF if model is None or model.endswith(".gguf") else FOR_OTHERS


def metric_names() -> dict[str, list[str]]:
    """Return the names that all engines have for each of dyno's metrics."""
    from dyno.engines.kinds.base import SERVER_METRICS

    return {
        own: [name for kind in KINDS.values() for name in kind.metrics.get(own, ())]
        for own in SERVER_METRICS
    }
