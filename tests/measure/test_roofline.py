"""Shares of the peaks: by hand-made figures whose shares are known, and never too high."""

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno.engines import model as own_model
from dyno.facts.engine import EngineSpec
from dyno.facts.model import ModelShape
from dyno.facts.offline import OfflineSummary, Speculation
from dyno.facts.rig import Accelerator, Peaks, Roofline, Share
from dyno.facts.spread import Distribution, Latency, Spread
from dyno.facts.summary import ClientSummary, Steady, Summary
from dyno.facts.target import TargetFacts
from dyno.facts.telemetry import EngineTelemetry, TelemetrySummary
from dyno.measure import roofline
from dyno.measure.roofline import Loaded, as_loaded
from dyno.probe import model, peaks
from dyno.report.machine import roofline_pairs

VLLM = EngineSpec("vllm")
TARGET = TargetFacts("m", dtype="bf16")
H200 = peaks.of_accelerators([Accelerator(0, "NVIDIA H200", "nvidia")]).peaks
assert H200 is not None
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = {
    **LLAMA_8B,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
BODY_8B = 8_030_261_248 - 266_240 - 2 * 128256 * 4096  # but for norms


def of_config(tmp_path: Path, **config: Any) -> ModelShape:
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = model.read(tmp_path)
    assert shape is not None
    return shape


@pytest.fixture
def llama(tmp_path: Path) -> ModelShape:
    return of_config(tmp_path, **LLAMA_8B)


def loaded(
    shape: ModelShape, spec: EngineSpec | None = None, target: TargetFacts | None = None
) -> Loaded:
    held = as_loaded(shape, spec, target)
    assert held is not None
    return held


def one(mean: float, count: int = 1) -> Distribution:
    return Distribution(count, mean, mean, 0.0, {"99": mean})


def known(mean: float) -> Latency:
    return Latency(1, mean, mean, 0.0, {"99": mean})


def served(
    tpot_ms: float = 4.906,
    streams: float = 1.0,
    inputs: int = 512,
    outputs: int = 128,
    ttft_ms: float = 25.0,
    **more: Any,
) -> Summary:
    """A hundred requests, their decoding and prefill by these figures."""
    each_s = (ttft_ms + tpot_ms * (outputs - 1)) / 1000
    duration_s = 100 * each_s / streams
    throughput = 100 * outputs / duration_s
    client = ClientSummary(True, 0.1, one(0.0), 0.0, 0.0, 0.0, 0.0, streams, round(streams))
    values: dict[str, Any] = {
        "duration_s": duration_s, "planned": 100, "sent": 100, "completed": 100, "failed": 0, "failures": {},
        "failure_examples": {}, "outcome": "complete", "end_at_once": 0, "resent": 0,
        "total_input_tokens": 100 * inputs, "total_output_tokens": 100 * outputs, "wanted_output_tokens": 100 * outputs,
        "planned_input_tokens": 100 * inputs, "cached_input_tokens": None, "tokens_by": {"usage": 100},
        "chunks": 100 * outputs, "empty_chunks": 0, "reasoning": 0, "finish_reasons": {}, "models_answered": {},
        "request_throughput": 100 / duration_s, "output_throughput": throughput, "total_token_throughput": 0.0,
        "goodput": None, "peak_output_tokens_per_s": 0.0, "wait": None, "at_once": 0, "client": client,
        "latencies": {
            "ttft": known(ttft_ms), "tpot": known(tpot_ms), "itl": known(tpot_ms), "e2el": known(1000 * each_s),
        },
        "steady": Steady(0.0, duration_s, 100 / duration_s, throughput, streams),
    }  # fmt: skip
    return Summary(**{**values, **more})


def shares(r: Roofline | None) -> dict[str, Share]:
    assert r is not None
    return {share.what: share for share in r.shares}


# ---- what is held ----


def test_input_embeddings_are_not_read_unless_they_are_the_head(tmp_path: Path) -> None:
    table = 128256 * 4096
    apart = loaded(of_config(tmp_path, **LLAMA_8B), VLLM)
    assert apart.dense_bytes == 2 * (BODY_8B + table)
    tied = loaded(of_config(tmp_path, **LLAMA_8B, tie_word_embeddings=True), VLLM)
    assert tied.dense_bytes == 2 * (BODY_8B + table)
    assert (tied.body_parameters, tied.head_parameters) == (BODY_8B, table)


@pytest.mark.parametrize(
    ("spec", "target", "body", "head", "precision"),
    [
        (VLLM, None, 2.0, 2.0, "bf16"),
        (EngineSpec("vllm", dtype="float32"), None, 4.0, 4.0, "tf32"),
        (
            EngineSpec("vllm", dtype="auto"),
            TargetFacts("m", dtype="torch.float16"),
            2.0,
            2.0,
            "bf16",
        ),
        (EngineSpec("vllm", dtype="half"), None, 2.0, 2.0, "fp16"),
        (EngineSpec("vllm", quantization="fp8"), None, 1.0, 2.0, "fp8"),
        (VLLM, TargetFacts("m", quantization="fp8"), 1.0, 2.0, "fp8"),
        (EngineSpec("vllm", quantization="bitsandbytes"), None, 0.5, 2.0, "bf16"),
        (EngineSpec("vllm", quantization="bf16"), None, 2.0, 2.0, "bf16"),
    ],
)
def test_unquantized_files_are_held_as_the_engine_converts_them(
    llama: ModelShape,
    spec: EngineSpec,
    target: TargetFacts | None,
    body: float,
    head: float,
    precision: str,
) -> None:
    held = loaded(llama, spec, target)
    assert held.dense_bytes == body * BODY_8B + head * 128256 * 4096
    assert roofline.precision_of(held, H200) == precision


@pytest.mark.parametrize("quantization", own_model.QUANTIZATIONS)
def test_a_gguf_file_is_held_as_it_lies(quantization: str) -> None:
    path = own_model.build(quantization)
    shape = model.read(path)
    assert shape is not None
    held = loaded(shape, EngineSpec("llamacpp", quantization=quantization))
    # the embeddings are the output layer too
    assert held.dense_bytes == sum(shape.bytes_by_type.values())
    assert held.body_parameters + held.head_parameters == 5_246_208
    assert held.kv_bytes(100) == 100 * 2 * 6 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("spec", "width"),
    [
        (VLLM, 2.0),
        (EngineSpec("vllm", kv_cache_dtype="fp8_e4m3"), 1.0),
        (EngineSpec("vllm", dtype="float32"), 4.0),
        (EngineSpec("llamacpp", kv_cache_dtype="q8_0"), 34 / 32),
        (EngineSpec("llamacpp", kv_cache_dtype="q4_0"), 18 / 32),
        (EngineSpec("llamacpp", dtype="float32"), 2.0),
    ],
)
def test_the_kv_cache_has_a_width_of_its_own(
    llama: ModelShape, spec: EngineSpec, width: float
) -> None:
    assert loaded(llama, spec).kv_bytes(10) == 10 * 2 * 32 * 8 * 128 * width


