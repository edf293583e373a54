"""What machines can do at most: by name from data sheets, and the processor by a test."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno.facts.engine import EngineSpec
from dyno.facts.rig import Accelerator, Rig
from dyno.probe import cpu_test, datasheets, host, peaks

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

RIG = Rig(
    "Linux",
    "6",
    "aarch64",
    "Arm Neoverse N1",
    2,
    memory_bytes=8 << 30,
    memory_free_bytes=4 << 30,
)


def accelerator(name: str, index: int = 0, **fields: Any) -> Accelerator:
    return Accelerator(index, name, "amd" if "AMD" in name else "nvidia", **fields)


@pytest.mark.parametrize(
    ("name", "sheet", "bandwidth"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 3.352e12),
        ("NVIDIA H100 PCIe", "H100 PCIe", 2.039e12),
        ("NVIDIA H100 NVL", "H100 NVL", 3.938e12),
        ("NVIDIA H200", "H200 SXM", 4.8e12),
        ("NVIDIA H200 NVL", "H200 NVL", 4.8e12),
        ("NVIDIA H20", "H20", 4.0e12),
        ("NVIDIA B200", "B200", 8.0e12),
        ("NVIDIA GB200", "GB200", 8.0e12),
        ("NVIDIA A100-SXM4-40GB", "A100 40 GB", 1.555e12),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB", 2.039e12),
        ("NVIDIA A100 80GB PCIe", "A100 80 GB", 2.039e12),
        ("NVIDIA A10G", "A10G", 0.6e12),
        ("NVIDIA L4", "L4", 0.3e12),
        ("NVIDIA L40S", "L40S", 0.864e12),
        ("NVIDIA GeForce RTX 3090", "RTX 3090", 0.936e12),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 1.008e12),
        ("NVIDIA GeForce RTX 5090", "RTX 5090", 1.792e12),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 0.96e12),
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell",
            1.792e12,
        ),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "RTX PRO 6000 Blackwell Server",
            1.597e12,
        ),
        ("AMD Instinct MI250X / MI250", "Instinct MI250X, one of two dies", 1.6384e12),
        ("AMD Instinct MI300X OAM", "Instinct MI300X", 5.325e12),
        ("AMD Instinct MI325X", "Instinct MI325X", 6.0e12),
        ("AMD Instinct MI355X", "Instinct MI355X", 8.0e12),
        ("AMD Radeon 8060S Graphics", "Radeon 8060S (Strix Halo)", 0.256e12),
    ],
)
def test_an_accelerator_is_known_by_its_name(
    name: str, sheet: str, bandwidth: float
) -> None:
    known = datasheets.of_accelerator(name)
    assert known is not None and known.name == sheet
    found = peaks.of_accelerators([accelerator(name)]).peaks
    assert found is not None and found.bandwidth == pytest.approx(bandwidth)
    assert (found.name, found.count, found.measured) == (name, 1, False)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA Q200",
        "AMD Radeon Graphics",
        "",
        "NVIDIA GeForce GTX 1080",
    ],
)
def test_one_that_is_not_listed_is_reported_as_unknown(name: str) -> None:
    assert peaks.of_accelerators([accelerator(name)]) == (
        None,
        f"dyno has no data sheet for {name}",
    )


@pytest.mark.parametrize(
    "sheet", [*datasheets.ACCELERATORS, *datasheets.APPLE], ids=lambda s: s.name
)
def test_a_sheet_has_a_source_and_figures_that_hang_together(
    sheet: datasheets.DataSheet,
) -> None:
    assert sheet.source.startswith("https://") or "not on a public page" in sheet.source
    assert {"fp32", "fp16", "bf16", "int8"} <= set(sheet.tera)
    assert sheet.tera["fp32"] <= sheet.tera["bf16"] <= sheet.tera["fp16"]
    assert 0.05 < sheet.terabytes <= 8 and 4 <= sheet.cache <= 256
    if "fp8" in sheet.tera:
        assert 1.99 <= sheet.tera["fp8"] / sheet.tera["fp16"] <= 2.1
    # Between 50 and 700 operations for each byte: a slip of a thousand, or with sparsity, would stand out.
    assert 20 < sheet.tera["fp16"] / sheet.terabytes < 500


def test_every_sheet_is_found_by_some_name() -> None:
    for sheet in datasheets.APPLE:
        assert datasheets.of_apple(sheet.name) is sheet
    assert (
        datasheets.of_apple("Apple M9 Max") is None
        and datasheets.of_apple("Intel Xeon") is None
    )


def rig_of(*found: Accelerator) -> Rig:
    return msgspec.structs.replace(RIG, accelerators=list(found))


def test_the_peaks_are_those_of_all_devices_of_all_copies() -> None:
    eight = rig_of(
        *(accelerator("NVIDIA H200", i, bus=f"0000:{i:02x}:00.0") for i in range(8))
    )
    found = peaks.of_engine(
        eight, list(range(8)), EngineSpec("vllm", tensor_parallel=2, replicas=2)
    ).peaks
    assert found is not None and (found.count, found.bandwidth) == (
        4,
        pytest.approx(4 * 4.8e12),
    )
    assert (
        found.flops["bf16"] == pytest.approx(4 * 989.4e12)
        and found.cache_bytes == 4 * 60 << 20
    )
    spread = peaks.of_engine(
        eight, list(range(8)), EngineSpec("llamacpp"), spreads=True
    ).peaks
    assert spread is not None and spread.count == 8
    assert peaks.of_engine(eight, [9], EngineSpec("vllm")).peaks is None


def test_of_unlike_accelerators_the_used_ones_must_be_named() -> None:
    mixed = rig_of(accelerator("NVIDIA L4"), accelerator("NVIDIA H200", 1))
    assert (
        "doesn't select one of"
        in peaks.of_engine(mixed, [0, 1], EngineSpec("vllm")).unknown
    )
    found = peaks.of_engine(mixed, [1], EngineSpec("vllm", devices=[1])).peaks
    assert found is not None and found.name == "NVIDIA H200"


def parts(count: int, mode: str) -> list[Accelerator]:
    return [
        accelerator("AMD Instinct MI300X", i, bus="0000:05:00.0", partition=mode)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("used", "arithmetic", "bandwidth"),
    [
        (parts(1, "SPX/NPS1"), 1.0, 1.0),
        (parts(1, "CPX/NPS1"), 1 / 8, 1.0),
        (parts(8, "CPX/NPS1"), 1.0, 1.0),  # they share one memory
        (parts(1, "CPX/NPS4"), 1 / 8, 1 / 4),
        (parts(8, "CPX/NPS4"), 1.0, 1.0),
        (parts(1, "DPX/NPS2"), 1 / 2, 1 / 2),
    ],
)
def test_a_part_of_a_card_has_a_part_of_its_peaks(
    used: list[Accelerator], arithmetic: float, bandwidth: float
) -> None:
    found = peaks.of_accelerators(used).peaks
    assert found is not None
    assert found.flops["bf16"] == pytest.approx(1307.4e12 * arithmetic)
    assert found.bandwidth == pytest.approx(5.325e12 * bandwidth)


def test_of_instances_nothing_is_known() -> None:
    cut = accelerator("NVIDIA H100 80GB HBM3", partition="MIG 2×3g.40gb")
    assert (
        peaks.of_accelerators([cut]).unknown
        == "NVIDIA H100 80GB HBM3 is partitioned (MIG 2×3g.40gb)"
    )


def test_of_unlike_devices_only_common_precisions_count() -> None:
    found = peaks.of_accelerators(
        [accelerator("NVIDIA H200"), accelerator("NVIDIA A100-SXM4-80GB", 1)]
    ).peaks
    assert found is not None and "fp8" not in found.flops
    assert found.flops["bf16"] == pytest.approx((989.4 + 312) * 1e12)


# ---- the processor ----


@pytest.fixture(autouse=True)
def no_earlier_test() -> None:
    peaks._disturbed.clear()


@pytest.mark.engines
def test_the_processor_is_really_measured_and_the_figures_kept(tmp_path: Path) -> None:
    """Whatever else runs: any machine reads a gigabyte and multiplies a billion times in a second."""
    found, unknown = peaks.of_processor(RIG, cache=tmp_path / "peaks.json")
    assert found is not None and unknown == ""
    assert found.measured and found.name == "Arm Neoverse N1, 2 cores"
    assert list(found.bandwidth_by_size) == [
        n << 20 for n in (4, 8, 16, 32, 64, 128, 256, 512)
    ]
    assert all(1e9 < rate < 1e13 for rate in found.bandwidth_by_size.values())
    assert 1e9 < found.flops["fp32"] <= found.flops["int8"]
    assert found.bandwidth == found.bandwidth_by_size[512 << 20]


def kept(path: Path, given: float = 1.0) -> peaks.Tested:
    return peaks.Tested({4 << 20: 5e10, 512 << 20: 4e10}, 7e10, given)


def test_a_kept_measurement_is_used_and_only_for_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def test(rig: Rig) -> peaks.Tested:
        calls.append(rig.cores)
        return kept(tmp_path)

    monkeypatch.setattr(peaks, "_test", test)
    path = tmp_path / "deep" / "peaks.json"
    assert (
        peaks.of_processor(RIG, cache=path, only_kept=True).unknown
        == "the CPU has not been measured yet"
    )
    first = peaks.of_processor(RIG, cache=path)
    assert peaks.of_processor(RIG, cache=path) == first and calls == [2]
    peaks.of_processor(msgspec.structs.replace(RIG, cores=1), cache=path)
    assert calls == [2, 1]
    assert peaks.of_processor(RIG, cache=path, anew=True) == first and calls == [2, 1, 2]
    assert len(json.loads(path.read_text())) == 2
    path.write_text("{broken")
    assert peaks.of_processor(RIG, cache=path) == first


def test_a_disturbed_measurement_is_not_written_and_repeated_after_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study on a busy machine starts an engine many times: each start would wait seconds for a test."""
    shares = iter([0.5, 0.4, 1.0])
    monkeypatch.setattr(peaks, "_test", lambda rig: kept(tmp_path, given=next(shares)))
    path, now_s = tmp_path / "peaks.json", time.monotonic()
    for _ in range(3):
        found = peaks.of_processor(RIG, cache=path).peaks
        assert found is not None and found.bandwidth == 8e10
        assert "50 % of CPU time" in found.source
    monkeypatch.setattr(peaks.time, "monotonic", lambda: now_s + 601)
    again = peaks.of_processor(RIG, cache=path).peaks
    assert again is not None and "60 % of CPU time" in again.source and not path.exists()
    anew = peaks.of_processor(RIG, cache=path, anew=True).peaks
    assert anew is not None and "CPU time" not in anew.source and path.exists()


