"""Were all requests answered?"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import mean, median
from typing import NamedTuple

from dyno.checks.evidence import Evidence, OfflineEvidence
from dyno.facts.finding import Finding, Level, doubt, note, void
from dyno.facts.imported import Row, Samples
from dyno.facts.record import OWN_FAULTS
from dyno.measure.points import locations, sent
from dyno.numbers import number, percent

EMPTY = 0.01  # share of the answers that changes the figures
WENT_ON = 0.1  # of the tokens that cancelled requests would still have had
# Finish reasons of answers that ended as they should: OpenAI's, vLLM's repetition, Anthropic's words of some proxies.
ENDS = {
    *("stop", "length", "tool_calls", "function_call", "content_filter", "repetition"),
    *("end_turn", "max_tokens", "stop_sequence", "tool_use", "eos"),
}
NO_REASON = "none"
_OUTCOMES = {
    "interrupted": "was interrupted",
    "all failed": "was stopped, because every request failed,",
    "lost": "ended early, because all processes of dyno's client ended,",
}
SOON = 4  # tokens of a request: a server that stops at once may be a few steps ahead


def failed(e: Evidence | OfflineEvidence | Row) -> Iterator[Finding]:
    """Requests failed: some of them, or all."""
    lines: list[str] = []
    if isinstance(e, Evidence):
        counts = _served(e)
    elif isinstance(e, OfflineEvidence):
        counts = _generated(e)
    else:
        counts = _reported(e)
        lines = locations([e], "completed", "failed")
    if counts is None:
        return
    total, done, count, details = counts
    why = f" ({details})" if details else ""
    if not done:
        text = (
            f"None of {total:,} requests completed{why}."
            if total
            else "No request completed."
        )
        yield void("requests.none_completed", text, locations=lines)
    elif count:
        share = f"{count:,} of {total:,} requests failed, {percent(count / total)}"
        text = f"{share}{why}. The figures cover only the others."
        yield Finding(
            "requests.failed",
            "void" if count >= 0.5 * total else "doubt",
            text,
            locations=lines,
        )


class _Counts(NamedTuple):
    total: int
    done: int
    failed: int
    details: str


def _served(e: Evidence) -> _Counts | None:
    """Return the counts of a run, unless all its failures are dyno's own fault."""
    s = e.summary
    own = sum(s.failures.get(kind, 0) for kind in OWN_FAULTS)
    # Requests in flight when a run was stopped are not failures; `client.limits` and `client.process_lost` have
    # those of dyno's own fault.
    count = s.failed - s.failures.get("interrupted", 0) - own
    if own and not count:
        return None
    details = ", ".join(
        f"{n:,} {kind}" for kind, n in s.failures.items() if kind not in OWN_FAULTS
    )
    return _Counts(s.sent, s.completed, count, details)


def _generated(e: OfflineEvidence) -> _Counts | None:
    """Return the counts of an offline run, unless it had no requests."""
    count, done = e.offline.failed, e.offline.completed
    if not count and not done:
        return None
    return _Counts(count + done, done, count, e.offline.failure_example or "")


def _reported(row: Row) -> _Counts | None:
    """Return the counts of another tool's result, if they are known."""
    asked, completed = sent(row), row.get("completed")
    if row.kind != "serve" or completed is None:
        return None
    done = int(completed)
    if asked is not None:
        total, details = int(asked[0]), asked[1]
        return _Counts(total, done, max(total - done, 0), details)
    return _Counts(0, done, 0, "") if not completed else None


def unknown_end(e: Evidence) -> Iterator[Finding]:
    """A server may say in words of its own that it gave an answer up. One that never says why is not doubted."""
    reasons = e.summary.finish_reasons
    said = any(reason in ENDS for reason in reasons)
    unknown = {
        reason: n
        for reason, n in reasons.items()
        if reason not in ENDS and (said or reason != NO_REASON)
    }
    if unknown:
        named = ", ".join(
            "no reason" if reason == NO_REASON else reason for reason in unknown
        )
        text = (
            f"{sum(unknown.values()):,} of {e.completed:,} answers ended with a finish reason that dyno doesn't know "
            f"({named}). They count as completed."
        )
        yield doubt("requests.unknown_end", text)


