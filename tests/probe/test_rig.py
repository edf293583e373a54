"""The machine as a whole, from laid-out files: the real one's hardware doesn't count."""

import errno
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno.engines.port import free_port
from dyno.facts.rig import Rig
from dyno.probe import host, rig, software
from dyno.probe.accelerators.nvidia import Nvidia
from dyno.report.machine import rig_lines as lines
from machines import AMD, Listed, Nvml, gpu, lay, mi300x_in_cpx, strix_halo, xeon

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

# ---- the machine ----


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """`sealed(folder)`: nothing in it may be looked at, whoever runs the tests."""

    def seal(folder: Path) -> None:
        for module, name in (
            (os, "stat"),
            (os, "listdir"),
            (os, "scandir"),
            (os, "open"),
            (os, "readlink"),
            (io, "open"),
        ):
            real = getattr(module, name)

            def refuse(path: Any, *args: Any, real: Any = real, **named: Any) -> Any:
                if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(
                    folder
                ):
                    raise PermissionError(errno.EACCES, "Permission denied", str(path))
                return real(path, *args, **named)

            monkeypatch.setattr(module, name, refuse)

    return seal


def test_a_machine_whose_sys_may_not_be_read_is_described_as_far_as_it_is_known(
    tmp_path: Path, sealed: Callable[[Path], None]
) -> None:
    root = xeon(tmp_path)
    (root / "dev/nvidiactl").unlink()  # without a driver, the bus is searched
    sealed(root / "sys")
    found = rig.read_machine(root=root, environ={})
    assert (found.cpu, found.memory_bytes, found.accelerators) == (
        "Intel(R) Xeon(R) Platinum 8480+",
        2113466368 * 1024,
        [],
    )
    assert not {"governor", "boost", "iommu", "transparent_huge_pages"} & set(found.state)


def test_a_server_is_described_as_it_is_set(tmp_path: Path) -> None:
    found = rig.read_machine(root=xeon(tmp_path), environ={}, vendors=[Nvidia(Nvml())])
    assert (found.system, found.kernel) == ("Ubuntu 22.04.5 LTS", "5.15.0-122-generic")
    assert (found.cpu, found.sockets, found.numa_nodes) == (
        "Intel(R) Xeon(R) Platinum 8480+",
        2,
        2,
    )
    assert found.cores == 1  # by the quota of a group above its own
    assert found.memory_bytes == 2113466368 * 1024
    assert (found.swap_bytes, found.swap_used_bytes) == (8388604 * 1024, 2097152 * 1024)
    assert (found.load_average_1min, found.memory_pressure_percent, found.container) == (
        3.5,
        1.25,
        None,
    )
    assert found.state == {
        "numa_balancing": "on",
        "governor": "powersave (balance_performance)",
        "boost": "on",
        "smt": "on",
        "tuned_profile": "throughput-performance",
        "power_limits": "package-0 350 W",
        "iommu": "on (identity) intel_iommu=on iommu=pt",
        "transparent_huge_pages": "madvise",
        "huge_pages": "1024 of 2.0 MiB",
        "cpu_quota": "1 cores",
        "memory_limit": "64.0 GiB",
        "mitigations": "off",
        "virtual_machine": "no",
    }
    assert msgspec.json.decode(msgspec.json.encode(found), type=Rig) == found


def test_details_are_recorded_as_collect_env_has_them_and_without_secrets(
    tmp_path: Path,
) -> None:
    root = xeon(tmp_path)
    boot = "BOOT_IMAGE=/vmlinuz ro iommu=pt rootflags=password=hush42secret"
    lay(root, {
        "proc/cmdline": f"{boot}\n", "sys/class/dmi/id/bios_vendor": "American Megatrends\n",
        "sys/class/dmi/id/bios_version": "2.1\n", "sys/class/dmi/id/bios_date": "05/14/2024\n",
        "sys/class/dmi/id/sys_vendor": "Supermicro\n", "sys/class/dmi/id/product_name": "AS-8125GS\n",
        "run/.containerenv": 'engine="podman-5"\nimage="docker.io/rocm/vllm:1"\n',
    })  # fmt: skip
    found = rig.read_machine(root=root, environ={}, vendors=[], record=True)
    assert found.details.pop("kernel_command_line").startswith(
        "BOOT_IMAGE=/vmlinuz ro iommu=pt"
    )
    assert found.details == {
        "bios": "American Megatrends 2.1 05/14/2024", "board": "Supermicro AS-8125GS", "numa_nodes_per_socket": "1",
        "container_image": "docker.io/rocm/vllm:1",
    }  # fmt: skip
    assert "hush42secret" not in str(
        rig.read_machine(root=root, environ={}, vendors=[], record=True)
    )
    assert rig.read_machine(root=root, environ={}, vendors=[]).details == {}


