"""Engines in containers: the command lines, and a real container where docker or podman works."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import containers
from dyno.engines import container
from dyno.engines import image as images
from dyno.engines.port import free_port
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec, Launch
from dyno.facts.offline import Batch
from dyno.facts.rig import Rig
from dyno.probe import software
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.offline import same_engine

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

CACHE = Path("/home/u/.cache/huggingface")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Hugging Face's, for tests that run no container."""
    if "image" not in request.fixturenames:
        monkeypatch.setenv("HF_HOME", str(CACHE))


NAME = "dyno-7"
MINE = f"dyno={os.getpid()}"


def launch(*argv: str, devices: list[int] | None = None, **env: str) -> Launch:
    return Launch(
        list(argv) or ["vllm", "serve", "some/model", "--port", "8000"], env, 8000, devices
    )


def wrapped(
    given: Launch | None = None,
    tool: str = "docker",
    accelerator: str = "none",
    model: str | None = None,
    exported: dict[str, str] | None = None,
    **spec: Any,
) -> Launch:
    the_spec = ContainerSpec(**{"image": "i", **spec})
    return container.wrap(
        given or launch(), the_spec, NAME, tool, model, accelerator, exported
    ).launch


def start_of(tool: str) -> list[str]:
    words = [
        tool,
        "run",
        "--rm",
        "--name",
        NAME,
        "--label",
        MINE,
        "--pull=never",
        "--network=host",
        "--ipc=host",
    ]
    return [*words, "--security-opt=label=disable"] if tool == "podman" else words


# The lines of published reports


def test_amds_line_for_its_fp8_procedure_is_expressible() -> None:
    # docker run -it --rm --ipc=host --network=host --group-add render --privileged
    #   --security-opt seccomp=unconfined --cap-add=CAP_SYS_ADMIN --cap-add=SYS_PTRACE
    #   --device=/dev/kfd --device=/dev/dri --device=/dev/mem -e HF_HOME=/data -e HF_TOKEN=<token>
    #   -v /data:/data rocm/vllm-dev:main
    made = wrapped(
        launch(
            "vllm",
            "serve",
            "amd/Llama-3.1-405B-Instruct-FP8-KV",
            HF_HOME="/data",
            HF_TOKEN="hf_secret",
        ),
        accelerator="amd",
        image="rocm/vllm-dev:main",
        mounts=["/data:/data"],
        options=["--privileged", "--cap-add=CAP_SYS_ADMIN", "--device=/dev/mem"],
    )
    assert made.argv == [
        *start_of("docker"),
        *(
            "--device=/dev/kfd",
            "--device=/dev/dri",
            "--group-add=video",
            "--group-add=render",
        ),
        *("--security-opt=seccomp=unconfined", "--cap-add=SYS_PTRACE"),
        *(
            "--volume=/data:/data",
            "--env=HF_HOME=/data",
            "--env=HF_TOKEN",
            "--entrypoint",
            "vllm",
        ),
        *("--privileged", "--cap-add=CAP_SYS_ADMIN", "--device=/dev/mem"),
        *("rocm/vllm-dev:main", "serve", "amd/Llama-3.1-405B-Instruct-FP8-KV"),
    ]
    assert made.env == {"HF_TOKEN": "hf_secret"}


def test_the_line_for_eight_mi300x_is_expressible() -> None:
    # docker run -it --network=host --group-add=video --ipc=host --cap-add=SYS_PTRACE
    #   --security-opt seccomp=unconfined --device /dev/kfd --device /dev/dri
    #   -v /mnt/nvme5n1p1/cache:/root/.cache ghcr.io/embeddedllm/vllm-rocm:cb3b2b9 bash
    argv = ["vllm", "serve", "meta-llama/Llama-3.1-405B-FP8", "-tp", "8"]
    spec = ContainerSpec(
        "ghcr.io/embeddedllm/vllm-rocm:cb3b2b9",
        mounts=["/mnt/nvme5n1p1/cache:/root/.cache"],
    )
    given = launch(*argv, VLLM_RPC_TIMEOUT="30000", VLLM_USE_TRITON_FLASH_ATTN="0")
    made = container.wrap(
        given, spec, NAME, "docker", argv[2], "amd", groups=["video"]
    ).launch
    assert made.argv == [
        *start_of("docker"),
        *("--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"),
        *("--security-opt=seccomp=unconfined", "--cap-add=SYS_PTRACE"),
        *("--volume=/mnt/nvme5n1p1/cache:/root/.cache",),
        *(
            "--env=VLLM_RPC_TIMEOUT=30000",
            "--env=VLLM_USE_TRITON_FLASH_ATTN=0",
            "--entrypoint",
            "vllm",
        ),
        *(
            "ghcr.io/embeddedllm/vllm-rocm:cb3b2b9",
            "serve",
            "meta-llama/Llama-3.1-405B-FP8",
            "-tp",
            "8",
        ),
    ]


