"""A gate: what a comparison must hold for a build to go on. METHOD.md, Comparing, says when one is broken."""

import operator
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

import msgspec

from dyno.errors import UsageError
from dyno.facts.comparison import Difference, Estimate, GateResult, GateState, Pairing
from dyno.facts.metric import COUNTS, SPEEDS, STEMS, better, known, metric
from dyno.measure.estimate import interval
from dyno.numbers import number

_GATE = re.compile(
    r"\s*([A-Za-z][\w.]*)\s*(<=|>=|<|>)\s*([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)\s*(%|pt|)\s*",
    re.I,
)
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Gate(msgspec.Struct, frozen=True):
    text: str
    metric: str
    sign: str
    limit: float  # a share where it is relative, else in the metric's own unit
    relative: bool  # about B's change against A; else about B's value
    points: bool = False  # about B's score minus A's


def parse(text: str) -> Gate:
    """Read a gate as the command line has it."""
    match = _GATE.fullmatch(text)
    if not match:
        raise UsageError(
            f"--gate {text!r}: write METRIC<LIMIT, such as 'p99_ttft_ms<5%' (B may be up to 5 % above A), "
            "'p99_ttft_ms<200' (B's own value), 'output_throughput>-5%', 'score>-1pt' (B may score up to 1 point less) "
            "or 'failed<=0'. Quote it for the shell."
        )
    name, sign, limit, unit = match.groups()
    check_metric(name, "--gate")
    way = better(name)
    if unit == "pt" and name != "score":
        raise UsageError(
            f"--gate {text!r}: only a score has points. Write '{text.replace('pt', '%')}'."
        )
    if unit and way is not None and (way == "lower") != (sign[0] == "<"):
        amount = abs(float(limit))
        turned = (
            f"{name}<{amount:g}{unit}" if way == "lower" else f"{name}>{-amount:g}{unit}"
        )
        raise UsageError(
            f"--gate {text!r}: {name} is better when it is {way}, so this holds B back from getting better. For 'not "
            f"worse by more than that', write '{turned}'."
        )
    return Gate(
        text, name, sign, float(limit) / (100 if unit else 1), bool(unit), unit == "pt"
    )


def check_metric(name: str, flag: str) -> None:
    if known(name):
        return
    statistics = ("mean", "median", "p50", "p90", "p95", "p99")
    names = [*SPEEDS, *COUNTS, *(f"{s}_{stem}_ms" for stem in STEMS for s in statistics)]
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"Known: {', '.join(SPEEDS)}, mean_ttft_ms, p99_tpot_ms, …."
    if name.lower() in STEMS:
        hint = f"Did you mean median_{name.lower()}_ms or p99_{name.lower()}_ms?"
    elif near:
        hint = f"Did you mean {near[0]}?"
    raise UsageError(f"{flag}: there is no metric {name!r}. {hint}")


class _Judgement(NamedTuple):
    state: GateState
    text: str
    room: float | None = None


def judge(gate: Gate, pairing: Pairing, index: int) -> GateResult:
    state, text, room = _judge(gate, pairing)
    return GateResult(gate.text, state, text, index, room)


def _judge(gate: Gate, pairing: Pairing) -> _Judgement:
    """Return whether a gate holds for a pairing, and why."""
    if pairing.refused:
        return _Judgement("undecided", "the two sides are not comparable")
    d = next((d for d in pairing.differences if d.metric == gate.metric), None)
    if d is None:
        why = next(
            (x.why for x in pairing.left_out if x.metric == gate.metric),
            "not reported by both sides",
        )
        return _Judgement("undecided", f"left out ({why})")
    if gate.relative:
        return _judge_change(gate, d)
    return _judge_value(gate, d.b)


def _judge_change(gate: Gate, d: Difference) -> _Judgement:
    if gate.points and not d.points:
        return _Judgement("undecided", "points need scores from 0 to 1")
    # A difference of scores as a share of A, where the gate has %.
    scale = d.a.value if d.points and not gate.points else 1.0
    if d.change is None or not scale:
        return _Judgement("undecided", f"A is {d.a.value:g}, so there is no change in %")
    if d.low is None or d.high is None:
        return _judged(gate, d.change / scale, None, f"{d.change_words}, {d.word}")
    ends = d.low / scale, d.high / scale
    text = f"{d.change_words} ({d.interval_phrase.replace(' interval', ':')})"
    return _judged(gate, d.change / scale, ends, text)


def _judge_value(gate: Gate, b: Estimate) -> _Judgement:
    text = f"B is {number(b.value)}"
    if metric(gate.metric).kind == "count":
        return _judged(gate, b.value, (b.value, b.value), text)
    ends = interval(b)
    if ends is None:
        return _judged(gate, b.value, None, f"{text}, confidence unknown")
    text = f"{text} (95 %: {number(ends[0])} to {number(ends[1])})"
    return _judged(gate, b.value, ends, text)


def _judged(
    gate: Gate, value: float, ends: tuple[float, float] | None, text: str
) -> _Judgement:
    """Return whether a gate holds. It is broken only where the whole interval is beyond the limit: chance alone must
    not stop a build. `ends`: None where it isn't known how far the value may be off; then it is never surely held."""
    values = (value, *(ends or ()))
    holds = [_HOLDS[gate.sign](v, gate.limit) for v in values]
    side = 1 if gate.sign.startswith("<") else -1
    room = min(side * (gate.limit - v) for v in values)
    if not any(holds):
        return _Judgement("broken", text, room)
    if ends is not None and all(holds):
        return _Judgement("held", text, room)
    return _Judgement("undecided", text, room)
