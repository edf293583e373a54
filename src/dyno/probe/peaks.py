"""Peak bandwidth and arithmetic of accelerators or the processor: by data sheet, else measured once and cached."""

import contextlib
import hashlib
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from dyno import files
from dyno.facts.engine import EngineSpec
from dyno.facts.rig import Accelerator, Peaks, Rig
from dyno.numbers import human_bytes, percent
from dyno.probe import accelerator_test, datasheets, host, sysfs
from dyno.probe.software import ask, last_json

T = TypeVar("T")
UNDISTURBED = 0.9  # of the time that the test wanted: below, its figures aren't kept
_AGAIN_S = 600.0  # then a disturbed test is repeated; sooner, each start of an engine would wait for one
_TEST_S = 60.0
_TEST_ACCELERATOR_S = 180.0  # torch from a cold disk takes its time
# How much wider than fp32 a processor's instructions for a precision are.
_TIMES_FP32 = {
    "fp16": {"any": 1, "asimdhp": 2, "avx512_fp16": 2, "amx_fp16": 16, "sme": 16},
    "bf16": {"any": 1, "bf16": 4, "svebf16": 4, "avx512_bf16": 2, "amx_bf16": 16, "sme": 16},
    # Without instructions for it, 8-bit products are summed in 16 bits.
    "int8": {"any": 2, "asimddp": 4, "i8mm": 8, "svei8mm": 8, "avx_vnni": 4, "avx512_vnni": 4, "amx_int8": 32,
             "sme": 32},
}  # fmt: skip
# AMD's compute partitions; CPX: as many as there are dies
_PARTS = {"DPX": 2, "TPX": 3, "QPX": 4}


class KnownPeaks(NamedTuple):
    peaks: Peaks | None
    unknown: str = ""  # why not


class Tested(msgspec.Struct, frozen=True):
    """The output of the processor's test."""

    bandwidth_by_size: dict[int, float]
    fp32: float
    given: float  # the share of the processor's time that it got


class TestedAccelerator(msgspec.Struct, frozen=True):
    """The output of an accelerator's test."""

    bandwidth: float
    flops: dict[str, float]


class TestedClient(msgspec.Struct, frozen=True):
    """The highest load up to which the timings of one client process held, by `dyno doctor`."""

    streams: int
    chunks_per_s: float


class _Cache:
    """Earlier tests by key, in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = (
            path
            or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            / "dyno"
            / "peaks.json"
        )
        try:
            self._values = msgspec.json.decode(
                files.read(self._path, files.TEXT), type=dict[str, Any]
            )
        except (OSError, *files.BROKEN):
            self._values = {}

    def get(self, key: str, kind: type[T]) -> T | None:
        try:
            # sizes are keys, which JSON has as text
            return msgspec.convert(self._values[key], kind, strict=False)
        except (KeyError, msgspec.MsgspecError):  # none yet, or another version's
            return None

    def put(self, key: str, value: Any) -> None:
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        with contextlib.suppress(OSError):  # then it is measured again next time
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(
                msgspec.json.format(msgspec.json.encode(self._values | {key: value}))
            )
            part.replace(self._path)


def of_engine(
    rig: Rig,
    devices: Sequence[int],
    spec: EngineSpec,
    *,
    spreads: bool = False,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> KnownPeaks:
    """Return the peaks of all copies together. `devices`: those it may use. `spreads`: it uses all of them, whatever
    the setting says. `python`: an interpreter with torch, to measure an accelerator without a data sheet; `env` makes
    those visible that are used.

    A test of an accelerator or the processor takes seconds, once: call it before a load, not under it.
    """
    if not devices:
        return _without_devices(rig, spec, cache)
    indices = list(devices) if spreads else list(devices)[: spec.world * spec.replicas]
    used = [a for a in rig.accelerators if a.index in indices]
    if len(used) < len(indices):
        return KnownPeaks(
            None, f"accelerators {', '.join(map(str, indices))} were not detected"
        )
    usable = [a for a in rig.accelerators if a.index in devices]
    if spec.devices is None and not spreads and _differ(usable):
        # CUDA takes the fastest first.
        return KnownPeaks(
            None, "the setting doesn't select one of the different accelerators"
        )
    by_sheet = of_accelerators(used)
    if by_sheet.peaks is None and python is not None and not _differ(used):
        return _by_test(used, python, env or {}, _Cache(cache), by_sheet.unknown)
    return by_sheet


def _without_devices(rig: Rig, spec: EngineSpec, cache: Path | None) -> KnownPeaks:
    unseen = _unlisted(rig) if spec.devices is None else None
    if unseen:
        return KnownPeaks(
            None,
            f"{unseen} whose peaks are unknown; --devices without a number selects the CPU",
        )
    return of_processor(rig, cache=cache)


def _differ(accelerators: Sequence[Accelerator]) -> bool:
    return len({a.name for a in accelerators}) > 1


def _unlisted(rig: Rig, devices: Path = Path("/dev/dri")) -> str | None:
    """Describe a GPU that the kernel has and no driver that dyno asks: Intel's, or one used by Vulkan alone."""
    if rig.accelerators or datasheets.of_apple(rig.cpu):
        return None
    if rig.cpu.startswith("Apple"):
        return f"{rig.cpu} has a GPU"
    rendering = any(device.name.startswith("renderD") for device in sysfs.entries(devices))
    return "the machine has an unlisted GPU" if rendering else None


