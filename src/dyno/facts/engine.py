"""An engine as asked for: one vocabulary for all engines, the ways to run one, and its version."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from dyno.errors import UsageError
from dyno.facts.recipe import ModelOrigin, ModelRecipe
from dyno.option import Option, setting_name

READY_STALL_S = 600.0  # a start without progress for so long hangs


class ContainerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run the engine in a container. Its network is the host's."""

    image: Annotated[
        str,
        Option(
            "--engine-image",
            "IMAGE",
            "run the engine in this container image (name:tag or name@sha256:…)",
        ),
    ]
    tool: Annotated[
        Literal["docker", "podman"] | None,
        Option(help="container tool (default: the one that is installed)"),
    ] = None
    accelerator: Annotated[
        Literal["nvidia", "amd", "none"] | None,
        Option(help="devices to pass in (default: those of the machine)"),
    ] = None
    pull: Annotated[
        Literal["missing", "always", "never"],
        Option(help="when to pull the image", identity=False),
    ] = "missing"
    build: Annotated[
        str | None,
        Option(
            help="folder or Git URL (URL#BRANCH:FOLDER) with a Dockerfile; the image is built from it first"
        ),
    ] = None
    build_file: Annotated[str | None, Option(help="name of the Dockerfile in it")] = None
    build_args: Annotated[dict[str, str], Option(help="build arguments")] = {}
    mounts: Annotated[
        list[str],
        Option(
            "--engine-mount",
            "HOST:INSIDE",
            "folders to mount in the container ([:ro]: read-only)",
            nargs="+",
        ),
    ] = []
    privileges: Annotated[
        Literal["amd", "nvidia", "full"] | None,
        Option(
            "--engine-privileges",
            None,
            "rights that the vendor's page asks for; full: --privileged "
            "(default: those of the devices)",
        ),
    ] = None
    options: Annotated[
        list[str],
        Option(
            "--engine-container-args", "'…'", "more arguments for docker run or podman run"
        ),
    ] = []


class EngineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting of an engine. None always means: the engine's default."""

    kind: Annotated[
        str,
        Option(
            help="one of `dyno engines list`; openai: a running server", setting="engine"
        ),
    ]
    model: Annotated[
        str | None, Option(help="name, folder or GGUF file", added="--model")
    ] = None
    served_name: Annotated[
        str | None,
        Option(
            help="model name in the API (default: the engine's)",
            identity=False,
            added="--served-model-name",
        ),
    ] = None
    load_format: Annotated[
        str | None,
        Option(
            "--load-format",
            "F",
            "how weights are loaded; dummy: random weights (default: the engine's)",
        ),
    ] = None
    dtype: Annotated[  # where nothing is quantized
        str | None,
        Option(
            "--dtype", "T", "data type of weights: fp16, bf16, fp32 (default: the model's)"
        ),
    ] = None
    quantization: Annotated[
        str | None,
        Option(
            "--quantization -q",
            "Q",
            "fp16, bf16, fp8, int8 (W8A8), gptq, awq, or a GGUF type such as Q4_K_M (default: the model's)",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        Option(
            "--kv-cache-dtype",
            "T",
            "data type of the KV cache: fp8, fp16, bf16, q8_0, … (default: the engine's)",
        ),
    ] = None
    tensor_parallel: Annotated[
        int,
        Option(
            "--tensor-parallel-size -tp", "N", "accelerators that share each layer", least=1
        ),
    ] = 1
    pipeline_parallel: Annotated[
        int,
        Option(
            "--pipeline-parallel-size -pp",
            "N",
            "stages of layers, each on its own accelerators",
            least=1,
        ),
    ] = 1
    devices: Annotated[  # None: all, shared out to the replicas
        list[int] | None,
        Option(
            "--devices",
            "N",
            "accelerators by number, as 0 1 or 0,1; without a number: CPU only (default: all)",
            nargs="*",
        ),
    ] = None
    replicas: Annotated[
        int,
        Option(
            "--replicas",
            "N",
            "copies of the engine, each on its own accelerators; they share the requests "
            "(latency: a batch each)",
            least=1,
        ),
    ] = 1
    max_model_len: Annotated[
        int | None,
        Option(
            "--max-model-len",
            "N",
            "longest context of a request, in tokens (default: the engine's)",
            least=1,
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        Option(
            "--max-num-seqs",
            "N",
            "requests processed at once; llama.cpp: slots (default: the engine's)",
            least=1,
        ),
    ] = None
    max_batched_tokens: Annotated[
        int | None,
        Option(
            "--max-num-batched-tokens",
            "N",
            "tokens per step (default: the engine's)",
            least=1,
        ),
    ] = None
    memory_fraction: Annotated[
        float | None,
        Option(
            "--gpu-memory-utilization",
            "F",
            "share of accelerator memory to use (default: the engine's)",
            above=0,
            most=1,
            words="must be a share, above 0 and at most 1",
        ),
    ] = None
    prefix_caching: Annotated[
        bool | None,
        Option(
            "--enable-prefix-caching",
            help="reuse the KV cache of common prefixes (default: the engine's)",
        ),
    ] = None
    chunked_prefill: Annotated[
        bool | None,
        Option(
            "--enable-chunked-prefill",
            help="process long prompts in chunks (default: the engine's)",
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        Option(
            "--draft-model --speculative-model",
            "M",
            "draft model for speculative decoding (default: none)",
            setting="speculative",
        ),
    ] = None
    draft_tokens: Annotated[
        int | None,
        Option(
            "--draft-tokens --num-speculative-tokens",
            "N",
            "tokens drafted per step (default: the engine's)",
            least=1,
            setting="speculative",
        ),
    ] = None
    args: Annotated[  # after everything else
        list[str],
        Option(
            "--engine-args",
            "'…'",
            "more arguments for the engine, as --engine-args='--x 1'; repeatable",
        ),
    ] = []
    env: Annotated[
        dict[str, str],
        Option(
            "--engine-env", "NAME=VALUE", "environment variables for the engine", nargs="+"
        ),
    ] = {}
    before: Annotated[
        list[str],
        Option(
            "--engine-before",
            "CMD",
            "shell command to run before the engine starts; repeatable",
        ),
    ] = []  # by a shell
    after: Annotated[
        list[str],
        Option(
            "--engine-after",
            "CMD",
            "shell command to run after the engine has stopped; repeatable",
        ),
    ] = []  # whatever happened
    prepare: Annotated[
        list[str],
        Option(
            "--engine-prepare",
            "NAME",
            "tune its kernels in a start of their own and keep the result: tunableop, "
            "hipblaslt (AMD)",
            nargs="+",
        ),
    ] = []
    compile_cache: Annotated[
        Literal["on", "off"] | None,
        Option(
            "--engine-compile-cache",
            help="on: one compile cache for all starts of the setting; off: an empty one for each start "
            "(default: the engine's)",
        ),
    ] = None
    # Without an engine at hand, the one whose flags are meant. The identity is the version that ran.
    version: Annotated[
        str | None,
        Option("--engine-version", "V", "required version (default: any)", identity=False),
    ] = None
    accepts: Annotated[
        str | None,
        Option(
            "--engine-accepts",
            "RANGE",
            "versions that will do instead, as '>=0.6.2,<0.7' (default: none)",
            identity=False,
        ),
    ] = None
    python: Annotated[
        str | None,
        Option(
            "--engine-python",
            "PATH",
            "Python in which the engine is installed (default: found by dyno)",
        ),
    ] = None
    binary: Annotated[
        str | None,
        Option("--engine-binary", "PATH", "the engine's program (default: found by dyno)"),
    ] = None
    environment: Annotated[
        str | None,
        Option(
            "--engine-environment",
            "NAME",
            "environment, as `dyno engines list` names it (default: the newest)",
        ),
    ] = None
    container: Annotated[
        ContainerSpec | None, Option(help="run it in a container: image, mounts, …")
    ] = None
    host: Annotated[
        Literal["127.0.0.1", "0.0.0.0"],
        Option(
            help="address to listen on; 0.0.0.0: other machines can reach it, too",
            identity=False,
        ),
    ] = "127.0.0.1"
    # Of the first replica, the next ones for the others; None: free ones.
    port: Annotated[
        int | None,
        Option(
            "",
            None,
            "port of the first replica (default: a free one)",
            least=1,
            most=65535,
            words="must be a port, 1 to 65535",
            identity=False,
        ),
    ] = None
    ready_timeout_s: Annotated[
        float | None,
        Option(
            "--engine-ready-timeout-sec",
            "S",
            "longest time to start, also with progress (default: no limit)",
            above=0,
            most=1e8,
            identity=False,
        ),
    ] = None
    ready_stall_s: Annotated[
        float,
        Option(
            "--engine-ready-stall-sec",
            "S",
            "give up a start after S seconds without progress: log, data, accelerator memory, CPU",
            above=0,
            most=1e8,
            identity=False,
        ),
    ] = READY_STALL_S
    weights: Annotated[
        dict[str, ModelRecipe],
        Option(help="recipes of the study's [models.NAME] that the trial uses, by name"),
    ] = {}

    @property
    def world(self) -> int:
        """Return the number of accelerators of one replica."""
        return self.tensor_parallel * self.pipeline_parallel


class Launch(msgspec.Struct, frozen=True):
    """The command of one replica, as `--dry-run` prints it and engine.json keeps it."""

    argv: list[str]
    env: dict[str, str]  # what is set beyond dyno's own environment
    port: int
    devices: list[int] | None = None


class Limits(msgspec.Struct, frozen=True):
    """Limits of a setting for one replica, as far as known before the engine runs."""

    context: int | None = None  # of one request
    slots: int | None = None  # requests worked on at once
    context_from: str = ""  # in words, for the message
    cache_tokens: int = 0  # of KV cache that it takes at its start, whatever is free
    spreads: bool = False  # over all devices that it sees, and the host's memory
    # requests at once, above which it refuses more. None: it lets them wait
    refuses: int | None = None


class Preparation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine has been given that was kept from an earlier start, or made before this one."""

    name: str
    reused: bool = False
    took_s: float | None = None  # to make it, when it was made
    files: list[str] = []
    image: str | None = None  # that it was made in, with its digest
    created: str = ""  # UTC, ISO 8601


class Misspelt(msgspec.Struct, frozen=True):
    """An environment variable that the engine probably doesn't read."""

    name: str
    meant: str | None  # the variable whose name is nearly the same
    why: Literal["invalid", "unlike", "unlisted"]

    def describe(self) -> str:
        reason = {
            "invalid": "is not a valid name of an environment variable (letters, digits and _)",
            "unlike": "is not a known environment variable",
            "unlisted": "is not among the environment variables of the installed version (vllm/envs.py)",
        }[self.why]
        return f"{self.name} {reason}." + (
            f" Did you mean {self.meant}?" if self.meant else ""
        )


# What a line of an engine's log is about. offloaded: a part of the layers only. chosen: by the engine, as it does by
# default.
About = Literal["unknown_variable", "deprecated", "ignored", "changed", "chosen", "eager", "fallback", "untuned",
                "kv_scales", "preempted", "offloaded", "swap_space", "unsupported"]  # fmt: skip


class Remark(msgspec.Struct, frozen=True):
    """A line of an engine's log from which a finding is made."""

    about: About
    line: str  # without its time and secrets
    count: int = 1  # times that it was logged


class EngineFacts(msgspec.Struct, frozen=True):
    """How an engine that dyno started came up."""

    kind: str
    version: str | None
    launches: list[Launch]  # secrets taken out
    # from the start to a completed generation, of the slowest replica; None: never
    ready_s: float | None = None
    # its parts by the engine's own log: weights, compile, graphs, …
    startup_s: dict[str, float] = {}
    software: dict[str, str] = {}  # of the engine's own interpreter
    image: str | None = None  # the container's, with its digest
    # exported variables that the container did not get, and why
    withheld: dict[str, str] = {}
    program: str = ""  # where it was found, in words
    embedded: bool = False  # it comes with dyno, and uses the processor alone
    preparations: list[Preparation] = []  # outside ready_s
    stop_s: float | None = None  # None: not stopped yet
    memory_held_bytes: int = 0  # of the accelerators, that was not given back
    died: str | None = None  # under load: its last words
    memory_before_bytes: dict[int, int] = {}  # in use on each accelerator before the start
    # … and right after it was ready and verified, before any load
    memory_loaded_bytes: dict[int, int] = {}
    # of the processor, that a build does without, where that is known
    unused_instructions: list[str] = []
    nice: int = 0  # of an engine on the CPU, so that the client gets its turns
    cores: list[int] = []  # that it may use, where one was kept for the client; empty: all
    misspelt: list[Misspelt] = []  # variables of the setting, or that it inherits
    # its processes in the machine's memory then; None in a container
    resident_bytes: int | None = None
    # by their names in the setting, those that dyno fetched or made
    models: dict[str, ModelOrigin] = {}

    @property
    def start(self) -> str:
        """Identify a start of an engine by its ports, and how long it took."""
        return " ".join(
            [*(str(launch.port) for launch in self.launches), f"{self.ready_s} s"]
        )


def image_problem(image: str) -> str | None:
    """Say why this can't be an image. A leading '-' would be an option of podman or docker."""
    if re.fullmatch(r"[A-Za-z0-9][\w.:/@+-]{0,500}", image):
        return None
    return f"{image!r} is not the name of a container image. Give name:tag or name@sha256:…"


def valued(args: Sequence[str], *names: str) -> str | None:
    """Return the value of the last of these flags in a command line: `-c 4096`, `--ctx-size=4096`."""
    value = None
    for i, arg in enumerate(args):
        head, equals, tail = arg.partition("=")
        if head.replace("_", "-") in names:
            following = args[i + 1] if i + 1 < len(args) else None
            value = tail if equals else following
    return value


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers: 0.6.3.post2.dev308 → (0, 6, 3), b6123 → (6123,). Unreadable ones sort first."""
    match = re.match(r"\D*(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()


def before(version: str, other: str) -> bool:
    """Return whether a version is older than another; 0.8 is 0.8.0."""
    a, b = numbers(version), numbers(other)
    width = max(len(a), len(b))
    return a + (0,) * (width - len(a)) < b + (0,) * (width - len(b))


def is_of(version: str, asked: str) -> bool:
    """Return whether a version is the requested one: 0.6.3.post1 is 0.6.3, and 0.6.3 is 0.6; 0.10.6 is not 0.6."""
    a = numbers(asked)
    return numbers(version)[: len(a)] == a


_BOUND = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*([vb]?\d\S*)\s*")


def accepted(version: str, accepts: str) -> bool:
    """Return whether a version is within a range such as >=0.6.2,<0.7. llama.cpp's versions are whole numbers."""
    bounds = [_BOUND.fullmatch(part) for part in accepts.split(",")]
    if not all(bounds):
        raise UsageError(
            f"{setting_name('--engine-accepts', accepts)} is not a range of versions. Write it as '>=0.6.2,<0.7'."
        )
    return all(_within(version, *bound.groups()) for bound in bounds if bound)


def _within(version: str, sign: str, bound: str) -> bool:
    if sign in ("==", "!="):
        return is_of(version, bound) == (sign == "==")
    if sign in (">=", "<"):
        return before(version, bound) == (sign == "<")
    return before(bound, version) == (sign == ">")


def will_do(version: str, spec: EngineSpec) -> bool:
    """Return whether it is the version that the setting is written for, or one that it accepts."""
    if spec.version and is_of(version, spec.version):
        return True
    return accepted(version, spec.accepts) if spec.accepts else not spec.version
