"""Traces: read from any kind of file, made into prompts that share blocks, sent at their recorded times."""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dyno
from conftest import StartFake, drive
from dyno.cli.main import main
from dyno.conduct.study_plan import known
from dyno.errors import UsageError, WorkloadError
from dyno.facts.load import LoadSpec
from dyno.facts.study import Study
from dyno.study.file import read
from dyno.workload.datasets import DATASETS
from dyno.workload.datasets.traces import FORMATS
from dyno.workload.prompts import make
from dyno.workload.request import Dropped, Turn
from dyno.workload.spec import Workload, WorkloadSpec
from dyno.workload.tokenizer import ApproximateTokenizer, Tokenizer, local

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

FOLDER = Path(__file__).parents[1] / "fixtures" / "traces"
FILES = {
    name: FOLDER / f"{name}.{'csv' if name in ('azure', 'burstgpt') else 'jsonl'}"
    for name in FORMATS
}
MOONCAKE = [json.loads(line) for line in FILES["mooncake"].read_text().splitlines()]
TOKENIZER = Path(dyno.__file__).parent / "engines" / "dyno-5m"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return local(str(TOKENIZER))


def traced(
    name: str, path: Path | None = None, tokenizer: Tokenizer | None = None, **fields: Any
) -> Workload:
    spec = WorkloadSpec(name, path=str(path or FILES[name]), **{"num_prompts": 0, **fields})
    return make(spec, tokenizer or ApproximateTokenizer())


def wrong(path: Path, name: str = "mooncake", **fields: Any) -> str:
    with pytest.raises(WorkloadError) as e:
        traced(name, path, **fields)
    return str(e.value)


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(time: Any = 0, input_: Any = 20, output: Any = 3, **more: Any) -> dict[str, Any]:
    return {
        "timestamp": time,
        "input_length": input_,
        "output_length": output,
        "hash_ids": [1],
        **more,
    }


# ---- formats ----


def test_each_format_keeps_its_times_and_lengths() -> None:
    work = {name: traced(name) for name in FORMATS}
    assert {name: len(w.requests) for name, w in work.items()} == {
        "mooncake": 60, "azure": 100, "burstgpt": 2, "bailian": 3,
    }  # fmt: skip
    assert work["mooncake"].starts_s == [entry["timestamp"] / 1000 for entry in MOONCAKE]
    assert [r.output_tokens for r in work["mooncake"].requests] == [
        entry["output_length"] for entry in MOONCAKE
    ]
    assert work["azure"].starts_s is not None and work["azure"].starts_s[
        1
    ] == pytest.approx(4.314579, abs=1e-6)
    # GPT-4's alone, and of these the one that failed is skipped
    assert work["burstgpt"].starts_s == [0, 3]
    assert work["burstgpt"].dropped == {"requests without input or output tokens": 1}
    assert work["bailian"].starts_s == pytest.approx([0, 1.25, 60.864])


