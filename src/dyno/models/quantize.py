"""Quantize a model with llm-compressor or AMD Quark, in the tool's own environment, and verify what it wrote."""

import fnmatch
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from dyno import files
from dyno.engines import environment, install
from dyno.errors import ModelError, UsageError
from dyno.facts.model import ModelShape
from dyno.facts.recipe import ModelRecipe
from dyno.models import calibration, library, schemes, tool
from dyno.models.library import ModelEntry
from dyno.models.schemes import GROUP, Scheme
from dyno.numbers import human_bytes, many, percent
from dyno.probe import model
from dyno.probe.tensors import Tensor, read_safetensors
from dyno.saying import Say

_PROGRAMS = Path(__file__).with_name("programs")
# left as it is where the recipe doesn't say: it decides on tokens, and is small
_HEAD = "lm_head"
# relative difference of the logits. Zeros have 1, another model has 1.4; 4 bits of random weights 0.44
_FAR = 0.8
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".index.json")
_CODE = (".py", ".pkl", ".pickle")  # a model that needs them is refused
_PHASE = re.compile(r'^\{"phase": "(.*)"\}$')
_LAYER = re.compile(r"\((\d+)/(\d+)\): (\w+)")  # llm-compressor's
_BAR = re.compile(r"^(.*?):? *\d+%\|.*\| *(\d+)/(\d+)")


class ToolResult(msgspec.Struct):
    """What the tool's program reports: the greedy tokens of both models, and how far the logits are apart."""

    tokens: list[int]
    source_tokens: list[int]
    finite: bool
    difference: float
    texts: int
    device: str


