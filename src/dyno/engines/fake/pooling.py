"""The fake engine as a model without text: embeddings, rerank, score, classification and pooling, in one piece."""

import math
import zlib
from typing import Any

from dyno.engines.fake import FakeSpec, prompts
from dyno.engines.fake.answer import FakeAnswer

ROUTES = ("/v1/embeddings", "/pooling", "/classify", "/score", "/rerank", "/v1/rerank")
_SIZE = 16  # of a vector


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
