"""`python tgi_client.py URL OVERLOADED_URL`: what Hugging Face's own client makes of two servers, as JSON.

Runs in an environment of its own, which has text-generation and not dyno.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from text_generation import AsyncClient, Client
from text_generation.types import Message

SAMPLING = {
    "max_new_tokens": 4,
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 7,
}


def whole(answer: Any) -> dict[str, Any]:
    details = answer.details
    return {
        "text": answer.generated_text,
        "tokens": [token.text for token in details.tokens],
        "finish_reason": details.finish_reason.value,
        "count": details.generated_tokens,
        "seed": details.seed,
    }


def streamed(events: Iterable[Any]) -> dict[str, Any]:
    *_, last = events = list(events)
    details = last.details
    return {
        "text": last.generated_text,
        "tokens": [event.token.text for event in events],
        "finish_reason": details.finish_reason.value,
        "count": details.generated_tokens,
        "seed": details.seed,
    }


async def asynchronous(url: str) -> dict[str, Any]:
    client = AsyncClient(url)
    return {
        "async generate": whole(await client.generate("a b c", **SAMPLING)),
        "async generate_stream": streamed(
            [event async for event in client.generate_stream("a b c", **SAMPLING)]
        ),
    }


def raised(call: Callable[[], object]) -> str:
    try:
        return f"nothing, but {call()}"
    except Exception as e:  # whatever the client makes of the answer is what is asked
        return f"{type(e).__name__}: {e}"


def main(url: str, overloaded_url: str) -> None:
    client, overloaded = Client(url), Client(overloaded_url)
    chat = client.chat([Message(role="user", content="a b c")], max_tokens=4)
    reported = {
        "generate": whole(client.generate("a b c", **SAMPLING)),
        "generate_stream": streamed(client.generate_stream("a b c", **SAMPLING)),
        **asyncio.run(asynchronous(url)),
        "chat": {
            "text": chat.choices[0].message.content,
            "finish_reason": chat.choices[0].finish_reason,
        },
        "overloaded generate": raised(lambda: overloaded.generate("a b c")),
        "overloaded generate_stream": raised(
            lambda: list(overloaded.generate_stream("a b c"))
        ),
    }
    print(json.dumps(reported))


main(*sys.argv[1:])
