"""The keywords of dyno's functions, for type checkers and editors. `make docs-reference` makes them anew.

Each is a key of a study, and docs/reference/study-keys.md has them all.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict


class EngineKeys(TypedDict, total=False):
    """The engine, and what all benchmarks have."""

    engine: str | None
    """start an engine of this kind; `dyno engines` lists them"""
    model: str | None
    """name, folder or GGUF file"""
    served_name: str | None
    """model name in the API (default: the engine's)"""
    load_format: str | None
    """how weights are loaded; dummy: random weights (default: the engine's)"""
    dtype: str | None
    """data type of weights: fp16, bf16, fp32 (default: the model's)"""
    quantization: str | None
    """fp16, bf16, fp8, int8 (W8A8), gptq, awq, or a GGUF type such as Q4_K_M (default: the model's)"""
    kv_cache_dtype: str | None
    """data type of the KV cache: fp8, fp16, bf16, q8_0, … (default: the engine's)"""
    tensor_parallel: int
    """accelerators that share each layer"""
    pipeline_parallel: int
    """stages of layers, each on its own accelerators"""
    devices: list[int] | None
    """accelerators by number, as 0 1 or 0,1; without a number: CPU only (default: all)"""
    replicas: int
    """copies of the engine, each on its own accelerators; they share the requests (latency: a batch each)"""
    max_model_len: int | None
    """longest context of a request, in tokens (default: the engine's)"""
    max_num_seqs: int | None
    """requests processed at once; llama.cpp: slots (default: the engine's)"""
    max_batched_tokens: int | None
    """tokens per step (default: the engine's)"""
    memory_fraction: float | None
    """share of accelerator memory to use (default: the engine's)"""
    prefix_caching: bool | None
    """reuse the KV cache of common prefixes (default: the engine's)"""
    chunked_prefill: bool | None
    """process long prompts in chunks (default: the engine's)"""
    draft_model: str | None
    """draft model for speculative decoding (default: none)"""
    draft_tokens: int | None
    """tokens drafted per step (default: the engine's)"""
    args: list[str]
    """more arguments for the engine, as --engine-args='--x 1'; repeatable"""
    env: Mapping[str, str]
    """environment variables for the engine"""
    before: list[str]
    """shell command to run before the engine starts; repeatable"""
    after: list[str]
    """shell command to run after the engine has stopped; repeatable"""
    prepare: list[str]
    """tune its kernels in a start of their own and keep the result: tunableop, hipblaslt (AMD)"""
    compile_cache: Literal["on", "off"] | None
    """on: one compile cache for all starts of the setting; off: an empty one for each start (default: the engine's)"""
    version: str | None
    """required version (default: any)"""
    accepts: str | None
    """versions that will do instead, as '>=0.6.2,<0.7' (default: none)"""
    python: str | None
    """Python in which the engine is installed (default: found by dyno)"""
    binary: str | None
    """the engine's program (default: found by dyno)"""
    environment: str | None
    """environment, as `dyno engines list` names it (default: the newest)"""
    container: Mapping[str, Any] | None
    """run it in a container: image, mounts, …"""
    host: Literal["127.0.0.1", "0.0.0.0"]
    """address to listen on; 0.0.0.0: other machines can reach it, too"""
    port: int | None
    """port of the first replica (default: a free one)"""
    ready_timeout_s: float | None
    """longest time to start, also with progress (default: no limit)"""
    ready_stall_s: float
    """give up a start after S seconds without progress: log, data, accelerator memory, CPU"""
    seed: int
    """seed for prompts and arrival times"""
    input_len: int
    """tokens of a random prompt"""
    output_len: int | None
    """tokens to generate; -1: as in the file (default: the dataset's)"""
    tokenizer: str | None
    """tokenizer that counts prompt tokens"""
    ignore_eos: bool
    """generate the full length, also past the end token (always on for random prompts)"""
    sampling: Mapping[str, Any]
    """sampling parameters, such as temperature"""
    profile: bool
    """run the engine's profiler during the load; offline: in one more iteration"""


class ServerKeys(EngineKeys, total=False):
    """A server, and prompts."""

    insecure: bool
    """don't verify the TLS certificate"""
    cacert: str | None
    """verify it with the authorities in this PEM file (default: the system's)"""
    cert: str | None
    """client certificate, PEM (default: none)"""
    cert_key: str | None
    """private key of --cert (PEM; default: in the same file)"""
    connect_timeout_s: float
    """time for a connection to open"""
    read_timeout_s: float | None
    """time without a byte of an answer (default: no limit)"""
    base_url: str | list[str]
    """address of a running server; a list: copies of it"""
    api_key_env: str
    """environment variable with the server's API key"""
    backend: str
    """protocol of the server (default: the engine's)"""
    endpoint: str
    """path of the route (default: the backend's)"""
    dataset: str
    """kind of prompts"""
    path: str | None
    """file of prompts or conversations; or hub:OWNER/NAME/FILE@REV"""
    num_warmups: int
    """unmeasured requests before them, with other prompts"""
    range_ratio_input: float
    """random lengths from len × (1 − R) to len × (1 + R)"""
    range_ratio_output: float
    """random lengths from len × (1 − R) to len × (1 + R)"""
    prefix_len: int
    """tokens that all random prompts share at their start; chat: tokens of the system prompt"""
    num_prefixes: int
    """different prefixes that prompts share (default: 1; prefix_repetition: 10)"""
    prefix_zipf: float
    """popularity of prefixes: the k-th is drawn in proportion to 1 / k^S; 0: all alike"""
    prefix_hit_rate: float | None
    """share of prompt tokens that repeat an earlier prompt's start; their prefixes are part of --random-input-len (default: none)"""
    shuffle: bool
    """keep the order of the file (study: shuffle = false)"""
    oversample: bool
    """don't repeat prompts if the file has too few (study: oversample = false)"""
    skip_chat_template: bool
    """send prompts of custom and hf as they are; else the model's chat template is applied to them"""
    options: Mapping[str, Any]
    """settings of a data set that a plug-in adds"""
    answers: Literal["server", "recorded"] | None
    """answers in the history of a conversation: the server's own or those of the file (default: server; recorded where the file has tool calls)"""
    lora_modules: list[str]
    """LoRA adapters of the server: each session is sent to one of them"""
    lora_assignment: Literal["random", "round-robin"]
    """how adapters are chosen"""
    num_clients: int
    """clients that are generated (dataset clients)"""
    client_skew: float
    """rate of the k-th client in proportion to 1 / k^S; 0: all alike"""
    client_rate_rps: float
    """requests per second of all clients together"""
    audio_len_s: str
    """random-audio: seconds of each sound; also a distribution"""
    asr_min_audio_len_sec: float
    """custom_audio: shortest sound to send"""
    asr_max_audio_len_sec: float | None
    """custom_audio: longest sound to send (default: no limit)"""
    reranker: bool
    """random-rerank: query and documents each have --random-input-len tokens; else a pair of them has (study: reranker = false)"""
    image_tokens: str
    """the model's rule for the tokens of an image: a family such as qwen2-vl, a number, or none (default: auto, by the model)"""
    random_mm_base_items_per_request: int
    """random-mm: images and videos of a request"""
    random_mm_num_mm_items_range_ratio: float
    """random-mm: their number is drawn from N × (1 − R) to N × (1 + R)"""
    random_mm_limit_mm_per_prompt: str
    """random-mm: most images and videos of a request"""
    random_mm_bucket_config: str
    """random-mm: share of each size, as (height, width, frames); several frames are a video"""
    image_format: Literal["jpeg", "png"]
    """random-mm: format of generated images"""
    structured_kind: Literal["json", "json-unique", "object", "tools", "choice", "regex"]
    """structured: the form of answers; json-unique: another schema for each request, which no server has prepared"""
    json_schema_path: str | None
    """structured: a JSON schema (default: three of dyno's own)"""
    structured_output_ratio: float
    """structured: share of the requests that prescribe the form; the others ask for it in words alone"""
    speed_bench_dataset_subset: Literal[
        "qualitative",
        "throughput_1k",
        "throughput_2k",
        "throughput_8k",
        "throughput_16k",
        "throughput_32k",
    ]
    """speed_bench: file of --dataset-path to read"""
    speed_bench_category: str | None
    """speed_bench: only prompts of this category (default: all)"""
    spec_bench_category: str | None
    """spec_bench: only questions of this category (default: all)"""
    hf_name: str | None
    """dataset of the Hub: to fetch, or which one --dataset-path is (default: none)"""
    hf_subset: str | None
    """subset: its files have it in their path (default: all; of gsm8k: main)"""
    hf_split: str | None
    """split: its files have it in their path (default: train; gsm8k, humaneval: test)"""
    blazedit_min_distance: float
    """blazedit: least share of the code that an edit changes"""
    blazedit_max_distance: float
    """blazedit: largest share of the code that an edit changes"""
    bfcl_categories: str
    """bfcl: categories, with commas between; needs --backend openai-chat"""
    trace_start_s: float
    """skip the first S seconds of a trace"""
    trace_end_s: float | None
    """end the trace after S seconds (default: all of it)"""
    trace_max_tokens: int | None
    """skip requests of a trace with more tokens, prompt and output together (default: none)"""
    trace_length_scale: float
    """multiply all lengths of a trace by F, also those of shared blocks"""
    timed_trace_chunk_hash_size: int
    """timed_trace: tokens per hash id"""
    timed_trace_sec_multiplier: float
    """timed_trace: seconds per unit of time; 0.001 for milliseconds"""
    timed_trace_label_timestamp: str
    """timed_trace: column of the time"""
    timed_trace_label_input_length: str
    """timed_trace: column of the prompt's tokens"""
    timed_trace_label_output_length: str
    """timed_trace: column of the output's tokens"""
    timed_trace_label_hash_ids: str
    """timed_trace: column of the hash ids"""
    turns: str | None
    """turns of a conversation, a number or a distribution: 5, 3..8, normal:MEAN,SD, lognormal:MEAN,SD, exponential:MEAN (default: chat 5, conversations all of the file)"""
    think_time_s: str
    """seconds from the end of an answer to the next question of the user; also a distribution"""
    turn_input_len: str
    """chat: tokens of each question, without the history; also a distribution"""
    turn_output_len: str | None
    """tokens to generate in each turn; also a distribution (default: chat 128, conversations as in the file, or 256)"""
    random_batch_size: int
    """random: texts of a request for embeddings; random-rerank: documents of a request"""
    token_ids: bool
    """random: send prompts as token ids, so that the server encodes nothing"""
    classes: Mapping[str, Mapping[str, Any]]
    """classes of traffic by name, each with its own keys (dataset mix)"""
    burstiness: float | None
    """how irregular a rate is: 1 Poisson, other values gamma, inf constant gaps"""
    arrivals: Literal["recorded"] | None
    """recorded: sessions begin at the times of the file, divided by speedup"""
    speedup: float
    """replay recorded times, and waits between requests, X times as fast"""
    cancel_rate: float
    """share of requests that the client cancels"""
    cancel_after_s: float
    """time from sending to cancelling, at most; drawn evenly"""
    probe_rate_rps: float
    """also send requests of one token at this rate, beside the load and in none of its figures"""
    request_timeout_s: float
    """fail requests that take longer"""
    response_bytes_max: int | None
    """fail longer answers (default: 1 MiB plus 8 KiB per requested output token)"""
    extra_body: Mapping[str, Any]
    """more fields for each request's body"""
    chat_template_kwargs: Mapping[str, Any]
    """variables of the chat template, such as enable_thinking"""
    stream: bool
    """ask for each answer in one piece: it has no first token, and no TTFT, TPOT and ITL (study: stream = false)"""
    template: Mapping[str, Any]
    """backend json: body of a request, and the places of text and counts in an answer"""
    request_id_prefix: str | None
    """send a header x-request-id with each request: this text and its number (default: none)"""
    percentiles: list[float]
    """percentiles to calculate"""
    goodput_ms: Mapping[str, float]
    """latency limits in ms by ttft, ttfo, tpot, e2el: goodput counts requests within all"""
    ready_check_timeout_s: float | None
    """wait up to S seconds for one successful test request; 0 skips it (default: one test, no waiting)"""
    metadata: Mapping[str, str]
    """facts to store with the result"""
    correctness_check: bool
    """don't check a few greedy answers before and after the load (study: correctness_check = false)"""
    procs: int | Literal["auto"]
    """client processes that share the load; auto: from the figures of `dyno doctor`"""
    on: Literal["here", "ray"]
    """where the client's processes run: this machine or a Ray cluster"""
    ray_address: str | None
    """address of a running Ray cluster (default: start one on this machine)"""
    cache: Literal["empty", "keep"]
    """prefix cache before each trial (default: empty)"""


class ServeKeys(ServerKeys, total=False):
    """Keywords of `dyno.serve`."""

    num_prompts: int
    """number of requests; -1: all of a file"""
    num_sessions: int | None
    """number of conversations or agent sessions (default: as many as --num-prompts requests make)"""
    request_rate_rps: float | None
    """requests (or sessions) per second; inf: no rate (default: inf)"""
    max_concurrency: int | None
    """most requests in flight at once, or users with a session each (default: no limit)"""
    ramp: Literal["linear", "exponential"] | None
    """raise the rate during the run (default: constant rate)"""
    ramp_start_rps: float | None
    """first rate of a ramp"""
    ramp_end_rps: float | None
    """last rate of a ramp"""
    rate_schedule: str | None
    """a rate that changes over time: 'step: 0=2 30=8 60=2', 'ramp: 2..8 over=60', 'sine: 2..8 period=60', 'burst: 2 peak=20 every=30 for=3', 'file: rates.csv' (default: none)"""
    concurrency_schedule: str | None
    """a concurrency that changes over time, in the same words; needs --duration (default: none)"""
    duration_s: float | None
    """send for S seconds, then let open requests finish (default: until all prompts are sent)"""


class FindKeys(ServerKeys, total=False):
    """Keywords of `dyno.find`."""


class ThroughputKeys(EngineKeys, total=False):
    """Keywords of `dyno.throughput`."""

    dataset: str
    """kind of prompts"""
    path: str | None
    """file of prompts or conversations; or hub:OWNER/NAME/FILE@REV"""
    num_prompts: int
    """number of requests; -1: all of a file"""
    num_warmups: int
    """unmeasured requests before them, with other prompts"""
    range_ratio_input: float
    """random lengths from len × (1 − R) to len × (1 + R)"""
    range_ratio_output: float
    """random lengths from len × (1 − R) to len × (1 + R)"""
    prefix_len: int
    """tokens that all random prompts share at their start; chat: tokens of the system prompt"""
    num_prefixes: int
    """different prefixes that prompts share (default: 1; prefix_repetition: 10)"""
    prefix_zipf: float
    """popularity of prefixes: the k-th is drawn in proportion to 1 / k^S; 0: all alike"""
    prefix_hit_rate: float | None
    """share of prompt tokens that repeat an earlier prompt's start; their prefixes are part of --random-input-len (default: none)"""
    shuffle: bool
    """keep the order of the file (study: shuffle = false)"""
    oversample: bool
    """don't repeat prompts if the file has too few (study: oversample = false)"""
    skip_chat_template: bool
    """send prompts of custom and hf as they are; else the model's chat template is applied to them"""
    options: Mapping[str, Any]
    """settings of a data set that a plug-in adds"""
    lora_modules: list[str]
    """LoRA adapters of the server: each session is sent to one of them"""
    lora_assignment: Literal["random", "round-robin"]
    """how adapters are chosen"""
    hf_name: str | None
    """dataset of the Hub: to fetch, or which one --dataset-path is (default: none)"""
    hf_subset: str | None
    """subset: its files have it in their path (default: all; of gsm8k: main)"""
    hf_split: str | None
    """split: its files have it in their path (default: train; gsm8k, humaneval: test)"""
    blazedit_min_distance: float
    """blazedit: least share of the code that an edit changes"""
    blazedit_max_distance: float
    """blazedit: largest share of the code that an edit changes"""
    bfcl_categories: str
    """bfcl: categories, with commas between; needs --backend openai-chat"""
    trace_start_s: float
    """skip the first S seconds of a trace"""
    trace_end_s: float | None
    """end the trace after S seconds (default: all of it)"""
    trace_max_tokens: int | None
    """skip requests of a trace with more tokens, prompt and output together (default: none)"""
    trace_length_scale: float
    """multiply all lengths of a trace by F, also those of shared blocks"""
    timed_trace_chunk_hash_size: int
    """timed_trace: tokens per hash id"""
    timed_trace_sec_multiplier: float
    """timed_trace: seconds per unit of time; 0.001 for milliseconds"""
    timed_trace_label_timestamp: str
    """timed_trace: column of the time"""
    timed_trace_label_input_length: str
    """timed_trace: column of the prompt's tokens"""
    timed_trace_label_output_length: str
    """timed_trace: column of the output's tokens"""
    timed_trace_label_hash_ids: str
    """timed_trace: column of the hash ids"""
    iterations: int | None
    """measured iterations"""
    warmup_iterations: int | None
    """unmeasured iterations before them"""
    timeout_s: float
    """fail iterations that take longer"""
    detokenize: bool
    """don't convert tokens to text (study: detokenize = false)"""
    sequences: int
    """sequences per prompt, with vLLM; of a beam search its width"""
    prequeue: bool
    """throughput, with vLLM: queue all prompts before the engine may begin"""
    lora_path: str | None
    """throughput, with vLLM and its --enable-lora: adapter of all prompts, loaded --max-loras times"""


class LatencyKeys(EngineKeys, total=False):
    """Keywords of `dyno.latency`."""

    batch_size: int | None
    """requests per batch"""
    iterations: int | None
    """measured iterations"""
    warmup_iterations: int | None
    """unmeasured iterations before them"""
    timeout_s: float
    """fail iterations that take longer"""
    detokenize: bool
    """don't convert tokens to text (study: detokenize = false)"""
    sequences: int
    """sequences per prompt, with vLLM; of a beam search its width"""
    beam_search: bool
    """latency, with vLLM: search by beams of --n sequences"""


class MicroKeys(EngineKeys, total=False):
    """Keywords of `dyno.micro`."""

    iterations: int | None
    """measured iterations"""
    warmup_iterations: int | None
    """unmeasured iterations before them"""
    depth: int | None
    """micro: tokens in the context before the test"""
    timeout_s: float
    """fail iterations that take longer"""
    by: str | None
    """micro with llama.cpp: llama-bench, or timers (the server's own) (default: llama-bench)"""
