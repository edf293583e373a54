"""From a setting to the commands that are run: one launch for each replica, as a dry run prints them."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dyno import secrets
from dyno.engines.kinds.base import Kind, Program
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, Launch
from dyno.facts.offline import Batch

WORKER = Path(__file__).with_name("worker")  # run as a folder, by the engine's interpreter: not imported here
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def launches(
    kind: Kind,
    spec: EngineSpec,
    program: Program,
    ports: Sequence[int],
    devices: Sequence[int],
    vendor: str | None,
    batch: Batch | None = None,
) -> list[Launch]:
    """`devices`: those of the rig that may be used, in order. `batch`: no server, the engine in its own process."""
    kind.check_args(spec.args, program.version)
    shares = _shares(spec, devices)
    return [
        Launch(
            argv=[
                *(kind.argv(spec, program, port) if batch is None else worker_argv(kind, spec, program, port, batch)),
                *spec.args,
            ],
            env={
                **(kind.env(spec) if batch is None else kind.worker_env(program)),
                **_visible(share, vendor),
                **spec.env,
            },
            port=port,
            devices=share,
        )
        for port, share in zip(ports, shares, strict=True)
    ]


def worker_argv(kind: Kind, spec: EngineSpec, program: Program, port: int, batch: Batch) -> list[str]:
    """By the interpreter that has the engine; what is no Python module is asked from dyno's own."""
    python = program.python or (sys.executable if not kind.module else None)
    if spec.container or program.absent:
        python = "python3"
    if python is None:
        raise UsageError(
            f"Which interpreter has {kind.title} can't be told from {program.argv[0]}: give it with python "
            "(--engine-python)."
        )
    return [python, str(WORKER), *kind.worker(spec, program, port, batch)]


def _shares(spec: EngineSpec, devices: Sequence[int]) -> list[list[int] | None]:
    """Disjoint devices for each replica. None: nothing is said, the engine takes what it finds."""
    if spec.devices == []:
        return [[] for _ in range(spec.replicas)]
    if named := set(_VISIBLE.values()) & set(spec.env):
        if spec.replicas > 1 or spec.devices is not None:
            raise UsageError(f"{named.pop()} in env contradicts replicas and devices: say it with devices alone.")
        return [None]
    world = spec.world
    if devices and len(devices) < world * spec.replicas:
        raise UsageError(
            f"{spec.replicas} × {world} accelerators are needed (replicas × tensor_parallel × pipeline_parallel), and "
            f"{len(devices)} are there ({', '.join(map(str, devices))}). Lower one of them, or name more devices."
        )
    if not devices or (spec.devices is None and spec.replicas == 1):
        return [None] * spec.replicas
    return [list(devices[i * world : (i + 1) * world]) for i in range(spec.replicas)]


def _visible(devices: Sequence[int] | None, vendor: str | None) -> dict[str, str]:
    if devices is None or vendor is None or vendor not in _VISIBLE:
        return {}
    out = {_VISIBLE[vendor]: ",".join(map(str, devices))}
    if vendor == "nvidia":
        out["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # else the fastest comes first, and numbers aren't those of the tools
    return out


def allowed(devices: Sequence[int], vendor: str | None, env: Mapping[str, str]) -> list[int]:
    """Those that the user's own environment leaves: on a shared machine the others are somebody else's."""
    said = env.get(_VISIBLE.get(vendor or "", ""), "").split(",")
    return [d for d in devices if str(d) in said] if all(word.isdigit() for word in said) else list(devices)


def shown(launch: Launch) -> str:
    """As a line for the shell, without secrets."""
    clean = public(launch)
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in clean.env.items()), shlex.join(clean.argv)])


def public(launch: Launch) -> Launch:
    hidden = secrets.values(launch.env, launch.argv)
    return msgspec.structs.replace(launch, argv=secrets.without(hidden, launch.argv), env=_public_env(launch.env))


def spec_secrets(spec: EngineSpec) -> list[str]:
    """The values in a setting that must reach no file."""
    box = spec.container
    env = {**spec.env, **(box.build_args if box else {})}
    commands = [word for command in (*spec.before, *spec.after) for word in ("--", *_words(command))]
    return secrets.values(env, [*spec.args, "--", *(box.options if box else []), *commands])


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # the shell will tell
        return command.split()


def public_spec(spec: EngineSpec) -> EngineSpec:
    hidden = spec_secrets(spec)
    box = spec.container
    if box is not None:
        build = {name: secrets.shown(name, value) for name, value in box.build_args.items()}
        box = msgspec.structs.replace(box, options=secrets.without(hidden, box.options), build_args=build)
    return msgspec.structs.replace(
        spec,
        container=box,
        args=secrets.without(hidden, spec.args),
        env=_public_env(spec.env),
        before=[secrets.without_in_command(command, hidden) for command in spec.before],
        after=[secrets.without_in_command(command, hidden) for command in spec.after],
    )


def _public_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: secrets.shown(name, value) for name, value in env.items()}
