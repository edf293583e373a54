"""A figure of one side of a comparison, and how far it may be off: over repeats where there are some, else by what a
single run shows by itself."""

import math
from collections.abc import Sequence

import numpy as np

from dyno.facts.comparison import LEAST, REPEATABLE, Basis, Estimate
from dyno.facts.entry import Number
from dyno.facts.imported import Row, Samples
from dyno.facts.metric import SAMPLED, THROUGHPUTS, latency
from dyno.measure import statistics
from dyno.measure.statistics import Error, TooAlike, welch_df
from dyno.numbers import count as counted
from dyno.numbers import many, rounded_up

_BY_TIME = (*THROUGHPUTS, "input_throughput")
_SAME = {"median": "p50", "p50": "median"}
_MANY = 1e9  # degrees of freedom: as good as known
# Added to a single run's own error, which knows nothing of the next run: on an H200 under full load two runs deviated
# by 0.5 to 3 %, on two shared cores by 3 %.
ALLOWED = 0.02
NARROW = 0.1  # an interval of ± this is one that people can use
_MOST_REPEATS = 200
_ENDLESS = 50.0  # beyond that a number says nothing, and soon there is none
_NO_REQUESTS = "a single result without its requests has no error estimate; repeat it"


def value_of(row: Row, metric: str) -> float | None:
    """Return the reported value, or a percentile from the samples."""
    value = row.get(metric)
    if value is not None:
        return value if math.isfinite(value) else None
    parts = latency(metric)
    if parts is None:
        return None
    statistic, stem = parts
    if (
        statistic in _SAME
        and (value := row.get(f"{_SAME[statistic]}_{stem}_ms")) is not None
    ):
        return value
    values = samples_of(row, stem)
    if not len(values):
        return None
    if statistic == "median":
        return float(np.percentile(values, 50))
    if statistic.startswith("p"):
        percentile = float(statistic[1:])
        return float(np.percentile(values, percentile)) if 0 < percentile < 100 else None
    return float(getattr(values, statistic)())


def samples_of(row: Row, stem: str) -> np.ndarray:
    """Return samples of completed requests in the order of sending, if known. In vLLM's files 0 means none."""
    s = row.samples
    if s is None or stem not in SAMPLED:
        return np.empty(0)
    values = np.array(s.latencies(stem), dtype=np.float64)
    if stem == "tpot" and row.tool != "dyno" and not len(values):
        values = _tpots(s)
    good = np.isfinite(values) & (values > 0)
    if len(s.errors) == len(values):
        good &= np.array([not error for error in s.errors], dtype=bool)
    if len(s.starts_s) == len(values):
        order = np.argsort(s.starts_s, kind="stable")
        values, good = values[order], good[order]
    return values[good]


def _tpots(s: Samples) -> np.ndarray:
    """Return times per token from what vLLM's file has of each request."""
    columns = (s.latencies("ttft"), s.latencies("e2el"), s.output_lens)
    if len({len(column) for column in columns}) != 1:
        return np.empty(0)
    ttfts, e2els, tokens = (np.array(column, dtype=np.float64) for column in columns)
    return np.where(
        (tokens > 1) & (ttfts > 0), (e2els - ttfts) / np.maximum(tokens - 1, 1), math.nan
    )


def estimates(group: Sequence[Row], metrics: Sequence[str]) -> dict[str, Estimate]:
    """Return those metrics that a group has. `group`: repeats of one setting."""
    if len(group) > 1:
        over_repeats = ((m, _over_repeats(group, m)) for m in metrics)
        return {m: estimate for m, estimate in over_repeats if estimate is not None}
    row = group[0]
    values = {m: v for m in metrics if (v := value_of(row, m)) is not None}
    wanted: dict[str, list[str]] = {}
    for m in values:
        parts = latency(m)
        if parts is not None:
            statistic, stem = parts
            wanted.setdefault(stem, []).append(statistic)
    drawn = {stem: _drawn(row, stem, names) for stem, names in wanted.items()}
    return {
        m: row.estimates.get(m) or _of_one(row, m, value, drawn)
        for m, value in values.items()
    }


