"""Were all requests answered?"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import mean, median

from dyno.checks.evidence import Evidence, OfflineEvidence
from dyno.facts.finding import Finding, doubt, void
from dyno.facts.imported import Row
from dyno.measure.points import (
    locations,
    sent,
)

EMPTY = 0.01  # of the answers: from here on they change the figures


def failed(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    # Requests in flight when a run was stopped are not failures; `client.limits` has the client's own.
    count = s.failed - s.failures.get("interrupted", 0) - s.failures.get("client", 0)
    kinds = ": " + ", ".join(f"{n} {kind}" for kind, n in s.failures.items()) if s.failures else ""
    if count or not s.failures.get("client"):
        yield from _failed(count, s.sent, s.completed, kinds)


def _failed(count: int, sent: int, completed: int, details: str, lines: Sequence[str] = ()) -> Iterator[Finding]:
    if completed == 0:
        text = f"None of {sent} requests was completed{details}."
        advice = "Nothing was measured. Look at the failures above and at the server's log."
        yield void("requests.none_completed", text, advice, lines)
    elif count:
        share = count / sent
        yield Finding(
            "requests.failed",
            "void" if share >= 0.5 else "doubt",
            f"{count} of {sent} requests failed ({share:.1%}){details}; "
            "latencies and token counts are of the others only.",
            "A server that drops requests is faster for the rest. Find the cause, or compare only with runs that "
            "failed as often.",
            list(lines),
        )


def cut_short(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.outcome == "complete":
        return
    reasons = {"interrupted": "was interrupted", "all failed": "was stopped, because every request failed,"}
    why = reasons.get(s.outcome, "ended early: the server stopped answering")
    in_flight = s.failures.get("interrupted", 0)
    total = "" if e.trial.load.duration_s is not None else f"of {s.planned} "
    text = f"The run {why} after {s.sent} {total}requests; {in_flight} in flight were abandoned."
    advice = "The figures hold for what was measured until then. Run it again for the whole."
    yield doubt("requests.cut_short", text, advice)


def end_at_once(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.end_at_once:
        yield Finding(
            "requests.end_at_once",
            "doubt" if s.end_at_once > 0.01 * s.completed else "note",
            f"{s.end_at_once} of {s.completed} completed answers hold nothing but the end token.",
            "They count as completed requests and have no latency. "
            + (
                "--ignore-eos makes every answer as long as asked."
                if e.can_ignore_eos
                else "TGI can't be told to ignore the end token: use prompts that the model answers at length."
            ),
        )


def unasked(e: Evidence) -> Iterator[Finding]:
    if count := e.summary.failures.get("unasked", 0):
        yield doubt(
            "requests.unasked",
            f"The server sent more answers than it was asked for, on connections that carried {count} requests; these "
            "count as failed, because it is unknown which answer belongs to which request.",
            "A proxy mixes up its connections, or the server sends some answers twice. Look there first.",
        )


def unaccounted(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.completed + s.failed != s.sent:
        text = f"{s.sent} requests were sent, and {s.completed} completed + {s.failed} failed are on record."
        advice = "Records are missing, so that every figure is of a part. Run it again, and report this."
        yield void("requests.unaccounted", text, advice)


def resent(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.resent > 1:  # one is how dyno learns that a server closes after each answer
        yield Finding(
            "requests.resent",
            # A server that closes after each answer costs each stream one; more than that are refusals.
            "note" if s.resent <= s.client.streams_peak + 0.01 * s.sent else "doubt",
            f"{s.resent} of {s.sent} requests were sent a second time, as the server had closed a kept connection.",
            "Usual where a server closes connections after each answer. If it doesn't, look for refusals in its log.",
        )


def failed_offline(e: OfflineEvidence) -> Iterator[Finding]:
    o = e.offline
    if o.failed:
        share = o.failed / (o.failed + o.completed)
        text = f"{o.failed} of {o.failed + o.completed} requests failed ({o.failure_example})."
        advice = "They are in no token count. Look at engine.log for the cause."
        yield Finding("requests.failed", "void" if share > 0.5 else "doubt", text, advice)


def cut_short_offline(e: OfflineEvidence) -> Iterator[Finding]:
    if e.offline.iterations < e.wanted_iterations:
        text = f"It was stopped after {e.offline.iterations} of {e.wanted_iterations} iterations."
        advice = "The figures are of those alone. Run it to its end."
        yield doubt("requests.cut_short", text, advice)


def failed_row(row: Row) -> Iterator[Finding]:
    done, asked = row.get("completed"), sent(row)
    if row.kind == "serve" and done == 0 and asked is None:  # the number of failures is unknown
        text = "No request was completed."
        advice = "Nothing was measured. Look at the server's log."
        yield void("requests.none_completed", text, advice, locations([row], "completed"))
    if row.kind != "serve" or done is None or asked is None or asked[0] <= done:
        return
    details = f": {asked[1]} says {asked[0]:,.0f}" if asked[1] else ""
    lines = locations([row], "completed", "failed")
    yield from _failed(int(asked[0] - done), int(asked[0]), int(done), details, lines)


def more_than_asked(row: Row) -> Iterator[Finding]:
    done, asked = row.get("completed"), row.settings.get("num_prompts")
    if row.kind == "serve" and done and asked and isinstance(asked.value, int) and done > asked.value:
        yield doubt(
            "consistency.command",
            f"{done:,.0f} requests were completed, where {asked.value:,} were asked for"
            + (f" on line {asked.line}." if asked.line else ", as who imported it says."),
            "The command is not the one of this result.",
            [row.setting_location("num_prompts"), *locations([row], "completed")],
        )


def empty(row: Row) -> Iterator[Finding]:
    """Answers without a token count as successes."""
    s, done = row.samples, row.get("completed")
    if s is None or not s.output_lens or not done:
        return
    failed = sum(bool(e) for e in s.errors) if s.errors else max(len(s.output_lens) - int(done), 0)
    none = sum(n == 0 for n in s.output_lens) - failed
    if none > 0:
        yield Finding(
            "requests.empty",
            "void" if none > 0.1 * done else "doubt" if none > EMPTY * done else "note",
            f"{none:,} of {done:,.0f} answers that count as successes are empty ({none / done:.0%}).",
            "They are no work: leave them out of the rate and the latencies, and find out why the model ends at once "
            "(a base model that is asked as if it could chat, a prompt that is cut).",
            locations([row], "completed"),
        )  # fmt: skip


def zeros_in_mean(row: Row) -> Iterator[Finding]:
    s, reported = row.samples, row.figures.get("mean_ttft_ms")
    if s is None or reported is None or not reported.value:
        return
    real = [t for t in s.ttfts_ms if t > 0]
    zeros = len(s.ttfts_ms) - len(real)
    if not zeros or not real:
        return
    # A failed request is kept with zero and left out of the mean by vLLM: only what is inside is wrong.
    with_zeros = sum(real) / len(s.ttfts_ms)
    if abs(with_zeros / reported.value - 1) < 0.005 and zeros > 0.002 * len(s.ttfts_ms):
        shown = row.get("median_ttft_ms")
        also = f", the median {shown:,.0f} becomes {median(real):,.0f}" if shown is not None else ""
        yield Finding(
            "requests.zeros_in_mean",
            "void" if zeros > 0.01 * len(s.ttfts_ms) else "doubt",
            f"{zeros:,} of {len(s.ttfts_ms):,} first tokens are counted as 0 ms: the mean TTFT of "
            f"{reported.value:,.0f} ms is {mean(real):,.0f} ms over those that came{also}.",
            "Use the figures over requests with a token.",
            locations([row], "mean_ttft_ms", "median_ttft_ms"),
        )


def errors_among_successes(row: Row) -> Iterator[Finding]:
    s, done = row.samples, row.get("completed")
    if s is None or not s.errors or done is None:
        return
    wrong = sum(bool(e) for e in s.errors)
    counted = wrong - max(len(s.errors) - int(done), 0)
    if counted > 0:
        example = next(e for e in s.errors if e)
        text = f"{wrong:,} requests have an error, {counted:,} of them count as completed: {example[:120]!r}."
        advice = "Their tokens are part of the throughput. Leave them out."
        yield doubt("requests.errors_counted", text, advice, locations([row], "completed"))


def dropped(rows: Sequence[Row]) -> Iterator[Finding]:
    """One of two series with rising counts of requests falls behind; neither says how many were sent."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind == "serve" and row.form == "csv" and sent(row) is None and row.get("completed"):
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
    # As far as both go they rise alike; then one goes on by the same step, and the other falls.
    for short, full, rows, others in ((counts[0], counts[1], a, b), (counts[1], counts[0], b, a)):
        rising = full[: same + 1] == sorted(set(full[: same + 1]))
        if short[same] < short[same - 1] and rising:
            yield Finding(
                "requests.failed",
                "void" if short[same] < 0.5 * full[same] else "doubt",
                f"{short[same]:,} requests were completed in {rows[same].file} where {full[same]:,} were in "
                f"{others[same].file}, after {', '.join(f'{n:,}' for n in short[:same])} in both: "
                f"{full[same] - short[same]:,} of {full[same]:,} are missing ({1 - short[same] / full[same]:.0%}).",
                "A server that drops requests is faster for the rest: its rates and latencies are of the survivors.",
                locations([rows[same], others[same]], "completed"),
            )
