"""A server that sends keys back in every way it can think of, and a study whose program must not run: no key reaches a
file, an archive, a page or a screen, and what dyno writes is for its owner alone."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from conftest import STREAM_HEAD, Scripted, chunked
from dyno.cli.main import main
from dyno.load.spool import responses

KEY = "sk-very-secret-1234-abcd"
OTHER = 'odd/"key\\9&%'  # has what every form of writing must escape
PASSWORD = "open-sesame-77"
BASIC = base64.b64encode(b"somebody:" + PASSWORD.encode()).decode()
NESTED = "nested-hunter22"
TWO = ("--max-concurrency", "2", "--procs", "2")
SECRETS = (KEY, OTHER, PASSWORD, BASIC, NESTED)


def escaped(key: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in key)


# ---- what is looked through ----


def unescaped(text: str) -> str:
    r"""As often as it helps: JSON's \u0073 and \", and in a page &#x73; and %73."""
    for _ in range(4):
        text = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), text)
        text = re.sub(r'\\+(["/\\])', r"\1", text)
        text = re.sub(r"&#x([0-9a-fA-F]+);", lambda m: chr(int(m[1], 16) % 0x110000), text)
        text = re.sub(r"&quot;|&#34;", '"', text).replace("&amp;", "&")
    return text


def joined(value: Any) -> Iterator[str]:
    """Texts of a stream's events, as a reader of the raw bytes would join them, in both orders."""
    texts = re.findall(rb'"(?:text|content)":\s*"((?:[^"\\]|\\.)*)"', value)
    parts = [t.decode("utf-8", "replace") for t in texts]
    yield "".join(parts)
    yield "".join(reversed(parts))


def shows(data: bytes, name: str = "") -> list[str]:
    raw = re.sub(rb"\r\n[0-9a-fA-F]{1,8}\r\n", b"", data)
    texts = [d.decode("utf-8", "replace") for d in (data, raw)] + [name, *joined(raw)]
    texts += [t for u in texts if (t := unescaped(u)) != u]
    return [secret for secret in SECRETS if any(secret in text for text in texts)]