def test_the_line_for_eight_h100_is_expressible() -> None:
    # docker run --gpus all -it --rm --ipc=host -v /home/ubuntu/.cache:/root/.cache nvcr.io/nvidia/pytorch:23.10-py3
    made = wrapped(
        launch(
            "vllm", "serve", "meta-llama/Llama-3.1-405B-FP8", "--tensor-parallel-size", "8"
        ),
        accelerator="nvidia",
        image="nvcr.io/nvidia/pytorch:23.10-py3",
        mounts=["/home/ubuntu/.cache:/root/.cache"],
    )
    assert made.argv == [
        *start_of("docker"),
        *(
            "--gpus",
            "all",
            "--volume=/home/ubuntu/.cache:/root/.cache",
            "--entrypoint",
            "vllm",
        ),
        *(
            "nvcr.io/nvidia/pytorch:23.10-py3",
            "serve",
            "meta-llama/Llama-3.1-405B-FP8",
            "--tensor-parallel-size",
            "8",
        ),
    ]


def test_amds_build_line_is_expressible() -> None:
    # docker build -f Dockerfile.rocm -t <your_tag> --build-arg BUILD_HIPBLASLT=1 --build-arg USE_CYTHON=1 .
    args = {"BUILD_HIPBLASLT": "1", "USE_CYTHON": "1"}
    spec = ContainerSpec(
        "mine:1", build="/src/vllm", build_file="Dockerfile.rocm", build_args=args
    )
    [command] = images.prepare_commands(spec, "docker", present=True)
    assert " ".join(command) == (
        "docker build --tag mine:1 --file /src/vllm/Dockerfile.rocm "
        "--build-arg BUILD_HIPBLASLT=1 --build-arg USE_CYTHON=1 /src/vllm"
    )


# Accelerators


@pytest.mark.parametrize(
    ("tool", "devices", "words"),
    [
        ("docker", None, ["--gpus", "all"]),
        ("docker", [2], ["--gpus", '"device=2"']),
        ("docker", [0, 1], ["--gpus", '"device=0,1"']),
        ("podman", None, ["--device=nvidia.com/gpu=all"]),
        ("podman", [0, 1], ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]),
    ],
)
def test_nvidias_gpus_are_chosen_by_the_container_and_numbered_anew_inside(
    tool: str, devices: list[int] | None, words: list[str]
) -> None:
    env = {} if devices is None else {"CUDA_VISIBLE_DEVICES": "2,3"}
    argv = wrapped(launch("vllm", devices=devices, **env), tool, "nvidia").argv
    at = len(start_of(tool))
    assert argv[at : at + len(words)] == words
    assert not [word for word in argv if "CUDA_VISIBLE" in word]


def test_gpus_that_the_user_names_are_not_named_twice() -> None:
    argv = wrapped(launch(devices=[0]), accelerator="nvidia", options=["--gpus=all"]).argv
    assert [word for word in argv if "gpus" in word] == ["--gpus=all"]


@pytest.mark.parametrize(
    ("env", "reported"),
    [
        ({}, ["--env=HIP_VISIBLE_DEVICES=4,5"]),
        ({"ROCR_VISIBLE_DEVICES": "6,7"}, ["--env=ROCR_VISIBLE_DEVICES=6,7"]),
        (
            {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"},
            ["--env=HIP_VISIBLE_DEVICES=0"],
        ),
    ],
)
def test_amds_gpus_are_chosen_by_one_variable_only(
    env: dict[str, str], reported: list[str]
) -> None:
    argv = wrapped(launch(devices=[4, 5], **env), accelerator="amd").argv
    assert [word for word in argv if "VISIBLE" in word] == reported


def test_an_unknown_accelerator_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"tpu.*nvidia, amd, none"):
        wrapped(accelerator="tpu")


