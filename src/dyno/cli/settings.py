"""Flags that several commands share: an engine's setting, prompts, and the way to a running server."""

import argparse
import os
import re
import sys
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import msgspec

from dyno.api import vocabulary
from dyno.cli import flags
from dyno.engines.kinds import FOR_OTHERS, kind_of
from dyno.errors import UsageError
from dyno.facts import rules
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.option import Option, fields, problems, switches
from dyno.workload.dataset import Dataset, LengthFlag
from dyno.workload.datasets import DATASETS, DEFAULT
from dyno.workload.spec import TrafficClass, WorkloadSpec

HOSTS: dict[str, Literal["127.0.0.1", "0.0.0.0"]] = {  # that an engine may listen on
    "127.0.0.1": "127.0.0.1",
    "localhost": "127.0.0.1",
    "0.0.0.0": "0.0.0.0",
}
OFFLINE_DATASETS = tuple(name for name, dataset in DATASETS.items() if dataset.offline)
DRY_RUN = "print the commands and their problems, run nothing"
PASSED_ON = "Flags that dyno does not know are passed to the engine, which refuses unknown ones.\n\n"
_NEAR = ("--ubatch-size", "--device")  # to a flag of ours, and an engine's own all the same
EMBEDDINGS_ALONE = "vLLM's benchmarks of embeddings and reranking alone use it."
_TEXT = "offline, dyno sends text only; `dyno bench serve` has it."
_GENERATION = (
    "offline, dyno measures the generation of text only; `dyno bench serve` has it."
)
# vLLM's benchmarks have these, dyno doesn't: reason → flags.
REFUSED = {
    "dyno times one answer per request. Remove it.": "--best-of",
    "give the engine --profiler-config with a folder.": "--profile-result-dir",
}  # fmt: skip
# Those of offline runs alone, and values that such runs lack: flag → value → reason.
OFFLINE_REFUSED = {
    _TEXT: "--random-mm-base-items-per-request --random-mm-num-mm-items-range-ratio --random-mm-limit-mm-per-prompt "
    "--random-mm-bucket-config --enable-multimodal-chat --asr-min-audio-len-sec --asr-max-audio-len-sec",
    _GENERATION: "--no-reranker",
}
LACKS: dict[str, dict[str, str]] = {
    "--dataset-name": {
        name: _TEXT if known.traits.media else _GENERATION
        for name, known in DATASETS.items()
        if known.traits.media or known.traits.scores
    },
    "--backend": {
        "mii": "vLLM's own parser names it and has no code for it.",
        "vllm-chat": "It is for images; vllm has the same text.",
    },
}


# ---- an engine ----


def add_engine(g: argparse._ArgumentGroup) -> None:
    """Add an engine's flags, vLLM's where it has them. What an engine can't do is an error, never dropped."""
    flags.add(g, EngineSpec)
    g.set_defaults(settings="flags", own_args=[])


def add_port(g: argparse._ActionsContainer, help: str, default: int | None = None) -> None:
    words = "must be a port, 1 to 65535"
    flags.number(
        g, int, Option("--port", None, help, least=1, most=65535, words=words), default
    )


def add_model(g: argparse._ActionsContainer, help: str) -> None:
    """Add --model, and the names that engines have for it."""
    g.add_argument("--model", help=help)
    g.add_argument("-m", "--model-path", "--model-id", dest="model", help=argparse.SUPPRESS)


def pass_on(words: list[str], o: argparse.Namespace) -> None:
    """Keep the flags of an engine for it. A word that follows none is the model, as in `vllm serve MODEL`."""
    kind, own, lacks_value = kind_of(o.engine or FOR_OTHERS), [], False
    for word, on in switches(words, kind.is_switch):
        if on is not None:
            own.append(word if on else f"{word}=False")
            lacks_value = False
        elif re.match("--?[a-zA-Z]", word):
            _check_slip(word.partition("=")[0], o.parser.flags)
            own.append(word)
            # --x=1 and -O3 have theirs
            lacks_value = not re.search(r"=|^-[a-zA-Z]\d", word)
        elif lacks_value or (own and o.model):  # some flags take several values
            own.append(word)
            lacks_value = False
        elif o.model or re.fullmatch(r"-?[\d.]+|(?i:true|false)", word):
            raise UsageError(f"{word!r} follows no flag. Quote values that contain spaces.")
        else:
            o.model = word
    o.own_args = own


