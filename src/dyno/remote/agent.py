"""What dyno runs on another machine. Each call sends it there as text: it imports only the standard library, and any
Python from 3.9 on takes it.

FOLDER/jobs/ID/            one job: a study of one machine at home
├── env/                   dyno and what it needs, from wheels; no package index is asked
├── data/                  the study's data sets
├── runs/                  its run folders, until they are at home
├── log, ended             what dyno prints; its exit code
└── lock                   held while it runs
"""

import contextlib
import fcntl
import fnmatch
import glob
import hashlib
import json
import os
import platform
import select
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from typing import IO, Any, Optional

OLDEST = (3, 11)  # Python that dyno needs
NEWEST = 20
LOOK_S = 0.3
# from Ctrl-C to KILL: engines give their memory back, and commands after the study run
GRACE_S = 120.0
TAIL = 4000  # bytes of the log that a new follower reads
ASK = "import json, sys; print(json.dumps([list(sys.version_info[:2]), sys.implementation.cache_tag]))"


def main(verb: str, folder: str, job_id: str, *words: str) -> None:
    home = (
        folder
        or os.environ.get("DYNO_HOME")
        or os.path.join(
            os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "dyno"
        )
    )
    job = RigJob(os.path.abspath(os.path.expanduser(home)), job_id)
    os.umask(0o077)
    getattr(job, verb)(*words)


