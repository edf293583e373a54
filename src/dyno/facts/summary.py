"""A summary: numbers derived from records, each named by its definition (METHOD.md)."""

from typing import Annotated, Any, NamedTuple

import msgspec

from dyno.facts.clock import NodeClock
from dyno.facts.find import FindAnswer
from dyno.facts.finding import Finding, Verdict
from dyno.facts.metric import OUTPUTS, STEMS, Metric
from dyno.facts.offline import OfflineSummary
from dyno.facts.quality import QualitySummary
from dyno.facts.rig import Roofline
from dyno.facts.spread import Distribution, Latency
from dyno.facts.structured import StructuredSummary
from dyno.facts.telemetry import TelemetrySummary

# figures of answers that have text
OF_TEXT = ("total_output_tokens", "output_throughput", "peak_output_throughput")


class Speed(NamedTuple):
    """What a server puts out each second."""

    metric: str
    value: float | None


class Steady(msgspec.Struct, frozen=True):
    """The steady window: from the first response's end to the last request's sending."""

    start_s: float
    end_s: float
    # None: too many chunks at its edges were not seen to arrive
    request_throughput: float | None
    output_throughput: float | None
    streams_mean: float  # requests in flight, over the window


class Wait(msgspec.Struct, frozen=True):
    """How long requests took from due to their last token, for those due first and last: does a queue grow?"""

    offered_rps: float
    span_s: float  # from the first due to the last
    first_median_ms: float
    first_p75_ms: float
    last_p25_ms: float
    last_median_ms: float


class ReplaySummary(msgspec.Struct, frozen=True):
    """How well recorded times were kept: sent minus due, whatever the reason."""

    recorded_rps: Annotated[
        float, "requests/s by the recorded times, at the speed of the replay"
    ]
    sent_rps: Annotated[float, "requests/s as sent"]
    late_mean_ms: Annotated[float, "mean delay from the recorded time to sending"]
    late_p99_ms: Annotated[float, "99th percentile of it"]
    late_max_ms: Annotated[float, "longest of it"]


class Freeze(msgspec.Struct, frozen=True):
    """Requests were under way, and every stream was silent, far longer than its gaps."""

    at_s: float  # since the load began
    length_s: float


class Unfrozen(msgspec.Struct, frozen=True):
    """The figures of a run with its freezes taken out of the time."""

    duration_s: float
    request_throughput: float
    output_throughput: float
    ttft: Latency
    tpot: Latency
    itl: Latency
    e2el: Latency


class ReplicaSummary(msgspec.Struct, frozen=True):
    """Figures of one copy of the server."""

    index: int  # of its URL in the target's
    sent: int
    completed: int
    failed: int
    output_tokens: int
    ttft_mean_ms: float | None  # None: no sample
    tpot_mean_ms: float | None


class ClientSummary(msgspec.Struct, frozen=True):
    """How well the client kept up."""

    kernel_stamps: bool
    # of one core, by the busiest process; None: the load was too short to say
    cpu_share: float | None
    send_late: Distribution  # sent minus due, where only the client caused the delay
    read_late_mean_ms: float
    read_late_max_ms: float
    # of chunks, without the last of each answer: known only to have arrived between two times
    unseen_share: float
    loop_late_p99_ms: float
    streams_mean: float
    streams_peak: int
    # cores kept busy by others than dyno and the engine that it started
    others_cpu: float | None = None
    priority: str = ""  # of the wire: SCHED_RR 1, slice 0.1 ms, core 7; '': as any process
    unseen_first: int = 0  # completed requests whose first chunk is unseen
    # reads timed by dyno's own clock, because the wall clock was set meanwhile
    unstamped: int = 0
    # of the load: the client was ready to run and had no core; None: not counted
    waited_share: float | None = None
    lost: bool = False  # the process ended before its load was over
    node: str = ""  # address of the machine that it ran on; '': this one
    clock: NodeClock | None = None  # of that machine
    processes: list[
        "ClientSummary"
    ] = []  # where several share the load; above are then all requests, the worst process


class Counts(msgspec.Struct, frozen=True):
    """Answers whose tokens the server and dyno count differently."""

    requests: int
    claimed: int  # output tokens, by the server
    counted: int  # … by dyno


class CancelSummary(msgspec.Struct, frozen=True):
    """What became of the requests that the client cancelled as planned."""

    received_tokens: Annotated[int, "output tokens that arrived before the cancelling"]
    missing_tokens: Annotated[
        int, "output tokens that the cancelled requests would still have had, at most"
    ]
    delivered_tokens: Annotated[
        int, "output tokens of all requests, failed and cancelled ones included"
    ]
    # None: the server has no counter
    generated_tokens: Annotated[int | None, "the same by the server's own counter"] = None

    @property
    def undelivered_tokens(self) -> int | None:
        """Return the output tokens that the server generated for clients that had gone."""
        return (
            None
            if self.generated_tokens is None
            else max(self.generated_tokens - self.delivered_tokens, 0)
        )


