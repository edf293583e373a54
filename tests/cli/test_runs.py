"""`dyno runs` on real folders: one run measured on the fake engine, copied into studies and spoilt in many ways."""

import fcntl
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from dyno.cli.main import main
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.facts.study import Place, PlannedTrial, Study
from dyno.store.run import Run
from dyno.store.study import Failure, StudyFolder, trial_name, write_failure

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One real run."""
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
            "--disable-tqdm",
            "--runs",
            str(folder / "runs"),
        ]
        assert main(words) == 0
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture
def home(tmp_path: Path, measured: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two single runs, and a study of four trials: done twice, failed, not begun."""
    for name in ("20260101-serve-a-1111", "20260102-serve b-2222"):
        shutil.copytree(measured, tmp_path / "runs" / name)
    a_study(tmp_path / "runs" / "tp", measured)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_study(path: Path, measured: Path) -> StudyFolder:
    manifest = Run(measured).manifest()
    places = [
        Place("tp", f"id{i}", "vllm", "short", "closed", {"engine.tensor_parallel": i})
        for i in (1, 2, 4, 8)
    ]
    study = StudyFolder(path)
    study.write(
        Study("tp", [PlannedTrial(place, manifest.trial) for place in places]),
        "name = 'tp'\n",
    )
    for place in places[:2]:
        shutil.copytree(measured, study.run(place).path)
        study.run(place).write_manifest(msgspec.structs.replace(manifest, place=place))
    for place, verdict in zip(
        places, ("sound", "void"), strict=False
    ):  # on a busy machine the run itself may be doubtful
        run = study.run(place)
        run.write_result(msgspec.structs.replace(run.result(), verdict=verdict))
    write_failure(
        study.fresh(places[2]),
        Failure("The engine died: out of memory.", 2, "2026-01-01T00:00:00+00:00"),
    )
    return study


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """`say("runs", "list")`: exit code, what was printed, what was said beside it."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(w) for w in words])
        reported = capsys.readouterr()
        return code, reported.out, reported.err

    return call


@contextmanager
def held(path: Path) -> Iterator[None]:
    """As another process holds it: by a file of its own."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- list ----


def test_runs_one_a_line_and_a_study_in_one(home: Path, say: Say) -> None:
    code, out, err = say("runs")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].split()[:5] == ["runs/tp", "2/4", "1", "0", "1"]
    assert [line[:27].strip() for line in lines[4:]] == [
        "runs/20260101-serve-a-1111",
        "runs/20260102-serve b-2222",
    ]
    assert say("runs", "list")[1] == out


def test_a_study_is_opened_by_name_path_or_all(home: Path, say: Say) -> None:
    for words in (["list", "runs/tp"], ["list", "tp"], ["--all"]):
        _, out, _ = say("runs", *words)
        assert "tp: 2 of 4 trials done, 1 failed, 0 doubtful, 1 void" in out
        states = {
            line.split("-id")[1][0]: line for line in out.splitlines() if "-id" in line
        }
        assert states["2"].endswith("void")
        assert states["4"].endswith("failed: The engine died: out of memory.")
        assert states["8"].endswith("not begun")


def test_a_list_for_scripts(home: Path, say: Say) -> None:
    listed = json.loads(say("runs", "--json")[1])
    assert [run["completed"] for run in listed["runs"]] == [6, 6]
    assert (listed["studies"][0]["done"], listed["studies"][0]["planned"]) == (2, 4)
    assert "trials" not in listed["studies"][0]
    (study,) = json.loads(say("runs", "list", "tp", "--json")[1])["studies"]
    assert [trial["state"] for trial in study["trials"]] == [
        "done",
        "done",
        "failed",
        "not begun",
    ]


def test_no_runs_and_no_folder_are_reported(tmp_path: Path, say: Say) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        code, out, _ = say("runs", "--runs", tmp_path / name)
        assert (code, out.startswith("No runs in")) == (0, True)
    assert say("runs", "list", tmp_path / "absent")[0] == 2