def test_experts_are_read_as_far_as_a_batch_touches_them(tmp_path: Path) -> None:
    held = loaded(of_config(tmp_path, **MIXTRAL), VLLM)
    experts = 2 * 32 * 8 * 3 * 4096 * 14336
    assert (
        held.weights_bytes(1)
        == held.least_bytes
        == pytest.approx(held.dense_bytes + experts / 4)
    )
    assert held.weights_bytes(4) == pytest.approx(
        held.dense_bytes + experts * (1 - 0.75**4)
    )
    assert held.weights_bytes(1000) == pytest.approx(held.dense_bytes + experts)
    assert held.body_parameters + held.head_parameters == pytest.approx(12.75e9, rel=0.01)


def test_experts_of_unknown_use_give_no_roofline(tmp_path: Path) -> None:
    shape = msgspec.structs.replace(of_config(tmp_path, **MIXTRAL), experts_used=None)
    assert as_loaded(shape, VLLM) is None
    hidden = msgspec.structs.replace(of_config(tmp_path, **MIXTRAL), expert_parameters=0)
    assert as_loaded(hidden, VLLM) is None
    assert roofline.of_served(served(), shape, VLLM, TARGET, H200) is None


# ---- serving ----


def test_an_8b_model_on_an_h200_reads_64_per_cent_of_its_bandwidth(
    llama: ModelShape,
) -> None:
    """vLLM 0.24, Llama-3.1-8B, bf16, one stream of 512/128: a TPOT of 4.906 ms was measured."""
    found = shares(roofline.of_served(served(4.906), llama, VLLM, TARGET, H200))
    decode = found["decode"]
    assert decode.bandwidth == pytest.approx(0.640, abs=0.003)
    assert decode.bandwidth_least == pytest.approx(decode.bandwidth, rel=0.01)
    assert decode.arithmetic == pytest.approx(
        (2 * 7.5e9 + 0.3e9) / 4.906e-3 / 989e12, rel=0.01
    )
    assert "15.08 GB in 4.906 ms" in decode.about and "4,800 GB/s" in decode.about
    assert decode.streams == 1.0
    # 512 tokens × 2 × 6.98 G in 25 ms.
    assert found["prefill"].arithmetic == pytest.approx(
        512 * 2 * 6.98e9 / 0.025 / 989e12, rel=0.02
    )
    assert (
        found["whole"].arithmetic is not None
        and found["whole"].arithmetic < found["prefill"].arithmetic
    )