class ReuseSummary(msgspec.Struct, frozen=True):
    """Prompt tokens of completed requests that a prefix cache without limit could have had."""

    prompt_tokens: Annotated[int, "prompt tokens of completed requests"]
    possible_tokens: Annotated[
        int,
        "of these, at the start of an earlier request answered before this one was sent",
    ]
    own_tokens: Annotated[int, "of these, in the history of the same session"]
    most_tokens: Annotated[
        int, "prompt tokens at the start of any earlier request, answered or not"
    ]
    block_tokens: Annotated[int, "size of the blocks in which a cache holds prompts"]

    @property
    def possible_share(self) -> float:
        """Return the share from requests answered before. An engine that shares running prompts can have more."""
        return self.possible_tokens / max(self.prompt_tokens, 1)

    @property
    def most_share(self) -> float:
        return self.most_tokens / max(self.prompt_tokens, 1)


class TurnSummary(msgspec.Struct, frozen=True):
    """The completed requests at one place in their sessions."""

    turn: int  # counted from 1
    completed: int
    input_tokens_mean: float
    ttft: Latency


class SessionSummary(msgspec.Struct, frozen=True):
    """Figures of sessions: of conversations or agents. Latencies are those of completed sessions and requests."""

    begun: Annotated[int, "sessions; completed + failed + cancelled + unfinished"]
    completed: Annotated[int, "sessions whose requests all completed"]
    failed: Annotated[int, "sessions with a failed request; the rest of it was skipped"]
    cancelled: Annotated[
        int, "sessions with a request that the client cancelled; the rest of it was skipped"
    ]
    unfinished: Annotated[int, "sessions cut off by the end of the load"]
    throughput: Annotated[float, "completed sessions/s over the whole run"]
    turn_throughput: Annotated[float, "completed requests/s of all sessions"]
    turns_mean: Annotated[float, "requests of a completed session"]
    session: Latency  # from sending its first request to the last token of its last
    # of this, the time in which a request was open: without think and tool times
    session_busy: Latency
    first_turn_ttft: Latency
    later_turn_ttft: Latency
    first_turn_e2el: Latency
    later_turn_e2el: Latency
    turns: Annotated[list[TurnSummary], "figures by place in the session"] = []

    @property
    def latencies(self) -> dict[str, Latency]:
        """Return the latencies by their stems (facts/metric.py)."""
        names = (
            "session",
            "session_busy",
            "first_turn_ttft",
            "later_turn_ttft",
            "first_turn_e2el",
            "later_turn_e2el",
        )
        return {name: getattr(self, name) for name in names}


class ProbeSummary(msgspec.Struct, frozen=True):
    """Requests of one token beside the load, on connections of their own. They are in no other figure."""

    completed: int
    failed: int
    e2el: Latency  # with its p99 and its maximum, p100


class ClassSummary(msgspec.Struct, frozen=True):
    """Figures of one class of traffic."""

    name: str
    sent: int  # completed + failed + cancelled
    completed: int
    failed: int
    cancelled: int
    input_tokens: int
    output_tokens: int
    request_throughput: float
    output_throughput: float
    # by the limits of the class; None: no limits, or a busy client doesn't know
    goodput: float | None
    ttft: Latency
    tpot: Latency
    e2el: Latency
    # where goodput is unknown though there are limits
    goodput_bounds: tuple[float, float] | None = None


class MediaSummary(msgspec.Struct, frozen=True):
    """Images, sounds and videos of completed requests."""

    items: Annotated[int, "images, sounds and videos of completed requests"]
    requests: Annotated[int, "completed requests that have some"]
    item_throughput: Annotated[float, "images, sounds and videos per second"]
    text_tokens: Annotated[
        int | None, "prompt tokens of these requests without them, as planned"
    ]
    prompt_tokens: Annotated[
        int | None, "prompt tokens of these requests, by the server; null: not reported"
    ]
    ruled_tokens: Annotated[
        int | None, "tokens of the media by the model's rule; null: unknown"
    ]
    audio_s: Annotated[float, "seconds of sound"] = 0.0
    rtfx: Annotated[float | None, "seconds of sound per second"] = None
    rule: Annotated[str, "name of the rule; empty: unknown"] = ""
    template_tokens: Annotated[
        int | None, "prompt tokens that the chat template adds to a text"
    ] = None

    @property
    def media_tokens(self) -> int | None:
        """Return the tokens of the media, by the server's count of whole prompts."""
        if self.prompt_tokens is None or self.text_tokens is None or not self.prompt_tokens:
            return None
        added = self.requests * (self.template_tokens or 0)
        return self.prompt_tokens - self.text_tokens - added


