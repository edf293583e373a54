"""A report's headings, commands, versions and names: do they fit each other and the results?"""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from dyno.facts.finding import Finding, Level, doubt, note
from dyno.facts.imported import Command, Document, Heading, Passage, Row, Setting
from dyno.measure.points import ENGINE, named

# ---- headings, titles and sentences that promise figures: are there any? ----

_PROMISE = re.compile(
    r"\b(?:costs?|pric(?:es?|ing)|performance|results?|throughput|latenc(?:y|ies)|benchmarks?|speeds?|ttft|tpot|itl|"
    r"tokens?/s(?:ec)?|goodput|efficiency|accuracy|numbers|comparisons?|findings)\b",
    re.I,
)
_FIGURES = re.compile(r"\b(?:throughput|latenc(?:y|ies)|benchmark(?:s|ing)?|speed tests?|speeds|results)\b", re.I)
_SPEED = re.compile(r"\b(?:latenc|throughput|speed|performance|inference|serving|tokens?/s)", re.I)
_PLAIN = re.compile(r"[\W\d]{0,9}(?:(?:performance|throughput|latency|benchmark)(?: results)?|results)\W{0,3}$", re.I)
_RESULTS = re.compile(r"\b(?:benchmarks|results|numbers|findings)\b|\bbenchmark (?:of|report)\b", re.I)
_HOW_TO = re.compile(
    r"\bhow[ -]?to\b|\b(?:guides?|tutorial|suite|scripts?|tools?|tooling|toolkit|harness|instructions|methodology|"
    r"documentation|docs|descriptions?|templates?|usage|optimi[sz]ation|tuning|framework|setup|settings|running|plan|roadmap|reproducing)\b",
    re.I,
)
_FIGURE_IN_WORDS = re.compile(
    r"\d\s?k?\s?(?:\w+ ){0,2}(?:tok(?:en)?s?|req(?:uest)?s?|queries)\s?(?:/|per |a |each )\s?s"
    r"|\d\s?k?\s?(?:t/s|tps|rps|qps|it/s|ms|msec|milliseconds?|µs|us|microseconds?)\b"
    r"|\d\s?(?:x|×|times|%|percent)\s(?:(?:the|as|a) )?(?:faster|slower|higher|lower|more|less|better|speed"
    r"|throughput|latency|increase|decrease|reduction|improvement|gain|fast|quick)",
    re.I,
)
# '2.4 s' and '38 %' are figures of speed beside a word for it.
_AMOUNT = re.compile(r"\d\s?(?:s|sec|secs|seconds?|min|minutes?|x|×|times|%|percent)(?![\w-])", re.I)
_SPEED_WORD = re.compile(
    r"latenc|throughput|ttft|tpot|\bitl\b|time to first|first token|faster|slower|speed|tokens?/s|end-to-end"
    r"|inter-token|respons|decod|prefill|generat",
    re.I,
)
_MEASURED = re.compile(r"\s*[~<>≈]?\s?\$?\d{1,3}(?:,?\d{3}){0,3}(?:\.\d{1,6})?\s?(?:[a-zA-Z/%±$].{0,20})?\s*$")
_DANGLING = re.compile(
    r"\b(?:(?:are|is) (?:listed|given|summari[sz]ed|tabulated) (?:in the (?:table|list) )?below|"
    r"(?:see|in) the (?:table|list) below|(?:in )?the (?:following|below) (?:table|list)\b[^.]{0,60})\s?[.:]?\s?$",
    re.I,
)
_PICTURE = re.compile(r"\b(?:chart|figure|graph|plot|diagram|image|screenshot)s?\b", re.I)
_PERFORMANCE = ("serve", "throughput", "latency", "micro")
PARAGRAPH = 200  # characters: prose from here on, below it may be an item of a list


def empty(document: Document) -> Iterator[Finding]:
    headings = [h for h in document.headings if h.level > 0]
    bare = [h for h in headings if h.empty and _is_title(h.text)]
    if 2 * sum(h.empty for h in headings) > len(headings) > 2:  # comments of a script, an outline
        return
    # Promised figures may be under the next heading; without measurements nothing is missing.
    measured = bool(document.rows or document.commands or document.environments)
    promised = [h for h in bare if _PROMISE.search(h.text) and measured and not _goes_on(document, h)]
    other = [h for h in bare if h not in promised]
    if promised:
        advice = "Give the figures that the heading promises; conclusions from them have no basis here."
        yield Finding("consistency.empty_section", "doubt", *_nothing_under(document, promised, advice))
    if other:
        yield Finding("consistency.empty_section", "note", *_nothing_under(document, other))


