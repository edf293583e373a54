"""Spec-Bench: questions for speculative decoding, by category."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits, LengthFlag


class SpecBenchSpec(CommonSpec, frozen=True):
    spec_bench_category: Annotated[
        str | None,
        Option(
            "--spec-bench-category",
            "NAME",
            "spec_bench: only questions of this category (default: all)",
        ),
    ] = None


SPEC_BENCH = Dataset(
    name="spec_bench",
    about="Spec-Bench's `question.jsonl`, first turns: `--spec-bench-category`",
    make="published:spec_bench",
    # As vLLM: its client renders these prompts whatever --skip-chat-template says.
    traits=DatasetTraits(file=True, ends=True, template=True, template_always=True),
    spec=SpecBenchSpec,
    lengths=(LengthFlag("output_len", "output-len", 256, "tokens to generate"),),
)
