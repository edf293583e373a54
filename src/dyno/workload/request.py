"""One request of a workload, and what is known of how it was made."""

from typing import Any, Literal

import msgspec

from dyno.workload.media import Medium


class HasMedia:
    """What requests with images, sounds or videos are asked for."""

    __slots__ = ()
    media: list[Medium]

    @property
    def media_count(self) -> int:
        return len(self.media)

    @property
    def audio_s(self) -> float:
        return sum(medium.seconds for medium in self.media)


class Request(msgspec.Struct, frozen=True):
    prompt: str | list[int]  # text, or token ids where the server takes them
    prompt_tokens: int  # by the workload's tokenizer, special tokens included
    output_tokens: int  # asked for as the server's max_tokens


class ChatRequest(Request, frozen=True):
    """A request that ends a conversation."""

    before: list[tuple[str, str]] = []  # role and text of each message before the prompt


class ToolRequest(Request, frozen=True):
    """A request of its own with messages in OpenAI's form, and fields that the others don't have: its tools."""

    messages: list[dict[str, Any]] = []
    body: dict[str, Any] = {}


class MediaRequest(HasMedia, Request, frozen=True):
    """A request of its own with images, sounds or videos behind its text. Its prompt_tokens include theirs, where the
    model's rule is known."""

    media: list[Medium] = []
    media_tokens: int | None = None  # by the model's rule; None: unknown


class BatchRequest(Request, frozen=True):
    """A request for several vectors or scores. Its prompt is the first text, or the query of a reranker."""

    inputs: list[str] = []  # all texts, or the documents that are ranked

    @property
    def results(self) -> int:
        """Return how many vectors or scores the answer has."""
        return len(self.inputs)


class Turn(Request, frozen=True):
    """A request of a session: of a conversation, of an agent, or a line of a trace. Its prompt_tokens include its
    history, with answers as long as requested."""

    # numbered from 0; the requests of a session follow one another in the workload
    session: int = 0
    # requests of the session (numbers in the workload) that must have ended before
    after: list[int] = []
    # from the end of the last of these, or from the start of the session
    wait_s: float = 0.0
    # the request whose history, messages and answer come before this one's messages
    history: int | None = None
    # of its own, in OpenAI's form; empty: the prompt, from the user
    messages: list[dict[str, Any]] = []
    answer: dict[str, Any] | None = None  # the recorded answer, in OpenAI's form
    # of a session's first request: when it begins by the file; None: the load decides
    start_s: float | None = None
    group: str = ""  # class of traffic
    # more fields of the request: tools, model (a LoRA adapter), priority
    body: dict[str, Any] = {}


class MediaTurn(HasMedia, Turn, frozen=True):
    """A request of a session with images, sounds or videos in its messages: see MediaRequest."""

    media: list[Medium] = []
    media_tokens: int | None = None


class StoredRequest(MediaTurn, frozen=True):
    """Any request, as a run folder has it."""

    before: list[tuple[str, str]] = []
    inputs: list[str] = []


OUT_OF_ORDER = "rows out of order"  # of a trace

# Where the answers in the history of a conversation come from.
Answers = Literal["server", "recorded"]
# … and of a whole workload: some of its requests may continue with the server's, others quote recorded ones.
Histories = Literal["server", "recorded", "mixed"]

# Whether a completions prompt has the model's chat template, as vLLM sends it; missing: dyno didn't find one.
Templating = Literal["applied", "missing"]

# How prompt lengths were counted: by the named tokenizer, by the server's own /tokenize, or only guessed.
CountedBy = Literal["tokenizer", "server", "approximate"]


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
