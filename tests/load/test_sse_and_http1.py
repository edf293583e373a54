"""However a response is cut into reads and HTTP chunks, the same events are found, each with its own time."""

import random
from collections.abc import Iterator
from itertools import accumulate

import pytest

from dyno.load import decode, http1
from dyno.load.http1 import ONE, OVER, SEVERAL, Chunked

# (the event's bytes as sent, what it says). Comments, ids, several data lines, multi-byte text, no space after the
# colon; and a payload that looks like the end of a chunked body.
EVENTS = [
    (b'data: {"text":" gr\xc3\xbc\xc3\x9f"}\n\n', b'{"text":" gr\xc3\xbc\xc3\x9f"}'),
    (b": ping\n\n", None),
    (b"event: message\nid: 7\ndata:\xf0\x9f\x99\x82\n\n", "🙂".encode()),
    (b"data: one\ndata: two\n\n", b"one\ntwo"),
    (b"retry: 10\n\n", None),
    (b'data: {"a":"\\r\\n0\\r\\n\\r\\n"}\n\n', b'{"a":"\\r\\n0\\r\\n\\r\\n"}'),
    (b"data: [DONE]\n\n", b"[DONE]"),
]
EXPECTED = [said for _, said in EVENTS if said is not None]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def with_line_ends(text: bytes, eol: bytes) -> bytes:
    return text.replace(b"\n", eol)


def body_and_ends(eol: bytes) -> tuple[bytes, list[int]]:
    """The body, and where each event that says something ends in it."""
    pieces = [with_line_ends(sent, eol) for sent, _ in EVENTS]
    ends = list(accumulate(map(len, pieces)))
    return b"".join(pieces), [
        e for e, (_, said) in zip(ends, EVENTS, strict=True) if said is not None
    ]


def cut(data: bytes, positions: list[int]) -> list[bytes]:
    return [
        data[a:b]
        for a, b in zip([0, *positions], [*positions, len(data)], strict=True)
        if b > a
    ]


def chunks_of(rng: random.Random, body: bytes, most: int) -> list[bytes]:
    return cut(body, sorted(rng.sample(range(1, len(body)), rng.randrange(most))))


def in_chunks(
    pieces: list[bytes], style: str = "%x", trailer: bytes = b""
) -> tuple[bytes, list[int]]:
    """The chunked body, and where in it each byte of the payload lies."""
    out, where = b"", []
    for piece in pieces:
        out += (style % len(piece)).encode() + b"\r\n"
        where += range(len(out), len(out) + len(piece))
        out += piece + b"\r\n"
    return out + b"0\r\n" + trailer + b"\r\n", where


def body_at(start: int, chunked: bool) -> http1.Head:
    return http1.Head(200, start, "", "", None, chunked, True)


def read_back(
    raw: bytes, reads: list[bytes], start: int, chunked: bool = True
) -> list[tuple[int, bytes]]:
    """What decoding does: an event comes with the read that holds its end."""
    events = decode.events(raw, body_at(start, chunked))
    return [(number_of_the_read_with(end - 1, reads), said) for end, said in events]


def number_of_the_read_with(position: int, reads: list[bytes]) -> int:
    return next(i for i, end in enumerate(accumulate(map(len, reads))) if position < end)


def ways_to_chunk(eol: bytes) -> Iterator[tuple[list[bytes], str, bytes]]:
    body, _ = body_and_ends(eol)
    per_event = [with_line_ends(sent, eol) for sent, _ in EVENTS]
    yield per_event, "%x", b""
    yield [body], "%X", b"x-took: 1\r\n"
    yield per_event, "%x;name=value", b"x-took: 1\r\nx-more: 0\r\n"
    yield per_event, "%05x", b""  # some servers pad
    yield [body[i : i + 1] for i in range(len(body))], "%x", b""
    rng = random.Random(len(eol))
    for _ in range(4):
        yield chunks_of(rng, body, 12), "%x ", b""


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"])
def test_a_response_cut_in_two_anywhere_gives_the_same_events_and_ends_with_its_last_byte(
    eol: bytes,
) -> None:
    _, event_ends = body_and_ends(eol)
    for pieces, style, trailer in ways_to_chunk(eol):
        coded, where = in_chunks(pieces, style, trailer)
        raw = HEAD + b"\r\n" + coded
        start = len(HEAD) + 2
        # The byte that closes an event: the last of its blank line.
        closing = [start + where[end - 1] for end in event_ends]
        for position in range(start, len(raw)):
            reads = cut(raw, [position])
            events = read_back(raw, reads, start)
            assert [said for _, said in events] == EXPECTED
            assert [t for t, _ in events] == [
                number_of_the_read_with(c, reads) for c in closing
            ]
            framing = Chunked()
            assert not (position > start and framing.take(raw[start:position]) == OVER)
            assert framing.take(raw[position:]) == OVER


