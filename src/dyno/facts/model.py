"""A model's shape by its files, from which memory and speed follow. None: unknown."""

from collections.abc import Callable

import msgspec

OWN_MODEL = "dyno-5m"  # that comes with dyno


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
    # fp8, int8, gptq, awq, Q4_K_M, …; None: not quantized, or not known
    quantization: str | None = None
    weights_bytes: int | None = None  # of the files
    parameters: int | None = None
    # Of the parameters, by part. Bytes are those of the files; 0 where there are none and the config alone is known.
    bytes_by_type: dict[str, int] = {}  # BF16, F8_E4M3, Q4_K → bytes
    # the table of input tokens: looked up, not read, unless it is the head too
    embedding_parameters: int = 0
    embedding_bytes: int = 0
    head_parameters: int = 0  # 0: the table of input tokens serves
    head_bytes: int = 0
    expert_parameters: int = 0  # routed ones, all of them
    expert_bytes: int = 0
    experts: int | None = None  # in a layer
    experts_used: int | None = None  # of them, for a token
    # what text doesn't pass through: a vision tower, layers that draft, further tables
    aside_parameters: int = 0
    aside_bytes: int = 0
    # multi-head latent attention: values that are kept for each token and layer
    latent: int | None = None
    full_layers: int | None = None  # that attend to the whole context; None: all
    # that attend to the last `window` tokens; others keep a state of fixed size
    window_layers: int = 0
    window: int | None = None

    @property
    def active_parameters(self) -> int | None:
        """Return the parameters that a token goes through, the embeddings among them, as makers count."""
        if self.parameters is None:
            return None
        if not self.expert_parameters:
            return self.parameters
        if not self.experts or not self.experts_used:
            return None
        idle = 1 - min(self.experts_used / self.experts, 1.0)
        return round(self.parameters - self.expert_parameters * idle)

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0) -> float | None:
        """Return the bytes of keys and values of all layers that keep any."""
        each = self._kv_values
        if self.layers is None or each is None:
            return None
        layers = (
            self.layers
            if self.full_layers is None
            else self.full_layers + self.window_layers
        )
        return layers * each * bytes_per_value

    def kv_bytes_read(self, context: float, bytes_per_value: float = 2.0) -> float | None:
        """Return the bytes for one token that attends to `context` tokens before it."""
        tokens, each = self._attended(context, min), self._kv_values
        return None if tokens is None or each is None else tokens * each * bytes_per_value

    def attention_operations(self, context: float) -> float:
        """Count for one token: its query by each key, and the weights by each value. 0 where the shape isn't known."""
        tokens = self._attended(context, _mean_in_window)
        return (
            0.0 if tokens is None else 4 * tokens * (self.heads or 0) * (self.head_dim or 0)
        )

    def _attended(
        self, context: float, in_window: Callable[[float, float], float]
    ) -> float | None:
        """Return the attended tokens, summed over the layers."""
        if self.layers is None:
            return None
        if self.full_layers is None:
            return self.layers * context
        seen = in_window(context, self.window) if self.window else context
        return self.full_layers * context + self.window_layers * seen

    @property
    def _kv_values(self) -> int | None:
        """Return the bytes of one token and layer."""
        if self.latent is not None:
            return self.latent
        return (
            None
            if self.kv_heads is None or self.head_dim is None
            else 2 * self.kv_heads * self.head_dim
        )


def _mean_in_window(context: float, window: float) -> float:
    """Return the mean over positions from 0 on, whose mean is `context`: the first have less before them."""
    return context if 2 * context <= window else window - window * window / (4 * context)
