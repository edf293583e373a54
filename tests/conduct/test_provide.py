"""From a bare machine by one command: what a study lacks is listed, provided before the first trial, and recorded."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dyno.cli.main import main
from dyno.conduct import provide
from dyno.engines import install
from dyno.engines.model import build
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.recipe import ModelRecipe
from dyno.facts.rig import Rig
from dyno.models import library
from dyno.store.rows import read_row
from dyno.store.run import Run
from dyno.trial import weights
from dyno.trial.engine_plan import EnginePlan
from hub_server import HubServer, serving

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

STUDY = """
[variables]
model = "hub:test/tiny"
[models.tiny]
from = "${model}"
[engines.llama]
kind = "llamacpp"
model = "tiny"
max_num_seqs = 2
max_model_len = 128
[workloads.w]
input_len = 8
output_len = 4
num_prompts = 2
[loads.c]
max_concurrency = 1
[trial]
tokenizer = "tiny"
"""
RIG = Rig("test", "0", "any", "cpu", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hub's folder with one GGUF model."""
    out = tmp_path_factory.mktemp("hub") / "test" / "tiny"
    out.mkdir(parents=True)
    model = build("Q4_0")
    shutil.copy(model, out / "tiny-Q4_0.gguf")
    shutil.copy(model.with_name("tokenizer.json"), out)
    shape = out.with_name("shape")
    shape.mkdir()
    (shape / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}'
    )
    (shape / "model.safetensors").write_bytes(b"never read")
    return out.parent.parent


