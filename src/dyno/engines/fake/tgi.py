"""The fake engine as Text Generation Inference: its own routes, in the shapes of TGI 3.3.

Made after TGI's API description and its router's sources. The description is wrong in places; then the router counts.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from dyno.engines.fake import FakeSpec
from dyno.engines.fake.answer import HEAD, LAST_CHUNK, FakeAnswer, Script, chunk, whole

ROUTES = ("/", "/generate", "/generate_stream")

_OVERLOADED = "Model is overloaded"
_ERROR_TYPES = {422: "validation", 424: "generation", 429: "overloaded", 503: "healthcheck"}
# The router's limits, in its words. (Its description allows a top_p of 1.)
_LIMITS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("temperature", lambda v: v > 0, "must be strictly positive"),
    ("repetition_penalty", lambda v: v > 0, "must be strictly positive"),
    ("frequency_penalty", lambda v: -2 <= v <= 2, "must be >= -2.0 and <= 2.0"),
    ("top_p", lambda v: 0 < v < 1, "must be > 0.0 and < 1.0"),
    ("typical_p", lambda v: 0 < v < 1, "must be > 0.0 and < 1.0"),
    ("top_k", lambda v: v > 0, "must be strictly positive"),
    ("max_new_tokens", lambda v: v > 0, "must be strictly positive"),
)
_SAMPLES = ("temperature", "top_k", "top_p", "typical_p")


class TgiAnswer(FakeAnswer):
    """An answer to POST /generate, /generate_stream, and /, which is either."""

    data, end_mark = "data:", ""  # its framework writes no space before JSON

    def __init__(
        self, path: str, asked: dict[str, Any], spec: FakeSpec, fault: str | None
    ) -> None:
        self._parameters = parameters = asked.get("parameters") or {}
        self._inputs = asked.get("inputs")
        self._in_a_list = path == "/"
        self.streamed = path == "/generate_stream" or (
            path == "/" and bool(asked.get("stream"))
        )
        self._prepare(fault, parameters.get("max_new_tokens"), self._inputs)
        self._details = bool(parameters.get("details"))
        self._seed = None
        if parameters.get("do_sample") or any(
            parameters.get(name) is not None for name in _SAMPLES
        ):
            seed = parameters.get("seed")
            self._seed = 42 if seed is None else seed  # TGI draws one
        self.key = (
            path,
            fault,
            self._asked,
            self._prompt_tokens,
            self._details,
            self._seed,
            self._turn,
        )

    def problem(self) -> str | None:
        if not isinstance(self._inputs, str) or not self._inputs:
            return "`inputs` cannot be empty"
        for name, good, rule in _LIMITS:
            value = self._parameters.get(name)
            if value is not None and not (isinstance(value, int | float) and good(value)):
                return f"`{name}` {rule}"
        return None

    def refused(self, status: int, message: str) -> Script:
        """On a stream's route TGI's own refusals are HTTP 200: the stream has begun before it looks."""
        error = self.error(status, message)
        if self.streamed and status in (422, 429):
            return Script([HEAD + self._frame(error) + LAST_CHUNK], 0, 0, logged=False)
        return whole(status, error)

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = _ERROR_TYPES.get(status, "incomplete_generation")
        words = {422: f"Input validation error: {message}", 429: _OVERLOADED}
        return {"error": words.get(status, message), "error_type": kind}

    def texts(self) -> list[str]:
        ended = self._count < self._asked and self._fault != "empty"
        return super().texts() + ["</s>"] * ended

    def whole(self) -> Any:
        answer: dict[str, Any] = {"generated_text": self._text()}
        if self._details:
            tokens = [_token(text) for text in self.texts()]
            answer["details"] = {**self._last_words(), "prefill": [], "tokens": tokens}
            del answer["details"]["input_length"]  # the stream's alone
        return [answer] if self._in_a_list else answer

    def _events(self) -> list[bytes]:
        texts = self.texts()
        rest = {text: self._rest(text, None, None) for text in set(texts)}
        events = [self._event(i, rest[text]) for i, text in enumerate(texts[:-1], 1)]
        return [*events, b""] if texts else []  # the last token comes with the end

    def _end(self) -> bytes:
        texts = self.texts()
        if not texts:
            return b""
        details = self._last_words() if self._details else None
        return self._event(len(texts), self._rest(texts[-1], self._text(), details))

    def _rest(
        self, text: str, generated_text: str | None, details: dict[str, Any] | None
    ) -> bytes:
        event = {
            "token": _token(text),
            "generated_text": generated_text,
            "details": details,
        }
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        return f"{text[1:]}{self._eol}{self._eol}".encode()

    def _event(self, index: int, rest: bytes) -> bytes:
        # Put together by hand: no two are the same.
        return chunk(b'data:{"index":%d,%s' % (index, rest))

    def _text(self) -> str:
        return "".join(text for text in self.texts() if text != "</s>")

    def _last_words(self) -> dict[str, Any]:
        ended = self._count < self._asked
        return {
            "finish_reason": "eos_token" if ended else "length",
            "generated_tokens": self._count + ended,
            "seed": self._seed,
            "input_length": self._prompt_tokens,
        }


def _token(text: str) -> dict[str, Any]:
    return {"id": 17, "text": text, "logprob": -0.5, "special": text == "</s>"}


def info(spec: FakeSpec) -> dict[str, Any]:
    return {
        "model_id": spec.model,
        "model_sha": None,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": 128,
        "max_best_of": 2,
        "max_stop_sequences": 4,
        "max_input_tokens": spec.max_model_len - 1,
        "max_total_tokens": spec.max_model_len,
        "validation_workers": 2,
        "max_client_batch_size": 4,
        "router": "dyno-fake",
        "version": "fake",
        "sha": None,
        "docker_label": None,
    }


def tokenized(inputs: str, ids: dict[str, int]) -> list[dict[str, Any]]:
    """A word is a token. `ids` learns those that it doesn't know."""
    tokens = []
    for match in re.finditer(r"\S+", inputs):
        word = match[0]
        number = ids.setdefault(word, len(ids))
        tokens.append(
            {"id": number, "text": word, "start": match.start(), "stop": match.end()}
        )
    return tokens
