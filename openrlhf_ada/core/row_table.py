"""Numbers per dataset row in columns that grow with the rows seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ada.core.types import Floats, Ints


class RowTable:
    """One float64 per column and row. A row that was never written has the `defaults`."""

    def __init__(self, columns: Sequence[str], defaults: Sequence[float]) -> None:
        self._columns = tuple(columns)
        self._defaults = np.array(defaults, dtype=np.float64)[:, None]
        self._values = np.empty((len(columns), 0))

    def __len__(self) -> int:
        return self._values.shape[1]

    def of(self, rows: ArrayLike) -> Floats:
        """A copy of these rows, shape (C, B)."""
        row = np.asarray(rows, dtype=np.int64)
        self.grow(int(row.max(initial=-1)) + 1)
        return self._values[:, row]

    def put(self, rows: ArrayLike, values: Sequence[Floats]) -> None:
        """Write one array per column, shapes (B,), to rows that are all different."""
        row = np.asarray(rows, dtype=np.int64)
        self.grow(int(row.max(initial=-1)) + 1)
        self._values[:, row] = values

    def column(self, name: str) -> Floats:
        """Of all rows, shape (R,)."""
        return self._values[self._columns.index(name)]

    def grow(self, size: int) -> None:
        """Have at least `size` rows."""
        missing = size - len(self)
        if missing > 0:
            # Twice as many at least, so that growing row by row takes linear time.
            fresh = np.repeat(self._defaults, max(missing, len(self)), axis=1)
            self._values = np.concatenate([self._values, fresh], axis=1)

    def state(self, rows: Ints) -> dict[str, Any]:
        """These rows as plain lists."""
        columns = {name: self._values[i, rows].tolist() for i, name in enumerate(self._columns)}
        return {"rows": rows.tolist()} | columns

    def load(self, state: dict[str, Any]) -> None:
        """Only what `state` wrote is left."""
        self._values = np.empty((len(self._columns), 0))
        if state["rows"]:
            self.grow(max(state["rows"]) + 1)
            self._values[:, state["rows"]] = [state[name] for name in self._columns]


def missing_names(state: dict[str, Any], names: Iterable[str]) -> str:
    """Which of these a saved state lacks."""
    return ", ".join(name for name in names if name not in state)
