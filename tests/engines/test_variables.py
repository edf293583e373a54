"""Misspelt variables: reported before the start and with the result, without a false alarm."""

import os
from pathlib import Path

import pytest

from dyno.engines.launch import misspelt
from dyno.facts.engine import EngineSpec, Misspelt
from dyno.facts.rig import Rig
from dyno.trial.engine_plan import EnginePlan

RIG = Rig("Debian", "6", "x86_64", "cpu", 16)
ENVS = """
import os
environment_variables = {
    "VLLM_USE_TRITON_FLASH_ATTN": lambda: os.environ.get("VLLM_USE_TRITON_FLASH_ATTN", "True"),
    'VLLM_ROCM_USE_AITER': lambda: False,
    "VLLM_ROCM_USE_AITER_MHA": lambda: False,
}
raise SystemExit("it is read, not run")
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter's path, with the list of variables of its vLLM."""
    package = tmp_path / "lib" / "python3.12" / "site-packages" / "vllm"
    package.mkdir(parents=True)
    (package / "envs.py").write_text(ENVS)
    return str(tmp_path / "bin" / "python")


@pytest.mark.parametrize(
    ("name", "meant", "why"),
    [
        ("LLM_USE_TRITON_FLASH_ATTN", "VLLM_USE_TRITON_FLASH_ATTN", "unlike"),
        ("VLLM_USE_TRITON_FLASH_ATN", "VLLM_USE_TRITON_FLASH_ATTN", "unlike"),
        ("VLLM_ROCM_USE_AITER_MH", "VLLM_ROCM_USE_AITER_MHA", "unlike"),
        ("VLLM_SOMETHING_ELSE", None, "unlisted"),
        ("NCCL_MIN_NCHANELS", "NCCL_MIN_NCHANNELS", "unlike"),
        ("HIP_VISIBLE_DEVICE", "HIP_VISIBLE_DEVICES", "unlike"),
        ("NCCL-DEBUG", "NCCL_DEBUG", "invalid"),
        ("1ST", None, "invalid"),
    ],
)
def test_a_slip_is_reported_with_the_name_that_is_meant(
    python: str, name: str, meant: str | None, why: str
) -> None:
    slip = Misspelt(name, meant, why)  # type: ignore[arg-type]
    assert misspelt("vllm", python, {name: "1"}, {}) == [slip]
    if why != "invalid":
        assert misspelt("vllm", python, {}, {name: "1"}) == [slip]
    assert slip.describe().startswith(f"{name} is not ")


@pytest.mark.parametrize(
    "name",
    ["VLLM_USE_TRITON_FLASH_ATTN", "VLLM_ROCM_USE_AITER_MHA", "NCCL_IB_GID_INDEX", "HIP_VISIBLE_DEVICES", "HF_HOME",
     "RCCL_DEBUG", "MY_OWN", "LC_ALL", "http_proxy", "PATH", "VISIBLE_DEVICES", "HSA_ENABLE_SDMA_GANG"],
)  # fmt: skip
def test_what_is_known_or_like_nothing_known_is_not(python: str, name: str) -> None:
    assert misspelt("vllm", python, {name: "1"}, {name: "1"}) == []


def test_a_variable_that_the_installed_version_lacks_is_reported_only_where_its_list_is_known(
    python: str,
) -> None:
    gone = {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}
    assert misspelt("vllm", python, gone, {}) == [
        Misspelt("VLLM_ATTENTION_BACKEND", None, "unlisted")
    ]
    assert misspelt("vllm", None, gone, {}) == []
    assert misspelt("llamacpp", python, gone, {}) == []


def test_tgis_variables_are_compared_with_the_settings_own_alone() -> None:
    assert misspelt("tgi", None, {"MAX-INPUT-TOKEN": "1"}, {}) == [
        Misspelt("MAX-INPUT-TOKEN", "MAX_INPUT_TOKENS", "invalid")
    ]
    assert misspelt("tgi", None, {"MAX_INPUT_TOKEN": "1"}, {}) == [
        Misspelt("MAX_INPUT_TOKEN", "MAX_INPUT_TOKENS", "unlike")
    ]
    assert misspelt("tgi", None, {}, {"MAX_INPUT_TOKEN": "1", "MODEL_IDS": "1"}) == []


def test_this_machines_own_environment_is_not_a_slip() -> None:
    assert [
        m
        for kind in ("vllm", "tgi", "llamacpp")
        for m in misspelt(kind, None, {}, os.environ)
    ] == []


def test_a_dry_run_names_it() -> None:
    spec = EngineSpec(
        "vllm", model="x/y", version="0.6.3", env={"LLM_USE_TRITON_FLASH_ATTN": "0"}
    )
    assert any(
        "Did you mean VLLM_USE_TRITON_FLASH_ATTN?" in line
        for line in EnginePlan(spec, RIG, dry=True).lines()
    )
