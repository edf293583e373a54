"""The tiny Llama quantized by hand, right or wrong; and a fake environment of a tool that writes it.

Run as a program, this is the fake tool: FAKE says how it behaves.
"""

import json
import os
import shlex
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tiny
from dyno.engines.environment import Environment, write
from dyno.models.quantize import _REORDERED, _e4m3

SHAPE = tiny.Shape(layers=1, dtype="BF16")
Stored = dict[str, tuple[str, np.ndarray]]  # name → type and its values as they are stored
Change = Callable[[Stored, dict], None]


def save(path: Path, tensors: Stored) -> None:
    head, place = {}, 0
    for name, (kind, values) in tensors.items():
        head[name] = {
            "dtype": kind,
            "shape": values.shape,
            "data_offsets": [place, place := place + values.nbytes],
        }
    raw = json.dumps(head).encode()
    path.write_bytes(
        struct.pack("<Q", len(raw))
        + raw
        + b"".join(v.tobytes() for _, v in tensors.values())
    )


def bf16(values: np.ndarray) -> tuple[str, np.ndarray]:
    return "BF16", tiny._stored(values, "BF16")


def fp8(weights: np.ndarray, name: str, static: bool, by_channel: bool) -> Stored:
    axis = 1 if by_channel else None
    scale = (np.abs(weights).max(axis=axis, keepdims=by_channel) / 448).astype(np.float32)
    table = _e4m3()[:127]
    near = np.abs(np.abs(weights / scale)[..., None] - table).argmin(-1) | np.where(
        weights < 0, 128, 0
    )
    out: Stored = {
        f"{name}.weight": ("F8_E4M3", near.astype(np.uint8)),
        f"{name}.weight_scale": ("F32", scale),
    }
    return out | (
        {f"{name}.input_scale": ("F32", np.float32(0.01).reshape(()))} if static else {}
    )


def int8(weights: np.ndarray, name: str) -> Stored:
    scale = (np.abs(weights).max(1, keepdims=True) / 127).astype(np.float32)
    return {
        f"{name}.weight": ("I8", (weights / scale).round().astype(np.int8)),
        f"{name}.weight_scale": bf16(scale),
    }


def packed(weights: np.ndarray, name: str, quark: bool) -> Stored:
    """Four bits in groups of 128: Quark's with zero points and transposed, the other's symmetric."""
    rows, columns = weights.shape
    groups = weights.reshape(rows, columns // 128, 128)
    if not quark:
        scale = np.abs(groups).max(2) / 7.5
        values = (groups / scale[..., None]).round().clip(-8, 7).astype(np.int32) + 8
        return {
            f"{name}.weight_packed": (
                "I32",
                _pack(values.reshape(rows, columns), range(8)),
            ),
            f"{name}.weight_scale": ("F32", scale.astype(np.float32)),
        }
    low = groups.min(2)
    scale = (groups.max(2) - low) / 15
    zeros = (-low / scale).round().astype(np.int32)
    values = (
        ((groups / scale[..., None]).round() + zeros[..., None])
        .clip(0, 15)
        .astype(np.int32)
    )
    return {
        f"{name}.weight": ("I32", _pack(values.reshape(rows, columns).T, _REORDERED)),
        f"{name}.weight_scale": ("F32", np.ascontiguousarray(scale.T, np.float32)),
        f"{name}.weight_zero_point": ("I32", _pack(zeros.T, _REORDERED)),
    }


def _pack(values: np.ndarray, order) -> np.ndarray:
    eights = values.reshape(values.shape[0], -1, 8).astype(np.uint32)
    return sum(
        eights[..., place] << np.uint32(4 * i) for i, place in enumerate(order)
    ).astype(np.uint32)


_CONFIGS = {
    "llm-compressor": lambda kind, kv: {
        "quant_method": "compressed-tensors", "ignore": ["lm_head"], "kv_cache_scheme": {"num_bits": 8} if kv else {},
        "config_groups": {"group_0": {"weights": dict(zip(("type", "num_bits"), kind, strict=True))}},
    },
    "quark": lambda kind, kv: {
        "quant_method": "quark", "exclude": ["lm_head"], "export": {"kv_cache_group": ["*k_proj"] if kv else []},
        "global_quant_config": {"weight": {"dtype": kind}},
    },
}  # fmt: skip
_KINDS = {
    "llm-compressor": {
        "fp8": ("float", 8),
        "fp8-dynamic": ("float", 8),
        "int8": ("int", 8),
        "gptq": ("int", 4),
    },
    "quark": {"fp8": "fp8_e4m3", "fp8-dynamic": "fp8_e4m3", "gptq": "uint4"},
}


def build(
    folder: Path, key: str, kv: bool = False, change: Change = lambda tensors, config: None
) -> Path:
    """Write what a scheme makes of the tiny model; `change` may spoil it."""
    tool, _, scheme = key.partition(":")
    tensors: Stored = {}
    for name, weights in tiny.weights(SHAPE).items():
        layer = name.removesuffix(".weight")
        if "_proj" not in name:
            tensors[name] = bf16(weights)
        elif scheme.startswith("fp8"):
            tensors |= fp8(weights, layer, scheme == "fp8", scheme == "fp8-dynamic")
        else:
            tensors |= (
                int8(weights, layer)
                if scheme == "int8"
                else packed(weights, layer, tool == "quark")
            )
        if kv and name.endswith(("k_proj.weight", "v_proj.weight")):
            scale = (
                f"{layer}.output_scale"
                if tool == "quark"
                else f"{layer[: -len('_proj')]}_scale"
            )
            tensors[scale] = "F32", np.float32(0.02).reshape(())
    config = _CONFIGS[tool](_KINDS[tool][scheme], kv)
    change(tensors, config)
    folder.mkdir(exist_ok=True)
    save(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": config})
    )
    return folder


def install_fake(home: Path, tool: str) -> None:
    """Put an environment on the shelf whose interpreter runs this file."""
    env = home / "engines" / f"{tool}-0.1-cpu"
    env.mkdir(parents=True)
    python = env / "python"
    python.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} $FAKE "$@"\n'
    )
    python.chmod(0o755)
    os.environ["DYNO_HOME"] = str(home)
    write(
        Environment(
            env.name,
            tool,
            "0.1",
            "cpu",
            None,
            str(python),
            "3.11",
            "2026-01-01T00:00:00Z",
            [],
            1,
        )
    )


def _fake(behaviour: str, job: dict) -> None:
    if behaviour == "fails":
        sys.exit(
            "Traceback (most recent call last):\nValueError: no template for this model"
        )
    if behaviour == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    out, key = Path(job["out"]), f"{job['tool']}:{job['scheme']}"

    def lie(tensors: Stored, config: dict) -> None:
        if behaviour == "lies":
            tensors["model.layers.0.mlp.up_proj.weight"] = bf16(
                np.ones((256, 128), np.float32)
            )

    build(out, key, bool(job["kv_cache"]), lie)
    if behaviour == "hangs":
        print(f"hanging as {os.getpid()}", flush=True)
        time.sleep(600)
    difference = 2.0 if behaviour == "babbles" else 0.05
    result = {
        "tokens": [5, 6],
        "source_tokens": [5, 7],
        "finite": behaviour != "nan",
        "difference": difference,
    }
    Path(job["result"]).write_text(json.dumps({**result, "texts": 0, "device": "cpu"}))


if __name__ == "__main__":
    _fake(sys.argv[1], json.loads(Path(sys.argv[-1]).read_text()))
