"""TGI without TGI: requests, readers and the fake engine against TGI's API description and the streams it sends.

What the description says of the types in use stands below in a short form of our own. `DYNO_TGI_OPENAPI=FILE pytest
tests/load/test_tgi.py` holds that against the description itself (docs/openapi.json in TGI's repository). Where TGI's
router does other than its description says, the router's sources (3.3.6) count.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from conftest import StartFake, drive, requests
from dyno.engines.fake.engine import Fake
from dyno.http import Client, Url
from dyno.load.protocols import PROTOCOLS, Asked, StreamReading
from dyno.workload.request import Request

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

# A field's name ends in ? where it may be missing; a kind ends in ? where it may be null. [kind] is a list of it, a
# tuple the words that are allowed.
KINDS: dict[str, Any] = {
    "FinishReason": ("length", "eos_token", "stop_sequence"),
    "ErrorResponse": {"error": "string", "error_type": "string"},
    "Info": {
        "model_id": "string", "model_sha?": "string?", "model_pipeline_tag?": "string?",
        "max_concurrent_requests": "integer", "max_best_of": "integer", "max_stop_sequences": "integer",
        "max_input_tokens": "integer", "max_total_tokens": "integer", "validation_workers": "integer",
        "max_client_batch_size": "integer", "router": "string", "version": "string", "sha?": "string?",
        "docker_label?": "string?",
    },
    "Token": {"id": "integer", "text": "string", "logprob": "number?", "special": "boolean"},
    "PrefillToken": {"id": "integer", "text": "string", "logprob": "number?"},
    "SimpleToken": {"id": "integer", "text": "string", "start": "integer", "stop": "integer"},
    "TokenizeResponse": ["SimpleToken"],
    "StreamDetails": {
        "finish_reason": "FinishReason", "generated_tokens": "integer", "seed?": "integer?", "input_length": "integer",
    },
    "StreamResponse": {
        "index": "integer", "token": "Token", "top_tokens?": ["Token"], "generated_text?": "string?",
        "details?": "StreamDetails?",
    },
    "BestOfSequence": {
        "generated_text": "string", "finish_reason": "FinishReason", "generated_tokens": "integer", "seed?": "integer?",
        "prefill": ["PrefillToken"], "tokens": ["Token"], "top_tokens?": [["Token"]],
    },
    "Details": {
        "finish_reason": "FinishReason", "generated_tokens": "integer", "seed?": "integer?",
        "prefill": ["PrefillToken"], "tokens": ["Token"], "top_tokens?": [["Token"]],
        "best_of_sequences?": (["BestOfSequence"], None),
    },
    "GenerateResponse": {"generated_text": "string", "details?": "Details?"},
    "GenerateParameters": {
        "adapter_id?": "string?", "best_of?": "integer?", "decoder_input_details?": "boolean", "details?": "boolean",
        "do_sample?": "boolean", "frequency_penalty?": "number?", "grammar?": "GrammarType?",
        "max_new_tokens?": "integer?", "repetition_penalty?": "number?", "return_full_text?": "boolean?",
        "seed?": "integer?", "stop?": ["string"], "temperature?": "number?", "top_k?": "integer?",
        "top_n_tokens?": "integer?", "top_p?": "number?", "truncate?": "integer?", "typical_p?": "number?",
        "watermark?": "boolean",
    },
    "GenerateRequest": {"inputs": "string", "parameters?": "GenerateParameters"},
    "CompatGenerateRequest": {"inputs": "string", "parameters?": "GenerateParameters", "stream?": "boolean"},
    "ModelInfo": {"id": "string", "object": "string", "created": "integer", "owned_by": "string"},
    "Usage": {"prompt_tokens": "integer", "completion_tokens": "integer", "total_tokens": "integer"},
    "CompletionComplete": {
        "index": "integer", "text": "string", "finish_reason": "string", "logprobs?": (["number"], None),
    },
    "CompletionFinal": {
        "id": "string", "created": "integer", "model": "string", "system_fingerprint": "string",
        "choices": ["CompletionComplete"], "usage": "Usage",
    },
    "TextMessage": {"role": "string", "content": "string", "tool_call_id?": "string?"},
    "ChatCompletionComplete": {
        "index": "integer", "message": "OutputMessage", "finish_reason": "string",
        "logprobs?": "ChatCompletionLogprobs?",
    },
    "ChatCompletion": {
        "id": "string", "created": "integer", "model": "string", "system_fingerprint": "string",
        "choices": ["ChatCompletionComplete"], "usage": "Usage",
    },
}  # fmt: skip
KINDS_OF_PYTHON = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
NOT_NEEDED = ("GrammarType", "ChatCompletionLogprobs")  # never sent, never answered


def wrong(value: Any, kind: Any, where: str = "") -> list[str]:
    """All that is wrong with a value of that kind; fields that the kind doesn't have too."""
    if isinstance(kind, tuple) and None in kind:
        return [] if value is None else wrong(value, kind[0], where)
    if isinstance(kind, tuple):
        return [] if value in kind else [f"{where}: {value!r} is none of {kind}"]
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [
            w for i, item in enumerate(value) for w in wrong(item, kind[0], f"{where}[{i}]")
        ]
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no object"]
        kinds = {name.removesuffix("?"): k for name, k in kind.items()}
        found = [
            f"{where}.{name} is missing"
            for name in kind
            if not name.endswith("?") and name not in value
        ]
        found += [
            f"{where}.{name} is not in the description"
            for name in value
            if name not in kinds
        ]
        return found + [
            w
            for n, v in value.items()
            if n in kinds
            for w in wrong(v, kinds[n], f"{where}.{n}")
        ]
    name = kind.removesuffix("?")
    if value is None and name != kind:
        return []
    if name == "OutputMessage":
        name = "TextMessage"  # the other is a tool's call
    if name in KINDS:
        return wrong(value, KINDS[name], where or name)
    if name in NOT_NEEDED:
        return [f"{where}: {value!r} is more than this test knows"]
    good = isinstance(value, KINDS_OF_PYTHON[name]) and not (
        name != "boolean" and isinstance(value, bool)
    )
    return [] if good else [f"{where}: {value!r} is no {name}"]


