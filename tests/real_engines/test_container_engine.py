"""An engine in a container for real: llama.cpp in an image made here, a registry on loopback, dyno's own commands.

`make test-engines`. It needs podman, docker-registry and busybox; what is missing is the reason of the skip.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import containers
import dyno
from dyno.engines import container
from dyno.engines.port import free_port
from dyno.facts.engine import ContainerSpec

pytestmark = pytest.mark.engines

DOCKERFILE = """
FROM scratch
ARG MARK=first
COPY . /
ENV PYTHONHOME={home} MARK=$MARK
ENTRYPOINT ["python3", "/llama_server.py"]
"""
# As llama-server: it says its version, and ends at TERM, which process 1 of a container ignores by default.
SERVER = """
import importlib.metadata, signal, sys
if "--version" in sys.argv:
    sys.exit(print("version:", importlib.metadata.version("xllamacpp").rpartition(".")[2]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
from dyno.engines import embedded
embedded.main()
"""
LOAD = [
    "--max-concurrency",
    "2",
    "--num-prompts",
    "8",
    "--random-input-len",
    "16",
    "--random-output-len",
    "8",
]
STUDY = """
[engines.mine]
kind = "llamacpp"
max_num_seqs = 2
max_model_len = 256
container = {{ image = "{image}", tool = "podman", accelerator = "none", pull = "always" }}
[workloads.short]
input_len = 16
output_len = 8
num_prompts = 8
[loads.closed]
max_concurrency = [1, 2]
"""


class Bench(NamedTuple):
    registry: str
    folder: Path
    context: Path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """podman, a registry, and a folder to build the engine's image from."""
    folder, port = tmp_path_factory.mktemp("bench"), free_port()
    with (
        containers.usable("podman", folder, port),
        containers.registry(folder, port) as address,
    ):
        yield Bench(address, folder, _context(folder / "context"))


def _context(folder: Path) -> Path:
    """Python, its libraries, llama.cpp's wheel and dyno's server around it: as little as an engine needs."""
    home, stdlib = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib"))
    here, site = (
        Path(sysconfig.get_path("platlib")),
        Path(f"{folder}{stdlib}/site-packages"),
    )
    left_out = shutil.ignore_patterns(
        "site-packages", "test", "tests", "__pycache__", "idlelib", "tkinter", "config-*"
    )
    shutil.copytree(stdlib, f"{folder}{stdlib}", ignore=left_out)
    for path in [
        Path(dyno.__file__).parent,
        *here.glob("xllamacpp*"),
        *here.glob("msgspec*"),
    ]:
        shutil.copytree(
            path, site / path.name, ignore=shutil.ignore_patterns("__pycache__")
        )
    program = (home / "bin/python3").resolve()
    wheel = next(here.glob("xllamacpp/*.so"))
    linked = [program, wheel, next(stdlib.glob("lib-dynload/zlib.*"))]
    for path in {
        program,
        *(library for file in linked for library in containers.libraries(str(file))),
    }:
        target = Path(f"{folder}{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path.resolve(), target)
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/python3").symlink_to(program)
    (folder / "llama_server.py").write_text(SERVER)
    (folder / "Dockerfile").write_text(DOCKERFILE.format(home=home))
    return folder


def command(*words: str, code: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "dyno", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    assert done.returncode == code, done.stderr
    return done


def podman(*words: str) -> None:
    subprocess.run(["podman", *words], capture_output=True, check=True)


def facts(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads((run / "engine.json").read_text()), json.loads(
        (run / "trial.json").read_text()
    )


@pytest.fixture(scope="module")
def pushed(bench: Bench) -> str:
    """An image that only the registry has."""
    image = f"{bench.registry}/llama:1"
    command("engines", "images", "build", image, str(bench.context), "--tool", "podman")
    podman("push", image)
    command("engines", "images", "remove", image, "--tool", "podman")
    return image


def test_an_engine_in_a_container_is_pulled_measured_and_gone(
    pushed: str, tmp_path: Path
) -> None:
    done = command(
        "bench", "serve", "--engine", "llamacpp", "--engine-image", pushed, "--max-num-seqs", "2", "--max-model-len",
        "256", *LOAD, "--runs", str(tmp_path / "runs"),
        GGML_MARK="7", VLLM_API_KEY="not-for-a-process-list", LD_LIBRARY_PATH="/nowhere", HF_TOKEN="hf_not_for_a_file",
    )  # fmt: skip
    assert f"Pulling {pushed} with podman" in done.stderr
    assert (
        "Not passed to the container: LD_LIBRARY_PATH (/nowhere is not mounted)"
        in done.stderr
    )
    [run] = (tmp_path / "runs").iterdir()
    engine, trial = facts(run)
    name, _, digest = engine["image"].partition("@")
    assert (name, digest[:7]) == (pushed.removesuffix(":1"), "sha256:")
    # the image was asked once it was here
    assert engine["version"] == metadata.version("xllamacpp").rpartition(".")[2]
    assert engine["software"]["xllamacpp"] == metadata.version("xllamacpp")
    assert engine["software"]["python"] == sys.version.split()[0]
    assert {"--env=GGML_MARK", "--env=VLLM_API_KEY", "--env=HF_TOKEN"} < set(
        engine["launches"][0]["argv"]
    )
    assert engine["withheld"] == {"LD_LIBRARY_PATH": "/nowhere is not mounted"}
    assert trial["rig"]["environment"]["GGML_MARK"] == "7"
    assert "LD_LIBRARY_PATH" not in trial["rig"]["environment"]
    everything = "".join(
        path.read_text(errors="replace") for path in run.rglob("*") if path.is_file()
    )
    assert "not-for-a-process-list" not in everything + done.stderr
    assert "hf_not_for_a_file" not in everything + done.stderr
    assert containers.running("podman") == []


def test_the_image_is_asked_for_versions_and_an_absent_one_has_none(pushed: str) -> None:
    podman("pull", pushed)
    asked = container.software(ContainerSpec(pushed), "podman", ("vllm", "xllamacpp"))
    assert asked == {"xllamacpp": metadata.version("xllamacpp")}
    assert container.software(ContainerSpec("nowhere/none:1"), "podman", ("vllm",)) == {}


def test_an_image_is_installed_and_then_used_like_any_environment(
    pushed: str, tmp_path: Path
) -> None:
    home = {"DYNO_HOME": str(tmp_path / "home")}
    number = metadata.version("xllamacpp").rpartition(".")[2]
    words = [
        "engines",
        "install",
        "llamacpp",
        "--variant",
        "cpu",
        "--by",
        "container",
        "--from",
        pushed,
    ]
    refused = command(*words, "--version", "6327", code=1, **home)
    assert f"The image {pushed} has llamacpp {number}, not 6327" in refused.stderr
    name, image = command(*words, **home).stdout.split()
    assert name.startswith(f"llamacpp-{number}-cpu-image-")
    assert f"{name}, installed" in command("engines", "list", **home).stdout
    command(
        "bench", "serve", "--engine", "llamacpp", "--engine-version", number, "--max-num-seqs", "2", "--max-model-len",
        "256", *LOAD, "--runs", str(tmp_path / "runs"), **home,
    )  # fmt: skip
    [run] = (tmp_path / "runs").iterdir()
    engine, _ = facts(run)
    assert (engine["image"], engine["version"]) == (image, number)
    command("engines", "remove", name, **home)
    assert container.software(ContainerSpec(image), "podman", ("xllamacpp",)) == {}
    assert name not in command("engines", "list", **home).stdout


def test_a_study_keeps_its_image_when_the_tag_moves(
    bench: Bench, pushed: str, tmp_path: Path
) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(image=pushed))
    run = ["run", str(study), "--runs", str(tmp_path / "runs")]
    command(*run, "--limit", "1")
    command(
        "engines",
        "images",
        "build",
        pushed,
        str(bench.context),
        "--build-arg",
        "MARK=moved",
        "--tool",
        "podman",
    )
    podman("push", pushed)
    again = command(*run)
    engines = [facts(path.parent)[0] for path in (tmp_path / "runs").rglob("trial.json")]
    assert len(engines) == 2
    [digest] = {engine["image"] for engine in engines}
    assert f"This study keeps {digest}" in again.stderr
    assert (
        digest in engines[-1]["launches"][0]["argv"]
        or digest in engines[0]["launches"][0]["argv"]
    )


def test_an_image_travels_as_a_file(pushed: str, tmp_path: Path) -> None:
    podman("pull", pushed)
    file = tmp_path / "image.tar"
    sent = command(
        "engines", "images", "export", pushed, str(file), "--tool", "podman"
    ).stdout
    command("engines", "images", "remove", pushed, "--tool", "podman")
    came = command("engines", "images", "import", str(file), "--tool", "podman").stdout
    assert sent.split()[:2] == came.split()[:2]
    listed = json.loads(
        command("engines", "images", "list", "--json", "--tool", "podman").stdout
    )
    assert pushed in [image["name"] for image in listed]
    os.truncate(file, 1_000_000)
    cut = command(
        "engines", "images", "import", str(file), "--tool", "podman", code=2
    ).stderr
    assert "it is cut off, or not an image" in cut


def test_an_image_is_built_from_a_git_url(bench: Bench, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "images").mkdir(parents=True)
    (repository / "images/Dockerfile.mine").write_text("FROM scratch\nCOPY hello /\n")
    (repository / "images/hello").write_text("hello")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["commit", "-q", "-m", "one"],
    ):
        subprocess.run([*git, *words], check=True)
    port = free_port()
    daemon = [
        "git",
        "daemon",
        "--export-all",
        "--listen=127.0.0.1",
        f"--port={port}",
        f"--base-path={tmp_path}",
    ]
    with subprocess.Popen(daemon) as process:
        try:
            containers.await_port(port)
            url = f"git://127.0.0.1:{port}/repository#main:images"
            words = [
                "images",
                "build",
                "from-git:1",
                url,
                "--file",
                "Dockerfile.mine",
                "--tool",
                "podman",
            ]
            assert "sha256:" in command("engines", *words).stdout
        finally:
            process.terminate()
