"""A protocol: that of OpenAI's completions, with the prompt in a field `query` and the limit in `length`.

Its body and its reading of events may both differ; this one differs in the body.
"""

from typing import Any

from dyno.load.protocols.base import Asked
from dyno.load.protocols.openai import Completions
from dyno.workload.request import Request


class Echo(Completions):
    path = "/v1/completions"

    def body(self, request: Request, asked: Asked) -> dict[str, Any]:
        """Return the JSON object of a request."""
        body = super().body(request, asked)
        return {**body, "query": body["prompt"], "length": body["max_tokens"]}


ECHO = Echo()
