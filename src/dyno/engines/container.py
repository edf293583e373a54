"""An engine in a container: a launch as `docker run …` or `podman run …`, its image, and the container's removal.

The container's network and shared memory are the host's, and a path is the same inside and outside, so that the
engine's own command needs no change.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from dyno.engines.log import excerpt, private
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, Launch
from dyno.secrets import shown

_CACHE_INSIDE = "/root/.cache/huggingface"  # where images look by default
_SELECT_AMD = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

Say = Callable[[str], None]


def wrap(
    launch: Launch,
    spec: ContainerSpec,
    name: str,
    tool: str,
    model: str | None,
    accelerator: str,
    secrets: Sequence[str] = (),
    groups: Sequence[str] = ("video", "render"),
) -> Launch:
    """Return the same launch in a container of that name.

    `launch.argv` is the whole command in the image, and replaces its entrypoint; where the first word is empty, the
    rest are the entrypoint's arguments. An --entrypoint among the user's options gets the whole command.
    `model`: mounted where it is a path here. `accelerator`: nvidia, amd or none. `secrets`: variables of dyno's own
    environment to pass on by name. `groups`: those that may use an AMD GPU; see `device_groups`.
    """
    env = dict(launch.env)
    words = [tool, "run", "--rm", "--name", name, "--label", f"dyno={os.getpid()}"]
    words += ["--pull=never", "--network=host", "--ipc=host"]  # `pull_or_build` comes before
    if tool == "podman":
        words += ["--security-opt=label=disable"]  # SELinux would deny mounts and GPUs; relabeling a model is worse
    words += _devices(accelerator, launch.devices, tool, spec.options, env, groups)
    words += _mounts(spec, model, env)
    words += _variables(env, secrets)
    program, *arguments = [_inside(word, model) for word in launch.argv]
    if program and _has(spec.options, "--entrypoint"):
        arguments = [program, *arguments]
    elif program:
        words += ["--entrypoint", program]
    words += [*spec.options, spec.image, *arguments]
    hidden = {key: value for key, value in env.items() if _hides(key, value)}
    return Launch(argv=words, env=hidden, port=launch.port, devices=launch.devices)


def _devices(
    accelerator: str,
    devices: list[int] | None,
    tool: str,
    options: list[str],
    env: dict[str, str],
    groups: Sequence[str],
) -> list[str]:
    """Return the flags for the accelerators, and change `env` to select among them by their numbers inside."""
    if accelerator == "nvidia":
        env.pop("CUDA_VISIBLE_DEVICES", None)  # inside they are numbered from 0 again
        if tool == "docker":
            chosen = "all" if devices is None else f'"device={",".join(map(str, devices))}"'  # docker reads it as CSV
            return [] if _has(options, "--gpus") else ["--gpus", chosen]
        return [f"--device=nvidia.com/gpu={number}" for number in (["all"] if devices is None else devices)]
    if accelerator == "amd":
        env.pop("CUDA_VISIBLE_DEVICES", None)
        # One of the two only: HIP's numbers count among what ROCR's leave.
        if devices is not None and not any(key in env for key in _SELECT_AMD):
            env["HIP_VISIBLE_DEVICES"] = ",".join(map(str, devices))
        words = ["--device=/dev/kfd", "--device=/dev/dri", *(f"--group-add={group}" for group in groups)]
        return [*words, "--security-opt=seccomp=unconfined", "--cap-add=SYS_PTRACE"]
    if accelerator == "none":
        return []
    raise UsageError(f"A container has no accelerator {accelerator!r}. Known: nvidia, amd, none.")


def _mounts(spec: ContainerSpec, model: str | None, env: dict[str, str]) -> list[str]:
    targets = [mount.split(":")[1] for mount in spec.mounts if ":" in mount]
    mounts = []
    if _is_here(model):
        path = _absolute(model or "")
        if not any(_under(path, target) for target in targets):
            mounts.append(f"{path}:{path}:ro")
    # The user's own cache, if it is mounted already or named by HF_HOME; else the one here, at its own path.
    home = env.get("HF_HOME")
    if home is None and not any(_under(_CACHE_INSIDE, target) for target in targets):
        home = env["HF_HOME"] = str(hugging_face_cache())
    if home is not None and not any(_under(home, target) for target in targets):
        mounts.append(f"{home}:{home}")
    return [f"--volume={mount}" for mount in [*mounts, *spec.mounts]]


def _variables(env: dict[str, str], secrets: Sequence[str]) -> list[str]:
    own = [f"--env={key}" if _hides(key, value) else f"--env={key}={value}" for key, value in env.items()]
    return own + [f"--env={key}" for key in secrets if key not in env]


def _hides(key: str, value: str) -> bool:
    """Return whether to pass it by name only: every user of the machine can read a command line."""
    return shown(key, value) != value


def _is_here(model: str | None) -> bool:
    return bool(model) and Path(model or "").expanduser().exists()


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _inside(word: str, model: str | None) -> str:
    """Return the model's path as the container has it, which starts in another folder."""
    return _absolute(word) if word and word == model and _is_here(model) else word


