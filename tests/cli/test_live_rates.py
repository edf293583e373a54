"""The live line of a load: its token rate, held against the send times of a server."""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from conftest import STREAM_HEAD, Scripted, drive, receive_request, requests
from dyno.cli import progress as line
from dyno.cli.progress import Rates
from dyno.clock import now_ns
from dyno.facts.load import LoadSpec
from dyno.load.progress import FollowedResponse, Progress
from dyno.load.slices import joined
from dyno.load.wire import TICK_NS
from dyno.units import NS_PER_S, seconds

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

Serve = Callable[..., Scripted]
SHOWN_WITHIN = 0.15


class SteadyServer:
    """Sends tokens at a known rate and notes when. Each event is a write of its own, as from vLLM: the finish reason,
    the usage, the end mark and the end of the body come one by one after the last token."""

    def __init__(
        self, scripted: Serve, gap_s: float, bundle: int = 1, usage: bool = True
    ) -> None:
        self.sent: list[tuple[int, int]] = []  # a write begins, it is done
        self._gap_s, self._bundle, self._usage = gap_s, bundle, usage
        self._lock = threading.Lock()
        self.base_url = scripted(self._talk).base_url

    def _talk(self, sock: Any, _: int) -> None:
        while body := receive_request(sock):
            count = int(body.partition(b'"max_tokens":')[2].split(b",")[0].split(b"}")[0])
            sock.sendall(STREAM_HEAD)
            due = time.monotonic()
            for _ in range(count // self._bundle):
                due += self._gap_s
                time.sleep(max(due - time.monotonic(), 0))
                begun_ns = now_ns()
                self._event(
                    sock,
                    b'{"choices":[{"index":0,"text":"%s"}]}' % (b" tok" * self._bundle),
                )
                with self._lock:
                    self.sent.append((begun_ns, now_ns()))
            self._event(
                sock, b'{"choices":[{"index":0,"text":"","finish_reason":"length"}]}'
            )
            if self._usage:
                self._event(
                    sock,
                    b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}'
                    % count,
                )
            self._event(sock, b"[DONE]")
            time.sleep(0.002)
            sock.sendall(b"0\r\n\r\n")

    def _event(self, sock: Any, data: bytes) -> None:
        if not data.startswith(b'{"choices":[{"index":0,"text":" '):
            time.sleep(0.002)  # a read of its own
        sock.sendall(b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data))

    def rates(self, begin: "Tick", end: "Tick") -> tuple[float, float]:
        """Return the least and the most that may have arrived a second: between two looks of a client that may have
        read what was sent while it slept, or not yet."""
        begun, done = sorted(at for at, _ in self.sent), sorted(at for _, at in self.sent)
        least = bisect_right(done, end.at_ns - end.late_ns) - bisect_right(
            begun, begin.at_ns
        )
        most = bisect_right(begun, end.at_ns) - bisect_right(
            done, begin.at_ns - begin.late_ns
        )
        span_s = (end.at_ns - begin.at_ns) / NS_PER_S
        return least * self._bundle / span_s, most * self._bundle / span_s


class Tick(NamedTuple):
    at_ns: int
    late_ns: (
        int  # how much longer than a tick's length no look was taken: 0 on a quiet machine
    )


class Shown:
    """The rates as a progress line shows them, with the window that each is of."""

    def __init__(self) -> None:
        # window in ns since the load began, tokens/s, ended
        self.values: list[tuple[int, int, float, int]] = []
        self._rates = Rates()

    def __call__(self, p: Progress) -> None:
        self._rates.see(p)
        begin, end = (
            round(at * NS_PER_S)
            for at in (self._rates._seen[0][0], self._rates._seen[-1][0])
        )
        self.values.append((begin, end, self._rates.tokens_per_s, p.ended))

    def off(
        self, server: SteadyServer, start_ns: int, after_s: float = 1.0, ended: int = 0
    ) -> list[float]:
        """Return by what share each value is off the server's own rate in the same window."""
        late_ns, before = {0: 0}, 0
        for _, at, _, _ in self.values:
            late_ns[at] = max(at - before - 2 * TICK_NS, 0)
            before = at
        shares = []
        for begin, end, shown, done in self.values:
            if seconds(end) > after_s and done >= ended:
                ticks = (Tick(start_ns + at, late_ns[at]) for at in (begin, end))
                least, most = server.rates(*ticks)
                inside = min(max(shown, least), most)
                shares.append(shown / inside - 1 if inside else shown)
        return shares


