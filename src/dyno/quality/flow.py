"""A quality trial, from the spec to the result: items are asked at each concurrency, answers scored and compared.

What is answered stays answered: a trial that was stopped or killed asks only the rest.
"""

import contextlib
import signal
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

import dyno
from dyno import secrets
from dyno.checks import examine
from dyno.checks.evidence import QualityEvidence
from dyno.engines.launch import public_spec
from dyno.errors import Interrupted, StoreError, TargetError
from dyno.facts.finding import verdict
from dyno.facts.load import LoadSpec
from dyno.facts.quality import (
    ItemAnswer,
    PairedDifference,
    QualityPass,
    QualitySpec,
    QualitySummary,
    Sitting,
)
from dyno.facts.record import Record
from dyno.facts.study import Place
from dyno.facts.summary import Result
from dyno.facts.trial import TrialSpec
from dyno.http import Client, Url
from dyno.load import decode
from dyno.load.progress import Stop
from dyno.load.protocols import PROTOCOLS
from dyno.load.settle import cleaned
from dyno.load.spool import END, NO_STAMP, Spool
from dyno.load.wire import Wire
from dyno.measure.paired import paired
from dyno.numbers import many
from dyno.quality import ask, lm_eval
from dyno.quality.ask import Question
from dyno.signals import lent
from dyno.store.run import Manifest, Run, create, listed
from dyno.trial import weights
from dyno.trial.online import log_remarks, manifest_of
from dyno.trial.outcome import Outcome
from dyno.trial.prepare import Prepared, Prompts, closed_loop, hidden
from dyno.trial.serving import plan_of, serving
from dyno.trial.session import Session
from dyno.trial.watcher import Watcher
from dyno.units import seconds
from dyno.workload import chat_template
from dyno.workload.spec import Workload
from dyno.workload.tokenizer import local

_ROUNDS = 2  # a request that failed is sent once more


def evaluate(
    trial: TrialSpec,
    *,
    runs: Path,
    headers: dict[str, str],
    watcher: Watcher | None = None,
    stop: Stop | None = None,
    new: bool = False,
) -> Outcome:
    """Conduct one trial, on an engine started for it or a server that runs already. `new`: don't continue an earlier
    one that was interrupted."""
    watcher, stop = watcher or Watcher(), stop or Stop()
    secrets.learn(hidden(trial, headers))
    if ask.other_tasks(_spec(trial)):
        lm_eval.interpreter()  # where it is missing, before an engine starts
    plan, run = plan_of(trial), None
    if plan is not None:
        stored = msgspec.structs.replace(trial, engine=public_spec(plan.stored))
        run = _folder(runs, stored, plan.served_name, new)
    with serving(trial, plan, run, headers, watcher, stop) as session:
        run = run or _folder(runs, trial, session.target.model, new)
        outcome = measure(run, session, trial)
    if outcome is None:
        raise Interrupted(
            f"interrupted. Its answers so far are kept in {run.path}. Run the command again to continue."
        )
    return outcome


def _folder(runs: Path, trial: TrialSpec, model: str, new: bool) -> Run:
    """Return the folder of the same trial that was interrupted, else a new one."""
    for run in reversed([] if new else listed(runs)[-100:]):
        with contextlib.suppress(StoreError):  # of another version of dyno
            old = run.manifest()
            server = (
                trial.engine == old.trial.engine
                if trial.engine
                else trial.target.urls == old.trial.target.urls
            )
            same = server and old.trial.quality == trial.quality and old.place is None
            if same and not run.whole and not run.running():
                return run
    return create(runs, f"quality-{Path(model).name}")


def measure(
    run: Run, session: Session, trial: TrialSpec, place: Place | None = None
) -> Outcome | None:
    """Ask what has no answer yet, at each concurrency in turn. None: it was interrupted."""
    trial = _aimed(trial, session)
    spec = _spec(trial)
    named = weights.tokenizer(trial)
    counter = local(named) if named and ask.own_tasks(spec) else None
    questions = ask.questions(spec, counter.count if counter else None)
    tests = session.test(trial)
    _begin(
        run,
        session,
        Prepared(trial, _prompts(trial, questions), place=place, test_requests=tests),
    )
    with (
        run.lock(),
        lent((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), session.stop.request),
    ):
        for concurrency in spec.concurrency:
            for last in (number == _ROUNDS for number in range(1, _ROUNDS + 1)):
                _ask(run, session, trial, questions, concurrency, last)
            if ask.other_tasks(spec):
                lm_eval.ask(run, session, trial, concurrency)
            if session.stop.requested:
                return None
    template = _template(session, trial) if ask.form_of(spec) == "chat" else None
    return finish(run, {question.key: question for question in questions}, template)


def _spec(trial: TrialSpec) -> QualitySpec:
    assert trial.quality is not None
    return trial.quality


