"""The embedded engine: llama.cpp's server from the `xllamacpp` wheel, with those of llama-server's flags that matter.

Run as a process of its own (`python -m dyno.engines.embedded`); kinds/llamacpp.py starts it.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from dyno.errors import UsageError
from dyno.facts import llama
from dyno.option import setting_name

_CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_NUMBERS = ("n_gpu_layers", "n_batch", "n_ubatch", "n_parallel", "n_ctx", "n_cache_reuse")
_SWITCHES = {
    "kv_unified": "-kvu --kv-unified", "cont_batching": "-cb --cont-batching", "ctx_shift": "--context-shift",
    "warmup": "--warmup", "swa_full": "--swa-full", "use_jinja": "--jinja", "no_kv_offload": "--no-kv-offload",
    "no_op_offload": "--no-op-offload", "no_host": "--no-host",
}  # fmt: skip
_POOLINGS = ("none", "mean", "cls", "last", "rank")
_LOAD_MODES = {
    "auto": "AUTO",
    "none": "NONE",
    "mmap": "MMAP",
    "mlock": "MLOCK",
    "mmap+mlock": "MMAP_MLOCK",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"The llama.cpp that comes with dyno can't run this ({message}). Remove it, or use a llama-server "
            f"(`dyno engines install llamacpp`, or {setting_name('--engine-binary')})."
        )


def _parser() -> argparse.ArgumentParser:
    """Return a parser. Flags whose `dest` is one of the library's parameters are copied to it."""
    p = _Parser(allow_abbrev=False)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-a", "--alias")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    for key in _NUMBERS:
        p.add_argument(*llama.NAMES[key], dest=key, type=int)
    for key, names in _SWITCHES.items():
        p.add_argument(*names.split(), dest=key, action=argparse.BooleanOptionalAction)
    p.add_argument("-nocb", dest="cont_batching", action="store_false", default=None)
    p.add_argument("-t", "--threads", type=int)
    p.add_argument("-tb", "--threads-batch", type=int)
    p.add_argument("-ctk", "--cache-type-k", choices=_CACHE_TYPES)
    p.add_argument("-ctv", "--cache-type-v", choices=_CACHE_TYPES)
    p.add_argument("-fa", "--flash-attn", choices=("on", "off", "auto"))
    p.add_argument("--load-mode", choices=_LOAD_MODES)
    p.add_argument("--spec-draft-model", "--model-draft")
    p.add_argument("--spec-type", choices=("draft-simple",))
    p.add_argument("--spec-draft-n-max", "--draft-max", type=int)
    p.add_argument("--embeddings", "--embedding", action="store_true")
    p.add_argument("--pooling", choices=_POOLINGS)
    p.add_argument("--rerank", "--reranking", action="store_true")
    p.add_argument("--mmproj")  # projector of images
    p.add_argument("--cache-prompt", action=argparse.BooleanOptionalAction)
    p.add_argument("--cache-ram", type=int, default=0, metavar="MiB")
    p.add_argument("--metrics", action="store_true", help="always on")
    # n_ctx: of all slots together; 0: the model's
    p.set_defaults(n_parallel=1, n_ctx=0, n_cache_reuse=0)
    return p


def check(flags: Sequence[str]) -> None:
    """Raise UsageError for a flag that this engine doesn't have, without loading it."""
    _parser().parse_args(["--model", "", "--port", "1", *flags])


def _parameters(options: argparse.Namespace) -> Any:
    from xllamacpp import (
        CommonParams,
        common_speculative_type,
        llama_flash_attn_type,
        llama_load_mode,
    )

    params = CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias or options.model}
    params.hostnames = [options.host]
    params.port = options.port
    if options.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    if options.threads_batch is not None:
        params.cpuparams_batch.n_threads = options.threads_batch
    for name, value in (
        *((key, getattr(options, key)) for key in (*_NUMBERS, *_SWITCHES)),
        ("cache_type_k", _CACHE_TYPES.get(options.cache_type_k)),
        ("cache_type_v", _CACHE_TYPES.get(options.cache_type_v)),
    ):
        if value is not None:
            setattr(params, name, value)
    if options.load_mode:
        params.load_mode = getattr(
            llama_load_mode, f"LLAMA_LOAD_MODE_{_LOAD_MODES[options.load_mode]}"
        )
    if options.flash_attn:
        kind = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[options.flash_attn]
        params.flash_attn_type = getattr(
            llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{kind}"
        )
    if options.spec_draft_model:
        params.speculative.types = [
            common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        ]
        params.speculative.draft.mparams.path = options.spec_draft_model
        if options.spec_draft_n_max is not None:
            params.speculative.draft.n_max = options.spec_draft_n_max
    _set_inputs(params, options)
    # An open connection holds a thread, an idle one for 5 s. Above this number the pool should grow, but at
    # times doesn't, and a request then waited 5 to 10 s (6 of 24 tries; 0 of 12 below). The default is slots + 4.
    params.n_threads_http = max(128, 4 * options.n_parallel)
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    params.cors_origins = ""  # no page in a browser has business here
    # Unless asked otherwise each request pays for its own prompt: a prefix left by an earlier one would flatter the
    # first token. --cache-reuse needs it.
    params.cache_prompt = (
        bool(options.n_cache_reuse)
        if options.cache_prompt is None
        else options.cache_prompt
    )
    params.cache_ram_mib = options.cache_ram
    params.fit_params = False  # what is set here is what runs, whatever the memory
    return params


def _set_inputs(params: Any, options: argparse.Namespace) -> None:
    """Set what the model takes and returns besides text."""
    from xllamacpp import llama_pooling_type

    if options.embeddings or options.rerank:
        params.embedding = True
    if pooling := "rank" if options.rerank else options.pooling:
        kind = f"LLAMA_POOLING_TYPE_{pooling.upper()}"
        params.pooling_type = getattr(llama_pooling_type, kind)
    if options.mmproj:
        params.mmproj.path = options.mmproj


def server(flags: Sequence[str]) -> Any:
    """Return a server that runs in threads of its own for as long as it is referenced."""
    from xllamacpp import Server, get_system_info

    print("system_info:", get_system_info(), flush=True)  # as llama-server begins its log
    return Server(_parameters(_parser().parse_args(flags)))


def main() -> None:
    # It shares the machine with the client that measures it. Threads that spin while they wait gave one stream
    # 26 tokens/s where something else used one of two cores, against 80; on idle cores this costs about 10 %.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        running = server(sys.argv[1:])
    except UsageError as e:
        sys.exit(str(e))
    print("listening on", running.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
