"""Latencies: each a function of one record. METHOD.md has the definitions in words."""

from dyno.facts.record import Record


def ttft_ns(r: Record) -> int | None:
    """None too where the first chunk's arrival is not known."""
    return r.chunk_ns[0] - r.sent_ns if r.chunk_ns and r.unseen[:1] != [0] else None


def e2el_ns(r: Record) -> int | None:
    return r.chunk_ns[-1] - r.sent_ns if r.chunk_ns else None


def tpot_ns(r: Record) -> float | None:
    if not r.chunk_ns or not r.output_tokens or r.output_tokens < 2:
        return None
    return (r.chunk_ns[-1] - r.chunk_ns[0]) / (r.output_tokens - 1)


def queue_ns(r: Record) -> int:
    return r.sent_ns - r.due_ns


def end_at_once(r: Record) -> bool:
    return r.error is None and not r.chunk_ns  # with more tokens than one, decoding calls it failed