def _aimed(trial: TrialSpec, session: Session) -> TrialSpec:
    """Return the trial at the server that runs, on the route that its form needs, greedy."""
    if session.fleet:
        session.fleet.check_ports()
        trial = session.fleet.aim(trial)
    target, form = trial.target, ask.form_of(_spec(trial))
    backend = target.backend
    if form == "chat":
        backend = "openai-chat"
    elif backend == "openai-chat":
        backend = "openai"
    if backend != target.backend:
        target = msgspec.structs.replace(
            target, backend=backend, endpoint=PROTOCOLS[backend].path
        )
    stop = {"stop": [ask.END]} if PROTOCOLS[backend].takes_stop else {}
    fields = PROTOCOLS[backend].fields
    sampling = {"temperature": 0.0} if fields is None or "temperature" in fields else {}
    extra = {**stop, **trial.extra_body}
    return msgspec.structs.replace(
        trial, target=target, sampling=sampling, ignore_eos=False, extra_body=extra
    )


def _prompts(trial: TrialSpec, questions: Sequence[Question]) -> Prompts:
    whole = sha256(" ".join(ask.sha(q.request) for q in questions).encode()).hexdigest()
    return Prompts(
        Workload(
            trial.workload,
            [q.request for q in questions],
            [],
            trial.tokenizer,
            "approximate",
            whole,
        )
    )


def _begin(run: Run, session: Session, prepared: Prepared) -> None:
    """Write what is asked of whom. Answers to other questions, or of another model, are deleted."""
    new = manifest_of(session, prepared)
    if run.manifest_path.exists():
        if _same(run.manifest(), new):
            return
        for path in (
            *run.path.glob("answers-*.jsonl"),
            run.sittings_path,
            run.spool_path,
            *run.path.glob("lm-eval*"),
        ):
            path.unlink(missing_ok=True)
    run.write_manifest(new)


def _same(old: Manifest, new: Manifest) -> bool:
    def asked(m: Manifest) -> list[object]:
        return [
            m.trial.quality,
            m.workload_sha256,
            m.target.model,
            m.target.version,
            m.target.quantization,
            m.dyno,
        ]

    return asked(old) == asked(new)


def _template(session: Session, trial: TrialSpec) -> str | None:
    """Return the chat template: llama.cpp's server reports it, others have it from the model's folder."""
    client = Client(Url(trial.target.base_url), session.headers, trial.target)
    with contextlib.closing(client):
        template = chat_template.of_server(client)
    if template is None and trial.engine and trial.engine.model:
        template = chat_template.beside(Path(trial.engine.model))
    return template.text if template else None


# ---- built-in tasks: by dyno's own wire ----


def _ask(
    run: Run,
    session: Session,
    trial: TrialSpec,
    questions: Sequence[Question],
    concurrency: int,
    last: bool,
) -> None:
    """Ask those without an answer. Requests that fail are stored as failed where it is the last time."""
    _recover(run, trial, questions)
    known = {(a.task, a.item) for a in run.answers(concurrency)}
    missing = [q for q in questions if q.key not in known]
    if not missing or session.stop.requested:
        return
    done = f", {len(known):,} are answered" if known else ""
    session.watcher.phase(
        f"Asking {many(len(missing), 'item')} at concurrency {concurrency}{done}"
    )
    process = session.fleet.facts.start if session.fleet else None
    sittings = run.sittings()
    run.write_sittings(
        [*sittings, Sitting(concurrency, process, pending=[q.key for q in missing])]
    )
    load = LoadSpec(
        max_concurrency=concurrency, request_timeout_s=trial.load.request_timeout_s
    )
    keys = [word.encode() for word in secrets.of_headers(session.headers)]
    with contextlib.closing(_PromptSpool(run.spool_path, keys)) as spool:
        load_now = closed_loop(
            msgspec.structs.replace(trial, load=load), session, [q.request for q in missing]
        )
        client = Wire(
            load_now,
            spool,
            watch=session.watcher.progress,
            stop=session.stop,
            core=session.core,
        ).drive()
    session.watcher.over()
    failed = _recover(
        run, trial, questions, keep_failed=last and client.outcome == "complete"
    )
    if client.outcome in ("server gone", "all failed"):
        why = f"{failed[0].error}: {failed[0].error_detail}" if failed else "no answer"
        raise TargetError(
            f"The server stopped answering ({why}). Answers so far are kept in {run.path}."
        )


class _PromptSpool(Spool):
    """Writes each answer as it ends: a kill costs only the requests that are under way."""

    def note(
        self,
        kind: int,
        exchange: int,
        at_ns: int,
        stamp: bytes = NO_STAMP,
        payload: bytes = b"",
    ) -> None:
        super().note(kind, exchange, at_ns, stamp, payload)
        if kind == END:
            self.flush()


