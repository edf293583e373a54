"""Several processes decode a spool as one does, whatever becomes of them."""

from pathlib import Path

import msgspec
import pytest

from conftest import answer, requests
from dyno.child import Child
from dyno.load import decode, decoder
from dyno.load.decoder import Decoders
from dyno.load.protocols import PROTOCOLS
from dyno.load.spool import CLOCK, END, READ, SENT, TIMES, TURN, Spool

WANTED = requests(5, 3)
PROTOCOL = PROTOCOLS["openai"]
EXCHANGES = 40

pytestmark = pytest.mark.real


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A spool of several blocks: exchanges end in another order than they began, and some failed."""
    path = tmp_path / "exchanges.spool"
    writer = Spool(path)
    raw = answer(3)
    for begin in range(0, EXCHANGES, 8):
        at_ns = 1_000_000 * (begin + 1)
        writer.note(CLOCK, 0, at_ns, TIMES.pack(0, 0))
        for number in range(begin, begin + 8):
            writer.note(SENT, number, at_ns + number, TIMES.pack(at_ns, 0))
        writer.flush()
        writer.note(TURN, 0, at_ns, TIMES.pack(at_ns, 0))
        for number in reversed(range(begin, begin + 8)):
            cut = raw[: 150 if number % 7 == 0 else len(raw)]
            writer.note(READ, number, at_ns + 100 + number, payload=cut)
            reason = b"reset: by peer" if number % 7 == 0 else b""
            writer.note(END, number, at_ns + 200 - number, payload=reason)
    writer.flush()
    writer.close()
    return path


def alone(path: Path) -> list[bytes]:
    return [*map(msgspec.json.encode, decode.records(path, WANTED, PROTOCOL, 0))]


def shared(path: Path) -> list[bytes]:
    with Decoders(path, WANTED, PROTOCOL, 0, 3) as decoders:
        return [*map(msgspec.json.encode, decoders.records())]


def test_processes_that_share_a_spool_give_the_same_records_in_the_same_order(
    spool: Path,
) -> None:
    assert len(alone(spool)) == EXCHANGES
    assert shared(spool) == alone(spool)


class Mortal(Child):
    """Is killed after the first reports that were heard of it."""

    def hear(self, within_s: float = 0.0) -> list[bytes]:
        lines = super().hear(within_s)[:2]
        self.kill()
        self.wait()
        self.gone = True
        return lines


def test_what_a_killed_process_has_not_decoded_is_decoded_here(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "Child", Mortal)
    assert shared(spool) == alone(spool)


def test_where_no_process_can_be_started_all_is_decoded_here(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Child:
        raise OSError("no more processes")

    monkeypatch.setattr(decoder, "Child", refuse)
    assert shared(spool) == alone(spool)


def test_a_small_spool_is_not_worth_another_process(spool: Path) -> None:
    assert not decoder.worthwhile(spool)
    assert not decoder.worthwhile(spool.with_name("missing.spool"))