@pytest.mark.parametrize("eol", [b"\n", b"\r\n"])
def test_many_seeded_ways_to_cut_and_chunk_give_the_same_events(eol: bytes) -> None:
    rng = random.Random(20261115)
    body, event_ends = body_and_ends(eol)
    for _ in range(400):
        coded, where = in_chunks(
            chunks_of(rng, body, 40), rng.choice(["%x", "%X", "%04x", "%x;a=b"])
        )
        raw = HEAD + b"\r\n" + coded
        start = len(HEAD) + 2
        reads = cut(raw, sorted(rng.sample(range(1, len(raw)), rng.randrange(60))))
        events = read_back(raw, reads, start)
        assert [said for _, said in events] == EXPECTED
        assert [t for t, _ in events] == [
            number_of_the_read_with(start + where[e - 1], reads) for e in event_ends
        ]


def test_the_end_is_seen_exactly_at_the_last_byte_however_it_is_cut() -> None:
    rng = random.Random(7)
    body, _ = body_and_ends(b"\n")
    for trailer in (b"", b"x-took: 1\r\n", b"a: \r\nb: 0\r\n"):
        for _ in range(300):
            coded, _ = in_chunks(
                chunks_of(rng, body, 12),
                rng.choice(["%x", "%05x", "%x;x", "%x;ext=1"]),
                trailer,
            )
            reads = cut(coded, sorted(rng.sample(range(1, len(coded)), rng.randrange(40))))
            framing = Chunked()
            assert [framing.take(r) == OVER for r in reads] == [False] * (
                len(reads) - 1
            ) + [True]


def test_byte_by_byte_the_end_is_the_last_byte() -> None:
    coded, _ = in_chunks([b"data: x\n\n"] * 3, "%05x", b"x-took: 1\r\n")
    framing = Chunked()
    assert [framing.take(coded[i : i + 1]) == OVER for i in range(len(coded))] == [
        False
    ] * (len(coded) - 1) + [True]


def test_a_chunk_header_cut_before_its_line_feed_is_not_taken_for_a_chunk() -> None:
    """A padded header met before, as long as its chunk: '00003' CR looked like three bytes and their line end."""
    framing = Chunked()
    assert framing.take(b"00003\r\nabc\r\n") != OVER  # now the header is known
    assert framing.take(b"00003\r\nabc\r\n") == ONE
    assert framing.take(b"00003\r") != OVER
    assert framing.take(b"\nabc\r\n") != OVER
    assert framing.take(b"0\r\n\r\n") == OVER


def test_a_read_of_one_chunk_or_a_part_of_it_is_reported_from_a_read_of_several() -> None:
    framing = Chunked()
    framing.take(b"3\r\nabc\r\n")
    assert framing.take(b"3\r\nabc\r\n") == ONE
    assert framing.take(b"3\r\nabc\r\n3\r\nabc\r\n") == SEVERAL
    assert [framing.take(b"3\r\na"), framing.take(b"b"), framing.take(b"c\r\n")] == [
        SEVERAL,
        ONE,
        ONE,
    ]


def test_a_payload_that_holds_the_end_mark_does_not_end_the_response() -> None:
    payload = b"data: a\r\n0\r\n\r\nb\n\n"
    coded, _ = in_chunks([payload, payload])
    for position in range(1, len(coded)):
        framing = Chunked()
        assert framing.take(coded[:position]) != OVER
        assert framing.take(coded[position:]) == OVER


