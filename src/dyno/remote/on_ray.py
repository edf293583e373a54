"""Slices of a load on the nodes of a Ray cluster: Ray places, starts and watches them.

Each node's clock is read before and after the load: all start together, and their records are merged on the clock
here.
"""

import contextlib
import importlib.util
import logging
import os
import re
import secrets
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

import dyno
from dyno.clock import now_ns
from dyno.errors import DynoError, TargetError, UsageError
from dyno.facts.client import ClientSpec
from dyno.facts.clock import ClockReading, NodeClock
from dyno.facts.record import ClientFacts
from dyno.http import Url
from dyno.load.echo import Asker
from dyno.load.node import NodeSlice
from dyno.load.process import SliceFailure, SliceTask, lost
from dyno.load.progress import Progress
from dyno.load.relay import NotUnderstood, Relay, decoded, is_time
from dyno.load.spool import Spool
from dyno.measure import clocks
from dyno.numbers import human_bytes
from dyno.option import setting_name
from dyno.scratch import scratch
from dyno.signals import interrupt, lent
from dyno.units import NS_PER_S, seconds
from dyno.visible import one_line

HEAD_START_NS = NS_PER_S  # orders go over a network, to many nodes
_LOOK_NS = NS_PER_S // 2
# for a slice to be placed and started; dyno is sent there first
_BEGIN_NS = 120 * NS_PER_S
_SILENT_NS = 60 * NS_PER_S  # Ray gives a node up after some 15 s
_READY_NS = 600 * NS_PER_S  # from its placing to its open connections
_STOPPED_NS = 60 * NS_PER_S  # after it was asked to stop; then it is lost
_ANSWER_S = 10.0
_START_OFF_NS = 5 * NS_PER_S  # between the agreed instant and what a node reports
_MOST_DRIFT = 0.1  # no clock runs so fast or so slow
# bytes of a spool: for each byte that a response may have, and for clocks
_SPOOL_SHARE, _SPOOL_MORE = 4, 1 << 26
_TRIES = 3  # to begin
_TOKEN = secrets.token_hex(32)  # of clusters that this process starts
_ROUND_TRIPS, _ROUND_TRIPS_RAY = 400, 100


