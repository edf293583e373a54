"""`dyno.find` and `dyno.tune`: the highest load within a target, and an engine's best settings for a load."""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno import secrets
from dyno.api import html, keywords
from dyno.api.headers import key_headers, proxied, request_headers
from dyno.api.measuring import planned, prepare, prepare_study
from dyno.api.progress import OnProgress, Reporter
from dyno.api.runs import RUNS, MeasuredRun, MeasuredRuns
from dyno.api.vocabulary import command
from dyno.errors import Interrupted, TargetError, UsageError
from dyno.facts.entry import Cost
from dyno.facts.find import FindAnswer, FindSpec, span_s, spec_of
from dyno.facts.finding import Verdict
from dyno.facts.price import PriceRule
from dyno.facts.rig import Rig
from dyno.facts.trial import TrialSpec
from dyno.facts.tune import TuneAnswer
from dyno.load.progress import Stop
from dyno.option import problems
from dyno.report import find as find_text
from dyno.report import tune as tune_text
from dyno.search import find as search
from dyno.store.run import create, write
from dyno.store.study import StudyFolder
from dyno.trial.watcher import StudyWatcher, Watcher

if TYPE_CHECKING:
    from typing import Unpack

    from dyno.api.keys import FindKeys
    from dyno.search.tune_plan import TunePlan


class FoundLoad:
    """The answer of a search: the highest load within the target is between `low` and `high`.

    `decided`: whether there is an answer. `answer` has everything that was found, `runs` each load that was tried.
    """

    def __init__(self, answer: FindAnswer, folder: Path, series: str) -> None:
        self.answer, self.path, self._series = answer, folder, series

    @property
    def low(self) -> float | None:
        """Return the highest load that was shown to meet the target; None: none was."""
        return self.answer.low

    @property
    def high(self) -> float | None:
        """Return the lowest load that was shown to miss it; None: none was."""
        return self.answer.high

    @property
    def decided(self) -> bool:
        return self.answer.decided

    @property
    def verdict(self) -> Verdict:
        return self.answer.verdict

    @property
    def text(self) -> str:
        """Return what the command prints."""
        return "\n".join(find_text.lines(self.answer))

    @property
    def runs(self) -> MeasuredRuns:
        """Return the run of each load that was tried, in that order."""
        folders = (self.path / probe.run for probe in self.answer.probes)
        whole = (folder for folder in folders if (folder / "summary.json").exists())
        return MeasuredRuns(MeasuredRun(folder) for folder in whole)

    def cost(
        self, price: Sequence[str] = (), energy_price: float | None = None
    ) -> Cost | None:
        """Return the cost at the highest load. `price`: "2.99" per accelerator-hour, or "machine=12"."""
        from dyno.study.prices import price_rules

        rules = price_rules(list(price), energy_price, None)
        return cost_of(self.answer, self.path, rules)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<{find_text.headline(self.answer)} {self.path}>"

    def _repr_html_(self) -> str:
        picture = _svg(self.answer, self._series) or ""
        return html.lines(self.text) + picture


class TunedSettings:
    """The answer of `tune`: `best` has the settings, `commands` measure and start the engine with them."""

    def __init__(self, answer: TuneAnswer, folder: Path) -> None:
        self.answer, self.path = answer, folder

    @property
    def best(self) -> dict[str, Any] | None:
        """Return the best settings, {} for those of the default; None: no setting could be measured."""
        return None if self.answer.best is None else dict(self.answer.best.setting)

    @property
    def commands(self) -> list[str]:
        """Return the commands of the best settings: for dyno, and of the engine itself."""
        return self.answer.commands

    @property
    def text(self) -> str:
        """Return what the command prints."""
        return "\n".join(tune_text.lines(self.answer))

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<tuned: {self.best or 'no better settings'}, {self.path}>"

    def _repr_html_(self) -> str:
        return html.lines(self.text)


@keywords.signed(keywords.FIND)
def find(
    target: str | Sequence[str],
    *,
    over: str = "concurrency",
    least: float | None = None,
    most: float | None = None,
    resolution: float = 0.05,
    budget: float | str = 1200.0,
    confirm: float | str | None = None,
    label: str | None = None,
    headers: Mapping[str, str] | None = None,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
    **settings: "Unpack[FindKeys]",
) -> FoundLoad:
    """Find the highest load that a server carries within a target, as `dyno find` does.

        found = dyno.find(["ttft_p99:500ms", "failed:0"], base_url="http://127.0.0.1:8000", budget="10m")
        print(found.low, found.high, found.verdict)

    `over`: "concurrency" or "rate". `least`, `most`: --from and --to. `budget`, `confirm`: seconds, or "10m".
    All other keywords are those of `serve`, without its load.
    """
    wanted = {
        "over": over,
        "least": least,
        "most": most,
        "resolution": resolution,
        "budget_s": _seconds(budget, "budget"),
        "confirm_s": None if confirm is None else _seconds(confirm, "confirm"),
    }
    with keywords.spoken():
        spec = _spec([target] if isinstance(target, str) else list(target), wanted)
        trial, key_env = keywords.served(settings, label, keywords.FIND)
        aim, login = proxied(trial.target)
        secrets.learn(secrets.values(os.environ))
        sent = request_headers(headers or {}, key_env) | login
        trial = planned(keywords.aimed(trial, aim, sent))
        series = label or settings.get("engine") or "server"
        watcher = Reporter(progress)
        prepare([trial], watcher)
        answer, folder = highest(
            trial, spec, runs=Path(runs), series=series, headers=sent, watcher=watcher
        )
    if answer.ended == "interrupted":
        raise Interrupted("interrupted. The loads until then are kept.", folder)
    if answer.ended == "server gone":
        raise TargetError(f"The server went away during the search in {folder}.")
    return FoundLoad(answer, folder, series)


