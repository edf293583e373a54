"""From a setting to the commands that are run: one launch for each replica, as a dry run prints them."""

import shlex
from collections.abc import Mapping, Sequence

import msgspec

from dyno import secrets
from dyno.engines.kind import Kind
from dyno.engines.program import Program
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, Launch

_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def launches(
    kind: Kind, spec: EngineSpec, program: Program, ports: Sequence[int], devices: Sequence[int], vendor: str | None
) -> list[Launch]:
    """`devices`: those of the rig that may be used, in order."""
    kind.check_args(spec.args, program.version)
    shares = _shares(spec, devices)
    return [
        Launch(
            argv=[*kind.argv(spec, program, port), *spec.args],
            env={**kind.env(spec), **_visible(share, vendor), **spec.env},
            port=port,
            devices=share,
        )
        for port, share in zip(ports, shares, strict=True)
    ]


def _shares(spec: EngineSpec, devices: Sequence[int]) -> list[list[int] | None]:
    """Disjoint devices for each replica. None: nothing is said, the engine takes what it finds."""
    if not devices or (spec.devices is None and spec.replicas == 1):
        return [None] * spec.replicas
    world = spec.world
    if len(devices) < world * spec.replicas:
        raise UsageError(
            f"{spec.replicas} × {world} accelerators are needed (replicas × tensor_parallel × pipeline_parallel), and "
            f"{len(devices)} are there ({', '.join(map(str, devices))}). Lower one of them, or name more devices."
        )
    return [list(devices[i * world : (i + 1) * world]) for i in range(spec.replicas)]


def _visible(devices: Sequence[int] | None, vendor: str | None) -> dict[str, str]:
    if devices is None or vendor not in _VISIBLE:
        return {}
    out = {_VISIBLE[vendor]: ",".join(map(str, devices))}
    if vendor == "nvidia":
        out["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # else the fastest comes first, and numbers aren't those of the tools
    return out


def shown(launch: Launch) -> str:
    """As a line for the shell, without secrets."""
    clean = public(launch)
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in clean.env.items()), shlex.join(clean.argv)])


def public(launch: Launch) -> Launch:
    hidden = secrets.values(launch.env, launch.argv)
    return msgspec.structs.replace(launch, argv=secrets.without(hidden, launch.argv), env=_public_env(launch.env))


def public_spec(spec: EngineSpec) -> EngineSpec:
    hidden = secrets.values(spec.env, spec.args)
    return msgspec.structs.replace(
        spec,
        args=secrets.without(hidden, spec.args),
        env=_public_env(spec.env),
        before=secrets.without(hidden, spec.before),
        after=secrets.without(hidden, spec.after),
    )


def _public_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: secrets.shown(name, value) for name, value in env.items()}