class MediaFacts(msgspec.Struct, frozen=True):
    """What is known before the load of how a server counts media."""

    rule: str  # '': unknown
    template_tokens: int | None  # that a chat template adds to a text; None: not measured


class Summary(msgspec.Struct, frozen=True):
    duration_s: Annotated[
        float, "from the start of the load to the end of the last response"
    ]
    planned: Annotated[int, "planned requests"]
    sent: Annotated[int, "requests"]
    completed: Annotated[int, "requests"]
    failed: Annotated[int, "requests; completed + failed + cancelled = sent"]
    failures: Annotated[dict[str, int], "requests by kind of failure"]
    failure_examples: Annotated[
        dict[str, str], "example of the server's message, by kind of failure"
    ]
    outcome: Annotated[str, "complete, interrupted, server gone"]
    end_at_once: Annotated[int, "completed requests whose only token is the end token"]
    resent: Annotated[int, "sent again after the server closed a kept connection"]
    total_input_tokens: Annotated[int, "of completed requests"]
    total_output_tokens: Annotated[int, "of completed requests"]
    wanted_output_tokens: Annotated[int, "output tokens requested by completed requests"]
    planned_input_tokens: Annotated[
        int, "of completed requests, by the workload's tokenizer"
    ]
    cached_input_tokens: Annotated[
        int | None, "prompt tokens from the server's prefix cache, where reported"
    ]
    # → requests
    tokens_by: Annotated[
        dict[str, int], "source of output token counts: usage, tokenizer, chunks"
    ]
    chunks: Annotated[int, "events with tokens"]
    empty_chunks: Annotated[int, "events without tokens"]
    reasoning: Annotated[int, "whether, or how many requests, had reasoning text"]
    finish_reasons: Annotated[dict[str, int], "requests by reason"]
    models_answered: Annotated[dict[str, int], "requests by model name in the answer"]
    request_throughput: Annotated[float, "requests/s over the whole run"]
    output_throughput: Annotated[float, "output tokens/s over the whole run"]
    total_token_throughput: Annotated[float, "input and output tokens/s over the whole run"]
    # None: no target, or a busy client doesn't know which requests met it
    goodput: Annotated[float | None, "requests/s that met every --goodput target"]
    # None: not known
    peak_output_tokens_per_s: Annotated[
        float | None, "highest output tokens in a whole second"
    ]
    # By stem (facts/metric.py). tpot is vLLM's. Only where they say something: ttfo (there was reasoning), own_tpot
    # (vLLM's differs), itl_per_token (a chunk has several tokens), itl_text (some have no text).
    latencies: dict[str, Latency]
    steady: Steady | None
    wait: Wait | None  # None: too few requests
    # completed, of several chunks, every one of them seen
    at_once: Annotated[int, "requests whose chunks all arrived together"]
    client: ClientSummary
    structured: StructuredSummary | None = None  # where requests prescribe a form
    media: MediaSummary | None = None  # where requests have images, sounds or videos
    whole: Annotated[int, "completed requests whose answer came in one piece"] = 0
    results: Annotated[
        int | None, "vectors or scores in completed answers; null: they have text"
    ] = None
    result_throughput: Annotated[float | None, "the same, per second"] = None
    # where there are several
    replicas: Annotated[list[ReplicaSummary], "figures of each copy of the server"] = []
    bounds: Annotated[
        dict[str, tuple[float, float]],
        "bounds of goodput, peak and steady throughput where these are null",
    ] = {}

    # None: no request had reasoning
    reasoning_tokens: Annotated[int | None, "output tokens that are reasoning"] = None
    unanswered: Annotated[int, "completed requests with reasoning and no answer"] = 0

    impossible: Counts | None = None  # what the server says can't be: dyno's count is used
    # the two differ by half or more: the server's count is used
    miscounted: Counts | None = None
    # completed requests whose prompt can't have as many tokens as the server says
    odd_prompts: int = 0
    freezes: Annotated[
        list[Freeze], "times when requests were open and no stream made progress"
    ] = []
    unfrozen: Unfrozen | None = None  # where there are some
    replay: ReplaySummary | None = None  # of a load with recorded times
    cancelled: Annotated[
        int, "requests that the client cancelled, as planned by --cancel-rate"
    ] = 0
    skipped: Annotated[
        int,
        "requests not sent because an earlier one of their session failed or was cancelled",
    ] = 0
    cancelling: CancelSummary | None = None  # where the load cancels requests
    sessions: SessionSummary | None = None  # where requests wait for one another
    classes: Annotated[list[ClassSummary], "figures of each class of traffic"] = []
    reuse: ReuseSummary | None = None  # None: prompts share nothing, or it isn't known
    silent_chunks: Annotated[int, "events without text that may be tokens"] = 0
    leading_chunks: Annotated[
        int, "events without text before the first text of an answer, without the role"
    ] = 0
    probes: ProbeSummary | None = None  # where some were sent: --probe-request-rate
    server_queue_ms: Annotated[
        float | None, "mean time in the server's queue, where each answer reports it"
    ] = None

    @property
    def events(self) -> int:
        """Return the number of events that may be tokens, with or without text."""
        return self.chunks + self.leading_chunks

    @property
    def total_tokens(self) -> int:
        return self.total_input_tokens + self.total_output_tokens

    @property
    def input_throughput(self) -> float | None:
        return self.total_input_tokens / self.duration_s if self.duration_s else None

    def figure(self, metric: Metric) -> float | None:
        """Return the value of a figure that a summary has."""
        value: Any = self
        for name in metric.field.split("."):
            value = None if value is None else getattr(value, name)
        return None if metric.seldom and not value else value

    @property
    def absent(self) -> tuple[str, ...]:
        """Return the figures that answers of this kind don't have."""
        if self.results is not None:
            return OF_TEXT
        return ("peak_output_throughput",) if self.whole else ()

    @property
    def speed(self) -> Speed:
        """Return the throughput: output tokens/s, or vectors and scores/s where answers have no text."""
        if self.results is None:
            return Speed(OUTPUTS[0], self.output_throughput)
        return Speed(OUTPUTS[1], self.result_throughput)

    @property
    def ttft(self) -> Latency:
        return self.latencies["ttft"]

    @property
    def tpot(self) -> Latency:
        """Return vLLM's time per output token."""
        return self.latencies["tpot"]

    @property
    def own_tpot(self) -> Latency | None:
        """Return (last chunk − first chunk) ÷ tokens after the first chunk. None: the same as vLLM's."""
        return self.latencies.get("own_tpot")

    @property
    def true_tpot(self) -> Latency:
        """Return the time per output token by which dyno judges: its own, where vLLM's differs."""
        return self.own_tpot or self.tpot

    @property
    def itl(self) -> Latency:
        """Return the gaps between chunks."""
        return self.latencies["itl"]

    @property
    def e2el(self) -> Latency:
        return self.latencies["e2el"]

    @property
    def figures(self) -> dict[str, Latency]:
        """Return the latencies as rows name them: `tpot` is dyno's own, `vllm_tpot` vLLM's where that differs."""
        both = {"tpot": self.true_tpot} | (
            {"vllm_tpot": self.tpot} if self.own_tpot else {}
        )
        every = self.latencies | both | (self.sessions.latencies if self.sessions else {})
        return {name: every[name] for name in STEMS if name in every}

    @property
    def answer_tokens(self) -> int | None:
        return (
            None
            if self.reasoning_tokens is None
            else self.total_output_tokens - self.reasoning_tokens
        )


