"""Where the time went, as text: a bar of parts, a table of them, the slowest requests; and what differs between two."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from dyno.errors import UsageError
from dyno.explain.difference import BASIS
from dyno.explain.explain import Explained
from dyno.explain.split import title_of
from dyno.facts.explanation import (
    Explanation,
    Part,
    PartChange,
    PartDifference,
    RequestParts,
)
from dyno.numbers import UNKNOWN, count, many, number, percent
from dyno.report.table import terminal, text_table
from dyno.screen import styled, wrapped
from dyno.units import NS_PER_MS

_BAR = 60  # characters of a whole latency
_SHADES = "█▓▒░▚▞▤▥▦▧"
_SHOWN = 0.0005  # share from which a part has a line; the rest always has one
_NAMED = 3  # parts of a single request
_SMALL_SHARE = 0.02  # of its latency: smaller parts aren't named


def run_text(each: Explained, request: int | None = None) -> str:
    """Return a run explained. `request`: that one instead of the slowest."""
    e = each.explanation
    if not e.requests:
        return "\n".join(wrapped(_without_completed(e)))
    shown = shown_parts(e.parts)
    notes = [line for note in e.notes for line in wrapped(note, "Note: ", "  ")]
    if request is None:
        title, requests = "Slowest requests", [*_tail(e)]
    else:
        title, requests = f"Request {request}", [*_request(_one(each, request))]
    title = f"{title}, with times since the load began"
    blocks = [
        wrapped(_head(e)),
        [_bar(shown)],
        _table(e, shown),
        notes,
        [styled(title, "best"), *requests],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def with_request(each: Explained, request: int | None) -> Explanation:
    """Return the explanation with this request instead of the slowest ones."""
    if request is None:
        return each.explanation
    one = _one(each, request)
    return msgspec.structs.replace(each.explanation, tail=[one], tail_groups=[[request]])


def shown_parts(parts: Sequence[Part]) -> list[Part]:
    return [p for p in parts if abs(p.share) >= _SHOWN or not p.covers]


def _head(e: Explanation) -> str:
    failed = f", without {many(e.failed, 'failed one')}" if e.failed else ""
    left_out = f"; {count(e.left_out)} had no token" if e.left_out else ""
    title = f" ({e.title})" if e.title else ""
    return (
        f"{e.run}{title}: {many(e.requests, 'request')}{failed}{left_out}. Mean latency {number(e.mean_ms)} ms, from "
        "due to the last token."
    )


def _without_completed(e: Explanation) -> str:
    title = f" ({e.title})" if e.title else ""
    counts = [f"{count(e.failed)} failed"] if e.failed else []
    if e.left_out:
        counts.append(f"{count(e.left_out)} had no token")
    of_them = f" ({', '.join(counts)})" if counts else ""
    return f"{e.run}{title}: no request completed with a token{of_them}. There is nothing to explain."


def _bar(parts: Sequence[Part]) -> str:
    """Return a bar of the latency. Each part has its own sign, which the table repeats."""
    cells = ""
    done = 0.0
    for i, part in enumerate(parts):
        done += max(part.share, 0)
        cells += sign(i) * (round(done * _BAR) - len(cells))
    return cells[:_BAR]


def sign(place: int) -> str:
    return _SHADES[place % len(_SHADES)]


def _table(e: Explanation, shown: Sequence[Part]) -> list[str]:
    rows = []
    for i, part in enumerate(shown):
        rows.append(
            [
                f"{sign(i)} {part.title}",
                percent(part.share),
                number(part.mean_ms),
                bounds_text(part, e.requests),
                ", ".join(part.sources),
                part.about,
            ]
        )
    rows.append(
        ["  sum", percent(sum(p.share for p in e.parts)), number(e.mean_ms), "", "", ""]
    )
    titles = ["part", "share", "mean (ms)", "bounds (ms)", "source", "how"]
    return terminal(text_table(titles, rows, right=(1, 2, 3), keep=(0, 1, 2)))


def bounds_text(part: Part, requests: int) -> str:
    if part.low_ns == part.high_ns or not requests:
        return ""
    low, high = (
        number(n / requests / NS_PER_MS, digits=3) for n in (part.low_ns, part.high_ns)
    )
    return f"{low} to {high}"


def _one(each: Explained, number_: int) -> RequestParts:
    places = each.columns.number[each.split.rows].tolist()
    if number_ not in places:
        raise UsageError(
            f"--request {number_}: no completed request of this run has this number."
        )
    return each.happenings.request(places.index(number_))


def _tail(e: Explanation) -> Iterator[str]:
    """Yield the slowest requests. Those with alike parts and neighbours are one entry, with the slowest's events."""
    requests = {r.index: r for r in e.tail}
    for group in e.tail_groups:
        first, *others = (requests[index] for index in group)
        if not others:
            yield from _request(first)
            continue
        yield from _group_head([first, *others], len(e.tail))
        yield from _parts_and_events(first)


