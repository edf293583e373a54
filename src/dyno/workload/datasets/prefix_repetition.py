"""Random text behind shared prefixes that are equally frequent, as vLLM has it."""

from dyno.workload.dataset import Dataset, LengthFlag

PREFIX_REPETITION = Dataset(
    name="prefix_repetition",
    about="random text behind shared prefixes, as vLLM's: `--prefix-repetition-prefix-len`",
    make="synthetic:prefix_repetition",
    takes=("num_prefixes",),
    offline=True,
    needs=("prefix_len", "input_len", "output_len"),
    lengths=(
        LengthFlag("prefix_len", "prefix-len", 256, "tokens of a prefix", least=0),
        LengthFlag("input_len", "suffix-len", 256, "tokens after the prefix"),
        LengthFlag("output_len", "output-len", 128, "tokens to generate"),
    ),
    flag_defaults={"num_prefixes": 10},
)
