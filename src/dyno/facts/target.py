"""The server under test: what was asked for, and what it said of itself."""

import msgspec


class TargetSpec(msgspec.Struct, frozen=True):
    """Where and what to ask. Keys and header values are kept apart from it: they reach no file."""

    base_url: str
    backend: str
    endpoint: str
    model: str | None = None  # None: the first that the server lists
    served_model_name: str | None = None
    header_names: list[str] = []
    insecure: bool = False
    more_urls: list[str] = []  # further copies of the same server: requests go to the one with the least in flight

    @property
    def urls(self) -> list[str]:
        return [self.base_url, *self.more_urls]


class TargetFacts(msgspec.Struct, frozen=True):
    """By its routes, and by its log where dyno started it. None: it doesn't say."""

    model: str  # as sent in each request
    models_listed: list[str] | None = None  # None: it has no list
    max_model_len: int | None = None  # context of one request
    version: str | None = None
    kind: str | None = None  # vllm, llamacpp, …: recognised by its routes
    model_path: str | None = None  # what was loaded
    slots: int | None = None  # requests worked on at once
    quantization: str | None = None  # '': it says that nothing is quantized
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    kv_cache_tokens: int | None = None  # capacity
    full_length_requests: float | None = None  # how many requests of full context the KV cache holds at once
    prefix_caching: bool | None = None
    tensor_parallel: int | None = None
    weights_bytes: int | None = None
