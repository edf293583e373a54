"""The dry run of each report's study, with the sizes of the real repositories: what its author decides by."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import report_hub
from dyno.cli.main import main
from hub_server import TOKEN
from studies import REPORTS

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

# The way to each engine, by study: the image or the package of the dry run.
WAYS = {
    "h100-vs-mi300x-offline": {
        "vllm 0.6.3": "install",
        "ghcr.io/embeddedllm/vllm-rocm:cb3b2b9": "pull",
    },
    "h100-vs-mi300x-online": {
        "vllm 0.6.3": "install",
        "ghcr.io/embeddedllm/vllm-rocm:cb3b2b9": "pull",
    },
    "mi300x-llama405b-tgi-vs-vllm": {
        "vllm 0.6.3": "pull ghcr.io/embeddedllm/vllm-rocm:v0.6.3.post1-717a5f8",
        "ghcr.io/huggingface/text-generation-inference:sha-11d7af7-rocm": "pull",
    },
    "mi300x-llama70b-tp-fp8": {
        "vllm 0.6.5": "pull docker.io/rocm/vllm:rocm6.3.1_mi300_ubuntu22.04_py3.12_vllm_0.6.6 "
        "(0.6.6, which the setting accepts)",
    },
    "strix-halo-vllm-vs-llamacpp": {
        "vllm 0.10.1": "pull docker.io/vllm/vllm-openai-rocm:v0.14.0 (0.14.0, which the setting accepts)",
        "llamacpp 6327": "install; its build needs a C++ compiler and ROCm with HIP",
    },
}
# of all rocm-* studies
AMD_GUIDE = {"docker.io/rocm/vllm:rocm6.2_mi300_ubuntu20.04_py3.9_vllm_0.6.4": "pull"}
# GB that a bare machine fetches from the Hub, for each rig.
FETCHED_GB = {
    "h100-vs-mi300x-offline": [410, 820],
    "h100-vs-mi300x-online": [411, 821],
    "mi300x-llama405b-tgi-vs-vllm": [812],
    "mi300x-llama70b-tp-fp8": [142],
    "rocm-cpx": [73],
    "rocm-fp8-latency": [1222],
    "rocm-fp8-quality": [214],
    "rocm-fp8-serving": [73],
    "rocm-fp8-throughput": [1222],
    "rocm-speculative": [419],
    "strix-halo-vllm-vs-llamacpp": [25],
}


@pytest.fixture(scope="module")
def hub_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with report_hub.described(tmp_path_factory.mktemp("hub")) as hub:
        yield hub.url


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_a_study_s_page_has_a_way_to_every_engine_and_the_size_of_every_model(
    path: Path,
    hub_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name, value in {
        "HOME": str(tmp_path),
        "DYNO_HOME": str(tmp_path),
        "HF_HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_ENDPOINT", hub_url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert main(["run", str(path), "--dry-run", "--json"]) == 0
    page: dict[str, Any] = json.loads(capsys.readouterr().out)
    missing = [need for rig in page["rigs"] for need in rig["missing"]]
    assert {
        n["name"]: n["how"] for n in missing if n["what"] in ("engine", "image")
    } == WAYS.get(path.stem, AMD_GUIDE)
    sized = [need for need in missing if need["what"] in ("model", "data set")]
    assert all(need["size_bytes"] is not None and not need["refused"] for need in sized)
    gated = {need["name"] for need in sized if need["gated"] and "/" in need["name"]}
    assert gated == {
        need["name"] for need in sized if need["name"].startswith("meta-llama/")
    }
    fetched = [sum(n["size_bytes"] for n in rig["missing"] if n["how"].startswith("pull") and n["size_bytes"])
               for rig in page["rigs"]]  # fmt: skip
    assert [round(size / 1e9) for size in fetched] == FETCHED_GB[path.stem]
    phases = {phase["name"]: phase for rig in page["rigs"] for phase in rig["phases"]}
    assert all(
        phases[name]["basis"] == "assumed" and phases[name]["seconds"] > 0
        for name in ("fetch", "start", "load")
    )
    assert page["problems"] == []
