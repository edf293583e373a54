"""A machine for a dstack SSH fleet, without Docker: `python dstack_machine.py FOLDER` plays dstack's agent on it.

dstack's own agent (two Go programs: one per host, one per container) needs a Docker daemon. This one answers the same
requests of dstack's server; its 'container' is a process of this machine and a real sshd. The rest is real: the server,
its SSH to the host, its plans, states and logs, and dyno's SSH to the container.
"""

import base64
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST_PORT, CONTAINER_PORT, RUNNER_PORT = 10998, 10022, 10999  # fixed by dstack
USER = getpass.getuser()
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

# What the server runs on the host to install its agent changes nothing here. `tee` and `uv`: the default image's start.
_SUDO = """#!/bin/sh
case "$1" in
systemctl) [ "$2" = restart ] && setsid {python} {script} {folder} > {folder}/agent.log 2>&1 < /dev/null & ;;
cat) cat {folder}/host_info.json ;;
tee) sed /activate/d ;;
mv) rm -f "$2" ;;
esac
exit 0
"""
_SESSION = """#!/bin/sh
export HOME={home} PATH={folder}/bin:$PATH INSIDE={home}
case "$SSH_ORIGINAL_COMMAND" in
*sftp*) exec /usr/lib/openssh/sftp-server ;;
"uname -m") echo x86_64; exit ;;  # the default image's
esac
cd && exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


def prepare(folder: Path) -> None:
    """Lay out the machine: programs that the server calls, facts of the host, keys."""
    for name in ("bin", "host", "container"):
        (folder / name).mkdir(parents=True)
    script(
        folder / "bin" / "sudo",
        _SUDO.format(python=sys.executable, script=Path(__file__).resolve(), folder=folder),
    )
    script(folder / "bin" / "uv", "#!/bin/sh\n")
    facts = {
        "cpus": 8,
        "memory": 64 << 30,
        "disk_size": 500 << 30,
        "gpu_count": 0,
        "addresses": ["127.0.0.1/8"],
    }
    (folder / "host_info.json").write_text(json.dumps(facts))


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def start_sshd(
    folder: Path, home: Path, port: int, keys: list[str]
) -> subprocess.Popen[bytes]:
    """Start a real sshd on loopback for one user, with a host key of its own."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    home.mkdir(parents=True, exist_ok=True)
    (home / ".ssh").mkdir(exist_ok=True, mode=0o700)
    (home / ".ssh" / "authorized_keys").write_text(
        "".join(f"{key.strip()}\n" for key in keys)
    )
    if not (home / "host_key").exists():
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / "host_key")],
            check=True,
        )
    script(home / "session", _SESSION.format(home=home, folder=folder))
    options = {
        "Port": port, "ListenAddress": "127.0.0.1", "HostKey": home / "host_key", "PidFile": "none", "UsePAM": "no",
        "AuthorizedKeysFile": home / ".ssh" / "authorized_keys", "StrictModes": "no", "PasswordAuthentication": "no",
        "ForceCommand": home / "session", "Subsystem": "sftp internal-sftp",
    }  # fmt: skip
    (home / "sshd_config").write_text(
        "".join(f"{key} {value}\n" for key, value in options.items())
    )
    assert SSHD is not None
    return subprocess.Popen(
        [SSHD, "-D", "-f", str(home / "sshd_config"), "-E", str(home / "sshd.log")]
    )


