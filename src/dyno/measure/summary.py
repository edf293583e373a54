"""Sums up records in one pass: eight bytes for each chunk stay in memory, and nothing else that grows."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from dyno.facts.record import CANCELLED, INTERRUPTED, ClientFacts, Record
from dyno.facts.spread import Distribution, Latency
from dyno.facts.summary import (
    CancelSummary,
    ClientSummary,
    Counts,
    MediaSummary,
    ProbeSummary,
    ReplaySummary,
    ReplicaSummary,
    Steady,
    Summary,
    Wait,
)
from dyno.facts.trial import TrialSpec
from dyno.measure import counting, timing
from dyno.measure.freeze import BUCKET_NS, Silences
from dyno.measure.sessions import ClassTally, SessionTally
from dyno.measure.statistics import (
    KNOWN_WITHIN_MS,
    SpanColumn,
    bounded_ms,
    distribution_ms,
    settled,
)
from dyno.measure.streams import Streams
from dyno.measure.sums import Summed
from dyno.measure.timing import Span
from dyno.units import NS_PER_MS, NS_PER_S, ns, seconds

NAMES_MAX = 50
# from the moment at which a request was due
_FROM_DUE = {"response_ttft": "ttft", "response_e2el": "e2el"}
TPOTS_DIFFER = 0.01  # from this share on, dyno's own TPOT is shown beside vLLM's
# a shorter load has no CPU share: the kernel counts in hundredths of a second
CPU_FROM_S = 0.1
Chosen = np.ndarray | slice  # requests, in the order in which they were added
ALL = slice(None)
_A_SECOND = NS_PER_S // BUCKET_NS  # in buckets


class Tally(Summed):
    """Collects records one by one; `summary()` closes it."""

    SUMMED = (
        "_sessions",
        "_processes",
        "_sender",
        "_failures",
        "_tokens_by",
        "_n",
        "_columns",
        "_queue",
        "_streams",
        "_sent",
        "_due",
        "_response_due",
        "_response_index",
        "_first",
        "_connecting",
        "_end",
        "_completed",
        "_silences",
        "_replicas",
    )

    def __init__(self, trial: TrialSpec, processes: int = 1) -> None:
        """`processes` is how many the client has; a request's number says which one sent it."""
        self._trial = trial
        self._sessions = SessionTally()
        self._classes: dict[str, ClassTally] = {}
        self._processes: list[Counter[str]] = (
            [Counter() for _ in range(processes)] if processes > 1 else []
        )
        self._sender = array("q")  # the process of each
        self._failures: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._finish: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._tokens_by: Counter[str] = Counter()
        self._n: Counter[str] = Counter()  # plain counts, by name
        self._columns = {stem: SpanColumn() for stem in (*timing.LATENCIES, *_FROM_DUE)}
        self._queue = array("d")
        self._streams = Streams()
        self._sent = array("q")
        self._due = array("q")
        self._response_due = array("q")  # beside the response latencies
        self._response_index = array("q")  # likewise: the request's number
        self._first = array("b")  # likewise: the request begins its session
        self._connecting = array("q")
        self._end = array("q")
        self._completed = array("b")  # 1 or 0, beside sent, due and end
        self._silences = Silences()
        several = len(trial.target.urls) > 1
        self._replicas: list[Counter[str]] = (
            [Counter() for _ in trial.target.urls] if several else []
        )

    def packed(self) -> dict[str, Any]:
        return {
            **super().packed(),
            "examples": self._examples,
            "finish": dict(self._finish),
            "models": dict(self._models),
            "classes": {name: c.packed() for name, c in self._classes.items()},
        }

    def add_packed(self, sums: dict[str, Any]) -> None:
        super().add_packed(sums)
        self._examples = {**sums["examples"], **self._examples}
        for own, name in ((self._finish, "finish"), (self._models, "models")):
            for text, count in sums[name].items():
                _count_name(own, text, count)
        for name, each in sums["classes"].items():
            self._class(name).add_packed(each)

    @property
    def count(self) -> int:
        """How many records it has."""
        return len(self._end)

    @property
    def last_ns(self) -> int:
        """When the last of their exchanges ended."""
        return max(self._end, default=0)

    @property
    def has_sessions(self) -> bool:
        return len(self._sessions) > 0

    def add(self, r: Record) -> None:
        self._sent.append(r.sent_ns)
        self._due.append(r.due_ns)
        self._connecting.append(r.connecting_ns)
        self._end.append(r.end_ns)
        self._completed.append(r.error is None)
        n = self._n
        self._add_to_client(r, n)
        if self._processes:
            sender = (r.index if r.session is None else r.session) % len(self._processes)
            self._sender.append(sender)
            self._add_to_client(r, self._processes[sender])
        n["resent"] += r.resent
        if self._replicas:
            self._add_to_replica(r, self._replicas[r.replica])
        if r.answered_ns is None:
            self._silences.add(r)
        if r.session is not None:
            self._sessions.add(r)
        if r.group:
            self._class(r.group).add(r)
        if r.error is None:
            self._add_completed(r)
        else:
            self._add_failed(r)

    def _add_completed(self, r: Record) -> None:
        n = self._n
        n["empty_chunks"] += r.empty_chunks
        n["silent"] += len(r.silent) + r.leading_chunks
        n["leading"] += r.leading_chunks
        n["reasoning"] += r.reasoning
        n["reasoning_tokens"] += r.reasoning_tokens or 0
        n["unanswered"] += r.reasoning and r.answer_from is None and r.answered_ns is None
        odd = counting.prompt_is_odd(r)
        n["odd_prompts"] += odd
        n["input"] += counting.input_tokens(r)
        n["planned_input"] += r.prompt_tokens_planned
        self._add_media(r)
        n["wanted"] += r.output_tokens_wanted
        n["output"] += r.output_tokens or 0
        if r.tokens_other is not None:
            self._add_counts(r.output_tokens or 0, r.tokens_other, r.tokens_by == "usage")
        n["end_at_once"] += timing.end_at_once(r)
        n["whole"] += r.answered_ns is not None
        self._add_source(r)
        _count_name(self._finish, r.finish_reason or "none")
        if r.model:
            _count_name(self._models, r.model)
        if r.cached_tokens is not None and not odd:
            n["cached"] += r.cached_tokens
            n["cached_known"] += 1
        if r.server_queue_ns is not None:
            self._add_server_queue(r.server_queue_ns)
        self._add_times(r)

    def _add_source(self, r: Record) -> None:
        """Count what an answer has: tokens, by whoever counted them, or vectors and scores."""
        if r.results is None:
            self._tokens_by[r.tokens_by or "chunks"] += 1
        else:
            self._n["results"] += r.results

    def _add_server_queue(self, queue_ns: int) -> None:
        self._n["server_queued"] += 1
        self._n["server_queue_ns"] += queue_ns

    def _add_media(self, r: Record) -> None:
        if not r.media:
            return
        n = self._n
        n["media"] += r.media
        n["audio_ns"] += ns(r.audio_s)
        n["with_media"] += 1
        n["media_tokens"] += r.media_tokens or 0
        n["media_unknown"] += r.media_tokens is None
        if r.prompt_tokens is not None and not counting.prompt_is_odd(r):
            n["media_counted"] += 1
            n["media_prompts"] += r.prompt_tokens
            n["media_texts"] += r.prompt_tokens_planned - (r.media_tokens or 0)

    def _media(self, over: float) -> MediaSummary | None:
        n = self._n
        if not n["media"]:
            return None
        all_counted = n["media_counted"] == n["with_media"]
        audio_s = seconds(n["audio_ns"])
        return MediaSummary(
            items=n["media"],
            requests=n["with_media"],
            item_throughput=n["media"] / over,
            text_tokens=n["media_texts"] if all_counted else None,
            prompt_tokens=n["media_prompts"] if all_counted else None,
            ruled_tokens=None if n["media_unknown"] else n["media_tokens"],
            audio_s=audio_s,
            rtfx=audio_s / over if audio_s else None,
        )

    def _add_failed(self, r: Record) -> None:
        received = r.output_tokens if r.output_tokens is not None else len(r.chunk_ns)
        self._n["failed_output"] += received
        if r.error == CANCELLED:
            self._n["cancelled"] += 1
            self._n["cancelled_output"] += received
            self._n["cancelled_missing"] += max(r.output_tokens_wanted - received, 0)
            return
        assert r.error is not None
        self._failures[r.error] += 1
        self._examples.setdefault(r.error, r.error_detail)

    def _class(self, name: str) -> ClassTally:
        if name not in self._classes:
            spec = self._trial.workload.classes.get(name)
            goodput_ms = (
                spec.goodput_ms if spec and spec.goodput_ms else self._trial.goodput_ms
            )
            self._classes[name] = ClassTally(name, goodput_ms)
        return self._classes[name]

    def _add_to_client(self, r: Record, n: Counter[str]) -> None:
        n["late_sum"] += r.late_ns_sum
        n["late_max"] = max(n["late_max"], r.late_ns_max)
        n["reads"] += r.reads
        n["unstamped"] += r.unstamped
        if r.error is None:
            n["completed"] += 1
            n["chunks"] += len(r.chunk_ns)
            # The last one often shares a read with the end of the stream, however prompt the client is.
            n["unseen"] += len(r.unseen) - (r.unseen[-1:] == [len(r.chunk_ns) - 1])
            n["unseen_first"] += r.unseen[:1] == [0]

    def _add_counts(self, used: int, other: int, by_server: bool) -> None:
        name, claimed, counted = (
            ("miscounted", used, other) if by_server else ("impossible", other, used)
        )
        if not by_server or counting.differ(used, other):
            self._n.update(
                {name: 1, f"{name}_claimed": claimed, f"{name}_counted": counted}
            )

    def _counts(self, name: str) -> Counts | None:
        n = self._n
        return (
            Counts(n[name], n[f"{name}_claimed"], n[f"{name}_counted"]) if n[name] else None
        )

    def _add_to_replica(self, r: Record, n: Counter[str]) -> None:
        n["sent"] += 1
        n["cancelled"] += r.error == CANCELLED
        if r.error is not None:
            return
        n["completed"] += 1
        n["output"] += r.output_tokens or 0
        for name, value in (("ttft", timing.ttft_ns(r)), ("tpot", timing.own_tpot_ns(r))):
            if value is not None:
                n[name] += 1
                n[f"{name}_ns"] += round(value.middle)

    def _add_times(self, r: Record) -> None:
        queue = timing.queue_ns(r)
        self._queue.append(queue)
        if not r.chunk_ns and r.answered_ns is None:
            return
        spans = {stem: latency(r) for stem, latency in timing.LATENCIES.items()}
        for stem, span in spans.items():
            if span is not None:
                self._columns[stem].add(span)
        for name, stem in _FROM_DUE.items():
            span = spans[stem]
            if span is not None:
                self._columns[name].add(span.later_by(queue))
        self._response_due.append(r.due_ns)
        self._response_index.append(r.index)
        self._first.append(r.turn == 0)
        self._n["at_once"] += (
            len(r.chunk_ns) > 1 and r.chunk_ns[0] == r.chunk_ns[-1] and not r.unseen
        )
        if self._trial.goodput_ms:
            self._add_goodput(r)
        if r.chunk_ns:
            self._streams.add(r, self._sharing(r))

    def _sharing(self, r: Record) -> list[int] | float:
        """Return the tokens of each gap: those of the chunk that ends it, or their average."""
        if len(r.chunk_ns) < 2:
            return 1.0
        if r.chunk_tokens:
            each = [max(tokens, 1) for tokens in r.chunk_tokens[1:]]
            self._n.update(after_least=sum(each), after_most=sum(each))
            return each
        tokens = r.output_tokens or len(r.chunk_ns)
        gaps = len(r.chunk_ns) - 1
        most, least = (max(tokens - first, gaps) for first in timing.first_tokens(r))
        self._n.update(after_least=least, after_most=most)
        if least == most:
            return most / gaps
        return max(tokens / len(r.chunk_ns), 1.0)

    def _itl_per_token(self, percentiles: Sequence[float]) -> Latency:
        """Return the distribution. Where it isn't known how many tokens the first chunks have, the mean has bounds."""
        d = self._streams.gaps_per_token.latency(percentiles)
        n = self._n
        if n["after_least"] == n["after_most"]:
            return d
        total = self._streams.gaps_per_token.total
        low = total.low / n["after_most"] / NS_PER_MS
        high = total.high / n["after_least"] / NS_PER_MS
        mean = settled(low, high, KNOWN_WITHIN_MS)
        bounds = d.bounds if mean is not None else {**d.bounds, "mean": (low, high)}
        return msgspec.structs.replace(d, mean=mean, bounds=bounds)

    def _add_goodput(self, r: Record) -> None:
        good, perhaps = timing.within(timing.judged(r), self._trial.goodput_ms)
        self._n["good"] += good
        self._n["perhaps_good"] += perhaps

    def summary(self, client: ClientFacts, sessions: Sequence[int] = ()) -> Summary:
        """Sum up the load. `sessions`: how many requests each has, where requests wait for one another."""
        n = self._n
        percentiles = self._trial.percentiles
        duration_s = seconds(client.duration_ns)
        over = duration_s or 1.0

        latencies = self._latencies(percentiles)
        bounds: dict[str, tuple[float, float]] = {}

        def known(name: str, low: float, high: float) -> float | None:
            if (value := settled(low, high)) is None:
                bounds[name] = low, high
            return value

        goodput = (
            known("goodput", n["good"] / over, n["perhaps_good"] / over)
            if self._trial.goodput_ms
            else None
        )
        results, result_throughput = self._results(over)
        peak = steady = None
        if not n["whole"]:  # else it isn't known when tokens came
            peak = known("peak_output_tokens_per_s", *self._peak_tokens_per_s())
        if peak is not None and duration_s < 1:
            peak = max(peak, n["output"] / over)
        if window := self._steady_window():
            low, high = (
                tokens / seconds(window[1] - window[0])
                for tokens in self._tokens_in(*window)
            )
            steady = self._steady(*window, known("steady_output_throughput", low, high))
        return Summary(
            duration_s=duration_s,
            planned=client.planned,
            sent=client.sent,
            completed=n["completed"],
            failed=self._failures.total(),
            failures=_most_first(self._failures),
            failure_examples=self._examples,
            outcome=client.outcome,
            end_at_once=n["end_at_once"],
            resent=n["resent"],
            total_input_tokens=n["input"],
            total_output_tokens=n["output"],
            wanted_output_tokens=n["wanted"],
            planned_input_tokens=n["planned_input"],
            cached_input_tokens=n["cached"] if n["cached_known"] else None,
            tokens_by=_most_first(self._tokens_by),
            chunks=n["chunks"],
            empty_chunks=n["empty_chunks"],
            reasoning=n["reasoning"],
            finish_reasons=_most_first(self._finish),
            models_answered=_most_first(self._models),
            request_throughput=n["completed"] / over,
            output_throughput=n["output"] / over,
            total_token_throughput=(n["input"] + n["output"]) / over,
            goodput=goodput,
            peak_output_tokens_per_s=peak,
            latencies=latencies,
            silent_chunks=n["silent"],
            leading_chunks=n["leading"],
            steady=steady,
            wait=self._wait(),
            at_once=n["at_once"],
            whole=n["whole"],
            media=self._media(over),
            results=results,
            result_throughput=result_throughput,
            client=self._client(client),
            replicas=[self._replica(i, n) for i, n in enumerate(self._replicas)],
            bounds=bounds,
            reasoning_tokens=n["reasoning_tokens"]
            if n["reasoning"] or n["reasoning_tokens"]
            else None,
            unanswered=n["unanswered"],
            impossible=self._counts("impossible"),
            miscounted=self._counts("miscounted"),
            odd_prompts=n["odd_prompts"],
            freezes=self._silences.freezes(latencies["itl"], self._streams.tokens),
            replay=self._replay() if self._trial.load.arrivals else None,
            cancelled=n["cancelled"],
            skipped=client.skipped,
            cancelling=self._cancelling(),
            sessions=self._sessions.summary(sessions, over, percentiles)
            if sessions
            else None,
            classes=[
                c.summary(over, percentiles) for _, c in sorted(self._classes.items())
            ],
            server_queue_ms=self._server_queue_ms(),
        )

    def _server_queue_ms(self) -> float | None:
        n = self._n
        if not n["server_queued"] or n["server_queued"] < n["completed"]:
            return None
        return n["server_queue_ns"] / n["server_queued"] / NS_PER_MS

    def _latencies(self, percentiles: Sequence[float]) -> dict[str, Latency]:
        """Return them by stem, without those that say nothing of their own."""
        n = self._n
        latencies = {
            stem: column.latency(percentiles) for stem, column in self._columns.items()
        }
        if not n["reasoning"]:
            del latencies["ttfo"]
        if not _differ(latencies["own_tpot"], latencies["tpot"]):
            del latencies["own_tpot"]
        latencies["itl"] = self._streams.gaps.latency(percentiles)
        if n["output"] > 1.05 * (n["chunks"] + n["leading"]) > 0:
            latencies["itl_per_token"] = self._itl_per_token(percentiles)
        if text_gaps := self._streams.text_gaps:
            latencies["itl_text"] = text_gaps.latency(percentiles)
        latencies["queue"] = bounded_ms(self._queue, self._queue, percentiles)
        return latencies

    def _cancelling(self) -> CancelSummary | None:
        n = self._n
        if not n["cancelled"]:
            return None
        return CancelSummary(
            n["cancelled_output"], n["cancelled_missing"], n["output"] + n["failed_output"]
        )

    def _replica(self, index: int, n: Counter[str]) -> ReplicaSummary:
        return ReplicaSummary(
            index=index,
            sent=n["sent"],
            completed=n["completed"],
            failed=n["sent"] - n["completed"] - n["cancelled"],
            output_tokens=n["output"],
            ttft_mean_ms=n["ttft_ns"] / n["ttft"] / NS_PER_MS if n["ttft"] else None,
            tpot_mean_ms=n["tpot_ns"] / n["tpot"] / NS_PER_MS if n["tpot"] else None,
        )

    def _arrived(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens that had arrived before each bucket: at least, and those that may have besides. Both end
        with a whole second."""
        columns = self._streams.tokens, self._streams.earlier
        size = max(map(len, columns))
        size += -size % _A_SECOND
        tokens, earlier = (np.pad(a, (1, size - len(a))) for a in columns)
        return tokens.cumsum(), earlier.cumsum().clip(min=0)

    def _peak_tokens_per_s(self) -> tuple[float, float]:
        least, more = (a[::_A_SECOND] for a in self._arrived())
        low = np.diff(least) - more[:-1]
        high = np.diff(least) + more[1:]
        return float(low.max(initial=0.0)), float(high.max(initial=0.0))

    def _results(self, over: float) -> tuple[int | None, float | None]:
        """Return how many vectors or scores came, and how many in a second; None: answers have text."""
        count = self._n["results"]
        return (count, count / over) if count else (None, None)

    def _steady_window(self) -> tuple[int, int] | None:
        """Return the window, where it is known how many tokens came in it."""
        return None if self._n["whole"] or self._trial.replays else self._window()

    def _window(self) -> tuple[int, int] | None:
        """Return start and end of the steady window."""
        completed = np.array(self._completed, dtype=bool)
        if not completed.any():
            return None
        # A request that fails at once doesn't show that the load is on.
        start = int(np.array(self._end)[completed].min())
        end = max(self._sent)
        return (start, end) if end - start >= 10 * BUCKET_NS else None

    def _tokens_in(self, start: int, end: int) -> tuple[float, float]:
        """Return the tokens of a window: at least and at most."""
        least, more = self._arrived()
        first = start // BUCKET_NS
        last = min(end // BUCKET_NS, len(least) - 1)
        tokens = float(least[last] - least[first])
        return max(tokens - float(more[first]), 0.0), tokens + float(more[last])

    def _steady(self, start: int, end: int, tokens_per_s: float | None) -> Steady:
        return Steady(
            start_s=seconds(start),
            end_s=seconds(end),
            # By tokens: where streams run in step, counting ends would take in one wave too many or too few, and
            # where a queue grows, counting shares of a life would credit waiting as service.
            request_throughput=tokens_per_s
            and tokens_per_s / (self._n["output"] / self._n["completed"] or 1),
            output_throughput=tokens_per_s,
            streams_mean=self._streams_mean(start, end),
        )

    def _wait(self) -> Wait | None:
        # later turns have longer prompts, and no rate of their own
        first = np.array(self._first, dtype=bool)
        took = self._columns["response_e2el"].middles()[first] / NS_PER_MS
        due = np.array(self._response_due)[first]
        index = np.array(self._response_index)[first]
        quarter = len(took) // 4
        if quarter < 10:
            return None
        order = np.lexsort((index, due))
        early = took[order[:quarter]]
        last = took[order[-quarter:]]
        offered = due if not first.all() else np.array(self._due)
        span_s = seconds(int(offered.max() - offered.min())) or 1.0
        return Wait(
            offered_rps=(len(offered) - 1) / span_s,
            span_s=span_s,
            first_median_ms=float(np.median(early)),
            first_p75_ms=float(np.percentile(early, 75)),
            last_p25_ms=float(np.percentile(last, 25)),
            last_median_ms=float(np.median(last)),
        )

    def _replay(self) -> ReplaySummary | None:
        due = np.array(self._due, dtype=np.float64)
        sent = np.array(self._sent, dtype=np.float64)
        if not len(due):
            return None
        late_ms = np.maximum(sent - due, 0) / NS_PER_MS
        last = len(due) - 1
        return ReplaySummary(
            recorded_rps=last / (seconds(int(np.ptp(due))) or 1.0),
            sent_rps=last / (seconds(int(np.ptp(sent))) or 1.0),
            late_mean_ms=float(late_ms.mean()),
            late_p99_ms=float(np.percentile(late_ms, 99)),
            late_max_ms=float(late_ms.max()),
        )

    def _streams_mean(self, start: int, end: int, chosen: Chosen = ALL) -> float:
        if end <= start:
            return 0.0
        return float(self._open_ns(start, end)[chosen].sum()) / (end - start)

    def _open_ns(self, start: int, end: int) -> np.ndarray:
        """Return how long each request was in flight within the window."""
        overlap = np.minimum(np.array(self._end), end) - np.maximum(
            np.array(self._sent), start
        )
        open_ns: np.ndarray = overlap.clip(min=0)
        return open_ns

    def _streams_peak(self, chosen: Chosen) -> int:
        # At the same instant an end comes before a start: a slot is handed on, not doubled.
        sent = np.array(self._sent)[chosen]
        end = np.array(self._end)[chosen]
        marks = sorted([(t, 1) for t in sent] + [(t, -1) for t in end])
        return int(max(np.cumsum([step for _, step in marks]), default=0)) if marks else 0

    def _client(self, client: ClientFacts) -> ClientSummary:
        whole = self._kept_up(client, self._n, ALL)
        # without facts of its processes, dyno was killed
        if not self._processes or not client.processes:
            return whole
        sender = np.array(self._sender)
        every = enumerate(zip(client.processes, self._processes, strict=True))
        each = [self._kept_up(facts, n, sender == k) for k, (facts, n) in every]
        return msgspec.structs.replace(
            whole,
            processes=each,
            cpu_share=max(
                (c.cpu_share for c in each if c.cpu_share is not None), default=None
            ),
            waited_share=max(
                (c.waited_share for c in each if c.waited_share is not None), default=None
            ),
            loop_late_p99_ms=max(c.loop_late_p99_ms for c in each),
            # A slot is free for the requests of its own process.
            send_late=self._late([self._late_ns(sender == k) for k in range(len(each))]),
        )

    def _kept_up(
        self, client: ClientFacts, n: Counter[str], chosen: Chosen
    ) -> ClientSummary:
        """Return how well a client kept up with the requests that it sent."""
        ticks = client.ticks_late_ns or [0]
        return ClientSummary(
            kernel_stamps=client.kernel_stamps,
            cpu_share=client.cpu_s / duration_s
            if (duration_s := seconds(client.duration_ns)) >= CPU_FROM_S
            else None,
            send_late=self._late([self._late_ns(chosen)]),
            read_late_mean_ms=n["late_sum"] / n["reads"] / NS_PER_MS if n["reads"] else 0.0,
            read_late_max_ms=n["late_max"] / NS_PER_MS,
            unseen_share=n["unseen"] / n["chunks"] if n["chunks"] else 0.0,
            loop_late_p99_ms=float(np.percentile(ticks, 99)) / NS_PER_MS,
            streams_mean=self._streams_mean(0, client.duration_ns, chosen),
            streams_peak=self._streams_peak(chosen),
            others_cpu=client.others_cpu,
            priority=client.priority,
            unseen_first=n["unseen_first"],
            unstamped=n["unstamped"],
            waited_share=None
            if client.waited_s is None
            else client.waited_s / (seconds(client.duration_ns) or 1.0),
            lost=client.outcome == "lost",
            node=client.node,
            clock=client.clock,
        )

    def _late(self, late_ns: list[np.ndarray]) -> Distribution:
        # a median hides it
        return distribution_ms(
            np.concatenate(late_ns), sorted({*self._trial.percentiles, 99.0})
        )

    def _late_ns(self, chosen: Chosen) -> np.ndarray:
        """Return how late the client sent each request, by its own fault."""
        sent, due, connecting = (
            np.array(column)[chosen] for column in (self._sent, self._due, self._connecting)
        )
        late: np.ndarray = np.maximum(sent - due - connecting, 0)
        # With a rate and a cap, a late sending may be the cap's doing: then lateness is counted from the moment
        # at which a slot was free, which is when an earlier request ended.
        if (
            self._trial.load.max_concurrency is not None
            and not self._trial.load.closed_loop
            and len(late)
        ):
            ends = np.sort(np.array(self._end)[chosen])
            before = np.searchsorted(ends, sent, side="right") - 1
            since_free = np.where(before >= 0, sent - ends[np.maximum(before, 0)], ns(3600))
            late = np.minimum(late, since_free)
        return late


def summarize_probes(records: Iterable[Record]) -> ProbeSummary:
    """Return the figures of the probes. Those that the end of the load has cut off are in none."""
    times = SpanColumn()
    failed = 0
    for r in records:
        if r.error is None:
            times.add(timing.e2el_ns(r) or Span(r.end_ns - r.sent_ns, r.end_ns - r.sent_ns))
        elif r.error != INTERRUPTED:
            failed += 1
    return ProbeSummary(len(times.low), failed, times.latency([99.0, 100.0]))


def _count_name(names: Counter[str], name: str, count: int = 1) -> None:
    """Count a name, up to a limit: a server may give each answer another one."""
    names[name if name in names or len(names) < NAMES_MAX else "others"] += count


def _most_first(counts: Counter[str]) -> dict[str, int]:
    """Return the counts in an order that doesn't depend on the order of counting."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def _differ(own: Latency, vllms: Latency) -> bool:
    """Return whether dyno's own TPOT differs from vLLM's: by more than 1 %, over other requests, or unknown."""
    if own.count != vllms.count or own.bounds.keys() != vllms.bounds.keys():
        return True
    pairs = [(own.mean, vllms.mean), (own.median, vllms.median)]
    pairs += [(value, vllms.percentiles[p]) for p, value in own.percentiles.items()]
    for figure, ends in own.bounds.items():
        pairs += zip(ends, vllms.bounds[figure], strict=True)
    return any(
        a is not None and b is not None and abs(a - b) > TPOTS_DIFFER * b for a, b in pairs
    )
