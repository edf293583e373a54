"""The embedded engine: llama.cpp's server from the `xllamacpp` wheel, with those of llama-server's flags that matter.

Run as a process of its own (`python -m dyno.engines.embedded`); kinds/llamacpp.py starts it.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

_CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="dyno's llama.cpp", allow_abbrev=False)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-a", "--alias")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("-np", "--parallel", type=int, default=1)
    p.add_argument(
        "-c", "--ctx-size", type=int, default=0, help="tokens of all slots together; 0: the model's context length"
    )
    p.add_argument("-t", "--threads", type=int)
    p.add_argument("-b", "--batch-size", type=int)
    p.add_argument("-ub", "--ubatch-size", type=int)
    p.add_argument("-ngl", "--n-gpu-layers", "--gpu-layers", type=int)
    p.add_argument("-ctk", "--cache-type-k", choices=_CACHE_TYPES)
    p.add_argument("-ctv", "--cache-type-v", choices=_CACHE_TYPES)
    p.add_argument("-fa", "--flash-attn", choices=("on", "off", "auto"))
    p.add_argument("--spec-draft-model", "--model-draft")
    p.add_argument("--spec-type", choices=("draft-simple",))
    p.add_argument("--spec-draft-n-max", "--draft-max", type=int)
    p.add_argument("--cache-prompt", action=argparse.BooleanOptionalAction, default=False)
    p.add_argument("--cache-ram", type=int, default=0, metavar="MiB")
    p.add_argument("--cache-reuse", type=int, default=0)
    p.add_argument("-kvu", "--kv-unified", action="store_true")
    p.add_argument("--metrics", action="store_true", help="always on")
    return p


def _parameters(options: argparse.Namespace) -> Any:
    from xllamacpp import CommonParams, common_speculative_type, llama_flash_attn_type

    params = CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias or options.model}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx_size
    params.kv_unified = options.kv_unified
    params.n_cache_reuse = options.cache_reuse
    if options.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    for name, value in (
        ("n_batch", options.batch_size),
        ("n_ubatch", options.ubatch_size),
        ("n_gpu_layers", options.n_gpu_layers),
        ("cache_type_k", _CACHE_TYPES.get(options.cache_type_k)),
        ("cache_type_v", _CACHE_TYPES.get(options.cache_type_v)),
    ):
        if value is not None:
            setattr(params, name, value)
    if options.flash_attn:
        kind = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[options.flash_attn]
        params.flash_attn_type = getattr(llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{kind}")
    if options.spec_draft_model:
        params.speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = options.spec_draft_model
        if options.spec_draft_n_max is not None:
            params.speculative.draft.n_max = options.spec_draft_n_max
    # An open connection holds a thread, an idle one for 5 s. Above this number the pool should grow, but at
    # times doesn't, and a request then waited 5 to 10 s (6 of 24 tries; 0 of 12 below). The default is slots + 4.
    params.n_threads_http = max(128, 4 * options.parallel)
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    params.cors_origins = ""  # no page in a browser has business here
    # Unless asked otherwise each request pays for its own prompt: a prefix left by an earlier one would flatter the
    # first token.
    params.cache_prompt = options.cache_prompt
    params.cache_ram_mib = options.cache_ram
    params.fit_params = False  # what is set here is what runs, whatever the memory
    return params


def server(flags: Sequence[str]) -> Any:
    """Return a server that runs in threads of its own for as long as it is referenced."""
    from xllamacpp import Server, get_system_info

    print("system_info:", get_system_info(), flush=True)  # as llama-server begins its log
    return Server(_parameters(_parser().parse_args(flags)))


def main() -> None:
    # It shares the machine with the client that measures it. Threads that spin while they wait gave one stream
    # 26 tokens/s where something else used one of two cores, against 80; on idle cores this costs about 10 %.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    running = server(sys.argv[1:])
    print("listening on", running.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
