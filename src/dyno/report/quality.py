"""The printed result of a quality test."""

from collections.abc import Iterator

from dyno.facts.quality import FORM_METRICS, PairedDifference, QualitySummary, TaskScore
from dyno.facts.summary import Result
from dyno.numbers import UNKNOWN, count, duration, number, percent, points
from dyno.report.block import verdict_lines
from dyno.report.table import terminal, text_table
from dyno.screen import wrapped

_RATES = (
    "acc",
    "acc_norm",
    "exact_match",
    "pass@1",
    "f1",
    *FORM_METRICS,
)  # metrics from 0 to 1


def lines(result: Result) -> Iterator[str]:
    q = result.quality
    assert q is not None
    where = [f" at {each.concurrency}" if len(q.passes) > 1 else "" for each in q.passes]
    titles = [
        "task",
        "metric",
        *(f"score{words}" for words in where),
        "95 % interval",
        "items",
        "shots",
    ]
    rows = []
    for i, score in enumerate(q.scores):
        each = [shown(p.scores[i]) if i < len(p.scores) else UNKNOWN for p in q.passes]
        metric = f"{score.metric} ({score.filter})" if score.filter else score.metric
        rows.append(
            [
                score.task,
                metric,
                *each,
                interval(score),
                count(score.items),
                str(score.n_shot),
            ]
        )
    right = range(2, len(titles))
    yield from terminal(
        text_table(titles, rows, right=right, keep=range(2, 3 + len(where)))
    )
    yield from wrapped(_about(q))
    yield from verdict_lines(result)


def scores_line(q: QualitySummary) -> str:
    return ", ".join(f"{score.task} {shown(score)}" for score in q.scores)


def is_rate(score: TaskScore) -> bool:
    """Return whether it is a share of right answers."""
    return score.metric in _RATES


def shown(score: TaskScore) -> str:
    return percent(score.score) if is_rate(score) else number(score.score)


def interval(score: TaskScore) -> str:
    # numpy: the progress of a download doesn't need it
    from dyno.measure.paired import score_interval

    ends = score_interval(score.score, score.items, score.stderr)
    if ends is None or (score.stderr is None and not is_rate(score)):
        return UNKNOWN
    show = percent if is_rate(score) else number
    return f"{show(ends[0])} to {show(ends[1])}"


def _about(q: QualitySummary) -> str:
    tools = ", ".join(f"{name} {version}" for name, version in q.tools.items())
    took = duration(sum(each.duration_s for each in q.passes))
    load = (
        f" {under_load(q.load_changes, q.passes[-1].concurrency)}" if q.load_changes else ""
    )
    return f"Asked by {tools} in the {q.form} form, in {took}.{load}"


def under_load(change: PairedDifference, concurrency: int) -> str:
    """Say in a sentence what load does to the score."""
    if change.p < 0.05:
        return f"At concurrency {concurrency} the score changes by {points(change.difference, signed=True)}."
    return f"At concurrency {concurrency}: no difference detected (smallest detectable: {points(change.detectable)})."
