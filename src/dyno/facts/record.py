"""A record: the facts of one request, decoded, and those of the client. Times are nanoseconds since the load began.

Numbers are functions of records (measure/timing.py) and are not stored beside them.
"""

from typing import Annotated, Literal

import msgspec

from dyno.facts.clock import NodeClock

# usage: reported by the server. tokenizer: dyno tokenized the text. chunks: one token per chunk is assumed.
TokensBy = Literal["usage", "tokenizer", "chunks"]

# as an error: the client cancelled the request, as planned. It is not a failure
CANCELLED = "cancelled"
INTERRUPTED = "interrupted"  # likewise: dyno was stopped while it ran
# As an error: the server gave the answer up and says so by its finish reason. abort and error are vLLM's, SGLang's and
# LMDeploy's; cancelled and timeout TensorRT-LLM's; the last DeepSeek's. A content filter does what it is there for, and
# vLLM's repetition is an end that the request asked for: both are ends like any other.
ABORTED = "aborted"
ABORTS = frozenset(
    (
        "abort",
        "aborted",
        "error",
        "cancelled",
        "canceled",
        "timeout",
        "insufficient_system_resource",
    )
)
# Errors by dyno's own fault: a limit of its machine, a process of its that was killed. The server did nothing wrong.
OWN_FAULTS = ("client", "lost")


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool in an answer, as the server wrote it."""

    name: str
    arguments: str  # JSON, if the model wrote such


class Record(msgspec.Struct):
    index: int  # of the request in its workload
    # in a closed loop, when its slot became free
    due_ns: Annotated[int, "planned send time"]
    sent_ns: Annotated[int, "actual send time, just before the first byte"]
    end_ns: int  # when the exchange was over
    prompt_tokens_planned: Annotated[int, "by the workload's tokenizer"]
    output_tokens_wanted: Annotated[int, "maximum number of output tokens requested"]
    connecting_ns: Annotated[
        int, "part of due to sent that was spent opening a connection"
    ] = 0
    # the server closed a kept connection as the request came; this is the second sending
    resent: bool = False
    replica: Annotated[int, "index of the URL"] = 0
    session: Annotated[int | None, "number of the session; null: a single request"] = None
    turn: Annotated[int, "requests of the session that had to end before it, in a row"] = 0
    group: Annotated[str, "class of traffic"] = ""
    status: Annotated[int, "HTTP status; 0: no response"] = 0
    # arrival of each event that carried text or reasoning text, or after it a token without
    chunk_ns: Annotated[list[int], "arrival of each chunk"] = []
    chunk_tokens: Annotated[
        list[int] | None, "tokens in each chunk, where the server reports it"
    ] = None
    silent: Annotated[
        list[int], "chunks (from 0) without text: special tokens, parts of a character"
    ] = []
    empty_chunks: Annotated[int, "events without tokens"] = (
        0  # with a choice, before the first chunk (a role, say), or that carried no token
    )
    answered_ns: Annotated[
        int | None, "arrival of the last byte of an answer in one piece; null: a stream"
    ] = None
    leading_chunks: Annotated[
        int, "events without text before the first text of an answer, without the role"
    ] = 0
    first_chars: Annotated[int, "characters of text in the first chunk"] = 0
    first_tokens: Annotated[
        int | None,
        "output tokens up to the end of the first chunk; null: not known exactly",
    ] = None
    late_ns_max: Annotated[int, "largest delay between kernel stamp and read"] = 0
    late_ns_sum: Annotated[int, "sum of these delays over all reads"] = 0
    reads: Annotated[int, "reads from the socket"] = 0
    # A late read found these together with later bytes, of which the kernel stamps only the last.
    unseen: Annotated[
        list[int],
        "chunks (from 0) that dyno read late: they arrived at chunk_ns or earlier",
    ] = []
    unseen_since_ns: Annotated[list[int], "earliest possible arrival of each of these"] = []
    unstamped: Annotated[
        int, "reads timed by dyno's clock because the wall clock was changed"
    ] = 0
    prompt_tokens: Annotated[int | None, "as counted by the server"] = None
    cached_tokens: Annotated[int | None, "prompt tokens from the server's prefix cache"] = (
        None
    )
    output_tokens: Annotated[int | None, "see tokens_by"] = None
    tokens_by: TokensBy | None = None
    # the count that isn't used: the server's, where that can't be; else dyno's own
    tokens_other: int | None = None
    server_queue_ns: Annotated[
        int | None, "time in the server's queue, as the server reports it with the answer"
    ] = None
    server_prefill_ns: Annotated[
        int | None, "time from the queue's end to the first token, as the server reports it"
    ] = None
    server_decode_ns: Annotated[
        int | None, "time from the first token to the last, as the server reports it"
    ] = None
    server_work_ns: Annotated[
        int | None,
        "time from the queue's end to the last token, where the server reports no more than that",
    ] = None
    reasoning: bool = False  # some of the text came as reasoning
    answer_from: Annotated[
        int | None, "first chunk (from 0) with text of the answer, where there is reasoning"
    ] = None
    reasoning_chunks: Annotated[int, "chunks that carried reasoning alone"] = 0
    reasoning_tokens: Annotated[
        int | None, "output tokens that are reasoning; null: none known"
    ] = None
    media: Annotated[int, "images, sounds and videos in the request"] = 0
    media_tokens: Annotated[
        int | None, "their tokens by the model's rule; null: none known"
    ] = None
    audio_s: Annotated[float, "length of the sounds in the request"] = 0.0
    text: str = ""
    calls: Annotated[list[ToolCall], "tool calls in the answer"] = []
    results: Annotated[int | None, "vectors or scores in an answer without text"] = None
    finish_reason: Annotated[str | None, "stop, length, …"] = None
    done: Annotated[bool, "the stream's end mark arrived"] = False
    model: Annotated[str | None, "model name in the answer"] = None
    error: Annotated[str | None, "kind of failure; null: completed"] = None
    error_detail: Annotated[str, "message from the server"] = ""


class ClientFacts(msgspec.Struct, frozen=True):
    start_ns: int  # the zero of every record's times, on this machine's monotonic clock
    end_ns: int
    # 'complete', 'interrupted', 'server gone' or 'all failed'; of one process also 'lost'
    outcome: str
    planned: int
    sent: int
    cpu_s: float  # of the process on the wire, while the load ran
    reads: int
    ticks_late_ns: list[int]  # how late the loop came to each of its ticks, ten a second
    kernel_stamps: bool  # times are the kernel's receive stamps, else those of the reads
    # of the wire while the load ran: SCHED_RR 1, slice 0.1 ms, core 7; '': as any process
    priority: str = ""
    # requests not sent because an earlier one of their session failed or was cancelled
    skipped: int = 0
    # the wire was ready to run and had no core; None: this system doesn't count it
    waited_s: float | None = None
    # cores kept busy by others than dyno and its engine, on average; None: not known
    others_cpu: float | None = None

    # over the network to an engine on another machine: before the load, after it
    round_trips_ns: list[int] = []

    # Requests on connections on which the server sent more than requested: the owner of these answers is unknown.
    unasked: list[int] = []
    # Where several share the load: each one's own, with its slice's numbers of requests. Empty: there is one.
    processes: list["ClientFacts"] = []
    node: str = ""  # address of the machine that it ran on; '': this one
    clock: NodeClock | None = None  # of that machine. start_ns and end_ns are on this one's

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns
