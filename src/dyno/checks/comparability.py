"""Are results comparable: was the same work done, and what differs?"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        known = [
            r for r in group if input_each(r) is not None and output_each(r) is not None
        ]
        for figure, did, each in (
            ("total_input_tokens", "read", input_each),
            ("total_output_tokens", "generated", output_each),
        ):
            extremes = _extremes([(each(r) or 0.0, r) for r in known])
            if extremes is None:
                continue
            (low, a), (high, b) = extremes
            if not low or not _is_other_work(a, b, high / low - 1):
                continue
            less, more = distinct(subject(a), subject(b))
            text = (
                f"At {load_of(a).words}, {more} {did} {number(high)} tokens per request, {less} {number(low)} "
                f"({change(high / low - 1)}): requests/s, duration and latency measure different work."
            )
            level: Level = "void" if _is_wrong(a, b, high / low - 1) else "doubt"
            lines = locations([a, b], figure, "completed")
            yield Finding("comparability.work_differs", level, text, locations=lines)


def _is_other_work(a: Row, b: Row, difference: float) -> bool:
    """Return whether tokens per request differ by more than chance."""
    if min(a.get("completed") or 0, b.get("completed") or 0) < 10:
        return False
    # Between runs of the same thing, a little is chance.
    return difference > (WORK if subject(a) != subject(b) else FAR)


def _is_wrong(a: Row, b: Row, difference: float) -> bool:
    """Return whether tokens per request differ too far to compare the two subjects."""
    if subject(a) == subject(b) or difference <= FAR:
        return False
    same_prompts = a.get("total_input_tokens") == b.get("total_input_tokens")
    return same_prompts or not load_of(a).lengths_unknown


def _served_alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the served results, grouped by load."""
    return [group for group in together(rows) if group[0].kind == "serve"]


def _extremes(
    values: list[tuple[float, Row]],
) -> tuple[tuple[float, Row], tuple[float, Row]] | None:
    """Return the lowest and the highest value, each with its row, of two and more."""
    if len(values) < 2:
        return None
    by_value = itemgetter(0)
    return min(values, key=by_value), max(values, key=by_value)


def success(rows: Sequence[Row]) -> Iterator[Finding]:
    """Shares of completed requests differ under the same load."""
    for group in _served_alike(rows):
        extremes = _extremes(_completed_shares(group))
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
            yield Finding(
                "comparability.success_differs",
                level,
                text,
                locations=locations([a, b], "completed"),
            )


def _completed_shares(rows: Sequence[Row]) -> list[tuple[float, Row]]:
    """Return the share of completed requests of each row that reports it."""
    shares = []
    for row in rows:
        done, asked = row.get("completed"), sent(row)
        # Where the number of completed requests is not reported, it is unknown, not 0.
        if done is not None and asked and asked[0]:
            shares.append((done / asked[0], row))
    return shares


def loads(rows: Sequence[Row]) -> Iterator[Finding]:
    """One series was measured under higher loads than another."""
    by_load: dict[str, dict[tuple[str, str], dict[float, Row]]] = {}
    for row in rows:
        if (raised := load_of(row).level) and row.form == "csv" and row.kind == "serve":
            series = by_load.setdefault(raised[0], {}).setdefault(
                (row.file, subject(row)), {}
            )
            series.setdefault(raised[1], row)
    for name, by_series in by_load.items():
        for one, other in combinations(by_series, 2):
            levels, other_levels = by_series[one], by_series[other]
            first, other_first = (
                load_of(next(iter(each.values()))) for each in (levels, other_levels)
            )
            if len(levels.keys() & other_levels.keys()) < 2 or not first.same_prompts(
                other_first
            ):
                continue
            more, few = (one, other) if len(levels) >= len(other_levels) else (other, one)
            most = max(by_series[few])
            extra = sorted(level for level in by_series[more] if level > most)
            if extra:
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
            if (
                a.taught == b.taught
                or tuned.base != base.base
                or frozenset((a.name, b.name)) in seen
            ):
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
        listed = "; ".join(
            f"{s.upper()} {' / '.join(sorted(meanings))}" for s, meanings in unlike.items()
        )
        advice = "Don't put them in one column. METHOD.md has the definitions."
        yield note(
            "comparability.definitions",
            f"The tools define latencies differently: {listed}.",
            advice,
        )


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
        values = (
            [v for m in group if (v := figure(m)) is not None] for group in (self.a, self.b)
        )
        return [sum(side) / len(side) if side else None for side in values]

    def ratios(
        self, counted: Callable[[Row], tuple[float, float] | None]
    ) -> list[float | None]:
        """Return the ratio of two counts, each summed over a side's runs."""
        pairs = (
            [counts for m in group if (counts := counted(m))] for group in (self.a, self.b)
        )
        return [
            sum(x for x, _ in side) / total if (total := sum(y for _, y in side)) else None
            for side in pairs
        ]

    def latencies(self, *stems: str) -> set[str]:
        return {m for m in self.metrics if any(m.endswith(f"_{stem}_ms") for stem in stems)}


