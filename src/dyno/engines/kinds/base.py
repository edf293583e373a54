"""A kind of engine: its command line for the portable settings, and how its log and routes are read."""

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import msgspec

from dyno.engines import model as own_model
from dyno.engines.kinds.recipe import KnownImage, Recipe
from dyno.errors import UsageError
from dyno.facts.engine import About, EngineSpec, Limits, before, valued
from dyno.facts.model import ModelShape
from dyno.facts.offline import Batch
from dyno.facts.rig import Rig
from dyno.option import as_given, opposite, setting_name, switches, with_names

if TYPE_CHECKING:
    from dyno.engines.kinds.routes import Cards
    from dyno.http import Client

# The portable settings that become flags, in the order in which they are written.
PORTABLE = (
    "served_name", "load_format", "dtype", "quantization", "kv_cache_dtype", "tensor_parallel", "pipeline_parallel",
    "max_model_len", "max_num_seqs", "max_batched_tokens", "memory_fraction", "prefix_caching", "chunked_prefill",
    "draft_model", "draft_tokens",
)  # fmt: skip
# What dyno reads of an engine's /metrics, by its own names.
SERVER_METRICS = (
    "running_requests", "waiting_requests", "kv_used_share", "accepted_length_tokens", "preemptions",
    "prefix_queried_tokens", "prefix_hit_tokens", "output_tokens", "drafts", "drafted_tokens", "accepted_tokens",
    # sums over the requests that have ended, and their number
    "queue_s", "prefill_s", "decode_s", "timed_requests",
    # of its model, each for all requests at once, and the tokens in them: of prompts and of answers
    "steps", "step_tokens",
)  # fmt: skip
TORCH_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
# in torch's words
DTYPES = {"auto": "auto", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
# that start and stop a profiler, as vLLM has them; SGLang has them too
PROFILE_ROUTES = "/start_profile", "/stop_profile"
_DEFAULTS = {f.name: f.default for f in msgspec.structs.fields(EngineSpec)}
# old versions of vLLM say GB and mean GiB
_BYTES = {"MiB": 2**20, "GiB": 2**30, "GB": 2**30}
_WORDS = {
    "float16": "fp16", "half": "fp16", "f16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32",
    "f32": "fp32", "w8a8": "int8", "w8a8-int8": "int8", "int8-w8a8": "int8",
}  # fmt: skip

# of a program in a document
Role = Literal["server", "client", "offline", "micro", "quality", "other"]
Remarks = Mapping[About, str]  # what a line of a log is about → its pattern


class Program(msgspec.Struct, frozen=True):
    """The program of an engine: where it is, and which version."""

    argv: list[str]  # the first words of the command
    version: str | None
    binary: bool = True  # a command of its own, not a Python module
    python: str | None = None  # the engine's interpreter, where it has one
    where: str = ""  # its location, in words
    embedded: bool = False  # comes with dyno
    asked: bool = True  # for its version; a dry run takes the setting's
    absent: bool = False  # not on this machine: its command is only shown


class EngineFlag(NamedTuple):
    """How to pass one setting to the versions from `since` until before `until`."""

    give: Callable[[Any], Sequence[str]]  # raises KeyError for a value that it can't pass
    since: str = ""
    until: str = ""


# of each setting, the ways to pass it
EngineFlags = Mapping[str, EngineFlag | Sequence[EngineFlag]]


class KnownCommand(NamedTuple):
    """A program of an engine's project, as a command in a document names it."""

    words: tuple[str, ...]  # of which one must be there
    pattern: str  # the program's name
    role: Role
    tool: str = ""  # whose results it writes, where that isn't the engine's name
    short: Mapping[str, str] = {}  # its flags of a few letters → the setting


class Switch(NamedTuple):
    """How versions spell a boolean flag. All read --x; one that can't turn it off has it off by default."""

    negated: str | None = None  # the first version that reads --no-x
    valued: tuple[str, str] | None = None  # since, until: versions that read --x=False


def span(since: str, until: str) -> str:
    words = []
    if since:
        words.append(f"from {since}")
    if until:
        words.append(f"to before {until}")
    return " ".join(words)


def within(version: str | None, since: str, until: str) -> bool:
    if version is None:  # unknown: the newest is assumed
        return not until
    return not before(version, since) and (not until or before(version, until))


def flag(name: str, since: str = "", until: str = "") -> EngineFlag:
    return EngineFlag(lambda value: (name, str(value)), since, until)


def switch(
    on: Sequence[str], off: Sequence[str], since: str = "", until: str = ""
) -> EngineFlag:
    return EngineFlag(lambda value: on if value else off, since, until)


def one_of(
    name: str, words: Mapping[str, str | None], since: str = "", until: str = ""
) -> EngineFlag:
    """Allow only these values, in the engine's own words; None: no flag is needed."""

    def give(value: str) -> Sequence[str]:
        own = words[word(value)]
        return () if own is None else (name, own)

    return EngineFlag(give, since, until)


class LogFacts(msgspec.Struct, frozen=True):
    """Facts from an engine's log: fields of TargetFacts, and the parts of its start in seconds."""

    target: dict[str, Any] = {}
    startup_s: dict[str, float] = {}


def spelled(
    ways: EngineFlag | Sequence[EngineFlag], value: Any, version: str | None
) -> tuple[Sequence[str] | None, list[str]]:
    """Return a setting's words for this version; None where it has none, and the versions that have some."""
    others = []
    for way in [ways] if isinstance(ways, EngineFlag) else ways:
        try:
            words = way.give(value)
        except KeyError:
            continue
        if within(version, way.since, way.until):
            return words, []
        others.append(span(way.since, way.until))
    return None, others


class EngineKind:
    """One subclass for each engine, in a file of its own."""

    # ---- what it is ----
    name: ClassVar[str]
    title: ClassVar[str]  # as people write it
    about: ClassVar[str]  # what it is, in a line of a help text
    starts: ClassVar[bool] = True  # False: dyno attaches to one that runs
    # False: it sends at given times, and needs its turns on the CPU as the client does
    computes: ClassVar[bool] = True
    # routes that start and stop its profiler; None: it has none
    profiler: ClassVar[tuple[str, str] | None] = None
    backend: ClassVar[str] = "openai"  # which of load/protocols it speaks best
    # until it is ready, without its weights: most compile and capture graphs
    start_s: ClassVar[float] = 90.0
    # of a token's time, that each further stream adds; an estimate has both
    stream_share: ClassVar[float] = 0.01

    # ---- its program ----
    packages: ClassVar[tuple[str, ...]] = ()  # Python distributions that hold it
    # other distributions of its own whose versions are recorded
    companions: ClassVar[tuple[str, ...]] = ()
    programs: ClassVar[tuple[str, ...]] = ()  # its command, as found on PATH
    # follows the interpreter, where it is run as a Python module
    module: ClassVar[tuple[str, ...]] = ()
    in_container: ClassVar[tuple[str, ...]] = ()  # the command in its images
    # Packages by variant. {}: versions.toml alone has images of it. None: dyno doesn't install it.
    recipes: ClassVar[Mapping[str, Recipe] | None] = None
    images: ClassVar[tuple[KnownImage, ...]] = ()  # beside those in versions.toml
    # a pattern of it in an image's tag, where the tag doesn't begin with it
    version_in_tag: ClassVar[str] = ""

    # ---- its flags ----
    options: ClassVar[EngineFlags] = {}
    # Its own flags that came or went: flag → (since, until, replacement). Reported before the start, not by a crash.
    own_flags: ClassVar[Mapping[str, tuple[str, str, str]]] = {}
    knows_all_flags: ClassVar[bool] = False  # own_flags has every one: another is a mistake
    switches: ClassVar[Mapping[str, Switch]] = {}  # its own boolean flags
    # its own ones for max_model_len and max_num_seqs
    length_flags: ClassVar[tuple[str, ...]] = ()
    slots_flags: ClassVar[tuple[str, ...]] = ()
    # … and for tensor_parallel, pipeline_parallel and the like
    parallel_flags: ClassVar[tuple[str, ...]] = ()
    # … and for the types of keys and of values
    kv_type_flags: ClassVar[tuple[tuple[str, ...], ...]] = ()
    # a flag of offline benchmarks that it has, too → its spelling
    offline_flags: ClassVar[Mapping[str, str]] = {}
    # fields of OfflineSpec that its worker can do, and others can't; profile: a profiler, too
    offline_options: ClassVar[Collection[str]] = ()
    # settings of `bench micro` (facts/llama) that it has
    knobs: ClassVar[Collection[str]] = ()

    # ---- its models ----
    model_help: ClassVar[str] = "name or folder (required)"
    model_variable: ClassVar[str] = ""  # names the model where no flag does
    reads_gguf: ClassVar[bool] = False  # its models are GGUF files; else folders and names
    fetches: ClassVar[bool] = False  # it reads models of the Hub by their names

    # ---- its environment, and what it keeps between starts ----
    variables: ClassVar[tuple[str, ...]] = ()  # well-known ones: a near miss is reported
    # in its package: has the names of all of them, each with its prefix
    variables_file: ClassVar[str] = ""
    # of its own: such variables are recorded
    variable_prefixes: ClassVar[tuple[str, ...]] = ()
    # False: others may have such names, and inherited ones aren't judged
    variables_have_prefix: ClassVar[bool] = True
    # those without such a prefix that are recorded, too
    recorded_variables: ClassVar[tuple[str, ...]] = ()
    threads_variable: ClassVar[str] = ""  # sets its threads, where -t can't
    # beside HF_HOME, that say where its images keep models
    cache_variables: ClassVar[tuple[str, ...]] = ()
    # kept between starts: a variable → its folder
    compile_caches: ClassVar[Mapping[str, str]] = {}
    on_torch: ClassVar[bool] = False  # PyTorch's preparations (engines/caches) are for it

    # ---- its log ----
    # A field of TargetFacts → patterns, and a part of its start → a pattern of its seconds. The first pattern that
    # matches counts, at its last place; of several groups, the product.
    log: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    startup_log: ClassVar[Mapping[str, str]] = {}
    # Begins and ends the load of a model, where the end may be written after the first answer.
    loading_log: ClassVar[tuple[str, str] | None] = None
    reports_settings: ClassVar[bool] = False  # it repeats those of the command
    # lines that say: it doesn't run as the setting or its reader would think
    remarks: ClassVar[Remarks] = {}
    # in small letters, one in each of these lines; remarks.py has others
    remark_words: ClassVar[tuple[str, ...]] = ()
    # patterns of what comes before a line's words; remarks.py has others
    log_heads: ClassVar[tuple[str, ...]] = ()

    # ---- its server ----
    # A server is identified by asking the engines' readers, from the lowest number on, until one recognizes it.
    server_order: ClassVar[int] = 50
    # False: /v1/models has those that it could load
    lists_served_models: ClassVar[bool] = True
    reports_path: ClassVar[bool] = False  # of the files that it serves
    # one of SERVER_METRICS → its names, the newest version's first
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    # ---- how it works ----
    # False: a request can't make it generate beyond the end token
    can_ignore_eos: ClassVar[bool] = True
    # of versions whose results were published without the setting
    default_slots: ClassVar[int | None] = None
    # its KV cache has 16 bits a value, whatever the weights have
    kv_is_half: ClassVar[bool] = False
    has_llama_bench: ClassVar[bool] = False  # llama-bench can measure it

    # ---- in documents and results of others ----
    known_as: ClassVar[str] = ""  # its name there, where that differs
    aliases: ClassVar[tuple[str, ...]] = ()  # other spellings, in small letters
    in_documents: ClassVar[bool] = True  # False: its name there means something else
    commands: ClassVar[tuple[KnownCommand, ...]] = ()  # its project's programs
    version_title: ClassVar[str] = ""  # of a column with its version
    # patterns of its version in a log or a list of packages
    version_dumps: ClassVar[tuple[str, ...]] = ()
    # one in each such line that has neither 'ersion' nor '=='
    version_words: ClassVar[tuple[str, ...]] = ()

    @property
    def result_name(self) -> str:
        return self.known_as or self.name

    @property
    def is_built(self) -> bool:
        """Return whether dyno can build it from source."""
        return any(recipe.programs for recipe in (self.recipes or {}).values())

    @property
    def offline(self) -> bool:
        """Return whether it can be measured in its own process, without a server."""
        return type(self).worker is not EngineKind.worker

    def start_defaults(self, args: Sequence[str]) -> dict[str, int]:
        """Return settings for a start by hand with dyno's own model, where nothing in `args` says otherwise."""
        return {}

    def prepare(self, spec: EngineSpec) -> EngineSpec:
        """Fill in what a setting leaves to dyno: where the models are that come with it."""
        paths: dict[str, str | None] = {}
        for key in ("model", "draft_model"):
            name = getattr(spec, key)
            if name in own_model.FOLDERS:
                paths[key] = str(own_model.FOLDERS[name])
        if not paths:
            return spec
        if "model" in paths and "served_name" in self.options:
            paths["served_name"] = spec.served_name or spec.model
        return msgspec.structs.replace(spec, **paths)

    def one_slot(self, spec: EngineSpec) -> bool:
        """Return whether it works on one request at a time, because the setting says nothing of slots."""
        return False

    def own_program(self) -> Program | None:
        """Return the one that comes with dyno."""
        return None

    def tells_version(self, binary: str) -> str:
        """Return the program that has --version, for one of its programs."""
        return binary

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        raise NotImplementedError

    def worker(
        self, spec: EngineSpec, program: Program, port: int, batch: Batch
    ) -> list[str]:
        """Return what follows the folder `worker` on its command line: the engine, then its flags. Not all can."""
        raise NotImplementedError

    def spreads_by_args(self, args: Sequence[str]) -> bool:
        """Return whether a flag of its own spreads it over several devices, which the setting doesn't show."""
        return valued(args, *self.parallel_flags) is not None

    def worker_env(self, program: Program) -> dict[str, str]:
        return {}

    def env(self, spec: EngineSpec) -> dict[str, str]:
        """Return the variables that dyno sets beyond the setting's own."""
        return {}

    def unable(self, spec: EngineSpec, rig: Rig, version: str | None = None) -> str | None:
        """Say what this engine can't do on a machine; None: nothing that is known."""
        return None

    def default_name(self, spec: EngineSpec) -> str:
        """Return the name of the served model where none is given."""
        return spec.model or ""

    def backend_of(self, spec: EngineSpec) -> str:
        """Return the protocol of load/protocols that a server of this setting speaks."""
        return self.backend

    def implied(self, spec: EngineSpec, program: Program) -> dict[str, Any]:
        """Return fields of TargetFacts that follow from the setting, for a server that doesn't report them."""
        return {"prefix_caching": spec.prefix_caching}

    def limits(
        self, spec: EngineSpec, model: ModelShape | None, version: str | None = None
    ) -> Limits:
        """Return the limits by the setting, by the engine's own flags in args, or by the model."""
        length = spec.max_model_len or count(valued(spec.args, *self.length_flags))
        slots = spec.max_num_seqs or count(valued(spec.args, *self.slots_flags))
        if length:
            return Limits(length, slots, setting_name("--max-model-len", length))
        return Limits(
            None if model is None else model.context, slots, "the model's context length"
        )

    def worker_limits(
        self, spec: EngineSpec, model: ModelShape | None, version: str | None = None
    ) -> Limits:
        """Return the limits of its worker, where they differ from its server's."""
        return self.limits(spec, model, version)

    def read_log(self, text: str) -> LogFacts:
        target, parts = {}, {}
        for name, ways in self.log.items():
            match = _first_match(ways, text)
            if match:
                target[name] = fact(name, match)
        for name, way in self.startup_log.items():
            match = last_match(way, text)
            if match:
                parts[name] = float(next(filter(None, match.groups())))
        return LogFacts(target, parts)

    def unused_instructions(self, log: str, features: Collection[str]) -> list[str]:
        """Return those of the processor's features that it was built without, by its log. []: none, or unknown."""
        return []

    def read_server(self, client: "Client", cards: "Cards") -> dict[str, Any] | None:
        """Return what a running server reports, as fields of TargetFacts; also its `model_id`, for one that lists no
        models. None: it isn't this engine."""
        return None

    def reset_cache(self, client: "Client") -> bool:
        """Empty the prefix cache. False: this engine has no way to."""
        return False

    def model_of(self, spec: EngineSpec) -> str:
        if not spec.model:
            raise UsageError(
                f"{self.title} needs a model. Give its name or folder with {setting_name('--model')}."
            )
        return spec.model

    def flags(
        self, spec: EngineSpec, version: str | None, leave: Sequence[str] = ()
    ) -> list[str]:
        """Return the portable settings as this version's flags. One that it can't do is an error, never dropped."""
        out: list[str] = []
        for name in PORTABLE:
            value = getattr(spec, name)
            if value != _DEFAULTS[name] and name not in leave:
                out += self._option(name, value, version)
        return out

    def _option(self, name: str, value: Any, version: str | None) -> Sequence[str]:
        words, others = spelled(self.options.get(name, ()), value, version)
        if words is not None:
            return words
        known = f" (versions {' or '.join(others)} support it)" if others else ""
        raise UsageError(
            f"{self._named(version)} doesn't support {as_given(EngineSpec, name, value)}{known}. Remove it, change "
            f"it, or put the engine's own flag into {setting_name('--engine-args')}."
        )

    def _named(self, version: str | None) -> str:
        return f"{self.title} {version}" if version else self.title

    def unsaid_quantization(self, spec: EngineSpec, version: str | None) -> bool:
        """Return whether the setting names one that no flag makes: it must be in the files."""
        if not spec.quantization or word(spec.quantization) in ("fp16", "bf16", "fp32"):
            return False
        return not self._option("quantization", spec.quantization, version)

    def is_switch(self, flag: str) -> bool:
        """Return whether a flag, perhaps with underscores, is one of its boolean ones, or turns one off."""
        dashed = flag.replace("_", "-")
        return dashed in self.switches or opposite(dashed) in self.switches

    def own_args(
        self, args: Sequence[str], program: Program, batch: Batch | None = None
    ) -> list[str]:
        """Return its own arguments as this version reads them; raise for one that it is known not to have."""
        out: list[str] = []
        for word, on in switches(args, self.is_switch):
            out += (
                [word]
                if on is None
                else self._switched(word.replace("_", "-"), on, program.version)
            )
        self._check_args(out, program.version)
        return out

    def _switched(self, flag: str, on: bool, version: str | None) -> list[str]:
        if flag not in self.switches:
            flag, on = opposite(flag), not on
        if on:
            return [flag]
        way = self.switches[flag]
        if way.valued and within(version, *way.valued):
            return [f"{flag}=False"]
        if way.negated is not None and within(version, way.negated, ""):
            return [opposite(flag)]
        return []

    def _check_args(self, args: Sequence[str], version: str | None) -> None:
        lost = []
        for arg in args:
            if arg.startswith("--"):
                name = arg[2:].partition("=")[0].replace("_", "-")
                why = self._lacks(f"--{name}", version)
                if why:
                    lost.append(why)
        if lost:
            raise UsageError(f"{self._named(version)} {' It '.join(lost)}")

    def _lacks(self, name: str, version: str | None) -> str | None:
        """Say that this version is known to have no such flag; None: it may have one."""
        hits = [
            f for f in self.own_flags if f == name or (len(name) > 8 and f.startswith(name))
        ]
        if len(hits) == 1:
            known = hits[0]
            since, until, advice = self.own_flags[known]
            if within(version, since, until):
                return None
            return f"has no {known}; versions {span(since, until)} have it. {with_names(advice)}".rstrip()
        if hits or not self.knows_all_flags:
            return None
        near = difflib.get_close_matches(name, self.own_flags, 1)
        if near:
            return f"has no {name}. Did you mean {near[0]}?"
        return f"has no {name}."


def word(value: str) -> str:
    """Return one spelling for what is written in many ways: float16, half and FP16 are fp16."""
    low = (
        value.lower().replace("_", "-")
        if not re.match(r"(?i)i?q\d", value)
        else value.lower()
    )
    return _WORDS.get(low, low.replace("-", "_"))


def count(text: str | None) -> int | None:
    return int(text.replace(",", "")) if text and text.replace(",", "").isdigit() else None


def last_match(pattern: str, text: str) -> re.Match[str] | None:
    matches = list(re.finditer(pattern, text, re.M))
    return matches[-1] if matches else None


def _first_match(patterns: Sequence[str], text: str) -> re.Match[str] | None:
    return next(
        (match for pattern in patterns if (match := last_match(pattern, text))), None
    )


def fact(name: str, match: re.Match[str]) -> Any:
    """Return the value of a field of TargetFacts."""
    groups = [group.strip() for group in match.groups() if group]
    text = groups[0]
    if text in ("None", "none"):
        # the log says that nothing is quantized: that is known, then
        return "" if name == "quantization" else None
    if name in ("prefix_caching", "chunked_prefill"):
        return text.lower() in ("true", "1", "enabled")
    if len(groups) > 1:
        return int(math.prod(_BYTES.get(group) or float(group) for group in groups))
    if (number := count(text)) is not None:
        return number
    return word(text) if name == "dtype" else text


def with_dtype(spec: EngineSpec) -> EngineSpec:
    """Move fp16 as a quantization to dtype."""
    named = word(spec.quantization) if spec.quantization else None
    if named not in ("fp16", "bf16", "fp32"):
        return spec
    if spec.dtype and word(spec.dtype) != named:
        raise UsageError(
            f"{setting_name('--quantization', spec.quantization)} and {setting_name('--dtype', spec.dtype)} "
            "contradict each other. Give one of them."
        )
    return msgspec.structs.replace(spec, dtype=named, quantization=None)
