"""Several processes decode a spool as one does, while the load runs or after it, whatever becomes of them."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from conftest import answer, requests
from dyno.child import Child
from dyno.facts.load import LoadSpec
from dyno.facts.record import ClientFacts
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load import decode, decoder
from dyno.load import spool as spools
from dyno.load.decoder import Decoders, DecodeTask, SpoolSource, decoded, portions, work
from dyno.load.protocols import PROTOCOLS
from dyno.load.settle import Settler, Settling, Sums, planned
from dyno.load.spool import CLOCK, END, READ, SENT, SINCE, TIMES, TURN, Spool
from dyno.trial import processes
from dyno.workload.spec import WorkloadSpec

WANTED = planned(requests(5, 3))
EXCHANGES = 40
TRIAL = TrialSpec(
    TargetSpec("http://127.0.0.1:1", "openai", "/v1/completions", "fake"),
    WorkloadSpec("random"),
    LoadSpec(max_concurrency=8),
    goodput_ms={"ttft": 1},
)
HOW = Settling(TRIAL, 1)
CLIENT = ClientFacts(0, 10**9, "complete", EXCHANGES, EXCHANGES, 0.1, 80, [], True)

pytestmark = pytest.mark.real


class Load:
    """A load that is written into a spool as it goes on: exchanges end in another order than they began, some fail,
    and some are open from one step to the next."""

    def __init__(self, path: Path, set_clock: bool = False) -> None:
        self.path = path
        self._writer = Spool(path)
        self._raw = answer(3)
        self._set_clock = set_clock

    def steps(self, begin: int, end: int) -> None:
        for i in range(begin, end):
            self._step(8 * i)
        self._writer.flush()

    def _step(self, begin: int) -> None:
        note = self._writer.note
        at_ns = 1_000_000 * (begin + 1)
        offset_ns = 10**15 if self._set_clock and begin == 16 else 0
        note(CLOCK, 0, at_ns, TIMES.pack(offset_ns, 0))
        for number in range(begin, begin + 8):
            note(SENT, number, at_ns + number, TIMES.pack(at_ns, 0))
        note(TURN, 0, at_ns, TIMES.pack(at_ns, 0))
        self._writer.flush()
        if begin:  # the one that was left open
            self._end(begin - 8, at_ns)
        for number in reversed(range(begin + 1, begin + 8)):
            self._end(number, at_ns)

    def _end(self, number: int, at_ns: int) -> None:
        fails = number % 7 == 0
        cut = self._raw[: 150 if fails else len(self._raw)]
        self._writer.note(READ, number, at_ns + 100 + number, payload=cut)
        reason = b"reset: by peer" if fails else b""
        self._writer.note(END, number, at_ns + 200 - number, payload=reason)

    def close(self) -> None:
        self._end(EXCHANGES - 8, 10**8)
        self._writer.note(CLOCK, 0, 10**8, TIMES.pack(0, 0))
        self._writer.flush()
        self._writer.close()


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.nightly)],
    ids=["usual", "clock set"],
)
def load(tmp_path: Path, request: pytest.FixtureRequest) -> Load:
    return Load(tmp_path / "exchanges.spool", request.param)


@pytest.fixture
def spool(load: Load) -> Path:
    load.steps(0, EXCHANGES // 8)
    load.close()
    return load.path


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a block or two, and portions of few records."""
    monkeypatch.setattr(spools, "_WINDOW_BYTES", 500)
    monkeypatch.setattr(decoder, "PORTION_CHUNKS", 12)


def source(path: Path, **more: Any) -> SpoolSource:
    return SpoolSource(str(path), "openai", WANTED, zero_ns=0, **more)


