"""Plug-ins: packages with entry points of the group `dyno`, for data sets, protocols, engines, checks, sinks, charts.

    [project.entry-points.dyno]
    "dataset.poems" = "dyno_poems:POEMS"

Names are known from the packages' files alone. A plug-in is imported when what it adds is used: what it prints is
dropped, and a failure is kept as a problem that names it. DYNO_PLUGINS=off turns all off, DYNO_PLUGINS=a,b all others.
"""

import contextlib
import functools
import importlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from dyno import secrets
from dyno.errors import UsageError, describe_error
from dyno.visible import one_line

T = TypeVar("T")
GROUP = "dyno"
SWITCH = "DYNO_PLUGINS"
Kind = Literal["dataset", "protocol", "engine", "check", "sink", "chart"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LIMIT_S = 10.0  # to import one, or to run a check or a chart of it
SLOW_S = 1.0
_LONGEST = 200  # characters of a problem
_SECTION = re.compile(r"^\[dyno\]\s*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


class Addition(NamedTuple):
    """Something that a plug-in adds."""

    kind: Kind
    name: str
    value: str  # module:object
    plugin: str  # the package
    version: str

    @property
    def words(self) -> str:
        return f"The {self.kind} {self.name} of the plug-in {self.plugin} {self.version}"


class PluginTooSlow(Exception):
    """A plug-in took longer than its limit."""


_problems: dict[str, None] = {}  # sentences


def take_problems() -> list[str]:
    """Return what went wrong since they were taken last."""
    taken = list(_problems)
    _problems.clear()
    return taken


def report(added: Addition, why: str) -> str:
    """Keep a problem of a plug-in, and return it as a sentence."""
    words = secrets.clean(one_line(why))
    words = words if len(words) <= _LONGEST else f"{words[:_LONGEST]} …"
    sentence = f"{added.words} {words.rstrip('.')}."
    _problems[sentence] = None
    return sentence


# ---- which there are ----


def additions(kind: Kind | None = None) -> list[Addition]:
    """Return what installed plug-ins add, or those of one kind, without importing anything of them."""
    every = _installed(os.environ.get(SWITCH, ""), tuple(sys.path))
    return [one for one in every if kind in (None, one.kind)]


def active() -> dict[str, str]:
    """Return the plug-ins that are switched on: name → version."""
    return {one.plugin: one.version for one in additions()}


@functools.cache
def _installed(switch: str, path: tuple[str, ...]) -> tuple[Addition, ...]:
    if switch.strip().lower() == "off":
        return ()
    wanted = {_plain(name) for name in switch.split(",") if name.strip()}
    each = (one for folder in dict.fromkeys(path) for one in _in_folder(folder))
    chosen = [one for one in each if not wanted or _plain(one.plugin) in wanted]
    first: dict[tuple[str, str], Addition] = {}
    for one in chosen:
        first.setdefault((one.kind, one.name), one)
    return tuple(first.values())


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _in_folder(folder: str) -> Iterator[Addition]:
    """Yield what the packages in a folder of sys.path add. Only packages with entry points of dyno's are read further:
    importlib.metadata takes ten times as long for all of them."""
    try:
        entries = [
            e
            for e in os.scandir(folder or ".")
            if e.name.endswith((".dist-info", ".egg-info"))
        ]
    except OSError:
        return
    for entry in sorted(entries, key=lambda e: e.name):
        try:
            text = Path(entry.path, "entry_points.txt").read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if _SECTION.search(text):
            yield from _of_package(Path(entry.path))


def _of_package(path: Path) -> Iterator[Addition]:
    from importlib.metadata import PathDistribution

    package = PathDistribution(path)
    try:
        name, version = package.metadata["Name"], package.version
        points = [point for point in package.entry_points if point.group == GROUP]
    except Exception as e:  # a damaged package is no reason to fail
        _problems[f"The plug-in {path.name} can't be read: {describe_error(e)}."] = None
        return
    for point in points:
        kind, _, own = point.name.partition(".")
        if kind in KINDS and own:
            yield Addition(kind, own, point.value, name, version)
        else:
            _problems[
                f"The plug-in {name} {version} adds {point.name!r}, which dyno doesn't know. "
                f"Write KIND.NAME, with KIND one of {', '.join(KINDS)}."
            ] = None


# ---- one of them ----


def load(added: Addition) -> Any:
    """Import what a plug-in adds. A plug-in that fails is an error that names it."""
    value, why = _loaded(added)
    if why:
        raise UsageError(f"{why} {SWITCH}=off turns all plug-ins off.")
    return value


def problem_of(added: Addition) -> str:
    """Load what a plug-in adds, and say why it can't be used; '': it can."""
    return _loaded(added)[1]


@functools.cache
def _loaded(added: Addition) -> tuple[Any, str]:
    """Return the object, and why there is none."""
    module, _, name = added.value.partition(":")

    def imported() -> Any:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
        return value

    value, why = guarded(added, imported, "can't be loaded")
    if not why and (wrong := _wrong(added, value)):
        return None, report(added, f"can't be used: {wrong}")
    return value, why


# Kind → what such an object has.
_NEEDED: dict[Kind, tuple[str, ...]] = {
    "dataset": ("name", "about", "make", "traits", "spec"),
    "protocol": ("path", "body", "read", "read_plain", "fields"),
    "engine": ("name", "title", "argv", "starts", "backend"),
    "check": ("about", "run"),
    "sink": ("__call__",),
    "chart": ("__call__",),
}


def _wrong(added: Addition, value: Any) -> str:
    """Say why an object is not what its entry point says; '': it is."""
    lacking = [name for name in _NEEDED[added.kind] if not hasattr(value, name)]
    if lacking:
        return f"{added.value} has no {', '.join(lacking)}"
    named = getattr(value, "name", added.name)
    if added.kind in ("dataset", "engine") and named != added.name:
        return f"{added.value} is named {named}"
    return ""


def guarded(added: Addition, act: Callable[[], T], fails: str) -> tuple[T | None, str]:
    """Return what a plug-in's function returns, and a problem if it fails, takes too long or ends the process. What it
    prints is dropped."""
    begun = time.monotonic()
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            _limited(),
        ):
            value = act()
    except KeyboardInterrupt:
        raise
    except PluginTooSlow:
        return None, report(added, f"{fails}: it took over {LIMIT_S:g} s")
    except (
        BaseException
    ) as e:  # also SystemExit, and errors of libraries in other languages
        return None, report(added, f"{fails} ({type(e).__name__}: {describe_error(e)})")
    took_s = time.monotonic() - begun
    if took_s > SLOW_S:
        report(added, f"is slow: it took {took_s:.1f} s")
    return value, ""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise PluginTooSlow in what takes longer than the limit: on the main thread, where no other alarm is set."""
    if threading.current_thread() is not threading.main_thread() or any(
        signal.getitimer(signal.ITIMER_REAL)
    ):
        yield
        return

    def stop(*_: object) -> None:
        raise PluginTooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- registries ----


class Registry(Mapping[str, T]):
    """dyno's own objects by name, and those of plug-ins. Iterating gives all names; `items` and `values` only what is
    loaded, so that a help text imports no plug-in."""

    def __init__(self, kind: Kind, own: dict[str, T]) -> None:
        self._kind, self.own = kind, own
        self._used: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self.own:
            return self.own[name]
        if name not in self._used:
            self._used[name] = load(self._added[name])
        return self._used[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from self._added

    def __len__(self) -> int:
        return len(self.own) + len(self._added)

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self._added

    def items(self) -> ItemsView[str, T]:
        return {**self.own, **self._used}.items()

    def values(self) -> ValuesView[T]:
        return {**self.own, **self._used}.values()

    @property
    def _added(self) -> dict[str, Addition]:
        added = {one.name: one for one in additions(self._kind)}
        for name in added.keys() & set(self.own):
            report(added.pop(name), "has a name that dyno itself uses. Rename it")
        return added


class Derived(Mapping[str, T]):
    """A property of everything in a registry, by name. It is asked for when it is used."""

    def __init__(self, registry: Mapping[str, Any], get: Callable[[Any], T]) -> None:
        self._registry, self._get = registry, get

    def __getitem__(self, name: str) -> T:
        return self._get(self._registry[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry)

    def __len__(self) -> int:
        return len(self._registry)

    def __contains__(self, name: object) -> bool:
        return name in self._registry


# ---- sinks: each gets a run's folder, in a process of its own ----

SINK_S = 60.0


def deliver(run: Path) -> None:
    """Give a measured run to all sinks. None of them can do anything to dyno's own process, or hold it up for long."""
    import subprocess

    for added in additions("sink"):
        command = [sys.executable, "-m", "dyno.plugins", added.name, str(run)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=SINK_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            report(added, f"was stopped after {SINK_S:g} s")
            continue
        if done.returncode:
            last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            report(added, f"failed ({''.join(last) or done.returncode})")


def _sink(name: str, run: str) -> None:
    """Be the process of a sink."""
    [added] = [one for one in additions("sink") if one.name == name]
    module, _, function = added.value.partition(":")
    call = getattr(importlib.import_module(module), function)
    call(Path(run))


if __name__ == "__main__":
    _sink(*sys.argv[1:])
