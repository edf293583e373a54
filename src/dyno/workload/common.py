"""The settings of all workloads, or of many. Those of one data set are in its file."""

from typing import Annotated, Any, Literal

import msgspec

from dyno.option import Option
from dyno.workload.request import Answers

# More than this would fill the memory, or take years: a slip of the pen.
MOST_PROMPTS, MOST_TOKENS = 10_000_000, 100_000_000
_RATIO = Option(
    "",
    None,
    "random lengths from len × (1 − R) to len × (1 + R)",
    least=0,
    below=1,
    words="must be from 0 to below 1",
    setting="--random-range-ratio",
)


class CommonSpec(msgspec.Struct, frozen=True):
    # a name in DATASETS
    dataset: Annotated[str, Option("--dataset-name", help="kind of prompts")]
    path: Annotated[
        str | None,
        Option(
            "--dataset-path",
            "FILE",
            "file of prompts or conversations; or hub:OWNER/NAME/FILE@REV",
        ),
    ] = None
    num_prompts: Annotated[  # 0: all requests of a file
        int,
        Option(
            "--num-prompts",
            "N",
            "number of requests; -1: all of a file",
            least=-1,
            most=MOST_PROMPTS,
        ),
    ] = 1000
    num_sessions: Annotated[
        int | None,
        Option(
            "--num-sessions",
            "N",
            "number of conversations or agent sessions (default: as many as --num-prompts "
            "requests make)",
            least=1,
            most=MOST_PROMPTS,
            subject=False,
        ),
    ] = None
    num_warmups: Annotated[
        int,
        Option(
            "--num-warmups",
            "N",
            "unmeasured requests before them, with other prompts",
            least=0,
            most=MOST_PROMPTS,
            subject=False,
        ),
    ] = 0
    seed: Annotated[
        int,
        Option(
            "--seed", "N", "seed for prompts and arrival times", least=0, identity=False
        ),
    ] = 0
    input_len: Annotated[  # 0: in a micro benchmark
        int,
        Option(
            "",
            None,
            "tokens of a random prompt",
            least=0,
            most=MOST_TOKENS,
            added="--random-input-len --input-len",
        ),
    ] = 1024
    output_len: Annotated[
        int | None,
        Option(
            "",
            None,
            "tokens to generate; -1: as in the file (default: the dataset's)",
            least=-1,
            most=MOST_TOKENS,
            added="--random-output-len --output-len --sharegpt-output-len --custom-output-len",
        ),
    ] = None
    range_ratio_input: Annotated[float, _RATIO._replace(added="--random-range-ratio")] = 0.0
    range_ratio_output: Annotated[float, _RATIO] = 0.0
    prefix_len: Annotated[
        int,
        Option(
            "--random-prefix-len",
            "N",
            "tokens that all random prompts share at their start; chat: tokens of the "
            "system prompt",
            least=0,
            most=MOST_TOKENS,
        ),
    ] = 0
    num_prefixes: Annotated[  # random, prefix_repetition
        int,
        Option(
            "--num-prefixes --prefix-repetition-num-prefixes",
            "N",
            "different prefixes that prompts share (default: 1; prefix_repetition: 10)",
            least=1,
            most=MOST_PROMPTS,
        ),
    ] = 1
    prefix_zipf: Annotated[
        float,
        Option(
            "--prefix-zipf",
            "S",
            "popularity of prefixes: the k-th is drawn in proportion to 1 / k^S; 0: all alike",
            least=0,
            most=100,
        ),
    ] = 0.0
    prefix_hit_rate: Annotated[
        float | None,
        Option(
            "--prefix-hit-rate",
            "R",
            "share of prompt tokens that repeat an earlier prompt's start; their prefixes "
            "are part of --random-input-len (default: none)",
            least=0,
            below=1,
            words="must be from 0 to below 1",
        ),
    ] = None
    shuffle: Annotated[
        bool,
        Option(
            "--disable-shuffle", help="keep the order of the file (study: shuffle = false)"
        ),
    ] = True
    oversample: Annotated[
        bool,
        Option(
            "--no-oversample",
            help="don't repeat prompts if the file has too few (study: oversample = false)",
        ),
    ] = True
    skip_chat_template: Annotated[
        bool,
        Option(
            "--skip-chat-template --custom-skip-chat-template",
            help="send prompts of custom and hf as they are; else the model's chat template is applied to them",
        ),
    ] = False
    options: Annotated[
        dict[str, Any],
        Option(
            "--dataset-option",
            "KEY=VALUE",
            "settings of a data set that a plug-in adds",
            nargs="*",
        ),
    ] = {}
    answers: Annotated[
        Answers | None,
        Option(
            "--answers",
            help="answers in the history of a conversation: the server's own or those of the file "
            "(default: server; recorded where the file has tool calls)",
        ),
    ] = None
    lora_modules: Annotated[
        list[str],
        Option(
            "--lora-modules",
            "NAME",
            "LoRA adapters of the server: each session is sent to one of them",
            nargs="+",
        ),
    ] = []
    lora_assignment: Annotated[
        Literal["random", "round-robin"],
        Option("--lora-assignment", help="how adapters are chosen"),
    ] = "random"