@pytest.mark.parametrize(
    "broken", [b"data: x\r\n\r\n", b"zz\r\nabc\r\n", b"-5\r\nabc\r\n", b"\r\n", b"a" * 5000]
)
def test_broken_framing_is_an_error_and_no_endless_wait(broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a number|doesn't end"):
        Chunked().take(broken)


@pytest.mark.parametrize("eol", [b"\n", b"\r\n"])
@pytest.mark.parametrize("head", [HEAD, HEAD + b"Content-Length: %d\r\n"])
def test_a_body_that_is_not_chunked_gives_the_same_events(head: bytes, eol: bytes) -> None:
    body, event_ends = body_and_ends(eol)
    raw = (head % len(body) if b"%d" in head else head) + b"\r\n" + body
    start = len(raw) - len(body)
    parsed = http1.head(raw)
    assert parsed is not None and parsed.length == start and not parsed.chunked
    assert parsed.content_length == (len(body) if b"%d" in head else None)
    for position in range(start, len(raw)):
        reads = cut(raw, [position])
        events = read_back(raw, reads, start, chunked=False)
        assert [said for _, said in events] == EXPECTED
        assert [t for t, _ in events] == [
            number_of_the_read_with(start + e - 1, reads) for e in event_ends
        ]


def test_a_last_event_without_a_blank_line_counts_in_a_whole_response_and_not_in_a_cut_one() -> (
    None
):
    raw = b"data: one\n\ndata: two"
    assert decode.events(raw, body_at(0, False)) == [(11, b"one"), (20, b"two")]
    assert decode.events(raw, body_at(0, False), whole=False) == [(11, b"one")]


def test_a_cut_chunked_body_gives_the_events_that_were_whole() -> None:
    coded, where = in_chunks([b"data: one\n\n", b"data: two\n\n", b"data: three\n\n"])
    for position in range(len(coded) + 1):
        raw = coded[:position]
        events = decode.events(raw, body_at(0, True), whole=False)
        whole = sum(where[end - 1] < position for end in (11, 22, 35))
        assert [said for _, said in events] == [b"one", b"two", b"three"][:whole]


def test_a_head_is_read_when_its_blank_line_is_there_and_not_before() -> None:
    raw = HEAD + b"Transfer-Encoding: chunked\r\nConnection: Keep-Alive\r\n\r\n"
    assert all(http1.head(raw[:n]) is None for n in range(1, len(raw)))
    head = http1.head(raw + b"5\r\n")
    assert head is not None and head.length == len(raw) and head.status == 200
    assert head.chunked and head.keep_alive and head.content_type == "text/event-stream"


@pytest.mark.parametrize(
    ("raw", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection:  Close \r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_whether_a_connection_stays_open(raw: bytes, keep_alive: bool) -> None:
    head = http1.head(raw)
    assert head is not None and head.keep_alive is keep_alive


@pytest.mark.parametrize(
    "raw",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x15\x03\x01\x00\x02", b"x", b"HTTP/1.1 abc\r\n\r\n"],
)
def test_what_is_not_http_is_reported_at_once(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not an HTTP response"):
        http1.head(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"x: " + b"y" * 70_000,
    ],
)
def test_a_head_that_says_no_one_end_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        http1.head(raw)


def test_a_hundred_continues_come_before_the_answer() -> None:
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100
        + HEAD
        + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab"
    )
    head = http1.head(raw)
    assert head is not None and (head.status, head.content_length, raw[head.length :]) == (
        200,
        2,
        b"ab",
    )


def test_what_comes_after_the_end_of_a_chunked_body_is_kept_apart() -> None:
    framing = Chunked()
    assert framing.take(b"1\r\na\r\n0\r\n\r\nHTTP/1.1 200") == OVER
    assert framing.excess == b"HTTP/1.1 200"


@pytest.mark.parametrize("size", [b"0x5", b"+5", b"1_0", b" ", b"f" * 20])
def test_a_chunk_size_is_hexadecimal_digits_and_nothing_else(size: bytes) -> None:
    with pytest.raises(ValueError, match="not a number"):
        http1.chunk_size(size)


def test_a_chunk_that_is_longer_than_it_says_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer than its size"):
        http1.dechunk(b"3\r\nabcdef\r\n0\r\n\r\n", 0)


def test_a_byte_order_mark_is_not_part_of_the_first_event() -> None:
    assert decode.events(b"\xef\xbb\xbfdata: one\n\n", body_at(0, False)) == [(14, b"one")]


def test_a_request_is_written_with_its_length_in_bytes() -> None:
    raw = http1.front("POST", "/v1/x", "h:1") + http1.payload(
        http1.head_before_length({"a": "b"}), "grüß".encode()
    )
    assert (
        raw
        == b"POST /v1/x HTTP/1.1\r\nhost: h:1\r\na: b\r\ncontent-length: 6\r\n\r\ngr\xc3\xbc\xc3\x9f"
    )
