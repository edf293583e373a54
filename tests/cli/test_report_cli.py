"""`dyno report` on results that were really made: what it writes, what it says of mistakes, and where `dyno run` leaves
its page."""

import csv
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from conftest import Built
from dyno.cli.exit_codes import VOID
from dyno.cli.main import main

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

STUDY = """
about = "Two fakes, one of which breaks streams."
repeats = 2
interleave = "trials"
on_failure = "carry_on"
[rigs.here]
price = { machine_hour = 1.8, source = "made up" }
[engines.quick]
kind = "fake"
args = ["first_ms=6", "gap_ms=1"]
[engines.slow]
kind = "fake"
args = ["first_ms=15", "gap_ms=3"]
[engines.broken]
kind = "fake"
args = ["first_ms=6", "gap_ms=1", "fault=reset@5"]
loads = ["one"]
[engines.gone]
kind = "fake"
args = ["first_ms=6", "fault=die@1"]
loads = ["one"]
[workloads.w]
input_len = 8
output_len = 5
[loads.c]
max_concurrency = [1, 4]
num_prompts = 20
[loads.one]
max_concurrency = 2
num_prompts = 10
[trial]
correctness_check = false
"""


@pytest.fixture(scope="session")
def measured(built_once: Built) -> Path:
    def build(folder: Path) -> None:
        (folder / "s.toml").write_text(STUDY)
        code = main(
            ["run", str(folder / "s.toml"), "--runs", str(folder / "runs"), "--any-rig"]
        )
        assert code == 1, "one engine dies"

    return built_once("report", build)


@pytest.fixture
def here(measured: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(measured)
    return measured


@pytest.mark.engines
def test_a_study_ends_with_its_page_in_its_folder(here: Path) -> None:
    text = (here / "runs/s/report.html").read_text()
    assert (
        "<title>" in text
        and "quick" in text
        and "Two fakes, one of which breaks streams." in text
    )


def test_a_finished_study_that_is_run_again_keeps_its_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = here / "runs/s/report.html"
    before = page.stat().st_mtime_ns
    main(["run", "s.toml", "--any-rig", "--only", "quick"])
    assert page.stat().st_mtime_ns == before and "Page:" not in capsys.readouterr().err


def test_one_command_makes_page_markdown_and_csv(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["report", "runs/s", "-o", "out/r.html", "-o", "out/r.md", "-o", "out/r.csv"])
        == 0
    )
    assert capsys.readouterr().out.split() == ["out/r.html", "out/r.md", "out/r.csv"]
    text = Path("out/r.md").read_text()
    # Of two repeats on a busy machine it may not be known to be more; but then it stands first all the same.
    assert (
        re.search(r"quick (has the highest throughput|and slow can't be separated)", text)
        and "| failed" in text
    )
    assert re.search(r"\d+ requests failed", text), "no speed without its failures"
    with Path("out/r.csv").open() as file:
        lines = list(csv.DictReader(file))
    by_name = {line["series"]: line for line in lines}
    assert by_name.keys() == {"quick", "slow", "broken", "gone"}
    assert (
        float(by_name["broken"]["failed"]) == 4 and by_name["broken"]["verdict"] != "sound"
    )
    assert by_name["gone"]["completed"] == "" and "exited with code" in str(
        by_name["gone"].values()
    )


def test_repeats_are_one_line_with_the_sum_of_their_requests(here: Path) -> None:
    main(["report", "runs/s:quick", "-o", "out/q.csv"])
    with Path("out/q.csv").open() as file:
        quick = list(csv.DictReader(file))
    assert {(line["load.concurrency"], line["completed"], line["repeats"]) for line in quick} == {
        ("1", "40", "2"), ("4", "40", "2"), ("2", "20", "2"),
    }  # fmt: skip


