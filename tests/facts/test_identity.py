"""What is one entry of a report: every setting that is part of what was measured makes another one, nothing else does.

The fields are read from the specs themselves, so that a new one is tested without a line here. Each goes the way of a
real result: spec, run folder, row, entry.
"""

import json
import shutil
import types
from argparse import SUPPRESS
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
import pytest
from msgspec.structs import replace

from dyno.cli import serve
from dyno.cli.parser import Parser
from dyno.compare.compare import compare
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.entry import Entry
from dyno.facts.find import FindSpec
from dyno.facts.identity import PARTS, spec_fields
from dyno.facts.imported import Figure, Row
from dyno.facts.limits import Limit
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.quality import (
    ItemAnswer,
    QualityPass,
    QualitySpec,
    QualitySummary,
    TaskScore,
)
from dyno.facts.recipe import ModelRecipe
from dyno.facts.study import Place, PlannedTrial
from dyno.facts.summary import Result
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.option import Field, declared, fields, without_none
from dyno.report.entries import entries
from dyno.store.rows import read_rows, row_without
from dyno.store.run import Run
from dyno.study.cells import CELLS
from dyno.transport import Transport
from dyno.workload.datasets import DATASETS
from dyno.workload.spec import OWN_FIELDS, TrafficClass, WorkloadSpec
from studies import study

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
STORED = {
    "serve": "20261116-115039-serve-fake-c3-2af4",
    "throughput": "20261116-115040-throughput-dyno-tiny-F16-4-16-8-b4d7",
    "latency": "20261116-115042-latency-dyno-tiny-F16-b2-16-8-919f",
    "micro": "20261116-115043-micro-dyno-tiny-F16-32-0-301f",
}

# Not part of what was measured. All other fields are, also those that don't exist yet.
ASIDE = {
    *("TargetSpec.base_url", "TargetSpec.served_model_name", "TargetSpec.header_names"),
    *("TargetSpec.insecure", "TargetSpec.cacert", "TargetSpec.cert", "TargetSpec.cert_key"),
    *("TargetSpec.connect_timeout_s", "TargetSpec.read_timeout_s"),
    *("EngineSpec.served_name", "EngineSpec.version", "EngineSpec.accepts", "EngineSpec.host", "EngineSpec.port"),
    *("EngineSpec.ready_timeout_s", "EngineSpec.ready_stall_s", "ContainerSpec.pull"),
    *("WorkloadSpec.seed", "TrafficClass.seed", "LoadSpec.seed", "QualitySpec.seed", "QualitySpec.allow_task_code"),
    *("LoadSpec.request_timeout_s", "LoadSpec.response_bytes_max", "OfflineSpec.timeout_s", "ClientSpec.ray_address"),
    *("TrialSpec.percentiles", "TrialSpec.ready_check_timeout_s", "TrialSpec.label", "TrialSpec.metadata"),
    *("TrialSpec.correctness_check", "TrialSpec.request_id_prefix"),
}  # fmt: skip


class Case(NamedTuple):
    name: str  # Spec.field
    trials: tuple[TrialSpec, TrialSpec]


# ---- another value of any field ----


def another(hint: Any, value: Any) -> Any:
    """A value of the type that is not this one."""
    kind = without_none(hint)
    if get_origin(kind) in (Union, types.UnionType):
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    if get_origin(kind) is list:
        return [*(value or []), another(get_args(kind)[0], None)]
    if get_origin(kind) is dict:
        return {
            **(value or {}),
            "extra": another(get_args(kind)[1], (value or {}).get("extra")),
        }
    if kind is bool:
        return not value
    if kind in (int, float):
        return kind((value or 0) + 2)
    if kind is str or kind is Any:
        return f"{value or ''}7"
    if isinstance(value, msgspec.Struct):
        name, field = next(iter(fields(type(value)).items()))
        return replace(value, **{name: another(field.hint, getattr(value, name))})
    if kind is Limit:
        return Limit("tpot", 30.0, "p99")
    made = {
        ContainerSpec: ContainerSpec("image"),
        ModelRecipe: ModelRecipe("hub:a/b"),
        TrafficClass: TrafficClass(),
    }
    return made[kind]