def _under(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _has(options: list[str], flag: str) -> bool:
    return any(option == flag or option.startswith(f"{flag}=") for option in options)


def hugging_face_cache() -> Path:
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser().absolute()


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
        answer = _ask([name, "ps", "--quiet"])  # not `info`: docker's may succeed without its daemon
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
    return "podman" in _ask([name, "--version"]).stdout.lower()


def _refusal(name: str, output: str) -> str:
    line = next((line for line in reversed(output.splitlines()) if line.strip()), "no message").rstrip(".?! ")
    if "permission denied" in output.lower():
        return f"You have no permission to use {name}: {line}. Join its group (docker) and log in again."
    if "cannot connect" in output.lower() or "connection refused" in output.lower():
        return f"{name} is installed, but its daemon isn't running: {line}. Start it (systemctl start {name})."
    return f"{name} doesn't work on this machine: {line}."


def prepare_commands(spec: ContainerSpec, tool: str, present: bool) -> list[list[str]]:
    """Return the commands that provide the image, if any: a build, or a pull by the policy."""
    if spec.build is not None:
        words = [tool, "build", "--tag", spec.image]
        if spec.build_file is not None:
            words += ["--file", str(Path(spec.build) / spec.build_file)]  # docker would look in the current folder
        for key, value in spec.build_args.items():
            words += ["--build-arg", key if _hides(key, value) else f"{key}={value}"]  # by name: from the environment
        return [[*words, spec.build]]
    if spec.pull == "always" or (spec.pull == "missing" and not present):
        return [[tool, "pull", spec.image]]
    return []


def pull_or_build(spec: ContainerSpec, tool: str, say: Say, log: Path) -> str:
    """Provide the image, and return its digest."""
    env = {**os.environ, **{key: value for key, value in spec.build_args.items() if _hides(key, value)}}
    for command in prepare_commands(spec, tool, digest(tool, spec.image) is not None):
        say(f"{command[1]}ing {spec.image} with {tool}")
        with open(log, "ab", opener=private) as out:
            start = out.tell()
            try:
                code = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, check=False
                ).returncode
            except OSError as e:
                raise EngineError(f"{tool} can't be started: {e.strerror}.") from None
        if code != 0:
            lines = excerpt(log, start).strip().splitlines()[-3:]
            raise EngineError(
                f'`{" ".join(command[:2])}` of {spec.image} exited with code {code}: "{" | ".join(lines)}". '
                f"Read {log} for the rest."
            )
    identity = digest(tool, spec.image)
    if identity is None:
        raise EngineError(
            f"The image {spec.image} isn't on this machine. Pull it, or set pull to 'missing' (now {spec.pull!r})."
        )
    hugging_face_cache().mkdir(parents=True, exist_ok=True)  # docker would create it as root; podman would refuse
    return identity


def digest(tool: str, image: str) -> str | None:
    """Return the registry's digest of an image, or the id of one that was built here. Its tag may move."""
    answer = _ask([tool, "image", "inspect", image])
    if answer.returncode != 0:
        return None
    facts = json.loads(answer.stdout)[0]
    identity = facts["Id"] if ":" in facts["Id"] else f"sha256:{facts['Id']}"  # podman leaves the prefix out
    name = re.sub(r":[^/]*$", "", image.partition("@")[0])  # without its tag
    digests: list[str] = facts.get("RepoDigests") or []
    return next((digest for digest in digests if digest.partition("@")[0].endswith(name)), identity)


def pid(launch: Launch) -> int:
    """Return the host's pid of the first process in a launch's container; 0: it doesn't run."""
    tool, name = launch.argv[0], launch.argv[launch.argv.index("--name") + 1]
    answer = _ask([tool, "inspect", "--format", "{{.State.Pid}}", name]).stdout.strip()
    return int(answer) if answer.isdecimal() else 0


def shell(launch: Launch, spec: ContainerSpec, command: str) -> list[str]:
    """Return a shell command in a container like that of a launch. The last --entrypoint counts."""
    words = launch.argv[: launch.argv.index(spec.image)]
    return [*words, "--entrypoint", "sh", spec.image, "-c", command]


def remove_command(tool: str, name: str) -> list[str]:
    """Return the command that ends a container at once, if it still runs: podman's `rm -f` alone waits 10 s."""
    return ["sh", "-c", '"$0" kill "$1"; "$0" rm -f "$1"', tool, name]


def _ask(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return subprocess.CompletedProcess(command, 1, "", str(e))
