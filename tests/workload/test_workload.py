"""Workloads against a real tokenizer, local or behind a server: byte-level BPE, trained on dyno's prose."""

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from dyno.errors import TargetError, WorkloadError
from dyno.http import Client, Url
from dyno.workload.datasets import DATASETS
from dyno.workload.prompts import make
from dyno.workload.spec import Workload, WorkloadSpec
from dyno.workload.synthetic import (
    Wanted,
    opening,
    prose,
    sharegpt_lengths,
    synthesize,
    synthesize_all,
)
from dyno.workload.tokenizer import ApproximateTokenizer, Tokenizer, choose

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

BOS = "<s>"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: byte-level BPE that puts a BOS first, as Llama's does."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=[BOS],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # One long text: the trainer's threads have nothing to share, and a later fork nothing to warn about.
    bpe.train_from_iterator([prose(np.random.default_rng(5), 20_000)], trainer)
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, bpe.token_to_id(BOS))]
    )
    bpe.enable_truncation(16)  # as some published files have it
    path = tmp_path_factory.mktemp("model")
    bpe.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="session")
def bpe(folder: Path) -> Tokenizer:
    return choose(str(folder), None, "tiny")


def counts(workload: Workload) -> list[int]:
    return [r.prompt_tokens for r in workload.requests]


def texts(workload: Workload) -> list[str]:
    assert all(isinstance(r.prompt, str) for r in workload.requests)
    return [str(r.prompt) for r in workload.requests]


# --- prose ---


def test_prose_has_the_words_asked_for_and_repeats_with_its_seed() -> None:
    text = prose(np.random.default_rng(3), 500)
    assert len(text.split()) == 500
    assert text == prose(np.random.default_rng(3), 500)
    assert text != prose(np.random.default_rng(4), 500)
    assert (
        text.isascii() and ". " in text and ", " in text and any(c.isdigit() for c in text)
    )


def test_the_word_list_has_no_word_twice() -> None:
    words = (
        (Path(sys.modules[prose.__module__].__file__ or "").parent / "words.txt")
        .read_text()
        .split()
    )
    assert len(words) == len(set(words)) > 1500
    assert all(w.isalpha() and w.islower() for w in words)


def test_no_two_prompts_open_with_the_same_two_words() -> None:
    openings = [opening(0, i) for i in range(-1, 20_000)]
    assert len(set(openings)) == len(openings)
    assert len({o.split()[0] for o in openings[1:1001]}) == 1000


# --- random ---


@pytest.mark.parametrize("length", [2, 3, 17, 128, 1024])
def test_random_prompts_have_exactly_the_tokens_asked_for(
    bpe: Tokenizer, length: int
) -> None:
    spec = WorkloadSpec("random", num_prompts=40, input_len=length, output_len=7)
    workload = make(spec, bpe)
    assert counts(workload) == [length] * 40
    # BOS included, as the server counts
    assert [bpe.count(t) for t in texts(workload)] == [length] * 40
    assert all(BOS not in t for t in texts(workload))
    assert {r.output_tokens for r in workload.requests} == {7}
    assert workload.counted_by == "tokenizer"


def test_random_lengths_are_those_vllm_draws_from_the_same_seed(bpe: Tokenizer) -> None:
    spec = WorkloadSpec(
        "random",
        num_prompts=300,
        input_len=41,
        output_len=9,
        range_ratio_input=0.5,
        range_ratio_output=0.9,
        seed=11,
    )
    workload = make(spec, bpe)
    # 41 less the BOS is 40; ±50 % is 20 to 60; 9 ± 90 % is 0 (so 1) to 18
    rng = np.random.default_rng(11)
    assert counts(workload) == [1 + n for n in rng.integers(20, 61, size=300)]
    assert [r.output_tokens for r in workload.requests] == list(
        rng.integers(1, 19, size=300)
    )


