"""The result file of a benchmark: vLLM's keys, units and meanings at the top level, everything else under `dyno`."""

import datetime
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

import dyno
from dyno.errors import StoreError
from dyno.facts.comparison import Estimate
from dyno.facts.imported import Row
from dyno.facts.load import LoadSpec
from dyno.facts.metric import KEYS, RESULT_KEYS, SPEEDS, latency
from dyno.facts.offline import Iteration, OfflineSummary
from dyno.facts.record import Record
from dyno.facts.spread import Distribution, Latency
from dyno.facts.summary import (
    ClassSummary,
    ProbeSummary,
    Result,
    SessionSummary,
    Summary,
    reported_share,
)
from dyno.facts.telemetry import TelemetrySummary
from dyno.facts.trial import TrialSpec
from dyno.load.plan import rates_rps
from dyno.measure import timing
from dyno.measure.estimate import estimates
from dyno.measure.statistics import KNOWN_WITHIN_MS, settled
from dyno.measure.timing import Span
from dyno.store.run import Manifest
from dyno.units import NS_PER_MS, NS_PER_US, seconds


def build(
    result: Result,
    manifest: Manifest,
    row: Row,
    *,
    records: Iterable[Record] | None = None,
    detailed: bool = False,
    iterations: Sequence[Iteration] = (),
) -> dict[str, Any]:
    """Return the file's object. `row`: the run's, with its samples. `records`: those of a serving benchmark, for its
    lists of requests; `detailed`: all of them. `iterations`: those of an offline one."""
    trial = manifest.trial
    if result.offline is not None:
        out, own = _offline(result.offline, iterations)
        out = {"model_id": trial.target.model or manifest.target.model, **out}
        own["model"] = msgspec.to_builtins(manifest.model)
    else:
        out = _serving(result.served, manifest, result.telemetry)
        if records is not None:
            out |= _lists(list(records), manifest, detailed)
        own = _served(result.served, manifest, result.telemetry)
    out["dyno"] = {
        "version": dyno.__version__,
        "verdict": result.verdict,
        "findings": msgspec.to_builtins(result.findings),
        **own,
        "telemetry": msgspec.to_builtins(result.telemetry),
        "roofline": msgspec.to_builtins(result.roofline, str_keys=True),
        "trial": msgspec.to_builtins(trial),
        "target": msgspec.to_builtins(manifest.target),
        "engine": msgspec.to_builtins(row.engine),
        "rig": msgspec.to_builtins(manifest.rig),
        "workload_sha256": manifest.workload_sha256,
        "answers": manifest.answers,
        "dropped": manifest.dropped,
        "started": manifest.started,
        "run": row.file,
        "row": _row(row),
    }
    return out


def _known(estimate: Estimate) -> dict[str, Any]:
    return {
        name: value
        for name, value in msgspec.to_builtins(estimate).items()
        if value not in (None, "")
    }


def _has_error(name: str) -> bool:
    """Return whether it is a latency whose error can be estimated."""
    parts = latency(name)
    return parts is not None and parts[0] != "std"


def _row(row: Row) -> dict[str, Any]:
    """Return the row by which a comparison judges the file as it judges the run: errors of figures need samples, which
    it may lack."""
    figures = [name for name in row.figures if name in SPEEDS or _has_error(name)]
    return {
        "settings": {name: setting.value for name, setting in row.settings.items()},
        "estimates": {
            name: _known(estimate) for name, estimate in estimates([row], figures).items()
        },
        "rig": msgspec.to_builtins(row.rig),
    }


