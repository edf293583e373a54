"""A rig that means harm: how it describes itself, what it sends home, and how it answers. Real processes, no network.

`ssh` is a program of this test that runs the command here, or what the test puts in its place.
"""

import contextlib
import hashlib
import io
import json
import os
import stat
import sys
import tarfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyno.conduct import study_plan
from dyno.errors import DynoError, RigError, Unreachable
from dyno.facts.elsewhere import RigPython, SshSpec
from dyno.remote import elsewhere, ssh, wheel
from dyno.remote.elsewhere import Elsewhere, unpack
from dyno.remote.ssh import SshMachine
from dyno.store.study import StudyFolder, trial_name
from studies import study
from test_hostile_hub import JSON, NAMES, memory_bytes

STUDY = """
[rigs.far]
ssh = "me@far"
[engines.e]
kind = "llamacpp"
[workloads.w]
input_len = 8
output_len = 8
num_prompts = 2
[loads.l]
max_concurrency = 1
"""

# ---- how it describes itself ----

HERE = {
    "python": "/usr/bin/python3", "version": [3, 11], "tag": "cpython-311", "system": "Linux", "machine": "x86_64",
    "libc": ["glibc", "2.36"],
}  # fmt: skip
WORDS = [
    "../../x",
    "..",
    "/etc/x",
    "a/b",
    "",
    "a\0b",
    "a\nb",
    "x" * 500,
    "a b",
    "-rf",
    None,
    5,
    [],
    {},
    "ä",
    "\x1b[2J",
]
LIBCS: list[Any] = [
    ["glibc", "2.999999999"], ["glibc", "9" * 5000], ["glibc", "2"], ["glibc", ""], ["../..", "2.36"],
    ["glibc", "../x"],
    ["glibc", "-1.-1"], ["glibc"], ["glibc", "2.36", "x"], "glibc", None, 5, [5, 5], ["", ""], ["musl", "1.2"],
    ["glibc", "2.36\n"], ["GLIBC", "2.1.1.1.1.1.1"],
]  # fmt: skip
VERSIONS: list[Any] = [
    [3],
    [3, 11, 5],
    [-3, -11],
    ["../x", 1],
    [10**30, 1],
    None,
    "3.11",
    [3.5, 1],
    [3, 10**9],
    [],
]
DESCRIPTIONS = [
    *({**HERE, key: value} for key in ("tag", "system", "machine") for value in WORDS),
    *({**HERE, "libc": value} for value in LIBCS),
    *({**HERE, "version": value} for value in VERSIONS),
    {}, {"python": "x"},
]  # fmt: skip


