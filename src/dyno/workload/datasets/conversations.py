"""Recorded conversations with all their turns."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits
from dyno.workload.draw import count_problem, problem

# Settings of conversations, also of the generated ones in chat.py.
Turns = Annotated[
    str | None,
    Option("--turns", "D", "turns of a conversation, a number or a distribution: 5, 3..8, normal:MEAN,SD, "
           "lognormal:MEAN,SD, exponential:MEAN (default: chat 5, conversations all of the file)",
           grammar=count_problem),
]  # fmt: skip
ThinkTime = Annotated[
    str,
    Option("--think-time", "D", "seconds from the end of an answer to the next question of the user; "
           "also a distribution", grammar=problem),
]  # fmt: skip
TurnOutputLen = Annotated[
    str | None,
    Option("--turn-output-len", "D", "tokens to generate in each turn; also a distribution (default: chat 128, "
           "conversations as in the file, or 256)", grammar=count_problem),
]  # fmt: skip


class ConversationsSpec(CommonSpec, frozen=True):
    turns: Turns = None
    think_time_s: ThinkTime = "0"
    turn_output_len: TurnOutputLen = None


CONVERSATIONS = Dataset(
    name="conversations",
    about="recorded conversations with all turns: ShareGPT, MT-Bench, OpenAI messages",
    make="conversations:conversations",
    traits=DatasetTraits(file=True, ends=True, sessions=True),
    spec=ConversationsSpec,
)
