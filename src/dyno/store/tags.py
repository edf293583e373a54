"""Tags: words that a user gave a run or a study. They lie beside the facts, which are not rewritten."""

import re
from collections.abc import Iterable
from pathlib import Path

from dyno.errors import UsageError
from dyno.store.run import pretty, read, write

_WORD = re.compile(r"[\w.+:=/@-]{1,60}")


def tags_of(folder: Path) -> list[str]:
    path = folder / "tags.json"
    return read(path, list[str]) if path.exists() else []


def retag(folder: Path, add: Iterable[str] = (), remove: Iterable[str] = ()) -> list[str]:
    tags = sorted(({*tags_of(folder)} | {*map(checked, add)}) - {*remove})
    if tags:
        write(folder / "tags.json", pretty(tags))
    else:
        (folder / "tags.json").unlink(missing_ok=True)
    return tags


def checked(word: str) -> str:
    if not _WORD.fullmatch(word):
        raise UsageError(f"{word!r} can't be a tag: take one word of letters, digits and . + - _ : = / @.")
    return word
