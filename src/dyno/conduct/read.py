"""What a command line names, gathered as a report: sources, their audit, entries, words, and what lies behind them."""

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno import __version__, secrets
from dyno.errors import DynoError, StoreError, UsageError

if TYPE_CHECKING:
    from dyno.conduct.sources import Source
    from dyno.facts.about import About
    from dyno.facts.entry import Entry
    from dyno.facts.finding import Finding
    from dyno.facts.measured import Measured
    from dyno.facts.report import Report
    from dyno.report.entries import Made

# Findings that repeats make together, and no result alone.
_OF_REPEATS = ("statistics.repeats_differ", "study.failed_trials")


def gathered(options: argparse.Namespace) -> "Report":
    from dyno.conduct.sources import spread
    from dyno.report.target import limits
    from dyno.study.prices import price_rules

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
    from dyno.conduct.sources import read

    sources, failed = [], []
    for word in words:
        try:
            sources.append(read(word, runs, samples=False))
        except DynoError as e:
            failed.append(str(e))
    return sources, failed


def _report(sources: "list[Source]", rules: Any, wanted: Any, options: argparse.Namespace) -> "Report":
    import msgspec

    from dyno.audit.audit import audit
    from dyno.checks.consistency import reported_twice
    from dyno.conduct.sources import detail
    from dyno.facts.definition import DEFINITIONS
    from dyno.facts.finding import verdict, worst_first
    from dyno.facts.report import AuthorsTable, Report
    from dyno.probe.peaks import of_name
    from dyno.report import sheets
    from dyno.report.conclusion import conclude
    from dyno.report.entries import about_failures, entries
    from dyno.report.target import best, target

    sources = _apart(sources)
    documents = [s.document for s in sources]
    measured = [m for s in sources for m in (*s.measured, *s.missing)]
    lost = _lost(sources)
    own = [
        msgspec.structs.replace(f, locations=[m.row.location])
        for m in measured
        if m.row.form == "run"
        for f in m.findings
    ]
    judged = audit(documents, of_name, own)
    all_made = entries(measured, judged.each, rules, detail)
    if not all_made:
        told = [f"{d.file}: {u.why}" for d in documents for u in d.unread[:1]]
        raise StoreError(" ".join(["No results were found in what was named.", *told[:5]]))
    _unused(rules, all_made)
    shown = [m.entry for m in all_made]
    aim = target(shown, wanted)
    chosen = best(shown, aim.limits)
    about = _about(options.what)
    known = {f.text for f in judged.each}
    besides = [f for m in all_made for f in m.entry.findings if f.text not in known and f.code in _OF_REPEATS]
    besides += reported_twice([(m.row, copy) for made in all_made for m in made.group for copy in m.also])
    findings = worst_first([*judged.findings, *{f.text: f for f in besides}.values(), *lost, *about_failures(all_made)])
    of = [(m.entry, m.group) for m in all_made]
    studies = _studies(sources)
    return Report(
        title=secrets.clean(secrets.without_looks(options.title or about.title or _title(sources))),
        created=datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        dyno=__version__,
        verdict=verdict([*judged.each, *findings]),
        words=conclude(all_made, chosen, findings, aim.limits, _sampled, _unfinished(sources)),
        entries=shown,
        findings=findings,
        about=about.about or (studies[0][1].about or "" if len(sources) == len(studies) == 1 else ""),
        sources=[*([about.source] if about.source else []), *(s.word for s in sources)],
        target=aim.limits,
        best=chosen,
        target_words=aim.words,
        prices=list(dict.fromkeys(m.price for m in all_made if m.price)),
        tables=[AuthorsTable(d.file, table) for d in documents for table in d.tables],
        rigs=sheets.rigs(of, documents),
        engines=sheets.engines(of),
        commands=sheets.commands(of, documents, [(study.name, text) for text, study in studies]),
        definitions={k: DEFINITIONS[k] for k in _defined(shown) if k in DEFINITIONS},
        again=_again(options),
    )


def _apart(sources: "list[Source]") -> "list[Source]":
    """What is named twice, by whatever words, was measured once."""
    import msgspec

    seen: set[Path] = set()
    runs: set[tuple[object, ...]] = set()
    out = []
    for s in sources:
        if not _own(s):
            if s.path.resolve() not in seen:
                out.append(s)
            seen.add(s.path.resolve())
            continue
        s = _uncopied(s, runs)
        measured, missing = (
            [m for m in of if Path(m.row.file).resolve() not in seen] for of in (s.measured, s.missing)
        )
        seen |= {Path(m.row.file).resolve() for m in (*measured, *missing)}
        if measured or missing:
            document = msgspec.structs.replace(s.document, rows=[m.row for m in measured])
            out.append(msgspec.structs.replace(s, document=document, measured=measured, missing=missing))
    return out


