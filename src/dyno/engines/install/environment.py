"""Engines' environments: each a virtual environment of its own, outside the project, kept between runs.

$DYNO_HOME/engines/NAME/           NAME: vllm-0.32.0-cpu
├── bin/, lib/, …                  the virtual environment
├── install.log
└── dyno.json                      its manifest, written last: without it, this is half an installation
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec

from dyno.engines.install.installer import Found, Installer, Pip, Uv, environ
from dyno.engines.install.recipe import RECIPES, Recipe, choose, variant_of_this_machine
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, UsageError
from dyno.units import human_bytes

Say = Callable[[str], None]
_MANIFEST = "dyno.json"
_TELLING = re.compile(r"^\W*(error|fatal|hint|cause|×|╰)|\berror:|\w+Error\b|no space left|killed", re.I)

# Run in the environment: without importing the engine, which may need the accelerator.
_FACTS = """
import json, platform, sys, sysconfig
from importlib.metadata import packages_distributions, version
module, out = sys.argv[1:]
facts = {"version": version(packages_distributions()[module][0]), "python_version": platform.python_version()}
with open(out, "w") as f:
    json.dump({**facts, "packages": sysconfig.get_path("platlib")}, f)
"""


class Environment(msgspec.Struct, frozen=True):
    name: str
    kind: str
    version: str
    variant: str  # cpu, cuda, rocm
    source: str | None  # as given with --from; a password in it is left out
    python: str  # its interpreter
    python_version: str
    made: str  # UTC, ISO 8601
    packages: list[str]  # as `pip freeze` tells them
    size_bytes: int
    binary: str | None = None  # an engine that is no Python program, ready to run

    @property
    def folder(self) -> Path:
        return Path(self.python).parent.parent

    @property
    def whole(self) -> bool:
        """False where it was moved, or where the Python that it was made with is gone."""
        return all(Path(path).exists() for path in (self.python, self.binary) if path)


def home() -> Path:
    if given := os.environ.get("DYNO_HOME"):
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "dyno"


def installed(kind: str | None = None, root: Path | None = None) -> list[Environment]:
    """By kind, the newest version first."""
    found = [env for path in _engines(root).glob(f"*/{_MANIFEST}") if (env := _read(path.parent))]
    found.sort(key=lambda env: (_order(env.version), env.made), reverse=True)
    found.sort(key=lambda env: env.kind)
    return [env for env in found if kind in (None, env.kind)]


def find(
    kind: str, name: str | None = None, version: str | None = None, root: Path | None = None
) -> Environment | None:
    """The newest version that matches and is whole; of the same version, the one made last."""
    for env in installed(kind, root):
        if env.whole and name in (None, env.name) and version in (None, env.version, env.version.partition("+")[0]):
            return env
    return None


def remove(name: str, root: Path | None = None) -> None:
    engines = _engines(root)
    known = [path.name for path in sorted(engines.glob("[!.]*/"))]
    if name not in known:  # and so nothing outside the folder, whatever the name
        raise UsageError(f"There is no environment {name!r}. There are: {', '.join(known) or 'none'}.")
    with _locked(engines, name, None):
        users = _users(engines / name)
        if users:
            raise EngineError(f"{name} is in use by process {', '.join(map(str, users))}. Stop that first.")
        _sweep(engines / name)


def install(
    kind: str,
    version: str | None = None,
    variant: str | None = None,
    source: str | None = None,
    say: Say = lambda text: None,
    *,
    python: str | None = None,
    uv: bool | None = None,
    recipes: dict[str, dict[str, Recipe | str]] = RECIPES,
    root: Path | None = None,
) -> Environment:
    """`source` (a wheel, a URL, git+…) replaces the engine's package. `uv`: None means where it is on PATH."""
    variant = variant or variant_of_this_machine()
    recipe = choose(kind, variant, recipes)
    if source and version:
        raise UsageError("--version and --from exclude each other: the source has its own version.")
    if not source and recipe.package is None:
        raise UsageError(recipe.hint)
    if version and (there := _read(_engines(root) / f"{kind}-{version}-{variant}")) and there.whole:
        return _as_wanted(there, python, say)  # without asking an index
    uv = bool(shutil.which("uv")) if uv is None else uv
    work = _Work(kind, variant, source, recipe, (Uv if uv else Pip)(_interpreter(python, uv)), root or home(), say)
    requirement, mark = _requirement(recipe, version, source)
    engines = _engines(root)
    try:
        engines.mkdir(parents=True, exist_ok=True)
        work.log.parent.mkdir(exist_ok=True)
        found = work.look_up(requirement) if _tells(requirement) else None
        name = "-".join(filter(None, [kind, found.version if found else "source", variant, mark]))
        with _locked(engines, name, say):
            if (there := _read(engines / name)) and there.whole:
                work.log.unlink(missing_ok=True)
                return _as_wanted(there, python, say)
            if (engines / name).exists():
                say(f"{name}: half an installation is there; beginning anew")
                _sweep(engines / name)
            try:
                return work.make(engines / name, requirement, found)
            except BaseException:  # Ctrl-C too
                with contextlib.suppress(OSError):  # what stays is half an installation
                    _sweep(engines / name)
                raise
    except OSError as e:
        raise EngineError(
            f"{kind} can't be installed under {engines}: {e.strerror or e}. "
            "Set DYNO_HOME to a folder with room that you may write to."
        ) from None
    except KeyboardInterrupt:
        work.log.unlink(missing_ok=True)
        raise


