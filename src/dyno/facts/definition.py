"""What a latency's name means, by the tool that calculated it. Figures of two definitions don't share a column."""

from collections.abc import Iterable
from typing import Final

# tool.stem → in words. A stem that a tool is not listed with is calculated as vLLM does only where the tool says so.
DEFINITIONS: Final[dict[str, str]] = {
    "vllm.ttft": "from sending to the first chunk with a choice, which may be empty",
    "vllm.tpot": "(end to end − first token) / (tokens − 1)",
    "vllm.itl": "gaps between chunks, pooled over requests",
    "vllm.e2el": "from sending to the last token (completions) or to the usage chunk (chat)",
    "sglang.ttft": "from sending to the first text or reasoning",
    "sglang.tpot": "(end to end − first token) / (tokens − 1)",
    "sglang.itl": "gaps between tokens, pooled; a chunk's gap is shared out to its tokens",
    "sglang.e2el": "from sending to the last token",
    "dyno.ttft": "from sending to the first chunk with text or reasoning",
    "dyno.tpot": "(last token − first token) / (tokens − 1)",
    "dyno.itl": "gaps between chunks, pooled over requests",
    "dyno.e2el": "from sending to the last token",
    "guidellm.ttft": "from sending to the first token or reasoning token",
    "guidellm.tpot": "(last token − sending) / tokens: the first token's wait is in it",
    "guidellm.itl": "a request's mean time between tokens; percentiles are over requests",
    "guidellm.e2el": "from sending to the end",
    "aiperf.ttft": "from sending to the first response that isn't empty",
    "aiperf.itl": "a request's mean time between tokens; percentiles are over requests",
    "aiperf.e2el": "from sending to the last response",
    "inference-perf.ttft": "from sending to the first text",
    "inference-perf.tpot": "(end to end − first token) / (tokens − 1)",
    "inference-perf.itl": "times between tokens, pooled; zero inside a chunk",
    "inference-perf.ntpot": "end to end / tokens",
    "inference-perf.e2el": "from sending to the end",
    "inference-benchmarker.ttft": "from sending to the first text",
    "inference-benchmarker.itl": "a request's mean time between tokens; percentiles are over requests",
    "inference-benchmarker.e2el": "from sending to the end",
    "llama-bench.speed": "tokens/s of a single request's prompt (pp) or tokens (tg), without tokenizing and sampling",
    "offline.throughput": "tokens/s of prompts and outputs together, in the engine's own process",
    "offline.latency": "of a whole batch, in the engine's own process",
}


def definition(tool: str, stem: str) -> str:
    """The key of what a tool means by a stem such as ttft; '' where that isn't known."""
    key = f"{tool}.{stem}"
    return key if key in DEFINITIONS else ""


# Meanings that are one: a step apart only for streams that begin with an empty chunk, or end with a usage one.
_MEANINGS: Final = (
    {"vllm.ttft", "sglang.ttft", "dyno.ttft", "aiperf.ttft", "inference-perf.ttft", "inference-benchmarker.ttft",
     "guidellm.ttft"},
    {"vllm.tpot", "sglang.tpot", "dyno.tpot", "inference-perf.tpot"},
    {"vllm.e2el", "sglang.e2el", "dyno.e2el", "inference-perf.e2el", "guidellm.e2el", "aiperf.e2el",
     "inference-benchmarker.e2el"},
    {"vllm.itl", "dyno.itl"},
    {"guidellm.itl", "aiperf.itl", "inference-benchmarker.itl"},
)  # fmt: skip


def one_meaning(keys: Iterable[str]) -> bool:
    """Figures of these definitions may stand in one column."""
    wanted = set(keys)
    return len(wanted) <= 1 or any(wanted <= meaning for meaning in _MEANINGS)


def meanings(keys: Iterable[str]) -> dict[str, int]:
    """Of each definition's key, the number of its meaning."""
    groups: list[list[str]] = []
    for key in dict.fromkeys(keys):
        for group in groups:
            if one_meaning([*group, key]):
                group.append(key)
                break
        else:
            groups.append([key])
    return {key: i for i, group in enumerate(groups) for key in group}
