"""Engine environments: one virtual environment each, outside the project, kept between runs.

$DYNO_HOME/engines/NAME/           NAME: vllm-0.32.0-cpu
├── bin/, lib/, …                  the virtual environment
├── install.log
└── dyno.json                      its manifest, written last: without it, the installation is incomplete
"""

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from dyno.engines import image
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import accepted, is_of
from dyno.saying import Say

_MANIFEST = "dyno.json"


class Environment(msgspec.Struct, frozen=True):
    name: str
    kind: str
    version: str
    variant: str  # cpu, cuda, rocm, vulkan
    source: str | None  # as given with --from; a password in it is left out
    python: str  # its interpreter; empty: it needs none
    python_version: str
    created: str = msgspec.field(name="made")  # UTC, ISO 8601
    packages: list[str]  # as `pip freeze` lists them
    size_bytes: int
    binary: str | None = None  # an engine that isn't a Python program, ready to run
    # of a container, with its digest; pulled again where it is gone
    image: str | None = None
    tool: str | None = None  # docker or podman, which has the image
    took_s: float = 0.0  # to install it; 0: by an older dyno, which didn't measure it

    @property
    def folder(self) -> Path:
        return engines_folder() / self.name

    @property
    def whole(self) -> bool:
        """Return whether it can be used: False where it was moved, or where its base Python is gone."""
        return all(Path(path).exists() for path in (self.python, self.binary) if path)


def home() -> Path:
    if given := os.environ.get("DYNO_HOME"):
        return Path(given).expanduser().absolute()
    return (
        Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "dyno"
    )


def engines_folder() -> Path:
    return home() / "engines"


def installed(kind: str | None = None) -> list[Environment]:
    """Return the environments by kind, the newest version first."""
    manifests = (read(path.parent) for path in engines_folder().glob(f"*/{_MANIFEST}"))
    envs = [env for env in manifests if env]
    envs.sort(key=lambda env: (_order(env.version), env.created), reverse=True)
    envs.sort(key=lambda env: env.kind)
    return [env for env in envs if kind in (None, env.kind)]


def find(
    kind: str,
    name: str | None = None,
    version: str | None = None,
    accepts: str | None = None,
) -> Environment | None:
    """Return the one with this version; else the newest that matches. Of several, the latest installed."""
    envs = [env for env in installed(kind) if env.whole and name in (None, env.name)]
    for env in envs:
        if version in (None, env.version, env.version.partition("+")[0]):
            return env
    for env in envs:
        if version and is_of(env.version, version):
            return env
    for env in envs:
        if accepts and accepted(env.version, accepts):
            return env
    return None


def remove(name: str) -> None:
    engines = engines_folder()
    known = [path.name for path in sorted(engines.glob("[!.]*/"))]
    if name not in known:  # and so nothing outside the folder, whatever the name
        raise UsageError(
            f"No environment named {name!r}. Installed: {', '.join(known) or 'none'}."
        )
    with locked(name, None):
        users = _users(engines / name)
        if users:
            raise EngineError(
                f"{name} is in use by process {', '.join(map(str, users))}. Stop it first."
            )
        env = read(engines / name)
        if env and env.image and env.tool and image.digest(env.tool, env.image):
            image.remove(env.tool, env.image)
        sweep(engines / name)


def read(folder: Path) -> Environment | None:
    try:
        return msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Environment)
    except (OSError, msgspec.MsgspecError):
        return None


def write(env: Environment) -> None:
    part = env.folder / f"{_MANIFEST}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(env), indent=2))
    part.replace(env.folder / _MANIFEST)


@contextlib.contextmanager
def locked(name: str, say: Say | None) -> Iterator[None]:
    """Hold one environment; `say` None: don't wait for it. The kernel unlocks it if dyno is killed."""
    with (engines_folder() / f".{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is None:
                raise EngineError(
                    f"Another dyno is installing {name}. Wait until it is done."
                ) from None
            say(f"{name}: waiting for another dyno that is installing it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sweep(folder: Path) -> None:
    """Delete it, the manifest first. Retries for a while: the installer of a killed dyno may still be ending."""
    (folder / _MANIFEST).unlink(missing_ok=True)
    deadline = time.monotonic() + 10
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _users(folder: Path) -> list[int]:
    """Return the processes that run from a folder: an interpreter or its script is there."""
    users = []
    for process in psutil.process_iter(["cmdline"]):
        words = (process.info["cmdline"] or [])[:2]
        if any(word.startswith(f"{folder}/") for word in words):
            users.append(process.pid)
    return users


def _order(version: str) -> tuple[list[int], bool]:
    """Return a sort key: the higher version is the newer, and a release comes after its candidates."""
    release = re.match(r"[\d.]*", version.partition("+")[0])
    numbers = [int(n) for n in re.findall(r"\d+", release[0] if release else "")]
    return numbers, not re.search(r"(a|b|rc|dev)\d", version)