@pytest.fixture
def hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    """An empty machine beside that Hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    Path("s.toml").write_text(STUDY)
    with serving(folder) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def run(*words: str) -> int:
    return main(["run", "s.toml", "--no-report", "--plain", *words])


def await_sent(hub: HubServer, count: int) -> None:
    deadline = time.monotonic() + 60
    while hub.sent["tiny-Q4_0.gguf"] < count:
        assert time.monotonic() < deadline, hub.requests
        time.sleep(0.02)


def starting() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "dyno", "run", "s.toml", "--no-report", "--plain"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_dry_run_lists_what_is_missing_and_fetches_nothing(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--dry-run") == 0
    out = capsys.readouterr().out
    assert "model  tiny  pull hub:test/tiny  2.931 MiB\n#   Disk: 2.931 MiB needed; " in out
    assert f"--model {library.models_folder()}/tiny-" in out and "--alias tiny" in out
    assert not library.models_folder().exists() and not hub.sent
    Path("s.toml").write_text(
        STUDY.replace('from = "${model}"', 'from = "${model}"\nquantize = "quark:fp8"')
    )
    assert run("--dry-run") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["#", "tool", "quark", "install", "about", "1.118", "GiB"] in lines
    assert [line[:6] for line in lines if "quark:fp8" in line] == [
        ["#", "model", "tiny", "quantize", "quark:fp8", "about"]
    ]


@pytest.mark.hostile
def test_a_model_is_pulled_measured_and_recorded_by_one_command_even_if_it_was_killed_before(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.slow = {"tiny-Q4_0.gguf"}
    with starting() as first:
        await_sent(hub, 1_000_000)
        first.send_signal(signal.SIGKILL)
    assert not Path("runs/s/trials").exists() and library.entries() == []
    hub.faults.slow.clear()
    hub.faults.go_on.set()
    assert run() == 0
    (trial,) = Path("runs/s/trials").iterdir()
    engine, manifest = (
        json.loads((trial / name).read_text()) for name in ("engine.json", "trial.json")
    )
    origin = engine["models"]["tiny"]
    assert origin["origin"].startswith("hub:test/tiny@") and origin["verified"] == {
        "checksums": "2 files"
    }
    spec = manifest["trial"]["engine"]
    assert (spec["model"], spec["served_name"], spec["weights"]) == (
        "tiny",
        "tiny",
        {"tiny": {"from": "hub:test/tiny"}},
    )
    assert manifest["target"]["model"] == manifest["trial"]["tokenizer"] == "tiny"
    assert (
        manifest["trial"]["target"]["model"] == "tiny"
        and "/snapshots/" in manifest["model"]["path"]
    )
    assert "Model tiny: pull hub:test/tiny" in capsys.readouterr().err
    assert (
        read_row(Run(trial)).setting("origin")
        == f"hub:test/tiny@{origin['origin'].rpartition('@')[2][:7]}"
    )
    assert main(["runs", "show", str(trial)]) == 0
    assert (
        f"Model tiny: hub:test/tiny@{origin['origin'].rpartition('@')[2][:7]}, 2.931 MiB"
        in capsys.readouterr().out
    )


def test_prepare_only_provides_and_stops(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--prepare-only") == 0
    assert capsys.readouterr().out.startswith("model tiny: ") and not Path("runs").exists()
    sent = dict(hub.sent)
    assert run("--prepare-only") == 0
    assert capsys.readouterr().out == "Nothing to fetch or install.\n" and hub.sent == sent


def test_no_prepare_refuses_with_advice(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--no-prepare") == 2
    assert (
        "The model tiny isn't on this machine." in capsys.readouterr().err
        and not hub.requests
    )


@pytest.mark.hostile
def test_ctrl_c_while_preparing_names_the_command_that_continues(hub: HubServer) -> None:
    hub.faults.slow = {"tiny-Q4_0.gguf"}
    with starting() as first:
        await_sent(hub, 1_000_000)
        began = time.monotonic()
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=60)
    assert first.returncode == 130 and time.monotonic() - began < 10
    assert (
        "interrupted while preparing" in err and "dyno run s.toml" in err.splitlines()[-1]
    )


def test_failures_are_reported_together_before_anything_starts(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    more = '[models.gone]\nfrom = "hub:test/gone"\n[models.local]\nfrom = "file:nowhere"\n'
    Path("s.toml").write_text(
        more + STUDY.replace('model = "tiny"', 'model = ["gone", "local", "tiny"]')
    )
    assert run() == 1
    err = capsys.readouterr().err
    assert "1 thing can't be provided; nothing was fetched or started" in err
    assert (
        "model gone, pull hub:test/gone: There is no model test/gone" in err
        and not hub.sent
    )
    Path("s.toml").write_text(
        more + STUDY.replace('model = "tiny"', 'model = ["local", "tiny"]')
    )
    assert run() == 1
    assert "model local, pull file:" in capsys.readouterr().err
    assert [entry.recipe.source for entry in library.entries()] == ["hub:test/tiny"], (
        "others are provided all the same"
    )
    assert not Path("runs/s/trials").exists()


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_fetched(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.sizes = {"tiny-Q4_0.gguf": 1 << 60}
    assert run() == 1
    assert "are to be fetched to" in capsys.readouterr().err and not hub.sent


def test_a_model_of_the_hub_is_fetched_before_the_engine_starts_under_its_own_name(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vllm = tmp_path / "vllm"
    vllm.write_text(
        "#!/bin/sh\ncase $1 in --version) echo 0.9.0;; *) echo no; exit 3;; esac\n"
    )
    vllm.chmod(0o755)
    words = [
        "bench",
        "serve",
        "--engine",
        "vllm",
        "--model",
        "test/shape",
        "--engine-binary",
        str(vllm),
    ]
    assert main([*words, "--load-format", "dummy", "--num-prompts", "1"]) == 1
    err = capsys.readouterr().err
    assert err.index("Model test/shape: pull") < err.index(
        "Starting vLLM 0.9.0 with test/shape"
    )
    assert hub.sent["config.json"] and not hub.sent["model.safetensors"], (
        "random weights need none"
    )


# ---- plans ----


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelRecipe:
    """A model that is here, in its own folder."""
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    source = tmp_path / "tiny.gguf"
    shutil.copy(build("Q4_0"), source)
    recipe = ModelRecipe(source=f"file:{source}")
    provide.steps.run(recipe, lambda _: None, lambda _: None)
    return recipe


def test_a_plan_has_the_path_and_the_server_the_name(made: ModelRecipe) -> None:
    spec = EngineSpec("llamacpp", model="tiny", weights={"tiny": made})
    plan = EnginePlan(spec, RIG)
    assert (plan.spec.model, plan.served_name) == (
        made.source.removeprefix("file:"),
        "tiny",
    )
    assert (
        plan.stored.model == "tiny"
        and plan.model is not None
        and plan.origins["tiny"].origin == made.source
    )
    assert plan.again().spec == plan.spec
    gone = EngineSpec(
        "llamacpp", model="gone", weights={"gone": ModelRecipe(source="hub:o/n")}
    )
    with pytest.raises(UsageError, match="The model gone isn't on this machine"):
        EnginePlan(gone, RIG)
    assert EnginePlan(gone, RIG, dry=True).problems() == []


def test_a_model_in_the_hub_s_cache_is_mounted_with_its_repository(
    made: ModelRecipe,
) -> None:
    """A snapshot's files are links into its repository's folder."""
    cache = Path(made.source.removeprefix("file:")).parent / "models--o--n"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots" / "1").mkdir(parents=True)
    shutil.copy(made.source.removeprefix("file:"), cache / "blobs" / "2")
    (cache / "snapshots" / "1" / "m.gguf").symlink_to("../../blobs/2")
    linked = ModelRecipe(source=f"file:{cache}/snapshots/1/m.gguf")
    provide.steps.run(linked, lambda _: None, lambda _: None)
    spec = EngineSpec(
        "llamacpp",
        model="a",
        draft_model="b",
        weights={"a": linked, "b": made},
        container=ContainerSpec("i:1"),
    )
    argv = EnginePlan(spec, RIG, dry=True).launches[0].argv
    path = made.source.removeprefix("file:")
    assert [word for word in argv if word.endswith(":ro")] == [
        f"--volume={cache}:{cache}:ro",
        f"--volume={path}:{path}:ro",
    ]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"model": "o/n"}, ["hub:o/n"]),
        (
            {"model": "o/n", "args": ["--revision", "v1"], "draft_model": "o/d"},
            ["hub:o/n@v1", "hub:o/d"],
        ),
        ({"model": "gpt2"}, []),  # of the engine's own making, perhaps
        ({"model": "./o/n"}, []),
        ({"model": "o/n", "env": {"HF_HOME": "/data"}}, []),  # another cache
        (
            {
                "model": "o/n",
                "container": ContainerSpec("i:1", mounts=["/x:/root/.cache/huggingface"]),
            },
            [],
        ),
        ({"model": "o/n", "kind": "llamacpp"}, []),
    ],
)
def test_models_that_an_engine_would_fetch_when_it_starts(
    fields: dict[str, object], wanted: list[str]
) -> None:
    spec = EngineSpec(**{"kind": "vllm", **fields})  # type: ignore[arg-type]
    assert [recipe.source for recipe in weights.of_hub(spec).values()] == wanted


def test_random_weights_need_the_configuration_only() -> None:
    (recipe,) = weights.of_hub(
        EngineSpec("vllm", model="o/n", load_format="dummy")
    ).values()
    assert "*.json" in recipe.include and "*.safetensors" not in recipe.include


# ---- engines and images ----


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without engines and container tools; its PATH."""
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(install, "variant_of_this_machine", lambda: "cpu")
    return tmp_path / "bin"


