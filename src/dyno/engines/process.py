"""An engine's process: started by a keeper, ended with everything it started.

The keeper is this file, run as a script by its path and without dyno on it: so it imports the standard library only. It
is the engine's parent, and Linux hands it every process that the engine's own leave behind, whatever session they are
in. It ends them all when dyno asks for that, or when dyno is gone.
"""

import contextlib
import errno
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import psutil

_WILL = "_DYNO_WILL"  # a variable of the keeper's: its arguments are for everybody to see, and commands may hold keys
_GRACE_S = 5.0  # from TERM to KILL: time to give back GPU memory and shared memory
_CLEANUP_S = 60.0  # a container's daemon may be slow to let go of a big one
_TERM, _KILL = b"t", b"k"  # dyno's orders to the keeper
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl
_PIECE_BYTES = 1 << 20  # of a log, which may have gigabytes
_PART_BYTES = 8 << 20
_LINE_BYTES = 256 << 20  # of one that talks
_TROUBLE = re.compile(
    r"error|fail|exception|abort|terminate|killed|out of memory|unable|cannot|not found|no such", re.I
)

_MERE_WARNING = re.compile(r"\b(?:WARNING|INFO|DEBUG)\b|^\S+ [WID] ")  # by level: an engine that starts well has many

_NAMED = re.compile(r"\b\w*(?:Error|Exception)\b: \S")  # as Python ends a traceback