def test_numa_nodes_of_an_amd_socket_are_its_nps(tmp_path: Path) -> None:
    lay(
        xeon(tmp_path),
        {"proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n"},
    )
    for node in range(8):
        lay(tmp_path, {f"sys/devices/system/node/node{node}/cpulist": ""})
    assert (
        rig.read_machine(root=tmp_path, environ={}, vendors=[], record=True).details[
            "numa_nodes_per_socket"
        ]
        == "NPS4"
    )


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("gcc (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022", "12.2.0"),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x86_64", "18.1.3"),
        ("cmake version 3.28.3\n", "3.28.3"),
        (
            "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright\nBuilt on Tue\nCuda compilation tools, release 12.4, V1",
            "12.4",
        ),
        ("HIP version: 6.2.41133-dd7f95766\n", "6.2.41133"),
        ("no such thing", None),
    ],
)
def test_a_compiler_s_version_is_read_from_its_words(
    text: str, version: str | None
) -> None:
    assert rig.version_in(text) == version


def test_this_machine_has_a_c_library_and_a_kernel_command_line() -> None:
    found = rig.read_machine(vendors=[], record=True).details
    assert re.match(r"glibc \d|musl", found.get("libc", "musl")) and set(found) >= {
        "kernel_command_line"
    }


def test_of_an_empty_machine_all_is_unknown_and_nothing_breaks(tmp_path: Path) -> None:
    found = rig.read_machine(root=tmp_path, environ={})
    assert found.accelerators == [] and found.unknown == [] and found.state == {}
    assert (
        found.memory_bytes is found.sockets is found.numa_nodes is found.swap_bytes is None
    )
    assert found.cores >= 1
    text = "\n".join(lines(found, list(host.STATE)))
    assert "none found" in text and "unknown or absent: numa balancing, governor" in text


def test_an_integrated_gpus_share_of_the_memory_is_part_of_the_state(
    tmp_path: Path,
) -> None:
    state = host.state(strix_halo(tmp_path))
    assert state["gtt"] == "gttsize by the driver, ttm.pages_limit 120.0 GiB"
    assert state["platform_profile"] == "balanced"


def test_governors_that_differ_are_counted(tmp_path: Path) -> None:
    for cpu in range(3):
        path = f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_governor"
        lay(tmp_path, {path: "performance" if cpu else "schedutil"})
    assert host.state(tmp_path)["governor"] == "performance on 2, schedutil on 1"


@pytest.mark.parametrize(
    ("files", "reported"),
    [
        ({}, "off"),
        ({"proc/cmdline": "quiet intel_iommu=off"}, "off intel_iommu=off"),
        (
            {"sys/class/iommu/ivhd0/x": "", "sys/kernel/iommu_groups/3/type": "DMA-FQ"},
            "on (DMA-FQ)",
        ),
        (
            {"sys/class/iommu/ivhd0/x": "", "proc/cmdline": "quiet amd_iommu=on"},
            "on amd_iommu=on",
        ),
    ],
)
def test_the_iommu_is_reported_by_its_groups(
    tmp_path: Path, files: dict[str, str | bytes], reported: str
) -> None:
    (tmp_path / "sys/class/iommu").mkdir(parents=True)
    assert host.state(lay(tmp_path, files))["iommu"] == reported


def test_the_quota_of_an_old_kind_of_container_is_read(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu:/docker/abc\n",
    }
    state = host.state(lay(tmp_path, files))
    assert (state["cpu_quota"], state["memory_limit"]) == ("1.5 cores", "none")
    assert host.container(tmp_path, {}) == "docker"


@pytest.mark.parametrize(
    ("files", "environ", "reported"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {"container": "oci"}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/self/cgroup": "1:cpu:/kubepods/pod1"}, {}, "kubernetes"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
    ],
)
def test_a_container_is_reported_by_the_marks_of_what_made_it(
    tmp_path: Path,
    files: dict[str, str | bytes],
    environ: dict[str, str],
    reported: str | None,
) -> None:
    assert host.container(lay(tmp_path, files), environ) == reported


def test_the_rig_as_text_has_all_and_marks_what_is_unknown(tmp_path: Path) -> None:
    root = lay(strix_halo(xeon(tmp_path)), {"proc/77/comm": "train.py\n"})
    found = rig.read_machine(
        root=root, environ={"CUDA_VISIBLE_DEVICES": "0,1"}, vendors=[Nvidia(Nvml()), AMD]
    )
    text = "\n".join(lines(found, list(host.STATE)))
    for words in (
        "Ubuntu 22.04.5 LTS", "1 usable, 2 sockets, 2 NUMA nodes", "NVIDIA H100 80GB HBM3", "5 GiB of 80 GiB",
        "450 W of 700 W", "1980/2619", "PCIe 5 x8 of x16", "MIG 2×3g.40gb", "8060S Graphics (integrated)",
        "on 0: train.py (pid 77, 4 GiB), ? (pid 78)", "numa balancing          on", "unknown or absent: rocm",
        "CUDA_VISIBLE_DEVICES=0,1", "2 GiB used of 8 GiB",
    ):  # fmt: skip
        assert words in text, words
    assert all(line == line.rstrip() for line in text.splitlines())


