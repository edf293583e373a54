"""Every command line of five public reports, as printed, and what dyno does with it.

Prompts (`$ `) are left out, and lines that go on after a break are joined. Where a report names no version of its
engine, the one of its date is meant.
"""

import re
import shlex
import string
from typing import NamedTuple

PROGRAMS = {  # of the reports → dyno's
    r"vllm serve": "engines start vllm",
    r"vllm bench serve": "bench serve",
    r"\S*llama-server": "engines start llamacpp",
    r"\S*llama-bench": "bench micro",
    r"text-generation-launcher": "engines start tgi",
    r"python3? \S*benchmark_serving.py": "bench serve",
    r"python3? \S*benchmark_throughput.py": "bench throughput",
    r"python3? \S*benchmark_latency.py": "bench latency",
}
PLACEHOLDERS = {
    "<INPUT_LEN>": "2048", "<OUTPUT_LEN>": "2048", "<BATCH_SIZE>": "64", "<Batch Size>": "64", "=QPS": "=16",
    "<sequence length>": "1000", "<path/to/output.json>": "output.json",
}  # fmt: skip
VARIABLES = {
    "MODEL": "amd/Llama-3.1-405B-Instruct-FP8-KV", "BS": "1", "IN": "128", "OUT": "2048", "TP": "8", "PROMPTS": "1000",
    "MAX_NUM_SEQS": "2000", "MODEL_ID": "meta-llama/Llama-3.1-405B-Instruct", "MAX_CONCURRENT_REQUESTS": "8192",
    "MAX_TOTAL_TOKEN": "130000",
}  # fmt: skip
SAME = {
    "-tp": "--tensor-parallel-size", "-m": "--model", "-np": "--parallel", "-fa": "--flash-attn",
    "-cb": "--cont-batching", "--num-scheduler-step": "--num-scheduler-steps", "--model-id": "--model",
}  # fmt: skip


class Typed(NamedTuple):
    """A line as a user types it into dyno."""

    env: dict[str, str]  # variables before it
    command: str

    @property
    def engine(self) -> str:
        words = self.command.split()
        return (
            "llamacpp"
            if words[1] == "micro"
            else words[2]
            if words[1] == "start"
            else "vllm"
        )

    @property
    def is_client(self) -> bool:
        return self.command.startswith("bench serve")


def typed(line: str) -> Typed:
    for placeholder, value in PLACEHOLDERS.items():
        line = line.replace(placeholder, value)
    line = string.Template(line).safe_substitute(VARIABLES)
    env = {}
    while match := re.match(r"([A-Z_]+)=(\S*) ", line):
        env[match[1]], line = match[2], line[match.end() :]
    for program, ours in PROGRAMS.items():
        if match := re.match(program + r"(?= |$)", line):
            return Typed(env, ours + line[match.end() :])
    raise ValueError(f"no counterpart: {line}")


def flags(words: list[str]) -> dict[str, str]:
    """Flag → value, in one spelling; a word that belongs to no flag is the model."""
    out: dict[str, str] = {}
    i = 0
    while i < len(words):
        name, equals, value = words[i].partition("=")
        i += 1
        if not name.startswith("-"):
            out["--model"] = words[i - 1]
            continue
        if not equals and i < len(words) and not re.match("-[a-zA-Z-]", words[i]):
            value = words[i]
            i += 1
        name = name.replace("_", "-")
        out[SAME.get(name, name)] = value
    return out


def printed(line: str) -> dict[str, str]:
    """The flags of a report's line."""
    _, command = typed(line)
    return flags(shlex.split(command)[3 if command.startswith("engines") else 2 :])


class Report(NamedTuple):
    title: str
    versions: dict[str, str]  # of the engines
    lines: tuple[str, ...]


_SHAREGPT = (
    "--dataset-name sharegpt --dataset-path ./ShareGPT_V3_unfiltered_cleaned_split.json"
)
_70B = "meta-llama/Llama-3.1-70B-Instruct --gpu_memory_utilization=0.98 --num-scheduler-steps 20"
_LATENCY = ("python benchmark_latency.py --model amd/Llama-3.1-405B-Instruct-FP8-KV --max-model-len 26720 -tp 8 "
            "--batch-size 1 --use-v2-block-manager --input-len 1024 --output-len 128")  # fmt: skip
