"""`dyno sql`: questions about all runs at once."""

import argparse
import itertools
import json
import math
import signal
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno import files
from dyno.cli import settings
from dyno.cli.terminal import for_programs
from dyno.errors import StoreError, UsageError
from dyno.report.table import database_cell, markdown, terminal, text_table, write_csv
from dyno.screen import styled, wrapped
from dyno.signals import lent

if TYPE_CHECKING:
    from dyno.store.sql import QueryResult, RunTables

_EXAMPLES = """examples:
  dyno sql "select engine, load_max_concurrency, avg(output_throughput)
            from trials where verdict <> 'void' group by all order by all"
  dyno sql "select run, quantile_cont(ttft_ms, 0.9) from requests
            where error is null group by run" --csv"""


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Query all runs with SQL (DuckDB). Without a query, lists tables and columns. A query reads these tables and "
        "nothing else."
    )
    p.epilog = _EXAMPLES
    p.add_argument("query", nargs="?", metavar="QUERY", help="SQL; - reads standard input")
    p.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="read the query from a file (default: QUERY)",
    )
    settings.add_runs(p, "folder of runs and studies (default: runs)")
    how = p.add_mutually_exclusive_group()
    for name, text in (
        ("csv", "CSV, with full values"),
        ("json", "JSON, with full values"),
        ("markdown", "Markdown"),
    ):
        how.add_argument(
            f"--{name}", dest="how", action="store_const", const=name, help=f"print {text}"
        )
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    query = _query(options)
    if not options.runs.is_dir():
        print(
            f"dyno: no folder {options.runs}, so the tables are empty. --runs DIR looks elsewhere.",
            file=sys.stderr,
        )

    from dyno.store.sql import RunTables

    tables = RunTables(options.runs)
    # Python hears of a Ctrl-C when DuckDB is done. Nothing is written, so the process may end on the spot.
    with lent((signal.SIGINT,), signal.SIG_DFL):
        answer = tables.ask(query) if query is not None else None
        for words in tables.unreadable:
            print(f"dyno: left out: {words}", file=sys.stderr)
        if answer is None:
            print(_tables(tables))
        else:
            _print(answer, options.how)
    return 0


def _query(options: argparse.Namespace) -> str | None:
    if options.file is not None:
        if options.query is not None:
            raise UsageError("A query and --file: give one of them.")
        try:
            return files.read(options.file, files.TEXT, pipes=True).decode()
        except OSError as e:
            raise UsageError(f"{options.file} can't be read: {e.strerror}.") from None
        except UnicodeDecodeError:
            raise StoreError(f"{options.file} is not UTF-8. Save it as that.") from None
    return sys.stdin.read(files.TEXT) if options.query == "-" else options.query


def _tables(tables: "RunTables") -> str:
    from dyno.store.sql import TABLES

    parts = []
    for table, columns in itertools.groupby(tables.columns(), key=lambda row: row[0]):
        rows = [[column, kind, meaning] for _, column, kind, meaning in columns]
        head = wrapped(f"{styled(table, 'best')}: {TABLES[table]}")
        body = terminal(text_table(["", "", ""], rows, keep=(1, 2)), indent="  ")
        parts.append("\n".join([*head, *body]))
    return "\n\n".join([*parts, "METHOD.md explains settings and numbers.", _EXAMPLES])


def _print(answer: "QueryResult", how: str | None) -> None:
    if how == "csv":
        write_csv(for_programs(), itertools.chain([answer.columns], answer.rows))
    elif how == "json":
        between = "["
        for row in answer.rows:
            values = {
                name: _plain(value) for name, value in zip(answer.columns, row, strict=True)
            }
            print(between + json.dumps(values, default=str, ensure_ascii=False), end="")
            between = ",\n"
        print("[]" if between == "[" else "]")
    else:
        table = text_table(
            answer.columns,
            ([database_cell(value) for value in row] for row in answer.rows),
            answer.numbers,
        )
        print(
            "\n".join(markdown(table) if how else terminal(table, more="--csv or --json"))
        )


def _plain(value: Any) -> Any:
    """Convert a value for JSON, which has no decimals, NaN or infinity."""
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    return value
