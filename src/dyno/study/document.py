"""A TOML text, and the line of each thing in it: a mistake is reported with its line."""

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from dyno import secrets
from dyno.errors import UsageError

Path = tuple[str | int, ...]

_MISTAKES, _LONGEST = 100, 2000  # reported at most; characters of one
_DOTTED = re.compile(  # tomllib takes the square of a dotted key's length
    r"""(?<![\w.-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50}"""
)

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)


class Mistakes:
    """Mistakes in settings, collected so that all are reported at once. Where each is, a subclass knows."""

    def __init__(self) -> None:
        self._mistakes: dict[tuple[int, str], Path] = {}
        self._unknown: set[Path] = set()

    def place(self, path: Path) -> tuple[int, str]:
        """Return the line of a path, by which mistakes are sorted, and its name."""
        raise NotImplementedError

    def report(self, sentences: list[str]) -> str:
        """Return the message of an error for these mistakes."""
        raise NotImplementedError

    def mistake(self, path: Path, text: str) -> None:
        """Collect it until `check` reports all of them at once."""
        line, where = self.place(path)
        text = text if len(text) <= _LONGEST else text[:_LONGEST] + " …"
        entry = (line, f"{where}: {text}" if where else text)
        self._mistakes[entry] = path  # once: the same cell is met in many trials
        if len(self._mistakes) >= _MISTAKES:
            self.check()

    def missing(
        self, path: Path, text: str, keys: Collection[str], tables: Collection[Path]
    ) -> None:
        """Collect that one of these keys is missing, unless one of them is wrong, or may be an unknown key there."""
        wrong = (p for p in self._mistakes.values() if p[:-1] in tables)
        if not any(p[-1] in keys or p in self._unknown for p in wrong):
            self.mistake(path, text)

    def unknown_key(self, path: Path, known: list[str]) -> None:
        self._unknown.add(path)
        self.mistake(path, f"unknown key. {_hint(str(path[-1]), known)}")

    def unknown(self, path: Path, word: Any, known: list[str], noun: str) -> None:
        """Collect that the value at the path names nothing."""
        self.mistake(path, f"there is no {noun} {word!r}. {_hint(str(word), known)}")

    @property
    def mistaken(self) -> bool:
        return bool(self._mistakes)

    def check(self) -> None:
        if self._mistakes:
            raise UsageError(
                self.report([self.sentence(*m) for m in sorted(self._mistakes)])
            )

    def sentence(self, line: int, text: str) -> str:
        """Return a mistake as a sentence of the message."""
        return text


class TomlDocument(Mistakes):
    def __init__(self, text: str, name: str, after: str = " Nothing was started.") -> None:
        """`after`: what follows from a mistake, for the message."""
        super().__init__()
        self.text, self.name, self._after = text, name, after
        if deep := _DOTTED.search(text):
            line = 1 + text.count("\n", 0, deep.start())
            raise UsageError(
                f"{name}:{line}: this name has more than fifty parts. Shorten it."
            )
        try:
            self.tree: dict[str, Any] = tomllib.loads(text)
            secrets.learn(secrets.within(self.tree))  # a mistake quotes the file
        except RecursionError:
            raise UsageError(f"{name} is nested too deeply.") from None
        except ValueError as e:  # also of a number with thousands of digits
            raise UsageError(_syntax_error(name, text, str(e))) from None
        self._lines = _lines(text)

    def line(self, path: Path) -> int:
        """Return the line of the path, or of the nearest table around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def place(self, path: Path) -> tuple[int, str]:
        where = ".".join(f"#{p + 1}" if isinstance(p, int) else p for p in path)
        return self.line(path), where

    def sentence(self, line: int, text: str) -> str:
        return f"{self.name}:{line}: {text}"

    def report(self, sentences: list[str]) -> str:
        if len(sentences) == 1:
            return sentences[0] + self._after
        return "\n".join(
            [f"{self.name} has {len(sentences)} mistakes.{self._after}", *sentences]
        )


def near(word: str, known: list[str]) -> str | None:
    """Return the name that was probably meant."""
    word = word.lower().replace("-", "_")
    matches = get_close_matches(word, known, n=1, cutoff=0.6) or [
        name for name in known if word and word in name
    ]
    return matches[0] if matches else None


def _hint(word: str, known: list[str]) -> str:
    meant = near(word, known)
    return f"Did you mean {meant}?" if meant else f"Known: {', '.join(known) or 'none'}."


_ADVICE = {
    "Invalid value": "Text needs quotes",
    "Expected '=' after": "Write KEY = VALUE",
    "Unclosed": "Close it",
}


def _syntax_error(name: str, text: str, message: str) -> str:
    """Put tomllib's message into the form of the others: the file and the line first."""
    what, _, place = message.rstrip(")").partition(" (at ")
    line, column = place.removeprefix("line ").partition(", column ")[::2]
    where = f"{name}:{line if line.isdigit() else text.count(chr(10)) + 1}"
    advice = next(
        (f" {words}." for start, words in _ADVICE.items() if what.startswith(start)), ""
    )
    return f"{where}: not valid TOML: {what}{f' at column {column}' if column else ''}.{advice}"


def _lines(text: str) -> dict[Path, int]:
    lines: dict[Path, int] = {}
    table: Path = ()
    arrays: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _within(_parts(header[2]), arrays)
            if header[1] == "[[":
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            for end in range(1, len(table) + 1):
                lines.setdefault(table[:end], number)
        elif key := _KEY.match(line):
            parts = _parts(key[1])
            for end in range(1, len(parts) + 1):  # a dotted key is a table's line, too
                lines.setdefault((*table, *parts[:end]), number)
            # an inline table's keys
            for inner in re.finditer(r"[{,]\s*([A-Za-z0-9_-]+)\s*=", line[key.end() :]):
                lines.setdefault((*table, *parts, inner[1]), number)
    return lines


def _within(path: Path, arrays: dict[Path, int]) -> Path:
    """[include.engine] belongs to the last [[include]]."""
    out: Path = ()
    for part in path[:-1]:
        out = (*out, part)
        if out in arrays:
            out = (*out, arrays[out])
    return (*out, *path[-1:])


def _parts(dotted: str) -> Path:
    try:
        tree: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return (dotted,)
    parts: list[str] = []
    while isinstance(tree, dict):
        key, tree = next(iter(tree.items()))
        parts.append(key)
    return tuple(parts)


def as_toml(tables: Mapping[str, Any]) -> str:
    """Return tables as the text of a file. A value that TOML has no word for is an error."""
    plain = [f"{_name(k)} = {_value(v)}" for k, v in tables.items() if not _is_table(v)]
    parts = ["\n".join(plain)] if plain else []
    for name, value in tables.items():
        if _is_table(value):
            parts += _table_texts((name,), value)
    return "\n\n".join(parts) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _table_texts(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table and those inside it. From the second level on, tables are values."""
    inner = {k: v for k, v in table.items() if len(path) == 1 and _is_table(v)}
    plain = [f"{_name(k)} = {_value(v)}" for k, v in table.items() if k not in inner]
    if plain or not inner:
        yield "\n".join([f"[{'.'.join(map(_name, path))}]", *plain])
    for name, value in inner.items():
        yield from _table_texts((*path, name), value)


def _name(key: object) -> str:
    text = str(key)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _text(text)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)  # inf and nan, too
    if isinstance(value, str | os.PathLike):
        return _text(os.fspath(value))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_name(k)} = {_value(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise UsageError(
        f"A study has no value of the type {type(value).__name__}: {value!r}. Use numbers, text, lists and tables."
    )


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
