"""`vllm bench serve` and `dyno bench serve` with the same words, against one server that records what it is sent.

`make test-engines`. vLLM's client needs packages that its CPU build lacks (pandas, datasets): they are put beside it,
into $DYNO_HOME/test-environments, on first use.
"""

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import parity
from dyno.cli.main import main
from dyno.engines import environment
from dyno.engines.model import FOLDER
from dyno.workload.tokenizer import local
from test_real_engines import installed

pytestmark = pytest.mark.engines

DRIVER = Path(__file__).with_name("vllm_client.py")
EXTRAS = (
    "pandas", "datasets", "pyarrow", "dill", "multiprocess", "xxhash", "python-dateutil", "six", "tzdata", "pytz",
)  # fmt: skip
COUNT = 12  # prompts of a case
_EVENT = 'data: {"choices": [{"index": 0, "text": " a", "delta": {"content": " a"}, "finish_reason": %s}]}\n\n'
_EVENTS = (
    _EVENT % "null" * 2
    + _EVENT % '"length"'
    + 'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}\n\n'
    "data: [DONE]\n\n"
).encode()
# counters of speculative decoding, by the number of requests so far
_METRICS = """\
vllm:num_requests_running{{engine="0"}} 0
vllm:spec_decode_num_drafts_total{{engine="0"}} {0}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {3}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {2}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {0}
"""


