"""What `vllm bench forward --output-json` writes: the model's forward pass of exact batches, timed by vLLM."""

import msgspec


class ForwardRequest(msgspec.Struct, frozen=True):
    query_len: int  # tokens that this pass calculates
    kv_len: int  # these and all before them
    num_draft_tokens: int = 0


class ForwardCase(msgspec.Struct, frozen=True):
    case: str
    requests: list[ForwardRequest]
    median_us: float

    @property
    def decodes(self) -> bool:
        """Return whether it is a step of decoding, without drafted tokens."""
        return bool(self.requests) and all(
            r.query_len == 1 and r.kv_len > 1 and not r.num_draft_tokens
            for r in self.requests
        )

    @property
    def prefills(self) -> bool:
        """Return whether it is one prompt."""
        return (
            len(self.requests) == 1 and self.requests[0].query_len > 1 and not self.drafts
        )

    @property
    def drafts(self) -> bool:
        return any(r.num_draft_tokens for r in self.requests)

    @property
    def context(self) -> float:
        """Return the mean number of tokens of a request."""
        return sum(r.kv_len for r in self.requests) / len(self.requests)
