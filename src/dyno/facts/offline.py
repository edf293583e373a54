"""An offline load: everything is handed to the engine's own process at once, with no server in between."""

from typing import Literal

import msgspec

OfflineKind = Literal["throughput", "latency", "micro"]


class OfflineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: OfflineKind
    batch_size: int | None = None  # latency: requests worked on together; None: 8, as vLLM does
    iterations: int | None = None  # measured ones; micro: repetitions of each test. None: as the procedure does
    warmup_iterations: int | None = None
