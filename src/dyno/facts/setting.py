"""The settings that results share, and the names that others have for them. The only list of them.

Load and workload come first, then the engine, then the machine.
"""

import re

import msgspec

from dyno.option import Field


class Alias(msgspec.Struct, frozen=True):
    """Other names of a setting, in lower case, with spaces for dashes and underscores."""

    name: str
    both: str = ""  # titles of columns that are flags too
    titles: str = ""  # of columns alone
    flags: str = ""  # of commands alone
    labels: str = ""  # in printed lines above or in a block of results


ALIASES = (
    Alias("concurrency", "concurrency, max concurrency",
          "maximum concurrency, conc, concurrent requests, users, clients, concurrent users, concurrency level, c, "
          "maximum request concurrency, num concurrent requests, concurrencies, num concurrency, request concurrency, "
          "max request concurrency, streams",
          labels="maximum request concurrency, max request concurrency, max reqeuest concurrency, max concurrency"),
    Alias("rate", "request rate",
          "qps, rps, target qps, target rps, request rate configured, traffic request rate, offered rate",
          labels="traffic request rate, request rate, request rate configured (rps)"),
    Alias("num_prompts", "num prompts", "prompts, number of prompts, number of requests, num requests, requests",
          "num prompt, request count", "num prompts, num prompt"),
    Alias("dataset", "dataset name", "dataset"),
    Alias("input_len", "input len, isl, random input len",
          "input length, prompt len, prompt length, input sequence length, random input length, in len",
          "random input", "seq length"),
    Alias("output_len", "output len, osl, random output len",
          "output length, output sequence length, random output length, out len", "random output, sharegpt output len"),
    Alias("seed", "seed"),
    Alias("ignore_eos", flags="ignore eos"),
    Alias("batch_size", "batch, batch size", "bs, batchsize"),
    Alias("backend", "backend", "backends"),
    Alias("endpoint", flags="endpoint"),
    Alias("tokenizer", flags="tokenizer"),
    Alias("percentiles", flags="metric percentiles"),
    # Micro tests and quality.
    Alias("test"), Alias("depth"), Alias("task", flags="tasks"), Alias("metric"), Alias("filter"),
    Alias("n_shot", flags="num fewshot"), Alias("limit", flags="limit"), Alias("samples"),
    Alias("model", "model", "model name, model quant, models", "model id, model path"),
    Alias("revision", flags="revision"),
    Alias("engine", titles="engine, framework, inference engine, serving engine, inference framework, runtime engine"),
    Alias("engine_version", titles="engine version"),
    Alias("tool_version"),
    Alias("quantization", "quantization", "quant, quantisation, precision, quantization method", "quantize"),
    Alias("kv_cache_dtype", "kv cache dtype", "kv cache, kv dtype"),
    Alias("dtype", "dtype", "data type"),
    Alias("model_bytes", titles="size, model size, weights, weight size, model weights"),
    Alias("parameters"),
    Alias("tensor_parallel", "tp, tensor parallel size, tp size", "tensor parallel, tensor parallelism", "num shard"),
    Alias("pipeline_parallel", "pipeline parallel size", "pipeline parallel, pipeline parallelism", "pp, pp size"),
    Alias("replicas", "dp, data parallel size", "replicas, data parallel", "dp size"),
    Alias("max_num_seqs", "max num seqs", "maximum number of sequences",
          "max running requests, max concurrent requests, parallel"),
    Alias("max_model_len", "max model len", "max model length", "context length, max total tokens"),
    Alias("max_batched_tokens", "max num batched tokens", "max batched tokens", "chunked prefill size"),
    Alias("chunked_prefill", "enable chunked prefill", "chunked prefill"),
    Alias("prefix_caching", "enable prefix caching", "prefix caching"),
    Alias("scheduler_steps", "num scheduler steps, num scheduler step", "scheduler steps"),
    Alias("enforce_eager", "enforce eager", flags="disable cuda graph"),
    Alias("memory_fraction", "gpu memory utilization, mem fraction static"),
    Alias("speculative", flags="speculative model, speculative config, speculative algorithm"),
    Alias("accelerator", titles="gpu, gpus, accelerator, hardware, hw, device, gpu model, gpu type"),
    Alias("accelerators"),
    Alias("price_per_hour",
          titles="usd per hr, usd per hour, price per hour, cost per hour, usd hr, usd hour, usd/h"),
    Alias("date", titles="date"),
)  # fmt: skip
SETTINGS = tuple(alias.name for alias in ALIASES)


def name_of(field: Field) -> str:
    """Return the name of a spec's field among the settings of a result: one that results share, else its flag."""
    if field.option.setting:
        return field.option.setting
    if field.name in SETTINGS or not field.option.flags:
        return field.name
    return field.option.flags.split()[0]


def _names(*fields: str) -> dict[str, str]:
    """Return the setting for each name that other tools use."""
    settings: dict[str, str] = {}
    for alias in ALIASES:
        for field in fields:
            others: str = getattr(alias, field)
            if others:
                settings |= dict.fromkeys(others.split(", "), alias.name)
    return settings


TITLES = _names("both", "titles")
LABELS = _names("labels")
_FLAGS = _names("both", "flags") | {
    "ctx size": "context",
    "no enable prefix caching": "-prefix_caching",
    "disable radix cache": "-prefix_caching",
}


def of_flag(flag: str) -> str:
    """Return the setting that a flag means: --tensor-parallel-size, tensor_parallel_size → tensor_parallel; '': none.

    A flag that turns something off has a dash before its setting: no-enable-prefix-caching → -prefix_caching.
    """
    return _FLAGS.get(re.sub("[-_]", " ", flag.lstrip("-")), "")
