"""Engines in the version that is asked for: the table of images and constraints, builds of llama.cpp, and ranges."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dyno.engines import environment, install, llama_build, versions
from dyno.engines.kinds import KINDS
from dyno.engines.kinds.recipe import VARIANTS
from dyno.engines.launch import contained, locate
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec, accepted, numbers
from dyno.facts.rig import Rig
from dyno.facts.target import TargetFacts
from dyno.measure.agreement import differences
from dyno.trial.engine_plan import EnginePlan

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

RIG = Rig("Linux", "6", "aarch64", "cpu", 2)

# The table


def test_each_line_of_the_table_names_a_document_and_no_digest() -> None:
    rows = [*versions.table().image, *versions.table().pins]
    assert all(re.match(r"https://[\w.-]+/\S+$", row.document) for row in rows)
    for row in versions.table().image:
        assert bool(row.version) != bool(row.since), row
        assert "{version}" in row.image or row.version, row
        for image in filter(None, (row.image, row.latest)):
            # With its registry, since podman doesn't guess one; a tag, and no digest.
            assert re.fullmatch(r"(docker\.io|ghcr\.io)/[\w./-]+:[\w.{}-]+", image), image


def test_the_table_is_sorted_and_names_known_engines_and_variants() -> None:
    images = versions.table().image
    assert images == sorted(
        images, key=lambda r: (r.engine, r.variant, numbers(r.version or r.since))
    )
    assert {row.engine for row in images} <= set(KINDS)
    assert {row.variant for row in images} <= set(VARIANTS)
    pins = versions.table().pins
    assert [row.until for row in pins[:-1]] == [row.since for row in pins[1:]]


@pytest.mark.parametrize(
    ("asked", "image"),
    [
        (("vllm", "cuda", "0.6.3"), "docker.io/vllm/vllm-openai:v0.6.3"),
        (
            ("vllm", "rocm", "0.6.4"),
            "docker.io/rocm/vllm:rocm6.2_mi300_ubuntu20.04_py3.9_vllm_0.6.4",
        ),
        (("vllm", "rocm", "0.6.3"), "ghcr.io/embeddedllm/vllm-rocm:v0.6.3.post1-717a5f8"),
        (("vllm", "rocm", "0.20.1"), "docker.io/vllm/vllm-openai-rocm:v0.20.1"),
        (("vllm", "rocm", None), "docker.io/vllm/vllm-openai-rocm:latest"),
        (("llamacpp", "cuda", "b6327"), "ghcr.io/ggml-org/llama.cpp:server-cuda-b6327"),
        (
            ("tgi", "rocm", "2.3.1"),
            "ghcr.io/huggingface/text-generation-inference:2.3.1-rocm",
        ),
    ],
)
def test_a_version_has_its_image(asked: tuple[str, str, str | None], image: str) -> None:
    assert versions.image_of(*asked)[0] == image


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("AMD Instinct MI250X", "gfx90a"), ("MI300X", "gfx942"), ("MI325X", "gfx942"), ("MI3", "gfx942"),
        ("AMD Instinct MI355X", "gfx950"), ("Strix Halo", "gfx1151"), ("AMD Radeon 8060S Graphics", "gfx1151"),
        ("AMD Radeon RX 7900 XTX", "gfx1100"), ("AMD Radeon Graphics", None),
    ],
)  # fmt: skip
def test_a_card_s_name_has_its_architecture(name: str, architecture: str | None) -> None:
    assert versions.architecture_of(name) == architecture


def test_an_image_must_be_built_for_the_card() -> None:
    strix = ("vllm", "rocm", "0.10.1", "gfx1151")
    with pytest.raises(
        UsageError,
        match=r"No image of vllm 0.10.1 for rocm on gfx1151 is known. Nearest: 0.14.0",
    ):
        versions.image_of(*strix)
    assert versions.image_of(*strix, accepts=">=0.10.1,<0.15") == (
        "docker.io/vllm/vllm-openai-rocm:v0.14.0",
        "0.14.0",
    )
    assert versions.image_of("vllm", "rocm", "0.10.1", "gfx942")[0].endswith(
        "_vllm_0.10.1_20250909"
    )
    with pytest.raises(
        UsageError, match="No image of tgi for rocm is known that was built for gfx1151"
    ):
        versions.image_of("tgi", "rocm", "2.3.1", "gfx1151")


def test_a_version_that_the_setting_accepts_serves_where_the_one_asked_for_has_no_image() -> (
    None
):
    later = versions.image_of("vllm", "rocm", "0.6.5", "gfx942", accepts=">=0.6.5,<0.7")
    assert later == (
        "docker.io/rocm/vllm:rocm6.3.1_mi300_ubuntu22.04_py3.12_vllm_0.6.6",
        "0.6.6",
    )
    assert (
        versions.image_of("vllm", "rocm", "0.6.5", accepts=">=0.6.2,<0.6.5")[1] == "0.6.4"
    )
    with pytest.raises(UsageError, match=r"No image of vllm 0\.6\.5 for rocm"):
        versions.image_of("vllm", "rocm", "0.6.5", accepts="==0.6.5")


def test_a_version_without_an_image_names_the_nearest() -> None:
    with pytest.raises(
        UsageError,
        match=r"No image of vllm 0.12.0 for rocm is known. Nearest: 0.11.2 or 0.14.0",
    ):
        versions.image_of("vllm", "rocm", "0.12.0")
    with pytest.raises(
        UsageError, match=r"llamacpp 6327 for rocm is known. Nearest: 5997 or 6356"
    ):
        versions.image_of("llamacpp", "rocm", "6327")


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.6.3.post1", "0.6.3"),
        ("docker.io/rocm/vllm:rocm6.3.1_instinct_vllm0.7.3_20250325", "0.7.3"),
        ("ghcr.io/embeddedllm/vllm-rocm:cb3b2b9", "0.6.3.dev109"),
        ("ghcr.io/ggml-org/llama.cpp:server-vulkan-b6327", "6327"),
        ("localhost:5000/engine:1.2", "1.2"),
        ("rocm/vllm-dev:main", None),
        ("ghcr.io/huggingface/text-generation-inference:sha-11d7af7-rocm", None),
    ],
)
def test_the_version_of_an_image_by_its_tag(image: str, version: str | None) -> None:
    assert versions.version_of(image) == version


def test_old_versions_get_packages_of_their_time() -> None:
    assert versions.pins("vllm", "0.6.3.post1") == [
        "transformers<4.46",
        "huggingface_hub<1",
        "mistral_common<1.5",
    ]
    assert versions.pins("vllm", "0.32.0") == []
    assert versions.pins("llamacpp", "6327") == []


# Ranges


@pytest.mark.parametrize(
    ("version", "accepts", "yes"),
    [
        ("0.6.2", ">=0.6.2,<0.7", True),
        ("0.6.3.post1", ">=0.6.2, <0.7", True),
        ("0.7.0", ">=0.6.2,<0.7", False),
        ("0.6.3.post1", "==0.6.3", True),
        ("0.6.4", "!=0.6.3", True),
        ("6500", ">=6327,<7000", True),
        ("b6327", ">6327", False),
        ("b6327", "<=6327", True),
    ],
)
def test_a_version_is_within_a_range_or_not(version: str, accepts: str, yes: bool) -> None:
    assert accepted(version, accepts) is yes


def test_a_range_that_is_none_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--engine-accepts '~0.6' is not a range of versions. Write it as"
    ):
        accepted("0.6", "~0.6")


def program(folder: Path, name: str, prints: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{prints}\n")
    path.chmod(0o755)
    return path


def test_the_flags_are_those_of_the_version_that_is_here_within_the_accepted_range(
    tmp_path: Path,
) -> None:
    old = program(tmp_path, "llama-server", "echo 'version: 7000 (abc)'")
    spec = EngineSpec(
        "llamacpp",
        binary=str(old),
        version="8000",
        accepts=">=6327,<9000",
        prefix_caching=True,
    )
    plan = EnginePlan(spec, RIG, port=8123)
    assert plan.program.version == "7000"
    assert "--cache-prompt" not in plan.launches[0].argv  # build 7716 brought it
    assert any(
        "is 7000; the setting is written for 8000 and accepts it" in note
        for note in plan.notes(None)
    )
    # of the running server, too
    assert list(differences(spec, TargetFacts("m", version="7000"), None)) == []
    assert list(differences(spec, TargetFacts("m", version="9500"), None)) != []
    narrow = EngineSpec("llamacpp", binary=str(old), version="8000", accepts=">=8000,<9000")
    with pytest.raises(
        UsageError,
        match=r"requires version '8000' or one within '>=8000,<9000', but llama.cpp .* 7000",
    ):
        EnginePlan(narrow, RIG, port=8123)


# llama.cpp by build number

CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(engine C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
foreach(name llama-server llama-bench llama-quantize)
  add_executable(${name} main.c)
  target_compile_definitions(${name} PRIVATE NUMBER="${LLAMA_BUILD_NUMBER}" COMMIT="${LLAMA_BUILD_COMMIT}")
endforeach()
"""
MAIN = '#include <stdio.h>\nint main() { puts("version: " NUMBER " (" COMMIT ")"); return 0; }\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A Git repository with three builds."""
    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "main.c").write_text(MAIN)

    def git(*words: str) -> None:
        own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        who = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
        subprocess.run(
            ["git", *who, *words],
            cwd=folder,
            check=True,
            capture_output=True,
            env={**os.environ, **own},
        )

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    for tag in ("b6325", "b6327", "b6400", "b100", "gguf-v1"):
        git("tag", tag)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return tmp_path / "home"


