"""Was it the stated engine, and did it run without trouble?"""

import re
from collections.abc import Iterator

import msgspec

from dyno.checks.evidence import Circumstances, Evidence, OfflineEvidence
from dyno.facts.engine import About
from dyno.facts.finding import Finding, Level, doubt, note, void
from dyno.facts.model import OWN_MODEL
from dyno.facts.summary import Summary
from dyno.measure.agreement import contradicted, differences, same_quantization, unverified
from dyno.numbers import human_bytes, number


def model_name(e: Evidence) -> Iterator[Finding]:
    asked, listed = e.target.model, e.target.models_listed
    if listed is not None and asked not in listed:
        text = f"The server doesn't list the model {asked!r}; it lists {', '.join(map(repr, listed[:10])) or 'none'}."
        yield doubt("model.not_listed", text)
    others = {m: n for m, n in e.summary.models_answered.items() if m != asked}
    if others:
        named = ", ".join(f"{m!r} ({n:,})" for m, n in others.items())
        text = (
            f"{sum(others.values()):,} of {e.summary.completed:,} answers name another "
            f"model than {asked!r}: {named}."
        )
        # Hosted services answer with a dated model_name: gpt-4o-2024-08-06 for gpt-4o.
        dated = all(m.startswith(asked) for m in others)
        yield Finding("model.other_answered", "doubt" if dated else "void", text)


def as_said(e: Evidence) -> Iterator[Finding]:
    """Checks a server that dyno attached to: one that dyno starts isn't measured if it differs."""
    if e.trial.engine is None or e.engine is not None:
        return
    if unknown := unverified(e.trial.engine, e.target):
        yield doubt(
            "engine.unverified",
            f"Not verified, because the server doesn't report it: {', '.join(unknown)}.",
        )
    if wrong := list(differences(e.trial.engine, e.target)):
        yield void(
            "engine.not_as_said",
            f"The server differs from the stated setting: {'; '.join(wrong)}.",
        )


def as_asked(e: OfflineEvidence) -> Iterator[Finding]:
    """llama-bench reports the settings of each test with its result."""
    spec, how = e.trial.engine, e.trial.offline
    if not e.reported or spec is None or how is None:
        return
    build = e.reported.get("build_number")
    known = msgspec.structs.replace(
        e.target, version=str(build) if build else None, settings=e.reported
    )
    command = e.engine.launches[0].argv if e.engine is not None else spec.args
    wrong = list(differences(spec, known, command=command, by="llama-bench"))
    if e.reported.get("n_depth", how.depth or 0) != (how.depth or 0):
        wrong.append(
            f"-d {how.depth or 0} was asked for, but llama-bench reports n_depth {e.reported['n_depth']}"
        )
    if wrong:
        advice = "The figures belong to another setting. Use another build, or name its number with --engine-version."
        yield void(
            "engine.not_as_said",
            f"The engine differs from the stated setting: {'; '.join(wrong)}.",
            advice,
        )


def quantization_named(e: Evidence) -> Iterator[Finding]:
    """A name is a label too: llama.cpp's server answers to any."""
    served = e.target.quantization
    if served and contradicted(e.target.model, served, e.target.dtype):
        path = f" from {e.target.model_path}" if e.target.model_path else ""
        text = f"The requested model is named {e.target.model!r}, but the server serves {served}{path}."
        yield void("engine.quantization", text)


def quantization_made(e: Circumstances) -> Iterator[Finding]:
    """The engine serves another type than the one to which dyno quantized the model."""
    spec, served = e.trial.engine, e.target.quantization
    model = (
        e.engine.models.get(spec.model or "")
        if e.engine is not None and spec is not None
        else None
    )
    if model is None or model.quantize is None or not served:
        return
    # others have no name that engines share
    scheme = re.search(r":(fp8|int8|i?q\d\w*)", model.quantize, re.I)
    if scheme and same_quantization(scheme[1], served, e.target.dtype) is False:
        yield void(
            "engine.other_weights",
            f"The model was quantized to {model.quantize}, but the engine serves {served}.",
        )


def died(e: Evidence) -> Iterator[Finding]:
    if e.engine is not None and e.engine.died:
        text = f"The engine died under this load, after {e.summary.completed:,} of {e.summary.planned:,} requests."
        yield void("engine.died", text, e.engine.died)