_TARGET = TargetSpec("http://127.0.0.1:800", "openai", "/v1/completions")
_BASE = TrialSpec(
    _TARGET, WorkloadSpec("random"), LoadSpec(max_concurrency=4), engine=EngineSpec("fake")
)
_OFFLINE = {
    kind: replace(_BASE, kind=kind, offline=OfflineSpec(kind))  # type: ignore[arg-type]
    for kind in ("throughput", "latency", "micro")
}
_FIND = replace(_BASE, find=FindSpec([Limit("ttft", 500.0, "p99")]))
_QUALITY = replace(_BASE, kind="quality", quality=QualitySpec(form="chat"))
# What a field needs so that it means something.
_NEEDS: dict[str, dict[str, Any]] = {
    "burstiness": {"request_rate_rps": 5.0}, "cancel_after_s": {"cancel_rate": 0.5},
    "speedup": {"arrivals": "recorded"},
}  # fmt: skip


def base_of(spec: type[msgspec.Struct], field: Field) -> TrialSpec:
    """A trial in which the field has a meaning."""
    if spec is OfflineSpec:
        return _OFFLINE[
            {"batch_size": "latency", "depth": "micro"}.get(field.name, "throughput")
        ]
    if spec is FindSpec:
        return _FIND
    if spec is QualitySpec:
        return _QUALITY
    if spec is TargetSpec:
        return replace(_BASE, engine=None)  # a server that was there before
    if spec is WorkloadSpec and field.name in OWN_FIELDS:
        dataset = OWN_FIELDS[field.name][0]
        classes = {"a": TrafficClass()} if dataset == "mix" else {}
        return replace(_BASE, workload=WorkloadSpec(dataset, classes=classes))
    return replace(_BASE, load=replace(_BASE.load, **_NEEDS.get(field.name, {})))


def with_value(
    trial: TrialSpec, spec: type[msgspec.Struct], name: str, value: Any
) -> TrialSpec:
    """The same trial with another value of one field."""
    if spec is TrialSpec:
        return replace(trial, **{name: value})
    part = next(n for n in trial.__struct_fields__ if isinstance(getattr(trial, n), spec))
    return replace(trial, **{part: replace(getattr(trial, part), **{name: value})})


def cases() -> Iterator[Case]:
    for spec, field in spec_fields():
        if field.name == "kind" and spec in (TrialSpec, OfflineSpec):
            continue  # decides what a result is at all: the row's own kind
        trial = base_of(spec, field)
        part = trial if spec is TrialSpec else next(p for n in trial.__struct_fields__
                                                    if isinstance(p := getattr(trial, n), spec))  # fmt: skip
        changed = another(field.hint, getattr(part, field.name))
        yield Case(
            f"{spec.__name__}.{field.name}",
            (trial, with_value(trial, spec, field.name, changed)),
        )
    yield from _inner(
        ContainerSpec("image"),
        lambda c: replace(_BASE, engine=replace(_BASE.engine, container=c)),
    )
    yield from _inner(
        ModelRecipe("hub:a/b"),
        lambda m: replace(_BASE, engine=replace(_BASE.engine, weights={"m": m})),
    )
    yield from _inner(
        TrafficClass(),
        lambda c: replace(_BASE, workload=WorkloadSpec("mix", classes={"a": c})),
    )
    yield from _inner(
        Limit("ttft", 500.0, "p99"), lambda x: replace(_FIND, find=FindSpec([x]))
    )


def _inner(part: Any, within: Any) -> Iterator[Case]:
    for field in fields(type(part)).values():
        changed = replace(
            part, **{field.name: another(field.hint, getattr(part, field.name))}
        )
        yield Case(f"{type(part).__name__}.{field.name}", (within(part), within(changed)))


CASES = list(cases())


# ---- the way of a result ----