@pytest.mark.parametrize("tool", ["docker", "podman"])
def test_exported_devices_of_nvidia_are_the_only_ones_that_the_container_gets(
    tool: str,
) -> None:
    words = {
        "docker": ["--gpus", '"device=GPU-1a,3"'],
        "podman": [f"--device=nvidia.com/gpu={n}" for n in ("GPU-1a", "3")],
    }
    argv = wrapped(
        launch("vllm"), tool, "nvidia", exported={"CUDA_VISIBLE_DEVICES": "GPU-1a, 3"}
    ).argv
    assert [word for word in argv if word in words[tool]] == words[tool]
    assert not [word for word in argv if "CUDA_VISIBLE" in word]
    without = wrapped(
        launch("vllm"), tool, "nvidia", exported={"CUDA_VISIBLE_DEVICES": ""}
    ).argv
    assert not [word for word in without if "gpu" in word]


# What vendors' pages ask for


@pytest.mark.parametrize(
    ("privileges", "accelerator", "words"),
    [
        (None, "none", ""),
        ("nvidia", "none", "--ulimit=memlock=-1 --ulimit=stack=67108864"),
        ("full", "none", "--privileged --ulimit=memlock=-1 --ulimit=stack=67108864"),
        (
            "amd",
            "amd",
            "--device=/dev/kfd --device=/dev/dri --group-add=video --group-add=render "
            "--security-opt=seccomp=unconfined --cap-add=SYS_PTRACE --cap-add=SYS_ADMIN "
            "--security-opt=apparmor=unconfined --device=/dev/mem",
        ),
    ],
)
def test_one_word_gives_the_rights_that_a_page_asks_for(
    privileges: Any, accelerator: str, words: str
) -> None:
    argv = wrapped(accelerator=accelerator, privileges=privileges).argv
    first = len(start_of("docker"))
    assert argv[first : argv.index(f"--volume={CACHE}:{CACHE}")] == words.split()


@pytest.mark.parametrize(
    "options",
    [["--shm-size=16G"], ["--shm-size", "16G"], ["--ipc=private"], ["--ipc", "host"]],
)
def test_shared_memory_is_the_hosts_unless_an_option_sets_it(options: list[str]) -> None:
    argv = wrapped(options=options).argv
    assert "--ipc=host" not in argv
    assert [word for word in argv if word in options] == options


def test_an_option_that_would_lose_the_engine_is_refused_with_the_reason() -> None:
    for option, why in {
        "-d": "lose the engine",
        "-it": "no terminal",
        "--name=x": "names the container",
    }.items():
        with pytest.raises(UsageError, match=why):
            wrapped(options=[option])
    with pytest.raises(UsageError, match=r"--network=bridge: .* the host's network"):
        wrapped(options=["--network", "bridge"])
    assert [
        word for word in wrapped(options=["--network=host"]).argv if "network" in word
    ] == ["--network=host"]


# Exported variables


def exported_to(
    given: Launch | None = None,
    accelerator: str = "none",
    options: tuple[str, ...] = (),
    **env: str,
) -> Any:
    made = container.wrap(
        given or launch(), ContainerSpec("i", mounts=["/data:/data"], options=[*options]), NAME, "docker", None,
        accelerator, env,
    )  # fmt: skip
    return [
        word.removeprefix("--env=")
        for word in made.launch.argv
        if word.startswith("--env=")
    ], made.withheld


def test_what_the_user_exported_reaches_the_container_by_name_alone() -> None:
    names, withheld = exported_to(
        VLLM_USE_V1="1",
        NCCL_DEBUG="INFO",
        HF_TOKEN="hf_secret",
        HF_ENDPOINT="https://mirror",
    )
    assert names[-4:] == ["VLLM_USE_V1", "NCCL_DEBUG", "HF_TOKEN", "HF_ENDPOINT"]
    assert withheld == {}


def test_a_settings_variable_goes_before_an_exported_one() -> None:
    names, withheld = exported_to(launch("vllm", OMP_NUM_THREADS="8"), OMP_NUM_THREADS="4")
    assert [name for name in names if "OMP" in name] == ["OMP_NUM_THREADS=8"]
    assert withheld == {}


