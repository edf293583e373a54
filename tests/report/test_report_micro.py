"""Rows of a micro benchmark against what the real llama-bench wrote, build 11434."""

import csv
import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import offlines
from dyno.facts.engine import EngineSpec
from dyno.facts.finding import Finding
from dyno.facts.offline import Answer
from dyno.facts.rig import Accelerator, Share
from dyno.facts.trial import TrialSpec
from dyno.measure.offline import micro_sample
from dyno.report import micro
from dyno.screen import SCREEN, Screen

CAPTURES = Path(__file__).parents[1] / "captures"
RUN = Path("runs/r")


def captured(ending: str) -> str:
    # It has a name for models of the sizes that it was made for; dyno tells the number.
    return (
        (CAPTURES / f"llama-bench-11434.{ending}")
        .read_text()
        .replace("llama ?B F16", "llama 5M F16")
    )


def printed(form: str, trials: list[TrialSpec], rows: list[micro.Row]) -> str:
    printer = micro.FORMATS[form](trials)
    lines = [
        *printer.head(rows[0]),
        *(line for row in rows for line in printer.row(row)),
        *printer.foot(),
    ]
    return "\n".join(lines) + "\n"


def row_of(trial: TrialSpec, samples_ns: list[int], **more: Any) -> micro.Row:
    its = offlines.micro_iterations(trial, samples_ns)
    return micro.row(
        offlines.micro_result(), offlines.manifest(trial, **more), its, RUN, None
    )


def captured_rows() -> tuple[list[TrialSpec], list[micro.Row]]:
    reported = json.loads(captured("json"))
    trials = [offlines.micro_trial(r["n_prompt"], r["n_gen"]) for r in reported]
    return trials, [
        row_of(t, r["samples_ns"]) for t, r in zip(trials, reported, strict=True)
    ]


def rates(tokens: int, mean: float, deviation: float) -> list[int]:
    """Two samples with that mean and deviation, in nanoseconds."""
    return [
        round(tokens * 1e9 / (mean + sign * deviation / math.sqrt(2))) for sign in (1, -1)
    ]


# ---- golden ----


def test_the_table_is_llama_benchs_to_the_letter() -> None:
    tests = [(128, 0, 0, 6635.00, 4.47), (0, 32, 0, 2531.13, 38.55), (128, 0, 256, 5010.23, 39.90),
             (0, 32, 256, 1444.01, 92.85)]  # fmt: skip
    trials = [offlines.micro_trial(p, n, d) for p, n, d, _, _ in tests]
    rows = [
        row_of(t, rates(p + n, mean, sd))
        for t, (p, n, _, mean, sd) in zip(trials, tests, strict=True)
    ]
    assert printed("md", trials, rows) == captured("md")


def test_json_has_llama_benchs_keys_and_values_in_its_layout_and_ours_after_them() -> None:
    ours = printed("json", *captured_rows())
    kept, wanted = ours.splitlines(), captured("json").splitlines()
    own = tuple(f'    "{name}"' for name in micro.OWN)
    kept = [
        line.rstrip(",")
        for line in kept
        if not line.startswith(own) and "stddev_ns" not in line
    ]
    wanted = [line.rstrip(",") for line in wanted if "stddev_ns" not in line]
    assert kept == wanted  # but for stddev_ns, which llama-bench reckons in whole numbers
    for mine, theirs in zip(json.loads(ours), json.loads(captured("json")), strict=True):
        assert list(mine) == [*theirs, *micro.OWN]
        assert mine["stddev_ns"] == pytest.approx(theirs["stddev_ns"], rel=0.01)


def test_jsonl_is_one_object_a_line_with_the_same_keys() -> None:
    lines, wanted = (
        printed("jsonl", *captured_rows()).splitlines(),
        captured("jsonl").splitlines(),
    )
    assert [[*json.loads(line)] for line in lines] == [
        [*json.loads(line), *micro.OWN] for line in wanted
    ]
    assert lines[0].startswith(wanted[0][: wanted[0].index('"test_time"')])


