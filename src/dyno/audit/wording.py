"""A report's headings, commands, versions and names: do they fit each other and the results?"""

import re
from collections import Counter
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
_FIGURES = re.compile(
    r"\b(?:throughput|latenc(?:y|ies)|benchmark(?:s|ing)?|speed tests?|speeds|results)\b",
    re.I,
)
_SPEED = re.compile(
    r"\b(?:latenc|throughput|speed|performance|inference|serving|tokens?/s)", re.I
)
_PLAIN = re.compile(
    r"[\W\d]{0,9}(?:(?:performance|throughput|latency|benchmark)(?: results)?|results)\W{0,3}$",
    re.I,
)
_RESULTS = re.compile(
    r"\b(?:benchmarks|results|numbers|findings)\b|\bbenchmark (?:of|report)\b", re.I
)
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
_AMOUNT = re.compile(
    r"\d\s?(?:s|sec|secs|seconds?|min|minutes?|x|×|times|%|percent)(?![\w-])", re.I
)
_SPEED_WORD = re.compile(
    r"latenc|throughput|ttft|tpot|\bitl\b|time to first|first token|faster|slower|speed|tokens?/s|end-to-end"
    r"|inter-token|respons|decod|prefill|generat",
    re.I,
)
_MEASURED = re.compile(
    r"\s*[~<>≈]?\s?\$?\d{1,3}(?:,?\d{3}){0,3}(?:\.\d{1,6})?\s?(?:[a-zA-Z/%±$].{0,20})?\s*$"
)
_DANGLING = re.compile(
    r"\b(?:(?:are|is) (?:listed|given|summari[sz]ed|tabulated) (?:in the (?:table|list) )?below|"
    r"(?:see|in) the (?:table|list) below|(?:in )?the (?:following|below) (?:table|list)\b[^.]{0,60})\s?[.:]?\s?$",
    re.I,
)
_PICTURE = re.compile(r"\b(?:chart|figure|graph|plot|diagram|image|screenshot)s?\b", re.I)
_PERFORMANCE = ("serve", "throughput", "latency", "micro")
PARAGRAPH = 200  # characters: prose from here on, below it may be an item of a list


def empty(document: Document) -> Iterator[Finding]:
    """Yield findings about headings with nothing under them."""
    headings = [h for h in document.headings if h.level > 0]
    without_text = sum(h.empty for h in headings)
    if 2 * without_text > len(headings) > 2:  # comments of a script, an outline
        return
    promised, other = [], []
    for heading in headings:
        if not heading.empty or not _is_title(heading.text):
            continue
        if _lacks_figures(document, heading):
            promised.append(heading)
        else:
            other.append(heading)
    if promised:
        advice = "Give the figures that the heading promises; conclusions from them have no basis here."
        yield Finding(
            "consistency.empty_section",
            "doubt",
            *_nothing_under(document, promised, advice),
        )
    if other:
        yield Finding("consistency.empty_section", "note", *_nothing_under(document, other))


def _lacks_figures(document: Document, heading: Heading) -> bool:
    """Return whether an empty section should have figures."""
    if not _PROMISE.search(heading.text):
        return False
    # Promised figures may be under the next heading; without measurements nothing is missing.
    measured = document.rows or document.commands or document.environments
    return bool(measured) and not _goes_on(document, heading)


def _nothing_under(
    document: Document, headings: list[Heading], advice: str = ""
) -> tuple[str, str, list[str]]:
    """Return text, advice and locations of a finding about empty sections."""
    names = ", ".join(f"'{h.text}'" for h in headings[:6])
    if len(headings) > 6:
        names += " and others"
    sections = "section" if len(headings) == 1 else "sections"
    return (
        f"Empty {sections}: {names}.",
        advice,
        [f"{document.file}:{h.line}" for h in headings],
    )


def _is_title(text: str) -> bool:
    """Return whether it isn't the beginning of a list, a mark of an include, a licence or a comment."""
    if text.endswith((":", ";", ",")):
        return False
    return not re.match(r"\W{2}|SPDX|Copyright|tags?$", text, re.I)