def _over_repeats(group: Sequence[Row], metric: str) -> Estimate | None:
    values = [v for row in group if (v := value_of(row, metric)) is not None]
    if not values:
        return None
    mean = sum(values) / len(values)
    error = error_of_repeats(values)
    if error is None:
        return Estimate(
            mean, len(values), why="only one repeat reports it" if mean else "it is 0"
        )
    return Estimate(mean, len(values), error.error, error.df, "repeats")


def error_of_repeats(values: Sequence[float]) -> Error | None:
    """Return the error of their mean; None where it is unknown."""
    error = statistics.error_of_mean(values)
    return error and Error(max(error.error, LEAST / math.sqrt(len(values))), error.df)


def interval(e: Estimate) -> tuple[float, float] | None:
    """Return the 95 % interval of a figure; None: unknown. It is made on the scale of ratios, so it never passes 0."""
    if e.error is None or e.value <= 0:
        return None
    reach = min(statistics.quantile(0.975, e.df) * e.error, _ENDLESS)
    return e.value * math.exp(-reach), e.value * math.exp(reach)


def interval_of_repeats(values: Sequence[float]) -> Number:
    """Return the mean of repeats with its interval, where it is known."""
    mean = sum(values) / len(values)
    error = error_of_repeats(values)
    if error is None:
        return with_interval(Estimate(mean, 1))
    return with_interval(Estimate(mean, len(values), error.error, error.df, "repeats"))


def with_interval(e: Estimate) -> Number:
    """Return a figure with its interval, and where that is wider than the figure, how many of what it was made from
    would do."""
    ends = interval(e)
    if ends is None:
        return Number(e.value)
    wide = ends[1] - ends[0] > e.value
    return Number(e.value, *ends, by=e.by, enough=enough(e) if wide else None)


def enough(e: Estimate) -> int:
    """Return how many repeats, iterations or requests would make the interval ± 10 %, by the spread of those that there
    are. 0: no such number is known."""
    if e.error is None or e.by not in REPEATABLE:
        return 0
    if e.by == "requests":
        return math.ceil(
            e.count * (statistics.quantile(0.975, e.df) * e.error / NARROW) ** 2
        )
    single = e.error * math.sqrt(e.count)
    for n in range(2, _MOST_REPEATS):
        if statistics.quantile(0.975, n - 1) * single <= NARROW * math.sqrt(n):
            return n
    return math.ceil((2 * single / NARROW) ** 2)


def _drawn(row: Row, stem: str, names: Sequence[str]) -> dict[str, Error | TooAlike]:
    values = samples_of(row, stem)
    errors = statistics.errors_of_requests(values, names)
    if (
        stem == "latency"
        and "mean" in names
        and (error := statistics.error_of_mean([float(v) for v in values]))
    ):
        errors["mean"] = error  # iterations are independent
    return errors


def _of_one(
    row: Row, metric: str, value: float, drawn: dict[str, dict[str, Error | TooAlike]]
) -> Estimate:
    """Estimate a figure of a single run. `drawn`: errors of latencies, by stem and statistic."""
    parts = latency(metric)
    if parts is not None:
        statistic, stem = parts
        return _of_latency(row, metric, value, statistic, stem, drawn[stem].get(statistic))
    if value <= 0:
        return Estimate(value, 1, why="it is 0")
    if row.kind in ("throughput", "latency", "micro") and (
        metric in _BY_TIME or metric == "speed"
    ):
        return _of_iterations(row, metric, value)
    if metric in _BY_TIME:
        return _of_throughput(row, metric, value)
    if metric == "score" and (stderr := row.get("stderr")):
        return Estimate(value, 1, stderr / value, _MANY, "stderr")
    return Estimate(value, 1, why="a single run has no error estimate; repeat it")


