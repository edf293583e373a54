"""A study's file: what it comes to, and what is said about its mistakes."""

import math
from pathlib import Path
from typing import Any

import pytest

from dyno.conduct.study_plan import known
from dyno.errors import UsageError
from dyno.facts.study import PlannedTrial, Study, label_matches, unmatched
from dyno.study.file import read
from dyno.study.order import level, sessions, setting_key

WHOLE = """
[engines.a]
kind = "fake"
[workloads.w]
input_len = 16
output_len = 4
num_prompts = 10
[loads.c]
max_concurrency = 2
"""


def study(
    text: str, given: dict[str, str] | None = None, path: Path = Path("some.toml")
) -> Study:
    return read(text, path, known(), given)


def mistakes(text: str) -> list[str]:
    with pytest.raises(UsageError) as e:
        study(text)
    return str(e.value).splitlines()


def of(trials: list[PlannedTrial], *paths: str) -> list[tuple[Any, ...]]:
    def at(value: Any, path: str) -> Any:
        for part in path.split("."):
            value = getattr(value, part)
        return value

    return [tuple(at(p.trial, path) for path in paths) for p in trials]


# ---- the grid ----


def test_lists_make_a_grid() -> None:
    s = study(
        WHOLE.replace("max_concurrency = 2", "max_concurrency = [1, 2]").replace(
            "input_len = 16", "input_len = [16, 32, 64]"
        )
    )
    assert sorted(of(s.trials, "workload.input_len", "load.max_concurrency")) == [
        (16, 1), (16, 2), (32, 1), (32, 2), (64, 1), (64, 2),
    ]  # fmt: skip
    assert {p.place.settings["workload.input_len"] for p in s.trials} == {16, 32, 64}


def test_zipped_lists_walk_together() -> None:
    text = WHOLE.replace(
        "input_len = 16\noutput_len = 4",
        'input_len = [16, 32]\noutput_len = [4, 8]\nprefix_len = [0, 1]\nzip = ["input_len", "output_len"]',
    )
    found = of(
        study(text).trials,
        "workload.input_len",
        "workload.output_len",
        "workload.prefix_len",
    )
    assert sorted(found) == [(16, 4, 0), (16, 4, 1), (32, 8, 0), (32, 8, 1)]


def test_a_load_may_be_shared_by_processes() -> None:
    [plain] = study(WHOLE).trials
    assert of(study(WHOLE + "[trial]\nprocs = [1, 4]").trials, "client.procs") == [
        (1,),
        (4,),
    ]
    assert study(WHOLE + "[trial]\nprocs = 1").trials[0].place.id == plain.place.id, (
        "the default changes nothing"
    )
    assert of(study(WHOLE + '[trial]\nprocs = "auto"').trials, "client.procs") == [
        ("auto",)
    ]
    assert any(
        "procs: must be at least 1, but is 0" in m
        for m in mistakes(WHOLE + "[trial]\nprocs = 0")
    )
    words = "procs: must be a whole number or one of auto, but is 'many'"
    assert any(words in m for m in mistakes(WHOLE + '[trial]\nprocs = "many"'))


def test_zipped_lists_of_unequal_length_are_a_mistake() -> None:
    text = WHOLE.replace(
        "input_len = 16\noutput_len = 4",
        'input_len = [16, 32, 64]\noutput_len = [4, 8]\nzip = ["input_len", "output_len"]',
    )
    assert any(
        "workloads.w.output_len: has 2 values, but the list it is zipped with has 3" in m
        for m in mistakes(text)
    )


def test_a_list_in_a_variable_is_one_axis_wherever_it_is_used() -> None:
    text = "[variables]\nstreams = [1, 2, 4]\n" + WHOLE.replace(
        'kind = "fake"', 'kind = "vllm"\nmodel = "m"\nmax_num_seqs = "${streams}"'
    ).replace("max_concurrency = 2", 'max_concurrency = "${streams}"')
    found = of(study(text).trials, "engine.max_num_seqs", "load.max_concurrency")
    assert sorted(found) == [(1, 1), (2, 2), (4, 4)]


