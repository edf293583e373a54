"""A workload: which prompts, how long, how many tokens wanted; and one request of it."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from dyno.facts.draw import count_problem, problem
from dyno.option import Option


class Request(msgspec.Struct, frozen=True):
    prompt: str | list[int]  # text, or token ids where the server takes them
    prompt_tokens: int  # by the workload's tokenizer, special tokens included
    output_tokens: int  # asked for as the server's max_tokens


class ChatRequest(Request, frozen=True):
    """A request that ends a conversation."""

    before: list[tuple[str, str]] = []  # role and text of each message before the prompt


class Turn(Request, frozen=True):
    """A request of a session: of a conversation, of an agent, or a line of a trace. Its prompt_tokens include its
    history, with answers as long as requested."""

    session: int = 0  # numbered from 0; the requests of a session follow one another in the workload
    after: list[int] = []  # requests of the session (numbers in the workload) that must have ended before
    wait_s: float = 0.0  # from the end of the last of these, or from the start of the session
    history: int | None = None  # the request whose history, messages and answer come before this one's messages
    messages: list[dict[str, Any]] = []  # of its own, in OpenAI's form; empty: the prompt, from the user
    answer: dict[str, Any] | None = None  # the recorded answer, in OpenAI's form
    start_s: float | None = None  # of a session's first request: when it begins by the file; None: the load decides
    group: str = ""  # class of traffic
    body: dict[str, Any] = {}  # more fields of the request: tools, model (a LoRA adapter), priority


class StoredRequest(Turn, frozen=True):
    """Any request, as a run folder has it."""

    before: list[tuple[str, str]] = []


class DatasetTraits(msgspec.Struct, frozen=True):
    """What is known of a dataset by its name. Of a mix it depends on its classes: see WorkloadSpec.traits."""

    about: str = ""  # its prompts, for the documentation
    file: bool = False  # it is read from --dataset-path
    sessions: bool = False  # its requests belong to sessions: a load counts users and sessions/s
    times: bool = False  # it may have times at which its requests or sessions were recorded
    template: bool = False  # vLLM applies the model's chat template to its prompts
    endless: bool = False  # its prompts have no natural end, so the requested length is meant: ignore_eos


# The last one's columns are named by the user.
TRACES = ("mooncake", "azure", "burstgpt", "bailian", "timed_trace")
OUT_OF_ORDER = "rows out of order"  # of a trace

_TRACE = DatasetTraits(file=True, times=True, endless=True)

# All datasets. What generates them is in workload.DATASETS.
TRAITS = {
    "random": DatasetTraits(
        "seeded text, exactly `--random-input-len` tokens; answers have exactly `--random-output-len` (default)",
        endless=True,
    ),
    "prefix_repetition": DatasetTraits(
        "random text behind shared prefixes, as vLLM's: `--prefix-repetition-prefix-len`"
    ),
    "sharegpt": DatasetTraits(
        "ShareGPT's file, first turns, with vLLM's length filter: found, fetched, or given with `--dataset-path`",
        file=True,
    ),
    "sharegpt-shaped": DatasetTraits("made-up text with the lengths of ShareGPT"),
    "custom": DatasetTraits(
        "JSON lines with `prompt`, and `output_tokens` for `--custom-output-len -1`", file=True, template=True
    ),
    "tasks": DatasetTraits("questions of the built-in tasks, answered to the end token; use `--backend openai-chat`"),
    "chat": DatasetTraits("generated conversations: `--turns`, `--think-time`", sessions=True, endless=True),
    "conversations": DatasetTraits(
        "recorded conversations with all turns: ShareGPT, MT-Bench, OpenAI messages", file=True, sessions=True
    ),
    "agents": DatasetTraits(
        "recorded agent sessions: calls that wait for calls, tools and sub-agents", file=True, sessions=True, times=True
    ),
    "mooncake": replace(_TRACE, about="Mooncake's traces, at their recorded times, with shared blocks"),
    "azure": replace(_TRACE, about="Azure's LLM inference traces, at their recorded times"),
    "burstgpt": replace(_TRACE, about="BurstGPT's traces, at their recorded times"),
    "bailian": replace(_TRACE, about="Bailian's traces, at their recorded times, with shared blocks"),
    "timed_trace": replace(
        _TRACE, about="a trace with columns that you name, as vLLM's: `--timed-trace-label-timestamp`"
    ),
    "sonnet": DatasetTraits("lines of Shakespeare's sonnets, as vLLM picks them", file=True, template=True),
    "hf": DatasetTraits(
        "questions of a dataset of the Hugging Face Hub that is on this machine: `--hf-name`", file=True, template=True
    ),
    "clients": DatasetTraits(
        "many clients with their own rates, bursts and lengths: generated, or ServeGen's files",
        file=True,
        times=True,
        endless=True,
    ),
    "mix": DatasetTraits("several classes of traffic in one run: `--class`", sessions=True, times=True),
}

# Where the answers in the history of a conversation come from.
Answers = Literal["server", "recorded"]

# Whether a completions prompt has the model's chat template, as vLLM sends it; missing: dyno didn't find one.
Templating = Literal["applied", "missing"]

# How prompt lengths were counted: by the named tokenizer, by the server's own /tokenize, or only guessed.
CountedBy = Literal["tokenizer", "server", "approximate"]

# More than this would fill the memory, or take years: a slip of the pen.
MOST_PROMPTS, _TOKENS = 10_000_000, 100_000_000
_RATIO = Option("", None, "random lengths from len × (1 − R) to len × (1 + R)", least=0, below=1,
                words="must be from 0 to below 1", setting="--random-range-ratio")  # fmt: skip


class WorkloadSpec(msgspec.Struct, frozen=True):
    dataset: Annotated[str, Option("--dataset-name", help="kind of prompts")]  # a name in TRAITS
    path: Annotated[
        str | None,
        Option("--dataset-path", "FILE", "file of prompts or conversations; or hub:OWNER/NAME/FILE@REV"),
    ] = None
    num_prompts: Annotated[  # 0: all requests of a trace
        int, Option("--num-prompts", "N", "number of requests", least=1, most=MOST_PROMPTS)
    ] = 1000
    num_sessions: Annotated[
        int | None,
        Option("--num-sessions", "N", "number of conversations or agent sessions (default: as many as --num-prompts "
               "requests make)", least=1, most=MOST_PROMPTS, subject=False),
    ] = None  # fmt: skip
    num_warmups: Annotated[
        int,
        Option("--num-warmups", "N", "unmeasured requests before them, with other prompts", least=0, most=MOST_PROMPTS,
               subject=False),
    ] = 0  # fmt: skip
    seed: Annotated[int, Option("--seed", "N", "seed for prompts and arrival times", least=0, identity=False)] = 0
    input_len: Annotated[  # 0: in a micro benchmark
        int, Option("", None, "tokens of a random prompt", least=0, most=_TOKENS)
    ] = 1024
    output_len: Annotated[
        int | None,
        Option("", None, "tokens to generate; -1: as in the file (default: the dataset's)", least=-1, most=_TOKENS),
    ] = None
    range_ratio_input: Annotated[float, _RATIO] = 0.0
    range_ratio_output: Annotated[float, _RATIO] = 0.0
    prefix_len: Annotated[
        int,
        Option("--random-prefix-len", "N", "tokens that all random prompts share at their start; chat: tokens of the "
               "system prompt", least=0, most=_TOKENS),
    ] = 0  # fmt: skip
    num_prefixes: Annotated[  # random, prefix_repetition
        int,
        Option("--num-prefixes --prefix-repetition-num-prefixes", "N", "different prefixes that prompts share "
               "(default: 1; prefix_repetition: 10)", least=1, most=MOST_PROMPTS),
    ] = 1  # fmt: skip
    prefix_zipf: Annotated[
        float,
        Option("--prefix-zipf", "S", "popularity of prefixes: the k-th is drawn in proportion to 1 / k^S; 0: all alike",
               least=0, most=100),
    ] = 0.0  # fmt: skip
    prefix_hit_rate: Annotated[
        float | None,
        Option("--prefix-hit-rate", "R", "share of prompt tokens that repeat an earlier prompt's start; their prefixes "
               "are part of --random-input-len (default: none)", least=0, below=1, words="must be from 0 to below 1"),
    ] = None  # fmt: skip
    shuffle: Annotated[
        bool, Option("--disable-shuffle", help="keep the order of the file (study: shuffle = false)")
    ] = True
    oversample: Annotated[
        bool, Option("--no-oversample", help="don't repeat prompts if the file has too few (study: oversample = false)")
    ] = True
    skip_chat_template: Annotated[
        bool,
        Option("--skip-chat-template --custom-skip-chat-template",
               help="send prompts of custom and hf as they are; else the model's chat template is applied to them"),
    ] = False  # fmt: skip
    answers: Annotated[
        Answers | None,
        Option("--answers", help="answers in the history of a conversation: the server's own or those of the file "
               "(default: server; recorded where the file has tool calls)"),
    ] = None  # fmt: skip
    lora_modules: Annotated[
        list[str], Option("--lora-modules", "NAME", "LoRA adapters of the server: each session is sent to one of them",
                          nargs="+"),
    ] = []  # fmt: skip
    lora_assignment: Annotated[
        Literal["random", "round-robin"], Option("--lora-assignment", help="how adapters are chosen")
    ] = "random"
    num_clients: Annotated[
        int, Option("--num-clients", "N", "clients that are generated (dataset clients)", least=1, most=100_000)
    ] = 100
    client_skew: Annotated[
        float, Option("--client-skew", "S", "rate of the k-th client in proportion to 1 / k^S; 0: all alike", least=0,
                      most=100),
    ] = 1.0  # fmt: skip
    client_rate_rps: Annotated[
        float, Option("--client-rate", "RPS", "requests per second of all clients together", above=0, most=1e7)
    ] = 1.0
    hf_name: Annotated[
        str | None,
        Option(
            "--hf-name", "OWNER/NAME", "dataset in the Hub's cache, where --dataset-path names none (default: none)"
        ),
    ] = None
    hf_subset: Annotated[
        str | None, Option("--hf-subset", "NAME", "subset: its files have it in their path (default: all)")
    ] = None
    hf_split: Annotated[
        str | None, Option("--hf-split", "NAME", "split: its files have it in their path (default: train)")
    ] = None
    # Traces. Times count from the first request of the file.
    trace_start_s: Annotated[
        float, Option("--trace-start", "S", "skip the first S seconds of a trace", least=0, most=1e9)
    ] = 0.0
    trace_end_s: Annotated[
        float | None, Option("--trace-end", "S", "end the trace after S seconds (default: all of it)", above=0)
    ] = None
    trace_max_tokens: Annotated[
        int | None,
        Option("--trace-max-tokens", "N", "skip requests of a trace with more tokens, prompt and output together "
               "(default: none)", least=2),
    ] = None  # fmt: skip
    trace_length_scale: Annotated[
        float,
        Option("--trace-length-scale", "F", "multiply all lengths of a trace by F, also those of shared blocks",
               above=0, most=100),
    ] = 1.0  # fmt: skip
    # As vLLM's flags.
    timed_trace_chunk_hash_size: Annotated[
        int, Option("--timed-trace-chunk-hash-size", "N", "timed_trace: tokens per hash id", least=1, most=_TOKENS)
    ] = 16
    timed_trace_sec_multiplier: Annotated[
        float,
        Option("--timed-trace-sec-multiplier", "X", "timed_trace: seconds per unit of time; 0.001 for milliseconds",
               above=0, most=1e9),
    ] = 1.0  # fmt: skip
    timed_trace_label_timestamp: Annotated[
        str, Option("--timed-trace-label-timestamp", "NAME", "timed_trace: column of the time")
    ] = "timestamp"
    timed_trace_label_input_length: Annotated[
        str, Option("--timed-trace-label-input-length", "NAME", "timed_trace: column of the prompt's tokens")
    ] = "input_length"
    timed_trace_label_output_length: Annotated[
        str, Option("--timed-trace-label-output-length", "NAME", "timed_trace: column of the output's tokens")
    ] = "output_length"
    timed_trace_label_hash_ids: Annotated[
        str, Option("--timed-trace-label-hash-ids", "NAME", "timed_trace: column of the hash ids")
    ] = "hash_ids"
    turns: Annotated[
        str | None,
        Option("--turns", "D", "turns of a conversation, a number or a distribution: 5, 3..8, normal:MEAN,SD, "
               "lognormal:MEAN,SD, exponential:MEAN (default: chat 5, conversations all of the file)",
               grammar=count_problem),
    ] = None  # fmt: skip
    think_time_s: Annotated[
        str,
        Option("--think-time", "D", "seconds from the end of an answer to the next question of the user; "
               "also a distribution", grammar=problem),
    ] = "0"  # fmt: skip
    turn_input_len: Annotated[
        str,
        Option("--turn-input-len", "D", "chat: tokens of each question, without the history; also a distribution",
               grammar=count_problem),
    ] = "100"  # fmt: skip
    turn_output_len: Annotated[
        str | None,
        Option("--turn-output-len", "D", "tokens to generate in each turn; also a distribution (default: chat 128, "
               "conversations as in the file, or 256)", grammar=count_problem),
    ] = None  # fmt: skip
    classes: Annotated[
        dict[str, "TrafficClass"],
        Option(help="classes of traffic by name, each with its own keys (dataset mix)", setting="--class"),
    ] = {}

    @property
    def traits(self) -> DatasetTraits:
        if not self.classes:
            return TRAITS.get(self.dataset, DatasetTraits())  # a stored run may have another version's
        each = [part.traits for part in self.classes.values()]
        sessions, endless = any(traits.sessions for traits in each), all(traits.endless for traits in each)
        template = any(traits.template for traits in each)
        return DatasetTraits(sessions=sessions, times=self.own_rate_rps is not None, template=template, endless=endless)

    @property
    def own_rate_rps(self) -> float | None:
        """The rate of a workload whose requests have times of their own; None: the load decides."""
        if self.dataset == "clients":
            return self.client_rate_rps
        return sum(part.request_rate_rps or 0.0 for part in self.classes.values()) or None


_CONVERSATIONS = ["chat", "conversations"]
_SESSIONS = [name for name, traits in TRAITS.items() if traits.sessions]
# Settings that only some datasets have: field → these datasets.
OWN_FIELDS: dict[str, Sequence[str]] = {
    "num_sessions": _SESSIONS, "answers": _SESSIONS, "turns": _CONVERSATIONS, "think_time_s": _CONVERSATIONS,
    "turn_input_len": ["chat"], "turn_output_len": _CONVERSATIONS,
    **{name: TRACES for name in WorkloadSpec.__struct_fields__ if name.startswith("trace_")},
    **dict.fromkeys(("trace_start_s", "trace_end_s", "trace_max_tokens"), (*TRACES, "clients")),
    "num_prefixes": ["random", "prefix_repetition"], "prefix_zipf": ["random"], "prefix_hit_rate": ["random"],
    **dict.fromkeys(("num_clients", "client_skew", "client_rate_rps"), ("clients",)), "classes": ["mix"],
    **dict.fromkeys(("hf_name", "hf_subset", "hf_split"), ("hf",)),
    **{name: TRACES[-1:] for name in WorkloadSpec.__struct_fields__ if name.startswith("timed_trace_")},
}  # fmt: skip


class TrafficClass(WorkloadSpec, frozen=True, kw_only=True):
    """One class of the traffic of a mix: a workload of its own, with a rate or a share of the requests."""

    dataset: str = "random"
    request_rate_rps: Annotated[
        float | None, Option(help="requests (or sessions) per second of this class", above=0, most=1e7)
    ] = None
    burstiness: Annotated[float, Option(help="how irregular its rate is: 1 Poisson", above=0, most=1e6)] = 1.0
    share: Annotated[float | None, Option(help="share of the requests, relative to the other classes", above=0)] = None
    adapter: Annotated[str | None, Option(help="LoRA adapter, sent as the request's model")] = None
    priority: Annotated[int | None, Option(help="the request's priority; vLLM serves lower values first")] = None
    goodput_ms: Annotated[
        dict[str, float],
        Option(help="latency limits in ms by ttft, ttfo, tpot, e2el: goodput counts requests within all"),
    ] = {}


class DataFile(msgspec.Struct, frozen=True):
    """The file of a data set that is on the Hub."""

    origin: str  # hub:datasets/OWNER/NAME@COMMIT
    file: str  # its path there
    sha256: str
    path: str  # on this machine


class Dropped(msgspec.Struct, frozen=True):
    """A dataset yields it for what it leaves out."""

    reason: str  # begins with a noun in the plural: 'messages that are empty'
    count: int = 1

    def __str__(self) -> str:
        verb = "sorted by time" if self.reason == OUT_OF_ORDER else "left out"
        return f"{self.count:,} {self.reason} were {verb}"


class Workload(msgspec.Struct, frozen=True):
    spec: WorkloadSpec
    requests: list[Request]
    warmups: list[Request]  # prompts of their own: none of them is among the requests
    tokenizer: str | None  # its name as the result shows it
    counted_by: CountedBy
    sha256: str  # over prompts and lengths: two runs with the same value sent the same prompts
    repeated: int = 0  # requests whose prompt is a copy of an earlier one
    starts_s: list[float] | None = None  # when each session begins, by the file; None: the load decides
    answers: Answers = "server"  # in the history of conversations
    template: Templating | None = None  # None: the dataset has no use for one, or it is not wanted
    dropped: dict[str, int] = {}  # left out: reason → how many