def test_a_path_that_is_not_mounted_is_not_passed_and_the_reason_is_known() -> None:
    names, withheld = exported_to(
        HIPBLASLT_TUNING_FILE="/data/tuned.txt", LD_LIBRARY_PATH="/data/lib:/opt/rocm/lib", VLLM_CACHE_ROOT="/scratch",
        options=("-v", "/mnt/s:/scratch"),
    )  # fmt: skip
    assert [name for name in names if "HF_HOME" not in name] == [
        "HIPBLASLT_TUNING_FILE",
        "VLLM_CACHE_ROOT",
    ]
    assert withheld == {"LD_LIBRARY_PATH": "/opt/rocm/lib is not mounted"}


def test_exported_devices_of_amd_mean_the_same_inside() -> None:
    names, withheld = exported_to(
        accelerator="amd", HIP_VISIBLE_DEVICES="2", CUDA_VISIBLE_DEVICES="2"
    )
    assert [name for name in names if "VISIBLE" in name] == ["HIP_VISIBLE_DEVICES"]
    assert withheld == {"CUDA_VISIBLE_DEVICES": "another variable selects the devices"}
    _, withheld = exported_to(
        accelerator="nvidia", CUDA_VISIBLE_DEVICES="2", NVIDIA_VISIBLE_DEVICES="all"
    )
    assert list(withheld) == ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]


# Mounts, variables, entrypoint


def volumes(made: Launch) -> list[str]:
    return [
        word.removeprefix("--volume=") for word in made.argv if word.startswith("--volume=")
    ]


def test_a_local_model_is_mounted_read_only_at_its_own_path_and_a_name_is_not(
    tmp_path: Path,
) -> None:
    assert volumes(wrapped(model=str(tmp_path))) == [
        f"{tmp_path}:{tmp_path}:ro",
        f"{CACHE}:{CACHE}",
    ]
    assert volumes(wrapped(model="meta-llama/Llama-3.1-8B")) == [f"{CACHE}:{CACHE}"]
    under = wrapped(model=str(tmp_path), mounts=[f"{tmp_path.parent}:{tmp_path.parent}"])
    assert f"{tmp_path}:{tmp_path}:ro" not in volumes(under)


def test_a_relative_path_of_a_model_is_made_absolute_also_in_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").touch()
    made = wrapped(launch("llama-server", "-m", "m.gguf"), model="m.gguf")
    assert made.argv[-2:] == ["-m", f"{tmp_path}/m.gguf"]
    assert volumes(made)[0] == f"{tmp_path}/m.gguf:{tmp_path}/m.gguf:ro"


def test_the_cache_is_one_inside_and_outside_unless_the_user_has_another() -> None:
    assert f"--env=HF_HOME={CACHE}" in wrapped().argv
    for mount in ("/c:/root/.cache", "/c:/root/.cache/huggingface:ro"):
        made = wrapped(mounts=[mount])
        assert volumes(made) == [mount]
        assert not [word for word in made.argv if "HF_HOME" in word]
    assert volumes(wrapped(launch("vllm", HF_HOME="/data"))) == ["/data:/data"]


def test_no_secret_is_on_the_command_line() -> None:
    given = launch(
        "vllm",
        HF_TOKEN="hf_x",
        AWS_SECRET_ACCESS="s3",
        DB_PASSWORD="p",
        api_key="k",
        PROXY="http://me:pw@h",
        COLOR="green",
    )
    made = wrapped(given, exported={"HUGGING_FACE_HUB_TOKEN": "hf_y", "HF_TOKEN": "hf_z"})
    words = [
        word for word in made.argv if word.startswith("--env=") and "HF_HOME" not in word
    ]
    names = ["HF_TOKEN", "AWS_SECRET_ACCESS", "DB_PASSWORD", "api_key", "PROXY"]
    assert sorted(words) == sorted(
        [f"--env={name}" for name in [*names, "HUGGING_FACE_HUB_TOKEN"]]
        + ["--env=COLOR=green"]
    )
    assert made.env == {name: given.env[name] for name in names}


def test_a_secret_build_argument_is_handed_over_by_name() -> None:
    spec = ContainerSpec("i", build="/b", build_args={"GH_TOKEN": "x", "JOBS": "4"})
    [command] = images.prepare_commands(spec, "podman", present=False)
    assert command == [
        "podman",
        "build",
        "--tag",
        "i",
        "--build-arg",
        "GH_TOKEN",
        "--build-arg",
        "JOBS=4",
        "/b",
    ]


