"""llm-compressor: its recipes for each scheme. Writes compressed-tensors."""

from __future__ import annotations

from typing import Any

import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

KV_CACHE = {
    "num_bits": 8,
    "type": "float",
    "symmetric": True,
    "strategy": "tensor",
    "dynamic": False,
}


def load(job: dict[str, Any]) -> Any:
    # On the CPU: the tool moves one layer after the other to the accelerator.
    return AutoModelForCausalLM.from_pretrained(job["source"], dtype=job["dtype"])


def recipe(job: dict[str, Any]) -> list[Any]:
    common = {
        "ignore": job["ignore"],
        "kv_cache_scheme": KV_CACHE if job["kv_cache"] else None,
    }
    presets = {
        "fp8": "FP8",
        "fp8-dynamic": "FP8_DYNAMIC",
        "int8": "W8A8",
        "gptq": "W4A16",
        "awq": "W4A16_ASYM",
    }
    asked = {"targets": "Linear", "scheme": presets[job["scheme"]], **common}
    if job["scheme"] in ("int8", "gptq"):
        return [GPTQModifier(**asked)]
    first = [AWQModifier()] if job["scheme"] == "awq" else []
    return [*first, QuantizationModifier(**asked)]


def quantize(model: Any, job: dict[str, Any], texts: list[Any]) -> None:
    if job["device"] == "cpu":
        # It only speeds up copies to an accelerator, and fails where there is none.
        IntermediatesCache.pin_memory = lambda *args, **rest: None
    rows = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in texts]
    data: dict[str, Any] = {"pipeline": "datafree"}
    if rows:
        data = {
            "dataset": DataLoader(rows, batch_size=None),
            "num_calibration_samples": len(rows),
        }
    oneshot(model=model, recipe=recipe(job), **data)
    model.save_pretrained(job["out"], save_compressed=True)


def reload(job: dict[str, Any]) -> Any:
    return AutoModelForCausalLM.from_pretrained(job["out"], dtype=job["dtype"])
