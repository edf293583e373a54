"""What dyno asks dstack for, and how SSH reaches it. tests/tools/test_dstack_server.py has a real server."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dyno.cli.main import main
from dyno.errors import RigError
from dyno.facts.elsewhere import DstackSpec
from dyno.facts.study import RigWanted
from dyno.remote import dstack

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

CLOUD = RigWanted(
    accelerator="H100",
    accelerators=8,
    dstack=DstackSpec(regions=["eu-west-1"], max_price=40.0),
)


def asked(rig: RigWanted) -> list[dict[str, Any]]:
    return dstack.configurations("dyno-x", rig)


def test_a_rented_machine_is_an_empty_fleet_and_a_task_in_it_that_ends_by_itself() -> None:
    fleet, task = asked(CLOUD)
    assert fleet == {
        "type": "fleet", "name": "dyno-x", "nodes": "0..1", "idle_duration": "0s", "resources": {"gpu": "H100:8"},
        "regions": ["eu-west-1"], "max_price": 40.0, "spot_policy": "on-demand",
    }  # fmt: skip
    assert (task["type"], task["fleets"], task["max_duration"]) == (
        "task",
        ["dyno-x"],
        "1d",
    )
    assert task["resources"] == fleet["resources"]
    assert task["commands"][-1] == "sleep infinity"


def test_an_existing_fleet_is_used_as_it_is() -> None:
    [task] = asked(
        RigWanted(dstack=DstackSpec(fleet="lab", gpu="24GB..", volumes=["/data:/models"]))
    )
    assert (task["fleets"], task["resources"], task["volumes"]) == (
        ["lab"],
        {"gpu": "24GB.."},
        ["/data:/models"],
    )


def test_a_machine_of_ones_own_is_an_ssh_fleet_and_its_key_a_path() -> None:
    spec = DstackSpec(
        host="hotaisle@ssh.example",
        port=22013,
        key_file="~/.ssh/id_lab",
        image="rocm/vllm:1",
    )
    fleet, task = asked(RigWanted(accelerator="MI300X", dstack=spec))
    hosts = [{"hostname": "ssh.example", "user": "hotaisle", "port": 22013}]
    assert fleet["ssh_config"] == {"identity_file": "~/.ssh/id_lab", "hosts": hosts}
    assert (task["image"], task["resources"]) == ("rocm/vllm:1", {"gpu": "MI300X"})


def test_with_the_load_from_here_it_is_a_service() -> None:
    service = asked(msgspec.structs.replace(CLOUD, client="here"))[-1]
    assert (service["type"], service["port"]) == ("service", 8000)


def test_the_yaml_is_one_document_for_each() -> None:
    text = dstack.as_yaml(asked(CLOUD))
    assert [msgspec.yaml.decode(part) for part in text.split("---\n")] == asked(CLOUD)


def test_a_dry_run_prints_the_yaml_and_asks_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "dstack", None)
    (tmp_path / "s.toml").write_text(
        '[rigs.h100]\naccelerator = "H100"\ndstack = { max_price = 3 }\n[engines.e]\nkind = "fake"\n'
        "[workloads.w]\nnum_prompts = 2\ninput_len = 4\noutput_len = 4\n[loads.l]\nmax_concurrency = 2\n"
    )
    assert main(["run", str(tmp_path / "s.toml"), "--dry-run"]) == 0
    text = (
        capsys.readouterr()
        .out.partition("# h100: submitted to dstack\n")[2]
        .partition("\n# e: ")[0]
    )
    fleet, task = map(msgspec.yaml.decode, text.split("---\n"))
    assert (fleet["max_price"], task["fleets"]) == (3.0, [fleet["name"]])


@pytest.mark.parametrize(
    "rig", ["h100", "MI300X, 8 of them, in the other building", "ü", "-a-"]
)
def test_a_run_has_a_name_that_dstack_takes(rig: str) -> None:
    assert re.fullmatch("[a-z][a-z0-9-]{1,40}", dstack.run_name(rig, "0123456789ab"))


def job(proxy: Any = None, **machine: Any) -> Any:
    data = SimpleNamespace(
        hostname="203.0.113.7",
        ssh_port=2222,
        username="ubuntu",
        ssh_proxy=None,
        dockerized=True,
    )
    vars(data).update(machine)
    submission = SimpleNamespace(
        job_provisioning_data=data,
        job_runtime_data=SimpleNamespace(ports={10022: 32770}, username="me"),
    )
    return SimpleNamespace(
        job_connection_info=proxy,
        job_submissions=[submission],
        job_spec=SimpleNamespace(user=None),
    )


def resolved(config: Path, alias: str) -> dict[str, str]:
    """OpenSSH's own reading of it."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), alias], capture_output=True, text=True, check=True
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_ssh_goes_through_the_host_and_checks_the_containers_key_alone(
    tmp_path: Path,
) -> None:
    hops, verified = dstack._hops("dyno-x", job())
    config = tmp_path / "a config"
    config.write_text(
        dstack.ssh_config(
            hops, tmp_path / "a key", tmp_path / "hosts" if verified else None
        )
    )
    rig, host = resolved(config, "dyno-x"), resolved(config, "dyno-x-host")
    assert (rig["hostname"], rig["port"], rig["user"], rig["proxyjump"]) == (
        "localhost",
        "32770",
        "me",
        "dyno-x-host",
    )
    assert rig["stricthostkeychecking"] in ("yes", "true")
    assert (rig["hostkeyalias"], rig["userknownhostsfile"]) == (
        "dyno-x",
        str(tmp_path / "hosts"),
    )
    assert (host["hostname"], host["port"], host["user"]) == (
        "203.0.113.7",
        "2222",
        "ubuntu",
    )
    assert rig["identityfile"] == host["identityfile"] == str(tmp_path / "a key")
    assert host["userknownhostsfile"] == "/dev/null"


