"""A trial: one workload and load on one target. All that is needed to run it again."""

from typing import Annotated, Any

import msgspec

from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.target import TargetSpec
from dyno.facts.workload import WorkloadSpec
from dyno.option import Option


class TrialSpec(msgspec.Struct, frozen=True):
    target: TargetSpec
    workload: WorkloadSpec
    load: LoadSpec
    tokenizer: Annotated[str | None, Option("--tokenizer", "PATH|NAME")] = None
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="answers as long as asked; always on for the random dataset")
    ] = False
    sampling: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    percentiles: list[float] = msgspec.field(default_factory=lambda: [99.0])
    goodput_ms: dict[str, float] = {}  # ttft, tpot, e2el → at most so many milliseconds, counted from sent
    ready_check_timeout_s: Annotated[  # None: one test request, without waiting; in runs of older versions 0, none
        float | None,
        Option("--ready-check-timeout-sec", "S",
               "wait up to S seconds for one successful test request; 0 skips it (default: one test, no waiting)",
               least=0),
    ] = None  # fmt: skip
    label: Annotated[str | None, Option("--label")] = None
    metadata: Annotated[dict[str, str], Option("--metadata", "KEY=VALUE", nargs="*")] = {}
    kind: str = "serve"
    offline: OfflineSpec | None = None  # of the other kinds; then the load says nothing
    reset_cache: Annotated[
        bool, Option("--reset-prefix-cache", help="empty a running server's prefix cache before the load")
    ] = False
    engine: EngineSpec | None = None  # dyno starts it, or, of the kind openai, knows what the server should be


def micro_name(prompt: int, generated: int, depth: int) -> str:
    """As llama-bench calls the test: pp512, tg128, pp512+tg128, pp512 @ d4096."""
    parts = [f"pp{prompt}"] * bool(prompt) + [f"tg{generated}"] * bool(generated)
    return "+".join(parts) + (f" @ d{depth}" if depth else "")
