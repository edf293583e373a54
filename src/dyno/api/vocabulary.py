"""A setting has a flag on the command line and a key in a study: the table of both, and commands made of settings.

A message asks for the name of a setting (`option.setting_name`). Where the user has a study, `main` gives this table.
"""

import functools
import shlex
from typing import Any

from dyno import secrets
from dyno.facts.engine import EngineSpec
from dyno.facts.rules import Mistake
from dyno.facts.trial import TrialSpec
from dyno.option import fields, opposite
from dyno.study.cells import keys_of_flags

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


def keys() -> dict[str, str]:
    """Return flag → key of a study, with its section."""
    return keys_of_flags()


@functools.cache
def _flags() -> dict[str, str]:
    """Return key without its section → flag."""
    known: dict[str, str] = {}
    for flag, key in keys().items():
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
                words += _flag_words(flag, value, field.default)
    return secrets.clean(shlex.join(secrets.without(secrets.values({}, words), words)))


def _flag_words(flag: str, value: Any, default: Any) -> list[str]:
    if isinstance(value, bool):
        turns_off = default is True
        return [flag if value != turns_off else opposite(flag)]
    if flag in ("--engine-args", "--engine-container-args"):
        return [f"{flag}={shlex.join(value)}"]
    if isinstance(value, dict):
        value = [f"{k}={v}" for k, v in value.items()]
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]
