"""Turn a setting into commands: locate the program, and build one launch per replica."""

import functools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from dyno import secrets
from dyno.engines import container, environment, image, versions
from dyno.engines.kinds import kind_of
from dyno.engines.kinds.base import EngineKind, Program
from dyno.errors import UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec, Launch, Misspelt, will_do
from dyno.facts.offline import Batch
from dyno.option import setting_name

# run as a folder, by the engine's interpreter: not imported here
WORKER = Path(__file__).with_name("worker")
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
_ASK_S = 60.0  # a cold Python on a network file system takes its time


# ---- the program: as the setting says, in an environment of dyno's, or on PATH ----


def locate(kind: EngineKind, spec: EngineSpec, dry: bool = False) -> Program:
    """Return the program, or raise where it isn't on this machine in the required version.

    A dry run shows the command of an absent one too. It runs none, not even to ask for a version: it assumes the
    setting's."""
    named = _named(kind, spec, dry)
    program = named or _installed(kind, spec, dry)
    other = program and program.version and not will_do(program.version, spec)
    if dry and (program is None or (other and named is None)):
        return Program(
            [kind.programs[0]], spec.version, where="not on this machine", absent=True
        )
    if program is None:
        raise UsageError(missing(kind, spec))
    if other:
        raise UsageError(_refusal(kind, spec, program.version, program.where))
    return program


def _refusal(kind: EngineKind, spec: EngineSpec, version: str | None, where: str) -> str:
    remedy, wanted = f"Run `dyno engines install {kind.name}`", "a version"
    if spec.version:
        remedy = f"Run `dyno engines install {kind.name} --version {spec.version}`"
        wanted = f"version {spec.version!r}"
    if spec.container:
        remedy = "Choose another image"
    setting = "version"
    if spec.accepts:
        setting = "accepts"
        wanted += (
            f" or one within {spec.accepts!r}"
            if spec.version
            else f" within {spec.accepts!r}"
        )
    return (
        f"The setting requires {wanted}, but {kind.title} at {where} is {version}. {remedy}, or change the setting's "
        f"{setting}."
    )


def missing(kind: EngineKind, spec: EngineSpec) -> str:
    which, option = "", ""
    if spec.version:
        which, option = f" {spec.version}", f" --version {spec.version}"
    way = f"Install it with `dyno engines install {kind.name}{option}`"
    return (
        f"{kind.title}{which} is not installed: dyno has no environment with it, and {' or '.join(kind.programs)} "
        f"is not on PATH. {way}, or name its location with {setting_name('--engine-python')} or "
        f"{setting_name('--engine-binary')}."
    )


def contained(kind: EngineKind, spec: EngineSpec) -> EngineSpec:
    """Return the setting with the image of the environment that it would use, where that is one."""
    if spec.container or spec.python or spec.binary:
        return spec
    env = environment.find(kind.name, spec.environment, spec.version, spec.accepts)
    if env is None or env.image is None:
        return spec
    box = ContainerSpec(
        image=env.image, tool="docker" if env.tool == "docker" else "podman"
    )
    return msgspec.structs.replace(
        spec, container=box, environment=None, version=spec.version or env.version
    )


def _named(kind: EngineKind, spec: EngineSpec, dry: bool) -> Program | None:
    """Return the program that a setting names. None: it names none."""
    if spec.container:
        return _from_container(kind, spec, spec.container, dry)
    if spec.environment:
        env = environment.find(kind.name, name=spec.environment)
        if env is None:
            known = ", ".join(e.name for e in environment.installed(kind.name)) or "none"
            raise UsageError(
                f"No {kind.title} environment named {spec.environment!r}. Installed: {known}."
            )
        return _from_environment(kind, env, dry)
    if spec.python:
        return _from_python(kind, spec, spec.python, dry)
    if spec.binary:
        file = Path(spec.binary).expanduser()
        # A path stays one: `./llama-server` is not the one on PATH.
        path = shutil.which(str(file.absolute()) if "/" in spec.binary else spec.binary)
        if path is None:
            raise UsageError(
                f"{setting_name('--engine-binary', spec.binary)}: no such executable."
            )
        return _from_binary(kind, path, spec, dry)
    return None


def _from_container(
    kind: EngineKind, spec: EngineSpec, container: ContainerSpec, dry: bool
) -> Program:
    if not kind.in_container:
        raise UsageError(
            f"dyno can't run {kind.title} in a container. Use a local installation."
        )
    # The image knows best, if it is here; then its tag; the setting may be written for another version.
    version = None if dry else version_in_image(kind, container)
    version = version or versions.version_of(container.image)
    where = f"the image {container.image}"
    return Program(
        list(kind.in_container),
        version or spec.version,
        where=where,
        asked=version is not None,
    )