# Lines of its log: finding, level and sentence. `checks` has the advice.
_REMARKS: dict[About, tuple[str, Level, str]] = {
    "unknown_variable": (
        "engine.unknown_variable",
        "doubt",
        "The engine doesn't know an environment variable",
    ),
    "ignored": ("engine.setting_ignored", "doubt", "The engine ignores a setting"),
    "changed": ("engine.setting_changed", "doubt", "The engine changed a setting"),
    "unsupported": (
        "engine.setting_unsupported",
        "note",
        "The engine doesn't officially support a setting",
    ),
    "chosen": ("engine.setting_changed", "note", "The engine chose a setting"),
    "eager": (
        "engine.no_graphs",
        "doubt",
        "The engine runs without CUDA graphs or compilation",
    ),
    "fallback": (
        "engine.fallback",
        "doubt",
        "The engine doesn't use its fastest implementation",
    ),
    "offloaded": ("engine.not_offloaded", "doubt", "A part of the model runs on the CPU"),
    "untuned": ("engine.untuned_kernel", "note", "A kernel is not tuned for this device"),
    "kv_scales": ("engine.kv_scales", "note", "The quantized KV cache has no scales"),
    "deprecated": ("engine.deprecated", "note", "The engine calls a setting deprecated"),
    "swap_space": ("engine.swap_space", "note", "The engine doubts its swap space"),
    "preempted": ("engine.preemptions", "note", "The engine preempted running requests"),
}
_QUOTED = 3  # lines
_EAGER = ("--enforce-eager", "--disable-cuda-graph")
_HOLDS_BYTES = 64 * 2**20  # of an accelerator: an engine that uses it holds more
_FOR_PROCESSOR = re.compile(
    r"(^| )((-ngl|--gpu-layers|--n-gpu-layers)[ =]0|--device[ =](none|cpu))( |$)|[-+]cpu\b"
)
_LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers")


def remarks(e: Circumstances) -> Iterator[Finding]:
    """Yield what the engine's log says about its setting, in its words."""
    by_about: dict[About, list[str]] = {}
    for remark in e.remarks:
        by_about.setdefault(remark.about, []).append(remark.line)
    flags = _flags(e)
    for about, lines in by_about.items():
        if _is_no_news(about, e, flags):
            continue
        code, level, sentence = _REMARKS[about]
        if about == "eager" and flags.intersection(_EAGER):
            level = "note"
        more = f" and {len(lines) - _QUOTED} more lines" if len(lines) > _QUOTED else ""
        quotes = ", ".join(f'"{line}"' for line in lines[:_QUOTED])
        yield Finding(code, level, f"{sentence}, by its log: {quotes}{more}.")


def _flags(e: Circumstances) -> set[str]:
    """Return the flags of the engine's setting, without their values."""
    if e.trial.engine is None:
        return set()
    return {arg.partition("=")[0].replace("_", "-") for arg in e.trial.engine.args}


def _is_no_news(about: About, e: Circumstances, flags: set[str]) -> bool:
    """Return whether a remark is reported elsewhere, or says what was asked for."""
    if about == "preempted":  # its metrics count them
        return e.telemetry is not None and e.telemetry.total("preemptions") is not None
    if about == "offloaded":  # as asked for, or there is nothing to use
        return not e.rig or not e.rig.accelerators or bool(flags.intersection(_LAYERS))
    return False


def second_attempt(e: Circumstances) -> Iterator[Finding]:
    if e.first_failure:
        yield note(
            "engine.second_attempt",
            f"This is the second attempt; the first failed: {e.first_failure}",
        )


def misspelt(e: Circumstances) -> Iterator[Finding]:
    for variable in e.engine.misspelt if e.engine is not None else []:
        level: Level = "note" if variable.why == "unlisted" else "doubt"
        yield Finding("engine.misspelt_variable", level, variable.describe())


def generic_build(e: Circumstances) -> Iterator[Finding]:
    if e.engine is not None and e.engine.unused_instructions:
        unused = ", ".join(e.engine.unused_instructions)
        text = f"This llama.cpp is built for any processor and doesn't use this one's {unused}."
        yield note("engine.generic_build", text)


