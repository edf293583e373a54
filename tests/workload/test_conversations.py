"""Conversations: synthetic and from files, by a real tokenizer, and sent by the command to the fake engine."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from conftest import StartFake
from dyno.cli.main import main
from dyno.errors import WorkloadError
from dyno.store.run import Run
from dyno.workload.prompts import make, within
from dyno.workload.request import Turn
from dyno.workload.spec import Workload, WorkloadSpec
from dyno.workload.tokenizer import Tokenizer, choose
from test_study_file import mistakes, study

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

FIXTURES = Path(__file__).parents[1] / "fixtures" / "conversations"
MODEL = Path(__file__).parents[2] / "src" / "dyno" / "engines" / "dyno-5m"


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return choose(str(MODEL), None, "")


def chat(bpe: Tokenizer, **fields: Any) -> Workload:
    return make(
        WorkloadSpec("chat", **{"num_sessions": 4, "turn_input_len": "20..40", **fields}),
        bpe,
    )


def turns(work: Workload) -> list[Turn]:
    return cast("list[Turn]", work.requests)


def sessions(work: Workload) -> list[list[Turn]]:
    return [
        [t for t in turns(work) if t.session == s]
        for s in range(turns(work)[-1].session + 1)
    ]


def read(path: Path, *lines: Any, **fields: Any) -> Workload:
    """Make the conversations of a file with these JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    spec = WorkloadSpec("conversations", **{"path": str(path), "shuffle": False, **fields})
    return make(spec, choose(str(MODEL), None, ""))


def says(*pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in pairs], **more}


# ---- synthetic ----


def test_each_turn_follows_the_one_before_after_the_user_has_thought(
    bpe: Tokenizer,
) -> None:
    work = chat(bpe, turns="2..4", think_time_s="0.5..2")
    each = sessions(work)
    assert (
        len(each) == 4
        and {len(s) for s in each} <= {2, 3, 4}
        and len({len(s) for s in each}) > 1
    )
    for session in each:
        numbers = [turns(work).index(t) for t in session]
        assert [t.after for t in session] == [[], *([n] for n in numbers[:-1])]
        assert [t.history for t in session] == [None, *numbers[:-1]]
        assert session[0].wait_s == 0 and all(0.5 <= t.wait_s <= 2 for t in session[1:])


def test_a_prompt_counts_its_history_with_answers_as_long_as_requested(
    bpe: Tokenizer,
) -> None:
    for session in sessions(chat(bpe, turns="3", turn_output_len="30")):
        history = ""
        for i, turn in enumerate(session):
            assert isinstance(turn.prompt, str)
            assert (
                abs(turn.prompt_tokens - 30 * i - bpe.count(history + turn.prompt)) <= 2 * i
            )
            assert turn.output_tokens == 30
            history += turn.prompt


def test_questions_have_the_lengths_that_were_drawn(bpe: Tokenizer) -> None:
    work = chat(bpe, num_sessions=20, turns="3", turn_input_len="25", turn_output_len="10")
    for session in sessions(work):
        grown = [b.prompt_tokens - a.prompt_tokens - 10 for a, b in pairwise(session)]
        assert all(abs(n - 25) <= 1 for n in grown)
        assert abs(session[0].prompt_tokens - 25 - len(bpe.encode(""))) <= 1


def test_conversations_are_the_same_for_a_seed_and_begin_differently(
    bpe: Tokenizer,
) -> None:
    one, again, longer = chat(bpe), chat(bpe), chat(bpe, num_sessions=8)
    assert one.sha256 == again.sha256 != chat(bpe, seed=1).sha256
    assert turns(longer)[: len(one.requests)] == turns(one), (
        "a conversation doesn't depend on how many follow"
    )
    begins = [str(session[0].prompt)[:16] for session in sessions(longer)]
    assert len({*begins}) == 8


def test_all_share_the_system_prompt(bpe: Tokenizer) -> None:
    work = chat(bpe, prefix_len=50, turns="2")
    systems = [session[0].messages[0] for session in sessions(work)]
    assert {m["role"] for m in systems} == {"system"} and len(
        {m["content"] for m in systems}
    ) == 1
    assert abs(bpe.count(systems[0]["content"] + "\n") - len(bpe.encode("")) - 50) <= 1
    assert [m["role"] for m in sessions(work)[0][1].messages] == ["user"]


