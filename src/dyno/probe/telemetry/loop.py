"""The sampler's own process: reads machine and engine at absolute times, and writes the samples.

On its standard input come a spec, then `begin`, then `end`. When that closes, dyno is gone and it ends too.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from dyno import child
from dyno.clock import now_ns
from dyno.errors import DynoError
from dyno.facts.telemetry import Sample, SamplerFacts, SamplerSpec
from dyno.http import Client, Url
from dyno.probe import accelerators, sysfs
from dyno.probe.telemetry import metrics
from dyno.units import NS_PER_S, ns, seconds

# Of a core, for the machine and for the metrics of all engines: together under 1 %.
_MACHINE_SHARE, _ENGINE_SHARE = 0.006, 0.003
_RENDERING = 0.01  # of the server's time, at most, goes into rendering its metrics
_LONGEST_S = 10.0
_ANSWER_S = 5.0
_FULL_EVERY_NS = NS_PER_S


class HostMeter:
    """The host's own counters: processors, memory, network, and the processors' energy where it may be read."""

    def __init__(self, root: Path) -> None:
        self.absent: list[str] = []
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._stat, self._memory, self._network = (
            sysfs.OpenFile.open(root / f"proc/{name}")
            for name in ("stat", "meminfo", "net/dev")
        )
        for file, what in (
            (self._stat, "CPU"),
            (self._memory, "memory"),
            (self._network, "network"),
        ):
            if file is None:
                self.absent.append(f"host: {what} can't be read")
        self._packages = _packages(root, self.absent)
        self._before: tuple[int, float] | None = None  # when, and CPU seconds then

    def read(self) -> dict[str, float]:
        values: dict[str, float] = {}
        if self._stat:
            now, busy_s = now_ns(), self._busy_s(self._stat.bytes(512))
            values["cpu_busy_s"] = busy_s
            if self._before and now > self._before[0]:
                values["cpu_busy_cores"] = round(
                    (busy_s - self._before[1]) / seconds(now - self._before[0]), 3
                )
            self._before = now, busy_s
        if self._memory:
            values |= _memory_used(self._memory.bytes(512))
        if self._network:
            values |= _traffic(self._network.bytes())
        if self._packages:
            values["package_energy_j"] = sum(p.energy_j() for p in self._packages)
        return values

    def _busy_s(self, stat: bytes) -> float:
        """Return the busy seconds of a line as `cpu user nice system idle iowait irq softirq …`, in ticks."""
        words = stat.split(b"\n", 1)[0].split()[1:8]
        user, nice, system, _, _, irq, softirq = (int(w) for w in words)
        return round((user + nice + system + irq + softirq) * self._tick_s, 3)


def _memory_used(meminfo: bytes) -> dict[str, float]:
    values = {}
    for line in meminfo.split(b"\n")[:3]:
        name, colon, rest = line.partition(b":")
        if colon:
            values[name] = int(rest.split()[0])
    if b"MemTotal" not in values or b"MemAvailable" not in values:
        return {}
    return {"memory_used_bytes": (values[b"MemTotal"] - values[b"MemAvailable"]) * 1024.0}


def _traffic(table: bytes) -> dict[str, float]:
    """Sum up lines as `eth0: bytes packets …` received in the first eight columns, sent in the next."""
    received = sent = loopback = 0
    for line in table.split(b"\n")[2:]:
        name, colon, numbers = line.partition(b":")
        if colon:
            words = numbers.split()
            if name.strip() == b"lo":
                loopback += int(words[0])
            else:
                received += int(words[0])
                sent += int(words[8])
    return {
        "network_received_bytes": float(received),
        "network_sent_bytes": float(sent),
        "loopback_bytes": float(loopback),
    }


class _Package:
    """A processor's energy by RAPL, whose counter goes round after minutes to hours."""

    def __init__(self, file: sysfs.OpenFile, range_uj: int) -> None:
        self._file = file
        self._range = range_uj
        self._last = file.number() or 0
        self._total = 0

    def energy_j(self) -> float:
        now = self._file.number()
        if now is not None:
            self._total += (
                now - self._last if now >= self._last else now - self._last + self._range
            )
            self._last = now
        return self._total / 1e6


