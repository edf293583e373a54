"""Ask a running server for its models, version, limits, quantization and cache."""

import contextlib
import json
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from dyno import files
from dyno.errors import TargetError
from dyno.facts.target import CONTROL, TargetFacts, TargetSpec, is_name, known
from dyno.http import Client, Url
from dyno.numbers import count
from dyno.transport import DIRECT, Transport

_MODELS_MAX = 1000  # of a list: a gateway's has hundreds
_SAME = {"models_listed": "list of models", "max_model_len": "context", "version": "version"}  # in all replicas
_MESSAGE = ("error", "message", "detail")  # keys of an error, by the habits of several servers


def look(client: Client, spec: TargetSpec) -> TargetFacts:
    """Raises TargetError if nothing answers, or no model is named and none is listed."""
    model = spec.served_model_name or spec.model
    status, answer = client.call("/v1/models")
    if status in (401, 403) and model is None:
        raise TargetError(
            f"{client.url} answers {status} at /v1/models: it requires a key. Set OPENAI_API_KEY, or use --header "
            "'Authorization=Bearer …'."
        )
    cards = answer.get("data") if status == 200 and isinstance(answer, dict) else None
    cards = [c for c in cards if isinstance(c, dict)] if isinstance(cards, list) else None
    readers = (_vllm, _llamacpp, _tgi, _sglang, _transformers)
    reported = next((values for read in readers if (values := read(client, cards or []))), {})
    reported = {name: value for name, value in reported.items() if value is not None}
    facts = known({"max_model_len": next((c.get("max_model_len") for c in cards or []), None)}) | known(reported)
    # transformers serve lists what is in its cache, not what it serves.
    listed = None if cards is None or facts.get("kind") == "transformers" else _names(cards, model)
    if listed is None and is_name(reported.get("model_id")):
        listed = [reported["model_id"]]
    if model is None:
        if not listed:
            raise TargetError(f"{client.url} lists no models at /v1/models. Name the model with --model.")
        model = listed[0]
    return TargetFacts(**{**facts, "model": model, "models_listed": listed})


def look_at_all(clients: Sequence[Client], spec: TargetSpec) -> TargetFacts:
    """The facts of replicas, which must be copies: TargetError where two differ."""
    first, *others = [look(client, spec) for client in clients]
    for client, other in zip(clients[1:], others, strict=True):
        for field, name in _SAME.items():
            a, b = getattr(first, field), getattr(other, field)
            if a != b:
                one, two = (", ".join(v) if isinstance(v, list) else str(v) for v in (a, b))
                raise TargetError(
                    f"{clients[0].url} and {client.url} are not copies of one server: the first has {name} "
                    f"{one[:300]}, the other {two[:300]}. Give both the same settings, or measure each alone."
                )
    return first


def _names(cards: list[dict[str, Any]], wanted: str | None) -> list[str]:
    lists = [c["aliases"] for c in cards if isinstance(c.get("aliases"), list)]
    names = [*(c.get("id") for c in cards), *(alias for names in lists for alias in names)]
    known_names = list(dict.fromkeys(filter(is_name, names)))
    return known_names[:_MODELS_MAX] + [name for name in known_names[_MODELS_MAX:] if name == wanted]


def _get(client: Client, path: str) -> Any:
    """The answer, or None: some gateways close the connection on a path they don't know."""
    try:
        status, answer = client.call(path)
    except TargetError:
        return None
    return answer if status == 200 else None


def _object(client: Client, path: str) -> dict[str, Any]:
    answer = _get(client, path)
    return answer if isinstance(answer, dict) else {}


def _vllm(client: Client, cards: list[dict[str, Any]]) -> dict[str, Any] | None:
    version = _object(client, "/version").get("version")
    if not isinstance(version, str):
        return None
    facts: dict[str, Any] = {"kind": "vllm", "version": version, "model_path": _text(cards, "root")}
    metrics = _get(client, "/metrics")
    cache = re.search(r"^vllm:cache_config_info\{(.*)\}", metrics, re.M) if isinstance(metrics, str) else None
    if cache:
        label = dict(re.findall(r'(\w+)="([^"]*)"', cache[1]))
        blocks, size = _number(label.get("num_gpu_blocks", "")), _number(label.get("block_size", ""))
        facts["kv_cache_tokens"] = _number(label.get("kv_cache_size_tokens", ""))
        if facts["kv_cache_tokens"] is None and blocks and size:
            facts["kv_cache_tokens"] = blocks * size
        facts["cache_block_tokens"] = size
        facts["kv_cache_dtype"] = label.get("cache_dtype")
        facts["prefix_caching"] = {"True": True, "False": False}.get(label.get("enable_prefix_caching", ""))
    facts = known(facts | _server_info(_object(client, "/server_info?config_format=json").get("vllm_config")))
    if "kv_cache_tokens" in facts and "max_model_len" in facts:
        facts["full_length_requests"] = round(facts["kv_cache_tokens"] / facts["max_model_len"], 2)
    return facts


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None


