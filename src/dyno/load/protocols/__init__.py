"""The protocols, by the name that --backend takes: dyno's own, then those of plug-ins."""

from dyno.load.protocols.base import Asked, StreamReading, WireProtocol
from dyno.load.protocols.llamacpp import Completion
from dyno.load.protocols.openai import Chat, Completions, TransformersCompletions
from dyno.load.protocols.tgi import GenerateStream
from dyno.plugins import Registry

_OWN: dict[str, WireProtocol] = {
    "openai": Completions(),
    "vllm": Completions(),
    "openai-chat": Chat(),
    "tgi": GenerateStream(),
    "llama.cpp": Completion(),
    "transformers": TransformersCompletions(),
}

PROTOCOLS: Registry[WireProtocol] = Registry("protocol", _OWN)

__all__ = ["PROTOCOLS", "Asked", "StreamReading", "WireProtocol"]
