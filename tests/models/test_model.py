"""A model's shape is read from the heads of its files, and nothing that lies there breaks the reading."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from dyno.engines import model as own_model
from dyno.facts.model import ModelShape
from dyno.probe import model
from dyno.probe.tensors import read_gguf, read_safetensors

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

WIDTHS = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16", "sliding_window": None,
}  # fmt: skip
DEEPSEEK_V3 = {
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 129280, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "quantization_config": {"quant_method": "fp8"}, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_30B = {
    "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "vocab_size": 151936, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "torch_dtype": "bfloat16",
}  # fmt: skip


def weights_file(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> Path:
    """Head and hole: the values themselves are never read."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, (kind, shape) in tensors.items():
        size = math.prod(shape) * WIDTHS[kind]
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + place)
    return path


def folder(
    path: Path, config: dict[str, Any], *files: dict[str, tuple[str, list[int]]]
) -> ModelShape:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for i, tensors in enumerate(files):
        weights_file(path / f"model-{i}.safetensors", tensors)
    shape = model.read(path)
    assert shape is not None
    return shape


# ---- safetensors ----

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "vocab_size": 100,
}
BODY = {f"model.layers.{i}.self_attn.q_proj.weight": ("BF16", [8, 8]) for i in range(2)}
TABLES = {
    "model.embed_tokens.weight": ("BF16", [100, 8]),
    "lm_head.weight": ("BF16", [100, 8]),
}


def test_all_files_are_counted_by_type_and_part(tmp_path: Path) -> None:
    norms = {"model.norm.weight": ("F32", [8])}
    shape = folder(tmp_path, TINY, {**BODY, **norms}, TABLES)
    assert shape.parameters == 2 * 64 + 8 + 2 * 800
    assert shape.bytes_by_type == {"BF16": 2 * (2 * 64 + 2 * 800), "F32": 32}
    assert (shape.embedding_parameters, shape.embedding_bytes, shape.head_bytes) == (
        800,
        1600,
        1600,
    )
    # with heads
    assert shape.weights_bytes is not None and shape.weights_bytes > sum(
        shape.bytes_by_type.values()
    )


def test_routed_experts_are_reported_from_shared_ones(tmp_path: Path) -> None:
    experts = {
        f"model.layers.1.mlp.experts.{i}.up_proj.weight": ("BF16", [8, 4]) for i in range(4)
    }
    shared = {"model.layers.1.mlp.shared_experts.up_proj.weight": ("BF16", [8, 4])}
    config = {**TINY, "n_routed_experts": 4, "num_experts_per_tok": 1}
    shape = folder(tmp_path, config, {**BODY, **experts, **shared})
    assert (shape.experts, shape.experts_used) == (4, 1)
    assert (shape.expert_parameters, shape.expert_bytes) == (4 * 32, 4 * 64)
    assert shape.active_parameters == 2 * 64 + 2 * 32


def test_what_text_does_not_pass_through_is_set_aside(tmp_path: Path) -> None:
    eyes = {"model.visual.blocks.0.attn.qkv.weight": ("BF16", [10, 10])}
    drafting = {
        "model.layers.2.embed_tokens.weight": ("BF16", [100, 8]),
        "mtp.fc.weight": ("BF16", [8, 8]),
    }
    rows = {"model.embed_tokens_per_layer.weight": ("BF16", [100, 4])}
    shape = folder(tmp_path, TINY, {**BODY, **TABLES, **eyes, **drafting, **rows})
    assert shape.aside_parameters == 100 + 800 + 64 + 400
    assert shape.embedding_parameters == 800


def test_packed_values_are_counted_as_what_they_hold(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj"
    gptq = {f"{name}.qweight": ("I32", [8, 16]), f"{name}.qzeros": ("I32", [1, 2]), f"{name}.scales": ("F16", [1, 16]),
            f"{name}.g_idx": ("I32", [64])}  # fmt: skip
    config = {**TINY, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    shape = folder(tmp_path, config, gptq)
    assert (shape.parameters, shape.quantization) == (64 * 16, "gptq")
    assert sum(shape.bytes_by_type.values()) == 512 + 8 + 32 + 256
    mx = {"model.layers.0.mlp.experts.up_proj_blocks": ("U8", [4, 16]),
          "model.layers.0.mlp.experts.up_proj_scales": ("U8", [4, 1])}  # fmt: skip
    (tmp_path / "mx").mkdir()
    assert folder(tmp_path / "mx", TINY, mx).expert_parameters == 128


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x05",
        bytes(8),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**30) + b"{}",
        struct.pack("<Q", 40) + b'{"a": {"dtype": "BF16", "shape": [2], ',  # cut
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 12) + b'{"a": {"b":1',
        struct.pack("<Q", 61)
        + b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}'
        + bytes(8),
        struct.pack("<Q", 63)
        + b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}}'
        + bytes(8),
        struct.pack("<Q", 62)
        + b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]} }'
        + bytes(8),
    ],
)
def test_a_broken_safetensors_head_is_refused_and_the_config_alone_counts(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError):
        read_safetensors(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    shape = model.read(tmp_path)
    assert shape is not None and shape.parameters == pytest.approx(8.03e9, rel=0.001)
    assert shape.bytes_by_type == {}


def test_an_absurd_length_of_a_head_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 10**11))
        file.truncate(2 * 10**11)
    with pytest.raises(ValueError, match="no safetensors header"):
        read_safetensors(path)


