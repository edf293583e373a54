"""What a person sees in a terminal: colours, and lines that fit its width."""

import io
import re
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest

from dyno.cli.terminal import shown
from dyno.report.table import Cell, Column, Line, Table, terminal, text_table
from dyno.screen import SCREEN, Screen, styled, wrapped
from goldens import LATENCY, RATE, SERVE, Dyno, check, dyno, normal

__all__ = ["dyno"]

CODES = {"32": "<green>", "33": "<yellow>", "31": "<red>", "1": "<bold>", "0": "</>"}
Screened = Callable[..., str]


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2  # progress asks whether it can be written


@pytest.fixture
def screened(dyno: Dyno, monkeypatch: pytest.MonkeyPatch) -> Screened:
    """Run a command in a terminal; return what it shows, its colours as words."""

    def run(command: str, width: int, **environment: str) -> str:
        from dyno.cli.main import main

        screen = Tty()
        for name, value in {"COLUMNS": str(width), "TERM": "xterm", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        main(command.split())
        return normal(
            re.sub(r"\x1b\[(\d+)m", lambda m: CODES[m[1]], screen.getvalue()), dyno.here
        )

    return run


def plain(text: str) -> str:
    return re.sub("|".join(CODES.values()), "", text)


# ---- the width ----


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_study_and_runs_fit_the_terminal(screened: Screened, width: int) -> None:
    commands = (
        "runs show two",
        "runs show broken",
        "runs list",
        "compare two:quick two:slow",
    )
    shown = "\n".join(
        f"$ dyno {command}\n{screened(command, width)}" for command in commands
    )
    check(f"terminal/{width}.txt", shown)


SHOWN = ("runs", "runs show two", "runs show broken", "runs list --all", f"runs show {SERVE}", f"runs show {RATE}",
         f"runs show {LATENCY}", "sql", "compare two:quick two:slow", "runs show nothing", "sql nonsense",
         "audit imports/qps_comparison.csv", "audit two", "report two --list-charts")  # fmt: skip


@pytest.mark.parametrize(
    "widths", [(80, 120), pytest.param((97, 200), marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("command", SHOWN)
def test_no_line_is_wider_than_the_terminal(
    screened: Screened, command: str, widths: tuple[int, ...]
) -> None:
    for width in widths:
        lines = plain(screened(command, width)).splitlines()
        assert lines and not [
            line for line in lines if len(line) > width and " " in line.strip()
        ]


@pytest.mark.parametrize("name", [SERVE, LATENCY, RATE])
def test_no_word_and_no_number_is_broken(screened: Screened, name: str) -> None:
    words = plain(screened(f"runs show {name}", 200)).split()
    for width in range(80, 130, 7):
        assert plain(screened(f"runs show {name}", width)).split() == words


def test_a_number_stays_with_its_unit() -> None:
    text = "Within p99 TTFT ≤ 150 ms it reaches 1,580 tokens/s (12.68 ± 0.40 req/s, 25.4 % of 2,000 requests) in 9 s."
    for width in range(30, 100):
        lines = wrapped(text, width=width)
        assert " ".join(lines) == text and max(map(len, lines)) <= width
        for before, after in pairwise(lines):
            assert not re.search(r"(\d|[±≤])$", before) or not re.match(
                r"(ms|s|%|±|req|tok|\d)", after
            ), lines


TABLE = Table(
    [Column("name"), Column("tok/s", kind="figure", keep=True), Column("about it"), Column("TTFT\np50", kind="figure"),
     Column("verdict", kind="verdict")],
    [Line([Cell("a-rather-long-name"), Cell("1,580 ± 12"), Cell("a few words about it"), Cell("12.68"), Cell("sound")]),
     Line([Cell("b"), Cell("12.68"), Cell(""), Cell("0.04231"), Cell("doubtful")])],
)  # fmt: skip


def drawn(table: Table, screen: Screen) -> list[str]:
    token = SCREEN.set(screen)
    try:
        return terminal(table)
    finally:
        SCREEN.reset(token)


def test_texts_are_folded_before_a_column_is_hidden() -> None:
    assert drawn(TABLE, Screen(64, fits=True)) == [
        "                                                  TTFT",
        "name                     tok/s  about it           p50  verdict",
        "a-rather-long-name  1,580 ± 12  a few words      12.68  sound",
        "                                about it",
        "b                        12.68                 0.04231  doubtful",
    ]


def test_what_is_hidden_is_reported_and_the_verdict_stays() -> None:
    assert drawn(TABLE, Screen(50, fits=True)) == [
        "name                     tok/s  verdict",
        "a-rather-long-name  1,580 ± 12  sound",
        "b                        12.68  doubtful",
        "2 columns hidden: about it, TTFT p50. Widen the",
        "terminal or use --json.",
    ]


def test_a_long_name_has_a_line_of_its_own() -> None:
    rows = [["a-name-of-thirty-characters-is-it", "1,580"], ["b", "3"]]
    assert drawn(text_table(["run", "tok/s"], rows, right=(1,), keep=(1,)), Screen(36, fits=True)) == [
        "run", "    tok/s", "a-name-of-thirty-characters-is-it", "    1,580", "b", "        3"
    ]  # fmt: skip


def test_a_table_in_a_pipe_is_as_wide_as_its_data() -> None:
    assert max(map(len, drawn(TABLE, Screen()))) == 71


def test_a_command_to_be_copied_stays_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", screen := Tty())
    command, sentence = (
        "  dyno bench serve " + "--flag value " * 10,
        "dyno: a sentence " * 10,
    )
    with shown():
        print(f"{command}\n{sentence}", file=sys.stderr)
    lines = screen.getvalue().splitlines()
    assert lines[0] == command and max(map(len, lines[1:])) <= 80 and len(lines) > 2


# ---- colours ----


def test_a_terminal_has_colours_and_a_pipe_none(screened: Screened, dyno: Dyno) -> None:
    shown = screened("runs show broken", 100)
    assert (
        "<green>sound</>" in shown
        and "<yellow>doubtful</>" in shown
        and "<red>2</>" in shown
    )
    assert "<bold>552.6</>" in shown and "<yellow>doubt</> requests.failed" in shown
    assert plain(shown) == screened("runs show broken", 100, NO_COLOR="1")


@pytest.mark.parametrize(
    ("environment", "colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False),
     ({"TERM": "dumb", "FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False)],
)  # fmt: skip
def test_who_decides_about_colours(
    screened: Screened, environment: dict[str, str], colours: bool
) -> None:
    assert ("<green>" in screened("runs show two", 100, **environment)) == colours


def test_a_pipe_has_colours_only_if_they_are_forced(
    dyno: Dyno, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b" not in dyno("runs", "show", "two")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32msound\x1b[0m" in dyno("runs", "show", "two")[1]
    assert "\x1b" not in dyno("runs", "show", "two", "--json")[1]


def test_colours_of_others_are_shown_and_not_obeyed(
    screened: Screened,
) -> None:
    shown = screened("runs show \x1b[31mred", 100)
    assert "x1b[31mred" in shown and "<red>" not in shown


def test_a_style_needs_a_screen_with_colours() -> None:
    assert styled("void", "bad") == "void"