class RaySlice:
    """A slice that runs on a node. A lost node loses only what it hasn't finished."""

    def __init__(self, ray: Any, task: SliceTask) -> None:
        self.facts: ClientFacts | None = None
        self._ray = ray
        self._spool = Spool(Path(task.spool), task.secrets)
        self._urls, self._count = task.urls, task.plan.requests
        self._most_bytes = self._count * task.response_max * _SPOOL_SHARE + _SPOOL_MORE
        self._start_ns = self._stop_ns = 0
        data, self._masks = _masked(msgspec.msgpack.encode(task), task.secrets)
        self._task = ray.put(data)
        self._tries = _TRIES
        self._begin()

    def _begin(self) -> None:
        """Let Ray place it on a node. It does so again where that dies before the load."""
        self.ready = False
        self.progress = Progress(self._count)
        self._node = ""
        self._clock: NodeClock | None = None
        # bytes of the node's spool; when to ask for more
        self._received = self._look_ns = 0
        self._tries -= 1
        self._actor = (
            self._ray.remote(NodeSlice)
            .options(num_cpus=1, scheduling_strategy="SPREAD")
            .remote()
        )
        self._answer = self._actor.begin.remote(self._task, self._masks)
        self._heard_ns = self._placed_ns = now_ns()

    def update(self) -> None:
        ray, now = self._ray, now_ns()
        if self.facts or now < self._look_ns:
            return
        try:
            if late := self._late(now):
                raise ray.exceptions.GetTimeoutError(late)
            if self._answer is None:
                self._answer = self._actor.relay.remote(self._received)
            if not ray.wait([self._answer], timeout=0)[0]:
                return
            answer, self._answer = self._answer, None
            self._hear(self._get(answer), now)
        except ray.exceptions.ActorUnavailableError:
            # the connection is broken: ask again, until Ray says that the node is lost
            self._answer = None
        except ray.exceptions.RayError as e:
            self._lost(e)
        except NotUnderstood as e:
            where = f"Ray node {self._node}" if self._node else "A Ray node"
            raise TargetError(
                f"{where} does not answer as dyno does: {e}. Nothing of this load is used. Check who may join the "
                "cluster, and what runs on that node."
            ) from None

    def _late(self, now: int) -> str:
        """Say which time it has overstayed; '' where it has not."""
        silent_ns = now - self._heard_ns
        if silent_ns > (_SILENT_NS if self._node else _BEGIN_NS):
            return f"no answer for {seconds(silent_ns):.0f} s"
        if self._node and not self.ready and now - self._placed_ns > _READY_NS:
            return f"not ready after {seconds(now - self._placed_ns):.0f} s"
        if self._stop_ns and now - self._stop_ns > _STOPPED_NS:
            return f"not stopped after {seconds(now - self._stop_ns):.0f} s"
        return ""

    def _get(self, ref: Any, timeout: float | None = None) -> Any:
        """Return an answer. Ray unpickles it, and what fails then is not always an error of Ray's."""
        try:
            return self._ray.get(ref, timeout=timeout)
        except self._ray.exceptions.RayError:
            raise
        except Exception as e:
            raise NotUnderstood(f"its answer can't be read ({_reason(e)})") from None

    def _hear(self, answer: object, now: int) -> None:
        """Take its first answer, which is its address, or a later one."""
        self._heard_ns = now
        if self._node:
            self._take(decoded(answer, self._count))
        elif type(answer) is str and re.fullmatch(r"[\w.:%-]{1,255}", answer, re.A):
            self._arrived(answer)
        else:
            raise NotUnderstood("its first answer is not an address")

    def _arrived(self, node: str) -> None:
        self._node = node
        local = [url for url in self._urls if Url(url).local]
        if local and node != self._ray.util.get_node_ip_address():
            raise UsageError(
                f"On Ray node {node}, {local[0]} is a server of that node. Give {setting_name('--base-url')} an "
                "address that all nodes can reach."
            )

    def _take(self, relay: Relay) -> None:
        if relay.failure:
            raise SliceFailure(relay.failure.kind, one_line(relay.failure.text)).error()
        self._received += len(relay.spool)
        if self._received > self._most_bytes:
            raise NotUnderstood(
                f"it sent {human_bytes(self._received)}, more than {self._count} responses can have"
            )
        self._spool.write([relay.spool])
        self.progress = relay.progress
        if relay.ready and self._clock is None:
            self._clock = NodeClock(self._read_clock())
            self.ready = True
        if relay.facts:
            self._end(relay.facts)
        elif self._start_ns:
            self._look_ns = now_ns() + _LOOK_NS

    def _read_clock(self) -> ClockReading:
        """Read the node's clock over a connection, else by calls through Ray, which take longer."""
        actor, token = self._actor, secrets.token_bytes(16)
        port = self._get(actor.echo.remote(self._node, token), timeout=_ANSWER_S)
        if type(port) is not int or not 1 <= port <= 65535:
            raise NotUnderstood("its clock is at no port")
        try:
            with contextlib.closing(Asker(self._node, port, token)) as asker:
                return clocks.read(lambda: _time(asker()), _ROUND_TRIPS)
        except (OSError, UnicodeError):  # the second: of a name that can't be one
            return clocks.read(
                lambda: _time(self._get(actor.clock.remote(), timeout=_ANSWER_S)),
                _ROUND_TRIPS_RAY,
            )

    def go(self, at_ns: int) -> None:
        assert self._clock is not None, "it is ready"
        self._start_ns = at_ns
        self._actor.go.remote(at_ns + self._clock.before.ahead_ns)

    def stop(self) -> None:
        self._stop_ns = now_ns()
        if not self._node:  # Ray hasn't placed it yet
            self.facts = self._nothing_sent()
        elif self.facts is None:
            self._actor.stop.remote()

    def _nothing_sent(self) -> ClientFacts:
        now = self._stop_ns
        return ClientFacts(
            now, now, "interrupted", self._count, 0, 0.0, 0, [], kernel_stamps=True
        )

    def _lost(self, error: Exception) -> None:
        """Before the load, begin again on another node. Afterwards, what was relayed is all there is."""
        if not self._start_ns:
            if self._stop_ns:
                self.facts = self._nothing_sent()
                return
            if not self._tries or isinstance(error, TimeoutError):
                raise _refusal(error)
            self._ray.kill(self._actor)  # it may live on, and hold a processor
            self._begin()
            return
        elapsed_ns = max(min(self.progress.elapsed_ns, now_ns() - self._start_ns), 0)
        facts = lost(
            self._spool.path,
            self._start_ns,
            msgspec.structs.replace(self.progress, elapsed_ns=elapsed_ns),
        )
        self.facts = msgspec.structs.replace(facts, node=self._node, clock=self._clock)

    def _end(self, facts: ClientFacts) -> None:
        clock = self._clock
        if clock is None or not (self._start_ns or self._stop_ns):
            raise NotUnderstood("it reports the end of a load that has not begun")
        # all is here: the node may go
        with contextlib.suppress(self._ray.exceptions.RayError):
            clock = msgspec.structs.replace(clock, after=self._read_clock())
        went_back = clock.after is not None and clock.after.at_ns < clock.before.at_ns
        if went_back or abs(clock.drift) > _MOST_DRIFT:
            raise NotUnderstood(
                f"its clock moved by {clock.gain_ns} ns against the one here"
            )
        start, end = (t - clock.ahead_ns(t) for t in (facts.start_ns, facts.end_ns))
        self._check_times(start, end)
        self.facts = msgspec.structs.replace(
            facts, start_ns=start, end_ns=end, node=self._node, clock=clock
        )

    def _check_times(self, start: int, end: int) -> None:
        """Refuse a load at another time than the agreed one. Both are on the clock here."""
        agreed = self._start_ns or self._stop_ns
        begun_late = self._start_ns and start > agreed + _START_OFF_NS
        begun_early = start < (self._start_ns or self._placed_ns) - _START_OFF_NS
        if begun_late or begun_early or end > now_ns() + _START_OFF_NS:
            times = (
                f"from {seconds(start - agreed):,.0f} s to {seconds(end - agreed):,.0f} s"
            )
            raise NotUnderstood(f"its load ran {times} after the agreed instant")

    def close(self) -> None:
        self._spool.close()
        if self._node and not self.ready:
            with contextlib.suppress(self._ray.exceptions.RayError, NotUnderstood):
                self._get(self._actor.clean_up.remote(), timeout=_ANSWER_S)
        self._ray.kill(self._actor)