class Sent(NamedTuple):
    """A request as the server got it."""

    path: str
    body: dict[str, Any]
    id: str | None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Recorder"

    def do_GET(self) -> None:
        if self.path == "/metrics" and self.server.drafts:
            counts = [n * self.server.answered for n in range(4)]
            counts[0] = self.server.answered
            self._answer(200, _METRICS.format(*counts).encode(), "text/plain")
            return
        known = self.path == "/v1/models"
        models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        self._answer(200 if known else 404, json.dumps(models if known else {}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("completions"):
            self._answer(404, b"{}")
            return
        self.server.answered += 1
        self.server.sent.append(Sent(self.path, body, self.headers.get("x-request-id")))
        self._answer(200, _EVENTS, "text/event-stream")

    def _answer(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


class Recorder(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sent: list[Sent] = []
        self.answered = 0
        self.drafts = False  # it has metrics, of an engine that drafts
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self) -> list[Sent]:
        sent, self.sent = self.sent, []
        return sent


class Case(NamedTuple):
    words: str
    generated: bool = False  # fields and lengths are compared, not texts
    # Of generated prompts: tokens by which vLLM's may miss their length, and fields that only dyno sends. The page
    # docs/reference/vllm-bench.md says why.
    within: int = 0
    own_fields: tuple[str, ...] = ()
    unordered: bool = False
    requests: int = COUNT
    warmups: int = 0  # of the requests: those of the two clients have other prompts
    apart: tuple[str, ...] = ()  # fields that both send, drawn by other generators


# {…}: files that `files` writes.
CUSTOM = "--dataset-name custom --dataset-path {custom}"
CHAT = "--backend openai-chat --endpoint /v1/chat/completions"
CASES = {
    "custom": Case(f"{CUSTOM} --custom-output-len 7 --seed 3"),
    "custom, lengths of the file": Case(f"{CUSTOM} --custom-output-len -1 --seed 4"),
    "custom, oversampled": Case(f"{CUSTOM} --custom-output-len 7 --num-prompts 30 --seed 3", requests=30),
    "custom, not oversampled": Case(f"{CUSTOM} --num-prompts 30 --no-oversample --seed 3", requests=20),
    "custom, in the file's order": Case(f"{CUSTOM} --disable-shuffle"),
    "custom, plain": Case(f"{CUSTOM} --skip-chat-template --seed 3"),
    "custom, with variables of the template": Case(f'{CUSTOM} --chat-template-kwargs {{{{"mood":"merry"}}}}'),
    "custom, by chat": Case(f"{CUSTOM} --skip-chat-template {CHAT}"),
    "custom, with ids": Case(f"{CUSTOM} --request-id-prefix run7-"),
    "custom, with adapters": Case(f"{CUSTOM} --lora-modules a b c --lora-assignment round-robin"),
    "custom, all of the file": Case(f"{CUSTOM} --num-prompts -1 --seed 3", requests=20),
    "custom, 0 prompts": Case(f"{CUSTOM} --num-prompts 0 --disable-shuffle", requests=20),
    "custom, with warmups": Case(f"{CUSTOM} --num-warmups 3 --disable-shuffle", requests=COUNT + 3, warmups=3),
    "custom, a name of its own": Case(f"{CUSTOM} --served-model-name other --disable-shuffle"),
    "custom, a general length": Case(f"{CUSTOM} --output-len 11 --input-len 9 --disable-shuffle"),
    "custom, a body that goes first": Case(f'{CUSTOM} --temperature 0.5 --extra-body {{{{"temperature":0.1}}}}'),
    "custom, adapters by chance": Case(f"{CUSTOM} --lora-modules a b c", apart=("model",)),
    "custom, sampling by chat": Case(
        f"{CUSTOM} --skip-chat-template {CHAT} --temperature 0 --top-k 3 --logprobs 2 --ignore-eos",
        own_fields=("logprobs", "top_logprobs"),
    ),
    "custom, sampling": Case(
        f"{CUSTOM} --temperature 0.5 --top-p 0.9 --top-k 3 --min-p 0.1 --frequency-penalty 0.2 --presence-penalty 0.3 "
        "--repetition-penalty 1.1 --logprobs 2 --ignore-eos --extra-body {{\"min_tokens\":1}}"
    ),
    "sharegpt": Case("--dataset-name sharegpt --dataset-path {sharegpt} --seed 5"),
    "sharegpt, of one length": Case(
        "--dataset-name sharegpt --dataset-path {sharegpt} --sharegpt-output-len 9 --disable-shuffle"
    ),
    "sharegpt, oversampled": Case(
        "--dataset-name sharegpt --dataset-path {sharegpt} --num-prompts 40 --seed 5", requests=40
    ),
    "sharegpt, not oversampled": Case(
        "--dataset-name sharegpt --dataset-path {sharegpt} --num-prompts 40 --no-oversample", requests=29
    ),
    "sharegpt, of one short length": Case(
        "--dataset-name sharegpt --dataset-path {sharegpt} --sharegpt-output-len 1 --num-prompts 40 --disable-shuffle "
        "--no-oversample", requests=31
    ),
    "sharegpt, by chat": Case(f"--dataset-name sharegpt --dataset-path {{sharegpt}} {CHAT}"),
    "spec_bench": Case("--dataset-name spec_bench --dataset-path {spec}"),
    "spec_bench, a category": Case(
        "--dataset-name spec_bench --dataset-path {spec} --spec-bench-category math --spec-bench-output-len 8"
    ),
    "spec_bench, always with the template": Case(
        "--dataset-name spec_bench --dataset-path {spec} --skip-chat-template --disable-shuffle"
    ),
    "speed_bench": Case("--dataset-name speed_bench --dataset-path {speed}"),
    "speed_bench, a file and a category": Case(
        "--dataset-name speed_bench --dataset-path {speed} --speed-bench-dataset-subset throughput_1k "
        "--speed-bench-category coding --speed-bench-output-len 8 --skip-chat-template"
    ),
    "mt-bench": Case("--dataset-name hf --dataset-path {mt_bench} --hf-name philschmid/mt-bench --disable-shuffle"),
    "mt-bench, with another length": Case(
        "--dataset-name hf --dataset-path {mt_bench} --hf-name philschmid/mt-bench --disable-shuffle --output-len 9"
    ),
    "gsm8k": Case("--dataset-name hf --dataset-path openai/gsm8k --disable-shuffle --num-prompts 5", requests=5),
    "gsm8k, to train with": Case(
        "--dataset-name hf --dataset-path openai/gsm8k --disable-shuffle --num-prompts 5 --hf-split train "
        "--skip-chat-template", requests=5,
    ),
    "humaneval": Case("--dataset-name hf --dataset-path openai/openai_humaneval --disable-shuffle"),
    "instructcoder": Case("--dataset-name hf --dataset-path likaixin/InstructCoder --disable-shuffle"),
    "instructcoder, a copy": Case(
        "--dataset-name hf --dataset-path {edits} --hf-name likaixin/InstructCoder --disable-shuffle"
    ),
    "vicuna": Case("--dataset-name hf --dataset-path Aeala/ShareGPT_Vicuna_unfiltered --hf-split train "
                   f"--disable-shuffle --num-prompts 40 --no-oversample {CHAT}", requests=29),
    "aimo": Case("--dataset-name hf --dataset-path AI-MO/aimo-validation-aime --disable-shuffle"),
    "mlperf": Case("--dataset-name hf --dataset-path mgoin/mlperf-inference-llama2-data --disable-shuffle"),
    "zeta": Case("--dataset-name hf --dataset-path zed-industries/zeta --disable-shuffle"),
    "blazedit": Case("--dataset-name hf --dataset-path vdaita/edit_5k_char --disable-shuffle"),
    "blazedit, small edits": Case(
        "--dataset-name hf --dataset-path vdaita/edit_5k_char --disable-shuffle --blazedit-max-distance 0.3 "
        "--hf-output-len 5 --no-oversample", requests=7,
    ),
    "bfcl": Case(f"--dataset-name hf --dataset-path gorilla-llm/Berkeley-Function-Calling-Leaderboard {CHAT} --seed 2"),
    "bfcl, a category": Case(
        f"--dataset-name hf --dataset-path gorilla-llm/Berkeley-Function-Calling-Leaderboard {CHAT} "
        "--bfcl-categories multiple --hf-output-len 5 --disable-shuffle"
    ),
    "random": Case("--dataset-name random --random-input-len 40 --random-output-len 9 --seed 6", generated=True),
    "random, lengths in a range": Case(
        "--random-input-len 60 --random-output-len 20 --random-range-ratio 0.4 --random-prefix-len 11 --seed 6",
        generated=True, within=3,
    ),
    "random, prompts and outputs in ranges": Case(
        '--random-input-len 60 --random-output-len 20 --random-range-ratio {{"input":0.2,"output":0.5}} --seed 6',
        generated=True, within=3,
    ),
    "random, general lengths": Case("--input-len 30 --output-len 4", generated=True, within=3),
    "random, by chat": Case(f"--random-input-len 40 --random-output-len 9 {CHAT}", generated=True),
    "prefix_repetition": Case(
        "--dataset-name prefix_repetition --prefix-repetition-prefix-len 20 --prefix-repetition-suffix-len 10 "
        "--prefix-repetition-num-prefixes 3 --prefix-repetition-output-len 6", generated=True, within=3,
    ),
    "timed_trace": Case(
        "--dataset-name timed_trace --dataset-path {trace} --timed-trace-sec-multiplier 0.001", generated=True,
    ),
    "burstgpt": Case(
        "--dataset-name burstgpt --dataset-path {burst}", generated=True, within=3, own_fields=("ignore_eos",),
        unordered=True,
    ),
}  # fmt: skip


# Result files: name → words. {folder}: each client's own.
SAVED = {
    "a concurrency": "--save-result --max-concurrency 4",
    "a rate": "--save-result --request-rate 200 --burstiness 0.5 --label mine --save-detailed",
    "a rate and a concurrency": "--save-result --request-rate 200 --max-concurrency 2 --percentile-metrics "
    "ttft,tpot,itl,e2el,client_queue_time,e2el_including_client_queue --metric-percentiles 50,99.9",
    "a ramp": "--save-result --ramp-up-strategy linear --ramp-up-start-rps 30 --ramp-up-end-rps 60",
    "limits and facts": "--save-result --result-filename own.json --goodput ttft:500 e2el:2000 --metadata "
    "version=1 tp=2",
    "a file that grows": "--append-result --result-filename all.json",
    "probes": "--save-result --request-rate 40 --probe-request-rate 50",
}
# Keys of vLLM's file that dyno's lacks, for the reason that docs/reference/vllm-bench.md gives.
LACKING = {"rtfx", "spec_decode_per_position_acceptance_rates"}


def _rows(path: Path, rows: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which both clients run."""
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def files(here: Path) -> dict[str, str]:
    """Files of every data set, small and of the published shape."""
    kinds = ("math", "writing", "coding")
    turns = [f"Question {i}: what follows {i}, and why is that so?" for i in range(20)]
    sharegpt = [
        {
            "id": str(i),
            "conversations": [
                {"from": "human", "value": f"Tell me about the number {i}, at some length. " * (i % 5 + 1)},
                {"from": "gpt", "value": "It comes after another one, as all of them do. " * (i % 7 + 1)},
            ][: 1 if i == 4 else 2],
        }
        for i in range(30)
    ]  # fmt: skip
    # vLLM leaves out what is too short or too long; a short answer counts only where its length is meant
    for prompt, answer in (
        ("Hi", "A longer answer than that."),
        ("What is it, then?", "No"),
        ("word " * 1100, "A short one, as it should be."),
        ("word " * 900, "word " * 1200),
    ):
        turns_of = [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]
        sharegpt.append({"id": "limits", "conversations": turns_of})
    speed = here / "speed"
    for subset in ("qualitative", "throughput_1k"):
        messages = [
            {"messages": [{"role": "user", "content": f"{subset}: {t}"}], "category": kinds[i % 3]}
            for i, t in enumerate(turns)
        ]  # fmt: skip
        _rows(speed / f"{subset}.jsonl", messages)
    code = [
        {"code": f"def f{i}():\n    return {i}\n", "change_request": f"return {i + 1} {{x}}", "norm_distance": i / 20}
        for i in range(20)
    ]  # fmt: skip
    _rows(here / "vdaita/edit_5k_char/train.jsonl", code)
    _hub_sets(here, turns, sharegpt)
    trace = [
        {"timestamp": 20 * i, "input_length": 16 * (i % 3 + 1), "output_length": 3 + i,
         "hash_ids": list(range(i, i + i % 3 + 1))}
        for i in range(COUNT)
    ]  # fmt: skip
    burst = here / "burst.csv"
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        + "".join(
            f"{i / 50},{'ChatGPT' if i % 4 == 0 else 'GPT-4'},{20 + i},{3 + i},{23 + 2 * i},API log\n"
            for i in range(16)
        )
    )
    _bfcl(here / "hub")
    return {
        "custom": _rows(
            here / "custom.jsonl",
            [{"prompt": t, "output_tokens": 3 + i} for i, t in enumerate(turns)],
        ),
        "sharegpt": _document(here / "sharegpt.json", sharegpt),
        "spec": _rows(
            here / "question.jsonl",
            [
                {"question_id": i, "category": kinds[i % 3], "turns": [t, "And then?"]}
                for i, t in enumerate(turns)
            ],
        ),
        "speed": str(speed),
        "mt_bench": str(_folder(here / "mt-bench", [{"turns": [t]} for t in turns])),
        "edits": str(here / "likaixin/InstructCoder"),
        "trace": _rows(here / "trace.jsonl", trace),
        "burst": str(burst),
    }


def _hub_sets(here: Path, turns: list[str], sharegpt: list[Any]) -> None:
    """Write small data sets in the columns and folders of those on the Hub."""
    answer = "It follows from what was said, and so it is {}."
    numbered = [(i, turn, answer.format(i)) for i, turn in enumerate(turns)]
    for split in ("train", "test"):
        rows = [{"question": f"{split}: {q}", "answer": a} for _, q, a in numbered]
        _rows(here / f"openai/gsm8k/main/{split}-00000-of-00001.jsonl", rows)
    (here / "openai/gsm8k/README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n"
        "  - split: test\n    path: main/test-*\n---\n"
    )
    code = [
        {
            "task_id": f"HumanEval/{i}",
            "prompt": f"def f{i}(x):",
            "canonical_solution": "pass",
        }
        for i in range(20)
    ]
    _rows(here / "openai/openai_humaneval/test.jsonl", code)
    edits = [
        {"instruction": q, "input": f"x = {i}", "output": f"x = {i + 1}"}
        for i, q, _ in numbered
    ]
    _rows(here / "likaixin/InstructCoder/train.jsonl", edits)
    _rows(here / "Aeala/ShareGPT_Vicuna_unfiltered/cleaned_split.jsonl", sharegpt)
    problems = [
        {"id": i, "problem": q, "solution": a, "answer": str(i)} for i, q, a in numbered
    ]
    _rows(here / "AI-MO/aimo-validation-aime/train.jsonl", problems)
    asked = [
        {"system_prompt": f"Be {i}.", "question": q, "output": a} for i, q, a in numbered
    ]
    _rows(here / "mgoin/mlperf-inference-llama2-data/train.jsonl", asked)
    marked = "<|editable_region_start|>\nx = {}\n<|editable_region_end|>"
    zeta = [
        {"events": f"User edited line {i}.", "input": f"x = {i}", "output": "# before\n" + marked.format(i)}
        for i in range(20)
    ]  # fmt: skip
    _rows(here / "zed-industries/zeta/train.jsonl", zeta)


def _document(path: Path, value: Any) -> str:
    path.write_text(json.dumps(value))
    return str(path)


def _folder(path: Path, rows: list[Any]) -> Path:
    _rows(path / "train.jsonl", rows)
    return path


def _bfcl(hub: Path) -> None:
    """Put a small BFCL into a cache of the Hub."""
    repo = hub / "datasets--gorilla-llm--Berkeley-Function-Calling-Leaderboard"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text("0" * 40)
    for category in ("simple", "live_simple", "multiple"):
        rows = [
            {
                "id": f"{category}_{i}",
                "question": [
                    [{"role": "user", "content": f"{category}: call number {i}."}]
                ],
                "function": [
                    {
                        "name": f"f{i}",
                        "description": "Calls.",
                        "parameters": {
                            "type": "dict",
                            "properties": {
                                "x": {"type": "float"},
                                "all": {"type": "tuple", "items": {"type": "any"}},
                            },
                            "required": ["x"],
                        },
                    }
                ],
            }
            for i in range(9)
        ]
        _rows(repo / "snapshots" / ("0" * 40) / f"BFCL_v3_{category}.json", rows)


@pytest.fixture(scope="module")
def tokenizer(here: Path) -> Path:
    """A folder with a tokenizer and a template that has a variable."""
    folder = here / "tokenizer"
    folder.mkdir()
    for name in ("tokenizer.json", "config.json"):
        (folder / name).write_bytes((FOLDER / name).read_bytes())
    config = json.loads((FOLDER / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ mood | default('calm') }}: " + config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    server = Recorder()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    installed("vllm")
    found = environment.find("vllm")
    assert found is not None
    return Path(found.python)


@pytest.fixture(scope="module")
def extras(vllm_python: Path) -> Path:
    home = Path(os.environ.get("DYNO_HOME") or "~/.local/share/dyno").expanduser()
    folder = home / "test-environments" / "vllm-client-extras"
    if not (folder / "whole").exists():
        command = [
            vllm_python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            folder,
            *EXTRAS,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (folder / "whole").touch()
    return folder  # fmt: skip


Words = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def words_of(files: dict[str, str], tokenizer: Path, recorder: Recorder) -> Words:
    def words(name: str) -> list[str]:
        common = f"--base-url {recorder.url} --model m --tokenizer {tokenizer} --disable-tqdm --max-concurrency 1"
        case = CASES[name].words
        count = "" if "--num-prompts" in case else f"--num-prompts {COUNT}"
        return f"{common} {case.format_map(files)} {count}".split()

    return words


@pytest.fixture(scope="module")
def of_vllm(
    vllm_python: Path, extras: Path, recorder: Recorder, words_of: Words, here: Path
) -> dict[str, list[Sent]]:
    """What vLLM's client sends in each case. One process for all: it takes long to import."""
    jobs = here / "jobs.json"
    words = [words_of(name) for name in CASES]
    words += [
        saving(name, "vllm", recorder, here) for name in SAVED for _ in range(times(name))
    ]
    jobs.write_text(json.dumps(words))
    env = {
        **os.environ,
        "PYTHONPATH": str(extras),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(here / "hub"),
        "HF_DATASETS_CACHE": str(here / "datasets"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    recorder.take()
    sent = {}
    with (
        (here / "vllm.log").open("w") as log,
        subprocess.Popen(
            [vllm_python, DRIVER, jobs],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
            cwd=here,
        ) as driver,
    ):
        assert driver.stdout is not None
        for name, line in zip(CASES, driver.stdout, strict=False):
            error = json.loads(line)
            assert not error, f"{name}: {error}"
            sent[name] = recorder.take()
            recorder.drafts = len(sent) == len(CASES)
        for line in driver.stdout:
            assert not json.loads(line), json.loads(line)
        driver.wait(60)
    recorder.drafts = False
    assert list(sent) == list(CASES), (here / "vllm.log").read_text()[-2000:]
    return sent


def times(name: str) -> int:
    return 2 if "--append-result" in SAVED[name] else 1


def saving(name: str, client: str, recorder: Recorder, here: Path) -> list[str]:
    """Return the words of a command that writes a result file."""
    common = f"--base-url {recorder.url} --model m/model --tokenizer {here / 'tokenizer'} --disable-tqdm"
    lengths = "--random-input-len 20 --random-output-len 3 --num-prompts 24"
    folder = here / "saved" / client / name.replace(" ", "-")
    return f"{common} {lengths} {SAVED[name]} --result-dir {folder}".split()


def as_dynos(sent: Sent, given: list[str]) -> Sent:
    """Return a request of vLLM's client without what docs/reference/vllm-bench.md says it has more."""
    body = dict(sent.body)
    if "--repetition-penalty" not in given and body.get("repetition_penalty") == 1.0:
        del body["repetition_penalty"]
    if body.get("logprobs", 0) is None:
        del body["logprobs"]
    if "messages" in body:
        body["messages"] = [{**m, "content": _text(m["content"])} for m in body["messages"]]
    return sent._replace(body=body)


def _text(content: Any) -> Any:
    if isinstance(content, list) and len(content) == 1:
        return content[0]["text"]
    return content


def without_text(sent: Sent, count: Callable[[str], int]) -> Sent:
    """Return a request with the number of its prompt's tokens in place of its text or ids."""
    body = dict(sent.body)
    if "messages" in body:
        (message,) = body.pop("messages")
        prompt = message["content"]
    else:
        prompt = body.pop("prompt")
    tokens = len(prompt) if isinstance(prompt, list) else count(prompt)
    return sent._replace(body={**body, "tokens": tokens})


@pytest.mark.parametrize("name", CASES)
def test_both_clients_send_the_same_requests(
    name: str,
    of_vllm: dict[str, list[Sent]],
    words_of: Words,
    recorder: Recorder,
    here: Path,
    tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, given = CASES[name], words_of(name)
    monkeypatch.chdir(here)
    monkeypatch.setenv("HF_HUB_CACHE", str(here / "hub"))
    recorder.take()
    more = "--no-correctness-check --ready-check-timeout-sec 0 --runs runs --allow-void"
    assert main(["bench", "serve", *given, *more.split()]) == 0
    own = recorder.take()
    theirs = [as_dynos(sent, given) for sent in of_vllm[name]]
    if "--request-id-prefix" not in given:
        theirs = [sent._replace(id=None) for sent in theirs]
    if case.generated:
        count = local(str(tokenizer)).count
        own, theirs = ([without_text(s, count) for s in each] for each in (own, theirs))
    if case.unordered:
        own, theirs = (
            sorted(each, key=lambda sent: int(sent.body["max_tokens"]))
            for each in (own, theirs)
        )
    assert len(own) == len(theirs) == case.requests
    assert [set(sent.body) for sent in own[: case.warmups]] == [
        set(sent.body) for sent in theirs[: case.warmups]
    ]
    own, theirs = own[case.warmups :], theirs[case.warmups :]
    for field in case.apart:
        drawn = [{sent.body.pop(field) for sent in each} for each in (own, theirs)]
        assert drawn[0] == drawn[1]
    if case.within:
        pairs = [
            (a.body.pop("tokens"), b.body.pop("tokens"))
            for a, b in zip(own, theirs, strict=True)
        ]
        assert all(abs(a - b) <= case.within for a, b in pairs)
    for field in case.own_fields:
        assert all(sent.body.pop(field) for sent in own)
    assert own == theirs


def undated(folder: Path) -> set[str]:
    """Return the names of a folder's files, without date and time."""
    return {re.sub(r"\d{8}-\d{6}", "DATE", path.name) for path in folder.iterdir()}


def _unknown(value: Any) -> bool:
    return isinstance(value, list) and all(v is None for v in value)


def shape(value: Any) -> Any:
    """Return what kind of value a key has, and how many a list has. Times that a busy client doesn't know are null."""
    if isinstance(value, list):
        known = [v for v in value if v is not None and not _unknown(v)]
        return [len(value), {str(shape(v)) for v in known}]
    return "number" if isinstance(value, int | float) else type(value).__name__


@pytest.mark.parametrize("name", SAVED)
def test_result_files_have_vllm_s_names_keys_and_kinds_of_values(
    name: str,
    of_vllm: dict[str, list[Sent]],
    recorder: Recorder,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(here)
    recorder.drafts = True
    more = "--no-correctness-check --ready-check-timeout-sec 0 --runs runs --allow-void"
    for _ in range(times(name)):
        assert (
            main(["bench", "serve", *saving(name, "dyno", recorder, here), *more.split()])
            == 0
        )
    recorder.drafts = False
    folders = [
        here / "saved" / client / name.replace(" ", "-") for client in ("vllm", "dyno")
    ]
    assert undated(folders[0]) == undated(folders[1])
    files = [sorted(folder.glob("*.json")) for folder in folders]
    for theirs, own in zip(*files, strict=True):
        lines = [
            [json.loads(x) for x in path.read_text().splitlines()] for path in (theirs, own)
        ]
        assert len(lines[0]) == len(lines[1]) == times(name)
        their, mine = lines[0][-1], lines[1][-1]
        assert {*their} - {*mine} == LACKING & {*their}
        latencies = {key for key in mine if key.endswith("_ms")}
        assert {*mine} - {*their} - latencies == {"dyno"}
        # A latency is null where a busy client doesn't know it.
        kinds = [
            {
                k: shape(each[k])
                for k in their
                if k in mine and (k not in latencies or mine[k])
            }
            for each in (their, mine)
        ]
        assert kinds[0] == kinds[1]
        for key in ("num_prompts", "completed", "failed", "max_concurrency", "request_rate", "model_id", "label",
                    "backend", "tokenizer_id", "burstiness", "total_output_tokens", "input_lens", "output_lens",
                    "spec_decode_acceptance_rate", "spec_decode_acceptance_length", "version", "tp",
                    "ramp_up_strategy", "ramp_up_start_rps"):  # fmt: skip
            assert mine.get(key) == their.get(key), key


def test_vllm_s_flags_are_those_of_the_table(vllm_python: Path) -> None:
    found = environment.find("vllm")
    assert found is not None
    done = subprocess.run(
        [vllm_python, DRIVER, "flags"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads(done.stdout)
    if found.version not in parity.TABLE["versions"]:
        pytest.skip(f"the table has no vLLM {found.version}")
    for command in parity.COMMANDS:
        table = parity.TABLE[command]
        assert {*real[command]} == {*table}
        for flag, row in table.items():
            if flag != "--request-id-prefix":  # made anew each time
                assert str(real[command][flag]["default"]) == str(row["default"])
            assert sorted(real[command][flag]["choices"] or []) == sorted(
                row.get("choices", [])
            )
