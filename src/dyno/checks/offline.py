"""Of an engine in its own process: did it do the work that was asked, and were there iterations enough to tell?"""

from collections.abc import Iterator

import numpy as np

from dyno.checks.client import others_busy
from dyno.checks.evidence import OfflineEvidence
from dyno.facts.finding import Finding

FEW = 3  # iterations: fewer have no deviation worth the name
DEVIATIONS, SLOWER, MUCH_SLOWER = 3.0, 0.02, 0.05
OTHERS = 4  # iterations after the first: of fewer the deviation is a matter of luck
UNSTEADY = 0.1


def failed(e: OfflineEvidence) -> Iterator[Finding]:
    o = e.offline
    if o.failed:
        share = o.failed / (o.failed + o.completed)
        yield Finding(
            "requests.failed",
            "void" if share > 0.5 else "doubt",
            f"{o.failed} of {o.failed + o.completed} requests failed ({o.failure_example}).",
            "They are in no token count. Look at engine.log for the cause.",
        )


def cut_short(e: OfflineEvidence) -> Iterator[Finding]:
    if e.offline.iterations < e.wanted_iterations:
        yield Finding(
            "requests.cut_short",
            "doubt",
            f"It was stopped after {e.offline.iterations} of {e.wanted_iterations} iterations.",
            "The figures are of those alone. Run it to its end.",
        )


def output_length(e: OfflineEvidence) -> Iterator[Finding]:
    o = e.offline
    if not o.wanted_output_tokens or o.output_tokens >= 0.98 * o.wanted_output_tokens:
        return
    text = f"{o.output_tokens} of {o.wanted_output_tokens} wanted output tokens were produced"
    share = o.output_tokens / o.wanted_output_tokens
    if e.trial.ignore_eos:
        yield Finding(
            "tokens.output_short",
            "doubt",
            f"{text} ({share:.0%}), though the end token was to be ignored.",
            "Its context is too short for prompt + output, or it ends answers by another rule. Latency and requests/s "
            "are of less work than asked.",
        )
    else:
        yield Finding(
            "tokens.output_short",
            "note",
            f"{text} ({share:.0%}).",
            "Compare by tokens/s, not by requests/s.",
        )


def slots(e: OfflineEvidence) -> Iterator[Finding]:
    """A batch that isn't worked on as one."""
    at_once, wanted = e.target.slots, e.offline.requests
    if e.offline.kind == "latency" and at_once and at_once < wanted:
        yield Finding(
            "load.slots",
            "doubt",
            f"A batch of {wanted} was asked for, and the engine works on {at_once} at once: the others waited.",
            "The latency is that of several batches. Raise max_num_seqs, or lower the batch.",
        )


def no_drafts(e: OfflineEvidence) -> Iterator[Finding]:
    told = e.offline.speculation
    if told is not None and not told.drafted_tokens:
        yield Finding(
            "engine.no_drafts",
            "doubt",
            "Speculative decoding was on, and not one token was drafted.",
            "This is the speed without it. n-grams find nothing in random prompts: use a dataset of texts.",
        )


def cached(e: OfflineEvidence) -> Iterator[Finding]:
    o = e.offline
    at_a_depth = e.trial.offline is not None and e.trial.offline.depth  # there the cache holds what came before
    if o.cached_input_tokens and o.input_tokens and not at_a_depth:
        share = o.cached_input_tokens / o.input_tokens
        if share > 0.02:
            yield Finding(
                "cache.prefix_hits",
                "doubt",
                f"{share:.0%} of the prompt tokens came from the engine's prefix cache and were not processed.",
                "Prefill looks faster than it is. Turn the cache off (--no-enable-prefix-caching), unless it is what "
                "is measured.",
            )


def depth_missed(e: OfflineEvidence) -> Iterator[Finding]:
    """The context before a test must not be part of it."""
    depth = e.trial.offline.depth if e.trial.offline else None
    asked, o = e.trial.workload.input_len, e.offline
    if not depth or not asked or not o.completed:
        return
    counted = (o.input_tokens - (o.cached_input_tokens or 0)) / o.completed
    if counted > 1.05 * asked:
        yield Finding(
            "cache.depth_missed",
            "void",
            f"{counted:.0f} tokens were processed in each test, and {asked} were meant: part of the {depth} before "
            "them were not in the cache.",
            "The speed is of all of them, at a smaller depth. Take a depth that the engine's cache keeps whole (vLLM "
            "keeps blocks, of 16 tokens on a GPU and 128 on a CPU), and see that the prefix cache is on.",
        )


def few_iterations(e: OfflineEvidence) -> Iterator[Finding]:
    if e.offline.iterations < FEW:
        count = e.offline.iterations
        yield Finding(
            "statistics.few_iterations",
            "note",
            f"{'One iteration was' if count == 1 else f'{count} iterations were'} measured: how much it varies by "
            "chance is not known.",
            f"Measure at least three ({_flag(e, '--num-iters', '-r')}; iterations in a study).",
        )


def first_slow(e: OfflineEvidence) -> Iterator[Finding]:
    """What is compiled, captured or paged in at the first use is not what the engine takes later."""
    first, *rest = e.latencies_ms
    if len(rest) < OTHERS:
        return
    mean, deviation = float(np.mean(rest)), float(np.std(rest, ddof=1))
    if first > mean + DEVIATIONS * deviation and first > (1 + SLOWER) * mean:
        yield Finding(
            "statistics.first_iteration",
            "doubt" if first > (1 + MUCH_SLOWER) * mean else "note",
            f"The first measured iteration took {first:.1f} ms, the others {mean:.1f} ± {deviation:.1f} ms.",
            "It was still warming up, and the mean holds that. Warm up longer"
            + (" (--num-iters-warmup; warmup_iterations in a study)." if e.offline.kind == "latency" else "."),
        )


def unsteady(e: OfflineEvidence) -> Iterator[Finding]:
    if len(e.latencies_ms) < FEW:
        return
    mean, deviation = float(np.mean(e.latencies_ms)), float(np.std(e.latencies_ms, ddof=1))
    if deviation > UNSTEADY * mean:
        yield Finding(
            "statistics.unsteady",
            "doubt",
            f"Iterations took {mean:.1f} ± {deviation:.1f} ms, a deviation of {deviation / mean:.0%}.",
            "Something else moved: heat, other processes, clocks. Look at the telemetry, and measure again.",
        )


def _flag(e: OfflineEvidence, usual: str, micro: str) -> str:
    return micro if e.offline.kind == "micro" else usual


def others(e: OfflineEvidence) -> Iterator[Finding]:
    if e.offline.duration_s >= 0.05:
        yield from others_busy(e.rig, e.others_cpu, e.offline.duration_s)
