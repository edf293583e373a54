"""Whose count of a request's tokens is used: the server's, where it fits what came."""

from collections.abc import Callable

from dyno.facts.record import Record, TokensBy
from dyno.facts.trial import TrialSpec
from dyno.measure import timing

CLAIM_MAX = 2**53  # larger numbers lose digits
SAMPLED = 50  # answers whose text is counted too, though nothing about them is odd
_SLACK = 1.02
_FEW = 16
# Of a prompt: tokenizers and chat templates differ, but not by more.
_PROMPT_TIMES = 16
_PROMPT_MORE = 16_384
# In extra_body: how long answers may be isn't what the workload says then.
_LENGTHS = {
    "max_tokens",
    "max_completion_tokens",
    "max_new_tokens",
    "n_predict",
    "min_tokens",
    "n",
    "best_of",
}


def length_is_known(trial: TrialSpec) -> bool:
    """Return whether it is known how many tokens each request asks for at most."""
    return not _LENGTHS & trial.extra_body.keys()


class Counting:
    """Settles the counts of a run's records, one by one. `count`: the tokens of a text, or None; `sampling`: also of
    some answers that look right."""

    def __init__(
        self, count: Callable[[str], int | None] | None, length_known: bool, sampling: bool
    ) -> None:
        self._count = count
        self._length_known = length_known
        self._count_at_will = count if sampling else None
        self._samples = SAMPLED if count is not None and sampling else 0

    def settle(self, r: Record) -> None:
        claim = None if r.output_tokens is None else _bounded(r.output_tokens)
        r.output_tokens = claim
        r.prompt_tokens = None if r.prompt_tokens is None else _bounded(r.prompt_tokens)
        r.cached_tokens = None if r.cached_tokens is None else _bounded(r.cached_tokens)
        self._settle_output(r, claim)
        r.first_tokens = self._first_tokens(r)
        r.reasoning_tokens = _reasoning_tokens(r)

    def _settle_output(self, r: Record, claim: int | None) -> None:
        if r.error is not None:
            r.chunk_tokens = None
            return
        if r.results is not None:
            r.output_tokens = 0
            return
        if claim is None or not self._possible(r, claim):
            r.output_tokens, r.tokens_by = self._counted(r)
            r.tokens_other = claim
            r.chunk_tokens = r.first_tokens = None
            return
        if r.chunk_tokens and (min(r.chunk_tokens) < 0 or sum(r.chunk_tokens) > claim):
            r.chunk_tokens = None
        odd = claim > _most(r) or 2 * claim + _FEW < len(r.chunk_ns)
        if odd or self._samples > 0:
            self._samples -= not odd
            counted, by = self._counted(r)
            if by == "tokenizer":
                counted += len(r.silent)  # those have no text
            r.tokens_other = counted

    def _first_tokens(self, r: Record) -> int | None:
        """Return the tokens up to the end of the first chunk, where they are known: by the server, by events of a
        token each, by the tokenizer."""
        if r.error is not None or not r.chunk_ns or not r.output_tokens:
            return None
        least, most = timing.possible_first_tokens(r)
        if r.first_tokens is not None and 1 <= r.first_tokens <= most:
            return r.first_tokens
        if least == most or self._count_at_will is None or not r.first_chars:
            return most if least == most else None
        counted = self._count_at_will(r.text[: r.first_chars])
        return (
            None if counted is None else min(max(counted + r.leading_chunks, least), most)
        )

    def _possible(self, r: Record, claim: int) -> bool:
        if claim <= len(r.chunk_ns) + r.empty_chunks + 1:
            return claim >= 0
        if self._length_known:
            return claim <= _SLACK * r.output_tokens_wanted + 1
        return claim <= 2 * _most(r) + _FEW

    def _counted(self, r: Record) -> tuple[int, TokensBy]:
        tokens = self._count(r.text) if self._count is not None else None
        return (len(r.chunk_ns), "chunks") if tokens is None else (tokens, "tokenizer")


def _reasoning_tokens(r: Record) -> int | None:
    """Return the server's count, where it is possible; else the share that chunks give."""
    claim = r.reasoning_tokens
    tokens = r.output_tokens or 0
    if claim is not None:
        no_reasoning = claim == 0 and not r.reasoning
        if no_reasoning or 0 < claim <= tokens:
            return claim
    if not r.reasoning or r.error is not None:
        return None
    begin = r.answer_from
    came_first = begin is None or begin == r.reasoning_chunks  # and whole
    if r.chunk_tokens and came_first:
        return sum(r.chunk_tokens[:begin])
    if not r.chunk_ns:
        return 0
    return round(tokens * r.reasoning_chunks / len(r.chunk_ns))


def prompt_is_odd(r: Record) -> bool:
    """Return whether the server's count of prompt tokens is impossible."""
    most = _PROMPT_TIMES * r.prompt_tokens_planned + _PROMPT_MORE * (1 + r.media)
    prompt = r.prompt_tokens
    cached = r.cached_tokens
    if prompt is not None and not 0 <= prompt <= most:
        return True
    return cached is not None and not 0 <= cached <= (most if prompt is None else prompt)


def input_tokens(r: Record) -> int:
    """Return its prompt tokens by the server, else by the workload's tokenizer."""
    return (
        r.prompt_tokens_planned
        if r.prompt_tokens is None or prompt_is_odd(r)
        else r.prompt_tokens
    )


def differ(claimed: int, counted: int) -> bool:
    """Return whether two counts differ by more than two tokenizers do."""
    low, high = sorted((claimed, counted))
    return high > 1.5 * low + _FEW


def _most(r: Record) -> int:
    """Return the most tokens that its text can hold: each has a byte, or an event of its own without text."""
    return len(r.text.encode("utf-8", "replace")) + len(r.chunk_ns) + r.empty_chunks + 1


def _bounded(claim: int) -> int:
    return max(min(claim, CLAIM_MAX), -CLAIM_MAX)
