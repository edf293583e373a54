"""Are results comparable: was the same work done, and what differs?"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from operator import itemgetter
from typing import NamedTuple

from dyno.checks import machine
from dyno.facts.finding import Finding, Level, doubt, note, void
from dyno.facts.identity import NOT_A_SUBJECT
from dyno.facts.imported import Row, Scalar
from dyno.facts.load import LOAD, SELDOM, plain
from dyno.facts.metric import DEFINITIONS, OWN_TPOT, definition, latency, one_meaning, words
from dyno.measure.estimate import ALLOWED
from dyno.measure.paired import score_interval
from dyno.measure.pairs import Group, passes
from dyno.measure.points import (
    ENGINE,
    distinct,
    input_each,
    load_of,
    locations,
    named,
    names_base,
    output_each,
    requests_of,
    sent,
    subject,
    together,
)
from dyno.measure.scores import items_of
from dyno.numbers import change, count, number, percent, setting

WORK, FAR = 0.1, 0.25  # difference in tokens per request
SERVED = 0.05  # difference of success rates
LENGTHS = 0.02  # tokens a request: more than rounding and an end token here and there
LENGTHS_VOID = 0.05
FAILED = 0.01  # share of the requests
FAILED_VOID = 0.1
# Settings that follow from another difference, and don't count as a second one.
_FOLLOWS = {
    "engine": ("engine_version", "backend", "endpoint", "--base-url", "args"),
    "tool": ("backend", "endpoint"),
    "model": ("tokenizer", "max_model_len", "revision", "origin"),
    "quantization": ("model", "dtype"),
    "accelerator": ("accelerators",),
    "tensor_parallel": ("accelerators",),
    "pipeline_parallel": ("accelerators",),
    "replicas": ("accelerators", "--base-url"),
}
# How a task was asked: each changes the score without a change of the engine.
_ASKED = ("task_version", "chat_template", "chat_template_sha", "form", "system", "max_tokens", "gen_kwargs",
          "in_flight", "lm_eval_version")  # fmt: skip
_NOT_A_CHANGE = {*LOAD, *SELDOM, *NOT_A_SUBJECT, *_ASKED, "tokenizer", "model_bytes", "parameters", "limit",
                 "chance", "process", "group", "samples_of"}  # fmt: skip
_QUANTIZATION = re.compile(r"[-_.]?([it]?q\d\w*|[bf]+p?\d+|int\d|awq|gptq|w\d+a\d+)", re.I)


def work(rows: Sequence[Row]) -> Iterator[Finding]:
    """Tokens read and generated per request differ under the same load."""
    for group in _served_alike(rows):
        known = [r for r in group if input_each(r) is not None and output_each(r) is not None]
        for figure, each in (("total_input_tokens", input_each), ("total_output_tokens", output_each)):
            extremes = _extremes([(each(r) or 0.0, r) for r in known])
            if extremes is None:
                continue
            (low, a), (high, b) = extremes
            other = subject(a) != subject(b)
            enough = WORK if other else FAR  # between runs of the same thing, a little is chance
            if not low or high / low - 1 <= enough or min(a.get("completed") or 0, b.get("completed") or 0) < 10:
                continue
            same_prompts = a.get("total_input_tokens") == b.get("total_input_tokens")
            wrong = other and high / low - 1 > FAR and (same_prompts or not load_of(a).lengths_unknown)
            less, more = distinct(subject(a), subject(b))
            did = "read" if figure == "total_input_tokens" else "generated"
            text = (
                f"At {load_of(a).words}, {more} {did} {number(high)} tokens per request, {less} {number(low)} "
                f"({change(high / low - 1)}): requests/s, duration and latency measure different work."
            )
            lines = locations([a, b], figure, "completed")
            yield Finding("comparability.work_differs", "void" if wrong else "doubt", text, locations=lines)


def _served_alike(rows: Sequence[Row]) -> list[list[Row]]:
    return [group for group in together(rows) if group[0].kind == "serve"]


def _extremes(values: list[tuple[float, Row]]) -> tuple[tuple[float, Row], tuple[float, Row]] | None:
    by_value = itemgetter(0)
    return (min(values, key=by_value), max(values, key=by_value)) if len(values) > 1 else None


def success(rows: Sequence[Row]) -> Iterator[Finding]:
    for group in _served_alike(rows):
        # Where the number of completed requests is not reported, it is unknown, not 0.
        shares = [
            (done / s[0], r) for r in group if (done := r.get("completed")) is not None and (s := sent(r)) and s[0]
        ]
        extremes = _extremes(shares)
        if extremes is None:
            continue
        (low, a), (high, b) = extremes
        if high - low > SERVED and high <= 1.0:
            less, more = distinct(subject(a), subject(b))
            text = (
                f"At {load_of(a).words}, {more} completed {percent(high)} of its requests, {less} {percent(low)}: its "
                "figures cover only the requests it answered."
            )
            level: Level = "void" if subject(a) != subject(b) else "doubt"
            yield Finding("comparability.success_differs", level, text, locations=locations([a, b], "completed"))


def loads(rows: Sequence[Row]) -> Iterator[Finding]:
    """One series was measured under higher loads than another."""
    by_load: dict[str, dict[tuple[str, str], dict[float, Row]]] = {}
    for row in rows:
        if (raised := load_of(row).level) and row.form == "csv" and row.kind == "serve":
            series = by_load.setdefault(raised[0], {}).setdefault((row.file, subject(row)), {})
            series.setdefault(raised[1], row)
    for name, by_series in by_load.items():
        for one, other in combinations(by_series, 2):
            more, few = (one, other) if len(by_series[one]) >= len(by_series[other]) else (other, one)
            most = max(by_series[few])
            extra = sorted(v for v in by_series[more] if v > most)
            first = [load_of(next(iter(by_series[who].values()))) for who in (one, other)]
            if len(by_series[one].keys() & by_series[other].keys()) >= 2 and extra and first[0].same_prompts(first[1]):
                more_loads = f"{name.replace('_', ' ')} {', '.join(map(count, extra[:6]))}"
                names = distinct(_series_name(*more), _series_name(*few))
                text = f"{names[0]} has results at {more_loads}; {names[1]} stops at {count(most)}."
                yield note("comparability.loads_differ", text)


def _series_name(file: str, name: str) -> str:
    return f"{name} ({file})" if name and name != file else file


def models(rows: Sequence[Row]) -> Iterator[Finding]:
    """An instruction-tuned model is compared with its base model."""
    seen: set[frozenset[str]] = set()
    for group in _served_alike(rows):
        by_name = {named(str(r.setting("model"))): r for r in group if r.setting("model")}
        for a, b in combinations(by_name, 2):
            tuned, base = (a, b) if a.taught else (b, a)
            if a.taught == b.taught or tuned.base != base.base or frozenset((a.name, b.name)) in seen:
                continue
            if names_base(str(by_name[base].setting("model"))):
                seen.add(frozenset((a.name, b.name)))
                text = (
                    f"{tuned.name} is instruction-tuned, {base.name} is a base model: their answers end at different "
                    "lengths."
                )
                lines = [by_name[m].setting_location("model") for m in (a, b)]
                yield doubt("comparability.model_differs", text, locations=lines)


def parts_of_a_node(rows: Sequence[Row]) -> Iterator[Finding]:
    for group in together(rows):
        by_count = {n: r for r in group if (n := r.number("accelerators"))}
        if len(by_count) > 1:
            low, high = min(by_count), max(by_count)
            names = [subject(by_count[n]) for n in (low, high)]
            text = f"{names[1]!r} has {count(high)} accelerators and {names[0]!r} {count(low)}."
            lines = locations([by_count[low], by_count[high]])
            yield note("comparability.parts_of_a_node", text, locations=lines)
            return


def definitions_rows(rows: Sequence[Row]) -> Iterator[Finding]:
    by_stem: dict[str, Counter[str]] = {}
    for row in rows:
        for name, figure in row.figures.items():
            if figure.definition and (parts := latency(name)):
                by_stem.setdefault(parts[1], Counter())[figure.definition] += 1
    unlike = {s: meanings for s, meanings in by_stem.items() if not one_meaning(meanings)}
    if unlike:
        listed = "; ".join(f"{s.upper()} {' / '.join(sorted(meanings))}" for s, meanings in unlike.items())
        advice = "Don't put them in one column. METHOD.md has the definitions."
        yield note("comparability.definitions", f"The tools define latencies differently: {listed}.", advice)


# ---- two settings that are compared ----


class Objection(NamedTuple):
    """A finding, and the figures that it excludes: none, some, or (None) all of the pairing."""

    finding: Finding
    against: frozenset[str] | None = frozenset()


class Two(NamedTuple):
    """The two sides of a comparison."""

    a: Group
    b: Group
    metrics: Sequence[str]

    @property
    def rows(self) -> tuple[Row, Row]:
        return self.a[0], self.b[0]

    def settings(self, name: str) -> tuple[Scalar | None, Scalar | None]:
        return self.rows[0].setting(name), self.rows[1].setting(name)

    def means(self, figure: Callable[[Row], float | None]) -> list[float | None]:
        """Return the mean over each side's runs."""
        values = ([v for m in group if (v := figure(m)) is not None] for group in (self.a, self.b))
        return [sum(side) / len(side) if side else None for side in values]

    def ratios(self, counted: Callable[[Row], tuple[float, float] | None]) -> list[float | None]:
        """Return the ratio of two counts, each summed over a side's runs."""
        pairs = ([counts for m in group if (counts := counted(m))] for group in (self.a, self.b))
        return [sum(x for x, _ in side) / total if (total := sum(y for _, y in side)) else None for side in pairs]

    def latencies(self, *stems: str) -> set[str]:
        return {m for m in self.metrics if any(m.endswith(f"_{stem}_ms") for stem in stems)}