def test_random_prompts_share_the_prefix_asked_for_and_nothing_after_it(
    bpe: Tokenizer,
) -> None:
    workload = make(
        WorkloadSpec("random", num_prompts=50, num_warmups=3, input_len=30, prefix_len=21),
        bpe,
    )
    assert counts(workload) == [51] * 50
    ids = [bpe.encode(t) for t in texts(workload)]
    assert len({tuple(i[:22]) for i in ids}) == 1
    assert len({tuple(i[22:28]) for i in ids}) == 50
    assert all(bpe.encode(str(w.prompt))[:17] != ids[0][:17] for w in workload.warmups)


def test_prompts_made_together_are_those_made_one_by_one(bpe: Tokenizer) -> None:
    wanted = [Wanted(i, 1 + i % 50, "Once upon a time" if i % 3 else "") for i in range(70)]
    for tokenizer in (bpe, ApproximateTokenizer()):
        one_by_one = [
            synthesize(tokenizer, 7, w.number, w.tokens, w.prefix) for w in wanted
        ]
        assert list(synthesize_all(tokenizer, 7, wanted)) == one_by_one
        assert tokenizer.cut(["to be or not"], [2]) == [
            tokenizer.decode(tokenizer.encode("to be or not")[:2])
        ]


def test_random_prompts_differ_from_their_first_word(bpe: Tokenizer) -> None:
    workload = make(
        WorkloadSpec("random", num_prompts=500, num_warmups=20, input_len=24), bpe
    )
    starts = [str(r.prompt).split()[0] for r in workload.requests + workload.warmups]
    assert len(set(starts)) == 520
    assert workload.repeated == 0
    assert [w.prompt_tokens for w in workload.warmups] == [24] * 20


def test_prompts_of_a_single_token_still_get_their_warmups(bpe: Tokenizer) -> None:
    workload = make(
        WorkloadSpec("random", num_prompts=1700, num_warmups=5, input_len=2), bpe
    )
    assert [w.prompt_tokens for w in workload.warmups] == [2] * 5


def test_a_workload_comes_out_the_same_each_time_and_its_hash_says_so(
    bpe: Tokenizer,
) -> None:
    spec = WorkloadSpec("random", num_prompts=20, input_len=32)
    one, again = make(spec, bpe), make(spec, bpe)
    assert one == again
    warmed = make(WorkloadSpec("random", num_prompts=20, input_len=32, num_warmups=4), bpe)
    assert warmed.requests == one.requests and warmed.sha256 == one.sha256
    longer = make(WorkloadSpec("random", num_prompts=20, input_len=32, output_len=5), bpe)
    assert longer.sha256 != one.sha256
    assert (
        make(WorkloadSpec("random", num_prompts=20, input_len=32, seed=1), bpe).sha256
        != one.sha256
    )


def test_when_no_cut_is_exact_the_true_count_is_reported() -> None:
    class Even(ApproximateTokenizer):
        """Knows no odd counts."""

        def encode(self, text: str) -> list[int]:
            return [i for chunk in super().encode(text) for i in (chunk, 0)]

        def decode(self, ids: list[int]) -> str:
            return super().decode(ids[::2])

        def count(self, text: str) -> int:
            return len(self.encode(text))

    workload = make(WorkloadSpec("random", num_prompts=5, input_len=33), Even())
    assert all(
        count == Even().count(t)
        for count, t in zip(counts(workload), texts(workload), strict=True)
    )
    assert all(abs(count - 33) == 1 for count in counts(workload))


