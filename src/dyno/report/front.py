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

# compares a figure of two entries, the first against the second; None: not comparable
Differ = Callable[[Entry, Entry, str], Difference | None]


def with_quality(entries: Sequence[Entry], limits: Limits) -> list[Entry]:
    """Give each entry the score of its series over all tasks; scores of single tasks have their own."""
    by_load = _scores_by_load(entries)
    if not by_load:
        return list(entries)
    total = max(by_load, key=lambda load: _weight(by_load[load]))
    reference = _reference(by_load[total])[0].series
    qualities = _against(reference, [by_load[total]])
    qualities |= _against(
        reference, [some for load, some in by_load.items() if load != total]
    )
    by_series = {e.series: qualities[e.id] for e in by_load[total]}
    timed = {e.id for e in _timed(entries, by_series, limits)}
    out = []
    for e in entries:
        quality = qualities.get(e.id) if e.kind == "quality" else by_series.get(e.series)
        if quality is not None:
            e = replace(e, quality=replace(quality, timed=e.id in timed))
        out.append(e)
    return out


def _scores_by_load(entries: Sequence[Entry]) -> dict[Load, list[Entry]]:
    """Return the usable scores of each test."""
    by_load: dict[Load, list[Entry]] = {}
    for e in entries:
        if e.kind == "quality" and e.value("score") is not None and e.verdict != "void":
            by_load.setdefault(e.load, []).append(e)
    return by_load


def _weight(some: Sequence[Entry]) -> tuple[object, ...]:
    """Rank a test as the one that represents quality: by its series, by covering all tasks, by its items."""
    first = some[0]
    all_tasks = bool(first.settings.get("group"))
    return len({e.series for e in some}), all_tasks, _items(first) or 0


def _items(e: Entry) -> int | None:
    items = e.rows[0].number("samples")
    return None if items is None else int(items)


def _reference(some: Sequence[Entry]) -> tuple[Entry, str]:
    """Return the series that others are compared with, and why. It is never chosen by score where precision is known:
    the best of many scores is partly luck, and all others would seem to lose."""
    best = max(some, key=_precision)
    highest = _precision(best)
    if highest[0] <= LEAST:
        by_score = max(some, key=lambda e: e.value("score") or 0.0)
        return by_score, "it has the highest score, and no precision is known"
    if any(_precision(e) != highest for e in some):
        return best, "it has the highest precision"
    return some[0], "it is the first of those with the same precision"


def _precision(e: Entry) -> tuple[float, float, bool]:
    """Return the bytes of a weight and of a cached value, and whether every token is the model's own."""
    get = e.settings.get
    weight = bytes_each(get("quantization"), get("dtype"), str(get("model") or ""))
    cache = get("kv_cache_dtype")
    cached = bytes_each(cache, None, "") if cache not in (None, "auto", "f16") else 2.0
    return weight, cached, not get("speculative")


def _against(reference: str, tests: Sequence[Sequence[Entry]]) -> dict[str, Quality]:
    """Return the quality of each entry by its id. All differences are corrected together."""
    out = {}
    pairs = []
    for some in tests:
        first = next((e for e in some if e.series == reference), None)
        for e in some:
            out[e.id] = Quality(e.figures["score"], _items(e), e.load.words, e.id)
            if first is not None and e.series != reference:
                pairs.append((first, e))
    compared = pairings([(list(a.rows), list(b.rows)) for a, b in pairs], ["score"])
    for (_, e), pairing in zip(pairs, compared, strict=True):
        difference = next((d for d in pairing.differences if d.points), None)
        out[e.id] = replace(out[e.id], reference=reference, **_change(difference))
    return out


def _change(d: Difference | None) -> dict[str, object]:
    if d is None or d.change is None:
        return {"word": "not comparable"}
    return {
        "change": Number(d.change, d.low, d.high),
        "detectable": d.smallest,
        "word": d.word,
    }