class EngineProcess:
    def __init__(
        self,
        command: list[str],
        env: dict[str, str] | None,
        log: Path,
        cleanup: list[str] | None = None,
        secrets: Sequence[str] = (),
        after: list[str] | None = None,
        talks: bool = False,
        nice: int = 0,
        cores: Collection[int] = (),
    ) -> None:
        """`env` is the whole environment; None: dyno's own. The log is appended to. `talks`: by lines, over `stdin` and
        `stdout`; the log has its stderr then.

        `cleanup` ends what is no descendant of the engine, such as its container, whose parent is a daemon. The keeper
        runs it once the engine is dead. `secrets`: values that the engine may write into its log, and that don't stay
        there. `after`: what the keeper runs last where dyno was killed, and so can't do any more what it would have
        done after the stop. `nice`: added to dyno's own. `cores`: those that it may use; empty: dyno's own.
        """
        self.command = command
        self.log = log
        self._secrets = secrets
        self._started = time.monotonic()
        self._stopped = self._asked = False
        self._heard, self._told = bytearray(), b""
        with contextlib.ExitStack() as its:
            mine = its.enter_context(contextlib.ExitStack())  # closed here only where the start fails
            # As files: closed with this object where an exception loses it, which the keeper takes for dyno's end.
            orders = _pipe(its, 0)
            self._orders = mine.enter_context(FileIO(orders[1], "w"))
            told = _pipe(its, 1)
            self._status = mine.enter_context(FileIO(told[0]))
            out = its.enter_context(open(log, "ab", opener=private))
            self._log_start = out.tell()  # what an earlier engine left there is not this one's
            will = json.dumps([cleanup or [], after or []])
            self._keeper = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    __file__,
                    str(orders[0]),
                    str(told[1]),
                    str(nice),
                    ",".join(map(str, cores)),
                    *command,
                ],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else out,
                stderr=out,
                env={**(os.environ if env is None else env), _WILL: will},
                bufsize=0,
                pass_fds=[orders[0], told[1]],
                start_new_session=True,  # Ctrl-C reaches dyno, and neither the keeper nor the engine
            )
            mine.pop_all()

    def say(self, line: bytes) -> None:
        """To one that talks."""
        assert self._keeper.stdin is not None
        rest = memoryview(line + b"\n")
        with contextlib.suppress(BrokenPipeError):  # it is dead: `hear` will tell
            while rest:
                rest = rest[self._keeper.stdin.write(rest) or 0 :]

    def hear(self, timeout_s: float) -> bytes | None:
        """Its next line, or what there is of one that is too long; None: none yet, or none any more."""
        assert self._keeper.stdout is not None
        out, deadline = self._keeper.stdout.fileno(), time.monotonic() + timeout_s
        searched = 0
        while (end := self._heard.find(b"\n", searched)) < 0 and len(self._heard) < _LINE_BYTES:
            searched = len(self._heard)
            left = deadline - time.monotonic()
            if left <= 0 or not _readable(out, left):
                return None
            piece = os.read(out, 1 << 16)
            if not piece:
                time.sleep(min(0.05, max(deadline - time.monotonic(), 0)))  # its end is near: it is waited for outside
                return None
            self._heard += piece
        line = bytes(self._heard[: end if end >= 0 else None])
        del self._heard[: len(line) + 1]
        return line

    @property
    def pid(self) -> int:
        """The engine's, which is also its session and group."""
        return (self._known(1, _GRACE_S) or [self._keeper.pid])[0]

    @property
    def exit_code(self) -> int | None:
        """None while it runs; −15 where a TERM ended it."""
        return self._exit_code(0)

    def _exit_code(self, timeout_s: float) -> int | None:
        known = self._known(2, timeout_s)
        if len(known) > 1:
            return known[1]
        return self._keeper.poll() if self._status.closed else None  # the keeper was killed, and the engine with it

    def _known(self, count: int, timeout_s: float) -> list[int]:
        """Of what the keeper tells: the engine's pid, then its exit code."""
        deadline = time.monotonic() + timeout_s
        while len(known := self._told.split(b"\n")[:-1]) < count and not self._status.closed:
            if not _readable(self._status.fileno(), max(deadline - time.monotonic(), 0)):
                break
            piece = os.read(self._status.fileno(), 64)
            self._told += piece
            if not piece:
                self._status.close()
        return [int(number) for number in known]

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    def alive(self) -> bool:
        return self.exit_code is None

    def processes(self) -> "list[psutil.Process]":
        """The engine and all that descends from it."""
        import psutil  # not at the top: see this file's first lines

        with contextlib.suppress(psutil.Error):
            found: list[psutil.Process] = psutil.Process(self._keeper.pid).children(recursive=True)
            return found
        return []

    def cpu_s(self) -> float:
        """That its processes have used so far."""
        import psutil  # not at the top: see this file's first lines

        used = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    def resident_bytes(self) -> int:
        """Memory that its processes hold now; what they share is counted once, where the system tells."""
        import psutil  # not at the top: see this file's first lines

        held = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                info = process.memory_full_info()
                held += getattr(info, "pss", info.rss)
        return held

    def terminate(self) -> None:
        """Ask it to end, and don't wait: several engines then end at the same time."""
        if not self._stopped and not self._asked:  # llama-server takes a second one for impatience
            self._asked = True
            self._order(_TERM)

    def stop(self, timeout: float = _GRACE_S) -> None:
        """End it with all that descends from it, and wait until they are gone. Also after a crash: workers may live."""
        if self._stopped:
            return
        self.terminate()
        self._exit_code(timeout)
        self._order(_KILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that can't be killed: the keeper goes on trying
            self._keeper.wait(_GRACE_S + _CLEANUP_S)
        self._exit_code(0)  # before its pipe is closed
        self._stopped = True
        for pipe in (self._orders, self._status, self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()
        scrub(self.log, self._secrets)

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the keeper was killed, and the engine with it
            self._orders.write(order)
        self._keeper.send_signal(signal.SIGCONT)

    def last_lines(self, count: int = 5) -> list[str]:
        """What the log says of trouble, or else its last lines."""
        scrub(self.log, self._secrets)
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 65_536))
            lines = log.read().decode("utf-8", "replace").splitlines()
        lines = [line.strip() for line in lines if re.search(r"\w", line)]  # not a row of progress dots
        trouble = [line for line in lines if _TROUBLE.search(line) and not _MERE_WARNING.search(line)]
        named = [line for line in trouble if _NAMED.search(line)]
        if named:  # the first are the cause; later ones say that something below them failed
            return list(dict.fromkeys([trouble[0], *named[:2], named[-1]]))
        if len(trouble) <= count:
            return trouble or lines[-count:]
        return trouble[:2] + trouble[2 - count :]  # the cause comes first, what came of it last

    def last_line(self) -> str:
        """Whatever it wrote last."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 4096))
            lines = log.read().decode("utf-8", "replace").replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def text(self) -> str:
        """What it has written since it began."""
        scrub(self.log, self._secrets)
        return excerpt(self.log, self._log_start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def private(path: str, flags: int) -> int:
    """An opener: what an engine says is for the owner alone."""
    return os.open(path, flags, 0o600)


def excerpt(log: Path, start: int = 0, end: int | None = None) -> str:
    """What a log says from `start` to `end`; of a flood its first and its last part."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END) if end is None else end
        file.seek(start)
        if (left_out := end - start - 2 * _PART_BYTES) <= 0:
            return file.read(max(end - start, 0)).decode("utf-8", "replace")
        first = file.read(_PART_BYTES).decode("utf-8", "replace")
        file.seek(end - _PART_BYTES)
        return f"{first}\n… {left_out:,} bytes are left out …\n{file.read(_PART_BYTES).decode('utf-8', 'replace')}"


