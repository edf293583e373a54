"""What vLLM's client can do beside its load: probes, a profiler, names of requests, template variables, pictures."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import StartFake, ends_ms
from dyno.cli.main import main
from dyno.engines.model import FOLDER
from dyno.facts.target import TargetSpec
from dyno.store.run import Run
from dyno.trial.session import Session

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

PLAIN = "--no-correctness-check --ready-check-timeout-sec 0 --random-input-len 8 --random-output-len 2"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def serve(url: str, words: str, code: int = 0) -> None:
    line = f"bench serve --base-url {url} {PLAIN} {words}"
    assert main(line.split()) == code


def run() -> Run:
    [path] = Path("runs").iterdir()
    return Run(path)


def ids(server: Any) -> list[str]:
    heads = "\n".join(server.log()["heads"])
    return re.findall(r"x-request-id: (\S+)", heads)


# ---- probes ----


def test_probes_are_sent_beside_the_load_and_are_in_no_figure_of_it(
    fake: StartFake, capsys: pytest.CaptureFixture[str]
) -> None:
    server = fake(first_ms=40, gap_ms=20, bodies=True)
    serve(
        server.base_url,
        "--max-concurrency 2 --num-prompts 12 --probe-request-rate 20 --random-output-len 5 --json",
    )
    result = json.loads(capsys.readouterr().out)
    log = server.log()
    probes = [b for b in log["bodies"] if b["prompt"] == "Hi"]
    others = [b for b in log["bodies"] if b["prompt"] != "Hi"]
    assert {b["max_tokens"] for b in probes} == {1} and len(others) == 12
    assert result["completed"] == 12 and result["total_output_tokens"] == 12 * 5
    # Two requests in flight take 120 ms: 6 rounds are 0.7 s, so some 14 probes, on a busy machine perhaps fewer.
    done = result["probe_completed"]
    assert 5 <= done <= len(probes) and result["probe_failed"] == 0
    lowest, middle = ends_ms(result, "probe_median_e2el_ms")
    assert middle >= 39 and lowest <= ends_ms(result, "probe_max_e2el_ms")[1]
    assert result["dyno"]["sent"] == 12
    stored = run()
    assert not stored.probe_path.exists()  # its figures are kept
    kept = stored.result().served.probes
    assert kept is not None and kept.completed == done


def test_a_probe_waits_for_no_slot_of_the_load(
    fake: StartFake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The load's only slot is taken for 0.8 s at a time."""
    server = fake(first_ms=5, gap_ms=100)
    serve(
        server.base_url,
        "--max-concurrency 1 --num-prompts 2 --random-output-len 9 --probe-request-rate 20 --json",
    )
    result = json.loads(capsys.readouterr().out)
    assert result["probe_completed"] >= 5
    assert ends_ms(result, "probe_median_e2el_ms")[0] < 400


def test_the_block_has_vllm_s_lines_about_probes(
    fake: StartFake, capsys: pytest.CaptureFixture[str]
) -> None:
    server = fake(first_ms=30, gap_ms=1)
    serve(server.base_url, "--max-concurrency 1 --num-prompts 8 --probe-request-rate 50")
    text = capsys.readouterr().out
    # on a busy machine a figure may be known within bounds only: '30.26 to 30.41'
    names = re.findall(r"^(.*[pP]robe.*?):? +[\d.]+(?: to [\d.]+)? *$", text, re.M)
    assert names == [
        "Probe requests completed",
        "Probe requests failed",
        "Median probe E2EL (ms)",
        "P99 probe E2EL (ms)",
        "Max probe E2EL (ms)",
    ]
    assert f"{'Probe Requests':-^50}" in text


def test_probes_that_fail_are_counted(
    fake: StartFake, capsys: pytest.CaptureFixture[str]
) -> None:
    server = fake(first_ms=20, gap_ms=10, faults={"500": 2})
    serve(
        server.base_url,
        "--max-concurrency 1 --num-prompts 10 --probe-request-rate 30 --random-output-len 5 --json --allow-void",
    )
    result = json.loads(capsys.readouterr().out)
    assert result["probe_failed"] > 0 and result["completed"] + result["failed"] == 10


# ---- the engine's profiler ----


