"""`dyno report`: runs, studies and other people's results as a page, Markdown, CSV or pictures."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dyno import secrets
from dyno.cli import exit_codes, settings
from dyno.cli.flags import pairs
from dyno.errors import DynoError, StoreError, UsageError
from dyno.facts.report import Chart, Report
from dyno.report.csv_table import csv
from dyno.report.markdown import markdown
from dyno.store.run import write

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


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Makes one self-contained page of everything that is named: an answer in words, tables, charts,\n"
        "costs, every finding, machines, engines and commands."
    )
    p.epilog = _EPILOG + "\n" + exit_codes.describe(exit_codes.VOID)
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
    settings.add_runs(p, "where dyno's own lie (default: runs)")
    exit_codes.add(p)
    p.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from dyno.cli.progress import busy

    outputs = options.output or [Path("report.html")]
    _check(options, outputs)
    report = _report(options)
    with busy("drawing charts"):
        charts = _charts(report, options, outputs)
    if options.list_charts:
        for chart in charts:
            print("\n    ".join([f"{chart.name}: {chart.title}", *_choices(chart)]))
        return 0
    for output in outputs:
        with busy(f"writing {output}"):
            _write(report, charts, output, options)
    return exit_codes.from_verdicts([report.verdict], options, "worst result")


def study_page(study: Path, runs: Path) -> Path | None:
    """Write a study's page into its folder. A failure is reported, and is no failure of the study."""
    output = study / "report.html"
    options = argparse.Namespace(
        what=[str(study)], output=[output], title=None, price=[], prices=None, energy_price=None, target=[], runs=runs,
        chart=[], list_charts=False,
    )  # fmt: skip
    try:
        report = _report(options)
        _save(output, _page(report, _charts(report, options, [output])))
    except DynoError as e:
        print(f"dyno: there is no page of it: {e}", file=sys.stderr)
        return None
    except Exception as e:  # hours of measuring must not end in a traceback because of a picture of them
        why = secrets.clean(repr(e))
        print(f"dyno: there is no page of it, because of a bug in dyno: {why}. `dyno report {study}`.", file=sys.stderr)
        return None
    return output


def _report(options: argparse.Namespace) -> "Report":
    from dyno.cli.progress import busy
    from dyno.conduct.read import ReportRequest, distinct, make_report, read_words
    from dyno.report.target import limits
    from dyno.study.prices import price_rules

    rules = price_rules(options.price, options.energy_price, options.prices)
    request = ReportRequest(options.what, rules, limits(options.target), options.title or "", _again(options))
    with busy("reading results"):
        reading = distinct(read_words(options.what, options.runs))
    _warn([*reading.failed, *reading.unread])
    with busy("making the report"):
        report, warnings = make_report(reading, request)
    _warn(warnings)
    return report


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"dyno: {warning}", file=sys.stderr)


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


def _check(options: argparse.Namespace, outputs: Sequence[Path]) -> None:
    """Check the flags before anything is read."""
    for path in outputs:
        if path.suffix.lower() not in _FORMS:
            raise UsageError(f"-o {path}: dyno makes {', '.join(_FORMS)}. Which one is told by the name's end.")
        if path.is_dir():
            raise UsageError(f"-o {path} is a folder. Name a file in it: {path / 'report.html'}.")
    if not 100 <= options.width <= 8000:
        raise UsageError(f"--width {options.width} is no width of a picture: 100 to 8000 pixels.")


# ---- what is written ----


def _charts(report: Report, options: argparse.Namespace, outputs: Sequence[Path]) -> list[Chart]:
    if not options.list_charts and all(path.suffix.lower() in (".md", ".csv") for path in outputs):
        return []
    from dyno.report.charts import charts

    drawn = charts(report)
    names = [chart.name for chart in drawn]
    if unknown := [name for name in options.chart if name not in names]:
        raise UsageError(f"--chart {unknown[0]}: there is no such chart here. There are {', '.join(names)}.")
    return drawn


def _choices(chart: Chart) -> list[str]:
    """List what --show can choose."""
    lines = []
    for param in chart.spec.get("params", []):
        bind = param.get("bind")
        if isinstance(bind, dict) and bind.get("options"):
            labels = [str(o) for o in bind.get("labels") or bind["options"]]
            more = f" … and {len(labels) - 6} more" if len(labels) > 6 else ""
            lines.append(f"{param['name']}={' | '.join(labels[:6])}{more}")
    if len(chart.per) > 1:
        lines.append(f"per={' | '.join(chart.per)}")
    return lines


def _write(report: Report, charts: list[Chart], output: Path, options: argparse.Namespace) -> None:
    form = output.suffix.lower()
    if form in (".png", ".svg"):
        _pictures(charts, output, options)
        return
    if form == ".html":
        _save(output, _page(report, charts))
    elif form == ".md":
        _save(output, markdown(report).encode())
    else:
        _save(output, csv(report).encode())
    print(output)


def _page(report: Report, charts: list[Chart]) -> bytes:
    from dyno.report.page import page

    return page(report, charts, _cache()).encode()


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "dyno"


def _pictures(charts: list[Chart], output: Path, options: argparse.Namespace) -> None:
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
        _can_show(chart, values)
        path = output if len(wanted) == 1 else output.with_name(f"{output.stem}-{chart.name}{output.suffix}")
        if output.suffix.lower() == ".png":
            _save(path, png(chart, width=options.width, dark=options.dark, values=values))
        else:
            _save(path, svg(chart, width=options.width, dark=options.dark, values=values).encode())
        print(path)


def _can_show(chart: Chart, values: dict[str, str]) -> None:
    for name, value in values.items():
        param = next(p for p in chart.spec["params"] if p["name"] == name)
        bind = param.get("bind") or {}
        known = [*map(str, bind.get("options", [])), *bind.get("labels", [])] or (chart.per if name == "per" else [])
        if value not in known:
            raise UsageError(
                f"--show {name}={value}: {chart.name} has no such value. It has {'; '.join(_choices(chart))}."
            )


def _save(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StoreError(f"{path.parent} can't be made: {e.strerror}.") from None
    write(path, data, mode=0o666)  # as the user's umask has it: a page is made to be shown