def sides(two: Two) -> Iterator[Finding | Objection]:
    doubtful = {}
    for name, group in (("A", two.a), ("B", two.b)):
        if any(m.verdict == "void" for m in group):
            finding = void(
                "comparability.void_side", f"Side {name} is void: {_codes(group, 'void')}."
            )
            yield Objection(finding, None)
        elif any(m.verdict == "doubtful" for m in group):
            doubtful[name] = _codes(group, "doubt")
    if doubtful:
        yield doubt("comparability.doubtful_side", _doubts_of(doubtful))


def _doubts_of(sides: Mapping[str, str]) -> str:
    """Describe the doubts of one side, or of both."""
    codes = [*sides.values()]
    if len(sides) == 1:
        return f"Side {next(iter(sides))} has doubts of its own: {codes[0]}."
    if codes[0] == codes[1]:
        return f"Both sides have doubts of their own: {codes[0]}."
    return f"Both sides have doubts of their own: A {codes[0]}; B {codes[1]}."


def _codes(group: Group, level: str) -> str:
    codes = Counter(f.code for m in group for f in m.findings if f.level == level)
    listed = (
        f"{code} ({n} of {len(group)} runs)" if len(group) > 1 else code
        for code, n in codes.items()
    )
    return ", ".join(listed) or "according to its file"


def load(two: Two) -> Iterator[Objection]:
    """Workload or load differ. Such a pair is compared only with --anyway."""
    if unlike := list(load_of(two.rows[0]).conflicts(load_of(two.rows[1]))):
        yield Objection(
            void("comparability.load", f"Workload or load differ: {_listed(unlike)}."), None
        )


def asked(two: Two) -> Iterator[Finding]:
    """Were the same questions asked in the same way?"""
    if two.rows[0].kind != "quality":
        return
    sure = all(row.complete for row in two.rows)
    unlike = []
    for name in _ASKED:
        x, y = two.settings(name)
        if plain(x) != plain(y) and (sure or (x is not None and y is not None)):
            unlike.append((name, x, y))
    if unlike:
        yield doubt(
            "comparability.asked",
            f"The questions were asked differently: {_listed(unlike)}.",
        )
    yield from _other_items(two)


def _other_items(two: Two) -> Iterator[Finding]:
    """Yield a doubt if the two sides don't have the same items."""
    x, y = map(items_of, two.rows)
    counts: list[float | None]
    if x and y:
        counts = [len(x), len(y)]
        both = len(x.keys() & y.keys())
        which = (
            f"The {count(both)} that both have are compared"
            if both
            else "They have none in common"
        )
    else:
        counts = [row.number("samples") for row in two.rows]
        which = "Which ones is unknown"
    a, b = counts
    if a is None or b is None or (a == b and x.keys() == y.keys()):
        return
    x_limit, y_limit = two.settings("limit")
    limits = f" ({_listed([('limit', x_limit, y_limit)])})" if x_limit != y_limit else ""
    yield doubt(
        "comparability.items", f"A has {count(a)} items, B {count(b)}{limits}. {which}."
    )


def at_chance(two: Two) -> Iterator[Finding]:
    """A score that guessing reaches says nothing about a loss."""
    for name, row in zip("AB", two.rows, strict=True):
        score, chance = row.get("score"), row.number("chance")
        ends = (
            score_interval(score, row.number("samples"), row.get("stderr"))
            if score is not None
            else None
        )
        if (
            chance is not None
            and score is not None
            and ends is not None
            and ends[0] <= chance
        ):
            text = (
                f"Side {name} scores {percent(score)}; guessing scores {percent(chance)}."
            )
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
        if row.kind != "quality" or not answered or not starts:
            continue
        if not starts.issuperset(str(answered).split("; ")):
            others.setdefault(_engine_setting(row), row)
    if others:
        named = ", ".join(
            row.place.part_label("engine") if row.place else subject(row)
            for row in others.values()
        )
        text = (
            f"Speed and quality were measured on different starts of the engine: {named}."
        )
        yield note(
            "comparability.other_process",
            text,
            locations=[row.location for row in others.values()],
        )


def _engine_setting(row: Row) -> object:
    """Return what is the same for all trials of one engine setting: of a study, or by all that is known of the
    engine."""
    if (place := row.place) is not None:
        return place.study, place.rig, place.part_label("engine")
    return tuple(str(row.setting(name)) for name in ENGINE)


