"""Install an engine into its own environment: a package with pip, llama.cpp from source, or a container image.

pip and not uv: it comes with every Python that dyno runs on. Its own configuration (indexes, proxies, find-links) is
the user's. A recipe says which packages an engine is.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from dyno.engines import container, llama_build, versions
from dyno.engines import image as images
from dyno.engines.environment import (
    Environment,
    engines_folder,
    home,
    installed,
    locked,
    read,
    sweep,
    write,
)
from dyno.engines.kinds import KINDS
from dyno.engines.kinds.llamacpp import BUILD_NEEDS
from dyno.engines.kinds.recipe import Recipe
from dyno.engines.launch import version_in_image
from dyno.engines.log import tail
from dyno.engines.process import EngineProcess
from dyno.engines.tools import ON_PROCESSORS
from dyno.engines.tools import RECIPES as TOOL_RECIPES
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, image_problem, is_of
from dyno.numbers import duration, human_bytes
from dyno.saying import Say
from dyno.scratch import scratch


def recipes() -> dict[str, Mapping[str, Recipe]]:
    """Return the packages of engines and tools, by variant. Where there is none, versions.toml may know an image."""
    engines = {
        kind.name: kind.recipes for kind in KINDS.values() if kind.recipes is not None
    }
    return {**engines, **TOOL_RECIPES}


def _is_built(kind: str) -> bool:
    """Return whether an engine or a tool can be built from source, where there is no package."""
    return any(recipe.programs for recipe in recipes().get(kind, {}).values())


def _comes_with_dyno(kind: str) -> bool:
    if kind == "embedded":  # as llama.cpp's own program was called
        return True
    return kind in KINDS and KINDS[kind].recipes is None and KINDS[kind].starts


def choose(
    kind: str, variant: str, by: str | None = None, source: str | None = None
) -> str:
    """Return the way to install it: by a package where there is one, unless `by` says otherwise."""
    if _comes_with_dyno(kind):
        raise UsageError(f"The {kind} engine comes with dyno: nothing to install.")
    known = recipes()
    if kind not in known:
        raise UsageError(f"No engine named {kind!r} to install. Known: {', '.join(known)}.")
    recipe = known[kind].get(variant)
    has_package = recipe is not None and bool(recipe.package or source)
    if by is None:
        by = _usual_way(kind, source, has_package)
    if by == "source" and not _is_built(kind):
        built = " and ".join(each.title for each in KINDS.values() if each.is_built)
        raise UsageError(
            f"dyno builds only {built} from source, not {kind}. Remove --by source."
        )
    if by == "package" and not has_package:
        raise UsageError(
            f"There is no package of {kind} for {variant}. Give a wheel with --from, or --by container."
        )
    return by


def _usual_way(kind: str, source: str | None, has_package: bool) -> str:
    if source and _is_built(kind) and not _for_pip(source):
        return "source"
    return "package" if has_package else "container"


def _for_pip(source: str) -> bool:
    path = source.split("#")[0].split("?")[0]
    return source.startswith("git+") or path.endswith((".whl", ".tar.gz", ".zip"))


def variant_for(kind: str, machine: str) -> str:
    """Return the variant of an environment on a machine: some tools use its processors alone."""
    return "cpu" if kind in ON_PROCESSORS else machine


def describe(kind: str, variant: str) -> str:
    """Say how it is installed, as far as that needs something of the machine."""
    return (
        f"install; its build needs {llama_build.build_needs(variant)}"
        if _is_built(kind)
        else "install"
    )


def about_bytes(kind: str, variant: str) -> int | None:
    """Return about how large its environment is: as an installed one of another version, or as its recipe says."""
    here = next(
        (
            env.size_bytes
            for env in installed(kind)
            if env.variant == variant and env.size_bytes
        ),
        None,
    )
    recipe = recipes().get(kind, {}).get(variant)
    return here or (recipe.about_bytes if recipe else None)


def variant_of_this_machine() -> str:
    if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"


_WORTH_BYTES = 1_000_000  # written by a command, below which its size says nothing
_USEFUL = re.compile(
    r"^\W*(error|fatal|hint|cause|×|╰)|\berror:|\w+Error\b|no space left|killed", re.I
)
_NOT_INHERITED = (
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"),  # it goes where we say
)

# Both are run in the environment's interpreter. Only pip is sure to be there.
_WANTS = """
import json, sys
from pip._vendor.packaging.requirements import Requirement
report, out, *names = sys.argv[1:]
with open(report) as f:
    metadata = json.load(f)["install"][0]["metadata"]
