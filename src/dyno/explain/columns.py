"""Records as columns: one array for each fact, one row for each request; and the chunks of all, one after the other."""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dyno.facts.record import Record
from dyno.measure import counting, timing
from dyno.units import NS_PER_US

NONE = -1  # of a time that the server doesn't report
_AT_ONCE_NS = 50 * NS_PER_US  # for each token: no engine makes them in so short a time
_OVERLOADED = 503  # an HTTP status; others from 500 on may come after the work on a prompt
_UNREACHED = ("refused", "client")  # errors of a connection that was never there
CLAIMS = ("queue", "prefill", "decode", "work")


class Columns(NamedTuple):
    """All requests of a run that were sent, in the order of sending. Times are ns since the load began."""

    number: np.ndarray  # of the request in its workload
    engine: np.ndarray  # of several, each with an address of its own
    completed: np.ndarray  # with at least one chunk, or in one piece: these are explained
    in_one_piece: np.ndarray
    failed: np.ndarray
    refused: np.ndarray  # failed, and the server did not work on the prompt
    due: np.ndarray
    sent: np.ndarray
    connecting: np.ndarray
    first: (
        np.ndarray
    )  # the first chunk; where its arrival is known within bounds, the middle
    last: np.ndarray
    first_slack: np.ndarray  # half the distance of these bounds
    last_slack: np.ndarray
    end: np.ndarray
    prompt: np.ndarray  # tokens
    cached: np.ndarray
    output: np.ndarray
    later: np.ndarray  # output tokens after the first chunk
    queue: np.ndarray  # as the server reports it, or NONE
    prefill: np.ndarray
    decode: np.ndarray
    work: np.ndarray  # prefill and decode
    times: np.ndarray  # of all chunks
    starts: np.ndarray  # the first chunk of each request in `times`
    counts: np.ndarray  # chunks of each request

    @property
    def chosen(self) -> np.ndarray:
        """Return the rows of the requests that are explained."""
        return np.flatnonzero(self.completed)

    @property
    def answered(self) -> np.ndarray:
        """Return which requests have a first token, or an answer in one piece. Others failed before it."""
        answered: np.ndarray = (self.counts > 0) | (self.in_one_piece & self.completed)
        return answered

    @property
    def without_first(self) -> np.ndarray:
        """Return which answers don't show when their first token was there: those in one piece, and those whose tokens
        all came at one moment, as through a proxy that collects them."""
        slack = self.first_slack + self.last_slack
        took = self.last - self.first + slack
        at_once = (self.output > 1) & (took < _AT_ONCE_NS * (self.output - 1))
        without: np.ndarray = self.completed & (self.in_one_piece | at_once)
        return without

    @property
    def open_until(self) -> np.ndarray:
        """Return until when the server may have worked on a prompt: to the first token; on one without an answer as
        long as on any other, so that a request that hangs is not one that waits throughout a load."""
        answered = self.answered
        longest = int((self.first - self.sent)[answered].max(initial=0))
        lost = np.minimum(self.first, self.sent + longest)
        until: np.ndarray = np.where(answered, self.first, lost)
        until[self.refused] = self.sent[self.refused]
        return until

    def within_claims(self) -> "Columns":
        """Return the columns without what the server rules out, where its claims are believed: a token that a busy
        client saw late arrived after the server's work on it."""
        zero = np.zeros_like(self.sent)
        queue, prefill, decode, work = (
            np.where(claim == NONE, zero, claim)
            for claim in (self.queue, self.prefill, self.decode, self.work)
        )
        first, first_slack = _not_before(
            self.sent + queue + prefill, self.first, self.first_slack
        )
        last, last_slack = _not_before(
            self.sent + queue + np.maximum(prefill + decode, work),
            self.last,
            self.last_slack,
        )
        return self._replace(
            first=first, first_slack=first_slack, last=last, last_slack=last_slack
        )

    def only(self, rows: np.ndarray) -> "Columns":
        """Return these rows, with their chunks."""
        counts = self.counts[rows]
        starts = np.cumsum(counts) - counts
        place = np.arange(int(counts.sum())) + np.repeat(self.starts[rows] - starts, counts)
        columns = {
            name: column[rows] for name, column in self._asdict().items() if name != "times"
        }
        columns["starts"] = starts
        return Columns(**columns, times=self.times[place])


def _not_before(
    least: np.ndarray, middle: np.ndarray, slack: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle and half the width of bounds whose lower end is at least `least`, and at most the upper one."""
    high = middle + slack
    low = np.clip(least, middle - slack, high)
    narrower = (high - low) // 2
    return high - narrower, narrower


def columns(records: Iterable[Record]) -> Columns:
    rows: list[tuple[int, ...]] = []
    times = array("q")
    for r in sorted(records, key=lambda r: (r.sent_ns, r.index)):
        rows.append((*_row(r), len(times), len(r.chunk_ns)))
        times.extend(r.chunk_ns)
    width = len(Columns._fields) - 1
    table = np.array(rows, dtype=np.int64).reshape(-1, width).T
    values = dict(zip((f for f in Columns._fields if f != "times"), table, strict=True))
    for name in ("completed", "in_one_piece", "failed", "refused"):
        values[name] = values[name].astype(bool)
    return Columns(**values, times=np.array(times, dtype=np.int64))


def _is_refused(r: Record) -> bool:
    """Return whether the server sent an error instead of working on the prompt, or was not reached."""
    busy = 400 <= r.status < 500 or r.status == _OVERLOADED
    unreached = r.status == 0 and r.error in _UNREACHED
    return r.error is not None and not r.chunk_ns and (busy or unreached)


def _row(r: Record) -> tuple[int, ...]:
    whole = r.answered_ns is not None
    last = timing.last(r) or timing.Span(r.end_ns, r.end_ns)
    first = timing.first(r) or last
    tokens = r.output_tokens or len(r.chunk_ns)
    claims = (r.server_queue_ns, r.server_prefill_ns, r.server_decode_ns, r.server_work_ns)
    return (
        r.index,
        r.replica,
        r.error is None and (whole or len(r.chunk_ns) > 0),
        whole,
        r.error is not None,
        _is_refused(r),
        r.due_ns,
        r.sent_ns,
        r.connecting_ns,
        round(first.middle),
        round(last.middle),
        round(first.high - first.middle),
        round(last.high - last.middle),
        r.end_ns,
        counting.input_tokens(r),
        min(max(r.cached_tokens or 0, 0), counting.input_tokens(r)),
        tokens,
        max(tokens - timing.first_tokens(r)[0], 0),
        *(NONE if claim is None else claim for claim in claims),
    )
