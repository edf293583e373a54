"""How much was read of documents: tables, printed blocks and whole files that hold numbers."""

from collections.abc import Sequence

import msgspec

from dyno.facts.imported import Document, Unread
from dyno.units import many


class Share(msgspec.Struct, frozen=True):
    read: int
    all: int


class Coverage(msgspec.Struct, frozen=True):
    tables: Share
    blocks: Share
    files: Share  # that consist of results, or hold numbers and no result
    lost: list[tuple[str, Unread]]  # the file, and what holds numbers and was not read

    @property
    def complete(self) -> bool:
        return not self.lost

    def describe(self) -> str:
        """12 of 14 tables, 3 of 3 blocks"""
        parts = (("table", self.tables), ("block", self.blocks), ("file", self.files))
        words = [f"{share.read:,} of {many(share.all, name)}" for name, share in parts if share.all]
        return ", ".join(words + ["not all lines"] * any(u.part == "lines" for _, u in self.lost))


def coverage(documents: Sequence[Document]) -> Coverage:
    """A text without results counts as unread only if nothing else has any: the words of a report are read anyway."""
    results = any(d.rows for d in documents)
    lost = [
        (d.file, u) for d in documents for u in d.unread if u.lost and not (u.part == "file" and d.headings and results)
    ]
    read = {
        "table": sum(len({row.table for row in d.rows if row.table is not None}) for d in documents),
        "block": sum(row.form == "block" for d in documents for row in d.rows),
        "file": sum(any(row.form in ("json", "sql") and row.table is None for row in d.rows) for d in documents),
    }
    tables, blocks, files = (Share(n, n + sum(u.part == part for _, u in lost)) for part, n in read.items())
    return Coverage(tables, blocks, files, lost)
