"""A gate: what a comparison must hold for a build to go on. METHOD.md, Comparing, says when one is broken."""

import math
import operator
import re
from collections.abc import Callable
from difflib import get_close_matches

import msgspec

from dyno.errors import UsageError
from dyno.facts.comparison import Difference, Estimate, GateResult, GateState, Pairing
from dyno.facts.metric import COUNTS, SPEEDS, STEMS, better, known, metric, words
from dyno.measure.student import quantile

_GATE = re.compile(r"\s*([A-Za-z][\w.]*)\s*(<=|>=|<|>)\s*([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)\s*(%?)\s*", re.I)
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Gate(msgspec.Struct, frozen=True):
    text: str
    metric: str
    sign: str
    limit: float  # a share where it is relative, else in the metric's own unit
    relative: bool  # about B's change against A; else about B's value


def parse(text: str) -> Gate:
    found = _GATE.fullmatch(text)
    if not found:
        raise UsageError(
            f"--gate {text!r}: write METRIC<LIMIT, such as 'p99_ttft_ms<5%' (B may be up to 5 % above A), "
            "'p99_ttft_ms<200' (B's own value), 'output_throughput>-5%' or 'failed<=0'. Quote it for the shell."
        )
    name, sign, limit, percent = found.groups()
    check_metric(name, "--gate")
    way = better(name)
    if percent and way is not None and (way == "lower") != (sign[0] == "<"):
        turned = f"{name}{'<' if way == 'lower' else '>'}{abs(float(limit)) * (1 if way == 'lower' else -1):g}%"
        raise UsageError(
            f"--gate {text!r}: {name} is better when it is {way}, so this holds B back from getting better. For 'not "
            f"worse by more than that', write '{turned}'."
        )
    return Gate(text, name, sign, float(limit) / (100 if percent else 1), bool(percent))


def check_metric(name: str, flag: str) -> None:
    if known(name):
        return
    statistics = ("mean", "median", "p50", "p90", "p95", "p99")
    names = [*SPEEDS, *COUNTS, *(f"{s}_{stem}_ms" for stem in STEMS for s in statistics)]
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(SPEEDS)}, mean_ttft_ms, p99_tpot_ms, …."
    raise UsageError(f"{flag}: there is no metric {name!r}. {hint}")


def judge(gate: Gate, pairing: Pairing, index: int) -> GateResult:
    def result(state: GateState, text: str) -> GateResult:
        return GateResult(gate.text, state, text, index)

    if pairing.refused:
        return result("refused", "the two sides are not comparable")
    found = next((d for d in pairing.differences if d.metric == gate.metric), None)
    if found is None:
        why = next((x.why for x in pairing.left_out if x.metric == gate.metric), "not told on both sides")
        return result("refused", f"{gate.metric} was left out: {why}")
    if not gate.relative:
        return _of_value(gate, found.b, result)
    if found.change is None:
        return result("refused", f"{gate.metric} of A is {found.a.value:g}: there is no change in % of that")
    return _of_change(gate, found, found.change, result)


Told = Callable[[GateState, str], GateResult]


def _of_change(gate: Gate, d: Difference, change: float, result: Told) -> GateResult:
    holds = _HOLDS[gate.sign]
    told = f"{words(gate.metric)} {100 * change:+.1f} %"
    if d.low is None or d.high is None:
        state: GateState = "not sure" if holds(change, gate.limit) else "broken"
        return result(state, f"{told}; it isn't known how sure that is: {d.why}")
    interval = f"(95 %: {100 * d.low:+.1f} to {100 * d.high:+.1f} %)"
    return result(_state(holds, change, (d.low, d.high), gate.limit), f"{told} {interval}")


def _of_value(gate: Gate, b: Estimate, result: Told) -> GateResult:
    holds = _HOLDS[gate.sign]
    told = f"{words(gate.metric)} of B is {b.value:,.6g}"
    if metric(gate.metric).kind == "count":
        return result("held" if holds(b.value, gate.limit) else "broken", told)
    if b.error is None:
        return result("not sure" if holds(b.value, gate.limit) else "broken", f"{told}; {b.why}")
    by = quantile(0.975, b.df) * b.error
    ends = (b.value * math.exp(-by), b.value * math.exp(by))
    return result(
        _state(holds, b.value, ends, gate.limit), f"{told} (95 %: {ends[0]:,.6g} to {ends[1]:,.6g})"
    )  # fmt: skip


def _state(
    holds: Callable[[float, float], bool], value: float, ends: tuple[float, float], limit: float
) -> GateState:  # fmt: skip
    """Broken only where the whole interval is beyond the limit: chance alone must not stop a build."""
    kept = [holds(end, limit) for end in (*ends, value)]
    return "held" if all(kept) else "broken" if not any(kept) else "not sure"


def stops(results: list[GateResult], strict: bool) -> bool:
    return any(r.state in ("broken", "refused") or (strict and r.state == "not sure") for r in results)
