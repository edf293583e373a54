"""An engine in its own process: loaded once, then asked for one iteration after the other, with no server in between.

Run by path with the engine's own interpreter, where dyno isn't installed: it needs nothing but that engine, and
Python 3.9. `worker.py ENGINE FLAGS…`; jobs come as JSON lines on stdin, answers go out as JSON lines on stdout. What
the engine itself prints goes to stderr, which is the log.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Answer = dict[str, Any]
now_ns = time.monotonic_ns


def main() -> None:
    talk = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an engine prints is no answer

    def say(message: dict[str, Any]) -> None:
        talk.write(json.dumps(message) + "\n")
        talk.flush()

    said_at = 0

    def tell(done: int) -> None:
        """How many requests of an iteration are done; now and then."""
        nonlocal said_at
        if now_ns() - said_at > 500_000_000:
            said_at = now_ns()
            say({"progress": done})

    engine = ENGINES[sys.argv[1]](sys.argv[2:])
    engine.tell = tell
    say({"ready": engine.facts()})  # whatever came before that on stdout wasn't said here
    for line in sys.stdin:
        job = json.loads(line)
        try:
            done = engine.micro(job) if job["do"] == "micro" else engine.generate(job)
            say({"iterations": done if isinstance(done, list) else [done]})
        except Refused as e:
            say({"refused": str(e)})
        except Failed as e:
            say({"failed": str(e)})
    engine.close()


class Refused(Exception):
    """A job that this engine can't do; it lives on."""


class Failed(Exception):
    """What it asked another program for came to nothing."""


def iteration(start: int, end: int, answers: list[Answer], spoken: dict[str, int] | None = None) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": end, "answers": answers, **(spoken or {})}


class Vllm:
    """By its `LLM` class. The flags are those of `vllm serve`."""

    def __init__(self, flags: list[str]) -> None:
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs

        parser = EngineArgs.add_cli_args(_flexible_parser())
        parser.usage = argparse.SUPPRESS  # hundreds of flags before the line that says which one is wrong
        arguments = dict(vars(EngineArgs.from_cli_args(parser.parse_args(flags))))
        arguments["disable_log_stats"] = False  # else no request tells when its first token was there
        self.llm = LLM(**arguments)

    def facts(self) -> dict[str, Any]:
        import vllm

        engine = self.llm.llm_engine
        config = getattr(engine, "vllm_config", engine)
        model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
        blocks = getattr(cache, "num_gpu_blocks", None)
        special: list[int] = []
        with contextlib.suppress(Exception):  # some models have no tokenizer here: then no id is special
            special = list(self.llm.get_tokenizer().all_special_ids)
        caching = getattr(cache, "enable_prefix_caching", None)
        return {
            "version": vllm.__version__,
            "vocab": model.get_vocab_size(),
            "special": special,
            "target": {
                "max_model_len": model.max_model_len,
                "dtype": str(model.dtype).replace("torch.", ""),
                "quantization": getattr(model, "quantization", None) or "",
                "kv_cache_dtype": cache.cache_dtype,
                "kv_cache_tokens": blocks * cache.block_size if blocks else None,
                "prefix_caching": None if caching is None else bool(caching),
                "slots": scheduler.max_num_seqs,
                "tensor_parallel": config.parallel_config.tensor_parallel_size,
            },
        }

    def generate(self, job: Job) -> dict[str, Any]:
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": p} if isinstance(p, list) else {"prompt": p} for p in job["prompts"]]
        sampling = [
            SamplingParams(
                max_tokens=wanted, ignore_eos=job["ignore_eos"], detokenize=job.get("detokenize", True),
                **job.get("sampling", {}),
            )
            for wanted in job["wanted"]
        ]  # fmt: skip
        if job.get("reset"):
            self.llm.reset_prefix_cache()
        before = self._speculation()
        wall = time.time_ns() - now_ns()
        start = now_ns()
        outputs = self.llm.generate(prompts, sampling, use_tqdm=False)
        end = now_ns()
        after = self._speculation()
        spoken = {name: after[name] - before.get(name, 0) for name in after}
        answers = [self._answer(o, w, start, wall) for o, w in zip(outputs, job["wanted"])]
        return iteration(start, end, answers, spoken)

    def _answer(self, output: Any, wanted: int, start: int, wall: int) -> Answer:
        tokens = len(output.outputs[0].token_ids)
        return {
            "prompt_tokens": len(output.prompt_token_ids or []),
            "output_tokens": tokens,
            "wanted_tokens": wanted,
            "cached_tokens": getattr(output, "num_cached_tokens", None),
            "decoded_tokens": max(tokens - 1, 0),
            "finish_reason": output.outputs[0].finish_reason,
            **_vllm_times(getattr(output, "metrics", None), start, wall),
        }

    def _speculation(self) -> dict[str, int]:
        """Its counters so far; none where nothing is drafted."""
        names = {"num_drafts": "drafts", "num_draft_tokens": "drafted_tokens", "num_accepted_tokens": "accepted_tokens"}
        found: dict[str, int] = {}
        with contextlib.suppress(Exception):  # versions before 0.10 don't tell
            for metric in self.llm.get_metrics():
                name = names.get(metric.name.replace("vllm:spec_decode_", ""))
                if name:
                    found[name] = found.get(name, 0) + int(metric.value)
        return found

    def micro(self, job: Job) -> dict[str, Any]:
        depth, prompt, wanted = job["depth"], job["prompt"], job["generate"]
        if depth and prompt:  # what is in the context before stays in the prefix cache
            self.generate(_single(depth, 1, reset=True))
        # A first token comes of the prompt, so there is one more than are decoded.
        return self.generate(_single(depth + prompt or job["start"], wanted + 1, reset=not (depth and prompt)))

    def close(self) -> None: ...


