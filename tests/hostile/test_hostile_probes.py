"""Servers that lie, babble, drip or never end when they are asked about themselves: a fact, or one clear sentence."""

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from conftest import Scripted
from dyno.cli.main import main
from dyno.engines.kinds import KINDS, metric_names
from dyno.errors import DynoError, TargetError, UsageError
from dyno.facts.rig import Rig
from dyno.facts.target import TargetFacts, TargetSpec, known
from dyno.facts.telemetry import Sample
from dyno.http import LARGEST_BYTES, Client, Url
from dyno.probe import server
from dyno.probe.telemetry import metrics
from dyno.store.run import Manifest, Run
from dyno.trial.lifecycle import log_facts
from dyno.workload import prompts, tokenizer
from dyno.workload.spec import WorkloadSpec
from test_probe_server import LLAMA, SGLANG, TGI, VLLM, VLLM_METRICS
from test_summary import TRIAL

Serve = Callable[..., Scripted]
NAMED = TargetSpec("", "openai", "/v1/completions", "m")

# As they stand in JSON, or would like to.
ODD = [
    "null", "true", "false", "0", "-1", "1", "1.5", "-0.0", "1e999", "-1e999", "NaN", "Infinity", "-Infinity",
    "9" * 30, "9" * 400, "9" * 5000, "-" + "9" * 30, "9223372036854775808", "18446744073709551616", "1e308", "5e-324",
    '""', '" "', '"x"', '"None"', '"True"', '"²"', '"٣"', '"1"', '"-1"', '"1e9"', '"NaN"', '"\\u0000"', '"a\\r\\nb: c"',
    '"\\ud800"', '"\\udc00\\ud800"', '"\\u001b[2J"', '"\\u2028"', '"../../../../etc/passwd"', '"' + "x" * 100_000 + '"',
    '"' + "9" * 6000 + '"', '"torch."', '"{}"', "[]", "[[]]", "[null]", '["a", 1]', "[{}]", '[{"id": 1}]',
    '[{"id": "\\u0007"}]', "{}", '{"a": 1}', '{"id": []}', '{"": {"": null}}', '{"n_ctx": -1}', '{"n_ctx": "x"}',
    '{"error": 1}', "[" * 90 + "]" * 90, "[" * 900 + "]" * 900, "[" * 50_000 + "]" * 50_000, '{"a":' * 5000,
    '{"data": {"data": []}}', "", "{", "tru", "'x'", '"', "\\", "<html>", '{"a": 1} x', "[1,]", "\ufeff{}",
]  # fmt: skip
SERVER_INFO = {
    "vllm_config": {
        "scheduler_config": {"max_num_seqs": 64},
        "model_config": {
            "dtype": "torch.float16",
            "quantization": "fp8",
            "max_model_len": 4096,
        },
        "parallel_config": {"tensor_parallel_size": 2},
    }
}
INTERNAL = {
    "internal_states": [{"max_model_len": 1, "effective_max_running_requests_per_dp": 2}]
}
SHAPES: list[dict[str, Any]] = [
    {**VLLM, "/server_info": SERVER_INFO},
    {
        **VLLM,
        "/server_info": {
            "vllm_config": "dtype=x, max_seq_len=12, tensor_parallel_size=4, quantization=None"
        },
    },
    {**LLAMA, "/slots": [{"id": 0}]},
    {"/v1/models": {"data": []}, **TGI, "/get_model_info": {"model_path": "m"}},
    {**SGLANG, "/get_server_info": {**SGLANG["/get_server_info"], **INTERNAL}},
    {"/v1/models": {"data": []}, "/openapi.json": {"paths": {"/load_model": {}}}},
]
HOLE = "here it comes"


