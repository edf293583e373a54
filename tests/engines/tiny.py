"""A tiny Llama made on the spot: random weights in safetensors, dyno's own tokenizer, a chat template."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np

from dyno.engines import model

WIDTH, LAYERS, HEADS, KV_HEADS, INNER, VOCAB, CONTEXT = 128, 2, 4, 2, 256, 8192, 1024


def build(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": WIDTH // HEADS, "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(model.build("F16").with_name("tokenizer.json"), folder)
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template})
    )
    _save(folder / "model.safetensors", _weights())
    return folder


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    narrow = WIDTH * KV_HEADS // HEADS
    shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "lm_head.weight": (VOCAB, WIDTH)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        shapes |= {
            at + "self_attn.q_proj.weight": (WIDTH, WIDTH), at + "self_attn.k_proj.weight": (narrow, WIDTH),
            at + "self_attn.v_proj.weight": (narrow, WIDTH), at + "self_attn.o_proj.weight": (WIDTH, WIDTH),
            at + "mlp.gate_proj.weight": (INNER, WIDTH), at + "mlp.up_proj.weight": (INNER, WIDTH),
            at + "mlp.down_proj.weight": (WIDTH, INNER),
        }  # fmt: skip
    tensors = {name: (random.standard_normal(shape) * 0.02).astype(np.float32) for name, shape in shapes.items()}
    norms = [f"model.layers.{i}.{n}_layernorm.weight" for i in range(LAYERS) for n in ("input", "post_attention")]
    return tensors | {name: np.ones(WIDTH, np.float32) for name in [*norms, "model.norm.weight"]}


def _save(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Safetensors: the length of a JSON head, the head, the bytes."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    raw = json.dumps(head).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for tensor in tensors.values():
            file.write(tensor.tobytes())
