"""Fetch files of the Hugging Face Hub into its own cache: a process of its own, so that Ctrl-C ends it at once.

It reads a `Job` from stdin and writes the `Listing`; after a `Go` it fetches, and writes an `Event` for each file. Each
is a line of JSON. Files are fetched over HTTP by ranges: huggingface_hub begins a file anew after a kill, here it is
continued. The token is huggingface_hub's to find: HF_TOKEN, or its own file.

The Hub may be anybody's (HF_ENDPOINT), so nothing that it sends is believed: the list has bounds of size and time, each
body ends at its listed size, and each name is an `OutsideName` (decisions/0027-outside.md).
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
from typing import Annotated, Any, BinaryIO, TypeVar
from urllib.parse import quote

import msgspec
from huggingface_hub import constants, errors, get_token, hf_hub_url
from huggingface_hub.file_download import get_hf_file_metadata, xet_get
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    filter_repo_objects,
    get_session,
    hf_raise_for_status,
)

from dyno.errors import HubRefusal, ModelError
from dyno.models import checksum
from dyno.models.cache import (
    FetchedFile,
    blob_path,
    partial_path,
    place,
    ref_path,
    snapshot,
    snapshot_folder,
    storage_folder,
)
from dyno.models.messages import Event, Go, Job, Listing
from dyno.numbers import human_bytes
from dyno.outside import OutsideName, TooMuch, TooSlow, UnsafeName, bounded, is_safe

_AT_ONCE = 8  # files, as huggingface_hub does it
_TRIES, _LIMITED_TRIES = 3, 5  # without a byte more; where the Hub limits requests
_LONGEST_WAIT_S = 600
_TIMEOUT_S = 30.0
# bytes of a list, unpacked; seconds; files
_LIST_MAX, _LIST_S, _LIST_FILES = 64 << 20, 120.0, 100_000
# bytes in so many seconds: a body that is slower has stopped
_SLOWEST, _SLOWEST_S = 1024, 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_AGAIN = "The same command continues."
_IMPORT = "copy the files from another machine with `dyno models export` and `import`"
# of the HTTP library that this huggingface_hub uses
_HttpError: Any = errors.HfHubHTTPError.__bases__[0]
# As transformers names the same weights in its two formats.
_SAFE_COPY, _PICKLED_COPY = (
    re.compile(r"model(-.*)?\.safetensors"),
    re.compile(r"pytorch_model(-.*)?\.bin(\.index\.json)?"),
)
T = TypeVar("T")
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class _Large(msgspec.Struct):
    """What the Hub lists of a file that it keeps in its storage."""

    sha256: str
    size: _Size


class _Sibling(msgspec.Struct):
    """A file as the Hub lists it. A mirror's list may have names only."""

    rfilename: str
    size: _Size | None = None
    blobId: str | None = None
    lfs: _Large | None = None


class _Safetensors(msgspec.Struct):
    total: _Size = 0  # parameters


class _RepoInfo(msgspec.Struct):
    sha: str
    siblings: list[_Sibling] = []
    gated: bool | str = False
    safetensors: _Safetensors | None = None


class _Ref(msgspec.Struct):
    name: str


class _Refs(msgspec.Struct):
    branches: list[_Ref] = []
    tags: list[_Ref] = []


class _Unanswerable(ValueError):
    """The Hub's answer is too large, too slow or not what its API promises. Its text says which."""


def main() -> None:
    lines = sys.stdin.buffer
    job = msgspec.json.decode(lines.readline(), type=Job)
    try:
        fetch = Fetch(job)
        _write(fetch.listing)
        if line := lines.readline():
            fetch.run(msgspec.json.decode(line, type=Go))
            _write(Event(end=True))
    except ModelError as e:
        _write(Event(error=str(e)))
    os._exit(0)  # the other threads may wait for a server


def _write(message: Event | Listing) -> None:
    os.write(1, msgspec.json.encode(message) + b"\n")