def sides(two: Two) -> Iterator[Finding | Objection]:
    for name, group in (("A", two.a), ("B", two.b)):
        if any(m.verdict == "void" for m in group):
            finding = void("comparability.void_side", f"Side {name} is void: {_codes(group, 'void')}.")
            yield Objection(finding, None)
        elif any(m.verdict == "doubtful" for m in group):
            yield doubt("comparability.doubtful_side", f"Side {name} has doubts of its own: {_codes(group, 'doubt')}.")


def _codes(group: Group, level: str) -> str:
    codes = Counter(f.code for m in group for f in m.findings if f.level == level)
    listed = (f"{code} ({n} of {len(group)} runs)" if len(group) > 1 else code for code, n in codes.items())
    return ", ".join(listed) or "according to its file"


def load(two: Two) -> Iterator[Objection]:
    """Such a pair is compared only with --anyway."""
    if unlike := list(load_of(two.rows[0]).conflicts(load_of(two.rows[1]))):
        yield Objection(void("comparability.load", f"Workload or load differ: {_listed(unlike)}."), None)


def asked(two: Two) -> Iterator[Finding]:
    """Were the same questions asked in the same way?"""
    if two.rows[0].kind != "quality":
        return
    names = [name for name in _ASKED if len({plain(v) for v in two.settings(name)}) > 1]
    sure = all(row.complete for row in two.rows)
    if unlike := [(n, *two.settings(n)) for n in names if sure or None not in two.settings(n)]:
        yield doubt("comparability.asked", f"The questions were asked differently: {_listed(unlike)}.")
    x, y = map(items_of, two.rows)
    a, b = (len(x), len(y)) if x and y else (row.number("samples") for row in two.rows)
    if a is None or b is None or (a == b and x.keys() == y.keys()):
        return
    limits = _listed([("limit", *two.settings("limit"))]) if len(set(two.settings("limit"))) > 1 else ""
    both = len(x.keys() & y.keys())
    which = f"The {count(both)} that both have are compared" if both else "They have none in common"
    which = "Which ones is unknown" if not (x and y) else which
    text = f"A has {count(a)} items, B {count(b)}{f' ({limits})' if limits else ''}. {which}."
    yield doubt("comparability.items", text)


