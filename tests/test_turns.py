"""How the workers of a run share the cores (`turn` in conftest.py)."""

import fcntl
import threading
import time
from pathlib import Path

import pytest

from conftest import Kind, turn

WITHIN_S = 60.0


def test_who_waits_for_being_alone_is_let_in_before_those_who_come_later(tmp_path: Path) -> None:
    order: list[str] = []
    inside = threading.Event()
    go_on = threading.Event()

    def first() -> None:
        with turn(tmp_path, "works"):
            inside.set()
            go_on.wait(WITHIN_S)
            order.append("shared")

    def measuring() -> None:
        with turn(tmp_path, "alone"):
            order.append("alone")

    def later() -> None:
        with turn(tmp_path, "works"):
            order.append("shared, later")

    threads = [threading.Thread(target=target) for target in (first, measuring, later)]
    threads[0].start()
    assert inside.wait(WITHIN_S)
    threads[1].start()
    _until_the_door_is_held(tmp_path)
    threads[2].start()
    assert order == []
    go_on.set()
    for thread in threads:
        thread.join(WITHIN_S)
    assert order == ["shared", "alone", "shared, later"]


@pytest.mark.parametrize("kind", ["works", "measures"])
def test_who_shares_runs_beside_its_like(tmp_path: Path, kind: Kind) -> None:
    with turn(tmp_path, kind), turn(tmp_path, kind):
        pass


def test_who_measures_waits_for_those_who_work_and_lets_more_of_them_in(tmp_path: Path) -> None:
    order: list[str] = []

    def measuring() -> None:
        with turn(tmp_path, "measures"):
            order.append("measures")

    thread = threading.Thread(target=measuring)
    with turn(tmp_path, "works"):
        thread.start()
        time.sleep(0.1)  # it has tried
        with turn(tmp_path, "works"):
            order.append("works")
    thread.join(WITHIN_S)
    assert order == ["works", "measures"]


def _until_the_door_is_held(folder: Path) -> None:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        with (folder / "door.lock").open("a") as door:
            try:
                fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        time.sleep(0.001)
    raise AssertionError("nobody waits to be alone")
