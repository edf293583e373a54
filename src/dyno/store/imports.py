"""Imports: results of other tools' files, stored beside the runs as runs/imports/NAME.json."""

import hashlib
from pathlib import Path

import msgspec

from dyno import __version__
from dyno.errors import StoreError
from dyno.facts.imported import Document, Samples
from dyno.store import upgrade
from dyno.store.run import make_folder, read, slug, write

FOLDER = "imports"
LABEL = 6  # words


class Imported(msgspec.Struct, frozen=True):
    dyno_import: int  # the version of this form
    dyno: str
    document: Document
    # which file it was: a digest of the path by which it was named, not the path
    source: str = ""


def without_text(document: Document) -> Document:
    """Return the document without others' sentences; of single requests, only what a check reads."""
    rows = []
    for row in document.rows:
        samples = _short(row.samples) if row.samples else None
        sentence = len(row.label.split()) > LABEL or row.label.endswith(
            (".", "!", "?", ":")
        )
        label = "" if sentence else row.label
        rows.append(msgspec.structs.replace(row, samples=samples, label=label))
    return msgspec.structs.replace(document, rows=rows, passages=[], headings=[])


def _short(samples: Samples) -> Samples:
    times_ms = {stem: values for stem, values in samples.times_ms.items() if stem != "itl"}
    return msgspec.structs.replace(samples, times_ms=times_ms, starts_s=[])


def store(document: Document, folder: Path, source: str = "") -> Path:
    """Write it under its file's name, and never outside the folder: a name is not a path. Another file of the same name
    gets a name of its own; the same one, imported again, replaces itself. `source`: the path by which it was named."""
    try:
        make_folder(folder)
    except OSError as e:
        raise StoreError(
            f"{folder} can't be created: {e.strerror}. Choose another folder with -o DIR."
        ) from None
    name = slug(document.file) or "imported"
    digest = hashlib.sha256(
        (source or document.file).encode(errors="surrogateescape")
    ).hexdigest()[:12]
    path = folder / f"{name}.json"
    if _is_anothers(path, digest):
        path = folder / f"{name}-{digest[:8]}.json"
    # A result a line: so that two states of a file can be compared.
    data = msgspec.json.encode(Imported(1, __version__, document, digest))
    write(path, data.replace(b'},{"kind":', b'},\n{"kind":') + b"\n")
    return path


def _is_anothers(path: Path, digest: str) -> bool:
    if not path.exists():
        return False
    try:
        return read(path, Imported).source not in ("", digest)
    except StoreError:  # not dyno's, or of another version: left as it is
        return True


def is_import(head: bytes) -> bool:
    return b'"dyno_import"' in head[:64]


def is_stored(path: Path, runs: Path) -> bool:
    """Return whether it is an import among the runs, and not the file that was imported."""
    return path.is_file() and path.resolve().parent == (runs / FOLDER).resolve()


def load(path: Path) -> Document:
    return read(path, Imported, upgrade.imported).document


def listed(runs: Path) -> list[Path]:
    return sorted((runs / FOLDER).glob("*.json"))


class ImportLine(msgspec.Struct, frozen=True):
    """An import as a list shows it."""

    path: str
    file: str
    format: str
    results: int


class _Document(msgspec.Struct):
    file: str
    format: str
    rows: list[msgspec.Raw]


class _Imported(msgspec.Struct):
    document: _Document


def import_line(path: Path) -> ImportLine:
    document = read(path, _Imported).document
    return ImportLine(str(path), document.file, document.format, len(document.rows))
