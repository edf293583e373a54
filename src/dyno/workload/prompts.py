"""Workloads: from a spec to the requests that will be sent, and others to warm up with."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from itertools import count, groupby, islice
from random import Random
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.workload.datasets import DATASETS
from dyno.workload.media import contents
from dyno.workload.prefixes import BLOCK
from dyno.workload.request import (
    BatchRequest,
    Dropped,
    MediaRequest,
    MediaTurn,
    Request,
    Templating,
    Turn,
)
from dyno.workload.spec import TrafficClass, Workload, WorkloadSpec
from dyno.workload.synthetic import synthesize
from dyno.workload.tokenizer import Tokenizer

T = TypeVar("T", bound=WorkloadSpec)


def make(spec: WorkloadSpec, tokenizer: Tokenizer) -> Workload:
    """Make the requests of a workload, counted by the tokenizer."""
    spec = _checked(spec)
    dropped: Counter[str] = Counter()
    entries = _noting(_entries(spec, tokenizer), dropped)
    requests = list(_wanted(spec, entries))
    turns = [r for r in requests if isinstance(r, Turn)]
    has_tools = any(map(_has_tools, turns))
    if has_tools and spec.answers == "server":
        raise WorkloadError(
            "The file has results of tools, which belong to the recorded answers: a server makes other calls. Use "
            f"{setting_name('--answers')} recorded, or leave it out."
        )
    warmups = _warmups(spec, tokenizer, requests, iter(()) if turns else entries)
    if spec.oversample and not turns:
        rng = Random(spec.seed)  # again as vLLM does it
        requests += [rng.choice(requests) for _ in range(spec.num_prompts - len(requests))]
    repeated = 0 if turns else len(requests) - len({_content(r) for r in requests})
    if spec.lora_modules:
        requests = _with_adapters(spec, requests)
    return Workload(
        spec=spec
        if spec.num_prompts
        else msgspec.structs.replace(spec, num_prompts=len(requests)),
        requests=requests,
        warmups=warmups,
        tokenizer=tokenizer.name,
        counted_by=tokenizer.counted_by,
        sha256=_checksum(requests),
        repeated=repeated,
        starts_s=_starts_s(turns),
        answers=spec.answers or ("recorded" if has_tools else "server"),
        dropped=dict(dropped),
        template=_templating(spec, tokenizer, requests),
    )


def _entries(spec: WorkloadSpec, tokenizer: Tokenizer) -> Iterator[Request | Dropped]:
    """Yield what the data set makes of the spec; of classes, what each of their data sets makes."""
    if DATASETS[spec.dataset].make:
        yield from DATASETS[spec.dataset].requests(spec, tokenizer)
        return
    parts = {name: _checked(part) for name, part in _classes(spec).items()}
    dropped: Counter[str] = Counter()
    entries = {
        name: _noting(_entries(part, tokenizer), dropped) for name, part in parts.items()
    }
    yield from _merged(spec.seed, parts, entries)
    yield from (Dropped(reason, number) for reason, number in dropped.items())


def _templating(
    spec: WorkloadSpec, tokenizer: Tokenizer, requests: Sequence[Request]
) -> Templating | None:
    skipped = spec.skip_chat_template and not spec.traits.template_always
    if skipped or not spec.traits.template:
        return None
    if not any(isinstance(request.prompt, str) for request in requests):
        return None
    return "applied" if tokenizer.template else "missing"


def within(work: Workload, context: int | None) -> Workload:
    """Return the workload without the requests of sessions that a server with this context can't take, and without
    those that had to follow them. Numbers are those of what is left."""
    turns = [r for r in work.requests if isinstance(r, Turn)]
    if context is None or not work.spec.traits.sessions or len(turns) < len(work.requests):
        return work
    left: set[int] = set()
    for i, turn in enumerate(turns):
        if turn.prompt_tokens + turn.output_tokens <= context and _needs(turn) <= left:
            left.add(i)
    lost = len(turns) - len(left)
    if not lost or not left:
        return work
    requests, sessions = _renumbered(turns, sorted(left))
    return structs.replace(
        work,
        requests=requests,
        starts_s=work.starts_s and [work.starts_s[session] for session in sessions],
        dropped={
            **work.dropped,
            f"requests beyond the context of {context:,} tokens": lost,
        },
        sha256=_checksum(requests),
    )


def _renumbered(
    turns: Sequence[Turn], left: Sequence[int]
) -> tuple[list[Request], list[int]]:
    """Return the turns that are left, with new numbers of requests and sessions, and their sessions' old numbers."""
    number = {old: new for new, old in enumerate(left)}
    sessions: list[int] = []
    requests: list[Request] = []
    for old in left:
        turn = turns[old]
        if turn.session not in sessions[-1:]:
            sessions.append(turn.session)
        history = None if turn.history is None else number[turn.history]
        after = [number[i] for i in turn.after]
        requests.append(
            structs.replace(turn, session=len(sessions) - 1, after=after, history=history)
        )
    return requests, sessions


