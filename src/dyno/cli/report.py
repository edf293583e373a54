"""`dyno report`: runs, studies and other people's results as a page, Markdown, CSV or pictures."""

import argparse
import datetime
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno import __version__, secrets
from dyno.cli.values import pairs
from dyno.errors import DynoError, StoreError, UsageError

if TYPE_CHECKING:
    from dyno.cli.sources import Source
    from dyno.facts.about import About
    from dyno.facts.chart import Chart
    from dyno.facts.entry import Entry
    from dyno.facts.measured import Measured
    from dyno.facts.report import Report

# Findings that repeats make together, and no result alone.
_OF_REPEATS = ("statistics.repeats_differ", "study.failed_trials")
_FORMS = (".html", ".md", ".csv", ".png", ".svg")
_EPILOG = """\
What is made follows from the name after -o: .html a page that needs nothing else, .md Markdown, .csv a line for each
result, .png or .svg a picture of each chart (report.png → report-CHART.png; of a single one, --chart NAME, as named).
Several -o may be given.

  dyno report runs/my-study -o report.html
  dyno report runs/my-study --price H100=2.99 --target ttft:500 tpot:50 -o report.html -o report.md
  dyno report results/*.json bench.log -o report.html          other tools' results, as `dyno audit` reads them
  dyno report runs/my-study --chart throughput-concurrency --show per=accelerator -o throughput.svg
"""


def add(commands: Any) -> None:
    p = commands.add_parser(
        "report",
        help="a page, Markdown, CSV or pictures of runs, studies and imported results",
        description="Makes one self-contained page of everything that is named: an answer in words, tables, charts,\n"
        "costs, every finding, machines, engines and commands.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "what", nargs="+", metavar="RUNS", help="a run, a study, STUDY:WORDS, a folder of them, a result file"
    )
    p.add_argument(
        "-o", "--output", action="append", type=Path, default=[], metavar="FILE", help="default: report.html"
    )
    p.add_argument("--title", metavar="WORDS")
    p.add_argument(
        "--price",
        nargs="+",
        default=[],
        metavar="[NAME=]DOLLARS",
        help="of an accelerator-hour: 2.99, or H100=2.99 MI300X=4.50; machine=12: of a machine-hour",
    )
    p.add_argument("--prices", type=Path, metavar="FILE.toml", help="a file of prices (studies/README.md)")
    p.add_argument("--energy-price", type=float, metavar="DOLLARS", help="of a kilowatt-hour")
    p.add_argument(
        "--target",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="a latency target, such as ttft:500 or p99_tpot:30: the best load that meets it is told",
    )
    p.add_argument("--chart", nargs="+", default=[], metavar="NAME", help="of pictures: only these")
    p.add_argument("--list-charts", action="store_true", help="the names of the charts, and what may be shown in each")
    p.add_argument("--show", nargs="+", default=[], metavar="WHAT=VALUE", help="of pictures: statistic=p99, …")
    p.add_argument("--width", type=int, default=720, metavar="PIXELS", help="of pictures (default: 720)")
    p.add_argument("--dark", action="store_true", help="pictures on a dark ground")
    p.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where dyno's own lie (default: runs)"
    )
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    outputs = options.output or [Path("report.html")]
    _check(options, outputs)
    report = made(options)
    charts = _charts(report, options, outputs)
    if options.list_charts:
        for chart in charts:
            print("\n    ".join([f"{chart.name}: {chart.title}", *_choices(chart)]))
        return 0
    for output in outputs:
        _write(report, charts, output, options)
    return 0


def of_study(study: Path, runs: Path) -> Path | None:
    """The page of a study, in its folder. That there is none is told, and is no failure of the study."""
    output = study / "report.html"
    options = argparse.Namespace(
        what=[str(study)], output=[output], title=None, price=[], prices=None, energy_price=None, target=[], runs=runs,
        chart=[], list_charts=False,
    )  # fmt: skip
    try:
        report = made(options)
        _save(output, _page(report, _charts(report, options, [output])))
    except DynoError as e:
        print(f"dyno: there is no page of it: {e}", file=sys.stderr)
        return None
    except Exception as e:  # hours of measuring must not end in a traceback because of a picture of them
        print(
            f"dyno: there is no page of it, by a mistake of dyno's own: {e!r}. `dyno report {study}`.", file=sys.stderr
        )
        return None
    return output


def _check(options: argparse.Namespace, outputs: Sequence[Path]) -> None:
    """Before anything is read: a mistake in the last flag shouldn't cost the reading."""
    for path in outputs:
        if path.suffix.lower() not in _FORMS:
            raise UsageError(f"-o {path}: dyno makes {', '.join(_FORMS)}. Which one is told by the name's end.")
        if path.is_dir():
            raise UsageError(f"-o {path} is a folder. Name a file in it: {path / 'report.html'}.")
    if not 100 <= options.width <= 8000:
        raise UsageError(f"--width {options.width} is no width of a picture: 100 to 8000 pixels.")


