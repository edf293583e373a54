"""First turns of ShareGPT's conversations."""

from dyno.workload.dataset import Dataset, DatasetTraits, LengthFlag

SHAREGPT = Dataset(
    name="sharegpt",
    about="ShareGPT's file, first turns, with vLLM's length filter: found, fetched, or given with `--dataset-path`",
    make="recorded:sharegpt",
    traits=DatasetTraits(file=True, ends=True),
    file_optional=True,
    offline=True,
    lengths=(
        LengthFlag(
            "output_len", "output-len", None, "tokens to generate (default: as in the file)"
        ),
    ),
    hub_file="hub:anon8231489123/ShareGPT_Vicuna_unfiltered/ShareGPT_V3_unfiltered_cleaned_split.json",
)
