"""Models and data sets of the Hugging Face Hub, a mirror or a local folder: found, or fetched, checked and recorded."""

import contextlib
import datetime
import glob
import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno import secrets
from dyno.engines.process import EngineProcess
from dyno.errors import ModelError, UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.files import free_bytes
from dyno.models import check, checksum, library
from dyno.models.cache import (
    FetchedFile,
    blob_path,
    etag,
    partial_path,
    snapshot,
    snapshot_folder,
    storage_folder,
)
from dyno.models.library import ModelEntry, ModelFile
from dyno.models.messages import Event, Go, Job, Listing
from dyno.numbers import duration, human_bytes
from dyno.outside import OutsideName, is_safe
from dyno.probe.model import looks_local
from dyno.saying import Say, silent
from dyno.workload.datasets import DATASETS
from dyno.workload.request import DataFile

_PROCESS = [sys.executable, "-P", "-m", "dyno.models.fetch"]
# Nothing but the model's own requests; no bars in the log.
ENV = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_RATE_S = 20.0  # the rate is that of the last seconds


class HubSource(NamedTuple):
    kind: str  # model or dataset
    repo: str
    revision: str = "main"

    @property
    def label(self) -> str:
        """Its name as a recipe's `from` has it, without revision."""
        return f"hub:{'datasets/' if self.kind == 'dataset' else ''}{self.repo}"


def parse(source: str) -> HubSource | Path:
    """Read a recipe's `from`: a place on the Hub, or a local path."""
    if source.startswith("file:"):
        return Path(source.removeprefix("file:")).expanduser().absolute()
    name, _, revision = source.removeprefix("hub:").partition("@")
    kind = "dataset" if name.startswith("datasets/") else "model"
    repo = name.removeprefix("datasets/")
    if not _is_repo(repo):
        raise UsageError(
            f"{source!r} is not a model. Give hub:OWNER/NAME, hub:OWNER/NAME@REVISION, or a path."
        )
    if revision and not (re.fullmatch(r"[\w./-]+", revision) and is_safe(revision)):
        raise UsageError(
            f"{revision!r} is not a revision. Give a branch, a tag or a commit."
        )
    return HubSource(kind, repo, revision or "main")


def _is_repo(name: str) -> bool:
    if ".." in name or "--" in name:
        return False
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name) is not None


def has_token() -> bool:
    """Return whether there is a token for gated models, as huggingface_hub finds it. It is not read."""
    named = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    file = Path(os.environ.get("HF_TOKEN_PATH") or home / "token").expanduser()
    return any(os.environ.get(name) for name in named) or file.is_file()


def source_text(given: str, dataset: bool = False, revision: str | None = None) -> str:
    """Return a recipe's `from` for what a command line names: OWNER/NAME, hub:OWNER/NAME@REV, file:PATH or a path."""
    local = given.startswith("file:") or (
        not given.startswith("hub:") and looks_local(given)
    )
    if local and revision:
        raise UsageError(
            f"{given} is a local path, which has no revisions. Remove --revision."
        )
    if local:
        path = Path(given.removeprefix("file:")).expanduser().absolute()
        return f"file:{path}"
    name, _, own = given.removeprefix("hub:").partition("@")
    if own and revision and own != revision:
        raise UsageError(
            f"{given} and --revision {revision} contradict each other. Remove one."
        )
    if dataset and not name.startswith("datasets/"):
        name = f"datasets/{name}"
    chosen = own or revision
    if not chosen:
        return f"hub:{name}"
    return f"hub:{name}@{chosen}"


def pull(recipe: ModelRecipe, say: Say, below: Say = silent) -> ModelEntry:
    """Return the files of a recipe, fetched where they aren't here and whole. The Hub isn't asked about those."""
    recipe = recipe.base
    source = parse(recipe.source)
    if isinstance(source, HubSource) and (entry := library.find(recipe)):
        return entry
    with library.making(recipe, say) as part:
        if entry := library.find(recipe):  # another dyno fetched it
            return entry
        if isinstance(source, Path):
            return library.put(part, _local(recipe, source))
        return library.put(part, _fetch(recipe, source, part / "make.log", say, below))


# ---- the child process, which talks to the Hub ----


def _fetching(log: Path) -> EngineProcess:
    return EngineProcess(
        _PROCESS, {**os.environ, **ENV}, log, secrets=secrets.known(), talks=True
    )