class Container:
    """A 'container': a real sshd, and the job's commands as a process whose output is its log."""

    def __init__(self, folder: Path, keys: list[str]) -> None:
        self.folder, self.home = folder, folder / "container"
        self.sshd = start_sshd(folder, self.home, CONTAINER_PORT, keys)
        self.job: subprocess.Popen[bytes] | None = None
        self.commands: list[str] = []
        self.logs: list[dict[str, Any]] = []
        self.states: list[dict[str, Any]] = []
        self.runner = serve(RUNNER_PORT, self.answer)

    def answer(self, method: str, path: str, body: Any) -> Any:
        match path.partition("?")[0]:
            case "/api/healthcheck":
                return {"service": "dstack-runner", "version": "latest"}
            case "/api/submit":
                self.commands = body["job_spec"]["commands"]
            case "/api/run":
                self.start()
                return {"working_dir": str(self.folder), "username": USER}
            case "/api/pull":
                after = int(path.partition("timestamp=")[2] or 0)
                logs, states = (
                    [e for e in es if e["timestamp"] > after]
                    for es in (self.logs, self.states)
                )
                last = max([after, *(e["timestamp"] for e in (*logs, *states))])
                return {"job_states": states, "job_logs": logs, "runner_logs": [], "last_updated": last,
                        "no_connections_secs": 0, "has_more": False}  # fmt: skip
            case "/api/stop":
                self.stop_job()
            case "/api/upload_code" | "/api/upload_archive":
                pass
            case _:
                return None
        return {}

    def start(self) -> None:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        self.job = subprocess.Popen(
            self.commands, env={**os.environ, "PATH": path, "HOME": str(self.home), "INSIDE": str(self.home)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.event("running")
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        assert self.job is not None and self.job.stdout is not None
        for line in self.job.stdout:
            # as from a terminal
            message = base64.b64encode(line.replace(b"\n", b"\r\n")).decode()
            self.logs.append({"timestamp": now_ms(), "message": message})
        code = self.job.wait()
        self.event("done" if code == 0 else "failed", exit_status=code)

    def event(self, state: str, **more: Any) -> None:
        self.states.append({"timestamp": now_ms(), "state": state, **more})

    def stop_job(self) -> None:
        if self.job is not None and self.job.poll() is None:
            os.killpg(self.job.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End everything inside, as the end of a container does."""
        self.runner.shutdown()
        self.runner.server_close()
        self.sshd.terminate()
        self.sshd.wait(10)
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"INSIDE={self.home}".encode() in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)


class HostAgent:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tasks: dict[str, str] = {}  # id → status
        self.containers: dict[str, Container] = {}

    def answer(self, method: str, path: str, body: Any) -> Any:
        with (self.folder / "requests.log").open("a") as log:
            log.write(f"{method} {path} {json.dumps(body)}\n")
        task, _, verb = path.removeprefix("/api/tasks").strip("/").partition("/")
        if path == "/api/healthcheck":
            return {"service": "dstack-shim", "version": "latest"}
        if path == "/api/components":
            names = ("dstack-runner", "dstack-shim")
            return {
                "components": [
                    {"name": n, "version": "latest", "status": "installed"} for n in names
                ]
            }
        if path in ("/api/instance/health", "/api/instance/info"):
            return {}
        if not path.startswith("/api/tasks"):
            return None
        if method == "POST" and not task:
            self.authorize(body["host_ssh_keys"])
            self.containers[body["id"]] = Container(self.folder, body["container_ssh_keys"])
            self.tasks[body["id"]] = "running"
        elif not task:
            return {"tasks": [{"id": i, "status": s} for i, s in self.tasks.items()]}
        elif task not in self.tasks:
            return None
        elif verb == "terminate":
            self.containers.pop(task).stop() if task in self.containers else None
            self.tasks[task] = "terminated"
        elif verb == "remove":
            del self.tasks[task]
        if task in self.tasks:
            return {"id": task, "status": self.tasks[task], "termination_reason": "", "termination_message": "",
                    "ports": []}  # fmt: skip
        return {}

    def authorize(self, keys: list[str]) -> None:
        with (self.folder / "host" / ".ssh" / "authorized_keys").open("a") as file:
            file.writelines(f"{key.strip()}\n" for key in keys)


_last_ms = 0


def now_ms() -> int:
    """Milliseconds that grow: the server asks for what is later than the last."""
    global _last_ms
    _last_ms = max(_last_ms + 1, time.time_ns() // 1_000_000)
    return _last_ms


def serve(port: int, answer: Any) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_json = "json" in (self.headers.get("Content-Type") or "")
            reply = answer(
                self.command, self.path, json.loads(data) if data and is_json else None
            )
            body = json.dumps(reply).encode()
            self.send_response(404 if reply is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@contextmanager
def machine(folder: Path) -> Iterator[tuple[int, Path]]:
    """A host that dstack's server can add to a fleet. Yields its SSH port and the private key that logs in."""
    prepare(folder)
    key = folder / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True
    )
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    sshd = start_sshd(folder, folder / "host", port, [key.with_suffix(".pub").read_text()])
    try:
        yield port, key
    finally:
        sshd.terminate()
        sshd.wait(10)
        stop_agent(folder)


def main(folder: Path) -> None:
    stop_agent(folder)  # of an earlier fleet
    agent = HostAgent(folder)
    server = serve(HOST_PORT, agent.answer)
    (folder / "agent.pid").write_text(str(os.getpid()))
    signal.sigwait({signal.SIGTERM})
    for container in agent.containers.values():
        container.stop()
    server.shutdown()


def stop_agent(folder: Path) -> None:
    with suppress(OSError):  # none runs
        pid = int((folder / "agent.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        while True:
            os.kill(pid, 0)
            time.sleep(0.05)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(Path(sys.argv[1]))
