"""A model's weights by part: from the tensors that its files list, or by formula from its config alone."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dyno.probe.tensor import Tensor

# What a token of the output doesn't go through: encoders, layers that draft, tables of which a row is looked up.
_ASIDE = re.compile(
    r"(^|\.)(encoder|visual|vision|vision_\w+|image_\w+|audio|audio_\w+|speech_\w+|multi_modal_projector|mm_projector|mtp|talker"
    r"|embed_tokens_per_layer|per_layer_token_embd|position_embd|token_types|wpe|embed_positions)(\.|$)|^(v|mm|a)\."
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h|blocks)\.(\d+)\.")
_EXPERTS = re.compile(
    r"\.experts\.|_exps(\.|$)"
    r"|block_sparse_moe\.(input|output)_linear"  # Granite
    r"|ffn_(gate|up|down)\.\d+\."  # GGUF files of 2023
)
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|token_embd)(\.|$)")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.|^output\.")
# Beside quantized values: read, and no parameters.
_SCALES = re.compile(
    r"(scales?|scale_inv|scale_\d|zeros|zero_point|absmax|quant_map|g_idx|weight_shape|quant_state\.\w+)$"
)


class Weights(msgspec.Struct):
    """Named as in ModelShape."""

    parameters: int = 0
    bytes_by_type: dict[str, int] = {}
    embedding_parameters: int = 0
    embedding_bytes: int = 0
    head_parameters: int = 0
    head_bytes: int = 0
    expert_parameters: int = 0
    expert_bytes: int = 0
    aside_parameters: int = 0
    aside_bytes: int = 0


def of_tensors(tensors: Iterable[Tensor], layers: int | None, bits: int = 4) -> Weights:
    """`layers`: those beyond are there for drafting. `bits`: of a value where several are packed into an integer."""
    w = Weights()
    for t in tensors:
        count = _parameters(t, bits)
        w.parameters += count
        w.bytes_by_type[t.kind] = w.bytes_by_type.get(t.kind, 0) + t.size_bytes
        part = _part(t.name, layers)
        if part:
            setattr(w, f"{part}_parameters", getattr(w, f"{part}_parameters") + count)
            setattr(w, f"{part}_bytes", getattr(w, f"{part}_bytes") + t.size_bytes)
    return w


def _part(name: str, layers: int | None) -> str | None:
    layer = _LAYER.search(name)
    if _ASIDE.search(name) or (layer and layers is not None and int(layer[1]) >= layers):
        return "aside"
    for part, pattern in (("expert", _EXPERTS), ("embedding", _EMBEDDING), ("head", _HEAD)):
        if pattern.search(name):
            return part
    return None


def _parameters(t: Tensor, bits: int) -> int:
    if _SCALES.search(t.name):
        return 0
    if t.kind in ("I32", "U32"):
        return t.elements * 32 // bits if re.search(r"qweight|packed|\.weight$", t.name) else 0
    if t.kind == "U8":
        return 2 * t.elements  # two of four bits: bitsandbytes, MXFP4, NVFP4
    return 0 if t.kind in ("I64", "BOOL") else t.elements


def of_config(config: Mapping[str, Any]) -> Weights | None:
    """Of a decoder with gated MLPs, dense or with experts, within a few per cent. None where its shape is another."""
    n = {key: value for key, value in config.items() if type(value) is int and value > 0}
    try:
        width, layers, heads, vocab = (
            n[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        )
        expert = experts(config)[0]
        if expert is None and any("expert" in key and config[key] for key in config):
            return None  # of a kind that isn't known here
        inner = n["intermediate_size"]
    except KeyError:
        return None
    w = Weights(embedding_parameters=vocab * width)
    w.head_parameters = 0 if config.get("tie_word_embeddings") else vocab * width
    sparse = _sparse_layers(config, layers) if expert else 0
    every = layers * _attention(n, width, heads) + (layers - sparse) * 3 * width * inner
    if expert:
        small = n.get("moe_intermediate_size", inner)
        shared = n.get("shared_expert_intermediate_size", n.get("n_shared_experts", 0) * small)
        every += sparse * (3 * width * shared + width * expert)  # and the router
        w.expert_parameters = sparse * expert * 3 * width * small
    w.parameters = every + w.expert_parameters + w.embedding_parameters + w.head_parameters
    return w


def _attention(n: Mapping[str, int], width: int, heads: int) -> int:
    if latent := n.get("kv_lora_rank"):
        rope, value = n.get("qk_rope_head_dim", 0), n.get("v_head_dim", 0)
        query = n.get("qk_nope_head_dim", 0) + rope
        asked = n.get("q_lora_rank")
        queries = asked * (width + heads * query) if asked else width * heads * query
        return queries + width * (latent + rope) + latent * heads * (query - rope + value) + heads * value * width
    head = n.get("head_dim", width // heads)
    return 2 * width * head * (heads + n.get("num_key_value_heads", heads))


def _sparse_layers(config: Mapping[str, Any], layers: int) -> int:
    """Those that have experts."""
    dense = config.get("mlp_only_layers") or []
    first = config.get("first_k_dense_replace") or 0
    step = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step") or 1
    return sum(i >= first and (i + 1) % step == 0 and i not in dense for i in range(layers))


def experts(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """In a layer, and for a token."""
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    used = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k")

    def first(keys: tuple[str, ...]) -> int | None:
        return next((config[k] for k in keys if type(config.get(k)) is int and config[k] > 0), None)

    there = first(names)
    return (there, first(used)) if there and there > 1 else (None, None)