_OFFLINE = ("--input-len=<INPUT_LEN> --output-len=<OUTPUT_LEN> --tensor-parallel-size 8 --max-model-len 91680 "
            "--num-prompts=<BATCH_SIZE>")  # fmt: skip
_FP8 = "--quantization fp8 --kv-cache-dtype fp8 --dtype float16"
_GGUF = [f"/models/gguf/{name}.gguf" for name in
         ("llama-2-7b.Q4_0", "llama-2-7b.Q4_K_M", "llama-2-7b.Q8_0", "Llama-2-7b-chat-hf.f16")]  # fmt: skip
_STRIX = [  # by the lists of arguments that the report prints: model, concurrency
    ("meta-llama/Llama-2-7b-chat-hf", 1), ("meta-llama/Llama-2-7b-chat-hf", 8), ("meta-llama/Llama-2-7b-chat-hf", 16),
    ("RedHatAI/Llama-2-7b-chat-quantized.w8a8", 16), ("TheBloke/Llama-2-7B-Chat-GPTQ", 16), (_GGUF[3], 1),
    (_GGUF[3], 16), (_GGUF[2], 1), (_GGUF[2], 16), (_GGUF[1], 1), (_GGUF[1], 16),
]  # fmt: skip
_SONNET = (
    "python scripts/benchmark_serving.py --backend vllm --model meta-llama/Llama-3.1-405B-Instruct --dataset-name "
    'sonnet --num-prompt=<Batch Size> --dataset-path="sonnet.txt" --sonnet-input-len <sequence length>'
)

