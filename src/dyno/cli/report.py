"""`dyno report`: runs, studies and other people's results as a page, Markdown, CSV or pictures."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urljoin

from dyno import secrets
from dyno.cli import exit_codes, settings
from dyno.cli.flags import pairs
from dyno.errors import DrawError, DynoError, StoreError, UsageError
from dyno.facts.report import Chart, Report
from dyno.numbers import many
from dyno.screen import wrapped
from dyno.store.run import write

_FORMS = (".html", ".md", ".csv", ".png", ".svg")
_EPILOG = """\
The format follows from the file extension: .html a self-contained page, .md Markdown, .csv a line per result, .png or
.svg a picture of each chart (report.png → report-CHART.png; with --chart NAME, report.png). -o can be repeated.

A link to a published page gets a picture in previews only with --url: services fetch it by its full address.

  dyno report runs/my-study -o report.html
  dyno report runs/my-study --price H100=2.99 --target ttft:500 tpot:50 -o report.html -o report.md
  dyno report results/*.json bench.log -o report.html          other tools' results, as `dyno audit` reads them
  dyno report runs/my-study --url https://example.org/reports/ -o report.html
  dyno report runs/my-study --chart throughput-concurrency --show per=accelerator -o throughput.svg
"""


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Writes a self-contained page: the answer in three sentences, a chart and a table, then results,\n"
        "charts, costs, findings, machines, engines and commands."
    )
    p.epilog = _EPILOG + "\n" + exit_codes.describe(exit_codes.VOID)
    p.add_argument(
        "what",
        nargs="+",
        metavar="RUNS",
        help="a run, a study, STUDY:WORDS, a folder of them, a result file",
    )
    p.add_argument(
        "-o",
        "--output",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="file to write; repeatable (default: report.html)",
    )
    p.add_argument(
        "--title", metavar="WORDS", help="title (default: the names of studies or files)"
    )
    p.add_argument(
        "--url",
        metavar="URL",
        help="address of the published page, or of its folder with a / at the end (default: none)",
    )
    settings.add_prices(p)
    p.add_argument(
        "--target",
        nargs="+",
        default=[],
        metavar="NAME:LIMIT",
        help="target, such as ttft:500ms, p99_tpot:30ms, failed:1%% or invalid:1%%; the report names the best load "
        "within it",
    )
    p.add_argument(
        "--chart", nargs="+", default=[], metavar="NAME", help="pictures: only these charts"
    )
    p.add_argument(
        "--list-charts",
        action="store_true",
        help="list the charts and the values that --show takes",
    )
    p.add_argument(
        "--show",
        nargs="+",
        default=[],
        metavar="WHAT=VALUE",
        help="pictures: select values, such as statistic=p99",
    )
    p.add_argument(
        "--width",
        type=int,
        default=720,
        metavar="PIXELS",
        help="width of pictures (default: 720)",
    )
    p.add_argument("--dark", action="store_true", help="pictures on a dark background")
    settings.add_runs(p, "folder of dyno runs (default: runs)")
    exit_codes.add(p, of_many=True)
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
            print(
                f"{chart.name}: {chart.title}",
                *(n for c in _choices(chart) for n in wrapped(c, "    ", "      ")),
                sep="\n",
            )
        return 0
    for output in outputs:
        with busy(f"writing {output}"):
            written = _write(report, charts, output, options)
        print("\n".join(map(str, written)))
    if options.fail_on:
        return exit_codes.from_verdicts([report.verdict], options, "worst result")
    measured = [entry.verdict for entry in report.entries if not entry.failure]
    return exit_codes.from_many(measured or [report.verdict], options)


STUDY_PAGE = "report.html"  # in the study's folder


def study_page(study: Path, options: argparse.Namespace) -> Report | None:
    """Write a study's page into its folder, and return its report. A failure is reported; the study still succeeds.

    `options`: of the command that ran it, with its folder of runs and perhaps prices."""
    output = study / STUDY_PAGE
    prices = {
        name: getattr(options, name, none) for name, none in settings.NO_PRICES.items()
    }
    options = argparse.Namespace(
        what=[str(study)],
        output=[output],
        title=None,
        target=[],
        runs=options.runs,
        chart=[],
        list_charts=False,
        **prices,
    )
    try:
        report = _report(options)
        _write_page(report, _charts(report, options, [output]), output)
    except DynoError as e:
        print(f"dyno: the page was not written: {e}", file=sys.stderr)
        return None
    except (
        Exception
    ) as e:  # hours of measuring must not end in a traceback because of a picture of them
        why = secrets.clean(repr(e))
        print(
            f"dyno: the page was not written because of a bug in dyno: {why}. Try `dyno report {study}`.",
            file=sys.stderr,
        )
        return None
    return report


def _report(options: argparse.Namespace) -> "Report":
    from dyno.cli.progress import busy
    from dyno.conduct.read import ReportRequest, distinct, make_report, read_words
    from dyno.facts.limits import parse
    from dyno.study.prices import price_rules

    rules = price_rules(options.price, options.energy_price, options.prices)
    request = ReportRequest(
        options.what, rules, parse(options.target), options.title or "", _again(options)
    )
    with busy("reading results"):
        reading = distinct(read_words(options.what, options.runs))
    _warn([*reading.failed, *reading.unread])
    with busy(f"checking and comparing {many(len(reading.rows), 'result')}"):
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
    if options.prices:
        words += ["--prices", str(options.prices)]
    if options.energy_price is not None:
        words += ["--energy-price", f"{options.energy_price:g}"]
    if options.title:
        words += ["--title", options.title]
    if getattr(options, "url", None):
        words += ["--url", options.url]
    if str(options.runs) != "runs":
        words += ["--runs", str(options.runs)]
    return shlex.join(secrets.without(secrets.values({}, words), words))


def _check(options: argparse.Namespace, outputs: Sequence[Path]) -> None:
    """Check the flags before anything is read."""
    for path in outputs:
        if path.suffix.lower() not in _FORMS:
            raise UsageError(
                f"-o {path}: unknown format. Use {', '.join(_FORMS)}: the format follows from the file extension."
            )
        if path.is_dir():
            raise UsageError(
                f"-o {path} is a folder. Name a file in it: {path / 'report.html'}."
            )
    if options.url and not options.url.startswith(("http://", "https://")):
        raise UsageError(
            f"--url {options.url}: give the full address, beginning with http:// or https://."
        )
    if not 100 <= options.width <= 8000:
        raise UsageError(f"--width {options.width}: choose 100 to 8000 pixels.")


# ---- what is written ----


def _charts(
    report: Report, options: argparse.Namespace, outputs: Sequence[Path]
) -> list[Chart]:
    if not options.list_charts and all(
        path.suffix.lower() in (".md", ".csv") for path in outputs
    ):
        return []
    from dyno.report.charts import charts

    drawn = charts(report)
    names = [chart.name for chart in drawn]
    if unknown := [name for name in options.chart if name not in names]:
        raise UsageError(f"--chart {unknown[0]}: no such chart. Known: {', '.join(names)}.")
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


def _write(
    report: Report, charts: list[Chart], output: Path, options: argparse.Namespace
) -> list[Path]:
    """Return what was written."""
    form = output.suffix.lower()
    if form in (".png", ".svg"):
        return _pictures(charts, output, options)
    if form == ".html":
        return _write_page(report, charts, output, options.url or "")
    # here and not above: it brings numpy and all checks, and `dyno report --help` needs none
    from dyno.report.text import csv, markdown

    _save(output, (markdown(report) if form == ".md" else csv(report)).encode())
    return [output]


def _write_page(
    report: Report, charts: list[Chart], output: Path, url: str = ""
) -> list[Path]:
    """Write the page. `url`: of the page, or of its folder. With it goes a picture for link previews."""
    from dyno.report.page import Address, bundle, main_chart, page
    from dyno.report.picture import card

    try:
        if charts:
            bundle(_cache())
    except DrawError as e:
        print(
            f"dyno: {output} has no charts. {e} Its tables and findings are complete.",
            file=sys.stderr,
        )
        charts = []
    if not url:
        _save(output, page(report, charts, _cache()).encode())
        return [output]
    address = url + quote(output.name) if url.endswith("/") else url
    preview = output.with_name(f"{output.stem}-preview.png")
    linked = Address(address, urljoin(address, quote(preview.name)))
    _save(output, page(report, charts, _cache(), linked).encode())
    if (chart := main_chart(report, charts)) is None:
        return [output]
    _save(preview, card(chart, report.title, " ".join(report.words.answer)))
    return [output, preview]


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "dyno"


def _pictures(charts: list[Chart], output: Path, options: argparse.Namespace) -> list[Path]:
    wanted = [c for c in charts if c.name in options.chart] if options.chart else charts
    if not wanted:
        raise UsageError("Nothing to draw: no result has figures for a chart.")
    show, written = pairs(options.show, "--show"), []
    for chart in wanted:
        values = _selectable(chart, show, strict=bool(options.chart))
        _can_show(chart, values)
        path = (
            output
            if len(wanted) == 1
            else output.with_name(f"{output.stem}-{chart.name}{output.suffix}")
        )
        _save(path, _drawn(chart, output, values, options))
        written.append(path)
    return written


def _selectable(chart: Chart, show: dict[str, str], strict: bool) -> dict[str, str]:
    """Return the values that the chart can select. `strict`: one that it can't is an error."""
    params = {param["name"] for param in chart.spec.get("params", [])}
    missing = [name for name in show if name not in params]
    if missing and strict:
        known = "; ".join(_choices(chart)) or "nothing"
        raise UsageError(
            f"--show {missing[0]}: {chart.name} can't select that. Known: {known}."
        )
    return {name: value for name, value in show.items() if name in params}


def _drawn(
    chart: Chart, output: Path, values: dict[str, str], options: argparse.Namespace
) -> bytes:
    """Return the picture in the format that the output's extension names."""
    from dyno.report.picture import png, svg

    if output.suffix.lower() == ".png":
        return png(chart, width=options.width, dark=options.dark, values=values)
    return svg(chart, width=options.width, dark=options.dark, values=values).encode()


def _can_show(chart: Chart, values: dict[str, str]) -> None:
    for name, value in values.items():
        param = next(p for p in chart.spec["params"] if p["name"] == name)
        bind = param.get("bind") or {}
        known = [*map(str, bind.get("options", [])), *bind.get("labels", [])]
        if not known and name == "per":
            known = chart.per
        if value not in known:
            raise UsageError(
                f"--show {name}={value}: {chart.name} has no such value. Known: {'; '.join(_choices(chart))}."
            )


def _save(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StoreError(f"{path.parent} can't be created: {e.strerror}.") from None
    write(path, data, mode=0o666)  # by the user's umask: a page is meant to be shared