def test_a_timed_trace_names_its_own_columns(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "t.jsonl",
        *({"t": t, "in": 9, "out": 2, "blocks": [5, 6, 7]} for t in (3000, 4500)),
    )
    labels = {
        "timestamp": "t",
        "input_length": "in",
        "output_length": "out",
        "hash_ids": "blocks",
    }
    fields = {f"timed_trace_label_{name}": label for name, label in labels.items()}
    w = traced(
        "timed_trace",
        path,
        timed_trace_sec_multiplier=0.001,
        timed_trace_chunk_hash_size=3,
        **fields,
    )
    assert w.starts_s == [0, 1.5] and len({r.prompt for r in w.requests}) == 1


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_kind_of_file_gives_the_same_requests(
    kind: str, packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"trace.{kind}"
    with duckdb.connect() as db:
        db.execute("CREATE TABLE t AS SELECT * FROM read_json(?)", [str(FILES["mooncake"])])
        if kind == "json":
            path.write_text(json.dumps(MOONCAKE))
        elif kind == "jsonl":
            path.write_bytes(FILES["mooncake"].read_bytes())
        else:
            db.execute(f"COPY t TO '{path}' (FORMAT {kind})")
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert traced("mooncake", path).sha256 == traced("mooncake").sha256


def test_parquet_has_times_with_a_zone_and_without(tmp_path: Path) -> None:
    expected = traced("azure").starts_s
    for kind in ("TIMESTAMP", "TIMESTAMPTZ"):
        path = tmp_path / f"{kind}.parquet"
        with duckdb.connect() as db:
            db.execute(f"COPY (SELECT * REPLACE (TIMESTAMP::{kind} AS TIMESTAMP) FROM read_csv('{FILES['azure']}')) "
                       f"TO '{path}'")  # fmt: skip
        assert traced("azure", path).starts_s == pytest.approx(expected, abs=2e-6)


# ---- prompts ----


def shared_blocks(a: list[int], b: list[int]) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:  # of thousands of tokens: whole slices are compared at once
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def test_prompts_share_exactly_the_recorded_blocks(tokenizer: Tokenizer) -> None:
    requests = traced("mooncake", tokenizer=tokenizer).requests
    ids = [tokenizer.encode(str(r.prompt)) for r in requests]
    assert [len(tokens) for tokens in ids] == [entry["input_length"] for entry in MOONCAKE]
    hits = 0
    for i in range(40):
        for j in range(i):
            blocks = shared_blocks(MOONCAKE[i]["hash_ids"], MOONCAKE[j]["hash_ids"])
            tokens = shared_blocks(ids[i], ids[j])
            assert 512 * blocks <= tokens + (blocks == len(MOONCAKE[j]["hash_ids"])) * 512
            assert tokens < 512 * blocks + 512
            hits += blocks > 1
    assert hits > 5


def test_tokens_are_exact_with_a_beginning_token_too(tokenizer: Tokenizer) -> None:
    class WithStart:
        name, counted_by = "start", tokenizer.counted_by

        def encode(self, text: str) -> list[int]:
            return [1, *tokenizer.encode(text)]

        def decode(self, ids: list[int]) -> str:
            return tokenizer.decode(ids[1:])

        def count(self, text: str) -> int:
            return len(self.encode(text))

    requests = traced("bailian", tokenizer=WithStart()).requests
    assert [WithStart().count(str(r.prompt)) for r in requests] == [40, 20, 70]
    first, _, third = (WithStart().encode(str(r.prompt)) for r in requests)
    assert shared_blocks(first, third) == 32  # two blocks of 16


def test_prompts_are_the_same_in_every_process() -> None:
    code = (
        "import sys; from dyno.workload.prompts import make; from dyno.workload.spec import WorkloadSpec; "
        "from dyno.workload.tokenizer import local; "
        "w = make(WorkloadSpec('mooncake', path=sys.argv[1], num_prompts=20), local(sys.argv[2])); "
        "sys.stdout.write(''.join(r.prompt for r in w.requests))"
    )
    digests = set()
    for seed in ("0", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", code, str(FILES["mooncake"]), str(TOKENIZER)]
        digests.add(
            hashlib.sha256(
                subprocess.run(words, env=env, stdout=subprocess.PIPE, check=True).stdout
            ).hexdigest()
        )
    here = "".join(
        str(r.prompt)
        for r in traced(
            "mooncake", tokenizer=local(str(TOKENIZER)), num_prompts=20
        ).requests
    )
    assert digests == {hashlib.sha256(here.encode()).hexdigest()}
    # On another machine as well: the words' order is SHAKE's, the words are the tokenizer's.
    assert digests == {"e0eb5348be3d9855670f84b74a9bd0e7dcc5d541e34afde6047cea75046e3eed"}


def test_another_seed_gives_other_prompts_with_the_same_sharing() -> None:
    a, b = (traced("bailian", seed=seed).requests for seed in (0, 1))
    assert all(
        x.prompt != y.prompt and x.prompt_tokens == y.prompt_tokens
        for x, y in zip(a, b, strict=True)
    )


def test_traces_without_hash_ids_share_nothing() -> None:
    starts = {str(r.prompt)[:40] for r in traced("azure").requests}
    assert len(starts) == 100


def test_lengths_scale_with_their_blocks(tokenizer: Tokenizer) -> None:
    whole, part = (
        traced("mooncake", tokenizer=tokenizer, trace_length_scale=f).requests
        for f in (1, 1 / 16)
    )
    assert [r.prompt_tokens for r in part] == [round(r.prompt_tokens / 16) for r in whole]
    a, b = (tokenizer.encode(str(part[i].prompt)) for i in (0, 1))
    assert 32 <= shared_blocks(a, b) < 64  # the first block of 512 became one of 32


def test_a_tokenizer_without_whole_words_is_refused() -> None:
    class Characters(ApproximateTokenizer):
        def count(self, text: str) -> int:
            return len(text)

    with pytest.raises(WorkloadError, match="splits every word"):
        traced("azure", tokenizer=Characters())


# ---- a part of a trace ----


def test_a_window_and_a_cap_choose_requests_by_time() -> None:
    times = [entry["timestamp"] / 1000 for entry in MOONCAKE]
    window = [t for t in times if 3 <= t < 7]
    w = traced("mooncake", trace_start_s=3, trace_end_s=7)
    assert w.starts_s == pytest.approx([t - window[0] for t in window])
    assert len(traced("mooncake", trace_start_s=3, num_prompts=4).requests) == 4


def test_an_empty_window_says_how_long_the_trace_is() -> None:
    assert "60 requests within 9 s" in wrong(FILES["mooncake"], trace_start_s=100)
    assert "ends at 2 s" in wrong(FILES["mooncake"], trace_start_s=5, trace_end_s=2)


def test_long_requests_are_skipped_where_asked() -> None:
    w = traced("mooncake", trace_max_tokens=8000)
    assert 0 < len(w.requests) < 60 and all(
        r.prompt_tokens + r.output_tokens <= 8000 for r in w.requests
    )
    assert w.dropped == {
        "requests with more than 8000 tokens (--trace-max-tokens)": 60 - len(w.requests)
    }
    assert "No request" in wrong(FILES["mooncake"], trace_max_tokens=2)


# ---- bad input ----


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    w = traced(
        "mooncake", lines(tmp_path / "t", row(2000, 30), row(1000, 20), row(3000, 40))
    )
    assert [r.prompt_tokens for r in w.requests] == [20, 30, 40] and w.starts_s == [0, 1, 2]
    assert [str(Dropped(*pair)) for pair in w.dropped.items()] == [
        "1 rows out of order were sorted by time"
    ]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row(-5), "line 2: timestamp is -5; it can't be negative."),
        (row("soon"), "line 2: timestamp is 'soon', not a number."),
        (row(True), "line 2: timestamp is True, not a number."),
        (row(1, "many"), "line 2: input_length is 'many', not a number."),
        (row(1, 3.5), "line 2: input_length is 3.5, not a whole number of tokens."),
        (row(1, 3, -1), "line 2: output_length is -1; it can't be negative."),
        (row(1, 3, 1e300), "line 2: output_length is 1e+300"),
        (row(1, hash_ids="a"), "line 2: the hash ids are 'a'"),
        (row(1, hash_ids=[[1]]), "line 2: the hash ids are '[[1]]'"),
        (row(1, hash_ids=7), "line 2: the hash ids are '7'"),
        (
            {"t": 1, "input_length": 2},
            "line 2: no timestamp or output_length. It has t, input_length.",
        ),
        (row(1.7e15), "line 2: timestamp is 1700000000000000.0, which isn't in seconds."),
    ],
)
def test_a_bad_row_is_named(bad: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", row(), bad)
    assert wrong(path).startswith(f"{path}, {said}")


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert "There is no file" in wrong(path)
    for data, said in (
        (b"", "is empty"),
        (b'{"timestamp": 1', "line 1: "),
        (
            b"a,b\n1,2\n",
            "line 2: no timestamp or input_length or output_length. It has a, b.",
        ),
        (b"\xff\xfe\x00", "no requests"),
        (b"PAR1 and more", "is not readable Parquet"),
        (gzip.compress(b'{"timestamp": 1}')[:-9], "can't be decompressed"),
        (b"\x1f\x8bxxxxxxxxxxxxxxxx", "can't be decompressed"),
        (b"timestamp,input_length,output_length\n", "has no requests"),
        (b"[1, 2]", "Expected `object`"),
    ):
        path.write_bytes(data)
        assert said in wrong(path), data


def test_a_date_that_is_none_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-99 00:00:00,1,2\n"
    )
    assert "line 2: TIMESTAMP is '2023-13-99 00:00:00', not a date and time." in wrong(
        path, "azure"
    )


