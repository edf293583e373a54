"""An engine in a container: a launch as `docker run …` or `podman run …`, and the container's removal.

The container's network and shared memory are the host's, and a path is the same inside and outside, so that the
engine's own command needs no change.
"""

import itertools
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno.engines.image import ask, hides
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, Launch

_CACHE_INSIDE = "/root/.cache/huggingface"  # where images look by default
_SELECT_AMD = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_SELECT_NVIDIA = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_ULIMITS = ("--ulimit=memlock=-1", "--ulimit=stack=67108864")
# What vendors' pages ask for beyond the devices, by one word; docs/engines.md has the table.
PRIVILEGES: dict[str | None, tuple[str, ...]] = {
    None: (),
    "amd": (
        "--cap-add=SYS_PTRACE",
        "--cap-add=SYS_ADMIN",
        "--security-opt=seccomp=unconfined",
        "--security-opt=apparmor=unconfined",
        "--device=/dev/mem",
    ),
    "nvidia": _ULIMITS,
    "full": ("--privileged", *_ULIMITS),
}
_NOT_OURS = {
    "-d --detach": "dyno would lose the engine",
    "-t -it -ti --tty": "an engine has no terminal",
    "--name": "dyno names the container, to remove it",
}


class Wrapped(NamedTuple):
    launch: Launch
    withheld: dict[str, str]  # exported variables that the container does not get, and why


def wrap(
    launch: Launch,
    spec: ContainerSpec,
    name: str,
    tool: str,
    model: str | None,
    accelerator: str,
    exported: Mapping[str, str] | None = None,
    groups: Sequence[str] = ("video", "render"),
) -> Wrapped:
    """Return the same launch in a container of that name.

    `launch.argv` is the whole command in the image, and replaces its entrypoint; where the first word is empty, the
    rest are the entrypoint's arguments. An --entrypoint among the user's options gets the whole command.
    `model`: mounted where it is a path here. `accelerator`: nvidia, amd or none. `exported`: variables of dyno's own
    environment for the engine, passed on by name. `groups`: those that may use an AMD GPU; see `device_groups`.
    """
    _check(spec.options)
    env, exported = dict(launch.env), dict(exported or {})
    words = _run(tool, name, spec.options)
    devices = _devices(
        accelerator, launch.devices, tool, spec.options, env, exported, groups
    )
    words += dict.fromkeys([*devices, *PRIVILEGES[spec.privileges]])
    mounts = _mounts(spec, model, env)
    words += [f"--volume={mount}" for mount in mounts]
    targets = _targets(mounts) + _targets(_values(spec.options, "-v", "--volume"))
    withheld = _withheld(exported, env, targets, accelerator)
    hidden = {key: value for key, value in env.items() if hides(key, value)}
    words += [
        f"--env={key}" if key in hidden else f"--env={key}={value}"
        for key, value in env.items()
    ]
    words += [f"--env={key}" for key in exported if key not in env and key not in withheld]
    program, *arguments = [_inside(word, model) for word in launch.argv]
    if program and _has(spec.options, "--entrypoint"):
        arguments = [program, *arguments]
    elif program:
        words += ["--entrypoint", program]
    words += [*spec.options, spec.image, *arguments]
    return Wrapped(
        Launch(argv=words, env=hidden, port=launch.port, devices=launch.devices), withheld
    )


def _run(tool: str, name: str, options: list[str]) -> list[str]:
    """Return the beginning of the command: dyno's own flags, where the user's options don't replace them."""
    # pulled before
    words = [
        tool,
        "run",
        "--rm",
        "--name",
        name,
        "--label",
        f"dyno={os.getpid()}",
        "--pull=never",
    ]
    if not _has(options, "--network", "--net"):
        words.append("--network=host")
    if not _has(options, "--ipc", "--shm-size"):
        words.append("--ipc=host")
    if tool == "podman":
        # SELinux would deny mounts and GPUs; relabeling a model is worse
        words.append("--security-opt=label=disable")
    return words


def _check(options: list[str]) -> None:
    """Refuse what an engine that dyno starts, reaches and removes can't have."""
    for option in options:
        for flags, why in _NOT_OURS.items():
            if _has([option], *flags.split()):
                raise UsageError(
                    f"{option} can't be an option of an engine's container: {why}. Remove it."
                )
    for network in _values(options, "--network", "--net"):
        if network != "host":
            raise UsageError(
                f"--network={network}: dyno reaches the engine by the host's network. Remove the option."
            )