def test_prices_of_the_study_make_costs(here: Path) -> None:
    main(["report", "runs/s", "-o", "out/c.md"])
    text = Path("out/c.md").read_text()
    assert "A million output tokens cost" in text and "made up" in text
    main(["report", "runs/s", "--price", "machine=3.6", "-o", "out/d.md"])
    old, new = (
        float(re.search(r"cost ([\d.,]+) USD", Path(f"out/{n}.md").read_text())[1])
        for n in "cd"
    )  # type: ignore[index]
    assert new == pytest.approx(2 * old, rel=0.02)


def test_a_target_names_the_best_load_that_meets_it(here: Path) -> None:
    main(["report", "runs/s", "--target", "ttft:100000", "-o", "out/t.md"])
    assert "TTFT ≤ 100,000 ms" in Path("out/t.md").read_text()
    main(["report", "runs/s", "--target", "ttft:0.001", "-o", "out/t.md"])
    text = Path("out/t.md").read_text()
    assert "over the target" in text and "has the highest" not in text


def test_pictures_are_drawn_without_a_browser(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "report",
                "runs/s",
                "--chart",
                "throughput-concurrency",
                "-o",
                "out/p.png",
                "-o",
                "out/p.svg",
            ]
        )
        == 0
    )
    assert Path("out/p.png").read_bytes().startswith(b"\x89PNG")
    words = "".join(ET.fromstring(Path("out/p.svg").read_text()).itertext())
    assert "quick" in words and "Concurrency" in words and "tokens/s" in words


def test_a_page_with_an_address_has_a_picture_for_link_previews(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", "runs/s", "--url", "https://example.org/r/", "-o", "out/link.html"])
    assert capsys.readouterr().out.split() == ["out/link.html", "out/link-preview.png"]
    text = Path("out/link.html").read_text()
    assert (
        '<meta property="og:image" content="https://example.org/r/link-preview.png">'
        in text
    )
    assert '<meta property="og:url" content="https://example.org/r/link.html">' in text
    picture = Path("out/link-preview.png").read_bytes()
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (1200, 630)
    assert main(["report", "runs/s", "--url", "example.org", "-o", "out/bad.html"]) == 2
    assert "og:title" in (here / "runs/s/report.html").read_text()


def test_charts_are_listed_with_what_may_be_shown_in_each(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "runs/s", "--list-charts"]) == 0
    out = capsys.readouterr().out
    assert "throughput-concurrency: " in out and "statistic=" in out


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["runs/s", "-o", "r.pdf"], "Use .html, .md, .csv, .png, .svg"),
        (["runs/s", "-o", "."], "follows from the file extension"),
        (["runs/s", "--target", "speed:5"], "unknown latency 'speed'"),
        (["runs/s", "--price", "H100=cheap"], "is not a price"),
        (["runs/s", "--prices", "gone.toml"], "gone.toml can't be read"),
        (
            ["runs/s", "--chart", "pie", "-o", "x.png"],
            "no such chart. Known: throughput-concurrency",
        ),
        (
            [
                "runs/s",
                "--chart",
                "throughput-concurrency",
                "--show",
                "colour=red",
                "-o",
                "x.png",
            ],
            "can't select that",
        ),
        (["runs/s", "--width", "3", "-o", "x.png"], "choose 100 to 8000 pixels"),
    ],
)
def test_a_mistake_is_reported_and_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], reported: str
) -> None:
    assert main(["report", *words]) == 2
    assert reported in capsys.readouterr().err and not Path("x.png").exists()


def test_what_cant_be_read_is_reported_and_the_rest_continues(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "runs/s", "nothing-here", "-o", "out/m.md"]) == 0
    assert "nothing-here" in capsys.readouterr().err and Path("out/m.md").exists()
    assert main(["report", "nothing-here", "-o", "out/none.md"]) == 2
    assert not Path("out/none.md").exists()