def in_short(schema: dict[str, Any]) -> Any:
    """A type of the description, in the form above."""
    kind: Any
    if "$ref" in schema:
        kind = schema["$ref"].rsplit("/", 1)[1]
    elif "allOf" in schema:
        (part,) = schema["allOf"]
        kind = in_short(part)
    elif "enum" in schema:
        return tuple(schema["enum"])
    elif schema["type"] == "array":
        kind = [in_short(schema["items"])]
    elif schema["type"] == "object":
        must = schema.get("required", [])
        return {
            n if n in must else n + "?": in_short(s)
            for n, s in schema["properties"].items()
        }
    else:
        kind = schema["type"]
    if not schema.get("nullable"):
        return kind
    return (kind, None) if isinstance(kind, list) else kind + "?"


@pytest.mark.skipif(
    not os.environ.get("DYNO_TGI_OPENAPI"),
    reason="DYNO_TGI_OPENAPI names no openapi.json of TGI",
)
def test_the_short_form_says_what_the_description_says() -> None:
    schemas = json.loads(Path(os.environ["DYNO_TGI_OPENAPI"]).read_text())["components"][
        "schemas"
    ]
    assert {name: in_short(schemas[name]) for name in KINDS} == KINDS


@pytest.mark.parametrize(
    ("token", "complaint"),
    [
        ({"id": 1, "text": "a", "logprob": None, "special": False}, None),
        ({"id": 1, "text": "a", "special": False}, "Token.logprob is missing"),
        (
            {"id": True, "text": "a", "logprob": -1, "special": False},
            "Token.id: True is no integer",
        ),
        (
            {"id": 1, "text": None, "logprob": -1, "special": False},
            "Token.text: None is no string",
        ),
        (
            {"id": 1, "text": "a", "logprob": -1, "special": False, "x": 1},
            "Token.x is not in the description",
        ),
    ],
)
def test_the_short_form_finds_what_is_wrong(token: Any, complaint: str | None) -> None:
    assert wrong(token, "Token") == ([complaint] if complaint else [])
    assert wrong({"index": 1, "token": token}, "StreamResponse") == (
        [complaint.replace("Token", "StreamResponse.token", 1)] if complaint else []
    )