def _devices(
    accelerator: str,
    devices: Sequence[int] | None,
    tool: str,
    options: list[str],
    env: dict[str, str],
    exported: Mapping[str, str],
    groups: Sequence[str],
) -> list[str]:
    """Return the flags for the accelerators, and change `env` to select among them by their numbers inside."""
    if accelerator == "nvidia":
        # The container gets those alone; inside they are numbered from 0 again.
        visible = env.pop("CUDA_VISIBLE_DEVICES", exported.get("CUDA_VISIBLE_DEVICES"))
        chosen = _chosen(devices, visible)
        return [] if _has(options, "--gpus") else _nvidia_flags(chosen, tool)
    if accelerator == "amd":
        env.pop("CUDA_VISIBLE_DEVICES", None)
        # One of the two only: HIP's numbers count among what ROCR's leave.
        if devices is not None and not any(key in env for key in _SELECT_AMD):
            env["HIP_VISIBLE_DEVICES"] = ",".join(map(str, devices))
        words = [
            "--device=/dev/kfd",
            "--device=/dev/dri",
            *(f"--group-add={group}" for group in groups),
        ]
        return [*words, "--security-opt=seccomp=unconfined", "--cap-add=SYS_PTRACE"]
    if accelerator == "none":
        return []
    raise UsageError(
        f"A container has no accelerator {accelerator!r}. Known: nvidia, amd, none."
    )


def _chosen(devices: Sequence[int] | None, visible: str | None) -> list[str]:
    """Return the names of NVIDIA's accelerators that are used: by the setting, else by the variable, else all."""
    if devices is not None:
        return list(map(str, devices))
    if visible is None:
        return ["all"]
    words = (word.strip() for word in visible.split(","))
    return [word for word in words if word]


def _nvidia_flags(chosen: Sequence[str], tool: str) -> list[str]:
    if tool != "docker":
        return [f"--device=nvidia.com/gpu={name}" for name in chosen]
    if not chosen:
        return []
    if chosen == ["all"]:
        return ["--gpus", "all"]
    return ["--gpus", f'"device={",".join(chosen)}"']  # which it reads as CSV


def _withheld(
    exported: Mapping[str, str],
    env: Mapping[str, str],
    targets: list[str],
    accelerator: str,
) -> dict[str, str]:
    """Return why exported variables would mean something else inside, by name."""
    out = {}
    for name, value in exported.items():
        if name in env:
            continue
        outside = _outside(value, targets)
        if accelerator == "nvidia" and name in _SELECT_NVIDIA:
            out[name] = "the container gets the selected devices alone"
        elif (
            accelerator == "amd"
            and name == "CUDA_VISIBLE_DEVICES"
            and {*_SELECT_AMD} & {*env, *exported}
        ):
            out[name] = "another variable selects the devices"
        elif outside is not None:
            out[name] = f"{outside} is not mounted"
    return out


def _outside(value: str, targets: list[str]) -> str | None:
    """Return the first path in a variable that is under none of these folders."""
    for path in re.findall(r"(?:^|:)(/(?!/)[^:]*)", value):  # not those of a URL
        if not any(_under(path, target) for target in targets):
            return str(path)
    return None


def _mounts(spec: ContainerSpec, model: str | None, env: dict[str, str]) -> list[str]:
    targets = _targets([*spec.mounts, *_values(spec.options, "-v", "--volume")])
    mounts = []
    if _is_here(model):
        path = _absolute(model or "")
        if not any(_under(path, target) for target in targets):
            folder = repository(path)
            mounts.append(f"{folder}:{folder}:ro")
    # The user's own cache, if it is mounted already or named by HF_HOME; else the one here, at its own path.
    home = env.get("HF_HOME")
    if home is None and not any(_under(_CACHE_INSIDE, target) for target in targets):
        home = env["HF_HOME"] = str(hugging_face_cache())
    if home is not None and not any(_under(home, target) for target in targets):
        mounts.append(f"{home}:{home}")
    return [*mounts, *spec.mounts]


def in_the_cache(launch: Launch, spec: ContainerSpec, variables: Sequence[str]) -> Launch:
    """Return a launch whose variables, those of an engine's images beside HF_HOME, name the Hub's cache that its
    container gets."""
    if not variables:
        return launch
    env = dict(launch.env)
    _mounts(spec, None, env)
    cache = f"{env.get('HF_HOME', _CACHE_INSIDE)}/hub"
    return msgspec.structs.replace(
        launch, env={**dict.fromkeys(variables, cache), **launch.env}
    )


def repository(path: str) -> str:
    """Return what to mount for a path: in the Hub's cache a snapshot's files are links into its repository's folder."""
    inside = re.match(r"(.*/models--[^/]+)/snapshots/", path)
    return inside[1] if inside else path


def _targets(mounts: Sequence[str]) -> list[str]:
    return [mount.split(":")[1] for mount in mounts if ":" in mount]


def _is_here(model: str | None) -> bool:
    return bool(model) and Path(model or "").expanduser().exists()


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _inside(word: str, model: str | None) -> str:
    """Return the model's path as the container has it, which starts in another folder."""
    return _absolute(word) if word and word == model and _is_here(model) else word


