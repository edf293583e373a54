"""The engines dyno knows. A new one is a file and a line here."""

from collections.abc import Collection
from difflib import get_close_matches

from dyno.engines.kinds.base import EngineKind
from dyno.engines.kinds.fake import FakeKind
from dyno.engines.kinds.llamacpp import LlamaCpp
from dyno.engines.kinds.sglang import SgLang
from dyno.engines.kinds.tgi import Tgi
from dyno.engines.kinds.transformers import Transformers
from dyno.engines.kinds.vllm import Vllm
from dyno.errors import UsageError


class OpenAi(EngineKind):
    """Any server that runs already: dyno attaches to it, and compares what it reports with the setting."""

    name = "openai"
    title = "a running server"
    starts = False


KINDS: dict[str, EngineKind] = {
    kind.name: kind for kind in (Vllm(), Tgi(), LlamaCpp(), SgLang(), Transformers(), OpenAi(), FakeKind())
}
TOOLS = (
    "llama-tools",
    "llm-compressor",
    "quark",
    "lm-eval",
)  # dyno installs them as it does engines; they serve no model


def unknown_engine(name: str, known: Collection[str]) -> str:
    if name in TOOLS:
        return f"{name} is a tool of `dyno models`: it makes models, and serves none. Engines: {', '.join(known)}."
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"No engine named {name!r}. {hint}Known: {', '.join(known)}."


def kind_of(name: str) -> EngineKind:
    try:
        return KINDS[name]
    except KeyError:
        raise UsageError(unknown_engine(name, KINDS)) from None