REPORTS = (
    Report(
        "Hot Aisle: Llama-3.1-70B on MI300X (December 2024)",
        {"vllm": "0.6.5"},
        (
            f"VLLM_USE_TRITON_FLASH_ATTN=0 vllm serve -tp 4 {_70B}",
            f"VLLM_USE_TRITON_FLASH_ATTN=0 vllm serve -tp 4 {_70B} --max-num-seqs 4096",
            f'LLM_USE_TRITON_FLASH_ATTN=0 vllm serve -tp 1 {_70B} --max-num-seqs 4096 --quantization="fp8" '
            "--max-model-len 32768",
            f"python benchmark_serving.py --backend openai-chat --model meta-llama/Llama-3.1-70B-Instruct {_SHAREGPT} "
            "--num-prompts 1024 --max-concurrency 256 --tokenizer meta-llama/Llama-3.1-70B-Instruct --port 8000 "
            "--endpoint /v1/chat/completions",
        ),
    ),
    Report(
        "AMD: vLLM FP8 benchmarks on MI300X (vLLM 0.6.3)",
        {"vllm": "0.6.3"},
        (
            f"python3 /app/vllm/benchmarks/benchmark_latency.py --distributed-executor-backend mp {_FP8} "
            "--gpu-memory-utilization 0.9 --trust-remote-code --model $MODEL --batch-size $BS --input-len $IN "
            "--output-len $OUT --tensor-parallel-size $TP --num-iters-warmup 3 --num-iters 5 --output-json output.json",
            f"python3 /app/vllm/benchmarks/benchmark_throughput.py --distributed-executor-backend mp {_FP8} "
            "--gpu-memory-utilization 0.9 --trust-remote-code --num-scheduler-steps 10 --enable-chunked-prefill False "
            "--model $MODEL --max-model-len 8192 --max-num-batched-tokens 131072 --max-seq-len-to-capture 131072 "
            "--input-len $IN --output-len $OUT --tensor-parallel-size $TP --num-prompts $PROMPTS "
            "--max-num-seqs $MAX_NUM_SEQS --output-json output.json",
            f"vllm serve amd/Llama-3.1-70B-Instruct-FP8-KV --swap-space 16 --disable-log-requests {_FP8} "
            "--max-model-len 8192 --tensor-parallel-size 8 --max-num-batched-tokens 65536 --gpu-memory-utilization "
            "0.99 --num_scheduler-steps 10",
            "python /app/vllm/benchmarks/benchmark_serving.py --port 8000 --model amd/Llama-3.1-70B-Instruct-FP8-KV "
            "--dataset-name random --random-input-len 4096 --random-output-len 512 --request-rate 1 --ignore-eos "
            "--num-prompts 500 --percentile-metrics ttft,tpot,itl,e2el",
            "HIP_VISIBLE_DEVICES=0 python3 /app/vllm/benchmarks/benchmark_throughput.py --max-model-len 4608 "
            "--num-scheduler-steps 10 --num-prompts 100 --model amd/Llama-3.1-70B-Instruct-FP8-KV --input-len 4096 "
            "--output-len 512 --dtype float16 --tensor-parallel-size 1 --output-json <path/to/output.json> "
            "--quantization fp8 --gpu-memory-utilization 0.99",
            _LATENCY,
            f"{_LATENCY} --speculative-model amd/Llama-3.1-8B-Instruct-FP8-KV --num-speculative-tokens 5",
        ),
    ),
    Report(
        "lhl: vLLM and llama.cpp on a Strix Halo (August 2025)",
        {"vllm": "0.10.1", "llamacpp": "6327"},
        (
            "vllm serve meta-llama/Llama-2-7b-chat-hf --gpu-memory-utilization 0.75",
            "ROCBLAS_USE_HIPBLASLT=1 build/bin/llama-server -fa on -ngl 99 -np 16 -cb --kv-unified --cache-reuse 256 "
            f"--port 8000 -m {_GGUF[3]}",
            f"python benchmark_serving.py {_SHAREGPT} --num-prompts 64 --model meta-llama/Llama-2-7b-chat-hf "
            "--max-concurrency 8",
            *(
                f"vllm bench serve {_SHAREGPT} --num-prompts 64 --model {m} --max-concurrency {c}"
                for m, c in _STRIX
            ),
            *(
                f"{env}build/bin/llama-bench -fa 1 -m {m}"
                for m in _GGUF
                for env in ("", "ROCBLAS_USE_HIPBLASLT=1 ")
            ),
        ),
    ),
    Report(
        "dstack: 8×H100 and 8×MI300X with Llama-3.1-405B (November 2024)",
        {"vllm": "0.6.3"},
        (
            "VLLM_RPC_TIMEOUT=30000 VLLM_USE_TRITON_FLASH_ATTN=0 vllm serve meta-llama/Llama-3.1-405B-FP8 --host "
            "0.0.0.0 --port 8000 -tp 8 --max-seq-len-to-capture 16384 --served-model-name "
            "meta-llama/Llama-3.1-405B-FP8 --enable-chunked-prefill=False --num-scheduler-step 15 --max-num-seqs 1024",
            "vllm serve meta-llama/Llama-3.1-405B-FP8 --tensor-parallel-size 8 --max-model-len 91680",
            "python3 benchmark_serving.py --backend vllm --model meta-llama/Llama-3.1-405B-FP8 --dataset-name sharegpt "
            '--dataset-path="ShareGPT_V3_unfiltered_cleaned_split.json" --request-rate=QPS',
            f'python benchmark_throughput.py --backend vllm --model "meta-llama/Llama-3.1-405B-FP8" {_OFFLINE} '
            "--enforce-eager --num-scheduler-step 15",
            f'python benchmark_throughput.py --backend vllm --model "amd/Llama-3.1-405B-Instruct-FP8-KV" {_OFFLINE} '
            "--enforce-eager --num-scheduler-step 1",
            f'python benchmark_throughput.py --backend vllm --model "meta-llama/Llama-3.1-405B-FP8" {_OFFLINE} '
            "--num-scheduler-step 1",
        ),
    ),
    Report(
        "dstack: TGI and vLLM on 8×MI300X with Llama-3.1-405B (October 2024; the commands are in its repository)",
        {"vllm": "0.6.3", "tgi": "2.3"},
        (
            "MODEL_ID=meta-llama/Llama-3.1-405B-Instruct text-generation-launcher --port 8000 --num-shard 8 "
            "--sharded true --max-concurrent-requests 8192 --max-total-tokens 130000 --max-input-tokens 125000",
            "ROCR_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 vllm serve $MODEL_ID --tensor-parallel-size=8 --disable-log-requests "
            "--disable-frontend-multiprocessing",
            _SONNET,
            f"{_SONNET.replace('scripts/', '').replace('--backend vllm', '--backend tgi')}",
        ),
    ),
)

