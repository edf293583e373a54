"""The program of an engine: where it is, and which version."""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec

_ASK_S = 60.0  # a cold Python on a network file system takes its time


class Program(msgspec.Struct, frozen=True):
    argv: list[str]  # what begins the command
    version: str | None
    binary: bool = True  # a command of its own, not a Python module
    python: str | None = None  # the engine's interpreter, where it has one
    where: str = ""  # in words
    embedded: bool = False  # comes with dyno
    asked: bool = True  # for its version; a dry run takes what the setting says
    absent: bool = False  # not here: its command is only to be shown


def interpreter_of(script: str) -> str | None:
    """Of a console script, by its first line."""
    try:
        with Path(script).open("rb") as file:
            line = file.readline(1024)
            second = file.readline(1024)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].decode("utf-8", "replace").split()
    if words and Path(words[0]).name.startswith("python"):
        return words[0]
    if words and words[0].endswith("/sh"):  # pip's way around long paths: '''exec' /path/python "$0" "$@"
        found = re.match(rb"'''exec' \"?([^\" ]+)", second)
        return found[1].decode() if found else None
    if len(words) > 1 and words[0].endswith("env"):
        return shutil.which(words[-1])
    return None


def version_in(python: str, packages: tuple[str, ...]) -> str | None:
    """Of the first of these distributions in that interpreter, without importing the engine (seconds, with torch)."""
    script = (
        "import importlib.metadata as m, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        print(m.version(name)); break\n"
        "    except m.PackageNotFoundError:\n        pass\n"
    )
    told = _said([python, "-c", script, *packages])
    return told.splitlines()[-1] if told else None  # a wrapper may have a banner


def version_of(binary: str, packages: tuple[str, ...]) -> str | None:
    if packages and (python := interpreter_of(binary)):
        return version_in(python, packages)
    said = _said([binary, "--version"]) or ""
    # llama-server: 'version: 6123 (79c1160b)', text-generation-launcher: 'text-generation-launcher 3.3.6'
    # Newer: 'version: 0.6.0 (build 11434, commit 79c1160b)'; a build without git says 0, which tells nothing.
    if found := re.search(r"\(build (\d+)", said):
        return found[1] if int(found[1]) else None
    found = re.search(r"version: b?(\d+)", said) or re.search(r"\b(\d+(?:\.\d+)+\S*)", said)
    return found[1] if found else None


def _said(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_ASK_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None
