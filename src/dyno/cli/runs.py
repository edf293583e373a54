"""`dyno runs`: what was measured here. Lists, shows, tags, deletes and packs runs, studies and searches."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dyno.cli import audit, eval, micro, offline, serve, settings
from dyno.cli.flags import sized
from dyno.errors import StoreError, UsageError
from dyno.facts.metric import ASKED
from dyno.facts.tune import TuneAnswer
from dyno.numbers import UNKNOWN, count, human_bytes, many, number
from dyno.report.block import block
from dyno.report.table import Cell, failed_cell, terminal, text_table
from dyno.screen import wrapped
from dyno.store.imports import FOLDER, ImportLine, import_line, is_stored
from dyno.store.run import Run, check_tag, retag
from dyno.store.shelf import (
    RunLine,
    SearchLine,
    Shelf,
    StudyLine,
    Weight,
    answer_of,
    find,
    in_use,
    is_tuning,
    kind_of,
    look_around,
    remove,
    run_line,
    search_line,
    study_line,
    study_of,
    weigh,
)
from dyno.store.study import StudyFolder, failure_of

if TYPE_CHECKING:
    from dyno.trial.outcome import Outcome

_EXAMPLES = """examples:
  dyno runs                              list ./runs
  dyno runs list runs/my-study           the trials of a study, or the probes of a search
  dyno runs show 3f2a                    one run, by its path, its name or an end of its name
  dyno runs tag my-study --add published --remove draft
  dyno runs pack my-study -o my-study.tar.zst"""

_Several = TypeVar("_Several", StudyLine, SearchLine)
_RUNS = "folder of runs and studies (default: runs)"
_JSON = "print JSON, with full values"


def add(p: argparse.ArgumentParser) -> None:
    p.epilog = _EXAMPLES
    settings.add_runs(p, _RUNS)
    _list_flags(p)
    p.set_defaults(command=list_, paths=[])
    verbs = p.add_subparsers(title="verbs", metavar="VERB")

    def verb(name: str, does: str, command: Any) -> argparse.ArgumentParser:
        v: argparse.ArgumentParser = verbs.add_parser(
            name, help=does, description=f"{does[0].upper()}{does[1:]}."
        )
        # Accepted before or after the verb: without it here, the earlier value stays.
        v.add_argument(
            "--runs",
            type=Path,
            default=argparse.SUPPRESS,
            metavar="DIR",
            help="folder of runs and studies (default: runs)",
        )
        v.set_defaults(command=command)
        return v

    v = verb("list", "list runs, studies and searches, or the trials of one of them", list_)
    v.add_argument(
        "paths", nargs="*", metavar="PATH", help="a study, a search, or a folder of runs"
    )
    _list_flags(v, default=argparse.SUPPRESS)
    v = verb("show", "print a result again; decode it first if dyno was killed", show)
    v.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="runs, studies, searches, or other tools' result files",
    )
    v.add_argument("--json", action="store_true", help=_JSON)
    several = "runs, studies or searches, each by its path, its name or an end of its name"
    v = verb("tag", "add tags to runs, or remove them", tag)
    v.add_argument("run", nargs="+", metavar="RUN", help=several)
    v.add_argument("--add", nargs="+", default=[], metavar="WORD", help="tags to add")
    v.add_argument("--remove", nargs="+", default=[], metavar="WORD", help="tags to remove")
    v = verb("delete", "delete runs, whole studies or searches, or single trials", delete)
    v.add_argument("run", nargs="+", metavar="RUN", help=several)
    v.add_argument("--yes", action="store_true", help="delete without asking")
    v = verb("pack", "pack runs, studies and searches into one archive", pack)
    v.add_argument("run", nargs="+", metavar="RUN", help=several)
    v.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="archive to write (default: NAME.tar.zst)",
    )
    v.add_argument(
        "--no-prompts",
        action="store_true",
        help="leave out prompts and answers: requests.jsonl, engine logs, raw bytes, and all texts in records.jsonl. "
        "Settings, addresses and paths stay",
    )
    v = verb("unpack", "add the runs and studies of an archive to --runs", unpack)
    v.add_argument("file", type=Path, metavar="FILE", help="archive from `dyno runs pack`")
    v.add_argument(
        "--max-size",
        type=sized,
        metavar="SIZE",
        help="limit of the unpacked size: bytes, 500M, 20G (default: 64G, and 500 times the archive)",
    )


def _list_flags(p: argparse.ArgumentParser, default: Any = None) -> None:
    p.add_argument(
        "--all",
        action="store_true",
        default=default,
        help="list every trial of every study and search",
    )
    p.add_argument(
        "--tag",
        metavar="WORD",
        default=default,
        help="only runs with this tag (default: all)",
    )
    p.add_argument("--json", action="store_true", default=default, help=_JSON)


class _Listed(msgspec.Struct):
    """What a list shows. A search is one line: its runs are not among the others."""

    runs: list[RunLine]
    studies: list[StudyLine]
    searches: list[SearchLine]
    imports: list[ImportLine]
    opened: set[Path]  # studies and searches whose trials are shown


def list_(options: argparse.Namespace) -> int:
    paths = [
        p if p.is_dir() else find(str(p), options.runs) for p in map(Path, options.paths)
    ]
    shelf = Shelf()
    for path in paths or [Path(options.runs)]:
        seen = look_around(path)
        for name in Shelf.__struct_fields__:
            getattr(shelf, name).extend(getattr(seen, name))
    listed = _read_shelf(shelf, options.tag)
    listed.opened = {path for path in paths if kind_of(path) in ("study", "search")}
    if options.all:
        listed.opened |= {
            *map(Path, (s.study for s in listed.studies)),
            *map(Path, (s.search for s in listed.searches)),
        }
    for words in shelf.unreadable:
        print(f"dyno: {words}", file=sys.stderr)
    if options.json:
        print(_as_json(listed, shelf.foreign))
        return 0
    _print_list(listed)
    _print_missing(listed, shelf, options)
    return 0


def _print_missing(listed: _Listed, shelf: Shelf, options: argparse.Namespace) -> None:
    """Say that there is nothing, and what was left alone."""
    if not any((listed.runs, listed.studies, listed.searches, listed.imports)):
        where = ", ".join(map(str, options.paths or [options.runs]))
        which = f" with the tag {options.tag}" if options.tag else ""
        advice = "`dyno bench serve` and `dyno demo` make some; --runs DIR looks elsewhere."
        print(*wrapped(f"No runs{which} in {where}. {advice}"), sep="\n")
    if shelf.foreign:
        some = ", ".join(map(str, shelf.foreign[:3]))
        if len(shelf.foreign) > 3:
            some += " …"
        print(f"Neither runs nor studies, and left alone: {some}", file=sys.stderr)


def _read_shelf(shelf: Shelf, tag: str | None) -> _Listed:
    searched = set(shelf.searches)
    runs = [run_line(path) for path in shelf.runs if path.parent not in searched]
    studies = [study_line(path) for path in shelf.studies if path not in searched]
    searches = [search_line(path) for path in shelf.searches]
    if not tag:
        return _Listed(runs, studies, searches, _imports(shelf), opened=set())
    return _Listed(
        runs=[run for run in runs if tag in run.tags],
        studies=_tagged(studies, tag),
        searches=_tagged(searches, tag),
        imports=[],
        opened=set(),
    )


def _imports(shelf: Shelf) -> list[ImportLine]:
    imported = []
    for path in shelf.imports:
        try:
            imported.append(import_line(path))
        except StoreError as e:
            print(f"dyno: {e}", file=sys.stderr)
    return imported


def _tagged(lines: list[_Several], tag: str) -> list[_Several]:
    """Keep studies and searches with the tag, and of the others the trials that have it."""
    out = []
    for line in lines:
        if tag in line.tags:
            out.append(line)
        elif trials := [t for t in line.trials if tag in t.tags]:
            out.append(msgspec.structs.replace(line, trials=trials))
    return out


def _as_json(listed: _Listed, foreign: list[Path]) -> str:
    def values(line: StudyLine | SearchLine, folder: str, **more: Any) -> dict[str, Any]:
        out: dict[str, Any] = {**msgspec.to_builtins(line), **more}
        if Path(folder) not in listed.opened:
            del out["trials"]
        return out

    facts = {
        "runs": msgspec.to_builtins(listed.runs),
        "studies": [values(s, s.study) for s in listed.studies],
        "searches": [values(s, s.search, answer=_answer_words(s)) for s in listed.searches],
        "foreign": [str(p) for p in foreign],
        "imports": msgspec.to_builtins(listed.imports),
    }
    return json.dumps(facts)


def _print_list(listed: _Listed) -> None:
    opened, parts = listed.opened, []
    if closed := [s for s in listed.studies if Path(s.study) not in opened]:
        titles = [
            "study",
            "done",
            "failed",
            "doubtful",
            "void",
            "last measured",
            "",
            "tags",
        ]
        table = text_table(titles, map(_study_row, closed), right=(1, 2, 3, 4), keep=(1, 2))
        parts.append(terminal(table))
    if shut := [s for s in listed.searches if Path(s.search) not in opened]:
        titles = ["search", "by", "answer", "runs", "last measured", "tags"]
        table = text_table(titles, map(_search_row, shut), right=(3,), keep=(2,))
        parts.append(terminal(table))
    parts += _opened_parts(listed)
    if listed.runs:
        parts.append(_run_lines(listed.runs))
    if listed.imports:
        rows = [
            [line.path, line.file, count(line.results), line.format]
            for line in listed.imports
        ]
        table = text_table(["import", "file", "results", "format"], rows, right=(2,))
        parts.append(terminal(table))
    print("\n\n".join("\n".join(lines) for lines in parts), end="\n" if parts else "")


def _opened_parts(listed: _Listed) -> list[list[str]]:
    """Return studies and searches with their trials."""
    titles = [(s.study, f"{s.name}: {_study_words(s)}", s.trials) for s in listed.studies]
    titles += [
        (s.search, f"{s.search}: {_answer_words(s)}", s.trials) for s in listed.searches
    ]
    return [
        [*wrapped(title), *_run_lines(trials)]
        for path, title, trials in titles
        if Path(path) in listed.opened
    ]


def _search_row(s: SearchLine) -> list[str | Cell]:
    return [
        s.search,
        f"dyno {s.kind}",
        _answer_words(s),
        count(s.runs),
        _minute(s.last_started),
        " ".join(s.tags),
    ]


def _answer_words(s: SearchLine) -> str:
    """Return the answer of a search in a line."""
    from dyno.report import find as find_report
    from dyno.report import tune as tune_report

    if s.state == "running":
        return "running"
    try:
        answer = answer_of(Path(s.search))
    except StoreError as e:
        return f"unreadable: {e}"
    if answer is None:
        return (
            "cut off: the same command resumes it"
            if s.kind == "tune"
            else "cut off: no answer"
        )
    if isinstance(answer, TuneAnswer):
        return tune_report.in_a_line(answer)
    return f"{find_report.target_words(answer.spec)}: {find_report.headline(answer)}"


def _minute(started: str | None) -> str:
    return started[:16].replace("T", " ") if started else UNKNOWN


def _study_row(s: StudyLine) -> list[str | Cell]:
    if s.why:
        return [s.study, *[UNKNOWN] * 5, f"unreadable: {s.why}", " ".join(s.tags)]
    return [
        s.study,
        f"{count(s.done)}/{count(s.planned - s.left_out)}",
        failed_cell(s.failed),
        Cell(count(s.doubtful), style="doubt" if s.doubtful else ""),
        failed_cell(s.void),
        _minute(s.last_started),
        "running" if s.running else "",
        " ".join(s.tags),
    ]


def _study_words(s: StudyLine) -> str:
    if s.why:
        return f"unreadable: {s.why}"
    words = [
        f"{s.done} of {s.planned - s.left_out} trials done",
        f"{s.failed} failed",
        f"{s.doubtful} doubtful",
        f"{s.void} void",
    ]
    if s.left_out:
        words.append(f"{s.left_out} skipped, because the engine was saturated")
    if s.running:
        words.append("running")
    return ", ".join([*words, *s.tags])


def _run_lines(lines: list[RunLine]) -> list[str]:
    titles = ["run", "completed", "failed", "tok/s", "verdict", "tags"]
    return terminal(
        text_table(titles, map(_run_row, lines), right=(1, 2, 3), keep=(2, 3, 4))
    )


def _run_row(line: RunLine) -> list[str | Cell]:
    return [
        line.run,
        count(line.completed),
        failed_cell(line.failed),
        number(line.output_throughput),
        _verdict(line),
        " ".join(line.tags),
    ]


def _verdict(line: RunLine) -> str:
    if line.state == "done":
        return line.verdict or UNKNOWN
    return f"{line.state}: {line.why}".replace("\n", " ") if line.why else line.state


def show(options: argparse.Namespace) -> int:
    for word in options.run:
        _show(word, options)
    return 0


def _show(word: str, options: argparse.Namespace) -> None:
    file = _result_path(word, options.runs)
    if file is not None:
        audit.show(str(file), options.runs, options.json)
        return
    path = find(word, options.runs)
    kind = kind_of(path)
    if kind == "search" or is_tuning(path):
        _show_search(path, options.json)
    elif kind == "study":
        _show_study(path, options.json)
    else:
        _show_run(Run(path), options.json)


def _show_run(run: Run, as_json: bool) -> None:
    outcome = _outcome(run)
    trial = outcome.manifest.trial
    if trial.kind == "micro":
        printer = micro.Printer("json" if as_json else "md", [trial], sys.stdout)
        printer.row(_file(outcome))
        printer.close()
        return
    if as_json:
        print(json.dumps(_file(outcome)))
        return
    if trial.offline is not None:
        print(offline.printed(outcome))
    elif trial.quality is not None:
        print(eval.printed(outcome))
    else:
        print(block(outcome.result, trial, list(ASKED[:4]), outcome.manifest.answers))
    _print_models(outcome.run)


def _print_models(run: Run) -> None:
    """Print which models the engine served, and what was checked of each."""
    engine = run.engine()
    if engine is None:
        return
    for name, model in engine.models.items():
        print(
            *wrapped(
                f"Model {name}: {model.describe()}, {human_bytes(model.size_bytes)}",
                rest="  ",
            ),
            sep="\n",
        )
        print(
            *(f"  {what}: {outcome}" for what, outcome in model.verified.items()), sep="\n"
        )


def _outcome(run: Run) -> "Outcome":
    """Read what a run measured; decode it first if dyno was killed while it ran."""
    from dyno.trial.offline import reopened
    from dyno.trial.online import finish
    from dyno.trial.outcome import Outcome

    if run.whole:
        manifest = run.manifest()
        return (
            Outcome(run, manifest, run.result())
            if manifest.trial.offline is None
            else reopened(run)
        )
    if (failure := failure_of(run)) is not None:
        why = f"holds no measurement. It failed after {failure.attempts} attempts: {failure.text}"
    elif run.running():
        why = (
            "is still running. It shows its result when it ends; Ctrl-C there ends it now."
        )
    elif not run.manifest_path.exists():
        why = (
            "holds no measurement: its engine didn't come up, or was not what was asked for. "
            "engine.json there has the command, engine.log what came of it."
        )
    elif run.manifest().trial.quality is not None:
        how = "`dyno run`" if study_of(run.path) else "the same `dyno eval`"
        why = f"is a quality test that was interrupted: {how} continues it."
    elif study_of(run.path) is not None:
        if run.spool_path.exists():
            return _cut_off(run)
        why = "is a study's trial that was cut off before its load: `dyno run` measures it again."
    elif run.manifest().trial.offline is not None and any(
        not it.warmup for it in run.iterations()
    ):
        return reopened(run)
    elif run.spool_path.exists():
        return finish(run, keep_raw=True)
    elif run.iterations_path.exists():
        why = "holds no measurement: dyno was stopped before the first iteration was measured."
    else:
        why = "holds no measurement: dyno was stopped before the load began."
    raise StoreError(f"{run.path} {why}")


def _cut_off(run: Run) -> "Outcome":
    """Calculate a study's trial that was cut off, and store no result: the study measures it again, as a whole."""
    from dyno.trial.online import finish

    text = f"dyno: {run.path} was cut off: these are its figures until then. Its study measures it again."
    print(text, file=sys.stderr)
    return finish(run, keep_raw=True, only_whole=True)


