"""Files that an engine keeps between its starts: tuned kernels, and its compile caches.

$DYNO_HOME/cache/KIND-KEY/         KEY: of version or image, model, precision, parallel sizes and accelerators
├── tunableop/                     a preparation: its files, the log of the start that made them, and
│   └── dyno.json                  its manifest, written last
├── compile/                       compile_cache = "on"
└── fresh-PID-N/                   compile_cache = "off": empty at the start, deleted after the stop
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dyno.engines.environment import home
from dyno.engines.kinds import kind_of
from dyno.errors import UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec, Launch, Preparation
from dyno.option import setting_name

_MANIFEST = "dyno.json"


class KernelTuning(NamedTuple):
    """How a library is tuned. {folder} is where its files are."""

    preparing: Mapping[str, str]  # variables of the start that tunes …
    measured: Mapping[str, str]  # … and of those that use the result
    files: str  # the result, a pattern
    then: str = ""  # a shell command after the preparing start, where the engine runs


_RESULTS = "{folder}/tunableop_results.csv"  # PyTorch inserts the number of the device
KERNEL_TUNINGS = {
    # https://docs.pytorch.org/docs/stable/cuda.tunable.html. It is silent unless VERBOSE, and tunes for an hour.
    "tunableop": KernelTuning(
        {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "1", "PYTORCH_TUNABLEOP_VERBOSE": "1",
         "PYTORCH_TUNABLEOP_FILENAME": _RESULTS},
        {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "0", "PYTORCH_TUNABLEOP_FILENAME": _RESULTS},
        "tunableop_results*.csv",
    ),
    # https://rocm.docs.amd.com/projects/hipBLASLt, "offline tuning": the library logs a command for each shape, which
    # finds the fastest kernel for it.
    "hipblaslt": KernelTuning(
        {"HIPBLASLT_LOG_MASK": "32", "HIPBLASLT_LOG_FILE": "{folder}/shapes-%i.log"},
        {"HIPBLASLT_TUNING_OVERRIDE_FILE": "{folder}/tuning.txt"},
        "tuning.txt",
        'cd "{folder}" && grep -oh "hipblaslt-bench .*" shapes-*.log | sort -u > commands.sh && '
        'HIPBLASLT_TUNING_FILE="{folder}/tuning.txt" PATH="$PATH:/opt/rocm/bin" sh -e commands.sh',
    ),
}  # fmt: skip


class Caches:
    def __init__(
        self, spec: EngineSpec, version: str | None, accelerators: Sequence[str]
    ) -> None:
        self._spec, self._kind = spec, kind_of(spec.kind)
        # a manifest has the image's digest
        program = spec.container.image if spec.container else version
        key = [
            program,
            spec.model,
            spec.dtype,
            spec.quantization,
            spec.tensor_parallel,
            spec.pipeline_parallel,
        ]
        number = hashlib.sha256(msgspec.json.encode([*key, *accelerators])).hexdigest()[:10]
        self.folder = home() / "cache" / f"{spec.kind}-{number}"
        self._fresh: list[Path] = []
        self._check()

    def _check(self) -> None:
        spec = self._spec
        known = KERNEL_TUNINGS if self._kind.on_torch else {}
        unknown = [name for name in spec.prepare if name not in known]
        if unknown:
            names = ", ".join(known) or "none"
            raise UsageError(
                f"{setting_name('--engine-prepare')} {unknown}: {spec.kind} has no such preparation. Known: "
                f"{names}."
            )
        if spec.compile_cache and not self._kind.compile_caches:
            raise UsageError(
                f"{setting_name('--engine-compile-cache', spec.compile_cache)}: {spec.kind} has no compile cache."
            )
        own: set[str] = set()  # variables that dyno sets
        for name in spec.prepare:
            own.update(KERNEL_TUNINGS[name].measured)
        if spec.compile_cache:
            own.update(self._kind.compile_caches)
        twice = sorted(own & set(spec.env))
        if twice:
            raise UsageError(
                f"{', '.join(twice)} in {setting_name('--engine-env')} contradicts "
                f"{setting_name('--engine-prepare')} or {setting_name('--engine-compile-cache')}, which set it. "
                "Remove one of them."
            )

    def into(self, launch: Launch, index: int) -> Launch:
        """Return the launch of a copy with the variables that name its caches."""
        env: dict[str, str] = {}
        for name in self._spec.prepare:
            env |= self._filled(name, KERNEL_TUNINGS[name].measured)
        if self._spec.compile_cache:
            folder = self.folder / "compile"
            if self._spec.compile_cache == "off":
                folder = self.folder / f"fresh-{os.getpid()}-{index}"
                self._fresh.append(folder)
            env |= {
                name: str(folder / part) for name, part in self._kind.compile_caches.items()
            }
        return msgspec.structs.replace(launch, env={**env, **launch.env})

    def mounted(self, box: ContainerSpec) -> ContainerSpec:
        if not (self._spec.prepare or self._spec.compile_cache):
            return box
        mount = f"{self.folder}:{self.folder}"
        return (
            box
            if mount in box.mounts
            else msgspec.structs.replace(box, mounts=[*box.mounts, mount])
        )

    def _filled(self, name: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {key: text.format(folder=self.folder / name) for key, text in texts.items()}

    def preparing(self, name: str) -> EngineSpec:
        """Return the setting of the start that tunes: one copy, without what is kept."""
        spec, env = (
            self._spec,
            {**self._spec.env, **self._filled(name, KERNEL_TUNINGS[name].preparing)},
        )
        box = spec.container and self.mounted(spec.container)
        return msgspec.structs.replace(spec, prepare=[], replicas=1, env=env, container=box)

    def read(self, name: str, image: str | None) -> Preparation | None:
        """Return what is kept. None: nothing, or it was made in another image of that name."""
        try:
            stored = msgspec.json.decode(
                (self.folder / name / _MANIFEST).read_bytes(), type=Preparation
            )
        except (OSError, msgspec.MsgspecError):
            return None
        present = all((self.folder / name / file).exists() for file in stored.files)
        return stored if present and stored.image == image else None

    def empty(self, name: str) -> Path:
        """Return the empty folder of a preparation."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write(self, result: Preparation) -> None:
        part = self.folder / result.name / f"{_MANIFEST}.part"
        part.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
        part.replace(part.with_name(_MANIFEST))

    def create(self) -> list[Preparation]:
        """Create the folders of the compile caches, and return them as facts."""
        if not self._spec.compile_cache:
            return []
        for folder in self._fresh:
            shutil.rmtree(folder, ignore_errors=True)
        folders = self._fresh or [self.folder / "compile"]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        return [Preparation("compile cache", reused=any(any(f.iterdir()) for f in folders))]

    def discard(self) -> None:
        """Delete what one start alone may use."""
        for folder in self._fresh:
            shutil.rmtree(folder, ignore_errors=True)

    def lines(self) -> Iterator[str]:
        """Yield the lines of a dry run."""
        for name in self._spec.prepare:
            stored = (self.folder / name / _MANIFEST).exists()
            how = "reused" if stored else "made first, by one start with a short load"
            yield f"# preparation {name}: {how}; in {self.folder / name}"
        if self._spec.compile_cache == "on":
            yield f"# compile cache: shared by starts of this setting, in {self.folder / 'compile'}"
        elif self._spec.compile_cache:
            yield "# compile cache: empty at each start"
