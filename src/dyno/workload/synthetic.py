"""Synthetic prompts: seeded, sentence-like English of exactly as many tokens as asked for, each with its own start."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.workload import prefixes
from dyno.workload.common import CommonSpec
from dyno.workload.datasets.random import RandomSpec
from dyno.workload.datasets.rerank import RandomRerankSpec
from dyno.workload.request import BatchRequest, Request
from dyno.workload.tasks import MAX_TOKENS, SIZES, TASKS, item
from dyno.workload.tokenizer import Tokenizer, special_ids

RANDOM_OUTPUT_LEN = 128  # vLLM's default
# Prompts that are made at a time, at most: a tokenizer of a file needs some 200 bytes for each token meanwhile.
BATCH = 256
BATCH_TOKENS = 1 << 17

# ShareGPT's first two turns after vLLM's filter (prompt and output ≥ 4, prompt ≤ 1024, together ≤ 2048) as
# quantiles of a public `benchmark_serving.py` result: 1,000 prompts, seed 0, Llama 3.1's tokenizer (8×H100,
# November 2024). Inputs have a mean of 215 there, as in every such run. The outputs are its answers that
# weren't empty, mean 194; published vLLM runs that generate all of it have 198. Drawn independently.
_QUANTILES = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
_SHAREGPT_INPUT = (4, 10, 15, 24, 43, 83, 209, 315, 426, 621, 756, 782, 997)
_SHAREGPT_OUTPUT = (4, 11, 24, 52, 113, 169, 216, 281, 331, 418, 516, 684, 780)

# Words of grammar, an empty line, words of content; in each block the most frequent first.
_WORDS_FILE = Path(__file__).with_name("words.txt")

# What a prompt is lengthened with, one after the other, when cutting it left it short.
_FILLERS = (" a", " the", ".", " I")


def random(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    return _random(spec, tokenizer, prefixes.by_popularity)


def random_batches(spec: RandomSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield random prompts; several in a request, for embeddings, where a batch size is given."""
    size = spec.random_batch_size
    if size == 1:
        for request in random(spec, tokenizer):
            yield _as_ids(request, tokenizer) if spec.token_ids else request
        return
    each = msgspec.structs.replace(spec, num_prompts=spec.num_prompts * size)
    for batch in _batched(random(each, tokenizer), size):
        tokens = sum(request.prompt_tokens for request in batch)
        texts = [str(request.prompt) for request in batch]
        yield BatchRequest(texts[0], tokens, 0, inputs=texts)


def _as_ids(request: Request, tokenizer: Tokenizer) -> Request:
    ids = tokenizer.encode(str(request.prompt))
    return msgspec.structs.replace(request, prompt=ids, prompt_tokens=len(ids))


