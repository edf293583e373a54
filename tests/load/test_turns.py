"""How the workers of a run share the cores (`turn` in conftest.py)."""

import fcntl
import threading
import time
from pathlib import Path

from conftest import turn

WITHIN_S = 60.0


def test_who_waits_for_being_alone_is_let_in_before_those_who_come_later(
    tmp_path: Path,
) -> None:
    order: list[str] = []
    inside = threading.Event()
    go_on = threading.Event()

    def first() -> None:
        with turn(tmp_path, alone=False):
            inside.set()
            go_on.wait(WITHIN_S)
            order.append("shared")

    def measuring() -> None:
        with turn(tmp_path, alone=True):
            order.append("alone")

    def later() -> None:
        with turn(tmp_path, alone=False):
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


def test_who_shares_runs_beside_others_who_do(tmp_path: Path) -> None:
    with turn(tmp_path, alone=False), turn(tmp_path, alone=False):
        pass


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
