"""Names, errors and files that would steer a terminal: whatever the command, they are shown and not obeyed."""

import csv
import io
import json
import os
import pty
import signal
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import Scripted, answer
from dyno.cli.main import main

# Colour, title, bell, 8-bit CSI, return, backspace, delete, turned writing, no width, other line ends, tags, filler.
STEERS = (
    "\x1b[31m", "\x1b]0;owned\x07", "\x9b2J", "\x85", "\r", "\b", "\x7f", "\0", "\x0b\x0c", "\u202a\u202b\u202c\u202d",
    "\u202e", "\u2066\u2067\u2068\u2069", "\u200b\u200c\u200d\u200e\u200f", "\ufeff", "\u2060", "\u2028\u2029", "\xad",
    "\u061c", "\U000e0041", "\u3164",
)  # fmt: skip
BAD = "mo" + "".join(STEERS) + "del"
NAME = "evil" + BAD.replace("\0", "")  # of a file
BLOCK = (
    Path(__file__).parent.parent / "fixtures" / "imports" / "vllm-0.24-serve-c64.txt"
).read_text()
Check = Callable[..., str]


def steering(text: str) -> list[str]:
    """By Unicode's own categories, and what of other categories has no look."""
    return [
        c
        for c in text
        if (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t")
        or c in "\u3164"
    ]


@pytest.fixture
def quiet(
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Check:
    """Runs a command, and holds what it prints against that. Returns its standard output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*words: str, code: int | None = 0, shows: str = "") -> str:
        try:
            got = main(list(words))
        except SystemExit as e:
            got = int(e.code or 0)
        out, err = (data.decode() for data in capsysbinary.readouterr())
        assert not steering(out + err), (words, steering(out + err))
        assert "Traceback" not in err
        assert code is None or got == code, err
        assert shows in out + err, out + err
        return out

    return run


def on_a_terminal(*words: str, cwd: Path) -> str:
    """What dyno writes where both its outputs are one."""
    mine, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dyno", *words], stdin=its, stdout=its, stderr=its, cwd=cwd
    )
    os.close(its)
    parts = []
    while True:
        try:
            data = os.read(mine, 1 << 16)
        except OSError:  # as Linux ends it
            break
        if not data:
            break
        parts.append(data)
    os.close(mine)
    process.wait(60)
    return b"".join(parts).decode().replace("\r\n", "\n")


def speaking(
    status: int = 200, body: bytes = b"", model: str = BAD
) -> Callable[[Any, int], None]:
    """A server of a hostile name; what it answers to a generation is given."""

    def reply(sock: Any, status: int, data: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)

    def talk(sock: Any, _: int) -> None:
        data = b""
        while more := sock.recv(1 << 16):
            data += more
            while b"\r\n\r\n" in data:
                head, _, rest = data.partition(b"\r\n\r\n")
                fields = dict(
                    line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:]
                )
                length = int(fields.get(b"content-length", 0))
                if len(rest) < length:
                    break
                data = rest[length:]
                if head.startswith(b"GET /v1/models"):
                    reply(
                        sock,
                        200,
                        json.dumps({"data": [{"id": model, "root": model}]}).encode(),
                    )
                elif head.startswith(b"GET /version"):
                    reply(sock, 200, json.dumps({"version": BAD}).encode())
                elif head.startswith(b"GET"):
                    reply(sock, 404, BAD.encode())
                elif body:
                    reply(sock, status, body)
                else:
                    sock.sendall(answer(4))

    return talk


SERVE = [
    "bench",
    "serve",
    "--num-prompts",
    "4",
    "--max-concurrency",
    "2",
    "--input-len",
    "4",
    "--output-len",
    "4",
]
SERVE += ["--allow-void"]


# ---- servers ----


def test_a_server_s_names_and_answers(
    quiet: Check, scripted: Callable[..., Scripted]
) -> None:
    url = scripted(speaking()).base_url
    quiet(*SERVE, "--base-url", url, code=1)  # no name there that dyno would ask for
    quiet(*SERVE, "--base-url", url, "--model", "m")
    quiet(*SERVE, "--base-url", url, "--model", "m", "--json")
    run = str(next(Path("runs").glob("*serve-*")))
    for words in (
        ["runs"],
        ["runs", "list", "--json"],
        ["runs", "show", run],
        ["runs", "show", run, "--json"],
    ):
        quiet(*words)
    quiet("report", "runs", "--allow-void", "-o", "r.md", "-o", "r.csv")
    for name in ("r.md", "r.csv"):
        assert not steering(Path(name).read_text()), name
    quiet("compare", run, run, code=None)
    quiet("runs", "tag", run, "--add", "published", code=None)
    quiet("runs", "pack", run, "-o", "p.tar.zst")
    quiet("runs", "unpack", "p.tar.zst", "--runs", "other")
    quiet("runs", "delete", run, "--yes")


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 200])
def test_a_server_s_errors(
    quiet: Check, scripted: Callable[..., Scripted], status: int
) -> None:
    server = scripted(
        speaking(
            status, json.dumps({"error": {"message": BAD}}, ensure_ascii=False).encode()
        )
    )
    quiet(*SERVE, "--base-url", server.base_url, code=None)
    quiet(*SERVE, "--base-url", server.base_url, "--num-warmups", "1", code=None)
    quiet(
        *SERVE, "--base-url", server.base_url, "--ready-check-timeout-sec", "1", code=None
    )
    quiet("runs")
    quiet("runs", "list", "--all")


def test_a_server_s_lines_do_not_look_like_dyno_s_own(
    quiet: Check, scripted: Callable[..., Scripted]
) -> None:
    server = scripted(speaking(500, b"x\ndyno: all is well\nVerdict: sound"))
    words = [*SERVE, "--base-url", server.base_url, "--ready-check-timeout-sec", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "dyno", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "all is well" in done.stderr
    assert [
        line
        for line in done.stderr.splitlines()
        if line.startswith(("Verdict", "dyno: all"))
    ] == []


def test_a_server_that_speaks_no_http(
    quiet: Check, scripted: Callable[..., Scripted]
) -> None:
    server = scripted(lambda sock, _: sock.sendall(f"{BAD}\r\n\r\n".encode()))
    quiet(*SERVE, "--base-url", server.base_url, code=1)


def test_the_screen_of_a_study_and_of_a_load_is_steered_by_dyno_alone(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    url = scripted(speaking()).base_url
    (tmp_path / "s.toml").write_text(
        f'[engines."{msgspec.json.encode(BAD).decode()[1:-1]}"]\nkind = "openai"\nurl = "{url}"\n[workloads.w]\n'
        "input_len = 4\noutput_len = 4\n[loads.c]\nmax_concurrency = 2\nrequests_per_stream = 2\n"
    )
    own = ("\x1b[K", "\x1b[J", *(f"\x1b[{i}A" for i in range(1, 9)), "\r")
    for words in (
        ["run", "s.toml", "--no-report"],
        [*SERVE, "--base-url", url],
        ["run", "s.toml", "--dry-run"],
    ):
        text = on_a_terminal(*words, cwd=tmp_path)
        for mine in own:
            text = text.replace(mine, "")
        assert not steering(text), (words, text)


# ---- files ----


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A text with a hostile name, and one of hostile words."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / NAME).write_text(BLOCK)
    named = os.fsdecode(b"files/\xff\xfe\x1b[2Jb.md")
    (tmp_path / named).write_text(
        f"# {BAD}\n\n| {BAD} | tok/s |\n|---|---|\n| {BAD} | 12.5 |\n\n{BLOCK}"
    )
    return [f"files/{NAME}", named]


def test_audits_imports_and_comparisons(quiet: Check, files: list[str]) -> None:
    for words in (
        ["audit"],
        ["audit", "--markdown"],
        ["audit", "--json"],
        ["import", "--runs", "imp"],
    ):
        quiet(*words, *files, code=None)
    quiet("import", *files, "--json", "--runs", "imp2", code=None)
    for words in (["compare"], ["compare", "--markdown"], ["compare", "--json"]):
        quiet(*words, *files, code=None)
    quiet("runs", "--runs", "imp")
    quiet("report", *files, "-o", "r.md", code=None)
    if Path("r.md").exists():
        assert not steering(Path("r.md").read_text())


def test_json_that_is_shown_is_still_the_same_json(quiet: Check, files: list[str]) -> None:
    reported = json.loads(quiet("import", files[0], "--json", "--runs", "imp"))
    assert reported[0]["file"] == NAME


def test_what_is_not_there_is_named(quiet: Check) -> None:
    for words in (["audit", NAME], ["import", NAME], ["compare", NAME, NAME], ["runs", "show", NAME], ["report", NAME],
                  ["runs", "unpack", NAME], ["run", NAME], ["sql", "--file", NAME], ["runs", "delete", NAME, "--yes"],
                  ["runs", "tag", NAME, "--add", "x"], ["runs", "pack", NAME]):  # fmt: skip
        quiet(*words, code=None)


def test_a_study_of_hostile_words(quiet: Check, tmp_path: Path) -> None:
    for text in (
        BAD,
        f'["{BAD}"]\n',
        f"[engines.x]\nkind = {json.dumps(BAD)}\n",
        f"[{json.dumps(BAD)}]\nx = 1\n",
    ):
        Path("s.toml").write_text(text)
        quiet("run", "s.toml", code=2)


# ---- the command line ----


def test_arguments_are_handed_back_and_not_obeyed(quiet: Check) -> None:
    for words in ([BAD], [f"--{BAD}"], ["bench", BAD], ["bench", "serve", f"--{BAD}", BAD], ["runs", f"--{BAD}"],
                  ["bench", "serve", "--max-concurrency", BAD], ["bench", "serve", "--backend", BAD],
                  ["bench", "serve", "--base-url", BAD], ["bench", "serve", "--base-url", f"http://{BAD}"],
                  ["bench", "serve", "--base-url", "http://127.0.0.1:1", "--header", BAD], ["sql", BAD],
                  ["bench", "serve", "--engine", BAD], ["bench", "serve", "--engine", "fake", "--model", BAD],
                  ["bench", "serve", "--engine", "vllm", "--model", BAD]):  # fmt: skip
        quiet(*words, code=None)


def test_a_mistake_of_dyno_s_own_is_one_line(
    quiet: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DYNO_TRACEBACK")
    for error in (
        ValueError(BAD),
        MemoryError(),
        OSError(24, "Too many open files", NAME),
        RecursionError(BAD),
    ):

        def raising(_: object, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr("dyno.cli.runs.list_", raising)
        quiet("runs", code=1, shows="ulimit -n" if isinstance(error, OSError) else "dyno: ")


# ---- engines ----


def test_the_last_words_of_an_engine(quiet: Check, tmp_path: Path) -> None:
    binary = tmp_path / "vllm"
    binary.write_text(
        f"#!{sys.executable}\nprint({'RuntimeError: ' + BAD!r}, flush=True)\nraise SystemExit(3)\n"
    )
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    quiet(
        "bench",
        "serve",
        "--engine",
        "vllm",
        "--model",
        "m",
        "--engine-binary",
        str(binary),
        code=1,
        shows="code 3",
    )


# ---- tables ----

QUERY = "select chr(27) || '[31m' || chr(8238) as a, '=1+1' as b, '-' as c, -5 as d, '-5' as e, '@cf/meta' as f"


def test_sql_s_answers_are_clean_wherever_they_are_read_by_a_person(
    quiet: Check, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    for how in ([], ["--json"], ["--markdown"]):
        quiet("sql", QUERY, *how)
    (row,) = json.loads(quiet("sql", QUERY, "--json"))
    assert row["a"] == "\x1b[31m\u202e" and row["b"] == "=1+1" and row["f"] == "@cf/meta", (
        "JSON is exact"
    )
    assert not steering(on_a_terminal("sql", QUERY, "--csv", cwd=tmp_path))


def test_sql_s_csv_is_exact_for_programs_but_for_what_a_spreadsheet_would_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "runs").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "dyno", "sql", QUERY, "--csv"],
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    _, row = csv.reader(io.StringIO(done.stdout.decode(), newline=""))
    assert row == ["\x1b[31m\u202e", "'=1+1", "'-", "-5", "-5", "'@cf/meta"]


# ---- what is no word of others' ----


def test_ctrl_c_while_dyno_is_still_being_loaded_is_not_a_traceback() -> None:
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "dyno", "runs"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr
        # the first of many modules is loaded
        while b"dyno.cli" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode in (0, 130)
        assert b"Traceback" not in err
