"""Prefix reuse: which prompt tokens a prefix cache could have had, by the texts that were sent.

Texts are cut into blocks of characters. A block's hash has those before it, so that two prompts share a block only
where all before it is equal. A request of a conversation goes on where the one before ended: no text is read twice.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from dyno.facts.record import Record
from dyno.facts.summary import ReuseSummary
from dyno.measure import counting
from dyno.measure.sums import Summed
from dyno.workload.request import Histories, StoredRequest

BLOCK_TOKENS = 16  # vLLM's default on a GPU
_CHARACTERS = 16  # of a block, about 4 tokens
# of longer workloads, blocks are longer: memory and time stay within bounds
_BLOCKS_MAX = 2_000_000


class _Sent(NamedTuple):
    sent_ns: int
    exchange: int  # its number in the load
    first_ns: float  # from then on others can use its prompt
    end_ns: int
    tokens: int  # of its prompt; 0: not completed
    answer: str  # that a later request repeats
    thought: bool  # the server has more in its cache than the answer


class _Chain(NamedTuple):
    """A text that the cache has, as far as whole blocks go."""

    hash: int = 0
    blocks: int = 0
    rest: str = ""  # the beginning of the next block
    more: str = ""  # text behind it that the cache doesn't have


class _HasHistory(Protocol):
    @property
    def history(self) -> int | None: ...


class ReuseTally(Summed):
    """Collects the requests of a run; `summary()` walks through them in the order in which they were sent."""

    def __init__(
        self,
        planned: Sequence[_HasHistory],
        answers: Histories,
        block_tokens: int | None = None,
    ) -> None:
        self._count = len(planned)
        self._recorded = answers == "recorded"
        self._block_tokens = block_tokens or BLOCK_TOKENS
        self._followed = {request.history for request in planned}
        self._sent: list[_Sent] = []

    def packed(self) -> dict[str, Any]:
        return {"sent": self._sent}

    def add_packed(self, sums: dict[str, Any]) -> None:
        self._sent += map(_Sent._make, sums["sent"])

    def add(self, r: Record) -> None:
        followed = r.index % self._count in self._followed
        first_ns = r.chunk_ns[0] if r.chunk_ns else math.inf
        tokens = counting.input_tokens(r) if r.error is None else 0
        answer = r.text if followed and not self._recorded else ""
        self._sent.append(
            _Sent(r.sent_ns, r.index, first_ns, r.end_ns, tokens, answer, r.reasoning)
        )

    def summary(self, requests: Sequence[StoredRequest]) -> ReuseSummary:
        size = max(_CHARACTERS, sum(len(_text(r)) for r in requests) // _BLOCKS_MAX)
        known: dict[int, float] = {}  # block → from when on the cache has it
        chains: dict[int, _Chain] = {}
        prompt = possible = own = most = 0
        for sent in sorted(self._sent):
            number = sent.exchange % len(requests)
            request = requests[number]
            parent = (
                sent.exchange - number + request.history
                if request.history is not None
                else -1
            )
            before = chains.get(parent, _Chain())
            new, chain = _blocks(before, before.more + _text(request), size)
            in_time = next(
                (i for i, h in enumerate(new) if known.get(h, math.inf) > sent.sent_ns),
                len(new),
            )
            ever = next((i for i, h in enumerate(new) if h not in known), len(new))
            if sent.tokens:
                # tokens of a character
                each = sent.tokens / ((chain.blocks * size + len(chain.rest)) or 1)
                prompt += sent.tokens
                possible += self._tokens(before.blocks + in_time, size, each, sent.tokens)
                own += self._tokens(before.blocks, size, each, sent.tokens)
                most += self._tokens(before.blocks + ever, size, each, sent.tokens)
            for h in new:
                known[h] = min(known.get(h, math.inf), sent.first_ns)
            if number in self._followed:
                chains[sent.exchange] = self._answered(chain, request, sent, known, size)
        return ReuseSummary(prompt, possible, own, most, self._block_tokens)

    def _tokens(self, blocks: int, size: int, each: float, tokens: int) -> int:
        """Return the tokens of so many blocks of text, in whole blocks of the cache. The last token of a prompt is
        always processed."""
        # on average, half a block more is equal
        shared = int((blocks + 0.5) * size * each) if blocks else 0
        return min(shared, tokens - 1) // self._block_tokens * self._block_tokens

    def _answered(
        self,
        chain: _Chain,
        request: StoredRequest,
        sent: _Sent,
        known: dict[int, float],
        size: int,
    ) -> _Chain:
        """Return the chain on which a later request goes on."""
        message = {"role": "assistant", "content": sent.answer}
        if self._recorded or sent.thought:
            return chain._replace(
                more=_message(request.answer or message if self._recorded else message)
            )
        new, chain = _blocks(chain, _message(message), size)
        for h in new:
            known[h] = min(known.get(h, math.inf), sent.end_ns)
        return chain


def _blocks(before: _Chain, text: str, size: int) -> tuple[list[int], _Chain]:
    """Return the hashes of the blocks that the text adds."""
    text, last, new = before.rest + text, before.hash, []
    whole = len(text) - len(text) % size
    for i in range(0, whole, size):
        last = hash((last, text[i : i + size]))
        new.append(last)
    return new, _Chain(last, before.blocks + len(new), text[whole:])


def _text(request: StoredRequest) -> str:
    """Return what it adds to its history."""
    if isinstance(request.prompt, list):
        return "".join(map(chr, request.prompt))
    messages = request.messages or [
        *({"role": role, "content": text} for role, text in request.before),
        {"role": "user", "content": request.prompt},
    ]
    # Adapters share no cache, and tools come first.
    first = (
        [str(request.body.get(name, "")) for name in ("model", "tools")]
        if request.history is None
        else []
    )
    return "".join([*first, *map(_message, messages)])


def _message(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    calls = message.get("tool_calls")
    return f"\n{message.get('role')}\n{text}{msgspec.json.encode(calls).decode() if calls else ''}"
