"""A trial, from the spec to the result: the central flow of dyno, readable from top to bottom.

serve: prepare → measure (warm up, drive) → finish (decode, summarize, check, store).
"""

import contextlib
import datetime
import itertools
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

import msgspec

import dyno
from dyno import plugins, secrets
from dyno.checks import examine
from dyno.checks.evidence import Evidence
from dyno.clock import now_ns
from dyno.engines.kinds import metric_names
from dyno.engines.log import excerpt, remarks
from dyno.errors import DynoError, Interrupted, NotSummedUp, StoreError, TargetError
from dyno.facts.engine import Remark
from dyno.facts.finding import verdict
from dyno.facts.record import ClientFacts, Record
from dyno.facts.rig import Roofline
from dyno.facts.summary import (
    MediaSummary,
    ProbeSummary,
    Result,
    Summary,
    Unfrozen,
)
from dyno.facts.telemetry import SamplerSpec, TelemetrySummary
from dyno.facts.trial import TrialSpec
from dyno.http import Url
from dyno.load.decoder import Settled, SpoolRecords
from dyno.load.progress import Stop
from dyno.load.sessions import Graph
from dyno.load.settle import PlannedRequest, Settler, Settling, Sums, cleaned, planned
from dyno.load.spool import Spool, responses
from dyno.load.wire import Traffic, Wire
from dyno.measure import freeze, roofline, telemetry
from dyno.measure.summary import Tally, summarize_probes
from dyno.option import setting_name
from dyno.probe import rig
from dyno.probe.telemetry import sampler
from dyno.probe.telemetry.sampler import Sampler
from dyno.remote import on_ray
from dyno.remote.engine import HeldFleet
from dyno.signals import interrupt, lent
from dyno.store.run import Manifest, Run, create, sent_before
from dyno.trial import answers, correctness, processes
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.outcome import Outcome
from dyno.trial.prepare import (
    Prepared,
    Prompts,
    check_dataset,
    closed_loop,
    hidden,
    longest,
    make_prompts,
    prepare,
    probes,
    public,
    traffic,
)
from dyno.trial.serving import plan_of, refuse, serving
from dyno.trial.session import Session, others_s
from dyno.trial.watcher import Watcher
from dyno.units import seconds
from dyno.workload.request import Request
from dyno.workload.tokenizer import Tokenizer

_STEP = 64  # requests decoded between two words about it
_CHUNK = re.compile(rb"\r\n[0-9a-fA-F]{1,8}\r\n")


def serve(
    trial: TrialSpec,
    *,
    runs: Path,
    headers: dict[str, str],
    watcher: Watcher | None = None,
    stop: Stop | None = None,
    keep_raw: bool = False,
) -> Outcome:
    """Measure one trial, on an engine started for it or on a server that runs already."""
    watcher, stop = watcher or Watcher(), stop or Stop()
    secrets.learn(hidden(trial, headers))
    on_ray.check(trial.client)
    answers.check(trial)
    check_dataset(trial.workload)
    plan = plan_of(trial, [longest(trial)])
    prompts = _prompts_before(trial, plan, watcher) if plan is not None else None
    run = _folder(runs, trial, plan.served_name) if plan is not None else None
    with processes.Ahead() as ahead:
        try:
            with serving(trial, plan, run, headers, watcher, stop) as session:
                prepared = prepare(trial, session, prompts)
                if run is None:
                    run = _folder(runs, trial, session.target.model)
                    sha256 = prepared.prompts.workload.sha256
                    before = sent_before(runs, sha256, trial.target)
                    prepared = prepared._replace(sent_before=before)
                measure(run, session, prepared, ahead)
        except KeyboardInterrupt:
            if run is None or run.client() is None:  # nothing is measured yet
                raise
            raise _not_summed_up(run) from None
        watcher.phase("Decoding")
        counter = prepared.prompts.counter
        try:
            return finish(
                run, counter, keep_raw, keys_known=True, watcher=watcher, ahead=ahead
            )
        except KeyboardInterrupt:
            raise _not_summed_up(run) from None


