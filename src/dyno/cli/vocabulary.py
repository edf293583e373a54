"""A setting has a flag on the command line and a key in a study: a message uses the word of where the user is.

Below this room a message uses either. A key is recognized by an underscore, `backticks`, or a value: key = 'value'.
"""

import functools
import re
import shlex
from collections.abc import Callable
from typing import Any

from dyno import secrets
from dyno.facts.client import ClientSpec
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.rules import Mistake
from dyno.facts.trial import TrialSpec
from dyno.option import fields, opposite
from dyno.transport import Transport
from dyno.workload.spec import WorkloadSpec

_STRUCTS = {
    "engine": (EngineSpec, Transport), "engine.container": (ContainerSpec,), "load": (LoadSpec, OfflineSpec),
    "workload": (WorkloadSpec,), "trial": (TrialSpec, ClientSpec),
}  # fmt: skip
_OTHERS = {  # flags that no field declares; of several for one key, the first is used for it
    "--model": "engine.model", "--served-model-name": "engine.served_name", "--base-url": "engine.base_url",
    "--backend": "engine.backend", "--endpoint": "engine.endpoint", "--header": "engine.api_key_env",
    "--random-input-len": "workload.input_len", "--input-len": "workload.input_len",
    "--random-output-len": "workload.output_len", "--output-len": "workload.output_len",
    "--sharegpt-output-len": "workload.output_len", "--custom-output-len": "workload.output_len",
    "--random-range-ratio": "workload.range_ratio_input", "--metric-percentiles": "trial.percentiles",
    "--self-timed": "load.arrivals", "--goodput": "trial.goodput_ms", "--extra-body": "trial.extra_body",
}  # fmt: skip
# In no command of a setting.
_PLAIN = {"seed", "num_warmups", "percentiles", "kind", "weights", "goodput_ms", "reset_cache"}
_QUOTED = re.compile(r'("[^"\n]*"|Known: [^.]*)')  # words of a server or an engine; names that it knows


@functools.cache
def _keys() -> dict[str, str]:
    """Flag → key, with its section."""
    known = {}
    for section, structs in _STRUCTS.items():
        for field in (f for struct in structs for f in fields(struct).values() if f.option.flags):
            known[field.option.flags.split()[0]] = f"{section}.{field.name}"
    return {**known, **_OTHERS}


@functools.cache
def _flags() -> dict[str, str]:
    """Key without its section → flag."""
    known: dict[str, str] = {}
    for flag, key in _keys().items():
        known.setdefault(key.removeprefix("engine.container.") if "container" in key else key.partition(".")[2], flag)
    return known


def flag(field: str) -> str:
    """Return the flag of a setting."""
    return "--class" if field == "classes" else _flags()[field]


def sentence(mistake: Mistake) -> str:
    """Return a broken rule as a sentence that begins with the flag."""
    table = f" {mistake.inside}" if mistake.inside else ""
    return f"{flag(mistake.rule.setting)}{table} {mistake.text(flag)}"


def command(trial: TrialSpec) -> str:
    """The `dyno bench serve` that measures this setting of an engine at this load."""
    words = ["dyno", "bench", "serve"]
    for section in (trial.engine, trial.engine and trial.engine.container, trial.workload, trial.load, trial):
        if isinstance(section, EngineSpec):
            words += ["--engine", section.kind]
        for field in fields(type(section)).values() if section is not None else ():
            value, flag = getattr(section, field.name), _flags().get(field.name)
            implied = field.name in _PLAIN or (field.name == "ignore_eos" and trial.workload.traits.endless)
            if flag and value != field.default and not implied:
                words += _words(flag, value)
    return secrets.clean(shlex.join(secrets.without(secrets.values({}, words), words)))


def _words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value != flag.startswith("--no-") else opposite(flag)]
    if flag in ("--engine-args", "--engine-container-args"):
        return [f"{flag}={shlex.join(value)}"]
    if isinstance(value, dict):
        value = [f"{k}={v}" for k, v in value.items()]
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]


def in_keys(text: str) -> str:
    """For `dyno run`: the keys of its file."""
    text = re.sub(r"--base-url or --host(?:/--port)?", "--base-url", text)
    return _outside_quotes(
        text, lambda part: re.sub(r"(?<![\w-])(?<!has no )--[a-z]+(?:-[a-z]+)*(?![\w-])", _key, part)
    )


def _key(match: "re.Match[str]") -> str:
    flag = match[0]
    if (positive := flag.replace("--no-", "--", 1)) != flag and positive in _keys():
        return f"{_keys()[positive]} = false"
    return _keys().get(flag, flag)


def in_flags(text: str) -> str:
    """For a command whose settings are flags."""
    names = "|".join(sorted(_flags(), key=len, reverse=True))
    snake = "|".join(name for name in sorted(_flags(), key=len, reverse=True) if "_" in name)
    section = r"(?:(?:engine|container|load|workload|trial)\.)?"
    patterns = {
        rf"(?<![\w.$/-]){section}({names}) = ('[^']*'|[^\s,;:)]*[^\s,;:).])": lambda m: (
            f"{_flags()[m[1]]} {m[2]}".replace(" []", " without a number")
        ),
        rf"`{section}({names})`": lambda m: _flags()[m[1]],
        rf"(?<![\w.$/'-]){section}({snake})(?![\w'=/-])": lambda m: _flags()[m[1]],
    }

    def translated(part: str) -> str:
        for pattern, replace in patterns.items():
            part = re.sub(pattern, replace, part)
        return part

    return _outside_quotes(text, translated)


def _outside_quotes(text: str, translate: Callable[[str], str]) -> str:
    return "".join(part if i % 2 else translate(part) for i, part in enumerate(_QUOTED.split(text)))


WORDS: dict[str, Callable[[str], str]] = {"flags": in_flags, "keys": in_keys}
