"""Pack runs and studies into one archive, and unpack it. Both stream: memory doesn't grow."""

import contextlib
import io
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec

from dyno import files
from dyno.archive import UnsafeMember, plain_files
from dyno.errors import StoreError, UsageError
from dyno.numbers import human_bytes
from dyno.scratch import scratch
from dyno.store.run import PASSING, RAW, make_folder, private
from dyno.store.shelf import kind_of, probe_folders, run_line, study_line

_LEVEL = 9
# May hold a prompt or an answer: engines log what they are asked, and the raw bytes are the answers.
_WORDS = (".spool", ".log")
# Unpacked without --max-size: JSON and streams of tokens shrink to a tenth or a hundredth, a bomb to a ten-thousandth.
# bytes; times the archive's size; bytes that need no ratio
_LARGEST, _RATIO, _SMALL = 64 << 30, 500, 64 << 20
_FILE = 4096  # bytes that even an empty file counts for
_DEEPEST = 8  # folders inside one another


class Packed(msgspec.Struct, frozen=True):
    files: int
    left_out: list[str]  # links and the like


def pack(folders: Sequence[Path], archive: Path, words: bool = True) -> Packed:
    """Pack folders into an archive. Without `words`: no prompt, no answer, and nothing that may quote them."""
    by_name: dict[str, Path] = {}
    for folder in folders:
        name = folder.absolute().name
        if by_name.setdefault(name, folder).absolute() != folder.absolute():
            raise UsageError(
                f"{by_name[name]} and {folder} have the same name. Pack them into two archives."
            )
        _refuse_undecoded(folder, words)
    if archive.exists():
        raise UsageError(f"{archive} exists. Choose another name with -o FILE.")
    try:
        with scratch(".dyno-pack-", archive.absolute().parent) as temporary:
            packed = _write(by_name, temporary / "archive", words)
            (temporary / "archive").replace(archive)
    except OSError as e:
        raise StoreError(
            f"{archive} can't be written: {e.strerror or e}. Choose another path with -o FILE."
        ) from None
    return packed


