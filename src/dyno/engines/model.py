"""dyno's own model: a Llama of 5 million parameters that has learnt the tasks of workload/tasks.py.

`dyno-5m/` has it as vLLM and transformers read it. llama.cpp reads GGUF: written here, in several quantizations, from
the same weights, into a cache. `training/` in the repository has the recipe.
"""

import functools
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dyno.errors import EngineError, UsageError
from dyno.facts.model import OWN_MODEL
from dyno.option import setting_name

NAME = OWN_MODEL
DRAFT = f"{NAME}-draft"  # its draft for speculative decoding, with the same tokenizer
FOLDER = Path(__file__).parent / NAME
FOLDERS = {NAME: FOLDER, DRAFT: FOLDER / "draft"}
QUANTIZATIONS = (
    "F32",
    "BF16",
    "F16",
    "Q8_0",
    "Q5_1",
    "Q5_0",
    "Q4_1",
    "Q4_0",
    "Q2_K",
    "TQ2_0",
)
_DRAFTS = QUANTIZATIONS[:-2]  # its rows are shorter than the blocks of the others

_TENSORS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.layers": "blk",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def default_cache() -> Path:
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dyno" / "models"
    )


@functools.cache
def revision() -> str:
    """Return a name for the bytes of the models and of the code that writes them: a cache has only these."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(p for p in FOLDER.rglob("*") if p.is_file()):
        digest.update(path.read_bytes())
    return f"{NAME}-{digest.hexdigest()[:10]}"


def build(quantization: str, cache: Path | None = None, name: str = NAME) -> Path:
    """Return the GGUF of that quantization, written at the first call, with its tokenizer's files beside it."""
    known = QUANTIZATIONS if name == NAME else _DRAFTS
    if quantization not in known:
        raise UsageError(
            f"The model {name} has no quantization {quantization!r}. Use {', '.join(known)}, or give a GGUF file "
            f"with {setting_name('--model')}."
        )
    folder = (cache or default_cache()) / revision()
    path = folder / f"{name}-{quantization}.gguf"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for tokenizer in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
            if not tokenizer.exists():
                with _whole(tokenizer) as part:
                    part.write_bytes((FOLDER / tokenizer.name).read_bytes())
        if not path.exists():
            with _whole(path) as part:
                _write(part, quantization, name)
    except OSError as e:
        raise EngineError(
            f"The model {name} can't be written to {folder}: {e.strerror or e}. "
            "Its files need up to 70 MB; set XDG_CACHE_HOME to a writable folder with enough space."
        ) from None
    return path


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name, which becomes `path` at the end: two builds at once do no harm."""
    from dyno.scratch import scratch

    with scratch(".dyno-build-", path.parent) as folder:
        yield folder / "part"
        (folder / "part").replace(path)


def _write(path: Path, quantization: str, name: str) -> None:
    import gguf
    import numpy as np

    config, tokenizer, words = (
        json.loads(file.read_text(encoding="utf-8"))
        for file in (
            FOLDERS[name] / "config.json",
            FOLDER / "tokenizer.json",
            FOLDER / "tokenizer_config.json",
        )
    )
    tokens = sorted(
        tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__
    )
    special = {token["content"] for token in tokenizer["added_tokens"]}
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }

    out = gguf.GGUFWriter(path, "llama")
    out.add_name(name)
    out.add_file_type(
        gguf.LlamaFileType["ALL_F32" if quantization == "F32" else f"MOSTLY_{quantization}"]
    )
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)
    out.add_vocab_size(len(tokens))
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads["attn_q"])
    out.add_head_count_kv(heads["attn_k"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")  # splits text as the pattern in tokenizer.json does
    out.add_token_list(tokens)
    out.add_token_types(
        [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    )
    out.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    out.add_bos_token_id(config["bos_token_id"])
    out.add_eos_token_id(config["eos_token_id"])
    out.add_pad_token_id(config["pad_token_id"])
    out.add_add_bos_token(True)
    out.add_chat_template(words["chat_template"])

    # The embeddings are the output layer too, in llama.cpp as here: there is no tensor for it.
    for theirs, values in weights(FOLDERS[name] / "model.safetensors"):
        for a, b in _TENSORS.items():
            theirs = theirs.replace(a, b)
        kind = gguf.GGMLQuantizationType[quantization if values.ndim > 1 else "F32"]
        if count := heads.get(theirs.split(".")[-2]):
            # llama.cpp rotates neighbours, (0, 1), transformers the halves of a head, (0, 32).
            values = (
                values.reshape(count, 2, -1, values.shape[1])
                .swapaxes(1, 2)
                .reshape(values.shape)
            )
        out.add_tensor(
            theirs, _quantized(np.ascontiguousarray(values), kind), raw_dtype=kind
        )
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def weights(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a safetensors file, all bf16: the upper half of a float32."""
    import numpy as np

    data = path.read_bytes()
    start = 8 + struct.unpack_from("<Q", data)[0]
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            bits = (
                np.frombuffer(data[start + first : start + end], np.uint16).astype(
                    np.uint32
                )
                << 16
            )
            yield name, bits.view(np.float32).reshape(entry["shape"])


def _quantized(values: Any, kind: Any) -> Any:
    from gguf.quants import quantize

    if kind.name == "Q2_K":
        return _q2_k(values)
    return quantize(_ternary(values) if kind.name == "TQ2_0" else values, kind)


def _ternary(values: Any) -> Any:
    """Return the nearest values of the form -d, 0, d, with one d for each block. `quantize` alone would take a block's
    largest value for d, which makes almost all others 0."""
    import numpy as np

    blocks = values.reshape(-1, 256)
    size = abs(blocks)
    d = size.mean(axis=1, keepdims=True)
    for _ in range(8):  # k-means in one dimension
        used = size > d / 2
        d = (size * used).sum(axis=1, keepdims=True) / np.maximum(
            used.sum(axis=1, keepdims=True), 1
        )
    return (np.sign(blocks) * d * (size > d / 2)).reshape(values.shape)


def _q2_k(values: Any) -> Any:
    """Q2_K, which the package gguf reads but doesn't write: in a block of 256, 16 groups have a step and an offset of 4
    bits each, in units of the block, and 2 bits a value."""
    import numpy as np

    def units(most: Any) -> tuple[Any, Any, Any]:
        """Return the block's unit, as it is stored and as a number, and how many of it each group has."""
        half = (most.max(axis=1, keepdims=True) / 15).astype(np.float16)
        unit = half.astype(np.float32)
        return (
            half.view(np.uint8),
            unit,
            np.rint(most / np.where(unit, unit, 1)).clip(0, 15).astype(np.uint8),
        )

    groups = values.reshape(-1, 16, 16)
    below = np.maximum(-groups.min(axis=2), 0)
    stored_step, step, steps = units((np.maximum(groups.max(axis=2), 0) + below) / 3)
    stored_offset, offset, offsets = units(below)
    step, offset = (step * steps)[..., None], (offset * offsets)[..., None]
    bits = np.rint((groups + offset) / np.where(step, step, 1)).clip(0, 3).astype(np.uint8)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed = np.bitwise_or.reduce(bits.reshape(-1, 2, 4, 32) << shifts, axis=2).reshape(
        -1, 64
    )
    blocks = np.concatenate(
        [steps | offsets << 4, packed, stored_step, stored_offset], axis=1
    )
    return blocks.reshape(len(values), -1)
