"""A workload: which prompts, how long, how many tokens wanted."""

from typing import Literal

import msgspec

from dyno.facts.request import Request

# How prompt lengths were counted: by the named tokenizer, by the server's own /tokenize, or only guessed.
CountedBy = Literal["tokenizer", "server", "approximate"]


class WorkloadSpec(msgspec.Struct, frozen=True):
    dataset: str  # a name in workload.DATASETS
    path: str | None = None
    num_prompts: int = 1000
    num_warmups: int = 0
    seed: int = 0
    input_len: int = 1024  # random
    output_len: int | None = None  # None: the dataset's own
    range_ratio_input: float = 0.0  # random: lengths uniform in [len × (1 − r), len × (1 + r)]
    range_ratio_output: float = 0.0
    prefix_len: int = 0  # random: tokens shared by all prompts, before the random ones
    shuffle: bool = True
    oversample: bool = True  # repeat prompts when a file holds fewer than asked


class Workload(msgspec.Struct, frozen=True):
    spec: WorkloadSpec
    requests: list[Request]
    warmups: list[Request]  # prompts of their own: none of them is among the requests
    tokenizer: str | None  # its name as the result shows it
    counted_by: CountedBy
    sha256: str  # over prompts and lengths: two runs with the same value sent the same prompts
    repeated: int = 0  # requests whose prompt is a copy of an earlier one
