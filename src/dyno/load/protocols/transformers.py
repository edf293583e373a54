"""`transformers serve`: OpenAI's completions, which refuse fields that OpenAI doesn't have; the rest goes into a
generation_config of its own."""

import json
from typing import Any

from dyno.facts.request import Request
from dyno.load.protocols.base import Asked, Reading
from dyno.load.protocols.openai import Completions

_OPENAI = ("temperature", "top_p", "frequency_penalty", "seed")


class TransformersCompletions:
    path = "/v1/completions"
    takes_token_ids = False
    fields: frozenset[str] | None = None  # it refuses what it doesn't know by itself

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        sampling = dict(asked.sampling)
        config: dict[str, Any] = {}
        if asked.ignore_eos:
            config["eos_token_id"] = -1  # min_new_tokens doesn't act with continuous batching
        if "temperature" in sampling:  # which alone turns sampling neither on nor off
            config["do_sample"] = sampling["temperature"] > 0
            if not sampling["temperature"]:
                del sampling["temperature"]
        config |= {name: sampling.pop(name) for name in list(sampling) if name not in _OPENAI}
        return {
            "model": asked.model,
            "stream": True,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            **sampling,
            "generation_config": json.dumps(config),
            **asked.extra_body,
        }

    def read(self, events: list[tuple[int, bytes]]) -> Reading:
        reading = Completions.read(events)
        if reading.model is not None:
            reading.model = reading.model.partition("@")[0]  # it adds the revision: NAME@main
        return reading