def _by_test(
    used: Sequence[Accelerator],
    python: str,
    env: Mapping[str, str],
    cache: _Cache,
    why: str,
) -> KnownPeaks:
    """Measure the first one with the engine's torch, and multiply."""
    first = used[0]
    key = f"{first.name}, {first.memory_bytes} bytes, {first.partition or 'whole'}, driver {first.driver}"
    tested = cache.get(key, TestedAccelerator)
    if tested is None:
        if any(a.processes for a in used):
            return KnownPeaks(
                None, f"{why}, and it can't be measured now because other processes use it"
            )
        output = ask(
            [python, accelerator_test.__file__], _TEST_ACCELERATOR_S, {**os.environ, **env}
        )
        try:
            tested = msgspec.convert(last_json(output.text), TestedAccelerator)
        except msgspec.MsgspecError:
            return KnownPeaks(
                None,
                f"{why}, and it couldn't be measured: the test {output.failure or 'returned no result'}",
            )
        cache.put(key, tested)
    half = max(tested.flops.get("fp16", 0.0), tested.flops.get("bf16", 0.0))
    # Four and eight times as fast at most, on all that is known so far.
    flops = {**tested.flops, "fp8": 4 * half, "int8": 4 * half, "fp4": 8 * half}
    return KnownPeaks(
        Peaks(
            name=first.name,
            count=len(used),
            bandwidth=len(used) * tested.bandwidth,
            flops={name: len(used) * rate for name, rate in flops.items()},
            source="measured here: copies and dot products, matrices in fp32, fp16 and bf16; 8 bits assumed 4 "
            "times as fast, 4 bits 8 times",
            measured=True,
        )
    )


def of_accelerators(used: Sequence[Accelerator]) -> KnownPeaks:
    """Return the peaks of these together."""
    sheets = []
    for a in used:
        sheet = datasheets.of_accelerator(a.name)
        if sheet is None:
            return KnownPeaks(None, f"dyno has no data sheet for {a.name}")
        if (a.partition or "").startswith("MIG"):
            return KnownPeaks(None, f"{a.name} is partitioned ({a.partition})")
        sheets.append((a, sheet))
    cards = Counter(_card(a) for a in used)  # parts of a card share its memory
    whole = {_card(a): (a, sheet) for a, sheet in sheets}
    peaks = Peaks(
        name=", ".join(dict.fromkeys(a.name for a in used)),
        count=len(used),
        bandwidth=1e12
        * sum(s.terabytes * _reached(a, s, cards[card]) for card, (a, s) in whole.items()),
        flops=_flops(sheets),
        source=", ".join(dict.fromkeys(sheet.source for _, sheet in sheets)),
        cache_bytes=sum(sheet.cache * datasheets.MiB for _, sheet in whole.values()),
    )
    return KnownPeaks(peaks)


def _flops(sheets: Sequence[tuple[Accelerator, datasheets.DataSheet]]) -> dict[str, float]:
    """Return the operations/s of all, in each precision that all have."""
    flops: dict[str, float] = {}
    for precision in sheets[0][1].tera if sheets else ():
        if all(precision in sheet.tera for _, sheet in sheets):
            flops[precision] = 1e12 * sum(
                sheet.tera[precision] / _parts(a, sheet) for a, sheet in sheets
            )
    return flops


def of_name(name: str, count: int) -> Peaks | None:
    """Return the peaks of `count` whole accelerators of this name."""
    sheet = datasheets.of_name(name)
    return None if sheet is None else _by_sheet(sheet, count)


def _by_sheet(
    sheet: datasheets.DataSheet, count: int, cache_bytes: int | None = None
) -> Peaks:
    flops = {precision: tera * 1e12 * count for precision, tera in sheet.tera.items()}
    return Peaks(
        sheet.name,
        count,
        sheet.terabytes * 1e12 * count,
        flops,
        sheet.source,
        cache_bytes=cache_bytes,
    )


def _parts(a: Accelerator, sheet: datasheets.DataSheet) -> int:
    """Return into how many parts the card is cut."""
    mode = (a.partition or "").partition("/")[0]
    return sheet.parts if mode == "CPX" else _PARTS.get(mode, 1)