class Babbling(Client):
    """A client whose server answers each route with these bytes: all that comes after the socket is the real thing."""

    def __init__(self, routes: dict[str, bytes]) -> None:
        super().__init__(Url("http://127.0.0.1:1"), {})
        self.routes = routes

    def _exchange(self, path: str, *_: Any) -> tuple[int, bytes]:
        found = self.routes.get(path.partition("?")[0])
        return (404, b"{}") if found is None else (200, found)


def texts(routes: dict[str, Any], **instead: str) -> dict[str, bytes]:
    return {
        path: (answer if isinstance(answer, str) else json.dumps(answer)).encode(
            "utf-8", "surrogatepass"
        )
        for path, answer in {**routes, **instead}.items()
    }


def with_holes(value: Any) -> Iterator[Any]:
    """The value once for each of its parts, and that part a hole."""
    yield HOLE
    if isinstance(value, dict):
        for key in value:
            yield from ({**value, key: holed} for holed in with_holes(value[key]))
    elif isinstance(value, list):
        for i in range(len(value)):
            yield from (
                [*value[:i], holed, *value[i + 1 :]] for holed in with_holes(value[i])
            )


def read_back(facts: TargetFacts, folder: Path) -> None:
    """Through trial.json, and fit for it: no control character, no text of megabytes, no count below 1."""
    run = Run(folder)
    trial = msgspec.structs.replace(TRIAL, target=NAMED)
    rig = Rig("linux", "6", "x86_64", "c", 1)
    run.write_manifest(
        Manifest("0", "now", trial, facts, None, "server", "", 1, 0, None, rig)
    )
    assert run.manifest().target == facts
    for field in msgspec.structs.fields(TargetFacts):
        value = getattr(facts, field.name)
        for part in value if isinstance(value, list) else [value]:
            assert not isinstance(part, str) or (len(part) <= 300 and part.isprintable()), (
                field.name,
                part,
            )
            assert (
                not isinstance(part, int | float)
                or isinstance(part, bool)
                or 0 < part < 2**53
            )


@pytest.mark.parametrize(
    "shape", SHAPES, ids=["vllm", "vllm text", "llama.cpp", "tgi", "sglang", "transformers"]
)
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_any_part_of_what_a_server_says_may_be_anything(
    shape: dict[str, Any], step: int, tmp_path: Path
) -> None:
    """`step`: every fourth odd value at a place, others at the next one."""
    tried = places = 0
    for path, answer in shape.items():
        for holed in [HOLE] if isinstance(answer, str) else with_holes(answer):
            text = json.dumps(holed)
            places += 1
            for odd in ODD[places % step :: step]:
                reported = texts(shape, **{path: text.replace(f'"{HOLE}"', odd)})
                read_back(server.read_target(Babbling(reported), NAMED), tmp_path)
                tried += 1
    assert tried > 200 / step


@pytest.mark.parametrize(
    "path",
    sorted({path for shape in SHAPES for path in shape} | {"/v1/models", "/version"}),
)
def test_without_a_model_s_name_it_is_the_list_or_one_sentence(
    path: str, tmp_path: Path
) -> None:
    for odd in ODD:
        for shape in SHAPES:
            try:
                facts = server.read_target(
                    Babbling(texts(shape, **{path: odd})), TargetSpec("", "openai", "")
                )
            except TargetError:
                continue
            read_back(facts, tmp_path)


def test_what_fits_is_kept_beside_what_does_not() -> None:
    said = {
        "slots": True,
        "max_model_len": 4096,
        "version": ["x"],
        "dtype": "a\x1b[2Jb",
        "kv_cache_tokens": 10**30,
    }
    assert known(said) == {"max_model_len": 4096, "dtype": "a [2Jb"}
    card = {"id": "m", "max_model_len": "4096", "aliases": 3}
    facts = server.read_target(
        Babbling(texts({**VLLM, "/v1/models": {"data": [card, {"id": 5}]}})), NAMED
    )
    assert (facts.models_listed, facts.max_model_len, facts.version) == (
        ["m"],
        None,
        "0.24.0",
    )


