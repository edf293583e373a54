"""SPEED-Bench: prompts for speculative decoding, by length and category."""

from typing import Annotated, Literal

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits, LengthFlag


class SpeedBenchSpec(CommonSpec, frozen=True):
    speed_bench_dataset_subset: Annotated[
        Literal[
            "qualitative",
            "throughput_1k",
            "throughput_2k",
            "throughput_8k",
            "throughput_16k",
            "throughput_32k",
        ],
        Option(
            "--speed-bench-dataset-subset",
            help="speed_bench: file of --dataset-path to read",
        ),
    ] = "qualitative"
    speed_bench_category: Annotated[
        str | None,
        Option(
            "--speed-bench-category",
            "NAME",
            "speed_bench: only prompts of this category (default: all)",
        ),
    ] = None


SPEED_BENCH = Dataset(
    name="speed_bench",
    about="SPEED-Bench's folder, first messages: `--speed-bench-dataset-subset`",
    make="published:speed_bench",
    traits=DatasetTraits(file=True, ends=True, template=True),
    spec=SpeedBenchSpec,
    folders=True,
    lengths=(LengthFlag("output_len", "output-len", 4096, "tokens to generate"),),
)
