"""Measured runs as values: figures, findings, and the facts of each request."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from dyno.api import html
from dyno.errors import UsageError
from dyno.facts.finding import Finding, Verdict
from dyno.facts.offline import OfflineSummary
from dyno.facts.summary import Result, Summary
from dyno.store.run import Manifest, Run

if TYPE_CHECKING:
    from dyno.api.columns import ColumnTable
    from dyno.facts.imported import Row

RUNS = "runs"  # the folder of runs, where no other is named
# Of a notebook's table: figure and title. A column that no run has is left out.
_FIGURES = {
    "completed": "completed",
    "failed": "failed",
    "request_throughput": "req/s",
    "output_throughput": "output tok/s",
    "total_token_throughput": "total tok/s",
    "median_ttft_ms": "median TTFT, ms",
    "p99_ttft_ms": "p99 TTFT, ms",
    "median_tpot_ms": "median TPOT, ms",
    "median_latency_ms": "median latency, ms",
    "speed": "tok/s",
    "score": "score",
}


class MeasuredRun:
    """One measured run: a load on a server, an offline benchmark, or a test of answers. Its folder is `path`.

    `figures` has each number by its name in the result file: run["p99_ttft_ms"].
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._run = Run(self.path)

    # ---- what was measured ----

    @property
    def verdict(self) -> Verdict:
        """Return sound, doubtful or void: how far the figures can be trusted. `findings` has the reasons."""
        return self.result.verdict

    @property
    def findings(self) -> list[Finding]:
        """Return the doubts about it, the worst first: code, level, text and advice."""
        return self.result.findings

    @property
    def summary(self) -> Summary:
        """Return the numbers of a load on a server. Offline runs have `offline`."""
        if self.result.summary is None:
            raise UsageError(
                f"{self.path} is not a load on a server: it has no summary. `figures` has its numbers."
            )
        return self.result.summary

    @property
    def offline(self) -> OfflineSummary | None:
        """Return the numbers of an offline benchmark; None: it was a load on a server."""
        return self.result.offline

    @functools.cached_property
    def figures(self) -> dict[str, float]:
        """Return all numbers by their names, as `dyno compare` and `dyno report` have them."""
        figures: dict[str, float] = {}
        for row in self.rows:
            for name, figure in row.figures.items():
                figures.setdefault(name, figure.value)
        return figures

    def __getitem__(self, figure: str) -> float:
        try:
            return self.figures[figure]
        except KeyError:
            near = get_close_matches(figure, self.figures, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"{self.path} has no figure {figure!r}.{hint} It has {', '.join(sorted(self.figures))}. Settings are "
                "in `settings`, and all that `dyno sql` knows of it in `runs.table`."
            ) from None

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Return load, prompts, engine and machine by name, as results store them."""
        [row, *_] = self.rows
        return {name: setting.value for name, setting in row.settings.items()}

    @property
    def label(self) -> str:
        """Return its name in tables: --label, the study's names of its parts, or its folder."""
        if self.facts.place is not None:
            return self.facts.place.label
        return self.facts.trial.label or self.path.name

    @property
    def started(self) -> str:
        """Return when it began: UTC, ISO 8601."""
        return self.facts.started

    @functools.cached_property
    def facts(self) -> Manifest:
        """Return everything that is needed to run it again, and the machine."""
        return self._run.manifest()

    @functools.cached_property
    def result(self) -> Result:
        return self._run.result()

    @property
    def ended_early(self) -> str:
        """Say why the load ended before it was complete; '': it did not."""
        from dyno.trial.outcome import ended_early

        return "" if self.result.summary is None else ended_early(self._run, self.result)

    @property
    def text(self) -> str:
        """Return what the command prints about it."""
        from dyno.report.block import block, offline_block

        if self.result.offline is not None:
            warmups = sum(i.warmup for i in self._run.iterations())
            return offline_block(self.result, self.facts.trial, warmups)
        if self.result.summary is None:
            return "\n".join(f"{name}: {value:g}" for name, value in self.figures.items())
        metrics = ["ttft", "tpot", "itl", "e2el"]
        return block(self.result, self.facts.trial, metrics, self.facts.answers)

    # ---- single requests ----

    @property
    def records(self) -> "ColumnTable":
        """Return one row per request: times in ns since the load began, tokens, latencies in ms, error."""
        return self._columns("requests")

    @property
    def iterations(self) -> "ColumnTable":
        """Return one row per iteration of an offline benchmark."""
        return self._columns("iterations")

    @property
    def telemetry(self) -> "ColumnTable":
        """Return one row per sampled value of machine and engine."""
        return self._columns("telemetry")

    def _columns(self, table: str) -> "ColumnTable":
        from dyno.api.columns import ColumnTable
        from dyno.store.sql import RunTables

        return ColumnTable(
            RunTables(self.path, [self.path]), f"SELECT * EXCLUDE (run) FROM {table}"
        )

    @functools.cached_property
    def rows(self) -> "list[Row]":
        """Return it as comparisons and reports read it: a row, or one for each score of a test of answers."""
        from dyno.store.rows import read_rows

        return read_rows(self._run, samples=False)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<{self.label}: {self.verdict}, {self.path}>"

    def _repr_html_(self) -> str:
        return run_table([self]) + html.findings(self.findings)


class MeasuredRuns(Sequence[MeasuredRun]):
    """Runs of a folder, of a study or of a part of it, in the order of their folders.

    `missing` says which could not be read or have no result yet.
    """

    def __init__(self, runs: Iterable[MeasuredRun], missing: Sequence[str] = ()) -> None:
        self._runs = list(runs)
        self.missing = list(missing)

    @overload
    def __getitem__(self, index: int) -> MeasuredRun: ...
    @overload
    def __getitem__(self, index: slice) -> "MeasuredRuns": ...
    def __getitem__(self, index: int | slice) -> "MeasuredRun | MeasuredRuns":
        if isinstance(index, slice):
            return MeasuredRuns(self._runs[index], self.missing)
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def verdict(self) -> Verdict:
        """Return the worst verdict."""
        ranked: tuple[Verdict, ...] = ("sound", "doubtful", "void")
        return max((run.verdict for run in self), key=ranked.index, default="sound")

    @property
    def rows(self) -> "list[Row]":
        return [row for run in self for row in run.rows]

    @property
    def table(self) -> "ColumnTable":
        """Return one row per run: its settings, its machine and every number, as `dyno sql` has them."""
        return self.sql("SELECT * FROM trials")

    def sql(self, query: str) -> "ColumnTable":
        """Query these runs: the tables are those of `dyno sql`."""
        from dyno.api.columns import ColumnTable
        from dyno.store.sql import RunTables

        paths = [run.path for run in self]
        return ColumnTable(RunTables(Path(), paths), query)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return (
            f"<{len(self)} runs: {', '.join(itertools.islice((r.label for r in self), 5))}>"
        )

    def _repr_html_(self) -> str:
        return run_table(self) + "".join(map(html.paragraph, self.missing))


def run_table(runs: Iterable[MeasuredRun]) -> str:
    """Return a table of runs for a notebook."""
    shown = list(runs)
    names = [name for name in _FIGURES if any(name in run.figures for run in shown)]
    head = ["", *(_FIGURES[name] for name in names), "verdict"]
    return html.table(head, _cells(shown, names))


def _cells(runs: Iterable[MeasuredRun], names: Sequence[str]) -> Iterator[list[Any]]:
    for run in runs:
        yield [run.label, *(run.figures.get(name) for name in names), run.verdict]
