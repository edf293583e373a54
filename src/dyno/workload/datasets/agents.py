"""Recorded sessions of agents."""

from dyno.workload.dataset import Dataset, DatasetTraits

AGENTS = Dataset(
    name="agents",
    folders=True,
    about="recorded agent sessions: calls that wait for calls, tools and sub-agents",
    make="agents:agents",
    traits=DatasetTraits(file=True, ends=True, sessions=True, times=True, tools=True),
)
