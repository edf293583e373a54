"""A trial, from the spec to the result: the central flow of dyno, readable from top to bottom."""

import contextlib
import datetime
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

import dyno
from dyno import secrets
from dyno.checks import examine
from dyno.checks.evidence import Evidence
from dyno.conduct.engine_plan import EnginePlan
from dyno.conduct.fleet import Fleet, empty_caches, room, running
from dyno.conduct.prompts import Prompts, check_context, fitting, longest, prompts
from dyno.conduct.signals import lent
from dyno.conduct.watcher import Watcher
from dyno.engines.kinds import kind_of
from dyno.engines.launch import public_spec, spec_secrets
from dyno.errors import DynoError, Interrupted, NotSummedUp, StoreError, TargetError, UsageError
from dyno.facts.client import ClientFacts
from dyno.facts.finding import verdict
from dyno.facts.load import LoadSpec
from dyno.facts.model import ModelShape
from dyno.facts.record import Record
from dyno.facts.request import Request
from dyno.facts.roofline import Peaks
from dyno.facts.study import Place
from dyno.facts.summary import Result, Summary, Unfrozen
from dyno.facts.target import TargetFacts
from dyno.facts.telemetry import SamplerSpec
from dyno.facts.trial import TrialSpec
from dyno.facts.workload import Workload
from dyno.http import Client, Route, Url
from dyno.load import decode, http1, plan
from dyno.load.progress import Progress, Stop
from dyno.load.protocols import PROTOCOLS, Asked, WireProtocol
from dyno.load.spool import Spool, responses
from dyno.load.wire import Wire
from dyno.measure import freeze, roofline, telemetry
from dyno.measure.counting import Counting, length_is_known
from dyno.measure.summary import Tally
from dyno.probe import host, rig, server
from dyno.probe.telemetry import sampler
from dyno.probe.telemetry.sampler import Sampler
from dyno.store.run import Manifest, Run, create, sent_before
from dyno.units import seconds
from dyno.workload.tokenizer import Tokenizer

Watch = Callable[[Progress], None] | None


class Outcome(msgspec.Struct, frozen=True):
    run: Run
    manifest: Manifest
    result: Result


def serve(
    trial: TrialSpec,
    *,
    runs: Path,
    headers: dict[str, str],
    watcher: Watcher | None = None,
    stop: Stop | None = None,
    keep_raw: bool = False,
) -> Outcome:
    """Starts the engine where there is one to start, looks at the server, makes the prompts, and measures."""
    watcher, stop = watcher or Watcher(), stop or Stop()
    secrets.learn(hidden(trial, headers))
    if trial.engine is not None and kind_of(trial.engine.kind).starts:
        plan = EnginePlan(trial.engine, rig.look())
        _refuse(plan.problems([longest(trial)]))
        work = None
        if named := trial.tokenizer or plan.tokenizer:  # without the server: what is too long is known before it starts
            work = prompts(msgspec.structs.replace(trial, tokenizer=named), watcher)
            _refuse(plan.problems(work.lengths))
        for note in plan.notes(trial.load.max_concurrency):
            watcher.phase(note)
        run = create(runs, f"serve-{Path(plan.served_name).name}-{trial.load.slug}")
        try:
            with running(plan, run.path, headers, watcher.phase, run.write_engine) as fleet:
                tokenizer = on_fleet(run, trial, fleet, headers, watcher, stop, work)
        except KeyboardInterrupt:
            if run.client() is None:  # nothing is measured yet
                raise
            raise _not_summed_up(run) from None
    else:
        target = look_at(trial, headers, watcher)
        work = fitting(trial, target, headers, watcher)
        run = create(runs, f"serve-{Path(target.model).name}-{trial.load.slug}")
        before = sent_before(runs, work.workload.sha256, trial.target)
        tokenizer = on_server(run, trial, target, headers, watcher, stop, work, before)
    watcher.phase("Decoding")
    try:
        return finish(run, tokenizer, keep_raw, keys_known=True)
    except KeyboardInterrupt:
        raise _not_summed_up(run) from None