def _needs(turn: Turn) -> set[int]:
    """Return the numbers of the requests that a turn follows."""
    needs = set(turn.after)
    if turn.history is not None:
        needs.add(turn.history)
    return needs


def _checksum(requests: list[Request]) -> str:
    """Hash them as one JSON list, which isn't made: a trace may have a GB of prompts."""
    digest, before = sha256(), b"["
    for request in requests:
        digest.update(before + msgspec.json.encode(request))
        before = b","
    digest.update(b"]" if requests else b"[]")
    return digest.hexdigest()


def _noting(
    entries: Iterator[Request | Dropped], dropped: Counter[str]
) -> Iterator[Request]:
    """Yield the requests, and count what the dataset leaves out."""
    for entry in entries:
        if isinstance(entry, Dropped):
            dropped[entry.reason] += entry.count
        else:
            yield entry


def _wanted(spec: WorkloadSpec, entries: Iterator[Request]) -> Iterator[Request]:
    """Yield whole sessions until there are enough of them, or of requests."""
    last = -1
    for number, request in enumerate(entries):
        session = request.session if isinstance(request, Turn) else number
        if session != last:
            if _is_enough(spec, session, number):
                return
            last = session
        yield request
        if not isinstance(request, Turn) and number + 1 == (
            spec.num_sessions or spec.num_prompts
        ):
            return  # the next entry may be a warmup


def _is_enough(spec: WorkloadSpec, sessions: int, requests: int) -> bool:
    if spec.num_sessions is not None:
        return sessions >= spec.num_sessions
    return 0 < spec.num_prompts <= requests


def _starts_s(turns: list[Turn]) -> list[float] | None:
    """Return when each session begins, counted from the first; None where the file has no times."""
    times: list[float] = []
    session = None
    for turn in turns:
        if turn.session == session:
            continue
        session = turn.session
        if turn.start_s is None:
            return None
        times.append(turn.start_s)
    if not times:
        return None
    first = min(times)
    return [time - first for time in times]


def _has_tools(turn: Turn) -> bool:
    """Return whether it has a tool's result: that belongs to the recorded call, not to one that a server makes up."""
    return any(message.get("role") == "tool" for message in turn.messages)


