"""A run: the folder of a trial's facts. The summary is written last: where it is, the run is whole."""

import contextlib
import datetime
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from dyno import files, secrets
from dyno.errors import StoreError, UsageError
from dyno.facts.correctness import Correctness
from dyno.facts.engine import EngineFacts
from dyno.facts.forward import ForwardCase
from dyno.facts.model import ModelShape
from dyno.facts.offline import Iteration
from dyno.facts.quality import ItemAnswer, Sitting
from dyno.facts.record import ClientFacts, Record
from dyno.facts.rig import Peaks, Rig
from dyno.facts.study import Place
from dyno.facts.summary import MediaFacts, Result
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.store import upgrade
from dyno.workload.media import Medium
from dyno.workload.request import (
    CountedBy,
    DataFile,
    HasMedia,
    Histories,
    Request,
    StoredRequest,
    Templating,
)

T = TypeVar("T")
# is beside an engine's log as long as secrets may be in it: also where dyno was killed
UNSCRUBBED = ".unscrubbed"
PASSING = (".lock", UNSCRUBBED, "*.partial")  # files that are of no use elsewhere
# Bytes that may hold a key which a server sent back or an engine logged: they stay in their folder until they were
# searched. +NAME: until NAME is beside them. -NAME: as long as NAME is. '': always. The first pattern that fits counts.
RAW = {"exchanges*.spool": "+summary.json", "*.spool": "", "*.log": f"-{UNSCRUBBED}"}


class StoredLengths(HasMedia, msgspec.Struct):
    """A request without its prompt: see workload.request.Turn."""

    prompt_tokens: int
    output_tokens: int
    session: int | None = None
    after: list[int] = []
    wait_s: float = 0.0
    history: int | None = None
    group: str = ""
    media: list[Medium] = []
    media_tokens: int | None = None
    inputs: list[msgspec.Raw] = []

    @property
    def results(self) -> int:
        return len(self.inputs) or 1


class Manifest(msgspec.Struct, frozen=True):
    """All that is needed to run a trial again, and to understand its records."""

    dyno: str  # version
    started: str  # wall time, ISO 8601: the only one in the folder
    trial: TrialSpec
    target: TargetFacts
    tokenizer: str | None
    counted_by: CountedBy
    workload_sha256: str
    prompts: int
    repeated_prompts: int
    # an earlier run that sent the very same prompts to the same address
    sent_before: str | None
    rig: Rig
    # sent before the load to see that the server answers; in no figure
    test_requests: int = 0
    cache_emptied: bool | None = None  # right before the load; None: not tried
    place: Place | None = None  # in a study
    model: ModelShape | None = None  # from its files; None: they aren't here
    peaks: Peaks | None = None  # of what the engine runs on; None: not known
    # the file of the prompts, where dyno has it from the Hub
    dataset: DataFile | None = None
    answers: Histories | None = None  # in the history of conversations; None: there is none
    dropped: dict[str, int] = {}  # left out of the workload: reason → how many
    # of completions prompts; None: not wanted, or the server applies it
    template: Templating | None = None
    structured: bool = False  # requests prescribe the form of their answers
    media: MediaFacts | None = None  # where requests have images, sounds or videos
    processes: int = 1  # of the client: each has a spool and a slice of the requests
    plugins: dict[str, str] = {}  # that were switched on: name → version


