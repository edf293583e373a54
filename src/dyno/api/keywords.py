"""Keywords of functions: the keys of a study, with the defaults of the command that measures the same.

A key is declared where settings are (`study.cells`): its type, bounds and help. `names` says which a function takes;
`keys.pyi` has them for type checkers, made from here (tests/api/test_keys.py).
"""

import contextlib
import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from dyno import plugins
from dyno.api.progress import LOG
from dyno.conduct.study_plan import known
from dyno.engines.kinds import KINDS, kind_for, kind_of
from dyno.errors import UsageError
from dyno.facts.load import LoadSpec
from dyno.facts.rules import LEVELS
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.option import Option, declared, named_by
from dyno.study.cells import CELLS, OFFLINE, SERVING, keys_of_flags
from dyno.study.document import Mistakes
from dyno.study.document import Path as Place
from dyno.study.grid import GridCell, Section
from dyno.study.trials import Trials
from dyno.workload.datasets import DATASETS, DEFAULT, DEFAULT_OF_A_FILE, DEFAULT_OF_CLASSES
from dyno.workload.spec import OWN_FIELDS, WorkloadSpec

F = TypeVar("F", bound=Callable[..., Any])
Offline = Literal["throughput", "latency", "micro"]
# The functions that have such keywords.
SERVE = "serve"
FIND = "find"
THROUGHPUT = "throughput"
LATENCY = "latency"
MICRO = "micro"
# As `dyno bench` has them.
VLLM_PERCENTILES = [10.0, 25.0, 50.0, 75.0, 90.0, 99.0]
INPUT_LEN, OUTPUT_LEN, PROMPTS = 1024, 128, 1000


class OfflineSize(NamedTuple):
    """How much a throughput benchmark measures by default."""

    prompts: int
    input_len: int
    output_len: int


VLLM_SIZE = OfflineSize(PROMPTS, INPUT_LEN, OUTPUT_LEN)
# a first try on a processor: vLLM's defaults would take it an hour
SMALL_SIZE = OfflineSize(32, 128, 32)
_BASE_URL = "http://{}:{}"
ATTACHED = next(name for name, kind in KINDS.items() if not kind.starts)
_PARTS = ("engine", "workload", "load", "trial")
# Their place in a study is another, or the function itself says it.
_NOT_TAKEN = {"kind", "requests_per_stream"}
_ENGINE = Option(help="start an engine of this kind; `dyno engines` lists them")
_FOR_SERVERS = {
    "stream",
    "template",
    "token_ids",
    "random_batch_size",
    "base_url",
    "api_key_env",
    "backend",
    "endpoint",
    "insecure",
    "cacert",
    "cert",
    "cert_key",
    "connect_timeout_s",
    "read_timeout_s",
    "ready_check_timeout_s",
    "goodput_ms",
    "request_id_prefix",
    "correctness_check",
    "procs",
    "on",
    "ray_address",
    "cache",
    "num_sessions",
    "percentiles",
    "extra_body",
    "chat_template_kwargs",
    "metadata",
}
_OF_OFFLINE = {
    "throughput": {
        "iterations",
        "warmup_iterations",
        "prequeue",
        "lora_path",
        "sequences",
        "detokenize",
        "timeout_s",
    },
    "latency": {
        "batch_size",
        "iterations",
        "warmup_iterations",
        "beam_search",
        "sequences",
        "detokenize",
        "timeout_s",
    },
    "micro": {"iterations", "warmup_iterations", "depth", "by", "timeout_s"},
}
_LENGTHS = {"input_len", "output_len", "seed"}


def names(function: str) -> dict[str, Any]:
    """Return the keywords that a function takes, each with its type, bounds and help."""
    out: dict[str, Any] = {"engine": Annotated[str | None, _ENGINE]}
    for part in _PARTS:
        for name, hint in CELLS[part].items():
            if name not in _NOT_TAKEN and _takes(function, part, name):
                out.setdefault(name, hint)
    return out


def _takes(function: str, part: str, name: str) -> bool:
    """Return whether a function takes a key of this part of a study."""
    if function in (SERVE, FIND):
        chosen = {*LEVELS, "ramp_start_rps", "ramp_end_rps", "duration_s", "num_prompts"}
        foreign = set(OFFLINE) - set(SERVING)
        return name not in foreign and not (
            function == FIND and name in chosen | {"num_sessions"}
        )
    if name in _FOR_SERVERS or part == "load":
        return name in _OF_OFFLINE[function]
    if part == "workload":
        return (function == THROUGHPUT and _is_offline(name)) or name in _LENGTHS
    return True