def requests(two: Two) -> Iterator[Finding]:
    a, b = two.means(requests_of)
    if a and b and a != b and two.rows[0].kind != "quality":
        yield doubt("comparability.requests", f"A has {count(a)} requests, B {count(b)}.")


def prompts(two: Two) -> Iterator[Finding]:
    """Were the prompts the same?"""
    if two.rows[0].kind == "quality":
        yield from _other_questions(two)
        return
    one, other = _hashes(two)
    tokenizers, datasets = two.settings("tokenizer"), two.settings("dataset")
    same = bool(one) and one == other
    if _both_set_and_differ(*tokenizers) and not same:
        text = f"Prompts were generated with two tokenizers, {tokenizers[0]} and {tokenizers[1]}: their texts differ."
        yield doubt("comparability.tokenizers", text)
    elif _both_set_and_differ(*datasets):
        a, b = two.rows
        text = f"{a.tool or 'A'} used the dataset {datasets[0]}, {b.tool or 'B'} {datasets[1]}."
        yield doubt("comparability.prompts", text, "Give both the same file of prompts.")
    elif one and other and not same:
        # Random ones of the same lengths are as good; of repeats, one side may have had some more.
        as_good = datasets[0] == "random" or one <= other or other <= one
        level: Level = "note" if as_good else "doubt"
        yield Finding(
            "comparability.prompts",
            level,
            f"The two sides had different prompts{_seeds(two)}.",
        )


def _both_set_and_differ(x: Scalar | None, y: Scalar | None) -> bool:
    return bool(x) and bool(y) and x != y


def _hashes(two: Two) -> tuple[set[str], set[str]]:
    """Return the hashes of the prompts of each side, as far as they are known."""
    one, other = (
        {m.prompts_sha256 for m in group if m.prompts_sha256 is not None}
        for group in (two.a, two.b)
    )
    return one, other


def _other_questions(two: Two) -> Iterator[Finding]:
    one, other = _hashes(two)
    if not one or not other or one == other:
        return
    a, b = two.rows
    if items_of(a).keys() == items_of(b).keys():
        text = "The items have the same names, but some questions or their prompts differ."
        yield doubt(
            "comparability.prompts",
            text,
            "Use the same version, template, examples and seed.",
        )


def _seeds(two: Two) -> str:
    """Return the seeds of two single runs in words, if they differ."""
    a, b = two.settings("seed")
    if a == b or len(two.a) > 1 or len(two.b) > 1:
        return ""
    return f" (seeds {a} and {b})"


def lengths(two: Two) -> Iterator[Objection]:
    by_time = {"request_throughput", "request_goodput", "duration_s"}
    yield from _lengths(two, "output", by_time | two.latencies("e2el", "latency"), False)
    same = {m.prompts_sha256 for m in two.a} == {m.prompts_sha256 for m in two.b} != {None}
    by_time |= {"total_token_throughput", "input_throughput"} | two.latencies("ttft")
    yield from _lengths(two, "input", by_time, same)


def _lengths(
    two: Two, which: str, against: set[str], same_prompts: bool
) -> Iterator[Objection]:
    def tokens(row: Row) -> tuple[float, float] | None:
        count, done = row.get(f"total_{which}_tokens"), row.get("completed")
        return (count, done) if count is not None and done else None

    a, b = two.ratios(tokens)
    if not a or not b or abs(b / a - 1) <= LENGTHS:
        return
    excluded = [
        m
        for m in two.metrics
        if m in against and abs(b / a - 1) > LENGTHS_VOID and not same_prompts
    ]
    each = [count(x) if x == round(x) else number(x) for x in (a, b)]
    text = f"A has {each[0]} {which} tokens per request, B {each[1]} ({change(b / a - 1)})."
    if excluded:
        text += f" Not comparable: {', '.join(map(words, excluded))}."
    level: Level = "note" if same_prompts else "doubt"
    yield Objection(
        Finding(f"comparability.{which}_length", level, text), frozenset(excluded)
    )


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
    """Do both sides mean the same by a figure?"""
    other: dict[str, list[str]] = {}
    near: dict[str, list[str]] = {}
    for metric in two.metrics:
        x, y = (row.figures.get(metric) for row in two.rows)
        if x is None or y is None or {x.definition, y.definition} <= _TPOTS:
            continue
        limits = _other_limits(two) if metric == "request_goodput" else ""
        difference = _other_definition(x.definition, y.definition)
        if limits:
            other.setdefault(limits, []).append(metric)
        elif difference and _nearly_one_meaning(x.definition, y.definition):
            near.setdefault(difference, []).append(metric)
        elif difference:
            other.setdefault(difference, []).append(metric)
    for why, metrics in near.items():
        text = f"{', '.join(map(words, metrics))}: the definitions differ only for empty first or last chunks."
        advice = "Check the first chunk of a stream if that matters."
        yield note("comparability.definitions", f"{text} {why}.", advice)
    for why, metrics in other.items():
        text = f"{', '.join(map(words, metrics))}: the definitions differ. {why[0].upper()}{why[1:]}."
        yield Objection(note("comparability.definitions", text), frozenset(metrics))