def _from_python(kind: EngineKind, spec: EngineSpec, given: str, dry: bool) -> Program:
    """Return the engine that is installed in an interpreter."""
    if not kind.module:
        raise UsageError(
            f"{kind.title} is not a Python module. Name its program with {setting_name('--engine-binary')} instead "
            f"of {setting_name('--engine-python')}."
        )
    python = shutil.which(given)
    if python is None:
        raise UsageError(f"{setting_name('--engine-python', given)}: no such interpreter.")
    version = spec.version if dry else version_in(python, kind.packages)
    if version is None and not dry:
        raise UsageError(
            f"{kind.title} ({', '.join(kind.packages)}) is not installed in {given}."
        )
    return Program(
        [python, *kind.module],
        version,
        binary=False,
        python=python,
        where=python,
        asked=not dry,
    )


def _installed(kind: EngineKind, spec: EngineSpec, dry: bool) -> Program | None:
    if env := environment.find(kind.name, version=spec.version, accepts=spec.accepts):
        return _from_environment(kind, env, dry)
    for name in kind.programs:
        if path := shutil.which(name):
            return _from_binary(kind, path, spec, dry)
    return kind.own_program()


def _from_binary(kind: EngineKind, path: str, spec: EngineSpec, dry: bool) -> Program:
    version = spec.version if dry else version_of(path, kind)
    return Program([path], version, python=interpreter_of(path), where=path, asked=not dry)


def _from_environment(kind: EngineKind, env: environment.Environment, dry: bool) -> Program:
    where = f"the environment {env.name}"
    if env.binary:
        # What was built from a tag has that version: old builds report none of their own then.
        version = None if dry or not env.python else version_of(env.binary, kind)
        return Program([env.binary], version or env.version, where=where)
    return Program(
        [env.python, *kind.module],
        env.version,
        binary=False,
        python=env.python,
        where=where,
    )


def interpreter_of(script: str) -> str | None:
    """Return the interpreter of a console script, by its first line."""
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
    # pip's way around long paths: '''exec' /path/python "$0" "$@"
    if words and words[0].endswith("/sh"):
        path = re.match(rb"'''exec' \"?([^\" ]+)", second)
        return path[1].decode() if path else None
    if len(words) > 1 and words[0].endswith("env"):
        return shutil.which(words[-1])
    return None


def version_in(python: str, packages: tuple[str, ...]) -> str | None:
    """Return the version of the first of these distributions, without importing the engine (seconds, with torch)."""
    script = (
        "import importlib.metadata as m, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        print(m.version(name)); break\n"
        "    except m.PackageNotFoundError:\n        pass\n"
    )
    output = _output([python, "-c", script, *packages])
    return output.splitlines()[-1] if output else None  # a wrapper may have a banner


def version_in_image(kind: EngineKind, spec: ContainerSpec) -> str | None:
    """Return the version in an image. None: it isn't on this machine, or doesn't tell."""
    tool = container.tool(spec.tool)
    if image.digest(tool, spec.image) is None:
        return None
    if kind.packages:
        return next(iter(container.software(spec, tool, kind.packages).values()), None)
    command = [
        tool,
        "run",
        "--rm",
        "--pull=never",
        "--network=none",
        spec.image,
        "--version",
    ]
    return _version_in_text(_output(command) or "")


def version_of(binary: str, kind: EngineKind) -> str | None:
    if kind.packages and (python := interpreter_of(binary)):
        return version_in(python, kind.packages)
    return _version_in_text(_output([kind.tells_version(binary), "--version"]) or "")


def _version_in_text(text: str) -> str | None:
    # llama-server: 'version: 6123 (79c1160b)', text-generation-launcher: 'text-generation-launcher 3.3.6'
    # Newer: 'version: 0.6.0 (build 11434, commit 79c1160b)'; a build without git says 0, which means nothing.
    if build := re.search(r"\(build (\d+)", text):
        return build[1] if int(build[1]) else None
    version = re.search(r"version: b?(\d+)", text) or re.search(
        r"\b(\d+(?:\.\d+)+\S*)", text
    )
    return version[1] if version else None


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


# ---- the launches ----


def launches(
    kind: EngineKind,
    spec: EngineSpec,
    program: Program,
    ports: Sequence[int],
    devices: Sequence[int],
    vendor: str | None,
    batch: Batch | None = None,
) -> list[Launch]:
    """Return the launch of each replica. `devices`: those of the rig that may be used, in order. `batch`: an offline
    run instead of a server."""
    own = kind.own_args(spec.args, program, batch)
    shares = _shares(spec, devices)
    out = []
    for port, share in zip(ports, shares, strict=True):
        if batch is None:
            argv, env = kind.argv(spec, program, port), kind.env(spec)
        else:
            argv, env = (
                worker_argv(kind, spec, program, port, batch),
                kind.worker_env(program),
            )
        env = {**env, **_visible(share, vendor), **spec.env}
        out.append(Launch(argv=[*argv, *own], env=env, port=port, devices=share))
    return out