def test_a_batch_reads_the_cache_of_each_request_and_the_weights_once(
    llama: ModelShape,
) -> None:
    decode = shares(
        roofline.of_served(
            served(10.0, streams=64, ttft_ms=0.001), llama, VLLM, TARGET, H200
        )
    )["decode"]
    cache = decode.streams * (512 + 64) * 131072
    assert decode.streams == pytest.approx(64, rel=0.01)
    assert decode.bandwidth == pytest.approx((15.01e9 + cache) / 0.01 / 4.8e12, rel=0.003)
    assert decode.arithmetic == pytest.approx(64 * 15.3e9 / 0.01 / 989e12, rel=0.03)


def test_streams_that_wait_read_nothing(llama: ModelShape) -> None:
    """Half of their lives the requests waited for their first token."""
    waiting = served(10.0, streams=64, ttft_ms=1270.0)
    assert shares(roofline.of_served(waiting, llama, VLLM, TARGET, H200))[
        "decode"
    ].streams == pytest.approx(32, rel=0.02)
    few = TargetFacts("m", slots=4)
    assert (
        shares(roofline.of_served(waiting, llama, VLLM, few, H200))["decode"].streams == 4
    )


def test_copies_share_the_streams_and_each_reads_its_own_weights(llama: ModelShape) -> None:
    two = EngineSpec("vllm", replicas=2)
    pair = msgspec.structs.replace(H200, count=2, bandwidth=2 * H200.bandwidth)
    alone = shares(
        roofline.of_served(served(5.0, streams=8, ttft_ms=0.001), llama, VLLM, TARGET, H200)
    )["decode"]
    both = shares(
        roofline.of_served(served(5.0, streams=16, ttft_ms=0.001), llama, two, TARGET, pair)
    )["decode"]
    assert both.streams == alone.streams
    assert both.bandwidth == pytest.approx(alone.bandwidth)
    assert "2 copies" in both.about


def drafting(length: float | None) -> TelemetrySummary:
    engine = EngineTelemetry(
        0, 10, drafted_tokens=100, accepted_tokens=50, accepted_length_mean=length
    )
    return TelemetrySummary(0.2, 1.0, 0.0, 0.2, engines=[engine])


def test_with_drafts_a_step_gives_several_tokens(llama: ModelShape) -> None:
    plain = shares(roofline.of_served(served(), llama, VLLM, TARGET, H200))["decode"]
    spec = EngineSpec("vllm", draft_model="small", draft_tokens=4)
    fast = shares(
        roofline.of_served(served(4.906 / 2.5), llama, spec, TARGET, H200, drafting(2.5))
    )["decode"]
    assert fast.bandwidth == pytest.approx(plain.bandwidth, rel=0.01)
    assert fast.arithmetic == pytest.approx(2.5 * plain.arithmetic, rel=0.01)
    by_flag = EngineSpec("vllm", args=["--speculative-config", "{}"])
    assert "decode" not in shares(
        roofline.of_served(served(1.0), llama, by_flag, TARGET, H200)
    )
    assert "decode" not in shares(
        roofline.of_served(served(1.0), llama, VLLM, TARGET, H200, drafting(None))
    )


def test_prompts_from_a_cache_are_not_counted(llama: ModelShape) -> None:
    cold = shares(roofline.of_served(served(), llama, VLLM, TARGET, H200))["prefill"]
    warm = shares(
        roofline.of_served(served(cached_input_tokens=25_600), llama, VLLM, TARGET, H200)
    )["prefill"]
    assert warm.arithmetic == pytest.approx(cold.arithmetic / 2, rel=0.02)
    counted = TelemetrySummary(
        0.2, 1.0, 0.0, 0.2, engines=[EngineTelemetry(0, 10, prefix_hit_tokens=25_600)]
    )
    assert (
        shares(roofline.of_served(served(), llama, VLLM, TARGET, H200, counted))["prefill"]
        == warm
    )
    several = served(streams=4)
    assert "prefill" not in shares(roofline.of_served(several, llama, VLLM, TARGET, H200))


def test_nothing_completed_is_not_a_roofline(llama: ModelShape) -> None:
    assert roofline.of_served(served(completed=0), llama, VLLM, TARGET, H200) is None


# ---- offline ----


