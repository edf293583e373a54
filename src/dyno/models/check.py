"""A model's files against each other: are the weights there, all of them, and are they what the configuration says?"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dyno import files
from dyno.probe import model
from dyno.probe.tensors import Tensor, read_gguf, read_safetensors

_INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_FAR = 1.5  # times as many parameters as the configuration describes, or fewer: another model's


def problem(path: Path, weights: bool = True) -> str | None:
    """Return what is wrong with a model, and what to do. `weights`: it must have some."""
    try:
        if path.is_file() or path.suffix == ".gguf":
            return _gguf(path)
        names = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
        if not any(name.endswith(_WEIGHTS) for name in names):
            missing = (
                "it has no weights (*.safetensors, *.gguf, *.bin). Name the files with --include to fetch it anyway."
            )
            return missing if weights else None
        return _safetensors(path, names, weights)
    except OSError as e:
        return f"{e.filename} can't be read: {e.strerror}."
    except (*files.BROKEN, LookupError, TypeError, AttributeError) as e:  # a file may hold anything
        return f"{e}."


def _safetensors(path: Path, names: set[str], weights: bool) -> str | None:
    index = json.loads(files.read(path / _INDEX)).get("weight_map", {}) if _INDEX in names else {}
    shards = set(index.values()) or {name for name in names if re.fullmatch(r"model[\w.-]*\.safetensors", name)}
    missing = sorted(shards - names)
    if missing and weights:
        return f"{_INDEX} lists {missing[0]}, which is not there ({len(missing)} of {len(shards)} are missing)."
    tensors = {t.name: t for name in sorted(shards & names) for t in read_safetensors(path / name)}
    absent = sorted(set(index) - set(tensors))
    if absent and weights:
        return f"{absent[0]} is not in {index[absent[0]]}, where {_INDEX} has it ({len(absent)} tensors are missing)."
    if not tensors or not weights or "config.json" not in names:
        return None
    outer: dict[str, Any] = json.loads(files.read(path / "config.json", files.TEXT))
    return _against(outer.get("text_config") or outer, tensors.values(), bool(outer.get("quantization_config")))


def _against(config: Mapping[str, Any], tensors: Iterable[Tensor], quantized: bool) -> str | None:
    """Compare layers, widths and parameters. Packed weights have other shapes, and are compared by layers alone."""
    tensors = list(tensors)
    layers = config.get("num_hidden_layers")
    numbers = {number for t in tensors if (number := model.layer(t.name)) is not None}
    if type(layers) is int and numbers and len(numbers & set(range(layers))) < layers:
        return f"its files have {len(numbers)} layers, but config.json says {layers}."
    if quantized:
        return None
    width = config.get("word_embed_proj_dim") or config.get("embedding_size") or config.get("hidden_size")
    for t in tensors:
        if t.name.endswith("embed_tokens.weight") and len(t.shape) == 2 and width and t.shape[1] != width:
            return f"{t.name} has {t.shape[1]} columns, but config.json says {width}."
    expected = model.expected_parameters(config)
    actual = sum(t.elements for t in tensors)
    if expected and len(numbers) == layers and not expected / _FAR < actual < expected * _FAR and _is_plain(config):
        return f"its files have {actual:,} parameters, but config.json describes {expected:,}."
    return None


def _is_plain(config: Mapping[str, Any]) -> bool:
    """A decoder of one kind of layer, whose parameters the formula knows; not one with encoders beside it."""
    other = ("layer_types", "layers_block_type", "hybrid_override_pattern", "vision_config", "audio_config", "ssm_cfg")
    return not any(config.get(key) for key in other) and not any("mamba" in key for key in config)


def _gguf(path: Path) -> str | None:
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    count = int(split[2]) if split else 1
    parts = [path.with_name(f"{split[1]}-{n:05d}-of-{split[2]}.gguf") for n in range(1, count + 1)] if split else [path]
    if absent := [part.name for part in parts if not part.is_file()]:
        return f"{absent[0]} is not there ({len(absent)} of {count} parts are missing)."
    read = [(part, *read_gguf(part)) for part in parts]
    for part, _, tensors in read:
        if sum(t.size_bytes for t in tensors) > part.stat().st_size:
            return f"{part.name} is shorter than its header says. Fetch it again."
    metadata = read[0][1]
    layers = metadata.get(f"{metadata.get('general.architecture')}.block_count")
    numbers = {number for _, _, tensors in read for t in tensors if (number := model.layer(t.name)) is not None}
    if type(layers) is int and numbers and len(numbers) < layers:
        return f"it has {len(numbers)} layers, but its header says {layers}."
    return None