def _list(
    process: EngineProcess,
    recipe: ModelRecipe,
    source: HubSource,
    say: Say,
    timeout_s: float | None,
) -> Listing:
    job = Job(source.repo, source.kind, source.revision, recipe.include, recipe.exclude)
    process.send_line(msgspec.json.encode(job))
    deadline = time.monotonic() + (timeout_s or 1e9)
    while (answer := _hear(process, max(deadline - time.monotonic(), 0.0), say)) is None:
        if time.monotonic() > deadline:
            raise ModelError(f"The Hub didn't answer within {duration(timeout_s)}.")
    assert isinstance(answer, Listing)
    return answer


def _hear(process: EngineProcess, timeout_s: float, say: Say) -> Listing | Event | None:
    """Return the child's next message, if there is one. Its notes are passed on; its error is raised."""
    line = process.hear(min(timeout_s, 0.5))
    if line is None:
        if not process.alive() and (line := process.hear(0.1)) is None:
            raise ModelError(
                f"The fetching process ended: {' | '.join(process.last_lines(3))}. Try again."
            )
        if line is None:
            return None
    try:
        message = msgspec.json.decode(line, type=Listing | Event)
    except msgspec.MsgspecError as e:
        raise ModelError(
            f"The fetching process printed what dyno doesn't understand: {e}. Try again."
        ) from None
    if isinstance(message, Event):
        if message.error:
            raise ModelError(message.error)
        if message.note:
            say(message.note)
            return None
    return message


def _fetch(
    recipe: ModelRecipe, source: HubSource, log: Path, say: Say, below: Say
) -> ModelEntry:
    began = time.monotonic()
    storage = storage_folder(source.kind, source.repo)
    with _fetching(log) as process:
        below(f"asking for the files of {source.repo}")
        listing = _list(process, recipe, source, say, None)
        total = sum(f.size for f in listing.files.values())
        here = present(storage, listing.files)
        _check_space(source.repo, total - here, storage.parent)
        text = f"{source.repo} at {source.revision} (commit {listing.commit[:12]}): {len(listing.files)} files, "
        text += human_bytes(total)
        if here:
            text += f", {human_bytes(here)} of it here"
        if listing.offline:
            text += ", by the cache: the Hub was not asked"
        say(text)
        origin = f"{source.label}@{listing.commit}"
        known: dict[str, str] = {}
        for other in library.entries():
            if other.origin == origin and other.whole:
                known |= {n: f.sha256 for n, f in fetched(other).items()}
        process.send_line(msgspec.json.encode(Go(known)))
        sums = _watch(process, storage, listing.files, total, say, below)
    root = snapshot_folder(storage, listing.commit)
    path = engine_path(root, list(listing.files)) if source.kind == "model" else root
    folder = path.parent if path.suffix == ".gguf" else path
    entry = ModelEntry(
        name=recipe.name,
        recipe=recipe,
        step="pull",
        path=str(path),
        origin=origin,
        files={
            os.path.relpath(OutsideName(name).below(root), folder): ModelFile(
                f.size, sums[name]
            )
            for name, f in listing.files.items()
        },
        created=library.now(),
        took_s=round(time.monotonic() - began, 3),
        verified={"checksums": f"{len(sums)} files"},
    )
    if source.kind == "model":
        _check_model(path, source.repo, bool(recipe.include))
    say(
        f"{source.repo}: {human_bytes(total)} in {duration(entry.took_s)}, checksums verified"
    )
    return entry


def _watch(
    process: EngineProcess,
    storage: Path,
    files: Mapping[str, FetchedFile],
    total: int,
    say: Say,
    below: Say,
) -> dict[str, str]:
    """Report progress by the bytes on disk until the last file is checked; return the SHA-256 of each."""
    sums: dict[str, str] = {}
    seen: deque[tuple[float, int]] = deque()
    due = 0.0
    while True:
        message = _hear(process, 0.5, say)
        if isinstance(message, Event):
            if message.end:
                return sums
            sums[message.file] = message.sha256
        now = time.monotonic()
        if now < due:
            continue
        due = now + 0.5
        here = present(storage, files)
        seen.append((now, here))
        while now - seen[0][0] > _RATE_S:
            seen.popleft()
        below(_progress(seen, total, f"{len(sums)} of {len(files)} files"))


def _progress(seen: "deque[tuple[float, int]]", total: int, text: str) -> str:
    (t0, first), (t1, here) = seen[0], seen[-1]
    if here >= total:
        return f"{text}, checking"
    rate = (here - first) / (t1 - t0) if t1 - t0 > 2.0 else 0.0
    left = datetime.timedelta(seconds=int((total - here) / rate)) if rate else None
    pace = f", {human_bytes(rate)}/s, {left} left" if rate else ""
    return f"{text}, {human_bytes(here)} of {human_bytes(total)}{pace}"