def random_rerank(spec: RandomRerankSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield one query with other documents each time, by vLLM's lengths: a reranker reads query, separator and
    document as one text."""
    length = max(spec.input_len // 2 - 1, 1) if spec.reranker else spec.input_len
    size = spec.random_batch_size
    own = msgspec.structs.replace(spec, input_len=length, num_prompts=1)
    (query,) = random(own, tokenizer)
    all_documents = msgspec.structs.replace(
        spec, input_len=length, num_prompts=spec.num_prompts * size, seed=spec.seed + 1
    )
    for batch in _batched(random(all_documents, tokenizer), size):
        texts = [str(request.prompt) for request in batch]
        queries = size if spec.reranker else 1
        tokens = queries * query.prompt_tokens + sum(r.prompt_tokens for r in batch)
        yield BatchRequest(query.prompt, tokens, 0, inputs=texts)


def _batched(requests: Iterator[Request], size: int) -> Iterator[list[Request]]:
    while batch := list(islice(requests, size)):
        yield batch


def prefix_repetition(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    return _random(spec, tokenizer, prefixes.equally_frequent)


def _random(
    spec: CommonSpec, tokenizer: Tokenizer, choose: prefixes.Choose
) -> Iterator[Request]:
    special = len(special_ids(tokenizer))
    input_len = max(0, spec.input_len - special)
    for flag, ratio in (
        ("input", spec.range_ratio_input),
        ("output", spec.range_ratio_output),
    ):
        if not 0 <= ratio < 1:
            raise WorkloadError(
                f"The {flag} range ratio is {ratio}; it must be at least 0 and below 1."
            )
    if (
        spec.prefix_len < 0
        or spec.prefix_len + math.floor(input_len * (1 - spec.range_ratio_input)) < 1
    ):
        raise WorkloadError(
            f"Prompts of {spec.input_len} tokens (range ratio {spec.range_ratio_input}, prefix {spec.prefix_len}) "
            f"leave no room for a word: {special} of them are special tokens. Raise "
            f"{setting_name('--random-input-len')}."
        )
    pairs = random_lengths(msgspec.structs.replace(spec, input_len=input_len))
    lengths = [special + spec.prefix_len + tokens for tokens, _ in pairs]
    chosen = _prefixes(spec, tokenizer, special, lengths, choose)
    wanted = (Wanted(i, lengths[i], prefix) for i, prefix in enumerate(chosen))
    prompts = synthesize_all(tokenizer, spec.seed, wanted)
    for prompt, (_, output_tokens) in zip(prompts, pairs, strict=True):
        yield Request(*prompt, output_tokens)


def _prefixes(
    spec: CommonSpec,
    tokenizer: Tokenizer,
    special: int,
    lengths: list[int],
    choose: prefixes.Choose,
) -> Iterator[str]:
    """Yield each prompt's prefix. `lengths`: of the whole prompts, with their special tokens."""
    shares = prefixes.shares(spec, lengths, special, choose(spec, len(lengths)))
    longest = max(tokens for _, tokens in shares)
    whole = cache(lambda number: synthesize(tokenizer, spec.seed, -1 - number, longest)[0])
    ids = cache(lambda number: tokenizer.encode(whole(number)))
    part = cache(lambda number, tokens: tokenizer.decode(ids(number)[:tokens]).strip())
    for number, tokens in shares:
        if not tokens:
            yield ""
        else:
            yield whole(number) if tokens == longest else part(number, tokens)


def random_lengths(spec: CommonSpec) -> list[tuple[int, int]]:
    """Return the lengths of each prompt, without a shared prefix, and of its output."""
    # Rule, generator and order of draws are vLLM's: the same seed gives the same lengths.
    rng = np.random.default_rng(spec.seed)
    inputs = _lengths(
        rng, spec.input_len, spec.range_ratio_input, spec.num_prompts, at_least=0
    )
    outputs = _lengths(
        rng,
        spec.output_len or RANDOM_OUTPUT_LEN,
        spec.range_ratio_output,
        spec.num_prompts,
        at_least=1,
    )
    return list(zip(inputs, outputs, strict=True))


def _lengths(
    rng: np.random.Generator, middle: int, ratio: float, count: int, at_least: int
) -> list[int]:
    low = max(math.floor(middle * (1 - ratio)), at_least)
    high = max(math.ceil(middle * (1 + ratio)), at_least)
    drawn: list[int] = rng.integers(low, high + 1, size=count).tolist()
    return drawn


def sharegpt_shaped(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    pairs = sharegpt_lengths(spec.seed, spec.num_prompts)
    wanted = (Wanted(i, tokens) for i, (tokens, _) in enumerate(pairs))
    prompts = synthesize_all(tokenizer, spec.seed, wanted)
    for prompt, (_, output_tokens) in zip(prompts, pairs, strict=True):
        yield Request(*prompt, spec.output_len or output_tokens)


def questions(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield questions of the built-in tasks, one of each in turn: text that a model answers rather than continues."""
    names = list(TASKS)
    for number in count():
        task, size = names[number % len(names)], SIZES[number // len(names) % len(SIZES)]
        question = item(task, size, number, spec.seed).question
        yield Request(question, tokenizer.count(question), spec.output_len or MAX_TOKENS)


def sharegpt_lengths(seed: int, count: int) -> list[tuple[int, int]]:
    draws = np.random.default_rng([seed, 2]).random((count, 2))
    inputs = np.interp(draws[:, 0], _QUANTILES, _SHAREGPT_INPUT).round().astype(int)
    outputs = np.interp(draws[:, 1], _QUANTILES, _SHAREGPT_OUTPUT).round().astype(int)
    return list(zip(inputs.tolist(), outputs.tolist(), strict=True))


class Wanted(NamedTuple):
    """A prompt to make: its number, and its tokens with those of the prefix."""

    number: int
    tokens: int
    prefix: str = ""


def synthesize(
    tokenizer: Tokenizer, seed: int, index: int, tokens: int, prefix: str = ""
) -> tuple[str, int]:
    """Return prompt `index` of this seed, and its true count of tokens."""
    return next(synthesize_all(tokenizer, seed, [Wanted(index, tokens, prefix)]))


def synthesize_all(
    tokenizer: Tokenizer, seed: int, wanted: Iterable[Wanted]
) -> Iterator[tuple[str, int]]:
    """Yield prompts, each with its true count of tokens; some hundred are made at a time."""
    for batch in _batches(wanted):
        texts = [_text(seed, one) for one in batch]
        yield from _fit(tokenizer, texts, [one.tokens for one in batch])


def _batches(wanted: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    batch: list[Wanted] = []
    tokens = 0
    for one in wanted:
        batch.append(one)
        tokens += one.tokens
        if len(batch) == BATCH or tokens >= BATCH_TOKENS:
            yield batch
            batch = []
            tokens = 0
    if batch:
        yield batch


def _text(seed: int, wanted: Wanted) -> str:
    # A generator for each: a prompt is the same however many come before it.
    rng = np.random.default_rng([seed, 1, wanted.number % 2**32])
    # A word is hardly ever less than a token, so as many words as tokens are enough.
    words = prose(rng, wanted.tokens)
    return f"{wanted.prefix} {opening(seed, wanted.number)} {words}".lstrip()


def _fit(
    tokenizer: Tokenizer, texts: Sequence[str], tokens: Sequence[int]
) -> list[tuple[str, int]]:
    """Return the start of each text with this many tokens, or the nearest that a few tries come to."""
    # No white space at the ends: some servers put one in front when they decode, some chat templates trim.
    prompts = [start.strip() for start in tokenizer.cut(texts, tokens)]
    counts = tokenizer.counts(prompts)
    best = list(zip(prompts, counts, strict=True))
    for filler in _FILLERS:
        off = [i for i, count in enumerate(counts) if count != tokens[i]]
        if not off:
            break
        for i in off:
            prompts[i] = _resized(prompts[i], tokens[i] - counts[i], filler)
        for i, tokens_now in zip(
            off, tokenizer.counts([prompts[i] for i in off]), strict=True
        ):
            counts[i] = tokens_now
            if abs(tokens_now - tokens[i]) < abs(best[i][1] - tokens[i]):
                best[i] = prompts[i], tokens_now
    return best


def _resized(prompt: str, more: int, filler: str) -> str:
    """Return the prompt with so many fillers, or without so many words: a cut inside a word may encode otherwise
    than the whole did, and whole words are safe."""
    if more < 0:
        return "".join(prompt.rsplit(maxsplit=-more)[:1])
    return prompt + filler * more


class Block:
    """Words drawn by Zipf's law: the n-th most frequent one in proportion to 1 / (n + 2.7)."""

    def __init__(self, text: str) -> None:
        self.words: NDArray[np.object_] = np.array(text.split(), dtype=object)
        weights = 1 / (np.arange(1, len(self.words) + 1) + 2.7)
        self._cumulative: NDArray[np.float64] = np.cumsum(weights) / weights.sum()

    def chosen(self, draws: NDArray[np.float64]) -> NDArray[np.object_]:
        """Return a word for each draw, which is from 0 to 1."""
        places = np.searchsorted(self._cumulative, draws)
        return self.words[np.minimum(places, len(self.words) - 1)]


@cache
def _blocks() -> tuple[Block, Block]:
    grammar, content = _WORDS_FILE.read_text(encoding="ascii").split("\n\n")
    return Block(grammar), Block(content)


def words_by_frequency() -> list[str]:
    grammar, content = _blocks()
    return [*grammar.words.tolist(), *content.words.tolist()]


# The ends of sentences, as `rng.choice` draws them, which takes longer than all the rest of a short prompt.
_MARKS = (".", "?", "!", ".\n\n")
_MARK_SHARES = np.cumsum([0.8, 0.06, 0.03, 0.11])
_MARK_SHARES /= _MARK_SHARES[-1]


def prose(rng: np.random.Generator, word_count: int) -> str:
    """Return `word_count` words in sentences and paragraphs. ASCII: a cut between tokens splits no character."""
    words = _drawn(rng, word_count)
    numbers = np.flatnonzero(rng.random(word_count) < 0.02).tolist()
    for i, exponent in zip(numbers, rng.uniform(0, 4, len(numbers)).tolist(), strict=True):
        words[i] = str(int(10**exponent))
    for i in np.flatnonzero(rng.random(word_count) < 0.07).tolist():
        words[i] += ","
    ends = np.cumsum(rng.integers(4, 25, size=word_count // 4 + 1)).tolist()
    marks = _MARK_SHARES.searchsorted(rng.random(len(ends)), side="right").tolist()
    start = 0
    for end, mark in zip(ends, marks, strict=True):
        if start >= word_count:
            break
        words[start] = words[start].capitalize()
        if end <= word_count:
            words[end - 1] = words[end - 1].rstrip(",") + _MARKS[mark]
        start = end
    return " ".join(words).replace("\n ", "\n")


def _drawn(rng: np.random.Generator, count: int) -> list[str]:
    """Return words by their frequency, of grammar and of content."""
    grammar, content = _blocks()
    is_grammar = rng.random(count) < 0.6
    is_grammar[1:] &= ~is_grammar[:-1]  # seldom 'the of the'
    of_grammar = rng.random(count)
    of_content = rng.random(count)
    words = np.empty(count, dtype=object)
    words[is_grammar] = grammar.chosen(of_grammar[is_grammar])
    words[~is_grammar] = content.chosen(of_content[~is_grammar])
    drawn: list[str] = words.tolist()
    return drawn


@cache
def _opening_order(seed: int) -> list[str]:
    words = _blocks()[1].words
    order: list[str] = words[
        np.random.default_rng([seed, 0]).permutation(len(words))
    ].tolist()
    return order


def opening(seed: int, index: int) -> str:
    """Return the first two words of prompt `index`. No two indices share them, so that no prompt finds the start of
    another in the server's prefix cache; the first thousand differ in the first word."""
    order = _opening_order(seed)
    round_, place = divmod(index, len(order))
    return f"{order[place].capitalize()} {order[(place + 1 + round_) % len(order)]}"