def _write(by_name: dict[str, Path], archive: Path, words: bool) -> Packed:
    count, left_out = 0, []
    with (
        _compressed(archive) as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, folder in sorted(by_name.items()):
            for path in sorted(folder.rglob("*")):
                if not _is_plain(path) or _is_raw(path):
                    left_out.append(str(path))
                elif (
                    path.is_file()
                    and not _passing(path)
                    and (words or not _has_words(path))
                ):
                    _add(tar, path, f"{name}/{path.relative_to(folder).as_posix()}", words)
                    count += 1
    return Packed(count, left_out)


def _is_plain(path: Path) -> bool:
    return not path.is_symlink() and (path.is_file() or path.is_dir())


def _passing(path: Path) -> bool:
    return any(fnmatchcase(path.name, pattern) for pattern in PASSING)


def _is_raw(path: Path) -> bool:
    """Return whether these bytes were not searched for secrets yet. The agent of a rig asks the same rule."""
    until = next(
        (until for pattern, until in RAW.items() if fnmatchcase(path.name, pattern)), None
    )
    if not until:
        return until == ""
    return (path.parent / until[1:]).exists() == (until[0] == "-")


def _has_words(path: Path) -> bool:
    names = ("requests.jsonl", "first_failure.json", "correctness.json")
    return path.name in names or path.name.startswith("lm-eval") or path.suffix in _WORDS


def _refuse_undecoded(folder: Path, words: bool) -> None:
    kind = kind_of(folder)
    if kind == "search":
        lines = [run_line(probe) for probe in probe_folders(folder)]
    elif kind != "study":
        lines = [run_line(folder)]
    elif words:  # a study's cut trials are measured anew: their raw bytes stay behind
        lines = []
    else:
        lines = study_line(folder).trials
    for line in lines:
        if line.state == "cut off":
            raise UsageError(
                f"{line.run} was cut off: it has only raw bytes, which contain the answers. First {line.why}, or "
                "delete it."
            )


def _add(tar: tarfile.TarFile, path: Path, name: str, words: bool) -> None:
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(path.open("rb"))
        if not words and (path.name in _WITHOUT_WORDS or path.name.startswith(_ANSWERS)):
            file = stack.enter_context(_without_words(file, path))
        info = tarfile.TarInfo(name)  # no owner, and no mode of its own
        info.size = file.seek(0, 2)
        info.mtime = int(path.stat().st_mtime)
        file.seek(0)
        tar.addfile(info, file)


@contextlib.contextmanager
def _without_words(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Make a copy on disk, since a tar's header holds the size and records may be long."""
    with tempfile.TemporaryFile() as out:
        encode = msgspec.json.Encoder().encode
        try:
            if path.suffix == ".jsonl":
                for line in file:
                    blank = (
                        _ANSWER_WORDS
                        if path.name.startswith(_ANSWERS)
                        else ("text", "error_detail")
                    )
                    out.write(
                        encode({**msgspec.json.decode(line), **dict.fromkeys(blank, "")})
                        + b"\n"
                    )
            else:
                value: dict[str, Any] = msgspec.json.decode(file.read())
                if value.get("summary"):
                    examples = value["summary"].get("failure_examples", {})
                    value["summary"]["failure_examples"] = dict.fromkeys(examples, "")
                value = _without_quotes(value)
                # The engine's last words may quote what it was asked.
                value |= {name: "" for name in ("text", "died") if value.get(name)}
                out.write(encode(value))
        except (*files.BROKEN, KeyError, TypeError, AttributeError) as e:
            raise StoreError(
                f"{path} can't be read, so its texts can't be removed: {e}."
            ) from None
        yield out


_ANSWERS, _ANSWER_WORDS = "answers-", ("target", "answer", "extracted", "error")
_WITHOUT_WORDS = (
    "records.jsonl", "summary.json", "failed.json", "engine.json", "find.json", "probes.json", "tune.json",
    "search.json",
)  # fmt: skip
_REMOVED = "(removed: it may quote an answer)"
_QUOTE = re.compile(
    r"""(?<!\w)'(?:[^'\\\n]|\\.)+'(?!\w)|(?<!\w)"(?:[^"\\\n]|\\.)+"(?!\w)"""
)


def _without_quotes(value: Any) -> Any:
    """Remove from findings, however deep, what they quote of answers and of servers' words."""
    if isinstance(value, list):
        return [_without_quotes(item) for item in value]
    if not isinstance(value, dict):
        return value
    if {"code", "level", "text"} <= value.keys() and isinstance(value["text"], str):
        quotes = str(value["code"]).startswith(("correctness.", "quality."))
        text = _REMOVED if quotes else _QUOTE.sub("'…'", value["text"])
        return {**value, "text": text}
    return {key: _without_quotes(item) for key, item in value.items()}


class _Counted(io.RawIOBase):
    """A stream that counts what is read of it, and calls `check` after each reading."""

    def __init__(self, inner: IO[bytes], check: Callable[[], None] = lambda: None) -> None:
        self._inner, self._check, self.count = inner, check, 0

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        got = self._inner.readinto(room)  # type: ignore[attr-defined]
        self.count += got
        self._check()
        return int(got)


class _Bound:
    """How much may come out of an archive. `most`: as the user allows, whatever the archive's own size is."""

    def __init__(self, archive: Path, packed: IO[bytes], most: int | None) -> None:
        self._archive, self._most, self._files = archive, most, 0
        self._packed = _Counted(packed)
        self.data = _Counted(_decompressed(self._packed), self.check)

    def file(self) -> None:
        self._files += 1
        self.check()

    def check(self) -> None:
        got, most = self.data.count + _FILE * self._files, self._most or _LARGEST
        ratio = self._most is None and got > max(_SMALL, _RATIO * self._packed.count)
        if ratio or got > most:
            bound = f"{_RATIO} times its own size" if ratio else human_bytes(most)
            raise StoreError(
                f"{self._archive} unpacks to more than {bound}, so nothing was unpacked. "
                f"If you trust it, use --max-size {max(2 * got >> 30, 1)}G."
            )


def unpack(archive: Path, runs: Path, most: int | None = None) -> list[Path]:
    """Unpack all of it or nothing: plain files in folders of runs, and nothing is overwritten. `most`: bytes; None: a
    bound that an honest archive doesn't reach."""
    existed = runs.exists()
    try:
        make_folder(runs)
        with scratch(".unpacking-", runs) as folder:
            _extract(archive, folder, most)
            return _put(folder, runs, archive)
    except OSError as e:
        raise StoreError(
            f"{archive} can't be unpacked into {runs}: {e.strerror or e}."
        ) from None
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # it holds what was unpacked
                runs.rmdir()


def _extract(archive: Path, folder: Path, most: int | None) -> None:
    try:
        with contextlib.ExitStack() as stack:
            packed = stack.enter_context(files.opened(archive, pipes=True))
            bound = _Bound(archive, packed, most)
            for name, _, source in plain_files(
                cast(IO[bytes], bound.data), _DEEPEST, bound.file
            ):
                if len(name.parts) < 2:
                    raise UnsafeMember(str(name))
                path = name.below(folder)
                make_folder(path.parent)
                with open(path, "xb", opener=private) as out:
                    shutil.copyfileobj(source, out, 1 << 20)
    except UnsafeMember as e:
        raise StoreError(
            f"{archive} contains {str(e)!r}, which is a link or an unsafe path, so it isn't from `dyno runs pack`. "
            "Nothing was unpacked."
        ) from None
    except (tarfile.TarError, EOFError, ValueError, _zstd_error()) as e:
        raise StoreError(
            f"{archive} is damaged, or not from `dyno runs pack`: {e}."
        ) from None
    except FileExistsError as e:
        raise StoreError(
            f"{archive} contains {e.filename!r} twice. Nothing was unpacked."
        ) from None


def _put(folder: Path, runs: Path, archive: Path) -> list[Path]:
    names = sorted(p.name for p in folder.iterdir())
    for name in names:
        if kind_of(folder / name) is None and not (folder / name / "failed.json").exists():
            raise StoreError(
                f"{archive} contains {name}, which is not a run, study or search. Nothing was unpacked."
            )
        if (runs / name).exists():
            raise StoreError(
                f"{runs / name} exists already. Nothing was changed. Unpack into another folder with --runs DIR."
            )
    if not names:
        raise StoreError(f"{archive} is empty.")
    for name in names:
        (folder / name).rename(runs / name)
    return [runs / name for name in names]


if sys.version_info >= (3, 14):
    from compression import zstd

    def _compressed(path: Path) -> IO[bytes]:
        return zstd.open(path, "wb", level=_LEVEL)

    def _decompressed(packed: io.RawIOBase) -> IO[bytes]:
        return zstd.open(packed, "rb")

    def _zstd_error() -> type[Exception]:
        return zstd.ZstdError
else:
    import zstandard

    def _compressed(path: Path) -> IO[bytes]:
        file: IO[bytes] = zstandard.open(
            path, "wb", cctx=zstandard.ZstdCompressor(level=_LEVEL)
        )
        return file

    def _decompressed(packed: io.RawIOBase) -> IO[bytes]:
        file: IO[bytes] = zstandard.open(cast(BinaryIO, packed), "rb")
        return file

    def _zstd_error() -> type[Exception]:
        return zstandard.ZstdError