def quantize(recipe: ModelRecipe, source: ModelEntry, say: Say, below: Say) -> ModelEntry:
    if (recipe.quantize or "").startswith("llama.cpp:"):
        from dyno.models import gguf

        return gguf.quantize(recipe, source, say, below)
    scheme = schemes.check(recipe)
    folder = source.folder
    shape = _check_source(folder, scheme, recipe)
    text = (
        calibration.texts(recipe, scheme, folder)
        if schemes.calibrates(scheme, recipe)
        else None
    )
    # Embeddings and head stay as they are.
    tool.check_space((shape.weights_bytes or 0) * (scheme.bits + 2) // 16, recipe.name)
    env = environment.find(scheme.tool)
    if env is None:
        say(f"{scheme.tool} is not installed: installing it into its own environment")
        env = install.install(scheme.tool, say=say, below=below)
    with library.making(recipe, say) as part:
        if entry := library.find(recipe):  # another dyno made it
            return entry
        began, log = time.monotonic(), tool.log_path(recipe.name)
        say(
            f"{recipe.name}: quantizing {folder} with {scheme.tool} {env.version}: {scheme.about}"
        )
        result = _run(env, scheme, recipe, folder, part, text, log, below)
        below("verifying it")
        verified = verify(part, folder, scheme, recipe)
        verified["generation"] = _generation(result, scheme)
        if text:
            verified["calibration"] = text.about
        _copy_others(folder, part)
        by = (scheme.tool, env.version)
        return library.put_made(part, recipe, source, log, began, by, verified, say)


def _check_source(folder: Path, scheme: Scheme, recipe: ModelRecipe) -> ModelShape:
    shape = model.read(folder)
    if (
        shape is None
        or shape.format != "safetensors"
        or not list(folder.glob("*.safetensors"))
    ):
        raise UsageError(
            f"{folder} has no safetensors and config.json, which {scheme.tool} reads."
        )
    if shape.quantization:
        raise UsageError(
            f"{folder} is quantized already ({shape.quantization}). Start from its original."
        )
    if scheme.scales == "group":
        ignored = recipe.ignore or [_HEAD]
        for name, tensor in linear_layers(TensorFiles(folder)).items():
            if tensor.shape[1] % GROUP and not matches(name, ignored):
                raise UsageError(
                    f"{scheme.key} rounds weights in groups of {GROUP}, but the rows of {name} have "
                    f"{tensor.shape[1]:,} values. Add --ignore {name}, or choose another scheme."
                )
    return shape


def _run(
    env: environment.Environment,
    scheme: Scheme,
    recipe: ModelRecipe,
    source: Path,
    part: Path,
    text: calibration.CalibrationTexts | None,
    log: Path,
    below: Say,
) -> ToolResult:
    """Run the program in the tool's interpreter."""
    weights = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    work = part / "work"  # swept with the rest where dyno is killed
    work.mkdir()
    job = {
        "tool": scheme.tool,
        "scheme": scheme.name,
        "kv_cache": recipe.kv_cache,
        "ignore": recipe.ignore or [_HEAD],
        "length": recipe.length or scheme.length,
        "source": str(source),
        "out": str(part),
        "texts": str(work / "texts.jsonl") if text else None,
        "result": str(work / "result.json"),
    }
    if text:
        (work / "texts.jsonl").write_bytes(text.lines)
    (work / "job.json").write_text(json.dumps(job))
    needs = (
        f"The model needs about {human_bytes(2 * weights)}, twice that on a processor without bf16; this machine "
        f"has {human_bytes(psutil.virtual_memory().total)}. "
    )
    # The model is here: a name in its config must not make the tool ask the Hub.
    variables = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    variables.pop("HF_TOKEN", None)
    command = [env.python, "-I", str(_PROGRAMS / "__main__.py"), str(work / "job.json")]
    tool.run(scheme.tool, command, log, below, describe, variables, needs=needs)
    try:
        return msgspec.json.decode((work / "result.json").read_bytes(), type=ToolResult)
    except (OSError, msgspec.MsgspecError):
        raise ModelError(f"{scheme.tool} ended without a result. Read {log}.") from None
    finally:
        shutil.rmtree(work)


def describe(line: str) -> str:
    """Return the line of progress for the log's last line."""
    if phase := _PHASE.match(line):
        return phase[1]
    if layer := _LAYER.search(line):
        return f"layer {layer[1]} of {layer[2]}: {layer[3].lower()}"
    if bar := _BAR.match(line):
        return f"{bar[1] or 'quantizing'}: {bar[2]} of {bar[3]}"
    return "quantizing"


def _generation(result: ToolResult, scheme: Scheme) -> str:
    if not result.finite or not result.tokens:
        raise ModelError(
            f"The model that {scheme.tool} wrote generates no text: its logits are not finite."
        )
    if not result.difference <= _FAR:
        raise ModelError(
            f"The model that {scheme.tool} wrote has logits {percent(result.difference)} off those of the source "
            f"(at most {percent(_FAR)} is accepted). Choose another scheme, or more calibration text."
        )
    same = sum(a == b for a, b in zip(result.tokens, result.source_tokens, strict=False))
    return (
        f"{len(result.tokens)} tokens on {result.device}, {same} as the source's; logits differ by "
        f"{percent(result.difference)}"
    )


def _copy_others(source: Path, part: Path) -> None:
    """Copy what the tool left out: tokenizer, chat template, generation settings."""
    for path in source.iterdir():
        copy = part / path.name
        if not path.is_file() or path.name.endswith(_WEIGHTS + _CODE) or copy.exists():
            continue
        library.check_link(path, source)
        shutil.copy(path, copy)


# ---- the files, verified: types, scales and values of tensors. What a config says is a claim ----

# two dimensions, but not linear layers
_TABLES = re.compile(r"(^|\.)(embed\w*|wte|wpe|\w*_embeddings?)(\.|$)")
_NUMPY = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "I8": "i1",
    "I32": "<i4",
}
# relative error that rounding to the type can cause
_NEAR = {"F8_E4M3": 0.1, "I8": 0.2, "I32": 0.4}
_ROWS = 256  # of each layer whose values are compared
_REORDERED = (0, 2, 4, 6, 1, 3, 5, 7)  # Quark's order of eight values in an integer
_KEYS_AND_VALUES = re.compile(r"(\.[kv]_scale|\.[kv]_proj\.output_scale)$")
Floats = NDArray[np.float32]


class TensorFiles:
    """All tensors of a folder. Values are read where they are asked for."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.safetensors"))
        try:
            self._places = {
                t.name: (path, t) for path in paths for t in read_safetensors(path)
            }
        except (OSError, ValueError) as e:
            raise ModelError(f"{e}. Fetch or make the model again.") from None

    def __iter__(self) -> Iterator[Tensor]:
        return (tensor for _, tensor in self._places.values())

    def get(self, name: str) -> Tensor | None:
        return self._places[name][1] if name in self._places else None

    def raw(self, name: str) -> NDArray[Any]:
        path, tensor = self._places[name]
        return np.memmap(path, _NUMPY[tensor.kind], "r", tensor.start, tensor.shape or (1,))

    def floats(self, name: str, rows: int | None = None) -> Floats:
        raw = self.raw(name)[:rows]
        kind = self._places[name][1].kind
        if kind == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return _e4m3()[raw] if kind == "F8_E4M3" else raw.astype(np.float32)


def linear_layers(tensors: TensorFiles) -> dict[str, Tensor]:
    """Return the weights of linear layers, by the layer's name."""
    each = {
        t.name.removesuffix(".weight"): t
        for t in tensors
        if t.name.endswith(".weight") and len(t.shape) == 2
    }
    return {name: tensor for name, tensor in each.items() if not _TABLES.search(name)}