def test_a_list_of_a_million_models_is_cut_but_the_one_that_is_meant_stays_in_it() -> None:
    cards = [{"id": f"m{i}"} for i in range(100_000)] + [{"id": "m"}]
    listed = server.read_target(
        Babbling(texts({"/v1/models": {"data": cards}})), NAMED
    ).models_listed
    assert listed is not None and len(listed) == 1001 and "m" in listed


METRIC_LINES = [
    "vllm:num_requests_running", 'vllm:num_requests_running{engine="0"}', 'vllm:kv_cache_usage_perc{a="}"}',
    'vllm:prefix_cache_queries_total{x="', "sglang:spec_accept_length{tp_rank=}", "tgi_queue_size",
    "llamacpp:tokens_predicted_total",
]  # fmt: skip
NUMBERS = [
    "", " ", "NaN", "nan", "+Inf", "-Inf", "inf", "infinity", "1e999", "1e308", "-1", "-1e308", "1_0", "0x10", "²", "٣",
    "9" * 400, "1" * 5000, "1e-400", "1 2 3", "}", "{", '"', "\x00", "\ud800", "1\x0b2", "1e17",
]  # fmt: skip


def test_metrics_may_say_anything_and_a_sample_reads_back() -> None:
    for name in METRIC_LINES:
        for number in NUMBERS:
            raw = f"{name} {number}\n{name} 1e308\n{name} {number}".encode(
                "utf-8", "surrogatepass"
            )
            _, text = Babbling({"/metrics": raw}).call("/metrics")
            found = metrics.read(text, metric_names()) if isinstance(text, str) else {}
            sample = Sample(1, "engine", 0, found)
            assert msgspec.json.decode(msgspec.json.encode(sample), type=Sample) == sample
            assert all(value >= 0 for value in found.values())


def test_the_labels_of_vllm_s_cache_may_be_anything(tmp_path: Path) -> None:
    for label in (
        "block_size",
        "num_gpu_blocks",
        "cache_dtype",
        "enable_prefix_caching",
        "kv_cache_size_tokens",
    ):
        for odd in [*NUMBERS, "x" * 100_000, "\x1b[2J", "0", "True"]:
            text = VLLM_METRICS.replace("engine=", f'{label}="{odd}",engine=').encode(
                "utf-8", "surrogatepass"
            )
            reported = {**texts(VLLM), "/metrics": text}
            read_back(server.read_target(Babbling(reported), NAMED), tmp_path)


# Tokenizers

TOKENIZERS: list[dict[str, Any]] = [
    {"/tokenize": {"tokens": [1, 2, 3], "count": 3}, "/detokenize": {"prompt": "a b c"}},
    {"/tokenize": {"tokens": [1, 2, 3]}, "/detokenize": {"content": "a b c"}},
    {"/tokenize": [{"id": 1, "text": "a", "start": 0, "stop": 1}]},
]


@pytest.mark.parametrize("shape", TOKENIZERS, ids=["vllm", "llama.cpp", "tgi"])
def test_a_tokenizer_may_answer_anything(shape: dict[str, Any]) -> None:
    spec = WorkloadSpec("random", num_prompts=2, input_len=6, output_len=2)
    for path in shape:
        for holed in with_holes(shape[path]):
            for odd in ODD:
                reported = texts(
                    shape, **{path: json.dumps(holed).replace(f'"{HOLE}"', odd)}
                )
                client = Babbling(reported)
                if isinstance(shape["/tokenize"], list):  # TGI: it misses `inputs`
                    client = MissesInputs(reported)
                try:
                    found = tokenizer.server(client, "m")
                    made = prompts.make(spec, found) if found else None
                except DynoError as e:
                    assert len(str(e)) < 1000
                    continue
                msgspec.json.encode(made)
                assert made is None or all(len(r.prompt) < 2000 for r in made.requests)


