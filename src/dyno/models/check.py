"""A model's files against each other: are the weights there, all of them, and are they what the configuration says?"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dyno import files
from dyno.probe import model
from dyno.probe.tensors import Tensor, read_gguf, read_safetensors

_INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
# times as many parameters as the configuration describes, or fewer: another model's
_FAR = 1.5


def problem(path: Path, weights: bool = True) -> str | None:
    """Return what is wrong with a model, and what to do. `weights`: it must have some."""
    try:
        if path.is_file() or path.suffix == ".gguf":
            return _gguf(path)
        names = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
        if any(name.endswith(_WEIGHTS) for name in names):
            return _safetensors(path, names, weights)
        if not weights:
            return None
        return "it has no weights (*.safetensors, *.gguf, *.bin). Name the files with --include to fetch it anyway."
    except OSError as e:
        return f"{e.filename} can't be read: {e.strerror}."
    except (
        *files.BROKEN,
        LookupError,
        TypeError,
        AttributeError,
    ) as e:  # a file may hold anything
        return f"{e}."


def _safetensors(path: Path, names: set[str], weights: bool) -> str | None:
    index = (
        json.loads(files.read(path / _INDEX)).get("weight_map", {})
        if _INDEX in names
        else {}
    )
    whole = {name for name in names if re.fullmatch(r"model[\w.-]*\.safetensors", name)}
    shards = set(index.values()) or whole
    missing = sorted(shards - names)
    if missing and weights:
        return f"{_INDEX} lists {missing[0]}, which is not there ({len(missing)} of {len(shards)} are missing)."
    read = [read_safetensors(path / name) for name in sorted(shards & names)]
    tensors = {t.name: t for t in itertools.chain.from_iterable(read)}
    if not weights:
        return None
    absent = sorted(set(index) - set(tensors))
    if absent:
        return f"{absent[0]} is not in {index[absent[0]]}, where {_INDEX} has it ({len(absent)} tensors are missing)."
    if tensors and "config.json" in names:
        return _against_config(path / "config.json", list(tensors.values()))
    return None


def _against_config(file: Path, tensors: Sequence[Tensor]) -> str | None:
    outer: dict[str, Any] = json.loads(files.read(file, files.TEXT))
    config = outer.get("text_config") or outer
    return _against(config, tensors, quantized=bool(outer.get("quantization_config")))


def _against(
    config: Mapping[str, Any], tensors: Sequence[Tensor], quantized: bool
) -> str | None:
    """Compare layers, widths and parameters. Packed weights have other shapes, and are compared by layers alone."""
    layers = config.get("num_hidden_layers")
    numbers = _layers(tensors)
    if type(layers) is int and numbers and len(numbers & set(range(layers))) < layers:
        return f"its files have {len(numbers)} layers, but config.json says {layers}."
    if quantized:
        return None
    wrong_width = _against_width(config, tensors)
    if wrong_width is not None:
        return wrong_width
    expected = model.expected_parameters(config)
    actual = sum(t.elements for t in tensors)
    far_off = expected is not None and not expected / _FAR < actual < expected * _FAR
    if expected and far_off and len(numbers) == layers and _is_plain(config):
        return (
            f"its files have {actual:,} parameters, but config.json describes {expected:,}."
        )
    return None


def _layers(tensors: Iterable[Tensor]) -> set[int]:
    """Return the numbers of the layers that the tensors are of."""
    numbers = (model.layer(t.name) for t in tensors)
    return {number for number in numbers if number is not None}


def _against_width(config: Mapping[str, Any], tensors: Iterable[Tensor]) -> str | None:
    width = (
        config.get("word_embed_proj_dim")
        or config.get("embedding_size")
        or config.get("hidden_size")
    )
    if not width:
        return None
    for t in tensors:
        if (
            t.name.endswith("embed_tokens.weight")
            and len(t.shape) == 2
            and t.shape[1] != width
        ):
            return f"{t.name} has {t.shape[1]} columns, but config.json says {width}."
    return None


def _is_plain(config: Mapping[str, Any]) -> bool:
    """Return whether it is a decoder of one kind of layer, whose parameters the formula knows; not one with encoders
    beside it."""
    other = (
        "layer_types",
        "layers_block_type",
        "hybrid_override_pattern",
        "vision_config",
        "audio_config",
        "ssm_cfg",
    )
    return not any(config.get(key) for key in other) and not any(
        "mamba" in key for key in config
    )


def _gguf(path: Path) -> str | None:
    parts = _parts(path)
    absent = [part.name for part in parts if not part.is_file()]
    if absent:
        return (
            f"{absent[0]} is not there ({len(absent)} of {len(parts)} parts are missing)."
        )
    heads = [read_gguf(part) for part in parts]
    for part, (_, tensors) in zip(parts, heads, strict=True):
        if sum(t.size_bytes for t in tensors) > part.stat().st_size:
            return f"{part.name} is shorter than its header says. Fetch it again."
    metadata, _ = heads[0]
    architecture = metadata.get("general.architecture")
    layers = metadata.get(f"{architecture}.block_count")
    numbers = _layers(itertools.chain.from_iterable(tensors for _, tensors in heads))
    if type(layers) is int and numbers and len(numbers) < layers:
        return f"it has {len(numbers)} layers, but its header says {layers}."
    return None


def _parts(path: Path) -> list[Path]:
    """Return all parts of a GGUF file, in order."""
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if split is None:
        return [path]
    count = int(split[2])
    return [
        path.with_name(f"{split[1]}-{n:05d}-of-{split[2]}.gguf")
        for n in range(1, count + 1)
    ]