def _not_summed_up(run: Run) -> Interrupted:
    return Interrupted(
        f"Everything is measured, and the result isn't summed up yet: `dyno runs show {run.path}` does that."
    )


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UsageError(" ".join(problems))


def on_fleet(
    run: Run,
    trial: TrialSpec,
    fleet: Fleet,
    headers: dict[str, str],
    watcher: Watcher,
    stop: Stop,
    work: Prompts | None = None,
    place: Place | None = None,
) -> Tokenizer | None:
    """One of the trials on an engine that dyno has started."""
    fleet.check_ports()
    trial = aimed(trial, fleet)
    work = work or fitting(trial, fleet.target, headers, watcher)
    check_context(work.lengths, fleet.target)
    empty = fleet.empty_cache if trial.reset_cache else None
    measure(
        run, trial, fleet.target, work.workload, headers, watcher, stop, empty, engine_cpu_s=fleet.cpu_s, place=place,
        model=fleet.plan.shape(), peaks=fleet.peaks, core=room(fleet.plan)[2],
    )  # fmt: skip
    return work.counter


def public(trial: TrialSpec) -> TrialSpec:
    """As it is kept: a key that is sent in each request's body reaches no file."""
    return msgspec.structs.replace(
        trial,
        extra_body=secrets.public(trial.extra_body),
        metadata=secrets.public(trial.metadata),
        engine=trial.engine and public_spec(trial.engine),
    )


def hidden(trial: TrialSpec, headers: dict[str, str]) -> list[str]:
    """The secrets that a trial's requests and its engine are given."""
    engine = spec_secrets(trial.engine) if trial.engine else []
    return [*secrets.of_headers(headers), *secrets.within([trial.extra_body, trial.metadata]), *engine]


def look_at(trial: TrialSpec, headers: dict[str, str], watcher: Watcher) -> TargetFacts:
    """A server that runs: waited for where that is asked for, then what it says of itself."""
    if trial.ready_check_timeout_s:
        watcher.phase("Waiting for the server")
        for url in trial.target.urls:
            _wait_until_ready(trial, Url(url), headers)
    return _look(trial, headers)


def on_server(
    run: Run,
    trial: TrialSpec,
    target: TargetFacts,
    headers: dict[str, str],
    watcher: Watcher,
    stop: Stop,
    work: Prompts,
    before: str | None = None,
    place: Place | None = None,
) -> Tokenizer | None:
    """One of the trials on a server that somebody else has started."""
    empty = _emptier(trial, target, headers) if trial.reset_cache else None
    measure(run, trial, target, work.workload, headers, watcher, stop, empty, before, place=place)
    return work.counter


def aimed(trial: TrialSpec, fleet: Fleet) -> TrialSpec:
    """The trial at the engines that run now, as it is kept: without the setting's secrets."""
    urls = fleet.urls
    target = msgspec.structs.replace(
        trial.target, base_url=urls[0], more_urls=urls[1:], served_model_name=fleet.plan.served_name
    )
    return msgspec.structs.replace(
        trial, target=target, engine=public_spec(fleet.plan.spec), tokenizer=trial.tokenizer or fleet.plan.tokenizer
    )