def test_what_is_broken_or_foreign_is_reported_and_the_rest_is_listed(
    home: Path, say: Say
) -> None:
    (home / "runs/20260101-serve-a-1111/summary.json").write_text("{ half")
    (home / "runs/photos/2019").mkdir(parents=True)
    (home / "runs/broken-study").mkdir()
    (home / "runs/broken-study/study.json").write_text('{"name": 5}')
    (home / "runs/loop").symlink_to(home / "runs")
    code, out, err = say("runs")
    assert code == 0
    assert (
        "unreadable: runs/20260101-serve-a-1111/summary.json is not in the format of this dyno version"
        in out
    )
    assert "unreadable: runs/broken-study/study.json" in out
    assert "serve b-2222" in out
    assert "left alone: runs/photos" in err
    assert "loop" not in out


def test_running_and_cut_off_trials_are_distinguished(home: Path, say: Say) -> None:
    trial = next((home / "runs/tp/trials").glob("*id1"))
    (trial / "summary.json").unlink()
    spool = trial / "exchanges.spool"
    spool.touch()
    assert "cut off" in say("runs", "list", "tp")[1]
    with held(spool):
        (line,) = [
            line for line in say("runs", "list", "tp")[1].splitlines() if trial.name in line
        ]
        assert line.split()[1:] == ["–", "–", "–", "running"]
    with held(home / "runs/tp/.lock"):
        assert say("runs")[1].splitlines()[1].endswith("running")


# ---- show ----


@pytest.mark.parametrize(
    "word", ["runs/20260101-serve-a-1111", "20260101-serve-a-1111", "20260101", "1111"]
)
def test_a_run_is_shown_by_its_path_its_name_or_an_end_of_it(
    home: Path, say: Say, word: str
) -> None:
    code, out, _ = say("runs", "show", word)
    assert code == 0
    assert "Successful requests:                     6" in out


def test_a_name_that_fits_several_is_not_guessed(home: Path, say: Say) -> None:
    code, _, err = say("runs", "show", "2026")
    assert code == 2
    assert (
        "2 runs match 2026: runs/20260101-serve-a-1111, runs/20260102-serve b-2222" in err
    )


def test_names_with_spaces_work_everywhere(home: Path, say: Say) -> None:
    assert say("runs", "show", "20260102-serve b-2222")[0] == 0
    assert say("runs", "pack", "serve b-2222", "-o", "a b.tar.zst")[0] == 0
    assert (
        say("runs", "unpack", "a b.tar.zst", "--runs", "o t")[1]
        == "o t/20260102-serve b-2222\n"
    )
    assert say("runs", "delete", "o t/20260102-serve b-2222", "--yes")[0] == 0


def test_a_study_is_shown_as_a_table_with_what_failed(home: Path, say: Say) -> None:
    code, out, _ = say("runs", "show", "tp")
    assert code == 0
    rows = [line.split()[:3] for line in out.splitlines()]
    assert ["TP", "completed", "failed"] in rows and ["2", "6", "0"] in rows
    assert "failed: The engine died: out of memory." in out
    shown = json.loads(say("runs", "show", "tp", "--json")[1])
    assert [trial["completed"] for trial in shown["trials"]] == [6, 6]


def test_a_failed_trial_says_why(home: Path, say: Say) -> None:
    code, _, err = say("runs", "show", "id4")
    assert code == 1
    assert "It failed after 2 attempts: The engine died: out of memory." in err


# ---- tag ----


