"""Flags of an engine as people type them: all spellings reach it as its version reads them, and none is dropped."""

import argparse
import functools
from pathlib import Path

import pytest

from dry_runs import DryRun, dry_run
from dyno.cli import offline, serve
from dyno.cli.main import main, parse, parser
from dyno.engines.kinds import kind_of
from dyno.errors import UsageError

__all__ = ["dry_run"]
COMMANDS = (
    "engines start vllm",
    "bench serve --engine vllm",
    "bench throughput",
    "bench latency",
)
MICRO = "bench micro --engine vllm -m m"
TRUE = (
    "--{x}",
    "--{x} True",
    "--{x} true",
    "--{x}=True",
    "--{x}=1",
    "--{x} 1",
    "--no-{x}=False",
)
FALSE = (
    "--no-{x}",
    "--{x} False",
    "--{x} false",
    "--{x}=False",
    "--{x}=0",
    "--{x} 0",
    "--no-{x} True",
)

# ---- booleans ----


def _spellings(every: tuple[str, ...], command: str) -> tuple[str, ...]:
    """All commands read them by the same code: one of them is given every spelling, the others two."""
    return every if command.startswith("bench serve") else every[:2]


@pytest.mark.parametrize(
    ("version", "off"),
    [
        ("0.6.3", "--enable-chunked-prefill=False"),
        ("0.24.0", "--no-enable-chunked-prefill"),
    ],
)
@pytest.mark.parametrize("command", [*(f"{c} m" for c in COMMANDS), MICRO])
def test_chunked_prefill_is_off_in_every_spelling_on_every_command(
    command: str, version: str, off: str, dry_run: DryRun
) -> None:
    for spelling in _spellings(FALSE, command):
        words = dry_run(
            f"{command} {spelling.format(x='enable-chunked-prefill')}", version
        ).split()
        assert (
            off in words
            and "--enable-chunked-prefill" not in words
            and "False" not in words
        ), spelling
    for spelling in _spellings(TRUE, command):
        words = dry_run(
            f"{command} {spelling.format(x='enable_chunked_prefill')}", version
        ).split()
        assert (
            off.replace("False", "True").replace("--no-", "--") in words
            and off not in words
        ), spelling
        assert "True" not in words, spelling


@pytest.mark.parametrize(
    ("flag", "version", "off"),
    [
        ("enforce-eager", "0.6.3", ""),  # a switch, off by default
        ("enforce-eager", "0.10.0", "--no-enforce-eager"),
        ("multi-step-stream-outputs", "0.6.3", "--multi-step-stream-outputs=False"),
        ("multi-step-stream-outputs", "0.9.0", "--no-multi-step-stream-outputs"),
        ("disable-log-stats", "0.24.0", ""),
        ("async-scheduling", "0.24.0", "--no-async-scheduling"),
        ("trust-remote-code", "0.8.5", ""),
        ("trust-remote-code", "0.9.0", "--no-trust-remote-code"),
    ],
)
@pytest.mark.parametrize("command", ["engines start vllm", "bench serve --engine vllm"])
def test_vllm_s_own_booleans_are_spelled_as_the_version_reads_them(
    command: str, flag: str, version: str, off: str, dry_run: DryRun
) -> None:
    plain, on = dry_run(f"{command} m", version), f" --{flag}"
    assert {
        dry_run(f"{command} {s.format(x=flag)} m", version)
        for s in _spellings(TRUE, command)
    } == {plain + on}
    unset = plain + f" {off}".rstrip()
    assert {
        dry_run(f"{command} {s.format(x=flag)} m", version)
        for s in _spellings(FALSE, command)
    } == {unset}
    # … and in --engine-args, as in `args` of a study.
    assert dry_run(f"{command} m --engine-args='--{flag} False'", version) == unset


STUDY = """
name = "two-versions"
[variables]
chunked = true
[engines.old]
kind = "vllm"
version = "0.6.3"
model = "m"
chunked_prefill = "${chunked}"
args = ["--enforce-eager", "False", "--num-scheduler-steps", "4"]
[engines.new]
kind = "vllm"
version = "0.24.0"
model = "m"
chunked_prefill = "${chunked}"
args = ["--enforce-eager", "False"]
[workloads.w]
input_len = 64
output_len = 16
num_prompts = 100
[loads.l]
max_concurrency = 4
"""


