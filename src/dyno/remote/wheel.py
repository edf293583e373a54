"""dyno and its dependencies as wheels, for a machine that asks no package index.

A wheel is a zip of a package with its metadata. Where the other machine has the same Python, wheels are made of what is
installed here; else pip downloads them here for that machine, in the same versions.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path

import dyno
from dyno.errors import RigError
from dyno.facts.elsewhere import RigPython
from dyno.numbers import many
from dyno.outside import OutsideName

NAME = "llm-dyno"
# For pages and queries, which are made at home: half of the bytes.
_AT_HOME = {"altair", "vl-convert-python", "duckdb"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same content is the same file
# pip takes these names of a platform for any C library that is at least as new.
# architecture → glibc's oldest minor version that wheels are made for
_MANYLINUX = {"x86_64": 5, "aarch64": 17}


def same_as_here(remote: RigPython) -> bool:
    """Return whether packages that are installed here run remote."""
    here = (sys.implementation.cache_tag, platform.system(), platform.machine())
    if (remote.tag, remote.system, remote.machine) != here:
        return False
    libc, version = platform.libc_ver()
    remote_libc, remote_version = remote.libc
    return remote_libc == libc and _version(remote_version) >= _version(version)


def wheels(remote: RigPython, cache: Path, say: Callable[[str], None]) -> list[Path]:
    """Return dyno's own wheel and those of its dependencies, for a machine."""
    described = (
        f"{remote.tag}-{remote.system.lower()}-{remote.machine}-{'-'.join(remote.libc)}"
    )
    folder = OutsideName.single(described).below(cache)
    folder.mkdir(parents=True, exist_ok=True)
    needed = _closure(remote)
    out = [_own_wheel(folder)]
    if same_as_here(remote):
        out += [_repacked(dist, folder) for dist in needed.values() if dist]
        return out
    lacking = [
        name for name in needed if not list(folder.glob(f"{_file_name(name)}-*.whl"))
    ]
    if lacking:
        say(
            f"Downloading {many(len(lacking), 'package')} for Python {'.'.join(map(str, remote.version))}"
        )
        _download([_requirement(name, needed[name]) for name in lacking], remote, folder)
    for name in needed:
        out += folder.glob(f"{_file_name(name)}-*.whl")
    return out


def _requirement(name: str, here: Distribution | None) -> str:
    """Ask for the version that is installed here."""
    return f"{name}=={here.version}" if here else name


def _closure(remote: RigPython) -> dict[str, Distribution | None]:
    """Return all that dyno needs there, with what is installed here of it. Markers are those of that machine."""
    from packaging.requirements import Requirement

    version = ".".join(map(str, remote.version))
    environment = {
        "extra": "",
        "python_version": version,
        "python_full_version": f"{version}.0",
        "platform_system": remote.system,
        "sys_platform": remote.system.lower(),
        "platform_machine": remote.machine,
    }
    needed: dict[str, Distribution | None] = {}

    def add(requirements: list[str] | None) -> None:
        for text in requirements or []:
            requirement = Requirement(text)
            name = _normal(requirement.name)
            if (
                name in needed
                or name in _AT_HOME
                or ((m := requirement.marker) and not m.evaluate(environment))
            ):
                continue
            try:
                needed[name] = distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                needed[name] = None
                continue
            add(distribution.requires)

    add(importlib.metadata.distribution(NAME).requires)
    return needed


def _download(requirements: list[str], remote: RigPython, folder: Path) -> None:
    minor = _version(remote.libc[1])[1]
    names = [
        f"manylinux_2_{m}_{remote.machine}"
        for m in range(minor, _MANYLINUX.get(remote.machine, 17) - 1, -1)
    ]
    options = [
        word
        for name in (*names, f"manylinux2014_{remote.machine}")
        for word in ("--platform", name)
    ]
    command = [
        *(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ),
        *(
            "--only-binary=:all:",
            "--python-version",
            ".".join(map(str, remote.version)),
            *options,
        ),
        *("--dest", str(folder), *requirements),
    ]
    if importlib.util.find_spec("pip") is None:
        why = "dyno's Python has no pip"
    else:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode == 0:
            return
        why = next(
            (line for line in reversed(done.stderr.splitlines()) if line.strip()),
            "pip failed",
        )
    here, other = (
        ".".join(map(str, sys.version_info[:2])),
        ".".join(map(str, remote.version)),
    )
    raise RigError(
        f"dyno's dependencies for Python {other} on {remote.machine} can't be downloaded here: {why}. Use Python "
        f"{here} on both machines: then none is downloaded. Or put their wheels into {folder}: {' '.join(requirements)}"
    )


# ---- wheels of what is installed ----


def _own_wheel(folder: Path) -> Path:
    """Make dyno's wheel of the package as it is: installed, or a working copy."""
    package, dist = Path(dyno.__file__).parent, importlib.metadata.distribution(NAME)
    # A working copy has its studies behind a link.
    walked = (
        Path(folder, name)
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
    )
    files = {
        f"dyno/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(walked)
        if "__pycache__" not in path.parts
    }
    return _write(dist, "py3-none-any", files, folder, anew=True)


def _repacked(dist: Distribution, folder: Path) -> Path:
    """Make a wheel of an installed package, by the list of its files."""
    tag = f"{sys.implementation.cache_tag.replace('cpython-', 'cp')}-none-{_platform()}"
    return _write(dist, tag, dict(_installed_files(dist)), folder)


def _installed_files(dist: Distribution) -> Iterator[tuple[str, Path]]:
    for file in dist.files or []:
        if (
            ".." in file.parts
            or "__pycache__" in file.parts
            or file.parts[0].endswith(".dist-info")
        ):
            continue
        path = Path(str(file.locate()))
        if path.is_file():
            yield file.as_posix(), path


def _write(
    dist: Distribution,
    tag: str,
    files: Mapping[str, bytes | Path],
    folder: Path,
    anew: bool = False,
) -> Path:
    name = f"{_file_name(dist.name)}-{dist.version}"
    wheel = folder / f"{name}-{tag}.whl"
    if wheel.exists() and not anew:
        return wheel
    head = f"Wheel-Version: 1.0\nGenerator: dyno\nRoot-Is-Purelib: {str(tag.endswith('any')).lower()}\nTag: {tag}\n"
    info = {"METADATA": dist.read_text("METADATA") or "", "WHEEL": head}
    info["entry_points.txt"] = dist.read_text("entry_points.txt") or ""
    contents = {
        **files,
        **{f"{name}.dist-info/{n}": text.encode() for n, text in info.items()},
    }
    record = "".join(f"{n},,\n" for n in [*contents, f"{name}.dist-info/RECORD"])
    partial = wheel.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for path, content in {
            **contents,
            f"{name}.dist-info/RECORD": record.encode(),
        }.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(
                entry,
                content if isinstance(content, bytes) else content.read_bytes(),
                compresslevel=1,
            )
    partial.replace(wheel)
    return wheel


def _platform() -> str:
    return f"{platform.system().lower()}_{platform.machine()}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _file_name(name: str) -> str:
    return _normal(name).replace("-", "_")


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, two or more."""
    numbers = tuple(int(n) for n in re.findall(r"\d+", text))
    return (*numbers, 0, 0)[: max(len(numbers), 2)]