def test_dyno_knows_all_of_tgis_parameters_and_no_other() -> None:
    assert PROTOCOLS["tgi"].fields == {
        name.removesuffix("?") for name in KINDS["GenerateParameters"]
    }


# ---- what dyno asks ----

SAMPLING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.7}, {"temperature": 0.7, "do_sample": True}),
    # greedy without do_sample
    ({"temperature": 1.0}, {"temperature": 1.0, "do_sample": True}),
    ({"temperature": 0.0}, {}),  # refused; greedy is to give none
    ({"temperature": 0.0, "top_p": 0.9, "top_k": 40}, {}),  # a filter alone would sample
    ({"top_p": 1.0}, {}),  # refused, though the description allows it
    ({"top_k": -1}, {}),
    (
        {"temperature": 0.7, "top_p": 1.0, "top_k": 0},
        {"temperature": 0.7, "do_sample": True},
    ),
    ({"top_p": 0.9, "top_k": 40}, {"top_p": 0.9, "top_k": 40, "do_sample": True}),
    ({"seed": 7, "repetition_penalty": 1.1}, {"seed": 7, "repetition_penalty": 1.1}),
    ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
]


@pytest.mark.parametrize(("asked", "sent"), SAMPLING)
def test_sampling_is_reported_in_values_that_tgi_takes(
    shared_fake: StartFake, asked: Any, sent: Any
) -> None:
    body = PROTOCOLS["tgi"].body(
        Request("a b c", 3, 8), Asked("m", ignore_eos=True, sampling=asked)
    )
    assert wrong(body, "CompatGenerateRequest") == []
    given = dict(body["parameters"])
    assert {name: given.pop(name) for name in ("max_new_tokens", "details", "decoder_input_details")} == {
        "max_new_tokens": 8, "details": True, "decoder_input_details": False,
    }  # fmt: skip
    assert given == sent
    assert "error" not in events(shared_fake(), "/generate_stream", body)[-1]


def test_further_fields_are_tgis_parameters() -> None:
    body = PROTOCOLS["tgi"].body(
        Request("a", 1, 4), Asked("m", extra_body={"seed": 3, "stop": ["."], "truncate": 9})
    )
    assert wrong(body, "CompatGenerateRequest") == []
    assert body["parameters"]["seed"] == 3 and body["parameters"]["truncate"] == 9


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"temperature": 0}, "`temperature` must be strictly positive"),
        ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"top_k": -1}, "`top_k` must be strictly positive"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must be strictly positive"),
    ],
)
def test_the_fake_refuses_what_tgi_refuses_and_as_it_does(
    shared_fake: StartFake, parameters: Any, words: str
) -> None:
    server, body = shared_fake(), {"inputs": "a b c", "parameters": parameters}
    error = {"error": f"Input validation error: {words}", "error_type": "validation"}
    assert wrong(error, "ErrorResponse") == []
    assert events(server, "/generate_stream", body) == [error]
    assert call(server, "/generate", body) == (422, error)
    assert call(server, "/", body) == (422, error)
    assert call(server, "/generate", {"parameters": {}})[0] == 422


# ---- what the fake engine answers ----


def call(server: Fake, path: str, body: Any = None) -> tuple[int, Any]:
    client = Client(Url(server.base_url), {})
    try:
        return client.call(path, body)
    finally:
        client.close()


def events(server: Fake, path: str, body: Any) -> list[Any]:
    status, text = call(server, path, body)
    assert status == 200
    parts = text.replace("\r\n", "\n").split("\n\n")
    assert parts.pop() == "" and all(part.startswith("data:{") for part in parts)
    return [json.loads(part.removeprefix("data:")) for part in parts]


