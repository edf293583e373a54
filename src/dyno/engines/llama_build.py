"""Build llama.cpp from source at a given build number: its tag in a Git repository, or a folder."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dyno.engines.kinds.llamacpp import BACKENDS, PROGRAMS
from dyno.errors import EngineError, UsageError

REPOSITORY = "https://github.com/ggml-org/llama.cpp"
TOOLS = ("llama-quantize", "llama-imatrix")
_CONVERTER = ("convert_hf_to_gguf.py", "conversion", "gguf-py")  # what of them a build has
_OLDEST = 3240  # targets and options have these names since then
_TOOLKITS = {
    "cuda": ("nvcc", "the CUDA toolkit"),
    "rocm": ("hipconfig", "ROCm with HIP"),
    "vulkan": ("glslc", "the Vulkan SDK"),
}
_ASK_S = 120.0


class Checkout(msgspec.Struct, frozen=True):
    """Sources of one build."""

    location: str  # a Git repository, or a plain folder
    number: int  # 0: sources without one
    commit: str | None = None  # None: a plain folder

    @property
    def tag(self) -> str:
        return f"b{self.number}" if self.number else "llama.cpp"


def build_needs(variant: str) -> str:
    """Say what a machine needs to build it."""
    toolkit = _TOOLKITS.get(variant)
    return f"a C++ compiler and {toolkit[1]}" if toolkit else "a C++ compiler"


def choose(location: str, version: str | None) -> Checkout:
    """Return the asked build, or the newest one. `location`: a URL or a folder."""
    number = version.removeprefix("b") if version else None
    if number is not None and not number.isdigit():
        raise UsageError(
            f"--version {version}: a version of llama.cpp is a build number, as 6327."
        )
    folder = Path(location).expanduser()
    if (
        folder.is_dir()
        and (folder / "CMakeLists.txt").exists()
        and not (folder / ".git").exists()
    ):
        if number is None:
            raise UsageError(
                f"--from {location} is not a Git repository: give its build number with --version."
            )
        return Checkout(str(folder.absolute()), int(number))
    where = str(folder.absolute()) if folder.is_dir() else location
    tags = _tags(where)
    if not tags:
        raise UsageError(
            f"{location} has no tag of a build (b6327). Give llama.cpp's repository, or a copy of it."
        )
    build = int(number) if number else max(tags)
    if build not in tags:
        nearest = sorted(sorted(tags, key=lambda tag: abs(tag - build))[:4])
        raise UsageError(
            f"{location} has no tag b{build}. Nearest: {', '.join(f'b{tag}' for tag in nearest)}."
        )
    if build < _OLDEST:
        raise UsageError(
            f"dyno can't build llama.cpp b{build}: its build files differ before b{_OLDEST}."
        )
    return Checkout(where, build, tags[build][:8])


def _tags(location: str) -> dict[int, str]:
    """Return the commit of each build."""
    if not shutil.which("git"):
        raise UsageError(
            "git is needed to fetch llama.cpp's sources. Install it, or give a folder with --from."
        )
    command = ["git", "ls-remote", "--tags", location, "b[0-9]*"]
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_ASK_S, check=False
        )
        why = done.stderr.strip().splitlines()[:1]
    except subprocess.TimeoutExpired:
        done, why = None, [f"no answer within {_ASK_S:g} s"]
    if done is None or done.returncode != 0:
        raise EngineError(
            f'The tags of {location} can\'t be listed: "{" ".join(why)}". Give another copy with --from FOLDER|URL.'
        )
    commits = {}
    for line in done.stdout.splitlines():
        commit, name = line.split("\trefs/tags/b")
        # an annotated tag has a second line, whose object is the commit
        number = name.removesuffix("^{}")
        if number.isdigit():
            commits[int(number)] = commit
    return commits


def check_tools(variant: str) -> None:
    """Raise where a program for the build is missing. cmake is not among them: pip has it."""
    compiler = os.environ.get("CXX") or "c++"
    if not shutil.which(shlex.split(compiler)[0]):
        raise UsageError(
            f"llama.cpp is built from source, but there is no C++ compiler ({compiler}) on PATH. Install g++ or clang."
        )
    program, toolkit = _TOOLKITS.get(variant, ("", ""))
    if program and not shutil.which(program):
        raise UsageError(
            f"llama.cpp for {variant} is built with {program}, which is not on PATH. Install {toolkit} or add it to "
            "PATH, or choose --variant cpu."
        )


def build(
    checkout: Checkout,
    folder: Path,
    variant: str,
    cmake: str,
    call: Callable[[list[str]], None],
    phase: Callable[[str], None],
    programs: Sequence[str] = PROGRAMS,
) -> None:
    """Put the programs into `folder`/bin, beside TOOLS the converter into `folder`/converter; remove all else."""
    source, objects = folder / "source", folder / "build"
    if checkout.commit is None:
        source = Path(checkout.location)
    else:
        phase(f"cloning {checkout.location} at {checkout.tag}")
        words = [
            "git",
            "-c",
            "advice.detachedHead=false",
            "clone",
            "--depth=1",
            "--progress",
        ]
        call([*words, f"--branch={checkout.tag}", checkout.location, str(source)])
        # A shallow clone has one commit: older builds would count it and call themselves build 1.
        shutil.rmtree(source / ".git")
    phase(f"configuring {checkout.tag} for {variant}")
    call(
        [
            *_surroundings(cmake, variant),
            cmake,
            "-S",
            str(source),
            "-B",
            str(objects),
            *flags(checkout, variant),
        ]
    )
    phase(f"compiling {', '.join(programs)}, which takes minutes")
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    call([cmake, "--build", str(objects), "--parallel", jobs, "--target", *programs])
    for program in programs:
        shutil.copy2(objects / "bin" / program, folder / "bin" / program)
    if programs == TOOLS:
        (folder / "converter").mkdir()
        for path in filter(Path.exists, (source / name for name in _CONVERTER)):
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            copy(path, folder / "converter" / path.name)
    for used in (objects, folder / "source"):
        shutil.rmtree(used, ignore_errors=True)


def _surroundings(cmake: str, variant: str) -> list[str]:
    """Return the words that set HIP's compiler, as llama.cpp's docs/build.md does."""
    if variant != "rocm" or os.environ.get("HIPCXX"):
        return []
    compiler, root = (
        subprocess.check_output(["hipconfig", flag], text=True).strip()
        for flag in ("-l", "-R")
    )
    return [cmake, "-E", "env", f"HIPCXX={compiler}/clang", f"HIP_PATH={root}"]


def flags(checkout: Checkout, variant: str) -> list[str]:
    """Return CMake's options: static libraries, so that a program needs no file beside it; nothing to download."""
    backend = BACKENDS[variant]
    if variant == "rocm" and checkout.number < 4080:
        backend = ["-DGGML_HIPBLAS=ON"]
    words = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DLLAMA_CURL=OFF",
        "-DLLAMA_BUILD_UI=OFF",
    ]
    words += ["-DLLAMA_BUILD_TESTS=OFF", f"-DLLAMA_BUILD_NUMBER={checkout.number}"]
    words += [f"-DLLAMA_BUILD_COMMIT={checkout.commit or 'unknown'}", *backend]
    return [*words, *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
