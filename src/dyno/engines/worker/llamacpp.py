"""llama.cpp, by its server's own timers, which begin and end inside the engine."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from . import Answer, Job, WorkerEngine, iteration, now_ns


class LlamaServerWorker(WorkerEngine):
    def __init__(self, flags: list[str]) -> None:
        p = argparse.ArgumentParser(prog="llama.cpp", allow_abbrev=False)
        p.add_argument(
            "--binary", help="a llama-server; without it, the one that comes with dyno"
        )
        p.add_argument("--port", type=int)
        options, flags = p.parse_known_args(flags)
        self.draft_model = any(
            flag in ("--spec-draft-model", "--model-draft", "-md") for flag in flags
        )
        self.speculates = self.draft_model or any(
            flag.startswith(("--spec-", "--draft")) for flag in flags
        )
        # prompts that begin alike are meant to profit
        self.caches = "--cache-prompt" in flags
        self._embedded: Any = None
        self._child: subprocess.Popen[bytes] | None = None
        if options.binary:
            self._port = options.port
            command = [
                options.binary,
                "--host",
                "127.0.0.1",
                "--port",
                str(self._port),
                *flags,
            ]
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._wait()
        else:
            from dyno.engines import embedded  # it comes with dyno, so dyno is installed

            self._embedded = embedded.server([*flags, "--port", str(options.port)])
            self._port = options.port
        self.slots = self._get("/props").get("total_slots", 1)

    def _wait(self) -> None:
        assert self._child is not None
        while self._child.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._call("GET", "/health")[0] == 200:
                    return
            time.sleep(0.05)
        sys.exit("llama-server exited with code %s" % self._child.returncode)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def _get(self, path: str) -> Any:
        status, answer = self._call("GET", path)
        return answer if status == 200 else {}

    def facts(self) -> dict[str, Any]:
        models = self._get("/v1/models").get("data") or [{}]
        return {
            "vocab": (models[0].get("meta") or {}).get("n_vocab"),
            "special": [],
            "base_url": "http://127.0.0.1:%d" % self._port,
            "target": {},
        }

    def generate(self, job: Job) -> dict[str, Any]:
        with ThreadPoolExecutor(min(len(job["prompts"]), self.slots)) as pool:
            # The threads exist before the clock runs; all begin at once.
            gate = threading.Barrier(pool._max_workers + 1)
            for _ in range(pool._max_workers):
                pool.submit(gate.wait)
            gate.wait()
            self.begin()
            start = now_ns()
            calls = [
                pool.submit(self._one, p, w, job, start, self.caches)
                for p, w in zip(job["prompts"], job["wanted"])
            ]
            for done, _ in enumerate(as_completed(calls), 1):
                self.progress(done)
            end = now_ns()
            answers = [call.result() for call in calls]
        counts: dict[str, int] = {}
        for answer in answers:
            for name, count in answer.pop("counts", {}).items():
                counts[name] = counts.get(name, 0) + count
        return iteration(start, end, answers, counts)

    def _one(
        self, prompt: Any, wanted: int, job: Job, begun: int, cache: bool = False
    ) -> Answer:
        # Greedy, unless asked otherwise; only the tokens' number matters, so none is looked at twice.
        body = {
            "prompt": prompt,
            "max_tokens": wanted,
            "ignore_eos": job["ignore_eos"],
            "cache_prompt": cache,
            "temperature": 0.0,
            "seed": 1,
            **job.get("sampling", {}),
        }
        if self._embedded is None:
            status, result = self._call("POST", "/v1/completions", body)
        else:
            result = self._embedded.handle_completions(body)
            result = json.loads(result) if isinstance(result, (str, bytes)) else result
            status = 500 if "error" in result else 200
        end = now_ns() - begun
        if status != 200 or "timings" not in result:
            error = result.get("error") if isinstance(result, dict) else result
            message = error.get("message") if isinstance(error, dict) else error
            return {
                "prompt_tokens": 0,
                "output_tokens": 0,
                "wanted_tokens": wanted,
                "error": str(message)[:300],
            }
        timings = result["timings"]
        first = end - int(timings["predicted_ms"] * 1e6)
        counts = {}
        if self.speculates:
            accepted = timings.get("draft_n_accepted", 0)
            counts = {
                "drafted_tokens": timings.get("draft_n", 0),
                "accepted_tokens": accepted,
            }
            # it counts tokens, not drafts; with a model to ask, every step begins with one
            if self.draft_model:
                counts["drafts"] = max(timings["predicted_n"] - accepted - 1, 0)
        return {
            "prompt_tokens": timings["prompt_n"] + timings.get("cache_n", 0),
            "output_tokens": timings["predicted_n"],
            "wanted_tokens": wanted,
            "cached_tokens": timings.get("cache_n"),
            "start_ns": first - int(timings["prompt_ms"] * 1e6),
            "first_ns": first,
            "end_ns": end,
            "decoded_tokens": max(timings["predicted_n"] - 1, 0),
            "finish_reason": result["choices"][0].get("finish_reason"),
            "counts": counts,
        }

    def micro(self, job: Job) -> dict[str, Any]:
        depth, prompt, wanted = job["depth"], job["prompt"], job["generate"]
        # Only the likeliest token is computed: llama-bench doesn't even choose one.
        plain = {
            "ignore_eos": True,
            "sampling": {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1},
        }
        if depth and prompt:  # into the cache: the test is counted from there on
            self._one(depth, 1, plain, now_ns(), cache=True)
        start = now_ns()
        answer = self._one(
            depth + prompt or job["start"],
            wanted + 1,
            plain,
            start,
            cache=bool(depth and prompt),
        )
        answer.pop("counts", None)
        return iteration(start, now_ns(), [answer])

    def close(self) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.wait()


ENGINE = LlamaServerWorker