def stored(
    folder: Path, trial: TrialSpec, place: Place | None = None, **changes: Any
) -> Run:
    """A run folder of this trial, with the result of a real one. Its server reports nothing of its settings."""
    real = Run(RUNS / STORED.get(trial.kind, STORED["serve"]))
    shutil.copytree(
        real.path,
        folder,
        ignore=shutil.ignore_patterns("records*", "telemetry*", "engine*", "requests*"),
    )
    run, facts = Run(folder), TargetFacts("")
    run.write_manifest(
        replace(
            real.manifest(),
            trial=trial,
            place=place,
            target=facts,
            tokenizer=None,
            **changes,
        )
    )
    if trial.quality is not None:
        score = TaskScore(
            "copy", "exact_match", 0.5, 2, 0.1, n_shot=trial.quality.num_fewshot or 0
        )
        summary = QualitySummary(
            trial.quality.form or "chat",
            [QualityPass(1, [score], 1.0)],
            process=folder.name,
        )
        run.write_result(Result(None, [], "sound", quality=summary))
        run.write_answers(
            1, [ItemAnswer("copy", str(i), "exact_match", float(i), "x") for i in range(2)]
        )
    return run


def rows_of(
    folder: Path, trials: Sequence[TrialSpec], places: Sequence[Place | None] = ()
) -> list[Row]:
    each = places or [None] * len(trials)
    runs = [
        stored(folder / str(i), trial, place)
        for i, (trial, place) in enumerate(zip(trials, each, strict=True))
    ]
    return [row for run in runs for row in read_rows(run, samples=False)]


def entries_of(rows: Sequence[Row]) -> list[Entry]:
    return entries(rows, [], [], lambda row: None)


