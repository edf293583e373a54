"""Calculate the figures of an offline trial from its iterations."""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from dyno.facts.offline import Answer, Iteration, OfflineSummary, ReplicaFigures, ReplicaPart, Speculation
from dyno.facts.spread import Distribution, Spread
from dyno.facts.trial import TrialSpec
from dyno.measure.statistics import distribution_ms
from dyno.units import NS_PER_MS, NS_PER_S

Interval = tuple[int, int]
_PERCENTILES = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)  # as `vllm bench latency` has them


def summarize(trial: TrialSpec, iterations: Sequence[Iteration]) -> OfflineSummary:
    """`iterations`: the measured ones, at least one."""
    assert trial.offline is not None
    answers = [a for it in iterations for a in it.answers if a.error is None]
    failed = [a for it in iterations for a in it.answers if a.error is not None]
    cached = [a.cached_tokens for a in answers if a.cached_tokens is not None]
    lengths = [it.end_ns - it.start_ns for it in iterations]

    def rate(count: Callable[[Answer], int]) -> Spread:
        done = ((sum(count(a) for a in it.answers if a.error is None), it) for it in iterations)
        return overall([(n, it.end_ns - it.start_ns) for n, it in done])

    prompts = _speed(iterations, processed, _prefilling)
    outputs = _speed(iterations, lambda a: a.decoded_tokens, _decoding)
    produced = rate(lambda a: a.output_tokens)
    speed: Spread | None = produced
    prefills = True
    if trial.offline.kind == "micro":
        speed = _micro_speed(trial, answers)
        # Token generation begins with a token of its own, which is not a test of prompt processing.
        prefills = trial.workload.input_len > 0
        if not prefills:
            prompts, outputs = None, speed
        elif not trial.workload.output_len:
            prompts = speed
    decoding = sum(a.decoded_tokens for a in answers)
    return OfflineSummary(
        kind=trial.offline.kind,
        iterations=len(iterations),
        requests=max(len(it.answers) for it in iterations),
        duration_s=sum(lengths) / NS_PER_S,
        completed=len(answers),
        failed=len(failed),
        failure_example=failed[0].error if failed else None,
        input_tokens=sum(a.prompt_tokens for a in answers),
        cached_input_tokens=sum(cached) if cached else None,
        output_tokens=sum(a.output_tokens for a in answers),
        wanted_output_tokens=sum(a.wanted_tokens for a in answers),
        latency=_latency(lengths),
        first_latency_ms=lengths[0] / NS_PER_MS,
        request_throughput=rate(lambda a: 1),
        output_throughput=produced,
        total_token_throughput=rate(lambda a: a.prompt_tokens + a.output_tokens),
        prefill_ms=_of_requests(iterations, prefill_ns, lambda a: NS_PER_MS) if prefills else None,
        decode_ms=_of_requests(iterations, decode_ns, lambda a: NS_PER_MS),
        tpot_ms=_of_requests(iterations, decode_ns, lambda a: NS_PER_MS * a.decoded_tokens),
        prefill_speed=prompts,
        decode_speed=outputs,
        in_flight_mean=_in_flight(iterations),
        context_mean=sum((a.prompt_tokens + a.output_tokens / 2) * a.decoded_tokens for a in answers) / decoding
        if decoding
        else 0.0,
        speculation=_speculation(iterations),
        decoded_tokens=decoding,
        speed=speed.mean if speed else None,
        replicas=[_replica(iterations, i) for i in range(len(iterations[0].parts))],
    )


def joined(parts: Sequence[Iteration]) -> Iteration:
    """Return the parts of all replicas as one iteration: from the first begin to the last end."""
    if len(parts) == 1:
        return parts[0]
    start, end = min(p.start_ns for p in parts), max(p.end_ns for p in parts)
    answers = [_later(a, p.start_ns - start) for p in parts for a in p.answers]

    def total(name: str) -> int | None:
        counts = [n for p in parts if (n := getattr(p, name)) is not None]
        return sum(counts) if counts else None

    return msgspec.structs.replace(
        parts[0],
        start_ns=start,
        end_ns=end,
        answers=answers,
        parts=[ReplicaPart(p.start_ns, p.end_ns, len(p.answers)) for p in parts],
        **{name: total(name) for name in ("drafts", "drafted_tokens", "accepted_tokens")},
    )


def _later(a: Answer, ns: int) -> Answer:
    times = {name: getattr(a, name) for name in ("start_ns", "first_ns", "end_ns")}
    return msgspec.structs.replace(a, **{name: t + ns for name, t in times.items() if t is not None})