def leaks(folder: Path, *besides: Path) -> dict[str, list[str]]:
    """Every byte of every file below, and the file's own name. Of raw bytes also each answer as a whole."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path not in besides:
            hits = shows(path.read_bytes(), str(path))
            if path.suffix == ".spool":
                hits += [hit for answer in responses(path) for hit in shows(answer)]
            if hits:
                found[str(path.relative_to(folder))] = hits
    return found


# ---- the server ----


def event(text: str, model: str = "m", finish: str = "null") -> bytes:
    """`text` and the others as JSON has them: escapes are up to the caller."""
    return (
        f'data: {{"model":"{model}","choices":[{{"index":0,"text":"{text}","finish_reason":{finish}}}]}}\n\n'
    ).encode()


def stream(*texts: str, model: str = "m", finish: str = '"length"') -> bytes:
    usage = (
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n'
        % len(texts)
    )
    events = [event(t, model) for t in texts]
    return STREAM_HEAD + chunked(
        *events, event("", model, finish), usage, b"data: [DONE]\n\n"
    )


def plain(status: str, body: str, kind: str = "application/json") -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def in_json(key: str) -> str:
    return json.dumps(key)[1:-1]


def ways(key: str) -> list[list[bytes]]:
    """Answers that hold the key, each as the pieces in which it is sent."""
    half = len(key) // 2
    j, a, b = in_json(key), in_json(key[:half]), in_json(key[half:])
    whole = stream(f"it is {j}, you know")
    cut = whole.index(j.encode()) + 5
    # Over the bounds of HTTP chunks, within one event.
    body = event(f"x {j} y")
    at = body.index(j.encode()) + 5
    over = STREAM_HEAD + chunked(
        body[:at], body[at:], event("", "m", '"stop"'), b"data: [DONE]\n\n"
    )
    return [
        [whole],
        [whole[:cut], whole[cut:]],
        [stream("a", a, b, "z")],
        [stream("a", *(in_json(c) for c in key), "z")],
        [stream("a", escaped(key), "z")],
        [stream("a", escaped(key[:half]), escaped(key[half:]), "z")],
        [stream("a", "b", model=escaped(key))],
        [stream("a", "b", finish=f'"{escaped(key)}"')],
        [over],
        [plain("403 no", f'{{"error": "{escaped(key)} may not"}}')],
        [plain("500 no", f"{key} and {'x' * 280} {key}" * 20, "text/plain")],
        [plain("200 OK", f'{{"error": "{j}"}}')],
        [
            STREAM_HEAD
            + chunked(
                event("a"),
                f'data: {{"error": {{"message": "{escaped(key)}"}}}}\n\n'.encode(),
            )
        ],
        [
            STREAM_HEAD
            + chunked(event("a"), f"data: {{no json {escaped(key)} {key}\n\n".encode())
        ],
        [f"HTTP/1.1 200 {key}\r\nx-key: {key}\r\nnonsense {key}\r\n\r\n".encode()],
        [f"{key} is no answer\r\n\r\n".encode()],
    ]


class Asked(NamedTuple):
    line: str
    head: str
    body: bytes


def requests(sock: socket.socket) -> Iterator[Asked]:
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            more = sock.recv(65536)
            if not more:
                return
            data += more
        head, _, data = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.I)
        need = int(length[1]) if length else 0
        while len(data) < need:
            data += sock.recv(65536)
        text = head.decode()
        yield Asked(text.partition("\r\n")[0], text, data[:need])
        data = data[need:]


class Echo:
    """Answers each question about itself with all keys, and completions with the next way to tell one."""

    def __init__(self, *keys: str, pause_s: float = 0.0) -> None:
        self.answers = [way for key in keys for way in ways(key)]
        self.reported = 0
        self.pause_s = pause_s
        self.heads: list[str] = []
        self.keys = keys

    def __call__(self, sock: socket.socket, _: int) -> None:
        for asked in requests(sock):
            self.heads.append(asked.head)
            if "/completions" in asked.line:
                pieces = self.answers[self.reported % len(self.answers)]
                self.reported += 1
                for i, piece in enumerate(pieces):
                    if i:
                        # so that it is likely another read; it is clean in either case
                        time.sleep(0.03 + self.pause_s)
                    sock.sendall(piece)
                if b"content-length" not in pieces[0] and not pieces[-1].endswith(
                    b"0\r\n\r\n"
                ):
                    return
                continue
            sock.sendall(self.of_itself(asked.line.split()[1].partition("?")[0]))

    def of_itself(self, path: str) -> bytes:
        all_, codes = " ".join(self.keys), " ".join(map(escaped, self.keys))
        match path:
            case "/v1/models":
                reported = [
                    {"id": "m", "root": f"/x/{all_}", "aliases": [all_]},
                    {"id": all_},
                ]
                return plain(
                    "200 OK", json.dumps({"data": reported}).replace("/x/", f"/x/{codes}")
                )
            case "/version":
                return plain("200 OK", f'{{"version": "0.9 {codes}"}}')
            case "/server_info":
                config = {
                    "model_config": {"dtype": all_, "quantization": all_, "max_num_seqs": 8}
                }
                return plain("200 OK", json.dumps({"vllm_config": config}))
            case "/metrics":
                cache = f'vllm:cache_config_info{{cache_dtype="{self.keys[0]}",num_gpu_blocks="9",block_size="16"}} 1\n'
                return plain(
                    "200 OK",
                    cache + f'vllm:num_requests_running{{model_name="{all_}"}} 0\n',
                    "text/plain",
                )
        return plain("404 none", f"{all_} {codes}", "text/plain")


# ---- the commands ----


class Said(NamedTuple):
    code: int
    text: str


Dyno = Callable[..., Said]


@pytest.fixture
def dyno(tmp_path: Path) -> Dyno:
    """As a command, under the usual umask, with what it has said kept for the search."""

    def call(*words: str, **env: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "dyno", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, **env}, umask=0o022,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert "Traceback" not in said, said
        assert not shows(said.encode()), said
        return Said(done.returncode, said)

    return call


def bench(base_url: str, *more: str) -> list[str]:
    words = [
        "bench",
        "serve",
        "--base-url",
        base_url,
        "--random-input-len",
        "5",
        "--random-output-len",
        "4",
    ]
    return [*words, "--max-concurrency", "1", "--disable-tqdm", *more]


def reported_everywhere(dyno: Dyno, tmp_path: Path, what: str) -> None:
    """The run or study once more, by every command that tells of one, and as an archive on another machine."""
    assert dyno("runs", "pack", what, "-o", "sent.tar.zst").code == 0
    assert dyno("runs", "unpack", "sent.tar.zst", "--runs", "copy").code == 0
    for words in (
        ["runs", "list", "--all"], ["runs", "show", what], ["runs", "show", what, "--json"],
        ["sql", "select * from trials"], ["sql", "select * from requests", "--csv"], ["sql", "select * from findings"],
        ["sql", "select * from failures"], ["sql", "select * from telemetry"],
    ):  # fmt: skip
        dyno(*words)
    for form in ("html", "md", "csv"):
        dyno("report", f"runs/{Path(what).name}", "-o", f"out/page.{form}")
    assert leaks(tmp_path, tmp_path / "s.toml") == {}


@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_keys_that_a_server_sends_back_in_every_way_reach_nothing(
    dyno: Dyno, scripted: Callable[..., Scripted], tmp_path: Path, processes: str
) -> None:
    echo = Echo(KEY, OTHER, PASSWORD, BASIC, NESTED)
    base = scripted(echo).base_url
    body = json.dumps(
        {
            "a": {"password": NESTED},
            "b": [{"password": NESTED}, {"client_secret": 7766554433}],
        }
    )
    words = [
        *(
            "--num-prompts",
            str(len(echo.answers) * 2),
            "--num-warmups",
            "3",
            "--extra-body",
            body,
            "--keep-raw",
        ),
        *(
            "--header",
            f"Authorization=Basic {BASIC}",
            f"X-Api-Key={KEY}",
            f"X-Other={OTHER}",
        ),
        *(
            "--save-result",
            "--save-detailed",
            "--result-dir",
            "results",
            "--metadata",
            f"api_key={NESTED}",
        ),
        *("--procs", processes, "--max-concurrency", processes),
    ]
    done = dyno(*bench(base, *words))
    assert done.code in (0, 3), done.text  # some answers fail
    assert "received bytes are not kept" in done.text
    assert f"X-Api-Key: {KEY}" in echo.heads[-1]  # it was sent
    [run] = (tmp_path / "runs").iterdir()
    assert not [*run.glob("*.spool")]
    records = [
        json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()
    ]
    assert len(records) == 2 * len(echo.answers)
    assert sum(
        "[redacted]" in json.dumps(r) or "***" in json.dumps(r) for r in records
    ) > 0.8 * len(records)
    trial = json.loads((run / "trial.json").read_text())
    assert trial["trial"]["extra_body"]["b"] == [
        {"password": "[redacted]"},
        {"client_secret": "[redacted]"},
    ]
    assert "[redacted]" in trial["target"]["version"]
    assert "7766554433" not in "".join(
        p.read_text(errors="replace") for p in tmp_path.rglob("*.json")
    )
    reported_everywhere(dyno, tmp_path, run.name)


def test_keys_in_refusals_reach_neither_screen_nor_file(
    dyno: Dyno, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    """Where nothing is measured: the server isn't ready, all warm-ups fail, a probe is answered with nonsense."""
    echo = Echo(KEY, OTHER)
    echo.answers = [
        way for way in echo.answers if not way[0].startswith(b"HTTP/1.1 200 OK")
    ]
    base = scripted(echo).base_url
    for more in (
        ["--ready-check-timeout-sec", "1"],
        ["--num-warmups", "4"],
        ["--num-prompts", "12"],
    ):
        said = dyno(*bench(base, "--header", f"X-Other={OTHER}", *more), OPENAI_API_KEY=KEY)
        assert said.code != 0

    def nonsense(sock: socket.socket, _: int) -> None:
        for _asked in requests(sock):
            sock.sendall(f"HTTP/9 {KEY}\r\n\r\n".encode())
            return

    said = dyno(*bench(scripted(nonsense).base_url), OPENAI_API_KEY=KEY)
    assert said.code == 1
    assert leaks(tmp_path) == {}


