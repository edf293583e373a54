"""Many clients, each with its own rate, bursts and lengths."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits
from dyno.workload.datasets.traces import TraceEnd, TraceMaxTokens, TraceStart


class ClientsSpec(CommonSpec, frozen=True):
    num_clients: Annotated[
        int,
        Option(
            "--num-clients",
            "N",
            "clients that are generated (dataset clients)",
            least=1,
            most=100_000,
            always=True,
        ),
    ] = 100
    client_skew: Annotated[
        float,
        Option(
            "--client-skew",
            "S",
            "rate of the k-th client in proportion to 1 / k^S; 0: all alike",
            least=0,
            most=100,
        ),
    ] = 1.0
    client_rate_rps: Annotated[
        float,
        Option(
            "--client-rate",
            "RPS",
            "requests per second of all clients together",
            above=0,
            most=1e7,
            always=True,
        ),
    ] = 1.0
    trace_start_s: TraceStart = 0.0
    trace_end_s: TraceEnd = None
    trace_max_tokens: TraceMaxTokens = None


CLIENTS = Dataset(
    name="clients",
    folders=True,
    about="many clients with their own rates, bursts and lengths: generated, or ServeGen's files",
    make="clients:clients",
    traits=DatasetTraits(file=True, times=True, paced=True, endless=True),
    spec=ClientsSpec,
    file_optional=True,
    rate="client_rate_rps",
)
