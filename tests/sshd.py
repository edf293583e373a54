"""A real sshd on loopback, with keys, configuration and folders of its own: the rig of a study over SSH.

A rig's shell has another HOME than this machine's: what dyno leaves there is seen.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

SSHD = shutil.which("sshd") or next(
    (p for p in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if Path(p).exists()), None
)


class LoopbackSshd:
    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.config = folder / "config"
        self.process: subprocess.Popen[bytes]
        self.home.mkdir(parents=True)
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
                check=True,
            )
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.set_environment()
        (folder / "known_hosts").write_text(
            f"[127.0.0.1]:{self.port} {(folder / 'host.pub').read_text()}"
        )
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nPasswordAuthentication no\n"
            "PermitUserEnvironment yes\nPermitRootLogin yes\nMaxStartups 100\n"
        )
        self.config.write_text(
            f"Host rig* \n  HostName 127.0.0.1\n  Port {self.port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none\n"
        )

    def set_environment(self, **variables: str) -> None:
        """Set what a login has besides HOME, from the next connection on."""
        words = [
            f'environment="{name}={value}"'
            for name, value in {"HOME": str(self.home), **variables}.items()
        ]
        (self.folder / "authorized").write_text(
            f"{','.join(words)} {(self.folder / 'user.pub').read_text()}"
        )

    def start(self) -> None:
        assert SSHD is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=1),
            ):
                return
            time.sleep(0.02)
        pytest.fail((self.folder / "sshd.log").read_text())

    def cut(self) -> int:
        """Kill every connection, and return how many there were; the listener stays."""
        sessions = psutil.Process(self.process.pid).children()
        for session in sessions:
            # The session's own processes first: what was started there detached is not among them.
            for process in [*session.children(), session]:
                with suppress(psutil.Error):
                    if process.name().startswith("sshd"):
                        process.kill()
        return len(sessions)

    def stop(self) -> None:
        self.cut()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)

    @property
    def dyno_home(self) -> Path:
        return self.home / ".local" / "share" / "dyno"

    def left(self) -> list[str]:
        """What is in the rig's home, from files on."""
        return sorted(
            str(p.relative_to(self.home)) for p in self.home.rglob("*") if p.is_file()
        )


@contextmanager
def sshd(folder: Path) -> Iterator[LoopbackSshd]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("there is no sshd here (Debian: apt-get install openssh-server)")
    server = LoopbackSshd(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
