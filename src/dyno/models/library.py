"""The library: models that dyno fetched or made, each whole or not there.

$DYNO_HOME/models/NAME/            NAME: Llama-3.1-8B-Instruct-quark-fp8-3fa9c1d2 (a recipe's `name`)
├── config.json, *.safetensors, …  what was made; of a fetched model nothing: its files are in the Hub's own cache
├── make.log
└── dyno.json                      its manifest, written last: without it, the model is incomplete
"""

import contextlib
import fcntl
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dyno import files
from dyno.engines.environment import home
from dyno.errors import ModelError, NotFound, StoreError, UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.models import checksum
from dyno.numbers import duration, human_bytes
from dyno.outside import OutsideName
from dyno.probe.model import hub_cache
from dyno.saying import Say

_MANIFEST = "dyno.json"


class ModelFile(msgspec.Struct, frozen=True, omit_defaults=True):
    size_bytes: int
    sha256: str  # empty: a local file that was not read
    mtime_ns: int | None = None  # of a local file, which its owner may change

    def matches(self, path: Path) -> bool:
        stat = path.stat()
        return stat.st_size == self.size_bytes and self.mtime_ns in (None, stat.st_mtime_ns)


class ModelEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    recipe: ModelRecipe
    step: Literal["pull", "convert", "quantize"]
    path: str  # what an engine gets: a folder, or a GGUF file
    origin: str  # hub:OWNER/NAME@COMMIT or file:PATH, of the first step
    # by their path below `path`, or beside it where that is a file
    files: dict[str, ModelFile]
    created: str  # UTC, ISO 8601
    took_s: float = 0.0
    parent: str | None = None  # the entry that it was made from
    pulled: str = ""  # `created` of the first step's entry, whose files it was made from
    tool: str | None = None
    tool_version: str | None = None
    # what was checked → what came of it: types, scales, generation, checksums
    verified: dict[str, str] = {}

    @property
    def folder(self) -> Path:
        path = Path(self.path)
        return path.parent if self.path.endswith(".gguf") else path

    @property
    def size_bytes(self) -> int:
        return sum(f.size_bytes for f in self.files.values())

    @property
    def whole(self) -> bool:
        """Return whether all files are there: False where a file is gone, has another size, or was changed by its
        owner."""
        try:
            return all(f.matches(self.folder / name) for name, f in self.files.items())
        except OSError:
            return False


def models_folder() -> Path:
    return home() / "models"


def model_folder(name: str) -> Path:
    return OutsideName.single(name).below(models_folder())


def find(recipe: ModelRecipe) -> ModelEntry | None:
    """Return the model of this recipe, if it is there and whole."""
    entry = read(recipe.name)
    return entry if entry and entry.whole else None


def read(name: str) -> ModelEntry | None:
    try:
        return msgspec.json.decode(
            files.read(model_folder(name) / _MANIFEST), type=ModelEntry
        )
    except (OSError, *files.BROKEN):
        return None


def entries() -> list[ModelEntry]:
    paths = sorted(models_folder().glob(f"[!.]*/{_MANIFEST}"))
    return [entry for path in paths if (entry := read(path.parent.name))]


@contextlib.contextmanager
def making(recipe: ModelRecipe, say: Say) -> Iterator[Path]:
    """Yield an empty folder to make the model in, alone; it is swept unless `put` has been called.

    What an earlier attempt left is removed: half a model is none. The kernel unlocks it if dyno is killed.
    """
    folder = model_folder(recipe.name)
    try:
        models_folder().mkdir(parents=True, exist_ok=True)
        opened = (models_folder() / f".{recipe.name}.lock").open("a")
    except OSError as e:
        raise StoreError(
            f"Models can't be stored under {models_folder()}: {e.strerror}. Set DYNO_HOME to a writable folder with "
            "enough space."
        ) from None
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{recipe.name}: waiting for another dyno that is making it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        part = folder.with_name(f".{recipe.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            yield part
        finally:
            shutil.rmtree(part, ignore_errors=True)


def put(part: Path, entry: ModelEntry) -> ModelEntry:
    """Make the folder of `making` the model's own."""
    folder = model_folder(entry.name)
    try:
        (part / _MANIFEST).write_bytes(
            msgspec.json.format(msgspec.json.encode(entry), indent=2)
        )
        # not before: a full disk must not cost the model that was there
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)
    except OSError as e:
        raise StoreError(
            f"{folder} can't be written: {e.strerror}. Free some space, and repeat the command."
        ) from None
    return entry