def test_recorded_answers_of_a_synthetic_conversation_are_prose_as_long_as_requested(
    bpe: Tokenizer,
) -> None:
    work = chat(bpe, answers="recorded", turns="3", turn_output_len="24")
    first, second, last = sessions(work)[0]
    assert (
        first.answer
        and abs(bpe.count(first.answer["content"]) - len(bpe.encode("")) - 24) <= 1
    )
    assert last.answer is None and work.answers == "recorded"
    assert first.answer["content"] != (second.answer or {})["content"]


def test_output_len_is_the_length_of_all_answers(bpe: Tokenizer) -> None:
    assert {t.output_tokens for t in turns(chat(bpe, output_len=9))} == {9}
    assert {
        t.output_tokens for t in turns(chat(bpe, output_len=9, turn_output_len="7"))
    } == {7}


# ---- files ----


def test_sharegpt_has_all_its_turns_with_the_recorded_lengths(bpe: Tokenizer) -> None:
    path = FIXTURES / "sharegpt.json"
    work = make(WorkloadSpec("conversations", path=str(path), shuffle=False), bpe)
    recorded = json.loads(path.read_text())
    assert [len(s) for s in sessions(work)] == [
        len(c["conversations"]) // 2 for c in recorded
    ]
    third = sessions(work)[2]
    assert [t.messages for t in third[:1]] == [[{"role": "user", "content": "What is up?"}]]
    answer = recorded[2]["conversations"][1]["value"]
    assert third[0].answer == {"role": "assistant", "content": answer}
    assert third[0].output_tokens == bpe.count(answer) - len(bpe.encode(""))
    assert work.answers == "server" and not work.dropped


def test_mt_bench_has_two_questions_and_no_answers(bpe: Tokenizer) -> None:
    work = make(WorkloadSpec("conversations", path=str(FIXTURES / "mt_bench.jsonl")), bpe)
    assert [len(s) for s in sessions(work)] == [2, 2, 2, 2]
    assert {t.output_tokens for t in turns(work)} == {256} and {
        t.answer for t in turns(work)
    } == {None}
    with pytest.raises(
        WorkloadError, match=r"mt_bench.jsonl, line \d: a turn has no recorded answer"
    ):
        make(
            WorkloadSpec(
                "conversations", path=str(FIXTURES / "mt_bench.jsonl"), answers="recorded"
            ),
            bpe,
        )


def test_messages_out_of_order_are_sent_sensibly_or_left_out(tmp_path: Path) -> None:
    work = read(
        tmp_path / "m.jsonl",
        says(("assistant", "Hi!"), ("system", "Be short."), ("user", "One?"), ("user", "Two?"), ("assistant", "3."),
             ("assistant", "4."), ("user", " "), ("narrator", "x"), ("user", "Five?")),
        says(("system", "Nothing is asked."), ("assistant", "Well.")),
        says(("user", "Six?"), ("assistant", "Seven.")),
    )  # fmt: skip
    assert [[m["content"] for m in t.messages] for t in turns(work)] == [["Be short.", "One?", "Two?"], ["Five?"],
                                                                          ["Six?"]]  # fmt: skip
    assert [t.prompt for t in turns(work)] == [
        "Be short.\nOne?\nTwo?\n",
        "\nFive?\n",
        "Six?\n",
    ]
    assert work.dropped == {
        "answers without a question": 3, "messages that are empty": 1, "messages with an unknown role": 1,
        "conversations without a question": 1,
    }  # fmt: skip


def test_tool_calls_are_recorded_and_their_tools_are_sent(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    line = says(("user", "2 + 2?"), tools=tools)
    line["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": "c1", "content": "4"},
                         {"role": "assistant", "content": "Four."}]  # fmt: skip
    work = read(tmp_path / "t.jsonl", line)
    first, second = turns(work)
    assert work.answers == "recorded"
    assert (first.answer or {})["tool_calls"] == [call] and first.body == second.body == {
        "tools": tools
    }
    assert second.messages == [{"role": "tool", "tool_call_id": "c1", "content": "4"}]


def test_turns_limit_those_of_a_file(bpe: Tokenizer) -> None:
    path = str(FIXTURES / "sharegpt.json")
    work = make(
        WorkloadSpec(
            "conversations", path=path, turns="2", think_time_s="3", turn_output_len="5"
        ),
        bpe,
    )
    assert max(len(s) for s in sessions(work)) == 2 and {
        t.output_tokens for t in turns(work)
    } == {5}
    assert {t.wait_s for t in turns(work)} == {0.0, 3.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"turns": ["a"]}\n{"turns": 3}', r"f.jsonl, line 2: Expected `array"),
        ('{"prompt": "a"}', r"f.jsonl, line 1: no conversation. Each must be ShareGPT's"),
        (
            '[{"messages": [{"role": "user", "content": "a"}]}, 5]',
            r"f.jsonl, entry 2: Expected `object",
        ),
        ('[{"messages": []}', r"is not a JSON list of conversations"),
        ('{"messages": [{"role": "user"}]}', "has no conversation with a question"),
        ("", "is empty"),
    ],
)
def test_a_wrong_file_says_what_and_where(
    tmp_path: Path, bpe: Tokenizer, text: str, words: str
) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=words):
        make(WorkloadSpec("conversations", path=str(path)), bpe)