def _goes_on(document: Document, heading: Heading) -> bool:
    """Return whether tables or results are right below the next heading of the same level."""
    after = [h for h in document.headings if h.line > heading.line]
    if not after or after[0].level != heading.level:
        return False
    stop = after[1].line if len(after) > 1 else 1 << 62
    lines = [t.line for t in document.tables] + [r.line for r in document.rows]
    return any(after[0].line < line < stop for line in lines)


def no_figures(documents: Sequence[Document]) -> Iterator[Finding]:
    """Yield a finding for each text that promises figures of speed and has none."""
    # result files given beside the words
    beside_data = any(d.rows and not d.headings for d in documents)
    for document in documents:
        if not document.headings or _may_have_figures(document):
            continue
        title = next((h for h in document.headings if h.level > 0), document.headings[0])
        headings = _result_sections(document)
        level: Level = "note"
        if _promises_speed(title):
            headings.insert(0, title)
            if _announces_results(title) and not beside_data:
                level = "doubt"
        if headings:
            text = f"'{headings[0].text}' promises measurements, but the text has no figure of speed or latency."
            lines = [f"{document.file}:{h.line}" for h in headings]
            yield Finding("consistency.no_figures", level, text, "", lines)


def _promises_speed(title: Heading) -> bool:
    """Return whether a title promises figures of speed: 'Benchmarks' alone may be of answers' quality."""
    return bool(_FIGURES.search(title.text) and _SPEED.search(title.text))


def _announces_results(title: Heading) -> bool:
    """Return whether a title announces results, not how to get them."""
    return bool(_RESULTS.search(title.text)) and not _HOW_TO.search(title.text)


def _may_have_figures(document: Document) -> bool:
    """Return whether rows, words, tables or unread parts have figures of speed, or may have."""
    if any(row.kind in _PERFORMANCE for row in document.rows):
        return True
    if any(unread.lost and unread.part != "file" for unread in document.unread):
        return True
    if any(_has_figure(passage.text[:20_000]) for passage in document.passages):
        return True
    return _cells_with_numbers(document)


def _result_sections(document: Document) -> list[Heading]:
    """Return headings of sections for results, where a command measures."""
    if not any(c.role in ("client", "offline", "micro") for c in document.commands):
        return []
    return [h for h in document.headings if h.level > 1 and _PLAIN.match(h.text)]


def _has_figure(words: str) -> bool:
    """Return whether words have a figure of speed: in one sentence, an amount and a word for speed."""
    if _FIGURE_IN_WORDS.search(words):
        return True
    sentences = re.split(r"(?<=[.!?;])\s", words)
    return any(
        _AMOUNT.search(sentence) and _SPEED_WORD.search(sentence) for sentence in sentences
    )


def _cells_with_numbers(document: Document) -> bool:
    """Return whether a table without rows may hold the figures. One that was read as something else doesn't."""
    elsewhere = {r.table for r in document.rows if r.kind not in _PERFORMANCE}
    for index, table in enumerate(document.tables):
        if index in elsewhere:
            continue
        texts = [cell.text for cells in table.rows for cell in cells]
        if sum(_MEASURED.match(text) is not None for text in texts) > 1:
            return True
    return False


def _is_followed(document: Document, passage: Passage) -> bool:
    """Return whether something is listed: a table, a listing, items; or something unread, as missing lines show."""
    after = [h.line for h in document.headings if h.line > passage.line and h.level > 0]
    stop = min(after, default=1 << 62)

    def below(line: int) -> bool:
        return passage.line < line < stop

    if any(below(table.line) for table in document.tables):
        return True
    words = [p for p in document.passages if below(p.line)]
    lines = [r.line for r in document.rows] + [c.line for c in document.commands]
    first = min(filter(below, lines), default=None)
    # lines that it may take itself, and blank ones
    reach = passage.line + len(passage.text) // 60 + 3
    if not words:
        return first is not None or stop > reach
    if first is not None and first < words[0].line:
        return True
    return _is_list(words) or words[0].line > reach


