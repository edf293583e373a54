"""The answer of a search for an engine's best settings: setting, gain, effects, trade-offs, and what was refused."""

import re
from collections.abc import Iterator

from dyno.facts.tune import TuneAnswer, TuneGain, TuneTrial, words
from dyno.numbers import change, count, duration, many, rounded_up
from dyno.report import searches
from dyno.report.searches import objective_text
from dyno.report.table import terminal
from dyno.screen import wrapped

_ENDED = {
    "settings": "Every setting was tried.",
    "discarded": "Nearly all proposed settings can't work: narrow them. The reasons are below.",
    "budget": "The time is used up (--budget). Repeat the command with more to try further settings.",
    "interrupted": "Interrupted. Repeat the command to resume.",
}
_SHOWN = 10  # rows of a table
_REASON = 200  # characters, about two lines
_QUOTE = 110  # … of an engine's own words in it
_LOG = re.compile(r" ?Read (.+) for the rest\.$")
_QUOTED = re.compile(r'(?<=: ")(.+)(?="\.)', re.DOTALL)


def lines(answer: TuneAnswer) -> Iterator[str]:
    """Yield the answer, as printed. Commands stay in one line, to be pasted."""
    yield from wrapped(
        f"Best setting of {answer.engine} by {answer.words}{_target(answer)}:"
    )
    for line in (*_headline(answer), *filter(None, [_ENDED.get(answer.ended)])):
        yield from wrapped(line, "  ", "    ")
    if answer.commands:
        yield from ("", "Reproduce", *(f"  {line}" for line in answer.commands))
    if ranked := _ranked(answer):
        yield from ("", "Settings", *terminal(searches.settings(answer, ranked[:_SHOWN])))
        if len(ranked) > _SHOWN:
            yield f"and {many(len(ranked) - _SHOWN, 'more setting')} (--json has all)"
    if effects := answer.effects():
        yield from (
            "",
            "Effect of each setting",
            *terminal(searches.effects(answer, effects)),
        )
    if len(front := answer.front()) > 1:
        yield from (
            "",
            *wrapped(
                "Pareto front: no other setting has both more throughput and a lower p99 TTFT"
            ),
        )
        yield from terminal(searches.front(front))
    if refused := list(_refused(answer)):
        yield from ("", "Not the best, and why", *refused)
    yield from ("", *wrapped(_sum(answer)))


def in_a_line(answer: TuneAnswer) -> str:
    """Return the answer in a line: 'output tokens/s: gap_ms=1, +49.8 % against the default'."""
    if answer.best is None:
        return f"{answer.words}: no setting can be recommended"
    gain = f", {change(answer.gain.change)} against the default" if answer.gain else ""
    doubt = ", not confirmed" if answer.unconfirmed else ""
    return f"{answer.words}: {words(answer.best.setting)}{gain}{doubt}"


def _target(answer: TuneAnswer) -> str:
    limits = ", ".join(limit.words for limit in answer.spec.limits)
    return f" with {limits}" if limits else ""


def _headline(answer: TuneAnswer) -> Iterator[str]:
    best, gain = answer.best, answer.gain
    if best is None:
        yield from _no_best(answer)
        return
    if not best.setting:
        yield f"the default ({objective_text(answer, best.judged)}): no other setting {_no_other(answer)}."
        yield from _refused_before(answer)
        return
    yield words(best.setting)
    yield from _refused_before(answer)
    if gain is None:
        yield _without_gain(answer, best)
        return
    yield f"{change(gain.change)} against the default{_interval(gain)}"
    each = (
        "one more run of each"
        if gain.repeats == 1
        else f"mean of {gain.repeats} interleaved repeats of each"
    )
    yield f"{objective_text(answer, gain.best)}; default: {objective_text(answer, gain.default)} ({each})"
    yield from _doubts(answer, gain)


def _interval(gain: TuneGain) -> str:
    if gain.enough_repeats is not None:
        return " (too few repeats)"
    return (
        f" (95 % interval: {change(gain.low)} to {change(gain.high)})"
        if gain.low is not None
        else ""
    )


def _no_best(answer: TuneAnswer) -> Iterator[str]:
    tried = [t for t in [answer.default, *answer.trials] if t.why or t.state == "measured"]
    if not tried:
        yield "not known: no setting was measured yet."
        return
    yield f"none: no setting of {len(tried)} can be recommended. The reasons are below."
    if refused := answer.refused_in_repeats:
        was, its = ("was", "its") if len(refused) == 1 else ("were", "their")
        yield f"{many(len(refused), 'setting')} {was} good enough at first, but not in {its} repeats."
    if answer.spec.target and any(t.state == "measured" for t in tried):
        yield "Relax the target, lower the load, or let other settings change."


