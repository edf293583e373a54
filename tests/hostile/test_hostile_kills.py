"""kill -9 at any moment of any command: no process stays, no file is half, and the next dyno sweeps what was temporary.

One moment of each command runs in CI, the others with `make test-nightly`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conftest import StartFake
from dyno.cli.main import main
from dyno.engines.port import free_port
from dyno.report import draw
from dyno.report.page import bundle
from dyno.scratch import Scratch, scratch, sweep
from hostile_archives import Packed
from hub_server import serving
from test_hostile_processes import living_in, wait_for
from test_models_hub import make_model

RUN = Path(__file__).parents[1] / "fixtures" / "runs"
MOMENTS_MS = [150, *range(50, 1900, 100)]  # after the start: 150 is the one that CI runs
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are looked at in /proc"
)


class Place:
    """A folder in which a dyno runs, with a cache, a home and temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("cache", "tmp", "hub"):
            (folder / name).mkdir()
        self.env = {
            **os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "DYNO_HOME": str(folder / "home"),
            "HF_HOME": str(folder / "hf"), "TMPDIR": str(folder / "tmp"), "HF_HUB_OFFLINE": "0", "COLUMNS": "100",
        }  # fmt: skip
        self.env.pop("HF_HUB_CACHE", None)

    def start(self, words: list[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "dyno", *words], cwd=self.folder, env=self.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def killed_after(self, words: list[str], moment_ms: int) -> None:
        process = self.start(words)
        time.sleep(moment_ms / 1000)
        process.kill()
        process.wait()
        wait_for(lambda: not living_in(self.folder), 12)

    def leftovers(self) -> list[str]:
        """Temporary folders of dyno, wherever they are made."""
        names = ("dyno-work-", "dyno-s-", ".dyno-", ".import-", ".unpacking-", ".coming-")
        return [str(p) for p in self.folder.rglob("*") if p.name.startswith(names)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def moments() -> list[object]:
    first, *others = MOMENTS_MS
    return [first, *(pytest.param(ms, marks=pytest.mark.nightly) for ms in others)]


# ---- the processor's test, which loads all cores ----


@pytest.mark.parametrize("moment_ms", moments())
def test_the_processors_test_dies_with_dyno(place: Place, moment_ms: int) -> None:
    code = "from dyno.probe import peaks, rig; peaks._test(rig.read_machine())"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=place.folder, env=place.env
    )
    wait_for(lambda: psutil.Process(process.pid).children(recursive=True))
    time.sleep(moment_ms / 1000)
    process.kill()
    process.wait()
    wait_for(lambda: not living_in(place.folder), 3)


# ---- commands ----


@pytest.mark.parametrize("moment_ms", moments())
def test_a_benchmark_that_is_killed_leaves_no_process(
    place: Place, fake: StartFake, moment_ms: int
) -> None:
    url = fake(first_ms=5, gap_ms=2).base_url
    place.killed_after(
        ["bench", "serve", "--base-url", url, "--num-prompts", "50", "--runs", "runs"],
        moment_ms,
    )


@pytest.mark.parametrize("moment_ms", moments())
def test_a_pull_that_is_killed_is_continued_and_leaves_no_process(
    place: Place, moment_ms: int
) -> None:
    make_model(place.folder / "hub" / "acme" / "tiny")
    with serving(place.folder / "hub") as hub:
        place.env["HF_ENDPOINT"] = hub.url
        hub.faults.slow.add("model-00001-of-00002.safetensors")
        place.killed_after(["models", "pull", "acme/tiny"], moment_ms + 400)
        hub.faults.go_on.set()
        assert place.start(["models", "pull", "acme/tiny"]).wait(60) == 0
    assert not place.leftovers()


@pytest.mark.parametrize("moment_ms", moments())
def test_an_import_that_is_killed_is_all_or_nothing(place: Place, moment_ms: int) -> None:
    Packed(place.folder).model(
        "a", {"config.json": b"{}", "w.bin": b"w" * 3_000_000}
    ).write(place.folder / "m.tar")
    place.killed_after(["models", "import", "m.tar"], moment_ms)
    models = place.folder / "home" / "models"
    whole = [p for p in models.glob("[!.]*") if (p / "dyno.json").exists()]
    assert whole == list(models.glob("[!.]*"))
    assert place.start(["models", "import", "m.tar"]).wait(60) == 0
    assert not place.leftovers()


@pytest.mark.parametrize("moment_ms", moments())
def test_an_unpacking_that_is_killed_is_all_or_nothing(
    place: Place, moment_ms: int
) -> None:
    run = next(
        p.parent
        for p in sorted(RUN.rglob("summary.json"))
        if (p.parent / "trial.json").exists()
    )
    pack = place.start(["runs", "pack", str(run), "-o", "run.tar.zst"])
    assert pack.wait(60) == 0
    place.killed_after(["runs", "unpack", "run.tar.zst", "--runs", "runs"], moment_ms)
    if not (place.folder / "runs" / run.name).exists():
        assert (
            place.start(["runs", "unpack", "run.tar.zst", "--runs", "runs"]).wait(60) == 0
        )
    assert not place.leftovers()


@pytest.mark.parametrize("moment_ms", moments())
def test_a_report_that_is_killed_leaves_no_half_page(place: Place, moment_ms: int) -> None:
    run = next(
        p.parent
        for p in sorted(RUN.rglob("summary.json"))
        if (p.parent / "trial.json").exists()
    )
    place.killed_after(["report", str(run), "-o", "page.svg", "--allow-void"], moment_ms)
    page = place.folder / "page.svg"
    assert not page.exists() or page.read_text().endswith("</svg>")


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        *(
            pytest.param(s, marks=pytest.mark.nightly)
            for s in (signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_the_folder_of_an_engine_in_the_foreground_is_removed_or_swept_by_the_next_one(
    place: Place, how: signal.Signals
) -> None:
    """Its log has what the engine printed, not searched for secrets after a kill -9."""

    def folders() -> list[Path]:
        return list((place.folder / "tmp").glob("dyno-engine-*"))

    first = place.start(["engines", "start", "llamacpp", "--port", str(free_port())])
    wait_for(lambda: [log for folder in folders() for log in folder.glob("*.log")])
    (before,) = folders()
    first.send_signal(how)
    first.wait(30)
    wait_for(lambda: not living_in(place.folder), 12)
    assert before.exists() == (how == signal.SIGKILL)
    second = place.start(["engines", "start", "llamacpp", "--port", str(free_port())])
    wait_for(lambda: folders() and before not in folders())
    assert not before.exists()
    second.send_signal(signal.SIGINT)
    second.wait(30)
    assert folders() == []


# ---- temporary folders ----


def test_a_folder_that_a_message_names_is_kept(tmp_path: Path) -> None:
    place = Scratch("x-", tmp_path)
    place.keep()
    os.close(place._handle)  # as the end of its dyno does
    sweep(tmp_path, "x-")
    assert place.path.exists()


def test_the_folder_of_a_dead_dyno_is_swept_and_that_of_a_live_one_stays(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, time, pathlib; from dyno.scratch import Scratch; "
        "s = Scratch('x-', pathlib.Path(sys.argv[1])); print(s.path, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    path = Path(process.stdout.readline().strip())
    sweep(tmp_path, "x-")
    assert path.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with scratch("x-", tmp_path) as other:
        assert not path.exists()
        assert other.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_link_with_the_name_of_a_temporary_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "x-link").symlink_to(tmp_path / "mine")
    Scratch("x-", tmp_path).remove()
    assert (tmp_path / "mine" / "file").exists()


# ---- drawing under a limit of memory ----


def limited(place: Place, mib: int, *words: str) -> "subprocess.CompletedProcess[str]":
    command = ["prlimit", f"--as={mib << 20}", sys.executable, "-m", "dyno", *words]
    return subprocess.run(
        command,
        cwd=place.folder,
        env=place.env,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("mib", [900, pytest.param(1500, marks=pytest.mark.nightly)])
def test_a_drawing_that_dies_costs_the_picture_and_not_the_page(
    place: Place, mib: int
) -> None:
    run = next(
        p.parent
        for p in sorted(RUN.rglob("summary.json"))
        if (p.parent / "trial.json").exists()
    )
    picture = limited(place, mib, "report", str(run), "-o", "page.svg", "--allow-void")
    assert picture.returncode == 1
    assert "The picture can't be drawn: the drawing process" in picture.stderr
    assert "raise it." in picture.stderr
    page = limited(place, mib, "report", str(run), "-o", "page.html", "--allow-void")
    assert page.returncode == 0
    assert "</html>" in (place.folder / "page.html").read_text()


def test_a_page_whose_scripts_cannot_be_made_has_tables_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = next(
        p.parent
        for p in sorted(RUN.rglob("summary.json"))
        if (p.parent / "trial.json").exists()
    )
    dies = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTRAP)"]
    monkeypatch.setattr(draw, "PROCESS", dies)
    monkeypatch.setattr(draw, "_DRAWER", draw._Drawer())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle.cache_clear()
    assert (
        main(["report", str(run), "-o", str(tmp_path / "page.html"), "--allow-void"]) == 0
    )
    assert (
        "page.html has no charts. The picture can't be drawn: the drawing process was ended by SIGTRAP."
        in (capsys.readouterr().err)
    )
    assert "</html>" in (tmp_path / "page.html").read_text()