def _of_latency(
    row: Row,
    metric: str,
    value: float,
    statistic: str,
    stem: str,
    error: Error | TooAlike | None,
) -> Estimate:
    count = len(samples_of(row, stem))
    if isinstance(error, TooAlike):
        return Estimate(value, count, why=_too_alike(count, error))
    if error is not None:
        return _with(
            row,
            metric,
            value,
            count,
            error,
            "iterations" if stem == "latency" else "requests",
        )
    return _without_samples(row, metric, value, statistic, stem, count)


def _of_iterations(row: Row, metric: str, value: float) -> Estimate:
    """Estimate the speed of an offline run."""
    s, figure = row.samples, row.figures.get(metric)
    if s is not None and (error := statistics.error_of_mean(s.speeds)) is not None:
        return _with(row, metric, value, len(s.speeds), error, "iterations")
    if figure is not None and figure.deviation:
        # Of how many is unknown: then as if the next one alone were asked about.
        return _with(
            row, metric, value, 1, Error(figure.deviation / value, _MANY), "deviation"
        )
    return Estimate(value, 1, why="a single iteration has no spread; repeat it")


def _of_throughput(row: Row, metric: str, value: float) -> Estimate:
    """Estimate a throughput under load."""
    if row.samples is None:
        return Estimate(value, 1, why=_NO_REQUESTS)
    error = _of_slices(row.samples)
    if error is None:
        return Estimate(
            value, 1, why="the run was too short for an error estimate; repeat it"
        )
    return _with(row, metric, value, int(error.df) + 1, error, "slices")


def _too_alike(count: int, error: TooAlike) -> str:
    few = f"{many(count, 'sample')} are too few for an error estimate, given how alike consecutive requests are"
    return (
        f"{few}; about {counted(rounded_up(error.needed))} are needed"
        if error.needed
        else f"{few}; repeat the run"
    )


def _without_samples(
    row: Row, metric: str, value: float, statistic: str, stem: str, count: int
) -> Estimate:
    if count:
        enough = (
            statistics.needs(statistic)
            if statistic[0] in "mp" and statistic not in ("min", "max")
            else None
        )
        why = "resampling gives no error estimate for it; repeat the run"
        if enough:
            why = f"{count} samples are too few for an error estimate; {enough} are needed"
        return Estimate(value, count, why=why)
    std, n = row.get(f"std_{stem}_ms"), row.get("completed")
    if statistic == "mean" and std and n and n > 1 and value > 0:
        return _with(
            row,
            metric,
            value,
            int(n),
            Error(std / value / math.sqrt(n), n - 1),
            "deviation",
        )
    return Estimate(value, 1, why=_NO_REQUESTS)


def _with(
    row: Row, metric: str, value: float, count: int, error: Error, basis: Basis
) -> Estimate:
    """Add the rounding error of a printed figure."""
    figure = row.figures.get(metric)
    rounded = (
        figure.half / value / math.sqrt(3) if figure is not None and value > 0 else 0.0
    )
    besides = math.hypot(rounded, ALLOWED)
    df = welch_df(error.error**2, error.df, besides**2, _MANY)
    return Estimate(value, count, math.hypot(error.error, besides), df, basis)


def _of_slices(s: Samples) -> Error | None:
    columns = (s.starts_s, s.latencies("ttft"), s.latencies("e2el"), s.output_lens)
    if len({len(c) for c in columns}) != 1 or not s.starts_s:
        return None
    starts, ttfts, e2els, tokens = (np.array(c, dtype=np.float64) for c in columns)
    known = np.isfinite(starts) & np.isfinite(e2els) & (e2els > 0) & (tokens > 0)
    starts, ttfts, e2els, tokens = starts[known], ttfts[known], e2els[known], tokens[known]
    timed = np.isfinite(ttfts) & (ttfts > 0)
    firsts = np.where(timed, ttfts, np.median(ttfts[timed]) if timed.any() else 0.0)
    return statistics.error_of_slices(
        starts, starts + firsts / 1e3, starts + e2els / 1e3, tokens
    )