def accelerator_unused(e: Circumstances) -> Iterator[Finding]:
    """The engine that dyno started ran on the processor, beside accelerators that nobody left out."""
    engine, spec = e.engine, e.trial.engine
    if engine is None or engine.kind == "fake" or e.rig is None or not e.rig.accelerators:
        return
    if e.target.model.startswith(OWN_MODEL):  # to try dyno: too small for a GPU
        return
    asked = " ".join([*(spec.args if spec is not None else []), engine.program])
    if _FOR_PROCESSOR.search(asked):
        return
    before, loaded = engine.memory_before_bytes, engine.memory_loaded_bytes
    grown = [loaded[index] - before[index] for index in before.keys() & loaded.keys()]
    if engine.embedded or (grown and max(grown) < _HOLDS_BYTES):
        names = ", ".join(dict.fromkeys(a.name for a in e.rig.accelerators))
        yield doubt(
            "engine.accelerator_unused",
            f"The engine ran on the processor, although this machine has {names}.",
        )


def variables_withheld(e: Circumstances) -> Iterator[Finding]:
    if e.engine is not None and e.engine.withheld:
        names = ", ".join(f"{name} ({why})" for name, why in e.engine.withheld.items())
        yield note("engine.variables_withheld", f"Not passed to the container: {names}.")


def memory_held(e: Circumstances) -> Iterator[Finding]:
    if e.engine is not None and e.engine.memory_held_bytes:
        held = human_bytes(e.engine.memory_held_bytes)
        yield doubt(
            "engine.memory_held",
            f"{held} of accelerator memory was not released after the engine stopped.",
        )


def frozen(e: Evidence) -> Iterator[Finding]:
    """No stream moved for a while."""
    s = e.summary
    if not s.freezes:
        return
    longest = max(s.freezes, key=lambda f: f.length_s)
    moments = ", ".join(
        f"{number(f.length_s)} s at {number(f.at_s)} s" for f in s.freezes[:5]
    )
    more = f" and {_more_times(len(s.freezes) - 5)}" if len(s.freezes) > 5 else ""
    gap = (
        f" (up to {longest.length_s * 1e3 / s.itl.median:,.0f} times the median gap)"
        if s.itl.median
        else ""
    )
    text = f"No stream moved although requests were open: {moments}{more}{gap}.{_without_freezes(s)}"
    yield doubt("engine.frozen", text)


def _more_times(times: int) -> str:
    return "once more" if times == 1 else f"{times} more times"


def _without_freezes(s: Summary) -> str:
    """Return the figures without the time of freezes in words, if they are known."""
    u = s.unfrozen
    if u is None:
        return ""
    figures = [
        f"{number(u.output_throughput)} instead of {number(s.output_throughput)} output tok/s"
    ]
    for name, a, b in (
        ("TTFT", s.ttft.mean, u.ttft.mean),
        ("TPOT", s.true_tpot.mean, u.tpot.mean),
    ):
        if a is not None and b is not None and abs(a - b) > 0.005 * a:
            figures.append(f"mean {name} {number(b)} instead of {number(a)} ms")
    return f" Without that time: {', '.join(figures)}."


def preempted(e: Evidence) -> Iterator[Finding]:
    count = e.telemetry.total("preemptions") if e.telemetry else None
    if count:
        text = f"The engine preempted and recomputed running requests {count:,.0f} times ({e.summary.sent:,} sent)."
        yield Finding(
            "engine.preemptions", "doubt" if count > 0.01 * e.summary.sent else "note", text
        )


def restarted(e: Evidence) -> Iterator[Finding]:
    urls = e.trial.target.urls
    which = (
        [urls[x.index] for x in e.telemetry.engines if x.restarted and x.index < len(urls)]
        if e.telemetry
        else []
    )
    if which:
        text = f"The engine's counters went back during the load ({', '.join(which)}); they are excluded."
        yield doubt("engine.restarted", text)


def no_drafts(e: OfflineEvidence) -> Iterator[Finding]:
    speculation = e.offline.speculation
    if speculation is not None and not speculation.drafted_tokens:
        yield doubt(
            "engine.no_drafts", "Speculative decoding was on, but no token was drafted."
        )