def _check_slip(name: str, ours: Iterable[str]) -> None:
    known = [flag for flag in ours if flag.startswith("--")] if name not in _NEAR else []
    if name.startswith("--") and (near := get_close_matches(name, known, n=1, cutoff=0.87)):
        raise UsageError(
            f"There is no {name}. Did you mean {near[0]}? If it is the engine's own: --engine-args='{name} …'."
        )


def given_engine(o: argparse.Namespace) -> list[str]:
    """Return the engine's flags that were used."""
    return flags.given(o, EngineSpec)


def engine(kind: str, o: argparse.Namespace) -> EngineSpec:
    engine = kind_of(kind)
    only = _flags_of_a_start(o)
    if not engine.starts and only:
        raise UsageError(
            f"{', '.join(only)}: --engine {kind} starts nothing, it measures a running server. Remove it."
        )
    host = getattr(o, "host", None) or "127.0.0.1"
    if engine.starts and host not in HOSTS:
        raise UsageError(
            f"--host {host}: dyno reaches an engine that it starts at 127.0.0.1. Use 127.0.0.1, or 0.0.0.0 to let "
            "other machines reach it, too."
        )
    container = _container(o)
    own = flags.values(o, EngineSpec)
    args = [*flags.shell_words(o.engine_args, "--engine-args"), *o.own_args]
    own |= {"devices": _devices(o.devices), "args": args}
    model = o.model or None
    if model is None and engine.model_variable:
        model = os.environ.get(engine.model_variable)
    return EngineSpec(
        kind=kind,
        model=model,
        served_name=o.served_model_name,
        container=container,
        host=HOSTS[host] if engine.starts else "127.0.0.1",
        port=o.port if engine.starts else None,
        **own,
    )


def _flags_of_a_start(o: argparse.Namespace) -> list[str]:
    """Return the given flags that only an engine which dyno starts can take."""
    given = [
        flag
        for flag in given_engine(o)
        if flag in ("--devices", "--replicas") or flag.startswith("--engine-")
    ]
    return [*(flag for flag in given if flag != "--engine-version"), *o.own_args[:1]]


def _container(o: argparse.Namespace) -> ContainerSpec | None:
    values = flags.values(o, ContainerSpec)
    values["options"] = flags.shell_words(
        o.engine_container_args, "--engine-container-args"
    )
    if o.engine_image:
        return ContainerSpec(**values)
    if lost := flags.given(o, ContainerSpec):
        raise UsageError(
            f"{', '.join(lost)}: only for an engine in a container. Name its image with --engine-image."
        )
    return None


def _devices(words: list[str] | None) -> list[int] | None:
    """Read 0 1 2, or 0,1,2; a flag without a number means none."""
    if words is None:
        return None
    numbers = [n for word in words for n in word.split(",") if n]
    if not all(n.isdigit() for n in numbers):
        raise UsageError(
            f"--devices takes numbers of accelerators, as 0 1 2 or 0,1,2, but is {' '.join(words)}."
        )
    return [int(n) for n in numbers]


def print_plan(lines: Iterable[str]) -> None:
    """Print commands with their comments."""
    for line in lines:
        print(line)


def report_problems(problems: Collection[str]) -> int:
    """Print what is wrong with the commands of a --dry-run; return the exit code."""
    for problem in problems:
        print(f"dyno: {problem}", file=sys.stderr)
    return UsageError.exit_code if problems else 0


# ---- prompts ----


def add_lengths(g: argparse._ArgumentGroup, default: tuple[int, int] | None = None) -> None:
    """Add lengths. vLLM has several flags for one; each command has its own order of precedence.

    `default`: of random prompts. None: it depends on the model.
    """
    small = (
        ("", "")
        if default
        else ("; with dyno's small model: 128", "; with dyno's small model: 32")
    )
    helps = {
        "--input-len": ("same as --random-input-len (default: none)", None),
        "--output-len": (
            "tokens to generate, for any dataset (default: the dataset's)",
            None,
        ),
        "--random-input-len": (
            f"tokens of a random prompt (default: 1024{small[0]})",
            default and default[0],
        ),
        "--random-output-len": (
            f"tokens to generate for a random prompt (default: 128{small[1]})",
            default and default[1],
        ),
    }
    for flag, (help, value) in helps.items():
        flags.number(g, int, Option(flag, "N", help, least=1), value)
    g.add_argument(
        "--random-range-ratio",
        default="0",
        metavar="R",
        help='draw lengths from len×(1−R) to len×(1+R); or {"input": R, "output": R}',
    )


