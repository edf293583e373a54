"""vLLM's datasets that are read from public files: the sonnet, and datasets of the Hub that are on this machine."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dyno.errors import WorkloadError
from dyno.trial import dataset
from dyno.workload.prompts import make
from dyno.workload.spec import WorkloadSpec
from dyno.workload.tokenizer import ApproximateTokenizer

WORDS = ApproximateTokenizer()
SHAREGPT = {"conversations": [{"from": "human", "value": "How are you today, friend? " * 3},
                              {"from": "gpt", "value": "I am well, and how about you? " * 3}]}  # fmt: skip


def sonnet(**fields: Any) -> WorkloadSpec:
    return WorkloadSpec(
        **{
            "dataset": "sonnet",
            "num_prompts": 10,
            "input_len": 300,
            "prefix_len": 100,
            **fields,
        }
    )


def test_a_sonnet_has_its_task_and_a_common_start() -> None:
    work = make(sonnet(), WORDS)
    prompts = [str(r.prompt) for r in work.requests]
    assert all(
        p.startswith("Pick as many lines as you can from these poem lines:\nFROM fairest")
        for p in prompts
    )
    assert len({p[:300] for p in prompts}) == 1 and len({*prompts}) == 10
    assert all(
        240 < r.prompt_tokens <= 300 and r.output_tokens == 150 for r in work.requests
    )


def test_another_file_of_poems_is_read(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("one line of words\nanother line of words\n" * 5)
    work = make(
        sonnet(path=str(tmp_path / "poem.txt"), input_len=80, prefix_len=0, output_len=7),
        WORDS,
    )
    assert (
        "line of words" in str(work.requests[0].prompt)
        and work.requests[0].output_tokens == 7
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input_len": 12}, "too short"),
        ({"prefix_len": 300}, "leaves no room"),
        ({"path": "none.txt"}, "no none.txt"),
    ],
)
def test_a_sonnet_that_cannot_be_says_why(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        make(sonnet(**fields), WORDS)


def hf(path: Path, **fields: Any) -> WorkloadSpec:
    return WorkloadSpec(
        **{
            "dataset": "hf",
            "path": str(path),
            "num_prompts": 3,
            "oversample": False,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("row", "prompt", "output_tokens"),
    [
        (SHAREGPT, SHAREGPT["conversations"][0]["value"], WORDS.count(SHAREGPT["conversations"][1]["value"])),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Why is the sky blue?"},
                       {"role": "assistant", "content": "Because of the light."}]}, "Why is the sky blue?", None),
        ({"turns": ["Write a poem", "Shorter"]}, "Write a poem", 256),
        ({"question": "What is 2 + 2, by the rules?", "answer": "It is 4, of course"}, "What is 2 + 2, by the rules?",
         None),
        ({"prompt": "def f(x):", "task_id": 3}, "def f(x):", 256),
    ],
)  # fmt: skip
def test_the_columns_of_usual_datasets_are_known(
    tmp_path: Path, row: dict[str, Any], prompt: str, output_tokens: int | None
) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    (request,) = make(hf(tmp_path / "data.jsonl"), WORDS).requests
    assert request.prompt == prompt
    assert output_tokens is None or request.output_tokens == output_tokens
    assert (
        make(hf(tmp_path / "data.jsonl", output_len=9), WORDS).requests[0].output_tokens
        == 9
    )


def test_a_folder_has_files_by_subset_and_split(tmp_path: Path) -> None:
    for name in (
        "main/train-00000.parquet",
        "main/test-00000.parquet",
        "socratic/test-00000.parquet",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        duckdb.sql(
            f"COPY (SELECT 'the question of {name} please' AS question) TO '{tmp_path / name}' (FORMAT parquet)"
        )
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / "README.md").write_text("# card")

    def prompts(**fields: Any) -> list[str]:
        return [
            str(r.prompt).split()[3]
            for r in make(hf(tmp_path, shuffle=False, **fields), WORDS).requests
        ]

    assert prompts(hf_subset="main", hf_split="test") == ["main/test-00000.parquet"]
    assert prompts(hf_split="test") == [
        "main/test-00000.parquet",
        "socratic/test-00000.parquet",
    ]
    assert prompts() == ["main/train-00000.parquet"]
    with pytest.raises(
        WorkloadError, match=r"validation in its path\. Its data files: main/test"
    ):
        prompts(hf_split="validation")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"image": 3}', "line 1: no prompt.*this row has image"),
        ("{", "line 1"),
        ("", "is empty"),
    ],
)
def test_a_file_without_prompts_says_what_it_has(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(WorkloadError, match=says):
        make(hf(tmp_path / "data.jsonl"), WORDS)


def test_a_dataset_of_the_hub_s_cache_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder, commit = tmp_path / "datasets--openai--gsm8k", "a" * 40
    (folder / "snapshots" / commit / "main").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    for fields in ({"path": "openai/gsm8k"}, {"hf_name": "openai/gsm8k"}):
        spec, file = dataset.located(WorkloadSpec("hf", **fields), print, print)  # type: ignore[arg-type]
        assert spec.path == str(folder / "snapshots" / commit) and file is None
    with pytest.raises(WorkloadError, match="hf download --repo-type dataset openai/other"):
        dataset.located(WorkloadSpec("hf", path="openai/other"), print, print)