def test_csv_begins_with_llama_benchs_columns() -> None:
    ours, wanted = printed("csv", *captured_rows()), captured("csv")
    assert ours.splitlines()[0] == wanted.splitlines()[0] + "," + ",".join(micro.OWN)
    measured = wanted.index('"2026-11-15')
    at = ours.index("\n") + 1
    theirs = wanted[wanted.index("\n") + 1 : measured]
    assert ours[at : at + len(theirs)] == theirs
    [first, _] = csv.DictReader(ours.splitlines())
    assert (first["engine"], first["n_prompt"], first["verdict"]) == (
        "llamacpp",
        "128",
        "sound",
    )


def test_sql_makes_llama_benchs_table_and_sqlite_takes_it() -> None:
    ours, wanted = printed("sql", *captured_rows()), captured("sql")
    assert ours.startswith(wanted[: wanted.index("\n);")])
    with sqlite3.connect(":memory:") as db:
        db.executescript(ours)
        rows = db.execute(
            "select n_prompt, n_gen, type_k, round(avg_ts), engine_version from llama_bench"
        ).fetchall()
    assert rows == [(128, 0, "f16", 6629.0, None), (0, 32, "f16", 2478.0, None)]


# ---- samples ----


@pytest.mark.parametrize(
    ("prompt", "generated", "tokens", "took"),
    [(128, 0, 128, 2_000), (0, 32, 32, 8_000), (128, 32, 160, 10_000)],
)
def test_a_sample_is_of_the_tested_tokens_and_the_time_that_they_took(
    prompt: int, generated: int, tokens: int, took: int
) -> None:
    # 256 tokens of depth were there before; 1 µs passed before the engine took it up.
    answer = Answer(
        256 + prompt, generated, generated, cached_tokens=256, start_ns=1_000, first_ns=3_000, end_ns=11_000,
        decoded_tokens=generated,
    )  # fmt: skip
    assert micro_sample(offlines.micro_trial(prompt, generated, 256), answer) == (
        tokens,
        took,
    )


def test_both_together_need_no_moment_in_between() -> None:
    answer = Answer(128, 32, 32, start_ns=0, first_ns=None, end_ns=4_000, decoded_tokens=32)
    assert micro_sample(offlines.micro_trial(128, 32), answer) == (160, 4_000)
    assert micro_sample(offlines.micro_trial(128, 0), answer) is None


def test_warm_ups_and_failed_answers_are_not_samples() -> None:
    trial = offlines.micro_trial(128, 0)
    its = offlines.micro_iterations(trial, [1000, 2000, 4000])
    its[2].answers[0] = Answer(128, 0, 0, error="it died")
    row = micro.row(offlines.micro_result(), offlines.manifest(trial), its, RUN, None)
    assert row["samples_ns"] == [1000, 4000]


def test_where_nothing_was_measured_the_table_says_so_and_the_files_have_no_number() -> (
    None
):
    trial = offlines.micro_trial(128, 0)
    row = micro.row(offlines.micro_result(), offlines.manifest(trial), [], RUN, None)
    assert (
        printed("md", [trial], [row]).splitlines()[2].endswith("|               failed |")
    )
    assert json.loads(printed("json", [trial], [row]))[0]["avg_ts"] is None


# ---- columns ----


def head(trials: list[TrialSpec], **more: Any) -> list[str]:
    printer = micro.Markdown(trials)
    return [
        cell.strip()
        for cell in next(printer.head(row_of(trials[0], [1000], **more)))
        .strip("|")
        .split("|")
    ]


def setting(*args: str, **fields: Any) -> TrialSpec:
    return offlines.micro_trial(
        8, 0, engine=EngineSpec("llamacpp", model="m.gguf", args=list(args), **fields)
    )


PLAIN = ["model", "size", "params", "backend", "threads", "test", "t/s"]


