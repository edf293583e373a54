"""What would be run for an engine setting, and what is known of it before it runs: as a dry run prints it."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dyno import secrets
from dyno.engines import container
from dyno.engines.kinds import kind_of
from dyno.engines.kinds.base import Kind, Program
from dyno.engines.launch import WORKER, allowed, launches, locate, shown, spec_secrets
from dyno.engines.port import free_port
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, Launch, Limits
from dyno.facts.model import ModelShape
from dyno.facts.offline import Batch
from dyno.facts.rig import Rig
from dyno.facts.roofline import Peaks
from dyno.measure import preflight
from dyno.probe import model as model_files
from dyno.probe import peaks


class EnginePlan:
    def __init__(
        self, spec: EngineSpec, rig: Rig, port: int | None = None, dry: bool = False, batch: Batch | None = None
    ) -> None:
        """`batch`: not as a server, but in its own process, for that."""
        self.kind: Kind = kind_of(spec.kind)
        if not self.kind.starts:
            raise UsageError(f"An engine of the kind {spec.kind} is attached to, not started: give its --base-url.")
        if min(spec.replicas, spec.tensor_parallel, spec.pipeline_parallel) < 1:
            raise UsageError("replicas, tensor_parallel and pipeline_parallel are at least 1.")
        self.batch = batch
        if batch is not None:
            spec = _offline(self.kind, spec)
        self.spec = spec = self.kind.prepare(_absolute(spec))
        secrets.learn([*secrets.values(os.environ), *spec_secrets(spec)])  # what the engine is given, or inherits
        self.rig = rig
        self.program: Program = locate(self.kind, spec, dry)
        # In a dry run for another machine a model that isn't here is a problem to be told, and the command still shown.
        if spec.draft_tokens and not spec.draft_model:
            raise UsageError("draft_tokens says how many are drafted, and there is no draft_model to draft them.")
        self.absent = _absent(spec)
        if self.absent and not dry:
            raise UsageError(self.absent)
        self.model = None if self.absent else _model(spec)
        limits = self.kind.limits if batch is None else self.kind.worker_limits
        self.limits: Limits = limits(spec, self.model, self.program.version)
        present = allowed([a.index for a in rig.accelerators], _vendor_of(rig), os.environ)
        if spec.devices and present and (absent := [d for d in spec.devices if d not in present]):
            raise UsageError(
                f"devices = {spec.devices}: there is no accelerator {', '.join(map(str, absent))}; there are "
                f"{', '.join(map(str, present))} (`dyno doctor`)."
            )
        if spec.devices and not present and (self.program.embedded or not dry):
            why = (
                "what comes with dyno runs on the CPU" if self.program.embedded else "none is seen here (`dyno doctor`)"
            )
            raise UsageError(f"devices = {spec.devices}: {why}. Leave the devices out.")
        if spec.devices and len(set(spec.devices)) < len(spec.devices):
            raise UsageError(f"devices = {spec.devices}: one is named twice.")
        # What comes with dyno runs on the CPU.
        self.devices = [] if self.program.embedded else present if spec.devices is None else spec.devices
        box = spec.container.accelerator if spec.container else None
        # A dry run for another machine: as if it had NVIDIA's, unless the container says otherwise.
        self.assumed = (box or "nvidia") if dry and spec.devices and not present else None
        vendor = _vendor_of(rig) or self.assumed
        port = port or spec.port
        ports = [port + i if port else 8000 + i if dry else free_port() for i in range(spec.replicas)]
        if max(ports, default=0) > 65535:
            raise UsageError(
                f"port = {port}: the last of {spec.replicas} copies would have {ports[-1]}, which is no port."
            )
        inside = launches(self.kind, spec, self.program, ports, self.devices, vendor, batch)
        self.cleanups: list[list[str]] = [[] for _ in inside]
        self.launches: list[Launch] = inside
        self.tool: str | None = None
        if spec.container:
            self._into_containers(spec, inside, vendor, dry)

    def _into_containers(self, spec: EngineSpec, inside: list[Launch], vendor: str | None, dry: bool) -> None:
        assert spec.container
        self.tool = (spec.container.tool or "docker") if dry else container.tool(spec.container.tool)
        names = [f"dyno-{os.getpid()}-{launch.port}" for launch in inside]
        accelerator = spec.container.accelerator or vendor or "none"
        groups = container.device_groups(self.tool)
        handed_on = [name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if name in os.environ]
        model = spec.model if self.model else None
        self.launches = [
            container.wrap(launch, spec.container, name, self.tool, model, accelerator, handed_on, groups)
            for launch, name in zip(inside, names, strict=True)
        ]
        self.cleanups = [container.remove_command(self.tool, name) for name in names]

    @property
    def title(self) -> str:
        return self.kind.title if self.batch is None else self.kind.title.removesuffix(" serve")

    @property
    def served_name(self) -> str:
        return self.spec.served_name or self.kind.default_name(self.spec)

    @property
    def tokenizer(self) -> str | None:
        """The model's own, where its files are here."""
        if self.model is None:
            return None
        path = Path(self.model.path)
        file = (path if path.is_dir() else path.parent) / "tokenizer.json"
        return str(file) if file.exists() else None

    def clean(self, text: str) -> str:
        return secrets.clean(secrets.without_looks(text))

    def command(self, text: str) -> str:
        """One of those before and after it, as it may be shown."""
        return self.clean(secrets.without_in_command(text))

    def problems(self, needed: Sequence[int] = ()) -> list[str]:
        """`needed`: prompt + output of the requests, as far as they are known."""
        unsaid = self.kind.unsaid_quantization(self.spec, self.program.version)
        found = list(preflight.problems(self.spec, self.limits, self.model, self.rig, self.devices, from_files=unsaid))
        too_long = preflight.length_problem(needed, self.limits)
        return [first for first in (self.absent, too_long) if first] + found

    def notes(self, concurrency: int | None) -> list[str]:
        """What is allowed and will be a finding."""
        at_once = self.limits.slots and self.limits.slots * self.spec.replicas
        queue = bool(at_once and concurrency and concurrency > at_once)
        told = [f"{concurrency} requests in flight, {at_once} worked on at once: the queue will be measured"] * queue
        if self.spec.replicas > 1 and not self.devices:
            told.append(f"{self.spec.replicas} copies share the cores of this machine: no accelerator is used")
        made_for, asked = self.model and self.model.context, self.spec.max_model_len
        if made_for and asked and asked > made_for:
            told.append(f"max_model_len = {asked} is more than the model was made for ({made_for})")
        whole = msgspec.structs.replace(self.limits, cache_tokens=self.limits.cache_tokens or self.limits.context or 0)
        if not self.problems() and (
            tight := list(preflight.problems(self.spec, whole, self.model, self.rig, self.devices))
        ):
            told.append(f"One request of full length may not fit: {tight[0]}")
        return told

    def shape(self) -> ModelShape | None:
        """The model's; of a hub's name where the engine has fetched it."""
        return self.model or (model_files.of_hub(self.spec.model) if self.spec.model else None)

    def peaks(self) -> Peaks | None:
        """Of what the copies run on. None: not known, or there is no model to be held against them."""
        if self.spec.model is None:
            return None
        if self.kind.spreads_by_args(self.spec.args):  # over more than the setting says: not held against one of them
            return None
        python = self.program.python if not self.spec.container else None
        if self.program.embedded:  # on the CPU, whatever else is there
            return peaks.of_processor(self.rig).peaks
        spreads, env = self.limits.spreads, self.launches[0].env
        return peaks.of(self.rig, self.devices, self.spec, spreads=spreads, python=python, env=env).peaks

    def lines(self) -> Iterator[str]:
        """For the dry run."""
        version = self.program.version or "of unknown version, its newest flags assumed"
        if not self.program.asked:
            version += f" ({'as the setting says; ' * bool(self.program.version)}a dry run doesn't ask the program)"
        yield f"# {self.kind.title} {version}, {self.program.where}"
        context = f"{self.limits.context} tokens ({self.limits.context_from})" if self.limits.context else "unknown"
        yield f"# context of a request: {context}; requests at once: {self.limits.slots or 'the engine decides'}"
        if self.assumed:
            yield f"# no accelerator is seen here: {self.assumed} is assumed"
        if self.kind.unsaid_quantization(self.spec, self.program.version):
            yield f"# quantization {self.spec.quantization}: no flag makes it, the model's files must have it"
        if self.spec.container and self.tool:
            commands = container.prepare_commands(self.spec.container, self.tool, present=False)
            yield from (shown(Launch(command, {}, 0)) for command in commands)
        yield from map(self.command, self.spec.before)
        yield from (self.clean(shown(launch)) for launch in self.launches)
        yield from (f"{self.command(command)}    # afterwards" for command in self.spec.after)


