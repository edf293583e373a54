"""Were prompts processed, or found in a cache?"""

from collections.abc import Iterator, Sequence

from dyno.facts.finding import Finding
from dyno.facts.imported import Row
from dyno.measure.model_name import named
from dyno.measure.points import ASIDE, at, input_each, point, subject

FLAT = 1.15  # P99 over median
STEP = 1.3  # first token over one step
FASTER = 1.5  # than the prompt's processing was measured to be
HITS = 0.01
RANDOM = ("random", "random-ids", "synthetic")


def warm(rows: Sequence[Row]) -> Iterator[Finding]:
    """A first token that comes after a single step, whatever the prompt: alone, with prompts of all lengths."""
    for row in rows:
        middle, tail, step = (row.get(n) for n in ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms"))
        read, first = input_each(row), row.get("mean_ttft_ms")
        if row.kind != "serve" or row.number("concurrency") != 1 or not (middle and tail and step and read and first):
            continue
        varied = str(row.setting("dataset") or "").lower() not in ("", *RANDOM)
        if read < 64 or middle > STEP * step or tail > FLAT * middle or not varied:
            continue
        witness = _witness(row, rows, read, first)
        yield Finding(
            "cache.warm",
            "doubt" if witness else "note",
            f"{subject(row)}: the first token took {middle:,.1f} ms at the median and {tail:,.1f} at P99, about one "
            f"step ({step:,.1f} ms), with {read:,.0f} prompt tokens on average"
            + (f", where {witness[0]} needs {read / witness[1] * 1000:,.0f} ms for so many." if witness else "."),
            "So it is when prompts lie in the prefix cache from an earlier run. Empty it, or restart the server.",
            at([row], "median_ttft_ms", "p99_ttft_ms") + (witness[2] if witness else []),
        )


def _witness(row: Row, rows: Sequence[Row], read: float, first_ms: float) -> tuple[str, float, list[str]] | None:
    """The fastest prompt processing of a model of this size in the same papers."""
    size = named(str(row.setting("model") or row.label)).billions
    found = [
        r for r in rows
        if r.kind == "micro" and str(r.setting("test") or "").startswith("pp") and r.get("speed") and size
        and abs((r.number("parameters") or 0) / 1e9 / size - 1) < 0.15
    ]  # fmt: skip
    if not found:
        return None
    best = max(found, key=lambda r: r.figures["speed"].value)
    speed = best.figures["speed"].value
    if read / speed * 1000 < FASTER * first_ms:
        return None
    return (
        f"{best.setting('test')} of {best.label or best.setting('model')} at {speed:,.0f} tok/s",
        speed,
        at([best], "speed"),
    )


def hits(rows: Sequence[Row]) -> Iterator[Finding]:
    for row in rows:
        found, read = row.get("cached_input_tokens"), row.get("total_input_tokens")
        if found and read and found > HITS * read:
            drawn = str(row.setting("dataset") or "").lower() in RANDOM
            yield Finding(
                "cache.hits",
                "doubt" if drawn else "note",
                f"{found:,.0f} of {read:,.0f} prompt tokens ({found / read:.0%}) came from the prefix cache"
                + (", with prompts that are said to be random." if drawn else "."),
                "They cost nothing, so that time to first token and throughput are too good. Use another seed, or "
                "empty the cache before each run." if drawn else "Say so with the figures.",
                at([row], "cached_input_tokens"),
            )  # fmt: skip


def later_faster(rows: Sequence[Row]) -> Iterator[Finding]:
    """The same thing again, and the first tokens come much sooner."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        # A first token that waits in a queue depends on all else.
        queue = (row.get("mean_ttft_ms") or 0) / 1000 > 0.05 * (row.get("duration_s") or 0)
        if row.kind == "serve" and row.form != "table" and row.get("mean_ttft_ms") and point(row) and not queue:
            told = tuple(sorted((k, str(s.value)) for k, s in row.settings.items() if k not in ASIDE))
            found.setdefault((row.file, told, row.label, row.section), []).append(row)
    for same in found.values():
        first, later = (
            same[0],
            [r for r in same[1:] if r.get("total_input_tokens") == same[0].get("total_input_tokens")],
        )
        if not later or not first.get("total_input_tokens"):
            continue
        best = min(later, key=lambda r: r.figures["mean_ttft_ms"].value)
        a, b = first.figures["mean_ttft_ms"].value, best.figures["mean_ttft_ms"].value
        if b < 0.6 * a and (best.get("mean_tpot_ms") or 0) > 0.8 * (first.get("mean_tpot_ms") or 0):
            yield Finding(
                "cache.later_faster",
                "doubt",
                f"{subject(first)}: the same load again has its first tokens after {b:,.0f} ms, where they took "
                f"{a:,.0f} at first, and is no faster otherwise.",
                "The prompts of the first run lay in the prefix cache, or the first run was the warm-up.",
                at([first, best], "mean_ttft_ms"),
            )
