"""The protocols, by the name that --backend takes."""

from dyno.load.protocols.base import Asked, StreamReading, WireProtocol
from dyno.load.protocols.llamacpp import Completion
from dyno.load.protocols.openai import Chat, Completions, TransformersCompletions
from dyno.load.protocols.tgi import GenerateStream

PROTOCOLS: dict[str, WireProtocol] = {
    "openai": Completions(),
    "vllm": Completions(),
    "openai-chat": Chat(),
    "tgi": GenerateStream(),
    "llama.cpp": Completion(),
    "transformers": TransformersCompletions(),
}

__all__ = ["PROTOCOLS", "Asked", "StreamReading", "WireProtocol"]
