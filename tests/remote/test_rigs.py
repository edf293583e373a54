"""Rigs elsewhere, in pieces: keys of a study, the register, wheels, the agent's verbs, and what may come home."""

import fcntl
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import msgspec
import pytest

from dyno.cli.main import main
from dyno.conduct import study_plan
from dyno.errors import RigError, StoreError, Unreachable, UsageError
from dyno.facts.elsewhere import RigEntry, RigPython, SshSpec
from dyno.facts.rig import Rig
from dyno.remote import agent, elsewhere, wheel
from dyno.remote.elsewhere import Order, Register, new_id, unpack
from dyno.remote.ssh import SshMachine
from dyno.store.pack import _is_raw, _passing
from dyno.store.run import PASSING, RAW, UNSCRUBBED
from studies import study

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

STUDY = """
[rigs.near]
[rigs.far]
ssh = "me@far"
[rigs.lab]
ssh = {{ host = "lab", port = 2222, key_file = "~/.ssh/lab", folder = "/data/dyno" }}
client = "here"
[engines.e]
kind = "llamacpp"
[workloads.w]
input_len = 8
output_len = 8
num_prompts = 2
[loads.l]
max_concurrency = 1
{more}
"""
HERE = Rig("Debian", "6.1", "x86_64", "CPU", 2)


def entry(**fields: object) -> RigEntry:
    values = {
        "id": new_id(),
        "rig": "far",
        "study": "s",
        "folder": "/runs/s",
        "since": "2026-11-17T04:00:00+00:00",
    }
    return msgspec.convert({**values, **fields}, type=RigEntry)


# ---- the study ----


def test_a_rig_is_reached_by_a_text_or_a_table(tmp_path: Path) -> None:
    rigs = study(STUDY.format(more=""), tmp_path / "s.toml").rigs
    assert not rigs["near"].elsewhere
    assert (rigs["far"].ssh, rigs["far"].client) == (SshSpec("me@far"), "rig")
    assert rigs["lab"].ssh == SshSpec("lab", 2222, "~/.ssh/lab", folder="/data/dyno")
    assert rigs["lab"].client == "here"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[rigs.x]\nssh = "-oProxyCommand=evil"', "is not user@host"),
        ('[rigs.x]\nssh = "a b"', "is not user@host"),
        ("[rigs.x]\nssh = { port = 22 }", "needs a host"),
        ('[rigs.x]\nssh = { host = "a", user = "b" }', "user"),
        ('[rigs.x]\nclient = "here"', "needs ssh or dstack"),
        ('[rigs.x]\nssh = "a"\ndstack = {}', "a rig is in one place"),
    ],
)
def test_a_mistake_in_a_rigs_place_is_reported(
    more: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        study(STUDY.format(more=more), tmp_path / "s.toml")


def test_this_machine_and_rigs_elsewhere_run_together_or_one_by_name(
    tmp_path: Path,
) -> None:
    s = study(STUDY.format(more=""), tmp_path / "s.toml")
    assert study_plan.choose_rigs(s, HERE, None, False) == ["near", "far", "lab"]
    assert study_plan.choose_rigs(s, HERE, "far", False) == ["far"]
    assert study_plan.choose_rigs(s, HERE, "near", False) == ["near"]
    only_far = msgspec.structs.replace(s, rigs={"far": s.rigs["far"]})
    assert study_plan.choose_rigs(only_far, HERE, None, False) == ["far"]
    with pytest.raises(UsageError, match="no such rig"):
        study_plan.choose_rigs(s, HERE, "moon", False)


def test_the_command_line_places_a_rig(tmp_path: Path) -> None:
    s = study_plan.placed(
        study(STUDY.format(more=""), tmp_path / "s.toml"), {"near": "me@x"}
    )
    assert s.rigs["near"].ssh == SshSpec("me@x")
    assert study_plan.choose_rigs(s, HERE, None, False) == ["near", "far", "lab"]


def test_where_a_rig_is_changes_no_trials_id(tmp_path: Path) -> None:
    text = STUDY.format(more="")
    there = study(text, tmp_path / "s.toml")
    here = study(text.replace('ssh = "me@far"', ""), tmp_path / "s.toml")
    assert [p.place.id for p in there.trials] == [p.place.id for p in here.trials]


def test_only_the_keys_that_trials_name_leave_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "MINE", "OTHER_TOKEN"):
        monkeypatch.setenv(name, f"value of {name}")
    s = study(STUDY.format(more=""), tmp_path / "s.toml")
    assert elsewhere.environ(s.trials) == {}, "dyno's own engine and model need no key"
    served = STUDY.format(more="").replace(
        'kind = "llamacpp"', 'kind = "openai"\nbase_url = "http://x"\n'
    )
    assert set(elsewhere.environ(study(served, tmp_path / "s.toml").trials)) == {
        "OPENAI_API_KEY"
    }
    named = served.replace(
        'base_url = "http://x"', 'base_url = "http://x"\napi_key_env = "MINE"'
    )
    assert set(elsewhere.environ(study(named, tmp_path / "s.toml").trials)) == {"MINE"}
    hub = STUDY.format(more="").replace(
        'kind = "llamacpp"', 'kind = "vllm"\nmodel = "meta-llama/X"'
    )
    assert set(elsewhere.environ(study(hub, tmp_path / "s.toml").trials)) == {"HF_TOKEN"}