def test_an_engine_that_is_not_here_is_installed_in_the_version_of_the_study(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str | None]] = []

    def installing(kind: str, version: str | None, **_: object) -> None:
        calls.append((kind, version))
        raise EngineError("no index")

    monkeypatch.setattr(install, "install", installing)
    specs = [
        EngineSpec("vllm", model="m", version="0.9.0"), EngineSpec("vllm", model="other", version="0.9.0"),
        EngineSpec("llamacpp"), EngineSpec("fake"), EngineSpec("vllm", model="m", python=sys.executable),
        EngineSpec("tgi", model="m"),  # there is none for a CPU
    ]  # fmt: skip
    missing = provide.needs(specs)
    assert [(need.what, need.name, need.how) for need in missing] == [
        ("engine", "vllm 0.9.0", "install")
    ]
    with pytest.raises(
        EngineError,
        match=r"1 thing can't be provided.*\n.*engine vllm 0\.9\.0, install: no index",
    ):
        provide.run(missing, lambda _: None, lambda _: None)
    assert calls == [("vllm", "0.9.0")]
    assert provide.needs(specs, installs=False) == [], "refused when it is planned"


def test_an_image_is_pulled_before_the_engine_starts(bare: Path) -> None:
    (bare / "docker").write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"pull) echo done > {bare}/image;;\n"
        f'image) [ -e {bare}/image ] && echo \'[{{"Id": "sha256:1", "RepoDigests": []}}]\' || exit 1;;\n'
        "esac\n"
    )
    (bare / "docker").chmod(0o755)
    spec = EngineSpec("vllm", model="m", container=ContainerSpec("some/image:1"))
    (need,) = provide.needs([spec, spec], dry=True)
    assert (need.what, need.name, need.how) == ("image", "some/image:1", "pull")
    assert provide.run([need], lambda _: None, lambda _: None) == [
        "image some/image:1: sha256:1"
    ]
    assert provide.needs([spec]) == []


