"""Flags made from the fields of a struct, and the fields made from flags again; readers of what follows a flag."""

import argparse
import json
import shlex
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from dyno import secrets
from dyno.errors import UsageError
from dyno.facts.limits import latency_ms
from dyno.facts.metric import ASKED, GOODPUT
from dyno.option import Field, Option, fields, without_none

# ---- from a field to a flag and back ----


class _Checked(argparse._StoreAction):
    """Refuses a number that is out of its option's range, or a text against its grammar. Other words are those that
    the field takes beside numbers."""

    def __init__(self, *args: Any, option: Option, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.option = option

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        if why := self.option.problem(values):
            note = self.option.note if why.startswith("must be above") else ""
            shown = "" if isinstance(values, str) else f"{note}, but is {values:g}"
            raise UsageError(f"{self.option_strings[0]} {why}{shown}.")
        super().__call__(parser, namespace, values, option_string)


class _CheckedList(_Checked):
    """Takes several numbers, with commas or spaces between, and refuses one that is out of range."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        each = list(dict.fromkeys(value for part in values for value in part))
        if self.option.least is not None or self.option.above is not None:
            for value in each:
                super().__call__(parser, namespace, value, option_string)
        setattr(namespace, self.dest, each)


def add_list(
    group: argparse._ActionsContainer, struct: Any, name: str, **changes: Any
) -> None:
    """Add the flag of a field as one that takes several values."""
    field = fields(struct)[name]
    kind = without_none(field.hint)
    kind = get_args(kind)[0] if get_origin(kind) is list else kind

    def read(text: str) -> list[Any]:
        return [kind(word) for word in text.split(",")]

    read.__name__ = kind.__name__  # argparse names it where a text can't be read
    _add(
        group,
        field,
        {
            "nargs": "+",
            "type": read,
            "action": _CheckedList,
            "option": field.option,
            **changes,
        },
    )


def command(options: argparse.Namespace, *more: str) -> str:
    """Return the command as it was given, for the shell, without secrets."""
    words = ["dyno", *options.words, *more]
    return secrets.clean(shlex.join(secrets.without(secrets.values({}, words), words)))


def add(
    group: argparse._ActionsContainer,
    struct: Any,
    *names: str,
    also: str = "",
    **changes: Any,
) -> None:
    """Add the flags of these fields, or of all that have one. `also`: another name; `changes`: for argparse."""
    for field in [fields(struct)[name] for name in names] or _flagged(struct):
        _add(group, field, {"flags": f"{field.option.flags} {also}", **changes})


def add_rest(group: argparse._ActionsContainer, struct: Any) -> None:
    """Add the flags of those fields of a struct that the group lacks."""
    for field in _flagged(struct):
        if field.option.flags.split()[0] not in group._option_string_actions:
            _add(group, field, {})


def _flagged(struct: Any) -> Iterator[Field]:
    """Yield the fields that have a flag, also those of structs within."""
    for field in fields(struct).values():
        if field.option.flags:
            yield field
        elif isinstance(kind := without_none(field.hint), type) and issubclass(
            kind, msgspec.Struct
        ):
            yield from _flagged(kind)


def number(
    group: argparse._ActionsContainer, kind: type, option: Option, default: Any = None
) -> None:
    """Add a flag that no field declares: one of several that set it, or of the command alone."""
    _add(group, Field("", kind, option, default), {})


def _add(group: argparse._ActionsContainer, field: Field, changes: dict[str, Any]) -> None:
    option, kind, default = field.option, without_none(field.hint), field.default
    arguments: dict[str, Any] = {
        "metavar": option.metavar,
        "help": option.help,
        "default": _default(field),
    }
    if kind is bool:
        switch = "store_false" if default else "store_true"
        arguments |= {
            "action": argparse.BooleanOptionalAction if default is None else switch
        }
        del arguments["metavar"]
    elif get_origin(kind) is Literal:
        arguments |= {"choices": get_args(kind)}
    elif get_origin(kind) in (list, dict):
        arguments |= {"action": {None: "append", "+": "extend", "*": "store"}[option.nargs]}
        if option.nargs:
            arguments |= {"nargs": option.nargs}
    elif kind is str and option.grammar:
        arguments |= {"action": _Checked, "option": option}
    elif kind is not str:
        arguments |= {"type": _number_or_word(kind), "action": _Checked, "option": option}
    names = changes.pop("flags", option.flags).split()
    group.add_argument(*names, **{**arguments, **changes})


def _number_or_word(kind: Any) -> Any:
    """Return a reader of `int | Literal["auto"]`; other types are their own."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    number_kind, words = get_args(kind)

    def read(text: str) -> Any:
        return text if text in get_args(words) else number_kind(text)

    read.__name__ = number_kind.__name__  # argparse names it where a text can't be read
    return read


def _default(field: Field) -> Any:
    """Return the flag's default: the pairs of a dict are a list of texts."""
    return [] if field.default == {} else field.default


def _dest(field: Field) -> str:
    """Return the name that argparse gives it."""
    return field.option.flags.split()[0].lstrip("-").replace("-", "_")


def values(o: argparse.Namespace, struct: Any) -> dict[str, Any]:
    """Return the fields that this command has flags for, without those that were not given."""
    out = {}
    for field in fields(struct).values():
        value = getattr(o, _dest(field), None) if field.option.flags else None
        if value is not None:
            is_dict = get_origin(without_none(field.hint)) is dict
            out[field.name] = pairs(value, field.option.flags) if is_dict else value
    return out


def given(o: argparse.Namespace, struct: Any) -> list[str]:
    """Return the flags of a struct that were used."""
    used = (f for f in _flagged(struct) if getattr(o, _dest(f), _default(f)) != _default(f))
    return [f.option.flags.split()[0] for f in used]


def given_values(o: argparse.Namespace, struct: Any) -> dict[str, Any]:
    """Return the fields of a struct whose flags were used, with what was given."""
    declared = [f for f in fields(struct).values() if f.option.flags]
    used = ((f, getattr(o, _dest(f), None)) for f in declared)
    return {
        f.name: value for f, value in used if value is not None and value != _default(f)
    }


# ---- flags of other tools ----


class _Refused(argparse.Action):
    """Takes all that follows it, so that its value isn't read as something else."""

    def __init__(
        self, option_strings: list[str], dest: str, reason: str, **rest: Any
    ) -> None:
        super().__init__(
            option_strings, dest, nargs="*", default=[], help=argparse.SUPPRESS, **rest
        )
        self.reason = reason

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        namespace.refused = [*namespace.refused, f"{option_string}: {self.reason}"]


def add_refused(p: argparse.ArgumentParser, reasons: Mapping[str, str]) -> None:
    """Add flags that dyno knows by name and refuses. `reasons`: reason → flags, with spaces between."""
    for reason, flags in reasons.items():
        for flag in flags.split():
            p.add_argument(flag, action=_Refused, dest="refused", reason=reason)


def check_refused(options: argparse.Namespace) -> None:
    if options.refused:
        raise UsageError(" ".join(options.refused))


class _Ignored(argparse.Action):
    """Notes that it was given. `reason`: why it changes nothing."""

    def __init__(self, *args: Any, reason: str, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.reason = reason

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        namespace.ignored = [*getattr(namespace, "ignored", []), option_string]


def add_ignored(
    p: argparse._ActionsContainer, *flags: str, reason: str = "", nargs: int | None = 0
) -> None:
    """Add flags of other tools that change nothing here. `nargs`: 0 for a switch, None for one value."""
    for names in flags:
        p.add_argument(
            *names.split(),
            action=_Ignored,
            reason=reason,
            dest="ignored",
            nargs=nargs,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def report_ignored(names: Iterable[str]) -> None:
    """Print which of the flags that were given change nothing."""
    if each := list(dict.fromkeys(names)):
        verb = "has" if len(each) == 1 else "have"
        print(
            f"dyno: {', '.join(each)} {verb} no effect (accepted for compatibility).",
            file=sys.stderr,
        )


def refuse(condition: Any, message: str) -> None:
    if condition:
        raise UsageError(message)


# ---- what follows a flag ----


def sized(text: str) -> int:
    """Read 500M, 20G, or bytes, for argparse."""
    number, unit = text, ""
    if text[-1:].isalpha():
        number, unit = text[:-1], text[-1].upper()
    try:
        size = int(float(number) * 1024 ** ("", "K", "M", "G", "T").index(unit))
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size. Write bytes, or 500M, 20G."
        )
    return size


def metrics(text: str) -> list[str]:
    asked = [m.strip() for m in text.split(",") if m.strip()]
    for name in asked:
        if name not in ASKED:
            raise UsageError(
                f"--percentile-metrics: no latency named {name!r}. Known: {', '.join(ASKED)}."
            )
    return [name for name in ASKED if name in asked]


def percentiles(text: str) -> list[float]:
    try:
        values = [float(p) for p in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--metric-percentiles {text!r} is not a list of numbers. Write them with commas, such as 50,90,99."
        ) from None
    return sorted(set(values))


def goodput(pairs: list[str]) -> dict[str, float]:
    """Read --goodput: ttft:500, ttft:500ms or e2el:2s, in milliseconds by name."""
    targets = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        limit = latency_ms(value, f"--goodput {pair!r}")
        if name not in GOODPUT:
            raise UsageError(
                f"--goodput {pair!r}: no latency named {name!r}. Known: {', '.join(GOODPUT)}."
            )
        targets[name] = limit
    return targets


def pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # The text itself may be a key: it isn't repeated here.
            raise UsageError(f"{flag} takes KEY=VALUE, but one of its values has no '='.")
        pairs[name.strip()] = value.strip()
    return pairs


def json_object(text: str | None, flag: str = "--extra-body") -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as e:
        raise UsageError(
            f"{flag} is not valid JSON: {e}. Quote it as '{{\"key\": 1}}'."
        ) from None
    if not isinstance(value, dict):
        raise UsageError(f"{flag} must be a JSON object, such as '{{\"min_tokens\": 1}}'.")
    return value


def range_ratio(text: str) -> tuple[float, float]:
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            value = {"input": value, "output": value}
        ratios = float(value["input"]), float(value["output"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f'--random-range-ratio {text!r} is not a number. Write 0 to below 1, or {{"input": R, "output": R}}.'
        ) from None
    if not all(0 <= r < 1 for r in ratios):
        raise UsageError(f"--random-range-ratio must be from 0 to below 1, but is {text}.")
    return ratios


def shell_words(texts: list[str], flag: str) -> list[str]:
    try:
        return [word for text in texts for word in shlex.split(text)]
    except ValueError as e:
        raise UsageError(f"{flag}: {e}. Quote it as for a shell.") from None
