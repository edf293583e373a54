"""A machine over SSH, by OpenSSH's client: its configuration, agent and keys are the user's own.

Host keys are checked and never accepted unseen. Nothing is forwarded but the ports that are asked for. What is secret
goes through stdin: no command line has it.
"""

import contextlib
import io
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from dyno import secrets
from dyno.errors import RigError, Unreachable
from dyno.facts.elsewhere import SshSpec
from dyno.numbers import duration, human_bytes
from dyno.remote import agent
from dyno.scratch import Scratch

_ALIVE_S = 10  # between signs of life; after three without an answer the connection is lost
_CONNECT_S = 20
_OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no",
    "RequestTTY=no", "RemoteCommand=none", "ControlMaster=auto", "ControlPersist=60",
    f"ConnectTimeout={_CONNECT_S}", f"ServerAliveInterval={_ALIVE_S}", "ServerAliveCountMax=3",
)  # fmt: skip
_LONGEST = 16 << 20  # bytes of a line, or of an answer
_END_S = 30.0  # from the end of what is read to that of the process
# Within which a verb has to be over. Those that aren't here may take as long as they like: a study runs for days.
_LIMITS_S = {
    "stock": 8.0,
    "describe": 300.0,
    "status": 120.0,
    "install": 7200.0,
    "start": 300.0,
    "stop": 600.0,
    "remove": 900.0,
}
_QUIET_S = {"pack": 900.0}  # without a byte; before the first one it reads all files
_START = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.readline())))"
_SOURCE = Path(agent.__file__).read_bytes
_ADVICE = {
    "host key verification failed": "its host key is not the known one, or not known yet. Check the fingerprint with "
    "its owner, then add it: ssh-keyscan shows it, ~/.ssh/known_hosts holds it",
    "permission denied": "it accepts none of your keys. Add one to the agent (ssh-add), or name it with key_file",
    "could not resolve hostname": "there is no such host",
    "identity file": "the key file can't be read",
}


