"""Environment variables that move an engine's numbers, without the secrets that lie beside them."""

from collections.abc import Mapping

from dyno.secrets import shown

PREFIXES = (
    "CUDA_", "NVIDIA_", "NCCL_", "CUBLAS_", "CUDNN_", "HIP_", "HSA_", "ROCR_", "ROCM_", "ROCBLAS_", "HIPBLASLT_",
    "TENSILE_", "RCCL_", "MIOPEN_", "AITER_", "GPU_", "AMD_", "VLLM_", "SGLANG_", "SGL_", "FLASHINFER_", "PYTORCH_",
    "TORCH_", "TORCHINDUCTOR_", "TRITON_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GGML_", "LLAMA_", "XLA_",
)  # fmt: skip
NOISE = ("NVIDIA_REQUIRE_",)  # which drivers an image would take: two thousand letters
NAMES = {
    "HF_HOME", "HF_HUB_OFFLINE", "HF_HUB_ENABLE_HF_TRANSFER", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM",
    "LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX",
    # of TGI
    "USE_PREFIX_CACHING", "PREFIX_CACHING", "ATTENTION", "QUANTIZE", "NUM_SHARD", "MAX_BATCH_PREFILL_TOKENS",
    "MAX_BATCH_TOTAL_TOKENS", "CUDA_GRAPHS",
}  # fmt: skip


def kept(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: shown(name, value)
        for name, value in sorted(environ.items())
        if (name in NAMES or name.startswith(PREFIXES)) and not name.startswith(NOISE)
    }