def test_raw_bytes_are_kept_where_no_key_came_back(
    dyno: Dyno, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    echo = Echo(KEY)
    echo.answers = [[stream("a", "b", "c")]]
    done = dyno(
        *bench(scripted(echo).base_url, "--num-prompts", "4", "--keep-raw"),
        OPENAI_API_KEY=KEY,
    )
    assert done.code == 0
    [spool] = tmp_path.glob("runs/*/exchanges.spool")
    assert spool.stat().st_mode & 0o777 == 0o600
    assert dyno("runs", "pack", spool.parent.name, "-o", "a.tar.zst").code == 0
    assert dyno("runs", "unpack", "a.tar.zst", "--runs", "copy").code == 0
    assert [*tmp_path.glob("copy/*/exchanges.spool")]
    assert leaks(tmp_path) == {}


def test_no_key_is_in_the_command_line_of_a_client_process(
    dyno: Dyno, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    echo, seen = Echo(KEY), []
    echo.answers = [[stream("a", "b", "c")]]

    def look(sock: socket.socket, number: int) -> None:
        seen.extend(
            Path(f"/proc/{pid}/cmdline").read_bytes()
            for pid in psutil.pids()
            if psutil.pid_exists(pid)
        )
        echo(sock, number)

    done = dyno(
        *bench(scripted(look).base_url, "--num-prompts", "4", *TWO), OPENAI_API_KEY=KEY
    )
    assert done.code == 0
    own = [line for line in seen if b"dyno.load.process" in line]
    assert len(own) >= 2 and not [line for line in own if KEY.encode() in line]
    assert leaks(tmp_path) == {}


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_each_way_alone_is_found_in_raw_bytes_that_would_be_kept(
    scripted: Callable[..., Scripted],
    tmp_path: Path,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for i, way in enumerate(ways(key)):
        echo = Echo(key)
        echo.answers = [way, [stream("a", "b")]]
        words = [
            "--model",
            "m",
            "--header",
            f"X-Other={key}",
            "--num-prompts",
            "2",
            "--keep-raw",
            "--runs",
            f"runs/{i}",
            "--ready-check-timeout-sec",
            "0",
            "--no-correctness-check",
            "--allow-void",
        ]
        assert main(bench(scripted(echo).base_url, *words)) == 0
        assert echo.reported == 2
    assert leaks(tmp_path) == {}


STUDY = """
on_failure = "carry_on"
[engines.theirs]
kind = "openai"
base_url = "{base}"
model = "m"
api_key_env = "THEIR_WORD"
[engines.ours]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
env = {{ PGPASSWORD = "{password}", WORD = "1" }}
before = ["echo --secret-key {key} and {password}"]
after = ["curl -H 'Authorization: Bearer {key}' http://127.0.0.1:9 || true"]
[workloads.w]
input_len = 8
output_len = 3
num_prompts = {prompts}
[loads.c]
max_concurrency = 2
[trial]
extra_body = [{{ a = {{ password = "{nested}" }} }}, {{ b = [{{ password = "{nested}" }}] }}]
metadata = {{ note = "x", api_key = "{nested}" }}
"""


def test_a_studys_keys_reach_nothing(
    dyno: Dyno, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    echo = Echo(KEY, NESTED)
    study = STUDY.format(
        base=scripted(echo).base_url,
        key=KEY,
        password=PASSWORD,
        nested=NESTED,
        prompts=len(echo.answers),
    )
    (tmp_path / "s.toml").write_text(study)
    (tmp_path / "wrong.toml").write_text(
        study.replace('note = "x"', f'note = [{{ api_key = "{NESTED}" }}]')
    )
    assert "must be a table, but is" in dyno("run", "wrong.toml").text
    (tmp_path / "wrong.toml").unlink()
    dyno("run", "s.toml", "--dry-run", THEIR_WORD=KEY)
    dyno("run", "s.toml", "--keep-raw", THEIR_WORD=KEY)
    trials = [*tmp_path.glob("runs/s/trials/*/summary.json")]
    assert len(trials) == 4
    assert (tmp_path / "runs/s/report.html").exists()
    kept = (tmp_path / "runs/s/study.toml").read_text()
    assert kept.count("[redacted]") >= 5 and "first_ms=2" in kept
    for log in (tmp_path / "runs").rglob("engine.log"):
        assert "secret-key" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600
    reported_everywhere(dyno, tmp_path, "runs/s")
    modes = {
        oct(p.stat().st_mode & 0o777)
        for p in (tmp_path / "runs", *(tmp_path / "runs").rglob("*"))
        if p.is_dir()
    }
    assert modes == {"0o700"}
    copied = {
        oct(p.stat().st_mode & 0o777) for p in (tmp_path / "copy").rglob("*") if p.is_file()
    }
    assert copied == {"0o600"}


def test_what_a_killed_dyno_leaves_is_not_sent_and_shown_without_words(
    dyno: Dyno, scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    """Who shows it later may not know the key that was sent, so that it can't be taken out of the answers."""
    half = len(KEY) // 2
    echo = Echo(KEY)
    echo.answers = [
        [stream("a", KEY[:half], KEY[half:], "z")],
        [stream("a", "b", model=escaped(KEY))],
    ]

    def slowly(sock: socket.socket, number: int) -> None:
        for asked in requests(sock):
            if "/completions" not in asked.line:
                sock.sendall(echo.of_itself(asked.line.split()[1].partition("?")[0]))
                continue
            echo.reported += 1
            sock.sendall(echo.answers[echo.reported % 2][0])
            if echo.reported > 6:
                time.sleep(60)

    words = bench(
        scripted(slowly).base_url,
        "--num-prompts",
        "50",
        "--header",
        f"X-Api-Key={KEY}",
        "--ready-check-timeout-sec",
        "0",
        "--no-correctness-check",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "dyno", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(
        lambda: [
            p for p in tmp_path.glob("runs/*/exchanges.spool") if len([*responses(p)]) >= 7
        ]
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    [run] = (tmp_path / "runs").iterdir()
    assert (
        run.stat().st_mode & 0o777,
        (run / "exchanges.spool").stat().st_mode & 0o777,
    ) == (0o700, 0o600)
    # the tokens have it, read by nobody yet
    assert [*leaks(tmp_path)] == [f"runs/{run.name}/exchanges.spool"]
    refused = dyno("runs", "pack", run.name)
    assert refused.code == 2 and "raw bytes" in refused.text
    shown = dyno("runs", "show", run.name)
    assert shown.code == 0
    records = [
        json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()
    ]
    assert len(records) >= 7 and {r["text"] for r in records} == {""}
    assert sum(r["error"] is None and r["output_tokens"] > 1 for r in records) >= 6
    assert leaks(tmp_path) == {}
    assert dyno("runs", "pack", run.name).code == 0


def wait_for(condition: Callable[[], object], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- while an engine runs ----


def script(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def test_what_a_running_engine_logs_is_for_the_owner_and_no_process_shows_a_key(
    dyno: Dyno, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir(mode=0o755)
    binary = script(
        tmp_path / "vllm",
        f"import time\nprint('key is {KEY}', flush=True)\ntime.sleep(600)\n",
    )
    words = [
        *(
            "bench",
            "serve",
            "--engine",
            "vllm",
            "--model",
            "m",
            "--engine-binary",
            binary,
            "--num-prompts",
            "2",
        ),
        *(
            "--engine-env",
            f"MY_SECRET={KEY}",
            f"--engine-after=echo --password {PASSWORD} > after.txt",
            "--header",
            f"X-K={OTHER}",
        ),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "dyno", *words],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, umask=0o022,
    )  # fmt: skip
    try:
        wait_for(
            lambda: [
                p
                for p in tmp_path.glob("runs/*/engine.log")
                if KEY[:5] in p.read_text() or "***" in p.read_text()
            ]
        )
        [log] = tmp_path.glob("runs/*/engine.log")
        assert log.stat().st_mode & 0o777 == 0o600
        assert log.parent.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o755  # it was there
        mine = [p for p in psutil.process_iter() if _of(p, process.pid)]
        assert len(mine) > 1
        reported = [word for p in mine if p.pid != process.pid for word in _cmdline(p)]
        assert not shows("\n".join(reported).encode()), reported
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    # what was asked for is done
    assert (tmp_path / "after.txt").read_text() == f"--password {PASSWORD}\n"
    (tmp_path / "after.txt").unlink()
    assert leaks(tmp_path / "runs") == {}


def test_the_log_of_an_engine_whose_dyno_was_killed_is_not_sent(
    dyno: Dyno, tmp_path: Path
) -> None:
    binary = script(
        tmp_path / "vllm",
        f"import time\nprint('key is {KEY}', flush=True)\ntime.sleep(600)\n",
    )
    words = [
        "bench",
        "serve",
        "--engine",
        "vllm",
        "--model",
        "m",
        "--engine-binary",
        binary,
        "--engine-env",
        f"A_KEY={KEY}",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "dyno", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(
        lambda: [
            p
            for p in tmp_path.glob("runs/*/engine.log")
            if re.search(rf"{KEY}|\*{{9}}", p.read_text())
        ]
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    [run] = (tmp_path / "runs").iterdir()
    wait_for(lambda: not [p for p in psutil.process_iter() if binary in _cmdline(p)])
    packed = dyno("runs", "pack", run.name, "-o", "sent.tar.zst")
    assert (packed.code, "since a key may be in it" in packed.text) == (0, True)
    assert dyno("runs", "unpack", "sent.tar.zst", "--runs", "copy").code == 0
    assert (tmp_path / "copy" / run.name / "engine.json").exists()
    assert leaks(tmp_path / "copy") == {}


def _of(process: psutil.Process, top: int) -> bool:
    """Started by it, or by what it started: the watcher of an engine is nobody's child."""
    try:
        marked = process.pid == top or top in (p.pid for p in process.parents())
        return marked or process.cwd() == psutil.Process(top).cwd()
    except psutil.Error:
        return False


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# ---- dry runs ----


def test_a_dry_run_runs_nothing_of_the_studys(dyno: Dyno, tmp_path: Path) -> None:
    evil = script(
        tmp_path / "evil.sh",
        f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\nprint('version: 1234')\n",
    )
    # Only docker is asked: for the list of missing images, and for their sizes. Its answer is no JSON here.
    asked = script(
        tmp_path / "docker.sh",
        f"import sys\nopen({str(tmp_path / 'asked')!r}, 'a').write(' '.join(sys.argv[1:3]) + chr(10))",
    )
    for name in (
        "vllm",
        "llama-server",
        "text-generation-launcher",
        "docker",
        "podman",
        "python3",
    ):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(
            asked if name in ("docker", "podman") else evil
        )
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    (tmp_path / "s.toml").write_text(
        """
[engines.binary]
kind = "llamacpp"
binary = "./evil.sh"
model = "org/name"
before = ["./evil.sh"]
[engines.python]
kind = "vllm"
python = "./evil.sh"
model = "org/name"
version = "0.9.1"
[engines.found]
kind = "tgi"
model = "org/name"
[engines.box]
kind = "vllm"
model = "org/name"
container = { image = "vllm/vllm-openai:v0.9.0", tool = "docker" }
[workloads.w]
input_len = 8
output_len = 3
num_prompts = 3
[loads.c]
max_concurrency = 1
"""
    )
    said = dyno("run", "s.toml", "--dry-run", PATH=path).text
    assert (
        "of unknown version, its newest flags assumed (a dry run doesn't ask the program)"
        in said
    )
    assert "0.9.1 (as the setting says; a dry run doesn't ask the program)" in said
    engine = ["--engine-binary", "./evil.sh", "--model", "org/name", "--dry-run"]
    for words in (
        ["bench", "serve", "--engine", "vllm", *engine],
        ["bench", "throughput", "--engine", "vllm", *engine],
        ["bench", "latency", "--engine", "llamacpp", *engine],
        ["bench", "micro", "--engine", "llamacpp", *engine],
        ["engines", "start", "vllm", *engine],
    ):
        dyno(*words, PATH=path)
    assert not (tmp_path / "ran").exists()
    assert set((tmp_path / "asked").read_text().splitlines()) == {
        "--version",
        "ps --quiet",
        "image inspect",
        "manifest inspect",
    }
    assert not (tmp_path / "runs").exists()
