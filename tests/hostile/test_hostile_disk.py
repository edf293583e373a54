"""A disk that is full at any byte: each command ends in a sentence, without a traceback, and says what is not there."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quantized_files
import tiny
from conftest import StartFake
from hostile_archives import Packed
from hub_server import serving
from test_hostile_kills import RUN, Place
from test_models_hub import make_model

pytestmark = pytest.mark.skipif(
    shutil.which("prlimit") is None, reason="needs prlimit of util-linux"
)
LIMITS = [
    20_000,
    *(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 1, 500, 3000, 8000, 100_000)),
]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run_of_fixtures() -> Path:
    return next(
        p.parent
        for p in sorted(RUN.rglob("summary.json"))
        if (p.parent / "trial.json").exists()
    )


def full(place: Place, most: int, *words: str) -> None:
    """Run a command that can write files of `most` bytes. It succeeds, or it fails in words."""
    command = ["prlimit", f"--fsize={most}", sys.executable, "-B", "-m", "dyno", *words]
    done = subprocess.run(
        command,
        cwd=place.folder,
        env=place.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    assert "This is a bug" not in done.stderr
    assert done.returncode in (0, 1)
    if done.returncode:
        assert done.stderr.strip().splitlines()[-1].startswith("dyno")


@pytest.mark.parametrize("most", LIMITS)
def test_a_benchmark_on_a_full_disk(place: Place, fake: StartFake, most: int) -> None:
    url = fake(first_ms=2, gap_ms=1).base_url
    full(
        place,
        most,
        "bench",
        "serve",
        "--base-url",
        url,
        "--num-prompts",
        "20",
        "--output-len",
        "8",
        "--runs",
        "runs",
    )


@pytest.mark.nightly
@pytest.mark.parametrize("most", LIMITS)
def test_a_search_on_a_full_disk(place: Place, fake: StartFake, most: int) -> None:
    url = fake(first_ms=2, gap_ms=1).base_url
    words = (
        "--output-len",
        "4",
        "--to",
        "2",
        "--budget",
        "6",
        "--target",
        "ttft_p90:500ms",
        "--runs",
        "runs",
    )
    full(place, most, "find", "--base-url", url, *words)


@pytest.mark.parametrize("most", LIMITS)
def test_a_pull_on_a_full_disk(place: Place, most: int) -> None:
    make_model(place.folder / "hub" / "acme" / "tiny")
    with serving(place.folder / "hub") as hub:
        place.env["HF_ENDPOINT"] = hub.url
        full(place, most, "models", "pull", "acme/tiny")
        assert place.start(["models", "pull", "acme/tiny"]).wait(60) == 0


@pytest.mark.parametrize("most", LIMITS)
def test_an_export_and_an_import_on_a_full_disk(place: Place, most: int) -> None:
    Packed(place.folder).model("a", {"config.json": b"{}", "w.bin": b"w" * 50_000}).write(
        place.folder / "m.tar"
    )
    full(place, most, "models", "import", "m.tar")
    assert place.start(["models", "import", "m.tar"]).wait(60) == 0
    full(place, most, "models", "export", "a-", "out.tar")
    assert not list(place.folder.glob("*.partial"))


@pytest.mark.parametrize(
    "most",
    [pytest.param(n, marks=pytest.mark.nightly) for n in (0, 1, 500, 3000, 20_000)]
    + [400_000],
)
def test_a_quantization_on_a_full_disk_leaves_no_half_model_and_is_repeated(
    place: Place, most: int
) -> None:
    """Its tool is one of the tests' own; llm-compressor takes minutes to install."""
    place.env["FAKE"] = "works"
    quantized_files.install_fake(place.folder / "home", "llm-compressor")
    source = tiny.build(place.folder / "source", quantized_files.SHAPE)
    words = ["models", "quantize", str(source), "llm-compressor:fp8-dynamic"]
    full(place, most, *words)
    models = place.folder / "home" / "models"
    assert not [p for p in models.glob("[!.]*") if "fp8" in p.name]
    assert place.start(words).wait(60) == 0
    (made,) = [p for p in models.glob("[!.]*") if "fp8" in p.name]
    assert (made / "dyno.json").exists()
    assert not list(models.glob(".*.part"))


@pytest.mark.nightly
@pytest.mark.parametrize("most", LIMITS)
def test_a_page_a_picture_and_an_archive_on_a_full_disk(place: Place, most: int) -> None:
    run = run_of_fixtures()
    for words in (
        ["report", str(run), "-o", "page.html", "--allow-void"],
        ["report", str(run), "-o", "page.svg", "--allow-void"],
        ["runs", "pack", str(run), "-o", "run.tar.zst"],
    ):
        full(place, most, *words)
    assert not list(place.folder.glob("*.partial"))