wants = {}
for line in metadata.get("requires_dist", []):
    r = Requirement(line)
    if r.name in names and (r.marker is None or r.marker.evaluate({"extra": ""})):
        wants[r.name] = f"{r.name}{r.specifier}"
with open(out, "w") as f:
    json.dump({"version": metadata["version"], "wants": wants}, f)
"""
# Without importing the engine, which may need the accelerator.
_FACTS = """
import json, platform, sys, sysconfig
from importlib.metadata import packages_distributions, version
module, out = sys.argv[1:]
facts = {"version": version(packages_distributions()[module][0]), "python_version": platform.python_version()}
with open(out, "w") as f:
    json.dump({**facts, "packages": sysconfig.get_path("platlib")}, f)
"""


def install(
    kind: str,
    version: str | None = None,
    variant: str | None = None,
    source: str | None = None,
    say: Say = lambda text: None,
    python: str | None = None,
    below: Say = lambda text: None,
    by: str | None = None,
) -> Environment:
    """Install an engine. `source` replaces the engine's package, repository or image. `below` gets the log's last line
    every second."""
    variant = variant or variant_for(kind, variant_of_this_machine())
    by = choose(kind, variant, by, source)
    if by == "package" and source and version:
        raise UsageError(
            "--version and --from exclude each other: the source has its own version."
        )
    engines = engines_folder()
    env = (
        _complete(engines / f"{kind}-{version}-{variant}")
        if version and not source and by != "container"
        else None
    )
    if env:
        return _as_wanted(env, python, say)  # without asking an index
    asked = InstallSpec(kind, variant, version, source, _interpreter(python))
    work = _WAYS[by](asked, say, below)
    try:
        engines.mkdir(parents=True, exist_ok=True)
        work.log.parent.mkdir(exist_ok=True)
        try:
            name = work.look_up()
        except EngineError as e:
            if by != "package" or not _can_be_built(asked, e):
                raise
            say(
                f"{kind}: there is no package of build {version}, so it is built from source"
            )
            work = SourceInstallation(asked, say, below)
            name = work.look_up()
        return _installed(work, engines / name, python, say)
    except OSError as e:
        raise EngineError(
            f"{kind} can't be installed under {engines}: {e.strerror or e}. "
            "Set DYNO_HOME to a writable folder with enough space."
        ) from None
    except KeyboardInterrupt:
        work.log.unlink(missing_ok=True)
        raise


def _complete(folder: Path) -> Environment | None:
    """Return the installation in a folder. None: there is none, or a part of one."""
    env = read(folder)
    return env if env and env.whole else None


def _can_be_built(asked: "InstallSpec", e: EngineError) -> bool:
    """Return whether only the package of this version is missing, and dyno builds the engine from source, too."""
    return (
        bool(asked.version)
        and _is_built(asked.kind)
        and "No matching distribution" in str(e)
    )


def _installed(
    work: "Installation", folder: Path, python: str | None, say: Say
) -> Environment:
    """Install into a folder, unless another process has done so meanwhile. A failure leaves nothing there."""
    with locked(folder.name, say):
        env = _complete(folder)
        if env:
            work.log.unlink(missing_ok=True)
            return _as_wanted(env, python, say)
        if folder.exists():
            say(f"{folder.name}: removing an incomplete installation")
            sweep(folder)
        try:
            return work.run(folder)
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(OSError):  # else an incomplete installation stays
                sweep(folder)
            raise


class InstallSpec(msgspec.Struct, frozen=True):
    kind: str
    variant: str
    version: str | None
    source: str | None  # in place of the engine's own package, repository or image
    python: str


class Installation:
    """Runs commands in order, with all their output in one log. A subclass for each way to install."""

    hint = ""
    # where the output names one of them, or there is none, the hint applies
    packages: Sequence[str] = ()

    def __init__(self, asked: InstallSpec, say: Say, below: Say) -> None:
        self.asked, self._say, self._below = asked, say, below
        self._name = asked.kind  # until the version is known
        self._phase_now = ""
        self.env = installer_env(dict(os.environ), {})
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.log = home() / "logs" / f"install-{asked.kind}-{asked.variant}-{stamp}.log"

    def look_up(self) -> str:
        """Return the environment's name, with the version that would be installed."""
        raise NotImplementedError

    def fill(self, folder: Path) -> Environment:
        """Install into the folder."""
        raise NotImplementedError

    def run(self, folder: Path) -> Environment:
        began = time.monotonic()
        self._name = folder.name
        if expected := self._expected():
            self._say(f"{self._name}: {expected}")
        env = msgspec.structs.replace(
            self.fill(folder), took_s=round(time.monotonic() - began, 3)
        )
        if self.log.exists():  # an image that was here left none
            self.log.replace(folder / "install.log")
        write(env)
        size = f"{human_bytes(env.size_bytes)} in " if env.size_bytes else ""
        self._say(f"{self._name}: done, {size}{duration(env.took_s)}")
        return env

    def _expected(self) -> str:
        """Say how large it will be, and how long it took the last time."""
        kind = self.asked.kind
        size = about_bytes(kind, self.asked.variant)
        took_s = next((env.took_s for env in installed(kind) if env.took_s), None)
        parts = [f"about {human_bytes(size)} on the disk"] if size else []
        if took_s:
            parts.append(f"{duration(took_s)} the last time")
        return ", ".join(parts)

    def name_of(self, version: str, mark: str | None) -> str:
        return "-".join(filter(None, [self.asked.kind, version, self.asked.variant, mark]))

    def environment(self, version: str, size_bytes: int, **more: Any) -> Environment:
        source = _without_password(self.asked.source) if self.asked.source else None
        facts = {
            "source": source,
            "python": "",
            "python_version": "",
            "packages": [],
            **more,
        }
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kind, variant = self.asked.kind, self.asked.variant
        return Environment(
            name=self._name,
            kind=kind,
            version=version,
            variant=variant,
            created=created,
            size_bytes=size_bytes,
            **facts,
        )

    def phase(self, text: str) -> None:
        self._phase_now = _without_password(text)
        self._say(f"{self._name}: {self._phase_now}")

    def call(self, command: list[str]) -> None:
        with self.log.open("a") as log:
            log.write(f"$ {_without_password(shlex.join(command))}\n")
            start = log.tell()
        # In a session of its own: Ctrl-C is ours, and it doesn't outlive us.
        with EngineProcess(command, self.env, self.log) as process:
            due = time.monotonic() + 1
            while process.alive():
                time.sleep(0.05)
                if time.monotonic() > due:
                    due += 1
                    written = process.written_bytes()
                    size = (
                        f"{human_bytes(written)} written, "
                        if written > _WORTH_BYTES
                        else ""
                    )
                    self._below(_without_password(f"{size}{process.last_line()}"))
            code = process.exit_code
        if code == 0:
            return
        output = " | ".join(_useful_lines(self.log, start))
        hint = (
            f"{self.hint} "
            if not self.packages or any(word in output for word in self.packages)
            else ""
        )
        raise EngineError(
            f'{self._name} can\'t be installed: {self._phase_now} failed with code {code}: "{output}". '
            f"{hint}Read {self.log} for the rest."
        )

    def make(self, folder: Path) -> None:
        self.call([self.asked.python, "-I", "-m", "venv", str(folder)])

    def compile(
        self, folder: Path, checkout: llama_build.Checkout, programs: Sequence[str]
    ) -> None:
        """Build llama.cpp's programs, with a CMake from pip where this machine has none."""
        cmake = shutil.which("cmake")
        if cmake is None:
            self.phase("installing cmake")
            if not (folder / "bin" / "python").exists():
                self.make(folder)
            self.call(_pip(folder, "install", "--progress-bar=off", "cmake"))
            cmake = str(folder / "bin" / "cmake")
        llama_build.build(
            checkout, folder, self.asked.variant, cmake, self.call, self.phase, programs
        )