def at_chance(two: Two) -> Iterator[Finding]:
    """A score that guessing reaches says nothing about a loss."""
    for name, row in zip("AB", two.rows, strict=True):
        score, chance = row.get("score"), row.number("chance")
        ends = score_interval(score, row.number("samples"), row.get("stderr")) if score is not None else None
        if chance is not None and score is not None and ends is not None and ends[0] <= chance:
            text = f"Side {name} scores {percent(score)}; guessing scores {percent(chance)}."
            yield doubt("comparability.at_chance", text)


def processes(rows: Sequence[Row]) -> Iterator[Finding]:
    """Did the process that was timed answer the questions?"""
    timed: dict[object, set[str]] = {}
    for row in rows:
        if row.kind != "quality" and row.engine is not None:
            timed.setdefault(_engine_setting(row), set()).add(row.engine.start)
    others: dict[object, Row] = {}
    for row in rows:
        answered, starts = row.setting("process"), timed.get(_engine_setting(row))
        if row.kind == "quality" and answered and starts and not {*str(answered).split("; ")} <= starts:
            others.setdefault(_engine_setting(row), row)
    if others:
        named = ", ".join(row.place.part_label("engine") if row.place else subject(row) for row in others.values())
        text = f"Speed and quality were measured on different starts of the engine: {named}."
        yield note("comparability.other_process", text, locations=[row.location for row in others.values()])


def _engine_setting(row: Row) -> object:
    """The same for all trials of one engine setting: of a study, or by all that is known of the engine."""
    if (place := row.place) is not None:
        return place.study, place.rig, place.part_label("engine")
    return tuple(str(row.setting(name)) for name in ENGINE)