def test_a_folder_that_cannot_be_written_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks, "_test", lambda rig: kept(tmp_path))
    (tmp_path / "file").write_text("")
    assert peaks.of_processor(RIG, cache=tmp_path / "file" / "peaks.json").peaks is not None


def test_a_test_that_fails_is_reported(tmp_path: Path) -> None:
    nowhere = msgspec.structs.replace(RIG, cores=0)
    found = peaks.of_processor(nowhere, cache=tmp_path / "peaks.json")
    assert found.peaks is None and "couldn't be measured" in found.unknown


def test_with_too_little_memory_smaller_sizes_are_read() -> None:
    assert cpu_test.sizes(2, 4 << 30)[-1] == 512 << 20
    assert cpu_test.sizes(2, 100 << 20) == [4 << 20, 8 << 20, 16 << 20]
    assert cpu_test.sizes(2, 0) == []
    # Each process reads a quarter of a MiB at least; many cores have large caches.
    assert (
        cpu_test.sizes(64, 1 << 40)[0] == 16 << 20
        and cpu_test.sizes(64, 1 << 40)[-1] == 2 << 30
    )


@pytest.mark.parametrize(
    ("features", "times"),
    [
        ("", (1, 1, 2)),
        ("asimdhp asimddp", (2, 1, 4)),
        ("asimdhp asimddp i8mm bf16", (2, 4, 8)),
        ("avx2 avx_vnni", (1, 1, 4)),
        ("avx512f avx512_vnni avx512_bf16", (1, 2, 4)),
        ("avx512_vnni avx512_fp16 amx_bf16 amx_int8", (2, 16, 32)),
    ],
)
def test_lower_precisions_are_bounded_by_the_instructions(
    features: str, times: tuple[int, int, int]
) -> None:
    found = peaks.bounds(1.0, frozenset(features.split()))
    assert (found["fp16"], found["bf16"], found["int8"]) == times