ASKED = {"inputs": "a b c", "parameters": {"max_new_tokens": 4, "details": True}}
STREAMS = [("/generate_stream", ASKED), ("/", {**ASKED, "stream": True})]


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_a_stream_counts_its_tokens_and_ends_with_text_and_details(
    shared_fake: StartFake, path: str, body: dict[str, Any]
) -> None:
    reported = events(shared_fake(), path, body)
    assert [w for event in reported for w in wrong(event, "StreamResponse")] == []
    assert [event["index"] for event in reported] == [1, 2, 3, 4]
    assert [event["generated_text"] for event in reported] == [
        None,
        None,
        None,
        " tok tok tok tok",
    ]
    assert [event["details"] for event in reported[:-1]] == [None] * 3
    assert reported[-1]["details"] == {
        "finish_reason": "length",
        "generated_tokens": 4,
        "seed": None,
        "input_length": 3,
    }


@pytest.mark.parametrize(
    ("fault", "text", "tokens"),
    [
        ("short", " tok tok", 3),
        ("end_at_once", "", 1),
        ("cut_utf8", " tok tok tok grüß", 4),
        ("silent", " tok tok", 4),
    ],
)
def test_the_generated_text_is_that_of_the_tokens_but_the_end_token(
    shared_fake: StartFake, fault: str, text: str, tokens: int
) -> None:
    server = shared_fake(faults={fault: 1})
    reported = events(server, "/generate_stream", ASKED)
    assert [w for event in reported for w in wrong(event, "StreamResponse")] == []
    assert (
        "".join(e["token"]["text"] for e in reported if not e["token"]["special"])
        == reported[-1]["generated_text"]
        == text
    )
    assert reported[-1]["details"]["generated_tokens"] == len(reported) == tokens
    assert (reported[-1]["details"]["finish_reason"] == "eos_token") is reported[-1][
        "token"
    ]["special"]
    assert call(server, "/generate", ASKED)[1]["generated_text"] == text


def test_without_details_there_are_none_and_dyno_still_sees_the_end(
    shared_fake: StartFake,
) -> None:
    reported = events(
        shared_fake(),
        "/generate_stream",
        {"inputs": "a", "parameters": {"max_new_tokens": 2}},
    )
    assert reported[-1]["details"] is None and reported[-1]["generated_text"] == " tok tok"
    reading = PROTOCOLS["tgi"].read(
        [(i, json.dumps(e).encode()) for i, e in enumerate(reported)]
    )
    assert (
        reading.done and reading.output_tokens is None and reading.texts == [" tok", " tok"]
    )


@pytest.mark.parametrize(
    ("sampling", "seed"),
    [
        ({"seed": 7}, None),
        ({"seed": 7, "do_sample": True}, 7),
        ({"seed": 8, "top_k": 3}, 8),
    ],
)
def test_the_seed_is_reported_where_it_was_used(
    shared_fake: StartFake, sampling: Any, seed: int | None
) -> None:
    body = {"inputs": "a b c", "parameters": {**ASKED["parameters"], **sampling}}  # type: ignore[dict-item]
    assert events(shared_fake(), "/generate_stream", body)[-1]["details"]["seed"] == seed
    assert call(shared_fake(), "/generate", body)[1]["details"]["seed"] == seed


def test_an_answer_in_one_piece_and_in_a_list_on_the_bare_route(
    shared_fake: StartFake,
) -> None:
    status, answer = call(shared_fake(), "/generate", ASKED)
    assert (status, wrong(answer, "GenerateResponse")) == (200, [])
    assert (
        answer["generated_text"] == " tok tok tok tok"
        and len(answer["details"]["tokens"]) == 4
    )
    assert call(shared_fake(), "/", ASKED) == (200, [answer])
    assert call(shared_fake(), "/generate", {"inputs": "a"})[1] == {
        "generated_text": " tok" * 16
    }