def test_a_key_reaches_no_page(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-123456")
    main(
        [
            "report",
            "runs/s",
            "--title",
            "with sk-secret-123456",
            "-o",
            "out/k.html",
            "-o",
            "out/k.md",
        ]
    )
    assert not any(
        "sk-secret-123456" in Path(f"out/k.{form}").read_text() for form in ("html", "md")
    )


def test_what_is_named_twice_was_measured_once(here: Path) -> None:
    main(
        [
            "report",
            "runs/s:quick",
            "runs/s",
            "./runs/s/",
            str(here / "runs/s"),
            "s",
            "-o",
            "out/twice.csv",
        ]
    )
    with Path("out/twice.csv").open() as file:
        quick = [line for line in csv.DictReader(file) if line["series"] == "quick"]
    assert {(line["load.concurrency"], line["completed"], line["repeats"]) for line in quick} == {
        ("1", "40", "2"), ("4", "40", "2"), ("2", "20", "2"),
    }  # fmt: skip


def test_a_csv_of_repeats_holds_together(here: Path) -> None:
    """Requests, tokens and time are sums, rates are means."""
    main(["report", "runs/s:quick", "-o", "out/sums.csv"])
    with Path("out/sums.csv").open() as file:
        for line in csv.DictReader(file):
            rate = float(line["completed"]) / float(line["duration_s"])
            assert rate == pytest.approx(float(line["request_throughput"]), rel=0.5)


def test_a_good_result_stays_sound_beside_one_that_failed(here: Path) -> None:
    main(["report", "runs/s", "-o", "out/sound.csv"])
    with Path("out/sound.csv").open() as file:
        assert all(
            line["verdict"] != "void"
            for line in csv.DictReader(file)
            if line["series"] in ("quick", "slow")
        )


def test_a_study_without_any_result_is_not_sound(here: Path) -> None:
    assert main(["report", "runs/s:gone", "-o", "out/gone.md"]) == VOID
    text = Path("out/gone.md").read_text()
    assert (
        text.splitlines()[2].startswith("**void**")
        and "exited with code" in text
        and "2 trials failed" in text
    )


@pytest.mark.parametrize(
    ("file", "reported"),
    [
        ("records.jsonl", "is damaged"),
        ("summary.json", "A trial can't be read"),
        ("trial.json", "A trial can't be read"),
    ],
)
def test_a_damaged_trial_is_reported_and_the_others_are_shown(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, reported: str
) -> None:
    shutil.copytree("runs/s", tmp_path / "s")
    for path in (tmp_path / "s/trials").glob(f"quick*/{file}"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert main(["report", str(tmp_path / "s"), "-o", str(tmp_path / "d.md")]) == 0
    assert reported in capsys.readouterr().err + (tmp_path / "d.md").read_text()
    assert "slow" in (tmp_path / "d.md").read_text()


def test_a_folder_of_studies_is_all_of_them(here: Path) -> None:
    assert main(["report", "runs", "-o", "out/all.md"]) == 0
    assert main(["report", "runs", "-o", "out/all.md", "--fail-on", "void"]) == VOID
    assert "quick" in Path("out/all.md").read_text()


def test_a_price_that_fits_nothing_is_reported(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", "runs/s", "--price", "H100=2.99", "-o", "out/u.md"])
    assert "--price H100: no result has this name" in capsys.readouterr().err


def test_a_file_without_results_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("words.txt").write_text("nothing of this kind\n")
    assert main(["report", "words.txt", "-o", "out/w.md"]) == 1
    assert "words.txt" in capsys.readouterr().err


def test_a_value_that_a_chart_cant_show_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("statistic=p12", "statistic=nonsense"):
        assert (
            main(
                [
                    "report",
                    "runs/s",
                    "--chart",
                    "ttft-concurrency",
                    "--show",
                    word,
                    "-o",
                    "x.png",
                ]
            )
            == 2
        )
        assert "has no such value. Known: statistic=mean" in capsys.readouterr().err
    assert not Path("x.png").exists()


def test_a_single_run_is_a_report_too(here: Path, tmp_path: Path) -> None:
    (run,) = Path("runs/s/trials").glob("quick*-1-r1-*")
    assert main(["report", str(run), "-o", str(tmp_path / "one.csv")]) == 0
    with (tmp_path / "one.csv").open() as file:
        assert [line["repeats"] for line in csv.DictReader(file)] == ["1"]
