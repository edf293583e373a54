"""ColumnTable of runs: NumPy arrays by name, and an Arrow stream, which pandas, Polars, PyArrow and DuckDB read."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dyno.api import html

if TYPE_CHECKING:
    import numpy as np

    from dyno.store.sql import RunTables

_SHOWN = 10  # rows of a notebook's table; columns of a line


class ColumnTable:
    """A table of runs, requests or samples: `records["ttft_ms"]` is a NumPy array, `len(records)` the number of rows.

    Missing numbers are NaN, other missing values None. `polars.DataFrame(records)`, `pyarrow.table(records)`,
    `pandas.DataFrame.from_arrow(records)` and DuckDB take it as it is, by the Arrow PyCapsule interface;
    `pandas.DataFrame(dict(records))` needs no PyArrow. `dyno sql` describes each column.
    """

    def __init__(self, tables: "RunTables", query: str) -> None:
        self._tables = tables
        self._name = tables.keep(query)
        self._arrays: dict[str, np.ndarray[Any, Any]] | None = None

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        return self._loaded()[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._tables.count_of(self._name)

    def keys(self) -> list[str]:
        """Return the names of the columns: `dict(records)` has all arrays."""
        return self.columns

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._tables.stream(self._name)

    @property
    def columns(self) -> list[str]:
        return self._tables.names_of(self._name)

    @property
    def unreadable(self) -> list[str]:
        """Sentences about files that are left out."""
        return list(self._tables.unreadable)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as Python values by name."""
        names = self.columns
        for row in self._tables.rows_of(self._name):
            yield dict(zip(names, row, strict=True))

    @property
    def text(self) -> str:
        """Return its rows as a table, as `dyno sql` prints them."""
        from dyno.report.table import database_cell, terminal, text_table

        rows = ([database_cell(value) for value in row.values()] for row in self.rows())
        return "\n".join(terminal(text_table(self.columns, rows), more=".rows()"))

    def __repr__(self) -> str:
        names = self.columns
        more = f", … {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"<{len(self):,} rows × {len(names)} columns: {', '.join(names[:_SHOWN])}{more}>"

    def _repr_html_(self) -> str:
        rows = itertools.islice(self._tables.rows_of(self._name), _SHOWN)
        return html.table(self.columns, rows, f"{len(self):,} rows")

    def _loaded(self) -> "dict[str, np.ndarray[Any, Any]]":
        if self._arrays is None:
            self._arrays = self._tables.arrays(self._name)
        return self._arrays
