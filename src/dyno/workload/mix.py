"""A mix: several classes of traffic in one workload, each at its own rate or with its own share of the sessions."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import groupby

import msgspec
import numpy as np

from dyno.errors import WorkloadError
from dyno.workload.request import Request, Turn
from dyno.workload.spec import TrafficClass, WorkloadSpec

# the number of its first request in the class, and all of them
NumberedSession = tuple[int, list[Turn]]


def classes(spec: WorkloadSpec) -> dict[str, TrafficClass]:
    """Return the classes, each as the workload that it is alone: with its number of sessions and its own seed."""
    _check(spec)
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


def _check(spec: WorkloadSpec) -> None:
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


def merged(
    seed: int, parts: Mapping[str, TrafficClass], entries: Mapping[str, Iterator[Request]]
) -> Iterator[Turn]:
    """Yield the sessions of all classes, in the order in which they begin."""
    sessions = {
        name: _sessions(entries[name], part.oversample) for name, part in parts.items()
    }
    number = 0
    for session, (start_s, name) in enumerate(_order(seed, parts)):
        following = next(sessions[name], None)
        if following is None:
            raise WorkloadError(
                f"The class {name} has fewer than {parts[name].num_prompts} prompts, and no oversample."
            )
        shift = number - following[0]
        for turn in following[1]:
            yield _renumbered(
                turn,
                shift,
                session,
                None if number > shift + following[0] else start_s,
                name,
                parts[name],
            )
            number += 1


def _order(seed: int, parts: Mapping[str, TrafficClass]) -> list[tuple[float | None, str]]:
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
    turns = (r if isinstance(r, Turn) else _turn(r, i) for i, r in enumerate(entries))
    for _, group in groupby(enumerate(turns), lambda pair: pair[1].session):
        pairs = list(group)
        seen.append((pairs[0][0], [turn for _, turn in pairs]))
        yield seen[-1]
    while again and seen:
        yield from seen


def _turn(request: Request, session: int) -> Turn:
    if not isinstance(request.prompt, str):
        raise WorkloadError(
            "Prompts of token ids can't be mixed, nor sent to LoRA adapters. Use a dataset of texts."
        )
    messages = [
        {"role": role, "content": text} for role, text in getattr(request, "before", [])
    ]
    if messages:
        messages.append({"role": "user", "content": request.prompt})
    return Turn(
        request.prompt,
        request.prompt_tokens,
        request.output_tokens,
        session=session,
        messages=messages,
    )


def _renumbered(
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


def with_adapters(spec: WorkloadSpec, requests: Iterable[Request]) -> list[Request]:
    """Return the requests, each with its LoRA adapter as its model. Those of a session have the same one."""
    names, rng = spec.lora_modules, np.random.default_rng([spec.seed, 7])
    out: list[Request] = []
    chosen: dict[int, str] = {}
    for i, request in enumerate(requests):
        turn = request if isinstance(request, Turn) else _turn(request, i)
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
