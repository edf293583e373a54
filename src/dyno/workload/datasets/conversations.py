"""Conversations with all their turns: generated (chat), or recorded."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits
from dyno.workload.draw import count_problem, problem

_Turns = Annotated[
    str | None,
    Option("--turns", "D", "turns of a conversation, a number or a distribution: 5, 3..8, normal:MEAN,SD, "
           "lognormal:MEAN,SD, exponential:MEAN (default: chat 5, conversations all of the file)",
           grammar=count_problem),
]  # fmt: skip
_ThinkTime = Annotated[
    str,
    Option("--think-time", "D", "seconds from the end of an answer to the next question of the user; "
           "also a distribution", grammar=problem),
]  # fmt: skip
_TurnOutputLen = Annotated[
    str | None,
    Option("--turn-output-len", "D", "tokens to generate in each turn; also a distribution (default: chat 128, "
           "conversations as in the file, or 256)", grammar=count_problem),
]  # fmt: skip


class ChatSpec(CommonSpec, frozen=True):
    turns: _Turns = None
    think_time_s: _ThinkTime = "0"
    turn_input_len: Annotated[
        str,
        Option("--turn-input-len", "D", "chat: tokens of each question, without the history; also a distribution",
               grammar=count_problem, always=True),
    ] = "100"  # fmt: skip
    turn_output_len: _TurnOutputLen = None


class ConversationsSpec(CommonSpec, frozen=True):
    turns: _Turns = None
    think_time_s: _ThinkTime = "0"
    turn_output_len: _TurnOutputLen = None


CHAT = Dataset(
    name="chat",
    about="generated conversations: `--turns`, `--think-time`",
    make="conversations:chat",
    traits=DatasetTraits(sessions=True, endless=True),
    spec=ChatSpec,
)

CONVERSATIONS = Dataset(
    name="conversations",
    about="recorded conversations with all turns: ShareGPT, MT-Bench, OpenAI messages",
    make="conversations:conversations",
    traits=DatasetTraits(file=True, sessions=True),
    spec=ConversationsSpec,
)
