"""Traces, agent sessions and conversations with any value in any place: each is read, or refused in one sentence."""

import csv
import functools
import gzip
import io
import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyno.errors import WorkloadError
from dyno.workload import prompts
from dyno.workload.spec import WorkloadSpec
from dyno.workload.tokenizer import ApproximateTokenizer
from test_hostile_hub import JSON, memory_bytes

FIXTURES = Path(__file__).parents[1] / "fixtures"
Steps = tuple[str | int, ...]


def first(path: str, count: int = 2) -> list[Any]:
    """The first lines of a fixture, each with few and short values."""
    return [json.loads(line) for line in (FIXTURES / path).read_text().splitlines()[:count]]


def span(**other: Any) -> dict[str, Any]:
    messages = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
    answer = [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "1", "name": "f", "arguments": {"a": 1}}],
        }
    ]
    return {
        "trace_id": "t", "span_id": "s", "parent_span_id": None, "start_time": 1, "end_time": 2,
        "status": {"code": "OK"},
        "attributes": {
            "gen_ai.input.messages": messages, "gen_ai.output.messages": answer, "gen_ai.usage.output_tokens": 5,
            "gen_ai.tool.definitions": [{"type": "function"}],
            "gen_ai.system_instructions": [{"type": "text", "content": "be kind"}],
        },
        **other,
    }  # fmt: skip


def otlp() -> dict[str, Any]:
    attributes = [
        {"key": k, "value": {"stringValue": json.dumps(v)}}
        for k, v in span()["attributes"].items()
    ]
    inner = {
        "traceId": "t",
        "spanId": "s",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": attributes,
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [inner]}]}]}


MESSAGES = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant", "content": "x",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ],
    "tools": [{"type": "function"}],
}  # fmt: skip

# Of each kind: data set, and documents as a file has them, one a line.
DOCUMENTS: dict[str, tuple[str, list[Any]]] = {
    "otel": ("agents", [{"spans": [span(), span(span_id="c", parent_span_id="s", start_time=3, end_time=4)]}]),
    "otlp": ("agents", [otlp()]),
    "messages": ("agents", [MESSAGES]),
    "mlperf": ("agents", first("agents/mlperf_coding.jsonl")),
    "tracelab": ("agents", first("agents/tracelab_rounds.jsonl")),
    "blocks": ("agents", [json.loads((FIXTURES / "agents/block_trace.json").read_text())]),
    "mooncake": ("mooncake", [{"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1, 2]}]),
    "bailian": ("bailian", first("traces/bailian.jsonl")),
    "conversations": ("conversations", [{"conversations": [
        {"from": "human", "value": "a question"}, {"from": "gpt", "value": "an answer"}]}]),
    "custom": ("custom", [{"prompt": "a prompt", "output_tokens": 5}]),
}  # fmt: skip
NASTY: list[Any] = [
    None, True, -1, 0, 2**62, 10**400, 1.5, -0.0, 1e308, "", "x", "²", "9" * 5000, "\ud800", [], {}, [[]], [None], [1],
    {"a": {}}, "../../x", "\x1b[2J\0",
]  # fmt: skip


def places(value: Any, steps: Steps = (), deep: int = 7) -> Iterator[Steps]:
    """Yield the way to each value of a document."""
    if steps:
        yield steps
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:3])
        if isinstance(value, list)
        else ()
    )
    for key, item in inner if deep else ():
        yield from places(item, (*steps, key), deep - 1)


def changed(value: Any, steps: Steps, nasty: Any) -> Any:
    copy = json.loads(json.dumps(value))
    at = copy
    for step in steps[:-1]:
        at = at[step]
    at[steps[-1]] = nasty
    return copy


def encoded(documents: list[Any]) -> bytes:
    return "\n".join(json.dumps(d) for d in documents).encode()


def attempt(dataset: str, path: Path, **fields: Any) -> int | str:
    """Return how many requests it makes, or the refusal. Anything else is a mistake of dyno's."""
    began = time.monotonic()
    try:
        made: int | str = len(
            prompts.make(
                WorkloadSpec(dataset, path=str(path), **fields), ApproximateTokenizer()
            ).requests
        )
    except WorkloadError as e:
        made = str(e)
        assert "\n" not in made
        assert len(made) < 3000
    assert time.monotonic() - began < 20
    return made


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_the_documents_are_read_as_they_are(kind: str, tmp_path: Path) -> None:
    dataset, documents = DOCUMENTS[kind]
    (tmp_path / "f.jsonl").write_bytes(encoded(documents))
    assert isinstance(attempt(dataset, tmp_path / "f.jsonl"), int)


