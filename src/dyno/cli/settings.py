"""Flags that several commands share: an engine's setting, prompts, and the way to a running server."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec

from dyno.cli import flags
from dyno.cli.vocabulary import in_flags
from dyno.errors import UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.target import TargetSpec
from dyno.facts.workload import WorkloadSpec
from dyno.option import Option

KINDS = {  # as engines/kinds has them, which is not loaded for a help text
    "vllm": "vLLM",
    "tgi": "Text Generation Inference",
    "llamacpp": "llama.cpp: your llama-server, or the one that comes with dyno",
    "sglang": "SGLang",
    "transformers": "transformers serve",
    "openai": "any running server",
    "fake": "answers at given times, with faults on demand",
}
DATASETS = ("random", "sharegpt", "sharegpt-shaped", "custom")
DRY_RUN = "print the commands and their problems, run nothing"


# ---- an engine ----


def add_engine(g: argparse._ArgumentGroup) -> None:
    """Add an engine's flags, vLLM's where it has them. What an engine can't do is an error, never dropped."""
    flags.add(g, EngineSpec)
    g.set_defaults(settings="flags")


def add_port(g: argparse._ActionsContainer, help: str, default: int | None = None) -> None:
    words = "must be a port, 1 to 65535"
    flags.number(g, int, Option("--port", None, help, least=1, most=65535, words=words), default)


def given_engine(o: argparse.Namespace) -> list[str]:
    """Return the engine's flags that were used."""
    return flags.given(o, EngineSpec)


def engine(kind: str, o: argparse.Namespace) -> EngineSpec:
    only = [f for f in given_engine(o) if f in ("--devices", "--replicas") or f.startswith("--engine-")]
    only = [flag for flag in only if flag != "--engine-version"]
    if kind == "openai" and only:
        raise UsageError(f"{', '.join(only)}: --engine openai starts nothing, it measures a running server. Remove it.")
    container = flags.values(o, ContainerSpec)
    container["options"] = flags.shell_words(o.engine_container_args, "--engine-container-args")
    own = flags.values(o, EngineSpec)
    own |= {"devices": _devices(o.devices), "args": flags.shell_words(o.engine_args, "--engine-args")}
    return EngineSpec(
        kind=kind,
        model=o.model,
        served_name=o.served_model_name,
        container=ContainerSpec(**container) if o.engine_image else None,
        port=o.port if kind != "openai" else None,
        **own,
    )


def _devices(words: list[str] | None) -> list[int] | None:
    """Read 0 1 2, or 0,1,2; a flag without a number means none."""
    if words is None:
        return None
    numbers = [n for word in words for n in word.split(",") if n]
    if not all(n.isdigit() for n in numbers):
        raise UsageError(f"--devices takes numbers of accelerators, as 0 1 2 or 0,1,2, but is {' '.join(words)}.")
    return [int(n) for n in numbers]


def print_plan(lines: Iterable[str], words: Callable[[str], str] = in_flags) -> None:
    """Print commands as they are, and comments in the user's words for settings."""
    for line in lines:
        print(words(line) if line.startswith("#") else line)


def report_problems(problems: Collection[str], words: Callable[[str], str] = in_flags) -> int:
    """Print what is wrong with the commands of a --dry-run; return the exit code. `words`: for settings."""
    for problem in problems:
        print(f"dyno: {words(problem)}", file=sys.stderr)
    return UsageError.exit_code if problems else 0


# ---- prompts ----


def add_lengths(g: argparse._ArgumentGroup, default: tuple[int, int] | None = None) -> None:
    """Add lengths. vLLM has several flags for one; each command has its own order of precedence.

    `default`: of random prompts. None: it depends on the model.
    """
    small = ("", "") if default else ("; with dyno's small model: 128", "; with dyno's small model: 32")
    helps = {
        "--input-len": ("same as --random-input-len (default: none)", None),
        "--output-len": ("tokens to generate, for any dataset (default: the dataset's)", None),
        "--random-input-len": (f"tokens of a random prompt (default: 1024{small[0]})", default and default[0]),
        "--random-output-len": (
            f"tokens to generate for a random prompt (default: 128{small[1]})",
            default and default[1],
        ),
    }
    for flag, (help, value) in helps.items():
        flags.number(g, int, Option(flag, "N", help, least=1), value)
    g.add_argument(
        "--random-range-ratio", default="0", metavar="R",
        help='draw lengths from len×(1−R) to len×(1+R); or {"input": R, "output": R}',
    )  # fmt: skip


def workload(o: argparse.Namespace, dataset: str, count: int, input_len: int, output_len: int | None) -> WorkloadSpec:
    ratio_in, ratio_out = flags.range_ratio(o.random_range_ratio)
    fields = {
        **flags.values(o, WorkloadSpec), "dataset": dataset, "num_prompts": count, "input_len": input_len,
        "output_len": output_len, "range_ratio_input": ratio_in, "range_ratio_output": ratio_out,
    }  # fmt: skip
    return WorkloadSpec(**fields)


def add_runs(g: argparse._ActionsContainer, help: str = "folder of runs") -> None:
    g.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help=help)


# ---- a running server ----


def check_headers(headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.A):
            # It isn't repeated: of 'Authorization: Bearer abc==' it is the key.
            raise UsageError("A header's name must be one word. Write --header 'Authorization=Bearer …', with '='.")
        if not re.fullmatch(r"[ -~]*", value):
            raise UsageError(
                f"The header {name!r} has characters that HTTP doesn't allow. Use ASCII without line ends."
            )


def check_files(targets: Iterable[TargetSpec]) -> None:
    """Refuse certificates that can't be used before anything starts."""
    from dyno.http import tls_context
    from dyno.transport import Transport

    named = {(t.cacert, t.cert, t.cert_key) for t in targets} - {(None, None, None)}
    for cacert, cert, cert_key in named:
        tls_context(Transport(cacert=cacert, cert=cert, cert_key=cert_key))


def proxied(target: TargetSpec) -> tuple[TargetSpec, dict[str, str]]:
    """The target with the proxy that the environment names for it, and the header that the proxy wants."""
    from dyno.http import Url
    from dyno.transport import proxy_for

    urls = [Url(url) for url in target.urls if url]
    proxies = {None if url.local else proxy_for(url.tls, url.host, url.port, os.environ) for url in urls} or {None}
    if len(proxies) > 1:
        raise UsageError(
            "The environment sets different proxies for the servers. Set no_proxy so that all are reached the same way."
        )
    (proxy,) = proxies
    if proxy is None:
        return target, {}
    login = {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}
    return msgspec.structs.replace(target, proxy=proxy.url), login