def _offline(
    s: OfflineSummary, iterations: Sequence[Iteration]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return vLLM's keys, and dyno's own. Times are in seconds, as vLLM's are."""
    if s.kind == "latency":
        percentiles = {p: ms / 1e3 for p, ms in s.latency.percentiles.items()}
        times_s = [seconds(i.end_ns - i.start_ns) for i in iterations if not i.warmup]
        warmups_s = [seconds(i.end_ns - i.start_ns) for i in iterations if i.warmup]
        out = {
            "avg_latency": s.latency.mean / 1e3,
            "latencies": times_s,
            "percentiles": percentiles,
        }
        return out, {"summary": msgspec.to_builtins(s), "warmup_latencies": warmups_s}
    # Mean over the iterations: vLLM has but one.
    count = max(s.iterations, 1)
    out = {
        "elapsed_time": s.duration_s / count,
        "num_requests": s.requests,
        "total_num_tokens": round((s.input_tokens + s.output_tokens) / count),
        "requests_per_second": s.request_throughput.mean,
        "tokens_per_second": s.total_token_throughput.mean,
    }
    return out, {"summary": msgspec.to_builtins(s)}


def _serving(
    s: Summary, manifest: Manifest, telemetry: TelemetrySummary | None
) -> dict[str, Any]:
    """Return vLLM's keys of a serving benchmark."""
    trial, load = manifest.trial, manifest.trial.load
    started = datetime.datetime.fromisoformat(manifest.started)
    out: dict[str, Any] = {
        "date": started.astimezone().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": trial.target.backend,
        "backend": trial.target.backend,
        "label": trial.label,
        "model_id": trial.target.model or manifest.target.model,
        "tokenizer_id": manifest.tokenizer,
        "num_prompts": manifest.prompts
        if trial.workload.traits.sessions
        else trial.workload.num_prompts,
        **trial.metadata,
        "request_rate": load.request_rate_rps
        if load.request_rate_rps is not None
        else "inf",
        "burstiness": load.burstiness if load.burstiness is not None else "inf",
        "max_concurrency": load.max_concurrency,
    }
    if load.ramp is not None:
        out["ramp_up_strategy"] = load.ramp
        out["ramp_up_start_rps"] = load.ramp_start_rps
        out["ramp_up_end_rps"] = load.ramp_end_rps
    for name in ("rate_schedule", "concurrency_schedule"):
        schedule = getattr(load, name)
        if schedule:
            out[name] = schedule
    out |= {key: s.figure(m) for key, m in RESULT_KEYS.items()}
    for name, stem in KEYS.items():
        if stem in s.latencies and (stem not in _QUEUED or _queued(stem, load)):
            out |= _flat(name, s.latencies[stem])
    out |= _probes(s.probes)
    out |= _contents(s)
    out |= _speculation(telemetry)
    if s.reasoning_tokens is not None:
        out |= {"reasoning_tokens": s.reasoning_tokens, "answer_tokens": s.answer_tokens}
    return out


def _contents(s: Summary) -> dict[str, Any]:
    """Return vLLM's keys of embeddings and of sounds; none where there were none."""
    out: dict[str, Any] = {}
    if s.results is not None:
        out["total_input_sequences"] = s.results
        out["input_sequence_throughput"] = s.result_throughput
    if s.media is not None and s.media.rtfx is not None:
        out["rtfx"] = s.media.rtfx
    return out


def _probes(probes: ProbeSummary | None) -> dict[str, Any]:
    """Return vLLM's keys of the probes; none where there were none."""
    if probes is None:
        return {}
    times = probes.e2el
    return {
        "probe_completed": probes.completed,
        "probe_failed": probes.failed,
        "probe_median_e2el_ms": times.median,
        "probe_p99_e2el_ms": times.percentiles["99"],
        "probe_max_e2el_ms": times.percentiles["100"],
    }


def _bounds_of_probes(probes: ProbeSummary | None) -> dict[str, Any]:
    if probes is None or not probes.e2el.bounds:
        return {}
    return {"probe_e2el": probes.e2el.bounds}


def _speculation(telemetry: TelemetrySummary | None) -> dict[str, Any]:
    """Return vLLM's keys of speculative decoding; none where nothing was drafted."""
    if telemetry is None or telemetry.acceptance is None:
        return {}
    return {
        "spec_decode_acceptance_rate": telemetry.acceptance * 100,
        "spec_decode_acceptance_length": telemetry.accepted_length,
        "spec_decode_num_drafts": telemetry.total("drafts"),
        "spec_decode_draft_tokens": telemetry.total("drafted_tokens"),
        "spec_decode_accepted_tokens": telemetry.total("accepted_tokens"),
    }


def _served(
    s: Summary, manifest: Manifest, telemetry: TelemetrySummary | None
) -> dict[str, Any]:
    """Return dyno's own keys of a serving benchmark."""
    trial = manifest.trial
    response = {
        **_flat("ttft", s.latencies["response_ttft"]),
        **_flat("e2el", s.latencies["response_e2el"]),
        **_flat("queue", s.latencies["queue"]),
    }
    own = {
        "outcome": s.outcome,
        "planned": s.planned,
        "sent": s.sent,
        "cancelled": s.cancelled,
        "skipped": s.skipped,
        "cancelling": msgspec.to_builtins(s.cancelling),
        "sessions": None if s.sessions is None else _sessions(s.sessions),
        "classes": [_class(c) for c in s.classes],
        "reuse": None if s.reuse is None else _reuse(s, telemetry),
        "failures": s.failures,
        "failure_examples": s.failure_examples,
        "end_at_once": s.end_at_once,
        "resent": s.resent,
        "unanswered": s.unanswered,
        "tokens_by": s.tokens_by,
        "wanted_output_tokens": s.wanted_output_tokens,
        "cached_input_tokens": s.cached_input_tokens,
        "finish_reasons": s.finish_reasons,
        "models_answered": s.models_answered,
        "chunks": s.chunks,
        "own_tpot": _own(s, "own_tpot", "tpot"),
        "silent_chunks": s.silent_chunks,
        "leading_chunks": s.leading_chunks,
        "itl_text": _own(s, "itl_text", "itl"),
        "itl_per_token": _own(s, "itl_per_token", "itl"),
        "response": response,
        "bounds": {
            **s.bounds,
            **{name: d.bounds for name, d in s.latencies.items() if d.bounds},
            **_bounds_of_probes(s.probes),
        },
        "freezes": msgspec.to_builtins(s.freezes),
        "unfrozen": msgspec.to_builtins(s.unfrozen),
        "steady": msgspec.to_builtins(s.steady),
        "replicas": [
            {"url": trial.target.urls[r.index], **msgspec.to_builtins(r)}
            for r in s.replicas
        ],
        "client": msgspec.to_builtins(s.client),
    }
    if s.structured is not None:
        own["structured"] = msgspec.to_builtins(s.structured)
    if s.media is not None:
        tokens = {"media_tokens": s.media.media_tokens}
        own["media"] = {**msgspec.to_builtins(s.media), **tokens}
    if s.replay is not None:
        own["replay"] = {"speedup": trial.load.speedup, **msgspec.to_builtins(s.replay)}
    return own


_QUEUED = ("queue", "response_e2el")  # where the client may hold requests back


def _queued(stem: str, load: LoadSpec) -> bool:
    """Return whether vLLM's file has such a latency of this load."""
    return load.max_concurrency is not None and (stem == "queue" or not load.closed_loop)


def _own(s: Summary, stem: str, name: str) -> dict[str, Any] | None:
    """Return a latency that only some runs have."""
    return _flat(name, s.latencies[stem]) if stem in s.latencies else None


def _sessions(s: SessionSummary) -> dict[str, Any]:
    out = {
        name: value
        for name, value in msgspec.to_builtins(s).items()
        if name not in (*s.latencies, "turns")
    }
    for stem, d in s.latencies.items():
        out |= _flat(stem, d)
    bounds = {stem: d.bounds for stem, d in s.latencies.items() if d.bounds}
    turns = [
        {
            "turn": t.turn,
            "completed": t.completed,
            "input_tokens_mean": t.input_tokens_mean,
            **_flat("ttft", t.ttft),
        }
        for t in s.turns
    ]
    return out | {"bounds": bounds, "turns": turns}


def _class(c: ClassSummary) -> dict[str, Any]:
    latencies = {"ttft": c.ttft, "tpot": c.tpot, "e2el": c.e2el}
    out = {
        name: value
        for name, value in msgspec.to_builtins(c).items()
        if name not in latencies
    }
    for stem, d in latencies.items():
        out |= _flat(stem, d)
    return out | {"bounds": {stem: d.bounds for stem, d in latencies.items() if d.bounds}}


def _reuse(s: Summary, telemetry: TelemetrySummary | None) -> dict[str, Any]:
    assert s.reuse is not None
    shares = {"possible_share": s.reuse.possible_share, "most_share": s.reuse.most_share}
    return {
        **msgspec.to_builtins(s.reuse),
        **shares,
        "reported_share": reported_share(s, telemetry),
    }


def _flat(name: str, d: Distribution | Latency) -> dict[str, Any]:
    """Return statistics by vLLM's keys: None where there is no sample, or none that is known well enough
    (`dyno.bounds`). vLLM writes 0.0, which reads as a measurement."""
    values = {
        f"mean_{name}_ms": d.mean,
        f"median_{name}_ms": d.median,
        f"std_{name}_ms": d.std,
    }
    values |= {f"p{p}_{name}_ms": v for p, v in d.percentiles.items()}
    return dict.fromkeys(values) if d.empty else dict(values)


_ALWAYS = (
    "latencies",
    "queue_times",
)  # lists that vLLM's file has without --save-detailed, too


def _lists(
    records: Sequence[Record], manifest: Manifest, detailed: bool
) -> dict[str, list[Any]]:
    """Return vLLM's lists: of requests, and of the moments at which a ramp came to another rate."""
    rows = sorted(records, key=lambda r: r.index)
    lists = _detailed(rows)
    if not detailed:
        lists = {name: lists[name] for name in _ALWAYS}
    if manifest.trial.load.ramp is not None:
        lists["rps_change_events"] = _rate_changes(rows, manifest)
    return lists


def _rate_changes(rows: Sequence[Record], manifest: Manifest) -> list[dict[str, Any]]:
    """Return each whole rate of a ramp with the time at which it was reached."""
    load = manifest.trial.load
    began = datetime.datetime.fromisoformat(manifest.started).astimezone()
    last = int(load.ramp_start_rps or 0)
    events = [{"rps": last, "timestamp": _moment(began, 0)}]
    for row, rate in zip(rows, rates_rps(load, len(rows)), strict=True):
        for rps in range(last + 1, int(rate) + 1):
            events.append({"rps": rps, "timestamp": _moment(began, row.due_ns)})
        last = max(last, int(rate))
    return events


def _moment(began: datetime.datetime, after_ns: int) -> str:
    """Return a time as vLLM writes it: local, without a zone."""
    time = began + datetime.timedelta(microseconds=after_ns / NS_PER_US)
    return time.replace(tzinfo=None).isoformat()


def _detailed(rows: Sequence[Record]) -> dict[str, list[Any]]:

    def known_s(r: Record, latency: Callable[[Record], Span | None]) -> float | None:
        """Return 0 for a failed request, as vLLM does; None where a busy client doesn't know it."""
        span = latency(r) if r.error is None else None
        if span is None:
            return 0.0
        value = settled(span.low, span.high, KNOWN_WITHIN_MS * NS_PER_MS)
        return None if value is None else seconds(value)

    def gaps_s(r: Record) -> list[float | None]:
        unseen = {*r.unseen, *(i + 1 for i in r.unseen)}
        gaps = enumerate(pairwise(r.chunk_ns), 1)
        return [None if i in unseen else seconds(b - a) for i, (a, b) in gaps]

    return {
        "input_lens": [
            r.prompt_tokens if r.prompt_tokens is not None else r.prompt_tokens_planned
            for r in rows
        ],
        "output_lens": [(r.output_tokens or 0) if r.error is None else 0 for r in rows],
        "ttfts": [known_s(r, timing.ttft_ns) for r in rows],
        "itls": [gaps_s(r) for r in rows],
        "latencies": [known_s(r, timing.e2el_ns) for r in rows],
        "start_times": [seconds(r.sent_ns) for r in rows],
        "queue_times": [seconds(timing.queue_ns(r)) for r in rows],
        "generated_texts": [r.text for r in rows],
        "errors": [f"{r.error}: {r.error_detail}" if r.error else "" for r in rows],
    }


def filename(trial: TrialSpec, model: str, date: str) -> str:
    """Return the file's name by vLLM's rule."""
    load = trial.load
    concurrency = (
        f"-concurrency{load.max_concurrency}" if load.max_concurrency is not None else ""
    )
    if load.ramp is not None:
        what = f"ramp-up-{load.ramp}-{load.ramp_start_rps:g}qps-{load.ramp_end_rps:g}qps"
    elif load.arrivals is not None:
        what = f"recorded-x{load.speedup:g}"
    else:
        what = f"{load.request_rate_rps if load.request_rate_rps is not None else 'inf'}qps"
    return f"{trial.label or trial.target.backend}-{what}{concurrency}-{model.split('/')[-1]}-{date}.json"


def save(path: Path, result: dict[str, Any], append: bool) -> None:
    data = msgspec.json.encode(result)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if append else "wb") as file:
            if append and file.tell():
                file.write(b"\n")  # as vLLM: one object a line
            file.write(data)
    except OSError as e:
        raise StoreError(
            f"{path} can't be written: {e.strerror}. Choose another place with --result-dir."
        ) from None
