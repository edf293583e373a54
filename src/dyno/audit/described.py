"""What stands around results: commands, versions, names. Do they fit each other and the results?"""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from dyno.facts.finding import Finding
from dyno.facts.imported import Command, Document, Row, Setting
from dyno.measure.model_name import named
from dyno.measure.points import ENGINE

ALMOST, SEVERAL = 0.9, 3  # of a command's requests; results that have so many
NEAR = 5  # lines above a command
_COMPARES = re.compile(r"comparison|compar(?:e|ing)|\bvs\b|versus", re.I)
_SIZED = re.compile(r"[A-Za-z][\w.]*[- ]?\d?(?:\.\d)?-(\d{1,4}(?:\.\d)?)B\b")
_RESULTS = re.compile(r"result|finding|conclusion|comparison|\bvs\b|versus", re.I)
_MODEL_ID = re.compile(r"(?<![\w./-])([A-Za-z][\w.-]{1,30}/[A-Za-z][\w.-]{3,80}?)(?=[\s,;:)\]'\"]|[.](?:\s|$)|$)")


def command_differs(documents: Sequence[Document]) -> Iterator[Finding]:
    """A command's own figures against those of the results that follow it."""
    for d in documents:
        for i, c in enumerate(d.commands):
            asked = c.settings.get("concurrency")
            if c.role != "client" or asked is None:
                continue
            nexts = [x.line for x in d.commands[i + 1 :] if x.role == "client"]
            until = min(nexts) if nexts else 1 << 62
            told = {
                r.number("concurrency"): r for r in d.rows
                if c.line < r.line < until and r.kind == "serve" and r.form == "block" and r.section == c.section
                and r.settings.get("backend", Setting("", 0)).line == c.settings.get("backend", Setting("", 0)).line
            }  # fmt: skip
            others = [n for n in told if n is not None and n != asked.value]
            if others:
                yield Finding(
                    "consistency.command",
                    "note",
                    f"The command says concurrency {asked.value}, the results after it "
                    f"{', '.join(f'{n:g}' for n in told if n)}.",
                    "Print the command of each result.",
                    [f"{d.file}:{c.line}", *(f"{d.file}:{told[n].line}" for n in others)],
                )


def fewer_than_commanded(documents: Sequence[Document]) -> Iterator[Finding]:
    """Results that tell no count have a little fewer requests than a command of the report sends."""
    for d in documents:
        asked = {
            int(s.value): c.line for c in d.commands
            if c.role == "client" and (s := c.settings.get("num_prompts")) and isinstance(s.value, int)
        }  # fmt: skip
        short: dict[int, list[Row]] = {}
        for r in d.rows:
            done = int(r.get("completed") or 0)
            above = min((n for n in asked if n > done), default=None)
            told = "num_prompts" in r.settings or r.get("failed") is not None or done in asked
            if r.kind == "serve" and r.form == "block" and not told and above and done > ALMOST * above:
                short.setdefault(above, []).append(r)
        for count, rows in short.items():
            if len(rows) < SEVERAL:
                continue
            done_s = ", ".join(sorted({f"{r.get('completed'):,.0f}" for r in rows}))
            yield Finding(
                "requests.failed",
                "doubt",
                f"A command sends {count:,} requests, and {len(rows)} results have {done_s} successful ones and tell "
                "of no others.",
                "Find out what became of the rest: a client's limit of open files drops requests in silence.",
                [f"{d.file}:{asked[count]}", *(r.location for r in rows)],
            )


def versions_differ(documents: Sequence[Document]) -> Iterator[Finding]:
    for d in documents:
        told: dict[str, list[Setting]] = {}
        for environment in d.environments:
            if version := environment.get("engine_version"):
                told.setdefault(str(version.value), []).append(version)
        if len(told) > 1 and _has_results(d):
            yield Finding(
                "comparability.engine_differs",
                "doubt",
                f"The engine is not the same throughout: {', '.join(told)}.",
                "Between versions figures differ by more than most settings bring. Measure all with one.",
                [f"{d.file}:{found[0].line}" for found in told.values()],
            )


def _has_results(d: Document) -> bool:
    return bool(d.rows) or any(_RESULTS.search(h.text) for h in d.headings)


def flags_differ(documents: Sequence[Document]) -> Iterator[Finding]:
    """Commands of one role, whose results are compared: more than one thing is changed."""
    for d in documents:
        told = {s.line for r in d.rows for s in r.settings.values()}
        compared = any(_COMPARES.search(h.text) for h in d.headings if h.level == 1)
        for role in ("server", "offline"):
            programs: dict[str, list[Command]] = {}
            for c in d.commands:
                # One that only shows how it is done has no results of its own.
                shows = c.line in told or (compared and not d.rows)
                if c.role == role and len(c.settings) > 2 and shows:
                    programs.setdefault(c.program, []).append(c)
            for commands in programs.values():
                yield from _unlike(d, commands, compared)


def _unlike(d: Document, commands: list[Command], compared: bool) -> Iterator[Finding]:
    if len(commands) < 2:
        return
    told: dict[str, dict[str, Command]] = {}
    for c in commands:
        for name in sorted({*ENGINE, *(n for o in commands for n in o.settings if n.startswith("--"))}):
            if name in _ELSEWHERE:
                continue
            setting = c.settings.get(name)
            told.setdefault(name, {}).setdefault("unset" if setting is None else str(setting.value), c)
    differ = {n: v for n, v in told.items() if len(v) > 1}
    variables = _variables(commands)
    if len(differ) + len(variables) < 2:
        return
    shown = [f"{n} {' / '.join(v)}" for n, v in sorted(differ.items(), key=lambda kv: kv[0].startswith("-"))][
        :8
    ] + variables
    yield Finding(
        "comparability.settings_differ",
        # Where machines or engines are compared, settings are to be the same; else they may be what is tried.
        "doubt" if compared else "note",
        f"{len(commands)} commands ({commands[0].program}) differ in more than one thing: {'; '.join(shown)}.",
        "What made the difference can't be told. Change one thing at a time, or say that whole set-ups are compared.",
        [f"{d.file}:{c.line}" for c in commands],
    )