def test_tags_are_given_shown_sought_and_taken(home: Path, say: Say) -> None:
    facts = {p: p.read_bytes() for p in (home / "runs").rglob("*.json")}
    assert say("runs", "tag", "1111", "tp", "id2", "--add", "good", "h100")[0] == 0
    assert say("runs", "tag", "1111", "--add", "old", "--remove", "h100", "never-given")[
        1
    ].endswith(": good old\n")
    assert {p: p.read_bytes() for p in facts} == facts
    out = say("runs", "--tag", "good")[1]
    assert "1111" in out and "runs/tp" in out and "2222" not in out
    assert [r["tags"] for r in json.loads(say("runs", "--json")[1])["runs"]] == [
        ["good", "old"],
        [],
    ]
    assert say("runs", "tag", "1111", "--remove", "good", "old")[1].endswith("no tags\n")
    assert not (home / "runs/20260101-serve-a-1111/tags.json").exists()
    assert "No runs with the tag absent" in say("runs", "--tag", "absent")[1]


def test_a_tag_is_one_word_and_must_be_given(home: Path, say: Say) -> None:
    for words in (["--add", "two words"], ["--add", "ok", ""], []):
        assert say("runs", "tag", "1111", *words)[0] == 2
    assert not list(home.rglob("tags.json"))


# ---- delete ----


def test_deleting_asks_on_a_terminal_and_needs_yes_elsewhere(home: Path, say: Say) -> None:
    run = home / "runs/20260101-serve-a-1111"
    command = [sys.executable, "-m", "dyno", "runs", "delete", "1111"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, "Add --yes" in done.stderr, run.exists()) == (2, True, True)
    for answer, there in ((b"n\n", True), (b"\n", True), (b"y\n", False)):
        master, slave = pty.openpty()
        os.write(master, answer)
        done = subprocess.run(command, stdin=slave, capture_output=True, text=True)
        os.close(master)
        os.close(slave)
        assert "7 files" in done.stderr
        assert (done.returncode, run.exists()) == (1 if there else 0, there)


def test_a_trial_or_a_whole_study_can_be_deleted(home: Path, say: Say) -> None:
    assert say("runs", "delete", "id1", "id4", "--yes")[0] == 0
    assert "1 of 4 trials done, 0 failed" in say("runs", "list", "tp")[1]
    code, _, err = say("runs", "delete", "tp", "--yes")
    assert (code, "a study with 1 trial" in err) == (0, True)
    assert sorted(p.name for p in (home / "runs").iterdir()) == [
        "20260101-serve-a-1111",
        "20260102-serve b-2222",
    ]


def test_what_is_not_a_run_is_not_deleted(home: Path, say: Say) -> None:
    (home / "photos").mkdir()
    (home / "app").mkdir()
    (home / "app/study.json").write_text('{"title": "not ours"}')
    (home / "runs/tp/engines/001-vllm").mkdir()
    (home / "runs/tp/engines/001-vllm/engine.json").write_text(
        '{"kind": "vllm", "launches": []}'
    )
    for name in (
        "photos",
        "app",
        "runs",
        ".",
        "/",
        "",
        "runs/tp/trials",
        "runs/tp/engines/001-vllm",
        "absent",
    ):
        assert say("runs", "delete", name, "--yes")[0] in (1, 2), name
    assert (
        (home / "photos").exists()
        and (home / "app").exists()
        and len(list((home / "runs").iterdir())) == 3
    )


def test_a_link_is_not_followed(home: Path, say: Say, measured: Path) -> None:
    shutil.copytree(measured, home / "elsewhere")
    (home / "runs/link").symlink_to(home / "elsewhere")
    code, _, err = say("runs", "delete", "runs/link", "--yes")
    assert (code, "is a link to" in err) == (2, True)
    (home / "runs/20260101-serve-a-1111/inside").symlink_to(home / "elsewhere")
    assert say("runs", "delete", "1111", "--yes")[0] == 0
    assert (home / "elsewhere/trial.json").exists()