def test_without_a_tokenizer_lengths_are_guessed_and_marked_so() -> None:
    tokenizer = choose(None, None, "any")
    workload = make(WorkloadSpec("random", num_prompts=5, input_len=100), tokenizer)
    assert workload.counted_by == "approximate"
    assert all(390 <= len(t) <= 410 for t in texts(workload))
    assert tokenizer.decode(tokenizer.encode("naïve 🙂 text")) == "naïve 🙂 text"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (WorkloadSpec("random", input_len=1), "Raise --random-input-len"),
        (WorkloadSpec("random", range_ratio_input=1.0), "input range ratio is 1.0"),
        (WorkloadSpec("random", range_ratio_output=-0.1), "output range ratio is -0.1"),
        (WorkloadSpec("random", output_len=0), "at least 1"),
        (WorkloadSpec("random", num_prompts=0), "--num-prompts"),
        (WorkloadSpec("random", seed=-1), "--seed"),
        (WorkloadSpec("sharegp"), "Did you mean sharegpt?"),
        (WorkloadSpec("zzz"), f"dyno knows {', '.join(DATASETS)}."),
    ],
)
def test_a_spec_that_cannot_be_made_says_what_to_change(
    bpe: Tokenizer, spec: WorkloadSpec, says: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        make(spec, bpe)
    assert says in str(error.value)


# --- questions ---


def test_questions_of_the_tasks_come_in_turn_and_fit_an_answer(bpe: Tokenizer) -> None:
    asked = make(WorkloadSpec("tasks", num_prompts=15, num_warmups=4, seed=2), bpe)
    starts = ("What is", "Copy this", "The codes are", "Sort these", "How often is")
    assert [
        text.startswith(start) for text, start in zip(texts(asked), starts * 3, strict=True)
    ] == [True] * 15
    assert {r.output_tokens for r in asked.requests} == {64}
    assert counts(asked) == [bpe.count(t) for t in texts(asked)]
    assert len(asked.warmups) == 4
    assert texts(asked) == texts(
        make(WorkloadSpec("tasks", num_prompts=15, seed=2, output_len=8), bpe)
    )
    assert texts(asked) != texts(make(WorkloadSpec("tasks", num_prompts=15, seed=3), bpe))


# --- ShareGPT ---


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sharegpt_shaped_lengths_have_the_means_of_sharegpt(seed: int) -> None:
    inputs, outputs = np.array(sharegpt_lengths(seed, 5000)).T
    assert inputs.mean() == pytest.approx(217, rel=0.05)
    assert outputs.mean() == pytest.approx(198, rel=0.05)
    assert inputs.min() >= 4 and inputs.max() <= 1024 and outputs.min() >= 4
    assert 60 < np.median(inputs) < 110  # half of the prompts are short


def test_sharegpt_shaped_prompts_have_those_lengths_and_take_an_output_length(
    bpe: Tokenizer,
) -> None:
    free = make(WorkloadSpec("sharegpt-shaped", num_prompts=60, num_warmups=2, seed=3), bpe)
    assert [(r.prompt_tokens, r.output_tokens) for r in free.requests] == sharegpt_lengths(
        3, 60
    )
    assert counts(free) == [bpe.count(t) for t in texts(free)]
    fixed = make(WorkloadSpec("sharegpt-shaped", num_prompts=60, output_len=9, seed=3), bpe)
    assert {r.output_tokens for r in fixed.requests} == {9}
    assert texts(fixed) == texts(free)


def conversation(prompt: str, answer: str, *more: str) -> dict[str, Any]:
    return {
        "id": "x",
        "conversations": [{"from": "human", "value": v} for v in (prompt, answer, *more)],
    }


def words(seed: int, count: int) -> str:
    return prose(np.random.default_rng(seed), count)


@pytest.fixture
def sharegpt_file(tmp_path: Path) -> str:
    entries = [
        conversation(f"{i} asks: " + words(i, 20), words(i, 10 + i), "more")
        for i in range(12)
    ]
    entries += [
        {"id": "no conversations"},
        {
            "conversations": [
                {"from": "human", "value": "Only one turn, however long it may be."}
            ]
        },
        conversation("Hi", words(1, 20)),  # prompt too short: BOS and two or three tokens
        conversation(words(2, 20), "a"),  # answer too short
        conversation(words(3, 1100), words(3, 20)),  # prompt too long
        conversation(words(4, 20), words(4, 2100)),  # too long together
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(entries))
    return str(path)


def test_sharegpt_takes_the_first_two_turns_of_what_passes_the_filter(
    bpe: Tokenizer, sharegpt_file: str
) -> None:
    spec = WorkloadSpec(
        "sharegpt", path=sharegpt_file, num_prompts=100, shuffle=False, oversample=False
    )
    workload = make(spec, bpe)
    assert [t.split()[0] for t in texts(workload)] == [str(i) for i in range(12)]
    assert counts(workload) == [bpe.count(t) for t in texts(workload)]
    assert [r.output_tokens for r in workload.requests] == [
        bpe.count(words(i, 10 + i)) for i in range(12)
    ]
    assert workload.repeated == 0


def test_sharegpt_is_shuffled_as_vllm_shuffles_it(
    bpe: Tokenizer, sharegpt_file: str
) -> None:
    spec = WorkloadSpec(
        "sharegpt", path=sharegpt_file, num_prompts=100, seed=4, oversample=False
    )
    # all entries with two turns; 12 and above don't pass the filter
    order = list(range(16))
    random.Random(4).shuffle(order)
    starts = [t.split()[0] for t in texts(make(spec, bpe))]
    assert starts == [str(i) for i in order if i < 12]


def test_an_output_length_lifts_the_filter_on_answers(
    bpe: Tokenizer, sharegpt_file: str
) -> None:
    spec = WorkloadSpec(
        "sharegpt", path=sharegpt_file, num_prompts=100, oversample=False, output_len=2
    )
    workload = make(spec, bpe)
    # the answers that are too short and too long count no more
    assert len(workload.requests) == 14
    assert {r.output_tokens for r in workload.requests} == {2}


def test_a_file_with_too_few_prompts_is_repeated_and_the_copies_are_counted(
    bpe: Tokenizer, sharegpt_file: str
) -> None:
    workload = make(
        WorkloadSpec("sharegpt", path=sharegpt_file, num_prompts=30, num_warmups=3), bpe
    )
    assert len(workload.requests) == 30
    assert workload.repeated == 18
    # Nothing is left over to warm up with: prose of the same lengths.
    assert [w.prompt_tokens for w in workload.warmups] == counts(workload)[:3]
    assert not {str(w.prompt)[:16] for w in workload.warmups} & {
        t[:16] for t in texts(workload)
    }


def test_warmups_are_entries_beyond_the_measured_ones(
    bpe: Tokenizer, sharegpt_file: str
) -> None:
    spec = WorkloadSpec(
        "sharegpt", path=sharegpt_file, num_prompts=5, num_warmups=4, shuffle=False
    )
    workload = make(spec, bpe)
    assert [str(w.prompt).split()[0] for w in workload.warmups] == ["5", "6", "7", "8"]


def test_a_warmup_that_starts_like_a_measured_prompt_is_passed_over(
    bpe: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    same = "You are a helpful assistant. "
    path.write_text(
        "".join(
            json.dumps({"prompt": p}) + "\n"
            for p in (same + "One.", same + "Two.", "Another.")
        )
    )
    spec = WorkloadSpec(
        "custom", path=str(path), num_prompts=1, num_warmups=2, output_len=4, shuffle=False
    )
    workload = make(spec, bpe)
    assert workload.warmups[0].prompt == "Another."
    assert not str(workload.warmups[1].prompt).startswith("You are")


# --- custom ---


def custom(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_custom_prompts_are_text_or_ids_with_output_lengths_of_their_own(
    bpe: Tokenizer, tmp_path: Path
) -> None:
    path = custom(
        tmp_path,
        '{"prompt": "What is the time?", "output_tokens": 10, "more": null}',
        "",
        '{"prompt": [5, 6, 7], "output_tokens": "20"}',
    )
    for output_len in (None, -1):
        spec = WorkloadSpec(
            "custom", path=path, num_prompts=2, shuffle=False, output_len=output_len
        )
        text, ids = make(spec, bpe).requests
        assert (text.prompt, text.prompt_tokens, text.output_tokens) == (
            "What is the time?",
            bpe.count("What is the time?"),
            10,
        )
        assert (ids.prompt, ids.prompt_tokens, ids.output_tokens) == ([5, 6, 7], 3, 20)
    spec = WorkloadSpec("custom", path=path, num_prompts=4, num_warmups=1, output_len=256)
    workload = make(spec, bpe)
    assert {r.output_tokens for r in workload.requests} == {256}
    assert workload.repeated == 2


GOOD = '{"prompt": "fine", "output_tokens": 3}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "cut off', "line 2: Input data was truncated"),
        ('["prompt"]', "line 2: Expected `object`, got `array`"),
        ('{"text": "x"}', "line 2: Object missing required field `prompt`"),
        ('{"prompt": 5}', "line 2: Expected `str | array`, got `int` - at `$.prompt`"),
        ('{"prompt": ""}', "line 2: the prompt is empty"),
        ('{"prompt": "x"}', "--custom-output-len"),
        ('{"prompt": "x", "output_tokens": 0}', "must be at least 1"),
        (
            '{"prompt": "x", "output_tokens": "many"}',
            "line 2: Expected `int | null`, got `str`",
        ),
    ],
)
def test_a_bad_line_is_named(bpe: Tokenizer, tmp_path: Path, line: str, says: str) -> None:
    path = custom(tmp_path, GOOD, line)
    with pytest.raises(WorkloadError) as error:
        make(WorkloadSpec("custom", path=path), bpe)
    assert says in str(error.value) and f"{path}, line 2" in str(error.value)


