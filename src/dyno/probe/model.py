"""A model's files: its shape and what it is quantized to. Names that lie on a hub aren't looked up."""

import glob
import json
import re
from pathlib import Path
from typing import Any

from dyno.facts.model import ModelShape
from dyno.probe import gguf

_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
# GGUF's general.file_type, as llama.cpp counts them (ggml-org/llama.cpp, llama_ftype).
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


def read(path: Path) -> ModelShape | None:
    """None: there is nothing there, or nothing that can be read as a model."""
    try:
        if path.is_file():
            return _gguf(path)
        if (path / "config.json").is_file():
            return _folder(path)
        files = sorted(path.glob("*.gguf")) if path.is_dir() else []
        return _gguf(files[0]) if files else None
    except (OSError, ValueError, KeyError, IndexError):
        return None


def looks_local(name: str) -> bool:
    """A path rather than a hub's owner/name."""
    return name.startswith(("/", ".", "~")) or name.endswith(".gguf") or Path(name).exists()


def _folder(path: Path) -> ModelShape:
    outer: dict[str, Any] = json.loads((path / "config.json").read_text())
    config = outer.get("text_config") or outer
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    dtype = str(config.get("torch_dtype") or config.get("dtype") or outer.get("torch_dtype") or "")
    # Some makers put the same weights there twice, in a form of their own.
    files = [f for f in path.glob("*.safetensors") if "consolidated" not in f.name] or list(path.glob("*.safetensors"))
    sizes = [f.stat().st_size for f in files or path.glob("*.bin")]
    return ModelShape(
        path=str(path),
        format="safetensors" if sizes else "",
        architecture=next(iter(outer.get("architectures") or []), None),
        layers=config.get("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or (hidden // heads if hidden and heads else None),
        vocab=config.get("vocab_size"),
        context=config.get("max_position_embeddings"),
        dtype=_DTYPES.get(dtype.removeprefix("torch.")),
        quantization=_checkpoint_quantization(outer.get("quantization_config")),
        weights_bytes=sum(sizes) or None,
        parameters=_dense_parameters(config),
    )


def _dense_parameters(config: dict[str, Any]) -> int | None:
    """Of a decoder with a gated MLP, within a few per cent; None where its shape is another (experts, say)."""
    if any("expert" in key for key in config):
        return None
    try:
        width, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
        heads, vocab = config["num_attention_heads"], config["vocab_size"]
        head = config.get("head_dim") or width // heads
        attention = 2 * width * head * (heads + (config.get("num_key_value_heads") or heads))
        embeddings = vocab * width * (1 if config.get("tie_word_embeddings") else 2)
        return int(layers * (attention + 3 * width * inner) + embeddings)
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def _checkpoint_quantization(config: dict[str, Any] | None) -> str | None:
    if not config:
        return None
    method = str(config.get("quant_method", "")).lower()
    if method != "compressed-tensors":
        return method or None
    groups = config.get("config_groups") or {}
    weights = next((g.get("weights") for g in groups.values() if isinstance(g, dict)), None) or {}
    activations = next((g.get("input_activations") for g in groups.values() if isinstance(g, dict)), None)
    if weights.get("type") == "float" and weights.get("num_bits") == 8:
        return "fp8"
    if weights.get("num_bits") == 8 and activations:
        return "int8"
    return f"w{weights['num_bits']}a16" if weights.get("num_bits") else method


def _gguf(path: Path) -> ModelShape:
    metadata, parameters = gguf.head(path)
    field = metadata.get
    architecture = field("general.architecture")
    heads = _most(field(f"{architecture}.attention.head_count"))
    hidden = field(f"{architecture}.embedding_length")
    kv_heads = _most(field(f"{architecture}.attention.head_count_kv"))
    file_type = field("general.file_type")
    return ModelShape(
        path=str(path),
        format="gguf",
        architecture=architecture,
        layers=field(f"{architecture}.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=field(f"{architecture}.attention.key_length") or (hidden // heads if hidden and heads else None),
        context=field(f"{architecture}.context_length"),
        quantization=_FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        weights_bytes=sum(part.stat().st_size for part in _parts(path)),  # heads are a few MB
        parameters=parameters,
    )


def _parts(path: Path) -> list[Path]:
    """model-00001-of-00003.gguf and its fellows."""
    if found := re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name):
        return sorted(path.parent.glob(f"{glob.escape(found[1])}-*-of-{found[2]}.gguf"))
    return [path]


def _most(heads: int | list[int] | None) -> int | None:
    """Some models have a number for each layer."""
    return max(heads) if isinstance(heads, list) else heads
