"""A dry run's assumptions against what was measured: on an H200 with dyno, and in the reports in published/.

A pace is right within a factor of 2 where a current engine ran, and in the median of most reports. Two builds of vLLM
from October 2024, on eight MI300X, were three and six times slower than anything else here: they stay outside.
"""

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dyno.conduct.estimate import AROUND_S, assumed_pace, assumed_start_s
from dyno.facts.load import LoadSpec
from dyno.facts.rig import Peaks
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.probe import peaks
from dyno.study.duration import trial_s
from dyno.workload.spec import WorkloadSpec

PUBLISHED = Path(__file__).parents[2] / "published"
# in 16 bits
WEIGHTS_BYTES = {"405b": 811.7e9, "70b": 141.1e9, "7b": 13.48e9, "8b": 16.06e9}
BITS = {"fp8": 8, "w8a8": 8, "q8_0": 8.5, "q4_k_m": 4.85, "gptq": 4.2}
SLOW_BUILDS = {
    "h100-mi300x-llama-405b, vllm, 8 × MI300X, Meta's FP8",
    "mi300x-llama-405b-tgi-vllm, vllm, 8 × MI300X",
}


class MeasuredLoad(NamedTuple):
    kind: str
    weights_bytes: float
    accelerator: str
    count: int
    streams: int
    prompts: int
    input_len: int
    output_len: int
    duration_s: float

    @property
    def ratio(self) -> float:
        """Assumed divided by measured."""
        work = WorkloadSpec(
            "random",
            num_prompts=self.prompts,
            input_len=self.input_len,
            output_len=self.output_len,
        )
        trial = TrialSpec(
            TargetSpec("", "openai", "/v1/completions"),
            work,
            LoadSpec(max_concurrency=self.streams),
        )
        return (
            trial_s(trial, assumed_pace(self.weights_bytes, known_peaks(self), self.kind))
            / self.duration_s
        )


def known_peaks(load: MeasuredLoad) -> Peaks:
    found = peaks.of_name(load.accelerator, load.count)
    assert found, load.accelerator
    return found


# ---- an H200, by dyno: an 8B shape, 512 tokens in and 128 out ----

# Concurrency → seconds of a request, in the mean of two runs. In a closed loop so many complete in that time.
ON_H200 = {
    "vllm": {1: 0.644, 16: 0.853, 64: 1.608},
    "sglang": {1: 0.626, 16: 0.850, 64: 1.568},
    "llamacpp": {1: 0.691, 16: 4.379, 64: 7.791},
}
STARTS_ON_H200_S = {"vllm": 104.9, "sglang": 105.5, "llamacpp": 3.3}
AROUND_ON_H200_S = (3.1, 5.7)  # of each trial, from the least to the most


@pytest.mark.parametrize("kind", ON_H200)
def test_an_h200_s_loads_take_what_is_assumed_within_a_factor_of_two(kind: str) -> None:
    for streams, request_s in ON_H200[kind].items():
        load = MeasuredLoad(
            kind, WEIGHTS_BYTES["8b"], "H200", 1, streams, streams, 512, 128, request_s
        )
        assert 0.49 < load.ratio < 2.05, (streams, load.ratio)


def test_an_h200_s_starts_and_the_rest_of_its_trials_are_as_assumed() -> None:
    assert assumed_start_s(None, "vllm") == pytest.approx(
        STARTS_ON_H200_S["vllm"], rel=0.5
    ), "weights were made up"
    assert assumed_start_s(None, "sglang") == pytest.approx(
        STARTS_ON_H200_S["sglang"], rel=0.5
    )
    # Its 16 GB were in the page cache; from a disk they take seconds.
    assert assumed_start_s(None, "llamacpp") < STARTS_ON_H200_S["llamacpp"]
    assert (
        assumed_start_s(WEIGHTS_BYTES["8b"], "llamacpp") < 4 * STARTS_ON_H200_S["llamacpp"]
    )
    least, most = AROUND_ON_H200_S
    assert least <= AROUND_S <= most


# ---- other machines, by the reports ----


def rows() -> Iterator[tuple[str, MeasuredLoad]]:
    for path in sorted(PUBLISHED.glob("*/*.json")):
        if "raw" in path.name or "curve" in path.name:
            continue  # the same runs again
        for row in json.loads(path.read_text())["document"].get("rows", []):
            settings, figures = (
                {k: v["value"] for k, v in row[part].items()}
                for part in ("settings", "figures")
            )
            if load := measured(settings, figures):
                checkpoint = (
                    ", Meta's FP8" if row.get("label") == "8xMi300x 1FP8-meta" else ""
                )
                yield (
                    f"{path.parent.name}, {settings['engine']}, {load.count} × {load.accelerator}{checkpoint}",
                    load,
                )


def measured(settings: dict[str, Any], figures: dict[str, float]) -> MeasuredLoad | None:
    """Return a load whose size and time are reported; None: something of it isn't."""
    completed = figures.get("completed")
    name = str(settings.get("model", "")).lower()
    model = next((key for key in WEIGHTS_BYTES if key in name), None)
    if (
        not completed
        or model is None
        or "duration_s" not in figures
        or settings.get("rate") not in ("inf", None)
    ):
        return None
    each = {
        key: figures.get(
            f"total_{key}_tokens", completed * settings.get(f"{key}_len", math.nan)
        )
        / completed
        for key in ("input", "output")
    }
    if any(map(math.isnan, each.values())):
        return None
    words = f"{settings.get('quantization', '')} {name}".lower()
    bits = next((bits for key, bits in BITS.items() if key in words), 16)
    return MeasuredLoad(
        kind="llamacpp" if settings["engine"] == "llama.cpp" else settings["engine"],
        weights_bytes=WEIGHTS_BYTES[model] * bits / 16,
        accelerator=re.sub("(?i)^mi300x?$", "MI300X", settings["accelerator"]),
        count=settings.get("tensor_parallel", 1),
        streams=int(
            settings.get("concurrency") or settings.get("num_prompts") or completed
        ),
        prompts=int(completed),
        input_len=round(each["input"]),
        output_len=round(each["output"]),
        duration_s=figures["duration_s"],
    )


def test_published_runs_take_what_is_assumed_within_a_factor_of_two_in_the_median() -> None:
    groups: dict[str, list[float]] = defaultdict(list)
    for name, load in rows():
        groups[name].append(load.ratio)
    medians = {name: statistics.median(ratios) for name, ratios in groups.items()}
    assert len(medians) >= 9 and sum(map(len, groups.values())) > 100
    assert medians.keys() > SLOW_BUILDS
    outside = {name for name, median in medians.items() if not 0.5 < median < 2}
    assert outside == SLOW_BUILDS, medians
