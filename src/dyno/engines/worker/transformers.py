"""Transformers: requests by continuous batching, one batch by `generate`, micro tests by the model's own forward."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

from . import Answer, Job, RefusedError, WorkerEngine, iteration, now_ns

_FLAGS: dict[str, type] = {
    "--device": str, "--threads": int, "--load-format": str, "--attn-implementation": str, "--draft-model": str,
    "--draft-tokens": int, "--max-batch-size": int, "--cb-max-batch-tokens": int, "--cb-max-memory-percent": float,
    "--cb-num-blocks": int,
}  # fmt: skip


def _options(flags: list[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="transformers", allow_abbrev=False)
    p.add_argument("--model", required=True)
    p.add_argument("--dtype", default="auto")
    p.add_argument("--quantization", choices=("bnb-4bit", "bnb-8bit"))
    for name, kind in _FLAGS.items():
        p.add_argument(name, type=kind)
    for name in (
        "--continuous-batching",
        "--no-continuous-batching",
        "--trust-remote-code",
    ):
        p.add_argument(name, action="store_true")
    return p.parse_args(flags)


class TransformersWorker(WorkerEngine):
    def __init__(self, flags: list[str]) -> None:
        options = _options(flags)
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
        extra = self._extra()
        # Its name until 4.56 was torch_dtype, and that one is still understood.
        if options.load_format == "dummy":
            if dtype == "auto":
                dtype = getattr(config, "dtype", None) or getattr(
                    config, "torch_dtype", None
                )
            with torch.device(self.device):
                model = AutoModelForCausalLM.from_config(
                    config, torch_dtype=dtype, trust_remote_code=remote, **extra
                )
        else:
            model = AutoModelForCausalLM.from_pretrained(
                options.model, torch_dtype=dtype, trust_remote_code=remote, **extra
            )
        if not options.quantization:
            model = model.to(self.device)
        self.model = model.eval()
        self.draft = None
        if options.draft_model:
            self.draft = AutoModelForCausalLM.from_pretrained(
                options.draft_model, torch_dtype=dtype
            ).to(self.device)
            if options.draft_tokens:
                self.draft.generation_config.num_assistant_tokens = options.draft_tokens
                self.draft.generation_config.num_assistant_tokens_schedule = "constant"
                self.draft.generation_config.assistant_confidence_threshold = 0.0
        self._tokenizer: Any = None

    def _extra(self) -> dict[str, Any]:
        """Return the arguments of a model that are passed only where they are asked for."""
        options = self.options
        extra: dict[str, Any] = {}
        if options.attn_implementation:
            extra["attn_implementation"] = options.attn_implementation
        if options.quantization:
            bits = {"bnb-4bit": "load_in_4bit", "bnb-8bit": "load_in_8bit"}[
                options.quantization
            ]
            extra["quantization_config"] = self.transformers.BitsAndBytesConfig(
                **{bits: True}
            )
        return extra

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
            self._tokenizer = self.transformers.AutoTokenizer.from_pretrained(
                self.options.model
            )
        return self._tokenizer

    def generate(self, job: Job) -> dict[str, Any]:
        prompts = [
            p if isinstance(p, list) else self.tokenizer(p)["input_ids"]
            for p in job["prompts"]
        ]
        if self.draft is not None and job.get("together") and len(prompts) > 1:
            raise RefusedError(
                "with a draft model it runs one request at a time, so it can't run a batch"
            )
        if job.get("together") or self.draft is not None or not self._batches():
            return self._batched(prompts, job)
        return self._continuous(prompts, job)

    def _batches(self) -> bool:
        able = (
            hasattr(self.model, "init_continuous_batching")
            and not self.options.no_continuous_batching
        )
        return able and (self.options.max_batch_size is None or self._limits_requests())

    def _limits_requests(self) -> bool:
        """Return whether continuous batching has a limit of requests at once."""
        kind = getattr(self.transformers, "ContinuousBatchingConfig", None)
        return "max_requests_per_batch" in getattr(kind, "__dataclass_fields__", ())

    def _sampling(self, job: Job) -> dict[str, Any]:
        given = dict(job.get("sampling", {}))
        temperature = given.pop("temperature", 1.0)
        return (
            {"do_sample": True, "temperature": temperature, **given}
            if temperature
            else {"do_sample": False}
        )

    def _sync(self) -> None:
        if self.device.startswith("cuda"):
            self.torch.cuda.synchronize()

    def _batched(self, prompts: list[list[int]], job: Job) -> dict[str, Any]:
        """Run batches one after the other, in the order of the requests."""
        size = 1 if self.draft is not None else self.options.max_batch_size or len(prompts)
        answers: list[Answer] = []
        counts: dict[str, int] = {}
        self._sync()
        self.begin()
        begun = now_ns()
        for i in range(0, len(prompts), size):
            answers += self._batch(
                prompts[i : i + size], job["wanted"][i : i + size], job, begun, counts
            )
        return iteration(begun, now_ns(), answers, counts)

    def _batch(
        self,
        prompts: list[list[int]],
        wanted: list[int],
        job: Job,
        begun: int,
        counts: dict[str, int],
    ) -> list[Answer]:
        """Run one batch until its longest request is done; tokens beyond what a request asked for aren't counted."""
        torch = self.torch
        longest, most = max(map(len, prompts)), max(wanted)
        pad = 0
        ids = torch.tensor(
            [[pad] * (longest - len(p)) + p for p in prompts], device=self.device
        )
        mask = torch.tensor(
            [[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device
        )
        drafting = self.draft is not None
        steps: Any = (_DraftSteps if drafting else _Steps)(self._sync, counts, longest)
        extra: dict[str, Any] = {"min_new_tokens": most} if job["ignore_eos"] else {}
        if drafting:
            extra.update(assistant_model=self.draft, streamer=steps)
        else:
            extra["logits_processor"] = self.transformers.LogitsProcessorList([steps])
        watch: Any = contextlib.nullcontext()
        if drafting:
            watch = self.model.register_forward_pre_hook(steps.forward, with_kwargs=True)
        start = now_ns()
        with torch.inference_mode(), watch:
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=most,
                pad_token_id=pad,
                **self._sampling(job),
                **extra,
            )
        self._sync()
        end = now_ns()
        answers = []
        for prompt, asked, row in zip(prompts, wanted, out):
            n = min(
                _produced(row[longest:].tolist(), self._ends(), job["ignore_eos"]), asked
            )
            by_first, first = steps.times[0] if steps.times else (n, end)
            last = (
                next((ns for count, ns in steps.times if count >= n), end)
                if n < most
                else end
            )
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
        if end is None:
            return []
        return end if isinstance(end, list) else [end]

    def _continuous(self, prompts: list[list[int]], job: Job) -> dict[str, Any]:
        config = self.transformers.GenerationConfig(
            max_new_tokens=max(job["wanted"]),
            eos_token_id=-1 if job["ignore_eos"] else self._ends() or -1,
            pad_token_id=0,
            **self._sampling(job),
        )
        manager = self.model.init_continuous_batching(
            generation_config=config, **self._cache(prompts, job)
        )
        if hasattr(manager, "warmup"):
            # before its thread runs, which would do the same a second time
            manager.warmup()
        manager.start()
        try:
            results: dict[str, Any] = {}
            self.begin()
            start = now_ns()
            names = [
                manager.add_request(
                    p,
                    max_new_tokens=w,
                    record_timestamps=True,
                    eos_token_id=-1 if job["ignore_eos"] else None,
                )
                for p, w in zip(prompts, job["wanted"])
            ]
            while len(results) < len(names):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    results[result.request_id] = (result, now_ns())
                    self.progress(len(results))
                elif result is None and not manager.is_running():
                    break
            end = now_ns()
        finally:
            manager.stop(block=True)
        answers = [
            self._cb_answer(results.get(n), p, w, start)
            for n, p, w in zip(names, prompts, job["wanted"])
        ]
        return iteration(start, end, answers)

    def _cache(self, prompts: list[list[int]], job: Job) -> dict[str, Any]:
        """Return the size of its cache. By default it is a share of all memory: on a CPU, most of the machine's."""
        o = self.options
        given = {
            "max_batch_tokens": o.cb_max_batch_tokens,
            "max_memory_percent": o.cb_max_memory_percent,
            "num_blocks": o.cb_num_blocks,
        }
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

    def _cb_answer(
        self, outcome: Any, prompt: list[int], wanted: int, start: int
    ) -> Answer:
        base = {"prompt_tokens": len(prompt), "output_tokens": 0, "wanted_tokens": wanted}
        if outcome is None:
            return {**base, "error": "the engine returned no answer"}
        result, seen_ns = outcome
        if result.error:
            return {**base, "error": str(result.error)[:300]}
        count = len(result.generated_tokens)
        answer = {
            **base,
            "output_tokens": count,
            "decoded_tokens": max(count - 1, 0),
            "finish_reason": "length" if count >= wanted else "stop",
        }
        stamps = list(getattr(result, "timestamps", None) or [])
        taken = (getattr(result, "lifespan", None) or (-1, -1))[0]
        if stamps and taken > 0:
            times = (taken, stamps[0], stamps[-1])
            answer.update(
                zip(
                    ("start_ns", "first_ns", "end_ns"),
                    (int(t * 1e9) - start for t in times),
                )
            )
        else:
            answer["end_ns"] = seen_ns - start
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
                    input_ids=logits.argmax(-1, keepdim=True),
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                ).logits[:, -1]
            self._sync()
            end = now_ns()
        tokens = wanted + bool(prompt)
        answer = {
            "prompt_tokens": len(depth) + len(prompt),
            "cached_tokens": len(depth),
            "output_tokens": tokens,
            "wanted_tokens": tokens,
            "start_ns": 0,
            "first_ns": first - start,
            "end_ns": end - start,
            "decoded_tokens": wanted,
        }
        return iteration(start, end, [answer])

    def _forward(self, ids: list[int], cache: Any) -> Any:
        rows = self.torch.tensor([ids], device=self.device)
        return self.model(
            input_ids=rows, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits[:, -1]


def _produced(tokens: list[int], ends: list[int], ignore: bool) -> int:
    """Return the number of tokens in a row that is padded after its end."""
    if ignore:
        return len(tokens)
    return next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))