def worker_argv(
    kind: EngineKind, spec: EngineSpec, program: Program, port: int, batch: Batch
) -> list[str]:
    """Use the interpreter that has the engine; for one that isn't a Python module, dyno's own."""
    python = program.python or (sys.executable if not kind.module else None)
    if spec.container or program.absent:
        python = "python3"
    if python is None:
        raise UsageError(
            f"dyno can't find the Python interpreter of {program.argv[0]}. Give the one that has {kind.title} with "
            f"{setting_name('--engine-python')}."
        )
    return [python, str(WORKER), *kind.worker(spec, program, port, batch)]


def _shares(spec: EngineSpec, devices: Sequence[int]) -> list[list[int] | None]:
    """Return disjoint devices for each replica. None: the engine chooses."""
    if spec.devices == []:
        return [[] for _ in range(spec.replicas)]
    named = set(_VISIBLE.values()) & set(spec.env)
    if named:
        if spec.replicas > 1 or spec.devices is not None:
            raise UsageError(
                f"{named.pop()} in {setting_name('--engine-env')} contradicts {setting_name('--replicas')} and "
                f"{setting_name('--devices')}. Use {setting_name('--devices')} alone."
            )
        return [None]
    world = spec.world
    if devices and len(devices) < world * spec.replicas:
        raise UsageError(
            f"{spec.replicas} × {world} accelerators are needed ({setting_name('--replicas')} × "
            f"{setting_name('--tensor-parallel-size')} × {setting_name('--pipeline-parallel-size')}), but only "
            f"{len(devices)} are available ({', '.join(map(str, devices))}). Lower one, or name more "
            f"{setting_name('--devices')}."
        )
    if not devices or (spec.devices is None and spec.replicas == 1):
        return [None] * spec.replicas
    return [list(devices[i * world : (i + 1) * world]) for i in range(spec.replicas)]