def check_link(path: Path, folder: Path) -> None:
    """Refuse a link that leads out of a model's folder: a copy of the model would have a file of the user's own.

    The Hub's cache may be linked to: its snapshots are links to its blobs.
    """
    target = path.resolve()
    blob = target.is_relative_to(hub_cache().resolve()) and target.parent.name == "blobs"
    if not blob and not target.is_relative_to(folder.resolve()):
        raise ModelError(
            f"{path} is a link to {target}, which is outside the model's folder. Put a copy there, or remove the link."
        )


def put_made(
    part: Path,
    recipe: ModelRecipe,
    source: ModelEntry,
    log: Path,
    began: float,
    by: tuple[str, str],
    verified: dict[str, str],
    say: Say,
) -> ModelEntry:
    """Put what a tool made of `source` in the library. `began`: by the monotonic clock; `by`: tool and version."""
    contents = {}
    for path in sorted(part.iterdir()):
        if path.is_file():
            contents[path.name] = ModelFile(path.stat().st_size, checksum.read(path).sha256)
    log.replace(part / "make.log")
    file = next((name for name in contents if name.endswith(".gguf")), "")
    took = time.monotonic() - began
    entry = ModelEntry(
        name=recipe.name,
        recipe=recipe,
        step="quantize" if recipe.quantize else "convert",
        path=str(model_folder(recipe.name) / file),
        origin=source.origin,
        files=contents,
        created=now(),
        took_s=round(took, 3),
        parent=source.name,
        pulled=source.pulled or source.created,
        tool=by[0],
        tool_version=by[1],
        verified=verified,
    )
    say(f"{recipe.name}: done, {human_bytes(entry.size_bytes)} in {duration(took)}")
    return put(part, entry)


def now() -> str:
    return stamp(time.time())


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def named(text: str) -> ModelEntry:
    """Return the entry that a command line names: by its name or the beginning of it, or by OWNER/NAME on the Hub."""
    known = entries()
    near = _matching(known, text)
    if len(near) == 1:
        return near[0]
    names = ", ".join(e.name for e in near or known) or "none"
    if near:
        raise NotFound(f"{text!r} names {len(near)} models: {names}. Give the whole name.")
    raise NotFound(f"No model named {text!r}. There are: {names}.")


def _matching(known: Sequence[ModelEntry], text: str) -> list[ModelEntry]:
    """Return the entries with this name, else those from this place on the Hub, else those whose names begin so."""
    repo = text.removeprefix("hub:").removeprefix("datasets/")
    origin = re.compile(rf"hub:(datasets/)?{re.escape(repo)}@\w+")
    return (
        [e for e in known if e.name == text]
        or [e for e in known if e.step == "pull" and origin.fullmatch(e.origin)]
        or [e for e in known if e.name.startswith(text)]
    )


def verify(entry: ModelEntry, below: Say) -> dict[str, str]:
    """Read an entry's files, and return those that have changed, with what is wrong."""
    wrong = {}
    for name, file in entry.files.items():
        below(name)
        path = entry.folder / name
        if not path.is_file():
            wrong[name] = "is missing"
        elif not file.matches(path) or (
            file.sha256 and checksum.read(path).sha256 != file.sha256
        ):
            wrong[name] = "is corrupted" if file.sha256 else "has changed"
    return wrong


def remove(name: str) -> None:
    known = [path.name for path in sorted(models_folder().glob("[!.]*/"))]
    if name not in known:
        raise UsageError(
            f"No model named {name!r}. There are: {', '.join(known) or 'none'}."
        )
    try:
        (model_folder(name) / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(model_folder(name))
    except OSError as e:
        raise StoreError(f"{name} can't be removed: {e.strerror}.") from None
