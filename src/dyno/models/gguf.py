"""GGUF models for llama.cpp, by its own tools: safetensors converted, GGUF quantized. Each is a step in the library.

Each file is verified: whole, of the requested type, with sane values; and text is generated with it.
"""

import math
import os
import re
import sys
import time
from collections import Counter
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from dyno.engines import environment, install
from dyno.engines.kinds import FOR_GGUF
from dyno.errors import EngineError, ModelError, UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.files import BROKEN
from dyno.models import calibration, library, tool
from dyno.models.library import ModelEntry
from dyno.numbers import human_bytes, many, number
from dyno.probe import model
from dyno.probe.tensors import BLOCKS, Tensor, read_gguf, read_safetensors
from dyno.saying import Say
from dyno.visible import one_line

if TYPE_CHECKING:
    import numpy as np


KIND = "llama-tools"
CONVERSIONS = ("AUTO", "F32", "F16", "BF16", "Q8_0")
# Types of llama-quantize and the tensor type that each gives to most weights (llama_ftype_get_default_type).
TYPES = {
    **{name: name for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q6_K", "IQ4_NL", "IQ4_XS")},
    **{name: name for name in ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "Q1_0")},
    **{f"Q{bits}_K{size}": f"Q{bits}_K" for bits in (3, 4, 5) for size in ("", "_S", "_M")},
    "Q3_K_L": "Q3_K", "Q2_K_S": "Q2_K", "IQ2_S": "IQ2_XS", "IQ2_M": "IQ2_S", "IQ3_XS": "IQ3_S", "IQ3_M": "IQ3_S",
    "MXFP4_MOE": "MXFP4",
}  # fmt: skip
# Types that give some tensors more bits: of a whole Llama-3-8B, by the sizes that `llama-quantize --help` prints.
_MIXED_BITS = {
    "Q2_K": 3.16, "Q3_K_S": 3.65, "Q3_K_M": 4.00, "Q3_K_L": 4.31, "Q4_K_S": 4.67, "Q4_K_M": 4.90, "Q5_K_S": 5.57,
    "Q5_K_M": 5.70, "Q6_K": 6.57, "Q4_0": 4.64, "Q5_0": 5.59, "Q8_0": 8.51,
}  # fmt: skip
NEED_TEXT = (
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ2_M",
    "IQ3_XXS",
    "IQ3_XS",
    "Q2_K_S",
)
_OF_DTYPE = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
_CONVERTER = Path(__file__).parent / "programs" / "convert_gguf.py"
_TENSOR = re.compile(r"\[ *(\d+)/ *(\d+)\]")
_WRITING = re.compile(r"Writing: +(\d+%)\|.*?\| ([\d.]+\w?)/([\d.]+\w?)")
_CHUNK = re.compile(r"\[(\d+)\][\d.]+,[^\[]*$")


def parse_conversion(text: str) -> str:
    """Return the type of "gguf:F16"."""
    target, _, kind = text.partition(":")
    if target != "gguf" or (kind.upper() or "AUTO") not in CONVERSIONS:
        raise UsageError(
            f"{text!r} is not a conversion. Use gguf:{', gguf:'.join(CONVERSIONS[1:])}, or gguf:auto."
        )
    return kind.upper() or "AUTO"


def parse_type(text: str) -> str:
    """Return the type of "llama.cpp:Q4_K_M"."""
    kind = text.partition(":")[2].upper()
    if kind not in TYPES:
        near = get_close_matches(kind, TYPES, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"{text!r}: llama.cpp has no type {kind or '(none)'}.{hint} It has {', '.join(sorted(TYPES))}."
        )
    return kind


def bits_per_weight(recipe: ModelRecipe) -> float:
    """Return the bits of a parameter, as a mean over the whole file."""
    asked = (
        parse_type(recipe.quantize)
        if recipe.quantize
        else parse_conversion(recipe.convert or "gguf:auto")
    )
    if asked in _MIXED_BITS:
        return _MIXED_BITS[asked]
    block, size = BLOCKS[TYPES.get(asked, "F16" if asked == "AUTO" else asked)]
    return size * 8 / block


