"""A crash costs a moment, not the run: whatever was spooled is read back."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from conftest import answer, requests
from dyno.errors import StoreError
from dyno.facts.record import Record
from dyno.load import decode
from dyno.load.protocols import PROTOCOLS
from dyno.load.spool import (
    CLOCK,
    END,
    NO_STAMP,
    READ,
    SENT,
    SINCE,
    TIMES,
    TURN,
    Spool,
    frames,
    pack,
)
from dyno.measure import timing
from dyno.units import NS_PER_S

WANTED = requests(4, 3)
WHOLE = answer(3)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
# where the reads of an answer end: in the head, in an event, in another
CUT_AT = (70, 150, 300)


def cut_after_the_first_event(raw: bytes) -> tuple[bytes, bytes]:
    """At the end of its HTTP chunk, as a server writes it."""
    end = raw.index(b"\n\n\r\n") + 4
    return raw[:end], raw[end:]


def frame(
    kind: int,
    exchange: int,
    at_ns: int,
    stamp: tuple[int, int] = (0, 0),
    payload: bytes = b"",
) -> bytes:
    return pack(exchange, kind, len(payload), at_ns, TIMES.pack(*stamp)) + payload


OFFSET_NS = NS_PER_S + 7  # wall clock minus monotonic clock


def spooled() -> list[bytes]:
    """Interleaved: two exchanges that end well, one that the server cut, one that was still open."""
    out = [frame(CLOCK, 0, 1000, (OFFSET_NS, 0))]
    reads = [WHOLE[a:b] for a, b in zip((0, *CUT_AT), (*CUT_AT, len(WHOLE)), strict=True)]
    out += [frame(SENT, exchange, 2000 + exchange, (1500, 0)) for exchange in range(4)]
    at = 3000
    for part, data in enumerate(reads):
        out.append(frame(TURN, 0, at, (at, 0)))
        for exchange in range(4):
            if (exchange, part) not in {(2, 2), (2, 3), (3, 3)}:
                at += 10
                # stamped at `at`, read 5 ns later
                out.append(frame(READ, exchange, at + 5, (1, at + 7), data))
    out += [frame(END, 1, 3201), frame(END, 0, 3202)]
    out.append(
        frame(
            END,
            2,
            3203,
            payload=b"cut: the server closed the connection before the response was whole",
        )
    )
    return out


def decoded(path: Path) -> list[Record]:
    return list(decode.records(path, WANTED, PROTOCOLS["openai"]))


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[tuple[Path, bytes]]:
    data = b"".join(spooled())
    path = tmp_path / "exchanges.spool"
    path.write_bytes(data)
    yield path, data


def test_a_whole_spool_gives_a_record_for_each_exchange(whole: tuple[Path, bytes]) -> None:
    records = decoded(whole[0])
    assert [(r.index, r.error) for r in records] == [
        (1, None),
        (0, None),
        (2, "cut"),
        (3, "interrupted"),
    ]
    assert all(
        r.text == " tok" * 3 and r.output_tokens == 3 and r.reads == 4 for r in records[:2]
    )
    assert (
        "the server closed" in records[2].error_detail
        and "dyno was stopped" in records[3].error_detail
    )
    # Times are from the load's start, which is the first clock reading. A read's is the kernel's stamp, less the
    # difference of the clocks.
    first = records[1]
    assert (first.due_ns, first.sent_ns, first.end_ns) == (500, 1000, 2202)
    assert first.chunk_ns == [2090, 2090, 2120]
    assert (first.late_ns_max, first.late_ns_sum) == (5, 20)


def test_a_spool_cut_at_any_byte_gives_the_finished_and_the_open_as_interrupted(
    whole: tuple[Path, bytes],
) -> None:
    path, data = whole
    finished = decoded(path)
    kinds = [f[4] for f in spooled()]
    ends = list(accumulate(map(len, spooled())))
    for size in range(len(data) - 1, -1, -1):
        os.truncate(path, size)
        whole_frames = kinds[: bisect_right(ends, size)]
        ended = whole_frames.count(END)
        records = decoded(path)
        assert records[:ended] == finished[:ended]
        assert len(records) == len({r.index for r in records}) == whole_frames.count(SENT)
        for r in records[ended:]:
            assert r.error == "interrupted" or (r.error is None and r.finish_reason), (
                r.error
            )
            assert (" tok" * 3).startswith(r.text)  # whole events only, in order


TAILS = {
    "zeros, as after a power loss": bytes(5000),
    "zeros in the middle": bytes(64) + frame(END, 3, 3300),
    "a frame of a kind that there is not": frame(9, 3, 3300) + frame(END, 3, 3300),
    "a read of an exchange that was not sent": frame(READ, 77, 3300, payload=b"x")
    + frame(END, 3, 3300),
    "the end of one that was not sent": frame(END, 77, 3300) + frame(END, 3, 3300),
    "the place of a read that was not there": frame(SENT, 77, 3300)
    + frame(SINCE, 77, 3300)
    + frame(END, 3, 3300),
    "something else": bytes(range(7, 255)) * 3,
}


@pytest.mark.parametrize("tail", TAILS)
def test_a_spool_ends_where_a_crash_has_left_something_else(
    whole: tuple[Path, bytes], tail: str
) -> None:
    path, data = whole
    expected = decoded(path)
    path.write_bytes(data + TAILS[tail])
    assert [r for r in decoded(path) if r.index != 77] == expected


@pytest.mark.parametrize("bound", [1, 3, 5, 9, 14, 17])
def test_a_spool_whose_last_blocks_are_zeros_is_one_that_was_cut(
    whole: tuple[Path, bytes], bound: int
) -> None:
    path, data = whole
    at = sum(map(len, spooled()[:bound]))
    path.write_bytes(data[:at])
    expected = decoded(path)
    path.write_bytes(data[:at] + bytes(len(data) - at))
    assert decoded(path) == expected


def test_a_spool_that_is_a_folder_is_reported_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="it is a folder"):
        decoded(tmp_path)


def test_an_answer_that_came_whole_before_the_crash_is_completed(
    whole: tuple[Path, bytes],
) -> None:
    path, data = whole
    path.write_bytes(data[: data.index(frame(END, 1, 3201))])
    assert [(r.index, r.error) for r in decoded(path)] == [
        (0, None),
        (1, None),
        (2, "interrupted"),
        (3, "interrupted"),
    ]


@pytest.mark.parametrize("block", [33, 100, 1 << 20])
def test_frames_are_the_same_in_whatever_blocks_they_are_read(
    whole: tuple[Path, bytes], block: int
) -> None:
    path, data = whole
    found = list(frames(path, block))
    assert len(found) == len(spooled())
    assert sum(32 + len(payload) for *_, payload in found) == len(data)


def test_a_second_sending_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(
        frame(CLOCK, 0, 100, (0, 0))
        + frame(SENT, 0, 200, (150, 0))
        + frame(SENT, 0, 400, (150, 0))
        + frame(READ, 0, 500, (0, 0), WHOLE)
        + frame(END, 0, 600)
    )
    (r,) = decoded(path)
    # no stamp: the read's time
    assert (r.due_ns, r.sent_ns, r.chunk_ns, r.error) == (50, 300, [400] * 3, None)


@pytest.mark.parametrize(
    ("payload", "replica"), [(b"", 0), (b"\x01", 1), (b"\x2c\x01", 300)]
)
def test_the_replica_is_reported_with_the_sending_and_none_is_the_first(
    tmp_path: Path, payload: bytes, replica: int
) -> None:
    path = tmp_path / "s"
    path.write_bytes(
        frame(SENT, 0, 200, (150, 0), payload)
        + frame(READ, 0, 500, (0, 0), WHOLE)
        + frame(END, 0, 600)
    )
    (r,) = decoded(path)
    assert (r.replica, r.error, r.text) == (replica, None, " tok" * 3)


@pytest.mark.parametrize(
    ("looked_ns", "stamp_ns", "unseen"),
    [
        # looked just before: if they came apart, then by less than that
        (9_900_000, 9_950_000, []),
        # hadn't looked for 9 ms: all before the end mark came at any time in it
        (1_000_000, 9_950_000, [0, 1, 2]),
        # woken late: the last one had lain there for 8 ms
        (9_900_000, 2_000_000, [0, 1, 2]),
    ],
)
def test_chunks_of_one_read_are_known_by_the_last_ones_stamp_only_if_the_client_was_prompt(
    tmp_path: Path, looked_ns: int, stamp_ns: int, unseen: list[int]
) -> None:
    path = tmp_path / "s"
    path.write_bytes(
        frame(CLOCK, 0, 0, (NS_PER_S, 0))
        + frame(SENT, 0, 100_000, (100_000, 0))
        + frame(TURN, 0, looked_ns, (looked_ns, 0))
        + frame(READ, 0, 10_000_000, (1, stamp_ns), WHOLE)
        + frame(END, 0, 10_100_000)
    )
    (r,) = decode.records(path, WANTED, PROTOCOLS["openai"], 0)
    assert r.chunk_ns == [stamp_ns] * 3
    assert r.unseen == unseen


def test_a_late_read_of_several_chunks_says_since_when_they_can_have_been_there(
    tmp_path: Path,
) -> None:
    first, rest = cut_after_the_first_event(WHOLE)
    path = tmp_path / "s"
    path.write_bytes(
        frame(CLOCK, 0, 0, (NS_PER_S, 0))
        + frame(SENT, 0, 100_000, (100_000, 0))
        + frame(TURN, 0, 4_900_000, (4_900_000, 0))
        # it had lain there for 3 ms; alone, its stamp is its own
        + frame(READ, 0, 5_000_000, (1, 2_000_000), first)
        + frame(TURN, 0, 9_900_000, (9_900_000, 0))
        + frame(READ, 0, 10_000_000, (1, 9_950_000), rest)
        # the loop believes 9.9 ms, the scheduler knows better
        + frame(SINCE, 0, 6_000_000, (6_000_000, 0))
        + frame(END, 0, 10_100_000)
    )
    (r,) = decode.records(path, WANTED, PROTOCOLS["openai"], 0)
    assert r.chunk_ns == [2_000_000, 9_950_000, 9_950_000]
    assert (r.unseen, r.unseen_since_ns) == ([1, 2], [6_000_000, 6_000_000])


def test_events_of_one_http_chunk_were_sent_together_however_late_they_are_read(
    tmp_path: Path,
) -> None:
    events = [f'data: {{"choices":[{{"text":" {word}"}}]}}\n\n'.encode() for word in "ab"]
    body = b"".join(events)
    end = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
    path = tmp_path / "s"
    path.write_bytes(
        frame(CLOCK, 0, 0, (NS_PER_S, 0))
        + frame(SENT, 0, 100_000, (100_000, 0))
        + frame(
            READ, 0, 20_000_000, (1, 5_000_000), HEAD + b"%x\r\n%b\r\n" % (len(body), body)
        )
        + frame(
            READ, 0, 30_000_000, (1, 25_000_000), b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end)
        )
        + frame(END, 0, 30_100_000)
    )
    (r,) = decode.records(path, WANTED, PROTOCOLS["openai"], 0)
    assert (r.text, r.chunk_ns[:2]) == (" a b", [5_000_000, 5_000_000])
    # the finish reason, a token of its own: more came with it, so its stamp may be another's
    assert r.unseen == [2]


@pytest.mark.parametrize("step_ns", [-50_000_000, 50_000_000, NS_PER_S])
def test_after_a_step_of_the_wall_clock_reads_are_timed_by_the_clock_that_does_not_step(
    tmp_path: Path, step_ns: int
) -> None:
    """A step back made stamps look older than they were, and TTFT too short, without a word."""
    first, rest = cut_after_the_first_event(WHOLE)

    def stamp(at_ns: int, stepped: bool) -> tuple[int, int]:
        return divmod(at_ns + 5 * NS_PER_S + (step_ns if stepped else 0), NS_PER_S)

    def exchange(index: int, at_ns: int, stepped: bool) -> bytes:
        return (
            frame(SENT, index, at_ns, (at_ns, 0))
            + frame(TURN, 0, at_ns + 59_990_000, (at_ns + 59_990_000, 0))
            + frame(
                READ, index, at_ns + 60_010_000, stamp(at_ns + 60_000_000, stepped), first
            )
            + frame(TURN, 0, at_ns + 69_990_000, (at_ns + 69_990_000, 0))
            + frame(
                READ, index, at_ns + 70_010_000, stamp(at_ns + 70_000_000, stepped), rest
            )
            + frame(END, index, at_ns + 70_020_000)
        )

    path = tmp_path / "s"
    path.write_bytes(
        frame(CLOCK, 0, 0, (5 * NS_PER_S, 0))
        + exchange(0, 1_000_000, False)
        + frame(CLOCK, 0, 100_000_000, (5 * NS_PER_S, 0))
        # the step came before its reads, and is known by the next clock frame
        + exchange(1, 101_000_000, True)
        + frame(CLOCK, 0, 200_000_000, (5 * NS_PER_S + step_ns, 0))
        + exchange(2, 201_000_000, True)
        + frame(CLOCK, 0, 300_000_000, (5 * NS_PER_S + step_ns, 0))
        + exchange(3, 301_000_000, True)
        + frame(CLOCK, 0, 400_000_000, (5 * NS_PER_S + step_ns, 0))
    )
    records = list(decode.records(path, WANTED, PROTOCOLS["openai"], 0))
    assert [r.index for r in records] == [0, 1, 2, 3]
    firsts = [r.chunk_ns[0] - r.sent_ns for r in records]
    assert (firsts[0], firsts[3]) == (60_000_000, 60_000_000)  # by the kernel's stamps
    # by the reads: just after the step too, where a stamp may be old
    assert firsts[1:3] == [60_010_000, 60_010_000]
    assert [r.unstamped for r in records] == [0, 2, 2, 0]
    assert all(r.error is None and not r.unseen for r in records)


def test_a_clock_that_ntp_bends_is_not_a_step(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(
        frame(CLOCK, 0, 0, (NS_PER_S, 0))
        + frame(SENT, 0, 100_000, (100_000, 0))
        + frame(READ, 0, 5_000_000, (1, 4_990_000), WHOLE)
        + frame(END, 0, 5_100_000)
        # 500 ppm, the most that the kernel slews
        + frame(CLOCK, 0, 100_000_000, (NS_PER_S + 50_000, 0))
    )
    (r,) = decode.records(path, WANTED, PROTOCOLS["openai"], 0)
    assert (r.unstamped, r.chunk_ns[-1]) == (0, 4_990_000)


def test_events_of_one_write_that_a_prompt_client_reads_have_a_known_arrival(
    tmp_path: Path,
) -> None:
    (r,) = read_at(tmp_path, (10_000_000, WHOLE))
    assert r.chunk_ns == [10_000_000] * 3 and r.unseen == []
    assert timing.ttft_ns(r) == (9_900_000, 9_900_000)


def test_an_event_in_three_writes_has_the_arrival_of_the_third(tmp_path: Path) -> None:
    # the rest of an event and the next one's length are in one piece
    head, *events = WHOLE.split(b"data: ")
    pieces = [
        head,
        *(piece for event in events for piece in (b"data: ", event[:20], event[20:])),
    ]
    (r,) = read_at(tmp_path, *((5_000_000 * i, piece) for i, piece in enumerate(pieces, 1)))
    assert r.chunk_ns == [5_000_000 * (1 + 3 * i) for i in (1, 2, 3)] and r.unseen == []
    assert timing.ttft_ns(r) == (19_900_000, 19_900_000)


def read_at(folder: Path, *reads: tuple[int, bytes]) -> list[Record]:
    """What a client makes of these, each read 20 µs after it came. The request was sent at 100 µs."""
    data = frame(CLOCK, 0, 0, (NS_PER_S, 0)) + frame(SENT, 0, 100_000, (100_000, 0))
    for at_ns, piece in reads:
        data += frame(TURN, 0, at_ns - 50_000, (at_ns - 50_000, 0))
        data += frame(READ, 0, at_ns + 20_000, (1, at_ns), piece)
    (folder / "s").write_bytes(data + frame(END, 0, at_ns + 30_000))
    return list(decode.records(folder / "s", WANTED, PROTOCOLS["openai"], 0))


def test_a_reason_that_was_cut_inside_a_character_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(
        frame(SENT, 0, 1) + frame(END, 0, 2, payload="tls: schlüssel".encode()[:10])
    )
    (r,) = decoded(path)
    assert r.error == "tls"


def test_an_empty_spool_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"")
    assert decoded(tmp_path / "s") == []


def test_what_is_written_lies_on_the_disk_at_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    try:
        spool.write([pack(0, SENT, 0, 5, NO_STAMP), pack(0, READ, 3, 6, NO_STAMP), b"abc"])
        assert [(f[0], f[1], f[2], f[5]) for f in frames(spool.path)] == [
            (0, SENT, 5, b""),
            (0, READ, 6, b"abc"),
        ]
    finally:
        spool.close()


def test_a_folder_that_can_not_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"can't be written: No such file or directory.*--runs"
    ):
        Spool(tmp_path / "nowhere" / "s")


def test_a_wall_clock_that_is_set_while_it_runs_spoils_no_time(tmp_path: Path) -> None:
    """The kernel stamps in wall time. If that jumps between two readings of its offset, the reads' own times hold."""
    path = tmp_path / "exchanges.spool"
    start, wall = 1_000_000_000, 1_700_000_000_000_000_000
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    pieces = [head, *[b'data: {"choices":[{"text":" a"}]}\n\n'] * 3]
    for jump in (-5_000_000_000, 5_000_000_000):
        data = frame(CLOCK, 0, start, (wall, 0)) + frame(SENT, 0, start + 1000, (start, 0))
        for i, piece in enumerate(pieces):
            read = start + (i + 1) * 10_000_000
            stamp = read + wall + (jump if i >= 2 else 0)
            data += frame(READ, 0, read, divmod(stamp, 1_000_000_000), piece)
        path.write_bytes(data + frame(END, 0, start + 50_000_000))
        (record,) = decoded(path)
        assert record.chunk_ns == [20_000_000, 30_000_000, 40_000_000]
        assert record.late_ns_max == 0