def measure(
    run: Run,
    trial: TrialSpec,
    target: TargetFacts,
    work: Workload,
    headers: dict[str, str],
    watcher: Watcher,
    stop: Stop,
    empty_cache: Callable[[], bool] | None = None,
    sent: str | None = None,
    engine_cpu_s: Callable[[], float | None] | None = None,
    place: Place | None = None,
    model: ModelShape | None = None,
    peaks: Peaks | None = None,
    core: int | None = None,
) -> None:
    """Puts the load on. What it met lies in the run's folder then."""
    urls = [Url(url) for url in trial.target.urls]
    protocol = PROTOCOLS[trial.target.backend]
    manifest = Manifest(
        dyno=dyno.__version__,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        trial=public(_sent_with(trial, headers)),
        target=target,
        tokenizer=work.tokenizer,
        counted_by=work.counted_by,
        workload_sha256=work.sha256,
        prompts=len(work.requests),
        repeated_prompts=work.repeated,
        sent_before=sent,
        rig=rig.look(trial.target.urls),
        place=place,
        model=model,
        peaks=peaks,
    )
    run.write_manifest(manifest, work.requests)

    asked = Asked(target.model, trial.ignore_eos, trial.sampling, trial.extra_body)
    host_given = next((value for name, value in headers.items() if name.lower() == "host"), None)
    routes = [Route(url, trial.target, headers) for url in urls]
    fronts = [http1.front("POST", r.front + trial.target.endpoint, host_given or r.url.netloc) for r in routes]
    head = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
    head |= {name: value for name, value in routes[0].headers.items() if name.lower() != "host"}
    encode = msgspec.json.Encoder().encode

    def drive(requests: list[Request], load: LoadSpec, count: int, spool_path: Path, watch: Watch) -> ClientFacts:
        payloads = (http1.payload(head, encode(protocol.body(r, asked))) for r in requests)
        spool = Spool(spool_path, [word.encode() for word in secrets.of_headers(headers)])
        try:
            return Wire(
                urls,
                fronts,
                payloads,
                plan.make(load, count),
                spool,
                via=trial.target,
                headers=headers,
                timeout_s=load.request_timeout_s,
                response_max=trial.load.response_bytes_max or _response_max(requests),
                watch=watch,
                stop=stop,
                core=core,
            ).drive()
        finally:
            spool.close()

    def ask(*_: object) -> None:
        stop.requested = True

    # While the load runs, Ctrl-C asks it to stop: what was measured is kept.
    with lent((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), ask), contextlib.ExitStack() as last:
        # Before the warm-up: it takes a moment to start.
        sampling = Sampler(_sampled(run, trial, headers))
        last.callback(sampling.end)
        if work.warmups:
            watcher.phase(f"Warming up with {len(work.warmups)} requests")
            load = LoadSpec(max_concurrency=trial.load.max_concurrency, request_timeout_s=trial.load.request_timeout_s)
            drive(work.warmups, load, len(work.warmups), run.warmup_path, None)
            _check_warmup(run, work.warmups, protocol, stop)
        if empty_cache is not None and target.prefix_caching is not False:
            # After the warm-up: what it left behind is nobody's prefix.
            run.write_manifest(msgspec.structs.replace(manifest, cache_emptied=empty_cache()))
        watcher.phase("Measuring")
        try:
            count = _count(trial, len(work.requests))
            sampling.begin()
            watcher.sampling(sampling)
            before = others_s(engine_cpu_s)
            client = drive(work.requests, trial.load, count, run.spool_path, watcher.progress)
            after = others_s(engine_cpu_s)
            if before is not None and after is not None and client.duration_ns:
                others = max(after - before, 0.0) / seconds(client.duration_ns)
                client = msgspec.structs.replace(client, others_cpu=others)
            run.write_client(client)
        finally:
            sampling.end()
            watcher.over()


def _sent_with(trial: TrialSpec, headers: dict[str, str]) -> TrialSpec:
    target = msgspec.structs.replace(trial.target, header_names=sorted(headers))
    return msgspec.structs.replace(trial, target=target)


def _sampled(run: Run, trial: TrialSpec, headers: dict[str, str]) -> SamplerSpec:
    local = any(Url(url).local for url in trial.target.urls)
    return SamplerSpec(str(run.telemetry_path), trial.target.urls, headers, trial.target, accelerators=local)


def finish(
    run: Run,
    tokenizer: Tokenizer | None = None,
    keep_raw: bool = False,
    only_whole: bool = False,
    keys_known: bool = False,
) -> Outcome:
    """From what lies in the folder to the result: after the load, or later for a run that was cut off.

    `only_whole`: the result is written only where the load came to its end, all of it is on record and something was
    completed. `keys_known`: by this process, which has sent them. Where they aren't, they can't be taken out of
    answers: the words of these are not kept then.
    """
    try:
        return _finish(run, tokenizer, keep_raw, only_whole, keys_known)
    except DynoError:
        raise
    except Exception as e:  # dyno's own mistake: it costs this trial and no other
        raise NotSummedUp(
            f"{run.path} is measured and can't be summed up ({type(e).__name__}: {e}). That is a bug in dyno: "
            "please report it. The folder keeps what was measured, and `dyno runs show` tries again."
        ) from e


