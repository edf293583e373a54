"""Speech to text: OpenAI's transcriptions, streamed as vLLM streams them, or in one piece. The sound is a file in a
form of several parts."""

from typing import Any

import msgspec

from dyno.load.protocols.base import (
    Asked,
    StreamReading,
    WireProtocol,
    finish,
    note_one_text,
    read_object,
)
from dyno.load.protocols.openai import Chat
from dyno.workload.media import Medium
from dyno.workload.request import MediaRequest, Request

_BOUNDARY = b"dyno-6d1f0c5e97b24aa8b3d05a7c41e8f29d"
_SILENT = Medium("audio", "wav", seconds=1.0)  # of a test request
_FILE = "file"


class _AudioUsage(msgspec.Struct, gc=False):
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Transcript(msgspec.Struct, gc=False):
    text: str | None = None
    usage: _AudioUsage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Transcript).decode


class Transcriptions(WireProtocol):
    path = "/v1/audio/transcriptions"
    whole = True
    prompted = False  # a sound is needed, too
    media = frozenset(("audio",))
    content_type = f"multipart/form-data; boundary={_BOUNDARY.decode()}"
    read = staticmethod(Chat.read)

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        sounds = request.media if isinstance(request, MediaRequest) else []
        body: dict[str, Any] = {
            _FILE: (sounds or [_SILENT])[0],
            "model": asked.model,
            "max_completion_tokens": request.output_tokens,
            "language": "en",
            "stream": asked.stream,
            **asked.sampling,
        }
        if sounds and request.prompt:
            body["prompt"] = request.prompt
        if asked.stream:  # vLLM's, flat as a form is
            body |= {"stream_include_usage": True, "stream_continuous_usage_stats": True}
        return {**body, **asked.extra_body}

    def encode(self, body: dict[str, Any]) -> bytes:
        """Return the fields as the parts of a form."""
        parts = []
        for name, value in body.items():
            head = f'Content-Disposition: form-data; name="{name}"'
            data = str(value).encode()
            if name == _FILE:
                (data,) = value.files()
                head += f'; filename="sound.{value.form}"\r\nContent-Type: {value.mime}'
            parts.append(b"--%b\r\n%b\r\n\r\n%b\r\n" % (_BOUNDARY, head.encode(), data))
        return b"".join((*parts, b"--%b--\r\n" % _BOUNDARY))

    def read_whole(self, body: bytes) -> StreamReading:
        reading = StreamReading([], [])
        answer = read_object(body, _decode, reading)
        if answer is not None:
            note_one_text(reading, answer.text or "")
            finish(reading, "stop")
            if answer.usage is not None:
                reading.output_tokens = answer.usage.output_tokens
                reading.prompt_tokens = answer.usage.input_tokens
        return reading
