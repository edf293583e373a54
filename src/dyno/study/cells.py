"""The cells of a study's tables: which keys a table has, what a key takes, and whether a value is a list of choices."""

import functools
import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from dyno import secrets
from dyno.facts.client import ClientSpec
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.find import TARGET, FindSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.recipe import ModelRecipe
from dyno.facts.trial import TrialSpec
from dyno.numbers import count
from dyno.option import Option, declared, fields
from dyno.study.document import Mistakes, Path
from dyno.transport import Transport
from dyno.workload.spec import WorkloadSpec

Hints = dict[str, Any]


def hints(struct: type[msgspec.Struct], *but: str) -> Hints:
    """Return the type and bounds of each field."""
    return {f.name: f.type for f in msgspec.structs.fields(struct) if f.name not in but}


MODEL: Hints = {f.encode_name: f.type for f in msgspec.structs.fields(ModelRecipe)}
SERVING = hints(LoadSpec, "seed")
OFFLINE = hints(OfflineSpec, "kind")
# The flags of `dyno find` without dashes. A time may be text: "20m".
FIND: Hints = {"target": Annotated[list[str], TARGET]}
for _field in fields(FindSpec).values():
    if _field.option.flags:
        _hint = _field.hint | str if _field.name.endswith("_s") else _field.hint
        FIND[_field.option.flags.removeprefix("--")] = Annotated[_hint, _field.option]
TRANSPORT = hints(Transport, "proxy")
CLIENT = hints(ClientSpec)
# Fields of a trial that are tables of their own, or follow from these.
_OF_ANOTHER_TABLE = (
    "target", "workload", "load", "engine", "client", "offline", "quality", "find", "kind", "label", "reset_cache",
)  # fmt: skip

# What a cell of each section takes. The engine's are the words of `--engine`, and of `engine.json`.
CELLS: dict[str, Hints] = {
    "engine": {
        **hints(EngineSpec, "weights"),
        **TRANSPORT,
        "base_url": Annotated[
            str | list[str],
            Option(
                help="address of a running server; a list: copies of it", added="--base-url"
            ),
        ],
        "api_key_env": Annotated[
            str,
            Option(help="environment variable with the server's API key", added="--header"),
        ],
        "backend": Annotated[
            str,
            Option(
                help="protocol of the server (default: the engine's)", added="--backend"
            ),
        ],
        "endpoint": Annotated[
            str,
            Option(help="path of the route (default: the backend's)", added="--endpoint"),
        ],
    },
    "workload": hints(WorkloadSpec),
    "load": {
        "kind": Annotated[
            Literal["serve", "throughput", "latency", "micro"],
            Option(help="benchmark (default: serve)"),
        ],
        **SERVING,
        **OFFLINE,
        # These go before the workload's: how many are sent often depends on how fast.
        **{
            name: hints(WorkloadSpec)[name]
            for name in ("num_prompts", "num_sessions", "num_warmups")
        },
        "requests_per_stream": Annotated[
            float,
            Option("", None, "num_prompts = this × max_concurrency", above=0, most=1e7),
        ],
    },
    "trial": {
        **hints(TrialSpec, *_OF_ANOTHER_TABLE),
        **CLIENT,
        "cache": Annotated[
            Literal["empty", "keep"],
            Option(
                help="prefix cache before each trial (default: empty)",
                added="--reset-prefix-cache",
            ),
        ],
    },
}


@functools.cache
def keys_of_flags() -> dict[str, str]:
    """Return flag → key of a study, with its section."""
    known: dict[str, str] = {}
    for section, cells in {**CELLS, "engine.container": hints(ContainerSpec)}.items():
        for name, annotated in cells.items():
            _, option = declared(annotated)
            for flag in f"{option.flags} {option.added}".split():
                known.setdefault(flag, f"{section}.{name}")
    return known


def choices(hint: Any, value: Any) -> list[Any] | None:
    """Return the values of a list that spans several trials; None where it is one value."""
    hint, _ = declared(hint)
    if not isinstance(value, list):
        return None
    if _takes_list(hint):
        return value if value and all(isinstance(v, list) for v in value) else None
    return value


def _takes_list(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_takes_list(part) for part in get_args(hint))
    return get_origin(hint) is list


def converted(document: Mistakes, path: Path, hint: Any, value: Any) -> Any:
    """Convert a value to its key's type. A wrong one is a mistake at the path."""
    name, (hint, option) = str(path[-1]), declared(hint)
    if _too_large(value):
        document.mistake(path, "contains a whole number beyond 64 bits.")
        return None
    try:
        value = msgspec.convert(
            _number_as_text(value) if option.grammar else _as_text(hint, value), type=hint
        )
    except msgspec.ValidationError as e:
        inside = str(e).partition(" - at `$.")[2].strip("`")
        shown = repr(secrets.public(value, name))
        document.mistake(
            path,
            f"must be {_type_words(hint)}, but is {shown}{f' (at {inside})' if inside else ''}.",
        )
        return None
    if isinstance(value, str) and (why := option.problem(value)):
        document.mistake(path, f"{why}.")
        return None
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (why := option.problem(value))
    ):
        document.mistake(
            path, f"{why}, but is {value if math.isnan(value) else count(value)}."
        )
        return None
    return value


def _too_large(value: Any) -> bool:
    """Return whether it holds a whole number beyond 64 bits, which JSON readers and DuckDB don't take."""
    if isinstance(value, list | dict):
        return any(map(_too_large, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def _as_text(hint: Any, value: Any) -> Any:
    """Turn numbers into text among a command's words and the values of its environment."""
    if isinstance(value, list) and hint == list[str]:
        return [_number_as_text(v) for v in value]
    if isinstance(value, dict) and hint == dict[str, str]:
        return {k: _number_as_text(v) for k, v in value.items()}
    if isinstance(value, dict) and get_origin(hint) is dict:
        return {k: _cells_as_text(get_args(hint)[1], v) for k, v in value.items()}
    return value


def _cells_as_text(kind: Any, cells: Any) -> Any:
    """Turn the numbers of a table into text where its keys have a grammar, as those of a workload."""
    if not isinstance(cells, dict) or not hasattr(kind, "__struct_fields__"):
        return cells
    grammars = {name for name, field in fields(kind).items() if field.option.grammar}
    return {k: _number_as_text(v) if k in grammars else v for k, v in cells.items()}


def _number_as_text(value: Any) -> Any:
    return (
        str(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
    )


def _type_words(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(
            _type_words(part) for part in get_args(hint) if part is not type(None)
        )
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is list:
        inner = get_args(hint)[0]
        return (
            "a list of text in quotes"
            if inner is str
            else f"a list of {_type_words(inner).removeprefix('a ')}s"
        )
    simple = {
        int: "a whole number",
        float: "a number",
        str: "text in quotes",
        bool: "true or false",
    }
    return simple.get(hint, "a table")
