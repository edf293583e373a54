"""Calculate the figures of an offline trial from its iterations."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dyno.facts.offline import (
    Answer,
    Iteration,
    OfflineSummary,
    ReplicaFigures,
    ReplicaPart,
    Speculation,
)
from dyno.facts.spread import Distribution, Spread
from dyno.facts.trial import TrialSpec
from dyno.measure.statistics import distribution_ms
from dyno.units import NS_PER_MS, NS_PER_S

Interval = tuple[int, int]
_PERCENTILES = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)  # as `vllm bench latency` has them


class _Speeds(NamedTuple):
    """Tokens/s of a trial. None: unknown, or not tested."""

    prefill: Spread | None
    decode: Spread | None
    main: Spread | None  # the speed that the trial is about
    prefills: bool  # processing the prompt is part of the test


def summarize(trial: TrialSpec, iterations: Sequence[Iteration]) -> OfflineSummary:
    """Return the figures of a trial. `iterations`: the measured ones, at least one."""
    assert trial.offline is not None
    answers = [a for it in iterations for a in _completed(it.answers)]
    failed = [a for it in iterations for a in it.answers if a.error is not None]
    lengths = [it.end_ns - it.start_ns for it in iterations]
    output_throughput = _rate(iterations, lambda a: a.output_tokens)
    speeds = _speeds(trial, iterations, answers, output_throughput)

    def total(count: Callable[[Answer], int]) -> int:
        return sum(count(a) for a in answers)

    return OfflineSummary(
        kind=trial.offline.kind,
        iterations=len(iterations),
        requests=max(len(it.answers) for it in iterations),
        duration_s=sum(lengths) / NS_PER_S,
        completed=len(answers),
        failed=len(failed),
        failure_example=failed[0].error if failed else None,
        input_tokens=total(lambda a: a.prompt_tokens),
        cached_input_tokens=_sum_of_known(a.cached_tokens for a in answers),
        output_tokens=total(lambda a: a.output_tokens),
        wanted_output_tokens=total(lambda a: a.wanted_tokens),
        latency=_latency(lengths),
        first_latency_ms=lengths[0] / NS_PER_MS,
        request_throughput=_rate(iterations, lambda a: 1),
        output_throughput=output_throughput,
        total_token_throughput=_rate(
            iterations, lambda a: a.prompt_tokens + a.output_tokens
        ),
        prefill_ms=_of_requests(iterations, prefill_ns, lambda a: NS_PER_MS)
        if speeds.prefills
        else None,
        decode_ms=_of_requests(iterations, decode_ns, lambda a: NS_PER_MS),
        tpot_ms=_of_requests(iterations, decode_ns, lambda a: NS_PER_MS * a.decoded_tokens),
        prefill_speed=speeds.prefill,
        decode_speed=speeds.decode,
        in_flight_mean=_in_flight(iterations),
        context_mean=_context_mean(answers),
        speculation=_speculation(iterations),
        decoded_tokens=total(lambda a: a.decoded_tokens),
        speed=speeds.main.mean if speeds.main else None,
        replicas=[_replica(iterations, i) for i in range(len(iterations[0].parts))],
    )


def _completed(answers: Iterable[Answer]) -> list[Answer]:
    return [a for a in answers if a.error is None]


def _sum_of_known(counts: Iterable[int | None]) -> int | None:
    """Return the sum of those counts that are known. None: none is."""
    known = [n for n in counts if n is not None]
    return sum(known) if known else None


def _rate(iterations: Sequence[Iteration], count: Callable[[Answer], int]) -> Spread:
    """Return what completed answers amount to each second."""
    parts = []
    for it in iterations:
        total = sum(count(a) for a in _completed(it.answers))
        parts.append((total, it.end_ns - it.start_ns))
    return overall(parts)


def _speeds(
    trial: TrialSpec,
    iterations: Sequence[Iteration],
    answers: Sequence[Answer],
    output_throughput: Spread,
) -> _Speeds:
    prefill = _speed(iterations, processed, _prefilling)
    decode = _speed(iterations, lambda a: a.decoded_tokens, _decoding)
    if trial.offline is None or trial.offline.kind != "micro":
        return _Speeds(prefill, decode, output_throughput, prefills=True)
    tested = _micro_speed(trial, answers)
    # Token generation begins with a token of its own, which is not a test of prompt processing.
    if trial.workload.input_len <= 0:
        return _Speeds(None, tested, tested, prefills=False)
    if not trial.workload.output_len:
        return _Speeds(tested, decode, tested, prefills=True)
    return _Speeds(prefill, decode, tested, prefills=True)


def _context_mean(answers: Sequence[Answer]) -> float:
    """Return the tokens that a decoded token follows, on average. 0: nothing was decoded."""
    decoded = sum(a.decoded_tokens for a in answers)
    if not decoded:
        return 0.0
    return (
        sum((a.prompt_tokens + a.output_tokens / 2) * a.decoded_tokens for a in answers)
        / decoded
    )


def joined(parts: Sequence[Iteration]) -> Iteration:
    """Return the parts of all replicas as one iteration: from the first begin to the last end."""
    if len(parts) == 1:
        return parts[0]
    start = min(p.start_ns for p in parts)
    return msgspec.structs.replace(
        parts[0],
        start_ns=start,
        end_ns=max(p.end_ns for p in parts),
        answers=[_later(a, p.start_ns - start) for p in parts for a in p.answers],
        parts=[ReplicaPart(p.start_ns, p.end_ns, len(p.answers)) for p in parts],
        drafts=_sum_of_known(p.drafts for p in parts),
        drafted_tokens=_sum_of_known(p.drafted_tokens for p in parts),
        accepted_tokens=_sum_of_known(p.accepted_tokens for p in parts),
    )


def _later(a: Answer, ns: int) -> Answer:
    times = {name: getattr(a, name) for name in ("start_ns", "first_ns", "end_ns")}
    return msgspec.structs.replace(
        a, **{name: t + ns for name, t in times.items() if t is not None}
    )


def _replica(iterations: Sequence[Iteration], index: int) -> ReplicaFigures:
    own = []  # its part of each iteration, with its answers
    for it in iterations:
        part = it.parts[index]
        first = sum(before.requests for before in it.parts[:index])
        own.append((part, it.answers[first : first + part.requests]))
    completed = [a for _, answers in own for a in _completed(answers)]

    def rate(count: Callable[[Answer], int]) -> Spread:
        parts = []
        for part, answers in own:
            total = sum(count(a) for a in _completed(answers))
            parts.append((total, part.end_ns - part.start_ns))
        return overall(parts)

    return ReplicaFigures(
        index=index,
        completed=len(completed),
        failed=sum(len(answers) for _, answers in own) - len(completed),
        input_tokens=sum(a.prompt_tokens for a in completed),
        output_tokens=sum(a.output_tokens for a in completed),
        duration_s=sum(part.end_ns - part.start_ns for part, _ in own) / NS_PER_S,
        output_throughput=rate(lambda a: a.output_tokens),
        total_token_throughput=rate(lambda a: a.prompt_tokens + a.output_tokens),
        late_ms=max(it.parts[index].start_ns - it.start_ns for it in iterations)
        / NS_PER_MS,
    )


def _micro_speed(trial: TrialSpec, answers: Sequence[Answer]) -> Spread | None:
    """Return the mean of its repetitions' speeds, as llama-bench does."""
    tests = _micro_samples(trial, answers)
    return spread(count * NS_PER_S / took for count, took in tests) if tests else None