class Result:
    """Lines and figures of a spool that is decoded and added up."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.sums = Sums(HOW, WANTED)

    def take(self, settled: Any, settler: Settler) -> None:
        for each in settled:
            if each.record is not None:
                settler.count(each.record)
                settler.clean(each.record)
                self.sums.add(each.record)
            line = each.line or msgspec.json.encode(each.record) + b"\n"
            self.lines.append(line)

    def same(self, other: "Result") -> bool:
        own, others = (r.sums.tally.summary(CLIENT) for r in (self, other))
        assert msgspec.to_builtins(own) == _near(msgspec.to_builtins(others))
        return self.lines == other.lines


def _near(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _near(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(_near, value)]
    return pytest.approx(value, rel=1e-12) if isinstance(value, float) else value


def alone(path: Path) -> Result:
    result = Result()
    result.take(decoder.alone(source(path)), Settler(HOW, None))
    return result


def shared(path: Path, how: Settling = HOW, count: Any = None) -> Result:
    result = Result()
    with Decoders(source(path), how, 3) as decoders:
        settled = decoders.settled(result.sums, lambda done: None)
        result.take(settled, Settler(how, count))
    assert not [*path.parent.glob("*.partial")]
    return result


def test_processes_that_share_a_spool_give_the_same_records_in_the_same_order(
    spool: Path,
) -> None:
    records = decode.records(spool, WANTED, PROTOCOLS["openai"], 0)
    assert [r.index for r in records] == [
        msgspec.json.decode(line)["index"] for line in alone(spool).lines
    ]
    assert len(alone(spool).lines) == EXCHANGES
    assert shared(spool).same(alone(spool))


def test_what_needs_the_tokenizer_is_settled_by_the_one_that_has_it(spool: Path) -> None:
    how = msgspec.structs.replace(HOW, has_tokenizer=True, sampling=True)
    expected = Result()
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return 99

    expected.take(decoder.alone(source(spool)), Settler(how, count))
    assert asked
    assert shared(spool, how, count).same(expected)


class Mortal(Child):
    """Is killed as soon as it has reported."""

    def hear(self, within_s: float = 0.0) -> list[bytes]:
        lines = super().hear(within_s)[:1]
        self.kill()
        self.wait()
        self.gone = True
        return lines


def test_what_a_killed_process_has_not_decoded_is_decoded_here(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "Child", Mortal)
    assert shared(spool).same(alone(spool))


def no_process(*_: object, **__: object) -> Child:
    raise OSError("no more processes")


def test_where_no_process_can_be_started_all_is_decoded_here(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "Child", no_process)
    assert shared(spool).same(alone(spool))


def test_where_the_disk_has_no_room_for_portions_all_is_decoded_here(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(decoder, "Child", no_process)
    monkeypatch.setattr(decoder, "_write", full)
    assert shared(spool).same(alone(spool))


def test_a_small_spool_is_not_worth_another_process(spool: Path) -> None:
    assert not decoder.worthwhile(spool)
    assert not decoder.worthwhile(spool.with_name("missing.spool"))


# ---- while the load runs ----


class Ended(Exception):
    """The follower is ended, wherever it is."""


def ends() -> None:
    raise Ended


def tasks(path: Path) -> list[DecodeTask]:
    return [
        DecodeTask(source(path), rest, 2, str(path.with_name(f"{rest}.partial")), HOW, [])
        for rest in range(2)
    ]


def follow(task: DecodeTask) -> None:
    """Follow a spool to its present end."""
    try:
        for _ in decoder.follow(task, ends):
            pass
    except Ended:
        pass


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(n, marks=pytest.mark.nightly if n % 2 else ())
        for n in range(EXCHANGES // 8 + 1)
    ],
)
@pytest.mark.usefixtures("small_windows")
def test_what_a_follower_has_done_is_not_done_again_and_nothing_is_missed(
    load: Load, begun: int
) -> None:
    load.steps(0, begun)
    for task in tasks(load.path):
        follow(task)
    done = [sum(len(p.numbers) for p in portions(t.files[1])) for t in tasks(load.path)]
    assert all(done) or begun < 3  # the first windows are enough for a portion
    load.steps(begun, EXCHANGES // 8)
    load.close()
    result = Result()
    for task in tasks(load.path):
        list(work(task))
    with Decoders(source(load.path), HOW, 2) as decoders:
        for task, own in zip(tasks(load.path), decoders._tasks, strict=True):
            for file, own_file in zip(task.files, own.files, strict=True):
                file.replace(own_file)
        result.take(decoders.settled(result.sums, lambda done: None), Settler(HOW, None))
    assert result.same(alone(load.path))


@pytest.mark.usefixtures("small_windows")
def test_half_a_portion_is_dropped(load: Load) -> None:
    load.steps(0, 4)
    task = tasks(load.path)[0]
    follow(task)
    _, followed = task.files
    whole = len([*portions(followed)])
    assert whole
    os.truncate(followed, followed.stat().st_size - 5)
    assert len([*portions(followed)]) == whole - 1
    load.steps(4, EXCHANGES // 8)
    load.close()
    *_, count = work(task)
    assert count == EXCHANGES // 2


@pytest.mark.usefixtures("small_windows")
def test_what_a_follower_writes_after_it_was_killed_is_ignored(tmp_path: Path) -> None:
    """A process at idle priority may need seconds for its end, and finish a write."""
    load = Load(tmp_path / "exchanges.spool")
    load.steps(0, 3)
    task = tasks(load.path)[0]
    follow(task)
    _, followed = task.files
    before = followed.read_bytes()
    load.steps(3, EXCHANGES // 8)
    follow(task)
    after = followed.read_bytes()
    load.close()
    assert len(after) > len(before)
    followed.write_bytes(before)
    *_, count = work(task)
    followed.write_bytes(after)
    numbers = [n for p in decoded(task) for n in decoder._column(p.numbers)]
    assert sorted(numbers) == [*range(0, EXCHANGES, 2)] and count == len(numbers)


def ahead(load: Load, then: Callable[[processes.Ahead], None] = lambda _: None) -> Result:
    """Decode a load with processes that are there from its beginning."""
    result = Result()
    with processes.Ahead() as decoding:
        decoding.start([load.path], WANTED, "openai", HOW)
        decoding.begin(0)
        load.steps(0, EXCHANGES // 8)
        load.close()
        then(decoding)
        decoders = decoding.decoders(source(load.path), HOW)
        assert decoders is not None
        result.take(decoders.settled(result.sums, lambda done: None), Settler(HOW, None))
    return result


def test_processes_that_follow_a_load_give_the_same_records(load: Load) -> None:
    assert ahead(load).same(alone(load.path))
    assert not [*load.path.parent.glob("*.partial")]


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_followers_that_are_killed_cost_nothing(load: Load) -> None:
    before = {*_children()}

    def kill(_: processes.Ahead) -> None:
        for process in {*_children()} - before:
            process.kill()

    assert ahead(load, kill).same(alone(load.path))


def test_no_follower_is_left_behind(load: Load) -> None:
    before = {*_children()}
    with processes.Ahead() as decoding:
        decoding.start([load.path], WANTED, "openai", HOW)
        decoding.begin(0)
        deadline = time.monotonic() + 20
        while len(started := {*_children()} - before) < 2 * processes.shares_of(1):
            assert time.monotonic() < deadline, started
            time.sleep(0.02)
        assert decoding.cpu_s() > 0
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive


def test_what_was_decoded_on_another_assumption_is_not_used(load: Load) -> None:
    with processes.Ahead() as decoding:
        decoding.start([load.path], WANTED, "openai", HOW)
        decoding.begin(0)
        assert decoding.decoders(source(load.path, unasked=[3]), HOW) is None
        assert not [*load.path.parent.glob("*.partial")]


def test_of_several_spools_each_is_decoded_by_those_that_fit_it(tmp_path: Path) -> None:
    loads = [Load(tmp_path / f"exchanges{k}.spool") for k in ("", "-1")]
    paths = [load.path for load in loads]
    right, wrong = [source(p, part=k, parts=2) for k, p in enumerate(paths)]
    result = Result()
    with processes.Ahead() as decoding:
        decoding.start(paths, WANTED, "openai", HOW)
        decoding.begin(0)
        for load in loads:
            load.steps(0, EXCHANGES // 8)
            load.close()
        decoders = decoding.decoders(right, HOW)
        assert decoders is not None
        unfit = msgspec.structs.replace(wrong, unasked=[3])
        assert decoding.decoders(unfit, HOW) is None
        with Decoders(unfit, HOW, 1) as others:
            settled = [
                *decoders.settled(result.sums, lambda done: None),
                *others.settled(result.sums, lambda done: None),
            ]
        result.take(settled, Settler(HOW, None))
    assert len(result.lines) == 2 * EXCHANGES
    assert not [*tmp_path.glob("*.partial")]


_DYNO = """
import sys, time
from pathlib import Path
sys.path[:0] = {folders!r}
from test_decoder import HOW, WANTED, processes
with processes.Ahead() as decoding:
    decoding.start([Path({spool!r})], WANTED, "openai", HOW)
    decoding.begin(0)
    print("begun", flush=True)
    time.sleep(60)