def _finish(run: Run, tokenizer: Tokenizer | None, keep_raw: bool, only_whole: bool, keys_known: bool) -> Outcome:
    manifest, client = run.manifest(), run.client()
    wordless = not keys_known and _keyed(manifest.trial)
    tally = Tally(manifest.trial)
    last_ns = sent = 0
    placed = client is not None and run.telemetry_path.exists()  # else the load's place on the samples' clock is lost
    for record in run.write_records(_records(run, manifest, client, tokenizer, wordless)):
        tally.add(record)
        last_ns = max(last_ns, record.end_ns)
        sent += 1
    if client is None:  # dyno itself was killed: the spool is all there is
        planned = max(sent, manifest.trial.workload.num_prompts)
        client = ClientFacts(0, last_ns, "interrupted", planned, sent, 0.0, 0, [], kernel_stamps=True)
    summary, engine = tally.summary(client), run.engine()
    if summary.freezes:
        summary = msgspec.structs.replace(summary, unfrozen=_unfrozen(run, manifest.trial, client, summary))
    sampled = None
    if placed:
        samples, facts = sampler.read(run.telemetry_path)
        if facts is not None:
            window = telemetry.Window.of_load(client, summary.steady)
            sampled = telemetry.summarize(samples, facts, window, summary.total_output_tokens, manifest.rig, engine)
    model, peaks = manifest.model, manifest.peaks
    shares = None
    if model is not None and peaks is not None:
        t = manifest.trial
        prefix = t.workload.prefix_len
        shares = roofline.of_served(summary, model, t.engine, manifest.target, peaks, sampled, prefix)
    findings = examine(
        Evidence(
            trial=manifest.trial,
            target=manifest.target,
            counted_by=manifest.counted_by,
            prompts=manifest.prompts,
            repeated_prompts=manifest.repeated_prompts,
            sent_before=manifest.sent_before,
            cache_emptied=manifest.cache_emptied,
            engine=engine,
            summary=summary,
            rig=manifest.rig,
            repeats=manifest.place.repeats if manifest.place else 1,
            first_failure=run.first_failure(),
            telemetry=sampled,
            roofline=shares,
        )
    )
    result = Result(summary, findings, verdict(findings), sampled, roofline=shares)
    if not only_whole or (client.outcome == "complete" and sent == client.sent and summary.completed):
        run.write_result(result)
    if run.whole and (not keep_raw or wordless or _sent_back(run)):
        run.drop_raw()
    return Outcome(run, manifest, result)


def _keyed(trial: TrialSpec) -> bool:
    """Its requests carried what is kept in no file."""
    return bool(trial.target.header_names) or secrets.HIDDEN in str(trial.extra_body)


def _sent_back(run: Run) -> bool:
    """A key came back: in an answer's words, or anywhere in its bytes, over the bounds of reads and HTTP chunks too.
    The spool has stars only over what came in one piece."""
    if any(secrets.HIDDEN in f"{r.text} {r.model} {r.finish_reason} {r.error_detail}" for r in run.records()):
        return True
    for raw in responses(run.spool_path) if run.spool_path.exists() else []:
        for data in (raw, _CHUNK.sub(b"", raw)):
            text = data.decode("utf-8", "replace")
            if secrets.clean(text) != text:
                return True
    return False


_CHUNK = re.compile(rb"\r\n[0-9a-fA-F]{1,8}\r\n")


def _unfrozen(run: Run, trial: TrialSpec, client: ClientFacts, s: Summary) -> Unfrozen:
    """The run's figures once more, without the time in which nothing moved."""
    cuts = freeze.Cuts(run.records(), s)
    tally = Tally(trial)
    for record in run.records():
        tally.add(cuts.record(record))
    return freeze.unfrozen(tally.summary(cuts.client(client)))


