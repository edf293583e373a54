"""Made-up text that is as long as ShareGPT's first turns: it needs no file."""

from dyno.workload.dataset import Dataset

SHAREGPT_SHAPED = Dataset(
    name="sharegpt-shaped",
    about="made-up text with the lengths of ShareGPT",
    make="synthetic:sharegpt_shaped",
    offline=True,
)
