"""The settings of a trial, as the fields of its specs declare them (option.py). They decide which results are repeats.

A field is part of what was measured unless its declaration says `identity=False`: a new one needs no line elsewhere.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from dyno.facts.load import Scalar
from dyno.facts.setting import SETTINGS, name_of
from dyno.facts.trial import TrialSpec
from dyno.option import Field, fields, without_none

# The specs of a trial.
PARTS: tuple[type[msgspec.Struct], ...] = tuple(
    part
    for field in fields(TrialSpec).values()
    if isinstance(part := without_none(field.hint), type)
    and issubclass(part, msgspec.Struct)
)


def spec_fields() -> Iterator[tuple[type[msgspec.Struct], Field]]:
    """Yield all fields of a trial and of its specs, each with its spec."""
    specs: list[type[msgspec.Struct]] = [TrialSpec, *PARTS]
    for spec in specs:
        for field in fields(spec).values():
            if without_none(field.hint) not in PARTS:
                yield spec, field


# Settings of a result that are not part of what was measured: seed, percentiles, the server's address.
ASIDE = frozenset(
    name
    for _, f in spec_fields()
    if not f.option.identity
    and ((name := name_of(f)) in SETTINGS or name == f.option.setting)
)
# Names of settings that no comparison is about.
NOT_A_SUBJECT = frozenset(name_of(f) for _, f in spec_fields() if not f.option.subject)


def settings_of(spec: msgspec.Struct) -> dict[str, Scalar]:
    """Return the settings of one spec by their names in a result: those that results share, and all that were set."""
    out: dict[str, Scalar] = {}
    for field in fields(type(spec)).values():
        name, value = name_of(field), getattr(spec, field.name)
        if isinstance(value, PARTS):
            continue  # has settings of its own
        shared = name in SETTINGS
        wanted = (
            shared
            or field.option.always
            or (field.option.identity and value != field.default)
        )
        if wanted and value is not None:
            out[name] = _as_given(name, value, field.default)
    return out


def _as_given(name: str, value: Any, default: Any) -> Scalar:
    """Return the value in the flag's own sense: of a switch that turns something off, --no-oversample is True."""
    if isinstance(value, bool) and default is True and name.startswith("--"):
        return not value
    return value if isinstance(value, str | int | float | bool) else describe(value)


def describe(value: Any) -> str:
    """Describe a value in one line, with all that distinguishes it from another."""
    if isinstance(value, list):
        return ",".join(map(describe, value)) or "none"
    if isinstance(value, dict):
        return "; ".join(f"{key}={describe(v)}" for key, v in value.items()) or "none"
    if isinstance(value, msgspec.Struct):
        return getattr(value, "words", None) or described(value)
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


def described(spec: msgspec.Struct) -> str:
    """Describe what isn't a default: 'request_rate_rps=2 input_len=512'."""
    own = (f for f in fields(type(spec)).values() if f.option.identity)
    values = {f.name: value for f in own if (value := getattr(spec, f.name)) != f.default}
    return " ".join(f"{name}={describe(value)}" for name, value in values.items())
