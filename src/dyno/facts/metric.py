"""The metrics: what a figure is called, in what unit it is, and which way it is better. The only list of them.

Names are vLLM's result keys. Latencies have no rows here: a name such as `p99_ttft_ms` is read by latency() as a
statistic and a stem; DEFINITIONS says what each tool means by it.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

import msgspec

Better = Literal["higher", "lower"]


class Metric(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["count", "rate", "latency", "other"]
    better: Better | None = None
    words: str = ""  # in a sentence
    column: str = ""  # title of its column in a report; '': a report has none
    explained: str = ""  # in a list of figures to choose from
    axis: str = ""  # title of an axis
    unit: str = ""  # behind a value
    sums: bool = False  # over repeats it is added up; others are averaged
    # printed by vLLM's and SGLang's block besides `label`, in lower case
    labels: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()  # written by tools into JSON and CSV files, in the same unit
    titles: tuple[str, ...] = ()  # of columns in tables, besides the labels
    # where facts.summary.Summary has it: sessions.throughput; '': it hasn't
    field: str = ""
    seldom: bool = False  # a 0 is not shown
    key: str = ""  # its name in the result file; '': the file's top level doesn't have it
    label: str = ""  # its line in the printed block; '': it has none there


def _filled(m: Metric) -> Metric:
    """Derive from its name and words what a metric doesn't say otherwise."""
    words = m.words or m.name.replace("_", " ")
    axis = m.axis or words[0].upper() + words[1:]
    unit = m.unit or (words if m.kind == "rate" else "")
    labels = (m.label.lower(), *m.labels) if m.label else m.labels
    return msgspec.structs.replace(
        m, words=words, explained=m.explained or words, axis=axis, unit=unit, labels=labels
    )