def requests(two: Two) -> Iterator[Finding]:
    a, b = two.means(requests_of)
    if a and b and a != b and two.rows[0].kind != "quality":
        yield doubt("comparability.requests", f"A has {count(a)} requests, B {count(b)}.")


def prompts(two: Two) -> Iterator[Finding]:
    one, other = ({m.prompts_sha256 for m in group} - {None} for group in (two.a, two.b))
    a, b = two.rows
    tokenizers, datasets, seeds = two.settings("tokenizer"), two.settings("dataset"), two.settings("seed")
    if a.kind == "quality":
        if one and other and one != other and items_of(a).keys() == items_of(b).keys():
            text = "The items have the same names, but some questions or their prompts differ."
            yield doubt("comparability.prompts", text, "Use the same version, template, examples and seed.")
    elif all(tokenizers) and tokenizers[0] != tokenizers[1] and not (one and one == other):
        text = f"Prompts were generated with two tokenizers, {tokenizers[0]} and {tokenizers[1]}: their texts differ."
        yield doubt("comparability.tokenizers", text)
    elif all(datasets) and datasets[0] != datasets[1]:
        text = f"{a.tool or 'A'} used the dataset {datasets[0]}, {b.tool or 'B'} {datasets[1]}."
        yield doubt("comparability.prompts", text, "Give both the same file of prompts.")
    elif one and other and one != other:
        which = f" (seeds {seeds[0]} and {seeds[1]})" if seeds[0] != seeds[1] and len(two.a) == len(two.b) == 1 else ""
        # Random ones of the same lengths are as good; of repeats, one side may have had some more.
        level: Level = "note" if datasets[0] == "random" or one <= other or other <= one else "doubt"
        yield Finding("comparability.prompts", level, f"The two sides had different prompts{which}.")


def lengths(two: Two) -> Iterator[Objection]:
    by_time = {"request_throughput", "request_goodput", "duration_s"}
    yield from _lengths(two, "output", by_time | two.latencies("e2el", "latency"), False)
    same = {m.prompts_sha256 for m in two.a} == {m.prompts_sha256 for m in two.b} != {None}
    by_time |= {"total_token_throughput", "input_throughput"} | two.latencies("ttft")
    yield from _lengths(two, "input", by_time, same)


def _lengths(two: Two, which: str, against: set[str], same_prompts: bool) -> Iterator[Objection]:
    def tokens(row: Row) -> tuple[float, float] | None:
        count, done = row.get(f"total_{which}_tokens"), row.get("completed")
        return (count, done) if count is not None and done else None

    a, b = two.ratios(tokens)
    if not a or not b or abs(b / a - 1) <= LENGTHS:
        return
    excluded = [m for m in two.metrics if m in against and abs(b / a - 1) > LENGTHS_VOID and not same_prompts]
    each = [count(x) if x == round(x) else number(x) for x in (a, b)]
    text = f"A has {each[0]} {which} tokens per request, B {each[1]} ({change(b / a - 1)})."
    if excluded:
        text += f" Not comparable: {', '.join(map(words, excluded))}."
    level: Level = "note" if same_prompts else "doubt"
    yield Objection(Finding(f"comparability.{which}_length", level, text), frozenset(excluded))


def failures(two: Two) -> Iterator[Finding | Objection]:
    def failed(row: Row) -> tuple[float, float] | None:
        count, done = row.get("failed"), row.get("completed")
        return (count, count + done) if count is not None and done is not None else None

    a, b = two.ratios(failed)
    if a is None or b is None or abs(a - b) <= FAILED:
        return
    refused = abs(a - b) >= FAILED_VOID
    text = (
        f"{percent(a)} of A's requests failed and {percent(b)} of B's. Failures leave a server less to do, and the "
        "figures cover only the requests it answered."
    )
    finding = Finding("comparability.failures", "void" if refused else "doubt", text)
    yield Objection(finding, None if refused else frozenset())


# One figure: the two are equal where each chunk has one token.
_TPOTS = {definition("dyno", "tpot"), OWN_TPOT}