def offline(kind: Any, **fields: Any) -> OfflineSummary:
    values: dict[str, Any] = {
        "iterations": 3, "requests": 1, "duration_s": 10.0, "completed": 3, "failed": 0, "failure_example": None,
        "input_tokens": 0, "cached_input_tokens": None, "output_tokens": 0, "wanted_output_tokens": 0,
        "latency": one(1000.0), "first_latency_ms": 1000.0, "request_throughput": Spread(3, 1.0, 0.0),
        "output_throughput": Spread(3, 0.0, 0.0), "total_token_throughput": Spread(3, 0.0, 0.0),
    }  # fmt: skip
    return OfflineSummary(kind, **{**values, **fields})


def test_a_single_request_s_decoding_is_compared_with_the_bandwidth(
    llama: ModelShape,
) -> None:
    tg = offline(
        "micro",
        output_tokens=384,
        output_throughput=Spread(3, 200.0, 1.0),
        context_mean=64.0,
    )
    decode = shares(roofline.of_offline(tg, llama, VLLM, None, H200))["decode"]
    assert decode.bandwidth == pytest.approx(200 * 15.01e9 / 4.8e12, rel=0.002)
    pp = offline(
        "micro", input_tokens=3 * 512, total_token_throughput=Spread(3, 20_000.0, 1.0)
    )
    found = shares(roofline.of_offline(pp, llama, VLLM, None, H200))
    assert found["prefill"].arithmetic == pytest.approx(
        20_000 * 2 * 6.98e9 / 989e12, rel=0.01
    )
    assert "decode" not in found


def test_a_batch_s_decoding_is_by_how_many_decode_at_once(llama: ModelShape) -> None:
    batch = offline(
        "latency", requests=8, completed=24, input_tokens=24 * 32, output_tokens=24 * 128, context_mean=96.0,
        tpot_ms=Spread(3, 5.0, 0.0), decode_speed=Spread(3, 1600.0, 0.0), prefill_speed=Spread(3, 9000.0, 0.0),
    )  # fmt: skip
    found = shares(roofline.of_offline(batch, llama, VLLM, None, H200))
    assert found["decode"].streams == 8
    assert found["decode"].bandwidth == pytest.approx(
        (15.01e9 + 8 * 96 * 131072) / 0.005 / 4.8e12, rel=0.002
    )
    assert found["prefill"].arithmetic is not None and found["whole"].arithmetic is not None
    # the prompt gave the first token of each
    half = (batch.output_tokens - batch.completed) // 2
    batch = msgspec.structs.replace(batch, decoded_tokens=2 * half)
    # in each step, or in few: n-grams aren't found everywhere
    for drafts in (half, half // 4):
        drafted = msgspec.structs.replace(
            batch, speculation=Speculation(drafts, 4 * drafts, half)
        )
        assert shares(roofline.of_offline(drafted, llama, VLLM, None, H200))[
            "decode"
        ].bandwidth == pytest.approx(found["decode"].bandwidth / 2)


def test_a_throughput_run_of_which_only_the_whole_is_known_has_only_that(
    llama: ModelShape,
) -> None:
    run = offline(
        "throughput", requests=100, completed=100, input_tokens=51_200, output_tokens=12_800
    )
    assert list(shares(roofline.of_offline(run, llama, VLLM, None, H200))) == ["whole"]


# ---- caches and precisions ----

CPU = Peaks(
    "a processor", 1, 36e9, {"fp32": 7e10, "fp16": 1.4e11, "bf16": 7e10, "int8": 2.8e11}, "measured", measured=True,
    bandwidth_by_size={4 << 20: 47e9, 32 << 20: 43e9, 512 << 20: 36e9},
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "rate"),
    [(1 << 20, None), (4 << 20, 47e9), (31 << 20, 47e9), (40 << 20, 43e9), (10**10, 36e9)],
)
def test_what_fits_a_cache_is_compared_with_the_cache(
    size: int, rate: float | None
) -> None:
    assert roofline.bandwidth_at(CPU, size) == rate


def test_what_fits_an_accelerators_cache_has_no_share_of_its_bandwidth() -> None:
    shape = model.read(own_model.build("F16"))
    assert shape is not None
    found = shares(
        roofline.of_served(
            served(0.1), shape, EngineSpec("llamacpp"), TargetFacts("m"), H200
        )
    )["decode"]
    assert found.bandwidth is None and found.bandwidth_least is None
    assert "a cache of unknown speed" in found.about