def _checked(spec: T) -> T:
    if spec.dataset not in DATASETS:
        near = get_close_matches(spec.dataset, DATASETS, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise WorkloadError(
            f"There is no dataset {spec.dataset!r}. {hint}dyno knows {', '.join(DATASETS)}."
        )
    if spec.num_prompts < (0 if spec.traits.ends else 1):
        raise WorkloadError(
            f"{spec.num_prompts} prompts were asked for. Set {setting_name('--num-prompts')} to at least 1."
        )
    if spec.num_warmups < 0 or spec.seed < 0:
        raise WorkloadError(
            f"{setting_name('--num-warmups')} and {setting_name('--seed')} can't be negative."
        )
    if spec.output_len == -1:  # vLLM's way to say 'as in the file'
        spec = structs.replace(spec, output_len=None)
    if spec.output_len is not None and spec.output_len < 1:
        raise WorkloadError(
            f"An output of {spec.output_len} tokens is too short; it must be at least 1."
        )
    return spec


def _warmups(
    spec: WorkloadSpec,
    tokenizer: Tokenizer,
    requests: list[Request],
    spare: Iterator[Request],
) -> list[Request]:
    """Return entries that aren't measured, then prose as long as the measured ones. What they leave in a prefix cache
    must not help a measured request."""
    if not spec.num_warmups:
        return []
    # A token is at least one character: prompts that differ within the first 16 characters (or ids) share no block.
    taken = {_start(r.prompt, BLOCK) for r in requests}
    warmups = list(
        islice((r for r in spare if _start(r.prompt, BLOCK) not in taken), spec.num_warmups)
    )
    for index in count(spec.num_prompts):
        if len(warmups) == spec.num_warmups:
            break
        like = requests[len(warmups) % len(requests)]
        prompt, tokens = synthesize(tokenizer, spec.seed, index, like.prompt_tokens)
        # A prompt of less than a block leaves nothing behind, and there may be no other one so short.
        if tokens < BLOCK or _start(prompt, BLOCK) not in taken:
            warmups.append(Request(prompt, tokens, like.output_tokens))
    return warmups


def _content(request: Request) -> object:
    """Return what makes a request another one than those with the same text."""
    if isinstance(request, MediaRequest):
        return request.prompt, *request.media
    if isinstance(request, BatchRequest):
        return request.prompt, *request.inputs
    return _start(request.prompt, None)


def _start(prompt: str | list[int], length: int | None) -> str | tuple[int, ...]:
    return prompt[:length] if isinstance(prompt, str) else tuple(prompt[:length])


# ---- a mix: classes of traffic in one workload, each at its own rate or with its own share of the sessions ----

# the number of its first request in the class, and all of them
NumberedSession = tuple[int, list[Turn]]


def _classes(spec: WorkloadSpec) -> dict[str, TrafficClass]:
    """Return the classes, each as the workload that it is alone: with its number of sessions and its own seed."""
    _check_classes(spec)
    weights = {
        name: part.request_rate_rps or part.share or 1.0
        for name, part in spec.classes.items()
    }
    wanted, total = spec.num_sessions or spec.num_prompts, sum(weights.values())
    out = {}
    for name, part in spec.classes.items():
        count = max(1, round(wanted * weights[name] / total))
        seed = int.from_bytes(
            sha256(f"{spec.seed}/{part.seed}/{name}".encode()).digest()[:4]
        )
        out[name] = msgspec.structs.replace(
            part, num_prompts=count, num_sessions=count, num_warmups=0, seed=seed
        )
    return out


def _check_classes(spec: WorkloadSpec) -> None:
    if not spec.classes:
        raise WorkloadError(
            "The dataset mix needs classes of traffic: --class 'chat: request_rate_rps=2 input_len=512', once for each."
        )
    parts = spec.classes.values()
    for name, part in spec.classes.items():
        if part.dataset == spec.dataset or part.classes:
            raise WorkloadError(
                f"The class {name} is a mix. Give its classes beside the others."
            )
    paced = [part.request_rate_rps is not None for part in parts]
    if any(paced) != all(paced) or any(
        part.share and part.request_rate_rps for part in parts
    ):
        raise WorkloadError(
            "Give each class of a mix its request_rate_rps, or each its share."
        )


def _merged(
    seed: int, parts: Mapping[str, TrafficClass], entries: Mapping[str, Iterator[Request]]
) -> Iterator[Turn]:
    """Yield the sessions of all classes, in the order in which they begin."""
    sessions = {
        name: _sessions(entries[name], part.oversample) for name, part in parts.items()
    }
    number = 0
    for session, (start_s, name) in enumerate(_begins(seed, parts)):
        following = next(sessions[name], None)
        if following is None:
            raise WorkloadError(
                f"The class {name} has fewer than {parts[name].num_prompts} prompts, and no oversample."
            )
        shift = number - following[0]
        for turn in following[1]:
            yield _placed(
                turn,
                shift,
                session,
                None if number > shift + following[0] else start_s,
                name,
                parts[name],
            )
            number += 1


def _begins(seed: int, parts: Mapping[str, TrafficClass]) -> list[tuple[float | None, str]]:
    """Return when each session begins, and its class. With shares the load decides when."""
    if all(part.request_rate_rps is None for part in parts.values()):
        names = [name for name, part in parts.items() for _ in range(part.num_prompts)]
        order = np.random.default_rng([seed, 6]).permutation(len(names))
        return [(None, names[i]) for i in order]
    starts = []
    for name, part in parts.items():
        assert part.request_rate_rps is not None
        gaps = np.random.default_rng([part.seed, 6]).gamma(
            part.burstiness, 1 / part.burstiness, part.num_prompts
        )
        # As of a single rate: the last one begins at count / rate, whatever the seed.
        times = np.cumsum(gaps) * (part.num_prompts / part.request_rate_rps / gaps.sum())
        starts += [(time, name) for time in times.tolist()]
    return sorted(starts)


def _sessions(entries: Iterator[Request], again: bool) -> Iterator[NumberedSession]:
    """Yield sessions for as long as they are asked for: those of a file come round again."""
    seen: list[NumberedSession] = []
    turns = (r if isinstance(r, Turn) else _as_turn(r, i) for i, r in enumerate(entries))
    for _, group in groupby(enumerate(turns), lambda pair: pair[1].session):
        pairs = list(group)
        seen.append((pairs[0][0], [turn for _, turn in pairs]))
        yield seen[-1]
    while again and seen:
        yield from seen


def _as_turn(request: Request, session: int) -> Turn:
    if not isinstance(request.prompt, str):
        raise WorkloadError(
            "Prompts of token ids can't be mixed, nor sent to LoRA adapters. Use a dataset of texts."
        )
    messages: list[dict[str, Any]] = [
        {"role": role, "content": text} for role, text in getattr(request, "before", [])
    ]
    if messages:
        messages.append({"role": "user", "content": request.prompt})
    if isinstance(request, MediaRequest):
        return MediaTurn(
            request.prompt,
            request.prompt_tokens,
            request.output_tokens,
            session=session,
            messages=[{"role": "user", "content": contents(request.prompt, request.media)}],
            media=request.media,
            media_tokens=request.media_tokens,
        )
    return Turn(
        request.prompt,
        request.prompt_tokens,
        request.output_tokens,
        session=session,
        messages=getattr(request, "messages", messages),
        body=getattr(request, "body", {}),
    )


def _placed(
    turn: Turn,
    shift: int,
    session: int,
    start_s: float | None,
    name: str,
    part: TrafficClass,
) -> Turn:
    own = {"model": part.adapter, "priority": part.priority}
    return msgspec.structs.replace(
        turn,
        session=session,
        after=[i + shift for i in turn.after],
        history=None if turn.history is None else turn.history + shift,
        start_s=start_s,
        group=name,
        body=turn.body | {key: value for key, value in own.items() if value is not None},
    )


def _with_adapters(spec: WorkloadSpec, requests: Iterable[Request]) -> list[Request]:
    """Return the requests, each with its LoRA adapter as its model. Those of a session have the same one."""
    names, rng = spec.lora_modules, np.random.default_rng([spec.seed, 7])
    out: list[Request] = []
    chosen: dict[int, str] = {}
    for i, request in enumerate(requests):
        turn = request if isinstance(request, Turn) else _as_turn(request, i)
        if turn.session not in chosen:
            if spec.lora_assignment == "round-robin":
                number = len(chosen) % len(names)
            else:
                number = int(rng.integers(len(names)))
            chosen[turn.session] = names[number]
        out.append(
            msgspec.structs.replace(turn, body={"model": chosen[turn.session], **turn.body})
        )
    return out
