"""All models of servers, by name."""

from collections.abc import Callable
from functools import cache

from production_servers import PRODUCTION
from servers import HELD_OUT, MODELS, Server
from strange_servers import STRANGE

EVERY: dict[str, Callable[[], Server]] = {**MODELS, **HELD_OUT, **STRANGE, **PRODUCTION}


# Servers that change for minutes while one load lasts, fail or pause more seldom than it is looked at, or collapse just
# above the answer.
SLOWER = {
    "scales by load",
    "sticky sessions",
    "answers kept for a minute",
    "crashes every 100 s",
    "fails in bursts",
    "2.5 s every 45 s, p99",
    "KV full, open",
    "Pareto lengths",
}


@cache
def server(name: str) -> Server:
    """Return a model. Some keep a state from load to load, or a truth that took seconds."""
    model = EVERY[name]()
    return model._replace(slower=name in SLOWER)