def test_blocks_of_four_bits_are_multiplied_as_integers() -> None:
    shape = model.read(own_model.build("Q4_0"))
    assert shape is not None
    result = roofline.of_served(
        served(10.0), shape, EngineSpec("llamacpp"), TargetFacts("m"), CPU
    )
    assert result is not None and result.precision == "int8"
    assert result.weights_bytes == (5_246_208 - 13 * 256) * 4.5 / 8 + 13 * 256 * 4
    assert shares(result)["decode"].bandwidth == pytest.approx(
        (result.weights_bytes + 576 * result.kv_bytes) / 0.01 / 47e9, rel=0.001
    )


# ---- printed ----


def test_the_shares_are_printed_with_the_peaks(llama: ModelShape) -> None:
    result = roofline.of_served(served(4.906), llama, VLLM, TARGET, H200)
    assert result is not None
    reported = dict(roofline_pairs(result))
    assert reported["Memory bandwidth used (decode):"] == "64.1 %"
    assert reported["  Peaks:"] == "NVIDIA H200: 4,800 GB/s, 989.4 T/s in bf16"
    assert "Memory bandwidth used (prefill):" not in reported
    assert roofline_pairs(msgspec.structs.replace(result, shares=[])) == []


def test_a_roofline_is_read_back_as_it_was_written(llama: ModelShape) -> None:
    result = roofline.of_served(served(4.906), llama, VLLM, TARGET, CPU)
    assert msgspec.json.decode(msgspec.json.encode(result), type=Roofline) == result


def test_a_quantized_checkpoint_counts_as_it_lies(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj"
    head = {
        f"{name}.qweight": {"dtype": "I32", "shape": [8, 16], "data_offsets": [0, 512]},
        f"{name}.scales": {"dtype": "F16", "shape": [1, 16], "data_offsets": [512, 544]},
        "model.embed_tokens.weight": {
            "dtype": "F16",
            "shape": [10, 8],
            "data_offsets": [544, 704],
        },
        "lm_head.weight": {"dtype": "F16", "shape": [10, 8], "data_offsets": [704, 864]},
    }
    text = json.dumps(head).encode()
    (tmp_path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + bytes(864)
    )
    shape = of_config(
        tmp_path,
        num_hidden_layers=1,
        quantization_config={"quant_method": "gptq", "bits": 4},
    )
    held = loaded(shape, EngineSpec("vllm", quantization="gptq"))
    assert held.dense_bytes == 512 + 32 + 160
    assert (held.body_parameters, held.head_parameters) == (1024, 80)
    assert held.precisions == ("bf16", "fp16")


@pytest.mark.parametrize(
    ("args", "width"),
    [
        ([], 2.0),
        (["--cache-type-k", "q4_0", "--cache-type-v", "q4_0"], 18 / 32),
        (["-ctk", "q8_0"], (34 / 32 + 2) / 2),
        (["--cache-type-v=f32"], 3.0),
        (["-ctk", "of-tomorrow", "-ctv", "of-tomorrow"], 0.5),  # not known: the smallest
    ],
)
def test_the_kv_caches_types_may_be_given_by_llama_cpps_own_flags(
    llama: ModelShape, args: list[str], width: float
) -> None:
    spec = EngineSpec("llamacpp", model="m.gguf", args=args)
    loaded = as_loaded(llama, spec)
    assert loaded is not None and loaded.kv_width == pytest.approx(width)


def test_a_prefix_that_all_share_may_be_read_once(llama: ModelShape) -> None:
    batch = offline(
        "throughput", requests=256, completed=256, input_tokens=256 * 8320, output_tokens=256 * 128,
        cached_input_tokens=255 * 8192, context_mean=8384.0, tpot_ms=Spread(1, 12.0, 0.0),
        decode_speed=Spread(1, 256 / 0.012, 0.0),
    )  # fmt: skip
    decode = shares(roofline.of_offline(batch, llama, VLLM, None, H200, 8192))["decode"]
    assert decode.bandwidth is not None and decode.bandwidth > 1, "as if each read its own"
    assert decode.bandwidth_least is not None and decode.bandwidth_least < 0.5


def test_a_prompt_after_a_long_context_attends_to_it(llama: ModelShape) -> None:
    def prefill(cached: int) -> float:
        test = offline(
            "micro", completed=1, input_tokens=512 + cached, output_tokens=0, cached_input_tokens=cached,
            prefill_speed=Spread(5, 30_000.0, 0.0),
        )  # fmt: skip
        return (
            shares(roofline.of_offline(test, llama, VLLM, None, H200))["prefill"].arithmetic
            or 0.0
        )

    more = 4 * 32 * 32 * 128 * 4096 * 30_000 / H200.flops["bf16"]
    assert prefill(4096) - prefill(0) == pytest.approx(more)