class _Work:
    """One installation: an installer's commands one after another, with all that they print in one log."""

    def __init__(
        self, kind: str, variant: str, source: str | None, recipe: Recipe, installer: Installer, root: Path, say: Say
    ) -> None:
        self._kind, self._variant, self._source, self._recipe = kind, variant, source, recipe
        self._installer, self._say = installer, say
        self._name = kind  # until the version is known
        self._now = ""  # what it is at, in words
        self._env = environ(dict(os.environ), recipe.env)
        self.log = root / "logs" / f"install-{kind}-{variant}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"

    def look_up(self, requirement: str) -> Found:
        self._phase(f"looking up {_without_password(requirement)}")
        names = [word for word in self._recipe.first if word.isidentifier()]
        with tempfile.TemporaryDirectory(prefix="dyno-") as scratch:
            return self._installer.look_up(requirement, names, Path(scratch), self._run)

    def make(self, folder: Path, requirement: str, found: Found | None) -> Environment:
        began = time.monotonic()
        self._name = folder.name
        self._phase(f"making its environment, by {self._installer.name}")
        self._run(self._installer.make(folder))
        wanted = found.wants if found else {}
        for first in self._recipe.first:
            if step := wanted.get(first) if first.isidentifier() else first:
                self._install(folder, step)
        # In the very version that was looked up, whatever has come out since.
        exact = f"{self._recipe.package}=={found.version}" if found and not self._source else requirement
        self._install(folder, exact, "" if self._source else self._recipe.note)
        if self._recipe.remove:
            self._phase(f"uninstalling {', '.join(self._recipe.remove)}")
            self._run(self._installer.uninstall(folder, self._recipe.remove))
        made = self._tried(folder)
        self.log.replace(folder / "install.log")
        part = folder / f"{_MANIFEST}.part"
        part.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2))
        part.replace(folder / _MANIFEST)
        self._say(f"{self._name}: done, {human_bytes(made.size_bytes)} in {time.monotonic() - began:.0f} s")
        return made

    def _install(self, folder: Path, requirement: str, note: str = "") -> None:
        self._phase(f"installing {_without_password(requirement)}{note and f' ({note})'}")
        self._run(self._installer.install(folder, [requirement], self._recipe.options))

    def _tried(self, folder: Path) -> Environment:
        self._phase("trying it")
        python, out = folder / "bin" / "python", folder / "facts.json"
        self._run([str(python), "-I", "-c", _FACTS, self._recipe.module, str(out)])
        self._run([str(folder / "bin" / self._recipe.check[0]), *self._recipe.check[1:]])
        facts = msgspec.json.decode(out.read_bytes(), type=dict[str, str])
        out.unlink()
        freeze = self._installer.freeze(folder)
        frozen = subprocess.run(freeze, env=self._env, capture_output=True, text=True, check=False)
        binary = str(Path(facts["packages"]) / self._recipe.binary) if self._recipe.binary else None
        return Environment(
            name=folder.name,
            kind=self._kind,
            version=facts["version"],
            variant=self._variant,
            source=_without_password(self._source) if self._source else None,
            python=str(python),
            python_version=facts["python_version"],
            made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            packages=[_without_password(line) for line in frozen.stdout.splitlines()],
            size_bytes=_size(folder),
            binary=binary,
        )

    def _phase(self, text: str) -> None:
        self._now = text
        self._say(f"{self._name}: {text}")

    def _run(self, command: list[str]) -> None:
        with self.log.open("a") as log:
            log.write(f"$ {_without_password(shlex.join(command))}\n")
            start = log.tell()
        # In a session of its own: Ctrl-C is ours, and it doesn't outlive us.
        with EngineProcess(command, self._env, self.log) as process:
            while process.alive():
                time.sleep(0.05)
            code = process.exit_code
        if code == 0:
            return
        said = " | ".join(_useful(self.log, start))
        first = [re.split(r"\W", word)[0] for word in self._recipe.first]
        hint = f"{self._recipe.hint} " if not first or any(word in said for word in first) else ""
        raise EngineError(
            f'{self._name} wasn\'t installed: {self._now} failed with code {code}: "{said}". '
            f"{hint}Read {self.log} for the rest."
        )