_TABLE = (
    Metric("completed", "count", explained="completed requests", sums=True,
           keys=("results_num_completed_requests",),
           titles=("completed", "completed requests", "requests completed", "successful"),
           field="completed", key="completed", label="Successful requests"),
    Metric("failed", "count", "lower", explained="failed requests", sums=True,
           keys=("results_number_errors",), titles=("failed", "errored requests"),
           field="failed", key="failed", label="Failed requests"),
    Metric("incomplete", "count", "lower", explained="requests cut off at the end of a run", sums=True),
    Metric("duration_s", "other", "lower", "duration", "duration", unit="s", sums=True,
           keys=("duration", "elapsed_time", "benchmark_duration"),
           field="duration_s", key="duration", label="Benchmark duration (s)"),
    Metric("total_input_tokens", "count", sums=True, titles=("total prompt tokens",),
           field="total_input_tokens", key="total_input_tokens", label="Total input tokens"),
    Metric("total_output_tokens", "count", sums=True, labels=("total output tokens",),
           field="total_output_tokens", key="total_output_tokens", label="Total generated tokens"),
    Metric("reasoning_tokens", "count", explained="output tokens that are reasoning", sums=True,
           field="reasoning_tokens"),
    Metric("answer_tokens", "count", explained="output tokens without reasoning", sums=True,
           field="answer_tokens"),
    Metric("total_tokens", "count", sums=True, keys=("total_num_tokens",), titles=("total tokens",),
           field="total_tokens"),
    Metric("peak_concurrency", "other", explained="peak requests in flight",
           keys=("max_concurrent_requests",), titles=("peak concurrency",), field="client.streams_peak",
           key="max_concurrent_requests", label="Peak concurrent requests"),
    Metric("concurrency_mean", "other", explained="mean requests in flight", field="client.streams_mean"),
    Metric("cancelled", "count", explained="requests that the client cancelled", sums=True,
           field="cancelled", seldom=True),
    Metric("skipped", "count", "lower", explained="requests not sent because their session had failed", sums=True,
           field="skipped", seldom=True),
    Metric("sessions_completed", "count", explained="completed sessions", sums=True, field="sessions.completed"),
    Metric("sessions_failed", "count", "lower", explained="failed sessions", sums=True, field="sessions.failed"),
    Metric("possible_reuse", "other", explained="share of prompt tokens that earlier requests had",
           field="reuse.most_share"),
    Metric("reported_reuse", "other", "higher", explained="share of prompt tokens from the prefix cache"),
    Metric("valid_share", "other", "higher", "valid answers", "valid", "share of answers that have the prescribed form",
           field="structured.valid_share"),
    Metric("cached_input_tokens", "other", explained="prompt tokens from the prefix cache", sums=True,
           field="cached_input_tokens"),
    Metric("acceptance_rate", "other", "higher", column="acceptance rate", explained="accepted ÷ drafted tokens",
           labels=("acceptance rate (%)",)),
    Metric("acceptance_length", "other", "higher", explained="tokens per step of speculative decoding",
           labels=("accept length", "acceptance length"), keys=("spec_decode_acceptance_length", "accept_length"),
           titles=("mean acceptance length",)),
    Metric("queue_share", "other", "lower", "queue share", "queue share",
           "share of the latency, from due to the last token, in the server's queue, as the server reports it"),
    Metric("score", "other", "higher", explained="score in a quality test"),
    Metric("stderr", "other", explained="standard error of the score"),
    Metric("memory_bytes", "other", "lower", "memory"),
    Metric("power_w", "other", "lower", "power"),
    Metric("cost_per_million_tokens", "other", "lower"),
    Metric("sent_rate", "other", explained="requests/s that the client sent"),
    Metric("retokenized_output_tokens", "other", explained="output tokens, counted again in the text",
           labels=("total generated tokens (retokenized)",)),
    Metric("request_throughput", "rate", "higher", "requests/s", "req/s",
           keys=("request_throughput", "requests_per_second", "req_tput"),
           field="request_throughput", key="request_throughput", label="Request throughput (req/s)"),
    Metric("request_goodput", "rate", "higher", "goodput", "goodput req/s", "requests/s that met the target",
           "Requests/s that met the target",
           keys=("request_goodput", "request_goodput:"), field="goodput",
           key="request_goodput", label="Request goodput (req/s)"),
    Metric("input_throughput", "rate", "higher", "input tokens/s", labels=("input token throughput (tok/s)",),
           keys=("input_throughput",),
           field="input_throughput"),
    Metric("output_throughput", "rate", "higher", "output tokens/s", "output tok/s",
          
           keys=("output_throughput", "out_tput", "results_mean_output_throughput_token_per_s"),
           field="output_throughput", key="output_throughput", label="Output token throughput (tok/s)"),
    Metric("total_token_throughput", "rate", "higher", "total tokens/s", "total tok/s",
           "total tokens/s (prompts and outputs)",
           labels=("total throughput (tok/s)",),
           keys=("total_token_throughput", "total_throughput", "tokens_per_second", "tot_tput"),
           field="total_token_throughput", key="total_token_throughput", label="Total token throughput (tok/s)"),
    Metric("total_input_sequences", "count", explained="vectors or scores", sums=True, field="results", seldom=True),
    Metric("input_sequence_throughput", "rate", "higher", "inputs/s", "inputs/s", "vectors or scores/s",
           keys=("input_sequence_throughput",), field="result_throughput"),
    Metric("peak_output_throughput", "rate", "higher", "peak output tokens/s",
           keys=("max_output_tokens_per_s",),
           field="peak_output_tokens_per_s",
           key="max_output_tokens_per_s", label="Peak output token throughput (tok/s)"),
    Metric("session_throughput", "rate", "higher", "sessions/s", field="sessions.throughput"),
    # Of a micro test, or of tokens that may or may not include prompts.
    Metric("speed", "rate", "higher", "tokens/s", "tok/s"),
)  # fmt: skip
METRICS = {m.name: _filled(m) for m in _TABLE}
BY_FIELD = {m.field: name for name, m in METRICS.items() if m.field not in ("", name)}
RESULT_KEYS = {m.key: m for m in METRICS.values() if m.key}  # of the result file
SPEEDS = tuple(name for name, m in METRICS.items() if m.kind == "rate")
COUNTS = tuple(name for name in METRICS if name not in SPEEDS)
# The throughput by which results are ranked: the first that is reported.
THROUGHPUTS = ("output_throughput", "total_token_throughput", "request_throughput")
TOKEN_THROUGHPUTS = THROUGHPUTS[:2]
# What a server puts out: of answers without text the second. A result has one of them.
OUTPUTS = ("output_throughput", "input_sequence_throughput")