class MissesInputs(Babbling):
    def _exchange(self, path: str, *rest: Any) -> tuple[int, bytes]:
        payload = rest[0] or b""
        return (422, b"{}") if b"inputs" not in payload else super()._exchange(path)


def test_a_readiness_check_may_be_answered_with_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for odd in ODD:
        client = Babbling({"/x": odd.encode("utf-8", "surrogatepass")})
        monkeypatch.setattr(server, "Client", lambda *_, client=client, **__: client)
        said = server.attempt(client.url, {}, "/x", {}, 1).problem
        assert len(said) < 400 and "\x1b" not in said and "\n" not in said


# Answers without an end


OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "a body": (OK + b"\r\n", b"x" * 65_536),
    "a body of a promised length": (
        OK + b"content-length: 999999999999999\r\n\r\n",
        b" " * 65_536,
    ),
    "chunks": (
        OK + b"transfer-encoding: chunked\r\n\r\n",
        b"10000\r\n" + b"x" * 65_536 + b"\r\n",
    ),
    "one chunk": (
        OK + b"transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFFF\r\n",
        b"x" * 65_536,
    ),
    "a chunk of no size": (OK + b"transfer-encoding: chunked\r\n\r\n-1\r\n", b"x" * 65_536),
    "a chunk's header": (OK + b"transfer-encoding: chunked\r\n\r\n", b"0" * 65_536),
    "a header line": (OK + b"a: ", b"x" * 65_536),
    "header lines": (OK, b"a: b\r\n" * 10_000),
    "a status line": (b"HTTP/1.1 200 ", b"x" * 65_536),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\na: b\r\n\r\n" * 2000),
    "trailers": (OK + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 10_000),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_an_end_is_one_sentence(scripted: Serve, what: str) -> None:
    sent = 0

    def talk(sock: Any, _: int) -> None:
        nonlocal sent
        sock.recv(65_536)
        head, more = ENDLESS[what]
        sock.sendall(head)
        while sent < 1 << 30:
            sock.sendall(more)
            sent += len(more)

    client = Client(Url(scripted(talk).base_url), {}, timeout_s=60)
    with pytest.raises(TargetError) as reported:
        client.call("/v1/models")
    assert len(str(reported.value)) < 400
    assert sent < 4 * LARGEST_BYTES  # what lies in the sockets' buffers included