def _requirement(recipe: Recipe, version: str | None, source: str | None) -> tuple[str, str | None]:
    """What the installer is asked for; and for a source, a mark that tells it from another of the same version."""
    if source is None:
        return f"{recipe.package}=={version}" if version else f"{recipe.package}", None
    if "://" in source:
        location, mark = source, source.encode()
    else:
        path = Path(source).expanduser().absolute()
        if not path.exists():
            raise UsageError(f"--from {source}: there is no such file. Give a wheel, a URL or git+https://….")
        location, mark = path.as_uri(), path.read_bytes() if path.is_file() else str(path).encode()
    tag = hashlib.sha256(mark).hexdigest()[:8]
    package, bracket, extras = (recipe.package or "").partition("[")
    if bracket:
        name = re.split(r"-\d", Path(unquote(location)).name)[0] if _tells(location) else package
        return f"{name}[{extras} @ {location}", tag
    return location if "://" in source else str(path), tag


def _tells(requirement: str) -> bool:
    """Whether its metadata can be read without building it. Of a plain name, as a rule."""
    return requirement.split("#")[0].split("?")[0].endswith(".whl") or "/" not in requirement


def _interpreter(python: str | None, uv: bool) -> str:
    if python is None:
        return sys.executable
    found = shutil.which(python) or shutil.which(f"python{python}")
    if not found and not uv:  # uv knows more places, and may fetch one
        raise UsageError(f"--python {python}: there is no such interpreter. Give its path, or a version on PATH.")
    return found or python


def _as_wanted(there: Environment, python: str | None, say: Say) -> Environment:
    if python is not None:
        asked = [_interpreter(python, False), "-Ic", "import platform; print(platform.python_version())"]
        version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if version != there.python_version:
            raise UsageError(
                f"{there.name} is there already, with Python {there.python_version} and not {version}. "
                f"Run `dyno engines remove {there.name}` first."
            )
    say(f"{there.name}: is there already, made {there.made}")
    return there


@contextlib.contextmanager
def _locked(engines: Path, name: str, say: Say | None) -> Iterator[None]:
    """One at a time on one environment; `say` None: don't wait. The kernel lets go of it if we are killed."""
    with (engines / f".{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is None:
                raise EngineError(f"{name} is being installed by another dyno.") from None
            say(f"{name}: another dyno is installing it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(folder: Path) -> None:
    """Manifest first. Again for a while, as the installer of a dyno that was killed may still be ending."""
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
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.startswith(f"{folder}/") for word in words[:2]):  # an interpreter or its script
            found.append(process.pid)
    return found


def _read(folder: Path) -> Environment | None:
    try:
        return msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Environment)
    except (OSError, msgspec.MsgspecError):
        return None


def _engines(root: Path | None) -> Path:
    return (root or home()) / "engines"


def _order(version: str) -> tuple[list[int], bool]:
    """Of two versions the higher is the newer; a release comes after its candidates."""
    release = re.match(r"[\d.]*", version.partition("+")[0])
    numbers = [int(n) for n in re.findall(r"\d+", release[0] if release else "")]
    return numbers, not re.search(r"(a|b|rc|dev)\d", version)


def _useful(log: Path, start: int) -> list[str]:
    """Of what a command printed: the lines that tell of trouble, or else the last ones."""
    with log.open("rb") as f:
        f.seek(max(start, f.seek(0, os.SEEK_END) - 262_144))
        lines = [line.strip() for line in f.read().decode("utf-8", "replace").splitlines() if re.search(r"\w", line)]
    telling = list(dict.fromkeys(line for line in lines if _TELLING.search(line)))
    if len(telling) > 6:
        telling = telling[:2] + telling[-4:]  # the cause comes first, what came of it last
    # Of a long list of versions, the newest are the last.
    return [line if len(line) < 300 else f"{line[:150]} … {line[-150:]}" for line in telling or lines[-6:]]


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://***@", text)


def _size(folder: Path) -> int:
    return sum((Path(at) / name).lstat().st_size for at, _, names in os.walk(folder) for name in names)