def definitions(two: Two) -> Iterator[Finding | Objection]:
    a, b = two.rows
    other: dict[str, list[str]] = {}
    near: dict[str, list[str]] = {}
    limits = [str(value) for value in two.settings("--goodput")]
    for metric in two.metrics:
        x, y = a.figures.get(metric), b.figures.get(metric)
        if x is None or y is None or {x.definition, y.definition} <= _TPOTS:
            continue
        if metric == "request_goodput" and limits[0] != limits[1] and a.complete and b.complete:
            other.setdefault(f"A counts requests within {limits[0]}, B within {limits[1]}", []).append(metric)
            continue
        one, meant = (DEFINITIONS.get(figure.definition, "") for figure in (x, y))
        if one and meant and one != meant:
            group = near if one_meaning((x.definition, y.definition)) else other
            group.setdefault(f"A: {one} ({x.definition}); B: {meant} ({y.definition})", []).append(metric)
        elif one != meant:
            other.setdefault(f"{'A' if not one else 'B'}'s definition is unknown", []).append(metric)
    for why, metrics in near.items():
        text = f"{', '.join(map(words, metrics))}: the definitions differ only for empty first or last chunks."
        advice = "Check the first chunk of a stream if that matters."
        yield note("comparability.definitions", f"{text} {why}.", advice)
    for why, metrics in other.items():
        text = f"{', '.join(map(words, metrics))}: the definitions differ. {why[0].upper()}{why[1:]}."
        yield Objection(note("comparability.definitions", text), frozenset(metrics))


def changes(two: Two) -> Iterator[Finding]:
    things = things_changed(*two.rows)
    sure = all(row.complete for row in two.rows)
    names = [row.series or row.label for row in two.rows]
    if len(things) == 1:
        yield note("comparability.subject", f"The only known difference is {_listed(things, sure)}.")
    elif things:
        yield doubt("comparability.several_changes", f"{len(things)} settings differ: {_listed(things, sure)}.")
    elif all(names) and names[0] != names[1]:
        yield note("comparability.subject", f"Only the label differs: {names[0]} / {names[1]}.")
    else:
        yield note("comparability.nothing_changed", "No known setting differs.")


def accelerators(two: Two) -> Iterator[Finding]:
    a, b = (row.number("accelerators") for row in two.rows)
    if not a or not b or a == b:
        return
    one, other = two.means(lambda row: row.get("output_throughput") or row.get("speed"))
    each = f" Per accelerator: {number(one / a)} and {number(other / b)} tokens/s." if one and other else ""
    yield doubt("comparability.accelerators", f"A used {count(a)} accelerators, B {count(b)}.{each}")


def single_runs(two: Two) -> Iterator[Finding]:
    if len(two.a) == len(two.b) == 1 and two.rows[0].kind != "quality":
        text = (
            "There is one run on each side. The intervals cover variation between requests, plus an allowance of "
            f"{percent(ALLOWED)} for run-to-run variation, which may be too little."
        )
        yield note("comparability.single_runs", text)


def rigs(two: Two) -> Iterator[Finding]:
    a, b = two.a[0].rig, two.b[0].rig
    if a is not None and b is not None:
        yield from machine.differences(a, b)


def things_changed(a: Row, b: Row) -> list[tuple[str, Scalar | None, Scalar | None]]:
    """Return the settings that differ, without those that follow from another difference."""
    sure = a.complete and b.complete
    own = a.tool == b.tool == "dyno"
    unlike: dict[str, tuple[Scalar | None, Scalar | None]] = {}
    for name in dict.fromkeys((*a.settings, *b.settings)):
        x, y = a.setting(name), b.setting(name)
        unknown = not sure and (x is None or y is None)
        if name in _NOT_A_CHANGE or passes(name, own) or plain(x) == plain(y) or unknown:
            continue
        if name == "model" and _last(x) == _last(y):  # in any folder
            continue
        unlike[name] = (x, y)
    if a.tool != b.tool and a.tool and b.tool:
        unlike["tool"] = (a.tool, b.tool)
    follows = {name: set(dependent) for name, dependent in _FOLLOWS.items() if name in unlike}
    if "model" in unlike and not _same_model(*unlike["model"]):
        follows.get("quantization", set()).discard("model")
    followed = set().union(*follows.values())
    return [(name, *values) for name, values in unlike.items() if name not in followed]


def _same_model(x: Scalar | None, y: Scalar | None) -> bool:
    """Compare names without the words for a quantization."""
    return _QUANTIZATION.sub("", _last(x)) == _QUANTIZATION.sub("", _last(y))


def _last(path: Scalar | None) -> str:
    return str(path).rstrip("/").rpartition("/")[2]


def _listed(things: Sequence[tuple[str, Scalar | None, Scalar | None]], sure: bool = False) -> str:
    """`sure`: a flag that a side lacks was not given."""

    def value(name: str, v: Scalar | None) -> str:
        absent = "not set" if sure and name.startswith("--") else "unknown"
        return absent if v is None else setting(v)

    return ", ".join(f"{name.replace('_', ' ')} {value(name, x)} / {value(name, y)}" for name, x, y in things)