@pytest.mark.parametrize("fault", ["429", "500", "503"])
def test_errors_have_tgis_shape_on_tgis_routes(shared_fake: StartFake, fault: str) -> None:
    server = shared_fake(faults={fault: 1})
    for path in ("/generate", "/"):
        status, answer = call(server, path, ASKED)
        assert (status, wrong(answer, "ErrorResponse")) == (int(fault), [])
    if fault == "429":
        for path, body in STREAMS:
            assert events(server, path, body) == [
                {"error": "Model is overloaded", "error_type": "overloaded"}
            ]
    else:
        assert call(server, "/generate_stream", ASKED) == (status, answer)


def test_an_error_in_the_middle_has_tgis_shape_too(shared_fake: StartFake) -> None:
    *reported, error = events(shared_fake(faults={"error": 1}), "/generate_stream", ASKED)
    assert [e["index"] for e in reported] == [1, 2] and wrong(error, "ErrorResponse") == []


def test_what_the_fake_says_about_itself_is_what_tgi_says(shared_fake: StartFake) -> None:
    server = shared_fake(model="some/model", max_model_len=2048)
    status, info = call(server, "/info")
    assert (status, wrong(info, "Info")) == (200, [])
    assert (info["model_id"], info["max_total_tokens"]) == ("some/model", 2048)
    assert call(server, "/health") == call(server, "/") == (200, "")
    _, models = call(server, "/v1/models")  # a list, whatever the description says
    (card,) = models["data"]
    del card["max_model_len"]  # vLLM's
    assert models["object"] == "list" and wrong(card, "ModelInfo") == []
    status, tokens = call(server, "/tokenize", {"inputs": " to be  or to be"})
    assert (status, wrong(tokens, "TokenizeResponse")) == (200, [])
    assert [(t["text"], t["start"], t["stop"]) for t in tokens][:3] == [
        ("to", 1, 3),
        ("be", 4, 6),
        ("or", 8, 10),
    ]
    assert tokens[0]["id"] == tokens[3]["id"] != tokens[1]["id"]


def test_metrics_count_requests_under_tgis_and_vllms_names(fake: StartFake) -> None:
    server = fake()
    drive(server.base_url, requests(3))
    status, text = call(server, "/metrics")
    lines = text.splitlines()
    assert status == 200 and "tgi_request_count 3" in lines
    assert {
        "tgi_queue_size 0",
        "tgi_batch_current_size 0",
        "vllm:num_requests_running 0",
    } <= set(lines)


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
def test_openais_routes_answer_in_one_piece_where_no_stream_is_asked_for(
    shared_fake: StartFake, stream: Any
) -> None:
    asked = {"model": "fake", "max_tokens": 4, **stream}
    status, answer = call(shared_fake(), "/v1/completions", {**asked, "prompt": "a b c"})
    assert (status, answer.pop("object"), wrong(answer, "CompletionFinal")) == (
        200,
        "text_completion",
        [],
    )
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (
        " tok tok tok tok",
        "length",
    )
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
    }
    chat = {
        **asked,
        "messages": [{"role": "user", "content": "a b"}],
        "stream_options": None,
    }
    status, answer = call(shared_fake(), "/v1/chat/completions", chat)
    assert (status, answer.pop("object"), wrong(answer, "ChatCompletion")) == (
        200,
        "chat.completion",
        [],
    )
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": " tok tok tok tok",
    }
    assert answer["usage"]["total_tokens"] == 6


@pytest.mark.parametrize("body", [[], "text", 3])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/tokenize"])
def test_a_body_that_is_not_an_object_is_refused_and_the_server_lives(
    shared_fake: StartFake, path: str, body: Any
) -> None:
    assert call(shared_fake(), path, body)[0] == 400
    assert call(shared_fake(), "/health")[0] == 200


# ---- TGI's streams on OpenAI's routes, as its router writes them ----


def completion(text: str, finish_reason: str, tokens: int | None = None) -> bytes:
    event: dict[str, Any] = {
        "object": "text_completion", "id": "", "created": 1, "model": "m", "system_fingerprint": "3.3.6-native",
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}],
    }  # fmt: skip
    if tokens is not None:
        event["usage"] = {
            "prompt_tokens": 2,
            "completion_tokens": tokens,
            "total_tokens": 2 + tokens,
        }
    return json.dumps(event).encode()