def test_more_tokens_than_memory_holds_are_refused_before_they_are_made(
    tmp_path: Path,
) -> None:
    path = lines(tmp_path / "t", *[row(0, 90_000_000)] * 3)
    assert "270,000,000 tokens" in wrong(path) and "--num-prompts" in wrong(path)


# ---- the replay ----


@pytest.mark.parametrize(("name", "speedup"), [("mooncake", 8.0), ("azure", 40.0)])
def test_requests_are_sent_at_the_times_of_the_trace(
    name: str, speedup: float, fake: StartFake
) -> None:
    w = traced(name, output_len=2)
    assert w.starts_s is not None
    engine = fake(first_ms=1, gap_ms=1)
    load = LoadSpec(arrivals="recorded", speedup=speedup)
    driven = drive(engine.base_url, w.requests, load, starts_s=w.starts_s)
    due_ms = [r.due_ns / 1e6 for r in driven.records]
    assert due_ms == pytest.approx([t * 1000 / speedup for t in w.starts_s], abs=1e-3)
    late_ms = [(r.sent_ns - r.due_ns) / 1e6 for r in driven.records]
    assert min(late_ms) >= 0
    assert of_the_best(late_ms) < 20  # a machine that others use keeps some of them waiting
    # By the server's own clock: what lies apart in the trace arrives in this order, with these gaps.
    arrived_ms = sorted(entry[0] / 1e6 for entry in engine.log()["streams"])
    errors = [
        abs((arrived_ms[i] - arrived_ms[0]) - (due_ms[i] - due_ms[0]))
        for i in range(len(due_ms))
    ]
    assert of_the_best(errors) < 50