# ---- context ----


def test_a_conversation_is_cut_where_it_outgrows_the_context(bpe: Tokenizer) -> None:
    work = chat(
        bpe, num_sessions=6, turns="1..6", turn_input_len="10..80", turn_output_len="40"
    )
    limit = 200
    cut = within(work, limit)
    expected = []
    for session in sessions(work):
        fits = [t.prompt for t in session if t.prompt_tokens + t.output_tokens <= limit]
        expected += [fits] if fits else []
    assert [[t.prompt for t in session] for session in sessions(cut)] == expected
    lost = len(work.requests) - len(cut.requests)
    assert lost and cut.dropped == {"requests beyond the context of 200 tokens": lost}
    assert cut.sha256 != work.sha256
    for i, turn in enumerate(turns(cut)):
        assert turn.after == (
            [i - 1] if turn.history is not None else []
        ) and turn.history in (None, i - 1)
    assert within(work, None) is work and within(work, 5) is work, (
        "if nothing is left, the check refuses all"
    )


# ---- by the command ----

Bench = Callable[..., Run]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    def call(base_url: str, *words: str) -> Run:
        monkeypatch.chdir(tmp_path)
        before = set((tmp_path / "runs").glob("*"))
        server = [
            "--base-url",
            base_url,
            "--tokenizer",
            str(MODEL),
            "--no-correctness-check",
        ]
        assert main(["bench", "serve", *server, *words]) == 0
        [run] = set((tmp_path / "runs").iterdir()) - before
        return Run(run)

    return call


CHAT = (
    "--dataset-name",
    "chat",
    "--backend",
    "openai-chat",
    "--turn-input-len",
    "12",
    "--turn-output-len",
    "6",
)


def test_two_processes_hold_whole_conversations(fake: StartFake, bench: Bench) -> None:
    engine = fake(bodies=True)
    run = bench(engine.base_url, *CHAT, "--num-sessions", "9", "--turns", "1..4", "--max-concurrency", "4",
                "--procs", "2")  # fmt: skip
    records, lengths = sorted(run.records(), key=lambda r: r.index), run.lengths()
    assert [(r.session, r.error) for r in records] == [(n.session, None) for n in lengths]
    client = run.client()
    assert (
        client is not None
        and len(client.processes) == 2
        and all(p.sent for p in client.processes)
    )
    first = {json.loads(line)["messages"][0]["content"]: json.loads(line)["session"]
             for line in run.requests_path.read_text().splitlines() if '"history":null' in line}  # fmt: skip
    assert len(first) == 9
    for body in engine.log()["bodies"][-len(records) :]:  # before them, a test
        messages = body["messages"]
        own = [r for r in records if r.session == first[messages[0]["content"]]]
        answers = [m["content"] for m in messages if m["role"] == "assistant"]
        assert answers == [r.text for r in own[: len(answers)]], (
            "each holds its own conversation's answers"
        )
        assert own[len(answers)].turn == len(answers)


def test_conversations_go_round_until_time_is_up(fake: StartFake, bench: Bench) -> None:
    run = bench(
        fake().base_url,
        *CHAT,
        "--num-sessions",
        "3",
        "--turns",
        "2",
        "--max-concurrency",
        "2",
        "--duration",
        "1",
    )
    records = list(run.records())
    assert len(records) > 6 and all(r.error is None for r in records)
    assert {r.turn for r in records} == {0, 1}


def test_a_rate_begins_sessions_and_needs_as_many(
    fake: StartFake, bench: Bench, capsys: Any
) -> None:
    run = bench(
        fake().base_url, *CHAT, "--turns", "3", "--request-rate", "20", "--duration", "1"
    )
    assert "Session rate configured (sessions/s):" in capsys.readouterr().out
    assert len({n.session for n in run.lengths()}) == 20, "sessions, not requests"


