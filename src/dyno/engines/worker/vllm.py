"""vLLM by its `LLM` class, or by the engine of its server. The flags are those of `vllm serve`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from typing import Any

from . import Answer, Job, RefusedError, WorkerEngine, iteration, now_ns

# asks for the engine of its server, as in `vllm bench throughput`
_ASYNC = "--async-engine"


class VllmWorker(WorkerEngine):
    def __init__(self, flags: list[str]) -> None:
        from vllm.engine.arg_utils import EngineArgs

        self.llm = self._loaded(_arguments(EngineArgs, flags))

    def _loaded(self, arguments: dict[str, Any]) -> Any:
        from vllm import LLM

        return LLM(**arguments)

    def _config(self) -> Any:
        engine = self.llm.llm_engine
        return getattr(engine, "vllm_config", engine)

    def facts(self) -> dict[str, Any]:
        import vllm

        config = self._config()
        model, cache, scheduler = (
            config.model_config,
            config.cache_config,
            config.scheduler_config,
        )
        blocks = getattr(cache, "num_gpu_blocks", None)
        special: list[int] = []
        # some models have no tokenizer here: then no id is special
        with contextlib.suppress(Exception):
            special = list(self.llm.get_tokenizer().all_special_ids)
        caching = getattr(cache, "enable_prefix_caching", None)
        chunked = getattr(
            scheduler,
            "chunked_prefill_enabled",
            getattr(scheduler, "enable_chunked_prefill", None),
        )
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
                "chunked_prefill": chunked,
                "slots": scheduler.max_num_seqs,
                "tensor_parallel": config.parallel_config.tensor_parallel_size,
            },
        }

    def generate(self, job: Job) -> dict[str, Any]:
        from vllm import SamplingParams

        prompts = [
            {"prompt_token_ids": p} if isinstance(p, list) else {"prompt": p}
            for p in job["prompts"]
        ]
        if job.get("beam"):
            return self._search(prompts, job)
        sampling = [
            SamplingParams(
                n=job.get("n", 1),
                max_tokens=wanted,
                ignore_eos=job["ignore_eos"],
                detokenize=job.get("detokenize", True),
                **job.get("sampling", {}),
            )
            for wanted in job["wanted"]
        ]
        if job.get("reset"):
            self._call("reset_prefix_cache")
        before = self._speculation()
        self.begin()
        wall = time.time_ns() - now_ns()
        self._profile(job, "start_profile")
        start = now_ns()
        outputs = self._outputs(prompts, sampling, job)
        end = now_ns()
        self._profile(job, "stop_profile")
        after = self._speculation()
        counts = {name: after[name] - before.get(name, 0) for name in after}
        answers = [self._answer(o, w, start, wall) for o, w in zip(outputs, job["wanted"])]
        return iteration(start, end, answers, counts)

    def _call(self, method: str) -> Any:
        return getattr(self.llm, method)()

    def _outputs(self, prompts: list[Any], sampling: list[Any], job: Job) -> list[Any]:
        loras = self._adapters(job, len(prompts))
        # older versions don't know the argument
        adapters = {"lora_request": loras} if loras else {}
        llm = self.llm
        if not job.get("prequeue"):
            return list(llm.generate(prompts, sampling, use_tqdm=False, **adapters))
        if not hasattr(llm, "enqueue"):
            raise RefusedError("this version can't queue requests before it begins")
        llm.sleep(level=0, mode="abort")
        try:
            llm.enqueue(prompts, sampling, use_tqdm=False, **adapters)
        finally:
            llm.wake_up(tags=["scheduling"])
        return list(llm.wait_for_completion(use_tqdm=False))

    def _adapters(self, job: Job, count: int) -> Any:
        """Return the adapter of each prompt; None: there is none."""
        asked = job.get("lora")
        if not asked:
            return None
        from vllm.lora.request import LoRARequest

        lora = getattr(self._config(), "lora_config", None)
        if lora is None:
            raise RefusedError("an adapter needs --enable-lora")
        rng = random.Random(asked["seed"])
        numbers = [rng.randint(1, lora.max_loras) for _ in range(count)]
        if asked["in_turn"]:
            numbers = [1 + i % lora.max_loras for i in range(count)]
        return [LoRARequest(str(i), i, asked["path"]) for i in numbers]

    def _profile(self, job: Job, method: str) -> None:
        if not job.get("profile"):
            return
        try:
            self._call(method)
        except Exception as e:  # of any kind, by version: without a profiler's folder
            raise RefusedError(f"its profiler can't be used: {e}") from None

    def _search(self, prompts: list[Any], job: Job) -> dict[str, Any]:
        """Search by beams. It reports no times of requests."""
        from vllm.sampling_params import BeamSearchParams

        wanted = job["wanted"][0]
        params = BeamSearchParams(
            beam_width=job["n"], max_tokens=wanted, ignore_eos=job["ignore_eos"]
        )
        if job.get("reset"):
            self.llm.reset_prefix_cache()
        self.begin()
        self._profile(job, "start_profile")
        start = now_ns()
        outputs = self.llm.beam_search(prompts, params)
        end = now_ns()
        self._profile(job, "stop_profile")
        answers = []
        for prompt, output in zip(prompts, outputs):
            length = len(prompt["prompt_token_ids"])
            beams = output.sequences
            answers.append(
                {
                    "prompt_tokens": length,
                    "output_tokens": sum(len(beam.tokens) - length for beam in beams),
                    "wanted_tokens": wanted * len(beams),
                }
            )
        return iteration(start, end, answers)

    def _answer(self, output: Any, wanted: int, start: int, wall: int) -> Answer:
        if len(output.outputs) > 1:
            # Its times are those of all sequences together: no figure of one follows.
            tokens = sum(len(each.token_ids) for each in output.outputs)
            return {
                "prompt_tokens": len(output.prompt_token_ids or []),
                "output_tokens": tokens,
                "wanted_tokens": wanted * len(output.outputs),
                "cached_tokens": getattr(output, "num_cached_tokens", None),
                "finish_reason": output.outputs[0].finish_reason,
            }
        tokens = len(output.outputs[0].token_ids)
        return {
            "prompt_tokens": len(output.prompt_token_ids or []),
            "output_tokens": tokens,
            "wanted_tokens": wanted,
            "cached_tokens": getattr(output, "num_cached_tokens", None),
            "decoded_tokens": max(tokens - 1, 0),
            "finish_reason": output.outputs[0].finish_reason,
            **_times(getattr(output, "metrics", None), start, wall),
        }

    def _speculation(self) -> dict[str, int]:
        """Return its counters so far; none where nothing is drafted."""
        names = {
            "num_drafts": "drafts",
            "num_draft_tokens": "drafted_tokens",
            "num_accepted_tokens": "accepted_tokens",
        }
        counts: dict[str, int] = {}
        with contextlib.suppress(Exception):  # versions before 0.10 have none
            for metric in self._metrics():
                name = names.get(metric.name.replace("vllm:spec_decode_", ""))
                if name:
                    counts[name] = counts.get(name, 0) + int(metric.value)
        return counts

    def _metrics(self) -> Any:
        return self.llm.get_metrics()

    def micro(self, job: Job) -> dict[str, Any]:
        depth, prompt, wanted = job["depth"], job["prompt"], job["generate"]
        if depth and prompt:  # the context before the test stays in the prefix cache
            self.generate(_single(depth, 1, reset=True))
        # The prompt yields the first token, so there is one more than are decoded.
        return self.generate(
            _single(
                depth + prompt or job["start"], wanted + 1, reset=not (depth and prompt)
            )
        )


class AsyncVllmWorker(VllmWorker):
    """The engine of its server, which works on requests while others come in."""

    def __init__(self, flags: list[str]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs

        self.asked = 0  # requests so far: each has an id of its own
        self.loop = asyncio.new_event_loop()
        self.llm = self.loop.run_until_complete(
            self._started(_arguments(AsyncEngineArgs, flags))
        )

    async def _started(self, arguments: dict[str, Any]) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    def _config(self) -> Any:
        return self.llm.vllm_config

    def _call(self, method: str) -> Any:
        return self.loop.run_until_complete(getattr(self.llm, method)())

    def _metrics(self) -> Any:
        from vllm.v1.metrics.reader import get_metrics_snapshot

        return get_metrics_snapshot()

    def _outputs(self, prompts: list[Any], sampling: list[Any], job: Job) -> list[Any]:
        if job.get("prequeue"):
            raise RefusedError("its asynchronous engine begins as soon as a request comes")
        loras = self._adapters(job, len(prompts)) or [None] * len(prompts)
        return list(self.loop.run_until_complete(self._all(prompts, sampling, loras)))

    async def _all(self, prompts: list[Any], sampling: list[Any], loras: list[Any]) -> Any:
        first, self.asked = self.asked, self.asked + len(prompts)
        each = zip(prompts, sampling, loras)
        return await asyncio.gather(
            *(self._whole(f"dyno-{first + i}", *one) for i, one in enumerate(each))
        )

    async def _whole(self, name: str, prompt: Any, sampling: Any, lora: Any) -> Any:
        """Return a request's last output with all of its sequences: each has the latest state of some."""
        parts: dict[int, Any] = {}
        each = self.llm.generate(prompt, sampling, name, lora_request=lora)
        async for output in each:
            last = output
            parts.update((part.index, part) for part in output.outputs)
        last.outputs = [parts[index] for index in sorted(parts)]
        return last

    def _search(self, prompts: list[Any], job: Job) -> dict[str, Any]:
        raise RefusedError("its asynchronous engine searches by no beams")

    def close(self) -> None:
        self.llm.shutdown()


