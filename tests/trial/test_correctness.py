"""The check of answers around a load: what is asked and when, and what engines that answer wrongly get."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from conftest import STREAM_HEAD, Scripted, StartFake, chunked
from dyno.checks import correctness as checks
from dyno.checks.evidence import Evidence
from dyno.facts.correctness import MAX_TOKENS, PROMPTS, Correctness
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Stop
from dyno.load.protocols import PROTOCOLS
from dyno.store.run import create
from dyno.trial import correctness
from dyno.trial import online as conducting
from dyno.trial.online import Outcome
from dyno.trial.session import Session
from dyno.workload.spec import WorkloadSpec

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

# prompt, and how often it came before → text; None: an error
Reply = Callable[[str, int], str | None]


class Model:
    """A server of completions whose words a test decides."""

    def __init__(self, reply: Reply, scripted: Callable[..., Scripted]) -> None:
        self.reply, self.bodies, self.times = reply, list[dict[str, Any]](), Counter[str]()
        self.base_url = scripted(self._talk).base_url

    @property
    def prompts(self) -> list[str]:
        return [body["prompt"] for body in self.bodies]

    def _talk(self, sock: Any, _: int) -> None:
        data = b""
        while more := sock.recv(65536):
            data += more
            head, _, body = data.partition(b"\r\n\r\n")
            if not head.startswith(b"POST /v1/completions"):
                sock.sendall(b"HTTP/1.1 404 none\r\ncontent-length: 0\r\n\r\n")
                data = b""
            elif body.endswith(b"}"):
                data = b""
                sock.sendall(self._answer(json.loads(body)))

    def _answer(self, asked: dict[str, Any]) -> bytes:
        self.bodies.append(asked)
        prompt = asked["prompt"]
        text = self.reply(prompt, self.times[prompt])
        self.times[prompt] += 1
        if text is None:
            return b"HTTP/1.1 500 no\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\noops"
        pieces = text.split("|")
        events = [{"choices": [{"text": piece}]} for piece in pieces]
        ended = {
            "choices": [
                {
                    "text": "",
                    "finish_reason": "length" if len(pieces) == MAX_TOKENS else "stop",
                }
            ]
        }
        usage = {
            "choices": [],
            "usage": {"prompt_tokens": 3, "completion_tokens": len(pieces)},
        }
        lines = [
            b"data: %s\n\n" % json.dumps(event).encode()
            for event in (*events, ended, usage)
        ]
        return STREAM_HEAD + chunked(*lines, b"data: [DONE]\n\n")


def a_trial(*urls: str, backend: str = "openai", **fields: Any) -> TrialSpec:
    target = TargetSpec(
        urls[0], backend, PROTOCOLS[backend].path, "fake", more_urls=list(urls[1:])
    )
    work = WorkloadSpec("random", num_prompts=4, input_len=5, output_len=2, num_warmups=2)
    return TrialSpec(target, work, LoadSpec(max_concurrency=2), **fields)


def ask(folder: Path, *urls: str, **fields: Any) -> tuple[Correctness, dict[str, str]]:
    """Both sides of the check around no load, and its findings with their levels."""
    trial, run, session = (
        a_trial(*urls, **fields),
        create(folder, "x"),
        Session(TargetFacts("fake"), {}),
    )
    correctness.ask_before(run, session, trial)
    correctness.ask_after(run, session, trial)
    known = run.correctness()
    assert known is not None
    e = Evidence(trial=trial, target=session.target, counted_by="server", prompts=4, repeated_prompts=0,
                 sent_before=None, summary=cast(Any, None), correctness=known)  # fmt: skip
    findings = [
        f for judge in (checks.nonsense, checks.changed, checks.failed) for f in judge(e)
    ]
    return known, {
        f.code.removeprefix("correctness."): f"{f.level}: {f.text}" for f in findings
    }


def serve(
    tmp_path: Path, *urls: str, headers: dict[str, str] | None = None, **fields: Any
) -> Outcome:
    return conducting.serve(a_trial(*urls, **fields), runs=tmp_path, headers=headers or {})


def checked(outcome: Outcome) -> Correctness:
    known = outcome.run.correctness()
    assert known is not None
    return known


def codes(outcome: Outcome) -> dict[str, str]:
    return {
        f.code: f.level
        for f in outcome.result.findings
        if f.code.startswith("correctness.")
    }


def sensible(prompt: str, _: int) -> str:
    return f"An| answer| to| {len(prompt)}"


Ask = Callable[[Reply], Model]


@pytest.fixture
def model(scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch) -> Ask:
    # on a busy machine, too, all prompts are asked
    monkeypatch.setattr("dyno.trial.correctness.SPENT_S", 20.0)
    return lambda reply: Model(reply, scripted)


def test_prompts_are_asked_before_the_warm_up_and_after_the_load(
    model: Ask, tmp_path: Path
) -> None:
    server = model(sensible)
    extra = {"temperature": 0.7, "min_tokens": 50, "user": "me"}
    outcome = serve(
        tmp_path,
        server.base_url,
        sampling={"top_p": 0.9},
        extra_body=extra,
        ignore_eos=True,
    )
    asked = [body for body in server.bodies if body["prompt"] in PROMPTS]
    # a test request is the first
    order = ["check" if prompt in PROMPTS else "load" for prompt in server.prompts[1:]]
    assert order == ["check"] * 5 + ["load"] * 6 + ["check"] * 5
    assert all(
        (body["temperature"], body["max_tokens"], body["user"]) == (0, MAX_TOKENS, "me")
        for body in asked
    )
    assert not any(body.keys() & {"top_p", "min_tokens", "ignore_eos"} for body in asked)
    known = checked(outcome)
    assert (
        [a.prompt for a in known.before] == [a.prompt for a in known.after] == list(PROMPTS)
    )
    assert (known.sent, known.again) == (10, [])
    first = known.before[0]
    assert (first.text, first.token_ends, first.finish_reason) == (
        "An answer to 34",
        [2, 9, 12, 15],
        "stop",
    )
    assert first.latency_ms > 0
    assert (outcome.result.served.sent, codes(outcome)) == (4, {})


def test_it_can_be_turned_off(model: Ask, tmp_path: Path) -> None:
    server = model(sensible)
    outcome = serve(tmp_path, server.base_url, correctness_check=False)
    assert (
        not {*server.prompts} & {*PROMPTS}
        and outcome.run.correctness() is None
        and codes(outcome) == {}
    )


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "tgi"])
def test_every_protocol_is_asked_by_its_own_route(
    backend: str, shared_fake: StartFake, tmp_path: Path
) -> None:
    known, findings = ask(tmp_path, shared_fake().base_url, backend=backend)
    assert known.before and known.after and not any(a.error for a in known.answers)
    assert (
        known.before[0].finish_reason == "length"
        and len(known.before[0].token_ends) == MAX_TOKENS
    )
    assert findings == {}


def test_each_replica_is_asked(model: Ask, tmp_path: Path) -> None:
    good, bad = model(sensible), model(lambda *_: "|".join("!" * 16))
    known, findings = ask(tmp_path, good.base_url, bad.base_url)
    assert [a.replica for a in known.before] == [0] * 5 + [1] * 5
    text = f"void: All 5 greedy answers of {bad.base_url} before the load only repeat a short text: "
    assert findings.keys() == {"garbage"} and findings["garbage"].startswith(text)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (sensible, {}),
        # NaN: the token 0 without end
        (lambda *_: "|".join("!" * 16), {"garbage": "void"}),
        (lambda *_: "", {"empty": "void"}),
        # the template drops the prompt
        (lambda *_: "Hello!| How can I help you today?", {"garbage": "void"}),
        (
            lambda prompt, times: None if prompt == PROMPTS[1] else sensible(prompt, times),
            {"failed": "doubt"},
        ),
        (
            lambda prompt, times: f"{prompt}| answered| {times}",
            {"not_deterministic": "note"},
        ),
        (lambda prompt, times: f"{prompt}|!" if times else prompt, {"changed": "doubt"}),
        (
            lambda prompt, times: "|".join("=" * 16) if times else sensible(prompt, 0),
            {"changed": "doubt", "garbage": "void"},  # broken by the load
        ),
        (
            lambda prompt, times: "" if times else sensible(prompt, 0),
            {"changed": "doubt", "empty": "void"},
        ),
    ],
    ids=[
        "good",
        "nan",
        "empty",
        "template",
        "fails",
        "varies",
        "changes",
        "breaks",
        "falls silent",
    ],
)
def test_wrong_answers_are_findings(
    reply: Reply, expected: dict[str, str], model: Ask, tmp_path: Path
) -> None:
    _, findings = ask(tmp_path, model(reply).base_url)
    assert {name: text.partition(":")[0] for name, text in findings.items()} == expected


def test_a_changed_answer_is_quoted_and_asked_for_once_more(
    model: Ask, tmp_path: Path
) -> None:
    server = model(
        lambda prompt, times: (
            "Lyon" if times and prompt == PROMPTS[1] else sensible(prompt, 0)
        )
    )
    known, findings = ask(tmp_path, server.base_url)
    assert [a.prompt for a in known.again] == [PROMPTS[1]]
    assert findings["changed"] == (
        "doubt: 1 of 5 greedy answers changed after the load, and stayed so when asked again. To 'The capital of "
        "France is': before 'An answer to 24', after 'Lyon'."
    )


@pytest.mark.parametrize("spent_s", [0.02, 0.0])
def test_a_slow_server_is_asked_one_prompt_a_side(
    spent_s: float, model: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dyno.trial.correctness.SPENT_S", spent_s)

    def slow(prompt: str, times: int) -> str:
        time.sleep(0.04)
        return sensible(prompt, times)

    known, findings = ask(tmp_path, model(slow).base_url)
    assert [a.prompt for a in known.answers] == [PROMPTS[0]] * 2 and findings == {}


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":[{"text":"a"}],"usage":{"completion_tokens":1%s}}' % (b"0" * 300),
        b'{"choices":[{"text":"a"}],"usage":{"completion_tokens":-5}}',
        b'{"choices":[{"text":"%s"}]}' % (b"long " * 100_000),
        b'{"choices":[{"text":"\\u0000\\u001b[2J\\u202e"}]}',
        b'{"choices":' + b"[" * 20_000,
        b'{"error":{"message":"no \\u001b[31mmemory"}}',
        b"\xff\xfe",
    ],
)
def test_no_answer_of_a_server_breaks_the_check(
    event: bytes, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    def talk(sock: Any, _: int) -> None:
        while sock.recv(65536):
            sock.sendall(
                STREAM_HEAD + chunked(b"data: %s\n\n" % event, b"data: [DONE]\n\n")
            )

    known, findings = ask(tmp_path, scripted(talk).base_url)
    assert known.before and all(
        len(a.text) <= 4000 and (a.output_tokens or 0) >= 0 for a in known.answers
    )
    assert "\x1b" not in str(findings) and "\u202e" not in str(findings)


def test_a_key_that_is_sent_back_is_in_no_answer(model: Ask, tmp_path: Path) -> None:
    key = "sk-very-secret-0123456789"
    server = model(
        lambda prompt, _: f"Your key| is sk-very-|secret-0123456789, {len(prompt)}"
    )
    outcome = serve(tmp_path, server.base_url, headers={"Authorization": f"Bearer {key}"})
    assert checked(outcome).before[0].text.startswith("Your key is ")
    assert not any(key.encode() in path.read_bytes() for path in outcome.run.path.iterdir())


@pytest.mark.parametrize("side", ["before", "after"])
def test_ctrl_c_during_the_check_ends_it_and_keeps_what_was_measured(
    side: str, model: Ask, tmp_path: Path
) -> None:
    hanging, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def stall(prompt: str, times: int) -> str:
        if prompt in PROMPTS and times == (side == "after"):
            signal.pthread_kill(main, signal.SIGINT)
            hanging.wait(20)
        return sensible(prompt, times)

    server, stop = model(stall), Stop()
    try:
        if side == "before":
            with pytest.raises(KeyboardInterrupt):
                conducting.serve(
                    a_trial(server.base_url), runs=tmp_path, headers={}, stop=stop
                )
        else:
            outcome = conducting.serve(
                a_trial(server.base_url), runs=tmp_path, headers={}, stop=stop
            )
            assert (
                outcome.run.whole
                and outcome.result.served.completed == 4
                and stop.requested
            )
            assert checked(outcome).before and not checked(outcome).after
    finally:
        hanging.set()
    assert server.prompts.count(PROMPTS[0]) == 1 + (side == "after")
