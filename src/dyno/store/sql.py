"""Runs as SQL tables, in DuckDB: no server, nothing kept. The small files are read at once, the long ones (records,
telemetry) by the query itself where it asks for them. A query reads these tables and nothing else, and can't write."""

import functools
import itertools
import mmap
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import msgspec
from msgspec import inspect

from dyno.errors import StoreError, UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.metric import BY_FIELD, METRICS, SERVED
from dyno.facts.offline import Iteration, OfflineSpec
from dyno.facts.price import Price
from dyno.facts.record import Record
from dyno.facts.spread import Distribution, Latency
from dyno.facts.structured import StructuredSummary
from dyno.facts.summary import (
    OF_TEXT,
    CancelSummary,
    MediaSummary,
    Result,
    ReuseSummary,
    SessionSummary,
    Summary,
)
from dyno.files import opened
from dyno.option import fields, sentences
from dyno.store import imports, upgrade
from dyno.store.explained import (
    PARTS,
    REQUEST_PARTS,
    explained,
    part_rows,
    request_rows,
)
from dyno.store.run import Run, read
from dyno.store.shelf import Shelf, look_around, run_line, trial_folders
from dyno.workload.spec import WorkloadSpec

TABLES = {
    "trials": "one row per run: its settings, its machine and every number of its summary",
    "requests": "one row per request, from records.jsonl; times in ns since the load began",
    "iterations": "one row per iteration of an offline trial, warm-ups included, from iterations.jsonl",
    "scores": "one row per task, metric and concurrency of a quality test",
    "findings": "one row per finding",
    "telemetry": "one row per sampled value, from telemetry.jsonl",
    "failures": "one row per trial that could not be measured",
    "parts": "one row per part of a serving run's latency: where the time went",
    "request_parts": "one row per completed request and part of its latency",
    "imported": "one row per figure from other tools' results, stored by `dyno import`",
}

if TYPE_CHECKING:
    import numpy as np

_Answer = TypeVar("_Answer")
_SCALARS = {
    inspect.BoolType: "BOOLEAN",
    inspect.IntType: "BIGINT",
    inspect.FloatType: "DOUBLE",
}
_TEXTS = (inspect.StrType, inspect.LiteralType)
_DISTRIBUTION = ""  # of such a field several columns are made

# A trial's columns: name → (SQL type, location in the files, meaning). The rest is every field of the workload, the
# load, the engine's setting and the summary, by its own name.
_Column = tuple[str, str, str]
_NAMED: dict[str, _Column] = {
    "run": ("VARCHAR", "", "folder of the run; the same in every table"),
    "state": ("VARCHAR", "", "done, running, cut off, failed, no measurement"),
    "tags": ("VARCHAR[]", "", "words from `dyno runs tag`"),
    "started": ("TIMESTAMP", "trial.started", "wall time, UTC"),
    "start_ns": (
        "BIGINT",
        "client.start_ns",
        "start of the load on telemetry's clock; requests count from it",
    ),
    "kind": ("VARCHAR", "trial.trial.kind", "serve, throughput, latency, micro or quality"),
    "label": ("VARCHAR", "trial.trial.label", "from --label"),
    "search": (
        "VARCHAR",
        "",
        "folder of the search (`dyno find`, `dyno tune`) that made this run; null: no search",
    ),
    "study": ("VARCHAR", "trial.place.study", "name of the study"),
    "trial": (
        "VARCHAR",
        "trial.place.id",
        "id in the study; equal ids mean equal settings",
    ),
    "engine": ("VARCHAR", "trial.place.engine", "name in the study, or the kind of engine"),
    "workload": ("VARCHAR", "trial.place.workload", "name in the study, or the dataset"),
    "load": ("VARCHAR", "trial.place.load", "name in the study"),
    "settings": (
        "JSON",
        "trial.place.settings",
        "settings that vary in the study: settings->>'engine.dtype'",
    ),
    "latency_bounds": (
        "JSON",
        "",
        "bounds of latencies that are null, since a busy client knew no more: latency_bounds->'p99_ttft_ms'->0",
    ),
    "repeat": ("BIGINT", "trial.place.repeat", "repeat number, starting at 1"),
    "repeats": ("BIGINT", "trial.place.repeats", "planned repeats"),
    "engine_kind": ("VARCHAR", "trial.trial.engine.kind", "vllm, llamacpp, …"),
    "engine_version": (
        "VARCHAR",
        "engine.version",
        "version of the program, or as the server reports it",
    ),
    "model": ("VARCHAR", "trial.target.model", "model name sent with each request"),
    "quantization": (
        "VARCHAR",
        "trial.target.quantization",
        "as the server reports it, or as requested",
    ),
    "backend": ("VARCHAR", "trial.trial.target.backend", "protocol"),
    "url": (
        "VARCHAR",
        "trial.trial.target.base_url",
        "URL of the server, or of its first replica",
    ),
    "ready_s": (
        "DOUBLE",
        "engine.ready_s",
        "seconds from starting the engine to a completed generation",
    ),
    "system": ("VARCHAR", "trial.rig.system", "operating system"),
    "kernel": ("VARCHAR", "trial.rig.kernel", "kernel"),
    "cpu": ("VARCHAR", "trial.rig.cpu", "processor"),
    "cores": ("BIGINT", "trial.rig.cores", "CPU cores available to dyno"),
    "memory_bytes": ("BIGINT", "trial.rig.memory_bytes", "memory of the machine"),
    "accelerator": ("VARCHAR", "", "name of the first accelerator"),
    "accelerators": ("BIGINT", "", "number of accelerators"),
    "driver": ("VARCHAR", "", "driver of the first accelerator"),
    "rig": ("VARCHAR", "trial.place.rig", "name in the study"),
    "processes": ("BIGINT", "trial.processes", "client processes that shared the load"),
    "workload_sha256": (
        "VARCHAR",
        "trial.workload_sha256",
        "equal values mean equal prompts",
    ),
    "dyno_version": ("VARCHAR", "trial.dyno", "version of dyno that measured it"),
    "verdict": ("VARCHAR", "summary.verdict", "sound, doubtful, void"),
    "decode_bandwidth_share": (
        "DOUBLE",
        "",
        "share of the peak memory bandwidth while decoding; 0.64 is 64 %",
    ),
    "decode_arithmetic_share": (
        "DOUBLE",
        "",
        "share of the peak arithmetic while decoding",
    ),
    "prefill_arithmetic_share": (
        "DOUBLE",
        "",
        "share of the peak arithmetic while processing prompts",
    ),
    "whole_arithmetic_share": (
        "DOUBLE",
        "",
        "share of the peak arithmetic over the whole run",
    ),
}
_SUMMARY = "summary.summary"
_LATENCIES = f"{_SUMMARY}.latencies"
_PARTS: tuple[tuple[str, str, type], ...] = (
    ("workload_", "trial.trial.workload", WorkloadSpec),
    ("load_", "trial.trial.load", LoadSpec),
    ("engine_", "trial.trial.engine", EngineSpec),
    ("test_", "trial.trial.offline", OfflineSpec),
    ("price_", "trial.place.price", Price),
    ("", _SUMMARY, Summary),
)

