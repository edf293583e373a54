"""Fetch files of the Hugging Face Hub into its own cache: a process of its own, so that Ctrl-C ends it at once.

It reads a `Job` from stdin and writes the `Listing`; after a `Go` it fetches, and writes an `Event` for each file. Each
is a line of JSON. Files are fetched over HTTP by ranges: huggingface_hub begins a file anew after a kill, here it is
continued. The token is huggingface_hub's to find: HF_TOKEN, or its own file.
"""

import contextlib
import errno
import fcntl
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
from huggingface_hub import HfApi, constants, errors, get_token, hf_hub_download, hf_hub_url
from huggingface_hub.file_download import get_hf_file_metadata, http_get
from huggingface_hub.utils import build_hf_headers, filter_repo_objects  # type: ignore[attr-defined]

from dyno.errors import ModelError
from dyno.models import checksum
from dyno.models.cache import FetchedFile, place, snapshot, storage_folder, unsafe
from dyno.models.messages import Event, Go, Job, Listing

_AT_ONCE = 8  # files, as huggingface_hub does it
_TRIES, _LIMITED_TRIES = 3, 5  # without a byte more; where the Hub limits requests
_LONGEST_WAIT_S = 600
_TIMEOUT_S = 30.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IMPORT = "copy the files from another machine with `dyno models export` and `import`"
_HttpError: Any = errors.HfHubHTTPError.__bases__[0]  # of the HTTP library that this huggingface_hub uses
T = TypeVar("T")


def main() -> None:
    constants.DOWNLOAD_CHUNK_SIZE = 1 << 20  # bytes: what a cut may lose of each file; its own are ten times as many
    lines = sys.stdin.buffer
    job = msgspec.json.decode(lines.readline(), type=Job)
    try:
        worker = Fetch(job)
        _write(worker.listing)
        if line := lines.readline():
            worker.run(msgspec.json.decode(line, type=Go))
            _write(Event(end=True))
    except ModelError as e:
        _write(Event(error=str(e)))
    os._exit(0)  # the other threads may wait for a server


def _write(message: Event | Listing) -> None:
    os.write(1, msgspec.json.encode(message) + b"\n")


