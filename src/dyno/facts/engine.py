"""An engine as asked for: one vocabulary for all engines, and the ways to run one."""

from collections.abc import Sequence
from typing import Literal

import msgspec


class ContainerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run the engine in a container. Its network is the host's."""

    image: str  # name:tag, or name@sha256:…
    tool: Literal["docker", "podman"] | None = None  # None: whichever is there
    accelerator: Literal["nvidia", "amd", "none"] | None = None  # None: as the rig has
    pull: Literal["missing", "always", "never"] = "missing"
    build: str | None = None  # a folder with a Dockerfile: the image is built from it first
    build_file: str | None = None  # its name in that folder, where it isn't Dockerfile
    build_args: dict[str, str] = {}
    mounts: list[str] = []  # HOST:CONTAINER[:ro]
    options: list[str] = []  # passed to `run` untouched


class EngineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting of an engine. None always means: as the engine does by itself."""

    kind: str
    model: str | None = None  # a name, a folder or a GGUF file
    served_name: str | None = None
    load_format: str | None = None  # dummy: random weights of the model's shape
    dtype: str | None = None  # of weights and activations where nothing is quantized
    quantization: str | None = None  # fp16, bf16, fp8, int8 (W8A8), gptq, awq, or a GGUF type such as Q4_K_M
    kv_cache_dtype: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    devices: list[int] | None = None  # accelerators by number; None: all, shared out to the replicas
    replicas: int = 1  # copies on disjoint devices, requests spread by least in flight
    max_model_len: int | None = None  # context of one request: prompt and output
    max_num_seqs: int | None = None  # requests worked on at once; llama.cpp calls them slots
    max_batched_tokens: int | None = None  # of one step
    memory_fraction: float | None = None  # of the accelerator's memory
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    draft_model: str | None = None  # speculative decoding
    draft_tokens: int | None = None
    args: list[str] = []  # passed on untouched, after everything else
    env: dict[str, str] = {}
    before: list[str] = []  # shell commands, run before the engine starts
    after: list[str] = []  # … and after it has stopped, whatever happened
    version: str | None = None  # that it must be; without an engine at hand, the one whose flags are meant
    python: str | None = None  # the interpreter that has the engine
    binary: str | None = None
    environment: str | None = None  # made by `dyno engines install`
    container: ContainerSpec | None = None
    port: int | None = None  # of the first replica, the next ones for the others; None: free ones
    ready_timeout_s: float = 1800.0

    @property
    def world(self) -> int:
        """Accelerators of one replica."""
        return self.tensor_parallel * self.pipeline_parallel


class Launch(msgspec.Struct, frozen=True):
    """What is really run, for one replica: as `--dry-run` prints it and as it is kept."""

    argv: list[str]
    env: dict[str, str]  # what is set beyond dyno's own environment
    port: int
    devices: list[int] | None = None


class Limits(msgspec.Struct, frozen=True):
    """What a setting allows, as far as it is known before the engine runs. Of one replica."""

    context: int | None = None  # of one request
    slots: int | None = None  # requests worked on at once
    context_from: str = ""  # in words, for the message
    cache_tokens: int = 0  # of KV cache that it takes at its start, whatever is free
    spreads: bool = False  # over all devices that it sees, and the host's memory


class EngineFacts(msgspec.Struct, frozen=True):
    """How an engine that dyno started came up."""

    kind: str
    version: str | None
    launches: list[Launch]  # secrets taken out
    ready_s: float | None = None  # from the start to a completed generation, of the slowest replica; None: never
    startup_s: dict[str, float] = {}  # its parts by the engine's own log: weights, compile, graphs, …
    software: dict[str, str] = {}  # of the engine's own interpreter
    image: str | None = None  # the container's, with its digest
    program: str = ""  # where it was found, in words
    stop_s: float | None = None  # None: not stopped yet
    memory_held_bytes: int = 0  # of the accelerators, that was not given back
    died: str | None = None  # under load: its last words
    memory_before_bytes: dict[int, int] = {}  # in use on each accelerator before the start
    memory_loaded_bytes: dict[int, int] = {}  # … and right after it was ready and verified, before any load
    unused_instructions: list[str] = []  # of the processor, that a build does without, where that is known
    nice: int = 0  # of an engine on the CPU, so that the client gets its turns
    cores: list[int] = []  # that it may use, where one was kept for the client; empty: all
    resident_bytes: int | None = None  # its processes in the machine's memory then; None in a container


def valued(args: Sequence[str], *names: str) -> str | None:
    """The value of the last of these flags in a command line: `-c 4096`, `--ctx-size=4096`."""
    found = None
    for i, arg in enumerate(args):
        head, equals, tail = arg.partition("=")
        if head.replace("_", "-") in names:
            found = tail if equals else args[i + 1] if i + 1 < len(args) else None
    return found
