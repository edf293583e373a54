"""Single requests as a page draws them: the distribution of latencies, a bar for each request, power over time."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from dyno.facts.entry import Bar, Moment
from dyno.facts.explanation import Neighbourhood, Part
from dyno.facts.imported import Row, Samples
from dyno.facts.metric import SAMPLED
from dyno.facts.record import Record
from dyno.facts.telemetry import Sample
from dyno.measure import timing
from dyno.measure.estimate import samples_of
from dyno.measure.telemetry import Series
from dyno.units import NS_PER_S, seconds

BARS = 300  # of a trial
SLICES = 100
# Shares of the samples: dense where the tail is.
_SHARES = [
    0.0,
    0.01,
    *(i / 20 for i in range(1, 19)),
    0.92,
    0.94,
    0.95,
    0.96,
    0.97,
    0.98,
    0.99,
    0.995,
    0.999,
    1.0,
]
_FEWEST = 5


class Detail(msgspec.Struct, frozen=True):
    """Timeline of one run."""

    row: Row  # with its samples
    bars: list[Bar] = []
    bars_of: int = 0
    moments: list[Moment] = []
    parts: list[Part] = []
    slowest: list[Neighbourhood] = []


def quantiles(row: Row) -> dict[str, list[tuple[float, float]]]:
    """Return values that were measured, and no line between them: the sample at or above each share."""
    out = {}
    for stem in SAMPLED:
        values = samples_of(row, stem)
        if len(values) >= _FEWEST:
            each = np.quantile(values, _SHARES, method="inverted_cdf")
            out[stem] = [
                (share, float(f"{v:.5g}")) for share, v in zip(_SHARES, each, strict=True)
            ]
    return out


def bars_of_records(records: Sequence[Record]) -> list[Bar]:
    bars = []
    for r in sorted(records, key=lambda r: r.sent_ns):
        first = _s(r.chunk_ns[0]) if r.chunk_ns and r.unseen[:1] != [0] else None
        end = r.chunk_ns[-1] if r.error is None and r.chunk_ns else r.end_ns
        end = end if r.answered_ns is None else r.answered_ns
        bars.append(Bar(_s(r.sent_ns), first, _s(end), r.error or ""))
    return _thinned(bars)


def bars_of_samples(s: Samples) -> list[Bar]:
    """Return bars of another tool's file, where it has the time at which each request was sent."""
    ttfts, e2els = s.latencies("ttft"), s.latencies("e2el")
    if not s.starts_s or not len(s.starts_s) == len(ttfts) == len(e2els):
        return []
    zero = min(s.starts_s)
    errors = s.errors if len(s.errors) == len(s.starts_s) else [""] * len(s.starts_s)
    bars = []
    for start, ttft, e2el, error in sorted(
        zip(s.starts_s, ttfts, e2els, errors, strict=True)
    ):
        sent = start - zero
        first = round(sent + ttft / 1e3, 4) if ttft > 0 else None
        if e2el > 0:
            end = round(sent + e2el / 1e3, 4)
        elif first is not None:
            end = first
        else:
            end = round(sent, 4)
        bars.append(
            Bar(round(sent, 4), first, end, error or ("empty" if first is None else ""))
        )
    return _thinned(bars)


def _thinned(bars: list[Bar]) -> list[Bar]:
    """Return every n-th, and of those that failed as many as there is room for."""
    if len(bars) <= BARS:
        return bars
    failed = [i for i, bar in enumerate(bars) if bar.error][: BARS // 2]
    step = len(bars) / (BARS - len(failed))
    shown = {*failed, *(int(i * step) for i in range(BARS - len(failed)))}
    return [bars[i] for i in sorted(shown)]


def moments(
    records: Iterable[Record],
    telemetry: Sequence[Sample],
    start_ns: int,
    end_ns: int,
    indices: Iterable[int],
) -> list[Moment]:
    """Return power and speed over time. `start_ns`, `end_ns`: of the load, on the clock of the samples; records count
    from its start. `indices`: of the engine's accelerators. Without power there is nothing to draw."""
    span = end_ns - start_ns
    watts = _power(telemetry, indices)
    if not watts or span <= 0:
        return []
    inside = max(int(w.inside(start_ns, end_ns).sum()) for w in watts)
    count = min(SLICES, max(inside, 1))
    edges = np.linspace(0, span, count + 1)
    tokens = _tokens(records, edges)
    width_s = seconds(span) / count
    out = []
    for i in range(count):
        power = _total_power(watts, start_ns + int(edges[i]), start_ns + int(edges[i + 1]))
        rate = tokens[i] / width_s
        energy = power / rate if power is not None and rate > 0 else None
        out.append(
            Moment(
                round((i + 0.5) * width_s, 3),
                _digits(power),
                _digits(rate),
                _digits(energy),
            )
        )
    return out


def _power(telemetry: Sequence[Sample], indices: Iterable[int]) -> list[Series]:
    """Return the power of each accelerator over time, where it was sampled at least twice."""
    out = []
    for i in indices:
        series = Series(
            (s for s in telemetry if s.source == "accelerator" and s.index == i), "power_w"
        )
        if len(series.times) > 1:
            out.append(series)
    return out


def _total_power(watts: Sequence[Series], start_ns: int, end_ns: int) -> float | None:
    """Return the mean power of all accelerators together; None where that of one is unknown."""
    total = 0.0
    for series in watts:
        power = series.mean(start_ns, end_ns)
        if power is None:
            return None
        total += power
    return total


def _tokens(records: Iterable[Record], edges: np.ndarray) -> np.ndarray:
    """Return output tokens of completed requests in each slice. Chunks with several tokens are shared out evenly."""
    out = np.zeros(len(edges) - 1)
    for r in records:
        if r.error is None and r.chunk_ns:
            tokens = r.output_tokens if r.output_tokens is not None else len(r.chunk_ns)
            weights = (
                np.array(r.chunk_tokens, dtype=float)
                if r.chunk_tokens
                else np.ones(len(r.chunk_ns))
            )
            if len(weights) != len(r.chunk_ns) or not weights.sum():
                weights = np.ones(len(r.chunk_ns))
            out += np.histogram(
                timing.likely_ns(r), edges, weights=weights * (tokens / weights.sum())
            )[0]
    return out


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _s(ns: int) -> float:
    return round(ns / NS_PER_S, 4)