# By measure/timing.py; a test holds the two against each other.
_MOST_FIRST = "greatest(output_tokens - len(chunk_ns) + 1, 1)"
_FIRST_TOKENS = (
    f"coalesce(first_tokens, CASE WHEN {_MOST_FIRST} <= coalesce(leading_chunks, "
    f"0) + 1 THEN {_MOST_FIRST} END)"
)
_REQUESTS = f"""
    CASE WHEN coalesce(unseen[1], -1) <> 0 THEN (chunk_ns[1] - sent_ns) / 1e6 END AS ttft_ms,
    CASE WHEN NOT reasoning AND coalesce(unseen[1], -1) <> 0 THEN (chunk_ns[1] - sent_ns) / 1e6
         WHEN reasoning AND NOT coalesce(list_contains(unseen, answer_from), false)
         THEN (chunk_ns[answer_from + 1] - sent_ns) / 1e6
         END AS ttfo_ms,
    CASE WHEN output_tokens > 1 AND coalesce(unseen[1], -1) <> 0 AND coalesce(unseen[-1], -1) <> len(chunk_ns) - 1
         THEN (chunk_ns[-1] - chunk_ns[1]) / (output_tokens - 1) / 1e6 END AS tpot_ms,
    CASE WHEN output_tokens > {_FIRST_TOKENS} AND len(chunk_ns) > 1 AND coalesce(unseen[1], -1) <> 0
          AND coalesce(unseen[-1], -1) <> len(chunk_ns) - 1
         THEN (chunk_ns[-1] - chunk_ns[1]) / (output_tokens - {_FIRST_TOKENS}) / 1e6 END AS own_tpot_ms,
    CASE WHEN answered_ns IS NOT NULL THEN (answered_ns - sent_ns) / 1e6
         WHEN coalesce(unseen[-1], -1) <> len(chunk_ns) - 1 THEN (chunk_ns[-1] - sent_ns) / 1e6 END AS e2el_ms,
    (sent_ns - due_ns) / 1e6 AS queue_ms
"""
# Long files, by the table that is made of their lines.
_LONG = {
    "requests": "records.jsonl",
    "iterations": "iterations.jsonl",
    "telemetry": "telemetry.jsonl",
}
# tables whose files may end in the middle of a line: that line is left out
_MAY_BE_CUT = ("telemetry",)
_RECORDS: dict[str, tuple[type, str]] = {
    "requests": (Record, _REQUESTS),
    "iterations": (Iteration, "(end_ns - start_ns) / 1e6 AS latency_ms"),
}
# bytes of the longest line: below the first, DuckDB takes as much room
_BEGINS, _ENDS = 4096, 1 << 16  # bytes of a file that are looked at before it is queried
_OBJECT, _OBJECT_MAX = 16 << 20, 1 << 30
_ZONED = "TIMESTAMP WITH TIME ZONE"
_IN_FILE = re.compile(r'in file "(.+?)", (?:at byte|in line)')
_FINDINGS = {
    "run": "VARCHAR",
    "code": "VARCHAR",
    "level": "VARCHAR",
    "text": "VARCHAR",
    "advice": "VARCHAR",
}
_TELEMETRY = {
    "at_ns": "BIGINT",
    "source": "VARCHAR",
    "index": "BIGINT",
    "values": "MAP(VARCHAR, DOUBLE)",
    "throttle": "VARCHAR[]",
}
_FAILURES = {
    "run": "VARCHAR",
    "study": "VARCHAR",
    "text": "VARCHAR",
    "attempts": "BIGINT",
    "when": "VARCHAR",
}
_SCORES = {
    "run": ("VARCHAR", "folder of the run; the same in every table"),
    "concurrency": ("BIGINT", "requests in flight; the first pass gives the score"),
    "task": ("VARCHAR", "name of the task"),
    "metric": ("VARCHAR", "metric of the task"),
    "filter": ("VARCHAR", "lm-eval's way to extract an answer"),
    "score": ("DOUBLE", "mean over the items"),
    "stderr": ("DOUBLE", "standard error of the score"),
    "items": ("BIGINT", "items of the task"),
    "n_shot": ("BIGINT", "examples before each question"),
    "version": ("VARCHAR", "version of the task"),
    "chance": ("DOUBLE", "score of guessing"),
}
_IMPORTED = {
    "import": ("VARCHAR", "the file under runs/imports"),
    "file": ("VARCHAR", "imported file"),
    "row": ("BIGINT", "first line of the result in that file"),
    "line": ("BIGINT", "line of the figure"),
    "tool": ("VARCHAR", "tool that measured: vllm, sglang, llama-bench, …"),
    "kind": ("VARCHAR", "serve, throughput, latency, micro, quality"),
    "label": ("VARCHAR", "the author's name for it"),
    "series": ("VARCHAR", "what the author compares: an engine, a machine"),
    "settings": ("JSON", "known settings of load, engine and machine: settings->>'model'"),
    "name": ("VARCHAR", "name of the figure: mean_ttft_ms, output_throughput, …"),
    "value": ("DOUBLE", "in the unit of its name; tokens/s or requests/s, seconds"),
    "definition": ("VARCHAR", "how the tool defines it; see METHOD.md"),
}
_EXPLAINED = {"parts": PARTS, "request_parts": REQUEST_PARTS}
_MEANINGS = {
    **sentences(Record),
    **sentences(Iteration),
    **sentences(Summary),
    **{f"sessions_{name}": words for name, words in sentences(SessionSummary).items()},
    **{f"cancelling_{name}": words for name, words in sentences(CancelSummary).items()},
    **{f"media_{name}": words for name, words in sentences(MediaSummary).items()},
    **{f"structured_{name}": words for name, words in sentences(StructuredSummary).items()},
    **{f"reuse_{name}": words for name, words in sentences(ReuseSummary).items()},
    "run": "folder of the run; the same in every table",
    "index": "number of the request, the iteration or the sampled device",
    "end_ns": "end of the request or iteration",
    "text": "generated text; the sentence of a finding or failure",
    "ttft_ms": "first chunk − sent; null if its arrival is unknown",
    "tpot_ms": "(last chunk − first chunk) ÷ (output tokens − 1); null if one of them is unknown",
    "own_tpot_ms": "(last chunk − first chunk) ÷ tokens after the first chunk; null if one of them is unknown",
    "e2el_ms": "last chunk − sent; null if its arrival is unknown",
    "queue_ms": "sent − due",
    "latency_ms": "duration of the iteration",
    "code": "family.name, as in METHOD.md",
    "level": "note, doubt, void",
    "advice": "what to do about it",
    "study": "name of the study",
    "attempts": "attempts to measure it",
    "when": "wall time",
    "at_ns": "time of the sample, on the clock of the trial's start_ns",
    "source": "accelerator, host, engine",
    "throttle": "reasons for reduced clocks at that moment",
    "name": "name of the value, ending in its unit",
    "value": "value; counters start before the load",
}
for _field, _figure in BY_FIELD.items():
    _MEANINGS[_figure] = (
        _MEANINGS.get(_field.replace(".", "_")) or METRICS[_figure].explained
    )
