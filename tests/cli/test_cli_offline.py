"""`dyno bench throughput`, `latency` and `micro` as a user types them. Nothing is loaded."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import offlines
from dyno.cli.main import main, parse
from dyno.cli.micro import OUTPUTS, numbers
from dyno.cli.offline import spec
from dyno.errors import EngineError
from dyno.facts.imported import Row
from dyno.facts.trial import TrialSpec
from dyno.report.micro import FORMATS, KNOBS, said_of
from dyno.store import rows
from dyno.store.run import Run
from dyno.trial import offline

Asked = Callable[..., list[TrialSpec]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """The trials that a command comes to."""
    got: list[TrialSpec] = []

    def conduct(trials: Sequence[TrialSpec], **_: Any) -> Iterator[Any]:
        got[:] = trials
        raise EngineError("not here")
        yield

    monkeypatch.setattr(offline, "conduct", conduct)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> list[TrialSpec]:
        got.clear()
        assert main(["bench", *words]) == 1
        return list(got)

    return call


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        code: Any = main(["bench", *words])
    except SystemExit as e:  # argparse's own way
        code = e.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, ""), said
    return said.err


def engine(trial: TrialSpec) -> Any:
    assert trial.engine is not None
    return trial.engine


def how(trial: TrialSpec) -> Any:
    assert trial.offline is not None
    return trial.offline


# ---- throughput and latency ----


def test_latency_has_vllms_defaults(asked: Asked) -> None:
    [t] = asked("latency", "--model", "org/model")
    assert (t.kind, how(t).batch_size, how(t).iterations, how(t).warmup_iterations) == (
        "latency",
        8,
        30,
        10,
    )
    assert (t.workload.num_prompts, t.workload.input_len, t.workload.output_len) == (
        8,
        32,
        128,
    )
    assert (engine(t).kind, engine(t).model, t.target.model) == (
        "vllm",
        "org/model",
        "org/model",
    )
    assert (engine(t).prefix_caching, t.ignore_eos, how(t).detokenize) == (None, True, True)
    assert t.percentiles == [10, 25, 50, 75, 90, 99]


def test_throughput_has_vllms_defaults(asked: Asked) -> None:
    [t] = asked("throughput", "--model", "org/model", "--input-len", "64")
    assert (t.kind, how(t).iterations, how(t).warmup_iterations) == ("throughput", 1, None)
    w = t.workload
    assert (w.dataset, w.num_prompts, w.num_warmups, w.input_len, w.output_len) == (
        "random",
        1000,
        0,
        64,
        128,
    )
    assert engine(t).prefix_caching is None


def test_the_flags_of_both_come_to_the_trial(asked: Asked) -> None:
    [t] = asked(
        "throughput", "--num-prompts", "20", "--random-input-len", "100", "--input-len", "7", "--random-output-len=9",
        "--random-range-ratio", "0.5", "--prefix-len", "16", "--seed", "3", "--num-warmups", "4", "--num-iters", "2",
        "--num_iters_warmup", "1", "--disable-detokenize", "--label", "mine", "--metadata", "a=b", "-tp", "2",
        "--enable-prefix-caching", "--gpu-memory-utilization", "0.8", "--engine-args=--x 1",
    )  # fmt: skip
    w = t.workload
    assert (w.num_prompts, w.input_len, w.output_len, w.range_ratio_input, w.prefix_len, w.seed, w.num_warmups) == (
        20, 100, 9, 0.5, 16, 3, 4,
    )  # fmt: skip
    assert (how(t).iterations, how(t).warmup_iterations, how(t).detokenize) == (2, 1, False)
    assert (t.label, t.metadata) == ("mine", {"a": "b"})
    e = engine(t)
    assert (e.kind, e.tensor_parallel, e.prefix_caching, e.memory_fraction, e.args) == (
        "llamacpp", 2, True, 0.8, ["--x", "1"],
    )  # fmt: skip
    [t] = asked(
        "latency",
        "--batch-size",
        "1",
        "--num-iters",
        "5",
        "--num-iters-warmup",
        "0",
        "--output-len",
        "16",
    )
    assert (
        how(t).batch_size,
        how(t).iterations,
        how(t).warmup_iterations,
        t.workload.output_len,
    ) == (1, 5, 0, 16)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([], "llamacpp"),
        (["--model", "a/model-Q4_0.gguf"], "llamacpp"),
        (["--model", "a/model"], "vllm"),
        (["--model", "a/model", "--engine", "transformers"], "transformers"),
        (
            ["--model", "a/model", "--backend", "hf", "--hf-max-batch-size", "4"],
            "transformers",
        ),
        (["--model", "a/model", "--backend", "vllm"], "vllm"),
    ],
)
def test_the_engine_is_the_one_named_or_the_models(
    asked: Asked, words: list[str], kind: str
) -> None:
    [t] = asked("latency", *words)
    assert engine(t).kind == kind
    assert engine(t).max_num_seqs == (4 if "hf" in words else None)


def test_datasets_are_those_of_the_workloads(asked: Asked, tmp_path: Path) -> None:
    file = tmp_path / "share.json"
    file.touch()
    # as it was called in old versions
    [t] = asked("throughput", "--dataset", str(file), "--output-len", "10")
    assert (t.workload.dataset, t.workload.path, t.workload.output_len) == (
        "sharegpt",
        str(file),
        10,
    )
    [t] = asked("throughput", "--dataset-name", "custom", "--dataset-path", str(file))
    assert (t.workload.dataset, t.workload.output_len) == ("custom", 256)
    [t] = asked("throughput", "--dataset-name", "sharegpt-shaped")
    assert (t.workload.path, t.workload.output_len) == (None, None)


def test_flags_of_the_engines_own_are_handed_on_untouched(asked: Asked) -> None:
    [t] = asked(
        "latency", "--model", "X", "--enforce-eager", "--trust-remote-code", "--num-scheduler-steps", "10",
        "--batch-size", "2", "--compilation-config.cudagraph_mode=NONE", "-O3", "--hf-overrides", '{"num_layers": 2}',
        "--some_value", "-1", "--engine-args=--first 1", "--ubatch-size", "4",
    )  # fmt: skip
    assert engine(t).args == [
        "--first", "1", "--enforce-eager", "--trust-remote-code", "--num-scheduler-steps", "10",
        "--compilation-config.cudagraph_mode=NONE", "-O3", "--hf-overrides", '{"num_layers": 2}', "--some-value", "-1",
        "--ubatch-size", "4",
    ]  # fmt: skip
    assert how(t).batch_size == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["latency", "--num-itres", "3"], "Did you mean --num-iters?"),
        (["throughput", "--dataset-path", "nowhere.json"], "there is no such file"),
        (["micro", "--outptu", "json"], "Did you mean --output?"),
        (["micro", "--draft-model", "x.gguf"], "Measure it with `dyno bench latency`"),
        (["throughput", "--num-promts=3"], "Did you mean --num-prompts?"),
        (["latency", "--enable-prefx-caching"], "Did you mean --enable-prefix-caching?"),
        (["latency", "--model", "m", "stray"], "'stray' follows no flag"),
        (["latency", "--batch-size", "1", "8"], "'8' follows no flag"),
        (
            ["throughput", "--async-engine"],
            "--async-engine: llama.cpp has one engine only",
        ),
        (
            ["throughput", "--engine", "vllm", "--async-engine", "--prequeue-requests"],
            "--async-engine begins as soon as a request comes: remove --prequeue-requests.",
        ),
        (["throughput", "--dataset-name", "custom"], "give --dataset-path FILE"),
        (
            ["throughput", "--dataset-name", "random", "--dataset-path", "f"],
            "needs no file",
        ),
        (["latency", "--engine", "vllm", "--backend", "hf"], "name two engines"),
        (["latency", "--engine", "vlm"], "No engine named 'vlm'"),
        (["latency", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["latency", "--num-iters-warmup", "-1"], "--num-iters-warmup must be at least 0"),
        (["throughput", "--random-range-ratio", "2"], "from 0 to below 1"),
        # it starts no engine by itself
        (["serve", "--enforce-eager"], "has no flag --enforce-eager"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in refusal(capsys, *words)


def test_a_prompt_length_is_reported_as_without_effect_where_prompts_have_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in the example of vLLM's documentation with InstructCoder: --input-len=1000."""
    words = "bench throughput --dataset-name sharegpt-shaped --input-len=9 --output-len=5"
    trial = spec(parse(words.split()))
    assert "--input-len has no effect" in capsys.readouterr().err
    assert trial.workload.output_len == 5


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each iteration takes half a second, or a microsecond in a micro benchmark, by a clock of paper."""
    monkeypatch.chdir(tmp_path)

    outcomes: dict[Path, Any] = {}

    def conduct(trials: Sequence[TrialSpec], *, runs: Path, **_: Any) -> Iterator[Any]:
        for i, trial in enumerate(trials):
            path = runs / str(i)
            if trial.kind == "micro":
                outcomes[path] = offlines.micro_outcome(path, trial, [1000, 1000])
            else:
                warmups = [10**9] * (how(trial).warmup_iterations or 0)
                its = offlines.iterations(
                    [5 * 10**8] * how(trial).iterations, warmups, trial.workload.num_prompts
                )
                outcomes[path] = offlines.outcome(path, trial, its)
            yield outcomes[path]

    def read_row(run: Run) -> Row:
        outcome = outcomes[run.path]
        return rows.row_of(
            str(run.path), outcome.manifest, outcome.result, iterations=outcome.iterations
        )

    monkeypatch.setattr(offline, "conduct", conduct)
    monkeypatch.setattr(rows, "read_row", read_row)


@pytest.mark.usefixtures("measured")
def test_a_result_is_printed_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        main(["bench", "latency", "--num-iters", "3", "--output-json", "out/r.json"]) == 0
    )
    said = capsys.readouterr()
    assert "Iterations, warm-up / measured:          10 / 3" in said.out
    assert "\nAvg latency: 0.5 seconds\n" in said.out
    assert said.err.endswith("Result: out/r.json\nRun: runs/0\n")
    file = json.loads((tmp_path / "out/r.json").read_text())
    assert file["latencies"] == [0.5, 0.5, 0.5]
    assert main(["bench", "throughput", "--num-prompts", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests_per_second"] == 8.0


@pytest.mark.usefixtures("measured")
def test_a_file_that_cannot_be_written_is_reported_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "latency", "--output-json", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "can't be written. Nothing was run." in said.err
    assert said.out == ""


def test_a_dry_run_prints_what_would_be_run_once_and_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        offline, "lines", lambda trial, found: iter([f"load {trial.engine.kind}"])
    )
    monkeypatch.setattr(offline, "problems", lambda trial, found: [])
    assert main(["bench", "micro", "-p", "1,2,3", "--dry-run"]) == 0
    assert capsys.readouterr().out == "load llamacpp\n"
    monkeypatch.setattr(offline, "problems", lambda trial, found: ["no such file"])
    assert main(["bench", "latency", "--dry-run"]) == 2
    assert capsys.readouterr().err == "dyno: no such file\n"


# ---- micro ----


def lengths(trials: list[TrialSpec]) -> list[tuple[int, int, int]]:
    return [
        (t.workload.input_len, t.workload.output_len or 0, how(t).depth) for t in trials
    ]


def args(trials: list[TrialSpec]) -> list[str]:
    return [" ".join(engine(t).args) for t in trials]


def test_micro_has_llama_benchs_defaults(asked: Asked) -> None:
    trials = asked("micro")
    assert lengths(trials) == [(512, 0, 0), (0, 128, 0)]
    assert {(how(t).iterations, how(t).warmup_iterations, how(t).by) for t in trials} == {
        (5, 1, None)
    }
    assert {(engine(t).kind, engine(t).model, t.workload.num_prompts) for t in trials} == {
        ("llamacpp", None, 1)
    }
    assert args(trials) == ["", ""]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512", [512]),
        ("512,1024", [512, 1024]),
        ("16-18", [16, 17, 18]),
        ("8-32+8,1", [8, 16, 24, 32, 1]),
        ("8-40*2", [8, 16, 32]),
        ("-1", [-1]),
    ],
)
def test_lists_and_ranges_are_llama_benchs(text: str, values: list[int]) -> None:
    assert numbers(text) == values


@pytest.mark.parametrize("text", ["8x", "8-4", "0-8*2", "1-8*1", "1-8+0", "1-", ""])
def test_a_range_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert "-p, --n-prompt: " in refusal(capsys, "micro", f"-p={text}" if text else "-p=,")


def test_a_grid_is_in_llama_benchs_order(asked: Asked) -> None:
    # As its table goes: knobs outside, depth, then prompts, generations and both.
    trials = asked(
        "micro",
        "-p",
        "16,8",
        "-n",
        "4",
        "-n",
        "2",
        "-pg",
        "8,4",
        "-d",
        "0,4",
        "-t",
        "1,2",
        "-fa",
        "on,0",
        "-ub",
        "64",
    )
    each = [(16, 0), (8, 0), (0, 4), (0, 2), (8, 4)]
    assert lengths(trials) == [(p, n, d) for d in (0, 4) for p, n in each] * 4
    assert list(dict.fromkeys(args(trials))) == [
        f"--ubatch-size 64 --flash-attn {fa} --threads {t}"
        for fa in ("on", "off")
        for t in (1, 2)
    ]


def test_knobs_go_to_llama_cpp_in_its_servers_spelling(asked: Asked) -> None:
    words = "-m m.gguf -p 8 -n 0 -ngl 99 -b 128 -ub 64 -ctk q8_0 -ctv f16 -fa 1 -t 4 --by timers --no-warmup -r 2"
    [t] = asked("micro", *words.split(), "--engine-args=--poll 0")
    assert args([t]) == [
        "--poll 0 --n-gpu-layers 99 --batch-size 128 --ubatch-size 64 --cache-type-k q8_0 --cache-type-v f16 "
        "--flash-attn on --threads 4"
    ]
    assert (how(t).by, how(t).warmup_iterations, how(t).iterations) == ("timers", 0, 2)
    # and the report finds them there
    asked_for = [knob for knob in KNOBS if said_of(engine(t), knob) is not None]
    assert (
        " ".join(asked_for)
        == "n_gpu_layers n_threads poll n_batch n_ubatch type_k type_v flash_attn"
    )


def test_each_engine_takes_the_models_and_knobs_that_suit_it(asked: Asked) -> None:
    trials = asked(
        "micro",
        "-m",
        "a.gguf,folder",
        "--engine",
        "llamacpp,transformers",
        "-n",
        "0",
        "-t",
        "1,2",
        "-b",
        "64",
    )
    assert [(engine(t).kind, engine(t).model, *engine(t).args) for t in trials] == [
        ("llamacpp", "a.gguf", "--batch-size", "64", "--threads", "1"),
        ("llamacpp", "a.gguf", "--batch-size", "64", "--threads", "2"),
        ("transformers", "folder", "--threads", "1"),
        ("transformers", "folder", "--threads", "2"),
    ]
    assert [
        engine(t).kind for t in asked("micro", "-m", "a.gguf", "-m", "org/name", "-n", "0")
    ] == ["llamacpp", "vllm"]
    both = asked(
        "micro",
        "-m",
        "a.gguf,folder",
        "--engine",
        "llamacpp,vllm",
        "-n",
        "0",
        "--dtype",
        "fp32",
    )
    assert [engine(t).dtype for t in both] == [None, "fp32"], "a GGUF file says its own"
    [alone] = asked("micro", "-m", "a.gguf", "-n", "0", "--dtype", "fp32")
    assert engine(alone).dtype == "fp32", (
        "where it is meant for llama.cpp, it is reported that it can't"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "0", "-n", "0"], "Nothing to test"),
        (
            ["-m", "folder", "--engine", "llamacpp"],
            "-m folder: none of llamacpp supports it",
        ),
        (["-m", "a.gguf", "--engine", "vllm"], "Add --engine llamacpp"),
        (
            ["-m", "a.gguf", "--engine", "llamacpp,vllm"],
            "--engine vllm: it supports none of the models",
        ),
        (["--engine", "vllm"], "--engine vllm needs a model. Give one with -m: dyno-5m"),
        (
            ["-m", "folder", "-b", "64", "-t", "2"],
            "--batch-size, --threads: only for llama.cpp",
        ),
        (
            ["-m", "a.gguf,folder", "--engine", "llamacpp,vllm", "-t", "2"],
            "-t does not apply to vLLM",
        ),
        (["-m", "folder", "--by", "timers"], "--by: only for llama.cpp"),
        (["-ctk", "q8_0", "--kv-cache-dtype", "q8_0"], "set the same thing twice"),
        (["-b", "8", "--max-num-batched-tokens", "8"], "set the same thing twice"),
        (
            ["-m", "a.gguf,f", "--engine", "llamacpp,vllm", "--engine-python", "p"],
            "-python: only for one engine",
        ),
        (["-r", "0"], "-r must be at least 1"),
        (["-pg", "8"], "write PROMPT,GENERATED"),
        (["-fa", "maybe"], "'maybe' is not one of on, off, auto"),
        (["-hf", "org/model"], "-hf: dyno does not download models"),
        (["-nkvo", "perhaps"], "'perhaps' is not one of 1, 0"),
        (["-fitt", "512"], "-fitt: dyno does not vary it"),
        (["-rpc", "host:1"], "-rpc: dyno uses only accelerators of this machine"),
        (["-mmq", "1"], "-mmq: only builds of 2023 have it"),
        (["-embd", "1"], "-embd: dyno measures generation"),
        (["-dev", "none", "-dio", "1"], "--devices. -dio:"),
        (["--foo"], "has no flag --foo"),
    ],
)
def test_what_micro_cannot_do_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in refusal(capsys, "micro", *words)


@pytest.mark.usefixtures("measured")
def test_the_table_is_printed_on_stdout_and_another_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "bench",
                "micro",
                "-t",
                "2",
                "-p",
                "8",
                "-n",
                "4",
                "-oe",
                "jsonl",
                "--progress",
                "-v",
            ]
        )
        == 0
    )
    said = capsys.readouterr()
    table = said.out.splitlines()
    assert [line.split("|")[6].strip() for line in table[:4]] == [
        "test",
        "--------------:",
        "pp8",
        "tg4",
    ]
    assert table[2].split("|")[7].strip() == "8000000.00 ± 0.00"
    assert table[-1] == "build: unknown (0)"
    errors = said.err.splitlines()
    assert errors[:2] == [
        "dyno: -v has no effect (accepted for compatibility).",
        "dyno: test 1/2: runs/0",
    ]
    assert [json.loads(line)["n_gen"] for line in errors if line.startswith("{")] == [0, 4]
    assert set(OUTPUTS) == set(FORMATS)


def test_a_table_that_is_cut_off_is_whole_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def conduct(trials: Sequence[TrialSpec], **_: Any) -> Iterator[Any]:
        yield offlines.micro_outcome(tmp_path, trials[0], [1000])

    monkeypatch.setattr(offline, "conduct", conduct)
    assert main(["bench", "micro", "-o", "json"]) == 130
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 1
    assert "1 of 2 tests were measured" in said.err


# ---- shown again ----


@pytest.mark.parametrize("kind", ["latency", "micro"])
def test_a_run_is_shown_again_as_it_was_printed(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> None:
    if kind == "micro":
        outcome = offlines.micro_outcome(
            tmp_path / "r", offlines.micro_trial(8, 0), [1000, 1000]
        )
        (tmp_path / "r").mkdir()
    else:
        its = offlines.iterations([10**8] * 3)
        outcome = offlines.outcome(
            tmp_path / "r", offlines.trial("latency", batch_size=8), its
        )
    outcome.run.write_manifest(outcome.manifest)
    outcome.run.write_result(outcome.result)
    monkeypatch.setattr(offline, "reopened", lambda run: outcome)
    assert main(["runs", "show", str(tmp_path / "r")]) == 0
    shown = capsys.readouterr().out
    assert (
        "Avg latency: 0.1 seconds" if kind == "latency" else "8000000.00 ± 0.00"
    ) in shown
    assert main(["runs", "show", str(tmp_path / "r"), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert "avg_latency" in reported if kind == "latency" else reported[0]["avg_ts"] == 8e6


def test_with_several_engines_each_gets_its_own_args(asked: Asked) -> None:
    models = ("-m", "a.gguf,folder", "--engine", "llamacpp,vllm", "-n", "0")
    trials = asked(
        "micro",
        *models,
        "--engine-args",
        "vllm:--enforce-eager",
        "--engine-args",
        "llamacpp:--numa numactl",
    )
    assert [engine(t).args for t in trials] == [["--numa", "numactl"], ["--enforce-eager"]]


def test_dynos_own_small_model_is_asked_for_less(asked: Asked) -> None:
    [t] = asked("throughput")
    assert (t.workload.num_prompts, t.workload.input_len, t.workload.output_len) == (
        32,
        128,
        32,
    )
    [t] = asked("throughput", "--model", "X")
    assert (t.workload.num_prompts, t.workload.input_len, t.workload.output_len) == (
        1000,
        1024,
        128,
    )