def _replica(iterations: Sequence[Iteration], index: int) -> ReplicaFigures:
    own = []  # its part of each iteration, with its answers
    for it in iterations:
        first = sum(part.requests for part in it.parts[:index])
        own.append((part := it.parts[index], it.answers[first : first + part.requests]))
    completed = [a for _, answers in own for a in answers if a.error is None]

    def rate(count: Callable[[Answer], int]) -> Spread:
        return overall(
            [(sum(count(a) for a in answers if a.error is None), p.end_ns - p.start_ns) for p, answers in own]
        )

    return ReplicaFigures(
        index=index,
        completed=len(completed),
        failed=sum(len(answers) for _, answers in own) - len(completed),
        input_tokens=sum(a.prompt_tokens for a in completed),
        output_tokens=sum(a.output_tokens for a in completed),
        duration_s=sum(part.end_ns - part.start_ns for part, _ in own) / NS_PER_S,
        output_throughput=rate(lambda a: a.output_tokens),
        total_token_throughput=rate(lambda a: a.prompt_tokens + a.output_tokens),
        late_ms=max(it.parts[index].start_ns - it.start_ns for it in iterations) / NS_PER_MS,
    )


def _micro_speed(trial: TrialSpec, answers: Sequence[Answer]) -> Spread | None:
    """Return the mean of its repetitions' speeds, as llama-bench does."""
    tests = [t for a in answers if (t := micro_sample(trial, a)) is not None]
    return spread(count * NS_PER_S / took for count, took in tests) if tests else None


def _latency(lengths: Sequence[int]) -> Distribution:
    """Its deviation is that of a sample, as of every other figure."""
    known = distribution_ms(lengths, _PERCENTILES)
    return msgspec.structs.replace(known, std=spread(n / NS_PER_MS for n in lengths).std)


def times_ms(trial: TrialSpec, iterations: Sequence[Iteration]) -> list[float]:
    """Return the duration of each iteration; of a micro test, the tested part where it is known."""
    times = [it.end_ns - it.start_ns for it in iterations]
    if trial.kind == "micro":
        tests = [t for it in iterations for a in it.answers if (t := micro_sample(trial, a)) is not None]
        times = [took for _, took in tests] if len(tests) == len(iterations) else times
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
    """All tokens by all the time, so that it agrees with their sums; the deviation is of the parts' own rates."""
    whole = sum(took for _, took in parts)
    each = spread(count * NS_PER_S / took for count, took in parts)
    return Spread(each.count, sum(count for count, _ in parts) * NS_PER_S / whole, each.std)


def others_cpu(iterations: Sequence[Iteration]) -> float | None:
    """Cores kept busy by others, over the time of all."""
    speeds = [(it.others_cpu, it.end_ns - it.start_ns) for it in iterations if it.others_cpu is not None]
    whole = sum(length for _, length in speeds)
    return sum(cores * length for cores, length in speeds) / whole if whole else None


def processed(a: Answer) -> int:
    """Tokens of the prompt that were worked on: not those that a cache had."""
    return a.prompt_tokens - (a.cached_tokens or 0)


def prefill_ns(a: Answer) -> int | None:
    when = _prefilling(a)
    return None if when is None else when[1] - when[0]


def decode_ns(a: Answer) -> int | None:
    """None also where nothing was decoded after the first token."""
    when = _decoding(a)
    return None if when is None or not a.decoded_tokens else when[1] - when[0]


def spread(values: Iterable[float]) -> Spread:
    all_of_them = np.array(list(values))
    std = float(all_of_them.std(ddof=1)) if len(all_of_them) > 1 else 0.0
    return Spread(len(all_of_them), float(all_of_them.mean()), std)


def _of_requests(
    iterations: Sequence[Iteration], value: Callable[[Answer], int | None], unit: Callable[[Answer], float]
) -> Spread | None:
    """Return the distribution over iterations of the mean over requests."""
    means = []
    for it in iterations:
        known = [v / unit(a) for a in it.answers if a.error is None and (v := value(a)) is not None and v > 0]
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
    iterations: Sequence[Iteration], tokens: Callable[[Answer], int], when: Callable[[Answer], Interval | None]
) -> Spread | None:
    """Tokens by the time in which at least one request was at it."""
    parts = []
    for it in iterations:
        known = [(tokens(a), interval) for a in it.answers if a.error is None and (interval := when(a)) and tokens(a)]
        busy = union_ns([interval for _, interval in known])
        if busy > 0:
            parts.append((sum(count for count, _ in known), busy))
    return overall(parts) if parts else None


def union_ns(intervals: Sequence[Interval]) -> int:
    covered, until = 0, None
    for start, end in sorted(intervals):
        begin = start if until is None else max(start, until)
        covered += max(end - begin, 0)
        until = end if until is None else max(until, end)
    return covered


def _in_flight(iterations: Sequence[Iteration]) -> float | None:
    worked = [
        a.end_ns - a.start_ns
        for it in iterations
        for a in it.answers
        if a.error is None and a.start_ns is not None and a.end_ns is not None
    ]
    whole = sum(it.end_ns - it.start_ns for it in iterations)
    return sum(worked) / whole if worked and whole else None


def _speculation(iterations: Sequence[Iteration]) -> Speculation | None:
    if all(it.drafted_tokens is None for it in iterations):
        return None
    return Speculation(
        None if all(it.drafts is None for it in iterations) else sum(it.drafts or 0 for it in iterations),
        sum(it.drafted_tokens or 0 for it in iterations),
        sum(it.accepted_tokens or 0 for it in iterations),
    )