def test_a_large_answer_says_how_large_one_may_be(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        sock.recv(65_536)
        sock.sendall(OK + b"content-length: 20000000\r\n\r\n" + b"x" * 20_000_000)

    with pytest.raises(TargetError, match=r"/v1/models answers with more than 16 MB"):
        Client(Url(scripted(talk).base_url), {}).call("/v1/models")


DRIPPING = {
    "status": b"HTTP/1.1 200 " + b"x" * 500,
    "headers": OK + b"a: b\r\n" * 90,
    "body": OK + b"content-length: 500\r\n\r\n" + b"x" * 500,
    "chunk header": OK + b"transfer-encoding: chunked\r\n\r\n" + b"0" * 500,
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
}


@pytest.mark.parametrize("what", DRIPPING)
def test_an_answer_that_drips_is_given_up_when_its_time_is_over(
    scripted: Serve, what: str
) -> None:
    dripped = 0

    def talk(sock: Any, _: int) -> None:
        nonlocal dripped
        sock.recv(65_536)
        whole = DRIPPING[what]
        at = whole.find(b"\r\n\r\n") + 4 if what in ("body", "chunk header") else 0
        sock.sendall(whole[:at])
        for i in range(at, len(whole)):
            sock.sendall(whole[i : i + 1])
            dripped += 1
            time.sleep(0.1)

    client = Client(Url(scripted(talk).base_url), {}, timeout_s=1)
    with pytest.raises(TargetError, match=r"sent no complete answer within 1 s"):
        client.call("/metrics")
    assert dripped < 100


def test_a_compressed_answer_is_refused_by_name_and_was_not_asked_for(
    scripted: Serve,
) -> None:
    asked = []

    def talk(sock: Any, _: int) -> None:
        asked.append(sock.recv(65_536).lower())
        body = gzip.compress(b"{}")
        sock.sendall(
            OK
            + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )

    client = Client(Url(scripted(talk).base_url), {"Accept-Encoding": "gzip"})
    with pytest.raises(TargetError, match=r"sends compressed answers \('gzip'\)"):
        client.call("/v1/models")
    assert b"accept-encoding: identity" in asked[0] and b"gzip" not in asked[0]


def test_a_cut_answer_is_not_a_whole_one(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        sock.recv(65_536)
        sock.sendall(OK + b"content-length: 100\r\n\r\n{}")

    with pytest.raises(TargetError, match="IncompleteRead"):
        Client(Url(scripted(talk).base_url), {}).call("/v1/models")


# What a user gives that would end a line of the request


@pytest.mark.parametrize(
    "words",
    [
        ["--endpoint", "/v1\r\nx: y"],
        ["--endpoint", "/v1 HTTP/1.1"],
        ["--endpoint", "/v1/é"],
        ["--endpoint", "/v1\x00"],
        ["--base-url", "http://127.0.0.1:9/\r\nx: y"],
        ["--base-url", "http://127.0.0.1:9/a b"],
        ["--base-url", "http://127.0.0.1\t:9"],
        ["--base-url", "http://例え:9"],
        ["--base-url", "unix:///tmp/a\nb"],
        ["--header", "a\r\nb=c"],
        ["--header", "a b=c"],
        ["--header", "a:b=c"],
        ["--header", "a=b\nc"],
        ["--header", "a=b\x00c"],
        ["--header", "a=\x7f"],
        ["--model", "a\nb"],
        ["--served-model-name", "a\x1b[2Jb"],
        ["--model", "\udc80"],
    ],
)
def test_what_would_end_a_line_is_refused_in_one_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--port", "9", "--num-prompts", "1", *words]) == 2
    reported = capsys.readouterr().err
    assert (
        reported.count("\n") == 1
        and re.search("contains|must be one word|doesn't allow", reported)
        and "\x1b" not in reported
    )


def test_a_password_in_a_url_is_not_repeated_whatever_else_is_wrong_with_it() -> None:
    for url in (
        "http://me:hunter22@host:port",
        "ftp://me:hunter22@host",
        "http://me:hunter22@ho st",
        "http://me:hunt/er22@h",
    ):
        with pytest.raises(UsageError) as reported:
            Url(url)
        assert "hunt" not in str(reported.value)


# Logs of engines


CAPTURES = Path(__file__).parent.parent / "captures"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_engine_s_log_may_say_anything(kind: str) -> None:
    plan = SimpleNamespace(kind=KINDS[kind])
    logs = [path.read_text(errors="replace") for path in sorted(CAPTURES.glob("*.log"))]
    logs.append(
        "n_ctx = 1\nn_slots = 1\nfile size = 1 GiB\n1.1 I srv loading model\n1.1 I srv model loaded\n# GPU blocks: 1,\n"
    )
    for text in logs:
        for odd in (
            "9" * 400,
            "9" * 5000,
            "1.2.3",
            ".",
            "²",
            "٣",
            "-1",
            "0",
            "1e999",
            "None",
            "x",
        ):
            log = re.sub(r"\d+(?:\.\d+)?", odd, text)
            found = log_facts(
                plan, SimpleNamespace(process=SimpleNamespace(text=lambda log=log: log))
            )  # type: ignore[arg-type]
            assert (
                msgspec.json.decode(
                    msgspec.json.encode(found.startup_s), type=dict[str, float]
                )
                == found.startup_s
            )
            msgspec.convert({"model": "m", **known(found.target)}, TargetFacts)
