"""vLLM by its `LLM` class. The flags are those of `vllm serve`."""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from typing import Any

from . import Answer, Job, RefusedError, WorkerEngine, iteration, now_ns


class VllmWorker(WorkerEngine):
    def __init__(self, flags: list[str]) -> None:
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs

        parser = EngineArgs.add_cli_args(_flexible_parser())
        # hundreds of flags before the line that says which one is wrong
        parser.usage = argparse.SUPPRESS
        arguments = dict(vars(EngineArgs.from_cli_args(parser.parse_args(flags))))
        # else no request has the time of its first token
        arguments["disable_log_stats"] = False
        self.llm = LLM(**arguments)

    def facts(self) -> dict[str, Any]:
        import vllm

        engine = self.llm.llm_engine
        config = getattr(engine, "vllm_config", engine)
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
            self.llm.reset_prefix_cache()
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

    def _outputs(self, prompts: list[Any], sampling: list[Any], job: Job) -> list[Any]:
        loras = self._adapters(job, len(prompts))
        llm = self.llm
        if not job.get("prequeue"):
            return list(llm.generate(prompts, sampling, use_tqdm=False, lora_request=loras))
        if not hasattr(llm, "enqueue"):
            raise RefusedError("this version can't queue requests before it begins")
        llm.sleep(level=0, mode="abort")
        try:
            llm.enqueue(prompts, sampling, lora_request=loras, use_tqdm=False)
        finally:
            llm.wake_up(tags=["scheduling"])
        return list(llm.wait_for_completion(use_tqdm=False))

    def _adapters(self, job: Job, count: int) -> Any:
        """Return the adapter of each prompt; None: there is none."""
        asked = job.get("lora")
        if not asked:
            return None
        from vllm.lora.request import LoRARequest

        engine = self.llm.llm_engine
        lora = getattr(getattr(engine, "vllm_config", engine), "lora_config", None)
        if lora is None:
            raise RefusedError("an adapter needs --enable-lora")
        numbers = [1 + i % lora.max_loras for i in range(count)]
        if asked["assignment"] == "random":
            rng = random.Random(asked["seed"])
            numbers = [rng.randint(1, lora.max_loras) for _ in range(count)]
        return [LoRARequest(str(i), i, asked["path"]) for i in numbers]

    def _profile(self, job: Job, method: str) -> None:
        if not job.get("profile"):
            return
        try:
            getattr(self.llm, method)()
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
        found = self.llm.beam_search(prompts, params)
        end = now_ns()
        self._profile(job, "stop_profile")
        answers = []
        for prompt, output in zip(prompts, found):
            length = len(prompt["prompt_token_ids"])
            made = sum(len(beam.tokens) - length for beam in output.sequences)
            count = len(output.sequences)
            answers.append(
                {
                    "prompt_tokens": length,
                    "output_tokens": made,
                    "wanted_tokens": wanted * count,
                }
            )
        return iteration(start, end, answers)

    def _answer(self, output: Any, wanted: int, start: int, wall: int) -> Answer:
        if len(output.outputs) > 1:
            # Its times are those of all sequences together: no figure of one follows.
            made = sum(len(each.token_ids) for each in output.outputs)
            return {
                "prompt_tokens": len(output.prompt_token_ids or []),
                "output_tokens": made,
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
            for metric in self.llm.get_metrics():
                name = names.get(metric.name.replace("vllm:spec_decode_", ""))
                if name:
                    counts[name] = counts.get(name, 0) + int(metric.value)
        return counts

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


ENGINE = VllmWorker
