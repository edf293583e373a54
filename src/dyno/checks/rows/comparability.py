"""Rows that stand beside each other: was the same work done, and is one thing changed?"""

from collections import Counter
from collections.abc import Iterator, Sequence

from dyno.facts.definition import one_meaning
from dyno.facts.finding import Finding
from dyno.facts.imported import Row
from dyno.facts.load import words
from dyno.measure.model_name import named, related
from dyno.measure.points import (
    alike_prompts,
    at,
    input_each,
    level,
    output_each,
    point,
    sent,
    subject,
    together,
    unsaid,
)

WORK, FAR = 0.1, 0.25  # tokens of a request, apart
SERVED = 0.05  # of success rates, apart


def work(rows: Sequence[Row]) -> Iterator[Finding]:
    """Tokens read and made for a request, of rows under the same load."""
    for group in _beside(rows):
        ranked = [(r, w) for r in group if (w := _work(r))]
        if len(ranked) < 2:
            continue
        for which, name in ((0, "read"), (1, "made")):
            told = [(w[which], r) for r, w in ranked]
            (low, a), (high, b) = min(told, key=lambda t: t[0]), max(told, key=lambda t: t[0])
            # Of one and the same, a little is chance.
            enough = WORK if subject(a) != subject(b) else FAR
            if not low or high / low - 1 <= enough or min(a.get("completed") or 0, b.get("completed") or 0) < 10:
                continue
            same = a.get("total_input_tokens") == b.get("total_input_tokens")  # the very same prompts
            tokens = "total_input_tokens" if which == 0 else "total_output_tokens"
            yield Finding(
                "comparability.work_differs",
                "void"
                if subject(a) != subject(b) and high / low - 1 > FAR and (same or not unsaid(point(a)))
                else "doubt",
                f"At {words(point(a))}, {high:,.1f} tokens were {name} for a request of {subject(b)!r} and "
                f"{low:,.1f} of {subject(a)!r} ({high / low - 1:+.0%}): requests/s, duration and latency "
                "are of different work.",
                "Compare tokens/s, or make answers equally long (--ignore-eos) and send the same prompts.",
                at([a, b], tokens, "completed"),
            )


def _beside(rows: Sequence[Row]) -> Iterator[list[Row]]:
    for group in together(rows):
        if group[0].kind == "serve":
            yield group


def _work(row: Row) -> tuple[float, float] | None:
    read, made = input_each(row), output_each(row)
    return (read, made) if read is not None and made is not None else None


def success(rows: Sequence[Row]) -> Iterator[Finding]:
    for group in _beside(rows):
        told = [((r.get("completed") or 0.0) / s[0], r) for r in group if (s := sent(r)) and s[0]]
        if len(told) < 2:
            continue
        (low, a), (high, b) = min(told, key=lambda t: t[0]), max(told, key=lambda t: t[0])
        if high - low > SERVED and high <= 1.0:
            yield Finding(
                "comparability.success_differs",
                "void" if subject(a) != subject(b) else "doubt",
                f"At {words(point(a))}, {subject(b)!r} answered {high:.0%} of its requests and "
                f"{subject(a)!r} {low:.0%}: its figures are of those that it could answer.",
                "Rates and latencies of survivors aren't comparable with those of all. Make both answer all.",
                at([a, b], "completed"),
            )