def test_a_variable_inside_a_text_and_one_set_from_outside() -> None:
    text = (
        '[variables]\nroot = "/m"\nname = "llama"\nwhole = "${root}/${name}"\n'
        + WHOLE.replace('kind = "fake"', 'kind = "vllm"\nmodel = "${whole}-8b"')
    )
    assert of(study(text).trials, "engine.model") == [("/m/llama-8b",)]
    assert of(study(text, {"name": "qwen"}).trials, "engine.model") == [("/m/qwen-8b",)]
    with pytest.raises(UsageError, match=r"no such variable\. Known: root, name, whole"):
        study(text, {"nmae": "qwen"})


def test_a_list_setting_is_one_value_and_a_list_of_lists_is_an_axis() -> None:
    one = WHOLE.replace('kind = "fake"', 'kind = "fake"\nargs = ["first_ms=1", "gap_ms=1"]')
    assert of(study(one).trials, "engine.args") == [(["first_ms=1", "gap_ms=1"],)]
    two = WHOLE.replace('kind = "fake"', 'kind = "fake"\nargs = [["first_ms=1"], []]')
    assert sorted(of(study(two).trials, "engine.args")) == [([],), (["first_ms=1"],)]


def test_an_engine_may_say_otherwise_for_itself_and_be_like_another() -> None:
    text = (
        WHOLE
        + """
[engines.b]
like = "a"
served_name = "b"
[engines.b.workload]
num_prompts = 5
[engines.b.load]
max_concurrency = 1
[engines.b.trial]
percentiles = [75]
"""
    )
    found = {p.place.engine: p.trial for p in study(text).trials}
    assert found["b"].engine and found["b"].engine.kind == "fake"
    assert (
        found["b"].workload.num_prompts,
        found["b"].load.max_concurrency,
        found["b"].percentiles,
    ) == (5, 1, [75.0])
    assert (found["a"].workload.num_prompts, found["a"].load.max_concurrency) == (10, 2)


def test_exclude_trims_and_include_adds() -> None:
    text = (
        WHOLE.replace("max_concurrency = 2", "max_concurrency = [1, 2, 4]").replace(
            "output_len = 4", "output_len = [4, 8]"
        )
        + """
[[exclude]]
workload = { output_len = 8 }
load = { max_concurrency = [2, 4] }
[[include]]
engine = "a"
workload = { name = "w", output_len = 99 }
load = { name = "c", max_concurrency = 7 }
"""
    )
    found = of(study(text).trials, "workload.output_len", "load.max_concurrency")
    assert sorted(found) == [(4, 1), (4, 2), (4, 4), (8, 1), (99, 7)]


def test_an_exclude_that_matches_nothing_is_a_mistake() -> None:
    reported = mistakes(WHOLE + "\n[[exclude]]\nload = { max_concurrency = 3 }\n")
    assert reported[0] == "some.toml:11: exclude.#1: matches no trial. Nothing was started."


def test_engines_workloads_and_loads_can_be_paired_by_name() -> None:
    text = (
        WHOLE
        + """
[engines.b]
kind = "fake"
workloads = ["other"]
[workloads.other]
input_len = 1
output_len = 1
num_prompts = 3
loads = ["rate"]
[loads.rate]
request_rate_rps = 5
"""
    )
    found = sorted(
        {(p.place.engine, p.place.workload, p.place.load) for p in study(text).trials}
    )
    assert found == [
        ("a", "other", "rate"),
        ("a", "w", "c"),
        ("a", "w", "rate"),
        ("b", "other", "rate"),
    ]


def test_requests_per_stream_warmups_and_infinite_rates() -> None:
    text = (
        WHOLE.replace("num_prompts = 10\n", "")
        + """requests_per_stream = 2.5
[loads.all]
request_rate_rps = inf
num_prompts = 7
[loads.even]
request_rate_rps = 4.0
burstiness = inf
duration_s = 3
"""
    )
    found = {p.place.load: p.trial for p in study(text).trials}
    assert (found["c"].workload.num_prompts, found["c"].workload.num_warmups) == (5, 2)
    assert (found["all"].load.request_rate_rps, found["all"].workload.num_prompts) == (
        None,
        7,
    )
    assert found["all"].workload.num_warmups == 7, "never more than there are requests"
    assert (found["even"].load.burstiness, found["even"].workload.num_prompts) == (None, 12)


