"""A trial: one workload and load on one target. All that is needed to run it again."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from dyno.facts.client import ClientSpec
from dyno.facts.engine import EngineSpec
from dyno.facts.find import FindSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.quality import QualitySpec
from dyno.facts.target import TargetSpec
from dyno.facts.template import RequestTemplate
from dyno.option import Option
from dyno.workload.spec import WorkloadSpec

# fields of a request's body: how many answers the server writes
ANSWER_COUNTS = ("n", "n_cmpl", "best_of")
ONE_ANSWER = (
    "dyno times one answer per request: in one stream, the chunks of several would count as those of one. Remove it. "
    "To generate as much, send more requests at a higher concurrency."
)


TEMPLATE = "json"  # the backend that a template describes


def several_answers(body: Mapping[str, Any]) -> str | None:
    """Return the field of a request's body by which the server writes several answers."""
    for name in ANSWER_COUNTS:
        if str(body.get(name, 1)) not in ("1", "1.0", "None"):
            return name
    return None


def id_prefix_problem(text: str) -> str | None:
    """Return why a text can't begin the value of a header."""
    if re.fullmatch(r"[!-~]{1,200}", text):
        return None
    return "must be 1 to 200 visible ASCII characters without spaces"


class TrialSpec(msgspec.Struct, frozen=True):
    target: TargetSpec
    workload: WorkloadSpec
    load: LoadSpec
    tokenizer: Annotated[
        str | None,
        Option("--tokenizer", "PATH|NAME", "tokenizer that counts prompt tokens"),
    ] = None
    ignore_eos: Annotated[
        bool,
        Option(
            "--ignore-eos",
            help="generate the full length, also past the end token (always on for random prompts)",
        ),
    ] = False
    sampling: Annotated[
        dict[str, Any], Option(help="sampling parameters, such as temperature")
    ] = {}
    extra_body: Annotated[
        dict[str, Any],
        Option(help="more fields for each request's body", added="--extra-body"),
    ] = {}
    chat_template_kwargs: Annotated[
        dict[str, Any],
        Option(
            help="variables of the chat template, such as enable_thinking",
            added="--chat-template-kwargs",
        ),
    ] = {}
    stream: Annotated[
        bool,
        Option(
            "--no-streaming",
            help="ask for each answer in one piece: it has no first token, and no TTFT, TPOT and ITL "
            "(study: stream = false)",
        ),
    ] = True
    template: Annotated[
        dict[str, Any],
        Option(
            help="backend json: body of a request, and the places of text and counts in an answer",
            added="--request-template",
        ),
    ] = {}
    request_id_prefix: Annotated[
        str | None,
        Option(
            "--request-id-prefix",
            "TEXT",
            "send a header x-request-id with each request: this text and its number (default: none)",
            grammar=id_prefix_problem,
            identity=False,
        ),
    ] = None
    profile: Annotated[
        bool,
        Option(
            "--profile",
            help="run the engine's profiler during the load; offline: in one more iteration",
        ),
    ] = False
    percentiles: Annotated[
        list[float],
        Option(
            help="percentiles to calculate", identity=False, added="--metric-percentiles"
        ),
    ] = msgspec.field(default_factory=lambda: [99.0])
    goodput_ms: Annotated[  # counted from sent
        dict[str, float],
        Option(
            help="latency limits in ms by ttft, ttfo, tpot, e2el: goodput counts requests within all",
            setting="--goodput",
            subject=False,
            added="--goodput",
        ),
    ] = {}
    ready_check_timeout_s: Annotated[  # None: one test request, without waiting; in runs of older versions 0, none
        float | None,
        Option(
            "--ready-check-timeout-sec",
            "S",
            "wait up to S seconds for one successful test request; 0 skips it (default: one test, no waiting)",
            least=0,
            identity=False,
        ),
    ] = None
    label: Annotated[
        str | None,
        Option(
            "--label",
            "TEXT",
            "name of this setting in tables and reports (default: none)",
            identity=False,
        ),
    ] = None
    metadata: Annotated[
        dict[str, str],
        Option(
            "--metadata",
            "KEY=VALUE",
            "facts to store with the result",
            nargs="*",
            identity=False,
        ),
    ] = {}
    kind: str = "serve"
    offline: OfflineSpec | None = None  # of the other kinds; then the load says nothing
    reset_cache: Annotated[
        bool,
        Option(
            "--reset-prefix-cache",
            help="empty a running server's prefix cache before the load",
        ),
    ] = False
    correctness_check: Annotated[
        bool,
        Option(
            "--no-correctness-check",
            help="don't check a few greedy answers before and after the load "
            "(study: correctness_check = false)",
            identity=False,
        ),
    ] = True
    # of the kind quality; then workload and load say nothing
    quality: QualitySpec | None = None
    # a search: its result is the run at the highest load within the target
    find: FindSpec | None = None
    client: ClientSpec = ClientSpec()
    # dyno starts it, or, of the kind openai, knows what the server should be
    engine: EngineSpec | None = None

    @property
    def api(self) -> str:
        """Return what its requests and answers are like: its backend, and the form of its answers."""
        if self.template:
            template = msgspec.convert(self.template, RequestTemplate)
            streamed = msgspec.structs.replace(
                template, stream=self.stream and template.stream
            )
            return f"{TEMPLATE}/{msgspec.json.encode(streamed, order='sorted').decode()}"
        return self.target.backend if self.stream else f"{self.target.backend}/whole"

    @property
    def replays(self) -> bool:
        """Return whether requests are sent at recorded times, and not at a rate of the load or the workload."""
        return self.load.arrivals is not None and self.workload.own_rate_rps is None


def micro_name(prompt: int, generated: int, depth: int) -> str:
    """Return llama-bench's name of the test: pp512, tg128, pp512+tg128, pp512 @ d4096."""
    parts = []
    if prompt:
        parts.append(f"pp{prompt}")
    if generated:
        parts.append(f"tg{generated}")
    name = "+".join(parts)
    return f"{name} @ d{depth}" if depth else name