def test_the_entrypoint_is_the_engines_the_users_or_the_images() -> None:
    assert wrapped(launch("vllm", "serve", "m")).argv[-5:] == [
        "--entrypoint",
        "vllm",
        "i",
        "serve",
        "m",
    ]
    theirs = wrapped(
        launch("vllm", "serve", "m"), options=["--entrypoint=/opt/wrap.sh"]
    ).argv
    assert theirs[-5:] == ["--entrypoint=/opt/wrap.sh", "i", "vllm", "serve", "m"]
    images = wrapped(launch("", "--model-id", "m")).argv
    assert images[-3:] == ["i", "--model-id", "m"]
    assert "--entrypoint" not in images


# Images


@pytest.mark.parametrize(
    ("pull", "there", "commands"),
    [
        ("missing", True, []),
        ("missing", False, [["docker", "pull", "i"]]),
        ("always", True, [["docker", "pull", "i"]]),
        ("never", False, []),
    ],
)
def test_an_image_is_pulled_as_the_policy_says(
    pull: Any, there: bool, commands: list[list[str]]
) -> None:
    assert (
        images.prepare_commands(ContainerSpec("i", pull=pull), "docker", there) == commands
    )


def test_a_git_url_is_a_context_with_its_own_dockerfile() -> None:
    url = "https://github.com/vllm-project/vllm.git#v0.6.3"
    spec = ContainerSpec("mine:1", build=url, build_file="Dockerfile.rocm")
    [command] = images.prepare_commands(spec, "docker", present=False)
    assert command == [
        "docker",
        "build",
        "--tag",
        "mine:1",
        "--file",
        "Dockerfile.rocm",
        url,
    ]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (  # podman's
            "Trying to pull 127.0.0.1:5000/a:1...|Copying blob 41443aaa0253 skipped: already exists  |"
            "Copying blob db9fc423616f [=>----] 3.0MiB / 28.5MiB|Copying blob 8520708a2f37 [==>---] 8.0MiB / 57.0MiB|"
            "Copying blob db9fc423616f done  ",
            "2 of 3 layers, 36.5 MiB of 85.5 MiB",
        ),
        (  # docker's
            "1: Pulling from a|41443aaa0253: Pulling fs layer|41443aaa0253: Downloading [=> ]  1.048576MB/2.097152MB",
            "0 of 1 layers, 1 MiB of 2 MiB",
        ),
        ("db9fc423616f: Downloading [=>]  1MB/2.097152MB|db9fc423616f: Extracting [=>]  1kB/2.097152MB",
         "0 of 1 layers, 2 MiB of 2 MiB"),
        ("STEP 3/7: RUN make", "STEP 3/7: RUN make"),
    ],
)  # fmt: skip
def test_the_progress_of_a_pull_is_read_from_the_tools_own_bars(
    lines: str, text: str
) -> None:
    transfer = images.Transfer()
    assert [transfer.read(line) for line in lines.split("|")][-1] == text


