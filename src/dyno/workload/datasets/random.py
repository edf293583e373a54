"""Seeded text of exact lengths: the data set of a workload that names none."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits
from dyno.workload.datasets.rerank import RandomBatchSize


class RandomSpec(CommonSpec, frozen=True):
    random_batch_size: RandomBatchSize = 1
    token_ids: Annotated[
        bool,
        Option(
            "--token-ids",
            help="random: send prompts as token ids, so that the server encodes nothing",
        ),
    ] = False


RANDOM = Dataset(
    name="random",
    about="seeded text, exactly `--random-input-len` tokens; answers have exactly `--random-output-len` (default)",
    make="synthetic:random_batches",
    traits=DatasetTraits(endless=True, exact=True),
    spec=RandomSpec,
    takes=("num_prefixes", "prefix_zipf", "prefix_hit_rate"),
    needs=("input_len", "output_len"),
    offline=True,
)