def _packages(root: Path, absent: list[str]) -> list[_Package]:
    # AMD's processors have this name too
    zones = sysfs.numbered(root / "sys/class/powercap", "intel-rapl:")
    zones = [z for z in zones if (sysfs.text(z / "name") or "").startswith("package")]
    packages = []
    for zone in zones:
        file = sysfs.OpenFile.open(zone / "energy_uj")
        if file is not None and file.number() is not None:
            packages.append(_Package(file, sysfs.number(zone / "max_energy_range_uj") or 0))
    if not zones:
        absent.append("host: CPU energy is unavailable (no RAPL)")
    elif len(packages) < len(zones):
        absent.append("host: only root may read CPU energy (RAPL)")
    return packages if len(packages) == len(zones) else []


class EngineWatch(threading.Thread):
    """One URL's metrics, in a thread: a busy server answers late, and nothing else is to wait for that."""

    def __init__(
        self, index: int, spec: SamplerSpec, write: Callable[[list[Sample]], None]
    ) -> None:
        super().__init__(daemon=True)
        self.index = index
        self.url = Url(spec.urls[index])
        self.interval_s = spec.engine_interval_s
        self.failures = self.taken = 0
        self.begun = threading.Event()
        self._base_s = spec.engine_interval_s
        self._share = _ENGINE_SHARE / len(spec.urls)
        self._client = Client(self.url, spec.headers, spec.via, timeout_s=_ANSWER_S)
        self._names = spec.metrics
        self._write = write
        self._took: deque[float] = deque(maxlen=5)
        self._ending = threading.Event()

    def why_not(self) -> str | None:
        """Ask once before anything begins: why it can't be sampled."""
        where = f"engine: {self.url}/metrics"
        try:
            status, text = self._client.call("/metrics")
        except DynoError as e:
            return f"{where}: {e}"
        if status != 200:
            return f"{where} answers {status}"
        if isinstance(text, str) and metrics.read(text, self._names):
            return None
        return f"{where} has no metrics that dyno knows"

    def run(self) -> None:
        due = now_ns()
        while True:
            cpu = time.thread_time()
            self._take()
            self.begun.set()
            # it was asked before the load's end: once more, for the counters at the end
            if self._ending.is_set():
                self._take()
                return
            # The shortest of the last answers: a longer one waited for its turn, and cost the server no more.
            rendering_s = min(self._took, default=0.0)
            wanted_s = max(
                rendering_s / _RENDERING, (time.thread_time() - cpu) / self._share
            )
            self.interval_s = min(max(self._base_s, wanted_s), _LONGEST_S)
            due = max(due + ns(self.interval_s), now_ns())
            if self._ending.wait(max(seconds(due - now_ns()), 0.0)):
                self._take()
                return

    def _take(self) -> None:
        # The time of asking: what was counted before it is in the answer, which may come late.
        asked = now_ns()
        try:
            status, text = self._client.call("/metrics")
            values = (
                metrics.read(text, self._names)
                if status == 200 and isinstance(text, str)
                else {}
            )
        except DynoError:
            values = {}
        finally:
            # llama.cpp keeps a thread for each open connection, of which it has few
            self._client.close()
        self._took.append(seconds(now_ns() - asked))
        if values:
            self.taken += 1
            self._write([Sample(asked, "engine", self.index, values)])
        else:
            self.failures += 1

    def end(self) -> None:
        self._ending.set()