def _under(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _has(options: list[str], *flags: str) -> bool:
    return any(option.partition("=")[0] in flags for option in options)


def _values(options: list[str], *flags: str) -> list[str]:
    """Return the values of flags that may be given several times: `-v A`, `--volume=A`."""
    values = []
    for option, after in itertools.zip_longest(options, options[1:], fillvalue=""):
        flag, _, value = option.partition("=")
        if flag in flags:
            values.append(value or after)
    return values


def hugging_face_cache() -> Path:
    """Return the cache's folder as huggingface_hub has it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_HOME") or cache / "huggingface").expanduser().absolute()


def vendor(spec: ContainerSpec) -> str:
    """Return the vendor that a container is for, as far as it says, where no accelerator is detected."""
    amd = (
        spec.privileges == "amd"
        or "rocm" in spec.image.lower()
        or "/dev/kfd" in " ".join(spec.options)
    )
    return spec.accelerator or ("amd" if amd else "nvidia")


def device_groups(tool: str) -> list[str]:
    """Return the groups that may use an AMD GPU, by number: an image may lack the names, or number them otherwise."""
    if tool == "podman" and os.geteuid() != 0:
        return ["keep-groups"]  # rootless: a group added inside has no rights outside
    nodes = [Path("/dev/kfd"), *Path("/dev/dri").glob("*")]
    numbers = sorted({node.stat().st_gid for node in nodes if node.is_char_device()} - {0})
    return [str(number) for number in numbers] or ["video", "render"]


def tool(wanted: str | None = None) -> str:
    """Return docker or podman: the one wanted, or else the first that works."""
    refusals = []
    for name in [wanted] if wanted else ["docker", "podman"]:
        if not shutil.which(name):
            continue
        # not `info`: docker's may succeed without its daemon
        answer = ask([name, "ps", "--quiet"])
        if answer.returncode == 0:
            return "podman" if _is_podman(name) else name
        refusals.append(_refusal(name, answer.stderr or answer.stdout))
    if refusals:
        raise EngineError(" ".join(refusals))
    raise EngineError(
        f"{wanted or 'Neither docker nor podman'} is {'not ' if wanted else ''}on PATH. "
        "Install one, or run the engine without a container."
    )


def _is_podman(name: str) -> bool:
    """Some distributions have podman under docker's name, and its flags differ."""
    return "podman" in ask([name, "--version"]).stdout.lower()


def _refusal(name: str, output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()] or ["no message"]
    line = lines[-1].rstrip(".?! ")
    if "permission denied" in output.lower():
        return f"You have no permission to use {name}: {line}. Join its group (docker) and log in again."
    if "cannot connect" in output.lower() or "connection refused" in output.lower():
        return f"{name} is installed, but its daemon isn't running: {line}. Start it (systemctl start {name})."
    return f"{name} doesn't work on this machine: {line}."


def pid(launch: Launch) -> int:
    """Return the host's pid of the first process in a launch's container; 0: it doesn't run."""
    tool, name = launch.argv[0], launch.argv[launch.argv.index("--name") + 1]
    answer = ask([tool, "inspect", "--format", "{{.State.Pid}}", name]).stdout.strip()
    return int(answer) if answer.isdecimal() else 0


def shell(launch: Launch, image: str, command: str) -> list[str]:
    """Return a shell command in a container like that of a launch. The last --entrypoint counts."""
    return [
        *launch.argv[: launch.argv.index(image)],
        "--entrypoint",
        "sh",
        image,
        "-c",
        command,
    ]


def remove_command(tool: str, name: str) -> list[str]:
    """Return the command that ends a container at once, if it still runs: podman's `rm -f` alone waits 10 s."""
    return ["sh", "-c", '"$0" kill "$1"; "$0" rm -f "$1"', tool, name]


# ---- what is inside ----

# Runs in any Python 3 of an image, without the engine's import, which takes seconds with torch.
_VERSIONS = """
import importlib.metadata, json, sys
out = {}
for name in sys.argv[1:]:
    try:
        out[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(out))
"""


def software(spec: ContainerSpec, tool: str, packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of these packages in an image on this machine; {}: it isn't here, or can't be asked."""
    words = [
        tool,
        "run",
        "--rm",
        "--pull=never",
        "--network=none",
        "--entrypoint=python3",
        spec.image,
    ]
    answer = ask([*words, "-c", _VERSIONS, *packages])
    try:
        versions = (
            json.loads(answer.stdout.splitlines()[-1]) if answer.returncode == 0 else {}
        )
    except (ValueError, IndexError):
        return {}
    return {str(name): str(version) for name, version in versions.items()}


def python(tool: str, name: str) -> list[str]:
    """Return the Python in a running container, as the first words of a command."""
    return [tool, "exec", name, "python3"]