def _group_head(group: Sequence[RequestParts], whole: int) -> Iterator[str]:
    numbers = ", ".join(str(r.index) for r in group)
    latency = _range([r.latency_ms for r in group])
    due = _range([r.due_s for r in group], _moment)
    prompt = _range([r.prompt_tokens for r in group], count)
    output = _range([r.output_tokens for r in group], count)
    text = (
        f"{len(group)} of the {whole} are alike (requests {numbers}): {latency} ms, due at {due} s, {prompt} tokens "
        f"in, {output} out. The slowest:"
    )
    yield from wrapped(text, "  ", "    ")


def _range(values: Sequence[float], text: Callable[[float], str] = number) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _moment(since_begin_s: float) -> str:
    return f"{since_begin_s:,.3f}"


def _request(r: RequestParts) -> Iterator[str]:
    yield (
        f"  request {r.index}: {number(r.latency_ms)} ms, due at {_moment(r.due_s)} s, "
        f"{many(r.prompt_tokens, 'token')} in, {count(r.output_tokens)} out"
    )
    yield from _parts_and_events(r)


def _parts_and_events(r: RequestParts) -> Iterator[str]:
    named = [
        (value, title_of([] if name == "rest" else name.split("+")))
        for name, value in r.parts_ms.items()
    ]
    largest = sorted(named, reverse=True)[:_NAMED]
    parts = [
        f"{title} {number(value)} ms ({percent(value / r.latency_ms)})"
        for value, title in largest
        if r.latency_ms and value >= _SMALL_SHARE * r.latency_ms
    ]
    yield from wrapped(", ".join(parts), "    ")
    for event in r.events:
        text = (
            f"at {_moment(event.at_s)} s, {number(1000 * event.length_s)} ms: {event.text}"
        )
        yield from wrapped(text, "    · ", "      ")


# ---- two sides ----


def difference_text(d: PartDifference) -> str:
    notes = [line for note in d.notes for line in wrapped(note, "Note: ", "  ")]
    if d.change is None:
        return "\n".join([*wrapped(d.sentence), *notes])
    rows = [_change_row(p) for p in d.parts if abs(p.points) >= 0.05 or not p.covers]
    rows.append(_change_row(d.change))
    titles = [
        "part",
        f"{d.a} (ms)",
        f"{d.b} (ms)",
        "change (ms)",
        "95 % interval (ms)",
        "points",
    ]
    table = terminal(text_table(titles, rows, right=(1, 2, 3, 4, 5), keep=(0, 3)))
    per = f"Per {d.per}; points are percent of the latency of {d.a}. {BASIS[d.by]}"
    return "\n".join([*wrapped(d.sentence), "", *table, "", *wrapped(per), *notes])


def _change_row(p: PartChange) -> list[str]:
    interval = UNKNOWN
    if p.low_ms is not None and p.high_ms is not None:
        interval = f"{number(p.low_ms, digits=3)} to {number(p.high_ms, digits=3)}"
    return [
        p.title,
        number(p.a_ms),
        number(p.b_ms),
        number(p.change_ms, digits=3),
        interval,
        f"{p.points:+.1f}",
    ]
