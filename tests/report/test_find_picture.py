"""A search's picture may fail in any way: the answer and its exit code stay."""

import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import StartFake
from dyno.api import searching
from dyno.cli import find
from dyno.cli.main import main
from dyno.report import draw

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

_FLAGS = [
    "--target", "ttft_p50:2s", "--to", "1", "--budget", "20", "--random-input-len", "8", "--random-output-len", "2",
    "--no-correctness-check",
]  # fmt: skip


class PanicException(BaseException):
    """As a library written in Rust raises it: no Exception."""


def search(
    url: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    code = main(["find", "--base-url", url, "--runs", str(runs), *_FLAGS])
    return code, *capsys.readouterr()


def test_a_picture_library_that_crashes_costs_the_picture_and_not_the_answer(
    fake: StartFake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def svg(*_: Any, **__: Any) -> str:
        raise PanicException("no fonts\nat canvas.rs:7")

    monkeypatch.setattr("dyno.report.picture.drawn", svg)
    code, out, err = search(fake(first_ms=50.0).base_url, tmp_path, capsys)
    [answer] = tmp_path.glob("*/find.json")
    assert code in (0, 4) and "concurrency 1" in out  # 4: a busy machine left it undecided
    assert (
        f"dyno: the picture {answer.parent / 'find.svg'} is missing (PanicException: no fonts)."
        in err
    )
    assert "Chart:" not in err and "This is a bug" not in err and "Traceback" not in err


@pytest.mark.engines
def test_a_picture_library_that_is_missing_costs_the_picture_and_not_the_answer(
    fake: StartFake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without = "import sys; sys.modules['vl_convert'] = None; from dyno.report.draw_process import main; main()"
    monkeypatch.setattr(draw, "PROCESS", [sys.executable, "-c", without])
    monkeypatch.setattr(draw, "_DRAWER", draw._Drawer())
    code, out, err = search(fake(first_ms=50.0).base_url, tmp_path, capsys)
    assert code in (0, 4) and "concurrency 1" in out  # 4: a busy machine left it undecided
    assert (
        "find.svg is missing (DrawError: " in err
        and "ModuleNotFoundError" in err
        and "The answer is complete without it." in err
    )


@pytest.mark.parametrize(
    ("error", "words"), [(SystemExit(3), "(SystemExit: 3)"), (ValueError(), "(ValueError)")]
)
def test_no_way_to_fail_at_drawing_ends_the_command(
    error: BaseException,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(monkeypatch, error)
    assert find._picture(None, Path("here"), "a server") is None  # type: ignore[arg-type]
    assert f"the picture here/find.svg is missing {words}." in capsys.readouterr().err


def test_ctrl_c_while_the_picture_is_drawn_is_still_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        find._picture(None, Path("here"), "a server")  # type: ignore[arg-type]


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def draw(*_: Any) -> bool:
        raise error

    monkeypatch.setattr(searching, "draw", draw)
