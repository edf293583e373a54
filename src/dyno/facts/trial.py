"""A trial: one workload and load on one target. All that is needed to run it again."""

from typing import Any

import msgspec

from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.target import TargetSpec
from dyno.facts.workload import WorkloadSpec


class TrialSpec(msgspec.Struct, frozen=True):
    target: TargetSpec
    workload: WorkloadSpec
    load: LoadSpec
    tokenizer: str | None = None
    ignore_eos: bool = False
    sampling: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    percentiles: list[float] = msgspec.field(default_factory=lambda: [99.0])
    goodput_ms: dict[str, float] = {}  # ttft, tpot, e2el → at most so many milliseconds, counted from sent
    ready_check_timeout_s: float = 0.0
    label: str | None = None
    metadata: dict[str, str] = {}
    kind: str = "serve"
    offline: OfflineSpec | None = None  # of the other kinds; then the load says nothing
    reset_cache: bool = False  # empty the server's prefix cache before the load
    engine: EngineSpec | None = None  # dyno starts it, or, of the kind openai, knows what the server should be


def micro_name(prompt: int, generated: int, depth: int) -> str:
    """As llama-bench calls the test: pp512, tg128, pp512+tg128, pp512 @ d4096."""
    parts = [f"pp{prompt}"] * bool(prompt) + [f"tg{generated}"] * bool(generated)
    return "+".join(parts) + (f" @ d{depth}" if depth else "")