def report(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class RigJob:
    def __init__(self, home: str, job_id: str) -> None:
        self.home, self.folder = home, os.path.join(home, "jobs", job_id)
        self.python = self.path("env", "bin", "python")
        # dyno's small model and measured peaks. They stay only on a machine that had them before the first job.
        self.cache = os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dyno"
        )
        self.no_cache = os.path.join(home, "jobs", "no-cache")

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    # ---- what is here ----

    def describe(self, python: str, like: str) -> None:
        """Report what this machine has. `like`: the version that dyno has at home. Its packages then fit here."""
        names = [
            f"python{like}",
            *(f"python3.{minor}" for minor in range(NEWEST, OLDEST[1] - 1, -1)),
            sys.executable,
        ]
        for name in [python] if python else names:
            version, tag = asked(name)
            if version >= OLDEST:
                break
        else:
            sys.exit(
                f"there is no Python 3.11 or newer ({python or 'on PATH'}). Install one, or name it: python = PATH"
            )
        report(
            python=name,
            version=version,
            tag=tag,
            system=platform.system(),
            machine=platform.machine(),
            libc=platform.libc_ver(),
            state=self.state(),
            job=self.folder,
            installed=os.path.exists(self.path("ready")),
            free_bytes=shutil.disk_usage(existing(self.home)).free,
        )

    def stock(self) -> None:
        """Report what is here: models and engines that are whole, by their folders, and the room for more."""
        whole = {
            kind: sorted(
                os.path.basename(os.path.dirname(p))
                for p in glob.glob(f"{self.home}/{kind}/[!.]*/dyno.json")
            )
            for kind in ("models", "engines")
        }
        report(
            free_bytes=shutil.disk_usage(existing(self.home)).free, home=self.home, **whole
        )

    def status(self) -> None:
        report(state=self.state())

    def state(self) -> str:
        """Return absent, ready, running, or the exit code; 'lost' where it died without one."""
        if not os.path.isdir(self.folder):
            return "absent"
        if self.locked() is None:
            return "running"
        if os.path.exists(self.path("ended")):
            with open(self.path("ended")) as file:
                return file.read()
        return "lost" if os.path.exists(self.path("pid")) else "ready"

    def locked(self) -> Optional[IO[bytes]]:
        """Return the job's lock, as an open file; None where a job holds it."""
        file = open(self.path("lock"), "ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        return file

    # ---- install, start, follow ----

    def install(self, python: str) -> None:
        """Unpack files from stdin, and wheels among them into an environment. It needs neither pip nor an index."""
        os.makedirs(self.folder, exist_ok=True)
        if not os.path.exists(self.cache):
            open(self.no_cache, "w").close()
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
            for member in tar:
                path = self.path(member.name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None  # home sends plain files
                with open(path, "wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
        wheels = sorted(glob.glob(self.path("wheels", "*.whl")))
        if wheels:
            subprocess.run(
                [python, "-m", "venv", "--without-pip", self.path("env")],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            (site,) = glob.glob(self.path("env", "lib", "python*", "site-packages"))
            for wheel in wheels:
                unpack(wheel, site)
            shutil.rmtree(self.path("wheels"))
        open(self.path("ready"), "w").close()

    def start(self, *words: str) -> None:
        """Run dyno detached: it goes on when the connection ends. What stdin holds is its stdin: no file has it."""
        order = sys.stdin.buffer.read()
        lock = self.locked()
        if lock is None:
            sys.exit("it is running already")
        for name in ("ended", "pid"):
            if os.path.exists(self.path(name)):
                os.unlink(self.path(name))
        if os.fork():
            return
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with open(self.path("log"), "ab") as log, open(os.devnull, "r+b") as null:
            for stream in (0, 1, 2):
                os.dup2(null.fileno(), stream)
            process = subprocess.Popen(
                [self.python, "-m", "dyno", *words],
                stdin=subprocess.PIPE,
                stdout=null,
                stderr=log,
                cwd=self.folder,
                env=self.environment(),
                pass_fds=[lock.fileno()],
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )
            write(self.path("pid"), str(process.pid))
            process.communicate(order)
            code = process.returncode
        write(self.path("ended"), str(code))
        os._exit(0)

    def environment(self) -> dict[str, str]:
        """Return the variables of a job. Engines and models stay in dyno's folder; Python's own variables could name
        other packages."""
        own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        return dict(own, DYNO_HOME=self.home, PYTHONUNBUFFERED="1")

    def follow(self, offset: str) -> None:
        """Report lines of the log and finished trials, until the job ends or stdin does: home is gone then."""
        log, finished = int(offset), set()
        if log < 0:
            log = max(size(self.path("log")) - TAIL, 0)
        while True:
            state = self.state()  # before the rest is read: nothing comes later
            log = self.report_log(log, whole=state != "running")
            for path in sorted(glob.glob(self.path("runs", "*", "trials", "*"))):
                done = any(
                    os.path.exists(os.path.join(path, name))
                    for name in ("summary.json", "failed.json")
                )
                if done and path not in finished:
                    finished.add(path)
                    report(finished=os.path.relpath(path, self.folder))
            if state != "running":
                break
            if select.select([0], [], [], LOOK_S)[0] and not os.read(0, 1):
                return
        skipped = {}
        for path in glob.glob(self.path("runs", "*", "skipped.json")):
            with open(path) as file:
                skipped.update(json.load(file))
        starts = sorted(glob.glob(self.path("runs", "*", "engines", "*")))
        report(
            ended=state,
            skipped=skipped,
            engines=[os.path.relpath(path, self.folder) for path in starts],
        )

    def report_log(self, offset: int, whole: bool) -> int:
        if size(self.path("log")) > offset:
            with open(self.path("log"), "rb") as file:
                file.seek(offset)
                data = file.read(1 << 20)
            end = len(data) if whole else data.rfind(b"\n") + 1
            offset += end
            if end:
                report(
                    log=data[:end].decode("utf-8", "replace").splitlines(), offset=offset
                )
        return offset

    # ---- bring home, stop, remove ----

    def pack(self, inner: str, rule: str) -> None:
        """Write a folder's list of files with their checksums, then the files as a tar stream. `rule`: the files that
        stay here, as dyno.store.run has it."""
        top, stays = self.path(inner), json.loads(rule)
        listed: dict[str, tuple[int, str]] = {}
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                path = os.path.join(folder, name)
                if stat.S_ISREG(os.lstat(path).st_mode) and not kept_back(
                    folder, name, stays
                ):
                    listed[os.path.relpath(path, top)] = (size(path), digest(path))
        out = sys.stdout.buffer
        head = json.dumps(listed).encode()
        out.write(b"%d\n" % len(head) + head)
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, (length, _) in listed.items():
                info = tarfile.TarInfo(name)
                info.size = length
                with open(os.path.join(top, name), "rb") as file:
                    tar.addfile(info, file)
        out.flush()

    def run(self, *words: str) -> None:
        """Run a module of dyno in the foreground. It inherits stdin, and ends with the connection."""
        # nothing was sent before, and nothing is left in this process's buffer
        report(go=True)
        os.chdir(self.folder)
        os.execve(self.python, [self.python, "-m", *words], self.environment())

    def stop(self) -> None:
        """Stop the job as Ctrl-C does; after a while by force."""
        deadline, asked = time.monotonic() + GRACE_S, False
        while self.state() == "running":
            process = self.process()
            late = time.monotonic() > deadline
            if process is None and late:
                sys.exit("the job holds its lock and has no process")
            if process is not None and late:
                # the keepers of its engines stop them then
                send_signal(process, signal.SIGKILL)
            elif process is not None and not asked:
                send_signal(process, signal.SIGINT)
                asked = True
            time.sleep(0.1)
        report(state=self.state())

    def process(self) -> Optional[int]:
        """Return the job's process. None: it has its lock, and begins only now."""
        try:
            with open(self.path("pid")) as file:
                return int(file.read())
        except (FileNotFoundError, ValueError):
            return None

    def remove(self) -> None:
        """Leave nothing but engines' environments and models."""
        self.stop()
        deadline = time.monotonic() + GRACE_S
        while os.path.exists(self.folder) and time.monotonic() < deadline:
            shutil.rmtree(self.folder, ignore_errors=True)
            # the keeper of an engine may still be ending it
            time.sleep(LOOK_S * os.path.exists(self.folder))
        jobs = os.path.dirname(self.folder)
        if os.path.isdir(jobs) and os.listdir(jobs) == ["no-cache"]:
            shutil.rmtree(self.cache, ignore_errors=True)
            os.unlink(self.no_cache)
        for folder in (jobs, self.home):
            try:
                os.rmdir(folder)
            except OSError:  # other jobs, engines
                break


def asked(python: str) -> tuple[tuple[int, int], str]:
    """Return version and tag of an interpreter; an early version where there is none."""
    try:
        done = subprocess.run(
            [python, "-c", ASK],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
        version, tag = json.loads(done.stdout)
        return tuple(version), tag
    except (OSError, ValueError, subprocess.SubprocessError):
        return (0, 0), ""


def unpack(wheel: str, site: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            top, _, rest = info.filename.partition("/")
            # beside the package itself: scripts and headers, which dyno doesn't call
            if top.endswith(".data"):
                kind, _, name = rest.partition("/")
                if kind not in ("purelib", "platlib"):
                    continue
                info.filename = name
            if info.filename and not info.is_dir():
                archive.extract(info, site)


def digest(path: str) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            total.update(part)
    return total.hexdigest()


def kept_back(folder: str, name: str, rule: dict[str, str]) -> bool:
    """Return whether a file is kept back. `rule`: pattern → '' (always), +NAME (until NAME is beside it), -NAME (as
    long as NAME is)."""
    until = next(
        (until for pattern, until in rule.items() if fnmatch.fnmatchcase(name, pattern)),
        None,
    )
    if not until:
        return until == ""
    return os.path.exists(os.path.join(folder, until[1:])) == (until[0] == "-")


def size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def existing(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def send_signal(process: int, signal_number: int) -> None:
    """Send a signal to a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal_number)


def write(path: str, text: str) -> None:
    with open(path + ".partial", "w") as file:
        file.write(text)
    os.replace(path + ".partial", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
