"""Writes dyno/api/keys.py from the declared settings. `test_keys.py` holds the file to them."""

import types
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from dyno.api import keywords
from dyno.option import declared

HEAD = '''"""The keywords of dyno's functions, for type checkers and editors. `make docs-reference` makes them anew.

Each is a key of a study, and docs/reference/study-keys.md has them all.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict
'''
TITLES = {
    keywords.SERVE: "ServeKeys",
    keywords.FIND: "FindKeys",
    keywords.THROUGHPUT: "ThroughputKeys",
    keywords.LATENCY: "LatencyKeys",
    keywords.MICRO: "MicroKeys",
}


def text() -> str:
    every = {title: keywords.names(function) for function, title in TITLES.items()}
    shared = {
        n: h for n, h in every["ServeKeys"].items() if all(n in e for e in every.values())
    }
    of_servers = {
        n: h
        for n, h in every["FindKeys"].items()
        if n in every["ServeKeys"] and n not in shared
    }
    parts = [
        HEAD,
        _class(
            "EngineKeys",
            "TypedDict, total=False",
            "The engine, and what all benchmarks have.",
            shared,
        ),
        _class(
            "ServerKeys", "EngineKeys, total=False", "A server, and prompts.", of_servers
        ),
    ]
    for function, title in TITLES.items():
        served = function in (keywords.SERVE, keywords.FIND)
        base = "ServerKeys" if served else "EngineKeys"
        above = {*shared, *(of_servers if served else ())}
        own = {n: h for n, h in every[title].items() if n not in above}
        parts.append(
            _class(title, f"{base}, total=False", f"Keywords of `dyno.{function}`.", own)
        )
    return "\n\n".join(parts)


def _class(title: str, bases: str, about: str, hints: dict[str, Any]) -> str:
    lines = [f"class {title}({bases}):", f'    """{about}"""', ""]
    for name, hint in hints.items():
        kind, option = declared(hint)
        lines.append(f"    {name}: {written(kind)}")
        if option.help:
            lines.append(f'    """{option.help.replace(chr(34), chr(39))}"""')
    return "\n".join(lines) + "\n"


def written(hint: Any) -> str:
    """A type as it is written. What is a table in a study is a mapping."""
    hint, _ = declared(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(written(part) for part in inner)
    if origin is Literal:
        return f"Literal[{', '.join(repr(v).replace(chr(39), chr(34)) for v in inner)}]"
    if origin is list:
        return f"list[{written(inner[0])}]"
    if origin is dict:
        values = written(inner[1])
        return f"Mapping[{written(inner[0])}, {values}]"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "Mapping[str, Any]"
    if isinstance(hint, str) or hint is Any:
        return "Any" if hint is Any else "Mapping[str, Any]"
    return "None" if hint is type(None) else hint.__name__