def _uncopied(s: "Source", runs: set[tuple[object, ...]]) -> "Source":
    """Without runs that a copy of their folder has told already: they began at the same moment and took as long."""
    import msgspec

    kept = []
    for m in s.measured:
        mark = (m.row.setting("date"), m.row.label, m.row.setting("repeat"), m.row.get("duration_s"), m.prompts_sha256)
        if mark not in runs:
            kept.append(m)
        runs.add(mark)
    return msgspec.structs.replace(s, measured=kept)


def _own(s: "Source") -> bool:
    """Runs and studies of dyno's, and no file."""
    return s.document.format in ("dyno run", "dyno study", "dyno runs")


def _lost(sources: "Sequence[Source]") -> "list[Finding]":
    """What was named and couldn't be read is told here and in the report: results without it may be others."""
    from dyno.audit.audit import coverage
    from dyno.facts.finding import Finding
    from dyno.facts.imported import place

    for s in sources:
        told = s.damaged if _own(s) else [u.describe(s.document.file) for u in s.document.unread]
        if not _own(s) and not (s.document.rows or s.document.unread or s.document.commands):
            told = [f"{s.document.file} holds no result that dyno knows."]
        for why in told:
            print(f"dyno: {why}", file=sys.stderr)
    advice = "Measure it again, or delete its folder: the report is without it."
    damaged = [why for s in sources for why in s.damaged]
    found = [Finding("study.unreadable", "doubt", f"A trial can't be read: {why}", advice) for why in damaged]
    read = coverage([s.document for s in sources])
    if not read.complete:
        text = f"Not everything with numbers was read: {read.describe()}."
        advice = "The report lacks these figures. `dyno audit` lists them with the reason."
        found.append(Finding("sources.unread", "note", text, advice, [place(file, u.line) for file, u in read.lost]))
    return found


def _unused(rules: Any, all_made: "Sequence[Made]") -> None:
    """A price that nothing has: a name that doesn't fit, or a machine without accelerators. A file may hold more."""
    told = " ".join(m.price for m in all_made)
    for rule in (rule for rule in rules if rule.origin == "--price"):
        named = rule.accelerator or rule.series
        if named and not any(named.lower() in f"{m.entry.accelerator} {m.entry.series}".lower() for m in all_made):
            print(f"dyno: {rule.origin} {named}: no result is of that name, and the price is unused.", file=sys.stderr)
        elif not named and rule.price.accelerator_hour is not None and rule.origin not in told:
            print(f"dyno: {rule.origin}: no result tells how many accelerators it used; a price of the machine is "
                  "--price machine=DOLLARS.", file=sys.stderr)  # fmt: skip


def _defined(shown: "Sequence[Entry]") -> list[str]:
    return sorted({n.definition for e in shown for n in e.figures.values() if n.definition})


def _sampled(m: "Measured") -> "Measured":
    """With its single requests."""
    import msgspec

    from dyno.conduct.sources import detail

    found = detail(m)
    return m if found is None else msgspec.structs.replace(m, row=found.row)


def _about(words: Sequence[str]) -> "About":
    """Of one folder, what its about.toml says."""
    from dyno.facts.about import About
    from dyno.study.prices import about

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
    names = [name for s in sources for name in ([p.name for p in s.studies] or [s.path.name])]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _studies(sources: "Sequence[Source]") -> Any:
    """Each study's file, as it was, and what it came to."""
    from dyno.store.study import StudyFolder

    folders = [StudyFolder(path) for s in sources for path in s.studies]
    return [(f.text(), f.study()) for f in folders]


def _unfinished(sources: "Sequence[Source]") -> int:
    """Trials of whole studies that have neither a result nor a failure, and weren't left out."""
    from dyno.store.study import StudyFolder

    left: dict[tuple[str, str], bool] = {}
    for s in sources:
        for path in s.studies:
            if ":" in s.word and not Path(s.word).exists():  # a part of a study wants no more of it
                continue
            folder = StudyFolder(path)
            done, skipped = folder.done(), folder.skipped()
            for p in folder.study().trials:
                key = (p.place.study, p.place.id)
                failed = (folder.run(p.place).path / "failed.json").exists()  # whatever it tells
                open_ = p.place.id not in done and p.place.id not in skipped and not failed
                left[key] = left.get(key, True) and open_
    return sum(left.values())


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