def test_what_is_being_written_is_neither_deleted_nor_packed(home: Path, say: Say) -> None:
    run = home / "runs/20260101-serve-a-1111"
    (run / "exchanges.spool").touch()
    with held(run / "exchanges.spool"):
        for words in (["delete", "1111", "--yes"], ["pack", "1111"]):
            code, _, err = say("runs", *words)
            assert (code, "it is still running" in err) == (1, True)
    with held(home / "runs/tp/.lock"):
        for words in (
            ["delete", "tp", "--yes"],
            ["delete", "id1", "--yes"],
            ["pack", "tp"],
        ):
            assert "another dyno runs the study" in say("runs", *words)[2]
    # An engine that is still starting holds no lock, but its log.
    with (run / "engine.log").open("w") as log:
        engine = subprocess.Popen(["sleep", "60"], stdout=log)
    try:
        assert (
            f"process {engine.pid} (sleep) has files open in it"
            in say("runs", "delete", "1111", "--yes")[2]
        )
    finally:
        engine.kill()
        engine.wait()
    assert run.exists() and not list(home.glob("*.tar.zst*"))


# ---- pack and unpack ----


def names_in(archive: Path) -> dict[str, tarfile.TarInfo]:
    with (
        zstandard.open(archive, "rb") as data,
        tarfile.open(fileobj=data, mode="r|") as tar,
    ):
        return {member.name: member for member in tar}


def test_packed_and_unpacked_runs_are_the_same(home: Path, say: Say) -> None:
    say("runs", "tag", "tp", "--add", "good")
    assert say("runs", "pack", "1111", "tp", "-o", "both.tar.zst")[0] == 0
    members = names_in(home / "both.tar.zst")
    assert {name.split("/")[0] for name in members} == {"20260101-serve-a-1111", "tp"}
    assert {(m.uname, m.gname, m.uid, m.gid) for m in members.values()} == {("", "", 0, 0)}
    code, out, _ = say("runs", "unpack", "both.tar.zst", "--runs", "copy")
    assert (code, out) == (0, "copy/20260101-serve-a-1111\ncopy/tp\n")
    for name in ("20260101-serve-a-1111", "tp"):
        for path in (home / "runs" / name).rglob("*"):
            if path.is_file():
                assert (
                    home / "copy" / path.relative_to(home / "runs")
                ).read_bytes() == path.read_bytes()
    assert say("runs", "show", "copy/tp")[0] == 0


def test_without_prompts_no_word_of_them_is_in_the_archive(home: Path, say: Say) -> None:
    run = home / "runs/20260101-serve-a-1111"
    prompt = json.loads((run / "requests.jsonl").read_text().splitlines()[0])["prompt"]
    (run / "engine.log").write_text(f"Received request: {prompt}")
    lines = (run / "records.jsonl").read_text().splitlines()
    failed = {
        **json.loads(lines[0]),
        "error": "http_400",
        "error_detail": f"too long: {prompt}",
    }
    (run / "records.jsonl").write_text("\n".join([json.dumps(failed), *lines[1:]]) + "\n")
    result = json.loads((run / "summary.json").read_text())
    result["summary"]["failure_examples"] = {"http_400": f"too long: {prompt}"}
    (run / "summary.json").write_text(json.dumps(result))
    assert say("runs", "pack", "1111", "--no-prompts", "-o", "public.tar.zst")[0] == 0
    say("runs", "unpack", "public.tar.zst", "--runs", "copy")
    copy = home / "copy" / run.name
    reported = b"".join(p.read_bytes() for p in copy.iterdir())
    assert prompt.encode() not in reported and b" tok tok" not in reported
    names = [
        "client.json",
        "records.jsonl",
        "summary.json",
        "telemetry.jsonl",
        "trial.json",
    ]
    assert sorted(p.name for p in copy.iterdir()) == names
    before, after = list(Run(run).records()), list(Run(copy).records())
    assert [r.chunk_ns for r in before] == [r.chunk_ns for r in after]
    assert say("runs", "show", copy)[0] == 0


