"""`dyno.serve`, `throughput`, `latency` and `micro`: one measurement each, with a run as the value.

`on_server` and `offline` are what the commands call: they take a trial instead of keywords.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno import plugins, secrets
from dyno.api import keywords
from dyno.api.headers import proxied, request_headers
from dyno.api.progress import OnProgress, Reporter
from dyno.api.runs import RUNS, MeasuredRun
from dyno.conduct import provide
from dyno.errors import Interrupted
from dyno.facts.engine import EngineSpec
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Stop
from dyno.trial import offline as offline_trial
from dyno.trial import online, slots
from dyno.trial.outcome import Outcome
from dyno.trial.watcher import Watcher

if TYPE_CHECKING:
    from typing import Unpack

    from dyno.api.keys import LatencyKeys, MicroKeys, ServeKeys, ThroughputKeys


@keywords.signed(keywords.SERVE)
def serve(
    *,
    label: str | None = None,
    headers: Mapping[str, str] | None = None,
    runs: str | os.PathLike[str] = RUNS,
    keep_raw: bool = False,
    progress: OnProgress | None = None,
    **settings: "Unpack[ServeKeys]",
) -> MeasuredRun:
    """Measure a server, or an engine that dyno starts, under a load, as `dyno bench serve` does.

        run = dyno.serve(base_url="http://127.0.0.1:8000", max_concurrency=64, num_prompts=500)
        print(run.verdict, run["p99_ttft_ms"])

    `engine`: start this engine, such as "vllm", and stop it. `headers`: sent with each request; the key of
    OPENAI_API_KEY is sent without being named. `runs`: the folder of runs. `progress`: called with each
    `ProgressReport`. All other keywords are keys of a study, with the defaults of the command.
    """
    with keywords.spoken():
        trial, key_env = keywords.served(settings, label)
        target, login = proxied(trial.target)
        secrets.learn(secrets.values(os.environ))
        sent = request_headers(headers or {}, key_env) | login
        trial = keywords.aimed(trial, target, sent)
        watcher = Reporter(progress)
        trial = planned(trial)
        prepare([trial], watcher)
        outcome = on_server(
            trial, runs=Path(runs), headers=sent, watcher=watcher, keep_raw=keep_raw
        )
    interrupted = outcome.result.served.outcome == "interrupted"
    return _finished(outcome, interrupted)


@keywords.signed(keywords.THROUGHPUT)
def throughput(
    *,
    label: str | None = None,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
    **settings: "Unpack[ThroughputKeys]",
) -> MeasuredRun:
    """Load an engine, send it all prompts at once, and time it, as `dyno bench throughput` does.

    Without `model` it is a small model that comes with dyno."""
    return _offline("throughput", settings, label, runs, progress)


@keywords.signed(keywords.LATENCY)
def latency(
    *,
    label: str | None = None,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
    **settings: "Unpack[LatencyKeys]",
) -> MeasuredRun:
    """Load an engine and time one batch many times, as `dyno bench latency` does."""
    return _offline("latency", settings, label, runs, progress)


@keywords.signed(keywords.MICRO)
def micro(
    *,
    label: str | None = None,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
    **settings: "Unpack[MicroKeys]",
) -> MeasuredRun:
    """Time prompt processing or generation alone, one test of `dyno bench micro`.

    `input_len=512` is llama-bench's pp512 (the default), `output_len=128` its tg128."""
    return _offline("micro", settings, label, runs, progress)


def _offline(
    kind: keywords.Offline,
    settings: Mapping[str, Any],
    label: str | None,
    runs: str | os.PathLike[str],
    progress: OnProgress | None,
) -> MeasuredRun:
    with keywords.spoken():
        trial = keywords.offline(kind, settings, label)
        watcher = Reporter(progress)
        prepare([trial], watcher)
        outcomes = list(offline([trial], runs=Path(runs), watcher=watcher))
    if not outcomes:
        raise Interrupted("interrupted during the first iteration. Nothing was measured.")
    return _finished(outcomes[0], outcomes[0].interrupted)


def _finished(outcome: Outcome, interrupted: bool) -> MeasuredRun:
    if interrupted:
        path = outcome.run.path
        raise Interrupted(
            f"interrupted. What was measured until then is kept: dyno.load({str(path)!r}).",
            path,
        )
    return MeasuredRun(outcome.run.path)


# ---- what the commands call, too ----


def planned(trial: TrialSpec) -> TrialSpec:
    """Return the trial with what follows from its load: slots of an engine that dyno starts."""
    [trial] = slots.for_loads([trial])
    return trial


def on_server(
    trial: TrialSpec,
    *,
    runs: Path,
    headers: dict[str, str],
    watcher: Watcher | None = None,
    stop: Stop | None = None,
    keep_raw: bool = False,
) -> Outcome:
    """Measure a planned trial on its server, or on the engine that is started for it."""
    outcome = online.serve(
        trial, runs=runs, headers=headers, watcher=watcher, stop=stop, keep_raw=keep_raw
    )
    plugins.deliver(outcome.run.path)
    return outcome


def offline(
    trials: list[TrialSpec], *, runs: Path, watcher: Watcher | None = None
) -> Iterator[Outcome]:
    """Measure trials in their engines' own processes; yield each as it is done."""
    for outcome in offline_trial.conduct(trials, runs=runs, watcher=watcher):
        plugins.deliver(outcome.run.path)
        yield outcome


def needs(trials: Iterable[TrialSpec | EngineSpec]) -> list[provide.Need]:
    """Return the models and images that engines need and that aren't here. An engine that is not installed is an
    error."""
    specs = (trial.engine if isinstance(trial, TrialSpec) else trial for trial in trials)
    return provide.needs([spec for spec in specs if spec], installs=False)


def study_needs(trials: Sequence[TrialSpec]) -> list[provide.Need]:
    """Return what trials of a study lack: models, data sets, tools, engines and images."""
    specs = [trial.engine for trial in trials if trial.engine]
    tests = [trial.quality for trial in trials if trial.quality]
    return provide.needs(specs, [trial.workload for trial in trials], tests=tests)


def prepare_study(trials: Sequence[TrialSpec], watcher: Watcher) -> None:
    """Fetch, make and install what trials of a study lack."""
    if missing := study_needs(trials):
        provide.run(provide.with_sizes(missing), watcher.phase, watcher.below)


def prepare(trials: Iterable[TrialSpec], watcher: Watcher) -> None:
    """Fetch and make what engines need."""
    if missing := needs(trials):
        provide.run(provide.with_sizes(missing), watcher.phase, watcher.below)
