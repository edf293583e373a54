"""Verify a GGUF file that a tool wrote: whole, of the requested type, with sane values; and generate with it."""

import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from dyno.errors import EngineError, ModelError
from dyno.files import BROKEN
from dyno.models import tool
from dyno.numbers import human_bytes, many, number
from dyno.probe.tensors import BLOCKS, Tensor, read_gguf, read_safetensors
from dyno.saying import Say
from dyno.visible import one_line

if TYPE_CHECKING:
    import numpy as np

_LAYER = re.compile(r"blk\.(\d+)\.")
_SAMPLES = 4  # tensors whose values are read
_VALUES = 1 << 20  # of each, at most
_TOKENS = 24
_GENERATION_S = 600.0
_WORKER = Path(__file__).parent / "workers" / "generate_gguf.py"
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


def read(path: Path) -> GgufHead:
    try:
        metadata, tensors = read_gguf(path)
    except (OSError, LookupError, TypeError, *BROKEN) as e:
        raise ModelError(f"{path} can't be read as GGUF: {e}.") from None
    return GgufHead(path, metadata, {tensor.name: tensor for tensor in tensors})


def check(path: Path, kind: str, source: Path | None) -> dict[str, str]:
    """Return what was verified. `kind`: of the bulk of its weights; `source`: what it was made from."""
    head = read(path)
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
        return {name: (source, tensor) for name, tensor in read(source).tensors.items()}
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
    command = [sys.executable, str(_WORKER), str(path), str(out), str(_TOKENS)]
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
