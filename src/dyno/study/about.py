"""about.toml, in a folder of results: its title, a sentence, and who published it."""

from pathlib import Path

from dyno.facts.about import About
from dyno.study.cells import converted, hints
from dyno.study.document import Document
from dyno.study.prices import text_of

NAME = "about.toml"


def about(path: Path) -> About:
    """`path`: the file, or its folder. A folder without one has nothing to say."""
    file = path / NAME if path.is_dir() else path
    if path.is_dir() and not file.exists():
        return About()
    doc = Document(text_of(file), str(file), so="")
    known = hints(About)
    values = {}
    for key, value in doc.tree.items():
        if key not in known:
            doc.unknown((key,), list(known), "key")
        else:
            values[key] = converted(doc, (key,), known[key], value) or ""
    doc.check()
    return About(**values)
