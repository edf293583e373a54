"""Were all requests answered?"""

from collections.abc import Iterator

from dyno.checks.evidence import Evidence
from dyno.facts.finding import Finding


def failed(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    # Those in flight when a run was stopped are no failures; those of the client are told by `client.limits`.
    count = s.failed - s.failures.get("interrupted", 0) - s.failures.get("client", 0)
    if count or not s.failures.get("client"):
        yield from failures(count, s.sent, s.completed, _kinds(s.failures))


def failures(count: int, sent: int, completed: int, told: str) -> Iterator[Finding]:
    """`told`: what more is known of them, in words."""
    if completed == 0:
        yield Finding(
            "requests.none_completed",
            "void",
            f"None of {sent} requests was completed{told}.",
            "Nothing was measured. Look at the failures above and at the server's log.",
        )
    elif count:
        share = count / sent
        yield Finding(
            "requests.failed",
            "void" if share >= 0.5 else "doubt",
            f"{count} of {sent} requests failed ({share:.1%}){told}; "
            "latencies and token counts are of the others only.",
            "A server that drops requests is faster for the rest. Find the cause, or compare only with runs that "
            "failed as often.",
        )


def cut_short(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.outcome == "complete":
        return
    why = "was interrupted" if s.outcome == "interrupted" else "ended early: the server stopped answering"
    in_flight = s.failures.get("interrupted", 0)
    total = "" if e.trial.load.duration_s is not None else f"of {s.planned} "
    yield Finding(
        "requests.cut_short",
        "doubt",
        f"The run {why} after {s.sent} {total}requests; {in_flight} in flight were abandoned.",
        "The figures hold for what was measured until then. Run it again for the whole.",
    )


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
        yield Finding(
            "requests.unasked",
            "doubt",
            f"The server sent more answers than it was asked for, on connections that carried {count} requests; these "
            "count as failed, because it is unknown which answer belongs to which request.",
            "A proxy mixes up its connections, or the server sends some answers twice. Look there first.",
        )


def unaccounted(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.completed + s.failed != s.sent:
        yield Finding(
            "requests.unaccounted",
            "void",
            f"{s.sent} requests were sent, and {s.completed} completed + {s.failed} failed are on record.",
            "Records are missing, so that every figure is of a part. Run it again, and report this.",
        )


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


def _kinds(failures: dict[str, int]) -> str:
    return ": " + ", ".join(f"{n} {kind}" for kind, n in failures.items()) if failures else ""
