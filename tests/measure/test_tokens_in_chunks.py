"""Figures per token are those of the server's own log, however many tokens a chunk has, and with or without text."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import (
    STREAM_HEAD,
    Driven,
    Scripted,
    StartFake,
    drive,
    receive_request,
    requests,
)
from dyno.cli.main import main
from dyno.facts.limits import parse
from dyno.facts.load import LoadSpec
from dyno.facts.record import Record
from dyno.facts.rig import Peaks
from dyno.facts.spread import Latency
from dyno.facts.summary import Summary
from dyno.load.protocols import PROTOCOLS
from dyno.measure import roofline, timing
from dyno.measure.counting import Counting
from dyno.measure.summary import Tally
from dyno.measure.timing import Span
from dyno.search.judge import Judge
from dyno.search.timeline import Timeline
from dyno.units import NS_PER_MS
from matrix import sampled
from test_roofline import LLAMA_8B, TARGET, VLLM, of_config
from test_summary import TRIAL

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

CAPTURES = Path(__file__).parents[1] / "captures"
CHAT = {"openai": False, "openai-chat": True}
# between two readings of the clock, of a token that takes 2 ms: the processor may be busy
SLACK_MS = 0.3
TOKEN_MS = 2.0


class Sent(NamedTuple):
    """When the server sent an event: between two readings of its clock, in milliseconds."""

    before: float
    after: float


class Event(NamedTuple):
    tokens: int
    text: str


def spoken(*sizes: int) -> list[Event]:
    return [Event(size, " tok" * size) for size in sizes]


class Server:
    """Sends the events of each answer at the pace of their tokens, in vLLM's shape, and logs when it sent them."""

    def __init__(
        self, answers: Sequence[list[Event]], *, chat: bool = False, says: str = "total"
    ) -> None:
        """`says`: how the server counts tokens: total, each, ids, logprobs or nothing."""
        self._answers, self._chat, self._says = answers, chat, says
        self.log: dict[int, list[Sent]] = {}  # by the number of the answer
        self._begun = 0

    def talk(self, sock: Any, _: int) -> None:
        while receive_request(sock):
            number, self._begun = self._begun, self._begun + 1
            events = self._answers[number % len(self._answers)]
            log = self.log[number] = []
            head, so_far = STREAM_HEAD + self._role(), 0
            for i, event in enumerate(events):
                time.sleep(event.tokens * TOKEN_MS / 1e3)
                so_far += event.tokens
                last = i == len(events) - 1
                data = head + self._event(event, so_far, "length" if last else None)
                head = b""
                before = time.monotonic_ns() / NS_PER_MS
                sock.sendall(data + (self._end(so_far) if last else b""))
                log.append(Sent(before, time.monotonic_ns() / NS_PER_MS))

    def _role(self) -> bytes:
        return (
            _framed({"choices": [_delta({"role": "assistant", "content": ""})]})
            if self._chat
            else b""
        )

    def _event(self, event: Event, so_far: int, finish: str | None) -> bytes:
        choice = (
            _delta({"content": event.text})
            if self._chat
            else {"index": 0, "text": event.text}
        )
        choice |= {"finish_reason": finish, "logprobs": None, "token_ids": None}
        names = [f"t{i}" for i in range(event.tokens)]
        if self._says == "ids":
            choice["token_ids"] = list(range(event.tokens))
        elif self._says == "logprobs":
            choice["logprobs"] = (
                {"content": [{"token": n} for n in names]}
                if self._chat
                else {"tokens": names}
            )
        usage = (
            {"usage": {"prompt_tokens": 3, "completion_tokens": so_far}}
            if self._says == "each"
            else {}
        )
        return _framed({"choices": [choice], **usage})

    def _end(self, tokens: int) -> bytes:
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}
        return (
            (b"" if self._says == "nothing" else _framed(usage))
            + _chunk(b"data: [DONE]\n\n")
            + b"0\r\n\r\n"
        )


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": delta}


