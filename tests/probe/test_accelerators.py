"""What each source tells of accelerators, from laid-out files and stand-ins: no GPU is needed, nor looked at."""

from pathlib import Path

import pytest

from dyno.facts.rig import Accelerator
from dyno.probe import accelerators
from dyno.probe.accelerators import Inventory, Process
from dyno.probe.accelerators.nvidia import NO_DRIVER, Nvidia
from machines import AMD, GiB, Nvml, card, gpu, lay, mi300x_in_cpx, strix_halo, xeon

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

# ---- AMD ----


def test_each_partition_of_an_mi300x_is_an_accelerator_as_hip_counts_them(
    tmp_path: Path,
) -> None:
    found = AMD.inventory(mi300x_in_cpx(tmp_path)).accelerators
    assert [a.index for a in found] == list(range(16))
    first, ninth = found[0], found[8]
    assert (first.name, first.partition, first.architecture) == (
        "AMD Instinct MI300X OAM",
        "CPX/NPS1",
        "gfx942",
    )
    assert (first.bus, ninth.bus) == ("0000:05:00.0", "0000:26:00.0")
    assert (first.numa_node, ninth.numa_node) == (0, 1)
    assert first.memory_bytes == 24 * GiB  # its share, not the card's
    assert (first.power_cap_w, first.power_cap_default_w) == (600.0, 750.0)
    assert (first.clock_max_mhz, first.memory_clock_max_mhz) == (2100, 1300)
    assert (first.link, first.driver, first.integrated) == ("PCIe 5 x16", "6.8.5", False)


def test_the_memory_of_a_partition_is_what_processes_hold_there(tmp_path: Path) -> None:
    root = mi300x_in_cpx(tmp_path)
    used = accelerators.memory_used(root=root, vendors=[AMD])
    assert used[9] == 2 * GiB
    assert sum(used.values()) == 2 * GiB
    assert accelerators.processes(root, [AMD])[9] == [
        Process(4321, "VLLM::Worker", 2 * GiB)
    ]
    assert accelerators.processes(root, [AMD])[0] == []


def test_an_unpartitioned_card_has_its_whole_memory(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"device": "0x74a1\n", "mem_info_vram_total": str(192 * GiB),
                                     "mem_info_vram_used": str(GiB), "mem_info_gtt_total": str(999 * GiB)}  # fmt: skip
    card(tmp_path, 1, "0000:05:00.0", files)
    [a] = AMD.inventory(tmp_path).accelerators
    assert (a.memory_bytes, a.memory_used_bytes, a.integrated) == (192 * GiB, GiB, False)
    assert (a.name, a.partition, a.numa_node, a.link) == ("AMD 0x74a1", None, None, None)