def _micro_samples(trial: TrialSpec, answers: Iterable[Answer]) -> list[tuple[int, int]]:
    samples = (micro_sample(trial, a) for a in answers)
    return [sample for sample in samples if sample is not None]


def _latency(lengths: Sequence[int]) -> Distribution:
    """Return the distribution of durations. Its deviation is that of a sample, as of every other figure."""
    known = distribution_ms(lengths, _PERCENTILES)
    return msgspec.structs.replace(known, std=spread(n / NS_PER_MS for n in lengths).std)


def times_ms(trial: TrialSpec, iterations: Sequence[Iteration]) -> list[float]:
    """Return the duration of each iteration; of a micro test, the tested part where it is known."""
    times = [it.end_ns - it.start_ns for it in iterations]
    if trial.kind == "micro":
        tests = _micro_samples(trial, (a for it in iterations for a in it.answers))
        if len(tests) == len(iterations):
            times = [took for _, took in tests]
    return [t / NS_PER_MS for t in times]


def micro_sample(trial: TrialSpec, a: Answer) -> tuple[int, int] | None:
    """Return tokens and nanoseconds of a micro test. None: it failed, or the engine didn't report them."""
    if not trial.workload.output_len:
        tokens, when = processed(a), _prefilling(a)
    elif not trial.workload.input_len:
        tokens, when = a.decoded_tokens, _decoding(a)
    else:  # the moment between the two isn't needed, and llama-bench doesn't report it
        tokens, when = processed(a) + a.decoded_tokens, _working(a)
    if a.error is not None or when is None or tokens < 1 or when[1] <= when[0]:
        return None
    return tokens, when[1] - when[0]