_FAMILIES = {
    "workload_": "workload setting",
    "load_": "load setting",
    "engine_": "engine setting; null: engine default",
    "price_": "price stated in the study",
    "test_": "setting of an offline trial",
    "offline_": "result of an offline trial; see METHOD.md",
    "roofline_": "hardware peaks, and the shares used",
    "steady_": "in the steady window",
    "wait_": "time from due to the last token, for the first and the last requests",
    "client_": "the client's own load and delays",
    "unfrozen_": "the same figure without the time of the freezes",
    "mean_": "mean in ms",
    "median_": "median in ms",
    "std_": "standard deviation in ms",
    "p": "percentile in ms",
    "": "see METHOD.md",
}

# A setting has the words of its flag. Those of a switch may say what it turns off.
_SETTINGS: dict[str, str] = {}
for _prefix, _, _part in _PARTS[:-1]:  # the last one is the summary
    for _setting in fields(_part).values():
        _help = _setting.option.help or ""
        if _setting.hint not in (bool, bool | None) and not _help.startswith("default"):
            _SETTINGS[_prefix + _setting.name] = _help
_FILES = ("trial", "client", "engine", "summary", "failed")


class QueryResult(msgspec.Struct):
    columns: list[str]
    numbers: set[int]  # which of them hold numbers
    rows: Iterator[Sequence[Any]]


