"""TGI's start lines by version, against its launcher's rules (sources of 0.9 to 3.3.7). TGI itself doesn't run here."""

from typing import Any

import pytest

from dyno.engines.container import in_the_cache, wrap
from dyno.engines.kinds import KINDS
from dyno.engines.kinds.base import Program
from dyno.errors import UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec, Launch
from dyno.facts.rig import Accelerator, Rig

TGI = KINDS["tgi"]


def line(version: str | None, *args: str, **settings: Any) -> list[str]:
    spec = EngineSpec("tgi", model="org/m", args=list(args), **settings)
    return TGI.argv(spec, Program(["text-generation-launcher"], version), 8000)


def value(words: list[str], flag: str) -> int | None:
    return int(words[words.index(flag) + 1]) if flag in words else None


def lengths(
    version: str, words: list[str], context: int = 131_072
) -> tuple[int, int, int | None]:
    """What a version makes of its flags: the longest prompt, the longest request, tokens of a prefill. None: a prefill
    comes in parts, or follows the card. Raises where its launcher refuses."""
    number = tuple(map(int, version.split(".")))
    prompt = value(words, "--max-input-tokens") or value(words, "--max-input-length")
    total, prefill = (
        value(words, "--max-total-tokens"),
        value(words, "--max-batch-prefill-tokens"),
    )
    if "--max-input-tokens" in words and number < (2, 0, 0):
        raise ValueError("unexpected argument '--max-input-tokens'")
    if number < (2, 0, 0):
        prompt, total, prefill = prompt or 1024, total or 2048, prefill or 4096
    elif number < (2, 4, 1):
        usual = min(context, 4096)
        prompt, total = prompt or usual - 1, total or usual
        prefill = prefill or prompt + 50
    else:
        total = total or context
        prompt = prompt or total - 1
        prefill = prefill or (4096 if number < (3, 0, 0) else None)
    if prompt >= total:
        raise ValueError("`max_input_tokens` must be < `max_total_tokens`")
    if prefill is not None and prompt > prefill:
        raise ValueError("`max_batch_prefill_tokens` must be >= `max_input_tokens`")
    return prompt, total, prefill


VERSIONS = ["1.4.5", "2.0.4", "2.2.0", "2.3.1", "2.4.0", "2.4.1", "3.0.0", "3.3.2", "3.3.7"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("length", [512, 2048, 4096, 8192, 130_000])
def test_a_request_may_be_as_long_as_the_setting_says_in_every_version(
    version: str, length: int
) -> None:
    prompt, total, _ = lengths(version, line(version, max_model_len=length))
    assert (prompt, total) == (length - 1, length)


def test_the_launchers_rules_refuse_the_length_alone_where_its_sources_do() -> None:
    with pytest.raises(ValueError, match="must be <"):
        lengths("2.3.1", ["--max-total-tokens", "2048"])
    assert lengths("2.3.1", ["--max-total-tokens", "8192"])[0] == 4095  # prompts are cut
    with pytest.raises(ValueError, match="prefill"):
        lengths("1.4.5", ["--max-total-tokens", "8192", "--max-input-length", "8191"])


def test_lengths_that_the_user_gives_stay() -> None:
    words = line(
        "2.4.0", "--max-input-tokens", "100", max_model_len=200, max_batched_tokens=300
    )
    assert (
        words.count("--max-batch-prefill-tokens") == 1 and "--max-input-tokens" not in words
    )
    assert (
        value(
            line("2.4.1", "--max-batch-prefill-tokens", "9000", max_model_len=8192),
            "--max-batch-prefill-tokens",
        )
        is None
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_it_takes_one_card_unless_the_setting_says_more(version: str) -> None:
    assert value(line(version), "--num-shard") == 1
    assert value(line(version, tensor_parallel=4), "--num-shard") == 4
    assert "--num-shard" not in line(version, "--sharded", "true")


@pytest.mark.parametrize(
    ("version", "flag", "words"),
    [
        ("1.4.5", "--max-input-tokens", "Older versions call it --max-input-length"),
        ("2.0.4", "--usage-stats", "versions from 2.3.0 have it"),
        ("3.3.7", "--enable-cuda-graphs", "Later versions have --cuda-graphs"),
        ("3.3.7", "--max-num-seqs", "has no --max-num-seqs."),
        ("3.3.7", "--max-batch-sizes", "Did you mean --max-batch-size?"),
    ],
)
def test_a_flag_that_its_version_lacks_is_refused_before_the_start(
    version: str, flag: str, words: str
) -> None:
    with pytest.raises(UsageError, match=f"TGI {version}") as refused:
        TGI.own_args([flag, "1"], Program(["text-generation-launcher"], version))
    assert words in str(refused.value)


def test_its_limit_of_requests_at_once_refuses_and_is_not_a_number_of_slots() -> None:
    default = TGI.limits(EngineSpec("tgi", model="m"), None)
    raised = TGI.limits(
        EngineSpec("tgi", model="m", args=["--max-concurrent-requests", "8192"]), None
    )
    assert (default.refuses, default.slots) == (128, None) and (
        raised.refuses,
        raised.slots,
    ) == (8192, None)


def test_models_land_in_the_cache_that_is_mounted_whatever_variable_its_image_sets() -> (
    None
):
    launch, box = (
        Launch(["", "--port", "8000"], {"HF_HOME": "/cache"}, 8000),
        ContainerSpec("tgi:2.2.0"),
    )
    words = wrap(
        in_the_cache(launch, box, TGI.cache_variables), box, "n", "docker", None, "nvidia"
    ).launch.argv
    assert (
        "--env=HF_HOME=/cache" in words
        and "--env=HUGGINGFACE_HUB_CACHE=/cache/hub" in words
    )
    assert "--volume=/cache:/cache" in words
    own = ContainerSpec("tgi:2.2.0", mounts=["/mine:/root/.cache/huggingface"])
    words = wrap(
        in_the_cache(Launch([""], {}, 8000), own, TGI.cache_variables),
        own,
        "n",
        "docker",
        None,
        "nvidia",
    ).launch.argv
    assert "--env=HUGGINGFACE_HUB_CACHE=/root/.cache/huggingface/hub" in words


def test_prefix_caching_on_amd_is_refused_before_its_server_ends() -> None:
    on = EngineSpec("tgi", model="m", prefix_caching=True)
    amd, nvidia = (
        Rig("h", "0", "any", "cpu", 8, accelerators=[Accelerator(0, "x", v)])
        for v in ("amd", "nvidia")
    )
    assert "no prefix caching on AMD" in (TGI.unable(on, amd) or "")
    assert (
        TGI.unable(on, nvidia) is None
        and TGI.unable(EngineSpec("tgi", model="m"), amd) is None
    )
