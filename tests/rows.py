"""Rows for tests: sound ones, to be spoilt in one place."""

from collections.abc import Sequence
from typing import Any

from dyno.compare.compare import decide, differences
from dyno.facts.comparison import Difference
from dyno.facts.imported import Figure, Row, Samples, Setting
from dyno.facts.metric import definition

# 1,000 requests of 200 + 100 tokens in 100 s, 32 at once: each takes 3.2 s, of which 0.23 to its first token.
SOUND = {
    "completed": 1000, "failed": 0, "duration_s": 100.0, "total_input_tokens": 200_000, "total_output_tokens": 100_000,
    "request_throughput": 10.0, "output_throughput": 1000.0, "total_token_throughput": 3000.0, "mean_ttft_ms": 230.0,
    "median_ttft_ms": 200.0, "p99_ttft_ms": 600.0, "mean_tpot_ms": 30.0, "median_tpot_ms": 30.0, "p99_tpot_ms": 40.0,
    "mean_itl_ms": 30.0, "median_itl_ms": 29.0, "p99_itl_ms": 60.0, "mean_e2el_ms": 3200.0, "median_e2el_ms": 3150.0,
    "p99_e2el_ms": 4500.0,
}  # fmt: skip
LOAD = {
    "concurrency": 32,
    "num_prompts": 1000,
    "dataset": "sharegpt",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
}


def row(
    figures: dict[str, float | None] | None = None, settings: dict[str, Any] | None = None, *, tool: str = "vllm",
    base: dict[str, float] = SOUND, load: dict[str, Any] = LOAD, line: int = 1, samples: Samples | None = None,
    half: float = 0.005, **more: Any,
) -> Row:  # fmt: skip
    """The sound one with other figures and settings; None takes one away."""
    reported = {k: v for k, v in {**base, **(figures or {})}.items() if v is not None}
    asked = {k: v for k, v in {**load, **(settings or {})}.items() if v is not None}
    kept = {
        name: Figure(
            float(value), line + i, 0.0 if float(value).is_integer() and not name.endswith("_ms") else half,
            definition(tool, name.removesuffix("_ms").rpartition("_")[2]) if name.endswith("_ms") else "",
            more.get("deviations", {}).get(name),
        )
        for i, (name, value) in enumerate(reported.items())
    }  # fmt: skip
    return Row(
        kind=more.get("kind", "serve"), tool=tool, form=more.get("form", "block"), file=more.get("file", "r.md"),
        line=line, end=line + 20, figures=kept, settings={k: Setting(v, line) for k, v in asked.items()},
        label=more.get("label", ""), series=more.get("series", ""), section=more.get("section", ""),
        table=more.get("table"), samples=samples,
    )  # fmt: skip


def micro(
    test: str,
    speed: float,
    model: str = "llama 7B Q4_0",
    deviation: float = 0.1,
    **settings: Any,
) -> Row:
    return row(
        {}, {"test": test, "model": model, **settings}, base={"speed": speed}, load={}, kind="micro",
        tool="llama-bench", deviations={"speed": deviation}, label=model,
    )  # fmt: skip


def score(value: float, error: float, **settings: Any) -> Row:
    reported = {
        "task": "biology",
        "metric": "exact_match",
        "filter": "none",
        "n_shot": 5,
        **settings,
    }
    return row(
        {},
        reported,
        base={"score": value, "stderr": error},
        load={},
        kind="quality",
        tool="lm-eval",
        half=5e-5,
    )


def offline(
    batch: int, tokens_s: float, seconds: float, series: str = "8xH100", **more: Any
) -> Row:
    return row(
        {}, {"batch_size": batch, "input_len": 2048, "output_len": 2048}, load={}, kind="throughput", form="csv",
        base={"total_token_throughput": tokens_s, "mean_latency_ms": seconds * 1000}, series=series, half=0.0, **more,
    )  # fmt: skip


def differ(a: Sequence[Row], b: Sequence[Row], metrics: Sequence[str]) -> list[Difference]:
    """One pair of groups, compared alone."""
    return decide([differences(list(a), list(b), metrics)])[0]