def cut_short(e: Evidence | OfflineEvidence) -> Iterator[Finding]:
    """The run ended before its planned end."""
    if isinstance(e, OfflineEvidence):
        if e.offline.iterations < e.wanted_iterations:
            text = f"The run was interrupted after {e.offline.iterations} of {e.wanted_iterations} iterations."
            yield doubt("requests.cut_short", text)
        return
    s = e.summary
    if s.outcome == "complete":
        return
    why = _OUTCOMES.get(s.outcome, "ended early, because the server stopped answering,")
    total = "" if e.trial.load.duration_s is not None else f" of {s.planned:,}"
    text = f"The run {why} after {s.sent:,}{total} requests; {s.failures.get('interrupted', 0):,} were still open."
    yield doubt("requests.cut_short", text)


def end_at_once(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.end_at_once:
        text = f"{s.end_at_once:,} of {s.completed:,} completed answers contain only the end token."
        advice = ""
        if e.stops_at_eos:
            advice = f"{e.stops_at_eos} can't ignore the end token: use prompts with long answers."
        level: Level = "doubt" if s.end_at_once > 0.01 * s.completed else "note"
        yield Finding("requests.end_at_once", level, text, advice)


def unasked(e: Evidence) -> Iterator[Finding]:
    if count := e.summary.failures.get("unasked", 0):
        text = f"The server sent unrequested answers on connections with {count:,} requests; all these count as failed."
        yield doubt("requests.unasked", text)


def unaccounted(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.completed + s.failed + s.cancelled != s.sent:
        cancelled = f", {s.cancelled:,} were cancelled" if s.cancelled else ""
        text = f"{s.sent:,} requests were sent, but {s.completed:,} completed and {s.failed:,} failed{cancelled}."
        yield void("requests.unaccounted", text)
    elif s.sessions and s.outcome == "complete" and s.sent + s.skipped != s.planned:
        text = f"{s.planned:,} requests were planned, but {s.sent:,} were sent and {s.skipped:,} skipped."
        yield void("requests.unaccounted", text)


def skipped(e: Evidence) -> Iterator[Finding]:
    """Requests of a session were skipped after one that got no answer."""
    s = e.summary
    if not s.skipped:
        return
    failed = s.sessions.failed if s.sessions else 0
    if not s.cancelled:
        why = "failed"
    elif failed:
        why = "failed or was cancelled"
    else:
        why = "was cancelled"
    text = f"{s.skipped:,} requests were not sent because an earlier request of their session {why}."
    yield Finding("requests.skipped", "doubt" if failed else "note", text)


def cancelled(e: Evidence) -> Iterator[Finding]:
    """Did the server stop when the client had gone?"""
    c = e.summary.cancelling
    if c is None or c.undelivered_tokens is None or not c.missing_tokens:
        return
    share = c.undelivered_tokens / c.missing_tokens
    if share > WENT_ON and c.undelivered_tokens > SOON * e.summary.cancelled:
        text = (
            f"The server generated {c.undelivered_tokens:,} output tokens that were not delivered: {percent(share)} of "
            f"the rest of {e.summary.cancelled:,} cancelled requests."
        )
        yield note("requests.cancelled_went_on", text)


def resent(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.resent > 1:  # one is how dyno learns that a server closes after each answer
        text = f"{s.resent:,} of {s.sent:,} requests were sent again: the server had closed a kept-alive connection."
        # A server that closes after each answer costs each stream one; more than that are refusals.
        level: Level = (
            "note" if s.resent <= s.client.streams_peak + 0.01 * s.sent else "doubt"
        )
        yield Finding("requests.resent", level, text)


def more_than_asked(row: Row) -> Iterator[Finding]:
    done, asked = row.get("completed"), row.settings.get("num_prompts")
    if (
        row.kind == "serve"
        and done
        and asked
        and isinstance(asked.value, int)
        and done > asked.value
    ):
        source = f"line {asked.line}" if asked.line else "`dyno import --set`"
        text = f"{done:,.0f} requests completed, but {source} requests {asked.value:,}."
        lines = [row.setting_location("num_prompts"), *locations([row], "completed")]
        yield doubt(
            "consistency.command", text, "The command belongs to another result.", lines
        )


def empty(row: Row) -> Iterator[Finding]:
    """Answers without a token count as successes."""
    s, done = row.samples, row.get("completed")
    if s is None or not s.output_lens or not done:
        return
    failed = (
        sum(bool(e) for e in s.errors)
        if s.errors
        else max(len(s.output_lens) - int(done), 0)
    )
    none = sum(n == 0 for n in s.output_lens) - failed
    if none <= 0:
        return
    level: Level = "note"
    if none > 0.1 * done:
        level = "void"
    elif none > EMPTY * done:
        level = "doubt"
    text = f"{none:,} of {done:,.0f} answers that count as successes are empty ({percent(none / done)})."
    yield Finding("requests.empty", level, text, locations=locations([row], "completed"))


def zeros_in_mean(row: Row) -> Iterator[Finding]:
    """The mean TTFT counts requests without a first token as 0 ms."""
    s, reported = row.samples, row.figures.get("mean_ttft_ms")
    if s is None or reported is None or not reported.value:
        return
    real = [t for t in s.latencies("ttft") if t > 0]
    counted = _counted(row, s)
    zeros = counted - len(real)
    if zeros <= 0 or not real:
        return
    with_zeros = sum(real) / counted
    if abs(with_zeros / reported.value - 1) < 0.005 and zeros > 0.002 * counted:
        shown = row.get("median_ttft_ms")
        also = (
            f", and the median {number(median(real))} instead of {number(shown)}"
            if shown is not None
            else ""
        )
        text = (
            f"{zeros:,} of {counted:,} requests count with a TTFT of 0 ms. Without them the mean is "
            f"{number(mean(real))} ms instead of {number(reported.value)}{also}."
        )
        level: Level = "void" if zeros > 0.01 * counted else "doubt"
        lines = locations([row], "mean_ttft_ms", "median_ttft_ms")
        yield Finding("requests.zeros_in_mean", level, text, locations=lines)


def _counted(row: Row, s: Samples) -> int:
    """Return how many requests the mean TTFT covers. vLLM lists failed ones with zero, and leaves them out of it."""
    known = sum(not math.isnan(t) for t in s.latencies("ttft"))
    done = row.get("completed")
    if done is not None:
        return min(int(done), known)
    return known - sum(bool(e) for e in s.errors)


def errors_among_successes(row: Row) -> Iterator[Finding]:
    s, done = row.samples, row.get("completed")
    if s is None or not s.errors or done is None:
        return
    wrong = sum(bool(e) for e in s.errors)
    counted = wrong - max(len(s.errors) - int(done), 0)
    if counted > 0:
        example = next(e for e in s.errors if e)
        text = f"{counted:,} of {wrong:,} requests with an error count as completed: {example[:120]!r}."
        yield doubt(
            "requests.errors_counted", text, locations=locations([row], "completed")
        )


def dropped(rows: Sequence[Row]) -> Iterator[Finding]:
    """One of two series with rising counts of requests falls behind; neither reports how many were sent."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        if (
            row.kind == "serve"
            and row.form == "csv"
            and sent(row) is None
            and row.get("completed")
        ):
            by_file.setdefault(row.file, []).append(row)
    for one, other in combinations(by_file.values(), 2):
        yield from _dropped(one, other)


def _dropped(a: list[Row], b: list[Row]) -> Iterator[Finding]:
    counts = [[int(r.get("completed") or 0) for r in rows] for rows in (a, b)]
    same = 0
    while same < min(map(len, counts)) and counts[0][same] == counts[1][same]:
        same += 1
    if same < 2 or same == min(map(len, counts)):
        return
    # As far as both go they rise alike; then one continues by the same step, and the other falls.
    for short, full, rows, others in (
        (counts[0], counts[1], a, b),
        (counts[1], counts[0], b, a),
    ):
        rising = full[: same + 1] == sorted(set(full[: same + 1]))
        if short[same] < short[same - 1] and rising:
            text = (
                f"{rows[same].file} has {short[same]:,} completed requests where {others[same].file} has "
                f"{full[same]:,}: {percent(1 - short[same] / full[same])} are missing. Before, both had "
                f"{', '.join(f'{n:,}' for n in short[:same])}."
            )
            level: Level = "void" if short[same] < 0.5 * full[same] else "doubt"
            lines = locations([rows[same], others[same]], "completed")
            yield Finding("requests.failed", level, text, locations=lines)
