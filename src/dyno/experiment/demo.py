"""The demo: one small model in two quantizations under three loads, on the engine that comes with dyno."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from dyno.engines import model
from dyno.engines.embedded import Embedded
from dyno.errors import StoreError
from dyno.experiment.trial import Outcome, Watcher, serve
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.facts.workload import WorkloadSpec
from dyno.load.progress import Stop

QUANTIZATIONS = ("F16", "Q8_0")
# (requests in flight, requests sent): enough for a steady window, few enough for a minute on two cores.
LEVELS = ((1, 10), (4, 24), (16, 64))
INPUT_TOKENS, OUTPUT_TOKENS = 32, 32
SLOTS, CONTEXT_PER_SLOT = 16, 512


class Row(msgspec.Struct, frozen=True):
    quantization: str
    concurrency: int
    outcome: Outcome


def demo(runs: Path, watcher: Watcher, stop: Stop) -> Iterator[Row]:
    """Row by row, until it is done or stopped; the engine is gone either way."""
    for quantization in QUANTIZATIONS:
        watcher.phase(f"{quantization}: building or loading the model, starting llama.cpp")
        path = model.build(quantization)
        alias = f"dyno-tiny-{quantization}"
        try:
            runs.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise StoreError(f"{runs} can't be made: {e.strerror}. Choose another place with --runs DIR.") from None
        log = runs / f"demo-engine-{quantization}.log"
        log.unlink(missing_ok=True)
        with Embedded.start(path, alias, SLOTS, CONTEXT_PER_SLOT, log) as engine:
            for concurrency, count in LEVELS:
                watcher.phase(f"{quantization}, {concurrency} in flight, {count} requests")
                trial = _trial(engine.base_url, alias, path.with_name("tokenizer.json"), concurrency, count)
                outcome = serve(trial, runs=runs, headers={}, watcher=_Quiet(watcher), stop=stop)
                yield Row(quantization, concurrency, outcome)
                if stop.requested:
                    return


class _Quiet(Watcher):
    """Passes the progress on and keeps a trial's own phases to itself."""

    def __init__(self, watcher: Watcher) -> None:
        self.progress = watcher.progress  # type: ignore[method-assign]
        self.over = watcher.over  # type: ignore[method-assign]


def _trial(base_url: str, alias: str, tokenizer: Path, concurrency: int, count: int) -> TrialSpec:
    return TrialSpec(
        target=TargetSpec(base_url=base_url, backend="openai", endpoint="/v1/completions", model=alias),
        workload=WorkloadSpec(
            dataset="random",
            num_prompts=count,
            num_warmups=concurrency,
            seed=concurrency,  # prompts that no earlier level has left in a cache
            input_len=INPUT_TOKENS,
            output_len=OUTPUT_TOKENS,
        ),
        load=LoadSpec(max_concurrency=concurrency),
        tokenizer=str(tokenizer),
        ignore_eos=True,
        sampling={"temperature": 0.0},
        percentiles=[90.0, 99.0],
        label="demo",
    )