def read(*reported: bytes, backend: str = "openai") -> StreamReading:
    """One event a nanosecond."""
    return PROTOCOLS[backend].read(list(enumerate(reported)))


def test_an_empty_finish_reason_is_none_and_its_token_keeps_its_place() -> None:
    reading = read(
        completion(" a", ""),
        completion("", ""),
        completion(" c", ""),
        completion(" d", "length", 4),
    )
    assert reading.chunk_ends == [0, 1, 2, 3]
    assert reading.texts == [" a", "", " c", " d"]
    assert (reading.finish_reason, reading.output_tokens, reading.prompt_tokens) == (
        "length",
        4,
        2,
    )


def test_a_cut_stream_of_empty_finish_reasons_has_none() -> None:
    reading = read(completion(" a", ""), completion(" b", ""))
    assert reading.finish_reason is None and not reading.done


@pytest.mark.parametrize(
    ("word", "reason", "texts"),
    [
        # the last one's text is the end token's own
        ("eos_token", "stop", [" a", " b", ""]),
        ("stop_sequence", "stop", [" a", " b", "</s>"]),
        ("length", "length", [" a", " b", "</s>"]),
    ],
)
def test_tgis_reasons_are_reported_in_openais_words(
    word: str, reason: str, texts: list[str]
) -> None:
    reading = read(
        completion(" a", ""), completion(" b", ""), completion("</s>", word, 3), b"[DONE]"
    )
    assert (reading.finish_reason, reading.texts, reading.chunk_ends) == (
        reason,
        texts,
        [0, 1, 2],
    )
    assert reading.done and reading.output_tokens == 3


def test_an_end_token_alone_is_not_text() -> None:
    reading = read(completion("</s>", "eos_token", 1))
    assert (reading.chunk_ends, reading.output_tokens, reading.finish_reason) == (
        [],
        1,
        "stop",
    )


def test_a_finish_reason_before_the_last_text_puts_no_time_out_of_order() -> None:
    reading = read(
        completion(" a", ""),
        completion("", "stop"),
        completion(" b", ""),
        completion(" c", "stop", 4),
    )
    assert reading.chunk_ends == [0, 1, 2, 3] and reading.texts == [" a", "", " b", " c"]


def chat(content: str, finish_reason: str | None) -> bytes:
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": content},
        "finish_reason": finish_reason,
    }
    return json.dumps(
        {"object": "chat.completion.chunk", "id": "", "choices": [choice], "usage": None}
    ).encode()


def test_tgis_chat_has_no_role_chunk_and_its_first_one_is_the_first_token() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    last = json.dumps({"choices": [], "usage": usage}).encode()
    reading = read(
        chat(" a", None),
        chat("", None),
        chat(" c", "stop_sequence"),
        last,
        b"[DONE]",
        backend="openai-chat",
    )
    assert (reading.chunk_ends, reading.texts, reading.empty_chunks) == (
        [0, 1, 2],
        [" a", "", " c"],
        0,
    )
    assert (reading.finish_reason, reading.output_tokens) == ("stop", 3)


def test_an_error_event_of_tgis_openai_routes_is_an_error() -> None:
    reading = read(
        b'{"error":{"message":"Model is overloaded","http_status_code":422}}', b"[DONE]"
    )
    assert (reading.error, reading.error_detail) == ("stream_error", "Model is overloaded")


@pytest.mark.engines
def test_tgi_before_2_3_reports_no_prompt_length() -> None:
    details = {"finish_reason": "stop_sequence", "generated_tokens": 1, "seed": None}
    event = {
        "token": {"id": 1, "text": " a", "logprob": None, "special": False},
        "details": details,
    }
    reading = read(json.dumps(event).encode(), backend="tgi")
    assert (reading.prompt_tokens, reading.output_tokens, reading.finish_reason) == (
        None,
        1,
        "stop",
    )