@pytest.mark.parametrize("described", DESCRIPTIONS, ids=range(len(DESCRIPTIONS)))
def test_a_description_makes_a_folder_of_wheels_or_is_refused(
    described: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libc 2.999999999 made a list of a billion names; tag ../../x a folder outside."""
    asked: list[list[str]] = []
    monkeypatch.setattr(
        wheel, "_download", lambda names, remote, folder: asked.append(names)
    )
    monkeypatch.setattr(wheel, "_own_wheel", lambda folder: folder / "dyno.whl")
    monkeypatch.setattr(wheel, "_repacked", lambda dist, folder: folder / "x.whl")
    try:
        remote = msgspec.convert(described, type=RigPython, strict=False)
    except msgspec.ValidationError:
        return
    cache = tmp_path / "in" / "wheels"
    for path in wheel.wheels(remote, cache, lambda text: None):
        assert path.parent.parent == cache
    assert wheel._version(remote.libc[1])[1] < 1000
    assert {p.name for p in tmp_path.iterdir()} == {"in"}


# ---- what it sends home ----


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stream(
    listed: Any,
    members: list[tuple[tarfile.TarInfo, bytes]] | None = None,
    size: bytes | None = None,
) -> io.BytesIO:
    head = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members or []:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return io.BytesIO(
        (b"%d\n" % len(head) if size is None else size) + head + out.getvalue()
    )


def member(
    name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = (
        len(data) if kind == tarfile.REGTYPE else 0,
        kind,
        link,
    )
    return info, data


def refused(source: io.BytesIO, folder: Path) -> str:
    """Return the refusal. Nothing is written outside the folder, whatever happens."""
    (folder / ".bashrc").write_text("mine\n")
    with pytest.raises(DynoError) as e:
        unpack(source, folder / "in" / "run", "trial")
    assert {p.name for p in folder.iterdir()} <= {".bashrc", "in"}
    assert (folder / ".bashrc").read_text() == "mine\n"
    return str(e.value)


SIZES = [b"-1\n", b"\n", b"", b"x\n", b"1e9\n", b"+5\n", b" 5\n", b"5 \n", b"9" * 30, b"99999999999\n", b"0x10\n", b"5",
         b"\xff\n", b"-9223372036854775808\n", b"67108865\n", b"\xc2\xb2\n"]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_a_size_that_is_none_reads_nothing(size: bytes, tmp_path: Path) -> None:
    source = stream(b" " * (4 << 20), size=size)
    refused(source, tmp_path)
    assert source.tell() < 100 or size.startswith(b"5")


LISTS: list[Any] = [
    {"a": [-1, ""]}, {"a": [-(1 << 40), ""], "b": [1, digest(b"x")]}, {"a": [1 << 40, ""]}, {"a": [1.5, ""]},
    {"a": None}, {"a": [1]}, {"a": ["1", ""]}, {"a": [1, 5]}, [], 5, None, "x", {"a": {}}, {"a": [True, ""]},
    {"a": [10**30, ""]},
    b"[" * 9999, b"\xff", b"{", {f"f{i}": [0, ""] for i in range(100_001)},
]  # fmt: skip


@pytest.mark.parametrize("listed", LISTS, ids=lambda x: repr(x)[:25])
def test_a_list_that_lies_is_refused_before_its_files(listed: Any, tmp_path: Path) -> None:
    refused(stream(listed, [member("a")]), tmp_path)


def test_a_list_larger_than_this_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere.files, "free_bytes", lambda folder: 300 << 20)
    said = refused(stream({"a": [100 << 20, ""]}, [member("a")]), tmp_path)
    assert "needs 100 MiB, but the disk of" in said


@pytest.mark.parametrize("name", NAMES, ids=lambda n: repr(n)[:20])
def test_a_file_whose_name_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    refused(stream({name: [1, digest(b"x")]}, [member(name)]), tmp_path)


KINDS = {
    "link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "character device": tarfile.CHRTYPE, 
    "pipe": tarfile.FIFOTYPE, "block device": tarfile.BLKTYPE, "sparse": b"S",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_anything_but_a_file_is_refused(kind: bytes, tmp_path: Path) -> None:
    refused(
        stream({"a": [0, digest(b"")]}, [member("a", kind=kind, link="../../.bashrc")]),
        tmp_path,
    )


def test_a_file_through_a_folder_that_was_a_link_is_refused(tmp_path: Path) -> None:
    members = [member("d", kind=tarfile.SYMTYPE, link=".."), member("d/x")]
    refused(stream({"d/x": [1, digest(b"x")]}, members), tmp_path)


def test_folders_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "_FILES", 50)
    said = refused(
        stream(
            {"a": [1, digest(b"x")]},
            [member(f"d{i}", kind=tarfile.DIRTYPE) for i in range(500)],
        ),
        tmp_path,
    )
    assert "more members than files" in said


HONEST = stream(
    {"a": [1, digest(b"x")], "b/c": [2, digest(b"yy")]}, [member("a"), member("b/c", b"yy")]
).getvalue()


@pytest.mark.parametrize("cut", range(0, len(HONEST) - 9000, 173))
def test_a_stream_that_is_cut_anywhere_is_refused(cut: int, tmp_path: Path) -> None:
    refused(io.BytesIO(HONEST[:cut]), tmp_path)


def test_the_whole_stream_is_taken(tmp_path: Path) -> None:
    unpack(io.BytesIO(HONEST), tmp_path / "run", "trial")
    assert (tmp_path / "run" / "b" / "c").read_bytes() == b"yy"


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.binary(max_size=600), at=st.integers(0, len(HONEST)))
def test_any_bytes_in_the_stream_are_refused_or_harmless(
    data: bytes, at: int, tmp_path: Path
) -> None:
    folder = tmp_path / "x" / "run"
    with contextlib.suppress(DynoError):
        unpack(io.BytesIO(HONEST[:at] + data + HONEST[at + len(data) :]), folder, "trial")
    assert {p.name for p in tmp_path.iterdir()} <= {"x"}
    for path in sorted((tmp_path / "x").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(described=st.dictionaries(st.sampled_from(sorted(HERE)), JSON, max_size=3))
def test_any_description_is_read_or_refused(described: dict[str, Any]) -> None:
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert({**HERE, **described}, type=RigPython, strict=False)


# ---- how it answers ----

PROGRAM = """
    import json, os, shlex, sys
    words = sys.argv[1:]
    if "-O" in words:
        sys.exit(0)
    command = shlex.split(words[words.index("--") + 2])
    verb = command[3]
    tricks = json.load(open(os.environ["DYNO_TRICKS"]))
    with open(os.environ["DYNO_TRICKS"] + ".calls", "a") as calls:
        calls.write(verb + "\\n")
    if verb in tricks:
        exec(tricks[verb])
        sys.exit(0)
    os.execvp(command[0], command)
"""


class Rig:
    """A study with one trial, and a rig whose verbs a test replaces by Python of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines, self.honest = folder, list[str](), dict[str, str]()
        self.study = study(STUDY, folder / "s.toml")
        self.runs = StudyFolder(folder / "runs")
        self.runs.write(self.study, STUDY)
        self.far = Elsewhere(
            self.study, STUDY, self.runs, "far", self.lines.append, study_plan.public
        )
        self.machine = SshMachine(SshSpec("me@far", folder=str(folder / "rig")), "job")
        (self.planned,) = self.study.trials
        self.name = trial_name(self.planned.place)
        self.tricks()

    def tricks(self, **verbs: str) -> None:
        texts = {verb: textwrap.dedent(text) for verb, text in verbs.items()}
        (self.folder / "tricks").write_text(json.dumps(texts))

    def calls(self) -> list[str]:
        return (self.folder / "tricks.calls").read_text().split()

    def follow(self) -> str:
        return self.far._follow(self.machine, [self.planned])

    def finished(self, **other: Any) -> str:
        events = [{"finished": f"runs/s/trials/{self.name}", **other}, {"ended": "0"}]
        return f"print({chr(10).join(map(json.dumps, events))!r}, flush=True)"

    def pack(self, files: dict[str, bytes]) -> str:
        listed = {name: [len(data), digest(data)] for name, data in files.items()}
        data = stream(
            listed, [member(name, data) for name, data in files.items()]
        ).getvalue()
        (self.folder / "packed").write_bytes(data)
        return (
            f"sys.stdout.buffer.write(open({str(self.folder / 'packed')!r}, 'rb').read())"
        )


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable} -S\n" + textwrap.dedent(PROGRAM))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DYNO_TRICKS", str(tmp_path / "tricks"))
    monkeypatch.setattr(ssh, "_LIMITS_S", dict.fromkeys(ssh._LIMITS_S, 1.5))
    monkeypatch.setattr(ssh, "_QUIET_S", {"pack": 1.0})
    monkeypatch.setattr(ssh, "_END_S", 1.0)
    monkeypatch.setattr(elsewhere, "PATIENCE_S", 1.0)
    monkeypatch.setattr(elsewhere.time, "sleep", lambda s: None)
    rig = Rig(tmp_path)
    try:
        yield rig
    finally:
        rig.machine.close()