def _is_list(words: Sequence[Passage]) -> bool:
    """Return whether passages begin with a listing or items."""
    first = words[0]
    if first.listing or len(first.text) < PARAGRAPH:
        return True
    return len(words) > 1 and words[1].line == first.line + 1


def dangling(document: Document) -> Iterator[Finding]:
    """Yield a finding for each announced list that doesn't follow."""
    for passage in document.passages:
        tail = passage.text[-160:]
        match = _DANGLING.search(tail)
        if (
            passage.listing
            or match is None
            or _PICTURE.search(tail)
            or _is_followed(document, passage)
        ):
            continue
        text = f"'…{tail[max(0, match.start() - 60) :].strip()}': the announced list is missing."
        yield note(
            "consistency.empty_section",
            text,
            "Add the list.",
            [f"{document.file}:{passage.line}"],
        )


# ---- commands and versions ----

ALMOST, SEVERAL = 0.9, 3  # share of a command's requests; results with that share
NEAR = 5  # lines above a command
_COMPARES = re.compile(r"comparison|compar(?:e|ing)|\bvs\b|versus", re.I)
_SIZED = re.compile(r"[A-Za-z][\w.]*[- ]?\d?(?:\.\d)?-(\d{1,4}(?:\.\d)?)B\b")
_CONCLUDES = re.compile(r"result|finding|conclusion|comparison|\bvs\b|versus", re.I)
_MODEL_ID = re.compile(
    r"(?<![\w./-])([A-Za-z][\w.-]{1,30}/[A-Za-z][\w.-]{3,80}?)(?=[\s,;:)\]'\"]|[.](?:\s|$)|$)"
)


def command_differs(d: Document) -> Iterator[Finding]:
    """Compare a command's own figures with those of the results that follow it."""
    clients = [c for c in d.commands if c.role == "client"]
    ends = [c.line for c in clients[1:]] + [1 << 62]
    for index, command in enumerate(clients):
        asked = command.settings.get("concurrency")
        if asked is None:
            continue
        levels = _concurrencies(d, command, until=min(ends[index:]))
        others = [f"{d.file}:{line}" for n, line in levels.items() if n != asked.value]
        if others:
            actual = ", ".join(f"{n:,g}" for n in levels if n)
            yield note(
                "consistency.command",
                f"The command has concurrency {asked.value}, the results after it {actual}.",
                "Print the command of each result.",
                [f"{d.file}:{command.line}", *others],
            )


def _concurrencies(d: Document, command: Command, until: int) -> dict[float, int]:
    """Return each concurrency among a command's results, and the line of its last result."""
    lines: dict[float, int] = {}
    for row in d.rows:
        level = row.number("concurrency")
        if level is not None and row.line < until and _is_result_of(row, command):
            lines[level] = row.line
    return lines


def _is_result_of(row: Row, command: Command) -> bool:
    """Return whether a printed block may be the output of a command above it."""
    if (
        row.kind != "serve"
        or row.form != "block"
        or row.section != command.section
        or row.line <= command.line
    ):
        return False
    unset = Setting("", 0)
    return (
        row.settings.get("backend", unset).line
        == command.settings.get("backend", unset).line
    )


def fewer_than_commanded(d: Document) -> Iterator[Finding]:
    """Results without a count of failures have a little fewer requests than a command of the report sends."""
    asked = _requests_commanded(d)
    short: dict[int, list[Row]] = {}
    for row in d.rows:
        done = int(row.get("completed") or 0)
        above = min((n for n in asked if n > done), default=None)
        if (
            above
            and done > ALMOST * above
            and done not in asked
            and _counts_only_successes(row)
        ):
            short.setdefault(above, []).append(row)
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


def _requests_commanded(d: Document) -> dict[int, int]:
    """Return numbers of requests that clients' commands ask for, and the line of each."""
    lines: dict[int, int] = {}
    for command in d.commands:
        setting = command.settings.get("num_prompts")
        if command.role == "client" and setting and isinstance(setting.value, int):
            lines[int(setting.value)] = command.line
    return lines


def _counts_only_successes(row: Row) -> bool:
    """Return whether a printed block has neither the number of requests nor that of failures."""
    if row.kind != "serve" or row.form != "block":
        return False
    return "num_prompts" not in row.settings and row.get("failed") is None


