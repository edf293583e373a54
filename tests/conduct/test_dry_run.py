"""A dry run is what a person decides by: what is missing where, how large it is, how long it takes, what it costs."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dyno.cli.main import main
from dyno.conduct import earlier, provide
from dyno.engines import image, install
from dyno.engines.model import build
from dyno.facts.engine import EngineSpec
from dyno.facts.recipe import ModelRecipe
from dyno.facts.rig import Accelerator, Rig
from dyno.models import sizes
from dyno.numbers import human_bytes
from dyno.probe import rig as machines
from hub_server import TOKEN, HubServer, serving
from sshd import sshd

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

LOAD = """
[workloads.w]
input_len = 8
output_len = 4
num_prompts = 2
[loads.c]
max_concurrency = [1, 2]
"""
SMALL = '[engines.e]\nkind = "fake"\n' + LOAD
USUAL_PATH = os.environ["PATH"]
PARAMETERS, VOCABULARY, HIDDEN = 1_000_000, 1000, 100


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """An empty machine beside a Hub with three models of a megabyte."""
    for name in ("one", "two", "three"):
        folder = tmp_path / "hub" / "acme" / name
        folder.mkdir(parents=True)
        config = {
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "tie_word_embeddings": True,
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(bytes(2 * PARAMETERS))
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(install, "variant_of_this_machine", lambda: "cpu")
    with serving(tmp_path / "hub") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def dry_run(
    text: str, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> tuple[str, str]:
    Path("s.toml").write_text(text)
    assert main(["run", "s.toml", "--dry-run", *words]) == code
    out, err = capsys.readouterr()
    return out, err


def as_json(
    text: str, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> dict[str, Any]:
    out, _ = dry_run(text, capsys, "--json", *words, code=code)
    decoded: dict[str, Any] = json.loads(out)
    return decoded


def served(*models: str) -> str:
    named = ", ".join(f'"acme/{name}"' for name in models)
    return f'[engines.e]\nkind = "vllm"\nversion = "0.9.0"\nmodel = [{named}]\n{LOAD}'


# ---- sizes ----


def test_a_repository_that_is_silent_or_gone_does_not_make_the_others_unknown(
    hub: HubServer,
) -> None:
    hub.faults.silent = {"acme/two"}
    recipes = [ModelRecipe(f"hub:acme/{name}") for name in ("one", "two", "three", "four")]
    began = time.monotonic()
    one, two, three, four = sizes.ask(recipes, timeout_s=5)
    assert time.monotonic() - began < 40
    assert one.left_bytes == three.left_bytes and (one.left_bytes or 0) > 2 * PARAMETERS
    assert (
        two.left_bytes is None
        and two.unknown == "the Hub didn't answer within 5.000 s"
        and not two.refused
    )
    assert four.left_bytes is None and "There is no model acme/four" in four.refused


def test_a_hub_that_refuses_connections_is_named_on_every_thing_at_once(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    missing = as_json(served("one", "two"), capsys)["rigs"][0]["missing"]
    models = [need for need in missing if need["what"] == "model"]
    assert len(models) == 2 and all(
        "http://127.0.0.1:9 can't be reached" in need["unknown"] for need in models
    )
    engine = next(need for need in missing if need["what"] == "engine")
    assert (engine["size_bytes"], engine["about"]) == (1_800_000_000, True)


def test_a_gated_model_without_a_token_is_a_problem_and_nothing_is_fetched(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.gated = True
    out, err = dry_run(served("one"), capsys, code=2)
    assert re.search(r"acme/one +pull +1.907 MiB; gated; can't be provided", out)
    assert "Token of the Hub for gated models: not set (HF_TOKEN)" in out
    assert (
        f"acme/one is gated. Accept its terms at {hub.url}/acme/one and set HF_TOKEN" in err
    )
    assert main(["run", "s.toml", "--prepare-only"]) == 1
    assert (
        "nothing was fetched or started" in capsys.readouterr().err
        and not hub.sent["model.safetensors"]
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    found = as_json(served("one"), capsys)
    assert found["token"] and found["problems"] == [] and TOKEN not in json.dumps(found)
    (model,) = [need for need in found["rigs"][0]["missing"] if need["what"] == "model"]
    assert model["gated"] and model["size_bytes"] > 2 * PARAMETERS
    assert "1.907 MiB; gated, access granted" in dry_run(served("one"), capsys)[0]


def test_a_made_model_has_about_the_size_of_its_bits_and_parameters(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        '[models.b]\nfrom = "hub:acme/one"\n[models.f]\nfrom = "b"\nquantize = "quark:fp8"\n'
        '[models.g]\nfrom = "b"\nconvert = "gguf:F16"\n[models.q]\nfrom = "g"\nquantize = "llama.cpp:Q4_K_M"\n'
        f'[engines.e]\nkind = "llamacpp"\nmodel = ["g", "q"]\n[engines.v]\nkind = "vllm"\nmodel = "f"\n{LOAD}'
    )
    needs = {
        (n["name"], n["how"].split()[0]): n
        for n in as_json(text, capsys)["rigs"][0]["missing"]
    }
    tables = VOCABULARY * HIDDEN
    assert needs["f", "quantize"]["size_bytes"] == PARAMETERS - tables + 2 * tables
    assert needs["g", "convert"]["size_bytes"] == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert needs["q", "quantize"]["size_bytes"] == pytest.approx(
        4.9 / 8 * PARAMETERS, rel=0.01
    )
    assert all(
        needs[key]["about"]
        for key in (("f", "quantize"), ("g", "convert"), ("q", "quantize"))
    )
    assert not needs["g", "pull"]["about"]


def test_two_files_of_one_repository_are_both_counted(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    root = hub.folder / "acme" / "one"
    for name in ("a.gguf", "b.gguf"):
        (root / name).write_bytes(bytes(PARAMETERS))
    models = "".join(
        f'[models.{n}]\nfrom = "hub:acme/one"\ninclude = ["{n}.gguf"]\n' for n in "ab"
    )
    text = f'{models}[engines.e]\nkind = "llamacpp"\nmodel = ["a", "b"]\n{LOAD}'
    needs = as_json(text, capsys)["rigs"][0]["missing"]
    assert [need["size_bytes"] for need in needs] == [PARAMETERS, PARAMETERS]


def test_an_image_s_size_is_asked_of_its_registry(hub: HubServer, tmp_path: Path) -> None:
    assert "neither skopeo nor docker" in image.registry_size("some/image:1").unknown
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    answer = json.dumps([{"SchemaV2Manifest": {"layers": [{"size": 5}, {"size": 7}]}}])
    docker.write_text(f"#!/bin/sh\necho '{answer}'\n")
    docker.chmod(0o755)
    assert image.registry_size("some/image:1") == image.RegistrySize(12)
    docker.write_text("#!/bin/sh\necho unauthorized >&2\nexit 1\n")
    assert image.registry_size("some/image:1").unknown == "`docker` failed: unauthorized"


def test_a_disk_that_is_too_small_is_a_problem(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.sizes = {"model.safetensors": 1 << 55}
    out, err = dry_run(served("one"), capsys, code=2)
    assert ": too little" in out and "are needed at" in err and "are free" in err


# ---- machines ----


@pytest.mark.parametrize(
    ("accelerator", "how"),
    [
        ("H100", "install"),
        ("MI300X", "pull docker.io/rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715"),
        (
            "Strix Halo",
            "pull docker.io/vllm/vllm-openai-rocm:v0.14.0 (0.14.0, which the setting accepts)",
        ),
    ],
)
def test_another_machine_needs_everything_by_its_kind_of_accelerator(
    accelerator: str, how: str, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = f'[rigs.far]\naccelerator = "{accelerator}"\naccelerators = 8\n'
    text = rig + served("one").replace('"0.9.0"', '"0.9.1"\naccepts = ">=0.9.1,<0.15"')
    (far,) = as_json(text, capsys)["rigs"]
    assert (far["rig"], far["known_by"], far["machine"]) == (
        "far",
        "described",
        f"8 × {accelerator}, another machine",
    )
    assert [(need["what"], need["how"]) for need in far["missing"]] == [
        ("model", "pull"),
        ("engine", how),
    ]
    assert far["disks"][0]["free_bytes"] is None
    out, _ = dry_run(text, capsys)
    assert "What a bare machine needs; provided there before the first trial:" in out


def test_a_version_without_an_image_is_a_problem_before_anything_is_fetched(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = '[rigs.far]\naccelerator = "MI300X"\n'
    _, err = dry_run(rig + served("one").replace("0.9.0", "0.5.0"), capsys, code=2)
    assert (
        "engine vllm 0.5.0 on far can't be provided: No image of vllm 0.5.0 for rocm on gfx942 is known"
        in err
    )
    monkeypatch.setattr(install, "variant_of_this_machine", lambda: "rocm")
    Path("s.toml").write_text(served("one").replace("0.9.0", "0.5.0"))
    assert main(["run", "s.toml"]) == 2
    err = capsys.readouterr().err
    assert (
        "nothing was fetched or started" in err
        and "No image of vllm 0.5.0 for rocm is known" in err
    )
    assert not hub.requests[1:] and provide.refusal(EngineSpec("fake")) is None


def test_a_machine_over_ssh_that_can_t_be_asked_is_described(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = dry_run('[rigs.far]\nssh = "me@h100.example.com"\n' + SMALL, capsys)
    assert "Not asked: me@h100.example.com is a placeholder" in out
    out, _ = dry_run('[rigs.far]\nssh = "me@127.0.0.1"\n' + SMALL, capsys)
    assert "Not asked: There is no `ssh` on this machine." in out


def test_a_machine_over_ssh_is_asked_what_it_has(
    hub: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{USUAL_PATH}")
    models = '[models.b]\nfrom = "hub:acme/one"\n[models.c]\nfrom = "hub:acme/two"\n'
    with sshd(tmp_path / "rig") as server:
        rig = f'[rigs.far]\naccelerator = "H100"\nssh = {{ host = "rig", config_file = "{server.config}" }}\n'
        text = f'{rig}{models}[engines.e]\nkind = "vllm"\nversion = "0.9.1"\nmodel = ["b", "c"]\n{LOAD}'
        for name in (
            f"models/{ModelRecipe('hub:acme/one').name}",
            "engines/vllm-0.9.1-cuda",
        ):
            folder = server.home / ".local" / "share" / "dyno" / name
            folder.mkdir(parents=True)
            (folder / "dyno.json").write_text("{}")
        (far,) = as_json(text, capsys)["rigs"]
    assert (far["known_by"], far["note"]) == ("asked", "")
    assert [(need["what"], need["name"]) for need in far["missing"]] == [("model", "c")]
    assert far["disks"][0]["free_bytes"] > 0 and "dyno" in far["disks"][0]["folder"]


# ---- time and cost ----


def test_repeats_are_folded_and_the_deciding_part_comes_last(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = dry_run("repeats = 5\n" + SMALL, capsys)
    assert out.count("e, w, c concurrency 2: ") == 1 and "5 repeats, ~" in out
    assert (
        out.index("# The commands") < out.index("# What it takes") < out.index("# About ")
    )
    assert len(out.splitlines()) < 40


def test_earlier_runs_of_the_same_engine_replace_the_assumption(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    before = as_json(SMALL, capsys)
    assert {phase["basis"] for phase in before["rigs"][0]["phases"]} == {"assumed"}
    assert main(["run", "s.toml", "--no-report", "--plain"]) == 0
    capsys.readouterr()
    done = as_json(SMALL, capsys)
    assert (done["done"], done["seconds"]) == (2, 0.0)
    again = as_json(SMALL, capsys, "--new")
    assert {phase["name"]: phase["basis"] for phase in again["rigs"][0]["phases"]} == {
        "start": "measured", "load": "measured",
    }  # fmt: skip
    other = as_json(SMALL.replace("num_prompts = 2", "num_prompts = 200"), capsys, "--new")
    assert [trial["basis"] for trial in other["sessions"][0]["trials"]] == [
        "measured",
        "measured",
    ]
    assert (
        other["rigs"][0]["phases"][-1]["seconds"]
        > again["rigs"][0]["phases"][-1]["seconds"]
    )


def test_the_speed_of_earlier_fetches_gives_the_time_of_the_next(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        '[models.b]\nfrom = "hub:acme/{}"\n[engines.e]\nkind = "llamacpp"\nmodel = "b"\n'
        + LOAD
    )
    phases = as_json(text.format("one"), capsys)["rigs"][0]["phases"]
    assert (
        phases[0]["name"] == "fetch"
        and phases[0]["basis"] == "assumed"
        and "at 1 Gbit/s" in phases[0]["about"]
    )
    assert phases[0]["seconds"] == pytest.approx(2 * PARAMETERS / 125e6, rel=0.01)
    texts = hub.folder / "datasets" / "acme" / "texts"
    texts.mkdir(parents=True)
    (texts / "texts.jsonl").write_bytes(bytes(2 << 20))
    assert main(["models", "pull", "acme/texts", "--dataset"]) == 0
    capsys.readouterr()
    assert (
        "at 1 Gbit/s"
        in as_json(text.format("one"), capsys)["rigs"][0]["phases"][0]["about"]
    ), "two MB show no speed"
    monkeypatch.setattr(earlier, "_LEAST_BYTES", 1 << 20)
    phase = as_json(text.format("one"), capsys)["rigs"][0]["phases"][0]
    assert phase["basis"] == "measured" and phase["seconds"] > 0


def test_cost_is_time_by_price_for_each_rig_and_in_total(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rigs = "".join(
        f'[rigs.{name}]\naccelerator = "{name}"\naccelerators = 8\nprice = {{ accelerator_hour = {price} }}\n'
        for name, price in (("H100", 2.99), ("MI300X", 4.5))
    )
    found = as_json(rigs + SMALL, capsys)
    for rig, hour in zip(found["rigs"], (23.92, 36.0), strict=True):
        assert rig["cost"]["hour"] == pytest.approx(hour)
        assert rig["cost"]["amount"] == pytest.approx(rig["seconds"] / 3600 * hour)
    assert found["cost"] == {
        "USD": pytest.approx(sum(rig["cost"]["amount"] for rig in found["rigs"]))
    }
    given = as_json(rigs + SMALL, capsys, "--price", "H100=10")
    assert given["rigs"][0]["cost"]["hour"] == 80 and given["rigs"][1]["cost"]["hour"] == 36
    none = as_json(SMALL, capsys)["rigs"][0]["cost"]
    assert (
        none["amount"] is None
        and "give --price 2.99 or --price machine=12" in none["about"]
    )


def test_weights_and_bandwidth_make_the_assumption_where_both_are_known(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.sizes = {"model.safetensors": 140 << 30}
    seconds = []
    for accelerator in ("H100", "MI300X"):
        rig = f'[rigs.far]\naccelerator = "{accelerator}"\naccelerators = 8\n'
        found = as_json(
            rig + served("one").replace("version", "tensor_parallel = 8\nversion"), capsys
        )
        load = found["rigs"][0]["phases"][-1]
        assert (
            re.search(f"of what 8 × .*{accelerator}", load["about"])
            and load["basis"] == "assumed"
        )
        seconds.append(found["sessions"][0]["trials"][0]["seconds"])
    assert seconds[0] > seconds[1], "an MI300X reads its memory faster"


def test_weights_of_unknown_size_are_counted_by_the_model_s_name(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    seconds = {}
    for name in ("Llama-3.1-405B", "Llama-3.1-405B-FP8", "Mixtral-8x7B", "one"):
        text = '[rigs.far]\naccelerator = "H100"\n' + served(name)
        rig = as_json(text, capsys)["rigs"][0]
        seconds[name] = (
            rig["phases"][-1]["seconds"],
            "(by its name)" in rig["phases"][-1]["about"],
        )
        assert all(
            need["size_bytes"] is None for need in rig["missing"] if need["what"] == "model"
        ), "only the time"
    assert [named for _, named in seconds.values()] == [True, True, False, False]
    assert (
        seconds["Llama-3.1-405B"][0] > seconds["Llama-3.1-405B-FP8"][0] > seconds["one"][0]
    )


# ---- slots ----

SLOTS = '[engines.e]\nkind = "llamacpp"\n'


def test_an_engine_with_one_slot_gets_as_many_as_the_highest_concurrency(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SLOTS + LOAD.replace("input_len = 8", "input_len = 700")
    out, _ = dry_run(text, capsys)
    assert (
        "--ctx-size 1536 --parallel 2" in out
        and "# 2 slots for concurrency 2, each with a context of 768" in out
    )
    assert out.count("--parallel") == 1 and "only 1 run at once" not in out, (
        "one start serves both loads"
    )
    for own in ("max_num_seqs = 3\n", 'args = ["--parallel", "3"]\n'):
        assert "--parallel 3" in dry_run(SLOTS + own + LOAD, capsys)[0]
    assert (
        "--ctx-size 2000 --parallel 2"
        in dry_run(SLOTS + "max_model_len = 1000\n" + LOAD, capsys)[0]
    )
    halves, _ = dry_run(SLOTS + "replicas = 2\n" + LOAD.replace("[1, 2]", "[1, 8]"), capsys)
    assert "--parallel 4" in halves


def test_slots_whose_context_isn_t_known_stay_as_they_are(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("d.jsonl").write_text('{"prompt": "a"}\n')
    text = SLOTS + LOAD.replace("input_len = 8", 'dataset = "custom"\npath = "d.jsonl"')
    assert "--parallel" not in dry_run(text, capsys)[0]


def test_slots_have_room_for_the_questions_of_built_in_tasks_too(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study with quality had one slot, and a queue."""
    asked = SLOTS + LOAD + '[quality]\ntasks = ["builtin"]\n'
    out, _ = dry_run(asked, capsys)
    assert "--parallel 2" in out
    assert "--parallel 4" in dry_run(asked + "concurrency = [1, 4]\n", capsys)[0]
    more = dry_run(asked + "max_tokens = 4096\n", capsys)[0]
    (context,) = re.findall(r"each with a context of ([\d,]+)", more)
    assert int(context.replace(",", "")) > 4096, "an answer has room"
    others = SLOTS + LOAD + '[quality]\ntasks = ["gsm8k"]\n'
    assert "--parallel" not in dry_run(others, capsys)[0], "its lengths are unknown"