@pytest.mark.skipif(
    not (shutil.which("git") and shutil.which("cmake") and shutil.which("cc")),
    reason="no compiler",
)
def test_llama_cpp_is_built_at_its_tag_and_found_by_its_number(
    repository: Path, home: Path
) -> None:
    lines: list[str] = []
    env = install.install(
        "llamacpp", "6327", "cpu", source=f"file://{repository}", say=lines.append
    )
    assert re.fullmatch(r"llamacpp-6327-cpu-[0-9a-f]{8}", env.name)
    assert env.source and re.fullmatch(r"file://\S+ b6327 [0-9a-f]{8}", env.source)
    assert [p.name for p in sorted((home / "engines" / env.name).rglob("*")) if p.is_file()] == [
        "llama-bench", "llama-quantize", "llama-server", "dyno.json", "install.log",
    ]  # fmt: skip
    assert any("configuring b6327 for cpu" in line for line in lines)
    found = locate(KINDS["llamacpp"], EngineSpec("llamacpp", version="6327"))
    assert (found.argv, found.version) == ([env.binary], "6327")
    out = subprocess.run(
        [env.binary or "", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert re.fullmatch(r"version: 6327 \([0-9a-f]{8}\)\n", out)
    environment.remove(env.name)
    assert environment.find("llamacpp") is None


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_a_build_without_a_tag_names_the_nearest(repository: Path) -> None:
    with pytest.raises(
        UsageError, match=r"has no tag b6326. Nearest: b100, b6325, b6327, b6400."
    ):
        llama_build.choose(f"file://{repository}", "6326")
    with pytest.raises(
        UsageError, match=r"a version of llama.cpp is a build number, as 6327"
    ):
        llama_build.choose(str(repository), "0.6.3")
    with pytest.raises(
        UsageError, match=r"can't build llama.cpp b100: its build files differ before b3240"
    ):
        llama_build.choose(str(repository), "100")
    with pytest.raises(
        EngineError,
        match=r"The tags of file:///nowhere can't be listed: \"fatal: .*--from FOLDER\|URL",
    ):
        llama_build.choose("file:///nowhere", "6327")
    assert llama_build.choose(str(repository), None).number == 6400
    shutil.rmtree(repository / ".git")
    with pytest.raises(
        UsageError, match=r"is not a Git repository: give its build number with --version"
    ):
        llama_build.choose(str(repository), None)
    assert llama_build.choose(str(repository), "b6327") == llama_build.Checkout(
        str(repository), 6327
    )


def test_a_missing_tool_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        UsageError,
        match=r"there is no C\+\+ compiler \(c\+\+\) on PATH. Install g\+\+ or clang.",
    ):
        llama_build.check_tools("cpu")
    with pytest.raises(UsageError, match=r"git is needed to fetch llama.cpp's sources"):
        llama_build.choose("https://localhost/x", "6327")
    program(tmp_path, "c++", "")
    llama_build.check_tools("cpu")
    with pytest.raises(
        UsageError,
        match=r"llama.cpp for cuda is built with nvcc, which is not on PATH. Install the CUDA",
    ):
        llama_build.check_tools("cuda")


@pytest.mark.parametrize(
    ("number", "variant", "flag"),
    [
        (6327, "cuda", "-DGGML_CUDA=ON"),
        (6327, "rocm", "-DGGML_HIP=ON"),
        (4000, "rocm", "-DGGML_HIPBLAS=ON"),
        (6327, "vulkan", "-DGGML_VULKAN=ON"),
    ],
)
def test_each_variant_has_its_cmake_option(number: int, variant: str, flag: str) -> None:
    assert flag in llama_build.flags(llama_build.Checkout("x", number), variant)


# By container

TOOL = """#!{python}
import json, os, sys
words = sys.argv[1:]
here = os.environ["IMAGES"]
images = json.load(open(here))
with open(here + ".calls", "a") as f:
    print(*words, file=f)
if words[0] == "pull":
    images[words[1]] = "0.6.3.post1"
    json.dump(images, open(here, "w"))
elif words[:2] == ["image", "inspect"]:
    name = words[2].replace("@sha256:" + 64 * "a", "")
    known = [image for image in images if image.startswith(name)]
    if not known:
        sys.exit(1)
    print(json.dumps([dict(Id=64 * "b", RepoDigests=[known[0].rpartition(":")[0] + "@sha256:" + 64 * "a"])]))
elif words[0] == "run":
    print(json.dumps(dict(vllm="0.6.3.post1")))
elif words[0] == "rmi":
    json.dump(dict(), open(here, "w"))
elif words[0] == "--version":
    print("podman version 4.3.1")
"""


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """A podman with no image yet. Returns the calls of a verb."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "podman").write_text(TOOL.format(python=sys.executable))
    (folder / "podman").chmod(0o755)
    images = tmp_path / "images"
    images.write_text("{}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("IMAGES", str(images))
    calls = tmp_path / "images.calls"
    return lambda verb: [
        line for line in calls.read_text().splitlines() if line.split()[0] == verb
    ]


def test_rocm_is_installed_by_container_and_then_located_like_an_environment(
    home: Path, podman: Callable[[str], list[str]]
) -> None:
    env = install.install("vllm", "0.6.3", "rocm")
    assert podman("pull") == ["pull ghcr.io/embeddedllm/vllm-rocm:v0.6.3.post1-717a5f8"]
    assert (env.name, env.version) == ("vllm-0.6.3.post1-rocm-image", "0.6.3.post1")
    assert env.image == "ghcr.io/embeddedllm/vllm-rocm@sha256:" + 64 * "a"
    assert environment.installed("vllm") == [env]
    spec = contained(KINDS["vllm"], EngineSpec("vllm", version="0.6.3"))
    assert spec.container == ContainerSpec(image=env.image, tool="podman")
    assert locate(KINDS["vllm"], spec).version == "0.6.3.post1"
    environment.remove(env.name)
    assert podman("rmi") == [f"rmi {env.image}"]
    assert environment.installed("vllm") == []


def test_an_image_with_another_version_than_asked_for_is_refused(
    home: Path, podman: Callable[[str], list[str]]
) -> None:
    with pytest.raises(
        EngineError, match=r"The image localhost/mine:1 has vllm 0.6.3.post1, not 0.9"
    ):
        install.install("vllm", "0.9", "rocm", source="localhost/mine:1", by="container")
    box = ContainerSpec("localhost/mine:1")
    with pytest.raises(
        UsageError,
        match=r"requires version '0.9', but vLLM at the image localhost/mine:1 is 0.6.3.post1",
    ):
        locate(KINDS["vllm"], EngineSpec("vllm", container=box, version="0.9"))
    # With a range that it is in, its own version's flags are used.
    spec = EngineSpec(
        "vllm",
        model="m",
        container=box,
        version="0.9",
        accepts=">=0.6",
        chunked_prefill=False,
    )
    assert (
        "--enable-chunked-prefill=False"
        in EnginePlan(spec, RIG, port=8123).launches[0].argv
    )