def _spec(target: Sequence[str], wanted: Mapping[str, Any]) -> FindSpec:
    values = {name: value for name, value in wanted.items() if value is not None}
    spec = spec_of(target, values, dashes="")
    try:
        checked = msgspec.convert(msgspec.to_builtins(spec), FindSpec)
    except msgspec.ValidationError as e:
        raise UsageError(f"dyno.find: {e}.") from None
    if wrong := list(problems(checked)):
        raise UsageError(f"dyno.find: {'; '.join(wrong)}.")
    return spec


def _seconds(value: float | str, name: str) -> float:
    if not isinstance(value, str):
        return float(value)
    if (span := span_s(value)) is None:
        raise UsageError(
            f"{name}: {value!r} is not a time. Write seconds, or '5m', or '2h'."
        )
    return span


def tune(
    study: str | os.PathLike[str],
    *,
    trials: int | None = None,
    budget: float | str = math.inf,
    variables: Mapping[str, Any] | None = None,
    rig: str | None = None,
    any_rig: bool = False,
    runs: str | os.PathLike[str] = RUNS,
    progress: OnProgress | None = None,
) -> TunedSettings:
    """Find an engine's best settings for a load, as `dyno tune` does. The same call resumes it."""
    from dyno.api.studies import study_path
    from dyno.conduct import study_plan
    from dyno.probe.rig import read_machine
    from dyno.search.tune_budget import TuneBudget
    from dyno.search.tune_plan import TunePlan, folder_for

    secrets.learn(secrets.values(os.environ))
    given = {name: str(value) for name, value in (variables or {}).items()}
    planned_study, text = study_plan.read(study_path(os.fspath(study)), given)
    if trials and planned_study.tune:
        wanted = msgspec.structs.replace(planned_study.tune, trials=trials)
        planned_study = msgspec.structs.replace(planned_study, tune=wanted)
    machine = read_machine()
    name = study_plan.choose_rig(planned_study, machine, rig, anyway=any_rig)
    plan, budget_s = TunePlan(planned_study, name), _seconds(budget, "budget")
    folder = folder_for(Path(runs), plan)
    if not folder.exists:
        TuneBudget(plan.spec, budget_s).check()
    reporter = Reporter(progress)
    prepare_study(plan.models(), reporter)
    answer = tuned(plan, text, folder, machine, lambda: reporter, budget_s)
    if answer.ended == "interrupted":
        raise Interrupted("interrupted. The same call resumes it.", folder.path)
    return TunedSettings(answer, folder.path)


# ---- what the commands call, too ----


def highest(
    trial: TrialSpec,
    spec: FindSpec,
    *,
    runs: Path,
    series: str,
    headers: dict[str, str],
    watcher: Watcher,
) -> tuple[FindAnswer, Path]:
    """Search in a folder of its own; return the answer and the folder."""
    folder = create(runs, f"find-{series}").path
    try:
        answer = search.find(
            trial, spec, folder=folder, headers=headers, watcher=watcher, stop=Stop()
        )
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # nothing was measured
        raise
    return answer, folder


def tuned(
    plan: "TunePlan",
    text: str,
    folder: StudyFolder,
    machine: Rig,
    view: Callable[[], StudyWatcher],
    budget_s: float,
) -> TuneAnswer:
    """Search for an engine's best settings, or resume it. `text`: of the study. `view`: makes who watches."""
    from dyno.conduct.study import conduct_part
    from dyno.search.tune import Tuner

    with folder.lock():
        watcher = view()
        try:
            conduct = functools.partial(conduct_part, text, folder, key_headers)
            return Tuner(plan, folder, machine, conduct, watcher, budget_s).run(command)
        finally:
            watcher.close()


def cost_of(answer: FindAnswer, folder: Path, rules: list[PriceRule]) -> Cost | None:
    """Return the cost at the highest load, as a report has it."""
    from dyno.conduct.read import ReportRequest, make_report, read_words

    best = answer.confirmed or answer.below
    if best is None:
        return None
    words = [str(folder / best.run)]
    report, _ = make_report(read_words(words, folder), ReportRequest(words, rules))
    return report.entries[0].cost


def draw(answer: FindAnswer, path: Path, series: str) -> bool:
    """Draw the search; return whether there is anything to draw."""
    if (picture := _svg(answer, series)) is None:
        return False
    write(path, picture.encode(), mode=0o666)
    return True


def _svg(answer: FindAnswer, series: str) -> str | None:
    from dyno.report.charts.search import search as chart_of
    from dyno.report.picture import svg  # may be missing, or crash

    chart = chart_of(answer, series)
    return None if chart is None else svg(chart)