def _result_path(word: str, runs: Path) -> Path | None:
    """Find another tool's result file, or an import of one, by its path or name."""
    if not word:
        return None
    imports = runs / FOLDER
    candidates = (Path(word), imports / word, imports / f"{word}.json")
    return next((path for path in candidates if path.is_file()), None)


def _file(outcome: Any) -> dict[str, Any]:
    """Return what its result file holds."""
    trial = outcome.manifest.trial
    if trial.quality is not None:
        return eval.result_file(outcome)
    if trial.offline is None:
        return serve.result_file(outcome, detailed=False)
    return (
        micro.result_row(outcome) if trial.kind == "micro" else offline.result_file(outcome)
    )


def _show_study(path: Path, as_json: bool) -> None:
    from dyno.report.study import lines

    study = study_line(path)
    if study.why:
        raise StoreError(study.why)
    folder = StudyFolder(path)
    planned = folder.study().trials
    runs = {p.place.id: run for p in planned if (run := folder.run(p.place)).whole}
    if as_json:
        trials = [_file(_outcome(run)) for run in runs.values()]
        print(json.dumps({"study": study.name, "trials": trials}))
        return
    print(*wrapped(f"{study.name}: {_study_words(study)}"), sep="\n")
    rigs = {p.place.rig for p in planned if p.place.id in runs}
    of_rigs = [p for p in planned if p.place.rig in rigs]
    results = {id: run.result() for id, run in runs.items()}
    print("\n".join(lines(of_rigs, results, path)))
    for line in study.trials:
        if line.state not in ("done", "not begun"):
            print(*wrapped(f"{Path(line.run).name}: {_verdict(line)}", rest="  "), sep="\n")


