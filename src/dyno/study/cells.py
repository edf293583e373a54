"""The cells of a study's tables: which keys a table has, what a key takes, and whether a value is a list of choices."""

import math
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from dyno import secrets
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.trial import TrialSpec
from dyno.facts.workload import WorkloadSpec
from dyno.study.document import Document, Path
from dyno.transport import Transport

Hints = dict[str, Any]


def _hints(struct: type, *but: str) -> Hints:
    return {name: hint for name, hint in typing.get_type_hints(struct).items() if name not in but}


SERVING = _hints(LoadSpec, "seed")
OFFLINE = _hints(OfflineSpec, "kind")
TRANSPORT = _hints(Transport, "proxy")

# What a cell of each section takes. The engine's are the words of `--engine`, and of `engine.json`.
CELLS: dict[str, Hints] = {
    "engine": {
        **_hints(EngineSpec),
        **TRANSPORT,
        "base_url": str | list[str],
        "api_key_env": str,
        "backend": str,
        "endpoint": str,
    },
    "workload": _hints(WorkloadSpec),
    "load": {
        "kind": Literal["serve", "throughput", "latency", "micro"],
        **SERVING,
        **OFFLINE,
        "num_prompts": int,  # goes before the workload's: how many are sent often depends on how fast
        "num_warmups": int,
        "requests_per_stream": float,  # num_prompts = this × max_concurrency
    },
    "trial": {
        **_hints(TrialSpec, "target", "workload", "load", "engine", "offline", "kind", "label", "reset_cache"),
        "cache": Literal["empty", "keep"],
    },
}

_LEAST: dict[str, float] = {
    "num_prompts": 1, "num_warmups": 0, "input_len": 0, "output_len": 0, "prefix_len": 0, "max_concurrency": 1,
    "batch_size": 1, "depth": 0, "iterations": 1, "warmup_iterations": 0, "tensor_parallel": 1, "pipeline_parallel": 1,
    "replicas": 1, "max_model_len": 1, "max_num_seqs": 1, "max_batched_tokens": 1, "draft_tokens": 1, "repeats": 1,
    "seed": 0, "machine_accelerators": 1,
}  # fmt: skip
# More than this would fill the memory, or take years: a slip of the pen.
MOST: dict[str, float] = {
    **dict.fromkeys(("num_prompts", "num_warmups", "max_concurrency", "batch_size", "iterations"), 10_000_000),
    **dict.fromkeys(("input_len", "output_len", "prefix_len", "depth"), 100_000_000),
    **dict.fromkeys(("duration_s", "timeout_s", "request_timeout_s", "ready_timeout_s"), 1e8),
    **dict.fromkeys(("ramp_start_rps", "ramp_end_rps", "request_rate_rps", "requests_per_stream"), 1e7),
}
_ABOVE_ZERO = (
    "request_rate_rps", "burstiness", "duration_s", "request_timeout_s", "response_bytes_max", "ramp_end_rps",
    "requests_per_stream", "memory_fraction", "ready_timeout_s", "timeout_s", "connect_timeout_s", "read_timeout_s",
)  # fmt: skip

_PRICES = ("accelerator_hour", "machine_hour", "energy_kwh")


def choices(hint: Any, value: Any) -> list[Any] | None:
    """The values of a list that stands for several trials; None where it is one value."""
    if not isinstance(value, list):
        return None
    if _takes_list(hint):
        return value if value and all(isinstance(v, list) for v in value) else None
    return value


def _takes_list(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_takes_list(part) for part in get_args(hint))
    return get_origin(hint) is list


def converted(document: Document, path: Path, hint: Any, value: Any) -> Any:
    """The value as the key's type; what is wrong with it is a mistake at the path."""
    name = str(path[-1])
    if _too_large(value):
        document.mistake(path, "holds a whole number beyond 64 bits.")
        return None
    try:
        value = msgspec.convert(_as_text(hint, value), type=hint)
    except msgspec.ValidationError as e:
        inside = str(e).partition(" - at `$.")[2].strip("`")
        shown = repr(secrets.public(value, name))
        document.mistake(path, f"should be {_words(hint)}, and is {shown}" + (f" (at {inside})" if inside else "."))
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name in _LEAST and value < _LEAST[name] and not (name == "output_len" and value == -1):
            document.mistake(path, f"must be at least {_LEAST[name]:g}, and is {value:g}.")
        if name in MOST and value > MOST[name] and (name, value) != ("request_rate_rps", math.inf):
            document.mistake(path, f"must be at most {MOST[name]:,.0f}, and is {value:,}.")
            return None
        if name in _ABOVE_ZERO and not value > 0:
            document.mistake(path, f"must be above 0, and is {value:g}.")
        if name in ("range_ratio_input", "range_ratio_output") and not 0 <= value < 1:
            document.mistake(path, f"is from 0 to below 1, and is {value:g}.")
        if name in _PRICES and not (0 < value < math.inf or (value == 0 and name == "energy_kwh")):
            document.mistake(path, f"is a price, a number above 0, and is {value:g}.")
        if name == "port" and not 0 < value < 65536:
            document.mistake(path, f"is a number from 1 to 65535, and is {value}.")
        if name == "memory_fraction" and value > 1:
            document.mistake(path, f"is a share, at most 1, and is {value:g}.")
    return value


def _too_large(value: Any) -> bool:
    """JSON and DuckDB take no more, and Python doesn't print thousands of digits."""
    if isinstance(value, list | dict):
        return any(map(_too_large, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def _as_text(hint: Any, value: Any) -> Any:
    """Numbers among the words of a command or the values of its environment: there they are text."""
    if get_origin(hint) is list and get_args(hint) == (str,) and isinstance(value, list):
        return [_number_as_text(v) for v in value]
    if get_origin(hint) is dict and get_args(hint) == (str, str) and isinstance(value, dict):
        return {k: _number_as_text(v) for k, v in value.items()}
    return value


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_words(part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is list:
        return f"a list of {_words(get_args(hint)[0]).removeprefix('a ')}s"
    simple = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return simple.get(hint, "a table")