class Run:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "trial.json"
        self.requests_path = path / "requests.jsonl"
        self.spool_path = path / "exchanges.spool"  # of the client's first process
        self.warmup_path = path / "warmup.spool"
        self.probe_path = path / "probes.spool"  # of requests beside the load
        self.engine_path = path / "engine.json"
        self.client_path = path / "client.json"
        # of `vllm bench forward --output-json`, where the user has put it
        self.forward_path = path / "forward.json"
        # written by the sampler; absent in runs of older versions
        self.telemetry_path = path / "telemetry.jsonl"
        self.records_path = path / "records.jsonl"
        # of an offline trial, instead of spool and records
        self.iterations_path = path / "iterations.jsonl"
        # of a quality trial, beside answers-CONCURRENCY.jsonl
        self.sittings_path = path / "sittings.json"
        self.summary_path = path / "summary.json"  # RAW has its name

    def spools_of(self, processes: int, warmup: bool = False) -> list[Path]:
        """Return the spool of each client process, whether it was written or not."""
        first = self.warmup_path if warmup else self.spool_path
        return [first, *(first.with_stem(f"{first.stem}-{k}") for k in range(1, processes))]

    def spools(self) -> list[Path]:
        return sorted(self.path.glob("exchanges*.spool"))

    @property
    def whole(self) -> bool:
        return self.summary_path.exists()

    def write_manifest(
        self, manifest: Manifest, requests: Iterable[Request] | None = None
    ) -> None:
        write(self.manifest_path, pretty(manifest))
        if requests is not None:
            encode = msgspec.json.Encoder().encode
            write(self.requests_path, b"".join(encode(r) + b"\n" for r in requests))

    def manifest(self) -> Manifest:
        return read(self.manifest_path, Manifest)

    def lengths(self) -> list[StoredLengths]:
        return list(_lines(self.requests_path, StoredLengths))

    def requests(self) -> list[StoredRequest]:
        return list(_lines(self.requests_path, StoredRequest))

    def running(self) -> bool:
        """Return whether a live process is writing it."""
        held = (*self.path.glob("*.spool"), self.iterations_path, self.path / ".lock")
        return any(map(locked, held))

    @contextlib.contextmanager
    def in_hand(self) -> Iterator[None]:
        """Be the one that writes it, though its load is over. Two at a time would be in each other's way."""
        with contextlib.ExitStack() as held:
            for spool in self.spools():
                # a file system without locks; a file that whoever decodes it complains of
                with contextlib.suppress(OSError):
                    file = held.enter_context(files.opened(spool))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock it as long as its quality trial is under way: another dyno must not continue it meanwhile."""
        path = self.path / ".lock"
        with open(path, "wb", opener=private) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
            path.unlink()

    def write_engine(self, engine: EngineFacts) -> None:
        write(self.engine_path, pretty(engine))

    def engine(self) -> EngineFacts | None:
        """Return the facts of the engine; None: dyno started none."""
        return read_optional(self.engine_path, EngineFacts)

    def write_first_failure(self, why: str) -> None:
        """Write why a trial is tried once more."""
        write(self.path / "first_failure.json", pretty(why))

    def first_failure(self) -> str | None:
        return read_optional(self.path / "first_failure.json", str)

    def write_client(self, client: ClientFacts) -> None:
        write(self.client_path, msgspec.json.encode(secrets.clean(client)))

    def client(self) -> ClientFacts | None:
        return read_optional(self.client_path, ClientFacts)

    def forward(self) -> list[ForwardCase]:
        return read_optional(self.forward_path, list[ForwardCase]) or []

    def write_correctness(self, answers: Correctness) -> None:
        write(self.path / "correctness.json", pretty(answers))

    def correctness(self) -> Correctness | None:
        return read_optional(self.path / "correctness.json", Correctness)

    def write_lines(self, lines: Iterable[bytes]) -> None:
        """Write the records, each as the line that it is."""
        partial = self.records_path.with_suffix(".partial")
        try:
            with open(partial, "wb", buffering=1 << 20, opener=private) as file:
                file.writelines(lines)
                file.flush()
                # before the summary, which says that they are there
                os.fsync(file.fileno())
            partial.replace(self.records_path)
        except OSError as e:
            raise unwritable(self.records_path, e) from None
        except OverflowError:
            raise StoreError(
                f"{self.spool_path} contains impossible times: it is damaged."
            ) from None

    def records(self) -> Iterator[Record]:
        return _lines(self.records_path, Record)

    @contextlib.contextmanager
    def appending(self) -> Iterator[Callable[[Iteration], None]]:
        """Add iterations one by one, and lock the file meanwhile: so others know that it is being written."""
        try:
            with open(self.iterations_path, "wb", opener=private) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

                def append(iteration: Iteration) -> None:
                    file.write(msgspec.json.encode(secrets.clean(iteration)) + b"\n")
                    file.flush()

                yield append
                os.fsync(file.fileno())
        except OSError as e:
            raise unwritable(self.iterations_path, e) from None

    def iterations(self) -> Iterator[Iteration]:
        """Yield the iterations of an offline trial. One that was cut in the middle of a line is left out."""
        return (
            _lines(self.iterations_path, Iteration, cut=True)
            if self.iterations_path.exists()
            else iter(())
        )

    def answers_path(self, concurrency: int) -> Path:
        return self.path / f"answers-{concurrency}.jsonl"

    def write_answers(self, concurrency: int, answers: Iterable[ItemAnswer]) -> None:
        encode = msgspec.json.Encoder().encode
        write(
            self.answers_path(concurrency),
            b"".join(encode(secrets.clean(a)) + b"\n" for a in answers),
        )

    def answers(self, concurrency: int) -> list[ItemAnswer]:
        path = self.answers_path(concurrency)
        return list(_lines(path, ItemAnswer)) if path.exists() else []

    def write_sittings(self, sittings: list[Sitting]) -> None:
        write(self.sittings_path, pretty(sittings))

    def sittings(self) -> list[Sitting]:
        return read_optional(self.sittings_path, list[Sitting]) or []

    def write_result(self, result: Result) -> None:
        write(self.summary_path, pretty(result))

    def result(self) -> Result:
        return read(self.summary_path, Result, upgrade.result)

    def drop_raw(self) -> None:
        # and what a dyno that was killed had decoded of them
        partial = self.path.glob("exchanges*.partial")
        for path in [*self.spools(), self.probe_path, *partial]:
            path.unlink(missing_ok=True)


def create(runs: Path, name: str) -> Run:
    """Make a new folder, named by time and subject, with a few random letters against a clash."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = runs / f"{stamp}-{slug(name)}-{token_hex(2)}"
    try:
        make_folder(path, new=True)
    except OSError as e:
        raise StoreError(
            f"The run folder {path} can't be created: {e.strerror}. Choose another folder with --runs DIR."
        ) from None
    return Run(path)


