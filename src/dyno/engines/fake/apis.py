"""The fake engine's other APIs: OpenAI's Responses and transcriptions, Anthropic's Messages, and models without text
(embeddings, rerank, score, classification, pooling)."""

import math
import zlib
from typing import Any

from dyno.engines.fake import FakeSpec, prompts, structure
from dyno.engines.fake.answer import FakeAnswer
from dyno.workload.media import wav_seconds

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
AUDIO = ("/v1/audio/transcriptions", "/v1/audio/translations")
_WORDS_PER_S = 3
POOLING = ("/v1/embeddings", "/pooling", "/classify", "/score", "/rerank", "/v1/rerank")
_SIZE = 16  # of a vector


class ResponsesAnswer(FakeAnswer):
    """Named events; the last one has the usage and ends the answer."""

    end_mark = ""

    def __init__(
        self, path: str, asked: dict[str, Any], spec: FakeSpec, fault: str | None
    ) -> None:
        self._model = "some-other-model" if fault == "other_model" else spec.model
        self.streamed = bool(asked.get("stream"))
        given = asked.get("input")
        messages = given if isinstance(given, list) else [{"content": given}]
        tokens = prompts.media_tokens(messages, spec.image_tokens, fault == "blind")
        count = asked.get("max_output_tokens")
        self._prepare(fault, count, prompts.text(messages), tokens)
        self._shape(asked, spec)
        self.key = (
            path,
            fault,
            self._asked,
            self._prompt_tokens,
            self._turn,
            self.structure_key,
        )

    def whole(self) -> Any:
        return self._response(over=True)

    def _events(self) -> list[bytes]:
        events = [self._frame(self._delta(i, t)) for i, t in enumerate(self.texts())]
        created = {"type": "response.created", "response": self._response(over=False)}
        begin = self._frame(created)
        for number, call in enumerate(self.calls):
            item = {"type": "function_call", "name": call.name, "call_id": f"c{number}"}
            added = {"type": "response.output_item.added", "output_index": number}
            begin += self._frame({**added, "item": {**item, "arguments": ""}})
        return [begin + events[0], *events[1:]] if events else [begin]

    def _delta(self, number: int, text: str) -> dict[str, Any]:
        kind = "response.output_text.delta"
        if self.calls:
            kind = "response.function_call_arguments.delta"
        elif self._fault == "reasoning" and number < self._count // 2:
            kind = "response.reasoning_text.delta"
        return {"type": kind, "output_index": 0, "delta": text}

    def _end(self) -> bytes:
        kind = "response.incomplete" if self._cut else "response.completed"
        if self._fault == "no_done":
            return b""
        return self._frame({"type": kind, "response": self._response(over=True)})

    @property
    def _cut(self) -> bool:
        return self._finish() == "length"

    def _response(self, over: bool) -> dict[str, Any]:
        text = "".join(self.texts())
        parts = [{"type": "output_text", "text": text, "annotations": []}]
        output: list[dict[str, Any]] = [{"type": "message", "content": parts}]
        if self.calls:
            output = [
                {"type": "function_call", "name": c.name, "arguments": c.arguments}
                for c in self.calls
            ]
        answer: dict[str, Any] = {
            "id": "resp_9eb36b82",
            "object": "response",
            "model": self._model,
            "status": "in_progress",
            "error": None,
            "output": output if over else [],
        }
        if not over:
            return answer
        answer["status"] = "incomplete" if self._cut else "completed"
        if self._cut:
            answer["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._fault != "no_usage":
            counts = self._tokens()
            details = counts.get("prompt_tokens_details", {"cached_tokens": 0})
            answer["usage"] = {
                "input_tokens": counts["prompt_tokens"],
                "output_tokens": counts["completion_tokens"],
                "total_tokens": counts["total_tokens"],
                "input_tokens_details": details,
            }
        return answer


class MessagesAnswer(FakeAnswer):
    """Blocks: their start, their parts, their end."""

    end_mark = ""

    def __init__(
        self, path: str, asked: dict[str, Any], spec: FakeSpec, fault: str | None
    ) -> None:
        self._model = "some-other-model" if fault == "other_model" else spec.model
        self.streamed = bool(asked.get("stream"))
        messages = asked.get("messages") or []
        tokens = prompts.media_tokens(messages, spec.image_tokens, fault == "blind")
        text = " ".join(filter(None, (asked.get("system"), prompts.text(messages))))
        self._prepare(fault, asked.get("max_tokens"), text, tokens)
        self._shape(asked, spec)
        self.key = (
            path,
            fault,
            self._asked,
            self._prompt_tokens,
            self._turn,
            self.structure_key,
        )

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "api_error", "message": message}}

    def whole(self) -> Any:
        text = "".join(self.texts())
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if self.calls:
            content = [
                {
                    "type": "tool_use",
                    "id": "t",
                    "name": c.name,
                    "input": structure.parsed(c.arguments),
                }
                for c in self.calls
            ]
        return {**self._message(), "content": content, "stop_reason": self._reason()}

    def _message(self) -> dict[str, Any]:
        usage = {} if self._fault == "no_usage" else {"usage": self._counts()}
        return {
            "id": "msg_9eb36b82",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            **usage,
        }

    def _counts(self) -> dict[str, int]:
        counts = self._tokens()
        cached = self.cached_tokens or 0
        return {
            "input_tokens": counts["prompt_tokens"] - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": counts["completion_tokens"],
        }

    def _events(self) -> list[bytes]:
        texts = self.texts()
        thoughts = len(texts) // 2 if self._fault == "reasoning" else 0
        events = [
            self._frame(self._delta(i < thoughts, text)) for i, text in enumerate(texts)
        ]
        if thoughts:
            stop = self._frame({"type": "content_block_stop", "index": 0})
            text_block = {"type": "text", "text": ""}
            start = {"type": "content_block_start", "index": 1, "content_block": text_block}
            events[thoughts] = stop + self._frame(start) + events[thoughts]
        begin = self._frame({"type": "message_start", "message": self._message()})
        block: dict[str, Any] = {"type": "text", "text": ""}
        if thoughts:
            block = {"type": "thinking", "thinking": ""}
        if self.calls:
            block = {"type": "tool_use", "id": "t", "name": self.calls[0].name, "input": {}}
        begin += self._frame(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )
        return [begin + events[0], *events[1:]] if events else [begin]

    def _delta(self, thought: bool, text: str) -> dict[str, Any]:
        delta = {"type": "text_delta", "text": text}
        if self.calls:
            delta = {"type": "input_json_delta", "partial_json": text}
        elif thought:
            delta = {"type": "thinking_delta", "thinking": text}
        number = int(self._fault == "reasoning" and not thought)
        return {"type": "content_block_delta", "index": number, "delta": delta}

    def _end(self) -> bytes:
        last: dict[str, Any] = {
            "type": "message_delta",
            "delta": {"stop_reason": self._reason()},
        }
        if self._fault != "no_usage":
            last["usage"] = self._counts()
        stop = b"" if self._fault == "no_done" else self._frame({"type": "message_stop"})
        return self._frame({"type": "content_block_stop", "index": 0}) + (
            self._frame(last) + stop
        )

    def _reason(self) -> str:
        if self.calls:
            return "tool_use"
        return {"length": "max_tokens", "stop": "end_turn"}.get(
            self._finish(), self._finish()
        )