class Stem(msgspec.Struct, frozen=True):
    """A latency, of which figures are statistics. measure/timing.py calculates those of dyno's own requests."""

    words: str
    about: str = ""  # in a chart; '': none is drawn
    samples: bool = False  # single ones are known, where single requests are
    chart: str = ""  # its name in a chart, where that is another
    # of columns in tables, without the statistic; keys of tools with _ for spaces
    titles: tuple[str, ...] = ()
    heading: str = ""  # of its part of the printed block; '': it has none
    printed: str = ""  # its name there, where that isn't its words
    key: str = ""  # its name in the result file; '': the file's top level doesn't have it
    asked: bool = False  # --percentile-metrics takes it, by that name
    served: bool = False  # the summary of a serving run has it
    figure: bool = True  # a row has it
    goodput: bool = False  # a request can be held to it
    target: bool = False  # a search can
    # its median, its p99, or both are compared unasked
    compared: Literal["", "middle", "tail", "both"] = ""

    @property
    def charted(self) -> str:
        return self.chart or self.words


LATENCIES = {
    "ttft": Stem("TTFT", "Time to the first token.", served=True, samples=True, goodput=True, target=True,
                 titles=("ttft", "time to first token", "first token latency", "first token time"),
                 heading="Time to First Token", key="ttft", compared="both", asked=True),
    "ttfo": Stem("TTFO", "Time to the first token of the answer, after any reasoning.", served=True, samples=True,
                 goodput=True,
                 titles=("ttfo", "time to first output token", "time to first answer token"),
                 heading="Time to First Output Token (Answer)", key="ttfo"),
    "tpot": Stem("TPOT", "Time per output token after the first.", served=True, samples=True, goodput=True, target=True,
                 titles=("tpot", "time per output token"),
                 heading="Time per Output Token (excl. 1st token)", key="tpot", compared="both", asked=True),
    # Beside the one above, where a first chunk of several tokens makes it too small.
    "vllm_tpot": Stem("TPOT (vLLM)", samples=True),
    "own_tpot": Stem("TPOT after the first chunk", served=True, figure=False),  # of a summary; a row calls it tpot
    "itl": Stem("ITL", "Gaps between chunks of a stream.", served=True, samples=True, target=True,
                titles=("itl", "inter token latency", "intertoken latency"),
                heading="Inter-token Latency", key="itl", compared="tail", asked=True),
    "itl_per_token": Stem("ITL per token", figure=False, served=True),
    "itl_text": Stem("ITL of text", figure=False, served=True),
    "e2el": Stem("E2EL", "End to end: from sending to the last token.", served=True, samples=True, goodput=True,
                 target=True,
                 titles=("e2el", "e2e", "e2e latency", "end to end latency", "end to end", "request latency"),
                 heading="End-to-end Latency", key="e2el", compared="middle", asked=True),
    "ntpot": Stem("NTPOT", "End-to-end latency per output token.",
                  titles=("ntpot", "normalized time per output token")),
    # Of a whole offline batch.
    "latency": Stem("latency", "Offline latency of a whole batch.", samples=True, chart="Batch latency",
                    titles=("latency", "batch latency")),
    "queue": Stem("queue", titles=("client queue time", "queue time"), heading="Client-side Queueing",
                  printed="Client Queue Time", key="client_queue_time", asked=True, served=True),
    # From the moment at which a request was due.
    "response_ttft": Stem("TTFT from due", figure=False, served=True),
    "response_e2el": Stem("E2EL from due", figure=False, heading="Queue-inclusive End-to-end Latency",
                          printed="E2EL incl. Client Queue", key="e2el_including_client_queue", asked=True,
                          served=True),
    # Of conversations and agents.
    "session": Stem("session latency", "From sending a session's first request to its last token.",
                    chart="Session latency", compared="middle"),
    "session_busy": Stem("time in requests"),
    "first_turn_ttft": Stem("first-turn TTFT", "Time to the first token of a session's first request."),
    "later_turn_ttft": Stem("later-turn TTFT", "Time to the first token of later requests of a session.",
                            compared="middle"),
    "first_turn_e2el": Stem("first-turn E2EL"),
    "later_turn_e2el": Stem("later-turn E2EL"),
}  # fmt: skip
STEMS = {name: stem for name, stem in LATENCIES.items() if stem.figure}
_BY_TITLE = {title: name for name, stem in STEMS.items() for title in stem.titles}
SAMPLED = tuple(name for name, stem in STEMS.items() if stem.samples)
# latencies that a request can be held to
GOODPUT = tuple(name for name, stem in STEMS.items() if stem.goodput)
SERVED = tuple(name for name, stem in LATENCIES.items() if stem.served)
TARGETS = tuple(name for name, stem in STEMS.items() if stem.target)  # … that a search can
# of the result file
KEYS = {stem.key: name for name, stem in LATENCIES.items() if stem.key}
# by --percentile-metrics
ASKED = tuple(key for key, name in KEYS.items() if LATENCIES[name].asked)

