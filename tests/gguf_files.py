"""The tiny Llama as GGUF, right or wrong, and fakes of llama.cpp's tools that write it: slow, failing or lying ones."""

import json
import os
import sys
import time
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

import tiny
from dyno.engines import environment, model

SHAPE = tiny.WIDE._replace(layers=2, files=1)
_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.": "blk.",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
# The tool is this file: what it does is in the variable FAKE_TOOL.
_QUANTIZE = """#!{python}
import sys
sys.path.insert(0, {folder!r})
import gguf_files
gguf_files.run(sys.argv[-2], sys.argv[-1])
"""
_CONVERT = """
import sys
class TextModel:
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError
def main():
    sys.path.insert(0, {folder!r})
    import gguf_files
    model = TextModel()
    model.dir_model = sys.argv[1]
    gguf_files.run(sys.argv[sys.argv.index("--outfile") + 1], sys.argv[-1], model.get_vocab_base_pre(None))
"""


def weights(shape: tiny.Shape = SHAPE) -> dict[str, np.ndarray]:
    """Return the tiny Llama's weights by their names in GGUF. Queries and keys aren't reordered: text differs."""
    tensors = {}
    for name, values in tiny.weights(shape).items():
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        tensors[name] = values
    return tensors


def write(
    path: Path,
    kind: str,
    tensors: dict[str, np.ndarray] | None = None,
    rule: str | None = "qwen2",
) -> None:
    """`rule`: how its tokenizer splits text; None: it has no tokenizer."""
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(SHAPE.context)
    out.add_embedding_length(SHAPE.width)
    out.add_block_count(SHAPE.layers)
    out.add_feed_forward_length(SHAPE.inner)
    out.add_head_count(SHAPE.heads)
    out.add_head_count_kv(SHAPE.kv_heads)
    out.add_layer_norm_rms_eps(1e-5)
    if rule is not None:
        _add_tokenizer(out, rule)
    for name, values in (tensors or weights()).items():
        stored = gguf.GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
        out.add_tensor(name, quantize(values, stored), raw_dtype=stored)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def write_reranker(path: Path, width: int = 64, inner: int = 128, layers: int = 2) -> None:
    """Write a BERT of random weights with one score as its answer, and dyno's tokenizer."""
    out = gguf.GGUFWriter(path, "bert")
    out.add_context_length(SHAPE.context)
    out.add_embedding_length(width)
    out.add_block_count(layers)
    out.add_feed_forward_length(inner)
    out.add_head_count(2)
    out.add_layer_norm_eps(1e-12)
    out.add_token_type_count(2)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.RANK)
    out.add_classifier_output_labels(["score"])
    _add_tokenizer(out, "qwen2")
    out.add_sep_token_id(1)
    vocabulary = len(
        json.loads((model.FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
    )
    _add_random(out, _reranker_shapes(vocabulary, width, inner, layers), width)


def write_projector(path: Path, text_width: int, layers: int = 2) -> None:
    """Write a projector of random weights in LLaVA's form: any image is 16 tokens of a model of this width."""
    width, inner, size, patch = 64, 128, 56, 14
    out = gguf.GGUFWriter(path, "clip")
    out.add_bool("clip.has_vision_encoder", True)
    out.add_string("clip.projector_type", "mlp")
    out.add_bool("clip.use_gelu", True)
    numbers = {
        "image_size": size,
        "patch_size": patch,
        "embedding_length": width,
        "feed_forward_length": inner,
        "projection_dim": text_width,
        "block_count": layers,
        "attention.head_count": 2,
    }
    for name, number in numbers.items():
        out.add_uint32(f"clip.vision.{name}", number)
    out.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    for name in ("image_mean", "image_std"):
        out.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    shapes: dict[str, tuple[int, ...]] = {
        "v.class_embd": (width,),
        "v.patch_embd.weight": (width, 3, patch, patch),
        "v.position_embd.weight": ((size // patch) ** 2 + 1, width),
    }
    square = (width, width)
    linear = {"mm.0": (text_width, width), "mm.2": (text_width, text_width)}
    norms = ["v.pre_ln"]
    for block in (f"v.blk.{i}" for i in range(layers)):
        parts = ("attn_q", "attn_k", "attn_v", "attn_out")
        linear |= {f"{block}.{part}": square for part in parts}
        linear |= {f"{block}.ffn_up": (inner, width), f"{block}.ffn_down": (width, inner)}
        norms += [f"{block}.ln1", f"{block}.ln2"]
    for name, shape in [*linear.items(), *((norm, (width,)) for norm in norms)]:
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    _add_random(out, shapes, width)


def _add_random(
    out: gguf.GGUFWriter, shapes: dict[str, tuple[int, ...]], width: int
) -> None:
    """Add weights, and write the file."""
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32) / width**0.5
        if len(shape) == 1 and name.endswith(".weight"):  # of a norm
            values = np.ones(shape, np.float32)
        out.add_tensor(name, values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _reranker_shapes(
    vocabulary: int, width: int, inner: int, layers: int
) -> dict[str, tuple[int, ...]]:
    square = (width, width)
    linear = {"cls": square, "cls.output": (1, width)}
    norms = ["token_embd_norm"]
    for i in range(layers):
        parts = ("attn_q", "attn_k", "attn_v", "attn_output")
        linear |= {f"blk.{i}.{part}": square for part in parts}
        linear |= {f"blk.{i}.ffn_up": (inner, width), f"blk.{i}.ffn_down": (width, inner)}
        norms += [f"blk.{i}.attn_output_norm", f"blk.{i}.layer_output_norm"]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, width),
        "token_types.weight": (2, width),
        "position_embd.weight": (SHAPE.context, width),
    }
    for name, shape in [*linear.items(), *((norm, (width,)) for norm in norms)]:
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def _add_tokenizer(out: gguf.GGUFWriter, rule: str) -> None:
    text = (model.FOLDER / "tokenizer.json").read_text(encoding="utf-8")
    words = json.loads(text)["model"]
    tokens = sorted(words["vocab"], key=words["vocab"].__getitem__)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(rule)
    out.add_token_list(tokens)
    out.add_token_types(
        [
            gguf.TokenType.CONTROL if i < 4 else gguf.TokenType.NORMAL
            for i in range(len(tokens))
        ]
    )
    out.add_token_merges([" ".join(pair) for pair in words["merges"]])
    out.add_bos_token_id(0)
    out.add_eos_token_id(1)


def run(out: str, kind: str, rule: str = "qwen2") -> None:
    """Do what a converter or a quantizer does, in the way of FAKE_TOOL: slowly, not at all, or another type."""
    way = os.environ.get("FAKE_TOOL", "")
    print("[   1/  30] token_embd.weight", flush=True)
    if way == "fail":
        Path(out).write_bytes(b"GGUF")
        sys.exit("error: No space left on device")
    if way == "slow":
        Path(out).write_bytes(b"GGUF")
        Path(out).with_suffix(".pid").write_text(str(os.getpid()))
        time.sleep(600)
    write(Path(out), way if way.startswith("Q") else kind.upper(), rule=rule)


def install() -> None:
    """Put the fake tools under DYNO_HOME, as `dyno engines install llama-tools` would."""
    env = environment.Environment(
        name="llama-tools-1-cpu", kind="llama-tools", version="1", variant="cpu", source=None, python=sys.executable,
        python_version="", created="2026-11-16T00:00:00Z", packages=[], size_bytes=0,
    )  # fmt: skip
    folder = str(Path(__file__).parent)
    for place, script in {
        "bin/llama-quantize": _QUANTIZE,
        "converter/convert_hf_to_gguf.py": _CONVERT,
    }.items():
        path = env.folder / place
        path.parent.mkdir(parents=True)
        path.write_text(script.format(python=sys.executable, folder=folder))
        path.chmod(0o755)
    environment.write(env)