def dropped(rows: Sequence[Row]) -> Iterator[Finding]:
    """Two series of rising counts of requests, in which one falls behind: nobody tells how many were sent."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind == "serve" and row.form == "csv" and sent(row) is None and row.get("completed"):
            by_file.setdefault(row.file, []).append(row)
    files = list(by_file)
    for i, one in enumerate(files):
        for other in files[i + 1 :]:
            yield from _dropped(by_file[one], by_file[other])


def _dropped(a: list[Row], b: list[Row]) -> Iterator[Finding]:
    counts = [[int(r.get("completed") or 0) for r in rows] for rows in (a, b)]
    same = 0
    while same < min(map(len, counts)) and counts[0][same] == counts[1][same]:
        same += 1
    if same < 2 or same == min(map(len, counts)):
        return
    # As far as both go they rise alike; then one goes on by the same step, and the other falls.
    for short, full, rows, others in ((counts[0], counts[1], a, b), (counts[1], counts[0], b, a)):
        rising = full[: same + 1] == sorted(set(full[: same + 1]))
        if short[same] < short[same - 1] and rising:
            yield Finding(
                "requests.failed",
                "void" if short[same] < 0.5 * full[same] else "doubt",
                f"{short[same]:,} requests were completed in {rows[same].file} where {full[same]:,} were in "
                f"{others[same].file}, after {', '.join(f'{n:,}' for n in short[:same])} in both: "
                f"{full[same] - short[same]:,} of {full[same]:,} are missing ({1 - short[same] / full[same]:.0%}).",
                "A server that drops requests is faster for the rest: its rates and latencies are of the survivors.",
                at([rows[same], others[same]], "completed"),
            )


def loads(rows: Sequence[Row]) -> Iterator[Finding]:
    """One series was measured under loads under which another wasn't."""
    by_file: dict[tuple[str, str], dict[str, set[float]]] = {}
    first: dict[str, Row] = {}
    for row in rows:
        if (at_level := level(row)) and row.form == "csv" and row.kind == "serve":
            who = f"{row.file}\0{subject(row)}"
            first.setdefault(who, row)
            by_file.setdefault((row.kind, at_level[0]), {}).setdefault(who, set()).add(at_level[1])
    for (_, name), there in by_file.items():
        keys = list(there)
        for i, one in enumerate(keys):
            for other in keys[i + 1 :]:
                a, b = there[one], there[other]
                more, few = (one, other) if len(a) >= len(b) else (other, one)
                extra = sorted(v for v in there[more] - there[few] if v > max(there[few]))
                if len(a & b) >= 2 and extra and alike_prompts(first[one], first[other]):
                    yield Finding(
                        "comparability.loads_differ",
                        "note",
                        f"{_who(more)} has results for {name.replace('_', ' ')} "
                        f"{', '.join(f'{v:g}' for v in extra[:6])}, and {_who(few)} has none beyond "
                        f"{max(there[few]):g}.",
                        "Say why the others are missing: they may have failed.",
                    )  # fmt: skip


def _who(key: str) -> str:
    file, _, name = key.partition("\0")
    return file if name == file else f"{name} ({file})" if name else file


def models(rows: Sequence[Row]) -> Iterator[Finding]:
    """A model that was taught to answer beside the one that wasn't."""
    seen: set[tuple[str, str]] = set()
    for group in _beside(rows):
        told = {named(str(r.setting("model"))): r for r in group if r.setting("model")}
        names = list(told)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                if a.taught != b.taught and related(a, b) and (pair := tuple(sorted((a.name, b.name)))) not in seen:
                    seen.add((pair[0], pair[1]))
                    yield Finding(
                        "comparability.model_differs",
                        "doubt",
                        f"{a.name} and {b.name} are compared: one was taught to answer, the other wasn't, so that "
                        "they end at other places and make other numbers of tokens.",
                        "Use the same model for both.",
                        [told[m].setting_location("model") for m in (a, b)],
                    )  # fmt: skip


def accelerators(rows: Sequence[Row]) -> Iterator[Finding]:
    for group in together(rows):
        told = {n: r for r in group if (n := r.number("accelerators"))}
        if len(told) > 1:
            low, high = min(told), max(told)
            yield Finding(
                "comparability.parts_of_a_node",
                "note",
                f"{subject(told[high])!r} has {high:g} accelerators and {subject(told[low])!r} {low:g}.",
                "Compare what each accelerator does, or what each dollar buys.",
                at([told[low], told[high]]),
            )
            return


def definitions(rows: Sequence[Row]) -> Iterator[Finding]:
    """The same word with different meanings."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        for name, figure in row.figures.items():
            if figure.definition and name.endswith("_ms"):
                found.setdefault(name.removesuffix("_ms").rpartition("_")[2], Counter())[figure.definition] += 1
    apart = {s: told for s, told in found.items() if not one_meaning(told)}
    if apart:
        yield Finding(
            "comparability.definitions",
            "note",
            f"The tools mean different things by {', '.join(s.upper() for s in apart)}: "
            + "; ".join(f"{s.upper()} {' / '.join(sorted(told))}" for s, told in apart.items())
            + ".",
            "Don't put them in one column. METHOD.md says what each is.",
        )