def test_an_honest_agent_answers(rig: Rig) -> None:
    assert rig.machine.ask("status") == {"state": "absent"}


ANSWERS = {
    "endless": "while True: sys.stdout.write('x' * 65536)",
    "endless lines": "while True: print('{}')",
    "silent": "import time; time.sleep(60)",
    "deaf": "import time; os.close(0); time.sleep(60)",
    "nothing": "pass",
    "not JSON": "print('hello')",
    "a list": "print('[]')",
    "a number": "print('5')",
    "deep": "print('[' * 100000)",
    "not UTF-8": "sys.stdout.buffer.write(b'\\xff\\n')",
    "an error with escapes": "sys.exit('\\x1b[2J' * 1000)",
    "an error without end": "while True: sys.stderr.write('x' * 65536); break",
    "another code": "os._exit(77)",
    "ended by a signal": "os.kill(os.getpid(), 11)",
    "as if ssh failed": "sys.stderr.write('permission denied'); os._exit(255)",
    "goes on after its answer": "print('{}', flush=True); os.close(1); import time; time.sleep(60)",
    "a child that holds the pipe": "print('{\"state\": \"x\"}', flush=True); os.fork() or __import__('time').sleep(20)",
}  # fmt: skip


@pytest.mark.parametrize("trick", ANSWERS.values(), ids=ANSWERS.keys())
def test_any_answer_ends_in_time_and_in_a_sentence(trick: str, rig: Rig) -> None:
    rig.tricks(status=trick)
    before, began = memory_bytes(), time.monotonic()
    try:
        rig.machine.ask("status")
    except RigError as e:
        assert "\n" not in str(e)
        assert len(str(e)) < 1000
    assert time.monotonic() - began < 15
    assert memory_bytes() - before < 200 << 20


