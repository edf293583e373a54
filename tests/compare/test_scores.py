"""Scores as rows: of quality tests, lm-eval's files and MMLU-Pro's; compared by item, with gates and findings."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno.audit.document import read
from dyno.cli.main import main
from dyno.compare.compare import compare
from dyno.compare.gate import parse
from dyno.conduct.read import spread
from dyno.errors import UsageError
from dyno.facts.comparison import Comparison
from dyno.facts.imported import Row
from dyno.facts.quality import (
    ItemAnswer,
    QualityPass,
    QualitySpec,
    QualitySummary,
    TaskScore,
)
from dyno.facts.summary import Result
from dyno.facts.trial import TrialSpec
from dyno.report.compare import text
from dyno.store.rows import quality_rows, read_rows
from dyno.store.run import Run
from offlines import manifest, trial

TASKS = ("copy", "sort")


def quality_trial(**spec: Any) -> TrialSpec:
    return msgspec.structs.replace(
        trial("latency"),
        kind="quality",
        offline=None,
        quality=QualitySpec(list(TASKS), **spec),
    )


def answers(wrong: int, items: int = 100, prompt: str = "p") -> list[ItemAnswer]:
    """The first `wrong` items of each task are wrong."""
    return [
        ItemAnswer(
            task,
            f"{task}-{n}",
            "exact_match",
            float(n >= wrong),
            "x",
            prompt_sha256=f"{prompt}{n}",
        )
        for task in TASKS
        for n in range(items)
    ]


def result(some: list[ItemAnswer], **more: Any) -> Result:
    scores = []
    for task in TASKS:
        each = [a.score for a in some if a.task == task]
        right = sum(each) / len(each)
        error = (right * (1 - right) / (len(each) - 1)) ** 0.5
        score = TaskScore(
            task, "exact_match", right, len(each), error, version="1", chance=0.0
        )
        scores.append(msgspec.structs.replace(score, **more))
    return Result(
        None,
        [],
        "sound",
        quality=QualitySummary("chat", [QualityPass(1, scores, 2.0)], process="1.0 s"),
    )


def rows(
    wrong: int, items: int = 100, spec: dict[str, Any] | None = None, **more: Any
) -> list[Row]:
    some = answers(wrong, items, more.pop("prompt", "p"))
    return quality_rows(
        f"runs/{wrong}",
        manifest(quality_trial(**spec or {})),
        result(some, **more),
        None,
        some,
    )


def compared(a: list[Row], b: list[Row], *gates: str, anyway: bool = False) -> Comparison:
    return compare(a, b, ("a", "b"), gates=[parse(g) for g in gates], anyway=anyway)


def codes(c: Comparison) -> set[str]:
    return {f.code for p in c.pairings for f in p.findings} | {f.code for f in c.findings}


# ---- rows ----


def test_a_quality_run_is_a_row_of_each_task_and_one_of_all() -> None:
    total, copy, sort = rows(10)
    assert [r.setting("task") for r in (total, copy, sort)] == [
        "all 2 tasks",
        "copy",
        "sort",
    ]
    assert total.get("score") == copy.get("score") == 0.9 and total.get("completed") == 200
    assert copy.get("stderr") == pytest.approx(0.0302, abs=1e-4) and total.get(
        "stderr"
    ) < copy.get("stderr")  # type: ignore[operator]
    asked = {
        name: copy.setting(name)
        for name in ("metric", "n_shot", "task_version", "samples", "form", "process")
    }
    assert asked == {"metric": "exact_match", "n_shot": 0, "task_version": "1", "samples": 100, "form": "chat",
                     "process": "1.0 s"}  # fmt: skip
    assert (
        copy.samples is not None
        and copy.samples.scores["copy-9"] == 0
        and copy.samples.scores["copy-10"] == 1
    )
    assert total.samples is not None and "sort/sort-99" in total.samples.scores
    assert "concurrency" not in copy.settings and "num_prompts" not in copy.settings


def test_a_runs_rows_are_read_from_its_folder(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    run.path.mkdir()
    some = answers(30)
    run.write_manifest(manifest(quality_trial()), [])
    run.answers_path(1).write_bytes(b"".join(msgspec.json.encode(a) + b"\n" for a in some))
    run.write_result(result(some))
    assert [(r.setting("task"), r.get("score")) for r in read_rows(run)] == [
        ("all 2 tasks", 0.7),
        ("copy", 0.7),
        ("sort", 0.7),
    ]


# ---- compared ----


def test_scores_of_the_same_items_are_paired_and_the_loss_is_in_points() -> None:
    c = compared(rows(10), rows(20))
    assert [p.total for p in c.pairings] == [True, False, False] and c.verdict == "sound"
    d = c.pairings[0].differences[0]
    assert d.paired is not None and (d.paired.items, d.paired.only_a, d.paired.only_b) == (
        200,
        20,
        0,
    )
    assert (d.word, d.change, d.points) == ("worse", pytest.approx(-0.1), True)
    shown = text(c)
    assert (
        "-10 pt" in shown and "worse" in shown and "All tasks: exact_match, 0-shot" in shown
    )


def test_a_small_loss_says_what_would_have_been_detected_and_how_many_items_settle_it() -> (
    None
):
    c = compared(rows(10)[1:2], rows(12)[1:2])
    d = c.pairings[0].differences[0]
    assert (
        d.word == "no difference detected"
        and d.paired is not None
        and d.paired.items_needed == 441
    )
    shown = " ".join(text(c).split())
    assert (
        "No difference detected: score (smallest detectable: 8.6 pt; about 450 items would settle"
        in shown
    )


@pytest.mark.parametrize(
    ("gate", "wrong", "state"),
    [
        ("score>-1pt", 20, "broken"),  # a loss of 10 points
        ("score>-1pt", 10, "undecided"),  # of none: the interval reaches below -1
        ("score>-5pt", 10, "held"),
        ("score>-15%", 20, "undecided"),  # -10 points of 0.9 are -11 %
        ("score>-20%", 20, "held"),
        ("score>0.85", 30, "broken"),
        ("score>0.6", 30, "held"),
    ],
)  # fmt: skip
def test_a_gate_on_a_loss_of_quality_is_about_all_tasks_together(
    gate: str, wrong: int, state: str
) -> None:
    (judged,) = compared(rows(10), rows(wrong), gate).gates
    assert judged.state == state, judged.text


def test_points_are_of_scores_and_a_gate_that_forbids_better_is_refused() -> None:
    with pytest.raises(UsageError, match="only a score has points"):
        parse("p99_ttft_ms<5pt")
    with pytest.raises(UsageError, match="write 'score>-1pt'"):
        parse("score<1pt")


@pytest.mark.parametrize(
    ("b", "code"),
    [
        (rows(10, version="2"), "comparability.asked"),
        (rows(10, spec={"system": "Be brief."}), "comparability.asked"),
        (rows(10, items=50, spec={"limit": 50}), "comparability.items"),
        (rows(10, prompt="q"), "comparability.prompts"),
        (rows(100), "comparability.at_chance"),
    ],
)
def test_scores_that_are_not_comparable_are_doubted(b: list[Row], code: str) -> None:
    c = compared(rows(10), b)
    assert code in codes(c) and c.verdict == "doubtful"
    assert codes(compared(rows(10), rows(11))) <= {
        "comparability.nothing_changed",
        "comparability.subject",
    }


def test_other_numbers_of_examples_are_not_compared_and_the_reason_is_named() -> None:
    c = compared(rows(10), rows(10, n_shot=5))
    assert c.verdict == "void" and "They differ in n shot 0 / 5." in c.findings[0].text


def test_items_with_other_limits_are_paired_as_far_as_both_have_them() -> None:
    c = compared(rows(10)[1:2], rows(10, items=50, spec={"limit": 50})[1:2])
    d = c.pairings[0].differences[0]
    assert d.paired is not None and d.paired.items == 50 and d.change == 0
    assert "The 50 that both have are compared." in next(
        f.text for f in c.pairings[0].findings if f.code == "comparability.items"
    )


# ---- files of other tools ----

STAMP = "2026-11-17T01-02-03.456789"


def lm_eval(folder: Path, right: set[int], task: str = "gsm8k") -> Path:
    folder.mkdir()
    samples = [
        {"doc_id": n, "doc": {"question": "?"}, "target": "1", "arguments": {}, "resps": [["1"]],
         "filtered_resps": ["1"], "filter": f, "metrics": ["exact_match"], "doc_hash": "d", "prompt_hash": str(n),
         "target_hash": "t", "exact_match": float(n in right)}
        for f in ("strict-match", "flexible-extract") for n in range(40)
    ]  # fmt: skip
    (folder / f"samples_{task}_{STAMP}.jsonl").write_text(
        "\n".join(map(json.dumps, samples))
    )
    results = {
        "results": {task: {"alias": task, **{f"{k},{f}": v for f in ("strict-match", "flexible-extract")
                           for k, v in (("exact_match", len(right) / 40), ("exact_match_stderr", 0.07))}}},
        "versions": {task: 3.0}, "n-shot": {task: 5}, "n-samples": {task: {"original": 1319, "effective": 40}},
        "config": {"model": "local-completions", "model_args": f"model={folder.name}"},
    }  # fmt: skip
    (folder / f"results_{STAMP}.json").write_text(json.dumps(results, indent=1))
    return folder / f"results_{STAMP}.json"


def test_lm_evals_items_are_read_beside_its_results(tmp_path: Path) -> None:
    results = lm_eval(tmp_path / "m", set(range(30)))
    strict, _ = read(results).rows
    assert (
        strict.samples is not None
        and sum(strict.samples.scores.values()) == 30
        and strict.setting("n_shot") == 5
    )
    # a folder's samples are not results twice
    assert list(spread([str(tmp_path / "m")])) == [str(results)]
    alone = read(results.with_name(f"samples_gsm8k_{STAMP}.jsonl"))
    assert alone.format == "lm-eval samples" and [r.get("score") for r in alone.rows] == [
        0.75,
        0.75,
    ]
    assert [r.setting("filter") for r in alone.rows] == ["strict-match", "flexible-extract"]


def test_two_results_of_lm_eval_are_paired_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = lm_eval(tmp_path / "a", set(range(30))), lm_eval(tmp_path / "b", set(range(16)))
    assert main(["compare", str(a), str(b), "--gate", "score>-5pt"]) == 3
    out = capsys.readouterr().out
    assert "-35 pt" in out and "BROKEN" in out and "40 %" in out
    assert main(["compare", str(a), str(b), "--json"]) == 0
    pairs = json.loads(capsys.readouterr().out)["pairings"][0]["differences"][0]
    assert (pairs["points"], pairs["paired"]["only_a"], pairs["b"]["count"]) == (
        True,
        14,
        40,
    )


def mmlu_pro(path: Path, right: int) -> Path:
    items = [
        {"question_id": n, "question": f"Q{n}", "options": list("abcdefghij"), "answer": "A", "answer_index": 0,
         "cot_content": "", "category": "law" if n % 2 else "computer science", "src": "s",
         "pred": "A" if n < right else None if n % 3 else "B", "generated_text": "…"}
        for n in range(60)
    ]  # fmt: skip
    path.write_text(json.dumps(items))
    return path


def test_mmlu_pros_outputs_are_rows_by_category_paired_by_question(tmp_path: Path) -> None:
    found = read(mmlu_pro(tmp_path / "model_outputs_Some-8B_5shots.json", 30))
    assert found.format == "mmlu-pro json" and not found.unread
    assert [
        (r.setting("task"), r.get("score"), r.setting("samples")) for r in found.rows
    ] == [
        ("mmlu_pro", 0.5, 60),
        ("mmlu_pro_computer_science", 0.5, 30),
        ("mmlu_pro_law", 0.5, 30),
    ]
    first = found.rows[0]
    assert (first.setting("model"), first.setting("n_shot"), first.setting("chance")) == (
        "Some-8B",
        5,
        0.1,
    )
    other = read(mmlu_pro(tmp_path / "model_outputs_Other_5shots.json", 40))
    c = compared(found.rows, other.rows)
    d = c.pairings[0].differences[0]
    assert d.paired is not None and (d.paired.only_a, d.paired.only_b, d.word) == (
        0,
        10,
        "better",
    )


def test_scores_are_a_table_of_sql(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path / "runs" / "r")
    run.path.mkdir(parents=True)
    run.write_manifest(manifest(quality_trial()), [])
    run.write_result(result(answers(30)))
    query = "select kind, task, score, items, n_shot from scores join trials using (run)"
    assert main(["sql", query, "--runs", str(tmp_path / "runs"), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (
        reported[0]
        == {"kind": "quality", "task": "copy", "score": 0.7, "items": 100, "n_shot": 0}
        and len(reported) == 2
    )
