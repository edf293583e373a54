"""Generated conversations."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits
from dyno.workload.datasets.conversations import ThinkTime, TurnOutputLen, Turns
from dyno.workload.draw import count_problem


class ChatSpec(CommonSpec, frozen=True):
    turns: Turns = None
    think_time_s: ThinkTime = "0"
    turn_input_len: Annotated[
        str,
        Option(
            "--turn-input-len",
            "D",
            "chat: tokens of each question, without the history; also a distribution",
            grammar=count_problem,
            always=True,
        ),
    ] = "100"
    turn_output_len: TurnOutputLen = None


CHAT = Dataset(
    name="chat",
    about="generated conversations: `--turns`, `--think-time`",
    make="conversations:chat",
    traits=DatasetTraits(sessions=True, endless=True),
    spec=ChatSpec,
)