def _other_limits(two: Two) -> str:
    """Return the limits of goodput in words, if they are known to differ."""
    one, other = (str(value) for value in two.settings("--goodput"))
    if one == other or not all(row.complete for row in two.rows):
        return ""
    return f"A counts requests within {one}, B within {other}"


def _other_definition(a: str, b: str) -> str:
    """Return two definitions in words, if they differ."""
    one, other = DEFINITIONS.get(a, ""), DEFINITIONS.get(b, "")
    if one == other:
        return ""
    if not one:
        return "A's definition is unknown"
    if not other:
        return "B's definition is unknown"
    return f"A: {one} ({a}); B: {other} ({b})"


def _nearly_one_meaning(a: str, b: str) -> bool:
    """Return whether two definitions are known, and figures of both may share a column."""
    return a in DEFINITIONS and b in DEFINITIONS and one_meaning((a, b))


def changes(two: Two) -> Iterator[Finding]:
    """Which settings differ, and is it only one?"""
    things = things_changed(*two.rows)
    sure = all(row.complete for row in two.rows)
    names = [row.series or row.label for row in two.rows]
    if len(things) == 1:
        yield note(
            "comparability.subject",
            f"The only known difference is {_listed(things, sure)}.",
        )
    elif things:
        yield doubt(
            "comparability.several_changes",
            f"{len(things)} settings differ: {_listed(things, sure)}.",
        )
    elif all(names) and names[0] != names[1]:
        yield note(
            "comparability.subject", f"Only the label differs: {names[0]} / {names[1]}."
        )
    else:
        yield note("comparability.nothing_changed", "No known setting differs.")


def accelerators(two: Two) -> Iterator[Finding]:
    a, b = (row.number("accelerators") for row in two.rows)
    if not a or not b or a == b:
        return
    one, other = two.means(lambda row: row.get("output_throughput") or row.get("speed"))
    each = (
        f" Per accelerator: {number(one / a)} and {number(other / b)} tokens/s."
        if one and other
        else ""
    )
    yield doubt(
        "comparability.accelerators", f"A used {count(a)} accelerators, B {count(b)}.{each}"
    )


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
    unlike = _settings_that_differ(a, b)
    if a.tool != b.tool and a.tool and b.tool:
        unlike["tool"] = (a.tool, b.tool)
    followed: set[str] = set()
    for name, dependent in _FOLLOWS.items():
        if name in unlike:
            followed.update(dependent)
    if "quantization" in unlike and "model" in unlike and not _same_model(*unlike["model"]):
        followed.discard("model")
    return [(name, *values) for name, values in unlike.items() if name not in followed]


def _settings_that_differ(a: Row, b: Row) -> dict[str, tuple[Scalar | None, Scalar | None]]:
    """Return the settings that may change the figures, and that are known to differ."""
    sure = a.complete and b.complete
    own = a.tool == b.tool == "dyno"
    unlike: dict[str, tuple[Scalar | None, Scalar | None]] = {}
    for name in dict.fromkeys((*a.settings, *b.settings)):
        x, y = a.setting(name), b.setting(name)
        unknown = not sure and (x is None or y is None)
        if unknown or plain(x) == plain(y) or name in _NOT_A_CHANGE or passes(name, own):
            continue
        if name == "model" and _last(x) == _last(y):  # in any folder
            continue
        unlike[name] = (x, y)
    return unlike


def _same_model(x: Scalar | None, y: Scalar | None) -> bool:
    """Compare names without the words for a quantization."""
    return _QUANTIZATION.sub("", _last(x)) == _QUANTIZATION.sub("", _last(y))


def _last(path: Scalar | None) -> str:
    return str(path).rstrip("/").rpartition("/")[2]


def _listed(
    things: Sequence[tuple[str, Scalar | None, Scalar | None]], sure: bool = False
) -> str:
    """Return settings with both values in words. `sure`: a flag that a side lacks was not given."""

    def value(name: str, v: Scalar | None) -> str:
        absent = "not set" if sure and name.startswith("--") else "unknown"
        return absent if v is None else setting(v)

    return ", ".join(
        f"{name.replace('_', ' ')} {value(name, x)} / {value(name, y)}"
        for name, x, y in things
    )
