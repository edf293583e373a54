"""Was the engine what it was said to be, and did it behave?"""

from collections.abc import Iterator

from dyno.checks.evidence import Circumstances, Evidence
from dyno.facts.finding import Finding
from dyno.measure.agreement import differences, named_quantization, same_quantization, unverified
from dyno.units import human_bytes


def as_said(e: Evidence) -> Iterator[Finding]:
    """Of a server that dyno attached to; one that dyno starts isn't measured if it is something else."""
    if e.trial.engine is None or e.engine is not None:
        return
    if unknown := unverified(e.trial.engine, e.target):
        yield Finding(
            "engine.unverified",
            "doubt",
            f"The server doesn't tell, so this was not verified: {', '.join(unknown)}.",
            "Look at the command that started it; or let dyno start it.",
        )
    wrong = list(differences(e.trial.engine, e.target))
    if wrong:
        yield Finding(
            "engine.not_as_said",
            "void",
            f"The server is not what the setting says: {'; '.join(wrong)}.",
            "These are another setting's figures. Start the server that is meant, or correct the setting.",
        )


def quantization_named(e: Evidence) -> Iterator[Finding]:
    """A name is a label too: llama.cpp's server answers to any."""
    claimed = named_quantization(e.target.model)
    served = e.target.quantization
    if claimed and served and same_quantization(claimed, served, e.target.dtype) is False:
        yield Finding(
            "engine.quantization",
            "void",
            f"The model asked for is named {e.target.model!r}, and the server serves {served}"
            f"{f' from {e.target.model_path}' if e.target.model_path else ''}.",
            "A server that still runs from the test before, most likely. Stop it, and start the one that is meant.",
        )


def slots(e: Evidence) -> Iterator[Finding]:
    copies = len(e.trial.target.urls)
    at_once = e.target.slots and e.target.slots * copies
    busiest = e.summary.client.streams_peak
    if at_once and busiest > at_once:
        yield Finding(
            "load.slots",
            "doubt",
            f"Up to {busiest} requests were in flight, and the server works on {at_once} at once"
            f"{f' ({copies} × {e.target.slots})' if copies > 1 else ''}: the others waited in its queue.",
            "Their first token's latency is the queue's. Raise the server's max_num_seqs (slots), or lower the load.",
        )


def cache_emptied(e: Evidence) -> Iterator[Finding]:
    if e.cache_emptied is False and e.target.prefix_caching is not False and not e.cached_tokens:
        told = "" if e.cached_tokens is None else ", though the server tells of no hit"
        yield Finding(
            "cache.not_emptied",
            "note" if told else "doubt",
            f"The server's prefix cache could not be emptied before the load{told}.",
            "Turn it off (prefix_caching = false), or start the engine anew for each trial.",
        )


def died(e: Evidence) -> Iterator[Finding]:
    if e.engine is not None and e.engine.died:
        yield Finding(
            "engine.died",
            "void",
            f"The engine died under this load, after {e.summary.completed} of {e.summary.planned} requests.",
            e.engine.died,
        )


def second_attempt(e: Circumstances) -> Iterator[Finding]:
    if e.first_failure:
        yield Finding(
            "engine.second_attempt",
            "note",
            f"This is the second attempt; the first failed: {e.first_failure}",
            "An engine that fails now and then may do so again. Look at the log of its start.",
        )


def generic_build(e: Circumstances) -> Iterator[Finding]:
    if e.engine is not None and e.engine.unused_instructions:
        yield Finding(
            "engine.generic_build",
            "note",
            "This llama.cpp is built for any processor, and leaves this one's "
            f"{', '.join(e.engine.unused_instructions)} unused.",
            "On the CPU a build for this machine is several times as fast, most of all with quantized weights: give "
            "one with --engine-binary before you compare engines or quantizations.",
        )


def memory_held(e: Circumstances) -> Iterator[Finding]:
    if e.engine is not None and e.engine.memory_held_bytes:
        yield Finding(
            "engine.memory_held",
            "doubt",
            f"{human_bytes(e.engine.memory_held_bytes)} of accelerator memory were not given back after the stop.",
            "Something still holds it, and the next trial has that much less. Look at `dyno doctor` for its process.",
        )


def frozen(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if not s.freezes:
        return
    longest = max(s.freezes, key=lambda f: f.length_s)
    moments = ", ".join(f"{f.length_s:.2f} s at {f.at_s:.2f} s" for f in s.freezes[:5])
    more = f" and {len(s.freezes) - 5} times more" if len(s.freezes) > 5 else ""
    gap = f", {longest.length_s * 1e3 / s.itl.median:,.0f} times the median gap" if s.itl.median else ""
    without = ""
    if (u := s.unfrozen) is not None:
        means = [
            f"mean {name} {b:.2f} instead of {a:.2f} ms"
            for name, a, b in (("TTFT", s.ttft.mean, u.ttft.mean), ("TPOT", s.tpot.mean, u.tpot.mean))
            if a is not None and b is not None and abs(a - b) > 0.005 * a
        ]
        rates = f"{u.output_throughput:,.1f} instead of {s.output_throughput:,.1f} output tok/s"
        without = f" Without that time: {', '.join([rates, *means])}."
    yield Finding(
        "engine.frozen",
        "doubt",
        f"Requests were under way and no stream moved: {moments}{more}{gap}.{without}",
        "The engine, its machine or the network stood still. Find the cause (the engine's log, a paused machine, a "
        "full disk), or measure again.",
    )