class Fetch:
    def __init__(self, job: Job, patient: bool = True) -> None:
        """Ask for the list. `patient`: where the Hub limits requests, wait as it says."""
        self._job = job
        self.gated = False
        self.parameters: int | None = None
        self._page = (
            f"{constants.ENDPOINT}/{'datasets/' if job.kind == 'dataset' else ''}{job.repo}"
        )
        self._storage = storage_folder(job.kind, job.repo)
        with self._explained():
            try:
                self.listing = self._patient(self._list) if patient else self._list()
            except (errors.OfflineModeIsEnabled, _HttpError, OSError) as e:
                if isinstance(e, errors.HfHubHTTPError) or not (cached := self._cached()):
                    raise
                self.listing = cached

    def _list(self) -> Listing:
        job = self._job
        deadline = time.monotonic() + _LIST_S
        info = self._answer(
            f"revision/{quote(job.revision, safe='')}", _RepoInfo, deadline, blobs="True"
        )
        self.gated = bool(info.gated)
        self.parameters = (info.safetensors and info.safetensors.total) or None
        siblings = {s.rfilename: s for s in info.siblings}
        names = sorted(siblings)
        if len(names) > _LIST_FILES:
            raise ModelError(
                f"{job.repo} lists {len(names):,} files, more than dyno takes. Nothing was fetched."
            )
        unsafe = [name for name in names if not is_safe(name)]
        if unsafe:
            raise ModelError(
                f"{job.repo} lists {unsafe[0]!r:.200}, an unsafe file name. Nothing was fetched."
            )
        listed = {
            name: self._facts(siblings[name], info.sha, deadline)
            for name in self._chosen(names)
        }
        if not listed:
            some = f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}" or "none"
            raise ModelError(
                f"No file of {job.repo} matches. Its files: {some}. Check --include and --exclude."
            )
        try:
            for digest in (info.sha, *(file.etag for file in listed.values())):
                OutsideName.digest(digest)
        except UnsafeName:
            raise ModelError(
                f"{_hub()} lists {job.repo} without checksums. It doesn't serve the Hub's API."
            ) from None
        return Listing(info.sha, listed)

    def _facts(self, sibling: _Sibling, commit: str, deadline: float) -> FetchedFile:
        size, etag = sibling.size, sibling.blobId
        if sibling.lfs:
            size, etag = sibling.lfs.size, sibling.lfs.sha256
        if size is None or etag is None:
            if time.monotonic() > deadline:
                raise _Unanswerable(f"its list was not complete after {_LIST_S:.0f} s")
            about = get_hf_file_metadata(
                self._url(sibling.rfilename, commit), timeout=_TIMEOUT_S
            )
            size, etag = about.size, about.etag
        return FetchedFile(max(size or 0, 0), etag or "")

    def _url(self, name: str, commit: str) -> str:
        return hf_hub_url(self._job.repo, name, repo_type=self._job.kind, revision=commit)

    def _answer(self, what: str, kind: type[T], deadline: float, **params: str) -> T:
        """Ask the Hub's API, and read no more of its answer than a list may have."""
        url = f"{constants.ENDPOINT}/api/{self._job.kind}s/{self._job.repo}/{what}"
        asked: dict[str, Any] = {
            "headers": build_hf_headers(),
            "params": params,
            "timeout": _TIMEOUT_S,
            "follow_redirects": True,
        }
        with get_session().stream("GET", url, **asked) as response:
            hf_raise_for_status(response)
            try:
                data = bounded(response.iter_bytes(), _LIST_MAX, deadline)
            except TooMuch:
                raise _Unanswerable(
                    f"its list is larger than {human_bytes(_LIST_MAX)}"
                ) from None
            except TooSlow:
                raise _Unanswerable(
                    f"its list was not complete after {_LIST_S:.0f} s"
                ) from None
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
            raise _Unanswerable(f"its list can't be read: {e}") from None

    def check_access(self) -> None:
        """Raise HubRefusal where the user may see the list, and not fetch the files."""
        # Not a small file: some of them may be public although the weights aren't. Only headers are asked for.
        largest = max(self.listing.files, key=lambda name: self.listing.files[name].size)
        with self._explained(largest):
            get_hf_file_metadata(
                self._url(largest, self.listing.commit), timeout=_TIMEOUT_S
            )

    def small_file(self, name: str, most: int) -> bytes:
        """Return a file that has at most so many bytes, without a place in the cache."""
        asked: dict[str, Any] = {
            "headers": build_hf_headers(),
            "timeout": _TIMEOUT_S,
            "follow_redirects": True,
        }
        with (
            self._explained(name),
            get_session().stream(
                "GET", self._url(name, self.listing.commit), **asked
            ) as response,
        ):
            hf_raise_for_status(response)
            return bounded(response.iter_bytes(), most, time.monotonic() + _TIMEOUT_S)

    def _cached(self) -> Listing | None:
        """Return the files that the Hub's cache has of this revision. Their checksums are the names of their blobs."""
        commit, cached = snapshot(self._storage, self._job.revision)
        chosen = {name: cached[name] for name in self._chosen(sorted(cached))}
        return Listing(commit, chosen, offline=True) if chosen else None

    def _chosen(self, names: list[str]) -> list[str]:
        """Return the files that the job asks for. Where it names none, pickled copies of safetensors are left out:
        engines and tools don't read them."""
        job = self._job
        chosen = list(
            filter_repo_objects(
                names, allow_patterns=job.include or None, ignore_patterns=job.exclude
            )
        )
        if (
            job.include
            or job.kind != "model"
            or not any(_SAFE_COPY.fullmatch(name) for name in chosen)
        ):
            return chosen
        return [name for name in chosen if not _PICKLED_COPY.fullmatch(name)]

    def run(self, go: Go) -> None:
        listing = self.listing
        pool = ThreadPoolExecutor(_AT_ONCE)
        # Small files first: where access is denied, that shows before gigabytes were fetched.
        by_size = sorted(listing.files, key=lambda name: listing.files[name].size)
        jobs = {
            pool.submit(self._one, name, listing.files[name], go.known.get(name)): name
            for name in by_size
        }
        for job in as_completed(jobs):
            _write(Event(file=jobs[job], sha256=job.result()))
        if self._job.revision != listing.commit:
            with self._explained():
                ref = ref_path(self._storage, self._job.revision)
                ref.parent.mkdir(parents=True, exist_ok=True)
                ref.write_text(listing.commit)

    def _one(self, name: str, file: FetchedFile, known: str | None) -> str:
        """Fetch and check one file; return its SHA-256."""
        with self._explained(name):
            placed, root = (
                OutsideName(name),
                snapshot_folder(self._storage, self.listing.commit),
            )
            link = placed.below(root)
            # a cache without links has no etags
            blob = blob_path(self._storage, file.etag) if file.etag else link
            for _ in range(2):
                whole = next((p for p in (blob, link) if _has_size(p, file.size)), None)
                if whole and known:
                    return known
                sums = checksum.read(whole) if whole else self._fetched(name, file, blob)
                if not file.etag or sums.matches(file.etag):
                    if whole != link:
                        place(blob, placed, root)
                    return sums.sha256
                if whole:
                    whole.unlink(missing_ok=True)
                _write(
                    Event(
                        note=f"{name} is corrupted: its checksum differs from the Hub's. Fetching it again"
                    )
                )
        raise ModelError(
            f"{name} of {self._job.repo} is corrupted: twice it came with another checksum than {file.etag}, which "
            f"{_hub()} lists. Try again later, or from another mirror (HF_ENDPOINT)."
        )

    def _fetched(self, name: str, file: FetchedFile, blob: Path) -> checksum.Checksums:
        """Fetch a file; return its checksums. It is at `blob` if they are right, and nowhere if they are wrong."""
        if self.listing.offline:
            raise ModelError(
                f"{name} of {self._job.repo} is incomplete in the Hub's cache, and the Hub can't be asked."
            )
        blob.parent.mkdir(parents=True, exist_ok=True)
        part = partial_path(self._storage, file.etag)
        url = self._url(name, self.listing.commit)
        while True:
            with part.open("ab") as out:
                # One at a time fetches it, to its place: two dynos, or two files of a repository with the same bytes.
                fcntl.flock(out, fcntl.LOCK_EX)
                if not _is_at(out, part):  # whoever was first has moved it
                    if _has_size(blob, file.size):
                        return checksum.read(blob)
                    continue
                # the Hub sends these by its own protocol only, Xet
                if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
                    self._fill_by_xet(part, url, file)
                else:
                    self._fill(out, url, file.size)
                sums = checksum.read(part)
                if sums.matches(file.etag):
                    part.replace(blob)
                else:
                    part.unlink()
                return sums

    def _fill_by_xet(self, part: Path, url: str, file: FetchedFile) -> None:
        """Let the Hub's own protocol write the file. hf_hub_download would choose the path by what the Hub answers."""
        data = get_hf_file_metadata(url, timeout=_TIMEOUT_S).xet_file_data
        if data is None:
            raise _Unanswerable(
                f"it lists {human_bytes(file.size)}, but doesn't send such a file by Xet"
            )
        xet_get(
            incomplete_path=part,
            xet_file_data=data,
            headers=build_hf_headers(),
            expected_size=file.size,
        )

    def _fill(self, out: BinaryIO, url: str, size: int) -> None:
        """Fetch until the file has its listed size. Each of a few tries must bring a byte that none before it had."""
        most = tries = 0
        while (here := _length(out)) != size:
            if here > size:
                out.truncate(0)
                here = 0
            try:
                self._append(out, url, here, size)
                failure = None
            except (_HttpError, OSError) as e:
                status = (
                    e.response.status_code if isinstance(e, errors.HfHubHTTPError) else None
                )
                if (status is not None and status != 416 and status < 500) or getattr(
                    e, "errno", None
                ) in _FULL:
                    raise
                if status == 416:
                    out.truncate(0)
                failure = e
            now = _length(out)
            tries, most = (0, now) if now > most else (tries + 1, most)
            if tries >= _TRIES:
                listed = f"it lists {human_bytes(size)}, but sends {human_bytes(most)}"
                raise failure or _Unanswerable(listed)
            if failure:
                time.sleep(0.5 * (tries + 1))

    def _append(self, out: BinaryIO, url: str, here: int, size: int) -> None:
        """Write what is missing of a file, and not a byte more than it lists."""
        # Ranges are of the bytes that are sent: they must not be compressed.
        headers = {**build_hf_headers(), "accept-encoding": "identity"}
        if here:
            headers["range"] = f"bytes={here}-"
        asked: dict[str, Any] = {
            "headers": headers,
            "timeout": _TIMEOUT_S,
            "follow_redirects": True,
        }
        with get_session().stream("GET", url, **asked) as response:
            hf_raise_for_status(response)
            span = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
            if response.status_code != 206 or not span or int(span[1]) != here:
                out.truncate(0)  # it sends the whole file
                here = 0
            pace = _Pace()
            for part in response.iter_raw():
                room = size - here
                out.write(part[:room])
                out.flush()  # else a kill loses what was buffered, and it is fetched again
                here += min(len(part), room)
                if len(part) > room:
                    raise _Unanswerable(f"it lists {human_bytes(size)}, but sends more")
                pace.check(here)

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
                _write(
                    Event(
                        note=f"The Hub limits requests (HTTP 429). Waiting {wait_s:.0f} s"
                    )
                )
                time.sleep(wait_s)
        raise AssertionError

    @contextlib.contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        """Turn what huggingface_hub raises into a sentence with what to do."""
        try:
            yield
        except ModelError:
            raise
        except _Unanswerable as e:
            what = f"{name} of {self._job.repo}" if name else self._job.repo
            raise ModelError(
                f"{_hub()} answers wrongly for {what}: {e}. Try another mirror."
            ) from None
        except UnsafeName as e:
            raise ModelError(
                f"{str(e)!r} of {self._job.repo} would lead out of the Hub's cache."
            ) from None
        except (_HttpError, errors.OfflineModeIsEnabled, OSError, ValueError) as e:
            response: Any = getattr(e, "response", None)
            refused = response is not None and response.status_code in (401, 403, 404)
            raise (HubRefusal if refused else ModelError)(self._sentence(e, name)) from None

    def _sentence(self, e: Exception, name: str) -> str:
        repo = self._job.repo
        response: Any = getattr(e, "response", None)
        status = response.status_code if response is not None else None
        unknown = isinstance(e, errors.RepositoryNotFoundError)
        if isinstance(e, errors.GatedRepoError) or status == 403:
            return self._gated()
        if isinstance(e, errors.RevisionNotFoundError):
            return f"{repo} has no revision {self._job.revision!r}.{self._revisions()}"
        if isinstance(e, errors.EntryNotFoundError):
            return f"{name} is in the list of {repo}, but the Hub doesn't have it. Try again, or --exclude it."
        if status == 401 and get_token() and not unknown:
            return (
                f"{_hub()} refuses the token (HTTP 401). Check HF_TOKEN, or make a new one."
            )
        if unknown or status in (401, 404):
            return self._unknown()
        if status == 429:
            return f"The Hub still limits requests (HTTP 429). Wait some minutes, or set HF_TOKEN. {_AGAIN}"
        if status is not None:
            return f"The Hub answered with HTTP {status} for {name or repo}. Try again later. {_AGAIN}"
        return self._unanswered(e, name)

    def _gated(self) -> str:
        repo = self._job.repo
        if not get_token():
            return f"{repo} is gated. Accept its terms at {self._page} and set HF_TOKEN to a token that may read it."
        return f"This token has no access to {repo}. Request access at {self._page} and wait until it is granted."

    def _unknown(self) -> str:
        token = "the token must be able to read it" if get_token() else "set HF_TOKEN"
        other = (
            "without --dataset"
            if self._job.kind == "dataset"
            else "with --dataset for a data set"
        )
        return (
            f"There is no {self._job.kind} {self._job.repo} at {_hub()}. Check the name ({other}). "
            f"If it is private, {token}."
        )

    def _unanswered(self, e: Exception, name: str) -> str:
        """Say why there was no answer: by this machine's fault, or by the network's."""
        if isinstance(e, errors.OfflineModeIsEnabled):
            return f"{self._job.repo} isn't in the Hub's cache, and HF_HUB_OFFLINE is set. Unset it, or {_IMPORT}."
        if isinstance(e, OSError) and e.errno in _FULL:
            disk = self._storage.parent
            return f"The disk of {disk} is full. Free some space, or set HF_HOME to a larger disk. {_AGAIN}"
        if isinstance(e, OSError) and e.errno and e.filename:
            return (
                f"{e.filename}: {e.strerror}. Check HF_HOME, the folder of the Hub's cache."
            )
        if name:
            return (
                f"The connection was cut while fetching {name} ({_first_line(e)}). {_AGAIN}"
            )
        return (
            f"{_hub()} can't be reached: {_first_line(e)}. Check the network, set HF_ENDPOINT to a mirror, "
            f"or {_IMPORT}."
        )

    def _revisions(self) -> str:
        try:
            refs = self._answer("refs", _Refs, time.monotonic() + _TIMEOUT_S)
        except (_HttpError, OSError, ValueError):
            return " Check the name after @."
        names = [ref.name for ref in (*refs.branches, *refs.tags)]
        return f" It has {', '.join(names[:12])}{', …' if len(names) > 12 else ''}."


class _Pace:
    """Notices a body that comes too slowly to ever end."""

    def __init__(self) -> None:
        self._since, self._here = time.monotonic(), 0

    def check(self, here: int) -> None:
        now = time.monotonic()
        if now - self._since > _SLOWEST_S:
            if here - self._here < _SLOWEST:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"fewer than {_SLOWEST} bytes in {_SLOWEST_S:.0f} s"
                )
            self._since, self._here = now, here


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Return whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _length(out: BinaryIO) -> int:
    out.flush()
    return os.fstat(out.fileno()).st_size


def _hub() -> str:
    """Return the Hub's address for messages, without a user's name and password."""
    return str(constants.ENDPOINT).rpartition("@")[2]


def _first_line(e: Exception) -> str:
    """Return the first line of an error, without the system's number of it."""
    line = (str(e) or type(e).__name__).splitlines()[0].rstrip(".")
    return re.sub(r"^\[Errno -?\d+\] ", "", line)


if __name__ == "__main__":
    main()
