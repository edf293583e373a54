"""Structured files and tables of any content: each is read, and no figure is infinite or out of its place."""

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyno.facts.imported import Document, DocumentCell, DocumentTable
from dyno.results import json_text
from dyno.results.columns import meaning, statistic
from dyno.results.printed import printed
from dyno.results.structured import read
from dyno.results.tables import rows_of

TESTS = Path(__file__).parent.parent
FILES = [
    *sorted((TESTS / "fixtures" / "imports").glob("*")),
    *sorted((TESTS / "captures").glob("llama-bench-11434.*")),
    *sorted((TESTS / "captures").glob("vllm*.json")),
]
FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def sound(found: Document | None) -> None:
    assert found is None or isinstance(found, Document)
    for row in found.rows if found else ():
        assert row.line >= 1
        assert row.end >= row.line
        for figure in row.figures.values():
            assert figure.value == figure.value  # no NaN
            assert abs(figure.value) != float("inf")
            assert figure.line >= 1


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_are_answered(data: bytes) -> None:
    sound(read("f", data))


@FUZZ
@given(st.text(alphabet='{}[],:"\\ \n\t-+.0123456789eEaNulInfity|;', max_size=200))
def test_any_brackets_are_answered(text: str) -> None:
    sound(read("f", text.encode()))
    json_text.values(text.encode())


KEYS = st.sampled_from(
    ["completed", "request_throughput", "duration", "ttfts", "itls", "results", "benchmarks", "metrics", "avg_ts",
     "n_gen", "n_prompt", "successes", "count", "latency", "dyno", "version", "unit", "avg", "request_latency",
     "metadata", "label", "config", "model_args", "n-shot", "executor_type", "token_throughput_secs", "hw", "conc",
     "mean_ttft", "mean_ttft_ms"],
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


@settings(FUZZ, max_examples=25)
@given(st.dictionaries(KEYS, JSON, max_size=8), st.sampled_from([None, 1]))
def test_known_keys_with_any_values_are_answered(
    content: dict[str, Any], indent: int | None
) -> None:
    sound(read("f", json.dumps(content, indent=indent).encode()))


@FUZZ
@given(st.data())
def test_real_files_that_were_cut_or_changed_are_answered(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(FILES)).read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    sound(read("f", bytes(content[: data.draw(st.integers(0, len(content)))])))


TITLES = st.sampled_from(
    [
        "Req/s",
        "TTFT",
        "Mean TTFT (ms)",
        "Model",
        "test",
        "t/s",
        "Tasks",
        "Metric",
        "Value",
        "P99",
        "x",
        "",
        "GPU",
    ]
)
CELLS = st.text(max_size=12) | st.sampled_from(
    ["1.5", "12 ± 3", "8xH100", "Req/s", "pp512", "1e300", "9" * 30, "—"]
)


@FUZZ
@given(st.lists(TITLES, max_size=6), st.lists(st.lists(CELLS, max_size=7), max_size=5))
def test_any_table_is_answered(header: list[str], body: list[list[str]]) -> None:
    cells = [[DocumentCell(text) for text in row] for row in body]
    for row in rows_of(
        DocumentTable(1, header, cells, list(range(2, len(body) + 2))), 0, "f", "table"
    ):
        assert row.figures


@FUZZ
@given(st.text(max_size=60))
def test_any_title_is_answered(title: str) -> None:
    meaning(title)
    statistic(title)
    printed(title)