def test_an_order_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stdin:
        buffer = io.BytesIO(b"repeats = 3")

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert main(["run", "-"]) == 2
    assert "reads what another dyno sends" in capsys.readouterr().err


# ---- the register ----


def test_the_register_keeps_an_entry_until_it_is_removed(tmp_path: Path) -> None:
    register = Register(tmp_path / "rigs")
    assert register.entries() == []
    late, early = entry(since="2026-11-17T05:00:00+00:00"), entry(rig="lab")
    register.write(late)
    register.write(early)
    assert Register(tmp_path / "rigs").entries() == [early, late]
    assert register.find(Path("/runs/s"), "far") == late
    assert register.find(Path("/runs/other"), "far") is None
    register.remove(late)
    assert register.entries() == [early]
    assert (tmp_path / "rigs" / f"{early.id}.json").stat().st_mode & 0o77 == 0


def test_a_damaged_entry_is_an_error_since_a_machine_may_be_paid_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(StoreError, match="runs on another machine"):
        Register(tmp_path).entries()


def test_nothing_elsewhere_is_reported_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DYNO_HOME", str(tmp_path))
    assert main(["rigs"]) == 0
    assert capsys.readouterr().out == "Nothing runs on other machines.\n"
    assert main(["rigs", "down", "far"]) == 2
    assert "Nothing runs on far" in capsys.readouterr().err
    elsewhere.register().write(entry())
    assert main(["rigs", "down", "--forget"]) == 0
    assert elsewhere.register().entries() == []


# ---- wheels ----


def here(**fields: object) -> RigPython:
    import platform

    values = {
        "python": sys.executable, "version": sys.version_info[:2], "tag": sys.implementation.cache_tag,
        "system": platform.system(), "machine": platform.machine(), "libc": platform.libc_ver(),
    }  # fmt: skip
    return msgspec.convert({**values, **fields}, type=RigPython)


def test_packages_that_are_installed_here_run_on_the_same_python_and_a_newer_system() -> (
    None
):
    assert wheel.same_as_here(here())
    assert wheel.same_as_here(here(libc=("glibc", "2.99")))
    assert not wheel.same_as_here(here(libc=("glibc", "2.5")))
    assert not wheel.same_as_here(here(libc=("musl", "1.2")))
    assert not wheel.same_as_here(here(tag="cpython-399"))
    assert not wheel.same_as_here(here(machine="riscv64"))


def test_dynos_wheel_has_the_whole_package_and_is_the_same_each_time(
    tmp_path: Path,
) -> None:
    path = wheel._own_wheel(tmp_path)
    first = hashlib.sha256(path.read_bytes()).digest()
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert {
            "dyno/__main__.py",
            "dyno/remote/agent.py",
            "dyno/studies/demo.toml",
        } <= set(names)
        assert not any("__pycache__" in name for name in names)
        (info,) = {name.partition("/")[0] for name in names} - {"dyno"}
        assert set(names) == set(
            archive.read(f"{info}/RECORD").decode().replace(",,", "").split()
        )
        assert b"Name: llm-dyno" in archive.read(f"{info}/METADATA")
    assert hashlib.sha256(wheel._own_wheel(tmp_path).read_bytes()).digest() == first


