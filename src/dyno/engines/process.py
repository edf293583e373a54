"""An engine's process: started in a session of its own, ended with everything it started.

This file is also run as a script, by path and without dyno on its path: it imports the standard library only.
"""

import contextlib
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
from pathlib import Path
from typing import Self

_WILL = "_DYNO_WILL"  # a variable of the watcher's: its arguments are for everybody to see, and commands may hold keys
_GRACE_S = 5.0  # from TERM to KILL: time to give back GPU memory and shared memory
_CLEANUP_S = 60.0  # a container's daemon may be slow to let go of a big one
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
        will: list[str] | None = None,
        talks: bool = False,
        nice: int = 0,
        cores: Collection[int] = (),
    ) -> None:
        """`env` is the whole environment; None: dyno's own. The log is appended to. `talks`: by lines, over `stdin` and
        `stdout`; the log has its stderr then.

        `cleanup` ends what is not in the engine's group, such as its container, whose parent is a daemon. It is run
        once the group is dead: by `stop`, or by the watcher where dyno itself died. `secrets`: values that the engine
        may write into its log, and that don't stay there. `will`: what the watcher runs instead of `cleanup`, where
        dyno can't do any more what it would have done after the stop. `nice`: added to dyno's own. `cores`: those that
        it may use; empty: dyno's own.
        """
        self.command = command
        self.log = log
        self._env = env
        self._cleanup = cleanup or []
        self._secrets = secrets
        self._started = time.monotonic()
        watched, self._held = os.pipe()
        try:
            with open(log, "ab", opener=private) as out:
                self._log_start = out.tell()  # what an earlier engine left there is not this one's
                # A session of its own, so that Ctrl-C reaches dyno and not the engine.
                self._child = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        __file__,
                        str(watched),
                        str(nice),
                        ",".join(map(str, cores)),
                        *command,
                    ],
                    stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if talks else out,
                    stderr=out,
                    env={**(os.environ if env is None else env), _WILL: json.dumps(will or self._cleanup)},
                    bufsize=0,
                    pass_fds=[watched],
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._held)
            raise
        finally:
            os.close(watched)
        self._stopped = self._asked = False
        self._heard = b""

    def say(self, line: bytes) -> None:
        """To one that talks."""
        assert self._child.stdin is not None
        rest = memoryview(line + b"\n")
        with contextlib.suppress(BrokenPipeError):  # it is dead: `hear` will tell
            while rest:
                rest = rest[self._child.stdin.write(rest) or 0 :]

    def hear(self, timeout_s: float) -> bytes | None:
        """Its next line; None: none yet, or none any more."""
        assert self._child.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._child.stdout], [], [], left)[0]:
                return None
            piece = os.read(self._child.stdout.fileno(), 1 << 16)
            if not piece:
                time.sleep(min(0.05, max(deadline - time.monotonic(), 0)))  # its end is near: it is waited for outside
                return None
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; −15 where a TERM ended it."""
        return self._child.poll()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    def alive(self) -> bool:
        return self.exit_code is None

    def listens(self, port: int) -> bool | None:
        """A process of the group listens there. None: it can't be told here."""
        import psutil  # not at the top: see this file's first lines

        known = False
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if self.pid in (os.getpgid(process.pid), os.getsid(process.pid)):
                    known = True
                    if any(
                        c.laddr and c.laddr.port == port and c.status == "LISTEN" for c in process.net_connections()
                    ):
                        return True
        return False if known else None

    def cpu_s(self) -> float:
        """That those of the session have used so far."""
        import psutil  # not at the top: see this file's first lines

        used = 0.0
        for pid in _session(self.pid):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                used += times.user + times.system
        return used

    def resident_bytes(self) -> int:
        """Memory that those of the session hold now; what they share is counted once, where the system tells."""
        import psutil  # not at the top: see this file's first lines

        held = 0
        for pid in _session(self.pid):
            with contextlib.suppress(psutil.Error):
                info = psutil.Process(pid).memory_full_info()
                held += getattr(info, "pss", info.rss)
        return held

    def terminate(self) -> None:
        """Ask the group to end, and don't wait: several engines then end at the same time."""
        if not self._stopped and not self._asked:  # llama-server takes a second one for impatience
            self._asked = True
            _signal(self.pid, signal.SIGTERM)

    def stop(self, timeout: float = _GRACE_S) -> None:
        """End the whole session and wait until it is gone. Also after a crash: its workers may still live."""
        if self._stopped:
            return
        # The watcher is in the session until the last moment, so its number can't be another's by now.
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout)
        _signal(self.pid, signal.SIGKILL)
        self._child.wait()
        self._clean_up()
        deadline = time.monotonic() + _GRACE_S
        while _session(self.pid) and time.monotonic() < deadline:
            _signal(self.pid, signal.SIGKILL)  # what was forked meanwhile
            time.sleep(0.01)
        os.close(self._held)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._stopped = True
        scrub(self.log, self._secrets)

    def _clean_up(self) -> None:
        if not self._cleanup:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            # Not `run`, which kills what it waits for at Ctrl-C. Its output isn't the engine's: not for the log.
            subprocess.Popen(
                self._cleanup,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._env,
                start_new_session=True,
            ).wait(_CLEANUP_S)

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
        """All that it has written since it began."""
        scrub(self.log, self._secrets)
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode("utf-8", "replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def private(path: str, flags: int) -> int:
    """An opener: what an engine says is for the owner alone."""
    return os.open(path, flags, 0o600)


def scrub(log: Path, secrets: Sequence[str]) -> None:
    """Stars over the secrets, in place and of the same length: an engine may go on writing behind them."""
    if not secrets or not log.exists():
        return
    with log.open("r+b") as file:
        data = file.read()
        for secret in (s.encode(errors="surrogateescape") for s in secrets):
            at = data.find(secret)
            while at >= 0:
                file.seek(at)
                file.write(b"*" * len(secret))
                at = data.find(secret, at + len(secret))


def _session(leader: int) -> list[int]:
    """Who lives in it. By session and not by group: TGI's launcher gives each shard a group of its own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may itself have brackets and spaces.
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            # The dead stay listed until process 1 takes note, which in a container may be never.
            if int(session) == leader and state not in "ZX":
                found.append(int(folder.name))
    return found


def _signal(leader: int, number: int) -> None:
    """To all of a session but oneself, who may be its watcher."""
    for pid in _session(leader):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
    if not Path("/proc/self/stat").exists():  # not Linux
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, number)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _make_room(nice: int, cores: set[int]) -> None:
    """For the client that measures it: later turns on the cores, or other cores."""
    if nice:
        os.nice(nice)
        # With autogroup scheduling a session's processes compete as one, and this is its nice value.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))
    if cores:
        os.sched_setaffinity(0, cores)


def _become(watched: int, cleanup: list[str], command: list[str]) -> None:
    """Leave a watcher behind and turn into the engine, which so keeps the pid that dyno knows.

    Not PR_SET_PDEATHSIG: it fires when the *thread* that started the engine ends, and misses grandchildren.
    """
    dyno, engine = os.getppid(), os.getpid()
    if first := os.fork():
        os.waitpid(first, 0)
        os.close(watched)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and an exec would hand that on
        try:
            os.execvp(command[0], command)
        except OSError as e:
            print(f"{command[0]}: {e.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    if os.fork():
        os._exit(0)  # the watcher is no child of the engine, which may wait for all of its own
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end = select.poll()
    end.register(watched)
    # The pipe alone would do, but a process that dyno forked would hold it open after dyno's death.
    with contextlib.suppress(AttributeError, OSError):
        end.register(os.pidfd_open(dyno))
    end.poll()
    _signal(engine, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and len(_session(engine)) > 1:
        time.sleep(0.05)
    _signal(engine, signal.SIGKILL)
    if cleanup:
        _after_my_death(cleanup)
    os.killpg(0, signal.SIGKILL)


def _after_my_death(command: list[str]) -> None:
    """Leave a process outside the group that runs `command` when the group, this one in it, is dead."""
    death, mine = os.pipe()
    outside, its = os.pipe()
    if os.fork():
        os.close(its)
        os.read(outside, 1)  # it is out of the group, and `mine` is held here alone
        return
    os.close(mine)
    os.setsid()
    os.close(its)
    os.read(death, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as e:
        print(f"{command[0]}: {e.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


if __name__ == "__main__":
    _make_room(int(sys.argv[2]), {int(core) for core in sys.argv[3].split(",") if core})
    _become(int(sys.argv[1]), json.loads(os.environ.pop(_WILL)), sys.argv[4:])
