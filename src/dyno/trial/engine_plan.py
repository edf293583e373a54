"""Plans an engine setting before it runs: locates program and model, finds problems, makes the commands to launch."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dyno import secrets
from dyno.engines import container, image
from dyno.engines.caches import Caches
from dyno.engines.kinds import KINDS, kind_of
from dyno.engines.kinds.base import EngineKind, Program
from dyno.engines.launch import (
    WORKER,
    allowed,
    contained,
    launches,
    locate,
    misspelt,
    shown,
    spec_secrets,
)
from dyno.engines.port import free_port
from dyno.errors import UsageError
from dyno.facts.engine import (
    ContainerSpec,
    EngineSpec,
    Launch,
    Limits,
    image_problem,
    is_of,
)
from dyno.facts.model import ModelShape
from dyno.facts.offline import Batch
from dyno.facts.rig import Accelerator, Peaks, Rig
from dyno.facts.trial import TrialSpec
from dyno.load.protocols import WireProtocol, protocol_of
from dyno.measure.agreement import plain, same_quantization
from dyno.numbers import human_bytes
from dyno.option import setting_name
from dyno.probe import model as model_files
from dyno.probe import peaks, software
from dyno.trial import weights

_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0}
# Quantizations made while loading: their size as a share of the files.
_ONLINE = {"fp8": 0.5, "int8": 0.5, "experts-int8": 0.5, "eetq": 0.5, "bitsandbytes": 0.25}


def ready_api(trial: TrialSpec) -> str:
    """Return the API by whose answer an engine shows that it is ready; '': the engine's own, where its model writes
    text to a prompt."""
    protocol = protocol_of(trial.api)
    writes = protocol.output == "text" and protocol.prompted
    return "" if writes or trial.template else trial.api


class EnginePlan:
    """An engine setting on this machine: the program and model that were located, and the commands to launch."""

    def __init__(
        self,
        spec: EngineSpec,
        rig: Rig,
        port: int | None = None,
        dry: bool = False,
        batch: Batch | None = None,
        image: str | None = None,
        api: str = "",
    ) -> None:
        """`batch`: plan an offline (in-process) run instead of a server. `dry`: perhaps for another machine. `image`:
        the digest that a container's image must have. `api`: see ready_api."""
        self.api = api
        self.kind: EngineKind = kind_of(spec.kind)
        self.rig, self.batch, self.image, self._asked = rig, batch, image, (spec, port)
        spec = contained(self.kind, spec)
        _check_image(spec)
        # of a study's own models: a dry run shows where they will be
        lacking = weights.lacking(spec)
        if not dry:
            _refuse_lacking(lacking)
        self.origins = weights.origins(spec)
        spec = weights.located(self.kind, spec)
        self.spec = spec = self.kind.prepare(_checked(self.kind, spec, batch))
        # what the engine is given, or inherits
        secrets.learn([*secrets.values(os.environ), *spec_secrets(spec)])
        self.program: Program = locate(self.kind, self._pinned(spec), dry)
        self.absent = None if lacking else _absent(spec)
        self.model: ModelShape | None = self._local_model(dry)
        limits = self.kind.limits if batch is None else self.kind.worker_limits
        self.limits: Limits = limits(spec, self.model, self.program.version)
        present = allowed([a.index for a in rig.accelerators], _vendor(rig), os.environ)
        _check_devices(spec.devices, present, self.program.embedded, dry)
        self.devices: list[int] = self._chosen_devices(present)
        self.assumed = None if present or not dry else _assumed_vendor(spec)
        vendor = _vendor(rig) or self.assumed
        ports = _ports(spec, port or spec.port, dry)
        self.caches = Caches(spec, self.program.version, self._device_names())
        planned = launches(
            self.kind, spec, self.program, ports, self.devices, vendor, batch
        )
        self.launches: list[Launch] = [
            self.caches.into(launch, i) for i, launch in enumerate(planned)
        ]
        self.misspelt = misspelt(
            spec.kind, None if spec.container else self.program.python, spec.env, os.environ
        )
        self.cleanups: list[list[str]] = [[] for _ in ports]
        self.tool: str | None = None
        self.containers: list[str] = []  # their names
        # exported variables that they don't get, and why
        self.withheld: dict[str, str] = {}
        if box := self._pinned(spec).container:
            self.tool = (box.tool or "docker") if dry else container.tool(box.tool)
            self._into_containers(
                self.caches.mounted(self._with_weights(box)), self.tool, vendor
            )

    def _local_model(self, dry: bool) -> ModelShape | None:
        """Return the shape of a model that is a file here. In a dry run for another machine a model that isn't here is
        a problem to report, and the command still shown."""
        if self.absent is None:
            return _model(self.spec)
        if not dry:
            raise UsageError(self.absent)
        return None

    def _chosen_devices(self, present: list[int]) -> list[int]:
        """Return the devices to use: those of the setting, else all. An engine that comes with dyno runs on the CPU."""
        if self.program.embedded:
            return []
        return present if self.spec.devices is None else self.spec.devices

    def _device_names(self) -> list[str]:
        return [a.name for a in self.rig.accelerators if a.index in self.devices]

    def _pinned(self, spec: EngineSpec) -> EngineSpec:
        if spec.container is None or self.image is None:
            return spec
        return msgspec.structs.replace(
            spec, container=msgspec.structs.replace(spec.container, image=self.image)
        )

    def _with_weights(self, box: ContainerSpec) -> ContainerSpec:
        """Mount a study's models; the model of any other setting is mounted where it is a path here."""
        named = [getattr(self.spec, key) for key, _ in weights.named(self._asked[0])]
        mounts = [
            f"{folder}:{folder}:ro"
            for folder in dict.fromkeys(map(container.repository, named))
        ]
        return msgspec.structs.replace(box, mounts=[*box.mounts, *mounts])

    def _into_containers(self, box: ContainerSpec, tool: str, vendor: str | None) -> None:
        self.containers = [f"dyno-{os.getpid()}-{launch.port}" for launch in self.launches]
        groups, exported = container.device_groups(tool), software.exported(os.environ)
        model, accelerator = (
            self.spec.model if self.model else None,
            box.accelerator or vendor or "none",
        )
        launches = [
            container.in_the_cache(launch, box, self.kind.cache_variables)
            for launch in self.launches
        ]
        wrapped = [
            container.wrap(launch, box, name, tool, model, accelerator, exported, groups)
            for launch, name in zip(launches, self.containers, strict=True)
        ]
        self.launches, self.withheld = [w.launch for w in wrapped], wrapped[0].withheld
        self.cleanups = [container.remove_command(tool, name) for name in self.containers]

    @property
    def protocol(self) -> WireProtocol:
        """Return the protocol of the requests that test the engine."""
        return protocol_of(self.api or self.kind.backend_of(self.spec))

    @property
    def stored(self) -> EngineSpec:
        """The setting for files: a study's models by their names."""
        return weights.by_name(self.spec, self._asked[0])

    def again(self) -> "EnginePlan":
        """Return the plan now that the image is here, which can be asked for its version."""
        spec, port = self._asked
        return EnginePlan(
            spec, self.rig, port, batch=self.batch, image=self.image, api=self.api
        )

    def seen(self, rig: Rig) -> Rig:
        """Return the machine with those variables alone that the engine has."""
        environment = {
            k: v
            for k, v in rig.environment.items()
            if k not in self.withheld and k not in self.spec.env
        }
        return msgspec.structs.replace(rig, environment=environment)

    def not_passed(self) -> str | None:
        names = ", ".join(f"{name} ({why})" for name, why in self.withheld.items())
        return f"Not passed to the container: {names}" if names else None

    @property
    def title(self) -> str:
        return (
            self.kind.title
            if self.batch is None
            else self.kind.title.removesuffix(" serve")
        )

    @property
    def served_name(self) -> str:
        return self.spec.served_name or self.kind.default_name(self.spec)

    @property
    def tokenizer(self) -> str | None:
        """The model's own tokenizer file, if it is on this machine."""
        if self.model is None:
            return None
        path = Path(self.model.path)
        file = (path if path.is_dir() else path.parent) / "tokenizer.json"
        return str(file) if file.exists() else None

    def clean(self, text: str) -> str:
        return secrets.public_text(text)

    def command(self, text: str) -> str:
        """Return a command before or after the engine as it may be shown."""
        return secrets.public_command(text)

    def problems(self, needed: Sequence[int] = ()) -> list[str]:
        """Return what is known to go wrong. `needed`: prompt + output of the requests, as far as they are known."""
        unable = self.kind.unable(self.spec, self.rig, self.program.version)
        return [
            *filter(None, (self.absent, self._too_long(needed), unable)),
            *self._contradictions(),
            *self._memory(),
        ]

    def _too_long(self, needed: Sequence[int]) -> str | None:
        context = self.limits.context
        over = sum(n > context for n in needed) if context else 0
        if not over:
            return None
        which = f"{over} of {len(needed)} requests" if len(needed) > 1 else "Requests"
        return (
            f"{which} need up to {max(needed)} tokens (prompt + output), but the limit is {context} "
            f"({self.limits.context_from}): they would fail. Use shorter requests, raise "
            f"{setting_name('--max-model-len')}, or lower {setting_name('--max-num-seqs')} where slots share the "
            "context."
        )

    def _contradictions(self) -> Iterator[str]:
        """Yield contradictions between the setting, the model's files and the machine."""
        spec = self.spec
        if self.model:
            yield from self._contradictions_of_files(self.model)
        if not self.devices and spec.devices is None and spec.world > 1:
            yield (
                f"{spec.world} accelerators are needed ({setting_name('--tensor-parallel-size')} × "
                f"{setting_name('--pipeline-parallel-size')}), but none is detected (`dyno doctor`). For a CPU, "
                f"give an empty {setting_name('--devices')}."
            )

    def _contradictions_of_files(self, model: ModelShape) -> Iterator[str]:
        spec, files = self.spec, model.quantization
        if not model.format and spec.load_format != "dummy":
            yield (
                f"{model.path} contains no weights (no *.safetensors). Give a folder with weights, or "
                f"{setting_name('--load-format', 'dummy')} for random ones."
            )
        # An online quantization (fp8) is made from unquantized files; a quantized file is what it is.
        if (
            files
            and spec.quantization
            and same_quantization(spec.quantization, files, model.dtype) is False
        ):
            yield (
                f"{setting_name('--quantization', spec.quantization)}, but the files at {model.path} are {files}. "
                "Give other files, or remove the quantization."
            )
        # no flag makes it, the files must
        unsaid = self.kind.unsaid_quantization(spec, self.program.version)
        if unsaid and model.format == "safetensors" and not files:
            yield (
                f"{setting_name('--quantization', spec.quantization)} needs quantized files, but those at "
                f"{model.path} are not. Give quantized ones."
            )

    def _memory(self, cache_tokens: int | None = None) -> Iterator[str]:
        """Yield only what can't work: the weights, and the KV cache where the engine takes it whole at its start. Of a
        cache that fills what is left, only the engine knows how much one request takes (sliding windows, latent
        attention)."""
        spec, weights = self.spec, _weights(self.spec, self.model)
        if weights is None or self.model is None:
            return
        width = 1.0 if (spec.kv_cache_dtype or "").startswith(("fp8", "q8")) else 2.0
        tokens = self.limits.cache_tokens if cache_tokens is None else cache_tokens
        cache = (self.model.kv_bytes_per_token(width) or 0.0) * tokens
        need = (weights + cache) * spec.replicas
        what = f"weights {human_bytes(weights)}" + (
            f" + KV cache {human_bytes(cache)}" if cache else ""
        )
        free = self._free_bytes()
        if free is not None and need > free:
            times = f", {spec.replicas} ×" if spec.replicas > 1 else ""
            yield (
                f"{human_bytes(need)} are needed ({what}{times}), but {human_bytes(free)} of memory are free. Use a "
                "smaller quantization, more devices, a shorter context or fewer replicas."
            )

    def _free_bytes(self) -> float | None:
        """Free memory of all devices that the copies may use; with the host's where weights may be there too."""
        spec, spreads, host = self.spec, self.limits.spreads, self.rig.memory_free_bytes
        used = [a for a in self.rig.accelerators if a.index in self.devices]
        if not spreads:
            used = used[: spec.world * spec.replicas]
        if not used or any(a.integrated for a in used):
            return host
        free: float = 0
        for card in used:
            usable = _usable_bytes(card, spec.memory_fraction or 1.0)
            if usable is None:
                return None
            free += usable
        return free + (host or 0) if spreads else free

    def notes(self, concurrency: int | None) -> list[str]:
        """Return what is allowed and will be a finding."""
        notes = list(self._concurrency_notes(concurrency)) if concurrency else []
        if self.spec.replicas > 1 and not self.devices:
            notes.append(
                f"{self.spec.replicas} copies share the cores of this machine: no accelerator is used"
            )
        written, real = self.spec.version, self.program.version
        if written and real and not is_of(real, written):
            notes.append(
                f"{self.kind.title} is {real}; the setting is written for {written} and accepts it"
            )
        return [*notes, *self._length_notes()]

    def _length_notes(self) -> Iterator[str]:
        """Yield notes on a context that is longer than the model's, or than the memory may hold."""
        trained = self.model.context if self.model else None
        asked = self.spec.max_model_len
        if trained and asked and asked > trained:
            yield f"{setting_name('--max-model-len', asked)} exceeds what the model was trained for ({trained})"
        tight = self._memory(self.limits.cache_tokens or self.limits.context or 0)
        if not self.problems() and (first := next(tight, None)):
            yield f"One request of full length may not fit: {first}"

    def _concurrency_notes(self, concurrency: int) -> Iterator[str]:
        """Yield notes on requests that would wait or be refused."""
        at_once = (self.limits.slots or 0) * self.spec.replicas
        if at_once and concurrency > at_once:
            yield f"{concurrency} requests in flight, but only {at_once} run at once: the queue is part of the latency"
        refuses = (self.limits.refuses or 0) * self.spec.replicas
        if refuses and concurrency > refuses:
            yield (
                f"{concurrency} requests in flight, but {self.kind.title} refuses more than {refuses} (HTTP 429): "
                f"raise its limit in {setting_name('--engine-args')}"
            )

    def shape(self) -> ModelShape | None:
        """The model's shape; by its name on the Hub where the engine has fetched it."""
        return self.model or (
            model_files.of_hub(self.spec.model) if self.spec.model else None
        )

    def peaks(self) -> Peaks | None:
        """Peaks of what the copies run on. None: unknown, or there is no model to compare with them."""
        if self.spec.model is None:
            return None
        if self.kind.spreads_by_args(self.spec.args):  # over more than the setting says
            return None
        python = self.program.python if not self.spec.container else None
        if self.program.embedded:  # on the CPU, whatever else is there
            return peaks.of_processor(self.rig).peaks
        spreads, env = self.limits.spreads, self.launches[0].env
        return peaks.of_engine(
            self.rig, self.devices, self.spec, spreads=spreads, python=python, env=env
        ).peaks

    def _limits_line(self) -> str:
        context, at_once = "unknown", f"{self.limits.slots or 'the engine decides'}"
        if self.limits.context:
            context = f"{self.limits.context} tokens ({self.limits.context_from})"
        if self.limits.refuses:
            at_once += f", more than {self.limits.refuses} are refused"
        return f"# context of a request: {context}; requests at once: {at_once}"

    def lines(self) -> Iterator[str]:
        """Yield the lines of a dry run."""
        version = self.program.version or "of unknown version, its newest flags assumed"
        if version == self.kind.name:  # what is part of dyno has no version of its own
            version = ""
        if not self.program.asked:
            origin = "as the setting says; " if self.program.version else ""
            version += f" ({origin}a dry run doesn't ask the program)"
        yield f"# {f'{self.kind.title} {version}'.rstrip()}, {self.program.where}"
        yield self._limits_line()
        if self.assumed:
            yield f"# no accelerator is detected: {self.assumed} is assumed"
        if self.kind.unsaid_quantization(self.spec, self.program.version):
            yield f"# quantization {self.spec.quantization}: no flag sets it; the model files must have it"
        yield from (f"# {variable.describe()}" for variable in self.misspelt)
        if self.spec.container and self.tool:
            commands = image.prepare_commands(self.spec.container, self.tool, present=False)
            yield from (shown(Launch(command, {}, 0)) for command in commands)
            if line := self.not_passed():
                yield f"# {line}"
        yield from self.caches.lines()
        yield from map(self.command, self.spec.before)
        yield from (self.clean(shown(launch)) for launch in self.launches)
        yield from (
            f"{self.command(command)}    # after the engine" for command in self.spec.after
        )


