"""A TOML text, and the line of each thing in it: a mistake is reported with its line."""

import re
import tomllib
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
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")


class TomlDocument:
    def __init__(self, text: str, name: str, so: str = ", and nothing was started") -> None:
        """`so`: what follows from a mistake, for the message."""
        self.text, self.name, self._so = text, name, so
        if deep := _DOTTED.search(text):
            line = 1 + text.count("\n", 0, deep.start())
            raise UsageError(f"{name}, line {line}: a name of more than fifty parts. No table of it needs that.")
        try:
            self.tree: dict[str, Any] = tomllib.loads(text)
            secrets.learn(secrets.within(self.tree))  # a mistake quotes the file
        except RecursionError:
            raise UsageError(f"{name} is nested too deep: no table of it needs that.") from None
        except ValueError as e:  # also of a number with thousands of digits
            raise UsageError(f"{name} is no TOML: {e}.") from None
        self._lines = _lines(text)
        self._mistakes: dict[tuple[int, str], None] = {}

    def line(self, path: Path) -> int:
        """The line of the path, or of the nearest table around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def mistake(self, path: Path, text: str) -> None:
        """Collect it until `check` reports all of them at once."""
        where = ".".join(f"#{p + 1}" if isinstance(p, int) else p for p in path)
        text = text if len(text) <= _LONGEST else text[:_LONGEST] + " …"
        entry = (self.line(path), f"{where}: {text}" if where else text)
        self._mistakes[entry] = None  # once: the same cell is met in many trials
        if len(self._mistakes) >= _MISTAKES:
            self.check()

    def unknown(self, path: Path, known: list[str], what: str = "setting") -> None:
        word = str(path[-1])
        word = word.lower().replace("-", "_")
        near = get_close_matches(word, known, n=1, cutoff=0.6) or [name for name in known if word in name]
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known) or 'none'}."
        self.mistake(path, f"there is no such {what}. {hint}")

    @property
    def mistaken(self) -> bool:
        return bool(self._mistakes)

    def check(self) -> None:
        if not self._mistakes:
            return
        sentences = [f"  line {line}: {text}" for line, text in sorted(self._mistakes)]
        count = f"{len(sentences)} mistakes" if len(sentences) > 1 else "a mistake"
        raise UsageError("\n".join([f"{self.name} has {count}{self._so}:", *sentences]))


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
            for inner in re.finditer(r"[{,]\s*([A-Za-z0-9_-]+)\s*=", line[key.end() :]):  # an inline table's keys
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