def _arguments(kind: Any, flags: list[str]) -> dict[str, Any]:
    """Return the arguments of an engine from flags. `kind`: vLLM's class for them."""
    parser = kind.add_cli_args(_flexible_parser())
    # hundreds of flags before the line that says which one is wrong
    parser.usage = argparse.SUPPRESS
    arguments = dict(vars(kind.from_cli_args(parser.parse_args(flags))))
    # else no request has the time of its first token
    arguments["disable_log_stats"] = False
    return arguments


def _single(ids: list[int], wanted: int, reset: bool) -> Job:
    return {
        "prompts": [ids],
        "wanted": [wanted],
        "ignore_eos": True,
        "detokenize": False,
        "reset": reset,
        "sampling": {"temperature": 0.0},
    }


def _flexible_parser() -> Any:
    for module in ("vllm.utils.argparse_utils", "vllm.utils"):  # it has moved
        with contextlib.suppress(ImportError, AttributeError):
            return __import__(module, fromlist=["x"]).FlexibleArgumentParser(prog="vllm")
    return argparse.ArgumentParser(prog="vllm")


def _times(metrics: Any, start: int, wall: int) -> dict[str, int]:
    """Return its own stamps, from the begin of the iteration."""
    for names, offset in (
        # its engine core's monotonic clock
        (("scheduled_ts", "first_token_ts", "last_token_ts"), 0),
        # before 0.9: wall time
        (("first_scheduled_time", "first_token_time", "last_token_time"), wall),
    ):
        stamps: list[Any] = [getattr(metrics, name, None) for name in names]
        if all(stamps):
            times = [int(s * 1e9) - offset - start for s in stamps]
            return dict(zip(("start_ns", "first_ns", "end_ns"), times))
    return {}


def engine(flags: list[str]) -> VllmWorker:
    if _ASYNC in flags:
        return AsyncVllmWorker([flag for flag in flags if flag != _ASYNC])
    return VllmWorker(flags)


ENGINE = engine