def _is_offline(name: str) -> bool:
    """Return whether an offline data set has a setting of workloads."""
    owners = OWN_FIELDS.get(name)
    return owners is None or any(DATASETS[owner].offline for owner in owners)


def signed(function: str) -> Callable[[F], F]:
    """Give a function the signature with all of its keywords, for `help()` and notebooks."""

    def with_signature(f: F) -> F:
        own = inspect.signature(f)
        fixed = [
            p
            for p in own.parameters.values()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        taken = {p.name for p in fixed}
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=...,
                annotation=declared(hint)[0],
            )
            for name, hint in names(function).items()
            if name not in taken
        ]
        f.__signature__ = own.replace(parameters=[*fixed, *more])  # type: ignore[attr-defined]
        return f

    return with_signature


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """While it lasts, messages name settings as keywords."""
    flat = {flag: key.rpartition(".")[2] for flag, key in keys_of_flags().items()} | {
        "--engine": "engine"
    }
    try:
        with named_by(flat):
            yield
    finally:
        for problem in plugins.take_problems():
            LOG.warning("%s", problem)


# ---- from keywords to a trial ----


class KeywordMistakes(Mistakes):
    """Mistakes in keywords, reported together before anything starts."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self._function = function

    def place(self, path: Place) -> tuple[int, str]:
        return 0, str(path[-1]) if path else ""

    def report(self, sentences: list[str]) -> str:
        if len(sentences) == 1:
            return f"dyno.{self._function}: {sentences[0]} Nothing was started."
        head = f"dyno.{self._function}: {len(sentences)} mistakes. Nothing was started."
        return "\n".join([head, *sentences])


def served(
    settings: Mapping[str, Any], label: str | None, function: str = SERVE
) -> tuple[TrialSpec, str | None]:
    """Return the trial of a load on a server, and the variable that holds the server's key."""
    cells = _sections(function, settings)
    named = settings.get("engine")
    started = named is not None and kind_of(named).starts
    _complete_server(cells["engine"], named or ATTACHED, started)
    _complete_prompts(cells["workload"], cells["load"])
    defaults: dict[str, Any] = {"sampling": {}, "percentiles": [99.0]}
    _default(cells["trial"], {**defaults, "cache": "empty" if started else "keep"})
    engine = dict(cells["engine"])
    trial = _trial_of(function, cells)
    load = msgspec.structs.replace(trial.load, seed=trial.workload.seed)
    trial = msgspec.structs.replace(trial, load=load, label=label)
    if named is None:
        _check_attached(function, engine)
        target = msgspec.structs.replace(
            trial.target, served_model_name=engine.get("served_name")
        )
        trial = msgspec.structs.replace(trial, engine=None, target=target)
    return trial, engine.get("api_key_env")


def _complete_server(engine: dict[str, Any], kind: str, started: bool) -> None:
    """Fill in the kind, and where a running server is."""
    engine["kind"] = kind
    if started or "base_url" in engine:
        return
    host, port = engine.pop("host", "127.0.0.1"), engine.pop("port", 8000)
    engine["base_url"] = _BASE_URL.format(f"[{host}]" if ":" in host else host, port)


def _complete_prompts(work: dict[str, Any], load: dict[str, Any]) -> None:
    """Fill in lengths by the data set's defaults, and the load that is meant where none is given."""
    dataset = DATASETS.get(_named_dataset(work))
    if dataset is not None:
        owner = DATASETS[dataset.lengths_of or dataset.name]
        lengths = {n.field: n.default for n in owner.lengths if n.default is not None}
        if dataset.traits.exact:
            lengths |= {"input_len": INPUT_LEN, "output_len": OUTPUT_LEN}
        _default(work, {**dataset.flag_defaults, **lengths})
    _default(work, {"num_warmups": 0})
    paced = (dataset is not None and dataset.traits.paced) or _has_rates(work)
    if not paced and not load.keys() & {*LEVELS, "arrivals"}:
        load["request_rate_rps"] = math.inf