def _timed(
    entries: Sequence[Entry], known: dict[str, Quality], limits: Limits
) -> list[Entry]:
    """Return the entry of each series whose speed is shown beside its quality, from the contest with most of them."""
    all_contests = [*contests(entries, limits), *small_contests(entries)]
    speeds = [contest for contest in all_contests if _fast(contest)]

    def scored(contest: Contest) -> list[Entry]:
        return [e for e in contest.entries if e.series in known]

    best = max(speeds, key=lambda c: (len(scored(c)), len(c.entries)), default=None)
    return scored(best) if best is not None else []


def _fast(contest: Contest) -> bool:
    return contest.metric in THROUGHPUTS or contest.metric == "speed"


# ---- in words ----


def speed(e: Entry) -> tuple[str, Number] | None:
    """Return the figure that says how fast a series is, with its name."""
    return next(
        ((name, e.figures[name]) for name in (*THROUGHPUTS, "speed") if name in e.figures),
        None,
    )


def front_sentences(
    entries: Sequence[Entry], differ: Differ = lambda one, other, metric: None
) -> Iterator[str]:
    """Yield the fastest setting without a detectable loss, those with one, and the smallest detectable loss. What is
    decided comes first: losses, where no setting is the fastest."""
    front = _front(entries, differ)
    if front is None:
        return
    if front.peers:
        yield from front.with_loss()
        yield from front.fastest()
    else:
        yield from front.fastest()
        yield from front.with_loss()
    yield from front.detectable_loss()
    scores = _scores(entries)
    yield _reference_sentence(_first_reference(scores), scores)
    yield from _without_score(entries, front.ranked[0].kind)


def lead_over_reference(
    entries: Sequence[Entry], differ: Differ
) -> tuple[Entry, Entry] | None:
    """Return the fastest setting without a detectable loss and the reference, where these sentences compare their
    speeds."""
    front = _front(entries, differ)
    return front.lead() if front is not None else None


def _front(entries: Sequence[Entry], differ: Differ) -> "_Front | None":
    timed = [
        e
        for e in entries
        if e.quality is not None and e.quality.timed and speed(e) is not None
    ]
    reference = any(not _quality(e).reference for e in _scores(entries))
    return _Front(timed, differ) if len(timed) >= 2 and reference else None


def _scores(entries: Sequence[Entry]) -> list[Entry]:
    return [e for e in entries if e.kind == "quality" and e.quality is not None]


def _first_reference(scores: Sequence[Entry]) -> Entry:
    return next(e for e in scores if not _quality(e).reference)


def _reference_sentence(reference: Entry, scores: Sequence[Entry]) -> str:
    _, why = _reference([e for e in scores if e.load == reference.load])
    return f"The reference for quality is {reference.series}: {why}."


def _without_score(entries: Sequence[Entry], kind: str) -> Iterator[str]:
    unscored = list(
        dict.fromkeys(e.series for e in entries if e.kind == kind and e.quality is None)
    )
    if unscored:
        more = " …" if len(unscored) > _MOST else ""
        yield f"Without a score: {', '.join(unscored[:_MOST])}{more}."


