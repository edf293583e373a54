"""Prepares a trial: prompts by the right tokenizer, a check that the server can take them, the traffic they make."""

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dyno import files, secrets
from dyno.engines.launch import public_spec, spec_secrets
from dyno.errors import DynoError, TargetError, UsageError
from dyno.facts.load import LoadSpec
from dyno.facts.study import Place
from dyno.facts.summary import MediaFacts
from dyno.facts.target import TargetFacts
from dyno.facts.trial import TrialSpec
from dyno.http import Client, Route, Url
from dyno.load import decode, http1, plan, script
from dyno.load.protocols import PROTOCOLS, Asked, WireProtocol, protocol_of
from dyno.load.sessions import Graph
from dyno.load.wire import Traffic
from dyno.option import setting_name
from dyno.trial import dataset, weights
from dyno.trial.session import Session, asked_of, fewest_tokens
from dyno.trial.watcher import Watcher
from dyno.workload import vision
from dyno.workload.datasets import DATASETS
from dyno.workload.media import Medium
from dyno.workload.prompts import make, within
from dyno.workload.request import (
    Answers,
    BatchRequest,
    DataFile,
    Dropped,
    MediaRequest,
    MediaTurn,
    Request,
    ToolRequest,
    Turn,
)
from dyno.workload.spec import Workload, WorkloadSpec
from dyno.workload.tokenizer import Tokenizer, chat_template, choose

_MEDIA = {"image": "images", "video": "videos", "audio": "sounds"}
_MOST_RPS = 100_000  # a replay that is faster is a mistake
_PROBED_S, _MOST_PROBES = 24 * 3600, 1_000_000  # as long, and as many, as probes are sent


class Prompts(NamedTuple):
    workload: Workload
    # the tokenizer, where it is one that also counts answers
    counter: Tokenizer | None = None
    file: DataFile | None = None  # that they were read from, where it is the Hub's

    @property
    def lengths(self) -> list[int]:
        return [_length(r) for r in self.workload.requests]

    def within(self, context: int | None, watcher: Watcher) -> "Prompts":
        """Cut sessions where they outgrow the context."""
        work = within(self.workload, context)
        if work is not self.workload:
            reason, number = [*work.dropped.items()][-1]
            watcher.phase(f"Left out {number:,} {reason}")
        return self._replace(workload=work)


def _length(request: Request) -> int:
    """Return how many tokens of context a request needs: of several texts, each has its own."""
    texts = len(request.inputs) if isinstance(request, BatchRequest) else 1
    return request.prompt_tokens // (texts or 1) + request.output_tokens


class Prepared(NamedTuple):
    """A trial that is ready to be measured."""

    trial: TrialSpec  # aimed at the server that runs
    prompts: Prompts
    # the run that has sent these prompts to this server before
    sent_before: str | None = None
    place: Place | None = None  # in a study
    test_requests: int = 0  # sent before the load, and not counted
    media: MediaFacts | None = None  # where requests have some


def prepare(
    trial: TrialSpec,
    session: Session,
    prompts: Prompts | None = None,
    *,
    place: Place | None = None,
) -> Prepared:
    """Aim the trial at the server, test it, make its prompts unless they are there, and check that it takes them."""
    if session.fleet:
        session.fleet.check_ports()
        trial = session.fleet.aim(trial)
    # before any time goes into making prompts
    check_context([longest(trial)], session.target)
    tests = session.test(trial)
    if prompts is None:
        client = Client(Url(trial.target.base_url), session.headers, trial.target)
        try:
            prompts = make_prompts(trial, session.watcher, client, session.target.model)
        finally:
            client.close()
    media_facts, work = _counted_media(prompts.workload, trial, session)
    prompts = prompts._replace(workload=work)
    prompts = prompts.within(session.target.max_model_len, session.watcher)
    check_context(prompts.lengths, session.target, trace=trial.workload.traits.trace)
    count = trial.workload.num_prompts or len(prompts.workload.requests)
    trial = replace(trial, workload=replace(trial.workload, num_prompts=count))
    return Prepared(trial, prompts, place=place, test_requests=tests, media=media_facts)


