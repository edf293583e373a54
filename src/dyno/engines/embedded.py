"""The embedded engine: llama.cpp's server from the `xllamacpp` wheel, in a process of its own."""

import argparse
import importlib.metadata
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Self

from dyno.engines.engine import Engine
from dyno.engines.process import EngineProcess, free_port
from dyno.errors import EngineError, TargetError
from dyno.http import Client, Url


class Embedded(Engine):
    """A running llama.cpp server."""

    @classmethod
    def start(
        cls,
        model_path: Path,
        alias: str,
        parallel: int,
        context_per_slot: int,
        log: Path,
        threads: int | None = None,
        ready_s: float = 60,
        port: int | None = None,
    ) -> Self:
        """Returns once the engine has completed a generation: an open port says nothing about the model."""
        version = _version()
        port = port or free_port()
        # -P: a folder named dyno where the user stands is not this package.
        command = [sys.executable, "-P", "-m", "dyno.engines.embedded"]
        command += ["--model", str(model_path), "--alias", alias, "--port", str(port)]
        command += ["--parallel", str(parallel), "--ctx", str(parallel * context_per_slot)]
        if threads is not None:
            command += ["--threads", str(threads)]
        try:
            process = EngineProcess(command, None, log)
        except OSError as e:
            raise EngineError(f"The embedded engine can't be started: {e}.") from None
        base_url = f"http://127.0.0.1:{port}"
        try:
            build = _first_generation(process, base_url, alias, ready_s)
        except BaseException:
            process.stop()
            raise
        return cls(process, base_url, version if "unknown" in build else f"{version}, llama.cpp {build}")


def _version() -> str:
    # Not by importing it: llama.cpp's libraries and threads have no place in the process that measures.
    try:
        return f"xllamacpp {importlib.metadata.version('xllamacpp')}"
    except importlib.metadata.PackageNotFoundError:
        raise EngineError(
            "The embedded engine needs the package xllamacpp, which isn't installed. "
            "Run `pip install xllamacpp`; where there is no wheel for this machine, start a llama-server "
            "and give its address with --base-url."
        ) from None


def _first_generation(process: EngineProcess, base_url: str, alias: str, ready_s: float) -> str:
    """Wait for one token. Returns the server's build, which its wheels may leave unknown."""
    body = {"model": alias, "prompt": "a", "max_tokens": 1, "ignore_eos": True}
    while (left := ready_s - process.age_s) > 0:
        if not process.alive():
            raise _failed(process, f"exited with code {process.exit_code} after {process.age_s:.1f} s")
        client = Client(Url(base_url), {}, timeout_s=left)
        try:
            status, answer = client.call("/v1/completions", body)
        except TargetError:
            status = 503  # it doesn't listen yet
        finally:
            client.close()
        # The name is checked too: between free_port and now, another server may have taken the port.
        if status == 200 and answer["model"] == alias and answer["usage"]["completion_tokens"] == 1:
            return str(answer.get("system_fingerprint", "unknown"))
        if status != 503:
            raise _failed(process, f"answered a first request for one token with {status} {answer}")
        time.sleep(0.02)
    raise _failed(process, f"completed no generation within {ready_s:g} s")


def _failed(process: EngineProcess, what: str) -> EngineError:
    lines = process.last_lines()
    said = ': "' + " | ".join(lines) + '"' if lines else ", without a word"
    return EngineError(f"The embedded engine {what}{said}. Read {process.log} for the rest.")


def _parameters(options: argparse.Namespace) -> Any:
    from xllamacpp import CommonParams

    params = CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx
    if options.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    # An open connection holds a thread, an idle one for 5 s. Above this number the pool should grow, but at
    # times doesn't, and a request then waited 5 to 10 s (6 of 24 tries; 0 of 12 below). The default is slots + 4.
    params.n_threads_http = max(128, 4 * options.parallel)
    params.endpoint_metrics = True
    params.ui = False
    params.cors_origins = ""  # no page in a browser has business here
    # Each request pays for its own prompt: a prefix left by an earlier one would flatter the first token.
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.fit_params = False  # what is set here is what runs, whatever the memory
    return params


def main() -> None:
    parser = argparse.ArgumentParser(prog="dyno.engines.embedded")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--ctx", type=int, required=True, help="tokens over all slots")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    # It shares the machine with the client that measures it. Threads that spin while they wait gave one stream
    # 26 tokens/s where something else used one of two cores, against 80; on idle cores this costs about 10 %.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from xllamacpp import Server

    server = Server(_parameters(options))  # it serves from threads of its own for as long as it is held
    print("listening on", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
