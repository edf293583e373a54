"""A setting has a flag on the command line and a key in a study: a message uses the word of where the user is.

Below this room a message names a setting by its flag, with its value after a space: --quantization 'fp8'. For a study
each flag is looked up in the table of keys. What stands in quotation marks is a server's or an engine's, and stays.
"""

import functools
import re
import shlex
from collections.abc import Callable
from typing import Any

from dyno import secrets
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.rules import Mistake
from dyno.facts.trial import TrialSpec
from dyno.option import declared, fields, opposite
from dyno.study.cells import CELLS, hints

# Not in the command of a setting: they have their defaults there, or follow from others.
_PLAIN = {
    "seed",
    "num_warmups",
    "percentiles",
    "kind",
    "weights",
    "goodput_ms",
    "reset_cache",
}
# words of a server or an engine; names that it knows
_QUOTED = re.compile(r'("[^"\n]*"|Known: [^.]*)')
# A flag as a word of its own, and the beginning of a value: a number, a list or a text in quotes.
_FLAG = re.compile(
    r"(?<![\w-])(?<!has no )(--[a-z]+(?:-[a-z]+)*)(?![\w-])( (?=-?\d|[\[']))?"
)


@functools.cache
def _keys() -> dict[str, str]:
    """Return flag → key, with its section."""
    known: dict[str, str] = {}
    for section, cells in {**CELLS, "engine.container": hints(ContainerSpec)}.items():
        for name, annotated in cells.items():
            _, option = declared(annotated)
            for flag in f"{option.flags} {option.added}".split():
                known.setdefault(flag, f"{section}.{name}")
    return known


@functools.cache
def _flags() -> dict[str, str]:
    """Return key without its section → flag."""
    known: dict[str, str] = {}
    for flag, key in _keys().items():
        known.setdefault(
            key.removeprefix("engine.container.")
            if "container" in key
            else key.partition(".")[2],
            flag,
        )
    return known


def flag(field: str) -> str:
    """Return the flag of a setting."""
    return "--class" if field == "classes" else _flags()[field]


def sentence(mistake: Mistake) -> str:
    """Return a broken rule as a sentence that begins with the flag."""
    table = f" {mistake.inside}" if mistake.inside else ""
    return f"{flag(mistake.rule.setting)}{table} {mistake.text(flag)}"


def command(trial: TrialSpec) -> str:
    """Return the `dyno bench serve` that measures this setting of an engine at this load."""
    words = ["dyno", "bench", "serve"]
    for section in (
        trial.engine,
        trial.engine and trial.engine.container,
        trial.workload,
        trial.load,
        trial,
    ):
        if section is None:
            continue
        if isinstance(section, EngineSpec):
            words += ["--engine", section.kind]
        for field in fields(type(section)).values():
            value, flag = getattr(section, field.name), field.option.flag
            implied = field.name in _PLAIN or (
                field.name == "ignore_eos" and trial.workload.traits.endless
            )
            if flag and value != field.default and not implied:
                words += _words(flag, value, field.default)
    return secrets.clean(shlex.join(secrets.without(secrets.values({}, words), words)))


def _words(flag: str, value: Any, default: Any) -> list[str]:
    if isinstance(value, bool):
        turns_off = default is True
        return [flag if value != turns_off else opposite(flag)]
    if flag in ("--engine-args", "--engine-container-args"):
        return [f"{flag}={shlex.join(value)}"]
    if isinstance(value, dict):
        value = [f"{k}={v}" for k, v in value.items()]
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]


def in_keys(text: str) -> str:
    """Replace settings by the keys of a study's file, for `dyno run`."""
    parts = _QUOTED.split(text)  # every second one is quoted
    parts[::2] = [_FLAG.sub(_key, part) for part in parts[::2]]
    return "".join(parts)


def _key(match: "re.Match[str]") -> str:
    flag, value_follows = match[1], match[2]
    key = _keys().get(flag) or _keys().get(opposite(flag))
    if key is None:
        return match[0]
    if flag.startswith(("--no-", "--disable-")):
        return f"{key} = false{value_follows or ''}"
    return f"{key} = " if value_follows else key


# by where the command has its settings
WORDS: dict[str, Callable[[str], str]] = {"flags": str, "keys": in_keys}