def test_slots_that_don_t_fit_the_memory_are_a_problem(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SLOTS + "max_model_len = 100000000\n" + LOAD.replace("[1, 2]", "[1, 64]")
    _, err = dry_run(text, capsys, code=2)
    assert "of memory are free" in err


# ---- JSON ----


def test_text_and_json_have_the_same_numbers(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '[rigs.far]\naccelerator = "H100"\nprice = { machine_hour = 24 }\n' + served(
        "one", "two"
    )
    out, _ = dry_run(text, capsys)
    found = as_json(text, capsys)
    (rig,) = found["rigs"]
    for need in rig["missing"]:
        shown = rf"{need['what']} +{re.escape(need['name'])} +{re.escape(need['how'])} +(about )?"
        assert re.search(shown + re.escape(human_bytes(need["size_bytes"])), out)
    assert f"about {rig['cost']['amount']:,.2f} USD" in out
    assert found["seconds"] == pytest.approx(sum(p["seconds"] or 0 for p in rig["phases"]))
    for session in found["sessions"]:
        assert all(
            f"{trial['label']}: {trial['asked']}" in out for trial in session["trials"]
        )
    for block in found["commands"]:
        assert "\n".join([f"# {block['title']}", *block["lines"]]) in out


def test_json_needs_a_dry_run(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.toml").write_text(SMALL)
    assert main(["run", "s.toml", "--json"]) == 2
    assert "--json prints a dry run" in capsys.readouterr().err


def test_a_model_that_is_here_needs_no_fetch(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(build("Q4_0"), "m.gguf")
    found = as_json('[engines.e]\nkind = "llamacpp"\nmodel = "m.gguf"\n' + LOAD, capsys)
    assert found["rigs"][0]["missing"] == [] and found["problems"] == []


# ---- the page, read by a study's author ----


def test_an_engine_that_comes_in_an_image_is_shown_in_its_container(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = '[rigs.far]\naccelerator = "Strix Halo"\n'
    text = rig + served("one").replace('"0.9.0"', '"0.9.1"\naccepts = ">=0.9.1,<0.15"')
    out, _ = dry_run(text, capsys)
    assert "# vLLM 0.14.0, the image docker.io/vllm/vllm-openai-rocm:v0.14.0" in out
    assert re.search(
        r"docker run .*--device=/dev/kfd .* docker.io/vllm/vllm-openai-rocm:v0.14.0 serve acme/one",
        out,
    )
    assert "vLLM is 0.14.0; the setting is written for 0.9.1 and accepts it" in out


def test_a_flag_that_the_image_s_version_lacks_is_a_problem(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = '[rigs.far]\naccelerator = "Strix Halo"\n'
    steps = 'accepts = ">=0.9.1,<0.15"\nargs = ["--num-scheduler-steps", "8"]'
    text = rig + served("one").replace('"0.9.0"', f'"0.9.1"\n{steps}')
    _, err = dry_run(text, capsys, code=2)
    assert "--num-scheduler-steps" in err and "0.14.0" in err


def test_trials_are_listed_by_rig_and_in_the_order_of_the_file(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rigs = '[rigs.first]\naccelerator = "H100"\n[rigs.second]\naccelerator = "MI300X"\n'
    found = as_json(rigs + SMALL.replace("[1, 2]", "[1, 2, 4, 8, 16]"), capsys)
    assert [session["rig"] for session in found["sessions"]] == ["first", "second"]
    for session in found["sessions"]:
        loads = [trial["label"].rpartition(" ")[2] for trial in session["trials"]]
        assert loads == ["1", "2", "4", "8", "16"]


def test_another_machine_s_part_says_how_to_run_it_there(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = dry_run('[rigs.far]\naccelerator = "H100"\n' + SMALL, capsys)
    assert (
        "Run its trials on that machine with --rig far, or from here with --ssh far=USER@HOST."
        in out
    )
    assert "# The commands, with the paths of this machine" in out and "1. e on far" in out
    assert "--rig" not in dry_run(SMALL, capsys)[0]


def test_a_part_of_a_card_takes_longer_than_the_whole(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.sizes = {"model.safetensors": 70 << 30}
    text = '[rigs.far]\naccelerator = "MI300X"\n' + served("one").replace(
        "0.9.0", "0.9.1"
    ).replace("= 8", "= 4096")
    whole = as_json(text, capsys)["rigs"][0]["phases"][-1]
    cut = '[rigs.far]\nhost = { compute_partition = "CPX", memory_partition = "NPS1" }\n'
    part = as_json(text.replace("[rigs.far]\n", cut), capsys)["rigs"][0]["phases"][-1]
    assert (
        "each a part of a card (CPX/NPS1)" in part["about"]
        and part["seconds"] > 1.5 * whole["seconds"]
    )


def test_no_known_size_is_not_zero(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    text = '[rigs.far]\naccelerator = "MI300X"\n' + served("one").replace("0.9.0", "0.9.1")
    out, _ = dry_run(text, capsys)
    assert "Disk: unknown; no size is known" in out and "0 B" not in out
    assert out.rstrip().endswith(
        "and an unknown time to fetch. Finished trials make this more exact."
    )


def test_what_a_build_needs_of_the_machine_is_reported(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        '[rigs.far]\naccelerator = "Strix Halo"\n[models.g]\nfrom = "hub:acme/one"\nconvert = "gguf:F16"\n'
        f'[engines.e]\nkind = "llamacpp"\nversion = "6327"\nmodel = "g"\n{LOAD}'
    )
    needs = {
        need["name"]: need["how"] for need in as_json(text, capsys)["rigs"][0]["missing"]
    }
    assert (
        needs["llamacpp 6327"]
        == "install; its build needs a C++ compiler and ROCm with HIP"
    )
    assert needs["llama-tools"] == "install; its build needs a C++ compiler"


# ---- on the machine itself ----


@pytest.fixture
def mi300x(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine as a node with eight MI300X, by its data sheet, without a container tool."""
    cards = [
        Accelerator(
            i,
            "AMD Instinct MI300X",
            "amd",
            memory_bytes=192 << 30,
            architecture="gfx942",
            partition="SPX/NPS1",
        )
        for i in range(8)
    ]
    machine = Rig(
        "Linux", "6.8", "x86_64", "EPYC", 192, memory_bytes=2 << 40, accelerators=cards
    )
    monkeypatch.setattr(machines, "read_machine", lambda: machine)
    monkeypatch.setattr(install, "variant_of_this_machine", lambda: "rocm")


INSTINCT = '[rigs.near]\naccelerator = "MI3"\n'


@pytest.mark.usefixtures("mi300x")
def test_a_container_tool_that_is_missing_here_is_a_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, err = dry_run(INSTINCT + served("one").replace("0.9.0", "0.9.1"), capsys, code=2)
    assert (
        "near (8 × AMD Instinct MI300X)" in out
        and "the image docker.io/rocm/vllm:rocm6.4.1_vllm_0.9.1" in out
    )
    assert "docker" in err and "podman" in err
    # The tools of another machine aren't known.
    far = '[rigs.far]\naccelerator = "H100"\n' + served("one").replace(
        "kind", 'container = { image = "i:1" }\nkind'
    )
    assert dry_run(far, capsys)[1] == ""


def test_a_model_that_is_too_large_is_a_problem_before_it_is_fetched(
    hub: HubServer, mi300x: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text("#!/bin/sh\nexit 1\n")
    docker.chmod(0o755)
    hub.faults.sizes = {"model.safetensors": 700 << 30}
    text = INSTINCT + served("one").replace("0.9.0", "0.9.1")
    _, err = dry_run(text, capsys, code=2)
    assert (
        "The weights of acme/one take 700 GiB, but 1 × AMD Instinct MI300X have 192 GiB."
        in err
    )
    enough = text.replace("kind", "tensor_parallel = 4\nkind")
    assert "The weights" not in dry_run(enough, capsys, code=2)[1], (
        "only the disk is too small"
    )


@pytest.mark.usefixtures("mi300x")
def test_a_whole_card_is_not_a_part_and_one_that_the_study_cuts_is(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.sizes = {"model.safetensors": 1 << 30}
    text = INSTINCT + served("one").replace("0.9.0", "0.9.1")
    whole = as_json(text, capsys, code=2)["rigs"][0]["phases"][-1]
    assert "part of a card" not in whole["about"]
    cut = 'host = { compute_partition = "CPX" }\n'
    part = as_json(INSTINCT + cut + text.removeprefix(INSTINCT), capsys, code=2)["rigs"][0][
        "phases"
    ][-1]
    assert "part of a card (CPX)" in part["about"]
