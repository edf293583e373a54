"""All models of servers, by name."""

from collections.abc import Callable
from functools import cache

from production_servers import PRODUCTION
from servers import HELD_OUT, MODELS, Server
from strange_servers import STRANGE

EVERY: dict[str, Callable[[], Server]] = {**MODELS, **HELD_OUT, **STRANGE, **PRODUCTION}


@cache
def server(name: str) -> Server:
    """Return a model. Some keep a state from load to load, or a truth that took seconds."""
    return EVERY[name]()
