"""What differs between the machines of two runs."""

from typing import Any

import msgspec
import pytest

from dyno import checks
from dyno.checks import machine
from dyno.facts.rig import Rig
from machines import GiB, gpu

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

RIG = Rig(
    "Ubuntu 22.04", "5.15", "x86_64", "Xeon", 64, sockets=2, numa_nodes=2, memory_bytes=1000 * GiB,
    accelerators=[gpu(index=i, driver="550", power_cap_w=700.0, clock_max_mhz=1980) for i in range(8)],
    state={"governor": "performance", "numa_balancing": "off"},
)  # fmt: skip


def with_(**changes: Any) -> Rig:
    return msgspec.structs.replace(RIG, **changes)


def all_with(**changes: Any) -> Rig:
    return with_(
        accelerators=[msgspec.structs.replace(a, **changes) for a in RIG.accelerators]
    )


@pytest.mark.parametrize(
    ("other", "code", "level", "words"),
    [
        (with_(cpu="EPYC"), "rig.hardware_differs", "note", "cpu Xeon / EPYC"),
        (
            with_(memory_bytes=500 * GiB),
            "rig.hardware_differs",
            "note",
            "memory 1,000 GiB / 500 GiB",
        ),
        (
            with_(accelerators=[]),
            "rig.hardware_differs",
            "note",
            "accelerators 8×NVIDIA H100 / none",
        ),
        (
            all_with(name="MI300X", driver="6.8"),
            "rig.hardware_differs",
            "note",
            "8×NVIDIA H100 / 8×MI300X",
        ),
        (with_(kernel="6.8"), "rig.software_differs", "doubt", "kernel 5.15 / 6.8"),
        (
            with_(container="docker"),
            "rig.software_differs",
            "doubt",
            "container unknown / docker",
        ),
        (all_with(driver="580"), "rig.software_differs", "doubt", "driver 550 / 580."),
        (
            all_with(power_cap_w=450.0),
            "rig.settings_differ",
            "doubt",
            ": power cap 700.0 / 450.0.",
        ),
        (
            all_with(clock_max_mhz=1500),
            "rig.settings_differ",
            "doubt",
            "clock max 1980 / 1500",
        ),
        (
            all_with(partition="CPX/NPS4"),
            "rig.settings_differ",
            "doubt",
            "partition unknown / CPX/NPS4",
        ),
        (
            with_(state={"governor": "powersave"}),
            "rig.settings_differ",
            "doubt",
            "governor performance / powersave",
        ),
        (
            with_(environment={"VLLM_USE_V1": "1"}),
            "rig.environment_differs",
            "note",
            "VLLM_USE_V1 unknown / 1",
        ),
    ],
)
def test_what_differs_between_two_rigs_is_reported_once(
    other: Rig, code: str, level: str, words: str
) -> None:
    [f] = machine.differences(RIG, other)
    assert (f.code, f.level) == (code, level)
    assert words in f.text
    assert f.text.endswith(".")


def test_what_changes_from_hour_to_hour_makes_no_other_rig() -> None:
    later = with_(
        memory_free_bytes=1, load_average_1min=9.0, swap_used_bytes=GiB, python="3.13"
    )
    assert (
        list(machine.differences(RIG, RIG)) == list(machine.differences(RIG, later)) == []
    )


def test_the_doctor_examines_a_rig_without_a_run() -> None:
    assert list(checks.run(rig=RIG)) == []
    [f] = checks.run(rig=all_with(power_cap_default_w=1000.0))
    assert f.code == "rig.power_capped"
    assert "700 W of 1,000 W on 0, 1, 2, 3, 4, 5, 6, 7." in f.text