def _nothing_under(document: Document, headings: list[Heading], advice: str = "") -> tuple[str, str, list[str]]:
    names = ", ".join(f"'{h.text}'" for h in headings[:6]) + (" and others" if len(headings) > 6 else "")
    sections = "section" if len(headings) == 1 else "sections"
    return f"Empty {sections}: {names}.", advice, [f"{document.file}:{h.line}" for h in headings]


def _is_title(text: str) -> bool:
    """Not the beginning of a list, a mark of an include, a licence, a comment."""
    return not text.endswith((":", ";", ",")) and not re.match(r"\W{2}|SPDX|Copyright|tags?$", text, re.I)


def _goes_on(document: Document, heading: Heading) -> bool:
    """Tables or results are right below the next heading of the same level."""
    after = [h for h in document.headings if h.line > heading.line]
    if not after or after[0].level != heading.level:
        return False
    stop = after[1].line if len(after) > 1 else 1 << 62
    lines = [t.line for t in document.tables] + [r.line for r in document.rows]
    return any(after[0].line < line < stop for line in lines)


def no_figures(documents: Sequence[Document]) -> Iterator[Finding]:
    data = any(d.rows and not d.headings for d in documents)  # result files given beside the words
    for document in documents:
        if not document.headings or any(r.kind in _PERFORMANCE for r in document.rows):
            continue
        title = next((h for h in document.headings if h.level > 0), document.headings[0])
        # 'Benchmarks' alone may be of answers' quality.
        promised = [title] if _FIGURES.search(title.text) and _SPEED.search(title.text) else []
        measured = any(c.role in ("client", "offline", "micro") for c in document.commands)
        where = promised + [h for h in document.headings if measured and h.level > 1 and _PLAIN.match(h.text)]
        in_words = any(_has_figure(p.text[:20_000]) for p in document.passages)
        unread = any(u.lost and u.part != "file" for u in document.unread)  # it may hold the figures
        if not where or in_words or unread or _cells_with_numbers(document):
            continue
        plain = promised and _RESULTS.search(title.text) and not _HOW_TO.search(title.text)
        text = f"'{where[0].text}' promises measurements, but the text has no figure of speed or latency."
        level: Level = "doubt" if plain and not data else "note"
        yield Finding("consistency.no_figures", level, text, "", [f"{document.file}:{h.line}" for h in where])


def _has_figure(words: str) -> bool:
    if _FIGURE_IN_WORDS.search(words):
        return True
    return any(_AMOUNT.search(part) and _SPEED_WORD.search(part) for part in re.split(r"(?<=[.!?;])\s", words))


def _cells_with_numbers(document: Document) -> bool:
    """A table without rows may hold the figures; one that was read as something else doesn't."""
    elsewhere = {r.table for r in document.rows if r.kind not in _PERFORMANCE}
    tables = [t for i, t in enumerate(document.tables) if i not in elsewhere]
    return any(sum(_MEASURED.match(c.text) is not None for cells in t.rows for c in cells) > 1 for t in tables)


def _is_followed(document: Document, passage: Passage) -> bool:
    """Whether something is listed: a table, a listing, items; or something unread, as missing lines show."""
    stop = min((h.line for h in document.headings if h.line > passage.line and h.level > 0), default=None)

    def below(line: int) -> bool:
        return passage.line < line and (stop is None or line < stop)

    words = [p for p in document.passages if below(p.line)]
    if any(below(t.line) for t in document.tables):
        return True
    lines = [r.line for r in document.rows] + [c.line for c in document.commands]
    first = min(filter(below, lines), default=None)
    reach = passage.line + len(passage.text) // 60 + 3  # lines that it may take itself, and blank ones
    if not words or (first is not None and first < words[0].line):
        return first is not None or stop is None or stop > reach
    following = words[0]
    items = len(words) > 1 and words[1].line == following.line + 1
    return following.listing or items or len(following.text) < PARAGRAPH or following.line > reach


def dangling(document: Document) -> Iterator[Finding]:
    for passage in document.passages:
        tail = passage.text[-160:]
        match = _DANGLING.search(tail)
        if passage.listing or match is None or _PICTURE.search(tail) or _is_followed(document, passage):
            continue
        text = f"'…{tail[max(0, match.start() - 60) :].strip()}': the announced list is missing."
        yield note("consistency.empty_section", text, "Add the list.", [f"{document.file}:{passage.line}"])


