"""Traffic of many clients, each with its own rate, bursts and lengths: generated, or from the files of ServeGen."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator

from dyno import files
from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.workload.datasets.clients import ClientsSpec
from dyno.workload.draw import Draw
from dyno.workload.request import Request, Turn
from dyno.workload.synthetic import RANDOM_OUTPUT_LEN, synthesize
from dyno.workload.tokenizer import Tokenizer

_WINDOW_S = 600  # ServeGen describes each client anew after this time
_PAIR = re.compile(r"(\d+): ([\d.e+-]+)")
# prompts and outputs, in tokens
Lengths = Callable[[Generator, int], list[tuple[int, int]]]


class TrafficClient(NamedTuple):
    """A client in one window of time."""

    rate: float  # relative to the others
    gaps: Callable[[Generator, int], np.ndarray]
    lengths: Lengths


def clients(spec: ClientsSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield requests in the order of their times. All clients together have the rate asked for."""
    number = 0
    windows = (
        _recorded(Path(spec.path).expanduser(), spec) if spec.path else _generated(spec)
    )
    for window, each in enumerate(windows):
        total = sum(client.rate for client in each)
        arrivals: list[tuple[float, int, int]] = []
        for i, client in enumerate(each):
            rng = np.random.default_rng([spec.seed, 8, window, i])
            expected = spec.client_rate_rps * _WINDOW_S * client.rate / total
            count = math.floor(expected + rng.random())
            gaps = client.gaps(rng, count + 1)
            times = (
                np.cumsum(gaps)[:count] * _WINDOW_S / max(gaps.sum(), 1e-9)
                + window * _WINDOW_S
            )
            lengths = client.lengths(rng, count)
            arrivals += [
                (time, *pair) for time, pair in zip(times.tolist(), lengths, strict=True)
            ]
        limit = spec.trace_max_tokens or math.inf
        for time, tokens, output_tokens in sorted(arrivals):
            if tokens + (spec.output_len or output_tokens) > limit:
                continue
            prompt, count = synthesize(tokenizer, spec.seed, number, tokens)
            yield Turn(
                prompt,
                count,
                spec.output_len or output_tokens,
                session=number,
                start_s=time,
            )
            number += 1


def _generated(spec: ClientsSpec) -> Iterator[list[TrafficClient]]:
    """Yield the same clients for each window. Rates follow Zipf; bursts and lengths differ as much as ServeGen shows
    for real ones: most clients are near a Poisson process, a few far from it."""
    rng = np.random.default_rng([spec.seed, 9])
    rates = np.arange(1, spec.num_clients + 1) ** -spec.client_skew
    variations = np.clip(rng.lognormal(0.2, 0.5, spec.num_clients), 0.5, 5)  # of gaps
    means = []
    for mean in (spec.input_len, spec.output_len or RANDOM_OUTPUT_LEN):
        factors = rng.lognormal(0, 0.8, spec.num_clients)
        means.append(mean * factors / np.average(factors, weights=rates))
    each = [
        TrafficClient(
            float(rate), _gamma(1 / variation**2), _drawn(float(inputs), float(outputs))
        )
        for rate, variation, inputs, outputs in zip(rates, variations, *means, strict=True)
    ]
    while True:
        yield each


def _gamma(shape: float) -> Callable[[Generator, int], np.ndarray]:
    return lambda rng, count: rng.gamma(shape, 1 / shape, count)


def _weibull(shape: float) -> Callable[[Generator, int], np.ndarray]:
    return lambda rng, count: rng.weibull(shape, count)


def _drawn(inputs: float, outputs: float) -> Lengths:
    draws = [Draw("lognormal", (mean, mean * 0.6)) for mean in (inputs, outputs)]
    return lambda rng, count: list(
        zip(*(draw.counts(rng, count, least=4) for draw in draws), strict=True)
    )


# ---- ServeGen's files: chunk-N-trace.csv has a line for each window, chunk-N-dataset.json the lengths of some ----


