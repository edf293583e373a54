"""A record: the facts of one request, decoded. Times are nanoseconds since the load began.

Numbers are functions of records (measure/timing.py) and are not stored beside them.
"""

from typing import Literal

import msgspec

# usage: the server said so. tokenizer: its text was tokenized here. chunks: one token a chunk was assumed.
TokensBy = Literal["usage", "tokenizer", "chunks"]


class Record(msgspec.Struct):
    index: int  # of the request in its workload
    due_ns: int  # when the plan wanted it sent; in a closed loop, when its slot became free
    sent_ns: int  # just before its first byte went to the socket
    end_ns: int  # when the exchange was over
    prompt_tokens_planned: int
    output_tokens_wanted: int
    connecting_ns: int = 0  # from due to sent, spent on opening a connection for it
    resent: bool = False  # the server closed a kept connection as the request came; this is the second sending
    replica: int = 0  # which of the target's URLs it went to
    status: int = 0  # HTTP; 0: no response
    chunk_ns: list[int] = []  # arrival of each event that carried text or reasoning text, or after it a token without
    chunk_tokens: list[int] | None = None  # tokens in each, where the server tells
    empty_chunks: int = 0  # events with a choice that carried no token (a role, say)
    late_ns_max: int = 0  # the latest read: read time minus the kernel's receive stamp
    late_ns_sum: int = 0
    reads: int = 0
    unseen: list[int] = []  # chunks that a late read found together with later bytes. The kernel stamps only the last
    # of these, so chunk_ns is the latest moment at which such a chunk can have arrived …
    unseen_since_ns: list[int] = []  # … and this, beside each, the earliest
    unstamped: int = 0  # reads timed by dyno's own clock, because the wall clock was set while they came
    prompt_tokens: int | None = None  # as the server counted
    cached_tokens: int | None = None  # of the prompt, found in the server's prefix cache
    output_tokens: int | None = None
    tokens_by: TokensBy | None = None
    tokens_other: int | None = None  # the count that isn't used: the server's, where that can't be; else dyno's own
    reasoning: bool = False  # some of the text came as reasoning
    text: str = ""
    finish_reason: str | None = None
    done: bool = False  # the stream's own end mark was seen
    model: str | None = None  # the name the answer carries
    error: str | None = None  # the kind of failure; None: completed
    error_detail: str = ""