def made(options: argparse.Namespace) -> "Report":
    from dyno.cli.prices import price_rules
    from dyno.cli.sources import spread
    from dyno.measure.target import limits

    rules = price_rules(options.price, options.energy_price, options.prices)
    wanted = limits(options.target)
    words = list(dict.fromkeys(spread(options.what)))
    sources, failed = _read(words, options.runs)
    for why in failed:
        print(f"dyno: {why}", file=sys.stderr)
    if not sources:
        raise StoreError("Nothing could be read.")
    return _report(sources, rules, wanted, options)


def _read(words: Sequence[str], runs: Path) -> "tuple[list[Source], list[str]]":
    """Samples are read later, a trial at a time."""
    from dyno.cli.sources import read

    sources, failed = [], []
    for word in words:
        try:
            sources.append(read(word, runs, samples=False))
        except DynoError as e:
            failed.append(str(e))
    return sources, failed


def _report(sources: "list[Source]", rules: Any, wanted: Any, options: argparse.Namespace) -> "Report":
    import msgspec

    from dyno.cli.audit import peaks_of
    from dyno.cli.sources import detail
    from dyno.facts.definition import DEFINITIONS
    from dyno.facts.finding import verdict, worst_first
    from dyno.facts.report import AuthorsTable, Report
    from dyno.measure.audit import audit
    from dyno.measure.conclusion import conclude
    from dyno.measure.entries import about_failures, entries
    from dyno.measure.target import best, target
    from dyno.report import sheets

    documents = [s.document for s in sources]
    measured = [m for s in sources for m in (*s.measured, *s.missing)]
    own = [msgspec.structs.replace(f, at=[m.row.at]) for m in measured if m.row.form == "run" for f in m.findings]
    judged = audit(documents, peaks_of, own)
    all_made = entries(measured, judged.each, rules, detail)
    if not all_made:
        raise StoreError("No results were found in what was named.")
    shown = [m.entry for m in all_made]
    aim = target(shown, wanted)
    chosen = best(shown, aim.limits)
    about = _about(options.what)
    known = {f.text for f in judged.each}
    besides = [f for m in all_made for f in m.entry.findings if f.text not in known and f.code in _OF_REPEATS]
    findings = worst_first([*judged.findings, *{f.text: f for f in besides}.values(), *about_failures(all_made)])
    of = [(m.entry, m.group) for m in all_made]
    studies = _studies(sources)
    return Report(
        title=secrets.without(secrets.values(os.environ), [options.title or about.title or _title(sources)])[0],
        made=datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        dyno=__version__,
        verdict=verdict([*judged.each, *findings]),
        words=conclude(all_made, chosen, findings, aim.limits, _sampled, _unfinished(sources)),
        entries=shown,
        findings=findings,
        about=about.about or " ".join(filter(None, (study.about for _, study in studies))),
        sources=[*([about.source] if about.source else []), *(s.word for s in sources)],
        target=aim.limits,
        best=chosen,
        prices=[*dict.fromkeys(m.price for m in all_made if m.price), *aim.words],
        tables=[AuthorsTable(d.file, table) for d in documents for table in d.tables],
        rigs=sheets.rigs(of, documents),
        engines=sheets.engines(of),
        commands=sheets.commands(of, documents, [(study.name, text) for text, study in studies]),
        definitions={k: DEFINITIONS[k] for k in _defined(shown)},
        again=_again(options),
    )


def _defined(shown: "Sequence[Entry]") -> list[str]:
    return sorted({n.definition for e in shown for n in e.figures.values() if n.definition})


def _sampled(m: "Measured") -> "Measured":
    """With its single requests."""
    import msgspec

    from dyno.cli.sources import detail

    found = detail(m)
    return m if found is None else msgspec.structs.replace(m, row=found.row)


def _about(words: Sequence[str]) -> "About":
    """Of one folder, what its about.toml says."""
    from dyno.facts.about import About
    from dyno.study.about import about

    folders = {Path(word) if Path(word).is_dir() else Path(word).parent for word in words}
    if len(folders) != 1:
        return About()
    folder = folders.pop()
    try:
        return about(folder)
    except UsageError as e:
        if folder in map(Path, words):
            raise
        print(f"dyno: {folder / 'about.toml'} is left aside: {e}", file=sys.stderr)  # perhaps it is another tool's
        return About()