def _records(
    run: Run,
    manifest: Manifest,
    client: ClientFacts | None,
    tokenizer: Tokenizer | None,
    wordless: bool,
) -> Iterator[Record]:
    if not run.spool_path.exists():
        yield from run.records()
        return
    protocol = PROTOCOLS[manifest.trial.target.backend]
    start = None if client is None else client.start_ns
    unasked = () if client is None else client.unasked
    sampling = tokenizer is not None and tokenizer.counted_by == "tokenizer"  # a server isn't asked for no reason
    settling = Counting(_counter(tokenizer), length_is_known(manifest.trial), sampling)
    lengths = run.lengths()
    if not lengths:
        raise StoreError(f"{run.requests_path} is empty: without it, {run.spool_path.name} can't be decoded.")
    for record in decode.records(run.spool_path, lengths, protocol, start, unasked):
        settling.settle(record)
        if wordless:
            record.text, record.error_detail = "", ""
            record.model = manifest.target.model if record.model == manifest.target.model else None
            record.finish_reason = record.finish_reason if record.finish_reason in ("stop", "length") else None
        yield _cleaned(record)


def _cleaned(record: Record) -> Record:
    """Without a key that the server has sent back, by now in one piece whatever the reads, chunks and escapes were."""
    for name in ("text", "model", "finish_reason", "error", "error_detail"):
        setattr(record, name, secrets.clean(getattr(record, name)))
    record.error_detail = record.error_detail[:300]  # after that: half a key is a leak too
    return record


def _counter(tokenizer: Tokenizer | None) -> Callable[[str], int | None] | None:
    """Counts the tokens of an answer's text, as long as who does it can be asked."""
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


def others_s(engine_cpu_s: Callable[[], float | None] | None) -> float | None:
    """CPU seconds that neither dyno nor the engine that it started has used. None: can't be told."""
    busy, engine = host.busy_s(), engine_cpu_s() if engine_cpu_s else None
    return None if busy is None or engine is None else busy - engine - time.process_time()


def _look(trial: TrialSpec, headers: dict[str, str]) -> TargetFacts:
    clients = [Client(Url(url), headers, trial.target) for url in trial.target.urls]
    try:
        return server.look_at_all(clients, trial.target)
    finally:
        for client in clients:
            client.close()


def _emptier(trial: TrialSpec, target: TargetFacts, headers: dict[str, str]) -> Callable[[], bool]:
    kind = None if target.kind is None else kind_of(target.kind)
    return lambda: kind is not None and empty_caches(kind, trial.target.urls, headers, trial.target)


def _wait_until_ready(trial: TrialSpec, url: Url, headers: dict[str, str]) -> None:
    protocol = PROTOCOLS[trial.target.backend]
    model = trial.target.served_model_name or trial.target.model
    if model is None:
        client = Client(url, headers, trial.target)
        with contextlib.suppress(TargetError):
            model = server.look(client, trial.target).model
        client.close()
    body = protocol.body(Request("Are you ready?", 4, 1), Asked(model or "", sampling=trial.sampling))
    server.wait_ready(
        url, headers, trial.target.endpoint, {**body, **trial.extra_body}, trial.ready_check_timeout_s,
        trial.target,
    )  # fmt: skip


def _check_warmup(run: Run, requests: list[Request], protocol: WireProtocol, stop: Stop) -> None:
    """If no warm-up request gets through, no other will: better said now than after a thousand failures."""
    errors = [r for r in map(_cleaned, decode.records(run.warmup_path, requests, protocol)) if r.error]
    run.warmup_path.unlink()
    if len(errors) == len(requests) and not stop.requested:
        raise TargetError(
            f"All {len(requests)} warm-up requests failed ({errors[0].error}: {errors[0].error_detail}), so nothing "
            "was measured. Check --backend, --endpoint and --model."
        )


def _response_max(requests: list[Request]) -> int:
    """Far more than answers of this length take, with everything that can be asked for beside the text."""
    return (1 << 20) + 8192 * max((r.output_tokens for r in requests), default=0)


def _count(trial: TrialSpec, prompts: int) -> int:
    """How many requests the plan holds. A closed loop with a duration goes round the prompts until time is up."""
    if trial.load.duration_s is not None and trial.load.closed_loop:
        return 2**31
    return plan.prompts_needed(trial.load) or prompts
