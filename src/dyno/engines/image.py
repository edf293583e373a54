"""Images of containers: their digest, pull and build with progress, and files that carry them to another machine."""

import contextlib
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import tarfile
import termios
from collections.abc import Iterator, Mapping
from fcntl import ioctl
from pathlib import Path
from typing import Any, NamedTuple

from dyno.engines.log import excerpt, private
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec
from dyno.numbers import human_bytes
from dyno.saying import Say, silent
from dyno.secrets import shown

_URL = re.compile(r"(?:https?|git|ssh)://|git@|github\.com/")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# podman: 'Copying blob 41443aaa0253 [==>---] 3.0MiB / 28.6MiB'; docker: '41443aaa0253: Downloading [=> ]  3.0MB/28.6MB'
_MOVES = re.compile(
    r"\b([0-9a-f]{12})\b.*?([\d.]+) ?([kMGT]?)(i?)b ?/ ?([\d.]+) ?([kMGT]?)(i?)b", re.I
)
_ENDS = re.compile(
    r"\b([0-9a-f]{12})\b:? (?:done|skipped|pull complete|already exists|download complete)",
    re.I,
)
# of a bar: drawn again and again
_PART = re.compile(r"\b[0-9a-f]{12}\b(?:: | \[| \.$| done| skipped)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def prepare_commands(spec: ContainerSpec, tool: str, present: bool) -> list[list[str]]:
    """Return the commands that provide the image, if any: a build, or a pull by the policy."""
    if spec.build is not None:
        words = [tool, "build", "--tag", spec.image]
        # docker looks for it in the current folder, unless the context is a URL
        if spec.build_file is not None:
            words += [
                "--file",
                spec.build_file
                if is_url(spec.build)
                else str(Path(spec.build) / spec.build_file),
            ]
        for key, value in spec.build_args.items():
            # by name: from the environment
            words += ["--build-arg", key if hides(key, value) else f"{key}={value}"]
        return [[*words, spec.build]]
    if spec.pull == "always" or (spec.pull == "missing" and not present):
        return [[tool, "pull", spec.image]]
    return []


def is_url(context: str) -> bool:
    return _URL.match(context) is not None


def hides(key: str, value: str) -> bool:
    """Return whether to pass it by name only: every user of the machine can read a command line."""
    return shown(key, value) != value


def pull_or_build(
    spec: ContainerSpec,
    tool: str,
    say: Say,
    log: Path,
    below: Say = silent,
    pinned: str | None = None,
) -> str:
    """Provide the image, and return its digest. `below` gets the progress; `pinned`: the digest that it must have."""
    if spec.build is not None and not is_url(spec.build) and not Path(spec.build).is_dir():
        raise UsageError(
            f"container.build = {spec.build!r}: no such folder. Give a folder, or the URL of a Git repository."
        )
    if pinned is not None:
        return _pinned(spec, tool, say, log, below, pinned)
    env = {key: value for key, value in spec.build_args.items() if hides(key, value)}
    for command in prepare_commands(spec, tool, digest(tool, spec.image) is not None):
        _run(command, spec.image, say, log, below, env)
    identity = digest(tool, spec.image)
    if identity is None:
        raise EngineError(
            f"The image {spec.image} isn't on this machine. Pull it, or set pull to 'missing' (now {spec.pull!r})."
        )
    return identity


def _pinned(
    spec: ContainerSpec, tool: str, say: Say, log: Path, below: Say, pinned: str
) -> str:
    """Provide the image that a study's earlier results are by, wherever its tag points now."""
    if spec.pull == "always" and spec.build is None:
        _run([tool, "pull", spec.image], spec.image, say, log, below)
    if digest(tool, pinned) is None:
        # no registry has it
        here = (
            spec.build is not None or "@" not in pinned or pinned.startswith("localhost/")
        )
        if here or spec.pull == "never":
            raise EngineError(
                f"This study's results are by {spec.image} as {pinned}, which isn't on this machine. Provide it with "
                "`dyno engines images pull` or `import`, or start anew with --new or --runs DIR."
            )
        _run([tool, "pull", pinned], pinned, say, log, below)
    now = _facts(tool, spec.image)
    if now and now["Id"] != (_facts(tool, pinned) or now)["Id"]:
        say(f"{spec.image} is {digest(tool, spec.image)} now. This study keeps {pinned}")
    return pinned


def _run(
    command: list[str],
    image: str,
    say: Say,
    log: Path,
    below: Say,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a command on an image and add its output to the log."""
    tool, verb = command[:2]
    say(
        f"{verb.capitalize()}ing {image} with {tool}"
        if verb != "save"
        else f"Saving {image} with {tool}"
    )
    start = log.stat().st_size if log.exists() else 0
    code = _watch(command, {**os.environ, **(env or {})}, log, below)
    if code != 0:
        output = excerpt(log, start).strip().splitlines()
        # podman says it at each try
        lines = [line for line in output if line.startswith("Error")][-1:] or output[-3:]
        raise EngineError(
            f'`{tool} {verb}` of {image} exited with code {code}: "{" | ".join(lines)}". Read {log} for the rest.'
        )


def _watch(command: list[str], env: Mapping[str, str], log: Path, below: Say) -> int:
    """Run it on a terminal of its own, without which neither tool reports bytes; return its exit code."""
    own, its = pty.openpty()
    # room for a bar and its figures
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    transfer = Transfer()
    with (
        os.fdopen(own, "rb", buffering=0) as terminal,
        open(log, "ab", opener=private) as out,
    ):
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=its, stderr=its, env=env
            )
        except OSError as e:
            raise EngineError(f"{command[0]} can't be started: {e.strerror}.") from None
        finally:
            os.close(its)
        try:
            for line in _lines(terminal):
                if not _PART.search(line):
                    out.write(f"{line}\n".encode())
                below(transfer.read(line))
            return process.wait()
        finally:  # Ctrl-C: it doesn't outlive dyno
            process.terminate()
            process.wait()


def _lines(terminal: Any) -> Iterator[str]:
    rest = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while data := terminal.read(65536):
            *lines, rest = re.split(rb"[\r\n]+", rest + data)
            for line in lines:
                text = _plain(line)
                if text:
                    yield text
    if rest.strip():
        yield _plain(rest)


def _plain(line: bytes) -> str:
    """Return a line without the characters that move a terminal's cursor."""
    return _CONTROL.sub("", line.decode("utf-8", "replace")).strip()


class Transfer:
    """Layers and bytes of a pull, by the bars of docker or podman."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[float, float]] = {}  # bytes that are here, of all
        self._done: set[str] = set()

    def read(self, line: str) -> str:
        """Return the progress in words; another line as it is, such as a step of a build."""
        if ends := _ENDS.search(line):
            self._done.add(ends[1])
            size = self._layers.get(ends[1], (0.0, 0.0))[1]
            self._layers[ends[1]] = (size, size)
        elif moves := _MOVES.search(line):
            layer, here, unit, binary, total, of_unit, of_binary = moves.groups()
            size = _bytes(total, of_unit, of_binary)
            self._layers[layer] = (
                size if "Extracting" in line else _bytes(here, unit, binary),
                size,
            )
        else:
            return line
        here_bytes, all_bytes = (
            sum(sizes) for sizes in zip(*self._layers.values(), strict=True)
        )
        size_text = (
            f", {human_bytes(here_bytes)} of {human_bytes(all_bytes)}" if all_bytes else ""
        )
        return f"{len(self._done)} of {len(self._layers)} layers{size_text}"


def _bytes(figure: str, unit: str, binary: str) -> float:
    return float(figure) * (1024.0 if binary else 1000.0) ** _POWERS[unit.lower()]


# ---- what is on this machine ----


class Image(NamedTuple):
    name: str
    id: str
    size_bytes: int
    created: str


def installed(tool: str) -> list[Image]:
    """Return the images on this machine that have a name."""
    names = ask(
        [tool, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]
    ).stdout.split()
    images = []
    for name in dict.fromkeys(names):
        facts = _facts(tool, name) if "<none>" not in name else None
        if facts:
            images.append(Image(name, _id(facts), facts["Size"], facts["Created"][:10]))
    return images


def remove(tool: str, image: str) -> None:
    answer = ask([tool, "rmi", image])
    if answer.returncode:
        raise EngineError(
            f"{tool} can't remove {image}: {(answer.stderr or answer.stdout).strip()}"
        )


def digest(tool: str, image: str) -> str | None:
    """Return the registry's digest of an image, or the id of one that was built here. Its tag may move."""
    facts = _facts(tool, image)
    if facts is None:
        return None
    name = re.sub(r":[^/]*$", "", image.partition("@")[0])  # without its tag
    digests: list[str] = facts.get("RepoDigests") or []
    return next(
        (digest for digest in digests if digest.partition("@")[0].endswith(name)),
        _id(facts),
    )


def _facts(tool: str, image: str) -> dict[str, Any] | None:
    answer = ask([tool, "image", "inspect", image])
    try:
        facts: list[dict[str, Any]] = (
            json.loads(answer.stdout) if answer.returncode == 0 else []
        )
    except ValueError:
        return None
    return facts[0] if facts else None


def _id(facts: Mapping[str, Any]) -> str:
    # podman leaves the prefix out
    return str(facts["Id"]) if ":" in facts["Id"] else f"sha256:{facts['Id']}"


# ---- at a registry ----


class RegistrySize(NamedTuple):
    """Compressed bytes of all layers, as they are pulled."""

    bytes: int | None = None
    unknown: str = ""  # why


def registry_size(image: str, timeout_s: float = 8.0) -> RegistrySize:
    """Ask the image's registry through docker or skopeo. Nothing is pulled."""
    if skopeo := shutil.which("skopeo"):
        return _layers([skopeo, "inspect", f"docker://{image}"], timeout_s)
    if docker := shutil.which("docker"):
        return _layers([docker, "manifest", "inspect", "--verbose", image], timeout_s)
    return RegistrySize(unknown="neither skopeo nor docker is here to ask its registry")


def _layers(command: list[str], timeout_s: float) -> RegistrySize:
    answer = ask(command, timeout_s)
    if answer.returncode:
        why = (answer.stderr or answer.stdout).strip().splitlines()
        return RegistrySize(
            unknown=f"`{Path(command[0]).name}` failed: {why[-1][:200] if why else 'no message'}"
        )
    try:
        facts = json.loads(answer.stdout)
        # docker lists a manifest for each platform; all have nearly the same layers.
        first = facts[0] if isinstance(facts, list) else facts
        manifest = (
            first.get("OCIManifest")
            or first.get("SchemaV2Manifest")
            or {"layers": first["LayersData"]}
        )
        return RegistrySize(
            sum(layer.get("size", layer.get("Size", 0)) for layer in manifest["layers"])
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return RegistrySize(unknown="its registry's answer has no sizes")


# ---- files ----


def export(
    tool: str, image: str, file: Path, say: Say, log: Path, below: Say = silent
) -> Image:
    """Write the image to a file that docker and podman read, and check that the file holds it."""
    facts = _facts(tool, image)
    if facts is None:
        raise UsageError(
            f"There is no image {image} on this machine. `dyno engines images list` lists them."
        )
    if file.exists():
        raise UsageError(f"{file} exists. Remove it, or give another name.")
    try:
        _run([tool, "save", "--output", str(file), image], image, say, log, below)
        ids, _ = contents(file)
        if _id(facts) not in ids:
            raise EngineError(f"{file} holds {ids[0]}, but {image} is {_id(facts)}.")
    except BaseException:  # also Ctrl-C: half an image is none
        file.unlink(missing_ok=True)
        raise
    return Image(image, _id(facts), file.stat().st_size, facts["Created"][:10])


def import_file(tool: str, file: Path, say: Say, log: Path, below: Say = silent) -> Image:
    """Load an image from a file, and check that it is the one that the file names."""
    ids, names = contents(file)
    name = names[0] if names else ids[0]
    _run([tool, "load", "--input", str(file)], str(file), say, log, below)
    facts = _facts(tool, name)
    if facts is None or _id(facts) not in ids:
        raise EngineError(
            f"{file} names the image {ids[0]}, but {tool} loaded {facts and _id(facts)}. Export it again."
        )
    return Image(name, _id(facts), facts["Size"], facts["Created"][:10])


def contents(file: Path) -> tuple[list[str], list[str]]:
    """Return the ids that the image in a file may have, and its names."""
    try:
        with tarfile.open(file) as tar:
            entries, index = _json(tar, "manifest.json"), _json(tar, "index.json")
        if len(entries) == 1:
            # '0e5…1.json' (docker-archive), 'blobs/sha256/0e5…1' (docker since 25)
            config = f"sha256:{Path(entries[0]['Config']).stem}"
            # An id is the digest of its configuration; where docker stores images with containerd, of its manifest.
            return [config, *(m["digest"] for m in index["manifests"])], entries[0].get(
                "RepoTags"
            ) or []
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file.") from None
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError, TypeError) as e:
        what = (
            os.strerror(e.errno)
            if isinstance(e, OSError) and e.errno
            else "it is cut off, or not an image"
        )
        raise UsageError(f"{file} can't be read: {what}. Export it again.") from None
    raise UsageError(f"{file} holds {len(entries)} images. Export one image per file.")


def _json(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name) if name in tar.getnames() else None
    return json.loads(file.read()) if file else {"manifests": []}


def ask(command: list[str], timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return subprocess.CompletedProcess(command, 1, "", str(e))
