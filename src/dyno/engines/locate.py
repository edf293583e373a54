"""Where an engine's program is: as the setting says, in an environment that dyno made, or on PATH."""

import re
import shutil
from pathlib import Path

from dyno.engines.install import environment
from dyno.engines.kinds.base import Kind
from dyno.engines.program import Program, interpreter_of, version_in, version_of
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.version import is_of


def locate(kind: Kind, spec: EngineSpec, dry: bool = False) -> Program:
    """In a dry run an engine that isn't here, in this version, is let pass: its command can be shown all the same. And
    none is run, not even to be asked for its version: the setting's is taken for it."""
    named = _named(kind, spec, dry)
    program = named or _found(kind, spec, dry)
    other = program and spec.version and program.version and not is_of(program.version, spec.version)
    if dry and (program is None or (other and named is None)):
        return Program([kind.programs[0]], spec.version, where="not on this machine", absent=True)
    if program is None:
        raise UsageError(missing(kind, spec))
    if other:
        raise UsageError(
            f"version = {spec.version!r} is asked for, and {kind.title} at {program.where} is {program.version}. "
            f"Install it with `dyno engines install {kind.name} --version {spec.version}`, or leave the version out."
        )
    return program


def missing(kind: Kind, spec: EngineSpec) -> str:
    which = f" {spec.version}" if spec.version else ""
    ways = [f"`dyno engines install {kind.name}{which and ' --version' + which}` makes an environment for it"]
    if kind.name == "tgi":
        ways = ["run it in a container (container.image, or --engine-image)"]
    return (
        f"{kind.title}{which} isn't here: no environment of dyno's holds it, and there is no "
        f"{' or '.join(kind.programs)} on PATH. {ways[0][0].upper()}{ways[0][1:]}; or say where it is with python or "
        "binary (--engine-python, --engine-binary)."
    )


def _named(kind: Kind, spec: EngineSpec, dry: bool) -> Program | None:
    if spec.container:
        if not kind.in_container:
            raise UsageError(f"dyno doesn't know how {kind.title} is run in a container.")
        # What is in an image isn't known before it runs; the flags follow the setting's version.
        tag = re.search(r":v?(\d+(?:\.\d+)+)", spec.container.image)
        version = spec.version or (tag[1] if tag else None)
        return Program(list(kind.in_container), version, where=f"the image {spec.container.image}")
    if spec.environment:
        made = environment.find(kind.name, name=spec.environment)
        if made is None:
            known = ", ".join(e.name for e in environment.installed(kind.name)) or "none"
            raise UsageError(f"There is no {kind.title} environment {spec.environment!r}. There are: {known}.")
        return _of_environment(kind, made, dry)
    if spec.python:
        if not kind.module:
            raise UsageError(f"{kind.title} is no Python module: say where its program is with binary.")
        python = shutil.which(spec.python)
        if python is None:
            raise UsageError(f"python = {spec.python!r}: there is no such interpreter.")
        version = spec.version if dry else version_in(python, kind.packages)
        if version is None and not dry:
            raise UsageError(f"The interpreter {spec.python} has no {kind.title} ({', '.join(kind.packages)}).")
        return Program([python, *kind.module], version, binary=False, python=python, where=python, asked=not dry)
    if spec.binary:
        named = Path(spec.binary).expanduser()
        # A path stays one: `./llama-server` is not the one on PATH.
        path = shutil.which(str(named.absolute()) if "/" in spec.binary else spec.binary)
        if path is None:
            raise UsageError(f"binary = {spec.binary!r}: there is no such program that can be run.")
        return _of_binary(kind, path, spec, dry)
    return None


def _found(kind: Kind, spec: EngineSpec, dry: bool) -> Program | None:
    if made := environment.find(kind.name, version=spec.version):
        return _of_environment(kind, made, dry)
    for name in kind.programs:
        if path := shutil.which(name):
            return _of_binary(kind, path, spec, dry)
    return kind.own_program()


def _of_binary(kind: Kind, path: str, spec: EngineSpec, dry: bool) -> Program:
    version = spec.version if dry else version_of(path, kind.packages)
    return Program([path], version, python=interpreter_of(path), where=path, asked=not dry)


def _of_environment(kind: Kind, made: environment.Environment, dry: bool) -> Program:
    where = f"the environment {made.name}"
    if made.binary:
        version = None if dry else version_of(made.binary, kind.packages)
        return Program([made.binary], version or made.version, where=where)
    return Program([made.python, *kind.module], made.version, binary=False, python=made.python, where=where)
