"""What an engine's accelerators or the processor can do at most: by data sheets, else measured once and kept."""

import contextlib
import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dyno import files
from dyno.facts.engine import EngineSpec
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.roofline import Peaks
from dyno.probe import accelerator_test, datasheets, host
from dyno.probe.software import ask, last_json
from dyno.units import human_bytes

UNDISTURBED = 0.9  # of the time that the test wanted: below, its figures aren't kept
_TEST_S = 60.0
_TEST_ACCELERATOR_S = 180.0  # torch from a cold disk takes its time
_PARTS = {"DPX": 2, "TPX": 3, "QPX": 4}  # AMD's compute partitions; CPX: as many as there are dies


class Found(NamedTuple):
    peaks: Peaks | None
    unknown: str = ""  # why not


class Tested(msgspec.Struct, frozen=True):
    """What the test prints."""

    bandwidth_by_size: dict[int, float]
    fp32: float
    given: float  # of the processor's time that was wanted


class TestedAccelerator(msgspec.Struct, frozen=True):
    """What its test prints."""

    bandwidth: float
    flops: dict[str, float]


def of(
    rig: Rig,
    devices: Sequence[int],
    spec: EngineSpec,
    *,
    spreads: bool = False,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> Found:
    """Of all copies together. `devices`: that may be used. `spreads`: over all of them, whatever the setting says.
    `python`: an interpreter with torch, to measure an accelerator that no data sheet is known of; `env` makes those
    visible that are used.

    What is measured, accelerator or processor, takes seconds once: call it before a load, not under it.
    """
    if not devices:
        if spec.devices is None and (unseen := _unlisted(rig)):
            return Found(None, f"{unseen}, and what it can do isn't known: --devices without a number says the CPU")
        return of_processor(rig, cache=cache)
    used = list(devices) if spreads else list(devices)[: spec.world * spec.replicas]
    found = [a for a in rig.accelerators if a.index in used]
    if len(found) < len(used):
        return Found(None, f"the accelerators {', '.join(map(str, used))} aren't seen here")
    if spec.devices is None and len({a.name for a in rig.accelerators if a.index in devices}) > 1 and not spreads:
        return Found(None, "it isn't said which of the unlike accelerators are used")  # CUDA takes the fastest first
    by_sheet = of_accelerators(found)
    if by_sheet.peaks is None and python is not None and len({a.name for a in found}) == 1:
        return _of_unknown(found, python, env or {}, cache or default_cache(), by_sheet.unknown)
    return by_sheet


def _unlisted(rig: Rig, devices: Path = Path("/dev/dri")) -> str | None:
    """One that the kernel has and no driver that dyno asks: Intel's, say, or one used by Vulkan alone. In words."""
    if rig.accelerators or datasheets.of_apple(rig.cpu):
        return None
    if rig.cpu.startswith("Apple"):
        return f"{rig.cpu} has a GPU"
    return "the machine has a GPU that isn't listed" if any(devices.glob("renderD*")) else None


def _of_unknown(used: Sequence[Accelerator], python: str, env: Mapping[str, str], path: Path, why: str) -> Found:
    """As many times the first one's, measured by the engine's own torch."""
    first = used[0]
    key = f"{first.name}, {first.memory_bytes} bytes, {first.partition or 'whole'}, driver {first.driver}"
    kept = _kept(path)
    tested = kept.get(key)
    if not isinstance(tested, TestedAccelerator):
        if any(a.processes for a in used):
            return Found(None, f"{why}, and others use it, so it can't be measured now")
        answer = ask([python, accelerator_test.__file__], _TEST_ACCELERATOR_S, {**os.environ, **env})
        try:
            tested = msgspec.convert(last_json(answer.text), TestedAccelerator)
        except msgspec.MsgspecError:
            return Found(None, f"{why}, and it couldn't be measured: the test {answer.failure or 'told nothing'}")
        _keep(path, {**kept, key: tested})
    half = max(tested.flops.get("fp16", 0.0), tested.flops.get("bf16", 0.0))
    # Four and eight times as fast at most, on all that is known so far.
    flops = {**tested.flops, "fp8": 4 * half, "int8": 4 * half, "fp4": 8 * half}
    return Found(
        Peaks(
            name=first.name,
            count=len(used),
            bandwidth=len(used) * tested.bandwidth,
            flops={name: len(used) * rate for name, rate in flops.items()},
            source="measured here: copies and dot products, matrices in fp32, fp16 and bf16; 8 bits as four times as "
            "fast, 4 as eight",
            measured=True,
        )
    )


def of_accelerators(used: Sequence[Accelerator]) -> Found:
    """Of these together."""
    sheets = []
    for a in used:
        sheet = datasheets.of_accelerator(a)
        if sheet is None:
            return Found(None, f"no data sheet is known here for {a.name}")
        if (a.partition or "").startswith("MIG"):
            return Found(None, f"{a.name} is cut into instances ({a.partition})")
        sheets.append(sheet)
    flops: dict[str, float] = {}
    for precision in sheets[0].tera if sheets else ():
        if all(precision in sheet.tera for sheet in sheets):
            each = (s.tera[precision] / _parts(a, s) for a, s in zip(used, sheets, strict=True))
            flops[precision] = 1e12 * sum(each)
    cards = Counter(_card(a) for a in used)  # parts of a card share its memory
    whole = {_card(a): (a, sheet) for a, sheet in zip(used, sheets, strict=True)}
    peaks = Peaks(
        name=", ".join(dict.fromkeys(a.name for a in used)),
        count=len(used),
        bandwidth=1e12 * sum(s.terabytes * _reached(a, s, cards[card]) for card, (a, s) in whole.items()),
        flops=flops,
        source=", ".join(dict.fromkeys(sheet.source for sheet in sheets)),
        cache_bytes=sum(sheet.cache * datasheets.MiB for _, sheet in whole.values()),
    )
    return Found(peaks)


def of_name(name: str, count: int) -> Peaks | None:
    """Of accelerators that somebody names, whole and as many."""
    sheet = datasheets.of_name(name)
    if sheet is None:
        return None
    flops = {precision: tera * 1e12 * count for precision, tera in sheet.tera.items()}
    return Peaks(sheet.name, count, sheet.terabytes * 1e12 * count, flops, sheet.source)


def _parts(a: Accelerator, sheet: datasheets.Sheet) -> int:
    """Into how many the card is cut of which this is one."""
    mode = (a.partition or "").partition("/")[0]
    return sheet.parts if mode == "CPX" else _PARTS.get(mode, 1)


def _reached(a: Accelerator, sheet: datasheets.Sheet, parts: int) -> float:
    """Of a card's memory, by so many parts of it. NPS4: four domains, and a part sees its own."""
    found = re.search(r"/NPS([1-9])$", a.partition or "")
    domains = int(found[1]) if found and _parts(a, sheet) > 1 else 1
    return min(1.0, parts / domains)


def _card(a: Accelerator) -> str:
    return a.bus or f"device {a.index}"


# ---- the processor ----


def of_processor(rig: Rig, *, cache: Path | None = None, anew: bool = False, only_kept: bool = False) -> Found:
    """By data sheet (Apple's), else as it was measured on this machine, else measured now unless `only_kept`."""
    sheet = datasheets.of_apple(rig.cpu)
    if sheet is not None:
        flops = {precision: tera * 1e12 for precision, tera in sheet.tera.items()}
        size = sheet.cache * datasheets.MiB
        return Found(Peaks(sheet.name, 1, sheet.terabytes * 1e12, flops, sheet.source, cache_bytes=size))
    features = host.features()
    path, key = cache or default_cache(), _key(rig, features)
    kept = _kept(path)
    tested = None if anew else kept.get(key)
    if not isinstance(tested, Tested):
        if only_kept:
            return Found(None, "the processor isn't measured yet")
        try:
            tested = _test(rig)
        except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as e:
            return Found(None, f"the processor couldn't be measured: {e}")
        if tested.given >= UNDISTURBED:
            _keep(path, {**kept, key: tested})
    if not tested.bandwidth_by_size:
        return Found(None, "there is too little free memory to measure the processor")
    return Found(_measured(rig, features, tested))


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dyno" / "peaks.json"


def _measured(rig: Rig, features: frozenset[str], tested: Tested) -> Peaks:
    disturbed = tested.given < UNDISTURBED
    lost = max(tested.given, 0.1) if disturbed else 1.0  # to the others: too low a peak would void what is sound
    by_size = {size: rate / lost for size, rate in sorted(tested.bandwidth_by_size.items())}
    largest = max(by_size)
    others = f"; others took {1 - tested.given:.0%} of its time, which is made up for" if disturbed else ""
    return Peaks(
        name=f"{rig.cpu}, {rig.cores} core{'' if rig.cores == 1 else 's'}",
        count=1,
        bandwidth=by_size[largest],
        flops=bounds(tested.fp32, features),
        source=f"measured here: dot products over {human_bytes(largest)}, fp32 matrices; lower precisions by what the "
        f"instructions allow{others}",
        measured=True,
        bandwidth_by_size=by_size,
    )


def bounds(fp32: float, features: frozenset[str]) -> dict[str, float]:
    """Lower precisions by the width of the instructions that are there: no more than so many times the measured one."""

    def times(*known: tuple[str, int], least: int = 1) -> float:
        return fp32 * max([least, *(n for name, n in known if name in features)])

    return {
        "fp32": fp32,
        "fp16": times(("asimdhp", 2), ("avx512_fp16", 2), ("amx_fp16", 16), ("sme", 16)),
        "bf16": times(("bf16", 4), ("svebf16", 4), ("avx512_bf16", 2), ("amx_bf16", 16), ("sme", 16)),
        # Without instructions for it, 8-bit products are summed in 16 bits.
        "int8": times(
            ("asimddp", 4), ("i8mm", 8), ("svei8mm", 8), ("avx_vnni", 4), ("avx512_vnni", 4), ("amx_int8", 32),
            ("sme", 32), least=2,
        ),
    }  # fmt: skip


def _test(rig: Rig) -> Tested:
    alone = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")
    free = rig.memory_free_bytes or rig.memory_bytes or 0
    done = subprocess.run(
        [sys.executable, "-m", "dyno.probe.cpu_test", str(rig.cores), str(free)],
        env={**os.environ, **alone}, capture_output=True, timeout=_TEST_S, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=Tested)


def _key(rig: Rig, features: frozenset[str]) -> str:
    """Another processor, another share of it, or another kernel's view of it: measured anew."""
    told = hashlib.sha256(" ".join(sorted(features)).encode()).hexdigest()[:12]
    return f"{rig.cpu}, {rig.machine}, {rig.cores} cores, features {told}"


def _kept(path: Path) -> dict[str, Tested | TestedAccelerator]:
    try:
        raw = msgspec.json.decode(files.read(path, files.TEXT), type=dict[str, dict[str, Any]])
        return {key: _read(value) for key, value in raw.items()}
    except (OSError, *files.BROKEN):  # none yet, or another version's
        return {}


def _read(value: dict[str, Any]) -> Tested | TestedAccelerator:
    if "given" in value:
        return msgspec.convert(value, Tested, strict=False)  # sizes are keys, which JSON has as text
    return msgspec.convert(value, TestedAccelerator)


def _keep(path: Path, tested: Mapping[str, Tested | TestedAccelerator]) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with contextlib.suppress(OSError):  # then it is measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.format(msgspec.json.encode(tested)))
        part.replace(path)
