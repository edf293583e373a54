"""A study's trials on another machine. The same dyno runs there, detached, and each finished run folder comes home.

The connection may end at any moment: the other dyno goes on, and this one finds it again by the register. Nothing that
comes home is executed, or written outside the run folders of trials that were asked for.
"""

import contextlib
import datetime
import hashlib
import io
import os
import re
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from typing import IO, Annotated, Any

import msgspec

from dyno import files, secrets
from dyno.archive import UnsafeMember, plain_files
from dyno.engines.environment import home
from dyno.engines.kinds import starts
from dyno.errors import RigError, StoreError, Unreachable
from dyno.facts.elsewhere import RigEntry, RigPython
from dyno.facts.study import PlannedTrial, Study
from dyno.numbers import human_bytes, many
from dyno.outside import OutsideName
from dyno.probe.model import looks_local
from dyno.remote import wheel
from dyno.remote.dstack import DstackRig, configurations, run_name
from dyno.remote.engine import FarMachine, Published
from dyno.remote.ssh import SshMachine, events
from dyno.saying import Say
from dyno.scratch import scratch, sweep
from dyno.store.run import PASSING, RAW, Run, make_folder, private, read
from dyno.store.study import Failure, StudyFolder, trial_name

PATIENCE_S = 600.0  # without a connection
# bytes, files and folders in a run folder that comes home
_LARGEST, _FILES, _DEEPEST = 64 << 30, 100_000, 8
_LIST = 64 << 20  # bytes of the list of its files
_SPARE = 256 << 20  # bytes that stay free on this disk
_ARRIVALS = 4  # times that one run folder may come home damaged
_STARTS = 10  # of engines for each trial, whose logs come home
# by which dyno there knows what is done, and by which version
_FACTS = ("trial.json", "engine.json", "summary.json")


class Order(msgspec.Struct, frozen=True):
    """What dyno there reads on its stdin: nothing else has a study's secrets."""

    study: Study
    text: str  # of its file, without secrets
    environ: dict[str, str]  # keys that its trials name


class Register:
    """Lists what dyno has running on other machines: a file for each, outside the runs, so that nothing is
    forgotten."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entries(self) -> list[RigEntry]:
        """Return all, the oldest first. A file that can't be read is an error: a machine may be paid for."""
        return sorted(
            map(_read_entry, self.folder.glob("*.json")), key=lambda entry: entry.since
        )

    def find(self, folder: Path, rig: str) -> RigEntry | None:
        """Return what runs there for a study's folder on this machine."""
        wanted = (str(folder.absolute()), rig)
        return next(
            (entry for entry in self.entries() if (entry.folder, entry.rig) == wanted), None
        )

    def write(self, entry: RigEntry) -> None:
        """Write it whole or not at all, and to the disk: before anything starts there."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self.folder / f"{entry.id}.partial"
        try:
            with open(
                partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)
            ) as file:
                file.write(msgspec.json.format(msgspec.json.encode(entry)))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path(entry.id))
        except OSError as e:
            raise StoreError(
                f"{partial} can't be written: {e.strerror}. Nothing was started."
            ) from None

    def remove(self, entry: RigEntry) -> None:
        self._path(entry.id).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def new_id() -> str:
    """Return the id of an entry. Two machines may use the same rig: ids don't meet."""
    return token_hex(6)


def _read_entry(path: Path) -> RigEntry:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RigEntry)
    except (OSError, msgspec.MsgspecError) as e:
        raise StoreError(
            f"{path} can't be read: {e}. It lists something that runs on another machine. Check there, then delete it."
        ) from None


def register() -> Register:
    return Register(home() / "rigs")


# a study and its text without secrets, as they are stored
Public = Callable[[Study, str], tuple[Study, str]]


