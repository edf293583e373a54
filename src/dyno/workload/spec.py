"""A workload: which prompts, how long, how many tokens wanted; and one request of it."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from dyno.option import Option
from dyno.workload.dataset import DatasetTraits
from dyno.workload.datasets import DATASETS, DEFAULT, own_fields

if TYPE_CHECKING:
    from dyno.workload.datasets import OwnSettings


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


OUT_OF_ORDER = "rows out of order"  # of a trace

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


class CommonSpec(msgspec.Struct, frozen=True):
    """The settings of all workloads, or of many. Those of one data set are in its file."""

    dataset: Annotated[str, Option("--dataset-name", help="kind of prompts")]  # a name in DATASETS
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


# A workload is one flat value: stored files, studies, flags and SQL have its settings beside one another. It has the
# settings of all data sets, and only those of its own may differ from their defaults: OWN_FIELDS.
if TYPE_CHECKING:

    class _AllSettings(OwnSettings, CommonSpec, frozen=True): ...

else:
    _AllSettings = msgspec.defstruct("_AllSettings", own_fields(), bases=(CommonSpec,), module=__name__, frozen=True)


class WorkloadSpec(_AllSettings, frozen=True):
    classes: Annotated[
        dict[str, "TrafficClass"],
        Option(help="classes of traffic by name, each with its own keys (dataset mix)", setting="--class"),
    ] = {}

    @property
    def traits(self) -> DatasetTraits:
        if not self.classes:
            declared = DATASETS.get(self.dataset)  # a stored run may have another version's
            return declared.traits if declared else DatasetTraits()
        each = [part.traits for part in self.classes.values()]
        return DatasetTraits(
            sessions=any(traits.sessions for traits in each),
            times=self.own_rate_rps is not None,
            template=any(traits.template for traits in each),
            endless=all(traits.endless for traits in each),
        )

    @property
    def own_rate_rps(self) -> float | None:
        """The rate of a workload whose requests have times of their own; None: the load decides."""
        declared = DATASETS.get(self.dataset)
        if declared and declared.rate:
            rate: float = getattr(self, declared.rate)
            return rate
        return sum(part.request_rate_rps or 0.0 for part in self.classes.values()) or None


_OF_SESSIONS = ("num_sessions", "answers")


def _owners(setting: str) -> list[str]:
    return [
        name
        for name, dataset in DATASETS.items()
        if setting in dataset.own or (dataset.traits.sessions and setting in _OF_SESSIONS)
    ]


# Settings that only some datasets have: field → these datasets.
OWN_FIELDS = {name: names for name in WorkloadSpec.__struct_fields__ if (names := _owners(name))}


class TrafficClass(WorkloadSpec, frozen=True, kw_only=True):
    """One class of the traffic of a mix: a workload of its own, with a rate or a share of the requests."""

    dataset: str = DEFAULT
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
