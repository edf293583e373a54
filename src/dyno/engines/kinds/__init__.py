"""The engines dyno knows. A new one is a file and a line here."""

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


def kind_of(name: str) -> EngineKind:
    try:
        return KINDS[name]
    except KeyError:
        raise UsageError(f"No engine named {name!r}. Known: {', '.join(KINDS)}.") from None