def check(recipe: ModelRecipe) -> None:
    """Raise where these tools can't make what the recipe asks for, without starting one."""
    if recipe.convert:
        parse_conversion(recipe.convert)
    if not (recipe.quantize or "").startswith("llama.cpp:"):
        return
    kind = parse_type(recipe.quantize or "")
    for name in ("kv_cache", "ignore"):
        if getattr(recipe, name):
            raise UsageError(
                f"{recipe.quantize} takes no {name}: llama-quantize chooses types by layer. Remove it."
            )
    if kind in NEED_TEXT and not recipe.calibration:
        raise UsageError(
            f"{recipe.quantize} needs text to find out which weights matter: give it with --calibration FILE, or "
            "choose a type of 3 bits and more, as Q3_K_M."
        )


# ---- steps ----


def convert(recipe: ModelRecipe, source: ModelEntry, say: Say, below: Say) -> ModelEntry:
    """Make one GGUF file of a folder with safetensors."""
    check(recipe)
    kind = parse_conversion(recipe.convert or "gguf:auto")
    shape = model.read(Path(source.path))
    # A folder of pickles alone has a config.json, too; the converter would load them.
    if (
        shape is None
        or shape.format != "safetensors"
        or not list(Path(source.path).glob("*.safetensors"))
    ):
        what = (
            "is GGUF already"
            if shape and shape.format == "gguf"
            else "is not a model in safetensors"
        )
        raise UsageError(
            f"{source.path} {what}: there is nothing to convert to {recipe.convert}."
        )
    expected = kind if kind != "AUTO" else _OF_DTYPE.get(shape.dtype or "", "F16")
    block, size = BLOCKS[expected]
    tool.check_space(
        (shape.parameters or 0) * size // block, f"{recipe.name} as {expected}"
    )
    env = environment.find(KIND) or install.install(KIND, say=say, below=below)
    with library.making(recipe, say) as part:
        entry = library.find(recipe)
        if entry:  # another dyno made it
            return entry
        making = _Making(recipe, source, part, say, below)
        say(f"{recipe.name}: converting {source.path} to GGUF {expected}")
        command = [
            env.python,
            "-I",
            str(_CONVERTER),
            str(env.folder / "converter"),
            source.path,
        ]
        # Without a network: a converter that finds a name in a config would ask the Hub about it.
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        making.run(
            [*command, "--outfile", str(making.file), "--outtype", expected.lower()],
            _converting,
            offline,
        )
        return making.finish(expected, Path(source.path), f"llama.cpp {env.version}")