def test_the_kernels_names_of_features_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor : 0\nflags\t\t: fpu avx2 amx_int8\n\nprocessor : 1\n"
    )
    assert host.features(tmp_path) == {"fpu", "avx2", "amx_int8"}
    assert host.features(tmp_path / "none") == frozenset()


def test_apples_processors_come_from_the_sheet(tmp_path: Path) -> None:
    mac = msgspec.structs.replace(RIG, cpu="Apple M3 Max")
    found = peaks.of_engine(
        mac, [], EngineSpec("llamacpp"), cache=tmp_path / "none.json"
    ).peaks
    assert (
        found is not None and not found.measured and found.bandwidth == pytest.approx(4e11)
    )


TORCH = """
import json, os, sys
print("a library's own line")
if os.environ.get("NO_GPU"):
    sys.exit("no device")
print(json.dumps({"bandwidth": 1e12, "flops": {"fp32": 1e13, "fp16": 9e13, "bf16": 8e13}}))
"""


def test_an_accelerator_without_a_data_sheet_is_measured_once_by_the_engines_own_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    # stands for the engine's interpreter, and counts how often it is asked
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\necho x >> {count}\nexec {sys.executable} {tmp_path / 'reported.py'}\n"
    )
    python.chmod(0o755)
    (tmp_path / "reported.py").write_text(TORCH)
    two = [Accelerator(i, "Somebody's X1", "other", memory_bytes=1 << 34) for i in range(2)]
    here = Rig("Debian", "6", "x86_64", "cpu", 8, accelerators=two)
    spec = EngineSpec("vllm", model="m", tensor_parallel=2)
    cache = tmp_path / "peaks.json"
    assert peaks.of_engine(here, [0, 1], spec, cache=cache).peaks is None, (
        "without an interpreter there is no test"
    )
    monkeypatch.setenv("NO_GPU", "1")
    failed = peaks.of_engine(here, [0, 1], spec, python=str(python), cache=cache)
    assert (
        failed.peaks is None
        and "couldn't be measured" in failed.unknown
        and not cache.exists()
    )
    monkeypatch.delenv("NO_GPU")
    for _ in range(2):
        found = peaks.of_engine(here, [0, 1], spec, python=str(python), cache=cache).peaks
        assert found and found.measured and (found.count, found.bandwidth) == (2, 2e12)
        assert found.flops == {
            "fp32": 2e13, "fp16": 1.8e14, "bf16": 1.6e14, "fp8": 7.2e14, "int8": 7.2e14, "fp4": 1.44e15,
        }  # fmt: skip
    assert count.read_text().count("x") == 2, "once for the failure, once for good"
