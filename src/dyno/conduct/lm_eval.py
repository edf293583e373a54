"""lm-evaluation-harness: its tasks, asked by a worker in its own environment."""

from dyno.conduct.session import Session
from dyno.facts.quality import QualitySpec, TaskScore
from dyno.facts.trial import TrialSpec
from dyno.store.run import Run


def ask(run: Run, session: Session, trial: TrialSpec, concurrency: int) -> None: ...


def tools(run: Run, spec: QualitySpec) -> dict[str, str]:
    return {}


def scores(run: Run, spec: QualitySpec, concurrency: int) -> list[TaskScore]:
    return []


def truncated(run: Run, spec: QualitySpec, concurrency: int) -> int:
    return 0
