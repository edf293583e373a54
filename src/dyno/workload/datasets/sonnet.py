"""Lines of a poem, as vLLM's sonnet has them. The sonnets come with dyno."""

from dyno.workload.dataset import Dataset, DatasetTraits, LengthFlag

SONNET = Dataset(
    name="sonnet",
    about="lines of Shakespeare's sonnets, as vLLM picks them",
    make="published:sonnet",
    traits=DatasetTraits(file=True, template=True, template_always=True),
    needs=("input_len", "output_len"),
    file_optional=True,
    lengths=(
        LengthFlag(
            "prefix_len",
            "prefix-len",
            200,
            "tokens that all prompts share at their start",
            least=0,
        ),
        LengthFlag("input_len", "input-len", 550, "tokens of a prompt, with its prefix"),
        LengthFlag("output_len", "output-len", 150, "tokens to generate"),
    ),
)