def _recorded(folder: Path, spec: ClientsSpec) -> Iterator[list[TrafficClient]]:
    """Return the clients that are active in each window, from the start of the trace on that was asked for."""
    traces = sorted(folder.glob("chunk-*-trace.csv")) if folder.is_dir() else []
    if not traces:
        raise WorkloadError(
            f"{folder} has no files chunk-N-trace.csv and chunk-N-dataset.json. Give a folder of ServeGen's data "
            "(github.com/alibaba/ServeGen, such as data/reason/deepseek-r1) with "
            f"{setting_name('--dataset-path')}, or leave it out."
        )
    windows: dict[int, list[TrafficClient]] = {}
    for trace in traces:
        for time, client in _active(trace, spec):
            windows.setdefault(time, []).append(client)
    if not windows:
        raise WorkloadError(
            f"{folder} has no client that sends anything then. Check {setting_name('--trace-start')} and "
            f"{setting_name('--trace-end')}."
        )
    return (windows[time] for time in sorted(windows))


def _active(trace: Path, spec: ClientsSpec) -> Iterator[tuple[int, TrafficClient]]:
    """Yield a client with the time of each window in which it sends anything."""
    lengths = _histograms(
        trace.with_name(trace.name.replace("-trace.csv", "-dataset.json"))
    )
    end_s = spec.trace_end_s or math.inf
    for number, line in enumerate(_text(trace).splitlines(), 1):
        time, rate, shape, pattern = _window(line, f"{trace}, line {number}")
        if pattern and rate and lengths and spec.trace_start_s <= time < end_s:
            before = max((t for t in lengths if t <= time), default=min(lengths))
            gaps = _weibull(shape) if pattern == "Weibull" else _gamma(shape)
            yield time, TrafficClient(rate, gaps, lengths[before])


def _window(line: str, where: str) -> tuple[int, float, float, str]:
    """Read one line: time, rate, variation, arrival pattern and its two parameters."""
    try:
        time, rate, _, pattern, shape, _ = line.split(",")
        read = int(time), float(rate), float(shape), pattern
        if (
            pattern not in ("", "Gamma", "Weibull")
            or not 0 <= read[1] < 1e7
            or not 0 <= read[2] < 1e4
        ):
            raise ValueError
        if pattern and not read[2]:
            raise ValueError
    except ValueError:
        raise WorkloadError(
            f"{where}: {line[:80]!r} is not 'time,rate,cv,Gamma or Weibull,shape,scale'."
        ) from None
    return read


def _histograms(path: Path) -> dict[int, Lengths]:
    """Return the lengths by the time from which they hold."""
    try:
        tables = msgspec.json.decode(_text(path), type=dict[str, dict[str, str]])
        pairs = {
            int(time): (table["input_tokens"], table["output_tokens"])
            for time, table in tables.items()
        }
        return {
            time: _histogram(*pair)
            for time, pair in pairs.items()
            if all(map(_PAIR.search, pair))
        }
    except (*files.BROKEN, KeyError) as e:
        text = '{"0": {"input_tokens": "{45: 0.5, …}", "output_tokens": "{…}"}}'
        raise WorkloadError(
            f"{path} is not ServeGen's table of lengths, {text}: {e}."
        ) from None


def _histogram(*tables: str) -> Lengths:
    columns = []
    for table in tables:
        pairs = sorted(
            (int(length), float(share)) for length, share in _PAIR.findall(table)
        )
        values = np.array([length for length, _ in pairs])
        sums = np.cumsum([share for _, share in pairs])
        columns.append((values, sums))

    def draw(rng: Generator, count: int) -> list[tuple[int, int]]:
        # one number for both, as ServeGen does: long prompts have long answers
        chance = rng.random(count)
        drawn = []
        for values, sums in columns:
            places = np.searchsorted(sums, chance * sums[-1])
            drawn.append(values[places].clip(1).tolist())
        return list(zip(*drawn, strict=True))

    return draw


def _text(path: Path) -> str:
    try:
        return files.read(path, files.DATA).decode()
    except OSError as e:
        raise WorkloadError(f"{path} can't be read: {e.strerror}.") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path} is not a text file.") from None