"""


def test_where_dyno_is_killed_its_decoders_end_and_leave_no_file(load: Load) -> None:
    folders = [*map(str, Path(__file__).parents[:2])]
    code = _DYNO.format(folders=folders, spool=str(load.path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as dyno:
        assert dyno.stdout is not None
        dyno.stdout.readline()
        load.steps(0, EXCHANGES // 8)
        load.close()
        deadline = time.monotonic() + 20
        while len(started := psutil.Process(dyno.pid).children(recursive=True)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        dyno.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
    assert not [*load.path.parent.glob("*.partial")]


class RandomLoad:
    """A load of anything that a wire may write: reads cut anywhere, with stamps and without, late ones, several chunks
    in one, requests that are sent again or never answered, a clock that is set, exchanges that end in any order."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self._random = random.Random(seed)
        self._writer = Spool(path)
        self._raw = [answer(n) for n in (1, 3, 9)]
        self._at_ns = 10**9
        self._offset_ns = 10**18
        self._left: dict[int, bytes] = {}  # of each response under way
        self._next = 0
        self._sets_clock = seed % 3 == 0
        self._stamps = seed % 4 != 1
        self._note_clock()

    def step(self) -> None:
        chosen = self._random.random()
        if self._next < EXCHANGES and (chosen < 0.15 or not self._left):
            self._send(self._next)
            self._left[self._next] = self._random.choice(self._raw)
            self._next += 1
        elif chosen < 0.2:
            self._note_clock()
        elif self._left:
            self._go_on(self._random.choice([*self._left]))
        if self._random.random() < 0.1:
            self._writer.flush()

    @property
    def over(self) -> bool:
        return self._next == EXCHANGES and not self._left

    def close(self) -> None:
        self._note_clock()
        self._writer.flush()
        self._writer.close()

    def _send(self, number: int) -> None:
        self._at_ns += self._random.randrange(2_000_000)
        stamp = TIMES.pack(self._at_ns - self._random.randrange(1_000_000), 0)
        mark = b"\x01" if self._random.random() < 0.2 else b""
        self._writer.note(SENT, number, self._at_ns, stamp, mark)

    def _go_on(self, number: int) -> None:
        left = self._left[number]
        chosen = self._random.random()
        if chosen < 0.02 and left in self._raw:
            self._send(number)
        elif chosen < 0.04 or not left:
            reason = b"reset: by peer" if left else b""
            self._writer.note(END, number, self._at_ns, payload=reason)
            del self._left[number]
        else:
            size = self._random.choice([1, 40, 200, 10_000])
            self._left[number] = left[size:]
            self._read(number, left[:size])

    def _read(self, number: int, data: bytes) -> None:
        late_ns = self._random.choice([0, 20_000, 500_000, 3_000_000])
        before_ns = self._at_ns
        self._at_ns += 10_000 + late_ns
        if not self._stamps:
            self._writer.note(TURN, 0, before_ns, TIMES.pack(before_ns, 0))
        stamp = TIMES.pack(*divmod(self._at_ns - late_ns + self._offset_ns, 10**9))
        if not self._stamps:
            stamp = TIMES.pack(0, 0)
        self._writer.note(READ, number, self._at_ns, stamp, data)
        if len(data) > 100:
            self._writer.note(SINCE, number, before_ns, TIMES.pack(before_ns, 0))

    def _note_clock(self) -> None:
        if self._sets_clock and self._random.random() < 0.05:
            self._offset_ns += self._random.choice([-1, 1]) * 10**8
        self._writer.note(CLOCK, 0, self._at_ns, TIMES.pack(self._offset_ns, 0))