class _Front:
    """Settings with a score and a speed. `ranked`: all, the fastest first; `able`: those without a detectable loss;
    `peers`: of these, those that can't be separated from the first in speed."""

    def __init__(self, timed: Sequence[Entry], differ: Differ) -> None:
        self._differ = differ
        self.ranked = sorted(timed, key=_speed, reverse=True)
        self.able = [
            e for e in self.ranked if _quality(e).word not in (*_LOSS, "not comparable")
        ]
        self.peers = [e for e in self.able[1:] if self._alike(self.able[0], e)]

    def fastest(self) -> Iterator[str]:
        if not self.able:
            yield "Every setting with a known speed has a detectable loss of quality."
            return
        leader = self.able[0]
        if not self.peers:
            yield f"The fastest setting with no detectable loss of quality is {_described(leader)}."
            yield from self._gain()
            return
        first = [leader, *self.peers[: _MOST - 1]]
        names = f"{', '.join(e.series for e in first[:-1])} and {first[-1].series}"
        left_out = len(self.peers) + 1 - len(first)
        more = f" and {left_out} more" if left_out else ""
        paces = "; ".join(_described(e) for e in first)
        yield f"{names}{more} can't be separated in speed; none has a detectable loss of quality: {paces}."

    def lead(self) -> tuple[Entry, Entry] | None:
        """Return the fastest one and the reference, where the first is faster and their difference has an interval."""
        if not self.able or self.peers:
            return None
        leader = self.able[0]
        reference = next((e for e in self.able if not _quality(e).reference), leader)
        if reference is leader:
            return None
        difference = self._difference(leader, reference)
        known = difference is not None and difference.low is not None
        return (leader, reference) if known else None

    def _gain(self) -> Iterator[str]:
        """Yield how much faster the fastest one is than the reference."""
        lead = self.lead()
        if lead is None:
            return
        leader, reference = lead
        difference = self._difference(leader, reference)
        assert difference is not None
        pace = number(_speed(reference))
        yield f"Its speed against {reference.series} ({pace}): {difference.both_words}."

    def detectable_loss(self) -> Iterator[str]:
        known = [
            detectable
            for e in self._compared()
            if (detectable := _quality(e).detectable) is not None
        ]
        if known:
            quality = _quality(self.ranked[0])
            asked = (
                quality.test
                if quality.items is None
                else f"{count(quality.items)} items of {quality.test}"
            )
            yield f"The smallest detectable loss is {points(max(known))} ({asked})."

    def _compared(self) -> list[Entry]:
        """Return the setting that is named as the fastest. The reference is compared with nothing, so the others
        without a loss stand in for it."""
        if not self.able:
            return self.ranked
        return self.able[:1] if _quality(self.able[0]).reference else self.able

    def with_loss(self) -> Iterator[str]:
        lossy = [e for e in self.ranked if _quality(e).word in _LOSS]
        faster = [e for e in lossy if self._faster(e)]
        others = [e for e in lossy if e not in faster]
        yield from _with_loss("Faster, but with a loss of quality", faster)
        yield from _with_loss("A loss of quality is detected", others)

    def _faster(self, e: Entry) -> bool:
        """Return whether it is faster than every setting without a loss."""
        if not self.able:
            return True
        return _speed(e) > _speed(self.able[0]) and not self._alike(e, self.able[0])

    def _alike(self, one: Entry, other: Entry) -> bool:
        difference = self._difference(one, other)
        return difference is not None and difference.inseparable

    def _difference(self, one: Entry, other: Entry) -> Difference | None:
        """Compare the speeds of two settings."""
        name, _ = speed(one) or ("", None)
        other_name, _ = speed(other) or ("", None)
        return self._differ(one, other, name) if name and name == other_name else None


def _with_loss(what: str, lossy: Sequence[Entry]) -> Iterator[str]:
    if lossy:
        each = [f"{e.series} ({_pace(e)}, {_loss(e)})" for e in lossy[:_MOST]]
        more = f" and {len(lossy) - _MOST} more" if len(lossy) > _MOST else ""
        yield f"{what}: {'; '.join(each)}{more}."


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
    if not q.reference:
        return f"{e.series}, the reference itself ({both})"
    return f"{e.series} ({both}, {_loss(e)})"


def _loss(e: Entry) -> str:
    q = _quality(e)
    assert q.change is not None
    loss = f"{_points(e)} against {q.reference}"
    if q.change.low is None:
        return loss
    return f"{loss}, 95 % interval {points_interval(q.change.low, q.change.high)}"


def _points(e: Entry) -> str:
    change = _quality(e).change
    return points(change.value if change is not None else None, signed=True)
