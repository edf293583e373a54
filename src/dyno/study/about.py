"""about.toml, in a folder of results: its title, a sentence, and who published it."""

import typing
from pathlib import Path

import msgspec

from dyno.study.cells import converted
from dyno.study.document import Document
from dyno.study.prices import text_of

NAME = "about.toml"


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of results, in the words of whoever keeps it."""

    title: str = ""
    about: str = ""  # a sentence or two, plain text
    source: str = ""  # who published it, where


def about(path: Path) -> About:
    """`path`: the file, or its folder. A folder without one has nothing to say."""
    file = path / NAME if path.is_dir() else path
    if path.is_dir() and not file.exists():
        return About()
    doc = Document(text_of(file), str(file), so="")
    hints = typing.get_type_hints(About)
    values = {}
    for key, value in doc.tree.items():
        if key not in hints:
            doc.unknown((key,), list(hints), "key")
        else:
            values[key] = converted(doc, (key,), hints[key], value) or ""
    doc.check()
    return About(**values)