def test_accelerators_that_are_alike_share_a_line(tmp_path: Path) -> None:
    found = rig.read_machine(root=mi300x_in_cpx(tmp_path), environ={}, vendors=[AMD])
    names = [line.split()[0] for line in lines(found, []) if "AMD Instinct" in line]
    # a process holds memory on 9; the second card hangs on another node
    assert names == ["0-7", "8", "9", "10-15"]


def test_cards_that_differ_get_a_word_about_the_order_in_which_cuda_counts() -> None:
    mixed = Rig(
        "s", "k", "m", "c", 1, accelerators=[gpu(), gpu(index=1, name="NVIDIA A10")]
    )
    same = msgspec.structs.replace(mixed, accelerators=[gpu(), gpu(index=1)])
    ordered = msgspec.structs.replace(
        mixed, environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    )
    reported = [
        "counts the fastest first" in "\n".join(lines(r, []))
        for r in (mixed, same, ordered)
    ]
    assert reported == [True, False, False]


# ---- who is on an accelerator ----


def test_the_children_of_dyno_are_the_engine_and_others_are_others(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "proc/700/stat": f"700 (a (b) c) S {os.getpid()} 1",
            "proc/701/stat": "701 (x) S 700 1",
        },
    )
    lay(tmp_path, {"proc/800/stat": "800 (bash) S 1 1"})
    source = Listed(gpu(), gpu(index=1), gpu(index=2), pids=((701, 800), (800,), ()))
    found = rig.read_machine(root=tmp_path, environ={}, vendors=[source]).accelerators
    assert [a.engine for a in found] == [True, False, False]
    assert [a.processes for a in found] == [
        ["python3 (pid 800, 1 GiB)"],
        ["python3 (pid 800, 1 GiB)"],
        [],
    ]


def test_where_the_engine_is_on_no_accelerator_it_is_not_known_who_is_who(
    tmp_path: Path,
) -> None:
    [a] = rig.read_machine(
        root=tmp_path, environ={}, vendors=[Listed(gpu(), pids=((12345,),))]
    ).accelerators
    assert (a.engine, len(a.processes)) == (None, 1)


@pytest.fixture
def server() -> Iterator[tuple[int, int]]:
    """Of another parent than dyno's: a process that listens, and a child of it that works."""
    port = free_port()
    code = (
        "import os, socket, subprocess, sys\n"
        f"s = socket.create_server(('127.0.0.1', {port}))\n"
        "worker = subprocess.Popen(['sleep', '60'])\n"
        "print(worker.pid, flush=True)\n"
        "try:\n    sys.stdin.read()\nfinally:\n    worker.kill()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield port, int(process.stdout.readline())
    process.communicate("")


def test_a_server_that_dyno_did_not_start_is_known_by_its_port(
    server: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, worker = server
    source = Listed(gpu(), pids=((worker,),))
    # it is a child of this test, and must not count as one
    monkeypatch.setattr(os, "getpid", lambda: 4_000_000)
    [a] = rig.read_machine(
        [f"http://127.0.0.1:{port}"], environ={}, vendors=[source]
    ).accelerators
    assert (a.engine, a.processes) == (True, [])
    for urls in ([], ["http://192.0.2.1:8000"]):
        [a] = rig.read_machine(urls, environ={}, vendors=[source]).accelerators
        assert (a.engine, len(a.processes)) == (None, 1)


# ---- environment ----


def test_variables_that_matter_are_kept_and_secrets_are_not() -> None:
    secrets = {
        "VLLM_API_KEY": "0123456789", "HF_HOME": "/data/hf_abcdefgh12345678", "NCCL_AUTH": "x", "CUDA_TOKEN": "t",
        "TORCH_PASSWORD": "p", "HIP_CREDENTIALS": "c", "SGLANG_SECRET": "s", "SGLANG_URL": "http://me:pw123@host:1/x",
        "LLAMA_ARGS": "--key sk-proj-abcdefgh1234 --x 1",
    }  # fmt: skip
    plain = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TOKENIZERS_PARALLELISM": "false",
        "MAX_BATCH_TOTAL_TOKENS": "8192",
    }
    reported = software.variables(
        {**secrets, **plain, "HOME": "/root", "OPENAI_API_KEY": "sk-1", "HF_TOKEN": "hf_x"}
    )
    assert reported == {
        **plain, "VLLM_API_KEY": "[redacted]", "HF_HOME": "/data/[redacted]", "NCCL_AUTH": "[redacted]",
        "CUDA_TOKEN": "[redacted]",
        "TORCH_PASSWORD": "[redacted]", "HIP_CREDENTIALS": "[redacted]", "SGLANG_SECRET": "[redacted]",
        "SGLANG_URL": "http://[redacted]@host:1/x", "LLAMA_ARGS": "--key [redacted] --x 1",
    }  # fmt: skip
    assert list(reported) == sorted(reported)
