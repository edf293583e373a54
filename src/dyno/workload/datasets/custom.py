"""Prompts of the user: a JSON line each."""

from dyno.workload.dataset import Dataset, DatasetTraits, LengthFlag

CUSTOM = Dataset(
    name="custom",
    about="JSON lines with `prompt`, and `output_tokens` for `--custom-output-len -1`",
    make="recorded:custom",
    traits=DatasetTraits(file=True, ends=True, template=True),
    offline=True,
    lengths=(
        LengthFlag(
            "output_len",
            "output-len",
            256,
            "tokens to generate; -1: as in the file",
            least=None,
        ),
    ),
)