class RunTables:
    """`unreadable`: sentences about runs that are left out."""

    def __init__(self, runs: Path, only: Sequence[Path] | None = None) -> None:
        """`only`: the folders of these runs. None: of all below `runs`."""
        self.unreadable: list[str] = []
        shelf = look_around(runs) if only is None else Shelf()
        folders = [
            *shelf.runs,
            *(trial for study in shelf.studies for trial in trial_folders(study)),
            *(only or ()),
        ]
        self._answered = 0
        self._db = duckdb.connect(
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "temp_directory": "",  # else it would make one in the working directory
            }
        )
        self._fill(folders, set(shelf.searches))
        columns = {name: kind for name, (kind, _) in _IMPORTED.items()}
        self._insert(
            "imported",
            columns,
            [row for path in shelf.imports for row in self._imported(path)],
        )
        self._folders = folders
        for table, named in _EXPLAINED.items():
            self._insert(table, {name: kind for name, (kind, _) in named.items()}, [])
        self._sizes: dict[str, int] = {}
        # tables whose files need not be looked at (again) for a cut line
        self._complete = {*_MAY_BE_CUT}
        self._long = {table: self._files(folders, table) for table in _LONG}
        for table, paths in self._long.items():
            self._view(table, paths, _OBJECT)
        every = [str(p.absolute()) for paths in self._long.values() for p in paths]
        self._db.execute("SET allowed_paths = $paths", {"paths": every})
        self._db.execute("SET enable_external_access = false")

    def ask(self, query: str) -> QueryResult:
        """Answer a query. A damaged file is left out, and the query runs again."""
        return self._without_damaged(query, self._answer)

    # ---- answers that stay: for programs, which read them by columns ----

    def keep(self, query: str) -> str:
        """Answer a query once, and return the name under which its answer is kept."""

        def stored(query: str) -> str:
            statement = self._reading(query)
            name = f"answer_{self._answered}"
            inner = statement.query.strip().rstrip(";")
            self._db.execute(f"CREATE TABLE {name} AS FROM ({inner}\n)")
            return name

        self._answered += 1
        return self._without_damaged(query, stored)

    def stream(self, answer: str) -> object:
        """Return a kept answer as an Arrow stream: a capsule, by Arrow's PyCapsule interface."""
        return self._db.table(answer).__arrow_c_stream__()

    def arrays(self, answer: str) -> dict[str, "np.ndarray[Any, Any]"]:
        """Return the columns of a kept answer. Where a number is missing, it is NaN."""
        columns: dict[str, Any] = self._db.table(answer).fetchnumpy()
        return {name: _unmasked(column) for name, column in columns.items()}

    def rows_of(self, answer: str) -> Iterator[tuple[Any, ...]]:
        result = self._db.cursor().execute(f"FROM {answer}")
        while rows := result.fetchmany(1000):
            yield from rows

    def names_of(self, answer: str) -> list[str]:
        names: list[str] = self._db.table(answer).columns
        return names

    def count_of(self, answer: str) -> int:
        (count,) = self._db.execute(f"SELECT count(*) FROM {answer}").fetchall()[0]
        return int(count)

    def _without_damaged(self, query: str, answer: Callable[[str], _Answer]) -> _Answer:
        named = [table for table in self._long if table in query.lower()]
        try:
            self._fit(named)
            if any(table in query.lower() for table in _EXPLAINED):
                self._explain()
            self._db.execute("SET lock_configuration = true")
            while True:
                try:
                    return answer(query)
                except duckdb.Error as e:
                    if not self._left_out(e):
                        raise
        except duckdb.Error as e:
            raise UsageError(f"The query can't be answered. {e}") from None

    def _reading(self, query: str) -> Any:
        """Return the query as a statement, which only reads."""
        statements = self._db.extract_statements(query)
        if len(statements) != 1:
            raise UsageError(f"One query at a time, please: this is {len(statements)}.")
        # Files that may be read may be written too, as far as DuckDB's own settings go.
        if statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError(
                f"A query may only read (select, describe, summarize); this is {statements[0].type.name.lower()}. "
                "For a PIVOT, name the values: pivot trials on engine in ('a', 'b') …"
            )
        return statements[0]

    def _answer(self, query: str) -> QueryResult:
        statements = [self._reading(query)]
        result = self._db.execute(statements[0])
        columns = _distinct([column[0] for column in result.description])
        kinds = [str(column[1]) for column in result.description]
        # Python's values of them need pytz: as text they need nothing
        if any(_ZONED in kind for kind in kinds):
            cells = ", ".join(
                f"c{i}::VARCHAR" if _ZONED in kind else f"c{i}"
                for i, kind in enumerate(kinds)
            )
            names = ", ".join(f"c{i}" for i in range(len(kinds)))
            inner = statements[0].query.strip().rstrip(";")
            result = self._db.execute(f"SELECT {cells} FROM ({inner}\n) AS t({names})")
        numbers = {i for i, kind in enumerate(kinds) if kind.startswith(_NUMBERS)}
        return QueryResult(columns, numbers, _rows(result))

    def _explain(self) -> None:
        """Fill the tables of parts. They are calculated from the records, and only where a query asks for them."""
        rows: dict[str, list[dict[str, Any]]] = {table: [] for table in _EXPLAINED}
        for folder in self._folders:
            run = Run(folder)
            if not run.whole or not run.records_path.exists():
                continue
            try:
                each = explained(run)
            except StoreError as e:
                self.unreadable.append(str(e))
                continue
            rows["parts"] += part_rows(each)
            rows["request_parts"] += request_rows(each)
        for table, named in _EXPLAINED.items():
            self._db.execute(f"DROP TABLE {table}")
            columns = {name: kind for name, (kind, _) in named.items()}
            self._insert(table, columns, rows[table])

    def _files(self, folders: list[Path], table: str) -> list[Path]:
        name, readable = _LONG[table], []
        for path in (folder / name for folder in folders if (folder / name).exists()):
            try:
                with opened(path) as file:
                    begins = file.read(_BEGINS)
            except OSError as e:
                self.unreadable.append(f"{path} can't be read: {e.strerror}.")
                continue
            # as a machine that lost its power leaves a file; DuckDB does not always mind them
            if b"\0" in begins:
                self.unreadable.append(
                    f"{path} is damaged: it has bytes of zero instead of text."
                )
            else:
                readable.append(path)
        return readable

    def _leave_out_cut(self, table: str) -> None:
        """Leave out the files whose last line ends in the middle, once a query asks for them: DuckDB does not always
        refuse them."""
        if table in self._complete:
            return
        self._complete.add(table)
        cut = [path for path in self._long[table] if _is_cut(path)]
        self._long[table] = [path for path in self._long[table] if path not in cut]
        for path in cut:
            self.unreadable.append(f"{path} is damaged: its last line is cut.")

    def _fit(self, tables: list[str]) -> None:
        """Allow as much room as these files need, and no more threads than there is room for: DuckDB takes twice the
        longest line for each thread."""
        for table in tables:
            self._leave_out_cut(table)
        longest = {
            table: max((_longest_line(path) for path in self._long[table]), default=0)
            for table in tables
        }
        for table, size in longest.items():
            self._view(table, self._long[table], min(max(size, _OBJECT), _OBJECT_MAX))
        room = 2 * sum(max(size, _OBJECT) for size in longest.values())
        (limit, threads) = self._db.execute(
            "SELECT current_setting('memory_limit'), current_setting('threads')"
        ).fetchall()[0]
        if room:
            self._db.execute(
                f"SET threads = {max(1, min(int(threads), _bytes(limit) // 2 // room))}"
            )

    def _left_out(self, error: duckdb.Error) -> bool:
        """Leave out the file that the error names."""
        named = _IN_FILE.search(str(error))
        if not named:
            return False
        for table, paths in self._long.items():
            rest = [path for path in paths if str(path) != named[1]]
            if rest == paths:
                continue
            self._long[table] = rest
            self._view(table, rest, self._sizes[table])
            self.unreadable.append(str(error).partition(": ")[2].partition("\n")[0].strip())
            return True
        return False

    def columns(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield (table, column, type, meaning), in order."""
        rows = self._db.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
        )
        # columns keep their order
        by_table = sorted(rows.fetchall(), key=lambda row: list(TABLES).index(row[0]))
        for table, column, kind in by_table:
            yield table, column, kind, _meaning(table, column)

    def _fill(self, folders: list[Path], searches: set[Path]) -> None:
        rows = _FolderRows(searches)
        for folder in folders:
            try:
                rows.add(folder)
            except StoreError as e:
                self.unreadable.append(str(e))
            except (
                TypeError,
                AttributeError,
                KeyError,
                ValueError,
            ) as e:  # JSON of another shape than dyno writes
                self.unreadable.append(
                    f"{folder} is not what this version of dyno writes: {e}."
                )
        self._insert("trials", _trial_columns(rows.trials), rows.trials)
        self._insert(
            "scores", {name: kind for name, (kind, _) in _SCORES.items()}, rows.scores
        )
        self._insert("findings", _FINDINGS, rows.findings)
        self._insert("failures", _FAILURES, rows.failures)

    def _imported(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            document = imports.load(path)
        except StoreError as e:
            self.unreadable.append(str(e))
            return
        for row in document.rows:
            about = {
                "import": str(path),
                "file": row.file,
                "row": row.line,
                "tool": row.tool,
                "kind": row.kind,
                "label": row.label,
                "series": row.series,
                "settings": {name: s.value for name, s in row.settings.items()},
            }
            for name, f in row.figures.items():
                yield {
                    **about,
                    "line": f.line,
                    "name": name,
                    "value": f.value,
                    "definition": f.definition,
                }

    def _insert(
        self, table: str, columns: dict[str, str], rows: list[dict[str, Any]]
    ) -> None:
        declared = ", ".join(
            f"{_identifier(name)} {kind}" for name, kind in columns.items()
        )
        self._db.execute(f"CREATE TABLE {table} ({declared})")
        # Most columns are empty in most places, and each takes its time.
        filled = [
            {name: value for name, value in row.items() if value is not None}
            for row in rows
        ]
        shape = {
            name: kind
            for name, kind in columns.items()
            if any(name in row for row in filled)
        }
        if not shape:
            return
        # As one JSON text, cut into rows first: ten times as fast as in one step, and a hundred times as INSERTs.
        self._db.execute(
            f"INSERT INTO {table} BY NAME SELECT unnest(from_json(row, $shape)) "
            "FROM (SELECT unnest(from_json($rows::JSON, '[\"JSON\"]')) AS row)",
            {
                "rows": msgspec.json.encode(filled).decode(),
                "shape": msgspec.json.encode(shape).decode(),
            },
        )

    def _view(self, table: str, paths: list[Path], largest: int) -> None:
        self._sizes[table] = largest
        run = f"left(filename, length(filename) - {len(_LONG[table]) + 1}) AS run"
        if table == "telemetry":
            # Lines without values, such as the sampler's own facts, give no row; nor does one that its death has cut.
            lines = _lines(paths, _TELEMETRY, largest, cut=table in _MAY_BE_CUT)
            body = (
                f"SELECT * EXCLUDE (entry), entry.key AS name, entry.value AS value FROM (SELECT {run}, at_ns, source, "
                f"index, throttle, unnest(map_entries(values)) AS entry FROM {lines})"
            )
        else:
            kind, derived = _RECORDS[table]
            columns = {f.encode_name: _sql_type(f.type) for f in _fields(kind)}
            own = ", ".join(f'"{name}"' for name in columns)
            body = f"SELECT {run}, {own}, {derived} FROM {_lines(paths, columns, largest)}"
        self._db.execute(f"CREATE OR REPLACE VIEW {table} AS {body}")


class _FolderRows:
    """The rows of each table that is made of the small files of runs."""

    def __init__(self, searches: set[Path]) -> None:
        self._searches = searches
        self._plans: dict[Path, dict[str, Any]] = {}  # study → its planned trials by id
        self.trials: list[dict[str, Any]] = []
        self.scores: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []

    def add(self, folder: Path) -> None:
        run, files = str(folder), self._files(folder)
        if files["trial"]:
            self.trials.append(
                {**_trial(folder, files), "search": _search_of(folder, self._searches)}
            )
        self.scores += list(_scores(run, files))
        self.findings += [
            {"run": run, **finding} for finding in _within(files, "summary.findings") or []
        ]
        if failed := files["failed"]:
            self.failures.append({"run": run, "study": folder.parent.parent.name, **failed})

    def _files(self, folder: Path) -> dict[str, Any]:
        files = {name: _json(folder / f"{name}.json") for name in _FILES}
        if files["summary"]:
            upgrade.result_fields(files["summary"])
        # its engine didn't come up: what was planned is known
        if files["failed"] and not files["trial"]:
            study = folder.parent.parent
            if study not in self._plans:
                self._plans[study] = _planned(study)
            files["trial"] = self._plans[study].get(folder.name.rpartition("-")[2])
        return files


def _scores(run: str, files: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for each in _within(files, "summary.quality.passes") or []:
        for score in each["scores"]:
            yield {"run": run, "concurrency": each["concurrency"], "n_shot": 0, **score}


_NUMBERS = (
    "BIGINT",
    "DOUBLE",
    "HUGEINT",
    "INTEGER",
    "FLOAT",
    "DECIMAL",
    "UBIGINT",
    "SMALLINT",
    "TINYINT",
    "UINTEGER",
)


def _meaning(table: str, column: str) -> str:
    if table == "trials" and column in _NAMED:
        return _NAMED[column][2]
    if table == "imported":
        return _IMPORTED[column][1]
    if table == "scores":
        return _SCORES[column][1]
    if table in _EXPLAINED:
        return _EXPLAINED[table][column][1]
    family = next(prefix for prefix in _FAMILIES if column.startswith(prefix))
    return _MEANINGS.get(column) or _SETTINGS.get(column) or _FAMILIES[family]


def _unmasked(column: Any) -> Any:
    """Return a column of DuckDB's without its mask: with NaN where a number is missing, else None."""
    import numpy as np

    if not isinstance(column, np.ma.MaskedArray):
        return column
    missing = np.ma.getmaskarray(column)
    if not missing.any():
        return column.data
    is_number = column.dtype.kind in "iuf"
    out: Any = column.data.astype(np.float64 if is_number else object)
    out[missing] = np.nan if is_number else None
    return out


def _rows(result: Any) -> Iterator[Sequence[Any]]:
    try:
        while rows := result.fetchmany(1000):
            yield from rows
    except duckdb.Error as e:
        raise UsageError(f"The query can't be answered to its end. {e}") from None


def _distinct(names: list[str]) -> list[str]:
    """Number columns of one name, as joins have them: a JSON object would lose one."""
    return [
        f"{name}_{n}" if (n := names[:i].count(name)) else name
        for i, name in enumerate(names)
    ]


def _json(path: Path) -> dict[str, Any] | None:
    return read(path, dict[str, Any]) if path.exists() else None


def _planned(study: Path) -> dict[str, Any]:
    """Read study.json's trials, by id."""
    trials = _within(_json(study / "study.json"), "trials") or []
    return {id: trial for trial in trials if (id := _within(trial, "place.id"))}


def _search_of(folder: Path, searches: set[Path]) -> str | None:
    """Return the folder of the search that made this run: a probe is in it, a trial in its `trials`."""
    return next(
        (str(path) for path in (folder.parent, folder.parent.parent) if path in searches),
        None,
    )


def _within(value: Any, where: str) -> Any:
    if not where:
        return value
    for name in where.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _trial(folder: Path, files: dict[str, Any]) -> dict[str, Any]:
    line = run_line(folder)
    row: dict[str, Any] = {
        name: _within(files, where) for name, (_, where, _) in _NAMED.items() if where
    }
    row |= {"run": str(folder), "state": line.state, "tags": line.tags}
    row |= _first_accelerator(files)
    row |= _shares(files)
    row["engine_kind"] = row["engine_kind"] or _within(files, "trial.target.kind")
    row["engine"] = row["engine"] or row["engine_kind"]
    row["engine_version"] = row["engine_version"] or _within(files, "trial.target.version")
    row["quantization"] = row["quantization"] or _within(
        files, "trial.trial.engine.quantization"
    )
    row["workload"] = row["workload"] or _within(files, "trial.trial.workload.dataset")
    bounds: dict[str, Any] = {}
    # percentiles beyond the 99th keep this order
    for name, kind, where in itertools.chain(*reversed(_parts(Result))):
        value = _within(files, where)
        if kind != _DISTRIBUTION:
            row.setdefault(name, value)
        elif value and value.get("count"):
            row |= _distribution(name, value)
            bounds |= _bounds(name, value)
    row["latency_bounds"] = bounds or None
    if _within(files, "summary.results") is not None:
        row |= dict.fromkeys(OF_TEXT)
    return row


def _shares(files: dict[str, Any]) -> dict[str, Any]:
    """Return the shares of the hardware's peaks that are known."""
    shares = {}
    for share in _within(files, "summary.roofline.shares") or []:
        for limit in ("bandwidth", "arithmetic"):
            if share.get(limit) is not None:
                shares[f"{share['what']}_{limit}_share"] = share[limit]
    return shares


def _first_accelerator(files: dict[str, Any]) -> dict[str, Any]:
    accelerators = _within(files, "trial.rig.accelerators") or []
    first = accelerators[0] if accelerators else {}
    return {
        "accelerator": first.get("name"),
        "accelerators": len(accelerators),
        "driver": first.get("driver"),
    }


def _trial_columns(trials: list[dict[str, Any]]) -> dict[str, str]:
    columns = {name: kind for name, (kind, _, _) in _NAMED.items()}
    for name, kind, _ in itertools.chain(*_parts(Result)):
        if kind == _DISTRIBUTION:
            columns |= dict.fromkeys(
                _distribution(name, {"percentiles": {"99": 0.0}}), "DOUBLE"
            )
        else:
            columns.setdefault(name, kind)
    # The runs decide which percentiles there are.
    for row in trials:
        for name in row:
            columns.setdefault(name, "DOUBLE")
    return columns


@functools.cache
def _fields(kind: type) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _plain(kind: inspect.Type) -> inspect.Type:
    """Return the type without None."""
    if isinstance(kind, inspect.UnionType):
        return next(t for t in kind.types if not isinstance(t, inspect.NoneType))
    return kind


def _sql_type(kind: inspect.Type) -> str:
    kind = _plain(kind)
    if isinstance(kind, inspect.ListType) and (inner := _SCALARS.get(type(kind.item_type))):
        return f"{inner}[]"
    if isinstance(kind, _TEXTS):
        return "VARCHAR"
    return _SCALARS.get(type(kind), "JSON")


@functools.cache
def _parts(result: type) -> list[list[tuple[str, str, str]]]:
    """Return the leaves of each part: column, SQL type, and location in the files."""
    parts = list(_PARTS)
    for field in _fields(result):
        kind = _plain(field.type)
        if field.name != "summary" and isinstance(kind, inspect.StructType):
            parts.append((f"{field.name}_", f"summary.{field.name}", kind.cls))
    return [list(_leaves(cls, prefix, where)) for prefix, where, cls in parts]


def _leaves(kind: type, prefix: str, where: str) -> Iterator[tuple[str, str, str]]:
    for field in _fields(kind):
        inner, place = _plain(field.type), f"{where}.{field.encode_name}"
        if place == _LATENCIES:
            yield from ((stem, _DISTRIBUTION, f"{place}.{stem}") for stem in SERVED)
            continue
        # A figure has one name everywhere.
        name = BY_FIELD.get(place.removeprefix(f"{_SUMMARY}."), prefix + field.encode_name)
        if not isinstance(inner, inspect.StructType):
            yield name, _sql_type(inner), place
        elif inner.cls in (Distribution, Latency):
            yield name, _DISTRIBUTION, place
        else:
            yield from _leaves(inner.cls, f"{name}_", place)


def _distribution(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Name its parts as the result file does: mean_ttft_ms, p99_ttft_ms."""
    percentiles = {f"p{p}": v for p, v in value["percentiles"].items()}
    parts = {
        "mean": value.get("mean"),
        "median": value.get("median"),
        "std": value.get("std"),
        **percentiles,
    }
    return {f"{part}_{_plain_name(name)}_ms": v for part, v in parts.items()}


def _bounds(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return the bounds of its parts that are not known exactly, by the names of their columns."""
    ends = value.get("bounds") or {}
    words = {part: f"p{part}" if part[:1].isdigit() else part for part in ends}
    return {
        f"{words[part]}_{_plain_name(name)}_ms": both
        for part, both in ends.items()
        if isinstance(both, list)
    }


def _plain_name(name: str) -> str:
    """Return the stem of a latency: those of the client and of sessions need no prefix."""
    return name.removeprefix("client_").removeprefix("sessions_")


def _identifier(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _lines(
    paths: list[Path], columns: dict[str, str], largest: int, cut: bool = False
) -> str:
    """Return the files' lines as a source of rows. Types are given, so that nothing is opened before it is asked for.
    `cut`: lines that can't be read are empty."""
    if not paths:
        nothing = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns.items())
        return f"(SELECT {nothing}, NULL::VARCHAR AS filename WHERE false)"
    names = ", ".join(_quoted(str(path)) for path in paths)
    types = ", ".join(f"{_quoted(name)}: {_quoted(kind)}" for name, kind in columns.items())
    return (
        f"read_json([{names}], format = 'newline_delimited', columns = {{{types}}}, filename = true, "
        f"ignore_errors = {str(cut).lower()}, maximum_object_size = {largest})"
    )


def _is_cut(path: Path) -> bool:
    """Return whether a file's last line ends in the middle."""
    with opened(path) as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _ENDS, 0))
        before, newline, last = file.read().rpartition(b"\n")
    if not last or (not newline and len(before + last) == _ENDS):
        return False
    try:
        msgspec.json.decode(last)
    except msgspec.DecodeError:
        return True
    return False


def _longest_line(path: Path) -> int:
    """Estimate the longest line without reading a large file: from one line's end, jump ahead by the longest so far and
    search backwards for a line's end."""
    size = path.stat().st_size
    longest = min(size, _OBJECT)
    if size <= _OBJECT:
        return longest
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = 0
        while start + longest < len(data):
            end = data.rfind(b"\n", start, start + longest) + 1
            if not end:
                end = data.find(b"\n", start + longest) + 1 or len(data)
                longest = end - start
            start = end
    return longest


def _bytes(size: str) -> int:
    """Read DuckDB's '18.6 GiB'."""
    number, _, unit = size.partition(" ")
    return int(
        float(number) * 1024 ** ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    )