def test_a_report_fails_only_if_all_of_its_results_are_void(home: Path, say: Say) -> None:
    runs = [home / "runs/20260101-serve-a-1111", home / "runs/20260102-serve b-2222"]
    spoil(runs[0])
    code, _, err = say("report", *runs, "-o", "page.html")
    assert (code, (home / "page.html").exists()) == (0, True), err
    words = "is void and excluded from the answer. --fail-on void exits with 3."
    assert f"1 of 2 results {words}" in err
    assert say("report", *runs, "-o", "page.html", "--fail-on", "void")[0] == 3
    assert say("report", runs[0], "-o", "page.html")[0] == 3
    spoil(runs[1])
    code, _, err = say("report", *runs, "-o", "page.html")
    assert (code, "--allow-void exits with 0" in err) == (3, True)
    assert say("report", *runs, "-o", "page.html", "--allow-void")[0] == 0


def test_the_documented_python_reads_a_folder_with_runs_that_were_stopped(
    home: Path,
) -> None:
    (home / "runs/20260101-serve-a-1111/summary.json").unlink()
    (home / "runs/20260102-serve b-2222").rename(home / "runs/20260102-serve-b-2222")
    (home / "runs/20260103-serve-c-3333").mkdir()  # its engine had not come up
    page = (Path(__file__).parents[2] / "docs/results.md").read_text()
    listings = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [code] = [listing for listing in listings if "-serve-" in listing]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("completed, slowest TTFT") == 1