def versions_differ(d: Document) -> Iterator[Finding]:
    """Yield a doubt where the environments of one report name several versions of the engine."""
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
    compared = any(_COMPARES.search(h.text) for h in d.headings if h.level == 1)
    commands = _with_results(d, compared)
    for role in ("server", "offline"):
        programs: dict[str, list[Command]] = {}
        for command in commands:
            if command.role == role and len(command.settings) > 2:
                programs.setdefault(command.program, []).append(command)
        for same_program in programs.values():
            yield from _unlike(d, same_program, compared)


def _with_results(d: Document, compared: bool) -> list[Command]:
    """Return the commands that results come from. One that only shows how it is done has no results of its own."""
    if compared and not d.rows:
        return d.commands
    used = {setting.line for row in d.rows for setting in row.settings.values()}
    return [c for c in d.commands if c.line in used]


_ELSEWHERE = {
    "--port", "--host", "--served-model-name", "--dataset-path", "--output-json", "--result-dir", "--result-filename",
    "--download-dir", "--trust-remote-code", "--disable-log-requests", "--base-url", "--save-result", "--metadata",
    "--num-iters", "--num-iters-warmup", "--percentile-metrics", "--tool", "engine",
}  # fmt: skip


def _unlike(d: Document, commands: list[Command], compared: bool) -> Iterator[Finding]:
    """Yield a finding where commands of one program differ in several settings or variables."""
    if len(commands) < 2:
        return
    differ = _settings_that_differ(commands)
    variables = _variables(commands)
    if len(differ) + len(variables) < 2:
        return
    listed = "; ".join(differ[:8] + variables)
    text = f"{len(commands)} commands ({commands[0].program}) differ in several settings: {listed}."
    # Where machines or engines are compared, settings should be the same; else they may be what is varied.
    level: Level = "doubt" if compared else "note"
    yield Finding(
        "comparability.settings_differ",
        level,
        text,
        "",
        [f"{d.file}:{c.line}" for c in commands],
    )


def _settings_that_differ(commands: list[Command]) -> list[str]:
    """Return each setting with its values, as '--seed 1 / unset', flags last."""
    flags = {name for c in commands for name in c.settings if name.startswith("--")}
    names = {*ENGINE, *flags} - _ELSEWHERE
    differ = []
    for name in sorted(names, key=lambda n: (n.startswith("-"), n)):
        values = [
            str(c.settings[name].value) if name in c.settings else "unset" for c in commands
        ]
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1:
            differ.append(f"{name} {' / '.join(distinct)}")
    return differ


def _variables(commands: list[Command]) -> list[str]:
    """Return variables that only some have; one that is nearly another is a typo."""
    counts = Counter(name for c in commands for name in c.env)
    out = []
    for name, count in sorted(counts.items()):
        if count == len(commands):
            continue
        near = next((other for other in counts if _is_typo(name, other)), None)
        if near is None:
            out.append(f"{name} in {count} of {len(commands)}")
        elif near > name:
            out.append(f"{name} instead of {near}")
    return out


def _is_typo(name: str, other: str) -> bool:
    """Return whether two long names are nearly the same."""
    return (
        other != name
        and len(other) > 8
        and SequenceMatcher(None, other, name).ratio() > 0.95
    )


# ---- models ----


def models_named(documents: Sequence[Document]) -> Iterator[Finding]:
    """Yield a doubt for each model that the words name and no command runs, but one that is nearly it."""
    run = _models_run(documents)
    if not run:
        return
    seen = set(run)
    for name, location in _model_ids(documents):
        if name in seen:
            continue
        near = next((model for model in run if _is_variant(name, model)), None)
        if near is not None:
            seen.add(name)
            text = f"The text names {name}, but the commands run {near}."
            yield doubt("comparability.model_named", text, locations=[location, run[near]])