def _server_info(config: Any) -> dict[str, Any]:
    """vLLM's whole configuration, as text or as an object; it shows it with VLLM_SERVER_DEV_MODE=1 only."""
    text = config if isinstance(config, str) else ""
    patterns = {
        "quantization": r"\bquantization='?([\w-]+)",
        "dtype": r"\bdtype=(?:torch\.)?(\w+)",
        "max_model_len": r"\bmax_seq_len=(\d+)",
        "tensor_parallel": r"\btensor_parallel_size=(\d+)",
        "slots": r"\bmax_num_seqs=(\d+)",
    }
    out: dict[str, Any] = {}
    for name, pattern in patterns.items():
        if m := re.search(pattern, text):
            out[name] = _number(m[1]) if pattern.endswith(r"(\d+)") else m[1]
            if m[1] == "None":
                out[name] = "" if name == "quantization" else None
    if isinstance(config, dict):
        parts = [p for p in config.values() if isinstance(p, dict)]
        for name, key in (("slots", "max_num_seqs"), ("quantization", "quantization"), ("dtype", "dtype"),
                          ("tensor_parallel", "tensor_parallel_size"), ("max_model_len", "max_model_len")):  # fmt: skip
            value = next((p[key] for p in parts if p.get(key) is not None), None)
            if value is not None:
                out[name] = value.removeprefix("torch.") if isinstance(value, str) else value
        if any("quantization" in p and p["quantization"] is None for p in parts):
            out.setdefault("quantization", "")
    return out


def _llamacpp(client: Client, cards: list[dict[str, Any]]) -> dict[str, Any] | None:
    props = _object(client, "/props")
    if "default_generation_settings" not in props:
        return None
    settings = props["default_generation_settings"]
    meta: dict[str, Any] = next((c["meta"] for c in cards if isinstance(c.get("meta"), dict)), {})
    return {
        "kind": "llamacpp",
        "version": props.get("build_info"),
        "model_path": props.get("model_path"),
        "slots": props.get("total_slots"),
        "max_model_len": settings.get("n_ctx") if isinstance(settings, dict) else None,
        "quantization": props.get("model_ftype") or meta.get("ftype"),
        "weights_bytes": meta.get("size"),
    }


def _tgi(client: Client, cards: list[dict[str, Any]]) -> dict[str, Any] | None:
    info = _object(client, "/info")
    if not isinstance(info.get("model_id"), str):
        return None
    quantization = info.get("quantize") or info.get("quantization")  # not in every version
    dtype = info.get("model_dtype")
    return {
        "kind": "tgi",
        "model_id": info["model_id"],
        "model_path": info["model_id"],
        "version": info.get("version"),
        "max_model_len": info.get("max_total_tokens"),
        "kv_cache_tokens": info.get("max_batch_total_tokens"),
        "quantization": quantization if isinstance(quantization, str) else None,
        "dtype": dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
    }


def _sglang(client: Client, cards: list[dict[str, Any]]) -> dict[str, Any] | None:
    info = _object(client, "/get_server_info") or _object(client, "/server_info")
    if "model_path" not in info:
        return None
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    radix = info.get("disable_radix_cache")
    return {
        "kind": "sglang",
        "version": info.get("version"),
        "model_path": info.get("model_path"),
        "max_model_len": info.get("context_length") or state.get("max_model_len"),
        "slots": info.get("max_running_requests") or state.get("effective_max_running_requests_per_dp"),
        "quantization": info.get("quantization"),
        "dtype": info.get("dtype") if info.get("dtype") != "auto" else None,
        "kv_cache_dtype": info.get("kv_cache_dtype") if info.get("kv_cache_dtype") != "auto" else None,
        "kv_cache_tokens": info.get("max_total_num_tokens") or state.get("max_total_num_tokens"),
        "tensor_parallel": info.get("tp_size"),
        "prefix_caching": not radix if isinstance(radix, bool) else None,
    }


def _transformers(client: Client, cards: list[dict[str, Any]]) -> dict[str, Any] | None:
    routes = _object(client, "/openapi.json").get("paths")
    return {"kind": "transformers"} if isinstance(routes, dict) and "/load_model" in routes else None


def _text(cards: list[dict[str, Any]], key: str) -> str | None:
    return next((c[key] for c in cards if isinstance(c.get(key), str)), None)


class Attempt(NamedTuple):
    """One try of a generation."""

    completed: bool
    problem: str  # in words, where it wasn't
    settled: bool = False  # waiting won't change that
    status: int = 0  # HTTP's; 0: no answer


def attempt(
    url: Url, headers: dict[str, str], path: str, body: Any, timeout_s: float, via: Transport = DIRECT
) -> Attempt:
    client = Client(url, headers, via, timeout_s=timeout_s)
    try:
        status, answer = client.call(path, body)
    except TargetError as e:
        return Attempt(False, str(e))
    finally:
        client.close()
    problem = CONTROL.sub(" ", f"it answers {status}: {_complaint(answer)[:300]}")
    return Attempt(status == 200 and not _complains(answer), problem, status in (400, 401, 403, 404, 405, 422), status)


def _complaint(answer: Any) -> str:
    """The message of a server's JSON error, or of the first event of a stream; else all that it answers."""
    if isinstance(answer, str) and (event := re.search(r"^data: ?(\{.*\})", answer, re.M)):
        with contextlib.suppress(*files.BROKEN):
            answer = json.loads(event[1])
    while isinstance(answer, dict) and (inner := next(filter(None, map(answer.get, _MESSAGE)), None)):
        answer = inner
    return str(answer)


def _complains(answer: Any) -> bool:
    if isinstance(answer, dict):
        return bool(answer.get("error"))
    return bool(re.search(r'"error"\s*:\s*(?!null\b)', str(answer)[:2000]))  # a stream's first events


def wait_ready(url: Url, headers: dict[str, str], path: str, body: Any, timeout_s: float, via: Transport) -> None:
    """Ready means a completed generation, not an open port or /health."""
    deadline = time.monotonic() + timeout_s
    last = Attempt(False, "nothing answered")
    while (left := deadline - time.monotonic()) > 0 and not last.settled:
        last = attempt(url, headers, path, body, left, via)
        if last.completed:
            return
        time.sleep(min(1.0, max(left, 0)))
    raise TargetError(f"{url} was not ready within {count(timeout_s)} s: {last.problem}")