def _reached(a: Accelerator, sheet: datasheets.DataSheet, parts: int) -> float:
    """Return the share of a card's memory that some parts of it reach. NPS4: four domains, and a part sees its own."""
    mode = re.search(r"/NPS([1-9])$", a.partition or "")
    domains = int(mode[1]) if mode and _parts(a, sheet) > 1 else 1
    return min(1.0, parts / domains)


def _card(a: Accelerator) -> str:
    return a.bus or f"device {a.index}"


# ---- the processor ----


def of_processor(
    rig: Rig, *, cache: Path | None = None, anew: bool = False, only_kept: bool = False
) -> KnownPeaks:
    """Return peaks from a data sheet (Apple's), an earlier test on this machine, or a test now unless `only_kept`."""
    sheet = datasheets.of_apple(rig.cpu)
    if sheet is not None:
        return KnownPeaks(_by_sheet(sheet, 1, sheet.cache * datasheets.MiB))
    features = host.features()
    tests, key = _Cache(cache), _key(rig, features)
    tested = None if anew else tests.get(key, Tested)
    if tested is None:
        if only_kept:
            return KnownPeaks(None, "the CPU has not been measured yet")
        try:
            tested = (None if anew else _disturbed.get(key)) or _test(rig)
        except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as e:
            return KnownPeaks(None, f"the CPU couldn't be measured: {e}")
        if tested.given >= UNDISTURBED:
            tests.put(key, tested)
        else:
            _disturbed.keep(key, tested)
    if not tested.bandwidth_by_size:
        return KnownPeaks(None, "there is too little free memory to measure the CPU")
    return KnownPeaks(_measured(rig, features, tested))


class _Disturbed:
    """Tests beside other programs: used for a while by this process, and never written."""

    def __init__(self) -> None:
        self._tests: dict[str, tuple[float, Tested]] = {}

    def get(self, key: str) -> Tested | None:
        at_s, tested = self._tests.get(key, (-math.inf, None))
        return tested if time.monotonic() < at_s + _AGAIN_S else None

    def keep(self, key: str, tested: Tested) -> None:
        if self.get(key) is None:  # its time counts from the test
            self._tests[key] = (time.monotonic(), tested)

    def clear(self) -> None:
        self._tests.clear()


_disturbed = _Disturbed()


def of_client(rig: Rig, *, cache: Path | None = None) -> TestedClient | None:
    """Return what `dyno doctor` found on this machine; None: it has not been asked."""
    return _Cache(cache).get(f"client, {_key(rig, host.features())}", TestedClient)


def keep_client(rig: Rig, tested: TestedClient, *, cache: Path | None = None) -> None:
    _Cache(cache).put(f"client, {_key(rig, host.features())}", tested)


def _measured(rig: Rig, features: frozenset[str], tested: Tested) -> Peaks:
    disturbed = tested.given < UNDISTURBED
    # to the others: too low a peak would void what is sound
    lost = max(tested.given, 0.1) if disturbed else 1.0
    by_size = {size: rate / lost for size, rate in sorted(tested.bandwidth_by_size.items())}
    largest = max(by_size)
    others = (
        f"; corrected for {percent(1 - tested.given)} of CPU time used by other processes"
        if disturbed
        else ""
    )
    return Peaks(
        name=f"{rig.cpu}, {rig.cores} core{'' if rig.cores == 1 else 's'}",
        count=1,
        bandwidth=by_size[largest],
        flops=bounds(tested.fp32, features),
        source=f"measured here: dot products over {human_bytes(largest)}, fp32 matrices; lower precisions estimated "
        f"from the instruction set{others}",
        measured=True,
        bandwidth_by_size=by_size,
    )


def bounds(fp32: float, features: frozenset[str]) -> dict[str, float]:
    """Return upper bounds of lower precisions: the measured rate times the width of the processor's instructions."""
    highest = {"fp32": fp32}
    for precision, widths in _TIMES_FP32.items():
        known = (times for name, times in widths.items() if name in features)
        highest[precision] = fp32 * max([widths["any"], *known])
    return highest


def _test(rig: Rig) -> Tested:
    alone = dict.fromkeys(
        (
            "OPENBLAS_NUM_THREADS",
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "VECLIB_MAXIMUM_THREADS",
        ),
        "1",
    )
    free = rig.memory_free_bytes or rig.memory_bytes or 0
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dyno.probe.cpu_test",
            str(rig.cores),
            str(free),
            str(os.getpid()),
        ],
        env={**os.environ, **alone},
        capture_output=True,
        timeout=_TEST_S,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return msgspec.json.decode(done.stdout, type=Tested)


def _key(rig: Rig, features: frozenset[str]) -> str:
    """Return what a measurement depends on: another processor, another share or another kernel's view of it is measured
    anew."""
    digest = hashlib.sha256(" ".join(sorted(features)).encode()).hexdigest()[:12]
    return f"{rig.cpu}, {rig.machine}, {rig.cores} cores, features {digest}"