_ELSEWHERE = {
    "--port", "--host", "--served-model-name", "--dataset-path", "--output-json", "--result-dir", "--result-filename",
    "--download-dir", "--trust-remote-code", "--disable-log-requests", "--base-url", "--save-result", "--metadata",
    "--num-iters", "--num-iters-warmup", "--percentile-metrics", "--tool", "engine",
}  # fmt: skip


def _variables(commands: list[Command]) -> list[str]:
    """Variables that only some have; one that is nearly another is a slip of the pen."""
    names = {n for c in commands for n in c.env}
    out = []
    for name in sorted(names):
        having = [c for c in commands if name in c.env]
        if len(having) == len(commands):
            continue
        near = next(
            (o for o in names if o != name and len(o) > 8 and SequenceMatcher(None, o, name).ratio() > 0.95), None
        )
        if near is not None and near > name:
            out.append(f"{name} where others have {near}")
        elif near is None:
            out.append(f"{name} in {len(having)} of {len(commands)}")
    return out


def models_named(documents: Sequence[Document]) -> Iterator[Finding]:
    """A model that the words name, and that no command runs, but one that is nearly it."""
    run: dict[str, str] = {}
    for d in documents:
        for c in d.commands:
            if c.role != "quality" and (model := c.settings.get("model")) and "/" in str(model.value):
                run.setdefault(str(model.value), f"{d.file}:{c.line}")
        for r in d.rows:
            if r.kind == "serve" and "/" in str(r.setting("model") or ""):
                run.setdefault(str(r.setting("model")), r.location)
    if not run:
        return
    seen = set()
    for d in documents:
        for passage in d.passages:
            for name in _MODEL_ID.findall(passage.text) if not passage.listing else []:
                if name in run or name in seen:
                    continue
                here = named(name)
                near = next((m for m in run if m.partition("/")[0] == name.partition("/")[0]
                             and named(m).base == here.base and named(m).taught != here.taught), None)  # fmt: skip
                if near is not None:
                    seen.add(name)
                    yield Finding(
                        "comparability.model_named",
                        "doubt",
                        f"The text names {name}, and what was run is {near}.",
                        "They end their answers differently and make other numbers of tokens. Name what was run.",
                        [f"{d.file}:{passage.line}", run[near]],
                    )


def size_named(documents: Sequence[Document]) -> Iterator[Finding]:
    """Words right above a command that name a model of another size than it runs."""
    for d in documents:
        above = [p for p in d.passages if not p.listing]
        for c in d.commands:
            model = named(str(c.settings["model"].value)) if "model" in c.settings else None
            near = [p for p in above if 0 < c.line - p.line <= NEAR]
            sizes = {float(n) for n in _SIZED.findall(near[-1].text)} if near else set()
            if model is None or model.billions is None or len(sizes) != 1 or model.billions in sizes:
                continue
            yield Finding(
                "comparability.model_named",
                "note",
                f"The text announces a model of {sizes.pop():g}B, and the command runs {model.name}.",
                "Name what is run.",
                [f"{d.file}:{near[-1].line}", f"{d.file}:{c.line}"],
            )


def _asks_a_server(row: Row) -> bool:
    return "base_url" in str(row.setting("--model_args") or "") or str(row.setting("backend") or "").startswith(
        "local-"
    )


def _spelled(model: object) -> str:
    return named(str(model)).name.lower().replace("_", "-")


def quality_elsewhere(documents: Sequence[Document]) -> Iterator[Finding]:
    """Accuracy of one configuration beside the speed of another."""
    for d in documents:
        # One that asks a server has that server's settings.
        scores = [r for r in d.rows if r.kind == "quality" and r.setting("model") and not _asks_a_server(r)]
        speed = [c for c in d.commands if c.role in ("server", "offline", "client") and c.settings.get("model")]
        if not scores or not speed:
            continue
        measured = {_spelled(r.setting("model")) for r in scores}
        run = {
            _spelled(c.settings[n].value) for c in speed for n in ("model", "--served-model-name") if n in c.settings
        }
        caches = {str(c.settings["kv_cache_dtype"].value) for c in speed if "kv_cache_dtype" in c.settings}
        tested = {str(r.setting("kv_cache_dtype") or "") for r in scores}
        if measured & run and not (caches - tested):
            continue
        kv = (
            f", with a {' and '.join(sorted(caches))} cache that the accuracy was not measured with"
            if caches - tested
            else ""
        )
        what = f"The accuracy is that of {', '.join(sorted(measured))}, the commands run {', '.join(sorted(run))}"
        yield Finding(
            "comparability.quality_elsewhere",
            "doubt" if not measured & run else "note",
            f"{what}{kv}." if not measured & run else f"The commands run {', '.join(sorted(measured & run))}{kv[1:]}.",
            "Measure accuracy and speed of the same configuration.",
            [f"{d.file}:{scores[0].line}", f"{d.file}:{speed[0].line}"],
        )