def overall(parts: Sequence[tuple[int, int]]) -> Spread:
    """Return all tokens by all the time, which agrees with their sums. The deviation is of the parts' own rates."""
    count = sum(n for n, _ in parts)
    took = sum(ns for _, ns in parts)
    each = spread(n * NS_PER_S / ns for n, ns in parts)
    return Spread(each.count, count * NS_PER_S / took, each.std)


def others_cpu(iterations: Sequence[Iteration]) -> float | None:
    """Return the cores kept busy by others, over the time of all."""
    speeds = [
        (it.others_cpu, it.end_ns - it.start_ns)
        for it in iterations
        if it.others_cpu is not None
    ]
    whole = sum(length for _, length in speeds)
    return sum(cores * length for cores, length in speeds) / whole if whole else None


def processed(a: Answer) -> int:
    """Return the tokens of the prompt that were worked on: not those that a cache had."""
    return a.prompt_tokens - (a.cached_tokens or 0)


def prefill_ns(a: Answer) -> int | None:
    when = _prefilling(a)
    return None if when is None else when[1] - when[0]


def decode_ns(a: Answer) -> int | None:
    """Return the time of decoding. None also where nothing was decoded after the first token."""
    when = _decoding(a)
    if when is None or not a.decoded_tokens:
        return None
    return when[1] - when[0]


def spread(values: Iterable[float]) -> Spread:
    all_of_them = np.array(list(values))
    std = float(all_of_them.std(ddof=1)) if len(all_of_them) > 1 else 0.0
    return Spread(len(all_of_them), float(all_of_them.mean()), std)


def _of_requests(
    iterations: Sequence[Iteration],
    value: Callable[[Answer], int | None],
    unit: Callable[[Answer], float],
) -> Spread | None:
    """Return the distribution over iterations of the mean over requests."""
    means = []
    for it in iterations:
        known = []
        for a in _completed(it.answers):
            v = value(a)
            if v is not None and v > 0:
                known.append(v / unit(a))
        if known:
            means.append(sum(known) / len(known))
    return spread(means) if means else None


def _prefilling(a: Answer) -> Interval | None:
    return None if a.start_ns is None or a.first_ns is None else (a.start_ns, a.first_ns)


def _decoding(a: Answer) -> Interval | None:
    return None if a.first_ns is None or a.end_ns is None else (a.first_ns, a.end_ns)


def _working(a: Answer) -> Interval | None:
    return None if a.start_ns is None or a.end_ns is None else (a.start_ns, a.end_ns)


def _speed(
    iterations: Sequence[Iteration],
    tokens: Callable[[Answer], int],
    when: Callable[[Answer], Interval | None],
) -> Spread | None:
    """Return tokens by the time in which at least one request was at it."""
    parts = []
    for it in iterations:
        total, intervals = 0, []
        for a in _completed(it.answers):
            interval, count = when(a), tokens(a)
            if interval is not None and count:
                total += count
                intervals.append(interval)
        busy = union_ns(intervals)
        if busy > 0:
            parts.append((total, busy))
    return overall(parts) if parts else None


def union_ns(intervals: Sequence[Interval]) -> int:
    covered, until = 0, None
    for start, end in sorted(intervals):
        begin = start if until is None else max(start, until)
        covered += max(end - begin, 0)
        until = end if until is None else max(until, end)
    return covered


def _in_flight(iterations: Sequence[Iteration]) -> float | None:
    """Return how many requests were worked on at once, on average. None: unknown."""
    worked = []
    for it in iterations:
        for a in _completed(it.answers):
            when = _working(a)
            if when is not None:
                worked.append(when[1] - when[0])
    whole = sum(it.end_ns - it.start_ns for it in iterations)
    return sum(worked) / whole if worked and whole else None


def _speculation(iterations: Sequence[Iteration]) -> Speculation | None:
    drafted = _sum_of_known(it.drafted_tokens for it in iterations)
    if drafted is None:
        return None
    drafts = _sum_of_known(it.drafts for it in iterations)
    accepted = _sum_of_known(it.accepted_tokens for it in iterations)
    return Speculation(drafts, drafted, accepted or 0)
