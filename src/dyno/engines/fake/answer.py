"""The answers of the fake engine: what it writes for a request, piece by piece."""

import json
from typing import Any

import msgspec

from dyno.engines.fake.spec import FakeSpec

# Pieces that are no bytes to send but something to do.
RESET, STALL, CLOSE = b"\0reset", b"\0stall", b"\0close"


class Script(msgspec.Struct):
    """What one answer writes: the first piece after `first_ns`, each next one a gap later."""

    writes: list[bytes]
    first_ns: int
    gap_ns: int
    logged: bool = True  # a stream's send times are; a plain answer's aren't


class Stream:
    """The writes of one streamed answer: one for each event, the last together with usage and end mark."""

    def __init__(self, path: str, asked: dict[str, Any], spec: FakeSpec, fault: str | None) -> None:
        self._fault = fault
        self._chat = path.endswith("chat/completions")
        self._tgi = path == "/generate_stream"
        self._model = "some-other-model" if fault == "other_model" else spec.model
        parameters = asked.get("parameters", {}) if self._tgi else asked
        count = parameters.get("max_new_tokens" if self._tgi else "max_tokens")
        count = count or asked.get("max_completion_tokens") or 16
        self._asked = count
        self._count = {"empty": 0, "end_at_once": 0, "short": max(count // 2, 1)}.get(fault or "", count)
        prompt = asked.get("inputs" if self._tgi else "prompt") or asked.get("messages", [{}])[-1].get("content", "")
        self._prompt_tokens = len(prompt.split() if isinstance(prompt, str) else prompt)
        self._usage = bool(asked.get("stream_options", {}).get("include_usage")) and fault != "no_usage"
        self._eol = "\r\n" if fault == "crlf" else "\n"
        self.key = (path, fault, self._asked, self._prompt_tokens, self._usage)

    def writes(self) -> list[bytes]:
        each = 4 if self._fault == "bundle" else 1
        text = " grüß" if self._fault == "cut_utf8" else " tok" * each
        last = self._frame(self._text_event(text))
        count = -(-self._count // each)
        plain = self._frame(self._text_event(" tok" * each))
        events = [plain] * (count - 1) + [last] if count else []
        if self._fault == "silent" and not self._tgi:
            mute = self._frame(self._text_event(""))
            events = [mute if i % 2 else plain for i in range(count - 1)] + [b""]  # its end is the last token
        if self._fault == "reasoning" and self._chat:
            thought = self._frame(self._openai([{"index": 0, "delta": {"reasoning_content": " hm"}}]))
            events[: count // 2] = [thought] * (count // 2)
        if self._fault == "comments":
            events = [_chunk(b": ping\n\n") + e for e in events]
        if self._chat:
            role = self._frame(self._openai([{"index": 0, "delta": {"role": "assistant", "content": ""}}]))
            events = [role + events[0], *events[1:]] if events else [role]
        events = events or [b""]
        events[0] = _HEAD + events[0]
        half = max(len(events) // 2, 1)
        if self._fault in ("reset", "cut", "stall"):
            return [*events[:half], {"reset": RESET, "cut": CLOSE, "stall": STALL}[self._fault]]
        end = b"" if self._tgi else self._frame(self._last_event())
        if self._tgi and self._fault != "empty":  # its last token's event carries the details
            if self._count:
                events[-1] = events[-1].removesuffix(last)
            end = self._frame(self._tgi_event(text if self._count else "</s>", last=True))
        if self._fault == "error":
            message = {"message": "the engine ran out of cache blocks", "type": "server_error"}
            events = events[:half]
            end = self._frame({"error": message})
        elif self._fault == "garbage":
            end = _chunk(b"data: {'not': json\n\n")
        if self._usage and not self._tgi and self._fault not in ("error", "garbage"):
            tokens = {"empty": 0, "end_at_once": 1}.get(self._fault or "", self._count)
            usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": tokens}
            end += self._frame(self._openai([], usage))
        if self._fault != "no_done" and not self._tgi:
            end += _chunk(f"data: [DONE]{self._eol}{self._eol}".encode())
        end += b"0\r\nx-took: 1\r\n\r\n" if self._fault == "trailer" else b"0\r\n\r\n"
        events[-1] += end
        if self._fault == "joined":
            return [b"".join(events)]
        if self._fault == "cut_utf8":
            at = events[-1].index("ü".encode()) + 1
            return [*events[:-1], events[-1][:at], events[-1][at:]]
        return events

    def _text_event(self, text: str) -> dict[str, Any]:
        if self._tgi:
            return self._tgi_event(text)
        if self._chat:
            return self._openai([{"index": 0, "delta": {"content": text}, "finish_reason": None}])
        return self._openai([{"index": 0, "text": text, "logprobs": None, "finish_reason": None}])

    def _last_event(self) -> dict[str, Any]:
        reason = "length" if self._count == self._asked else "stop"
        empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        return self._openai([{"index": 0, **empty, "finish_reason": reason}])

    def _openai(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        chunk = {
            "id": "cmpl-9eb36b82a6ec3ac1",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": 1794702811,
            "model": self._model,
            "choices": choices,
        }
        return chunk if usage is None else {**chunk, "usage": usage}

    def _tgi_event(self, text: str, last: bool = False) -> dict[str, Any]:
        details = {
            "finish_reason": "length" if self._count == self._asked else "eos_token",
            "generated_tokens": self._count or 1,
            "input_length": self._prompt_tokens,
        }
        return {
            "index": 1,
            "token": {"id": 17, "text": text, "logprob": -0.5, "special": text == "</s>"},
            "generated_text": text * self._count if last else None,
            "details": details if last else None,
        }

    def _frame(self, event: dict[str, Any]) -> bytes:
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        return _chunk(f"data: {text}{self._eol}{self._eol}".encode())


_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: dyno-fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status: int, answer: Any) -> Script:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return Script([head.encode() + body], 0, 0, logged=False)