def check(spec: ClientSpec) -> None:
    """Raise an error if Ray is missing, or nothing listens at the cluster's address: Ray would try for hours."""
    if spec.on != "ray":
        return
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            f"{setting_name('--on')} ray needs Ray. In a clone of dyno: pip install '.[ray]'."
        )
    address = spec.ray_address
    if address in (None, "auto"):
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()) or "://" in address:
        raise UsageError(
            f"{setting_name('--ray-address')} {address} is not the address of a Ray cluster. Write HOST:PORT, or "
            "auto."
        )
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as e:
        raise TargetError(
            f"No Ray cluster answers at {address}: {e}. Start one (`ray start --head`), or omit "
            f"{setting_name('--ray-address')} to start one here."
        ) from None


@contextlib.contextmanager
def placed(spec: ClientSpec, tasks: Sequence[SliceTask]) -> Iterator[list[RaySlice]]:
    """Place each task on a node of the cluster, or of one that is started here and stopped again."""
    check(spec)
    with _cluster(spec.ray_address, len(tasks)) as ray, contextlib.ExitStack() as last:
        yield [
            last.enter_context(contextlib.closing(RaySlice(ray, task))) for task in tasks
        ]


@contextlib.contextmanager
def _cluster(address: str | None, processes: int) -> Iterator[Any]:
    package = {
        "py_modules": [str(Path(dyno.__file__).parent)],
        "excludes": ["**/__pycache__"],
    }
    with contextlib.ExitStack() as last:
        # Ray prints what happens to its nodes; stdout has results only.
        last.enter_context(
            contextlib.redirect_stdout(last.enter_context(Path(os.devnull).open("w")))
        )
        local: dict[str, Any] = {}
        last.enter_context(
            _environment("RAY_USAGE_STATS_ENABLED", {"RAY_USAGE_STATS_ENABLED": "0"})
        )
        if address is None:
            # Else Ray keeps a token in the user's home, and clusters that the user starts later want it.
            token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
            last.enter_context(_environment("RAY_AUTH_MODE", token))
            # short: Ray's sockets are in it
            folder = last.enter_context(scratch("dyno-ray-", Path("/tmp")))
            local = {
                "num_cpus": processes,
                "include_dashboard": False,
                "_temp_dir": str(folder),
            }
        ray: Any = importlib.import_module("ray")
        last.callback(ray.shutdown)
        try:
            # Ctrl-C must end a wait for the cluster; and Ray takes these signals, which this gives back.
            with lent((signal.SIGINT, signal.SIGTERM), interrupt):
                quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
                ray.init(address or "local", runtime_env=package, **quiet, **local)
            free = int(ray.available_resources().get("CPU", 0))
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as e:
            where = f"No Ray cluster at {address}" if address else "Ray can't start here"
            raise TargetError(f"{where}: {_reason(e)}.") from None
        if free < processes:
            raise TargetError(
                f"The Ray cluster has {free} free CPUs; {processes} processes need one each. Lower "
                f"{setting_name('--procs')}."
            )
        yield ray


@contextlib.contextmanager
def _environment(unless: str, variables: dict[str, str]) -> Iterator[None]:
    """Set variables for Ray and what it starts, unless the user has set this one; engines don't inherit them."""
    before = dict(os.environ)
    if unless not in before:
        os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:  # also what Ray has set
            os.environ.pop(name, None)
            os.environ.update({name: before[name]} if name in before else {})


def _masked(data: bytes, words: Sequence[bytes]) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the task without its keys: Ray may write an object to disk. They go with a call, which it doesn't."""
    masks = []
    for word in words:
        mask = secrets.token_hex(len(word))[: len(word)].encode()
        masks.append((mask, word))
        data = data.replace(word, mask)
    return data, masks


def _refusal(error: Exception) -> DynoError:
    """Say why a node can't run dyno: Ray's own words are a traceback."""
    return TargetError(
        f"A Ray node can't run a process of the load: {_reason(error)}. Its Python environment needs the packages of "
        "llm-dyno; dyno itself is sent there."
    )


def _reason(error: Exception) -> str:
    """Return the last line of Ray's words, which may be a whole traceback. A node may have written them."""
    try:
        words = str(error)[-2000:]
    except Exception:  # it is a class of the node's, perhaps
        words = ""
    lines = words.strip().splitlines() or [type(error).__name__]
    return one_line(lines[-1]).rstrip(".")[:500]


def _time(value: object) -> int:
    if not is_time(value):
        raise NotUnderstood("its clock shows no time")
    assert isinstance(value, int)
    return value