def test_the_list_of_fields_that_are_left_out_has_only_fields_that_exist() -> None:
    assert {case.name for case in CASES} >= ASIDE and len(CASES) > 180
    assert {spec for spec, _ in spec_fields()} == {TrialSpec, *PARTS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_another_value_of_a_setting_is_another_entry_unless_it_is_not_part_of_what_was_measured(
    case: Case, tmp_path: Path
) -> None:
    found = entries_of(rows_of(tmp_path, case.trials))
    if case.name in ASIDE:
        assert [e.repeats for e in found] == [2]
    else:
        assert [e.repeats for e in found] == [1, 1]
        # and a reader can tell them apart
        assert len({(e.series, e.load) for e in found}) == 2


def test_the_same_settings_twice_are_one_entry(tmp_path: Path) -> None:
    for name, trial in {
        **_OFFLINE,
        "serve": _BASE,
        "find": _FIND,
        "quality": _QUALITY,
    }.items():
        assert [
            e.repeats for e in entries_of(rows_of(tmp_path / name, [trial, trial]))
        ] == [2]


def test_two_models_that_are_served_under_one_name_are_two_entries(tmp_path: Path) -> None:
    target = replace(_TARGET, model="m")
    trials = [
        replace(_BASE, target=target, engine=EngineSpec("vllm", model=name))
        for name in ("/a/x", "/b/y")
    ]
    assert [e.repeats for e in entries_of(rows_of(tmp_path, trials))] == [1, 1]


# ---- a study: its trials are the rows of `dyno run` ----

_TABLES: dict[str, dict[str, Any]] = {
    "engine": {"kind": "fake"},
    "workload": {"dataset": "random", "input_len": 16, "output_len": 4},
    "load": {"max_concurrency": 3, "num_prompts": 6},
    "trial": {},
}
_ATTACHED = {"engine": {"kind": "openai", "base_url": "http://127.0.0.1:8000"}}
# Two values of a key that takes no made-up ones.
_VALUES: dict[str, list[Any]] = {
    "kind": ["fake", "vllm"], "base_url": [["http://a:1"], ["http://b:1"]],
    "backend": ["openai", "openai-chat"], "endpoint": ["/v1/a", "/v1/b"], "memory_fraction": [0.5, 0.9],
    "dataset": ["random", "tasks"], "range_ratio_input": [0.1, 0.2], "range_ratio_output": [0.1, 0.2],
    "prefix_hit_rate": [0.1, 0.2], "turns": ["2", "3"], "think_time_s": ["0", "0.2"], "cancel_rate": [0.1, 0.2],
    "turn_input_len": ["20", "30"], "turn_output_len": ["4", "5"], "rate_schedule": ["ramp: 2..8 over=60"] * 2,
    "concurrency_schedule": ["ramp: 2..8 over=60", "ramp: 2..9 over=60"], "accepts": [">=1", ">=2"],
    "percentiles": [[50.0], [90.0]], "goodput_ms": [{"ttft": 5.0}, {"ttft": 6.0}], "by": ["llama-bench", "timers"],
    "prepare": [["tunableop"], []], "host": ["127.0.0.1", "0.0.0.0"], "sampling": [{"top_p": 0.5}, {"top_p": 0.9}],
    "extra_body": [{"top_p": 0.5}, {"top_p": 0.9}], "structured_output_ratio": [0.25, 0.5],
    "random_mm_num_mm_items_range_ratio": [0.25, 0.5], "image_tokens": ["qwen2-vl", "85"], "audio_len_s": ["2", "3"],
    "random_mm_limit_mm_per_prompt": ['{"image": 2}', '{"image": 3}'],
    "random_mm_bucket_config": ['{"(64, 64, 1)": 1.0}', '{"(96, 64, 1)": 1.0}'],
    **{key: [0.1, 0.2] for key in ("blazedit_min_distance", "blazedit_max_distance")},
    "classes": [{"a": {"share": 1, "input_len": 8, "output_len": n}} for n in (4, 5)],
}  # fmt: skip
_VALUES["rate_schedule"] = _VALUES["concurrency_schedule"]
_BATCH = {"load": {"kind": "latency"}}
_MICRO = {"load": {"kind": "micro"}, "engine": {"kind": "llamacpp"}}
_RAMP = {
    "load": {"ramp": "linear", "ramp_start_rps": 1, "ramp_end_rps": 9, "num_prompts": 6}
}
# Data sets that only some APIs take.
_BACKENDS = {
    "random-mm": "openai-chat",
    "random-audio": "openai-audio",
    "custom_audio": "openai-audio",
    "random-rerank": "vllm-rerank",
}
# Tables in which a key means something, where that isn't clear from its spec.
_TABLES_FOR: dict[str, dict[str, dict[str, Any]]] = {
    "burstiness": {"load": {"request_rate_rps": 5, "num_prompts": 6}},
    **dict.fromkeys(("ramp", "ramp_start_rps", "ramp_end_rps"), _RAMP),
    "rate_schedule": {"load": {"num_prompts": 6}}, "concurrency_schedule": {"load": {"duration_s": 5}},
    "requests_per_stream": {"load": {"max_concurrency": 3}}, "workload.num_prompts": {"load": {"max_concurrency": 3}},
    **dict.fromkeys(fields(OfflineSpec), _BATCH),
    **dict.fromkeys(("depth", "by"), _MICRO),
}  # fmt: skip


def tables_for(part: str, key: str) -> dict[str, dict[str, Any]]:
    tables = {**_TABLES}
    if part == "engine" and (
        key in fields(Transport) or key in ("base_url", "api_key_env")
    ):
        tables |= _ATTACHED
    if part == "workload" and key in OWN_FIELDS and OWN_FIELDS[key][0] != "random":
        declared_in = DATASETS[OWN_FIELDS[key][0]]
        lengths = dict.fromkeys(declared_in.needs, 8)
        file = {"path": "x.jsonl"} if declared_in.traits.file else {}
        tables["workload"] = {"dataset": declared_in.name, **file, **lengths}
        if declared_in.name in _BACKENDS:
            tables["engine"] = {"kind": "fake", "backend": _BACKENDS[declared_in.name]}
    if f"{part}.{key}" == "workload.classes":
        tables |= {"workload": {}, "load": {"request_rate_rps": 5, "num_prompts": 6}}
    return tables | (
        _TABLES_FOR.get(f"{part}.{key}")
        or (_TABLES_FOR.get(key, {}) if part == "load" else {})
    )


def study_text(part: str, key: str) -> str:
    hint, _ = declared(CELLS[part][key])
    made = another(hint, None)
    values = _VALUES.get(f"{part}.{key}") or _VALUES.get(key) or [made, another(hint, made)]
    tables = tables_for(part, key)
    tables[part] = {**tables[part], key: msgspec.to_builtins(values)}
    names = {
        "engine": "engines.e",
        "workload": "workloads.w",
        "load": "loads.l",
        "trial": "trial",
    }
    parts = [
        f"[{names[p]}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in t.items())
        for p, t in tables.items()
    ]
    return "\n".join(parts)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{k} = {toml(v)}" for k, v in value.items() if v is not None)
            + "}"
        )
    return (
        "[" + ", ".join(map(toml, value)) + "]"
        if isinstance(value, list)
        else json.dumps(value)
    )