class SshMachine:
    """One connection, shared by all calls. It is opened by the first of them, and again when it was lost."""

    def __init__(self, spec: SshSpec, job: str) -> None:
        self.spec, self.job = spec, job
        if shutil.which("ssh") is None:
            raise RigError("There is no `ssh` on this machine. Install OpenSSH's client.")
        self._scratch = Scratch("dyno-s-")  # short: a socket's path has a limit
        self._folder = self._scratch.path
        self.python = spec.python or "python3"

    def close(self) -> None:
        subprocess.run(self._ssh("-O", "exit"), capture_output=True)
        self._scratch.remove()

    def _ssh(self, *words: str, command: str | None = None) -> list[str]:
        spec = self.spec
        out = ["ssh"]
        for flag, path in (("-F", spec.config_file), ("-i", spec.key_file)):
            if path:
                out += [flag, str(Path(path).expanduser())]
        if spec.port:
            out += ["-p", str(spec.port)]
        for option in (*_OPTIONS, f"ControlPath={self._folder}/s"):
            out += ["-o", option]
        out += [*words, "--", spec.host]
        if command:
            out.append(command)
        return out

    def _agent(self, verb: str, *words: str) -> list[str]:
        call = [self.python, "-c", _START, verb, self.spec.folder or "", self.job, *words]
        return self._ssh("-o", "ClearAllForwardings=yes", command=shlex.join(call))

    def call(
        self, verb: str, *words: str, send: Callable[[IO[bytes]], None] | None = None
    ) -> bytes:
        """Run a verb of the agent there and return what it prints. `send` writes what its stdin holds."""
        with self.started(verb, *words) as process:
            assert process.stdin and process.stdout
            with contextlib.suppress(BrokenPipeError):  # its own words come first
                if send:
                    send(process.stdin)
                process.stdin.close()
            answer = process.stdout.read(_LONGEST)
            if len(answer) == _LONGEST:
                raise RigError(
                    f"{self.spec.host} answered with more than {human_bytes(_LONGEST)}."
                )
            return answer

    def ask(self, verb: str, *words: str) -> dict[str, Any]:
        """Return the last event that a verb prints."""
        return _decoded(b"".join(self.call(verb, *words).splitlines()[-1:]))

    @contextlib.contextmanager
    def started(self, verb: str, *words: str) -> "Iterator[subprocess.Popen[bytes]]":
        """Start a verb of the agent. On leaving, it is over: its failure is raised, or its connection closed."""
        source = _SOURCE()
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self._agent(verb, *words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Ctrl-C is dyno's: it stops the other machine by this connection
                start_new_session=True,
            )
            assert process.stdin and process.stdout
            quiet_s, limit_s = _QUIET_S.get(verb), _LIMITS_S.get(verb)
            process.stdout = io.BufferedReader(
                _Pipe(process.stdout, quiet_s, self.spec.host)
            )
            clock = threading.Timer(limit_s or 1e6, _kill, [process])
            clock.daemon = True
            clock.start()
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(b"%d\n" % len(source) + source)
                    process.stdin.flush()
                yield process
                code = self._code(process)
            except BaseException:
                _kill(process)
                process.wait()
                raise
            finally:
                in_time = clock.is_alive()
                clock.cancel()
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                process.stdout.close()
            if not in_time:
                raise Unreachable(
                    f"{self.spec.host} didn't finish `{verb}` within {duration(limit_s)}."
                )
            if code:
                errors.seek(0)
                raise self._failure(code, errors.read(100_000).decode(errors="replace"))

    def _code(self, process: "subprocess.Popen[bytes]") -> int:
        """Return the exit code. Nothing more is read: what writes on without end is ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.5)
        assert process.stdin and process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(OSError, ValueError):
            # the rest of an honest answer, such as the padding of an archive
            process.stdout.read(_LONGEST)
        process.stdout.close()
        try:
            return process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{self.spec.host} doesn't end its answer.") from None

    def _failure(self, code: int, words: str) -> RigError:
        """Return why ssh or the command behind it failed. `words`: what it wrote."""
        host = self.spec.host
        lines = words.strip().splitlines()
        last = secrets.public_text(lines[-1].strip())[:300] if lines else ""
        if code == 255:  # ssh's own
            known = (advice for text, advice in _ADVICE.items() if text in words.lower())
            why = next(known, last or "it hung up")
            return Unreachable(f"{host} can't be reached: {why.rstrip('.')}.")
        missing = re.search(r"not found|no such file", last, re.I) and self.python in last
        if code == 127 or missing:
            return RigError(
                f"{host} has no {self.python}. Install Python 3.11 or newer, or set python = PATH."
            )
        reason = last.rstrip(".") or f"exit code {code}"
        return RigError(f"{host}: {reason}.")

    @contextlib.contextmanager
    def forwarded(self, local: int, remote: int) -> Iterator[None]:
        """Reach a port of that machine at a port here, on loopback at both ends."""
        ports = f"127.0.0.1:{local}:127.0.0.1:{remote}"
        done = subprocess.run(
            self._ssh("-O", "forward", "-L", ports), capture_output=True, text=True
        )
        if done.returncode:
            raise self._failure(255, done.stderr)
        try:
            yield
        finally:
            subprocess.run(self._ssh("-O", "cancel", "-L", ports), capture_output=True)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill ssh and what it started, such as a ProxyCommand: whoever holds the pipe would be waited for."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


class _Pipe(io.RawIOBase):
    """The output of a process on another machine. `quiet_s`: how long nothing may come; None: for ever."""

    def __init__(self, inner: IO[bytes], quiet_s: float | None, host: str) -> None:
        self._inner, self._quiet_s, self._host = inner, quiet_s, host

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._inner.fileno()

    def readinto(self, room: Any) -> int:
        if self._quiet_s and not select.select([self._inner], [], [], self._quiet_s)[0]:
            raise Unreachable(f"{self._host} sent nothing for {duration(self._quiet_s)}.")
        data = os.read(self._inner.fileno(), len(room))
        room[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def events(process: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
    """Yield what the agent reports, line by line."""
    yield from map(_decoded, lines(process))


def lines(process: "subprocess.Popen[bytes]") -> Iterator[bytes]:
    """Yield the lines of a process on another machine. One that would fill the memory is cut."""
    assert process.stdout
    while line := process.stdout.readline(_LONGEST):
        yield line


def _decoded(line: bytes) -> dict[str, Any]:
    """Read an event. It comes from elsewhere: anything but an object is an error."""
    try:
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    except (ValueError, RecursionError):
        pass
    raise RigError(
        f"The other machine answered {line[:100]!r}, which dyno doesn't understand."
    )


# ---- what is there already: asked in a few seconds before a study, with nothing installed ----

# Of documentation, or not filled in yet: user@host, h100.example.com.
_PLACEHOLDER = re.compile(
    r"(^|[@.])(host|hostname|my-?host|example|invalid|test)(\.(com|org|net))?$", re.I
)
_Name = Annotated[str, msgspec.Meta(max_length=300)]


class RigStock(msgspec.Struct, frozen=True):
    free_bytes: Annotated[int, msgspec.Meta(ge=0)]
    home: Annotated[str, msgspec.Meta(max_length=4096)]
    models: list[_Name]  # names of recipes
    engines: list[_Name]  # vllm-0.32.0-cuda

    def has_engine(self, kind: str, version: str | None) -> bool:
        begin = f"{kind}-{version}" if version else f"{kind}-"
        return any(
            name == begin or name.startswith((begin, f"{begin}-")) for name in self.engines
        )


def ask_stock(ssh: SshSpec) -> RigStock | str:
    """Return what is there, or why it was not asked."""
    if _PLACEHOLDER.search(ssh.host):
        return f"{ssh.host} is a placeholder"
    try:
        machine = SshMachine(ssh, "stock")
    except RigError as e:
        return str(e)
    try:
        return msgspec.convert(machine.ask("stock"), RigStock)
    except RigError as e:
        return str(e)
    except msgspec.ValidationError:
        return f"{ssh.host} answered with something else than its stock"
    finally:
        machine.close()
