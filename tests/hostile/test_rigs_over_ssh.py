"""A rig over SSH, to a real sshd on loopback: cuts, kills, unknown hosts, secrets, and a machine that lies."""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from dyno.remote import agent
from rigs_over_ssh import DynoProcess, SshRig

SECRET = "sk-do-not-show-4f14c74afd0000"
_STARTED = r"\[far\] started"
_FIRST = r"\[far\] \[1/"


def test_an_unknown_host_key_is_refused_and_nothing_is_registered(ssh_rig: SshRig) -> None:
    known = ssh_rig.server.folder / "known_hosts"
    for text in ("", known.read_text().replace("AAAAI", "AAAAJ")):
        known.write_text(text)
        ssh_rig.write()
        shown = " ".join(ssh_rig.dyno("run", "s.toml", "--plain").expect(1).split())
        assert (
            "rig can't be reached: its host key is not the known one, or not known yet."
            in shown
        )
        assert known.read_text() == text, "it is not accepted by dyno"
        assert ssh_rig.entries() == 0
        assert ssh_rig.server.left() == []


def test_a_key_that_is_not_accepted_says_what_to_do(ssh_rig: SshRig) -> None:
    (ssh_rig.server.folder / "authorized").write_text("")
    ssh_rig.write()
    assert "Add one to the agent (ssh-add)" in " ".join(
        ssh_rig.dyno("run", "s.toml").expect(1).split()
    )


@pytest.mark.nightly
def test_a_cut_connection_costs_nothing(ssh_rig: SshRig) -> None:
    ssh_rig.write(repeats=2, prompts=24)
    with ssh_rig.dyno("run", "s.toml", "--plain", "--no-report") as dyno:
        dyno.until(_FIRST)
        assert ssh_rig.server.cut() >= 1
        text = dyno.expect(0)
    assert "Connecting again" in text
    assert len(ssh_rig.study.done()) == 4
    assert text.count("[4/4]") == 1, "no line is shown twice"
    assert ssh_rig.left() == []


@pytest.mark.nightly
def test_a_killed_dyno_is_followed_by_the_next_one(ssh_rig: SshRig) -> None:
    ssh_rig.write(repeats=2, prompts=24)
    with ssh_rig.dyno("run", "s.toml", "--plain", "--no-report") as dyno:
        dyno.until(_FIRST)
        dyno.signal(signal.SIGKILL)
        dyno.process.wait()
    assert ssh_rig.entries() == 1
    listed = ssh_rig.dyno("rigs").expect(0)
    assert "far" in listed and ("running" in listed or "ended with code 0" in listed)
    jobs = list((ssh_rig.server.dyno_home / "jobs").glob("*/"))
    text = ssh_rig.run()
    assert len(jobs) == 1 and "[far] resuming" in text and "[far] started" not in text, (
        "the same job was followed"
    )
    assert len(ssh_rig.study.done()) == 4
    assert ssh_rig.left() == []


def test_ctrl_c_stops_it_there_keeps_what_is_finished_and_resumes(ssh_rig: SshRig) -> None:
    ssh_rig.write(repeats=2, prompts=24)
    with ssh_rig.dyno("run", "s.toml", "--plain", "--no-report") as dyno:
        dyno.until(_FIRST)
        dyno.signal(signal.SIGINT)
        text = dyno.expect(130)
    assert "interrupted" in text and "Resume with" in text
    done = len(ssh_rig.study.done())
    assert 1 <= done < 4
    assert ssh_rig.left() == [] and engines(ssh_rig) == []
    text = ssh_rig.run()
    assert f"{done} of 4 trials are done; resuming" in text
    assert len(re.findall(r"\[far\] \[\d/4\]", text)) == 4 - done, (
        "what is here is not measured again"
    )
    assert len(ssh_rig.study.done()) == 4


@pytest.mark.nightly
def test_a_rig_that_was_killed_is_continued(ssh_rig: SshRig) -> None:
    ssh_rig.write(repeats=4, prompts=24)
    with ssh_rig.dyno("run", "s.toml", "--plain", "--no-report") as dyno:
        dyno.until(_FIRST)
        (pid,) = (ssh_rig.server.dyno_home / "jobs").glob("*/pid")
        psutil.Process(int(pid.read_text())).kill()
        text = dyno.expect(1)
    assert (
        "was killed. Finished trials are here. Repeat the command to resume."
        in " ".join(text.split())
    )
    assert len(ssh_rig.study.done()) >= 1
    ssh_rig.run()
    assert len(ssh_rig.study.done()) == 8
    assert ssh_rig.left() == []


@pytest.mark.nightly
def test_rigs_down_stops_what_a_killed_dyno_left_and_fetches_what_is_finished(
    ssh_rig: SshRig,
) -> None:
    ssh_rig.write(repeats=4, prompts=24)
    with ssh_rig.dyno("run", "s.toml", "--plain", "--no-report") as dyno:
        dyno.until(_FIRST)
        dyno.signal(signal.SIGKILL)
        dyno.process.wait()
    here = len(ssh_rig.study.done())
    assert "far: stopped and cleaned up" in ssh_rig.dyno("rigs", "down", "far").expect(0)
    assert len(ssh_rig.study.done()) >= max(here, 1)
    assert ssh_rig.left() == [] and engines(ssh_rig) == []
    assert ssh_rig.dyno("rigs").expect(0) == "Nothing runs on other machines.\n"


