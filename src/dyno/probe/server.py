"""Ask a running server for its models, version, limits, quantization and cache."""

import contextlib
import json
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from dyno import files
from dyno.engines.kinds import KINDS
from dyno.engines.kinds.base import EngineKind
from dyno.engines.kinds.routes import Cards
from dyno.errors import TargetError
from dyno.facts.target import CONTROL, TargetFacts, TargetSpec, is_name, known
from dyno.http import Client, Url
from dyno.numbers import count
from dyno.option import setting_name
from dyno.transport import DIRECT, Transport

_MODELS_MAX = 1000  # of a list: a gateway's has hundreds
# in all replicas
_SAME = {
    "models_listed": "list of models",
    "max_model_len": "context",
    "version": "version",
}
# keys of an error, by the habits of several servers
_MESSAGE = ("error", "errors", "message", "detail", "msg", "title")


def read_target(client: Client, spec: TargetSpec) -> TargetFacts:
    """Return what a server reports. Raises TargetError if nothing answers, or no model is named and none is listed."""
    model = spec.served_model_name or spec.model
    status, answer = client.call("/v1/models")
    if status in (401, 403) and model is None:
        raise TargetError(
            f"{client.url} answers {status} at /v1/models: it requires a key. Set OPENAI_API_KEY, or use "
            f"{setting_name('--header')} 'Authorization=Bearer …'."
        )
    cards = _cards(answer) if status == 200 else None
    kind, reported = _identify(client, cards or [])
    context = cards[0].get("max_model_len") if cards else None
    facts = known({"max_model_len": context}) | known(reported)
    listed = None
    if cards is not None and (kind is None or kind.lists_served_models):
        listed = _names(cards, model)
    if listed is None and is_name(reported.get("model_id")):
        listed = [reported["model_id"]]
    if model is None:
        if not listed:
            raise TargetError(
                f"{client.url} lists no models at /v1/models. Name the model with {setting_name('--model')}."
            )
        model = listed[0]
    return TargetFacts(**{**facts, "model": model, "models_listed": listed})


def _cards(answer: Any) -> list[dict[str, Any]] | None:
    """Return the models of a list as OpenAI's API has it. None: it isn't one."""
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list):
        return None
    return [c for c in cards if isinstance(c, dict)]


def _identify(client: Client, cards: Cards) -> tuple[EngineKind | None, dict[str, Any]]:
    """Return which engine the server is, and what it reports. None: it is none that dyno recognizes."""
    for kind in sorted(KINDS.values(), key=lambda kind: kind.server_order):
        reported = kind.read_server(client, cards)
        if reported is not None:
            return kind, {"kind": kind.name} | {
                name: v for name, v in reported.items() if v is not None
            }
    return None, {}


def read_targets(clients: Sequence[Client], spec: TargetSpec) -> TargetFacts:
    """Return the facts of replicas, which must be copies. Raises TargetError where two differ."""
    first, *others = [read_target(client, spec) for client in clients]
    for client, other in zip(clients[1:], others, strict=True):
        for field, name in _SAME.items():
            a, b = getattr(first, field), getattr(other, field)
            if a != b:
                one, two = (", ".join(v) if isinstance(v, list) else str(v) for v in (a, b))
                raise TargetError(
                    f"{clients[0].url} and {client.url} are not copies of one server: the first has {name} "
                    f"{one[:300]}, the other {two[:300]}. Give both the same settings, or measure each alone."
                )
    return first


def _names(cards: list[dict[str, Any]], wanted: str | None) -> list[str]:
    """Return the models of a list: their ids, then other names of them. `wanted` is among them, however many."""
    names: list[Any] = [card.get("id") for card in cards]
    for card in cards:
        aliases = card.get("aliases")
        if isinstance(aliases, list):
            names += aliases
    unique = list(dict.fromkeys(filter(is_name, names)))
    return unique[:_MODELS_MAX] + [name for name in unique[_MODELS_MAX:] if name == wanted]


class Attempt(NamedTuple):
    """One try of a generation."""

    completed: bool
    problem: str  # in words, where it wasn't
    settled: bool = False  # waiting won't change that
    status: int = 0  # HTTP's; 0: no answer


def attempt(
    url: Url,
    headers: dict[str, str],
    path: str,
    body: Any,
    timeout_s: float,
    via: Transport = DIRECT,
) -> Attempt:
    client = Client(url, headers, via, timeout_s=timeout_s)
    try:
        status, answer = client.call(path, body)
    except TargetError as e:
        return Attempt(False, str(e))
    finally:
        client.close()
    return Attempt(
        completed=status == 200 and not _complains(answer),
        problem=CONTROL.sub(" ", f"it answers {status}: {complaint(answer)[:300]}"),
        settled=status in (400, 401, 403, 404, 405, 422),
        status=status,
    )


def complaint(answer: Any) -> str:
    """Return the message of a server's JSON error, or of the first event of a stream; else all that it answers."""
    if isinstance(answer, str) and (event := re.search(r"^data: ?(\{.*\})", answer, re.M)):
        with contextlib.suppress(*files.BROKEN):
            answer = json.loads(event[1])
    while isinstance(answer, dict):
        inner = next(filter(None, map(answer.get, _MESSAGE)), None)
        if not inner:
            return json.dumps(answer, ensure_ascii=False)
        answer = inner
    if isinstance(answer, list):
        return "; ".join(map(_placed_complaint, answer))
    return str(answer)


def _placed_complaint(answer: Any) -> str:
    """Return one of several messages, with the field that it is about (FastAPI's `loc`)."""
    where = answer.get("loc") if isinstance(answer, dict) else None
    if not isinstance(where, list) or not where:
        return complaint(answer)
    return f"{'.'.join(map(str, where))}: {complaint(answer)}"


def _complains(answer: Any) -> bool:
    if isinstance(answer, dict):
        return bool(answer.get("error"))
    # a stream's first events
    return bool(re.search(r'"error"\s*:\s*(?!null\b)', str(answer)[:2000]))


def wait_ready(
    url: Url,
    headers: dict[str, str],
    path: str,
    body: Any,
    timeout_s: float,
    via: Transport,
) -> None:
    """Wait until a server is ready. Ready means a completed generation, not an open port or /health."""
    deadline = time.monotonic() + timeout_s
    last = Attempt(False, "nothing answered")
    while (left := deadline - time.monotonic()) > 0 and not last.settled:
        last = attempt(url, headers, path, body, left, via)
        if last.completed:
            return
        time.sleep(min(1.0, max(left, 0)))
    raise TargetError(f"{url} was not ready within {count(timeout_s)} s: {last.problem}")
