"""Two results that are one: the same twice, or one multiplied."""

import re
from collections.abc import Iterator, Sequence

from dyno.facts.finding import Finding
from dyno.facts.imported import Row
from dyno.facts.load import LOAD
from dyno.facts.metric import THROUGHPUTS
from dyno.measure.points import at, point, settings, subject

NEAR, NEARLY = 0.001, 0.0025
_TELLING = (
    "duration_s", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "mean_itl_ms",
    "p99_itl_ms", "mean_e2el_ms", "total_token_throughput", "output_throughput", "mean_latency_ms",
)  # fmt: skip
_KIND = re.compile(r"(?:iq|q)\d_[a-z0-9]+(?:_[sml])?|bf16|fp16|f16")
_SUBJECT = ("model", "quantization", "engine", "series", "accelerator", "tensor_parallel", "kv_cache_dtype")
SAME = 6  # figures, that a copy has at least
MOST, NEIGHBOURS = 1_000, 20  # rows that are held against each other


def copies(rows: Sequence[Row]) -> Iterator[Finding]:
    """One result that stands several times in one file, in the same form."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        told = tuple(sorted((n, f.value) for n, f in row.figures.items()))
        if row.kind == "serve" and row.form != "table" and len(told) >= SAME and row.get("duration_s"):
            found.setdefault((row.file, row.form, told, str(sorted(settings(row).items())), point(row)), []).append(row)
    for same in found.values():
        if len(same) > 1:
            yield Finding(
                "consistency.copies",
                "note",
                f"{len(same)} results are the same in all {len(same[0].figures)} figures: one, told {len(same)} times.",
                "They are no repeats. Repeat the run for its noise.",
                at(same),
            )


def reported_twice(pairs: Sequence[tuple[Row, Row]]) -> Iterator[Finding]:
    """One note for all results that were merged with a second report of themselves."""
    if pairs:
        first, copy = pairs[0]
        said = "1 result is reported twice and counts once"
        if len(pairs) > 1:
            said = f"{len(pairs):,} results are reported more than once and count once. The first"
        yield Finding(
            "consistency.reported_twice",
            "note",
            f"{said}: {copy.location} repeats {first.location}.",
            "If these are separate runs, one of them has copied figures. Check the raw results.",
            at([row for pair in pairs for row in pair]),
        )


def twins(rows: Sequence[Row]) -> Iterator[Finding]:
    """Different things that behave the same to the last digit."""
    served = [r for r in rows if r.kind == "serve" and r.get("duration_s") and r.form != "table"][:MOST]
    served.sort(key=lambda r: r.figures["duration_s"].value)
    generated = [
        r for r in rows if r.kind == "micro" and str(r.setting("test") or "").startswith("tg") and r.get("speed")
    ]
    for i, a in enumerate(served):
        for b in served[i + 1 : i + 1 + NEIGHBOURS]:
            if b.figures["duration_s"].value > a.figures["duration_s"].value * (1 + NEAR):
                break
            yield from _twins(a, b, generated[:MOST])


def _twins(a: Row, b: Row, generated: Sequence[Row]) -> Iterator[Finding]:
    differs = [n for n in _SUBJECT if n in settings(a) and n in settings(b) and settings(a)[n] != settings(b)[n]]
    load = [n for n in LOAD if a.setting(n) is not None and b.setting(n) is not None and a.setting(n) != b.setting(n)]
    if not (differs or load):
        return
    both = [n for n in _TELLING if a.get(n) and b.get(n)]
    if len(both) < 4 or (a.get("completed") or 0) < 10:
        return
    equal = [n for n in both if a.get(n) == b.get(n)]
    paces = [n for n in ("mean_tpot_ms", "mean_itl_ms") if n in both]
    same = len(equal) == len(both)
    near = bool(paces) and all(_off(a, b, n) < NEARLY for n in paces) and not load and point(a) == point(b)
    if not (same or near):
        return
    what = " and ".join(f"{n.replace('_', ' ')} {settings(a)[n]} / {settings(b)[n]}" for n in differs) or ", ".join(
        f"{n} {a.setting(n)} / {b.setting(n)}" for n in load
    )
    text = (
        f"Two results with {what} are the same in all {len(both)} figures."
        if same
        else f"Results with {what} took {a.get('duration_s'):,.2f} and {b.get('duration_s'):,.2f} s, with "
        + ", ".join(f"{n} {a.get(n):,.2f} and {b.get(n):,.2f}" for n in paces)
        + "."
    )
    witness = _witness(a, b, generated) if not same else None
    yield Finding(
        "consistency.twins",
        "void" if witness or same else "doubt",
        text + (f" {witness[0]}" if witness else ""),
        "One server was measured twice: a client's --model doesn't choose what is served. Ask the server what it is.",
        at([a, b], "duration_s", "mean_itl_ms") + (witness[1] if witness else []),
    )


def _off(a: Row, b: Row, name: str) -> float:
    x, y = a.figures[name].value, b.figures[name].value
    return abs(x / y - 1) if y else 1.0


def _witness(a: Row, b: Row, generated: Sequence[Row]) -> tuple[str, list[str]] | None:
    """Token generation of both models, measured by another tool in the same papers."""
    speeds = []
    for row in (a, b):
        name = str(row.setting("quantization") or row.setting("model") or "").lower()
        found = [
            r for r in generated
            if _alike(name, f"{r.setting('model') or ''} {r.label} {r.setting('quantization') or ''}".lower())
        ]  # fmt: skip
        if not found:
            return None
        speeds.append(max(found, key=lambda r: r.figures["speed"].value))
    x, y = (r.figures["speed"].value for r in speeds)
    if min(x, y) > 0.9 * max(x, y):
        return None
    return f"Alone they make {x:,.2f} and {y:,.2f} tok/s ({speeds[0].label} / {speeds[1].label}).", at(speeds, "speed")


def _alike(name: str, other: str) -> bool:
    """llama-bench writes 'Q4_K - Medium' where a file's name says Q4_K_M."""
    kinds = _KIND.findall(name.replace("-", "_"))
    if not kinds:
        return False
    wanted = kinds[-1].replace("fp16", "f16")
    spelled = re.sub(r" ?- (small|medium|large)", lambda m: f"_{m[1][0]}", other)
    return wanted in _KIND.findall(spelled)