@pytest.mark.parametrize("dataset", ["sharegpt", "custom"])
def test_a_file_that_cannot_be_read_is_one_sentence(
    bpe: Tokenizer, tmp_path: Path, dataset: str
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for path, says in (
        (None, "--dataset-path"),
        (str(tmp_path / "none"), f"There is no file {tmp_path / 'none'}"),
        (str(tmp_path), "is a folder"),
        (str(empty), "is empty"),
    ):
        with pytest.raises(WorkloadError) as error:
            make(WorkloadSpec(dataset, path=path), bpe)
        assert says in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"conversations": [', "is not ShareGPT's JSON"),
        ('{"prompt": "x"}\n', "Expected `array`, got `object`"),
        ('[{"conversations": [{"value": 5}]}]', "$[0].conversations[0].value"),
        (json.dumps([conversation("Hi", "Ho")]), "None of the 1 conversations"),
        ("[]", "None of the 0 conversations"),
    ],
)
def test_a_file_that_is_not_sharegpt_says_so(
    bpe: Tokenizer, tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(content)
    with pytest.raises(WorkloadError) as error:
        make(WorkloadSpec("sharegpt", path=str(path)), bpe)
    assert says in str(error.value) and str(path) in str(error.value)


def test_sharegpt_without_a_file_says_what_to_fetch_and_what_needs_none(
    bpe: Tokenizer,
) -> None:
    with pytest.raises(WorkloadError) as error:
        make(WorkloadSpec("sharegpt"), bpe)
    for part in (
        "ShareGPT_V3_unfiltered_cleaned_split.json",
        "anon8231489123",
        "sharegpt-shaped",
    ):
        assert part in str(error.value)
    assert "sharegpt-shaped" in DATASETS


# --- tokenizers ---


def test_a_tokenizer_is_a_file_or_its_folder_and_its_training_limits_are_lifted(
    folder: Path,
) -> None:
    by_file, by_folder = (
        choose(str(p), None, "x") for p in (folder / "tokenizer.json", folder)
    )
    text = words(1, 200)
    assert by_file.encode(text) == by_folder.encode(text)
    assert by_file.count(text) > 200
    assert by_file.decode(by_file.encode(text)) == text
    assert by_file.name == str(folder / "tokenizer.json")


def test_a_tokenizer_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "tokenizer.model").write_bytes(b"\x0a")
    (tmp_path / "broken.json").write_text('{"model": 1}')
    for flag, says in (
        (tmp_path, "has no tokenizer.json. Give the folder of the model"),
        (tmp_path / "old", "only a SentencePiece tokenizer.model"),
        (tmp_path / "old" / "tokenizer.model", "only a SentencePiece tokenizer.model"),
        (tmp_path / "broken.json", "is not a readable tokenizer.json"),
        (tmp_path / "none.json", "There is no file or folder"),
        ("not a name!", "nor a possible name on the Hugging Face Hub"),
    ):
        with pytest.raises(WorkloadError) as error:
            choose(str(flag), None, "x")
        assert says in str(error.value)


