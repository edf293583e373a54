"""Several classes of traffic in one workload. Each class is a workload of any other data set."""

from dyno.workload.dataset import Dataset, DatasetTraits

MIX = Dataset(
    name="mix",
    about="several classes of traffic in one run: `--class`",
    make="",
    traits=DatasetTraits(sessions=True, times=True),
    takes=("classes",),
)
