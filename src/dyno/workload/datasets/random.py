"""Seeded text of exact lengths: the data set of a workload that names none."""

from dyno.workload.dataset import Dataset, DatasetTraits

RANDOM = Dataset(
    name="random",
    about="seeded text, exactly `--random-input-len` tokens; answers have exactly `--random-output-len` (default)",
    make="synthetic:random",
    traits=DatasetTraits(endless=True, exact=True),
    takes=("num_prefixes", "prefix_zipf", "prefix_hit_rate"),
    needs=("input_len", "output_len"),
    offline=True,
)
