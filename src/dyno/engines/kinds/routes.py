"""Answers of a running server, for the readers of each engine. Anything may be behind a route."""

import re
from typing import TYPE_CHECKING, Any

from dyno.errors import TargetError

if TYPE_CHECKING:
    from dyno.http import Client

Cards = list[dict[str, Any]]  # of /v1/models, one for each model


def answer(client: "Client", path: str) -> Any:
    """Return the answer, or None: some gateways close the connection on a path they don't know."""
    try:
        status, body = client.call(path)
    except TargetError:
        return None
    return body if status == 200 else None


def json_object(client: "Client", path: str) -> dict[str, Any]:
    body = answer(client, path)
    return body if isinstance(body, dict) else {}


def first_text(cards: Cards, key: str) -> str | None:
    return next((card[key] for card in cards if isinstance(card.get(key), str)), None)


def whole_number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None