def _doubts(answer: TuneAnswer, gain: TuneGain) -> Iterator[str]:
    if gain.low is None or gain.high is None:
        yield "The gain has no interval: set confirm_repeats to 3 or more."
    elif gain.enough_repeats is not None:
        enough = (
            f" About {count(rounded_up(gain.enough_repeats))} would do."
            if gain.enough_repeats
            else ""
        )
        yield f"The repeats differ too much to show a gain. Raise confirm_repeats or seconds.{enough}"
    elif gain.low <= 0 <= gain.high:
        yield "The interval includes no difference: the default may be as good. Raise confirm_repeats or seconds."
    elif (gain.low > 0) == answer.spec.lower:
        yield "In these repeats the default is better: short loads chose by chance. Keep the default, or raise seconds."


def _no_other(answer: TuneAnswer) -> str:
    if answer.refused_in_repeats:
        return "that is better has good repeats"
    return (
        "is better" if any(t.state != "discarded" for t in answer.trials) else "was started"
    )


def _without_gain(answer: TuneAnswer, best: TuneTrial) -> str:
    if best.counted:
        values = [repeat.value for repeat in best.counted if repeat.value is not None]
        mean = f"{objective_text(answer, sum(values) / len(values))} (mean of {many(len(values), 'repeat')})"
        return f"{mean}. The gain is unknown: the default has no repeat that counts."
    default = answer.default.judged
    known = (
        "the default has no result"
        if default is None
        else f"default: {objective_text(answer, default)}"
    )
    why = (
        ": there was no time for them (--budget)"
        if answer.unconfirmed and answer.budget_s
        else ""
    )
    return f"{objective_text(answer, best.judged)}; {known} (not confirmed by repeats{why})"


def _refused_before(answer: TuneAnswer) -> Iterator[str]:
    """Say that settings looked better, until they were repeated."""
    if refused := answer.refused_in_repeats:
        names = ", ".join(words(trial.setting) for trial in refused[:3])
        more = ", …" if len(refused) > 3 else ""
        yield f"Refused in the repeats, though better at first: {names}{more}. The reasons are below."


def _ranked(answer: TuneAnswer) -> list[TuneTrial]:
    known = [t for t in [answer.default, *answer.trials] if t.value is not None]
    sign = 1 if answer.spec.lower else -1
    return sorted(
        known,
        key=lambda t: (bool(t.objection), t.long_value is None, sign * (t.judged or 0)),
    )


def _refused(answer: TuneAnswer) -> Iterator[str]:
    """Yield each reason once, with its settings and the log of the first."""
    reasons = _reasons(answer)
    for reason, trials in list(reasons.items())[:_SHOWN]:
        more = f" and {many(len(trials) - 3, 'more setting')}" if len(trials) > 3 else ""
        yield from wrapped(
            "; ".join(words(t.setting) for t, _ in trials[:3]) + more, "  ", "    "
        )
        yield from wrapped(reason, "    ")
        if log := trials[0][1]:
            yield f"    Log: {log}"
    if len(reasons) > _SHOWN:
        yield f"  and {many(len(reasons) - _SHOWN, 'more reason')} (--json has all)"


def _reasons(answer: TuneAnswer) -> dict[str, list[tuple[TuneTrial, str]]]:
    """Return the trials that were refused by their reason, each with the path of its log."""
    reasons: dict[str, list[tuple[TuneTrial, str]]] = {}
    for trial in [answer.default, *answer.trials]:
        why = trial.why or trial.objection
        if not why:
            continue
        reason, log = brief(why)
        if trial.state == "failed":  # after how long is of each trial alone
            reason = re.sub(r" after [\d.,]+ (?:ms|s|min)\b", "", reason)
        state = trial.state if trial.why else "refused"
        reasons.setdefault(f"{state}: {reason}", []).append((trial, log))
    return reasons


def brief(why: str) -> tuple[str, str]:
    """Shorten a reason to about two lines: the first of the engine's own words, advice, and the path of its log."""
    log = _LOG.search(why)
    without_log = _LOG.sub("", why)
    text = _QUOTED.sub(lambda m: _cut(m[0].partition(" | ")[0], _QUOTE), without_log)
    return _cut(text, _REASON), log[1] if log else ""


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = max(text.rfind(" ", 0, most), most // 2)
    return text[:end] + " …"


def _sum(answer: TuneAnswer) -> str:
    states = [t.state for t in answer.trials]
    each = ", ".join(
        f"{states.count(state)} {state}"
        for state in ("measured", "failed", "discarded")
        if state in states
    )
    whole = f" of {count(answer.possible)}" if answer.possible else ""
    budget = f" of {duration(answer.budget_s)} (--budget)" if answer.budget_s else ""
    took = f"{duration(answer.duration_s)}{budget}"
    return f"{len(states)}{whole} settings besides the default ({each or 'none'}), {took}"