CASES = [
    (kind, steps)
    for kind, (_, documents) in DOCUMENTS.items()
    for steps in dict.fromkeys(places(documents))
]


@pytest.mark.parametrize(
    ("kind", "steps"), CASES, ids=[f"{k}-{'.'.join(map(str, s))}" for k, s in CASES]
)
def test_any_value_in_any_place_is_read_or_refused(
    kind: str, steps: Steps, tmp_path: Path
) -> None:
    """Each place of each kind of document, with each of 22 values that don't belong there, and without it."""
    dataset, documents = DOCUMENTS[kind]
    for nasty in NASTY:
        (tmp_path / "f.jsonl").write_bytes(encoded(changed(documents, steps, nasty)))
        attempt(dataset, tmp_path / "f.jsonl")


def test_there_are_as_many_cases_as_promised() -> None:
    assert len(CASES) * len(NASTY) > 2500


FILES: dict[str, bytes] = {
    "nothing": b"",
    "blank": b" \n\n",
    "zeros": bytes(1000),
    "not UTF-8": b"\xff\xfe" * 100,
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "cut": b'{"spans": [{"trace_id": "t"',
    "cut gzip": gzip.compress(b'{"a": 1}' * 1000)[:40],
    "no gzip": b"\x1f\x8b" + b"x" * 50,
    "no parquet": b"PAR1" + b"x" * 100 + b"PAR1",
    "short parquet": b"PAR1",
    "a mark": b"\xef\xbb\xbf",
    "separators": b"===== a =====\n" * 100,
    "comments": b"#\n" * 1000,
    "a list of lists": b"[[[]]]",
    "a number": b"5",
    "a text": b'"x"',
    "many commas": b"," * 100_000,
    "one long field": b'"' + b"x" * 1_000_000,
    "NUL in a table": b"TIMESTAMP,ContextTokens\n\0,\0\n",
    "the same column twice": b"TIMESTAMP,TIMESTAMP\n1,2\n",
    "a column of formulas": b"TIMESTAMP,ContextTokens,GeneratedTokens\n=1+1,@x,-5\n",
    "dates of another age": b"TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01T00:00:00+23:59,5,5\n",
    "infinity": b"TIMESTAMP,ContextTokens,GeneratedTokens\ninf,5,5\n",
    "1e400": b'{"timestamp": 1e400, "input_length": 1e400, "output_length": 1, "hash_ids": [1e400]}',
}
DATASETS = [
    "agents",
    "mooncake",
    "azure",
    "burstgpt",
    "bailian",
    "timed_trace",
    "conversations",
    "custom",
    "sharegpt",
]


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("data", FILES.values(), ids=FILES.keys())
def test_a_file_of_anything_is_refused_by_each_reader(
    data: bytes, dataset: str, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(data)
    attempt(dataset, tmp_path / "f")


# ---- time and memory ----


def nested(count: int) -> list[dict[str, Any]]:
    ids = [str(i) for i in range(count)]
    return [
        span(
            span_id=ids[i],
            parent_span_id=ids[i - 1] if i else None,
            start_time=i,
            end_time=10**6 - i,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [500, 900, pytest.param(1100, id="too deep")])
def test_nested_spans_take_no_cubic_time(count: int, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(encoded([{"spans": nested(count)}]))
    before = time.process_time()
    made = attempt("agents", tmp_path / "f.json")
    assert (
        made == count if count <= 1000 else "inside more than 1000 other spans" in str(made)
    )
    # 500 took 2.7 s, and eight times as long for twice as many
    assert time.process_time() - before < 4


def test_many_spans_one_after_another_are_read_in_time(tmp_path: Path) -> None:
    spans = [
        span(span_id=str(i), start_time=2 * i, end_time=2 * i + 1) for i in range(3000)
    ]
    (tmp_path / "f.json").write_bytes(encoded([{"spans": spans}]))
    assert attempt("agents", tmp_path / "f.json") == 3000


def test_parents_in_a_circle_are_refused(tmp_path: Path) -> None:
    spans = [span(span_id="a", parent_span_id="b"), span(span_id="b", parent_span_id="a")]
    (tmp_path / "f.json").write_bytes(encoded([{"spans": spans}]))
    assert "form a cycle" in str(attempt("agents", tmp_path / "f.json"))


@functools.cache
def packed_newlines() -> bytes:
    part = b"\n" * (4 << 20)
    packer = zlib.compressobj(6, wbits=31)
    return b"".join(
        [
            packer.compress(b'{"a": 1}'),
            *(packer.compress(part) for _ in range(100)),
            packer.flush(),
        ]
    )


@pytest.mark.parametrize("dataset", ["mooncake", "agents", "custom"])
def test_a_packed_file_of_empty_lines_takes_no_memory(dataset: str, tmp_path: Path) -> None:
    """400 MB of newlines in a file of 400 kB took 1.5 GB."""
    (tmp_path / "f.jsonl.gz").write_bytes(packed_newlines())
    before = memory_bytes()
    assert isinstance(attempt(dataset, tmp_path / "f.jsonl.gz"), str)
    assert memory_bytes() - before < 400 << 20


@pytest.mark.parametrize("dataset", ["mooncake", "agents"])
def test_a_plain_file_of_empty_lines_is_read_in_its_own_size(
    dataset: str, tmp_path: Path
) -> None:
    (tmp_path / "f.jsonl").write_bytes(b'{"a": 1}' + b"\n" * (60 << 20))
    before = memory_bytes()
    assert isinstance(attempt(dataset, tmp_path / "f.jsonl"), str)
    assert memory_bytes() - before < 300 << 20


def test_a_parquet_file_of_endless_equal_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.parquet"
    duckdb.connect().execute(
        f"COPY (SELECT 1 AS timestamp, 1 AS input_length, 1 AS output_length FROM range(30000000)) TO '{path}'"
    )
    before = memory_bytes()
    assert "30,000,000 rows, more than dyno reads" in str(attempt("mooncake", path))
    assert memory_bytes() - before < 500 << 20


PARQUET = {
    "a blob": "'x'::BLOB", "a map": "MAP {'a': 1}", "a struct": "{'a': 1}", "a list": "[1, 2]", "a nan": "'nan'::FLOAT",
    "infinity": "'infinity'::TIMESTAMP", "an interval": "INTERVAL 1 YEAR", "null": "NULL", "huge": "1e308::DOUBLE",
    "a uuid": "uuid()", "a time": "TIME '00:00:00'", "a decimal": "123456789012345678.5::DECIMAL(28, 9)",
}  # fmt: skip


@pytest.mark.parametrize("expression", PARQUET.values(), ids=PARQUET.keys())
@pytest.mark.parametrize("column", ["timestamp", "input_length", "hash_ids"])
def test_a_parquet_file_of_any_type_is_read_or_refused(
    expression: str, column: str, tmp_path: Path
) -> None:
    columns = {
        "timestamp": "1",
        "input_length": "1",
        "output_length": "1",
        "hash_ids": "[1]",
        column: expression,
    }
    wanted = ", ".join(f"{value} AS {name}" for name, value in columns.items())
    duckdb.connect().execute(
        f"COPY (SELECT {wanted}) TO '{tmp_path / 'f.parquet'}' (FORMAT parquet)"
    )
    attempt("mooncake", tmp_path / "f.parquet")


# ---- anything ----

SPAN_KEYS = st.sampled_from(
    [
        "trace_id",
        "span_id",
        "parent_span_id",
        "start_time",
        "end_time",
        "attributes",
        "status",
    ]
)
ATTRIBUTES = st.sampled_from(list(span()["attributes"]))
ANY = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@ANY
@given(
    change=st.dictionaries(SPAN_KEYS, JSON, max_size=2),
    inner=st.dictionaries(ATTRIBUTES, JSON, max_size=2),
)
def test_any_span_is_read_or_refused(
    change: dict[str, Any], inner: dict[str, Any], tmp_path: Path
) -> None:
    one = span()
    one["attributes"] |= inner
    (tmp_path / "f.json").write_bytes(msgspec.json.encode({"spans": [{**one, **change}]}))
    attempt("agents", tmp_path / "f.json")


@ANY
@given(
    rows=st.lists(st.lists(st.text(max_size=12), max_size=4), max_size=5),
    dataset=st.sampled_from(DATASETS),
)
def test_any_table_is_read_or_refused(
    rows: list[list[str]], dataset: str, tmp_path: Path
) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([["TIMESTAMP", "ContextTokens", "GeneratedTokens"], *rows])
    (tmp_path / "f.csv").write_bytes(out.getvalue().encode(errors="surrogatepass"))
    attempt(dataset, tmp_path / "f.csv")


@ANY
@given(data=st.binary(max_size=200), dataset=st.sampled_from(DATASETS))
def test_any_bytes_are_read_or_refused(data: bytes, dataset: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(data)
    attempt(dataset, tmp_path / "f")


@ANY
@given(value=JSON, dataset=st.sampled_from(DATASETS))
def test_any_json_is_read_or_refused(value: Any, dataset: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(msgspec.json.encode(value))
    attempt(dataset, tmp_path / "f")