def _models_run(documents: Sequence[Document]) -> dict[str, str]:
    """Return models that commands or results name as 'owner/name', and where."""
    run: dict[str, str] = {}
    for d in documents:
        for c in d.commands:
            model = c.settings.get("model")
            if c.role != "quality" and model and "/" in str(model.value):
                run.setdefault(str(model.value), f"{d.file}:{c.line}")
        for r in d.rows:
            if r.kind == "serve" and "/" in str(r.setting("model") or ""):
                run.setdefault(str(r.setting("model")), r.location)
    return run


def _model_ids(documents: Sequence[Document]) -> Iterator[tuple[str, str]]:
    """Yield each 'owner/name' in sentences, and where."""
    for d in documents:
        for passage in d.passages:
            if passage.listing:
                continue
            for name in _MODEL_ID.findall(passage.text):
                yield name, f"{d.file}:{passage.line}"


def _is_variant(name: str, other: str) -> bool:
    """Return whether two are one owner's model, instruction-tuned and not."""
    if other.partition("/")[0] != name.partition("/")[0]:
        return False
    one, another = named(name), named(other)
    return another.base == one.base and another.taught != one.taught


def size_named(d: Document) -> Iterator[Finding]:
    """Yield a note for words right above a command that name a model of another size than it runs."""
    sentences = [p for p in d.passages if not p.listing]
    for c in d.commands:
        near = [p for p in sentences if 0 < c.line - p.line <= NEAR]
        if "model" not in c.settings or not near:
            continue
        model = named(str(c.settings["model"].value))
        sizes = set(map(float, _SIZED.findall(near[-1].text)))
        if model.billions is None or len(sizes) != 1 or model.billions in sizes:
            continue
        text = f"The text announces a {sizes.pop():g}B model, but the command runs {model.name}."
        lines = [f"{d.file}:{near[-1].line}", f"{d.file}:{c.line}"]
        yield note("comparability.model_named", text, locations=lines)


def _asks_a_server(row: Row) -> bool:
    """Return whether quality was measured through a server, whose settings it shares."""
    backend = str(row.setting("backend") or "")
    return "base_url" in str(row.setting("--model_args") or "") or backend.startswith(
        "local-"
    )


def _spelled(model: object) -> str:
    """Return a model's name, the same for all spellings."""
    return named(str(model)).name.lower().replace("_", "-")


def quality_elsewhere(d: Document) -> Iterator[Finding]:
    """Accuracy of one configuration is beside the speed of another."""
    scores = [r for r in d.rows if _has_own_model(r)]
    speed = [
        c
        for c in d.commands
        if c.role in ("server", "offline", "client") and c.settings.get("model")
    ]
    if not scores or not speed:
        return
    measured = {_spelled(r.setting("model")) for r in scores}
    run = _models_served(speed)
    both = ", ".join(sorted(measured & run))
    cache = _untested_cache(scores, speed)
    if both and not cache:
        return
    if both:
        level: Level = "note"
        models, other = both, "another cache type"
    else:
        level = "doubt"
        models, other = ", ".join(sorted(run)), ", ".join(sorted(measured))
    text = f"The commands run {models}{cache}, but accuracy was measured with {other}."
    lines = [f"{d.file}:{scores[0].line}", f"{d.file}:{speed[0].line}"]
    yield Finding("comparability.quality_elsewhere", level, text, "", lines)


def _has_own_model(row: Row) -> bool:
    """Return whether it is a score of a named model. One that asks a server has that server's settings."""
    return row.kind == "quality" and bool(row.setting("model")) and not _asks_a_server(row)


def _untested_cache(scores: Sequence[Row], commands: Sequence[Command]) -> str:
    """Return the commands' cache types in words, if accuracy was not measured with all of them."""
    types = {
        str(c.settings["kv_cache_dtype"].value)
        for c in commands
        if "kv_cache_dtype" in c.settings
    }
    if types <= {str(r.setting("kv_cache_dtype") or "") for r in scores}:
        return ""
    return f" (cache type {' and '.join(sorted(types))})"


def _models_served(commands: Sequence[Command]) -> set[str]:
    """Return names of models that commands run, and names under which they serve them."""
    models = set()
    for command in commands:
        for name in ("model", "--served-model-name"):
            if name in command.settings:
                models.add(_spelled(command.settings[name].value))
    return models
