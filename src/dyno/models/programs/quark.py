"""AMD Quark: its templates for each scheme. Writes Quark's own form of safetensors."""

from __future__ import annotations

import re
from typing import Any

import torch
from quark.torch import (
    LLMTemplate,
    ModelQuantizer,
    export_safetensors,
    import_model_from_safetensors,
)
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

SCHEMES = {  # name → Quark's scheme and algorithm
    "fp8": ("fp8", None),
    "fp8-dynamic": ("ptpc_fp8", None),
    "int8": ("int8", None),
    "gptq": ("uint4_wo_128", "gptq"),
    "awq": ("uint4_wo_128", "awq"),
}


def load(job: dict[str, Any]) -> Any:
    where = "auto" if job["device"] != "cpu" else "cpu"
    return AutoModelForCausalLM.from_pretrained(
        job["source"], dtype=job["dtype"], device_map=where
    ).eval()


def quantize(model: Any, job: dict[str, Any], texts: list[Any]) -> None:
    scheme, algorithm = SCHEMES[job["scheme"]]
    template = LLMTemplate.get(model.config.model_type)
    names = [name for name, _ in model.named_modules()]
    exclude = [*template.exclude_layers_name]
    for word in job["ignore"]:
        if word.startswith("re:"):
            exclude += [name for name in names if re.match(word[3:], name)]
        else:
            exclude.append(word)
    config = template.get_config(
        scheme, algorithm, job["kv_cache"], exclude_layers=list(dict.fromkeys(exclude))
    )
    data = (
        DataLoader([ids[0].to(model.device) for ids in texts], batch_size=1)
        if texts
        else None
    )
    quantizer = ModelQuantizer(config)
    model = quantizer.freeze(quantizer.quantize_model(model, data))
    with torch.no_grad():
        export_safetensors(model, job["out"])


def reload(job: dict[str, Any]) -> Any:
    return import_model_from_safetensors(load(job), job["out"])