def multiples(rows: Sequence[Row]) -> Iterator[Finding]:
    """Rows that are others times a whole number, with the very same time: reckoned, not measured."""
    by_time: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        for name in ("duration_s", "mean_latency_ms", "mean_e2el_ms"):
            if (told := row.get(name)) and told > 0:
                by_time.setdefault((row.kind, name, told), []).append(row)
    found: dict[tuple[str, str, int, str], list[tuple[Row, Row]]] = {}
    for (_, name, _), there in by_time.items():
        for i, a in enumerate(there[:50]):
            for b in there[i + 1 : 50]:
                if (times := _multiple(a, b)) and subject(a) != subject(b):
                    low, high = (a, b) if times > 0 else (b, a)
                    found.setdefault((subject(low), subject(high), abs(times), name), []).append((low, high))
    seen: set[tuple[str, str, int]] = set()
    for (low_name, high_name, times, name), pairs in found.items():
        digits = max(_digits(low.get(name) or 0) for low, _ in pairs)
        if (low_name, high_name, times) in seen or (len(pairs) < 3 and digits < 6):
            continue
        seen.add((low_name, high_name, times))
        low, high = pairs[0]
        yield Finding(
            "comparability.multiplied",
            "void",
            f"{len(pairs)} results of {high_name!r} have the very times of {low_name!r} (such as "
            f"{low.get(name):,.8g}) and {times} times its throughput: they were reckoned, not measured.",
            "Mark them as an estimate, or measure them.",
            at([high for _, high in pairs[:6]]) + at([low]),
        )


def _multiple(a: Row, b: Row) -> int | None:
    """How many times b's throughput is a's; negative: the other way round."""
    ratios = []
    for name in reversed(THROUGHPUTS):
        x, y = a.figures.get(name), b.figures.get(name)
        if x and y and x.value and y.value:
            if min(_digits(x.value), _digits(y.value)) < 4:
                continue
            ratios.append(y.value / x.value)
    if not ratios:
        return None
    for ratio, sign in ((ratios[0], 1), (1 / ratios[0], -1)):
        whole = round(ratio)
        if 2 <= whole <= 64 and all(abs((r if sign > 0 else 1 / r) / whole - 1) < 2e-5 for r in ratios):
            return sign * whole
    return None


def _digits(value: float) -> int:
    return len(f"{value:.10g}".replace(".", "").lstrip("0"))
