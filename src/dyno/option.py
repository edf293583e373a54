"""A field is declared once, at its struct: flags, range checks, study keys and SQL columns are made from that.

    completed: Annotated[int, "requests"]
    max_num_seqs: Annotated[int | None, Option("--max-num-seqs", "N", "requests at once", least=1)] = None

Bounds are checked where a setting is given, not where it is read back: runs of older versions stay readable.
"""

import contextlib
import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin

from dyno.numbers import count

if TYPE_CHECKING:  # it costs `dyno --help` a third of its time
    import msgspec


class Option(NamedTuple):
    # names with spaces between, the first for messages; '': no flag is made from it
    flags: str = ""
    metavar: str | None = None
    help: str | None = None
    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float = math.inf
    unlimited: bool = False  # inf is beyond `most`, and means: no limit
    words: str = ""  # about its range, in place of the usual ones
    note: str = ""  # to a flag's message that the value must be above something
    # of a list; None: one value for each time that the flag is given
    nargs: str | None = None
    # of a text, which may be a number in a study: why it is wrong
    grammar: Callable[[str], str | None] | None = None
    # its name among a result's settings, where that is neither the field's nor the flag's
    setting: str = ""
    # part of what was measured: two results that differ in it are not repeats
    identity: bool = True
    always: bool = False  # among a result's settings also where it has its default
    # False: how much was measured, or how it was counted; no comparison is about it
    subject: bool = True
    added: str = ""  # flags that commands add for it by hand, the first for messages

    @property
    def flag(self) -> str:
        """Its name in messages: a flag; '' where it is a key of study files alone."""
        return (self.flags or self.added).partition(" ")[0]

    def problem(self, value: float | str) -> str | None:
        """Why this isn't a value for it, in words that follow its name."""
        if isinstance(value, str):
            return self.grammar(value) if self.grammar else None
        if self.least is not None and not value >= self.least:
            why = f"must be at least {count(self.least)}"
        elif self.above is not None and not value > self.above:
            why = f"must be above {count(self.above)}"
        elif value > self.most and not (self.unlimited and value == math.inf):
            why = f"must be at most {count(self.most)}"
        elif self.below is not None and not value < self.below:
            why = f"must be below {count(self.below)}"
        else:
            return None
        return self.words or why


class Field(NamedTuple):
    name: str
    hint: Any  # its type, without the rest of an annotation
    option: Option
    default: Any  # None also where there is none


@functools.cache
def fields(struct: "type[msgspec.Struct]") -> dict[str, Field]:
    import msgspec

    out = {}
    for f in msgspec.structs.fields(struct):
        default = (
            f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory()
        )
        out[f.name] = Field(
            f.name, *declared(f.type), None if default is msgspec.NODEFAULT else default
        )
    return out


def declared(hint: Any) -> tuple[Any, Option]:
    """A type, and what its annotation declares."""
    if get_origin(hint) is not Annotated:
        return hint, Option()
    kind, *notes = get_args(hint)
    return kind, next((note for note in notes if isinstance(note, Option)), Option())


def problems(value: "msgspec.Struct") -> Iterator[str]:
    """Yield why a field's value is out of its range, each beginning with the field's name."""
    for field in fields(type(value)).values():
        given = getattr(value, field.name)
        if (
            isinstance(given, int | float | str)
            and not isinstance(given, bool)
            and (why := field.option.problem(given))
        ):
            yield f"{field.name} {why}, but is {given}"


def without_none(hint: Any) -> Any:
    """`int` of `int | None`."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return functools.reduce(
        lambda a, b: a | b, [part for part in get_args(hint) if part is not type(None)]
    )


def sentences(struct: "type[msgspec.Struct]") -> dict[str, str]:
    """The field's name in a file → the sentence about it, of those that have one."""
    import msgspec

    described = msgspec.structs.fields(struct)
    return {
        f.encode_name: word
        for f in described
        for word in get_args(f.type)[1:]
        if isinstance(word, str)
    }


_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def switches(
    words: Sequence[str], known: Callable[[str], bool]
) -> Iterator[tuple[str, bool | None]]:
    """Yield the words of a command line, and whether a boolean flag is on: --x, --x False, --x=0.

    None: another word, or a boolean flag with a value that can't be read. `known`: whether a name is a boolean flag."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not known(name):
            yield word, None
            continue
        if not equals:
            value = rest.pop(0) if rest and rest[0].lower() in _TRUTH else "true"
        on = _TRUTH.get(value.lower())
        yield (word, None) if on is None else (name, on)


def opposite(flag: str) -> str:
    """--no-x of --x, and --x of --no-x."""
    return (
        flag.replace("--no-", "--", 1)
        if flag.startswith("--no-")
        else flag.replace("--", "--no-", 1)
    )


# ---- the name of a setting in a message ----

_NO_VALUE = object()
_keys: Mapping[str, str] = {}  # flag → key, where the user has a study


@contextlib.contextmanager
def named_by(keys: Mapping[str, str]) -> Iterator[None]:
    """While it lasts, messages name these settings by their keys: flag → key. {}: all by their flags."""
    global _keys
    before, _keys = _keys, keys
    try:
        yield
    finally:
        _keys = before


def names() -> dict[str, str]:
    """Return the keys by which messages name settings, for a process that makes messages for this one."""
    return dict(_keys)


def setting_name(flag: str, value: Any = _NO_VALUE) -> str:
    """Name a setting in a message as the user gives it: --dtype 'half', and in a study engine.dtype = 'half'."""
    key = _keys.get(flag) or _keys.get(opposite(flag))
    given = "" if value is _NO_VALUE else repr(value)
    if key is None:
        return f"{flag} {given}".rstrip()
    if flag.startswith(("--no-", "--disable-")):
        given = "false"
    return f"{key} = {given}" if given else key


def as_given(struct: "type[msgspec.Struct]", name: str, value: Any) -> str:
    """Name a setting in a message, by its field, with its value."""
    flag = fields(struct)[name].option.flag
    if isinstance(value, bool):
        return setting_name(flag if value else opposite(flag))
    return setting_name(flag, value)


def with_names(text: str) -> str:
    """Fill in the settings of a text of a table: 'Lower {--max-model-len}.'"""
    return text.format_map(_Names())


class _Names(dict[str, str]):
    def __missing__(self, flag: str) -> str:
        return setting_name(flag)