# Not `arrivals`, which has one value, and `kind`: two kinds of loads need other keys beside them.
KEYS = [
    name
    for part, keys in CELLS.items()
    for key in keys
    if (name := f"{part}.{key}") not in ("load.arrivals", "load.kind")
]


@pytest.mark.parametrize("name", KEYS)
def test_two_values_of_a_study_key_are_two_entries_as_they_are_two_rows_of_dyno_run(
    name: str, tmp_path: Path
) -> None:
    planned = study(study_text(*name.split(".")), tmp_path / "s.toml").trials
    if len(planned) == 1:  # the study itself takes them for one trial
        key = name.partition(".")[2]
        assert key == "api_key_env" or key in {aside.partition(".")[2] for aside in ASIDE}
        return
    trials = [p.trial for p in planned]
    found = entries_of(
        rows_of(tmp_path, [*trials, *trials], [p.place for p in planned] * 2)
    )
    assert [e.repeats for e in found] == [2, 2]


# ---- flags that no field declares ----

_PENALTIES = [f"{name}-penalty" for name in ("frequency", "presence", "repetition")]
_SENT = ["temperature", "top-p", "top-k", "min-p", "logprobs", *_PENALTIES]
# Flag → the words of a command that differs in it.
_PART: dict[str, str] = {
    "--engine": "--engine fake", "--backend": "--backend openai-chat", "--endpoint": "--endpoint /v1/other",
    "--model": "--model other", "--input-len": "--input-len 9", "--output-len": "--output-len 9",
    "--random-input-len": "--random-input-len 9", "--random-output-len": "--random-output-len 9",
    "--random-range-ratio": "--random-range-ratio 0.5", "--class": "--class a:share=1 --request-rate 5",
    "--self-timed": "--dataset-name clients --no-self-timed",
    "--sharegpt-output-len": "--dataset-name sharegpt --dataset-path x --sharegpt-output-len 9",
    "--custom-output-len": "--dataset-name custom --dataset-path x --custom-output-len 9",
    **{f"--prefix-repetition-{name}-len": f"--dataset-name prefix_repetition --prefix-repetition-{name}-len 9"
       for name in ("prefix", "suffix", "output")},
    **{f"--sonnet-{name}-len": f"--dataset-name sonnet --sonnet-{name}-len 9"
       for name in ("prefix", "input", "output")},
    "--hf-output-len": "--dataset-name hf --hf-name a/b --hf-output-len 9",
    **{f"--{name}": f"--{name} 1" for name in _SENT}, "--extra-body": '--extra-body {"x":1}',
    "--request-template": "--backend json --request-template x.toml",
    "--goodput": "--goodput ttft:5", "--chat-template-kwargs": '--chat-template-kwargs {"a":1}',
    **{f"--{name}-bench-output-len": f"--dataset-name {name}_bench --dataset-path x --{name}-bench-output-len 9"
       for name in ("spec", "speed")},
}  # fmt: skip
_NO_PART: dict[str, str] = {
    "--base-url": "--base-url http://127.0.0.1:9000", "--host": "--host localhost", "--port": "--port 9000",
    "--served-model-name": "--model m --served-model-name x", "--header": "--header a=b",
    "--metric-percentiles": "--metric-percentiles 50", "--percentile-metrics": "--percentile-metrics e2el",
    "--save-result": "--save-result", "--save-detailed": "--save-detailed", "--append-result": "--append-result",
    "--result-dir": "--result-dir x", "--result-filename": "--save-result --result-filename x",
    "--disable-tqdm": "--disable-tqdm", "--plot-timeline": "--plot-timeline",
    "--timeline-itl-thresholds": "--timeline-itl-thresholds 1,2", "--plot-dataset-stats": "--plot-dataset-stats",
    "--runs": "--runs x", "--fail-on": "--fail-on doubtful", "--allow-void": "--allow-void", "--keep-raw": "--keep-raw",
    "--json": "--json",
}  # fmt: skip
# What the two commands of a test share: the words before the flag itself.
_SHARED = {
    flag: words.rpartition(f"{flag} ")[0] for flag, words in {**_PART, **_NO_PART}.items()
}
_SHARED |= {"--self-timed": "--dataset-name clients", "--class": "--request-rate 5"}
_SHARED |= {"--request-template": "--backend openai"}