@pytest.mark.parametrize("how", ["kill", "cut"])
@pytest.mark.nightly
def test_an_engine_held_for_a_load_from_here_ends_with_the_connection(
    ssh_rig: SshRig, how: str
) -> None:
    ssh_rig.write(rig='client = "here"', repeats=2, prompts=24)
    with ssh_rig.dyno("run", "s.toml", "--plain", "--no-report") as dyno:
        dyno.until(r"\[1/4\]")
        if how == "kill":
            dyno.signal(signal.SIGKILL)
            dyno.process.wait()
            deadline = time.monotonic() + 60
            while engines(ssh_rig):
                assert time.monotonic() < deadline, engines(ssh_rig)
        else:
            assert ssh_rig.server.cut() >= 1
            assert "Retrying" in dyno.expect(0), "the engine was started again"
    if how == "kill":
        assert len(ssh_rig.study.done()) >= 1
        ssh_rig.run()
    assert len(ssh_rig.study.done()) == 4
    assert ssh_rig.left() == [] and engines(ssh_rig) == []


def test_a_machine_that_is_gone_stays_in_the_list_until_it_is_forgotten(
    ssh_rig: SshRig,
) -> None:
    ssh_rig.write(repeats=2)
    with ssh_rig.dyno("run", "s.toml", "--plain", "--no-report") as dyno:
        dyno.until(_STARTED)
        dyno.signal(signal.SIGKILL)
        dyno.process.wait()
    ssh_rig.server.stop()
    assert "unknown: rig can't be reached" in " ".join(
        ssh_rig.dyno("rigs").expect(0).split()
    )
    assert "It stays in the list" in " ".join(
        ssh_rig.dyno("rigs", "down").expect(1).split()
    )
    ssh_rig.server.start()
    ssh_rig.dyno("rigs", "down").expect(0)
    assert ssh_rig.left() == []


def test_secrets_are_in_no_command_line_and_no_file(ssh_rig: SshRig) -> None:
    ssh_rig.write(engine=f'env = {{ SOME_API_KEY = "{SECRET}" }}', prompts=16)
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for process in psutil.process_iter(["cmdline"]):
                words = process.info["cmdline"] or []
                if any(SECRET in word for word in words):
                    seen.add(" ".join(words)[:200])
            seen.update(with_secret(ssh_rig.server.home, but="env"))
            time.sleep(0.02)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        text = ssh_rig.run()
    finally:
        over.set()
        watching.join()
    assert len(ssh_rig.study.done()) == 2
    assert seen == set() and SECRET not in text
    assert with_secret(ssh_rig.folder / "runs") == []
    assert with_secret(ssh_rig.folder / "dyno") == []


def with_secret(folder: Path, but: str = "") -> list[str]:
    """Files below a folder that hold it, whether or not they stay."""
    out = []
    for inner, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != but]
        for path in (Path(inner, name) for name in names):
            with contextlib.suppress(OSError):  # removed meanwhile
                out += [str(path)] if SECRET.encode() in path.read_bytes() else []
    return out


# The agent as a machine might change it: what it packs, and whom it names.
LIES = {
    "link": (
        "info.size = length",
        'info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0',
    ),
    "name": (
        "say(finished=os.path.relpath(path, self.folder))",
        'say(finished="../../../../evil")',
    ),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.nightly
def test_a_machine_that_lies_writes_nothing_outside_the_run_folder(
    ssh_rig: SshRig, lie: str
) -> None:
    source = Path(agent.__file__).read_text()
    good, bad = LIES[lie]
    assert source.count(good) == 1
    (ssh_rig.folder / "lie.py").write_text(source.replace(good, bad))
    ssh_rig.write()
    before = outside(ssh_rig)
    start = (
        "import sys, pathlib, dyno.remote.ssh as ssh; ssh._SOURCE = pathlib.Path('lie.py').read_bytes; "
        "from dyno.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", start, "run", "s.toml", "--plain", "--no-report"]
    with DynoProcess(command, ssh_rig.folder, ssh_rig.env) as dyno:
        text = " ".join(dyno.expect(1).split())
    assert lie == "name" or "a link or an unsafe path. It was refused." in text
    assert len(ssh_rig.study.done()) == 0
    assert outside(ssh_rig) - before == {"runs"}


def outside(ssh_rig: SshRig) -> set[str]:
    """What is beside the study's folder, on this machine."""
    mine = {p.relative_to(ssh_rig.folder).parts[0] for p in ssh_rig.folder.rglob("*")}
    return (
        mine
        | {str(p) for p in ssh_rig.folder.parent.rglob("evil")}
        | {str(p) for p in Path("/tmp").glob("evil*")}
    )


def engines(ssh_rig: SshRig) -> list[str]:
    """What runs out of a rig's environment."""
    lines = (" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))
    return [line for line in lines if f"{ssh_rig.server.dyno_home}/jobs/" in line]
