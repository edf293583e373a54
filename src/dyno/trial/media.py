"""Tokens of images and sounds before a load: by the model's rule, and what a chat template adds to a text."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dyno import files
from dyno.errors import DynoError, TargetError
from dyno.facts.summary import MediaFacts
from dyno.facts.trial import TrialSpec
from dyno.http import Client, Url
from dyno.load import decode
from dyno.load.protocols import Asked, protocol_of
from dyno.trial.session import Session, asked_of, fewest_tokens
from dyno.workload import vision
from dyno.workload.media import Medium
from dyno.workload.request import MediaRequest, MediaTurn, Request
from dyno.workload.spec import Workload


def counted(
    work: Workload, trial: TrialSpec, session: Session
) -> tuple[MediaFacts | None, Workload]:
    """Return the workload with the tokens of its media, where the model's rule is known, and what is known of them."""
    having = [r for r in work.requests if isinstance(r, MediaRequest | MediaTurn)]
    if not having:
        return None, work
    rule = _rule(trial, session.target.model)
    requests = [_with_tokens(r, rule) for r in work.requests]
    warmups = [_with_tokens(r, rule) for r in work.warmups]
    facts = MediaFacts(rule.name if rule else "", _template_tokens(having, trial, session))
    return facts, replace(work, requests=requests, warmups=warmups)


def _rule(trial: TrialSpec, model: str) -> vision.ImageTokens | None:
    """Return the rule for the model's images; by its files, where the user has named their folder."""
    config: dict[str, Any] = {}
    processor: dict[str, Any] = {}
    named = [trial.engine.model if trial.engine else None, trial.target.model]
    for folder in map(Path, filter(None, named)):
        config = config or _json_file(folder / "config.json")
        processor = processor or _json_file(folder / "preprocessor_config.json")
    wanted = [trial.workload, *trial.workload.classes.values()]
    texts = [spec.image_tokens for spec in wanted]
    text = next((text for text in texts if text != vision.AUTO), vision.AUTO)
    return vision.rule_of(text, model, config, processor)


def _json_file(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, DynoError, *files.BROKEN):
        if path.is_file():
            settings = json.loads(files.read(path))
            return settings if isinstance(settings, dict) else {}
    return {}


def _with_tokens(request: Request, rule: vision.ImageTokens | None) -> Request:
    if not isinstance(request, MediaRequest | MediaTurn):
        return request
    tokens = _tokens(request.media, rule)
    if tokens is None:
        return request
    return replace(
        request, media_tokens=tokens, prompt_tokens=request.prompt_tokens + tokens
    )


def _tokens(media: Iterable[Medium], rule: vision.ImageTokens | None) -> int | None:
    """Return the tokens of images; None: there are other media, or the rule is unknown."""
    total = 0
    for medium in media:
        if rule is None or medium.kind != "image":
            return None
        total += rule.of_size(medium.width, medium.height)
    return total


def _template_tokens(
    having: Iterable[MediaRequest | MediaTurn], trial: TrialSpec, session: Session
) -> int | None:
    """Ask the server for a prompt without its media. Return the tokens that its template adds to the text; None: the
    server doesn't count them, or isn't to be asked."""
    protocol = protocol_of(trial.api)
    request = next(iter(having))
    if not request.prompt or not protocol.prompted or trial.ready_check_timeout_s == 0:
        return None
    text = Request(request.prompt, request.prompt_tokens, fewest_tokens(trial))
    asked = asked_of(trial, session.target.model)
    reading = None
    client = Client(Url(trial.target.base_url), session.headers, trial.target)
    with contextlib.closing(client), contextlib.suppress(TargetError, ValueError):
        reading = _prompt_tokens(client, trial, text, asked)
    if reading is None:
        return None
    return max(reading - request.prompt_tokens, 0)


def _prompt_tokens(
    client: Client, trial: TrialSpec, request: Request, asked: Asked
) -> int | None:
    """Return the server's count of a prompt's tokens."""
    protocol = protocol_of(trial.api)
    sent = protocol.request(request, asked)
    status, answer = client.call(trial.target.endpoint, sent)
    if status != 200:
        return None
    if isinstance(answer, str):
        data = answer.encode("utf-8", "surrogatepass")
        return protocol.read(decode.body_events(data)).prompt_tokens
    return protocol.read_whole(json.dumps(answer).encode()).prompt_tokens