def test_what_is_sent_to_a_rig_that_reads_nothing_ends(rig: Rig) -> None:
    rig.tricks(start="import time; time.sleep(60)")
    with pytest.raises(RigError, match="didn't finish `start` within"):
        rig.machine.call("start", send=lambda stdin: stdin.write(b"x" * (8 << 20)) and None)


def test_a_damaged_folder_is_asked_for_a_few_times_and_not_for_ever(rig: Rig) -> None:
    rig.tricks(follow=rig.finished(), pack="print('100000')")
    with pytest.raises(RigError, match="came home damaged 4 times"):
        rig.follow()
    assert rig.calls().count("pack") == 4


def test_a_rig_that_repeats_itself_and_hangs_up_is_given_up(rig: Rig) -> None:
    rig.tricks(follow="print(json.dumps({'log': ['again'], 'offset': 1}), flush=True)")
    with pytest.raises(Unreachable, match="closed the connection"):
        rig.follow()


GARBAGE: dict[str, dict[str, bytes]] = {
    "an empty summary": {"summary.json": b""},
    "a summary of words": {"summary.json": b"hello"},
    "an empty object": {"summary.json": b"{}"},
    "a deep summary": {"summary.json": b"[" * 100_000},
    "no summary": {"trial.json": b"{}"},
    "a failure of words": {"failed.json": b"hello"},
    "a failure of numbers": {"failed.json": b'{"text": 5, "attempts": "x", "when": []}'},
    "nothing": {},
    "only a log": {"engine.log": b"x"},
    "a folder of the summary's name": {"summary.json/x": b"x"},
}  # fmt: skip