def test_a_step_is_listed_once_however_many_models_need_it(bare: Path) -> None:
    base = ModelRecipe(source="hub:o/n")
    names = {"base": base, "a": msgspec.structs.replace(base, quantize="quark:fp8"),
             "b": msgspec.structs.replace(base, quantize="quark:int8")}  # fmt: skip
    specs = [
        EngineSpec("vllm", model=name, weights={name: recipe})
        for name, recipe in names.items()
    ]
    found = [
        (need.what, need.name, need.how)
        for need in provide.needs(specs)
        if need.what != "engine"
    ]
    assert found == [
        ("tool", "quark", "install"), ("model", "base", "pull hub:o/n"), ("model", "a", "quantize quark:fp8"),
        ("model", "b", "quantize quark:int8"),
    ]  # fmt: skip


def test_a_data_set_of_the_hub_is_listed_and_pulled_before_the_first_trial(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    data = hub.folder / "datasets" / "test" / "chats"
    data.mkdir(parents=True, exist_ok=True)
    (data / "chats.jsonl").write_text('{"prompt": "the harbor of the north"}\n' * 4)
    work = 'dataset = "custom"\npath = "hub:test/chats/chats.jsonl"\noutput_len = 4\nnum_prompts = 2\n'
    engine = '[engines.a]\nkind = "fake"\n[loads.c]\nmax_concurrency = 1\n'
    Path("s.toml").write_text(f"{engine}[workloads.w]\n{work}")
    assert run("--dry-run") == 0
    out = capsys.readouterr().out
    assert (
        "data set  custom  pull hub:datasets/test/chats" in out
        and not hub.sent["chats.jsonl"]
    )
    assert run("--prepare-only") == 0
    assert capsys.readouterr().out.rstrip().endswith("/chats.jsonl")


def test_a_file_that_is_missing_is_reported_before_anything_is_fetched(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("s.toml").write_text(
        STUDY.replace(
            "[workloads.w]", '[workloads.w]\ndataset = "sharegpt"\npath = "gone.json"'
        )
    )
    for flags in ((), ("--prepare-only",)):
        assert run(*flags) == 2
        err = capsys.readouterr().err
        assert (
            "nothing was fetched or started" in err
            and "path = 'gone.json': there is no such file" in err
        )
    assert not hub.requests


def test_a_flag_that_the_engine_lacks_is_reported_before_anything_is_fetched(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("s.toml").write_text(
        STUDY.replace('kind = "llamacpp"', 'kind = "llamacpp"\nload_format = "dummy"')
    )
    assert run() == 2
    assert (
        "doesn't support engine.load_format = 'dummy'" in capsys.readouterr().err
        and not hub.requests
    )