class _Steps:
    """When `generate` had how many tokens. It is called as a logits processor, with the scores of each step."""

    def __init__(
        self, sync: Callable[[], None], counts: dict[str, int], prompt_tokens: int
    ) -> None:
        self._sync, self._counts, self._prompt_tokens = sync, counts, prompt_tokens
        self.times: list[tuple[int, int]] = []  # how many tokens there were, and when

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if not self.times:  # the prompt has been processed
            self._sync()
        self.times.append((len(self.times) + 1, now_ns()))
        return scores


class _DraftSteps(_Steps):
    """The same with a draft model, which would call a logits processor too. A hook before the model's own forward
    sees the drafted tokens; a streamer gets the accepted ones and one more."""

    _prompt_seen = False

    def forward(self, _model: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        self._count("drafts", 1)
        self._count(
            "drafted_tokens",
            kwargs["input_ids"].shape[-1] - (1 if self.times else self._prompt_tokens),
        )

    def put(self, tokens: Any) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        new = tokens.shape[-1]
        self._count("accepted_tokens", new - 1)
        self._sync()
        before = self.times[-1][0] if self.times else 0
        self.times.append((before + new, now_ns()))

    def end(self) -> None:
        pass

    def _count(self, name: str, more: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + more


ENGINE = TransformersWorker