def test_what_pages_need_stays_at_home_and_markers_are_those_of_the_other_machine() -> None:
    needed = wheel._closure(here())
    assert {"numpy", "msgspec", "xllamacpp", "huggingface-hub", "packaging"} <= set(needed)
    assert not {"altair", "duckdb", "vl-convert-python", "llm-dyno"} & set(needed)
    assert "zstandard" in wheel._closure(here(version=(3, 13)))
    assert "zstandard" not in wheel._closure(here(version=(3, 14)))


def test_without_an_index_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(RigError, match=r"Use Python 3\.\d+ on both machines.*msgspec=="):
        wheel._download(
            ["msgspec==0.19.0"], here(version=(3, 99), tag="cpython-399"), tmp_path
        )


# ---- the agent ----


def there(
    home: Path, verb: str, *words: str, stdin: bytes = b"", job: str = "0" * 12
) -> bytes:
    command = [sys.executable, agent.__file__, verb, str(home), job, *words]
    env = {**os.environ, "XDG_CACHE_HOME": f"{home}-cache"}
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def job_of(home: Path, script: str, job: str = "0" * 12) -> Path:
    """A job whose dyno is this script."""
    folder = home / "jobs" / job
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!{sys.executable}\n{script}")
    python.chmod(0o700)
    return folder


def state(home: Path) -> str:
    return str(json.loads(there(home, "status"))["state"])


def until(home: Path, wanted: str) -> None:
    deadline = time.monotonic() + 30
    while state(home) != wanted:
        assert time.monotonic() < deadline, state(home)