def _vendor(rig: Rig) -> str | None:
    return rig.accelerators[0].vendor if rig.accelerators else None


def _assumed_vendor(spec: EngineSpec) -> str | None:
    """Return the vendor in a dry run for another machine: NVIDIA, unless the container says otherwise. None: the
    setting asks for no device."""
    if not spec.devices:
        return None
    return container.vendor(spec.container) if spec.container else "nvidia"


def _refuse_lacking(models: Sequence[str]) -> None:
    if models:
        raise UsageError(
            f"The model {models[0]} isn't on this machine. `dyno run` provides it without --no-prepare, or with "
            "--prepare-only."
        )


def _check_image(spec: EngineSpec) -> None:
    if spec.container and (why := image_problem(spec.container.image)):
        raise UsageError(why)


def _checked(kind: EngineKind, spec: EngineSpec, batch: Batch | None) -> EngineSpec:
    """Refuse settings that contradict themselves; return the others with whole paths."""
    if not kind.starts:
        raise UsageError(
            f"An engine of the kind {spec.kind} is not started by dyno: give its {setting_name('--base-url')}."
        )
    if min(spec.replicas, spec.tensor_parallel, spec.pipeline_parallel) < 1:
        raise UsageError(
            f"{setting_name('--replicas')}, {setting_name('--tensor-parallel-size')} and "
            f"{setting_name('--pipeline-parallel-size')} must be at least 1."
        )
    if spec.draft_tokens and not spec.draft_model:
        raise UsageError(
            f"{setting_name('--draft-tokens')} needs a {setting_name('--draft-model')}."
        )
    return _absolute(_offline(kind, spec, batch) if batch else spec)


