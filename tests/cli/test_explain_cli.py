"""`dyno explain` as a user meets it: on stored runs of this and of an earlier version, on what it can't explain, and in
a report."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from dyno.cli.main import main
from dyno.store.run import Run
from dyno.store.sql import RunTables

STORED = Path(__file__).parents[1] / "fixtures" / "runs"
SERVED = STORED / "20261116-115039-serve-fake-c3-2af4"
OFFLINE = STORED / "20261116-115042-latency-dyno-tiny-F16-b2-16-8-919f"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose records can be changed."""
    shutil.copytree(SERVED, tmp_path / "runs" / "served")
    return Run(tmp_path / "runs" / "served")


def write(run: Run, **changes: object) -> None:
    records = [msgspec.structs.replace(r, **changes) for r in run.records()]
    run.write_lines(msgspec.json.encode(r) + b"\n" for r in records)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_a_run_is_a_bar_a_table_that_adds_up_and_its_slowest_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = said(capsys, str(SERVED))
    assert "12 requests. Mean latency 12.27 ms" in out.replace("\n", " ")
    for words in (
        "client's wait",
        "queue, prefill, network and front end",
        "decode and delivery",
        "rest",
    ):
        assert words in out
    (total,) = [line for line in out.splitlines() if line.strip().startswith("sum ")]
    assert "100 %" in total
    assert "\n\nSlowest requests, with times since the load began\n" in out
    assert "\n\n\n" not in out
    assert " due at 0.000 s" in out
    (e,) = json.loads(said(capsys, str(SERVED), "--json"))["runs"]
    assert sorted(n for group in e["tail_groups"] for n in group) == sorted(
        r["index"] for r in e["tail"]
    )
    alone = sum(len(group) == 1 for group in e["tail_groups"])
    assert out.count("  request ") == alone
    assert out.count(" of the 10 are alike") == len(e["tail_groups"]) - alone


def test_json_has_nanoseconds_that_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    (e,) = json.loads(said(capsys, str(SERVED), "--json"))["runs"]
    assert sum(p["total_ns"] for p in e["parts"]) == e["latency_ns"]
    assert sum(p["mean_ms"] for p in e["parts"]) == pytest.approx(
        e["latency_ns"] / e["requests"] / 1e6
    )
    for each in e["tail"]:
        assert sum(each["parts_ms"].values()) == pytest.approx(each["latency_ms"])


def test_one_request_is_shown_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, str(SERVED), "--request", "3")
    assert out.count("  request ") == 1 and "request 3: " in out
    (e,) = json.loads(said(capsys, str(SERVED), "--request", "3", "--json"))["runs"]
    assert [r["index"] for r in e["tail"]] == [3] and e["tail_groups"] == [[3]]
    assert main(["explain", str(SERVED), "--request", "99"]) == 2
    assert "no completed request of this run has this number" in capsys.readouterr().err


def test_what_is_not_a_serving_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(OFFLINE)]) == 2
    assert "is not a serving run" in capsys.readouterr().err


def test_a_run_without_records_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.records_path.unlink()
    assert main(["explain", str(run.path)]) == 2
    assert "the records of its requests are gone" in capsys.readouterr().err


def test_failed_requests_are_counted_and_not_explained(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, error="cut")
    out = said(capsys, str(run.path))
    words = "no request completed with a token (12 failed). There is nothing to explain."
    assert words in out.replace("\n", " ")
    assert "latency" not in out


def test_the_servers_word_is_a_part_and_a_column(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, server_queue_ns=1_000_000, server_prefill_ns=2_000_000)
    (e,) = json.loads(said(capsys, str(run.path), "--json"))["runs"]
    (queue,) = [p for p in e["parts"] if p["covers"] == ["queue"]]
    assert (queue["mean_ms"], queue["sources"]) == (1.0, ["claimed"])
    query = "select mean_ms from parts where part = 'queue'"
    assert [*RunTables(run.path.parent).ask(query).rows] == [(1.0,)]


def test_two_sides_begin_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, str(STORED / "two"), str(STORED / "two"))
    assert "per request (" in out.replace("\n", " ")
    assert "Per request; points are percent of the latency of" in out.replace("\n", " ")


def test_comparisons_of_one_load_are_named_after_what_they_compare(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two parts of a study (quick and slow) have the same two loads."""
    two = str(STORED / "two")
    differences = json.loads(said(capsys, two, two, "--json"))["differences"]
    names = [(d["a"].removeprefix(two), d["b"].removeprefix(two)) for d in differences]
    loads = [f"concurrency {n}, 16 in, 6 out" for n in (1, 2)]
    assert names == [
        (f" ({part}, {load})", f" ({part})") for part in ("quick", "slow") for load in loads
    ]


def test_a_side_of_failures_is_not_compared_and_says_so(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(SERVED, tmp_path / "failed")
    other = Run(tmp_path / "failed")
    write(other, error="http_503", status=503, chunk_ns=[])
    words = (str(run.path), str(other.path))
    out = said(capsys, *words).replace("\n", " ")
    assert out.strip() == (
        "Nothing to compare: no request of failed completed. failed: 12 of 12 requests failed."
    )
    (d,) = json.loads(said(capsys, *words, "--json"))["differences"]
    assert (d["change"], d["parts"], d["b_ms"]) == (None, [], None)
    assert (d["a_requests"], d["b_requests"], d["b_failed"]) == (12, 0, 12)


def test_one_request_of_two_sides_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    two = str(STORED / "two")
    assert main(["explain", two, two, "--request", "3"]) == 2
    assert "--request 3 shows a request of one run" in capsys.readouterr().err


def test_sides_without_a_common_load_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = STORED / "20261116-115138-serve-fake-r60-edfb"
    assert main(["explain", str(SERVED), str(other)]) == 2
    assert "have no load in common" in capsys.readouterr().err