@pytest.mark.parametrize("files", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_not_stored_as_a_result(files: dict[str, bytes], rig: Rig) -> None:
    """Stored, it failed the study from then on, even with an honest rig."""
    rig.tricks(follow=rig.finished(), pack=rig.pack(files))
    with pytest.raises(RigError, match=r"refused|damaged|not a run"):
        rig.follow()
    assert not rig.runs.run(rig.planned.place).path.exists()
    assert not rig.runs.done()
    assert not list(rig.runs.path.glob(".coming-*"))


def test_a_failure_that_can_be_read_is_stored(rig: Rig) -> None:
    failure = b'{"text": "no memory", "attempts": 1, "when": "2026-11-17T04:00:00+00:00"}'
    rig.tricks(follow=rig.finished(), pack=rig.pack({"failed.json": failure}))
    assert rig.follow() == "0"
    assert (rig.runs.run(rig.planned.place).path / "failed.json").read_bytes() == failure


def test_a_line_of_a_log_is_one_line_here(rig: Rig) -> None:
    rig.tricks(
        follow="print(json.dumps({'log': ['a\\ndyno: all is well', 'b\\r\\nc'], 'offset': 5, 'ended': '0'}))"
    )
    assert rig.follow() == "0"
    assert rig.lines == ["a dyno: all is well", "b c"]


EVENTS: list[Any] = [
    {"log": 5}, {"log": [5, None, {}]}, {"offset": "x"}, {"offset": 10**30}, {"offset": True}, {"finished": None},
    {"finished": ["x"]}, {"finished": "../../../x"}, {"finished": "\0"}, {"skipped": 5}, {"skipped": {"x": {}}},
    {"engines": 5}, {"engines": [None, 5, "runs/s/engines/../../x"]}, {"engines": ["runs/../engines/001-x"]},
    {"x": "y"},
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: repr(e)[:30])
def test_any_event_is_shown_or_ignored(event: dict[str, Any], rig: Rig) -> None:
    before = {p for p in rig.folder.rglob("*") if "bin" not in p.parts}
    text = json.dumps({**event, "ended": "0"})
    rig.tricks(follow=f"print({text!r})", pack="print('x')")
    try:
        assert rig.follow() == "0"
    except RigError:
        assert "engines" in event
    new = {
        p.relative_to(rig.folder).parts[0]
        for p in rig.folder.rglob("*")
        if p not in before and "bin" not in p.parts
    }
    assert new <= {"runs", "tricks.calls"}


# ---- a rig whose answers change, and one that is killed ----

# The tricks of a verb, one for each call; the last one stays.
IN_TURN = """
    turns = {turns!r}
    done = open(os.environ["DYNO_TRICKS"] + ".calls").read().split().count(verb)
    exec(turns[min(done, len(turns)) - 1])
"""
QUIET = "sys.stdin.buffer.read()"
FAILURE = b'{"text": "no memory", "attempts": 1, "when": "2026-11-17T04:00:00+00:00"}'


def in_turn(*tricks: str) -> str:
    return textwrap.dedent(IN_TURN).format(turns=tricks)


def say(**event: Any) -> str:
    return f"print({json.dumps(event)!r}, flush=True)"


LOOK = say(**HERE, free_bytes=1 << 40)


@pytest.fixture
def job(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A rig that takes a job and ends it, with the failure of its trial."""
    monkeypatch.setenv("DYNO_HOME", str(rig.folder / "dyno"))
    monkeypatch.setattr(wheel, "wheels", lambda remote, cache, say: [])
    rig.far = Elsewhere(
        rig.study, STUDY, rig.runs, "far", rig.lines.append, study_plan.public
    )
    verbs = {
        "status": say(state="absent"),
        "describe": LOOK,
        "install": QUIET,
        "start": QUIET,
        "stop": say(state="0"),
    }
    rig.honest = {
        **verbs,
        "remove": "",
        "follow": rig.finished(),
        "pack": rig.pack({"failed.json": FAILURE}),
    }
    return rig


def outside(rig: Rig) -> set[str]:
    """What is in the user's folder."""
    return {p.name for p in rig.folder.iterdir()}


PLACES = {"bin", "dyno", "packed", "rig", "runs", "s.toml", "tricks", "tricks.calls"}


def test_an_honest_job_ends_and_leaves_no_entry(job: Rig) -> None:
    job.tricks(**job.honest)
    job.far.conduct([job.planned], [])
    assert (job.runs.run(job.planned.place).path / "failed.json").read_bytes() == FAILURE
    assert not list((job.folder / "dyno" / "rigs").glob("*.json"))
    assert job.calls() == [
        "status",
        "describe",
        "install",
        "start",
        "follow",
        "pack",
        "remove",
    ]


LATER: dict[str, dict[str, tuple[str, ...]]] = {
    "another architecture": {"describe": (LOOK, say(**{**HERE, "machine": "riscv64"}))},
    "a name that leads elsewhere": {"describe": (LOOK, say(**{**HERE, "tag": "../../x"}))},
    "a libc without end": {"describe": (LOOK, say(**{**HERE, "libc": ["glibc", "2.999999999"]}))},
    "no description": {"describe": (LOOK, "print('5')")},
    "no room": {"describe": (LOOK, say(**HERE, free_bytes=-1))},
    "escapes in its state": {"status": (say(state="absent"), say(state="\x1b[2J" * 1000))},
    "a state of another kind": {"status": (say(state="absent"), say(state={"x": []}))},
    "another end": {"follow": (say(log=["a"], offset=5), say(ended={"x": "\x1b[2J"}), say(ended="0"))},
    "no end": {"follow": (say(log=["a"], offset=5), "sys.exit(3)")},
    "an offset that goes back": {"follow": (say(log=["a"], offset=10**12), say(log=["a"], offset=1), say(ended="0"))},
    "a removal that fails": {"remove": ("", "sys.exit('\x1b[2J no')")},
    "an installation that fails": {"install": (QUIET, "sys.exit('\x1b[2J no')")},
}  # fmt: skip


@pytest.mark.parametrize("turns", LATER.values(), ids=LATER.keys())
def test_a_rig_that_changes_its_answers_writes_nothing_elsewhere(
    turns: dict[str, tuple[str, ...]], job: Rig
) -> None:
    """The first job meets an honest rig, the second another one by the same name."""
    job.tricks(
        **{
            **job.honest,
            "pack": "print('x')",
            **{verb: in_turn(*tricks) for verb, tricks in turns.items()},
        }
    )
    for _ in range(2):
        with contextlib.suppress(RigError):
            job.far.conduct([job.planned], [])
        job.far = Elsewhere(
            job.study, STUDY, job.runs, "far", job.lines.append, study_plan.public
        )
    assert outside(job) <= PLACES
    assert {p.name for p in (job.folder / "dyno").iterdir()} <= {"rigs"}
    assert not job.runs.done()
    assert all("\n" not in line for line in job.lines)


PACKS: dict[str, tuple[dict[str, bytes] | str, ...]] = {
    "cut, then whole": ("sys.stdout.write('900\\n{')", {"failed.json": FAILURE}),
    "garbage, then whole": ("print('hello')", {"failed.json": FAILURE}),
    "killed, then whole": ("sys.stdout.write('900\\n{'); sys.stdout.flush(); os.kill(os.getpid(), 9)",
                           {"failed.json": FAILURE}),
}  # fmt: skip


@pytest.mark.parametrize("turns", PACKS.values(), ids=PACKS.keys())
def test_a_folder_that_comes_damaged_first_comes_again(
    turns: tuple[Any, ...], job: Rig
) -> None:
    tricks = [turn if isinstance(turn, str) else job.pack(turn) for turn in turns]
    job.tricks(**{**job.honest, "pack": in_turn(*tricks)})
    job.far.conduct([job.planned], [])
    assert (job.runs.run(job.planned.place).path / "failed.json").read_bytes() == FAILURE
    assert not list(job.runs.path.glob(".coming-*"))


KILL = "os.kill(os.getpid(), 9)"
HALF = "print('{\"log\": [\"a', end='', flush=True); "


@pytest.mark.parametrize(
    "verb", ["status", "describe", "install", "start", "follow", "pack", "remove"]
)
@pytest.mark.parametrize("how", ["at once", "after half an answer", "after its input"])
def test_an_agent_that_is_killed_there_ends_in_a_sentence_and_the_next_dyno_resumes(
    verb: str, how: str, job: Rig
) -> None:
    trick = {
        "at once": KILL,
        "after half an answer": HALF + KILL,
        "after its input": f"{QUIET}; {KILL}",
    }[how]
    if verb == "follow":  # it reads its input until home is gone
        trick = trick.replace(QUIET, "pass")
    job.tricks(**{**job.honest, verb: trick})
    with contextlib.suppress(RigError):
        job.far.conduct([job.planned], [])
    assert outside(job) <= PLACES
    assert not list(job.runs.path.glob(".coming-*"))
    job.tricks(**job.honest)
    for entry in job.far.register.entries():  # as a new dyno: the one before is gone
        job.far.register.write(msgspec.structs.replace(entry, process=0))
    Elsewhere(
        job.study, STUDY, job.runs, "far", job.lines.append, study_plan.public
    ).conduct([job.planned], [])
    assert (job.runs.run(job.planned.place).path / "failed.json").read_bytes() == FAILURE


def test_no_more_logs_of_engines_are_asked_for_than_there_can_be(job: Rig) -> None:
    names = [f"runs/s/engines/{i:06}-x" for i in range(20_000)]
    job.tricks(
        **{
            **job.honest,
            "follow": say(engines=names, ended="0"),
            "pack": job.pack({"engine.log": b"x"}),
        }
    )
    job.far.conduct([job.planned], [])
    assert job.calls().count("pack") == 10
    assert len(list(job.runs.engines_path.iterdir())) == 10
    assert outside(job) <= PLACES
