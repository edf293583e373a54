"""The command line as a user meets it: real sockets, exit codes and what is printed."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import Scripted, answer
from dyno import http
from dyno.cli.main import main
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.engines.kinds import KINDS
from dyno.trial import session

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

CAPTURES = Path(__file__).parents[1] / "captures"


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


@pytest.fixture
def dyno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """A command in this process, which has loaded everything; `start` begins one in a process of its own."""

    def call(*words: str, **env: str) -> Done:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in env.items():
                patch.setenv(name, value)
            try:
                code: Any = main(words)
            except SystemExit as e:  # argparse's way
                code = e.code or 0
        done = Done(code, *capsys.readouterr())
        assert "Traceback" not in done.err, done.err
        return done

    return call


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    with Fake.start(
        FakeSpec(first_ms=5, gap_ms=1), tmp_path_factory.mktemp("fake") / "log"
    ) as running:
        yield running


def bench(fake: Fake, *more: str) -> list[str]:
    words = [
        "bench",
        "serve",
        "--base-url",
        fake.base_url,
        "--num-prompts",
        "12",
        "--max-concurrency",
        "3",
    ]
    return [*words, "--random-input-len", "20", "--random-output-len", "8", *more]


# ---- what it prints and writes ----


def test_the_printed_block_has_vllms_lines_in_vllms_order(
    dyno: Callable[..., Done], fake: Fake
) -> None:
    done = dyno(
        *bench(fake, "--percentile-metrics", "ttft,tpot,itl,e2el", "--goodput", "ttft:1000")
    )
    assert done.code == 0
    wanted = [
        re.split(r"\s{2,}", line)[0]
        for line in (CAPTURES / "vllm-0.32-serve.txt").read_text().splitlines()
    ]
    printed = [re.split(r"\s{2,}", line)[0] for line in done.out.splitlines()]
    ours = printed[: printed.index("-----------------------dyno-----------------------")]
    assert ours == wanted[:-1]
    assert "Verdict: " in done.out  # on a busy machine it may be doubtful, and rightly


def test_the_result_file_has_vllms_keys_and_everything_else_under_one(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    words = [
        "--save-result",
        "--save-detailed",
        "--result-dir",
        "out",
        "--metadata",
        "tp=4",
        "--label",
        "mine",
    ]
    assert (
        dyno(*bench(fake, *words, "--percentile-metrics", "ttft,tpot,itl,e2el")).code == 0
    )
    [file] = (tmp_path / "out").iterdir()
    assert re.fullmatch(r"mine-infqps-concurrency3-fake-\d{8}-\d{6}\.json", file.name)
    result = json.loads(file.read_text())
    vllm = json.loads((CAPTURES / "vllm-0.32-serve.json").read_text())
    assert set(vllm) - set(result) == {"rtfx"}  # of audio
    # of vLLM 0.32's on request
    queue = {f"{p}_client_queue_time_ms" for p in ("mean", "median", "std", "p99")}
    assert set(result) - set(vllm) == {"dyno", "tp"} | queue
    assert result["completed"] == 12
    assert result["failed"] == 0
    assert result["total_output_tokens"] == 12 * 8
    assert result["output_lens"] == [8] * 12
    assert all(len(gaps) == 7 for gaps in result["itls"])
    assert result["dyno"]["tokens_by"] == {"usage": 12}


def test_appended_results_are_one_object_a_line(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    for seed in ("1", "2"):
        assert (
            dyno(
                *bench(
                    fake, "--append-result", "--result-filename", "all.json", "--seed", seed
                )
            ).code
            == 0
        )
    lines = (tmp_path / "all.json").read_text().splitlines()
    assert [json.loads(line)["dyno"]["trial"]["workload"]["seed"] for line in lines] == [
        1,
        2,
    ]


def test_json_goes_to_stdout_alone(dyno: Callable[..., Done], fake: Fake) -> None:
    done = dyno(*bench(fake, "--json"))
    assert json.loads(done.out)["completed"] == 12


def test_the_same_seed_sends_the_same_prompts_and_another_seed_others(
    dyno: Callable[..., Done], fake: Fake
) -> None:
    hashes = [
        json.loads(dyno(*bench(fake, "--json", "--seed", seed)).out)["dyno"][
            "workload_sha256"
        ]
        for seed in "778"
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_flags_may_have_underscores(dyno: Callable[..., Done], fake: Fake) -> None:
    done = dyno(
        "bench",
        "serve",
        f"--base_url={fake.base_url}",
        "--num_prompts",
        "3",
        "--random_output_len=4",
    )
    assert done.code == 0


def test_every_backend_that_the_fake_speaks_measures(
    dyno: Callable[..., Done], fake: Fake
) -> None:
    for backend in ("openai", "vllm", "openai-chat", "tgi"):
        result = json.loads(dyno(*bench(fake, "--backend", backend, "--json")).out)
        assert (result["completed"], result["total_output_tokens"]) == (12, 96), backend


def test_tgi_takes_the_sampling_flags_that_it_would_refuse_as_they_stand(
    dyno: Callable[..., Done], fake: Fake
) -> None:
    for flags in (
        ["--temperature", "0", "--top-p", "0.9"],
        ["--temperature", "1", "--top-p", "1", "--top-k", "-1"],
    ):
        done = dyno(
            *bench(
                fake, "--backend", "tgi", "--json", "--extra-body", '{"seed": 7}', *flags
            )
        )
        assert json.loads(done.out)["completed"] == 12, done.said


def test_a_duration_ends_the_run_and_repeats_are_reported(
    dyno: Callable[..., Done], fake: Fake
) -> None:
    done = dyno(*bench(fake, "--duration", "1", "--json"))
    result = json.loads(done.out)
    assert result["completed"] > 12
    assert result["duration"] >= 0.9
    assert result["dyno"]["outcome"] == "complete"
    assert "load.repeated_prompts" in {f["code"] for f in result["dyno"]["findings"]}


def test_an_openai_base_url_with_v1_works(dyno: Callable[..., Done], fake: Fake) -> None:
    assert dyno(*bench(fake), "--base-url", fake.base_url + "/v1").code == 0


def test_several_base_urls_are_copies_of_one_server(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    with Fake.start(FakeSpec(first_ms=5, gap_ms=1), tmp_path / "log") as second:
        fake.log()  # what others left in it
        words = [
            "--base-url",
            fake.base_url,
            f"{second.base_url}/v1",
            "--json",
            "--no-correctness-check",
        ]
        done = dyno(*bench(fake), *words)
        sent = [len(server.log()["streams"]) for server in (fake, second)]
    result = json.loads(done.out)
    sent = [count - 1 for count in sent]  # without the test request to each
    assert result["completed"] == sum(sent) == 12
    assert min(sent) >= 4
    target = result["dyno"]["trial"]["target"]
    assert (target["base_url"], target["more_urls"]) == (fake.base_url, [second.base_url])
    reported = result["dyno"]["replicas"]
    assert [(r["url"], r["completed"]) for r in reported] == [
        (fake.base_url, sent[0]),
        (second.base_url, sent[1]),
    ]
    [run] = (tmp_path / "runs").iterdir()
    assert re.search(
        rf"Replicas: +2 *\n +Completed by each: +{sent[0]} / {sent[1]} *\n",
        dyno("runs", "show", str(run)).out,
    )
    assert "Replicas" not in dyno(*bench(fake, "--seed", "5")).out


@pytest.mark.parametrize(
    ("other", "what"),
    [({"model": "q8"}, "list of models"), ({"max_model_len": 4096}, "context")],
    ids=["model", "len"],
)
def test_servers_that_differ_are_not_copies(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path, other: dict[str, Any], what: str
) -> None:
    with Fake.start(FakeSpec(**other), tmp_path / "log") as second:
        done = dyno(*bench(fake), "--base-url", fake.base_url, second.base_url)
        assert second.log()["streams"] == []
    assert done.code == 1
    assert (
        f"{fake.base_url} and {second.base_url} are not copies of one server: the first has {what} "
        in done.err
    )


def test_a_host_that_is_given_is_the_only_one_sent(
    dyno: Callable[..., Done], scripted: Callable[..., Scripted]
) -> None:
    heads = []

    def talk(sock: socket.socket, _: int) -> None:
        while asked := sock.recv(65536):
            if asked.startswith(b"POST /v1/completions"):
                heads.append(asked.partition(b"\r\n\r\n")[0].lower())
                sock.sendall(answer(2))
            else:
                sock.sendall(b"HTTP/1.1 404 none\r\ncontent-length: 0\r\n\r\n")

    words = [
        "bench",
        "serve",
        "--base-url",
        scripted(talk).base_url,
        "--model",
        "fake",
        "--num-prompts",
        "2",
    ]
    words += ["--random-input-len", "5", "--no-correctness-check"]
    assert dyno(*words, "--header", "Host=models.example").code == 0
    assert len(heads) == 1 + 2  # a test request, and the load
    assert all(
        head.count(b"host:") == 1 and b"host: models.example" in head for head in heads
    )


def test_warm_up_prompts_are_none_of_the_measured_ones(
    dyno: Callable[..., Done], tmp_path: Path
) -> None:
    with Fake.start(FakeSpec(first_ms=1, gap_ms=1), tmp_path / "log") as own:
        dyno(*bench(own, "--num-warmups", "4", "--no-correctness-check"))
        assert len(own.log()["streams"]) == 1 + 12 + 4  # a test request, too


def test_several_loads_and_repeats_are_one_table_and_a_result_each(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    words = bench(
        fake,
        "--max-concurrency",
        "1,2",
        "--repeats",
        "2",
        "--save-result",
        "--result-filename",
        "x.json",
    )
    done = dyno(*words)
    assert done.code == 0, done.said
    rows = [
        line.split()
        for line in done.out.splitlines()
        if line.endswith(("sound", "doubtful"))
    ]
    assert [row[:4] for row in rows] == [[level, "2", "24", "0"] for level in ("1", "2")]
    assert "95 % confidence interval" in done.out
    assert {p.name for p in tmp_path.glob("x*")} == {
        f"x-c{level}-r{n}.json" for level in (1, 2) for n in (1, 2)
    }
    results = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("x*"))]
    # other prompts each time
    assert len({r["dyno"]["workload_sha256"] for r in results}) == 4
    [study] = (tmp_path / "runs").iterdir()
    assert (study / "report.html").exists()
    answer, page = done.err.partition("Answer:\n")[2].split("Page: ")
    assert re.search(r"reaches [\d.,]+ output tokens/s at concurrency \d", answer)
    assert page.strip().endswith("report.html")
    again = dyno(*words, "--json")  # complete: it begins anew
    assert len(json.loads(again.out)) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_after_a_single_run_a_command_that_repeats_it_can_be_pasted(
    dyno: Callable[..., Done], fake: Fake
) -> None:
    done = dyno(*bench(fake, "--header", "X-Key=a secret of mine", "--label", "two words"))
    command = done.err.splitlines()[-1]
    assert "secret" not in command
    words = shlex.split(command)
    assert words[1:-5] == bench(fake, "--header")
    assert words[-4:] == ["--label", "two words", "--repeats", "5"]


@pytest.mark.hostile
def test_ctrl_c_between_repeats_keeps_what_is_measured_and_says_how_to_resume(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    words = bench(fake, "--repeats", "3", "--random-output-len", "200")
    process = start(tmp_path, *words)
    wait_for(lambda: list(tmp_path.glob("runs/*/trials/*/summary.json")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 3 trials are measured and kept. Resume with:" in err
    assert " ".join(["dyno", *words]) in err
    assert "confidence" in out or "tok/s" in out  # the table of what there is
    assert "Answer:" not in err  # of half of a study
    done = dyno(*words)
    assert done.code == 0
    assert "of 3 trials are done" in done.err
    assert len(list(tmp_path.glob("runs/*/trials/*/summary.json"))) == 3


def test_ctrl_c_in_one_of_several_loads_keeps_its_figures_until_it_is_measured_again(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    words = bench(fake, "--duration", "60", "--max-concurrency", "1,4")
    process = start(tmp_path, *words)
    wait_for(lambda: spooled(tmp_path) > 50_000)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    printed = " ".join(err.split())
    completed = re.search(r"cut off: (\d+) completed, \d still open, .* tok/s", printed)
    assert completed and int(completed[1]) > 10
    [command] = re.findall(r"`dyno (runs show .*?)`", printed)
    shown = dyno(*command.split())
    assert shown.code == 0, shown.err
    assert re.search(rf"Successful requests: +{completed[1]}\b", shown.out)
    assert "requests.cut_short" in shown.out
    assert not list(tmp_path.glob("runs/*/trials/*/summary.json"))  # it is measured again


def test_runs_are_listed_and_shown_again(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    assert "No runs" in dyno("runs").out
    first = dyno(*bench(fake))
    [run] = (tmp_path / "runs").iterdir()
    assert run.name in dyno("runs").out.replace("\n", "")
    shown = dyno("runs", "show", str(run))
    assert first.out.splitlines()[:12] == shown.out.splitlines()[:12]


# ---- a run that is cut short ----


def start(tmp_path: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "dyno", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def spooled(tmp_path: Path) -> int:
    return sum(p.stat().st_size for p in tmp_path.rglob("exchanges.spool"))


def test_ctrl_c_keeps_what_was_measured_and_says_so(fake: Fake, tmp_path: Path) -> None:
    process = start(
        tmp_path,
        *bench(fake, "--duration", "60", "--save-result", "--result-filename", "r.json"),
    )
    wait_for(lambda: spooled(tmp_path) > 50_000)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "requests.cut_short" in out
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["completed"] > 10
    assert result["dyno"]["outcome"] == "interrupted"
    assert result["dyno"]["verdict"] == "doubtful"
    assert result["completed"] + result["failed"] == result["dyno"]["sent"]


def test_a_killed_run_is_decoded_from_its_spool(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    process = start(tmp_path, *bench(fake, "--duration", "60"))
    wait_for(lambda: spooled(tmp_path) > 50_000)
    process.kill()
    process.communicate()
    [run] = (tmp_path / "runs").iterdir()
    assert "cut off" in dyno("runs").out
    shown = dyno("runs", "show", str(run))
    assert shown.code == 0
    assert "requests.cut_short" in shown.out
    completed = re.search(r"Successful requests: +(\d+)", shown.out)
    assert completed and int(completed[1]) > 10


def test_a_run_that_is_still_running_is_not_decoded(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    process = start(tmp_path, *bench(fake, "--duration", "60"))
    wait_for(lambda: spooled(tmp_path) > 50_000)
    [run] = (tmp_path / "runs").iterdir()
    assert "running" in dyno("runs").out
    refused = dyno("runs", "show", str(run))
    assert refused.code == 1
    assert "still running" in refused.err
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "requests.unaccounted" not in out


@pytest.mark.hostile
def test_a_server_that_dies_in_the_middle_ends_the_run_with_what_there_was(
    dyno: Callable[..., Done], soon_gone: None, tmp_path: Path
) -> None:
    with Fake.start(
        FakeSpec(first_ms=5, gap_ms=1, faults={"die": 40}), tmp_path / "log"
    ) as mortal:
        done = dyno(
            *bench(
                mortal, "--duration", "60", "--save-result", "--result-filename", "r.json"
            )
        )
    assert done.code == 1
    assert "the server stopped answering" in done.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert 30 <= result["completed"] <= 39
    assert result["dyno"]["verdict"] != "sound"


# ---- mistakes: one clear message, the right exit code, no traceback ----

NOWHERE = "http://127.0.0.1:9"  # discard: nobody serves it

MISTAKES: list[tuple[int, str, list[str]]] = [
    (1, "Nothing listens at", ["--base-url", NOWHERE]),
    (2, "is not a URL", ["--base-url", "ftp://example"]),
    (2, "names a server twice", ["--base-url", "http://a:8000/v1", "b", "http://a:8000"]),
    (2, "a port outside 1 to 65535", ["--base-url", "http://127.0.0.1:notaport"]),
    (1, "can't be resolved", ["--base-url", "http://no-such-host.invalid:8000"]),
    (2, "--max-concurrency must be at least 1", ["--max-concurrency", "0"]),
    (2, "--request-rate must be above 0", ["--request-rate", "0"]),
    (2, "--ramp-up-strategy can't be combined with --request-rate",
     ["--request-rate", "5", "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"]),
    (2, "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps.", ["--ramp-up-strategy", "linear"]),
    (2, "--ramp-up-end-rps needs --ramp-up-strategy", ["--ramp-up-end-rps", "3"]),
    (2, "no latency named 'ttfx'", ["--goodput", "ttfx:3"]),
    (2, "NAME:LIMIT", ["--goodput", "ttft=3"]),
    (2, "no latency named 'latency'", ["--percentile-metrics", "latency"]),
    (2, "between 0 and 100", ["--metric-percentiles", "101"]),
    (2, "is not valid JSON", ["--extra-body", "{oops"]),
    (2, "takes KEY=VALUE", ["--header", "just-a-word"]),
    (2, "--dataset-path is for a file, but random generates its prompts", ["--dataset-path", "x.json"]),
    (2, "ShareGPT_V3", ["--dataset-name", "sharegpt"]),
    (2, "no-such-file.json", ["--dataset-name", "sharegpt", "--dataset-path", "no-such-file.json"]),
    (2, "wrong.json", ["--dataset-name", "sharegpt", "--dataset-path", "wrong.json"]),
    (2, "no-such-tokenizer", ["--tokenizer", "./no-such-tokenizer"]),
    (2, "otherwise nothing is written", ["--result-filename", "x.json"]),
    (1, "can't be written", ["--result-dir", "wrong.json/results", "--save-result"]),
    (1, "can't be created", ["--runs", "wrong.json/runs"]),
    (2, "the server's context is", ["--random-input-len", "140000", "--num-prompts", "1"]),
    (2, "from 0 to below 1", ["--random-range-ratio", "2"]),
    (2, "token ids as prompts", ["--backend", "tgi", "--dataset-name", "custom", "--dataset-path", "ids.jsonl"]),
    (2, "has no min_p, presence_penalty", ["--backend", "tgi", "--min-p", "0.1", "--presence-penalty", "1"]),
    (2, "has no logprobs", ["--backend", "tgi", "--logprobs", "1"]),
    (2, "has no ignore_eos_token", ["--backend", "tgi", "--extra-body", '{"ignore_eos_token": true}']),
    (2, "--backend: there is no 'trtllm'", ["--backend", "trtllm"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "message", "words"), MISTAKES, ids=[" ".join(w)[:40] for _, _, w in MISTAKES]
)
def test_a_mistake_gets_one_clear_message(
    code: int,
    message: str,
    words: list[str],
    dyno: Callable[..., Done],
    fake: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "wrong.json").write_text("this is no JSON")
    (tmp_path / "ids.jsonl").write_text('{"prompt": [1, 2, 3]}\n')
    done = dyno(*bench(fake), *words)
    assert done.code == code, done.said
    assert message in done.err
    assert done.out == ""
    assert not list(tmp_path.rglob("exchanges.spool")), (
        "nothing was measured, so nothing should lie around"
    )


def test_a_model_that_the_server_does_not_list_is_a_finding(
    dyno: Callable[..., Done], fake: Fake
) -> None:
    done = dyno(*bench(fake, "--model", "another"))
    assert done.code == 3
    assert "dyno: the result is void: exit code 3. --allow-void exits with 0." in done.err
    before = done.err.partition("Measuring")[0]
    assert "Doubtful before it begins: the server lists fake, not another" in before
    assert "model.not_listed" in done.out
    assert "model.other_answered" in done.out  # the fake answers under its own name
    assert "Verdict: void" in done.out


def test_a_server_without_tls_that_is_addressed_by_https_is_said_to_be_one(
    scripted: Callable[..., Scripted],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(http, "_HANDSHAKE_S", 0.2)
    ended = threading.Event()
    port = scripted(lambda sock, number: ended.wait(30)).port
    assert main(["bench", "serve", "--base-url", f"https://127.0.0.1:{port}"]) == 1
    ended.set()
    assert (
        f"If the server has no TLS, use http://127.0.0.1:{port}." in capsys.readouterr().err
    )


def test_nothing_completed_is_a_failure_with_the_servers_own_words(
    dyno: Callable[..., Done], tmp_path: Path
) -> None:
    with Fake.start(FakeSpec(faults={"500": 1}), tmp_path / "log") as broken:
        done = dyno(*bench(broken, "--ready-check-timeout-sec", "0"))
    assert done.code == 1
    assert "Failed, http_500:" in done.out
    assert "injected fault: 500" in done.out
    assert "Mean TTFT (ms):                          -" in done.out


@pytest.mark.parametrize(
    ("status", "said", "advice"),
    [
        (
            "401 no",
            '{"error": {"message": "Incorrect API key"}}',
            "answers 401: Incorrect API key. Check the API key",
        ),
        (
            "405 no",
            '{"detail": "Not Allowed"}',
            "answers 405: Not Allowed. Check --endpoint and --backend.",
        ),
        (
            "400 no",
            '{"object": "error", "message": "bad m"}',
            "The server lists a, b, not m: check --model.",
        ),
        ("500 no", "no such luck", "answers 500: no such luck. Read the server's log."),
        (
            "200 ok",
            'data: {"error": {"message": "no GPU"}}\n\n',
            "answers 200: no GPU. Read the server's log.",
        ),
    ],
)
def test_a_test_request_that_fails_ends_it_at_once_in_the_servers_words(
    dyno: Callable[..., Done],
    scripted: Callable[..., Scripted],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    said: str,
    advice: str,
) -> None:
    monkeypatch.setattr(session, "_PAUSES_S", (0.0, 0.05, 0.1))

    def complain(sock: socket.socket, _: int) -> None:
        while asked := sock.recv(65536):
            models = asked.startswith(b"GET /v1/models")
            line, text = (
                ("200 ok", '{"data": [{"id": "a"}, {"id": "b"}]}')
                if models
                else ("404 none", "")
            )
            line, text = (status, said) if asked.startswith(b"POST") else (line, text)
            sock.sendall(
                f"HTTP/1.1 {line}\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
            )

    base = scripted(complain).base_url
    for more in ([], ["--repeats", "3"]):
        done = dyno(
            "bench",
            "serve",
            "--base-url",
            base,
            "--model",
            "m",
            "--num-prompts",
            "3",
            *more,
        )
        assert done.code == 1
        assert advice in done.err
        assert not (tmp_path / "runs").exists()


def test_everything_that_fails_ends_the_load_early_and_the_run_is_kept(
    dyno: Callable[..., Done], tmp_path: Path
) -> None:
    with Fake.start(FakeSpec(faults={"500": 1}), tmp_path / "log") as broken:
        done = dyno(
            *bench(broken, "--ready-check-timeout-sec", "0", "--num-prompts", "400")
        )
    assert done.code == 1
    assert "Verdict: void" in done.out
    assert "so the load was stopped" in done.err
    [run] = (tmp_path / "runs").iterdir()
    assert json.loads((run / "client.json").read_text())["outcome"] == "all failed"
    assert json.loads((run / "trial.json").read_text())["test_requests"] == 0


def test_a_warm_up_that_fails_altogether_stops_before_the_measurement(
    dyno: Callable[..., Done], tmp_path: Path
) -> None:
    with Fake.start(FakeSpec(faults={"503": 1}), tmp_path / "log") as broken:
        done = dyno(*bench(broken, "--num-warmups", "2", "--ready-check-timeout-sec", "0"))
    assert done.code == 1
    assert "All 2 warm-up requests failed (http_503" in done.err


def test_a_server_that_is_not_ready_in_time_is_reported(dyno: Callable[..., Done]) -> None:
    done = dyno("bench", "serve", "--base-url", NOWHERE, "--ready-check-timeout-sec", "1")
    assert done.code == 1
    assert "was not ready within 1 s" in done.err


def test_a_key_reaches_no_file_and_no_output(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    secrets = ("sk-very-secret-1234", "another-secret-5678")
    words = [
        "--header",
        f"X-Api-Key={secrets[1]}",
        "X-Variant=b",
        "--save-result",
        "--save-detailed",
        "--keep-raw",
    ]
    done = dyno(*bench(fake, *words), OPENAI_API_KEY=secrets[0])
    assert done.code == 0
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 4
    for secret in secrets:
        assert secret not in done.said
        assert not [p for p in files if secret.encode() in p.read_bytes()]
    trial = json.loads(next(tmp_path.glob("runs/*/trial.json")).read_text())
    assert trial["trial"]["target"]["header_names"] == [
        "Authorization",
        "X-Api-Key",
        "X-Variant",
    ]
    assert trial["trial"]["target"]["routing_headers"] == ["x-variant"]


@pytest.mark.hostile
def test_a_key_that_the_server_sends_back_in_its_complaint_is_not_repeated(
    dyno: Callable[..., Done], scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    def complain(sock: socket.socket, _: int) -> None:
        asked = b""
        while more := sock.recv(65536):
            asked += more
            if b"\r\n\r\n" in asked:
                status = (
                    b"403 no" if asked.startswith(b"POST /v1/completions") else b"404 none"
                )
                said = b'{"error": "sk-very-secret-1234 is not allowed here"}'
                sock.sendall(
                    b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s"
                    % (status, len(said), said)
                )
                asked = b""

    base = scripted(complain).base_url
    words = [
        "bench",
        "serve",
        "--base-url",
        base,
        "--model",
        "m",
        "--num-prompts",
        "3",
        "--random-input-len",
        "5",
    ]
    untested = ["--ready-check-timeout-sec", "0"]
    for more in (
        [],
        untested,
        ["--ready-check-timeout-sec", "1"],
        ["--num-warmups", "1", *untested],
    ):
        done = dyno(*words, *more, OPENAI_API_KEY="sk-very-secret-1234")
        assert done.code == 1
        # with stars or [redacted] in the key's place
        assert "is not allowed here" in done.said
        assert "sk-very-secret-1234" not in done.said
    assert not [
        p
        for p in tmp_path.rglob("*")
        if p.is_file() and b"sk-very-secret" in p.read_bytes()
    ]


def test_a_fault_the_fake_does_not_have_names_those_it_has(
    dyno: Callable[..., Done],
) -> None:
    done = dyno("engines", "start", "fake", "--fault", "explode")
    assert done.code == 2
    assert "reset" in done.err


def test_showing_a_folder_that_is_not_a_run_says_so(dyno: Callable[..., Done]) -> None:
    done = dyno("runs", "show", "elsewhere")
    assert done.code == 2
    assert "No run or study named" in done.err


# ---- help, doctor, demo ----


def test_llm_dyno_is_the_same_program() -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())[
        "project"
    ]["scripts"]
    assert scripts["llm-dyno"] == scripts["dyno"] == "dyno.__main__:main"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from dyno.cli.main import parser; list(parser().walk()); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {
        "numpy",
        "rich",
        "tokenizers",
        "gguf",
        "psutil",
        "xllamacpp",
        "duckdb",
        "zstandard",
    } & set(loaded)


def test_the_list_of_commands_needs_no_msgspec() -> None:
    code = "import sys; from dyno.cli.main import parser; parser().format_help(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "msgspec" not in loaded


def test_help_of_commands_loads_neither_numpy_nor_the_checks() -> None:
    code = (
        "import contextlib, sys\nfrom dyno.cli.main import main\n"
        "for words in ('bench serve', 'find', 'run', 'report', 'compare', 'runs', 'doctor'):\n"
        "    with contextlib.suppress(SystemExit): main([*words.split(), '--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert "usage: dyno report" in done.stdout
    assert "dyno.cli.report" in loaded
    assert not {"numpy", "dyno.checks", "tokenizers"} & loaded


def test_the_names_of_engines_are_known_without_loading_any() -> None:
    code = "import sys; from dyno.engines.kinds import KINDS; print(*KINDS, *sys.modules, sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert tuple(loaded[: len(KINDS)]) == tuple(KINDS)
    assert "dyno.engines.kinds" in loaded and "dyno.engines.kinds.base" not in loaded


@pytest.mark.engines
def test_the_doctor_describes_the_machine_and_calibrates_alone_and_beside_a_load(
    dyno: Callable[..., Done],
) -> None:
    done = dyno("doctor", "--streams", "8", "--json")
    assert done.code == 0
    answer = json.loads(done.out)
    assert answer["rig"]["cores"] >= 1
    assert set(answer["rig"]) >= {
        "system",
        "kernel",
        "accelerators",
        "state",
        "environment",
        "unknown",
    }
    assert (
        answer["peaks"][-1]["bandwidth"] > 1e9
        and answer["peaks"][-1]["flops"]["fp32"] > 1e9
    )
    # on the machine as it is, and beside a busy process on each core
    alone, beside = answer["calibration"]
    assert (alone["busy"], beside["busy"] >= 1) == (0, True)
    assert [row["failed"] for row in (alone, beside)] == [0, 0]
    assert [row["streams_open"] for row in (alone, beside)] == [8, 8]


def test_the_doctor_describes_the_machine_and_hides_secrets(
    dyno: Callable[..., Done],
) -> None:
    done = dyno(
        "doctor", "--quick", VLLM_API_KEY="sk-very-secret", CUDA_VISIBLE_DEVICES="7"
    )
    assert done.code == 0
    assert "sk-very-secret" not in done.said
    for words in (
        "system",
        "kernel",
        "Accelerators",
        "State",
        "VLLM_API_KEY=[redacted]",
        "CUDA_VISIBLE_DEVICES=7",
    ):
        assert words in done.out, words


def test_the_doctor_measures_the_processor_once_and_anew_if_asked(
    dyno: Callable[..., Done], tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    assert (
        "unknown: the CPU has not been measured yet"
        in dyno("doctor", "--quick", XDG_CACHE_HOME=cache).out
    )
    done = dyno("doctor", "--quick", "--measure-peaks", XDG_CACHE_HOME=cache)
    assert done.code == 0
    for words in (
        "Peaks",
        "bandwidth (GB/s) by working-set size: 4 MiB",
        "fp32",
        "measured here",
    ):
        assert words in done.out, words


def test_the_rig_goes_with_every_run_and_no_secret_does(
    dyno: Callable[..., Done], fake: Fake, tmp_path: Path
) -> None:
    done = dyno(*bench(fake, "--json"), NCCL_AUTH_KEY="my-very-secret", NCCL_DEBUG="WARN")
    reported = json.loads(done.out)["dyno"]["rig"]
    assert reported["cores"] >= 1
    assert (
        reported["environment"]["NCCL_AUTH_KEY"],
        reported["environment"]["NCCL_DEBUG"],
    ) == ("[redacted]", "WARN")
    [manifest] = tmp_path.glob("runs/*/trial.json")
    assert json.loads(manifest.read_text())["rig"] == reported
    assert not [
        p
        for p in tmp_path.rglob("*")
        if p.is_file() and b"my-very-secret" in p.read_bytes()
    ]


def engines_of(session: int) -> list[int]:
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        mark = (process.info["environ"] or {}).get("DYNO_TEST")
        if mark == str(session) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.info["pid"])
    return found


@pytest.mark.engines
@pytest.mark.nightly  # .ci/run makes the demo, too
def test_the_demo_compares_prints_and_leaves_no_process(
    dyno: Callable[..., Done], tmp_path: Path
) -> None:
    done = dyno("demo", DYNO_TEST="11", COLUMNS="80")
    assert done.code == 0, done.said
    formats = ("F16", "Q4_0", "TQ2_0")
    rows = [line.split() for line in done.out.splitlines() if line.startswith(formats)]
    speeds, scores = (
        [row for row in rows if ("%" in row) is quality] for quality in (False, True)
    )
    assert [row[:5] for row in speeds] == [
        [q, c, "5", n, "0"] for q in formats for c, n in (("1", "60"), ("8", "240"))
    ]
    assert all(float(row[5].replace(",", "")) > 0 for row in speeds)
    assert re.search(r"demo: 33 trials, about \d:\d\d left", done.err)
    means = [
        sum(float(word) for word, unit in pairwise(row) if unit == "%") / 5
        for row in scores
    ]
    assert len(means) == 3 and min(means[:2]) > 90 and means[2] < 60, (
        "two bits cost right answers"
    )
    assert len(list(tmp_path.glob("runs/demo/trials/*/summary.json"))) == 33
    answer = " ".join(done.err.partition("Answer:")[2].split())
    decided = (
        "The fastest setting with no detectable loss|A loss of quality is detected: TQ2_0"
    )
    assert re.match(decided, answer), "also where a busy machine makes speeds doubtful"
    assert re.search(
        r"loss of quality[^:]*: TQ2_0 \(.* -\d+ pt against F16, 95 % interval", answer
    )
    assert engines_of(11) == []


@pytest.mark.engines
def test_ctrl_c_in_the_demo_keeps_what_there_is_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    env = {**os.environ, "DYNO_TEST": "12"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dyno", "demo"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env,
    )  # fmt: skip
    wait_for(lambda: spooled(tmp_path) > 5_000)
    assert engines_of(12)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Resume with:\n  dyno demo" in err
    wait_for(lambda: engines_of(12) == [])