def present(storage: Path, files: Mapping[str, FetchedFile]) -> int:
    """Return the bytes that are on disk, of whole files and of parts."""
    total = 0
    for name, bytes_max in {f.etag: f.size for f in files.values() if f.etag}.items():
        blob = blob_path(storage, name)
        # a part may become the whole meanwhile
        for path in (blob, partial_path(storage, name), blob):
            with contextlib.suppress(FileNotFoundError):
                total += min(path.stat().st_size, bytes_max)
                break
    return total


def _check_space(repo: str, needed: int, cache: Path) -> None:
    if needed > (free := free_bytes(cache)):
        raise ModelError(
            f"{repo} needs {human_bytes(needed)} more, but the disk of {cache} has {human_bytes(free)} free. Free some "
            "space, leave files out with --exclude, or set HF_HOME to a larger disk."
        )


def _check_model(path: Path, name: str, chosen: bool) -> None:
    """Refuse a model whose files are wrong. `chosen`: the user named files, so that there may be no weights among
    them."""
    problem = check.problem(path, weights=not chosen)
    if problem:
        raise ModelError(f"{name} is not a whole model: {problem}")


def engine_path(root: Path, names: list[str]) -> Path:
    """Return what an engine is given: the folder, or the GGUF file where that is all there is."""
    models = sorted(n for n in names if n.endswith(".gguf") and "mmproj" not in n)
    firsts = [n for n in models if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", n)]
    if len(firsts) != 1 or "config.json" in names:
        return root
    return OutsideName(firsts[0]).below(root)


def fetched(entry: ModelEntry) -> dict[str, ModelFile]:
    """Return an entry's files by their paths below its snapshot."""
    root = snapshot_root(entry)
    if root is None:
        return {}
    return {
        os.path.relpath(entry.folder / name, root): file
        for name, file in entry.files.items()
    }


def snapshot_root(entry: ModelEntry) -> Path | None:
    """Return the folder in the Hub's cache; None: the files are elsewhere."""
    commit = entry.origin.rpartition("@")[2]
    if entry.step != "pull" or not entry.origin.startswith("hub:"):
        return None
    return next(
        (p for p in (entry.folder, *entry.folder.parents) if p.name == commit), None
    )


def drop(entry: ModelEntry, name: str) -> None:
    """Remove a damaged file of a fetched model, so that it is fetched again. Only the Hub's cache is touched."""
    root, path = snapshot_root(entry), (entry.folder / name).resolve()
    if root is not None and path.is_relative_to(root.parents[1].resolve()):
        path.unlink(missing_ok=True)


def remove(entry: ModelEntry) -> str:
    """Remove an entry, and the revision in the Hub's cache if nothing else uses it. Return what was freed."""
    root = snapshot_root(entry)
    own = set(fetched(entry))
    library.remove(entry.name)
    if root is None:
        freed = (
            entry.size_bytes if entry.folder.is_relative_to(library.models_folder()) else 0
        )
        text = f"{entry.name}: removed, {human_bytes(freed)} freed"
        return text if freed else f"{text}; {entry.path} stays"
    user = next((e.name for e in library.entries() if snapshot_root(e) == root), None)
    if user:
        return f"{entry.name}: removed. Its files stay: {user} uses them"
    names = {
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()
    }
    if names - own:
        return f"{entry.name}: removed. Its files stay in {root}, where another tool has put more"
    if not root.exists():
        return f"{entry.name}: removed. Its files were gone"
    from huggingface_hub import scan_cache_dir

    # Of the cache that it was fetched to. Blobs that another revision or repository shares stay.
    plan = scan_cache_dir(root.parents[2]).delete_revisions(root.name)
    plan.execute()
    return f"{entry.name}: removed, {human_bytes(plan.expected_freed_size)} freed"


# ---- local files ----


def _local(recipe: ModelRecipe, path: Path) -> ModelEntry:
    """Return an entry that refers to local files. Sizes and times show whether they have changed since."""
    if not path.exists():
        raise UsageError(f"There is no file or folder {path}. Check the path.")
    if path.is_file() and path.suffix != ".gguf":
        raise UsageError(
            f"{path} is not a model. Give a folder with config.json, or a GGUF file."
        )
    root = path if path.is_dir() else path.parent
    names = _local_names(recipe, path, root)
    if not names:
        raise UsageError(
            f"No file in {path} matches. Check the path, --include and --exclude."
        )
    wrong = next((n for n in names if not n.isprintable()), None)
    if wrong:
        raise UsageError(
            f"{path} has a file {wrong!r}, whose name isn't text. Rename it, or leave it out: --exclude."
        )
    _check_model(path, str(path), bool(recipe.include))
    stats = {name: (root / name).stat() for name in names}
    return ModelEntry(
        name=recipe.name,
        recipe=recipe,
        step="pull",
        path=str(engine_path(root, names) if path.is_dir() else path),
        origin=f"file:{path}",
        files={name: ModelFile(s.st_size, "", s.st_mtime_ns) for name, s in stats.items()},
        created=library.now(),
    )


def _local_names(recipe: ModelRecipe, path: Path, root: Path) -> list[str]:
    """Return the chosen files of a folder, or the parts of a GGUF file, by their paths below `root`."""
    parts = re.sub(r"-\d{5}-of-", "-*-of-", glob.escape(path.name))
    paths = root.rglob("*") if path.is_dir() else root.glob(parts)
    names = [p.relative_to(root).as_posix() for p in sorted(paths) if p.is_file()]
    return [n for n in names if _is_chosen(n, recipe)]


def _is_chosen(name: str, recipe: ModelRecipe) -> bool:
    return (
        not recipe.include or any(fnmatch(name, p) for p in recipe.include)
    ) and not any(fnmatch(name, p) for p in recipe.exclude)


# ---- data sets ----


def dataset_recipe(source: str) -> ModelRecipe | None:
    """Return the recipe of a data set's file: by a known name, or hub:OWNER/NAME/FILE@REV. None: of no file there."""
    text = (DATASETS[source].hub_file if source in DATASETS else "") or source
    if not text.startswith("hub:"):
        return None
    name, _, revision = text.removeprefix("hub:").removeprefix("datasets/").partition("@")
    owner, repo, file = [*name.split("/", 2), "", ""][:3]
    if not file:
        raise UsageError(
            f"{source!r} names no file. Give hub:OWNER/NAME/FILE or hub:OWNER/NAME/FILE@REVISION."
        )
    suffix = f"@{revision}" if revision else ""
    return ModelRecipe(
        source=f"hub:datasets/{owner}/{repo}{suffix}", include=[glob.escape(file)]
    )


def dataset(source: str, say: Say, below: Say) -> DataFile:
    """Return a data set's file with its commit and checksum, fetched where it isn't here."""
    recipe = dataset_recipe(source)
    assert recipe is not None
    if dataset_file(source) is None:
        pull(recipe, say, below)
    path, entry = dataset_file(source), library.find(recipe)
    assert path is not None
    root = next(p for p in path.parents if p.parent.name == "snapshots")
    name = path.relative_to(root).as_posix()
    blob = etag(path)  # of a large file, its SHA-256
    if entry:
        known = entry.files[name].sha256
    elif len(blob) == 64:
        known = blob
    else:
        known = checksum.read(path).sha256
    return DataFile(
        f"{recipe.source.partition('@')[0]}@{root.name}", name, known, str(path)
    )


def dataset_folder(name: str, include: Sequence[str], say: Say, below: Say) -> Path:
    """Return the folder of a data set, OWNER/NAME or OWNER/NAME@REV, with these files: fetched where it isn't here."""
    folder = cached_folder(name)
    if folder is None:
        folder = Path(pull(folder_recipe(name, include), say, below).path)
    return folder


def folder_recipe(name: str, include: Sequence[str]) -> ModelRecipe:
    return ModelRecipe(source=f"hub:datasets/{name}", include=[*include])


def cached_folder(name: str) -> Path | None:
    """Return the folder of a data set in the Hub's cache. None: it isn't there."""
    repo, _, revision = name.partition("@")
    storage = storage_folder("dataset", repo)
    commit, _ = snapshot(storage, revision or "main")
    folder = snapshot_folder(storage, commit) if commit else None
    return folder if folder is not None and folder.is_dir() else None


def dataset_file(source: str) -> Path | None:
    """Return a data set's file, if it is here: pulled by dyno, or in the Hub's cache. Nothing is fetched."""
    recipe = dataset_recipe(source)
    if recipe is None:
        return None
    if entry := library.find(recipe):
        return entry.folder / next(iter(entry.files))
    place = parse(recipe.source)
    assert isinstance(place, HubSource)
    storage = storage_folder(place.kind, place.repo)
    commit, files = snapshot(storage, place.revision)
    name = next((n for n in files if fnmatch(n, recipe.include[0])), None)
    return OutsideName(name).below(snapshot_folder(storage, commit)) if name else None