def _visible(devices: Sequence[int] | None, vendor: str | None) -> dict[str, str]:
    if devices is None or vendor is None or vendor not in _VISIBLE:
        return {}
    out = {_VISIBLE[vendor]: ",".join(map(str, devices))}
    if vendor == "nvidia":
        # else the fastest comes first, unlike in nvidia-smi
        out["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return out


def allowed(
    devices: Sequence[int], vendor: str | None, env: Mapping[str, str]
) -> list[int]:
    """Return those that the user's own environment allows: on a shared machine others may use the rest."""
    visible = env.get(_VISIBLE.get(vendor or "", ""), "").split(",")
    if not all(word.isdigit() for word in visible):
        return list(devices)
    return [device for device in devices if str(device) in visible]


def shown(launch: Launch) -> str:
    """Return a line for the shell, without secrets."""
    clean = public(launch)
    variables = [f"{name}={shlex.quote(value)}" for name, value in clean.env.items()]
    return " ".join([*variables, shlex.join(clean.argv)])


def public(launch: Launch) -> Launch:
    hidden = secrets.values(launch.env, launch.argv)
    return msgspec.structs.replace(
        launch, argv=secrets.without(hidden, launch.argv), env=_public_env(launch.env)
    )


def spec_secrets(spec: EngineSpec) -> list[str]:
    """Return the values in a setting that no file may contain."""
    env, words = dict(spec.env), [*spec.args, "--"]
    if spec.container:
        env |= spec.container.build_args
        words += spec.container.options
    for command in (*spec.before, *spec.after):
        words += ["--", *_split_command(command)]
    return secrets.values(env, words)


def _split_command(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # the shell will report it
        return command.split()


def public_spec(spec: EngineSpec) -> EngineSpec:
    hidden = spec_secrets(spec)
    box = spec.container
    if box is not None:
        build = {name: secrets.shown(name, value) for name, value in box.build_args.items()}
        box = msgspec.structs.replace(
            box, options=secrets.without(hidden, box.options), build_args=build
        )
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


# ---- variables that an engine won't read as they are written: a letter is lost, or no shell can set them ----

_NEAR, _SHORTEST = 0.92, 8  # of difflib; letters

# Well-known ones: only a near miss of them is reported, never an unknown name.
_EVERYWHERE = """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_DEVICE_MAX_CONNECTIONS
    NVIDIA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES HIP_FORCE_DEV_KERNARG HIP_LAUNCH_BLOCKING ROCR_VISIBLE_DEVICES
    GPU_DEVICE_ORDINAL GPU_MAX_HW_QUEUES HSA_OVERRIDE_GFX_VERSION HSA_ENABLE_SDMA HSA_NO_SCRATCH_RECLAIM HSA_XNACK
    HSA_FORCE_FINE_GRAIN_PCIE HIPBLASLT_TUNING_FILE HIPBLASLT_TUNING_OVERRIDE_FILE TORCH_BLAS_PREFER_HIPBLASLT
    TORCH_CUDA_ARCH_LIST TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_BLOCKING_WAIT PYTORCH_TUNABLEOP_ENABLED
    PYTORCH_TUNABLEOP_TUNING PYTORCH_TUNABLEOP_FILENAME PYTORCH_TUNABLEOP_VERBOSE PYTORCH_CUDA_ALLOC_CONF
    PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_ROCM_ARCH TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_CACHE_DIR
    NCCL_DEBUG NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_IB_HCA NCCL_SOCKET_IFNAME
    NCCL_NET_GDR_LEVEL NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_NCHANNELS_PER_PEER NCCL_ALGO NCCL_PROTO
    NCCL_BUFFSIZE NCCL_NTHREADS NCCL_TOPO_FILE NCCL_CUMEM_ENABLE NCCL_NVLS_ENABLE NCCL_CROSS_NIC NCCL_LAUNCH_MODE
    RCCL_MSCCL_ENABLE RCCL_MSCCLPP_ENABLE OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES MKL_NUM_THREADS KMP_AFFINITY
    KMP_BLOCKTIME TOKENIZERS_PARALLELISM HF_HUB_OFFLINE HF_HUB_ENABLE_HF_TRANSFER TRANSFORMERS_OFFLINE
    TRITON_CACHE_DIR
""".split()  # noqa: SIM905


def misspelt(
    kind: str, python: str | None, env: Mapping[str, str], exported: Mapping[str, str]
) -> list[Misspelt]:
    """Return variables that are probably misspelt. `python`: the engine's interpreter, if it is on this machine.
    `exported`: the environment that the engine inherits; only variables of known families are looked for in it."""
    paths = [
        *env.get("PYTHONPATH", "").split(":"),
        *exported.get("PYTHONPATH", "").split(":"),
    ]
    engine = kind_of(kind)
    listed = _listed(engine, python, filter(None, paths))
    known = {*_EVERYWHERE, *engine.variables, *listed}
    families = known if engine.variables_have_prefix else known - {*engine.variables}
    own = [_spelled(name, known, listed, engine) for name in env]
    inherited = [
        _spelled(name, families, listed, engine)
        for name in exported
        if name not in env and name.isupper()
    ]
    return [m for m in (*own, *inherited) if m is not None]


def _spelled(
    name: str, known: set[str], listed: set[str], engine: EngineKind
) -> Misspelt | None:
    spelling = re.sub(r"[^A-Za-z0-9_]", "_", name)
    valid = spelling == name and not name[:1].isdigit()
    if valid and name in (listed or known):
        return None
    meant = None
    if name not in known and len(name) >= _SHORTEST:
        meant = _meant(spelling, known)
    if meant is not None:
        return Misspelt(name, meant, "unlike" if valid else "invalid")
    if not valid:
        return Misspelt(name, None, "invalid")
    if listed and name.startswith(engine.variable_prefixes):
        return Misspelt(name, None, "unlisted")
    return None


def _meant(spelling: str, known: set[str]) -> str | None:
    """Return the known variable that is most like this one. None: none is."""
    if spelling in known:
        return spelling
    return next(iter(_near(spelling, frozenset(known))), None)


@functools.lru_cache(4096)  # a study asks for the same environment at each of its settings
def _near(name: str, known: frozenset[str]) -> list[str]:
    return get_close_matches(name, known, 1, _NEAR)


def _listed(engine: EngineKind, python: str | None, paths: Iterable[str]) -> set[str]:
    """Return the names in the file of the installed engine that lists them, which is read and not run; none where it
    isn't found."""
    if not engine.variables_file:
        return set()
    folders = [Path(path) for path in paths]
    if python is not None:  # its path as it is: that of a virtual environment is a link
        folders += sorted(Path(python).parent.parent.glob("lib*/python3*/*-packages"))
    name = rf"""["']((?:{"|".join(engine.variable_prefixes)})[A-Z0-9_]+)["']"""
    for file in (folder / engine.variables_file for folder in folders):
        try:
            return {*re.findall(name, file.read_text("utf-8", "replace"))}
        except OSError:
            continue
    return set()