def add_own(g: argparse._ArgumentGroup) -> None:
    """Add the flags of single datasets: their settings, and lengths by vLLM's names."""
    for name, dataset in DATASETS.items():
        flags.add_rest(g, dataset.spec)
        add_own_lengths(g, name)


def add_own_lengths(g: argparse._ArgumentGroup, *names: str) -> None:
    for dataset in (DATASETS[name] for name in names):
        for length in dataset.lengths:
            option = Option(
                length_flag(dataset, length),
                "N",
                f"{dataset.name}: {length.help}",
                least=length.least,
            )
            flags.number(g, int, option, length.default)


def length_flag(dataset: Dataset, length: LengthFlag) -> str:
    return f"--{dataset.name.replace('_', '-')}-{length.end}"


def own_lengths(o: argparse.Namespace, dataset: str) -> dict[str, int]:
    """Return the fields that a dataset's own flags set, or their defaults."""
    given = {}
    owner = DATASETS[DATASETS[dataset].lengths_of or dataset]
    for length in owner.lengths:
        name = length_flag(owner, length)[2:].replace("-", "_")
        value: int | None = getattr(o, name, None)
        value = length.default if value is None else value
        if value is not None:
            given[length.field] = value
    return given


def workload(
    o: argparse.Namespace, dataset: str, count: int, input_len: int, output_len: int | None
) -> WorkloadSpec:
    ratio_in, ratio_out = flags.range_ratio(o.random_range_ratio)
    fields = {
        **DATASETS[dataset].flag_defaults,
        **flags.values(o, WorkloadSpec),
        "dataset": dataset,
        "num_prompts": count,
        "input_len": input_len,
        "output_len": output_len,
        "range_ratio_input": ratio_in,
        "range_ratio_output": ratio_out,
    }
    return WorkloadSpec(**fields)


def add_runs(g: argparse._ActionsContainer, help: str = "folder of runs") -> None:
    g.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=help)


NO_PRICES: dict[str, Any] = {"price": [], "prices": None, "energy_price": None}


def add_prices(p: argparse._ActionsContainer) -> None:
    p.add_argument(
        "--price",
        nargs="+",
        default=[],
        metavar="[NAME=]DOLLARS",
        help="price per accelerator-hour: 2.99, or H100=2.99 MI300X=4.50; per machine-hour: machine=12",
    )
    p.add_argument(
        "--prices",
        type=Path,
        metavar="FILE.toml",
        help="read prices from this file (default: none)",
    )
    p.add_argument(
        "--energy-price",
        type=float,
        metavar="DOLLARS",
        help="price per kilowatt-hour (default: none)",
    )


# ---- `--class 'chat: request_rate_rps=2 input_len=512'`: a class of traffic, in the keys of a study ----

CLASS_EXAMPLE = (
    "'chat: request_rate_rps=2 input_len=512 priority=0 goodput=ttft:500,tpot:30'"
)
_KEYS = [
    name
    for name in fields(TrafficClass)
    if name not in ("classes", "num_prompts", "num_sessions", "num_warmups")
]


def classes(texts: list[str]) -> dict[str, TrafficClass]:
    parts = {}
    for text in texts:
        name, colon, rest = (part.strip() for part in text.partition(":"))
        if not colon or not name or "=" in name or name in parts:
            why = f"names {name} twice" if name in parts else "has no name"
            raise UsageError(f"--class {text!r} {why}. Write --class {CLASS_EXAMPLE}.")
        parts[name] = _class(
            name, flags.pairs(flags.shell_words([rest], "--class"), "--class")
        )
    return parts


def _class(name: str, given: dict[str, str]) -> TrafficClass:
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key == "goodput":
            values["goodput_ms"] = flags.goodput(text.split(","))
        elif key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = (
                f"Did you mean {near[0]}?"
                if near
                else f"It has {', '.join(_KEYS)}, goodput."
            )
            raise UsageError(f"--class {name}: a class of traffic has no {key}. {hint}")
        else:
            values[key] = text.split(",") if key == "lora_modules" else text
    try:
        part = msgspec.convert(values, TrafficClass, strict=False)
    except msgspec.ValidationError as e:
        raise UsageError(f"--class {name}: {e}.") from None
    limits = rules.GivenSettings({"goodput_ms": part.goodput_ms}, DATASETS[DEFAULT])
    for mistake in rules.mistakes(rules.TRIAL, limits, "flags"):
        raise UsageError(f"--class {name}: {vocabulary.sentence(mistake)}")
    for why in problems(part):
        raise UsageError(f"--class {name}: {why}.")
    return part
