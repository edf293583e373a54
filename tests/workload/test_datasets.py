"""vLLM's datasets that are read from public files: the sonnet, and datasets of the Hub that are on this machine."""

import json
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from dyno.errors import WorkloadError
from dyno.trial import dataset
from dyno.workload.prompts import make
from dyno.workload.request import ToolRequest, Turn
from dyno.workload.spec import TrafficClass, WorkloadSpec
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


def test_a_dataset_of_images_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(
        WorkloadError, match="lmarena-ai/VisionArena-Chat asks about images"
    ):
        dataset.located(
            WorkloadSpec("hf", path="lmarena-ai/VisionArena-Chat"), print, print
        )
    pictured = tmp_path / "sharegpt4v.json"
    pictured.write_text(json.dumps([{**SHAREGPT, "image": "coco/1.jpg"}]))
    with pytest.raises(WorkloadError, match="asks about images or videos"):
        make(WorkloadSpec("sharegpt", path=str(pictured)), WORDS)


def _prompts(spec: WorkloadSpec) -> list[str | list[int]]:
    return [request.prompt for request in make(spec, WORDS).requests]


def test_a_dataset_of_the_hub_has_vllm_s_subset_and_split_unless_others_are_named(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "datasets--openai--gsm8k"
    for name in ("main/train-0", "main/test-0", "socratic/train-0", "socratic/test-0"):
        _rows(folder / f"{name}.jsonl", [{"question": f"What is in {name}?"}])
    every: dict[str, Any] = {"num_prompts": 0, "shuffle": False}
    assert _prompts(hf(folder, **every)) == ["What is in main/test-0?"]
    assert _prompts(hf(folder, **every, hf_split="train")) == ["What is in main/train-0?"]
    assert _prompts(hf(folder, **every, hf_subset="socratic")) == [
        "What is in socratic/test-0?"
    ]


def test_files_that_name_no_split_are_for_training(tmp_path: Path) -> None:
    _rows(tmp_path / "vicuna" / "ShareGPT_cleaned_split.jsonl", [{"question": "Who?"}])
    wanted: dict[str, Any] = {"num_prompts": 0, "hf_split": "train"}
    assert _prompts(hf(tmp_path / "vicuna", **wanted)) == ["Who?"]
    with pytest.raises(WorkloadError, match=r"has no .* file with test in its path"):
        _prompts(hf(tmp_path / "vicuna", num_prompts=0, hf_split="test"))


def test_a_copy_under_another_name_is_known_by_the_name_that_is_given(
    tmp_path: Path,
) -> None:
    row = {"input": "x = 1", "instruction": "Double it."}
    _rows(tmp_path / "mine" / "train.jsonl", [row])
    plain = make(hf(tmp_path / "mine"), WORDS).requests[0]
    named = make(hf(tmp_path / "mine", hf_name="likaixin/InstructCoder"), WORDS).requests[0]
    assert (plain.prompt, plain.output_tokens) == ("Double it.", 256)
    assert named.prompt == (
        "x = 1\n\nDouble it. Just output the code, do not include any explanation."
    )
    assert named.output_tokens == 200


# ---- data sets for speculative decoding, edits and tools ----


def _rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


QUESTIONS = [
    {"question_id": i, "category": kind, "turns": [f"Question {i} of {kind}", "More"]}
    for i, kind in enumerate(("math", "writing", "math", "coding"))
]


def test_spec_bench_has_the_first_turns_of_a_category(tmp_path: Path) -> None:
    path = _rows(tmp_path / "question.jsonl", QUESTIONS)
    every = make(WorkloadSpec("spec_bench", path=path, num_prompts=4), WORDS).requests
    assert {r.prompt for r in every} == {q["turns"][0] for q in QUESTIONS}  # type: ignore[index]
    assert {r.output_tokens for r in every} == {256}
    spec = WorkloadSpec(
        "spec_bench", path=path, num_prompts=2, spec_bench_category="math", shuffle=False
    )
    assert [r.prompt for r in make(spec, WORDS).requests] == [
        "Question 0 of math",
        "Question 2 of math",
    ]
    with pytest.raises(
        WorkloadError, match=r"no category .maths.\. It has coding, math, writing"
    ):
        make(msgspec.structs.replace(spec, spec_bench_category="maths"), WORDS)


def test_all_of_a_category_are_as_many_as_the_file_has(tmp_path: Path) -> None:
    path = _rows(tmp_path / "question.jsonl", QUESTIONS)
    spec = WorkloadSpec("spec_bench", path=path, num_prompts=0)
    made = make(spec, WORDS)
    assert {r.prompt for r in made.requests} == {q["turns"][0] for q in QUESTIONS}  # type: ignore[index]
    assert made.spec.num_prompts == len(QUESTIONS) == len(made.requests)
    with pytest.raises(
        WorkloadError, match=r"0 prompts were asked for\. Set --num-prompts"
    ):
        make(WorkloadSpec("random", num_prompts=0), WORDS)


def test_speed_bench_has_a_file_for_each_length(tmp_path: Path) -> None:
    row = {"category": "coding", "messages": [{"role": "user", "content": "Sort this"}]}
    _rows(tmp_path / "throughput_1k.jsonl", [row])
    spec = WorkloadSpec("speed_bench", path=str(tmp_path), num_prompts=1)
    with pytest.raises(WorkloadError, match=r"has no qualitative\.jsonl"):
        make(spec, WORDS)
    spec = msgspec.structs.replace(spec, speed_bench_dataset_subset="throughput_1k")
    (request,) = make(spec, WORDS).requests
    assert (request.prompt, request.output_tokens) == ("Sort this", 4096)


def test_blazedit_asks_for_edits_of_the_wanted_size(tmp_path: Path) -> None:
    rows = [
        {"code": f"x = {i}", "change_request": "double {it}", "norm_distance": i / 10}
        for i in range(5)
    ]
    _rows(tmp_path / "edit_5k_char" / "train.jsonl", rows)
    spec = hf(
        tmp_path / "edit_5k_char",
        num_prompts=9,
        shuffle=False,
        blazedit_min_distance=0.1,
        blazedit_max_distance=0.3,
    )
    requests = make(spec, WORDS).requests
    assert [str(r.prompt).split("```")[1] for r in requests] == [
        f"python\nx = {i}\n" for i in (1, 2, 3)
    ]
    assert all("Change request:\ndouble {it}\n" in str(r.prompt) for r in requests)
    assert {r.output_tokens for r in requests} == {4000}


def test_problems_have_limits_of_their_own_and_an_edit_s_answer_is_its_region(
    tmp_path: Path,
) -> None:
    long = {"problem": "p " * 1500, "solution": "s " * 9000}  # beyond ShareGPT's limits
    _rows(tmp_path / "aimo.jsonl", [long])
    (request,) = make(hf(tmp_path / "aimo.jsonl"), WORDS).requests
    assert request.output_tokens == WORDS.count(long["solution"])
    edit = {
        "events": "E",
        "input": "I",
        "output": "before <|editable_region_start|>after",
    }
    _rows(tmp_path / "zeta.jsonl", [edit])
    (request,) = make(hf(tmp_path / "zeta.jsonl"), WORDS).requests
    assert "### User Edits:\n\nE\n\n### User Excerpt:\n\nI\n" in str(request.prompt)
    assert request.output_tokens == WORDS.count("<|editable_region_start|>after")


def _bfcl(folder: Path) -> Path:
    for category in ("simple", "live_simple", "multiple"):
        function = {
            "name": category,
            "parameters": {"type": "dict", "properties": {"x": {"type": "float"}}},
        }
        rows = [
            {"question": [[{"role": "user", "content": f"{category} {i}"}]], "function": [function]}
            for i in range(2)
        ]  # fmt: skip
        _rows(folder / f"BFCL_v3_{category}.json", rows)
    return folder


def test_bfcl_takes_categories_in_turn_and_sends_tools(tmp_path: Path) -> None:
    spec = hf(_bfcl(tmp_path), num_prompts=6, shuffle=False)
    requests = make(spec, WORDS).requests
    assert [r.prompt for r in requests] == [
        f"{category} {i}"
        for i in range(2)
        for category in ("simple", "live_simple", "multiple")
    ]
    first = requests[0]
    assert isinstance(first, ToolRequest) and first.output_tokens == 512
    assert first.body["tool_choice"] == "auto"
    [tool] = first.body["tools"]
    assert tool["type"] == "function" and tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"x": {"type": "number"}},
    }
    one = make(msgspec.structs.replace(spec, bfcl_categories="multiple"), WORDS).requests
    assert [r.prompt for r in one] == ["multiple 0", "multiple 1"]
    with pytest.raises(WorkloadError, match="the categories live_simple, multiple, simple"):
        make(msgspec.structs.replace(spec, bfcl_categories="hard"), WORDS)


def test_tools_of_a_mix_s_class_are_sent_with_its_requests(tmp_path: Path) -> None:
    part = TrafficClass(dataset="hf", path=str(_bfcl(tmp_path)), share=1.0)
    mix = WorkloadSpec("mix", num_prompts=3, num_sessions=3, classes={"calls": part})
    turns = make(mix, WORDS).requests
    assert len(turns) == 3
    for turn in turns:
        assert isinstance(turn, Turn) and turn.group == "calls"
        assert turn.body["tools"] and turn.messages[-1]["content"] == turn.prompt