class Result(msgspec.Struct, frozen=True):
    """A summary and what is to be thought of it. Never one without the other."""

    summary: Summary | None  # of a serving benchmark
    findings: list[Finding]
    verdict: Verdict
    telemetry: TelemetrySummary | None = None  # None: nothing was sampled
    offline: OfflineSummary | None = None  # of the others
    # None: the model's shape or the machine's peaks aren't known
    roofline: Roofline | None = None
    quality: QualitySummary | None = None  # of the kind quality: then it is all there is
    # of a search: the rest is about the run at the highest load within its target
    find: FindAnswer | None = None

    @property
    def completed(self) -> int:
        """Return the completed requests, or items of a quality test."""
        if self.quality is not None:
            return self.quality.items
        return (self.offline or self.served).completed

    @property
    def duration_s(self) -> float:
        if self.quality is not None:
            return sum(each.duration_s for each in self.quality.passes)
        return (self.offline or self.served).duration_s

    @property
    def served(self) -> Summary:
        """Return the summary, where it is known that a server was measured."""
        assert self.summary is not None
        return self.summary


def reported_share(s: Summary, telemetry: TelemetrySummary | None) -> float | None:
    """Return the share of prompt tokens that the server reports from its prefix cache: by its answers, else by its
    counters."""
    if s.cached_input_tokens is not None:
        return s.cached_input_tokens / max(s.total_input_tokens, 1)
    return (
        telemetry.ratio("prefix_hit_tokens", "prefix_queried_tokens") if telemetry else None
    )
