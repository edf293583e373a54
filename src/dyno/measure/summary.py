"""From records to a summary, in one pass: eight bytes for each chunk stay in memory, and nothing else that grows."""

from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dyno.facts.client import ClientFacts
from dyno.facts.record import Record
from dyno.facts.spread import Distribution
from dyno.facts.summary import ClientSummary, ReplicaSummary, Steady, Summary, Wait
from dyno.facts.trial import TrialSpec
from dyno.measure import timing
from dyno.measure.statistics import distribution_ms
from dyno.units import NS_PER_MS, NS_PER_S, ns, seconds

_BUCKET_NS = 10 * NS_PER_MS


class Tally:
    """Takes records one by one; `summary()` closes it."""

    def __init__(self, trial: TrialSpec) -> None:
        self._trial = trial
        self._failures: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._finish: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._tokens_by: Counter[str] = Counter()
        self._n: Counter[str] = Counter()  # plain counts, by name
        self._cached: int | None = None
        self._columns: dict[str, array[float]] = {
            name: array("d") for name in ("ttft", "tpot", "e2el", "response_ttft", "response_e2el", "queue")
        }
        self._gaps: list[np.ndarray] = []  # between chunks, ns
        self._gaps_per_token: list[np.ndarray] = []
        self._sent = array("q")
        self._due = array("q")
        self._response_due = array("q")  # beside the response latencies
        self._connecting = array("q")
        self._end = array("q")
        self._completed = array("b")  # 1 or 0, beside sent, due and end
        self._tokens = np.zeros(1024)  # arrived in each bucket of 10 ms
        several = len(trial.target.urls) > 1
        self._replicas: list[Counter[str]] = [Counter() for _ in trial.target.urls] if several else []

    def add(self, r: Record) -> None:
        self._sent.append(r.sent_ns)
        self._due.append(r.due_ns)
        self._connecting.append(r.connecting_ns)
        self._end.append(r.end_ns)
        self._completed.append(r.error is None)
        n = self._n
        n["late_sum"] += r.late_ns_sum
        n["late_max"] = max(n["late_max"], r.late_ns_max)
        n["reads"] += r.reads
        n["resent"] += r.resent
        if self._replicas:
            self._add_to_replica(r, self._replicas[r.replica])
        if r.error is not None:
            self._failures[r.error] += 1
            self._examples.setdefault(r.error, r.error_detail)
            return
        n["completed"] += 1
        n["unseen"] += len(r.unseen)
        n["empty_chunks"] += r.empty_chunks
        n["reasoning"] += r.reasoning
        n["input"] += r.prompt_tokens if r.prompt_tokens is not None else r.prompt_tokens_planned
        n["planned_input"] += r.prompt_tokens_planned
        n["wanted"] += r.output_tokens_wanted
        n["output"] += r.output_tokens or 0
        n["end_at_once"] += timing.end_at_once(r)
        self._tokens_by[r.tokens_by or "chunks"] += 1
        self._finish[r.finish_reason or "none"] += 1
        if r.model:
            self._models[r.model] += 1
        if r.cached_tokens is not None:
            self._cached = (self._cached or 0) + r.cached_tokens
        self._add_times(r)

    def _add_to_replica(self, r: Record, n: Counter[str]) -> None:
        n["sent"] += 1
        if r.error is not None:
            return
        n["completed"] += 1
        n["output"] += r.output_tokens or 0
        for name, value in (("ttft", timing.ttft_ns(r)), ("tpot", timing.tpot_ns(r))):
            if value is not None:
                n[name] += 1
                n[f"{name}_ns"] += round(value)

    def _add_times(self, r: Record) -> None:
        ttft, e2el, tpot = timing.ttft_ns(r), timing.e2el_ns(r), timing.tpot_ns(r)
        columns = self._columns
        columns["queue"].append(timing.queue_ns(r))
        if e2el is None:
            return
        if ttft is not None:
            columns["ttft"].append(ttft)
            columns["response_ttft"].append(ttft + timing.queue_ns(r))
        columns["e2el"].append(e2el)
        columns["response_e2el"].append(e2el + timing.queue_ns(r))
        self._response_due.append(r.due_ns)
        self._n["at_once"] += len(r.chunk_ns) > 1 and r.chunk_ns[0] == r.chunk_ns[-1]
        if tpot is not None:
            columns["tpot"].append(tpot)
        self._n["good"] += self._meets_goodput(ttft if ttft is not None else r.chunk_ns[0] - r.sent_ns, tpot, e2el)
        times = np.array(r.chunk_ns, dtype=np.int64)
        tokens = np.array(r.chunk_tokens) if r.chunk_tokens else (r.output_tokens or len(times)) / len(times)
        self._n["chunks"] += len(times)
        self._add_gaps(times, tokens, r.unseen)
        self._add_arrivals(times, tokens)

    def _add_gaps(self, times: np.ndarray, tokens: np.ndarray | float, unseen: list[int]) -> None:
        """`tokens`: in each chunk, or on average."""
        gaps = np.diff(times).astype(np.float32)
        sharing = np.maximum(tokens[1:] if isinstance(tokens, np.ndarray) else tokens, 1)  # the tokens of a gap
        if unseen:  # a gap with an unknown end is no sample
            known = np.ones(len(times), dtype=bool)
            known[unseen] = False
            known = known[1:] & known[:-1]
            gaps, sharing = gaps[known], sharing[known] if isinstance(tokens, np.ndarray) else sharing
        self._gaps.append(gaps)
        if isinstance(tokens, np.ndarray):
            # One sample for each token: else a chunk of one would weigh as much as a chunk of four.
            self._gaps_per_token.append(np.repeat(gaps / sharing, sharing.astype(int)).astype(np.float32))
        else:
            self._gaps_per_token.append(
                gaps if sharing == 1 else np.repeat(gaps / np.float32(sharing), round(float(sharing)))
            )

    def _add_arrivals(self, times: np.ndarray, tokens: np.ndarray | float) -> None:
        buckets = times // _BUCKET_NS
        first, last = int(buckets[0]), int(buckets[-1])
        if last >= len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros(max(last + 1, len(self._tokens)))])
        weights = tokens if isinstance(tokens, np.ndarray) else None
        arrived = np.bincount(buckets - first, weights)
        self._tokens[first : last + 1] += arrived if weights is not None else arrived * tokens

    def _meets_goodput(self, ttft: int, tpot: float | None, e2el: int) -> bool:
        actual = {"ttft": ttft, "tpot": tpot or 0.0, "e2el": e2el}
        return all(actual[name] <= limit * NS_PER_MS for name, limit in self._trial.goodput_ms.items())

    def summary(self, client: ClientFacts) -> Summary:
        n, percentiles = self._n, self._trial.percentiles
        duration_s = seconds(client.duration_ns)
        over = duration_s or 1.0

        def spread(values: Sequence[float] | np.ndarray) -> Distribution:
            return distribution_ms(values, percentiles)

        gaps = np.concatenate(self._gaps) if self._gaps else np.array([])
        several = n["output"] > 1.05 * n["chunks"] > 0
        return Summary(
            duration_s=duration_s,
            planned=client.planned,
            sent=client.sent,
            completed=n["completed"],
            failed=self._failures.total(),
            failures=dict(self._failures.most_common()),
            failure_examples=self._examples,
            outcome=client.outcome,
            end_at_once=n["end_at_once"],
            resent=n["resent"],
            total_input_tokens=n["input"],
            total_output_tokens=n["output"],
            wanted_output_tokens=n["wanted"],
            planned_input_tokens=n["planned_input"],
            cached_input_tokens=self._cached,
            tokens_by=dict(self._tokens_by),
            chunks=n["chunks"],
            empty_chunks=n["empty_chunks"],
            reasoning=n["reasoning"],
            finish_reasons=dict(self._finish),
            models_answered=dict(self._models),
            request_throughput=n["completed"] / over,
            output_throughput=n["output"] / over,
            total_token_throughput=(n["input"] + n["output"]) / over,
            goodput=n["good"] / over if self._trial.goodput_ms else None,
            peak_output_tokens_per_s=max(self._peak_tokens_per_s(), n["output"] / over if duration_s < 1 else 0.0),
            ttft=spread(self._columns["ttft"]),
            tpot=spread(self._columns["tpot"]),
            itl=spread(gaps),
            itl_per_token=spread(np.concatenate(self._gaps_per_token)) if several else None,
            e2el=spread(self._columns["e2el"]),
            response_ttft=spread(self._columns["response_ttft"]),
            response_e2el=spread(self._columns["response_e2el"]),
            queue=spread(self._columns["queue"]),
            steady=self._steady(),
            wait=self._wait(),
            at_once=n["at_once"],
            client=self._client(client),
            replicas=[self._replica(i, n) for i, n in enumerate(self._replicas)],
        )

    def _replica(self, index: int, n: Counter[str]) -> ReplicaSummary:
        return ReplicaSummary(
            index=index,
            sent=n["sent"],
            completed=n["completed"],
            failed=n["sent"] - n["completed"],
            output_tokens=n["output"],
            ttft_mean_ms=n["ttft_ns"] / n["ttft"] / NS_PER_MS if n["ttft"] else None,
            tpot_mean_ms=n["tpot_ns"] / n["tpot"] / NS_PER_MS if n["tpot"] else None,
        )

    def _peak_tokens_per_s(self) -> float:
        per_second = NS_PER_S // _BUCKET_NS
        whole = self._tokens[: -(-len(self._tokens) // per_second) * per_second]
        padded = np.pad(whole, (0, -len(whole) % per_second))
        return float(padded.reshape(-1, per_second).sum(axis=1).max(initial=0.0))

    def _steady(self) -> Steady | None:
        completed = np.array(self._completed, dtype=bool)
        if not completed.any():
            return None
        # A request that fails at once doesn't show that the load is on.
        start, end = int(np.array(self._end)[completed].min()), max(self._sent)
        if end - start < 10 * _BUCKET_NS:
            return None
        window_s = seconds(end - start)
        tokens = self._tokens[start // _BUCKET_NS : end // _BUCKET_NS].sum()
        return Steady(
            start_s=seconds(start),
            end_s=seconds(end),
            # By tokens: where streams run in step, counting ends would take in one wave too many or too few, and
            # where a queue grows, counting shares of a life would credit waiting as service.
            request_throughput=float(tokens) / window_s / (self._n["output"] / self._n["completed"] or 1),
            output_throughput=float(tokens) / window_s,
            streams_mean=self._streams_mean(start, end),
        )

    def _wait(self) -> Wait | None:
        took = np.array(self._columns["response_e2el"]) / NS_PER_MS
        due = np.array(self._response_due)
        quarter = len(took) // 4
        if quarter < 10:
            return None
        order = np.argsort(due, kind="stable")
        first, last = took[order[:quarter]], took[order[-quarter:]]
        span_s = seconds(int(max(self._due) - min(self._due))) or 1.0
        return Wait(
            offered_rps=(len(self._due) - 1) / span_s,
            span_s=span_s,
            first_median_ms=float(np.median(first)),
            first_p75_ms=float(np.percentile(first, 75)),
            last_p25_ms=float(np.percentile(last, 25)),
            last_median_ms=float(np.median(last)),
        )

    def _streams_mean(self, start: int, end: int) -> float:
        if end <= start:
            return 0.0
        return float(self._open_ns(start, end).sum()) / (end - start)

    def _open_ns(self, start: int, end: int) -> np.ndarray:
        """For how much of the window each request was in flight."""
        overlap = np.minimum(np.array(self._end), end) - np.maximum(np.array(self._sent), start)
        open_ns: np.ndarray = overlap.clip(min=0)
        return open_ns

    def _streams_peak(self) -> int:
        # At the same instant an end comes before a start: a slot is handed on, not doubled.
        marks = sorted([(t, 1) for t in self._sent] + [(t, -1) for t in self._end])
        return int(max(np.cumsum([step for _, step in marks]), default=0)) if marks else 0

    def _client(self, client: ClientFacts) -> ClientSummary:
        n = self._n
        capped = self._trial.load.max_concurrency is not None and not self._trial.load.closed_loop
        # With a rate and a cap, a late sending may be the cap's doing: then lateness is counted from the moment
        # at which a slot was free, which is when an earlier request ended.
        late = np.maximum(np.array(self._sent) - np.array(self._due) - np.array(self._connecting), 0)
        if capped and len(late):
            late = np.minimum(late, self._since_last_end())
        ticks = client.ticks_late_ns or [0]
        return ClientSummary(
            kernel_stamps=client.kernel_stamps,
            cpu_share=client.cpu_s / (seconds(client.duration_ns) or 1.0),
            send_late=distribution_ms(late, sorted({*self._trial.percentiles, 99.0})),  # a median would hide it
            read_late_mean_ms=n["late_sum"] / n["reads"] / NS_PER_MS if n["reads"] else 0.0,
            read_late_max_ms=n["late_max"] / NS_PER_MS,
            unseen_share=n["unseen"] / n["chunks"] if n["chunks"] else 0.0,
            loop_late_p99_ms=float(np.percentile(ticks, 99)) / NS_PER_MS,
            streams_mean=self._streams_mean(0, client.duration_ns),
            streams_peak=self._streams_peak(),
            others_cpu=client.others_cpu,
        )

    def _since_last_end(self) -> np.ndarray:
        ends = np.sort(np.array(self._end))
        sent = np.array(self._sent)
        before = np.searchsorted(ends, sent, side="right") - 1
        return np.where(before >= 0, sent - ends[np.maximum(before, 0)], ns(3600))