class Elsewhere:
    """One rig of a study, as a machine over SSH."""

    def __init__(
        self,
        study: Study,
        text: str,
        folder: StudyFolder,
        rig: str,
        say: Say,
        public: Public,
    ) -> None:
        self.study, self.text, self.folder, self.rig, self.say = (
            study,
            text,
            folder,
            rig,
            say,
        )
        self.public = public
        self.register = register()
        self.begun = False  # something runs there
        self._rented: DstackRig | None = None
        # run folder → times that it didn't arrive whole
        self._damaged: Counter[str] = Counter()
        # bytes of its log that were shown; -1: none, and only the last ones are
        self._offset = -1

    def conduct(self, wanted: Sequence[PlannedTrial], words: Sequence[str]) -> None:
        """Run those that have no result yet, and fetch all results. `words`: flags for dyno there.

        KeyboardInterrupt stops it there, fetches what is finished and cleans up.
        """
        sweep(self.folder.path, ".coming-")
        if entry := self._earlier():
            self.say(f"resuming: started at {entry.since}")
            # Without a way there dstack had not provided the machine yet, and nothing was started on it.
            if self._job(entry, wanted, begin=None if entry.ssh else words):
                return
        if any(p.place.id not in self.folder.done() for p in wanted):
            self._job(self.new_entry(), wanted, begin=words)

    def from_here(
        self, wanted: Sequence[PlannedTrial], measure: Callable[[FarMachine], None]
    ) -> None:
        """Let `measure` run the trials from here, with engines on that machine."""
        earlier = self._earlier()
        entry = earlier or self.new_entry()
        with self.connected(entry, new=earlier is None) as machine:
            install(machine, self.say)
            measure(FarMachine(machine, environ(wanted), _published(self._rented)))

    def _earlier(self) -> RigEntry | None:
        """Return the job of a dyno that was killed, or lost the connection."""
        entry = self.register.find(self.folder.path, self.rig)
        if entry and _alive(entry.process):
            raise RigError(
                f"Another dyno (process {entry.process}) runs {entry.study} on {self.rig}. Wait for it."
            )
        return entry

    def new_entry(self) -> RigEntry:
        """Describe a job that is to be started."""
        now, rig, name = (
            datetime.datetime.now(datetime.UTC),
            self.study.rigs[self.rig],
            new_id(),
        )
        return RigEntry(
            id=name,
            rig=self.rig,
            study=self.study.name,
            folder=str(self.folder.path.absolute()),
            since=now.isoformat(timespec="seconds"),
            ssh=rig.ssh,
            dstack=rig.dstack,
            dstack_run=run_name(self.rig, name) if rig.dstack else None,
        )

    def _job(
        self, entry: RigEntry, wanted: Sequence[PlannedTrial], begin: Sequence[str] | None
    ) -> bool:
        """Follow a job to its end, and clean up. `begin`: flags of one to be started. False: it was cut there."""
        with self.connected(entry, new=begin is not None) as machine:
            if begin is not None:
                self._start(machine, wanted, begin)
            self.begun = True
            try:
                state = self._follow(machine, wanted)
            except KeyboardInterrupt:
                self.say("stopping it there")
                machine.call("stop")
                self._follow(machine, wanted)
                raise
        if begin is not None and state != "0":
            how = _end_words(state)
            raise RigError(
                f"dyno on {self.rig} {how}. Finished trials are here. Repeat the command to resume."
            )
        return state == "0"

    @contextlib.contextmanager
    def connected(self, entry: RigEntry, new: bool = True) -> Iterator[SshMachine]:
        """Register a machine and connect to it; dstack provides one first. On leaving, it is cleaned up or given back.

        What can't be reached, or has results that can't be stored here, stays in the register.
        """
        if new and entry.ssh:
            with closing(_machine(entry)) as machine:
                # a host that refuses us gets no entry: nothing was started there
                machine.call("status")
        # raises where dstack is missing or not configured: before there is an entry
        _rented(entry, self.register)
        entry = msgspec.structs.replace(entry, process=os.getpid())
        self.register.write(entry)
        try:
            entry = self._provided(entry)
            with closing(_machine(entry)) as machine:
                yield machine
                self._clean(entry, machine)
        except KeyboardInterrupt:
            self._clean_anyway(entry)
            raise
        except RigError as e:
            if not self.begun and (entry.dstack or not isinstance(e, Unreachable)):
                self._clean_anyway(entry)
                raise
            end = f"The same command resumes; `dyno rigs down {self.rig}` stops what runs there."
            raise type(e)(f"{e} {end}") from None

    def _clean_anyway(self, entry: RigEntry) -> None:
        try:
            with (
                closing(_machine(entry))
                if entry.ssh
                else contextlib.nullcontext() as machine
            ):
                self._clean(entry, machine)
        except RigError as e:
            self.say(f"can't clean up: {e} `dyno rigs down {self.rig}` tries again.")

    def _provided(self, entry: RigEntry) -> RigEntry:
        """Return the entry with a machine of dstack's, which is submitted where it isn't yet."""
        if (rented := _rented(entry, self.register)) is None:
            return entry
        self._rented, configs = (
            rented,
            configurations(rented.name, self.study.rigs[self.rig]),
        )
        entry = msgspec.structs.replace(entry, ssh=rented.up(configs, self.say))
        self.register.write(entry)
        return entry

    def _clean(self, entry: RigEntry, machine: SshMachine | None) -> None:
        if rented := _rented(entry, self.register):
            rented.down(self.say)  # with everything on it
        elif machine:
            machine.call("remove")
        self.register.remove(entry)

    def down(self, entry: RigEntry) -> None:
        """Stop what runs there, fetch what is finished, and clean up."""
        if entry.ssh is None:  # dstack had not provided it yet
            self._clean(entry, None)
            return
        with closing(_machine(entry)) as machine:
            try:
                machine.call("stop")
                if mine := [p for p in self.study.trials if p.place.rig == self.rig]:
                    self._follow(machine, mine)
            except Unreachable as e:
                if entry.dstack is None:
                    raise
                self.say(f"{e} Nothing more comes home from it.")
            self._clean(entry, machine)

    # ---- start ----

    def _start(
        self, machine: SshMachine, wanted: Sequence[PlannedTrial], words: Sequence[str]
    ) -> None:
        trials, data = self._localized()
        rig = msgspec.structs.replace(
            self.study.rigs[self.rig], ssh=None, dstack=None, client="rig"
        )
        study = msgspec.structs.replace(self.study, trials=trials, rigs={self.rig: rig})
        public, text = self.public(study, self.text)
        install(machine, self.say, [*data, *self._facts(wanted, public)])
        order = Order(study, text, environ(trials))
        command = ("run", "-", "--rig", self.rig, "--runs", "runs", "--plain", *words)
        machine.call(
            "start", *command, send=lambda stdin: _write(stdin, msgspec.json.encode(order))
        )
        self.say("started")

    def _localized(self) -> tuple[list[PlannedTrial], list[tuple[str, Path]]]:
        """Return the rig's trials with paths as they are there, and the files to send: data sets and tokenizers."""
        files: dict[str, Path] = {}

        def shipped(path: str | None) -> str | None:
            if (
                path is None
                or path.startswith("hub:")
                or not Path(path).expanduser().exists()
            ):
                return path
            source = Path(path).expanduser()
            inner = f"data/{hashlib.sha256(path.encode()).hexdigest()[:8]}/{source.name}"
            for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
                if file.is_file():
                    name = (
                        f"{inner}/{file.relative_to(source).as_posix()}"
                        if source.is_dir()
                        else inner
                    )
                    files[name] = file
            return inner

        def moved(planned: PlannedTrial) -> PlannedTrial:
            trial = planned.trial
            workload = msgspec.structs.replace(
                trial.workload, path=shipped(trial.workload.path)
            )
            tokenizer = (
                shipped(trial.tokenizer)
                if trial.tokenizer and looks_local(trial.tokenizer)
                else trial.tokenizer
            )
            trial = msgspec.structs.replace(trial, workload=workload, tokenizer=tokenizer)
            return msgspec.structs.replace(planned, trial=trial)

        return [moved(p) for p in self.study.trials if p.place.rig == self.rig], list(
            files.items()
        )

    def _facts(
        self, wanted: Sequence[PlannedTrial], public: Study
    ) -> Iterator[tuple[str, Path | bytes]]:
        """Files of finished trials: dyno there doesn't repeat these, and stops where an engine's version changed."""
        folder, whole = (
            f"runs/{self.study.name}",
            [run for p in wanted if (run := self.folder.run(p.place)).whole],
        )
        if whole:
            yield f"{folder}/study.json", msgspec.json.encode(public)
        for run in whole:
            for path in (run.path / name for name in _FACTS):
                if path.exists():
                    yield f"{folder}/trials/{run.path.name}/{path.name}", path

    # ---- follow ----

    def _follow(self, machine: SshMachine, wanted: Sequence[PlannedTrial]) -> str:
        """Show progress and take results until it ends there; return how. A lost connection is opened again."""
        names = {trial_name(p.place): p for p in wanted}
        deadline, pause_s = 0.0, 1.0
        while True:
            try:
                with machine.started("follow", str(self._offset)) as process:
                    for event in events(process):
                        if self._heard(event) or self._took(machine, event, names):
                            deadline, pause_s = 0.0, 1.0
                        if "ended" in event:
                            self._skip(event.get("skipped"), names)
                            self._take_logs(
                                machine,
                                strings(event.get("engines"))[: _STARTS * len(names)],
                            )
                            return str(event["ended"])
                raise Unreachable(f"{machine.spec.host} closed the connection.")
            except Unreachable as e:
                if self._rented and (why := self._rented.end()):
                    self.begun = False  # so it is cleaned up
                    raise RigError(why) from None
                deadline = deadline or time.monotonic() + PATIENCE_S
                if time.monotonic() > deadline:
                    raise
                self.say(f"{e} The study continues there. Connecting again …")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 30.0)

    def _heard(self, event: dict[str, Any]) -> bool:
        """Show lines of its log. True: there was something new."""
        for text in strings(event.get("log")):
            self.say(secrets.clean(" ".join(text.splitlines())))
        offset = event.get("offset")
        if type(offset) is not int or offset <= self._offset:
            return False
        self._offset = offset
        return True

    def _took(
        self, machine: SshMachine, event: dict[str, Any], names: dict[str, PlannedTrial]
    ) -> bool:
        """Bring a run folder home, unless it is here, or of a trial that wasn't asked for. True: it is new here."""
        inner = str(event.get("finished", ""))
        planned = names.get(inner.rpartition("/")[2])
        if planned is None or self.folder.run(planned.place).whole:
            return False
        label = planned.place.label
        try:
            with self._fetched(machine, inner, label) as path:
                _check_run(path, planned, self.rig)
                self.folder.take(planned.place, path)
        except Unreachable as e:
            self._damaged[inner] += 1
            if self._damaged[inner] < _ARRIVALS:
                raise
            raise RigError(
                f"{label} came home damaged {_ARRIVALS} times, last: {e}"
            ) from None
        return True

    def _take_logs(self, machine: SshMachine, inner: Sequence[str]) -> None:
        """Fetch the folders of the engines' starts, with their whole logs."""
        for name in inner:
            start = re.fullmatch(r"runs/[^/]+/engines/(\d{3,}-[\w.-]{1,100})", name)
            if start is None:
                continue
            goal = OutsideName.single(f"{self.rig}-{machine.job}-{start[1]}").below(
                self.folder.engines_path
            )
            if not goal.exists():
                make_folder(goal.parent)
                with self._fetched(machine, name, start[1]) as path:
                    path.rename(goal)

    @contextlib.contextmanager
    def _fetched(self, machine: SshMachine, inner: str, what: str) -> Iterator[Path]:
        """Fetch a folder into a temporary place of the study's."""
        rule = msgspec.json.encode({**dict.fromkeys(PASSING, ""), **RAW}).decode()
        with (
            machine.started("pack", inner, rule) as process,
            scratch(".coming-", self.folder.path) as temporary,
        ):
            assert process.stdout and process.stdin
            process.stdin.close()
            unpack(process.stdout, temporary / "run", what)
            yield temporary / "run"

    def _skip(self, skipped: Any, names: dict[str, PlannedTrial]) -> None:
        ids = {p.place.id for p in names.values()}
        more = (
            {k: str(v)[:1000] for k, v in skipped.items() if k in ids}
            if isinstance(skipped, dict)
            else {}
        )
        if more:
            self.folder.write_skipped({**self.folder.skipped(), **more})