_LATENCY = re.compile(rf"(mean|median|std|min|max|p\d+(?:\.\d+)?)_({'|'.join(STEMS)})_ms")
_LOSS = re.compile(r"perplexity|ppl|loss|bits_per_byte|wer\b|error")


@lru_cache(4096)
def latency(name: str) -> tuple[str, str] | None:
    """Split a latency's name: p99_ttft_ms → (p99, ttft)."""
    match = _LATENCY.fullmatch(name)
    return (match[1], match[2]) if match else None


def stem_named(title: str) -> str | None:
    """Return the stem that a column's title or a tool's key means: 'time_to_first_token' → ttft."""
    return _BY_TITLE.get(title.replace("_", " "))


def known(name: str) -> bool:
    return name in METRICS or latency(name) is not None


@lru_cache(4096)
def metric(name: str) -> Metric:
    """Return the facts about a figure. An unknown one has its name alone."""
    if name in METRICS:
        return METRICS[name]
    if (parts := latency(name)) is None:
        return _filled(
            Metric(name, "other", "higher" if name.endswith("_throughput") else None)
        )
    statistic, stem = parts
    words = STEMS[stem].words
    column = f"{'p50' if statistic == 'median' else statistic} {words}"
    way: Better | None = None if statistic == "std" else "lower"
    return Metric(name, "latency", way, f"{statistic} {words}", column, unit="ms")


def better(name: str, task: str = "") -> Better | None:
    """Return which way is better; None: of counts and deviations. `task`: the task of a score."""
    return "lower" if name == "score" and _LOSS.search(task) else metric(name).better


def words(name: str) -> str:
    """Describe a metric: p99_ttft_ms → p99 TTFT."""
    return metric(name).words


def speed_title(name: str) -> str:
    """Return the title of a throughput in a narrow table: tok/s of output tokens."""
    return "tok/s" if name == "output_throughput" else metric(name).column


def leads(name: str, one: float, other: float) -> float:
    """Return by what share of the lesser `one` is better than `other`: negative if worse, 0.0 if neither is better."""
    way, least = better(name), min(abs(one), abs(other))
    if way is None or least == 0:
        return 0.0
    return (one - other if way == "higher" else other - one) / least