def check_dataset(workload: WorkloadSpec) -> None:
    """Refuse options that a data set doesn't have, before anything is started."""
    for part in workload.classes.values() or [workload]:
        if declared := DATASETS.get(part.dataset):  # a test of answers has none
            declared.own_spec(part)


def make_prompts(
    trial: TrialSpec, watcher: Watcher, client: Client | None = None, model: str = ""
) -> Prompts:
    """Make them by the tokenizer that the trial names, else by the server's own."""
    tokenizer = choose(weights.tokenizer(trial), client, model)
    spec, file = dataset.located(trial.workload, watcher.phase, watcher.below)
    source = f", {file.origin}" if file else ""
    if spec.traits.sessions and spec.num_sessions is None:
        # A rate is of sessions: as many are needed as begin in its time.
        spec = msgspec.structs.replace(spec, num_sessions=plan.prompts_needed(trial.load))
    most = "up to " if file and spec.num_prompts else ""
    what = (
        f"{spec.num_sessions} sessions"
        if spec.num_sessions
        else f"{most}{spec.num_prompts or 'all'} prompts"
    )
    watcher.phase(f"Generating {what} ({spec.dataset}{source})")
    chat = protocol_of(trial.api).chat
    if (
        spec.traits.media and not protocol_of(trial.api).media
    ):  # a thousand images take seconds
        one = msgspec.structs.replace(spec, num_prompts=1)
        _check_prompts(make_work(one, tokenizer).requests, trial)
    work = make_work(spec, tokenizer, client, model, chat, trial.chat_template_kwargs)
    if protocol_of(trial.api).output == "scores":
        work = _without_outputs(work)
    _check_template(trial, work, chat)
    if work.template == "missing":
        watcher.phase(
            "Without a chat template, which vllm bench serve applies: see the finding"
        )
    for reason, number in work.dropped.items():
        watcher.phase(str(Dropped(reason, number)))
    _check_times(trial.load, work)
    _check_bodies(work.requests, trial)
    _check_prompts(work.requests, trial)
    return Prompts(work, tokenizer if tokenizer.counted_by == "tokenizer" else None, file)


def _without_outputs(work: Workload) -> Workload:
    """Return the workload for a model that writes no text."""
    none = [
        [replace(request, output_tokens=0) for request in part]
        for part in (work.requests, work.warmups)
    ]
    return replace(work, requests=none[0], warmups=none[1])


def _check_prompts(requests: Sequence[Request], trial: TrialSpec) -> None:
    """Refuse prompts of a form that the backend can't send."""
    protocol, backend = protocol_of(trial.api), trial.target.backend
    if not protocol.batched and any(isinstance(r, BatchRequest) for r in requests):
        raise UsageError(
            f"The dataset {trial.workload.dataset} has requests of several texts, which "
            f"{setting_name('--backend')} {backend} can't send. Use {_backends(lambda p: p.batched)}."
        )
    if not protocol.takes_token_ids and any(isinstance(r.prompt, list) for r in requests):
        raise UsageError(
            f"The dataset has token ids as prompts, which {setting_name('--backend')} {backend} can't send. Use "
            f"{_backends(lambda p: p.takes_token_ids)}, or a dataset of texts."
        )
    kinds = {medium.kind for r in requests for medium in getattr(r, "media", ())}
    if lacking := sorted(kinds - protocol.media):
        raise UsageError(
            f"The dataset {trial.workload.dataset} has {_MEDIA[lacking[0]]}, which {setting_name('--backend')} "
            f"{backend} can't send. Use {_backends(lambda p: kinds <= p.media)}."
        )
    if not protocol.chat and any(map(_needs_chat, requests)):
        raise UsageError(
            f"The dataset has tools, or messages with roles, which {setting_name('--backend')} {backend} can't "
            f"send: it takes text alone. Use {setting_name('--backend')} openai-chat."
        )


def _backends(able: Callable[[WireProtocol], bool]) -> str:
    """Name the backends that are able to do something."""
    *others, last = (name for name, protocol in PROTOCOLS.items() if able(protocol))
    return f"{', '.join(others)} or {last}" if others else last


