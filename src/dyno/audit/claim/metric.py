"""What a claim is in: words to names of figures."""

import re
from typing import NamedTuple

_STATISTIC = r"(?P<statistic>mean|average|avg|median|p50|p90|p95|p99)?\W{0,2}"
_LATENCIES: tuple[tuple[str, str], ...] = (
    ("ttft", r"ttft|time[\s-]to[\s-]first[\s-]token"),
    ("tpot", r"tpot|time[\s-]per[\s-]output[\s-]token"),
    ("itl", r"\bitl\b|inter[\s-]token latency"),
    ("e2el", r"e2el|(?:e2e|end[\s-]to[\s-]end) latency"),
)
_SPEEDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("request_throughput",),
        r"request throughput|throughput\s?\((?:request|req)s?/s(?:ec)?\)|requests? per second|req/s",
    ),
    (("total_token_throughput",), r"total[\s-]tokens?[\s-]throughput|total (?:tok(?:en)?s?/s|throughput)"),
    (("output_throughput",), r"(?:output|generation|decode)(?:[\s-]tokens?)?[\s-](?:throughput|tok(?:en)?s?/s)"),
    (
        ("total_token_throughput", "output_throughput"),
        r"tokens?[\s-]throughput|throughput\s?\(tok(?:en)?s?/s(?:ec)?\)|"
        r"tok(?:en)?s?\s?/\s?s(?:ec)?\b|tokens? per second",
    ),
    (("request_goodput",), r"goodput"),
    (("cost_per_million_tokens",), r"\bcosts?\b|cost[\s-](?:effective|efficient)|cheaper|price per"),
    (("total_token_throughput", "output_throughput", "request_throughput"), r"throughput"),
)
_OTHER = re.compile(
    r"v?ram\b|memory|power|watt|energy|accuracy|quality|score|bandwidth|tflops|utili[sz]ation|start", re.I
)
_NAMES = {"average": "mean", "avg": "mean", "p50": "median"}
PLAIN = (  # 'outperforms' without saying in what
    "total_token_throughput", "output_throughput", "request_throughput", "speed",
    "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "mean_latency_ms",
)  # fmt: skip


class Metric(NamedTuple):
    names: tuple[str, ...]  # figures that the words may mean, any of them
    named: bool  # the statistic was said: 'mean TTFT', not 'TTFT'
    words: str
    stem: str = ""  # of a latency


def metrics(text: str) -> list[Metric]:
    """Those a text names, in its order; overlapping words count once, the more exact ones first."""
    found: list[tuple[int, int, Metric]] = []

    def take(start: int, end: int, metric: Metric) -> None:
        if not any(start < e and s < end for s, e, _ in found):
            found.append((start, end, metric))

    for stem, pattern in _LATENCIES:
        for m in re.finditer(_STATISTIC + f"(?:{pattern})", text, re.IGNORECASE):
            statistic = (m["statistic"] or "").lower()
            statistic = _NAMES.get(statistic, statistic)
            names: tuple[str, ...] = (
                (f"{statistic}_{stem}_ms",) if statistic else (f"mean_{stem}_ms", f"median_{stem}_ms")
            )
            take(m.start(), m.end(), Metric(names, bool(statistic), m.group().strip(" (`"), stem))
    for speeds, pattern in _SPEEDS:
        for m in re.finditer(pattern, text, re.IGNORECASE):
            take(m.start(), m.end(), Metric(speeds, True, m.group()))
    return [metric for *_, metric in sorted(found, key=lambda f: f[0])]


def speaks_of_other(text: str) -> bool:
    """Of something that rows of speed don't tell: memory, power, accuracy."""
    return _OTHER.search(text) is not None