def test_rigs_multiply_and_carry_their_price() -> None:
    text = (
        WHOLE
        + """
[engines.b]
like = "a"
served_name = "b"
rigs = ["h100"]
[rigs.h100]
accelerator = "H100"
accelerators = 8
price = { accelerator_hour = 2.0, source = "a page" }
[rigs.mi300x]
accelerator = "MI300X"
"""
    )
    s = study(text)
    assert sorted((p.place.engine, p.place.rig) for p in s.trials) == [
        ("a", "h100"),
        ("a", "mi300x"),
        ("b", "h100"),
    ]
    price = next(p.place.price for p in s.trials if p.place.rig == "h100")
    assert price is not None and (price.accelerator_hour, price.currency) == (2.0, "USD")
    assert len({p.place.id for p in s.trials}) == 3


def test_offline_loads_are_planned() -> None:
    text = (
        WHOLE + '\n[loads.latency]\nkind = "latency"\nbatch_size = [1, 8]\niterations = 3\n'
    )
    found = [p.trial for p in study(text).trials if p.trial.offline]
    assert sorted(t.offline.batch_size for t in found if t.offline) == [1, 8]  # type: ignore[type-var]
    assert {t.kind for t in found} == {"latency"}


def test_paths_with_a_dot_lie_beside_the_file(tmp_path: Path) -> None:
    text = WHOLE.replace('kind = "fake"', 'kind = "vllm"\nmodel = "./m"')
    trial = study(text, path=tmp_path / "x.toml").trials[0].trial
    assert trial.engine and trial.engine.model == str(tmp_path / "m")


# ---- who is who ----


def test_the_same_trial_has_the_same_id_and_any_change_another() -> None:
    first = study(WHOLE).trials[0].place.id
    assert study("about = 'words'\n" + WHOLE).trials[0].place.id == first
    assert study(WHOLE.replace("[loads.c]", "[loads.c]\n")).trials[0].place.id == first
    for change in (
        ("output_len = 4", "output_len = 5"),
        ('"fake"', '"fake"\nmax_model_len = 512'),
        ("= 10", "= 11"),
    ):
        assert study(WHOLE.replace(*change)).trials[0].place.id != first
    assert study("seed = 1\n" + WHOLE).trials[0].place.id != first


def test_engines_get_the_same_prompts_and_repeats_others() -> None:
    s = study("repeats = 2\n" + WHOLE + '[engines.b]\nlike = "a"\nserved_name = "b"\n')
    seeds = {(p.place.engine, p.place.repeat): p.trial.workload.seed for p in s.trials}
    assert seeds["a", 1] == seeds["b", 1] != seeds["a", 2] == seeds["b", 2]


# ---- order ----


def test_repeats_go_round_all_engines_there_and_back() -> None:
    text = (
        "repeats = 4\n"
        + WHOLE
        + "".join(f'[engines.{n}]\nlike = "a"\nserved_name = "{n}"\n' for n in "bcd")
    )
    rounds = [[t.place.engine for t in session.trials] for session in sessions(study(text))]
    order = [e for session in rounds for e in session]
    blocks = [order[i : i + 4] for i in range(0, 16, 4)]
    assert all(sorted(b) == ["a", "b", "c", "d"] for b in blocks)
    assert blocks[1] == blocks[0][::-1] and blocks[3] == blocks[2][::-1]
    assert len(rounds) <= 14, (
        "the engine that ends one round and begins the next goes on running"
    )


def test_the_seed_decides_the_order() -> None:
    text = WHOLE.replace("max_concurrency = 2", f"max_concurrency = {list(range(1, 20))}")
    order = [
        [
            p.place.label
            for s in sessions(study(f"seed = {seed}\n" + text))
            for p in s.trials
        ]
        for seed in (1, 1, 2)
    ]
    assert order[0] == order[1] != order[2]
    assert sorted(order[0]) == sorted(order[2])


def test_each_engine_is_started_once_where_trials_alone_are_interleaved() -> None:
    text = (
        'repeats = 3\ninterleave = "trials"\n'
        + WHOLE
        + '[engines.b]\nlike = "a"\nserved_name = "b"\n'
    )
    found = sessions(study(text))
    assert len(found) == 2
    assert [p.place.repeat for p in found[0].trials] == [1, 2, 3]