def of_the_best(errors: list[float]) -> float:
    """Return the largest of the smallest tenth."""
    return sorted(errors)[len(errors) // 10]


def test_sent_prompts_are_the_trace_s(fake: StartFake) -> None:
    w = traced("bailian", output_len=2)
    engine = fake(bodies=True)
    drive(
        engine.base_url,
        w.requests,
        LoadSpec(arrivals="recorded", speedup=1000),
        starts_s=w.starts_s,
    )
    assert {body["prompt"] for body in engine.log()["bodies"]} == {
        r.prompt for r in w.requests
    }


def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    try:
        code: Any = main(["bench", "serve", "--runs", str(tmp_path / "runs"), *words])
    except SystemExit as e:
        code = e.code
    return (code, *capsys.readouterr())


def test_the_command_reports_how_late_the_replay_was(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--base-url",
        fake(first_ms=1, gap_ms=1).base_url,
        "--dataset-name",
        "mooncake",
    ]
    words += [
        "--dataset-path",
        str(FILES["mooncake"]),
        "--speedup",
        "20",
        "--output-len",
        "2",
    ]
    code, out, err = run(tmp_path, capsys, *words, "--json")
    result = json.loads(out)
    replay = result["dyno"]["replay"]
    assert code == 0 and result["num_prompts"] == result["completed"] == 60
    assert replay["speedup"] == 20 and 0 <= replay["late_p99_ms"] <= replay["late_max_ms"]
    assert replay["recorded_rps"] == pytest.approx(59 / (9.162 / 20), rel=1e-3)
    # The first and the last may each be late, on a busy machine by much.
    span_s, late_s = 9.162 / 20, replay["late_max_ms"] / 1000
    assert 59 / (span_s + late_s) <= 1.001 * replay["sent_rps"]
    assert replay["sent_rps"] * (span_s - late_s) <= 1.001 * 59
    assert "Generating all prompts (mooncake)" in err
    _, out, _ = run(tmp_path, capsys, *words, "--num-prompts", "5")
    assert (
        "Request rate, recorded / sent (req/s):" in out
        and "Replay delay, mean / p99 / max (ms):" in out
    )


# slow
@pytest.mark.parametrize(
    "name", ["mooncake", pytest.param("azure", marks=pytest.mark.engines)]
)
def test_a_replay_that_is_offered_and_not_served_says_both_rates_and_has_no_steady_window(
    name: str, fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--dataset-name",
        name,
        "--dataset-path",
        str(FILES[name]),
        "--output-len",
        "4",
        "--no-correctness-check",
        *("--tokenizer", str(TOKENIZER), "--save-result"),
        *("--result-dir", str(tmp_path), "--result-filename", "r.json"),
    ]
    # 60 requests in 0.31 s, or 100 in 1.4, to a server that needs 24 ms for each.
    slow = ["--base-url", fake(first_ms=12, gap_ms=4, slots=1).base_url, "--speedup", "30"]
    code, out, _ = run(tmp_path, capsys, *words, *slow)
    offered = {"mooncake": "193.2", "azure": "69.58"}[name]
    text = " ".join(out.split())
    assert code == 0 and "Verdict: doubtful" in text and "Steady window" not in text
    assert re.search(
        rf"load.rate_not_reached: {offered} requests/s offered, [\d.]+ served\. The last request was due",
        text,
    )
    assert "statistics.ramp_and_drain" not in text
    assert json.loads((tmp_path / "r.json").read_text())["dyno"]["steady"] is None


def test_a_cap_that_delays_a_replay_is_a_finding(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--base-url",
        fake(first_ms=40, gap_ms=1).base_url,
        "--dataset-name",
        "azure",
        "--speedup",
        "100",
    ]
    words += [
        "--dataset-path",
        str(FILES["azure"]),
        "--output-len",
        "2",
        "--max-concurrency",
        "1",
        *("--num-prompts", "40", "--no-correctness-check", "--tokenizer", str(TOKENIZER)),
    ]
    code, out, _ = run(tmp_path, capsys, *words)
    assert (
        code == 0
        and "load.replay_late" in out
        and "with at most 1 in flight" in " ".join(out.split())
    )


def test_a_rate_replaces_the_recorded_times(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--base-url",
        fake(first_ms=1, gap_ms=1).base_url,
        "--dataset-name",
        "burstgpt",
        "--json",
    ]
    words += ["--dataset-path", str(FILES["burstgpt"]), "--output-len", "2"]
    for more in (
        ["--request-rate", "100"],
        ["--no-self-timed"],
        ["--no-self-timed", "--max-concurrency", "1"],
    ):
        code, out, _ = run(tmp_path, capsys, *words, *more)
        result = json.loads(out)
        assert code == 0 and result["completed"] == 2 and "replay" not in result["dyno"]
        assert result["duration"] < 2  # the trace has 3 s


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--dataset-name random --trace-start 3",
            "--trace-start is for --dataset-name mooncake or",
        ),
        (
            "--dataset-name random --no-self-timed",
            "--self-timed is for datasets with times",
        ),
        ("--dataset-name random --speedup 2", "--speedup needs recorded times"),
        (
            "--dataset-name azure --timed-trace-chunk-hash-size 4",
            "is for --dataset-name timed_trace, but this is azure",
        ),
        (
            "--dataset-name azure --self-timed --request-rate 3",
            "--request-rate can't be combined with --self-timed",
        ),
        (
            "--dataset-name azure --request-rate 3 --speedup 2",
            "--speedup needs recorded times",
        ),
        ("--dataset-name azure --speedup 0", "--speedup must be above 0"),
    ],
)
def test_flags_that_contradict_are_refused(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = [] if "random" in words else ["--dataset-path", str(FILES["azure"])]
    code, _, err = run(tmp_path, capsys, *words.split(), *path)
    assert code == 2 and said in err


def test_an_absurd_speedup_and_a_short_context_are_refused_with_a_way_out(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--base-url", fake(max_model_len=2048).base_url]
    azure = [*url, "--dataset-name", "azure", "--dataset-path", str(FILES["azure"])]
    code, _, err = run(tmp_path, capsys, *azure, "--speedup", "1000000")
    assert code == 2 and "A speedup of 1e+06 makes" in err
    mooncake = [
        *url,
        "--dataset-name",
        "mooncake",
        "--dataset-path",
        str(FILES["mooncake"]),
        "--speedup",
        "100",
    ]
    code, _, err = run(tmp_path, capsys, *mooncake)
    assert code == 2 and "--trace-max-tokens 2048 skips them" in err
    scale = err.split("--trace-length-scale ")[1].split()[0]
    code, _, err = run(tmp_path, capsys, *mooncake, "--trace-length-scale", scale)
    assert code == 0, err


STUDY = """
[engines.a]
kind = "fake"
[workloads.w]
dataset = "mooncake"
path = "trace.jsonl"
[loads.c]
"""


def study(text: str) -> Study:
    return read(text, Path("some.toml"), known(), None)


def test_a_study_replays_a_trace_at_several_speeds() -> None:
    s = study(STUDY + "speedup = [1, 4]\n")
    loads = sorted((p.trial.load for p in s.trials), key=lambda load: load.speedup)
    assert [(load.arrivals, load.speedup) for load in loads] == [
        ("recorded", 1),
        ("recorded", 4),
    ]
    assert [load.words for load in loads] == [
        f"recorded times at {x}× speed" for x in (1, 4)
    ]
    assert [load.slug for load in loads] == ["x1", "x4"]
    assert all(p.trial.workload.num_prompts == 0 and p.trial.ignore_eos for p in s.trials)
    [capped] = study(STUDY + 'arrivals = "recorded"\nmax_concurrency = 8\n').trials
    assert capped.trial.load.arrivals == "recorded" and capped.trial.load.slug == "x1c8"
    [rated] = study(STUDY + "request_rate_rps = 3\n").trials
    assert rated.trial.load.arrivals is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            STUDY + 'arrivals = "recorded"\nrequest_rate_rps = 3\n',
            "can't be combined with arrivals",
        ),
        (
            STUDY.replace('path = "trace.jsonl"\n', ""),
            "path is missing: mooncake is read from a file.",
        ),
    ],
)
def test_a_study_s_mistakes_about_traces_are_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        study(text)


def test_traces_are_datasets_with_formats() -> None:
    assert {name for name, dataset in DATASETS.items() if dataset.traits.trace} == {
        *FORMATS,
        "timed_trace",
    }
    requests = traced("bailian").requests
    assert all(isinstance(r, Turn) and r.session == i for i, r in enumerate(requests))
    assert all(
        a.start_s <= b.start_s
        for a, b in pairwise(r for r in requests if isinstance(r, Turn))
    )  # type: ignore[operator]
