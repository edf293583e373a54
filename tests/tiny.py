"""A tiny Llama or Qwen2 made on the spot: random weights in safetensors, dyno's own tokenizer, a chat template.

The default shape is about the smallest that engines load. Quantizers want rows of 256 values: `build(folder, WIDE)`.
"""

import json
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dyno.engines import model

VOCAB = 2048
_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Shape(NamedTuple):
    width: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    inner: int = 256
    context: int = 1024
    dtype: str = "F32"  # F32, F16 or BF16
    files: int = 1
    kind: str = "llama"  # or qwen2, whose attention has biases
    # greedy text repeats the last token, which drafts from n-grams need
    echoes: bool = False

    @property
    def vocab(self) -> int:
        """Qwen's is padded, as real ones are: its tokenizer adds tokens of its own."""
        return VOCAB + 256 * (self.kind == "qwen2")


SMALL, WIDE = Shape(), Shape(width=256, layers=3, inner=512, dtype="BF16", files=2)


def build(folder: Path, shape: Shape = SMALL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[shape.kind]],
        "model_type": shape.kind, "hidden_size": shape.width, "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width // shape.heads, "vocab_size": shape.vocab, "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": _NAMES[shape.dtype], "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>",
        "model_max_length": shape.context, "chat_template": _TEMPLATE,
    }  # fmt: skip
    for name, words in {
        "config": config,
        "generation_config": generation,
        "tokenizer_config": tokenizer,
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(words))
    shutil.copy(model.FOLDER / "tokenizer.json", folder)
    _save_shards(folder, weights(shape), shape)
    return folder


def weights(shape: Shape) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    wide, inner = shape.width, shape.inner
    narrow = wide * shape.kv_heads // shape.heads

    def noise(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * gain / columns**0.5).astype(
            np.float32
        )

    tensors = {"model.embed_tokens.weight": noise(shape.vocab, wide, wide**0.5)}
    for i in range(shape.layers):
        layer = f"model.layers.{i}."
        # Sharp attention and a wide spread of logits: greedy text varies, and rounding seldom changes a token.
        tensors |= {
            f"{layer}input_layernorm.weight": np.ones(wide, np.float32),
            f"{layer}self_attn.q_proj.weight": noise(wide, wide, 2),
            f"{layer}self_attn.k_proj.weight": noise(narrow, wide, 2),
            f"{layer}self_attn.v_proj.weight": noise(narrow, wide),
            f"{layer}self_attn.o_proj.weight": noise(wide, wide),
            f"{layer}post_attention_layernorm.weight": np.ones(wide, np.float32),
            f"{layer}mlp.gate_proj.weight": noise(inner, wide),
            f"{layer}mlp.up_proj.weight": noise(inner, wide),
            f"{layer}mlp.down_proj.weight": noise(wide, inner),
        }
        if shape.kind == "qwen2":
            for name, rows in (("q", wide), ("k", narrow), ("v", narrow)):
                tensors[f"{layer}self_attn.{name}_proj.bias"] = noise(rows, 1, 0.1)[:, 0]
    head = (
        tensors["model.embed_tokens.weight"].copy()
        if shape.echoes
        else noise(shape.vocab, wide, 4)
    )
    head[:260] = head[VOCAB:] = 0  # specials and single bytes: a logit of 0 is never chosen
    return tensors | {
        "model.norm.weight": np.ones(wide, np.float32),
        "lm_head.weight": head,
    }


def _save_shards(folder: Path, tensors: dict[str, np.ndarray], shape: Shape) -> None:
    if shape.files == 1:
        save(folder / "model.safetensors", tensors, shape.dtype)
        return
    names, files = list(tensors), {}
    for i in range(shape.files):
        name = f"model-{i + 1:05}-of-{shape.files:05}.safetensors"
        part = names[i * len(names) // shape.files : (i + 1) * len(names) // shape.files]
        save(folder / name, {key: tensors[key] for key in part}, shape.dtype)
        files |= dict.fromkeys(part, name)
    total = sum(_stored(tensor, shape.dtype).nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def save(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32") -> None:
    """Safetensors: the length of a JSON head, the head, the bytes."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    stored = {name: _stored(tensor, dtype) for name, tensor in tensors.items()}
    for name, tensor in stored.items():
        head[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }
        place += tensor.nbytes
    raw = json.dumps(head).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for tensor in stored.values():
            file.write(tensor.tobytes())


def _stored(tensor: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":  # the upper half of a float32, rounded to even
        bits = tensor.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return tensor.astype(np.float16 if dtype == "F16" else np.float32)
