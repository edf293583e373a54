"""From a setting to the commands that are run: one launch for each replica, as a dry run prints them."""

import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from dyno.engines.kind import Kind
from dyno.engines.program import Program
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, Launch

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.I)
_NO_SECRET = re.compile(r"TOKENIZER|TOKENS|MONKEY", re.I)
_SECRET_FLAG = re.compile(r"--?(?:api[-_]?key|hf[-_]?token|token|password)", re.I)
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
HIDDEN = "[redacted]"


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


def is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(_NO_SECRET.sub("", name)))


def secrets(env: Mapping[str, str], args: Sequence[str] = ()) -> list[str]:
    """The values that must reach no file."""
    found = {v for k, v in env.items() if is_secret(k) and len(v) > 6}
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if _SECRET_FLAG.fullmatch(name):
            found.add(value if equals else args[i + 1] if i + 1 < len(args) else "")
    return sorted((v for v in found if len(v) > 6), key=len, reverse=True)


def public(launch: Launch) -> Launch:
    hidden = secrets(launch.env, launch.argv)
    return msgspec.structs.replace(launch, argv=_without(hidden, launch.argv), env=public_env(launch.env))


def public_spec(spec: EngineSpec) -> EngineSpec:
    hidden = secrets(spec.env, spec.args)
    return msgspec.structs.replace(
        spec,
        args=_without(hidden, spec.args),
        env=public_env(spec.env),
        before=_without(hidden, spec.before),
        after=_without(hidden, spec.after),
    )


def public_env(env: Mapping[str, str]) -> dict[str, str]:
    return {k: HIDDEN if is_secret(k) else v for k, v in env.items()}


def _without(hidden: Sequence[str], words: Sequence[str]) -> list[str]:
    out = []
    for word in words:
        for secret in hidden:
            word = word.replace(secret, HIDDEN)
        out.append(word)
    return out
