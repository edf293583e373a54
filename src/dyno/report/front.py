"""Quality beside speed: each series' score, its difference from a reference, and the fastest without a loss."""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from dyno.compare.compare import pairings
from dyno.facts.comparison import Difference
from dyno.facts.entry import Entry, Number, Quality
from dyno.facts.load import Load
from dyno.facts.metric import THROUGHPUTS, metric
from dyno.measure.points import LEAST, bytes_each
from dyno.numbers import count, number, points, points_interval, score
from dyno.report.target import Contest, Limits, contests, level, small_contests

_LOSS = ("worse", "perhaps worse")  # the second is real unless many settings were compared
_MOST = 3  # settings of one sentence


def with_quality(entries: Sequence[Entry], limits: Limits) -> list[Entry]:
    """Give each entry the score of its series over all tasks; scores of single tasks have their own."""
    by_load: dict[Load, list[Entry]] = {}
    for e in entries:
        if e.kind == "quality" and e.value("score") is not None and e.verdict != "void":
            by_load.setdefault(e.load, []).append(e)
    if not by_load:
        return list(entries)
    total = max(by_load, key=lambda load: _weight(by_load[load]))
    reference = _reference(by_load[total])[0].series
    qualities = _against(reference, [by_load[total]])
    qualities |= _against(reference, [some for load, some in by_load.items() if load != total])
    by_series = {e.series: qualities[e.id] for e in by_load[total]}
    timed = {e.id for e in _timed(entries, by_series, limits)}
    out = []
    for e in entries:
        quality = qualities.get(e.id) if e.kind == "quality" else by_series.get(e.series)
        out.append(e if quality is None else replace(e, quality=replace(quality, timed=e.id in timed)))
    return out


def _weight(some: Sequence[Entry]) -> tuple[object, ...]:
    """The test that stands for quality: of most series, of all tasks together, of most items."""
    return len({e.series for e in some}), bool(some[0].settings.get("group")), _items(some[0]) or 0


def _items(e: Entry) -> int | None:
    items = e.rows[0].number("samples")
    return None if items is None else int(items)


def _reference(some: Sequence[Entry]) -> tuple[Entry, str]:
    """The series that others are compared with, and why. Never by score where precision is known: the best of many
    scores is partly luck, and all others would seem to lose."""

    def precision(e: Entry) -> tuple[float, float, bool]:
        get, name = e.settings.get, str(e.settings.get("model") or "")
        cache = get("kv_cache_dtype")
        cached = bytes_each(cache, None, "") if cache not in (None, "auto", "f16") else 2.0
        return bytes_each(get("quantization"), get("dtype"), name), cached, not get("speculative")

    best = max(some, key=precision)
    if precision(best)[0] > LEAST and any(precision(e) != precision(best) for e in some):
        return best, "it has the highest precision"
    if precision(best)[0] > LEAST:
        return some[0], "it is the first of those with the same precision"
    return max(some, key=lambda e: e.value("score") or 0.0), "it has the highest score, and no precision is known"


def _against(reference: str, tests: Sequence[Sequence[Entry]]) -> dict[str, Quality]:
    """By id. All differences are corrected together."""
    out, pairs = {}, []
    for some in tests:
        first = next((e for e in some if e.series == reference), None)
        for e in some:
            out[e.id] = Quality(e.figures["score"], _items(e), e.load.words, e.id)
            if first is not None and e.series != reference:
                pairs.append((first, e))
    compared = pairings([(list(a.rows), list(b.rows)) for a, b in pairs], ["score"])
    for (_, e), pairing in zip(pairs, compared, strict=True):
        d = next((d for d in pairing.differences if d.points), None)
        out[e.id] = replace(out[e.id], reference=reference, **_change(d))
    return out


def _change(d: Difference | None) -> dict[str, object]:
    if d is None or d.change is None:
        return {"word": "not comparable"}
    return {"change": Number(d.change, d.low, d.high), "detectable": d.smallest, "word": d.word}


def _timed(entries: Sequence[Entry], known: dict[str, Quality], limits: Limits) -> list[Entry]:
    """The entry of each series whose speed is shown beside its quality: of the contest with most of these series."""
    speeds = [c for c in (*contests(entries, limits), *small_contests(entries)) if _fast(c)]

    def scored(contest: Contest) -> list[Entry]:
        return [e for e in contest.entries if e.series in known]

    best = max(speeds, key=lambda c: (len(scored(c)), len(c.entries)), default=None)
    return scored(best) if best is not None else []