def _not_summed_up(run: Run) -> Interrupted:
    return Interrupted(
        f"Interrupted after the load; all answers are stored. `dyno runs show {run.path}` calculates the result."
    )


def _folder(runs: Path, trial: TrialSpec, model: str) -> Run:
    return create(runs, f"serve-{Path(model).name}-{trial.load.slug}")


def _prompts_before(trial: TrialSpec, plan: EnginePlan, watcher: Watcher) -> Prompts | None:
    """Make the prompts before an engine starts, where that needs no server: those that are too long are refused now."""
    prompts = None
    if named := trial.tokenizer or plan.tokenizer:
        prompts = make_prompts(msgspec.structs.replace(trial, tokenizer=named), watcher)
        prompts = prompts.within(plan.limits.context, watcher)
        refuse(plan.problems(prompts.lengths))
    for note in plan.notes(trial.load.max_concurrency):
        watcher.phase(note)
    return prompts


def measure(
    run: Run, session: Session, prepared: Prepared, ahead: processes.Ahead | None = None
) -> None:
    """Warm up and put the load on. All that was measured is in the run's folder then. `ahead`: decodes a large load
    while it runs."""
    trial = prepared.trial
    work = prepared.prompts.workload
    watcher = session.watcher
    stop = session.stop
    load = traffic(trial, session, work)
    tokens = sum(r.output_tokens for r in work.requests) / len(work.requests)
    count = processes.needed(trial.client, load.plan, tokens)
    manifest = msgspec.structs.replace(manifest_of(session, prepared), processes=count)
    run.write_manifest(manifest, work.requests)
    keys = [word.encode() for word in secrets.of_headers(session.headers)]
    if correctness.applies(trial):
        correctness.ask_before(run, session, trial)
    # While the load runs, Ctrl-C asks it to stop: what was measured is kept.
    with (
        lent((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop.request),
        contextlib.ExitStack() as last,
    ):
        # Before the warm-up: it takes a moment to start.
        sampling = Sampler(_sampled(run, trial, session))
        last.callback(sampling.end)
        if ahead is not None and processes.large(load.plan, tokens, trial.client):
            follow(run, ahead, prepared.prompts.counter)
        if work.warmups:
            _warm_up(run, session, prepared, count, keys)
        if trial.reset_cache and session.target.prefix_caching is not False:
            # After the warm-up: what it left in the cache must not help a measured request.
            emptied = session.empty_cache(trial.target)
            run.write_manifest(msgspec.structs.replace(manifest, cache_emptied=emptied))
        if trial.profile:
            watcher.phase("Starting the engine's profiler")
            session.profile(trial.target, begin=True)
            last.callback(_stop_profiler, session, trial)
        here = trial.client.on == "here"
        watcher.phase(_load_words(count, here))
        last.callback(watcher.over)
        last.callback(sampling.end)
        sampling.begin()
        watcher.sampling(sampling)
        trip = session.round_trip_ns()
        before = others_s(session.cpu_s, _cpu_s(ahead))
        with (
            processes.probing(probes(trial, session), run.probe_path, keys),
            _driver(run, session, trial, load, count, keys, ahead) as drive,
        ):
            client = drive()
        after = others_s(session.cpu_s, _cpu_s(ahead))
        if here:
            client = _with_others(client, before, after)
        if trip is not None:
            trips = [trip, *filter(None, [session.round_trip_ns()])]
            client = msgspec.structs.replace(client, round_trips_ns=trips)
        run.write_client(client)
    if correctness.applies(trial) and client.outcome == "complete":
        correctness.ask_after(run, session, trial)


def _cpu_s(ahead: processes.Ahead | None) -> float:
    return 0.0 if ahead is None else ahead.cpu_s()


def follow(run: Run, ahead: processes.Ahead, tokenizer: Tokenizer | None = None) -> None:
    """Let the run's spools be decoded while they grow."""
    manifest = run.manifest()
    how = _settling(run, manifest, manifest.processes, tokenizer)
    spools = run.spools_of(manifest.processes)
    ahead.start(spools, planned(run.lengths()), manifest.trial.api, how)


def _gate(ahead: processes.Ahead | None) -> Callable[[], int]:
    """Return a gate through which a load goes at once. Who decodes it hears of the time."""

    def passed() -> int:
        at_ns: int = now_ns()
        if ahead is not None:
            ahead.begin(at_ns)
        return at_ns

    return passed


def _stop_profiler(session: Session, trial: TrialSpec) -> None:
    """Wait until the trace is written. A failure, or who won't wait, costs the trace and not the measurement. A signal
    that ends dyno ends the wait, too, and no further load begins."""

    def end(number: int, frame: object) -> None:
        session.stop.request()
        interrupt(number, frame)

    session.watcher.phase(
        "Stopping the engine's profiler; it writes its trace. Ctrl-C: don't wait for it"
    )
    try:
        with lent((signal.SIGTERM, signal.SIGHUP), end), lent((signal.SIGINT,), interrupt):
            session.profile(trial.target, begin=False)
    except KeyboardInterrupt:
        session.watcher.phase("The engine may still write its trace")
    except TargetError as e:
        session.watcher.phase(str(e))


@contextlib.contextmanager
def _driver(
    run: Run,
    session: Session,
    trial: TrialSpec,
    load: Traffic,
    count: int,
    keys: Sequence[bytes],
    ahead: processes.Ahead | None,
) -> Iterator[Callable[[], ClientFacts]]:
    """Yield what puts the load on, by this process or by several."""
    if count > 1 or trial.client.on != "here":
        spools = run.spools_of(count)
        yield partial(processes.drive, session, load, spools, keys, trial.client, ahead)
        return
    with contextlib.closing(Spool(run.spool_path, keys)) as spool:
        watch = session.watcher.progress
        wire = Wire(
            load,
            spool,
            watch=watch,
            stop=session.stop,
            core=session.core,
            gate=_gate(ahead),
        )
        yield wire.drive


def _warm_up(
    run: Run, session: Session, prepared: Prepared, count: int, keys: Sequence[bytes]
) -> None:
    """Send the warm-up requests. `count`: processes of the load, of which fewer may be busy now."""
    trial = prepared.trial
    warmups = prepared.prompts.workload.warmups
    watcher = session.watcher
    watcher.phase(f"Warming up with {len(warmups)} requests")
    load = closed_loop(trial, session, warmups)
    spools = run.spools_of(processes.busy(count, load.plan), warmup=True)
    if len(spools) == 1:
        with contextlib.closing(Spool(run.warmup_path, keys)) as spool:
            Wire(
                load, spool, watch=watcher.progress, stop=session.stop, core=session.core
            ).drive()
    else:
        processes.drive(session, load, spools, keys)  # also before a load from elsewhere
    watcher.over()
    _check_warmup(spools, trial, warmups, session.stop)


def _with_others(
    client: ClientFacts, before: float | None, after: float | None
) -> ClientFacts:
    """Return the facts with the cores that others used meanwhile. `before`, `after`: their CPU seconds, where known."""
    if before is None or after is None or not client.duration_ns:
        return client
    others = max(after - before, 0.0) / seconds(client.duration_ns)
    return msgspec.structs.replace(client, others_cpu=others)


def _load_words(count: int, here: bool) -> str:
    """Describe the phase in which `count` processes put the load on."""
    shared = "" if count == 1 else f" with {count} processes"
    return f"Measuring{shared}" if here else f"Starting the client{shared} on Ray"


def manifest_of(session: Session, prepared: Prepared) -> Manifest:
    trial = prepared.trial
    work = prepared.prompts.workload
    fleet = session.fleet
    names = sorted(session.headers)
    spec = msgspec.structs.replace(
        trial.target, header_names=names, routing_headers=secrets.routing(names)
    )
    return Manifest(
        dyno=dyno.__version__,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        trial=public(msgspec.structs.replace(trial, target=spec)),
        target=session.target,
        tokenizer=work.tokenizer,
        counted_by=work.counted_by,
        workload_sha256=work.sha256,
        prompts=len(work.requests),
        repeated_prompts=work.repeated,
        sent_before=prepared.sent_before,
        test_requests=prepared.test_requests,
        rig=fleet.machine(trial.target.urls)
        if fleet
        else rig.read_machine(trial.target.urls, record=True),
        place=prepared.place,
        model=fleet.shape() if fleet else None,
        peaks=fleet.peaks if fleet else None,
        dataset=prepared.prompts.file,
        answers=work.histories,
        dropped=work.dropped,
        template=work.template,
        media=prepared.media,
        structured=answers.prescribed(trial, work.requests),
        plugins=plugins.active(),
    )


def _sampled(run: Run, trial: TrialSpec, session: Session) -> SamplerSpec:
    local = any(Url(url).local for url in trial.target.urls) and not isinstance(
        session.fleet, HeldFleet
    )
    return SamplerSpec(
        str(run.telemetry_path),
        trial.target.urls,
        session.headers,
        trial.target,
        accelerators=local,
        metrics=metric_names(),
    )


def finish(
    run: Run,
    tokenizer: Tokenizer | None = None,
    keep_raw: bool = False,
    only_whole: bool = False,
    keys_known: bool = False,
    watcher: Watcher | None = None,
    ahead: processes.Ahead | None = None,
) -> Outcome:
    """Make the result from the run's folder: after the load, or later for a run that was cut off.

    `only_whole`: the result is written only where the load came to its end, all of it is on record and something was
    completed. `keys_known`: by this process, which has sent them. Where they aren't, they can't be taken out of
    answers: the words of these are not kept then. `ahead`: what was decoded while the load ran.
    """
    try:
        with run.in_hand():
            return _finish(
                run,
                tokenizer,
                keep_raw,
                only_whole,
                keys_known,
                watcher or Watcher(),
                ahead,
            )
    except DynoError:
        raise
    except Exception as e:  # dyno's own mistake: it costs this trial and no other
        raise NotSummedUp(
            f"{run.path} is measured, but dyno can't calculate its result ({type(e).__name__}: {e}). This is a bug: "
            "please report it. The folder keeps all answers, and `dyno runs show` tries again."
        ) from e


def _finish(
    run: Run,
    tokenizer: Tokenizer | None,
    keep_raw: bool,
    only_whole: bool,
    keys_known: bool,
    watcher: Watcher,
    ahead: processes.Ahead | None,
) -> Outcome:
    manifest = run.manifest()
    client = run.client()
    trial = manifest.trial
    wordless = not keys_known and _keyed(trial)
    placed = client is not None  # else the load's place on the samples' clock is lost
    summing = _Summing(run, manifest, client, tokenizer, wordless)
    run.write_lines(summing.lines(watcher, ahead))
    sums = summing.sums
    tally = sums.tally
    sent = tally.count
    client = _completed_facts(client, trial, sent, tally.last_ns)
    summary = _summary(run, trial, client, tally)
    window = telemetry.Window.of_load(client, summary.steady)
    sampled = (
        summarize_samples(run, manifest, window, summary.total_output_tokens)
        if placed
        else None
    )
    if summary.cancelling:
        generated = telemetry.with_generated(summary.cancelling, sampled)
        summary = msgspec.structs.replace(summary, cancelling=generated)
    if sums.reuse is not None:
        reuse = sums.reuse.summary(run.requests())
        summary = msgspec.structs.replace(summary, reuse=reuse)
    summary = msgspec.structs.replace(
        summary, probes=_probes(run, trial), media=_media(summary, manifest)
    )
    if manifest.structured and not wordless:
        structured = answers.check_forms(run, trial)
        summary = msgspec.structs.replace(summary, structured=structured)
    shares = _roofline(manifest, summary, sampled)
    findings = examine(_evidence(run, manifest, client, summary, sampled, shares))
    result = Result(summary, findings, verdict(findings), sampled, roofline=shares)
    if not only_whole or _is_complete(client, sent, summary):
        run.write_result(result)
    if run.whole:
        _drop_raw_unless(run, keep=keep_raw and not wordless)
    return Outcome(run, manifest, result)


def _media(summary: Summary, manifest: Manifest) -> MediaSummary | None:
    """Return the figures of images, sounds and videos, with what was known of them before the load."""
    if summary.media is None or manifest.media is None:
        return summary.media
    facts = msgspec.structs.asdict(manifest.media)
    return msgspec.structs.replace(summary.media, **facts)


def _probes(run: Run, trial: TrialSpec) -> ProbeSummary | None:
    """Return the figures of the requests beside the load; None: there were none."""
    if not run.probe_path.exists():
        return None
    one = PlannedRequest(prompt_tokens=1, output_tokens=1)
    (source,) = processes.sources([run.probe_path], [one], trial.api)
    return summarize_probes(SpoolRecords(source).all())


def _is_complete(client: ClientFacts, sent: int, summary: Summary) -> bool:
    """Return whether the load came to its end, all of it is on record and something was completed."""
    return client.outcome == "complete" and sent == client.sent and summary.completed > 0


def _drop_raw_unless(run: Run, keep: bool) -> None:
    """Drop the raw answers, unless they are to be kept and hold no key."""
    if not keep or _key_came_back(run):
        run.drop_raw()


def _evidence(
    run: Run,
    manifest: Manifest,
    client: ClientFacts,
    summary: Summary,
    sampled: TelemetrySummary | None,
    shares: Roofline | None,
) -> Evidence:
    """Gather what the checks examine."""
    place = manifest.place
    return Evidence(
        trial=manifest.trial,
        target=manifest.target,
        counted_by=manifest.counted_by,
        prompts=manifest.prompts,
        repeated_prompts=manifest.repeated_prompts,
        sent_before=manifest.sent_before,
        cache_emptied=manifest.cache_emptied,
        engine=run.engine(),
        summary=summary,
        rig=manifest.rig,
        host=place.host if place else None,
        repeats=place.repeats if place else 1,
        first_failure=run.first_failure(),
        telemetry=sampled,
        roofline=shares,
        remarks=log_remarks(run),
        correctness=run.correctness(),
        round_trips_ns=client.round_trips_ns,
        dropped=manifest.dropped,
        template=manifest.template,
    )


def _summary(run: Run, trial: TrialSpec, client: ClientFacts, tally: Tally) -> Summary:
    """Return the run's figures; where nothing moved for some time, also those without that time."""
    summary = tally.summary(client, _session_sizes(run, tally))
    if not summary.freezes:
        return summary
    return msgspec.structs.replace(summary, unfrozen=_unfrozen(run, trial, client, summary))


def _completed_facts(
    client: ClientFacts | None, trial: TrialSpec, sent: int, last_ns: int
) -> ClientFacts:
    """Return the client's facts, by the records where its own last report is missing or too early."""
    if client is None:  # dyno itself was killed: the spool is all there is
        planned = max(sent, trial.workload.num_prompts)
        return ClientFacts(
            0, last_ns, "interrupted", planned, sent, 0.0, 0, [], kernel_stamps=True
        )
    # its last report was earlier
    if any(process.outcome == "lost" for process in client.processes):
        return msgspec.structs.replace(
            client, sent=sent, end_ns=max(client.end_ns, client.start_ns + last_ns)
        )
    return client


def _roofline(
    manifest: Manifest, summary: Summary, sampled: TelemetrySummary | None
) -> Roofline | None:
    """Return the shares of the machine's peaks; None where the model or the peaks are unknown."""
    model = manifest.model
    machine_peaks = manifest.peaks
    trial = manifest.trial
    if model is None or machine_peaks is None:
        return None
    prefix = trial.workload.prefix_len
    return roofline.of_served(
        summary, model, trial.engine, manifest.target, machine_peaks, sampled, prefix
    )


def _session_sizes(run: Run, tally: Tally) -> list[int]:
    """Return how many requests each session has; [] where each is a single request."""
    graph = Graph.from_requests(run.lengths()) if tally.has_sessions else None
    sizes = (
        [end - start for start, end in itertools.pairwise(graph.starts)] if graph else []
    )
    return sizes if max(sizes, default=0) > 1 else []


def log_remarks(run: Run) -> list[Remark]:
    """Return what the log of an engine that dyno started remarks on its setting."""
    engine = run.engine()
    if engine is None:
        return []
    return remarks(
        engine.kind, "\n".join(excerpt(log) for log in sorted(run.path.glob("engine*.log")))
    )


def summarize_samples(
    run: Run, manifest: Manifest, window: telemetry.Window, output_tokens: int
) -> TelemetrySummary | None:
    """Summarize what was sampled within the window; None where nothing was."""
    samples, facts = (
        sampler.read(run.telemetry_path) if run.telemetry_path.exists() else ([], None)
    )
    if facts is None:
        return None
    return telemetry.summarize(
        samples, facts, window, output_tokens, manifest.rig, run.engine()
    )


def _unfrozen(run: Run, trial: TrialSpec, client: ClientFacts, s: Summary) -> Unfrozen:
    """Return the run's figures once more, without the time in which nothing moved."""
    cuts = freeze.Cuts(run.records(), s)
    tally = Tally(trial)
    for record in run.records():
        tally.add(cuts.record(record))
    return freeze.unfrozen(tally.summary(cuts.client(client)))


# ---- records: decoded, with settled token counts, without a key that a server sent back ----


def _settling(
    run: Run,
    manifest: Manifest,
    processes: int,
    tokenizer: Tokenizer | None,
    wordless: bool = False,
) -> Settling:
    work = manifest.trial.workload
    plain = work.traits.exact and not (work.prefix_len or work.prefix_hit_rate)
    shared = not plain and run.requests_path.exists()
    return Settling(
        manifest.trial,
        processes,
        has_tokenizer=tokenizer is not None,
        # a server isn't asked for no reason
        sampling=tokenizer is not None and tokenizer.counted_by == "tokenizer",
        wordless=wordless,
        model=manifest.target.model,
        in_order=manifest.answers in ("server", "mixed"),
        answers=(manifest.answers or "server") if shared else None,
        block_tokens=manifest.target.cache_block_tokens,
    )


class _Summing:
    """Decodes, settles and adds up the records of a run."""

    def __init__(
        self,
        run: Run,
        manifest: Manifest,
        client: ClientFacts | None,
        tokenizer: Tokenizer | None,
        wordless: bool,
    ) -> None:
        """`wordless`: without what a server may have repeated."""
        self._run = run
        self._manifest = manifest
        self._client = client
        self._how = _settling(run, manifest, manifest.processes, tokenizer, wordless)
        self._requests = planned(run.lengths()) if run.requests_path.exists() else []
        self._counter = _counter(tokenizer)
        self._settler = Settler(self._how, self._counter)
        count_history = self._counter if self._how.sampling else None
        self._histories = _Histories(self._requests, count_history)
        self.sums = Sums(self._how, self._requests)

    def lines(self, watcher: Watcher, ahead: processes.Ahead | None) -> Iterator[bytes]:
        """Yield the records as lines, decoded while the spool exists. When all were taken, `sums` has them all."""
        encode = msgspec.json.Encoder().encode
        if not self._run.spools():
            for record in self._run.records():
                self.sums.add(record)
                yield encode(record) + b"\n"
            return
        done = 0
        for each in self._settled(watcher, ahead):
            done += 1
            if done % _STEP == 0:
                self._step(watcher, done)
            if each.record is None:
                yield each.line
                continue
            self._settle(each.record)
            self.sums.add(each.record)
            yield encode(each.record) + b"\n"

    def _settled(
        self, watcher: Watcher, ahead: processes.Ahead | None
    ) -> Iterator[Settled]:
        if not self._requests:
            raise StoreError(
                f"{self._run.requests_path} is empty: without it, {self._run.spool_path.name} can't be decoded."
            )
        spools = self._run.spools_of(self._manifest.processes)
        api = self._manifest.trial.api
        sources = processes.sources(spools, self._requests, api, self._client)

        def step(done: int) -> None:
            self._step(watcher, done)

        return processes.settled(sources, self._how, self.sums, step, ahead)

    def _step(self, watcher: Watcher, done: int) -> None:
        if self._client:
            watcher.step(done, max(self._client.sent, done))

    def _settle(self, record: Record) -> None:
        self._settler.count(record)
        if self._how.in_order:
            self._histories.correct(record)
        self._settler.clean(record)


class _Histories:
    """Plans the prompts of conversations with the answers that their histories really have. An answer may be shorter
    than requested, and its text may have fewer tokens than the model generated."""

    def __init__(
        self, lengths: Sequence[PlannedRequest], count: Callable[[str], int | None] | None
    ) -> None:
        self._lengths = lengths
        self._count = count
        self._followed = {n.history for n in lengths}
        # exchange → tokens that the history after it lacks
        self._lacks: dict[int, int] = {}

    def correct(self, r: Record) -> None:
        request = r.index % len(self._lengths)
        history = self._lengths[request].history
        lacks = 0 if history is None else self._lacks.get(r.index - request + history, 0)
        r.prompt_tokens_planned -= lacks
        if r.error is None and request in self._followed:
            tokens = self._count(r.text) if self._count and not r.reasoning else None
            if tokens is None and r.output_tokens is not None:
                # a history has no reasoning
                tokens = r.output_tokens - (r.reasoning_tokens or 0)
            self._lacks[r.index] = lacks + (
                0 if tokens is None else r.output_tokens_wanted - tokens
            )


def _check_warmup(
    spools: list[Path], trial: TrialSpec, requests: Sequence[Request], stop: Stop
) -> None:
    """Raise TargetError if no warm-up request got through: no other will, and now is better than after a thousand
    failures."""
    sources = processes.sources(spools, planned(requests), trial.api)
    records = itertools.chain.from_iterable(SpoolRecords(s).all() for s in sources)
    in_order = sorted(records, key=attrgetter("end_ns"))
    errors = [(r.error, r.error_detail) for r in map(cleaned, in_order)]
    for spool in spools:
        spool.unlink(missing_ok=True)
    if all(error for error, _ in errors) and not stop.requested:
        kind, detail = errors[0]
        raise TargetError(
            f"All {len(errors)} warm-up requests failed ({kind}: {detail}). Nothing was measured. Check "
            f"{setting_name('--backend')}, {setting_name('--endpoint')} and {setting_name('--model')}."
        )


def _counter(tokenizer: Tokenizer | None) -> Callable[[str], int | None] | None:
    """Return a function that counts the tokens of an answer, as long as the tokenizer's server can be asked."""
    if tokenizer is None:
        return None
    gone = False

    def count(text: str) -> int | None:
        nonlocal gone
        if not gone:
            try:
                return max(tokenizer.count(text) - tokenizer.count(""), 0)
            except TargetError:  # the server's own, and it has ended
                gone = True
        return None

    return count


def _keyed(trial: TrialSpec) -> bool:
    """Return whether its requests carried secrets, which are in no file."""
    return bool(trial.target.header_names) or secrets.HIDDEN in str(trial.extra_body)


def _key_came_back(run: Run) -> bool:
    """Return whether a key is in an answer's words or anywhere in its bytes, also across reads and HTTP chunks.
    The spool has stars only over what came in one piece."""
    if any(
        secrets.HIDDEN in f"{r.text} {r.model} {r.finish_reason} {r.error_detail}"
        for r in run.records()
    ):
        return True
    for raw in itertools.chain.from_iterable(map(responses, run.spools())):
        for data in (raw, _CHUNK.sub(b"", raw)):
            text = data.decode("utf-8", "replace")
            if secrets.clean(text) != text:
                return True
    return False