class PackageInstallation(Installation):
    """Installs with pip, into a virtual environment."""

    def __init__(self, asked: InstallSpec, say: Say, below: Say) -> None:
        super().__init__(asked, say, below)
        self._recipe = recipe = recipes()[asked.kind][asked.variant]
        self.env = installer_env(dict(os.environ), recipe.env)
        self.hint = recipe.hint
        self.packages = [re.split(r"\W", word)[0] for word in recipe.first]
        self._requirement, self._mark = _requirement(
            recipe, asked.version or recipe.version, asked.source
        )
        # name → the package's own requirement on it: torch → torch==2.13.0+cpu
        self._wants: dict[str, str] = {}
        self._version: str | None = None

    def look_up(self) -> str:
        """Look it up in its metadata alone, where it can be read without a build."""
        if self._recipe.sources:
            llama_build.check_tools(self.asked.variant)
        if not _has_metadata(self._requirement):
            return self.name_of("source", self._mark)
        self.phase(f"looking up {self._requirement}")
        names = [word for word in self._recipe.first if word.isidentifier()]
        with scratch() as place:
            folder, report, out = (
                place / name for name in ("venv", "report.json", "candidate.json")
            )
            self.make(folder)
            options = [
                "--dry-run",
                "--no-deps",
                "--ignore-installed",
                "--report",
                str(report),
            ]
            self.call(
                _pip(folder, "install", "--progress-bar=off", *options, self._requirement)
            )
            self.call(
                [
                    str(folder / "bin" / "python"),
                    "-I",
                    "-c",
                    _WANTS,
                    str(report),
                    str(out),
                    *names,
                ]
            )
            facts = json.loads(out.read_text())
        version: str = facts["version"]
        self._version, self._wants = version, facts["wants"]
        if not self.asked.source:  # even if a newer one comes out meanwhile
            self._requirement = f"{self._recipe.package}=={version}"
        return self.name_of(version, self._mark)

    def fill(self, folder: Path) -> Environment:
        self.phase("creating its environment")
        self.make(folder)
        options = [*self._recipe.options, *self._constraints(folder)]
        for name in self._recipe.first:
            first = self._wants.get(name) if name.isidentifier() else name
            if first:
                self.phase(f"installing {first}")
                self.call(_pip(folder, "install", "--progress-bar=off", *options, first))
        note = "" if self.asked.source else self._recipe.note
        self.phase(
            f"installing {self._requirement} ({note})"
            if note
            else f"installing {self._requirement}"
        )
        self.call(
            _pip(folder, "install", "--progress-bar=off", *options, self._requirement)
        )
        if self._recipe.remove:
            self.phase(f"uninstalling {', '.join(self._recipe.remove)}")
            self.call(_pip(folder, "uninstall", "--yes", *self._recipe.remove))
        if self._recipe.sources:
            [sources] = folder.glob(f"lib/python*/site-packages/{self._recipe.sources}")
            self.compile(
                folder, llama_build.Checkout(str(sources), 0), self._recipe.programs
            )
        return self._check(folder)

    def _constraints(self, folder: Path) -> list[str]:
        """Return pip's options that keep out packages which broke this version."""
        pins = versions.pins(self.asked.kind, self._version)
        if not pins:
            return []
        file = folder / "constraints.txt"
        file.write_text("\n".join(pins) + "\n")
        self._say(
            f"{self._name}: with {', '.join(pins)}, as newer ones don't work with this version"
        )
        return ["--constraint", str(file)]

    def _check(self, folder: Path) -> Environment:
        self.phase("testing it")
        python, out = folder / "bin" / "python", folder / "facts.json"
        self.call([str(python), "-I", "-c", _FACTS, self._recipe.module, str(out)])
        self.call([str(folder / "bin" / self._recipe.check[0]), *self._recipe.check[1:]])
        facts = msgspec.json.decode(out.read_bytes(), type=dict[str, str])
        out.unlink()
        frozen = subprocess.run(
            _pip(folder, "freeze"),
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return self.environment(
            facts["version"],
            _size(folder),
            python=str(python),
            python_version=facts["python_version"],
            packages=[_without_password(line) for line in frozen.stdout.splitlines()],
            binary=self._binary(folder, facts["packages"]),
        )

    def _binary(self, folder: Path, packages: str) -> str | None:
        if self._recipe.sources:
            return str(folder / "bin" / self._recipe.programs[0])
        return str(Path(packages) / self._recipe.binary) if self._recipe.binary else None


class SourceInstallation(Installation):
    """Builds llama.cpp, with CMake."""

    hint = BUILD_NEEDS

    def look_up(self) -> str:
        source = self.asked.source
        self.phase(f"looking up the sources at {source or llama_build.REPOSITORY}")
        llama_build.check_tools(self.asked.variant)
        self._checkout = llama_build.choose(
            source or llama_build.REPOSITORY, self.asked.version
        )
        mark = hashlib.sha256(source.encode()).hexdigest()[:8] if source else None
        return self.name_of(str(self._checkout.number), mark)

    def fill(self, folder: Path) -> Environment:
        checkout, recipe = self._checkout, recipes()[self.asked.kind][self.asked.variant]
        if recipe.sources:  # its converter is a Python program
            self.make(folder)
            self.phase(f"installing {', '.join(recipe.first)}")
            self.call(_pip(folder, "install", "--progress-bar=off", *recipe.first))
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        self.compile(folder, checkout, recipe.programs)
        self.phase("testing it")
        binary = folder / "bin" / recipe.programs[0]
        python = folder / "bin" / "python" if recipe.sources else None
        if python is None:
            self.call([str(binary), "--version"])
        else:
            self.call([str(python), *recipe.check[1:]])
        where = f"{_without_password(checkout.location)} {checkout.tag} {checkout.commit or ''}".strip()
        return self.environment(
            str(checkout.number),
            _size(folder),
            source=where,
            binary=str(binary),
            python=str(python or ""),
        )


class ImageInstallation(Installation):
    """Pulls a container's image and registers it."""

    def __init__(self, asked: InstallSpec, say: Say, below: Say) -> None:
        super().__init__(asked, say, below)
        self._mark, self._version = "image", asked.version
        if asked.source:
            if why := image_problem(asked.source):
                raise UsageError(why)
            self._spec = ContainerSpec(image=asked.source)
            self._mark += f"-{hashlib.sha256(asked.source.encode()).hexdigest()[:8]}"
        else:
            image, self._version = versions.image_of(
                asked.kind, asked.variant, asked.version
            )
            self._spec = ContainerSpec(image=image)

    def look_up(self) -> str:
        asked, image = self.asked, self._spec.image
        self._tool = container.tool()
        self._digest = images.pull_or_build(
            self._spec, self._tool, self._say, self.log, self._below
        )
        actual = version_in_image(KINDS[asked.kind], self._spec)
        if asked.version and actual and not is_of(actual, asked.version):
            raise EngineError(
                f"The image {image} has {asked.kind} {actual}, not {asked.version}. Choose another image."
            )
        self._version = actual or self._version or "unknown"
        return self.name_of(self._version, self._mark)

    def fill(self, folder: Path) -> Environment:
        folder.mkdir(parents=True)
        # By its digest where a registry has one: the tag may move.
        pinned = self._digest if "@" in self._digest else self._spec.image
        return self.environment(
            self._version or "", 0, image=pinned, tool=self._tool, source=self._spec.image
        )


_WAYS: dict[str, type[Installation]] = {
    "package": PackageInstallation,
    "source": SourceInstallation,
    "container": ImageInstallation,
}


def _size(folder: Path) -> int:
    return sum(
        path.lstat().st_size
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    )


def _pip(folder: Path, *words: str) -> list[str]:
    # -I: a checkout of the engine in the user's own folder is not on its path.
    return [str(folder / "bin" / "python"), "-I", "-m", "pip", *words]


def installer_env(inherited: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """Return the user's own variables, except those that would lead out of the environment."""
    env = {name: value for name, value in inherited.items() if name not in _NOT_INHERITED}
    if "CMAKE_ARGS" in more and "CMAKE_ARGS" in env:
        env["CMAKE_ARGS"] = f"{more['CMAKE_ARGS']} {env['CMAKE_ARGS']}"
    ours = {
        "PIP_USER": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONNOUSERSITE": "1",
    }
    return {**more, **env, **ours}


def _requirement(
    recipe: Recipe, version: str | None, source: str | None
) -> tuple[str, str | None]:
    """Return what pip is asked for; and for a source, a mark that differs from another of the same version."""
    if source is None:
        return f"{recipe.package}=={version}" if version else f"{recipe.package}", None
    if "://" in source:
        location, mark = source, source.encode()
    else:
        path = Path(source).expanduser().absolute()
        if not path.exists():
            raise UsageError(
                f"--from {source}: no such file. Give a wheel, a URL or git+https://…."
            )
        location, mark = (
            path.as_uri(),
            path.read_bytes() if path.is_file() else str(path).encode(),
        )
    tag = hashlib.sha256(mark).hexdigest()[:8]
    package, bracket, extras = (recipe.package or "").partition("[")
    if bracket:
        name = (
            re.split(r"-\d", Path(unquote(location)).name)[0]
            if _has_metadata(location)
            else package
        )
        return f"{name}[{extras} @ {location}", tag
    return location if "://" in source else str(path), tag


def _has_metadata(requirement: str) -> bool:
    """Return whether its metadata can be read without building it: a plain name's can, as a rule."""
    return (
        requirement.split("#")[0].split("?")[0].endswith(".whl") or "/" not in requirement
    )


def _interpreter(python: str | None) -> str:
    if python is None:
        return sys.executable
    path = shutil.which(python) or shutil.which(f"python{python}")
    if not path:
        raise UsageError(
            f"--python {python}: no such interpreter. Give its path, or a version on PATH."
        )
    return path


def _as_wanted(env: Environment, python: str | None, say: Say) -> Environment:
    if python is not None:
        command = [
            _interpreter(python),
            "-Ic",
            "import platform; print(platform.python_version())",
        ]
        version = subprocess.run(
            command, capture_output=True, text=True, check=False
        ).stdout.strip()
        if version != env.python_version:
            raise UsageError(
                f"{env.name} is already installed with Python {env.python_version}, not {version}. "
                f"Run `dyno engines remove {env.name}` first."
            )
    say(f"{env.name}: already installed ({env.created})")
    return env


def _useful_lines(log: Path, start: int) -> Sequence[str]:
    """Return the lines of a command's output that name a failure, or else the last ones."""
    lines = [
        line.strip()
        for line in tail(log, start, 262_144).splitlines()
        if re.search(r"\w", line)
    ]
    useful = list(dict.fromkeys(line for line in lines if _USEFUL.search(line)))
    if len(useful) > 6:
        useful = useful[:2] + useful[-4:]  # the cause comes first, its consequences last
    return [_shortened(line) for line in useful or lines[-6:]]


def _shortened(line: str) -> str:
    """Cut a long line in its middle: in a long list of versions, the newest are the last."""
    return line if len(line) < 300 else f"{line[:150]} … {line[-150:]}"


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://***@", text)
