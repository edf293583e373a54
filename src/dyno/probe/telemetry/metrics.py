"""An engine's metrics in Prometheus' text format: the few that are wanted, by one name for all engines.

A scan for names and no parser: of the 600 lines that vLLM writes, ten are wanted (decision 8 has the figures).
"""

import math
from collections.abc import Iterator, Mapping, Sequence

Names = Mapping[str, Sequence[str]]  # our name → the engines'; the first in the text counts
SHARES = ("kv_used_share", "accepted_length_tokens")
# no count or share is: a sum of such values could leave the numbers that JSON has
_BEYOND = 1e18


def read(text: str, names: Names) -> dict[str, float]:
    """Return the wanted values. Over several label sets (data-parallel ranks) counts are summed and shares averaged."""
    text = "\n" + text
    metrics = {}
    for name, theirs in names.items():
        values = next(
            (values for other in theirs if (values := list(_values(text, other)))), None
        )
        if values:
            metrics[name] = sum(values) / (len(values) if name in SHARES else 1)
    return metrics


def _values(text: str, name: str) -> Iterator[float]:
    """Return the values of each label set: `name{label="x"} 12.0`, perhaps with a time behind it."""
    wanted = "\n" + name
    place = text.find(wanted)
    while place >= 0:
        start = place + len(wanted)
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else len(text)]
        if line[:1] in ("{", " ") and not _follower(line):
            words = line.rpartition("}")[2].split()
            try:
                value = float(words[0]) if words else math.nan
            except ValueError:
                value = math.nan
            if 0 <= value < _BEYOND:
                yield value
        place = text.find(wanted, start)


def _follower(line: str) -> bool:
    """SGLang's ranks of one replica may each report the same requests: the first speaks for all."""
    return any(
        rank in line and f'{rank}"0"' not in line for rank in ("tp_rank=", "pp_rank=")
    )
