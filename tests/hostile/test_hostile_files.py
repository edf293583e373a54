"""Files that mean harm, or that a crash has left: one sentence each, bounded, and the other runs are still there."""

import io
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dyno.audit.document import read_bytes
from dyno.cli.main import main
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.facts.study import Place, PlannedTrial, Study
from dyno.probe import model
from dyno.store.run import Run
from dyno.store.study import Failure, StudyFolder, write_failure

HERE = Path(__file__).parent.parent
ROOT = HERE.parent
Say = Callable[..., tuple[int, str, str]]


@contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """A test that hangs ends here, with the place where it hung."""

    def over(*_: object) -> None:
        raise TimeoutError(f"still at it after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """A command: its exit code and what it said. Only dyno's own errors may come of it."""

    def call(*words: Any) -> tuple[int, str, str]:
        with bounded(60):
            code = main([str(word) for word in words])
        reported = capsys.readouterr()
        assert "Traceback" not in reported.err
        return code, reported.out, reported.err

    return call


# ---- files of a run, a study, a shelf ----


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    with Fake.start(FakeSpec(first_ms=2, gap_ms=1), folder / "log") as fake:
        words = [
            "bench",
            "serve",
            "--base-url",
            fake.base_url,
            "--num-prompts",
            "6",
            "--max-concurrency",
            "3",
        ]
        words += [
            "--random-input-len",
            "20",
            "--random-output-len",
            "4",
            "--keep-raw",
            "--disable-tqdm",
        ]
        assert main([*words, "--runs", str(folder / "runs")]) == 0
    (run,) = (folder / "runs").iterdir()
    (run / "tags.json").write_text('["published"]')
    (run / "engine.log").write_text("ready\n")
    return run


FILES = {
    "bad": [
        "trial.json",
        "summary.json",
        "records.jsonl",
        "client.json",
        "telemetry.jsonl",
        "requests.jsonl",
        "tags.json",
        "engine.log",
        "engine.json",
        "failed.json",
        "first_failure.json",
        "iterations.jsonl",
    ],
    "cut": [
        "trial.json",
        "exchanges.spool",
        "requests.jsonl",
        "client.json",
        "telemetry.jsonl",
    ],
    "tp": [
        "study.json",
        "study.toml",
        "skipped.json",
        "tags.json",
        ".lock",
        "trials",
        "trials/fast-short-l1-id1/failed.json",
        "trials/fast-short-l0-id0/summary.json",
    ],
}


@pytest.fixture
def shelf(tmp_path: Path, measured: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, one that was cut off, a study with one trial done, one failed, one skipped, and an import."""
    runs = tmp_path / "runs"
    for name in ("good", "bad"):
        shutil.copytree(measured, runs / name)
    cut = shutil.copytree(measured, runs / "cut")
    for name in ("summary.json", "records.jsonl"):
        (cut / name).unlink()
    trial = Run(measured).manifest().trial
    places = [Place("tp", f"id{i}", "fast", "short", f"l{i}") for i in range(3)]
    study = StudyFolder(runs / "tp")
    study.write(Study("tp", [PlannedTrial(place, trial) for place in places]), "# a study")
    shutil.copytree(measured, study.run(places[0]).path)
    write_failure(
        study.fresh(places[1]), Failure("out of memory", 2, "2026-01-01T00:00:00+00:00")
    )
    study.write_skipped({"id2": "saturated"})
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(HERE / "captures" / "vllm-0.32-serve.json")]) == 0
    return runs


DEEP = b'{"a":' + b"[" * 100_000


def _to(path: Path) -> Callable[[Path], None]:
    return lambda at: at.symlink_to(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        s.bind(path.name)
        os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a device": _to(Path("/dev/zero")),
    "a link to nothing": _to(Path("nowhere")),
    "a link to itself": lambda at: at.symlink_to(at.name),
    "empty": Path.touch,
    "zeros": lambda at: at.write_bytes(bytes(4096)),
    "rubbish": lambda at: at.write_bytes(random.Random(1).randbytes(5000)),
    "not UTF-8": lambda at: at.write_bytes(b'{"dyno": "\xff\xfe", "started": "\xff"}\n'),
    "nested": lambda at: at.write_bytes(DEEP),
    "a list": lambda at: at.write_bytes(b"[]\n"),
    "null": lambda at: at.write_bytes(b"null\n"),
    "an object": lambda at: at.write_bytes(b"{}\n"),
}


MUCH_LIKE_OTHERS = ("a socket", "a link to itself", "zeros", "not UTF-8", "null")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.nightly if kind in MUCH_LIKE_OTHERS else ())
        for kind in (*KINDS, "cut in the middle")
    ],
)
def test_whatever_lies_where_a_file_belongs_is_reported_and_the_other_runs_are_listed(
    shelf: Path, say: Say, kind: str
) -> None:
    """Each of a run's and a study's files in turn, in a copy of its own beside the others."""
    wrong: list[str] = []

    def reported(*words: str) -> str:
        try:
            return say(*words)[1]
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            wrong.append(
                f"{kind}: {' '.join(words)}: {e!r:.200} ({last.filename}:{last.lineno})"
            )
            return ""

    spoiled = [Path("runs/imports/vllm-0.32-serve.json.json")]
    for folder, names in FILES.items():
        spoiled += [
            shutil.copytree(
                shelf / folder, Path("runs") / f"{folder}-{name.replace('/', '-')}"
            )
            / name
            for name in names
        ]
    for path in spoiled:
        data = path.read_bytes() if path.is_file() else b""
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if kind in KINDS:
            KINDS[kind](path.absolute())
        else:
            path.write_bytes(data[: len(data) // 2])
    assert "runs/good" in reported("runs", "list", "--all")
    assert "runs/good" in reported("runs", "list", "--json")
    out = reported("sql", "select completed from trials where run = 'runs/good'", "--json")
    assert json.loads(out) == [{"completed": 6}]
    reported(
        "sql",
        "select count(*) from requests, (select count(*) from telemetry), (select count(*) from iterations)",
    )
    code, _, err = say("report", "runs", "-o", "x.md")
    assert code == 0, err
    reported("runs", "show", str(spoiled[0]))
    reported("audit", str(spoiled[0]))
    for path in spoiled[1:]:
        folder = "/".join(path.parts[:2])
        reported("runs", "show", folder)
        reported("compare", "runs/good", folder)
        reported("runs", "pack", folder, "-o", "y.tar.zst", "--no-prompts")
        reported("runs", "tag", folder, "--add", "x")
        reported("runs", "delete", folder)  # without --yes: nothing goes
        Path("y.tar.zst").unlink(missing_ok=True)
    assert not wrong, "\n".join(wrong)


# ---- archives ----


class Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        got = min(len(room), self._left)
        room[:got] = bytes(got)
        self._left -= got
        return got


def member(name: str, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


SPARSE = {
    "GNU.sparse.major": "1",
    "GNU.sparse.minor": "0",
    "GNU.sparse.realsize": str(1 << 40),
    "GNU.sparse.name": "run/b",
}
BOMBS: dict[str, list[tarfile.TarInfo]] = {
    "2 GB of zeros": [member("run/engine.log", size=2 << 30)],
    "many empty files": [member(f"run/{i}") for i in range(10_000)],
    "a name of 10,000 letters": [member("run/" + "x" * 10_000)],
    "folders in folders": [member("run/" + "x/" * 3_000 + "y")],
    "a header of megabytes": [member("run/x", pax_headers={"comment": "x" * (3 << 20)})],
    "a NUL in a name": [member("run/a", pax_headers={"path": "run/a\0b"})],
    "a size below zero": [member("run/a", pax_headers={"size": "-5"})],
    "a size beyond all disks": [member("run/a", pax_headers={"size": "9" * 20})],
    "a sparse file": [member("run/a", pax_headers=SPARSE)],
    "a pipe": [member("run/p", type=tarfile.FIFOTYPE)],
    "a device": [member("run/d", type=tarfile.BLKTYPE)],
    "the same name twice": [member("run/a"), member("run/a")],
    "a file that is a folder, too": [member("run/a"), member("run/a/b")],
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_archive_that_means_harm_is_refused_soon_and_leaves_nothing(
    tmp_path: Path, say: Say, bomb: str
) -> None:
    archive = tmp_path / "a.tar.zst"
    with (
        zstandard.open(archive, "wb") as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        tar.addfile(member("run/trial.json", size=2), io.BytesIO(b"{}"))
        for info in BOMBS[bomb]:
            tar.addfile(info, Zeros(info.size))  # type: ignore[arg-type]
    before = time.process_time()
    code, out_, err = say("runs", "unpack", archive, "--runs", tmp_path / "runs")
    assert (code, out_, err.count("\n")) == (1, "", 1), err
    assert time.process_time() - before < 10
    assert not (tmp_path / "runs").exists()


def test_an_honest_archive_that_shrinks_much_is_unpacked_where_the_user_allows_it(
    tmp_path: Path, say: Say, measured: Path
) -> None:
    archive = tmp_path / "a.tar.zst"
    run = shutil.copytree(measured, tmp_path / "run")
    with (run / "engine.log").open("wb") as log:
        log.truncate(300 << 20)
    assert say("runs", "pack", run, "-o", archive)[0] == 0
    code, _, err = say("runs", "unpack", archive, "--runs", tmp_path / "runs")
    assert code == 1 and "--max-size 1G" in err
    code, _, err = say(
        "runs", "unpack", archive, "--runs", tmp_path / "runs", "--max-size", "200M"
    )
    assert code == 1 and "more than 200 MiB" in err
    assert (
        say("runs", "unpack", archive, "--runs", tmp_path / "runs", "--max-size", "1G")[0]
        == 0
    )
    assert (tmp_path / "runs/run/engine.log").stat().st_size == 300 << 20


# ---- files that a command or a study names ----

NOT_FILES = [
    "/dev/zero",
    "/dev/urandom",
    "pipe",
    "socket",
    ".",
    "loop",
    "absent",
    "x" * 300,
    "x\0y",
]
STUDY = """
[engines.e]
kind = "fake"
[workloads.w]
dataset = "custom"
path = "{path}"
output_len = 4
num_prompts = 4
[loads.l]
max_concurrency = 1
"""


@pytest.mark.parametrize("name", NOT_FILES)
def test_what_is_not_a_file_is_reported_in_a_sentence_by_every_command(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    _socket(tmp_path / "socket")
    Path("loop").symlink_to("loop")
    Path("study.toml").write_text(STUDY.format(path=name.replace("\0", "\\u0000")))
    shutil.copy(HERE / "captures" / "vllm-0.32-serve.json", "good.json")
    to_nowhere = [
        "bench",
        "serve",
        "--base-url",
        "http://127.0.0.1:1",
        "--model",
        "m",
        "--num-prompts",
        "2",
    ]
    commands: list[list[str]] = [
        ["run", name, "--dry-run"],
        ["run", "study.toml", "--dry-run"],
        ["import", name],
        ["audit", name],
        ["compare", "good.json", name],
        ["report", name, "-o", "x.md"],
        ["report", "good.json", "--prices", name, "-o", "y.md"],
        ["runs", "show", name],
        ["runs", "unpack", name],
        ["runs", "list", name],
        ["sql", "--file", name],
        [*to_nowhere, "--dataset-name", "custom", "--dataset-path", name],
        [*to_nowhere, "--dataset-name", "sharegpt", "--dataset-path", name],
        [*to_nowhere, "--tokenizer", name],
    ]
    wrong = []
    for words in commands:
        try:
            _, _, err = say(*words)
            if len(err) > 3000:
                wrong.append(f"{words}: {err[:300]}")
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            wrong.append(f"{words}: {e!r:.200} ({last.filename}:{last.lineno})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "words",
    [
        "audit <(cat {good})",
        "audit - < {good}",
        "import <(cat {good})",
        "runs unpack <(cat {archive})",
        "sql --file <(echo 'select 7')",
        "run <(cat {study}) --dry-run",
        "report {good} --prices <(cat {prices}) -o x.md",
    ],
)
def test_what_a_program_writes_into_a_pipe_is_still_read(
    tmp_path: Path, measured: Path, words: str
) -> None:
    assert main(["runs", "pack", str(measured), "-o", str(tmp_path / "a.tar.zst")]) == 0
    (tmp_path / "s.toml").write_text(
        STUDY.replace('dataset = "custom"\npath = "{path}"', "input_len = 4")
    )
    (tmp_path / "p.toml").write_text(
        '[[price]]\naccelerator = "H100"\naccelerator_hour = 2.5\n'
    )
    places = {
        "good": HERE / "captures" / "vllm-0.32-serve.json",
        "archive": tmp_path / "a.tar.zst",
    }
    command = words.format(**places, study=tmp_path / "s.toml", prices=tmp_path / "p.toml")
    line = f'"{sys.executable}" -m dyno {command}'
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (0, 3), done.stderr
    assert done.stdout + done.stderr


# ---- studies that grow ----

GROWING = {
    "variables of variables": "[variables]\nv0 = 'xxxxxxxxxx'\n"
    + "".join(f"v{i} = '{f'${{v{i - 1}}}' * 4}'\n" for i in range(1, 16))
    + "[engines.e]\nkind = 'fake'\nargs = ['${v15}']\n[workloads.w]\ninput_len = 8\noutput_len = 8\nnum_prompts = 1\n"
    "[loads.l]\nmax_concurrency = 1\n",
    "a long variable in many": f"[variables]\nb = '{'x' * 500_000}'\n"
    + "".join(f"a{i} = 'x${{b}}'\n" for i in range(10_000)),
    "a grid of a billion": "[engines.e]\nkind = 'fake'\n[workloads.w]\ninput_len = 8\noutput_len = 8\n[loads.l]\n"
    + "".join(
        f"{key} = {[*range(1, 1001)]}\n"
        for key in ("max_concurrency", "num_prompts", "num_warmups")
    ),
    "a grid of the same": "[engines.e]\nkind = 'fake'\n[workloads.w]\ninput_len = 8\noutput_len = 8\n[loads.l]\n"
    + "".join(
        f"{key} = {[1] * 1000}\n"
        for key in ("max_concurrency", "num_prompts", "num_warmups")
    ),
    "brackets": "a = " + "[" * 100_000,
    "tables in tables": "a = " + "{a = " * 100_000,
    "a name of many parts": ".".join(["a"] * 300_000) + " = 1",
    "a number of many digits": "seed = " + "9" * 10_000,
    "a number of many bits": "seed = 0x" + "f" * 10_000,
    "a chain of engines": "".join(
        f"[engines.e{i}]\nlike = 'e{i + 1}'\n" for i in range(3_000)
    ),
    "mistakes": "".join(f"k{i} = 1\n" for i in range(50_000)),
    "megabytes": "about = '" + "x" * (5 << 20) + "'",
}


@pytest.mark.parametrize("name", GROWING)
def test_a_study_that_grows_is_refused_before_it_fills_the_memory(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "s.toml").write_text(GROWING[name])
    done = _in_a_small_room(["run", "s.toml", "--dry-run"], tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("dyno: ") and "Traceback" not in done.stderr


def _in_a_small_room(
    words: list[str], cwd: Path, gigabytes: int = 1
) -> subprocess.CompletedProcess[str]:
    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))

    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dyno", *words]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limits,
        env=environ,
    )


# ---- heads of models ----


def _gguf(*parts: bytes) -> bytes:
    return b"GGUF" + struct.pack("<I", 3) + b"".join(parts)


HUGE = 1 << 60
HEADS = {
    "m.gguf": [
        _gguf(struct.pack("<QQ", HUGE, HUGE)),
        _gguf(struct.pack("<QQ", 0, 1), struct.pack("<Q", HUGE)),
        _gguf(
            struct.pack("<QQ", 0, 1),
            struct.pack("<Q", 1),
            b"a",
            struct.pack("<IIQ", 9, 8, HUGE),
        ),
        _gguf(
            struct.pack("<QQ", 0, 1),
            struct.pack("<Q", 1),
            b"a",
            struct.pack("<IIQ", 9, 4, HUGE),
        ),
        _gguf(
            struct.pack("<QQ", 0, 1),
            struct.pack("<Q", 1),
            b"a",
            struct.pack("<IIQ", 9, 9, 5) * 5_000,
        ),
        _gguf(
            struct.pack("<QQ", 1, 0), struct.pack("<Q", 1), b"a", struct.pack("<I", 1 << 31)
        ),
    ],
    "m.safetensors": [
        struct.pack("<Q", HUGE) + b"{}",
        struct.pack("<Q", 100_005) + DEEP,
        struct.pack("<Q", 2) + b"\xff\xff",
        b"",
    ],
}


@pytest.mark.parametrize(
    ("file", "number"),
    [(file, i) for file, heads in HEADS.items() for i in range(len(heads))],
)
def test_a_head_that_claims_the_moon_is_not_a_model(
    tmp_path: Path, file: str, number: int
) -> None:
    (tmp_path / file).write_bytes(HEADS[file][number])
    # as long as it claims to be, nearly, and holds nothing
    os.truncate(tmp_path / file, 1 << 36)
    if file == "m.safetensors":
        (tmp_path / "config.json").write_text(
            '{"num_hidden_layers": 99999999999999999999999, "hidden_size": 1e999}'
        )
    before = time.process_time()
    with bounded(30):
        shape = model.read(tmp_path if file == "m.safetensors" else tmp_path / file)
    assert shape is None or not shape.layers
    assert time.process_time() - before < 20


# ---- time and size ----

BLOCK = (HERE / "fixtures" / "imports" / "vllm-0.24-serve-c64.txt").read_bytes()
SLOW = {
    "lines with NaN": b'{"a":NaN}\n' * 90_000,
    "lines that break off": b'{"a":1,\n' * 80_000,
    "a table of a million lines": b"model,mean_ttft_ms,concurrency\n"
    + b"m,1.5,2\n" * 1_000_000,
    "quotes in a text that has no end": b'{"a":"' + b'\\"' * 300_000,
}


@pytest.mark.parametrize("name", SLOW)
def test_large_files_are_read_within_seconds(name: str) -> None:
    before = time.process_time()
    read_bytes("a.x", SLOW[name])
    assert time.process_time() - before < 6  # some 0.7 to 1.5 s where nothing else runs


GROW: dict[str, tuple[Callable[[int], bytes], int]] = {
    "results": (
        lambda n: b"".join(
            b'{"model_id":"m","backend":"vllm","max_concurrency":%d,"duration":1.5,"completed":5,"total_output_tokens":20,'
            b'"request_throughput":%d.5,"output_throughput":%d.25,"mean_ttft_ms":2.5}\n'
            % (i, i, i)
            for i in range(n)
        ),
        200,
    ),
    "the same line of CSV": (
        lambda n: (
            b"model,concurrency,mean_ttft_ms,output_throughput\n" + b"m,4,1.5,2.5\n" * n
        ),
        400,
    ),
    "a table": (
        lambda n: (
            b"| model | concurrency | mean_ttft_ms |\n|---|---|---|\n"
            + b"".join(b"| m%d | %d | 1.5 |\n" % (i, i) for i in range(n))
        ),
        400,
    ),
    "tables": (
        lambda n: b"# h\n| model | mean_ttft_ms |\n|---|---|\n| m | 1.5 |\n\n" * n,
        150,
    ),
    "a table of a page": (
        lambda n: (
            b"<table><tr><th>model</th><th>mean_ttft_ms</th></tr>\n"
            + b"<tr><td>m</td><td>1.5</td></tr>\n" * n
            + b"</table>"
        ),
        400,
    ),
    "blocks": (lambda n: BLOCK * n, 40),
    "a log": (
        lambda n: (
            b"INFO 01-01 engine: Avg prompt throughput: 7.5 tokens/s, running 3\n" * n
        ),
        4_000,
    ),
    "brackets": (lambda n: (b'{"a":[' * 400 + b"\n") * n, 100),
    "flags": (
        lambda n: (
            b"vllm serve m \\\n"
            + b"".join(b" --f-%d %d \\\n" % (i, i) for i in range(n))
            + b"\n"
            + BLOCK
        ),
        3_000,
    ),
    "variables": (
        lambda n: (
            b"".join(b"export A%d=%d\n" % (i, i) for i in range(n))
            + b"vllm serve $A1\n"
            + BLOCK
        ),
        3_000,
    ),
    "keys": (
        lambda n: (
            b"{"
            + b"".join(b'"k%d":1.5,' % i for i in range(n))
            + b'"model_id":"m","duration":1,"completed":2,'
            b'"request_throughput":1.5,"mean_ttft_ms":2.5}'
        ),
        5_000,
    ),
    "columns": (
        lambda n: (
            b",".join(b"c%d_ms" % i for i in range(n))
            + b"\n"
            + (b"1.5," * (n - 1) + b"1\n") * 5
        ),
        800,
    ),
}


@pytest.mark.parametrize("name", GROW)
def test_twice_as_much_takes_about_twice_as_long(
    tmp_path: Path, say: Say, name: str
) -> None:
    make, size = GROW[name]
    took = []
    for i in (1, 4):
        path = tmp_path / f"{i}.md"
        path.write_bytes(make(i * size))
        before = time.process_time()
        say("report", path, "-o", tmp_path / f"{i}-out.md")
        took.append(time.process_time() - before)
    # Four times as much: 4 times as long where it is linear, 16 where it is not; plus what every command takes.
    assert took[1] < 9 * took[0] + 0.5, took


# ---- mutations of real files ----

REAL = sorted(
    path
    for folder in (
        HERE / "captures",
        HERE / "fixtures" / "imports",
        *(ROOT / "published").iterdir(),
    )
    for path in (folder.rglob("*") if folder.is_dir() else [folder])
    if path.is_file() and path.stat().st_size < 200_000
)
TOKENS = [
    b"NaN",
    b"1e999",
    b"-" + b"9" * 400,
    b"null",
    b"[" * 600,
    b'{"a":' * 600,
    b'"',
    b"\\",
    b"\0",
    b"\xff\xfe",
    b"|",
    b"\n",
    b"{}",
    b"[]",
    b"-0",
    b"1e-999",
    b"true",
    b"\r",
    b"\xed\xa0\x80",
    b"0x10",
    b"Infinity",
    b"''",
    b"<table>",
    b"```",
    b"9" * 25,
]


def mutated(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 4, 40, 1000)))
        match chance.randrange(7):
            case 0:
                data = data[:at] + chance.randbytes(1) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + chance.choice(TOKENS) + data[at:]
            case 3:
                data = data[:at] + data[at:end] * chance.choice((2, 30)) + data[end:]
            case 4:
                data = data[:at] + data[end:]
            case _:  # a number becomes something else
                found = [
                    m.span() for m in re.finditer(rb"\d+(?:\.\d+)?", data[at : at + 5000])
                ]
                if found:
                    a, b = chance.choice(found)
                    data = data[: at + a] + chance.choice(TOKENS) + data[at + b :]
    return data


def fuzz(say: Say, folder: Path, seed: int, count: int) -> tuple[list[str], float]:
    """What else than a sentence came of them, and the longest that a command took, in seconds of its own."""
    chance = random.Random(seed)
    wrong: list[str] = []
    longest = 0.0
    good = HERE / "captures" / "vllm-0.32-serve.json"
    for i in range(count):
        source = chance.choice(REAL)
        path = folder / source.name
        path.write_bytes(mutated(source.read_bytes(), chance))
        command = [
            ["audit", path],
            ["import", path, "--runs", folder / "runs"],
            ["compare", good, path],
            ["runs", "show", path],
            ["report", path, "-o", folder / "x.md"],
            ["sql", "select count(*), sum(value) from imported", "--runs", folder / "runs"],
            ["report", good, "--prices", path, "-o", folder / "x.md"],
            ["run", path, "--dry-run"],
        ][chance.choice((0, 0, 1, 2, 3, 4, 4, 5, 6, 7))]
        (folder / "x.md").unlink(missing_ok=True)
        before = time.process_time()
        try:
            say(*command)
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            wrong.append(
                f"{i} {source.name} {command[0]}: {e!r:.200} ({last.filename}:{last.lineno})"
            )
        longest = max(longest, time.process_time() - before)
        path.unlink()
    return wrong, longest


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))]
)
def test_real_files_with_something_changed_give_results_or_a_sentence(
    tmp_path: Path, say: Say, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DYNO_FUZZ: how many of each seed; 125 without it."""
    monkeypatch.chdir(tmp_path)
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, hard))
    try:
        wrong, longest = fuzz(say, tmp_path, seed, int(os.environ.get("DYNO_FUZZ", "125")))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))
    assert not wrong, "\n".join(wrong)
    assert longest < 20, longest


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))]
)
def test_files_of_a_run_with_something_changed_give_results_or_a_sentence(
    shelf: Path, say: Say, measured: Path, seed: int
) -> None:
    chance = random.Random(seed)
    wrong: list[str] = []
    names = [
        "trial.json",
        "summary.json",
        "records.jsonl",
        "client.json",
        "telemetry.jsonl",
        "exchanges.spool",
        "requests.jsonl",
    ]
    for i in range(int(os.environ.get("DYNO_FUZZ", "125")) // 5):
        name = chance.choice(names)
        for folder in ("bad", "cut"):
            if (shelf / folder / name).exists():
                (shelf / folder / name).write_bytes(
                    mutated((measured / name).read_bytes(), chance)
                )
        for words in (
            ["runs", "list"], ["runs", "show", "runs/bad"], ["runs", "show", "runs/cut"], ["audit", "runs/bad"],
            ["compare", "runs/good", "runs/bad"], ["report", "runs", "-o", "x.md"],
            ["sql", "select count(*), max(ttft_ms), max(t.completed) from trials t left join requests using (run)"],
        ):  # fmt: skip
            Path("x.md").unlink(missing_ok=True)
            try:
                say(*words)
            except Exception as e:
                last = traceback.extract_tb(e.__traceback__)[-1]
                wrong.append(
                    f"{i} {name} {words[:2]}: {e!r:.200} ({last.filename}:{last.lineno})"
                )
        for folder in ("bad", "cut"):
            shutil.copy(measured / name, shelf / folder / name)
        for made in ("summary.json", "records.jsonl"):
            (shelf / "cut" / made).unlink(missing_ok=True)
    assert not wrong, "\n".join(wrong)