def test_one_study_spells_a_setting_for_each_version(
    dry_run: DryRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    assert main(["run", "s.toml", "--dry-run", "--set", "chunked=False"]) == 0
    old, new = [
        line for line in capsys.readouterr().out.splitlines() if "vllm serve" in line
    ]
    assert old.endswith(" --enable-chunked-prefill=False --num-scheduler-steps 4")
    assert new.endswith(" --no-enable-chunked-prefill --no-enforce-eager")


def test_a_flag_that_dyno_does_not_know_keeps_its_words(dry_run: DryRun) -> None:
    assert dry_run("engines start vllm m --new-thing False --x-y=True -z 1").endswith(
        " --new-thing False --x-y=True -z 1"
    )


# ---- the model, and flags of the engine's own ----


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "line",
    [
        "org/m -tp 4 --num-scheduler-steps 20",
        "-tp 4 org/m --num-scheduler-steps 20",
        "-tp 4 --num-scheduler-steps 20 org/m",
        "--num_scheduler_steps 20 -tp 4 org/m",
        "--model org/m --num-scheduler-steps=20 --tensor-parallel-size=4",
    ],
)
def test_the_model_is_where_vllm_serve_has_it(
    command: str, line: str, dry_run: DryRun
) -> None:
    shown = dry_run(f"{command} {line}", "0.6.3")
    assert ("serve org/m " in shown) or ("--model org/m " in shown), shown
    assert "--tensor-parallel-size 4" in shown and shown.replace("=", " ").endswith(
        "--num-scheduler-steps 20"
    )


def test_a_switch_does_not_take_the_model_for_its_value(dry_run: DryRun) -> None:
    assert "serve org/m " in dry_run("engines start vllm --enforce-eager org/m", "0.6.3")
    assert "serve org/m " in dry_run(
        "bench serve --engine vllm --trust-remote-code org/m", "0.6.3"
    )


def test_a_flag_with_several_values_keeps_them(dry_run: DryRun) -> None:
    assert dry_run(
        "engines start vllm m --middleware a b --swap-space 4", "0.6.3"
    ).endswith(" --middleware a b --swap-space 4")


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (
            "engines start vllm m --gpu-memory-utilisation 0.9",
            "Did you mean --gpu-memory-utilization?",
        ),
        ("bench serve --engine vllm m --num-prompt 5", "Did you mean --num-prompts?"),
        ("bench serve --engine vllm m n", "'n' follows no flag"),
        ("bench serve --engine vllm -tp 4 8", "'8' follows no flag"),
        (
            "bench serve --engine openai --num-scheduler-steps 4",
            "--engine openai starts nothing",
        ),
        ("bench serve m", "`dyno bench serve` doesn't take m."),
        ("bench serve --num-scheduler-steps 4", "has no flag --num-scheduler-steps"),
        ("engines start vllm", "vLLM needs a model."),
        (
            "engines start vllm m --host 10.0.0.7",
            "--host 10.0.0.7: dyno reaches an engine that it starts at 127.0.0.1",
        ),
        (
            "bench serve --engine fake --host 0.0.0.0",
            "The fake engine listens at 127.0.0.1",
        ),
    ],
)
def test_a_slip_is_refused_before_anything_starts(
    line: str, refusal: str, dry_run: DryRun
) -> None:
    assert refusal in dry_run(line)


@pytest.mark.parametrize(
    ("line", "version", "shown"),
    [
        ("engines start llamacpp -m x.gguf -ngl 99 -fa 1 -c 4096 -np 16 -t 8 -cb", "6327",
         "-ngl 99 -fa on -c 4096 -np 16 -t 8 -cb"),  # as this build reads them
        ("engines start sglang --model-path org/m --tp 8 --mem-fraction-static 0.8 --host 0.0.0.0", "0.5.2",
         "--tp 8 --mem-fraction-static 0.8"),
        ("engines start tgi --model-id org/m --num-shard 8 --max-total-tokens 130000 --sharded true", "2.3",
         "--num-shard 8 --max-total-tokens 130000 --sharded true"),
        ("bench serve --engine vllm m -dp 2 --block-size 32", "0.24.0", "-dp 2 --block-size 32"),
    ],
)  # fmt: skip
def test_each_engine_gets_its_own_flags(
    line: str, version: str, shown: str, dry_run: DryRun
) -> None:
    got = dry_run(line, version)
    assert shown in got
    assert "--host 0.0.0.0" in got or "0.0.0.0" not in line
    # -t is llama.cpp's threads
    assert "-tp" not in got.split() and "--tensor-parallel-size" not in got


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        (
            "--num-scheduler-steps 20",
            "vLLM 0.24.0 has no --num-scheduler-steps; versions from 0.5.5 to before 0.10.1",
        ),
        ("--num-scheduler-step 20", "vLLM 0.24.0 has no --num-scheduler-steps"),
        ("--max-seq-len-to-capture 1", "Graphs cover all lengths now. Remove it."),
        ("--use-v2-block-manager", "It is the only one now. Remove it."),
        ("--disable-log-requests", "Requests are logged only with --enable-log-requests."),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_that_the_version_has_lost_is_refused(
    command: str, flag: str, sentence: str, dry_run: DryRun
) -> None:
    assert sentence in dry_run(f"{command} m {flag}", "0.24.0")


