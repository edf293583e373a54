"""Ask the prompts of the correctness check, before the warm-up and after the load, by the trial's own route."""

import contextlib
import time
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from dyno import secrets
from dyno.errors import TargetError
from dyno.facts.correctness import MAX_TOKENS, PROMPTS, Correctness, GreedyAnswer
from dyno.facts.trial import TrialSpec
from dyno.http import Client, Url
from dyno.load import decode
from dyno.load.protocols import Asked, StreamReading, protocol_of
from dyno.probe.server import complaint
from dyno.store.run import Run
from dyno.trial.session import Session, asked_of
from dyno.visible import one_line
from dyno.workload.request import Request

SPENT_S = 0.4  # on each side, shared by replicas: then each is asked no further prompt
_LIMIT_S = 30.0  # for one answer
_TEXT_MAX = 4000  # characters of an answer that are kept: more than its tokens can hold
# Fields of a request's body by which an answer would be sampled, or be longer than the check wants it.
_SAMPLES = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "do_sample", "n", "best_of", "max_tokens",
    "max_completion_tokens", "max_new_tokens", "n_predict", "min_tokens", "ignore_eos", "generation_config",
)  # fmt: skip


def applies(trial: TrialSpec) -> bool:
    """Return whether the trial's answers are texts that prompts ask for."""
    protocol = protocol_of(trial.api)
    return trial.correctness_check and protocol.output == "text" and protocol.prompted


def ask_before(run: Run, session: Session, trial: TrialSpec) -> None:
    session.watcher.phase("Checking answers")
    run.write_correctness(
        Correctness(_ask(session, trial, [PROMPTS] * len(trial.target.urls)))
    )


def ask_after(run: Run, session: Session, trial: TrialSpec) -> None:
    """Ask the same prompts; those whose answer changed once more: a server may not be deterministic."""
    known = run.correctness()
    if known is None or session.stop.requested:
        return
    session.watcher.phase("Checking answers")
    try:
        known = msgspec.structs.replace(
            known, after=_ask(session, trial, _by_replica(known.before, trial))
        )
        if changed := known.changed():
            again = _ask(session, trial, _by_replica([a for _, a in changed], trial))
            known = msgspec.structs.replace(known, again=again)
    except (
        KeyboardInterrupt
    ):  # the load is measured: its result is calculated, and what would follow is left out
        session.stop.request()
    run.write_correctness(known)


def _by_replica(answers: Sequence[GreedyAnswer], trial: TrialSpec) -> list[list[str]]:
    return [
        [a.prompt for a in answers if a.replica == i] for i in range(len(trial.target.urls))
    ]


def _ask(
    session: Session, trial: TrialSpec, prompts: Sequence[Sequence[str]]
) -> list[GreedyAnswer]:
    """`prompts`: of each replica. One at a time: in a batch, an answer may depend on the others."""
    answers: list[GreedyAnswer] = []
    for replica, texts in enumerate(prompts):
        until = time.monotonic() + SPENT_S / len(prompts)
        limit_s = min(trial.load.request_timeout_s, _LIMIT_S)
        client = Client(
            Url(trial.target.urls[replica]),
            session.headers,
            trial.target,
            timeout_s=limit_s,
        )
        with contextlib.closing(client):
            for i, text in enumerate(texts):
                if i == 0 or time.monotonic() < until:
                    answer = _answer(client, session.target.model, trial, text)
                    answers.append(msgspec.structs.replace(answer, replica=replica))
    return answers


def _answer(client: Client, model: str, trial: TrialSpec, prompt: str) -> GreedyAnswer:
    protocol = protocol_of(trial.api)
    given = asked_of(trial, model).extra_body
    extra = {name: value for name, value in given.items() if name not in _SAMPLES}
    sent = protocol.request(
        Request(prompt, 0, MAX_TOKENS),
        Asked(model, sampling={"temperature": 0.0}, extra_body=extra),
    )
    began = time.monotonic()
    reading = StreamReading([], [])
    try:
        status, answer = client.call(trial.target.endpoint, sent)
        if status == 200:
            reading = decode.read_reply(protocol, answer)
        else:
            reading.error, reading.error_detail = f"http_{status}", complaint(answer)
    except TargetError as e:
        reading.error, reading.error_detail = "no_answer", str(e)
    except (ValueError, RecursionError) as e:
        reading.error, reading.error_detail = "garbage", str(e)
    took_s = time.monotonic() - began
    tokens = (
        reading.output_tokens if 0 <= (reading.output_tokens or 0) <= _TEXT_MAX else None
    )  # else nothing counted it
    text = secrets.clean("".join(reading.texts))[:_TEXT_MAX]
    # An end token is counted and has no chunk.
    single = tokens is not None and 0 <= tokens - len(reading.texts) <= 1
    ends = list(accumulate(map(len, reading.texts))) if single else []
    return GreedyAnswer(
        prompt=prompt,
        text=text,
        finish_reason=secrets.clean(reading.finish_reason),
        output_tokens=tokens,
        token_ends=ends if ends and ends[-1] == len(text) else [],
        reasoning=reading.answer_chunks() is not None,
        latency_ms=round(took_s * 1000, 3),
        error=reading.error,
        error_detail=one_line(secrets.clean(reading.error_detail))[:300],
    )
