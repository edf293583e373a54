"""The answer of a search for an engine's best settings: setting, gain, effects, trade-offs, and what was refused."""

from collections.abc import Iterator

from dyno.facts.tune import TuneAnswer, TuneTrial, words
from dyno.numbers import change, count, duration, many, number
from dyno.report.table import terminal, text_table

_ENDED = {
    "settings": "Every setting was tried.",
    "budget": "The time is used up (--budget). Repeat the command with more to try further settings.",
    "interrupted": "Interrupted: this is the best so far. Repeat the command to resume.",
}
_SHOWN = 10  # rows of a table


def lines(answer: TuneAnswer) -> Iterator[str]:
    """The answer, as printed."""
    yield f"Best setting of {answer.engine} by {answer.spec.words}{_target(answer)}:"
    yield from (f"  {line}" for line in _headline(answer))
    if answer.ended in _ENDED:
        yield f"  {_ENDED[answer.ended]}"
    if answer.commands:
        yield from ("", "Reproduce", f"  {answer.commands[0]}")
        yield from (f"  {line}" for line in answer.commands[1:])
    if ranked := _ranked(answer):
        yield from ("", "Settings", *_settings(answer, ranked[:_SHOWN]))
        if len(ranked) > _SHOWN:
            yield f"and {many(len(ranked) - _SHOWN, 'more setting')} (tune.json has all)"
    if effects := answer.effects():
        yield from ("", "Effect of each setting", *_effects(answer, effects))
    if len(front := answer.front()) > 1:
        yield from ("", "Pareto front: no other setting has both more throughput and a lower p99 TTFT", *_front(front))
    if refused := list(_refused(answer)):
        yield from ("", "Not the best, and why", *refused)
    yield ""
    yield _sum(answer)


def _target(answer: TuneAnswer) -> str:
    limits = ", ".join(limit.words for limit in answer.spec.limits)
    return f" with {limits}" if limits else ""


def _headline(answer: TuneAnswer) -> Iterator[str]:
    best, gain = answer.best, answer.gain
    if best is None:
        tried = [answer.default, *answer.trials]
        yield f"none: no setting of {len(tried)} can be recommended. The reasons are below."
        return
    if not best.setting:
        yield f"the default: no setting that was tried is better ({number(best.judged)})."
        return
    yield words(best.setting)
    if gain is None:
        yield f"{number(best.judged)}; default: {number(answer.default.judged)} (one run each, not confirmed)"
        return
    interval = f" (95 % interval: {change(gain.low)} to {change(gain.high)})" if gain.low is not None else ""
    yield f"{change(gain.change)} against the default{interval}: {number(gain.best)} after {number(gain.default)}"
    yield f"by {many(gain.repeats, 'interleaved repeat')} of each"
    if gain.low is not None and gain.high is not None and gain.low <= 0 <= gain.high:
        yield "The interval includes no difference: the default may be as good. Raise confirm_repeats or seconds."


def _ranked(answer: TuneAnswer) -> list[TuneTrial]:
    known = [t for t in [answer.default, *answer.trials] if t.value is not None]
    sign = 1 if answer.spec.lower else -1
    return sorted(known, key=lambda t: (bool(t.objection), t.long_value is None, sign * (t.judged or 0)))


def _settings(answer: TuneAnswer, ranked: list[TuneTrial]) -> list[str]:
    titles = ["setting", answer.unit, "longer load", "tok/s", "p99 TTFT (ms)", ""]
    rows = [
        [words(t.setting), number(t.value), number(t.long_value), number(t.throughput), number(t.p99_ttft_ms),
         "refused" if t.objection else "best" if t == answer.best else ""]
        for t in ranked
    ]  # fmt: skip
    return terminal(text_table(titles, rows, [1, 2, 3, 4], keep=range(3)))


def _effects(answer: TuneAnswer, effects: dict[str, dict[str, tuple[float, int]]]) -> list[str]:
    rows = [
        [key if i == 0 else "", value, number(median), count(settings)]
        for key, by_value in effects.items()
        for i, (value, (median, settings)) in enumerate(sorted(by_value.items(), key=lambda v: _order(v[0])))
    ]
    return terminal(text_table(["setting", "value", f"median {answer.unit}", "settings"], rows, [2, 3], keep=range(3)))


def _order(value: str) -> tuple[float, str]:
    try:
        return float(value.replace(",", "")), ""
    except ValueError:
        return float("inf"), value


def _front(front: list[TuneTrial]) -> list[str]:
    rows = [[words(t.setting), number(t.throughput), number(t.p99_ttft_ms)] for t in front]
    return terminal(text_table(["setting", "tok/s", "p99 TTFT (ms)"], rows, [1, 2], keep=range(3)))


def _refused(answer: TuneAnswer) -> Iterator[str]:
    """Each reason once, with its settings."""
    reasons: dict[str, list[TuneTrial]] = {}
    for trial in [answer.default, *answer.trials]:
        if why := trial.why or trial.objection:
            reasons.setdefault(f"{trial.state if trial.why else 'refused'}: {why}", []).append(trial)
    for why, trials in reasons.items():
        more = f" and {many(len(trials) - 3, 'more setting')}" if len(trials) > 3 else ""
        yield f"  {'; '.join(words(t.setting) for t in trials[:3])}{more}: {why}"


def _sum(answer: TuneAnswer) -> str:
    states = [t.state for t in answer.trials]
    each = ", ".join(
        f"{states.count(state)} {state}" for state in ("measured", "failed", "discarded") if state in states
    )
    whole = f" of {count(answer.possible)}" if answer.possible else ""
    return f"{len(states)}{whole} settings besides the default ({each or 'none'}), {duration(answer.duration_s)}"