def make_folder(path: Path, new: bool = False) -> None:
    """Make a folder for its owner alone, and those above it that don't exist yet. What exists keeps its mode."""
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=not new)


def private(path: str, flags: int) -> int:
    """Open a file for its owner alone: it has the words of engines and servers."""
    return os.open(path, flags, 0o600)


def slug(text: str) -> str:
    """Return it as a part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:70].rstrip("-.")


def sent_before(runs: Path, workload_sha256: str, target: TargetSpec) -> str | None:
    """Return the latest of the last hundred runs that sent these prompts to this target."""
    for run in reversed(listed(runs)[-100:]):
        try:
            manifest = run.manifest()
        except StoreError:  # of another version of dyno
            continue
        if manifest.workload_sha256 == workload_sha256 and {*manifest.trial.target.urls} & {
            *target.urls
        }:
            return str(run.path)
    return None


def listed(runs: Path) -> list[Run]:
    return (
        [Run(p.parent) for p in sorted(runs.glob("**/trial.json"))] if runs.is_dir() else []
    )


def locked(path: Path) -> bool:
    """Return whether a live process holds the file."""
    try:
        with files.opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it doesn't exist, or isn't a file
        return False
    return False


def pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(secrets.clean(value)), indent=2) + b"\n"


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write it whole or not at all, also when the machine stops in between."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(
            partial,
            "wb",
            opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode),
        ) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as e:
        with contextlib.suppress(OSError):  # a full disk needs the room
            partial.unlink()
        raise unwritable(path, e) from None


def unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} can't be written: {error.strerror}. Free some space, or choose another folder."
    )


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} can't be read: {error.strerror}. Is this a dyno run folder?")


def _lines(path: Path, kind: type[T], cut: bool = False) -> Iterator[T]:
    """Yield the lines. `cut`: the last one may have been cut by a crash, and is left out."""
    decoder = msgspec.json.Decoder(kind)
    try:
        for number, line in enumerate(files.lines(path), 1):
            if cut and not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except files.BROKEN as e:
                raise StoreError(f"{path}, line {number}, is damaged: {e}.") from None
    except OSError as e:
        raise _unreadable(path, e) from None


def read(path: Path, kind: type[T], upgrade: Callable[[bytes], bytes] = bytes) -> T:
    """Read a file. `upgrade`: turns what earlier versions wrote into what this one reads."""
    try:
        return msgspec.json.decode(upgrade(files.read(path)), type=kind)
    except OSError as e:
        raise _unreadable(path, e) from None
    except files.BROKEN as e:
        raise StoreError(
            f"{path} is not in the format of this dyno version: {e}."
        ) from None


def read_optional(path: Path, kind: type[T]) -> T | None:
    return read(path, kind) if path.exists() else None


# ---- tags: words that a user gave a run or a study, beside the facts, which are not rewritten ----

_TAG = re.compile(r"[\w.+:=/@-]{1,60}")


def tags_of(folder: Path) -> list[str]:
    return read_optional(folder / "tags.json", list[str]) or []


def retag(folder: Path, add: Iterable[str] = (), remove: Iterable[str] = ()) -> list[str]:
    tags = sorted(({*tags_of(folder)} | {*map(check_tag, add)}) - {*remove})
    if tags:
        write(folder / "tags.json", pretty(tags))
    else:
        (folder / "tags.json").unlink(missing_ok=True)
    return tags


def check_tag(word: str) -> str:
    if not _TAG.fullmatch(word):
        raise UsageError(
            f"{word!r} is not a valid tag. Use one word of letters, digits and . + - _ : = / @."
        )
    return word