def _title(sources: "Sequence[Source]") -> str:
    names = [path.name for s in sources for path in s.studies] or [s.path.name for s in sources]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _studies(sources: "Sequence[Source]") -> Any:
    """Each study's file, as it was, and what it came to."""
    from dyno.store.study import StudyFolder

    folders = [StudyFolder(path) for s in sources for path in s.studies]
    return [(f.toml_path.read_text() if f.toml_path.exists() else "", f.study()) for f in folders]


def _unfinished(sources: "Sequence[Source]") -> int:
    """Trials of whole studies that have neither a result nor a failure, and weren't left out."""
    from dyno.store.study import StudyFolder, failure_of

    count = 0
    for s in sources:
        for path in s.studies:
            folder = StudyFolder(path)
            done, skipped = folder.done(), folder.skipped()
            planned = [p.place for p in folder.study().trials if p.place.id not in done and p.place.id not in skipped]
            if s.word.rpartition(":")[2] == s.word or path == Path(s.word):  # a part of a study wants no more of it
                count += sum(failure_of(folder.run(place)) is None for place in planned)
    return count


def _again(options: argparse.Namespace) -> str:
    words = ["dyno", "report", *options.what]
    words += [w for path in options.output for w in ("-o", str(path))]
    for name in ("price", "target"):
        if getattr(options, name):
            words += [f"--{name}", *getattr(options, name)]
    words += ["--prices", str(options.prices)] if options.prices else []
    words += ["--energy-price", f"{options.energy_price:g}"] if options.energy_price is not None else []
    words += ["--title", options.title] if options.title else []
    words += ["--runs", str(options.runs)] if str(options.runs) != "runs" else []
    return shlex.join(secrets.without(secrets.values({}, words), words))


# ---- what is written ----


def _charts(report: "Report", options: argparse.Namespace, outputs: Sequence[Path]) -> "list[Chart]":
    if not options.list_charts and all(path.suffix.lower() in (".md", ".csv") for path in outputs):
        return []
    from dyno.report.charts import charts

    found = charts(report)
    names = [chart.name for chart in found]
    if unknown := [name for name in options.chart if name not in names]:
        raise UsageError(f"--chart {unknown[0]}: there is no such chart here. There are {', '.join(names)}.")
    return found


def _choices(chart: "Chart") -> list[str]:
    """What --show can choose."""
    told = []
    for param in chart.spec.get("params", []):
        bind = param.get("bind")
        if isinstance(bind, dict) and bind.get("options"):
            labels = [str(o) for o in bind.get("labels") or bind["options"]]
            more = f" … and {len(labels) - 6} more" if len(labels) > 6 else ""
            told.append(f"{param['name']}={' | '.join(labels[:6])}{more}")
    if len(chart.per) > 1:
        told.append(f"per={' | '.join(chart.per)}")
    return told


def _write(report: "Report", charts: "list[Chart]", output: Path, options: argparse.Namespace) -> None:
    form = output.suffix.lower()
    if form in (".png", ".svg"):
        _pictures(charts, output, options)
        return
    if form == ".html":
        _save(output, _page(report, charts))
    elif form == ".md":
        from dyno.report.markdown import markdown

        _save(output, markdown(report).encode())
    else:
        from dyno.report.csv_table import csv

        _save(output, csv(report).encode())
    print(output)


def _page(report: "Report", charts: "list[Chart]") -> bytes:
    from dyno.report.page import page

    return page(report, charts, _cache()).encode()


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "dyno"


def _pictures(charts: "list[Chart]", output: Path, options: argparse.Namespace) -> None:
    from dyno.report.picture import png, svg

    wanted = [c for c in charts if c.name in options.chart] if options.chart else charts
    if not wanted:
        raise UsageError("There is nothing to draw: no result has figures for a chart.")
    show = pairs(options.show, "--show")
    for chart in wanted:
        values = {k: v for k, v in show.items() if any(p["name"] == k for p in chart.spec.get("params", []))}
        if options.chart and len(values) < len(show):
            missing = next(k for k in show if k not in values)
            raise UsageError(
                f"--show {missing}: {chart.name} has no such choice. It has {'; '.join(_choices(chart)) or 'none'}."
            )
        path = output if len(wanted) == 1 else output.with_name(f"{output.stem}-{chart.name}{output.suffix}")
        if output.suffix.lower() == ".png":
            _save(path, png(chart, width=options.width, dark=options.dark, values=values))
        else:
            _save(path, svg(chart, width=options.width, dark=options.dark, values=values).encode())
        print(path)


def _save(path: Path, data: bytes) -> None:
    from dyno.store.run import write

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StoreError(f"{path.parent} can't be made: {e.strerror}.") from None
    write(path, data)
