"""`dyno sql` over real folders: what the tables hold, what a query may not do, and how answers are printed."""

import csv
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from dyno.cli.main import main
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.facts.engine import EngineFacts, EngineSpec
from dyno.facts.price import Price
from dyno.facts.record import Record
from dyno.facts.rig import Accelerator
from dyno.facts.study import Place, PlannedTrial, Study
from dyno.facts.summary import Summary
from dyno.measure import timing
from dyno.report.result_json import build
from dyno.store import sql
from dyno.store.rows import read_row
from dyno.store.run import Run
from dyno.store.sql import TABLES, RunTables
from dyno.store.study import Failure, StudyFolder, write_failure
from dyno.units import NS_PER_MS
from matrix import sampled

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    with Fake.start(
        FakeSpec(first_ms=2, gap_ms=1, faults={"500": 5}), folder / "log"
    ) as fake:
        words = [
            "bench",
            "serve",
            "--base-url",
            fake.base_url,
            "--num-prompts",
            "12",
            "--max-concurrency",
            "3",
        ]
        words += [
            "--random-input-len",
            "20",
            "--random-output-len",
            "4",
            "--metric-percentiles",
            "50,99,99.9",
        ]
        assert main([*words, "--disable-tqdm", "--runs", str(folder / "runs")]) == 0
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture
def home(tmp_path: Path, measured: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A single run with a space in its name, and a study with one trial done and one failed."""
    shutil.copytree(measured, tmp_path / "runs/a [run] it's")
    manifest = Run(measured).manifest()
    price = Price(accelerator_hour=2.5, source="an invoice")
    settings = {"engine.tensor_parallel": 4, "load.max_concurrency": 3}
    done = Place("tp", "id1", "fast", "short", "closed", settings, 2, 3, "big", price)
    lost = Place("tp", "id2", "slow", "short", "closed")
    study = StudyFolder(tmp_path / "runs/tp")
    study.write(
        Study("tp", [PlannedTrial(place, manifest.trial) for place in (done, lost)]), ""
    )
    run = study.run(done)
    shutil.copytree(measured, run.path)
    trial = msgspec.structs.replace(
        manifest.trial, engine=EngineSpec("vllm", tensor_parallel=4, quantization="fp8")
    )
    rig = msgspec.structs.replace(
        manifest.rig, accelerators=[Accelerator(i, "H200", "nvidia") for i in range(4)]
    )
    run.write_manifest(msgspec.structs.replace(manifest, place=done, trial=trial, rig=rig))
    run.write_engine(EngineFacts("vllm", "0.32.0", [], ready_s=12.5))
    sample = {
        "type": "sample",
        "at_ns": 5,
        "source": "accelerator",
        "index": 1,
        "values": {"power_w": 312.5, "use": 9},
    }
    lines = [
        {"type": "sampler", "at_ns": 1, "interval_s": 0.2},
        sample,
        {**sample, "at_ns": 6, "throttle": ["heat"]},
    ]
    (run.path / "telemetry.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    write_failure(
        study.fresh(lost), Failure("out of memory", 2, "2026-01-01T00:00:00+00:00")
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ask(home: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def call(query: str) -> list[dict[str, Any]]:
        assert main(["sql", query, "--json"]) == 0
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    return call


# ---- what the tables hold ----


def test_a_trial_has_its_place_its_settings_and_its_rig(ask: Ask) -> None:
    (row, other) = ask("select * from trials where study = 'tp' order by state")
    assert (other["state"], other["engine"], other["completed"]) == (
        "failed",
        "slow",
        None,
    ), "planned, and not measured"
    assert row["engine"] == "fast"
    reported = [
        row[name]
        for name in (
            "engine_kind",
            "engine_version",
            "quantization",
            "engine_tensor_parallel",
            "ready_s",
        )
    ]
    assert reported == ["vllm", "0.32.0", "fp8", 4, 12.5]
    assert [row[name] for name in ("workload", "load", "repeat", "repeats", "rig")] == [
        "short",
        "closed",
        2,
        3,
        "big",
    ]
    assert [
        row[name] for name in ("accelerator", "accelerators", "price_accelerator_hour")
    ] == ["H200", 4, 2.5]
    assert [
        row[name] for name in ("workload_input_len", "load_max_concurrency", "state")
    ] == [20, 3, "done"]
    assert json.loads(row["settings"])["engine.tensor_parallel"] == 4
    assert ask(
        "select settings->>'engine.tensor_parallel' as tp from trials where engine = 'fast'"
    ) == [{"tp": "4"}]


def test_the_numbers_are_those_of_the_result_file_by_the_same_names(
    ask: Ask, home: Path
) -> None:
    (row,) = ask("select * from trials where study is null")
    assert row["run"] == "runs/a [run] it's"
    run = Run(Path(row["run"]))
    m = run.manifest()
    reported = build(run.result(), m, read_row(run))
    shared = {name: value for name, value in reported.items() if name in row}
    assert {
        "completed",
        "failed",
        "output_throughput",
        "mean_ttft_ms",
        "p99_tpot_ms",
        "p99.9_itl_ms",
    } <= set(shared)
    assert {name: row[name] for name in shared} == shared
    assert row["client_kernel_stamps"] is True
    assert row["verdict"] == run.result().verdict


def test_requests_are_the_records_with_the_latencies_of_the_method(
    ask: Ask, home: Path
) -> None:
    run = home / "runs/a [run] it's"
    odd = [
        # the first was not seen
        Record(100, 5, 10, 99, 3, 4, chunk_ns=[20, 30, 40], unseen=[0], output_tokens=3),
        Record(101, 5, 10, 99, 3, 4, chunk_ns=[20, 30, 40], unseen=[1], output_tokens=3),
        Record(
            105,
            5,
            10,
            99,
            3,
            4,
            chunk_ns=[20, 30],
            unseen=[1],
            unseen_since_ns=[22],
            output_tokens=3,
        ),
        Record(102, 5, 10, 99, 3, 4, chunk_ns=[20], output_tokens=1),
        Record(103, 5, 10, 99, 3, 4, error="http_500", error_detail="said 'no'\nand more"),
        Record(
            108,
            5,
            10,
            99,
            3,
            4,
            chunk_ns=[20, 30, 40],
            reasoning=True,
            answer_from=1,
            reasoning_chunks=1,
        ),
        Record(
            106,
            5,
            10,
            99,
            3,
            4,
            chunk_ns=[20, 30],
            reasoning=True,
            answer_from=1,
            unseen=[1],
        ),
        Record(107, 5, 10, 99, 3, 4, chunk_ns=[20], reasoning=True),
        Record(104, 5, 10, 99, 3, 4, chunk_ns=[20, 30], chunk_tokens=[1, 1]),
        Record(109, 5, 10, 99, 3, 4, chunk_ns=[20, 30], output_tokens=8, first_tokens=4),
        Record(110, 5, 10, 99, 3, 4, chunk_ns=[20, 30], output_tokens=8, leading_chunks=1),
        Record(111, 5, 10, 99, 3, 4, chunk_ns=[20, 30], output_tokens=3, leading_chunks=1),
        Record(112, 5, 10, 99, 3, 4, chunk_ns=[20], output_tokens=8, first_tokens=8),
    ]
    with (run / "records.jsonl").open("ab") as file:
        file.write(b"".join(msgspec.json.encode(r) + b"\n" for r in odd))
    rows = {
        row["index"]: row for row in ask("select * from requests where run like '%it''s'")
    }
    records = list(Run(run).records())
    assert len(rows) == len(records) == 12 + 13
    functions = (
        timing.ttft_ns,
        timing.ttfo_ns,
        timing.tpot_ns,
        timing.own_tpot_ns,
        timing.e2el_ns,
        timing.queue_ns,
    )
    for record in records:
        row = rows[record.index]
        lists = {"calls": json.loads(row["calls"])}  # of structs: a text of JSON
        assert {
            name: row[name] for name in Record.__struct_fields__
        } | lists == msgspec.to_builtins(record)
        names = ("ttft_ms", "ttfo_ms", "tpot_ms", "own_tpot_ms", "e2el_ms", "queue_ms")
        for name, of in zip(names, functions, strict=True):
            true = of(record)
            if isinstance(true, timing.Span):
                true = true.low if true.known else None
            assert row[name] == (
                None if true is None else pytest.approx(true / NS_PER_MS)
            ), (name, record)


def test_findings_failures_and_telemetry_join_by_run(ask: Ask) -> None:
    codes = ask(
        "select distinct code from findings join trials using (run) where study = 'tp'"
    )
    assert {"code": "requests.failed"} in codes
    (failure,) = ask("from failures")
    assert (failure["study"], failure["text"], failure["attempts"]) == (
        "tp",
        "out of memory",
        2,
    )
    rows = ask(
        "select t.*, engine from telemetry t join trials using (run) where name = 'power_w' order by at_ns"
    )
    assert [row["throttle"] for row in rows] == [None, ["heat"]]
    assert [rows[0][name] for name in ("at_ns", "source", "index", "value", "engine")] == [
        5, "accelerator", 1, 312.5, "fast",
    ]  # fmt: skip
    assert ask("select count(*) as n from telemetry where at_ns < 1000") == [{"n": 4}]


def test_ctrl_c_ends_a_query_at_once(home: Path) -> None:
    endless = "select count(*) from range(10000000000) a, range(100) b where a.range + b.range <> 3"
    process = subprocess.Popen(
        [sys.executable, "-m", "dyno", "sql", endless], stderr=subprocess.PIPE
    )
    while sum(psutil.Process(process.pid).cpu_times()[:2]) < 1.2:  # well past its start
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (-signal.SIGINT, b"")


def test_what_a_result_has_besides_its_summary_is_flat_too(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Host(msgspec.Struct):
        cores: float | None = None

    class More(msgspec.Struct):
        energy_j: float | None
        host: Host | None
        parts: list[Host]

    class Result(msgspec.Struct):
        summary: Summary
        telemetry: More | None = None

    monkeypatch.setattr("dyno.store.sql.Result", Result)
    path = home / "runs/a [run] it's/summary.json"
    more = {"energy_j": 5.5, "host": {"cores": 1.5}, "parts": [{"cores": 1}]}
    path.write_text(json.dumps({**json.loads(path.read_text()), "telemetry": more}))
    rows = ask(
        "select telemetry_energy_j, telemetry_host_cores, telemetry_parts from trials order by run"
    )
    assert list(rows[0].values()) == [5.5, 1.5, '[{"cores":1}]']
    assert set(rows[1].values()) == {None}


def test_the_rooflines_shares_are_columns(ask: Ask, home: Path) -> None:
    path = home / "runs/a [run] it's/summary.json"
    shares = [
        {"what": "decode", "bandwidth": 0.64, "arithmetic": 0.003},
        {"what": "prefill", "arithmetic": 0.4},
    ]
    peaks = {"name": "NVIDIA H200", "count": 1, "bandwidth": 4.8e12}
    path.write_text(
        json.dumps(
            {**json.loads(path.read_text()), "roofline": {"peaks": peaks, "shares": shares}}
        )
    )
    rows = ask(
        "select decode_bandwidth_share, decode_arithmetic_share, prefill_arithmetic_share, whole_arithmetic_share, "
        "roofline_peaks_name from trials order by run"
    )
    assert list(rows[0].values()) == [0.64, 0.003, 0.4, None, "NVIDIA H200"]
    assert set(rows[1].values()) == {None}


def test_counting_trials_reads_no_record(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in home.glob("runs/**/records.jsonl"):
        path.write_text("{ not read")
    assert main(["sql", "select count(*) from trials"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["sql", "select count(*) from requests"]) == 0
    assert capsys.readouterr().err.count("is damaged: its last line is cut") == 2


def test_no_runs_are_empty_tables_with_all_their_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in TABLES:
        assert (
            main(
                [
                    "sql",
                    f"select * from {table}",
                    "--json",
                    "--runs",
                    str(tmp_path / "absent"),
                ]
            )
            == 0
        )
        reported = capsys.readouterr()
        assert (reported.out, "no folder" in reported.err) == ("[]\n", True)
    assert (
        main(
            [
                "sql",
                "select avg(p99_ttft_ms), max(output_throughput) from trials",
                "--runs",
                str(tmp_path),
            ]
        )
        == 0
    )


def test_broken_files_are_reported_and_the_rest_is_there(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in (
        ("half", "{ half"),
        ("list", "[1, 2]"),
        ("odd", '{"started": 5, "rig": 7, "place": {"repeat": "x"}}'),
    ):
        (home / "runs" / name).mkdir()
        (home / "runs" / name / "trial.json").write_text(data)
    assert main(["sql", "select count(*) from trials", "--csv"]) == 0
    reported = capsys.readouterr()
    assert reported.out.splitlines()[1] == "4"
    assert (
        "left out: runs/half/trial.json" in reported.err
        and "left out: runs/list/trial.json" in reported.err
    )


def test_without_a_query_tables_and_columns_are_reported(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql"]) == 0
    out = capsys.readouterr().out
    for words in (*TABLES, "p99_ttft_ms", "chunk_ns", 'dyno sql "select'):
        assert words in out
    assert not [row for row in RunTables(home / "runs").columns() if not row[3]], (
        "a column without a word about it"
    )


# ---- how it is printed ----


def test_the_same_answer_in_four_forms(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select run, 1234567.891 as speed, null as nothing, 'a|b' as text from trials order by run limit 1"

    def say(*how: str) -> str:
        assert main(["sql", query, *how]) == 0
        return capsys.readouterr().out

    assert say().splitlines() == [
        "run                    speed  nothing  text",
        "runs/a [run] it's  1,234,568           a|b",
    ]
    assert list(csv.reader(io.StringIO(say("--csv"))))[1] == [
        "runs/a [run] it's",
        "1234567.891",
        "",
        "a|b",
    ]
    row = {"run": "runs/a [run] it's", "speed": 1234567.891, "nothing": None, "text": "a|b"}
    assert json.loads(say("--json")) == [row]
    assert say("--markdown").splitlines()[1:] == [
        "| --- | ---: | --- | --- |", "| runs/a [run] it's | 1,234,568 |  | a\\|b |",
    ]  # fmt: skip


def test_lists_are_json_and_not_what_python_prints(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select [[5.25, 1234.5678], null] as bounds, {'a': 1.5} as parts"

    def say(*how: str) -> str:
        assert main(["sql", query, *how]) == 0
        return capsys.readouterr().out

    assert say().splitlines()[1].split() == [
        "[[5.250,",
        "1,235],",
        "null]",
        "{a:",
        "1.500}",
    ]
    [cells] = list(csv.reader(io.StringIO(say("--csv"))))[1:]
    assert [json.loads(cell) for cell in cells] == [[[5.25, 1234.5678], None], {"a": 1.5}]


def test_a_query_from_a_file_or_from_standard_input(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "q.sql").write_text("-- how many\nselect count(*) as n from trials;\n")
    assert main(["sql", "--file", "q.sql", "--csv"]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("select count(*) as n from trials"))
    assert main(["sql", "-", "--csv"]) == 0
    assert capsys.readouterr().out == "n\n3\n" * 2
    assert main(["sql", "--file", "absent.sql"]) == 2
    assert main(["sql", "select 1", "--file", "q.sql"]) == 2


# ---- what a query can't do ----


@pytest.mark.parametrize(
    "query",
    [
        "selec 1",
        "",
        "select nonsense from trials",
        "select 1; select 2",
        "copy trials to 'stolen.csv'",
        "copy (select 1) to '{records}' (use_tmp_file false)",
        "explain analyze copy (select 1) to '{records}' (use_tmp_file false)",
        "create table t as select 1",
        "drop table trials",
        "attach 'new.db'",
        "export database 'out'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set allowed_directories = ['/']",
        "pragma database_list",
        "from '/etc/passwd'",
        "from read_text('/etc/passwd')",
        "from read_csv('q.sql')",
        "from glob('/etc/*')",
        "from 'https://example.com/a.csv'",
        "from read_json('{trial}')",
        "select 1 / 'x'::int from trials",
    ],
)
def test_a_mistake_or_a_mischief_is_refused_in_words(
    home: Path, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    (home / "q.sql").write_text("a,b\n")
    records = next(home.glob("runs/tp/trials/*/records.jsonl"))
    before = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    code = main(
        ["sql", query.format(records=records, trial=records.with_name("trial.json"))]
    )
    reported = capsys.readouterr()
    assert (code, reported.out) == (2, ""), reported
    assert reported.err.startswith("dyno: ")
    assert {p: p.read_bytes() for p in home.rglob("*") if p.is_file()} == before


def test_the_names_of_a_joins_columns_stay_apart(ask: Ask) -> None:
    (row,) = ask(
        "select a.run, b.run from trials a join trials b using (run) where a.study = 'tp' and a.state = 'done'"
    )
    assert row["run"] == row["run_1"]


def test_hundreds_of_trials_are_asked_within_seconds(home: Path, measured: Path) -> None:
    manifest, result = (
        (measured / "trial.json").read_bytes(),
        (measured / "summary.json").read_bytes(),
    )
    for i in range(300):
        folder = home / f"many/{i}"
        folder.mkdir(parents=True)
        (folder / "trial.json").write_bytes(manifest)
        (folder / "summary.json").write_bytes(result)
    before = time.process_time()
    assert list(RunTables(home / "many").ask("select count(*) from trials").rows) == [
        (300,)
    ]
    assert time.process_time() - before < 3


# ---- long files and hostile ones ----


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    for i in range(10):
        (tmp_path / f"r{i}").mkdir()
        (tmp_path / f"r{i}/trial.json").write_text(
            '{"dyno": "0", "started": "2026-01-01T00:00:00"}'
        )
        lines = [
            msgspec.json.encode(Record(k, 1, 2, 9, 3, 4, chunk_ns=[5, 6], output_tokens=2))
            for k in range(20)
        ]
        (tmp_path / f"r{i}/records.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return tmp_path


def test_requests_of_small_runs_fit_into_a_small_memory_whatever_the_threads(
    ten: Path,
) -> None:
    for threads, memory in ((8, "1GB"), (64, "1GB"), (64, "200MB")):
        tables = RunTables(ten)
        tables._db.execute(f"SET threads = {threads}")
        tables._db.execute(f"SET memory_limit = '{memory}'")
        assert list(tables.ask("select count(*), max(ttft_ms) from requests").rows) == [
            (200, 3e-6)
        ]


def test_a_record_of_many_megabytes_is_read(ten: Path) -> None:
    long = Record(0, 1, 2, 9, 3, 4, text="x" * (40 << 20))
    with (ten / "r3/records.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(long) + b"\n")
    assert list(RunTables(ten).ask("select max(length(text)) from requests").rows) == [
        (40 << 20,)
    ]


@pytest.mark.parametrize(
    "sizes", [[1], [1, 5, 1, 1, 9, 2], [9, 1, 1, 1], [1] * 50, [3, 3, 3, 8]]
)
@pytest.mark.parametrize("end", ["\n", ""])
def test_the_longest_line_is_found_without_reading_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], end: str
) -> None:
    monkeypatch.setattr(sql, "_OBJECT", 4)
    (tmp_path / "a").write_text("\n".join("x" * n for n in sizes) + end)
    found = sql._longest_line(tmp_path / "a")
    assert found >= min(max(sizes), 4)
    assert max(sizes) <= found <= max(4, max(sizes) + 1)


def test_a_file_that_is_damaged_is_left_out_and_the_others_answer(ten: Path) -> None:
    (ten / "r1/records.jsonl").write_bytes(b'{"index": 1}\n{"ind')
    (ten / "r2/records.jsonl").write_bytes(bytes(100))
    (ten / "r3/records.jsonl").unlink()
    (ten / "r3/records.jsonl").mkdir()
    (ten / "r4/telemetry.jsonl").write_text(
        '{"at_ns": 1, "source": "host", "values": {"a": 1}}\n{"at_ns": 2, "val'
    )
    tables = RunTables(ten)
    assert list(tables.ask("select count(*) from requests").rows) == [(140,)]
    assert [
        str(ten / name / "records.jsonl") in " ".join(tables.unreadable)
        for name in ("r1", "r2", "r3")
    ] == [True] * 3
    assert len(tables.unreadable) == 3
    assert list(RunTables(ten).ask("select count(*) from telemetry").rows) == [(1,)]


@sampled(
    value=[
        "now()",
        "[now()]",
        "{'a': now()}",
        "map {1: now()}",
        "timestamptz '2026-01-02 03:04:05+00'",
    ],
    how=[[], ["--csv"], ["--json"], ["--markdown"]],
)
def test_times_with_a_zone_need_no_other_package(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    how: list[str],
) -> None:
    monkeypatch.setitem(sys.modules, "pytz", None)
    query = f"select 1 as a, {value} as t, 2 as a from range(3) order by 1 -- a remark\n;"
    assert main(["sql", query, *how, "--runs", str(tmp_path)]) == 0
    reported = capsys.readouterr().out
    assert reported.count("2026" if "timestamptz" in value else "20") >= 3
    assert reported.count(":") >= 6
    if how == ["--json"]:
        assert [list(row) for row in json.loads(reported)] == [["a", "t", "a_1"]] * 3


def test_a_latency_that_is_known_within_bounds_is_null_beside_its_bounds(
    measured: Path, tmp_path: Path
) -> None:
    shutil.copytree(measured, tmp_path / "runs" / "late")
    path = tmp_path / "runs" / "late" / "summary.json"
    stored = json.loads(path.read_text())
    ttft = stored["summary"]["latencies"]["ttft"]
    ttft["median"], ttft["percentiles"]["99"] = None, None
    ttft["bounds"] = {"median": [1.5, 2.5], "99": [4.0, 8.0]}
    path.write_text(json.dumps(stored))
    tables = RunTables(tmp_path / "runs")
    ends = "[latency_bounds->'p99_ttft_ms'->>0, latency_bounds->'median_ttft_ms'->>1]"
    answer = tables.ask(
        f"select p99_ttft_ms, count(p99_ttft_ms) over (), {ends} from trials"
    )
    assert list(answer.rows) == [(None, 0, ["4.0", "2.5"])]
