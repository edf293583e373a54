"""The commands, programs and queries of README.md and docs/ work as written (tests/listings.py says how).

They run in one folder for each page, which has copies of studies/ and published/, like a clone.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import ExpectDecided, turn
from dyno.cli.main import main
from dyno.engines import model
from dyno.engines.port import free_port
from listings import DOCS, RUN, Listing, listings, name
from reference import ROOT

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

_LOAD = re.compile(
    r"\bdyno (?:find|tune|run|bench serve)\b(?!.*--dry-run)|\bdyno-gate\.sh "
)
# Programs that run alone: a search gives up where it can't keep its own times, and a gate compares times.
_ALONE = re.compile(r"\bdyno (?:find|tune)\b|\bdyno-gate\.sh |^\[find\]", re.M)
_STUDY = re.compile(r"[\w-]+\.toml\b")


_WORKERS = 4  # of `make test-docs`: each begins with a fourth of the pages, in their order
# Long pages whose sections need nothing of one another but the files and servers of the page: in so many parts.
_PARTS = {"docs/find.md": 2, "docs/traffic.md": 3}


class Part(NamedTuple):
    """A page, or some of its sections."""

    path: Path
    sections: range | None = None  # None: all

    @property
    def seconds(self) -> int:
        return sum(_takes(each) for each in listings(self.path) if self.has(each))

    def has(self, listing: Listing) -> bool:
        return self.sections is None or listing.section in self.sections

    def __str__(self) -> str:
        at = (
            ""
            if self.sections is None
            else f", sections {self.sections.start} to {self.sections.stop - 1}"
        )
        return f"{name(self.path)}{at}"


def _pages() -> list[Part]:
    """Pages with something to run. Each worker begins with those that take longest."""
    parts = [part for path in DOCS for part in _parts(path)]
    longest_first = sorted(
        (part for part in parts if part.seconds), key=lambda part: -part.seconds
    )
    return [part for i in range(_WORKERS) for part in longest_first[i::_WORKERS]]


def _parts(path: Path) -> list[Part]:
    """Sections in as many parts as are wanted, which take about as long as one another."""
    wanted = _PARTS.get(name(path), 1)
    if wanted == 1:
        return [Part(path)]
    last = max(listing.section for listing in listings(path)) + 1
    up_to = [Part(path, range(section)).seconds for section in range(last + 1)]
    edges = [
        min(range(last + 1), key=lambda s: abs(up_to[s] - up_to[-1] * k / wanted))
        for k in range(wanted + 1)
    ]
    return [Part(path, range(a, b)) for a, b in pairwise(edges)]


def _takes(listing: Listing) -> int:
    """Roughly, in seconds."""
    if listing.language not in RUN or listing.title or listing.how.startswith("not run"):
        return 0
    return 1 + (8 if listing.how == "slow" else 4 * len(_LOAD.findall(listing.text)))


@pytest.mark.docs
@pytest.mark.parametrize("part", _pages(), ids=str)
def test_the_commands_of_a_page_work(
    part: Part, tmp_path: Path, workers_folder: Path
) -> None:
    for folder in ("studies", "published"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    ports = {port: str(free_port()) for port in ("8000", "8001")}
    env = _environment(tmp_path)
    servers: list[subprocess.Popen[bytes]] = []
    printed = ""
    try:
        for listing in listings(part.path):
            text = re.sub(r"\b800[01]\b", lambda port: ports[port[0]], listing.text)
            if listing.title:
                file = tmp_path / listing.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
                file.chmod(0o755)
            elif (
                listing.language in RUN
                and _is_run(listing)
                and (part.has(listing) or listing.how == "server")
            ):
                command, where = (
                    _command(listing, text),
                    f"{name(part.path)}:{listing.line}",
                )
                with turn(workers_folder, alone=_is_alone(listing, text, tmp_path)):
                    if listing.how == "server":
                        servers.append(_server(command, tmp_path, env))
                    else:
                        printed = _run(command, tmp_path, env, where, listing.how)
            elif listing.how == "printed" and part.has(listing):
                assert _says(printed, text), f"{name(part.path)}:{listing.line}: {printed}"
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(20)


def _is_alone(listing: Listing, text: str, folder: Path) -> bool:
    """By itself, or by a study that it runs. One that may remain undecided runs beside others."""
    if " or " in listing.how:
        return False
    files = [folder / name for name in _STUDY.findall(text)]
    return any(
        _ALONE.search(part)
        for part in (text, *(file.read_text() for file in files if file.exists()))
    )


def _environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "DYNO_HOME": str(folder / "home")}


def _is_run(listing: Listing) -> bool:
    how, _, what = listing.how.partition(" ")
    return importlib.util.find_spec(what) is not None if how == "needs" else how != "not"


def _command(listing: Listing, text: str) -> list[str]:
    if listing.language == "python":
        return [sys.executable, "-W", "error", "-c", text]
    if listing.language == "sql":
        return ["bash", "-c", 'dyno sql - <<< "$0"', text]
    lines = [line for line in text.splitlines() if not line.startswith("make ")]
    return ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]


def _server(
    command: list[str], folder: Path, env: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a listing, and wait until it says how to stop it."""
    log = folder / f"server-{time.monotonic_ns()}.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True
        )
    until = time.monotonic() + 60
    while "Ctrl-C" not in log.read_text():
        assert server.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    return server