Answer = Callable[[str, Any], tuple[int, Any]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body leave in two writes: else the client's delayed acknowledgement costs 40 ms a call.
    disable_nagle_algorithm = True
    answer: Answer
    calls: list[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.calls.append(self.path)
        status, answer = type(self).answer(self.path, body)
        self.reply(status, json.dumps(answer).encode())

    def reply(
        self, status: int, payload: bytes, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(payload)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        pass


Serve = Callable[[Answer], tuple[Client, list[str]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server with these answers; gives a client of it, and the calls it has seen."""
    running: list[tuple[ThreadingHTTPServer, Client]] = []

    def start(answer: Answer) -> tuple[Client, list[str]]:
        handler = type(
            "Answering", (Handler,), {"answer": staticmethod(answer), "calls": []}
        )
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        client = Client(Url(f"127.0.0.1:{server.server_port}"), {})
        running.append((server, client))
        return client, handler.calls

    yield start
    for server, client in running:
        client.close()
        server.shutdown()
        server.server_close()


def dialects(folder: Path) -> dict[str, Answer]:
    """The servers' own ways, with the traps that the real ones set."""
    bpe = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    bpe.no_truncation()

    def detokenize(ids: list[int]) -> str:
        return bpe.decode(ids, skip_special_tokens=False)  # a BOS comes out as text

    def vllm(path: str, body: Any) -> tuple[int, Any]:
        if body.get("model") != "tiny":
            return 404, {"error": {"message": "The model does not exist."}}
        if path == "/detokenize":
            return 200, {"prompt": detokenize(body["tokens"])}
        ids = bpe.encode(body["prompt"], add_special_tokens=body["add_special_tokens"]).ids
        return 200, {"count": len(ids), "max_model_len": 2048, "tokens": ids}

    def sglang(path: str, body: Any) -> tuple[int, Any]:
        status, answer = vllm(path, body)
        return status, {"text": answer["prompt"]} if "prompt" in answer else answer

    def llama_cpp(path: str, body: Any) -> tuple[int, Any]:
        if path == "/detokenize":
            # as SentencePiece models come out
            return 200, {"content": " " + detokenize(body["tokens"])}
        if "content" not in body:
            return 200, {"tokens": []}
        return 200, {
            "tokens": bpe.encode(
                body["content"], add_special_tokens=body["add_special"]
            ).ids
        }

    def tgi(path: str, body: Any) -> tuple[int, Any]:
        if path != "/tokenize":
            return 404, ""
        if not body.get("inputs"):
            return (
                422,
                "Failed to deserialize the JSON body into the target type: missing field `inputs`",
            )
        text = body["inputs"]
        encoding = bpe.encode(text)
        tokens = []
        for i, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            # offsets are trimmed
            start += len(text[start:stop]) - len(text[start:stop].lstrip())
            tokens.append({"id": i, "text": text[start:stop], "start": start, "stop": stop})
        return 200, tokens

    return {"vllm": vllm, "sglang": sglang, "llama.cpp": llama_cpp, "tgi": tgi}


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama.cpp", "tgi"])
def test_prompts_counted_by_the_server_are_exact_in_three_calls_each(
    folder: Path, bpe: Tokenizer, serve: Serve, dialect: str
) -> None:
    client, calls = serve(dialects(folder)[dialect])
    tokenizer = choose(None, client, "tiny")
    workload = make(
        WorkloadSpec("random", num_prompts=60, input_len=64, prefix_len=10), tokenizer
    )
    assert workload.counted_by == "server" and workload.tokenizer == "tiny"
    assert counts(workload) == [74] * 60
    assert [bpe.count(t) for t in texts(workload)] == [74] * 60
    assert all(BOS not in t and t == t.strip() for t in texts(workload))
    # prompts differ right after BOS and prefix
    assert len({bpe.encode(t)[12] for t in texts(workload)}) > 30
    assert len(calls) <= 3.5 * 60 + 10


def test_local_and_server_tokenizers_make_the_same_prompts(
    folder: Path, bpe: Tokenizer, serve: Serve
) -> None:
    client, _ = serve(dialects(folder)["vllm"])
    spec = WorkloadSpec("random", num_prompts=20, input_len=50, range_ratio_input=0.3)
    assert make(spec, choose(None, client, "tiny")).sha256 == make(spec, bpe).sha256


def test_the_flag_is_stronger_than_the_server(folder: Path, serve: Serve) -> None:
    client, calls = serve(dialects(folder)["vllm"])
    assert choose(str(folder), client, "tiny").counted_by == "tokenizer"
    assert calls == []


@pytest.mark.parametrize("status", [404, 405, 422, 500])
def test_a_server_that_cannot_tokenize_leaves_a_guess(serve: Serve, status: int) -> None:
    client, _ = serve(lambda path, body: (status, {"detail": "no"}))
    assert choose(None, client, "tiny").counted_by == "approximate"


def test_tgi_without_offsets_leaves_a_guess(serve: Serve) -> None:
    def slow(path: str, body: Any) -> tuple[int, Any]:
        return (
            (200, [{"id": 5, "text": "", "start": 0, "stop": 0}])
            if "inputs" in body
            else (422, "")
        )

    client, _ = serve(slow)
    assert choose(None, client, "tiny").counted_by == "approximate"


def test_a_server_that_stops_tokenizing_is_named(folder: Path, serve: Serve) -> None:
    vllm = dialects(folder)["vllm"]
    client, _ = serve(
        lambda path, body: (500, "oh no") if path == "/detokenize" else vllm(path, body)
    )
    with pytest.raises(
        TargetError, match=r"/detokenize answered with HTTP 500: 'oh no'.*--tokenizer"
    ):
        make(
            WorkloadSpec("random", num_prompts=1, input_len=9), choose(None, client, "tiny")
        )


HUB_SCRIPT = """
import sys
from dyno.errors import WorkloadError
from dyno.workload.tokenizer import choose
for name in sys.argv[1:]:
    try:
        print(choose(name, None, "x").count("hello"))
    except WorkloadError as e:
        print(e)
"""


def hub(cache: Path, environment: dict[str, str], *names: str) -> list[str]:
    """In a process of its own: huggingface_hub reads its settings once, when it is imported."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    clean |= {"HF_HOME": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)} | environment
    command = [sys.executable, "-c", HUB_SCRIPT, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_hub_gives_a_tokenizer_or_advice_on_each_refusal(
    folder: Path, bpe: Tokenizer, tmp_path: Path
) -> None:
    class Hub(Handler):
        def do_GET(self) -> None:
            repository = self.path.split("/")[2]
            refusals = {"gated": (403, "GatedRepo"), "bare": (404, "EntryNotFound")}
            status, code = refusals.get(repository, (404, "RepoNotFound"))
            headers = (("X-Error-Code", code), ("X-Repo-Commit", "0" * 40), ("ETag", '"1"'))
            if repository == "good":
                self.reply(200, (folder / "tokenizer.json").read_bytes(), headers[1:])
            else:
                self.reply(status, b"", headers)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    online = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    names = ("org/good", "org/gated", "org/bare", "org/missing")
    good, gated, bare, missing = hub(tmp_path, online, *names)
    server.shutdown()
    server.server_close()
    cached, offline = hub(tmp_path, {"HF_HUB_OFFLINE": "1"}, "org/good", "org/any")
    assert good == cached == str(bpe.count("hello"))
    assert (
        "gated. Accept its terms at https://huggingface.co/org/gated and set HF_TOKEN"
        in gated
    )
    assert "org/bare has no tokenizer.json" in bare
    assert (
        "'org/missing' is neither a file or folder here nor a model on the Hugging Face Hub"
        in missing
    )
    assert "the Hugging Face Hub can't be reached. Go online once" in offline


def test_importing_workloads_does_not_load_tokenizers() -> None:
    code = "import sys, dyno.workload; print({'tokenizers', 'huggingface_hub'} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "set()", done.stderr