# ---- nothing is dropped ----


def test_vllm_s_client_flags_that_an_engine_has_too_reach_it(dry_run: DryRun) -> None:
    line = "bench serve --engine vllm m --trust-remote-code --tokenizer-mode slow --host 0.0.0.0 --skip_tokenizer_init"
    shown = dry_run(line, "0.24.0")
    assert "--host 0.0.0.0 " in shown
    assert shown.endswith(
        " --trust-remote-code --tokenizer-mode slow --skip-tokenizer-init"
    )


HIDDEN = [
    (name, action)
    for name in ("serve", "throughput", "latency", "micro")
    for inner in [parser().commands()["bench"].commands()[name]]
    for _ in [inner.fill()]
    for action in inner._actions
    if action.help == argparse.SUPPRESS
]


@pytest.mark.parametrize(
    ("command", "action"), HIDDEN, ids=[f"{c} {a.option_strings[0]}" for c, a in HIDDEN]
)
def test_each_hidden_flag_is_refused_reported_or_another_name(
    command: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    flag, kind = action.option_strings[0], type(action).__name__
    if action.dest in ("model", "endpoint_type", "served_model_name", "replicas"):
        return  # another name for a flag that is shown, or checked with the plan
    value = [] if action.nargs == 0 else ["1"]
    # before a start
    stop = {"serve": ["--endpoint", "x"], "micro": ["-p", "0", "-n", "0"]}.get(
        command, ["--engine", "vllm", "--backend", "hf"]
    )
    assert main(["bench", command, flag, *value, *stop]) == 2
    err = capsys.readouterr().err
    assert (
        f"dyno: {flag}: " in err
        if kind == "_Refused"
        else f"dyno: {flag} has no effect" in err
    )


def test_no_boolean_of_vllm_is_a_flag_with_a_value() -> None:
    """Both tables name flags by hand: a flag can't be in both."""
    kind = kind_of("vllm")
    assert not {*kind.length_flags, *kind.slots_flags, *kind.parallel_flags} & {
        *kind.switches
    }


# Flags that change what is printed, written or started, or a plug-in's data set; other tests have them.
ABOUT_OUTPUT = (
    "--help --dry-run --percentile-metrics --save-result --save-detailed --append-result --result-dir --json --runs "
    "--result-filename --disable-tqdm --fail-on --allow-void --keep-raw --repeats --output-json --plot-timeline "
    "--plot-dataset-stats --timeline-itl-thresholds --dataset-option"
)
NEEDED = {  # to mean something, a flag needs another
    "--ramp-up-strategy": "--ramp-up-start-rps 1 --ramp-up-end-rps 2",
    "--ramp-up-start-rps": "--ramp-up-strategy linear --ramp-up-end-rps 5",
    "--ramp-up-end-rps": "--ramp-up-strategy linear --ramp-up-start-rps 0.1",
    "--dataset-path": "--dataset-name custom", "--sharegpt-output-len": "--dataset-name sharegpt --dataset-path x",
    "--custom-output-len": "--dataset-name custom --dataset-path x", "--duration": "--max-concurrency 4",
    "--request-template": "--backend json",
    **dict.fromkeys(("--structured-kind", "--json-schema-path", "--structured-output-ratio"),
                    "--dataset-name structured-output"),
    **dict.fromkeys(("--image-tokens", "--image-format", *(f"--random-mm-{end}" for end in (
        "base-items-per-request", "num-mm-items-range-ratio", "limit-mm-per-prompt", "bucket-config"))),
        "--dataset-name random-mm --backend openai-chat"),
    "--no-reranker": "--dataset-name random-rerank --backend vllm-rerank",
    "--audio-len": "--dataset-name random-audio --backend openai-audio",
    **dict.fromkeys(("--asr-min-audio-len-sec", "--asr-max-audio-len-sec"),
                    "--dataset-name custom_audio --dataset-path x --backend openai-audio"),
    "--ignore-eos": "--dataset-name sharegpt-shaped", "--draft-tokens": "--draft-model d",
    **dict.fromkeys(("--engine-mount", "--engine-privileges", "--engine-container-args"), "--engine-image i"),
    "--cert": "--cert-key k", "--cert-key": "--cert c", "--concurrency-schedule": "--duration 9",
    **{f"--prefix-repetition-{end}": "--dataset-name prefix_repetition"
       for end in ("prefix-len", "suffix-len", "output-len")},
    **{f"--sonnet-{end}": "--dataset-name sonnet" for end in ("prefix-len", "input-len", "output-len")},
    **dict.fromkeys(
        ("--hf-output-len", "--hf-name", "--hf-subset", "--hf-split", "--blazedit-min-distance",
         "--blazedit-max-distance", "--bfcl-categories"),
        "--dataset-name hf",
    ),
    **{f"--{name}-bench-{end}": f"--dataset-name {name}_bench --dataset-path x"
       for name in ("spec", "speed") for end in ("category", "output-len", "dataset-subset")},
    **dict.fromkeys(("--num-clients", "--client-skew", "--client-rate"), "--dataset-name clients"),
    **dict.fromkeys(
        ("--num-sessions", "--turns", "--think-time", "--turn-input-len", "--turn-output-len", "--answers"),
        "--dataset-name chat",
    ),
    **dict.fromkeys(("--trace-start", "--trace-end", "--trace-max-tokens", "--trace-length-scale", "--speedup"),
                    "--dataset-name azure --dataset-path x"), "--self-timed": "--dataset-name agents --dataset-path x",
    **dict.fromkeys((f"--timed-trace-{name}" for name in ("chunk-hash-size", "sec-multiplier", "label-timestamp",
                     "label-input-length", "label-output-length", "label-hash-ids")),
                    "--dataset-name timed_trace --dataset-path x"),
}  # fmt: skip
VALUES = {
    "--engine": "sglang", "--devices": "0", "--header": "a=b", "--metadata": "a=b", "--engine-env": "A=b",
    "--chat-template-kwargs": '{"a":1}', "--request-template": "x.toml", "--json-schema-path": "x",
    "--image-tokens": "qwen2-vl", "--random-mm-num-mm-items-range-ratio": "0.5",
    "--random-mm-limit-mm-per-prompt": '{"image": 3}', "--random-mm-bucket-config": "{(64, 64, 1): 1.0}",
    "--goodput": "ttft:5", "--metric-percentiles": "50", "--extra-body": '{"a":1}', "--endpoint": "/x",
    "--engine-args": "--swap-space=3", "--host": "0.0.0.0", "--random-range-ratio": "0.5", "--engine-mount": "/a:/b",
    "--engine-container-args": "--init", "--base-url": "http://127.0.0.1:3", "--dataset-path": "x",
    "--dataset-name": "sharegpt-shaped", "--backend": "openai-chat", "--class": "a: share=1",
    **dict.fromkeys(("--rate-schedule", "--concurrency-schedule"), "step: 0=2"),
}  # fmt: skip
STARTED = {
    "--base-url": "--engine openai",
    "--reset-prefix-cache": "",
    "--engine": "",
    "--model": "--engine vllm",
}
EVERY = [
    (command, action)
    for command in ("serve", "throughput", "latency")
    for inner in [parser().commands()["bench"].commands()[command]]
    for _ in [inner.fill()]
    for action in inner._actions
    if action.help != argparse.SUPPRESS
    and action.option_strings[-1] not in ABOUT_OUTPUT.split()
]


@functools.cache
def trial_of(command: str, *words: str) -> object:
    """The trial, or None where the flags aren't complete."""
    try:
        options = parse(["bench", command, *words])
        if command != "serve":
            return offline.spec(options)
        _, one = next(serve.loads(options))
        serve._hand_over(one)
        return serve.spec(one)
    except UsageError:
        return None


@pytest.mark.parametrize(
    ("command", "action"), EVERY, ids=[f"{c} {a.option_strings[0]}" for c, a in EVERY]
)
def test_each_flag_changes_the_trial(
    command: str, action: argparse.Action, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text("{}")
    (tmp_path / "x.toml").write_text(
        'body = {text = "{prompt}"}\nanswer = {text = "text"}\n'
    )
    monkeypatch.setattr(serve, "check_certificates", lambda _: None)
    flag, words = action.option_strings[0], []
    value = VALUES.get(flag) or str(
        next((c for c in action.choices or () if c != action.default), "3")
    )
    value = "0.25" if action.type is float and value == "3" else value
    if flag == "--backend" and command != "serve":
        value = "hf"
    else:
        words = (
            f"{STARTED.get(flag, '--engine vllm --model m')} {NEEDED.get(flag, '')}".split()
        )
    given = trial_of(command, *words, flag if action.nargs == 0 else f"{flag}={value}")
    assert given is not None
    assert given != trial_of(command, *words)
