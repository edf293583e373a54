"""A model as its files tell: the shape that memory and speed follow from. None: they don't tell."""

import msgspec


class ModelShape(msgspec.Struct, frozen=True):
    path: str
    format: str  # safetensors, gguf, or '' where there are no weights
    architecture: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    context: int | None = None  # that it was trained for
    dtype: str | None = None  # fp16, bf16, fp32: of what isn't quantized
    quantization: str | None = None  # fp8, int8, gptq, awq, Q4_K_M, …; None: not quantized, or not known
    weights_bytes: int | None = None
    parameters: int | None = None

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0) -> float | None:
        """Keys and values of all layers."""
        if self.layers is None or self.kv_heads is None or self.head_dim is None:
            return None
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value
