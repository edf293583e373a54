"""`[find]` in a study: one search for each engine setting and workload."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ExpectDecided
from dyno.cli.main import main
from dyno.conduct.study_plan import read
from dyno.errors import UsageError
from dyno.facts.study import Study
from dyno.store.run import Run
from dyno.study import order

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

STUDY = """
[rigs.here]
price = { machine_hour = 2 }
[engines.fake]
kind = "fake"
args = [["first_ms=30", "slots=2", "noise=0.05"], ["first_ms=30", "slots=6", "noise=0.05"]]
[workloads.short]
input_len = 8
output_len = 3
[trial]
correctness_check = false
[find]
target = ["ttft_p50:62", "failed:0"]
to = 16
resolution = 0.3
budget = "1m"
"""


def planned(text: str, folder: Path) -> Study:
    path = folder / "s.toml"
    path.write_text(text)
    return read(path)[0]


def test_each_setting_and_workload_has_one_search_whatever_the_repeats(
    tmp_path: Path,
) -> None:
    more = "[workloads.long]\ninput_len = 50\noutput_len = 3\n[loads.two]\nmax_concurrency = 2\nnum_prompts = 4\n"
    study = planned(f"repeats = 3\n{STUDY}{more}", tmp_path)
    searches = [p for p in study.trials if p.trial.find]
    assert len(searches) == 4 and all(p.place.repeats == 1 for p in searches)
    assert len(study.trials) - len(searches) == 2 * 2 * 3
    spec = searches[0].trial.find
    assert spec and spec.budget_s == 60 and spec.range == (1, 16, 4)
    for group in order.sessions(study):
        kinds = [bool(p.trial.find) for p in group.trials if p.place.repeat == 1]
        assert kinds == sorted(kinds)  # loads first


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('target = ["ttft_p50:62", "failed:0"]', "", "target is missing"),
        ("ttft_p50:62", "tfft:5", "Did you mean ttft"),
        ("ttft_p50:62", "ttft_max:5", "a search takes ttft"),
        ("to = 16", "to = 16\nfrom = 20", "from 20 is above to 16"),
        ('"1m"', '"soon"', "is not a time"),
        ("resolution", "resolutoin", "Did you mean resolution"),
        (
            "to = 16",
            "to = 16\n[loads.find]\nmax_concurrency = 2\nnum_prompts = 4",
            "can't be the name",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words) as e:
        planned(STUDY.replace(old, new), tmp_path)
    assert "s.toml:" in str(e.value)


@pytest.mark.engines  # slow
def test_a_study_shows_the_highest_load_of_each_setting(
    tmp_path: Path,
    expect_decided: ExpectDecided,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(STUDY)
    assert main(["run", "s.toml", "--any-rig"]) in (0, 3)
    out = capsys.readouterr().out
    assert "Highest load with median TTFT ≤ 62 ms, no failed request." in out
    runs = [Run(path) for path in sorted(Path("runs/s/trials").iterdir())]
    answers = [run.result().find for run in runs]
    expect_decided(all(a and a.decided for a in answers))
    assert "Limited by median TTFT" in out
    lows = sorted(a.low or 0 for a in answers if a)
    highs = sorted(a.high or 0 for a in answers if a)
    assert lows[0] <= 4.1 <= highs[0] and lows[1] <= 12.4 <= highs[1], (lows, highs)
    for run, found in zip(runs, answers, strict=True):
        # its figures are those of the answer
        assert found and run.manifest().trial.load.max_concurrency == found.low
        assert run.manifest().place and all(
            (run.path / probe.run / "summary.json").exists() for probe in found.probes
        )
    report = Path("r.md")
    assert main(["report", "runs/s", "-o", str(report), "-o", "r.html"]) == 0
    assert 'id="search-concurrency"' in Path("r.html").read_text()
    text = report.read_text()
    assert (
        "### Highest load within the target" in text
        and "Within median TTFT ≤ 62 ms" in text
    )
    assert "cost, $/M output" in text.partition("### Highest load")[2].partition("###")[0]
    before = {run.path: run.summary_path.stat().st_mtime_ns for run in runs}
    assert main(["run", "s.toml", "--any-rig"]) in (0, 3)
    # nothing is measured again
    assert {run.path: run.summary_path.stat().st_mtime_ns for run in runs} == before


@pytest.mark.engines  # slow
def test_a_search_that_was_stopped_continues_with_its_probes(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        STUDY.replace(', ["first_ms=30", "slots=6", "noise=0.05"]', "")
    )
    command = [sys.executable, "-m", "dyno", "run", "s.toml", "--any-rig"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 90
    stored_at = "runs/s/trials/*/probes.json"
    while (
        not any('"facts"' in p.read_text() for p in tmp_path.glob(stored_at))
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    [stored] = tmp_path.glob("runs/s/trials/*/probes.json")
    first = json.loads(stored.read_bytes())
    assert first and not (stored.parent / "summary.json").exists()
    subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, timeout=120)
    found = Run(stored.parent).result().find
    assert found and [p.run for p in found.probes][: len(first)] == [
        p["facts"]["run"] for p in first
    ]