def _one_by_one(path: Path) -> list[bytes]:
    """Return the lines of the records, decoded by one process, frame by frame."""
    lines = []
    settler = Settler(HOW, None)
    for record in decode.records(spools.frames(path), WANTED, PROTOCOLS["openai"], 0):
        settler.count(record)
        settler.clean(record)
        lines.append(msgspec.json.encode(record) + b"\n")
    return lines


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=pytest.mark.nightly if n >= 6 else ()) for n in range(12)],
)
def test_records_of_any_load_are_the_same_bytes_however_they_are_decoded(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(-seed - 1)
    monkeypatch.setattr(spools, "_WINDOW_BYTES", choose.choice([300, 3_000, 1 << 23]))
    monkeypatch.setattr(decoder, "PORTION_CHUNKS", choose.choice([3, 30, 1000]))
    monkeypatch.setattr(decoder, "Child", no_process)
    load = RandomLoad(tmp_path / "exchanges.spool", seed)
    shares = choose.choice([1, 2, 3])
    each = [
        DecodeTask(
            source(load.path), rest, shares, str(tmp_path / f"{rest}.partial"), HOW, []
        )
        for rest in range(shares)
    ]
    followed_at = choose.randrange(400)
    count = 0
    while not load.over and count < 1500:
        if count == followed_at:
            for task in each:
                follow(task)
        load.step()
        count += 1
    load.close()
    for task in each:
        list(work(task))
    result = Result()
    with Decoders(source(load.path), HOW, shares) as decoders:
        for task, own in zip(each, decoders._tasks, strict=True):
            for file, own_file in zip(task.files, own.files, strict=True):
                if file.exists():
                    file.replace(own_file)
        result.take(decoders.settled(result.sums, lambda done: None), Settler(HOW, None))
    assert result.lines == _one_by_one(load.path)
    assert result.same(alone(load.path))