def _usable_bytes(card: Accelerator, fraction: float) -> float | None:
    """Return the memory of a card that an engine may take, at most this share of it; None: unknown."""
    if card.memory_bytes is None:
        return None
    unused = card.memory_bytes - (card.memory_used_bytes or 0)
    return min(unused, card.memory_bytes * fraction)


def _check_devices(
    asked: list[int] | None, present: Sequence[int], embedded: bool, dry: bool
) -> None:
    if not asked:
        return
    if present and (absent := [d for d in asked if d not in present]):
        raise UsageError(
            f"{setting_name('--devices', asked)}: there is no accelerator {', '.join(map(str, absent))}; there are "
            f"{', '.join(map(str, present))} (`dyno doctor`)."
        )
    if not present and (embedded or not dry):
        why = (
            "the shipped engine runs on the CPU"
            if embedded
            else "none is detected (`dyno doctor`)"
        )
        raise UsageError(
            f"{setting_name('--devices', asked)}: {why}. Remove {setting_name('--devices')}."
        )
    if len(set(asked)) < len(asked):
        raise UsageError(f"{setting_name('--devices', asked)}: one is named twice.")


def _ports(spec: EngineSpec, first: int | None, dry: bool) -> list[int]:
    """Return a port for each copy: from the first one on, or free ones."""
    start = first
    if not start and dry:
        start = 8000
    ports = [start + i if start else free_port() for i in range(spec.replicas)]
    if max(ports, default=0) > 65535:
        raise UsageError(
            f"port = {first}: the last of {spec.replicas} copies would have {ports[-1]}, which is not a port."
        )
    return ports


