"""`dyno find` itself, over real sockets, against five servers whose highest load is known: it once had them wrong.

    python bench/searches.py             each once: right, wrong, not decided; requests and seconds
    python bench/searches.py --busy 2    the same beside two busy loops
    python bench/searches.py --only sine --budget 60

Each server is a process of its own. It waits instead of calculating, so that its speed hardly depends on the machine.
It exits with 1 if an answer is wrong.
"""

import argparse
import asyncio
import json
import logging
import math
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dyno.facts.find import FindAnswer

_TOKENIZER = Path(__file__).parents[1] / "src" / "dyno" / "engines" / "dyno-5m"
_BUDGET_S = 120.0


class Server:
    """Answers with three tokens. `delay` returns when the first may be sent, and how long the others take."""

    def __init__(self, delay: "Delay") -> None:
        self._delay = delay
        self.in_flight = 0
        self.began_s = time.monotonic()

    async def connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                body = json.loads(await reader.readexactly(length)) if length else {}
                if head.startswith(b"GET"):
                    models = {
                        "object": "list",
                        "data": [{"id": "waits", "object": "model"}],
                    }
                    _whole(writer, json.dumps(models).encode())
                else:
                    await self._answer(body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.in_flight += 1
        try:
            rest_s = await self._delay(self, body)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            chat = "messages" in body
            for place, text in enumerate((" a", " b", " c")):
                if place and rest_s:
                    await writer.drain()
                    await asyncio.sleep(rest_s / 2)
                _event(writer, _chunk(text, chat, finish="length" if place == 2 else None))
            usage = {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}
            _event(writer, json.dumps({"choices": [], "usage": usage}))
            _event(writer, "[DONE]")
            writer.write(b"0\r\n\r\n")
        finally:
            self.in_flight -= 1


Delay = Callable[[Server, dict[str, Any]], Awaitable[float]]


def _whole(writer: asyncio.StreamWriter, body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _chunk(text: str, chat: bool, finish: str | None) -> str:
    said = {"delta": {"content": text}} if chat else {"text": text}
    return json.dumps({"choices": [{"index": 0, **said, "finish_reason": finish}]})


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    line = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(line), line))


# ---- the servers ----


async def _rises(server: Server, _: dict[str, Any]) -> float:
    """The first token takes 50 ms, and 20 more for each request in flight."""
    await asyncio.sleep((0.05 + 0.02 * server.in_flight) * random.lognormvariate(0, 0.03))
    return 0.0


async def _swings(server: Server, _: dict[str, Any]) -> float:
    """50 ms and 10 for each request in flight, half as long to 1.5 times as long with a period of 20 s."""
    swing = 1 + 0.5 * math.sin(2 * math.pi * (time.monotonic() - server.began_s) / 20)
    await asyncio.sleep((0.05 + 0.01 * server.in_flight) * swing)
    return 0.0


async def _hangs(_: Server, __: dict[str, Any]) -> float:
    """15 % take 25 s, the others 0.2 s."""
    await asyncio.sleep(25.0 if random.random() < 0.15 else 0.2)
    return 0.0


async def _unlimited(_: Server, __: dict[str, Any]) -> float:
    """The first token takes 20 ms, the whole answer 4 s on average."""
    await asyncio.sleep(0.02)
    return random.expovariate(1 / 4.0)


_TURNS = (0.6, 0.8, 1.0, 1.2, 1.4)


async def _chats(server: Server, body: dict[str, Any]) -> float:
    """Later turns take longer."""
    turn = sum(message["role"] == "user" for message in body["messages"]) - 1
    noise = random.lognormvariate(0, 0.1)
    await asyncio.sleep((0.03 + 0.01 * server.in_flight) * _TURNS[min(turn, 4)] * noise)
    return 0.0


class Case(NamedTuple):
    name: str
    delay: Delay
    flags: str
    # between these, the figure crosses its limit: its timers may be 15 ms late on a busy machine, and never early
    truth: tuple[float, float]


_CHAT = "--backend openai-chat --dataset-name chat --turns 5"
# In a closed loop all its requests are in flight.
CASES = [
    Case("50 ms + 20 ms each", _rises, "--target ttft_p50:320", (12.75, 13.5)),
    # The times of a closed loop are counted by requests: more are sent while it is quick.
    Case("sine, 20 s", _swings, "--target ttft_p50:300", (24, 35)),
    Case("15 % take 25 s", _hangs, "--target e2el_p90:500 --to 48", (0, 0)),
    Case("unlimited, 4 s", _unlimited, "--over rate --target ttft_p90:500 --to 16", (math.inf, math.inf)),
    Case("chat, turns grow", _chats, f"{_CHAT} --target ttft_p50:250", (20.5, 22)),
]  # fmt: skip


# ---- a search of each ----


def _serve(case: Case, listener: socket.socket) -> None:
    logging.disable()  # of connections that dyno closes

    async def forever() -> None:
        server = await asyncio.start_server(Server(case.delay).connected, sock=listener)
        await server.serve_forever()

    asyncio.run(forever())


def _spin() -> None:
    while True:
        pass


@contextmanager
def _processes(*targets: tuple[Callable[..., None], tuple[Any, ...]]) -> Iterator[None]:
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=f, args=args, daemon=True) for f, args in targets]
    for each in started:
        each.start()
    try:
        yield
    finally:
        for each in started:
            each.terminate()
            each.join()


def _search(case: Case, budget_s: float, busy: int) -> tuple[FindAnswer | None, str]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listener.getsockname()[1]
    jobs = [(_serve, (case, listener)), *[(_spin, ())] * busy]
    with tempfile.TemporaryDirectory() as folder, _processes(*jobs):
        lengths = [] if "chat" in case.flags else ["--random-input-len", "8", "--random-output-len", "3"]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "dyno", "find", "--port", str(port), "--runs", folder, "--tokenizer",
             str(_TOKENIZER), "--no-correctness-check", "--disable-tqdm", "--budget", str(budget_s),
             *lengths, *case.flags.split()],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = list(Path(folder).glob("*/find.json"))
        if not found:
            return None, f"{done.stdout}\n{done.stderr}"
        return msgspec.json.decode(found[0].read_bytes(), type=FindAnswer), done.stdout


def verdict(case: Case, answer: FindAnswer) -> str:
    """Say whether an answer is right. An end that isn't shown says nothing."""
    low, high = answer.low or 0.0, answer.high or math.inf
    if answer.ended == "every load meets":
        low = math.inf
    if low > case.truth[1] or high < case.truth[0]:
        return "WRONG"
    return "right" if answer.decided else "not decided"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="servers whose name contains this")
    parser.add_argument("--budget", type=float, default=_BUDGET_S)
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the search")
    options = parser.parse_args()
    wrong = False
    print(
        f"{'server':20} {'truth':>10} {'low':>8} {'high':>8} {'requests':>9} {'s':>6}  verdict"
    )
    for case in CASES:
        if options.only not in case.name:
            continue
        answer, text = _search(case, options.budget, options.busy)
        if answer is None:
            print(f"{case.name:20} no answer: {text}", flush=True)
            wrong = True
            continue
        judged = verdict(case, answer)
        wrong = wrong or judged == "WRONG"
        sent = sum(probe.sent for probe in answer.probes)
        truth = "–".join(f"{x:g}" for x in dict.fromkeys(case.truth))
        ends = f"{answer.low or '–':>8} {answer.high or '–':>8}"
        cost = f"{sent:>9,} {answer.duration_s:>6.0f}"
        print(f"{case.name:20} {truth:>10} {ends} {cost}  {judged}", flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