def verify(
    folder: Path, source: Path, scheme: Scheme, recipe: ModelRecipe
) -> dict[str, str]:
    """Return what was checked, and what came of it. Raise where the files aren't what the scheme makes."""
    config = (
        json.loads(files.read(folder / "config.json", files.TEXT)).get(
            "quantization_config"
        )
        or {}
    )
    original, written = TensorFiles(source), TensorFiles(folder)
    layers = linear_layers(original)
    patterns = config.get("ignore") or config.get("exclude") or []
    ignored = {name for name in layers if matches(name, patterns)}
    quantized = [name for name in layers if name not in ignored]
    if not quantized:
        raise ModelError(
            f"{scheme.key} quantized none of the {many(len(layers), 'linear layer')} of {source}."
        )
    checked = LayerCheck(written, scheme)
    for name in quantized:
        checked.check_layer(name, layers[name])
    scales = f"{checked.scales:,} of weights (one per {scheme.scales})"
    if scheme.static:
        scales += f", {len(quantized):,} of inputs"
    if recipe.kv_cache:
        scales += f", {checked.check_kv_cache(layers):,} of the KV cache"
    claim = _claim(config)
    expected = (_METHODS[scheme.tool], scheme.weights, recipe.kv_cache is not None)
    if claim != expected:
        raise ModelError(
            f"{folder.name}/config.json claims {claim}, but the files have {expected}."
        )
    return {
        "types": f"{many(len(quantized), 'linear layer')} {scheme.weights}{_left(sorted(ignored), written)}",
        "scales": f"{scales}; all finite and positive",
        "values": _values(checked, quantized, original, scheme),
    }