def _run(
    command: list[str], folder: Path, env: dict[str, str], where: str, how: str
) -> str:
    """Run a listing and return what it prints."""
    wanted = how.removeprefix("exit ").split(" or ") if how.startswith("exit ") else ["0"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert str(done.returncode) in wanted, (
        f"{where}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
    return done.stdout + done.stderr


def _says(printed: str, quoted: str) -> bool:
    """Whether a command printed what its page quotes. Numbers and line breaks differ from run to run."""
    parts = [
        " ".join(re.sub(r"\d[\d.,]*", "#", part).split()) for part in quoted.split("…")
    ]
    whole = " ".join(re.sub(r"\d[\d.,]*", "#", printed).split())
    return re.search(".*?".join(map(re.escape, parts)), whole) is not None


def test_a_quoted_message_may_differ_in_numbers_only() -> None:
    printed = "note\n  doubt x.y: 4 of 40 requests\n  failed, 10 % (4 reset).\n"
    assert _says(printed, "doubt x.y: 6 of 60 requests failed, 9.5 % (6 reset).")
    assert _says(printed, "4 of 40 … (4 reset)")
    assert not _says(printed, "4 of 40 requests were lost")


@pytest.mark.docs
@pytest.mark.parametrize(
    ("head_gap_ms", "expected"), [(40, 3), (2, 0)], ids=["20 times slower", "the same"]
)
def test_the_github_workflow_stops_a_slower_change_and_no_other(
    head_gap_ms: int,
    expected: int,
    tmp_path: Path,
    workers_folder: Path,
    expect_decided: ExpectDecided,
) -> None:
    """Its steps, with a head that needs so long for a token."""
    workflow = (ROOT / "docs/ci/dyno.yml").read_text()
    steps = re.findall(r"run: \|\n((?: {10}.*\n)+)", workflow)
    port = str(free_port())
    for side, gap_ms in (("base", 2), ("head", head_gap_ms)):
        (tmp_path / side).mkdir()
        serve = tmp_path / side / "serve.sh"
        serve.write_text(
            f"#!/bin/sh\nexec dyno engines start fake --port {port} --first-ms 5 --gap-ms {gap_ms}\n"
        )
        serve.chmod(0o755)
    shutil.copy(ROOT / "docs/ci/dyno-gate.sh", tmp_path / "head")
    env = {**_environment(tmp_path), "PROMPTS": "24", "OUTPUT_LEN": "8"}
    done = []
    for step in steps:
        shell = ["bash", "-e", "-c", step.replace("8000", port)]
        log_path = tmp_path / "step.log"  # not a pipe: a server that is left keeps it open
        with turn(workers_folder, alone=True), log_path.open("wb") as log:
            process = subprocess.Popen(
                shell, cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True
            )
            done.append(process.wait(180))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    expect_decided(done[-1] != 4)
    assert done == [0, expected], (tmp_path / "step.log").read_text()
    assert (tmp_path / "dyno-report.html").exists()


@pytest.mark.docs
def test_the_study_of_two_gguf_files_is_run_and_compared_as_its_page_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With two files of dyno's own model, and a smaller load."""
    page = (ROOT / "docs/studies.md").read_text().partition("## Compare GGUF files")[2]
    study = page.partition('title="gguf.toml"\n')[2].partition("```")[0]
    files = {"Q8_0": "Q4_0", "Q4_K_M": "F16"}  # types that dyno makes of its own model
    for named, made in files.items():
        shutil.copy(model.build(made), tmp_path / f"x-{named}.gguf")
    small = study.replace("/models/", f"{tmp_path}/").replace("[1, 4]", "[2]")
    small = small.replace("= 256", "= 32").replace("= 64", "= 8")
    small = small.replace("[quality]", "[quality]\nlimit = 6")
    (tmp_path / "gguf.toml").write_text(small)
    monkeypatch.chdir(tmp_path)
    with turn(workers_folder, alone=False):
        assert main(["run", "gguf.toml", "--any-rig", "--no-report"]) in (0, 3)
    compare = page.partition("\ndyno compare ")[2].partition("\n")[0].split()
    capsys.readouterr()
    assert main(["compare", *compare]) in (0, 3)
    out = capsys.readouterr().out
    assert "quantization Q4_0 / F16" in out and "all 5 tasks" in out