def spoil(run: Path) -> None:
    """Make a stored result void, and no copy of another one."""
    path = run / "summary.json"
    result = json.loads(path.read_text())
    text = "An answer repeats one character to its end."
    result["findings"] += [{"code": "correctness.garbage", "level": "void", "text": text}]
    path.write_text(json.dumps({**result, "verdict": "void"}))
    manifest = json.loads((run / "trial.json").read_text())
    manifest["started"] = f"2026-01-01T00:00:{len(run.name):02}+00:00"
    manifest["trial"]["load"]["max_concurrency"] = len(run.name)
    (run / "trial.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("more", [[], ["--no-prompts"]])
def test_a_cut_off_run_is_not_packed(home: Path, say: Say, more: list[str]) -> None:
    """A key that the server sent back may be in its raw bytes, over the bounds of reads."""
    run = home / "runs/20260101-serve-a-1111"
    (run / "summary.json").unlink()
    (run / "exchanges.spool").touch()
    code, _, err = say("runs", "pack", "1111", *more)
    assert (code, "was cut off" in err) == (2, True)


def test_raw_bytes_are_packed_only_where_they_were_decoded(home: Path, say: Say) -> None:
    (home / "runs/20260101-serve-a-1111/exchanges.spool").touch()
    (home / "runs/20260101-serve-a-1111/warmup.spool").touch()
    *_, cut = sorted((home / "runs/tp/trials").iterdir())
    (cut / "summary.json").unlink(missing_ok=True)
    (cut / "exchanges.spool").touch()
    (cut / "engine.log").touch()
    (cut / ".unscrubbed").touch()  # dyno was killed while the engine ran
    code, _, err = say("runs", "pack", "1111", "tp", "-o", "both.tar.zst")
    assert code == 0 and err.count("since a key may be in it") == 3
    raw = (".spool", "unscrubbed", f"{cut.name}/engine.log")
    assert [name for name in names_in(home / "both.tar.zst") if name.endswith(raw)] == [
        "20260101-serve-a-1111/exchanges.spool"
    ]


def test_what_is_unpacked_or_imported_is_the_owners_alone(home: Path, say: Say) -> None:
    say("runs", "pack", "1111", "-o", "one.tar.zst")
    say("runs", "unpack", "one.tar.zst", "--runs", "copy")
    for path in (home / "copy", *(home / "copy").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_an_archive_is_whole_or_not_there(
    home: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(tarfile.TarFile, "addfile", fail)
        code, _, err = say("runs", "pack", "1111")
    assert (code, "No space left" in err) == (1, True)
    assert not list(home.glob("*.tar.zst*"))
    assert say("runs", "pack", "1111")[0] == 0
    code, _, err = say("runs", "pack", "1111")
    assert (code, "exists" in err) == (2, True)


def test_links_in_a_run_are_left_out_and_reported(home: Path, say: Say) -> None:
    (home / "runs/20260101-serve-a-1111/passwd").symlink_to("/etc/passwd")
    _, _, err = say("runs", "pack", "1111")
    assert (
        "Left out, since it is not a plain file: runs/20260101-serve-a-1111/passwd" in err
    )
    assert not [
        name
        for name in names_in(home / "20260101-serve-a-1111.tar.zst")
        if "passwd" in name
    ]


def test_unpacking_overwrites_nothing(home: Path, say: Say) -> None:
    say("runs", "pack", "1111", "2222", "-o", "two.tar.zst")
    shutil.rmtree(home / "runs/20260101-serve-a-1111")
    (home / "runs/20260102-serve b-2222/mine").write_text("mine")
    code, _, err = say("runs", "unpack", "two.tar.zst")
    assert (code, "exists already" in err) == (1, True)
    assert (home / "runs/20260102-serve b-2222/mine").exists()
    assert sorted(p.name for p in (home / "runs").iterdir()) == [
        "20260102-serve b-2222",
        "tp",
    ]


def member(name: str, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    "bad",
    [
        member("../escaped"),
        member("/tmp/dyno-escaped"),
        member("run/../../escaped"),
        member("escaped"),
        member("run/link", type=tarfile.SYMTYPE, linkname="/etc"),
        member("run/hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        member("run/device", type=tarfile.CHRTYPE),
        member("run/trial.json"),  # a second time
        member("other/notes"),  # no run
    ],
    ids=lambda m: m.name,
)
def test_a_hostile_archive_writes_nothing(
    home: Path, say: Say, measured: Path, bad: tarfile.TarInfo
) -> None:
    before = sorted(home.rglob("*"))
    with (
        zstandard.open(home.parent / "evil.tar.zst", "wb") as out,
        tarfile.open(fileobj=out, mode="w|") as tar,
    ):
        data = (measured / "trial.json").read_bytes()
        tar.addfile(member("run/trial.json", size=len(data)), io.BytesIO(data))
        tar.addfile(bad, io.BytesIO())
        tar.addfile(member("run/link/through"), io.BytesIO())
    code, _, err = say("runs", "unpack", home.parent / "evil.tar.zst")
    assert code == 1, err
    assert sorted(home.rglob("*")) == before
    assert not Path("/tmp/dyno-escaped").exists()


def test_a_file_that_is_not_an_archive_or_half_of_one_is_reported(
    home: Path, say: Say
) -> None:
    say("runs", "pack", "1111", "-o", "good.tar.zst")
    data = (home / "good.tar.zst").read_bytes()
    (home / "half.tar.zst").write_bytes(data[: len(data) // 2])
    (home / "text.tar.zst").write_text("not an archive")
    (home / "empty.tar.zst").write_bytes(b"")
    for name in ("half", "text", "empty", "absent"):
        code, _, err = say("runs", "unpack", f"{name}.tar.zst", "--runs", "copy")
        assert (code, f"{name}.tar.zst" in err) == (1, True), name
    assert not (home / "copy").exists() or not list((home / "copy").iterdir())


def test_a_study_of_a_thousand_trials_is_looked_at_in_a_blink(
    tmp_path: Path, measured: Path, say: Say
) -> None:
    """bench/scale.py holds the time; here: that no manifest is decoded whole, and no record read."""
    study = a_study(tmp_path / "runs" / "tp", measured)
    for path in study.trials_path.glob("*/records.jsonl"):
        path.write_text("never read")
    for path in study.trials_path.glob("*/trial.json"):
        path.write_text(
            json.dumps(
                {"dyno": "9.9", "started": "2030-01-01T00:00:00", "from": "a later dyno"}
            )
        )
    assert "2 of 4 trials done" in say("runs", "list", study.path)[1]
    assert trial_name(study.study().trials[0].place) in say("runs", "list", study.path)[1]