def quantize(recipe: ModelRecipe, source: ModelEntry, say: Say, below: Say) -> ModelEntry:
    """Make a quantized GGUF file of another, or of safetensors, which are converted first."""
    check(recipe)
    kind = parse_type(recipe.quantize or "")
    if not source.path.endswith(".gguf"):
        first = msgspec.structs.replace(recipe.base, convert=recipe.convert or "gguf:auto")
        source = library.find(first) or convert(first, source, say, below)
    head = read_head(Path(source.path))
    quantized = [t.kind for t in head.weights if t.kind not in _OF_DTYPE.values()]
    if quantized:
        raise UsageError(
            f"{source.path} is quantized already ({quantized[0]}), and doing it twice loses more. Start from F16 or "
            "BF16."
        )
    block, size = BLOCKS[TYPES[kind]]
    count = sum(t.elements for t in head.tensors.values())
    # some tensors get a larger type
    tool.check_space(count * size // block * 5 // 4, recipe.name)
    program, version = _program("llama-quantize", say, below)
    with library.making(recipe, say) as part:
        if entry := library.find(recipe):  # another dyno made it
            return entry
        making = _Making(recipe, source, part, say, below)
        matrix = _matrix(recipe, source, making, version) if recipe.calibration else []
        say(f"{recipe.name}: quantizing {source.path} to {kind}")
        making.run([program, *matrix, source.path, str(making.file), kind], _quantizing)
        return making.finish(TYPES[kind], Path(source.path), f"llama.cpp {version}")


def _program(name: str, say: Say, below: Say) -> tuple[str, str]:
    """Return a program of llama.cpp and its version; of an engine that dyno built, or of the tools."""
    for env in (*environment.installed(KIND), *environment.installed(FOR_GGUF)):
        if env.whole and (path := env.folder / "bin" / name).exists():
            return str(path), env.version
    env = install.install(KIND, say=say, below=below)
    return str(env.folder / "bin" / name), env.version


def _matrix(
    recipe: ModelRecipe, source: ModelEntry, making: "_Making", version: str
) -> list[str]:
    """Return the quantizer's flags for an importance matrix, which this computes."""
    program, _ = _program("llama-imatrix", making.say, making.below)
    text, out = making.part / "calibration.txt", making.part / "imatrix.gguf"
    text.write_text(calibration.plain(Path(recipe.calibration or "")), encoding="utf-8")
    making.say(
        f"{recipe.name}: computing the importance of weights with {recipe.calibration}"
    )
    command = [
        program,
        "-m",
        source.path,
        "-f",
        str(text),
        "-o",
        str(out),
        "-c",
        str(recipe.length or 512),
    ]
    if recipe.samples:
        command += ["--chunks", str(recipe.samples)]
    making.run(command, _measuring)
    text.unlink()
    return ["--imatrix", str(out)]


class _Making:
    """One step in its folder: its log, and the file to write."""

    def __init__(
        self, recipe: ModelRecipe, source: ModelEntry, part: Path, say: Say, below: Say
    ) -> None:
        self._recipe, self._source, self.part, self.say, self.below = (
            recipe,
            source,
            part,
            say,
            below,
        )
        self.file = part / f"{recipe.name.replace('.gguf', '')}.gguf"
        self._log = tool.log_path(recipe.name)
        self._began = time.monotonic()

    def run(
        self, command: list[str], progress: tool.Progress, env: dict[str, str] | None = None
    ) -> None:
        name = "llama.cpp's converter" if env else Path(command[0]).name
        tool.run(name, command, self._log, self.below, progress, env)

    def finish(self, kind: str, source: Path, version: str) -> ModelEntry:
        """Verify the file, and put it in the library."""
        origin = self._source
        self.below("verifying it")
        verified = check_file(self.file, kind, source)
        text = generate(self.file, self._log, self.say, self.below)
        if text is not None:
            verified["generation"] = _compared(text, origin.verified.get("text"))
            verified["text"] = text
        for leftover in self.part.glob("imatrix*"):
            leftover.unlink()
        by = (KIND, version)
        return library.put_made(
            self.part, self._recipe, origin, self._log, self._began, by, verified, self.say
        )


def _compared(text: str, original: str | None) -> str:
    words = f"{len(text)} characters with the embedded engine"
    if original is None:
        return words
    if text == original:
        return f"{words}, the same as its source"
    pairs = zip(text, original, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(text))
    return f"{words}, the first {same} as its source"


# ---- progress ----


def _converting(line: str) -> str:
    match = _WRITING.search(line)
    return (
        f"writing, {match[1]}: {match[2]} of {match[3]}" if match else "reading the model"
    )


def _quantizing(line: str) -> str:
    match = _TENSOR.search(line)
    return f"quantizing tensor {match[1]} of {match[2]}" if match else "quantizing"


def _measuring(line: str) -> str:
    match = _CHUNK.search(line)
    return f"reading chunk {match[1]}" if match else "reading the calibration text"


# ---- the file, verified ----

_LAYER = re.compile(r"blk\.(\d+)\.")
_SAMPLES = 4  # tensors whose values are read
_VALUES = 1 << 20  # of each, at most
_TOKENS = 24
_GENERATION_S = 600.0
_GENERATOR = Path(__file__).parent / "programs" / "generate_gguf.py"
# The largest relative error by a type's bits: about twice that of normal noise. Zeros have 1, other weights about 1.4.
_ERRORS = (
    (16, 0.01),
    (8, 0.02),
    (6, 0.05),
    (5, 0.1),
    (4, 0.2),
    (3, 0.4),
    (2, 0.8),
    (0, 0.95),
)


class GgufHead(msgspec.Struct):
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def weights(self) -> list[Tensor]:
        """Return the matrices of its layers."""
        return [
            t for t in self.tensors.values() if _LAYER.match(t.name) and len(t.shape) > 1
        ]


def read_head(path: Path) -> GgufHead:
    try:
        metadata, tensors = read_gguf(path)
    except (OSError, LookupError, TypeError, *BROKEN) as e:
        raise ModelError(f"{path} can't be read as GGUF: {e}.") from None
    return GgufHead(path, metadata, {tensor.name: tensor for tensor in tensors})


def check_file(path: Path, kind: str, source: Path | None) -> dict[str, str]:
    """Return what was verified. `kind`: of the bulk of its weights; `source`: what it was made from."""
    head = read_head(path)
    return {
        "metadata": _check_metadata(head),
        "types": _check_types(head, kind),
        "values": _check_values(head, source),
    }


def _check_metadata(head: GgufHead) -> str:
    file, m = head.path.name, head.metadata
    architecture = m.get("general.architecture")
    keys = [
        f"{architecture}.{key}"
        for key in ("context_length", "block_count", "embedding_length")
    ]
    if m.get("tokenizer.ggml.model") == "gpt2":
        keys += ["tokenizer.ggml.pre", "tokenizer.ggml.merges"]
    keys = ["general.architecture", *keys, "tokenizer.ggml.model", "tokenizer.ggml.tokens"]
    if missing := [key for key in keys if key not in m]:
        raise ModelError(f"{file} lacks {', '.join(missing)}: an engine can't use it.")
    layers = {int(match[1]) for name in head.tensors if (match := _LAYER.match(name))}
    if gone := set(range(m[f"{architecture}.block_count"])) - layers:
        raise ModelError(
            f"{file} has no weights of {many(len(gone), 'layer')}, the first one {min(gone)}."
        )
    end = max(
        (tensor.start + tensor.size_bytes for tensor in head.tensors.values()), default=0
    )
    if end > (size := head.path.stat().st_size):
        raise ModelError(
            f"{file} is cut off: it has {size} bytes, and its tensors end at {end}."
        )
    rule = m.get("tokenizer.ggml.pre", "")
    words = f"{architecture}, {many(len(layers), 'layer')}, context {m[f'{architecture}.context_length']}"
    return f"{words}, tokenizer {m['tokenizer.ggml.model']} {rule}".rstrip()


def _check_types(head: GgufHead, kind: str) -> str:
    block = BLOCKS[kind][0]
    # Rows that are no multiple of a type's block get another type, as llama-quantize's log says.
    fit = [t for t in head.weights if t.shape[0] % block == 0]
    sizes: dict[str, int] = {}
    for t in fit:
        sizes[t.kind] = sizes.get(t.kind, 0) + t.elements
    bulk = max(sizes, key=sizes.__getitem__, default=None)
    if bulk not in (kind, None):
        raise ModelError(
            f"{head.path.name} should have {kind} weights, but most of its weights are {bulk}."
        )
    counts: Counter[str] = Counter()
    bytes_by_kind: Counter[str] = Counter()
    for t in head.tensors.values():
        counts[t.kind] += 1
        bytes_by_kind[t.kind] += t.size_bytes
    words = [
        f"{name}: {many(counts[name], 'tensor')}, {human_bytes(n)}"
        for name, n in bytes_by_kind.most_common()
    ]
    ends = [
        f"{end} {head.tensors[end].kind}"
        for end in ("token_embd.weight", "output.weight")
        if end in head.tensors
    ]
    odd = len(head.weights) - len(fit)
    if odd:
        words.append(
            f"{many(odd, 'tensor')} of another type, as rows aren't multiples of {block}"
        )
    return "; ".join([*words, *ends])


def _check_values(head: GgufHead, source: Path | None) -> str:
    """Read some tensors, compare them with the source's, and raise where they have NaN or are too far off."""
    sampled, originals = _sampled(head), _originals(head, source)
    errors, finite, unread = [], 0, []
    for t in sampled:
        values = _values(head.path, t)
        if values is None:
            unread.append(t.kind)
            continue
        _check_finite(head, t, values)
        finite += 1
        original = originals.get(t.name)
        expected = None if original is None else _values(*original, count=values.size)
        if expected is not None and expected.size == values.size:
            errors.append(_check_error(head, t, values, expected))
    words = [f"{many(finite, 'tensor')} finite"]
    if errors:
        words.append(
            f"relative error up to {number(max(errors))} in {many(len(errors), 'tensor')}"
        )
    if unread:
        words.append(f"{', '.join(sorted(set(unread)))} not read")
    return ", ".join(words)


def _sampled(head: GgufHead) -> list[Tensor]:
    """Return the tensors whose values are read, each once."""
    weights = head.weights or list(head.tensors.values())
    chosen = [weights[i * (len(weights) - 1) // (_SAMPLES - 1)] for i in range(_SAMPLES)]
    # A converter may reorder rows of queries and keys, but none of these.
    chosen += [t for t in weights if re.search(r"^blk\.0\.ffn_(down|up)\.weight$", t.name)]
    return list({t.name: t for t in chosen}.values())


def _check_finite(head: GgufHead, t: Tensor, values: "np.ndarray[Any, Any]") -> None:
    import numpy as np

    if not np.isfinite(values).all():
        raise ModelError(
            f"{head.path.name}: {t.name} has NaN or infinite values. Its source may have them too."
        )


def _check_error(
    head: GgufHead,
    t: Tensor,
    values: "np.ndarray[Any, Any]",
    expected: "np.ndarray[Any, Any]",
) -> float:
    """Return the relative error of a tensor's values. Raise where it is too large."""
    import numpy as np

    norm = float(np.linalg.norm(expected))
    error = float(np.linalg.norm(values - expected)) / norm if norm else 0.0
    most = _most_error(t.kind)
    if not error <= most:
        raise ModelError(
            f"{head.path.name}: {t.name} differs from its source by {number(error)} of its size; "
            f"{t.kind} should stay below {most}."
        )
    return error


def _most_error(kind: str) -> float:
    if kind.startswith("TQ"):
        return math.inf  # only a model that was trained for three values survives it
    block, size = BLOCKS[kind]
    return next(error for bits, error in _ERRORS if 8 * size / block >= bits)


def _originals(head: GgufHead, source: Path | None) -> dict[str, tuple[Path, Tensor]]:
    """Return the source's tensors that have the same values, by their names in GGUF."""
    if source is None:
        return {}
    if source.is_file():
        return {
            name: (source, tensor) for name, tensor in read_head(source).tensors.items()
        }
    import gguf

    architecture = head.metadata["general.architecture"]
    arch = next(
        (key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None
    )
    if arch is None:
        return {}
    names = gguf.get_tensor_name_map(arch, head.metadata[f"{architecture}.block_count"])
    originals = {}
    for file in source.glob("*.safetensors"):
        for tensor in read_safetensors(file):
            name = names.get_name(tensor.name, (".weight",))
            if (
                not name
                or name not in head.tensors
                or not re.search(r"\.ffn_(down|up)\.weight$", name)
            ):
                continue
            if tensor.shape == head.tensors[name].shape[::-1]:
                originals[name] = file, tensor
    return originals


def _values(
    path: Path, tensor: Tensor, count: int = _VALUES
) -> "np.ndarray[Any, Any] | None":
    """Return its first values. None: of a type that can't be read here."""
    import numpy as np
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    block, size = BLOCKS.get(tensor.kind, (0, 0))
    if not block:
        return None
    count = min(count, tensor.elements) // block * block
    raw = np.fromfile(path, np.uint8, count * size // block, offset=tensor.start)
    try:
        values = dequantize(
            raw.view(_FLOATS.get(tensor.kind, "u1")), GGMLQuantizationType[tensor.kind]
        )
    except (KeyError, NotImplementedError):
        return None
    return np.asarray(values, np.float32).reshape(-1)


_FLOATS = {"F32": "<f4", "F16": "<f2"}


def generate(path: Path, log: Path, say: Say, below: Say) -> str | None:
    """Return greedy text of the engine that comes with dyno. None: the model is too large for the free memory."""
    size, free = path.stat().st_size, psutil.virtual_memory().available
    if size > free:
        say(
            f"{path.name}: no generation, as it needs {human_bytes(size)} of memory and {human_bytes(free)} is free"
        )
        return None
    below(f"generating {_TOKENS} tokens with the embedded engine")
    out = log.with_suffix(".generated")
    command = [sys.executable, str(_GENERATOR), str(path), str(out), str(_TOKENS)]
    try:
        tool.run(
            "the embedded engine",
            command,
            log,
            below,
            lambda line: f"generating {_TOKENS} tokens",
            timeout_s=_GENERATION_S,
        )
        text = one_line(out.read_text(encoding="utf-8"))
    except EngineError as e:
        raise ModelError(f"{path.name} was written, but generates nothing: {e}") from None
    finally:
        out.unlink(missing_ok=True)
    if not text:
        raise ModelError(f"{path.name} was written, but generates no text. Read {log}.")
    return text