def offline(kind: Offline, settings: Mapping[str, Any], label: str | None) -> TrialSpec:
    """Return the trial of an offline benchmark."""
    cells = _sections(kind, settings)
    engine, work, load, trial = (cells[part] for part in _PARTS)
    model = engine.get("model")
    engine["kind"] = settings.get("engine") or kind_for(model)
    load["kind"] = kind
    if kind == "throughput":
        size = SMALL_SIZE if model is None else VLLM_SIZE
        work.setdefault("dataset", DEFAULT_OF_A_FILE if work.get("path") else DEFAULT)
        _default(work, {"num_prompts": size.prompts})
        if work["dataset"] == DEFAULT:
            _default(work, {"input_len": size.input_len, "output_len": size.output_len})
        _default(load, {"iterations": 1})
    elif kind == "latency":
        _default(work, {"input_len": 32, "output_len": 128})
        _default(load, {"batch_size": 8, "iterations": 30, "warmup_iterations": 10})
    else:
        asked = "input_len" in work or "output_len" in work
        _default(work, {"input_len": 0 if asked else 512, "output_len": 0})
        work["num_prompts"] = 1
        _default(load, {"iterations": 5, "warmup_iterations": 1})
    _default(trial, {"sampling": {}, "ignore_eos": True, "cache": "keep"})
    trial["percentiles"] = VLLM_PERCENTILES if kind != "micro" else [99.0]
    planned = _trial_of(kind, cells)
    load_seed = LoadSpec(seed=planned.workload.seed)
    aim = msgspec.structs.replace(planned.target, endpoint="")
    return msgspec.structs.replace(planned, load=load_seed, target=aim, label=label)


def aimed(trial: TrialSpec, target: TargetSpec, headers: Mapping[str, str]) -> TrialSpec:
    """Return the trial with the target as it is reached from here."""
    target = msgspec.structs.replace(target, header_names=sorted(headers))
    return msgspec.structs.replace(trial, target=target)


def _sections(function: str, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Sort settings into the tables of a study. A word that is no key is a mistake."""
    taken = names(function)
    cells: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    mistakes = KeywordMistakes(function)
    for name, value in settings.items():
        if name not in taken:
            mistakes.unknown_key((name,), list(taken))
        elif name != "engine" and value is not None:
            cells[_part_of(name, function)][name] = _plain(value)
    named = settings.get("engine")
    if named is not None and named not in KINDS:
        mistakes.unknown(("engine",), named, list(KINDS), "engine")
    mistakes.check()
    return cells


def _part_of(name: str, function: str) -> str:
    parts = [part for part in _PARTS if name in CELLS[part]]
    offline_load = function not in (SERVE, FIND) and name in OFFLINE
    return "load" if offline_load else parts[0]


def _plain(value: Any) -> Any:
    """Return a value as a file would have it: paths are text, tuples are lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return value


def _named_dataset(work: Mapping[str, Any]) -> str:
    name = work.get("dataset", DEFAULT_OF_CLASSES if work.get("classes") else DEFAULT)
    return name if isinstance(name, str) else ""


def _has_rates(work: Mapping[str, Any]) -> bool:
    classes = work.get("classes") or {}
    return any(
        isinstance(c, Mapping) and c.get("request_rate_rps") for c in classes.values()
    )


def _default(cells: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        cells.setdefault(name, value)


def _trial_of(function: str, cells: dict[str, dict[str, Any]]) -> TrialSpec:
    """Make the trial as a study would of one cell of its grid."""
    mistakes = KeywordMistakes(function)
    sections = {
        part: Section(part, own, {name: (name,) for name in own}, [], (part,))
        for part, own in cells.items()
    }
    names_known = known()
    trials = Trials(
        mistakes,
        names_known._replace(prompts_needed=_needed(names_known.prompts_needed)),
        Path(),
    )
    trial = trials.trial(sections, GridCell(cells, {}))
    mistakes.check()
    assert trial is not None
    return trial


def _needed(
    by_load: Callable[[LoadSpec, WorkloadSpec], int | None],
) -> Callable[[LoadSpec, WorkloadSpec], int | None]:
    """Return how many prompts a load needs, and the command's number where nothing says it."""

    def needed(load: LoadSpec, work: WorkloadSpec) -> int | None:
        declared_count = by_load(load, work)
        says = work.num_sessions or load.duration_s
        if declared_count is not None or says or DATASETS[work.dataset].traits.trace:
            return declared_count
        return PROMPTS

    return needed


def _check_attached(function: str, engine: Mapping[str, Any]) -> None:
    """Refuse settings of an engine where dyno neither starts one nor checks one."""
    transport = {
        "kind",
        "model",
        "served_name",
        "base_url",
        "api_key_env",
        "backend",
        "endpoint",
    }
    own = [
        name
        for name in engine
        if name not in transport and name not in TargetSpec.__struct_fields__
    ]
    if own:
        raise UsageError(
            f"dyno.{function}: {', '.join(own)}: only for engines. Add engine=KIND to start one ({', '.join(KINDS)}), "
            f"or engine={ATTACHED!r} to check the running server against them."
        )
