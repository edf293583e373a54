"""Studies on rigs over SSH, end to end: a real sshd on loopback, the llama.cpp of dyno, nothing preinstalled.

The rig has a home of its own and the system's Python. dyno, its dependencies and the data come from this machine.
"""

import json
from pathlib import Path

import pytest

import report_hub
from dyno.store.study import StudyFolder
from hub_server import TOKEN
from rigs_over_ssh import SshRig
from sshd import sshd
from studies import FOLDER, study, twin

pytestmark = pytest.mark.engines


def test_a_study_runs_on_a_rig_that_has_nothing_but_python(ssh_rig: SshRig) -> None:
    (ssh_rig.folder / "prompts.jsonl").write_text(
        '{"prompt": "Sort: 3 1 2", "output_tokens": 8}\n' * 8
    )
    data = '[workloads.recorded]\ndataset = "custom"\npath = "./prompts.jsonl"\noutput_len = 8\nnum_prompts = 4\n'
    ssh_rig.write(repeats=2)
    with (ssh_rig.folder / "s.toml").open("a") as file:
        file.write(data)
    text = ssh_rig.dyno("run", "s.toml", "--plain").expect(0)
    assert (
        text.index("[far] started") < text.index("[far] [1/8]") < text.index("[far] [8/8]")
    )
    planned = study(
        (ssh_rig.folder / "s.toml").read_text(), ssh_rig.folder / "s.toml"
    ).trials
    assert ssh_rig.study.done() == {p.place.id for p in planned}, (
        "trials have the ids that they have at home"
    )
    for p in planned:
        run = ssh_rig.study.run(p.place)
        assert run.result().served.failed == 0
        assert run.manifest().place == p.place
        assert run.engine() is not None and run.client() is not None
    assert (ssh_rig.folder / "runs" / "s" / "report.html").exists()
    (log,) = ssh_rig.study.engines_path.glob("far-*-001-llamacpp/engine.log")
    assert log.stat().st_size > 0
    assert ssh_rig.left() == []
    again = ssh_rig.run()
    assert "[far]" not in again, "all is done: the rig is not asked"


def test_the_load_comes_from_here_and_the_round_trip_is_measured(ssh_rig: SshRig) -> None:
    ssh_rig.write(rig='client = "here"')
    text = ssh_rig.run()
    assert "The network is in the latencies: a round trip to the engine took" in " ".join(
        text.split()
    )
    planned = study(
        (ssh_rig.folder / "s.toml").read_text(), ssh_rig.folder / "s.toml"
    ).trials
    for p in planned:
        run = ssh_rig.study.run(p.place)
        client, result = run.client(), run.result()
        assert client is not None and len(client.round_trips_ns) == 2
        assert all(0 < trip < 1e9 for trip in client.round_trips_ns)
        assert result.served.failed == 0
        assert "client.network" in {f.code for f in result.findings}
        assert str(ssh_rig.server.home) in json.dumps(
            json.loads(run.engine_path.read_bytes())
        )
    assert ssh_rig.left() == []


def test_the_shipped_study_of_two_machines_runs_on_two_rigs(
    tmp_path: Path, ssh_rig: SshRig
) -> None:
    path = FOLDER / "h100-vs-mi300x-online.toml"
    text = twin(path, keep=2)
    with sshd(tmp_path / "second") as second, report_hub.serving(tmp_path / "hub") as hub:
        for name, server in (("h100", ssh_rig.server), ("mi300x", second)):
            ssh = f'ssh = {{ host = "rig-{name}", config_file = "{server.config}" }}'
            text = text.replace(f"[rigs.{name}]\n", f"[rigs.{name}]\n{ssh}\n")
            server.set_environment(HF_ENDPOINT=hub.url)
        (ssh_rig.folder / path.name).write_text(text)
        ssh_rig.env |= {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "hf"),
        }
        ssh_rig.env.pop("HF_HUB_OFFLINE", None)
        shown = ssh_rig.dyno("run", path.name, "--any-rig", "--plain").expect(0)
        assert beside_models(second.left()) == beside_models(ssh_rig.server.left())
    trials = study(text, path).trials
    folder = StudyFolder(ssh_rig.folder / "runs" / path.stem)
    assert {p.place.rig for p in trials} == {"h100", "mi300x"}
    assert folder.done() == {p.place.id for p in trials}
    homes = {
        p.place.rig: json.dumps(json.loads(folder.run(p.place).engine_path.read_bytes()))
        for p in trials
    }
    assert str(ssh_rig.server.home) in homes["h100"] and str(second.home) in homes["mi300x"]
    assert shown.index("[h100] [2/") < shown.index("[mi300x] [1/"), "one after the other"
    assert "h100-meta" in shown and "mi300x-amd" in shown
    page = (folder.path / "report.html").read_text()
    assert "2.99" in page and "4.5" in page, "one report has both prices"
    assert beside_models(ssh_rig.left()) == []


def beside_models(names: list[str]) -> list[str]:
    """What a study left on a rig, without the models that it fetched there: they stay for the next one."""
    return [
        name
        for name in names
        if not name.startswith((".cache/huggingface/", ".local/share/dyno/models/"))
    ]
