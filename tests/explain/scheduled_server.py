"""One of the simulated schedulers in real time, behind a socket: it streams tokens as OpenAI's completions do, and
knows where each request's time went.

Run as a process of its own, so that the client doesn't wait for it: `python scheduled_server.py PORT RULES CLAIMS`.
GET /truth returns the times of all finished requests, by prompt.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from schedulers import Job, Rules, Scheduler

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def now_ms() -> float:
    return time.monotonic_ns() / 1e6


class Server:
    def __init__(self, rules: Rules, claims: list[str]) -> None:
        self._scheduler = Scheduler(rules)
        self._claims = claims
        self._work = asyncio.Event()
        self._streams: dict[int, asyncio.Queue[int]] = {}
        self._truth: dict[str, dict[str, float]] = {}
        self._count = 0

    async def run(self) -> None:
        """Do one step after the other. Its tokens are made when it has ended."""
        scheduler = self._scheduler
        ended: float | None = None
        while True:
            open_jobs = [*scheduler.waiting, *scheduler.prefilling, *scheduler.decoding]
            begin = now_ms()
            end = scheduler.step(begin)
            # What the server does between two steps belongs to the second one.
            scheduler.lengthen(begin - (ended or begin))
            ended = None
            if end is None:
                self._work.clear()
                await self._work.wait()
                continue
            await asyncio.sleep(max(end - now_ms(), 0) / 1e3)
            # On a busy machine a step takes longer than it should.
            ended = actual = now_ms()
            scheduler.lengthen(actual - end)
            for job in open_jobs:
                job.made = [actual if made == end else made for made in job.made]
                queue = self._streams[job.index]
                for _ in range(len(job.made) - queue.put_so_far):  # type: ignore[attr-defined]
                    queue.put_so_far += 1  # type: ignore[attr-defined]
                    queue.put_nowait(1)
            scheduler.finished.clear()

    async def answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                arrived = now_ms()
                line, *fields = head.decode("latin-1").split("\r\n")
                length = next(
                    (
                        f.split(":")[1]
                        for f in fields
                        if f.lower().startswith("content-length")
                    ),
                    "0",
                )
                body = await reader.readexactly(int(length))
                if "/completions" in line:
                    await self._generate(json.loads(body), arrived, writer)
                else:
                    self._plain(line, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _plain(self, line: str, writer: asyncio.StreamWriter) -> None:
        path = line.split()[1]
        routes: dict[str, Any] = {
            "/truth": self._truth,
            "/v1/models": {
                "object": "list",
                "data": [{"id": "scheduled", "object": "model"}],
            },
        }
        body = json.dumps(routes.get(path, {})).encode()
        status = b"200 OK" if path in routes or path == "/health" else b"404 Not Found"
        writer.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )

    async def _generate(
        self, asked: dict[str, Any], arrived: float, writer: asyncio.StreamWriter
    ) -> None:
        prompt = str(asked["prompt"])
        job = Job(self._count, len(prompt.split()), int(asked["max_tokens"]), arrived)
        self._count += 1
        queue: asyncio.Queue[int] = asyncio.Queue()
        queue.put_so_far = 0  # type: ignore[attr-defined]
        self._streams[job.index] = queue
        self._scheduler.add(job, arrived)
        self._work.set()
        if not asked.get("stream"):
            await self._whole(job, queue, writer)
            return
        writer.write(_HEAD)
        for number in range(job.output):
            await queue.get()
            last = number == job.output - 1
            event = {
                "choices": [
                    {
                        "index": 0,
                        "text": " tok",
                        "finish_reason": "length" if last else None,
                    }
                ]
            }
            writer.write(_chunk(event))
        del self._streams[job.index]
        self._note(prompt, job)
        usage = {"prompt_tokens": job.prompt, "completion_tokens": job.output}
        end: dict[str, Any] = {"choices": [], "usage": usage}
        if self._claims:
            end["metrics"] = self._metrics(job)
        writer.write(_chunk(end) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def _whole(
        self, job: Job, queue: "asyncio.Queue[int]", writer: asyncio.StreamWriter
    ) -> None:
        for _ in range(job.output):
            await queue.get()
        choice = {"index": 0, "text": " tok" * job.output, "finish_reason": "length"}
        usage = {"prompt_tokens": job.prompt, "completion_tokens": job.output}
        body = json.dumps(
            {"model": "scheduled", "choices": [choice], "usage": usage}
        ).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )

    def _metrics(self, job: Job) -> dict[str, float]:
        """As vLLM's."""
        t = self._truth_of(job)
        every = {
            "queue_time_ms": t["queue"],
            "time_to_first_token_ms": t["prefill"],
            "generation_time_ms": job.made[-1] - job.made[0],
        }
        return {name: value for name, value in every.items() if name in self._claims}

    def _truth_of(self, job: Job) -> dict[str, float]:
        assert job.scheduled is not None
        t = dict(job.truth)
        t["queue"] = job.scheduled - job.arrived
        t["prefill"] = job.made[0] - job.scheduled
        t["decode"] += (
            job.made[-1] - job.made[0] - t["decode"] - t["stall"] - t["preemption"]
        )
        return {**t, "arrived": job.arrived, "first": job.made[0], "last": job.made[-1]}

    def _note(self, prompt: str, job: Job) -> None:
        self._truth[prompt] = self._truth_of(job)


def _chunk(event: dict[str, Any]) -> bytes:
    data = f"data: {json.dumps({'model': 'scheduled', **event})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


async def main(port: int, rules: Rules, claims: list[str]) -> None:
    server = Server(rules, claims)
    listening = await asyncio.start_server(server.answer, "127.0.0.1", port, limit=1 << 20)
    print("ready", flush=True)
    async with listening:
        await server.run()


if __name__ == "__main__":
    asyncio.run(
        main(int(sys.argv[1]), Rules(**json.loads(sys.argv[2])), json.loads(sys.argv[3]))
    )