@pytest.mark.parametrize(
    ("trials", "shown"),
    [
        ([setting()], []),
        (
            [
                setting(
                    "--batch-size", "2048", "--ubatch-size", "512", "--flash-attn", "auto"
                )
            ],
            [],
        ),
        ([setting("--batch-size", "128"), setting("--batch-size", "2048")], ["n_batch"]),
        ([setting("--ubatch-size=64"), setting("--ubatch-size=64")], ["n_ubatch"]),
        ([setting("--cache-type-k", "q8_0", "--flash-attn", "on")], ["type_k", "fa"]),
        ([setting(kv_cache_dtype="q8_0")], ["type_k", "type_v"]),
        ([setting(kv_cache_dtype="fp16")], []),
    ],
)
def test_a_knob_has_a_column_where_it_varies_or_is_not_the_default(
    trials: list[TrialSpec], shown: list[str]
) -> None:
    assert head(trials) == [*PLAIN[:5], *shown, *PLAIN[5:]]


def test_on_an_accelerator_layers_stand_in_the_place_of_threads() -> None:
    rig = offlines.changed(
        offlines.RIG, accelerators=[Accelerator(0, "NVIDIA H200", "nvidia")]
    )
    assert head([setting()], rig=rig)[3:5] == ["backend", "ngl"]
    assert head([setting("--threads", "4")], rig=rig)[4:6] == ["ngl", "threads"]
    row = row_of(setting(), [1000], rig=rig)
    assert (row["backends"], row["gpu_info"], row["n_gpu_layers"]) == (
        "CUDA",
        "NVIDIA H200",
        -1,
    )
    assert row_of(setting(devices=[]), [1000], rig=rig)["backends"] == "CPU"


def test_several_engines_have_a_column_and_no_knobs_of_llama_cpps() -> None:
    trials = [
        setting("--batch-size", "64"),
        offlines.micro_trial(8, 0, engine=EngineSpec("vllm", model="M")),
    ]
    rows = [row_of(t, [1000, 1000]) for t in trials]
    table = printed("md", trials, rows).splitlines()
    assert [cell.strip() for cell in table[3].split("|")[5:8]] == ["vllm", "-", "-"]
    assert table[-1] == "build: unknown (0), vllm unknown"
    assert rows[1]["n_batch"] is None


def test_threads_that_llama_cpp_chose_itself_are_not_made_up() -> None:
    trial = setting()
    row = row_of(trial, [1000])
    assert row["n_threads"] is None
    assert "|    auto |" in printed("md", [trial], [row])


def test_shares_of_the_roofline_come_after_llama_benchs_columns_with_what_they_are_of() -> (
    None
):
    trials = [
        offlines.micro_trial(128, 0),
        offlines.micro_trial(0, 32),
        offlines.micro_trial(128, 32),
    ]
    shares = [Share("prefill", 0.01, 0.5), Share("decode", 0.64, 0.02)]
    rows = [
        micro.row(
            offlines.micro_result(shares),
            offlines.manifest(t),
            offlines.micro_iterations(t, [1000]),
            RUN,
            None,
        )
        for t in trials
    ]
    table = printed("md", trials, rows).splitlines()
    assert table[0].endswith("|                  t/s |   % BW | % FLOPS |")
    assert [line[-20:] for line in table[2:5]] == [
        "|    1.0 |    50.0 |",
        "|   64.0 |     2.0 |",
        "|      - |       - |",
    ]
    assert "Neoverse-N1, 2 cores, fp16, measured here" in table[6]
    assert table[-1].startswith("build: ")