def test_with_a_stop_rule_loads_rise_within_a_series() -> None:
    text = (
        WHOLE.replace("max_concurrency = 2", "max_concurrency = [8, 1, 4, 2]").replace(
            "output_len = 4", "output_len = [4, 8]"
        )
        + "[stop]\n"
    )
    trials = sessions(study(text))[0].trials
    for length in (4, 8):
        levels = [level(p) for p in trials if p.trial.workload.output_len == length]
        assert levels == sorted(levels) and len(levels) == 4
    lengths = [p.trial.workload.output_len for p in trials]
    assert lengths in ([4] * 4 + [8] * 4, [8] * 4 + [4] * 4), "one series after the other"


def test_trials_share_an_engine_where_only_workload_and_load_differ() -> None:
    s = study(WHOLE.replace("max_concurrency = 2", "max_concurrency = [1, 2]"))
    assert len({setting_key(p) for p in s.trials}) == 1
    assert len(sessions(s)) == 1


# ---- mistakes ----


NO = "there is no"


@pytest.mark.parametrize(
    ("change", "line", "reported"),
    [
        (("max_concurrency", "max_concurency"), 8, "max_concurency: unknown key. Did you mean max_concurrency?"),
        (('kind = "fake"', 'kind = "vlm"'), 2, f"engines.a.kind: {NO} engine kind 'vlm'. Did you mean vllm?"),
        (("output_len = 4", 'output_len = "four"'), 5, "output_len: must be a whole number, but is 'four'."),
        (("num_prompts = 10", "num_prompts = 0"), 6,
         "workloads.w.num_prompts: must be at least 1, but is 0: random has no last prompt."),
        (("num_prompts = 10", "num_prompts = -2"), 6, "workloads.w.num_prompts: must be at least -1, but is -2."),
        (("max_concurrency = 2", "request_rate_rps = -1"), 8, "loads.c.request_rate_rps: must be above 0, but is -1."),
        (("max_concurrency = 2", "max_concurrency = []"), 8, "is an empty list. Give at least one value"),
        (("max_concurrency = 2", "duration_s = 5"), 7, "loads.c: the load is missing. Give max_concurrency"),
        (("max_concurrency = 2", "batch_size = 2"), 8, "loads.c.batch_size: is for an offline load"),
        (("[workloads.w]", "[worklods.w]"), 3, "worklods: unknown key. Did you mean workloads?"),
        (("num_prompts = 10\n", ""), 3, "workloads.w: num_prompts is missing."),
        (("output_len = 4\n", ""), 3, "workloads.w: output_len is missing: random prompts need it."),
        (('kind = "fake"\n', 'model = "x"\n'), 1, "engines.a: kind is missing. Give one of vllm"),
        (('kind = "fake"', 'kind = "openai"'), 1, "base_url is missing: kind = 'openai' is a running server."),
        (('"fake"', '"vllm"\nbase_url = "http://x"'), 3, "dyno starts vllm itself. For a running server write"),
        (('"fake"', '"fake"\nlike = "b"'), 3, f"engines.a.like: {NO} engine 'b'. Known: a."),
        (('"fake"', '"fake"\nlike = "a"'), 3, "engines.a.like: is circular"),
        (('"fake"', '"fake"\nmodel = "${modl}"'), 3, f"engines.a.model: {NO} variable 'modl'. Known: none."),
        (('"fake"', '"fake"\nworkloads = ["v"]'), 3, f"engines.a.workloads: {NO} workload 'v'. Known: w."),
        (("[engines.a]", "[engines]"), 1, "engines: must be a table of tables: write [engines.NAME]."),
        (("input_len = 16", 'dataset = "shargpt"\ninput_len = 16'), 4, f"{NO} dataset 'shargpt'. Did you mean"),
        (("[loads.c]", "[stop]\ngain = 1\n[loads.c]"), 8, "stop.gain: unknown key. Did you mean throughput_gain?"),
        (("[loads.c]", "[rigs.x]\nprice = {hour = 1}\n[loads.c]"), 8, "rigs.x.price.hour: unknown key. Did you mean"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line_and_the_nearest_name(
    change: tuple[str, str], line: int, reported: str
) -> None:
    assert change[0] in WHOLE
    found = mistakes(WHOLE.strip().replace(*change))
    assert any(m.startswith(f"some.toml:{line}: ") and reported in m for m in found), found


@pytest.mark.parametrize(
    "change",
    [
        ('"fake"', '"fake"\nlike = ["x"]'),
        ("output_len = 4", "output_len = 4\nzip = 5"),
        ("output_len = 4", 'output_len = 4\nzip = [["output_len"], 5]'),
        ("[loads.c]", "[[exclude]]\nengine = { name = {} }\n[loads.c]"),
        ("[loads.c]", '[[exclude]]\nengine = [["x"]]\n[loads.c]'),
        ("output_len = 4", "output_len = 4\nrange_ratio_input = nan"),
        ('"fake"', '"fake"\nport = 99999'),
        ("[loads.c]", "[trial]\npercentiles = [0, 101]\n[loads.c]"),
        ("[loads.c]", "[trial]\ngoodput_ms = { ttfft = 1 }\n[loads.c]"),
        ("[loads.c]", "[loads.c]\nrequests_per_stream = 1\nnum_prompts = 1"),
        ("[loads.c]", "[loads.c]\nburstiness = 2"),
        ("input_len = 16", 'dataset = "custom"'),
        ('"fake"', '"openai"\nbase_url = "http://user:hunter22@host"'),
        ('"fake"', '"openai"\nbase_url = "http://h"\nendpoint = "/v1\\r\\nx: y"'),
        ('"fake"', '"openai"\nbase_url = "http://h/a b"'),
        ('"fake"', '"openai"\nbase_url = "http://h"\nmodel = "a\\nb"'),
        ('"fake"', '"openai"\nbase_url = "http://h"\nread_timeout_s = 0'),
        ('"fake"', '"fake"\ncert = "me.pem"'),
        ("[engines.a]", "repeats = 3000000\n[engines.a]"),
        ("[engines.a]", f"name = '{'x' * 300}'\n[engines.a]"),
    ],
)
def test_what_cannot_be_is_a_mistake_and_no_crash(change: tuple[str, str]) -> None:
    assert change[0] in WHOLE
    found = mistakes(WHOLE.strip().replace(*change))
    assert len(found) == 1 and "hunter22" not in "".join(found), found


def test_mistakes_in_keys_and_in_values_are_reported_together() -> None:
    text = WHOLE.replace("[workloads.w]", "[workloads.w]\nseeed = 1").replace(
        "max_concurrency = 2", "max_concurrency = 0"
    )
    assert len(mistakes(text)) == 3


def test_all_mistakes_are_reported_at_once_in_the_order_of_their_lines() -> None:
    text = "repeats = 'x'\n" + WHOLE.replace("input_len", "inputlen").replace(
        "max_concurrency = 2", "max_conc = 2"
    )
    reported = mistakes(text)
    assert reported[0] == "some.toml has 3 mistakes. Nothing was started.", (
        "what is missing because of them isn't one"
    )
    lines = [int(m.split(":")[1]) for m in reported[1:]]
    assert lines == sorted(lines) and len(lines) == 3


def test_a_mistake_hides_no_other() -> None:
    """Each of these used to end the reading of a trial, or of all trials."""
    text = (
        WHOLE.strip()
        .replace('kind = "fake"', 'kind = "vlm"')
        .replace("input_len = 16", "input_len = '${lenght}'")
        .replace("output_len = 4", "output_len = 0")
        .replace("max_concurrency = 2", "max_concurrency = []\nburstiness = 'x'")
    )
    assert [m.split(": ")[:2] for m in mistakes(text)[1:]] == [
        ["some.toml:2", "engines.a.kind"], ["some.toml:4", "workloads.w.input_len"],
        ["some.toml:5", "workloads.w.output_len"], ["some.toml:8", "loads.c.max_concurrency"],
        ["some.toml:9", "loads.c.burstiness"],
    ]  # fmt: skip


def test_values_are_checked_where_no_trial_comes_of_them() -> None:
    text = (
        WHOLE.strip()
        .replace("[engines.a]", "[engine.a]")
        .replace("max_concurrency = 2", "max_concurrency = 'x'")
    )
    assert [m.split(": ")[1] for m in mistakes(text)[1:]] == [
        "engine",
        "loads.c.max_concurrency",
    ]


def test_a_mistake_in_an_engine_that_others_are_like_is_reported_once() -> None:
    text = (
        WHOLE.replace('kind = "fake"', 'kind = "fake"\nmax_num_seq = 3').strip()
        + '\n[engines.b]\nlike = "a"\n'
    )
    assert mistakes(text) == [
        "some.toml:3: engines.a.max_num_seq: unknown key. Did you mean max_num_seqs? Nothing was started."
    ]


def test_what_is_not_toml_is_reported_with_its_line() -> None:
    with pytest.raises(
        UsageError,
        match=r"^some\.toml:2: not valid TOML: Invalid value at column 5\. Text needs quotes\.$",
    ):
        study("a = 1\nb = = 2\n")


def test_a_file_without_trials_says_what_is_missing() -> None:
    assert (
        "The study has no trials: add [engines.NAME], [workloads.NAME], [loads.NAME]."
        in mistakes("name = 'x'\n")[0]
    )


def test_keys_and_lines_are_found_in_dotted_and_inline_tables() -> None:
    text = WHOLE.replace(
        "[loads.c]\nmax_concurrency = 2", "loads.c = { max_concurrency = 2, max_conc = 3 }"
    )
    text = text.strip()
    moved = text[text.index("loads.c") :] + "\n" + text[: text.index("loads.c")]
    assert mistakes(moved)[0].startswith("some.toml:1: loads.c.max_conc: unknown key.")


def test_infinity_is_a_number_and_a_sampling_default_is_greedy() -> None:
    trial = study(WHOLE).trials[0].trial
    assert trial.sampling == {"temperature": 0.0}
    assert math.isinf(float("inf")) and trial.ignore_eos and trial.reset_cache


def test_how_a_running_server_is_reached_is_part_of_its_table(tmp_path: Path) -> None:
    more = 'base_url = "https://h"\ncacert = "./ca.pem"\ncert = "/me.pem"\ninsecure = true\nread_timeout_s = 5'
    text = WHOLE.replace('kind = "fake"', f'kind = "openai"\n{more}')
    (first, *_) = study(text, path=tmp_path / "s.toml").trials
    target = first.trial.target
    assert (target.cacert, target.cert, target.insecure) == (
        str(tmp_path / "ca.pem"),
        "/me.pem",
        True,
    )
    assert (target.read_timeout_s, target.connect_timeout_s) == (5.0, 30.0)
    # A renewed certificate makes no other trial.
    (again, *_) = study(
        text.replace("/me.pem", "/new.pem"), path=tmp_path / "s.toml"
    ).trials
    assert again.place.id == first.place.id


# ---- choosing trials by name ----


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("int8", ["int8, short, closed concurrency 8"]),
        ("int8-kv", ["int8-kv tensor_parallel=8, short, closed concurrency 80"]),
        (
            "int8*",
            [
                "int8, short, closed concurrency 8",
                "int8-kv tensor_parallel=8, short, closed concurrency 80",
            ],
        ),
        ("concurrency 8", ["int8, short, closed concurrency 8"]),
        ("tensor_parallel=8", ["int8-kv tensor_parallel=8, short, closed concurrency 80"]),
        ("tensor_parallel", ["int8-kv tensor_parallel=8, short, closed concurrency 80"]),
        ("int", []),
        ("[i]nt8", []),
    ],
)
def test_whole_words_of_a_name_choose_a_trial(pattern: str, chosen: list[str]) -> None:
    """`int8` took the trials of int8-kv, too."""
    labels = [
        "int8, short, closed concurrency 8",
        "int8-kv tensor_parallel=8, short, closed concurrency 80",
    ]
    assert [label for label in labels if label_matches(label, pattern)] == chosen


def test_a_pattern_without_a_trial_names_those_that_look_like_it_first() -> None:
    labels = [f"bf16, n{i}" for i in range(9)] + ["int8, short"]
    text = unmatched("int", labels)
    assert text.startswith(
        "No trial is named like 'int': whole words match, or parts with * and ?. There are 'int8, short'"
    )
    assert text.endswith(" and 5 more.")


def test_a_name_shows_of_an_axis_of_variables_only_those_that_differ() -> None:
    tables = '[{A = "1", SAME = "x"}, {A = "2", SAME = "x"}, {SAME = "x"}]'
    trials = study(WHOLE.replace('kind = "fake"', f'kind = "fake"\nenv = {tables}')).trials
    assert sorted(p.place.label for p in trials) == [
        "a env=A:1, w, c",
        "a env=A:2, w, c",
        "a env=none, w, c",
    ]
    assert all(p.trial.engine and p.trial.engine.env["SAME"] == "x" for p in trials)