def _show_search(path: Path, as_json: bool) -> None:
    from dyno.report import find as find_report
    from dyno.report import tune as tune_report

    answer = answer_of(path)
    if answer is None:
        raise StoreError(
            f"{path} has no answer yet. `dyno runs list {path}` shows what it has measured."
        )
    if as_json:
        print(msgspec.json.encode(answer).decode())
    elif isinstance(answer, TuneAnswer):
        print("\n".join(tune_report.lines(answer)))
    else:
        print("\n".join(find_report.lines(answer)))


def tag(options: argparse.Namespace) -> int:
    if not options.add and not options.remove:
        raise UsageError("Say which: dyno runs tag RUN … --add WORD … or --remove WORD ….")
    paths = [find(word, options.runs) for word in options.run]
    for word in options.add:
        check_tag(word)  # before the first file is written
    for path in paths:
        print(f"{path}: {' '.join(retag(path, options.add, options.remove)) or 'no tags'}")
    return 0


def delete(options: argparse.Namespace) -> int:
    imports = _stored_imports(options)
    words = [
        word for word in options.run if _result_path(word, options.runs) not in imports
    ]
    paths = list(dict.fromkeys(find(word, options.runs) for word in words))
    # refuses what must stay, before the first is gone
    weights = [weigh(path) for path in paths]
    for path in sorted(imports):
        print(f"{path}, an import", file=sys.stderr)
    for path, weight in zip(paths, weights, strict=True):
        print(
            f"{path}{_inside(path, weight)}: {weight.files} files, {human_bytes(weight.bytes)}",
            file=sys.stderr,
        )
    total = len(paths) + len(imports)
    if not options.yes and not _confirmed(total):
        print("Nothing was deleted.", file=sys.stderr)
        return 1
    for path in paths:
        remove(path)
    for path in imports:
        path.unlink()
    print(f"Deleted {count(total)}.")
    return 0