def _recover(
    run: Run, trial: TrialSpec, questions: Sequence[Question], keep_failed: bool = False
) -> list[Record]:
    """Turn the spool into answers, also that of a dyno that was killed. Return the records of failed requests."""
    if not run.spool_path.exists():
        return []
    *before, sitting = run.sittings()
    by_key = {question.key: question for question in questions}
    asked = [by_key[key] for key in sitting.pending]
    answers = {(a.task, a.item): a for a in run.answers(sitting.concurrency)}
    failed, end_ns = [], 0
    protocol = PROTOCOLS[trial.target.backend]
    for record in map(
        cleaned, decode.records(run.spool_path, [q.request for q in asked], protocol)
    ):
        end_ns = max(end_ns, record.end_ns)
        failed += [record] if record.error else []
        if record.error is None or keep_failed:
            answers[asked[record.index].key] = ask.answered(
                _spec(trial), asked[record.index], record
            )
    run.write_answers(sitting.concurrency, answers.values())
    run.write_sittings(
        [*before, msgspec.structs.replace(sitting, pending=[], duration_s=seconds(end_ns))]
    )
    run.drop_raw()
    return failed


# ---- the result ----


def finish(
    run: Run, questions: dict[tuple[str, str], Question], template: str | None
) -> Outcome:
    """Make the result from the run's folder. `template`: the chat template, where it is known."""
    manifest, sittings, engine = run.manifest(), run.sittings(), run.engine()
    spec = _spec(manifest.trial)
    each = {concurrency: run.answers(concurrency) for concurrency in spec.concurrency}
    passes = [_pass(run, manifest, c, answers, questions) for c, answers in each.items()]
    processes = list(dict.fromkeys(s.process for s in sittings if s.process))
    summary = QualitySummary(
        form=ask.form_of(spec),
        passes=passes,
        tools={"dyno": dyno.__version__} | lm_eval.tools(run, spec),
        template_sha256=sha256(template.encode()).hexdigest()[:16] if template else None,
        process="; ".join(processes) or None,
        load_changes=_changes(
            *(each[c] for c in (spec.concurrency[0], spec.concurrency[-1]))
        ),
    )
    # Without the server's words, which may quote a prompt: answers-N.jsonl has them.
    errors = (
        answer.error.partition(":")[0]
        for answers in each.values()
        for answer in answers
        if answer.error
    )
    findings = examine(
        QualityEvidence(
            trial=manifest.trial,
            target=manifest.target,
            rig=manifest.rig,
            engine=engine,
            first_failure=run.first_failure(),
            remarks=log_remarks(run),
            quality=summary,
            sittings=sittings,
            failures=", ".join(dict.fromkeys(errors)),
        )
    )
    result = Result(None, findings, verdict(findings), quality=summary)
    run.write_result(result)
    return Outcome(run, manifest, result)


def _pass(
    run: Run,
    manifest: Manifest,
    concurrency: int,
    answers: list[ItemAnswer],
    questions: dict[tuple[str, str], Question],
) -> QualityPass:
    spec = _spec(manifest.trial)
    own = [a for a in answers if (a.task, a.item) in questions]

    def asked(answer: ItemAnswer) -> tuple[int, int]:
        request = questions[answer.task, answer.item].request
        return request.prompt_tokens, len(request.prompt)

    return QualityPass(
        concurrency=concurrency,
        scores=[*ask.scores(spec, own), *lm_eval.scores(run, concurrency)],
        duration_s=sum(
            s.duration_s or 0.0 for s in run.sittings() if s.concurrency == concurrency
        ),
        failed=sum(a.error is not None for a in _items(answers)),
        cut=sum(a.finish_reason == "length" for a in _items(answers)),
        not_extracted=sum(a.error is None and a.extracted is None for a in answers),
        truncated=ask.dropped(own, asked, manifest.target.max_model_len)
        + lm_eval.truncated(run, concurrency),
    )


def _items(answers: Sequence[ItemAnswer]) -> list[ItemAnswer]:
    """One score of each item: lm-eval may have several metrics and filters of a task. Its first is taken."""
    first: dict[tuple[str, str], ItemAnswer] = {}
    for answer in answers:
        first.setdefault((answer.task, answer.item), answer)
    return list(first.values())


def _changes(
    first: Sequence[ItemAnswer], last: Sequence[ItemAnswer]
) -> PairedDifference | None:
    """Compare the last pass with the first, by item; None: there is one pass."""
    if first is last:
        return None
    a, b = (
        {(x.task, x.item): x.score for x in _items(answers)} for answers in (first, last)
    )
    both = [key for key in a if key in b]
    return paired([a[key] for key in both], [b[key] for key in both]) if both else None
