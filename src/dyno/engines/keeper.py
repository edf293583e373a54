"""The keeper: the parent of an engine, and of every process that the engine leaves behind.

It is run as a script, by its path and without dyno on it, so it imports the standard library only. Linux hands it the
orphans of the engine, whatever session they are in. It ends them all when dyno asks for that, or when dyno is gone.
"""

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

# an environment variable: every user can see a process's arguments, and commands may contain keys
WILL = "_DYNO_WILL"
GRACE_S = 5.0  # from TERM to KILL: time to give back GPU memory and shared memory
CLEANUP_S = 60.0  # a container's daemon may be slow to remove a big one
TERM, KILL = b"t", b"k"  # dyno's orders
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl


class Keeper:
    """Signals only processes that it has not yet waited for, so that no pid is another's by then."""

    def __init__(self, orders: int, status: int) -> None:
        self._orders, self._status = orders, status
        self._dyno = os.getppid()
        self._woken, waker = os.pipe()
        for fd in (orders, status):
            os.set_inheritable(fd, False)
        for fd in (orders, self._woken, waker):
            os.set_blocking(fd, False)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal wakes no process
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
        os.write(self._status, b"%d\n" % self._engine)

    def wait(self) -> bool:
        """Return when all are to be killed. False: dyno is gone, and they had their time to end by themselves."""
        events = select.poll()
        watched = [self._orders]
        # The pipe isn't enough: a process that dyno forked would hold it open after dyno's death.
        with contextlib.suppress(AttributeError, OSError):
            watched.append(os.pidfd_open(self._dyno))
        for fd in (self._woken, *watched):
            events.register(fd, select.POLLIN)
        deadline: float | None = None
        while deadline is None or (time.monotonic() < deadline and self._others_live()):
            ready = {fd for fd, _ in events.poll(None if deadline is None else 50)}
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._report_exit()
            if ready.isdisjoint(watched):
                continue
            order = b""
            with contextlib.suppress(BlockingIOError):
                order = os.read(self._orders, 1)
            if order == KILL:
                return True
            _signal(self._engine, signal.SIGTERM)
            if not order:
                deadline = time.monotonic() + GRACE_S
                for fd in watched:
                    events.unregister(fd)
                watched = []
        return False

    def _others_live(self) -> bool:
        return self._code is None or any(pid != self._engine for pid in _children())

    def _report_exit(self) -> None:
        """Report the engine's exit code once it has one, and reap the rest. The engine stays a zombie: until the end
        no other process can get its pid or session."""
        if self._code is None and (code := _peek(self._engine)) is not None:
            self._code = code
            with contextlib.suppress(BrokenPipeError):
                os.write(self._status, b"%d\n" % code)
        for pid in _children():
            if pid != self._engine:
                os.waitpid(pid, os.WNOHANG)

    def end(self, cleanup: list[str]) -> None:
        """Kill all, and return when none is left."""
        _signal(self._engine, signal.SIGKILL)
        deadline = time.monotonic() + GRACE_S
        while self._code is None and time.monotonic() < deadline:
            time.sleep(0.002)
            self._report_exit()
        if cleanup:
            null = subprocess.DEVNULL  # its output isn't the engine's: not for the log
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.Popen(cleanup, stdin=null, stdout=null, stderr=null).wait(
                    CLEANUP_S
                )
        pause_s = 0.001
        while True:
            # The children of a killed process come to this one, and are killed in the next round.
            for pid in _children():
                with contextlib.suppress(PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    # all at once: none can fork out of it meanwhile
                    if (group := os.getpgid(pid)) != os.getpgrp():
                        os.killpg(group, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(pause_s)
            # one may hang in a driver, and be killed only when that returns
            pause_s = min(pause_s * 1.2, 0.25)


def _become(command: list[str], nice: int, cores: set[int], keeper: int) -> None:
    try:
        os.setsid()
        # the keeper has one thread, so that is its death
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)
        _make_room(nice, cores)
        # Python ignores them, and an exec would hand that on
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as e:
        print(f"{command[0]}: {e.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _make_room(nice: int, cores: set[int]) -> None:
    """Leave room for the client that measures: later turns on the cores, or other cores."""
    if nice:
        os.nice(nice)
        # With autogroup scheduling a session's processes compete as one, and this is its nice value.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))
    if cores:
        os.sched_setaffinity(0, cores)


def _peek(child: int) -> int | None:
    """Return the exit code of a dead child without reaping it."""
    if not hasattr(os, "waitid"):
        pid, status = os.waitpid(child, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    state = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if state is None:
        return None
    return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status


def _children() -> list[int]:
    """Return the children of this process, dead ones included."""
    me = os.getpid()
    with contextlib.suppress(OSError):  # a kernel may be built without it
        return [
            int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()
        ]
    return [pid for pid in _pids() if _stat(pid)[1:2] == [str(me)]]


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        names = (path.name for path in Path("/proc").iterdir())
        return [int(name) for name in names if name.isdecimal()]
    return []


def _stat(pid: int) -> list[str]:
    """Return its state, parent, group and session."""
    with contextlib.suppress(OSError):
        # The name in brackets may itself have brackets and spaces.
        return (
            Path(f"/proc/{pid}/stat")
            .read_text("utf-8", "replace")
            .rpartition(")")[2]
            .split()[:4]
        )
    return []


def _signal(session: int, number: int) -> None:
    """Signal all of a session. Not a group: TGI's launcher gives each shard a group of its own."""
    if not _pids():  # not Linux
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, number)
    for pid in _pids():
        with contextlib.suppress(OSError):
            # first: from here on the pid means this process, or a dead one
            held = _pidfd(pid)
            try:
                if _stat(pid)[3:] == [str(session)]:
                    os.kill(pid, number) if held is None else signal.pidfd_send_signal(
                        held, number
                    )
            finally:
                if held is not None:
                    os.close(held)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor of a process. None: the kernel is older than 5.3."""
    try:
        return os.pidfd_open(pid)
    except OSError as e:
        if e.errno == errno.ENOSYS:
            return None
        raise


def _prctl(option: int, value: int) -> None:
    """Call Linux's prctl. On other systems, what leaves the engine's group lives on."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _main(orders: str, status: str, nice: str, cores: str, *command: str) -> None:
    cleanup, after = json.loads(os.environ.pop(WILL))
    keeper = Keeper(int(orders), int(status))
    keeper.start(list(command), int(nice), {int(core) for core in cores.split(",") if core})
    asked = keeper.wait()
    keeper.end(cleanup)
    if after and not asked:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(after[0], after)


if __name__ == "__main__":
    _main(*sys.argv[1:])