def _fast(contest: Contest) -> bool:
    return contest.metric in THROUGHPUTS or contest.metric == "speed"


# ---- in words ----


def speed(e: Entry) -> tuple[str, Number] | None:
    """The figure that a series is as fast as, by its name."""
    return next(((name, e.figures[name]) for name in (*THROUGHPUTS, "speed") if name in e.figures), None)


def front_sentences(
    entries: Sequence[Entry], inseparable: Callable[[Entry, Entry, str], bool] = lambda one, other, metric: False
) -> Iterator[str]:
    """The fastest setting without a detectable loss, what could have been detected, and what is faster and worse.
    `inseparable`: whether the data show no difference between a figure of two entries."""
    timed = [e for e in entries if e.quality is not None and e.quality.timed and speed(e) is not None]
    ranked = sorted(timed, key=_speed, reverse=True)
    reference = next((e for e in entries if e.quality and e.kind == "quality" and not e.quality.reference), None)
    if len(ranked) < 2 or reference is None:
        return
    able = [e for e in ranked if _quality(e).word not in (*_LOSS, "not comparable")]
    peers = [e for e in able[1:] if _alike(able[0], e, inseparable)]
    if peers:
        first = [able[0], *peers[: _MOST - 1]]
        names = f"{', '.join(e.series for e in first[:-1])} and {first[-1].series}"
        more = f" and {len(peers) + 1 - len(first)} more" if len(peers) >= _MOST else ""
        paces = "; ".join(_described(e) for e in first)
        yield f"{names}{more} can't be separated in speed; none has a detectable loss of quality: {paces}."
    elif able:
        yield f"The fastest setting with no detectable loss of quality is {_described(able[0])}."
    else:
        yield "Every setting with a known speed has a detectable loss of quality."
    # Of the setting that is named; of the reference, which is compared with nothing, by the others without a loss.
    about = able[:1] if able and _quality(able[0]).reference else able or ranked
    if detectable := [q.detectable for e in about if (q := _quality(e)).detectable is not None]:
        items, test = _quality(ranked[0]).items, _quality(ranked[0]).test
        asked = f"{count(items)} items of {test}" if items is not None else test
        yield f"The smallest detectable loss is {points(max(detectable))} ({asked})."
    lossy = [e for e in ranked if _quality(e).word in _LOSS and (not able or _speed(e) > _speed(able[0]))]
    lossy = [e for e in lossy if not able or not _alike(e, able[0], inseparable)]
    if lossy:
        each = [f"{e.series} ({_pace(e)}, {_points(e)})" for e in lossy[:_MOST]]
        more = f" and {len(lossy) - _MOST} more" if len(lossy) > _MOST else ""
        yield f"Faster, but with a loss of quality: {'; '.join(each)}{more}."
    scored = [e for e in entries if e.kind == "quality" and e.quality and e.load == reference.load]
    yield f"The reference for quality is {reference.series}: {_reference(scored)[1]}."
    unscored = dict.fromkeys(e.series for e in entries if e.kind == ranked[0].kind and e.quality is None)
    if unscored:
        yield f"Without a score: {', '.join(list(unscored)[:_MOST])}{' …' if len(unscored) > _MOST else ''}."


def _alike(one: Entry, other: Entry, inseparable: Callable[[Entry, Entry, str], bool]) -> bool:
    named, others = speed(one), speed(other)
    return named is not None and others is not None and named[0] == others[0] and inseparable(one, other, named[0])


def _quality(e: Entry) -> Quality:
    assert e.quality is not None
    return e.quality


def _speed(e: Entry) -> float:
    figure = speed(e)
    return figure[1].value if figure is not None else 0.0


def _pace(e: Entry) -> str:
    name, figure = speed(e) or ("", Number(0.0))
    where = f" at {level(e)}" if level(e) and e.kind != "micro" else ""
    return f"{number(figure.value)} {metric(name).unit}{where}"


def _described(e: Entry) -> str:
    q = _quality(e)
    both = f"{_pace(e)}; score {score(q.score.value)}"
    return f"{e.series} ({both}, {_loss(e)})" if q.reference else f"{e.series}, the reference itself ({both})"


def _loss(e: Entry) -> str:
    q = _quality(e)
    assert q.change is not None
    interval = f", 95 % interval {points_interval(q.change.low, q.change.high)}" if q.change.low is not None else ""
    return f"{_points(e)} against {q.reference}{interval}"


def _points(e: Entry) -> str:
    change = _quality(e).change
    return points(change.value if change is not None else None, signed=True)
