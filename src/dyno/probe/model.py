"""A model's files: its shape, its weights by part and what it is quantized to. Nothing is asked of a hub."""

import glob
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dyno.facts.model import ModelShape
from dyno.files import BROKEN, TEXT
from dyno.files import read as read_file
from dyno.outside import OutsideName
from dyno.probe.tensors import Tensor, read_gguf, read_safetensors

_COUNT_MAX = 1 << 50  # of layers, values and the like: a file may claim anything
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
# GGUF's general.file_type, as llama.cpp counts them (ggml-org/llama.cpp, llama_ftype).
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


def read(path: Path) -> ModelShape | None:
    """Return a model's shape. None: no readable model there."""
    try:
        if path.is_file():
            return _gguf(path)
        if (path / "config.json").is_file():
            return _folder(path)
        files = sorted(path.glob("*.gguf")) if path.is_dir() else []
        return _gguf(files[0]) if files else None
    except (
        OSError,
        ArithmeticError,
        *BROKEN,
        LookupError,
        TypeError,
        AttributeError,
    ):  # it may hold anything
        return None


def looks_local(name: str) -> bool:
    """Return whether it is a path rather than a hub's owner/name."""
    return name.startswith(("/", ".", "~")) or name.endswith(".gguf") or Path(name).exists()


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which huggingface_hub keeps what it has fetched."""
    home = (
        environ.get("HF_HOME")
        or Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    given = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(given or Path(home) / "hub")).expanduser()


def of_hub(name: str, environ: Mapping[str, str] = os.environ) -> ModelShape | None:
    """Return the shape of owner/name as it was fetched from Hugging Face's hub. None: it wasn't, or is elsewhere."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    folder = OutsideName.single(f"models--{name.replace('/', '--')}").below(
        hub_cache(environ)
    )
    try:
        commit = read_file(folder / "refs" / "main", 4096).decode().strip()
        snapshots = [OutsideName.single(commit).below(folder / "snapshots")]
    except (OSError, ValueError):  # fetched by a revision: the only one there
        snapshots = list(folder.glob("snapshots/*"))
    return read(snapshots[0]) if len(snapshots) == 1 else None