# tool.stem → in words. A stem that a tool is not listed with is calculated as vLLM does only where the tool says so.
# The versions in which the definitions were read. vLLM 0.33 ends TTFT at a chunk with text.
READ_IN: Final = {
    "vllm": "to 0.33",
    "sglang": "0.5.23",
    "guidellm": "0.8.1",
    "aiperf": "0.13",
}
DEFINITIONS: Final[dict[str, str]] = {
    "vllm.ttft": "from sending to the first chunk with a choice; chat in 0.7 to 0.32: also an empty role chunk",
    "vllm.tpot": "(end to end − first token) / (tokens − 1)",
    "vllm.itl": "gaps between chunks, pooled over requests",
    "vllm.e2el": "from sending to the last chunk with a choice; chat up to 0.29: to the usage chunk",
    "sglang.ttft": "from sending to the first text or reasoning",
    "sglang.tpot": "(end to end − first token) / (tokens − 1)",
    "sglang.itl": "gaps between tokens, pooled; a chunk's gap is divided among its tokens",
    "sglang.e2el": "from sending to the last token",
    "dyno.ttft": "from sending to the first chunk with text or reasoning",
    "dyno.ttfo": "from sending to the first chunk with text of the answer",
    "dyno.tpot": "(last token − first token) / (tokens − 1)",
    "dyno.own_tpot": "(last token − first chunk) / (tokens after the first chunk), where the other differs by over 1 %",
    "dyno.vllm_tpot": "(last token − first chunk) / (tokens − 1), too small where the first chunk has several tokens",
    "dyno.itl": "gaps between chunks, pooled over requests",
    "dyno.e2el": "from sending to the last token",
    "dyno.session": "from sending a session's first request to its last token, think and tool times included",
    "dyno.session_busy": "time in which a request of the session was open",
    "dyno.first_turn_ttft": "TTFT of a session's first requests",
    "dyno.later_turn_ttft": "TTFT of requests that wait for others",
    "dyno.first_turn_e2el": "E2EL of a session's first requests",
    "dyno.later_turn_e2el": "E2EL of requests that wait for others",
    "guidellm.ttft": "from sending to the first token or reasoning token",
    "guidellm.tpot": "(last token − sending) / tokens; includes TTFT",
    "guidellm.itl": "a request's mean time between tokens; percentiles are over requests",
    "guidellm.e2el": "from sending to the end",
    "aiperf.ttft": "from sending to the first non-empty response",
    "aiperf.ttfo": "from sending to the first response that is not reasoning",
    "aiperf.itl": "a request's mean time between tokens; percentiles are over requests",
    "aiperf.e2el": "from sending to the last response",
    "inference-perf.ttft": "from sending to the first text",
    "inference-perf.tpot": "(end to end − first token) / (tokens − 1)",
    "inference-perf.itl": "times between tokens, pooled; zero inside a chunk",
    "inference-perf.ntpot": "end to end / tokens",
    "inference-perf.e2el": "from sending to the end",
    "inference-benchmarker.ttft": "from sending to the first text",
    "inference-benchmarker.itl": "a request's mean time between tokens; percentiles are over requests",
    "inference-benchmarker.e2el": "from sending to the end",
    "llama-bench.speed": "tokens/s of a single request's prompt (pp) or tokens (tg), without tokenizing and sampling",
    "offline.throughput": "tokens/s of prompts and outputs together, in the engine's own process",
    "offline.latency": "of a whole batch, in the engine's own process",
}


def definition(tool: str, stem: str) -> str:
    """Return the key of what a tool means by a stem such as ttft; '' where that isn't known."""
    key = f"{tool}.{stem}"
    return key if key in DEFINITIONS else ""


OWN_TPOT: Final = "dyno.own_tpot"


# Meanings that are one: a step apart only for streams that begin with an empty chunk, or end with a usage one.
_MEANINGS: Final = (
    {"vllm.ttft", "sglang.ttft", "dyno.ttft", "aiperf.ttft", "inference-perf.ttft", "inference-benchmarker.ttft",
     "guidellm.ttft"},
    {"dyno.ttfo", "aiperf.ttfo"},
    {"vllm.tpot", "sglang.tpot", "dyno.tpot", "inference-perf.tpot"},
    {"dyno.tpot", "dyno.own_tpot"},  # the same where chunks have one token
    {"vllm.e2el", "sglang.e2el", "dyno.e2el", "inference-perf.e2el", "guidellm.e2el", "aiperf.e2el",
     "inference-benchmarker.e2el"},
    {"vllm.itl", "dyno.itl"},
    {"guidellm.itl", "aiperf.itl", "inference-benchmarker.itl"},
)  # fmt: skip


def one_meaning(keys: Iterable[str]) -> bool:
    """Return whether figures of these definitions may share a column."""
    wanted = set(keys)
    return len(wanted) <= 1 or any(wanted <= meaning for meaning in _MEANINGS)


def meanings(keys: Iterable[str]) -> dict[str, int]:
    """Return the number of each definition's meaning, by key."""
    groups: list[list[str]] = []
    for key in dict.fromkeys(keys):
        for group in groups:
            if one_meaning([*group, key]):
                group.append(key)
                break
        else:
            groups.append([key])
    return {key: i for i, group in enumerate(groups) for key in group}
