"""What a server says of itself by its routes, in the shapes that the real ones have."""

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from conftest import Scripted, receive_request
from dyno.errors import TargetError
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.http import Client, Url
from dyno.probe import server

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

SPEC = TargetSpec("", "openai", "/v1/completions")
Serve = Callable[..., TargetFacts]

VLLM_METRICS = (
    "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="False",engine="0",'
    'gpu_memory_utilization="0.92",num_gpu_blocks="57489"} 1.0\n'
)
VLLM = {
    "/v1/models": {
        "data": [
            {
                "id": "llama8b",
                "root": "models/llama8b",
                "max_model_len": 8192,
                "owned_by": "vllm",
            }
        ]
    },
    "/version": {"version": "0.24.0"},
    "/metrics": VLLM_METRICS,
}
LLAMA = {
    "/v1/models": {
        "data": [
            {
                "id": "tiny",
                "aliases": ["tiny"],
                "meta": {"ftype": "Q8_0", "size": 27_740_160},
            }
        ]
    },
    "/props": {
        "default_generation_settings": {"n_ctx": 256},
        "total_slots": 16,
        "model_path": "/models/llama-2-7b.Q8_0.gguf",
        "build_info": "b6123-79c1160b",
    },
}
TGI = {
    "/info": {
        "model_id": "meta-llama/Llama-3.1-405B", "max_concurrent_requests": 128, "max_best_of": 2,
        "max_stop_sequences": 4, "max_input_tokens": 4095, "max_total_tokens": 4096, "validation_workers": 2,
        "max_client_batch_size": 4, "router": "text-generation-router", "version": "3.3.6",
    }
}  # fmt: skip
SGLANG = {
    "/v1/models": {"data": [{"id": "q", "root": "q", "max_model_len": 32768}]},
    "/get_server_info": {
        "model_path": "Qwen/Qwen3-8B", "version": "0.5.2", "tp_size": 2, "quantization": "fp8", "dtype": "auto",
        "kv_cache_dtype": "auto", "disable_radix_cache": True, "max_running_requests": 256, "context_length": None,
        "max_total_num_tokens": 500_000,
    },
}  # fmt: skip


@pytest.fixture
def serve(scripted: Callable[..., Scripted]) -> Serve:
    """Looks at a server that has these routes and no others."""

    def look(routes: dict[str, Any], spec: TargetSpec = SPEC) -> TargetFacts:
        def talk(sock: Any, _: int) -> None:
            while data := sock.recv(65536):
                answer = routes.get(data.split(b" ")[1].decode().partition("?")[0])
                body = (
                    answer.encode()
                    if isinstance(answer, str)
                    else json.dumps(answer or {}).encode()
                )
                status = b"200 OK" if answer is not None else b"404 Not Found"
                sock.sendall(
                    b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s"
                    % (status, len(body), body)
                )

        client = Client(Url(scripted(talk).base_url), {})
        try:
            return server.read_target(client, spec)
        finally:
            client.close()

    return look


def test_vllm_reports_its_version_cache_and_context(serve: Serve) -> None:
    assert serve(VLLM) == TargetFacts(
        model="llama8b", models_listed=["llama8b"], max_model_len=8192, version="0.24.0", kind="vllm",
        model_path="models/llama8b", kv_cache_dtype="auto", kv_cache_tokens=919_824, prefix_caching=False,
        cache_block_tokens=16,
    )  # fmt: skip


def test_vllm_s_developer_mode_reports_slots_dtype_and_quantization(serve: Serve) -> None:
    config = "model='m', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=4, quantization=fp8, x=1"
    facts = serve({**VLLM, "/server_info": {"vllm_config": config}})
    assert (facts.dtype, facts.quantization, facts.tensor_parallel) == (
        "bfloat16",
        "fp8",
        4,
    )
    assert facts.full_length_requests == round(919_824 / 8192, 2)
    parts = {
        "scheduler_config": {"max_num_seqs": 64},
        "model_config": {"dtype": "torch.float16", "quantization": None},
    }
    facts = serve({**VLLM, "/server_info": {"vllm_config": parts}})
    assert (facts.slots, facts.dtype, facts.quantization) == (64, "float16", "")