def make_work(
    spec: WorkloadSpec,
    tokenizer: Tokenizer,
    client: Client | None = None,
    model: str = "",
    chat: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> Workload:
    """Make the requests, with the model's chat template where vLLM applies it. `chat`: the server does. `variables`: of
    the template."""
    if chat or not spec.traits.template:
        return replace(make(spec, tokenizer), template=None)
    tokenizer.template = template = chat_template(tokenizer, client, model)
    if template is not None:
        template.set(variables or {})
    try:
        return make(spec, tokenizer)
    finally:
        if template is not None:
            template.close()


def _check_template(trial: TrialSpec, work: Workload, chat: bool) -> None:
    """Refuse variables of a chat template where no template is rendered."""
    if trial.chat_template_kwargs and not chat and work.template is None:
        raise UsageError(
            f"{setting_name('--chat-template-kwargs')} has no effect: prompts of the dataset {work.spec.dataset} are "
            f"sent without a chat template. Remove it, or use {setting_name('--backend')} openai-chat."
        )


def _check_bodies(requests: Sequence[Request], trial: TrialSpec) -> None:
    fields, backend = protocol_of(trial.api).fields, trial.target.backend
    used = {
        key
        for request in requests
        if isinstance(request, Turn | ToolRequest)
        for key in request.body
    }
    if fields is not None and (unknown := sorted(used - fields)):
        raise UsageError(
            f"{setting_name('--backend')} {backend} has no {', '.join(unknown)}, which requests of this workload "
            "need. Use openai or openai-chat."
        )


def _check_times(load: LoadSpec, work: Workload) -> None:
    if load.arrivals is None:
        return
    if work.starts_s is None:
        raise UsageError(
            f"The dataset {work.spec.dataset} has no times to replay. Give a rate or a concurrency, or one of "
            f"{', '.join(name for name, known in DATASETS.items() if known.traits.trace)}."
        )
    rate = len(work.starts_s) * load.speedup / (max(work.starts_s) or math.inf)
    if load.speedup > 1 and rate > _MOST_RPS:
        raise UsageError(
            f"A speedup of {load.speedup:g} makes {rate:,.0f} requests/s of this trace, more than any client can send. "
            "Lower it: `dyno doctor` shows how many requests this machine can send."
        )


def _needs_chat(request: Request) -> bool:
    if not isinstance(request, Turn | ToolRequest):
        return False
    others = [m for m in request.messages if m.get("role") != "user"]
    # A system prompt may be a part of the text.
    return "tools" in request.body or any(
        m["role"] == "tool" or m.get("content") not in request.prompt for m in others
    )


def longest(trial: TrialSpec) -> int:
    """The tokens that a random request may need; 0 for other datasets, whose lengths are known when they are read."""
    w = trial.workload
    if trial.offline and trial.offline.kind == "micro":
        return (trial.offline.depth or 0) + w.input_len + (w.output_len or 0) + 1
    if not w.traits.exact:
        return 0
    output = int((w.output_len or 1) * (1 + w.range_ratio_output))
    if protocol_of(trial.api).output == "scores":
        output = 0
    return w.prefix_len + int(w.input_len * (1 + w.range_ratio_input)) + output


def check_context(lengths: list[int], target: TargetFacts, trace: bool = False) -> None:
    limit = target.max_model_len
    if limit is None:
        return
    over = sum(n > limit for n in lengths)
    if over:
        advice = (
            "Use shorter prompts or outputs, or start the server with a longer context."
        )
        if trace:
            scale = float(_rounded_down(limit / max(lengths)))
            advice = (
                f"{setting_name('--trace-max-tokens', limit)} skips them; "
                f"{setting_name('--trace-length-scale', scale)} shortens all requests. Or start the server with a "
                "longer context."
            )
        raise UsageError(
            f"{over} of {len(lengths)} requests need up to {max(lengths)} tokens (prompt + output), but the server's "
            f"context is {limit}. {advice}"
        )


def _rounded_down(scale: float) -> str:
    step = 10.0 ** (math.floor(math.log10(scale)) - 1)
    return f"{math.floor(scale / step) * step:.2g}"


def probes(trial: TrialSpec, session: Session) -> Traffic | None:
    """Return the requests of one token that are sent beside the load, at a constant rate; None: there are none."""
    rate = trial.load.probe_rate_rps
    if not rate:
        return None
    load = LoadSpec(
        request_rate_rps=rate,
        burstiness=None,
        request_timeout_s=trial.load.request_timeout_s,
    )
    planned = plan.make(load, min(math.ceil(rate * _PROBED_S), _MOST_PROBES))
    requests = [Request("Hi", 1, fewest_tokens(trial))]
    return _traffic(trial, session, requests, load, planned)


def closed_loop(trial: TrialSpec, session: Session, requests: Sequence[Request]) -> Traffic:
    """Return a load of all of these requests at the trial's concurrency, whatever its rate."""
    load = LoadSpec(
        max_concurrency=trial.load.max_concurrency,
        request_timeout_s=trial.load.request_timeout_s,
    )
    return _traffic(trial, session, requests, load, plan.make(load, len(requests)))


def traffic(trial: TrialSpec, session: Session, work: Workload) -> Traffic:
    """Return the trial's own load. A closed loop with a duration goes round the prompts until time is up."""
    graph = Graph.from_requests(work.requests)
    rounds = trial.load.duration_s is not None and trial.load.closed_loop
    count = graph.sessions if graph else len(work.requests)
    if trial.load.arrivals is None:
        if work.spec.oversample and work.spec.traits.file:
            # a file with too few goes round
            count = max(count, work.spec.num_sessions or 0)
        count = 2**31 if rounds else plan.prompts_needed(trial.load) or count
    planned = plan.make(trial.load, count, graph, work.starts_s)
    load = trial.load
    prefix = trial.request_id_prefix
    return _traffic(trial, session, work.requests, load, planned, work.answers, prefix)


def _traffic(
    trial: TrialSpec,
    session: Session,
    requests: Sequence[Request],
    load: LoadSpec,
    planned: plan.Plan,
    answers: Answers = "server",
    id_prefix: str | None = None,
) -> Traffic:
    spec, headers = trial.target, session.headers
    asked = asked_of(trial, session.target.model)
    routes = [Route(Url(url), spec, headers) for url in spec.urls]
    host = next((value for name, value in headers.items() if name.lower() == "host"), None)
    protocol = protocol_of(trial.api)
    head = {
        "content-type": protocol.content_type,
        "accept": "text/event-stream" if protocol.streams else "application/json",
        "accept-encoding": "identity",
        **protocol.headers,
    }
    head |= {
        name: value for name, value in routes[0].headers.items() if name.lower() != "host"
    }
    fronts = [
        http1.front("POST", r.front + spec.endpoint, host or r.url.netloc) for r in routes
    ]
    # One server: its requests are made whole, and each is one send of one buffer. Several: what they share is in
    # memory once, and each one's own front goes before it.
    whole, fronts = (fronts[0], [b""]) if len(fronts) == 1 else (b"", fronts)
    # Far more than answers of this length take, with everything that can be asked for beside the text.
    response_max = (1 << 20) + 8192 * max((r.output_tokens for r in requests), default=0)
    return Traffic(
        routes=routes,
        fronts=fronts,
        script=script.make(
            requests,
            trial.api,
            asked,
            whole + http1.head_before_length(head),
            answers,
            id_prefix,
        ),
        plan=planned,
        timeout_s=load.request_timeout_s,
        response_max=trial.load.response_bytes_max or response_max,
    )


def public(trial: TrialSpec) -> TrialSpec:
    """Return the trial as it is stored: a key that is sent in each request's body reaches no file."""
    return msgspec.structs.replace(
        trial,
        extra_body=secrets.public(trial.extra_body),
        template=secrets.public(trial.template),
        chat_template_kwargs=secrets.public(trial.chat_template_kwargs),
        metadata=secrets.public(trial.metadata),
        engine=trial.engine and public_spec(trial.engine),
    )


def hidden(trial: TrialSpec, headers: dict[str, str]) -> list[str]:
    """Return the secrets that a trial's requests and its engine are given."""
    engine = spec_secrets(trial.engine) if trial.engine else []
    return [
        *secrets.of_headers(headers),
        *secrets.within(
            [
                trial.extra_body,
                trial.chat_template_kwargs,
                trial.metadata,
                trial.template,
            ]
        ),
        *engine,
    ]


# ---- tokens of images and sounds: by the model's rule, and what a chat template adds to a text ----


def _counted_media(
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
    return decode.read_reply(protocol, answer).prompt_tokens
