"""An offline load: everything is handed to the engine's own process at once, with no server in between."""

from typing import Annotated, Any, Literal

import msgspec

from dyno.facts.spread import Distribution, Spread
from dyno.option import Option

# throughput: all prompts at once. latency: one batch, again and again. micro: prompt processing or token generation
# of a single request, as llama-bench does.
OfflineKind = Literal["throughput", "latency", "micro"]


class OfflineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Annotated[OfflineKind, Option(help="the procedure")]
    batch_size: Annotated[  # latency; None: 8, as vLLM does
        int | None,
        Option("--batch-size", "N", "requests per batch", least=1, most=10_000_000),
    ] = None
    # Measured ones; micro: repetitions of each test. None: as the procedure does.
    iterations: Annotated[
        int | None,
        Option(
            "--num-iters",
            "N",
            "measured iterations",
            least=1,
            most=10_000_000,
            subject=False,
        ),
    ] = None
    warmup_iterations: Annotated[
        int | None,
        Option(
            "--num-iters-warmup",
            "N",
            "unmeasured iterations before them",
            least=0,
            subject=False,
        ),
    ] = None
    depth: Annotated[
        int | None,
        Option(
            "",
            None,
            "micro: tokens in the context before the test",
            least=0,
            most=100_000_000,
        ),
    ] = None
    timeout_s: Annotated[  # of one iteration
        float,
        Option(
            "--iteration-timeout-sec",
            "S",
            "fail iterations that take longer",
            above=0,
            most=1e8,
            identity=False,
        ),
    ] = 6 * 3600
    detokenize: Annotated[
        bool,
        Option(
            "--disable-detokenize",
            help="don't convert tokens to text (study: detokenize = false)",
        ),
    ] = True
    sequences: Annotated[
        int,
        Option(
            "--n",
            "N",
            "sequences per prompt, with vLLM; of a beam search its width",
            least=1,
            most=10_000,
        ),
    ] = 1
    beam_search: Annotated[
        bool,
        Option(
            "--use-beam-search", help="latency, with vLLM: search by beams of --n sequences"
        ),
    ] = False
    prequeue: Annotated[
        bool,
        Option(
            "--prequeue-requests",
            help="throughput, with vLLM: queue all prompts before the engine may begin",
        ),
    ] = False
    lora_path: Annotated[
        str | None,
        Option(
            "--lora-path",
            "PATH|NAME",
            "throughput, with vLLM and its --enable-lora: adapter of all prompts, loaded --max-loras times",
        ),
    ] = None
    by: Annotated[
        str | None,
        Option(
            help="micro with llama.cpp: llama-bench, or timers (the server's own) (default: llama-bench)"
        ),
    ] = None


# What only some workers can do: EngineKind.offline_options.
OPTIONS = ("sequences", "beam_search", "prequeue", "lora_path")


class Batch(msgspec.Struct, frozen=True):
    """Requirements of an offline trial on its engine."""

    kind: OfflineKind
    requests: int  # worked on at once
    tokens: int  # prompt and output of the longest
    depth: int = 0
    by: str | None = None  # micro: llama-bench or timers


class Answer(msgspec.Struct):
    """One request of an iteration, as the engine reports it. Times are nanoseconds since the iteration began."""

    prompt_tokens: int
    output_tokens: int  # really produced
    wanted_tokens: int
    cached_tokens: int | None = None  # of the prompt: not processed again
    start_ns: int | None = None  # the engine took it up
    first_ns: int | None = None  # its first token was there: the prompt is processed
    end_ns: int | None = None  # its last
    # produced from first_ns to end_ns: all but the first, where the prompt gave that one
    decoded_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None  # None: completed


class ReplicaPart(msgspec.Struct):
    """One replica's part of an iteration."""

    start_ns: int
    end_ns: int
    requests: int  # its answers follow those of the replicas before it


class Iteration(msgspec.Struct):
    index: int  # from 0, the warm-ups first
    start_ns: int  # on the machine's monotonic clock
    end_ns: int
    answers: Annotated[
        list[Answer], "requests: tokens, and times in ns since the iteration began"
    ]
    warmup: Annotated[bool, "not measured"] = False
    others_cpu: Annotated[
        float | None, "cores used by other processes than dyno and the engine"
    ] = None
    drafts: Annotated[int | None, "number of drafts"] = None
    drafted_tokens: Annotated[int | None, "drafted tokens (speculative decoding)"] = None
    accepted_tokens: Annotated[int | None, "accepted drafted tokens"] = None
    reported: Annotated[
        dict[str, Any], "llama-bench's report about itself and the test"
    ] = msgspec.field(default_factory=dict, name="told")
    parts: Annotated[
        list[ReplicaPart],
        "begin, end and requests of each replica, where there are several",
    ] = []


class Speculation(msgspec.Struct, frozen=True):
    drafts: int | None  # None: the engine counts tokens alone
    drafted_tokens: int
    accepted_tokens: int

    @property
    def acceptance(self) -> float:
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def tokens_per_step(self) -> float | None:
        """Return the mean acceptance length: what is accepted of a draft, and the model's own token."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None


class ReplicaFigures(msgspec.Struct, frozen=True):
    """One of several replicas, over its own times."""

    index: int
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    duration_s: float  # the sum over its iterations
    output_throughput: Spread
    total_token_throughput: Spread
    late_ms: float  # the most that it began after the first one


class OfflineSummary(msgspec.Struct, frozen=True):
    """Figures over the measured iterations, without warm-ups."""

    kind: OfflineKind
    iterations: int
    requests: int  # of one iteration
    # the sum over the iterations: of replicas, from the first begin to the last end
    duration_s: float
    completed: int
    failed: int
    failure_example: str | None
    input_tokens: int
    cached_input_tokens: int | None
    output_tokens: int
    wanted_output_tokens: int
    latency: Distribution  # of an iteration
    first_latency_ms: float  # of the first one
    request_throughput: Spread
    output_throughput: Spread
    total_token_throughput: Spread  # of prompts and outputs
    # Of a request, mean over those of an iteration; None: not reported.
    prefill_ms: Spread | None = None  # from taken up to the first token
    decode_ms: Spread | None = None  # from the first token to the last
    tpot_ms: Spread | None = None  # decode for each token but the first
    # Tokens divided by the time in which at least one request was in that phase.
    prefill_speed: Spread | None = None
    decode_speed: Spread | None = None
    in_flight_mean: float | None = None  # requests worked on at once
    context_mean: float = 0.0  # tokens in a request's context while it decodes
    decoded_tokens: int = 0  # after the first of each request
    speculation: Speculation | None = None
    # the one figure of a list: output tokens/s; of a micro test its own, if known
    speed: float | None = None
    replicas: list[ReplicaFigures] = []  # where there are several