class Loop:
    def __init__(self, spec: SamplerSpec) -> None:
        self._spec = spec
        self._file = os.open(
            spec.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        self._encode = msgspec.json.Encoder().encode
        self._interval_s = spec.interval_s
        self._ticks = 0
        self._full_due = 0
        self._cpu_s = 0.0
        self._start_ns = 0
        self._start_cpu_s = 0.0
        root = Path(spec.root)
        self._host = HostMeter(root)
        self._meters = accelerators.meters(root) if spec.accelerators else []
        self._absent = [
            *self._host.absent,
            *(why for m in self._meters for why in m.absent),
        ]
        if not spec.accelerators:
            self._absent.append("accelerators: the server is on another machine")
        elif not self._meters:
            self._absent.append("accelerators: none detected")
        self._engines = []
        for i in range(len(spec.urls)):
            watch = EngineWatch(i, spec, self._write)
            if why := watch.why_not():
                self._absent.append(why)
            else:
                self._engines.append(watch)
        self._machine()  # what the first reading sets up isn't the cost of one
        before = time.process_time()
        self._machine()
        self._tick_cpu_s = time.process_time() - before

    def _write(self, lines: list[Sample] | list[SamplerFacts]) -> None:
        # one call: lines stay whole
        os.write(self._file, b"".join(self._encode(line) + b"\n" for line in lines))

    def _facts(self, ended: bool = False) -> SamplerFacts:
        elapsed_s = seconds(now_ns() - self._start_ns)
        used_s = time.process_time() - self._start_cpu_s
        engine_interval_s = max(
            (e.interval_s for e in self._engines), default=self._spec.engine_interval_s
        )
        silent = [e for e in self._engines if ended and not e.taken]
        return SamplerFacts(
            at_ns=now_ns(),
            interval_s=round(self._interval_s, 4),
            engine_interval_s=round(engine_interval_s, 4),
            cost=round(used_s / elapsed_s, 6) if self._ticks else 0.0,
            ticks=self._ticks,
            ended=ended,
            absent=[
                *self._absent,
                *(f"engine: {e.url}/metrics didn't answer during the load" for e in silent),
            ],
            notes=[note for m in self._meters for note in m.notes],
        )

    def _machine(self, full: bool = True) -> list[Sample]:
        out = [Sample(now_ns(), "host", 0, self._host.read())]
        index = 0
        for meter in self._meters:
            now = now_ns()
            for reading in meter.read(full):
                if reading.values:
                    out.append(
                        Sample(now, "accelerator", index, reading.values, reading.throttle)
                    )
                index += 1
        return [s for s in out if s.values]

    def _tick(self, full: bool = False) -> None:
        before, now = time.thread_time(), now_ns()
        full = full or now >= self._full_due
        if full:
            self._full_due = now + _FULL_EVERY_NS - ns(self._spec.interval_s / 2)
        self._write(self._machine(full))
        self._ticks += 1
        self._tick_cpu_s += 0.2 * (time.thread_time() - before - self._tick_cpu_s)
        self._interval_s = min(
            max(self._spec.interval_s, self._tick_cpu_s / _MACHINE_SHARE), _LONGEST_S
        )

    def begin(self) -> None:
        """Take a first full sample of everything."""
        self._start_ns, self._start_cpu_s = now_ns(), time.process_time()
        self._write([self._facts()])
        for watch in self._engines:
            watch.start()
        self._tick(full=True)
        for watch in self._engines:
            watch.begun.wait(_ANSWER_S)

    def sample(self, until: Callable[[float], bool]) -> None:
        due = now_ns() + ns(self._interval_s)
        while not until(max(seconds(due - now_ns()), 0.0)):
            self._tick()
            due = max(due + ns(self._interval_s), now_ns())

    def end(self) -> None:
        self._tick(full=True)
        for watch in self._engines:
            watch.end()
        for watch in self._engines:
            watch.join(_ANSWER_S)
        for meter in self._meters:
            meter.close()
        self._write([self._facts(ended=True)])


def main() -> None:
    loop = Loop(child.task(SamplerSpec))
    orders = child.Orders()
    child.report("ready")
    if orders.next() == b"begin":
        loop.begin()
        child.report("begun")
        loop.sample(until=lambda timeout_s: orders.next(timeout_s) is not None)
        loop.end()


if __name__ == "__main__":
    main()