def test_llama_cpp_reports_slots_context_of_a_slot_and_the_file(serve: Serve) -> None:
    assert serve(LLAMA) == TargetFacts(
        model="tiny", models_listed=["tiny"], max_model_len=256, version="b6123-79c1160b", kind="llamacpp",
        model_path="/models/llama-2-7b.Q8_0.gguf", slots=16, quantization="Q8_0", weights_bytes=27_740_160,
    )  # fmt: skip


def test_tgi_without_a_model_list_reports_by_info(serve: Serve) -> None:
    assert serve(TGI) == TargetFacts(
        model="meta-llama/Llama-3.1-405B", models_listed=["meta-llama/Llama-3.1-405B"], max_model_len=4096,
        version="3.3.6", kind="tgi", model_path="meta-llama/Llama-3.1-405B",
    )  # fmt: skip


def test_sglang_reports_its_arguments(serve: Serve) -> None:
    assert serve(SGLANG) == TargetFacts(
        model="q", models_listed=["q"], max_model_len=32768, version="0.5.2", kind="sglang",
        model_path="Qwen/Qwen3-8B", slots=256, quantization="fp8", kv_cache_tokens=500_000, prefix_caching=False,
        tensor_parallel=2,
    )  # fmt: skip


def test_transformers_serve_lists_its_cache_which_is_not_what_it_serves(
    serve: Serve,
) -> None:
    routes = {
        "/v1/models": {"data": []},
        "/openapi.json": {"paths": {"/load_model": {}, "/v1/completions": {}}},
    }
    spec = TargetSpec("", "transformers", "/v1/completions", "/models/tiny")
    assert serve(routes, spec) == TargetFacts(
        model="/models/tiny", models_listed=None, kind="transformers"
    )


def test_a_bare_openai_server_reports_its_models_only(serve: Serve) -> None:
    assert serve({"/v1/models": {"data": [{"id": "gpt"}]}}) == TargetFacts(
        model="gpt", models_listed=["gpt"]
    )


def test_a_server_without_names_needs_one(serve: Serve) -> None:
    with pytest.raises(TargetError, match="lists no models"):
        serve({})
    assert serve({}, TargetSpec("", "openai", "", "m")) == TargetFacts(model="m")


@pytest.mark.parametrize(
    "odd", [[], "text", {"data": 3}, {"data": ["x"]}, {"data": [{"id": 3}]}]
)
def test_an_odd_answer_is_not_a_crash(serve: Serve, odd: Any) -> None:
    routes = dict.fromkeys(
        ("/v1/models", "/version", "/metrics", "/props", "/info", "/get_server_info"), odd
    )
    assert serve(routes, TargetSpec("", "openai", "", "m")).model == "m"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": {"message": "No such model: x.", "code": 404}}, "No such model: x."),
        ({"error": {"type": "bad", "code": 7}}, '{"type": "bad", "code": 7}'),
        (
            {"detail": [{"loc": ["body", "model"], "msg": "field required", "type": "t"}]},
            "body.model: field required",
        ),
        ({"errors": ["too long", {"message": "too short"}]}, "too long; too short"),
        ({"detail": "Not here"}, "Not here"),
    ],
)
def test_a_failed_test_request_quotes_the_servers_message_and_no_python(
    scripted: Callable[..., Scripted], answer: Any, words: str
) -> None:
    def talk(sock: Any, _: int) -> None:
        receive_request(sock)
        body = json.dumps(answer).encode()
        head = b"HTTP/1.1 422 Unprocessable\r\ncontent-length: %d\r\n\r\n" % len(body)
        sock.sendall(head + body)

    url = scripted(talk).base_url
    tried = server.attempt(Url(url), {}, "/v1/completions", {}, 5.0)
    assert tried.problem == f"it answers 422: {words}"


def test_a_server_that_closes_the_connection_is_described_in_words(
    scripted: Callable[..., Scripted],
) -> None:
    def reset(sock: Any, _: int) -> None:
        receive_request(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    url = scripted(reset).base_url
    tried = server.attempt(Url(url), {}, "/v1/completions", {}, 5.0)
    assert f"{url} closed the connection before it answered. Read its log." in tried.problem
    assert "Errno" not in tried.problem
