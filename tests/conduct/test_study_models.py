"""A study's [models.NAME]: what a recipe comes to, who uses it, and what is said about its mistakes."""

from pathlib import Path

import pytest

from dyno.conduct.study_plan import known
from dyno.errors import UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.facts.study import Study
from dyno.study.file import read

REST = """
[workloads.w]
input_len = 16
output_len = 4
num_prompts = 10
[loads.c]
max_concurrency = 2
"""
ENGINE = '[engines.a]\nkind = "fake"\nmodel = "base"\n'


def study(models: str, engine: str = ENGINE, given: dict[str, str] | None = None) -> Study:
    return read(models + engine + REST, Path("/somewhere/some.toml"), known(), given)


def weights(
    models: str, engine: str = ENGINE, given: dict[str, str] | None = None
) -> dict[str, ModelRecipe]:
    found = study(models, engine, given).trials[0].trial.engine
    assert found is not None
    return found.weights


def mistakes(models: str, engine: str = ENGINE) -> list[str]:
    with pytest.raises(UsageError) as e:
        study(models, engine)
    return str(e.value).splitlines()


def test_an_engine_names_a_model_of_the_study() -> None:
    found = weights(
        '[models.base]\nfrom = "hub:o/n@v1"\ninclude = ["*.json"]\n[models.other]\nfrom = "hub:o/x"\n'
    )
    assert found == {"base": ModelRecipe(source="hub:o/n@v1", include=["*.json"])}


def test_a_model_made_from_another_has_its_whole_recipe() -> None:
    models = """
    [models.small]
    from = "middle"
    quantize = "llama.cpp:Q4_K_M"
    [models.middle]
    from = "base"
    convert = "gguf:F16"
    [models.base]
    from = "hub:o/n"
    exclude = ["original/*"]
    """
    found = weights(models, '[engines.a]\nkind = "fake"\nmodel = "small"\n')
    whole = ModelRecipe(
        source="hub:o/n",
        exclude=["original/*"],
        convert="gguf:F16",
        quantize="llama.cpp:Q4_K_M",
    )
    assert found == {"small": whole}


def test_draft_models_and_tokenizers_are_models_too() -> None:
    models = '[models.base]\nfrom = "hub:o/n"\n[models.draft]\nfrom = "hub:o/d"\n[models.counts]\nfrom = "hub:o/t"\n'
    engine = '[engines.a]\nkind = "vllm"\nmodel = "base"\ndraft_model = "draft"\n[trial]\ntokenizer = "counts"\n'
    assert set(weights(models, engine)) == {"base", "draft", "counts"}
    attached = '[engines.a]\nkind = "openai"\nbase_url = "http://h"\nmodel = "base"\n[trial]\ntokenizer = "counts"\n'
    assert set(weights(models, attached)) == {"counts"}, (
        "a running server has its own model"
    )


def test_variables_and_paths_in_a_model() -> None:
    models = '[variables]\nmodel = "hub:o/n"\n[models.base]\nfrom = "${model}"\nquantize = "quark:fp8"\n'
    models += 'calibration = "texts.jsonl"\n'
    found = weights(models)["base"]
    assert (found.source, found.calibration) == ("hub:o/n", "/somewhere/texts.jsonl")
    assert (
        weights(models, given={"model": "owner/tiny@v1"})["base"].source
        == "hub:owner/tiny@v1"
    )
    for path in ("file:tiny", "file:./tiny", "file:/somewhere/tiny", "/somewhere/tiny"):
        assert (
            weights(models, given={"model": path})["base"].source == "file:/somewhere/tiny"
        )


def test_the_trial_has_the_same_id_on_every_machine_and_another_for_another_recipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = study('[models.base]\nfrom = "hub:o/n"\n').trials[0].place.id
    monkeypatch.setenv("DYNO_HOME", str(tmp_path))
    assert study('[models.base]\nfrom = "hub:o/n"\n').trials[0].place.id == one
    assert study('[models.base]\nfrom = "hub:o/n@v2"\n').trials[0].place.id != one


def test_models_are_an_axis() -> None:
    engine = '[engines.a]\nkind = "fake"\nmodel = ["base", "small"]\n'
    models = '[models.base]\nfrom = "hub:o/n"\n[models.small]\nfrom = "base"\nquantize = "quark:fp8"\n'
    labels = [
        (p.place.settings["engine.model"], list(p.trial.engine.weights))
        for p in study(models, engine).trials
    ]  # type: ignore[union-attr]
    assert labels == [("base", ["base"]), ("small", ["small"])]


def test_all_mistakes_are_reported_together_with_their_lines() -> None:
    models = """\
[models.base]
from = "hub:o/n"
quantise = "quark:fp8"
[models.loop]
from = "back"
[models.back]
from = "loop"
[models.none]
include = ["*"]
[models.bare]
from = "meta/llama 3"
[models.lost]
from = "bass"
[models.odd]
from = "base"
convert = "onnx"
[models.scales]
from = "base"
kv_cache = "fp8"
[models.twice]
from = "fp8"
quantize = "quark:int8"
[models.fp8]
from = "base"
quantize = "quark:fp8"
[models."a b"]
from = "hub:${who}/n"
samples = 0
"""
    found = "\n".join(mistakes(models, '[engines.a]\nkind = "fake"\nmodel = "bas"\n'))
    for text in (
        "some.toml:3: models.base.quantise: unknown key. Did you mean quantize?",
        "some.toml:5: models.loop.from: is circular: loop → back → loop.",
        "some.toml:8: models.none: from is missing.",
        "some.toml:11: models.bare.from: 'hub:meta/llama 3' is not a model. Give hub:OWNER/NAME,",
        "some.toml:13: models.lost.from: there is no model 'bass'. Did you mean base?",
        "some.toml:16: models.odd.convert: 'onnx' is not a conversion. Use gguf:F32,",
        "some.toml:19: models.scales.kv_cache: is for a model that is quantized: add quantize.",
        "some.toml:22: models.twice.quantize: can't follow quantize = 'quark:fp8' of the model 'fp8'",
        "some.toml:26: models.a b: can't be a model's name.",
        "some.toml:27: models.a b.from: there is no variable 'who'.",
        "some.toml:28: models.a b.samples: must be at least 1, but is 0.",
        "engines.a.model: there is no model 'bas'. Did you mean base?",
    ):
        assert text in found


def test_a_name_of_the_hub_is_not_a_slip_of_the_pen() -> None:
    for name in ("gpt2", "owner/base", "./base"):
        assert (
            weights(
                '[models.base]\nfrom = "hub:o/n"\n',
                f'[engines.a]\nkind = "vllm"\nmodel = "{name}"\n',
            )
            == {}
        )


def test_a_model_takes_one_value() -> None:
    text = "\n".join(
        mistakes('[variables]\nm = ["hub:o/a", "hub:o/b"]\n[models.base]\nfrom = "${m}"\n')
    )
    assert "models.base.from: ${m} is a list, but a model takes one value." in text
