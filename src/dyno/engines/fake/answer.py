"""The answers of the fake engine: what it writes for a request, piece by piece."""

import json
import zlib
from typing import Any

import msgspec

from dyno.engines.fake import FakeSpec, prompts, structure
from dyno.facts.record import ToolCall

# Pieces that aren't sent: something to do instead.
RESET, STALL, CLOSE = b"\0reset", b"\0stall", b"\0close"

HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: dyno-fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
_PIECE = 4  # letters of a structured answer that are a token
_WORDS = [" tok", " top", " tor", " ton", " tot", " tow", " toy", " tog"]


class Script(msgspec.Struct):
    """The pieces of one answer: the first piece after `first_ns`, each next one a gap later."""

    writes: list[bytes]
    first_ns: int
    gap_ns: int
    logged: bool = True  # a stream's send times are; a plain answer's aren't
    tokens: int = 0  # that it will have written
    deaf: bool = False  # a client that has gone isn't noticed


class FakeAnswer:
    """An answer on OpenAI's routes: as a stream, or in one piece where no stream was asked for."""

    data, end_mark = "data: ", "data: [DONE]"
    _pieces: list[str] | None = None  # of a structured answer
    key: tuple[object, ...]  # answers with the same one are the same, but for the cache
    calls: list[ToolCall] = []  # of tools
    constrained = False  # the request prescribes the form of its answer
    structure_key: object = None
    cached_tokens: int | None = None  # of the prompt; None: there is no prefix cache

    def __init__(
        self, path: str, asked: dict[str, Any], spec: FakeSpec, fault: str | None
    ) -> None:
        self._chat = path.endswith("chat/completions")
        self._model = "some-other-model" if fault == "other_model" else spec.model
        self._usage = (
            bool((asked.get("stream_options") or {}).get("include_usage"))
            and fault != "no_usage"
        )
        self._usage_each = self._usage and bool(
            asked["stream_options"].get("continuous_usage_stats")
        )
        self.streamed = bool(asked.get("stream"))
        prompt = asked.get("prompt")
        messages = asked.get("messages")
        if messages:
            prompt = prompts.text(messages)
        self._prepare(
            fault,
            asked.get("max_tokens") or asked.get("max_completion_tokens"),
            prompt,
            prompts.media_tokens(messages or [], spec.image_tokens, fault == "blind"),
        )
        self._shape(asked, spec)
        self.key = (
            path,
            fault,
            self._asked,
            self._prompt_tokens,
            self._usage,
            self._usage_each,
            self._turn,
            self.structure_key,
        )

    def _prepare(
        self, fault: str | None, count: int | None, prompt: Any, media_tokens: int = 0
    ) -> None:
        self._fault = fault
        self._asked = count or 16
        few = {"empty": 0, "end_at_once": 0, "abort": 1, "short": max(self._asked // 2, 1)}
        self._count = few.get(fault or "", self._asked)
        self.words = prompt.split() if isinstance(prompt, str) else list(prompt or ())
        self._prompt_tokens = len(self.words) + media_tokens
        # To a sentence the answer depends on its words, as a model does. To few words or token ids it is " tok tok".
        sentence = isinstance(prompt, str) and self._prompt_tokens > 3
        self._turn = (
            zlib.crc32(prompt.encode("utf-8", "replace")) % len(_WORDS) if sentence else 0
        )
        self._eol = "\r\n" if fault == "crlf" else "\n"

    def _shape(self, asked: dict[str, Any], spec: FakeSpec) -> None:
        """Answer in the form that the request prescribes, in pieces of a few letters."""
        shaped = structure.answer(asked, self._fault)
        if shaped is None:
            return
        text, self.calls = shaped
        text = self.calls[0].arguments if self.calls else text
        self.constrained = True
        pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
        self._pieces = pieces[: self._asked]
        self._count = len(self._pieces)
        self.structure_key = (text, *(call.name for call in self.calls))

    @property
    def tokens(self) -> int:
        return self._count

    # ---- common to the protocols ----

    def writes(self) -> list[bytes]:
        """Return one piece for each event, the last together with usage and end mark."""
        events = self._events() or [b""]
        if self._fault == "comments":
            events = [chunk(b": ping\n\n") + e for e in events]
        events[0] = HEAD + events[0]
        half = max(len(events) // 2, 1)
        if self._fault in ("reset", "cut", "stall"):
            return [
                *events[:half],
                {"reset": RESET, "cut": CLOSE, "stall": STALL}[self._fault],
            ]
        if self._fault == "error":
            events = events[:half]
            end = self._frame(self.error(500, "the engine ran out of cache blocks"))
        elif self._fault == "garbage":
            end = chunk(b"data: {'not': json\n\n")
        else:
            end = self._end()
        if self._fault == "cut_at_end":
            events[-1] += end
            return [*events, CLOSE]
        if self._fault != "no_done" and self.end_mark:
            end += chunk(f"{self.end_mark}{self._eol}{self._eol}".encode())
        events[-1] += end
        events[-1] += b"0\r\nx-took: 1\r\n\r\n" if self._fault == "trailer" else LAST_CHUNK
        if self._fault == "joined":
            return [b"".join(events)]
        if self._fault == "cut_utf8":
            cut = events[-1].index("ü".encode()) + 1
            return [*events[:-1], events[-1][:cut], events[-1][cut:]]
        return events

    def texts(self) -> list[str]:
        """Return the text of each event."""
        if self._pieces is not None:
            return self._pieces
        each = 4 if self._fault == "bundle" else 1
        texts = [" tok" * each] * -(-self._count // each)
        if self._turn and each == 1:
            texts = [_WORDS[(self._turn + i) % len(_WORDS)] for i in range(self._count)]
        if self._fault == "silent":
            texts[1::2] = [""] * (len(texts) // 2)
        if self._fault == "cut_utf8":
            texts[-1] = " grüß"
        return texts

    def _frame(self, event: dict[str, Any]) -> bytes:
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        return chunk(f"{self.data}{text}{self._eol}{self._eol}".encode())

    # ---- OpenAI's ----

    def problem(self) -> str | None:
        """Return why the request is refused."""
        return None

    def refused(self, status: int, message: str) -> Script:
        return whole(status, self.error(status, message))

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "server_error", "code": status}}

    def whole(self) -> Any:
        text = "".join(self.texts())
        choice: dict[str, Any] = {"text": text}
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if self.calls:
                calls = [_call(i, c.name, text) for i, c in enumerate(self.calls)]
                message = {"role": "assistant", "content": None, "tool_calls": calls}
            choice = {"message": message}
        answer = self._openai(
            [{"index": 0, **choice, "logprobs": None, "finish_reason": self._finish()}]
        )
        answer["object"] = "chat.completion" if self._chat else "text_completion"
        answer["system_fingerprint"] = "fake"
        return answer if self._fault == "no_usage" else {**answer, "usage": self._tokens()}

    def _events(self) -> list[bytes]:
        texts = self.texts()
        if self._usage_each:
            events = self._counted_events(texts)
        else:
            frames = {text: self._frame(self._text_event(text)) for text in set(texts)}
            events = [frames[text] for text in texts]
        if self._fault == "silent":
            events[-1] = b""  # its end is the last token
        if self._fault == "choices":
            other = self._frame(self._text_event(" tok", index=1))
            events = [event + other for event in events]
        if self._chat:
            if self._fault == "reasoning":
                thought = self._frame(
                    self._openai([{"index": 0, "delta": {"reasoning_content": " hm"}}])
                )
                events[: len(events) // 2] = [thought] * (len(events) // 2)
            first: dict[str, Any] = {"role": "assistant", "content": ""}
            if self.calls:
                first["tool_calls"] = [_call(0, self.calls[0].name, "")]
            role = self._frame(self._openai([{"index": 0, "delta": first}]))
            events = [role + events[0], *events[1:]] if events else [role]
        return events

    def _counted_events(self, texts: list[str]) -> list[bytes]:
        """Return events that each have the usage so far, as vLLM's with continuous_usage_stats."""
        each = self._count / max(len(texts), 1)
        counts = [round(each * (i + 1)) for i in range(len(texts))]
        return [
            self._frame(
                {
                    **self._text_event(text),
                    "usage": {**self._tokens(), "completion_tokens": count},
                }
            )
            for text, count in zip(texts, counts, strict=True)
        ]

    def _end(self) -> bytes:
        empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        end = self._frame(
            self._openai([{"index": 0, **empty, "finish_reason": self._finish()}])
        )
        if self._usage:
            end += self._frame({**self._openai([]), "usage": self._tokens()})
        return end

    def _text_event(self, text: str, index: int = 0) -> dict[str, Any]:
        if self._chat:
            delta: dict[str, Any] = {"content": text}
            if self.calls:
                part = {"index": 0, "function": {"arguments": text}}
                delta = {"tool_calls": [part]}
            return self._openai([{"index": index, "delta": delta, "finish_reason": None}])
        return self._openai(
            [{"index": index, "text": text, "logprobs": None, "finish_reason": None}]
        )

    def _finish(self) -> str:
        if self._fault == "abort":
            return "abort"
        if self._pieces is not None and self._count < self._asked:
            return "tool_calls" if self.calls else "stop"
        return "length" if self._count == self._asked else "stop"

    def _tokens(self) -> dict[str, Any]:
        count = 1 if self._fault == "end_at_once" else self._count
        prompt = self._prompt_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": count,
            "total_tokens": prompt + count,
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage

    def _openai(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": "cmpl-9eb36b82a6ec3ac1",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": 1794702811,
            "model": self._model,
            "choices": choices,
        }


def _call(index: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status: int, answer: Any, after_ns: int = 0) -> Script:
    """Return a JSON answer in one piece."""
    return plain(status, "application/json", json.dumps(answer).encode(), after_ns)


def plain(status: int, kind: str, body: bytes, after_ns: int = 0) -> Script:
    head = f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return Script([head.encode() + body], after_ns, 0, logged=False)