class AudioAnswer(FakeAnswer):
    """A transcript: as many words as the sound is long, streamed as a chat or in one piece."""

    def __init__(
        self, path: str, asked: dict[str, Any], spec: FakeSpec, fault: str | None
    ) -> None:
        sound = asked.get("file")
        seconds = wav_seconds(sound) if isinstance(sound, bytes) else 0.0
        count = max(round(seconds * _WORDS_PER_S), 1)
        own = {
            "stream": asked.get("stream") == "True",
            "stream_options": {
                "include_usage": asked.get("stream_include_usage") == "True"
            },
            "max_tokens": min(count, int(asked.get("max_completion_tokens") or count)),
            "messages": [{"content": asked.get("prompt") or ""}],
        }
        super().__init__("/v1/chat/completions", own, spec, fault)
        self._seconds = seconds

    def problem(self) -> str | None:
        return None if self._seconds else "there is no sound in the form"

    def whole(self) -> Any:
        usage = {"type": "duration", "seconds": self._seconds}
        return {"text": "".join(self.texts()).strip(), "usage": usage}

    def _finish(self) -> str:
        return "stop"


def read_form(kind: str, body: bytes) -> dict[str, Any]:
    """Return the fields of a form of several parts: a file as its bytes, others as texts."""
    boundary = kind.partition("boundary=")[2].strip('"').encode()
    fields: dict[str, Any] = {}
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        data = data.removesuffix(b"\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        fields[name] = data if b"filename=" in head else data.decode("utf-8", "replace")
    return fields


# ---- models without text ----


class PoolingAnswer(FakeAnswer):
    def __init__(
        self, path: str, asked: dict[str, Any], spec: FakeSpec, fault: str | None
    ) -> None:
        self._path = path
        self._model = "some-other-model" if fault == "other_model" else spec.model
        query = asked.get("query", asked.get("text_1"))
        self._inputs = _inputs(asked)
        pairs = [f"{query} {text}" if query is not None else text for text in self._inputs]
        self.streamed = False
        self._prepare(fault, 1, "")
        self._count = 0
        tokens = prompts.media_tokens(
            asked.get("messages") or [], spec.image_tokens, fault == "blind"
        )
        self._prompt_tokens = tokens + sum(map(_tokens, pairs))
        self.words = []
        self.key = (path, fault, self._prompt_tokens)

    def problem(self) -> str | None:
        return None if self._inputs else "there is no input"

    def whole(self) -> Any:
        items = [self._item(i, text) for i, text in enumerate(self._inputs)]
        if self._fault == "short":
            items = items[: len(items) // 2]
        usage = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens}
        answer: dict[str, Any] = {"id": "fake", "model": self._model, "usage": usage}
        if self._fault == "no_usage":
            del answer["usage"]
        name = "results" if self._path.endswith("rerank") else "data"
        return {**answer, "object": "list", name: items}

    def _item(self, index: int, text: Any) -> dict[str, Any]:
        share = zlib.crc32(repr(text).encode()) / 2**32
        if self._path.endswith("rerank"):
            return {"index": index, "relevance_score": share}
        if self._path == "/score":
            return {"index": index, "object": "score", "score": share}
        if self._path == "/classify":
            probs = [share, 1 - share]
            return {"index": index, "label": "LABEL_0", "probs": probs, "num_classes": 2}
        vector = [0.0] * _SIZE
        if self._fault != "zeros":
            vector = [math.sin(share * (i + 1)) for i in range(_SIZE)]
        if self._path == "/pooling":
            return {"index": index, "object": "pooling", "data": vector}
        return {"index": index, "object": "embedding", "embedding": vector}


def _inputs(asked: dict[str, Any]) -> list[Any]:
    given = asked.get("input", asked.get("documents", asked.get("text_2")))
    if given is None and asked.get("messages"):
        given = prompts.text(asked["messages"])
    if isinstance(given, list) and not all(isinstance(each, int) for each in given):
        return given
    return [] if given is None else [given]


def _tokens(text: Any) -> int:
    return len(text.split()) if isinstance(text, str) else len(text)
