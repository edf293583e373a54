"""vLLM's benchmarks beside dyno's: every flag of theirs, by tests/vllm-bench-flags.json, and what dyno does with it.

Whether a flag works, is passed on, changes nothing or is refused, and why, is what dyno's own parser says. Listed here
are only defaults that differ on purpose.
"""

import argparse
import functools
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dyno.cli.main import Parser, parser
from dyno.cli.serve import _FOR_ENGINE
from dyno.cli.settings import LACKS

TABLE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vllm-bench-flags.json").read_text()
)
COMMANDS = ("serve", "throughput", "latency")
# A whole command that vLLM's own program does, and who gets its flags.
WHOLE_COMMANDS = {"forward": "to an installed vLLM 0.33 or newer"}
WORKS, PASSED, SILENT, MISSING = "works", "passed on", "no effect", "missing"
# Command and flag → what dyno's default is, where it differs from vLLM's on purpose.
DEFAULTS = {
    ("serve", "--num-prompts"): "1000, or what --duration needs; of a trace, all",
    ("serve", "--request-id-prefix"): "none: no header more than was asked for",
    (
        "serve",
        "--bfcl-categories",
    ): "simple,live_simple,multiple, as vLLM's where none are named",
    ("serve", "--host"): "127.0.0.1",
    ("serve", "--port"): "8000; a free one for an engine that dyno starts",
    ("serve", "--endpoint"): "that of --backend: vLLM's own fails with openai-chat",
    ("serve", "--backend"): "openai, or what the engine speaks best",
    ("serve", "--percentile-metrics"): "ttft,tpot,itl, as vLLM's for generation",
    ("serve", "--prefix-repetition-num-prefixes"): "10 with this dataset",
    ("throughput", "--backend"): "vllm; llama.cpp for a GGUF file",
    ("throughput", "--dataset-name"): "random; sharegpt with a file, as in vLLM",
    ("throughput", "--num-prompts"): "1000; 32 with dyno's small model",
    ("throughput", "--custom-output-len"): "256, as in `vllm bench serve`",
    ("throughput", "--random-input-len"): "1024; 128 with dyno's small model",
    ("throughput", "--random-output-len"): "128; 32 with dyno's small model",
    ("throughput", "--prefix-repetition-prefix-len"): "256, as in `vllm bench serve`",
    ("throughput", "--prefix-repetition-suffix-len"): "256, as in `vllm bench serve`",
    ("throughput", "--prefix-repetition-output-len"): "128, as in `vllm bench serve`",
}


class Parity(NamedTuple):
    """What dyno does with a flag of vLLM's."""

    flag: str
    default: Any  # vLLM's
    state: str
    reason: str = ""  # where it doesn't simply work
    own_default: Any = None


@functools.cache
def actions(command: str) -> dict[str, argparse.Action]:
    inner: Parser = parser().commands()["bench"].commands()[command]
    inner.fill()
    return inner._option_string_actions


def flags(command: str) -> Iterator[Parity]:
    """Yield what dyno does with each flag of a command, of the newest version that the table has."""
    for flag, row in TABLE[command].items():
        yield Parity(flag, row["default"], *_state(command, flag))


def _state(command: str, flag: str) -> tuple[str, str, Any]:
    if command in WHOLE_COMMANDS:
        return PASSED, WHOLE_COMMANDS[command], None
    action: Any = actions(command)[flag]
    kind = type(action).__name__
    if kind == "_Refused":
        return MISSING, action.reason, None
    if kind == "_Ignored":
        return SILENT, action.reason, None
    if command == "serve" and flag in _FOR_ENGINE:
        return PASSED, "to an engine that dyno starts", None
    return WORKS, "", action.default


def same_default(vllms: Any, own: Any, turns_off: bool = False) -> bool:
    """Return whether two defaults mean the same. `turns_off`: dyno's is of what the flag turns off."""
    if turns_off:
        own = not own
    if isinstance(own, list) and len(own) == 1:
        own = own[0]
    if isinstance(own, str) and own.startswith("{"):
        own = json.loads(own)
        vllms = json.loads(vllms) if isinstance(vllms, str) else vllms
    if vllms in ("inf", math.inf):
        return own in (None, math.inf, [math.inf])
    if vllms in (None, False, 0, []):
        return own in (None, False, 0, "0", [])
    try:
        return math.isclose(float(vllms), float(own))
    except (TypeError, ValueError):
        return bool(vllms == own)


def _turns_off(command: str, flag: str) -> bool:
    return isinstance(actions(command)[flag], argparse._StoreFalseAction)


def different(command: str) -> set[str]:
    """Return the flags that work with another default than vLLM's."""
    return {
        p.flag
        for p in flags(command)
        if p.state == WORKS
        and not same_default(p.default, p.own_default, _turns_off(command, p.flag))
    }


def values(command: str, flag: str) -> dict[str, str]:
    """Return the values that vLLM's flag takes → why dyno has none like it; '' where it has."""
    choices = actions(command)[flag].choices or ()
    return {
        value: "" if value in choices else LACKS[flag][value]
        for value in TABLE[command][flag]["choices"]
    }


def counts(command: str) -> str:
    """Return how many flags do what, in a sentence."""
    by_state = Counter(p.state for p in flags(command))
    parts = [f"{number} {state}" for state, number in by_state.most_common()]
    return f"{len(TABLE[command])} flags: {', '.join(parts)}."