@pytest.fixture
def fake_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """`fake_tool("docker", "echo hi")`: a command of that name, the only one on PATH beside the shell's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


FakeTool = Callable[[str, str], None]


def test_without_docker_and_podman_the_error_says_so(fake_tool: FakeTool) -> None:
    with pytest.raises(EngineError, match="Neither docker nor podman is on PATH"):
        container.tool()
    with pytest.raises(EngineError, match="podman is not on PATH"):
        container.tool("podman")


def test_a_daemon_that_is_not_there_or_not_for_us_is_reported(fake_tool: FakeTool) -> None:
    fake_tool(
        "docker",
        "echo 'Cannot connect to the Docker daemon at unix:///x. Is it running?' >&2; exit 1",
    )
    with pytest.raises(
        EngineError, match=r"its daemon isn't running: Cannot connect.*Start it"
    ):
        container.tool()
    fake_tool(
        "docker",
        "echo 'permission denied while trying to connect to the Docker daemon' >&2; exit 1",
    )
    with pytest.raises(EngineError, match=r"no permission to use.*group"):
        container.tool("docker")


def test_the_one_that_works_is_taken_and_podman_in_dockers_clothes_is_known(
    fake_tool: FakeTool,
) -> None:
    fake_tool("docker", "exit 1")
    fake_tool("podman", "echo podman version 5")
    assert container.tool() == "podman"
    fake_tool("docker", "echo podman version 5")
    assert container.tool("docker") == "podman"
    fake_tool("docker", "echo Docker version 27")
    assert container.tool() == "docker"


def test_the_digest_is_the_registrys_or_else_the_images_id(fake_tool: FakeTool) -> None:
    facts = {
        "Id": "abc",
        "RepoDigests": ["reg:5000/other@sha256:1", "docker.io/vllm/vllm-openai@sha256:2"],
    }
    fake_tool("podman", f"echo '{json.dumps([facts])}'")
    assert (
        images.digest("podman", "vllm/vllm-openai:v0.24")
        == "docker.io/vllm/vllm-openai@sha256:2"
    )
    assert images.digest("podman", "reg:5000/other") == "reg:5000/other@sha256:1"
    assert images.digest("podman", "mine:1") == "sha256:abc"
    fake_tool("podman", "exit 125")
    assert images.digest("podman", "mine:1") is None


def test_a_pull_that_fails_reports_its_last_lines_and_the_log(
    fake_tool: FakeTool, tmp_path: Path
) -> None:
    fake_tool("docker", "[ $1 = pull ] && echo manifest unknown; exit 1")
    said: list[str] = []
    with pytest.raises(
        EngineError, match=r'`docker pull` of i exited with code 1: "manifest unknown".*log'
    ):
        images.pull_or_build(ContainerSpec("i"), "docker", said.append, tmp_path / "log")
    assert said == ["Pulling i with docker"]
    with pytest.raises(EngineError, match="image i isn't on this machine"):
        images.pull_or_build(
            ContainerSpec("i", pull="never"), "docker", said.append, tmp_path / "log"
        )


# Plans

SPEC = EngineSpec(
    "vllm",
    "some/model",
    container=ContainerSpec("mine:1", tool="podman", accelerator="none"),
)
RIG = Rig("Debian", "6.1", "x86_64", "CPU", 8)
ANSWERS = """case "$1 $2" in "ps --quiet") ;; "--version ") echo podman version 5 ;; *) exit 1 ;; esac"""


def test_offline_trials_in_one_image_share_one_container(fake_tool: FakeTool) -> None:
    fake_tool("podman", ANSWERS)
    a, b = (EnginePlan(SPEC, RIG, batch=Batch("throughput", 4, 64)) for _ in range(2))
    assert a.containers != b.containers
    assert same_engine(a, b)
    assert not same_engine(
        a, EnginePlan(SPEC, RIG, batch=Batch("throughput", 4, 64), image="sha256:1")
    )


def test_a_runs_facts_name_only_the_variables_that_the_engine_has(
    fake_tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tool("podman", ANSWERS)
    for name, value in {
        "VLLM_USE_V1": "1",
        "VLLM_CACHE_ROOT": "/scratch",
        "OMP_NUM_THREADS": "4",
    }.items():
        monkeypatch.setenv(name, value)
    plan = EnginePlan(msgspec.structs.replace(SPEC, env={"OMP_NUM_THREADS": "8"}), RIG)
    seen = plan.seen(
        msgspec.structs.replace(RIG, environment=software.variables(os.environ))
    )
    listed = {
        name: value
        for name, value in seen.environment.items()
        if name.startswith(("VLLM_", "OMP_"))
    }
    assert listed == {"VLLM_USE_V1": "1"}
    assert "VLLM_CACHE_ROOT (/scratch is not mounted)" in (plan.not_passed() or "")


# The real thing


@pytest.fixture(scope="module", params=["docker", "podman"])
def image(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A tool that works here, and an image made of busybox."""
    with containers.usable(request.param, tmp_path_factory.mktemp(request.param)) as name:
        yield request.param, name