def test_the_profiler_runs_during_the_load_alone(
    fake: StartFake, capsys: pytest.CaptureFixture[str]
) -> None:
    server = fake(first_ms=1, gap_ms=1, profiler=True)
    serve(
        server.base_url,
        "--max-concurrency 2 --num-prompts 6 --num-warmups 3 --profile --json",
    )
    # after the warm-ups, and after the last request
    assert server.log()["profiles"] == [["/start_profile", 3], ["/stop_profile", 9]]
    findings = json.loads(capsys.readouterr().out)["dyno"]["findings"]
    assert "load.profiled" in {f["code"] for f in findings}


def test_ctrl_c_while_the_trace_is_written_keeps_the_measurement(
    fake: StartFake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fake(first_ms=1, gap_ms=1, profiler=True)

    def wait_long(session: Session, spec: TargetSpec, begin: bool) -> None:
        if not begin:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

    monkeypatch.setattr(Session, "profile", wait_long)
    serve(server.base_url, "--max-concurrency 2 --num-prompts 6 --profile --json")
    out, err = capsys.readouterr()
    assert json.loads(out)["completed"] == 6
    assert "The engine may still write its trace" in err


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_dyno_while_the_trace_is_written_ends_the_loads_too(
    fake: StartFake,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ending: signal.Signals,
) -> None:
    server = fake(first_ms=1, gap_ms=1, profiler=True, bodies=True)

    def wait_long(session: Session, spec: TargetSpec, begin: bool) -> None:
        if not begin:
            os.kill(os.getpid(), ending)
            time.sleep(60)

    monkeypatch.setattr(Session, "profile", wait_long)
    words = "--max-concurrency 1,2 --num-prompts 6 --profile --ready-check-timeout-sec 0"
    serve(server.base_url, words, code=130)
    capsys.readouterr()
    assert len(server.log()["bodies"]) == 6  # those of the first load, which is kept
    [kept] = Path("runs").rglob("summary.json")
    assert json.loads(kept.read_text())["summary"]["completed"] == 6


def test_a_server_without_a_profiler_is_said_before_the_load(
    fake: StartFake, capsys: pytest.CaptureFixture[str]
) -> None:
    server = fake(first_ms=1, gap_ms=1, bodies=True)
    serve(server.base_url, "--max-concurrency 2 --num-prompts 6 --profile", code=1)
    err = capsys.readouterr().err
    assert "/start_profile answers 404" in err and "--profiler-config" in err
    assert server.log()["bodies"] == []


# ---- names of requests ----


def test_requests_are_named_by_their_numbers_and_nothing_else_is(fake: StartFake) -> None:
    server = fake(first_ms=1, gap_ms=1, bodies=True)
    serve(
        server.base_url,
        "--max-concurrency 1 --num-prompts 4 --num-warmups 2 --request-id-prefix run7-",
    )
    log = server.log()
    assert len(log["heads"]) == 6
    assert re.findall(r"x-request-id: (\S+)", "\n".join(log["heads"])) == [
        f"run7-{i}" for i in range(4)
    ]
    # the same numbers as in requests.jsonl
    assert [r.prompt for r in run().requests()] == [b["prompt"] for b in log["bodies"]][2:]


def test_turns_of_conversations_and_requests_of_several_processes_keep_their_numbers(
    fake: StartFake,
) -> None:
    for words in (
        "--backend openai-chat --dataset-name chat --turns 3 --num-sessions 4 --turn-output-len 2",
        "--num-prompts 12 --procs 2",
    ):
        server = fake(first_ms=1, gap_ms=1, bodies=True)
        serve(server.base_url, f"--max-concurrency 2 --request-id-prefix a. {words}")
        assert sorted(ids(server)) == sorted(f"a.{i}" for i in range(12))


@pytest.mark.parametrize("prefix", ["two words", "né", "x\r\ny: z", ""])
def test_a_name_that_no_header_can_hold_is_refused(
    prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "serve", "--request-id-prefix", prefix]
    assert main(words) == 2
    assert "--request-id-prefix must be 1 to 200 visible" in capsys.readouterr().err


# ---- variables of the chat template ----


def _tokenizer() -> Path:
    folder = Path("tokenizer")
    folder.mkdir()
    shutil.copy(FOLDER / "tokenizer.json", folder)
    config = json.loads((FOLDER / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{{ mood | default('calm') }}|{{ messages[0]['content'] }}|{{ deep.est if deep else '' }}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


CUSTOM = "--dataset-name custom --dataset-path p.jsonl --custom-output-len 2 --num-prompts 1 --max-concurrency 1"
VARIABLES = '--chat-template-kwargs {"mood":"merry","deep":{"est":3}}'


def test_a_template_that_dyno_renders_gets_its_variables(fake: StartFake) -> None:
    Path("p.jsonl").write_text('{"prompt": "Hello"}\n')
    server = fake(first_ms=1, gap_ms=1, bodies=True)
    for words, prompt in (("", "calm|Hello|"), (VARIABLES, "merry|Hello|3")):
        folder = _tokenizer() if not words else Path("tokenizer")
        serve(server.base_url, f"{CUSTOM} --tokenizer {folder} {words}")
        assert [b["prompt"] for b in server.log()["bodies"]] == [prompt]


def test_a_server_that_renders_the_template_gets_its_variables(fake: StartFake) -> None:
    server = fake(first_ms=1, gap_ms=1, bodies=True)
    chat = "--backend openai-chat --dataset-name chat --turns 2 --num-sessions 1 --turn-output-len 2"
    serve(server.base_url, f"--max-concurrency 1 {chat} {VARIABLES}")
    bodies = server.log()["bodies"]
    assert [b["chat_template_kwargs"] for b in bodies] == [
        {"mood": "merry", "deep": {"est": 3}}
    ] * 2


def test_variables_without_a_template_are_refused(
    fake: StartFake, capsys: pytest.CaptureFixture[str]
) -> None:
    server = fake(first_ms=1, gap_ms=1, bodies=True)
    serve(server.base_url, f"--max-concurrency 1 --num-prompts 2 {VARIABLES}", code=2)
    assert "--chat-template-kwargs has no effect: prompts of the dataset random" in (
        capsys.readouterr().err
    )
    assert server.log()["bodies"] == []


# ---- pictures beside the result file ----


def test_the_pictures_of_vllm_s_client_lie_beside_the_result_file(fake: StartFake) -> None:
    server = fake(first_ms=8, gap_ms=4)
    serve(
        server.base_url,
        "--max-concurrency 2 --num-prompts 6 --random-output-len 5 --save-result --result-filename r.json "
        "--plot-timeline --timeline-itl-thresholds 2,500 --plot-dataset-stats",
    )
    assert sorted(p.name for p in Path().glob("r.*")) == [
        "r.dataset_stats.png",
        "r.json",
        "r.timeline.html",
    ]
    page = Path("r.timeline.html").read_text()
    parts = re.findall(r'"part": ?"([^"]*)"', page)
    # a wait for each request, and what follows is between the two thresholds
    assert parts.count("TTFT") == 6 and "2 ms ≤ ITL < 500 ms" in parts
    assert not re.search(r'(?:src|href)="https?:', page)
    assert Path("r.dataset_stats.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("given", ["25", "50,25", "a,b", "0,5", "1,2,3"])
def test_thresholds_are_two_times(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--timeline-itl-thresholds", given]) == 2
    assert (
        f"--timeline-itl-thresholds '{given}' must be two times" in capsys.readouterr().err
    )


def test_a_study_has_the_keys(fake: StartFake) -> None:
    server = fake(first_ms=20, gap_ms=10, profiler=True, bodies=True)
    Path("s.toml").write_text(
        f"""
        [engines.server]
        kind = "openai"
        base_url = "{server.base_url}"
        backend = "openai-chat"
        [workloads.w]
        input_len = 8
        output_len = 9
        [loads.one]
        max_concurrency = 1
        num_prompts = 4
        num_warmups = 0
        probe_rate_rps = 20
        [trial]
        correctness_check = false
        profile = true
        request_id_prefix = "s-"
        chat_template_kwargs = {{ mood = "merry" }}
        """
    )
    assert main(["run", "s.toml", "--no-report"]) == 0
    log = server.log()
    assert [route for route, _ in log["profiles"]] == ["/start_profile", "/stop_profile"]
    assert {b["chat_template_kwargs"]["mood"] for b in log["bodies"]} == {"merry"}
    [trial] = Path("runs/s/trials").iterdir()
    probes = Run(trial).result().served.probes
    assert probes is not None and probes.completed > 0