def _single(ids: list[int], wanted: int, reset: bool) -> Job:
    return {
        "prompts": [ids], "wanted": [wanted], "ignore_eos": True, "detokenize": False, "reset": reset,
        "sampling": {"temperature": 0.0},
    }  # fmt: skip


def _flexible_parser() -> Any:
    for module in ("vllm.utils.argparse_utils", "vllm.utils"):  # it has moved
        with contextlib.suppress(ImportError, AttributeError):
            return __import__(module, fromlist=["x"]).FlexibleArgumentParser(prog="vllm")
    return argparse.ArgumentParser(prog="vllm")


def _vllm_times(metrics: Any, start: int, wall: int) -> dict[str, int]:
    """By its own stamps, since the iteration's begin."""
    for names, offset in (
        (("scheduled_ts", "first_token_ts", "last_token_ts"), 0),  # its engine core's monotonic clock
        (("first_scheduled_time", "first_token_time", "last_token_time"), wall),  # before 0.9: wall time
    ):
        stamps: list[Any] = [getattr(metrics, name, None) for name in names]
        if all(stamps):
            times = [int(s * 1e9) - offset - start for s in stamps]
            return dict(zip(("start_ns", "first_ns", "end_ns"), times))
    return {}


class Transformers:
    """Several requests by continuous batching, one batch by `generate`, micro tests by the model's own forward."""

    tell: Callable[[int], None]

    def __init__(self, flags: list[str]) -> None:
        options = self._options(flags)
        import torch
        import transformers
        from transformers import AutoConfig, AutoModelForCausalLM

        self.torch, self.transformers, self.options = torch, transformers, options
        if options.threads:
            torch.set_num_threads(options.threads)
        cuda = torch.cuda.is_available() and options.device != "cpu"
        self.device = options.device or ("cuda" if cuda else "cpu")
        dtype = options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
        remote = options.trust_remote_code
        config = AutoConfig.from_pretrained(options.model, trust_remote_code=remote)
        extra: dict[str, Any] = (
            {"attn_implementation": options.attn_implementation} if options.attn_implementation else {}
        )
        if options.quantization:
            bits = {"bnb-4bit": "load_in_4bit", "bnb-8bit": "load_in_8bit"}[options.quantization]
            extra["quantization_config"] = transformers.BitsAndBytesConfig(**{bits: True})
        # Its name until 4.56 was torch_dtype, and that one is still understood.
        if options.load_format == "dummy":
            if dtype == "auto":
                dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
            with torch.device(self.device):
                model = AutoModelForCausalLM.from_config(config, torch_dtype=dtype, trust_remote_code=remote, **extra)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                options.model, torch_dtype=dtype, trust_remote_code=remote, **extra
            )
        self.model = (model if options.quantization else model.to(self.device)).eval()
        self.draft = None
        if options.draft_model:
            self.draft = AutoModelForCausalLM.from_pretrained(options.draft_model, torch_dtype=dtype).to(self.device)
            if options.draft_tokens:
                self.draft.generation_config.num_assistant_tokens = options.draft_tokens
                self.draft.generation_config.num_assistant_tokens_schedule = "constant"
                self.draft.generation_config.assistant_confidence_threshold = 0.0
        self._tokenizer: Any = None

    def _options(self, flags: list[str]) -> argparse.Namespace:
        p = argparse.ArgumentParser(prog="transformers", allow_abbrev=False)
        p.add_argument("--model", required=True)
        p.add_argument("--dtype", default="auto")
        p.add_argument("--device")
        p.add_argument("--threads", type=int)
        p.add_argument("--load-format")
        p.add_argument("--quantization", choices=("bnb-4bit", "bnb-8bit"))
        p.add_argument("--attn-implementation")
        p.add_argument("--draft-model")
        p.add_argument("--draft-tokens", type=int)
        p.add_argument("--max-batch-size", type=int, help="requests worked on at once")
        p.add_argument("--cb-max-batch-tokens", type=int)
        p.add_argument("--cb-max-memory-percent", type=float)
        p.add_argument("--cb-num-blocks", type=int)
        p.add_argument("--continuous-batching", action="store_true")
        p.add_argument("--no-continuous-batching", action="store_true")
        p.add_argument("--trust-remote-code", action="store_true")
        return p.parse_args(flags)

    def facts(self) -> dict[str, Any]:
        config = self.model.config.get_text_config()
        special: list[int] = []
        with contextlib.suppress(Exception):
            special = list(self.tokenizer.all_special_ids)
        return {
            "version": self.transformers.__version__,
            "vocab": config.vocab_size,
            "special": special,
            "target": {
                "max_model_len": getattr(config, "max_position_embeddings", None),
                "dtype": str(self.model.dtype).replace("torch.", ""),
                "prefix_caching": False,
                "slots": 1 if self.draft is not None else self.options.max_batch_size,
            },
        }

    @property
    def tokenizer(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = self.transformers.AutoTokenizer.from_pretrained(self.options.model)
        return self._tokenizer

    def generate(self, job: Job) -> dict[str, Any]:
        prompts = [p if isinstance(p, list) else self.tokenizer(p)["input_ids"] for p in job["prompts"]]
        if self.draft is not None and job.get("together") and len(prompts) > 1:
            raise Refused("with a draft model it works on one request at a time, so there is no batch of several")
        if job.get("together") or self.draft is not None or not self._batches():
            return self._batched(prompts, job)
        return self._continuous(prompts, job)

    def _batches(self) -> bool:
        there = hasattr(self.model, "init_continuous_batching") and not self.options.no_continuous_batching
        return there and (self.options.max_batch_size is None or self._limits_requests())

    def _limits_requests(self) -> bool:
        """Whether continuous batching can be held to so many requests at once."""
        kind = getattr(self.transformers, "ContinuousBatchingConfig", None)
        return "max_requests_per_batch" in getattr(kind, "__dataclass_fields__", ())

    def _sampling(self, job: Job) -> dict[str, Any]:
        given = dict(job.get("sampling", {}))
        temperature = given.pop("temperature", 1.0)
        return {"do_sample": True, "temperature": temperature, **given} if temperature else {"do_sample": False}

    def _sync(self) -> None:
        if self.device.startswith("cuda"):
            self.torch.cuda.synchronize()

    def _batched(self, prompts: list[list[int]], job: Job) -> dict[str, Any]:
        """Batches one after the other, in the order of the requests."""
        size = 1 if self.draft is not None else self.options.max_batch_size or len(prompts)
        answers: list[Answer] = []
        counts: dict[str, int] = {}
        self._sync()
        begun = now_ns()
        for at in range(0, len(prompts), size):
            answers += self._batch(prompts[at : at + size], job["wanted"][at : at + size], job, begun, counts)
        return iteration(begun, now_ns(), answers, counts)

    def _batch(
        self, prompts: list[list[int]], wanted: list[int], job: Job, begun: int, counts: dict[str, int]
    ) -> list[Answer]:
        """Each goes on until the longest is done, as batches do; what one didn't ask for isn't counted."""
        torch = self.torch
        longest, most = max(map(len, prompts)), max(wanted)
        pad = 0
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        steps: list[tuple[int, int]] = []  # how many tokens there were, and when
        sync = self._sync

        def seen(input_ids: Any, scores: Any, **_: Any) -> Any:
            """Called with each step's scores: the first time, the prompt has been processed."""
            if not steps:
                sync()
            steps.append((len(steps) + 1, now_ns()))
            return scores

        def judged(count: int) -> None:
            sync()
            steps.append(((steps[-1][0] if steps else 0) + count, now_ns()))

        extra: dict[str, Any] = {"min_new_tokens": most} if job["ignore_eos"] else {}
        if self.draft is None:
            extra["logits_processor"] = self.transformers.LogitsProcessorList([seen])
        else:  # which would be shown the scores too, and before the model itself
            extra["assistant_model"] = self.draft
        start = now_ns()
        with torch.inference_mode(), _counted(self.transformers, counts, judged):
            out = self.model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=most, pad_token_id=pad, **self._sampling(job),
                **extra,
            )  # fmt: skip
        self._sync()
        end = now_ns()
        answers = []
        for prompt, asked, row in zip(prompts, wanted, out):
            n = min(_produced(row[longest:].tolist(), self._ends(), job["ignore_eos"]), asked)
            by_first, first = steps[0] if steps else (n, end)
            last = next((at for count, at in steps if count >= n), end) if n < most else end
            answers.append(
                {
                    "prompt_tokens": len(prompt),
                    "output_tokens": n,
                    "wanted_tokens": asked,
                    "start_ns": start - begun,
                    "first_ns": first - begun,
                    "end_ns": last - begun,
                    "decoded_tokens": max(n - by_first, 0),
                    "finish_reason": "length" if n >= asked else "stop",
                }
            )
        return answers

    def _ends(self) -> list[int]:
        end = self.model.generation_config.eos_token_id
        return end if isinstance(end, list) else [] if end is None else [end]

    def _continuous(self, prompts: list[list[int]], job: Job) -> dict[str, Any]:
        config = self.transformers.GenerationConfig(
            max_new_tokens=max(job["wanted"]), eos_token_id=-1 if job["ignore_eos"] else self._ends() or -1,
            pad_token_id=0, **self._sampling(job),
        )  # fmt: skip
        manager = self.model.init_continuous_batching(generation_config=config, **self._cache(prompts, job))
        if hasattr(manager, "warmup"):
            manager.warmup()  # before its thread runs: it makes what the thread would make a second time
        manager.start()
        try:
            results: dict[str, Any] = {}
            start = now_ns()
            names = [
                manager.add_request(
                    p, max_new_tokens=w, record_timestamps=True, eos_token_id=-1 if job["ignore_eos"] else None
                )
                for p, w in zip(prompts, job["wanted"])
            ]
            while len(results) < len(names):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    results[result.request_id] = (result, now_ns())
                    self.tell(len(results))
                elif result is None and not manager.is_running():
                    break
            end = now_ns()
        finally:
            manager.stop(block=True)
        answers = [self._cb_answer(results.get(n), p, w, start) for n, p, w in zip(names, prompts, job["wanted"])]
        return iteration(start, end, answers)

    def _cache(self, prompts: list[list[int]], job: Job) -> dict[str, Any]:
        """Its size. Left to itself it takes a share of all memory: of a machine's own, that is most of it."""
        o = self.options
        given = {
            "max_batch_tokens": o.cb_max_batch_tokens, "max_memory_percent": o.cb_max_memory_percent,
            "num_blocks": o.cb_num_blocks,
        }  # fmt: skip
        page = 256
        if self.device == "cpu" and not any(v is not None for v in given.values()):
            pages = sum(-(-(len(p) + w) // page) for p, w in zip(prompts, job["wanted"]))
            given["num_blocks"] = max(16, 2 * pages)
            given["max_batch_tokens"] = 2048
        given["max_requests_per_batch"] = o.max_batch_size
        fields = {k: v for k, v in given.items() if v is not None}
        kind = getattr(self.transformers, "ContinuousBatchingConfig", None)
        if kind is None:
            return fields
        return {"continuous_batching_config": kind(allow_block_sharing=False, **fields)}

    def _cb_answer(self, found: Any, prompt: list[int], wanted: int, start: int) -> Answer:
        base = {"prompt_tokens": len(prompt), "output_tokens": 0, "wanted_tokens": wanted}
        if found is None:
            return {**base, "error": "the engine gave no answer"}
        result, seen = found
        if result.error:
            return {**base, "error": str(result.error)[:300]}
        count = len(result.generated_tokens)
        answer = {**base, "output_tokens": count, "decoded_tokens": max(count - 1, 0),
                  "finish_reason": "length" if count >= wanted else "stop"}  # fmt: skip
        stamps = list(getattr(result, "timestamps", None) or [])
        taken = (getattr(result, "lifespan", None) or (-1, -1))[0]
        if stamps and taken > 0:
            times = (taken, stamps[0], stamps[-1])
            answer.update(zip(("start_ns", "first_ns", "end_ns"), (int(t * 1e9) - start for t in times)))
        else:
            answer["end_ns"] = seen - start
        return answer

    def micro(self, job: Job) -> dict[str, Any]:
        torch = self.torch
        depth, prompt, wanted = job["depth"], job["prompt"], job["generate"]
        with torch.inference_mode():
            cache = self.transformers.DynamicCache(config=self.model.config)
            before = depth if prompt else (depth or job["start"])
            logits: Any = self._forward(before, cache) if before else None
            self._sync()
            start = now_ns()
            if prompt:
                logits = self._forward(prompt, cache)
                self._sync()
            first = now_ns()
            for _ in range(wanted):
                logits = self.model(
                    input_ids=logits.argmax(-1, keepdim=True), past_key_values=cache, use_cache=True, logits_to_keep=1
                ).logits[:, -1]
            self._sync()
            end = now_ns()
        tokens = wanted + bool(prompt)
        answer = {
            "prompt_tokens": len(depth) + len(prompt), "cached_tokens": len(depth), "output_tokens": tokens,
            "wanted_tokens": tokens, "start_ns": 0, "first_ns": first - start, "end_ns": end - start,
            "decoded_tokens": wanted,
        }  # fmt: skip
        return iteration(start, end, [answer])

    def _forward(self, ids: list[int], cache: Any) -> Any:
        rows = self.torch.tensor([ids], device=self.device)
        return self.model(input_ids=rows, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    def close(self) -> None: ...


def _produced(tokens: list[int], ends: list[int], ignore: bool) -> int:
    """Of a row that is filled up after its end."""
    if ignore:
        return len(tokens)
    return next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))


@contextlib.contextmanager
def _counted(transformers: Any, counts: dict[str, int], tell: Callable[[int], None]) -> Any:
    """How many drafted tokens were taken: its assisted generation says so to the drafting part alone. `tell` is called
    with the tokens that each step gave."""
    kind = getattr(transformers.generation.candidate_generator, "AssistedCandidateGenerator", None)
    if kind is None:
        yield
        return
    drafting, judged = kind.get_candidates, kind.update_candidate_strategy

    def get_candidates(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        found = drafting(self, input_ids, *args, **kwargs)
        counts["drafts"] = counts.get("drafts", 0) + 1
        counts["drafted_tokens"] = counts.get("drafted_tokens", 0) + found[0].shape[-1] - input_ids.shape[-1]
        return found

    def update_candidate_strategy(self: Any, input_ids: Any, scores: Any, num_matches: Any, *a: Any, **k: Any) -> Any:
        counts["accepted_tokens"] = counts.get("accepted_tokens", 0) + int(num_matches)
        tell(int(num_matches) + 1)
        return judged(self, input_ids, scores, num_matches, *a, **k)

    kind.get_candidates, kind.update_candidate_strategy = get_candidates, update_candidate_strategy
    try:
        yield
    finally:
        kind.get_candidates, kind.update_candidate_strategy = drafting, judged


class LlamaServer:
    """llama.cpp by its server's own timers, whatever stands between: they begin and end inside the engine."""

    tell: Callable[[int], None]

    def __init__(self, flags: list[str]) -> None:
        p = argparse.ArgumentParser(prog="llama.cpp", allow_abbrev=False)
        p.add_argument("--binary", help="a llama-server; without it, the one that comes with dyno")
        p.add_argument("--port", type=int)
        options, flags = p.parse_known_args(flags)
        self.draft_model = any(flag in ("--spec-draft-model", "--model-draft", "-md") for flag in flags)
        self.speculates = self.draft_model or any(flag.startswith(("--spec-", "--draft")) for flag in flags)
        self.caches = "--cache-prompt" in flags  # prompts that begin alike are meant to profit
        self._here: Any = None
        self._child: subprocess.Popen[bytes] | None = None
        if options.binary:
            self._port = options.port
            command = [options.binary, "--host", "127.0.0.1", "--port", str(self._port), *flags]
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._wait()
        else:
            from dyno.engines import embedded  # it comes with dyno, so dyno is there

            self._here = embedded.server([*flags, "--port", str(options.port)])
            self._port = options.port
        self.slots = self._get("/props").get("total_slots", 1)

    def _wait(self) -> None:
        assert self._child is not None
        while self._child.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._call("GET", "/health")[0] == 200:
                    return
            time.sleep(0.05)
        sys.exit("llama-server ended with code %s" % self._child.returncode)

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
            # The threads are there before the clock runs; all begin at once.
            gate = threading.Barrier(pool._max_workers + 1)
            for _ in range(pool._max_workers):
                pool.submit(gate.wait)
            gate.wait()
            start = now_ns()
            calls = [
                pool.submit(self._one, p, w, job, start, self.caches) for p, w in zip(job["prompts"], job["wanted"])
            ]
            for done, _ in enumerate(as_completed(calls), 1):
                self.tell(done)
            end = now_ns()
            answers = [call.result() for call in calls]
        spoken: dict[str, int] = {}
        for answer in answers:
            for name, count in answer.pop("spoken", {}).items():
                spoken[name] = spoken.get(name, 0) + count
        return iteration(start, end, answers, spoken)

    def _one(self, prompt: Any, wanted: int, job: Job, begun: int, cache: bool = False) -> Answer:
        # Greedy, unless asked otherwise; only the tokens' number matters, so none is looked at twice.
        body = {
            "prompt": prompt, "max_tokens": wanted, "ignore_eos": job["ignore_eos"], "cache_prompt": cache,
            "temperature": 0.0, "seed": 1, **job.get("sampling", {}),
        }  # fmt: skip
        if self._here is None:
            status, said = self._call("POST", "/v1/completions", body)
        else:
            said = self._here.handle_completions(body)
            said = json.loads(said) if isinstance(said, (str, bytes)) else said
            status = 500 if "error" in said else 200
        end = now_ns() - begun
        if status != 200 or "timings" not in said:
            error = said.get("error") if isinstance(said, dict) else said
            message = error.get("message") if isinstance(error, dict) else error
            return {"prompt_tokens": 0, "output_tokens": 0, "wanted_tokens": wanted, "error": str(message)[:300]}
        timings = said["timings"]
        first = end - int(timings["predicted_ms"] * 1e6)
        spoken = {}
        if self.speculates:
            accepted = timings.get("draft_n_accepted", 0)
            spoken = {"drafted_tokens": timings.get("draft_n", 0), "accepted_tokens": accepted}
            if self.draft_model:  # it counts tokens, not drafts; with a model to ask, every step begins with one
                spoken["drafts"] = max(timings["predicted_n"] - accepted - 1, 0)
        return {
            "prompt_tokens": timings["prompt_n"] + timings.get("cache_n", 0),
            "output_tokens": timings["predicted_n"],
            "wanted_tokens": wanted,
            "cached_tokens": timings.get("cache_n"),
            "start_ns": first - int(timings["prompt_ms"] * 1e6),
            "first_ns": first,
            "end_ns": end,
            "decoded_tokens": max(timings["predicted_n"] - 1, 0),
            "finish_reason": said["choices"][0].get("finish_reason"),
            "spoken": spoken,
        }

    def micro(self, job: Job) -> dict[str, Any]:
        depth, prompt, wanted = job["depth"], job["prompt"], job["generate"]
        # The likeliest token, and nothing else reckoned: llama-bench doesn't even choose one.
        plain = {"ignore_eos": True, "sampling": {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1}}
        if depth and prompt:  # into the cache, from which alone the test is counted
            self._one(depth, 1, plain, now_ns(), cache=True)
        start = now_ns()
        answer = self._one(depth + prompt or job["start"], wanted + 1, plain, start, cache=bool(depth and prompt))
        answer.pop("spoken", None)
        return iteration(start, now_ns(), [answer])

    def close(self) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.wait()


def _children_s() -> float:
    """CPU seconds of the children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


class LlamaBench:
    """The real llama-bench: one call for each test."""

    def __init__(self, flags: list[str]) -> None:
        self.binary, *self.flags = flags

    def facts(self) -> dict[str, Any]:
        return {"vocab": 1, "special": [], "target": {}, "repeats": True}

    def micro(self, job: Job) -> list[dict[str, Any]]:
        """All repetitions at once: it warms up itself before them."""
        d, p, n = len(job["depth"]), len(job["prompt"]), job["generate"]
        test = ["-pg", "%d,%d" % (p, n), "-p", "0", "-n", "0"] if p and n else ["-p", str(p), "-n", str(n)]
        command = [self.binary, *self.flags, *test, "-d", str(d), "-r", str(job["repetitions"])]
        command += [] if job["warm"] else ["--no-warmup"]
        used = _children_s()
        done = subprocess.run([*command, "-o", "jsonl"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise Failed("llama-bench ended with code %d" % done.returncode)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        told = next((t for t in lines if (t["n_prompt"], t["n_gen"]) == (p, n)), None)
        if told is None:
            raise Failed("llama-bench told nothing of this test")
        samples = told.pop("samples_ns")
        # When they were is not told, only how long: they came last, one after the other.
        start = now_ns() - sum(samples)
        told.pop("samples_ts", None)
        found = []
        for took in samples:
            # Of a mixed test it has one time for both parts.
            first = took if not n else 0 if not p else None
            answer = {"prompt_tokens": d + p, "cached_tokens": d, "output_tokens": n, "wanted_tokens": n,
                      "decoded_tokens": n, "start_ns": 0, "first_ns": first, "end_ns": took}  # fmt: skip
            found.append({**iteration(start, start + took, [answer]), "told": told})
            start += took
        found[0]["cpu_s"] = _children_s() - used  # it is gone, and nobody else can tell
        return found

    def generate(self, job: Job) -> dict[str, Any]:
        raise Refused("llama-bench has no such test")

    def close(self) -> None: ...


ENGINES: dict[str, Callable[[list[str]], Any]] = {
    "vllm": Vllm,
    "transformers": Transformers,
    "llamacpp": LlamaServer,
    "llama-bench": LlamaBench,
}

if __name__ == "__main__":
    if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
        del sys.path[0]  # what lies beside this file is no module of the engine's
    main()