def answers(port: int) -> str | None:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/index.html", timeout=2
        ) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def refuses(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def await_true(what: Callable[[], Any], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def served(image: tuple[str, str], tmp_path: Path) -> tuple[str, str, str, Launch]:
    """A server in a container, of a folder that stands for the model."""
    tool, name = image
    model, port, called = tmp_path / "model", free_port(), f"dyno-test-{os.getpid()}"
    model.mkdir()
    (model / "index.html").write_text("weights")
    # Process 1 of a container ignores TERM unless it handles it: as stubborn as a hung engine.
    argv = ["/bin/busybox", "httpd", "-f", "-p", f"127.0.0.1:{port}", "-h", str(model)]
    spec = ContainerSpec(name, tool=tool, pull="never")
    found = images.pull_or_build(spec, tool, lambda text: None, tmp_path / "log")
    assert "sha256:" in found
    return (
        tool,
        called,
        found,
        container.wrap(
            Launch(argv, {}, port), spec, called, tool, str(model), "none"
        ).launch,
    )


def test_a_container_serves_its_mounted_model_and_is_gone_after_stop(
    served: tuple[str, str, str, Launch], tmp_path: Path
) -> None:
    tool, called, _, made = served
    cleanup = container.remove_command(tool, called)
    with EngineProcess(
        made.argv, {**os.environ, **made.env}, tmp_path / "log", cleanup
    ) as process:
        await_true(lambda: answers(made.port) == "weights" or not process.alive())
        assert process.alive(), process.last_lines()
        assert len(containers.running(tool)) == 1
        process.stop(timeout=1)
    assert containers.running(tool) == []
    assert refuses(made.port)


@pytest.mark.hostile
def test_a_killed_dyno_leaves_no_container_behind(
    served: tuple[str, str, str, Launch], tmp_path: Path
) -> None:
    tool, called, _, made = served
    script = "import json, os, sys, time; from pathlib import Path; from dyno.engines.process import EngineProcess\n"
    script += "p = EngineProcess(json.loads(sys.argv[1]), None, Path(sys.argv[2]), json.loads(sys.argv[3]))\n"
    script += "time.sleep(120)"
    words = [
        json.dumps(made.argv),
        str(tmp_path / "log"),
        json.dumps(container.remove_command(tool, called)),
    ]
    with subprocess.Popen([sys.executable, "-c", script, *words]) as dyno:
        try:
            await_true(lambda: answers(made.port) == "weights")
        finally:
            dyno.kill()
    await_true(lambda: refuses(made.port))
    await_true(lambda: containers.running(tool) == [])


def test_a_secret_gets_in_by_name_and_the_exit_code_gets_out(
    image: tuple[str, str], tmp_path: Path
) -> None:
    tool, name = image
    argv = ["/bin/busybox", "sh", "-c", "/bin/busybox env; exit 7"]
    given = Launch(argv, {"HF_TOKEN": "hf_x", "COLOR": "green"}, 1)
    exported = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_y"}
    made = container.wrap(
        given, ContainerSpec(name), "dyno-test-env", tool, None, "none", exported
    ).launch
    assert "hf_x" not in " ".join(made.argv)
    with EngineProcess(
        made.argv, {**os.environ, **exported, **made.env}, tmp_path / "log"
    ) as process:
        await_true(lambda: not process.alive())
        assert process.exit_code == 7
    assert {"HF_TOKEN=hf_x", "COLOR=green", "NCCL_DEBUG=INFO"} < set(
        (tmp_path / "log").read_text().split()
    )


def test_an_engine_in_a_container_is_asked_to_end_before_it_is_ended(
    image: tuple[str, str], tmp_path: Path
) -> None:
    tool, name = image
    script = (
        "trap 'echo bye; exit 0' TERM; echo up; while :; do /bin/busybox sleep 0.1; done"
    )
    given = Launch(["/bin/busybox", "sh", "-c", script], {}, 1)
    made = container.wrap(
        given, ContainerSpec(name), "dyno-test-polite", tool, None, "none"
    ).launch
    cleanup = container.remove_command(tool, "dyno-test-polite")
    with EngineProcess(made.argv, None, tmp_path / "log", cleanup) as process:
        await_true(lambda: "up" in (tmp_path / "log").read_text())
        process.stop()
    assert "bye" in (tmp_path / "log").read_text()
    assert containers.running(tool) == []


def test_the_hubs_cache_is_mounted_from_where_the_hub_keeps_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variables, folder in (
        ({"HF_HOME": "/data"}, "/data"),
        ({"XDG_CACHE_HOME": "/scratch"}, "/scratch/huggingface"),
        ({"HOME": str(tmp_path)}, f"{tmp_path}/.cache/huggingface"),
    ):
        with monkeypatch.context() as patch:
            for name in ("HF_HOME", "XDG_CACHE_HOME"):
                patch.delenv(name, raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            assert str(container.hugging_face_cache()) == folder