def _stored_imports(options: argparse.Namespace) -> set[Path]:
    """Return the named files that are imports among the runs."""
    named = [_result_path(word, options.runs) for word in options.run]
    return {path for path in named if path is not None and is_stored(path, options.runs)}


def _confirmed(total: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "Nothing was deleted: there is no terminal to ask. Add --yes if you are sure."
        )
    objects = "it" if total == 1 else f"these {total}"
    print(f"Delete {objects}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _inside(path: Path, weight: Weight) -> str:
    if weight.trials is None:
        return ""
    what, each = ("search", "probe") if kind_of(path) == "search" else ("study", "trial")
    return f", a {what} with {many(weight.trials, each)}"


def pack(options: argparse.Namespace) -> int:
    from dyno.store import pack as packing

    paths = list(dict.fromkeys(find(word, options.runs) for word in options.run))
    for path in paths:
        if why := in_use(path):
            raise StoreError(f"{path} is not packed: {why}. Wait until it is over.")
    name = paths[0].absolute().name if len(paths) == 1 else "runs"
    archive: Path = options.output or Path(f"{name}.tar.zst")
    packed = packing.pack(paths, archive, words=not options.no_prompts)
    for left in packed.left_out:
        why = (
            "a key may be in it"
            if left.endswith((".spool", ".log"))
            else "it is not a plain file"
        )
        print(f"Left out, since {why}: {left}", file=sys.stderr)
    print(f"{archive}: {packed.files} files, {human_bytes(archive.stat().st_size)}")
    return 0


def unpack(options: argparse.Namespace) -> int:
    from dyno.store import pack as packing

    for path in packing.unpack(options.file, options.runs, options.max_size):
        print(path)
    return 0