def test_dimensions_of_zero_are_not_parameters(tmp_path: Path) -> None:
    assert folder(tmp_path, TINY, {"a.weight": ("BF16", [0, 8])}).parameters == 0


# ---- a hub's cache ----


def test_a_hubs_name_is_found_where_it_was_fetched_to(tmp_path: Path) -> None:
    place = tmp_path / "hub/models--owner--small"
    (place / "snapshots/aaa").mkdir(parents=True)
    folder(place / "snapshots/aaa", LLAMA_8B)
    environ = {"HF_HOME": str(tmp_path)}
    found = model.of_hub("owner/small", environ)
    assert found is not None and found.layers == 32
    (place / "snapshots/bbb").mkdir()
    assert model.of_hub("owner/small", environ) is None  # which of the two, nothing says
    (place / "refs").mkdir()
    (place / "refs/main").write_text("aaa\n")
    assert model.of_hub("owner/small", environ) == found
    assert model.of_hub("owner/small", {"HF_HUB_CACHE": str(tmp_path / "hub")}) == found
    for name in ("owner/other", "small", "../owner/small", "", "/etc"):
        assert model.of_hub(name, environ) is None


# ---- a config alone ----


@pytest.mark.parametrize(
    ("config", "parameters", "active", "kv_values"),
    [
        (LLAMA_8B, 8.03e9, 8.03e9, 2 * 32 * 8 * 128),
        (MIXTRAL, 46.7e9, 12.9e9, 2 * 32 * 8 * 128),
        (DEEPSEEK_V3, 671e9, 37.5e9, 61 * 576),
        (QWEN3_30B, 30.5e9, 3.35e9, 2 * 48 * 4 * 128),
    ],
)
def test_parameters_by_formula_are_those_that_makers_publish(
    tmp_path: Path, config: dict[str, Any], parameters: float, active: float, kv_values: int
) -> None:
    shape = folder(tmp_path, config)
    assert shape.format == ""
    assert shape.parameters == pytest.approx(parameters, rel=0.005)
    assert shape.active_parameters == pytest.approx(active, rel=0.02)
    assert shape.kv_bytes_per_token(1.0) == kv_values


