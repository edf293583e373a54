"""Which names are names of one model, and what happens to a result that is reported twice."""

import msgspec
import pytest

from dyno.audit.audit import audit
from dyno.facts.imported import Document, Row
from dyno.measure.pairs import once
from dyno.measure.points import named, related
from rows import row


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("GLM-5", "GLM-5.1"),
        ("zai-org/GLM-5-FP8", "zai-org/GLM-5.1-FP8"),
        ("glm5", "glm5.1"),
        ("Llama-3-8B", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Llama-3_1-8B", "Llama-3_3-8B"),
        ("Qwen2.5-7B", "Qwen3-7B"),
        ("Qwen3-8B", "Qwen3.5-8B"),
        ("gpt-4", "gpt-4.1"),
        ("DeepSeek-V3", "DeepSeek-V3.1"),
        ("Mistral-7B-v0.1", "Mistral-7B-v0.3"),
        ("Mistral-Small", "Mistral-Large"),
        ("Llama-3-8B", "Llama-3-70B"),
    ],
)
def test_another_version_or_size_is_another_model(one: str, other: str) -> None:
    assert not related(named(one), named(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct"),
        ("/models/Llama-3.1-8B-Instruct/", "llama-3.1-8b-instruct"),
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "meta-llama/Llama-3.1-8B-Instruct"),
        ("models--meta-llama--Llama-3.1-8B/snapshots/abc", "Llama-3.1-8B"),
        ("Llama3.1-8B", "Llama-3.1-8B"),
        ("llama3.1:8b", "Llama-3_1-8B"),
        ("Llama-3.0-8B", "Llama-3-8B"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b"),
        ("unsloth/GLM-5.1-UD-Q4_K_XL-00001-of-00005.gguf", "GLM-5.1"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "Llama 3.3 70B"),
        ("llama 8B Q4_K - Medium", "Llama-8B"),
        ("Qwen3-30B-A3B-IQ2_XXS.gguf", "qwen3 30B.A3B"),
        ("Mixtral-8x7B-Instruct-v0.1-Q8_0", "mistralai/Mixtral-8x7B-v0.1"),
    ],
)
def test_another_spelling_or_quantization_is_the_same_model(one: str, other: str) -> None:
    assert named(one).base == named(other).base


def two(one: str, other: str) -> list[Row]:
    return [
        row({}, {"model": one}, file="a.md"),
        row({}, {"model": other}, file="b.md", line=7),
    ]


def test_a_copy_under_another_version_is_not_merged_and_is_void() -> None:
    rows = two("GLM-5", "GLM-5.1")
    found = audit([Document("a.md", "text", rows)], lambda *_: None).findings
    assert [f.level for f in found if f.code == "consistency.twins"] == ["void"]
    assert not [f for f in found if f.code == "consistency.reported_twice"]
    assert len(once(list(rows))) == 2


def test_a_copy_of_the_same_model_counts_once_and_both_places_are_noted() -> None:
    rows = two("zai-org/GLM-5.1", "GLM-5.1-FP8")
    (found,) = [
        f
        for f in audit([Document("a.md", "text", rows)], lambda *_: None).findings
        if f.code == "consistency.reported_twice"
    ]
    assert (found.level, found.locations) == ("note", ["a.md:1", "b.md:7"])
    assert (
        found.text == "1 result is reported twice and counts once: b.md:7 repeats a.md:1."
    )


def test_figures_without_a_duration_that_agree_to_the_last_digit_merge_only_within_one_model() -> (
    None
):
    speed = {"output_throughput": 1234.5678, "request_throughput": 12.345678}
    for other, left in (("org/GLM-5", 1), ("GLM-5.1", 2)):
        rows = [
            msgspec.structs.replace(
                row({}, {"model": model}, base=speed, half=5e-5), file=file
            )
            for model, file in (("GLM-5", "a.md"), (other, "b.md"))
        ]
        assert len(once(list(rows))) == left