# ---- commands and versions ----

ALMOST, SEVERAL = 0.9, 3  # share of a command's requests; results with that share
NEAR = 5  # lines above a command
_COMPARES = re.compile(r"comparison|compar(?:e|ing)|\bvs\b|versus", re.I)
_SIZED = re.compile(r"[A-Za-z][\w.]*[- ]?\d?(?:\.\d)?-(\d{1,4}(?:\.\d)?)B\b")
_CONCLUDES = re.compile(r"result|finding|conclusion|comparison|\bvs\b|versus", re.I)
_MODEL_ID = re.compile(r"(?<![\w./-])([A-Za-z][\w.-]{1,30}/[A-Za-z][\w.-]{3,80}?)(?=[\s,;:)\]'\"]|[.](?:\s|$)|$)")


def command_differs(d: Document) -> Iterator[Finding]:
    """A command's own figures against those of the results that follow it."""
    for i, c in enumerate(d.commands):
        asked = c.settings.get("concurrency")
        if c.role != "client" or asked is None:
            continue
        until = min((x.line for x in d.commands[i + 1 :] if x.role == "client"), default=1 << 62)
        levels = {
            r.number("concurrency"): r for r in d.rows
            if c.line < r.line < until and r.kind == "serve" and r.form == "block" and r.section == c.section
            and r.settings.get("backend", Setting("", 0)).line == c.settings.get("backend", Setting("", 0)).line
        }  # fmt: skip
        others = [n for n in levels if n is not None and n != asked.value]
        if others:
            actual = ", ".join(f"{n:,g}" for n in levels if n)
            yield note(
                "consistency.command",
                f"The command has concurrency {asked.value}, the results after it {actual}.",
                "Print the command of each result.",
                [f"{d.file}:{c.line}", *(f"{d.file}:{levels[n].line}" for n in others)],
            )


def fewer_than_commanded(d: Document) -> Iterator[Finding]:
    """Results without a count of failures have a little fewer requests than a command of the report sends."""
    asked = {
        int(s.value): c.line for c in d.commands
        if c.role == "client" and (s := c.settings.get("num_prompts")) and isinstance(s.value, int)
    }  # fmt: skip
    short: dict[int, list[Row]] = {}
    for r in d.rows:
        done = int(r.get("completed") or 0)
        above = min((n for n in asked if n > done), default=None)
        known = "num_prompts" in r.settings or r.get("failed") is not None or done in asked
        if r.kind == "serve" and r.form == "block" and not known and above and done > ALMOST * above:
            short.setdefault(above, []).append(r)
    for count, rows in short.items():
        if len(rows) < SEVERAL:
            continue
        done_s = ", ".join(sorted({f"{r.get('completed'):,.0f}" for r in rows}))
        yield doubt(
            "requests.failed",
            f"A command sends {count:,} requests, but {len(rows)} results report only {done_s} successful ones.",
            "Find out what happened to the rest: a client's limit of open files drops requests silently.",
            [f"{d.file}:{asked[count]}", *(r.location for r in rows)],
        )


def versions_differ(d: Document) -> Iterator[Finding]:
    versions: dict[str, int] = {}
    for environment in d.environments:
        if version := environment.get("engine_version"):
            versions.setdefault(str(version.value), version.line)
    if len(versions) > 1 and (d.rows or any(_CONCLUDES.search(h.text) for h in d.headings)):
        text = f"The report uses several engine versions: {', '.join(versions)}."
        lines = [f"{d.file}:{line}" for line in versions.values()]
        yield doubt("comparability.engine_differs", text, locations=lines)


def flags_differ(d: Document) -> Iterator[Finding]:
    """Commands of one role, whose results are compared: more than one thing is changed."""
    used = {s.line for r in d.rows for s in r.settings.values()}
    compared = any(_COMPARES.search(h.text) for h in d.headings if h.level == 1)
    for role in ("server", "offline"):
        programs: dict[str, list[Command]] = {}
        for c in d.commands:
            # One that only shows how it is done has no results of its own.
            shows = c.line in used or (compared and not d.rows)
            if c.role == role and len(c.settings) > 2 and shows:
                programs.setdefault(c.program, []).append(c)
        for commands in programs.values():
            yield from _unlike(d, commands, compared)


_ELSEWHERE = {
    "--port", "--host", "--served-model-name", "--dataset-path", "--output-json", "--result-dir", "--result-filename",
    "--download-dir", "--trust-remote-code", "--disable-log-requests", "--base-url", "--save-result", "--metadata",
    "--num-iters", "--num-iters-warmup", "--percentile-metrics", "--tool", "engine",
}  # fmt: skip


