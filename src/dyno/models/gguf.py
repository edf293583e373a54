"""GGUF models for llama.cpp, by its own tools: safetensors converted, GGUF quantized. Each is a step on the shelf."""

import os
import re
import time
from difflib import get_close_matches
from pathlib import Path

import msgspec

from dyno.engines import environment, install
from dyno.engines.kinds import FOR_GGUF
from dyno.errors import UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.models import calibration, gguf_check, shelf, tool
from dyno.models.shelf import ModelEntry
from dyno.probe import model
from dyno.probe.tensors import BLOCKS
from dyno.saying import Say

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
_WORKER = Path(__file__).parent / "workers" / "convert_gguf.py"
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
    with shelf.making(recipe, say) as part:
        entry = shelf.find(recipe)
        if entry:  # another dyno made it
            return entry
        making = _Making(recipe, source, part, say, below)
        say(f"{recipe.name}: converting {source.path} to GGUF {expected}")
        command = [
            env.python,
            "-I",
            str(_WORKER),
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
        source = shelf.find(first) or convert(first, source, say, below)
    head = gguf_check.read(Path(source.path))
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
    with shelf.making(recipe, say) as part:
        if entry := shelf.find(recipe):  # another dyno made it
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
        """Verify the file, and put it on the shelf."""
        origin = self._source
        self.below("verifying it")
        verified = gguf_check.check(self.file, kind, source)
        text = gguf_check.generate(self.file, self._log, self.say, self.below)
        if text is not None:
            verified["generation"] = _compared(text, origin.verified.get("text"))
            verified["text"] = text
        for leftover in self.part.glob("imatrix*"):
            leftover.unlink()
        by = (KIND, version)
        return shelf.put_made(
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