class Fetch:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._api = HfApi()
        self._page = f"{constants.ENDPOINT}/{'datasets/' if job.kind == 'dataset' else ''}{job.repo}"
        self._storage = storage_folder(job.kind, job.repo)
        with self._explained():
            try:
                self.listing = self._patient(self._list)
            except (errors.OfflineModeIsEnabled, _HttpError, OSError) as e:
                if isinstance(e, errors.HfHubHTTPError) or not (cached := self._cached()):
                    raise
                self.listing = cached

    def _list(self) -> Listing:
        job = self._job
        info: Any = self._api.repo_info(
            job.repo, repo_type=job.kind, revision=job.revision, files_metadata=True, timeout=_TIMEOUT_S
        )
        siblings = {s.rfilename: s for s in info.siblings or []}
        names = sorted(siblings)
        if wrong := next((name for name in names if unsafe(name)), None):
            raise ModelError(f"{job.repo} lists {wrong!r}, an unsafe file name. Nothing was fetched.")
        listed = {}
        for name in self._chosen(names):
            s = siblings[name]
            size, etag = (s.lfs.size, s.lfs.sha256) if s.lfs else (s.size, s.blob_id)
            if size is None or etag is None:  # a mirror's list may have names only
                about = get_hf_file_metadata(hf_hub_url(job.repo, name, repo_type=job.kind, revision=info.sha))
                size, etag = about.size, about.etag
            listed[name] = FetchedFile(size or 0, etag or "")
        if not listed:
            some = f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}" or "none"
            raise ModelError(f"No file of {job.repo} matches. Its files: {some}. Check --include and --exclude.")
        hashes = [info.sha or "", *(file.etag for file in listed.values())]
        if not all(re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) for text in hashes):
            raise ModelError(
                f"{constants.ENDPOINT} lists {job.repo} without checksums. It doesn't serve the Hub's API."
            )
        return Listing(hashes[0], listed)

    def _cached(self) -> Listing | None:
        """The files that the Hub's cache has of this revision. Their checksums are the names of their blobs."""
        commit, cached = snapshot(self._storage, self._job.revision)
        chosen = {name: cached[name] for name in self._chosen(sorted(cached))}
        return Listing(commit, chosen, offline=True) if chosen else None

    def _chosen(self, names: list[str]) -> list[str]:
        job = self._job
        return list(filter_repo_objects(names, allow_patterns=job.include or None, ignore_patterns=job.exclude))

    def run(self, go: Go) -> None:
        listing = self.listing
        pool = ThreadPoolExecutor(_AT_ONCE)
        # Small files first: where access is denied, that shows before gigabytes were fetched.
        by_size = sorted(listing.files, key=lambda name: listing.files[name].size)
        jobs = {pool.submit(self._one, name, listing.files[name], go.known.get(name)): name for name in by_size}
        for job in as_completed(jobs):
            _write(Event(file=jobs[job], sha256=job.result()))
        if self._job.revision != listing.commit:
            ref = self._storage / "refs" / self._job.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(listing.commit)

    def _one(self, name: str, file: FetchedFile, known: str | None) -> str:
        """Fetch and check one file; return its SHA-256."""
        blob = self._storage / "blobs" / file.etag
        link = self._storage / "snapshots" / self.listing.commit / name
        with self._explained(name):
            for _ in range(2):
                whole = next((p for p in (blob, link) if p.is_file() and p.stat().st_size == file.size), None)
                if whole and known:
                    return known
                path = whole or self._fetched(name, file, blob)
                sums = checksum.read(path)
                if not file.etag or sums.matches(file.etag):
                    if path != link:
                        path.replace(blob)
                        place(blob, link)
                    return sums.sha256
                path.unlink()
                _write(Event(note=f"{name} is corrupted: its checksum differs from the Hub's. Fetching it again"))
        raise ModelError(
            f"{name} of {self._job.repo} is corrupted: twice it came with another checksum than {file.etag}, which "
            f"{constants.ENDPOINT} lists. Try again later, or from another mirror (HF_ENDPOINT)."
        )

    def _fetched(self, name: str, file: FetchedFile, blob: Path) -> Path:
        """Return the file's path once all its bytes are there, checked or not."""
        if self.listing.offline:
            raise ModelError(
                f"{name} of {self._job.repo} is incomplete in the Hub's cache, and the Hub can't be asked."
            )
        commit = self.listing.commit
        if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:  # the Hub sends these by its own protocol only, Xet
            hf_hub_download(self._job.repo, name, repo_type=self._job.kind, revision=commit)
            return blob
        blob.parent.mkdir(parents=True, exist_ok=True)
        part = blob.with_name(f"{blob.name}.incomplete")
        url = hf_hub_url(self._job.repo, name, repo_type=self._job.kind, revision=commit)
        with part.open("ab") as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # of two dynos, one fetches it
            self._fill(out, url, file.size)
        return part if part.exists() else blob  # the other dyno was first

    def _fill(self, out: BinaryIO, url: str, size: int) -> None:
        tries = 0
        while (here := os.fstat(out.fileno()).st_size) != size:
            if here > size:
                out.truncate(0)
                here = 0
            try:
                # Ranges are of the bytes that are sent: they must not be compressed.
                headers = {**build_hf_headers(), "accept-encoding": "identity"}
                out.seek(here)
                http_get(url, out, resume_size=here, headers=headers, expected_size=size)
                out.flush()
            except (_HttpError, OSError) as e:
                status = e.response.status_code if isinstance(e, errors.HfHubHTTPError) else None
                out.flush()
                gained = os.fstat(out.fileno()).st_size > here
                tries = 1 if gained else tries + 1
                fatal = status is not None and status != 416 and status < 500
                if fatal or getattr(e, "errno", None) in _FULL or tries >= _TRIES:
                    raise
                if status == 416:
                    out.truncate(0)
                time.sleep(0.5 * tries)

    def _patient(self, ask: Callable[[], T]) -> T:
        """Ask the Hub; where it limits requests, wait as it says."""
        for tries in range(1, _LIMITED_TRIES + 1):
            try:
                return ask()
            except errors.HfHubHTTPError as e:
                if e.response.status_code != 429 or tries == _LIMITED_TRIES:
                    raise
                said = e.response.headers.get("retry-after", "")
                wait_s = min(float(said), _LONGEST_WAIT_S) if said.isdigit() else 2.0**tries
                _write(Event(note=f"The Hub limits requests (HTTP 429). Waiting {wait_s:.0f} s"))
                time.sleep(wait_s)
        raise AssertionError

    @contextlib.contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        """Turn what huggingface_hub raises into a sentence with what to do."""
        try:
            yield
        except ModelError:
            raise
        except (_HttpError, errors.OfflineModeIsEnabled, OSError, ValueError) as e:
            raise ModelError(self._sentence(e, name)) from None

    def _sentence(self, e: Exception, name: str) -> str:
        repo, revision = self._job.repo, self._job.revision
        response: Any = getattr(e, "response", None)
        status = response.status_code if response is not None else None
        again = "The same command continues."
        if isinstance(e, errors.GatedRepoError) or status == 403:
            if not get_token():
                return (
                    f"{repo} is gated. Accept its terms at {self._page} and set HF_TOKEN to a token that may read it."
                )
            return f"This token has no access to {repo}. Request access at {self._page} and wait until it is granted."
        if isinstance(e, errors.RevisionNotFoundError):
            return f"{repo} has no revision {revision!r}.{self._revisions()}"
        if isinstance(e, errors.EntryNotFoundError):
            return f"{name} is in the list of {repo}, but the Hub doesn't have it. Try again, or --exclude it."
        if status == 401 and get_token() and not isinstance(e, errors.RepositoryNotFoundError):
            return f"{constants.ENDPOINT} refuses the token (HTTP 401). Check HF_TOKEN, or make a new one."
        if isinstance(e, errors.RepositoryNotFoundError) or status in (401, 404):
            hint = f"If it is private, {'the token must be able to read it' if get_token() else 'set HF_TOKEN'}"
            other = "without --dataset" if self._job.kind == "dataset" else "with --dataset for a data set"
            return f"There is no {self._job.kind} {repo} at {constants.ENDPOINT}. Check the name ({other}). {hint}."
        if status == 429:
            return f"The Hub still limits requests (HTTP 429). Wait some minutes, or set HF_TOKEN. {again}"
        if status is not None:
            return f"The Hub answered with HTTP {status} for {name or repo}. Try again later. {again}"
        if isinstance(e, errors.OfflineModeIsEnabled):
            return f"{repo} isn't in the Hub's cache, and HF_HUB_OFFLINE is set. Unset it, or {_IMPORT}."
        if isinstance(e, OSError) and e.errno in _FULL:
            return (
                f"The disk of {self._storage.parent} is full. Free some space, or set HF_HOME to a larger disk. {again}"
            )
        if isinstance(e, OSError) and e.errno and e.filename:
            return f"{e.filename}: {e.strerror}. Check HF_HOME, the folder of the Hub's cache."
        if name:
            return f"The connection was cut while fetching {name} ({_first_line(e)}). {again}"
        return (
            f"{constants.ENDPOINT} can't be reached: {_first_line(e)}. Check the network, set HF_ENDPOINT to a mirror, "
            f"or {_IMPORT}."
        )

    def _revisions(self) -> str:
        try:
            refs = self._api.list_repo_refs(self._job.repo, repo_type=self._job.kind)
        except (_HttpError, OSError, ValueError):
            return " Check the name after @."
        names = [ref.name for ref in (*refs.branches, *refs.tags)]
        return f" It has {', '.join(names[:12])}{', …' if len(names) > 12 else ''}."


def _first_line(e: Exception) -> str:
    return (str(e) or type(e).__name__).splitlines()[0].rstrip(".")


if __name__ == "__main__":
    main()