def _machine(entry: RigEntry) -> SshMachine:
    assert entry.ssh is not None
    return SshMachine(entry.ssh, entry.id)


def _rented(entry: RigEntry, register: Register) -> DstackRig | None:
    if entry.dstack is None or entry.dstack_run is None:
        return None
    return DstackRig(entry.dstack_run, entry.dstack, register.folder)


def _published(rented: DstackRig | None) -> Published | None:
    """Return the address of dstack's service."""
    if rented is None:
        return None
    url, token = rented.service()
    return Published(rented.spec.service_port, url, {"Authorization": f"Bearer {token}"})


def take_down(entry: RigEntry, say: Say) -> None:
    """Stop what an entry of the register runs, and clean up. Results go to its study's folder, if that is here."""
    folder = StudyFolder(Path(entry.folder))
    study = folder.study() if folder.exists else Study(entry.study, [])
    Elsewhere(study, "", folder, entry.rig, say, _nothing_is_started).down(entry)


def _nothing_is_started(study: Study, text: str) -> tuple[Study, str]:
    raise AssertionError("Taking a rig down starts nothing.")


def state(entry: RigEntry) -> str:
    """Describe in a few words what an entry does now."""
    try:
        if rented := _rented(entry, register()):
            return rented.state()
        with closing(_machine(entry)) as machine:
            answer = str(machine.ask("status").get("state"))
    except RigError as e:
        return f"unknown: {e}"
    words = {
        "running": "running",
        "absent": "not there any more",
        "ready": "not started",
        "lost": "killed there",
    }
    return words.get(answer, f"ended with code {answer[:20]}")


