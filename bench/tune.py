"""How much of a full grid's best `dyno tune` finds, and in what part of the time, on the embedded llama.cpp.

    python bench/tune.py [--trials 10] [--seconds 2] [--runs DIR]

The grid has 32 settings of slots, batch, threads, KV type and quantization of dyno-5m. Both searches begin in folders
of their own, so that nothing is shared. The best of each is then measured in turn, with the default. Run it on an
idle machine: with two busy cores, repeats of one setting differed by a factor of 4.7, and the ratio was 0.76 once and
1.19 the next time.
"""

import argparse
import itertools
import random
import statistics
import sys
import time
from pathlib import Path

from dyno.cli.run import key_headers
from dyno.conduct import study_plan
from dyno.conduct.study import StudyWatcher
from dyno.facts.tune import Setting, words
from dyno.probe import rig
from dyno.search.proposer import key_of
from dyno.search.tune import Tuner
from dyno.search.tune_plan import TunePlan, folder_for

AXES = {
    "max_num_seqs": [1, 8],
    "max_batched_tokens": [64, 512],
    '"--threads"': [1, 2],
    "kv_cache_dtype": ["fp16", "q8_0"],
    "quantization": ["F16", "Q4_0"],
}
STUDY = """
name = "{name}"
[engines.llama]
kind = "llamacpp"
quantization = "Q8_0"
[workloads.chat]
input_len = 64
output_len = 32
num_prompts = 64
[loads.eight]
max_concurrency = 8
[tune]
trials = {trials}
seconds = {seconds}
confirm_repeats = 0
"""


def tuner(options: argparse.Namespace, name: str, trials: int) -> Tuner:
    text = STUDY.format(name=name, trials=trials, seconds=options.seconds)
    text += "".join(f"settings.{key} = {values!r}\n" for key, values in AXES.items())
    path = options.runs / f"{name}.toml"
    path.write_text(text)
    study, text = study_plan.read(path)
    plan = TunePlan(study)
    return Tuner(
        plan,
        text,
        folder_for(options.runs, plan),
        rig.read_machine(),
        key_headers,
        StudyWatcher(),
    )


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--trials", type=int, default=10)
    p.add_argument("--seconds", type=float, default=2.0)
    p.add_argument("--runs", type=Path, default=Path("runs/bench-tune"))
    options = p.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)

    began = time.monotonic()
    search = tuner(options, "search", options.trials)
    answer = search.run(lambda _: "")
    search_s = time.monotonic() - began
    assert answer.best is not None

    began = time.monotonic()
    grid = tuner(options, "grid", 1000)
    keys = [key.strip('"') for key in AXES]
    every: list[Setting] = [
        dict(zip(keys, v, strict=True)) for v in itertools.product(*AXES.values())
    ]
    random.Random(0).shuffle(every)  # in rising order each would be the best so far
    # by the rules of the search: the best third so far gets a longer load
    for setting in every:
        grid.trials[key_of(setting)] = grid.attempt(setting)
    grid_s = time.monotonic() - began
    best = max(
        (t for t in grid.trials.values() if t.long_value and not t.objection),
        key=lambda t: t.long_value or 0.0,
    )

    sides = {"default": {}, "search": answer.best.setting, "grid": best.setting}
    values: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(3, 6):  # the second is the longer load that chose the best
        for name, setting in sides.items():
            values[name].append(grid.measure(setting, repeat).value or 0.0)
    median = {name: statistics.median(v) for name, v in values.items()}
    print(
        f"search: {words(answer.best.setting)}, {len(answer.trials)} of {len(every)} settings, {search_s:.0f} s"
    )
    print(f"grid:   {words(best.setting)}, {len(every)} settings, {grid_s:.0f} s")
    print(
        f"the search has {median['search'] / median['grid']:.1%} of the grid's best in {search_s / grid_s:.0%} of its"
    )
    print(
        f"time, and {median['search'] / median['default']:.2f} times the default's throughput"
    )
    print(values, file=sys.stderr)


if __name__ == "__main__":
    main()
