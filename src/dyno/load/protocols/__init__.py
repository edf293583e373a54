"""The protocols, by the name that --backend takes: dyno's own, then those of plug-ins."""

from functools import cache

import msgspec

from dyno.facts.template import RequestTemplate
from dyno.facts.trial import TEMPLATE
from dyno.load.protocols.audio import Transcriptions
from dyno.load.protocols.base import Asked, InOnePiece, StreamReading, WireProtocol
from dyno.load.protocols.llamacpp import Completion
from dyno.load.protocols.messages import Messages
from dyno.load.protocols.openai import Chat, Completions, TransformersCompletions
from dyno.load.protocols.pooling import (
    Classify,
    Embeddings,
    EmbeddingsChat,
    EmbeddingsClip,
    EmbeddingsVlm2Vec,
    InfinityEmbeddings,
    InfinityEmbeddingsClip,
    Pooling,
    Rerank,
    Score,
)
from dyno.load.protocols.responses import Responses
from dyno.load.protocols.sglang import Generate
from dyno.load.protocols.template import Template
from dyno.load.protocols.tgi import GenerateStream
from dyno.plugins import Registry

_OWN: dict[str, WireProtocol] = {
    "openai": Completions(),
    "vllm": Completions(),
    "openai-chat": Chat(),
    "openai-responses": Responses(),
    "anthropic": Messages(),
    "openai-audio": Transcriptions(),
    "tgi": GenerateStream(),
    "sglang": Generate(),
    "llama.cpp": Completion(),
    "transformers": TransformersCompletions(),
    "openai-embeddings": Embeddings(),
    "openai-embeddings-chat": EmbeddingsChat(),
    "openai-embeddings-clip": EmbeddingsClip(),
    "openai-embeddings-vlm2vec": EmbeddingsVlm2Vec(),
    "infinity-embeddings": InfinityEmbeddings(),
    "infinity-embeddings-clip": InfinityEmbeddingsClip(),
    "vllm-pooling": Pooling(),
    "vllm-rerank": Rerank(),
    "vllm-score": Score(),
    "vllm-classify": Classify(),
    TEMPLATE: Template(),
}

PROTOCOLS: Registry[WireProtocol] = Registry("protocol", _OWN)


@cache
def protocol_of(api: str) -> WireProtocol:
    """Return the protocol of a trial's API: a backend, BACKEND/whole for answers in one piece, or json/TEMPLATE."""
    backend, _, form = api.partition("/")
    if backend == TEMPLATE and form:
        return Template(msgspec.json.decode(form, type=RequestTemplate))
    protocol = PROTOCOLS[backend]
    return InOnePiece(protocol) if form and protocol.streams else protocol


__all__ = [
    "PROTOCOLS",
    "Asked",
    "InOnePiece",
    "StreamReading",
    "WireProtocol",
    "protocol_of",
]