def test_ssh_reaches_a_container_without_a_host_and_one_behind_a_jump(
    tmp_path: Path,
) -> None:
    jump = SimpleNamespace(hostname="198.51.100.1", port=22, username="j")
    hops, _ = dstack._hops("dyno-x", job(dockerized=False, ssh_proxy=jump))
    assert hops == [
        ("dyno-x-jump", "198.51.100.1", 22, "j"),
        ("dyno-x", "203.0.113.7", 2222, "me"),
    ]
    proxy = SimpleNamespace(
        sshproxy_hostname="proxy.example", sshproxy_port=None, sshproxy_upstream_id="u1"
    )
    hops, verified = dstack._hops("dyno-x", job(proxy))
    assert (hops, verified) == ([("dyno-x", "proxy.example", 22, "u1")], False)
    assert "StrictHostKeyChecking" not in dstack.ssh_config(hops, tmp_path / "key", None)


def test_without_the_package_one_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dstack", None)
    with pytest.raises(
        RigError, match=r"needs the package dstack .*pip install '\.\[dstack\]'"
    ):
        dstack.DstackRig("dyno-x", DstackSpec(), tmp_path)


BOXED = """
[rigs.mi300x]
accelerator = "MI300X"
accelerators = 8
dstack = { host = "me@mi300x.example", key_file = "~/.ssh/id_lab" }
[engines.tgi]
kind = "tgi"
model = "org/m"
container = { image = "ghcr.io/huggingface/text-generation-inference:2.4.0-rocm" }
[engines.vllm]
kind = "vllm"
model = "org/m"
container = { image = "rocm/vllm:one" }
[workloads.w]
num_prompts = 2
input_len = 4
output_len = 4
[loads.l]
max_concurrency = 2
"""


def test_engines_in_containers_need_docker_inside_a_machine_of_dstacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "s.toml"
    study.write_text(BOXED)
    for flags in (("--dry-run",), ("--rig", "mi300x")):
        assert main(["run", str(study), "--runs", str(tmp_path / "runs"), *flags]) == 2
        assert (
            "Set dstack.docker = true; or set dstack.image to this image"
            in capsys.readouterr().err
        )
    study.write_text(BOXED.replace('id_lab" }', 'id_lab", docker = true }'))
    assert main(["run", str(study), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert (
        "docker: true" in text
        and "text-generation-inference:2.4.0-rocm" in text
        and "rocm/vllm:one" in text
    )
    study.write_text(BOXED.replace('id_lab" }', 'id_lab", docker = true, image = "x" }'))
    assert main(["run", str(study), "--dry-run"]) == 2
    assert "has docker and image" in capsys.readouterr().err
