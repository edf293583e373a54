"""The bound, calculated from the hardware's peaks or measured by vLLM's own benchmark of its model."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dyno.explain.bounds import CALCULATED, MEASURED, HardwareBound, hardware_bound
from dyno.explain.columns import columns
from dyno.explain.split import split
from dyno.facts.engine import EngineSpec
from dyno.facts.forward import ForwardCase
from dyno.facts.rig import Accelerator
from dyno.facts.target import TargetFacts
from dyno.probe import model, peaks
from dyno.store.run import Run
from schedulers import Load, Rules, simulate

H200 = peaks.of_accelerators([Accelerator(0, "NVIDIA H200", "nvidia")]).peaks
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
# As `vllm bench forward --output-json` of vLLM 0.33 writes it: without what each rank adds.
RESULT: list[dict[str, Any]] = [
    {
        "case": "d1",
        "requests": [
            {"query_len": 1, "kv_len": 600, "num_draft_tokens": 0, "chunked": False}
        ],
        "median_us": 5000.0,
        "ranks": [{"num_tokens": 1, "kv_blocks": 38, "routing": "real"}],
    },
    {
        "case": "d64",
        "requests": [
            {"query_len": 1, "kv_len": kv, "num_draft_tokens": 0, "chunked": False}
            for kv in range(568, 632)
        ],
        "median_us": 8000.0,
        "ranks": [],
    },
    {
        "case": "p",
        "requests": [
            {"query_len": 512, "kv_len": 512, "num_draft_tokens": 0, "chunked": False}
        ],
        "median_us": 20000.0,
        "ranks": [],
    },
    {
        "case": "verify",
        "requests": [
            {"query_len": 4, "kv_len": 4096, "num_draft_tokens": 3, "chunked": False}
        ],
        "median_us": 6000.0,
        "ranks": [],
    },
]
CASES = msgspec.convert(RESULT, list[ForwardCase])


def bound_of(tmp_path: Path, forward: list[ForwardCase]) -> HardwareBound:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    shape = model.read(tmp_path)
    target = TargetFacts("m", dtype="bf16")
    bound = hardware_bound(shape, EngineSpec("vllm"), target, H200, None, forward)
    assert bound is not None
    return bound


def test_cases_of_one_prompt_and_of_decoding_are_distinguished() -> None:
    assert [case.case for case in CASES if case.decodes] == ["d1", "d64"]
    assert [case.case for case in CASES if case.prefills] == ["p"]


def test_a_measured_pass_is_the_bound_of_a_load_of_that_size(tmp_path: Path) -> None:
    c = columns(
        simulate(
            Rules(), Load(count=4, concurrency=1, prompt=(512, 512), output=(177, 177))
        ).records
    )
    bound = bound_of(tmp_path, CASES)
    assert bound.prefill_ns(c) == pytest.approx(20e6)
    # 176 tokens after the first, at a mean context of 600
    decode = bound.decode_ns(c, np.ones(4))
    assert decode == pytest.approx(176 * 5e6, rel=0.001)
    wide = bound.decode_ns(c, np.full(4, 64.0))
    assert wide == pytest.approx(176 * 8e6, rel=0.01)


def test_between_two_measured_batches_the_bound_is_between_theirs(tmp_path: Path) -> None:
    c = columns(
        simulate(
            Rules(), Load(count=4, concurrency=1, prompt=(512, 512), output=(177, 177))
        ).records
    )
    calculated, measured = bound_of(tmp_path, []), bound_of(tmp_path, CASES)
    times = [
        (measured.decode_ns(c, np.full(4, n)) / calculated.decode_ns(c, np.full(4, n)))[0]
        for n in (1.0, 8.0, 64.0, 200.0)
    ]
    assert min(times[0], times[2]) <= times[1] <= max(times[0], times[2])
    assert times[3] == pytest.approx(times[2])


def test_a_bound_says_whether_it_was_measured(tmp_path: Path) -> None:
    c = columns(simulate(Rules(), Load(), ("queue", "prefill", "decode")).records)
    for forward, about in (([], CALCULATED), (CASES, MEASURED)):
        s = split(c, bound_of(tmp_path, forward))
        bounds = [p for p in s.parts if p.name in ("prefill_bound", "decode_bound")]
        assert [p.about for p in bounds] == [about, about]
        assert all(("measured" in p.sources) == (about == MEASURED) for p in bounds)
        assert (sum(p.value for p in s.parts) == s.latency).all()


def test_a_run_has_the_result_that_lies_in_its_folder(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.forward() == []
    (tmp_path / "forward.json").write_text(json.dumps(RESULT))
    assert run.forward() == CASES


def test_the_calculated_bound_is_under_what_an_h200_was_measured_at(tmp_path: Path) -> None:
    """vLLM 0.24 with a model of this shape, one request at a time, 512 tokens in and 128 out: 640.6 ms."""
    load = Load(count=1, concurrency=1, prompt=(512, 512), output=(128, 128))
    c = columns(simulate(Rules(), load).records)
    bound = bound_of(tmp_path, [])
    decode = bound.decode_ns(c, np.ones(1))
    assert decode is not None
    whole_ms = float((bound.prefill_ns(c) + decode)[0]) / 1e6
    assert 0.5 * 640.6 < whole_ms < 640.6
