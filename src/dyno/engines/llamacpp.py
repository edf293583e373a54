"""llama.cpp: a `llama-server`, or the one in the `xllamacpp` wheel (embedded.py), which takes the same flags."""

import importlib.metadata
import sys
from typing import Any

import msgspec

from dyno.engines import model as own_model
from dyno.engines.kind import Kind, LogFacts, Option, count, flag, last_match, one_of, switch, valued, word
from dyno.engines.program import Program
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, Limits
from dyno.facts.model import ModelShape
from dyno.http import Client

_CACHE_TYPES = {
    "auto": None, "fp16": "f16", "bf16": "bf16", "fp32": "f32", "q8_0": "q8_0", "q5_0": "q5_0", "q5_1": "q5_1",
    "q4_0": "q4_0", "q4_1": "q4_1", "iq4_nl": "iq4_nl",
}  # fmt: skip
_K, _V = one_of("--cache-type-k", _CACHE_TYPES), one_of("--cache-type-v", _CACHE_TYPES)
_OPTIONS = {
    "served_name": (flag("--alias"),),
    "quantization": (Option(lambda _: ()),),  # it is the file's: checked there, not said
    "kv_cache_dtype": (
        Option(lambda v: [*_K.give(v), *_V.give(v)]),
    ),
    "tensor_parallel": (Option(lambda _: ["--split-mode", "row"]),),  # over the devices that are visible
    "pipeline_parallel": (Option(lambda _: ["--split-mode", "layer"]),),
    "max_batched_tokens": (Option(lambda n: ["--batch-size", str(n), "--ubatch-size", str(n)]),),
    "prefix_caching": (switch(["--cache-prompt"], ["--no-cache-prompt", "--cache-ram", "0"]),),
    "draft_model": (flag("--model-draft"),),
    "draft_tokens": (flag("--draft-max"),),
}  # fmt: skip


class LlamaCpp(Kind):
    name = "llamacpp"
    title = "llama.cpp"
    programs = ("llama-server",)
    options = _OPTIONS

    def prepare(self, spec: EngineSpec) -> EngineSpec:
        """Without a model, dyno's own small one."""
        if spec.model:
            return spec
        kinds = {word(q): q for q in own_model.QUANTIZATIONS}
        named = word(spec.quantization or "fp16")
        if named not in kinds:
            raise UsageError(
                f"dyno's own small model has no quantization {spec.quantization!r}, only {', '.join(kinds.values())}. "
                "Choose one of them, or give a GGUF file with --model."
            )
        quantization = kinds[named]
        return msgspec.structs.replace(
            spec,
            model=str(own_model.build(quantization)),
            quantization=quantization,
            served_name=spec.served_name or f"dyno-tiny-{quantization}",
        )

    def own_program(self) -> Program | None:
        """The wheel's, where no llama-server is at hand."""
        try:
            # Not by importing it: llama.cpp's libraries and threads have no place in the process that measures.
            version = importlib.metadata.version("xllamacpp")
        except importlib.metadata.PackageNotFoundError:
            return None
        # -P: a folder named dyno where the user stands is not this package.
        argv = [sys.executable, "-P", "-m", "dyno.engines.embedded"]
        return Program(argv, f"xllamacpp {version}", where="the xllamacpp wheel", embedded=True)

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        assert spec.model
        if program.embedded and (spec.draft_model or spec.tensor_parallel * spec.pipeline_parallel > 1):
            raise UsageError("The llama.cpp that comes with dyno has no draft models and no split: use a llama-server.")
        out = [*program.argv, "--model", spec.model, "--host", "127.0.0.1", "--port", str(port), "--metrics"]
        slots, length = spec.max_num_seqs, spec.max_model_len
        # The context is shared out to the slots: what one request may use is asked for times their number.
        if length:
            out += ["--ctx-size", str(length * (slots or 1))]
        if slots:
            out += ["--parallel", str(slots)]
        return out + self.flags(spec, None, leave=("max_model_len", "max_num_seqs"))

    def implied(self, spec: EngineSpec, program: Program) -> dict[str, Any]:
        on = program.embedded is False if spec.prefix_caching is None else spec.prefix_caching
        cache = spec.kv_cache_dtype
        return {"prefix_caching": on, "kv_cache_dtype": cache if cache != "auto" else None}

    def limits(self, spec: EngineSpec, model: ModelShape | None) -> Limits:
        args = spec.args
        slots = spec.max_num_seqs or count(valued(args, "-np", "--parallel"))
        total = count(valued(args, "-c", "--ctx-size"))
        if total is None and spec.max_model_len:
            return Limits(spec.max_model_len, slots, f"max_model_len = {spec.max_model_len}")
        source = f"--ctx-size {total}" if total else "the model's own length"
        total = total or (model.context if model else None)
        if total and slots and slots > 1:
            # --kv-unified lets a slot use more in newer builds; the share is what each one is sure of.
            return Limits(total // slots, slots, f"{source} = {total}, shared by {slots} slots")
        return Limits(total, slots, source)

    def read_log(self, text: str) -> LogFacts:
        target: dict[str, Any] = {}
        for name, pattern in {
            "quantization": r"file type\s*= (\S+)",
            "kv_cache_tokens": r"n_ctx\s*= (\d+)",
            "max_model_len": r"n_ctx_(?:seq|per_seq)\s*[=(]\s*\(?(\d+)",
            "slots": r"(?:initializing slots, n_slots|n_seq_max)\s*= (\d+)",
        }.items():
            if found := last_match(pattern, text):
                target[name] = count(found[1]) if found[1].isdigit() else found[1]
        if found := last_match(r"file size\s*= ([\d.]+) (MiB|GiB)", text):
            target["weights_bytes"] = int(float(found[1]) * {"MiB": 2**20, "GiB": 2**30}[found[2]])
        return LogFacts(target)

    def reset_cache(self, client: Client) -> bool:
        """Slot by slot; only builds that were started with --slots can."""
        status, slots = client.call("/slots")
        if status != 200 or not isinstance(slots, list):
            return False
        return all(client.call(f"/slots/{s['id']}?action=erase", {})[0] == 200 for s in slots)