def _unlike(d: Document, commands: list[Command], compared: bool) -> Iterator[Finding]:
    if len(commands) < 2:
        return
    names = {*ENGINE, *(n for c in commands for n in c.settings if n.startswith("--"))} - _ELSEWHERE
    values = {
        name: list(dict.fromkeys(str(c.settings[name].value) if name in c.settings else "unset" for c in commands))
        for name in sorted(names, key=lambda n: (n.startswith("-"), n))
    }
    differ = [f"{name} {' / '.join(several)}" for name, several in values.items() if len(several) > 1]
    variables = _variables(commands)
    if len(differ) + len(variables) < 2:
        return
    listed = "; ".join(differ[:8] + variables)
    text = f"{len(commands)} commands ({commands[0].program}) differ in several settings: {listed}."
    # Where machines or engines are compared, settings should be the same; else they may be what is varied.
    level: Level = "doubt" if compared else "note"
    yield Finding("comparability.settings_differ", level, text, "", [f"{d.file}:{c.line}" for c in commands])


def _variables(commands: list[Command]) -> list[str]:
    """Variables that only some have; one that is nearly another is a typo."""
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
            out.append(f"{name} instead of {near}")
        elif near is None:
            out.append(f"{name} in {len(having)} of {len(commands)}")
    return out


# ---- models ----


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
    seen = set(run)
    for d in documents if run else ():
        for passage in d.passages:
            for name in _MODEL_ID.findall(passage.text) if not passage.listing else []:
                if name in seen:
                    continue
                here = named(name)
                near = next((m for m in run if m.partition("/")[0] == name.partition("/")[0]
                             and named(m).base == here.base and named(m).taught != here.taught), None)  # fmt: skip
                if near is not None:
                    seen.add(name)
                    text = f"The text names {name}, but the commands run {near}."
                    lines = [f"{d.file}:{passage.line}", run[near]]
                    yield doubt("comparability.model_named", text, locations=lines)


def size_named(d: Document) -> Iterator[Finding]:
    """Words right above a command that name a model of another size than it runs."""
    above = [p for p in d.passages if not p.listing]
    for c in d.commands:
        model = named(str(c.settings["model"].value)) if "model" in c.settings else None
        near = [p for p in above if 0 < c.line - p.line <= NEAR]
        sizes = {float(n) for n in _SIZED.findall(near[-1].text)} if near else set()
        if model is None or model.billions is None or len(sizes) != 1 or model.billions in sizes:
            continue
        text = f"The text announces a {sizes.pop():g}B model, but the command runs {model.name}."
        lines = [f"{d.file}:{near[-1].line}", f"{d.file}:{c.line}"]
        yield note("comparability.model_named", text, locations=lines)


def _asks_a_server(row: Row) -> bool:
    backend = str(row.setting("backend") or "")
    return "base_url" in str(row.setting("--model_args") or "") or backend.startswith("local-")


def _spelled(model: object) -> str:
    return named(str(model)).name.lower().replace("_", "-")


def quality_elsewhere(d: Document) -> Iterator[Finding]:
    """Accuracy of one configuration beside the speed of another."""
    # One that asks a server has that server's settings.
    scores = [r for r in d.rows if r.kind == "quality" and r.setting("model") and not _asks_a_server(r)]
    speed = [c for c in d.commands if c.role in ("server", "offline", "client") and c.settings.get("model")]
    if not scores or not speed:
        return
    measured = {_spelled(r.setting("model")) for r in scores}
    run = {_spelled(c.settings[n].value) for c in speed for n in ("model", "--served-model-name") if n in c.settings}
    caches = {str(c.settings["kv_cache_dtype"].value) for c in speed if "kv_cache_dtype" in c.settings}
    untested = caches - {str(r.setting("kv_cache_dtype") or "") for r in scores}
    both = ", ".join(sorted(measured & run))
    if both and not untested:
        return
    cache = f" (cache type {' and '.join(sorted(caches))})" if untested else ""
    text = f"The commands run {both or ', '.join(sorted(run))}{cache}, but accuracy was measured with "
    text += f"{', '.join(sorted(measured))}." if not both else "another cache type."
    lines = [f"{d.file}:{scores[0].line}", f"{d.file}:{speed[0].line}"]
    yield Finding("comparability.quality_elsewhere", "note" if both else "doubt", text, "", lines)
