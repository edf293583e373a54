"""Sentences and the words that names are made of."""

import re
from collections.abc import Iterator

SENTENCE_MAX = 600  # characters: longer ones are lists and listings
_END = re.compile(r"(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)(?<!\bapprox)(?<!\betc)[.!?;](?:\s{1,4}|(?=[A-Z][a-z]))")
_TOKEN = re.compile(r"[a-z0-9]+")
_COUNT = re.compile(r"^(\d{1,3}x)([a-z].*)$")
# One engine under several spellings, before words are cut at their points and dashes.
_SPELLINGS = (
    (re.compile(r"llama[.\s-]?cpp|llama-server"), "llamacpp"),
    (re.compile(r"text[\s-]generation[\s-]inference"), "tgi"),
    (re.compile(r"tensorrt[\s-]?llm|trt[\s-]?llm"), "trtllm"),
)
# Words of names that tell nothing apart.
_EMPTY = frozenset(
    {"the", "and", "with", "model", "models", "version", "gpu", "gpus", "result", "results", "csv", "json"}
    | {
        "throughput",
        "latency",
        "token",
        "tokens",
        "request",
        "requests",
        "batch",
        "size",
        "test",
        "tests",
        "run",
        "runs",
    }
    | {"benchmark", "benchmarks", "online", "offline", "serving", "performance", "mean", "median"}
)


def sentences(text: str) -> Iterator[str]:
    """Of a passage; those of a sensible length."""
    text, start = text[:20_000], 0
    for end in (*(m.end() for m in _END.finditer(text)), len(text)):
        sentence = text[start:end].strip().rstrip(".;")
        if 10 <= len(sentence) <= SENTENCE_MAX:
            yield sentence
        start = end


def words(text: str) -> list[str]:
    """In small letters, cut at all that is neither a letter nor a digit; '8xMi300x' is 8x and mi300x."""
    plain = text.lower()
    for pattern, spelling in _SPELLINGS:
        plain = pattern.sub(spelling, plain)
    found: list[str] = []
    for token in _TOKEN.findall(plain):
        counted = _COUNT.match(token)
        found += [counted[1], counted[2]] if counted else [token]
    return found


def tokens(text: str) -> list[str]:
    """What a name consists of: '8xMi300x 1FP8-amd model' is 8x, mi300x, 1fp8, amd."""
    return [t for t in words(text) if t not in _EMPTY]


def same(one: str, other: str) -> bool:
    """Two tokens for one thing; a letter or two may be missing at the end of a longer one (mi300, mi300x)."""
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    return len(short) >= 4 and long.startswith(short) and len(long) - len(short) <= 2


def within(token: str, name: frozenset[str]) -> bool:
    return any(same(token, other) for other in name)
