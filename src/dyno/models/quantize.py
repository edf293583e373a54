"""Quantize a model with llm-compressor or AMD Quark, in the tool's own environment, and verify what it wrote."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import msgspec
import psutil

from dyno.engines import environment, install
from dyno.errors import ModelError, UsageError
from dyno.facts.model import ModelShape
from dyno.facts.recipe import ModelRecipe
from dyno.models import calibration, schemes, shelf, tool, verify
from dyno.models.schemes import GROUP, Scheme
from dyno.models.shelf import ModelEntry
from dyno.numbers import human_bytes, percent
from dyno.probe import model
from dyno.saying import Say

_WORKERS = Path(__file__).with_name("workers")
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
    """What a worker reports: the greedy tokens of both models, and how far the logits are apart."""

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
    with shelf.making(recipe, say) as part:
        if entry := shelf.find(recipe):  # another dyno made it
            return entry
        began, log = time.monotonic(), tool.log_path(recipe.name)
        say(
            f"{recipe.name}: quantizing {folder} with {scheme.tool} {env.version}: {scheme.about}"
        )
        result = _run(env, scheme, recipe, folder, part, text, log, below)
        below("verifying it")
        verified = verify.verify(part, folder, scheme, recipe)
        verified["generation"] = _generation(result, scheme)
        if text:
            verified["calibration"] = text.about
        _copy_others(folder, part)
        by = (scheme.tool, env.version)
        return shelf.put_made(part, recipe, source, log, began, by, verified, say)


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
        for name, tensor in verify.linear_layers(verify.TensorFiles(folder)).items():
            if tensor.shape[1] % GROUP and not verify.matches(name, ignored):
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
    """Run the worker in the tool's interpreter."""
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
    command = [env.python, "-I", str(_WORKERS / "__main__.py"), str(work / "job.json")]
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
        shelf.check_link(path, source)
        shutil.copy(path, copy)