def few(off: list[float]) -> bool:
    """Nearly all are within the promise: on a busy machine a tick may come between a send and its read."""
    return sum(abs(share) > SHOWN_WITHIN for share in off) <= len(off) // 20


@pytest.fixture(autouse=True)
def _short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "_WINDOW_S", 0.8)


LOADS = {
    "closed, answers of many lengths": (
        LoadSpec(max_concurrency=8),
        [10, 60, 25, 90, 15, 40],
    ),
    "closed, one answer that outlasts the window": (LoadSpec(max_concurrency=2), [400]),
    "open": (LoadSpec(request_rate_rps=12.0), [30]),
}


@pytest.mark.parametrize("name", LOADS)
def test_the_live_token_rate_is_the_servers_own_also_while_streams_run(
    scripted: Serve, name: str
) -> None:
    load, lengths = LOADS[name]
    server, shown = SteadyServer(scripted, gap_s=0.005), Shown()
    count = {"closed, one answer that outlasts the window": 2, "open": 24}.get(name, 48)
    wanted = [requests(1, lengths[i % len(lengths)])[0] for i in range(count)]
    driven = drive(server.base_url, wanted, load, watch=shown)
    assert [r.error for r in driven.records] == [None] * count
    off = shown.off(server, driven.client.start_ns)
    assert len(off) >= 5
    assert few(off), sorted(off)


def test_several_tokens_in_an_event_are_counted_once_a_usage_has_shown_it(
    scripted: Serve,
) -> None:
    """No spike on the way: what arrived before is counted anew, too."""
    server, shown = SteadyServer(scripted, gap_s=0.01, bundle=4), Shown()
    driven = drive(
        server.base_url, requests(20, 160), LoadSpec(max_concurrency=4), watch=shown
    )
    off = shown.off(server, driven.client.start_ns, ended=2)
    assert len(off) >= 5
    assert few(off), sorted(off)


def test_a_usage_that_is_cut_between_two_reads_is_found() -> None:
    response = FollowedResponse()
    usage = b'data: {"choices":[],"usage":{"completion_tokens":18}}\n\n'
    reads = [b'data: {"text":" a"}\n\n'] * 9
    reads += [usage[:40], usage[40:51], usage[51:], b"data: [DONE]\n\n"]
    for read in reads:
        response.add(read)
    assert response.tokens() == 18


def test_without_a_usage_an_event_counts_as_a_token(scripted: Serve) -> None:
    server, shown = SteadyServer(scripted, gap_s=0.005, usage=False), Shown()
    driven = drive(
        server.base_url, requests(6, 100), LoadSpec(max_concurrency=2), watch=shown
    )
    off = shown.off(server, driven.client.start_ns)
    assert len(off) >= 5
    assert few(off), sorted(off)


def test_the_live_rate_of_several_processes_is_the_sum_of_theirs() -> None:
    each = [
        Progress(10, events=100.0, tokens_per_event=1.0),
        Progress(10, events=300.0, tokens_per_event=2.0),
    ]
    both = joined(each)
    assert both.events * both.tokens_per_event == 100 + 600


def test_completed_and_failed_requests_are_counted_apart() -> None:
    """The line counted failed requests as done."""
    rates, now = Rates(), Progress(10, ended=7, failed=2, in_flight=3)
    rates.see(now)
    shown = rates.text(now)
    assert shown.startswith("5 of 10 completed, 2 failed, 3 open, ")