def _framed(event: dict[str, Any]) -> bytes:
    return _chunk(f"data: {json.dumps(event)}\n\n".encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Measured(NamedTuple):
    records: list[Record]
    summary: Summary
    log: list[list[Sent]]  # of each answer's events, by the server


Scripting = Callable[..., Scripted]


def measure(
    scripted: Scripting,
    answers: Sequence[list[Event]],
    backend: str = "openai",
    says: str = "total",
    tokenizer: bool = False,
    count: int | None = None,
    concurrency: int = 1,
) -> Measured:
    server = Server(answers, chat=CHAT[backend], says=says)
    tokens = max(sum(e.tokens for e in events) for events in answers)
    wanted = requests(count or len(answers), tokens)
    driven = drive(
        scripted(server.talk).base_url,
        wanted,
        LoadSpec(max_concurrency=concurrency),
        backend=backend,
    )
    return Measured(
        driven.records,
        summarize(driven, tokenizer),
        [server.log[i] for i in sorted(server.log)],
    )


def summarize(driven: Driven, tokenizer: bool = False) -> Summary:
    count = (lambda text: len(text.split())) if tokenizer else None
    settling, tally = Counting(count, length_known=True, sampling=tokenizer), Tally(TRIAL)
    for record in driven.records:
        assert (record.error, record.error_detail) == (None, "")
        settling.settle(record)
        tally.add(record)
    return tally.summary(driven.client)


def took(log: list[Sent], begin: int, end: int, parts: int = 1) -> Span:
    """Return the time from one event to another by the server's log, divided by `parts`."""
    return Span(
        (log[end].before - log[begin].after) / parts,
        (log[end].after - log[begin].before) / parts,
    )


def true_tpot(events: list[Event], log: list[Sent]) -> Span:
    """Return the time per token after the first event with text."""
    first = next(i for i, event in enumerate(events) if event.text)
    return took(log, first, -1, sum(event.tokens for event in events[first + 1 :]))


def agree(figure: Latency | Span | None, truth: Span) -> bool:
    """Whether a figure, or its bounds where a busy client has only those, is what the server did."""
    if isinstance(figure, Latency):
        low, high = (
            figure.bounds["mean"] if figure.mean is None else (figure.mean, figure.mean)
        )
        figure = Span(low, high)
    assert figure is not None
    return figure.low <= truth.high + SLACK_MS and figure.high >= truth.low - SLACK_MS


def own_ms(record: Record) -> Span:
    span = timing.own_tpot_ns(record)
    assert span is not None
    return Span(span.low / NS_PER_MS, span.high / NS_PER_MS)


def random_sizes(seed: int, total: int = 20, most: int = 4) -> list[int]:
    """Return the chunks of speculative decoding: the prompt gives one token, each step one to `most`."""
    rng, sizes = random.Random(seed), [1]
    while sum(sizes) < total:
        sizes.append(min(rng.randint(1, most), total - sum(sizes)))
    return sizes


SHAPES = {
    "ten a chunk": [10, 10],
    "a small first chunk": [1, 10, 9],
    "a large first chunk": [12, 4, 4],
    "speculative": random_sizes(7),
    "one a chunk": [1] * 12,
}


# ---- chunks with several tokens ----


@sampled(shape=SHAPES, backend=CHAT, says=["each", "ids", "logprobs"])
def test_a_server_that_counts_the_tokens_of_each_event_gives_the_true_time_per_token(
    scripted: Scripting, shape: str, backend: str, says: str
) -> None:
    events = spoken(*SHAPES[shape])
    (record,), s, (log,) = measure(scripted, [events], backend, says)
    assert record.first_tokens == SHAPES[shape][0]
    assert agree(own_ms(record), true_tpot(events, log))
    assert agree(s.true_tpot, true_tpot(events, log))


@pytest.mark.parametrize("says", ["total", "nothing"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tokenizer_counts_the_first_chunk_where_the_server_does_not(
    scripted: Scripting, shape: str, says: str
) -> None:
    events = spoken(*SHAPES[shape])
    (record,), _, (log,) = measure(scripted, [events], says=says, tokenizer=True)
    assert record.first_tokens == SHAPES[shape][0]
    assert agree(own_ms(record), true_tpot(events, log))


@pytest.mark.parametrize("shape", SHAPES)
def test_without_either_the_time_per_token_has_bounds_that_hold_the_true_one(
    scripted: Scripting, shape: str
) -> None:
    events = spoken(*SHAPES[shape])
    (record,), s, (log,) = measure(scripted, [events])
    low, high = own_ms(record)
    assert agree(own_ms(record), true_tpot(events, log))
    if shape == "one a chunk":
        assert timing.first_tokens(record) == (1, 1) and s.own_tpot is None
        return
    most = sum(SHAPES[shape]) - len(SHAPES[shape]) + 1
    assert timing.first_tokens(record) == (1, most)
    assert (
        s.own_tpot is not None
        and s.own_tpot.mean is None
        and s.own_tpot.bounds["mean"] == pytest.approx((low, high))
    )
    assert "itl_per_token" in s.latencies and s.latencies["itl_per_token"].mean is None
    assert s.latencies["itl_per_token"].bounds["mean"] == pytest.approx(
        (low, high), rel=1e-3
    )


def test_the_top_level_figure_stays_vllms(scripted: Scripting) -> None:
    _, s, (log,) = measure(scripted, [spoken(10, 10)], says="each")
    assert agree(s.tpot, took(log, 0, 1, 19))
    assert agree(s.own_tpot, took(log, 0, 1, 10))
    assert agree(s.latencies["itl_per_token"], took(log, 0, 1, 10))
    assert agree(s.itl, took(log, 0, 1))


def test_an_answer_in_one_chunk_has_no_time_per_token(scripted: Scripting) -> None:
    (record,), s, _ = measure(scripted, [spoken(20)], says="each")
    assert timing.own_tpot_ns(record) is None
    assert s.tpot.count == 1 and s.own_tpot is not None and s.own_tpot.empty


def test_the_gap_per_token_is_true_where_the_first_chunk_is_smaller_than_the_others(
    scripted: Scripting,
) -> None:
    events = spoken(1, 19)
    _, s, (log,) = measure(scripted, [events], tokenizer=True)
    assert agree(s.latencies["itl_per_token"], true_tpot(events, log))


def test_a_count_of_the_first_chunk_that_can_not_be_is_not_used(
    scripted: Scripting,
) -> None:
    (record,), *_ = measure(scripted, [spoken(2, 2)])
    record.first_tokens = 4  # then none would be left for the second chunk
    Counting(None, length_known=True, sampling=False).settle(record)
    assert record.first_tokens is None and timing.first_tokens(record) == (1, 3)


def judged_by(target: str, records: Sequence[Record]) -> tuple[str, float | None]:
    """What a search takes most of these requests for, and the figure. How many decide is tested elsewhere."""
    [limit] = parse([target])
    timeline = Timeline([limit])
    for record in records:
        timeline.finish(record)
    [weighed] = Judge([limit], wave=2).look(timeline.requests(), 1e3).weighed
    if weighed.late_low > 0.5:  # late at least
        return "misses", weighed.value
    return "meets" if weighed.late_high < 0.5 else "undecided", weighed.value


def test_a_limit_between_the_two_figures_is_missed(scripted: Scripting) -> None:
    """vLLM's figure would meet it: it takes the first chunk for one token."""
    measured = measure(scripted, [spoken(4, 4)], says="each", count=48, concurrency=8)
    low, high = medians(measured.summary.true_tpot)
    vllms = medians(measured.summary.tpot)
    assert (low, high) == pytest.approx((7 / 4 * vllms[0], 7 / 4 * vllms[1]))
    limit = 1.3 * vllms[1]
    between = limit < low  # unless a busy client knows the figures within wide bounds only
    missed, value = judged_by(f"tpot_p50:{limit}", measured.records)
    assert missed == "misses" if between else missed != "meets"
    assert 0.5 * low < value < 1.5 * high
    assert judged_by(f"tpot_p50:{10 * high}", measured.records)[0] == "meets"


def medians(latency: Latency) -> tuple[float, float]:
    """Return the median twice; or its bounds, where a busy client knew no more."""
    if latency.median is None:
        return latency.bounds["median"]
    return latency.median, latency.median


def test_a_search_decides_nothing_between_the_bounds(scripted: Scripting) -> None:
    measured = measure(scripted, [spoken(4, 4)], count=48, concurrency=8)
    own = measured.summary.true_tpot
    low, high = own.bounds["median"]
    outcomes = []
    for limit in (low / 10, (low * high) ** 0.5, 10 * high):
        outcomes.append(judged_by(f"tpot_p50:{limit}", measured.records)[0])
    assert outcomes == ["misses", "undecided", "meets"]


def test_a_machine_at_four_fifths_of_its_bound_is_not_void(
    scripted: Scripting, tmp_path: Path
) -> None:
    """By vLLM's figure it would read memory at 152 % of the peak."""
    events = spoken(10, 10)
    _, s, (log,) = measure(scripted, [events], says="each")
    assert agree(s.true_tpot, true_tpot(events, log)) and s.true_tpot.mean is not None
    true_s = s.true_tpot.mean / 1e3
    shape = of_config(tmp_path, **LLAMA_8B)
    loaded = roofline.as_loaded(shape, VLLM, TARGET)
    assert loaded is not None
    read = loaded.least_bytes + loaded.kv_bytes(3 + 10)
    peaks = Peaks(
        "a machine",
        1,
        bandwidth=read / true_s / 0.8,
        flops={"bf16": 1e15},
        source="made up",
    )
    line = roofline.of_served(s, shape, VLLM, TARGET, peaks)
    assert line is not None
    (decode,) = (share for share in line.shares if share.what == "decode")
    assert decode.bandwidth == pytest.approx(0.8, rel=0.05)


# ---- tokens without text ----


def with_silence(share: float, count: int, seed: int, merged: float = 0.0) -> list[Event]:
    """Return tokens of which a share has no text, after a first one that has. Some events have two of them."""
    rng, events = random.Random(seed), [Event(1, " tok")]
    while sum(event.tokens for event in events) < count:
        tokens = 2 if rng.random() < merged else 1
        events.append(Event(tokens, "" if rng.random() < share else " tok" * tokens))
    return events


@sampled(
    share=[0.0, 0.3, 0.6, 0.9],
    merged=[0.0, 0.1],
    backend=CHAT,
    says=["total", "each", "nothing"],
)
def test_the_gaps_are_those_of_the_servers_log_whatever_share_of_tokens_has_no_text(
    scripted: Scripting, share: float, merged: float, backend: str, says: str
) -> None:
    events = with_silence(share, 24, 1, merged)
    for _ in range(5):
        (record,), s, (log,) = measure(scripted, [events], backend, says)
        if record.reads >= len(events):
            break
        # The client had no core and read several events at once. If the server counts nothing, a finish reason without
        # text that comes together with the event before it is taken for no token (load/decode.py).
    assert len(record.chunk_ns) == len(events)  # a gap for each event after the first
    silent = [i for i, event in enumerate(events) if not event.text]
    assert record.silent == silent and s.silent_chunks == len(silent)
    gaps = [(b - a) / NS_PER_MS for a, b in pairwise(record.chunk_ns)]
    assert agree(Span(sum(gaps), sum(gaps)), took(log, 0, -1))
    assert s.itl.count == len(gaps)
    assert agree(s.itl, took(log, 0, -1, len(gaps)))
    if not silent:
        assert "itl_text" not in s.latencies
        return
    last = max(i for i, event in enumerate(events) if event.text)
    visible = len(events) - len(silent) - 1
    assert "itl_text" in s.latencies and s.latencies["itl_text"].count == visible
    assert not visible or agree(s.latencies["itl_text"], took(log, 0, last, visible))


@pytest.mark.parametrize("backend", CHAT)
def test_tokens_without_text_before_the_first_text_are_in_ttft_and_not_in_the_time_per_token(
    scripted: Scripting, backend: str
) -> None:
    events = [Event(1, "")] * 3 + spoken(*[1] * 9)
    (record,), s, (log,) = measure(scripted, [events], backend)
    assert (len(record.chunk_ns), record.leading_chunks, record.first_tokens) == (9, 3, 4)
    assert record.empty_chunks == 3 + CHAT[backend]  # the role is not a token
    assert agree(own_ms(record), true_tpot(events, log))
    assert "itl_per_token" not in s.latencies  # no chunk has several
    assert (s.silent_chunks, s.events) == (3, 12)


@pytest.mark.parametrize("backend", CHAT)
def test_half_a_character_is_a_token_without_text(
    scripted: Scripting, backend: str
) -> None:
    events = [Event(1, text) for text in (" gr", "", "ü", "", "", "😀", " ok")]
    (record,), s, (log,) = measure(scripted, [events], backend)
    assert (record.text, len(record.chunk_ns), record.silent) == (" grü😀 ok", 7, [1, 3, 4])
    assert agree(s.itl, took(log, 0, -1, 6))


def test_a_finish_reason_of_its_own_is_a_token_only_if_it_came_later(
    scripted: Scripting,
) -> None:
    """llama.cpp sends it with the last token, vLLM with an end token that has no text."""
    for later_s, chunks in ((0.0, 2), (0.03, 3)):

        def talk(sock: Any, _: int, later_s: float = later_s) -> None:
            receive_request(sock)
            text = {"choices": [{"index": 0, "text": " tok" * 4}]}
            last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
            usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}
            sock.sendall(STREAM_HEAD + _framed(text))
            time.sleep(0.03)
            end = (
                _framed(last) + _framed(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
            )
            sock.sendall(_framed(text) + (b"" if later_s else end))
            if later_s:
                time.sleep(later_s)
                sock.sendall(end)

        (record,) = drive(scripted(talk).base_url, requests(1, 9)).records
        assert (record.error, len(record.chunk_ns), record.text) == (
            None,
            chunks,
            " tok" * 8,
        )


def test_events_of_real_servers_have_a_token_each() -> None:
    """vLLM 0.24 with usage in each event, and its chat route without."""
    for name, backend in (
        ("vllm-0.24-completions.sse", "vllm"),
        ("vllm-0.24-chat.sse", "openai-chat"),
    ):
        lines = [
            line.removeprefix(b"data: ")
            for line in (CAPTURES / name).read_bytes().splitlines()
            if line
        ]
        events = list(zip(accumulate(map(len, lines)), lines, strict=True))
        reading = PROTOCOLS[backend].read(events)
        assert len(reading.chunk_ends) == reading.output_tokens
        assert reading.leading == 0 and reading.finish_end is None
        assert reading.first_tokens in (None, 1)


@pytest.mark.parametrize("special", [0, 3])
def test_tgis_events_have_a_token_each_special_or_not(special: int) -> None:
    tokens = [{"token": {"text": "</s>", "special": True}}] * special + [
        {"token": {"text": " tok"}}
    ] * 4
    end = {
        "token": {"text": " tok"},
        "generated_text": "…",
        "details": {"finish_reason": "length"},
    }
    end["details"] |= {"generated_tokens": special + 5}  # type: ignore[operator]
    reading = PROTOCOLS["tgi"].read(
        [(i, json.dumps(e).encode()) for i, e in enumerate([*tokens, end], 1)]
    )
    assert (len(reading.chunk_ends), reading.leading, reading.empty_chunks) == (
        5,
        special,
        special,
    )


def test_llama_cpps_end_event_is_not_a_token_where_all_are_accounted_for() -> None:
    events = [{"content": " tok"}] * 3 + [
        {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 3}
    ]
    reading = PROTOCOLS["llama.cpp"].read(
        [(i, json.dumps(e).encode()) for i, e in enumerate(events, 1)]
    )
    assert reading.chunk_ends == [1, 2, 3] and reading.finish_end is None


# ---- the command ----


@pytest.fixture(scope="module")
def bundled(shared_fake: StartFake) -> str:
    """Four tokens in each chunk, 40 ms apart: 10 ms a token. vLLM's figure of 12 tokens is 7.3 ms."""
    return shared_fake(first_ms=10, gap_ms=40, faults={"bundle": 1}).base_url


@pytest.fixture
def dyno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        """Run a command; a load again, if a busy client missed the times of chunks."""
        for _ in range(6):
            assert main(words) in (0, 3, 4)
            out = capsys.readouterr().out
            if words[0] != "bench" or "client.unseen_chunks" not in out:
                break
        return out

    yield call


USAGE_EACH = '{"stream_options": {"include_usage": true, "continuous_usage_stats": true}}'


def serve(url: str, name: str, *more: str) -> list[str]:
    words = [
        "bench",
        "serve",
        "--base-url",
        url,
        "--num-prompts",
        "24",
        "--max-concurrency",
        "4",
        "--goodput",
        "tpot:7.6",
    ]
    lengths = [
        "--random-input-len",
        "8",
        "--random-output-len",
        "12",
        "--no-correctness-check",
    ]
    return [
        *words,
        *lengths,
        "--save-result",
        "--result-filename",
        f"{name}.json",
        "--label",
        name,
        *more,
    ]


def test_the_command_shows_both_figures_and_judges_by_its_own(
    dyno: Any, bundled: str, tmp_path: Path
) -> None:
    out = dyno(*serve(bundled, "a", "--extra-body", USAGE_EACH))
    saved = json.loads((tmp_path / "a.json").read_text())
    vllms, own = saved["mean_tpot_ms"], saved["dyno"]["own_tpot"]["mean_tpot_ms"]
    # 10, less a first chunk that a busy machine sent late
    assert own == pytest.approx(11 / 8 * vllms) and own > 9
    printed = dict(re.findall(r"^(\S.*?): +(\S+)", out, re.M))
    assert float(printed["Mean TPOT (ms)"]) == pytest.approx(vllms, abs=0.006)
    assert float(printed["TPOT after the first chunk, mean (ms)"]) == pytest.approx(
        own, rel=1e-3
    )
    assert saved["request_goodput"] == 0  # 7.3 would be within the limit, 10 is not
    assert "dyno's TPOT" in out and "tokens.bundled" in out


def test_a_comparison_a_gate_and_a_report_use_the_true_figure(
    dyno: Any, bundled: str, shared_fake: StartFake, tmp_path: Path
) -> None:
    """A sends one token a chunk, B four: both take 10 ms a token."""
    dyno(*serve(shared_fake(first_ms=10, gap_ms=10).base_url, "a"))
    dyno(*serve(bundled, "b", "--extra-body", USAGE_EACH))
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    own = b["dyno"]["own_tpot"]["mean_tpot_ms"]
    both = json.loads(
        dyno("compare", "a.json", "b.json", "--json", "--gate", "mean_tpot_ms<8.5")
    )
    (pairing,) = both["pairings"]
    (tpot,) = (d for d in pairing["differences"] if d["metric"] == "mean_tpot_ms")
    assert tpot["b"]["value"] == pytest.approx(own) and own > 1.3 * b["mean_tpot_ms"]
    assert tpot["change"] == pytest.approx(own / a["mean_tpot_ms"] - 1)
    assert "comparability.definitions" not in json.dumps(both)
    (gate,) = both["gates"]
    assert gate["state"] != "held"
    for source in ("b.json", json.loads((tmp_path / "b.json").read_text())["dyno"]["run"]):
        dyno("report", source, "-o", "page.md")
        assert "mean TPOT (vLLM)" in (tmp_path / "page.md").read_text()


def test_the_command_shows_bounds_where_the_server_gives_the_total_alone(
    dyno: Any, bundled: str, tmp_path: Path
) -> None:
    out = dyno(*serve(bundled, "b"))
    saved = json.loads((tmp_path / "b.json").read_text())
    low, high = saved["dyno"]["bounds"]["own_tpot"]["mean"]
    assert low == pytest.approx(saved["mean_tpot_ms"]) and low < 10.0 < high
    assert saved["dyno"]["own_tpot"]["mean_tpot_ms"] is None
    assert re.search(r"TPOT after the first chunk, mean \(ms\): +\S+ to \S+", out)
    codes = {f["code"]: f for f in saved["dyno"]["findings"]}
    assert (
        codes["tokens.bundled"]["level"] == "doubt" and "client.unseen_chunks" not in codes
    )


def test_the_command_prints_no_gap_where_every_answer_is_one_chunk(
    dyno: Any, bundled: str, tmp_path: Path
) -> None:
    out = dyno(*serve(bundled, "one", "--random-output-len", "4"))
    assert re.search(r"^Mean ITL per token \(ms\): +–$", out, re.M)
    assert "Every answer came in one chunk: TPOT and ITL are unknown." in " ".join(
        out.split()
    )
    assert "Verdict: doubtful" in out


def test_one_token_a_chunk_changes_nothing(
    dyno: Any, shared_fake: StartFake, tmp_path: Path
) -> None:
    out = dyno(*serve(shared_fake(first_ms=5, gap_ms=2).base_url, "c"))
    own = json.loads((tmp_path / "c.json").read_text())["dyno"]
    assert own["own_tpot"] is None and own["itl_text"] is None and own["silent_chunks"] == 0
    assert "after the first chunk" not in out and "without text" not in out


def test_the_block_says_how_many_events_had_no_text(
    dyno: Any, shared_fake: StartFake, tmp_path: Path
) -> None:
    out = dyno(
        *serve(shared_fake(first_ms=5, gap_ms=2, faults={"silent": 1}).base_url, "d")
    )
    saved = json.loads((tmp_path / "d.json").read_text())
    assert re.search(r"Events without text: +144 of 288", out)
    # Every second token has text: its gaps are twice as long.
    assert saved["dyno"]["itl_text"]["mean_itl_ms"] == pytest.approx(
        2 * saved["mean_itl_ms"], rel=0.2
    )
