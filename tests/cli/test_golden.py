"""What a user sees, held against golden files (tests/golden/cli): see goldens.py."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from dyno.cli.main import parser
from goldens import (
    IMPORTS,
    KILLED,
    LATENCY,
    MICRO,
    PUBLISHED,
    RATE,
    SERVE,
    STUDIES,
    THROUGHPUT,
    Dyno,
    check,
    dyno,
    normal,
    page,
    without_usage,
)  # fmt: skip

__all__ = ["dyno"]  # the fixture

SINGLE = {
    "serve": SERVE,
    "rate": RATE,
    "throughput": THROUGHPUT,
    "latency": LATENCY,
    "micro": MICRO,
}
TRIAL = {
    "trial": "246f76502d",
    "faulty": "8fc5e48e13",
    "failed": "7a09547a30",
    "study": "two",
    "broken": "broken",
}


# The largest takes as long as all others.
SAMPLED = [
    pytest.param(folder, marks=pytest.mark.nightly)
    if folder.endswith("h100-mi300x-llama-405b")
    else folder
    for folder in PUBLISHED
]


# ---- help ----


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="argparse prints flags in another way"
)
def test_help(dyno: Dyno) -> None:
    commands = [tuple(p.prog.split()[1:]) for p in parser().walk()]
    assert len(commands) > 20
    for words in commands:
        check(f"help/{'-'.join(words) or 'dyno'}.txt", dyno.lines(*words, "--help"))


def test_version(dyno: Dyno) -> None:
    assert dyno.lines("--version") == "$ dyno --version\ndyno VERSION\n--- exit code 0\n"


# ---- runs ----


def test_runs_list(dyno: Dyno) -> None:
    check("runs/list.txt", dyno.transcript([
        "runs", "runs list", "runs list --all", "runs list two", "runs list runs/broken", "runs list --tag golden",
        "runs list --json", "runs list two --json", "runs --runs nowhere", "runs list runs/two/trials",
    ]))  # fmt: skip


@pytest.mark.parametrize("name", [*SINGLE, *TRIAL])
def test_runs_show(dyno: Dyno, name: str) -> None:
    run = {**SINGLE, **TRIAL}[name]
    check(f"runs/show-{name}.txt", dyno.transcript([f"runs show {run}"]))
    check(f"runs/show-{name}.json.txt", dyno.transcript([f"runs show {run} --json"]))


def test_runs_show_decodes_a_run_that_was_cut_off(dyno: Dyno) -> None:
    check("runs/show-killed.txt", dyno.transcript([f"runs show {KILLED}", "runs list"]))


def test_runs_show_of_other_tools_files(dyno: Dyno) -> None:
    files = [
        f"imports/{name}"
        for name in (
            "vllm-0.24-serve-c16.json",
            "guidellm-0.8.1.json",
            "qps_comparison.csv",
        )
    ]
    check("runs/show-files.txt", dyno.transcript([["runs", "show", f] for f in files]))


def test_runs_tag_delete_and_pack(dyno: Dyno) -> None:
    check("runs/tag-delete-pack.txt", dyno.transcript([
        f"runs tag {SERVE} two --add a b --remove golden", "runs list --tag a", f"runs tag {SERVE}",
        f"runs delete {RATE}", f"runs delete {RATE} --yes", "runs pack two -o two.tar.zst", "runs delete two --yes",
        "runs list", "runs unpack two.tar.zst", "runs list", "runs unpack two.tar.zst",
    ], edit=lambda s: re.sub(r"\b\d+(\.\d)? [KM]iB\b", "SIZE", s)))  # fmt: skip


# ---- sql ----

QUERIES = [
    "select run, state, kind, engine, load_max_concurrency, output_throughput, verdict from trials order by all",
    "select engine, load_max_concurrency, avg(output_throughput) from trials group by all order by all",
    "select run, count(*), min(ttft_ms), max(ttft_ms) from requests group by run order by run",
    "select table_name, column_name, data_type from information_schema.columns order by table_name, ordinal_position",
    "select run, level, count(*) from findings group by all order by all",
]


def test_sql_reports_tables_and_columns(dyno: Dyno) -> None:
    check("sql/tables.txt", dyno.transcript(["sql", "sql --json"]))


def test_sql(dyno: Dyno) -> None:
    check("sql/queries.txt", dyno.transcript([["sql", q] for q in QUERIES]))


def test_sql_formats(dyno: Dyno) -> None:
    check(
        "sql/formats.txt",
        dyno.transcript(
            [["sql", QUERIES[0], f"--{f}"] for f in ("csv", "json", "markdown")]
        ),
    )


def test_sql_of_every_table(dyno: Dyno) -> None:
    code, out, _ = dyno(
        "sql",
        "select distinct table_name from information_schema.columns order by 1",
        "--csv",
    )
    assert code == 0
    names = out.split()[1:]
    assert {"trials", "requests"} <= set(names)
    check(
        "sql/rows.txt",
        dyno.transcript(
            [["sql", f"select * from {n} order by all limit 2", "--json"] for n in names]
        ),
    )


# ---- compare ----

PAIRS = {
    "settings": "two:quick two:slow", "studies": "two broken", "runs": f"{SERVE} {RATE}", "same": "two two",
    "offline": f"{THROUGHPUT} {LATENCY}", "micro": f"6fad {MICRO}", "micro-threads": "94b6 648d",
    "files": "imports/vllm-0.24-serve-c16.json imports/vllm-0.6-serve-16qps.json",
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_compare(dyno: Dyno, name: str) -> None:
    pair = PAIRS[name]
    forms = ["", "--markdown", "--json", "--anyway"]
    check(f"compare/{name}.txt", dyno.transcript([f"compare {pair} {f}" for f in forms]))


def test_compare_gates(dyno: Dyno) -> None:
    gates = [
        "'p99_ttft_ms<5%'",
        "'p99_ttft_ms<200' 'failed<=0'",
        "'output_throughput>-5%' --strict",
        "'nothing<5%'",
    ]
    commands = [f"compare two:quick two:slow --gate {g}" for g in gates]
    commands += [
        "compare two:quick two:slow --metric p99_itl_ms mean_e2el_ms",
        "compare two:quick two:slow --details",
    ]
    check("compare/gates.txt", dyno.transcript(commands))


# ---- report ----

REPORTS = {
    "two": "two", "broken": "broken", "all": "runs", "offline": f"{THROUGHPUT} {LATENCY}",
    "micro": "301f 94b6 beaa 6fad 648d d438", "serve": SERVE,
    "files": "imports",
    "priced": "two --price machine=2 --energy-price 0.3 --target ttft:10 p99_tpot:2 --title 'Two settings'",
}  # fmt: skip
WHOLE = ("two", "offline", "micro")  # specs of charts are long


@pytest.mark.parametrize("name", REPORTS)
def test_report(dyno: Dyno, name: str) -> None:
    command = f"report {REPORTS[name]} -o r.md -o r.csv -o r.html"
    said = dyno.transcript([command])
    parts = [(dyno.here / f"r.{ending}").read_text() for ending in ("md", "csv")]
    check(f"report/{name}.txt", "\n".join([said, *(normal(p, dyno.here) for p in parts)]))
    check(
        f"report/{name}.html.txt",
        normal(page((dyno.here / "r.html").read_text(), name in WHOLE), dyno.here),
    )


@pytest.mark.parametrize("folder", SAMPLED)
def test_report_of_what_was_published(dyno: Dyno, folder: str) -> None:
    said = dyno.transcript(
        [f"report {folder} --prices published/prices.toml -o r.md -o r.csv -o r.html"]
    )
    parts = [(dyno.here / f"r.{ending}").read_text() for ending in ("md", "csv")]
    parts += [page((dyno.here / "r.html").read_text(), whole=False)]
    check(
        f"report/published-{Path(folder).name}.txt",
        "\n".join([said, *(normal(p, dyno.here) for p in parts)]),
    )


def test_report_lists_its_charts(dyno: Dyno) -> None:
    check("report/charts.txt", dyno.transcript(["report two --list-charts", f"report {THROUGHPUT} --list-charts",
        "report two --chart nothing -o x.svg", "report two --show statistic=nothing -o x.svg"]))  # fmt: skip


# ---- audit and import ----


@pytest.mark.parametrize("file", IMPORTS)
def test_audit_of_a_file(dyno: Dyno, file: str) -> None:
    check(
        f"audit/{Path(file).name}.txt",
        dyno.transcript([f"audit {file}", f"audit {file} --json"]),
    )


@pytest.mark.parametrize("folder", SAMPLED)
def test_audit_of_what_was_published(dyno: Dyno, folder: str) -> None:
    check(f"audit/published-{Path(folder).name}.txt", dyno.transcript([f"audit {folder}"]))
    check(
        f"audit/published-{Path(folder).name}.json.txt",
        dyno.transcript([f"audit {folder} --json"]),
    )


def test_audit_of_several_and_of_runs(dyno: Dyno) -> None:
    files = " ".join(IMPORTS)
    check("audit/several.txt", dyno.transcript([f"audit {files}", f"audit {files} --markdown",
        f"audit {files} --price 2.99 --price machine=12"]))  # fmt: skip
    check("audit/runs.txt", dyno.transcript(["audit two", "audit broken --json", f"audit {SERVE} {MICRO} --price 2",
        "audit runs"]))  # fmt: skip


def test_import(dyno: Dyno) -> None:
    files = " ".join(IMPORTS)
    tgi = "imports/result_tgi_QPS_high.csv"
    query = "select file, line, name, value, unit, definition from imported order by all limit 40"
    check("import/import.txt", dyno.transcript([f"import {files}", "runs list", f"import {files}",
        f"import {tgi} --set engine=tgi --set accelerator=MI300X --set accelerators=8 --no-text -o figures",
        ["sql", query]]))  # fmt: skip
    check("import/json.txt", dyno.transcript([f"import {tgi} --json"]))


# ---- studies ----


@pytest.mark.parametrize("study", [s for s in STUDIES if "demo" not in s])
def test_dry_run_of_shipped_studies(dyno: Dyno, study: str) -> None:
    check(f"studies/{Path(study).stem}.txt", dyno.transcript([f"run {study} --dry-run"]))


def test_dry_run_of_a_part(dyno: Dyno) -> None:
    name = "mi300x-llama70b-tp-fp8"
    check("studies/part.txt", dyno.transcript([f"run {name} --dry-run --only bf16 --limit 2",
        f"run {name} --dry-run --only nothing", f"run {name} --dry-run --set nothing=1",
        f"run {name} --dry-run --rig mi300x"]))  # fmt: skip


# ---- previews ----

PREVIEWS = [
    "bench serve --base-url http://127.0.0.1:9 --dry-run",
    "bench serve --engine vllm --model org/model --dry-run",
    "bench serve --engine vllm --model org/model --engine-image vllm/vllm-openai:v0.9 -tp 4 --dry-run",
    "bench serve --engine tgi --model org/model --engine-image tgi:3 --replicas 2 --devices 0 1 2 3 -tp 2 --dry-run",
    "bench serve --engine sglang --model org/model --engine-image sglang:1 --max-model-len 4096 --quantization fp8 "
    "--kv-cache-dtype fp8 --no-enable-prefix-caching --engine-args='--x 1' --dry-run",
    "bench throughput --model org/model --engine vllm --engine-image vllm/vllm-openai:v0.9 --dry-run",
    "bench latency --model org/model --engine transformers --dry-run",
    "bench micro --engine vllm -m org/model --engine-image vllm/vllm-openai:v0.9 -p 16 -n 4 --dry-run",
    "engines list",
    "engines list --json",
]


def test_previews(dyno: Dyno) -> None:
    check("previews.txt", dyno.transcript(PREVIEWS))


# ---- mistakes ----

URL = "--base-url http://127.0.0.1:9"
MISTAKES = {
    "words": [
        "", "nothing", "benhc serve", "bench", "bench srve", "runs shw", "--nothing", "runs list --nothing",
        f"bench serve {URL} --num-promts 3", f"bench serve {URL} --max_concurency=3", "report", "compare two",
        "engines", "engines start nothing", "engines install nothing", "engines remove nothing", "doctor --streams 0",
        "doctor --streams many", "demo extra", "help nothing", "--max-concurrency 3 bench serve",
        "bench serve --no-reranker", "doctor --engine vllm", "bench serve --backend vlm", "bench serve --num-prompts",
        "completion csh",
        "engines start fake --port 0", "engines start vllm", "run demo --only nothing", "run demo --new --extend",
        "bench serve --trust-remote-code --no-stream --duration 5", "bench serve --max-num-seqs 3",
    ],
    "runs": [
        "runs show nothing", "runs show runs", "runs show w-c", "runs show micro", "runs list nothing", "runs show",
        "runs delete nothing --yes", "runs tag two", "runs tag two --add 'two words'", "runs pack nothing -o x.tar.zst",
        "runs unpack nothing.tar.zst", "runs unpack studies/demo.toml", "sql 'select nothing from trials'",
        "sql 'select * from nothing'", "sql 'selekt'", "sql 'drop table trials'", "sql 'copy trials to x.csv'",
        ["sql", "select * from 'studies/demo.toml'"], "sql --file nothing.sql", "sql --csv --json x",
        "report nothing", "report two -o x.pdf", "report two -o nowhere/x.md", "report two --price x",
        "report two --price -1", "report two --prices nothing.toml", "report two --target ttft",
        "report two --target nothing:5", "report two --width 1 -o x.svg", "compare two nothing",
        "compare two:nothing two",
        "compare two two --metric nothing", "compare two two --gate nothing", "compare two two --gate 'p99_ttft_ms<x%'",
        "audit nothing", "audit studies/README.md", "audit studies/demo.toml", "audit imports --price x",
        "import nothing.json", "import studies/demo.toml", "import imports/qps_comparison.csv --set nothing",
        "import imports/qps_comparison.csv --set nothing=1", "import imports/qps_comparison.csv --set 99:rate=1",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(dyno: Dyno, name: str) -> None:
    check(f"mistakes/{name}.txt", dyno.transcript(MISTAKES[name], edit=without_usage))


STUDY = """
repeats = 2
[engines.quick]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
[workloads.w]
input_len = 16
output_len = 3
[loads.c]
max_concurrency = [1, 2]
requests_per_stream = 4
"""
WRONG = [
    ("repeats = 2", "repaets = 2"), ("repeats = 2", "repeats = 0"), ("repeats = 2", "repeats = 'two'"),
    ("repeats = 2", "repeats = "), ('kind = "fake"', 'kind = "fakee"'), ('kind = "fake"', ""),
    ("first_ms=2", "first=2"), ("input_len = 16", "input_length = 16"), ("input_len = 16", "input_len = -1"),
    ("input_len = 16", "input_len = 1.5"), ("input_len = 16", 'dataset = "nothing"'),
    ("input_len = 16", 'dataset = "sharegpt"\npath = "no.json"'), ("[workloads.w]", "[workload.w]"),
    ("[loads.c]", "[loads]"), ("max_concurrency = [1, 2]", "max_concurrency = [0]"),
    ("max_concurrency = [1, 2]", "max_concurrency = []"), ("max_concurrency = [1, 2]", "request_rate_rps = -1"),
    ("max_concurrency = [1, 2]", "max_concurrency = [1, 1]"), ("requests_per_stream = 4", 'zip = ["nothing"]'),
    ("requests_per_stream = 4", "num_prompts = [1, 2, 3]\nzip = ['max_concurrency', 'num_prompts']"),
    ("requests_per_stream = 4", "requests_per_stream = 4\n[trial]\npercentiles = [101]"),
    ("requests_per_stream = 4", "requests_per_stream = 4\n[trial]\nnothing = 1"),
    ("requests_per_stream = 4", "requests_per_stream = 4\n[rigs.r]\naccelerator = 'H100'"),
    ("requests_per_stream = 4", "kind = 'latency'"), ("requests_per_stream = 4", "duration_s = 'long'"),
]  # fmt: skip


def test_mistakes_in_a_study(dyno: Dyno) -> None:
    shown = []
    # the times of earlier runs hold on the machine that made them alone
    shutil.rmtree("runs")
    for good, bad in [("", ""), *WRONG]:
        (dyno.here / "s.toml").write_text(STUDY.replace(good, bad, 1))
        shown.append(f"# {good!r} is {bad!r}\n" + dyno.lines("run", "s.toml", "--dry-run"))
    (dyno.here / "s.toml").write_text(STUDY)
    shown.append(dyno.transcript([
        "run nothing.toml", "run nothing", "run imports/qps_comparison.csv", "run s.toml --limit 0",
        "run s.toml --set x", "run s.toml --rig nothing",
    ]))  # fmt: skip
    check("mistakes/study.txt", "\n".join(shown))
