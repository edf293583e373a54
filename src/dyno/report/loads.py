"""Under which load a result stands in a report, and where on which axis. Of all results together: where a file tells
neither dataset nor lengths, only the others say whether 79.5 and 82.1 tokens a prompt are one workload."""

from collections.abc import Iterable

from dyno.facts.imported import Row, Scalar
from dyno.facts.load import LEVELS, ONE_WORKLOAD, OWN, near
from dyno.facts.study import short
from dyno.measure.points import finite_rate, input_each, point


class Loads:
    def __init__(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        told = sorted({length for row in rows if (length := row.number("input_len")) is not None and row.form != "run"})
        means = {length for row in rows if (length := _untold(row)) is not None}
        # One that is told elsewhere is the same, where it lies as near.
        self._told = {m: t for m in means for t in told if near(m, t, ONE_WORKLOAD)}
        self._lengths = _alike(means - self._told.keys())

    def load(self, row: Row) -> dict[str, Scalar]:
        """As points.point tells it, and the length of prompts where that is all that is known of them."""
        load = dict(point(row))
        if row.form == "run":  # which tells all of it
            load |= {name: short(value) for name in OWN if (value := row.setting(name)) is not None}
        if (told := self._told.get(_untold(row) or -1.0)) is not None:
            return load | {"input_len": int(told) if told.is_integer() else told}
        length = self._length(row)
        return load if length is None else load | {"context": length}

    def axes(self, row: Row) -> dict[str, float]:
        """Of facts.load.AXES those that it has."""
        told: dict[str, float | None] = {
            "concurrency": row.number("concurrency"),
            "rate": finite_rate(row),
            "batch_size": row.number("batch_size"),
            "context": self._context(row),
        }
        found = {name: value for name, value in told.items() if value is not None}
        if row.kind in ("serve", "throughput") and not found.keys() & set(LEVELS):
            count = row.number("num_prompts") or row.get("completed")
            if count is not None:
                found["requests"] = count
        return found

    def _context(self, row: Row) -> float | None:
        """Tokens of a prompt, as it was asked for; of a micro test, what is there before it."""
        if row.kind == "micro":
            return row.number("depth") or 0.0
        if (length := row.number("input_len")) is not None:
            return length + (row.number("--random-prefix-len") or 0.0)
        return self._told.get(_untold(row) or -1.0, self._length(row))

    def _length(self, row: Row) -> float | None:
        untold = _untold(row)
        # Where all prompts are alike, their length says nothing of the load.
        if untold is None or untold not in self._lengths or len({*self._lengths.values(), *self._told.values()}) < 2:
            return None
        return self._lengths[untold]


def _untold(row: Row) -> float | None:
    """The mean length of prompts, where nobody tells which they were."""
    silent = row.form != "run" and row.kind in ("serve", "throughput") and row.setting("dataset") is None
    each = input_each(row) if silent and row.number("input_len") is None else None
    return each if each is not None and each > 0 else None


def _alike(lengths: set[float]) -> dict[float, float]:
    """Each length → that of its workload, rounded."""
    clusters: list[list[float]] = []
    for length in sorted(lengths):
        if clusters and near(length, clusters[-1][0], ONE_WORKLOAD):
            clusters[-1].append(length)
        else:
            clusters.append([length])
    return {length: float(f"{sum(c) / len(c):.3g}") for c in clusters for length in c}