# Other lines: as printed, dyno's command, and about it. In a command: the flags that stand for the line.
CONTAINERS = (
    (
        "docker run -it --rm --ipc=host --network=host --group-add render --privileged --security-opt "
        "seccomp=unconfined --cap-add=CAP_SYS_ADMIN --cap-add=SYS_PTRACE --device=/dev/kfd --device=/dev/dri "
        "--device=/dev/mem -e HF_HOME=/data -e HF_TOKEN=<token> -v /data:/data rocm/vllm-dev:main",
        "engines start vllm MODEL --engine-image rocm/vllm-dev:main --engine-mount /data:/data --engine-env "
        "HF_HOME=/data --engine-privileges amd --engine-container-args=--privileged",
    ),
    (
        "docker run -it --network=host --group-add=video --ipc=host --cap-add=SYS_PTRACE --security-opt "
        "seccomp=unconfined --device /dev/kfd --device /dev/dri -v /mnt/nvme5n1p1/cache:/root/.cache "
        "ghcr.io/embeddedllm/vllm-rocm:cb3b2b9 bash",
        "engines start vllm MODEL --engine-image ghcr.io/embeddedllm/vllm-rocm:cb3b2b9 --engine-mount "
        "/mnt/nvme5n1p1/cache:/root/.cache",
    ),
)
OTHERS = (
    ("docker pull rocm/vllm-dev:main", "dyno pulls the image of `--engine-image` if it is missing"),
    ("export VLLM_USE_TRITON_FLASH_ATTN=0; export NCCL_MIN_NCHANNELS=112",
     "works: type it before dyno's command, or use `--engine-env NAME=VALUE`"),
    ("rocm-smi --setcomputepartition cpx",
     "works; or `--engine-before` and `--engine-after`, which run whatever happens"),
    ("sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'", "works; `dyno doctor` shows the state, results record it"),
    ("sudo ryzenadj …; sudo tuned-adm profile accelerator-performance", "works; or `--engine-before`"),
    ("pip install https://…/vllm-1.0.0.dev-cp38-abi3-manylinux1_x86_64.whl",
     "`dyno engines install vllm --from URL`"),
    ("docker run --gpus all -it --rm --ipc=host -v … nvcr.io/nvidia/pytorch:23.10-py3",
     "not needed: the engine's environment replaces it"),
    ("git clone https://github.com/ROCm/vllm.git; docker build -f Dockerfile.rocm …",
     "`container.build` in a study"),
    ("wget …/ShareGPT_V3_unfiltered_cleaned_split.json",
     "not needed: `--dataset-name sharegpt` finds or fetches it; or `dyno models pull`"),
    ("huggingface-cli login; huggingface-cli download …",
     "`dyno models pull OWNER/NAME`; `dyno run` fetches the models of a study"),
    ("python3 quantize_quark.py …", "`dyno models quantize MODEL quark:fp8`"),
    ("dstack apply -f hotaisle.dstack.yml",
     "`dstack = { host = \"user@host\", key_file = \"PATH\" }` in `[rigs.NAME]`: dyno writes the fleet and the task, "
     "and applies them; `dyno run STUDY --dry-run` prints them"),
    ("lm_eval --model vllm --model_args pretrained=MODEL,dtype=float16,tensor_parallel_size=8 --tasks mmlu_pro_biology "
     "(by the header of its results)",
     "`dyno eval --engine vllm --model MODEL --dtype fp16 -tp 8 --tasks mmlu_pro_biology --num-fewshot 5`; or "
     "`[quality]` in a study, as in `rocm-fp8-quality`"),
)  # fmt: skip