def test_a_doubt_is_reported_once_under_the_table_and_in_each_row_of_the_files() -> None:
    trials = [
        offlines.micro_trial(128, 0),
        offlines.micro_trial(0, 32),
        offlines.micro_trial(64, 0),
    ]
    busy = Finding("host.busy", "doubt", "Others were busy.", "Stop them.")
    note = Finding("statistics.single_run", "note", "It is one.", "Repeat it.")
    found = [[busy, note], [busy], [note]]
    rows = [
        micro.row(
            offlines.micro_result(findings=findings), offlines.manifest(trial),
            offlines.micro_iterations(trial, [1000]), RUN, offlines.engine_facts("11434"),
        )
        for trial, findings in zip(trials, found, strict=True)
    ]  # fmt: skip
    table = printed("md", trials, rows).splitlines()
    assert table[5:] == [
        "",
        "Doubtful: pp128, tg32",
        "  doubt host.busy: pp128: Others were busy.",
        "        Stop them.",
        "",
        "build: unknown (11434)",
    ]
    assert [len(row["findings"]) for row in json.loads(printed("json", trials, rows))] == [
        2,
        1,
        1,
    ]
    assert '"doubtful","host.busy statistics.single_run","runs/r"' in printed(
        "csv", trials, rows
    )


@pytest.mark.parametrize(
    ("size", "parameters", "shown"),
    [
        (4_661_211_808, 8_030_261_312, ["llama 8B Q4_K_M", "4.34 GiB", "8.03 B"]),
        (10_494_976, 5_245_184, ["llama 5M Q4_K_M", "10.01 MiB", "5.25 M"]),
        (None, None, ["llama ?B Q4_K_M", "-", "-"]),
    ],
)
def test_a_model_is_shown_as_llama_bench_shows_it(
    size: int | None, parameters: int | None, shown: list[str]
) -> None:
    trial = setting()
    model = offlines.changed(
        offlines.MODEL, weights_bytes=size, parameters=parameters, quantization="Q4_K_M"
    )
    table = printed("md", [trial], [row_of(trial, [1000], model=model)])
    assert [cell.strip() for cell in table.splitlines()[2].split("|")[1:4]] == shown


def test_a_folders_model_is_named_as_a_file_of_it_is_and_a_doubt_names_its_engine() -> None:
    specs = [EngineSpec("llamacpp", model="tiny.gguf"), EngineSpec("vllm", model="tiny")]
    trials = [offlines.micro_trial(128, 0, engine=spec) for spec in specs]
    folder = offlines.changed(
        offlines.MODEL,
        format="safetensors",
        architecture="LlamaForCausalLM",
        quantization=None,
        dtype="fp32",
    )
    busy = Finding("host.busy", "doubt", "Others were busy.", "Stop them.")
    rows = [
        micro.row(
            offlines.micro_result(findings=findings), offlines.manifest(trial, model=model),
            offlines.micro_iterations(trial, [1000]), RUN, None,
        )
        for trial, model, findings in zip(trials, (offlines.MODEL, folder), ([], [busy]), strict=True)
    ]  # fmt: skip
    table = printed("md", trials, rows).splitlines()
    assert [line.split("|")[1].strip() for line in table[2:4]] == [
        "llama 5M F16",
        "llama 5M F32",
    ]
    assert "Doubtful: vllm pp128" in table


@pytest.mark.parametrize("width", [80, 100, 143])
def test_in_a_narrow_terminal_the_table_fits_and_names_hidden_columns(width: int) -> None:
    token = SCREEN.set(Screen(width, fits=True))
    try:
        table = micro.Markdown([offlines.micro_trial(32, 0)])
        row = dict.fromkeys((*micro.FIELDS, *micro.OWN), 1) | {
            "model_type": "llama 26M F16", "backends": "CPU", "findings": [], "verdict": "sound", "peaks": "x",
            "bandwidth_share": 0.1, "flops_share": 0.2, "n_gen": 0, "n_depth": 0,
        }  # fmt: skip
        lines = [*table.head(row), *table.row(row)]
        foot = "\n".join(table.foot())
    finally:
        SCREEN.reset(token)
    assert len({len(line) for line in lines}) == 1 and len(lines[0]) <= width
    assert ("Not shown: params" in foot) == (width < 143)