def _values(
    checked: "LayerCheck", quantized: Sequence[str], original: TensorFiles, scheme: Scheme
) -> str:
    """Compare the values of the first, the middle and the last layer with the source's."""
    if scheme.moves:
        return f"not compared: {scheme.name} rescales channels"
    some = list(
        dict.fromkeys((quantized[0], quantized[len(quantized) // 2], quantized[-1]))
    )
    worst = max(checked.check_values(name, original) for name in some)
    return f"{many(len(some), 'layer')} within {percent(worst)} of the source"


def _left(ignored: Sequence[str], tensors: TensorFiles) -> str:
    if not ignored:
        return ""
    weights = (tensors.get(f"{name}.weight") for name in ignored)
    kinds = {tensor.kind for tensor in weights if tensor}
    more = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
    return f"; left {', '.join(sorted(kinds))}: {', '.join(ignored[:3])}{more}"


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(_match(name, pattern) for pattern in patterns)


def _match(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return fnmatch.fnmatch(name, pattern)


class LayerCheck:
    def __init__(self, tensors: TensorFiles, scheme: Scheme) -> None:
        self._tensors, self._scheme = tensors, scheme
        self._packed = scheme.weights == "I32"
        self._weight = (
            "weight_packed"
            if self._packed and scheme.tool == "llm-compressor"
            else "weight"
        )
        self.scales = 0

    def check_layer(self, name: str, original: Tensor) -> None:
        """Check type, scales and zero points of one layer."""
        scheme, (rows, columns) = self._scheme, original.shape
        tensor = self._tensors.get(f"{name}.{self._weight}")
        if tensor is None or tensor.kind != scheme.weights:
            unquantized = (t.kind for t in self._tensors if t.name == f"{name}.weight")
            kind = tensor.kind if tensor else next(unquantized, "missing")
            raise ModelError(
                f"{name}.{self._weight} is {kind}, not {scheme.weights} as {scheme.key} makes it."
            )
        if tensor.elements * (8 if self._packed else 1) != original.elements:
            raise ModelError(
                f"{name}.{self._weight} has the shape {tensor.shape}, but the source has {original.shape}."
            )
        count = {"tensor": 1, "channel": rows, "group": rows * columns // GROUP}[
            scheme.scales
        ]
        self.check_scale(f"{name}.weight_scale", count)
        self.scales += count
        if scheme.static:
            self.check_scale(f"{name}.input_scale", 1)
        if scheme.zeros and self._tensors.get(f"{name}.weight_zero_point") is None:
            raise ModelError(f"{name} has no weight_zero_point, which {scheme.key} stores.")

    def check_scale(self, name: str, count: int) -> None:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"{name} is missing: engines need it to read the weights.")
        if tensor.elements != count:
            raise ModelError(f"{name} has {tensor.elements:,} values, not {count:,}.")
        values = self._tensors.floats(name)
        if not (np.isfinite(values).all() and (values > 0).all()):
            bad = values[~(np.isfinite(values) & (values > 0))]
            raise ModelError(
                f"{name} has {many(bad.size, 'value')} that can't be a scale, such as {bad.flat[0]}."
            )

    def check_kv_cache(self, layers: dict[str, Tensor]) -> int:
        names = [t.name for t in self._tensors if _KEYS_AND_VALUES.search(t.name)]
        expected = 2 * sum(name.endswith(".k_proj") for name in layers) or max(
            len(names), 1
        )
        if len(names) != expected:
            raise ModelError(
                f"The files have {len(names)} scales of a KV cache, not {expected}."
            )
        for name in names:
            self.check_scale(name, 1)
        return len(names)

    def check_values(self, name: str, original: TensorFiles) -> float:
        """Return the relative error of a layer's first rows. A wrong scale makes it large."""
        ours = self._dequantized(name)
        true = original.floats(f"{name}.weight", len(ours))
        error = float(np.linalg.norm(ours - true) / (np.linalg.norm(true) or 1.0))
        if not error <= _NEAR[self._scheme.weights]:
            raise ModelError(
                f"{name} times its scale is {percent(error)} off the source's weights: a scale is wrong."
            )
        return error

    def _dequantized(self, name: str) -> Floats:
        scale = self._tensors.floats(f"{name}.weight_scale")
        if not self._packed:
            return (
                self._tensors.floats(f"{name}.weight", _ROWS) * scale.reshape(-1, 1)[:_ROWS]
            )
        packed = self._tensors.raw(f"{name}.{self._weight}")
        zeros = (
            self._tensors.raw(f"{name}.weight_zero_point") if self._scheme.zeros else None
        )
        offsets: NDArray[np.integer[Any]] = np.full((1, 1), 8)
        if self._scheme.tool == "quark":  # columns are output channels
            columns = min(packed.shape[1] * 8, _ROWS)
            values = _unpacked(packed[:, : columns // 8], _REORDERED).T
            if zeros is not None:
                offsets = _unpacked(zeros[:, : columns // 8], _REORDERED).T
            scale = scale[:, :columns].T
        else:
            values = _unpacked(packed[:_ROWS], range(8))
            if zeros is not None:
                offsets = _unpacked(zeros.T, range(8)).T[:_ROWS]
            scale = scale[:_ROWS]
        group = values.shape[1] // scale.shape[1]
        offsets = np.broadcast_to(offsets, scale.shape)
        return ((values - offsets.repeat(group, 1)) * scale.repeat(group, 1)).astype(
            np.float32
        )


def _unpacked(packed: NDArray[Any], order: Sequence[int]) -> NDArray[np.int32]:
    """Return the values of four bits, eight in an integer, along the last axis."""
    out = np.empty((*packed.shape, 8), np.int32)
    for i, place in enumerate(order):
        out[..., place] = packed >> 4 * i & 15
    return out.reshape(*packed.shape[:-1], -1)


def _e4m3() -> Floats:
    """Return the values of all bytes as FP8 E4M3."""
    byte = np.arange(256)
    exponent, fraction = (byte >> 3 & 15).astype(np.float32), (byte & 7) / 8
    size = np.where(
        exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent - 7)
    )
    size[byte & 127 == 127] = np.nan
    return np.where(byte > 127, -size, size).astype(np.float32)


_METHODS = {"llm-compressor": "compressed-tensors", "quark": "quark"}
_CLAIMS: dict[Any, str] = {
    ("float", 8): "F8_E4M3", ("int", 8): "I8", ("int", 4): "I32",
    "fp8_e4m3": "F8_E4M3", "int8": "I8", "uint4": "I32", "int4": "I32",
}  # fmt: skip


def _claim(config: dict[str, Any]) -> tuple[Any, Any, bool]:
    """Return what a config says: its method, the type of weights, whether the KV cache has scales."""
    method = config.get("quant_method")
    if method == "quark":
        kind: dict[str, Any] = (config.get("global_quant_config") or {}).get("weight") or {}
        export: dict[str, Any] = config.get("export") or {}
        return method, _CLAIMS.get(kind.get("dtype")), bool(export.get("kv_cache_group"))
    groups: dict[str, Any] = config.get("config_groups") or {}
    weights: dict[str, Any] = {}
    if groups:
        weights = next(iter(groups.values())).get("weights") or {}
    claim = _CLAIMS.get((weights.get("type"), weights.get("num_bits")))
    return method, claim, bool(config.get("kv_cache_scheme"))
