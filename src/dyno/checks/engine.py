"""Was the engine what it was said to be, and did it behave?"""

from collections.abc import Iterator

from dyno.checks.evidence import Circumstances, Evidence, OfflineEvidence
from dyno.facts.finding import Finding, doubt, note, void
from dyno.measure.agreement import differences, named_quantization, same_quantization, unverified
from dyno.numbers import human_bytes


def model_name(e: Evidence) -> Iterator[Finding]:
    asked, listed = e.target.model, e.target.models_listed
    if listed is not None and asked not in listed:
        text = f"The server doesn't list the model {asked!r}; it lists {', '.join(map(repr, listed[:10])) or 'none'}."
        advice = "Some servers answer to any name with the model they have. Name the one that is meant with --model."
        yield doubt("model.not_listed", text, advice)
    others = {m: n for m, n in e.summary.models_answered.items() if m != asked}
    if others:
        what = ", ".join(f"{m!r} ({n})" for m, n in others.items())
        # Hosted services answer with a dated model_name: gpt-4o-2024-08-06 for gpt-4o.
        dated = all(m.startswith(asked) for m in others)
        yield Finding(
            "model.other_answered",
            "doubt" if dated else "void",
            f"{sum(others.values())} of {e.summary.completed} answers carry another name than {asked!r}: {what}.",
            "These may be another model's figures. Check what the server really loaded, and --model.",
        )


def as_said(e: Evidence) -> Iterator[Finding]:
    """Checks a server that dyno attached to: one that dyno starts isn't measured if it differs."""
    if e.trial.engine is None or e.engine is not None:
        return
    if unknown := unverified(e.trial.engine, e.target):
        text = f"The server doesn't tell, so this was not verified: {', '.join(unknown)}."
        advice = "Look at the command that started it; or let dyno start it."
        yield doubt("engine.unverified", text, advice)
    wrong = list(differences(e.trial.engine, e.target))
    if wrong:
        yield void(
            "engine.not_as_said",
            f"The server is not what the setting says: {'; '.join(wrong)}.",
            "These are another setting's figures. Start the server that is meant, or correct the setting.",
        )


def quantization_named(e: Evidence) -> Iterator[Finding]:
    """A name is a label too: llama.cpp's server answers to any."""
    claimed = named_quantization(e.target.model)
    served = e.target.quantization
    if claimed and served and same_quantization(claimed, served, e.target.dtype) is False:
        yield void(
            "engine.quantization",
            f"The model asked for is named {e.target.model!r}, and the server serves {served}"
            f"{f' from {e.target.model_path}' if e.target.model_path else ''}.",
            "A server that still runs from the test before, most likely. Stop it, and start the one that is meant.",
        )


def died(e: Evidence) -> Iterator[Finding]:
    if e.engine is not None and e.engine.died:
        text = f"The engine died under this load, after {e.summary.completed} of {e.summary.planned} requests."
        advice = e.engine.died
        yield void("engine.died", text, advice)


def second_attempt(e: Circumstances) -> Iterator[Finding]:
    if e.first_failure:
        text = f"This is the second attempt; the first failed: {e.first_failure}"
        advice = "An engine that fails now and then may do so again. Look at the log of its start."
        yield note("engine.second_attempt", text, advice)


def generic_build(e: Circumstances) -> Iterator[Finding]:
    if e.engine is not None and e.engine.unused_instructions:
        yield note(
            "engine.generic_build",
            "This llama.cpp is built for any processor, and leaves this one's "
            f"{', '.join(e.engine.unused_instructions)} unused.",
            "On the CPU a build for this machine is several times as fast, most of all with quantized weights: give "
            "one with --engine-binary before you compare engines or quantizations.",
        )


def memory_held(e: Circumstances) -> Iterator[Finding]:
    if e.engine is not None and e.engine.memory_held_bytes:
        yield doubt(
            "engine.memory_held",
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
    yield doubt(
        "engine.frozen",
        f"Requests were under way and no stream moved: {moments}{more}{gap}.{without}",
        "The engine, its machine or the network stood still. Find the cause (the engine's log, a paused machine, a "
        "full disk), or measure again.",
    )


def preempted(e: Evidence) -> Iterator[Finding]:
    count = e.telemetry.total("preemptions") if e.telemetry else None
    if count:
        yield Finding(
            "engine.preemptions",
            "doubt" if count > 0.01 * e.summary.sent else "note",
            f"The engine took its KV cache away from running requests {count:.0f} times ({e.summary.sent} were sent), "
            "and worked on them anew later.",
            "Latencies contain that. Lower the load or max_num_seqs, or give the KV cache more memory.",
        )


def restarted(e: Evidence) -> Iterator[Finding]:
    urls = e.trial.target.urls
    which = [urls[x.index] for x in e.telemetry.engines if x.restarted and x.index < len(urls)] if e.telemetry else []
    if which:
        yield doubt(
            "engine.restarted",
            f"The engine's counters went back under the load ({', '.join(which)}): it was started anew meanwhile, or "
            "several servers answer there.",
            "Look at its log. What its metrics counted isn't given.",
        )


def no_drafts(e: OfflineEvidence) -> Iterator[Finding]:
    speculation = e.offline.speculation
    if speculation is not None and not speculation.drafted_tokens:
        text = "Speculative decoding was on, and not one token was drafted."
        advice = "This is the speed without it. n-grams find nothing in random prompts: use a dataset of texts."
        yield doubt("engine.no_drafts", text, advice)
