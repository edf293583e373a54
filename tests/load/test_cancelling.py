"""Requests that the client cancels: counted apart, and what the server does with them."""

import json
from pathlib import Path

import pytest

from conftest import StartFake
from dyno.audit.document import read_bytes as imported
from dyno.checks import requests
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.report import result_json
from dyno.report.block import block
from dyno.store.rows import read_row
from dyno.trial import online as conducting
from dyno.trial.online import Outcome
from dyno.workload.spec import WorkloadSpec

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds


def measure(url: str, runs: Path, rate: float = 0.5) -> Outcome:
    load = LoadSpec(max_concurrency=8, cancel_rate=rate, cancel_after_s=0.1, seed=3)
    work = WorkloadSpec("random", num_prompts=40, input_len=5, output_len=300)
    target = TargetSpec(url, "openai", "/v1/completions", "fake")
    trial = TrialSpec(target, work, load, ignore_eos=True, correctness_check=False)
    return conducting.serve(trial, runs=runs, headers={})


def codes(outcome: Outcome) -> list[str]:
    return [f.code for f in outcome.result.findings]


def test_cancelled_requests_are_counted_apart_in_every_output(
    fake: StartFake, tmp_path: Path
) -> None:
    outcome = measure(fake(gap_ms=1.0).base_url, tmp_path)
    s = outcome.result.served
    assert (
        10 < s.cancelled < 30
        and s.failed == 0
        and s.completed + s.cancelled == s.sent == s.planned
    )
    assert s.total_output_tokens == 300 * s.completed and s.cancelling is not None
    assert 0 < s.cancelling.received_tokens < 150 * s.cancelled
    assert not [c for c in codes(outcome) if c.startswith("requests.")]
    shown = block(outcome.result, outcome.manifest.trial, ["ttft"])
    assert f"Cancelled requests: {s.cancelled:>23}"[:18] in shown
    row = read_row(outcome.run)
    written = json.loads(
        json.dumps(result_json.build(outcome.result, outcome.manifest, row))
    )
    assert (written["failed"], written["dyno"]["cancelled"]) == (0, s.cancelled)
    assert row.get("cancelled") == s.cancelled
    (read,) = imported("result.json", json.dumps(written).encode()).rows
    assert not list(requests.failed(read)), "cancelled ones are not missing"


def test_a_server_that_stops_with_its_client_generates_next_to_nothing_in_vain(
    fake: StartFake, tmp_path: Path
) -> None:
    outcome = measure(fake(gap_ms=1.0).base_url, tmp_path)
    c = outcome.result.served.cancelling
    assert c is not None and c.undelivered_tokens is not None
    assert c.undelivered_tokens < 0.1 * c.missing_tokens
    assert "requests.cancelled_went_on" not in codes(outcome)


def test_a_server_that_continues_for_a_client_that_has_gone_is_found(
    fake: StartFake, tmp_path: Path
) -> None:
    outcome = measure(fake(gap_ms=1.0, faults={"deaf": 1}).base_url, tmp_path)
    c = outcome.result.served.cancelling
    assert c is not None and c.undelivered_tokens is not None
    assert c.undelivered_tokens > 0.3 * c.missing_tokens
    assert "requests.cancelled_went_on" in codes(outcome)
    assert outcome.result.verdict == "sound" or all(
        f.code != "requests.failed" for f in outcome.result.findings
    )


@pytest.mark.parametrize("rate", [1.0])
def test_a_load_that_cancels_everything_measures_nothing(
    fake: StartFake, tmp_path: Path, rate: float
) -> None:
    outcome = measure(fake(first_ms=300.0).base_url, tmp_path, rate)
    s = outcome.result.served
    assert (s.completed, s.failed, s.cancelled) == (0, 0, 40)
    assert "requests.none_completed" in codes(outcome)