@contextlib.contextmanager
def closing(machine: SshMachine) -> Iterator[SshMachine]:
    try:
        yield machine
    finally:
        machine.close()


def install(
    machine: SshMachine, say: Say, files: Sequence[tuple[str, Path | bytes]] = ()
) -> None:
    """Send dyno, its dependencies and these files; nothing is fetched from elsewhere."""
    like = f"{sys.version_info[0]}.{sys.version_info[1]}"
    answer = machine.ask("describe", machine.spec.python or "", like)
    try:
        remote = msgspec.convert(answer, type=RigPython, strict=False)
    except msgspec.ValidationError as e:
        raise RigError(
            f"{machine.spec.host} describes itself in a way that dyno doesn't understand: {e}."
        ) from None
    packages = wheel.wheels(remote, home() / "rigs" / "wheels", say)
    sent: list[tuple[str, Path | bytes]] = [
        *((f"wheels/{path.name}", path) for path in packages),
        *files,
    ]
    total = sum(
        len(data) if isinstance(data, bytes) else data.stat().st_size for _, data in sent
    )
    free = answer.get("free_bytes")
    if isinstance(free, int) and free < 4 * total:  # unpacked they are three times as large
        raise RigError(
            f"{machine.spec.host} has {human_bytes(free)} free, but dyno needs {human_bytes(4 * total)}."
        )
    say(f"sending dyno and {many(len(sent) - 1, 'file')}, {human_bytes(total)}")

    def packed(stdin: IO[bytes]) -> None:
        with tarfile.open(fileobj=stdin, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, data in sent:
                info = tarfile.TarInfo(name)
                with (
                    io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as file
                ):
                    info.size = file.seek(0, os.SEEK_END)
                    file.seek(0)
                    tar.addfile(info, file)

    machine.call("install", remote.python, send=packed)


def _write(stdin: IO[bytes], data: bytes) -> None:
    stdin.write(data)


def _end_words(state: str) -> str:
    """Say how a job ended by its exit code, or by the signal that ended it (-9)."""
    if state == "lost" or state.startswith("-"):
        return "was killed"
    return "was interrupted" if state == "130" else "failed; its message is above"


def environ(trials: Sequence[PlannedTrial]) -> dict[str, str]:
    """Return the keys that these trials need: of running servers, and of the Hub where a model comes from there."""
    names: set[str] = set()
    for planned in trials:
        engine = planned.trial.engine
        if planned.api_key_env:
            names.add(planned.api_key_env)
        elif planned.api_key_env is None and not starts(engine):
            names.add("OPENAI_API_KEY")
        if engine and engine.model and not looks_local(engine.model):
            names.add("HF_TOKEN")
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def strings(value: Any) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []


def _alive(process: int) -> bool:
    """Return whether another dyno of this machine still watches an entry."""
    if process in (0, os.getpid()):
        return False
    try:
        return b"dyno" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


_Length = Annotated[int, msgspec.Meta(ge=0)]


def _check_run(path: Path, planned: PlannedTrial, rig: str) -> None:
    """Refuse a folder that isn't a run of this trial, before it takes the place of one."""
    run, label = Run(path), planned.place.label
    try:
        if run.whole:
            run.result()
            place = run.manifest().place
            if place is None or place.id != planned.place.id:
                raise RigError(
                    f"{rig} sent a run of another trial for {label}. It was refused."
                )
        elif (path / "failed.json").is_file():
            read(path / "failed.json", Failure)
        else:
            raise RigError(
                f"{rig} sent a folder for {label} that is not a run. It was refused."
            )
    except StoreError as e:
        raise RigError(
            f"{rig} sent a result for {label} that can't be read, and it was refused: {e}"
        ) from None


def _listed(stream: IO[bytes], folder: Path, what: str) -> dict[str, tuple[int, str]]:
    """Read the list of files that come, and refuse one that this disk can't take."""
    size = re.fullmatch(rb"(\d{1,12})\n", stream.readline(20))
    if size is None or int(size[1]) > _LIST:
        raise ValueError("its list of files has no size, or is too large")
    listed = msgspec.json.decode(
        stream.read(int(size[1])), type=dict[str, tuple[_Length, str]]
    )
    total = sum(length for length, _ in listed.values())
    if len(listed) > _FILES or total > _LARGEST:
        raise RigError(
            f"{what}: the run folder has {many(len(listed), 'file')}, more than dyno takes."
        )
    free = files.free_bytes(folder)
    if total + _SPARE > free:
        raise StoreError(
            f"{what} needs {human_bytes(total)}, but the disk of {folder} has {human_bytes(free)} free."
        )
    return listed


def unpack(stream: IO[bytes], folder: Path, what: str) -> None:
    """Write the files that a stream lists with their checksums, and nothing else."""
    members = 0

    def each() -> None:
        nonlocal members
        members += 1
        if members > 2 * _FILES:
            raise ValueError("it has more members than files")

    try:
        listed = _listed(stream, folder, what)
        make_folder(folder)
        for name, length, source in plain_files(stream, _DEEPEST, each):
            expected = listed.pop(str(name), None)
            if expected is None or expected[0] != length:
                raise RigError(
                    f"{what}: the other machine sent {str(name)!r}, which it didn't list."
                )
            path = name.below(folder)
            make_folder(path.parent)
            total = hashlib.sha256()
            with open(path, "xb", opener=private) as out:
                while data := source.read(1 << 20):
                    total.update(data)
                    out.write(data)
            if total.hexdigest() != expected[1]:
                raise RigError(
                    f"{what}: {str(name)!r} was damaged on its way home. Repeat the command."
                )
    except UnsafeMember as e:
        raise RigError(
            f"{what}: the other machine sent {str(e)!r}, a link or an unsafe path. It was refused."
        ) from None
    except (tarfile.TarError, ValueError, msgspec.MsgspecError, EOFError) as e:
        raise Unreachable(
            f"{what}: the run folder ended early or is damaged: {e}."
        ) from None
    except OSError as e:
        raise StoreError(f"{folder} can't be written: {e.strerror}.") from None
    if listed:
        raise Unreachable(f"{what}: {many(len(listed), 'file')} didn't arrive.")