def _vendor_of(rig: Rig) -> str | None:
    return rig.accelerators[0].vendor if rig.accelerators else None


def _offline(kind: Kind, spec: EngineSpec) -> EngineSpec:
    if type(kind).worker is Kind.worker:
        raise UsageError(f"{kind.title} can't be measured offline: vllm, llamacpp and transformers can.")
    if spec.replicas > 1:
        raise UsageError("Offline, one copy of the engine is measured: leave replicas out.")
    if spec.container is None:
        return spec
    if not kind.module:
        raise UsageError(f"{kind.title} in a container can't be measured offline: its images have no Python.")
    box = msgspec.structs.replace(
        spec.container,
        mounts=[*spec.container.mounts, f"{WORKER}:{WORKER}:ro"],
        options=["--interactive", *spec.container.options],
    )
    return msgspec.structs.replace(spec, container=box)


def _absolute(spec: EngineSpec) -> EngineSpec:
    """A model that lies here by its whole path: the engine may stand elsewhere, and doesn't know ~."""
    if spec.model is None or not model_files.looks_local(spec.model):
        return spec
    path = Path(spec.model).expanduser()
    return msgspec.structs.replace(spec, model=str(path.absolute())) if path.exists() else spec


def _absent(spec: EngineSpec) -> str | None:
    for what, named in (("model", spec.model), ("draft model", spec.draft_model)):
        if named is not None and model_files.looks_local(named) and not Path(named).expanduser().exists():
            return f"The {what} {named} isn't there. Check the path."
    return None


def _model(spec: EngineSpec) -> ModelShape | None:
    if spec.model is None or not model_files.looks_local(spec.model):
        return None
    path = Path(spec.model).expanduser()
    shape = model_files.read(path)
    if shape is None and (path.is_dir() or path.suffix == ".gguf"):
        what = "has no config.json and no *.gguf" if path.is_dir() else "can't be read as a GGUF file (cut off?)"
        raise UsageError(f"The model {spec.model} {what}.")
    return shape
