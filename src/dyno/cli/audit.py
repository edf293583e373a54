"""`dyno audit` and `dyno import`: check and keep any tool's results."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dyno import __version__
from dyno.cli import exit_codes, settings
from dyno.errors import DynoError, ImportFailed, UsageError
from dyno.facts.imported import Document
from dyno.numbers import many
from dyno.store.imports import FOLDER, store, without_text
from dyno.study.prices import price_rules

if TYPE_CHECKING:
    from dyno.audit.document import Given

_FORMATS = """reads these formats, recognized by content:
  printed blocks from vLLM and SGLang, also several in a log, a Markdown file or console output
  JSON of vLLM (serve, throughput, latency), GuideLLM, AIPerf, GenAI-Perf, inference-perf,
    inference-benchmarker, InferenceX and dyno; SGLang's JSON lines; CSV files and tables with such figures
  llama-bench (Markdown, CSV, JSON, JSON lines, SQL), lm-eval (tables, JSON)
"""
_UNREAD_SHOWN = 20
_AUDITS = """
examples:
  dyno audit report.md results/*.json       a report together with its result files
  dyno audit bench.log --json | jq .findings
  dyno audit runs/my-study --price 2.99     a study, with costs
  vllm bench serve … | dyno audit -         from a pipe

"""
_IMPORTS = """
examples:
  dyno import results/*.json                stores them in runs/imports; `dyno runs` lists them
  dyno import report.md --no-text -o figures
  dyno import tgi.csv --set engine=tgi --set accelerator=MI300X --set accelerators=8
  dyno import rates.csv --set 2:rate=1 --set 3:rate=2      for single lines
  dyno sql "select file, name, value, definition from imported where name like '%ttft%'\""""


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Checks results from dyno and other tools, and reports about them, for errors. Each finding names its\n"
        "lines. Tables and printed figures that could not be read are listed."
    )
    p.epilog = _FORMATS + _AUDITS + exit_codes.describe(exit_codes.VOID, exit_codes.UNREAD)
    p.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a result file, report, log or folder of them; a run or study; - for a pipe",
    )
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    p.add_argument(
        "--markdown", action="store_true", help="print Markdown, for a report or review"
    )
    p.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="PRICE",
        help="price per accelerator-hour: 2.99, or by name H100=2.99; per machine: machine=12; repeatable",
    )
    p.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="price file, see docs/reports.md (default: none)",
    )
    settings.add_runs(p, "folder of dyno runs (default: runs)")
    exit_codes.add(p)
    p.set_defaults(command=audit)


def add_import(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Reads other tools' results and stores each figure with its line and its tool's definition in\n"
        "runs/imports. `dyno audit` and `dyno compare` also read the files directly."
    )
    p.epilog = _FORMATS + _IMPORTS
    p.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="result files, reports, logs or folders of them",
    )
    settings.add_runs(p, "folder of dyno runs (default: runs)")
    p.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="folder to store them in (default: runs/imports)",
    )
    p.add_argument(
        "--no-text",
        action="store_true",
        help="store figures, settings, commands and tables, but no prose",
    )
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting that the file lacks, for all its results; LINE:NAME=VALUE or FIRST-LAST:NAME=VALUE for some; "
        "repeatable",
    )
    p.add_argument(
        "--json", action="store_true", help="print what was read as JSON, and store nothing"
    )
    p.set_defaults(command=import_)


def audit(options: argparse.Namespace) -> int:
    from dyno.api import results
    from dyno.audit.printed import as_json, as_markdown, normal, text

    if options.json and options.markdown:
        raise UsageError("--json and --markdown exclude each other. Choose one.")
    prices = price_rules(options.price, None, options.prices)
    checked = results.audited_words(options.files, options.runs)
    for why in checked.failed:
        print(f"dyno: {why}", file=sys.stderr)
    result, missing = checked.audited, len(checked.failed)
    rows = [normal(row, prices) for row in checked.rows]
    if options.json:
        print(json.dumps(as_json(result, rows, __version__)))
    elif options.markdown:
        print(as_markdown(result, rows))
    else:
        print(text(result, rows))
    lost = not result.coverage.complete
    if checked.empty:
        raise ImportFailed(results.NOTHING)
    code = exit_codes.from_verdicts([result.verdict], options, "verdict")
    if code:
        return code
    if missing:
        return exit_codes.FAILED
    return exit_codes.UNREAD if lost else exit_codes.DONE


def show(word: str, runs: Path, as_json: bool) -> None:
    """Show another tool's results for `dyno runs show`: never without their findings."""
    options = argparse.Namespace(
        files=[word], runs=runs, json=as_json, markdown=False, price=[], prices=None
    )
    options.allow_void, options.fail_on = True, None
    audit(options)


def import_(options: argparse.Namespace) -> int:
    from dyno.audit.document import all_used, given

    asked = given(options.set)
    documents, failed = _read_files(options, asked)
    if not failed:
        all_used(asked, list(documents.values()))
    if options.json:
        print(msgspec.json.encode(list(documents.values())).decode())
    for word, document in documents.items():
        stored = None
        if (
            document.rows or document.commands or document.environments
        ) and not options.json:
            stored = store(document, options.output or options.runs / FOLDER, word)
        print(_summary(document, stored), file=sys.stderr if options.json else sys.stdout)
        _print_unread(document)
    if documents and not any(d.rows for d in documents.values()):
        raise ImportFailed("No results found.")
    return failed


def _read_files(
    options: argparse.Namespace, asked: "list[Given]"
) -> tuple[dict[str, Document], int]:
    """Return the documents by the words that name them, and the exit code of those that can't be read."""
    from dyno.audit.document import read, with_given

    documents: dict[str, Document] = {}
    failed = exit_codes.DONE
    for word in dict.fromkeys(options.files):
        try:
            document = read(Path(word))
        except DynoError as e:
            print(f"dyno: {e}", file=sys.stderr)
            failed = max(failed, e.exit_code)
            continue
        document = with_given(document, asked)
        documents[word] = without_text(document) if options.no_text else document
    return documents, failed


def _summary(document: Document, stored: Path | None) -> str:
    """Describe what was read of a file in one line. `stored`: where it is kept."""
    from dyno.audit.audit import coverage

    line = f"{document.file}: {document.format}, {many(len(document.rows), 'result')}"
    tools = sorted({row.tool or "a table" for row in document.rows})
    if tools:
        line += f" from {', '.join(tools)}"
    share = coverage([document]).describe()
    if share:
        line += f", {share} read"
    if stored is not None:
        line += f" → {stored}"
    return line


def _print_unread(document: Document) -> None:
    for unread in sorted(document.unread, key=lambda unread: not unread.lost)[
        :_UNREAD_SHOWN
    ]:
        print(f"  {unread.describe(document.file)}", file=sys.stderr)
    more = len(document.unread) - _UNREAD_SHOWN
    if more > 0:
        print(f"  … and {more} more", file=sys.stderr)
