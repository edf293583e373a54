"""What a running server says of itself: its models, its version, and whether it answers at all."""

import time
from collections.abc import Sequence
from typing import Any

from dyno.errors import TargetError
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.http import Client, Url

_SAME = {"models_listed": "list of models", "max_model_len": "context", "version": "version"}  # in all replicas


def look(client: Client, spec: TargetSpec) -> TargetFacts:
    """Raises TargetError if nothing answers, or no model is named and none is listed."""
    model = spec.served_model_name or spec.model
    listed, max_len = _models(client, needed=model is None)
    if model is None:
        if not listed:
            raise TargetError(
                f"{client.url} lists no models at /v1/models, so the name to ask for isn't known. Give it with --model."
            )
        model = listed[0]
    return TargetFacts(
        model=model,
        models_listed=listed,
        max_model_len=max_len,
        version=_version(client),
    )


def look_at_all(clients: Sequence[Client], spec: TargetSpec) -> TargetFacts:
    """Of replicas, which must be copies: TargetError where two say different things of themselves."""
    first, *others = [look(client, spec) for client in clients]
    for client, other in zip(clients[1:], others, strict=True):
        for field, name in _SAME.items():
            a, b = getattr(first, field), getattr(other, field)
            if a != b:
                raise TargetError(
                    f"{clients[0].url} and {client.url} are not copies of one server: the {name} of the first is {a}, "
                    f"that of the other {b}. Start them alike, or measure each by itself."
                )
    return first


def _models(client: Client, needed: bool) -> tuple[list[str] | None, int | None]:
    status, answer = client.call("/v1/models")
    if status in (401, 403) and needed:
        raise TargetError(
            f"{client.url} answers {status} at /v1/models: it wants a key. Set OPENAI_API_KEY, or use --header "
            "'Authorization=Bearer …'."
        )
    cards = answer.get("data") if status == 200 and isinstance(answer, dict) else None
    if not isinstance(cards, list):
        return _tgi_model(client)
    names = [c["id"] for c in cards if isinstance(c, dict) and isinstance(c.get("id"), str)]
    aliases = [a for c in cards if isinstance(c, dict) for a in c.get("aliases") or [] if isinstance(a, str)]
    length = next((c.get("max_model_len") for c in cards if isinstance(c, dict)), None)
    return names + [a for a in aliases if a not in names], length if isinstance(length, int) else None


def _tgi_model(client: Client) -> tuple[list[str] | None, int | None]:
    try:
        status, answer = client.call("/info")
    except TargetError:
        return None, None
    if status == 200 and isinstance(answer, dict) and isinstance(answer.get("model_id"), str):
        return [answer["model_id"]], answer.get("max_total_tokens")
    return None, None


def _version(client: Client) -> str | None:
    for path, key in (("/version", "version"), ("/info", "version"), ("/props", "build_info")):
        try:
            status, answer = client.call(path)
        except TargetError:  # some gateways close the connection on a path they don't know
            continue
        if status == 200 and isinstance(answer, dict) and isinstance(answer.get(key), str):
            text: str = answer[key]
            return text
    return None


def wait_ready(url: Url, headers: dict[str, str], path: str, body: Any, timeout_s: float, insecure: bool) -> None:
    """Ready means a completed generation, not an open port or /health."""
    deadline = time.monotonic() + timeout_s
    last = "nothing answered"
    while (left := deadline - time.monotonic()) > 0:
        client = Client(url, headers, insecure=insecure, timeout_s=left)
        try:
            status, answer = client.call(path, body)
            if status == 200 and '"error"' not in str(answer)[:1000]:
                return
            last = f"it answers {status}: {str(answer)[:200]}"
            if status in (400, 401, 403, 404, 422):
                break  # waiting won't change that
        except TargetError as e:
            last = str(e)
        finally:
            client.close()
        time.sleep(min(1.0, max(left, 0)))
    raise TargetError(f"{url} was not ready within {timeout_s:g} s: {last}")
