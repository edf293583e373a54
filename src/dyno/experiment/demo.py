"""The demo: one small model in two quantizations under three loads, on the engine that comes with dyno."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from dyno.experiment.engine_plan import EnginePlan
from dyno.experiment.fleet import running
from dyno.experiment.trial import Outcome, Watcher, finish, on_fleet
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.facts.workload import WorkloadSpec
from dyno.load.progress import Stop
from dyno.probe import rig
from dyno.store.run import create

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
    the_rig = rig.look()
    for quantization in QUANTIZATIONS:
        watcher.phase(f"{quantization}: building or loading the model")
        spec = EngineSpec("llamacpp", quantization=quantization, max_num_seqs=SLOTS, max_model_len=CONTEXT_PER_SLOT)
        plan = EnginePlan(spec, the_rig)
        # Its log and facts lie beside the first of its runs.
        first = create(runs, f"demo-{quantization}-c{LEVELS[0][0]}")
        with running(plan, first.path, {}, watcher.phase, first.write_engine) as fleet:
            for concurrency, count in LEVELS:
                watcher.phase(f"{quantization}, {concurrency} in flight, {count} requests")
                run = first if concurrency == LEVELS[0][0] else create(runs, f"demo-{quantization}-c{concurrency}")
                run.write_engine(fleet.facts)
                tokenizer = on_fleet(run, _trial(concurrency, count), fleet, {}, _Quiet(watcher), stop)
                yield Row(quantization, concurrency, finish(run, tokenizer))
                if stop.requested:
                    return


class _Quiet(Watcher):
    """Passes the progress on and keeps a trial's own phases to itself."""

    def __init__(self, watcher: Watcher) -> None:
        self.progress = watcher.progress  # type: ignore[method-assign]
        self.over = watcher.over  # type: ignore[method-assign]


def _trial(concurrency: int, count: int) -> TrialSpec:
    return TrialSpec(
        target=TargetSpec(base_url="", backend="openai", endpoint="/v1/completions"),
        workload=WorkloadSpec(
            dataset="random",
            num_prompts=count,
            num_warmups=concurrency,
            seed=concurrency,  # prompts that no earlier level has left in a cache
            input_len=INPUT_TOKENS,
            output_len=OUTPUT_TOKENS,
        ),
        load=LoadSpec(max_concurrency=concurrency),
        ignore_eos=True,
        sampling={"temperature": 0.0},
        percentiles=[90.0, 99.0],
        label="demo",
    )
