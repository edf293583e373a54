"""Traces: requests with the times at which they came. A format is a line below."""

from typing import Annotated, NamedTuple

from dyno.option import Option
from dyno.workload.common import MOST_TOKENS, CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits

# Times count from the first request of the file. The clients of datasets/clients.py have such a window, too.
TraceStart = Annotated[
    float,
    Option("--trace-start", "S", "skip the first S seconds of a trace", least=0, most=1e9),
]
TraceEnd = Annotated[
    float | None,
    Option(
        "--trace-end", "S", "end the trace after S seconds (default: all of it)", above=0
    ),
]
TraceMaxTokens = Annotated[
    int | None,
    Option("--trace-max-tokens", "N", "skip requests of a trace with more tokens, prompt and output together "
           "(default: none)", least=2),
]  # fmt: skip


class TraceSpec(CommonSpec, frozen=True):
    trace_start_s: TraceStart = 0.0
    trace_end_s: TraceEnd = None
    trace_max_tokens: TraceMaxTokens = None
    trace_length_scale: Annotated[
        float,
        Option(
            "--trace-length-scale",
            "F",
            "multiply all lengths of a trace by F, also those of shared blocks",
            above=0,
            most=100,
        ),
    ] = 1.0


class TimedTraceSpec(TraceSpec, frozen=True):
    """Has the settings of vLLM's flags."""

    timed_trace_chunk_hash_size: Annotated[
        int,
        Option(
            "--timed-trace-chunk-hash-size",
            "N",
            "timed_trace: tokens per hash id",
            least=1,
            most=MOST_TOKENS,
        ),
    ] = 16
    timed_trace_sec_multiplier: Annotated[
        float,
        Option(
            "--timed-trace-sec-multiplier",
            "X",
            "timed_trace: seconds per unit of time; 0.001 for milliseconds",
            above=0,
            most=1e9,
        ),
    ] = 1.0
    timed_trace_label_timestamp: Annotated[
        str,
        Option("--timed-trace-label-timestamp", "NAME", "timed_trace: column of the time"),
    ] = "timestamp"
    timed_trace_label_input_length: Annotated[
        str,
        Option(
            "--timed-trace-label-input-length",
            "NAME",
            "timed_trace: column of the prompt's tokens",
        ),
    ] = "input_length"
    timed_trace_label_output_length: Annotated[
        str,
        Option(
            "--timed-trace-label-output-length",
            "NAME",
            "timed_trace: column of the output's tokens",
        ),
    ] = "output_length"
    timed_trace_label_hash_ids: Annotated[
        str,
        Option(
            "--timed-trace-label-hash-ids", "NAME", "timed_trace: column of the hash ids"
        ),
    ] = "hash_ids"


class TraceFormat(NamedTuple):
    """The columns of a trace."""

    time: str
    input: str
    output: str
    hash_ids: str = ""  # '': it has none
    unit_s: float = 1.0  # of a time that is a number
    block: int = 0  # tokens that a hash id stands for
    only: tuple[str, str] | None = None  # column and value of the rows that are used


FORMATS = {
    "mooncake": TraceFormat(
        "timestamp", "input_length", "output_length", "hash_ids", unit_s=0.001, block=512
    ),
    "azure": TraceFormat("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    # As vLLM: GPT-4's rows alone.
    "burstgpt": TraceFormat(
        "Timestamp", "Request tokens", "Response tokens", only=("Model", "GPT-4")
    ),
    "bailian": TraceFormat(
        "timestamp", "input_length", "output_length", "hash_ids", block=16
    ),
}


def _trace(name: str, about: str, spec: type[TraceSpec] = TraceSpec) -> Dataset:
    traits = DatasetTraits(
        file=True, ends=True, times=True, paced=True, trace=True, endless=True
    )
    return Dataset(
        name=name, about=about, make="traces:trace", traits=traits, spec=spec, offline=True
    )


TRACES = (
    _trace("mooncake", "Mooncake's traces, at their recorded times, with shared blocks"),
    _trace("azure", "Azure's LLM inference traces, at their recorded times"),
    _trace("burstgpt", "BurstGPT's traces, at their recorded times"),
    _trace("bailian", "Bailian's traces, at their recorded times, with shared blocks"),
    # Its columns are named by the user.
    _trace(
        "timed_trace",
        "a trace with columns that you name, as vLLM's: `--timed-trace-label-timestamp`",
        TimedTraceSpec,
    ),
)
