"""Answers of real servers, mutated: in their values, in their events, in their framing, in their bytes.

`python mutants.py SEED`: a server that gives one of them to each request, and closes. It prints its port.
"""

import random
import re
import socket
import sys
import threading
from itertools import count
from pathlib import Path

CAPTURES = Path(__file__).parent.parent / "captures"
DEEP = b"[" * 20_000
ODD_VALUES = [
    b"-1", b"0", b"1e400", b"-0.5", b"1" + b"0" * 18, b"9" * 5000, b"4294967296", b"9223372036854775808", b"NaN",
    b"Infinity", b"null", b"true", b'""', b"[]", b"{}", DEEP, b'{"a":' * 5000, b'"\\ud800"', b'"\\u0000"',
    b'"' + b"x" * 9000 + b'"', b'"\\x"', "\"\u202e\u2066\"".encode(), b'"\xff\xfe"', b"[[1]]", b'["a"]',
    b'{"message":[]}',
]  # fmt: skip
ODD_EVENTS = [
    b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data:\n\n", b"data: {}\n\n", b"data: []\n\n", b"data: null\n\n",
    b"\xef\xbb\xbf", b": ping\n\n", b"event: error\ndata: {\"error\":\"x\"}\n\n", b"\r", b"\n\n\n",
    b"data: " + DEEP + b"\n\n",
    b'data: {"error":' + DEEP + b"}\n\n", b'data: {"choices":[{"text":"x"}]' + b"\n\n", b"id: 1\nretry: 2\n\n",
    b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":7}}]}}]}\n\n', b"data: \x00\n\n",
    b'data: {"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":-5}}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1000000000000000000}}\n\n',
    b'data: {"usage":{"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":-9}}}\n\n',
]  # fmt: skip
ODD_BYTES = [
    b"\r\n", b"\n", b"\r", b"\x00", b"0\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 50, b"HTTP/1.1 200 OK\r\n\r\n",
    b"content-length: 5\r\n", b"Content-Length: -1\r\n", b"transfer-encoding: gzip\r\n", b"content-encoding: gzip\r\n",
    b"\x1f\x8b\x08", b"ffffffffffffffff\r\n", b"-5\r\n", b"0x10\r\n", b"data: ", b"\xff" * 40, b";" * 5000,
]  # fmt: skip
ODD_HEADS = [
    b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"",
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 500 Oops\r\ncontent-length: 3\r\n\r\nbad", b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    b"HTTP/1.1 429 Slow\r\nretry-after: -1\r\ntransfer-encoding: chunked\r\n\r\n",
]  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

_TGI = [
    b'data:{"index":1,"token":{"id":5,"text":" a","logprob":-1.0,"special":false},"generated_text":null}\n\n',
    b'data:{"index":2,"token":{"id":6,"text":" b","special":false},"generated_text":" a b",'
    b'"details":{"finish_reason":"length","generated_tokens":2,"input_length":3}}\n\n',
]
_LLAMACPP = [
    b'data: {"content":" a","tokens":[5],"stop":false}\n\n',
    b'data: {"content":"","stop":true,"stop_type":"limit","tokens_predicted":1,"tokens_evaluated":3,'
    b'"timings":{"cache_n":1}}\n\n',
]
_RUNNING = [
    b'data: {"choices":[{"text":" a"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
    b'data: {"choices":[{"text":" b","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
]


def _captured(name: str) -> list[bytes]:
    events = [
        line + b"\n\n"
        for line in (CAPTURES / name).read_bytes().splitlines()
        if line.startswith(b"data:")
    ]
    return events[:6] + events[-3:]


SEEDS = {
    "openai": [_captured("vllm-0.24-completions.sse"), _RUNNING],
    "openai-chat": [_captured("vllm-0.24-chat.sse")],
    "tgi": [_TGI],
    "llama.cpp": [_LLAMACPP],
}
ALL_SEEDS = [events for seeds in SEEDS.values() for events in seeds]
_VALUE = re.compile(rb'(?<=:)\s*("(?:[^"\\]|\\.)*"|-?[\d.]+|null|true|false|\[|\{)')


def mutant(rng: random.Random, backend: str = "openai") -> bytes:
    """One answer, from its first byte to its last."""
    events = list(rng.choice(SEEDS[backend] if rng.random() < 0.9 else ALL_SEEDS))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        _mutate_event(rng, events)
    head, body = HEAD, _framed(rng, events)
    if rng.random() < 0.15:
        head = rng.choice(ODD_HEADS)
        body = b"".join(events) if rng.random() < 0.5 else body
    raw = head + body
    if rng.random() < 0.1:
        raw += raw[: rng.randrange(len(raw) + 1)]  # the same again, or a part of it
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        raw = _mutate_bytes(rng, raw)
    return raw


def _mutate_event(rng: random.Random, events: list[bytes]) -> None:
    at = rng.randrange(len(events))
    kind = rng.randrange(6)
    if kind == 0:
        events.insert(at, rng.choice(ODD_EVENTS))
    elif kind == 1 and len(events) > 1:
        del events[at]
    elif kind == 2:
        events.insert(at, events[rng.randrange(len(events))])
    else:
        values = list(_VALUE.finditer(events[at]))
        if values:
            value = rng.choice(values)
            events[at] = (
                events[at][: value.start(1)]
                + rng.choice(ODD_VALUES)
                + events[at][value.end(1) :]
            )


def _framed(rng: random.Random, events: list[bytes]) -> bytes:
    """In HTTP chunks: one for each event, or cut anywhere."""
    if rng.random() < 0.3:
        body = b"".join(events)
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randrange(1, 8)))
        events = [
            body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if b > a
        ]
    out = b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events)
    return out + (
        b"0\r\n\r\n" if rng.random() < 0.9 else b"0\r\nx: y\r\n" * rng.randrange(4)
    )


def _mutate_bytes(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
    if kind == 2:
        return raw[:at] + rng.choice(ODD_BYTES) + raw[at:]
    return raw[:at] + raw[at + rng.randrange(1, 40) :]


def serve(seed: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    numbers = count()

    def talk(sock: socket.socket) -> None:
        with sock:
            try:
                # the request's body is one small object
                while sock.recv(65536).find(b"}") < 0:
                    pass
                rng = random.Random(f"{seed} {next(numbers)}")
                raw = mutant(rng)
                cut = rng.randrange(len(raw) + 1) if rng.random() < 0.5 else len(raw)
                sock.sendall(raw[:cut])
                sock.sendall(raw[cut:])
            except OSError:
                pass

    print(listener.getsockname()[1], flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=talk, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
