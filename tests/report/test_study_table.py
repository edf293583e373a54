"""The table of a study in a terminal."""

from pathlib import Path

from msgspec.structs import replace

from dyno.checks.statistics import unlike_repeats
from dyno.facts.study import PlannedTrial
from dyno.facts.summary import Result
from dyno.report import study
from dyno.report.block import block
from dyno.screen import SCREEN, Screen
from dyno.store.study import StudyFolder
from goldens import RUNS


def measured(name: str = "two") -> tuple[list[PlannedTrial], dict[str, Result]]:
    folder = StudyFolder(RUNS / name)
    planned = folder.study().trials
    return planned, {p.place.id: folder.run(p.place).result() for p in planned}


def test_hidden_columns_are_shown_by_a_command_that_names_the_study() -> None:
    """It named `dyno runs show STUDY`."""
    token = SCREEN.set(Screen(80, fits=True))
    try:
        text = " ".join(" ".join(study.lines(*measured(), Path("runs/two"))).split())
    finally:
        SCREEN.reset(token)
    assert "columns hidden: " in text
    assert "Widen the terminal or use `dyno runs show two --json`." in text


def test_repeats_that_differ_are_named_by_their_setting() -> None:
    """It was 'The 3 repeats of 4 differ'."""
    (finding,) = unlike_repeats(("quantization F16, concurrency 4", [100.0, 150.0, 110.0]))
    assert finding.text.startswith(
        "The 3 repeats of quantization F16, concurrency 4 differ: tok/s 100.0 to 150.0 "
    )


def test_an_interval_wider_than_its_figure_is_a_mark_that_is_explained() -> None:
    """Its reason made each column three times as wide."""
    planned, results = measured()
    assert "± ?" not in "\n".join(study.lines(planned, results, Path("runs/two")))
    for i, p in enumerate(planned):
        result = results[p.place.id]
        speed = result.served.output_throughput or 1.0
        apart = replace(result.served, output_throughput=speed * (1 + 9 * (i % 2)))
        results[p.place.id] = replace(result, summary=apart)
    lines = list(study.lines(planned, results, Path("runs/two")))
    assert any(" ± ?  " in line for line in lines) and max(map(len, lines)) < 200
    assert any(line.startswith("± ?: the 95 % interval is wider") for line in lines)
    assert not any("would do" in line for line in lines)


def test_answers_from_both_are_called_so() -> None:
    """A history with answers of the server and of the file was called 'server'."""
    planned, results = measured()
    first = planned[0]
    shown = block(results[first.place.id], first.trial, ["ttft"], "mixed")
    assert "server and recorded" in shown
