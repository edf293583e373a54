"""May two settings be compared at all, and what differs between them? METHOD.md, Comparing, has each code."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dyno.checks import rig
from dyno.facts.definition import DEFINITIONS, one_meaning
from dyno.facts.finding import Finding
from dyno.facts.imported import Row, Scalar
from dyno.facts.load import COMPARED, plain
from dyno.facts.measured import Measured
from dyno.facts.metric import words
from dyno.measure.estimate import ALLOWED
from dyno.measure.pairs import Group, conflicts, passes, requests_of

LENGTHS = 0.02  # tokens a request: more than rounding and an end token here and there
LENGTHS_VOID = 0.05
FAILED = 0.01  # share of the requests
FAILED_VOID = 0.1

# What follows from another difference, and is no second one.
_FOLLOWS = {
    "engine": ("engine_version", "backend", "endpoint", "--base-url", "args"),
    "tool": ("backend", "endpoint"),
    "model": ("tokenizer", "max_model_len", "revision"),
    "quantization": ("model", "dtype"),
    "accelerator": ("accelerators",),
    "tensor_parallel": ("accelerators",),
    "pipeline_parallel": ("accelerators",),
    "replicas": ("accelerators", "--base-url"),
}
_NO_THING = {*COMPARED, "num_prompts", "tokenizer", "model_bytes", "parameters"}
_QUANTIZATION = re.compile(r"[-_.]?(i?q\d\w*|[bf]+p?\d+|int\d|awq|gptq|w\d+a\d+)", re.I)


class Objection(NamedTuple):
    """A finding, and the figures that it speaks against: none, some, or (None) all of the pairing."""

    finding: Finding
    against: frozenset[str] | None = frozenset()


class Two(NamedTuple):
    """What is compared."""

    a: Group
    b: Group
    metrics: Sequence[str]

    @property
    def rows(self) -> tuple[Row, Row]:
        return self.a[0].row, self.b[0].row

    def latencies(self, *stems: str) -> set[str]:
        return {m for m in self.metrics if any(m.endswith(f"_{stem}_ms") for stem in stems)}


def verdicts(two: Two) -> Iterator[Objection]:
    for name, group in (("A", two.a), ("B", two.b)):
        codes = {level: _codes(group, level) for level in ("void", "doubt")}
        if any(m.verdict == "void" for m in group):
            yield Objection(
                Finding(
                    "comparability.void_side",
                    "void",
                    f"{name} is void by itself: {codes['void'] or 'its file says so'}.",
                    "Measure it again: what is wrong compares with nothing.",
                ),
                None,
            )
        elif any(m.verdict == "doubtful" for m in group):
            yield Objection(
                Finding(
                    "comparability.doubtful_side",
                    "doubt",
                    f"{name} is doubtful by itself: {codes['doubt'] or 'its file says so'}.",
                    "`dyno runs show` has the reasons. What moved one side alone looks like a difference.",
                )
            )


def _codes(group: Group, level: str) -> str:
    found = [f.code for m in group for f in m.findings if f.level == level]
    return ", ".join(
        f"{c} ({found.count(c)} of {len(group)} runs)" if len(group) > 1 else c for c in dict.fromkeys(found)
    )


def load(two: Two) -> Iterator[Objection]:
    """Only where it was asked for, such a pair comes here."""
    if unlike := list(conflicts(*two.rows)):
        yield Objection(
            Finding(
                "comparability.load",
                "void",
                f"Workload or load differ: {_listed(unlike)}.",
                "Measure both under the same load: the figures differ by the load alone.",
            ),
            None,
        )


def requests(two: Two) -> Iterator[Objection]:
    counts = [_mean(group, lambda m: requests_of(m.row)) for group in (two.a, two.b)]
    if counts[0] and counts[1] and counts[0] != counts[1]:
        yield Objection(
            Finding(
                "comparability.requests",
                "doubt",
                f"A had {counts[0]:g} requests, B {counts[1]:g}: start and drain are a larger part of the shorter run.",
                "Send as many to both.",
            )
        )


def prompts(two: Two) -> Iterator[Objection]:
    one, other = ({m.prompts_sha256 for m in group} - {None} for group in (two.a, two.b))
    a, b = two.rows
    tokenizers = (a.setting("tokenizer"), b.setting("tokenizer"))
    if all(tokenizers) and tokenizers[0] != tokenizers[1] and not (one and one == other):
        yield Objection(
            Finding(
                "comparability.tokenizers",
                "doubt",
                f"Prompts were made with two tokenizers ({tokenizers[0]} and {tokenizers[1]}): they are other texts, "
                "and a token is not the same amount of text.",
                "Compare by text (characters, words), or with prompts from one file.",
            )
        )
    elif (names := (a.setting("dataset"), b.setting("dataset"))) and all(names) and names[0] != names[1]:
        yield Objection(
            Finding(
                "comparability.prompts",
                "doubt",
                f"{a.tool or 'A'} took {names[0]}, {b.tool or 'B'} {names[1]}: other prompts, by other tools.",
                "Give both the same file of prompts.",
            )
        )
    elif one and other and one != other:
        seeds = (a.setting("seed"), b.setting("seed"))
        which = f" (seeds {seeds[0]} and {seeds[1]})" if seeds[0] != seeds[1] and len(two.a) == len(two.b) == 1 else ""
        yield Objection(
            Finding(
                "comparability.prompts",
                # Random ones of the same lengths are as good; of repeats, one side may have had some more.
                "note" if a.setting("dataset") == "random" or one <= other or other <= one else "doubt",
                f"The two sides did not get the same prompts{which}.",
                "Give both the same seed, dataset and tokenizer; lengths and contents move latencies.",
            )
        )


def lengths(two: Two) -> Iterator[Objection]:
    same = {m.prompts_sha256 for m in two.a} == {m.prompts_sha256 for m in two.b} != {None}
    by_time = {"request_throughput", "request_goodput", "duration_s"}
    for name, figure, against in (
        ("output", "total_output_tokens", by_time | two.latencies("e2el", "latency")),
        (
            "input",
            "total_input_tokens",
            by_time | {"total_token_throughput", "input_throughput"} | two.latencies("ttft"),
        ),
    ):
        a, b = (_per_request(group, figure) for group in (two.a, two.b))
        if not a or not b or abs(b / a - 1) <= LENGTHS:
            continue
        void = abs(b / a - 1) > LENGTHS_VOID and not (name == "input" and same)
        hit = [m for m in two.metrics if m in against] if void else []
        told = f" Not comparable then: {', '.join(map(words, hit))}." if hit else ""
        yield Objection(
            Finding(
                f"comparability.{name}_length",
                "doubt" if not (name == "input" and same) else "note",
                f"A had {a:,.1f} {name} tokens a request, B {b:,.1f} ({b / a - 1:+.0%}): other work for each.{told}",
                "Compare tokens/s, or fix the lengths (--ignore-eos, --random-output-len) and measure again."
                if name == "output"
                else "Give both prompts of the same length.",
            ),
            frozenset(hit),
        )


def failures(two: Two) -> Iterator[Objection]:
    a, b = (_failed(group) for group in (two.a, two.b))
    if a is None or b is None or abs(a - b) <= FAILED:
        return
    void = abs(a - b) >= FAILED_VOID
    yield Objection(
        Finding(
            "comparability.failures",
            "void" if void else "doubt",
            f"{a:.1%} of A's requests failed and {b:.1%} of B's: the side that fails more is left with less to do, and "
            "its latencies are those of the requests that it could serve.",
            "Find out why they fail before comparing speeds.",
        ),
        None if void else frozenset(),
    )


def definitions(two: Two) -> Iterator[Objection]:
    a, b = two.rows
    other: dict[str, list[str]] = {}
    near: dict[str, list[str]] = {}
    for metric in two.metrics:
        x, y = a.figures.get(metric), b.figures.get(metric)
        if x is None or y is None:
            continue
        said = [DEFINITIONS.get(figure.definition, "") for figure in (x, y)]
        if said[0] != said[1] and one_meaning((x.definition, y.definition)) and all(said):
            near.setdefault(f"A: {said[0]} ({x.definition}); B: {said[1]} ({y.definition})", []).append(metric)
        elif said[0] != said[1] and all(said):
            other.setdefault(f"A: {said[0]} ({x.definition}); B: {said[1]} ({y.definition})", []).append(metric)
        elif said[0] != said[1]:
            other.setdefault(f"it isn't known what {'A' if not said[0] else 'B'} means by it", []).append(metric)
    for why, metrics in near.items():
        yield Objection(
            Finding(
                "comparability.definitions",
                "note",
                f"{', '.join(map(words, metrics))}: told in other words, and the same but for streams that begin or "
                f"end with a chunk without text. {why}.",
                "Look at the first chunk of a stream where it matters.",
            ),
            frozenset(),
        )
    for why, metrics in other.items():
        yield Objection(
            Finding(
                "comparability.definitions",
                "note",
                f"{', '.join(map(words, metrics))}: the two sides don't mean the same. {why[0].upper()}{why[1:]}.",
                "Compare figures of one tool, or those that all reckon alike (throughput).",
            ),
            frozenset(metrics),
        )


def changes(two: Two) -> Iterator[Objection]:
    things = things_changed(*two.rows)
    told = _listed(things)
    names = [row.series or row.label for row in two.rows]
    if not things and all(names) and names[0] != names[1]:
        told, things = f"what their author calls {names[0]} and {names[1]}", [("series", names[0], names[1])]
    if len(things) == 1:
        code, level, text = "comparability.subject", "note", f"What differs is {told}."
        advice = "That is what the figures compare, as far as settings are told."
    elif things:
        code, level, text = "comparability.several_changes", "doubt", f"{len(things)} things differ at once: {told}."
        advice = "It can't be told which of them made the difference. Change one at a time."
    else:
        code, level, text = "comparability.nothing_changed", "note", "No setting that is told differs between the two."
        advice = "A difference then is something that isn't told, or chance."
    yield Objection(Finding(code, level, text, advice))  # type: ignore[arg-type]


def accelerators(two: Two) -> Iterator[Objection]:
    a, b = two.rows
    counts = (a.number("accelerators"), b.number("accelerators"))
    if not counts[0] or not counts[1] or counts[0] == counts[1]:
        return
    speeds = [_mean(g, lambda m: m.row.get("output_throughput") or m.row.get("speed")) for g in (two.a, two.b)]
    each = ""
    if speeds[0] and speeds[1]:
        each = f" For each: {speeds[0] / counts[0]:,.1f} and {speeds[1] / counts[1]:,.1f} tokens/s."
    yield Objection(
        Finding(
            "comparability.accelerators",
            "doubt",
            f"A used {counts[0]:g} accelerators and B {counts[1]:g}.{each}",
            "Compare whole machines, or the throughput of each accelerator at the latency that is wanted.",
        )
    )


def single_runs(two: Two) -> Iterator[Objection]:
    if len(two.a) == len(two.b) == 1 and two.rows[0].kind != "quality":
        yield Objection(
            Finding(
                "comparability.single_runs",
                "note",
                "One run on each side: the intervals hold what differs between a run's requests, and for what differs "
                f"from run to run an allowance of {100 * ALLOWED:g} %, which may be too little.",
                "Repeat both (`repeats = 3` in a study) before a difference of a few percent is called real.",
            )
        )


def rigs(two: Two) -> Iterator[Objection]:
    a, b = two.a[0].rig, two.b[0].rig
    if a is not None and b is not None:
        yield from (Objection(finding) for finding in rig.differences(a, b))


CHECKS: tuple[Callable[[Two], Iterator[Objection]], ...] = (
    verdicts, load, requests, prompts, lengths, failures, definitions, changes, accelerators, single_runs, rigs,
)  # fmt: skip


def examine(two: Two) -> list[Objection]:
    return [objection for check in CHECKS for objection in check(two)]


def things_changed(a: Row, b: Row) -> list[tuple[str, Scalar | None, Scalar | None]]:
    """Settings that differ, without those that follow from another one that does."""
    sure = a.form == b.form == "run"
    unlike: dict[str, tuple[Scalar | None, Scalar | None]] = {}
    for name in dict.fromkeys((*a.settings, *b.settings)):
        x, y = a.setting(name), b.setting(name)
        if name in _NO_THING or passes(name) or plain(x) == plain(y) or (not sure and (x is None or y is None)):
            continue
        if name == "model" and _last(x) == _last(y):  # wherever it lies
            continue
        unlike[name] = (x, y)
    if a.tool != b.tool and a.tool and b.tool:
        unlike["tool"] = (a.tool, b.tool)
    follows = {name: set(of) for name, of in _FOLLOWS.items() if name in unlike}
    if "model" in unlike and not _same_model(*unlike["model"]):
        follows.get("quantization", set()).discard("model")
    followed = set().union(*follows.values())
    return [(name, *values) for name, values in unlike.items() if name not in followed]


def _same_model(x: Scalar | None, y: Scalar | None) -> bool:
    """But for the words that tell its quantization."""
    return _QUANTIZATION.sub("", _last(x)) == _QUANTIZATION.sub("", _last(y))


def _last(path: Scalar | None) -> str:
    return str(path).rstrip("/").rpartition("/")[2]


def _listed(things: Sequence[tuple[str, Scalar | None, Scalar | None]]) -> str:
    def value(v: Scalar | None) -> str:
        return "not told" if v is None else f"{v:g}" if isinstance(v, float) else str(v)

    return ", ".join(f"{name.replace('_', ' ')} {value(x)} / {value(y)}" for name, x, y in things)


def _mean(group: Group, of: Callable[[Measured], float | None]) -> float | None:
    told = [v for m in group if (v := of(m)) is not None]
    return sum(told) / len(told) if told else None


def _per_request(group: Group, figure: str) -> float | None:
    told = [(t, n) for m in group if (t := m.row.get(figure)) is not None and (n := m.row.get("completed"))]
    return sum(t for t, _ in told) / sum(n for _, n in told) if told else None


def _failed(group: Group) -> float | None:
    told = [
        (f, f + n)
        for m in group
        if (f := m.row.get("failed")) is not None and (n := m.row.get("completed")) is not None
    ]
    sent = sum(n for _, n in told)
    return sum(f for f, _ in told) / sent if sent else None