def parsed(words: str) -> TrialSpec:
    parser = Parser(prog="dyno bench serve")
    serve.add(parser)
    options = parser.parse_args(words.split())
    options.own_args = []
    return serve.spec(next(iter(serve.loads(options)))[1])[0]


def test_every_flag_of_bench_serve_is_declared_by_a_field_or_listed_here() -> None:
    parser = Parser(prog="dyno bench serve")
    serve.add(parser)
    specs = [field for _, field in spec_fields()] + [*fields(ContainerSpec).values()]
    declared_flags = {flag for field in specs for flag in field.option.flags.split()}
    shown = [
        action
        for action in parser._actions
        if action.help != SUPPRESS and action.dest != "help"
    ]
    others = {
        a.option_strings[0] for a in shown if not {*a.option_strings} & declared_flags
    }
    assert others == {*_PART, *_NO_PART, "--repeats", "--dry-run"}


@pytest.mark.parametrize("flag", [*_PART, *_NO_PART])
def test_another_value_of_a_flag_is_another_entry_unless_it_is_an_address_a_name_or_a_place_for_output(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text('body = {text = "{prompt}"}\nanswer = {text = "text"}\n')
    words = {**_PART, **_NO_PART}[flag]
    found = entries_of(rows_of(tmp_path, [parsed(_SHARED[flag]), parsed(words)]))
    assert [e.repeats for e in found] == ([1, 1] if flag in _PART else [2])


# ---- places ----


def test_one_setting_under_two_names_of_a_study_is_two_entries(tmp_path: Path) -> None:
    places = [Place("s", "1", engine, "w", "l") for engine in ("a", "b")]
    found = entries_of(rows_of(tmp_path, [_BASE, _BASE], places))
    assert [(e.series, e.repeats) for e in found] == [("a", 1), ("b", 1)]


def test_two_files_with_one_name_are_two_settings_of_a_study(tmp_path: Path) -> None:
    places = [
        Place("s", "1", "e", "w", "l", {"workload.path": path})
        for path in ("a/x.json", "b/x.json")
    ]
    assert places[0].label == places[1].label
    assert len(entries_of(rows_of(tmp_path, [_BASE, _BASE], places))) == 2


def test_a_study_that_changed_under_its_name_is_not_averaged_with_what_it_was(
    tmp_path: Path,
) -> None:
    place = Place("s", "1", "e", "w", "l")
    slower = replace(_BASE, workload=replace(_BASE.workload, shuffle=False))
    assert len(entries_of(rows_of(tmp_path, [_BASE, slower], [place, place]))) == 2


def test_a_sweep_of_flags_is_one_with_the_same_flags_given_again_at_another_port(
    tmp_path: Path,
) -> None:
    places = [
        Place(f"serve-{port}", "1", f"127.0.0.1:{port}", "random", "closed", by_flags=True)
        for port in (1, 2)
    ]
    assert [e.repeats for e in entries_of(rows_of(tmp_path, [_BASE, _BASE], places))] == [2]


def test_a_trial_that_failed_on_one_rig_is_not_a_doubt_about_the_other(
    tmp_path: Path,
) -> None:
    done, lost = (Place("s", "1", "e", "w", "l", rig=rig) for rig in ("one", "two"))
    rows = [
        *rows_of(tmp_path, [_BASE], [done]),
        row_without(PlannedTrial(lost, _BASE), "runs/x", "it fell over"),
    ]
    found = {e.failure: e for e in entries_of(rows)}
    assert set(found) == {"", "it fell over"}
    assert "study.failed_trials" not in {f.code for f in found[""].findings}


# ---- comparisons ----


def test_two_studies_are_paired_load_by_load_and_setting_by_setting(tmp_path: Path) -> None:
    def of(name: str) -> list[Row]:
        trials, places = [], []
        for think in ("0", "0.2"):
            for reset in (True, False):
                work = WorkloadSpec("chat", think_time_s=think)
                trials.append(replace(_BASE, workload=work, reset_cache=reset))
                places.append(
                    Place(
                        name,
                        "1",
                        name,
                        "w",
                        "l",
                        {"workload.think_time_s": think, "trial.cache": reset},
                    )
                )
        return rows_of(tmp_path / name, trials, places)

    def what(side: str) -> tuple[Any, Any]:
        row = next(row for row in (*a, *b) if row.location == side)
        return row.setting("--think-time"), row.setting("--reset-prefix-cache")

    a, b = of("one"), of("two")
    found = compare(a, b, ("a", "b"), anyway=True)
    assert len(found.pairings) == 4 and not found.unpaired_a and not found.unpaired_b
    assert all(what(p.a.rows[0]) == what(p.b.rows[0]) for p in found.pairings)


def test_two_settings_of_one_study_are_paired_at_each_load(tmp_path: Path) -> None:
    def of(cache: str) -> list[Row]:
        trials = [
            replace(_BASE, reset_cache=cache == "empty", load=LoadSpec(max_concurrency=n))
            for n in (1, 4)
        ]
        places = [
            Place(
                "s", "1", "e", "w", "l", {"trial.cache": cache, "load.max_concurrency": n}
            )
            for n in (1, 4)
        ]
        return rows_of(tmp_path / cache, trials, places)

    found = compare(of("empty"), of("keep"), ("a", "b"))
    assert [p.load["concurrency"] for p in found.pairings] == [1, 4]
    changed = [
        f.text
        for p in found.pairings
        for f in p.findings
        if f.code == "comparability.subject"
    ]
    assert (
        changed == ["The only known difference is --reset-prefix-cache yes / not set."] * 2
    )


def test_more_iterations_or_warm_ups_of_one_side_are_compared_all_the_same(
    tmp_path: Path,
) -> None:
    few = _OFFLINE["micro"]
    many = replace(few, offline=replace(few.offline, iterations=9, warmup_iterations=3))  # type: ignore[type-var]
    found = compare(
        rows_of(tmp_path / "a", [few]), rows_of(tmp_path / "b", [many]), ("a", "b")
    )
    assert len(found.pairings) == 1
    assert "comparability.nothing_changed" in {f.code for f in found.pairings[0].findings}


def test_goodputs_within_other_limits_are_not_compared(tmp_path: Path) -> None:
    def of(limit: float) -> list[Row]:
        rows = rows_of(tmp_path / str(limit), [replace(_BASE, goodput_ms={"ttft": limit})])
        good = {"request_goodput": Figure(5.0, 0)}
        return [replace(row, figures={**row.figures, **good}) for row in rows]

    found = compare(
        of(5.0), of(9.0), ("a", "b"), metrics=["request_goodput", "output_throughput"]
    )
    assert [d.metric for d in found.pairings[0].differences] == ["output_throughput"]
    texts = [
        f.text for f in found.pairings[0].findings if f.code == "comparability.definitions"
    ]
    assert (
        len(texts) == 1 and "A counts requests within ttft=5, B within ttft=9" in texts[0]
    )
