"""Names of engines as documents and results write them: those that dyno starts, and others."""

import functools
import re
from typing import TYPE_CHECKING

from dyno.engines import kinds

if TYPE_CHECKING:
    from dyno.engines.kinds.base import EngineKind

# Engines that dyno can't start, by the names that results give them → other spellings.
OTHERS: dict[str, tuple[str, ...]] = {
    "tensorrt-llm": ("trt-llm", "trtllm", "tensorrt"),
    "ollama": (),
    "lmdeploy": (),
    "mlx": (),
    "exllamav2": (),
    "exllama": (),
    "mlc": (),
}


def spellings() -> dict[str, str]:
    """Return the one name of an engine for each of its spellings, which are in small letters."""
    return _spellings(kinds.NAMES)


def pattern() -> re.Pattern[str]:
    """Return the pattern that finds any of these spellings as a word."""
    return _pattern(kinds.NAMES)


def version_titles() -> dict[str, str]:
    """Return the titles of columns that have the version of an engine → the setting."""
    return _version_titles(kinds.NAMES)


def engine_named(name: str) -> "EngineKind | None":
    """Return the engine by its name in results. None: dyno can't start it."""
    return next(
        (
            kind
            for kind in kinds.KINDS.values()
            if kind.in_documents and kind.result_name == name
        ),
        None,
    )


@functools.cache
def _spellings(names: tuple[str, ...]) -> dict[str, str]:
    out: dict[str, str] = {}
    for kind in map(kinds.kind_of, names):
        if kind.in_documents:
            out |= dict.fromkeys((kind.name, *kind.aliases), kind.result_name)
    for name, others in OTHERS.items():
        out |= dict.fromkeys((name, *others), name)
    return out


@functools.cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(_spellings(names), key=len, reverse=True)
    return re.compile(
        rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9])",
        re.IGNORECASE,
    )


@functools.cache
def _version_titles(names: tuple[str, ...]) -> dict[str, str]:
    return {
        kind.version_title: "engine_version"
        for kind in map(kinds.kind_of, names)
        if kind.version_title
    }
