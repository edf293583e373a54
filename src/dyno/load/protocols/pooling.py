"""Models whose answers are numbers: embeddings, rerank, score, classification and pooling. One JSON object answers a
request; its figures are inputs and input tokens per second, and the end-to-end latency."""

import base64
import binascii
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from dyno.load.protocols.base import Asked, StreamReading, WireProtocol, read_object
from dyno.load.protocols.openai import messages_of, written
from dyno.workload.request import BatchRequest, MediaRequest, Request


class _PoolingUsage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _ScoredItem(msgspec.Struct, gc=False):
    index: int | None = None
    embedding: Any = None
    data: Any = None  # of pooling
    score: float | None = None
    probs: list[float] | None = None  # of a classification
    relevance_score: float | None = None


class _Answer(msgspec.Struct, gc=False):
    data: list[_ScoredItem] | None = None
    results: list[_ScoredItem] | None = None
    usage: _PoolingUsage | None = None
    model: str | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Answer).decode


class _Scores(WireProtocol):
    output = "scores"
    streams = False
    # what is wrong with one item, in words that follow its number; None: nothing
    wrong: Callable[[_ScoredItem], str | None]

    def read_whole(self, body: bytes) -> StreamReading:
        reading = StreamReading([], [])
        answer = read_object(body, _decode, reading)
        if answer is None:
            return reading
        items = answer.data or answer.results or []
        reading.results = len(items)
        reading.model = answer.model
        if answer.usage is not None:
            tokens = answer.usage.prompt_tokens
            reading.prompt_tokens = answer.usage.total_tokens if tokens is None else tokens
        if why := _first_wrong(items, type(self).wrong):
            reading.error = "garbage"
            reading.error_detail = why
        return reading


def _first_wrong(
    items: Iterable[_ScoredItem], wrong: Callable[[_ScoredItem], str | None]
) -> str | None:
    seen: set[int | None] = set()
    for number, item in enumerate(items):
        if item.index is not None and item.index in seen:
            return f"the answer has the index {item.index} twice"
        seen.add(item.index)
        if why := wrong(item):
            return f"result {number} {why}"
    return None


# ---- what is wrong with a result ----


def _wrong_embedding(item: _ScoredItem) -> str | None:
    return _wrong_vector(item.embedding)


def _wrong_pooled(item: _ScoredItem) -> str | None:
    # a vector for each token, or one
    rows = item.data if isinstance(item.data, list) else [item.data]
    vectors = rows if rows and isinstance(rows[0], list) else [item.data]
    return next(filter(None, map(_wrong_vector, vectors)), None)


def _wrong_score(item: _ScoredItem) -> str | None:
    return _wrong_numbers([item.score], "a score")


def _wrong_rank(item: _ScoredItem) -> str | None:
    return _wrong_numbers([item.relevance_score], "a relevance_score")


def _wrong_class(item: _ScoredItem) -> str | None:
    return _wrong_numbers(item.probs or [], "probabilities")


def _wrong_vector(vector: Any) -> str | None:
    if isinstance(vector, str):
        try:
            whole = len(base64.b64decode(vector, validate=True)) % 4 == 0 and vector != ""
        except binascii.Error:
            whole = False
        return None if whole else "is not base64 of 4-byte numbers"
    if not isinstance(vector, list):
        return "has no vector"
    if why := _wrong_numbers(vector, "a vector"):
        return why
    return None if any(vector) else "is a vector of zeros"


def _wrong_numbers(values: list[Any], what: str) -> str | None:
    if not values:
        return f"has not {what}"
    try:
        finite = math.isfinite(sum(values))
    except TypeError:
        finite = False
    return None if finite else f"has not {what} of finite numbers"


# ---- the routes ----


def _inputs(request: Request) -> Any:
    """Return one text, or token ids, or a list of texts."""
    if isinstance(request, BatchRequest):
        return request.inputs
    return request.prompt


def _documents(request: Request) -> list[Any]:
    return list(request.inputs) if isinstance(request, BatchRequest) else [request.prompt]


class Embeddings(_Scores):
    path = "/v1/embeddings"
    batched = True
    takes_token_ids = True
    wrong = staticmethod(_wrong_embedding)

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        return {"model": asked.model, "input": _inputs(request), **asked.extra_body}


class EmbeddingsChat(_Scores):
    """Embeddings of a chat's messages, with images."""

    path = "/v1/embeddings"
    chat = True
    media = frozenset(("image", "video", "audio"))
    wrong = staticmethod(_wrong_embedding)

    def messages(
        self, messages: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        return written(messages), {}

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        messages, _ = self.messages(messages_of(self._shaped(request)))
        return {"model": asked.model, "messages": messages, **asked.extra_body}

    def _shaped(self, request: Request) -> Request:
        return request


class EmbeddingsClip(EmbeddingsChat):
    """CLIP takes a text or an image, never both."""

    def _shaped(self, request: Request) -> Request:
        if not isinstance(request, MediaRequest):
            return request
        return msgspec.structs.replace(request, prompt="")


class EmbeddingsVlm2Vec(EmbeddingsChat):
    """VLM2Vec's instructions: every second image alone, the others with their text."""

    def _shaped(self, request: Request) -> Request:
        if not isinstance(request, MediaRequest):
            return request
        text = "Represent the given image."
        if zlib.crc32(str(request.prompt).encode()) % 2:
            text = (
                f"Represent the given image with the following question: {request.prompt}"
            )
        return msgspec.structs.replace(request, prompt=text)


class InfinityEmbeddings(Embeddings):
    media = frozenset(("image", "audio"))

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        body = super().body(request, asked)
        if isinstance(request, MediaRequest) and not request.prompt:
            (medium,) = request.media
            body |= {"input": medium.url(), "modality": medium.kind}
        return body


class InfinityEmbeddingsClip(InfinityEmbeddings):
    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        if isinstance(request, MediaRequest):
            request = msgspec.structs.replace(request, prompt="")
        return super().body(request, asked)


class Pooling(Embeddings):
    path = "/pooling"
    wrong = staticmethod(_wrong_pooled)


class Classify(Embeddings):
    path = "/classify"
    wrong = staticmethod(_wrong_class)


class Score(_Scores):
    path = "/score"
    batched = True
    wrong = staticmethod(_wrong_score)

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        texts = {"text_1": request.prompt, "text_2": _documents(request)}
        return {"model": asked.model, **texts, **asked.extra_body}


class Rerank(_Scores):
    path = "/v1/rerank"
    batched = True
    wrong = staticmethod(_wrong_rank)

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        texts = {"query": request.prompt, "documents": _documents(request)}
        return {"model": asked.model, **texts, **asked.extra_body}
