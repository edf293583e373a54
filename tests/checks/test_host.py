"""A machine against what a study wants of it, from laid-out files."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno.checks import host
from dyno.cli.main import main
from dyno.conduct.readiness import prepared
from dyno.errors import EngineError
from dyno.facts.rig import HostWanted, Rig
from dyno.facts.study import RigWanted
from dyno.probe import rig
from dyno.probe.accelerators.nvidia import Nvidia
from machines import AMD, Nvml, executable, mi300x_in_cpx, xeon
from studies import study

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

ENGINE = """
[engines.e]
kind = "fake"
[workloads.w]
input_len = 4
output_len = 2
num_prompts = 4
[loads.c]
max_concurrency = 1
"""
PLAIN = Rig("Debian", "6.1", "x86_64", "AMD EPYC 9654", 4)


@pytest.fixture
def server(tmp_path: Path) -> Rig:
    return rig.read_machine(root=xeon(tmp_path), environ={}, vendors=[Nvidia(Nvml())])


def met(machine: Rig, **wanted: Any) -> dict[str, bool | None]:
    return {s.name: s.met for s in host.settings(HostWanted(**wanted), machine)}


def commands(machine: Rig, **wanted: Any) -> list[str]:
    return [s.command for s in host.settings(HostWanted(**wanted), machine)]


# ---- settings ----


def test_a_server_is_compared_with_what_is_wanted(server: Rig) -> None:
    as_it_is = {"numa_balancing": True, "tuned_profile": "throughput-performance", "iommu": "passthrough",
                "transparent_huge_pages": "madvise", "huge_pages": 1024, "governor": "powersave"}  # fmt: skip
    assert set(met(server, **as_it_is).values()) == {True}
    others = {"numa_balancing": False, "tuned_profile": "accelerator-performance", "iommu": "off",
              "transparent_huge_pages": "always", "huge_pages": 1025, "governor": "performance"}  # fmt: skip
    assert set(met(server, **others).values()) == {False}
    assert met(server) == {}


def test_each_setting_has_the_command_that_sets_it(server: Rig) -> None:
    assert commands(
        server, numa_balancing=False, governor="performance", tuned_profile="accelerator-performance",
        iommu="passthrough", transparent_huge_pages="always", huge_pages=2048, power_limit_w=500.0,
    ) == [
        "sudo sysctl kernel.numa_balancing=0",
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        "sudo tuned-adm profile accelerator-performance",
        "# add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo update-grub && sudo reboot",
        "echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        "sudo sysctl vm.nr_hugepages=2048",
        "sudo nvidia-smi -pl 500",
    ]  # fmt: skip
    (off,) = commands(PLAIN, iommu="off")
    assert "add amd_iommu=off" in off


def test_partitions_and_power_of_amd_s_accelerators(tmp_path: Path) -> None:
    machine = rig.read_machine(root=mi300x_in_cpx(tmp_path), environ={}, vendors=[AMD])
    assert set(met(machine, compute_partition="cpx", memory_partition="NPS1").values()) == {
        True
    }
    assert set(met(machine, compute_partition="SPX", memory_partition="NPS4").values()) == {
        False
    }
    assert commands(
        machine, power_limit_w=750.0, compute_partition="SPX", memory_partition="NPS4"
    ) == [
        "sudo amd-smi set --power-cap 750",
        "sudo amd-smi set --compute-partition SPX",
        "sudo amd-smi set --memory-partition NPS4",
    ]
    assert met(machine, power_limit_w=600.0)["power_limit_w"] is True
    first, *rest = machine.accelerators
    mixed = msgspec.structs.replace(
        machine, accelerators=[msgspec.structs.replace(first, power_cap_w=500.0), *rest]
    )
    assert met(mixed, power_limit_w=600.0)["power_limit_w"] is False


def test_what_cannot_be_read_is_unknown_rather_than_wrong() -> None:
    everything = {"numa_balancing": False, "governor": "performance", "iommu": "passthrough", "huge_pages": 1,
                  "power_limit_w": 1.0, "compute_partition": "SPX", "memory_partition": "NPS1"}  # fmt: skip
    assert set(met(PLAIN, **everything).values()) == {None}
    assert host.unmet(HostWanted(**everything), PLAIN) == ""


@pytest.mark.parametrize(
    ("state", "as_wanted"),
    [
        ("performance", True),
        ("powersave (performance)", True),
        ("performance on 2, schedutil on 1", False),
    ],
)
def test_every_processor_must_have_the_governor(state: str, as_wanted: bool) -> None:
    machine = msgspec.structs.replace(PLAIN, state={"governor": state})
    assert met(machine, governor="performance") == {"governor": as_wanted}


# ---- in a study ----


def test_a_study_names_settings_of_its_rigs(tmp_path: Path) -> None:
    text = (
        '[rigs.a]\nhost = { numa_balancing = false, power_limit_w = 750 }\nbefore = ["true"]\n'
        + ENGINE
    )
    made = study(text, tmp_path / "s.toml")
    assert made.rigs["a"].host == HostWanted(numa_balancing=False, power_limit_w=750.0)
    assert made.trials[0].place.host == made.rigs["a"].host
    without = study(text.replace("false", "true"), tmp_path / "s.toml")
    assert without.trials[0].place.id == made.trials[0].place.id  # results are kept


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("numa_balance = false", "numa_balancing"),
        ('numa_balancing = "off"', "true or false"),
        ('iommu = "pt"', "passthrough"),
        ("power_limit_w = 0", "above 0"),
    ],
)
def test_a_mistake_in_them_has_its_line(
    line: str, mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(f"[rigs.a.host]\n{line}\n{ENGINE}")
    assert main(["run", str(path), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert f"s.toml:2: rigs.a.host.{line.split()[0]}" in err and mistake in err


# ---- dyno doctor --for ----


def doctor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: Rig, rigs: str, *words: str
) -> int:
    monkeypatch.setattr(rig, "read_machine", lambda *_, **__: machine)
    (tmp_path / "s.toml").write_text(rigs + ENGINE)
    return main(["doctor", "--for", str(tmp_path / "s.toml"), *words])


def test_the_doctor_prints_the_commands_that_prepare_a_machine(
    server: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = "[rigs.a]\nbefore = ['sudo true']\n[rigs.a.host]\nnuma_balancing = false\nhuge_pages = 1024\n"
    assert doctor(monkeypatch, tmp_path, server, wanted) == 3
    out = capsys.readouterr().out
    assert (
        "  numa_balancing  off     on    no" in out
        and "  huge_pages      1024    1024  yes" in out
    )
    assert "sudo sysctl kernel.numa_balancing=0" in out and "vm.nr_hugepages" not in out
    assert "The study runs these itself, before its first trial\n  sudo true" in out
    assert out.endswith("s on a: 1 setting not as wanted\n")


def test_the_doctor_s_exit_code_is_a_gate_s(
    server: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        doctor(monkeypatch, tmp_path, server, "[rigs.a.host]\nnuma_balancing = true\n") == 0
    )
    assert (
        doctor(monkeypatch, tmp_path, PLAIN, "[rigs.a.host]\nnuma_balancing = true\n") == 4
    )
    assert "1 setting unknown" in capsys.readouterr().out
    assert (
        doctor(
            monkeypatch,
            tmp_path,
            server,
            "[rigs.a]\naccelerator = 'MI300X'\naccelerators = 8\n",
            "--json",
        )
        == 3
    )
    facts = json.loads(capsys.readouterr().out)
    (row,) = facts["settings"]
    assert (row["name"], row["wanted"], row["met"]) == ("accelerators", "8 × MI300X", False)
    assert facts["problems"] == [] and facts["requirements"][0]["what"] == "engine"
    assert doctor(monkeypatch, tmp_path, server, "[rigs.a]\n[rigs.b]\n") == 2
    assert "--rig a or --rig b" in capsys.readouterr().err


def test_the_doctor_reports_the_problems_of_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = (
        '[workloads.x]\ndataset = "sharegpt"\npath = "nowhere.json"\nnum_prompts = 4\n'
    )
    assert doctor(monkeypatch, tmp_path, PLAIN, missing) == 3
    out = capsys.readouterr().out
    assert "nowhere.json': there is no such file" in out and out.endswith("s: 1 problem\n")


# ---- the commands around a study ----


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_study(before: str, after: str, host: str = "") -> int:
    Path("s.toml").write_text(
        f"[rigs.a]\nbefore = ['{before}']\nafter = ['{after}']\n{host}\n{ENGINE}"
    )
    return main(["run", "s.toml", "--no-report", "--plain"])


def test_commands_run_once_around_a_study_and_not_when_nothing_is_left(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    around = (
        "echo before-$(ls runs/s/trials 2>/dev/null) >> log",
        "echo after-$(ls runs/s/trials | wc -l) >> log",
    )
    assert run_study(*around) == run_study(*around) == 0
    assert Path("log").read_text() == "before-\nafter-1\n"


def test_commands_after_a_study_run_also_when_one_before_it_fails(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_study("echo to-stderr; API_KEY=hush false", "touch ended") == 1
    out, err = capfd.readouterr()
    assert Path("ended").exists() and not list(Path("runs").glob("*/trials/*"))
    assert (
        "(before the study) exited with code 1" in err
        and "to-stderr" in err
        and "hush" not in err
        and not out
    )
    assert main(["run", "s.toml", "--dry-run"]) == 0
    assert "# a: after the study\ntouch ended\n" in capfd.readouterr().out


def test_a_study_on_a_machine_that_is_set_otherwise_is_doubtful(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    read_machine = rig.read_machine
    set_so = {"numa_balancing": "on", "transparent_huge_pages": "always"}
    monkeypatch.setattr(
        rig,
        "read_machine",
        lambda *a, **k: msgspec.structs.replace(read_machine(*a, **k), state=set_so),
    )
    wanted = 'host = { numa_balancing = false, transparent_huge_pages = "always", governor = "performance" }'
    assert run_study("true", "true", wanted) == 0
    out, err = capfd.readouterr()
    text = (
        "The machine is not set as the study wants it: numa_balancing is on instead of off."
    )
    assert f"{text} `dyno doctor --for s.toml` prints the commands" in err.replace(
        "\n", " "
    )
    assert "doubt rig.not_as_wanted" in out and "doubtful" in out


def test_the_doctor_says_what_an_engine_in_a_container_will_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    executable(tmp_path / "bin/docker", "import sys", "sys.exit('inspect' in sys.argv)")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub/not-yet"))
    boxed = 'kind = "vllm"\nversion = "0.6.3"\nmodel = "some/model"\ncontainer = { image = "a/b:c" }\n'
    engine = f"[engines.e]\n{boxed}" + ENGINE.partition('kind = "fake"\n')[2]
    monkeypatch.setattr(rig, "read_machine", lambda *_, **__: PLAIN)
    (tmp_path / "s.toml").write_text(engine)
    assert main(["doctor", "--for", str(tmp_path / "s.toml"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    states = {row["what"]: row["state"] for row in facts["requirements"]}
    assert states["image"] == "not here; `dyno run` will pull"
    assert states["model"] == "not here; `dyno run` will pull"
    assert states["disk"].endswith(" free")


def test_where_both_commands_around_a_study_fail_the_first_one_is_reported() -> None:
    said: list[str] = []
    around = prepared(RigWanted(before=["exit 3"], after=["exit 4"]), said.append)
    with (
        pytest.raises(EngineError, match=r"'exit 3' .before the study. exited with code 3"),
        around,
    ):
        raise AssertionError("nothing is measured")
    assert said == [
        "Running 'exit 3' (before the study)",
        "Running 'exit 4' (after the study)",
    ]