def test_an_integrated_gpu_counts_the_memory_that_it_shares(tmp_path: Path) -> None:
    root = strix_halo(tmp_path)
    [a] = AMD.inventory(root).accelerators
    assert a.integrated
    assert (a.name, a.architecture) == ("AMD Radeon 8060S Graphics", "gfx1151")
    assert (a.memory_bytes, a.gtt_bytes) == (120 * GiB + GiB // 2, 120 * GiB)
    assert a.memory_used_bytes == 60 * GiB + GiB // 4
    assert (a.clock_max_mhz, a.numa_node, a.power_cap_w) == (2900, None, None)
    # by its queue: it holds no memory of the GPU's
    assert AMD.processes(root) == [[Process(99, "llama-server")]]


def test_without_its_metrics_a_gpu_is_integrated_if_it_is_small_and_may_take_much(
    tmp_path: Path,
) -> None:
    for number, (vram, gtt) in enumerate([(GiB // 2, 30 * GiB), (24 * GiB, 200 * GiB)]):
        files: dict[str, str | bytes] = {
            "mem_info_vram_total": str(vram),
            "mem_info_gtt_total": str(gtt),
        }
        card(tmp_path, number, f"0000:0{number}:00.0", files)
    assert [a.integrated for a in AMD.inventory(tmp_path).accelerators] == [True, False]


def test_the_link_is_that_of_the_slot_and_not_of_bridges_on_the_card(
    tmp_path: Path,
) -> None:
    wide = {
        "max_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_width": "16",
    }
    card(
        tmp_path,
        0,
        "0000:03:00.0",
        dict(wide),
        bridges="0000:00:01.1/0000:01:00.0/0000:02:00.0",
    )
    way = tmp_path / "sys/devices/pci0000:00/0000:00:01.1"
    lay(way, {"vendor": "0x1022"})
    lay(way / "0000:01:00.0", {"vendor": "0x1002", **wide, "current_link_width": "8"})
    lay(way / "0000:01:00.0/0000:02:00.0", {"vendor": "0x1002", **wide})
    assert AMD.inventory(tmp_path).accelerators[0].link == "PCIe 4 x8 of x16"


def test_the_name_of_an_amd_card_is_found_in_the_list_of_pci_numbers(
    tmp_path: Path,
) -> None:
    card(tmp_path, 0, "0000:03:00.0", {"device": "0x744c", "revision": "0xc8"})
    ids = (
        "1001  Other\n\t744c  Wrong\n1002  AMD\n\t1586  Strix Halo\n\t744c  Navi 31 "
        "[Radeon RX 7900 XTX]\n1003  Next\n"
    )
    lay(tmp_path, {"usr/share/misc/pci.ids": ids})
    assert AMD.inventory(tmp_path).accelerators[0].name == "Navi 31 [Radeon RX 7900 XTX]"


def test_the_links_between_amd_accelerators_are_those_of_the_compute_driver(
    tmp_path: Path,
) -> None:
    for node, (gpu_id, place) in enumerate([("0", 0), ("11", 0x500), ("12", 0x2600)]):
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}"
        lay(folder, {"gpu_id": gpu_id, "properties": f"location_id {place}\ndomain 0\n"})
        for other, kind in [(0, 2), (1, 11), (2, 11)]:
            if other != node:
                reported = f"type {kind}\nnode_from {node}\nnode_to {other}\n"
                lay(folder, {f"io_links/{other}/properties": reported})
    assert AMD.inventory(tmp_path).topology == [["X", "XGMI"], ["XGMI", "X"]]


def test_a_container_sees_the_accelerators_it_was_given(tmp_path: Path) -> None:
    root = mi300x_in_cpx(tmp_path)
    for node in range(2, 17):  # the kernel refuses to tell of the others
        (root / f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id").unlink()
    [a] = AMD.inventory(root).accelerators
    assert a.bus == "0000:05:00.0"


def test_files_that_hold_nonsense_are_as_good_as_none(tmp_path: Path) -> None:
    root = mi300x_in_cpx(tmp_path)
    for path in [
        p
        for p in root.rglob("*")
        if p.is_file() and p.name not in ("vendor", "uevent", "gpu_id")
    ]:
        path.write_bytes(b"\xff\x00 what?\n")
    found = AMD.inventory(root).accelerators
    assert len(found) == 16
    assert {
        (a.memory_bytes, a.power_cap_w, a.clock_max_mhz, a.architecture) for a in found
    } == {(None,) * 4}


# ---- NVIDIA ----


def test_nvml_reports_all_of_nvidias(tmp_path: Path) -> None:
    nvml = Nvml()
    found = Nvidia(nvml).inventory(xeon(tmp_path))
    assert found.unknown == []
    first, second = found.accelerators
    assert first == Accelerator(
        index=0, name="NVIDIA H100 80GB HBM3", vendor="nvidia", memory_bytes=80 * GiB, memory_used_bytes=5 * GiB,
        driver="550.90.12", uuid="GPU-0", bus="0000:1b:00.0", power_cap_w=450.0, power_cap_default_w=700.0,
        clock_max_mhz=1980, memory_clock_max_mhz=2619, link="PCIe 5 x16", numa_node=0, architecture="sm_90",
    )  # fmt: skip
    assert (second.partition, second.link, second.numa_node) == (
        "MIG 2×3g.40gb",
        "PCIe 5 x8 of x16",
        1,
    )
    assert found.topology == [["X", "NV4"], ["NV4", "X"]]
    assert nvml.opened == 0  # and it is closed again


def test_links_without_a_switch_are_counted_for_each_pair(tmp_path: Path) -> None:
    root = xeon(tmp_path)
    direct = Nvml(nvmlDeviceGetNvLinkRemoteDeviceType=True)
    assert Nvidia(direct).inventory(root).topology == [["X", "NV4"], ["NV4", "X"]]
    assert Nvidia(Nvml(nvmlDeviceGetNvLinkState=True)).inventory(root).topology == [
        ["X", "SYS"],
        ["SYS", "X"],
    ]


def test_what_a_driver_does_not_support_is_unknown_and_the_rest_is_reported(
    tmp_path: Path,
) -> None:
    root = xeon(tmp_path)
    names = [
        n
        for n in dir(Nvml)
        if n.startswith("nvmlDeviceGet") and not n.endswith(("Count", "HandleByIndex"))
    ]
    assert len(names) > 15
    for name in names:
        found = Nvidia(Nvml(**{name: True})).inventory(root)
        assert [a.index for a in found.accelerators] == [0, 1], name
    bare = Nvidia(Nvml(**dict.fromkeys(names, True))).inventory(root).accelerators[0]
    # No memory of its own to tell of: it shares the machine's.
    assert bare == gpu(name="NVIDIA device", driver="550.90.12", integrated=True)


def test_the_memory_in_use_is_asked_for_lightly(tmp_path: Path) -> None:
    root, source = xeon(tmp_path), Nvidia(Nvml())
    assert accelerators.memory_used(root=root, vendors=[source]) == {0: 5 * GiB, 1: 5 * GiB}
    assert accelerators.memory_used([1, 7], root, [source]) == {1: 5 * GiB}
    assert (
        accelerators.memory_used(
            root=root, vendors=[Nvidia(Nvml(nvmlDeviceGetMemoryInfo=True))]
        )
        == {}
    )


def test_processes_are_named_by_the_kernel_and_not_by_their_command_line(
    tmp_path: Path,
) -> None:
    root = lay(
        xeon(tmp_path),
        {
            "proc/77/comm": "VLLM::EngineCor\n",
            "proc/77/cmdline": "vllm\0--api-key\0secret\0",
        },
    )
    assert accelerators.processes(root, [Nvidia(Nvml())])[0] == [
        Process(77, "VLLM::EngineCor", 4 * GiB),
        Process(78, "?"),  # of another namespace
    ]


def test_the_stand_in_has_no_function_that_the_package_does_not_have() -> None:
    real = pytest.importorskip("pynvml")
    names = [n for n in dir(Nvml) if n.startswith(("nvml", "NVML"))]
    assert [n for n in names if not hasattr(real, n)] == []
    assert real.nvmlMemory_v2 == Nvml.nvmlMemory_v2


def test_a_driver_without_its_library_is_reported_with_what_to_do(tmp_path: Path) -> None:
    source = Nvidia(Nvml(nvmlInit=True))
    found = source.inventory(xeon(tmp_path))
    assert (
        found.accelerators
        == source.memory_used(tmp_path)
        == source.processes(tmp_path)
        == []
    )
    [why] = found.unknown
    assert why.startswith(
        "an NVIDIA driver is loaded, but NVML doesn't work (Not Supported): install "
    )
    meter = source.meter(tmp_path)
    assert (
        meter is not None
        and meter.read(full=True) == []
        and meter.absent == [f"accelerators: {why}"]
    )
    meter.close()


def test_a_card_without_a_driver_is_reported(tmp_path: Path) -> None:
    lay(
        tmp_path / "sys/bus/pci/devices/0000:01:00.0",
        {"vendor": "0x10de\n", "class": "0x030200\n"},
    )
    assert Nvidia(Nvml()).inventory(tmp_path) == Inventory(unknown=[NO_DRIVER])


def test_where_both_vendors_are_nvidias_come_first(tmp_path: Path) -> None:
    root = strix_halo(xeon(tmp_path))
    vendors = [Nvidia(Nvml()), AMD]
    found = accelerators.inventory(root, vendors)
    assert [(a.index, a.vendor) for a in found.accelerators] == [
        (0, "nvidia"),
        (1, "nvidia"),
        (2, "amd"),
    ]
    assert set(accelerators.memory_used(root=root, vendors=vendors)) == {0, 1, 2}
    assert accelerators.processes(root, vendors)[2] == [Process(99, "llama-server")]
    assert found.topology == []
