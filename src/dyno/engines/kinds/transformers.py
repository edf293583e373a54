"""Hugging Face's `transformers serve`, from 5.6 on: before that it has no completions route."""

from typing import TYPE_CHECKING, Any

import msgspec

from dyno.engines.kinds.base import (
    DTYPES,
    TORCH_CACHES,
    EngineFlag,
    EngineKind,
    Program,
    flag,
    one_of,
    with_dtype,
)
from dyno.engines.kinds.recipe import TORCH_CPU, Recipe
from dyno.engines.kinds.routes import Cards, json_object
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, Limits, before
from dyno.facts.model import ModelShape
from dyno.facts.offline import Batch
from dyno.option import setting_name

if TYPE_CHECKING:
    from dyno.http import Client

_FIRST = "5.6"
# By a flag, or detected in the checkpoint.
_QUANTIZATIONS = {
    "bnb_4bit": "bnb-4bit",
    "bnb_8bit": "bnb-8bit",
    "gptq": None,
    "awq": None,
    "fp8": None,
    "int8": None,
}


# `transformers serve` needs these when it starts; its --help doesn't.
_CHECK = (
    "python",
    "-Ic",
    "import torch, accelerate, fastapi, openai, pydantic, uvicorn, transformers",
)
_PACKAGE = "transformers[serving]"
_RECIPES = {
    "cpu": Recipe(
        package=_PACKAGE,
        module="transformers",
        check=_CHECK,
        # any newer than 2.6 does; without a version, CUDA's newest may be taken
        first=("torch==2.13.0",),
        hint=TORCH_CPU,
        about_bytes=1_000_000_000,
    ),
    "cuda": Recipe(
        package=_PACKAGE, module="transformers", check=_CHECK, about_bytes=6_000_000_000
    ),
}


class Transformers(EngineKind):
    name = "transformers"
    title = "transformers serve"
    about = "transformers serve"
    backend = "transformers"

    packages = ("transformers",)
    programs = ("transformers",)
    module = ("-m", "transformers.cli.transformers")
    in_container = ("transformers",)
    recipes = _RECIPES

    options = {
        "dtype": one_of("--dtype", DTYPES),
        "quantization": one_of("--quantization", _QUANTIZATIONS),
        "max_batched_tokens": flag("--cb-max-batch-tokens"),
        "memory_fraction": flag("--cb-max-memory-percent"),
        # none, but with continuous batching
        "prefix_caching": EngineFlag(lambda on: {False: ()}[on]),
    }
    knobs = ("n_threads",)

    fetches = True

    compile_caches = TORCH_CACHES
    on_torch = True

    lists_served_models = False  # but what is in its cache

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        if program.version and before(program.version, _FIRST):
            raise UsageError(
                f"transformers serve {program.version} has no completions route; {_FIRST} or newer does."
            )
        if spec.served_name and spec.served_name != spec.model:
            raise UsageError(
                f"transformers serve takes no {setting_name('--served-model-name')}: it serves a model under its "
                "own name or path. Remove it."
            )
        out = [
            *program.argv,
            "serve",
            self.model_of(spec),
            "--host",
            spec.host,
            "--port",
            str(port),
        ]
        if spec.max_batched_tokens or spec.memory_fraction:
            # Without a limit its cache takes a share of all memory, free or not: with 24 GB it was killed for that.
            out.append("--continuous-batching")
        return out + self.flags(with_dtype(spec), program.version, leave=("served_name",))

    def worker(
        self, spec: EngineSpec, program: Program, port: int, batch: Batch
    ) -> list[str]:
        leave = (
            "served_name",
            "load_format",
            "draft_model",
            "draft_tokens",
            "max_num_seqs",
        )
        out = [
            "transformers",
            "--model",
            self.model_of(spec),
            *self.flags(with_dtype(spec), program.version, leave),
        ]
        # These its server can't do.
        for name, value in (
            ("--load-format", spec.load_format),
            ("--draft-model", spec.draft_model),
            ("--draft-tokens", spec.draft_tokens),
            ("--max-batch-size", spec.max_num_seqs),
        ):
            if value is not None:
                out += [name, str(value)]
        if spec.devices == []:
            out += ["--device", "cpu"]
        return out

    def limits(
        self, spec: EngineSpec, model: ModelShape | None, version: str | None = None
    ) -> Limits:
        # It takes longer prompts than the model was made for, and answers nonsense.
        context = None if model is None else model.context
        return Limits(context, None if _batches(spec) else 1, "the model's context length")

    def worker_limits(
        self, spec: EngineSpec, model: ModelShape | None, version: str | None = None
    ) -> Limits:
        return msgspec.structs.replace(
            self.limits(spec, model, version), slots=spec.max_num_seqs
        )

    def read_server(self, client: "Client", cards: Cards) -> dict[str, Any] | None:
        routes = json_object(client, "/openapi.json").get("paths")
        return {} if isinstance(routes, dict) and "/load_model" in routes else None

    def implied(self, spec: EngineSpec, program: Program) -> dict[str, Any]:
        batches = _batches(spec)
        return {
            "prefix_caching": None if batches else False,
            "slots": None if batches else 1,
        }


def _batches(spec: EngineSpec) -> bool:
    """Return whether it batches continuously; else it works on one request after the other."""
    return (
        bool(spec.max_batched_tokens or spec.memory_fraction)
        or "--continuous-batching" in spec.args
    )


KIND = Transformers()