def test_layers_that_do_not_see_everything_are_not_counted_as_if_they_did(
    tmp_path: Path,
) -> None:
    mixed = {
        **LLAMA_8B,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 16,
    }
    shape = folder(tmp_path, mixed)
    assert (shape.full_layers, shape.window_layers, shape.window) == (16, 16, 128)
    one = 2 * 8 * 128
    assert shape.kv_bytes_read(1000, 1.0) == one * (16 * 1000 + 16 * 128)
    assert shape.kv_bytes_read(100, 1.0) == one * 32 * 100
    assert shape.kv_bytes_per_token(1.0) == one * 32
    assert (
        folder(tmp_path, {**LLAMA_8B, "sliding_window": 128}).kv_bytes_read(1000, 1.0)
        == one * 32 * 128
    )
    assert (
        folder(
            tmp_path, {**LLAMA_8B, "sliding_window": 128, "use_sliding_window": False}
        ).full_layers
        is None
    )
    hybrid = folder(
        tmp_path,
        {**LLAMA_8B, "layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8},
    )
    assert hybrid.kv_bytes_per_token(1.0) == one * 8


@pytest.mark.parametrize(
    "config",
    [
        [],
        {},
        {"hidden_size": 0, "num_attention_heads": 0},
        {**LLAMA_8B, "num_attention_heads": "32"},
        {**LLAMA_8B, "hidden_size": -4096},
        {**LLAMA_8B, "layer_types": 7},
        {**LLAMA_8B, "quantization_config": {"config_groups": {"a": 1}, "bits": 0}},
        {**LLAMA_8B, "expert_thing": 9},
        {**MIXTRAL, "num_local_experts": 8, "mlp_only_layers": 3},
    ],
)
def test_a_strange_config_gives_no_number_and_no_crash(tmp_path: Path, config: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model.read(tmp_path)


# ---- GGUF ----


@pytest.mark.parametrize(
    ("quantization", "bits"), [("F16", 16.0), ("Q8_0", 8.5), ("Q4_0", 4.5), ("Q2_K", 2.625)]
)
def test_a_gguf_files_bytes_follow_from_its_types(quantization: str, bits: float) -> None:
    path = own_model.build(quantization)
    shape = model.read(path)
    assert shape is not None
    norms = 13 * 256
    assert shape.bytes_by_type == {
        quantization: int((5_246_208 - norms) * bits / 8),
        "F32": 4 * norms,
    }
    # one tensor is both
    assert (shape.embedding_bytes, shape.head_bytes) == (int(2048 * 256 * bits / 8), 0)
    assert sum(shape.bytes_by_type.values()) == pytest.approx(path.stat().st_size, rel=0.04)
    assert shape.kv_bytes_per_token() == 2 * 6 * 2 * 64 * 2


def gguf_file(
    path: Path, metadata: dict[str, int | str], tensors: dict[str, tuple[int, list[int]]]
) -> Path:
    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind = (
            struct.pack("<I", 8) + text(value)
            if isinstance(value, str)
            else struct.pack("<II", 4, value)
        )
        out += text(key) + kind
    for name, (number, shape) in tensors.items():
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, 0)
    path.write_bytes(out)
    return path


MOE = {
    "general.architecture": "qwen3moe", "qwen3moe.block_count": 3, "qwen3moe.nextn_predict_layers": 1,
    "qwen3moe.embedding_length": 256, "qwen3moe.attention.head_count": 4, "qwen3moe.attention.head_count_kv": 2,
    "qwen3moe.expert_count": 8, "qwen3moe.expert_used_count": 2,
}  # fmt: skip


def test_experts_of_a_gguf_file_are_found_in_all_its_parts(tmp_path: Path) -> None:
    first = {
        "token_embd.weight": (14, [256, 10]),
        "blk.0.ffn_up_exps.weight": (12, [256, 2, 8]),
    }
    second = {"blk.1.ffn_up_exps.weight": (12, [256, 2, 8]), "blk.1.attn_q.weight": (0, [256]),
              "blk.2.attn_q.weight": (0, [256])}  # fmt: skip
    path = gguf_file(tmp_path / "m-00001-of-00002.gguf", MOE, first)
    gguf_file(tmp_path / "m-00002-of-00002.gguf", {"split.no": 1}, second)
    shape = model.read(path)
    assert shape is not None
    assert (shape.layers, shape.experts, shape.experts_used) == (2, 8, 2)
    assert shape.bytes_by_type == {"Q6_K": 2100, "Q4_K": 2 * 16 * 144, "F32": 2048}
    assert (shape.expert_parameters, shape.expert_bytes) == (2 * 4096, 2 * 16 * 144)
    assert shape.aside_bytes == 1024  # the block that drafts
    assert shape.active_parameters == 2560 + 512 + 2 * 4096 // 4


def test_a_type_that_is_not_known_yet_has_parameters_and_no_bytes(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf", MOE, {"blk.0.attn_q.weight": (99, [256, 2])})
    shape = model.read(path)
    assert (
        shape is not None
        and shape.parameters == 512
        and shape.bytes_by_type == {"type 99": 0}
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:30],
        lambda data: data[:-9],
        lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:],  # tensors
        lambda data: data[:16] + struct.pack("<Q", 2**60) + data[24:],  # entries
        # length of the first key
        lambda data: data[:24] + struct.pack("<Q", 2**60) + data[32:],
        lambda data: data.replace(
            struct.pack("<I2Q", 2, 256, 2), struct.pack("<I2Q", 2**31, 256, 2)
        ),
    ],
)
def test_a_broken_gguf_head_is_not_a_model(tmp_path: Path, damage: Any) -> None:
    path = gguf_file(tmp_path / "m.gguf", MOE, {"blk.0.attn_q.weight": (0, [256, 2])})
    assert read_gguf(path)[1][0].elements == 512
    path.write_bytes(damage(path.read_bytes()))
    assert model.read(path) is None


def test_dimensions_of_zero_in_a_gguf_file_are_not_parameters(tmp_path: Path) -> None:
    shape = model.read(
        gguf_file(tmp_path / "m.gguf", MOE, {"a": (12, [0, 4]), "b": (12, [])})
    )
    assert shape is not None and shape.parameters == 1  # no dimension at all is one value