def _folder(path: Path) -> ModelShape:
    outer: dict[str, Any] = json.loads(read_file(path / "config.json", TEXT))
    config = outer.get("text_config") or outer
    heads, hidden, layers = (
        _count(config, key)
        for key in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    quantized = outer.get("quantization_config") or config.get("quantization_config")
    files = _weight_files(path)
    sizes = [f.stat().st_size for f in files or path.glob("*.bin")]
    latent = _count(config, "kv_lora_rank")
    experts, experts_used = _experts(config)
    return ModelShape(
        path=str(path),
        format="safetensors" if sizes else "",
        architecture=next(iter(outer.get("architectures") or []), None),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads") or heads,
        head_dim=_count(config, "v_head_dim" if latent else "head_dim")
        or _usual_head_dim(hidden, heads),
        vocab=_count(config, "vocab_size"),
        context=_count(config, "max_position_embeddings"),
        dtype=_dtype(config, outer),
        quantization=_checkpoint_quantization(quantized),
        weights_bytes=sum(sizes) or None,
        experts=experts,
        experts_used=experts_used,
        latent=latent and latent + (_count(config, "qk_rope_head_dim") or 0),
        **_attending(config, layers),
        **_weights(files, config, layers, _bits(quantized)),
    )


def _dtype(config: Mapping[str, Any], outer: Mapping[str, Any]) -> str | None:
    name = (
        config.get("torch_dtype") or config.get("dtype") or outer.get("torch_dtype") or ""
    )
    return _DTYPES.get(str(name).removeprefix("torch."))


def _usual_head_dim(hidden: int | None, heads: int | None) -> int | None:
    return hidden // heads if hidden and heads else None


def _weight_files(path: Path) -> list[Path]:
    """Return the files of weights. Some makers put the same weights there twice, in a form of their own."""
    files = list(path.glob("*.safetensors"))
    return [f for f in files if "consolidated" not in f.name] or files


def _count(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and 0 < value < _COUNT_MAX else None


def _weights(
    files: list[Path], config: dict[str, Any], layers: int | None, bits: int
) -> dict[str, Any]:
    """Return weights from the files; by formula where there are none, or one can't be read."""
    weights: Weights | None = None
    try:
        tensors = [tensor for file in files for tensor in read_safetensors(file)]
        weights = _sum(tensors, layers, bits) if tensors else None
    except ValueError:
        pass
    weights = weights or _estimate(config)
    return {} if weights is None else msgspec.structs.asdict(weights)


def _bits(quantized: Mapping[str, Any] | None) -> int:
    """Return the bits of a packed value."""
    q = quantized or {}
    claims = [q.get("bits"), q.get("w_bit")]
    for group in (q.get("config_groups") or {}).values():
        if isinstance(group, dict):
            claims.append((group.get("weights") or {}).get("num_bits"))
    for bits in claims:
        if type(bits) is int and 1 <= bits <= 32:
            return bits
    return 4


def _attending(config: Mapping[str, Any], layers: int | None) -> dict[str, Any]:
    """Return the attention window of each layer, where not all see everything; some layers keep a state instead."""
    window = _count(config, "sliding_window") or _count(config, "attention_chunk_size")
    kinds = (
        config.get("layer_types")
        or config.get("layers_block_type")
        or config.get("hybrid_override_pattern")
    )
    if kinds:
        short = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
        whole = sum(kind in ("full_attention", "attention", "*") for kind in kinds)
        return {"full_layers": whole, "window_layers": short, "window": window}
    if layers:
        interval = _count(config, "full_attention_interval")
        if interval:
            return {"full_layers": layers // interval}
    if _keeps_states(config):
        return {"full_layers": 0}  # which of them attend isn't known: nothing is counted
    if window and config.get("use_sliding_window") is not False:
        # Which layers have it is the architecture's to know: counted as if all had.
        return {"full_layers": 0, "window_layers": layers or 0, "window": window}
    return {}


def _keeps_states(config: Mapping[str, Any]) -> bool:
    return any(
        key.startswith(("mamba_", "ssm_", "linear_attn", "linear_num")) for key in config
    )


def _checkpoint_quantization(config: dict[str, Any] | None) -> str | None:
    if not config:
        return None
    method = str(config.get("quant_method", "")).lower()
    if method == "quark":
        return _quark_type(config) or method
    if method == "compressed-tensors":
        return _compressed_type(config) or method
    return method or None


def _quark_type(config: dict[str, Any]) -> str | None:
    weight = (config.get("global_quant_config") or {}).get("weight") or {}
    kind = re.match(r"fp8|int8|u?int4|mx\w+", str(weight.get("dtype")))
    return kind[0].lstrip("u") if kind else None


def _compressed_type(config: dict[str, Any]) -> str | None:
    """Return the type of the first group that compressed-tensors describes."""
    groups = [
        g for g in (config.get("config_groups") or {}).values() if isinstance(g, dict)
    ]
    first = groups[0] if groups else {}
    weights = first.get("weights") or {}
    bits = weights.get("num_bits")
    if bits == 8 and weights.get("type") == "float":
        return "fp8"
    if bits == 8 and first.get("input_activations"):
        return "int8"
    return f"w{bits}a16" if bits else None


def _gguf(path: Path) -> ModelShape:
    parts = _parts(path)
    files = [read_gguf(part) for part in (parts if path in parts else [path])]
    metadata = files[0][0]  # the others only say which part they are
    architecture = metadata.get("general.architecture")

    def field(name: str) -> int | None:
        return _count(metadata, f"{architecture}.{name}")

    heads = _most(metadata.get(f"{architecture}.attention.head_count"))
    kv_heads = metadata.get(f"{architecture}.attention.head_count_kv")
    hidden, layers, latent = (
        field("embedding_length"),
        field("block_count"),
        field("attention.kv_lora_rank"),
    )
    file_type = metadata.get("general.file_type")
    if layers:  # blocks that draft are counted with the others, and come last
        layers -= field("nextn_predict_layers") or 0
    weights = _sum((tensor for _, tensors in files for tensor in tensors), layers)
    return ModelShape(
        path=str(path),
        format="gguf",
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_most(kv_heads) or heads,
        head_dim=field("attention.key_length")
        or (hidden // heads if hidden and heads else None),
        context=field("context_length"),
        quantization=_FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        weights_bytes=sum(part.stat().st_size for part in parts),  # heads are a few MB
        experts=field("expert_count"),
        experts_used=field("expert_used_count"),
        latent=latent and latent + (field("rope.dimension_count") or 0),
        **_gguf_attending(field("attention.sliding_window"), kv_heads, layers),
        **msgspec.structs.asdict(weights),
    )


def _gguf_attending(
    window: int | None, kv_heads: int | list[int] | None, layers: int | None
) -> dict[str, Any]:
    if window:  # which layers have it is the architecture's to know: counted as if all had
        return {"full_layers": 0, "window_layers": layers or 0, "window": window}
    # a number for each layer: as many layers of the most
    if isinstance(kv_heads, list) and any(kv_heads):
        return {"full_layers": sum(kv_heads) // max(kv_heads)}
    return {}


def _parts(path: Path) -> list[Path]:
    """Return all of model-00001-of-00003.gguf."""
    if name := re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name):
        return sorted(path.parent.glob(f"{glob.escape(name[1])}-*-of-{name[2]}.gguf"))
    return [path]


def _most(heads: int | list[int] | None) -> int | None:
    """Return the largest value, as some models have a number for each layer."""
    most = max(heads) if isinstance(heads, list) else heads
    return most if type(most) is int and most > 0 else None


# ---- weights by part ----

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
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|token_embd)(\.|$)"
)
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.|^output\.")
# Beside quantized values: read, and no parameters.
_SCALES = re.compile(
    r"(scales?|scale_inv|scale_\d|zeros|zero_point|absmax|quant_map|g_idx|weight_shape|quant_state\.\w+)$"
)


class Weights(msgspec.Struct):
    """A model's weights by part. Fields are named as in ModelShape."""

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


def _sum(tensors: Iterable[Tensor], layers: int | None, bits: int = 4) -> Weights:
    """Sum up tensors. `layers`: those beyond are there for drafting. `bits`: of a value where several are packed into
    an integer."""
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
        return (
            t.elements * 32 // bits if re.search(r"qweight|packed|\.weight$", t.name) else 0
        )
    if t.kind == "U8":
        return 2 * t.elements  # two of four bits: bitsandbytes, MXFP4, NVFP4
    return 0 if t.kind in ("I64", "BOOL") else t.elements


def expected_parameters(config: Mapping[str, Any]) -> int | None:
    """Return the parameters that a configuration describes, within a few per cent. None: it has another shape."""
    weights = _estimate(config)
    return weights.parameters if weights else None


def layer(name: str) -> int | None:
    """Return the decoder layer of a tensor, if it is in one."""
    match = _LAYER.search(name)
    return int(match[1]) if match and not _ASIDE.search(name) else None


def _estimate(config: Mapping[str, Any]) -> Weights | None:
    """Return the parameters of a decoder with gated MLPs, dense or with experts, within a few per cent. None: it has
    another shape."""
    n = {key: value for key, value in config.items() if type(value) is int and value > 0}
    try:
        width, layers = n["hidden_size"], n["num_hidden_layers"]
        heads, vocab = n["num_attention_heads"], n["vocab_size"]
        expert = _experts(config)[0]
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
        shared = n.get(
            "shared_expert_intermediate_size", n.get("n_shared_experts", 0) * small
        )
        every += sparse * (3 * width * shared + width * expert)  # and the router
        w.expert_parameters = sparse * expert * 3 * width * small
    w.parameters = every + w.expert_parameters + w.embedding_parameters + w.head_parameters
    return w


def _attention(n: Mapping[str, int], width: int, heads: int) -> int:
    """Return the parameters of a layer's attention."""
    latent = n.get("kv_lora_rank")
    if not latent:
        head = n.get("head_dim", width // heads)
        return 2 * width * head * (heads + n.get("num_key_value_heads", heads))
    rope, value = n.get("qk_rope_head_dim", 0), n.get("v_head_dim", 0)
    query = n.get("qk_nope_head_dim", 0) + rope
    asked = n.get("q_lora_rank")
    queries = asked * (width + heads * query) if asked else width * heads * query
    compressed = width * (latent + rope)
    expanded = latent * heads * (query - rope + value)
    return queries + compressed + expanded + heads * value * width


def _sparse_layers(config: Mapping[str, Any], layers: int) -> int:
    """Return how many layers have experts."""
    dense = config.get("mlp_only_layers") or []
    first = config.get("first_k_dense_replace") or 0
    step = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step") or 1
    count = 0
    for i in range(layers):
        if i >= first and (i + 1) % step == 0 and i not in dense:
            count += 1
    return count


def _experts(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return how many experts a layer has, and a token uses."""
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    used = (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_topk",
        "moe_k",
    )

    def first(keys: tuple[str, ...]) -> int | None:
        return next(
            (config[k] for k in keys if type(config.get(k)) is int and config[k] > 0), None
        )

    count = first(names)
    return (count, first(used)) if count and count > 1 else (None, None)