def scrub(log: Path, secrets: Sequence[str]) -> None:
    """Stars over the secrets, in place and of the same length: an engine may go on writing behind them."""
    if not secrets or not log.exists():
        return
    overlap = max(len(secret.encode(errors="surrogateescape")) for secret in secrets)
    with log.open("r+b") as file:
        start = 0
        while data := os.pread(file.fileno(), _PIECE_BYTES + overlap, start):
            for secret in (s.encode(errors="surrogateescape") for s in secrets):
                at = data.find(secret)
                while at >= 0:
                    os.pwrite(file.fileno(), b"*" * len(secret), start + at)
                    at = data.find(secret, at + len(secret))
            start += _PIECE_BYTES


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _pipe(its: contextlib.ExitStack, end: int) -> tuple[int, int]:
    """Of which one end is the keeper's, and is closed here once it has it."""
    pipe = os.pipe()
    its.callback(os.close, pipe[end])
    return pipe


def _readable(fd: int, timeout_s: float) -> bool:
    ready = select.poll()  # `select` takes no numbers above 1023
    ready.register(fd, select.POLLIN)
    return bool(ready.poll(timeout_s * 1000))


# ---- the keeper ----


class Keeper:
    """Parent of the engine and of whatever its processes leave behind. Only what it has not yet waited for is
    signalled, so that no number is another's by then."""

    def __init__(self, orders: int, told: int) -> None:
        self._orders, self._told = orders, told
        self._dyno = os.getppid()
        self._woken, waker = os.pipe()
        for fd in (orders, told):
            os.set_inheritable(fd, False)
        for fd in (orders, self._woken, waker):
            os.set_blocking(fd, False)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # one that is ignored wakes nobody
        self._engine = 0
        self._code: int | None = None

    def start(self, command: list[str], nice: int, cores: set[int]) -> None:
        me = os.getpid()
        self._engine = os.fork()
        if not self._engine:
            _become(command, nice, cores, me)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # where the engine talks, the pipes are its own
        os.write(self._told, b"%d\n" % self._engine)

    def wait(self) -> bool:
        """Until all are to be killed. False: dyno is gone, they were asked to end, and had their time for it."""
        events = select.poll()
        watched = [self._orders]
        # The pipe alone would do, but a process that dyno forked would hold it open after dyno's death.
        with contextlib.suppress(AttributeError, OSError):
            watched.append(os.pidfd_open(self._dyno))
        for fd in (self._woken, *watched):
            events.register(fd, select.POLLIN)
        deadline: float | None = None
        while deadline is None or (time.monotonic() < deadline and self._others_live()):
            ready = {fd for fd, _ in events.poll(None if deadline is None else 50)}
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._look()
            if ready.isdisjoint(watched):
                continue
            order = b""
            with contextlib.suppress(BlockingIOError):
                order = os.read(self._orders, 1)
            if order == _KILL:
                return True
            _signal(self._engine, signal.SIGTERM)
            if not order:
                deadline = time.monotonic() + _GRACE_S
                for fd in watched:
                    events.unregister(fd)
                watched = []
        return False

    def _others_live(self) -> bool:
        return self._code is None or any(pid != self._engine for pid in _children())

    def _look(self) -> None:
        """Tells the engine's exit code once it has one. It stays a zombie: until the end its number and its session's
        are no other's. The rest are waited for."""
        if self._code is None and (code := _peek(self._engine)) is not None:
            self._code = code
            with contextlib.suppress(BrokenPipeError):
                os.write(self._told, b"%d\n" % code)
        for pid in _children():
            if pid != self._engine:
                os.waitpid(pid, os.WNOHANG)

    def end(self, cleanup: list[str]) -> None:
        """Returns when nobody is left."""
        _signal(self._engine, signal.SIGKILL)
        deadline = time.monotonic() + _GRACE_S
        while self._code is None and time.monotonic() < deadline:
            time.sleep(0.002)
            self._look()
        if cleanup:
            null = subprocess.DEVNULL  # its output isn't the engine's: not for the log
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.Popen(cleanup, stdin=null, stdout=null, stderr=null).wait(_CLEANUP_S)
        pause_s = 0.001
        while True:
            # Whoever is killed leaves its children to this process, and they are killed in the next round.
            for pid in _children():
                with contextlib.suppress(PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    if (group := os.getpgid(pid)) != os.getpgrp():  # at one blow: none can fork out of it meanwhile
                        os.killpg(group, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.2, 0.25)  # one may hang in a driver, and be killed only when that returns


def _become(command: list[str], nice: int, cores: set[int], keeper: int) -> None:
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the keeper has one thread, so that is its death
        if os.getppid() != keeper:
            os._exit(127)
        _make_room(nice, cores)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an exec would hand that on
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as e:
        print(f"{command[0]}: {e.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _make_room(nice: int, cores: set[int]) -> None:
    """For the client that measures it: later turns on the cores, or other cores."""
    if nice:
        os.nice(nice)
        # With autogroup scheduling a session's processes compete as one, and this is its nice value.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))
    if cores:
        os.sched_setaffinity(0, cores)


def _peek(child: int) -> int | None:
    """The exit code of a dead child, which stays to be waited for."""
    if not hasattr(os, "waitid"):
        pid, status = os.waitpid(child, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _children() -> list[int]:
    """Of this process, the dead among them."""
    me = os.getpid()
    with contextlib.suppress(OSError):  # a kernel may be built without it
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    return [pid for pid in _pids() if _stat(pid)[1:2] == [str(me)]]


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        names = (path.name for path in Path("/proc").iterdir())
        return [int(name) for name in names if name.isdecimal()]
    return []


def _stat(pid: int) -> list[str]:
    """State, parent, group, session."""
    with contextlib.suppress(OSError):
        # The name in brackets may itself have brackets and spaces.
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:4]
    return []


def _signal(session: int, number: int) -> None:
    """To all of a session. By session and not by group: TGI's launcher gives each shard a group of its own."""
    if not _pids():  # not Linux
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, number)
    for pid in _pids():
        with contextlib.suppress(OSError):
            held = _pidfd(pid)  # first: what is seen then is of the process that is signalled, or it is dead
            try:
                if _stat(pid)[3:] == [str(session)]:
                    os.kill(pid, number) if held is None else signal.pidfd_send_signal(held, number)
            finally:
                if held is not None:
                    os.close(held)


def _pidfd(pid: int) -> int | None:
    """None: the kernel is older than 5.3."""
    try:
        return os.pidfd_open(pid)
    except OSError as e:
        if e.errno == errno.ENOSYS:
            return None
        raise


def _prctl(option: int, value: int) -> None:
    """Without it, on other systems, what leaves the engine's group lives on."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _main(orders: str, told: str, nice: str, cores: str, *command: str) -> None:
    cleanup, after = json.loads(os.environ.pop(_WILL))
    keeper = Keeper(int(orders), int(told))
    keeper.start(list(command), int(nice), {int(core) for core in cores.split(",") if core})
    asked = keeper.wait()
    keeper.end(cleanup)
    if after and not asked:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(after[0], after)


if __name__ == "__main__":
    _main(*sys.argv[1:])
