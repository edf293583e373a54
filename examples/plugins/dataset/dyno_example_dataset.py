"""A data set: short poems about numbers. `lines` is its own setting: --dataset-option lines=8."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset
from dyno.workload.request import Request

if TYPE_CHECKING:
    from dyno.workload.tokenizer import Tokenizer


class PoemsSpec(CommonSpec, frozen=True):
    lines: Annotated[int, Option(help="lines of each poem", least=1, most=100)] = 4


def poems(spec: PoemsSpec, tokenizer: "Tokenizer") -> Iterator[Request]:
    """Yield more prompts than are wanted, the same ones for the same seed."""
    for number in range(spec.seed, spec.seed + 100_000):
        prompt = "\n".join(
            f"{number} sheep, {number + line} wolves" for line in range(spec.lines)
        )
        yield Request(prompt, tokenizer.count(prompt), spec.output_len or 16)


POEMS = Dataset(name="poems", about="poems about numbers", make=poems, spec=PoemsSpec)