SLOW = """
import os, sys, time
sys.stderr.write(sys.stdin.read() + " " + os.environ["DYNO_HOME"] + "\\n")
sys.stderr.flush()
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_job_runs_detached_reads_its_order_on_stdin_and_is_stopped(
    tmp_path: Path,
) -> None:
    folder = job_of(tmp_path, SLOW)
    assert state(tmp_path) == "ready"
    there(tmp_path, "start", "run", "-", stdin=b"the order")
    assert state(tmp_path) == "running", "the agent that started it has ended"
    command = [sys.executable, agent.__file__, "start", str(tmp_path), "0" * 12]
    assert b"already" in subprocess.run(command, input=b"", capture_output=True).stderr
    deadline = time.monotonic() + 30
    while "the order" not in (folder / "log").read_text():
        assert time.monotonic() < deadline
    assert str(tmp_path) in (folder / "log").read_text()
    assert json.loads(there(tmp_path, "stop")) == {"state": "130"}
    assert state(tmp_path) == "130"


def test_what_a_killed_job_leaves_is_seen_as_lost(tmp_path: Path) -> None:
    folder = job_of(tmp_path, SLOW)
    there(tmp_path, "start")
    until(tmp_path, "running")
    deadline = time.monotonic() + 30
    while not (folder / "pid").exists():
        assert time.monotonic() < deadline
    os.kill(int((folder / "pid").read_text()), 9)
    until(tmp_path, "-9")
    (folder / "ended").unlink()  # the machine stopped, too
    assert state(tmp_path) == "lost"


def test_following_shows_the_log_and_finished_trials_and_ends_with_the_job(
    tmp_path: Path,
) -> None:
    folder = job_of(tmp_path, "")
    trials = folder / "runs" / "s" / "trials"
    for name in ("a-1", "b-2", "c-3"):
        (trials / name).mkdir(parents=True)
    (trials / "a-1" / "summary.json").touch()
    (trials / "b-2" / "failed.json").touch()
    (folder / "runs" / "s" / "engines" / "001-e").mkdir(parents=True)
    (folder / "runs" / "s" / "skipped.json").write_text('{"3": "saturated"}')
    (folder / "log").write_text("one\ntwo\n")
    there(tmp_path, "start")
    until(tmp_path, "0")
    events = [json.loads(line) for line in there(tmp_path, "follow", "4").splitlines()]
    assert events == [
        {"log": ["two"], "offset": 8},
        {"finished": "runs/s/trials/a-1"},
        {"finished": "runs/s/trials/b-2"},
        {"ended": "0", "skipped": {"3": "saturated"}, "engines": ["runs/s/engines/001-e"]},
    ]


def test_a_job_that_is_stopped_before_its_process_is_noted_is_stopped(
    tmp_path: Path,
) -> None:
    """`start` takes the lock first, and writes the number of its process a moment later."""
    job_of(tmp_path, SLOW)
    folder = tmp_path / "jobs" / ("0" * 12)
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()])
    command = [sys.executable, agent.__file__, "stop", str(tmp_path), "0" * 12]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stopping:
        with pytest.raises(subprocess.TimeoutExpired):
            stopping.wait(0.5)
        (folder / "pid").write_text(str(job.pid))
        assert job.wait(30) == -signal.SIGINT
        assert stopping.wait(30) == 0


def test_removing_a_job_leaves_engines_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "share" / "dyno"
    job_of(home, SLOW)
    there(home, "start")
    there(home, "remove")
    assert not home.exists()
    job_of(home, SLOW)
    (home / "engines").mkdir()
    there(home, "remove")
    assert [p.name for p in home.iterdir()] == ["engines"]


@pytest.mark.parametrize("before", [False, True])
def test_dynos_cache_stays_where_it_was_before(before: bool, tmp_path: Path) -> None:
    home, cache, nothing = tmp_path / "dyno", tmp_path / "dyno-cache" / "dyno", io.BytesIO()
    tarfile.open(fileobj=nothing, mode="w").close()
    if before:
        cache.mkdir(parents=True)
    for job in ("1" * 12, "2" * 12):
        there(home, "install", sys.executable, stdin=nothing.getvalue(), job=job)
    (cache / "models").mkdir(parents=True)
    there(home, "remove", job="1" * 12)
    assert cache.exists(), "another job may use it"
    there(home, "remove", job="2" * 12)
    assert (cache.exists(), home.exists()) == (before, False)


def test_wheels_are_installed_without_pip(tmp_path: Path) -> None:
    source, stream = tmp_path / "demo-1-py3-none-any.whl", io.BytesIO()
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("demo/__init__.py", "")
        archive.writestr("demo-1.data/purelib/demo/more.py", "")
        archive.writestr("demo-1.data/scripts/demo", "")
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        tar.add(source, f"wheels/{source.name}")
        tar.add(source, "data/1/set.json")
    there(tmp_path, "install", sys.executable, stdin=stream.getvalue())
    folder = tmp_path / "jobs" / ("0" * 12)
    (site,) = folder.glob("env/lib/python*/site-packages")
    assert sorted(p.name for p in (site / "demo").iterdir()) == ["__init__.py", "more.py"]
    assert (folder / "data" / "1" / "set.json").stat().st_size == source.stat().st_size
    assert not (folder / "wheels").exists()
    python = folder / "env" / "bin" / "python"
    assert subprocess.run([python, "-c", "import demo.more"]).returncode == 0


# ---- what comes home ----


def packed(home: Path, name: str = "runs/s/trials/a-1") -> io.BytesIO:
    return io.BytesIO(
        there(home, "pack", name, json.dumps({**dict.fromkeys(PASSING, ""), **RAW}))
    )


def run_folder(home: Path) -> Path:
    folder = home / "jobs" / ("0" * 12) / "runs" / "s" / "trials" / "a-1"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    (folder / "records.jsonl").write_bytes(os.urandom(1 << 17))
    return folder


def test_a_run_folder_comes_home_whole_without_links_and_raw_bytes(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "inner").mkdir()
    (folder / "inner" / "x.json").write_text("1")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "spool").mkdir()
    (folder / "warmup.spool").write_text("raw")
    (folder / ".lock").touch()
    unpack(packed(tmp_path), tmp_path / "out", "a")
    names = sorted(
        p.relative_to(tmp_path / "out").as_posix()
        for p in (tmp_path / "out").rglob("*")
        if p.is_file()
    )
    assert names == ["inner/x.json", "records.jsonl", "summary.json"]
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == (
        folder / "records.jsonl"
    ).read_bytes()
    assert (tmp_path / "out" / "summary.json").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("marked", [True, False])
def test_spools_of_all_client_processes_come_home_from_a_rig_as_they_leave_in_an_archive(
    whole: bool, marked: bool, tmp_path: Path
) -> None:
    folder = run_folder(tmp_path)
    names = ["exchanges.spool", "exchanges-1.spool", "exchanges-12.spool", "warmup.spool", "warmup-1.spool",
             "engine.log", "x.partial", ".lock"]  # fmt: skip
    for name in [*names, *([UNSCRUBBED] if marked else [])]:
        (folder / name).write_text(name)
    if not whole:
        (folder / "summary.json").unlink()
    unpack(packed(tmp_path), tmp_path / "out", "a")
    home = {path.name for path in (tmp_path / "out").iterdir()}
    kept = (
        {"exchanges.spool", "exchanges-1.spool", "exchanges-12.spool", "summary.json"}
        if whole
        else set()
    )
    assert home == {"records.jsonl", *kept, *(set() if marked else {"engine.log"})}
    left = {
        path.name for path in folder.iterdir() if not _passing(path) and not _is_raw(path)
    }
    assert left == home  # what `dyno runs pack` takes


def test_a_file_that_was_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    run_folder(tmp_path)
    data = bytearray(packed(tmp_path).getvalue())
    data[-(1 << 16)] ^= 1
    with pytest.raises(RigError, match="damaged on its way"):
        unpack(io.BytesIO(bytes(data)), tmp_path / "out", "a")


def test_a_stream_that_ends_early_is_a_lost_connection(tmp_path: Path) -> None:
    run_folder(tmp_path)
    data = packed(tmp_path).getvalue()
    for cut in (0, 10, 400, len(data) // 2):
        with pytest.raises(Unreachable):
            unpack(io.BytesIO(data[:cut]), tmp_path / f"out{cut}", "a")


def hostile(
    members: list[tuple[tarfile.TarInfo, bytes]], listed: dict[str, tuple[int, str]]
) -> io.BytesIO:
    out = io.BytesIO()
    head = json.dumps(listed).encode()
    out.write(b"%d\n" % len(head) + head)
    with tarfile.open(fileobj=out, mode="w|") as tar:
        for info, data in members:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))
    return io.BytesIO(out.getvalue())


@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil", "a/../../evil", "a/b/c/d/e/f/g/h/i/evil"]
)
def test_a_path_out_of_the_run_folder_is_refused(name: str, tmp_path: Path) -> None:
    listed = {name: (1, hashlib.sha256(b"x").hexdigest())}
    with pytest.raises(RigError, match="unsafe path"):
        unpack(hostile([(tarfile.TarInfo(name), b"x")], listed), tmp_path / "run", "a")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_a_link_or_device_is_refused(kind: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("summary.json")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(RigError, match="a link or an unsafe path"):
        unpack(hostile([(info, b"")], {"summary.json": (0, "")}), tmp_path / "run", "a")
    assert not [p for p in tmp_path.rglob("*") if p.is_symlink() or p.is_file()]


def test_a_file_that_was_not_listed_or_comes_twice_is_refused(tmp_path: Path) -> None:
    good = {"a": (1, hashlib.sha256(b"x").hexdigest())}
    with pytest.raises(RigError, match="didn't list"):
        unpack(hostile([(tarfile.TarInfo("b"), b"x")], good), tmp_path / "1", "a")
    with pytest.raises(RigError, match="didn't list"):
        unpack(hostile([(tarfile.TarInfo("a"), b"xy")], good), tmp_path / "2", "a")
    twice = [(tarfile.TarInfo("a"), b"x"), (tarfile.TarInfo("a"), b"x")]
    with pytest.raises(RigError, match="didn't list"):
        unpack(hostile(twice, good), tmp_path / "3", "a")


def test_a_list_of_more_than_dyno_takes_is_refused_before_it_is_read(
    tmp_path: Path,
) -> None:
    with pytest.raises(RigError, match="more than dyno takes"):
        unpack(hostile([], {"a": (1 << 40, "")}), tmp_path / "run", "a")


# ---- ssh ----


def test_the_command_line_of_ssh_checks_host_keys_and_forwards_nothing() -> None:
    machine = SshMachine(SshSpec("me@far", 2222, "~/.ssh/k", "/c", python="/py"), "0" * 12)
    command = machine._agent("start", "run", "it's")
    machine.close()
    joined = " ".join(command)
    for option in (
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ForwardAgent=no",
        "ClearAllForwardings=yes",
    ):
        assert f"-o {option}" in joined
    assert command[1:7] == [
        "-F",
        "/c",
        "-i",
        str(Path("~/.ssh/k").expanduser()),
        "-p",
        "2222",
    ]
    assert command[-3:-1] == ["--", "me@far"]
    assert command[-1].startswith("/py -c ") and command[-1].endswith(
        """start '' 000000000000 run 'it'"'"'s'"""
    )


def test_an_order_survives_its_way(tmp_path: Path) -> None:
    order = Order(
        study(STUDY.format(more=""), tmp_path / "s.toml"), "text", {"KEY": "value"}
    )
    assert msgspec.json.decode(msgspec.json.encode(order), type=Order) == order