def test_the_result_says_whose_answers_the_history_has(
    fake: StartFake, bench: Bench, capsys: Any
) -> None:
    path = str(FIXTURES / "sharegpt.json")
    words = (
        "--dataset-name",
        "conversations",
        "--dataset-path",
        path,
        "--backend",
        "openai-chat",
    )
    run = bench(fake().base_url, *words, "--answers", "recorded")
    assert run.manifest().answers == "recorded"
    shown = capsys.readouterr().out
    assert "Answers in the history:" in shown and "recorded" in shown
    bench(fake().base_url, *words, "--json")
    assert json.loads(capsys.readouterr().out)["dyno"]["answers"] == "server"


def test_a_file_with_too_few_conversations_goes_round(
    fake: StartFake, bench: Bench
) -> None:
    words = (
        "--dataset-name",
        "conversations",
        "--dataset-path",
        str(FIXTURES / "mt_bench.jsonl"),
        "--output-len",
        "4",
    )
    run = bench(fake().base_url, *words, "--num-sessions", "6", "--max-concurrency", "2")
    assert len(list(run.records())) == 12
    assert "load.repeated_prompts" in {f.code for f in run.result().findings}
    run = bench(fake().base_url, *words, "--num-sessions", "6", "--no-oversample")
    assert len(list(run.records())) == 8


def test_turns_beyond_the_servers_context_are_left_out_and_reported(
    fake: StartFake, bench: Bench, capsys: Any
) -> None:
    run = bench(
        fake(max_model_len=60).base_url, *CHAT, "--num-sessions", "4", "--turns", "9"
    )
    assert "Left out" in capsys.readouterr().err
    assert all(n.prompt_tokens + n.output_tokens <= 60 for n in run.lengths())
    [finding] = [f for f in run.result().findings if f.code == "load.left_out"]
    assert finding.text.endswith("requests beyond the context of 60 tokens were left out.")


def test_answers_shorter_than_requested_shorten_the_planned_prompts(
    fake: StartFake, bench: Bench
) -> None:
    engine = fake(faults={"short": 2})
    run = bench(
        engine.base_url,
        *CHAT,
        "--num-sessions",
        "4",
        "--turns",
        "4",
        "--max-concurrency",
        "1",
    )
    plan = {i: n.prompt_tokens for i, n in enumerate(run.lengths())}
    assert any(r.prompt_tokens_planned < plan[r.index] for r in run.records())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--turns", "3"],
            "--turns is for --dataset-name chat or conversations, but this is random.",
        ),
        (
            ["--dataset-name", "chat", "--turns", "0..3"],
            "--turns must be at least 1, but is 0..3.",
        ),
        (
            ["--dataset-name", "chat", "--think-time", "expnential:3"],
            "Did you mean exponential?",
        ),
        (["--dataset-name", "chat", "--dataset-path", "x"], "chat generates its prompts"),
        (
            [
                "--dataset-name",
                "conversations",
                "--dataset-path",
                "x",
                "--turn-input-len",
                "5",
            ],
            "--turn-input-len is for --dataset-name chat, but",
        ),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    words: list[str], message: str, capsys: Any
) -> None:
    assert main(["bench", "serve", *words]) != 0
    assert message in capsys.readouterr().err


# ---- in a study ----

STUDY = """
[engines.a]
kind = "fake"
[workloads.w]
dataset = "chat"
num_sessions = 8
turns = "2..4"
think_time_s = 0.5
[loads.c]
max_concurrency = 2
"""


def test_a_study_has_conversations_with_numbers_or_texts() -> None:
    [planned] = study(STUDY).trials
    work = planned.trial.workload
    assert (work.num_sessions, work.turns, work.think_time_s, work.num_prompts) == (
        8,
        "2..4",
        "0.5",
        24,
    )
    assert planned.trial.ignore_eos
    [planned] = study(
        STUDY.replace("max_concurrency = 2", "max_concurrency = 2\nnum_sessions = 5")
    ).trials
    assert planned.trial.workload.num_sessions == 5
    assert len(study(STUDY.replace('"2..4"', '["2", "3..9"]')).trials) == 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"2..4"', '"4..2"', "workloads.w.turns: must go from low to high, but is 4..2."),
        ('"2..4"', "0", "workloads.w.turns: must be at least 1, but is 0."),
        ("0.5", '"norml:3,1"', "Did you mean normal?"),
        ("0.5", "true", "must be text in quotes, but is True."),
        ('"chat"', '"random"', "is for dataset chat or conversations, but this is random."),
        (
            '"chat"',
            '"conversations"',
            "path is missing: conversations is read from a file.",
        ),
        ("max_concurrency = 2", 'kind = "throughput"', "chat needs a server"),
    ],
)
def test_a_study_says_what_is_wrong_with_its_conversations(
    old: str, new: str, words: str
) -> None:
    assert any(words in line for line in mistakes(STUDY.replace(old, new)))
