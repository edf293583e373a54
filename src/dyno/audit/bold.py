"""Where bold marks the best of a column: is it the best?"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from dyno.facts.finding import Finding
from dyno.facts.imported import Document, Figure, Row
from dyno.facts.metric import better

TIE = 0.001  # two bold values this close are one to their author
Column = list[tuple[Row, Figure]]


def _columns(rows: list[Row]) -> dict[str, Column]:
    """By name, those with some bold and some plain cells in which one way is better."""
    columns: dict[str, Column] = defaultdict(list)
    for row in rows:
        for name, figure in row.figures.items():
            if better(name) is not None:
                columns[name].append((row, figure))
    return {n: c for n, c in columns.items() if 0 < sum(f.bold for _, f in c) < len(c)}


def _best(name: str, column: Column) -> Figure:
    return (max if better(name) == "higher" else min)((f for _, f in column), key=lambda f: f.value)


def _as_good(figure: Figure, best: Figure, tie: float) -> bool:
    spread = (figure.deviation or 0.0) + (best.deviation or 0.0)
    return abs(figure.value - best.value) <= max(spread, tie * abs(best.value))


def _has_best(name: str, column: Column) -> bool:
    best = _best(name, column)
    return any(f.bold and _as_good(f, best, 0.0) for _, f in column)


def _wrong(name: str, column: Column) -> list[Figure]:
    """Bold ones that are not the best; a near one beside the best that is bold too passes."""
    tie = TIE if _has_best(name, column) else 0.0
    return [f for _, f in column if f.bold and not _as_good(f, _best(name, column), tie)]


def _key(row: Row, names: tuple[str, ...]) -> tuple[object, ...]:
    own = {"label": row.label, "series": row.series, "section": row.section}
    return tuple(own[n] if n in own else row.setting(n) for n in names)


def _grouped(rows: list[Row], columns: dict[str, Column]) -> bool:
    """Whether every bold is right once the table is taken in blocks: of one load, one model, …"""
    told = sorted({name for row in rows for name in row.settings} | {"label", "series", "section"})
    for names in (*((n,) for n in told), *combinations(told, 2)):
        groups: dict[tuple[object, ...], set[int]] = defaultdict(set)
        for row in rows:
            groups[_key(row, names)].add(id(row))
        if len(groups) < 2 or any(len(group) < 2 for group in groups.values()):
            continue
        blocks = [
            (name, [(r, f) for r, f in column if id(r) in group])
            for group in groups.values()
            for name, column in columns.items()
        ]
        if not any(_wrong(name, block) for name, block in blocks if block):
            return True
    return False


def _highlighted(row: Row) -> bool:
    """A whole row in bold is the author's favourite, not the best of each column."""
    figures = [f for name, f in row.figures.items() if better(name) is not None]
    return len(figures) > 1 and all(f.bold for f in figures)


def _words(name: str, column: Column, wrong: list[Figure]) -> str:
    best = _best(name, column)
    bolds = ", ".join(f"{f.value:g}" for f in wrong)
    also = ", which is bold too" if best.bold else ""
    return f"{name.replace('_', ' ')}: {bolds} is bold, {best.value:g} is {better(name)}{also}"


def bold(documents: list[Document]) -> Iterator[Finding]:
    for document in documents:
        tables: dict[int, list[Row]] = defaultdict(list)
        for row in document.rows:
            if row.table is not None:
                tables[row.table].append(row)
        for rows in tables.values():
            columns = _columns(rows)
            right = sum(_has_best(name, column) for name, column in columns.items())
            # Bold must be seen to mark the best: in more columns than not, and in two at least.
            if right < 2 or 2 * right <= len(columns):
                continue
            wrong = {n: w for n, c in columns.items() if (w := _wrong(n, c))}
            favourites = {id(f) for row in rows if _highlighted(row) for f in row.figures.values()}
            if not wrong or _grouped(rows, columns) or all(id(f) in favourites for w in wrong.values() for f in w):
                continue
            told = "; ".join(_words(name, columns[name], w) for name, w in wrong.items())
            lines = sorted({f.line for w in wrong.values() for f in w})
            yield Finding(
                "consistency.bold",
                "doubt",
                f"In a table where bold marks the best, it doesn't in {len(wrong)} of {len(columns)} columns: {told}.",
                "Mark the best, or say what bold means: readers take the bold numbers with them.",
                [f"{document.file}:{line}" for line in lines],
            )
