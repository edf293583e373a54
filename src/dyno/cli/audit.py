"""`dyno audit` and `dyno import`: check and keep any tool's results."""

import argparse
import json
import sys
from pathlib import Path

import msgspec

from dyno import __version__
from dyno.cli import exit_codes, settings
from dyno.errors import DynoError, ImportFailed, UsageError
from dyno.facts.finding import Finding
from dyno.facts.imported import Document
from dyno.numbers import many
from dyno.store.imports import FOLDER, store, without_text
from dyno.study.prices import price_rules

_FORMATS = """reads these formats, recognized by content:
  printed blocks from vLLM and SGLang, also several in a log, a Markdown file or console output
  JSON of vLLM (serve, throughput, latency), GuideLLM, AIPerf, GenAI-Perf, inference-perf,
    inference-benchmarker, InferenceX and dyno; SGLang's JSON lines; CSV files and tables with such figures
  llama-bench (Markdown, CSV, JSON, JSON lines, SQL), lm-eval (tables, JSON)
"""
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
    p.add_argument("--markdown", action="store_true", help="print Markdown, for a report or review")
    p.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="PRICE",
        help="price per accelerator-hour: 2.99, or by name H100=2.99; per machine: machine=12; repeatable",
    )
    p.add_argument("--prices", type=Path, metavar="FILE", help="price file, see docs/reports.md (default: none)")
    settings.add_runs(p, "folder of dyno runs (default: runs)")
    exit_codes.add(p)
    p.set_defaults(command=audit)


def add_import(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Reads other tools' results and stores each figure with its line and its tool's definition in\n"
        "runs/imports. `dyno audit` and `dyno compare` also read the files directly."
    )
    p.epilog = _FORMATS + _IMPORTS
    p.add_argument("files", nargs="+", metavar="FILE", help="result files, reports, logs or folders of them")
    settings.add_runs(p, "folder of dyno runs (default: runs)")
    p.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder to store them in (default: runs/imports)")
    p.add_argument("--no-text", action="store_true", help="store figures, settings, commands and tables, but no prose")
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting that the file lacks, for all its results; LINE:NAME=VALUE or FIRST-LAST:NAME=VALUE for some; "
        "repeatable",
    )
    p.add_argument("--json", action="store_true", help="print what was read as JSON, and store nothing")
    p.set_defaults(command=import_)


def audit(options: argparse.Namespace) -> int:
    from dyno.audit.audit import audit as audited
    from dyno.audit.printed import as_json, as_markdown, normal, text
    from dyno.probe.peaks import of_name

    if options.json and options.markdown:
        raise UsageError("--json and --markdown exclude each other. Choose one.")
    prices = price_rules(options.price, None, options.prices)
    documents, own, missing = _read(options.files, options.runs)
    result = audited(documents, of_name, own)
    rows = [normal(row, prices) for d in documents for row in d.rows]
    if options.json:
        print(json.dumps(as_json(result, rows, __version__)))
    else:
        print((as_markdown if options.markdown else text)(result, rows))
    lost = not result.coverage.complete
    if not rows and not lost and all(d.unread for d in documents) and not any(d.headings for d in documents):
        raise ImportFailed("No results found. `dyno audit --help` lists the formats that dyno reads.")
    code = exit_codes.from_verdicts([result.verdict], options, "verdict")
    return code or (exit_codes.FAILED if missing else exit_codes.UNREAD if lost else exit_codes.DONE)


def show(word: str, runs: Path, as_json: bool) -> None:
    """Show another tool's results for `dyno runs show`: never without their findings."""
    options = argparse.Namespace(files=[word], runs=runs, json=as_json, markdown=False, price=[], prices=None)
    options.allow_void, options.fail_on = True, None
    audit(options)


def _read(words: list[str], runs: Path) -> tuple[list[Document], list[Finding], int]:
    """Read files, runs and studies. One that can't be read is reported, and the others are still read."""
    from dyno.conduct.read import own_findings, read_words

    reading = read_words(words, runs)
    for why in reading.failed:
        print(f"dyno: {why}", file=sys.stderr)
    return reading.documents, own_findings(reading.rows), len(reading.failed)


def import_(options: argparse.Namespace) -> int:
    from dyno.audit.audit import coverage
    from dyno.audit.document import read
    from dyno.audit.given import all_used, given, with_given

    asked = given(options.set)
    documents, words, failed = [], [], exit_codes.DONE
    for word in dict.fromkeys(options.files):
        try:
            document = read(Path(word))
        except DynoError as e:
            print(f"dyno: {e}", file=sys.stderr)
            failed = max(failed, e.exit_code)
            continue
        document = with_given(document, asked)
        documents.append(without_text(document) if options.no_text else document)
        words.append(word)
    if not failed:
        all_used(asked, documents)
    if options.json:
        print(msgspec.json.encode(documents).decode())
    for d, word in zip(documents, words, strict=True):
        where = ""
        if (d.rows or d.commands or d.environments) and not options.json:
            where = f" → {store(d, options.output or options.runs / FOLDER, word)}"
        kinds = sorted({r.tool or "a table" for r in d.rows})
        by = f" from {', '.join(kinds)}" if kinds else ""
        share = coverage([d]).describe()
        print(
            f"{d.file}: {d.format}, {many(len(d.rows), 'result')}{by}{f', {share} read' if share else ''}{where}",
            file=sys.stderr if options.json else sys.stdout,
        )
        for u in sorted(d.unread, key=lambda u: not u.lost)[:20]:
            print(f"  {u.describe(d.file)}", file=sys.stderr)
        if len(d.unread) > 20:
            print(f"  … and {len(d.unread) - 20} more", file=sys.stderr)
    if documents and not any(d.rows for d in documents):
        raise ImportFailed("No results found.")
    return failed