def _offline(kind: EngineKind, spec: EngineSpec, batch: Batch) -> EngineSpec:
    if not kind.offline:
        *others, last = (each.name for each in KINDS.values() if each.offline)
        raise UsageError(
            f"{kind.title} can't be measured offline: {', '.join(others)} and {last} can."
        )
    if spec.replicas > 1 and batch.kind == "micro":
        raise UsageError(
            "A micro test measures a single request, which one copy of the engine does: remove replicas."
        )
    if spec.container is None:
        return spec
    if not kind.module:
        raise UsageError(
            f"{kind.title} in a container can't be measured offline: its images have no Python."
        )
    box = msgspec.structs.replace(
        spec.container,
        mounts=[*spec.container.mounts, f"{WORKER}:{WORKER}:ro"],
        options=["--interactive", *spec.container.options],
    )
    return msgspec.structs.replace(spec, container=box)


def _absolute(spec: EngineSpec) -> EngineSpec:
    """Make the path of a local model absolute: the engine may run in another folder, and doesn't know ~."""
    if spec.model is None or not model_files.looks_local(spec.model):
        return spec
    path = Path(spec.model).expanduser()
    return (
        msgspec.structs.replace(spec, model=str(path.absolute())) if path.exists() else spec
    )


def _absent(spec: EngineSpec) -> str | None:
    for what, named in (("model", spec.model), ("draft model", spec.draft_model)):
        if (
            named is not None
            and model_files.looks_local(named)
            and not Path(named).expanduser().exists()
        ):
            return f"The {what} {named} does not exist. Check the path."
    return None


def _model(spec: EngineSpec) -> ModelShape | None:
    if spec.model is None or not model_files.looks_local(spec.model):
        return None
    path = Path(spec.model).expanduser()
    shape = model_files.read(path)
    if shape is None and (path.is_dir() or path.suffix == ".gguf"):
        what = (
            "has no config.json and no *.gguf"
            if path.is_dir()
            else "can't be read as a GGUF file (cut off?)"
        )
        raise UsageError(f"The model {spec.model} {what}.")
    return shape


def online_share(spec: EngineSpec, quantized: str | None) -> float:
    """Return the size of the loaded weights as a share of the files. `quantized`: the files'."""
    return _ONLINE.get(plain(spec.quantization or ""), 1.0) if quantized is None else 1.0


def _weights(spec: EngineSpec, model: ModelShape | None) -> float | None:
    """Bytes of the weights, loaded."""
    if model is None:
        return None
    share = online_share(spec, model.quantization)
    if model.weights_bytes:
        return model.weights_bytes * share
    if model.parameters is None:
        return None
    return (
        model.parameters
        * _BYTES.get(model.quantization or model.dtype or "bf16", 2.0)
        * share
    )
